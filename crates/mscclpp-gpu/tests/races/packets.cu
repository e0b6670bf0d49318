// Two ranks exchange packets in rounds, with two places in turns: the packet of a round says that those of the round before
// have been read.

#include <mscclpp/packet_device.hpp>

using namespace mscclpp;

extern "C" __global__ void packets(uint64_t* mine, uint64_t* theirs, uint64_t* results, int first) {
  for (int round = first; round < first + 16; ++round) {
    const int place = round % 2 * 64 + threadIdx.x;
    reinterpret_cast<LLPacket*>(theirs)[place].write(round, round, round + 1);  // @put
    LLPacket::Payload payload;
    if (!reinterpret_cast<LLPacket*>(mine)[place].receive(round + 1, payload, 1 << 13)) return;
    results[threadIdx.x] += payload.x;
  }
}
