// A block of a call of experts, and the parts of rows that its threads move. For the library's own use.

#ifndef MSCCLPP_EP_BLOCK_DEVICE_HPP_
#define MSCCLPP_EP_BLOCK_DEVICE_HPP_

#include "mscclpp/ep_wait_device.hpp"
#include "mscclpp/reduce_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

#if defined(MSCCLPP_DEVICE_HIP)
MSCCLPP_DEVICE_INLINE float fusedMultiplyAdd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MSCCLPP_DEVICE_INLINE uint32_t countBits(uint32_t word) { return static_cast<uint32_t>(__builtin_popcount(word)); }
#else
MSCCLPP_DEVICE_INLINE float fusedMultiplyAdd(float a, float b, float c) { return __fmaf_rn(a, b, c); }
MSCCLPP_DEVICE_INLINE uint32_t countBits(uint32_t word) { return static_cast<uint32_t>(__popc(static_cast<int>(word))); }
#endif

MSCCLPP_DEVICE_INLINE int32_t signedWord(const uint8_t* words, uint64_t i) {
  return static_cast<int32_t>(load4(words + i * 4));
}

// Loads and stores vector i of a row, whose last vector may be shorter. If `IsAligned`, the row is at a multiple of 16 bytes, and
// so is its end.
template <bool IsAligned>
MSCCLPP_DEVICE_INLINE Bytes16 loadVector(const uint8_t* row, uint32_t bytes, uint32_t i) {
  if constexpr (IsAligned) {
    return load16(row + i * 16ull);
  } else {
    return vectorOf(row, bytes, i);
  }
}
template <bool IsAligned>
MSCCLPP_DEVICE_INLINE void storeVector(uint8_t* row, uint32_t bytes, uint32_t i, Bytes16 vector) {
  if constexpr (IsAligned) {
    store16(row + i * 16ull, vector);
  } else {
    storeVectorOf(row, bytes, i, vector);
  }
}

// A thread's vectors of 16 bytes of a part of a message, 32 apart. A part has EpPartBytes, for the threads of a warp.
struct EpPart {
  Bytes16 of[EpVectorsAtOnce];
};

// Loads and stores a part of a message; behind its end it loads 0 and stores nothing. Not inlined: they are for what is no
// multiple of 16 bytes.
MSCCLPP_DEVICE_NOINLINE EpPart loadPartAny(const uint8_t* message, uint32_t bytes, uint32_t part, uint32_t lane) {
  EpPart any = {};
  uint32_t i = part * (EpPartBytes / 16) + lane;
#pragma unroll 1
  for (uint32_t u = 0; u < EpVectorsAtOnce && i * 16 < bytes; ++u, i += 32) any.of[u] = vectorOf(message, bytes, i);
  return any;
}
MSCCLPP_DEVICE_NOINLINE void storePartAny(uint8_t* message, uint32_t bytes, uint32_t part, uint32_t lane, const EpPart& any) {
  uint32_t i = part * (EpPartBytes / 16) + lane;
#pragma unroll 1
  for (uint32_t u = 0; u < EpVectorsAtOnce && i * 16 < bytes; ++u, i += 32) storeVectorOf(message, bytes, i, any.of[u]);
}
template <bool IsAligned = false>
MSCCLPP_DEVICE_INLINE EpPart loadPart(const uint8_t* message, uint32_t bytes, uint32_t part, uint32_t lane) {
  if constexpr (!IsAligned) {
    if (!isAligned<16>(message) || bytes % 16 != 0) return loadPartAny(message, bytes, part, lane);
  }
  EpPart loaded = {};
#pragma unroll
  for (uint32_t u = 0; u < EpVectorsAtOnce; ++u) {
    const uint32_t at = part * EpPartBytes + (u * 32 + lane) * 16;
    if (at < bytes) loaded.of[u] = load16(message + at);
  }
  return loaded;
}
MSCCLPP_DEVICE_INLINE void storePart(uint8_t* message, uint32_t bytes, uint32_t part, uint32_t lane, const EpPart& stored) {
  if (!isAligned<16>(message) || bytes % 16 != 0) {
    const EpPart any = stored;
    storePartAny(message, bytes, part, lane, any);
    return;
  }
#pragma unroll
  for (uint32_t u = 0; u < EpVectorsAtOnce; ++u) {
    const uint32_t at = part * EpPartBytes + (u * 32 + lane) * 16;
    if (at < bytes) store16(message + at, stored.of[u]);
  }
}
// Stores vector i of a row into its place in a scratch, which ends at a multiple of 16.
MSCCLPP_DEVICE_INLINE void putVector(uint8_t* place, uint32_t bytes, uint32_t i, Bytes16 vector) {
  if (i * 16 < bytes) store16(place + i * 16ull, vector);
}
MSCCLPP_DEVICE_INLINE void putPart(uint8_t* place, uint32_t bytes, uint32_t part, uint32_t lane, const EpPart& put) {
#pragma unroll
  for (uint32_t u = 0; u < EpVectorsAtOnce; ++u) putVector(place, bytes, part * (EpPartBytes / 16) + u * 32 + lane, put.of[u]);
}

// Returns the sum of the values of the threads up to this one. All threads of a warp call it.
MSCCLPP_DEVICE_INLINE uint32_t sumUpTo(uint32_t value, uint32_t lane) {
#pragma unroll
  for (uint32_t distance = 1; distance < 32; distance *= 2) {
    const uint32_t before = warpShuffle(value, (lane - distance) & 31);
    if (lane >= distance) value += before;
  }
  return value;
}

// Returns in how many parts a row goes, which has up to `most`, if `warps` warps share `rows` rows.
MSCCLPP_DEVICE_INLINE uint32_t subsOf(uint32_t rows, uint32_t warps, uint32_t most) {
  return rows == 0 || rows >= warps ? 1 : warps / rows < most ? warps / rows : most;
}

// The numbers of rows and of tokens of each rank, as its header says, and whether it sends rows of another payload. In shared
// memory.
struct EpHeads {
  uint32_t rows[EpMaxRanks], tokens[EpMaxRanks], areOther[EpMaxRanks];
  // X7. How many warps of a block of a combine have sent what they send in each phase.
  uint32_t sent[EpPhases];
};

// A block of a call of one micro-batch and direction. Made by all threads of each block of the launch, whose blocks and
// threads have one dimension, and whose threads are whole warps.
struct EpBlock {
  const EpHandle& ep;
  uint32_t microBatch, direction, block, blocks, thread, threads, lane;
  // The number of the block among those that do the same part of the call, and how many these are: all, but for `split`.
  uint32_t number, numbers;
  uint64_t epoch;

  MSCCLPP_DEVICE_INLINE EpBlock(const EpHandle& ep, uint32_t microBatch, uint32_t direction)
      : ep(ep),
        microBatch(microBatch),
        direction(direction),
        block(blockOfGrid()),
        blocks(blocksOfGrid()),
        thread(threadOfBlock()),
        threads(threadsOfBlock()),
        lane(thread % 32),
        number(block),
        numbers(blocks),
        epoch(load8(epochs(direction) + block) + 1) {}

  // Returns which of the EpHalves of a launch this block does. If the blocks are split, `senders` of them send while the others
  // receive, so each runs a part of the code, and the times that both take pass together.
  MSCCLPP_DEVICE_INLINE uint32_t split(bool areSplit, uint32_t halves, uint32_t senders) {
    if (!areSplit || halves != EpBoth || blocks == 1) return halves;
    if (senders == 0) senders = 1;
    const bool sends = block < senders;
    number = sends ? block : block - senders;
    numbers = sends ? senders : blocks - senders;
    return sends ? EpSends : EpReceives;
  }

  // The warps of the block, and those of all blocks that do the same. Warps with successive numbers among all belong to different
  // blocks.
  MSCCLPP_DEVICE_INLINE uint32_t warpOfBlock() const { return thread / 32; }
  MSCCLPP_DEVICE_INLINE uint32_t warpsOfBlock() const { return threads / 32; }
  MSCCLPP_DEVICE_INLINE uint32_t warp() const { return warpOfBlock() * numbers + number; }
  MSCCLPP_DEVICE_INLINE uint32_t warps() const { return warpsOfBlock() * numbers; }
  // The number of the thread among those of these blocks, and of all.
  MSCCLPP_DEVICE_INLINE uint32_t threadOfAll() const { return number * threads + thread; }
  MSCCLPP_DEVICE_INLINE uint32_t threadsOfAll() const { return numbers * threads; }
  MSCCLPP_DEVICE_INLINE bool isLastByNumber() const { return number + 1 == numbers; }

  // Begins a call. Returns false if an earlier call has given up, or a wait of this thread. All threads call it, and then meet in
  // `givesUp`.
  //
  // If the launch sends, it waits until no peer reads any more what this rank sent to it in the call before: X2. If rows
  // travel as packets, it waits for nobody, and tells the peers that this rank has begun: X6.
  template <bool ByPackets>
  MSCCLPP_DEVICE_INLINE bool begin(uint32_t halves) const {
    bool failed = false;
    if (ByPackets || halves == EpReceives) {
      failed = hasGivenUp();
      if (ByPackets && halves != EpReceives && block == 0 && thread < ep.ranks) {
        detail::store<MemoryOrder::Relaxed, MemoryScope::System>(line(thread, ep.rank, EpBegun, direction), epoch);
      }
    } else if (thread < ep.ranks) {
      const EpWordIsThere isFree{line(ep.rank, thread, EpFreed, direction), epoch - 1};
      // Nothing waits for this load before the one that acquires is on its way, too.
      failed = hasGivenUp();
      const bool free = isFree();
      failed = failed || (!free && !epWaitUntilFree(ep, line(ep.rank, 0, EpFreed, direction), epoch - 1, microBatch));
    }
    return !failed;
  }
  // Returns whether a wait was given up in any thread, and tells the rank's other waits, and later calls. All threads call it.
  MSCCLPP_DEVICE_INLINE bool givesUp(bool failed) const {
    const bool any = blockAny(failed);
    if (any && thread == 0) {
      detail::store<MemoryOrder::Relaxed, MemoryScope::Device>(ep.words + EpGaveUp, uint64_t{1});
    }
    return any;
  }
  // X6. Waits until all ranks have begun this call. One block calls it. Returns false, in one thread, if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool haveBegun() const {
    return thread >= ep.ranks || waitForWord(line(ep.rank, thread, EpBegun, direction), epoch, thread);
  }

  MSCCLPP_DEVICE_INLINE uint64_t* epochs(uint32_t of) const {
    return ep.words + EpFirstEpoch + (microBatch * 2 + of) * ep.maxBlocks;
  }
  // X7, X8. The counter of this call's parts, or of those of another epoch, which is one of the EpWords.
  MSCCLPP_DEVICE_INLINE uint64_t* counter(uint32_t word, uint64_t ofEpoch) const {
    return ep.words + word + microBatch * 2 + (ofEpoch & 1);
  }
  // Returns the next number of a counter. One thread of a warp calls it.
  MSCCLPP_DEVICE_INLINE uint32_t takeNumber(uint32_t word) const {
    return static_cast<uint32_t>(detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(counter(word, epoch), uint64_t{1}));
  }
  // Sets the counter of the next call to 0. One thread of the call does so.
  MSCCLPP_DEVICE_INLINE void clearNext(uint32_t word) const {
    detail::store<MemoryOrder::Relaxed, MemoryScope::Device>(counter(word, epoch + 1), uint64_t{0});
  }
  // Returns the words of a block for X4: one with an epoch, one that nobody uses, and behind them numbers of 4 bytes for each
  // expert and each rank, of which four are loaded at once.
  MSCCLPP_DEVICE_INLINE uint64_t* countsOf(uint32_t ofBlock) const {
    const uint64_t each = 2 + (ep.nExperts + ep.ranks + 3) / 4 * 2;
    return ep.words + EpFirstEpoch + 4 * ep.maxBlocks + (microBatch * ep.maxBlocks + ofBlock) * each;
  }

  // Returns a place in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint8_t* place(uint32_t at, uint64_t offset) const {
    return ep.scratch[at] + microBatch * ep.microBatchBytes + offset;
  }
  // The same of what is there twice if rows travel as packets: EpHandle::otherBytes.
  MSCCLPP_DEVICE_INLINE uint8_t* placeOfCall(uint32_t at, uint64_t offset) const {
    return place(at, offset) + (epoch & 1) * ep.otherBytes;
  }
  // Returns the word of rank `of` in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint64_t* line(uint32_t at, uint32_t of, uint32_t kind, uint32_t ofDirection) const {
    return reinterpret_cast<uint64_t*>(place(at, ep.lines + ((ofDirection * EpLineKinds + kind) * EpMaxRanks + of) * EpLine));
  }

  // The part of EpHandle::maxBlocks for which block `of` of `all` counts: those of all are as many.
  MSCCLPP_DEVICE_INLINE uint64_t share(uint32_t of, uint32_t all) const { return of + 1 < all ? 1 : ep.maxBlocks - (all - 1); }

  // Waits until `ready` returns true for what rank `from` sends, as epWait does.
  template <class Ready>
  MSCCLPP_DEVICE_INLINE bool waitFor(uint32_t from, Ready ready) const {
    return ready() || epWait(ready, ep, from);
  }
  MSCCLPP_DEVICE_INLINE bool hasGivenUp() const {
    return detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(ep.words + EpGaveUp) != 0;
  }
  MSCCLPP_DEVICE_INLINE bool waitForWord(const uint64_t* word, uint64_t least, uint32_t from) const {
    return waitFor(from, EpWordIsThere{word, least});
  }
  // Takes the packet at `at`, from rank `from`.
  MSCCLPP_DEVICE_INLINE bool take(const Ll16Packets& packets, const uint8_t* at, uint64_t& word, uint32_t from) const {
    const Bytes16 packet = Ll16Packets::load(at);
    word = Ll16Packets::wordOf(packet);
    if (packets.isThere(packet)) return true;
    const EpTaken taken = epTake(packets, at, ep, from);
    word = taken.word;
    return taken.came;
  }

  // X1. Tells every rank that this block, which is number `of` of the `all` that send, has sent what it sends in a phase. All
  // threads call it.
  MSCCLPP_DEVICE_INLINE void signal(uint32_t of, uint32_t all, uint32_t phase) const {
    blockSync();
    tellArrived(thread, of, all, phase);
  }
  // The same for what the calling threads know to be sent. Thread r tells rank r.
  MSCCLPP_DEVICE_INLINE void tellArrived(uint32_t r, uint32_t of, uint32_t all, uint32_t phase) const {
    if (r >= ep.ranks) return;
    detail::reduceAdd<MemoryOrder::Release, MemoryScope::System>(line(r, ep.rank, EpArrived + phase, direction), share(of, all));
  }
  // Counts the block, number `of` of `all`, for the phases from `phase` to `end` - 1, in which it sends nothing.
  MSCCLPP_DEVICE_INLINE void skip(uint32_t of, uint32_t all, uint32_t phase, uint32_t end) const {
    for (uint32_t i = thread; i < (end - phase) * ep.ranks; i += threads) {
      uint64_t* const word = line(i % ep.ranks, ep.rank, EpArrived + phase + i / ep.ranks, direction);
      detail::reduceAdd<MemoryOrder::Relaxed, MemoryScope::System>(word, share(of, all));
    }
  }
  // Waits until all blocks of rank `of` have sent what they send in a phase of this call. The caller lets other threads know by
  // a barrier.
  MSCCLPP_DEVICE_INLINE bool hasArrived(uint32_t of, uint32_t phase) const {
    return waitForWord(line(ep.rank, of, EpArrived + phase, direction), epoch * ep.maxBlocks, of);
  }

  // Adds to the words of `waits` how long this rank waits from now on until the blocks of each rank have sent what they send
  // in a phase; if rows travel as packets, until it has begun the call. Returns false if a wait was given up. All threads of
  // one block call it.
  template <bool ByPackets>
  MSCCLPP_DEVICE_INLINE bool addWaits(uint64_t* waits, uint32_t phase) const {
    const uint64_t* const words = line(ep.rank, 0, ByPackets ? EpBegun : EpArrived + phase, direction);
    return !blockAny(!epAddWaits(ep, words, ByPackets ? epoch : epoch * ep.maxBlocks, waits));
  }

  // Returns whether all other blocks of the call are here, too, with all their accesses to what came. All threads call it.
  MSCCLPP_DEVICE_INLINE bool isLast() const {
    blockSync();
    bool last = false;
    if (thread == 0) {
      uint64_t* const done = ep.words + EpDone + microBatch * 2 + direction;
      const uint64_t own = share(block, blocks);
      const uint64_t before = detail::fetchAdd<MemoryOrder::AcquireRelease, MemoryScope::Device>(done, own);
      last = before + own == epoch * ep.maxBlocks;
    }
    return blockAny(last);
  }
  // Counts the block for `isLast`, in a call that needs no last block. All threads may call it.
  MSCCLPP_DEVICE_INLINE void countForLast() const {
    if (thread != 0) return;
    uint64_t* const done = ep.words + EpDone + microBatch * 2 + direction;
    detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(done, share(block, blocks));
  }
  // Tells every rank that this one has done with what came in call `ofEpoch`. All threads call it, of one block.
  MSCCLPP_DEVICE_INLINE void free(uint32_t ofDirection, uint64_t ofEpoch) const {
    if (thread < ep.ranks) {
      detail::store<MemoryOrder::Release, MemoryScope::System>(line(thread, ep.rank, EpFreed, ofDirection), ofEpoch);
    }
  }

  // X3. Frees the rows of a dispatch in the layout EpLayoutRank, if no other has begun since. All threads of one block call it.
  MSCCLPP_DEVICE_INLINE void freeDispatch(const uint8_t* tables) const {
    const EpCounts* const counts = reinterpret_cast<const EpCounts*>(tables);
    const uint64_t ofTables = load8(&counts->epoch);
    if (load4(&counts->layout) == EpLayoutRank && ofTables == load8(epochs(EpDispatching))) free(EpDispatching, ofTables);
  }
  // Says so if the rows of a dispatch in the layout EpLayoutRank were freed, or if another dispatch has come since. One thread.
  MSCCLPP_DEVICE_INLINE void checkReceived(const uint8_t* tables) const {
    const uint64_t ofTables = load8(&reinterpret_cast<const EpCounts*>(tables)->epoch);
    // This rank frees its own rows in its own scratch, too. Rows that are made of packets are not freed.
    const uint64_t* const freed = line(ep.rank, ep.rank, EpFreed, EpDispatching);
    const bool areFreed = ep.otherBytes == 0 && detail::load<MemoryOrder::Relaxed, MemoryScope::System>(freed) >= ofTables;
    if (areFreed || ofTables != load8(epochs(EpDispatching))) report(EpRowsGone, microBatch + 1);
  }

  // Counts the call, if the launch does its last half, or says that it gave up. All threads call it last.
  MSCCLPP_DEVICE_INLINE void end(uint32_t halves, bool failed) const {
    givesUp(failed);
    if (halves == EpSends) return;
    if (thread == 0) store8(epochs(direction) + block, epoch);
    for (uint32_t i = blocks + block * threads + thread; i < ep.maxBlocks; i += blocks * threads) {
      store8(epochs(direction) + i, epoch);
    }
  }

  MSCCLPP_DEVICE_INLINE void report(EpProblem problem, uint32_t what) const {
    detail::store<MemoryOrder::Relaxed, MemoryScope::System>(ep.problems + problem, what);
  }
};

// Whether something is wrong in any thread of the warp. The words that a warp's threads stored before are visible to all of
// them behind it. All 32 call it.
MSCCLPP_DEVICE_INLINE bool warpFailed(bool failed) {
  const bool any = warpAny(failed);
  warpSync();
  return any;
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_BLOCK_DEVICE_HPP_
