// Exchanges that move data by plain stores into the receive memory of the peers, where that is registered: nothing is
// copied out of the scratch. For the library's own use.
//
// A rank that takes something says where the place for it is: its kernel's first block stores the number of the registration,
// the offset of the place in it, its size, and behind these, with release, the number of the call. The peer reads that number
// with acquire before it puts anything, and looks the place up in what it has mapped itself (D7). Without a number of a
// registration there is no place: then the message goes through a ring of the scratch, with credits (R2). So each pair of ranks
// decides by what the receiver says, and whether memory is registered, aligned or in place on one rank need not be known to the
// others before.
//
//   D1. Nobody writes into a rank's receive memory before its kernel for this call has begun: only that kernel says where
//       the place is. So what came before in its stream is complete, and has neither to be read nor written any more.
//   D2. A place is named only if no part of it is memory that this rank's kernel sends from, or copies from. (The host
//       compares the addresses. What of a call in place overlaps goes through the ring.)
//   D3. A block of the sender signals behind its last chunk for a peer, with release behind a barrier of the block. The
//       peer's block of the same number waits for that, with acquire, before it ends. So when the receiver's kernel is
//       complete, all is there, and nobody writes into its memory any more.
//   D4. What a rank says lies in one of two lines, by the parity of the call's number. It is written for call e behind
//       what makes the scratch of e - 2 free (E2, E3), and so when the peer has ended e - 2 and does not read it any more.
//       In a call that is not `oneWay`, every rank waits for a signal of every other, as E2 wants it.
//   D5. A sender puts no more than the place holds, even if ranks make calls that do not match. Launches keep what is
//       registered, on both sides.
//   D6. No wait is in a circle. Every kernel says its places before it waits for anything but what others do as they
//       begin (E3). After that, a block waits in step k for what peers' blocks do in steps before k, as for the chunks of R2.
//       What a copier copies comes in front of all steps, and waits for nobody.
//   D7. No address goes from rank to rank. Each rank has a table of the registrations, which all ranks have made in the same
//       order: where it has mapped each peer's memory, and how long that is. Who says a place that does not lie in the table's
//       memory whole, at a multiple of 16, is not written to: the rank that finds it gives up its call and says so.

#ifndef MSCCLPP_COLLECTIVE_DIRECT_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_DIRECT_DEVICE_HPP_

#include "mscclpp/collective_simple_device.hpp"

namespace mscclpp {

// A place in registered memory: the number of the registration, counted from 1 in the order of the table, and where in it the
// place begins. Number 0 is no place.
struct CollectivePlace {
  uint64_t registration;
  uint64_t offset;
};

// One registration of all ranks: where this rank has mapped what each peer has registered, and how many bytes that is.
struct CollectiveRegistration {
  uint8_t* at[CollectiveMaxRanks];
  uint64_t bytes[CollectiveMaxRanks];
};

// One call. For each rank from which this one takes something, where segments[p].recv of this one is.
struct CollectiveDirectCall {
  CollectiveCall call;
  CollectivePlace places[CollectiveMaxRanks];
  // The table of D7, in this device's memory, and how many registrations it has.
  const CollectiveRegistration* registered;
  uint64_t registrations;
};

// In CollectiveHandle::mismatch: that a rank, whose number plus 1 is in the lower half, has said a place that is none.
constexpr uint32_t CollectiveNoPlace = 1u << 31;

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Where a block puts what it sends, for each peer.
struct DirectTargets {
  // Null: into the ring.
  uint8_t* at[CollectiveMaxRanks];
  uint64_t bytes[CollectiveMaxRanks];
};

// What ranks say of their places: four words of a rank's line for checks, behind those of a check.
struct DirectPlaces {
  const CollectiveBlock& b;
  const CollectiveDirectCall& direct;
  // Of the block, in shared memory.
  DirectTargets& targets;

  MSCCLPP_DEVICE_INLINE uint64_t* words(uint32_t at, uint32_t of) const {
    const uint64_t line = 2 * of + (b.epoch & 1);
    return reinterpret_cast<uint64_t*>(b.comm.scratch[at] + b.comm.checks + line * CollectiveLine) + 4;
  }
  // Publishes the addresses of this rank's places. All threads of a block call it.
  MSCCLPP_DEVICE_INLINE void say() const {
    const uint32_t p = b.thread;
    if (!isFirstBlock() || p >= b.ranks || p == b.rank || b.call.segments[p].recvBytes == 0) return;
    uint64_t* const theirs = words(p, b.rank);
    store8(theirs, direct.places[p].registration);
    store8(theirs + 1, direct.places[p].offset);
    store8(theirs + 2, b.call.segments[p].recvBytes);
    detail::store<MemoryOrder::Release, MemoryScope::System>(theirs + 3, b.epoch);
  }
  // By thread p, in front of a barrier, behind which all threads know what peer p has said. Returns whether it has said
  // something, and something that can be.
  MSCCLPP_DEVICE_INLINE bool find(uint32_t p) const {
    const uint64_t* const said = words(b.rank, p);
    if (!waitForWord(said + 3, b.epoch, b.comm.status[p])) return false;
    const uint64_t registration = load8(said), offset = load8(said + 1), bytes = load8(said + 2);
    targets.at[p] = nullptr;
    targets.bytes[p] = bytes;
    if (registration == 0) return true;
    if (registration <= direct.registrations) {
      const CollectiveRegistration& mapped = direct.registered[registration - 1];
      uint8_t* const at = mapped.at[p];
      const uint64_t size = mapped.bytes[p];
      if (at != nullptr && offset <= size && bytes <= size - offset && isAligned<16>(at + offset)) {
        targets.at[p] = at + offset;
        return true;
      }
    }
    const uint32_t parity = static_cast<uint32_t>(b.epoch & 1) << 16;
    CollectiveStart::giveUp(b.comm, CollectiveNoPlace | parity | (p + 1));
    return false;
  }
  // The place of peer p, null if there is none, and how many bytes of it are behind `offset`.
  MSCCLPP_DEVICE_INLINE uint8_t* of(uint32_t p) const { return targets.at[p]; }
  MSCCLPP_DEVICE_INLINE uint64_t room(uint32_t p, uint64_t offset) const {
    const uint64_t bytes = targets.bytes[p];
    return bytes > offset ? bytes - offset : 0;
  }
};

// All threads of a block store into the places, chunk by chunk.
struct ByStores {
  static constexpr uint32_t Warps = 0;
};

// Blocks have at least as many threads as there are ranks. If `Copier` has warps of its own, they copy into the places
// that lie at a multiple of 16, and copy the rank's own part: `copy(warp, to, from, bytes)` returns when all has
// arrived, for a signal after a barrier of the block.
template <bool OfTwo, class Copier>
MSCCLPP_DEVICE_INLINE void exchangeDirectly(const CollectiveHandle& comm, const CollectiveDirectCall& direct,
                                            const Copier& copier) {
  const CollectiveCall& call = direct.call;
  CollectiveBlock b(comm, call, OfTwo);
  if (!b.begin()) return;
#if defined(MSCCLPP_DEVICE_HIP)
  static __attribute__((shared)) DirectTargets targets;
#else
  __shared__ DirectTargets targets;
#endif
  const DirectPlaces places{b, direct, targets};
  places.say();
  b.countOthers();
  const Chunks chunks(b);
  const auto sends = [&](uint32_t r) { return chunks.count(call.segments[r].sendBytes); };
  const auto takes = [&](uint32_t r) { return chunks.count(call.segments[r].recvBytes); };
  const auto takesByRing = [&](uint32_t r, uint32_t k) {
    return direct.places[r].registration == 0 && chunks.has(call.segments[r].recvBytes, k);
  };
  const auto isPeer = [&](uint32_t r) { return r < b.ranks && r != b.rank; };
  // This copies chunk k of the own segment. Half of the blocks begin with a copy and stay one ahead, so that some
  // blocks put while others copy, and the link is never idle. It also fills the wait for the places.
  const CollectiveSegment own = call.segments[b.rank];
  const uint64_t copies = own.send == own.recv ? 0 : chunks.count(own.recvBytes);
  constexpr bool ByCopier = Copier::Warps != 0;
  const auto copyOwn = [&](uint32_t k) {
    if (k >= copies) return;
    const uint64_t at = chunks.offset(k);
    copyBytes(own.recv + at, own.send + at, chunks.length(own.recvBytes, k), b.thread, b.threads);
  };
  const uint64_t ahead = ByCopier ? 0 : b.block % 2;
  if (ahead != 0) copyOwn(0);
  // Thread r, for rank r; then every thread knows what r has said.
  bool failed = blockAny(isPeer(b.thread) && sends(b.thread) > 0 && !places.find(b.thread));

  const auto isCopiers = [&](uint32_t p) {
    return ByCopier && places.of(p) != nullptr && isAligned<16>(call.segments[p].send);
  };
  if constexpr (ByCopier) {
    if (!failed) {
      const uint32_t warp = b.thread / 32;
      // One warp copies the own part if there is one, while the others push.
      const uint32_t pushing = copies == 0 ? Copier::Warps : Copier::Warps - 1;
      // The part of a message that has as many chunks as this block's, but contiguous, and of it the share of the n-th
      // of `of` warps. The message goes on to `size` at most.
      const auto copyShare = [&](uint8_t* to, const uint8_t* from, uint64_t bytes, uint64_t size, uint32_t n, uint32_t of) {
        uint64_t begin, end;
        chunks.share(bytes, begin, end);
        const uint64_t part = ((end - begin) / of + 127) / 128 * 128;
        begin += n * part;
        if (n + 1 < of && end > begin + part) end = begin + part;
        if (end > size) end = size;
        if (begin < end) copier.copy(warp, to + begin, from + begin, end - begin);
      };
      for (uint32_t n = 1; n < b.ranks && warp < pushing; ++n) {
        const uint32_t p = b.peer(n);
        if (sends(p) == 0 || !isCopiers(p)) continue;
        const CollectiveSegment ours = call.segments[p];
        copyShare(places.of(p), ours.send, ours.sendBytes, places.room(p, 0), warp, pushing);
      }
      if (warp >= pushing && warp < Copier::Warps) copyShare(own.recv, own.send, own.recvBytes, own.recvBytes, 0, 1);
      const uint64_t last = isPeer(b.thread) ? sends(b.thread) - 1 : 0;
      chunks.signalAll(Chunks::First, last, [&](uint32_t r) { return sends(r) > 0 && isCopiers(r); });
    }
  }

  // Puts chunk k to every peer that has not got all of its chunks.
  const auto put = [&](uint32_t k) {
    const auto part = [&](uint32_t p) {
      const CollectiveSegment ours = call.segments[p];
      if (!chunks.has(ours.sendBytes, k) || isCopiers(p)) return PartCopy{};
      const uint64_t at = chunks.offset(k);
      const uint32_t bytes = chunks.length(ours.sendBytes, k);
      uint8_t* const place = places.of(p);
      if (place == nullptr) return PartCopy{chunks.place(Chunks::First, p, b.rank, k), ours.send + at, bytes};
      const uint64_t room = places.room(p, at);
      return PartCopy{place + at, ours.send + at, room < bytes ? static_cast<uint32_t>(room) : bytes};
    };
    copyForPeers(b, part);
    const auto mustSignal = [&](uint32_t r) {
      const uint64_t bytes = call.segments[r].sendBytes;
      return chunks.has(bytes, k) && !isCopiers(r) && (places.of(r) == nullptr || !chunks.has(bytes, k + 1));
    };
    bool any = false;
    for (uint32_t n = 1; n < b.ranks; ++n) any = any || mustSignal(b.peer(n));
    if (any) chunks.signalAll(Chunks::First, k, mustSignal);
  };
  // Takes the chunks k that come through rings. Returns whether they came.
  const auto take = [&](uint32_t k) {
    if (!chunks.waitForAll(Chunks::First, k, [&](uint32_t r) { return takesByRing(r, k); })) return false;
    const auto part = [&](uint32_t p) {
      if (!takesByRing(p, k)) return PartCopy{};
      const CollectiveSegment theirs = call.segments[p];
      return PartCopy{theirs.recv + chunks.offset(k), chunks.place(Chunks::First, b.rank, p, k),
                      chunks.length(theirs.recvBytes, k)};
    };
    copyForPeers(b, part);
    chunks.signalAll(Chunks::Credits, k, [&](uint32_t r) { return takesByRing(r, k); });
    return true;
  };

  uint64_t most = ByCopier ? 0 : copies, mostByRing = 0, mostTaken = 0;
  for (uint32_t n = 1; n < b.ranks && !failed; ++n) {
    const uint32_t p = b.peer(n);
    if (sends(p) > most && !isCopiers(p)) most = sends(p);
    if (sends(p) > mostByRing && places.of(p) == nullptr) mostByRing = sends(p);
    if (direct.places[p].registration == 0 && takes(p) > mostTaken) mostTaken = takes(p);
  }
  if (mostTaken > most) most = mostTaken;
  for (uint32_t k = 0; k < most && !failed; ++k) {
    if (k >= CollectiveChunks && k < mostByRing) {
      const uint32_t last = k - CollectiveChunks;
      failed = !chunks.waitForAll(Chunks::Credits, last, [&](uint32_t r) {
        return chunks.has(call.segments[r].sendBytes, k) && places.of(r) == nullptr;
      });
      if (failed) break;
    }
    put(k);
    if constexpr (!ByCopier) copyOwn(k + ahead);
    if (k > 0 && k - 1 < mostTaken) failed = !take(k - 1);
  }
  if (!failed && most > 0 && most == mostTaken) failed = !take(most - 1);
  // D3. The number of the last chunk is another for each thread.
  const uint64_t arriving = isPeer(b.thread) && direct.places[b.thread].registration != 0 ? takes(b.thread) : 0;
  if (!failed) failed = !chunks.waitForAll(Chunks::First, arriving - 1, [&](uint32_t) { return arriving > 0; });
  b.end(failed);
}

// The kernel NAME of direct calls.
#define MSCCLPP_DIRECT_KERNEL(NAME, OF_TWO)                                                              \
  extern "C" __global__ void __launch_bounds__(1024)                                                    \
      NAME(const MSCCLPP_GRID_CONSTANT mscclpp::CollectiveHandle comm,                                  \
           const MSCCLPP_GRID_CONSTANT mscclpp::CollectiveDirectCall call) {                            \
    mscclpp::detail::exchangeDirectly<OF_TWO>(comm, call, mscclpp::detail::ByStores());                 \
  }

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_DIRECT_DEVICE_HPP_
