// The older name of memory_channel_device.hpp, which also declares the older names of its types.

#ifndef MSCCLPP_SM_CHANNEL_DEVICE_HPP_
#define MSCCLPP_SM_CHANNEL_DEVICE_HPP_

#include "mscclpp/memory_channel_device.hpp"

#endif  // MSCCLPP_SM_CHANNEL_DEVICE_HPP_
