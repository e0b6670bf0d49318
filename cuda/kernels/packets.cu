// Kernels with which tests check packets: single puts and unpacks with everything as an argument, and rounds in which two
// sides send each other fresh data under changing flags.

#include "mscclpp/memory_channel_device.hpp"

using mscclpp::LL128Packet;
using mscclpp::LL16Packet;
using mscclpp::LL8Packet;
using mscclpp::MemoryChannelDeviceHandle;

// The kinds of packets in the argument `kind`, by the bytes of a packet, and a kind that is no packet.
enum Kind : int {
  // The weakened variant: each 8 bytes of data and their flag are two relaxed stores of two places, in this order and
  // with nothing between. The mismatches that the receiver then finds show that the test can notice them.
  Split = 0,
  LL8 = 8,
  LL16 = 16,
  LL128 = 128,
};

// The word at `index` in that round, as in signal_data.cu.
__device__ static uint64_t wordOf(uint64_t seed, uint64_t round, uint64_t index) {
  uint64_t x = seed + (round << 32) + index;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ static bool put(const MemoryChannelDeviceHandle& ch, int kind, uint64_t targetOffset, uint64_t originOffset,
                           uint64_t bytes, uint32_t thread, uint32_t threads, uint32_t flag) {
  if (kind == LL8) return ch.putPackets<LL8Packet>(targetOffset, originOffset, bytes, thread, threads, flag);
  if (kind == LL16) return ch.putPackets<LL16Packet>(targetOffset, originOffset, bytes, thread, threads, flag);
  return ch.putPackets<LL128Packet>(targetOffset, originOffset, bytes, thread, threads, flag);
}

__device__ static bool unpack(const MemoryChannelDeviceHandle& ch, int kind, uint64_t targetOffset,
                              uint64_t originOffset, uint64_t bytes, uint32_t thread, uint32_t threads, uint32_t flag,
                              int64_t maxSpin) {
  if (kind == LL8) {
    return ch.unpackPackets<LL8Packet>(targetOffset, originOffset, bytes, thread, threads, flag, maxSpin);
  }
  if (kind == LL16) {
    return ch.unpackPackets<LL16Packet>(targetOffset, originOffset, bytes, thread, threads, flag, maxSpin);
  }
  return ch.unpackPackets<LL128Packet>(targetOffset, originOffset, bytes, thread, threads, flag, maxSpin);
}

// One putPackets of that kind, by all threads of the grid. `failed` gets 1 if it is refused.
extern "C" __global__ void __launch_bounds__(1024, 1)
    packets_put(MemoryChannelDeviceHandle ch, int kind, uint64_t targetOffset, uint64_t originOffset, uint64_t bytes,
                uint32_t flag, unsigned int* failed) {
  const uint32_t thread = threadIdx.x + blockIdx.x * blockDim.x;
  if (!put(ch, kind, targetOffset, originOffset, bytes, thread, blockDim.x * gridDim.x, flag)) *failed = 1;
}

// One unpackPackets of that kind, by all threads of the grid. `failed` gets 1 if it is refused, or gives up after
// `maxSpin` polls (never, if negative) or when aborted.
extern "C" __global__ void __launch_bounds__(1024, 1)
    packets_unpack(MemoryChannelDeviceHandle ch, int kind, uint64_t targetOffset, uint64_t originOffset,
                   uint64_t bytes, uint32_t flag, int64_t maxSpin, unsigned int* failed) {
  const uint32_t thread = threadIdx.x + blockIdx.x * blockDim.x;
  if (!unpack(ch, kind, targetOffset, originOffset, bytes, thread, blockDim.x * gridDim.x, flag, maxSpin)) *failed = 1;
}

// Thread 0 of the grid: waits for the packet `index` of the packet buffer. `kind` is LL8 or LL16. `result` gets
// whether it came, and its one or two words of data.
extern "C" __global__ void __launch_bounds__(1024, 1)
    packet_unpack_one(MemoryChannelDeviceHandle ch, int kind, uint64_t index, uint32_t flag, int64_t maxSpin,
                      uint32_t* result) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  if (kind == LL8) {
    result[0] = ch.tryUnpackPacket<LL8Packet>(index, flag, result[1], maxSpin);
  } else {
    LL16Packet::Payload value = {};
    result[0] = ch.tryUnpackPacket(index, flag, value, maxSpin);
    result[1] = value.x;
    result[2] = value.y;
  }
}

// The flag of a round: counts from `firstFlag` on, and leaves 0 out.
__device__ static uint32_t flagOf(uint32_t firstFlag, int round) {
  return static_cast<uint32_t>(1 + (static_cast<uint64_t>(firstFlag) - 1 + round) % 0xffffffffu);
}

// Bytes of the packets of that kind that carry `bytes` bytes; for Split, of its data and flags.
__device__ static uint64_t packetBytes(int kind, uint64_t bytes) {
  if (kind == LL8) return (bytes + 3) / 4 * 8;
  if (kind == LL128) return (bytes + 119) / 120 * 128;
  return (bytes + 7) / 8 * 16;
}

__device__ static void putSplit(uint8_t* packets, const uint8_t* payload, uint64_t bytes, uint32_t flag) {
  uint64_t* const data = reinterpret_cast<uint64_t*>(packets);
  const uint64_t words = (bytes + 7) / 8;
  for (uint64_t i = threadIdx.x; i < words; i += blockDim.x) {
    mscclpp::atomicStore(data + i, reinterpret_cast<const uint64_t*>(payload)[i], mscclpp::memoryOrderRelaxed);
    mscclpp::atomicStore(data + words + i, flag, mscclpp::memoryOrderRelaxed);
  }
}

__device__ static bool unpackSplit(const uint8_t* packets, uint8_t* payload, uint64_t bytes, uint32_t flag,
                                   int64_t maxSpin, uint32_t* status) {
  const uint64_t* const data = reinterpret_cast<const uint64_t*>(packets);
  const uint64_t words = (bytes + 7) / 8;
  for (uint64_t i = threadIdx.x; i < words; i += blockDim.x) {
    const auto arrived = [&] { return mscclpp::atomicLoad(data + words + i, mscclpp::memoryOrderRelaxed) == flag; };
    if (!mscclpp::pollUntil(arrived, maxSpin, status)) return false;
    reinterpret_cast<uint64_t*>(payload)[i] = mscclpp::atomicLoad(data + i, mscclpp::memoryOrderRelaxed);
  }
  return true;
}

// The number of words of 8 bytes, of the `bytes` bytes at `payload`, that are not those of that round.
__device__ static unsigned long long wrongWords(const uint8_t* payload, uint64_t bytes, uint64_t seed, int round) {
  unsigned long long wrong = 0;
  for (uint64_t i = threadIdx.x; i * 8 < bytes; i += blockDim.x) {
    const uint64_t rest = bytes - i * 8;
    const uint64_t mask = rest >= 8 ? ~0ull : (1ull << rest * 8) - 1;
    wrong += ((reinterpret_cast<const uint64_t*>(payload)[i] ^ wordOf(seed, round, i)) & mask) != 0;
  }
  return wrong;
}

// `rounds` rounds in which both sides, which run this at the same time with as many blocks, send each other `bytes`
// bytes of fresh data as packets of that kind, and compare what they get; `mismatches` gets how many words were wrong.
//
// The blocks have nothing to do with each other. Block b of B has `stride` = `bytes` rounded up to 128 bytes at
// b * stride of this side's memory for what it sends and at (B + b) * stride for what it gets, and packets at
// ((round % 2) * B + b) * S of the packet buffers, S being what `bytes` bytes take as packets, rounded up to 128. Two
// buffers in turns are enough: whoever has a side's packets of round r knows that it has read those of round r - 1.
//
// Round r has flag firstFlag + r, 0 left out. A wait gives up after `maxSpin` polls (never, if negative) or when
// aborted: the block then stops and leaves the round in `failed` as round + 1.
extern "C" __global__ void __launch_bounds__(1024, 1)
    packet_rounds(MemoryChannelDeviceHandle ch, int kind, uint64_t bytes, int rounds, uint32_t firstFlag,
                  uint64_t mySeed, uint64_t peerSeed, int64_t maxSpin, unsigned long long* mismatches,
                  unsigned int* failed) {
  const uint64_t stride = (bytes + 127) / 128 * 128;
  const uint64_t packetStride = (packetBytes(kind, bytes) + 127) / 128 * 128;
  const uint64_t outOffset = blockIdx.x * stride, inOffset = (gridDim.x + blockIdx.x) * stride;
  uint8_t* const out = static_cast<uint8_t*>(ch.src_) + outOffset;
  uint8_t* const in = static_cast<uint8_t*>(ch.src_) + inOffset;
  unsigned long long wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    const uint64_t packets = ((round & 1) * static_cast<uint64_t>(gridDim.x) + blockIdx.x) * packetStride;
    const uint32_t flag = flagOf(firstFlag, round);
    for (uint64_t i = threadIdx.x; i * 8 < bytes; i += blockDim.x) {
      reinterpret_cast<uint64_t*>(out)[i] = wordOf(mySeed, round, i);
    }
    __syncthreads();
    bool came;
    if (kind == Split) {
      putSplit(static_cast<uint8_t*>(ch.dst_) + packets, out, bytes, flag);
      came = unpackSplit(static_cast<uint8_t*>(ch.packetBuffer_) + packets, in, bytes, flag, maxSpin,
                         ch.semaphore_.status);
    } else {
      came = put(ch, kind, packets, outOffset, bytes, threadIdx.x, blockDim.x, flag) &&
             unpack(ch, kind, packets, inOffset, bytes, threadIdx.x, blockDim.x, flag, maxSpin);
    }
    if (__syncthreads_or(!came)) {
      if (threadIdx.x == 0) *failed = round + 1;
      break;
    }
    wrong += wrongWords(in, bytes, peerSeed, round);
    __syncthreads();
  }
  if (wrong != 0) atomicAdd(mismatches, wrong);
}
