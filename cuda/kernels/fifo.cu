// Tests of a FIFO: many threads push triggers that the host can tell apart and check, and one thread pushes and waits.

#include "mscclpp/atomic_device.hpp"
#include "mscclpp/fifo_device.hpp"

using mscclpp::FifoDeviceHandle;
using mscclpp::ProxyTrigger;

// Returns a word of 63 bits that belongs to `x` (splitmix64's finalizer), so that mixed halves of two triggers are
// noticed.
__device__ static uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) >> 1;
}

// Every thread of the grid pushes `perThread` triggers: the first word is the thread's number in the high half and how
// many it has pushed before in the low half, the second is that word mixed. Every `syncEvery`-th (never, if 0) it waits
// until the proxy has taken. A push or a wait gives up after `maxSpin` polls (never, if negative) or when aborted; then
// the thread stops and leaves its number + 1 in `failed`.
extern "C" __global__ void __launch_bounds__(1024, 1)
    fifo_push_numbered(FifoDeviceHandle fifo, uint32_t perThread, uint32_t syncEvery, int64_t maxSpin,
                       unsigned int* failed) {
  const uint64_t thread = threadIdx.x + blockIdx.x * blockDim.x;
  for (uint32_t i = 0; i < perThread; ++i) {
    const uint64_t number = thread << 32 | i;
    const uint64_t position = fifo.push(ProxyTrigger{number, mixed(number)}, maxSpin);
    if (position == FifoDeviceHandle::Failed ||
        (syncEvery != 0 && (i + 1) % syncEvery == 0 && !(fifo.sync(position, maxSpin) && fifo.poll(position)))) {
      // The number of any failed thread will do.
      mscclpp::atomicStore(failed, static_cast<unsigned int>(thread) + 1, mscclpp::memoryOrderRelaxed);
      return;
    }
  }
}

// Whether a trigger carries the data written before it: one thread writes the number of the round to `data` and pushes
// it, `rounds` times. The host finds in `data`, which is pinned, at least the number in the trigger.
extern "C" __global__ void fifo_push_after_data(FifoDeviceHandle fifo, uint64_t* data, uint32_t rounds,
                                                unsigned int* failed) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  for (uint32_t i = 1; i <= rounds; ++i) {
    *static_cast<volatile uint64_t*>(data) = i;
    if (fifo.push(ProxyTrigger{i, mixed(i)}) == FifoDeviceHandle::Failed) {
      *failed = i;
      return;
    }
  }
}
