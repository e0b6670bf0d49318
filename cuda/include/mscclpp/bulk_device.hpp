// Bulk asynchronous copies between global and shared memory: one thread starts a copy of many bytes, and the hardware
// does it meanwhile. They need compute capability 9.0; on simulated devices they are plain copies.
//
// Loads, from global to shared memory, tell a BulkBarrier when they are complete. Stores, from shared to global memory,
// a peer's included, are put into groups by the thread that started them, which then waits for its groups.
//
//     alignas(128) __shared__ uint8_t stage[4096];
//     __shared__ mscclpp::BulkBarrier barrier;
//     if (threadIdx.x == 0) {
//       uint32_t phase = 0;
//       barrier.init();
//       barrier.arriveAndExpect(4096);
//       mscclpp::bulkLoad(stage, source, 4096, barrier);
//       barrier.wait(phase);
//       mscclpp::bulkStore(target, stage, 4096);
//       mscclpp::bulkStoreCommit();
//       mscclpp::bulkStoreWait();
//     }
//
// Bulk copies access memory by a way of their own, the asynchronous proxy. Ordinary accesses before a bulk copy of the
// same shared memory are ordered with it only by a bulkFence between them, in the thread that made them. Data that a
// complete load or store has written is visible to the ordinary accesses of each thread that has seen the completion:
// by BulkBarrier's `wait` or `poll`, or by bulkStoreWait.

#ifndef MSCCLPP_BULK_DEVICE_HPP_
#define MSCCLPP_BULK_DEVICE_HPP_

#include "mscclpp/access_device.hpp"
#include "mscclpp/copy_device.hpp"
#include "mscclpp/group_device.hpp"
#include "mscclpp/poll_device.hpp"

// Whether the functions below exist. nvcc's pass for the host declares them too, since it reads the kernels.
#if defined(MSCCLPP_DEVICE_SIM) || \
    (defined(MSCCLPP_DEVICE_CUDA) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900))
#define MSCCLPP_BULK_AVAILABLE 1
#else
#define MSCCLPP_BULK_AVAILABLE 0
#endif

#if MSCCLPP_BULK_AVAILABLE

namespace mscclpp {

// The operation by which bulkReduceStore combines the value in memory with the value that it stores.
enum class BulkRedOp { Add, Min, Max, And, Or, Xor };

// Whether the address can be one of a bulk copy: a multiple of 16. The numbers of bytes are multiples of 16, too.
MSCCLPP_DEVICE_INLINE bool bulkAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

#if defined(MSCCLPP_DEVICE_CUDA)

namespace detail {

MSCCLPP_DEVICE_INLINE uint32_t sharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Orders the ordinary accesses of this thread to all memory, and what it had acquired, with its bulk copies.
MSCCLPP_DEVICE_INLINE void bulkFenceAll() { asm volatile("fence.proxy.async;" : : : "memory"); }

}  // namespace detail

// Orders this thread's ordinary accesses to shared memory with bulk copies that follow: its own, or after a barrier
// those of other threads.
MSCCLPP_DEVICE_INLINE void bulkFence() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

// The barrier, in shared memory, that bulk loads complete. It counts rounds, which are called phases: one ends when as
// many arrivals have come as `init` said, and as many bytes as were expected. A waiting thread keeps the parity of the
// phase it waits for, 0 at first.
struct alignas(8) BulkBarrier {
  uint64_t state_;

  // Makes the barrier ready. One thread calls it; the others use the barrier after a barrier of the block.
  MSCCLPP_DEVICE_INLINE void init(uint32_t arriveCount = 1) {
    relaxedInit(arriveCount);
    bulkFence();
  }
  // Makes the barrier ready without a fence: several barriers can share one, by a bulkFence after the last.
  MSCCLPP_DEVICE_INLINE void relaxedInit(uint32_t arriveCount = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(at()), "r"(arriveCount) : "memory");
  }
  // Makes its memory ordinary memory again. One thread calls it when no thread uses the barrier any more; also before
  // another `init`.
  MSCCLPP_DEVICE_INLINE void invalidate() {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" : : "r"(at()) : "memory");
  }

  // Expects so many more bytes in this phase.
  MSCCLPP_DEVICE_INLINE void expect(uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" : : "r"(at()), "r"(bytes) : "memory");
  }
  // Arrives, with release for the block, and does not wait.
  MSCCLPP_DEVICE_INLINE void arrive() {
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared::cta.b64 state, [%0];\n\t}"
                 :
                 : "r"(at())
                 : "memory");
  }
  // Arrives and expects bytes in one operation.
  MSCCLPP_DEVICE_INLINE void arriveAndExpect(uint32_t bytes) {
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n\t}"
                 :
                 : "r"(at()), "r"(bytes)
                 : "memory");
  }

  // Whether the phase of this parity is over; acquires if so.
  MSCCLPP_DEVICE_INLINE bool poll(uint32_t phase) const {
    uint32_t over;
    asm volatile(
        "{\n\t.reg .pred over;\n\tmbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, over;\n\t}"
        : "=r"(over)
        : "r"(at()), "r"(phase)
        : "memory");
    return over != 0;
  }
  // Waits until the phase of this parity is over, flips `phase` and returns true. Returns false, and leaves `phase` as
  // it is, when the phase was not over within maxSpinCount polls, if that is not negative.
  template <class Phase>
  MSCCLPP_DEVICE_INLINE bool wait(Phase& phase, int64_t maxSpinCount = -1) const {
    const uint32_t parity = static_cast<uint32_t>(phase);
    if (!poll(parity) && !pollUntil<1>([&] { return poll(parity); }, maxSpinCount, nullptr)) return false;
    phase ^= 1;
    return true;
  }

 private:
  MSCCLPP_DEVICE_INLINE uint32_t at() const { return detail::sharedAddress(this); }
};

// Starts a load from global memory, a peer's included, to shared memory. `barrier` gets the bytes when they have come,
// and must expect them.
MSCCLPP_DEVICE_INLINE void bulkLoad(void* dstShared, const void* srcGlobal, uint32_t bytes, BulkBarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(detail::sharedAddress(dstShared)), "l"(detail::globalAddress(srcGlobal)), "r"(bytes),
                 "r"(detail::sharedAddress(&barrier))
               : "memory");
}

// Starts a store from shared memory to global memory, a peer's included. It belongs to the next group that this thread
// commits.
MSCCLPP_DEVICE_INLINE void bulkStore(void* dstGlobal, const void* srcShared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(detail::globalAddress(dstGlobal)), "r"(detail::sharedAddress(srcShared)), "r"(bytes)
               : "memory");
}

// Makes a group of the stores that this thread has started since the last group.
MSCCLPP_DEVICE_INLINE void bulkStoreCommit() { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }

// Waits until all groups of this thread but at most the last PendingGroups have completed their writes. A signal after
// that carries the data of these groups.
template <int PendingGroups = 0>
MSCCLPP_DEVICE_INLINE void bulkStoreWait() {
  asm volatile("cp.async.bulk.wait_group %0;" : : "n"(PendingGroups) : "memory");
}

// Waits until all groups of this thread but at most the last PendingGroups have read their sources, which may then be
// used again.
template <int PendingGroups = 0>
MSCCLPP_DEVICE_INLINE void bulkStoreWaitSource() {
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(PendingGroups) : "memory");
}

// Starts a store that does not overwrite: each element of the global memory, a peer's included, is combined by Op with
// the element that is stored, as if by a relaxed atomic access of this device; the order among several is open. It
// belongs to a group, like a bulkStore.
//
// T and Op: float, double, 16-bit floats and integers of 4 and 8 bytes are added; of 16-bit floats and integers the
// minimum or maximum is taken; integers are and-ed, or-ed and xor-ed. Other pairs do not compile for GPUs.
template <class T, BulkRedOp Op = BulkRedOp::Add>
MSCCLPP_DEVICE_INLINE void bulkReduceStore(void* dstGlobal, const void* srcShared, uint32_t bytes) = delete;

#define MSCCLPP_BULK_RED(TYPE, OP, SUFFIX)                                                                     \
  template <>                                                                                                  \
  MSCCLPP_DEVICE_INLINE void bulkReduceStore<TYPE, BulkRedOp::OP>(void* dstGlobal, const void* srcShared,      \
                                                                  uint32_t bytes) {                            \
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." SUFFIX " [%0], [%1], %2;"              \
                 :                                                                                             \
                 : "l"(detail::globalAddress(dstGlobal)), "r"(detail::sharedAddress(srcShared)), "r"(bytes)    \
                 : "memory");                                                                                  \
  }
#define MSCCLPP_BULK_RED_INTEGER(TYPE, SIGN, BITS) \
  MSCCLPP_BULK_RED(TYPE, Add, "add.u" BITS)        \
  MSCCLPP_BULK_RED(TYPE, Min, "min." SIGN BITS)    \
  MSCCLPP_BULK_RED(TYPE, Max, "max." SIGN BITS)    \
  MSCCLPP_BULK_RED(TYPE, And, "and.b" BITS)        \
  MSCCLPP_BULK_RED(TYPE, Or, "or.b" BITS)          \
  MSCCLPP_BULK_RED(TYPE, Xor, "xor.b" BITS)
MSCCLPP_BULK_RED(float, Add, "add.f32")
MSCCLPP_BULK_RED(double, Add, "add.f64")
MSCCLPP_BULK_RED(__half, Add, "add.noftz.f16")
MSCCLPP_BULK_RED(__half, Min, "min.f16")
MSCCLPP_BULK_RED(__half, Max, "max.f16")
MSCCLPP_BULK_RED(__nv_bfloat16, Add, "add.noftz.bf16")
MSCCLPP_BULK_RED(__nv_bfloat16, Min, "min.bf16")
MSCCLPP_BULK_RED(__nv_bfloat16, Max, "max.bf16")
MSCCLPP_BULK_RED_INTEGER(unsigned int, "u", "32")
MSCCLPP_BULK_RED_INTEGER(int, "s", "32")
MSCCLPP_BULK_RED_INTEGER(unsigned long, "u", "64")
MSCCLPP_BULK_RED_INTEGER(unsigned long long, "u", "64")
MSCCLPP_BULK_RED_INTEGER(long, "s", "64")
MSCCLPP_BULK_RED_INTEGER(long long, "s", "64")
#undef MSCCLPP_BULK_RED
#undef MSCCLPP_BULK_RED_INTEGER

#else

// The functions of the CUDA branch, which has their comments, for a simulated device: a copy is complete when it has
// been started. The threads of a block, which share its memory, take turns, so the barrier needs no atomic accesses.
namespace detail {

MSCCLPP_DEVICE_INLINE void bulkFenceAll() { mscclpp_sim::tellBulk(mscclpp_sim::Bulk::FenceAll); }

// Fails the kernel unless addresses and size suit a bulk copy, and the kernel may touch both ranges.
MSCCLPP_DEVICE_INLINE void checkBulk(const void* dst, const void* src, uint32_t bytes) {
  if (!bulkAligned(dst) || !bulkAligned(src) || bytes % 16 != 0) {
    mscclpp_sim::trap("the addresses and the size of a bulk copy are multiples of 16 bytes");
  }
  if (bytes == 0) return;
  mscclpp_sim::check(src, 16, 0);
  mscclpp_sim::check(static_cast<const uint8_t*>(src) + bytes - 16, 16, 0);
  mscclpp_sim::check(dst, 16, 1);
  mscclpp_sim::check(static_cast<uint8_t*>(const_cast<void*>(dst)) + bytes - 16, 16, 1);
}

MSCCLPP_DEVICE_INLINE void copyBulk(void* dst, const void* src, uint32_t bytes) {
  checkBulk(dst, src, bytes);
  const mscclpp_sim::Silence silence;
  for (uint32_t i = 0; i < bytes; i += 16) {
    store16(static_cast<uint8_t*>(dst) + i, load16(static_cast<const uint8_t*>(src) + i));
  }
}

}  // namespace detail

MSCCLPP_DEVICE_INLINE void bulkFence() { mscclpp_sim::tellBulk(mscclpp_sim::Bulk::Fence); }

struct alignas(8) BulkBarrier {
  // The arrivals of each phase, and the arrivals that this phase still lacks. 8 bytes, as on a GPU.
  uint64_t arrivals_ : 20;
  uint64_t missing_ : 20;
  int64_t bytes_ : 23;
  uint64_t phase_ : 1;

  // The race detector sees what a thread does with the barrier, and not the accesses that implement it.
  MSCCLPP_DEVICE_INLINE void init(uint32_t arriveCount = 1) {
    relaxedInit(arriveCount);
    bulkFence();
  }
  MSCCLPP_DEVICE_INLINE void relaxedInit(uint32_t arriveCount = 1) {
    mscclpp_sim::tellBulk(mscclpp_sim::Bulk::Init, nullptr, nullptr, 0, this);
    const mscclpp_sim::Silence silence;
    arrivals_ = missing_ = arriveCount;
    bytes_ = 0;
    phase_ = 0;
  }
  MSCCLPP_DEVICE_INLINE void invalidate() {
    mscclpp_sim::tellBulk(mscclpp_sim::Bulk::Init, nullptr, nullptr, 0, this);
    const mscclpp_sim::Silence silence;
    arrivals_ = missing_ = 0;
  }
  MSCCLPP_DEVICE_INLINE void expect(uint32_t bytes) { add(bytes); }
  MSCCLPP_DEVICE_INLINE void arrive() { arriveAndExpect(0); }
  MSCCLPP_DEVICE_INLINE void arriveAndExpect(uint32_t bytes) {
    mscclpp_sim::tellBulk(mscclpp_sim::Bulk::Arrive, nullptr, nullptr, 0, this);
    const mscclpp_sim::Silence silence;
    if (missing_ == 0) mscclpp_sim::trap("more arrivals at a BulkBarrier than its init said, or none was made");
    bytes_ = bytes_ + static_cast<int64_t>(bytes);
    missing_ = missing_ - 1;
    settle();
  }
  // Adds bytes that are expected, or, if negative, that have come.
  MSCCLPP_DEVICE_INLINE void add(int64_t bytes) {
    const mscclpp_sim::Silence silence;
    bytes_ = bytes_ + bytes;
    settle();
  }
  MSCCLPP_DEVICE_INLINE bool poll(uint32_t phase) const {
    bool over = false;
    {
      const mscclpp_sim::Silence silence;
      over = phase_ != (phase & 1);
    }
    if (over) mscclpp_sim::tellBulk(mscclpp_sim::Bulk::Complete, nullptr, nullptr, 0, this);
    return over;
  }
  template <class Phase>
  MSCCLPP_DEVICE_INLINE bool wait(Phase& phase, int64_t maxSpinCount = -1) const {
    const uint32_t parity = static_cast<uint32_t>(phase);
    if (!poll(parity) && !pollUntil<1>([&] { return poll(parity); }, maxSpinCount, nullptr)) return false;
    phase ^= 1;
    return true;
  }

 private:
  // Ends the phase when it is complete.
  MSCCLPP_DEVICE_INLINE void settle() {
    if (missing_ != 0 || bytes_ != 0) return;
    missing_ = arrivals_;
    phase_ = phase_ ^ 1;
  }
};

MSCCLPP_DEVICE_INLINE void bulkLoad(void* dstShared, const void* srcGlobal, uint32_t bytes, BulkBarrier& barrier) {
  mscclpp_sim::tellBulk(mscclpp_sim::Bulk::Load, dstShared, srcGlobal, bytes, &barrier);
  detail::copyBulk(dstShared, srcGlobal, bytes);
  barrier.add(-static_cast<int64_t>(bytes));
}
MSCCLPP_DEVICE_INLINE void bulkStore(void* dstGlobal, const void* srcShared, uint32_t bytes) {
  mscclpp_sim::tellBulk(mscclpp_sim::Bulk::Store, dstGlobal, srcShared, bytes);
  detail::copyBulk(dstGlobal, srcShared, bytes);
}
MSCCLPP_DEVICE_INLINE void bulkStoreCommit() { mscclpp_sim::tellBulk(mscclpp_sim::Bulk::Commit); }
template <int PendingGroups = 0>
MSCCLPP_DEVICE_INLINE void bulkStoreWait() {
  mscclpp_sim::tellBulk(mscclpp_sim::Bulk::Wait, nullptr, nullptr, PendingGroups);
}
template <int PendingGroups = 0>
MSCCLPP_DEVICE_INLINE void bulkStoreWaitSource() {
  mscclpp_sim::tellBulk(mscclpp_sim::Bulk::WaitSource, nullptr, nullptr, PendingGroups);
}

template <class T, BulkRedOp Op = BulkRedOp::Add>
MSCCLPP_DEVICE_INLINE void bulkReduceStore(void* dstGlobal, const void* srcShared, uint32_t bytes) {
  constexpr bool IsWide = detail::isSame<T, float> || detail::isSame<T, double>;
  constexpr bool IsHalf = detail::isSame<T, __half> || detail::isSame<T, __nv_bfloat16>;
  static_assert(Op == BulkRedOp::Add || !IsWide, "a GPU adds floats, and does nothing else with them here");
  static_assert(Op <= BulkRedOp::Max || !IsHalf, "a GPU adds 16-bit floats, and takes their minimum and maximum");
  mscclpp_sim::tellBulk(mscclpp_sim::Bulk::ReduceStore, dstGlobal, srcShared, bytes);
  detail::checkBulk(dstGlobal, srcShared, bytes);
  const mscclpp_sim::Silence silence;
  T* const target = static_cast<T*>(dstGlobal);
  const T* const source = static_cast<const T*>(srcShared);
  for (uint32_t i = 0; i < bytes / sizeof(T); ++i) {
    const T value = source[i];
    mscclpp_sim::update(
        target + i,
        [value](T there) -> T {
          if constexpr (Op == BulkRedOp::Add) return there + value;
          if constexpr (Op == BulkRedOp::Min) return value < there ? value : there;
          if constexpr (Op == BulkRedOp::Max) return there < value ? value : there;
          if constexpr (Op == BulkRedOp::And) return there & value;
          if constexpr (Op == BulkRedOp::Or) return there | value;
          if constexpr (Op == BulkRedOp::Xor) return there ^ value;
        },
        mscclpp_sim::Scope::Device);
  }
}

#endif

namespace detail {

// Copies `bytes` bytes between global memories, a peer's included, through shared memory: in chunks of ChunkBytes, of
// which Stages are under way at once. One thread calls it; addresses and size are multiples of 16, and all data has
// arrived when it returns.
//
// A chunk is loaded into the stage of the chunk `Stages` before it, as soon as that one's store has read it. The loop
// waits for the store before the last one: waiting for the last one, which has only just begun, would make the copy
// much slower.
//
// The order of memory. The bulkFenceAll before the copy orders the source of the loads, and the barriers, with what
// this thread wrote or had acquired. The bulkStoreWait after it returns when the writes are complete, which orders them
// before what this thread does next, such as a signal with release at system scope. The fence after that does the same
// for ordinary accesses, which PTX orders with bulk copies by a fence alone.
template <uint32_t ChunkBytes, uint32_t Stages>
MSCCLPP_DEVICE_INLINE void copyThroughStages(uint8_t* dst, const uint8_t* src, uint64_t bytes, uint8_t* stages,
                                             BulkBarrier* full) {
  static_assert(ChunkBytes % 16 == 0 && Stages >= 2, "chunks of multiples of 16 bytes, at least 2 of them");
  if (bytes == 0) return;
  const uint64_t count = (bytes + ChunkBytes - 1) / ChunkBytes;
  const uint32_t last = static_cast<uint32_t>(bytes - (count - 1) * ChunkBytes);
  const auto load = [&](uint64_t chunk, uint32_t stage) {
    const uint32_t size = chunk + 1 == count ? last : ChunkBytes;
    full[stage].arriveAndExpect(size);
    bulkLoad(stages + stage * ChunkBytes, src + chunk * ChunkBytes, size, full[stage]);
  };
#pragma unroll
  for (uint32_t stage = 0; stage < Stages; ++stage) full[stage].relaxedInit();
  bulkFenceAll();
#pragma unroll
  for (uint32_t stage = 0; stage < Stages; ++stage) {
    if (stage < count) load(stage, stage);
  }
  uint32_t phase = 0;
#pragma unroll 1
  for (uint64_t first = 0; first < count; first += Stages) {
#pragma unroll
    for (uint32_t stage = 0; stage < Stages; ++stage) {
      const uint64_t chunk = first + stage;
      if (chunk < count) {
        // The hardware ends this wait.
        while (!full[stage].poll(phase)) {
        }
        bulkStore(dst + chunk * ChunkBytes, stages + stage * ChunkBytes, chunk + 1 == count ? last : ChunkBytes);
        bulkStoreCommit();
        if (chunk != 0 && chunk - 1 + Stages < count) {
          bulkStoreWaitSource<1>();
          load(chunk - 1 + Stages, (stage + Stages - 1) % Stages);
        }
      }
    }
    phase ^= 1;
  }
  bulkStoreWait();
  bulkFenceAll();
#pragma unroll
  for (uint32_t stage = 0; stage < Stages; ++stage) full[stage].invalidate();
}

}  // namespace detail

// The shared memory through which a warp moves data between global memories: `Stages` chunks of ChunkBytes, at a
// multiple of 128. Each warp that moves data has one. Its contents between two calls do not matter. With the default
// sizes, 98,432 bytes, 8 warps fill a link of 18 NVLinks.
template <uint32_t ChunkBytes = 16384, uint32_t Stages = 6>
struct BulkStage {
  alignas(128) uint8_t chunks[Stages * ChunkBytes];
  BulkBarrier full[Stages];
};

// Copies `bytes` bytes from `src` to `dst`, which do not overlap, both in global memory, a peer's included, by the 32
// threads of the calling warp: by bulk copies where the addresses are the same modulo 16, else as `copy` does. All data
// has arrived when it returns, and a signal of any of these threads carries it.
template <uint32_t ChunkBytes, uint32_t Stages>
MSCCLPP_DEVICE_INLINE void copyByBulk(void* dst, const void* src, uint64_t bytes,
                                      BulkStage<ChunkBytes, Stages>& stage) {
  uint8_t* const to = static_cast<uint8_t*>(dst);
  const uint8_t* const from = static_cast<const uint8_t*>(src);
  const uintptr_t toAddress = reinterpret_cast<uintptr_t>(dst);
  const bool bulk = (toAddress ^ reinterpret_cast<uintptr_t>(src)) % 16 == 0 && bytes >= 32;
  const uint64_t head = bulk ? (0 - toAddress) % 16 : bytes;
  const uint64_t middle = (bytes - head) / 16 * 16;
  // The thread that copies sees what the other threads of the warp have written or acquired, and they see what it has
  // copied.
  warpSync();
  if (laneId() == 0 && middle != 0) {
    detail::copyThroughStages<ChunkBytes, Stages>(to + head, from + head, middle, stage.chunks, stage.full);
  }
  if (head != 0) copy<16, true>(static_cast<void*>(to), from, head, laneId(), 32);
  if (head + middle != bytes) {
    copy<16, true>(static_cast<void*>(to + head + middle), from + head + middle, bytes - head - middle, laneId(), 32);
  }
  warpSync();
}

}  // namespace mscclpp

#else

namespace mscclpp {

// The struct alone, without methods, where the functions above do not exist: so structs with a barrier keep their size.
struct alignas(8) BulkBarrier {
  uint64_t state_;
};

}  // namespace mscclpp

#endif  // MSCCLPP_BULK_AVAILABLE

#endif  // MSCCLPP_BULK_DEVICE_HPP_
