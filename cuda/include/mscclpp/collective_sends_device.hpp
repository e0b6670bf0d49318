// Messages between two ranks: any number of sends and receives, in one launch. For the library's own use.
//
// Each pair of ranks has a ring of places in the receiver's scratch for each direction and each of `lanes` blocks.
// Chunk i of a message belongs to lane i modulo the lanes. Chunks of a lane are counted over all calls, on both sides
// alike, in this device's memory: chunk c goes to place c modulo CollectiveChunks. Behind it the sender's block
// stores c + 1 in the receiver's word `arrived`, with release behind a barrier of the block; the receiver waits for
// it with acquire in front of one. When the receiver's block has taken the chunk, it stores c + 1 in the sender's
// word `taken` in the same way, for which the sender waits before it puts chunk c + CollectiveChunks. Sends and
// receives have blocks of their own, so that no rank waits for a peer that waits for it.
//
// With the first chunk of a message, which is one of lane 0, its length goes into a word behind `arrived`, one for each
// place. The receiver compares it with its own. It waits for neither: the load is under way while the chunk is copied.

#ifndef MSCCLPP_COLLECTIVE_SENDS_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_SENDS_DEVICE_HPP_

#include "mscclpp/collective_simple_device.hpp"

namespace mscclpp {

// The most messages of a launch for each peer and direction, and of all peers and both directions together, where a
// peer has more. A launch is a parameter of a kernel, of which there may be 4096 bytes.
enum SendsLimits : uint32_t { MessagesPerPeer = 2, ManyMessages = 220 };

// In CollectiveHandle::mismatch: that a rank, whose number plus 1 is in the lower half, sent a message of another length
// than this rank takes. Both lengths are words 8 and 9 of the rank's first line for checks in this rank's scratch.
enum CollectiveFound : uint32_t { CollectiveLengths = 1u << 30 };

struct CollectiveMessage {
  uint8_t* memory;
  uint64_t bytes;
};

// The rings of places through which messages go.
struct CollectiveRings {
  // The number of chunks so far for each rank, direction and lane, in this device's memory.
  uint64_t* counts;
  // Offsets in the scratch: lines of `arrived` and behind them of `taken`, for each rank and lane; places.
  uint64_t signals;
  uint64_t places;
  // The bytes of a place, a multiple of 16.
  uint64_t chunk;
  uint32_t lanes;
  uint32_t reserved;
};

// One call: messages to each rank, and from each rank, in their order. A message of no bytes is none. The own rank's
// are not used. Block (2 * r + direction) * lanes + lane has those of rank r.
struct CollectiveSends {
  CollectiveMessage messages[CollectiveMaxRanks][2][MessagesPerPeer];
  CollectiveRings rings;
};

// The same with messages in a list: those to rank 0, those from rank 0, those to rank 1, and so on.
struct CollectiveManySends {
  CollectiveMessage messages[ManyMessages];
  // Where those of 2 * r + direction end.
  uint32_t ends[2 * CollectiveMaxRanks];
  CollectiveRings rings;
};

static_assert(sizeof(CollectiveHandle) + sizeof(CollectiveManySends) <= 4096, "the parameters of a kernel");

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Reports that a peer's message has another length than this rank takes, and ends all waits of this rank.
MSCCLPP_DEVICE_NOINLINE void lengthsDiffer(const CollectiveHandle& comm, uint32_t peer, uint64_t sent, uint64_t taken) {
  uint64_t* const lengths =
      reinterpret_cast<uint64_t*>(comm.scratch[comm.rank] + comm.checks + 2 * peer * CollectiveLine) + 8;
  store8(lengths, sent);
  store8(lengths + 1, taken);
  setGivenUp(comm.epochs, CollectiveGaveUp, 1);
  CollectiveStart::giveUp(comm, CollectiveLengths | (peer + 1));
}

// Message m to or from a peer, and how many there are.
MSCCLPP_DEVICE_INLINE CollectiveMessage messageOf(const CollectiveSends& call, uint32_t peer, bool receives, uint32_t m) {
  return call.messages[peer][receives][m];
}
MSCCLPP_DEVICE_INLINE uint32_t countOf(const CollectiveSends&, uint32_t, bool) { return MessagesPerPeer; }
MSCCLPP_DEVICE_INLINE uint32_t beginOf(const CollectiveManySends& call, uint32_t peer, bool receives) {
  const uint32_t which = 2 * peer + receives;
  return which == 0 ? 0 : call.ends[which - 1];
}
MSCCLPP_DEVICE_INLINE CollectiveMessage messageOf(const CollectiveManySends& call, uint32_t peer, bool receives,
                                                  uint32_t m) {
  return call.messages[beginOf(call, peer, receives) + m];
}
MSCCLPP_DEVICE_INLINE uint32_t countOf(const CollectiveManySends& call, uint32_t peer, bool receives) {
  return call.ends[2 * peer + receives] - beginOf(call, peer, receives);
}

template <class Sends>
MSCCLPP_DEVICE_INLINE void moveMessages(const CollectiveHandle& comm, const Sends& call) {
  const CollectiveRings& rings = call.rings;
  const uint32_t lane = blockOfGrid() % rings.lanes, which = blockOfGrid() / rings.lanes;
  const uint32_t peer = which / 2, thread = threadOfBlock(), threads = threadsOfBlock();
  const bool receives = which % 2 != 0;
  if (peer == comm.rank) return;
  if (anyGaveUp(comm.epochs)) return;
  const uint32_t from = receives ? peer : comm.rank, to = receives ? comm.rank : peer;
  uint64_t* const counted = rings.counts + blockOfGrid();
  const uint64_t before = load8(counted);
  const auto line = [&](uint32_t at, uint32_t of, uint32_t kind) {
    const uint64_t index = (static_cast<uint64_t>(kind) * comm.ranks + of) * rings.lanes + lane;
    return reinterpret_cast<uint64_t*>(comm.scratch[at] + rings.signals + index * CollectiveLine);
  };
  uint64_t* const arrived = line(to, from, 0);
  uint64_t* const taken = line(from, to, 1);
  uint8_t* const ring = comm.scratch[to] + rings.places +
                        ((from < to ? from : from - 1) * rings.lanes + lane) * CollectiveChunks * rings.chunk;
  const auto wait = [&](const uint64_t* word, uint64_t least) {
    const bool failed = thread == 0 && !waitForWord(word, least, comm.status[peer]);
    if (failed) setGivenUp(comm.epochs, CollectiveGaveUp, 1);
    return !blockAny(failed);
  };
  const auto say = [&](uint64_t* word, uint64_t count) {
    blockSync();
    if (thread == 0) detail::store<MemoryOrder::Release, MemoryScope::System>(word, count);
  };

  uint64_t c = before;
  for (uint32_t m = 0; m < countOf(call, peer, receives); ++m) {
    const CollectiveMessage message = messageOf(call, peer, receives, m);
    for (uint64_t at = lane * rings.chunk; at < message.bytes; at += rings.lanes * rings.chunk, ++c) {
      const uint32_t bytes = static_cast<uint32_t>(message.bytes - at < rings.chunk ? message.bytes - at : rings.chunk);
      uint8_t* const place = ring + c % CollectiveChunks * rings.chunk;
      uint64_t* const length = arrived + 1 + c % CollectiveChunks;
      const bool saysLength = at == 0 && thread == 0;
      if (receives) {
        if (!wait(arrived, c + 1)) return;
        const uint64_t sent = saysLength ? load8(length) : message.bytes;
        takeBytes(message.memory + at, place, bytes, thread, threads);
        if (sent != message.bytes) lengthsDiffer(comm, peer, sent, message.bytes);
        say(taken, c + 1);
      } else {
        if (c >= CollectiveChunks && !wait(taken, c + 1 - CollectiveChunks)) return;
        if (saysLength) store8(length, message.bytes);
        putBytes(place, message.memory + at, bytes, thread, threads, AsItIs());
        say(arrived, c + 1);
      }
    }
  }
  if (thread == 0 && c != before) store8(counted, c);
}

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_SENDS_DEVICE_HPP_
