// Packets by many threads together: any number of bytes from one memory into packets, and out of them into another.

#ifndef MSCCLPP_PACKET_COPY_DEVICE_HPP_
#define MSCCLPP_PACKET_COPY_DEVICE_HPP_

#include "mscclpp/group_device.hpp"
#include "mscclpp/packet_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Polls for packets that follow each other without counting: fewer than for a semaphore, because there is such a loop
// for each width of the payload's accesses.
enum PacketPollGroup : uint32_t { PacketPollsInARow = 4 };

// A word of 4 or 8 bytes of payload, by accesses of `Width` bytes, of which its address is a multiple.
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

// The bytes of a word at `offset` that are inside of `bytes`: none, some or all.
MSCCLPP_DEVICE_INLINE uint64_t loadRest(const uint8_t* from, uint64_t offset, uint64_t bytes) {
  uint64_t word = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < 8 && offset + i < bytes; ++i) {
    word |= static_cast<uint64_t>(load1(from + offset + i)) << 8 * i;
  }
  return word;
}
MSCCLPP_DEVICE_INLINE void storeRest(uint8_t* to, uint64_t offset, uint64_t bytes, uint64_t word) {
#pragma unroll 1
  for (uint32_t i = 0; i < 8 && offset + i < bytes; ++i) {
    store1(to + offset + i, static_cast<uint32_t>(word >> 8 * i));
  }
}

// How many packets a thread has under way at once, so that the latencies of its loads overlap. Payloads that are not
// aligned to their words are not worth the code.
template <uint32_t Width>
struct PacketsInFlight {
  static constexpr uint32_t value = Width == 8 ? 4 : 1;
};

// LL8 and LL16: packet i belongs to thread i modulo numThreads, a last one that is not full to the last thread.
template <class Packet>
struct PacketMover {
  static constexpr uint32_t Size = Packet::PayloadBytes;

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static void put(Packet* packets, const uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                        uint32_t numThreads, uint32_t flag) {
    constexpr uint32_t InFlight = PacketsInFlight<Width>::value;
    const uint64_t full = bytes / Size, stride = numThreads;
    for (uint64_t first = threadId; first < full; first += InFlight * stride) {
      uint64_t words[InFlight] = {};
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t index = first + i * stride;
        if (index < full) words[i] = loadWord<Size, Width>(payload + index * Size);
      }
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t index = first + i * stride;
        if (index < full) Packet::store(packets + index, Packet::pack(words[i], flag));
      }
    }
    if (full * Size != bytes && threadId == numThreads - 1) {
      Packet::store(packets + full, Packet::pack(loadRest(payload, full * Size, bytes), flag));
    }
  }

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static bool unpack(const Packet* packets, uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                           uint32_t numThreads, uint32_t flag, int64_t maxSpinCount,
                                           uint32_t* status) {
    using Wire = typename Packet::Wire;
    constexpr uint32_t InFlight = PacketsInFlight<Width>::value;
    const uint64_t full = bytes / Size, stride = numThreads;
    for (uint64_t first = threadId; first < full; first += InFlight * stride) {
      Wire wires[InFlight];
      const auto arrived = [&] {
        bool all = true;
#pragma unroll
        for (uint32_t i = 0; i < InFlight; ++i) {
          const uint64_t index = first + i * stride;
          wires[i] = index < full ? Packet::load(packets + index) : Packet::pack(0, flag);
        }
#pragma unroll
        for (uint32_t i = 0; i < InFlight; ++i) all = Packet::carries(wires[i], flag) && all;
        return all;
      };
      if (!arrived() && !pollUntil<PacketPollsInARow>(arrived, maxSpinCount, status)) return false;
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t index = first + i * stride;
        if (index < full) storeWord<Size, Width>(payload + index * Size, Packet::payload(wires[i]));
      }
    }
    if (full * Size != bytes && threadId == numThreads - 1) {
      Wire wire;
      const auto arrived = [&] {
        wire = Packet::load(packets + full);
        return Packet::carries(wire, flag);
      };
      if (!pollUntil<1>(arrived, maxSpinCount, status)) return false;
      storeRest(payload, full * Size, bytes, Packet::payload(wire));
    }
    return true;
  }
};

// LL128: 8 threads side by side have a line, a warp four lines in a step; a last line that is not full belongs to the
// last warp. The threads of a warp make the same steps, those without a line too, because they meet before each store
// and vote on what has come.
template <>
struct PacketMover<LL128Packet> {
  static constexpr uint32_t Size = LL128Packet::PayloadBytes;
  static constexpr uint32_t Lanes = 8;
  static constexpr uint32_t LinesOfWarp = 4;

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static void put(LL128Packet* packets, const uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                        uint32_t numThreads, uint32_t flag) {
    constexpr uint32_t InFlight = PacketsInFlight<Width>::value;
    const Place place(bytes, threadId, numThreads);
    for (uint64_t first = place.first; first < place.full; first += InFlight * place.stride) {
      Bytes16 parts[InFlight] = {};
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t line = first + i * place.stride + place.lineOfWarp;
        if (line < place.full) {
          const uint8_t* const from = payload + line * Size + place.lane * 16;
          parts[i].low = loadWord<8, Width>(from);
          parts[i].high = place.hasFlag ? flag : loadWord<8, Width>(from + 8);
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t line = first + i * place.stride + place.lineOfWarp;
        warpSync();
        if (line < place.full) storePair(packets[line].data + place.lane * 16, parts[i]);
      }
    }
    if (place.hasRest) {
      const uint64_t offset = place.full * Size + place.lane * 16;
      Bytes16 part;
      part.low = loadRest(payload, offset, bytes);
      part.high = place.hasFlag ? flag : loadRest(payload, offset + 8, bytes);
      warpSync();
      if (place.lineOfWarp == 0) storePair(packets[place.full].data + place.lane * 16, part);
    }
  }

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static bool unpack(const LL128Packet* packets, uint8_t* payload, uint64_t bytes,
                                           uint32_t threadId, uint32_t numThreads, uint32_t flag, int64_t maxSpinCount,
                                           uint32_t* status) {
    constexpr uint32_t InFlight = PacketsInFlight<Width>::value;
    const Place place(bytes, threadId, numThreads);
    for (uint64_t first = place.first; first < place.full; first += InFlight * place.stride) {
      const auto arrived = [&] {
        uint64_t flags[InFlight];
        bool missing = false;
#pragma unroll
        for (uint32_t i = 0; i < InFlight; ++i) {
          const uint64_t line = first + i * place.stride + place.lineOfWarp;
          flags[i] = place.hasFlag && line < place.full ? loadFlag(packets + line) : flag;
        }
#pragma unroll
        for (uint32_t i = 0; i < InFlight; ++i) missing = flags[i] != flag || missing;
        return !warpAny(missing);
      };
      if (!arrived() && !pollUntilByWarp<PacketPollsInARow>(arrived, maxSpinCount, status)) return false;
      Bytes16 parts[InFlight] = {};
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t line = first + i * place.stride + place.lineOfWarp;
        if (line < place.full) parts[i] = loadPair(packets[line].data + place.lane * 16);
      }
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t line = first + i * place.stride + place.lineOfWarp;
        if (line < place.full) {
          uint8_t* const to = payload + line * Size + place.lane * 16;
          storeWord<8, Width>(to, parts[i].low);
          if (!place.hasFlag) storeWord<8, Width>(to + 8, parts[i].high);
        }
      }
    }
    if (place.hasRest) {
      const auto arrived = [&] { return !warpAny(place.hasFlag && loadFlag(packets + place.full) != flag); };
      if (!pollUntilByWarp<1>(arrived, maxSpinCount, status)) return false;
      const uint64_t offset = place.full * Size + place.lane * 16;
      const Bytes16 part = loadPair(packets[place.full].data + place.lane * 16);
      if (place.lineOfWarp == 0) {
        storeRest(payload, offset, bytes, part.low);
        if (!place.hasFlag) storeRest(payload, offset + 8, bytes, part.high);
      }
    }
    return true;
  }

 private:
  // Where a thread stands among the lines.
  struct Place {
    uint64_t full;        // how many lines are full
    uint64_t stride;      // how many lines all threads have in a step
    uint64_t first;       // the first line of the thread's warp
    uint32_t lineOfWarp;  // which of the warp's lines is the thread's
    uint32_t lane;        // which of its line's 16 bytes
    bool hasFlag;         // whether the flag is among them
    bool hasRest;         // whether the thread's warp has the line that is not full

    MSCCLPP_DEVICE_INLINE Place(uint64_t bytes, uint32_t threadId, uint32_t numThreads)
        : full(bytes / Size),
          stride(numThreads / Lanes),
          first(threadId / (Lanes * LinesOfWarp) * LinesOfWarp),
          lineOfWarp(threadId / Lanes % LinesOfWarp),
          lane(threadId % Lanes),
          hasFlag(lane == Lanes - 1),
          hasRest(full * Size != bytes && numThreads - threadId <= Lanes * LinesOfWarp) {}
  };

  MSCCLPP_DEVICE_INLINE static uint64_t loadFlag(const LL128Packet* line) {
    return atomicLoad<MemoryOrder::Relaxed, MemoryScope::System>(&line->flag);
  }
};

MSCCLPP_DEVICE_INLINE void refuse(uint32_t* status) {
  if (status != nullptr) atomicStore<MemoryOrder::Relaxed, MemoryScope::System>(status + StatusRefused, 1u);
}

// Whether these packets can be moved by these threads. Says so in `status` if not.
template <class Packet>
MSCCLPP_DEVICE_INLINE bool acceptsPackets(const void* packets, uint32_t threadId, uint32_t numThreads, uint32_t flag,
                                          uint32_t* status) {
  bool accepts = flag != 0 && reinterpret_cast<uintptr_t>(packets) % sizeof(Packet) == 0;
  if constexpr (sizeof(Packet) == sizeof(LL128Packet)) {
    accepts = accepts && numThreads % 32 == 0 && threadId % 32 == laneId() % 32;
  }
  if (!accepts) refuse(status);
  return accepts;
}

}  // namespace detail

// Sends `bytes` bytes from `payload` as packets to `packets`, by the threads 0 to numThreads - 1, which all call this
// with the same arguments but their `threadId`. Any number of bytes, at any address: the last packet carries the rest.
// The packets' address is a multiple of their size; for LL128Packet whole warps call, with consecutive numbers from a
// multiple of 32 on. If not, or with flag 0, nothing is sent, word StatusRefused of `status` (may be null) is set, and
// the result is false; true otherwise. Returns at once: it waits for nobody. One case cannot be seen: a warp of which
// some threads have the right numbers and others have not, or do not call, waits for these for ever.
template <class Packet>
MSCCLPP_DEVICE_INLINE bool putPackets(void* packets, const void* payload, uint64_t bytes, uint32_t threadId,
                                      uint32_t numThreads, uint32_t flag, uint32_t* status = nullptr) {
  if (!detail::acceptsPackets<Packet>(packets, threadId, numThreads, flag, status)) return false;
  using Mover = detail::PacketMover<Packet>;
  Packet* const to = static_cast<Packet*>(packets);
  const uint8_t* const from = static_cast<const uint8_t*>(payload);
  const uint32_t misaligned = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % 8);
  if (misaligned % Packet::PayloadBytes == 0) {
    Mover::template put<8>(to, from, bytes, threadId, numThreads, flag);
  } else if (misaligned == 4) {
    Mover::template put<4>(to, from, bytes, threadId, numThreads, flag);
  } else {
    Mover::template put<1>(to, from, bytes, threadId, numThreads, flag);
  }
  return true;
}

// Waits for the packets of a putPackets with the same `bytes` and `flag` and writes their data to `payload`, and no
// byte beyond it. Threads, addresses and what is refused are as for putPackets; how many threads sent does not matter.
//
// Returns true when all packets of the calling thread have come and been written. Returns false when one did not come
// within maxSpinCount polls, if that is not negative, or when the host asked for an abort in `status` (may be null).
// For LL128Packet the threads of a warp get the same answer, otherwise each has its own. Part of the data may have been
// written then, and the call may be repeated. The threads write with plain stores: others see it after a barrier.
template <class Packet>
MSCCLPP_DEVICE_INLINE bool unpackPackets(const void* packets, void* payload, uint64_t bytes, uint32_t threadId,
                                         uint32_t numThreads, uint32_t flag, int64_t maxSpinCount = -1,
                                         uint32_t* status = nullptr) {
  if (!detail::acceptsPackets<Packet>(packets, threadId, numThreads, flag, status)) return false;
  using Mover = detail::PacketMover<Packet>;
  const Packet* const from = static_cast<const Packet*>(packets);
  uint8_t* const to = static_cast<uint8_t*>(payload);
  const uint32_t misaligned = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to) % 8);
  if (misaligned % Packet::PayloadBytes == 0) {
    return Mover::template unpack<8>(from, to, bytes, threadId, numThreads, flag, maxSpinCount, status);
  }
  if (misaligned == 4) {
    return Mover::template unpack<4>(from, to, bytes, threadId, numThreads, flag, maxSpinCount, status);
  }
  return Mover::template unpack<1>(from, to, bytes, threadId, numThreads, flag, maxSpinCount, status);
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_PACKET_COPY_DEVICE_HPP_
