// Several collectives in one launch: one exchange between each pair of ranks, whose message has a part for each call. The calls
// move, or reduce by one type and operation. Here they go by LL16, if they move, or by LL128; collective_parts_device.hpp has
// Simple. For the library's own use.
//
// A part begins at the same place in the messages of all pairs of ranks, behind the largest part that any pair has for
// the call before. All ranks know where that is. So a word that a call takes in place of one that it sends has the same
// number in both messages, and is moved by the same thread or in the same chunk, as in a launch of one call. What a pair
// of ranks has less than the largest part is left out: it is neither sent nor waited for.
//
// If the calls reduce, the moves of a call are its segments as in CollectiveCall: what this rank sends to each rank, and, in the
// own segment, where the result goes. Each number is combined in the order of the ranks, as in a launch of one call, so the bits
// are the same.
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
  // Whether one of the calls is `oneWay`, as CollectiveCall says.
  uint32_t uneven;
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

// Calls that move, or reduce in one step, by LL128. The launch has whole warps.
template <class Words, bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void callsLl128(const CollectiveHandle& comm, const CollectiveMoves& all) {
  const CollectiveCall& call = all.call;
  CollectiveBlock b(comm, call, OfTwo);
  if (!b.begin()) return;
  const Ll128Packets lines(b);
  const uint64_t slotBytes = static_cast<uint64_t>(Ll128Packets::linesOf(call.mostBytes)) * CollectiveLine;
  const uint64_t base = comm.ll128 + b.half(comm.ll128Bytes);
  const uint8_t* const inbox = comm.scratch[b.rank] + base;
  const auto lineOf = [&](uint32_t step) { return lines.group + step * lines.groups; };
  MovesCursor sent(all, b), taken(all, b);
  const auto put = [&](uint32_t step) {
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
        if (exists) pair = lines.words<Words>(call, ours.send, ours.sendBytes, i);
      }
      warpSync();
      if (exists) lines.put(comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes, line, pair);
    }
    if constexpr (!Words::Reduces) {
      if (!reached) return;
      // The eight threads of a line of 120 bytes copy as many vectors, so those of all lines copy the whole part.
      const CollectiveMove& own = sent.with(b.rank);
      const uint32_t vector = i * 8 + lines.part;
      if (own.send != own.recv && vector * 16 < own.recvBytes) {
        storeVectorOf(own.recv, own.recvBytes, vector, vectorOf(own.send, own.recvBytes, vector));
      }
    }
  };
  const auto take = [&](uint32_t step) {
    const uint32_t line = lineOf(step);
    const bool reached = taken.reach(line);
    if (!warpAny(reached)) return true;
    const uint32_t i = line - taken.begin;
    Bytes16 pair = {};
    if constexpr (Words::Reduces) {
      const CollectiveMove own = reached ? taken.with(b.rank) : CollectiveMove{};
      const bool exists = i < Ll128Packets::linesOf(own.recvBytes);
      if (!warpAny(exists)) return true;
      if (exists) pair = lines.words<Words>(call, own.send, own.recvBytes, i);
      if (!lines.reduce<Words, OfTwo>(b, inbox, slotBytes, line, exists, pair)) return false;
      if (exists) lines.storeWords(own.recv, own.recvBytes, i, pair);
    } else {
      for (uint32_t n = 1; n < b.ranks; ++n) {
        const uint32_t p = b.peer(n);
        const bool exists = reached && i < Ll128Packets::linesOf(taken.with(p).recvBytes);
        if (!warpAny(exists)) continue;
        if (!lines.take(inbox + b.slotOf(p, b.rank) * slotBytes, line, exists, pair, comm.status[p])) return false;
        if (!exists) continue;
        const CollectiveMove& theirs = taken.with(p);
        lines.storeWords(theirs.recv, theirs.recvBytes, i, pair);
      }
    }
    return true;
  };
  // A line is taken one step after it is put.
  const uint32_t most = lines.steps(all.ends[all.count - 1]);
  bool failed = false;
  for (uint32_t step = 0; step < most && !failed; ++step) {
    put(step);
    if (step > 0) failed = !take(step - 1);
  }
  b.countOthers();
  if (most > 0 && !failed) failed = !take(most - 1);
  b.end(failed);
}

// The kernel NAME of several calls, by a function of (handle, calls).
#define MSCCLPP_MOVES_KERNEL(NAME, ...) MSCCLPP_KERNEL_OF(mscclpp::CollectiveMoves, NAME, __VA_ARGS__)

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_MOVES_DEVICE_HPP_
