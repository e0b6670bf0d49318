// Atomic accesses of kernels: to words of 1, 2, 4 and 8 bytes in any memory, with the order as an argument and the
// scope as a template argument; and additions of all types that the hardware adds.
//
//     uint32_t seen = atomicLoad<uint32_t, scopeDevice>(&word, memoryOrderAcquire);

#ifndef MSCCLPP_ATOMIC_DEVICE_HPP_
#define MSCCLPP_ATOMIC_DEVICE_HPP_

#include "mscclpp/atomic_words_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

#if defined(MSCCLPP_DEVICE_CUDA) || defined(MSCCLPP_DEVICE_SIM)
// The formats of 16 bits, declared as CUDA's headers define them.
struct __half;
struct __half2;
struct __nv_bfloat16;
struct __nv_bfloat162;
#endif

namespace mscclpp {
namespace detail {

// Returns the same bits as a To, which has the same size.
template <class To, class From>
MSCCLPP_DEVICE_INLINE To bitsAs(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps the size");
  To to;
#if defined(MSCCLPP_DEVICE_CUDA)
  memcpy(static_cast<void*>(&to), &from, sizeof(To));
#else
  __builtin_memcpy(static_cast<void*>(&to), &from, sizeof(To));
#endif
  return to;
}

// The types that can be added to: integers of 4 and 8 bytes, floats, and where supported 16-bit floats and pairs of
// them.
template <class T>
constexpr bool isInteger = isSame<T, int> || isSame<T, unsigned int> || isSame<T, long> ||
                           isSame<T, unsigned long> || isSame<T, long long> || isSame<T, unsigned long long>;
template <class T>
constexpr bool isFloat = isSame<T, float> || isSame<T, double>;
#if defined(MSCCLPP_DEVICE_HIP)
template <class T>
constexpr bool isHalf = false;
template <class T>
constexpr bool isBfloat16 = false;
#else
template <class T>
constexpr bool isHalf = isSame<T, __half> || isSame<T, __half2>;
template <class T>
constexpr bool isBfloat16 = isSame<T, __nv_bfloat16> || isSame<T, __nv_bfloat162>;
#endif

// The type of a word that has as many bytes as a T.
template <uint64_t Bytes>
struct AtomicWord {
  static_assert(Bytes == 1 || Bytes == 2 || Bytes == 4 || Bytes == 8,
                "atomic accesses are to words of 1, 2, 4 or 8 bytes: this type has another size");
};
template <>
struct AtomicWord<1> {
  using Type = uint8_t;
};
template <>
struct AtomicWord<2> {
  using Type = uint16_t;
};
template <>
struct AtomicWord<4> {
  using Type = uint32_t;
};
template <>
struct AtomicWord<8> {
  using Type = uint64_t;
};
template <class T>
using WordOf = typename AtomicWord<sizeof(T)>::Type;

// `fetchAdd` for floats, in any memory.
#if defined(MSCCLPP_DEVICE_CUDA)
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T fetchAddFloat(T* word, T value) {
  constexpr MemorySpace P = MemorySpace::Any;
  T before;
  if constexpr (isSame<T, float>) {
    MSCCLPP_PTX("atom", ".add.f32 %0, [%1], %2;", : "=f"(before) : "l"(at), "f"(value) : "memory");
  } else {
    MSCCLPP_PTX("atom", ".add.f64 %0, [%1], %2;", : "=d"(before) : "l"(at), "d"(value) : "memory");
  }
  return before;
}
// Adds 16-bit floats, and pairs of them.
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T fetchAddNarrow(T* word, T value) {
  constexpr MemorySpace P = MemorySpace::Any;
  WordOf<T> before;
  const WordOf<T> bits = bitsAs<WordOf<T>>(value);
  if constexpr (isSame<T, __half>) {
    MSCCLPP_PTX("atom", ".add.noftz.f16 %0, [%1], %2;", : "=h"(before) : "l"(at), "h"(bits) : "memory");
  } else if constexpr (isSame<T, __half2>) {
    MSCCLPP_PTX("atom", ".add.noftz.f16x2 %0, [%1], %2;", : "=r"(before) : "l"(at), "r"(bits) : "memory");
  } else if constexpr (isSame<T, __nv_bfloat16>) {
    MSCCLPP_PTX("atom", ".add.noftz.bf16 %0, [%1], %2;", : "=h"(before) : "l"(at), "h"(bits) : "memory");
  } else {
    MSCCLPP_PTX("atom", ".add.noftz.bf16x2 %0, [%1], %2;", : "=r"(before) : "l"(at), "r"(bits) : "memory");
  }
  return bitsAs<T>(before);
}
#elif defined(MSCCLPP_DEVICE_HIP)
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T fetchAddFloat(T* word, T value) {
  return fetchAdd<O, S>(word, value);
}
#else
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T fetchAddFloat(T* word, T value) {
  mscclpp_sim::check(word, sizeof(T), 1);
  return mscclpp_sim::update(word, [value](T now) -> T { return now + value; }, hostScope(S), hostOrder(O));
}
#endif

// atomicFetchAdd, with the order known to the compiler.
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T fetchAddAnywhere(T* address, T value) {
  static_assert(isInteger<T> || isFloat<T> || isHalf<T> || isBfloat16<T>,
                "no hardware adds this type atomically: atomicFetchAdd is for integers of 4 and 8 bytes, float and "
                "double, and on CUDA and simulated devices for half, bfloat16 and pairs of them");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static_assert(!isBfloat16<T>,
                "bfloat16 is added atomically from compute capability 9.0 on: compile for that, or add floats");
#endif
  if constexpr (isInteger<T>) {
    using Word = WordOf<T>;
    const Word added = static_cast<Word>(value);
    return static_cast<T>(fetchAdd<O, S, MemorySpace::Any>(reinterpret_cast<Word*>(address), added));
#if defined(MSCCLPP_DEVICE_CUDA)
  } else if constexpr (isHalf<T> || isBfloat16<T>) {
    return fetchAddNarrow<O, S>(address, value);
#endif
  } else {
    return fetchAddFloat<O, S>(address, value);
  }
}

// A T that the compiler does not deduce, so that `atomicStore(&word, 1, ..)` converts the 1.
template <class T>
struct Undeduced {
  using Type = T;
};
template <>
struct Undeduced<void> {};

}  // namespace detail

// Reads a word of 1, 2, 4 or 8 bytes, of any type, in any memory. `order` is relaxed, acquire or sequentially consistent.
template <class T, MemoryScope S = scopeSystem>
MSCCLPP_DEVICE_INLINE T atomicLoad(const T* address, MemoryOrder order) {
  const auto* const word = reinterpret_cast<const detail::WordOf<T>*>(address);
  if (order == MemoryOrder::Relaxed) {
    return detail::bitsAs<T>(detail::load<MemoryOrder::Relaxed, S, MemorySpace::Any>(word));
  }
  if (order == MemoryOrder::SequentiallyConsistent) detail::sequentialFence<S>();
  return detail::bitsAs<T>(detail::load<MemoryOrder::Acquire, S, MemorySpace::Any>(word));
}

// Writes a word of 1, 2, 4 or 8 bytes, of any type, in any memory. `order` is relaxed, release or sequentially
// consistent.
template <class T, MemoryScope S = scopeSystem>
MSCCLPP_DEVICE_INLINE void atomicStore(T* address, typename detail::Undeduced<T>::Type value, MemoryOrder order) {
  using Word = detail::WordOf<T>;
  Word* const word = reinterpret_cast<Word*>(address);
  const Word bits = detail::bitsAs<Word>(value);
  if (order == MemoryOrder::Relaxed) {
    detail::store<MemoryOrder::Relaxed, S, MemorySpace::Any>(word, bits);
    return;
  }
  if (order == MemoryOrder::SequentiallyConsistent) detail::sequentialFence<S>();
  detail::store<MemoryOrder::Release, S, MemorySpace::Any>(word, bits);
}

// Adds to a word in any memory and returns its value before. The types are: integers of 4 and 8 bytes, which wrap
// around; float and double; and on CUDA and simulated devices half, from compute capability 9.0 on bfloat16, and pairs
// of them, whose halves are added each by itself. On CUDA, a float in global memory that is subnormal counts as 0.
template <class T, MemoryScope S = scopeSystem>
MSCCLPP_DEVICE_INLINE T atomicFetchAdd(T* address, typename detail::Undeduced<T>::Type value, MemoryOrder order) {
  switch (order) {
    case MemoryOrder::Relaxed:
      return detail::fetchAddAnywhere<MemoryOrder::Relaxed, S, T>(address, value);
    case MemoryOrder::Acquire:
      return detail::fetchAddAnywhere<MemoryOrder::Acquire, S, T>(address, value);
    case MemoryOrder::Release:
      return detail::fetchAddAnywhere<MemoryOrder::Release, S, T>(address, value);
    case MemoryOrder::SequentiallyConsistent:
      detail::sequentialFence<S>();
      break;
    case MemoryOrder::AcquireRelease:
      break;
  }
  return detail::fetchAddAnywhere<MemoryOrder::AcquireRelease, S, T>(address, value);
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#undef MSCCLPP_PTX
#undef MSCCLPP_PTX_ORDERED
#undef MSCCLPP_PTX_SCOPED

#endif  // MSCCLPP_ATOMIC_DEVICE_HPP_
