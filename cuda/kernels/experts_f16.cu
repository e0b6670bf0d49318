// The combines of numbers of type f16: see ep_device.hpp.
// build: compute_90

#include "mscclpp/ep_kernels_device.hpp"

using namespace mscclpp;

MSCCLPP_EP_COMBINES(f16, ReduceF16, 11, 16, 17, 22, 27, 28)
