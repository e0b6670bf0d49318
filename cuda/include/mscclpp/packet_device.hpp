// Packets: data that carries its own validity. The receiver looks at the packet itself and sees by its flag whether the
// data is there, so neither side needs a fence or a semaphore, and a message takes one trip over the link.
//
// A flag is the number of a round. The memory of a packet starts at zero, 0 is never a flag, and each use of the same
// memory takes another flag than the use before. The sender may write a packet again only when it knows that the
// receiver has read the one before, for which two buffers in turns and an answer in packets are enough.
//
// What makes each kind valid:
// - LL8: data and flag are one 8-byte access, relaxed at system scope, and such an access is never seen in part.
// - LL16: two of those side by side in one vector access. PTX promises nothing about the order of the two, and nothing
//   is needed: each half has its own flag, and the receiver waits for both.
// - LL128: a line of 128 bytes with one flag for 120 bytes of data, stored by 8 threads of a warp in one instruction,
//   and loaded by 8 in one. PTX does not promise that it arrives whole, nor that it is loaded as it was at one moment.
//   On NVLink, and from the L2 cache into which it arrives, both are so; where the link does not keep lines whole these
//   packets are refused (MemoryChannelLines in memory_channel_device.hpp).

#ifndef MSCCLPP_PACKET_DEVICE_HPP_
#define MSCCLPP_PACKET_DEVICE_HPP_

#include "mscclpp/access_device.hpp"
#include "mscclpp/poll_device.hpp"

namespace mscclpp {

// 4 bytes of data in 8.
struct alignas(8) LL8Packet {
  // The data of one packet.
  using Payload = uint32_t;
  // Its size in bytes.
  static constexpr uint32_t PayloadBytes = 4;

  uint32_t data;
  uint32_t flag;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Writes the packet, here or at a peer. One thread.
  MSCCLPP_DEVICE_INLINE void write(uint32_t value, uint32_t flag) { store(this, pack(value, flag)); }

  // Reads the packet once. Returns whether it carries that flag; `value` is its data then, and untouched otherwise.
  MSCCLPP_DEVICE_INLINE bool tryRead(uint32_t flag, uint32_t& value) const {
    const Wire wire = load(this);
    if (!carries(wire, flag)) return false;
    value = static_cast<uint32_t>(payload(wire));
    return true;
  }

  // Waits until the packet carries that flag. Returns whether it came: false after maxSpinCount polls, if that is not
  // negative, or when `status` (see StatusWord; may be null) asks for an abort. `value` is untouched then.
  MSCCLPP_DEVICE_INLINE bool read(uint32_t flag, uint32_t& value, int64_t maxSpinCount = -1,
                                  uint32_t* status = nullptr) const {
    const auto arrived = [&] { return tryRead(flag, value); };
    return arrived() || pollUntil(arrived, maxSpinCount, status);
  }

  // A packet in registers, and how it gets there. The payload is the low PayloadBytes of a word.
  using Wire = uint64_t;
  MSCCLPP_DEVICE_INLINE static Wire pack(uint64_t payload, uint32_t flag) {
    return (payload & 0xffffffffu) | static_cast<uint64_t>(flag) << 32;
  }
  MSCCLPP_DEVICE_INLINE static uint64_t payload(Wire wire) { return wire & 0xffffffffu; }
  MSCCLPP_DEVICE_INLINE static bool carries(Wire wire, uint32_t flag) { return wire >> 32 == flag; }
  MSCCLPP_DEVICE_INLINE static Wire load(const LL8Packet* packet) {
    return atomicLoad<MemoryOrder::Relaxed, MemoryScope::System>(reinterpret_cast<const uint64_t*>(packet));
  }
  MSCCLPP_DEVICE_INLINE static void store(LL8Packet* packet, Wire wire) {
    atomicStore<MemoryOrder::Relaxed, MemoryScope::System>(reinterpret_cast<uint64_t*>(packet), wire);
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// The data of one LL16Packet.
struct LL16Payload {
  uint32_t x;
  uint32_t y;
};

// 8 bytes of data in 16.
struct alignas(16) LL16Packet {
  using Payload = LL16Payload;
  static constexpr uint32_t PayloadBytes = 8;

  uint32_t data1;
  uint32_t flag1;
  uint32_t data2;
  uint32_t flag2;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // As the functions of LL8Packet.
  MSCCLPP_DEVICE_INLINE void write(uint32_t value1, uint32_t value2, uint32_t flag) {
    store(this, pack(value1 | static_cast<uint64_t>(value2) << 32, flag));
  }
  MSCCLPP_DEVICE_INLINE void write(LL16Payload value, uint32_t flag) { write(value.x, value.y, flag); }
  MSCCLPP_DEVICE_INLINE bool tryRead(uint32_t flag, LL16Payload& value) const {
    const Wire wire = load(this);
    if (!carries(wire, flag)) return false;
    value.x = static_cast<uint32_t>(wire.low);
    value.y = static_cast<uint32_t>(wire.high);
    return true;
  }
  MSCCLPP_DEVICE_INLINE bool read(uint32_t flag, LL16Payload& value, int64_t maxSpinCount = -1,
                                  uint32_t* status = nullptr) const {
    const auto arrived = [&] { return tryRead(flag, value); };
    return arrived() || pollUntil(arrived, maxSpinCount, status);
  }

  using Wire = Bytes16;
  MSCCLPP_DEVICE_INLINE static Wire pack(uint64_t payload, uint32_t flag) {
    const uint64_t shifted = static_cast<uint64_t>(flag) << 32;
    return Wire{(payload & 0xffffffffu) | shifted, payload >> 32 | shifted};
  }
  MSCCLPP_DEVICE_INLINE static uint64_t payload(Wire wire) { return (wire.low & 0xffffffffu) | wire.high << 32; }
  MSCCLPP_DEVICE_INLINE static bool carries(Wire wire, uint32_t flag) {
    return wire.low >> 32 == flag && wire.high >> 32 == flag;
  }
  MSCCLPP_DEVICE_INLINE static Wire load(const LL16Packet* packet) { return loadPair(packet); }
  MSCCLPP_DEVICE_INLINE static void store(LL16Packet* packet, Wire wire) { storePair(packet, wire); }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// 120 bytes of data in a line of 128. It is written and read by the warps of putPackets and unpackPackets alone: thread
// i of 8 has the 16 bytes at 16 * i, the last of them 8 bytes of data and the flag.
struct alignas(128) LL128Packet {
  static constexpr uint32_t PayloadBytes = 120;

  uint8_t data[120];
  // The flag, in the low half.
  uint64_t flag;
};

static_assert(sizeof(LL8Packet) == 8 && sizeof(LL16Packet) == 16 && sizeof(LL128Packet) == 128,
              "packets lie side by side in memory");

}  // namespace mscclpp

#endif  // MSCCLPP_PACKET_DEVICE_HPP_
