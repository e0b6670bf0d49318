// Kernels with which tests check the copies of a memory channel: single puts and gets with everything as an argument, all
// sizes and alignments at once, and a round of put, signal and wait that a graph can replay.

#include "mscclpp/concurrency_device.hpp"
#include "mscclpp/memory_channel_device.hpp"

using mscclpp::DeviceSyncer;
using mscclpp::MemoryChannelDeviceHandle;

// The word at `index` in that round: different rounds or seeds have no pattern in common (splitmix64's finalizer).
__device__ static uint64_t wordOf(uint64_t seed, uint64_t round, uint64_t index) {
  uint64_t x = seed + (round << 32) + index;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Calls `move` with the template arguments that `alignment` (4, 8 or 16) and `remainder` stand for.
template <template <int, bool> class Move>
__device__ static void moveBy(const MemoryChannelDeviceHandle& ch, uint64_t targetOffset, uint64_t originOffset,
                              uint64_t bytes, int alignment, int remainder) {
  const uint32_t thread = threadIdx.x + blockIdx.x * blockDim.x;
  const uint32_t threads = blockDim.x * gridDim.x;
  if (remainder) {
    if (alignment == 4) Move<4, true>::call(ch, targetOffset, originOffset, bytes, thread, threads);
    if (alignment == 8) Move<8, true>::call(ch, targetOffset, originOffset, bytes, thread, threads);
    if (alignment == 16) Move<16, true>::call(ch, targetOffset, originOffset, bytes, thread, threads);
  } else {
    if (alignment == 4) Move<4, false>::call(ch, targetOffset, originOffset, bytes, thread, threads);
    if (alignment == 8) Move<8, false>::call(ch, targetOffset, originOffset, bytes, thread, threads);
    if (alignment == 16) Move<16, false>::call(ch, targetOffset, originOffset, bytes, thread, threads);
  }
}

template <int Alignment, bool CopyRemainder>
struct Put {
  __device__ static void call(const MemoryChannelDeviceHandle& ch, uint64_t targetOffset, uint64_t originOffset,
                              uint64_t bytes, uint32_t thread, uint32_t threads) {
    ch.put<Alignment, CopyRemainder>(targetOffset, originOffset, bytes, thread, threads);
  }
};

template <int Alignment, bool CopyRemainder>
struct Get {
  __device__ static void call(const MemoryChannelDeviceHandle& ch, uint64_t targetOffset, uint64_t originOffset,
                              uint64_t bytes, uint32_t thread, uint32_t threads) {
    ch.get<Alignment, CopyRemainder>(targetOffset, originOffset, bytes, thread, threads);
  }
};

// One put, by all threads of the grid. The end of the kernel tells the host that it is done.
extern "C" __global__ void __launch_bounds__(1024, 1)
    channel_put(MemoryChannelDeviceHandle ch, uint64_t targetOffset, uint64_t originOffset, uint64_t bytes,
                int alignment, int remainder) {
  moveBy<Put>(ch, targetOffset, originOffset, bytes, alignment, remainder);
}

// One get, by all threads of the grid.
extern "C" __global__ void __launch_bounds__(1024, 1)
    channel_get(MemoryChannelDeviceHandle ch, uint64_t targetOffset, uint64_t originOffset, uint64_t bytes,
                int alignment, int remainder) {
  moveBy<Get>(ch, targetOffset, originOffset, bytes, alignment, remainder);
}

// In thread 0 of the grid: writes `value` to the word at `index` of the peer's memory, reads that word at once, and
// writes it to `result`.
extern "C" __global__ void __launch_bounds__(1024, 1)
    channel_write_read(MemoryChannelDeviceHandle ch, uint64_t index, uint64_t value, uint64_t* result) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  ch.write(index, value);
  *result = ch.read<uint64_t>(index);
}

// The byte at `index` of a case, in the source; and the byte that the destination has before.
__device__ static uint8_t byteOf(uint64_t seed, uint64_t size, uint64_t index) {
  return static_cast<uint8_t>(wordOf(seed, size, index));
}
__device__ static uint8_t poisonOf(uint64_t seed, uint64_t size, uint64_t index) {
  return static_cast<uint8_t>(~wordOf(seed, size, index) >> 8);
}

// Copies each size from `begin` to `end` - 1 at each of the 16 x 16 alignments of both sides, and adds to `mismatches`
// how many bytes are wrong: inside, or among those around that a copy must not touch. Block b takes the sizes
// begin + b, begin + b + gridDim.x and so on, and has the bytes from b * slot on of both memories for itself; `slot` is
// a multiple of 16 and at least end + 64. With `get` not 0 it gets, otherwise it puts. The peer needs to do nothing.
extern "C" __global__ void __launch_bounds__(1024, 1)
    copy_sweep(MemoryChannelDeviceHandle ch, uint64_t slot, uint64_t begin, uint64_t end, int get, uint64_t seed,
               unsigned long long* mismatches) {
  const uint64_t base = blockIdx.x * slot;
  uint8_t* const local = static_cast<uint8_t*>(ch.src_) + base;
  uint8_t* const remote = static_cast<uint8_t*>(ch.dst_) + base;
  uint8_t* const from = get ? remote : local;
  uint8_t* const to = get ? local : remote;
  unsigned long long wrong = 0;
  for (uint64_t size = begin + blockIdx.x; size < end; size += gridDim.x) {
    // One source serves all alignments: each read begins at another byte.
    for (uint64_t i = threadIdx.x; i < size + 64; i += blockDim.x) from[i] = byteOf(seed, size, i);
    for (int alignments = 0; alignments < 256; ++alignments) {
      const uint64_t toOffset = 16 + alignments % 16, fromOffset = 16 + alignments / 16;
      for (uint64_t i = threadIdx.x; i < size + 64; i += blockDim.x) to[i] = poisonOf(seed, size, i);
      __syncthreads();
      if (get) {
        ch.get(base + toOffset, base + fromOffset, size, threadIdx.x, blockDim.x);
      } else {
        ch.put(base + toOffset, base + fromOffset, size, threadIdx.x, blockDim.x);
      }
      __syncthreads();
      for (uint64_t i = threadIdx.x; i < size + 64; i += blockDim.x) {
        const bool inside = i >= toOffset && i < toOffset + size;
        wrong += to[i] != (inside ? byteOf(seed, size, i - toOffset + fromOffset) : poisonOf(seed, size, i));
      }
      __syncthreads();
    }
  }
  if (wrong != 0) atomicAdd(mismatches, wrong);
}

// One round of both sides, which a graph may replay: its number is in `round`, in device memory, and counts on. Both
// run this. All blocks write fresh words into the first `words` words of this side's memory, put them behind the first
// `words` words of the peer's, and compare what the peer has put into theirs; `mismatches` gets how many are wrong.
//
// `syncers` are two DeviceSyncer. A wait gives up after `maxSpin` polls (never, if negative) or when aborted; then
// `failed` gets the round + 1, and the blocks still come to the end together.
extern "C" __global__ void __launch_bounds__(1024, 1)
    put_round(MemoryChannelDeviceHandle ch, DeviceSyncer* syncers, uint64_t* round, uint64_t words, uint64_t mySeed,
              uint64_t peerSeed, int64_t maxSpin, unsigned long long* mismatches, unsigned int* failed) {
  const uint32_t thread = threadIdx.x + blockIdx.x * blockDim.x;
  const uint32_t threads = blockDim.x * gridDim.x;
  const int blocks = gridDim.x;
  const uint64_t now = *round;
  uint64_t* const mine = static_cast<uint64_t*>(ch.src_);
  for (uint64_t i = thread; i < words; i += threads) mine[i] = wordOf(mySeed, now, i);
  // The peer has compared the words of the round before, since its kernel of that round has ended.
  if (thread == 0) {
    ch.relaxedSignal();
    if (!ch.relaxedWait(maxSpin)) *failed = static_cast<unsigned int>(now) + 1;
  }
  syncers[0].sync(blocks);
  if (thread == 0) *round = now + 1;
  ch.put(words * 8, 0, words * 8, thread, threads);
  // The last block signals for all, and waits for all.
  if (syncers[1].arrive(blocks) && threadIdx.x == 0) {
    ch.signal();
    if (!ch.wait(maxSpin)) *failed = static_cast<unsigned int>(now) + 1;
  }
  syncers[0].sync(blocks);
  unsigned long long wrong = 0;
  for (uint64_t i = thread; i < words; i += threads) wrong += mine[words + i] != wordOf(peerSeed, now, i);
  if (wrong != 0) atomicAdd(mismatches, wrong);
}
