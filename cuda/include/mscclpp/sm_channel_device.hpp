// The older names of memory channels, for kernels written against them.

#ifndef MSCCLPP_SM_CHANNEL_DEVICE_HPP_
#define MSCCLPP_SM_CHANNEL_DEVICE_HPP_

#include "mscclpp/memory_channel_device.hpp"

namespace mscclpp {

using SmChannelDeviceHandle = MemoryChannelDeviceHandle;
using SimpleSmChannelDeviceHandle = MemoryChannelDeviceHandle;

// The tags of `DeviceHandle<SmChannel>` and `DeviceHandle<SimpleSmChannel>`.
using SmChannel = MemoryChannel;
using SimpleSmChannel = MemoryChannel;

}  // namespace mscclpp

#endif  // MSCCLPP_SM_CHANNEL_DEVICE_HPP_
