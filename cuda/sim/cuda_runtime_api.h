// For kernels that include CUDA's header of this name.

#ifndef MSCCLPP_SIM_CUDA_RUNTIME_API_H_
#define MSCCLPP_SIM_CUDA_RUNTIME_API_H_

#include "cuda_runtime.h"

#endif  // MSCCLPP_SIM_CUDA_RUNTIME_API_H_
