// The movement of packets by many threads together, which copyToPackets and copyFromPackets are made of. For the
// library's own use; programs include packet_copy_device.hpp.

#ifndef MSCCLPP_PACKET_MOVER_DEVICE_HPP_
#define MSCCLPP_PACKET_MOVER_DEVICE_HPP_

#include "mscclpp/group_device.hpp"
#include "mscclpp/packet_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Loads a word of 4 or 8 bytes of payload, by accesses of `Width` bytes, of which its address is a multiple.
template <uint32_t Size, uint32_t Width>
MSCCLPP_DEVICE_INLINE uint64_t loadWord(const uint8_t* from) {
  if constexpr (Size == 4 && Width >= 4) {
    return load4(from);
  } else if constexpr (Width == 8) {
    return load8(from);
  } else if constexpr (Width == 4) {
    return load4(from) | static_cast<uint64_t>(load4(from + 4)) << 32;
  } else {
    uint64_t word = 0;
#pragma unroll
    for (uint32_t i = 0; i < Size; ++i) word |= static_cast<uint64_t>(load1(from + i)) << 8 * i;
    return word;
  }
}
template <uint32_t Size, uint32_t Width>
MSCCLPP_DEVICE_INLINE void storeWord(uint8_t* to, uint64_t word) {
  if constexpr (Size == 4 && Width >= 4) {
    store4(to, static_cast<uint32_t>(word));
  } else if constexpr (Width == 8) {
    store8(to, word);
  } else if constexpr (Width == 4) {
    store4(to, static_cast<uint32_t>(word));
    store4(to + 4, static_cast<uint32_t>(word >> 32));
  } else {
#pragma unroll
    for (uint32_t i = 0; i < Size; ++i) store1(to + i, static_cast<uint32_t>(word >> 8 * i));
  }
}

// Loads a word of fewer bytes than 8. At most one word of a message has fewer, so the code need not be fast.
MSCCLPP_DEVICE_INLINE uint64_t loadRest(const uint8_t* from, int32_t bytes) {
  uint64_t word = 0;
#pragma unroll 1
  for (int32_t i = 0; i < bytes; ++i) word |= static_cast<uint64_t>(load1(from + i)) << 8 * i;
  return word;
}
MSCCLPP_DEVICE_INLINE void storeRest(uint8_t* to, int32_t bytes, uint64_t word) {
#pragma unroll 1
  for (int32_t i = 0; i < bytes; ++i) store1(to + i, static_cast<uint32_t>(word >> 8 * i));
}

// The movement of all kinds of packets. The threads go through the message in steps, each of which is a packet for each
// of them (for LL128, a part of one); a thread advances its pointers and counts how many bytes of payload are left from
// there. As long as this many steps are whole, it has the loads of all of them under way at once, so that their
// latencies overlap. The steps after that, which are all steps of a small message, come one by one: they are little
// code, which takes less time to fetch than the latencies would take together. Threads without a packet have left
// before that, as they take turns with those that have one. Payloads that are not aligned to their words are moved in
// single steps alone.
//
// A thread that waits for several packets looks at all of them at first, so that the look that finds them has their
// data. After so many looks in vain the link is busy, and other threads wait, too: from then on it looks at the last
// packet alone before it looks at the others. Otherwise the looks of a whole device read several times as much memory
// as arrives meanwhile, and take longer than the data itself.
enum PacketSteps : uint32_t { PacketsInFlight = 4, LooksAtAll = 16 };

// LL8 and LL16: packet i belongs to thread i modulo numThreads. The last one may be less than full.
template <class Packet>
struct PacketMover {
  static constexpr int64_t Size = Packet::PayloadBytes;

  // The first byte of the payload that the thread moves.
  MSCCLPP_DEVICE_INLINE static uint64_t beginOf(uint32_t threadId) {
    return static_cast<uint64_t>(threadId) * Size;
  }

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static void put(Packet* packets, const uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                        uint32_t numThreads, uint32_t flag) {
    int64_t left = static_cast<int64_t>(bytes - beginOf(threadId));
    const uint64_t stride = numThreads;
    const int64_t step = numThreads * Size;
    const uint8_t* from = payload + threadId * Size;
    Packet* to = packets + threadId;
    if constexpr (Width == 8) {
#pragma unroll 1
      for (; left >= (PacketsInFlight - 1) * step + Size; left -= PacketsInFlight * step) {
        uint64_t words[PacketsInFlight];
#pragma unroll
        for (uint32_t i = 0; i < PacketsInFlight; ++i) words[i] = loadWord<Size, Width>(from + i * step);
#pragma unroll
        for (uint32_t i = 0; i < PacketsInFlight; ++i) Packet::store(to + i * stride, Packet::pack(words[i], flag));
        from += PacketsInFlight * step;
        to += PacketsInFlight * stride;
      }
    }
#pragma unroll 1
    for (; left > 0; left -= step) {
      const uint64_t word = left >= Size ? loadWord<Size, Width>(from) : loadRest(from, static_cast<int32_t>(left));
      Packet::store(to, Packet::pack(word, flag));
      from += step;
      to += stride;
    }
  }

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static bool unpack(const Packet* packets, uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                           uint32_t numThreads, uint32_t flag, int64_t maxSpinCount,
                                           uint32_t* status) {
    using Wire = typename Packet::Wire;
    int64_t left = static_cast<int64_t>(bytes - beginOf(threadId));
    const uint64_t stride = numThreads;
    const int64_t step = numThreads * Size;
    const Packet* from = packets + threadId;
    uint8_t* to = payload + threadId * Size;
    if constexpr (Width == 8) {
      uint32_t looks = 0;
#pragma unroll 1
      for (; left >= (PacketsInFlight - 1) * step + Size; left -= PacketsInFlight * step) {
        Wire wires[PacketsInFlight];
        const auto arrived = [&] {
          bool all = true;
#pragma unroll
          for (uint32_t i = 0; i < PacketsInFlight; ++i) wires[i] = Packet::load(from + i * stride);
#pragma unroll
          for (uint32_t i = 0; i < PacketsInFlight; ++i) all = Packet::carries(wires[i], flag) && all;
          return all;
        };
        const Packet* const last = from + (PacketsInFlight - 1) * stride;
        const auto arrivedAtLast = [&] {
          return (++looks <= LooksAtAll || Packet::carries(Packet::load(last), flag)) && arrived();
        };
        if (!arrived() && !pollUntil<1>(arrivedAtLast, maxSpinCount, status)) return false;
#pragma unroll
        for (uint32_t i = 0; i < PacketsInFlight; ++i) {
          storeWord<Size, Width>(to + i * step, Packet::payload(wires[i]));
        }
        from += PacketsInFlight * stride;
        to += PacketsInFlight * step;
      }
    }
#pragma unroll 1
    for (; left > 0; left -= step) {
      Wire wire;
      const auto arrived = [&] {
        wire = Packet::load(from);
        return Packet::carries(wire, flag);
      };
      if (!arrived() && !pollUntil<1>(arrived, maxSpinCount, status)) return false;
      if (left >= Size) {
        storeWord<Size, Width>(to, Packet::payload(wire));
      } else {
        storeRest(to, static_cast<int32_t>(left), Packet::payload(wire));
      }
      from += stride;
      to += step;
    }
    return true;
  }
};

// LL128: 8 consecutive threads have a line, each of them 16 bytes, and a warp four lines in a step. The threads of a
// warp make the same steps, also those whose line is after the end of the message.
//
// Both sides rely on 8 threads that access a line in one instruction making one request, which the hardware does and
// PTX does not promise: the stores arrive whole over NVLink, and the loads find a line as it was before such a store or
// after it. So the flag, which comes with the thread that has it, proves that the data of the other seven has come too,
// and one load sees both. The loads are relaxed at system scope: each goes to the L2 cache. Before such instructions
// the warp meets, by a vote or warpSync, and nothing in between could part it.
template <>
struct PacketMover<LL128Packet> {
  static constexpr int64_t Size = LL128Packet::PayloadBytes;
  static constexpr uint32_t Lanes = 8;
  static constexpr uint32_t WarpThreads = 32;
  // The payload bytes that a warp moves in a step.
  static constexpr int64_t WarpBytes = WarpThreads / Lanes * Size;

  // The first byte of the payload that the thread's warp moves.
  MSCCLPP_DEVICE_INLINE static uint64_t beginOf(uint32_t threadId) {
    return static_cast<uint64_t>(threadId / WarpThreads) * WarpBytes;
  }

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static void put(LL128Packet* packets, const uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                        uint32_t numThreads, uint32_t flag) {
    const uint64_t begin = beginOf(threadId);
    int64_t left = static_cast<int64_t>(bytes - begin);
    const Place place(threadId, numThreads);
    const uint8_t* from = payload + begin;
    uint8_t* to = packets->data + place.packet;
    if constexpr (Width == 8) {
      if (isAligned16(payload)) {
#pragma unroll 1
        for (; left >= (PacketsInFlight - 1) * place.step + WarpBytes; left -= PacketsInFlight * place.step) {
          Bytes16 parts[PacketsInFlight] = {};
#pragma unroll
          for (uint32_t i = 0; i < PacketsInFlight; ++i) {
            if (place.sharesPayload) parts[i] = load16(from + i * place.step + place.thread * 16);
          }
#pragma unroll
          for (uint32_t i = 0; i < PacketsInFlight; ++i) parts[i] = place.ofLines(parts[i], flag);
          warpSync();
#pragma unroll
          for (uint32_t i = 0; i < PacketsInFlight; ++i) storePair(to + i * place.packetStep, parts[i]);
          from += PacketsInFlight * place.step;
          to += PacketsInFlight * place.packetStep;
        }
      }
    }
    from += place.offset;
    const bool ragged = bytes % 8 != 0;
#pragma unroll 1
    for (; left > 0; left -= place.step) {
      const int32_t mine = place.mine(left);
      Bytes16 part = {0, place.hasFlag ? flag : 0};
      if (mine >= 8) part.low = loadWord<8, Width>(from);
      if (mine >= 16 && !place.hasFlag) part.high = loadWord<8, Width>(from + 8);
      const int32_t rest = ragged ? place.rest(mine) : 0;
      if (rest != 0) {
        const uint64_t word = loadRest(from + mine - rest, rest);
        if (mine < 8) {
          part.low = word;
        } else {
          part.high = word;
        }
      }
      warpSync();
      if (left > place.line) storePair(to, part);
      from += place.step;
      to += place.packetStep;
    }
  }

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static bool unpack(const LL128Packet* packets, uint8_t* payload, uint64_t bytes,
                                           uint32_t threadId, uint32_t numThreads, uint32_t flag, int64_t maxSpinCount,
                                           uint32_t* status) {
    const uint64_t begin = beginOf(threadId);
    int64_t left = static_cast<int64_t>(bytes - begin);
    const Place place(threadId, numThreads);
    const uint8_t* from = packets->data + place.packet;
    uint8_t* to = payload + begin;
    if constexpr (Width == 8) {
      if (isAligned16(payload)) {
        uint32_t looks = 0;
#pragma unroll 1
        for (; left >= (PacketsInFlight - 1) * place.step + WarpBytes; left -= PacketsInFlight * place.step) {
          Bytes16 parts[PacketsInFlight];
          const auto arrived = [&] {
            bool missing = false;
#pragma unroll
            for (uint32_t i = 0; i < PacketsInFlight; ++i) {
              parts[i] = warpAtOnce([&] { return loadPair(from + i * place.packetStep); });
            }
#pragma unroll
            for (uint32_t i = 0; i < PacketsInFlight; ++i) missing = parts[i].high != flag || missing;
            return !warpAny(missing && place.hasFlag);
          };
          const uint64_t* const lastFlag = reinterpret_cast<const uint64_t*>(
              from + (PacketsInFlight - 1) * place.packetStep + (WarpThreads - 1 - place.thread) * 16 + 8);
          const auto arrivedAtLast = [&] {
            if (++looks > LooksAtAll &&
                warpAny(detail::load<MemoryOrder::Relaxed, MemoryScope::System>(lastFlag) != flag)) {
              return false;
            }
            return arrived();
          };
          warpSync();
          if (!arrived() && !pollUntilByWarp<1>(arrivedAtLast, maxSpinCount, status)) return false;
#pragma unroll
          for (uint32_t i = 0; i < PacketsInFlight; ++i) {
            const Bytes16 part = place.ofPayload(parts[i]);
            if (place.sharesPayload) store16(to + i * place.step + place.thread * 16, part);
          }
          from += PacketsInFlight * place.packetStep;
          to += PacketsInFlight * place.step;
        }
      }
    }
    to += place.offset;
    const bool ragged = bytes % 8 != 0;
#pragma unroll 1
    for (; left > 0; left -= place.step) {
      // Threads without a line look at the first line of their warp, so that all of them load.
      const uint8_t* const line = left > place.line ? from : from - place.thread * 16 + place.offsetInLine;
      Bytes16 part;
      const auto arrived = [&] {
        part = warpAtOnce([&] { return loadPair(line); });
        return !warpAny(part.high != flag && place.hasFlag);
      };
      warpSync();
      if (!arrived() && !pollUntilByWarp<1>(arrived, maxSpinCount, status)) return false;
      const int32_t mine = place.mine(left);
      if (mine >= 8) storeWord<8, Width>(to, part.low);
      if (mine >= 16 && !place.hasFlag) storeWord<8, Width>(to + 8, part.high);
      const int32_t rest = ragged ? place.rest(mine) : 0;
      if (rest != 0) storeRest(to + mine - rest, rest, mine < 8 ? part.low : part.high);
      from += place.packetStep;
      to += place.step;
    }
    return true;
  }

 private:
  // The position of a thread in the warp's lines and in its part of the payload.
  struct Place {
    int64_t step;           // of the payload: from one step to the next
    uint64_t packet;        // of the packets: the first of the thread's 16 bytes
    uint64_t packetStep;    // of the packets: from one step to the next
    uint32_t thread;        // in the warp
    uint32_t offsetInLine;  // of the thread's 16 bytes, which are as many in the payload
    int32_t line;           // where the thread's line begins in the payload of the warp
    int32_t offset;         // where its 16 bytes do
    bool hasFlag;           // whether the last 8 of them are the flag instead
    bool sharesPayload;     // whether the thread has 16 of the warp's 480 bytes when these are not seen as lines

    MSCCLPP_DEVICE_INLINE Place(uint32_t threadId, uint32_t numThreads)
        : step(numThreads / WarpThreads * WarpBytes),
          packet(static_cast<uint64_t>(threadId) * 16),
          packetStep(static_cast<uint64_t>(numThreads) * 16),
          thread(threadId % WarpThreads),
          offsetInLine(thread % Lanes * 16),
          line(static_cast<int32_t>(thread / Lanes * Size)),
          offset(line + static_cast<int32_t>(offsetInLine)),
          hasFlag(thread % Lanes == Lanes - 1),
          sharesPayload(thread < WarpBytes / 16) {}

    // The number of bytes of payload from the thread's first one on, if there are `left` from the warp's first on; a
    // result of 16 or more may be less than the true number.
    MSCCLPP_DEVICE_INLINE int32_t mine(int64_t left) const {
      return static_cast<int32_t>(left < WarpBytes ? left : WarpBytes) - offset;
    }

    // The number of these bytes that are in a word that is not whole.
    MSCCLPP_DEVICE_INLINE int32_t rest(int32_t mine) const {
      return mine > 0 && mine < (hasFlag ? 8 : 16) ? mine % 8 : 0;
    }

    // Four full lines are 60 words of payload, which 30 threads access 16 bytes at a time: thread t has the words 2t
    // and 2t + 1. As lines they are 15 words each, so that thread t has two words from 15 * (t / 8) + 2 * (t % 8) on,
    // or one and the flag. Where that is an odd number, as it is in every other line, the two are of two threads.

    // Converts the words of payload order to those of lines. All threads of the warp call it.
    MSCCLPP_DEVICE_INLINE Bytes16 ofLines(Bytes16 part, uint32_t flag) const {
      const uint32_t word = thread / Lanes * 15 + thread % Lanes * 2, owner = word / 2;
      const bool odd = word % 2 != 0;
      const uint64_t low = warpShuffle(part.low, odd ? owner + 1 : owner);
      const uint64_t high = warpShuffle(part.high, owner);
      return Bytes16{odd ? high : low, hasFlag ? flag : odd ? low : high};
    }

    // Converts the words of lines to those of payload order: words 2t and 2t + 1 are in thread t + t / 15 and, from the
    // middle of each 15 threads on, where a line ends in between, in its successor.
    MSCCLPP_DEVICE_INLINE Bytes16 ofPayload(Bytes16 part) const {
      const uint32_t owner = thread + thread / 15;
      const bool odd = thread % 15 >= 7;
      const uint64_t low = warpShuffle(part.low, odd ? owner + 1 : owner);
      // A thread with a flag has one word, which is requested from it as the second, too.
      const uint64_t high = warpShuffle(hasFlag ? part.low : part.high, owner);
      return Bytes16{odd ? high : low, odd ? low : high};
    }
  };

  MSCCLPP_DEVICE_INLINE static bool isAligned16(const void* payload) {
    return reinterpret_cast<uintptr_t>(payload) % 16 == 0;
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_PACKET_MOVER_DEVICE_HPP_
