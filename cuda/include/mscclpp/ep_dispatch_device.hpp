// Dispatch: each token of this rank goes to the ranks of its experts. ep_device.hpp has the rules. For the library's own use.

#ifndef MSCCLPP_EP_DISPATCH_DEVICE_HPP_
#define MSCCLPP_EP_DISPATCH_DEVICE_HPP_

#include "mscclpp/ep_receive_device.hpp"
#include "mscclpp/ep_send_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Does a dispatch, as one of its blocks. `counts` has the dynamic shared memory of the block.
MSCCLPP_DEVICE_INLINE void dispatchExperts(const EpHandle& ep, const EpDispatch& call, EpHeads& heads, uint32_t* counts) {
  const EpDispatchBlock block(ep, call, heads, counts);
  if (!block.b.begin()) return;
  const bool done = EpSender(block).send() && EpReceiver(block).receive();
  block.b.end(!done);
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_DISPATCH_DEVICE_HPP_
