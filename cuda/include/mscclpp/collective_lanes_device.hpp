// Exchanges between two ranks by chunks, in which few blocks nearly fill the link: bulk copies put the chunks, while other
// threads of the same block take them. They need compute capability 9.0. For the library's own use.
//
// A block has LanesOfBlock lanes. The chunks, rings, signals and credits of a lane are those of a block of Simple. So a rank may
// launch the kernel of Simple, or that of collective_direct_device.hpp, with as many lanes where the other launches this one.
//
// The first warp of a lane puts its chunks by bulk copies, and the others take or reduce what comes. While one lane waits for a
// signal or for the end of its copies, the other lanes of the block go on.
//
//   L1. Before the warp puts chunk k, the other threads have taken chunk k - 2, if they take so many. They arrive at
//       `taken`, which the warp waits for, and copyByBulk orders its copies behind that. R1 asks for this. In calls with
//       credits (R2) the warp also waits for the credit of chunk k - 4. One of the threads that take gives it, at the other
//       rank, after it has waited for `taken`.
//   L2. Chunk k is taken when its signal has been acquired, and when this rank has put its own chunk k, if it has so many,
//       since what is taken may overwrite what is sent. The warp arrives at `put` when copyByBulk has returned: then the source
//       has been read. One of the threads that take waits for both, and then all of them meet at `takers`.
//   L3. Chunks with even and with odd numbers have barriers of their own, so the next arrivals after those of chunk k are
//       those of k + 2. Who waits for `put` of k takes k, and k + 2 is put after that (L1). Who waits for `taken` of k is the
//       warp, before it puts k + 2, which is taken after that (L2); or the thread that gives the credit, before it arrives for
//       k + 2. So a parity is enough.
//   L4. No waits form a circle. Chunk k is taken after k has been put here and there, and put after k - 2 has been taken
//       here and, with credits, k - 4 there.
//   L5. The thread that waits for a chunk says in `goesOn` whether it came, before all meet at `takers`. So all leave the
//       loop in the same step. It stores that of chunk k + 2 when all have met for k + 1, and so have read that of k.
//   L6. A thread gives up only after an abort, which ends the waits for the other rank. It stores `failed`, which ends the
//       waits of all lanes of the block for `put` and `taken`. Waits at `takers` end, since the thread that waits for a chunk
//       arrives even if the chunk did not come.

#ifndef MSCCLPP_COLLECTIVE_LANES_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_LANES_DEVICE_HPP_

#include "mscclpp/bulk_device.hpp"
#include "mscclpp/collective_simple_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE) && MSCCLPP_BULK_AVAILABLE

namespace mscclpp {
namespace detail {

enum LaneLimits : uint32_t { LanesOfBlock = 4 };

// The shared memory through which a lane's first warp copies.
using LaneStage = BulkStage<16384, 3>;

// The shared memory in which the threads of a lane meet, and tell each other which chunks have been put and taken.
struct LaneWords {
  // Where the threads that take meet, and for chunks with even and with odd numbers, that one was put, and that it was taken.
  BulkBarrier takers, put[2], taken[2];
  uint32_t goesOn[2];
};
// The shared memory of a block: its lanes, and whether a thread has given up.
struct LanesShared {
  LaneWords of[LanesOfBlock];
  uint32_t failed;
};

// A lane, as one of its threads sees it.
template <class Words, bool Averages>
struct BulkLane {
  const CollectiveBlock& b;
  LanesShared& shared;
  LaneWords& words;
  const Chunks chunks;
  // The chunks that are put, and that are taken.
  uint32_t puts, takes;

  MSCCLPP_DEVICE_INLINE BulkLane(const CollectiveBlock& b, LanesShared& shared, uint32_t lane)
      : b(b),
        shared(shared),
        words(shared.of[lane]),
        chunks(b, b.block * LanesOfBlock + lane, b.blocks * LanesOfBlock),
        puts(chunks.count(b.call.segments[1 - b.rank].sendBytes)),
        takes(chunks.count(b.call.segments[Words::Reduces ? b.rank : 1 - b.rank].recvBytes)) {}

  // Waits for the phase of chunk k of a pair of barriers. Returns false if a thread of the block has given up.
  MSCCLPP_DEVICE_INLINE bool waitFor(const BulkBarrier (&barriers)[2], uint32_t k) const {
    const BulkBarrier& barrier = barriers[k & 1];
    while (!barrier.poll(k >> 1 & 1)) {
      if (detail::load<MemoryOrder::Relaxed, MemoryScope::Device, MemorySpace::Any>(&shared.failed) != 0) return false;
      betweenPolls();
    }
    return true;
  }
  MSCCLPP_DEVICE_INLINE void giveUp() const {
    detail::store<MemoryOrder::Relaxed, MemoryScope::Device, MemorySpace::Any>(&shared.failed, 1u);
  }

  // The part of the first warp: puts all chunks of the lane. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool put(LaneStage& stage) const {
    const uint32_t other = 1 - b.rank;
    const CollectiveSegment ours = b.call.segments[other];
#pragma unroll 1
    for (uint32_t k = 0; k < puts; ++k) {
      bool failed = false;
      if (laneId() == 0) {
        failed = k >= 2 && k - 2 < takes && !waitFor(words.taken, k - 2);
        if (b.call.oneWay && k >= CollectiveChunks) failed = failed || !chunks.wait(Chunks::Credits, other, k - CollectiveChunks);
      }
      if (warpAny(failed)) return false;
      copyByBulk(chunks.place(Chunks::First, other, b.rank, k), ours.send + chunks.offset(k), chunks.length(ours.sendBytes, k),
                 stage);
      if (laneId() == 0) {
        chunks.signal(Chunks::First, other, k);
        words.put[k & 1].arrive();
      }
    }
    return true;
  }

  // The part of the other threads: takes or reduces all chunks of the lane, and copies the rank's own. `b` numbers these threads
  // alone. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool take() const {
    const CollectiveCall& call = b.call;
    const uint32_t other = 1 - b.rank;
    const CollectiveSegment own = call.segments[b.rank], theirs = Words::Reduces ? own : call.segments[other];
    uint32_t most = takes, copies = 0;
    if constexpr (!Words::Reduces) {
      copies = own.send == own.recv ? 0 : chunks.count(own.recvBytes);
      if (copies > most) most = copies;
    }
#pragma unroll 1
    for (uint32_t k = 0; k < most; ++k) {
      const uint64_t at = chunks.offset(k);
      if constexpr (!Words::Reduces) {
        if (k < copies) copyBytes(own.recv + at, own.send + at, chunks.length(own.recvBytes, k), b.thread, b.threads);
      }
      if (k >= takes) continue;
      if (b.thread == 0) {
        const bool came = chunks.wait(Chunks::First, other, k) && (k >= puts || waitFor(words.put, k));
        words.goesOn[k & 1] = came ? 1 : 0;
      }
      words.takers.arrive();
      while (!words.takers.poll(k & 1)) betweenPolls();
      if (words.goesOn[k & 1] == 0) return false;
      const uint32_t bytes = chunks.length(theirs.recvBytes, k);
      if constexpr (Words::Reduces) {
        chunks.template reduceTwo<Words, Averages>(theirs.recv + at, theirs.send + at, bytes, k);
      } else {
        takeBytes(theirs.recv + at, chunks.place(Chunks::First, b.rank, other, k), bytes, b.thread, b.threads);
      }
      words.taken[k & 1].arrive();
      if (call.oneWay && b.thread == 0 && waitFor(words.taken, k)) chunks.signal(Chunks::Credits, other, k);
    }
    return true;
  }
};

// Blocks have a multiple of 32 * LanesOfBlock threads, at least two warps for a lane. Numbers travel as they are.
template <class Words, bool Averages = false>
MSCCLPP_DEVICE_INLINE void exchangeByLanes(const CollectiveHandle& comm, const CollectiveCall& call, LaneStage* stages) {
  CollectiveBlock b(comm, call, true);
  if (!b.begin()) return;
  b.countOthers();
  __shared__ LanesShared shared;
  const uint32_t threads = b.threads / LanesOfBlock, lane = b.thread / threads, thread = b.thread % threads;
  if (thread == 0) {
    LaneWords& words = shared.of[lane];
    words.takers.relaxedInit(threads - 32);
    for (uint32_t odd = 0; odd < 2; ++odd) {
      words.put[odd].relaxedInit();
      words.taken[odd].relaxedInit(threads - 32);
    }
    bulkFence();
    if (lane == 0) shared.failed = 0;
  }
  blockSync();
  bool done;
  if (thread < 32) {
    const BulkLane<Words, Averages> own(b, shared, lane);
    done = own.put(stages[lane]);
    if (!done) own.giveUp();
  } else {
    CollectiveBlock takers = b;
    takers.thread = thread - 32;
    takers.threads = threads - 32;
    const BulkLane<Words, Averages> own(takers, shared, lane);
    done = own.take();
    if (!done) own.giveUp();
  }
  b.end(!done);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE && MSCCLPP_BULK_AVAILABLE

#endif  // MSCCLPP_COLLECTIVE_LANES_DEVICE_HPP_
