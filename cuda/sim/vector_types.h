// For kernels that include CUDA's header of this name.

#ifndef MSCCLPP_SIM_VECTOR_TYPES_H_
#define MSCCLPP_SIM_VECTOR_TYPES_H_

#include "mscclpp_sim/vector_types.hpp"

#endif  // MSCCLPP_SIM_VECTOR_TYPES_H_
