// Packets by many threads together: any number of bytes from one memory into packets, and out of them into another.

#ifndef MSCCLPP_PACKET_COPY_DEVICE_HPP_
#define MSCCLPP_PACKET_COPY_DEVICE_HPP_

#include "mscclpp/packet_device.hpp"
#include "mscclpp/packet_mover_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

MSCCLPP_DEVICE_INLINE void refuse(uint32_t* status) {
  if (status != nullptr) detail::store<MemoryOrder::Relaxed, MemoryScope::System>(status + StatusRefused, 1u);
}

// Whether these threads can move these packets. If not, reports so in `status`.
template <class Packet>
MSCCLPP_DEVICE_INLINE bool acceptsPackets(const void* packets, uint32_t threadId, uint32_t numThreads,
                                          uint32_t* status) {
  // The bits that must be 0.
  uint32_t wrong = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(packets)) & (sizeof(Packet) - 1);
  if constexpr (sizeof(Packet) == sizeof(LL128Packet)) wrong |= (numThreads | (threadId ^ laneId())) & 31;
  if (wrong != 0) refuse(status);
  return wrong == 0;
}

// LL8 and LL16 with packets or payload in memory that is not global, by accesses for which the hardware finds out the
// kind of memory. LL128 packets are lines of global memory.
template <class Packet>
struct PacketsAnywhere {
  static constexpr uint64_t Size = Packet::PayloadBytes;

  MSCCLPP_DEVICE_INLINE static bool put(Packet* packets, const uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                        uint32_t numThreads, uint32_t flag, uint32_t*) {
#pragma unroll 1
    for (uint64_t i = threadId; i * Size < bytes; i += numThreads) {
      const uint64_t rest = bytes - i * Size;
      uint64_t word = 0;
#pragma unroll 1
      for (uint32_t k = 0; k < (rest < Size ? rest : Size); ++k) {
        word |= static_cast<uint64_t>(read<uint8_t>(payload, i * Size + k)) << 8 * k;
      }
      Packet::template store<MemorySpace::Any>(packets + i, Packet::pack(word, flag));
    }
    return true;
  }

  MSCCLPP_DEVICE_INLINE static bool unpack(const Packet* packets, uint8_t* payload, uint64_t bytes, uint32_t threadId,
                                           uint32_t numThreads, uint32_t flag, int64_t maxSpinCount,
                                           uint32_t* status) {
#pragma unroll 1
    for (uint64_t i = threadId; i * Size < bytes; i += numThreads) {
      typename Packet::Wire wire;
      const auto arrived = [&] {
        wire = Packet::template load<MemorySpace::Any>(packets + i);
        return Packet::carries(wire, flag);
      };
      if (!arrived() && !pollUntil<1>(arrived, maxSpinCount, status)) return false;
      const uint64_t word = Packet::payload(wire);
      const uint64_t rest = bytes - i * Size;
#pragma unroll 1
      for (uint32_t k = 0; k < (rest < Size ? rest : Size); ++k) {
        write<uint8_t>(payload, i * Size + k, static_cast<uint8_t>(word >> 8 * k));
      }
    }
    return true;
  }
};
template <>
struct PacketsAnywhere<LL128Packet> {
  MSCCLPP_DEVICE_INLINE static bool put(LL128Packet*, const uint8_t*, uint64_t, uint32_t, uint32_t, uint32_t,
                                        uint32_t* status) {
    refuse(status);
    return false;
  }
  MSCCLPP_DEVICE_INLINE static bool unpack(const LL128Packet*, uint8_t*, uint64_t, uint32_t, uint32_t, uint32_t,
                                           int64_t, uint32_t* status) {
    refuse(status);
    return false;
  }
};

}  // namespace detail

// Sends `bytes` bytes from `origin` as packets to `target`, by the threads 0 to numThreads - 1, which all call this
// with the same arguments but their `threadId`. Any number of bytes, at any address, in any memory: the last packet
// carries the rest. The packets' address is a multiple of their size; for LL128Packet whole warps call, with
// consecutive numbers from a multiple of 32 on, and all is in global memory. If not, nothing is sent, word
// StatusRefused of `status` (may be null) is set, and the result is false for the threads, of LL128Packet the warps,
// that have a packet; for the others nothing is checked, and it is true, so the threads of a block are not to branch
// around a barrier by it. True otherwise. Returns at once: it waits for nobody. One case cannot be seen: a warp of
// which some threads have the right numbers and others have not, or do not call, waits for these for ever.
template <class Packet = LL16Packet>
MSCCLPP_DEVICE_INLINE bool copyToPackets(void* target, const void* origin, uint64_t bytes, uint32_t threadId,
                                         uint32_t numThreads, uint32_t flag, uint32_t* status = nullptr) {
  using Mover = detail::PacketMover<Packet>;
  if (Mover::beginOf(threadId) >= bytes) return true;
  if (!detail::acceptsPackets<Packet>(target, threadId, numThreads, status)) return false;
  Packet* const to = static_cast<Packet*>(target);
  const uint8_t* const from = static_cast<const uint8_t*>(origin);
  if (!detail::isGlobal(target) || !detail::isGlobal(origin)) {
    return detail::PacketsAnywhere<Packet>::put(to, from, bytes, threadId, numThreads, flag, status);
  }
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

// Waits for the packets of a copyToPackets with the same `bytes` and `flag`, at `target`, and writes their data to
// `origin`, and no byte beyond it: as in unpackPackets, the target is where the sender's packets went. The rules for
// threads and addresses are those of copyToPackets, and the same calls are refused; the number of threads that sent
// does not matter.
//
// Returns true when all packets of the calling thread have come and been written. Returns false when one did not come
// within maxSpinCount polls, if that is not negative, or when the host asked for an abort in `status` (may be null).
// For LL128Packet the threads of a warp get the same answer, otherwise each has its own. Part of the data may have been
// written then, and the call may be repeated. The threads write with plain stores: others see it after a barrier.
template <class Packet = LL16Packet>
MSCCLPP_DEVICE_INLINE bool copyFromPackets(void* origin, const void* target, uint64_t bytes, uint32_t threadId,
                                           uint32_t numThreads, uint32_t flag, int64_t maxSpinCount = -1,
                                           uint32_t* status = nullptr) {
  using Mover = detail::PacketMover<Packet>;
  if (Mover::beginOf(threadId) >= bytes) return true;
  if (!detail::acceptsPackets<Packet>(target, threadId, numThreads, status)) return false;
  const Packet* const from = static_cast<const Packet*>(target);
  uint8_t* const to = static_cast<uint8_t*>(origin);
  if (!detail::isGlobal(target) || !detail::isGlobal(origin)) {
    return detail::PacketsAnywhere<Packet>::unpack(from, to, bytes, threadId, numThreads, flag, maxSpinCount, status);
  }
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
