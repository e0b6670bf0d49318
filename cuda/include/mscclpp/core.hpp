// The part of the host header of this name that kernels need. The host's objects are made in Rust or Python.

#ifndef MSCCLPP_CORE_HPP_
#define MSCCLPP_CORE_HPP_

#include "mscclpp/device.hpp"

#endif  // MSCCLPP_CORE_HPP_
