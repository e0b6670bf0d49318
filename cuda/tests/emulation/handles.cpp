// The arguments of kernels: plain bytes, under the names of the host's objects and under the older ones.

#include "mscclpp/memory_channel_device.hpp"
#include "mscclpp/port_channel_device.hpp"
#include "mscclpp/proxy_channel_device.hpp"
#include "mscclpp/sm_channel_device.hpp"

#include <type_traits>

using namespace mscclpp;

// The handle of a tag is this type, and a copy of its bytes is a copy of it.
template <class Tag, class Handle>
constexpr bool isHandle = std::is_same<DeviceHandle<Tag>, Handle>::value && std::is_trivially_copyable<Handle>::value;

static_assert(isHandle<MemoryDevice2DeviceSemaphore, MemoryDevice2DeviceSemaphoreDeviceHandle>, "");
static_assert(isHandle<Host2DeviceSemaphore, Host2DeviceSemaphoreDeviceHandle>, "");
static_assert(isHandle<BaseMemoryChannel, BaseMemoryChannelDeviceHandle>, "");
static_assert(isHandle<MemoryChannel, MemoryChannelDeviceHandle>, "");
static_assert(isHandle<Fifo, FifoDeviceHandle>, "");
static_assert(isHandle<BasePortChannel, BasePortChannelDeviceHandle>, "");
static_assert(isHandle<PortChannel, PortChannelDeviceHandle>, "");
static_assert(isHandle<SmChannel, SmChannelDeviceHandle>, "");
static_assert(isHandle<SimpleSmChannel, SimpleSmChannelDeviceHandle>, "");
static_assert(isHandle<BaseProxyChannel, BaseProxyChannelDeviceHandle>, "");
static_assert(isHandle<ProxyChannel, ProxyChannelDeviceHandle>, "");
static_assert(isHandle<SimpleProxyChannel, SimpleProxyChannelDeviceHandle>, "");

int main() { return 0; }
