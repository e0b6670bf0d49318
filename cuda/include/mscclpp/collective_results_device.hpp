// The all_reduce in two steps by Simple, whose results go straight into the receive memory of the peers that have published it.
// For the library's own use.
//
// It has the lanes, places, signals and steps of allReduceSimple, so a peer may launch that kernel (D8). What differs is where
// the block that reduces stores a chunk of results: at the place that the peer has said, if it has said one, and otherwise in
// the ring. Either way it signals the chunk behind a barrier, with release, and the peer's block that puts waits for that with
// acquire (D3). So R3 holds as it stands; only the copy out of the ring is left out. The word by which a sender says that
// its lane goes directly (D8) is behind that of the lane's signals for results.
//
// In place (D2), a place may be the memory of the numbers that its rank sends to be reduced to these results. Chunk k of both
// is the same bytes, of the same lane. One block of the rank reads it, the one that puts it, and nothing else of the
// rank's kernel does. It signals the chunk, with release behind a barrier, when it has read it; and the peer stores the
// result after it has acquired that signal, which it needs to make the result.

#ifndef MSCCLPP_COLLECTIVE_RESULTS_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_RESULTS_DEVICE_HPP_

#include "mscclpp/collective_direct_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// A lane of an all_reduce of which some results go directly. Each thread has the part of one peer, that of its own number.
struct ResultsLane : Chunks {
  // `at`: where the results of a chunk go that is reduced next. `comes`: whether the peer's results come directly.
  DirectTargets& targets;
  // The place for this rank's results at this thread's peer, or null.
  uint8_t* const direct;

  MSCCLPP_DEVICE_INLINE ResultsLane(const Chunks& chunks, DirectTargets& targets, uint8_t* direct)
      : Chunks(chunks), targets(targets), direct(direct) {}

  MSCCLPP_DEVICE_INLINE bool isPeer() const { return b.thread < b.ranks && b.thread != b.rank; }

  // Says to this thread's peer that the lane goes directly, before its first signal.
  MSCCLPP_DEVICE_INLINE void say() const {
    if (direct != nullptr) store8(word(Results, b.thread, b.rank) + 1, b.epoch);
  }

  // Waits as Chunks does. Before a chunk is reduced, each thread also notes where its result goes: the block has passed a barrier
  // since it used `at` for the chunk before, and passes one before it uses this. With the first result of a peer it
  // learns whether they come directly.
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
  places.say();
  b.countOthers();
  const ChunkRole role(b);
  const Chunks chunks(b, role.lane, role.lanes, CollectiveStepChunks);
  const uint64_t part = direct.call.segments[b.rank].sendBytes;
  const uint32_t r = b.thread;
  uint8_t* place = nullptr;
  bool failed = false;
  if (role.takes && r < b.ranks && r != b.rank && chunks.has(part, 0)) {
    failed = !places.find(r, false);
    // A place that is too short is that of another call (D5).
    if (!failed && places.room(r, 0) >= part) place = places.of(r);
  }
  if (blockAny(failed)) {
    b.end(true);
    return;
  }
  const ResultsLane lane(chunks, targets, place);
  lane.say();
  reduceInTwoSteps<Words>(b, role, lane);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_RESULTS_DEVICE_HPP_
