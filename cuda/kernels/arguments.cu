// The meaning of each argument of the device API: every call has numbers that all differ, and its effect is compared with
// the bytes themselves, not with the result of another call. `wrong` gets the line of a check that failed.

// Bulk copies need it:
// build: compute_90

#include <mscclpp/bulk_device.hpp>
#include <mscclpp/copy_device.hpp>
#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/port_channel_device.hpp>

#if __has_include(<cuda_bf16.h>)
#define HALVES 1
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#define HALVES 0
#endif

#define EXPECT(condition) \
  do {                    \
    if (!(condition)) atomicCAS(wrong, 0u, static_cast<unsigned int>(__LINE__)); \
  } while (0)

using namespace mscclpp;

// The bytes that the host has written to the first 4096 bytes of `memory`. Zeros follow, up to 16,384.
__device__ static uint8_t byteAt(uint64_t i) { return static_cast<uint8_t>(i * 37 + i / 256 * 5 + 11); }
__device__ static uint32_t wordAt(uint64_t i) {
  return byteAt(i) | byteAt(i + 1) << 8 | byteAt(i + 2) << 16 | static_cast<uint32_t>(byteAt(i + 3)) << 24;
}
__device__ static uint32_t wordIn(const void* memory, uint64_t offset) {
  const uint8_t* const bytes = static_cast<const uint8_t*>(memory) + offset;
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

// Whether the `bytes` bytes at `target` are those that the host has written to `origin`, with zeros around them.
__device__ static bool has(const uint8_t* memory, uint64_t target, uint64_t origin, uint64_t bytes) {
  bool all = memory[target - 1] == 0 && memory[target + bytes] == 0;
  for (uint64_t i = 0; i < bytes; ++i) all = memory[target + i] == byteAt(origin + i) && all;
  return all;
}

// Whether the words at `memory` are a, b, c and d.
__device__ static bool are(const void* memory, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return wordIn(memory, 0) == a && wordIn(memory, 4) == b && wordIn(memory, 8) == c && wordIn(memory, 12) == d;
}

// One block of 64 threads.
extern "C" __global__ void copies_and_packets(uint8_t* memory, unsigned int* wrong) {
  const uint32_t thread = threadIdx.x, threads = blockDim.x;
  uint8_t* const packets = memory + 8192;
  constexpr uint32_t flag = 0x1234567;
  copy(memory + 4201, memory + 102, 301, thread, threads);
  copy<8, false>(memory + 4608, memory + 40, 72, thread, threads);
  copy<uint32_t>(reinterpret_cast<uint32_t*>(memory + 4800), reinterpret_cast<const uint32_t*>(memory + 80), 9, thread,
                 threads);
  copyHelper<ulonglong2>(memory + 5008, memory + 160, 35, thread, threads);
  copyHelper<int, false>(memory + 5104, memory + 244, 28, thread, threads);
  copyHelper<long long, true>(memory + 5200, memory + 328, 41, thread, threads);
  copyToPackets(packets + 16, memory + 24, 20, thread, threads, flag);
  copyToPackets<LL8Packet>(packets + 128, memory + 200, 11, thread, threads, flag + 1);
  // Packets in memory, from which data is taken.
  uint32_t* const words = reinterpret_cast<uint32_t*>(packets + 512);
  if (thread < 12) words[thread] = thread % 2 == 1 ? flag + 2 : wordAt(400 + thread / 2 * 4);
  __syncthreads();
  copyFromPackets(memory + 5501, packets + 512, 23, thread, threads, flag + 2);
  copyFromPackets<LL8Packet>(memory + 5600, packets + 520, 18, thread, threads, flag + 2, 7);
  __syncthreads();
  if (thread != 0) return;
  EXPECT(has(memory, 4201, 102, 301) && has(memory, 4608, 40, 72) && has(memory, 4800, 80, 36));
  EXPECT(has(memory, 5008, 160, 35) && has(memory, 5104, 244, 28) && has(memory, 5200, 328, 41));
  EXPECT(are(packets, 0, 0, 0, 0) && are(packets + 16, wordAt(24), flag, wordAt(28), flag));
  EXPECT(are(packets + 32, wordAt(32), flag, wordAt(36), flag) && are(packets + 48, wordAt(40), flag, 0, flag));
  EXPECT(are(packets + 128, wordAt(200), flag + 1, wordAt(204), flag + 1));
  EXPECT(are(packets + 144, wordAt(208) & 0xffffff, flag + 1, 0, 0));
  EXPECT(has(memory, 5501, 400, 23) && has(memory, 5600, 404, 18));

  LL16Packet* const two = reinterpret_cast<LL16Packet*>(packets + 1024);
  LL8Packet* const one = reinterpret_cast<LL8Packet*>(packets + 1536);
  two[0].write(3u, 4u, flag);
  two[1].write(static_cast<uint64_t>(6) << 32 | 5, flag + 1);
  two[2] = LL16Packet(make_uint2(7, 8), flag + 2);
  one[0].write(9, flag + 3);
  one[1] = LL8Packet(10, flag + 4);
  EXPECT(are(two, 3, flag, 4, flag) && are(two + 1, 5, flag + 1, 6, flag + 1));
  EXPECT(are(two + 2, 7, flag + 2, 8, flag + 2) && are(one, 9, flag + 3, 10, flag + 4));
  LL16Packet::Payload pair;
  LL8Packet::Payload single = 0;
  EXPECT(!two[0].readOnce(flag, pair) && pair.x == 3 && pair.y == 4 && two[0].readOnce(3, pair));
  EXPECT(two[1].read(flag + 1, 5).y == 6 && one[1].read(flag + 4) == 10);
  EXPECT(one[0].receive(flag + 3, single, 2) && single == 9 && !one[0].receive(9, single, 2));
  EXPECT(read<uint16_t>(memory, 60) == static_cast<uint16_t>(wordAt(120)));
  write<uint16_t>(memory + 6000, 5, 0xabcd);
  EXPECT(are(memory + 6000, 0, 0, 0xabcd0000, 0));
}

// One block of 64 threads. Of `channel`, only the semaphore is used: the peer's memory, this side's and the packet buffer
// are all in `memory`.
extern "C" __global__ void memory_channels(MemoryChannelDeviceHandle channel, uint8_t* memory, unsigned int* wrong) {
  const uint32_t thread = threadIdx.x, threads = blockDim.x;
  uint8_t *const theirs = memory + 4096, *const packets = memory + 12288;
  const MemoryChannelDeviceHandle to(channel.semaphore_, theirs, memory, packets);
  to.put(103, 302, 81, thread, threads);
  to.put<4, false>(404, 60, thread, threads);
  to.putPackets(1024, 504, 24, thread, threads, 71);
  to.putPackets<LL8Packet>(1208, 12, thread, threads, 72);
  // This side gets the peer's data: the host's bytes are the peer's here, and go where zeros were.
  const MemoryChannelDeviceHandle from(channel.semaphore_, memory, theirs, packets);
  from.get(2203, 902, 81, thread, threads);
  from.get<8, true>(2408, 60, thread, threads);
  uint32_t* const words = reinterpret_cast<uint32_t*>(packets);
  if (thread < 32) words[thread] = thread % 2 == 1 ? 73 : wordAt(600 + thread / 2 * 4);
  __syncthreads();
  EXPECT(from.unpackPackets(16, 2604, 22ul, thread, threads, 73u));
  EXPECT(from.unpackPackets<LL8Packet>(static_cast<uint64_t>(80), 12ul, thread, threads, 73u));
  // The arguments are literals of type int.
  from.getPackets(32, 3000, 24, thread, threads, 73);
  __syncthreads();
  if (thread != 0) return;
  EXPECT(has(theirs, 103, 302, 81) && has(theirs, 404, 404, 60));
  EXPECT(are(theirs + 1024, wordAt(504), 71, wordAt(508), 71) && are(theirs + 1040, wordAt(512), 71, wordAt(516), 71));
  EXPECT(are(theirs + 1208, wordAt(1208), 72, wordAt(1212), 72) && are(theirs + 1224, wordAt(1216), 72, 0, 0));
  EXPECT(has(theirs, 2203, 902, 81) && has(theirs, 2408, 2408, 60));
  EXPECT(has(theirs, 2604, 608, 22) && has(theirs, 80, 640, 12) && has(theirs, 3000, 616, 24));
  EXPECT(from.unpackPacket(3, 73).y == wordAt(628) && from.unpackPacket<LL8Packet>(5, 73, 9) == wordAt(620));
  LL16Packet::Payload pair;
  EXPECT(from.tryUnpackPacket(2, 73, pair, 4) && pair.x == wordAt(616) && !from.tryUnpackPacket(3, 2, pair, 4));
  EXPECT(from.read<uint16_t>(61) == static_cast<uint16_t>(wordAt(122)));
  to.write<uint16_t>(1601, 0xabcd);
  EXPECT(are(theirs + 3200, 0xabcd0000, 0, 0, 0));
}

// One thread pushes the triggers that the host expects, on a connection with a hundred complete triggers. `words`: 32 of
// this device, zeros.
extern "C" __global__ void port_channels(FifoDeviceHandle fifo, uint64_t* words, unsigned int* wrong) {
  PortChannelDeviceHandle channel = {};
  channel.fifo_ = fifo;
  channel.semaphore_ = {words, words + 2, fifo.status, nullptr};
  channel.lastPushed_ = words + 4, channel.flushDonePos_ = words + 5;
  channel.semaphoreId_ = 9, channel.dst_ = 3, channel.src_ = 4;
  words[4] = 1000, words[5] = 100;
  const BasePortChannelDeviceHandle base = channel;
  // Types distinguish forms with the same number of arguments.
  const MemoryId theirs = 5, ours = 6;
  const int64_t bound = 7;
  EXPECT(base.put(5, 1001, 6, 2002, 303) && base.put(5, 6, 1004, 305) && base.signal());
  EXPECT(base.putWithSignal(5, 1006, 6, 2007, 308) && base.putWithSignal(5, 6, 1009, 310));
  EXPECT(base.putWithSignalAndFlush(5, 1011, 6, 2012, 313, 7) &&
         base.putWithSignalAndFlush(theirs, ours, 1014ul, 315ul, bound));
  EXPECT(base.flush(7));
  EXPECT(channel.put(1016, 2017, 318) && channel.put(1019, 320) && channel.putWithSignal(1021, 2022, 323));
  EXPECT(channel.putWithSignal(1024, 325) && channel.putWithSignalAndFlush(1026, 2027, 328));
  EXPECT(channel.putWithSignalAndFlush(1029, 330) && channel.put(5, 1031, 6, 2032, 333) && channel.put(5, 6, 1034, 335));
  EXPECT(channel.putWithSignal(5, 1036, 6, 2037, 338) && channel.putWithSignal(5, 6, 1039, 340));
  EXPECT(channel.putWithSignalAndFlush(5, 1041, 6, 2042, 343));
  EXPECT(channel.putWithSignalAndFlush(theirs, ours, 1044, 345ul));
  EXPECT(fifo.push(ProxyTrigger(TriggerSync, 11, 1046, 12, 2047, 348, 13)) == 20);
  // Five signals have come in all, in two words. Two are taken.
  words[0] = 3, words[1] = 2;
  systemFence();
  EXPECT(base.poll() && base.wait(2) && base.semaphore_.loadInbound() == 5 && base.semaphore_.loadExpectedInbound() == 2);
  // The words between kernels: inbound, expected, the peer's.
  const MemoryDevice2DeviceSemaphoreDeviceHandle semaphore = {words + 8, words + 16, words + 24, nullptr, fifo.status};
  semaphore.signal();
  semaphore.relaxedSignal();
  EXPECT(words[8] == 0 && words[16] == 0 && words[24] == 2 && !semaphore.poll());
  words[8] = 4;
  systemFence();
  EXPECT(semaphore.wait(3) && semaphore.relaxedWait() && semaphore.incExpectedInbound() == 3 && words[16] == 3);
}

// Adds `added` to a word with the value `there`, and checks that it becomes `sum`.
template <class T>
__device__ static void add(void* memory, T there, T added, T sum, unsigned int* wrong) {
  T* const word = static_cast<T*>(memory);
  constexpr MemoryOrder orders[] = {memoryOrderRelaxed, memoryOrderAcquire, memoryOrderRelease, memoryOrderAcqRel,
                                    memoryOrderSeqCst};
  for (MemoryOrder order : orders) {
    atomicStore(word, there, memoryOrderRelease);
    EXPECT(detail::bitsAs<detail::WordOf<T>>(atomicLoad(word, memoryOrderAcquire)) ==
           detail::bitsAs<detail::WordOf<T>>(there));
    const T before = atomicFetchAdd<T, scopeDevice>(word, added, order);
    EXPECT(detail::bitsAs<detail::WordOf<T>>(before) == detail::bitsAs<detail::WordOf<T>>(there));
    EXPECT(detail::bitsAs<detail::WordOf<T>>(*word) == detail::bitsAs<detail::WordOf<T>>(sum));
  }
}

// One thread.
extern "C" __global__ void atomics(uint8_t* memory, unsigned int* wrong) {
  __shared__ double shared;
  add<int>(memory, -5, 7, 2, wrong);
  add<unsigned int>(memory, 5, 7, 12, wrong);
  add<long long>(memory, -5, 7, 2, wrong);
  add<uint64_t>(memory, ~0ull, 7, 6, wrong);
  add<float>(memory, 1.0f, 1.25f, 2.25f, wrong);
  add<float>(&shared, 1.5f, -1.0f, 0.5f, wrong);
  add<double>(memory, 1.0, 1e-10, 1.0 + 1e-10, wrong);
  add<double>(&shared, 1e300, -1.0, 1e300, wrong);
  EXPECT(atomicFetchAdd(reinterpret_cast<float*>(&shared), 2, memoryOrderRelaxed) != 0.25f);
#if HALVES
  add<__half>(memory, __float2half(1.5f), __float2half(0.25f), __float2half(1.75f), wrong);
  add<__half2>(memory, __floats2half2_rn(1, 2), __floats2half2_rn(3, 5), __floats2half2_rn(4, 7), wrong);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  add<__nv_bfloat16>(memory, __float2bfloat16(1.5f), __float2bfloat16(0.25f), __float2bfloat16(1.75f), wrong);
  add<__nv_bfloat162>(memory, __floats2bfloat162_rn(1, 2), __floats2bfloat162_rn(3, 5), __floats2bfloat162_rn(4, 7),
                      wrong);
#endif
#endif
  // Single bytes, and the two of a word, touch nothing beside them.
  uint8_t* const bytes = memory + 64;
  bytes[1] = 0x11, bytes[2] = 0x22, bytes[3] = 0x33, bytes[4] = 0x44, bytes[5] = 0x55;
  atomicStore(reinterpret_cast<signed char*>(bytes + 2), -2, memoryOrderRelaxed);
  atomicStore<uint16_t, scopeDevice>(reinterpret_cast<uint16_t*>(bytes + 4), 0xabcd, memoryOrderSeqCst);
  EXPECT(atomicLoad(reinterpret_cast<signed char*>(bytes + 2), memoryOrderAcquire) == -2);
  EXPECT((atomicLoad<uint16_t, scopeDevice>(reinterpret_cast<uint16_t*>(bytes + 4), memoryOrderRelaxed)) == 0xabcd);
  EXPECT(bytes[1] == 0x11 && bytes[2] == 0xfe && bytes[3] == 0x33 && bytes[4] == 0xcd && bytes[5] == 0xab);
}

#if MSCCLPP_BULK_AVAILABLE

// One block of 64 threads.
extern "C" __global__ void bulk_copies(uint8_t* memory, unsigned int* wrong) {
  alignas(128) __shared__ uint8_t stage[512];
  __shared__ BulkBarrier barrier;
  for (uint32_t i = threadIdx.x; i < 512; i += blockDim.x) stage[i] = 0;
  detail::bulkFenceAll();
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t phase = 0;
    barrier.init(2);
    bulkFence();
    barrier.arriveAndExpect(96);
    bulkLoad(stage + 32, memory + 272, 96, barrier);
    EXPECT(!barrier.poll(phase));
    barrier.arrive();
    EXPECT(barrier.wait(phase, 1000000) && phase == 1 && barrier.poll(0) && !barrier.poll(1));
    EXPECT(has(stage, 32, 272, 96));
    bulkStore(memory + 4224, stage + 48, 64);
    bulkStoreCommit();
    bulkStoreWait();
    EXPECT(has(memory, 4224, 288, 64));
  }
  __syncthreads();
  // The default operation is addition, and it changes only as many elements as the bytes hold.
  uint32_t* const there = reinterpret_cast<uint32_t*>(memory + 5120);
  uint32_t* const stored = reinterpret_cast<uint32_t*>(stage);
  if (threadIdx.x < 16) there[threadIdx.x] = 100 + threadIdx.x, stored[threadIdx.x] = 7 * threadIdx.x;
  detail::bulkFenceAll();
  __syncthreads();
  if (threadIdx.x != 0) return;
  bulkReduceStore<uint32_t>(there, stored, 48);
  bulkStoreCommit();
  bulkStoreWait();
  for (uint32_t i = 0; i < 16; ++i) EXPECT(there[i] == 100 + i + (i < 12 ? 7 * i : 0) && stored[i] == 7 * i);
}

// One warp, with as much dynamic shared memory as a BulkStage<256, 2> is large.
extern "C" __global__ void bulk_channels(MemoryChannelDeviceHandle channel, uint8_t* memory, unsigned int* wrong) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  BulkStage<256, 2>& stage = *reinterpret_cast<BulkStage<256, 2>*>(dynamic);
  uint8_t* const theirs = memory + 4096;
  const MemoryChannelDeviceHandle to(channel.semaphore_, theirs, memory), from(channel.semaphore_, memory, theirs);
  to.putBulk(104, 312, 777, stage);
  from.getBulk(1203, 2002, 81, stage);
  copyByBulk(theirs + 2400, memory + 528, 900, stage);
  warpSync();
  if (threadIdx.x == 0) EXPECT(has(theirs, 104, 312, 777) && has(theirs, 1203, 2002, 81) && has(theirs, 2400, 528, 900));
}

#endif
