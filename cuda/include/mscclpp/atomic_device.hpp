// Atomic accesses to 32- and 64-bit words of global memory: this device's, a peer's as mapped here, or pinned host
// memory. The order and the scope are template arguments, so each call is one instruction:
//
//     uint64_t seen = atomicLoad<MemoryOrder::Acquire, MemoryScope::System>(word);
//
// All of them are also compiler barriers. A caller that polls should therefore have read what it needs of its handle
// into locals before, or each poll reads the handle again.

#ifndef MSCCLPP_ATOMIC_DEVICE_HPP_
#define MSCCLPP_ATOMIC_DEVICE_HPP_

#include "mscclpp/device.hpp"

namespace mscclpp {

// What an atomic access says about the other accesses of its thread. Relaxed: nothing. Acquire: what comes later in
// the thread sees what was released. Release: what came earlier in the thread, or was acquired by it, is seen by who
// acquires.
enum class MemoryOrder { Relaxed, Acquire, Release, AcquireRelease };

// Among whom the order holds. Device: the threads of this GPU. System: also those of other GPUs and of the host.
enum class MemoryScope { Device, System };

}  // namespace mscclpp

#if defined(MSCCLPP_DEVICE_CUDA)

namespace mscclpp {
namespace detail {

// The address in the global window, as the `.global` instructions want it. No instruction comes of this.
template <class T>
MSCCLPP_DEVICE_INLINE uint64_t globalAddress(T* pointer) {
  return __cvta_generic_to_global(pointer);
}

}  // namespace detail
}  // namespace mscclpp

// Emits "OPERATION.<order>.<scope>REST" for the order O and scope S of the function around it. Which orders an
// operation has is asserted there, so none but those is ever instantiated.
#define MSCCLPP_PTX_SCOPED(OPERATION, ORDER, REST, ...)      \
  do {                                                       \
    if constexpr (S == MemoryScope::Device)                  \
      asm volatile(OPERATION ORDER ".gpu" REST __VA_ARGS__); \
    else                                                     \
      asm volatile(OPERATION ORDER ".sys" REST __VA_ARGS__); \
  } while (false)
#define MSCCLPP_PTX(OPERATION, REST, ...)                              \
  do {                                                                 \
    if constexpr (O == MemoryOrder::Relaxed)                           \
      MSCCLPP_PTX_SCOPED(OPERATION, ".relaxed", REST, __VA_ARGS__);    \
    else if constexpr (O == MemoryOrder::Acquire)                      \
      MSCCLPP_PTX_SCOPED(OPERATION, ".acquire", REST, __VA_ARGS__);    \
    else if constexpr (O == MemoryOrder::Release)                      \
      MSCCLPP_PTX_SCOPED(OPERATION, ".release", REST, __VA_ARGS__);    \
    else                                                               \
      MSCCLPP_PTX_SCOPED(OPERATION, ".acq_rel", REST, __VA_ARGS__);    \
  } while (false)

namespace mscclpp {

// Reads a word. Relaxed or Acquire.
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE uint32_t atomicLoad(const uint32_t* word) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Acquire, "a load is relaxed or acquires");
  uint32_t value;
  MSCCLPP_PTX("ld", ".global.u32 %0, [%1];", : "=r"(value) : "l"(detail::globalAddress(word)) : "memory");
  return value;
}
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE uint64_t atomicLoad(const uint64_t* word) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Acquire, "a load is relaxed or acquires");
  uint64_t value;
  MSCCLPP_PTX("ld", ".global.u64 %0, [%1];", : "=l"(value) : "l"(detail::globalAddress(word)) : "memory");
  return value;
}

// Writes a word. Relaxed or Release.
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE void atomicStore(uint32_t* word, uint32_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a store is relaxed or releases");
  MSCCLPP_PTX("st", ".global.u32 [%0], %1;", : : "l"(detail::globalAddress(word)), "r"(value) : "memory");
}
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE void atomicStore(uint64_t* word, uint64_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a store is relaxed or releases");
  MSCCLPP_PTX("st", ".global.u64 [%0], %1;", : : "l"(detail::globalAddress(word)), "l"(value) : "memory");
}

// Adds to a word and returns what was there before. Any order.
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE uint32_t atomicFetchAdd(uint32_t* word, uint32_t value) {
  uint32_t before;
  MSCCLPP_PTX("atom", ".global.add.u32 %0, [%1], %2;",
              : "=r"(before) : "l"(detail::globalAddress(word)), "r"(value) : "memory");
  return before;
}
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE uint64_t atomicFetchAdd(uint64_t* word, uint64_t value) {
  uint64_t before;
  MSCCLPP_PTX("atom", ".global.add.u64 %0, [%1], %2;",
              : "=l"(before) : "l"(detail::globalAddress(word)), "l"(value) : "memory");
  return before;
}

// Adds to a word and waits for no answer: over a link this is one message, where atomicFetchAdd is two. Relaxed or
// Release.
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE void atomicReduceAdd(uint32_t* word, uint32_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  MSCCLPP_PTX("red", ".global.add.u32 [%0], %1;", : : "l"(detail::globalAddress(word)), "r"(value) : "memory");
}
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE void atomicReduceAdd(uint64_t* word, uint64_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  MSCCLPP_PTX("red", ".global.add.u64 [%0], %1;", : : "l"(detail::globalAddress(word)), "l"(value) : "memory");
}

// Raises a word to `value` if it is less, and waits for no answer. Relaxed or Release.
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE void atomicReduceMax(uint64_t* word, uint64_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  MSCCLPP_PTX("red", ".global.max.u64 [%0], %1;", : : "l"(detail::globalAddress(word)), "l"(value) : "memory");
}

// Writes `desired` if the word is `expected`, and returns what was there before, which is `expected` exactly if it
// wrote. Any order.
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE uint32_t atomicCompareSwap(uint32_t* word, uint32_t expected, uint32_t desired) {
  uint32_t before;
  MSCCLPP_PTX("atom", ".global.cas.b32 %0, [%1], %2, %3;",
              : "=r"(before) : "l"(detail::globalAddress(word)), "r"(expected), "r"(desired) : "memory");
  return before;
}
template <MemoryOrder O, MemoryScope S>
MSCCLPP_DEVICE_INLINE uint64_t atomicCompareSwap(uint64_t* word, uint64_t expected, uint64_t desired) {
  uint64_t before;
  MSCCLPP_PTX("atom", ".global.cas.b64 %0, [%1], %2, %3;",
              : "=l"(before) : "l"(detail::globalAddress(word)), "l"(expected), "l"(desired) : "memory");
  return before;
}

// All accesses of this thread before it, and what it had acquired, are performed for everyone before any access behind
// it is. It waits for them: over a link that takes about as long as a round trip.
MSCCLPP_DEVICE_INLINE void systemFence() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }

// The number 1, in a way that the compiler does not see through. Of an addition of the same number by the lanes of a
// warp it makes one addition for all of them, and the votes and shuffles for that cost a lone thread about 0.02 us.
MSCCLPP_DEVICE_INLINE uint64_t oneOfThisLane() {
  uint32_t lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return 1 + (lane >> 5);
}

}  // namespace mscclpp

#undef MSCCLPP_PTX
#undef MSCCLPP_PTX_SCOPED

#elif defined(MSCCLPP_DEVICE_HIP)

namespace mscclpp {
namespace detail {

constexpr int hipOrder(MemoryOrder order) {
  return order == MemoryOrder::Relaxed   ? __ATOMIC_RELAXED
         : order == MemoryOrder::Acquire ? __ATOMIC_ACQUIRE
         : order == MemoryOrder::Release ? __ATOMIC_RELEASE
                                         : __ATOMIC_ACQ_REL;
}

constexpr int hipScope(MemoryScope scope) {
  return scope == MemoryScope::Device ? __HIP_MEMORY_SCOPE_AGENT : __HIP_MEMORY_SCOPE_SYSTEM;
}

// A compare-and-swap that fails only loads, and a load cannot release.
constexpr int hipFailureOrder(MemoryOrder order) {
  return order == MemoryOrder::Acquire || order == MemoryOrder::AcquireRelease ? __ATOMIC_ACQUIRE
                                                                               : __ATOMIC_RELAXED;
}

}  // namespace detail

// The functions of the CUDA branch, documented there. T is uint32_t or uint64_t.
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T atomicLoad(const T* word) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Acquire, "a load is relaxed or acquires");
  return __hip_atomic_load(const_cast<T*>(word), detail::hipOrder(O), detail::hipScope(S));
}
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE void atomicStore(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a store is relaxed or releases");
  __hip_atomic_store(word, value, detail::hipOrder(O), detail::hipScope(S));
}
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T atomicFetchAdd(T* word, T value) {
  return __hip_atomic_fetch_add(word, value, detail::hipOrder(O), detail::hipScope(S));
}
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE void atomicReduceAdd(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  (void)__hip_atomic_fetch_add(word, value, detail::hipOrder(O), detail::hipScope(S));
}
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE void atomicReduceMax(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  (void)__hip_atomic_fetch_max(word, value, detail::hipOrder(O), detail::hipScope(S));
}
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T atomicCompareSwap(T* word, T expected, T desired) {
  (void)__hip_atomic_compare_exchange_strong(word, &expected, desired, detail::hipOrder(O),
                                             detail::hipFailureOrder(O), detail::hipScope(S));
  return expected;
}
MSCCLPP_DEVICE_INLINE void systemFence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, ""); }
MSCCLPP_DEVICE_INLINE uint64_t oneOfThisLane() { return 1; }

}  // namespace mscclpp

#elif defined(MSCCLPP_DEVICE_HOST)

namespace mscclpp {

// The functions of the CUDA branch, documented there. T is uint32_t or uint64_t. All of them acquire and release: what is
// tested with this says nothing of the orders that a GPU needs.
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T atomicLoad(const T* word) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Acquire, "a load is relaxed or acquires");
  mscclpp_host::check(word, sizeof(T), 0);
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE void atomicStore(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a store is relaxed or releases");
  mscclpp_host::check(word, sizeof(T), 1);
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T atomicFetchAdd(T* word, T value) {
  mscclpp_host::check(word, sizeof(T), 1);
  return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE void atomicReduceAdd(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  atomicFetchAdd<O, S>(word, value);
}
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE void atomicReduceMax(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  mscclpp_host::check(word, sizeof(T), 1);
  T there = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  while (there < value) {
    if (__atomic_compare_exchange_n(word, &there, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
  }
}
template <MemoryOrder O, MemoryScope S, class T>
MSCCLPP_DEVICE_INLINE T atomicCompareSwap(T* word, T expected, T desired) {
  mscclpp_host::check(word, sizeof(T), 1);
  __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
MSCCLPP_DEVICE_INLINE void systemFence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
MSCCLPP_DEVICE_INLINE uint64_t oneOfThisLane() { return 1; }

}  // namespace mscclpp

#endif

#endif  // MSCCLPP_ATOMIC_DEVICE_HPP_
