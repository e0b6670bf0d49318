// The older name of memory_channel_device.hpp, which has the older names of what is in it.

#ifndef MSCCLPP_SM_CHANNEL_DEVICE_HPP_
#define MSCCLPP_SM_CHANNEL_DEVICE_HPP_

#include "mscclpp/memory_channel_device.hpp"

#endif  // MSCCLPP_SM_CHANNEL_DEVICE_HPP_
