#include <mscclpp/port_channel_device.hpp>

// Thread `rank` sends this rank's part of the array to that rank, and waits for that rank's. The channel at `my_rank` is
// zeros, and is there so that the others can be found by their rank. The kernel does not check what the calls return, because it
// does not use the data afterwards. The host learns of failed calls when it waits for the kernel.
extern "C" __global__ void __launch_bounds__(1024, 1)
    exchange(mscclpp::PortChannelDeviceHandle* channels, int my_rank, int nranks, int num_elements) {
  int tid = threadIdx.x;
  uint64_t size_per_rank = (num_elements * sizeof(int)) / nranks;
  uint64_t my_offset = size_per_rank * my_rank;
  __syncthreads();
  if (tid < nranks && tid != my_rank) {
    channels[tid].putWithSignalAndFlush(my_offset, my_offset, size_per_rank);
    channels[tid].wait();
  }
}
