// The part of CUDA's header of this name that a kernel needs. CUDA's has the host's functions as well.

#ifndef MSCCLPP_SIM_CUDA_RUNTIME_H_
#define MSCCLPP_SIM_CUDA_RUNTIME_H_

#include "mscclpp_sim/atomics.hpp"
#include "mscclpp_sim/intrinsics.hpp"
#include "mscclpp_sim/runtime.hpp"
#include "mscclpp_sim/vector_types.hpp"

#endif  // MSCCLPP_SIM_CUDA_RUNTIME_H_
