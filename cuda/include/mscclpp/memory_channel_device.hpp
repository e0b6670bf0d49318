// The device side of memory channels: a semaphore between two GPUs whose memory is mapped into each other.

#ifndef MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_
#define MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_

#include "mscclpp/semaphore_device.hpp"

namespace mscclpp {

// A channel that synchronises and moves no data itself. Its methods are those of its semaphore, which documents their
// order, who may call them and what ends a wait.
struct BaseMemoryChannelDeviceHandle {
  MemoryDevice2DeviceSemaphoreDeviceHandle semaphore_;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Signals the peer; what this thread wrote before is seen by the wait that takes the signal.
  MSCCLPP_DEVICE_INLINE void signal() const { semaphore_.signal(); }

  // Signals the peer, without saying anything about memory.
  MSCCLPP_DEVICE_INLINE void relaxedSignal() const { semaphore_.relaxedSignal(); }

  // Takes a signal if one is there. Returns whether it did.
  MSCCLPP_DEVICE_INLINE bool poll() const { return semaphore_.poll(); }

  // Waits for a signal. Returns whether it came: false after an abort or after maxSpinCount polls.
  MSCCLPP_DEVICE_INLINE bool wait(int64_t maxSpinCount = -1) const { return semaphore_.wait(maxSpinCount); }

  // Waits for a signal, without learning anything about memory.
  MSCCLPP_DEVICE_INLINE bool relaxedWait(int64_t maxSpinCount = -1) const {
    return semaphore_.relaxedWait(maxSpinCount);
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// The tag of `DeviceHandle<BaseMemoryChannel>`.
struct BaseMemoryChannel {
  using DeviceHandle = BaseMemoryChannelDeviceHandle;
};

}  // namespace mscclpp

#endif  // MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_
