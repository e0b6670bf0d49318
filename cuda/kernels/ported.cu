// Every name of the device API in kernels that were written for the C++ original: each kernel uses some and checks what
// they do. `wrong` gets the line of a check that failed. Offsets differ on both sides everywhere.

// Bulk copies need it:
// build: compute_90

#include <mscclpp/assert_device.hpp>
#include <mscclpp/bulk_device.hpp>
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/copy_device.hpp>
#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/packet_device.hpp>
#include <mscclpp/port_channel_device.hpp>
#include <mscclpp/proxy_channel_device.hpp>
#include <mscclpp/sm_channel_device.hpp>

// NVRTC has no headers of its own.
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

template <class T>
__device__ static void checkAtomics(T* word, unsigned int* wrong) {
  atomicStore(word, static_cast<T>(5), memoryOrderRelaxed);
  EXPECT(atomicLoad(word, memoryOrderRelaxed) == 5);
  atomicStore<T, scopeDevice>(word, static_cast<T>(-7), memoryOrderRelease);
  EXPECT((atomicLoad<T, scopeDevice>(word, memoryOrderAcquire)) == static_cast<T>(-7));
  EXPECT((atomicFetchAdd<T, scopeDevice>(word, static_cast<T>(9), memoryOrderRelaxed)) == static_cast<T>(-7));
  EXPECT(atomicFetchAdd(word, static_cast<T>(1), memoryOrderAcquire) == 2);
  EXPECT((atomicFetchAdd<T, scopeSystem>(word, static_cast<T>(1), memoryOrderRelease)) == 3);
  EXPECT(atomicFetchAdd(word, static_cast<T>(1), memoryOrderAcqRel) == 4);
  EXPECT(atomicFetchAdd(word, static_cast<T>(1), memoryOrderSeqCst) == 5);
  atomicStore(word, static_cast<T>(8), memoryOrderSeqCst);
  EXPECT(atomicLoad(word, memoryOrderSeqCst) == 8);
}

// One block of any number of threads. `memory`: 4096 bytes of this device. Words of all memories and types.
extern "C" __global__ void ported_atomics(uint64_t* memory, unsigned int* wrong) {
  __shared__ uint64_t shared[4];
  if (threadIdx.x == 0) {
    checkAtomics(memory, wrong);
    checkAtomics(shared + 1, wrong);
    checkAtomics(reinterpret_cast<int64_t*>(shared + 2), wrong);
    checkAtomics(reinterpret_cast<unsigned long long*>(memory + 1), wrong);
    checkAtomics(reinterpret_cast<uint32_t*>(memory + 2), wrong);
    checkAtomics(reinterpret_cast<int*>(memory + 3), wrong);
    checkAtomics(reinterpret_cast<int*>(shared + 3), wrong);
    // The compiler does not see which memory it is.
    checkAtomics(memory[1] == 8 ? shared : memory, wrong);
  }
  __syncthreads();
  // All threads add at once.
  atomicFetchAdd<uint64_t, scopeDevice>(shared, 3, memoryOrderRelaxed);
  atomicFetchAdd(reinterpret_cast<int*>(memory + 3), -2, memoryOrderRelaxed);
  __syncthreads();
  EXPECT(shared[0] == 8 + 3ull * blockDim.x);
  EXPECT(reinterpret_cast<int*>(memory)[6] == 8 - 2 * static_cast<int>(blockDim.x));
}

// One block of at least 2 threads; `rounds` of them. Barriers and semaphores in shared memory and in the device's.
extern "C" __global__ void ported_concurrency(DeviceSyncer* syncer, DeviceSemaphore* semaphore, int rounds,
                                              unsigned int* wrong) {
  __shared__ DeviceSyncer ours;
  __shared__ DeviceSemaphore turns;
  __shared__ int inside;
  static_assert(DeviceSyncer::NumCounters > 0, "");
  if (threadIdx.x == 0) {
    ours = DeviceSyncer();
    turns = DeviceSemaphore(1);
    inside = 0;
    if (blockIdx.x == 0) semaphore->set(2);
  }
  __syncthreads();
  EXPECT(ours.sync(1) && ours.sync(1) && syncer->sync(static_cast<int>(gridDim.x)));
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x % 2 == 0) {
      turns.acquire();
      // One thread at a time is inside.
      EXPECT(atomicFetchAdd(&inside, 1, memoryOrderRelaxed) == 0);
      atomicFetchAdd(&inside, -1, memoryOrderRelaxed);
      turns.release();
    } else {
      semaphore->acquire(-1);
      semaphore->release();
    }
  }
  __syncthreads();
  EXPECT(syncer->sync(static_cast<int>(gridDim.x), -1));
  if (threadIdx.x == 0) EXPECT(turns.acquire(0) && !turns.acquire(3));
}

__constant__ uint32_t table[4] = {11, 12, 13, 14};

// One block of at least 32 threads. `memory`: 4096 bytes of this device, zeros.
extern "C" __global__ void ported_packets(uint8_t* memory, unsigned int* wrong) {
  __shared__ LL16Packet packets[8];
  __shared__ LL8Packet small[8];
  alignas(16) __shared__ uint32_t data[16];
  static_assert(sizeof(LLPacket) == 16 && sizeof(LL8Packet) == 8, "");
  const uint32_t thread = threadIdx.x, threads = blockDim.x;
  if (thread < 8) packets[thread].clear(), small[thread].clear();
  if (thread < 16) data[thread] = 100 + thread;
  __syncthreads();
  LL16Packet::Payload two;
  LL8Packet::Payload one;
  if (thread == 0) {
    EXPECT(packets[1].readOnce(7, two) && small[1].readOnce(7, one) && !small[1].readOnce(0, one) && one == 0);
    packets[0].write(1, 2, 7);
    packets[1].write(static_cast<uint64_t>(4) << 32 | 3, 7);
    packets[2].write(make_uint2(5, 6), 7);
    packets[3] = LL16Packet(make_uint2(7, 8), 7);
    small[0].write(9, 7);
    small[1] = LL8Packet(10, 7);
    packets[4].raw_ = packets[3].raw_;
    small[2].raw_ = static_cast<uint64_t>(7) << 32 | 21;
    EXPECT(packets[3].data1 == 7 && packets[3].flag1 == 7 && packets[3].data2 == 8 && packets[3].flag2 == 7);
    EXPECT(small[0].data == 9 && small[0].flag == 7);
    packets[5].data1 = packets[4].data2;
    EXPECT(packets[5].data1 == 8 && packets[4].data2 == 8);
  }
  if (thread == 31) {
    // Each thread waits for the packets that the first thread of its warp writes.
    EXPECT(packets[0].read(7).x == 1 && packets[0].read(7, 100).y == 2 && packets[1].read(7).y == 4);
    EXPECT(packets[2].read(7).x == 5 && !packets[2].readOnce(7, two) && two.y == 6);
  }
  // A packet that is assigned as a whole is not valid for threads that poll meanwhile.
  __syncthreads();
  if (thread == 31) {
    EXPECT(packets[3].read(7).y == 8 && small[1].read(7) == 10 && small[2].read(7) == 21);
    EXPECT(packets[4].read(7).x == 7 && packets[5].readOnce(7, two));
  }
  __syncthreads();
  // Data goes from shared memory through packets in the device's memory and in shared memory, and from constant memory.
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(data);
  copyToPackets(memory + 256, bytes + 4, 40, thread, threads, 3);
  copyFromPackets(memory + 1024, memory + 256, 40, thread, threads, 3);
  copyToPackets<LL8Packet>(small, bytes + 8, 30, thread, threads, 4);
  copyFromPackets<LL8Packet>(memory + 1100, small, 30, thread, threads, 4);
  copyToPackets<LL16Packet>(packets, table, 16, thread, threads, 5);
  copyFromPackets<LL16Packet>(memory + 1200, packets, 16, thread, threads, 5);
  // Flag 0 is used in memory that was filled with another flag.
  LL8Packet* const others = reinterpret_cast<LL8Packet*>(memory + 2048);
  if (thread < 8) others[thread].write(1, 0xffffffff);
  __syncthreads();
  copyToPackets<LL8Packet>(others, bytes + 12, 32, thread, threads, 0);
  copyFromPackets<LL8Packet>(memory + 1300, others, 32, thread, threads, 0);
  __syncthreads();
  if (thread == 0) {
    for (int i = 0; i < 40; ++i) EXPECT(memory[1024 + i] == bytes[4 + i]);
    for (int i = 0; i < 31; ++i) EXPECT(memory[1100 + i] == (i < 30 ? bytes[8 + i] : 0));
    for (int i = 0; i < 4; ++i) EXPECT(reinterpret_cast<uint32_t*>(memory + 1200)[i] == 11u + i);
    for (int i = 0; i < 32; ++i) EXPECT(memory[1300 + i] == bytes[12 + i]);
  }
}

// One block. `memory`: 4096 bytes of this device, zeros.
extern "C" __global__ void ported_copies(uint8_t* memory, unsigned int* wrong) {
  alignas(16) __shared__ uint8_t source[512];
  alignas(16) __shared__ uint32_t back[64];
  const uint32_t thread = threadIdx.x, threads = blockDim.x;
  for (uint32_t i = thread; i < 512; i += threads) source[i] = static_cast<uint8_t>(i * 7 + 3);
  __syncthreads();
  copy<16, true>(memory, source, 200, thread, threads);
  copy<4, true>(memory + 300, source + 36, 101, thread, threads);
  copy(memory + 513, static_cast<uint8_t*>(source) + 70, 33, thread, threads);
  copyHelper<long long, false>(memory + 640, source + 8, 64, thread, threads);
  copy(reinterpret_cast<uint32_t*>(memory + 1024), reinterpret_cast<uint32_t*>(source + 4), 30, thread, threads);
  copy<uint4>(reinterpret_cast<uint4*>(memory + 2048), reinterpret_cast<uint4*>(source + 16), 5, thread, threads);
  copy<uint32_t>(reinterpret_cast<uint32_t*>(memory + 3072), table, 4, thread, threads);
  __syncthreads();
  copy<uint32_t>(back + 1, reinterpret_cast<uint32_t*>(memory + 1024), 30, thread, threads);
  __syncthreads();
  if (thread != 0) return;
  for (int i = 0; i < 201; ++i) EXPECT(memory[i] == (i < 200 ? source[i] : 0));
  for (int i = 0; i < 102; ++i) EXPECT(memory[300 + i] == (i < 101 ? source[36 + i] : 0));
  for (int i = 0; i < 33; ++i) EXPECT(memory[513 + i] == source[70 + i]);
  for (int i = 0; i < 64; ++i) EXPECT(memory[640 + i] == source[8 + i]);
  for (int i = 0; i < 121; ++i) EXPECT(memory[1024 + i] == (i < 120 ? source[4 + i] : 0));
  for (int i = 0; i < 80; ++i) EXPECT(memory[2048 + i] == source[16 + i]);
  for (int i = 0; i < 4; ++i) EXPECT(read<uint32_t>(memory + 3072, i) == 11u + i);
  for (int i = 0; i < 30; ++i) EXPECT(back[1 + i] == reinterpret_cast<uint32_t*>(source)[1 + i]);
  write<uint16_t>(memory, 7, 0xabcd);
  EXPECT(read<uint16_t>(memory, 7) == 0xabcd);
}

// One block of at least 32 threads, on a channel whose memories are 4096 bytes each. The peer does nothing: packets go to
// this device's own memory by a channel that is made of parts.
extern "C" __global__ void ported_memory_channel(DeviceHandle<MemoryChannel> channel, uint8_t* buffer,
                                                 unsigned int* wrong) {
  const uint32_t thread = threadIdx.x, threads = blockDim.x;
  uint8_t* const mine = static_cast<uint8_t*>(channel.src_);
  uint8_t* const peers = static_cast<uint8_t*>(channel.dst_);
  for (uint32_t i = thread; i < 1024; i += threads) mine[i] = static_cast<uint8_t>(i * 5 + 1);
  __syncthreads();
  channel.put<16, true>(64, 16, 200, thread, threads);   // to the peer's 64.. from ours 16..
  channel.put(512, 100, thread, threads);                // to the same offset
  __syncthreads();
  channel.get(2048, 64, 200, thread, threads);           // to our 2048.. from the peer's 64..
  channel.get<4, true>(2300, 512, 100, thread, threads);
  __syncthreads();
  if (thread == 0) {
    for (int i = 0; i < 200; ++i) EXPECT(peers[64 + i] == mine[16 + i] && mine[2048 + i] == mine[16 + i]);
    for (int i = 0; i < 100; ++i) EXPECT(peers[512 + i] == mine[512 + i] && mine[2300 + i] == mine[512 + i]);
    channel.write<uint64_t>(128, 0x1234);
    EXPECT(channel.read<uint64_t>(128) == 0x1234 && read<uint64_t>(peers, 128) == 0x1234);
    EXPECT(channel.semaphore_.loadExpectedInbound() == 0 && channel.semaphore_.loadInbound() == 0);
    EXPECT(!channel.poll() && channel.semaphore_.loadInboundRelaxed() == 0);
  }
  MemoryChannelDeviceHandle made;
  made = MemoryChannelDeviceHandle(channel.semaphore_, buffer, channel.src_, buffer);
  const SmChannelDeviceHandle older = made;
  made.putPackets(256, 16, 72, thread, threads, 9);
  EXPECT(made.unpackPackets(256, 3000, 72ul, thread, threads, 9u));
  // These calls have one offset and a bound of polls.
  made.putPackets<LL8Packet>(600, 40, thread, threads, 10);
  __syncthreads();
  const uint64_t offset = 600, bytes = 40;
  const int64_t bound = 1000;
  EXPECT(older.unpackPackets<LL8Packet>(offset, bytes, thread, threads, 10u, bound));
  EXPECT(older.getPackets<LL8Packet>(offset, static_cast<uint64_t>(3200), bytes, thread, threads, 10u));
  __syncthreads();
  if (thread == 0) {
    for (int i = 0; i < 72; ++i) EXPECT(mine[3000 + i] == mine[16 + i]);
    for (int i = 0; i < 40; ++i) EXPECT(mine[3200 + i] == mine[600 + i]);
    const LL16Packet::Payload first = made.unpackPacket<LL16Packet>(16, 9);
    EXPECT(first.x == reinterpret_cast<uint32_t*>(mine)[4] && first.y == reinterpret_cast<uint32_t*>(mine)[5]);
    EXPECT(made.unpackPacket<LL8Packet>(75, 10, 100) == reinterpret_cast<uint32_t*>(mine)[150]);
    BaseMemoryChannelDeviceHandle base(channel.semaphore_);
    base.relaxedSignal();
  }
}

// One thread on each side: all forms of puts of a port channel over memories of 65,536 bytes, of which the host fills the
// sources and compares what arrives. `done` gets how many signals came.
extern "C" __global__ void ported_port_channel(DeviceHandle<PortChannel> channel, unsigned int* wrong, int* done) {
  const MemoryId dst = channel.dst_, src = channel.src_;
  ProxyChannelDeviceHandle older = channel;
  BasePortChannelDeviceHandle base;
  base = BasePortChannelDeviceHandle(channel.semaphoreId_, channel.semaphore_, channel.fifo_, channel.flushDonePos_);
  const PortChannelDeviceHandle made(channel.semaphoreId_, channel.semaphore_, channel.fifo_, dst, src,
                                     channel.flushDonePos_);
  const uint64_t size = 64;
  EXPECT(channel.put(0, 64, size));
  EXPECT(channel.put(128, size) && channel.flush());
  EXPECT(channel.putWithSignal(256, 192, size) && channel.putWithSignal(320, size));
  EXPECT(channel.putWithSignalAndFlush(384, 448, size) && channel.putWithSignalAndFlush(512, size));
  EXPECT(base.put(dst, 640, src, 576, size) && base.put(dst, src, 704, size));
  EXPECT(base.putWithSignal(dst, 768, src, 832, size) && base.putWithSignal(dst, src, 896, size));
  EXPECT(base.putWithSignalAndFlush(dst, 960, src, 1024, size));
  EXPECT(base.putWithSignalAndFlush(dst, src, 1088, size, static_cast<int64_t>(1000000)));
  EXPECT(older.put(dst, 1152, src, 1216, size) && older.put(dst, src, 1280, size));
  EXPECT(older.putWithSignal(dst, 1344, src, 1408, size) && older.putWithSignal(dst, src, 1472, size));
  EXPECT(older.putWithSignalAndFlush(dst, 1536, src, 1600, size) && older.putWithSignalAndFlush(dst, src, 1664ul, size));
  EXPECT(made.put(1728, 1792, size) && made.putWithSignal(1856, 1920, size) && made.signal());
  // Large enough for bulk copies, at addresses that are multiples of 16 and not.
  EXPECT(channel.put(4096, 8192, 4096) && channel.put(8203, 12299, 5000) && channel.putWithSignal(16384, 20480, 40000));
  EXPECT(channel.flush() && made.flush(1000000));
  for (int i = 0; i < 15; ++i) {
    EXPECT(channel.wait(100000000));
    *done = i + 1;
  }
  EXPECT(!channel.poll() && channel.semaphore_.loadExpectedInbound() == 15);
  EXPECT(channel.semaphore_.loadInbound() == 15 && channel.semaphore_.loadInboundRelaxed() == 15);
}

// One thread pushes triggers for a service of the program's own.
extern "C" __global__ void ported_fifo(DeviceHandle<Fifo> fifo, unsigned int* wrong) {
  static_assert(alignof(FifoDeviceHandle) <= 8 && sizeof(FifoDeviceHandle) % 8 == 0 && sizeof(ProxyTrigger) == 16, "");
  const TriggerType both = TriggerData | TriggerFlag;
  ProxyTrigger trigger(both, 5, 0x11111111, 6, 0x22222222, 0x33333333, 7);
  EXPECT(trigger.fields.size == 0x33333333 && trigger.fields.srcOffset == 0x22222222);
  EXPECT(trigger.fields.dstOffset == 0x11111111 && trigger.fields.srcMemoryId == 6 && trigger.fields.dstMemoryId == 5);
  EXPECT(trigger.fields.type == both && trigger.fields.semaphoreId == 7 && trigger.fields.reserved == 0);
  EXPECT(fifo.push(trigger) == 0);
  ProxyTrigger other;
  other.fst = 17, other.snd = 0;
  other.fields.type = TriggerSync;
  other.fields.semaphoreId = 0x3ff;
  EXPECT(other.snd == (4ull << 50 | 0x3ffull << 53) && fifo.push(other) == 1);
  EXPECT(fifo.size == 1u << fifo.sizeShift && fifo.sizeMask == fifo.size - 1);
  EXPECT(fifo.sync(1, -1) && fifo.poll(0));
}

// One thread uses the macros.
extern "C" __global__ void ported_macros(unsigned int* wrong) {
  MSCCLPP_ASSERT_DEVICE(threadIdx.x < 1024, "never");
  int polls = 0;
  POLL_MAYBE_JAILBREAK(++polls < 10, 100);
  EXPECT(polls == 10);
  OR_POLL_MAYBE_JAILBREAK(++polls < 20, polls < 15, -1);
  EXPECT(polls == 15);
#if !defined(MSCCLPP_DEVICE_COMPILE)
  EXPECT(false);
#endif
}

#if MSCCLPP_BULK_AVAILABLE

// Reduces 2 and 3, checks the result, and checks that no other element changes.
template <class T, BulkRedOp Op>
__device__ static void checkReduction(uint8_t* memory, T there, T stored, T expected, unsigned int* wrong) {
  alignas(16) __shared__ uint8_t source[64];
  constexpr uint32_t count = 64 / sizeof(T);
  T* const target = reinterpret_cast<T*>(memory);
  for (uint32_t i = threadIdx.x; i < count + 16 / sizeof(T); i += blockDim.x) target[i] = there;
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) reinterpret_cast<T*>(source)[i] = stored;
  // This also orders the accesses to the target, which is in memory of the device.
  detail::bulkFenceAll();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulkReduceStore<T, Op>(target, source, 64);
    bulkStoreCommit();
    bulkStoreWait();
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count + 16 / sizeof(T); i += blockDim.x) {
    EXPECT(static_cast<float>(target[i]) == static_cast<float>(i < count ? expected : there));
  }
  __syncthreads();
}

// One block of at least 32 threads. `memory`: 65,536 bytes of this device, 16-byte aligned.
extern "C" __global__ void ported_bulk(uint8_t* memory, unsigned int* wrong) {
  alignas(128) __shared__ uint8_t stage[4096];
  __shared__ BulkBarrier barrier, other;
  EXPECT(bulkAligned(memory) && !bulkAligned(memory + 8));
  for (uint32_t i = threadIdx.x; i < 16384; i += blockDim.x) memory[i] = static_cast<uint8_t>(i * 3 + i / 256);
  __syncthreads();
  uint32_t phase = 0;
  if (threadIdx.x == 0) {
    detail::bulkFenceAll();
    barrier.init();
    other.relaxedInit(2);
    bulkFence();
    barrier.arriveAndExpect(4096);
    bulkLoad(stage, memory, 4096, barrier);
    EXPECT(barrier.wait(phase) && phase == 1 && barrier.poll(0) && !barrier.poll(1));
    bulkStore(memory + 32768, stage, 2048);
    bulkStoreCommit();
    bulkStore(memory + 32768 + 2048, stage + 2048, 2048);
    bulkStoreCommit();
    bulkStoreWaitSource<1>();
    bulkStoreWaitSource();
    // This is the other way to expect bytes.
    barrier.expect(1024);
    bulkLoad(stage, memory + 8192, 1024, barrier);
    EXPECT(!barrier.wait(phase, 10) && phase == 1);
    barrier.arrive();
    EXPECT(barrier.wait(phase) && phase == 0);
    bulkStoreWait<1>();
    bulkStoreWait<0>();
    // The phase needs two arrivals.
    other.arrive();
    EXPECT(!other.poll(0));
    other.arrive();
    EXPECT(other.poll(0));
    barrier.invalidate();
    other.invalidate();
    for (int i = 0; i < 4096; ++i) EXPECT(memory[32768 + i] == memory[i]);
    for (int i = 0; i < 1024; ++i) EXPECT(stage[i] == memory[8192 + i]);
  }
  __syncthreads();
  checkReduction<float, BulkRedOp::Add>(memory, 2.0f, 3.0f, 5.0f, wrong);
  checkReduction<uint32_t, BulkRedOp::Add>(memory, 2, 3, 5, wrong);
#if HALVES
  checkReduction<__nv_bfloat16, BulkRedOp::Add>(memory, 2.0f, 3.0f, 5.0f, wrong);
  checkReduction<__half, BulkRedOp::Add>(memory, 2.0f, 3.0f, 5.0f, wrong);
  checkReduction<__half, BulkRedOp::Max>(memory, 2.0f, 3.0f, 3.0f, wrong);
  checkReduction<__nv_bfloat16, BulkRedOp::Min>(memory, 2.0f, 3.0f, 2.0f, wrong);
#endif
  checkReduction<int, BulkRedOp::Min>(memory, 2, -3, -3, wrong);
  checkReduction<uint32_t, BulkRedOp::Max>(memory, 2, 0xfffffffd, 0xfffffffd, wrong);
  checkReduction<int64_t, BulkRedOp::Max>(memory, -2, 3, 3, wrong);
  checkReduction<uint64_t, BulkRedOp::Add>(memory, 2, 3, 5, wrong);
  checkReduction<uint32_t, BulkRedOp::And>(memory, 2, 3, 2, wrong);
  checkReduction<uint64_t, BulkRedOp::Or>(memory, 4, 3, 7, wrong);
  checkReduction<int, BulkRedOp::Xor>(memory, 2, 3, 1, wrong);
}

// ANCHOR: bulk
// A warp that puts and gets by bulk copies, at any alignment: `bytes` from `origin` of this side's memory to `target` of
// the peer's, and back to `back`. It needs as much dynamic shared memory as a BulkStage<1024, 4> is large.
extern "C" __global__ void ported_bulk_channel(DeviceHandle<MemoryChannel> channel, uint64_t target, uint64_t origin,
                                               uint64_t back, uint64_t bytes) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  BulkStage<1024, 4>& stage = *reinterpret_cast<BulkStage<1024, 4>*>(dynamic);
  channel.putBulk(target, origin, bytes, stage);
  channel.getBulk(back, target, bytes, stage);
}
// ANCHOR_END: bulk

#endif
