// Collectives by kernels of yours, in place of the library's: see `Algorithm` in mscclpp-collectives. Such a kernel has
// its own parameters first, and then two that the library adds, and calls `ownCollective` once, by all threads:
//
//   extern "C" __global__ void __launch_bounds__(1024)
//       mine(const MSCCLPP_GRID_CONSTANT mscclpp::CollectiveHandle comm,
//            const MSCCLPP_GRID_CONSTANT mscclpp::CollectiveCall call) {
//     mscclpp::ownCollective(comm, call, [&](const mscclpp::OwnCall& own) { ... return true; });
//   }
//
// It keeps the rules of collective_device.hpp if it writes to no memory of the peers but `own.scratch(peer)`, and, in a
// call that is not `oneWay`, waits for a signal of every peer. In a call that is `oneWay`, it need not wait for any.

#ifndef MSCCLPP_COLLECTIVE_OWN_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_OWN_DEVICE_HPP_

#include "mscclpp/collective_simple_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {

// A call, for a block of the kernel.
class OwnCall {
 public:
  MSCCLPP_DEVICE_INLINE explicit OwnCall(const detail::CollectiveBlock& b) : b_(b), chunks_(b) {}

  MSCCLPP_DEVICE_INLINE uint32_t rank() const { return b_.rank; }
  MSCCLPP_DEVICE_INLINE uint32_t ranks() const { return b_.ranks; }
  MSCCLPP_DEVICE_INLINE const CollectiveCall& call() const { return b_.call; }
  // The number of the calling thread among those of all blocks, and the number of these threads.
  MSCCLPP_DEVICE_INLINE uint64_t thread() const { return b_.threadOfCall(); }
  MSCCLPP_DEVICE_INLINE uint64_t threads() const { return b_.threadsOfCall(); }
  // The data that this rank sends to rank r and takes from it. This rank's own segment has the place of the result.
  MSCCLPP_DEVICE_INLINE const CollectiveSegment& segment(uint32_t r) const { return b_.call.segments[r]; }

  // Memory at rank r for this call, at a multiple of 16: peers may write to it from the beginning of the call, and rank
  // r reads it until the end. Its contents before the call have no meaning.
  MSCCLPP_DEVICE_INLINE uint8_t* scratch(uint32_t r) const {
    return b_.comm.scratch[r] + b_.comm.chunks + b_.half(b_.comm.chunkBytes);
  }
  MSCCLPP_DEVICE_INLINE uint64_t scratchBytes() const { return b_.comm.chunkBytes; }

  // Signals the block of the same number on every peer, which sees what the threads of this block have stored before,
  // after its wait. Signals of a call are numbered from 0 on, up to 2^24, and given in that order. All threads of a
  // block call it.
  MSCCLPP_DEVICE_INLINE void signalAll(uint64_t number) const {
    chunks_.signalAll(detail::Chunks::First, number, [](uint32_t) { return true; });
  }
  // Waits for that signal of every peer. Returns whether they came; if not, the kernel returns false, too. All threads of a
  // block call it.
  MSCCLPP_DEVICE_INLINE bool waitForAll(uint64_t number) const {
    return chunks_.waitForAll(detail::Chunks::First, number, [](uint32_t) { return true; });
  }

  // Word i of 8 bytes of a message of so many bytes, at any address; the last may be less than whole.
  MSCCLPP_DEVICE_INLINE static uint64_t word(const uint8_t* message, uint64_t bytes, uint64_t i) {
    return detail::messageWord(message, bytes, i);
  }
  MSCCLPP_DEVICE_INLINE static void storeWord(uint8_t* message, uint64_t bytes, uint64_t i, uint64_t word) {
    detail::storeMessageWord(message, bytes, i, word);
  }
  // Returns a word of this rank's numbers as it is sent: multiplied, if the call says so.
  MSCCLPP_DEVICE_INLINE uint64_t sent(uint64_t word) const { return detail::ReduceAnyWords::sent(b_.call, word); }
  // Reduces the words of all ranks, in their order, as the call says. The bits are those of the library's own kernels.
  MSCCLPP_DEVICE_INLINE uint64_t reduced(const uint64_t* words) const {
    return detail::reduceAny(words, b_.ranks, b_.call.type, b_.call.op);
  }

 private:
  const detail::CollectiveBlock& b_;
  const detail::Chunks chunks_;
};

// Does a call by `body(own)`, which all threads of all blocks call, and which returns whether all waits succeeded, with
// the same result in all threads of a block.
template <class Body>
MSCCLPP_DEVICE_INLINE void ownCollective(const CollectiveHandle& comm, const CollectiveCall& call, Body body) {
  detail::CollectiveBlock b(comm, call, false);
  if (!b.begin()) return;
  b.countOthers();
  b.end(!body(OwnCall(b)));
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_OWN_DEVICE_HPP_
