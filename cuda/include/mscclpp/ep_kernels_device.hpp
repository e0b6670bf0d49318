// The kernels of expert parallel layers: each does a whole call, or one of its EpHalves. Profilers show their names as those of
// C++: mscclpp::ep::dispatch, mscclpp::ep::combine_bf16. DeepEP's tests look for them so. For the library's own use.

#ifndef MSCCLPP_EP_KERNELS_DEVICE_HPP_
#define MSCCLPP_EP_KERNELS_DEVICE_HPP_

#include "mscclpp/ep_device.hpp"

// The host gives a kernel the parameters as they are declared, whatever the compiler knows of them.
static_assert(sizeof(mscclpp::EpQuantisedDispatch<0>::Handle) == sizeof(mscclpp::EpHandle), "constants take no memory");
static_assert(sizeof(mscclpp::EpQuantisedDispatch<0>::Call) == sizeof(mscclpp::EpDispatch), "constants take no memory");
static_assert(sizeof(mscclpp::EpUsualCombine<0>) == sizeof(mscclpp::EpCombine), "constants take no memory");

// A kernel of dispatches of which the compiler knows what KNOWN says, and whose rows travel as TRAVEL says. Behind them are its
// launch bounds.
#define MSCCLPP_EP_DISPATCH(NAME, KNOWN, TRAVEL, ...)                                                                      \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__)                                                                \
      NAME(const MSCCLPP_GRID_CONSTANT mscclpp::KNOWN::Handle ep, const MSCCLPP_GRID_CONSTANT mscclpp::KNOWN::Call call,   \
           uint32_t halves) {                                                                                              \
    using namespace mscclpp::detail;                                                                                       \
    mscclpp::waitForEarlierLaunches();                                                                                     \
    __shared__ EpHeads heads;                                                                                              \
    extern __shared__ uint32_t counts[];                                                                                   \
    dispatchExperts<EpRows::TRAVEL, mscclpp::KNOWN>(ep, call, heads, counts, EpGivenRows{}, halves);                       \
  }

// A kernel of combines of numbers of a ReduceType, which are given as a CALL. Behind them are its launch bounds.
#define MSCCLPP_EP_COMBINE(NAME, TYPE, CALL, BY_PACKETS, ...)                                                              \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__)                                                                \
      NAME(const MSCCLPP_GRID_CONSTANT mscclpp::EpHandle ep, const MSCCLPP_GRID_CONSTANT mscclpp::CALL call,               \
           uint32_t halves) {                                                                                              \
    using namespace mscclpp::detail;                                                                                       \
    mscclpp::waitForEarlierLaunches();                                                                                     \
    using Combiner = EpCombiner<mscclpp::TYPE, BY_PACKETS, EpSumsAsTheyAre, mscclpp::CALL>;                                \
    __shared__ EpTerms terms[BY_PACKETS ? 8 : mscclpp::EpMaxWarps];                                                        \
    __shared__ EpHeads heads;                                                                                              \
    Combiner(ep, call, terms[mscclpp::threadOfBlock() / 32], heads).run(halves);                                           \
  }

// All combines of numbers of a type. A mangled name has its length in it: ANY is that of combine_NAME, ROWS with _rows or _sums,
// and EXACT with _exact. Those that end with _PACKETS are the same with _by_packets.
#define MSCCLPP_EP_COMBINES(NAME, TYPE, ANY, ROWS, EXACT, ANY_PACKETS, ROWS_PACKETS, EXACT_PACKETS)                        \
  MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep##ANY##combine_##NAME##E, TYPE, EpCombine, false, 1024)                                 \
  MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep##ROWS##combine_##NAME##_rowsE, TYPE, EpUsualCombine<EpOneRow>, false, 1024)            \
  MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep##ROWS##combine_##NAME##_sumsE, TYPE, EpUsualCombine<EpSum>, false, 1024)               \
  MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep##EXACT##combine_##NAME##_exactE, TYPE, EpUsualCombine<EpEachRow>, false, 1024)         \
  MSCCLPP_EP_COMBINES_BY_PACKETS(NAME, TYPE, ANY_PACKETS, ROWS_PACKETS, EXACT_PACKETS)
#if defined(MSCCLPP_DEVICE_HIP)
// Experts on GPUs of AMD have none of them: setup.rs of mscclpp-ep.
#define MSCCLPP_EP_COMBINES_BY_PACKETS(NAME, TYPE, ANY, ROWS, EXACT)
#else
#define MSCCLPP_EP_COMBINES_BY_PACKETS(NAME, TYPE, ANY, ROWS, EXACT)                                                       \
  MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep##ANY##combine_##NAME##_by_packetsE, TYPE, EpCombine, true, 256, 2)                     \
  MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep##ROWS##combine_##NAME##_rows_by_packetsE, TYPE, EpUsualCombine<EpOneRow>, true, 256, 2) \
  MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep##ROWS##combine_##NAME##_sums_by_packetsE, TYPE, EpUsualCombine<EpSum>, true, 256, 2)   \
  MSCCLPP_EP_COMBINE(_ZN7mscclpp2ep##EXACT##combine_##NAME##_exact_by_packetsE, TYPE, EpUsualCombine<EpEachRow>, true, 256, 2)
#endif

#endif  // MSCCLPP_EP_KERNELS_DEVICE_HPP_
