// Numbers that collectives reduce: the conversion of their bytes to values, the operations on values, and the
// conversion of the result to bytes.
//
// The bits of a result do not depend on who computes it, nor how. Values are combined one after the other in the
// order in which they are given. Floats of 8 and 16 bits are combined as float and rounded once, at the end, to the
// nearest, of two as near the even one; those of 8 bits then saturate. f32 and f64 are combined as they are. No
// product and sum become one operation. Whole numbers are combined in 64 bits, of which the result has the lowest, so
// sums and products wrap. In `Max` and `Min` a NaN wins.
//
// An average of f32 and f64 is the sum of numbers that were multiplied by 1/N first. Of floats of 8 and 16 bits it is the sum
// as float, divided by N before it is rounded; of whole numbers the sum as their type wraps it, divided by N towards zero.
//
// It includes no header of a vendor, so it compiles wherever there is a compiler for kernels.

#ifndef MSCCLPP_REDUCE_DEVICE_HPP_
#define MSCCLPP_REDUCE_DEVICE_HPP_

#include "mscclpp/atomic_device.hpp"

namespace mscclpp {

// The numbers are those of NCCL's ncclDataType_t, which has no I16 and U16, and of its ncclRedOp_t.
enum ReduceType : uint32_t {
  ReduceI8 = 0,
  ReduceU8 = 1,
  ReduceI32 = 2,
  ReduceU32 = 3,
  ReduceI64 = 4,
  ReduceU64 = 5,
  ReduceF16 = 6,
  ReduceF32 = 7,
  ReduceF64 = 8,
  ReduceBf16 = 9,
  ReduceF8E4m3 = 10,
  ReduceF8E5m2 = 11,
  ReduceI16 = 12,
  ReduceU16 = 13,
};
enum ReduceOp : uint32_t { ReduceSum = 0, ReduceProd = 1, ReduceMax = 2, ReduceMin = 3, ReduceAvg = 4 };

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Arithmetic that no compiler fuses into an operation that rounds once where this rounds twice.
#if defined(MSCCLPP_DEVICE_CUDA)
MSCCLPP_DEVICE_INLINE float addValues(float a, float b) { return __fadd_rn(a, b); }
MSCCLPP_DEVICE_INLINE double addValues(double a, double b) { return __dadd_rn(a, b); }
MSCCLPP_DEVICE_INLINE float multiplyValues(float a, float b) { return __fmul_rn(a, b); }
MSCCLPP_DEVICE_INLINE double multiplyValues(double a, double b) { return __dmul_rn(a, b); }
#else
// clang for AMD GPUs fuses across functions by default. Simulated kernels are compiled with -ffp-contract=off.
#if defined(__clang__)
#define MSCCLPP_AS_WRITTEN _Pragma("clang fp contract(off)")
#else
#define MSCCLPP_AS_WRITTEN
#endif
MSCCLPP_DEVICE_INLINE float addValues(float a, float b) { MSCCLPP_AS_WRITTEN return a + b; }
MSCCLPP_DEVICE_INLINE double addValues(double a, double b) { MSCCLPP_AS_WRITTEN return a + b; }
MSCCLPP_DEVICE_INLINE float multiplyValues(float a, float b) { MSCCLPP_AS_WRITTEN return a * b; }
MSCCLPP_DEVICE_INLINE double multiplyValues(double a, double b) { MSCCLPP_AS_WRITTEN return a * b; }
#undef MSCCLPP_AS_WRITTEN
#endif
MSCCLPP_DEVICE_INLINE uint64_t addValues(uint64_t a, uint64_t b) { return a + b; }
MSCCLPP_DEVICE_INLINE uint64_t multiplyValues(uint64_t a, uint64_t b) { return a * b; }
// Signed numbers wrap like unsigned ones.
MSCCLPP_DEVICE_INLINE int64_t addValues(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
MSCCLPP_DEVICE_INLINE int64_t multiplyValues(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// Combines `a` and `b`, of which `a` came first.
template <class Value>
MSCCLPP_DEVICE_INLINE Value combineValues(uint32_t op, Value a, Value b) {
  switch (op) {
    case ReduceProd:
      return multiplyValues(a, b);
    // A comparison with a NaN is false; only a NaN differs from itself.
    case ReduceMax:
      return b > a || b != b ? (a != a ? a : b) : a;
    case ReduceMin:
      return b < a || b != b ? (a != a ? a : b) : a;
    default:
      return addValues(a, b);
  }
}

// Returns the bits of a float in a format of fewer bits, rounded to the nearest, of two as near the even one.
// `Exponent` and `Fraction` are the format's; its bias is that of IEEE formats.
//
// A number that is too large, or infinity, becomes infinity, or if the format Saturates, its largest number.
template <uint32_t Exponent, uint32_t Fraction, uint32_t Largest, bool Saturates, uint32_t NaN>
MSCCLPP_DEVICE_INLINE uint32_t narrowFloat(float value) {
  constexpr uint32_t Bias = (1u << (Exponent - 1)) - 1, Shift = 23 - Fraction;
  const uint32_t bits = bitsAs<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << (Exponent + Fraction), magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return NaN;
  uint32_t narrow;
  if (Exponent < 8 && magnitude < ((127 - Bias + 1) << 23)) {
    // The number is less than the smallest normal number: it becomes a multiple of the smallest subnormal one. Adding
    // 2^23 rounds it.
    const float scale = bitsAs<float>((127 + Bias - 1 + Fraction) << 23);
    const float rounded = addValues(multiplyValues(bitsAs<float>(magnitude), scale), 8388608.0f);
    narrow = bitsAs<uint32_t>(rounded) - 0x4b000000u;
  } else {
    const uint32_t rounded = magnitude + ((1u << (Shift - 1)) - 1) + ((magnitude >> Shift) & 1);
    narrow = (rounded >> Shift) - ((127 - Bias) << Fraction);
  }
  if (narrow > Largest) narrow = Saturates ? Largest : Largest + 1;
  return sign | narrow;
}

// Returns the float of a number in a format of fewer bits. Each of its numbers is also a float.
template <uint32_t Exponent, uint32_t Fraction>
MSCCLPP_DEVICE_INLINE float widenFloat(uint32_t bits) {
  constexpr uint32_t Bias = (1u << (Exponent - 1)) - 1, Ones = (1u << Exponent) - 1;
  const uint32_t sign = bits >> (Exponent + Fraction) << 31;
  const uint32_t magnitude = bits & ((1u << (Exponent + Fraction)) - 1), exponent = magnitude >> Fraction;
  uint32_t wide;
  if (exponent == 0) {
    const float scale = bitsAs<float>((127 - Bias + 1 - Fraction) << 23);
    wide = bitsAs<uint32_t>(multiplyValues(static_cast<float>(magnitude), scale));
  } else if (exponent == Ones && Exponent > 4) {
    wide = 0x7f800000u | magnitude << (23 - Fraction);
  } else {
    wide = (magnitude << (23 - Fraction)) + ((127 - Bias) << 23);
  }
  return bitsAs<float>(sign | wide);
}

// Returns the quotient, rounded once. A product with the reciprocal of a power of two has the same bits, and takes less time than
// a division. The biased exponents of a power of two and of its reciprocal add up to 254.
MSCCLPP_DEVICE_INLINE float divideByRanks(float sum, uint32_t ranks) {
  const float divisor = static_cast<float>(ranks);
  if ((ranks & (ranks - 1)) != 0) return sum / divisor;
  return multiplyValues(sum, bitsAs<float>(0x7f000000u - bitsAs<uint32_t>(divisor)));
}

}  // namespace detail

// A type of numbers: `Value` is what they are combined as, `Bytes` their size. `widen` makes a value of a number's
// bits, which are the lowest of the word, and `narrow` the bits of a value; the higher bits are 0.
//
// An average of the numbers of so many ranks multiplies each by `weight` before it adds them, and is `average` of the sum.
template <uint32_t Type>
struct Number;

#define MSCCLPP_WHOLE_NUMBER(TYPE, VALUE, STORED)                                                            \
  template <>                                                                                                \
  struct Number<TYPE> {                                                                                      \
    using Value = VALUE;                                                                                     \
    static constexpr uint32_t Bytes = sizeof(STORED);                                                        \
    MSCCLPP_DEVICE_INLINE static Value widen(uint64_t bits) { return static_cast<STORED>(bits); }            \
    MSCCLPP_DEVICE_INLINE static uint64_t narrow(Value value) {                                              \
      return static_cast<uint64_t>(value) & (~static_cast<uint64_t>(0) >> (64 - 8 * Bytes));                 \
    }                                                                                                        \
    MSCCLPP_DEVICE_INLINE static Value weight(uint32_t) { return 1; }                                        \
    MSCCLPP_DEVICE_INLINE static Value average(Value sum, uint32_t ranks) {                                  \
      const STORED wrapped = static_cast<STORED>(sum);                                                       \
      return wrapped / static_cast<decltype(+wrapped)>(ranks);                                               \
    }                                                                                                        \
  };
MSCCLPP_WHOLE_NUMBER(ReduceI8, int64_t, signed char)
MSCCLPP_WHOLE_NUMBER(ReduceU8, uint64_t, unsigned char)
MSCCLPP_WHOLE_NUMBER(ReduceI16, int64_t, short)
MSCCLPP_WHOLE_NUMBER(ReduceU16, uint64_t, unsigned short)
MSCCLPP_WHOLE_NUMBER(ReduceI32, int64_t, int32_t)
MSCCLPP_WHOLE_NUMBER(ReduceU32, uint64_t, uint32_t)
MSCCLPP_WHOLE_NUMBER(ReduceI64, int64_t, int64_t)
MSCCLPP_WHOLE_NUMBER(ReduceU64, uint64_t, uint64_t)
#undef MSCCLPP_WHOLE_NUMBER

template <>
struct Number<ReduceF64> {
  using Value = double;
  static constexpr uint32_t Bytes = 8;
  MSCCLPP_DEVICE_INLINE static Value widen(uint64_t bits) { return detail::bitsAs<double>(bits); }
  MSCCLPP_DEVICE_INLINE static uint64_t narrow(Value value) { return detail::bitsAs<uint64_t>(value); }
  MSCCLPP_DEVICE_INLINE static Value weight(uint32_t ranks) { return 1 / static_cast<Value>(ranks); }
  MSCCLPP_DEVICE_INLINE static Value average(Value sum, uint32_t) { return sum; }
};

// The conversions of floats that are combined as float.
#define MSCCLPP_FLOAT(TYPE, BYTES, WIDEN, NARROW)                                                            \
  template <>                                                                                                \
  struct Number<TYPE> {                                                                                      \
    using Value = float;                                                                                     \
    static constexpr uint32_t Bytes = BYTES;                                                                 \
    MSCCLPP_DEVICE_INLINE static Value widen(uint64_t word) {                                                \
      const uint32_t bits = static_cast<uint32_t>(word) & (0xffffffffu >> (32 - 8 * BYTES));                 \
      return WIDEN;                                                                                          \
    }                                                                                                        \
    MSCCLPP_DEVICE_INLINE static uint64_t narrow(Value value) { return NARROW; }                             \
    MSCCLPP_DEVICE_INLINE static Value weight(uint32_t ranks) {                                              \
      return BYTES == 4 ? 1 / static_cast<Value>(ranks) : 1;                                                 \
    }                                                                                                        \
    MSCCLPP_DEVICE_INLINE static Value average(Value sum, uint32_t ranks) {                                  \
      return BYTES == 4 ? sum : detail::divideByRanks(sum, ranks);                                           \
    }                                                                                                        \
  };
MSCCLPP_FLOAT(ReduceF32, 4, detail::bitsAs<float>(bits), detail::bitsAs<uint32_t>(value))
MSCCLPP_FLOAT(ReduceF8E4m3, 1,
              ((bits & 0x7f) == 0x7f ? detail::bitsAs<float>(0x7fc00000u) : detail::widenFloat<4, 3>(bits)),
              (detail::narrowFloat<4, 3, 0x7e, true, 0x7f>(value)))
MSCCLPP_FLOAT(ReduceF8E5m2, 1, (detail::widenFloat<5, 2>(bits)), (detail::narrowFloat<5, 2, 0x7b, true, 0x7f>(value)))
#if defined(MSCCLPP_DEVICE_CUDA)
namespace detail {
MSCCLPP_DEVICE_INLINE float widenHalf(uint32_t bits) {
  float value;
  asm("{\n\t.reg .b16 half;\n\tcvt.u16.u32 half, %1;\n\tcvt.f32.f16 %0, half;\n\t}" : "=f"(value) : "r"(bits));
  return value;
}
// Two sums in one instruction.
struct AddHalves {
  MSCCLPP_DEVICE_INLINE static uint32_t add(uint32_t a, uint32_t b) {
    uint32_t sums;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
    return sums;
  }
};
struct AddBf16 {
  MSCCLPP_DEVICE_INLINE static uint32_t add(uint32_t a, uint32_t b) {
    uint32_t sums;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return sums;
  }
};
template <class Add>
MSCCLPP_DEVICE_INLINE uint64_t addTwo(uint64_t first, uint64_t second) {
  const uint32_t low = Add::add(static_cast<uint32_t>(first), static_cast<uint32_t>(second));
  const uint32_t high = Add::add(static_cast<uint32_t>(first >> 32), static_cast<uint32_t>(second >> 32));
  return low | static_cast<uint64_t>(high) << 32;
}
// Returns two numbers, the first in the lower half. The conversion of one number alone goes by a slower unit of the device.
MSCCLPP_DEVICE_INLINE uint32_t narrowTwoHalves(float first, float second) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
  return bits;
}
MSCCLPP_DEVICE_INLINE uint32_t narrowTwoBf16(float first, float second) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
  return bits;
}
}  // namespace detail
MSCCLPP_FLOAT(ReduceF16, 2, detail::widenHalf(bits), detail::narrowTwoHalves(value, 0.0f))
MSCCLPP_FLOAT(ReduceBf16, 2, detail::bitsAs<float>(bits << 16), detail::narrowTwoBf16(value, 0.0f))
#else
MSCCLPP_FLOAT(ReduceBf16, 2, detail::bitsAs<float>(bits << 16), (detail::narrowFloat<8, 7, 0x7f7f, false, 0x7fff>(value)))
MSCCLPP_FLOAT(ReduceF16, 2, (detail::widenFloat<5, 10>(bits)), (detail::narrowFloat<5, 10, 0x7bff, false, 0x7fff>(value)))
#endif
#undef MSCCLPP_FLOAT

// Returns two numbers of 8 or 16 bits, the first in the lower bits: those of Number<Type>::narrow.
template <uint32_t Type>
MSCCLPP_DEVICE_INLINE uint32_t narrowTwo(float first, float second) {
  using N = Number<Type>;
#if defined(MSCCLPP_DEVICE_CUDA)
  if constexpr (Type == ReduceF16) {
    return detail::narrowTwoHalves(first, second);
  } else if constexpr (Type == ReduceBf16) {
    return detail::narrowTwoBf16(first, second);
  }
#if __CUDA_ARCH__ >= 890
  if constexpr (Type == ReduceF8E4m3) {
    uint32_t bits;
    asm("{\n\t.reg .b16 two;\n\tcvt.rn.satfinite.e4m3x2.f32 two, %2, %1;\n\tcvt.u32.u16 %0, two;\n\t}"
        : "=r"(bits)
        : "f"(first), "f"(second));
    return bits;
  }
#endif
#endif
  return static_cast<uint32_t>(N::narrow(first) | N::narrow(second) << (8 * N::Bytes));
}

// The numbers of one word of 8 bytes of each rank, which become one word. Given the words of all ranks in the order of the ranks,
// the first by `first`. An average of floats of 8 and 16 bits is a sum, and then `divide`.
template <class N>
struct WordFold {
  static constexpr uint32_t Count = 8 / N::Bytes;
  typename N::Value values[Count];

  MSCCLPP_DEVICE_INLINE static typename N::Value number(uint64_t word, uint32_t i) {
    return N::widen(word >> 8 * N::Bytes * i);
  }

  MSCCLPP_DEVICE_INLINE void first(uint64_t word) {
#pragma unroll
    for (uint32_t i = 0; i < Count; ++i) values[i] = number(word, i);
  }
  MSCCLPP_DEVICE_INLINE void next(uint32_t op, uint64_t word) {
#pragma unroll
    for (uint32_t i = 0; i < Count; ++i) values[i] = detail::combineValues(op, values[i], number(word, i));
  }
  MSCCLPP_DEVICE_INLINE void divide(uint32_t ranks) {
#pragma unroll
    for (uint32_t i = 0; i < Count; ++i) values[i] = N::average(values[i], ranks);
  }
  MSCCLPP_DEVICE_INLINE uint64_t result() const {
    uint64_t word = 0;
#pragma unroll
    for (uint32_t i = 0; i < Count; ++i) word |= N::narrow(values[i]) << (8 * N::Bytes * i % 64);
    return word;
  }
};

// The sums of the numbers of two words.
//
// The sum of two floats of 16 bits, rounded once, has the bits of the sum as float that is then rounded: a float has 24 bits,
// which are at least twice 11 and two more.
template <uint32_t Type>
MSCCLPP_DEVICE_INLINE uint64_t sumOfTwo(uint64_t first, uint64_t second) {
#if defined(MSCCLPP_DEVICE_CUDA)
  if constexpr (Type == ReduceF16) {
    return detail::addTwo<detail::AddHalves>(first, second);
  } else if constexpr (Type == ReduceBf16) {
    return detail::addTwo<detail::AddBf16>(first, second);
  }
#endif
  WordFold<Number<Type>> fold;
  fold.first(first);
  fold.next(ReduceSum, second);
  return fold.result();
}

// Calls `use` with the Number<type> of a type that is known when the kernel runs, and returns what it returns.
template <class Use>
MSCCLPP_DEVICE_INLINE auto withNumber(uint32_t type, Use use) {
  switch (type) {
    case ReduceI8:
      return use(Number<ReduceI8>());
    case ReduceU8:
      return use(Number<ReduceU8>());
    case ReduceI16:
      return use(Number<ReduceI16>());
    case ReduceU16:
      return use(Number<ReduceU16>());
    case ReduceI32:
      return use(Number<ReduceI32>());
    case ReduceU32:
      return use(Number<ReduceU32>());
    case ReduceI64:
      return use(Number<ReduceI64>());
    case ReduceU64:
      return use(Number<ReduceU64>());
    case ReduceF64:
      return use(Number<ReduceF64>());
    case ReduceF16:
      return use(Number<ReduceF16>());
    case ReduceBf16:
      return use(Number<ReduceBf16>());
    case ReduceF8E4m3:
      return use(Number<ReduceF8E4m3>());
    case ReduceF8E5m2:
      return use(Number<ReduceF8E5m2>());
    default:
      return use(Number<ReduceF32>());
  }
}

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_REDUCE_DEVICE_HPP_
