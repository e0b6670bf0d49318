// The quantisation of rows on their way: e4m3 with scales. For the library's own use.

#ifndef MSCCLPP_EP_QUANTISE_DEVICE_HPP_
#define MSCCLPP_EP_QUANTISE_DEVICE_HPP_

#include "mscclpp/ep_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Returns the larger ones of two numbers each, of 16 bits and without signs. A NaN does not count.
template <uint32_t Type>
MSCCLPP_DEVICE_INLINE uint32_t largerTwo(uint32_t first, uint32_t second) {
#if defined(MSCCLPP_DEVICE_CUDA)
  uint32_t larger;
  if constexpr (Type == ReduceF16) {
    asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(first), "r"(second));
  } else {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(first), "r"(second));
  }
  return larger;
#else
  constexpr uint32_t Infinity = Type == ReduceF16 ? 0x7c00 : 0x7f80;
  uint32_t larger = 0;
  for (uint32_t shift = 0; shift < 32; shift += 16) {
    const uint32_t a = first >> shift & 0xffff, b = second >> shift & 0xffff;
    const uint32_t c = a > Infinity ? 0 : a, d = b > Infinity ? 0 : b;
    larger |= (c > d ? c : d) << shift;
  }
  return larger;
#endif
}

// The scale of numbers whose largest size is `most`, and what they are multiplied by: most / 448 and 448 / most, rounded once.
struct EpScale {
  float scale, factor;
};
// Not inlined: it is seldom called on GPUs of NVIDIA.
MSCCLPP_DEVICE_NOINLINE EpScale scaleOfAny(float most) { return EpScale{most / 448.0f, 448.0f / most}; }
MSCCLPP_DEVICE_INLINE EpScale scaleOf(float most) {
#if defined(MSCCLPP_DEVICE_CUDA)
  // A division is for all floats, and takes three times as many instructions. Here each first quotient is corrected by its
  // remainder. The bits are those of a division, also if the reciprocal is wrong by a unit in the last place: all floats from
  // 1e-4 to 1e30 were tried.
  if (most <= 1e30f) {
    constexpr float Inverse = 1.0f / 448.0f;
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(most));
    inverse = fusedMultiplyAdd(fusedMultiplyAdd(-most, inverse, 1.0f), inverse, inverse);
    const float scale = multiplyValues(most, Inverse), factor = multiplyValues(448.0f, inverse);
    return EpScale{fusedMultiplyAdd(fusedMultiplyAdd(-448.0f, scale, most), Inverse, scale),
                   fusedMultiplyAdd(fusedMultiplyAdd(-most, factor, 448.0f), inverse, factor)};
  }
#endif
  return scaleOfAny(most);
}

// The numbers of a thread in a step.
struct EpNumbers {
  Bytes16 of[2];
};
struct EpTwoSteps {
  EpNumbers of[2];
};
// 16 numbers as e4m3, and the scale of those of 8 threads.
struct EpQuantised {
  Bytes16 numbers;
  float scale;
};
// Quantises the numbers of steps. All threads of a warp call it.
//
// The scale is the largest absolute value of 128 numbers, at least 1e-4, divided by 448, or the next power of two. A NaN
// becomes a NaN and does not count for the scale; with an infinity, the scale is infinite, what is infinite becomes a NaN, and
// all else 0.
template <uint32_t Type, uint32_t Steps>
MSCCLPP_DEVICE_INLINE void quantise(const EpNumbers (&numbers)[Steps], uint32_t quantisation, uint32_t lane,
                                    EpQuantised (&made)[Steps]) {
  using N = Number<Type>;
  uint32_t words[Steps][8], sizes[Steps];
#pragma unroll
  for (uint32_t step = 0; step < Steps; ++step) {
    uint32_t each[8];
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) {
      const Bytes16& vector = numbers[step].of[j / 4];
      words[step][j] = static_cast<uint32_t>((j % 4 < 2 ? vector.low : vector.high) >> (j % 2 * 32));
      each[j] = words[step][j] & 0x7fff7fffu;
    }
#pragma unroll
    for (uint32_t distance = 4; distance > 0; distance /= 2) {
#pragma unroll
      for (uint32_t j = 0; j < distance; ++j) each[j] = largerTwo<Type>(each[j], each[j + distance]);
    }
    sizes[step] = each[0];
  }
#pragma unroll
  for (uint32_t distance = 4; distance > 0; distance /= 2) {
#pragma unroll
    for (uint32_t step = 0; step < Steps; ++step) {
      sizes[step] = largerTwo<Type>(sizes[step], warpShuffle(sizes[step], lane ^ distance));
    }
  }
#pragma unroll
  for (uint32_t step = 0; step < Steps; ++step) {
    const float low = N::widen(sizes[step]), high = N::widen(sizes[step] >> 16);
    // A NaN is not larger.
    float most = low > 1e-4f ? low : 1e-4f;
    if (high > most) most = high;
    EpScale by = scaleOf(most);
    if (quantisation == EpE4m3Ue8m0) {
      const uint32_t bits = bitsAs<uint32_t>(by.scale), exponent = (bits + 0x7fffffu) >> 23;
      by.scale = bitsAs<float>(exponent << 23);
      by.factor = exponent < 254 ? bitsAs<float>((254 - exponent) << 23) : 0.0f;
    }
    uint64_t halves[2] = {0, 0};
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) {
      const uint32_t word = words[step][j];
      const float first = multiplyValues(N::widen(word), by.factor), second = multiplyValues(N::widen(word >> 16), by.factor);
      halves[j / 4] |= static_cast<uint64_t>(narrowTwo<ReduceF8E4m3>(first, second)) << (j % 4 * 16);
    }
    made[step] = EpQuantised{{halves[0], halves[1]}, by.scale};
  }
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_QUANTISE_DEVICE_HPP_
