// An all_reduce of channels: the kernels of the tutorial.

#include <mscclpp/memory_channel_device.hpp>

// ANCHOR: packets
// Every rank puts its numbers into every other's packet buffer, and adds what comes to its own, in the order of the
// ranks. The packet buffer has a slot for each peer, in two halves: rounds take turns. One block.
extern "C" __global__ void one_step(const mscclpp::MemoryChannelDeviceHandle* channels, uint32_t* numbers, uint64_t count,
                                    uint32_t rank, uint32_t ranks, uint32_t round) {
  // Two numbers are the 8 bytes of a packet, which takes 16.
  const uint64_t packets = count / 2, slot = packets * 16, half = round % 2 * (ranks - 1) * slot;
  for (uint32_t p = 0; p < ranks - 1; ++p) {
    // Channel p leads to rank p, or behind this rank to p + 1. There this rank has the slot before or after.
    const uint32_t peer = p < rank ? p : p + 1, place = rank < peer ? rank : rank - 1;
    channels[p].putPackets(half + place * slot, 0, count * 4, threadIdx.x, blockDim.x, round);
  }
  for (uint64_t i = threadIdx.x; i < packets; i += blockDim.x) {
    uint2 sum = {0, 0};
    for (uint32_t r = 0; r < ranks; ++r) {
      uint2 theirs = reinterpret_cast<const uint2*>(numbers)[i];
      if (r != rank) {
        const uint32_t p = r < rank ? r : r - 1;
        theirs = channels[p].unpackPacket((half + p * slot) / 16 + i, round);
      }
      sum = {sum.x + theirs.x, sum.y + theirs.y};
    }
    reinterpret_cast<uint2*>(numbers)[i] = sum;
  }
}
// ANCHOR_END: packets

// ANCHOR: two_steps
// Rank r adds up part r of all ranks, which it gets from them, and puts the sum into part r of every rank. One block.
// Each channel leads to a peer's numbers. Signals say: my numbers are there; I have read yours; my part is in yours.
extern "C" __global__ void two_steps(const mscclpp::MemoryChannelDeviceHandle* channels, uint32_t* numbers,
                                     uint64_t count, uint32_t rank, uint32_t ranks) {
  const uint32_t thread = threadIdx.x, peers = ranks - 1;
  const uint64_t part = count / ranks, mine = rank * part;
  // All ranks have come: thread p tells peer p, and waits for it.
  const auto all = [&] {
    __syncthreads();
    if (thread < peers) channels[thread].signal();
    if (thread < peers) channels[thread].wait();
    __syncthreads();
  };
  all();
  for (uint64_t i = thread; i < part; i += blockDim.x) {
    uint32_t sum = 0;
    for (uint32_t r = 0; r < ranks; ++r) {
      sum += r == rank ? numbers[mine + i] : channels[r < rank ? r : r - 1].read<uint32_t>(mine + i);
    }
    numbers[mine + i] = sum;
  }
  // Nobody writes to a part before its owner has read it: a rank writes only its own part, which it alone reads.
  __syncthreads();
  for (uint32_t p = 0; p < peers; ++p) channels[p].put(mine * 4, mine * 4, part * 4, thread, blockDim.x);
  all();
}
// ANCHOR_END: two_steps
