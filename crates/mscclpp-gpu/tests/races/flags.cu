// Two ranks write into each other's memory and say so in flags of their own making.

#include <mscclpp/atomic_device.hpp>
#include <mscclpp/poll_device.hpp>

using namespace mscclpp;

// The layout of each rank's memory, in words of 8 bytes: a flag, the number of launches, then two places for data.
constexpr int Launches = 16, Data = 32;

__device__ static void set(uint64_t* flag, uint64_t value) {
  atomicStore<uint64_t, scopeSystem>(flag, value, memoryOrderRelease);  // @set
}
__device__ static void waitFor(uint64_t* flag, uint64_t value) {
  while (atomicLoad<uint64_t, scopeSystem>(flag, memoryOrderAcquire) < value) detail::betweenPolls();  // @wait
}

// By acquire and release.
extern "C" __global__ void flags(uint64_t* mine, uint64_t* theirs, uint64_t* results, int first) {
  for (int round = first; round < first + 16; ++round) {
    const int place = Data + round % 2;
    theirs[place] = round;  // @write
    set(theirs, round + 1);
    waitFor(mine, round + 1);  // @poll
    results[0] += mine[place];  // @read
  }
}

// By fences around relaxed accesses.
extern "C" __global__ void fences(uint64_t* mine, uint64_t* theirs, uint64_t* results, int first) {
  for (int round = first; round < first + 16; ++round) {
    const int place = Data + round % 2;
    theirs[place] = round;  // @writeOfFences
    __threadfence_system();  // first
    atomicStore<uint64_t, scopeSystem>(theirs, round + 1, memoryOrderRelaxed);
    while (atomicLoad<uint64_t, scopeSystem>(mine, memoryOrderRelaxed) < round + 1) detail::betweenPolls();
    __threadfence_system();  // second
    results[0] += mine[place];  // @readOfFences
  }
}

// One round a launch, whose number is in memory.
extern "C" __global__ void epochs(uint64_t* mine, uint64_t* theirs, uint64_t* results, int) {
  const uint64_t epoch = mine[Launches];
  const int place = Data + epoch % 2;
  theirs[place] = epoch;  // @writeOfEpoch
  set(theirs, epoch + 1);
  waitFor(mine, epoch + 1);
  results[0] += mine[place];  // @readOfEpoch
  mine[Launches] = epoch + 1;
}
