// CUDA's functions of floating-point numbers beyond <math.h>: bits, conversions in each rounding, arithmetic that is
// not fused, and the fast approximations, which are exact here to the last bit or two.

#ifndef MSCCLPP_SIM_FLOATS_HPP_
#define MSCCLPP_SIM_FLOATS_HPP_

#include <math.h>

#include "mscclpp_sim/integers.hpp"

namespace mscclpp_sim {

template <class To, class From>
To bitCast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// The roundings to the nearest, with ties to the even one, to zero, up, and down: _rn, _rz, _ru and _rd in CUDA's names.
enum class Rounding { Nearest, Zero, Up, Down };

template <Rounding R, class Floating>
Floating roundToIntegral(Floating value) {
  if constexpr (R == Rounding::Nearest) return __builtin_rint(value);
  if constexpr (R == Rounding::Zero) return __builtin_trunc(value);
  if constexpr (R == Rounding::Up) return __builtin_ceil(value);
  if constexpr (R == Rounding::Down) return __builtin_floor(value);
}

// Converts to an integer. A number that does not fit becomes the nearest that does. NaN becomes 0, but where either side
// has 64 bits, the highest bit alone: so it is in PTX.
template <class Integer, Rounding R, class Floating>
Integer toInteger(Floating value) {
  constexpr int Bits = 8 * sizeof(Integer);
  constexpr bool Signed = static_cast<Integer>(-1) < static_cast<Integer>(0);
  constexpr Integer HighestBit = static_cast<Integer>(1ull << (Bits - 1));
  constexpr Integer Lowest = Signed ? HighestBit : 0;
  constexpr Integer Highest = static_cast<Integer>(Signed ? ~static_cast<unsigned long long>(HighestBit) : ~0ull);
  // The first power of two that does not fit.
  constexpr Floating Limit = static_cast<Floating>(1ull << (Bits - 1)) * (Signed ? 1 : 2);
  if (value != value) return sizeof(Floating) == 8 || sizeof(Integer) == 8 ? HighestBit : 0;
  const Floating integral = roundToIntegral<R>(value);
  if (integral >= Limit) return Highest;
  if (integral <= static_cast<Floating>(Lowest)) return Lowest;
  return static_cast<Integer>(integral);
}

// Returns `nearest` or the neighbour of it that R requires, given on which side of the exact value it is.
template <Rounding R, class Floating>
Floating directed(Floating nearest, bool above, bool below) {
  const Floating infinity = __builtin_inf();
  const bool goDown = above && (R == Rounding::Down || (R == Rounding::Zero && nearest > 0));
  const bool goUp = below && (R == Rounding::Up || (R == Rounding::Zero && nearest < 0));
  if (!goDown && !goUp) return nearest;
  const Floating towards = goUp ? infinity : -infinity;
  return sizeof(Floating) == 4 ? __builtin_nextafterf(nearest, towards) : __builtin_nextafter(nearest, towards);
}
template <class Floating, Rounding R, class Integer>
Floating fromInteger(Integer value) {
  const Floating nearest = static_cast<Floating>(value);
  const Int128 integer = static_cast<Int128>(nearest);
  return directed<R>(nearest, integer > value, integer < value);
}
template <Rounding R>
float fromDouble(double value) {
  const float nearest = static_cast<float>(value);
  return directed<R>(nearest, nearest > value, nearest < value);
}

// Returns the value itself, which the compiler does not see through: it fuses no multiplication with an addition.
template <class Floating>
Floating opaque(Floating value) {
#if defined(__x86_64__)
  __asm__("" : "+x"(value));
#elif defined(__aarch64__)
  __asm__("" : "+w"(value));
#else
  __asm__("" : "+m"(value));
#endif
  return value;
}

}  // namespace mscclpp_sim

// ---- bits

inline int __float_as_int(float value) { return mscclpp_sim::bitCast<int>(value); }
inline unsigned int __float_as_uint(float value) { return mscclpp_sim::bitCast<unsigned int>(value); }
inline float __int_as_float(int bits) { return mscclpp_sim::bitCast<float>(bits); }
inline float __uint_as_float(unsigned int bits) { return mscclpp_sim::bitCast<float>(bits); }
inline long long __double_as_longlong(double value) { return mscclpp_sim::bitCast<long long>(value); }
inline double __longlong_as_double(long long bits) { return mscclpp_sim::bitCast<double>(bits); }
inline int __double2hiint(double value) { return static_cast<int>(__double_as_longlong(value) >> 32); }
inline int __double2loint(double value) { return static_cast<int>(__double_as_longlong(value)); }
inline double __hiloint2double(int high, int low) {
  return mscclpp_sim::bitCast<double>(static_cast<unsigned long long>(static_cast<unsigned int>(high)) << 32 |
                                       static_cast<unsigned int>(low));
}

// ---- conversions

#define MSCCLPP_SIM_ROUNDINGS(TO, NAME, FROM, FUNCTION)                                                         \
  inline TO NAME##_rn(FROM value) { return mscclpp_sim::FUNCTION<TO, mscclpp_sim::Rounding::Nearest>(value); } \
  inline TO NAME##_rz(FROM value) { return mscclpp_sim::FUNCTION<TO, mscclpp_sim::Rounding::Zero>(value); }    \
  inline TO NAME##_ru(FROM value) { return mscclpp_sim::FUNCTION<TO, mscclpp_sim::Rounding::Up>(value); }      \
  inline TO NAME##_rd(FROM value) { return mscclpp_sim::FUNCTION<TO, mscclpp_sim::Rounding::Down>(value); }
MSCCLPP_SIM_ROUNDINGS(int, __float2int, float, toInteger)
MSCCLPP_SIM_ROUNDINGS(unsigned int, __float2uint, float, toInteger)
MSCCLPP_SIM_ROUNDINGS(long long, __float2ll, float, toInteger)
MSCCLPP_SIM_ROUNDINGS(unsigned long long, __float2ull, float, toInteger)
MSCCLPP_SIM_ROUNDINGS(int, __double2int, double, toInteger)
MSCCLPP_SIM_ROUNDINGS(unsigned int, __double2uint, double, toInteger)
MSCCLPP_SIM_ROUNDINGS(long long, __double2ll, double, toInteger)
MSCCLPP_SIM_ROUNDINGS(unsigned long long, __double2ull, double, toInteger)
MSCCLPP_SIM_ROUNDINGS(float, __int2float, int, fromInteger)
MSCCLPP_SIM_ROUNDINGS(float, __uint2float, unsigned int, fromInteger)
MSCCLPP_SIM_ROUNDINGS(float, __ll2float, long long, fromInteger)
MSCCLPP_SIM_ROUNDINGS(float, __ull2float, unsigned long long, fromInteger)
MSCCLPP_SIM_ROUNDINGS(double, __ll2double, long long, fromInteger)
MSCCLPP_SIM_ROUNDINGS(double, __ull2double, unsigned long long, fromInteger)
#undef MSCCLPP_SIM_ROUNDINGS

inline double __int2double_rn(int value) { return value; }
inline double __uint2double_rn(unsigned int value) { return value; }
inline float __double2float_rn(double value) { return static_cast<float>(value); }
inline float __double2float_rz(double value) { return mscclpp_sim::fromDouble<mscclpp_sim::Rounding::Zero>(value); }
inline float __double2float_ru(double value) { return mscclpp_sim::fromDouble<mscclpp_sim::Rounding::Up>(value); }
inline float __double2float_rd(double value) { return mscclpp_sim::fromDouble<mscclpp_sim::Rounding::Down>(value); }

// ---- arithmetic, each operation rounded to nearest by itself

#define MSCCLPP_SIM_ARITHMETIC(TYPE, PREFIX, FMA, DIVIDE, RECIPROCAL, SQRT)         \
  inline TYPE PREFIX##add_rn(TYPE a, TYPE b) { return mscclpp_sim::opaque(a + b); } \
  inline TYPE PREFIX##sub_rn(TYPE a, TYPE b) { return mscclpp_sim::opaque(a - b); } \
  inline TYPE PREFIX##mul_rn(TYPE a, TYPE b) { return mscclpp_sim::opaque(a * b); } \
  inline TYPE FMA(TYPE a, TYPE b, TYPE c) {                                          \
    return sizeof(TYPE) == 4 ? __builtin_fmaf(a, b, c) : __builtin_fma(a, b, c);     \
  }                                                                                  \
  inline TYPE DIVIDE(TYPE a, TYPE b) { return a / b; }                               \
  inline TYPE RECIPROCAL(TYPE a) { return 1 / a; }                                   \
  inline TYPE SQRT(TYPE a) { return sizeof(TYPE) == 4 ? __builtin_sqrtf(a) : __builtin_sqrt(a); }
MSCCLPP_SIM_ARITHMETIC(float, __f, __fmaf_rn, __fdiv_rn, __frcp_rn, __fsqrt_rn)
MSCCLPP_SIM_ARITHMETIC(double, __d, __fma_rn, __ddiv_rn, __drcp_rn, __dsqrt_rn)
#undef MSCCLPP_SIM_ARITHMETIC

// glibc has a `__expf` and its like of its own, which do the same; so these are declared not to throw, as those are.
inline float __fdividef(float a, float b) noexcept { return a / b; }
inline float fdividef(float a, float b) noexcept { return a / b; }
inline double rsqrt(double a) noexcept { return 1 / __builtin_sqrt(a); }
inline float rsqrtf(float a) noexcept { return static_cast<float>(rsqrt(static_cast<double>(a))); }
inline float rsqrt(float a) noexcept { return rsqrtf(a); }
inline float __frsqrt_rn(float a) noexcept { return rsqrtf(a); }
inline double rcbrt(double a) noexcept { return 1 / __builtin_cbrt(a); }
inline float rcbrtf(float a) noexcept { return static_cast<float>(rcbrt(static_cast<double>(a))); }
inline float __saturatef(float a) noexcept { return a > 0 ? (a < 1 ? a : 1.0f) : 0.0f; }
inline float __expf(float a) noexcept { return __builtin_expf(a); }
inline float __exp10f(float a) noexcept { return __builtin_powf(10, a); }
inline float __logf(float a) noexcept { return __builtin_logf(a); }
inline float __log2f(float a) noexcept { return __builtin_log2f(a); }
inline float __log10f(float a) noexcept { return __builtin_log10f(a); }
inline float __powf(float a, float b) noexcept { return __builtin_powf(a, b); }
inline float __sinf(float a) noexcept { return __builtin_sinf(a); }
inline float __cosf(float a) noexcept { return __builtin_cosf(a); }
inline float __tanf(float a) noexcept { return __builtin_tanf(a); }
inline void __sincosf(float a, float* sine, float* cosine) noexcept {
  *sine = __builtin_sinf(a);
  *cosine = __builtin_cosf(a);
}

// ---- minima and maxima: NaN and a number give the number, and -0 is less than +0

namespace mscclpp_sim {

template <class Floating>
Floating lesser(Floating a, Floating b) {
  if (a != a) return b;
  return b != b || a < b || (a == b && __builtin_signbit(a)) ? a : b;
}
template <class Floating>
Floating greater(Floating a, Floating b) {
  if (a != a) return b;
  return b != b || a > b || (a == b && !__builtin_signbit(a)) ? a : b;
}

}  // namespace mscclpp_sim

inline float min(float a, float b) { return mscclpp_sim::lesser(a, b); }
inline double min(double a, double b) { return mscclpp_sim::lesser(a, b); }
inline double min(float a, double b) { return mscclpp_sim::lesser<double>(a, b); }
inline double min(double a, float b) { return mscclpp_sim::lesser<double>(a, b); }
inline float max(float a, float b) { return mscclpp_sim::greater(a, b); }
inline double max(double a, double b) { return mscclpp_sim::greater(a, b); }
inline double max(float a, double b) { return mscclpp_sim::greater<double>(a, b); }
inline double max(double a, float b) { return mscclpp_sim::greater<double>(a, b); }

#endif  // MSCCLPP_SIM_FLOATS_HPP_
