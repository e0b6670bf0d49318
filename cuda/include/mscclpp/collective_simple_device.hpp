// Collectives by chunks: plain stores of 16 bytes into the peer's scratch, and a signal after each chunk. For the
// library's own use.
//
// Chunk i of a message belongs to lane i modulo the lanes of the call, on both sides. A lane's chunks go into a
// ring of CollectiveChunks places at the peer (of CollectiveStepChunks in two steps), and each has a signal: a word at the
// peer that only one block writes, by a store with release behind a barrier of the block, after the chunk's stores. The
// value is made of the epoch and the chunk's number among the lane's, so it only grows. The peer's block waits for it with
// acquire, in front of a barrier of its own.
//
// Between two ranks each block is a lane. Between more, a lane is two blocks: one puts, and one takes (see ChunkRole).
// A block that does both leaves the link idle while it takes, and as all blocks begin together, they all do so at the
// same time. A block puts a chunk to each peer, one after the other, and blocks begin with different peers (see
// copyForPeers): if all of them stored to one peer at the same time, the others' links would be idle.
//
// Where what is taken overwrites what is sent (`inPlace`), the block that puts also signals the chunk to its own rank, by
// the word that a peer would write, and the block that takes waits for it: the chunk has been read then.
//
// When a place may be used again:
//   R1. In a call in which all ranks give each other as much (no `oneWay`; of several calls, not `uneven`), a block does
//       this, for k = 0, 1, ..: it puts its chunk k to every peer, signals, and takes the chunks k - 1 of all peers. Before
//       it puts chunk k it has taken all chunks k - 2. A peer's block signals its chunk k - 2 after it has taken all chunks
//       k - 4, as its step before did, and so this block's chunk k - 4, which had the place of chunk k.
//   R2. In other calls, and where one block puts and another one takes, a block says what it has taken: a credit, a word at
//       the sender, stored with release behind a barrier. The sender waits for the credit of chunk k - 4 with acquire before it
//       puts chunk k.
//   R3. In the all_reduce of two steps a lane puts its chunk k of each part (step one), reduces its own part's
//       chunk k - 1 and puts the result to all (step two), and takes the results of chunk k - 2. Before it puts chunk k
//       it has the results of chunk k - 3 from every peer, who made them after they had taken its chunk k - 3. And
//       before it puts result k - 1 it has each peer's chunk k - 1, put after that peer had taken the results of chunk
//       k - 4. So places of k - 3 and of result k - 4 are free, and rings have CollectiveStepChunks places. If two blocks do
//       this, one puts chunks and takes results, in the same order, and the other reduces: all that was said is of one of
//       them, or of what a signal tells.

#ifndef MSCCLPP_COLLECTIVE_SIMPLE_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_SIMPLE_DEVICE_HPP_

#include "mscclpp/collective_copy_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Stores vector i of a result of `bytes` bytes for peer p: into this rank's slot at `results` of the scratch there, whose places
// have room for a whole vector, or to results[p], and no further than the result goes.
MSCCLPP_DEVICE_INLINE void storeResult(const CollectiveHandle& comm, uint64_t results, uint64_t stride, uint32_t rank,
                                       uint32_t p, uint32_t, uint32_t i, Bytes16 v) {
  store16(comm.scratch[p] + results + (rank < p ? rank : rank - 1) * stride + i * 16, v);
}
MSCCLPP_DEVICE_INLINE void storeResult(const CollectiveHandle&, uint8_t* const* results, uint64_t, uint32_t, uint32_t p,
                                       uint32_t bytes, uint32_t i, Bytes16 v) {
  storeVectorOf(results[p], bytes, i, v);
}

// Reduces `bytes` bytes of all ranks: this one's are at `own`, and those of the others at `first` in this rank's scratch,
// `stride` apart, in the order of their slots. The result goes to `out`, and to all peers by storeResult, unless `results` is 0.
// A thread has a vector of `AtOnce` ranks under way at once. Not inlined: its caller would have to keep what it computes once
// in registers, which other loops need.
template <class Words, uint32_t AtOnce, class Results>
MSCCLPP_DEVICE_NOINLINE void reduceRanks(const CollectiveHandle& comm, const CollectiveCall& call, uint8_t* out,
                                         const uint8_t* own, uint32_t bytes, uint64_t first, uint64_t stride,
                                         Results results) {
  const uint32_t rank = comm.rank, ranks = comm.ranks, threads = threadsOfBlock();
  const uint8_t* const places = comm.scratch[rank] + first;
#pragma unroll 1
  for (uint32_t i = threadOfBlock(); i * 16 < bytes; i += threads) {
    Bytes16 v[AtOnce], mine = vectorOf(own, bytes, i);
    typename Words::Fold low, high;
#pragma unroll 1
    for (uint32_t r = 0; r < ranks; r += AtOnce) {
#pragma unroll
      for (uint32_t u = 0; u < AtOnce; ++u) {
        // In the place of its own vector, and of ranks that there are not, it loads one that there is.
        const uint32_t slot = r + u < rank ? r + u : r + u - 1;
        v[u] = load16(places + (r + u < ranks && r + u != rank ? slot : 0) * stride + i * 16);
      }
      if (r == 0) mine = {Words::sent(call, mine.low), Words::sent(call, mine.high)};
#pragma unroll
      for (uint32_t u = 0; u < AtOnce; ++u) {
        if (r + u >= ranks) continue;
        low.put(call, r + u, r + u == rank ? mine.low : v[u].low);
        high.put(call, r + u, r + u == rank ? mine.high : v[u].high);
      }
    }
    mine = {low.result(call, ranks), high.result(call, ranks)};
    storeVectorOf(out, bytes, i, mine);
    if (results == 0) continue;
#pragma unroll 1
    for (uint32_t n = 1; n < ranks; ++n) {
      const uint32_t p = rank + n < ranks ? rank + n : rank + n - ranks;
      storeResult(comm, results, stride, rank, p, bytes, i, mine);
    }
  }
}

// The role of a block, and its lane. `puts`: it sends, and takes the results of an all_reduce in two steps; `takes`: it
// takes or reduces what comes. With an odd number of blocks, the last one of them has no lane. The host makes sure that
// all blocks of a call run at once; otherwise the blocks that put could wait for ever for those that take.
struct ChunkRole {
  uint32_t lane, lanes;
  bool puts, takes;

  MSCCLPP_DEVICE_INLINE explicit ChunkRole(const CollectiveBlock& b)
      : lane(b.block), lanes(b.blocks), puts(true), takes(true) {
    if (b.blocks < 2) return;
    lanes = b.blocks / 2;
    puts = b.block < lanes;
    takes = !puts && b.block < 2 * lanes;
    if (!puts) lane = b.block - lanes;
  }
};

struct Chunks {
  const CollectiveBlock& b;
  uint32_t lane, lanes;
  uint32_t places;  // of a ring

  // The purpose of a word of signals: a step of the all_reduce, or credits.
  enum Signal : uint32_t { First = 0, Results = 1, Credits = 2 };

  MSCCLPP_DEVICE_INLINE explicit Chunks(const CollectiveBlock& b) : Chunks(b, b.block, b.blocks) {}
  MSCCLPP_DEVICE_INLINE Chunks(const CollectiveBlock& b, uint32_t lane, uint32_t lanes, uint32_t places = CollectiveChunks)
      : b(b), lane(lane), lanes(lanes), places(places) {}

  // The size of a chunk.
  MSCCLPP_DEVICE_INLINE uint64_t chunk() const { return b.call.chunk; }
  // The number of chunks of this lane in a message.
  MSCCLPP_DEVICE_INLINE uint32_t count(uint64_t bytes) const {
    const uint64_t all = (bytes + chunk() - 1) / chunk();
    return all > lane ? static_cast<uint32_t>((all - lane + lanes - 1) / lanes) : 0;
  }
  // Whether this lane has a chunk k of a message.
  MSCCLPP_DEVICE_INLINE bool has(uint64_t bytes, uint32_t k) const { return offset(k) < bytes; }
  // The beginning of this lane's chunk k in the message, and the bytes of that chunk, fewer than 2^31.
  MSCCLPP_DEVICE_INLINE uint64_t offset(uint32_t k) const { return (lane + static_cast<uint64_t>(k) * lanes) * chunk(); }
  MSCCLPP_DEVICE_INLINE uint32_t length(uint64_t bytes, uint32_t k) const {
    const uint64_t left = bytes - offset(k);
    return static_cast<uint32_t>(left < chunk() ? left : chunk());
  }
  // The contiguous part of a message that has as many chunks as this lane. The parts of all lanes make up the message.
  MSCCLPP_DEVICE_INLINE void share(uint64_t bytes, uint64_t& from, uint64_t& to) const {
    const uint64_t all = (bytes + chunk() - 1) / chunk(), each = all / lanes, rest = all % lanes;
    from = (lane * each + (lane < rest ? lane : rest)) * chunk();
    to = from + count(bytes) * chunk();
    if (to > bytes) to = bytes;
  }
  // The place at rank `to` of chunk k of `from`.
  MSCCLPP_DEVICE_INLINE uint8_t* place(Signal step, uint32_t to, uint32_t from, uint32_t k) const {
    return b.comm.scratch[to] + offsetOf(step, b.slotOf(from, to), k);
  }
  // The offset of the place in a rank's scratch, by the slot of the rank that it is from.
  MSCCLPP_DEVICE_INLINE uint64_t offsetOf(Signal step, uint64_t slot, uint32_t k) const {
    const uint64_t ring = (step * (b.ranks - 1) + slot) * lanes + lane;
    return b.comm.chunks + b.half(b.comm.chunkBytes) + (ring * places + k % places) * chunk();
  }
  // The word at `to` that the block of this lane of `from` writes.
  MSCCLPP_DEVICE_INLINE uint64_t* word(Signal signal, uint32_t to, uint32_t from) const {
    const uint64_t line = (static_cast<uint64_t>(signal) * b.ranks + from) * b.comm.maxBlocks + lane;
    return reinterpret_cast<uint64_t*>(b.comm.scratch[to] + b.comm.signals + line * CollectiveLine);
  }
  // The value of signal k. A lane has fewer than 2^24 chunks: more would take 64 GiB even with the smallest.
  MSCCLPP_DEVICE_INLINE uint64_t value(uint32_t k) const { return (b.epoch << 24) + k + 1; }

  // Signals chunk k. One thread calls it, after a barrier.
  MSCCLPP_DEVICE_INLINE void signal(Signal signal, uint32_t peer, uint32_t k) const {
    detail::store<MemoryOrder::Release, MemoryScope::System>(word(signal, peer, b.rank), value(k));
  }
  // Waits for chunk k, and returns whether it came. One thread calls it, before a barrier. A wait for the own rank ends
  // when that for the next peer is aborted: whoever gives up a call aborts the waits for all peers.
  MSCCLPP_DEVICE_INLINE bool wait(Signal signal, uint32_t from, uint32_t k) const {
    return waitForWord(word(signal, b.rank, from), value(k), b.comm.status[from == b.rank ? b.peer(1) : from]);
  }
  // Waits in thread r for rank r, for each peer for which `due` returns true, and for the own rank if `own`. All threads
  // call it; returns whether all chunks came.
  template <class Due>
  MSCCLPP_DEVICE_INLINE bool waitForAll(Signal signal, uint32_t k, Due due, bool own = false) const {
    const uint32_t r = b.thread;
    const bool failed = r < b.ranks && (r == b.rank ? own : due(r)) && !wait(signal, r, k);
    return !blockAny(failed);
  }
  template <class Due>
  MSCCLPP_DEVICE_INLINE void signalAll(Signal which, uint32_t k, Due due, bool own = false) const {
    blockSync();
    const uint32_t r = b.thread;
    if (r < b.ranks && (r == b.rank ? own : due(r))) signal(which, r, k);
  }

  // The following functions are for more than two ranks.

  // Puts chunk k to each peer that has one, and signals.
  template <class Words>
  MSCCLPP_DEVICE_INLINE void putToAll(uint32_t k) const {
    const auto part = [&](uint32_t p) {
      const CollectiveSegment ours = b.call.segments[p];
      if (!has(ours.sendBytes, k)) return PartCopy{};
      return PartCopy{place(First, p, b.rank, k), ours.send + offset(k), length(ours.sendBytes, k)};
    };
    if (Words::sendsAsItIs(b.call)) {
      copyForPeers<Words::Reduces>(b, part);
    } else {
      for (uint32_t n = 1; n < b.ranks; ++n) {
        const PartCopy it = part(b.peer(n));
        if (it.bytes > 0) putBytes(it.to, it.from, it.bytes, b.thread, b.threads, sentBy<Words>());
      }
    }
    signalAll(First, k, [&](uint32_t r) { return has(b.call.segments[r].sendBytes, k); }, b.call.inPlace);
  }
  // Takes chunk k of each peer p that sends one in this step, unless `comes(p)`: then its chunk comes straight to its place.
  template <class Words, class Comes>
  MSCCLPP_DEVICE_INLINE void takeFromAll(Signal step, uint32_t k, Comes comes) const {
    copyForPeers<Words::Reduces>(b, [&](uint32_t p) {
      const CollectiveSegment theirs = b.call.segments[p];
      if (!has(theirs.recvBytes, k) || comes(p)) return PartCopy{};
      return PartCopy{theirs.recv + offset(k), place(step, b.rank, p, k), length(theirs.recvBytes, k)};
    });
  }
  // Reduces chunk k of all ranks. The result goes to this rank's message, and to the peers by `results()`: see reduceRanks.
  template <class Words, uint32_t AtOnce = RanksAtOnce, class Results>
  MSCCLPP_DEVICE_INLINE void reduceOfAll(uint32_t k, Results results) const {
    const CollectiveSegment own = b.call.segments[b.rank];
    const uint64_t at = offset(k);
    reduceRanks<Words, AtOnce>(b.comm, b.call, own.recv + at, own.send + at, length(own.recvBytes, k), offsetOf(First, 0, k),
                               places * lanes * chunk(), results());
  }
  // The same, and the result goes to all peers' places for results.
  template <class Words>
  MSCCLPP_DEVICE_INLINE void reduceForAll(uint32_t k) const {
    reduceOfAll<Words>(k, [&] { return offsetOf(Results, 0, k); });
  }
  // Takes the results of chunk k.
  template <class Words>
  MSCCLPP_DEVICE_INLINE void takeResults(uint32_t k) const {
    takeFromAll<Words>(Results, k, [](uint32_t) { return false; });
  }

  // Reduces `bytes` bytes of two ranks: this one's are at `own`, those of the other at byte `first` of its place for chunk k. A
  // thread has several vectors of each under way at once. `MayAverage`: see SumWords::ofTwo.
  template <class Words, bool MayAverage = false>
  MSCCLPP_DEVICE_INLINE void reduceTwo(uint8_t* out, const uint8_t* own, uint32_t bytes, uint32_t k, uint32_t first = 0) const {
    const uint8_t* const other = place(First, b.rank, 1 - b.rank, k) + first;
    const auto sent = sentBy<Words>();
    const auto reduced = [&](Bytes16 mine, Bytes16 theirs) {
      return Bytes16{b.template reduceTwo<Words, MayAverage>(sent(mine.low), theirs.low),
                     b.template reduceTwo<Words, MayAverage>(sent(mine.high), theirs.high)};
    };
    forVectors(
        bytes, isAligned<16>(own) && isAligned<16>(out), b.thread, b.threads,
        [&](uint32_t i, uint32_t step) {
          Bytes16 mine[VectorsInFlight], theirs[VectorsInFlight];
#pragma unroll
          for (uint32_t u = 0; u < VectorsInFlight; ++u) {
            mine[u] = load16(own + (i + u * step) * 16);
            theirs[u] = load16(other + (i + u * step) * 16);
          }
#pragma unroll
          for (uint32_t u = 0; u < VectorsInFlight; ++u) store16(out + (i + u * step) * 16, reduced(mine[u], theirs[u]));
        },
        [&](uint32_t i) {
          storeVectorOf(out, bytes, i, reduced(vectorOf(own, bytes, i), load16(other + i * 16)));
        });
  }
  // Turns a word into the word that is sent.
  template <class Words>
  struct Sent {
    const CollectiveCall& call;
    MSCCLPP_DEVICE_INLINE uint64_t operator()(uint64_t word) const { return Words::sent(call, word); }
  };
  template <class Words>
  MSCCLPP_DEVICE_INLINE Sent<Words> sentBy() const {
    return Sent<Words>{b.call};
  }
};

// The part of a block that has begun in an exchange by Simple between two ranks, whose blocks put and take. Averages of SumWords
// have kernels of their own: with code for both, that for sums spills registers.
template <class Words, bool Averages>
MSCCLPP_DEVICE_INLINE void chunksOfTwo(const CollectiveBlock& b) {
  const CollectiveCall& call = b.call;
  const Chunks chunks(b);
  const uint32_t other = 1 - b.rank;
  const CollectiveSegment ours = call.segments[other], theirs = call.segments[Words::Reduces ? b.rank : other];
  const uint32_t puts = chunks.count(ours.sendBytes), takes = chunks.count(theirs.recvBytes);
  // Takes chunk k, and returns whether it came.
  const auto take = [&](uint32_t k) {
    if (!chunks.waitForAll(Chunks::First, k, [&](uint32_t) { return k < takes; })) return false;
    if (k < takes) {
      const uint64_t at = chunks.offset(k);
      const uint32_t bytes = chunks.length(theirs.recvBytes, k);
      if constexpr (Words::Reduces) {
        if constexpr (Averages) {
          chunks.reduceOfAll<Words, 2>(k, [] { return uint64_t{0}; });
        } else {
          chunks.reduceTwo<Words>(theirs.recv + at, theirs.send + at, bytes, k);
        }
      } else {
        takeBytes(theirs.recv + at, chunks.place(Chunks::First, b.rank, other, k), bytes, b.thread, b.threads);
      }
    }
    if (call.oneWay) chunks.signalAll(Chunks::Credits, k, [&](uint32_t) { return k < takes; });
    return true;
  };
  // The own segment is copied in between, while data is under way.
  const CollectiveSegment own = call.segments[b.rank];
  const uint32_t copies = Words::Reduces || own.send == own.recv ? 0 : chunks.count(own.recvBytes);
  uint32_t most = copies;
  if (puts > most) most = puts;
  if (takes > most) most = takes;
  bool failed = false;
  for (uint32_t k = 0; k <= most && !failed; ++k) {
    if (k < puts) {
      if (call.oneWay && k >= CollectiveChunks) {
        failed = !chunks.waitForAll(Chunks::Credits, k - CollectiveChunks, [](uint32_t) { return true; });
        if (failed) break;
      }
      putBytes(chunks.place(Chunks::First, other, b.rank, k), ours.send + chunks.offset(k),
               chunks.length(ours.sendBytes, k), b.thread, b.threads, chunks.sentBy<Words>());
      chunks.signalAll(Chunks::First, k, [](uint32_t) { return true; });
    }
    if constexpr (!Words::Reduces) {
      const uint64_t at = chunks.offset(k);
      if (k < copies) copyBytes(own.recv + at, own.send + at, chunks.length(own.recvBytes, k), b.thread, b.threads);
    }
    if (k > 0) failed = !take(k - 1);
  }
  b.end(failed);
}

// The part of a block that has begun in an exchange by Simple between any number of ranks. Blocks have at least as many
// threads as there are ranks.
template <class Words>
MSCCLPP_DEVICE_INLINE void chunksOfMore(const CollectiveBlock& b) {
  const CollectiveCall& call = b.call;
  const ChunkRole role(b);
  const Chunks chunks(b, role.lane, role.lanes);
  const bool credits = call.oneWay || role.lanes != b.blocks;
  const auto takes = [&](uint32_t r, uint32_t k) {
    return chunks.has(call.segments[Words::Reduces ? b.rank : r].recvBytes, k);
  };
  // The own segment is copied in between, while data is under way.
  const CollectiveSegment own = call.segments[b.rank];
  const uint64_t copies = Words::Reduces || own.send == own.recv ? 0 : own.recvBytes;
  uint64_t mostBytes = copies;
  for (uint32_t n = 1; n < b.ranks; ++n) {
    const uint32_t p = b.peer(n);
    const uint64_t comes = call.segments[Words::Reduces ? b.rank : p].recvBytes;
    if (call.segments[p].sendBytes > mostBytes) mostBytes = call.segments[p].sendBytes;
    if (comes > mostBytes) mostBytes = comes;
  }
  const uint32_t most = chunks.count(mostBytes);
  // A block that also puts takes a chunk one step later.
  const uint32_t behind = role.puts ? 1 : 0;
  bool failed = false;
  for (uint32_t k = 0; k < most + behind && !failed; ++k) {
    if (role.puts && k < most) {
      if (credits && k >= CollectiveChunks) {
        const auto sends = [&](uint32_t r) { return chunks.has(call.segments[r].sendBytes, k); };
        failed = !chunks.waitForAll(Chunks::Credits, k - CollectiveChunks, sends);
        if (failed) break;
      }
      chunks.putToAll<Words>(k);
    }
    if (!role.takes) continue;
    if (chunks.has(copies, k)) {
      const uint64_t at = chunks.offset(k);
      copyByWarps(PartCopy{own.recv + at, own.send + at, chunks.length(own.recvBytes, k)});
    }
    if (k < behind) continue;
    const uint32_t j = k - behind;
    const bool afterPut = call.inPlace && !role.puts;
    failed = !chunks.waitForAll(Chunks::First, j, [&](uint32_t r) { return takes(r, j); }, afterPut);
    if (failed) break;
    if constexpr (!Words::Reduces) {
      chunks.takeFromAll<Words>(Chunks::First, j, [](uint32_t) { return false; });
    } else if (chunks.has(own.recvBytes, j)) {
      chunks.reduceOfAll<Words>(j, [] { return uint64_t{0}; });
    }
    if (credits) chunks.signalAll(Chunks::Credits, j, [&](uint32_t r) { return takes(r, j); });
  }
  b.end(failed);
}

template <class Words, bool OfTwo, bool Averages = false>
MSCCLPP_DEVICE_INLINE void chunksSimple(const CollectiveBlock& b) {
  if constexpr (OfTwo) {
    chunksOfTwo<Words, Averages>(b);
  } else {
    chunksOfMore<Words>(b);
  }
}

// An exchange by Simple.
template <class Words, bool OfTwo = false, bool Averages = false>
MSCCLPP_DEVICE_INLINE void exchangeSimple(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, OfTwo);
  if (!b.begin()) return;
  b.countOthers();
  chunksSimple<Words, OfTwo, Averages>(b);
}

// The part of a block that has begun in the all_reduce in two steps; its segments are those of allReduceLl128. `Lane` is Chunks,
// or a struct with its functions.
template <class Words, class Lane>
MSCCLPP_DEVICE_INLINE void reduceInTwoSteps(const CollectiveBlock& b, const ChunkRole& role, Lane chunks) {
  const CollectiveCall& call = b.call;
  const CollectiveSegment own = call.segments[b.rank];
  uint64_t mostBytes = 0;
  for (uint32_t r = 0; r < b.ranks; ++r) {
    if (call.segments[r].sendBytes > mostBytes) mostBytes = call.segments[r].sendBytes;
  }
  const uint32_t most = chunks.count(mostBytes);
  bool failed = false;
  for (uint32_t k = 0; k < most + 2 && !failed; ++k) {
    if (role.puts && k < most) chunks.template putToAll<Words>(k);
    // A block that also puts is one chunk behind; at first it has none, as 0 wraps around.
    const uint32_t j = role.puts ? k - 1 : k;
    if (role.takes && j < most) {
      const bool mine = chunks.has(own.sendBytes, j);
      const auto peers = [&](uint32_t) { return mine; };
      failed = !chunks.waitForAll(Chunks::First, j, peers);
      if (failed) break;
      if (mine) chunks.template reduceForAll<Words>(j);
      chunks.signalAll(Chunks::Results, j, peers);
    }
    if (role.puts && k >= 2) {
      const uint32_t last = k - 2;
      failed = !chunks.waitForAll(Chunks::Results, last, [&](uint32_t r) {
        return chunks.has(call.segments[r].sendBytes, last);
      });
      if (!failed) chunks.template takeResults<Words>(last);
    }
  }
  b.end(failed);
}

// The all_reduce in two steps, by Simple.
template <class Words>
MSCCLPP_DEVICE_INLINE void allReduceSimple(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, false);
  if (!b.begin()) return;
  b.countOthers();
  const ChunkRole role(b);
  const Chunks chunks(b, role.lane, role.lanes, CollectiveStepChunks);
  reduceInTwoSteps<Words>(b, role, chunks);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_SIMPLE_DEVICE_HPP_
