// CUDA's integer functions: bits, bytes, high halves of products, minima and maxima.

#ifndef MSCCLPP_SIM_INTEGERS_HPP_
#define MSCCLPP_SIM_INTEGERS_HPP_

namespace mscclpp_sim {

// Integers of twice 64 bits.
__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UInt128;

}  // namespace mscclpp_sim

// ---- bits

constexpr int __popc(unsigned int value) { return __builtin_popcount(value); }
constexpr int __popcll(unsigned long long value) { return __builtin_popcountll(value); }

// The number of zeros before the highest 1; of 0, all bits.
constexpr int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(value)); }
constexpr int __clzll(long long value) {
  return value == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(value));
}

// The place of the lowest 1, counted from 1; 0 if there is none.
constexpr int __ffs(int value) { return __builtin_ffs(value); }
constexpr int __ffsll(long long value) { return __builtin_ffsll(value); }

constexpr unsigned int __brev(unsigned int value) {
  value = (value >> 1 & 0x55555555u) | (value & 0x55555555u) << 1;
  value = (value >> 2 & 0x33333333u) | (value & 0x33333333u) << 2;
  value = (value >> 4 & 0x0f0f0f0fu) | (value & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(value);
}
constexpr unsigned long long __brevll(unsigned long long value) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned int>(value))) << 32 |
         __brev(static_cast<unsigned int>(value >> 32));
}

// Selects four of the eight bytes of high:low. Each four bits of the selector name one by the lower three.
constexpr unsigned int __byte_perm(unsigned int low, unsigned int high, unsigned int selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(high) << 32 | low;
  unsigned int result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned int place = selector >> 4 * i & 7;
    result |= static_cast<unsigned int>(bytes >> 8 * place & 0xff) << 8 * i;
  }
  return result;
}

// Shifts high:low, and returns its high or low half. The distance is modulo 32, or (`c`) 32 at most.
constexpr unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int distance) {
  return static_cast<unsigned int>((static_cast<unsigned long long>(high) << 32 | low) << (distance & 31) >> 32);
}
constexpr unsigned int __funnelshift_lc(unsigned int low, unsigned int high, unsigned int distance) {
  return distance >= 32 ? low : __funnelshift_l(low, high, distance);
}
constexpr unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int distance) {
  return static_cast<unsigned int>((static_cast<unsigned long long>(high) << 32 | low) >> (distance & 31));
}
constexpr unsigned int __funnelshift_rc(unsigned int low, unsigned int high, unsigned int distance) {
  return distance >= 32 ? high : __funnelshift_r(low, high, distance);
}

// ---- products, differences and averages

constexpr int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
constexpr unsigned int __umulhi(unsigned int a, unsigned int b) {
  return static_cast<unsigned int>(static_cast<unsigned long long>(a) * b >> 32);
}
constexpr long long __mul64hi(long long a, long long b) {
  return static_cast<long long>(static_cast<mscclpp_sim::Int128>(a) * b >> 64);
}
constexpr unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<mscclpp_sim::UInt128>(a) * b >> 64);
}

// The low 32 bits of the product of the low 24 bits.
constexpr unsigned int __umul24(unsigned int a, unsigned int b) { return (a & 0xffffffu) * (b & 0xffffffu); }
constexpr int __mul24(int a, int b) {
  const long long low24a = static_cast<int>(static_cast<unsigned int>(a) << 8) >> 8;
  const long long low24b = static_cast<int>(static_cast<unsigned int>(b) << 8) >> 8;
  return static_cast<int>(low24a * low24b);
}

// |a - b| + c.
constexpr unsigned int __usad(unsigned int a, unsigned int b, unsigned int c) { return (a > b ? a - b : b - a) + c; }
constexpr unsigned int __sad(int a, int b, unsigned int c) {
  const unsigned int difference = static_cast<unsigned int>(a) - static_cast<unsigned int>(b);
  return (a > b ? difference : 0 - difference) + c;
}

// Averages that do not overflow, rounded down, and (`r`) up.
constexpr int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
constexpr int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
constexpr unsigned int __uhadd(unsigned int a, unsigned int b) {
  return static_cast<unsigned int>((static_cast<unsigned long long>(a) + b) >> 1);
}
constexpr unsigned int __urhadd(unsigned int a, unsigned int b) {
  return static_cast<unsigned int>((static_cast<unsigned long long>(a) + b + 1) >> 1);
}

// ---- minima and maxima; of a signed and an unsigned integer, as if both were unsigned

#define MSCCLPP_SIM_MIN_MAX(RESULT, A, B)                                        \
  constexpr RESULT min(A a, B b) {                                                \
    const RESULT first = static_cast<RESULT>(a), second = static_cast<RESULT>(b); \
    return first < second ? first : second;                                       \
  }                                                                               \
  constexpr RESULT max(A a, B b) {                                                \
    const RESULT first = static_cast<RESULT>(a), second = static_cast<RESULT>(b); \
    return first < second ? second : first;                                       \
  }
#define MSCCLPP_SIM_MIN_MAX_OF_SIZE(TYPE)                 \
  MSCCLPP_SIM_MIN_MAX(TYPE, TYPE, TYPE)                   \
  MSCCLPP_SIM_MIN_MAX(unsigned TYPE, unsigned TYPE, TYPE) \
  MSCCLPP_SIM_MIN_MAX(unsigned TYPE, TYPE, unsigned TYPE) \
  MSCCLPP_SIM_MIN_MAX(unsigned TYPE, unsigned TYPE, unsigned TYPE)
MSCCLPP_SIM_MIN_MAX_OF_SIZE(int)
MSCCLPP_SIM_MIN_MAX_OF_SIZE(long)
MSCCLPP_SIM_MIN_MAX_OF_SIZE(long long)
#undef MSCCLPP_SIM_MIN_MAX
#undef MSCCLPP_SIM_MIN_MAX_OF_SIZE

constexpr unsigned int umin(unsigned int a, unsigned int b) { return min(a, b); }
constexpr unsigned int umax(unsigned int a, unsigned int b) { return max(a, b); }
constexpr long long llmin(long long a, long long b) { return min(a, b); }
constexpr long long llmax(long long a, long long b) { return max(a, b); }
constexpr unsigned long long ullmin(unsigned long long a, unsigned long long b) { return min(a, b); }
constexpr unsigned long long ullmax(unsigned long long a, unsigned long long b) { return max(a, b); }

#endif  // MSCCLPP_SIM_INTEGERS_HPP_
