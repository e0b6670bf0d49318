// Two ranks write into each other's memory and signal: in rounds, with two places in turns.

#include <mscclpp/semaphore_device.hpp>

using namespace mscclpp;

// The layout of each rank's memory, in words of 8 bytes: the token, the claims, then two places for data.
constexpr int Claims = 16, Data = 32, Threads = 64;

extern "C" __global__ void exchange(uint64_t* mine, uint64_t* theirs, uint64_t* results, int first) {
  MemoryDevice2DeviceSemaphoreDeviceHandle semaphore = {mine, mine + Claims, theirs, nullptr, nullptr};
  for (int round = first; round < first + 16; ++round) {
    const int place = Data + round % 2 * Threads;
    theirs[place + threadIdx.x] = round;  // @write
    __syncthreads();  // @before
    if (threadIdx.x == 0) {
      semaphore.signal();
      semaphore.wait();
    }
    __syncthreads();  // @behind
    results[threadIdx.x] += mine[place + Threads - 1 - threadIdx.x];  // @read
  }
}
