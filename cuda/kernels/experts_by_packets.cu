// The kernels of expert parallel layers for few tokens, whose rows travel as packets: see ep_device.hpp.
// build: compute_90

#include "mscclpp/ep_device.hpp"

using namespace mscclpp;

// Experts on GPUs of AMD have none of them: setup.rs of mscclpp-ep.
#if !defined(MSCCLPP_DEVICE_HIP)

// Each kernel does a whole call, or one of its EpHalves.
extern "C" __global__ void __launch_bounds__(256, 2)
    ep_dispatch_by_packets(const MSCCLPP_GRID_CONSTANT EpHandle ep, const MSCCLPP_GRID_CONSTANT EpDispatch call, uint32_t halves) {
  __shared__ detail::EpHeads heads;
  extern __shared__ uint32_t counts[];
  detail::dispatchExperts<true>(ep, call, heads, counts, detail::EpGivenRows{}, halves);
}

#define EP_COMBINE_BY_PACKETS(NAME, TYPE)                                                                          \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                             \
      NAME(const MSCCLPP_GRID_CONSTANT EpHandle ep, const MSCCLPP_GRID_CONSTANT EpCombine call, uint32_t halves) { \
    __shared__ detail::EpTerms terms[8];                                                                           \
    __shared__ detail::EpHeads heads;                                                                              \
    detail::EpCombiner<TYPE, true>(ep, call, terms[threadOfBlock() / 32], heads).run(halves);                      \
  }
EP_COMBINE_BY_PACKETS(ep_combine_bf16_by_packets, ReduceBf16)
EP_COMBINE_BY_PACKETS(ep_combine_f16_by_packets, ReduceF16)
EP_COMBINE_BY_PACKETS(ep_combine_f32_by_packets, ReduceF32)

#endif
