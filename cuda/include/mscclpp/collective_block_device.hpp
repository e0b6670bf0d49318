// A block of a call's kernel: how it begins, counts the call, and ends. collective_device.hpp has the rules. For the
// library's own use.

#ifndef MSCCLPP_COLLECTIVE_BLOCK_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_BLOCK_DEVICE_HPP_

#include "mscclpp/collective_call_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Waits, with acquire, until a word that a peer writes is at least `least`, and returns whether it is. Not inlined,
// because it is much code.
MSCCLPP_DEVICE_NOINLINE bool waitForWord(const uint64_t* word, uint64_t least, uint32_t* status) {
  const auto came = [=] { return detail::load<MemoryOrder::Acquire, MemoryScope::System>(word) >= least; };
  return came() || pollUntil<4>(came, -1, status);
}

// The number of ranks whose messages a thread has under way at once.
constexpr uint32_t RanksAtOnce = 4;

// Returns the word of a slot after a call.
MSCCLPP_DEVICE_INLINE uint64_t slotAfter(const CollectiveCall& call, uint64_t epoch) {
  return epoch << 1 | (call.oneWay ? 1 : 0);
}

// Stores a word in the slots that a call does not have, two at a time. All threads of the call call it.
MSCCLPP_DEVICE_INLINE void countOtherSlots(const CollectiveHandle& comm, uint64_t word, uint32_t block, uint32_t blocks,
                                           uint32_t thread, uint32_t threads) {
  if (block == 0 && thread == 0 && blocks < comm.maxBlocks) {
    if (blocks % 2 != 0) store8(comm.epochs + blocks, word);
    if (comm.maxBlocks % 2 != 0) store8(comm.epochs + comm.maxBlocks - 1, word);
  }
  const uint64_t first = (static_cast<uint64_t>(blocks) + 1) / 2, end = comm.maxBlocks / 2;
  const uint64_t here = static_cast<uint64_t>(block) * threads + thread, stride = static_cast<uint64_t>(blocks) * threads;
  for (uint64_t i = first + here; i < end; i += stride) {
    store16(comm.epochs + i * 2, Bytes16{word, word});
  }
}

// Reads a word that says that a launch gave up: see CollectiveWords. Blocks of one launch may read while another one
// writes it. Launches of a stream see the words of the launches before, by the end of a kernel.
MSCCLPP_DEVICE_INLINE uint64_t hasGivenUp(const uint64_t* epochs, CollectiveWords which) {
  return detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(epochs + which);
}
MSCCLPP_DEVICE_INLINE void setGivenUp(uint64_t* epochs, CollectiveWords which, uint64_t value) {
  detail::store<MemoryOrder::Relaxed, MemoryScope::Device>(epochs + which, value);
}

// Whether any launch gave up, within this node or between nodes. All threads of a block call it.
MSCCLPP_DEVICE_INLINE bool anyGaveUp(const uint64_t* epochs) {
  const auto is = [&] { return (hasGivenUp(epochs, CollectiveGaveUp) | hasGivenUp(epochs, CollectiveGaveUpAcross)) != 0; };
  return blockAny(threadOfBlock() == 0 && is());
}

// The steps that only few calls need at their beginning.
struct CollectiveStart {
  const CollectiveHandle& comm;
  const CollectiveCall& call;
  uint64_t epoch;
  bool afterOneWay;

  // Follows rules E2 and E3, by all threads of the block. Returns whether to go on.
  MSCCLPP_DEVICE_INLINE bool begin() const {
    const uint32_t thread = threadOfBlock();
    // A launch in another stream may set the word at the same time.
    if (comm.amongNodes && blockAny(thread == 0 && hasGivenUp(comm.epochs, CollectiveGaveUpAcross))) return false;
    const bool isPeer = thread < comm.ranks && thread != comm.rank;
    if (call.oneWay && isFirstBlock() && isPeer) {
      uint64_t* const word =
          reinterpret_cast<uint64_t*>(comm.scratch[thread] + comm.begun + comm.rank * CollectiveLine);
      // The reads of all earlier calls are complete: see E1.
      detail::store<MemoryOrder::Relaxed, MemoryScope::System>(word, epoch);
    }
    if (call.checked && isFirstBlock() && !(isAlone() && isSameCall())) return false;
    if (!afterOneWay) return true;
    bool failed = false;
    if (isPeer) {
      const uint64_t* const word =
          reinterpret_cast<const uint64_t*>(comm.scratch[comm.rank] + comm.begun + thread * CollectiveLine);
      failed = !waitForWord(word, epoch - 1, comm.status[thread]);
    }
    return !blockAny(failed);
  }

  // Marks the communicator as one whose call runs, and reports an error if it was marked: calls of one stream follow
  // each other, but graphs that are replayed on two streams need not. `CollectiveBlock::end` removes the mark, by the
  // block that has set it. So a report is always true, but not every overlap is found: another block may still run.
  MSCCLPP_DEVICE_INLINE bool isAlone() const {
    bool failed = false;
    if (threadOfBlock() == 0) {
      uint64_t* const runs = comm.epochs + CollectiveRuns;
      failed = detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(runs, uint64_t{1}) != 0;
      if (failed) giveUp(comm, CollectiveOverlap);
    }
    return !blockAny(failed);
  }

  // Sends this rank's call to every rank, and compares it with theirs. If one differs, reports that and aborts all
  // waits of this rank. Words of call e are written again in e + 2, which a peer begins when this rank has ended e.
  MSCCLPP_DEVICE_INLINE bool isSameCall() const {
    const uint32_t thread = threadOfBlock();
    bool failed = false;
    if (thread < comm.ranks) {
      const auto line = [&](uint32_t at, uint32_t of) {
        const uint64_t index = 2 * of + (epoch & 1);
        return reinterpret_cast<uint64_t*>(comm.scratch[at] + comm.checks + index * CollectiveLine);
      };
      // The rank also writes to its own memory, where the host finds the words.
      uint64_t* const ours = line(thread, comm.rank);
      store8(ours, call.signature[0]);
      store8(ours + 1, call.signature[1]);
      detail::store<MemoryOrder::Release, MemoryScope::System>(ours + 2, epoch);
      if (thread != comm.rank) {
        const uint64_t* const theirs = line(comm.rank, thread);
        failed = !waitForWord(theirs + 2, epoch, comm.status[thread]);
        if (!failed && (load8(theirs) != call.signature[0] || load8(theirs + 1) != call.signature[1])) {
          failed = true;
          giveUp(comm, (thread + 1) | static_cast<uint32_t>(epoch & 1) << 16);
        }
      }
    }
    return !blockAny(failed);
  }

  // Reports the error (see CollectiveHandle::mismatch), and ends all waits of this rank.
  MSCCLPP_DEVICE_INLINE static void giveUp(const CollectiveHandle& comm, uint32_t what) {
    detail::store<MemoryOrder::Release, MemoryScope::System>(comm.mismatch, what);
    for (uint32_t r = 0; r < comm.ranks; ++r) {
      if (r != comm.rank) {
        uint32_t* const abort = comm.status[r] + StatusAbortRequested;
        detail::store<MemoryOrder::Relaxed, MemoryScope::System>(abort, 1u);
      }
    }
  }
};
// Not inlined: it is much code, and most calls need none of it.
//
// A block that does not go on still counts the call, as the others do, so that the next call has a later number.
MSCCLPP_DEVICE_NOINLINE bool beginSpecially(const CollectiveHandle& comm, const CollectiveCall& call, uint64_t epoch,
                                            bool afterOneWay) {
  if (CollectiveStart{comm, call, epoch, afterOneWay}.begin()) return true;
  const uint32_t block = blockOfGrid(), thread = threadOfBlock();
  const uint64_t word = slotAfter(call, epoch);
  countOtherSlots(comm, word, block, blocksOfGrid(), thread, threadsOfBlock());
  if (thread == 0) {
    setGivenUp(comm.epochs, CollectiveGaveUp, epoch << 1 | 1);
    store8(comm.epochs + block, word);
  }
  return false;
}

// The position of a block in its communicator and in its call. Made by all threads of each block of the launch, whose
// blocks and threads have one dimension.
struct CollectiveBlock {
  const CollectiveHandle& comm;
  const CollectiveCall& call;
  // The words of the block's slot and CollectiveGaveUp, and the call's number once it has begun.
  uint64_t slotBefore, gaveUp, epoch;
  uint32_t rank, ranks, block, blocks, thread, threads;

  // `ofTwo`: whether the kernel knows that there are two ranks.
  MSCCLPP_DEVICE_INLINE CollectiveBlock(const CollectiveHandle& comm, const CollectiveCall& call, bool ofTwo)
      : comm(comm),
        call(call),
        slotBefore(0),
        gaveUp(0),
        epoch(0),
        rank(comm.rank),
        ranks(ofTwo ? 2 : comm.ranks),
        block(blockOfGrid()),
        blocks(blocksOfGrid()),
        thread(threadOfBlock()),
        threads(threadsOfBlock()) {
    // `thread >> 16` is 0, which the compiler does not know. With an address that is the same for the whole warp, it
    // would load the word into a uniform register, and wait for it before anything else is read.
    const uint64_t* const epochs = comm.epochs + (thread >> 16);
    slotBefore = load8(epochs + block);
    // A plain load: with another one, all warps of the launch would ask the L2 cache for the same word. The words of
    // earlier launches are visible. A block of this launch may write the word at the same time; these are 8 aligned
    // bytes, so the load finds the old or the new value, and `begin` goes on with either.
    gaveUp = load8(epochs + CollectiveGaveUp);
  }

  // All threads call it, before anything is sent. Returns whether to go on.
  MSCCLPP_DEVICE_INLINE bool begin() {
    epoch = (slotBefore >> 1) + 1;
    // An earlier launch gave up. This launch's own word does not count, since only some blocks may see it: 0 wraps
    // around, and the word of this launch is more than its slots had before.
    if (gaveUp - 1 <= slotBefore) return false;
    const bool afterOneWay = (slotBefore & 1) != 0, isUsual = !(afterOneWay || call.oneWay || call.checked || comm.amongNodes);
    return isUsual || beginSpecially(comm, call, epoch, afterOneWay);
  }

  MSCCLPP_DEVICE_INLINE uint64_t slotAfter() const { return detail::slotAfter(call, epoch); }

  // Counts the call in the slots that it does not have. All threads of the call call it once, at any time.
  MSCCLPP_DEVICE_INLINE void countOthers() const { countOtherSlots(comm, slotAfter(), block, blocks, thread, threads); }

  // Counts the call in this block's slot, and reports it if a thread has given up. All threads call it last.
  MSCCLPP_DEVICE_INLINE void end(bool failed) const {
    const bool fails = blockAny(failed);
    if (thread != 0) return;
    if (fails) {
      setGivenUp(comm.epochs, CollectiveGaveUp, epoch << 1 | 1);
    } else if (call.checked && block == 0) {
      // This removes the mark of CollectiveStart::isAlone.
      detail::store<MemoryOrder::Relaxed, MemoryScope::Device>(comm.epochs + CollectiveRuns, uint64_t{0});
    }
    store8(comm.epochs + block, slotAfter());
  }

  // Returns the word that results from the words of this rank and the only other one. `MayAverage`: see SumWords::ofTwo.
  template <class Words, bool MayAverage = true>
  MSCCLPP_DEVICE_INLINE uint64_t reduceTwo(uint64_t mine, uint64_t theirs) const {
    return rank == 0 ? Words::template ofTwo<MayAverage>(call, mine, theirs) : Words::template ofTwo<MayAverage>(call, theirs, mine);
  }

  // The number of the calling thread among those of all blocks, and the number of these threads.
  MSCCLPP_DEVICE_INLINE uint64_t threadOfCall() const { return static_cast<uint64_t>(block) * threads + thread; }
  MSCCLPP_DEVICE_INLINE uint64_t threadsOfCall() const { return static_cast<uint64_t>(blocks) * threads; }

  // The n-th peer, n from 1 on: each rank begins with a different peer, so that they do not all write to one.
  MSCCLPP_DEVICE_INLINE uint32_t peer(uint32_t n) const {
    if (ranks == 2) return 1 - rank;
    const uint32_t p = rank + n;
    return p < ranks ? p : p - ranks;
  }

  // The place of rank `from` among the ranks whose messages come to rank `to`.
  MSCCLPP_DEVICE_INLINE uint64_t slotOf(uint32_t from, uint32_t to) const {
    return ranks == 2 ? 0 : from < to ? from : from - 1;
  }

  // The beginning of the half of the scratch that this call uses, if a half has so many bytes.
  MSCCLPP_DEVICE_INLINE uint64_t half(uint64_t bytes) const { return epoch & 1 ? bytes : 0; }

  // Copies the own segment. All threads of the call call it.
  MSCCLPP_DEVICE_INLINE void copyOwn() const {
    const CollectiveSegment own = call.segments[rank];
    const uint64_t bytes = own.recvBytes;
    if (own.send == own.recv) return;
    uint64_t i = threadOfCall();
    if (isAligned<16>(own.send) && isAligned<16>(own.recv)) {
      for (; (i + 1) * 16 <= bytes; i += threadsOfCall()) store16(own.recv + i * 16, load16(own.send + i * 16));
      i = bytes / 16 * 2 + threadOfCall();
    }
    for (; i * 8 < bytes; i += threadsOfCall()) {
      storeMessageWord(own.recv, bytes, i, messageWord(own.send, bytes, i));
    }
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_BLOCK_DEVICE_HPP_
