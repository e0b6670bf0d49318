// CUDA's bfloat16: numbers of 16 bits with an exponent of 8, the upper half of a float.

#ifndef MSCCLPP_SIM_CUDA_BF16_H_
#define MSCCLPP_SIM_CUDA_BF16_H_

#include "mscclpp_sim/atomics.hpp"
#include "mscclpp_sim/intrinsics.hpp"
#include "mscclpp_sim/narrow.hpp"

#define NARROW __nv_bfloat16
#define NARROW2 __nv_bfloat162
#define NARROW_RAW __nv_bfloat16_raw
#define NARROW2_RAW __nv_bfloat162_raw
#define NARROW_FORMAT mscclpp_sim::NarrowFormat<8>
#define NARROW_NAME(BEFORE, AFTER) BEFORE##bfloat16##AFTER
#include "mscclpp_sim/narrow_types.inl"

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

constexpr __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }

#define CUDART_INF_BF16 __ushort_as_bfloat16(static_cast<unsigned short>(0x7f80))
#define CUDART_NAN_BF16 __ushort_as_bfloat16(static_cast<unsigned short>(0x7fff))
#define CUDART_MIN_DENORM_BF16 __ushort_as_bfloat16(static_cast<unsigned short>(0x0001))
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16(static_cast<unsigned short>(0x7f7f))
#define CUDART_NEG_ZERO_BF16 __ushort_as_bfloat16(static_cast<unsigned short>(0x8000))
#define CUDART_ZERO_BF16 __ushort_as_bfloat16(static_cast<unsigned short>(0x0000))
#define CUDART_ONE_BF16 __ushort_as_bfloat16(static_cast<unsigned short>(0x3f80))

#endif  // MSCCLPP_SIM_CUDA_BF16_H_
