// The benchmarks of port channels and of their FIFO.

// Puts by bulk copies need this architecture:
// build: compute_90

#include "mscclpp/packet_device.hpp"
#include "mscclpp/port_channel_device.hpp"

using mscclpp::FifoDeviceHandle;
using mscclpp::LL16Packet;
using mscclpp::PortChannelDeviceHandle;
using mscclpp::ProxyTrigger;

// Runs `rounds` rounds of both directions at once in one thread: the sides meet, each puts `bytes` bytes to the other and
// waits for the peer's. All kernels here store the round in which a call failed in `failed`, as round + 1.
extern "C" __global__ void port_put(PortChannelDeviceHandle ch, uint64_t dstOffset, uint64_t srcOffset, uint64_t bytes,
                                    int rounds, unsigned int* failed) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  for (int round = 0; round < rounds; ++round) {
    if (!ch.signal() || !ch.wait() || !ch.putWithSignal(dstOffset, srcOffset, bytes) || !ch.wait()) {
      *failed = round + 1;
      return;
    }
  }
}

// The value of an element in a round; the two sides have different values.
__device__ static uint32_t element(int round, int side, uint32_t index) {
  return static_cast<uint32_t>(round) * 2654435761u + index * 2 + side + 1;
}

// Whether thread 0 of the block found `value` true.
__device__ static bool firstSays(bool value) {
  __shared__ int said;
  if (threadIdx.x == 0) said = value;
  __syncthreads();
  const bool result = said != 0;
  __syncthreads();
  return result;
}

// Runs `rounds` round trips of `count` elements of 4 bytes in one block. A side waits for the peer's elements in `arrivals`,
// checks them, fills `source`, the channel's own memory, puts it with a signal, and flushes. The side with `first` 1
// sends first. The number of wrong elements is added to `mismatches`.
extern "C" __global__ void __launch_bounds__(1024, 1)
    port_ping_pong(PortChannelDeviceHandle ch, uint32_t* source, const uint32_t* arrivals, uint32_t count, int rounds,
                   int first, unsigned int* mismatches, unsigned int* failed) {
  for (int step = 0; step < 2 * rounds; ++step) {
    const int round = step / 2;
    bool done = true;
    if ((step % 2 == 0) == (first != 0)) {
      for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) source[i] = element(round, first, i);
      __syncthreads();
      done = firstSays(threadIdx.x == 0 && ch.putWithSignal(0, count * 4) && ch.flush());
    } else {
      done = firstSays(threadIdx.x == 0 && ch.wait());
      for (uint32_t i = threadIdx.x; done && i < count; i += blockDim.x) {
        if (arrivals[i] != element(round, !first, i)) atomicAdd(mismatches, 1);
      }
    }
    if (!done) {
      if (threadIdx.x == 0) *failed = round + 1;
      return;
    }
  }
}

// Runs round trips of packets, without waits: a side fills packets in `source`, the channel's own memory, and puts them;
// their flags show that they have arrived. An element is 8 bytes. `flag` is that of the first round, and grows by one with
// each round; when the kernel ends, the flags up to flag + rounds - 1 have been used. A read gives up when the semaphore
// is aborted.
extern "C" __global__ void __launch_bounds__(1024, 1)
    port_packet_ping_pong(PortChannelDeviceHandle ch, LL16Packet* source, const LL16Packet* arrivals, uint32_t count,
                          int rounds, int first, uint32_t flag, unsigned int* mismatches, unsigned int* failed) {
  for (int step = 0; step < 2 * rounds; ++step) {
    const int round = step / 2;
    bool done = true;
    if ((step % 2 == 0) == (first != 0)) {
      for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        source[i].write(element(round, first, i), ~element(round, first, i), flag + round);
      }
      __syncthreads();
      done = firstSays(threadIdx.x == 0 && ch.put(0, count * sizeof(LL16Packet)));
    } else {
      for (uint32_t i = threadIdx.x; done && i < count; i += blockDim.x) {
        LL16Packet::Payload value;
        done = arrivals[i].receive(flag + round, value, -1, ch.semaphore_.status);
        const uint32_t expected = element(round, !first, i);
        if (done && (value.x != expected || value.y != ~expected)) atomicAdd(mismatches, 1);
      }
      done = !__syncthreads_or(!done);
    }
    if (!done) {
      if (threadIdx.x == 0) *failed = round + 1;
      return;
    }
  }
}

// Every thread of the block pushes `perThread` triggers, which hold its number and how many it has pushed before.
extern "C" __global__ void __launch_bounds__(1024, 1)
    fifo_push(FifoDeviceHandle fifo, uint32_t perThread, unsigned int* failed) {
  for (uint32_t i = 0; i < perThread; ++i) {
    if (fifo.push(ProxyTrigger{threadIdx.x, i}) == FifoDeviceHandle::Failed) {
      *failed = i + 1;
      return;
    }
  }
}

// Every thread pushes triggers, and waits each time until the proxy has taken the trigger.
extern "C" __global__ void __launch_bounds__(1024, 1)
    fifo_push_and_sync(FifoDeviceHandle fifo, uint32_t perThread, unsigned int* failed) {
  for (uint32_t i = 0; i < perThread; ++i) {
    const uint64_t position = fifo.push(ProxyTrigger{threadIdx.x, i});
    if (position == FifoDeviceHandle::Failed || !fifo.sync(position)) {
      *failed = i + 1;
      return;
    }
  }
}
