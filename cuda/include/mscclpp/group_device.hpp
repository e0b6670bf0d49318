// The functions that the threads of a warp or of a block do together.

#ifndef MSCCLPP_GROUP_DEVICE_HPP_
#define MSCCLPP_GROUP_DEVICE_HPP_

#include "mscclpp/device.hpp"

#if defined(MSCCLPP_DEVICE_CUDA)

namespace mscclpp {

// The number of the calling thread in its warp.
MSCCLPP_DEVICE_INLINE uint32_t laneId() {
  uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// Whether no other thread of the warp does this in the same instruction. Correctness must not depend on it: threads of
// a warp may come one after the other at any time.
MSCCLPP_DEVICE_INLINE bool aloneInWarp() {
  const uint32_t active = __activemask();
  return (active & (active - 1)) == 0;
}

// The functions of a warp are written as instructions, not with the compiler's functions for them. nvcc may split a
// loop with such functions in two, if a condition in the loop stays the same: threads of one warp are then in different
// loops and wait for each other for ever. It does not do so with instructions.

// Brings the 32 threads of a warp together: they then run in lockstep, until they branch apart.
MSCCLPP_DEVICE_INLINE void warpSync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// Whether `value` is true in any thread of the warp. All 32 call it.
MSCCLPP_DEVICE_INLINE bool warpAny(bool value) {
  uint32_t any;
  asm volatile(
      "{\n\t.reg .pred value;\n\tsetp.ne.u32 value, %1, 0;\n\tvote.sync.any.pred value, value, 0xffffffff;\n\t"
      "selp.u32 %0, 1, 0, value;\n\t}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(value)));
  return any != 0;
}

// Returns the `value` of thread number `thread` modulo 32 of the warp. All 32 call it.
MSCCLPP_DEVICE_INLINE uint32_t warpShuffle(uint32_t value, uint32_t thread) {
  uint32_t other;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(other) : "r"(value), "r"(thread));
  return other;
}
MSCCLPP_DEVICE_INLINE uint64_t warpShuffle(uint64_t value, uint32_t thread) {
  const uint32_t low = warpShuffle(static_cast<uint32_t>(value), thread);
  return low | static_cast<uint64_t>(warpShuffle(static_cast<uint32_t>(value >> 32), thread)) << 32;
}

// Returns `load()`, which the 32 threads of a warp do in one instruction, once they have met. All 32 call it.
template <class Load>
MSCCLPP_DEVICE_INLINE auto warpAtOnce(Load load) {
  return load();
}

// Whether the calling thread is the first of its block, and its block the first of the grid.
MSCCLPP_DEVICE_INLINE bool isFirstOfBlock() { return (threadIdx.x | threadIdx.y | threadIdx.z) == 0; }
MSCCLPP_DEVICE_INLINE bool isFirstBlock() { return (blockIdx.x | blockIdx.y | blockIdx.z) == 0; }

// The calling thread's number in its block, and the number of threads of the block.
MSCCLPP_DEVICE_INLINE uint32_t threadOfBlock() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
MSCCLPP_DEVICE_INLINE uint32_t threadsOfBlock() { return blockDim.x * blockDim.y * blockDim.z; }

// The number of the calling thread's block in a grid of one dimension, and the number of blocks.
MSCCLPP_DEVICE_INLINE uint32_t blockOfGrid() { return blockIdx.x; }
MSCCLPP_DEVICE_INLINE uint32_t blocksOfGrid() { return gridDim.x; }

// A barrier of the block, which returns to every thread whether `value` is true in any. All threads call it.
MSCCLPP_DEVICE_INLINE bool blockAny(bool value) { return __syncthreads_or(value) != 0; }

// A barrier of the block. All threads call it.
MSCCLPP_DEVICE_INLINE void blockSync() { __syncthreads(); }

}  // namespace mscclpp

#elif defined(MSCCLPP_DEVICE_HIP)

namespace mscclpp {

// The functions of the CUDA branch, which has their comments. A warp is 32 threads here, too: on GPUs whose wavefronts
// have 64, a wavefront is two warps, whose results do not depend on each other. Nothing here asks for the size of a
// wavefront, and none is smaller.
namespace detail {
// The number of the calling thread in its wavefront.
MSCCLPP_DEVICE_INLINE uint32_t threadOfWavefront() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}
}  // namespace detail
MSCCLPP_DEVICE_INLINE uint32_t laneId() { return detail::threadOfWavefront() % 32; }
MSCCLPP_DEVICE_INLINE bool aloneInWarp() {
  const uint64_t active = __builtin_amdgcn_ballot_w64(true);
  return (active & (active - 1)) == 0;
}
// The threads of a wavefront are always in lockstep. The fences keep the compiler from moving accesses across.
MSCCLPP_DEVICE_INLINE void warpSync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
MSCCLPP_DEVICE_INLINE bool warpAny(bool value) {
  const uint64_t votes = __builtin_amdgcn_ballot_w64(value);
  return static_cast<uint32_t>(votes >> (detail::threadOfWavefront() & 32)) != 0;
}
MSCCLPP_DEVICE_INLINE uint32_t warpShuffle(uint32_t value, uint32_t thread) {
  // The instruction names a thread of the wavefront by 4 times its number.
  const int from = static_cast<int>(((detail::threadOfWavefront() & 32) + thread % 32) * 4);
  return static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(from, static_cast<int>(value)));
}
MSCCLPP_DEVICE_INLINE uint64_t warpShuffle(uint64_t value, uint32_t thread) {
  const uint32_t low = warpShuffle(static_cast<uint32_t>(value), thread);
  return low | static_cast<uint64_t>(warpShuffle(static_cast<uint32_t>(value >> 32), thread)) << 32;
}
template <class Load>
MSCCLPP_DEVICE_INLINE auto warpAtOnce(Load load) {
  return load();
}
MSCCLPP_DEVICE_INLINE bool isFirstOfBlock() {
  return (__builtin_amdgcn_workitem_id_x() | __builtin_amdgcn_workitem_id_y() | __builtin_amdgcn_workitem_id_z()) == 0;
}
MSCCLPP_DEVICE_INLINE bool isFirstBlock() {
  return (__builtin_amdgcn_workgroup_id_x() | __builtin_amdgcn_workgroup_id_y() | __builtin_amdgcn_workgroup_id_z()) == 0;
}
MSCCLPP_DEVICE_INLINE uint32_t threadOfBlock() {
  return (__builtin_amdgcn_workitem_id_z() * __builtin_amdgcn_workgroup_size_y() + __builtin_amdgcn_workitem_id_y()) *
             __builtin_amdgcn_workgroup_size_x() +
         __builtin_amdgcn_workitem_id_x();
}
MSCCLPP_DEVICE_INLINE uint32_t threadsOfBlock() {
  return __builtin_amdgcn_workgroup_size_x() * __builtin_amdgcn_workgroup_size_y() * __builtin_amdgcn_workgroup_size_z();
}
MSCCLPP_DEVICE_INLINE uint32_t blockOfGrid() { return __builtin_amdgcn_workgroup_id_x(); }
MSCCLPP_DEVICE_INLINE uint32_t blocksOfGrid() {
  return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}
MSCCLPP_DEVICE_INLINE void blockSync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
MSCCLPP_DEVICE_INLINE bool blockAny(bool value) {
  static __attribute__((shared)) uint32_t any;
  if (isFirstOfBlock()) any = 0;
  blockSync();
  if (value) __hip_atomic_store(&any, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  blockSync();
  const bool result = any != 0;
  blockSync();
  return result;
}

}  // namespace mscclpp

#elif defined(MSCCLPP_DEVICE_SIM)

namespace mscclpp {

// The functions of the CUDA branch, which has their comments. Threads take turns, in the order of their number: a store
// that the threads of a warp make after a barrier is made by one after the other, the thread with a line's flag last.
MSCCLPP_DEVICE_INLINE uint32_t laneId() { return mscclpp_sim::self()->lane; }
MSCCLPP_DEVICE_INLINE bool aloneInWarp() { return mscclpp_sim::self()->threadsOfWarp == 1; }
MSCCLPP_DEVICE_INLINE void warpSync() { __syncwarp(); }
MSCCLPP_DEVICE_INLINE bool warpAny(bool value) { return __any_sync(0xffffffffu, value) != 0; }
MSCCLPP_DEVICE_INLINE uint64_t warpShuffle(uint64_t value, uint32_t thread) {
  return __shfl_sync(0xffffffffu, value, static_cast<int>(thread));
}
MSCCLPP_DEVICE_INLINE uint32_t warpShuffle(uint32_t value, uint32_t thread) {
  return static_cast<uint32_t>(warpShuffle(static_cast<uint64_t>(value), thread));
}
// The threads with the flag of a line load before the others, so that they find a line as it was before a store or
// after.
template <class Load>
MSCCLPP_DEVICE_INLINE auto warpAtOnce(Load load) {
  const bool hasFlag = laneId() % 8 == 7;
  decltype(load()) value;
  if (hasFlag) value = load();
  warpSync();
  if (!hasFlag) value = load();
  return value;
}
MSCCLPP_DEVICE_INLINE bool isFirstOfBlock() { return (threadIdx.x | threadIdx.y | threadIdx.z) == 0; }
MSCCLPP_DEVICE_INLINE bool isFirstBlock() { return (blockIdx.x | blockIdx.y | blockIdx.z) == 0; }
MSCCLPP_DEVICE_INLINE uint32_t threadOfBlock() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
MSCCLPP_DEVICE_INLINE uint32_t threadsOfBlock() { return blockDim.x * blockDim.y * blockDim.z; }
MSCCLPP_DEVICE_INLINE uint32_t blockOfGrid() { return blockIdx.x; }
MSCCLPP_DEVICE_INLINE uint32_t blocksOfGrid() { return gridDim.x; }
MSCCLPP_DEVICE_INLINE bool blockAny(bool value) { return __syncthreads_or(value) != 0; }
MSCCLPP_DEVICE_INLINE void blockSync() { __syncthreads(); }

}  // namespace mscclpp

#endif

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {

// Waits until everything that is in front of this launch on its stream is complete. The library launches a kernel that calls
// this so that it may begin earlier: a programmatic dependent launch, from CUDA 12.3 and compute capability 9.0 on. All threads
// call it, and before it they access nothing but parameters and shared memory. For other devices it does nothing, since no
// launch begins earlier.
MSCCLPP_DEVICE_INLINE void waitForEarlierLaunches() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_GROUP_DEVICE_HPP_
