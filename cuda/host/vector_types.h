// For kernels that include CUDA's header of this name.

#ifndef MSCCLPP_HOST_VECTOR_TYPES_H_
#define MSCCLPP_HOST_VECTOR_TYPES_H_

#include "mscclpp_host/vector_types.hpp"

#endif  // MSCCLPP_HOST_VECTOR_TYPES_H_
