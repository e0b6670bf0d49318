// Several large calls that reduce by the same type and operation in one launch, by Simple: one exchange between each pair of
// ranks, whose message has a part for each call, as collective_moves_device.hpp says. For the library's own use.
//
// The first `count` moves of a call are its segments (see CollectiveCall): what this rank sends to each rank, and, of its own
// segment, where the result goes. No call has sizes that only pairs of ranks know. Each number is combined in the order of
// the ranks, as in a launch of one call, so the bits are the same.

#ifndef MSCCLPP_COLLECTIVE_REDUCES_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_REDUCES_DEVICE_HPP_

#include "mscclpp/collective_moves_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Reduces the parts of chunk k of all ranks. The results go to this rank's messages, and to all peers' places for results if
// `ToAll`.
template <class Words, uint32_t AtOnce, bool ToAll>
MSCCLPP_DEVICE_INLINE void reduceParts(const PartsOfChunks& parts, uint32_t k) {
  const Chunks& chunks = parts.chunks;
  const CollectiveBlock& b = chunks.b;
  parts.forCalls(k, [&](const MovesCall& call) {
    const CollectiveMove& own = call.moves[b.rank];
    const PartsOfChunks::Stretch it = parts.stretch(k, call.begin, own.recvBytes);
    reduceRanks<Words, AtOnce>(b.comm, b.call, own.recv + it.from, own.send + it.from, it.bytes,
                               chunks.offsetOf(Chunks::First, 0, k) + it.at,
                               chunks.places * chunks.lanes * chunks.chunk(),
                               ToAll ? chunks.offsetOf(Chunks::Results, 0, k) + it.at : 0);
  });
}

// Calls in which each rank sends to each other and reduces what comes, with credits (R2): ranks may get results of other
// sizes than others do. Blocks have at least as many threads as there are ranks.
template <class Words, bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void reducesSimple(const CollectiveHandle& comm, const CollectiveMoves& all) {
  const CollectiveCall& call = all.call;
  CollectiveBlock b(comm, call, OfTwo);
  if (!b.begin()) return;
  b.countOthers();
  const ChunkRole role = roleInCalls<OfTwo>(b);
  const Chunks chunks(b, role.lane, role.lanes);
  const PartsOfChunks parts(all, chunks);
  const uint32_t most = parts.count();
  // A block that also puts takes a chunk one step later.
  const uint32_t behind = role.puts ? 1 : 0;
  bool failed = false;
  for (uint32_t k = 0; k < most + behind && !failed; ++k) {
    if (role.puts && k < most) {
      const auto puts = [&](uint32_t r) { return chunks.has(call.segments[r].sendBytes, k); };
      if (k >= CollectiveChunks) {
        failed = !chunks.waitForAll(Chunks::Credits, k - CollectiveChunks, puts);
        if (failed) break;
      }
      parts.put<!OfTwo>(k);
      chunks.signalAll(Chunks::First, k, puts, call.inPlace);
    }
    if (!role.takes || k < behind) continue;
    const uint32_t j = k - behind;
    const auto takes = [&](uint32_t) { return chunks.has(call.segments[b.rank].recvBytes, j); };
    failed = !chunks.waitForAll(Chunks::First, j, takes, call.inPlace && !role.puts);
    if (failed) break;
    reduceParts<Words, OfTwo ? 2 : RanksAtOnce, false>(parts, j);
    chunks.signalAll(Chunks::Credits, j, takes);
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
      reduceParts<Words, RanksAtOnce, true>(parts, j);
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

#endif  // MSCCLPP_COLLECTIVE_REDUCES_DEVICE_HPP_
