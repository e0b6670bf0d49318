// The kernel of the tutorial on port channels: both sides put data to each other at once. Each side's own data is in
// the half of its memory that has its rank's number; the peer's arrives in the other half.

// Puts by bulk copies need it:
// build: compute_90

#include "mscclpp/port_channel_device.hpp"

// ANCHOR: kernel
// A launch is one round, made by one thread. If a call fails, because the channel was aborted, 1 is left in `failed`.
extern "C" __global__ void bidir_put_with_signal(mscclpp::PortChannelDeviceHandle ch, uint64_t bytes, uint32_t rank,
                                                 unsigned int* failed) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  const bool good = ch.signal() && ch.wait()                     // the peer is here: its last round is over
                    && ch.putWithSignal(rank * bytes, bytes)     // from this half to the same half of the peer's memory
                    && ch.wait();                                // and the peer's data has come
  if (!good) *failed = 1;
}
// ANCHOR_END: kernel
