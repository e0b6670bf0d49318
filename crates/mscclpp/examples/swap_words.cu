// Two of these run, one on each side. Each thread writes one word into the peer's buffer; one thread signals that they
// are all there, and waits for the peer's. Then each thread doubles the word that came. `failed` gets 1 if none came.

#include "mscclpp/memory_channel_device.hpp"

extern "C" __global__ void swap_words(mscclpp::BaseMemoryChannelDeviceHandle channel, uint64_t* mine,
                                      uint64_t* theirs, uint64_t value, unsigned int* failed) {
  theirs[threadIdx.x] = value + threadIdx.x;
  __syncthreads();  // every thread's word is written before the one signal that publishes them all
  __shared__ int signalled;
  if (threadIdx.x == 0) {
    channel.signal();
    signalled = channel.wait();
    if (!signalled) *failed = 1;
  }
  __syncthreads();
  if (signalled) mine[threadIdx.x] *= 2;
}
