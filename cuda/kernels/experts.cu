// The kernels of expert parallel layers: see ep_device.hpp.
// build: compute_90

#include "mscclpp/ep_choices_device.hpp"
#include "mscclpp/ep_device.hpp"

using namespace mscclpp;

// Each kernel does a whole call, or one of its EpHalves; dispatch_by_row does whole calls only. Profilers show these names as
// those of C++: mscclpp::ep::dispatch, mscclpp::ep::combine_bf16. DeepEP's tests look for them so.
#define EP_DISPATCH(NAME, TRAVEL)                                                                                   \
  extern "C" __global__ void __launch_bounds__(1024)                                                                \
      NAME(const MSCCLPP_GRID_CONSTANT EpHandle ep, const MSCCLPP_GRID_CONSTANT EpDispatch call, uint32_t halves) { \
    __shared__ detail::EpHeads heads;                                                                               \
    extern __shared__ uint32_t counts[];                                                                            \
    detail::dispatchExperts<detail::EpRows::TRAVEL>(ep, call, heads, counts, detail::EpGivenRows{}, halves);        \
  }
EP_DISPATCH(_ZN7mscclpp2ep8dispatchE, AreStored)
EP_DISPATCH(_ZN7mscclpp2ep15dispatch_by_rowE, AreSignalled)

#define EP_COMBINE(NAME, TYPE)                                                                                     \
  extern "C" __global__ void __launch_bounds__(1024)                                                               \
      NAME(const MSCCLPP_GRID_CONSTANT EpHandle ep, const MSCCLPP_GRID_CONSTANT EpCombine call, uint32_t halves) { \
    __shared__ detail::EpTerms terms[EpMaxWarps];                                                                  \
    __shared__ detail::EpHeads heads;                                                                              \
    detail::EpCombiner<TYPE, false>(ep, call, terms[threadOfBlock() / 32], heads).run(halves);                     \
  }
EP_COMBINE(_ZN7mscclpp2ep12combine_bf16E, ReduceBf16)
EP_COMBINE(_ZN7mscclpp2ep11combine_f16E, ReduceF16)
EP_COMBINE(_ZN7mscclpp2ep11combine_f32E, ReduceF32)

// Notes that the ranks whose bits are set are lost. One thread.
extern "C" __global__ void ep_lose(const MSCCLPP_GRID_CONSTANT EpHandle ep, uint32_t ranks) {
  detail::epLose(ep, ranks);
}

// Frees the rows of a dispatch without a combine. One block.
extern "C" __global__ void ep_release(const MSCCLPP_GRID_CONSTANT EpHandle ep, const uint8_t* tables, uint32_t microBatch) {
  detail::EpCombiner<ReduceF32, false>::freeDispatch(detail::EpBlock(ep, microBatch, EpDispatching), tables);
}

// Counts the choices of tokens. One block.
extern "C" __global__ void __launch_bounds__(1024) ep_count_choices(const MSCCLPP_GRID_CONSTANT EpChoices choices) {
  extern __shared__ uint32_t counts[];
  detail::countChoices(choices, counts);
}
