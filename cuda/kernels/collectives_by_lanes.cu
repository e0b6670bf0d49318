// The kernels of collectives between two ranks by few blocks, with shared memory for the lanes of a block.

// Bulk copies need it:
// build: only compute_90

#include "mscclpp/collective_lanes_device.hpp"

#if MSCCLPP_BULK_AVAILABLE
using namespace mscclpp;

#define LANES_KERNEL(NAME, ...)                                                                                     \
  extern "C" __global__ void __launch_bounds__(1024)                                                                \
      NAME(const MSCCLPP_GRID_CONSTANT CollectiveHandle comm, const MSCCLPP_GRID_CONSTANT CollectiveCall call) {     \
    waitForEarlierLaunches();                                                                                       \
    extern __shared__ __align__(128) uint8_t dynamic[];                                                             \
    detail::exchangeByLanes<__VA_ARGS__>(comm, call, reinterpret_cast<detail::LaneStage*>(dynamic));                \
  }

LANES_KERNEL(exchange_lanes_move, detail::MoveWords)
LANES_KERNEL(exchange_lanes_any, detail::ReduceAnyWords)
LANES_KERNEL(exchange_lanes_f16_sum, detail::SumWords<ReduceF16>)
LANES_KERNEL(exchange_lanes_bf16_sum, detail::SumWords<ReduceBf16>)
LANES_KERNEL(exchange_lanes_f32_sum, detail::SumWords<ReduceF32>)
LANES_KERNEL(exchange_lanes_f16_avg, detail::SumWords<ReduceF16>, true)
LANES_KERNEL(exchange_lanes_bf16_avg, detail::SumWords<ReduceBf16>, true)
LANES_KERNEL(exchange_lanes_f32_avg, detail::SumWords<ReduceF32>, true)
#endif
