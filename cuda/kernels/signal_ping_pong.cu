// The benchmark of signals: two GPUs signal each other in turns, one thread each, the rounds inside the kernel. A round
// is two hops.

#include "mscclpp/memory_channel_device.hpp"

using mscclpp::BaseMemoryChannelDeviceHandle;
using mscclpp::MemoryOrder;
using mscclpp::MemoryScope;

// The rounds of each kernel, given how to signal and how to wait: the side with `first` not 0 signals and then waits, the
// other waits and then signals, `iters` times. Returns 0, or the round in which a wait was aborted, plus 1.
template <class Signal, class Wait>
__device__ static unsigned int takeTurns(int iters, int first, Signal signal, Wait wait) {
  if (first) {
    for (int i = 0; i < iters; ++i) {
      signal();
      if (!wait()) return i + 1;
    }
  } else {
    for (int i = 0; i < iters; ++i) {
      if (!wait()) return i + 1;
      signal();
    }
  }
  return 0;
}

// One thread of the grid takes its turns. The waits are unbounded; if one is aborted, the kernel ends and leaves the
// round in `failed` as round + 1.
extern "C" __global__ void signal_ping_pong(BaseMemoryChannelDeviceHandle ch, int iters, int first,
                                            unsigned int* failed) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  const unsigned int stopped = takeTurns(
      iters, first, [&] { ch.signal(); }, [&] { return ch.wait(); });
  if (stopped != 0) *failed = stopped;
}

// Takes turns with the signals and waits that order no memory.
extern "C" __global__ void relaxed_ping_pong(BaseMemoryChannelDeviceHandle ch, int iters, int first,
                                             unsigned int* failed) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  const unsigned int stopped = takeTurns(
      iters, first, [&] { ch.relaxedSignal(); }, [&] { return ch.relaxedWait(); });
  if (stopped != 0) *failed = stopped;
}

// The same signals and waits without the instructions that make them safe: the tokens are counted in a register, for one
// thread alone, and nobody can abort. This is the least time that these two GPUs need for a hop between these two
// addresses.
template <MemoryOrder S, MemoryOrder W>
__device__ static void bare(const BaseMemoryChannelDeviceHandle& ch, int iters, int first, unsigned int* failed) {
  // The bound of a wait for a peer that is gone: some seconds.
  const int polls = 1 << 24;
  uint64_t* const inbound = ch.semaphore_.inboundToken;
  uint64_t* const outbound = ch.semaphore_.remoteInboundToken;
  uint64_t taken = *ch.semaphore_.expectedInboundToken;
  const unsigned int stopped = takeTurns(
      iters, first, [&] { mscclpp::detail::reduceAdd<S, MemoryScope::System>(outbound, mscclpp::detail::oneOfThisLane()); },
      [&] {
        ++taken;
#pragma unroll 32
        for (int i = 0; i < polls; ++i) {
          if (mscclpp::detail::load<W, MemoryScope::System>(inbound) >= taken) return true;
        }
        return false;
      });
  *ch.semaphore_.expectedInboundToken = taken;
  if (stopped != 0) *failed = stopped;
}

extern "C" __global__ void bare_ping_pong(BaseMemoryChannelDeviceHandle ch, int iters, int first,
                                          unsigned int* failed) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  bare<MemoryOrder::Release, MemoryOrder::Acquire>(ch, iters, first, failed);
}

extern "C" __global__ void bare_relaxed_ping_pong(BaseMemoryChannelDeviceHandle ch, int iters, int first,
                                                  unsigned int* failed) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  bare<MemoryOrder::Relaxed, MemoryOrder::Relaxed>(ch, iters, first, failed);
}
