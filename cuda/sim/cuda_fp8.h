// CUDA's numbers of 8 bits: e4m3, with a NaN and no infinity, and e5m2, the upper byte of a half. There are types of one
// number, and of two and four in a word.

#ifndef MSCCLPP_SIM_CUDA_FP8_H_
#define MSCCLPP_SIM_CUDA_FP8_H_

#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
typedef enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

// Rounds once, to the nearest, of two as near the even one.
inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double value, __nv_saturation_t saturation,
                                                 __nv_fp8_interpretation_t kind) {
  const int fraction = kind == __NV_E4M3 ? 3 : 2, bias = kind == __NV_E4M3 ? 7 : 15;
  const int largest = kind == __NV_E4M3 ? 0x7e : 0x7b;
  const unsigned char sign = __builtin_signbit(value) ? 0x80 : 0;
  const double magnitude = __builtin_fabs(value);
  if (value != value) return 0x7f;
  int exponent = magnitude == 0 || __builtin_isinf(magnitude) ? 1 - bias : __builtin_ilogb(magnitude);
  if (exponent < 1 - bias) exponent = 1 - bias;
  // A multiple of the number's last bit, and its bits, counted from the smallest number up.
  const double bits = __builtin_rint(__builtin_scalbn(magnitude, fraction - exponent)) +
                      ((exponent + bias - 1) << fraction);
  if (bits <= largest) return static_cast<unsigned char>(sign | static_cast<int>(bits));
  return static_cast<unsigned char>(sign | (saturation == __NV_SATFINITE ? largest : largest + 1));
}
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t kind) {
  if (kind == __NV_E5M2) return {static_cast<unsigned short>(bits << 8)};
  const int magnitude = bits & 0x7f, field = magnitude >> 3;
  if (magnitude == 0x7f) return {0x7fff};
  const double value = field == 0 ? __builtin_scalbn(magnitude, -9) : __builtin_scalbn(8 | (magnitude & 7), field - 10);
  return __half(bits & 0x80 ? -value : value);
}

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t saturation,
                                                __nv_fp8_interpretation_t kind) {
  return __nv_cvt_double_to_fp8(value, saturation, kind);
}
inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw value, __nv_saturation_t saturation,
                                                  __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8(__half(value), saturation, kind);
}
inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw value, __nv_saturation_t saturation,
                                                      __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8(__nv_bfloat16(value), saturation, kind);
}
#define MSCCLPP_SIM_FP8_PAIR(NAME, PAIR, CONVERT, LOW, HIGH)                                                      \
  inline __nv_fp8x2_storage_t NAME(PAIR pair, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind) {      \
    return static_cast<unsigned short>(CONVERT(LOW, saturation, kind) | CONVERT(HIGH, saturation, kind) << 8); \
  }
MSCCLPP_SIM_FP8_PAIR(__nv_cvt_double2_to_fp8x2, double2, __nv_cvt_double_to_fp8, pair.x, pair.y)
MSCCLPP_SIM_FP8_PAIR(__nv_cvt_float2_to_fp8x2, float2, __nv_cvt_float_to_fp8, pair.x, pair.y)
MSCCLPP_SIM_FP8_PAIR(__nv_cvt_halfraw2_to_fp8x2, __half2_raw, __nv_cvt_halfraw_to_fp8, __half_raw{pair.x},
                      __half_raw{pair.y})
MSCCLPP_SIM_FP8_PAIR(__nv_cvt_bfloat16raw2_to_fp8x2, __nv_bfloat162_raw, __nv_cvt_bfloat16raw_to_fp8,
                      __nv_bfloat16_raw{pair.x}, __nv_bfloat16_raw{pair.y})
#undef MSCCLPP_SIM_FP8_PAIR
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t pair, __nv_fp8_interpretation_t kind) {
  return {__nv_cvt_fp8_to_halfraw(static_cast<unsigned char>(pair), kind).x,
          __nv_cvt_fp8_to_halfraw(static_cast<unsigned char>(pair >> 8), kind).x};
}

// The types, which convert with saturation, and explicitly.
#define MSCCLPP_SIM_FP8(KIND, INTERPRETATION)                                                                        \
  struct __nv_fp8_##KIND {                                                                                            \
    __nv_fp8_storage_t __x;                                                                                           \
    __nv_fp8_##KIND() = default;                                                                                      \
    explicit __nv_fp8_##KIND(float value) : __x(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, INTERPRETATION)) {}      \
    explicit __nv_fp8_##KIND(double value) : __x(__nv_cvt_double_to_fp8(value, __NV_SATFINITE, INTERPRETATION)) {}    \
    explicit __nv_fp8_##KIND(__half value) : __nv_fp8_##KIND(static_cast<float>(value)) {}                            \
    explicit __nv_fp8_##KIND(__nv_bfloat16 value) : __nv_fp8_##KIND(static_cast<float>(value)) {}                     \
    explicit operator __half() const { return __nv_cvt_fp8_to_halfraw(__x, INTERPRETATION); }                         \
    explicit operator float() const { return static_cast<float>(static_cast<__half>(*this)); }                       \
  };                                                                                                                  \
  struct alignas(2) __nv_fp8x2_##KIND {                                                                               \
    __nv_fp8x2_storage_t __x;                                                                                         \
    __nv_fp8x2_##KIND() = default;                                                                                    \
    explicit __nv_fp8x2_##KIND(float2 pair) : __x(__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, INTERPRETATION)) {}  \
    explicit __nv_fp8x2_##KIND(__half2 pair) : __x(__nv_cvt_halfraw2_to_fp8x2(pair, __NV_SATFINITE, INTERPRETATION)) {} \
    explicit operator __half2() const { return __nv_cvt_fp8x2_to_halfraw2(__x, INTERPRETATION); }                     \
    explicit operator float2() const { return __half22float2(static_cast<__half2>(*this)); }                         \
  };                                                                                                                  \
  struct alignas(4) __nv_fp8x4_##KIND {                                                                               \
    __nv_fp8x4_storage_t __x;                                                                                         \
    __nv_fp8x4_##KIND() = default;                                                                                    \
    explicit __nv_fp8x4_##KIND(float4 four)                                                                           \
        : __x(__nv_fp8x2_##KIND(float2{four.x, four.y}).__x |                                                         \
              static_cast<unsigned int>(__nv_fp8x2_##KIND(float2{four.z, four.w}).__x) << 16) {}                      \
    explicit operator float4() const {                                                                                \
      __nv_fp8x2_##KIND low, high;                                                                                    \
      low.__x = static_cast<unsigned short>(__x), high.__x = static_cast<unsigned short>(__x >> 16);                  \
      const float2 a = static_cast<float2>(low), b = static_cast<float2>(high);                                       \
      return {a.x, a.y, b.x, b.y};                                                                                    \
    }                                                                                                                 \
  };
MSCCLPP_SIM_FP8(e4m3, __NV_E4M3)
MSCCLPP_SIM_FP8(e5m2, __NV_E5M2)
#undef MSCCLPP_SIM_FP8

#endif  // MSCCLPP_SIM_CUDA_FP8_H_
