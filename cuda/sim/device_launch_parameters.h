// For kernels that include CUDA's header of this name. The one below has a guard.
#include "cuda_runtime.h"
