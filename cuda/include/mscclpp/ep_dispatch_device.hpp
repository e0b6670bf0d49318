// Dispatch: each token of this rank goes to the ranks of its experts. ep_device.hpp has the rules. For the library's own use.

#ifndef MSCCLPP_EP_DISPATCH_DEVICE_HPP_
#define MSCCLPP_EP_DISPATCH_DEVICE_HPP_

#include "mscclpp/ep_receive_device.hpp"
#include "mscclpp/ep_send_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Does a dispatch, or one of its EpHalves, as one of its blocks. `counts` has the dynamic shared memory of the block.
template <uint32_t Halves, class Rows>
MSCCLPP_DEVICE_INLINE void dispatchExperts(const EpHandle& ep, const EpDispatch& call, EpHeads& heads, uint32_t* counts,
                                           const Rows& rows) {
  const EpDispatchBlock block(ep, call, heads, counts);
  if (!block.b.begin(Halves)) return;
  bool done = true;
  if constexpr ((Halves & EpSends) != 0) done = EpSender<Rows>(block, rows).send();
  if constexpr ((Halves & EpReceives) != 0) done = done && EpReceiver(block).receive();
  block.b.end(Halves, !done);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_DISPATCH_DEVICE_HPP_
