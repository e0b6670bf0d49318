#include <mscclpp/memory_channel_device.hpp>

// Rounds of put and signal from one side to the other; each adds one to what it got. `outcome` is the number of rounds, or
// minus the number of the round whose signal did not come.
extern "C" __global__ void ping_pong(mscclpp::MemoryChannelDeviceHandle channel, int rank, int rounds, size_t bytes,
                                     int* outcome) {
  __shared__ int signalled;
  int* data = reinterpret_cast<int*>(channel.src_);
  for (int round = 1; round <= rounds; ++round) {
    if (rank == (round & 1)) {
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
