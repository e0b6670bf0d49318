// The older names of port channels, for kernels written against them.

#ifndef MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_
#define MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_

#include "mscclpp/port_channel_device.hpp"

namespace mscclpp {

// In later versions of the original a ProxyChannel carries its two memories, as a SimpleProxyChannel always did, and
// BaseProxyChannel has its old meaning. These are the later ones; the calls of the older ProxyChannel, with ids, are
// there too.
using BaseProxyChannelDeviceHandle = BasePortChannelDeviceHandle;
using ProxyChannelDeviceHandle = PortChannelDeviceHandle;
using SimpleProxyChannelDeviceHandle = PortChannelDeviceHandle;

// The tags of their `DeviceHandle`.
using BaseProxyChannel = BasePortChannel;
using ProxyChannel = PortChannel;
using SimpleProxyChannel = PortChannel;

}  // namespace mscclpp

#endif  // MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_
