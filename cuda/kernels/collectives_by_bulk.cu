// The kernel of collectives that move by bulk copies, between any number of ranks: like those of collectives.cu, with
// shared memory for two warps.

// Bulk copies need it:
// build: only compute_90

#include "mscclpp/collective_bulk_device.hpp"

#if MSCCLPP_BULK_AVAILABLE
extern "C" __global__ void __launch_bounds__(1024)
    exchange_bulk_move(const MSCCLPP_GRID_CONSTANT mscclpp::CollectiveHandle comm,
                       const MSCCLPP_GRID_CONSTANT mscclpp::CollectiveDirectCall call) {
  mscclpp::waitForEarlierLaunches();
  extern __shared__ __align__(128) uint8_t dynamic[];
  const mscclpp::detail::ByBulk copier = {reinterpret_cast<mscclpp::BulkStage<>*>(dynamic)};
  mscclpp::detail::exchangeInBulk(comm, call, copier);
}
#endif
