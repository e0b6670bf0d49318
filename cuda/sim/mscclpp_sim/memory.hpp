// CUDA's loads and stores with a cache hint. There is no cache to choose here. A hint only says whether others may write
// the memory meanwhile: __ldg, __ldca and __ldcs are for data that does not change, while kernels also poll with __ldcg
// and __ldcv, so that these read the memory each time and let other threads run.

#ifndef MSCCLPP_SIM_MEMORY_HPP_
#define MSCCLPP_SIM_MEMORY_HPP_

#include "mscclpp_sim/races.hpp"
#include "mscclpp_sim/runtime.hpp"
#include "mscclpp_sim/vector_types.hpp"

namespace mscclpp_sim {

// Whether CUDA can load and store a T in one access: a scalar, or a vector of two or four that 16 bytes hold.
template <class T>
struct Accessible {
  static constexpr bool value = false;
};
#define MSCCLPP_SIM_ACCESSIBLE(TYPE)   \
  template <>                           \
  struct Accessible<TYPE> {             \
    static constexpr bool value = true; \
  };
#define MSCCLPP_SIM_ACCESSIBLE_VECTORS(NAME, ELEMENT) \
  MSCCLPP_SIM_ACCESSIBLE(ELEMENT)                     \
  MSCCLPP_SIM_ACCESSIBLE(NAME##2)                     \
  MSCCLPP_SIM_ACCESSIBLE(NAME##4)
MSCCLPP_SIM_ACCESSIBLE(char)
MSCCLPP_SIM_ACCESSIBLE_VECTORS(char, signed char)
MSCCLPP_SIM_ACCESSIBLE_VECTORS(uchar, unsigned char)
MSCCLPP_SIM_ACCESSIBLE_VECTORS(short, short)
MSCCLPP_SIM_ACCESSIBLE_VECTORS(ushort, unsigned short)
MSCCLPP_SIM_ACCESSIBLE_VECTORS(int, int)
MSCCLPP_SIM_ACCESSIBLE_VECTORS(uint, unsigned int)
MSCCLPP_SIM_ACCESSIBLE_VECTORS(float, float)
MSCCLPP_SIM_ACCESSIBLE(long)
MSCCLPP_SIM_ACCESSIBLE(unsigned long)
MSCCLPP_SIM_ACCESSIBLE(long long)
MSCCLPP_SIM_ACCESSIBLE(longlong2)
MSCCLPP_SIM_ACCESSIBLE(unsigned long long)
MSCCLPP_SIM_ACCESSIBLE(ulonglong2)
MSCCLPP_SIM_ACCESSIBLE(double)
MSCCLPP_SIM_ACCESSIBLE(double2)
#undef MSCCLPP_SIM_ACCESSIBLE
#undef MSCCLPP_SIM_ACCESSIBLE_VECTORS

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

// A T that the compiler does not deduce, so that `__stcg(bytes, 0)` converts the 0.
template <class T>
struct Plain {
  using type = T;
};

}  // namespace mscclpp_sim

#define MSCCLPP_SIM_LOAD(NAME, HOW)   \
  template <class T>                   \
  T NAME(const T* address) {           \
    return mscclpp_sim::HOW(address); \
  }
MSCCLPP_SIM_LOAD(__ldg, loadStable)
MSCCLPP_SIM_LOAD(__ldca, loadStable)
MSCCLPP_SIM_LOAD(__ldcs, loadStable)
MSCCLPP_SIM_LOAD(__ldlu, loadStable)
MSCCLPP_SIM_LOAD(__ldcg, loadAgain)
MSCCLPP_SIM_LOAD(__ldcv, loadAgain)
#undef MSCCLPP_SIM_LOAD

#define MSCCLPP_SIM_STORE(NAME)                                       \
  template <class T>                                                   \
  void NAME(T* address, typename mscclpp_sim::Plain<T>::type value) { \
    mscclpp_sim::store(address, value);                               \
  }
MSCCLPP_SIM_STORE(__stwb)
MSCCLPP_SIM_STORE(__stcg)
MSCCLPP_SIM_STORE(__stcs)
MSCCLPP_SIM_STORE(__stwt)
#undef MSCCLPP_SIM_STORE

// Fences. The memory is the process's, and so each of them orders for everyone.
namespace mscclpp_sim {
inline void fence(Scope scope) {
  nextAccess(Order::AcquireRelease, scope);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
}  // namespace mscclpp_sim
inline void __threadfence() { mscclpp_sim::fence(mscclpp_sim::Scope::Device); }
inline void __threadfence_block() { mscclpp_sim::fence(mscclpp_sim::Scope::Block); }
inline void __threadfence_system() { mscclpp_sim::fence(mscclpp_sim::Scope::System); }

#endif  // MSCCLPP_SIM_MEMORY_HPP_
