// The kernels of the tutorial on memory channels: both sides move data to each other at once, in three ways. Each
// side's own data is in the half of its memory that has its rank's number; the peer's arrives in the other half.
//
// A launch is one round. All of its blocks have to fit on the device at once. If a call fails, because the semaphore
// was aborted, 1 is left in `failed`; all later waits end at once then.

#include "mscclpp/concurrency_device.hpp"
#include "mscclpp/memory_channel_device.hpp"

using mscclpp::LL16Packet;
using mscclpp::MemoryChannelDeviceHandle;

// ANCHOR: meet
__device__ mscclpp::DeviceSyncer syncer;

__device__ static bool isFirst() { return threadIdx.x + blockIdx.x * blockDim.x == 0; }

// The barrier of all blocks.
__device__ static bool sync(const MemoryChannelDeviceHandle& ch) {
  return syncer.sync(gridDim.x, -1, ch.semaphore_.status);
}

// Returns when the peer's kernel has begun, too: the data of its last round may then be overwritten.
__device__ static bool meet(const MemoryChannelDeviceHandle& ch) {
  bool good = true;
  if (isFirst()) {
    ch.relaxedSignal();
    good = ch.relaxedWait();
  }
  return sync(ch) && good;
}
// ANCHOR_END: meet

// ANCHOR: put
extern "C" __global__ void __launch_bounds__(1024, 1)
    bidir_put(MemoryChannelDeviceHandle ch, uint64_t bytes, uint32_t rank, unsigned int* failed) {
  const uint32_t thread = threadIdx.x + blockIdx.x * blockDim.x;
  bool good = meet(ch);
  ch.put(rank * bytes, bytes, thread, gridDim.x * blockDim.x);
  good = sync(ch) && good;  // all threads have put, before one of them signals for all
  if (isFirst()) {
    ch.signal();
    good = ch.wait() && good;
  }
  if (!good) *failed = 1;
}
// ANCHOR_END: put

// ANCHOR: get
extern "C" __global__ void __launch_bounds__(1024, 1)
    bidir_get(MemoryChannelDeviceHandle ch, uint64_t bytes, uint32_t rank, unsigned int* failed) {
  const uint32_t thread = threadIdx.x + blockIdx.x * blockDim.x;
  const bool good = meet(ch);
  ch.get((1 - rank) * bytes, bytes, thread, gridDim.x * blockDim.x);
  if (!good) *failed = 1;
}
// ANCHOR_END: get

// ANCHOR: packets
// `ch` is a channel for packets. The flag differs from that of the round before.
extern "C" __global__ void __launch_bounds__(1024, 1)
    bidir_put_packets(MemoryChannelDeviceHandle ch, uint64_t bytes, uint32_t rank, uint32_t flag,
                      unsigned int* failed) {
  const uint32_t thread = threadIdx.x + blockIdx.x * blockDim.x;
  const uint32_t threads = gridDim.x * blockDim.x;
  bool good = meet(ch);
  good = ch.putPackets<LL16Packet>(0, rank * bytes, bytes, thread, threads, flag) && good;
  good = ch.unpackPackets<LL16Packet>(0, (1 - rank) * bytes, bytes, thread, threads, flag) && good;
  if (!good) *failed = 1;
}
// ANCHOR_END: packets
