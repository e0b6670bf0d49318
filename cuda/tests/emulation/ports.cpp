// The handles of host objects, and FIFOs and port channels: with a proxy that carries out triggers late and in pieces, under random interleavings of
// their accesses.

#include "mscclpp/proxy_channel_device.hpp"
#include "mscclpp/sm_channel_device.hpp"

#include <type_traits>

#include "../../kernels/fifo.cu"
#include "../../kernels/port_channel.cu"

using emulation::Interleaving;
using emulation::Limits;
using emulation::Memory;
using mscclpp::BasePortChannelDeviceHandle;

// Whether the handle of a host's object, under its name or an older one, is this type, and a copy of its bytes a copy of it.
template <class Tag, class Handle>
constexpr bool isHandle = std::is_same<mscclpp::DeviceHandle<Tag>, Handle>::value && std::is_trivially_copyable<Handle>::value;

namespace mscclpp {
static_assert(isHandle<MemoryDevice2DeviceSemaphore, MemoryDevice2DeviceSemaphoreDeviceHandle>, "");
static_assert(isHandle<SmDevice2DeviceSemaphore, SmDevice2DeviceSemaphoreDeviceHandle>, "");
static_assert(isHandle<Host2DeviceSemaphore, Host2DeviceSemaphoreDeviceHandle>, "");
static_assert(isHandle<BaseMemoryChannel, BaseMemoryChannelDeviceHandle>, "");
static_assert(isHandle<MemoryChannel, MemoryChannelDeviceHandle>, "");
static_assert(isHandle<Fifo, FifoDeviceHandle>, "");
static_assert(isHandle<BasePortChannel, BasePortChannelDeviceHandle>, "");
static_assert(isHandle<PortChannel, PortChannelDeviceHandle>, "");
static_assert(isHandle<SmChannel, SmChannelDeviceHandle>, "");
static_assert(isHandle<SimpleSmChannel, SimpleSmChannelDeviceHandle>, "");
static_assert(isHandle<BaseProxyChannel, BaseProxyChannelDeviceHandle>, "");
static_assert(isHandle<ProxyChannel, ProxyChannelDeviceHandle>, "");
static_assert(isHandle<SimpleProxyChannel, SimpleProxyChannelDeviceHandle>, "");
}  // namespace mscclpp

// A FIFO in memory, and the host's end of it.
struct HostFifo {
  explicit HostFifo(uint32_t size) : slots(size) {
    handle = FifoDeviceHandle{slots.data(), &head, &tail, &tailCache(), status, size, size - 1, static_cast<uint32_t>(__builtin_ctz(size)), 0};
  }

  // Takes the next trigger, if it is there.
  bool take(ProxyTrigger& trigger) {
    const ProxyTrigger& slot = slots[taken % slots.size()];
    const uint64_t high = mscclpp::atomicLoad(&slot.snd, mscclpp::memoryOrderAcquire);
    if (high >> 63 == (taken / slots.size()) % 2) {
      mscclpp_sim::pause();
      return false;
    }
    trigger = ProxyTrigger{slot.fst, high & ~(1ull << 63)};
    ++taken;
    mscclpp::atomicStore(&tail, taken, mscclpp::memoryOrderRelease);
    return true;
  }

  std::vector<ProxyTrigger> slots;
  uint64_t& tailCache() { return lines[0]; }
  uint64_t& looking() { return lines[mscclpp::WordsToLooking]; }
  uint64_t head = 0, tail = 0, taken = 0;
  uint64_t lines[2 * mscclpp::WordsToLooking] = {};
  uint32_t status[4] = {};
  FifoDeviceHandle handle;
};

// One side of a connection and the peer's memory, and the work of a proxy.
struct World {
  World(uint32_t fifoSize, uint64_t bytes, uint32_t directPutMax, uint32_t bulkPutMax = 0)
      : fifo(fifoSize), source(bytes, 1), arrivals(bytes, 2) {
    channel.semaphore_ = {tokens, &expected, status, port};
    channel.fifo_ = fifo.handle;
    channel.lastPushed_ = lastPushed, channel.flushDonePos_ = &completed, channel.directToken_ = tokens;
    channel.semaphoreId_ = 5;
    channel.bulkPutMax_ = bulkPutMax;
    channel.dst_ = 3, channel.src_ = 4;
    channel.dstPtr_ = arrivals.at(0), channel.srcPtr_ = source.at(0);
    channel.dstSize_ = channel.srcSize_ = bytes;
    channel.directPutMax_ = directPutMax;
  }

  // Takes a trigger if there is one, and with `step` does the next step of the triggers that were taken.
  void proxy(bool step) {
    ProxyTrigger trigger;
    if (fifo.take(trigger)) {
      CHECK(trigger.fields.semaphoreId == 5);
      const uint64_t type = trigger.fields.type;
      const uint64_t position = fifo.taken;
      if (type & mscclpp::TriggerData) {
        CHECK(trigger.fields.dstMemoryId == 3 && trigger.fields.srcMemoryId == 4);
        const uint64_t to = trigger.fields.dstOffset, from = trigger.fields.srcOffset, bytes = trigger.fields.size;
        // In two pieces, the second one first.
        const uint64_t half = bytes / 2;
        steps.push_back([=] { std::memcpy(arrivals.at(to + half), source.at(from + half), bytes - half); });
        steps.push_back([=] { std::memcpy(arrivals.at(to), source.at(from), half); });
      }
      if (type & mscclpp::TriggerFlag) {
        steps.push_back([this] { __atomic_store_n(tokens + 1, ++signalled, __ATOMIC_RELEASE); });
      }
      if (type & (mscclpp::TriggerFlag | mscclpp::TriggerSync)) {
        steps.push_back([=] { __atomic_store_n(&completed, position, __ATOMIC_RELEASE); });
      }
    }
    if (step && !steps.empty()) {
      steps.front()();
      steps.pop_front();
    }
  }

  HostFifo fifo;
  Memory source, arrivals;
  alignas(16) uint64_t tokens[2] = {};
  uint64_t expected = 0, lastPushed[4] = {}, completed = 0, signalled = 0;
  const uint64_t port[3] = {reinterpret_cast<uint64_t>(lastPushed), reinterpret_cast<uint64_t>(&completed),
                            reinterpret_cast<uint64_t>(tokens)};
  uint32_t status[4] = {};
  std::deque<std::function<void()>> steps;
  PortChannelDeviceHandle channel = {};
};

// Every size at every pair of addresses that are the same modulo 8.
static void threadCopies() {
  const uint64_t largest = 400;
  Memory source(largest + 16, 1), destination(largest + 16, 2), expected(destination);
  for (uint64_t size = 0; size <= largest; ++size) {
    for (uint64_t alignments = 0; alignments < 32; ++alignments) {
      const uint64_t to = alignments % 16, from = (to + alignments / 16 * 8) % 16;
      {
        const Limits limits({source.at(from), source.at(from + size)}, {destination.at(to), destination.at(to + size)});
        mscclpp::copyByThread(destination.at(to), source.at(from), size);
      }
      std::memcpy(expected.at(to), source.at(from), size);
      CHECK(destination.same(expected));
      for (uint64_t i = 0; i < size; i += 61) *source.at(i) ^= static_cast<uint8_t>(size + alignments + i);
    }
  }
}

// Every thread's triggers come once and in order, over many laps, and a sync returns after its trigger was taken. The
// cache only grows, is never above the tail, and is the only thing that most waiting threads read.
static void interleavedPushes() {
  Random random(3);
  uint64_t shared = 0;
  for (uint64_t run = 0; run < 3000; ++run) {
    const unsigned int pushers = 1 + random.below(4);
    const uint64_t each = 1 + random.below(12);
    HostFifo fifo(2u << random.below(3));
    std::vector<uint64_t> next(pushers);
    uint64_t cached = 0;
    Interleaving::run(pushers + 2, 1, random.next(), [&] {
      const uint64_t me = blockIdx.x;
      if (me < pushers) {
        for (uint64_t i = 0; i < each; ++i) {
          const uint64_t position = fifo.handle.push(ProxyTrigger{me << 32 | i, mixed(me << 32 | i)});
          CHECK(position != FifoDeviceHandle::Failed);
          if (i % 3 == 2) CHECK(fifo.handle.sync(position) && fifo.handle.poll(position) && next[me] == i + 1);
        }
        return;
      }
      if (me == pushers) {
        while (fifo.taken < pushers * each) {
          CHECK(fifo.tailCache() >= cached && fifo.tailCache() <= fifo.tail && fifo.looking() <= 1);
          cached = fifo.tailCache();
          shared += fifo.looking();
          mscclpp_sim::pause();
        }
        return;
      }
      while (fifo.taken < pushers * each) {
        ProxyTrigger trigger;
        if (!fifo.take(trigger)) continue;
        CHECK(trigger.snd == mixed(trigger.fst));
        CHECK(next[trigger.fst >> 32]++ == (trigger.fst & ~0u));
      }
    });
    CHECK(fifo.status[0] == 0 && fifo.head == pushers * each && fifo.looking() == 0);
  }
  CHECK(shared > 1000);
}

// The number of worlds in which a put went by bulk copies.
static uint64_t putsByBulk = 0;

// Puts and signals of all kinds by threads in turns. Returns how many pieces were wrong when their signal was taken.
static uint64_t interleavedPuts(uint64_t seed, bool weakened) {
  // Of every four worlds, one has pieces that go by bulk copies.
  const bool bulk = seed % 4 == 0;
  const uint64_t slot = bulk ? 3072 : 128, pieces = 10;
  Random random(seed);
  World world(4, pieces * slot, 64, bulk ? 2560 : 0);
  const unsigned int senders = 1 + random.below(3);
  uint64_t turn = 0, wrong = 0;
  bool received = false;
  const auto byteOf = [&](uint64_t piece, uint64_t i) { return static_cast<uint8_t>(seed + piece * 31 + i * 7 + 1); };
  const auto sizeOf = [&](uint64_t piece) { return 1 + (seed >> piece) % (piece % 3 == 0 ? slot : 64); };
  // A piece in the peer's memory starts with the wrong bytes.
  for (uint64_t i = 0; i < pieces * slot; ++i) {
    *world.arrivals.at(i) = static_cast<uint8_t>(~byteOf(i / slot, i % slot));
  }
  Interleaving::run(senders + 2, 1, random.next(), [&] {
    if (blockIdx.x == senders) {
      while (!received || turn != pieces) {
        world.proxy(random.below(8) == 0);
        mscclpp_sim::pause();
      }
    } else if (blockIdx.x == senders + 1) {
      for (uint64_t piece = 0; piece < pieces; ++piece) {
        CHECK(world.channel.wait(random.below(2) == 0 ? -1 : 1 << 20));
        for (uint64_t i = 0; i < sizeOf(piece); ++i) {
          if (*world.arrivals.at(piece * slot + i) != byteOf(piece, i)) {
            ++wrong;
            break;
          }
        }
      }
      CHECK(!world.channel.poll());
      received = true;
    } else {
      for (uint64_t piece = blockIdx.x; piece < pieces; piece += senders) {
        // Synchronises with the sender of the piece before.
        while (turn != piece) mscclpp_sim::pause();
        const uint64_t at = piece * slot, size = sizeOf(piece);
        for (uint64_t i = 0; i < size; ++i) *world.source.at(at + i) = byteOf(piece, i);
        const uint32_t way = random.below(4);
        if (weakened) {
          CHECK(world.channel.put(at, size) && Overtaking{world.channel}.signalAtOnce());
        } else if (way == 0) {
          CHECK(world.channel.put(at, size) && world.channel.signal());
        } else if (way == 1) {
          CHECK(world.channel.putWithSignal(at, size));
        } else {
          CHECK(way == 2 ? world.channel.putWithSignalAndFlush(at, size)
                         : world.channel.putWithSignal(at, at, size) && world.channel.flush());
          std::memset(world.source.at(at), 0, size);
        }
        ++turn;
      }
    }
  });
  CHECK(world.lastPushed[3] + world.signalled == pieces && world.status[0] == 0 && world.fifo.status[0] == 0);
  putsByBulk += bulk && world.lastPushed[2] >= 1536;
  return wrong;
}

static void noSignalComesBeforeItsData() {
  uint64_t weakened = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    CHECK(interleavedPuts(seed * 0x9e3779b97f4a7c15, false) == 0);
    weakened += interleavedPuts(seed * 0x9e3779b97f4a7c15, true);
  }
  // The test finds the errors that it is for.
  CHECK(weakened > 1000 && putsByBulk > 500);
}

// A thread that knows that a trigger has been taken knows that it is pending, though its push may not have returned yet.
static void noSignalOvertakesWhatIsTaken() {
  Random random(5);
  for (uint64_t run = 0; run < 2000; ++run) {
    World world(4, 128, 64);
    bool received = false;
    Interleaving::run(4, 1, random.next(), [&] {
      if (blockIdx.x == 0) {
        CHECK(world.channel.put(0, 128));
      } else if (blockIdx.x == 1) {
        while (world.fifo.taken == 0) mscclpp_sim::pause();
        CHECK(world.channel.signal());
      } else if (blockIdx.x == 2) {
        while (!received) {
          world.proxy(random.below(8) == 0);
          mscclpp_sim::pause();
        }
      } else {
        CHECK(world.channel.wait() && std::memcmp(world.arrivals.at(0), world.source.at(0), 128) == 0);
        received = true;
      }
    });
  }
}

// Both ways are taken, and counted.
static void smallPutsGoDirectly() {
  World world(8, 4096, 64);
  PortChannelDeviceHandle& channel = world.channel;
  CHECK(channel.putWithSignal(0, 8, 64) && channel.put(8, 0) && channel.flush() && world.fifo.head == 0);
  CHECK(world.lastPushed[1] == 2 && world.lastPushed[2] == 64 && world.lastPushed[3] == 1 && world.tokens[0] == 1);
  CHECK(std::memcmp(world.arrivals.at(0), world.source.at(8), 64) == 0);
  // These puts are too large, have addresses that differ, or pass the end; each comes after a flush.
  uint64_t pushed = 0;
  const uint64_t others[][3] = {{0, 0, 65}, {0, 4, 8}, {4090, 0, 8}, {0, 4090, 8}};
  for (const auto& other : others) {
    CHECK(channel.putWithSignal(other[0], other[1], other[2]) && world.fifo.head == ++pushed);
    CHECK(channel.put(0, 8) && world.fifo.head == ++pushed);  // that one is pending
    world.fifo.taken = world.fifo.tail = world.completed = pushed;
  }
  // Kernels do not reach the peer's memory, or its token.
  channel.directToken_ = nullptr;
  CHECK(channel.signal() && channel.putWithSignal(0, 8) && world.fifo.head == pushed + 2);
  world.completed = pushed + 2;
  CHECK(channel.put(0, 8) && world.fifo.head == pushed + 2);
  channel.dstPtr_ = nullptr;
  CHECK(channel.put(0, 8) && world.fifo.head == pushed + 3);
}

// Puts by bulk copies, of every size and alignment, touch no byte around; all other puts take another way.
static void largerPutsGoByBulk() {
  const uint64_t most = 40000;
  World world(8, most + 64, 64, most);
  PortChannelDeviceHandle& channel = world.channel;
  Memory expected(world.arrivals);
  uint64_t puts = 0, moved = 0;
  for (uint64_t size : {1536ul, 1537ul, 1551ul, 1552ul, 8191ul, 8192ul, 8193ul, 16384ul, 16400ul, 24576ul, 39999ul, most}) {
    for (uint64_t offset = 0; offset < 32; offset += 1 + offset % 3) {
      for (uint64_t i = 0; i < size; i += 61) *world.source.at(i) ^= static_cast<uint8_t>(size + offset + i);
      CHECK(channel.put(offset, (offset + 16) % 48, size) && world.fifo.head == 0);
      std::memcpy(expected.at(offset), world.source.at((offset + 16) % 48), size);
      CHECK(world.arrivals.same(expected));
      ++puts, moved += size;
    }
  }
  CHECK(world.lastPushed[1] == puts && world.lastPushed[2] == moved);
  // These puts are too large, too small, have addresses that differ, or find the stage in use by another thread.
  const uint64_t others[][3] = {{0, 0, most + 1}, {0, 0, 1535}, {0, 8, 2048}};
  for (uint64_t i = 0; i < 4; ++i) {
    const bool taken = i == 3 && mscclpp::detail::portStage()->take();
    CHECK(i == 3 ? taken && channel.put(0, 2048) : channel.put(others[i][0], others[i][1], others[i][2]));
    CHECK(world.fifo.head == i + 1);
    world.fifo.taken = world.fifo.tail = world.completed = i + 1;
    if (taken) mscclpp::detail::portStage()->leave();
  }
  CHECK(channel.put(0, 2048) && world.fifo.head == 4);
}

// A handle that is made of another's parts behaves like it, but lets the proxy put.
static void handlesOfParts() {
  World world(8, 4096, 64);
  const PortChannelDeviceHandle whole = world.channel;
  PortChannelDeviceHandle made(whole.semaphoreId_, whole.semaphore_, whole.fifo_, whole.dst_, whole.src_);
  CHECK(made.signal() && world.tokens[0] == 1 && made.put(0, 8) && world.fifo.head == 1 && world.lastPushed[0] == 1);
  ProxyTrigger trigger;
  CHECK(world.fifo.take(trigger) && trigger.fields.dstMemoryId == 3 && trigger.fields.srcMemoryId == 4);
  CHECK(trigger.fields.type == mscclpp::TriggerData && trigger.fields.size == 8 && trigger.fields.semaphoreId == 5);
  // This semaphore belongs to no port channel.
  mscclpp::Host2DeviceSemaphoreDeviceHandle other = whole.semaphore_;
  other.port = nullptr;
  BasePortChannelDeviceHandle wrong(whole.semaphoreId_, other, whole.fifo_);
  CHECK(!wrong.signal() && !wrong.flush() && world.fifo.head == 1);
  CHECK(world.status[mscclpp::StatusRefused] == mscclpp::ReasonNoPort && world.status[mscclpp::StatusAbortRequested] == 1);
}

// A call whose numbers do not fit a trigger pushes nothing, whatever is pending, and ends all waits.
static void whatDoesNotFit() {
  const uint64_t large = 1ull << 32;
  const uint64_t ranges[][3] = {{large, 0, 8}, {0, large, 8}, {0, 0, large}, {~0ull, ~0ull, ~0ull}};
  for (const auto& range : ranges) {
    World world(8, 4096, 64);
    world.channel.dstSize_ = world.channel.srcSize_ = ~0ull;
    CHECK(!world.channel.put(range[0], range[1], range[2]) && world.fifo.head == 0 && world.lastPushed[0] == 0);
    CHECK(world.status[mscclpp::StatusRefused] == mscclpp::ReasonTriggerRange);
    CHECK(!world.channel.wait() && world.status[mscclpp::StatusAborted] == 1);
  }
  World world(8, 4096, 64);
  const BasePortChannelDeviceHandle& base = world.channel;
  CHECK(base.putWithSignal(511, 0, 511, 0, 8) && !base.put(512, 0, 0, 0, 8) && world.fifo.head == 1);
}

// Pushes and flushes that nobody serves end by their bound or an abort, and report what they leave behind.
static void endings() {
  HostFifo fifo(2);
  for (int i = 0; i < 2; ++i) CHECK(fifo.handle.push(ProxyTrigger{}) == static_cast<uint64_t>(i));
  CHECK(!fifo.handle.poll(0) && !fifo.handle.sync(0, 100) && fifo.status[mscclpp::StatusTimedOut] == 1);
  CHECK(fifo.status[mscclpp::StatusRefused] == 0 && fifo.status[mscclpp::StatusAbortRequested] == 0);
  CHECK(fifo.handle.push(ProxyTrigger{}, 100) == FifoDeviceHandle::Failed);
  CHECK(fifo.status[mscclpp::StatusRefused] == mscclpp::ReasonFifoPoisoned);
  CHECK(fifo.handle.push(ProxyTrigger{}) == FifoDeviceHandle::Failed && fifo.status[mscclpp::StatusAborted] == 1);

  // While another thread looks at the tail, waits know only the cache, and end by their bound. A poll looks itself.
  HostFifo watched(2);
  ProxyTrigger trigger;
  watched.looking() = 1;
  CHECK(watched.handle.push(ProxyTrigger{}) == 0 && watched.take(trigger));
  CHECK(watched.handle.poll(0) && !watched.handle.sync(0, 100) && watched.tailCache() == 0);
  CHECK(watched.handle.push(ProxyTrigger{}) == 1 && watched.status[mscclpp::StatusRefused] == 0);
  watched.tailCache() = 1;
  CHECK(watched.handle.sync(0, 0) && watched.handle.push(ProxyTrigger{}) == 2);
  CHECK(watched.take(trigger) && watched.handle.push(ProxyTrigger{}, 100) == FifoDeviceHandle::Failed);
  watched.looking() = 0;
  // A sync that finds nobody else keeps what it sees to itself; one that had to wait for another thread's look shares it.
  CHECK(watched.handle.sync(1, 0) && watched.tailCache() == 1 && watched.looking() == 0);
  watched.looking() = 1;
  uint64_t looks = 0;
  Interleaving::run(2, 1, 1, [&] {
    if (blockIdx.x == 0) {
      CHECK(watched.handle.sync(1));
    } else {
      // Fewer than the polls before a look for an abort: the push that gave up has aborted the FIFO.
      while (++looks < mscclpp::PollsBeforeFirstLook / 2) mscclpp_sim::pause();
      watched.looking() = 0;
    }
  });
  CHECK(looks == mscclpp::PollsBeforeFirstLook / 2 && watched.tailCache() == 2 && watched.looking() == 0);

  World world(2, 4096, 0);
  CHECK(!world.channel.putWithSignalAndFlush(0, 0, 8, 100) && world.status[mscclpp::StatusTimedOut] == 1);
  CHECK(!world.channel.flush(100) && world.fifo.status[mscclpp::StatusRefused] == 0 && world.fifo.head == 2);
  // The FIFO is full: an abort of the semaphore ends the push, too.
  world.status[mscclpp::StatusAbortRequested] = 1;
  CHECK(!world.channel.signal() && world.status[mscclpp::StatusAborted] == 1);
  CHECK(world.fifo.status[mscclpp::StatusRefused] == mscclpp::ReasonFifoPoisoned);
  World other(8, 4096, 0);
  other.fifo.status[mscclpp::StatusAbortRequested] = 1;
  CHECK(!other.channel.putWithSignalAndFlush(0, 8) && other.status[mscclpp::StatusAborted] == 1);
}

int main() {
  emulation::asThread(threadCopies);
  interleavedPushes();
  noSignalComesBeforeItsData();
  noSignalOvertakesWhatIsTaken();
  emulation::asThread(smallPutsGoDirectly);
  emulation::asThread(largerPutsGoByBulk);
  emulation::asThread(handlesOfParts);
  emulation::asThread(whatDoesNotFit);
  emulation::asThread(endings);
}
