// Calls of experts, as their kernels get them, and a block of such a call. ep_device.hpp has the rules that hold for all
// calls. For the library's own use.

#ifndef MSCCLPP_EP_CALL_DEVICE_HPP_
#define MSCCLPP_EP_CALL_DEVICE_HPP_

#include "mscclpp/message_words_device.hpp"
#include "mscclpp/reduce_device.hpp"

namespace mscclpp {

enum EpLimits : uint32_t {
  EpMaxRanks = 16,
  // The most tensors of which a row is made, and the same with what the library sends along.
  EpMaxParts = 4,
  EpMaxSegments = 5,
  EpMaxTopK = 64,
  // The vectors of 16 bytes that a thread has under way at once.
  EpVectorsAtOnce = 4,
  // The bytes of a row that a warp moves at once, and those of each term that it sums up at once.
  EpPartBytes = 32 * 16 * EpVectorsAtOnce,
  EpUnitBytes = 32 * 16,
  // The terms of a sum that a thread has under way at once.
  EpTermsAtOnce = 4,
  // The parts in which a combine of many tokens signals the rows that it has sent.
  EpPhases = 8,
  // The warps of a block.
  EpMaxWarps = 32,
  // The size of the line in which a word lies that another rank writes.
  EpLine = 128,
};

// The tokens that a block routes at once, and the words in which each of them has a bit; and how many tokens are many for a
// combine. Those of simulated devices are so few that tests have more.
#if defined(MSCCLPP_DEVICE_SIM)
enum EpTokens : uint32_t { EpTokensAtOnce = 4, EpMarkWords = 2, EpManyTokens = 6 };
#else
enum EpTokens : uint32_t { EpTokensAtOnce = 128, EpMarkWords = 4, EpManyTokens = 512 };
#endif

// How a rank gets the rows that others send to it.
enum EpLayout : uint32_t {
  EpLayoutRank = 0,    // [rank, capacity]: where they arrive
  EpLayoutToken = 1,   // one after the other, by rank, then by token
  EpLayoutExpert = 2,  // [local expert, ranks * capacity]
  EpLayoutFlat = 3,    // by local expert, each of which begins at a multiple of an alignment
};

// The quantisation of rows on their way.
enum EpQuantisation : uint32_t {
  EpAsItIs = 0,
  EpE4m3 = 1,      // e4m3, and a float for 128 numbers
  EpE4m3Ue8m0 = 2  // e4m3, and the exponent of a power of two for 128 numbers, in a byte
};

enum EpDirection : uint32_t { EpDispatching = 0, EpCombining = 1 };

// The halves of a call that a launch does: both, or one of two launches each.
enum EpHalves : uint32_t { EpSends = 1, EpReceives = 2, EpBoth = 3 };

// The lines of a micro-batch in the scratch: a line for each rank of each of these, for each direction.
enum EpLineKind : uint32_t {
  // The last epoch whose rows that rank has done with: see X2.
  EpFreed = 0,
  // For each of EpPhases, how many blocks of that rank have sent what they send in it: EpHandle::maxBlocks more in each call.
  EpArrived = 1,
  EpLineKinds = EpArrived + EpPhases,
};

// The words in device memory before the epochs.
enum EpWords : uint32_t {
  // Not 0 if a call has given up.
  EpGaveUp = 0,
  // For each micro-batch and direction, how many blocks have done with what came: EpHandle::maxBlocks more in each call.
  EpDone = 1,
  // A bit for each rank that is lost, if calls survive that; and how many choices were dropped for that.
  EpLost = 5,
  EpLostChoices = 6,
  EpFirstEpoch = 8,
};

// The words in which a kernel tells the host what was wrong with a call. Pinned host memory.
enum EpProblem : uint32_t {
  EpBadExpert = 0,  // 1 plus the number of the token of a choice that is no expert
  EpDropped = 1,    // 1 if rows were more than the memory for them
  EpRefused = 2,    // 1 plus the rank that had more tokens than the capacity
  EpOther = 3,      // 1 plus the rank that sent rows of other tensors than this rank
  EpNewlyLost = 4,  // bits of ranks, of which one was found to be lost
  EpSaid = 5,       // what the host says: bits of ranks that are lost, and EpSaidAll to end all waits
};

enum EpSaidBits : uint32_t { EpSaidAll = 1u << 31 };

// Flags of a source in the header of its rows.
enum EpHeaderFlags : uint32_t { EpHeaderRefused = 1 };

// The part of a communicator's experts that is the same for all calls. The segments of a row are its tensors, and behind them
// what the library sends along, as packets: the token's number, and for each choice the local expert (-1 elsewhere), the weight,
// and the place of the row among those of its source for that expert.
struct EpHandle {
  // The scratch of each rank, and the words through which waits for it are aborted (null for this rank).
  uint8_t* scratch[EpMaxRanks];
  uint32_t* status[EpMaxRanks];
  // EpWords; from EpFirstEpoch on the epoch of each block, for each micro-batch and direction; and behind them, for each
  // micro-batch and block, a word with an epoch, and how many of its tokens go to each expert and to each rank: see X4.
  uint64_t* words;
  // For each expert its rank, times 2^16, plus its number there.
  const uint32_t* experts;
  uint32_t* problems;
  uint32_t rank, ranks, maxBlocks, nExperts, topK, capacity;
  // The experts of this rank, and the most of any rank.
  uint32_t local, mostLocal;
  // The tensors of a row as it travels.
  uint32_t parts;
  uint32_t hidden, quantisation, sourceType;
  // The size of a row that combine sums, and from one to the next in the scratch.
  uint32_t resultBytes, resultStride;
  // 0, or for how many nanoseconds calls wait for a rank before they go on without it.
  uint64_t patience;
  // The size of each segment, and from one row to the next in the scratch (of the last one: in the tables).
  uint32_t segmentBytes[EpMaxSegments], segmentStride[EpMaxSegments];
  // Offsets in the part of the scratch that belongs to a micro-batch.
  uint64_t segments[EpMaxParts];
  uint64_t lines, headers, routes, results, choiceResults, weightPackets, microBatchBytes;
  // Offsets in the tables of a routing: see EpCounts.
  uint64_t tableOffsets, tableRows, tableChoices, tableWeights, tableReceived;
};

// The beginning of the tables of a routing. Behind it follow for each local expert the number of its rows, at tableOffsets
// where its rows begin (in the layout EpLayoutFlat), at tableRows for each own token and rank the number of its row there or
// -1, at tableChoices for each own token its experts, at tableWeights their weights, and at tableReceived for each row that
// may come the last segment of EpHandle, in which the places are those in the layout.
struct EpCounts {
  uint64_t epoch;
  uint32_t tokens, layout;
  uint32_t sent[EpMaxRanks], received[EpMaxRanks];
  // The tokens of each rank.
  uint32_t theirs[EpMaxRanks];
};

struct EpDispatch {
  // [tokens, topK], numbers of idBytes; [tokens, topK], or null for weights of 1.
  const uint8_t* ids;
  const float* weights;
  const uint8_t* rows[EpMaxParts];
  uint8_t* tables;
  // The memory of the layout.
  uint8_t* out[EpMaxParts];
  // For each row of the layout its local experts (numbers of idBytes, -1 elsewhere) and weights, [rows, topK], and its rank and
  // token, [rows, 2]; or null.
  uint8_t* outIds;
  uint8_t* outWeights;
  uint8_t* outSources;
  // For each local expert a number, to which the number of its rows is added; for each rank the nanoseconds that this rank has
  // waited for it, to which those of this call are added; or null.
  uint32_t* addedCounts;
  uint64_t* addedWaits;
  uint64_t outRows;
  // 0, or how many rows a column of the second tensor has, if its words of 4 bytes lie column by column.
  uint64_t columnRows;
  uint32_t tokens, idBytes, layout, alignment, microBatch;
  // Whether the tables are those of a routing that is used again; whether this rank has too many tokens, and sends none;
  // whether rows that nobody sent become zero.
  uint32_t again, refused, zero;
};

struct EpCombine {
  // The rows of the experts, in the layout of the routing.
  const uint8_t* rows;
  uint8_t* tables;
  // [tokens, topK], or null for those that were sent with the tokens.
  const float* weights;
  // Rows for each token, or null.
  const uint8_t* bias[2];
  uint8_t* out;
  // Weights of the rows, [rows of the layout, topK], of which each token's rank gets the sums, [tokens, topK]; or null. Only if
  // there is one row for a token, and no weights.
  const uint8_t* rowWeights;
  uint8_t* outWeights;
  // As in EpDispatch.
  uint64_t* addedWaits;
  // The number of rows of the layout for which there is memory.
  uint64_t outRows;
  uint32_t tokens, microBatch;
  // Whether every choice's row travels; whether there is one row for a token, which is summed without weights; and whether
  // all ranks give the weights here. Those of a rank without tokens may be null in any case.
  uint32_t exact, oneRow, late;
  // The layout of the routing.
  uint32_t layout;
};

#if defined(MSCCLPP_DEVICE_COMPILE)

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
MSCCLPP_DEVICE_INLINE EpPart loadPart(const uint8_t* message, uint32_t bytes, uint32_t part, uint32_t lane) {
  if (!isAligned<16>(message) || bytes % 16 != 0) return loadPartAny(message, bytes, part, lane);
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
  // It counts at 100 MHz.
  return __builtin_readsteadycounter() * 10;
#else
  return __nvvm_read_ptx_sreg_globaltimer();
#endif
}

// The word of a packet that has not come, because its rank is lost. No other packet has it.
constexpr uint64_t EpNoWord = ~uint64_t{0};

// Whether a rank is lost, and notes that ranks are, whose bits are set. Returns the bits of all that are.
MSCCLPP_DEVICE_INLINE uint32_t* epLostRanks(const EpHandle& ep) { return reinterpret_cast<uint32_t*>(ep.words + EpLost); }
MSCCLPP_DEVICE_INLINE bool epIsLost(const EpHandle& ep, uint32_t rank) {
  return ep.patience != 0 && (detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(epLostRanks(ep)) >> rank & 1) != 0;
}
MSCCLPP_DEVICE_INLINE uint32_t epLose(const EpHandle& ep, uint32_t ranks) {
  return detail::fetchOr<MemoryOrder::Relaxed, MemoryScope::Device>(epLostRanks(ep), ranks) | ranks;
}
// Waits until `ready` returns true for what rank `from` sends. Returns false if the wait was given up: because the host aborts
// it, or for this rank's own blocks, because one of them has said so. Calls that survive the loss of a rank note it instead, and
// return true: when the host says that it is lost, or after EpHandle::patience. They do not look at the status of the
// connection, which is that of all as soon as one rank is lost. Not inlined: a kernel has many waits, and is slow if its code is
// long.
template <class Ready>
MSCCLPP_DEVICE_NOINLINE bool epWait(Ready ready, const EpHandle& ep, uint32_t from) {
  uint32_t* const status = ep.status[from];
  bool came = epIsLost(ep, from);
  if (came) return true;
  const bool survives = ep.patience != 0 && status != nullptr;
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
  detail::store<MemoryOrder::Relaxed, MemoryScope::System>(ep.problems + EpNewlyLost, epLose(ep, 1u << from));
  return true;
}

// Takes one packet from rank `from`: EpNoWord if it has not come and the rank is lost. Not
// inlined, as above.
struct EpTaken {
  uint64_t word;
  bool came;
};
MSCCLPP_DEVICE_NOINLINE EpTaken epTake(Ll16Packets packets, const uint8_t* at, const EpHandle& ep, uint32_t from) {
  Bytes16 packet = Ll16Packets::load(at);
  bool came = packets.isThere(packet);
  if (!came) {
    came = epWait(EpPacketIsThere{packets, at}, ep, from);
    packet = Ll16Packets::load(at);
    if (!packets.isThere(packet)) return EpTaken{EpNoWord, came};
  }
  return EpTaken{Ll16Packets::wordOf(packet), came};
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

// The numbers of rows and of tokens of each rank, as its header says. In shared memory.
struct EpHeads {
  uint32_t rows[EpMaxRanks], tokens[EpMaxRanks];
};

// A block of a call of one micro-batch and direction. Made by all threads of each block of the launch, whose blocks and
// threads have one dimension, and whose threads are whole warps.
struct EpBlock {
  const EpHandle& ep;
  uint32_t microBatch, direction, block, blocks, thread, threads, lane;
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
        epoch(load8(epochs(direction) + block) + 1) {}

  // The warps of the block, and those of all blocks. Warps with successive numbers among all belong to different blocks.
  MSCCLPP_DEVICE_INLINE uint32_t warpOfBlock() const { return thread / 32; }
  MSCCLPP_DEVICE_INLINE uint32_t warpsOfBlock() const { return threads / 32; }
  MSCCLPP_DEVICE_INLINE uint32_t warp() const { return warpOfBlock() * blocks + block; }
  MSCCLPP_DEVICE_INLINE uint32_t warps() const { return warpsOfBlock() * blocks; }
  // The number of the thread among all, and of all.
  MSCCLPP_DEVICE_INLINE uint32_t threadOfAll() const { return block * threads + thread; }
  MSCCLPP_DEVICE_INLINE uint32_t threadsOfAll() const { return blocks * threads; }

  // X2. Waits until no peer reads any more what this rank sent to it in the call before, if the launch sends. Returns false if an
  // earlier call has given up, or this wait. All threads call it, and get the same.
  MSCCLPP_DEVICE_INLINE bool begin(uint32_t halves) const {
    bool failed = false;
    if (halves == EpReceives) {
      failed = hasGivenUp();
    } else if (thread < ep.ranks) {
      const EpWordIsThere isFree{line(ep.rank, thread, EpFreed, direction), epoch - 1};
      const bool free = isFree();
      failed = hasGivenUp() || (!free && !waitFor(thread, isFree));
    }
    return !blockAny(failed);
  }

  MSCCLPP_DEVICE_INLINE uint64_t* epochs(uint32_t of) const {
    return ep.words + EpFirstEpoch + (microBatch * 2 + of) * ep.maxBlocks;
  }
  // Returns the words of a block for X4: one with an epoch, and behind it numbers of 4 bytes for each expert and each rank.
  MSCCLPP_DEVICE_INLINE uint64_t* countsOf(uint32_t ofBlock) const {
    const uint64_t each = 1 + (ep.nExperts + ep.ranks + 1) / 2;
    return ep.words + EpFirstEpoch + 4 * ep.maxBlocks + (microBatch * ep.maxBlocks + ofBlock) * each;
  }

  // Returns a place in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint8_t* place(uint32_t at, uint64_t offset) const {
    return ep.scratch[at] + microBatch * ep.microBatchBytes + offset;
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
    const EpTaken taken = epTake(packets, at, ep, from);
    word = taken.word;
    return taken.came;
  }

  // X1. Tells every rank that this block, which is number `of` of the `all` that send, has sent what it sends in a phase. All
  // threads call it.
  MSCCLPP_DEVICE_INLINE void signal(uint32_t of, uint32_t all, uint32_t phase) const {
    blockSync();
    if (thread < ep.ranks) {
      detail::reduceAdd<MemoryOrder::Release, MemoryScope::System>(line(thread, ep.rank, EpArrived + phase, direction),
                                                                  share(of, all));
    }
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

  // Adds to the words of `waits` how long this rank waits from now on until the blocks of each rank have sent what they send in
  // a phase. Returns false if a wait was given up. All threads of one block call it.
  MSCCLPP_DEVICE_INLINE bool addWaits(uint64_t* waits, uint32_t phase) const {
    return !blockAny(!epAddWaits(ep, line(ep.rank, 0, EpArrived + phase, direction), epoch * ep.maxBlocks, waits));
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

  // Counts the call, if the launch does its last half, or says that it gave up. All threads call it last.
  MSCCLPP_DEVICE_INLINE void end(uint32_t halves, bool failed) const {
    const bool fails = blockAny(failed);
    if (fails && thread == 0) {
      detail::store<MemoryOrder::Relaxed, MemoryScope::Device>(ep.words + EpGaveUp, uint64_t{1});
    }
    if (halves == EpSends) return;
    if (thread == 0) store8(epochs(direction) + block, epoch);
    for (uint32_t i = blocks + threadOfAll(); i < ep.maxBlocks; i += threadsOfAll()) store8(epochs(direction) + i, epoch);
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

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_EP_CALL_DEVICE_HPP_
