// Collectives by pieces: plain stores of 16 bytes into the peer's scratch, and a signal behind each piece. For the
// library's own use.
//
// Piece i of a message belongs to block i modulo the blocks of the call, on both sides. A block's pieces go into a
// ring of CollectivePieces places at the peer, and each has a signal: a word at the peer that only this block writes,
// by a store with release behind a barrier of the block, after the piece's stores. The value is made of the epoch and
// the piece's number among the block's, so it only grows. The peer's block waits for it with acquire, in front of a
// barrier of its own.
//
// When a place may be used again:
//   R1. In a call in which all ranks give each other as much (no `oneWay`), a block does this, for k = 0, 1, ..: it
//       puts its piece k to every peer, signals, and takes the pieces k - 1 of all peers. Before it puts piece k it has
//       taken all pieces k - 2. A peer's block signals its piece k - 2 after it has taken all pieces k - 4, as its step
//       before did, and so this block's piece k - 4, which had the place of piece k.
//   R2. In other calls a block says what it has taken: a credit, a word at the sender, stored with release behind a
//       barrier. The sender waits for the credit of piece k - 4 with acquire before it puts piece k.
//   R3. In the all_reduce of two steps a block puts its piece k of each part (step one), reduces its own part's
//       piece k - 1 and puts the result to all (step two), and takes the results of piece k - 2. Before it puts piece k
//       it has the results of piece k - 3 from every peer, who made them after they had taken its piece k - 3. And
//       before it puts result k - 1 it has each peer's piece k - 1, put after that peer had taken the results of piece
//       k - 4. So places of k - 4 are free.

#ifndef MSCCLPP_COLLECTIVE_PIECES_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_PIECES_DEVICE_HPP_

#include "mscclpp/collective_call_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Vector i of a message in any memory, each of whose words `sent` turns into what is sent. What is behind the end is 0.
template <class Sent>
MSCCLPP_DEVICE_INLINE Bytes16 messageVector(const uint8_t* message, uint64_t bytes, uint64_t i, Sent sent) {
  if (aligned16(message) && (i + 1) * 16 <= bytes) {
    const Bytes16 v = load16(message + i * 16);
    return {sent(v.low), sent(v.high)};
  }
  Bytes16 v = {sent(messageWord(message, bytes, i * 2)), 0};
  if ((i * 2 + 1) * 8 < bytes) v.high = sent(messageWord(message, bytes, i * 2 + 1));
  return v;
}
MSCCLPP_DEVICE_INLINE void storeMessageVector(uint8_t* message, uint64_t bytes, uint64_t i, Bytes16 v) {
  if (aligned16(message) && (i + 1) * 16 <= bytes) {
    store16(message + i * 16, v);
  } else {
    storeMessageWord(message, bytes, i * 2, v.low);
    if ((i * 2 + 1) * 8 < bytes) storeMessageWord(message, bytes, i * 2 + 1, v.high);
  }
}

// Puts bytes into a place, which begins at a multiple of 16 and may be written up to one.
template <class Sent>
MSCCLPP_DEVICE_INLINE void putBytes(uint8_t* place, const uint8_t* from, uint64_t bytes, uint64_t thread,
                                    uint64_t threads, Sent sent) {
  uint64_t i = thread;
  if (aligned16(from)) {
    for (; (i + 3 * threads + 1) * 16 <= bytes; i += 4 * threads) {
      Bytes16 v[4];
#pragma unroll
      for (uint32_t u = 0; u < 4; ++u) v[u] = load16(from + (i + u * threads) * 16);
#pragma unroll
      for (uint32_t u = 0; u < 4; ++u) store16(place + (i + u * threads) * 16, {sent(v[u].low), sent(v[u].high)});
    }
  }
  for (; i * 16 < bytes; i += threads) store16(place + i * 16, messageVector(from, bytes, i, sent));
}
// Takes them out.
MSCCLPP_DEVICE_INLINE void takeBytes(uint8_t* to, const uint8_t* place, uint64_t bytes, uint64_t thread,
                                     uint64_t threads) {
  uint64_t i = thread;
  if (aligned16(to)) {
    for (; (i + 3 * threads + 1) * 16 <= bytes; i += 4 * threads) {
      Bytes16 v[4];
#pragma unroll
      for (uint32_t u = 0; u < 4; ++u) v[u] = load16(place + (i + u * threads) * 16);
#pragma unroll
      for (uint32_t u = 0; u < 4; ++u) store16(to + (i + u * threads) * 16, v[u]);
    }
  }
  for (; i * 16 < bytes; i += threads) storeMessageVector(to, bytes, i, load16(place + i * 16));
}

struct Pieces {
  const CollectiveBlock& b;
  uint64_t piece;  // bytes
  uint64_t base;   // of this call's half

  // What a word of signals is for. A step of the all_reduce, or credits.
  enum Signal : uint32_t { First = 0, Results = 1, Credits = 2 };

  MSCCLPP_DEVICE_INLINE explicit Pieces(const CollectiveBlock& b)
      : b(b), piece(b.call.piece), base(b.comm.pieces + b.half(b.comm.pieceBytes)) {}

  // How many pieces of a message are this block's.
  MSCCLPP_DEVICE_INLINE uint64_t count(uint64_t bytes) const {
    const uint64_t all = (bytes + piece - 1) / piece;
    return all > b.block ? (all - b.block + b.blocks - 1) / b.blocks : 0;
  }
  // Where this block's piece k begins in the message, and how many bytes it has.
  MSCCLPP_DEVICE_INLINE uint64_t offset(uint64_t k) const { return (b.block + k * b.blocks) * piece; }
  MSCCLPP_DEVICE_INLINE uint64_t length(uint64_t bytes, uint64_t k) const {
    const uint64_t left = bytes - offset(k);
    return left < piece ? left : piece;
  }
  // Where piece k of `from` is at `to`.
  MSCCLPP_DEVICE_INLINE uint8_t* place(Signal step, uint32_t to, uint32_t from, uint64_t k) const {
    const uint64_t ring = (step * (b.ranks - 1) + b.slotOf(from, to)) * b.blocks + b.block;
    return b.comm.scratch[to] + base + (ring * CollectivePieces + k % CollectivePieces) * piece;
  }
  // The word at `to` that this block of `from` writes.
  MSCCLPP_DEVICE_INLINE uint64_t* word(Signal signal, uint32_t to, uint32_t from) const {
    const uint64_t line = (static_cast<uint64_t>(signal) * b.ranks + from) * b.comm.slots + b.block;
    return reinterpret_cast<uint64_t*>(b.comm.scratch[to] + b.comm.signals + line * CollectiveLine);
  }
  // A block has fewer than 2^24 pieces: that would be 64 GiB even of the smallest.
  MSCCLPP_DEVICE_INLINE uint64_t value(uint64_t k) const { return (b.epoch << 24) + k + 1; }

  // By one thread, behind a barrier.
  MSCCLPP_DEVICE_INLINE void signal(Signal signal, uint32_t peer, uint64_t k) const {
    detail::store<MemoryOrder::Release, MemoryScope::System>(word(signal, peer, b.rank), value(k));
  }
  // By one thread, in front of a barrier. Returns whether it came.
  MSCCLPP_DEVICE_INLINE bool wait(Signal signal, uint32_t peer, uint64_t k) const {
    const uint64_t* const at = word(signal, b.rank, peer);
    const uint64_t least = value(k);
    const auto came = [&] { return detail::load<MemoryOrder::Acquire, MemoryScope::System>(at) >= least; };
    return came() || pollUntil<4>(came, -1, b.comm.status[peer]);
  }
  // Thread r does this for rank r, of those for whom `due` says so. All threads call it; returns whether all came.
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

  template <class Words>
  MSCCLPP_DEVICE_INLINE void put(uint8_t* place, const uint8_t* from, uint64_t bytes) const {
    putBytes(place, from, bytes, b.thread, b.threads, sentBy<Words>());
  }
  MSCCLPP_DEVICE_INLINE void take(uint8_t* to, const uint8_t* place, uint64_t bytes) const {
    takeBytes(to, place, bytes, b.thread, b.threads);
  }
  // Reduces `bytes` bytes of all ranks: this one's are at `own`, that of rank r is in place(First, here, r, k). The
  // result goes to `out`, and by `also` to wherever else it is wanted, as vectors of 16 bytes.
  //
  // A thread has several loads under way at once: of two ranks, four vectors of each; of more, a vector of four ranks.
  template <class Words, class Also>
  MSCCLPP_DEVICE_INLINE void reduce(uint8_t* out, const uint8_t* own, uint64_t bytes, uint64_t k, Also also) const {
    const uint64_t step = b.threads;
    const auto sent = sentBy<Words>();
    const auto reduced = [&](uint64_t first, uint64_t second) {
      typename Words::Fold fold;
      fold.put(0, first);
      fold.put(1, second);
      return fold.result(b.call, 2);
    };
    uint64_t i = b.thread;
    if (b.ranks == 2 && aligned16(own) && aligned16(out)) {
      const uint8_t* const other = place(First, b.rank, 1 - b.rank, k);
      const bool isFirst = b.rank == 0;
#pragma unroll 1
      for (; (i + 3 * step + 1) * 16 <= bytes; i += 4 * step) {
        Bytes16 mine[4], theirs[4];
#pragma unroll
        for (uint32_t u = 0; u < 4; ++u) {
          mine[u] = load16(own + (i + u * step) * 16);
          theirs[u] = load16(other + (i + u * step) * 16);
        }
#pragma unroll
        for (uint32_t u = 0; u < 4; ++u) {
          const Bytes16 ours = {sent(mine[u].low), sent(mine[u].high)};
          const Bytes16 sum = {reduced(isFirst ? ours.low : theirs[u].low, isFirst ? theirs[u].low : ours.low),
                               reduced(isFirst ? ours.high : theirs[u].high, isFirst ? theirs[u].high : ours.high)};
          store16(out + (i + u * step) * 16, sum);
          also(i + u * step, sum);
        }
      }
    }
#pragma unroll 1
    for (; i * 16 < bytes; i += step) {
      typename Words::Fold low, high;
#pragma unroll 1
      for (uint32_t r = 0; r < b.ranks; r += 4) {
        Bytes16 v[4];
#pragma unroll
        for (uint32_t u = 0; u < 4; ++u) {
          if (r + u < b.ranks) {
            v[u] = r + u == b.rank ? messageVector(own, bytes, i, sent)
                                   : load16(place(First, b.rank, r + u, k) + i * 16);
          }
        }
#pragma unroll
        for (uint32_t u = 0; u < 4; ++u) {
          if (r + u < b.ranks) {
            low.put(r + u, v[u].low);
            high.put(r + u, v[u].high);
          }
        }
      }
      const Bytes16 v = {low.result(b.call, b.ranks), high.result(b.call, b.ranks)};
      storeMessageVector(out, bytes, i, v);
      also(i, v);
    }
  }

 private:
  // Turns a word into what is sent.
  template <class Words>
  struct Sent {
    const CollectiveCall& call;
    MSCCLPP_DEVICE_INLINE uint64_t operator()(uint64_t word) const {
      if constexpr (Words::Reduces) return Words::scaled(call, word);
      return word;
    }
  };
  template <class Words>
  MSCCLPP_DEVICE_INLINE Sent<Words> sentBy() const {
    return Sent<Words>{b.call};
  }
};

// An exchange by pieces. Blocks have at least as many threads as there are ranks.
template <class Words>
MSCCLPP_DEVICE_INLINE void exchangePieces(const CollectiveHandle& comm, const CollectiveCall& call) {
  const CollectiveBlock b(comm, call);
  if (!b.begin()) return;
  const Pieces pieces(b);
  const auto sends = [&](uint32_t r) { return pieces.count(call.segments[r].sendBytes); };
  const auto takes = [&](uint32_t r) {
    return pieces.count(call.segments[Words::Reduces ? b.rank : r].recvBytes);
  };
  // The pieces k of all peers. Returns whether they came.
  const auto take = [&](uint64_t k) {
    if (!pieces.waitForAll(Pieces::First, k, [&](uint32_t r) { return k < takes(r); })) return false;
    if constexpr (Words::Reduces) {
      const CollectiveSegment own = call.segments[b.rank];
      if (k < takes(b.rank)) {
        const uint64_t at = pieces.offset(k);
        pieces.reduce<Words>(own.recv + at, own.send + at, pieces.length(own.recvBytes, k), k, [](uint64_t, Bytes16) {});
      }
    } else {
      for (uint32_t n = 1; n < b.ranks; ++n) {
        const uint32_t p = b.peer(n);
        const CollectiveSegment theirs = call.segments[p];
        if (k < takes(p)) {
          pieces.take(theirs.recv + pieces.offset(k), pieces.place(Pieces::First, b.rank, p, k),
                      pieces.length(theirs.recvBytes, k));
        }
      }
    }
    if (call.oneWay) pieces.signalAll(Pieces::Credits, k, [&](uint32_t r) { return k < takes(r); });
    return true;
  };

  uint64_t most = 0;
  for (uint32_t n = 1; n < b.ranks; ++n) {
    const uint32_t p = b.peer(n);
    if (sends(p) > most) most = sends(p);
    if (takes(p) > most) most = takes(p);
  }
  bool failed = false;
  for (uint64_t k = 0; k < most && !failed; ++k) {
    if (call.oneWay && k >= CollectivePieces) {
      const uint64_t last = k - CollectivePieces;
      failed = !pieces.waitForAll(Pieces::Credits, last, [&](uint32_t r) { return k < sends(r); });
      if (failed) break;
    }
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      const CollectiveSegment ours = call.segments[p];
      if (k < sends(p)) {
        pieces.put<Words>(pieces.place(Pieces::First, p, b.rank, k), ours.send + pieces.offset(k),
                          pieces.length(ours.sendBytes, k));
      }
    }
    pieces.signalAll(Pieces::First, k, [&](uint32_t r) { return k < sends(r); });
    if (k > 0) failed = !take(k - 1);
  }
  if (!failed && most > 0) failed = !take(most - 1);
  if constexpr (!Words::Reduces) b.copyOwn();
  b.end(failed);
}

// The all_reduce in two steps, by pieces: see allReduceLines.
template <class Words>
MSCCLPP_DEVICE_INLINE void allReducePieces(const CollectiveHandle& comm, const CollectiveCall& call) {
  const CollectiveBlock b(comm, call);
  if (!b.begin()) return;
  const Pieces pieces(b);
  const auto count = [&](uint32_t r) { return pieces.count(call.segments[r].sendBytes); };
  const CollectiveSegment own = call.segments[b.rank];
  uint64_t most = 0;
  for (uint32_t r = 0; r < b.ranks; ++r) {
    if (count(r) > most) most = count(r);
  }
  bool failed = false;
  for (uint64_t k = 0; k < most + 2 && !failed; ++k) {
    if (k < most) {
      for (uint32_t n = 1; n < b.ranks; ++n) {
        const uint32_t p = b.peer(n);
        const CollectiveSegment part = call.segments[p];
        if (k < count(p)) {
          pieces.put<Words>(pieces.place(Pieces::First, p, b.rank, k), part.send + pieces.offset(k),
                            pieces.length(part.sendBytes, k));
        }
      }
      pieces.signalAll(Pieces::First, k, [&](uint32_t r) { return k < count(r); });
    }
    if (k >= 1 && k - 1 < most) {
      const uint64_t j = k - 1, at = pieces.offset(j);
      const bool mine = j < count(b.rank);
      failed = !pieces.waitForAll(Pieces::First, j, [&](uint32_t) { return mine; });
      if (failed) break;
      if (mine) {
        pieces.reduce<Words>(own.recv + at, own.send + at, pieces.length(own.sendBytes, j), j,
                             [&](uint64_t i, Bytes16 v) {
                               for (uint32_t n = 1; n < b.ranks; ++n) {
                                 store16(pieces.place(Pieces::Results, b.peer(n), b.rank, j) + i * 16, v);
                               }
                             });
      }
      pieces.signalAll(Pieces::Results, j, [&](uint32_t) { return mine; });
    }
    if (k >= 2) {
      const uint64_t j = k - 2;
      failed = !pieces.waitForAll(Pieces::Results, j, [&](uint32_t r) { return j < count(r); });
      if (failed) break;
      for (uint32_t n = 1; n < b.ranks; ++n) {
        const uint32_t p = b.peer(n);
        const CollectiveSegment part = call.segments[p];
        if (j < count(p)) {
          pieces.take(part.recv + pieces.offset(j), pieces.place(Pieces::Results, b.rank, p, j),
                      pieces.length(part.sendBytes, j));
        }
      }
    }
  }
  b.end(failed);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_PIECES_DEVICE_HPP_
