// Floating-point numbers of 16 bits, of which CUDA has two kinds: conversion from and to the wider ones.

#ifndef MSCCLPP_SIM_NARROW_HPP_
#define MSCCLPP_SIM_NARROW_HPP_

#include "mscclpp_sim/floats.hpp"

namespace mscclpp_sim {

// A format of 16 bits: a sign, an exponent, and the rest for the fraction; subnormal numbers, infinities and NaNs as in
// IEEE 754.
template <int ExponentBits>
struct NarrowFormat {
  static constexpr int FractionBits = 15 - ExponentBits;
  static constexpr int Bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr unsigned short Sign = 0x8000;
  static constexpr unsigned short Infinity = ((1 << ExponentBits) - 1) << FractionBits;
  static constexpr unsigned short Largest = Infinity - 1;
  // The bits of every NaN that CUDA makes.
  static constexpr unsigned short NaN = 0x7fff;

  // Returns the same number as a float, which can hold all of them.
  static float widen(unsigned short bits) {
    const unsigned int sign = static_cast<unsigned int>(bits & Sign) << 16, magnitude = bits & ~Sign & 0xffff;
    if constexpr (ExponentBits == 8) {
      return bitCast<float>(sign | magnitude << 16);
    } else {
      const unsigned int fraction = magnitude << (23 - FractionBits);
      if (magnitude >= Infinity) return bitCast<float>(sign | 0x7f800000u | fraction);
      // The lowest bit of the exponent is set in a float, and its value subtracted again: that makes a subnormal number
      // normal.
      if (magnitude < 1 << FractionBits) {
        constexpr unsigned int One = static_cast<unsigned int>(127 - Bias + 1) << 23;
        const float value = bitCast<float>(fraction + One) - bitCast<float>(One);
        return bitCast<float>(sign | bitCast<unsigned int>(value));
      }
      return bitCast<float>(sign | (fraction + (static_cast<unsigned int>(127 - Bias) << 23)));
    }
  }

  // Returns the number that R selects; NaN for NaN. Rounds once.
  template <Rounding R = Rounding::Nearest>
  static unsigned short round(double value) {
    const unsigned long long bits = bitCast<unsigned long long>(value);
    const unsigned short sign = static_cast<unsigned short>(bits >> 48 & Sign);
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    unsigned long long significand = bits & ((1ull << 52) - 1);
    if (exponent == 0x7ff) return significand != 0 ? NaN : sign | Infinity;
    // A double's subnormal numbers are treated as 0 and a bit, which rounds like them.
    if (exponent != 0) significand |= 1ull << 52;

    // The result's exponent, before rounding: that of its smallest normal number at least. Counted in its bias, from 1.
    int field = exponent - 1023 + Bias;
    if (field < 1) field = 1;
    // How many bits of the significand lie below the result's last one. Of the many below tiny numbers, 63 do.
    int below = 52 - FractionBits + (field - (exponent - 1023 + Bias));
    if (below > 63) below = 63;
    const unsigned long long rest = significand & ((1ull << below) - 1), half = 1ull << (below - 1);
    unsigned long long kept = significand >> below;
    if (R == Rounding::Nearest && (rest > half || (rest == half && (kept & 1) != 0))) ++kept;
    if (R == Rounding::Up && rest != 0 && sign == 0) ++kept;
    if (R == Rounding::Down && rest != 0 && sign != 0) ++kept;

    // A normal number's highest bit counts the exponent up by one; so does what rounding carries over.
    const unsigned long long magnitude = kept + (static_cast<unsigned long long>(field - 1) << FractionBits);
    if (magnitude < Infinity) return static_cast<unsigned short>(sign | magnitude);
    const bool outward = (R == Rounding::Up && sign == 0) || (R == Rounding::Down && sign != 0);
    return sign | (R == Rounding::Nearest || outward ? Infinity : Largest);
  }
};

// a + b, rounded to odd: if it is not exact, to the one of its two neighbours whose last bit is 1. Rounding that again
// to a format with at least two bits less gives what rounding a + b once would have given: a boundary of the shorter
// format's roundings ends in 0, and so the result is on one only if it is exact, and else on the same side of it.
inline double addToOdd(double a, double b) {
  const double sum = a + b;
  // The part that the sum lacks, exactly (Knuth's two-sum). NaN if the sum is infinite or NaN.
  const double ofB = sum - a;
  const double lack = (a - (sum - ofB)) + (b - ofB);
  unsigned long long bits = bitCast<unsigned long long>(sum);
  if (!(lack < 0 || lack > 0) || (bits & 1) != 0) return sum;
  bits += (lack > 0) == (sum > 0) ? 1 : -1;
  return bitCast<double>(bits);
}

// The calculations of the formats, for a, b and c that are floats made of 16 bits, and so have a significand of 11 bits
// at most. They are made in double, with one rounding of the result that shows:
//
// - a * b is exact in double.
// - a + b and a * b + c need not be; rounded to odd they are as good.
// - a / b and the square root are rounded twice. That shows only if the first rounding reaches a boundary m of the
//   second, a number of at most 12 bits, from beside it; and it moves by at most 2^-53 of the number. But a and m * b
//   have at most 11 and 23 bits, so that, being multiples of the smaller one's last bit, they are equal or differ by
//   more than 2^-23 of the larger. By as much does a / b differ from m. In the same way a and m * m, of at most 24
//   bits, differ by more than 2^-24, and the root of a differs from m by half of that.
inline double fusedMultiplyAdd(float a, float b, float c) { return addToOdd(static_cast<double>(a) * b, c); }

// Returns an integer as a double, rounded to odd.
template <class Integer>
double integerToOdd(Integer value) {
  if (sizeof(Integer) <= 4) return static_cast<double>(value);
  const Int128 integer = value;
  return addToOdd(static_cast<double>(static_cast<long long>(integer >> 32)) * 4294967296.0,
                  static_cast<double>(static_cast<unsigned int>(integer)));
}

}  // namespace mscclpp_sim

#endif  // MSCCLPP_SIM_NARROW_HPP_
