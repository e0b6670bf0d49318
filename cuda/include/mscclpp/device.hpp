// The basis of every other header of the device API: the compiler that is used, the fixed-width types, and the
// tutorials' spelling of a device handle.
//
// These headers include nothing outside mscclpp/. nvcc, hipcc, clang and NVRTC compile them for the GPU, and the
// library compiles them with a C++ compiler for simulated devices: there kernels have cuda/sim/mscclpp_sim before
// them. A plain C++17 compiler accepts them too and then sees the structs alone, without their methods, so that the
// host side can be checked against their layout.

#ifndef MSCCLPP_DEVICE_HPP_
#define MSCCLPP_DEVICE_HPP_

// MSCCLPP_DEVICE_CUDA or MSCCLPP_DEVICE_HIP names the GPUs for which this compiles; MSCCLPP_DEVICE_SIM, which the
// library defines, stands for a simulated device; MSCCLPP_DEVICE_COMPILE stands for any device. hipcc on an NVIDIA
// platform defines both compilers' macros and counts as CUDA.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define MSCCLPP_DEVICE_CUDA
#elif defined(__HIPCC__) || defined(__HIP__)
#define MSCCLPP_DEVICE_HIP
#endif

#if defined(MSCCLPP_DEVICE_CUDA)
#define MSCCLPP_DEVICE_COMPILE
#define MSCCLPP_INLINE __forceinline__
#define MSCCLPP_DEVICE_INLINE __device__ __forceinline__
#define MSCCLPP_DEVICE_NOINLINE inline __device__ __noinline__
#define MSCCLPP_HOST_DEVICE_INLINE __host__ __device__ __forceinline__
#elif defined(MSCCLPP_DEVICE_HIP)
#define MSCCLPP_DEVICE_COMPILE
#define MSCCLPP_INLINE inline __attribute__((always_inline))
#define MSCCLPP_DEVICE_INLINE __attribute__((device)) inline __attribute__((always_inline))
#define MSCCLPP_DEVICE_NOINLINE __attribute__((device)) inline __attribute__((noinline))
#define MSCCLPP_HOST_DEVICE_INLINE \
  __attribute__((host)) __attribute__((device)) inline __attribute__((always_inline))
#elif defined(MSCCLPP_DEVICE_SIM)
#define MSCCLPP_DEVICE_COMPILE
#define MSCCLPP_INLINE inline
#define MSCCLPP_DEVICE_INLINE inline
#define MSCCLPP_DEVICE_NOINLINE inline
#define MSCCLPP_HOST_DEVICE_INLINE inline
#else
#define MSCCLPP_INLINE inline
#define MSCCLPP_DEVICE_INLINE
#define MSCCLPP_DEVICE_NOINLINE
#define MSCCLPP_HOST_DEVICE_INLINE inline
#endif

// The attribute of a kernel's parameter that is only read, and may be read in place.
#if defined(MSCCLPP_DEVICE_CUDA)
#define MSCCLPP_GRID_CONSTANT __grid_constant__
#else
#define MSCCLPP_GRID_CONSTANT
#endif

// The types of <cstdint>. NVRTC has none of them. The other compilers name theirs in predefined macros, and declaring
// a type a second time as what it already is changes nothing, so this stands beside <cstdint> in either order.
// A program for NVRTC that brings its own types defines MSCCLPP_NO_FIXED_WIDTH_TYPES before it includes this.
#if !defined(MSCCLPP_NO_FIXED_WIDTH_TYPES)
#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
typedef int int32_t;
typedef long int64_t;
#elif defined(MSCCLPP_HIPRTC_HAS_TYPES)
// The library defines this for hiprtc of ROCm 6, which brings those of 32 and of 64 bits: these as `long long`.
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINTPTR_TYPE__ uintptr_t;
#else
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
#endif
#endif

static_assert(sizeof(uint32_t) == 4 && sizeof(uint64_t) == 8 && sizeof(void*) == 8,
              "the device API is for 64-bit platforms: handles are shared with the host as they are");

namespace mscclpp {

// `DeviceHandle<T>` is the handle of the host object T that kernels get, as in
// `mscclpp::DeviceHandle<mscclpp::BaseMemoryChannel>`. T is a tag here: a struct that names its handle and has no
// objects. The host objects themselves are made in Rust.
template <class T>
using DeviceHandle = typename T::DeviceHandle;

namespace detail {

// The conditions by which overloads are chosen. NVRTC has no <type_traits>.
template <class A, class B>
constexpr bool isSame = false;
template <class A>
constexpr bool isSame<A, A> = true;
template <bool Condition>
struct Enable {};
template <>
struct Enable<true> {
  using Type = void;
};
template <bool Condition>
using EnableIf = typename Enable<Condition>::Type;

}  // namespace detail

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_HPP_
