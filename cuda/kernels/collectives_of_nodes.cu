// The kernels of collectives between ranks on several nodes: each takes a CollectiveAcross.

#include "mscclpp/collective_nodes_device.hpp"

using namespace mscclpp;

MSCCLPP_ACROSS_KERNEL(move_across, detail::moveAcross)
MSCCLPP_ACROSS_KERNEL(reduce_across_any, detail::reduceAcross<detail::AnyAcross>)
MSCCLPP_ACROSS_KERNEL(reduce_across_f16_sum, detail::reduceAcross<detail::SumAcross<ReduceF16>>)
MSCCLPP_ACROSS_KERNEL(reduce_across_bf16_sum, detail::reduceAcross<detail::SumAcross<ReduceBf16>>)
MSCCLPP_ACROSS_KERNEL(reduce_across_f32_sum, detail::reduceAcross<detail::SumAcross<ReduceF32>>)
