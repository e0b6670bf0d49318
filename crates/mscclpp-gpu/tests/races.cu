// Kernels with races, and kernels like them without.

#include <mscclpp/bulk_device.hpp>
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/semaphore_device.hpp>

using namespace mscclpp;

extern "C" __global__ void barrier(int* data, int with) {
  __shared__ int shared[64];
  shared[threadIdx.x] = threadIdx.x;
  if (with) __syncthreads();
  data[threadIdx.x] = shared[63 - threadIdx.x];
}
