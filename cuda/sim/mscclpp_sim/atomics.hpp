// CUDA's atomic functions, of each scope. In CUDA they order nothing; here they are sequentially consistent, which a
// kernel cannot distinguish from that. The scopes are one: all memory is the process's. The race detector gets the order
// and the scope that CUDA has.
//
// Each of them lets other threads run now and then, because kernels wait by calling them in a loop.

#ifndef MSCCLPP_SIM_ATOMICS_HPP_
#define MSCCLPP_SIM_ATOMICS_HPP_

#include "mscclpp_sim/races.hpp"
#include "mscclpp_sim/runtime.hpp"

namespace mscclpp_sim {

// The integer type of as many bytes, by which an object of any type may be accessed.
template <int Bytes>
struct WordOf;
template <>
struct WordOf<2> {
  typedef unsigned short __attribute__((may_alias)) type;
};
template <>
struct WordOf<4> {
  typedef unsigned int __attribute__((may_alias)) type;
};
template <>
struct WordOf<8> {
  typedef unsigned long long __attribute__((may_alias)) type;
};

// The beginning of each atomic function.
template <class T>
void beginAtomic(T* address, Scope scope) {
  step(64);
  check(address, sizeof(T), 1);
  nextAccess(Order::Relaxed, scope);
}

// Replaces the object by the result of `next`, in that order and scope. Returns its value before.
template <class T, class Next>
T update(T* address, Next next, Scope scope, Order order = Order::Relaxed) {
  [[maybe_unused]] const AsPair<T> asPair;
  beginAtomic(address, scope);
  typedef typename WordOf<sizeof(T)>::type Word;
  Word* const word = reinterpret_cast<Word*>(address);
  Word before = __atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    T value;
    __builtin_memcpy(static_cast<void*>(&value), &before, sizeof(T));
    const T changed = next(value);
    Word after;
    __builtin_memcpy(&after, &changed, sizeof(T));
    nextAccess(order, scope);
    if (__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return value;
  }
}

// The operations of the functions below, for the types that they have.
template <class T>
T compareAndSwap(T* address, T expected, T desired, Scope scope) {
  beginAtomic(address, scope);
  __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
template <class T>
T exchange(T* address, T value, Scope scope) {
  beginAtomic(address, scope);
  T before;
  __atomic_exchange(address, &value, &before, __ATOMIC_SEQ_CST);
  return before;
}
template <class T>
T add(T* address, T value, Scope scope) {
  beginAtomic(address, scope);
  return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}
template <class T>
T addFloating(T* address, T value, Scope scope) {
  return update(address, [value](T now) { return now + value; }, scope);
}
template <class T>
T subtract(T* address, T value, Scope scope) {
  beginAtomic(address, scope);
  return __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST);
}
template <class T>
T bitAnd(T* address, T value, Scope scope) {
  beginAtomic(address, scope);
  return __atomic_fetch_and(address, value, __ATOMIC_SEQ_CST);
}
template <class T>
T bitOr(T* address, T value, Scope scope) {
  beginAtomic(address, scope);
  return __atomic_fetch_or(address, value, __ATOMIC_SEQ_CST);
}
template <class T>
T bitXor(T* address, T value, Scope scope) {
  beginAtomic(address, scope);
  return __atomic_fetch_xor(address, value, __ATOMIC_SEQ_CST);
}
template <class T>
T minimum(T* address, T value, Scope scope) {
  return update(address, [value](T now) { return value < now ? value : now; }, scope);
}
template <class T>
T maximum(T* address, T value, Scope scope) {
  return update(address, [value](T now) { return now < value ? value : now; }, scope);
}
// Counts up to `last`, and then from 0 again.
inline unsigned int increment(unsigned int* address, unsigned int last, Scope scope) {
  return update(address, [last](unsigned int now) { return now >= last ? 0 : now + 1; }, scope);
}
// Counts down to 0, and then from `last` again; also if the number is above `last`.
inline unsigned int decrement(unsigned int* address, unsigned int last, Scope scope) {
  return update(address, [last](unsigned int now) { return now == 0 || now > last ? last : now - 1; }, scope);
}

}  // namespace mscclpp_sim

// Defines NAME for a type, in the scopes of the device, a block and the system: by `DEFINE`, one of the two below.
#define MSCCLPP_SIM_IN_SCOPES(DEFINE, NAME, TYPE, FUNCTION) \
  DEFINE(NAME, TYPE, FUNCTION, Device)                      \
  DEFINE(NAME##_block, TYPE, FUNCTION, Block)               \
  DEFINE(NAME##_system, TYPE, FUNCTION, System)
#define MSCCLPP_SIM_UPDATE_IN(NAME, TYPE, FUNCTION, SCOPE)                   \
  inline TYPE NAME(TYPE* address, TYPE value) {                              \
    return mscclpp_sim::FUNCTION(address, value, mscclpp_sim::Scope::SCOPE); \
  }
#define MSCCLPP_SIM_CAS_IN(NAME, TYPE, FUNCTION, SCOPE)                                  \
  inline TYPE NAME(TYPE* address, TYPE expected, TYPE desired) {                         \
    return mscclpp_sim::FUNCTION(address, expected, desired, mscclpp_sim::Scope::SCOPE); \
  }
#define MSCCLPP_SIM_ATOMIC(NAME, TYPE, FUNCTION) MSCCLPP_SIM_IN_SCOPES(MSCCLPP_SIM_UPDATE_IN, NAME, TYPE, FUNCTION)
#define MSCCLPP_SIM_ATOMIC_INTEGERS(NAME, FUNCTION) \
  MSCCLPP_SIM_ATOMIC(NAME, int, FUNCTION)           \
  MSCCLPP_SIM_ATOMIC(NAME, unsigned int, FUNCTION)  \
  MSCCLPP_SIM_ATOMIC(NAME, unsigned long long, FUNCTION)

MSCCLPP_SIM_ATOMIC_INTEGERS(atomicAdd, add)
MSCCLPP_SIM_ATOMIC(atomicAdd, float, addFloating)
MSCCLPP_SIM_ATOMIC(atomicAdd, double, addFloating)
MSCCLPP_SIM_ATOMIC(atomicSub, int, subtract)
MSCCLPP_SIM_ATOMIC(atomicSub, unsigned int, subtract)
MSCCLPP_SIM_ATOMIC_INTEGERS(atomicExch, exchange)
MSCCLPP_SIM_ATOMIC(atomicExch, float, exchange)
MSCCLPP_SIM_ATOMIC_INTEGERS(atomicMin, minimum)
MSCCLPP_SIM_ATOMIC(atomicMin, long long, minimum)
MSCCLPP_SIM_ATOMIC_INTEGERS(atomicMax, maximum)
MSCCLPP_SIM_ATOMIC(atomicMax, long long, maximum)
MSCCLPP_SIM_ATOMIC_INTEGERS(atomicAnd, bitAnd)
MSCCLPP_SIM_ATOMIC_INTEGERS(atomicOr, bitOr)
MSCCLPP_SIM_ATOMIC_INTEGERS(atomicXor, bitXor)
MSCCLPP_SIM_ATOMIC(atomicInc, unsigned int, increment)
MSCCLPP_SIM_ATOMIC(atomicDec, unsigned int, decrement)

#undef MSCCLPP_SIM_ATOMIC_INTEGERS

MSCCLPP_SIM_IN_SCOPES(MSCCLPP_SIM_CAS_IN, atomicCAS, int, compareAndSwap)
MSCCLPP_SIM_IN_SCOPES(MSCCLPP_SIM_CAS_IN, atomicCAS, unsigned int, compareAndSwap)
MSCCLPP_SIM_IN_SCOPES(MSCCLPP_SIM_CAS_IN, atomicCAS, unsigned long long, compareAndSwap)
MSCCLPP_SIM_IN_SCOPES(MSCCLPP_SIM_CAS_IN, atomicCAS, unsigned short, compareAndSwap)

#endif  // MSCCLPP_SIM_ATOMICS_HPP_
