// The words of 8 bytes of a message, which may begin at any address and have any size, and its vectors of 16 bytes; and
// packets of such words. For the library's own use.

#ifndef MSCCLPP_MESSAGE_WORDS_DEVICE_HPP_
#define MSCCLPP_MESSAGE_WORDS_DEVICE_HPP_

#include "mscclpp/packet_mover_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

template <uint32_t Bytes>
MSCCLPP_DEVICE_INLINE bool isAligned(const void* address) {
  return (reinterpret_cast<uintptr_t>(address) & (Bytes - 1)) == 0;
}

// Loads up to 8 bytes from any address. Not inlined: it is much code, and seldom runs.
MSCCLPP_DEVICE_NOINLINE uint64_t loadAny(const uint8_t* at, uint32_t bytes) {
  if (bytes < 8) return loadRest(at, static_cast<int32_t>(bytes));
  return isAligned<4>(at) ? loadWord<8, 4>(at) : loadWord<8, 1>(at);
}
MSCCLPP_DEVICE_NOINLINE void storeAny(uint8_t* at, uint32_t bytes, uint64_t word) {
  if (bytes < 8) {
    storeRest(at, static_cast<int32_t>(bytes), word);
  } else if (isAligned<4>(at)) {
    storeWord<8, 4>(at, word);
  } else {
    storeWord<8, 1>(at, word);
  }
}

// Returns word i of 8 bytes of a message, whose last word may be shorter.
MSCCLPP_DEVICE_INLINE uint64_t messageWord(const uint8_t* message, uint64_t bytes, uint64_t i) {
  const uint8_t* const at = message + i * 8;
  const uint64_t left = bytes - i * 8;
  if (left >= 8 && isAligned<8>(message)) return load8(at);
  return loadAny(at, left < 8 ? static_cast<uint32_t>(left) : 8);
}
MSCCLPP_DEVICE_INLINE void storeMessageWord(uint8_t* message, uint64_t bytes, uint64_t i, uint64_t word) {
  uint8_t* const at = message + i * 8;
  const uint64_t left = bytes - i * 8;
  if (left >= 8 && isAligned<8>(message)) {
    store8(at, word);
  } else {
    storeAny(at, left < 8 ? static_cast<uint32_t>(left) : 8, word);
  }
}

// Loads up to 16 bytes from any address; bytes after the end are 0. Not inlined, because it seldom runs.
MSCCLPP_DEVICE_NOINLINE Bytes16 loadVectorAny(const uint8_t* at, uint32_t bytes) {
  return {loadAny(at, bytes < 8 ? bytes : 8), bytes > 8 ? loadAny(at + 8, bytes - 8) : 0};
}
MSCCLPP_DEVICE_NOINLINE void storeVectorAny(uint8_t* at, uint32_t bytes, Bytes16 v) {
  storeAny(at, bytes < 8 ? bytes : 8, v.low);
  if (bytes > 8) storeAny(at + 8, bytes - 8, v.high);
}

// Returns vector i of 16 bytes of a message, whose last vector may be shorter.
MSCCLPP_DEVICE_INLINE Bytes16 vectorOf(const uint8_t* part, uint32_t bytes, uint32_t i) {
  const uint8_t* const at = part + i * 16;
  const uint32_t left = bytes - i * 16;
  return left >= 16 && isAligned<16>(part) ? load16(at) : loadVectorAny(at, left < 16 ? left : 16);
}
MSCCLPP_DEVICE_INLINE void storeVectorOf(uint8_t* part, uint32_t bytes, uint32_t i, Bytes16 v) {
  uint8_t* const at = part + i * 16;
  const uint32_t left = bytes - i * 16;
  if (left >= 16 && isAligned<16>(part)) {
    store16(at, v);
  } else {
    storeVectorAny(at, left < 16 ? left : 16, v);
  }
}

// Packet i of a message is word i with two flags, which differ once 2^32 calls have been made. So the contents that a
// place got 2^32 calls earlier are not taken for a new packet.
struct Ll16Packets {
  uint32_t first, second;

  MSCCLPP_DEVICE_INLINE explicit Ll16Packets(uint64_t epoch)
      : first(static_cast<uint32_t>(epoch)), second(first + static_cast<uint32_t>(epoch >> 32) * 0x9e3779b9u) {}

  MSCCLPP_DEVICE_INLINE void put(uint8_t* at, uint64_t word) const {
    [[maybe_unused]] const detail::AsPacket asPacket;
    storePair(at, Bytes16{(word & 0xffffffffu) | static_cast<uint64_t>(first) << 32,
                          word >> 32 | static_cast<uint64_t>(second) << 32});
  }
  MSCCLPP_DEVICE_INLINE static Bytes16 load(const uint8_t* at) {
    [[maybe_unused]] const detail::AsPacket asPacket;
    return loadPair(at);
  }
  MSCCLPP_DEVICE_INLINE bool isThere(Bytes16 packet) const {
    return packet.low >> 32 == first && packet.high >> 32 == second;
  }
  MSCCLPP_DEVICE_INLINE static uint64_t wordOf(Bytes16 packet) { return (packet.low & 0xffffffffu) | packet.high << 32; }
  MSCCLPP_DEVICE_INLINE bool take(const uint8_t* at, uint64_t& word, uint32_t* status) const {
    Bytes16 packet;
    const auto came = [&] {
      packet = load(at);
      return isThere(packet);
    };
    const bool done = came() || pollUntil<1>(came, -1, status);
    word = wordOf(packet);
    return done;
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_MESSAGE_WORDS_DEVICE_HPP_
