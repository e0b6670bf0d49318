// Calls of experts, as their kernels get them. ep_device.hpp has the rules that hold for all calls. For the library's own use.

#ifndef MSCCLPP_EP_CALL_DEVICE_HPP_
#define MSCCLPP_EP_CALL_DEVICE_HPP_

#include "mscclpp/device.hpp"

namespace mscclpp {

enum EpLimits : uint32_t {
  EpMaxRanks = 16,
  // The most tensors of which a row is made, and the same with what the library sends along.
  EpMaxParts = 4,
  EpMaxSegments = 5,
  EpMaxTopK = 64,
  // The vectors of 16 bytes that a thread has under way at once.
  EpVectorsAtOnce = 4,
  // The bytes of a row that a warp moves at once.
  EpPartBytes = 32 * 16 * EpVectorsAtOnce,
  // The vectors of a row that a thread sums up at once.
  EpVectorsOfUnit = 2,
  // The vectors of all terms that a thread has under way meanwhile.
  EpTermVectorsAtOnce = 4,
  // The choices of tokens of which a thread loads the experts at once.
  EpChoicesAtOnce = 4,
  // The parts in which a combine of many tokens signals the rows that it has sent.
  EpPhases = 8,
  // The most warps that share a row of a dispatch by row (X8), and the words by which they signal the row.
  EpRowWarps = 2,
  // The warps of a block.
  EpMaxWarps = 32,
  // The size of the line in which a word lies that another rank writes, and of the lines of rows that travel as packets.
  EpLine = 128,
  // The vectors of such a row that lie together, and their bytes: eight lines, and the packet of each.
  EpVectorsOfLines = 64,
  EpBytesOfLines = 8 * (EpLine + 16),
};

// The tokens that a block routes at once, and the words in which each of them has a bit; and how many tokens are many for a
// combine. Those of simulated devices are so few that tests have more.
// The fewest rows, and the fewest blocks that send, with which the warps of a combine share a counter: see X7. The fewest parts
// of a row that several warps share in a dispatch by row: see X8.
#if defined(MSCCLPP_DEVICE_SIM)
enum EpTokens : uint32_t { EpTokensAtOnce = 4, EpMarkWords = 2, EpManyTokens = 6 };
enum EpDynamic : uint32_t { EpDynamicRows = 8, EpDynamicSenders = 1, EpSharedParts = 2 };
#else
enum EpTokens : uint32_t { EpTokensAtOnce = 128, EpMarkWords = 4, EpManyTokens = 1024 };
enum EpDynamic : uint32_t { EpDynamicRows = 1536, EpDynamicSenders = 16, EpSharedParts = 6 };
#endif

// The looks of a thread for packets before it calls a function that waits for them. The look that finds packets has their data;
// the function also asks whether the wait is to end, and needs another look behind it.
#if defined(MSCCLPP_DEVICE_SIM)
enum EpLooks : uint32_t { EpLooksBeforeWait = 2 };
#else
enum EpLooks : uint32_t { EpLooksBeforeWait = 64 };
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

// Bits. With EpRestZero, a dispatch makes the rows of the layout zero that nobody sent. With EpRestMasked, it makes their outIds
// -1, and the outWeights of these rows and of other ranks' experts 0.
enum EpRest : uint32_t { EpRestZero = 1, EpRestMasked = 2 };

// The halves of a call that a launch does: both, or one of two launches each.
enum EpHalves : uint32_t { EpSends = 1, EpReceives = 2, EpBoth = 3 };

// The lines of a micro-batch in the scratch: a line for each rank of each of these, for each direction.
enum EpLineKind : uint32_t {
  // The last epoch whose rows that rank has done with: see X2.
  EpFreed = 0,
  // For each of EpPhases, how many blocks of that rank have sent what they send in it: EpHandle::maxBlocks more in each call.
  EpArrived = 1,
  // If rows travel as packets, the last call that the rank has begun: see X6.
  EpBegun = EpArrived,
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
  // For each micro-batch two words, for combines with even and with odd epochs: the next part of the rows that are sent, see X7.
  EpNextPart = 8,
  // The same for dispatches, see X8: the next part of a token that is sent, and of a row that comes.
  EpNextToken = 12,
  EpNextRow = 16,
  EpFirstEpoch = 20,
};

// The words in which a kernel tells the host what was wrong with a call. Pinned host memory.
enum EpProblem : uint32_t {
  EpBadExpert = 0,  // 1 plus the number of the token of a choice that is no expert
  EpDropped = 1,    // how many choices came whose rows are more than the memory for them, in all calls
  EpRefused = 2,    // 1 plus the rank that had more tokens than the capacity
  EpOther = 3,      // 1 plus the rank that sent rows of other tensors than this rank
  EpInUse = 4,      // 1 plus a micro-batch whose rows of the last dispatch were not given back before the next one
  EpRowsGone = 5,   // 1 plus a micro-batch whose rows were checked after they had been given back
  EpNewlyLost = 6,  // a word for each rank: 1 if it was found to be lost
  // The host says here which ranks are lost, by their bits, and that all waits end, by EpSaidAll.
  EpSaid = EpNewlyLost + EpMaxRanks,
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
  // 2^31 / topK, rounded up: see EpDispatchBlock::tokenOf.
  uint32_t topKInverse;
  // The parts of EpPartBytes bytes of all tensors of a row.
  uint32_t rowParts;
  // 0, or for how many nanoseconds calls wait for a rank before they go on without it.
  uint64_t patience;
  // The size of each segment, and from one row to the next in the scratch (of the last one: in the tables).
  uint32_t segmentBytes[EpMaxSegments], segmentStride[EpMaxSegments];
  // The size of a row of each tensor as packets.
  uint32_t packetStride[EpMaxParts];
  // Offsets in the part of the scratch that belongs to a micro-batch: the rows of each tensor, and the same as packets.
  uint64_t segments[EpMaxParts], packets[EpMaxParts];
  // `rowWords` has EpRowWarps words for each row: see X8.
  uint64_t lines, headers, routes, results, choiceResults, weightPackets, rowWords, microBatchBytes;
  // 0, or if rows travel as packets, from the memory of calls with even epochs to that of those with odd ones: of everything
  // but `segments` and `lines`. See X6.
  uint64_t otherBytes;
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
  // bits of EpRest.
  uint32_t again, refused, rest;
  // Whether the compiler knows that the rows that are given begin and end at multiples of 16 bytes.
  static constexpr bool isAligned = false;
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
  // For each rank the nanoseconds that this rank has waited for it, to which those of this call are added; or null.
  uint64_t* addedWaits;
  // The number of rows of the layout for which there is memory.
  uint64_t outRows;
  uint32_t tokens, microBatch;
  // Whether every choice's row travels; whether there is one row for a token, which is summed without weights; and whether
  // all ranks give the weights here. Those of a rank without tokens may be null in any case.
  uint32_t exact, oneRow, late;
  // The layout of the routing.
  uint32_t layout;
  // Whether the compiler knows that all rows begin and end at multiples of 16 bytes.
  static constexpr bool isAligned = false;
};

// The types of a dispatch's parameters say what the compiler knows of it: constants hide members of the same name. Of any
// dispatch it knows nothing.
struct EpAnyDispatch {
  using Handle = EpHandle;
  using Call = EpDispatch;
};
// Any dispatch whose rows travel as they are.
struct EpAnyGivenDispatch {
  struct Handle : EpHandle {
    static constexpr uint32_t quantisation = EpAsItIs;
  };
  using Call = EpDispatch;
};
// A dispatch of aligned rows in a layout that is known, without a lost rank, an earlier routing, and counted waits. Its kernel
// has half of the code, and the time of few tokens is that of the code that they need.
template <uint32_t Layout>
struct EpUsualDispatch {
  struct Handle : EpHandle {
    static constexpr uint64_t patience = 0;
  };
  struct Call : EpDispatch {
    static constexpr uint32_t layout = Layout, again = 0, refused = 0;
    static constexpr uint64_t* addedWaits = nullptr;
    static constexpr bool isAligned = true;
  };
};
// Such a dispatch whose rows are quantised to e4m3 and travel with nothing but their scales, without EpRest.
template <uint32_t Layout>
struct EpQuantisedDispatch : EpUsualDispatch<Layout> {
  struct Handle : EpUsualDispatch<Layout>::Handle {
    static constexpr uint32_t parts = 2, quantisation = EpE4m3;
  };
  struct Call : EpUsualDispatch<Layout>::Call {
    static constexpr uint32_t rest = 0;
  };
};
// Such a dispatch whose rows travel as they are.
template <uint32_t Layout>
struct EpGivenDispatch : EpUsualDispatch<Layout> {
  struct Handle : EpUsualDispatch<Layout>::Handle {
    static constexpr uint32_t quantisation = EpAsItIs;
  };
};
// EpSent says what a rank sends for a token in a combine: the sum of its experts' rows; the only row that the token has there;
// or the row of each choice.
enum EpSent : uint32_t { EpSum = 0, EpOneRow = 1, EpEachRow = 2 };

// A combine of aligned rows, without weights that travel back, and counted waits.
template <uint32_t Sent>
struct EpUsualCombine : EpCombine {
  static constexpr uint32_t exact = Sent == EpEachRow, oneRow = Sent == EpOneRow;
  static constexpr uint8_t *rowWeights = nullptr, *outWeights = nullptr;
  static constexpr uint64_t* addedWaits = nullptr;
  static constexpr bool isAligned = true;
};

}  // namespace mscclpp

#endif  // MSCCLPP_EP_CALL_DEVICE_HPP_
