// The part of the host header of this name that kernels need. The host's objects are made in Rust or Python.

#ifndef MSCCLPP_MEMORY_CHANNEL_HPP_
#define MSCCLPP_MEMORY_CHANNEL_HPP_

#include "mscclpp/memory_channel_device.hpp"

#endif  // MSCCLPP_MEMORY_CHANNEL_HPP_
