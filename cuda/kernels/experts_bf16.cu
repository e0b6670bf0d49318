// The combines of numbers of type bf16: see ep_device.hpp.
// build: compute_90

#include "mscclpp/ep_kernels_device.hpp"

using namespace mscclpp;

MSCCLPP_EP_COMBINES(bf16, ReduceBf16, 12, 17, 18, 23, 28, 29)
