// Atomic accesses to words, which the device API is made of: one instruction each, order and scope as template
// arguments. For the library's own use; programs include atomic_device.hpp.
//
// MemorySpace::Global is for words that are known to be in global memory: this device's, a peer's as mapped here, or
// pinned host memory. They are faster than generic accesses, for which the hardware finds out the kind of memory.
// MemorySpace::Any checks the kind of memory; where the compiler knows it, the check costs nothing.
//
// All of them are also compiler barriers. A caller that polls should therefore have read what it needs of its handle
// into locals before, or each poll reads the handle again.

#ifndef MSCCLPP_ATOMIC_WORDS_DEVICE_HPP_
#define MSCCLPP_ATOMIC_WORDS_DEVICE_HPP_

#include "mscclpp/device.hpp"

namespace mscclpp {

// The effect of an atomic access on the other accesses of its thread. Relaxed: none. Acquire: what comes later in the
// thread sees what was released. Release: what came earlier in the thread, or was acquired by it, is seen by the
// threads that acquire. SequentiallyConsistent: both, and all such accesses have one order that all threads see.
enum class MemoryOrder { Relaxed, Acquire, Release, AcquireRelease, SequentiallyConsistent };
constexpr MemoryOrder memoryOrderRelaxed = MemoryOrder::Relaxed;
constexpr MemoryOrder memoryOrderAcquire = MemoryOrder::Acquire;
constexpr MemoryOrder memoryOrderRelease = MemoryOrder::Release;
constexpr MemoryOrder memoryOrderAcqRel = MemoryOrder::AcquireRelease;
constexpr MemoryOrder memoryOrderSeqCst = MemoryOrder::SequentiallyConsistent;

// The threads among which the order holds. Device: those of this GPU. System: also those of other GPUs and of the host. Block:
// those of this block; sequentially consistent accesses do not have this scope.
enum class MemoryScope { Device, System, Block };
constexpr MemoryScope scopeDevice = MemoryScope::Device;
constexpr MemoryScope scopeSystem = MemoryScope::System;

// The memory that a word is in. Shared: the memory of the block.
enum class MemorySpace { Global, Any, Shared };

}  // namespace mscclpp

#if defined(MSCCLPP_DEVICE_CUDA)

namespace mscclpp {
namespace detail {

// Whether an address is one of global memory. The compiler answers where it knows.
MSCCLPP_DEVICE_INLINE bool isGlobal(const void* pointer) { return __isGlobal(pointer) != 0; }

// Returns the address in the global window, as the `.global` instructions need it. It takes no instruction.
template <class T>
MSCCLPP_DEVICE_INLINE uint64_t globalAddress(T* pointer) {
  return __cvta_generic_to_global(pointer);
}

}  // namespace detail
}  // namespace mscclpp

// Emits "OPERATION.<order>.<scope>SPACE REST" for the order O, the scope S and the memory P of the function around it.
// The operands name the address `at`. Which orders an operation has is asserted there, so none but those is ever
// instantiated.
#define MSCCLPP_PTX_SCOPED(OPERATION, ORDER, REST, ...)      \
  do {                                                       \
    if constexpr (S == MemoryScope::Block)                   \
      asm volatile(OPERATION ORDER ".cta" REST __VA_ARGS__); \
    else if constexpr (S == MemoryScope::Device)             \
      asm volatile(OPERATION ORDER ".gpu" REST __VA_ARGS__); \
    else                                                     \
      asm volatile(OPERATION ORDER ".sys" REST __VA_ARGS__); \
  } while (false)
#define MSCCLPP_PTX_ORDERED(OPERATION, REST, ...)                      \
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
#define MSCCLPP_PTX(OPERATION, REST, ...)                                     \
  do {                                                                        \
    if constexpr (P == MemorySpace::Shared) {                                 \
      const uint64_t at = __cvta_generic_to_shared(word);                     \
      MSCCLPP_PTX_ORDERED(OPERATION, ".shared" REST, __VA_ARGS__);            \
    } else if (P == MemorySpace::Any && !isGlobal(word)) {                    \
      const uint64_t at = reinterpret_cast<uint64_t>(word);                   \
      MSCCLPP_PTX_ORDERED(OPERATION, REST, __VA_ARGS__);                      \
    } else {                                                                  \
      const uint64_t at = globalAddress(word);                                \
      MSCCLPP_PTX_ORDERED(OPERATION, ".global" REST, __VA_ARGS__);            \
    }                                                                         \
  } while (false)

namespace mscclpp {
namespace detail {

// Reads a word. Relaxed or Acquire.
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint8_t load(const uint8_t* word) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Acquire, "a load is relaxed or acquires");
  uint32_t value;
  MSCCLPP_PTX("ld", ".u8 %0, [%1];", : "=r"(value) : "l"(at) : "memory");
  return static_cast<uint8_t>(value);
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint16_t load(const uint16_t* word) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Acquire, "a load is relaxed or acquires");
  uint16_t value;
  MSCCLPP_PTX("ld", ".u16 %0, [%1];", : "=h"(value) : "l"(at) : "memory");
  return value;
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint32_t load(const uint32_t* word) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Acquire, "a load is relaxed or acquires");
  uint32_t value;
  MSCCLPP_PTX("ld", ".u32 %0, [%1];", : "=r"(value) : "l"(at) : "memory");
  return value;
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint64_t load(const uint64_t* word) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Acquire, "a load is relaxed or acquires");
  uint64_t value;
  MSCCLPP_PTX("ld", ".u64 %0, [%1];", : "=l"(value) : "l"(at) : "memory");
  return value;
}

// Writes a word. Relaxed or Release.
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE void store(uint8_t* word, uint8_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a store is relaxed or releases");
  MSCCLPP_PTX("st", ".u8 [%0], %1;", : : "l"(at), "r"(static_cast<uint32_t>(value)) : "memory");
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE void store(uint16_t* word, uint16_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a store is relaxed or releases");
  MSCCLPP_PTX("st", ".u16 [%0], %1;", : : "l"(at), "h"(value) : "memory");
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE void store(uint32_t* word, uint32_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a store is relaxed or releases");
  MSCCLPP_PTX("st", ".u32 [%0], %1;", : : "l"(at), "r"(value) : "memory");
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE void store(uint64_t* word, uint64_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a store is relaxed or releases");
  MSCCLPP_PTX("st", ".u64 [%0], %1;", : : "l"(at), "l"(value) : "memory");
}

// Adds to a word and returns what was there before. Any order but SequentiallyConsistent.
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint32_t fetchAdd(uint32_t* word, uint32_t value) {
  uint32_t before;
  MSCCLPP_PTX("atom", ".add.u32 %0, [%1], %2;", : "=r"(before) : "l"(at), "r"(value) : "memory");
  return before;
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint64_t fetchAdd(uint64_t* word, uint64_t value) {
  uint64_t before;
  MSCCLPP_PTX("atom", ".add.u64 %0, [%1], %2;", : "=l"(before) : "l"(at), "l"(value) : "memory");
  return before;
}

// Sets bits of a word and returns what was there before.
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint32_t fetchOr(uint32_t* word, uint32_t bits) {
  uint32_t before;
  MSCCLPP_PTX("atom", ".or.b32 %0, [%1], %2;", : "=r"(before) : "l"(at), "r"(bits) : "memory");
  return before;
}

// Adds to a word and waits for no answer: over a link this is one message, where fetchAdd is two. Relaxed or Release.
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE void reduceAdd(uint32_t* word, uint32_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  MSCCLPP_PTX("red", ".add.u32 [%0], %1;", : : "l"(at), "r"(value) : "memory");
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE void reduceAdd(uint64_t* word, uint64_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  MSCCLPP_PTX("red", ".add.u64 [%0], %1;", : : "l"(at), "l"(value) : "memory");
}

// Raises a word to `value` if it is less, and waits for no answer. Relaxed or Release.
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE void reduceMax(uint64_t* word, uint64_t value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  MSCCLPP_PTX("red", ".max.u64 [%0], %1;", : : "l"(at), "l"(value) : "memory");
}

// Writes `desired` if the word is `expected`, and returns what was there before, which is `expected` exactly if it
// wrote. Any order but SequentiallyConsistent.
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint32_t compareSwap(uint32_t* word, uint32_t expected, uint32_t desired) {
  uint32_t before;
  MSCCLPP_PTX("atom", ".cas.b32 %0, [%1], %2, %3;",
              : "=r"(before) : "l"(at), "r"(expected), "r"(desired) : "memory");
  return before;
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint64_t compareSwap(uint64_t* word, uint64_t expected, uint64_t desired) {
  uint64_t before;
  MSCCLPP_PTX("atom", ".cas.b64 %0, [%1], %2, %3;",
              : "=l"(before) : "l"(at), "l"(expected), "l"(desired) : "memory");
  return before;
}

// What stands in front of a sequentially consistent access: with it, an access that acquires and releases is one.
template <MemoryScope S>
MSCCLPP_DEVICE_INLINE void sequentialFence() {
  if constexpr (S == MemoryScope::Device) {
    asm volatile("fence.sc.gpu;" : : : "memory");
  } else {
    asm volatile("fence.sc.sys;" : : : "memory");
  }
}

// Returns the number 1 in a way that the compiler does not see through. If the lanes of a warp add the same number, the
// compiler makes it one addition for all of them, with votes and shuffles that delay a lone thread.
MSCCLPP_DEVICE_INLINE uint64_t oneOfThisLane() {
  uint32_t lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return 1 + (lane >> 5);
}

}  // namespace detail

// Makes all accesses of this thread before it, and all that it had acquired, complete for all threads before any later
// access. It waits for them: over a link that takes about as long as a round trip.
MSCCLPP_DEVICE_INLINE void systemFence() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }

}  // namespace mscclpp

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
  return scope == MemoryScope::Block    ? __HIP_MEMORY_SCOPE_WORKGROUP
         : scope == MemoryScope::Device ? __HIP_MEMORY_SCOPE_AGENT
                                        : __HIP_MEMORY_SCOPE_SYSTEM;
}

// A compare-and-swap that fails only loads, and a load cannot release.
constexpr int hipFailureOrder(MemoryOrder order) {
  return order == MemoryOrder::Acquire || order == MemoryOrder::AcquireRelease ? __ATOMIC_ACQUIRE
                                                                               : __ATOMIC_RELAXED;
}

// The functions of the CUDA branch, which has their comments. T is an unsigned integer, of 4 or 8 bytes where something is added
// or swapped.
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE T load(const T* word) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Acquire, "a load is relaxed or acquires");
  return __hip_atomic_load(const_cast<T*>(word), hipOrder(O), hipScope(S));
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE void store(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a store is relaxed or releases");
  __hip_atomic_store(word, value, hipOrder(O), hipScope(S));
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE T fetchAdd(T* word, T value) {
  return __hip_atomic_fetch_add(word, value, hipOrder(O), hipScope(S));
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint32_t fetchOr(uint32_t* word, uint32_t bits) {
  return __hip_atomic_fetch_or(word, bits, hipOrder(O), hipScope(S));
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE void reduceAdd(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  (void)__hip_atomic_fetch_add(word, value, hipOrder(O), hipScope(S));
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE void reduceMax(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  (void)__hip_atomic_fetch_max(word, value, hipOrder(O), hipScope(S));
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE T compareSwap(T* word, T expected, T desired) {
  (void)__hip_atomic_compare_exchange_strong(word, &expected, desired, hipOrder(O),
                                             hipFailureOrder(O), hipScope(S));
  return expected;
}
template <MemoryScope S>
MSCCLPP_DEVICE_INLINE void sequentialFence() {
  if constexpr (S == MemoryScope::Device) {
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
  } else {
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "");
  }
}
MSCCLPP_DEVICE_INLINE bool isGlobal(const void*) { return true; }
MSCCLPP_DEVICE_INLINE uint64_t oneOfThisLane() { return 1; }

}  // namespace detail

MSCCLPP_DEVICE_INLINE void systemFence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, ""); }

}  // namespace mscclpp

#elif defined(MSCCLPP_DEVICE_SIM)

namespace mscclpp {
namespace detail {

// The functions of the CUDA branch, with T as for HIP. All acquire and release, so tests do not show which
// orders a GPU needs. The race detector gets the orders that the caller names.
constexpr mscclpp_sim::Order hostOrder(MemoryOrder order) {
  return order == MemoryOrder::Relaxed   ? mscclpp_sim::Order::Relaxed
         : order == MemoryOrder::Acquire ? mscclpp_sim::Order::Acquire
         : order == MemoryOrder::Release ? mscclpp_sim::Order::Release
                                         : mscclpp_sim::Order::AcquireRelease;
}
constexpr mscclpp_sim::Scope hostScope(MemoryScope scope) {
  return scope == MemoryScope::Block    ? mscclpp_sim::Scope::Block
         : scope == MemoryScope::Device ? mscclpp_sim::Scope::Device
                                        : mscclpp_sim::Scope::System;
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE T load(const T* word) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Acquire, "a load is relaxed or acquires");
  mscclpp_sim::check(word, sizeof(T), 0);
  mscclpp_sim::nextAccess(hostOrder(O), hostScope(S));
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE void store(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a store is relaxed or releases");
  mscclpp_sim::check(word, sizeof(T), 1);
  mscclpp_sim::nextAccess(hostOrder(O), hostScope(S));
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE T fetchAdd(T* word, T value) {
  mscclpp_sim::check(word, sizeof(T), 1);
  mscclpp_sim::nextAccess(hostOrder(O), hostScope(S));
  return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE uint32_t fetchOr(uint32_t* word, uint32_t bits) {
  mscclpp_sim::check(word, sizeof(bits), 1);
  mscclpp_sim::nextAccess(hostOrder(O), hostScope(S));
  return __atomic_fetch_or(word, bits, __ATOMIC_ACQ_REL);
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE void reduceAdd(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  fetchAdd<O, S>(word, value);
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE void reduceMax(T* word, T value) {
  static_assert(O == MemoryOrder::Relaxed || O == MemoryOrder::Release, "a reduction is relaxed or releases");
  mscclpp_sim::check(word, sizeof(T), 1);
  mscclpp_sim::nextAccess(mscclpp_sim::Order::Relaxed, hostScope(S));
  T there = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  while (there < value) {
    mscclpp_sim::nextAccess(hostOrder(O), hostScope(S));
    if (__atomic_compare_exchange_n(word, &there, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
  }
}
template <MemoryOrder O, MemoryScope S, MemorySpace P = MemorySpace::Global, class T>
MSCCLPP_DEVICE_INLINE T compareSwap(T* word, T expected, T desired) {
  mscclpp_sim::check(word, sizeof(T), 1);
  mscclpp_sim::nextAccess(hostOrder(O), hostScope(S));
  __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
template <MemoryScope S>
MSCCLPP_DEVICE_INLINE void sequentialFence() {
  mscclpp_sim::nextAccess(mscclpp_sim::Order::AcquireRelease, hostScope(S));
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
MSCCLPP_DEVICE_INLINE bool isGlobal(const void*) { return true; }
MSCCLPP_DEVICE_INLINE uint64_t oneOfThisLane() { return 1; }

}  // namespace detail

MSCCLPP_DEVICE_INLINE void systemFence() { detail::sequentialFence<MemoryScope::System>(); }

}  // namespace mscclpp

#endif

#endif  // MSCCLPP_ATOMIC_WORDS_DEVICE_HPP_
