// CUDA's loads and stores with a cache hint. There is no cache to choose here. What is left of a hint is whether others
// may write the memory meanwhile: __ldg, __ldca and __ldcs are for data that stays as it is, while kernels also poll
// with __ldcg and __ldcv, so that these read the memory each time and let other threads run.

#ifndef MSCCLPP_HOST_MEMORY_HPP_
#define MSCCLPP_HOST_MEMORY_HPP_

#include "mscclpp_host/races.hpp"
#include "mscclpp_host/runtime.hpp"
#include "mscclpp_host/vector_types.hpp"

namespace mscclpp_host {

// Whether CUDA can load and store a T in one access: a scalar, or a vector of two or four that 16 bytes hold.
template <class T>
struct Accessible {
  static constexpr bool value = false;
};
#define MSCCLPP_HOST_ACCESSIBLE(TYPE)   \
  template <>                           \
  struct Accessible<TYPE> {             \
    static constexpr bool value = true; \
  };
#define MSCCLPP_HOST_ACCESSIBLE_VECTORS(NAME, ELEMENT) \
  MSCCLPP_HOST_ACCESSIBLE(ELEMENT)                     \
  MSCCLPP_HOST_ACCESSIBLE(NAME##2)                     \
  MSCCLPP_HOST_ACCESSIBLE(NAME##4)
MSCCLPP_HOST_ACCESSIBLE(char)
MSCCLPP_HOST_ACCESSIBLE_VECTORS(char, signed char)
MSCCLPP_HOST_ACCESSIBLE_VECTORS(uchar, unsigned char)
MSCCLPP_HOST_ACCESSIBLE_VECTORS(short, short)
MSCCLPP_HOST_ACCESSIBLE_VECTORS(ushort, unsigned short)
MSCCLPP_HOST_ACCESSIBLE_VECTORS(int, int)
MSCCLPP_HOST_ACCESSIBLE_VECTORS(uint, unsigned int)
MSCCLPP_HOST_ACCESSIBLE_VECTORS(float, float)
MSCCLPP_HOST_ACCESSIBLE(long)
MSCCLPP_HOST_ACCESSIBLE(unsigned long)
MSCCLPP_HOST_ACCESSIBLE(long long)
MSCCLPP_HOST_ACCESSIBLE(longlong2)
MSCCLPP_HOST_ACCESSIBLE(unsigned long long)
MSCCLPP_HOST_ACCESSIBLE(ulonglong2)
MSCCLPP_HOST_ACCESSIBLE(double)
MSCCLPP_HOST_ACCESSIBLE(double2)
#undef MSCCLPP_HOST_ACCESSIBLE
#undef MSCCLPP_HOST_ACCESSIBLE_VECTORS

// Keeps the compiler from moving accesses to memory across.
inline void compilerBarrier() { __asm__ volatile("" ::: "memory"); }

template <class T>
T loadStable(const T* address) {
  static_assert(Accessible<T>::value, "CUDA loads scalars and vectors of two or four, of 16 bytes at most");
  check(address, sizeof(T), 0);
  return *address;
}
template <class T>
T loadAgain(const T* address) {
  static_assert(Accessible<T>::value, "CUDA loads scalars and vectors of two or four, of 16 bytes at most");
  check(address, sizeof(T), 0);
  step(64);
  compilerBarrier();
  const T value = *address;
  compilerBarrier();
  return value;
}
template <class T>
void store(T* address, T value) {
  static_assert(Accessible<T>::value, "CUDA stores scalars and vectors of two or four, of 16 bytes at most");
  check(address, sizeof(T), 1);
  compilerBarrier();
  *address = value;
  compilerBarrier();
}

// A T that is not deduced from, so that `__stcg(bytes, 0)` converts the 0.
template <class T>
struct Plain {
  using type = T;
};

}  // namespace mscclpp_host

#define MSCCLPP_HOST_LOAD(NAME, HOW)   \
  template <class T>                   \
  T NAME(const T* address) {           \
    return mscclpp_host::HOW(address); \
  }
MSCCLPP_HOST_LOAD(__ldg, loadStable)
MSCCLPP_HOST_LOAD(__ldca, loadStable)
MSCCLPP_HOST_LOAD(__ldcs, loadStable)
MSCCLPP_HOST_LOAD(__ldlu, loadStable)
MSCCLPP_HOST_LOAD(__ldcg, loadAgain)
MSCCLPP_HOST_LOAD(__ldcv, loadAgain)
#undef MSCCLPP_HOST_LOAD

#define MSCCLPP_HOST_STORE(NAME)                                       \
  template <class T>                                                   \
  void NAME(T* address, typename mscclpp_host::Plain<T>::type value) { \
    mscclpp_host::store(address, value);                               \
  }
MSCCLPP_HOST_STORE(__stwb)
MSCCLPP_HOST_STORE(__stcg)
MSCCLPP_HOST_STORE(__stcs)
MSCCLPP_HOST_STORE(__stwt)
#undef MSCCLPP_HOST_STORE

// Fences. The memory is the process's, and so each of them orders for everyone.
namespace mscclpp_host {
inline void fence(Scope scope) {
  nextAccess(Order::AcquireRelease, scope);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
}  // namespace mscclpp_host
inline void __threadfence() { mscclpp_host::fence(mscclpp_host::Scope::Device); }
inline void __threadfence_block() { mscclpp_host::fence(mscclpp_host::Scope::Block); }
inline void __threadfence_system() { mscclpp_host::fence(mscclpp_host::Scope::System); }

#endif  // MSCCLPP_HOST_MEMORY_HPP_
