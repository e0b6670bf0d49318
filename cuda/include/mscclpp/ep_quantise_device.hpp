// The quantisation of rows on their way: e4m3 with scales. For the library's own use.

#ifndef MSCCLPP_EP_QUANTISE_DEVICE_HPP_
#define MSCCLPP_EP_QUANTISE_DEVICE_HPP_

#include "mscclpp/ep_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The larger of `most` and the absolute value of `value`, which does not count if it is a NaN.
MSCCLPP_DEVICE_INLINE float largerSize(float most, float value) {
  const float size = bitsAs<float>(bitsAs<uint32_t>(value) & 0x7fffffffu);
#if defined(MSCCLPP_DEVICE_CUDA)
  asm("max.f32 %0, %0, %1;" : "+f"(most) : "f"(size));
  return most;
#else
  return size > most ? size : most;
#endif
}

// 16 numbers as e4m3, and the scale of those of 8 threads.
struct EpQuantised {
  Bytes16 numbers;
  float scale;
};
// Quantises the numbers of two vectors. All threads of a warp call it. Not inlined: it is much code.
//
// The scale is the largest absolute value of 128 numbers, at least 1e-4, divided by 448, or the next power of two. A NaN
// becomes a NaN and does not count for the scale; with an infinity, the scale is infinite, what is infinite becomes a NaN, and
// all else 0.
template <uint32_t Type>
MSCCLPP_DEVICE_NOINLINE EpQuantised quantised(Bytes16 first, Bytes16 second, uint32_t quantisation, uint32_t lane) {
  using N = Number<Type>;
  float values[16];
  float most = 1e-4f;
#pragma unroll
  for (uint32_t j = 0; j < 16; ++j) {
    const Bytes16 vector = j < 8 ? first : second;
    const float value = N::widen((j % 8 < 4 ? vector.low : vector.high) >> (16 * (j % 4)));
    values[j] = value;
    most = largerSize(most, value);
  }
#pragma unroll
  for (uint32_t distance = 4; distance > 0; distance /= 2) {
    most = largerSize(most, bitsAs<float>(warpShuffle(bitsAs<uint32_t>(most), lane ^ distance)));
  }
  float scale = most / 448.0f, factor = 448.0f / most;
  if (quantisation == EpE4m3Ue8m0) {
    const uint32_t bits = bitsAs<uint32_t>(scale), exponent = (bits + 0x7fffffu) >> 23;
    scale = bitsAs<float>(exponent << 23);
    factor = exponent < 254 ? bitsAs<float>((254 - exponent) << 23) : 0.0f;
  }
  EpQuantised made = {{0, 0}, scale};
#pragma unroll
  for (uint32_t j = 0; j < 16; j += 2) {
    const uint64_t two = narrowTwoE4m3(multiplyValues(values[j], factor), multiplyValues(values[j + 1], factor));
    (j < 8 ? made.numbers.low : made.numbers.high) |= two << (8 * (j % 8));
  }
  return made;
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_QUANTISE_DEVICE_HPP_
