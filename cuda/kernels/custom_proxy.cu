// The kernel of the example custom_proxy, whose triggers have the meaning that the program's own proxy gives them.

#include "mscclpp/fifo_device.hpp"
#include "mscclpp/semaphore_device.hpp"

// ANCHOR: kernel
// One block. Its first thread asks the proxy to send the `bytes` bytes at `offset` to all peers, with one trigger, whose
// words are the offset and the size. Then thread i waits for the data of peer i, whose semaphore it has. A failure leaves
// 1 in `failed`.
extern "C" __global__ void broadcast_and_gather(mscclpp::FifoDeviceHandle fifo,
                                                const mscclpp::Host2DeviceSemaphoreDeviceHandle* semaphores,
                                                uint32_t peers, uint64_t offset, uint64_t bytes,
                                                unsigned int* failed) {
  bool good = true;
  if (threadIdx.x == 0) {
    const mscclpp::ProxyTrigger trigger{offset, bytes};
    good = fifo.push(trigger) != mscclpp::FifoDeviceHandle::Failed;
  }
  if (threadIdx.x < peers) good = semaphores[threadIdx.x].wait() && good;
  if (!good) *failed = 1;
}
// ANCHOR_END: kernel
