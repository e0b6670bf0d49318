// The type of a number of 16 bits and of a pair of them, and their functions. cuda_fp16.h and cuda_bf16.h each include
// this once, since CUDA gives both kinds the same functions. They define
//
// - NARROW and NARROW2, the types, and NARROW_RAW and NARROW2_RAW, those of their bits;
// - NARROW_FORMAT, the format of the bits;
// - NARROW_NAME(before, after), a name in which CUDA puts the kind: __int2half_rn is NARROW_NAME(__int2, _rn).

struct NARROW_RAW {
  unsigned short x;
};
struct alignas(4) NARROW2_RAW {
  unsigned short x, y;
};

struct NARROW {
  NARROW() = default;
  constexpr NARROW(const NARROW_RAW& raw) : bits(raw.x) {}
  NARROW(float value) : bits(NARROW_FORMAT::round(value)) {}
  NARROW(double value) : bits(NARROW_FORMAT::round(value)) {}
  NARROW(short value) : bits(NARROW_FORMAT::round(value)) {}
  NARROW(unsigned short value) : bits(NARROW_FORMAT::round(value)) {}
  NARROW(int value) : bits(NARROW_FORMAT::round(value)) {}
  NARROW(unsigned int value) : bits(NARROW_FORMAT::round(value)) {}
  NARROW(long value) : bits(NARROW_FORMAT::round(mscclpp_sim::integerToOdd(value))) {}
  NARROW(unsigned long value) : bits(NARROW_FORMAT::round(mscclpp_sim::integerToOdd(value))) {}
  NARROW(long long value) : bits(NARROW_FORMAT::round(mscclpp_sim::integerToOdd(value))) {}
  NARROW(unsigned long long value) : bits(NARROW_FORMAT::round(mscclpp_sim::integerToOdd(value))) {}

  operator float() const { return NARROW_FORMAT::widen(bits); }
  constexpr operator NARROW_RAW() const { return {bits}; }

 private:
  unsigned short bits;
};

struct alignas(4) NARROW2 {
  NARROW x, y;

  NARROW2() = default;
  constexpr NARROW2(const NARROW& low, const NARROW& high) : x(low), y(high) {}
  constexpr NARROW2(const NARROW2_RAW& raw) : x(NARROW_RAW{raw.x}), y(NARROW_RAW{raw.y}) {}
  constexpr operator NARROW2_RAW() const { return {NARROW_RAW(x).x, NARROW_RAW(y).x}; }
};

static_assert(sizeof(NARROW) == 2 && alignof(NARROW) == 2, "as in CUDA");
static_assert(sizeof(NARROW2) == 4 && alignof(NARROW2) == 4, "as in CUDA");

// ---- bits

constexpr NARROW NARROW_NAME(__ushort_as_, )(unsigned short bits) { return NARROW_RAW{bits}; }
constexpr NARROW NARROW_NAME(__short_as_, )(short bits) { return NARROW_RAW{static_cast<unsigned short>(bits)}; }
constexpr unsigned short NARROW_NAME(__, _as_ushort)(NARROW a) { return NARROW_RAW(a).x; }
constexpr short NARROW_NAME(__, _as_short)(NARROW a) { return static_cast<short>(NARROW_RAW(a).x); }

constexpr bool __hisnan(NARROW a) { return (NARROW_RAW(a).x & 0x7fff) > NARROW_FORMAT::Infinity; }
// 1 and -1 for the infinities, 0 for all others.
constexpr int __hisinf(NARROW a) {
  return (NARROW_RAW(a).x & 0x7fff) != NARROW_FORMAT::Infinity ? 0 : NARROW_RAW(a).x < 0x8000 ? 1 : -1;
}

// ---- conversions

inline float NARROW_NAME(__, 2float)(NARROW a) { return a; }
inline NARROW NARROW_NAME(__float2, )(float a) { return a; }
inline NARROW NARROW_NAME(__double2, )(double a) { return a; }

#define NARROW_FROM(SUFFIX, R, NAME, FROM)                                                             \
  inline NARROW NAME(FROM a) {                                                                         \
    return NARROW_RAW{NARROW_FORMAT::round<mscclpp_sim::Rounding::R>(mscclpp_sim::integerToOdd(a))}; \
  }
#define NARROW_TO(R, NAME, TO) \
  inline TO NAME(NARROW a) { return mscclpp_sim::toInteger<TO, mscclpp_sim::Rounding::R>(static_cast<float>(a)); }
#define NARROW_ROUNDING(SUFFIX, R)                                         \
  inline NARROW NARROW_NAME(__float2, SUFFIX)(float a) {                   \
    return NARROW_RAW{NARROW_FORMAT::round<mscclpp_sim::Rounding::R>(a)}; \
  }                                                                        \
  NARROW_FROM(SUFFIX, R, NARROW_NAME(__short2, SUFFIX), short)             \
  NARROW_FROM(SUFFIX, R, NARROW_NAME(__ushort2, SUFFIX), unsigned short)   \
  NARROW_FROM(SUFFIX, R, NARROW_NAME(__int2, SUFFIX), int)                 \
  NARROW_FROM(SUFFIX, R, NARROW_NAME(__uint2, SUFFIX), unsigned int)       \
  NARROW_FROM(SUFFIX, R, NARROW_NAME(__ll2, SUFFIX), long long)            \
  NARROW_FROM(SUFFIX, R, NARROW_NAME(__ull2, SUFFIX), unsigned long long)  \
  NARROW_TO(R, NARROW_NAME(__, 2short##SUFFIX), short)                     \
  NARROW_TO(R, NARROW_NAME(__, 2ushort##SUFFIX), unsigned short)           \
  NARROW_TO(R, NARROW_NAME(__, 2int##SUFFIX), int)                         \
  NARROW_TO(R, NARROW_NAME(__, 2uint##SUFFIX), unsigned int)               \
  NARROW_TO(R, NARROW_NAME(__, 2ll##SUFFIX), long long)                    \
  NARROW_TO(R, NARROW_NAME(__, 2ull##SUFFIX), unsigned long long)
NARROW_ROUNDING(_rn, Nearest)
NARROW_ROUNDING(_rz, Zero)
NARROW_ROUNDING(_ru, Up)
NARROW_ROUNDING(_rd, Down)
#undef NARROW_FROM
#undef NARROW_TO
#undef NARROW_ROUNDING

// ---- pairs

constexpr NARROW2 NARROW_NAME(make_, 2)(NARROW low, NARROW high) { return {low, high}; }
constexpr NARROW2 NARROW_NAME(__halves2, 2)(NARROW low, NARROW high) { return {low, high}; }
inline NARROW2 NARROW_NAME(__float2, 2_rn)(float a) { return {a, a}; }
inline NARROW2 NARROW_NAME(__floats2, 2_rn)(float low, float high) { return {low, high}; }
inline NARROW2 NARROW_NAME(__float22, 2_rn)(float2 a) { return {a.x, a.y}; }
inline float2 NARROW_NAME(__, 22float2)(NARROW2 a) { return {a.x, a.y}; }
inline float __low2float(NARROW2 a) { return a.x; }
inline float __high2float(NARROW2 a) { return a.y; }
constexpr NARROW NARROW_NAME(__low2, )(NARROW2 a) { return a.x; }
constexpr NARROW NARROW_NAME(__high2, )(NARROW2 a) { return a.y; }
constexpr NARROW2 NARROW_NAME(__low2, 2)(NARROW2 a) { return {a.x, a.x}; }
constexpr NARROW2 NARROW_NAME(__high2, 2)(NARROW2 a) { return {a.y, a.y}; }
constexpr NARROW2 NARROW_NAME(__lows2, 2)(NARROW2 a, NARROW2 b) { return {a.x, b.x}; }
constexpr NARROW2 NARROW_NAME(__highs2, 2)(NARROW2 a, NARROW2 b) { return {a.y, b.y}; }
constexpr NARROW2 __lowhigh2highlow(NARROW2 a) { return {a.y, a.x}; }

// ---- arithmetic: of numbers, and the same of pairs

#define NARROW_UNARY(NAME, NAME2, RESULT)         \
  inline NARROW NAME(NARROW a) { return RESULT; } \
  inline NARROW2 NAME2(NARROW2 a) { return {NAME(a.x), NAME(a.y)}; }
#define NARROW_BINARY(NAME, NAME2, RESULT)                  \
  inline NARROW NAME(NARROW a, NARROW b) { return RESULT; } \
  inline NARROW2 NAME2(NARROW2 a, NARROW2 b) { return {NAME(a.x, b.x), NAME(a.y, b.y)}; }
#define NARROW_TERNARY(NAME, NAME2, RESULT)                           \
  inline NARROW NAME(NARROW a, NARROW b, NARROW c) { return RESULT; } \
  inline NARROW2 NAME2(NARROW2 a, NARROW2 b, NARROW2 c) { return {NAME(a.x, b.x, c.x), NAME(a.y, b.y, c.y)}; }

namespace mscclpp_sim {

inline NARROW saturated(NARROW a) { return __saturatef(a); }
inline NARROW notNegative(NARROW a) { return __hisnan(a) ? a : a > 0.0f ? a : NARROW(NARROW_RAW{0}); }
// Returns NaN if one of them is, and otherwise `chosen`.
inline NARROW unlessNaN(NARROW a, NARROW b, float chosen) {
  return __hisnan(a) || __hisnan(b) ? NARROW(NARROW_RAW{NARROW_FORMAT::NaN}) : NARROW(chosen);
}

}  // namespace mscclpp_sim

NARROW_UNARY(__habs, __habs2, (NARROW_RAW{static_cast<unsigned short>(NARROW_RAW(a).x & 0x7fff)}))
NARROW_UNARY(__hneg, __hneg2, (NARROW_RAW{static_cast<unsigned short>(NARROW_RAW(a).x ^ 0x8000)}))

NARROW_BINARY(__hadd, __hadd2, mscclpp_sim::addToOdd(a, b))
NARROW_BINARY(__hsub, __hsub2, mscclpp_sim::addToOdd(a, -static_cast<float>(b)))
NARROW_BINARY(__hmul, __hmul2, static_cast<double>(a) * static_cast<double>(b))
NARROW_BINARY(__hdiv, __h2div, static_cast<double>(a) / static_cast<double>(b))
NARROW_BINARY(__hadd_rn, __hadd2_rn, __hadd(a, b))
NARROW_BINARY(__hsub_rn, __hsub2_rn, __hsub(a, b))
NARROW_BINARY(__hmul_rn, __hmul2_rn, __hmul(a, b))
NARROW_BINARY(__hadd_sat, __hadd2_sat, mscclpp_sim::saturated(__hadd(a, b)))
NARROW_BINARY(__hsub_sat, __hsub2_sat, mscclpp_sim::saturated(__hsub(a, b)))
NARROW_BINARY(__hmul_sat, __hmul2_sat, mscclpp_sim::saturated(__hmul(a, b)))
NARROW_BINARY(__hmax, __hmax2, max(static_cast<float>(a), static_cast<float>(b)))
NARROW_BINARY(__hmax_nan, __hmax2_nan, mscclpp_sim::unlessNaN(a, b, max(static_cast<float>(a), static_cast<float>(b))))
NARROW_BINARY(__hmin, __hmin2, min(static_cast<float>(a), static_cast<float>(b)))
NARROW_BINARY(__hmin_nan, __hmin2_nan, mscclpp_sim::unlessNaN(a, b, min(static_cast<float>(a), static_cast<float>(b))))

NARROW_TERNARY(__hfma, __hfma2, mscclpp_sim::fusedMultiplyAdd(a, b, c))
NARROW_TERNARY(__hfma_sat, __hfma2_sat, mscclpp_sim::saturated(__hfma(a, b, c)))
NARROW_TERNARY(__hfma_relu, __hfma2_relu, mscclpp_sim::notNegative(__hfma(a, b, c)))

NARROW_UNARY(hrcp, h2rcp, 1 / static_cast<double>(a))
NARROW_UNARY(hsqrt, h2sqrt, __builtin_sqrt(a))
NARROW_UNARY(hrsqrt, h2rsqrt, 1 / __builtin_sqrt(a))
NARROW_UNARY(hexp, h2exp, __builtin_exp(a))
NARROW_UNARY(hexp2, h2exp2, __builtin_exp2(a))
NARROW_UNARY(hexp10, h2exp10, __builtin_pow(10, a))
NARROW_UNARY(hlog, h2log, __builtin_log(a))
NARROW_UNARY(hlog2, h2log2, __builtin_log2(a))
NARROW_UNARY(hlog10, h2log10, __builtin_log10(a))
NARROW_UNARY(hsin, h2sin, __builtin_sin(a))
NARROW_UNARY(hcos, h2cos, __builtin_cos(a))
NARROW_UNARY(hfloor, h2floor, __builtin_floorf(a))
NARROW_UNARY(hceil, h2ceil, __builtin_ceilf(a))
NARROW_UNARY(htrunc, h2trunc, __builtin_truncf(a))
NARROW_UNARY(hrint, h2rint, __builtin_rintf(a))

#undef NARROW_UNARY
#undef NARROW_BINARY
#undef NARROW_TERNARY

#define NARROW_OPERATOR(SIGN, NAME, NAME2)                                                 \
  inline NARROW operator SIGN(const NARROW& a, const NARROW& b) { return NAME(a, b); }     \
  inline NARROW2 operator SIGN(const NARROW2& a, const NARROW2& b) { return NAME2(a, b); } \
  inline NARROW& operator SIGN##=(NARROW& a, const NARROW& b) { return a = NAME(a, b); }   \
  inline NARROW2& operator SIGN##=(NARROW2& a, const NARROW2& b) { return a = NAME2(a, b); }
NARROW_OPERATOR(+, __hadd, __hadd2)
NARROW_OPERATOR(-, __hsub, __hsub2)
NARROW_OPERATOR(*, __hmul, __hmul2)
NARROW_OPERATOR(/, __hdiv, __h2div)
#undef NARROW_OPERATOR

inline NARROW operator+(const NARROW& a) { return a; }
inline NARROW operator-(const NARROW& a) { return __hneg(a); }
inline NARROW2 operator+(const NARROW2& a) { return a; }
inline NARROW2 operator-(const NARROW2& a) { return __hneg2(a); }
inline NARROW& operator++(NARROW& a) { return a += NARROW(1.0f); }
inline NARROW& operator--(NARROW& a) { return a -= NARROW(1.0f); }
inline NARROW operator++(NARROW& a, int) {
  const NARROW before = a;
  ++a;
  return before;
}
inline NARROW operator--(NARROW& a, int) {
  const NARROW before = a;
  --a;
  return before;
}

// ---- comparisons: false if one side is NaN, or (`u`) true then. Of pairs there are three kinds: 1 or 0 for each half
// (`2`), all ones or zeros for each half (`2_mask`), and whether it holds for both (`b`).

#define NARROW_COMPARISON_OF_PAIRS(NAME)                                                    \
  inline NARROW2 __h##NAME##2(NARROW2 a, NARROW2 b) {                                       \
    return {__h##NAME(a.x, b.x) ? 1.0f : 0.0f, __h##NAME(a.y, b.y) ? 1.0f : 0.0f};          \
  }                                                                                         \
  inline unsigned int __h##NAME##2_mask(NARROW2 a, NARROW2 b) {                             \
    return (__h##NAME(a.x, b.x) ? 0xffffu : 0u) | (__h##NAME(a.y, b.y) ? 0xffff0000u : 0u); \
  }                                                                                         \
  inline bool __hb##NAME##2(NARROW2 a, NARROW2 b) { return __h##NAME(a.x, b.x) && __h##NAME(a.y, b.y); }
#define NARROW_COMPARISON(NAME, SIGN)                                                        \
  inline bool __h##NAME(NARROW a, NARROW b) {                                                \
    return !__hisnan(a) && !__hisnan(b) && static_cast<float>(a) SIGN static_cast<float>(b); \
  }                                                                                          \
  inline bool __h##NAME##u(NARROW a, NARROW b) {                                             \
    return __hisnan(a) || __hisnan(b) || static_cast<float>(a) SIGN static_cast<float>(b);   \
  }                                                                                          \
  NARROW_COMPARISON_OF_PAIRS(NAME)                                                           \
  NARROW_COMPARISON_OF_PAIRS(NAME##u)
NARROW_COMPARISON(eq, ==)
NARROW_COMPARISON(ne, !=)
NARROW_COMPARISON(lt, <)
NARROW_COMPARISON(le, <=)
NARROW_COMPARISON(gt, >)
NARROW_COMPARISON(ge, >=)
#undef NARROW_COMPARISON
#undef NARROW_COMPARISON_OF_PAIRS

#define NARROW_COMPARING_OPERATOR(SIGN, NAME, NAME2)                                 \
  inline bool operator SIGN(const NARROW& a, const NARROW& b) { return NAME(a, b); } \
  inline bool operator SIGN(const NARROW2& a, const NARROW2& b) { return NAME2(a, b); }
NARROW_COMPARING_OPERATOR(==, __heq, __hbeq2)
NARROW_COMPARING_OPERATOR(!=, __hneu, __hbneu2)
NARROW_COMPARING_OPERATOR(<, __hlt, __hblt2)
NARROW_COMPARING_OPERATOR(<=, __hle, __hble2)
NARROW_COMPARING_OPERATOR(>, __hgt, __hbgt2)
NARROW_COMPARING_OPERATOR(>=, __hge, __hbge2)
#undef NARROW_COMPARING_OPERATOR

// ---- memory

namespace mscclpp_sim {

template <>
struct Accessible<NARROW> {
  static constexpr bool value = true;
};
template <>
struct Accessible<NARROW2> {
  static constexpr bool value = true;
};
template <>
struct IsPair<NARROW2> {
  static constexpr bool value = true;
};

inline NARROW addNarrow(NARROW* address, NARROW value, Scope scope) {
  return update(address, [value](NARROW now) { return __hadd(now, value); }, scope);
}
// Adds both halves at once, while CUDA promises only that each of them is atomic.
inline NARROW2 addNarrow(NARROW2* address, NARROW2 value, Scope scope) {
  return update(address, [value](NARROW2 now) { return __hadd2(now, value); }, scope);
}

}  // namespace mscclpp_sim

MSCCLPP_SIM_ATOMIC(atomicAdd, NARROW, addNarrow)
MSCCLPP_SIM_ATOMIC(atomicAdd, NARROW2, addNarrow)

#undef NARROW
#undef NARROW2
#undef NARROW_RAW
#undef NARROW2_RAW
#undef NARROW_FORMAT
#undef NARROW_NAME
