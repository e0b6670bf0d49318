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
  uint32_t group, groups;  // which lines: every groups-th from `group` on
  uint32_t part;           // which of a line's eight

  // Lines may be put and taken once `flag` is the epoch.
  MSCCLPP_DEVICE_INLINE explicit Ll128Packets(const CollectiveBlock& b)
      : flag(b.epoch),
        group(static_cast<uint32_t>(b.threadOfCall() / 8)),
        groups(static_cast<uint32_t>(b.threadsOfCall() / 8)),
        part(b.thread % 8) {}

  // The lines of a message. One that goes by LL128 has fewer than 2^31 bytes.
  MSCCLPP_DEVICE_INLINE static uint32_t linesOf(uint64_t bytes) { return (static_cast<uint32_t>(bytes) + 119) / 120; }
  // The number of steps that the warp makes for so many lines: as many as its first group.
  MSCCLPP_DEVICE_INLINE uint32_t steps(uint32_t lines) const {
    const uint32_t first = group & ~3u;
    return lines > first ? (lines - first + groups - 1) / groups : 0;
  }
  MSCCLPP_DEVICE_INLINE bool hasFlag() const { return part == 7; }
  // Where this thread's words of a line begin in the message, in bytes.
  MSCCLPP_DEVICE_INLINE uint32_t offset(uint32_t line) const { return line * 120 + part * 16; }

  // Returns this thread's words of a line, 0 beyond the end of the message and in the place of the flag.
  template <class Words>
  MSCCLPP_DEVICE_INLINE Bytes16 words(const CollectiveCall& call, const uint8_t* message, uint32_t bytes,
                                      uint32_t line) const {
    const uint32_t at = offset(line);
    Bytes16 pair = {};
    if (at + 16 <= bytes && isAligned<8>(message)) {
      pair.low = Words::sent(call, load8(message + at));
      if (!hasFlag()) pair.high = Words::sent(call, load8(message + at + 8));
    } else if (at < bytes) {
      pair.low = sentWord<Words>(call, message, bytes, at / 8);
      if (!hasFlag() && at + 8 < bytes) pair.high = sentWord<Words>(call, message, bytes, at / 8 + 1);
    }
    return pair;
  }
  MSCCLPP_DEVICE_INLINE void storeWords(uint8_t* message, uint32_t bytes, uint32_t line, Bytes16 pair) const {
    const uint32_t at = offset(line);
    if (at + 16 <= bytes && isAligned<8>(message)) {
      store8(message + at, pair.low);
      if (!hasFlag()) store8(message + at + 8, pair.high);
    } else if (at < bytes) {
      const uint32_t most = hasFlag() ? 8 : 16, left = bytes - at;
      storeVectorAny(message + at, left < most ? left : most, pair);
    }
  }
  MSCCLPP_DEVICE_INLINE void put(uint8_t* slot, uint32_t line, Bytes16 pair) const {
    if (hasFlag()) pair.high = flag;
    storePair(slot + static_cast<uint64_t>(line) * CollectiveLine + part * 16, pair);
  }
  // Waits for a line, by all threads of the warp. Threads whose line does not exist do not wait.
  MSCCLPP_DEVICE_INLINE bool take(const uint8_t* slot, uint32_t line, bool exists, Bytes16& pair,
                                  uint32_t* status) const {
    const uint8_t* const at = slot + static_cast<uint64_t>(exists ? line : 0) * CollectiveLine + part * 16;
    const auto came = [&] {
      pair = warpAtOnce([&] { return loadPair(at); });
      return !warpAny(exists && hasFlag() && pair.high != flag);
    };
    warpSync();
    return came() || pollUntilByWarp<1>(came, -1, status);
  }
  // Reduces a line of all ranks, of which this one's is `pair`, and returns whether all lines came. All threads of a warp
  // call it.
  template <class Words, bool OfTwo>
  MSCCLPP_DEVICE_INLINE bool reduce(const CollectiveBlock& b, const uint8_t* inbox, uint64_t slotBytes, uint32_t line,
                                    bool exists, Bytes16& pair) const {
    const Bytes16 mine = pair;
    if constexpr (OfTwo) {
      if (!take(inbox, line, exists, pair, b.comm.status[1 - b.rank])) return false;
      pair = {b.reduceTwo<Words>(mine.low, pair.low), b.reduceTwo<Words>(mine.high, pair.high)};
    } else {
      typename Words::Fold low, high;
      for (uint32_t r = 0; r < b.ranks; ++r) {
        const uint8_t* const slot = inbox + b.slotOf(r, b.rank) * slotBytes;
        if (r != b.rank && !take(slot, line, exists, pair, b.comm.status[r])) return false;
        low.put(b.call, r, r == b.rank ? mine.low : pair.low);
        high.put(b.call, r, r == b.rank ? mine.high : pair.high);
      }
      pair = {low.result(b.call, b.ranks), high.result(b.call, b.ranks)};
    }
    return true;
  }
};

// Puts a message into its lines in a peer's slot, by all threads of the call.
template <class Words>
MSCCLPP_DEVICE_INLINE void putLines(const CollectiveCall& call, const Ll128Packets& lines, uint8_t* slot,
                                    const uint8_t* message, uint64_t bytes) {
  const uint32_t count = Ll128Packets::linesOf(bytes), steps = lines.steps(count);
  uint32_t line = lines.group;
  for (uint32_t step = 0; step < steps; ++step, line += lines.groups) {
    Bytes16 pair = {};
    if (line < count) pair = lines.words<Words>(call, message, bytes, line);
    warpSync();
    if (line < count) lines.put(slot, line, pair);
  }
}

// Takes a message out of its lines.
MSCCLPP_DEVICE_INLINE bool takeLines(const Ll128Packets& lines, const uint8_t* slot, uint8_t* message, uint64_t bytes,
                                     uint32_t* status) {
  const uint32_t count = Ll128Packets::linesOf(bytes), steps = lines.steps(count);
  uint32_t line = lines.group;
  for (uint32_t step = 0; step < steps; ++step, line += lines.groups) {
    const bool exists = line < count;
    Bytes16 pair;
    if (!lines.take(slot, line, exists, pair, status)) return false;
    if (exists) lines.storeWords(message, bytes, line, pair);
  }
  return true;
}

// An exchange by LL128. The launch has whole warps.
template <class Words, bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void exchangeLl128(const CollectiveHandle& comm, const CollectiveCall& call) {
  CollectiveBlock b(comm, call, OfTwo);
  Ll128Packets lines(b);
  const CollectiveSegment own = call.segments[b.rank];
  // Loads this thread's words of a line for the n-th peer.
  const auto load = [&](uint32_t n, uint32_t line) {
    const CollectiveSegment ours = call.segments[b.peer(n)];
    const bool exists = line < Ll128Packets::linesOf(ours.sendBytes);
    return exists ? lines.words<Words>(call, ours.send, ours.sendBytes, line) : Bytes16{};
  };
  // The words for the only peer are loaded a step ahead, and the first ones while the epoch is read.
  Bytes16 ahead = {};
  if constexpr (OfTwo) ahead = load(1, lines.group);
  if (!b.begin()) return;
  lines.flag = b.epoch;
  const uint64_t slotBytes = static_cast<uint64_t>(Ll128Packets::linesOf(call.mostBytes)) * CollectiveLine;
  const uint64_t base = comm.ll128 + b.half(comm.ll128Bytes);
  uint8_t* const inbox = comm.scratch[b.rank] + base;
  const auto put = [&](uint32_t step) {
    const uint32_t line = lines.group + step * lines.groups;
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      const Bytes16 pair = OfTwo ? ahead : load(n, line);
      warpSync();
      const bool exists = line < Ll128Packets::linesOf(call.segments[p].sendBytes);
      if (exists) lines.put(comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes, line, pair);
    }
    if constexpr (OfTwo) ahead = load(1, line + lines.groups);
    if constexpr (!Words::Reduces) {
      // In a step eight threads copy 128 bytes, and put 120 of a line. So no vector is left after the last step.
      const uint32_t i = static_cast<uint32_t>(b.threadOfCall() + step * b.threadsOfCall());
      const uint32_t bytes = static_cast<uint32_t>(own.recvBytes);
      if (own.send != own.recv && i * 16 < bytes) storeVectorOf(own.recv, bytes, i, vectorOf(own.send, bytes, i));
    }
  };
  const auto take = [&](uint32_t step) {
    const uint32_t line = lines.group + step * lines.groups;
    Bytes16 pair = {};
    if constexpr (Words::Reduces) {
      const bool exists = line < Ll128Packets::linesOf(own.recvBytes);
      if (!warpAny(exists)) return true;
      if (exists) pair = lines.words<Words>(call, own.send, own.recvBytes, line);
      if (!lines.reduce<Words, OfTwo>(b, inbox, slotBytes, line, exists, pair)) return false;
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
  const uint32_t most = lines.steps(Ll128Packets::linesOf(call.mostBytes));
  bool failed = false;
  for (uint32_t step = 0; step < most && !failed; ++step) {
    put(step);
    if (step > 0) failed = !take(step - 1);
  }
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
  const uint64_t slotBytes = static_cast<uint64_t>(Ll128Packets::linesOf(call.mostBytes)) * CollectiveLine;
  const uint64_t base = comm.ll128 + b.half(comm.ll128Bytes), results = base + (b.ranks - 1) * slotBytes;
  for (uint32_t n = 1; n < b.ranks; ++n) {
    const uint32_t p = b.peer(n);
    putLines<Words>(call, lines, comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes, call.segments[p].send,
                    call.segments[p].sendBytes);
  }
  b.countOthers();
  bool failed = false;
  const CollectiveSegment own = call.segments[b.rank];
  const uint32_t count = Ll128Packets::linesOf(own.sendBytes), steps = lines.steps(count);
  uint8_t* const inbox = comm.scratch[b.rank];
  uint32_t line = lines.group;
  for (uint32_t step = 0; step < steps && !failed; ++step, line += lines.groups) {
    const bool exists = line < count;
    Bytes16 pair = {};
    if (exists) pair = lines.words<Words>(call, own.send, own.sendBytes, line);
    failed = !lines.reduce<Words, false>(b, inbox + base, slotBytes, line, exists, pair);
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
