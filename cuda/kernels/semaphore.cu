// Small kernels with which tests check a semaphore: single waits and polls, counted signals, and many threads signalling
// and waiting at once.

#include "mscclpp/memory_channel_device.hpp"

using mscclpp::BaseMemoryChannelDeviceHandle;

// The values that wait_once and poll_once leave in `result`: 0 would mean that they have not run to the end.
enum Outcome : unsigned int { Signalled = 1, NotSignalled = 2 };

// One wait, by one thread.
extern "C" __global__ void wait_once(BaseMemoryChannelDeviceHandle ch, int64_t maxSpin, unsigned int* result) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  *result = ch.wait(maxSpin) ? Signalled : NotSignalled;
}

// One poll, by one thread.
extern "C" __global__ void poll_once(BaseMemoryChannelDeviceHandle ch, unsigned int* result) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  *result = ch.poll() ? Signalled : NotSignalled;
}

// `n` signals, by one thread.
extern "C" __global__ void signal_n(BaseMemoryChannelDeviceHandle ch, int n) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  for (int i = 0; i < n; ++i) ch.signal();
}

// Takes one signal in the way of this thread: by an unbounded wait, a bounded wait or a poll, the latter two repeated up
// to `attempts` times. Returns whether it got one.
__device__ static bool takeOne(const BaseMemoryChannelDeviceHandle& ch, unsigned int way, int64_t maxSpin,
                               int64_t attempts) {
  if (way == 0) return ch.wait();
  for (int64_t i = 0; i < attempts; ++i) {
    if (way == 1 ? ch.wait(maxSpin) : ch.poll()) return true;
  }
  return false;
}

// In every thread of the grid, `perThread` times: signals and takes a signal. Threads differ in how they take it, by
// their number modulo 3, and in how they signal, by its lowest bit. `taken` has one word for each way and gets the number
// of signals taken in that way. With the peer doing the same, the three add up to perThread * threads and no signal is
// left.
extern "C" __global__ void contended(BaseMemoryChannelDeviceHandle ch, int perThread, int64_t maxSpin,
                                     int64_t attempts, unsigned long long* taken) {
  const unsigned int thread = threadIdx.x + blockIdx.x * blockDim.x;
  const unsigned int way = thread % 3;
  unsigned long long count = 0;
  for (int i = 0; i < perThread; ++i) {
    if (thread & 1) {
      ch.relaxedSignal();
    } else {
      ch.signal();
    }
    if (!takeOne(ch, way, maxSpin, attempts)) break;
    ++count;
  }
  atomicAdd(taken + way, count);
}
