#include <mscclpp/memory_channel_device.hpp>

// Sends the source as packets to the peer's scratch buffer, and takes the peer's packets out of this side's.
extern "C" __global__ void exchange_packets(mscclpp::MemoryChannelDeviceHandle channel, size_t bytes, unsigned int flag) {
  channel.putPackets(0, 0, bytes, threadIdx.x, blockDim.x, flag);
  __syncthreads();
  channel.unpackPackets(0, 0, bytes, threadIdx.x, blockDim.x, flag);
}

// Signals and waits over a channel without memory.
extern "C" __global__ void meet(mscclpp::BaseMemoryChannelDeviceHandle channel, int* outcome) {
  channel.signal();
  *outcome = channel.wait(100000000) ? 1 : -1;
}
