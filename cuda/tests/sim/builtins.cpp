// The functions and types that CUDA's device code has without an include.

#include <thread>

// This is included before the headers' assertions are in force.
#include "check.hpp"
#include "mscclpp_sim/atomics.hpp"
#include "mscclpp_sim/intrinsics.hpp"
#include "mscclpp_sim/vector_types.hpp"

template <class T>
constexpr bool has(unsigned size, unsigned alignment) {
  return sizeof(T) == size && alignof(T) == alignment;
}

static_assert(has<char1>(1, 1) && has<char2>(2, 2) && has<char3>(3, 1) && has<char4>(4, 4), "char");
static_assert(has<uchar1>(1, 1) && has<uchar2>(2, 2) && has<uchar3>(3, 1) && has<uchar4>(4, 4), "uchar");
static_assert(has<short1>(2, 2) && has<short2>(4, 4) && has<short3>(6, 2) && has<short4>(8, 8), "short");
static_assert(has<ushort1>(2, 2) && has<ushort2>(4, 4) && has<ushort3>(6, 2) && has<ushort4>(8, 8), "ushort");
static_assert(has<int1>(4, 4) && has<int2>(8, 8) && has<int3>(12, 4) && has<int4>(16, 16), "int");
static_assert(has<uint1>(4, 4) && has<uint2>(8, 8) && has<uint3>(12, 4) && has<uint4>(16, 16), "uint");
static_assert(has<long1>(8, 8) && has<long2>(16, 16) && has<long3>(24, 8) && has<long4>(32, 16), "long");
static_assert(has<ulong1>(8, 8) && has<ulong2>(16, 16) && has<ulong3>(24, 8) && has<ulong4>(32, 16), "ulong");
static_assert(has<longlong1>(8, 8) && has<longlong2>(16, 16) && has<longlong3>(24, 8), "longlong");
static_assert(has<ulonglong1>(8, 8) && has<ulonglong2>(16, 16) && has<ulonglong3>(24, 8), "ulonglong");
static_assert(has<longlong4>(32, 16) && has<ulonglong4>(32, 16), "longlong4");
static_assert(has<float1>(4, 4) && has<float2>(8, 8) && has<float3>(12, 4) && has<float4>(16, 16), "float");
static_assert(has<double1>(8, 8) && has<double2>(16, 16) && has<double3>(24, 8) && has<double4>(32, 16), "double");
static_assert(dim3(5).x == 5 && dim3(5).y == 1 && dim3(make_uint3(1, 2, 3)).z == 3, "dim3");
static_assert(make_int4(1, 2, 3, 4).w == 4 && make_float2(1, 2).y == 2, "make_");

void bits() {
  CHECK(__popc(0xf0f0f0f0u) == 16 && __popcll(~0ull) == 64 && __popc(0) == 0);
  CHECK(__clz(0) == 32 && __clz(1) == 31 && __clz(-1) == 0 && __clzll(0) == 64 && __clzll(1ll << 40) == 23);
  CHECK(__ffs(0) == 0 && __ffs(1) == 1 && __ffs(static_cast<int>(0x80000000u)) == 32 && __ffsll(1ll << 40) == 41);
  CHECK(__brev(1) == 0x80000000u && __brev(0x12345678u) == 0x1e6a2c48u && __brevll(2) == 1ull << 62);
  CHECK(__byte_perm(0x33221100u, 0x77665544u, 0x7531) == 0x77553311u && __byte_perm(1, 2, 0x4444) == 0x02020202u);
  CHECK(__byte_perm(0x33221100u, 0x77665544u, 0x8a9b) == 0x00221133u);
  CHECK(__funnelshift_l(0x89abcdefu, 0x01234567u, 8) == 0x23456789u && __funnelshift_l(1, 2, 32) == 2);
  CHECK(__funnelshift_lc(1, 2, 32) == 1 && __funnelshift_lc(1, 2, 99) == 1 && __funnelshift_l(5, 6, 0) == 6);
  CHECK(__funnelshift_r(0x89abcdefu, 0x01234567u, 8) == 0x6789abcdu && __funnelshift_r(1, 2, 32) == 1);
  CHECK(__funnelshift_rc(1, 2, 32) == 2 && __funnelshift_rc(0x89abcdefu, 0x01234567u, 4) == 0x789abcdeu);
}

void integers() {
  CHECK(__mulhi(-1, 1) == -1 && __mulhi(0x40000000, 8) == 2 && __umulhi(~0u, ~0u) == ~0u - 1);
  CHECK(__mul64hi(-1, 1) == -1 && __umul64hi(~0ull, ~0ull) == ~0ull - 1);
  CHECK(__mul24(0x01ffffff, 3) == -3 && __umul24(0x01ffffffu, 2) == 0x01fffffeu);
  CHECK(__sad(-3, 4, 5) == 12 && __sad(2147483647, -2147483647 - 1, 0) == ~0u && __usad(1, ~0u, 2) == 0);
  CHECK(__hadd(2147483647, 1) == 1 << 30 && __rhadd(1, 2) == 2 && __hadd(-1, 0) == -1 && __uhadd(~0u, ~0u) == ~0u);
  CHECK(min(-1, 1) == -1 && min(-1, 1u) == 1u && max(-1, 1u) == ~0u && max(1ll << 40, 3ll) == 1ll << 40);
  CHECK(min(~0ull, 1ll) == 1 && umin(1, 2) == 1 && llmax(-1, 2) == 2 && ullmin(~0ull, 2) == 2 && max(2l, 3l) == 3);
  CHECK(signbit(min(0.0f, -0.0f)) && !signbit(max(-0.0f, 0.0f)) && min(__int_as_float(0x7f800001), 2.0f) == 2);
  CHECK(min(1.0f, NAN) == 1 && max(static_cast<double>(NAN), -2.0) == -2 && min(1.0f, 0.5) == 0.5);
}

void conversions() {
  CHECK(__float_as_int(-0.0f) == -2147483647 - 1 && __float_as_uint(1) == 0x3f800000u);
  CHECK(__int_as_float(0x40000000) == 2);
  CHECK(__longlong_as_double(__double_as_longlong(-2.5)) == -2.5 && __double2hiint(1.0) == 0x3ff00000);
  CHECK(__hiloint2double(0x3ff00000, -1) > 1 && __double2loint(__hiloint2double(7, -5)) == -5);
  CHECK(__float2int_rn(2.5f) == 2 && __float2int_rn(3.5f) == 4 && __float2int_rz(-2.7f) == -2);
  CHECK(__float2int_ru(2.1f) == 3 && __float2int_rd(-2.1f) == -3 && __float2int_rz(NAN) == 0);
  CHECK(__float2int_rn(3e9f) == 2147483647 && __float2int_rn(-INFINITY) == -2147483647 - 1);
  CHECK(__float2uint_rz(-1.5f) == 0 && __float2uint_rz(5e9f) == ~0u && __float2uint_rz(3e9f) == 3000000000u);
  CHECK(__float2ll_rz(NAN) == static_cast<long long>(1ull << 63) && __float2ull_rz(1e30f) == ~0ull);
  CHECK(__float2ll_rz(9.3e18f) == 0x7fffffffffffffffll && __double2ull_rz(1e19) == 10000000000000000000ull);
  CHECK(__double2int_rz(NAN) == -2147483647 - 1 && __double2int_rd(-0.5) == -1 && __double2uint_ru(0.25) == 1);
  CHECK(__int2float_rn(16777217) == 16777216 && __int2float_ru(16777217) == 16777218);
  CHECK(__int2float_rz(-16777219) == -16777218 && __int2float_rd(-16777219) == -16777220);
  CHECK(__uint2float_rz(~0u) == 4294967040.0f && __uint2float_rn(~0u) == 4294967296.0f);
  CHECK(__ull2float_rd(~0ull) < 18446744073709551616.0f && __ull2float_rn(~0ull) == 18446744073709551616.0f);
  CHECK(__ll2double_ru((1ll << 53) + 1) == 9007199254740994.0 && __ll2double_rd((1ll << 53) + 1) == 9007199254740992.0);
  CHECK(__double2float_ru(1 + 1e-10) > 1 && __double2float_rd(1 + 1e-10) == 1 && __double2float_rz(1e300) < INFINITY);
  CHECK(__double2float_rz(-1 - 1e-10) == -1 && __double2float_rd(-1 - 1e-10) < -1 && isinf(__double2float_ru(1e300)));
}

void arithmetic() {
  // Fused, the difference would be the rounding error of the product.
  volatile float third = 1.0f / 3, three = 3;
  const float product = __fmul_rn(third, third);
  CHECK(__fsub_rn(__fmul_rn(third, third), product) == 0 && __fmaf_rn(third, third, -product) != 0);
  CHECK(__fadd_rn(1, 1e-9f) == 1 && __fdiv_rn(1, three) == third && __frcp_rn(4) == 0.25f && __fsqrt_rn(9) == 3);
  CHECK(__dadd_rn(1, 2) == 3 && __dmul_rn(2, 3) == 6 && __fma_rn(2, 3, 4) == 10);
  CHECK(__dsqrt_rn(9) == 3 && __drcp_rn(4) == 0.25);
  CHECK(rsqrtf(4) == 0.5f && rsqrt(16.0) == 0.25 && __frsqrt_rn(0.25f) == 2 && rcbrtf(8) == 0.5f);
  CHECK(__saturatef(-1) == 0 && __saturatef(0.5f) == 0.5f && __saturatef(7) == 1 && __saturatef(NAN) == 0);
  CHECK(fabsf(__expf(1) - 2.7182818f) < 1e-6f && __logf(1) == 0 && __log2f(8) == 3 && fabsf(__log10f(100) - 2) < 1e-6f);
  CHECK(__powf(2, 10) == 1024 && __exp10f(2) == 100 && __sinf(0) == 0 && __cosf(0) == 1 && __tanf(0) == 0);
  float sine, cosine;
  __sincosf(0, &sine, &cosine);
  CHECK(sine == 0 && cosine == 1 && __fdividef(6, 3) == 2);
  // These are functions of <math.h>, which CUDA has without an include.
  CHECK(fminf(1, 2) == 1 && sqrt(4.0f) == 2 && abs(-2) == 2 && fabs(-2.0) == 2 && isnan(NAN) && ceilf(0.5f) == 1);
}

void memory() {
  alignas(16) int numbers[4] = {1, 2, 3, 4};
  const int4 all = __ldg(reinterpret_cast<const int4*>(numbers));
  CHECK(all.x == 1 && all.w == 4 && __ldcg(numbers + 1) == 2 && __ldcv(numbers + 2) == 3 && __ldca(numbers) == 1);
  __stcg(reinterpret_cast<int2*>(numbers), make_int2(8, 9));
  __stwt(numbers + 2, 10);
  __stcs(numbers + 3, 11);
  CHECK(numbers[0] == 8 && numbers[1] == 9 && __ldcs(numbers + 2) == 10 && numbers[3] == 11);
  unsigned long long wide = 0;
  __stwb(&wide, 5);
  CHECK(__ldlu(&wide) == 5);
}

// One thread checks the values that atomics leave and return.
void atomics() {
  int number = 5;
  unsigned int bits = 12;
  unsigned long long wide = 1;
  long long signedWide = -5;
  float single = 1.5f;
  double twice = 2.5;
  unsigned short small = 7;
  CHECK(atomicAdd(&number, -7) == 5 && number == -2 && atomicSub(&number, 3) == -2 && number == -5);
  CHECK(atomicMin(&number, -9) == -5 && number == -9 && atomicMax(&number, 4) == -9 && number == 4);
  CHECK(atomicMax(&bits, ~0u) == 12 && atomicMin(&bits, 12) == ~0u && bits == 12);
  CHECK(atomicAnd(&bits, 10) == 12 && bits == 8 && atomicOr(&bits, 3) == 8 && bits == 11 && atomicXor(&bits, 1) == 11);
  CHECK(atomicInc(&bits, 11) == 10 && bits == 11 && atomicInc(&bits, 11) == 11 && bits == 0);
  CHECK(atomicDec(&bits, 3) == 0 && bits == 3 && atomicDec(&bits, 3) == 3 && bits == 2);
  CHECK(atomicInc(&bits, 1) == 2 && bits == 0 && atomicExch(&bits, 9) == 0 && atomicDec(&bits, 3) == 9 && bits == 3);
  CHECK(atomicAdd_system(&wide, ~0ull) == 1 && wide == 0 && atomicMax_block(&signedWide, 2) == -5 && signedWide == 2);
  CHECK(atomicMin(&signedWide, -3ll) == 2 && signedWide == -3 && atomicExch(&wide, 7ull) == 0 && wide == 7);
  CHECK(atomicAdd(&single, 2) == 1.5f && single == 3.5f && atomicExch(&single, -1.0f) == 3.5f && single == -1);
  CHECK(atomicAdd_block(&twice, 0.5) == 2.5 && twice == 3);
  CHECK(atomicCAS(&number, 5, 6) == 4 && number == 4 && atomicCAS(&number, 4, 6) == 4 && number == 6);
  CHECK(atomicCAS_system(&wide, 7, 1ull << 40) == 7 && wide == 1ull << 40);
  CHECK(atomicCAS(&small, static_cast<unsigned short>(7), static_cast<unsigned short>(8)) == 7 && small == 8);
}

// Many threads together lose no addition.
void atomicsTogether() {
  static unsigned int sum, cycle, highest;
  static float floating;
  static unsigned long long swapped;
  std::thread threads[4];
  for (unsigned int t = 0; t < 4; ++t) {
    threads[t] = std::thread([t] {
      for (unsigned int i = 0; i < 20000; ++i) {
        atomicAdd(&sum, 1);
        atomicAdd(&floating, 1.0f);
        atomicInc(&cycle, 6);
        atomicMax(&highest, t * 20000 + i);
        unsigned long long before = 0, seen;
        while ((seen = atomicCAS(&swapped, before, before + 2)) != before) before = seen;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(sum == 80000 && floating == 80000 && cycle == 80000 % 7 && highest == 79999 && swapped == 160000);
}

void clocks() {
  const clock_t cycles = clock();
  const unsigned long long globalStart = __nvvm_read_ptx_sreg_globaltimer();
  const long long start = clock64();
  while (clock64() - start < 1000000) {
    __nanosleep(100);
  }
  CHECK(clock() - cycles >= 1000000 && __nvvm_read_ptx_sreg_globaltimer() - globalStart >= 1000000);
}

template <class Call>
const char* trapOf(Call call) {
  const char* message = nullptr;
  mscclpp_sim::expectedTrap = &message;
  try {
    call();
  } catch (const mscclpp_sim::Trapped&) {
  }
  mscclpp_sim::expectedTrap = nullptr;
  return message;
}

void traps() {
  int three = 3;
  CHECK(trapOf([&] { assert(three == 3); }) == nullptr && trapOf([&] { __assume(three == 3); }) == nullptr);
  const char* const message = trapOf([&] { assert(three == 4 && "no"); });
  CHECK(message != nullptr && strstr(message, "builtins.cpp:") != nullptr);
  CHECK(strstr(message, ": assertion failed: three == 4 && \"no\"") != nullptr);
  CHECK(trapOf([] { __trap(); }) != nullptr && trapOf([&] { __assume(three == 4); }) != nullptr);
}

// Like the C library's, assert follows NDEBUG where it is included.
#define NDEBUG
#include <cassert>
void assertsNothing() {
  CHECK(trapOf([] { assert(false); }) == nullptr);
}

int main() {
  bits();
  integers();
  conversions();
  arithmetic();
  memory();
  atomics();
  atomicsTogether();
  clocks();
  traps();
  assertsNothing();
  return 0;
}
