// The kernels of collectives between any number of ranks: each takes a communicator's handle and a call.

#include "mscclpp/collective_device.hpp"
#include "mscclpp/collective_moves_device.hpp"

using namespace mscclpp;

// FORM_PROTOCOL_WORDS: the exchange, or the all_reduce in two steps, by LL16, LL128 or Simple, whose words are moved,
// reduced as the call says, or summed or averaged with the type that the name says.
#define REDUCING_KERNELS(CALL, NAME, FORM)                                             \
  MSCCLPP_KERNEL_OF(CALL, NAME##_any, detail::FORM<detail::ReduceAnyWords>)            \
  MSCCLPP_KERNEL_OF(CALL, NAME##_f16_sum, detail::FORM<detail::SumWords<ReduceF16>>)   \
  MSCCLPP_KERNEL_OF(CALL, NAME##_bf16_sum, detail::FORM<detail::SumWords<ReduceBf16>>) \
  MSCCLPP_KERNEL_OF(CALL, NAME##_f32_sum, detail::FORM<detail::SumWords<ReduceF32>>)
#define EXCHANGE_KERNELS(NAME, FORM)                                      \
  MSCCLPP_COLLECTIVE_KERNEL(NAME##_move, detail::FORM<detail::MoveWords>) \
  REDUCING_KERNELS(CollectiveCall, NAME, FORM)

EXCHANGE_KERNELS(exchange_ll16, exchangeLl16)
EXCHANGE_KERNELS(exchange_ll128, exchangeLl128)
EXCHANGE_KERNELS(exchange_simple, exchangeSimple)
REDUCING_KERNELS(CollectiveCall, all_reduce_ll128, allReduceLl128)
REDUCING_KERNELS(CollectiveCall, all_reduce_simple, allReduceSimple)

// The same by Simple, where what comes, or the results, may go straight into the peers' memory.
MSCCLPP_DIRECT_KERNEL(exchange_direct_move, false)
REDUCING_KERNELS(CollectiveDirectCall, all_reduce_direct, allReduceDirect)

// Several small calls that reduce, by LL16.
MSCCLPP_GROUP_KERNEL(reduce_group_any, detail::reduceGroup<detail::ReduceAnyWords>)
MSCCLPP_GROUP_KERNEL(reduce_group_f16_sum, detail::reduceGroup<detail::SumWords<ReduceF16>>)
MSCCLPP_GROUP_KERNEL(reduce_group_bf16_sum, detail::reduceGroup<detail::SumWords<ReduceBf16>>)
MSCCLPP_GROUP_KERNEL(reduce_group_f32_sum, detail::reduceGroup<detail::SumWords<ReduceF32>>)

// Messages between pairs of ranks.
MSCCLPP_KERNEL_OF(CollectiveSends, move_messages, detail::moveMessages)
MSCCLPP_KERNEL_OF(CollectiveManySends, move_many_messages, detail::moveMessages)

// Several calls that move, by each protocol.
MSCCLPP_MOVES_KERNEL(moves_ll16, detail::movesLl16<false>)
MSCCLPP_MOVES_KERNEL(moves_ll128, detail::movesLl128<false>)
MSCCLPP_MOVES_KERNEL(moves_simple, detail::movesSimple<false>)
