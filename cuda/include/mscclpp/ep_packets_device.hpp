// Rows that travel as packets, which are valid by themselves: those of experts that are set up for few tokens. For the
// library's own use.

#ifndef MSCCLPP_EP_PACKETS_DEVICE_HPP_
#define MSCCLPP_EP_PACKETS_DEVICE_HPP_

#include "mscclpp/ep_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The condition for which a thread waits that has the flag of a line.
struct EpLineIsThere {
  const uint64_t* at;
  uint64_t flag;
  MSCCLPP_DEVICE_INLINE bool operator()() const { return detail::load<MemoryOrder::Relaxed, MemoryScope::System>(at) == flag; }
};

// A row as lines of 8 vectors. Eight consecutive threads move a line in one instruction: PacketMover<LL128Packet> says why
// the flag of a line proves that all of it has come. The flag has the place of the last word of the line, and that word is an
// LL16 packet behind the eight lines that lie together. So the flags of all rows lie where other rows have flags, too,
// whatever their size, and no number of a row is taken for one.
//
// All threads of a warp call these functions. Thread j moves vectors whose number is j plus a multiple of 32.
struct EpRowPackets {
  Ll16Packets packets;
  uint64_t flag;
  uint32_t lane;

  MSCCLPP_DEVICE_INLINE explicit EpRowPackets(const EpBlock& b) : packets(b.epoch), flag(b.epoch), lane(b.lane) {}

  MSCCLPP_DEVICE_INLINE bool hasFlag() const { return lane % 8 == 7; }
  // Whether the line of vector i has a part of a row of `bytes` bytes.
  MSCCLPP_DEVICE_INLINE static bool isInRow(uint32_t bytes, uint32_t i) { return i / 8 * EpLine < bytes; }
  template <class Byte>
  MSCCLPP_DEVICE_INLINE static Byte* vectorAt(Byte* row, uint32_t i) {
    return row + i / EpVectorsOfLines * static_cast<uint64_t>(EpBytesOfLines) + i % EpVectorsOfLines * 16;
  }
  // The packet of the line of vector i.
  template <class Byte>
  MSCCLPP_DEVICE_INLINE static Byte* packetAt(Byte* row, uint32_t i) {
    return row + i / EpVectorsOfLines * static_cast<uint64_t>(EpBytesOfLines) + 8 * EpLine + i % EpVectorsOfLines / 8 * 16;
  }

  // Puts vectors `first`, `first` + 32 and so on. Those behind the end of the row are 0.
  template <uint32_t Count>
  MSCCLPP_DEVICE_INLINE void put(uint8_t* row, uint32_t bytes, uint32_t first, const Bytes16 (&vectors)[Count]) const {
    warpSync();
#pragma unroll
    for (uint32_t u = 0; u < Count; ++u) {
      const uint32_t i = first + u * 32;
      if (isInRow(bytes, i)) storePair(vectorAt(row, i), Bytes16{vectors[u].low, hasFlag() ? flag : vectors[u].high});
    }
    if (hasFlag()) {
#pragma unroll
      for (uint32_t u = 0; u < Count; ++u) {
        const uint32_t i = first + u * 32;
        if (isInRow(bytes, i)) packets.put(packetAt(row, i), vectors[u].high);
      }
    }
    warpSync();
  }

  // The vectors that a thread has loaded of a row, and the packets of those lines whose flag it has.
  template <uint32_t Count>
  struct Looks {
    Bytes16 vectors[Count], packets[Count];
  };
  // Loads vectors `first`, `first` + 32 and so on. All threads load; those without a line load the first one.
  template <uint32_t Count>
  MSCCLPP_DEVICE_INLINE void look(const uint8_t* row, uint32_t bytes, uint32_t first, Looks<Count>& seen) const {
#pragma unroll
    for (uint32_t v = 0; v < Count; ++v) {
      const uint32_t i = first + v * 32, at = isInRow(bytes, i) ? i : lane % 8;
      seen.vectors[v] = warpAtOnce([&] { return loadPair(vectorAt(row, at)); });
    }
    if (!hasFlag()) return;
#pragma unroll
    for (uint32_t v = 0; v < Count; ++v) {
      const uint32_t i = first + v * 32;
      seen.packets[v] = Ll16Packets::load(packetAt(row, isInRow(bytes, i) ? i : lane % 8));
    }
  }
  template <uint32_t Count>
  MSCCLPP_DEVICE_INLINE bool areThere(uint32_t bytes, uint32_t first, const Looks<Count>& seen) const {
    bool all = true;
#pragma unroll
    for (uint32_t v = 0; v < Count; ++v) {
      all = all && (!hasFlag() || !isInRow(bytes, first + v * 32) ||
                    (seen.vectors[v].high == flag && packets.isThere(seen.packets[v])));
    }
    return all;
  }
  // Puts the last word of each line where its flag was.
  template <uint32_t Count>
  MSCCLPP_DEVICE_INLINE void complete(Looks<Count>& seen) const {
    if (!hasFlag()) return;
#pragma unroll
    for (uint32_t v = 0; v < Count; ++v) seen.vectors[v].high = Ll16Packets::wordOf(seen.packets[v]);
  }
};

// Waits until the lines of `count` vectors, `first`, `first` + 32 and so on, of a row from rank `from` are there. Returns
// false, in all threads of the warp, if the wait was given up. Not inlined, as epWait.
MSCCLPP_DEVICE_NOINLINE bool epWaitForLines(EpRowPackets lines, const uint8_t* row, uint32_t bytes, uint32_t first, uint32_t count,
                                            const EpHandle& ep, uint32_t from) {
  bool failed = false;
#pragma unroll 1
  for (uint32_t v = 0; v < count && lines.hasFlag() && !failed; ++v) {
    const uint32_t i = first + v * 32;
    if (!EpRowPackets::isInRow(bytes, i)) break;
    const EpLineIsThere line{reinterpret_cast<const uint64_t*>(EpRowPackets::vectorAt(row, i) + 8), lines.flag};
    const EpPacketIsThere packet{lines.packets, EpRowPackets::packetAt(row, i)};
    failed = !((line() || epWait(line, ep, from)) && (packet() || epWait(packet, ep, from)));
  }
  return !warpFailed(failed);
}

// Looks until `look` returns true. After some looks in vain it calls `wait`, which returns false if the wait was given up: so
// does this function. All threads of a warp call it, and `look` and `wait` return the same to all of them.
template <class Look, class Wait>
MSCCLPP_DEVICE_INLINE bool epLookUntil(Look look, Wait wait) {
#pragma unroll 1
  for (uint32_t looks = 1; !look(); ++looks) {
    // If the rank is lost, the wait ends without what it did not send, so the look behind it is the last one.
    if (looks == EpLooksBeforeWait && !wait()) return false;
    if (looks > EpLooksBeforeWait) break;
    betweenPolls();
  }
  return true;
}

// Takes vectors `first`, `first` + 32 and so on of a row from rank `from`. Returns false, in all threads of the warp, if a
// wait was given up.
template <uint32_t Count>
MSCCLPP_DEVICE_INLINE bool takeLines(const EpRowPackets& lines, const uint8_t* row, uint32_t bytes, uint32_t first,
                                     EpRowPackets::Looks<Count>& seen, const EpHandle& ep, uint32_t from) {
  const auto look = [&] {
    warpSync();
    lines.look(row, bytes, first, seen);
    return !warpAny(!lines.areThere(bytes, first, seen));
  };
  if (!epLookUntil(look, [&] { return epWaitForLines(lines, row, bytes, first, Count, ep, from); })) return false;
  lines.complete(seen);
  return true;
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_PACKETS_DEVICE_HPP_
