// Collectives by LL16: packets of 8 bytes and two flags. For the library's own use.

#ifndef MSCCLPP_COLLECTIVE_LL16_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_LL16_DEVICE_HPP_

#include "mscclpp/collective_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Takes the data of several ranks. `came` looks at all that are `due`, a bit for each, and returns those that are still
// missing. `poll` waits until its argument returns true, for the first that is due.
template <class Came, class Poll>
MSCCLPP_DEVICE_INLINE bool takeSeveral(uint32_t due, Came came, Poll poll) {
  while (due != 0) {
    uint32_t missing = due;
    const auto someCame = [&] {
      missing = came(due);
      return missing != due;
    };
    uint32_t first = 0;
    while ((due >> first & 1) == 0) ++first;
    if (!someCame() && !poll(someCame, first)) return false;
    due = missing;
  }
  return true;
}

// An exchange by LL16 between two ranks. Word i of each message is moved by thread i modulo the threads of the call, on
// both sides.
//
// Small messages use it, so as much as possible is done while the epoch is read: loading the first word, and computing
// its destination. There is one peer, so the loops over peers fold; written without them, the function takes more
// registers.
template <class Words>
MSCCLPP_DEVICE_INLINE void exchangeLl16OfTwo(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, true);
  const uint32_t here = static_cast<uint32_t>(b.threadOfCall()), stride = static_cast<uint32_t>(b.threadsOfCall());
  const uint64_t slotBytes = call.mostBytes * 2;
  const auto outbox = [&](uint32_t p) { return comm.scratch[p] + comm.ll16 + b.slotOf(b.rank, p) * slotBytes; };
  const auto inbox = [&](uint32_t p) { return comm.scratch[b.rank] + comm.ll16 + b.slotOf(p, b.rank) * slotBytes; };
  const auto words = [](uint64_t bytes) { return static_cast<uint32_t>((bytes + 7) / 8); };

  const uint32_t next = b.peer(1);
  const CollectiveSegment first = call.segments[next];
  uint8_t* const at = outbox(next) + here * 16;
  const bool hasFirst = b.ranks > 1 && here < words(first.sendBytes);
  uint64_t word = hasFirst ? messageWord(first.send, first.sendBytes, here) : 0;
  if (!b.begin()) return;
  const Ll16Packets packets(b.epoch);
  const uint64_t half = b.half(comm.ll16Bytes);
  if (hasFirst) packets.put(at + half, Words::sent(call, word));
  for (uint32_t n = 1; n < b.ranks; ++n) {
    const uint32_t p = b.peer(n);
    const CollectiveSegment ours = call.segments[p];
    uint8_t* const slot = outbox(p) + half;
    const uint32_t count = words(ours.sendBytes);
    for (uint32_t i = n == 1 ? here + stride : here; i < count; i += stride) {
      packets.put(slot + i * 16, sentWord<Words>(call, ours.send, ours.sendBytes, i));
    }
  }
  b.countOthers();
  bool failed = false;
  if constexpr (Words::Reduces) {
    const CollectiveSegment own = call.segments[b.rank];
    const uint32_t count = words(own.recvBytes);
    for (uint32_t i = here; i < count && !failed; i += stride) {
      const uint64_t mine = sentWord<Words>(call, own.send, own.recvBytes, i);
      failed = !packets.take(inbox(next) + half + i * 16, word, comm.status[next]);
      const uint64_t result = b.reduceTwo<Words>(mine, word);
      if (!failed) storeMessageWord(own.recv, own.recvBytes, i, result);
    }
  } else {
    b.copyOwn();
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      const CollectiveSegment theirs = call.segments[p];
      const uint32_t count = words(theirs.recvBytes);
      for (uint32_t i = here; i < count && !failed; i += stride) {
        failed = !packets.take(inbox(p) + half + i * 16, word, comm.status[p]);
        if (!failed) storeMessageWord(theirs.recv, theirs.recvBytes, i, word);
      }
    }
  }
  b.end(failed);
}

// An exchange by packets between any number of ranks. A thread has a word of several of them under way at once: one
// after the other, each would take as long as a load does.
template <class Words>
MSCCLPP_DEVICE_INLINE void exchangeLl16OfMore(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, false);
  const uint64_t here = b.threadOfCall(), stride = b.threadsOfCall(), slotBytes = call.mostBytes * 2;
  const auto isPeer = [&](uint32_t r) { return r < b.ranks && r != b.rank; };

  // Loads words i of the messages to the peers from number n on.
  const auto load = [&](uint32_t n, uint64_t i, uint64_t (&words)[RanksAtOnce]) {
#pragma unroll
    for (uint32_t u = 0; u < RanksAtOnce; ++u) {
      if (n + u >= b.ranks) continue;
      const CollectiveSegment ours = call.segments[b.peer(n + u)];
      if (i * 8 < ours.sendBytes) words[u] = messageWord(ours.send, ours.sendBytes, i);
    }
  };
  uint64_t words[RanksAtOnce] = {};
  load(1, here, words);
  if (!b.begin()) return;
  const Ll16Packets packets(b.epoch);
  const uint64_t base = comm.ll16 + b.half(comm.ll16Bytes);
  const auto put = [&](uint32_t n, uint64_t i) {
#pragma unroll
    for (uint32_t u = 0; u < RanksAtOnce; ++u) {
      if (n + u >= b.ranks) continue;
      const uint32_t p = b.peer(n + u);
      uint8_t* const slot = comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes;
      if (i * 8 < call.segments[p].sendBytes) packets.put(slot + i * 16, Words::sent(call, words[u]));
    }
  };
  if (here * 8 < call.mostBytes) put(1, here);
  for (uint32_t n = 1; n < b.ranks; n += RanksAtOnce) {
    for (uint64_t i = n == 1 ? here + stride : here; i * 8 < call.mostBytes; i += stride) {
      load(n, i, words);
      put(n, i);
    }
  }
  b.countOthers();
  const uint8_t* const inbox = comm.scratch[b.rank] + base;
  // Takes words i of the ranks that are `due`, of those from r on.
  const auto take = [&](uint32_t r, uint32_t due, uint64_t i) {
    const auto came = [&](uint32_t due) {
      Bytes16 seen[RanksAtOnce] = {};
#pragma unroll
      for (uint32_t u = 0; u < RanksAtOnce; ++u) {
        if (due >> u & 1) seen[u] = Ll16Packets::load(inbox + b.slotOf(r + u, b.rank) * slotBytes + i * 16);
      }
#pragma unroll
      for (uint32_t u = 0; u < RanksAtOnce; ++u) {
        if ((due >> u & 1) == 0 || !packets.isThere(seen[u])) continue;
        words[u] = Ll16Packets::wordOf(seen[u]);
        due &= ~(1u << u);
      }
      return due;
    };
    return takeSeveral(due, came, [&](auto ready, uint32_t u) { return pollUntil<1>(ready, -1, comm.status[r + u]); });
  };
  bool failed = false;
  const CollectiveSegment own = call.segments[b.rank];
  if constexpr (Words::Reduces) {
    for (uint64_t i = here; i * 8 < own.recvBytes && !failed; i += stride) {
      const uint64_t mine = sentWord<Words>(call, own.send, own.recvBytes, i);
      typename Words::Fold fold;
      for (uint32_t r = 0; r < b.ranks && !failed; r += RanksAtOnce) {
        uint32_t due = 0;
#pragma unroll
        for (uint32_t u = 0; u < RanksAtOnce; ++u) due |= isPeer(r + u) ? 1u << u : 0;
        failed = !take(r, due, i);
#pragma unroll
        for (uint32_t u = 0; u < RanksAtOnce; ++u) {
          if (r + u < b.ranks) fold.put(call, r + u, r + u == b.rank ? mine : words[u]);
        }
      }
      if (!failed) storeMessageWord(own.recv, own.recvBytes, i, fold.result(call, b.ranks));
    }
  } else {
    b.copyOwn();
    for (uint32_t r = 0; r < b.ranks; r += RanksAtOnce) {
      for (uint64_t i = here; i * 8 < call.mostBytes && !failed; i += stride) {
        uint32_t due = 0;
#pragma unroll
        for (uint32_t u = 0; u < RanksAtOnce; ++u) {
          due |= isPeer(r + u) && i * 8 < call.segments[r + u].recvBytes ? 1u << u : 0;
        }
        failed = !take(r, due, i);
#pragma unroll
        for (uint32_t u = 0; u < RanksAtOnce; ++u) {
          if (failed || (due >> u & 1) == 0) continue;
          const CollectiveSegment theirs = call.segments[r + u];
          storeMessageWord(theirs.recv, theirs.recvBytes, i, words[u]);
        }
      }
    }
  }
  b.end(failed);
}

template <class Words, bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void exchangeLl16(const CollectiveHandle& comm, const CollectiveCall& call) {
  if constexpr (OfTwo) {
    exchangeLl16OfTwo<Words>(comm, call);
  } else {
    exchangeLl16OfMore<Words>(comm, call);
  }
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_LL16_DEVICE_HPP_
