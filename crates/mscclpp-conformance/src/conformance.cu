// The kernels of the conformance suite. Every kernel leaves a number in its last argument.

#include "mscclpp/memory_channel_device.hpp"
#include "mscclpp/semaphore_device.hpp"

using mscclpp::BaseMemoryChannelDeviceHandle;
using mscclpp::Host2DeviceSemaphoreDeviceHandle;
using mscclpp::MemoryChannelDeviceHandle;

enum Call { Signal, RelaxedSignal, Poll, Wait, RelaxedWait };
enum Kind { LL8, LL16, LL128 };

__device__ static bool call(const BaseMemoryChannelDeviceHandle& ch, int what, int64_t maxSpin) {
  switch (what) {
    case Signal: ch.signal(); return true;
    case RelaxedSignal: ch.relaxedSignal(); return true;
    case Poll: return ch.poll();
    case Wait: return ch.wait(maxSpin);
    default: return ch.relaxedWait(maxSpin);
  }
}

// Repeats one call until it returns false, at most `times` times. `done`: how often it returned true.
extern "C" __global__ void channel_calls(BaseMemoryChannelDeviceHandle ch, int what, int64_t maxSpin, uint64_t times,
                                         uint64_t* done) {
  uint64_t count = 0;
  while (count < times && call(ch, what, maxSpin)) ++count;
  *done = count;
}

// Takes turns with the peer: the side that begins writes eight words into the peer's memory and signals, the other
// waits, compares its words, and signals back. `done`: the rounds in which everything was right.
extern "C" __global__ void channel_turns(BaseMemoryChannelDeviceHandle ch, int begins, uint64_t rounds, uint64_t* theirs,
                                         const uint64_t* own, uint64_t* done) {
  uint64_t right = 0;
  for (uint64_t round = 1; round <= rounds; ++round) {
    if (begins) {
      for (int i = 0; i < 8; ++i) mscclpp::store8(theirs + i, round);
      ch.signal();
    }
    if (!ch.wait()) break;
    bool same = true;
    if (!begins) {
      for (int i = 0; i < 8; ++i) same = same && mscclpp::load8(own + i) == round;
      ch.signal();
    }
    right += same;
  }
  *done = right;
}

// Waits for signals of a node. `done`: the number of signals that came.
extern "C" __global__ void semaphore_waits(Host2DeviceSemaphoreDeviceHandle semaphore, int64_t maxSpin, uint64_t times,
                                           uint64_t* done) {
  uint64_t count = 0;
  while (count < times && semaphore.wait(maxSpin)) ++count;
  *done = count;
}

// Copies with all threads. `local` and `remote` are offsets in this side's memory and in the peer's.
extern "C" __global__ void channel_copies(MemoryChannelDeviceHandle ch, int get, uint64_t remote, uint64_t local,
                                          uint64_t bytes, uint64_t* done) {
  if (get) {
    ch.get(local, remote, bytes, threadIdx.x, blockDim.x);
  } else {
    ch.put(remote, local, bytes, threadIdx.x, blockDim.x);
  }
  if (threadIdx.x == 0) *done = 1;
}

// Writes and reads single elements. `done`: how many of four were read as they had been written.
extern "C" __global__ void channel_elements(MemoryChannelDeviceHandle ch, uint64_t* done) {
  ch.write(3, static_cast<uint64_t>(0x0102030405060708));
  ch.write(20, static_cast<int32_t>(-7));
  ch.write(101, -2.5f);
  ch.write(9, static_cast<uint8_t>(0xab));
  *done = (ch.read<uint64_t>(3) == 0x0102030405060708) + (ch.read<int32_t>(20) == -7) + (ch.read<float>(101) == -2.5f) +
          (ch.read<uint8_t>(9) == 0xab);
}

__device__ static bool put(MemoryChannelDeviceHandle& ch, int kind, uint64_t target, uint64_t origin, uint64_t bytes,
                           uint32_t flag) {
  const uint32_t thread = threadIdx.x, threads = blockDim.x;
  if (kind == LL8) return ch.putPackets<mscclpp::LL8Packet>(target, origin, bytes, thread, threads, flag);
  if (kind == LL16) return ch.putPackets<mscclpp::LL16Packet>(target, origin, bytes, thread, threads, flag);
  return ch.putPackets<mscclpp::LL128Packet>(target, origin, bytes, thread, threads, flag);
}

__device__ static bool unpack(MemoryChannelDeviceHandle& ch, int kind, uint64_t target, uint64_t origin, uint64_t bytes,
                              uint32_t flag, int64_t maxSpin) {
  const uint32_t thread = threadIdx.x, threads = blockDim.x;
  if (kind == LL8) return ch.unpackPackets<mscclpp::LL8Packet>(target, origin, bytes, thread, threads, flag, maxSpin);
  if (kind == LL16) return ch.unpackPackets<mscclpp::LL16Packet>(target, origin, bytes, thread, threads, flag, maxSpin);
  return ch.unpackPackets<mscclpp::LL128Packet>(target, origin, bytes, thread, threads, flag, maxSpin);
}

// Puts packets with all threads of one block. `done`: the number of threads in which the call returned true.
extern "C" __global__ void channel_puts_packets(MemoryChannelDeviceHandle ch, int kind, uint64_t target, uint64_t origin,
                                                uint64_t bytes, uint32_t flag, uint64_t* done) {
  const int yes = __syncthreads_count(put(ch, kind, target, origin, bytes, flag));
  if (threadIdx.x == 0) *done = static_cast<uint64_t>(yes);
}
extern "C" __global__ void channel_unpacks_packets(MemoryChannelDeviceHandle ch, int kind, uint64_t target,
                                                   uint64_t origin, uint64_t bytes, uint32_t flag, int64_t maxSpin,
                                                   uint64_t* done) {
  const int yes = __syncthreads_count(unpack(ch, kind, target, origin, bytes, flag, maxSpin));
  if (threadIdx.x == 0) *done = static_cast<uint64_t>(yes);
}

// Sends rounds of packets in both directions at once, in two places in turn: whoever has the answer to a round may
// put the next but one. `done`: the rounds in which the calls returned true in all threads and all bytes were right.
extern "C" __global__ void channel_packet_turns(MemoryChannelDeviceHandle ch, int kind, uint32_t rounds, uint64_t bytes,
                                                uint64_t* done) {
  uint8_t* const own = static_cast<uint8_t*>(ch.src_);
  const uint64_t origin = 0, arrivals = 4096;
  uint64_t right = 0;
  for (uint32_t round = 1; round <= rounds; ++round) {
    const uint64_t place = round % 2 * 1024;
    for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x) own[origin + i] = static_cast<uint8_t>(round);
    __syncthreads();
    bool fine = put(ch, kind, place, origin, bytes, round);
    fine = unpack(ch, kind, place, arrivals, bytes, round, -1) && fine;
    __syncthreads();
    for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x) {
      fine = fine && own[arrivals + i] == static_cast<uint8_t>(round);
    }
    right += __syncthreads_and(fine) != 0;
  }
  if (threadIdx.x == 0) *done = right;
}
