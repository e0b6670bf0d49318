// The kernels of collectives between any number of ranks: each takes a communicator's handle and a call.
// build: compute_90

#include "mscclpp/collective_device.hpp"
#include "mscclpp/collective_moves_device.hpp"
#include "mscclpp/collective_parts_device.hpp"

using namespace mscclpp;

// FORM_PROTOCOL_WORDS: the exchange, or the all_reduce in two steps, by LL16, LL128 or Simple, whose words are moved,
// reduced as the call says, or summed or averaged with the type that the name says.
#define REDUCING_KERNELS(KERNEL, NAME, FORM)                          \
  KERNEL(NAME##_any, detail::FORM<detail::ReduceAnyWords>)            \
  KERNEL(NAME##_f16_sum, detail::FORM<detail::SumWords<ReduceF16>>)   \
  KERNEL(NAME##_bf16_sum, detail::FORM<detail::SumWords<ReduceBf16>>) \
  KERNEL(NAME##_f32_sum, detail::FORM<detail::SumWords<ReduceF32>>)
#define EXCHANGE_KERNELS(NAME, FORM)                                      \
  MSCCLPP_COLLECTIVE_KERNEL(NAME##_move, detail::FORM<detail::MoveWords>) \
  REDUCING_KERNELS(MSCCLPP_COLLECTIVE_KERNEL, NAME, FORM)

EXCHANGE_KERNELS(exchange_ll16, exchangeLl16)
EXCHANGE_KERNELS(exchange_ll128, exchangeLl128)
EXCHANGE_KERNELS(exchange_simple, exchangeSimple)
REDUCING_KERNELS(MSCCLPP_COLLECTIVE_KERNEL, all_reduce_ll128, allReduceLl128)
REDUCING_KERNELS(MSCCLPP_COLLECTIVE_KERNEL, all_reduce_simple, allReduceSimple)

// The same by Simple, where what comes, or the results, may go straight into the peers' memory.
MSCCLPP_DIRECT_KERNEL(exchange_direct_move, false)
#define RESULTS_KERNEL(NAME, FORM) MSCCLPP_KERNEL_OF(CollectiveDirectCall, NAME, FORM)
REDUCING_KERNELS(RESULTS_KERNEL, all_reduce_direct, allReduceDirect)

// Several small calls that reduce, by LL16.
REDUCING_KERNELS(MSCCLPP_GROUP_KERNEL, reduce_group, reduceGroup)

// Messages between pairs of ranks.
MSCCLPP_KERNEL_OF(CollectiveSends, move_messages, detail::moveMessages)
MSCCLPP_KERNEL_OF(CollectiveManySends, move_many_messages, detail::moveMessages)

// Several calls that move, by each protocol.
MSCCLPP_MOVES_KERNEL(moves_ll16, detail::movesLl16<false>)
MSCCLPP_MOVES_KERNEL(moves_ll128, detail::callsLl128<detail::MoveWords>)
MSCCLPP_MOVES_KERNEL(moves_simple, detail::callsSimple<detail::MoveWords>)

// Several calls that reduce, whatever their sizes: in one step, and all_reduces in two.
REDUCING_KERNELS(MSCCLPP_MOVES_KERNEL, reduces_ll128, callsLl128)
REDUCING_KERNELS(MSCCLPP_MOVES_KERNEL, reduces_simple, callsSimple)
REDUCING_KERNELS(MSCCLPP_MOVES_KERNEL, all_reduces_simple, allReducesSimple)
