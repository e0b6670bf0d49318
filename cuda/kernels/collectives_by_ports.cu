// The kernels of collectives whose ranks reach each other through port channels alone.

#include "mscclpp/collective_ports_device.hpp"

using namespace mscclpp;

extern "C" __global__ void __launch_bounds__(512) move_by_ports(const MSCCLPP_GRID_CONSTANT CollectivePortCall call) {
  detail::moveByPorts(call);
}

MSCCLPP_COLLECTIVE_KERNEL(reduce_segments, detail::reduceSegments)
