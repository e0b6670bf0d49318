// Packets: data that carries its own validity. The receiver looks at the packet itself and sees by its flag whether the
// data is there, so neither side needs a fence or a semaphore, and a message takes one trip over the link.
//
// A flag is the number of a round, and each use of the same memory takes a flag different from that of the use before.
// The memory of a packet starts as zeros, so 0 is no flag for the first use: its packets would seem to have come before
// they were sent. 0 is allowed where the memory was filled with something else. The sender may write a packet again
// only when it knows that the receiver has read the one before, for which two buffers in turns and an answer in packets
// are enough.
//
// The reason why each kind is valid:
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
#include "mscclpp/overlay_device.hpp"
#include "mscclpp/poll_device.hpp"

namespace mscclpp {

// The data of one LL16Packet, and its 16 bytes as they lie in memory.
#if defined(MSCCLPP_DEVICE_CUDA) || defined(MSCCLPP_DEVICE_SIM) || defined(HIP_VERSION) || defined(__HIPCC_RTC__)
using LL16Payload = uint2;
using LL16Raw = ulonglong2;
#else
struct LL16Payload {
  uint32_t x;
  uint32_t y;
};
struct alignas(16) LL16Raw {
  unsigned long long x;
  unsigned long long y;
};
#endif

// The operations of both kinds of packets below, each by one thread. The packet may be in any memory. (Packets of
// channels, which are in global memory, are moved by copyToPackets and copyFromPackets.)
//
// - `write` writes the packet, here or at a peer.
// - `readOnce` looks once, and returns whether the packet is *not* there yet; when it is, `value` gets its data.
// - `read` waits for the packet and returns its data. It cannot say that it gave up, so it does not: maxSpinCount
//   counts only where DEBUG_BUILD is defined, and fails the kernel there.
// - `receive` waits with a bound: it returns whether the packet came, false after maxSpinCount polls, if that is not
//   negative, or when `status` (see StatusWord; may be null) asks for an abort. `value` is untouched then.
// - `clear` writes zeros, as a packet is before its first use.
#define MSCCLPP_PACKET_READS                                                                       \
  MSCCLPP_DEVICE_INLINE bool readOnce(uint32_t expected, Payload& value) const {                           \
    const Wire wire = load<MemorySpace::Any>(this);                                                        \
    if (!carries(wire, expected)) return true;                                                             \
    value = unpack(wire);                                                                                  \
    return false;                                                                                          \
  }                                                                                                        \
  MSCCLPP_DEVICE_INLINE Payload read(uint32_t expected, [[maybe_unused]] int64_t maxSpinCount = -1) const { \
    Payload value;                                                                                         \
    POLL_MAYBE_JAILBREAK(readOnce(expected, value), maxSpinCount);                                         \
    return value;                                                                                          \
  }                                                                                                        \
  MSCCLPP_DEVICE_INLINE bool receive(uint32_t expected, Payload& value, int64_t maxSpinCount = -1,         \
                                     uint32_t* status = nullptr) const {                                   \
    const auto arrived = [&] { return !readOnce(expected, value); };                                       \
    return arrived() || pollUntil(arrived, maxSpinCount, status);                                          \
  }                                                                                                        \
  MSCCLPP_DEVICE_INLINE void clear() { store<MemorySpace::Any>(this, Wire()); }

// A packet's words, and under the name raw_ all of them. With NVRTC, raw_ can be read and assigned as a whole only.
#if defined(__CUDACC_RTC__)
#define MSCCLPP_PACKET struct
#define MSCCLPP_PACKET_WORDS(PACKET, RAW, FIRST, ...)                      \
  union {                                                                  \
    uint32_t FIRST;                                                        \
    detail::OverlayOf<RAW> raw_;                                           \
  };                                                                       \
  __VA_ARGS__                                                              \
  PACKET() = default;                                                      \
  PACKET(const PACKET&) = default;                                         \
  MSCCLPP_DEVICE_INLINE PACKET& operator=(const PACKET& other) {           \
    raw_ = other.raw_;                                                     \
    return *this;                                                          \
  }
#else
#define MSCCLPP_PACKET union
#define MSCCLPP_PACKET_WORDS(PACKET, RAW, FIRST, ...) \
  struct {                                            \
    uint32_t FIRST;                                   \
    __VA_ARGS__                                       \
  };                                                  \
  RAW raw_;                                           \
  PACKET() = default;
#endif

// 4 bytes of data in 8.
MSCCLPP_PACKET alignas(8) LL8Packet {
  // The data of one packet.
  using Payload = uint32_t;
  // The size of the data in bytes.
  static constexpr uint32_t PayloadBytes = 4;

  MSCCLPP_PACKET_WORDS(LL8Packet, uint64_t, data, uint32_t flag;)

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Makes a packet of your own, to be copied to its place.
  MSCCLPP_DEVICE_INLINE LL8Packet(uint32_t value, uint32_t flagOfIt) {
    data = value;
    flag = flagOfIt;
  }

  MSCCLPP_DEVICE_INLINE void write(uint32_t value, uint32_t flag) { store<MemorySpace::Any>(this, pack(value, flag)); }
  MSCCLPP_PACKET_READS

  // A packet in registers, and the conversions to and from it. The payload is the low PayloadBytes of a word.
  using Wire = uint64_t;
  MSCCLPP_DEVICE_INLINE static Wire pack(uint64_t payload, uint32_t flag) {
    return (payload & 0xffffffffu) | static_cast<uint64_t>(flag) << 32;
  }
  MSCCLPP_DEVICE_INLINE static uint64_t payload(Wire wire) { return wire & 0xffffffffu; }
  MSCCLPP_DEVICE_INLINE static Payload unpack(Wire wire) { return static_cast<uint32_t>(wire); }
  MSCCLPP_DEVICE_INLINE static bool carries(Wire wire, uint32_t flag) { return wire >> 32 == flag; }
  template <MemorySpace P = MemorySpace::Global>
  MSCCLPP_DEVICE_INLINE static Wire load(const LL8Packet* packet) {
    [[maybe_unused]] const detail::AsPacket asPacket;
    return detail::load<MemoryOrder::Relaxed, MemoryScope::System, P>(reinterpret_cast<const uint64_t*>(packet));
  }
  template <MemorySpace P = MemorySpace::Global>
  MSCCLPP_DEVICE_INLINE static void store(LL8Packet* packet, Wire wire) {
    [[maybe_unused]] const detail::AsPacket asPacket;
    detail::store<MemoryOrder::Relaxed, MemoryScope::System, P>(reinterpret_cast<uint64_t*>(packet), wire);
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// 8 bytes of data in 16.
MSCCLPP_PACKET alignas(16) LL16Packet {
  using Payload = LL16Payload;
  static constexpr uint32_t PayloadBytes = 8;

  MSCCLPP_PACKET_WORDS(LL16Packet, LL16Raw, data1, uint32_t flag1; uint32_t data2; uint32_t flag2;)

#if defined(MSCCLPP_DEVICE_COMPILE)

  MSCCLPP_DEVICE_INLINE LL16Packet(Payload value, uint32_t flag) {
    data1 = value.x, data2 = value.y;
    flag1 = flag2 = flag;
  }

  MSCCLPP_DEVICE_INLINE void write(uint32_t value1, uint32_t value2, uint32_t flag) {
    write(value1 | static_cast<uint64_t>(value2) << 32, flag);
  }
  MSCCLPP_DEVICE_INLINE void write(uint64_t value, uint32_t flag) { store<MemorySpace::Any>(this, pack(value, flag)); }
  MSCCLPP_DEVICE_INLINE void write(Payload value, uint32_t flag) { write(value.x, value.y, flag); }
  MSCCLPP_PACKET_READS

  using Wire = Bytes16;
  MSCCLPP_DEVICE_INLINE static Wire pack(uint64_t payload, uint32_t flag) {
    const uint64_t shifted = static_cast<uint64_t>(flag) << 32;
    return Wire{(payload & 0xffffffffu) | shifted, payload >> 32 | shifted};
  }
  MSCCLPP_DEVICE_INLINE static uint64_t payload(Wire wire) { return (wire.low & 0xffffffffu) | wire.high << 32; }
  MSCCLPP_DEVICE_INLINE static Payload unpack(Wire wire) {
    Payload value;
    value.x = static_cast<uint32_t>(wire.low);
    value.y = static_cast<uint32_t>(wire.high);
    return value;
  }
  MSCCLPP_DEVICE_INLINE static bool carries(Wire wire, uint32_t flag) {
    return wire.low >> 32 == flag && wire.high >> 32 == flag;
  }
  template <MemorySpace P = MemorySpace::Global>
  MSCCLPP_DEVICE_INLINE static Wire load(const LL16Packet* packet) {
    [[maybe_unused]] const detail::AsPacket asPacket;
    return loadPair<P>(packet);
  }
  template <MemorySpace P = MemorySpace::Global>
  MSCCLPP_DEVICE_INLINE static void store(LL16Packet* packet, Wire wire) {
    [[maybe_unused]] const detail::AsPacket asPacket;
    storePair<P>(packet, wire);
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

#undef MSCCLPP_PACKET_READS
#undef MSCCLPP_PACKET_WORDS
#undef MSCCLPP_PACKET

// The kind of packets if none is named.
using LLPacket = LL16Packet;

// 120 bytes of data in a line of 128. Only the warps of copyToPackets and copyFromPackets write and read it: thread i
// of 8 has the 16 bytes at 16 * i, the last of them 8 bytes of data and the flag.
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
