// Collectives by packets (LL16) and by lines (LL128): messages that are valid by themselves. For the library's own use.

#ifndef MSCCLPP_COLLECTIVE_PACKETS_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_PACKETS_DEVICE_HPP_

#include "mscclpp/collective_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// ---- LL16

// Packet i of a message is word i with two flags, which differ once 2^32 calls have been made. So the contents that a
// place got 2^32 calls earlier are not taken for a new packet.
struct Packets {
  uint32_t first, second;

  MSCCLPP_DEVICE_INLINE explicit Packets(uint64_t epoch)
      : first(static_cast<uint32_t>(epoch)), second(first + static_cast<uint32_t>(epoch >> 32) * 0x9e3779b9u) {}

  MSCCLPP_DEVICE_INLINE void put(uint8_t* at, uint64_t word) const {
    [[maybe_unused]] const detail::AsPacket asPacket;
    storePair(at, Bytes16{(word & 0xffffffffu) | static_cast<uint64_t>(first) << 32,
                          word >> 32 | static_cast<uint64_t>(second) << 32});
  }
  MSCCLPP_DEVICE_INLINE static Bytes16 load(const uint8_t* at) {
    [[maybe_unused]] const detail::AsPacket asPacket;
    return loadPair(at);
  }
  MSCCLPP_DEVICE_INLINE bool isThere(Bytes16 packet) const {
    return packet.low >> 32 == first && packet.high >> 32 == second;
  }
  MSCCLPP_DEVICE_INLINE static uint64_t wordOf(Bytes16 packet) { return (packet.low & 0xffffffffu) | packet.high << 32; }
  MSCCLPP_DEVICE_INLINE bool take(const uint8_t* at, uint64_t& word, uint32_t* status) const {
    Bytes16 packet;
    const auto came = [&] {
      packet = load(at);
      return isThere(packet);
    };
    const bool done = came() || pollUntil<1>(came, -1, status);
    word = wordOf(packet);
    return done;
  }
};

// The number of ranks whose messages a thread has under way at once.
constexpr uint32_t RanksAtOnce = 4;

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

// An exchange by packets between two ranks. Word i of each message is moved by thread i modulo the threads of the call,
// on both sides.
//
// Small messages use it, so as much as possible is done while the epoch is read: loading the first word, and computing
// its destination. There is one peer, so the loops over peers fold; written without them, the function takes more
// registers.
template <class Words>
MSCCLPP_DEVICE_INLINE void exchangePacketsOfTwo(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, true);
  const uint32_t here = static_cast<uint32_t>(b.threadOfCall()), stride = static_cast<uint32_t>(b.threadsOfCall());
  const uint64_t slotBytes = call.mostBytes * 2;
  const auto outbox = [&](uint32_t p) { return comm.scratch[p] + comm.packets + b.slotOf(b.rank, p) * slotBytes; };
  const auto inbox = [&](uint32_t p) { return comm.scratch[b.rank] + comm.packets + b.slotOf(p, b.rank) * slotBytes; };
  const auto words = [](uint64_t bytes) { return static_cast<uint32_t>((bytes + 7) / 8); };

  const uint32_t next = b.peer(1);
  const CollectiveSegment first = call.segments[next];
  uint8_t* const at = outbox(next) + here * 16;
  const bool hasFirst = b.ranks > 1 && here < words(first.sendBytes);
  uint64_t word = hasFirst ? messageWord(first.send, first.sendBytes, here) : 0;
  if (!b.begin()) return;
  const Packets packets(b.epoch);
  const uint64_t half = b.half(comm.packetBytes);
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
MSCCLPP_DEVICE_INLINE void exchangePacketsOfMore(const CollectiveHandle& comm, const CollectiveCall& call) {
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
  const Packets packets(b.epoch);
  const uint64_t base = comm.packets + b.half(comm.packetBytes);
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
        if (due >> u & 1) seen[u] = Packets::load(inbox + b.slotOf(r + u, b.rank) * slotBytes + i * 16);
      }
#pragma unroll
      for (uint32_t u = 0; u < RanksAtOnce; ++u) {
        if ((due >> u & 1) == 0 || !packets.isThere(seen[u])) continue;
        words[u] = Packets::wordOf(seen[u]);
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
          if (r + u < b.ranks) fold.put(r + u, r + u == b.rank ? mine : words[u]);
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
MSCCLPP_DEVICE_INLINE void exchangePackets(const CollectiveHandle& comm, const CollectiveCall& call) {
  if constexpr (OfTwo) {
    exchangePacketsOfTwo<Words>(comm, call);
  } else {
    exchangePacketsOfMore<Words>(comm, call);
  }
}

// ---- LL128

// A message as lines of 15 words and a flag. Eight consecutive threads move a line, each of them two words, the last
// one a word and the flag; a warp moves four lines in a step, and all its threads make the same steps. The access of 8
// threads to a line in one instruction is one request: PacketMover<LL128Packet> says what relies on that.
struct Lines {
  uint64_t flag;
  uint64_t group, groups;  // which lines: every groups-th from `group` on
  uint32_t part;           // which of a line's eight

  MSCCLPP_DEVICE_INLINE explicit Lines(const CollectiveBlock& b)
      : flag(b.epoch), group(b.threadOfCall() / 8), groups(b.threadsOfCall() / 8), part(b.thread % 8) {}

  MSCCLPP_DEVICE_INLINE static uint64_t linesOf(uint64_t bytes) { return (bytes + 119) / 120; }
  // The number of steps that the warp makes for so many lines: as many as its first group.
  MSCCLPP_DEVICE_INLINE uint64_t steps(uint64_t lines) const {
    const uint64_t first = group & ~static_cast<uint64_t>(3);
    return lines > first ? (lines - first + groups - 1) / groups : 0;
  }
  MSCCLPP_DEVICE_INLINE bool hasFlag() const { return part == 7; }
  // The first of this thread's words in a line.
  MSCCLPP_DEVICE_INLINE uint64_t word(uint64_t line) const { return line * 15 + part * 2; }

  // Returns this thread's words of a line, 0 beyond the end of the message, and the flag in the place of the last word.
  template <class Words>
  MSCCLPP_DEVICE_INLINE Bytes16 words(const CollectiveCall& call, const uint8_t* message, uint64_t bytes,
                                      uint64_t line) const {
    const uint64_t i = word(line);
    Bytes16 pair = {0, hasFlag() ? flag : 0};
    if (i * 8 < bytes) pair.low = sentWord<Words>(call, message, bytes, i);
    if (!hasFlag() && (i + 1) * 8 < bytes) pair.high = sentWord<Words>(call, message, bytes, i + 1);
    return pair;
  }
  MSCCLPP_DEVICE_INLINE void storeWords(uint8_t* message, uint64_t bytes, uint64_t line, Bytes16 pair) const {
    const uint64_t i = word(line);
    if (i * 8 < bytes) storeMessageWord(message, bytes, i, pair.low);
    if (!hasFlag() && (i + 1) * 8 < bytes) storeMessageWord(message, bytes, i + 1, pair.high);
  }
  MSCCLPP_DEVICE_INLINE void put(uint8_t* slot, uint64_t line, Bytes16 pair) const {
    storePair(slot + line * CollectiveLine + part * 16, pair);
  }
  // Waits for a line, by all threads of the warp. Threads whose line does not exist do not wait.
  MSCCLPP_DEVICE_INLINE bool take(const uint8_t* slot, uint64_t line, bool exists, Bytes16& pair,
                                  uint32_t* status) const {
    const uint8_t* const at = slot + (exists ? line : 0) * CollectiveLine + part * 16;
    const auto came = [&] {
      pair = warpAtOnce([&] { return loadPair(at); });
      return !warpAny(exists && hasFlag() && pair.high != flag);
    };
    warpSync();
    return came() || pollUntilByWarp<1>(came, -1, status);
  }
};

// Puts a message into its lines in a peer's slot, by all threads of the call.
template <class Words>
MSCCLPP_DEVICE_INLINE void putLines(const CollectiveCall& call, const Lines& lines, uint8_t* slot,
                                    const uint8_t* message, uint64_t bytes) {
  const uint64_t count = Lines::linesOf(bytes), steps = lines.steps(count);
  uint64_t line = lines.group;
  for (uint64_t step = 0; step < steps; ++step, line += lines.groups) {
    Bytes16 pair = {};
    if (line < count) pair = lines.words<Words>(call, message, bytes, line);
    warpSync();
    if (line < count) lines.put(slot, line, pair);
  }
}

// Takes a message out of its lines.
MSCCLPP_DEVICE_INLINE bool takeLines(const Lines& lines, const uint8_t* slot, uint8_t* message, uint64_t bytes,
                                     uint32_t* status) {
  const uint64_t count = Lines::linesOf(bytes), steps = lines.steps(count);
  uint64_t line = lines.group;
  for (uint64_t step = 0; step < steps; ++step, line += lines.groups) {
    const bool exists = line < count;
    Bytes16 pair;
    if (!lines.take(slot, line, exists, pair, status)) return false;
    if (exists) lines.storeWords(message, bytes, line, pair);
  }
  return true;
}

// Reduces a line of all ranks, of which this one's is `mine`. All threads of a warp call it. Returns whether all lines
// came.
template <class Words>
MSCCLPP_DEVICE_INLINE bool reduceLine(const CollectiveBlock& b, const Lines& lines, const uint8_t* inbox,
                                      uint64_t slotBytes, uint64_t line, bool exists, Bytes16 mine, Bytes16& result) {
  typename Words::Fold low, high;
  for (uint32_t r = 0; r < b.ranks; ++r) {
    Bytes16 pair = mine;
    if (r != b.rank) {
      const uint8_t* const slot = inbox + b.slotOf(r, b.rank) * slotBytes;
      if (!lines.take(slot, line, exists, pair, b.comm.status[r])) return false;
    }
    low.put(r, pair.low);
    high.put(r, pair.high);
  }
  result.low = low.result(b.call, b.ranks);
  result.high = lines.hasFlag() ? lines.flag : high.result(b.call, b.ranks);
  return true;
}

// Reduces a line of two ranks.
template <class Words>
MSCCLPP_DEVICE_INLINE bool reduceLineOfTwo(const CollectiveBlock& b, const Lines& lines, const uint8_t* inbox,
                                           uint64_t line, bool exists, Bytes16 mine, Bytes16& result) {
  Bytes16 pair;
  if (!lines.take(inbox, line, exists, pair, b.comm.status[1 - b.rank])) return false;
  result.low = b.reduceTwo<Words>(mine.low, pair.low);
  result.high = lines.hasFlag() ? lines.flag : b.reduceTwo<Words>(mine.high, pair.high);
  return true;
}

// An exchange by lines. The launch has whole warps.
template <class Words, bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void exchangeLines(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, OfTwo);
  if (!b.begin()) return;
  const Lines lines(b);
  const uint64_t slotBytes = Lines::linesOf(call.mostBytes) * CollectiveLine;
  const uint64_t base = comm.lines + b.half(comm.lineBytes);
  uint8_t* const inbox = comm.scratch[b.rank] + base;
  const CollectiveSegment own = call.segments[b.rank];
  const auto put = [&](uint64_t step) {
    const uint64_t line = lines.group + step * lines.groups;
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      const CollectiveSegment ours = call.segments[p];
      const bool exists = line < Lines::linesOf(ours.sendBytes);
      Bytes16 pair = {};
      if (exists) pair = lines.words<Words>(call, ours.send, ours.sendBytes, line);
      warpSync();
      if (exists) lines.put(comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes, line, pair);
    }
  };
  const auto take = [&](uint64_t step) {
    const uint64_t line = lines.group + step * lines.groups;
    Bytes16 pair = {};
    if constexpr (Words::Reduces) {
      const bool exists = line < Lines::linesOf(own.recvBytes);
      if (!warpAny(exists)) return true;
      if (exists) pair = lines.words<Words>(call, own.send, own.recvBytes, line);
      bool came;
      if constexpr (OfTwo) {
        came = reduceLineOfTwo<Words>(b, lines, inbox, line, exists, pair, pair);
      } else {
        came = reduceLine<Words>(b, lines, inbox, slotBytes, line, exists, pair, pair);
      }
      if (!came) return false;
      if (exists) lines.storeWords(own.recv, own.recvBytes, line, pair);
    } else {
      for (uint32_t n = 1; n < b.ranks; ++n) {
        const uint32_t p = b.peer(n);
        const CollectiveSegment theirs = call.segments[p];
        const bool exists = line < Lines::linesOf(theirs.recvBytes);
        if (!warpAny(exists)) continue;
        if (!lines.take(inbox + b.slotOf(p, b.rank) * slotBytes, line, exists, pair, comm.status[p])) return false;
        if (exists) lines.storeWords(theirs.recv, theirs.recvBytes, line, pair);
      }
    }
    return true;
  };
  // A line is taken one step after it is put.
  const uint64_t most = lines.steps(Lines::linesOf(call.mostBytes));
  bool failed = false;
  for (uint64_t step = 0; step < most && !failed; ++step) {
    put(step);
    if (step > 0) failed = !take(step - 1);
  }
  if constexpr (!Words::Reduces) b.copyOwn();
  b.countOthers();
  if (most > 0 && !failed) failed = !take(most - 1);
  b.end(failed);
}

// The all_reduce in two steps, by lines: rank p reduces part p, and gives it to all. Part p of the message is
// segments[p], sendBytes long; that of the own rank has as many.
template <class Words>
MSCCLPP_DEVICE_INLINE void allReduceLines(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, false);
  if (!b.begin()) return;
  const Lines lines(b);
  const uint64_t slotBytes = Lines::linesOf(call.mostBytes) * CollectiveLine;
  const uint64_t base = comm.lines + b.half(comm.lineBytes), results = base + (b.ranks - 1) * slotBytes;
  for (uint32_t n = 1; n < b.ranks; ++n) {
    const uint32_t p = b.peer(n);
    putLines<Words>(call, lines, comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes, call.segments[p].send,
                    call.segments[p].sendBytes);
  }
  b.countOthers();
  bool failed = false;
  const CollectiveSegment own = call.segments[b.rank];
  const uint64_t count = Lines::linesOf(own.sendBytes), steps = lines.steps(count);
  uint8_t* const inbox = comm.scratch[b.rank];
  uint64_t line = lines.group;
  for (uint64_t step = 0; step < steps && !failed; ++step, line += lines.groups) {
    const bool exists = line < count;
    Bytes16 mine = {};
    if (exists) mine = lines.words<Words>(call, own.send, own.sendBytes, line);
    Bytes16 pair;
    failed = !reduceLine<Words>(b, lines, inbox + base, slotBytes, line, exists, mine, pair);
    if (failed) break;
    for (uint32_t n = 1; n < b.ranks; ++n) {
      warpSync();
      const uint32_t p = b.peer(n);
      if (exists) lines.put(comm.scratch[p] + results + b.slotOf(b.rank, p) * slotBytes, line, pair);
    }
    if (exists) lines.storeWords(own.recv, own.sendBytes, line, pair);
  }
  for (uint32_t n = 1; n < b.ranks && !failed; ++n) {
    const uint32_t p = b.peer(n);
    const CollectiveSegment part = call.segments[p];
    const uint8_t* const slot = inbox + results + b.slotOf(p, b.rank) * slotBytes;
    failed = !takeLines(lines, slot, part.recv, part.sendBytes, comm.status[p]);
  }
  b.end(failed);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_PACKETS_DEVICE_HPP_
