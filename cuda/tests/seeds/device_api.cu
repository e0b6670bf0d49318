// Kernels whose results are wrong if an order of the device API is missing. The proxy of FIFOs and port channels is a
// block of the kernel: it takes triggers late and carries them out in pieces, so that a schedule that a seed makes
// decides about its accesses, too.

#include "mscclpp/atomic_device.hpp"
#include "mscclpp/concurrency_device.hpp"
#include "mscclpp/port_channel_device.hpp"

using mscclpp::FifoDeviceHandle;
using mscclpp::PortChannelDeviceHandle;
using mscclpp::ProxyTrigger;

constexpr uint32_t MaxPieces = 16;
constexpr uint32_t MaxBytes = 32768;

// All memory of a run, which starts as zeros.
struct World {
  alignas(128) uint64_t head;
  alignas(128) uint64_t cacheLines[2 * mscclpp::WordsToLooking];
  alignas(128) uint64_t tail;
  alignas(128) ProxyTrigger slots[8];
  uint32_t fifoStatus[4], status[4];
  alignas(16) uint64_t tokens[2];
  uint64_t expected, completed, lastPushed[4], port[3];
  uint64_t turn, received;
  uint64_t next[MaxPieces];
  FifoDeviceHandle fifo;
  PortChannelDeviceHandle channel;
  uint64_t data[MaxPieces][MaxPieces];
  alignas(128) uint8_t source[MaxBytes];
  alignas(128) uint8_t arrivals[MaxBytes];
};

// Returns a word that belongs to `x` (splitmix64's finalizer), without its top bit.
__device__ static uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) >> 1;
}

extern "C" __global__ void set_up(World* world, uint32_t fifoSize, uint64_t bytes, uint32_t directPutMax, uint32_t bulkPutMax) {
  uint32_t shift = 0;
  while (1u << shift != fifoSize) ++shift;
  world->fifo = FifoDeviceHandle{world->slots,      &world->head, &world->tail, world->cacheLines,
                                 world->fifoStatus, fifoSize,     fifoSize - 1, shift, 0};
  world->port[0] = reinterpret_cast<uint64_t>(world->lastPushed);
  world->port[1] = reinterpret_cast<uint64_t>(&world->completed);
  world->port[2] = reinterpret_cast<uint64_t>(world->tokens);
  PortChannelDeviceHandle& channel = world->channel;
  channel.semaphore_ = {world->tokens, &world->expected, world->status, world->port};
  channel.fifo_ = world->fifo;
  channel.lastPushed_ = world->lastPushed, channel.flushDonePos_ = &world->completed, channel.directToken_ = world->tokens;
  channel.semaphoreId_ = 5, channel.dst_ = 3, channel.src_ = 4;
  channel.dstPtr_ = world->arrivals, channel.srcPtr_ = world->source;
  channel.dstSize_ = channel.srcSize_ = bytes;
  channel.directPutMax_ = directPutMax, channel.bulkPutMax_ = bulkPutMax;
}

// Reads the trigger at position `taken`, if it is there.
__device__ static bool read(const FifoDeviceHandle& fifo, uint64_t taken, ProxyTrigger& trigger) {
  const ProxyTrigger* const slot = fifo.triggers + taken % fifo.size;
  const uint64_t high = mscclpp::atomicLoad(&slot->snd, mscclpp::memoryOrderAcquire);
  if (high >> 63 == (taken / fifo.size) % 2) return false;
  trigger = ProxyTrigger{slot->fst, high & ~(1ull << 63)};
  return true;
}

// Gives the slot of the trigger at position `taken` back.
__device__ static void release(const FifoDeviceHandle& fifo, uint64_t taken) {
  mscclpp::atomicStore(fifo.tail, taken + 1, mscclpp::memoryOrderRelease);
}

// Every block but the first pushes `each` triggers. The first takes them: each comes once, in the order of its block's
// pushes, with the data that was written before it. A sync returns behind what the taker did before it took. The cache
// only grows, and is never above the tail.
extern "C" __global__ void ordered_pushes(World* world, unsigned long long* results, uint64_t each) {
  const FifoDeviceHandle fifo = world->fifo;
  if (blockIdx.x == 0) {
    unsigned long long wrong = 0;
    uint64_t cached = 0;
    for (uint64_t taken = 0; taken != (gridDim.x - 1) * each;) {
      const uint64_t cache = mscclpp::atomicLoad(fifo.tailCache, mscclpp::memoryOrderRelaxed);
      wrong += cache < cached || cache > taken;
      cached = cache;
      ProxyTrigger trigger;
      if (!read(fifo, taken, trigger)) continue;
      const uint64_t block = trigger.fst >> 32, number = trigger.fst & ~0u;
      wrong += trigger.snd != mixed(trigger.fst) || number != world->next[block];
      wrong += world->data[block][number] != mixed(trigger.fst);
      world->next[block] = number + 1;
      release(fifo, taken++);
    }
    if (wrong != 0) atomicAdd(results, wrong);
    return;
  }
  unsigned long long wrong = 0;
  const uint64_t me = blockIdx.x;
  for (uint64_t i = 0; i < each; ++i) {
    const uint64_t number = me << 32 | i;
    world->data[me][i] = mixed(number);
    const uint64_t position = fifo.push(ProxyTrigger{number, mixed(number)});
    if (i % 3 == 2) wrong += !fifo.sync(position) || !fifo.poll(position) || world->next[me] != i + 1;
  }
  if (wrong != 0) atomicAdd(results, wrong);
}

// A step of a proxy: bytes to copy, or, if `signals` or `completed` is not 0, a number to store.
struct Step {
  uint64_t to, from, bytes, signals, completed;
};

// The work of the proxy until the receiver has all `pieces`, and the senders have had their turns. It carries out a
// step in one of four looks, and the two halves of a put in the wrong order.
__device__ static void proxy(World* world, uint64_t seed, uint64_t pieces) {
  const FifoDeviceHandle fifo = world->fifo;
  Step steps[64];
  uint64_t begin = 0, end = 0, taken = 0, signals = 0;
  const auto add = [&](Step step) { steps[end++ % 64] = step; };
  const auto load = [](uint64_t* word) { return mscclpp::atomicLoad(word, mscclpp::memoryOrderAcquire); };
  for (uint64_t look = 0; load(&world->received) == 0 || load(&world->turn) != pieces; ++look) {
    ProxyTrigger trigger;
    if (end - begin <= 60 && read(fifo, taken, trigger)) {
      release(fifo, taken++);
      const uint64_t to = trigger.fields.dstOffset, from = trigger.fields.srcOffset, bytes = trigger.fields.size;
      const uint64_t type = trigger.fields.type;
      if (type & mscclpp::TriggerData) {
        add({to + bytes / 2, from + bytes / 2, bytes - bytes / 2, 0, 0});
        add({to, from, bytes / 2, 0, 0});
      }
      if (type & mscclpp::TriggerFlag) add({0, 0, 0, ++signals, 0});
      if (type & (mscclpp::TriggerFlag | mscclpp::TriggerSync)) add({0, 0, 0, 0, taken});
    }
    if (begin == end || mixed(seed + look) % 4 != 0) continue;
    const Step step = steps[begin++ % 64];
    for (uint64_t i = 0; i < step.bytes; ++i) world->arrivals[step.to + i] = world->source[step.from + i];
    if (step.signals != 0) mscclpp::atomicStore(&world->tokens[1], step.signals, mscclpp::memoryOrderRelease);
    if (step.completed != 0) mscclpp::atomicStore(&world->completed, step.completed, mscclpp::memoryOrderRelease);
  }
}

__device__ static uint8_t byteOf(uint64_t seed, uint64_t piece, uint64_t i) {
  return static_cast<uint8_t>(seed + piece * 31 + i * 7) | 1;
}

__device__ static uint64_t sizeOf(uint64_t seed, uint64_t piece, uint64_t slot) {
  return 1 + mixed(seed + piece) % (piece % 3 == 0 ? slot : 64);
}

// Block 0 is the proxy and block 1 the receiver. The others take turns at putting a piece of at most `slot` bytes and
// signalling, by calls of all kinds. No signal comes before its data.
extern "C" __global__ void ordered_puts(World* world, unsigned long long* results, uint64_t seed, uint64_t pieces, uint64_t slot) {
  const PortChannelDeviceHandle& channel = world->channel;
  if (blockIdx.x == 0) return proxy(world, seed, pieces);
  if (blockIdx.x == 1) {
    unsigned long long wrong = 0;
    for (uint64_t piece = 0; piece < pieces; ++piece) {
      wrong += !channel.wait(mixed(seed ^ piece) % 2 == 0 ? -1 : 1 << 20);
      for (uint64_t i = 0; i < sizeOf(seed, piece, slot); ++i) {
        wrong += world->arrivals[piece * slot + i] != byteOf(seed, piece, i);
      }
    }
    wrong += channel.poll();
    if (wrong != 0) atomicAdd(results, wrong);
    mscclpp::atomicStore(&world->received, uint64_t(1), mscclpp::memoryOrderRelease);
    return;
  }
  const uint64_t senders = gridDim.x - 2;
  for (uint64_t piece = blockIdx.x - 2; piece < pieces; piece += senders) {
    // Synchronises with the sender of the piece before.
    while (mscclpp::atomicLoad(&world->turn, mscclpp::memoryOrderAcquire) != piece) {
    }
    const uint64_t at = piece * slot, size = sizeOf(seed, piece, slot);
    for (uint64_t i = 0; i < size; ++i) world->source[at + i] = byteOf(seed, piece, i);
    const uint64_t call = mixed(seed * 3 + piece) % 4;
    bool done = true;
    if (call == 0) {
      done = channel.put(at, size) && channel.signal();
    } else if (call == 1) {
      done = channel.putWithSignal(at, size);
    } else {
      done = call == 2 ? channel.putWithSignalAndFlush(at, size) : channel.putWithSignal(at, size) && channel.flush();
      for (uint64_t i = 0; i < size; ++i) world->source[at + i] = 0;
    }
    if (!done) atomicAdd(results + 1, 1ull);
    mscclpp::atomicStore(&world->turn, piece + 1, mscclpp::memoryOrderRelease);
  }
}

// Each block takes `times` turns of a semaphore, and counts them with plain accesses. `results` gets the most that held
// a turn at once beyond `most`, and the calls that failed.
extern "C" __global__ void turns(mscclpp::DeviceSemaphore* semaphore, unsigned int* holders, uint64_t* counter,
                                 unsigned long long* results, uint32_t most, uint32_t times) {
  for (uint32_t i = 0; i < times; ++i) {
    if (!semaphore->acquire()) atomicAdd(results + 1, 1ull);
    const unsigned int others = atomicAdd(holders, 1u);
    if (others >= most) atomicMax(results, static_cast<unsigned long long>(others + 1 - most));
    if (most == 1) ++*counter;
    atomicSub(holders, 1u);
    semaphore->release();
  }
}
