// The older names of port channels, for kernels written against them.

#ifndef MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_
#define MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_

#include "mscclpp/port_channel_device.hpp"

namespace mscclpp {

// A ProxyChannel came to carry its two memories, as a SimpleProxyChannel always did, and left its old meaning to
// BaseProxyChannel. These are the newer ones; the calls of the older ProxyChannel, with ids, are there too.
using BaseProxyChannelDeviceHandle = BasePortChannelDeviceHandle;
using ProxyChannelDeviceHandle = PortChannelDeviceHandle;
using SimpleProxyChannelDeviceHandle = PortChannelDeviceHandle;

// The tags of their `DeviceHandle`.
using BaseProxyChannel = BasePortChannel;
using ProxyChannel = PortChannel;
using SimpleProxyChannel = PortChannel;

}  // namespace mscclpp

#endif  // MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_
