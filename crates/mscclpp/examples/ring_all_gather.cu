// An all-gather around a ring, as it is written for the C++ library: nothing here is particular to this one.
// ANCHOR: kernel
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/memory_channel_device.hpp>

__device__ mscclpp::DeviceSyncer syncer;

// Every rank has the same buffer, a slice for each rank, of which it fills its own. In each step it puts one slice into
// the buffer of the next rank: first its own, then the one that has just come from the previous rank. After nRanks - 1
// steps everybody has all slices. All blocks must fit on the device at once.
//
// The kernel does not check what `wait` returns: if the previous rank is lost, it goes on with slices that did not come, which
// does no harm, and the host gets an error when it synchronises the stream.
extern "C" __global__ void __launch_bounds__(1024)
    ring_all_gather(mscclpp::MemoryChannelDeviceHandle toNext, mscclpp::BaseMemoryChannelDeviceHandle fromPrevious,
                    int rank, int nRanks, uint64_t sliceBytes) {
  const uint32_t thread = threadIdx.x + blockIdx.x * blockDim.x;
  const uint32_t threads = gridDim.x * blockDim.x;
  for (int step = 0; step < nRanks - 1; ++step) {
    const uint64_t slice = (rank - step + nRanks) % nRanks;
    toNext.put(slice * sliceBytes, sliceBytes, thread, threads);
    syncer.sync(gridDim.x);  // all threads have put, before one signals for all
    if (thread == 0) {
      toNext.signal();
      fromPrevious.wait();
    }
    syncer.sync(gridDim.x);  // the next slice is there, for all threads
  }
}
// ANCHOR_END: kernel
