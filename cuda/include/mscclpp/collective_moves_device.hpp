// Several collectives that move data, in one launch: one exchange between each pair of ranks, whose message has a part for
// each call. For the library's own use.
//
// A part begins at the same place in the messages of all pairs of ranks, behind the largest part that any pair has for
// the call before. All ranks know where that is. So a word that a call takes in place of one that it sends has the same
// number in both messages, and is moved by the same thread or in the same chunk, as in a launch of one call. What a pair
// of ranks has less than the largest part is left out: it is neither sent nor waited for.
//
// Calls whose sizes only pairs of ranks know (an all_to_all with counts) are behind the others, and go by Simple alone. Each of
// their parts begins behind the end of the one before in the message of each pair, at a multiple of 16 bytes. None of them is
// in place.
//
// Places are counted in the units of the protocol: words of 8 bytes (LL16), lines of 120 bytes (LL128), or vectors of 16
// bytes (Simple). So each part begins with a whole one.

#ifndef MSCCLPP_COLLECTIVE_MOVES_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_MOVES_DEVICE_HPP_

#include "mscclpp/collective_ll128_device.hpp"
#include "mscclpp/collective_ll16_device.hpp"
#include "mscclpp/collective_simple_device.hpp"

namespace mscclpp {

// The most moves of a launch, those of all its calls with each rank, and the most calls. A launch is a parameter of a
// kernel, of which there may be 4096 bytes.
enum MovesLimits : uint32_t { CollectiveMaxMoves = 120, CollectiveMaxMoveCalls = CollectiveMaxMoves / 2 };

// The data of a call that goes to a rank, and the data that comes from it. Those of the own rank are copied.
//
// A call whose sizes only pairs of ranks know has two moves with each rank. In the second one, the addresses are the
// offsets of its parts in the messages to and from that rank, and the sizes are the upper halves of theirs.
struct CollectiveMove {
  const uint8_t* send;
  uint8_t* recv;
  uint32_t sendBytes;
  uint32_t recvBytes;
};

// One launch. In `call`, mostBytes has room for the parts of all calls. Its segments have no addresses, and the ends, in
// bytes, of the messages to and from each rank; that of the own rank ends with the last part that must be copied.
struct CollectiveMoves {
  CollectiveCall call;
  // The move of call c with rank r is moves[c * ranks + r]. Behind those of the first `count` calls are those of the
  // `pairs` calls whose sizes only pairs of ranks know: of each call the first ones, and then the second ones.
  CollectiveMove moves[CollectiveMaxMoves];
  // Where the part of each of the first `count` calls ends, in units. None is empty.
  uint32_t ends[CollectiveMaxMoveCalls];
  uint32_t count;
  uint32_t pairs;
};

static_assert(sizeof(CollectiveHandle) + sizeof(CollectiveMoves) <= 4096, "the parameters of a kernel");

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// The call that has a unit of the message.
struct MovesCursor {
  const CollectiveMoves& all;
  uint32_t ranks;
  // The call, and the first unit of its part.
  uint32_t c, begin;

  MSCCLPP_DEVICE_INLINE MovesCursor(const CollectiveMoves& all, const CollectiveBlock& b)
      : all(all), ranks(b.ranks), c(0), begin(0) {}

  // Goes to the call that has `unit`, which is not before the last one asked for. Returns whether there is one.
  MSCCLPP_DEVICE_INLINE bool reach(uint32_t unit) {
#pragma unroll 1
    while (c < all.count && unit >= all.ends[c]) begin = all.ends[c++];
    return c < all.count;
  }
  MSCCLPP_DEVICE_INLINE uint32_t end() const { return all.ends[c]; }
  // The move of the call with rank r.
  MSCCLPP_DEVICE_INLINE const CollectiveMove& with(uint32_t r) const { return all.moves[c * ranks + r]; }
};

// Calls that move, by LL16. Word i of the message is moved by thread i modulo the threads of the call, on all ranks.
template <bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void movesLl16(const CollectiveHandle& comm, const CollectiveMoves& all) {
  const CollectiveCall& call = all.call;
  CollectiveBlock b(comm, call, OfTwo);
  const uint32_t here = static_cast<uint32_t>(b.threadOfCall()), stride = static_cast<uint32_t>(b.threadsOfCall());
  const uint64_t slotBytes = call.mostBytes * 2;
  uint64_t words[RanksAtOnce] = {};
  // Loads words i of the parts for the peers from number n on.
  const auto load = [&](const MovesCursor& at, uint32_t n, uint32_t i) {
#pragma unroll
    for (uint32_t u = 0; u < RanksAtOnce; ++u) {
      if (n + u >= b.ranks) continue;
      const CollectiveMove& ours = at.with(b.peer(n + u));
      if (i * 8 < ours.sendBytes) words[u] = messageWord(ours.send, ours.sendBytes, i);
    }
  };
  MovesCursor sent(all, b);
  // The first words are loaded while the epoch is read.
  if (sent.reach(here)) load(sent, 1, here - sent.begin);
  if (!b.begin()) return;
  const Ll16Packets packets(b.epoch);
  const uint64_t base = comm.ll16 + b.half(comm.ll16Bytes);
#pragma unroll 1
  for (uint32_t unit = here; sent.reach(unit); unit += stride) {
    const uint32_t i = unit - sent.begin;
    for (uint32_t n = 1; n < b.ranks; n += RanksAtOnce) {
      if (unit != here || n != 1) load(sent, n, i);
#pragma unroll
      for (uint32_t u = 0; u < RanksAtOnce; ++u) {
        if (n + u >= b.ranks) continue;
        const uint32_t p = b.peer(n + u);
        uint8_t* const slot = comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes;
        if (i * 8 < sent.with(p).sendBytes) packets.put(slot + static_cast<uint64_t>(unit) * 16, words[u]);
      }
    }
  }
  b.countOthers();
  MovesCursor taken(all, b);
  bool failed = false;
#pragma unroll 1
  for (uint32_t unit = here; !failed && taken.reach(unit); unit += stride) {
    const uint32_t i = unit - taken.begin;
    const CollectiveMove& own = taken.with(b.rank);
    if (own.send != own.recv && i * 8 < own.recvBytes) {
      storeMessageWord(own.recv, own.recvBytes, i, messageWord(own.send, own.recvBytes, i));
    }
    for (uint32_t n = 1; n < b.ranks && !failed; n += RanksAtOnce) {
      uint32_t due = 0;
#pragma unroll
      for (uint32_t u = 0; u < RanksAtOnce; ++u) {
        due |= n + u < b.ranks && i * 8 < taken.with(b.peer(n + u)).recvBytes ? 1u << u : 0;
      }
      const uint8_t* const inbox = comm.scratch[b.rank] + base + static_cast<uint64_t>(unit) * 16;
      const auto came = [&](uint32_t due) {
        Bytes16 seen[RanksAtOnce] = {};
#pragma unroll
        for (uint32_t u = 0; u < RanksAtOnce; ++u) {
          if (due >> u & 1) seen[u] = Ll16Packets::load(inbox + b.slotOf(b.peer(n + u), b.rank) * slotBytes);
        }
#pragma unroll
        for (uint32_t u = 0; u < RanksAtOnce; ++u) {
          if ((due >> u & 1) == 0 || !packets.isThere(seen[u])) continue;
          words[u] = Ll16Packets::wordOf(seen[u]);
          due &= ~(1u << u);
        }
        return due;
      };
      failed = !takeSeveral(due, came,
                            [&](auto ready, uint32_t u) { return pollUntil<1>(ready, -1, comm.status[b.peer(n + u)]); });
#pragma unroll
      for (uint32_t u = 0; u < RanksAtOnce; ++u) {
        if (failed || (due >> u & 1) == 0) continue;
        const CollectiveMove& theirs = taken.with(b.peer(n + u));
        storeMessageWord(theirs.recv, theirs.recvBytes, i, words[u]);
      }
    }
  }
  b.end(failed);
}

// Calls that move, by LL128. The launch has whole warps.
template <bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void movesLl128(const CollectiveHandle& comm, const CollectiveMoves& all) {
  const CollectiveCall& call = all.call;
  CollectiveBlock b(comm, call, OfTwo);
  if (!b.begin()) return;
  const Ll128Packets lines(b);
  const uint64_t slotBytes = Ll128Packets::linesOf(call.mostBytes) * CollectiveLine;
  const uint64_t base = comm.ll128 + b.half(comm.ll128Bytes);
  const auto lineOf = [&](uint64_t step) { return static_cast<uint32_t>(lines.group + step * lines.groups); };
  MovesCursor sent(all, b), taken(all, b);
  const auto put = [&](uint64_t step) {
    const uint32_t line = lineOf(step);
    const bool reached = sent.reach(line);
    const uint32_t i = line - sent.begin;
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      bool exists = false;
      Bytes16 pair = {};
      if (reached) {
        const CollectiveMove& ours = sent.with(p);
        exists = i < Ll128Packets::linesOf(ours.sendBytes);
        if (exists) pair = lines.words<MoveWords>(call, ours.send, ours.sendBytes, i);
      }
      warpSync();
      if (exists) lines.put(comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes, line, pair);
    }
    if (!reached) return;
    const CollectiveMove& own = sent.with(b.rank);
    if (own.send != own.recv && i < Ll128Packets::linesOf(own.recvBytes)) {
      lines.storeWords(own.recv, own.recvBytes, i, lines.words<MoveWords>(call, own.send, own.recvBytes, i));
    }
  };
  const auto take = [&](uint64_t step) {
    const uint32_t line = lineOf(step);
    const bool reached = taken.reach(line);
    const uint32_t i = line - taken.begin;
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      const bool exists = reached && i < Ll128Packets::linesOf(taken.with(p).recvBytes);
      if (!warpAny(exists)) continue;
      const uint8_t* const slot = comm.scratch[b.rank] + base + b.slotOf(p, b.rank) * slotBytes;
      Bytes16 pair = {};
      if (!lines.take(slot, line, exists, pair, comm.status[p])) return false;
      if (!exists) continue;
      const CollectiveMove& theirs = taken.with(p);
      lines.storeWords(theirs.recv, theirs.recvBytes, i, pair);
    }
    return true;
  };
  // A line is taken one step after it is put.
  const uint64_t most = lines.steps(all.ends[all.count - 1]);
  bool failed = false;
  for (uint64_t step = 0; step < most && !failed; ++step) {
    put(step);
    if (step > 0) failed = !take(step - 1);
  }
  b.countOthers();
  if (most > 0 && !failed) failed = !take(most - 1);
  b.end(failed);
}

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
  // Takes the parts of chunk k of each peer.
  template <bool ByTurns>
  MSCCLPP_DEVICE_INLINE void take(Chunks::Signal step, uint32_t k) const {
    forCalls(k, [&](const MovesCall& call) {
      copyForPeers<ByTurns>(chunks.b, [&](uint32_t p) {
        const Stretch it = stretch(k, call.recvBegin(p), call.recvBytes(p));
        return PartCopy{call.moves[p].recv + it.from, chunks.place(step, chunks.b.rank, p, k) + it.at, it.bytes};
      });
    });
  }
};

// The role of a block in several calls by Simple. Between two ranks each block is a lane.
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

// Calls that move, by Simple, with credits (R2): ranks may give each other less than others do. Blocks have at least as
// many threads as there are ranks.
template <bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void movesSimple(const CollectiveHandle& comm, const CollectiveMoves& all) {
  const CollectiveCall& call = all.call;
  CollectiveBlock b(comm, call, OfTwo);
  if (!b.begin()) return;
  b.countOthers();
  const ChunkRole role = roleInCalls<OfTwo>(b);
  const Chunks chunks(b, role.lane, role.lanes);
  const PartsOfChunks parts(all, chunks);
  const auto puts = [&](uint32_t r, uint32_t k) { return chunks.has(call.segments[r].sendBytes, k); };
  const auto takes = [&](uint32_t r, uint32_t k) { return chunks.has(call.segments[r].recvBytes, k); };
  const uint32_t most = parts.count();
  // A block that also puts takes a chunk one step later.
  const uint32_t behind = role.puts ? 1 : 0;
  bool failed = false;
  for (uint32_t k = 0; k < most + behind && !failed; ++k) {
    if (role.puts && k < most) {
      if (k >= CollectiveChunks) {
        failed = !chunks.waitForAll(Chunks::Credits, k - CollectiveChunks, [&](uint32_t r) { return puts(r, k); });
        if (failed) break;
      }
      parts.put<false>(k);
      chunks.signalAll(Chunks::First, k, [&](uint32_t r) { return puts(r, k); }, call.inPlace);
    }
    if (!role.takes) continue;
    if (takes(b.rank, k)) {
      parts.forCalls(k, [&](const MovesCall& call) {
        const CollectiveMove& own = call.moves[b.rank];
        if (own.send == own.recv) return;
        const PartsOfChunks::Stretch it = parts.stretch(k, call.recvBegin(b.rank), call.recvBytes(b.rank));
        copyByWarps(PartCopy{own.recv + it.from, own.send + it.from, it.bytes});
      });
    }
    if (k < behind) continue;
    const uint32_t j = k - behind;
    const bool afterPut = call.inPlace && !role.puts;
    failed = !chunks.waitForAll(Chunks::First, j, [&](uint32_t r) { return takes(r, j); }, afterPut);
    if (failed) break;
    parts.take<false>(Chunks::First, j);
    chunks.signalAll(Chunks::Credits, j, [&](uint32_t r) { return takes(r, j); });
  }
  b.end(failed);
}

// The kernel NAME of calls that move, by a function of (handle, calls).
#define MSCCLPP_MOVES_KERNEL(NAME, ...) MSCCLPP_KERNEL_OF(mscclpp::CollectiveMoves, NAME, __VA_ARGS__)

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_MOVES_DEVICE_HPP_
