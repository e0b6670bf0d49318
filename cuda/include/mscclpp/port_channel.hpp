// The part of the host header of this name that kernels need. The host's objects are made in Rust or Python.

#ifndef MSCCLPP_PORT_CHANNEL_HPP_
#define MSCCLPP_PORT_CHANNEL_HPP_

#include "mscclpp/port_channel_device.hpp"

#endif  // MSCCLPP_PORT_CHANNEL_HPP_
