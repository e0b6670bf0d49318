#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/port_channel_device.hpp>

// Kernels that wait once. `outcome` becomes 1, or -1 if no signal came.

extern "C" __global__ void wait_memory(mscclpp::MemoryChannelDeviceHandle channel, long long spins, int* outcome) {
  *outcome = channel.wait(spins) ? 1 : -1;
}

extern "C" __global__ void wait_base(mscclpp::BaseMemoryChannelDeviceHandle channel, long long spins, int* outcome) {
  *outcome = channel.wait(spins) ? 1 : -1;
}

extern "C" __global__ void wait_semaphore(mscclpp::MemoryDevice2DeviceSemaphoreDeviceHandle semaphore, long long spins,
                                          int* outcome) {
  *outcome = semaphore.wait(spins) ? 1 : -1;
}

extern "C" __global__ void wait_host(mscclpp::Host2DeviceSemaphoreDeviceHandle semaphore, long long spins, int* outcome) {
  *outcome = semaphore.wait(spins) ? 1 : -1;
}

extern "C" __global__ void wait_port(mscclpp::PortChannelDeviceHandle channel, long long spins, int* outcome) {
  *outcome = channel.wait(spins) ? 1 : -1;
}

extern "C" __global__ void wait_base_port(mscclpp::BasePortChannelDeviceHandle channel, long long spins, int* outcome) {
  *outcome = channel.wait(spins) ? 1 : -1;
}

// What is put goes through the proxy: it is larger than what a kernel's thread does by itself.
extern "C" __global__ void put_and_flush(mscclpp::PortChannelDeviceHandle channel, unsigned long long offset,
                                         unsigned long long bytes, int* outcome) {
  *outcome = channel.put(0, offset, bytes) && channel.flush() ? 1 : -1;
}
