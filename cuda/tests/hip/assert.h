// For kernels that include <assert.h>: runtime.hpp has it.
