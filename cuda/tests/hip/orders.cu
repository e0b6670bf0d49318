// Kernels with one access of the device API each, whose instructions ci/hip.py checks.

#include <mscclpp/access_device.hpp>
#include <mscclpp/group_device.hpp>
#include <mscclpp/packet_device.hpp>

using namespace mscclpp;

extern "C" __global__ void release_add(uint64_t* data, uint64_t* word) {
  data[0] = 1;
  detail::reduceAdd<MemoryOrder::Release, MemoryScope::System>(word, detail::oneOfThisLane());
}

extern "C" __global__ void release_store(uint64_t* data, uint64_t* word) {
  data[0] = 1;
  detail::store<MemoryOrder::Release, MemoryScope::System>(word, data[1]);
}

extern "C" __global__ void release_trigger(uint64_t* data, uint64_t* word) {
  data[0] = 1;
  releaseWhole(word, Bytes16{1, 2});
}

extern "C" __global__ void system_fence(uint64_t* data, uint64_t* word) {
  data[0] = 1;
  systemFence();
  detail::store<MemoryOrder::Relaxed, MemoryScope::System>(word, static_cast<uint64_t>(1));
}

extern "C" __global__ void acquire_load(const uint64_t* data, const uint64_t* word, uint64_t* out) {
  out[0] = detail::load<MemoryOrder::Acquire, MemoryScope::System>(word);
  out[1] = data[0];
}

extern "C" __global__ void acquire_pair(const uint64_t* data, const uint64_t* word, uint64_t* out) {
  const Bytes16 both = acquirePair(word);
  out[0] = both.low + both.high;
  out[1] = data[0];
}

extern "C" __global__ void store_ll8(LL8Packet* packet, uint32_t value, uint32_t flag) {
  LL8Packet::store(packet, LL8Packet::pack(value, flag));
}

extern "C" __global__ void store_ll16(LL16Packet* packet, uint64_t value, uint32_t flag) {
  LL16Packet::store(packet, LL16Packet::pack(value, flag));
}

// Polls at a packet look at memory each time.
extern "C" __global__ void load_ll8(const LL8Packet* packet, uint64_t* out) { out[0] = LL8Packet::load(packet); }

extern "C" __global__ void vote(const uint32_t* values, uint32_t* out) {
  out[laneId()] = warpAny(values[laneId()] != 0);
}
