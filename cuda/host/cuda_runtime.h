// What a kernel needs of CUDA's header of this name, which has the host's functions as well.

#ifndef MSCCLPP_HOST_CUDA_RUNTIME_H_
#define MSCCLPP_HOST_CUDA_RUNTIME_H_

#include "mscclpp_host/atomics.hpp"
#include "mscclpp_host/intrinsics.hpp"
#include "mscclpp_host/runtime.hpp"
#include "mscclpp_host/vector_types.hpp"

#endif  // MSCCLPP_HOST_CUDA_RUNTIME_H_
