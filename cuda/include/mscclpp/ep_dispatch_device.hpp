// Dispatch: each token of this rank goes to the ranks of its experts. ep_device.hpp has the rules. For the library's own use.

#ifndef MSCCLPP_EP_DISPATCH_DEVICE_HPP_
#define MSCCLPP_EP_DISPATCH_DEVICE_HPP_

#include "mscclpp/ep_receive_device.hpp"
#include "mscclpp/ep_send_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Does a dispatch, or one of its EpHalves, as one of its blocks. `counts` has the dynamic shared memory of the block.
template <EpRows Travel, class Known = EpAnyDispatch, class Rows>
MSCCLPP_DEVICE_INLINE void dispatchExperts(const typename Known::Handle& ep, const typename Known::Call& call, EpHeads& heads,
                                           uint32_t* counts, Rows rows, uint32_t halves) {
  constexpr bool ByPackets = Travel == EpRows::ArePackets, ByRow = Travel == EpRows::AreSignalled;
  // The first choices are on their way while the call begins.
  EpFirstChoices loaded = {};
  const bool few = ByPackets || (Travel == EpRows::AreStored && call.tokens <= EpTokensAtOnce);
  if (few && call.again == 0) loaded.load(ep, call);
  EpBlock b(ep, call.microBatch, EpDispatching);
  if (!ByPackets && b.block == 0 && b.thread == 0 && halves != EpReceives) {
    b.clearNext(EpNextToken);
    b.clearNext(EpNextRow);
  }
  const uint32_t own = b.split(ByPackets || ByRow, halves, b.blocks / 2);
  const EpDispatchBlock<Known> block(b, ep, call, heads, counts);
  EpSender<Travel, Rows, Known> sender(block, rows, few);
  if (!few && call.again == 0 && (own & EpSends) != 0) sender.loadFirst(loaded);
  const bool begun = b.begin<ByPackets>(halves);
  // The threads of a block that sends packets meet while it routes.
  const bool meetLater = ByPackets && (own & EpSends) != 0;
  if (!meetLater && b.givesUp(!begun)) return;
  bool done = true;
  if ((own & EpSends) != 0) done = sender.send(begun, loaded);
  // Blocks that send have less to do than those that receive, so they note what came; with X8 only the counts.
  const bool notes = own == halves || own == EpSends;
  if ((halves & EpReceives) != 0) done = done && EpReceiver<Travel, Known>(block).receive(ByRow || (own & EpReceives) != 0, notes);
  b.end(halves, !done);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_DISPATCH_DEVICE_HPP_
