// The kernels of collectives between two ranks, with the names of those of collectives.cu. They know that there are two,
// so they compute less and are loaded sooner. Two ranks need no all_reduce in two steps.
// build: compute_90

#include "mscclpp/collective_device.hpp"
#include "mscclpp/collective_moves_device.hpp"
#include "mscclpp/collective_parts_device.hpp"

using namespace mscclpp;

#define REDUCING_KERNELS(KERNEL, NAME, FORM)                                \
  KERNEL(NAME##_any, detail::FORM<detail::ReduceAnyWords, true>)            \
  KERNEL(NAME##_f16_sum, detail::FORM<detail::SumWords<ReduceF16>, true>)   \
  KERNEL(NAME##_bf16_sum, detail::FORM<detail::SumWords<ReduceBf16>, true>) \
  KERNEL(NAME##_f32_sum, detail::FORM<detail::SumWords<ReduceF32>, true>)
#define EXCHANGE_KERNELS(NAME, FORM)                                            \
  MSCCLPP_COLLECTIVE_KERNEL(NAME##_move, detail::FORM<detail::MoveWords, true>) \
  REDUCING_KERNELS(MSCCLPP_COLLECTIVE_KERNEL, NAME, FORM)

EXCHANGE_KERNELS(exchange_ll16, exchangeLl16)
EXCHANGE_KERNELS(exchange_ll128, exchangeLl128)
EXCHANGE_KERNELS(exchange_simple, exchangeSimple)
MSCCLPP_COLLECTIVE_KERNEL(exchange_simple_f16_avg, detail::exchangeSimple<detail::SumWords<ReduceF16>, true, true>)
MSCCLPP_COLLECTIVE_KERNEL(exchange_simple_bf16_avg, detail::exchangeSimple<detail::SumWords<ReduceBf16>, true, true>)
MSCCLPP_COLLECTIVE_KERNEL(exchange_simple_f32_avg, detail::exchangeSimple<detail::SumWords<ReduceF32>, true, true>)

MSCCLPP_DIRECT_KERNEL(exchange_direct_move, true)

// Several small calls that reduce, by LL16.
REDUCING_KERNELS(MSCCLPP_GROUP_KERNEL, reduce_group, reduceGroup)

// Messages between pairs of ranks.
MSCCLPP_KERNEL_OF(CollectiveSends, move_messages, detail::moveMessages)
MSCCLPP_KERNEL_OF(CollectiveManySends, move_many_messages, detail::moveMessages)

// Several calls that move, by each protocol.
MSCCLPP_MOVES_KERNEL(moves_ll16, detail::movesLl16<true>)
MSCCLPP_MOVES_KERNEL(moves_ll128, detail::callsLl128<detail::MoveWords, true>)
MSCCLPP_MOVES_KERNEL(moves_simple, detail::callsSimple<detail::MoveWords, true>)

// Several calls that reduce, whatever their sizes.
REDUCING_KERNELS(MSCCLPP_MOVES_KERNEL, reduces_ll128, callsLl128)
REDUCING_KERNELS(MSCCLPP_MOVES_KERNEL, reduces_simple, callsSimple)
MSCCLPP_MOVES_KERNEL(reduces_simple_f16_avg, detail::callsSimple<detail::SumWords<ReduceF16>, true, true>)
MSCCLPP_MOVES_KERNEL(reduces_simple_bf16_avg, detail::callsSimple<detail::SumWords<ReduceBf16>, true, true>)
MSCCLPP_MOVES_KERNEL(reduces_simple_f32_avg, detail::callsSimple<detail::SumWords<ReduceF32>, true, true>)
