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
  // The choices that a block routes at once.
  EpChoicesAtOnce = 1024,
  // The most tokens and ranks of those: EpChoicesAtOnce rows.
  EpTokensAtOnce = 64,
  // The warps of a block.
  EpMaxWarps = 16,
  // The size of the line in which a word lies that another rank writes.
  EpLine = 128,
};

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

// The lines of a micro-batch in the scratch: a line for each rank of each of these, for each direction.
enum EpLineKind : uint32_t {
  // How many blocks of that rank have sent what they send: EpHandle::maxBlocks more in each call.
  EpArrived = 0,
  // The last epoch whose rows that rank has done with: see X2.
  EpFreed = 1,
};

// The words in device memory before the epochs.
enum EpWords : uint32_t {
  // Not 0 if a call has given up.
  EpGaveUp = 0,
  // For each micro-batch and direction, how many blocks have done with what came: EpHandle::maxBlocks more in each call.
  EpDone = 1,
  EpFirstEpoch = 8,
};

// The words in which a kernel tells the host what was wrong with a call. Pinned host memory.
enum EpProblem : uint32_t {
  EpBadExpert = 0,  // 1 plus the number of the token of a choice that is no expert
  EpDropped = 1,    // 1 if rows were more than the memory for them
  EpRefused = 2,    // 1 plus the rank that had more tokens than the capacity
};

// Flags of a source in the header of its rows.
enum EpHeaderFlags : uint32_t { EpHeaderPacked = 1, EpHeaderRefused = 2 };

// The part of a communicator's experts that is the same for all calls. The segments of a row are its parts, and behind them
// what the library sends along: the token's number, and for each choice the local expert (-1 elsewhere), the weight, and the
// place of the row among those of its source for that expert.
struct EpHandle {
  // The scratch of each rank, and the words through which waits for it are aborted (null for this rank).
  uint8_t* scratch[EpMaxRanks];
  uint32_t* status[EpMaxRanks];
  // EpWords, and from EpFirstEpoch on the epoch of each block, for each micro-batch and direction.
  uint64_t* words;
  // For each expert its rank, times 2^16, plus its number there.
  const uint32_t* experts;
  uint32_t* problems;
  uint32_t rank, ranks, maxBlocks, microBatches, nExperts, topK, capacity;
  // The experts of this rank, and the most of any rank.
  uint32_t local, mostLocal;
  // The most tokens of a rank whose rows travel as packets.
  uint32_t packetTokens;
  // The tensors of a row as it travels.
  uint32_t parts;
  uint32_t hidden, quantisation, sourceType;
  // The size of a row that combine sums, and from one to the next in the scratch.
  uint32_t resultBytes, resultStride;
  // The size of each segment, from one row to the next in the scratch, and its first word among the packets of a row.
  uint32_t segmentBytes[EpMaxSegments], segmentStride[EpMaxSegments], segmentWord[EpMaxSegments];
  uint32_t rowWords;
  // Offsets in the part of the scratch that belongs to a micro-batch.
  uint64_t segments[EpMaxSegments];
  uint64_t lines, headers, packets, results, choiceResults, resultPackets, weightPackets, microBatchBytes;
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
  uint64_t outRows;
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
  // A row for each token, or null.
  const uint8_t* bias;
  uint8_t* out;
  uint32_t tokens, microBatch;
  // Whether every choice's row travels; whether there is one row for a token, which is summed without weights.
  uint32_t exact, oneRow;
};

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

#if defined(MSCCLPP_DEVICE_HIP)
MSCCLPP_DEVICE_INLINE float fusedMultiplyAdd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
MSCCLPP_DEVICE_INLINE float fusedMultiplyAdd(float a, float b, float c) { return __fmaf_rn(a, b, c); }
#endif

MSCCLPP_DEVICE_INLINE int32_t signedWord(const uint8_t* words, uint64_t i) {
  return static_cast<int32_t>(load4(words + i * 4));
}

// A block of a call of one micro-batch and direction. Made by all threads of each block of the launch, whose blocks and
// threads have one dimension, and whose threads are whole warps.
struct EpBlock {
  const EpHandle& ep;
  uint32_t microBatch, direction, block, blocks, thread, threads, lane, warp, warps;
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
        // The number of the warp and of all warps of the call.
        warp(block * (threads / 32) + thread / 32),
        warps(blocks * (threads / 32)),
        epoch(load8(epochs(direction) + block) + 1) {}

  // Returns whether no earlier call has given up. All threads call it.
  MSCCLPP_DEVICE_INLINE bool begin() const {
    return !blockAny(thread == 0 && hasGivenUp());
  }

  MSCCLPP_DEVICE_INLINE uint64_t* epochs(uint32_t of) const {
    return ep.words + EpFirstEpoch + (microBatch * 2 + of) * static_cast<uint64_t>(ep.maxBlocks);
  }

  // Returns a place in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint8_t* place(uint32_t at, uint64_t offset) const {
    return ep.scratch[at] + microBatch * ep.microBatchBytes + offset;
  }
  // Returns the word of rank `of` in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint64_t* line(uint32_t at, uint32_t of, EpLineKind kind, uint32_t ofDirection) const {
    return reinterpret_cast<uint64_t*>(place(at, ep.lines + ((ofDirection * 2 + kind) * EpMaxRanks + of) * EpLine));
  }

  // The part of EpHandle::maxBlocks for which this block counts: those of all blocks are as many.
  MSCCLPP_DEVICE_INLINE uint64_t share() const {
    const uint64_t all = ep.maxBlocks;
    return all * (block + 1) / blocks - all * block / blocks;
  }

  // Waits until `ready` returns true for what rank `from` sends. This rank's own blocks cannot be aborted one by one: who waits
  // for them also looks whether one has given up.
  template <class Ready>
  MSCCLPP_DEVICE_INLINE bool waitFor(uint32_t from, Ready ready) const {
    if (ready()) return true;
    if (from != ep.rank) return pollUntil<1>(ready, -1, ep.status[from]);
    bool came = false;
    const auto ends = [&] {
      came = ready();
      return came || hasGivenUp();
    };
    pollUntil<1>(ends, -1, nullptr);
    return came;
  }
  MSCCLPP_DEVICE_INLINE bool hasGivenUp() const {
    return detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(ep.words + EpGaveUp) != 0;
  }
  MSCCLPP_DEVICE_INLINE bool waitForWord(const uint64_t* word, uint64_t least, uint32_t from) const {
    return waitFor(from, [=] { return detail::load<MemoryOrder::Acquire, MemoryScope::System>(word) >= least; });
  }
  // Takes the packet at `at`, from rank `from`.
  MSCCLPP_DEVICE_INLINE bool take(const Ll16Packets& packets, const uint8_t* at, uint64_t& word, uint32_t from) const {
    Bytes16 packet;
    const bool came = waitFor(from, [&] {
      packet = Ll16Packets::load(at);
      return packets.isThere(packet);
    });
    word = Ll16Packets::wordOf(packet);
    return came;
  }

  // X1. Tells every rank that this block has sent what it sends. All threads call it.
  MSCCLPP_DEVICE_INLINE void signal() const {
    blockSync();
    if (thread < ep.ranks) {
      detail::fetchAdd<MemoryOrder::Release, MemoryScope::System>(line(thread, ep.rank, EpArrived, direction), share());
    }
  }
  // Waits until all blocks of rank `of` have sent what they send in this call. The caller lets other threads know by a
  // barrier.
  MSCCLPP_DEVICE_INLINE bool hasArrived(uint32_t of) const {
    return waitForWord(line(ep.rank, of, EpArrived, direction), epoch * ep.maxBlocks, of);
  }

  // X2. Waits until rank `of` has done with what this rank sent to it in the call before. The caller lets other threads
  // know by a barrier.
  MSCCLPP_DEVICE_INLINE bool isFree(uint32_t of) const {
    return waitForWord(line(ep.rank, of, EpFreed, direction), epoch - 1, of);
  }
  // Returns whether all other blocks of the call are here, too, with all their accesses to what came. All threads call it.
  MSCCLPP_DEVICE_INLINE bool isLast() const {
    blockSync();
    bool last = false;
    if (thread == 0) {
      uint64_t* const done = ep.words + EpDone + microBatch * 2 + direction;
      const uint64_t before = detail::fetchAdd<MemoryOrder::AcquireRelease, MemoryScope::Device>(done, share());
      last = before + share() == epoch * ep.maxBlocks;
    }
    return blockAny(last);
  }
  // Tells every rank that this one has done with what came in call `ofEpoch`. All threads call it, of one block.
  MSCCLPP_DEVICE_INLINE void free(uint32_t ofDirection, uint64_t ofEpoch) const {
    if (thread < ep.ranks) {
      detail::store<MemoryOrder::Release, MemoryScope::System>(line(thread, ep.rank, EpFreed, ofDirection), ofEpoch);
    }
  }

  // Counts the call, or says that it gave up. All threads call it last.
  MSCCLPP_DEVICE_INLINE void end(bool failed) const {
    const bool fails = blockAny(failed);
    if (fails && thread == 0) {
      detail::store<MemoryOrder::Relaxed, MemoryScope::Device>(ep.words + EpGaveUp, uint64_t{1});
    }
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

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_EP_CALL_DEVICE_HPP_
