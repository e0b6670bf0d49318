#include <mscclpp/port_channel_device.hpp>

// Each rank puts its part of the array to all others, and waits for theirs. Thread `rank` serves that rank.
extern "C" __global__ void all_gather(mscclpp::PortChannelDeviceHandle* channels, int my_rank, int ranks,
                                      size_t bytes_of_a_rank, int* outcome) {
  int rank = threadIdx.x;
  if (rank == my_rank || rank >= ranks) return;
  size_t offset = bytes_of_a_rank * my_rank;
  channels[rank].putWithSignalAndFlush(offset, offset, bytes_of_a_rank);
  outcome[rank] = channels[rank].wait(100000000) ? 1 : -1;
}

// The same over a channel that names memories.
extern "C" __global__ void put_named(mscclpp::BasePortChannelDeviceHandle channel, unsigned int dst, unsigned int src,
                                     size_t bytes, int* outcome) {
  channel.put(dst, 0, src, 0, bytes);
  channel.signal();
  channel.flush();
  *outcome = channel.wait(100000000) ? 1 : -1;
}
