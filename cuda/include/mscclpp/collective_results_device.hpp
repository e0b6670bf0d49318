// The all_reduce in two steps by Simple, whose results go straight into the receive memory of the peers that have published it.
// For the library's own use.
//
// The kernel has the lanes, rings, signals and steps of allReduceSimple, so a peer may launch that one (D8). The two kernels
// differ in where the block that reduces stores a chunk of results: at the place that the peer has named, or in the ring if it
// has named none. Either way it signals the chunk behind a barrier, with release, and the peer's block that puts waits for
// that with acquire (D3). So R3 holds unchanged; only the copy out of the ring is left out. The word by which a sender tells
// that its lane goes directly (D8) is behind that of the lane's signals for results.
//
// In place (D2), a place may be the memory of the numbers that its rank sends to be reduced to these results. Chunk k of the
// numbers and chunk k of the results are then the same bytes, and belong to the same lane. Only one block of the rank's kernel
// reads them: the block that puts the chunk. When it has read them, it signals the chunk, with release behind a barrier. The
// peer needs that signal to make the result, and stores the result after it has acquired the signal.

#ifndef MSCCLPP_COLLECTIVE_RESULTS_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_RESULTS_DEVICE_HPP_

#include "mscclpp/collective_direct_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// A lane of an all_reduce in which some results go directly. Each thread waits for and signals the peer that has its own number.
struct ResultsLane : Chunks {
  // `at`: where the results of the chunk that is reduced next go, for each peer. `comes`: whether the peer's results come
  // directly.
  DirectTargets& targets;
  // The place that this thread's peer has named for this rank's results, or null.
  uint8_t* const direct;

  MSCCLPP_DEVICE_INLINE ResultsLane(const Chunks& chunks, DirectTargets& targets, uint8_t* direct)
      : Chunks(chunks), targets(targets), direct(direct) {}

  MSCCLPP_DEVICE_INLINE bool isPeer() const { return b.thread < b.ranks && b.thread != b.rank; }

  // Tells this thread's peer, before the lane's first signal, that the lane goes directly, if it does.
  MSCCLPP_DEVICE_INLINE void tellDirect() const {
    if (direct != nullptr) store8(word(Results, b.thread, b.rank) + 1, b.epoch);
  }

  // Waits as Chunks::waitForAll does. Before a chunk is reduced, each thread also notes in `at` where its result goes: the block
  // has passed a barrier since it used `at` for the chunk before, and passes another one before it uses this. With the first
  // result of a peer, the thread learns whether the peer's results come directly.
  template <class Due>
  MSCCLPP_DEVICE_INLINE bool waitForAll(Signal signal, uint32_t k, Due due) const {
    const uint32_t r = b.thread;
    bool came = true;
    if (isPeer()) {
      if (signal == First) targets.at[r] = direct != nullptr ? direct + offset(k) : place(Results, r, b.rank, k);
      if (due(r)) {
        came = wait(signal, r, k);
        if (signal == Results && k == 0) targets.comes[r] = load8(word(Results, b.rank, r) + 1) == b.epoch;
      }
    }
    return !blockAny(!came);
  }
  template <class Words>
  MSCCLPP_DEVICE_INLINE void reduceForAll(uint32_t k) const {
    reduceOfAll<Words>(k, [&] { return static_cast<uint8_t* const*>(targets.at); });
  }
  template <class Words>
  MSCCLPP_DEVICE_INLINE void takeResults(uint32_t k) const {
    takeFromAll<Words>(Results, k, [&](uint32_t p) { return targets.comes[p]; });
  }
};

// Blocks have at least as many threads as there are ranks.
template <class Words>
MSCCLPP_DEVICE_INLINE void allReduceDirect(const CollectiveHandle& comm, const CollectiveDirectCall& direct) {
  CollectiveBlock b(comm, direct.call, false);
  if (!b.begin()) return;
#if defined(MSCCLPP_DEVICE_HIP)
  static __attribute__((shared)) DirectTargets targets;
#else
  __shared__ DirectTargets targets;
#endif
  const DirectPlaces places{b, direct, targets};
  places.nameOwn();
  b.countOthers();
  const ChunkRole role(b);
  const Chunks chunks(b, role.lane, role.lanes, CollectiveStepChunks);
  const uint64_t part = direct.call.segments[b.rank].sendBytes;
  const uint32_t r = b.thread;
  uint8_t* place = nullptr;
  bool failed = false;
  if (role.takes && r < b.ranks && r != b.rank && chunks.has(part, 0)) {
    failed = !places.find(r, false);
    // A place that is too short was named for another call (D5).
    if (!failed && places.room(r, 0) >= part) place = places.of(r);
  }
  if (blockAny(failed)) {
    b.end(true);
    return;
  }
  const ResultsLane lane(chunks, targets, place);
  lane.tellDirect();
  reduceInTwoSteps<Words>(b, role, lane);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_RESULTS_DEVICE_HPP_
