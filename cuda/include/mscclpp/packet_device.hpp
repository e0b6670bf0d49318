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
// - LL128: a line of 128 bytes with one flag for 120 bytes of data, stored by 8 threads of a warp in one instruction.
//   PTX does not promise that it arrives whole. On NVLink it does, elsewhere these packets are refused
//   (MemoryChannelLines in memory_channel_device.hpp). The receiver asks nothing of its loads: it sees the flag first
//   and loads the data after that.

#ifndef MSCCLPP_PACKET_DEVICE_HPP_
#define MSCCLPP_PACKET_DEVICE_HPP_

#include "mscclpp/access_device.hpp"
#include "mscclpp/poll_device.hpp"

namespace mscclpp {

#if defined(MSCCLPP_DEVICE_COMPILE)

// Polls for a packet that follow each other without counting: fewer than for a semaphore, because there is such a loop
// for each width of the payload's accesses.
enum PacketPollGroup : uint32_t { PacketPollsInARow = 4 };

#endif

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

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Reads 8 bytes as the low bytes of a word, by accesses of `Width` bytes, of which the address is a multiple.
template <uint32_t Width>
MSCCLPP_DEVICE_INLINE uint64_t loadWord(const uint8_t* from, uint32_t bytes = 8) {
  if constexpr (Width == 8) {
    if (bytes == 8) return load8(from);
  }
  if constexpr (Width >= 4) {
    if (bytes == 8) return load4(from) | static_cast<uint64_t>(load4(from + 4)) << 32;
    if (bytes == 4) return load4(from);
  }
  uint64_t word = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < bytes; ++i) word |= static_cast<uint64_t>(load1(from + i)) << 8 * i;
  return word;
}

// Writes the low `bytes` bytes of a word likewise, and no byte more.
template <uint32_t Width>
MSCCLPP_DEVICE_INLINE void storeWord(uint8_t* to, uint64_t word, uint32_t bytes = 8) {
  if constexpr (Width == 8) {
    if (bytes == 8) {
      store8(to, word);
      return;
    }
  }
  if constexpr (Width >= 4) {
    if (bytes == 8 || bytes == 4) {
      store4(to, static_cast<uint32_t>(word));
      if (bytes == 8) store4(to + 4, static_cast<uint32_t>(word >> 32));
      return;
    }
  }
#pragma unroll 1
  for (uint32_t i = 0; i < bytes; ++i) store1(to + i, static_cast<uint32_t>(word >> 8 * i));
}

// How many of the 8 bytes at `offset` are inside of `bytes`.
MSCCLPP_DEVICE_INLINE uint32_t validOfWord(uint64_t offset, uint64_t bytes) {
  return offset >= bytes ? 0 : bytes - offset < 8 ? static_cast<uint32_t>(bytes - offset) : 8;
}

// LL8 and LL16: packet i belongs to thread i modulo numThreads. Several payloads are loaded before the first is sent,
// so that their latencies overlap.
template <class Packet>
struct PacketMover {
  static constexpr uint32_t Size = Packet::PayloadBytes;

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static void put(Packet* packets, const uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                        uint32_t numThreads, uint32_t flag) {
    constexpr uint32_t InFlight = Width == 1 ? 1 : 4;
    const uint64_t count = (bytes + (Size - 1)) / Size;
    for (uint64_t first = threadId; first < count; first += static_cast<uint64_t>(InFlight) * numThreads) {
      uint64_t words[InFlight] = {};
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t offset = (first + static_cast<uint64_t>(i) * numThreads) * Size;
        if (offset + Size <= bytes) {
          words[i] = loadWord<Width>(payload + offset, Size);
        } else if (offset < bytes) {
          words[i] = loadWord<1>(payload + offset, static_cast<uint32_t>(bytes - offset));
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t index = first + static_cast<uint64_t>(i) * numThreads;
        if (index < count) Packet::store(packets + index, Packet::pack(words[i], flag));
      }
    }
  }

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static bool unpack(const Packet* packets, uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                           uint32_t numThreads, uint32_t flag, int64_t maxSpinCount,
                                           uint32_t* status) {
    using Wire = typename Packet::Wire;
    constexpr uint32_t InFlight = Width == 1 ? 1 : 4;
    const uint64_t count = (bytes + (Size - 1)) / Size;
    for (uint64_t first = threadId; first < count; first += static_cast<uint64_t>(InFlight) * numThreads) {
      Wire wires[InFlight];
      // Looks at all of the packets, and leaves them in `wires`.
      const auto arrived = [&] {
        bool all = true;
#pragma unroll
        for (uint32_t i = 0; i < InFlight; ++i) {
          const uint64_t index = first + static_cast<uint64_t>(i) * numThreads;
          wires[i] = index < count ? Packet::load(packets + index) : Packet::pack(0, flag);
        }
#pragma unroll
        for (uint32_t i = 0; i < InFlight; ++i) all = Packet::carries(wires[i], flag) && all;
        return all;
      };
      if (!arrived() && !pollUntil<PacketPollsInARow>(arrived, maxSpinCount, status)) return false;
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t offset = (first + static_cast<uint64_t>(i) * numThreads) * Size;
        if (offset + Size <= bytes) {
          storeWord<Width>(payload + offset, Packet::payload(wires[i]), Size);
        } else if (offset < bytes) {
          storeWord<1>(payload + offset, Packet::payload(wires[i]), static_cast<uint32_t>(bytes - offset));
        }
      }
    }
    return true;
  }
};

// LL128: 8 threads side by side have a line, a warp four in a step. A warp's threads make the same steps, those without
// a line too, because they meet before each store and vote on what has come.
template <>
struct PacketMover<LL128Packet> {
  static constexpr uint32_t Size = LL128Packet::PayloadBytes;
  static constexpr uint32_t Lanes = 8;
  static constexpr uint32_t LinesOfWarp = 4;
  static constexpr uint32_t InFlight = 4;

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static void put(LL128Packet* packets, const uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                        uint32_t numThreads, uint32_t flag) {
    const uint32_t lane = threadId % Lanes;
    const uint64_t count = (bytes + (Size - 1)) / Size;
    const uint64_t stride = numThreads / Lanes;
    const uint32_t lineOfWarp = threadId / Lanes % LinesOfWarp;
    for (uint64_t first = threadId / Lanes - lineOfWarp; first < count; first += InFlight * stride) {
      Bytes16 parts[InFlight] = {};
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t line = first + i * stride + lineOfWarp;
        if (line < count) parts[i] = loadPart<Width>(payload, bytes, line * Size + lane * 16, lane, flag);
      }
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t line = first + i * stride + lineOfWarp;
        warpSync();
        if (line < count) storePair(partOf(packets + line, lane), parts[i]);
      }
    }
  }

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static bool unpack(const LL128Packet* packets, uint8_t* payload, uint64_t bytes,
                                           uint32_t threadId, uint32_t numThreads, uint32_t flag, int64_t maxSpinCount,
                                           uint32_t* status) {
    const uint32_t lane = threadId % Lanes;
    const uint64_t count = (bytes + (Size - 1)) / Size;
    const uint64_t stride = numThreads / Lanes;
    const uint32_t lineOfWarp = threadId / Lanes % LinesOfWarp;
    for (uint64_t first = threadId / Lanes - lineOfWarp; first < count; first += InFlight * stride) {
      const auto arrived = [&] {
        uint64_t flags[InFlight];
        bool missing = false;
#pragma unroll
        for (uint32_t i = 0; i < InFlight; ++i) {
          const uint64_t line = first + i * stride + lineOfWarp;
          const bool asked = lane == Lanes - 1 && line < count;
          flags[i] = asked ? atomicLoad<MemoryOrder::Relaxed, MemoryScope::System>(&packets[line].flag) : flag;
        }
#pragma unroll
        for (uint32_t i = 0; i < InFlight; ++i) missing = flags[i] != flag || missing;
        return !warpAny(missing);
      };
      if (!arrived() && !pollUntilByWarp<PacketPollsInARow>(arrived, maxSpinCount, status)) return false;
      Bytes16 parts[InFlight] = {};
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t line = first + i * stride + lineOfWarp;
        if (line < count) parts[i] = loadPair(partOf(packets + line, lane));
      }
#pragma unroll
      for (uint32_t i = 0; i < InFlight; ++i) {
        const uint64_t line = first + i * stride + lineOfWarp;
        if (line < count) storePart<Width>(payload, bytes, line * Size + lane * 16, lane, parts[i]);
      }
    }
    return true;
  }

 private:
  template <class Line>
  MSCCLPP_DEVICE_INLINE static auto partOf(Line* line, uint32_t lane) {
    return line->data + lane * 16;
  }

  // The 16 bytes of a line that thread `lane` has, of which the payload starts at `offset`.
  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static Bytes16 loadPart(const uint8_t* payload, uint64_t bytes, uint64_t offset, uint32_t lane,
                                                uint32_t flag) {
    Bytes16 part;
    part.low = loadWord<Width>(payload + offset, validOfWord(offset, bytes));
    part.high = lane == Lanes - 1 ? flag : loadWord<Width>(payload + offset + 8, validOfWord(offset + 8, bytes));
    return part;
  }

  template <uint32_t Width>
  MSCCLPP_DEVICE_INLINE static void storePart(uint8_t* payload, uint64_t bytes, uint64_t offset, uint32_t lane,
                                              Bytes16 part) {
    storeWord<Width>(payload + offset, part.low, validOfWord(offset, bytes));
    if (lane != Lanes - 1) storeWord<Width>(payload + offset + 8, part.high, validOfWord(offset + 8, bytes));
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

// Sends `bytes` bytes from `payload` as packets to `packets`, by the threads 0 to numThreads - 1, all of which call this
// with the same arguments but their `threadId`. Any number of bytes, at any address: the last packet carries the rest.
// The packets' address is a multiple of their size; for LL128Packet whole warps call, with consecutive numbers from a
// multiple of 32 on. If not, or with flag 0, nothing is sent, word StatusRefused of `status` (may be null) is set, and
// the result is false; true otherwise. Returns at once: it waits for nobody.
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

// Waits for the packets of a putPackets with the same `bytes` and `flag` and writes their data to `payload`, and no byte
// beyond it. Threads, addresses and what is refused are as for putPackets; how many threads sent does not matter.
//
// Returns true when all packets of the calling thread have come and been written. Returns false when one did not come
// within maxSpinCount polls, if that is not negative, or when the host asked for an abort in `status` (may be null). For
// LL128Packet the threads of a warp get the same answer, otherwise each has its own. Part of the data may have been
// written then, and the call may be repeated. The threads write with plain stores: others see the data after a barrier.
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

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_PACKET_DEVICE_HPP_
