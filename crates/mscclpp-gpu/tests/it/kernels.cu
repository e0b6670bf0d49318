// Kernels of the tests of simulated devices.

#include <assert.h>

#include <mscclpp/poll_device.hpp>

namespace {

__device__ uint64_t load(const uint64_t* word) {
  return mscclpp::atomicLoad(word, mscclpp::memoryOrderAcquire);
}

__device__ void store(uint64_t* word, uint64_t value) {
  mscclpp::atomicStore(word, value, mscclpp::memoryOrderRelease);
}

// Waits until the word is `value`; about a minute is the bound.
__device__ void waitFor(const uint64_t* word, uint64_t value) {
  assert(mscclpp::pollUntil([&] { return load(word) == value; }, 1000000, nullptr));
}

__device__ void arriveAndWait(uint64_t* arrived, uint64_t all) {
  mscclpp::atomicFetchAdd<uint64_t, mscclpp::scopeDevice>(arrived, 1, mscclpp::memoryOrderAcqRel);
  waitFor(arrived, all);
}

}  // namespace

__constant__ unsigned int first;
__device__ uint64_t counter[2];

// Thread t of the grid, in linear order, stores its index at word t.
extern "C" __global__ void record_indices(uint64_t* words) {
  const uint64_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const uint64_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned int parts[] = {blockIdx.z, blockIdx.y, blockIdx.x, threadIdx.z, threadIdx.y, threadIdx.x};
  uint64_t value = 0;
  for (unsigned int part : parts) value = value * 100 + part;
  words[block * blockDim.x * blockDim.y * blockDim.z + thread] = value;
}

// Every block waits for all others.
extern "C" __global__ void barrier(uint64_t* arrived) {
  if (threadIdx.x == 0) arriveAndWait(arrived, gridDim.x);
}

// Every block waits for all others, but the last block does not come.
extern "C" __global__ void barrier_without_last_block(uint64_t* arrived) {
  assert(blockIdx.x + 1 != gridDim.x && "not me");
  arriveAndWait(arrived, gridDim.x);
}

// Waits until the word has the value.
extern "C" __global__ void gate(const uint64_t* word, uint64_t value) { waitFor(word, value); }

// Waits until the word has the value, and then stores it in the first word of each of `outs`.
extern "C" __global__ void gate_then_store_each(const uint64_t* word, uint64_t value, uint64_t* const* outs,
                                                uint64_t count) {
  waitFor(word, value);
  for (uint64_t i = 0; i < count; ++i) *outs[i] = value;
}

// Waits until the word has the value, and then stores it in all words of `out`.
extern "C" __global__ void gate_then_store(const uint64_t* word, uint64_t value, uint64_t* out, uint64_t words) {
  waitFor(word, value);
  for (uint64_t i = 0; i < words; ++i) store(out + i, value);
}

// A token goes round; rank 0 starts it.
extern "C" __global__ void ring(uint64_t* own, uint64_t* next, uint64_t rank, uint64_t rounds) {
  for (uint64_t round = 1; round <= rounds; ++round) {
    if (rank != 0) waitFor(own, round);
    store(next, round);
    if (rank == 0) waitFor(own, round);
  }
}

// Adds the thread numbers up by way of dynamic and of static shared memory.
extern "C" __global__ void shared_sum(uint64_t* sums) {
  extern __shared__ unsigned int numbers[];
  __shared__ unsigned int sum;
  numbers[threadIdx.x] = threadIdx.x;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  // Each adds the number of another thread, which that thread has written before the barrier.
  atomicAdd(&sum, numbers[blockDim.x - 1 - threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

extern "C" __global__ void count_in_symbol() {
  mscclpp::atomicFetchAdd<uint64_t, mscclpp::scopeDevice>(counter + 1, first, mscclpp::memoryOrderRelaxed);
}

// The block with this number fails.
extern "C" __global__ void fails(unsigned int block) { assert(blockIdx.x != block); }

// Thread `thread` accesses the address by the device API.
extern "C" __global__ void touch(uint64_t* address, unsigned int thread) {
  if (threadIdx.x == thread) store(address, 1);
}

// Thread 0 waits, in a loop of its own, for thread `other` of its block.
extern "C" __global__ void wait_within_block(volatile uint64_t* word, unsigned int other) {
  if (threadIdx.x == 0) {
    while (*word == 0) {
    }
    *word = 2;
  } else if (threadIdx.x == other) {
    *word = 1;
  }
}

// Only some of the threads come to the barrier, and the others wait for the warp.
extern "C" __global__ void never_meet() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

// The number of each thread in the order in which they go on after a barrier, to which thread 5 comes last.
extern "C" __global__ void order_behind_barrier(unsigned int* next, uint64_t* order, volatile uint64_t* word,
                                                int ofBlock) {
  if (threadIdx.x == 5) {
    for (int i = 0; i < 100000; ++i) *word = i;
  }
  if (ofBlock) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  order[threadIdx.x] = atomicAdd(next, 1u);
}

// Exchanges between the threads of a warp: votes, shuffles, a reduction.
extern "C" __global__ void warps(uint64_t* words) {
  const unsigned int lane = threadIdx.x % 32, all = 0xffffffffu;
  uint64_t ok = __ballot_sync(all, lane % 3 == 0) == 0x49249249u;
  ok &= __any_sync(all, lane == 31) != 0 && __any_sync(all, 0) == 0;
  ok &= __all_sync(all, 1) != 0 && __all_sync(all, lane != 7) == 0;
  ok &= __shfl_sync(all, threadIdx.x, 5) == threadIdx.x - lane + 5;
  ok &= __shfl_xor_sync(all, lane, 3) == (lane ^ 3);
  ok &= __shfl_down_sync(all, lane, 4) == (lane + 4 < 32 ? lane + 4 : lane);
  ok &= __shfl_up_sync(all, lane, 4) == (lane >= 4 ? lane - 4 : lane);
  ok &= __shfl_sync(all, lane, 1, 8) == lane / 8 * 8 + 1;
  // The halves of a warp exchange values by themselves.
  const unsigned int half = lane < 16 ? 0xffffu : 0xffff0000u;
  ok &= __ballot_sync(half, lane % 2) == (half & 0xaaaaaaaau);
  __syncwarp(half);
  ok &= __syncthreads_count(threadIdx.x < 40) == 40;
  ok &= __syncthreads_and(threadIdx.x < 64) != 0 && __syncthreads_or(threadIdx.x == 63) != 0;
  words[threadIdx.x] = ok;
}
