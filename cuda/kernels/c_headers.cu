// The parts of the C library's headers that kernels use. Not every compiler has these headers.

#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <mscclpp/core.hpp>

struct Mixed {
  int8_t first;
  std::uint64_t second;
};
static_assert(offsetof(Mixed, second) == 8 && sizeof(std::size_t) == 8 && sizeof(intptr_t) == 8, "<stddef.h>");
static_assert(INT64_MIN < 0 && UINT64_C(1) << 63 > INT64_MAX && SIZE_MAX == UINT64_MAX, "<stdint.h>");
static_assert(INT8_MIN == -128 && UINT16_MAX == 0xffff && UINT32_MAX == 0xffffffff, "<stdint.h>");
static_assert(INT_MAX == 0x7fffffff && LONG_MIN + LONG_MAX == -1 && ULLONG_MAX + 1 == 0, "<limits.h>");
static_assert(CHAR_BIT == 8 && SHRT_MIN == -32768 && UINT_MAX == ~0u && UCHAR_MAX == 255, "<limits.h>");
static_assert(FLT_EPSILON == 1.0f / (1 << 23) && DBL_MANT_DIG == 53 && FLT_MAX > 3.4e38f, "<float.h>");

// One thread. `right` gets 1.
extern "C" __global__ void uses_c_headers(unsigned int* right) {
  assert(right != nullptr);
  const float infinity = INFINITY, nan = NAN;
  *right = infinity > FLT_MAX && nan != nan && M_PI > 3.14159 && M_PI < 3.1416 ? 1 : 0;
}

// With NDEBUG, assert does nothing.
#define NDEBUG
#include <assert.h>
extern "C" __global__ void asserts_nothing() { assert(false); }
