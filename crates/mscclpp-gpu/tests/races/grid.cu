// The blocks, warps and threads of one launch.

#include <mscclpp/concurrency_device.hpp>

using namespace mscclpp;

// The layout of the memory, in words of 8 bytes: a barrier, a count, a lock, then data.
constexpr int Count = 16, Lock = 32, Data = 64;

extern "C" __global__ void blocks(uint64_t* memory, uint64_t*, uint64_t* results, int) {
  memory[Data + blockIdx.x * blockDim.x + threadIdx.x] = 1;  // @write
  reinterpret_cast<DeviceSyncer*>(memory)->sync(gridDim.x);
  const int other = gridDim.x - 1 - blockIdx.x;
  results[blockIdx.x * blockDim.x + threadIdx.x] = memory[Data + other * blockDim.x + threadIdx.x];  // @read
}

// The block that comes last adds up what the others have left.
extern "C" __global__ void last(uint64_t* memory, uint64_t*, uint64_t* results, int) {
  if (threadIdx.x != 0) return;
  memory[Data + blockIdx.x] = 1;  // @writeOfEach
  __threadfence();  // release
  const unsigned int before = atomicAdd(reinterpret_cast<unsigned int*>(memory + Count), 1u);
  if (before != gridDim.x - 1) return;
  __threadfence();  // acquire
  for (int i = 0; i < gridDim.x; ++i) results[0] += memory[Data + i];  // @readOfLast
}

extern "C" __global__ void locked(uint64_t* memory, uint64_t*, uint64_t*, int first) {
  if (threadIdx.x != 0) return;
  DeviceSemaphore* const turns = reinterpret_cast<DeviceSemaphore*>(memory + Lock);
  if (blockIdx.x == 0 && first == 0) turns->set(1);
  turns->acquire();
  memory[Data] += 1;  // @add
  turns->release();
}

extern "C" __global__ void threads(uint64_t*, uint64_t*, uint64_t* results, int) {
  __shared__ int numbers[64];
  numbers[threadIdx.x] = threadIdx.x;  // @writeShared
  __syncthreads();  // of threads
  results[threadIdx.x] = numbers[63 - threadIdx.x];  // @readShared
}

extern "C" __global__ void warps(uint64_t*, uint64_t*, uint64_t* results, int) {
  __shared__ int numbers[64];
  numbers[threadIdx.x] = threadIdx.x;  // @writeOfLane
  __syncwarp();  // of lanes
  results[threadIdx.x] = numbers[threadIdx.x ^ 1];  // @readOfLane
}

extern "C" __global__ void unwritten(uint64_t*, uint64_t*, uint64_t* results, int) {
  __shared__ int numbers[64];
  if (threadIdx.x < 64) numbers[threadIdx.x] = 1;
  __syncthreads();
  results[threadIdx.x] = numbers[threadIdx.x];  // @readUnwritten
}
