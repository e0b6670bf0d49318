// The combines of numbers of type f32: see ep_device.hpp.
// build: compute_90

#include "mscclpp/ep_kernels_device.hpp"

using namespace mscclpp;

MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep11combine_f32E, ReduceF32, EpCombine, false, 1024)
MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep16combine_f32_rowsE, ReduceF32, EpUsualCombine<1>, false, 1024)

// Of few tokens, whose rows travel as packets. Experts on GPUs of AMD have none of them: setup.rs of mscclpp-ep.
#if !defined(MSCCLPP_DEVICE_HIP)
MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep22combine_f32_by_packetsE, ReduceF32, EpCombine, true, 256, 2)
MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep27combine_f32_rows_by_packetsE, ReduceF32, EpUsualCombine<1>, true, 256, 2)
MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep27combine_f32_sums_by_packetsE, ReduceF32, EpUsualCombine<0>, true, 256, 2)
#endif
