// half and bfloat16: conversions of every number there is, against their definition; arithmetic, against integers.

#include "check.hpp"
#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef __int128 Integer;

// The definition of a format's numbers: significand * 2^exponent.
struct Value {
  Integer significand;
  int exponent;
};

template <class T>
struct Of;
template <>
struct Of<__half> {
  static constexpr int Fraction = 10, Bias = 15;
  static __half from(unsigned bits) { return __ushort_as_half(static_cast<unsigned short>(bits)); }
  static unsigned bits(__half value) { return __half_as_ushort(value); }
  // Numbers to calculate with: all numbers of the format.
  static unsigned pick(Random& random) { return random.below(0x10000); }
  static unsigned first() { return 0; }
  static unsigned last() { return 0x7bff; }
  template <mscclpp_sim::Rounding R>
  static unsigned round(double value) {
    return mscclpp_sim::NarrowFormat<5>::round<R>(value);
  }
};
template <>
struct Of<__nv_bfloat16> {
  static constexpr int Fraction = 7, Bias = 127;
  static __nv_bfloat16 from(unsigned bits) { return __ushort_as_bfloat16(static_cast<unsigned short>(bits)); }
  static unsigned bits(__nv_bfloat16 value) { return __bfloat16_as_ushort(value); }
  // Numbers between 2^-20 and 2^20, as the integers below have 127 bits.
  static unsigned pick(Random& random) {
    return (random.below(2) << 15) | ((127 - 20 + random.below(40)) << 7) | random.below(128);
  }
  // The results that are checked: between 2^-40 and 2^45.
  static unsigned first() { return (127 - 40) << 7; }
  static unsigned last() { return (127 + 45) << 7; }
  template <mscclpp_sim::Rounding R>
  static unsigned round(double value) {
    return mscclpp_sim::NarrowFormat<8>::round<R>(value);
  }
};

template <class T>
constexpr unsigned Infinity = 0x7fff >> Of<T>::Fraction << Of<T>::Fraction;

// Returns the number of the magnitude `bits`; for infinity, the number that would follow the largest one.
template <class T>
Value valueOf(unsigned bits) {
  const int field = static_cast<int>(bits >> Of<T>::Fraction);
  const Integer fraction = bits & ((1u << Of<T>::Fraction) - 1);
  if (field == 0) return {fraction, 1 - Of<T>::Bias - Of<T>::Fraction};
  return {fraction + (1 << Of<T>::Fraction), field - Of<T>::Bias - Of<T>::Fraction};
}
// Returns the number halfway from the magnitude `bits` to the next one.
template <class T>
Value halfway(unsigned bits) {
  const Value value = valueOf<T>(bits);
  return {value.significand * 2 + 1, value.exponent - 1};
}

template <class T>
void convertsEveryNumber() {
  using R = mscclpp_sim::Rounding;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const unsigned magnitude = bits & 0x7fff, sign = bits & 0x8000;
    const float value = Of<T>::from(bits);
    CHECK(!!signbit(value) == (sign != 0));
    if (magnitude > Infinity<T>) {
      CHECK(isnan(value) && __hisnan(Of<T>::from(bits)));
      CHECK((Of<T>::bits(T(value)) & 0x7fff) > Infinity<T>);
      continue;
    }
    if (magnitude == Infinity<T>) {
      CHECK(isinf(value) && __hisinf(Of<T>::from(bits)) == (sign != 0 ? -1 : 1));
      CHECK(Of<T>::bits(T(value)) == bits);
      continue;
    }
    const auto asDouble = [](Value v) { return ldexp(static_cast<double>(v.significand), v.exponent); };
    const double exact = asDouble(valueOf<T>(magnitude)), tie = asDouble(halfway<T>(magnitude));
    CHECK(fabs(static_cast<double>(value)) == exact);
    CHECK(!__hisnan(Of<T>::from(bits)) && __hisinf(Of<T>::from(bits)) == 0);

    // This number; one just above it; those just below, at and just above the point halfway to the next; and one
    // just below the next one.
    const unsigned next = magnitude + 1, nearestToTie = magnitude % 2 == 0 ? magnitude : next;
    const unsigned notMore = next == Infinity<T> ? magnitude : next;
    const struct {
      double value;
      unsigned nearest;
      bool isExact;
    } points[] = {{exact, magnitude, true},
                  {nextafter(exact, HUGE_VAL), magnitude, false},
                  {nextafter(tie, 0), magnitude, false},
                  {tie, nearestToTie, false},
                  {nextafter(tie, HUGE_VAL), next, false},
                  {nextafter(asDouble(valueOf<T>(next)), 0), next, false}};
    for (const auto& point : points) {
      const double number = sign != 0 ? -point.value : point.value;
      const unsigned outward = point.isExact ? magnitude : next;
      CHECK(Of<T>::template round<R::Nearest>(number) == (point.nearest | sign));
      CHECK(Of<T>::template round<R::Zero>(number) == (magnitude | sign));
      CHECK(Of<T>::template round<R::Up>(number) == ((sign == 0 ? outward : magnitude) | sign));
      CHECK(Of<T>::template round<R::Down>(number) == ((sign != 0 ? outward : magnitude) | sign));
      CHECK(Of<T>::bits(T(number)) == (point.nearest | sign));
      if (static_cast<double>(static_cast<float>(number)) == number) {
        CHECK(Of<T>::bits(T(static_cast<float>(number))) == (point.nearest | sign));
      }
    }
    // Far beyond the largest number.
    if (next == Infinity<T>) {
      CHECK(Of<T>::template round<R::Nearest>(1e300) == Infinity<T>);
      CHECK(Of<T>::template round<R::Zero>(1e300) == notMore);
      CHECK(Of<T>::template round<R::Down>(1e300) == notMore && Of<T>::template round<R::Up>(1e300) == Infinity<T>);
      CHECK(Of<T>::template round<R::Up>(-1e300) == (notMore | 0x8000));
    }
  }
}

// Returns the magnitude nearest to a number for which `compare(point)` returns whether it is below (-1), at (0) or above
// (1) the point. Returns none if the number is out of the bounds of this test.
template <class T, class Compare>
bool nearest(Compare compare, unsigned& result) {
  unsigned low = Of<T>::first(), high = Of<T>::last() + 1;
  if (low > 0 && compare(halfway<T>(low)) < 0) return false;
  while (low < high) {
    const unsigned middle = (low + high) / 2;
    const int side = compare(halfway<T>(middle));
    if (side < 0 || (side == 0 && middle % 2 == 0)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  result = low;
  return low <= Of<T>::last() || Of<T>::first() == 0;
}

int compareIntegers(Integer a, Integer b) { return a < b ? -1 : a > b ? 1 : 0; }

// a * 2^shift and b.
int compareShifted(Integer a, int shift, Integer b) {
  // Beyond these shifts the sides are far apart.
  if (shift > 64) return a == 0 ? compareIntegers(0, b) : 1;
  if (shift < -64) return b == 0 ? compareIntegers(a, 0) : -1;
  return shift >= 0 ? compareIntegers(a << shift, b) : compareIntegers(a, b << -shift);
}

template <class T>
void calculatesExactly() {
  constexpr int Unit = 60;
  Random random(Of<T>::Fraction);
  const auto signedValue = [](unsigned bits) {
    Value value = valueOf<T>(bits & 0x7fff);
    if ((bits & 0x8000) != 0) value.significand = -value.significand;
    return value;
  };
  const auto power = [](int exponent) { return static_cast<Integer>(1) << exponent; };
  const auto scaled = [&](Value value) { return value.significand * power(value.exponent + Unit); };
  unsigned checked = 0;
  for (int i = 0; i < 300000; ++i) {
    const unsigned bits[3] = {Of<T>::pick(random), Of<T>::pick(random), Of<T>::pick(random)};
    bool finite = true;
    for (unsigned each : bits) finite = finite && (each & 0x7fff) < Infinity<T>;
    if (!finite) continue;
    const T a = Of<T>::from(bits[0]), b = Of<T>::from(bits[1]), c = Of<T>::from(bits[2]);
    const Value x = signedValue(bits[0]), y = signedValue(bits[1]), z = signedValue(bits[2]);
    const Integer product = x.significand * y.significand * power(x.exponent + y.exponent + Unit);

    const auto checkSum = [&](Integer exact, T result) {
      const bool negative = exact < 0;
      const Integer size = negative ? -exact : exact;
      unsigned expected;
      const auto compare = [&](Value point) { return compareIntegers(size, scaled(point)); };
      if (!nearest<T>(compare, expected)) return;
      // The sign of an exact zero is not checked here.
      CHECK((Of<T>::bits(result) & 0x7fff) == expected && (size == 0 || (Of<T>::bits(result) >> 15 != 0) == negative));
      ++checked;
    };
    checkSum(scaled(x) + scaled(y), a + b);
    checkSum(scaled(x) - scaled(y), a - b);
    checkSum(product, a * b);
    checkSum(product + scaled(z), __hfma(a, b, c));

    const unsigned sign = (bits[0] ^ bits[1]) >> 15;
    const Integer dividend = x.significand < 0 ? -x.significand : x.significand;
    const Integer divisor = y.significand < 0 ? -y.significand : y.significand;
    unsigned expected;
    const auto compareQuotient = [&](Value point) {
      return compareShifted(dividend, x.exponent - y.exponent - point.exponent, point.significand * divisor);
    };
    if (divisor != 0 && nearest<T>(compareQuotient, expected)) {
      CHECK(Of<T>::bits(a / b) == (expected | sign << 15));
      ++checked;
    }
    const auto compareRoot = [&](Value point) {
      return compareShifted(dividend, x.exponent - 2 * point.exponent, point.significand * point.significand);
    };
    if (nearest<T>(compareRoot, expected)) {
      CHECK(Of<T>::bits(hsqrt(__habs(a))) == expected);
      ++checked;
    }

    CHECK((a < b) == (scaled(x) < scaled(y)) && (a <= b) == (scaled(x) <= scaled(y)));
    CHECK((a == b) == (scaled(x) == scaled(y)) && (a != b) == (scaled(x) != scaled(y)));
    CHECK((a > b) == (scaled(x) > scaled(y)) && (a >= b) == (scaled(x) >= scaled(y)));
    CHECK(__hmax(a, b) == (a < b ? b : a) && __hmin(a, b) == (a < b ? a : b));
  }
  CHECK(checked > 1000000);
}

// The half type of the compiler, where it has one.
#if defined(__aarch64__)
#define COMPILERS_HALF __fp16
#elif defined(__FLT16_MANT_DIG__)
#define COMPILERS_HALF _Float16
#endif
#if defined(COMPILERS_HALF)
void agreesWithTheCompiler() {
  Random random(16);
  for (int i = 0; i < 1000000; ++i) {
    const uint64_t bits = random.next();
    const float value = __uint_as_float(static_cast<unsigned>(bits >> 20));
    const __half own = value;
    const COMPILERS_HALF theirs = static_cast<COMPILERS_HALF>(value);
    CHECK(isnan(value) ? __hisnan(own) : __half_as_ushort(own) == mscclpp_sim::bitCast<unsigned short>(theirs));
  }
}
#endif

void knowsWhatIsSpecial() {
  const __half inf = CUDART_INF_FP16, nan = CUDART_NAN_FP16, zero = CUDART_ZERO_FP16, minusZero = CUDART_NEG_ZERO_FP16;
  const __half one = 1.0f, largest = CUDART_MAX_NORMAL_FP16;
  CHECK(__hisnan(inf - inf) && __hisnan(inf * zero) && __hisnan(zero / zero) && __hisnan(hsqrt(-one)));
  CHECK(__hisinf(one / zero) == 1 && __hisinf(one / minusZero) == -1 && __hisinf(largest + largest) == 1);
  CHECK(__hisinf(__hfma(largest, largest, -largest)) == 1);
  // Half of the last place more than the largest is infinity already, less is not.
  CHECK(__half_as_ushort(largest + __half(15.99f)) == 0x7bff && __hisinf(largest + __half(16.0f)) == 1);
  CHECK(__half_as_ushort(zero + minusZero) == 0 && __half_as_ushort(minusZero + minusZero) == 0x8000);
  CHECK(zero == minusZero && !(nan == nan) && nan != nan && !(nan < one) && !(nan >= one));
  CHECK(__hequ(nan, one) && __hltu(nan, one) && !__heq(nan, one) && !__hne(nan, one) && __hneu(nan, one));
  CHECK(__half_as_ushort(__hmax(nan, one)) == 0x3c00 && __half_as_ushort(__hmin(one, nan)) == 0x3c00);
  CHECK(__hisnan(__hmax(nan, nan)) && __hisnan(__hmax_nan(nan, one)) && __hisnan(__hmin_nan(one, nan)));
  CHECK(__half_as_ushort(__hmax(minusZero, zero)) == 0 && __half_as_ushort(__hmin(zero, minusZero)) == 0x8000);
  CHECK(__half_as_ushort(__hadd_sat(one, one)) == 0x3c00 && __half_as_ushort(__hadd_sat(nan, one)) == 0);
  CHECK(__half_as_ushort(__hfma_relu(one, -one, zero)) == 0 && __hisnan(__hfma_relu(nan, one, one)));

  // A product halfway between two numbers, and a summand far below the last place of a double.
  const __nv_bfloat16 tiny = __double2bfloat16(ldexp(1, -100));
  const auto fused = [](float a, float b, __nv_bfloat16 c) {
    return __bfloat162float(__hfma(__nv_bfloat16(a), __nv_bfloat16(b), c));
  };
  CHECK(fused(7, 37, __nv_bfloat16(0.0f)) == 260 && fused(7, 37, -tiny) == 258 && fused(7, 37, tiny) == 260);
  CHECK(fused(9, 29, __nv_bfloat16(0.0f)) == 260 && fused(9, 29, -tiny) == 260 && fused(9, 29, tiny) == 262);
  CHECK(fused(-7, 37, tiny) == -258 && fused(-9, 29, -tiny) == -262);
  // Products among the subnormal numbers, of which the smallest is 2^-133.
  const auto power = [](int exponent) { return __double2bfloat16(ldexp(1, exponent)); };
  CHECK(__bfloat16_as_ushort(power(-70) * power(-63)) == 1 && __bfloat16_as_ushort(power(-70) * power(-64)) == 0);
  CHECK(__bfloat16_as_ushort(power(-67) * __nv_bfloat16(1.5f) * power(-67)) == 1);

  // Integers round once: this one is just above a tie, by less than a double of its size holds.
  const long long aboveTie = (1ll << 62) + (1ll << 54) + 1;
  CHECK(__bfloat16_as_ushort(__nv_bfloat16(aboveTie)) == ((127 + 62) << 7 | 1));
  CHECK(__bfloat16_as_ushort(__nv_bfloat16(aboveTie - 1)) == (127 + 62) << 7);
  CHECK(__bfloat16_as_ushort(__ll2bfloat16_rd(-aboveTie)) == (0x8000 | (127 + 62) << 7 | 1));
  CHECK(__bfloat16_as_ushort(__ll2bfloat16_rz(-aboveTie)) == (0x8000 | (127 + 62) << 7));
  CHECK(__bfloat16_as_ushort(__ull2bfloat16_rn(~0ull)) == (127 + 64) << 7);
  CHECK(__half_as_ushort(__int2half_rn(65519)) == 0x7bff && __half_as_ushort(__int2half_rn(65520)) == 0x7c00);
  CHECK(__half_as_ushort(__int2half_rz(1 << 20)) == 0x7bff && __half_as_ushort(__uint2half_ru(2049)) == 0x6801);
  CHECK(__half2int_rn(__half(2.5f)) == 2 && __half2int_ru(__half(2.5f)) == 3 && __half2int_rz(__half(-2.5f)) == -2);
  CHECK(__half2int_rd(__half(-2.5f)) == -3 && __half2uint_rz(__half(-2.5f)) == 0 && __half2int_rn(nan) == 0);
  CHECK(__half2short_rn(inf) == 32767 && __half2short_rz(-inf) == -32768 && __half2ushort_rd(inf) == 65535);
  CHECK(__half2ll_rn(inf) == 0x7fffffffffffffffll && __half2ull_rn(largest) == 65504);
}

// The functions of pairs do to each half what those of numbers do; low is first in memory.
template <class Pair, class Make>
void pairsAreTwoNumbers(Make make) {
  const Pair a = make(1.5f, -2.0f), b = make(0.25f, 4.0f), c = make(1.0f, 0.5f);
  const auto is = [](Pair pair, float low, float high) {
    return __low2float(pair) == low && __high2float(pair) == high;
  };
  CHECK(is(a + b, 1.75f, 2) && is(a - b, 1.25f, -6) && is(a * b, 0.375f, -8) && is(a / b, 6, -0.5f));
  CHECK(is(__hadd2(a, b), 1.75f, 2) && is(__hsub2(a, b), 1.25f, -6) && is(__hmul2(a, b), 0.375f, -8));
  CHECK(is(__h2div(a, b), 6, -0.5f) && is(__hfma2(a, b, c), 1.375f, -7.5f));
  CHECK(is(-a, -1.5f, 2) && is(__habs2(a), 1.5f, 2));
  CHECK(is(__hmax2(a, b), 1.5f, 4) && is(__hmin2(a, b), 0.25f, -2) && is(__hneg2(b), -0.25f, -4));
  CHECK(is(__heq2(a, make(1.5f, 2)), 1, 0) && is(__hgt2(a, b), 1, 0) && is(__hltu2(a, b), 0, 1));
  CHECK(__heq2_mask(a, make(1.5f, 2)) == 0xffff && __hgt2_mask(make(1, 0), make(2, -1)) == 0xffff0000u);
  CHECK(__hbeq2(a, a) && !__hbeq2(a, make(1.5f, 2)) && a == a && a != b && !(a < b) && __hblt2(a, make(2, 2)));
  CHECK(is(__lowhigh2highlow(a), -2, 1.5f) && is(h2exp2(make(3, -1)), 8, 0.5f) && is(h2rcp(b), 4, 0.25f));
  Pair sum = a;
  sum += b;
  sum *= b;
  CHECK(is(sum, 0.4375f, 8));
  CHECK(is(atomicAdd(&sum, b), 0.4375f, 8) && is(sum, 0.6875f, 12));
  unsigned short halves[2];
  memcpy(halves, &sum, 4);
  const auto low = sum.x;
  CHECK(memcmp(halves, &low, 2) == 0);
  auto number = a.x;
  CHECK(static_cast<float>(atomicAdd(&number, b.y)) == 1.5f && static_cast<float>(number) == 5.5f);
  CHECK(static_cast<float>(__ldg(&number)) == 5.5f && is(__ldcg(&sum), 0.6875f, 12));
  CHECK(static_cast<float>(number++) == 5.5f && static_cast<float>(--number) == 5.5f);
}

int main() {
  convertsEveryNumber<__half>();
  convertsEveryNumber<__nv_bfloat16>();
  calculatesExactly<__half>();
  calculatesExactly<__nv_bfloat16>();
#if defined(COMPILERS_HALF)
  agreesWithTheCompiler();
#endif
  knowsWhatIsSpecial();
  pairsAreTwoNumbers<__half2>([](float low, float high) { return __floats2half2_rn(low, high); });
  pairsAreTwoNumbers<__nv_bfloat162>([](float low, float high) { return __floats2bfloat162_rn(low, high); });
  return 0;
}
