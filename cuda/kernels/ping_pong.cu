// The two kernels of the first tutorial: one side waits, spins for a while and signals back, the other signals and
// waits. With the spin, the time that both take shows that they have run in turns.

// ANCHOR: kernels
#include "mscclpp/memory_channel_device.hpp"

using mscclpp::BaseMemoryChannelDeviceHandle;

// Keeps the calling thread busy for that many clock cycles.
__device__ static void spinFor(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

// `iter` rounds of: wait for the peer, spin, signal it. One thread of the grid does it. Waits give up after `maxSpin`
// polls (never, if negative) or when aborted; the round in which one did is left in `failed` as round + 1.
extern "C" __global__ void ping_pong_spin(BaseMemoryChannelDeviceHandle* ch, int iter, long long spinCycles,
                                          int64_t maxSpin, unsigned int* failed) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  const BaseMemoryChannelDeviceHandle channel = *ch;
  for (int i = 0; i < iter; ++i) {
    if (!channel.relaxedWait(maxSpin)) {
      *failed = i + 1;
      return;
    }
    spinFor(spinCycles);
    channel.relaxedSignal();
  }
}

// The other side: `iter` rounds of signalling the peer and waiting for its answer.
extern "C" __global__ void ping_pong_plain(BaseMemoryChannelDeviceHandle* ch, int iter, int64_t maxSpin,
                                           unsigned int* failed) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  const BaseMemoryChannelDeviceHandle channel = *ch;
  for (int i = 0; i < iter; ++i) {
    channel.relaxedSignal();
    if (!channel.relaxedWait(maxSpin)) {
      *failed = i + 1;
      return;
    }
  }
}
// ANCHOR_END: kernels
