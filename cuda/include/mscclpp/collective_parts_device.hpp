// Several large calls in one launch, by Simple: one exchange between each pair of ranks, whose message has a part for each call,
// as collective_moves_device.hpp says. For the library's own use.

#ifndef MSCCLPP_COLLECTIVE_PARTS_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_PARTS_DEVICE_HPP_

#include "mscclpp/collective_moves_device.hpp"
#include "mscclpp/collective_simple_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// A call by the messages of each pair of ranks, in bytes.
struct MovesCall {
  // The moves with each rank, and the second ones if only pairs of ranks know its sizes.
  const CollectiveMove *moves, *others;
  // Where its part begins in all messages, if all ranks know that; else 0.
  uint64_t begin;

  MSCCLPP_DEVICE_INLINE MovesCall(const CollectiveMoves& all, uint32_t ranks, uint32_t c)
      : moves(all.moves + (c < all.count ? c : 2 * c - all.count) * ranks),
        others(c < all.count ? nullptr : moves + ranks),
        begin(c == 0 || c >= all.count ? 0 : endOf(all, c - 1)) {}

  // The end of the part of call c, of which all ranks know it.
  MSCCLPP_DEVICE_INLINE static uint64_t endOf(const CollectiveMoves& all, uint32_t c) {
    return static_cast<uint64_t>(all.ends[c]) * 16;
  }
  MSCCLPP_DEVICE_INLINE uint64_t sendBegin(uint32_t r) const {
    return others == nullptr ? begin : reinterpret_cast<uint64_t>(others[r].send);
  }
  MSCCLPP_DEVICE_INLINE uint64_t recvBegin(uint32_t r) const {
    return others == nullptr ? begin : reinterpret_cast<uint64_t>(others[r].recv);
  }
  MSCCLPP_DEVICE_INLINE uint64_t sendBytes(uint32_t r) const {
    return moves[r].sendBytes | (others == nullptr ? 0 : static_cast<uint64_t>(others[r].sendBytes) << 32);
  }
  MSCCLPP_DEVICE_INLINE uint64_t recvBytes(uint32_t r) const {
    return moves[r].recvBytes | (others == nullptr ? 0 : static_cast<uint64_t>(others[r].recvBytes) << 32);
  }
};

// The parts of a lane's chunks, in calls by Simple.
struct PartsOfChunks {
  const CollectiveMoves& all;
  const Chunks& chunks;

  // The stretch of a part that is in a chunk: where it begins in the part and in the chunk, and its bytes.
  struct Stretch {
    uint64_t from;
    uint32_t at, bytes;
  };

  MSCCLPP_DEVICE_INLINE PartsOfChunks(const CollectiveMoves& all, const Chunks& chunks) : all(all), chunks(chunks) {}

  // The most chunks of this lane in a message to or from any rank.
  MSCCLPP_DEVICE_INLINE uint32_t count() const {
    uint64_t mostBytes = 0;
    for (uint32_t r = 0; r < chunks.b.ranks; ++r) {
      const CollectiveSegment ends = all.call.segments[r];
      if (ends.sendBytes > mostBytes) mostBytes = ends.sendBytes;
      if (ends.recvBytes > mostBytes) mostBytes = ends.recvBytes;
    }
    return chunks.count(mostBytes);
  }
  // Calls `copy(call)` for each call that may have a part in chunk k.
  template <class Copy>
  MSCCLPP_DEVICE_INLINE void forCalls(uint32_t k, Copy copy) const {
    const uint64_t first = chunks.offset(k), end = first + chunks.chunk();
    uint32_t c = 0;
#pragma unroll 1
    while (c < all.count && MovesCall::endOf(all, c) <= first) ++c;
#pragma unroll 1
    for (; c < all.count + all.pairs; ++c) {
      const MovesCall part(all, chunks.b.ranks, c);
      if (part.begin < end) copy(part);
    }
  }
  // The stretch in chunk k of a part of `bytes` bytes, at `begin` in the message.
  MSCCLPP_DEVICE_INLINE Stretch stretch(uint32_t k, uint64_t begin, uint64_t bytes) const {
    const uint64_t first = chunks.offset(k), last = first + chunks.chunk(), end = begin + bytes;
    const uint64_t from = begin < first ? first : begin, to = end < last ? end : last;
    if (from >= to) return Stretch{0, 0, 0};
    return Stretch{from - begin, static_cast<uint32_t>(from - first), static_cast<uint32_t>(to - from)};
  }
  // Puts the parts of chunk k at each peer.
  template <bool ByTurns>
  MSCCLPP_DEVICE_INLINE void put(uint32_t k) const {
    forCalls(k, [&](const MovesCall& call) {
      copyForPeers<ByTurns>(chunks.b, [&](uint32_t p) {
        const Stretch it = stretch(k, call.sendBegin(p), call.sendBytes(p));
        return PartCopy{chunks.place(Chunks::First, p, chunks.b.rank, k) + it.at, call.moves[p].send + it.from, it.bytes};
      });
    });
  }
  // Takes the parts of chunk k of each peer that sends one in this step.
  template <bool ByTurns>
  MSCCLPP_DEVICE_INLINE void take(Chunks::Signal step, uint32_t k) const {
    forCalls(k, [&](const MovesCall& call) {
      copyForPeers<ByTurns>(chunks.b, [&](uint32_t p) {
        const Stretch it = stretch(k, call.recvBegin(p), call.recvBytes(p));
        return PartCopy{call.moves[p].recv + it.from, chunks.place(step, chunks.b.rank, p, k) + it.at, it.bytes};
      });
    });
  }
  // Reduces the parts of chunk k of two ranks, but does not average.
  template <class Words>
  MSCCLPP_DEVICE_INLINE void reduceTwo(uint32_t k) const {
    forCalls(k, [&](const MovesCall& call) {
      const CollectiveMove& own = call.moves[chunks.b.rank];
      const Stretch it = stretch(k, call.begin, own.recvBytes);
      chunks.template reduceTwo<Words>(own.recv + it.from, own.send + it.from, it.bytes, k, it.at);
    });
  }
  // Reduces the parts of chunk k of all ranks. The results go to this rank's messages, and to all peers' places for results if
  // `ToAll`.
  template <class Words, uint32_t AtOnce, bool ToAll>
  MSCCLPP_DEVICE_INLINE void reduce(uint32_t k) const {
    const CollectiveBlock& b = chunks.b;
    forCalls(k, [&](const MovesCall& call) {
      const CollectiveMove& own = call.moves[b.rank];
      const Stretch it = stretch(k, call.begin, own.recvBytes);
      reduceRanks<Words, AtOnce>(b.comm, b.call, own.recv + it.from, own.send + it.from, it.bytes,
                                 chunks.offsetOf(Chunks::First, 0, k) + it.at,
                                 chunks.places * chunks.lanes * chunks.chunk(),
                                 ToAll ? chunks.offsetOf(Chunks::Results, 0, k) + it.at : 0);
    });
  }
};

// The role of a block in several calls. Between two ranks each block is a lane.
template <bool OfTwo>
MSCCLPP_DEVICE_INLINE ChunkRole roleInCalls(const CollectiveBlock& b) {
  ChunkRole role(b);
  if constexpr (OfTwo) {
    role.lane = b.block;
    role.lanes = b.blocks;
    role.puts = role.takes = true;
  }
  return role;
}

// Calls that move, or reduce in one step. Blocks give credits (R2), unless there are two ranks that give each other as much
// (R1). Blocks have at least as many threads as there are ranks. Averages of SumWords between two ranks have kernels of their
// own, as in chunksOfTwo.
template <class Words, bool OfTwo = false, bool Averages = false>
MSCCLPP_DEVICE_INLINE void callsSimple(const CollectiveHandle& comm, const CollectiveMoves& all) {
  const CollectiveCall& call = all.call;
  CollectiveBlock b(comm, call, OfTwo);
  if (!b.begin()) return;
  b.countOthers();
  const ChunkRole role = roleInCalls<OfTwo>(b);
  const Chunks chunks(b, role.lane, role.lanes);
  const PartsOfChunks parts(all, chunks);
  const auto puts = [&](uint32_t r, uint32_t k) { return chunks.has(call.segments[r].sendBytes, k); };
  const auto takes = [&](uint32_t r, uint32_t k) {
    if constexpr (Words::Reduces) r = b.rank;
    return chunks.has(call.segments[r].recvBytes, k);
  };
  const bool credits = !OfTwo || all.uneven;
  const uint32_t most = parts.count();
  // A block that also puts takes a chunk one step later.
  const uint32_t behind = role.puts ? 1 : 0;
  bool failed = false;
  for (uint32_t k = 0; k < most + behind && !failed; ++k) {
    if (role.puts && k < most) {
      if (credits && k >= CollectiveChunks) {
        failed = !chunks.waitForAll(Chunks::Credits, k - CollectiveChunks, [&](uint32_t r) { return puts(r, k); });
        if (failed) break;
      }
      parts.put<Words::Reduces && !OfTwo>(k);
      chunks.signalAll(Chunks::First, k, [&](uint32_t r) { return puts(r, k); }, call.inPlace);
    }
    if (!role.takes) continue;
    if constexpr (!Words::Reduces) {
      if (takes(b.rank, k)) {
        parts.forCalls(k, [&](const MovesCall& call) {
          const CollectiveMove& own = call.moves[b.rank];
          if (own.send == own.recv) return;
          const PartsOfChunks::Stretch it = parts.stretch(k, call.recvBegin(b.rank), call.recvBytes(b.rank));
          copyByWarps(PartCopy{own.recv + it.from, own.send + it.from, it.bytes});
        });
      }
    }
    if (k < behind) continue;
    const uint32_t j = k - behind;
    const bool afterPut = call.inPlace && !role.puts;
    failed = !chunks.waitForAll(Chunks::First, j, [&](uint32_t r) { return takes(r, j); }, afterPut);
    if (failed) break;
    if constexpr (!Words::Reduces) {
      parts.take<false>(Chunks::First, j);
    } else if constexpr (!OfTwo) {
      parts.reduce<Words, RanksAtOnce, false>(j);
    } else if constexpr (Averages) {
      parts.reduce<Words, 2, false>(j);
    } else {
      parts.reduceTwo<Words>(j);
    }
    if (credits) chunks.signalAll(Chunks::Credits, j, [&](uint32_t r) { return takes(r, j); });
  }
  b.end(failed);
}

// all_reduces in two steps, whose segments are those of allReduceSimple. The message to a rank has the parts of all calls that
// it reduces, and R3 holds for its chunks as for those of one call.
template <class Words>
MSCCLPP_DEVICE_INLINE void allReducesSimple(const CollectiveHandle& comm, const CollectiveMoves& all) {
  const CollectiveCall& call = all.call;
  CollectiveBlock b(comm, call, false);
  if (!b.begin()) return;
  b.countOthers();
  const ChunkRole role(b);
  const Chunks chunks(b, role.lane, role.lanes, CollectiveStepChunks);
  const PartsOfChunks parts(all, chunks);
  const uint32_t most = parts.count();
  const auto puts = [&](uint32_t r, uint32_t k) { return chunks.has(call.segments[r].sendBytes, k); };
  bool failed = false;
  for (uint32_t k = 0; k < most + 2 && !failed; ++k) {
    if (role.puts && k < most) {
      parts.put<true>(k);
      chunks.signalAll(Chunks::First, k, [&](uint32_t r) { return puts(r, k); });
    }
    // A block that also puts is one chunk behind; at first it has none, as 0 wraps around.
    const uint32_t j = role.puts ? k - 1 : k;
    if (role.takes && j < most) {
      const auto mine = [&](uint32_t) { return puts(b.rank, j); };
      failed = !chunks.waitForAll(Chunks::First, j, mine);
      if (failed) break;
      parts.reduce<Words, RanksAtOnce, true>(j);
      chunks.signalAll(Chunks::Results, j, mine);
    }
    if (role.puts && k >= 2) {
      failed = !chunks.waitForAll(Chunks::Results, k - 2, [&](uint32_t r) { return puts(r, k - 2); });
      if (!failed) parts.take<true>(Chunks::Results, k - 2);
    }
  }
  b.end(failed);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_PARTS_DEVICE_HPP_
