// Collectives by LL128: packets, called lines, of 120 bytes and a flag. For the library's own use.

#ifndef MSCCLPP_COLLECTIVE_LL128_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_LL128_DEVICE_HPP_

#include "mscclpp/collective_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// A message as lines of 15 words and a flag. Eight consecutive threads move a line, each of them two words, the last
// one a word and the flag; a warp moves four lines in a step, and all its threads make the same steps. The access of 8
// threads to a line in one instruction is one request: PacketMover<LL128Packet> says what relies on that.
struct Ll128Packets {
  uint64_t flag;
  uint64_t group, groups;  // which lines: every groups-th from `group` on
  uint32_t part;           // which of a line's eight

  MSCCLPP_DEVICE_INLINE explicit Ll128Packets(const CollectiveBlock& b)
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
MSCCLPP_DEVICE_INLINE void putLines(const CollectiveCall& call, const Ll128Packets& lines, uint8_t* slot,
                                    const uint8_t* message, uint64_t bytes) {
  const uint64_t count = Ll128Packets::linesOf(bytes), steps = lines.steps(count);
  uint64_t line = lines.group;
  for (uint64_t step = 0; step < steps; ++step, line += lines.groups) {
    Bytes16 pair = {};
    if (line < count) pair = lines.words<Words>(call, message, bytes, line);
    warpSync();
    if (line < count) lines.put(slot, line, pair);
  }
}

// Takes a message out of its lines.
MSCCLPP_DEVICE_INLINE bool takeLines(const Ll128Packets& lines, const uint8_t* slot, uint8_t* message, uint64_t bytes,
                                     uint32_t* status) {
  const uint64_t count = Ll128Packets::linesOf(bytes), steps = lines.steps(count);
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
MSCCLPP_DEVICE_INLINE bool reduceLine(const CollectiveBlock& b, const Ll128Packets& lines, const uint8_t* inbox,
                                      uint64_t slotBytes, uint64_t line, bool exists, Bytes16 mine, Bytes16& result) {
  typename Words::Fold low, high;
  for (uint32_t r = 0; r < b.ranks; ++r) {
    Bytes16 pair = mine;
    if (r != b.rank) {
      const uint8_t* const slot = inbox + b.slotOf(r, b.rank) * slotBytes;
      if (!lines.take(slot, line, exists, pair, b.comm.status[r])) return false;
    }
    low.put(b.call, r, pair.low);
    high.put(b.call, r, pair.high);
  }
  result.low = low.result(b.call, b.ranks);
  result.high = lines.hasFlag() ? lines.flag : high.result(b.call, b.ranks);
  return true;
}

// Reduces a line of two ranks.
template <class Words>
MSCCLPP_DEVICE_INLINE bool reduceLineOfTwo(const CollectiveBlock& b, const Ll128Packets& lines, const uint8_t* inbox,
                                           uint64_t line, bool exists, Bytes16 mine, Bytes16& result) {
  Bytes16 pair;
  if (!lines.take(inbox, line, exists, pair, b.comm.status[1 - b.rank])) return false;
  result.low = b.reduceTwo<Words>(mine.low, pair.low);
  result.high = lines.hasFlag() ? lines.flag : b.reduceTwo<Words>(mine.high, pair.high);
  return true;
}

// An exchange by LL128. The launch has whole warps.
template <class Words, bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void exchangeLl128(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, OfTwo);
  if (!b.begin()) return;
  const Ll128Packets lines(b);
  const uint64_t slotBytes = Ll128Packets::linesOf(call.mostBytes) * CollectiveLine;
  const uint64_t base = comm.ll128 + b.half(comm.ll128Bytes);
  uint8_t* const inbox = comm.scratch[b.rank] + base;
  const CollectiveSegment own = call.segments[b.rank];
  const auto put = [&](uint64_t step) {
    const uint64_t line = lines.group + step * lines.groups;
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      const CollectiveSegment ours = call.segments[p];
      const bool exists = line < Ll128Packets::linesOf(ours.sendBytes);
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
      const bool exists = line < Ll128Packets::linesOf(own.recvBytes);
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
        const bool exists = line < Ll128Packets::linesOf(theirs.recvBytes);
        if (!warpAny(exists)) continue;
        if (!lines.take(inbox + b.slotOf(p, b.rank) * slotBytes, line, exists, pair, comm.status[p])) return false;
        if (exists) lines.storeWords(theirs.recv, theirs.recvBytes, line, pair);
      }
    }
    return true;
  };
  // A line is taken one step after it is put.
  const uint64_t most = lines.steps(Ll128Packets::linesOf(call.mostBytes));
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

// The all_reduce in two steps, by LL128: rank p reduces part p, and gives it to all. Part p of the message is
// segments[p], sendBytes long; that of the own rank has as many.
template <class Words>
MSCCLPP_DEVICE_INLINE void allReduceLl128(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, false);
  if (!b.begin()) return;
  const Ll128Packets lines(b);
  const uint64_t slotBytes = Ll128Packets::linesOf(call.mostBytes) * CollectiveLine;
  const uint64_t base = comm.ll128 + b.half(comm.ll128Bytes), results = base + (b.ranks - 1) * slotBytes;
  for (uint32_t n = 1; n < b.ranks; ++n) {
    const uint32_t p = b.peer(n);
    putLines<Words>(call, lines, comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes, call.segments[p].send,
                    call.segments[p].sendBytes);
  }
  b.countOthers();
  bool failed = false;
  const CollectiveSegment own = call.segments[b.rank];
  const uint64_t count = Ll128Packets::linesOf(own.sendBytes), steps = lines.steps(count);
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

#endif  // MSCCLPP_COLLECTIVE_LL128_DEVICE_HPP_
