// The part of the host header of this name that kernels need. The host's objects are made in Rust or Python.

#ifndef MSCCLPP_SEMAPHORE_HPP_
#define MSCCLPP_SEMAPHORE_HPP_

#include "mscclpp/semaphore_device.hpp"

#endif  // MSCCLPP_SEMAPHORE_HPP_
