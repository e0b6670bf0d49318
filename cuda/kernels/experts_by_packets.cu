// The dispatches of few tokens, whose rows travel as packets: see ep_device.hpp.
// build: compute_90

#include "mscclpp/ep_kernels_device.hpp"

using namespace mscclpp;

// Experts on GPUs of AMD have none of them: setup.rs of mscclpp-ep.
#if !defined(MSCCLPP_DEVICE_HIP)

MSCCLPP_EP_DISPATCH(_ZN7mscclpp2ep19dispatch_by_packetsE, EpAnyDispatch, ArePackets, 256, 2)
MSCCLPP_EP_DISPATCH(_ZN7mscclpp2ep24dispatch_rank_by_packetsE, EpQuantisedDispatch<EpLayoutRank>, ArePackets, 256, 2)
MSCCLPP_EP_DISPATCH(_ZN7mscclpp2ep26dispatch_expert_by_packetsE, EpQuantisedDispatch<EpLayoutExpert>, ArePackets, 256, 2)
MSCCLPP_EP_DISPATCH(_ZN7mscclpp2ep25dispatch_token_by_packetsE, EpGivenDispatch<EpLayoutToken>, ArePackets, 256, 2)

#endif
