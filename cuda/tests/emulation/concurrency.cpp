// The barrier and the counting semaphore of a grid under random interleavings of their accesses.

#include "mscclpp/concurrency_device.hpp"

using mscclpp::DeviceSemaphore;
using mscclpp::DeviceSyncer;
using emulation::Interleaving;

// No block leaves a round before all have come to it, and all leave. One syncer serves all runs, so that the number of
// blocks changes, and the rounds that are folded wrap around.
static void interleavedSyncs() {
  DeviceSyncer syncer = {};
  syncer.state_ = 0xfffffff0ull << 32;
  Random random(1);
  for (uint64_t run = 0; run < 6000; ++run) {
    const unsigned int blocks = 1 + random.below(5);
    const unsigned int threads = 1 + random.below(3);
    const unsigned int rounds = 1 + random.below(4);
    std::vector<unsigned int> reached(blocks * threads);
    Interleaving::run(blocks, threads, random.next(), [&] {
      for (unsigned int round = 1; round <= rounds; ++round) {
        reached[blockIdx.x * threads + threadIdx.x] = round;
        CHECK(syncer.sync(static_cast<int>(blocks)));
        // A faster thread may have come to the next barrier, and no further.
        for (unsigned int other : reached) CHECK(other == round || other == round + 1);
      }
    });
    CHECK(static_cast<uint32_t>(syncer.state_) == 0);
  }
}

// One block is the last, in all its threads, and then all have come.
static void interleavedArrivals() {
  DeviceSyncer syncer = {};
  Random random(2);
  for (uint64_t run = 0; run < 6000; ++run) {
    const unsigned int blocks = 1 + random.below(5);
    const unsigned int threads = 1 + random.below(3);
    unsigned int come = 0, lasts = 0;
    Interleaving::run(blocks, threads, random.next(), [&] {
      ++come;
      if (!syncer.arrive(static_cast<int>(blocks))) return;
      ++lasts;
      CHECK(come == blocks * threads);
    });
    CHECK(lasts == threads && static_cast<uint32_t>(syncer.state_) == 0);
  }
}

// At most as many threads hold the semaphore as there are turns, none waits for ever, and all turns are given back.
static void interleavedTurns() {
  Random random(3);
  for (uint64_t run = 0; run < 6000; ++run) {
    const unsigned int blocks = 1 + random.below(5);
    const unsigned int turns = 1 + random.below(3);
    DeviceSemaphore semaphore = {};
    semaphore.set(turns);
    unsigned int holders = 0, most = 0;
    Interleaving::run(blocks, 1, random.next(), [&] {
      for (int i = 0; i < 3; ++i) {
        CHECK(semaphore.acquire());
        ++holders;
        most = holders > most ? holders : most;
        mscclpp_sim::pause();
        --holders;
        semaphore.release();
      }
    });
    CHECK(most <= turns && semaphore.count_ == turns);
  }
}

// Waits whose signal does not come end by their bound or by an abort, for all threads of the block, and report that.
static void endings() {
  uint32_t status[4] = {};
  unsigned int gaveUp = 0;
  DeviceSyncer syncer = {};
  emulation::launch(1, 3, [&] { gaveUp += !syncer.sync(2, 100, status); });
  CHECK(gaveUp == 3 && status[mscclpp::StatusTimedOut] == 1 && status[mscclpp::StatusAborted] == 0);
  syncer.state_ = 0;
  emulation::launch(1, 3, [&] { gaveUp += !syncer.sync(2, 100); });
  CHECK(gaveUp == 6);
  DeviceSemaphore semaphore = {};
  CHECK(!semaphore.acquire(0) && !semaphore.acquire(10) && semaphore.count_ == 0);
  semaphore.release();
  CHECK(semaphore.acquire(0) && semaphore.count_ == 0);
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    __atomic_store_n(status + mscclpp::StatusAbortRequested, 1u, __ATOMIC_RELEASE);
  });
  CHECK(!semaphore.acquire(-1, status));
  syncer.state_ = 0;
  emulation::launch(1, 3, [&] { gaveUp += !syncer.sync(2, -1, status); });
  host.join();
  CHECK(gaveUp == 9 && status[mscclpp::StatusAborted] == 1);
}

int main() {
  interleavedSyncs();
  interleavedArrivals();
  emulation::asThread(interleavedTurns);
  emulation::asThread(endings);
}
