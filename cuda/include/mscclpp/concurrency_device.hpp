// The means by which the blocks of a grid wait for each other: a barrier, and a counting semaphore. Both start as
// zeros, as in `__device__ mscclpp::DeviceSyncer syncer;`, and are in this device's memory; nothing resets them between
// launches. In shared memory, where they serve the threads of a block alone, one thread sets them to zero first:
// `syncer = mscclpp::DeviceSyncer();`.

#ifndef MSCCLPP_CONCURRENCY_DEVICE_HPP_
#define MSCCLPP_CONCURRENCY_DEVICE_HPP_

#include "mscclpp/atomic_device.hpp"
#include "mscclpp/group_device.hpp"
#include "mscclpp/poll_device.hpp"

namespace mscclpp {

// A barrier of some or all blocks of a grid, for any number of rounds, launches and replays of a graph. All the blocks
// must be able to run at the same time.
//
// How it counts. A block arrives by adding 1 to the state's low half; what was there before is its ticket. The last of
// a round then folds it: in one addition it takes numBlocks from the low half and adds 1 to the high half. So
// progress = high * numBlocks + low is how many blocks have arrived in all rounds, and folding leaves it as it is.
//
// D1. A round is complete when progress reaches its last arrival, and then all of its blocks are there: each arrives
//     once a round, and for the next round only after this one is complete. So the first numBlocks tickets are those of
//     the first round, the next numBlocks those of the second.
// D2. The last of a round folds it before it arrives again (the same thread does both, to the same word), and without
//     it the next round is not complete. So a ticket's low half is below 2 * numBlocks - 1 and never carries into high.
//     From numBlocks on it says that the round before is complete but not yet folded. The last of a round comes when
//     the round before is folded: its ticket's low half is numBlocks - 1.
// D3. A waiter sees at most one round more complete than its own, as the next but one needs its arrival: differences of
//     progress are small, and the high half may wrap.
// D4. The number of blocks may change between launches: when a kernel ends all is folded, and the low half is 0.
// D5. Arrivals acquire and release, polls acquire, and nothing but arrivals and folds, all of them read-modify-writes,
//     changes the state. So who reads progress p has synchronised with the first p arrivals. Device scope is enough:
//     the blocks are of one device. A signal behind it, at system scope, passes on what was acquired.
// D6. In syncWithPeers the first block arrives last. It comes when the round before is complete, as it took part in that;
//     so once the low half is one less than numBlocks, the round before is folded and all others have arrived in this
//     one: its poll, which acquires, has synchronised with them, and its signals pass that on. What it acquires from the
//     peers' signals its arrival releases to the blocks that wait for the round. If it gives up, it adds Broken to the low
//     half, which arrivals never reach, in place of arriving: who polls sees that, also who arrives later.
struct DeviceSyncer {
  uint64_t state_;

  DeviceSyncer() = default;

  // The number of counters of a barrier in the original. Nothing here depends on it.
  static constexpr unsigned int NumCounters = 3;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Waits until numBlocks blocks have called this. All threads of each of these blocks call it, with the same numBlocks
  // at every call of the launch. After it all of them see what any of their threads did before it.
  //
  // Returns true. Returns false, in all threads of the block, when the others did not come within maxSpinCount polls,
  // if that is not negative, or when the host asked for an abort in `status` (see StatusWord; may be null, then only
  // the bound ends it). The arrival stays behind, so the object must be zeroed before it is used again.
  //
  // A block that arrives early costs the others nothing: if one block has to wait for something, the rest call this at
  // once, and the barrier then takes only the time to notify them.
  MSCCLPP_DEVICE_INLINE bool sync(int numBlocks, int64_t maxSpinCount = -1, uint32_t* status = nullptr) {
    blockSync();
    bool failed = false;
    if (isFirstOfBlock()) {
      const uint32_t blocks = static_cast<uint32_t>(numBlocks);
      const Arrival arrival = arriveOnce(blocks);
      uint64_t* const state = &state_;
      const auto complete = [&] {
        const uint64_t now = detail::load<MemoryOrder::Acquire, MemoryScope::Device, MemorySpace::Any>(state);
        const uint32_t folds = static_cast<uint32_t>(now >> 32) - arrival.folded;
        return folds * blocks + static_cast<uint32_t>(now) >= arrival.goal;
      };
      failed = !arrival.last && !pollUntil(complete, maxSpinCount, status);
    }
    return !blockAny(failed);
  }

  // Half of the barrier: arrives and waits for nobody. Returns true, in all threads, for the one block that is the last
  // of numBlocks to call it. After it the last block sees what the others' threads did before it: it may signal a peer
  // for all of them, and they can end meanwhile.
  //
  // A block may use the object again only when it knows that the last one has come: by the end of the kernel, or from
  // what that block does next. Calls are otherwise as those of `sync`.
  MSCCLPP_DEVICE_INLINE bool arrive(int numBlocks) {
    blockSync();
    return blockAny(isFirstOfBlock() && arriveOnce(static_cast<uint32_t>(numBlocks)).last);
  }

  // A barrier of these blocks and of the peers' behind all of `channels`: signals each of the `count` channels when all of
  // the blocks 0 to numBlocks - 1 of this grid have come, waits for a signal of each, and then lets the blocks go on. What
  // any thread of theirs, or of a peer that does the same, did before it, all see behind it. Blocks are otherwise as in
  // `sync`; `channels` are handles of memory or port channels, the same for all threads, each with another peer.
  //
  // Returns true. Returns false, in all threads of all blocks, when a signal, or a block, did not come within maxSpinCount
  // polls, if that is not negative, or after an abort of a channel; then the object must be zeroed before it is used
  // again. With an abort of the first channel, blocks may differ in whether they still got through.
  //
  // The blocks meet once: the first block is the last to arrive, and speaks with the peers before it does.
  template <class Channel>
  MSCCLPP_DEVICE_INLINE bool syncWithPeers(const Channel* channels, int count, int numBlocks,
                                           int64_t maxSpinCount = -1) {
    const uint32_t blocks = static_cast<uint32_t>(numBlocks), peers = static_cast<uint32_t>(count);
    uint32_t* const status = peers == 0 ? nullptr : channels[0].semaphore_.status;
    uint64_t* const state = &state_;
    const auto now = [&] { return detail::load<MemoryOrder::Acquire, MemoryScope::Device, MemorySpace::Any>(state); };
    bool failed = false;
    blockSync();
    if (!isFirstBlock()) {
      if (isFirstOfBlock()) {
        const Arrival arrival = arriveOnce(blocks);
        const auto complete = [&] {
          const uint64_t seen = now();
          const uint32_t folds = static_cast<uint32_t>(seen >> 32) - arrival.folded, low = static_cast<uint32_t>(seen);
          failed = (low & Broken) != 0;
          return failed || folds * blocks + low >= arrival.goal;
        };
        // The first block counts polls for all, so no block is left waiting.
        failed = !pollUntil<1>(complete, -1, status) || failed;
      }
      return !blockAny(failed);
    }
    if (isFirstOfBlock()) {
      failed = !pollUntil<1>([&] { return static_cast<uint32_t>(now()) == blocks - 1; }, maxSpinCount, status);
    }
    failed = blockAny(failed);
    if (!failed) {
      for (uint32_t i = threadOfBlock(); i < peers; i += threadsOfBlock()) channels[i].signal();
      for (uint32_t i = threadOfBlock(); i < peers; i += threadsOfBlock()) {
        failed = !channels[i].wait(maxSpinCount) || failed;
      }
      failed = blockAny(failed);
    }
    if (isFirstOfBlock()) {
      if (failed) {
        detail::reduceAdd<MemoryOrder::Release, MemoryScope::Device, MemorySpace::Any>(&state_,
                                                                                     static_cast<uint64_t>(Broken));
      } else {
        arriveOnce(blocks);
      }
    }
    return !failed;
  }

 private:
  enum Breaking : uint32_t { Broken = 1u << 31 };

  // The meaning of a ticket, with the progress of its round's end relative to the rounds that were folded by then.
  struct Arrival {
    uint32_t folded;
    uint32_t goal;
    bool last;
  };

  MSCCLPP_DEVICE_INLINE Arrival arriveOnce(uint32_t blocks) {
    const uint64_t ticket = detail::fetchAdd<MemoryOrder::AcquireRelease, MemoryScope::Device, MemorySpace::Any>(
        &state_, detail::oneOfThisLane());
    const uint32_t low = static_cast<uint32_t>(ticket);
    Arrival arrival;
    arrival.folded = static_cast<uint32_t>(ticket >> 32);
    arrival.goal = low < blocks ? blocks : 2 * blocks;
    arrival.last = low + 1 == blocks;
    if (arrival.last) {
      // It orders nothing: it only keeps the chain of read-modify-writes.
      detail::reduceAdd<MemoryOrder::Relaxed, MemoryScope::Device, MemorySpace::Any>(
          &state_, (static_cast<uint64_t>(1) << 32) - blocks);
    }
    return arrival;
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// A counting semaphore among the threads of one device: at most as many are between acquire and release as `set` says.
//
// The count is changed by read-modify-writes alone once it is set: a compare-and-swap with acquire from c to c - 1, an
// addition with release. So who acquires has synchronised with every release before. Nobody gets a turn that is not
// there: the swap proves that the count was c > 0 in that moment.
struct DeviceSemaphore {
  uint32_t count_;

  DeviceSemaphore() = default;

  // Makes a semaphore with a count, as in `__device__ mscclpp::DeviceSemaphore semaphore(2);`.
  MSCCLPP_HOST_DEVICE_INLINE constexpr DeviceSemaphore(int count) : count_(static_cast<uint32_t>(count)) {}

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Sets the count. One thread, while nobody else uses the semaphore; the others see it after a barrier or a launch.
  MSCCLPP_DEVICE_INLINE void set(int count) {
    detail::store<MemoryOrder::Release, MemoryScope::Device, MemorySpace::Any>(&count_, static_cast<uint32_t>(count));
  }

  // Waits for a turn and takes it; each thread does so for itself. Returns false when none came within maxSpinCount
  // polls, if that is not negative, or when the host asked for an abort in `status` (may be null); nothing is taken
  // then.
  MSCCLPP_DEVICE_INLINE bool acquire(int64_t maxSpinCount = -1, uint32_t* status = nullptr) {
    uint32_t* const count = &count_;
    return pollUntil<1>([&] { return tryTake(count); }, maxSpinCount, status);
  }

  // Gives a turn back. The thread that takes it next sees what this thread did before.
  MSCCLPP_DEVICE_INLINE void release() {
    detail::reduceAdd<MemoryOrder::Release, MemoryScope::Device, MemorySpace::Any>(&count_, 1u);
  }

 private:
  // Repeats only when another thread took or gave back a turn meanwhile.
  MSCCLPP_DEVICE_INLINE static bool tryTake(uint32_t* count) {
    uint32_t there = detail::load<MemoryOrder::Relaxed, MemoryScope::Device, MemorySpace::Any>(count);
    while (there != 0) {
      const uint32_t before = detail::compareSwap<MemoryOrder::Acquire, MemoryScope::Device, MemorySpace::Any>(
          count, there, there - 1);
      if (before == there) return true;
      there = before;
    }
    return false;
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

}  // namespace mscclpp

#endif  // MSCCLPP_CONCURRENCY_DEVICE_HPP_
