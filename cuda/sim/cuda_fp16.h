// CUDA's half: numbers of 16 bits with an exponent of 5.

#ifndef MSCCLPP_SIM_CUDA_FP16_H_
#define MSCCLPP_SIM_CUDA_FP16_H_

#include "mscclpp_sim/atomics.hpp"
#include "mscclpp_sim/intrinsics.hpp"
#include "mscclpp_sim/narrow.hpp"

#define NARROW __half
#define NARROW2 __half2
#define NARROW_RAW __half_raw
#define NARROW2_RAW __half2_raw
#define NARROW_FORMAT mscclpp_sim::NarrowFormat<5>
#define NARROW_NAME(BEFORE, AFTER) BEFORE##half##AFTER
#include "mscclpp_sim/narrow_types.inl"

typedef __half half;
typedef __half2 half2;

constexpr __half2 __half2half2(__half a) { return {a, a}; }

#define CUDART_INF_FP16 __ushort_as_half(static_cast<unsigned short>(0x7c00))
#define CUDART_NAN_FP16 __ushort_as_half(static_cast<unsigned short>(0x7fff))
#define CUDART_MIN_DENORM_FP16 __ushort_as_half(static_cast<unsigned short>(0x0001))
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half(static_cast<unsigned short>(0x7bff))
#define CUDART_NEG_ZERO_FP16 __ushort_as_half(static_cast<unsigned short>(0x8000))
#define CUDART_ZERO_FP16 __ushort_as_half(static_cast<unsigned short>(0x0000))
#define CUDART_ONE_FP16 __ushort_as_half(static_cast<unsigned short>(0x3c00))

#endif  // MSCCLPP_SIM_CUDA_FP16_H_
