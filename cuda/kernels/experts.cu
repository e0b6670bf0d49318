// The kernels of expert parallel layers that are the same for all types of numbers: see ep_device.hpp.
// build: compute_90

#include "mscclpp/ep_choices_device.hpp"
#include "mscclpp/ep_kernels_device.hpp"

using namespace mscclpp;

MSCCLPP_EP_DISPATCH(_ZN7mscclpp2ep8dispatchE, EpAnyDispatch, AreStored, 1024)
MSCCLPP_EP_DISPATCH(_ZN7mscclpp2ep13dispatch_rankE, EpQuantisedDispatch<EpLayoutRank>, AreStored, 1024)
MSCCLPP_EP_DISPATCH(_ZN7mscclpp2ep20dispatch_rank_sharedE, EpQuantisedDispatch<EpLayoutRank>, AreShared, 1024)
MSCCLPP_EP_DISPATCH(_ZN7mscclpp2ep15dispatch_expertE, EpQuantisedDispatch<EpLayoutExpert>, AreStored, 1024)
// These do whole calls only.
MSCCLPP_EP_DISPATCH(_ZN7mscclpp2ep15dispatch_by_rowE, EpAnyGivenDispatch, AreSignalled, 1024)
MSCCLPP_EP_DISPATCH(_ZN7mscclpp2ep21dispatch_token_by_rowE, EpGivenDispatch<EpLayoutToken>, AreSignalled, 1024)

// Notes that the ranks whose bits are set are lost. One thread.
extern "C" __global__ void ep_lose(const MSCCLPP_GRID_CONSTANT EpHandle ep, uint32_t ranks) {
  waitForEarlierLaunches();
  detail::epLose(ep, ranks);
}

// Frees the rows of a dispatch without a combine. One block.
extern "C" __global__ void ep_release(const MSCCLPP_GRID_CONSTANT EpHandle ep, const uint8_t* tables, uint32_t microBatch) {
  waitForEarlierLaunches();
  detail::EpBlock(ep, microBatch, EpDispatching).freeDispatch(tables);
}

// Checks that the rows of a dispatch are still there. One thread.
extern "C" __global__ void ep_check_received(const MSCCLPP_GRID_CONSTANT EpHandle ep, const uint8_t* tables, uint32_t microBatch) {
  waitForEarlierLaunches();
  detail::EpBlock(ep, microBatch, EpDispatching).checkReceived(tables);
}

// Stores the rows of each local expert, and of each rank, in memory of the host. One block.
extern "C" __global__ void ep_host_counts(const uint8_t* tables, uint32_t* host, uint32_t local, uint32_t ranks) {
  waitForEarlierLaunches();
  const EpCounts* const counts = reinterpret_cast<const EpCounts*>(tables);
  for (uint32_t i = threadOfBlock(); i < local; i += threadsOfBlock()) store4(host + i, load4(tables + sizeof(EpCounts) + i * 4));
  for (uint32_t r = threadOfBlock(); r < ranks; r += threadsOfBlock()) store4(host + local + r, load4(counts->received + r));
}

// Counts the choices of tokens. One block.
extern "C" __global__ void __launch_bounds__(1024) ep_count_choices(const MSCCLPP_GRID_CONSTANT EpChoices choices) {
  waitForEarlierLaunches();
  extern __shared__ uint32_t counts[];
  detail::countChoices(choices, counts);
}
