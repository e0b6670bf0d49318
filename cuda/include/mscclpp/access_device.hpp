// Accesses of a fixed width to global memory: this device's memory, a peer's as mapped here, or pinned host memory.
// Copies and packets are made of them; those for packets can also find out the kind of memory (MemorySpace::Any). All
// of them are also compiler barriers, so they stay in the order in which they are written; the hardware may still
// reorder the weak ones.

#ifndef MSCCLPP_ACCESS_DEVICE_HPP_
#define MSCCLPP_ACCESS_DEVICE_HPP_

#include "mscclpp/atomic_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {

// 16 bytes in registers; `low` has the first 8 of them.
struct alignas(16) Bytes16 {
  uint64_t low;
  uint64_t high;
};

#if defined(MSCCLPP_DEVICE_CUDA)

// Weak accesses of 1, 4, 8 and 16 bytes, at addresses that are multiples of their width. Something else must order the
// data that they carry: a semaphore, a barrier, the end of a kernel.
MSCCLPP_DEVICE_INLINE uint32_t load1(const void* address) {
  uint32_t value;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(detail::globalAddress(address)) : "memory");
  return value;
}
MSCCLPP_DEVICE_INLINE uint32_t load4(const void* address) {
  uint32_t value;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(detail::globalAddress(address)) : "memory");
  return value;
}
MSCCLPP_DEVICE_INLINE uint64_t load8(const void* address) {
  uint64_t value;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(detail::globalAddress(address)) : "memory");
  return value;
}
MSCCLPP_DEVICE_INLINE Bytes16 load16(const void* address) {
  Bytes16 value;
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(value.low), "=l"(value.high)
               : "l"(detail::globalAddress(address))
               : "memory");
  return value;
}
MSCCLPP_DEVICE_INLINE void store1(void* address, uint32_t value) {
  asm volatile("st.global.u8 [%0], %1;" : : "l"(detail::globalAddress(address)), "r"(value) : "memory");
}
MSCCLPP_DEVICE_INLINE void store4(void* address, uint32_t value) {
  asm volatile("st.global.u32 [%0], %1;" : : "l"(detail::globalAddress(address)), "r"(value) : "memory");
}
MSCCLPP_DEVICE_INLINE void store8(void* address, uint64_t value) {
  asm volatile("st.global.u64 [%0], %1;" : : "l"(detail::globalAddress(address)), "l"(value) : "memory");
}
MSCCLPP_DEVICE_INLINE void store16(void* address, Bytes16 value) {
  asm volatile("st.global.v2.u64 [%0], {%1, %2};"
               :
               : "l"(detail::globalAddress(address)), "l"(value.low), "l"(value.high)
               : "memory");
}

// Two words of 8 bytes side by side, each read or written whole as by a relaxed atomic access at system scope; the two
// are in no order. PTX defines a vector access as one access for each of its elements, which is why the elements
// are two of 8 bytes here and not four of 4. It is one instruction and one message.
template <MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE Bytes16 loadPair(const void* address) {
  Bytes16 value;
  if (P == MemorySpace::Any && !detail::isGlobal(address)) {
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.low), "=l"(value.high)
                 : "l"(address)
                 : "memory");
  } else {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.low), "=l"(value.high)
                 : "l"(detail::globalAddress(address))
                 : "memory");
  }
  return value;
}
// Reads the same two words with loads that acquire.
MSCCLPP_DEVICE_INLINE Bytes16 acquirePair(const void* address) {
  Bytes16 value;
  asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(value.low), "=l"(value.high)
               : "l"(detail::globalAddress(address))
               : "memory");
  return value;
}
template <MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE void storePair(void* address, Bytes16 value) {
  if (P == MemorySpace::Any && !detail::isGlobal(address)) {
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(address), "l"(value.low), "l"(value.high)
                 : "memory");
  } else {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(detail::globalAddress(address)), "l"(value.low), "l"(value.high)
                 : "memory");
  }
}

// Writes 16 bytes, with release at system scope, so that a thread that acquires `high` from it has `low` too. The
// scalar type of 128 bits makes it one access and not two; its address is a multiple of 16.
MSCCLPP_DEVICE_INLINE void releaseWhole(void* address, Bytes16 value) {
  asm volatile(
      "{\n\t.reg .b128 whole;\n\tmov.b128 whole, {%1, %2};\n\tst.release.sys.global.b128 [%0], whole;\n\t}"
      :
      : "l"(detail::globalAddress(address)), "l"(value.low), "l"(value.high)
      : "memory");
}

#else

namespace detail {

#if defined(MSCCLPP_DEVICE_SIM)
using mscclpp_sim::AsPacket;

// The host and other devices access the same memory meanwhile, which in C++ requires atomic accesses. 16 bytes are two
// accesses. The race detector takes them as weak, as they are on a GPU.
MSCCLPP_DEVICE_INLINE void nextIsWeak() {
  mscclpp_sim::nextAccess(mscclpp_sim::Order::Weak, mscclpp_sim::Scope::Block);
}
template <class T>
MSCCLPP_DEVICE_INLINE T loadAligned(const void* address) {
  mscclpp_sim::check(address, sizeof(T), 0);
  nextIsWeak();
  return __atomic_load_n(static_cast<const T*>(address), __ATOMIC_RELAXED);
}
template <>
MSCCLPP_DEVICE_INLINE Bytes16 loadAligned(const void* address) {
  mscclpp_sim::check(address, 16, 0);
  const uint64_t* const words = static_cast<const uint64_t*>(address);
  nextIsWeak();
  const uint64_t low = __atomic_load_n(words, __ATOMIC_RELAXED);
  nextIsWeak();
  return {low, __atomic_load_n(words + 1, __ATOMIC_RELAXED)};
}
template <class T>
MSCCLPP_DEVICE_INLINE void storeAligned(void* address, T value) {
  mscclpp_sim::check(address, sizeof(T), 1);
  nextIsWeak();
  __atomic_store_n(static_cast<T*>(address), value, __ATOMIC_RELAXED);
}
template <>
MSCCLPP_DEVICE_INLINE void storeAligned(void* address, Bytes16 value) {
  mscclpp_sim::check(address, 16, 1);
  uint64_t* const words = static_cast<uint64_t*>(address);
  nextIsWeak();
  __atomic_store_n(words, value.low, __ATOMIC_RELAXED);
  nextIsWeak();
  __atomic_store_n(words + 1, value.high, __ATOMIC_RELAXED);
}
#else
template <class T>
MSCCLPP_DEVICE_INLINE T loadAligned(const void* address) {
  T value;
  __builtin_memcpy(&value, __builtin_assume_aligned(address, sizeof(T)), sizeof(T));
  return value;
}
template <class T>
MSCCLPP_DEVICE_INLINE void storeAligned(void* address, T value) {
  __builtin_memcpy(__builtin_assume_aligned(address, sizeof(T)), &value, sizeof(T));
}
#endif

}  // namespace detail

// The functions of the CUDA branch, which has their comments.
MSCCLPP_DEVICE_INLINE uint32_t load1(const void* address) { return detail::loadAligned<uint8_t>(address); }
MSCCLPP_DEVICE_INLINE uint32_t load4(const void* address) { return detail::loadAligned<uint32_t>(address); }
MSCCLPP_DEVICE_INLINE uint64_t load8(const void* address) { return detail::loadAligned<uint64_t>(address); }
MSCCLPP_DEVICE_INLINE Bytes16 load16(const void* address) { return detail::loadAligned<Bytes16>(address); }
MSCCLPP_DEVICE_INLINE void store1(void* address, uint32_t value) {
  detail::storeAligned(address, static_cast<uint8_t>(value));
}
MSCCLPP_DEVICE_INLINE void store4(void* address, uint32_t value) { detail::storeAligned(address, value); }
MSCCLPP_DEVICE_INLINE void store8(void* address, uint64_t value) { detail::storeAligned(address, value); }
MSCCLPP_DEVICE_INLINE void store16(void* address, Bytes16 value) { detail::storeAligned(address, value); }
// Loads `high` first, and stores it last, because a line has its flag there.
template <MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE Bytes16 loadPair(const void* address) {
  const uint64_t* const words = static_cast<const uint64_t*>(address);
  Bytes16 value;
  value.high = detail::load<MemoryOrder::Relaxed, MemoryScope::System>(words + 1);
  value.low = detail::load<MemoryOrder::Relaxed, MemoryScope::System>(words);
  return value;
}
MSCCLPP_DEVICE_INLINE Bytes16 acquirePair(const void* address) {
  const uint64_t* const words = static_cast<const uint64_t*>(address);
  Bytes16 value;
  value.low = detail::load<MemoryOrder::Acquire, MemoryScope::System>(words);
  value.high = detail::load<MemoryOrder::Acquire, MemoryScope::System>(words + 1);
  return value;
}
template <MemorySpace P = MemorySpace::Global>
MSCCLPP_DEVICE_INLINE void storePair(void* address, Bytes16 value) {
#if defined(MSCCLPP_DEVICE_HIP)
  // One instruction of 16 bytes. There is no atomic store of that width; a volatile one goes as far as an atomic one of
  // system scope, and waits until it is complete.
  typedef uint64_t Pair __attribute__((ext_vector_type(2)));
  const Pair pair = {value.low, value.high};
  *static_cast<volatile Pair*>(address) = pair;
#else
  [[maybe_unused]] const mscclpp_sim::AtOnce atOnce;
  uint64_t* const words = static_cast<uint64_t*>(address);
  detail::store<MemoryOrder::Relaxed, MemoryScope::System>(words, value.low);
  detail::store<MemoryOrder::Relaxed, MemoryScope::System>(words + 1, value.high);
#endif
}
MSCCLPP_DEVICE_INLINE void releaseWhole(void* address, Bytes16 value) {
  uint64_t* const words = static_cast<uint64_t*>(address);
  detail::store<MemoryOrder::Relaxed, MemoryScope::System>(words, value.low);
  detail::store<MemoryOrder::Release, MemoryScope::System>(words + 1, value.high);
}

#endif

namespace detail {

// On a simulated device, fails the kernel unless the object is memory that it may touch.
template <class T>
MSCCLPP_DEVICE_INLINE void checkObject([[maybe_unused]] const T* object, [[maybe_unused]] bool isStore) {
#if defined(MSCCLPP_DEVICE_SIM)
  if constexpr (alignof(T) == sizeof(T)) {
    mscclpp_sim::check(object, sizeof(T), isStore);
  } else {
    mscclpp_sim::check(reinterpret_cast<const uint8_t*>(object), 1, isStore);
    mscclpp_sim::check(reinterpret_cast<const uint8_t*>(object + 1) - 1, 1, isStore);
  }
#endif
}

}  // namespace detail

// Reads and writes the element `index` of any memory by a plain access. The caller must order it with other accesses.
template <class T>
MSCCLPP_DEVICE_INLINE T read(const void* memory, uint64_t index) {
  const T* const element = static_cast<const T*>(memory) + index;
  detail::checkObject(element, false);
  return *element;
}
template <class T>
MSCCLPP_DEVICE_INLINE void write(void* memory, uint64_t index, const T& value) {
  T* const element = static_cast<T*>(memory) + index;
  detail::checkObject(element, true);
  *element = value;
}

#if !defined(MSCCLPP_DEVICE_SIM)
namespace detail {
// On simulated devices it marks the accesses during its life as those of a packet, for the race detector.
struct AsPacket {};
}  // namespace detail
#endif

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_ACCESS_DEVICE_HPP_
