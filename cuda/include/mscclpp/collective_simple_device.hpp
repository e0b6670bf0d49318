// Collectives by chunks: plain stores of 16 bytes into the peer's scratch, and a signal after each chunk. For the
// library's own use.
//
// Chunk i of a message belongs to lane i modulo the lanes of the call, on both sides. A lane's chunks go into a
// ring of CollectiveChunks places at the peer, and each has a signal: a word at the peer that only one block writes,
// by a store with release behind a barrier of the block, after the chunk's stores. The value is made of the epoch and
// the chunk's number among the lane's, so it only grows. The peer's block waits for it with acquire, in front of a
// barrier of its own.
//
// Between two ranks each block is a lane. Between more, a lane is two blocks: one puts, and one takes (see ChunkRole).
// A block that does both leaves the link idle while it takes, and as all blocks begin together, they all do so at the
// same time.
//
// When a place may be used again:
//   R1. In a call in which all ranks give each other as much (no `oneWay`), a block does this, for k = 0, 1, ..: it
//       puts its chunk k to every peer, signals, and takes the chunks k - 1 of all peers. Before it puts chunk k it has
//       taken all chunks k - 2. A peer's block signals its chunk k - 2 after it has taken all chunks k - 4, as its step
//       before did, and so this block's chunk k - 4, which had the place of chunk k.
//   R2. In other calls, and where one block puts and another one takes, a block says what it has taken: a credit, a word at
//       the sender, stored with release behind a barrier. The sender waits for the credit of chunk k - 4 with acquire before it
//       puts chunk k.
//   R3. In the all_reduce of two steps a lane puts its chunk k of each part (step one), reduces its own part's
//       chunk k - 1 and puts the result to all (step two), and takes the results of chunk k - 2. Before it puts chunk k
//       it has the results of chunk k - 3 from every peer, who made them after they had taken its chunk k - 3. And
//       before it puts result k - 1 it has each peer's chunk k - 1, put after that peer had taken the results of chunk
//       k - 4. So places of k - 4 are free. If two blocks do this, one puts chunks and takes results, in the same order, and the
//       other reduces: all that was said is of one of them, or of what a signal tells.

#ifndef MSCCLPP_COLLECTIVE_SIMPLE_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_SIMPLE_DEVICE_HPP_

#include "mscclpp/collective_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Loads up to 16 bytes from any address; bytes after the end are 0. Not inlined, because it seldom runs.
MSCCLPP_DEVICE_NOINLINE Bytes16 loadVectorAny(const uint8_t* at, uint32_t bytes) {
  return {loadAny(at, bytes < 8 ? bytes : 8), bytes > 8 ? loadAny(at + 8, bytes - 8) : 0};
}
MSCCLPP_DEVICE_NOINLINE void storeVectorAny(uint8_t* at, uint32_t bytes, Bytes16 v) {
  storeAny(at, bytes < 8 ? bytes : 8, v.low);
  if (bytes > 8) storeAny(at + 8, bytes - 8, v.high);
}

// Returns vector i of 16 bytes of a part of a message, whose last vector may be shorter.
MSCCLPP_DEVICE_INLINE Bytes16 vectorOf(const uint8_t* part, uint32_t bytes, uint32_t i) {
  const uint8_t* const at = part + i * 16;
  const uint32_t left = bytes - i * 16;
  return left >= 16 && isAligned<16>(part) ? load16(at) : loadVectorAny(at, left < 16 ? left : 16);
}
MSCCLPP_DEVICE_INLINE void storeVectorOf(uint8_t* part, uint32_t bytes, uint32_t i, Bytes16 v) {
  uint8_t* const at = part + i * 16;
  const uint32_t left = bytes - i * 16;
  if (left >= 16 && isAligned<16>(part)) {
    store16(at, v);
  } else {
    storeVectorAny(at, left < 16 ? left : 16, v);
  }
}

// The number of vectors that a thread has under way at once.
constexpr uint32_t VectorsInFlight = 4;

// Lets the threads of a block move vectors: first by `several(i, step)`, which moves VectorsInFlight from i on, `step`
// apart, where all of them are whole and `aligned`, then by `one(i)`. With `AlsoFewer`, `several` moves as many of them
// as there are: it costs registers, and is for chunks that have fewer than all threads can have under way.
template <bool AlsoFewer = false, class Several, class One>
MSCCLPP_DEVICE_INLINE void forVectors(uint32_t bytes, bool aligned, uint32_t thread, uint32_t threads, Several several,
                                      One one) {
  uint32_t i = thread;
  if (aligned) {
    if constexpr (AlsoFewer) {
      const uint32_t whole = bytes / 16;
#pragma unroll 1
      for (; i < whole; i += VectorsInFlight * threads) several(i, threads);
      i = thread == 0 ? whole : whole + 1;
    } else {
#pragma unroll 1
      for (; (i + (VectorsInFlight - 1) * threads + 1) * 16 <= bytes; i += VectorsInFlight * threads) several(i, threads);
    }
  }
#pragma unroll 1
  for (; i * 16 < bytes; i += threads) one(i);
}

// Sends a word as it is.
struct AsItIs {
  MSCCLPP_DEVICE_INLINE uint64_t operator()(uint64_t word) const { return word; }
};

#if defined(MSCCLPP_DEVICE_SIM)
template <class Sent>
struct IsAsItIs {
  static constexpr bool Value = false;
};
template <>
struct IsAsItIs<AsItIs> {
  static constexpr bool Value = true;
};

// On a simulated device each thread has a contiguous range of the whole vectors, so that it can be done in one call.
struct Stretch {
  uint32_t begin, end;
  MSCCLPP_DEVICE_INLINE Stretch(uint32_t bytes, uint32_t thread, uint32_t threads) {
    const uint32_t vectors = bytes / 16, share = (vectors + threads - 1) / threads;
    begin = thread * share < vectors ? thread * share : vectors;
    end = vectors - begin < share ? vectors : begin + share;
  }
};
MSCCLPP_DEVICE_INLINE void copyStretch(uint8_t* to, const uint8_t* from, uint32_t bytes, uint32_t thread, uint32_t threads) {
  const Stretch own(bytes, thread, threads);
  if (mscclpp_sim::copyWords(to + own.begin * 16, from + own.begin * 16, (own.end - own.begin) * 2)) return;
  for (uint32_t i = own.begin; i < own.end; ++i) store16(to + i * 16, load16(from + i * 16));
}
#endif

// Copies `bytes` bytes, fewer than 2^31, and applies `sent` to their words. `toBytes` and `fromBytes` limit how far the
// last vector may be written and read: to the end of a message, or beyond it in a place of the scratch, which ends at a
// multiple of 16.
template <bool AlsoFewer = false, class Sent>
MSCCLPP_DEVICE_INLINE void copyPart(uint8_t* to, const uint8_t* from, uint32_t bytes, uint32_t toBytes, uint32_t fromBytes,
                                    uint32_t thread, uint32_t threads, Sent sent) {
#if defined(MSCCLPP_DEVICE_SIM)
  if constexpr (IsAsItIs<Sent>::Value) {
    if (isAligned<16>(to) && isAligned<16>(from)) {
      copyStretch(to, from, bytes, thread, threads);
      const uint32_t whole = bytes / 16;
      if (thread == 0 && bytes % 16 != 0) storeVectorOf(to, toBytes, whole, vectorOf(from, fromBytes, whole));
      return;
    }
  }
#endif
  forVectors<AlsoFewer>(
      bytes, isAligned<16>(to) && isAligned<16>(from), thread, threads,
      [=](uint32_t i, uint32_t step) {
        const auto is = [=](uint32_t u) { return !AlsoFewer || i + u * step < bytes / 16; };
        Bytes16 v[VectorsInFlight];
#pragma unroll
        for (uint32_t u = 0; u < VectorsInFlight; ++u) {
          if (is(u)) v[u] = load16(from + (i + u * step) * 16);
        }
#pragma unroll
        for (uint32_t u = 0; u < VectorsInFlight; ++u) {
          if (is(u)) store16(to + (i + u * step) * 16, Bytes16{sent(v[u].low), sent(v[u].high)});
        }
      },
      [=](uint32_t i) {
        const Bytes16 v = vectorOf(from, fromBytes, i);
        storeVectorOf(to, toBytes, i, Bytes16{sent(v.low), sent(v.high)});
      });
}
// Three copies: bytes into a place, which begins at a multiple of 16 and may be written up to one; bytes out of a
// place; and bytes from a message to another.
template <bool AlsoFewer = false, class Sent>
MSCCLPP_DEVICE_INLINE void putBytes(uint8_t* place, const uint8_t* from, uint32_t bytes, uint32_t thread,
                                    uint32_t threads, Sent sent) {
  copyPart<AlsoFewer>(place, from, bytes, bytes + 16, bytes, thread, threads, sent);
}
template <bool AlsoFewer = false>
MSCCLPP_DEVICE_INLINE void takeBytes(uint8_t* to, const uint8_t* place, uint32_t bytes, uint32_t thread,
                                     uint32_t threads) {
  copyPart<AlsoFewer>(to, place, bytes, bytes, bytes + 16, thread, threads, AsItIs());
}
template <bool AlsoFewer = false>
MSCCLPP_DEVICE_INLINE void copyBytes(uint8_t* to, const uint8_t* from, uint32_t bytes, uint32_t thread,
                                     uint32_t threads) {
  copyPart<AlsoFewer>(to, from, bytes, bytes, bytes, thread, threads, AsItIs());
}

// The role of a block, and its lane. `puts`: it sends, and takes the results of an all_reduce in two steps; `takes`: it
// takes or reduces what comes. With an odd number of blocks, the last one of them has no lane. Where what is taken
// overwrites what is sent (`inPlace`), one block of a lane does both, one after the other; the peers need not know. The
// host makes sure that all blocks of a call run at once; otherwise the blocks that put could wait for ever for those
// that take.
struct ChunkRole {
  uint32_t lane, lanes;
  bool puts, takes;

  MSCCLPP_DEVICE_INLINE ChunkRole(const CollectiveBlock& b, bool oneBlock, bool inPlace)
      : lane(b.block), lanes(b.blocks), puts(true), takes(true) {
    if (oneBlock || b.blocks < 2) return;
    lanes = b.blocks / 2;
    puts = b.block < lanes;
    takes = inPlace ? puts : !puts && b.block < 2 * lanes;
    if (!puts) lane = b.block - lanes;
  }
};

struct Chunks {
  const CollectiveBlock& b;
  uint32_t lane, lanes;
  uint64_t chunk;  // bytes
  uint64_t base;   // of this call's half

  // The purpose of a word of signals: a step of the all_reduce, or credits.
  enum Signal : uint32_t { First = 0, Results = 1, Credits = 2 };

  MSCCLPP_DEVICE_INLINE explicit Chunks(const CollectiveBlock& b) : Chunks(b, b.block, b.blocks) {}
  MSCCLPP_DEVICE_INLINE Chunks(const CollectiveBlock& b, uint32_t lane, uint32_t lanes)
      : b(b), lane(lane), lanes(lanes), chunk(b.call.chunk), base(b.comm.chunks + b.half(b.comm.chunkBytes)) {}

  // The number of chunks of this lane in a message.
  MSCCLPP_DEVICE_INLINE uint64_t count(uint64_t bytes) const {
    const uint64_t all = (bytes + chunk - 1) / chunk;
    return all > lane ? (all - lane + lanes - 1) / lanes : 0;
  }
  // The beginning of this lane's chunk k in the message, and the bytes of that chunk, fewer than 2^31.
  MSCCLPP_DEVICE_INLINE uint64_t offset(uint64_t k) const { return (lane + k * lanes) * chunk; }
  MSCCLPP_DEVICE_INLINE uint32_t length(uint64_t bytes, uint64_t k) const {
    const uint64_t left = bytes - offset(k);
    return static_cast<uint32_t>(left < chunk ? left : chunk);
  }
  // The contiguous part of a message that has as many chunks as this lane. The parts of all lanes make up the message.
  MSCCLPP_DEVICE_INLINE void share(uint64_t bytes, uint64_t& from, uint64_t& to) const {
    const uint64_t all = (bytes + chunk - 1) / chunk, each = all / lanes, rest = all % lanes;
    from = (lane * each + (lane < rest ? lane : rest)) * chunk;
    to = from + count(bytes) * chunk;
    if (to > bytes) to = bytes;
  }
  // The place at rank `to` of chunk k of `from`.
  MSCCLPP_DEVICE_INLINE uint8_t* place(Signal step, uint32_t to, uint32_t from, uint64_t k) const {
    const uint64_t ring = (step * (b.ranks - 1) + b.slotOf(from, to)) * lanes + lane;
    return b.comm.scratch[to] + base + (ring * CollectiveChunks + k % CollectiveChunks) * chunk;
  }
  // The word at `to` that the block of this lane of `from` writes.
  MSCCLPP_DEVICE_INLINE uint64_t* word(Signal signal, uint32_t to, uint32_t from) const {
    const uint64_t line = (static_cast<uint64_t>(signal) * b.ranks + from) * b.comm.maxBlocks + lane;
    return reinterpret_cast<uint64_t*>(b.comm.scratch[to] + b.comm.signals + line * CollectiveLine);
  }
  // The value of signal k. A lane has fewer than 2^24 chunks: more would take 64 GiB even with the smallest.
  MSCCLPP_DEVICE_INLINE uint64_t value(uint64_t k) const { return (b.epoch << 24) + k + 1; }

  // Signals chunk k. One thread calls it, after a barrier.
  MSCCLPP_DEVICE_INLINE void signal(Signal signal, uint32_t peer, uint64_t k) const {
    detail::store<MemoryOrder::Release, MemoryScope::System>(word(signal, peer, b.rank), value(k));
  }
  // Waits for chunk k, and returns whether it came. One thread calls it, before a barrier.
  MSCCLPP_DEVICE_INLINE bool wait(Signal signal, uint32_t peer, uint64_t k) const {
    return waitForWord(word(signal, b.rank, peer), value(k), b.comm.status[peer]);
  }
  // Waits in thread r for rank r, for each rank for which `due` returns true. All threads call it; returns whether all
  // chunks came.
  template <class Due>
  MSCCLPP_DEVICE_INLINE bool waitForAll(Signal signal, uint64_t k, Due due) const {
    const uint32_t r = b.thread;
    const bool failed = r < b.ranks && r != b.rank && due(r) && !wait(signal, r, k);
    return !blockAny(failed);
  }
  template <class Due>
  MSCCLPP_DEVICE_INLINE void signalAll(Signal which, uint64_t k, Due due) const {
    blockSync();
    const uint32_t r = b.thread;
    if (r < b.ranks && r != b.rank && due(r)) signal(which, r, k);
  }

  // Puts bytes into a place. `AlsoFewer` is that of forVectors.
  template <class Words, bool AlsoFewer = false>
  MSCCLPP_DEVICE_INLINE void put(uint8_t* place, const uint8_t* from, uint32_t bytes) const {
    putBytes<AlsoFewer>(place, from, bytes, b.thread, b.threads, sentBy<Words>());
  }
  // Puts chunk k to each peer that has one, and signals.
  template <class Words, bool AlsoFewer>
  MSCCLPP_DEVICE_INLINE void putAll(uint64_t k) const {
    const auto sends = [&](uint32_t r) { return k < count(b.call.segments[r].sendBytes); };
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      const CollectiveSegment ours = b.call.segments[p];
      if (sends(p)) put<Words, AlsoFewer>(place(First, p, b.rank, k), ours.send + offset(k), length(ours.sendBytes, k));
    }
    signalAll(First, k, sends);
  }
  template <bool AlsoFewer = false>
  MSCCLPP_DEVICE_INLINE void take(uint8_t* to, const uint8_t* place, uint32_t bytes) const {
    takeBytes<AlsoFewer>(to, place, bytes, b.thread, b.threads);
  }
  // Reduces `bytes` bytes of two ranks: this one's are at `own`, those of the other in its place for chunk k. A thread
  // has several vectors of each under way at once.
  template <class Words>
  MSCCLPP_DEVICE_INLINE void reduceTwo(uint8_t* out, const uint8_t* own, uint32_t bytes, uint64_t k) const {
    const uint8_t* const other = place(First, b.rank, 1 - b.rank, k);
    const auto sent = sentBy<Words>();
    const auto reduced = [&](Bytes16 mine, Bytes16 theirs) {
      return Bytes16{b.reduceTwo<Words>(sent(mine.low), theirs.low), b.reduceTwo<Words>(sent(mine.high), theirs.high)};
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

  // Reduces `bytes` bytes of any number of ranks: those of rank r are in place(First, here, r, k). The result goes to
  // `out`, and `also` gets it as vectors of 16 bytes. A thread has a vector of several ranks under way at once.
  template <class Words, class Also>
  MSCCLPP_DEVICE_INLINE void reduce(uint8_t* out, const uint8_t* own, uint32_t bytes, uint64_t k, Also also) const {
    const auto sent = sentBy<Words>();
#pragma unroll 1
    for (uint32_t i = b.thread; i * 16 < bytes; i += b.threads) {
      typename Words::Fold low, high;
#pragma unroll 1
      for (uint32_t r = 0; r < b.ranks; r += VectorsInFlight) {
        Bytes16 v[VectorsInFlight];
#pragma unroll
        for (uint32_t u = 0; u < VectorsInFlight; ++u) {
          if (r + u < b.ranks) {
            v[u] = r + u == b.rank ? vectorOf(own, bytes, i) : load16(place(First, b.rank, r + u, k) + i * 16);
          }
        }
#pragma unroll
        for (uint32_t u = 0; u < VectorsInFlight; ++u) {
          if (r + u < b.ranks) {
            const bool mine = r + u == b.rank;
            low.put(r + u, mine ? sent(v[u].low) : v[u].low);
            high.put(r + u, mine ? sent(v[u].high) : v[u].high);
          }
        }
      }
      const Bytes16 v = {low.result(b.call, b.ranks), high.result(b.call, b.ranks)};
      storeVectorOf(out, bytes, i, v);
      also(i, v);
    }
  }

 private:
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

// An exchange by Simple. Blocks have at least as many threads as there are ranks.
template <class Words, bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void exchangeSimple(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, OfTwo);
  if (!b.begin()) return;
  b.countOthers();
  const ChunkRole role(b, OfTwo, call.inPlace);
  const Chunks chunks(b, role.lane, role.lanes);
  const bool credits = call.oneWay || role.lanes != b.blocks;
  const auto sends = [&](uint32_t r) { return chunks.count(call.segments[r].sendBytes); };
  const auto takes = [&](uint32_t r) {
    return chunks.count(call.segments[Words::Reduces ? b.rank : r].recvBytes);
  };
  // Takes the chunks k of all peers. Returns whether they came.
  const auto take = [&](uint64_t k) {
    if (!chunks.waitForAll(Chunks::First, k, [&](uint32_t r) { return k < takes(r); })) return false;
    if constexpr (Words::Reduces) {
      const CollectiveSegment own = call.segments[b.rank];
      if (k < takes(b.rank)) {
        const uint64_t at = chunks.offset(k);
        const uint32_t bytes = chunks.length(own.recvBytes, k);
        if constexpr (OfTwo) {
          chunks.reduceTwo<Words>(own.recv + at, own.send + at, bytes, k);
        } else {
          chunks.reduce<Words>(own.recv + at, own.send + at, bytes, k, [](uint32_t, Bytes16) {});
        }
      }
    } else {
      for (uint32_t n = 1; n < b.ranks; ++n) {
        const uint32_t p = b.peer(n);
        const CollectiveSegment theirs = call.segments[p];
        if (k < takes(p)) {
          chunks.take<!OfTwo>(theirs.recv + chunks.offset(k), chunks.place(Chunks::First, b.rank, p, k),
                              chunks.length(theirs.recvBytes, k));
        }
      }
    }
    if (credits) chunks.signalAll(Chunks::Credits, k, [&](uint32_t r) { return k < takes(r); });
    return true;
  };

  // The own segment is copied in between, while data is under way.
  const CollectiveSegment own = call.segments[b.rank];
  const uint64_t copies = Words::Reduces || own.send == own.recv ? 0 : chunks.count(own.recvBytes);
  uint64_t most = copies;
  for (uint32_t n = 1; n < b.ranks; ++n) {
    const uint32_t p = b.peer(n);
    if (sends(p) > most) most = sends(p);
    if (takes(p) > most) most = takes(p);
  }
  bool failed = false;
  // A block that also puts takes a chunk one step later.
  const uint64_t behind = role.puts ? 1 : 0;
  for (uint64_t k = 0; k < most + behind && !failed; ++k) {
    if (role.puts && k < most) {
      if (credits && k >= CollectiveChunks) {
        const uint64_t last = k - CollectiveChunks;
        failed = !chunks.waitForAll(Chunks::Credits, last, [&](uint32_t r) { return k < sends(r); });
        if (failed) break;
      }
      chunks.putAll<Words, !OfTwo>(k);
    }
    if (!role.takes) continue;
    if (!Words::Reduces && k < copies) {
      const uint64_t at = chunks.offset(k);
      copyBytes<!OfTwo>(own.recv + at, own.send + at, chunks.length(own.recvBytes, k), b.thread, b.threads);
    }
    if (k >= behind) failed = !take(k - behind);
  }
  b.end(failed);
}

// The all_reduce in two steps, by Simple; its segments are those of allReduceLl128.
template <class Words>
MSCCLPP_DEVICE_INLINE void allReduceSimple(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, false);
  if (!b.begin()) return;
  b.countOthers();
  const ChunkRole role(b, false, false);
  const Chunks chunks(b, role.lane, role.lanes);
  const auto count = [&](uint32_t r) { return chunks.count(call.segments[r].sendBytes); };
  const CollectiveSegment own = call.segments[b.rank];
  uint64_t most = 0;
  for (uint32_t r = 0; r < b.ranks; ++r) {
    if (count(r) > most) most = count(r);
  }
  bool failed = false;
  for (uint64_t k = 0; k < most + 2 && !failed; ++k) {
    if (role.puts && k < most) chunks.putAll<Words, true>(k);
    // A block that also puts is one chunk behind; at first it has none, as 0 wraps around.
    const uint64_t j = role.puts ? k - 1 : k;
    if (role.takes && j < most) {
      const uint64_t at = chunks.offset(j);
      const bool mine = j < count(b.rank);
      failed = !chunks.waitForAll(Chunks::First, j, [&](uint32_t) { return mine; });
      if (failed) break;
      if (mine) {
        chunks.reduce<Words>(own.recv + at, own.send + at, chunks.length(own.sendBytes, j), j,
                             [&](uint32_t i, Bytes16 v) {
                               for (uint32_t n = 1; n < b.ranks; ++n) {
                                 store16(chunks.place(Chunks::Results, b.peer(n), b.rank, j) + i * 16, v);
                               }
                             });
      }
      chunks.signalAll(Chunks::Results, j, [&](uint32_t) { return mine; });
    }
    if (role.puts && k >= 2) {
      const uint64_t last = k - 2;
      failed = !chunks.waitForAll(Chunks::Results, last, [&](uint32_t r) { return last < count(r); });
      if (failed) break;
      for (uint32_t n = 1; n < b.ranks; ++n) {
        const uint32_t p = b.peer(n);
        const CollectiveSegment part = call.segments[p];
        if (last < count(p)) {
          chunks.take<true>(part.recv + chunks.offset(last), chunks.place(Chunks::Results, b.rank, p, last),
                            chunks.length(part.sendBytes, last));
        }
      }
    }
  }
  b.end(failed);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_SIMPLE_DEVICE_HPP_
