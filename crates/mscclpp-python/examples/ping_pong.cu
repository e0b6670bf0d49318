#include <mscclpp/memory_channel_device.hpp>

// Two ranks copy an array back and forth. The rank that receives it adds one to each element. `outcome` becomes the number of
// rounds. If a signal does not come, it becomes minus the number of that round.
extern "C" __global__ void ping_pong(mscclpp::MemoryChannelDeviceHandle channel, int rank, int rounds, size_t bytes,
                                     int* outcome) {
  __shared__ int signalled;
  int* data = reinterpret_cast<int*>(channel.src_);
  for (int round = 1; round <= rounds; ++round) {
    if (rank == round % 2) {
      channel.put(0, bytes, threadIdx.x, blockDim.x);
      __syncthreads();
      if (threadIdx.x == 0) channel.signal();
    } else {
      if (threadIdx.x == 0) signalled = channel.wait(100000000);
      __syncthreads();
      if (!signalled) {
        if (threadIdx.x == 0) *outcome = -round;
        return;
      }
      for (size_t i = threadIdx.x; i < bytes / sizeof(int); i += blockDim.x) data[i] += 1;
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) *outcome = rounds;
}
