// The kernels of collectives: each takes a communicator's handle and a call.

#include "mscclpp/collective_device.hpp"

using namespace mscclpp;

// FORM_WAY_WORDS: the exchange, or the all_reduce in two steps, by packets, lines or pieces, of which each word is moved,
// reduced as the call says, or reduced as the name says.
#define KERNEL(NAME, FORM, ...)                                                                           \
  extern "C" __global__ void __launch_bounds__(1024)                                                      \
      NAME(const MSCCLPP_GRID_CONSTANT CollectiveHandle comm, const MSCCLPP_GRID_CONSTANT CollectiveCall call) { \
    detail::FORM<__VA_ARGS__>(comm, call);                                                                \
  }
#define REDUCING_KERNELS(NAME, FORM)                                        \
  KERNEL(NAME##_any, FORM, detail::ReduceAnyWords)                          \
  KERNEL(NAME##_f16_sum, FORM, detail::ReduceWords<ReduceF16, ReduceSum>)   \
  KERNEL(NAME##_bf16_sum, FORM, detail::ReduceWords<ReduceBf16, ReduceSum>) \
  KERNEL(NAME##_f32_sum, FORM, detail::ReduceWords<ReduceF32, ReduceSum>)
#define EXCHANGE_KERNELS(NAME, FORM)           \
  KERNEL(NAME##_move, FORM, detail::MoveWords) \
  REDUCING_KERNELS(NAME, FORM)

EXCHANGE_KERNELS(exchange_packets, exchangePackets)
EXCHANGE_KERNELS(exchange_lines, exchangeLines)
EXCHANGE_KERNELS(exchange_pieces, exchangePieces)
REDUCING_KERNELS(all_reduce_lines, allReduceLines)
REDUCING_KERNELS(all_reduce_pieces, allReducePieces)

// Messages between pairs of ranks.
extern "C" __global__ void __launch_bounds__(1024)
    move_messages(const MSCCLPP_GRID_CONSTANT CollectiveHandle comm, const MSCCLPP_GRID_CONSTANT CollectiveSends call) {
  detail::moveMessages(comm, call);
}
