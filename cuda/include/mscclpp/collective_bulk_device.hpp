// Exchanges that move data by bulk copies into the receive memory of the peers, where that is registered: see
// collective_direct_device.hpp. With bulk copies few blocks fill a link. They need compute capability 9.0. For the
// library's own use.
//
// Two warps of a block copy: one of them the rank's own part, if there is one. Data whose place is not registered, or
// not at a multiple of 16, is sent afterwards without bulk copies.

#ifndef MSCCLPP_COLLECTIVE_BULK_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_BULK_DEVICE_HPP_

#include "mscclpp/bulk_device.hpp"
#include "mscclpp/collective_direct_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE) && MSCCLPP_BULK_AVAILABLE

namespace mscclpp {
namespace detail {

// copyByBulk orders its warp's copies before what these threads do next, and the barrier of the block orders them
// before the signal of another thread (D3). Another thread acquired what the peer has said, before a barrier, and
// copyByBulk orders that before its copies.
struct ByBulk {
  static constexpr uint32_t Warps = 2;
  BulkStage<>* stages;
  MSCCLPP_DEVICE_INLINE void copy(uint32_t warp, uint8_t* to, const uint8_t* from, uint64_t bytes) const {
    copyByBulk(to, from, bytes, stages[warp]);
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE && MSCCLPP_BULK_AVAILABLE

#endif  // MSCCLPP_COLLECTIVE_BULK_DEVICE_HPP_
