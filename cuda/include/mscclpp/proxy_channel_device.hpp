// The older names of port channels, for kernels written against them.

#ifndef MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_
#define MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_

#include "mscclpp/port_channel_device.hpp"

namespace mscclpp {

using ProxyChannelDeviceHandle = BasePortChannelDeviceHandle;
using SimpleProxyChannelDeviceHandle = PortChannelDeviceHandle;

// The tags of `DeviceHandle<ProxyChannel>` and `DeviceHandle<SimpleProxyChannel>`.
using ProxyChannel = BasePortChannel;
using SimpleProxyChannel = PortChannel;

}  // namespace mscclpp

#endif  // MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_
