// The kernels of collectives between two ranks, with the names of those of collectives.cu. They know that there are two,
// so they compute less and are loaded sooner. Two ranks need no all_reduce in two steps.

#include "mscclpp/collective_device.hpp"
#include "mscclpp/collective_moves_device.hpp"

using namespace mscclpp;

#define KERNELS(NAME, FORM)                                                                    \
  MSCCLPP_COLLECTIVE_KERNEL(NAME##_move, detail::FORM<detail::MoveWords, true>)                \
  MSCCLPP_COLLECTIVE_KERNEL(NAME##_any, detail::FORM<detail::ReduceAnyWords, true>)            \
  MSCCLPP_COLLECTIVE_KERNEL(NAME##_f16_sum, detail::FORM<detail::SumWords<ReduceF16>, true>)   \
  MSCCLPP_COLLECTIVE_KERNEL(NAME##_bf16_sum, detail::FORM<detail::SumWords<ReduceBf16>, true>) \
  MSCCLPP_COLLECTIVE_KERNEL(NAME##_f32_sum, detail::FORM<detail::SumWords<ReduceF32>, true>)

KERNELS(exchange_ll16, exchangeLl16)
KERNELS(exchange_ll128, exchangeLl128)
KERNELS(exchange_simple, exchangeSimple)
MSCCLPP_COLLECTIVE_KERNEL(exchange_simple_f16_avg, detail::exchangeSimple<detail::SumWords<ReduceF16>, true, true>)
MSCCLPP_COLLECTIVE_KERNEL(exchange_simple_bf16_avg, detail::exchangeSimple<detail::SumWords<ReduceBf16>, true, true>)
MSCCLPP_COLLECTIVE_KERNEL(exchange_simple_f32_avg, detail::exchangeSimple<detail::SumWords<ReduceF32>, true, true>)

MSCCLPP_DIRECT_KERNEL(exchange_direct_move, true)

// Several small calls that reduce, by LL16.
MSCCLPP_GROUP_KERNEL(reduce_group_any, detail::reduceGroup<detail::ReduceAnyWords, true>)
MSCCLPP_GROUP_KERNEL(reduce_group_f16_sum, detail::reduceGroup<detail::SumWords<ReduceF16>, true>)
MSCCLPP_GROUP_KERNEL(reduce_group_bf16_sum, detail::reduceGroup<detail::SumWords<ReduceBf16>, true>)
MSCCLPP_GROUP_KERNEL(reduce_group_f32_sum, detail::reduceGroup<detail::SumWords<ReduceF32>, true>)

// Messages between pairs of ranks.
MSCCLPP_KERNEL_OF(CollectiveSends, move_messages, detail::moveMessages)
MSCCLPP_KERNEL_OF(CollectiveManySends, move_many_messages, detail::moveMessages)

// Several calls that move, by each protocol.
MSCCLPP_MOVES_KERNEL(moves_ll16, detail::movesLl16<true>)
MSCCLPP_MOVES_KERNEL(moves_ll128, detail::movesLl128<true>)
MSCCLPP_MOVES_KERNEL(moves_simple, detail::movesSimple<true>)
