// The part of the host header of this name that kernels need. The host's objects are made in Rust or Python.

#ifndef MSCCLPP_FIFO_HPP_
#define MSCCLPP_FIFO_HPP_

#include "mscclpp/fifo_device.hpp"

#endif  // MSCCLPP_FIFO_HPP_
