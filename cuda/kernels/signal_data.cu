// Tests whether a signal carries the data written before it. In each round all threads of the writer's block store fresh
// words into the reader's memory, one thread signals, and the reader's block, one thread of which has waited, compares
// every word. With `relaxed` not 0 the calls that order no memory are used instead: the weakened variant, whose
// mismatches show that the test can notice them.
//
// Both kernels run as one block. Waits give up after `maxSpin` polls (never, if negative) or when aborted; then the
// whole block stops and leaves the round in `failed` as round + 1.

#include "mscclpp/memory_channel_device.hpp"

using mscclpp::BaseMemoryChannelDeviceHandle;

// The word at `index` in that round: different rounds or seeds have no pattern in common (splitmix64's finalizer).
__device__ static uint64_t wordOf(uint64_t seed, uint64_t round, uint64_t index) {
  uint64_t x = seed + (round << 32) + index;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ static void signalPeer(const BaseMemoryChannelDeviceHandle& ch, int relaxed) {
  if (relaxed) {
    ch.relaxedSignal();
  } else {
    ch.signal();
  }
}

// The block's wait: thread 0 waits, and all threads get the outcome. By the barrier all of them see what the wait
// acquired.
__device__ static bool waitInBlock(const BaseMemoryChannelDeviceHandle& ch, int relaxed, int64_t maxSpin) {
  __shared__ int signalled;
  if (threadIdx.x == 0) signalled = relaxed ? ch.relaxedWait(maxSpin) : ch.wait(maxSpin);
  __syncthreads();
  const bool result = signalled != 0;
  __syncthreads();
  return result;
}

// Writes `words` words a round into `peerBuffer`, the reader's buffer as mapped here, and waits each time until the
// reader has compared them.
extern "C" __global__ void signal_data_write(BaseMemoryChannelDeviceHandle ch, uint64_t* peerBuffer,
                                             uint64_t words, int rounds, uint64_t seed, int relaxed,
                                             int64_t maxSpin, unsigned int* failed) {
  for (int round = 0; round < rounds; ++round) {
    for (uint64_t i = threadIdx.x; i < words; i += blockDim.x) peerBuffer[i] = wordOf(seed, round, i);
    __syncthreads();
    if (threadIdx.x == 0) signalPeer(ch, relaxed);
    if (!waitInBlock(ch, relaxed, maxSpin)) {
      if (threadIdx.x == 0) *failed = round + 1;
      return;
    }
  }
}

// Waits for each round's words, adds to `mismatches` how many are wrong, and signals back.
extern "C" __global__ void signal_data_check(BaseMemoryChannelDeviceHandle ch, const uint64_t* buffer,
                                             uint64_t words, int rounds, uint64_t seed, int relaxed,
                                             int64_t maxSpin, unsigned long long* mismatches,
                                             unsigned int* failed) {
  for (int round = 0; round < rounds; ++round) {
    if (!waitInBlock(ch, relaxed, maxSpin)) {
      if (threadIdx.x == 0) *failed = round + 1;
      return;
    }
    unsigned long long wrong = 0;
    for (uint64_t i = threadIdx.x; i < words; i += blockDim.x) wrong += buffer[i] != wordOf(seed, round, i);
    if (wrong != 0) atomicAdd(mismatches, wrong);
    __syncthreads();
    if (threadIdx.x == 0) signalPeer(ch, relaxed);
  }
}
