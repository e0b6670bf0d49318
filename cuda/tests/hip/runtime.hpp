// The declarations that hiprtc puts before a kernel, as far as the kernels here use them: so that clang alone, without
// ROCm, compiles them for AMD GPUs. The result is checked, and never run.

#ifndef MSCCLPP_TESTS_HIP_RUNTIME_HPP_
#define MSCCLPP_TESTS_HIP_RUNTIME_HPP_

#define __HIPCC_RTC__ 1

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))

typedef __SIZE_TYPE__ size_t;
#if defined(MSCCLPP_HIPRTC_HAS_TYPES)
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;
#endif

struct uint2 {
  unsigned int x, y;
};
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
__device__ inline float sqrtf(float a) { return __builtin_sqrtf(a); }
__device__ inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
__device__ inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

// An index of three dimensions, whose parts are read like fields.
#define MSCCLPP_TESTS_HIP_INDEX(NAME, X, Y, Z)                                \
  struct NAME##_t {                                                           \
    struct X_t {                                                              \
      __device__ operator unsigned int() const { return X; }                  \
    };                                                                        \
    struct Y_t {                                                              \
      __device__ operator unsigned int() const { return Y; }                  \
    };                                                                        \
    struct Z_t {                                                              \
      __device__ operator unsigned int() const { return Z; }                  \
    };                                                                        \
    X_t x;                                                                    \
    Y_t y;                                                                    \
    Z_t z;                                                                    \
  };                                                                          \
  static constexpr __device__ NAME##_t NAME = {}

MSCCLPP_TESTS_HIP_INDEX(threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
                        __builtin_amdgcn_workitem_id_z());
MSCCLPP_TESTS_HIP_INDEX(blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
                        __builtin_amdgcn_workgroup_id_z());
MSCCLPP_TESTS_HIP_INDEX(blockDim, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
                        __builtin_amdgcn_workgroup_size_z());
MSCCLPP_TESTS_HIP_INDEX(gridDim, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),
                        __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),
                        __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z());
#undef MSCCLPP_TESTS_HIP_INDEX

__device__ inline void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ inline int __syncthreads_count(int predicate) {
  __shared__ unsigned int count;
  if ((threadIdx.x | threadIdx.y | threadIdx.z) == 0) count = 0;
  __syncthreads();
  __hip_atomic_fetch_add(&count, predicate != 0 ? 1u : 0u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  __syncthreads();
  const unsigned int counted = count;
  __syncthreads();
  return static_cast<int>(counted);
}
__device__ inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
__device__ inline int __syncthreads_and(int predicate) { return __syncthreads_count(predicate == 0) == 0; }
__device__ inline void __trap() { __builtin_trap(); }

__device__ inline unsigned int atomicAdd(unsigned int* address, unsigned int value) {
  return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ inline unsigned int atomicSub(unsigned int* address, unsigned int value) {
  return __hip_atomic_fetch_add(address, -value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ inline unsigned long long atomicMax(unsigned long long* address, unsigned long long value) {
  return __hip_atomic_fetch_max(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ inline unsigned int atomicCAS(unsigned int* address, unsigned int expected, unsigned int desired) {
  __hip_atomic_compare_exchange_strong(address, &expected, desired, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}
__device__ inline long long clock64() { return static_cast<long long>(__builtin_readcyclecounter()); }

#define assert(condition) ((condition) ? static_cast<void>(0) : __builtin_trap())

#endif  // MSCCLPP_TESTS_HIP_RUNTIME_HPP_
