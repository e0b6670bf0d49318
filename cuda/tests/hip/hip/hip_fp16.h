// The part of ROCm's number types that the device API uses, with ROCm's declarations, for clang alone. Its conversions of
// fp8 are not ROCm's.

#ifndef MSCCLPP_TESTS_HIP_FP16_H_
#define MSCCLPP_TESTS_HIP_FP16_H_

#include "../runtime.hpp"

struct __half_raw {
  unsigned short x;
};
struct __half2_raw {
  unsigned short x, y;
};
struct __half {
  _Float16 data;
};
struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  __device__ __half2(__half low, __half high) : x(low), y(high) {}
  __device__ __half2(const __half2_raw& raw) { __builtin_memcpy(this, &raw, 4); }
  __device__ operator __half2_raw() const {
    __half2_raw raw;
    __builtin_memcpy(&raw, this, 4);
    return raw;
  }
};
__device__ inline float2 __half22float2(__half2 a) { return {static_cast<float>(a.x.data), static_cast<float>(a.y.data)}; }
__device__ inline __half2 __float22half2_rn(float2 a) {
  return {__half{static_cast<_Float16>(a.x)}, __half{static_cast<_Float16>(a.y)}};
}
__device__ inline __half2 __hadd2(__half2 a, __half2 b) {
  return {__half{static_cast<_Float16>(a.x.data + b.x.data)}, __half{static_cast<_Float16>(a.y.data + b.y.data)}};
}

struct __hip_bfloat16 {
  unsigned short bits;
};
struct alignas(4) __hip_bfloat162 {
  __hip_bfloat16 x, y;
};
__device__ float2 __bfloat1622float2(__hip_bfloat162 a);
__device__ __hip_bfloat162 __float22bfloat162_rn(float2 a);
__device__ __hip_bfloat162 __hadd2(__hip_bfloat162 a, __hip_bfloat162 b);

typedef unsigned char __hip_fp8_storage_t;
typedef unsigned short __hip_fp8x2_storage_t;
typedef unsigned int __hip_fp8x4_storage_t;
enum __hip_saturation_t { __HIP_NOSAT, __HIP_SATFINITE };
enum __hip_fp8_interpretation_t { __HIP_E4M3_FNUZ, __HIP_E5M2_FNUZ };
#define MSCCLPP_TESTS_HIP_FP8(KIND)   \
  struct __hip_fp8_##KIND##_fnuz {    \
    __hip_fp8_storage_t __x;          \
  };                                  \
  struct __hip_fp8x2_##KIND##_fnuz {  \
    __hip_fp8x2_storage_t __x;        \
  };                                  \
  struct __hip_fp8x4_##KIND##_fnuz {  \
    __hip_fp8x4_storage_t __x;        \
  };
MSCCLPP_TESTS_HIP_FP8(e4m3)
MSCCLPP_TESTS_HIP_FP8(e5m2)
#undef MSCCLPP_TESTS_HIP_FP8
__device__ __half2_raw __hip_cvt_fp8x2_to_halfraw2(__hip_fp8x2_storage_t, __hip_fp8_interpretation_t);
__device__ __hip_fp8x2_storage_t __hip_cvt_float2_to_fp8x2(float2, __hip_saturation_t, __hip_fp8_interpretation_t);
__device__ __hip_fp8x2_storage_t __hip_cvt_halfraw2_to_fp8x2(__half2_raw, __hip_saturation_t,
                                                             __hip_fp8_interpretation_t);

#endif  // MSCCLPP_TESTS_HIP_FP16_H_
