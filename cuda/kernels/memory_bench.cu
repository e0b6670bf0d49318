// The benchmark of memory channels: a launch is one round, in which both sides move the same number of bytes at once.
//
// - put: relaxed signal and wait, barrier, put, barrier, signal and wait.
// - get: relaxed signal and wait, barrier, get.
// - put of packets: relaxed signal and wait, barrier, put of packets, unpacking of the peer's.
//
// The handshake at the start shows that the peer's last round is over, so its memory may be written. There are three
// ways to do the barriers:
//
// - full: both are barriers of the whole grid, and a thread of its first block signals and waits for all.
// - half: only the blocks that have work take part. After a put they arrive and do not wait: the last to arrive
//   signals for all, and the first block waits for the peer. If one block has all the work, its own barriers are enough.
// - none: each block that has work signals and waits on a channel of its own, for its own part. These are separate
//   kernels, whose names end in `_own`.
//
// Each block puts or gets one contiguous part of the message. With bulk copies one warp of it does. Packets instead are
// distributed to the warps of all blocks in turns, so that a small message keeps few warps of each block busy. All threads
// may put and then unpack, or the first blocks put while the others unpack. The two groups may have any sizes: blocks that
// put do not wait, so all packets arrive, and the handshake at the start shows that the peer's last launch is over, in which
// some thread has read every packet that is now overwritten.

// Bulk copies need this architecture:
// build: compute_90

#include "mscclpp/concurrency_device.hpp"
#include "mscclpp/memory_channel_device.hpp"

using mscclpp::BaseMemoryChannelDeviceHandle;
using mscclpp::DeviceSyncer;
using mscclpp::LL128Packet;
using mscclpp::LL16Packet;
using mscclpp::LL8Packet;
using mscclpp::MemoryChannelDeviceHandle;

enum { MaxBlocks = 1024, MaxOwnChannels = 64 };

// The state that is kept from launch to launch, in device memory; zeros at first.
struct State {
  alignas(128) DeviceSyncer begin;
  alignas(128) DeviceSyncer end;
  // The flag of each block's last round of packets. It is kept per block, so that the block's own barrier orders its use;
  // it is the same on both sides, which make the same launches. After 2^32 launches it would be 0 again.
  alignas(128) uint32_t flags[MaxBlocks];
};

// The parameters of a launch besides its channels.
struct Round {
  uint64_t bytes;
  // The offset of the peer's data in this side's memory; the data that is sent begins at offset 0.
  uint64_t incoming;
  State* state;
  // Set to 1 if a wait was aborted.
  unsigned int* failed;
  // The number of blocks that have work; all blocks with full barriers.
  uint32_t workers;
  // Whether the barriers are full.
  uint32_t full;
  // The bytes of the message that a block puts or gets; the last block takes the rest. A multiple of 128, so that all parts
  // are aligned like the message and no cache line belongs to two blocks.
  uint64_t part;
  // The blocks before `putters` put packets, and those from `firstUnpacker` on unpack. Either all blocks do both
  // (`firstUnpacker` is 0), or each does one of the two (`firstUnpacker` equals `putters`).
  uint32_t putters;
  uint32_t firstUnpacker;
};

// One channel for each block.
struct OwnChannels {
  BaseMemoryChannelDeviceHandle of[MaxOwnChannels];
};

__device__ static bool isFirstThread() { return threadIdx.x == 0; }
__device__ static bool isFirstBlock() { return blockIdx.x == 0; }

struct GridBarriers {
  const MemoryChannelDeviceHandle& ch;
  const Round& round;

  // The other blocks arrive while the first waits for the peer. It arrives last, and so releases them.
  __device__ bool begin() const {
    bool good = true;
    if (isFirstBlock() && isFirstThread()) {
      ch.relaxedSignal();
      good = ch.relaxedWait();
    }
    if (round.workers == 1 && !round.full) {
      __syncthreads();
      return good;
    }
    return round.state->begin.sync(round.workers, -1, ch.semaphore_.status) && good;
  }

  // The thread that signals and the one that waits need no barrier: both end with the kernel.
  __device__ bool end() const {
    bool good = true;
    bool signals = isFirstBlock();
    if (round.full) {
      good = round.state->end.sync(round.workers, -1, ch.semaphore_.status);
    } else if (round.workers == 1) {
      __syncthreads();
    } else {
      signals = round.state->end.arrive(round.workers);
    }
    if (signals && isFirstThread()) ch.signal();
    return !(isFirstBlock() && isFirstThread()) || (ch.wait() && good);
  }
};

struct OwnChannel {
  const BaseMemoryChannelDeviceHandle& own;

  __device__ bool begin() const {
    bool good = true;
    if (isFirstThread()) {
      own.relaxedSignal();
      good = own.relaxedWait();
    }
    __syncthreads();
    return good;
  }

  __device__ bool end() const {
    __syncthreads();
    if (!isFirstThread()) return true;
    own.signal();
    return own.wait();
  }
};

// An aborted wait does not end the round: all later waits end at once, so no block waits for one that has left.
template <class Barriers, class Move>
__device__ static void play(const Round& round, const Barriers& barriers, bool signalsEnd, Move move) {
  if (blockIdx.x >= round.workers) return;
  bool good = barriers.begin();
  good = move() && good;
  if (signalsEnd) good = barriers.end() && good;
  if (!good) *round.failed = 1;
}

// The part of the message that a block puts or gets.
struct Part {
  uint64_t offset;
  uint64_t bytes;

  __device__ explicit Part(const Round& round)
      : offset(min(blockIdx.x * round.part, round.bytes)), bytes(min(round.part, round.bytes - offset)) {}
  __device__ static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
};

template <class Barriers>
__device__ static void put(const MemoryChannelDeviceHandle& ch, const Round& round, const Barriers& barriers) {
  play(round, barriers, true, [&] {
    const Part part(round);
    ch.put(round.incoming + part.offset, part.offset, part.bytes, threadIdx.x, blockDim.x);
    return true;
  });
}

template <class Barriers>
__device__ static void get(const MemoryChannelDeviceHandle& ch, const Round& round, const Barriers& barriers) {
  play(round, barriers, false, [&] {
    const Part part(round);
    ch.get(round.incoming + part.offset, part.offset, part.bytes, threadIdx.x, blockDim.x);
    return true;
  });
}

#if MSCCLPP_BULK_AVAILABLE
// The stage in a block's dynamic shared memory. The blocks have one warp, and enough of that memory.
__device__ static mscclpp::BulkStage<>& bulkStage() {
  extern __shared__ __align__(128) uint8_t dynamic[];
  return *reinterpret_cast<mscclpp::BulkStage<>*>(dynamic);
}

template <class Barriers>
__device__ static void putBulk(const MemoryChannelDeviceHandle& ch, const Round& round, const Barriers& barriers) {
  play(round, barriers, true, [&] {
    const Part part(round);
    ch.putBulk(round.incoming + part.offset, part.offset, part.bytes, bulkStage());
    return true;
  });
}

template <class Barriers>
__device__ static void getBulk(const MemoryChannelDeviceHandle& ch, const Round& round, const Barriers& barriers) {
  play(round, barriers, false, [&] {
    const Part part(round);
    ch.getBulk(round.incoming + part.offset, part.offset, part.bytes, bulkStage());
    return true;
  });
}
#endif

template <class Packet, class Barriers>
__device__ static void putPackets(const MemoryChannelDeviceHandle& ch, const Round& round, const Barriers& barriers) {
  // The flag is loaded before the handshake, which takes longer. All threads of the block have loaded it before one of them
  // stores the next one, after the barrier.
  uint32_t* const last = round.state->flags + blockIdx.x;
  const uint32_t flag = *last + 1;
  // Threads are numbered among the blocks that do the same as this one; consecutive warps belong to different blocks.
  const bool puts = blockIdx.x < round.putters, unpacks = blockIdx.x >= round.firstUnpacker;
  const uint32_t first = puts ? 0 : round.firstUnpacker;
  const uint32_t blocks = puts ? round.putters : round.workers - first;
  const uint32_t thread = (threadIdx.x / 32 * blocks + blockIdx.x - first) * 32 + threadIdx.x % 32;
  const uint32_t threads = blocks * blockDim.x;
  play(round, barriers, false, [&] {
    if (isFirstThread()) *last = flag;
    bool good = true;
    if (puts) good = ch.putPackets<Packet>(0, 0, round.bytes, thread, threads, flag);
    if (unpacks) {
      good = ch.unpackPackets<Packet>(0, round.incoming, round.bytes, thread, threads, flag) && good;
    }
    return good;
  });
}

// The two entry points of a move. The bound lets a multiprocessor hold at least one block of any size.
#define ENTRIES(NAME, MOVE)                                                                                  \
  extern "C" __global__ void __launch_bounds__(1024, 1) NAME(MemoryChannelDeviceHandle ch, Round round) {    \
    MOVE(ch, round, GridBarriers{ch, round});                                                                \
  }                                                                                                          \
  extern "C" __global__ void __launch_bounds__(1024, 1)                                                      \
      NAME##_own(MemoryChannelDeviceHandle ch, Round round, OwnChannels own) {                               \
    if (blockIdx.x < round.workers) MOVE(ch, round, OwnChannel{own.of[blockIdx.x]});                         \
  }

ENTRIES(memory_put, put)
ENTRIES(memory_get, get)
ENTRIES(memory_put_ll8, putPackets<LL8Packet>)
ENTRIES(memory_put_ll16, putPackets<LL16Packet>)
ENTRIES(memory_put_ll128, putPackets<LL128Packet>)
#if MSCCLPP_BULK_AVAILABLE
ENTRIES(memory_put_bulk, putBulk)
ENTRIES(memory_get_bulk, getBulk)
#endif
