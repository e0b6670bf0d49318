// Exchanges that move, by bulk copies into the receive memory of the peers, where that is registered: see
// collective_direct_device.hpp. Few blocks fill a link in this way. They need compute capability 9.0. For the library's own
// use.
//
// Two warps of a block copy: one of them the rank's own part, if there is one. What is not registered, or does not lie at a
// multiple of 16, goes as it does without bulk copies, behind that.

#ifndef MSCCLPP_COLLECTIVE_BULK_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_BULK_DEVICE_HPP_

#include "mscclpp/bulk_device.hpp"
#include "mscclpp/collective_direct_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE) && MSCCLPP_BULK_AVAILABLE

namespace mscclpp {
namespace detail {

// copyByBulk orders what its warp copies in front of what these threads do next, and the barrier of the block in front of
// the thread that signals (D3). What the peer has said was acquired by another thread, in front of a barrier, and
// copyByBulk orders that in front of its copies.
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
