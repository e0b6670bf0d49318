// The benchmark of packets: two GPUs send each other a message in packets in turns, with one block each; the rounds run
// inside the kernel. A round is two hops; in a hop one side fills the message with new data and sends it, and the other
// unpacks it and compares every element.
//
// There is no barrier, and none is needed: thread t of either side fills, sends, unpacks and compares the elements
// t, t + blockDim.x, ... alone, one element to a packet. A thread sends a packet again only after it has got the answer to
// the last one, which the peer's thread sent after it had unpacked that packet.

#include "mscclpp/memory_channel_device.hpp"

using mscclpp::LL16Packet;
using mscclpp::LL8Packet;
using mscclpp::MemoryChannelDeviceHandle;

// The seeds of both sides' data.
struct Seeds {
  uint64_t mine;
  uint64_t peers;
};

// Element `index` of the message of a round. The data differs in each round, and costs one multiplication.
__device__ static uint64_t wordOf(uint64_t seed, uint64_t round, uint64_t index) {
  return (seed + round + (index << 32)) * 0x9e3779b97f4a7c15ull;
}
__device__ static void setElement(uint32_t* element, uint64_t word) { *element = static_cast<uint32_t>(word >> 32); }
__device__ static void setElement(uint64_t* element, uint64_t word) { *element = word; }

// `Element` is the payload of one packet, of which `bytes` is a multiple; the message is sent from the start of the
// channel's memory and unpacked to `incoming` bytes behind it. The side with `first` not 0 begins. `rounds` counts the
// rounds of all launches: its low half is the flag, so it starts at 1 and must not reach 2^32. The number of wrong
// elements is added to `mismatches`. If a wait is aborted, the kernel ends and leaves the round in `failed` as round + 1.
template <class Packet, class Element>
__device__ static void pingPong(const MemoryChannelDeviceHandle& ch, uint64_t bytes, uint64_t incoming, int iters,
                                int first, Seeds seeds, uint64_t* rounds, unsigned long long* mismatches,
                                unsigned int* failed) {
  static_assert(sizeof(Element) == Packet::PayloadBytes, "an element to a packet");
  Element* const out = static_cast<Element*>(ch.src_);
  const Element* const in = reinterpret_cast<const Element*>(static_cast<const uint8_t*>(ch.src_) + incoming);
  const uint64_t elements = bytes / sizeof(Element);
  const uint64_t start = *rounds;
  // All threads have read the first round before one of them stores that of the next launch.
  __syncthreads();
  if (threadIdx.x == 0) *rounds = start + iters;
  // A thread without an element has nothing to do in any round.
  if (threadIdx.x >= elements) return;

  unsigned int wrong = 0;
  const auto send = [&](uint64_t round) {
    for (uint64_t i = threadIdx.x; i < elements; i += blockDim.x) setElement(out + i, wordOf(seeds.mine, round, i));
    ch.putPackets<Packet>(0, 0, bytes, threadIdx.x, blockDim.x, static_cast<uint32_t>(round));
  };
  const auto receive = [&](uint64_t round) {
    const bool came =
        ch.unpackPackets<Packet>(0, incoming, bytes, threadIdx.x, blockDim.x, static_cast<uint32_t>(round));
    for (uint64_t i = threadIdx.x; i < elements; i += blockDim.x) {
      Element expected;
      setElement(&expected, wordOf(seeds.peers, round, i));
      wrong += in[i] != expected;
    }
    return came;
  };
  for (int i = 0; i < iters; ++i) {
    if (first) send(start + i);
    if (!receive(start + i)) {
      *failed = i + 1;
      return;
    }
    if (!first) send(start + i);
  }
  if (wrong != 0) atomicAdd(mismatches, wrong);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    ll8_ping_pong(MemoryChannelDeviceHandle ch, uint64_t bytes, uint64_t incoming, int iters, int first, Seeds seeds,
                  uint64_t* rounds, unsigned long long* mismatches, unsigned int* failed) {
  pingPong<LL8Packet, uint32_t>(ch, bytes, incoming, iters, first, seeds, rounds, mismatches, failed);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    ll16_ping_pong(MemoryChannelDeviceHandle ch, uint64_t bytes, uint64_t incoming, int iters, int first, Seeds seeds,
                   uint64_t* rounds, unsigned long long* mismatches, unsigned int* failed) {
  pingPong<LL16Packet, uint64_t>(ch, bytes, incoming, iters, first, seeds, rounds, mismatches, failed);
}
