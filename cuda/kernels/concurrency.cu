// Kernels that test the barrier and the semaphore with which the blocks of a grid wait for each other.

#include "mscclpp/concurrency_device.hpp"
#include "mscclpp/memory_channel_device.hpp"

using mscclpp::DeviceSemaphore;
using mscclpp::DeviceSyncer;

// `rounds` rounds over the barrier, by all blocks: thread 0 of each writes the round into its block's word of `cells`,
// which start at zero, and after the barrier every thread compares some of the words of all blocks. `base` is the number
// of the first round, and counts on from launch to launch. `mismatches` gets the number of words that were not the
// round's. A sync gives up after `maxSpin` polls (never, if negative): `failed` then gets the round + 1.
extern "C" __global__ void grid_barrier(DeviceSyncer* syncer, uint64_t* cells, uint64_t base, int rounds,
                                        int64_t maxSpin, unsigned long long* mismatches, unsigned int* failed) {
  const int blocks = gridDim.x;
  unsigned long long wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) cells[blockIdx.x] = base + round;
    bool came = syncer->sync(blocks, maxSpin);
    for (int i = threadIdx.x; i < blocks; i += blockDim.x) wrong += cells[i] != base + round;
    // No thread writes the next round's words before all have compared these.
    came = came && syncer->sync(blocks, maxSpin);
    if (!came) {
      if (threadIdx.x == 0) *failed = round + 1;
      break;
    }
  }
  if (wrong != 0) atomicAdd(mismatches, wrong);
}

// Thread 0 of each block adds 1 to its word of `cells`, which start at zero, and all blocks arrive. The last one to do so
// adds the sum of the words to `sum` and 1 to `lasts`: after n launches they must be the total of the n launches' sums,
// and n.
extern "C" __global__ void grid_arrive(DeviceSyncer* syncer, uint64_t* cells, uint64_t* sum, uint64_t* lasts) {
  const int blocks = gridDim.x;
  if (threadIdx.x == 0) ++cells[blockIdx.x];
  if (!syncer->arrive(blocks) || threadIdx.x != 0) return;
  uint64_t all = 0;
  for (int i = 0; i < blocks; ++i) all += cells[i];
  *sum = all;
  ++*lasts;
}

// Sets the semaphore's count, by one thread.
extern "C" __global__ void semaphore_set(DeviceSemaphore* semaphore, uint32_t count) {
  if (threadIdx.x + blockIdx.x * blockDim.x == 0) semaphore->set(count);
}

// In thread 0 of each block, `times` times: takes a turn of the semaphore, whose count is 1, adds 1 to `*counter` with
// plain accesses and gives the turn back. An acquire gives up after `maxSpin` polls (never, if negative): `failed` then
// gets 1.
extern "C" __global__ void semaphore_turns(DeviceSemaphore* semaphore, int times, int64_t maxSpin, uint64_t* counter,
                                           unsigned int* failed) {
  if (threadIdx.x != 0) return;
  for (int i = 0; i < times; ++i) {
    if (!semaphore->acquire(maxSpin)) {
      *failed = 1;
      return;
    }
    *const_cast<volatile uint64_t*>(counter) = *const_cast<volatile uint64_t*>(counter) + 1;
    semaphore->release();
  }
}

// `rounds` rounds of a barrier of several devices, each with all blocks of such a kernel: every block writes the round to
// its word of `mine`, and after the barrier every thread compares the words of all blocks of all devices, which are the
// `devices` arrays `words`. `channels` lead to the others. The rest is as in grid_barrier.
extern "C" __global__ void barrier_of_devices(DeviceSyncer* syncer, const mscclpp::BaseMemoryChannelDeviceHandle* channels,
                                              int devices, uint64_t* mine, const uint64_t* const* words, int rounds,
                                              int64_t maxSpin, unsigned long long* mismatches, unsigned int* failed) {
  const int blocks = gridDim.x;
  unsigned long long wrong = 0;
  for (int round = 1; round <= rounds; ++round) {
    if (threadIdx.x == 0) mine[blockIdx.x] = round;
    bool came = syncer->syncWithPeers(channels, devices - 1, blocks, maxSpin);
    for (int i = threadIdx.x; came && i < devices * blocks; i += blockDim.x) {
      wrong += words[i / blocks][i % blocks] != static_cast<uint64_t>(round);
    }
    // No thread writes the next round's words before all have compared these.
    came = came && syncer->syncWithPeers(channels, devices - 1, blocks, maxSpin);
    if (!came) {
      if (threadIdx.x == 0) atomicAdd(failed, 1u);
      break;
    }
  }
  if (wrong != 0) atomicAdd(mismatches, wrong);
}
