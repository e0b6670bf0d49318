// Numbers of 8 and 16 bits under common names, and short vectors of them: conversions, and operations by element.
//
// The types are those of the vendor's headers. NVRTC finds these in the wheels that it came with or in a CUDA toolkit
// of its version (CUDA_HOME names it). On AMD GPUs fp8 is the kind without infinity and -0 (fnuz).

#ifndef MSCCLPP_GPU_DATA_TYPES_HPP_
#define MSCCLPP_GPU_DATA_TYPES_HPP_

#include "mscclpp/atomic_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

#if defined(MSCCLPP_DEVICE_HIP)
#if __has_include(<hip/hip_fp8.h>)
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_fp8.h>
#elif !defined(__HIPCC_RTC__)
#error "mscclpp/gpu_data_types.hpp needs hip_fp16.h, hip_bf16.h and hip_fp8.h of ROCm 6.2 or newer"
#endif
using __bfloat16 = __hip_bfloat16;
using __bfloat162 = __hip_bfloat162;
#define MSCCLPP_FP8_TYPES(KIND)                \
  using __fp8_##KIND = __hip_fp8_##KIND##_fnuz; \
  using __fp8x2_##KIND = __hip_fp8x2_##KIND##_fnuz; \
  using __fp8x4_##KIND = __hip_fp8x4_##KIND##_fnuz;
#else
#if !__has_include(<cuda_fp16.h>) || !__has_include(<cuda_bf16.h>) || !__has_include(<cuda_fp8.h>)
#error "mscclpp/gpu_data_types.hpp could not open cuda_fp16.h, cuda_bf16.h and cuda_fp8.h: set CUDA_HOME to a CUDA toolkit"
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
using __bfloat16 = __nv_bfloat16;
using __bfloat162 = __nv_bfloat162;
#define MSCCLPP_FP8_TYPES(KIND)          \
  using __fp8_##KIND = __nv_fp8_##KIND;   \
  using __fp8x2_##KIND = __nv_fp8x2_##KIND; \
  using __fp8x4_##KIND = __nv_fp8x4_##KIND;
#endif
MSCCLPP_FP8_TYPES(e4m3)
MSCCLPP_FP8_TYPES(e5m2)
#undef MSCCLPP_FP8_TYPES

// fp8 with 4 bits of exponent, of bias 15, and 3 of fraction: numbers up to 1.875, no infinity and no NaN. Half has all of
// them: their bits are its bits 7 to 13. Two and four of them are in one word.
struct __fp8_e4m3b15 {
  uint8_t __x;
};
struct alignas(2) __fp8x2_e4m3b15 {
  uint16_t __x;
};
struct alignas(4) __fp8x4_e4m3b15 {
  uint32_t __x;
};

namespace mscclpp {

template <class T, int N>
union VectorType;

namespace detail {

// The type of a vector's `storage`: the vendor's vector type where there is one.
template <int Bytes>
struct WordsOfBytes {
  uint4 words[Bytes / 16];
};
template <class T, int N, int Bytes = static_cast<int>(sizeof(T)) * N>
struct StorageOf {
  using Type = WordsOfBytes<Bytes>;
};
#define MSCCLPP_STORAGE_OF_BYTES(BYTES, TYPE) \
  template <class T, int N>                   \
  struct StorageOf<T, N, BYTES> {             \
    using Type = TYPE;                        \
  };
MSCCLPP_STORAGE_OF_BYTES(1, uint8_t)
MSCCLPP_STORAGE_OF_BYTES(2, uint16_t)
MSCCLPP_STORAGE_OF_BYTES(4, uint32_t)
MSCCLPP_STORAGE_OF_BYTES(8, uint2)
MSCCLPP_STORAGE_OF_BYTES(16, uint4)
#undef MSCCLPP_STORAGE_OF_BYTES
#define MSCCLPP_STORAGE(ELEMENT, COUNT, TYPE)               \
  template <>                                               \
  struct StorageOf<ELEMENT, COUNT, sizeof(ELEMENT) * COUNT> { \
    using Type = TYPE;                                      \
  };
MSCCLPP_STORAGE(int32_t, 1, int32_t)
MSCCLPP_STORAGE(int32_t, 2, int2)
MSCCLPP_STORAGE(int32_t, 4, int4)
MSCCLPP_STORAGE(float, 1, float)
MSCCLPP_STORAGE(float, 2, float2)
MSCCLPP_STORAGE(float, 4, float4)
MSCCLPP_STORAGE(double, 1, double)
MSCCLPP_STORAGE(__half, 2, __half2)
MSCCLPP_STORAGE(__bfloat16, 2, __bfloat162)
MSCCLPP_STORAGE(__fp8_e4m3, 2, __fp8x2_e4m3)
MSCCLPP_STORAGE(__fp8_e4m3, 4, __fp8x4_e4m3)
MSCCLPP_STORAGE(__fp8_e5m2, 2, __fp8x2_e5m2)
MSCCLPP_STORAGE(__fp8_e5m2, 4, __fp8x4_e5m2)
MSCCLPP_STORAGE(__fp8_e4m3b15, 2, __fp8x2_e4m3b15)
MSCCLPP_STORAGE(__fp8_e4m3b15, 4, __fp8x4_e4m3b15)
#undef MSCCLPP_STORAGE

}  // namespace detail

// N numbers of type T side by side, aligned to their size, or to 16 bytes if they are larger. The same memory is
// `data`, the numbers; `words`, of 4 bytes, or one of 1 or 2; and `storage`, from and to which it converts.
template <class T, int N>
union alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) VectorType {
  using ElementType = T;
  using StorageType = typename detail::StorageOf<T, N>::Type;
  static constexpr int Size = N, Bytes = static_cast<int>(sizeof(T)) * N;

  T data[N];
  detail::WordOf<uint8_t[Bytes < 4 ? Bytes : 4]> words[Bytes < 4 ? 1 : Bytes / 4];
  StorageType storage;

  VectorType() = default;
  MSCCLPP_HOST_DEVICE_INLINE VectorType(const StorageType& value) : storage(value) {}
  // Copies by words, because CUDA's pairs are copied by functions of their own.
  MSCCLPP_HOST_DEVICE_INLINE VectorType(const VectorType& other) { *this = other; }
  MSCCLPP_HOST_DEVICE_INLINE VectorType& operator=(const VectorType& other) {
    for (int i = 0; i < (Bytes + 3) / 4; ++i) words[i] = other.words[i];
    return *this;
  }
  MSCCLPP_HOST_DEVICE_INLINE operator StorageType() const { return storage; }
  MSCCLPP_HOST_DEVICE_INLINE T& operator[](int i) { return data[i]; }
  MSCCLPP_HOST_DEVICE_INLINE const T& operator[](int i) const { return data[i]; }
};

using i32x1 = VectorType<int32_t, 1>;
using i32x2 = VectorType<int32_t, 2>;
using i32x4 = VectorType<int32_t, 4>;
using u32x1 = VectorType<uint32_t, 1>;
using u32x2 = VectorType<uint32_t, 2>;
using u32x4 = VectorType<uint32_t, 4>;
using u8x2 = VectorType<uint8_t, 2>;
using u8x4 = VectorType<uint8_t, 4>;
using f64x1 = VectorType<double, 1>;
using f32x1 = VectorType<float, 1>;
using f32x2 = VectorType<float, 2>;
using f32x4 = VectorType<float, 4>;
using f32x8 = VectorType<float, 8>;
using f32x16 = VectorType<float, 16>;
using f16x2 = VectorType<__half, 2>;
using f16x4 = VectorType<__half, 4>;
using f16x8 = VectorType<__half, 8>;
using f16x16 = VectorType<__half, 16>;
using bf16x2 = VectorType<__bfloat16, 2>;
using bf16x4 = VectorType<__bfloat16, 4>;
using bf16x8 = VectorType<__bfloat16, 8>;
using f8_e4m3x2 = VectorType<__fp8_e4m3, 2>;
using f8_e4m3x4 = VectorType<__fp8_e4m3, 4>;
using f8_e4m3x8 = VectorType<__fp8_e4m3, 8>;
using f8_e4m3x16 = VectorType<__fp8_e4m3, 16>;
using f8_e5m2x2 = VectorType<__fp8_e5m2, 2>;
using f8_e5m2x4 = VectorType<__fp8_e5m2, 4>;
using f8_e5m2x8 = VectorType<__fp8_e5m2, 8>;
using f8_e5m2x16 = VectorType<__fp8_e5m2, 16>;
using f8_e4m3b15x2 = VectorType<__fp8_e4m3b15, 2>;
using f8_e4m3b15x4 = VectorType<__fp8_e4m3b15, 4>;
using f8_e4m3b15x8 = VectorType<__fp8_e4m3b15, 8>;
using f8_e4m3b15x16 = VectorType<__fp8_e4m3b15, 16>;

// Returns the same bits as a To, which has the same size.
template <class To, class From>
MSCCLPP_DEVICE_INLINE To bit_cast(const From& value) {
  return detail::bitsAs<To>(value);
}

namespace detail {

// The conversions of a pair of T to floats, and of floats to a pair of T. A number that is too large becomes infinity
// or NaN, or if `Clip`, the largest number; 16-bit floats are clipped by `clip`.
template <class T>
struct Pairs;
template <>
struct Pairs<float> {
  MSCCLPP_DEVICE_INLINE static float2 widen(f32x2 pair) { return pair; }
  template <bool Clip>
  MSCCLPP_DEVICE_INLINE static f32x2 narrow(float2 values) {
    return values;
  }
};
template <>
struct Pairs<__half> {
  MSCCLPP_DEVICE_INLINE static float2 widen(f16x2 pair) { return __half22float2(pair); }
  template <bool Clip>
  MSCCLPP_DEVICE_INLINE static f16x2 narrow(float2 values) {
    return __float22half2_rn(values);
  }
};
template <>
struct Pairs<__bfloat16> {
  MSCCLPP_DEVICE_INLINE static float2 widen(bf16x2 pair) { return __bfloat1622float2(pair); }
  template <bool Clip>
  MSCCLPP_DEVICE_INLINE static bf16x2 narrow(float2 values) {
    return __float22bfloat162_rn(values);
  }
};
#if defined(MSCCLPP_DEVICE_HIP)
#define MSCCLPP_FP8(NAME) __hip_##NAME
#define MSCCLPP_FP8_CONSTANT(NAME, END) __HIP_##NAME##END
#else
#define MSCCLPP_FP8(NAME) __nv_##NAME
#define MSCCLPP_FP8_CONSTANT(NAME, END) __NV_##NAME
#endif
#define MSCCLPP_PAIRS_OF_FP8(TYPE, KIND)                                                                        \
  template <>                                                                                                   \
  struct Pairs<TYPE> {                                                                                          \
    MSCCLPP_DEVICE_INLINE static f16x2 half(VectorType<TYPE, 2> pair) {                                          \
      return static_cast<__half2>(MSCCLPP_FP8(cvt_fp8x2_to_halfraw2)(pair.words[0], MSCCLPP_FP8_CONSTANT(KIND, _FNUZ))); \
    }                                                                                                           \
    MSCCLPP_DEVICE_INLINE static float2 widen(VectorType<TYPE, 2> pair) { return __half22float2(half(pair)); }   \
    template <bool Clip>                                                                                        \
    MSCCLPP_DEVICE_INLINE static VectorType<TYPE, 2> narrow(float2 values) {                                     \
      VectorType<TYPE, 2> pair;                                                                                 \
      pair.words[0] = MSCCLPP_FP8(cvt_float2_to_fp8x2)(                                                          \
          values, Clip ? MSCCLPP_FP8_CONSTANT(SATFINITE, ) : MSCCLPP_FP8_CONSTANT(NOSAT, ),                       \
          MSCCLPP_FP8_CONSTANT(KIND, _FNUZ));                                                                   \
      return pair;                                                                                              \
    }                                                                                                           \
    MSCCLPP_DEVICE_INLINE static VectorType<TYPE, 2> narrow(f16x2 values) {                                      \
      VectorType<TYPE, 2> pair;                                                                                 \
      pair.words[0] = MSCCLPP_FP8(cvt_halfraw2_to_fp8x2)(static_cast<__half2_raw>(values.storage),               \
                                                        MSCCLPP_FP8_CONSTANT(SATFINITE, ),                      \
                                                        MSCCLPP_FP8_CONSTANT(KIND, _FNUZ));                     \
      return pair;                                                                                              \
    }                                                                                                           \
  };
MSCCLPP_PAIRS_OF_FP8(__fp8_e4m3, E4M3)
MSCCLPP_PAIRS_OF_FP8(__fp8_e5m2, E5M2)
#undef MSCCLPP_PAIRS_OF_FP8
#undef MSCCLPP_FP8
#undef MSCCLPP_FP8_CONSTANT
template <>
struct Pairs<__fp8_e4m3b15> {
  MSCCLPP_DEVICE_INLINE static f16x2 half(f8_e4m3b15x2 pair) {
    // Each byte goes into the upper half of 16 bits; the seven below the sign then move down by one.
    const uint32_t bytes = (pair.words[0] & 0xffu) << 8 | (pair.words[0] & 0xff00u) << 16;
    f16x2 halves;
    halves.words[0] = (bytes & 0x80008000u) | (bytes & 0x7f007f00u) >> 1;
    return halves;
  }
  MSCCLPP_DEVICE_INLINE static float2 widen(f8_e4m3b15x2 pair) { return __half22float2(half(pair)); }
  template <bool Clip>
  MSCCLPP_DEVICE_INLINE static f8_e4m3b15x2 narrow(float2 values) {
    f8_e4m3b15x2 pair;
    pair.words[0] = static_cast<uint16_t>(nearest(values.x) | nearest(values.y) << 8);
    return pair;
  }
  MSCCLPP_DEVICE_INLINE static f8_e4m3b15x2 narrow(f16x2 values) { return narrow<true>(__half22float2(values)); }

 private:
  // Returns the nearest number, of two as near the even one; the largest for larger numbers, and for NaN.
  MSCCLPP_DEVICE_INLINE static uint32_t nearest(float value) {
    const uint32_t bits = bitsAs<uint32_t>(value), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    // From 1.875 on all results are the largest number.
    if (magnitude >= 0x3ff00000) return sign | 0x7f;
    // Below 2^-14 they are multiples of 2^-17: those are the last bits of numbers from 64 to 128.
    if (magnitude < 0x38800000) return sign | (bitsAs<uint32_t>(bitsAs<float>(magnitude) + 64.0f) & 0xff);
    // Above, bits 20 to 26 without the bias of float; a carry moves on into the exponent.
    return sign | ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (112 << 3);
  }
};

template <class T>
constexpr bool isFp8 = isSame<T, __fp8_e4m3> || isSame<T, __fp8_e5m2> || isSame<T, __fp8_e4m3b15>;
template <class T>
constexpr bool isFloat16 = isSame<T, __half> || isSame<T, __bfloat16>;

// Pair number `i` of a vector.
template <class T, int N>
MSCCLPP_DEVICE_INLINE const VectorType<T, 2>& pairOf(const VectorType<T, N>& vector, int i) {
  return reinterpret_cast<const VectorType<T, 2>*>(vector.data)[i];
}
template <class T, int N>
MSCCLPP_DEVICE_INLINE VectorType<T, 2>& pairOf(VectorType<T, N>& vector, int i) {
  return reinterpret_cast<VectorType<T, 2>*>(vector.data)[i];
}

// Returns two 16-bit floats, with the largest number of its sign in place of infinity: the number before infinity.
template <class T>
MSCCLPP_DEVICE_INLINE uint32_t clipPair(uint32_t bits) {
  constexpr uint32_t Infinities = isSame<T, __half> ? 0x7c007c00 : 0x7f807f80;
  // The upper bit of each half is set if the rest of it is not that of infinity; no half carries into the other.
  const uint32_t others = ((bits & 0x7fff7fff) ^ Infinities) + 0x7fff7fff;
  return bits - ((~others & 0x80008000) >> 15);
}

template <class T>
struct Clip {
  MSCCLPP_DEVICE_INLINE static T of(const T& value) {
    constexpr bool InHalf = isSame<T, __half> || isSame<T, __half2>;
    if constexpr (InHalf || isSame<T, __bfloat16> || isSame<T, __bfloat162>) {
      using Word = WordOf<T>;
      const uint32_t bits = bitsAs<Word>(value);
      return bitsAs<T>(static_cast<Word>(InHalf ? clipPair<__half>(bits) : clipPair<__bfloat16>(bits)));
    }
    return value;
  }
};
template <class T, int N>
struct Clip<VectorType<T, N>> {
  MSCCLPP_DEVICE_INLINE static VectorType<T, N> of(VectorType<T, N> value) {
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = Clip<T>::of(value[i]);
    return value;
  }
};

}  // namespace detail

// Returns half, bfloat16, and pairs and vectors of them with the largest number of its sign in place of infinity; NaN
// stays NaN. Other types are returned as they are, since fp8 is clipped where it is made.
template <class T>
MSCCLPP_DEVICE_INLINE T clip(const T& value) {
  return detail::Clip<T>::of(value);
}

// Converts the numbers to another type, each rounded to the nearest. In fp8, larger numbers become the largest number;
// NaN stays NaN where there is one.
template <class To, class T, int N>
MSCCLPP_DEVICE_INLINE To to(const VectorType<T, N>& from) {
  using U = typename To::ElementType;
  static_assert(To::Size == N, "as many numbers are made as there are");
  if constexpr (detail::isSame<U, T>) {
    return from;
  } else {
    static_assert(N % 2 == 0, "numbers are converted in pairs");
    To result;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const VectorType<T, 2> pair = detail::pairOf(from, i);
      if constexpr (detail::isFp8<T> && detail::isSame<U, __half>) {
        detail::pairOf(result, i) = detail::Pairs<T>::half(pair);
      } else if constexpr (detail::isSame<T, __half> && detail::isFp8<U>) {
        detail::pairOf(result, i) = detail::Pairs<U>::narrow(pair);
      } else {
        detail::pairOf(result, i) = detail::Pairs<U>::template narrow<true>(detail::Pairs<T>::widen(pair));
      }
    }
    return result;
  }
}

// Returns the sums, each rounded once. With UseClip, numbers too large for half, bfloat16 or fp8 become the largest
// number. Integers wrap around.
template <bool UseClip = true, class T, int N>
MSCCLPP_DEVICE_INLINE VectorType<T, N> operator+(const VectorType<T, N>& a, const VectorType<T, N>& b) {
  VectorType<T, N> sum;
  if constexpr (detail::isFloat16<T> || detail::isFp8<T>) {
    static_assert(N % 2 == 0, "numbers of 8 and 16 bits are added in pairs");
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const VectorType<T, 2>&x = detail::pairOf(a, i), &y = detail::pairOf(b, i);
      if constexpr (detail::isFloat16<T>) {
        const auto both = __hadd2(x.storage, y.storage);
        detail::pairOf(sum, i) = UseClip ? clip(both) : both;
      } else {
        float2 values = detail::Pairs<T>::widen(x);
        const float2 others = detail::Pairs<T>::widen(y);
        values.x += others.x, values.y += others.y;
        detail::pairOf(sum, i) = detail::Pairs<T>::template narrow<UseClip>(values);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = static_cast<T>(a[i] + b[i]);
  }
  return sum;
}

// Returns the lesser of each two numbers; of NaN and a number, the number.
template <class T, int N>
MSCCLPP_DEVICE_INLINE VectorType<T, N> min(const VectorType<T, N>& a, const VectorType<T, N>& b) {
  VectorType<T, N> least;
  if constexpr (detail::isFloat16<T> || detail::isFp8<T>) {
    static_assert(N % 2 == 0, "numbers of 8 and 16 bits are compared in pairs");
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float2 x = detail::Pairs<T>::widen(detail::pairOf(a, i)), y = detail::Pairs<T>::widen(detail::pairOf(b, i));
      least[2 * i] = x.x < y.x || y.x != y.x ? a[2 * i] : b[2 * i];
      least[2 * i + 1] = x.y < y.y || y.y != y.y ? a[2 * i + 1] : b[2 * i + 1];
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) least[i] = a[i] < b[i] || b[i] != b[i] ? a[i] : b[i];
  }
  return least;
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_GPU_DATA_TYPES_HPP_
