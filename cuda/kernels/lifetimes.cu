// Kernels that wait until the host ends the wait; meanwhile tests drop objects and end programs. Each leaves in `ended`
// how its wait ended. Given a `beat`, a kernel waits with a bound, again and again for ever, and counts in it each time
// that it has used all its memory once more.

#include "mscclpp/memory_channel_device.hpp"
#include "mscclpp/port_channel_device.hpp"

namespace {

enum Ended : uint64_t { Signalled = 1, NotSignalled = 2 };

template <class Wait>
__device__ void waitAll(Wait wait, uint64_t* beat, uint64_t* ended) {
  if (threadIdx.x != 0) return;
  bool signalled = false;
  if (beat == nullptr) {
    signalled = wait(-1);
  } else {
    while (!signalled) {
      signalled = wait(64);
      mscclpp::atomicFetchAdd<uint64_t>(beat, 1, mscclpp::memoryOrderRelaxed);
    }
  }
  *ended = signalled ? Signalled : NotSignalled;
}

}  // namespace

extern "C" __global__ void wait_base(mscclpp::BaseMemoryChannelDeviceHandle channel, uint64_t* beat, uint64_t* ended) {
  waitAll([&](int64_t spins) { return channel.wait(spins); }, beat, ended);
}

// Touches both memories at their last words: `words` is the number of words.
extern "C" __global__ void wait_memory(mscclpp::MemoryChannelDeviceHandle channel, uint64_t words, uint64_t* beat,
                                       uint64_t* ended) {
  waitAll(
      [&](int64_t spins) {
        const bool signalled = channel.wait(spins);
        channel.put(8 * (words - 1), 8 * (words - 1), 8, 0, 1);
        return signalled;
      },
      beat, ended);
}

extern "C" __global__ void wait_semaphore(mscclpp::MemoryDevice2DeviceSemaphoreDeviceHandle semaphore, uint64_t* beat,
                                          uint64_t* ended) {
  waitAll([&](int64_t spins) { return semaphore.wait(spins); }, beat, ended);
}

extern "C" __global__ void wait_host_semaphore(mscclpp::Host2DeviceSemaphoreDeviceHandle semaphore, uint64_t* beat,
                                               uint64_t* ended) {
  waitAll([&](int64_t spins) { return semaphore.wait(spins); }, beat, ended);
}

// The put need not be carried out any more.
extern "C" __global__ void wait_port(mscclpp::PortChannelDeviceHandle channel, uint64_t* beat, uint64_t* ended) {
  waitAll(
      [&](int64_t spins) {
        const bool signalled = channel.wait(spins);
        channel.put(0, 0, 8);
        return signalled;
      },
      beat, ended);
}

extern "C" __global__ void wait_base_port(mscclpp::BasePortChannelDeviceHandle channel, uint64_t* beat,
                                          uint64_t* ended) {
  waitAll([&](int64_t spins) { return channel.wait(spins); }, beat, ended);
}

// Waits until trigger 0 is taken.
extern "C" __global__ void wait_fifo(mscclpp::FifoDeviceHandle fifo, uint64_t* beat, uint64_t* ended) {
  if (threadIdx.x == 0) fifo.push(mscclpp::ProxyTrigger{1, 0});
  waitAll([&](int64_t spins) { return fifo.sync(0, spins); }, beat, ended);
}

// The channel's handle is in device memory; the host has allocated words there and in pinned memory.
extern "C" __global__ void wait_indirectly(const mscclpp::BaseMemoryChannelDeviceHandle* channel, uint64_t* memory,
                                           uint64_t* pinned, uint64_t* beat, uint64_t* ended) {
  waitAll(
      [&](int64_t spins) {
        const bool signalled = channel->wait(spins);
        memory[1] = *pinned;  // beside what `wait_port` puts
        return signalled;
      },
      beat, ended);
}
