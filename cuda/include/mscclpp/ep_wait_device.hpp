// The waits of calls of experts for other ranks, and the ranks that are lost. For the library's own use.

#ifndef MSCCLPP_EP_WAIT_DEVICE_HPP_
#define MSCCLPP_EP_WAIT_DEVICE_HPP_

#include "mscclpp/ep_call_device.hpp"
#include "mscclpp/message_words_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The conditions for which calls wait: a word is at least so large, or a packet is there.
struct EpWordIsThere {
  const uint64_t* word;
  uint64_t least;
  MSCCLPP_DEVICE_INLINE bool operator()() const {
    return detail::load<MemoryOrder::Acquire, MemoryScope::System>(word) >= least;
  }
};
struct EpPacketIsThere {
  Ll16Packets packets;
  const uint8_t* at;
  MSCCLPP_DEVICE_INLINE bool operator()() const { return packets.isThere(Ll16Packets::load(at)); }
};

// Returns the time, in nanoseconds.
MSCCLPP_DEVICE_INLINE uint64_t nanosecondsNow() {
#if defined(MSCCLPP_DEVICE_CUDA)
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
#elif defined(MSCCLPP_DEVICE_HIP)
  // The counter has a frequency of 100 MHz.
  return __builtin_readsteadycounter() * 10;
#else
  return __nvvm_read_ptx_sreg_globaltimer();
#endif
}

// The word of a packet that has not come, because its rank is lost. A packet that has come has it if its two choices are of other
// ranks' experts, or its two weights have these bits.
constexpr uint64_t EpNoWord = ~uint64_t{0};

// The word with a bit for each rank that is lost.
MSCCLPP_DEVICE_INLINE uint32_t* epLostRanks(const EpHandle& ep) { return reinterpret_cast<uint32_t*>(ep.words + EpLost); }
template <class Handle>
MSCCLPP_DEVICE_INLINE bool epIsLost(const Handle& ep, uint32_t rank) {
  return ep.patience != 0 && (detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(epLostRanks(ep)) >> rank & 1) != 0;
}
// Notes that the ranks are lost whose bits are set.
MSCCLPP_DEVICE_INLINE void epLose(const EpHandle& ep, uint32_t ranks) {
  detail::fetchOr<MemoryOrder::Relaxed, MemoryScope::Device>(epLostRanks(ep), ranks);
}

// Waits until `ready` returns true for what rank `from` sends. Returns false if the wait was given up: because the host aborts
// it, or for this rank's own blocks, because one of them has said so. Calls that survive the loss of a rank note it instead, and
// return true: when the host says that it is lost, or after EpHandle::patience. They do not look at the status of the
// connection, which is that of all as soon as one rank is lost. Not inlined: a kernel has many waits, and is slow if its code is
// long.
template <class Ready>
MSCCLPP_DEVICE_NOINLINE bool epWait(Ready ready, const EpHandle& ep, uint32_t from) {
  if (epIsLost(ep, from)) return true;
  uint32_t* const status = ep.status[from];
  const bool survives = ep.patience != 0 && status != nullptr;
  bool came = false;
  uint64_t began = 0;
  uint32_t polls = 0;
  const auto ends = [&] {
    came = ready();
    if (came || (status != nullptr && !survives)) return came;
    if (status == nullptr) return detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(ep.words + EpGaveUp) != 0;
    if (++polls % PollsBetweenLooks != 0) return false;
    if (began == 0) began = nanosecondsNow();
    const uint32_t said = detail::load<MemoryOrder::Relaxed, MemoryScope::System>(ep.problems + EpSaid);
    return (said >> from & 1) != 0 || (said & EpSaidAll) != 0 || nanosecondsNow() - began > ep.patience;
  };
  pollUntil<1>(ends, -1, survives ? nullptr : status);
  came = came || ready();
  if (came || !survives) return came;
  epLose(ep, 1u << from);
  detail::store<MemoryOrder::Relaxed, MemoryScope::System>(ep.problems + EpNewlyLost + from, 1u);
  return true;
}

// Counts a choice whose row has no memory. Not inlined: it is seldom called.
MSCCLPP_DEVICE_NOINLINE void epDrop(const EpHandle& ep) {
  detail::reduceAdd<MemoryOrder::Relaxed, MemoryScope::System>(ep.problems + EpDropped, 1u);
}

// Takes one packet from rank `from`: EpNoWord if it has not come and the rank is lost. Not inlined, as above.
struct EpTaken {
  uint64_t word;
  bool came;
};
MSCCLPP_DEVICE_NOINLINE EpTaken epTake(Ll16Packets packets, const uint8_t* at, const EpHandle& ep, uint32_t from) {
  Bytes16 packet = Ll16Packets::load(at);
#pragma unroll 1
  for (uint32_t looks = 1; !packets.isThere(packet) && looks < EpLooksBeforeWait; ++looks) {
    betweenPolls();
    packet = Ll16Packets::load(at);
  }
  bool came = true;
  if (!packets.isThere(packet)) {
    came = epWait(EpPacketIsThere{packets, at}, ep, from);
    packet = Ll16Packets::load(at);
    if (!packets.isThere(packet)) return EpTaken{EpNoWord, came};
  }
  return EpTaken{Ll16Packets::wordOf(packet), came};
}

// X2. Waits until rank r does not read any more what this rank sent to it, in thread r: then its word, of `words`, which are
// EpLine bytes apart, is at least `least`. Returns false if the wait was given up, or if the rows of this rank's last dispatch
// were not given back (X3): its calls before have ended, so these rows never will be.
// Not inlined: otherwise the loops of the kernels spill more registers.
MSCCLPP_DEVICE_NOINLINE bool epWaitUntilFree(const EpHandle& ep, const uint64_t* words, uint64_t least, uint32_t microBatch) {
  const uint32_t r = threadOfBlock();
  if (!EpWordIsThere{words + ep.rank * (EpLine / 8), least}()) {
    if (r == ep.rank) detail::store<MemoryOrder::Relaxed, MemoryScope::System>(ep.problems + EpInUse, microBatch + 1);
    return false;
  }
  return epWait(EpWordIsThere{words + r * (EpLine / 8), least}, ep, r);
}

// Adds to the words of `waits` how long the block waits from now on until the words of the ranks, EpLine bytes apart, are at
// least `least`. Each warp waits for one rank, so that none waits for two. Returns false, in one thread, if a wait was given up.
MSCCLPP_DEVICE_NOINLINE bool epAddWaits(const EpHandle& ep, const uint64_t* words, uint64_t least, uint64_t* waits) {
  const uint64_t began = nanosecondsNow();
  if (threadOfBlock() % 32 != 0) return true;
  for (uint32_t r = threadOfBlock() / 32; r < ep.ranks; r += threadsOfBlock() / 32) {
    if (!epWait(EpWordIsThere{words + r * (EpLine / 8), least}, ep, r)) return false;
    store8(waits + r, load8(waits + r) + nanosecondsNow() - began);
  }
  return true;
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_WAIT_DEVICE_HPP_
