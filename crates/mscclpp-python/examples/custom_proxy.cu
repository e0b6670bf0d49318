#include <mscclpp/fifo_device.hpp>

// Each thread reports its number, and `factor` times that, and waits until the proxy has taken the report. It does not check what
// `sync` returns: `sync` gives up only if the proxy has failed, and then the host notices that the report is missing.
extern "C" __global__ void report(mscclpp::FifoDeviceHandle fifo, unsigned int factor) {
  unsigned int thread = blockIdx.x * blockDim.x + threadIdx.x;
  mscclpp::ProxyTrigger trigger;
  trigger.fst = thread;
  trigger.snd = factor * thread;
  fifo.sync(fifo.push(trigger));
}
