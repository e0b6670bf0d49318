// Exchanges that move data by bulk copies into the receive memory of the peers, where they have registered it: see
// collective_direct_device.hpp. With bulk copies few blocks fill a link. They need compute capability 9.0. For the
// library's own use.
//
// All ranks choose this protocol, since all of them have registered memory together. So every rank names its places, and waits
// until the others have named theirs or have said that they have none. A message for which there is no place goes through a
// ring with credits (R2). One that is sent from an address that is no multiple of 16 goes by stores. Both follow the bulk copies.
//
// Two warps of a block make bulk copies. If the rank has a part of its own to copy, one of them copies that.

#ifndef MSCCLPP_COLLECTIVE_BULK_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_BULK_DEVICE_HPP_

#include "mscclpp/bulk_device.hpp"
#include "mscclpp/collective_direct_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE) && MSCCLPP_BULK_AVAILABLE

namespace mscclpp {
namespace detail {

// The bulk copies of a block's warps. copyByBulk orders its warp's copies before what the threads of the warp do next, and the
// barrier of the block orders them before the signal of another thread (D3). Another thread has acquired the place that the peer
// has named, before a barrier of the block; copyByBulk orders this acquire before its copies.
struct ByBulk {
  static constexpr uint32_t Warps = 2;
  BulkStage<>* stages;
  // Returns when all has arrived, for a signal after a barrier of the block.
  MSCCLPP_DEVICE_INLINE void copy(uint32_t warp, uint8_t* to, const uint8_t* from, uint64_t bytes) const {
    copyByBulk(to, from, bytes, stages[warp]);
  }
};

// Blocks have at least as many threads as there are ranks, and two warps.
MSCCLPP_DEVICE_INLINE void exchangeInBulk(const CollectiveHandle& comm, const CollectiveDirectCall& direct,
                                          const ByBulk& copier) {
  const CollectiveCall& call = direct.call;
  CollectiveBlock b(comm, call, false);
  if (!b.begin()) return;
  __shared__ DirectTargets targets;
  const DirectPlaces places{b, direct, targets};
  places.nameOwn();
  b.countOthers();
  const Chunks chunks(b);
  const auto sends = [&](uint32_t r) { return chunks.count(call.segments[r].sendBytes); };
  const auto takes = [&](uint32_t r) { return chunks.count(call.segments[r].recvBytes); };
  const auto takesByRing = [&](uint32_t r, uint32_t k) {
    return direct.places[r].segment == 0 && chunks.has(call.segments[r].recvBytes, k);
  };
  const auto isPeer = [&](uint32_t r) { return r < b.ranks && r != b.rank; };
  const CollectiveSegment own = call.segments[b.rank];
  const uint64_t copies = own.send == own.recv ? 0 : chunks.count(own.recvBytes);
  // Thread r finds the place of rank r; behind the barrier every thread knows it.
  bool failed = blockAny(isPeer(b.thread) && sends(b.thread) > 0 && !places.find(b.thread, true));

  const auto isInBulk = [&](uint32_t p) { return places.of(p) != nullptr && isAligned<16>(call.segments[p].send); };
  if (!failed) {
    const uint32_t warp = b.thread / 32;
    // One warp copies the own part if there is one, while the others push.
    const uint32_t pushing = copies == 0 ? ByBulk::Warps : ByBulk::Warps - 1;
    // Copies the share of the n-th of `of` warps. Together they copy this block's part of a message, which has as many chunks as
    // the block's lane, but is contiguous. Nothing beyond `size` is written.
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
      if (sends(p) == 0 || !isInBulk(p)) continue;
      const CollectiveSegment ours = call.segments[p];
      copyShare(places.of(p), ours.send, ours.sendBytes, places.room(p, 0), warp, pushing);
    }
    if (warp >= pushing && warp < ByBulk::Warps) copyShare(own.recv, own.send, own.recvBytes, own.recvBytes, 0, 1);
    const uint32_t last = isPeer(b.thread) ? sends(b.thread) - 1 : 0;
    chunks.signalAll(Chunks::First, last, [&](uint32_t r) { return sends(r) > 0 && isInBulk(r); });
  }

  // Puts chunk k to every peer that has not got all of its chunks.
  const auto put = [&](uint32_t k) {
    const auto part = [&](uint32_t p) {
      const CollectiveSegment ours = call.segments[p];
      if (!chunks.has(ours.sendBytes, k) || isInBulk(p)) return PartCopy{};
      const uint64_t at = chunks.offset(k);
      const uint32_t bytes = chunks.length(ours.sendBytes, k);
      if (places.of(p) != nullptr) return places.part(p, ours.send, at, bytes);
      return PartCopy{chunks.place(Chunks::First, p, b.rank, k), ours.send + at, bytes};
    };
    copyForPeers<false>(b, part);
    const auto mustSignal = [&](uint32_t r) {
      const uint64_t bytes = call.segments[r].sendBytes;
      return chunks.has(bytes, k) && !isInBulk(r) && (places.of(r) == nullptr || !chunks.has(bytes, k + 1));
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
    copyForPeers<false>(b, part);
    chunks.signalAll(Chunks::Credits, k, [&](uint32_t r) { return takesByRing(r, k); });
    return true;
  };

  uint32_t most = 0, mostByRing = 0, mostTaken = 0;
  for (uint32_t n = 1; n < b.ranks && !failed; ++n) {
    const uint32_t p = b.peer(n);
    if (sends(p) > most && !isInBulk(p)) most = sends(p);
    if (sends(p) > mostByRing && places.of(p) == nullptr) mostByRing = sends(p);
    if (direct.places[p].segment == 0 && takes(p) > mostTaken) mostTaken = takes(p);
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
    if (k > 0 && k - 1 < mostTaken) failed = !take(k - 1);
  }
  if (!failed && most > 0 && most == mostTaken) failed = !take(most - 1);
  // D3. The number of the last chunk is another for each thread.
  const uint32_t arriving = isPeer(b.thread) && direct.places[b.thread].segment != 0 ? takes(b.thread) : 0;
  if (!failed) failed = !chunks.waitForAll(Chunks::First, arriving - 1, [&](uint32_t) { return arriving > 0; });
  b.end(failed);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE && MSCCLPP_BULK_AVAILABLE

#endif  // MSCCLPP_COLLECTIVE_BULK_DEVICE_HPP_
