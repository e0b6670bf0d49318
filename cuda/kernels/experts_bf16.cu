// The combines of numbers of type bf16: see ep_device.hpp.
// build: compute_90

#include "mscclpp/ep_kernels_device.hpp"

using namespace mscclpp;

MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep12combine_bf16E, ReduceBf16, EpCombine, false, 1024)
MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep17combine_bf16_rowsE, ReduceBf16, EpUsualCombine<1>, false, 1024)

// Of few tokens, whose rows travel as packets. Experts on GPUs of AMD have none of them: setup.rs of mscclpp-ep.
#if !defined(MSCCLPP_DEVICE_HIP)
MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep23combine_bf16_by_packetsE, ReduceBf16, EpCombine, true, 256, 2)
MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep28combine_bf16_rows_by_packetsE, ReduceBf16, EpUsualCombine<1>, true, 256, 2)
MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep28combine_bf16_sums_by_packetsE, ReduceBf16, EpUsualCombine<0>, true, 256, 2)
#endif
