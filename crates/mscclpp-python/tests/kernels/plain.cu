#include <mscclpp/fifo_device.hpp>

#include "plain.hpp"

// The tests define it, to see that macros arrive.
#ifndef EXTRA
#define EXTRA 0
#endif

// What its parameters were, of which some need gaps between them.
extern "C" __global__ void show(int a, int b, mscclpp::FifoDeviceHandle fifo, unsigned long long* out, char c, double d,
                                float e, bool f) {
  out[0] = a;
  out[1] = b;
  out[2] = reinterpret_cast<unsigned long long>(fifo.head);
  out[3] = c;
  out[4] = static_cast<unsigned long long>(d * 4);
  out[5] = static_cast<unsigned long long>(e * 4);
  out[6] = f;
  out[7] = EXTRA + OF_HEADER;
}

// As the Python tests of older programs do: parameters in one run of bytes without gaps.
extern "C" __global__ void packed(int first, int second, mscclpp::FifoDeviceHandle fifo, unsigned long long* out) {
  out[0] = first;
  out[1] = second;
  out[2] = reinterpret_cast<unsigned long long>(fifo.head);
}

// Pushes triggers, and says where each went.
extern "C" __global__ void push(mscclpp::FifoDeviceHandle fifo, unsigned long long first, unsigned long long* positions) {
  mscclpp::ProxyTrigger trigger;
  trigger.fst = first + threadIdx.x;
  trigger.snd = 7;
  uint64_t position = fifo.push(trigger);
  positions[threadIdx.x] = position;
  fifo.sync(position);
}

extern "C" __global__ void spin(volatile int* stop) {
  while (!*stop) __nanosleep(1000000);
}

// Writes when it is told to go on.
extern "C" __global__ void write_later(volatile int* stop, int* out, int n) {
  while (!*stop) __nanosleep(1000000);
  for (int i = 0; i < n; ++i) out[i] = i;
}

extern "C" __global__ void indices(int* out) {
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int thread = threadIdx.y * blockDim.x + threadIdx.x;
  extern __shared__ int shared[];
  shared[thread] = thread;
  __syncthreads();
  out[block * blockDim.x * blockDim.y + thread] = shared[thread] + 100 * block;
}
