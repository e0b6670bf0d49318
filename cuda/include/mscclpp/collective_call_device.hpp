// A call of a communicator's collectives, as its kernel gets it, and the words of its messages. collective_device.hpp
// has the rules that hold for all calls. For the library's own use.

#ifndef MSCCLPP_COLLECTIVE_CALL_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_CALL_DEVICE_HPP_

#include "mscclpp/message_words_device.hpp"
#include "mscclpp/reduce_device.hpp"

namespace mscclpp {

// The most ranks of a communicator on one node.
enum CollectiveLimits : uint32_t {
  CollectiveMaxRanks = 16,
  // The most chunks of a block that may be on their way to a peer.
  CollectiveChunks = 4,
  // The same in an all_reduce of two steps: see R3 in collective_simple_device.hpp.
  CollectiveStepChunks = 3,
  // The size of a packet's or a signal's line.
  CollectiveLine = 128,
};

// The value of `scaled` besides 0 and 1.
constexpr uint32_t CollectiveScaledByMemory = 2;

// Words of a communicator before its epochs (CollectiveHandle::epochs): see "Giving up" in collective_device.hpp.
enum CollectiveWords : int32_t {
  // 0, or 1 if a launch of messages gave up, or 1 more than twice the number of the call that did.
  CollectiveGaveUp = -4,
  // Whether a call runs, for calls that are `checked`.
  CollectiveRuns = -3,
  // Whether a launch between nodes gave up.
  CollectiveGaveUpAcross = -2,
};

// The value of `mismatch` if two calls of a communicator ran at the same time: see CollectiveHandle.
constexpr uint32_t CollectiveOverlap = 0xffff;

// The part of a communicator that is the same for all calls. Offsets count from the start of a rank's scratch, and are
// the same on all ranks.
struct CollectiveHandle {
  // This rank's scratch, and that of each rank as mapped here (the own one included).
  uint8_t* scratch[CollectiveMaxRanks];
  // For each rank, the words through which waits for it are aborted: see StatusWord. Null for this rank.
  uint32_t* status[CollectiveMaxRanks];
  // For each block, twice the number of the last call, plus 1 if it was `oneWay`. The CollectiveWords are before these.
  // In this device's memory.
  uint64_t* epochs;
  uint32_t rank;
  uint32_t ranks;
  // The most blocks that a call may have.
  uint32_t maxBlocks;
  // Whether the communicator has the ranks of one of several nodes.
  uint32_t amongNodes;
  // Where this device says what is wrong with a `checked` call: 0, or CollectiveOverlap, or in the lower half the rank plus
  // 1 that made another call than this one did, and in the higher the parity of the call's number; with CollectiveNoPlace,
  // the rank named a place that does not exist; with CollectiveLengths, it sent a message of another length than this rank takes.
  // Pinned host memory.
  uint32_t* mismatch;
  // The offsets of the parts of the scratch: lines by which ranks report that they have begun; lines for the signals of
  // chunks, of each rank for each block, for each of two steps, and after these those of credits; packets; lines of
  // LL128; chunks. The last three are twice as large as their sizes here: one half is for calls of even numbers, one
  // for odd ones.
  uint64_t begun;
  // Two lines of each rank, for calls of even and of odd numbers: its description of its call, if calls are `checked`,
  // and the places that it names in its published memory. In the first, lengths: see CollectiveLengths.
  uint64_t checks;
  uint64_t signals;
  uint64_t ll16, ll16Bytes;
  uint64_t ll128, ll128Bytes;
  uint64_t chunks, chunkBytes;
};

// The data that a rank sends to a peer, or to itself, and the data that it takes from it. 0 bytes mean none.
struct CollectiveSegment {
  const uint8_t* send;
  uint8_t* recv;
  uint64_t sendBytes;
  uint64_t recvBytes;
};

// One call. In an exchange that moves, what comes from peer p goes to segments[p].recv, and the own segment is
// copied. In one that reduces, each segment brings as many bytes as the own one (segments[rank].recvBytes), which
// with segments[rank].send become the result at segments[rank].recv; a rank that gets no result has recvBytes of 0
// everywhere. In the all_reduce of two steps, segments[p].send is the part that rank p reduces, and .recv where the
// result goes.
struct CollectiveCall {
  CollectiveSegment segments[CollectiveMaxRanks];
  // The largest segment that any rank sends to another, rounded up to 16.
  uint64_t mostBytes;
  // Bytes of a chunk, a multiple of 16.
  uint64_t chunk;
  // ReduceType, ReduceOp.
  uint32_t type;
  uint32_t op;
  // The factor of every number of this rank before it is sent, if `scaled`: a float, a double, or a whole number of 8
  // bytes; or, with CollectiveScaledByMemory, the address of a number of the type. Of an average of floats of 4 bytes, 1 divided
  // by the number of ranks.
  uint64_t scale;
  uint32_t scaled;
  // Whether some rank takes nothing from some other rank.
  uint32_t oneWay;
  // Whether ranks compare their calls before they make them, by the two words of `signature`.
  uint32_t checked;
  // Whether some of the data that this rank sends to others lies where it puts the data that it takes: then a chunk is
  // put before one is taken.
  uint32_t inPlace;
  uint64_t signature[2];
};

#if defined(MSCCLPP_DEVICE_COMPILE)

// The kernel NAME, whose calls of type CALL are done by a function of (handle, call).
#define MSCCLPP_KERNEL_OF(CALL, NAME, ...)                                                      \
  extern "C" __global__ void __launch_bounds__(1024)                                            \
      NAME(const MSCCLPP_GRID_CONSTANT mscclpp::CollectiveHandle comm,                          \
           const MSCCLPP_GRID_CONSTANT CALL call) {                                             \
    mscclpp::waitForEarlierLaunches();                                                          \
    __VA_ARGS__(comm, call);                                                                    \
  }
#define MSCCLPP_COLLECTIVE_KERNEL(NAME, ...) MSCCLPP_KERNEL_OF(mscclpp::CollectiveCall, NAME, __VA_ARGS__)

namespace detail {

// ---- what becomes of the words of the ranks

// The words are moved as they are.
struct MoveWords {
  static constexpr bool Reduces = false;
  MSCCLPP_DEVICE_INLINE static bool sendsAsItIs(const CollectiveCall&) { return true; }
  MSCCLPP_DEVICE_INLINE static uint64_t sent(const CollectiveCall&, uint64_t word) { return word; }
};

// The words are summed, with a type that the kernel knows, or averaged, if the call says so: a Fold gets the word of each rank,
// in the order of the ranks, and has the result.
template <uint32_t Type>
struct SumWords {
  using N = Number<Type>;
  static constexpr bool Reduces = true;
  // Whether an average multiplies each number before it adds it, by CollectiveCall::scale. Otherwise it divides the sum.
  static constexpr bool Weighs = N::Bytes == 4;
  MSCCLPP_DEVICE_INLINE static bool sendsAsItIs(const CollectiveCall&) { return true; }
  MSCCLPP_DEVICE_INLINE static uint64_t sent(const CollectiveCall&, uint64_t word) { return word; }
  // Whether the call averages.
  MSCCLPP_DEVICE_INLINE static bool averages(const CollectiveCall& call) { return call.op == ReduceAvg; }
  struct Fold {
    WordFold<N> fold;
    MSCCLPP_DEVICE_INLINE void put(const CollectiveCall& call, uint32_t rank, uint64_t word) {
      if constexpr (Weighs) {
        if (averages(call)) word = weighed(word, bitsAs<float>(static_cast<uint32_t>(call.scale)));
      }
      if (rank == 0) {
        fold.first(word);
      } else {
        fold.next(ReduceSum, word);
      }
    }
    MSCCLPP_DEVICE_INLINE uint64_t result(const CollectiveCall& call, uint32_t ranks) {
      if constexpr (!Weighs) {
        if (averages(call)) fold.divide(ranks);
      }
      return fold.result();
    }
  };
  MSCCLPP_DEVICE_INLINE static uint64_t weighed(uint64_t word, float weight) {
    uint64_t result = 0;
#pragma unroll
    for (uint32_t bit = 0; bit < 64; bit += 8 * N::Bytes) {
      result |= N::narrow(multiplyValues(N::widen(word >> bit), weight)) << bit;
    }
    return result;
  }
  // Returns the result of two words; without `MayAverage`, of a call that does not average.
  template <bool MayAverage>
  MSCCLPP_DEVICE_INLINE static uint64_t ofTwo(const CollectiveCall& call, uint64_t first, uint64_t second) {
    if (!MayAverage || !averages(call)) return sumOfTwo<Type>(first, second);
    Fold fold;
    fold.put(call, 0, first);
    fold.put(call, 1, second);
    return fold.result(call, 2);
  }
};

// Reduces the words of all ranks, with a type that the kernel learns when it runs, one number after the other. Not
// inlined: it is much code, which each kernel would have several times.
MSCCLPP_DEVICE_NOINLINE uint64_t reduceAny(const uint64_t* words, uint32_t ranks, uint32_t type, uint32_t op) {
  return withNumber(type, [=](auto number) {
    using N = decltype(number);
    using Value = typename N::Value;
    const bool averages = op == ReduceAvg;
    const Value weight = averages ? N::weight(ranks) : 1;
    uint64_t result = 0;
#pragma unroll 1
    for (uint32_t bit = 0; bit < 64; bit += 8 * N::Bytes) {
      Value value = N::widen(words[0] >> bit);
      if (averages) {
        value = multiplyValues(value, weight);
#pragma unroll 1
        for (uint32_t r = 1; r < ranks; ++r) value = addValues(value, multiplyValues(N::widen(words[r] >> bit), weight));
        value = N::average(value, ranks);
      } else {
#pragma unroll 1
        for (uint32_t r = 1; r < ranks; ++r) value = combineValues(op, value, N::widen(words[r] >> bit));
      }
      result |= N::narrow(value) << bit;
    }
    return result;
  });
}

// Multiplies each number of a word by a factor of their type.
MSCCLPP_DEVICE_NOINLINE uint64_t scaleAny(uint64_t word, uint32_t type, uint64_t scale, uint32_t scaled) {
  return withNumber(type, [=](auto number) {
    using N = decltype(number);
    const typename N::Value by = scaled == CollectiveScaledByMemory
                                     ? N::widen(loadAny(reinterpret_cast<const uint8_t*>(scale), N::Bytes))
                                     : bitsAs<typename N::Value>(static_cast<WordOf<typename N::Value>>(scale));
    uint64_t result = 0;
#pragma unroll 1
    for (uint32_t bit = 0; bit < 64; bit += 8 * N::Bytes) {
      result |= N::narrow(multiplyValues(N::widen(word >> bit), by)) << bit;
    }
    return result;
  });
}

// The words are reduced as the call says.
struct ReduceAnyWords {
  static constexpr bool Reduces = true;
  MSCCLPP_DEVICE_INLINE static bool sendsAsItIs(const CollectiveCall& call) { return !call.scaled; }
  MSCCLPP_DEVICE_INLINE static uint64_t sent(const CollectiveCall& call, uint64_t word) {
    return call.scaled ? scaleAny(word, call.type, call.scale, call.scaled) : word;
  }
  // Keeps the words until all have come.
  struct Fold {
    uint64_t words[CollectiveMaxRanks];
    MSCCLPP_DEVICE_INLINE void put(const CollectiveCall&, uint32_t rank, uint64_t word) { words[rank] = word; }
    MSCCLPP_DEVICE_INLINE uint64_t result(const CollectiveCall& call, uint32_t ranks) const {
      return reduceAny(words, ranks, call.type, call.op);
    }
  };
  template <bool>
  MSCCLPP_DEVICE_INLINE static uint64_t ofTwo(const CollectiveCall& call, uint64_t first, uint64_t second) {
    const uint64_t words[2] = {first, second};
    return reduceAny(words, 2, call.type, call.op);
  }
};

// Returns word i of a message, as it is sent.
template <class Words>
MSCCLPP_DEVICE_INLINE uint64_t sentWord(const CollectiveCall& call, const uint8_t* message, uint64_t bytes,
                                        uint64_t i) {
  return Words::sent(call, messageWord(message, bytes, i));
}

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_CALL_DEVICE_HPP_
