// Bulk copies.

#include <mscclpp/bulk_device.hpp>

using namespace mscclpp;

constexpr int Bytes = 1024, Data = 64;

// All threads prepare the data that one of them stores.
extern "C" __global__ void store(uint64_t* memory, uint64_t*, uint64_t* results, int) {
  alignas(128) __shared__ uint64_t stage[Bytes / 8];
  for (int i = threadIdx.x; i < Bytes / 8; i += blockDim.x) stage[i] = i;  // @prepare
  bulkFence();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulkStore(memory + Data, stage, Bytes);  // @store
    bulkStoreCommit();
    bulkStoreWait();
  }
  __syncthreads();
  results[threadIdx.x] = memory[Data + threadIdx.x];  // @readStored
  stage[threadIdx.x] = 0;  // @again
}

// One thread loads the data that all have written, and all use it.
extern "C" __global__ void load(uint64_t* memory, uint64_t*, uint64_t* results, int) {
  alignas(128) __shared__ uint64_t stage[Bytes / 8];
  __shared__ BulkBarrier barrier;
  for (int i = threadIdx.x; i < Bytes / 8; i += blockDim.x) memory[Data + i] = i;  // @writeGlobal
  detail::bulkFenceAll();
  __syncthreads();
  if (threadIdx.x == 0) {
    barrier.init();  // @ready
    barrier.arriveAndExpect(Bytes);
    bulkLoad(stage, memory + Data, Bytes, barrier);  // @load
  }
  __syncthreads();  // of the barrier
  uint32_t phase = 0;
  barrier.wait(phase);  // @use
  results[threadIdx.x] = stage[threadIdx.x];  // @useLoaded
}
