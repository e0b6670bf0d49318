// The kernels of expert parallel layers for few tokens, whose rows travel as packets: see ep_device.hpp.
// build: compute_90

#include "mscclpp/ep_device.hpp"

using namespace mscclpp;

// Experts on GPUs of AMD have none of them: setup.rs of mscclpp-ep.
#if !defined(MSCCLPP_DEVICE_HIP)

// Each kernel does a whole call, or one of its EpHalves. The names are those of C++, as in experts.cu.
extern "C" __global__ void __launch_bounds__(256, 2) _ZN7mscclpp2ep19dispatch_by_packetsE(
    const MSCCLPP_GRID_CONSTANT EpHandle ep, const MSCCLPP_GRID_CONSTANT EpDispatch call, uint32_t halves) {
  __shared__ detail::EpHeads heads;
  extern __shared__ uint32_t counts[];
  detail::dispatchExperts<detail::EpRows::ArePackets>(ep, call, heads, counts, detail::EpGivenRows{}, halves);
}

#define EP_COMBINE_BY_PACKETS(NAME, TYPE)                                                                          \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                             \
      NAME(const MSCCLPP_GRID_CONSTANT EpHandle ep, const MSCCLPP_GRID_CONSTANT EpCombine call, uint32_t halves) { \
    __shared__ detail::EpTerms terms[8];                                                                           \
    __shared__ detail::EpHeads heads;                                                                              \
    detail::EpCombiner<TYPE, true>(ep, call, terms[threadOfBlock() / 32], heads).run(halves);                      \
  }
EP_COMBINE_BY_PACKETS(_ZN7mscclpp2ep23combine_bf16_by_packetsE, ReduceBf16)
EP_COMBINE_BY_PACKETS(_ZN7mscclpp2ep22combine_f16_by_packetsE, ReduceF16)
EP_COMBINE_BY_PACKETS(_ZN7mscclpp2ep22combine_f32_by_packetsE, ReduceF32)

#endif
