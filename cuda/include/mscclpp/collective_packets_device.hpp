// Collectives by packets (LL16) and by lines (LL128): messages that are valid by themselves. For the library's own use.

#ifndef MSCCLPP_COLLECTIVE_PACKETS_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_PACKETS_DEVICE_HPP_

#include "mscclpp/collective_call_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// ---- LL16

// Packet i of a message is word i with two flags, which differ once 2^32 calls have been made. So what 2^32 calls
// earlier was left at a place is not taken for what is waited for.
struct Packets {
  uint32_t first, second;

  MSCCLPP_DEVICE_INLINE explicit Packets(uint64_t epoch)
      : first(static_cast<uint32_t>(epoch)), second(first + static_cast<uint32_t>(epoch >> 32) * 0x9e3779b9u) {}

  MSCCLPP_DEVICE_INLINE void put(uint8_t* at, uint64_t word) const {
    storePair(at, Bytes16{(word & 0xffffffffu) | static_cast<uint64_t>(first) << 32,
                          word >> 32 | static_cast<uint64_t>(second) << 32});
  }
  MSCCLPP_DEVICE_INLINE bool take(const uint8_t* at, uint64_t& word, uint32_t* status) const {
    Bytes16 packet;
    const auto came = [&] {
      packet = loadPair(at);
      return packet.low >> 32 == first && packet.high >> 32 == second;
    };
    const bool done = came() || pollUntil<1>(came, -1, status);
    word = (packet.low & 0xffffffffu) | packet.high << 32;
    return done;
  }
};

// An exchange by packets. Word i of each message is moved by thread i modulo the threads of the call, on both sides.
template <class Words>
MSCCLPP_DEVICE_INLINE void exchangePackets(const CollectiveHandle& comm, const CollectiveCall& call) {
  const CollectiveBlock b(comm, call);
  if (!b.begin()) return;
  const Packets packets(b.epoch);
  const uint64_t stride = b.threadsOfCall(), slotBytes = call.mostBytes * 2;
  const uint64_t base = comm.packets + b.half(comm.packetBytes);
  for (uint32_t n = 1; n < b.ranks; ++n) {
    const uint32_t p = b.peer(n);
    const uint8_t* const message = call.segments[p].send;
    const uint64_t bytes = call.segments[p].sendBytes;
    uint8_t* const slot = comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes;
    for (uint64_t i = b.threadOfCall(); i * 8 < bytes; i += stride) {
      packets.put(slot + i * 16, sentWord<Words>(call, message, bytes, i));
    }
  }
  uint8_t* const inbox = comm.scratch[b.rank] + base;
  bool failed = false;
  if constexpr (Words::Reduces) {
    const CollectiveSegment own = call.segments[b.rank];
    for (uint64_t i = b.threadOfCall(); i * 8 < own.recvBytes && !failed; i += stride) {
      const uint64_t mine = sentWord<Words>(call, own.send, own.recvBytes, i);
      typename Words::Fold fold;
      for (uint32_t r = 0; r < b.ranks && !failed; ++r) {
        uint64_t word = mine;
        if (r != b.rank) failed = !packets.take(inbox + b.slotOf(r, b.rank) * slotBytes + i * 16, word, comm.status[r]);
        fold.put(r, word);
      }
      if (!failed) storeMessageWord(own.recv, own.recvBytes, i, fold.result(call, b.ranks));
    }
  } else {
    b.copyOwn();
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      const CollectiveSegment theirs = call.segments[p];
      for (uint64_t i = b.threadOfCall(); i * 8 < theirs.recvBytes && !failed; i += stride) {
        uint64_t word;
        failed = !packets.take(inbox + b.slotOf(p, b.rank) * slotBytes + i * 16, word, comm.status[p]);
        if (!failed) storeMessageWord(theirs.recv, theirs.recvBytes, i, word);
      }
    }
  }
  b.end(failed);
}

// ---- LL128

// A message as lines of 15 words and a flag. Eight threads side by side move a line, each of them two words, the last
// one and the flag; a warp moves four lines in a step, and all its threads make the same steps. What 8 threads do
// with a line in one instruction is one request: see PacketMover<LL128Packet>, which says what relies on that.
struct Lines {
  uint64_t flag;
  uint64_t group, groups;  // which lines: every groups-th from `group` on
  uint32_t part;           // which of a line's eight

  MSCCLPP_DEVICE_INLINE explicit Lines(const CollectiveBlock& b)
      : flag(b.epoch), group(b.threadOfCall() / 8), groups(b.threadsOfCall() / 8), part(b.thread % 8) {}

  MSCCLPP_DEVICE_INLINE static uint64_t linesOf(uint64_t bytes) { return (bytes + 119) / 120; }
  // How many steps the warp makes for so many lines: as many as its first group.
  MSCCLPP_DEVICE_INLINE uint64_t steps(uint64_t lines) const {
    const uint64_t first = group & ~static_cast<uint64_t>(3);
    return lines > first ? (lines - first + groups - 1) / groups : 0;
  }
  MSCCLPP_DEVICE_INLINE bool hasFlag() const { return part == 7; }
  // The first of this thread's words in a line.
  MSCCLPP_DEVICE_INLINE uint64_t word(uint64_t line) const { return line * 15 + part * 2; }

  // This thread's words of a line, 0 beyond the end; where the flag is, it.
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
  // Waits for a line, by all threads of the warp. Those whose line does not exist wait for nothing.
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

// The line of all ranks, of which this one's is `mine`, reduced. All threads of a warp call it. Returns whether it
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

// An exchange by lines. The launch has whole warps.
template <class Words>
MSCCLPP_DEVICE_INLINE void exchangeLines(const CollectiveHandle& comm, const CollectiveCall& call) {
  const CollectiveBlock b(comm, call);
  if (!b.begin()) return;
  const Lines lines(b);
  const uint64_t slotBytes = Lines::linesOf(call.mostBytes) * CollectiveLine;
  const uint64_t base = comm.lines + b.half(comm.lineBytes);
  for (uint32_t n = 1; n < b.ranks; ++n) {
    const uint32_t p = b.peer(n);
    putLines<Words>(call, lines, comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes, call.segments[p].send,
                    call.segments[p].sendBytes);
  }
  uint8_t* const inbox = comm.scratch[b.rank] + base;
  bool failed = false;
  if constexpr (Words::Reduces) {
    const CollectiveSegment own = call.segments[b.rank];
    const uint64_t count = Lines::linesOf(own.recvBytes), steps = lines.steps(count);
    uint64_t line = lines.group;
    for (uint64_t step = 0; step < steps && !failed; ++step, line += lines.groups) {
      const bool exists = line < count;
      Bytes16 mine = {};
      if (exists) mine = lines.words<Words>(call, own.send, own.recvBytes, line);
      Bytes16 pair;
      failed = !reduceLine<Words>(b, lines, inbox, slotBytes, line, exists, mine, pair);
      if (exists && !failed) lines.storeWords(own.recv, own.recvBytes, line, pair);
    }
  } else {
    b.copyOwn();
    for (uint32_t n = 1; n < b.ranks && !failed; ++n) {
      const uint32_t p = b.peer(n);
      const CollectiveSegment theirs = call.segments[p];
      failed = !takeLines(lines, inbox + b.slotOf(p, b.rank) * slotBytes, theirs.recv, theirs.recvBytes, comm.status[p]);
    }
  }
  b.end(failed);
}

// The all_reduce in two steps, by lines: rank p reduces part p, and gives it to all. Part p of the message is
// segments[p], sendBytes long; that of the own rank has as many.
template <class Words>
MSCCLPP_DEVICE_INLINE void allReduceLines(const CollectiveHandle& comm, const CollectiveCall& call) {
  const CollectiveBlock b(comm, call);
  if (!b.begin()) return;
  const Lines lines(b);
  const uint64_t slotBytes = Lines::linesOf(call.mostBytes) * CollectiveLine;
  const uint64_t base = comm.lines + b.half(comm.lineBytes), results = base + (b.ranks - 1) * slotBytes;
  for (uint32_t n = 1; n < b.ranks; ++n) {
    const uint32_t p = b.peer(n);
    putLines<Words>(call, lines, comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes, call.segments[p].send,
                    call.segments[p].sendBytes);
  }
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
