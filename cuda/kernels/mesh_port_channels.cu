// The kernel of the example mesh_port_channels: every rank gives its slice to all others.

// Puts by bulk copies need it:
// build: compute_90

#include "mscclpp/port_channel_device.hpp"

enum { MaxRanks = 64 };

// ANCHOR: kernel
// A channel to each rank, filled in by the host; that of the own rank is not used. Constant memory is cached where the
// handles are read, and takes no argument of the kernel.
__constant__ mscclpp::DeviceHandle<mscclpp::PortChannel> channels[MaxRanks];

// Thread r of the block communicates with rank r. A call that fails, because the channel was aborted, leaves r + 1 in
// `failed`.
extern "C" __global__ void mesh_all_gather(uint32_t rank, uint32_t ranks, uint64_t bytesPerRank, unsigned int* failed) {
  const uint32_t peer = threadIdx.x;
  if (peer >= ranks || peer == rank) return;
  const uint64_t mine = rank * bytesPerRank;
  if (!channels[peer].putWithSignalAndFlush(mine, bytesPerRank) || !channels[peer].wait()) *failed = peer + 1;
}
// ANCHOR_END: kernel
