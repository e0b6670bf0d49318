#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/port_channel_device.hpp>

// Kernels that wait once. `outcome` becomes 1, or -1 if no signal came.

#define WAITS(name, Handle)                                                                \
  extern "C" __global__ void name(mscclpp::Handle handle, long long spins, int* outcome) { \
    *outcome = handle.wait(spins) ? 1 : -1;                                                \
  }
WAITS(wait_memory, MemoryChannelDeviceHandle)
WAITS(wait_base, BaseMemoryChannelDeviceHandle)
WAITS(wait_semaphore, MemoryDevice2DeviceSemaphoreDeviceHandle)
WAITS(wait_host, Host2DeviceSemaphoreDeviceHandle)
WAITS(wait_port, PortChannelDeviceHandle)
WAITS(wait_base_port, BasePortChannelDeviceHandle)

// What is put goes through the proxy: it is larger than what a kernel's thread does by itself.
extern "C" __global__ void put_and_flush(mscclpp::PortChannelDeviceHandle channel, unsigned long long offset,
                                         unsigned long long bytes, int* outcome) {
  *outcome = channel.put(0, offset, bytes) && channel.flush() ? 1 : -1;
}
