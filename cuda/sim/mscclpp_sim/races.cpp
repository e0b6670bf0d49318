// This is linked to kernels that are compiled for the race detector. It has the functions that the compiler calls for
// each access to memory (-fsanitize=thread), in place of the sanitizer's own library. It is compiled without that option,
// and passes the accesses to the library.

#include "mscclpp_sim/runtime.hpp"

using mscclpp_sim::Atomic;
using mscclpp_sim::self;
using mscclpp_sim::Thread;

#define MSCCLPP_SIM_HOOK extern "C" __attribute__((visibility("hidden")))
#define MSCCLPP_SIM_PLACE reinterpret_cast<uintptr_t>(__builtin_return_address(0))

namespace {

// The thread's own stack, which also has its Thread, belongs to no other thread.
bool isOwn(Thread* thread, const void* address) {
  return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(thread) < mscclpp_sim::StackBytes;
}

void access(uintptr_t place, const void* address, uint64_t bytes, uint32_t kind) {
  Thread* const thread = self();
  if (isOwn(thread, address) || (thread->access & mscclpp_sim::AccessIsSilent) != 0) return;
  thread->runtime->races->access(thread, place, reinterpret_cast<uintptr_t>(address), bytes, kind);
}

enum Operation : uint32_t { Load, Store, Exchange, Add, Sub, And, Or, Xor, Nand, CompareSwap };

// The default meaning of an access: the order of C++, and the scope of the system.
uint32_t meant(int order) {
  constexpr uint32_t system = 2u << mscclpp_sim::AccessScopeShift;
  switch (order) {
    case __ATOMIC_RELAXED:
      return 1 | system;
    case __ATOMIC_CONSUME:
    case __ATOMIC_ACQUIRE:
      return 2 | system;
    case __ATOMIC_RELEASE:
      return 3 | system;
    default:
      return 4 | system;
  }
}

// Returns and clears the meaning that was set for this access.
uint32_t takeMeaning(Thread* thread, int order) {
  const uint32_t said = thread->access;
  if ((said & mscclpp_sim::AccessIsSilent) != 0) return said;
  const uint32_t stays = said & mscclpp_sim::AccessStays;
  thread->access = stays;
  return (said & mscclpp_sim::AccessIsSet) != 0 ? said : meant(order) | stays;
}

template <class T>
T atomic(uintptr_t place, Operation operation, const volatile T* address, T value, T expected, int order) {
  Thread* const thread = self();
  uint32_t how = takeMeaning(thread, order);
  if (isOwn(thread, const_cast<const T*>(address))) how = mscclpp_sim::AccessIsSilent;
  const Atomic what = {operation, sizeof(T), how, value, expected};
  return static_cast<T>(
      thread->runtime->races->atomic(thread, place, reinterpret_cast<uintptr_t>(address), &what));
}

}  // namespace

// ---- reads and writes

#define MSCCLPP_SIM_ACCESS(NAME, BYTES, KIND) \
  MSCCLPP_SIM_HOOK void __tsan_##NAME##BYTES(void* address) { access(MSCCLPP_SIM_PLACE, address, BYTES, KIND); }
#define MSCCLPP_SIM_ACCESSES(BYTES)                     \
  MSCCLPP_SIM_ACCESS(read, BYTES, 0)                    \
  MSCCLPP_SIM_ACCESS(write, BYTES, 1)                   \
  MSCCLPP_SIM_ACCESS(unaligned_read, BYTES, 0)          \
  MSCCLPP_SIM_ACCESS(unaligned_write, BYTES, 1)         \
  MSCCLPP_SIM_ACCESS(volatile_read, BYTES, 2)           \
  MSCCLPP_SIM_ACCESS(volatile_write, BYTES, 3)          \
  MSCCLPP_SIM_ACCESS(unaligned_volatile_read, BYTES, 2) \
  MSCCLPP_SIM_ACCESS(unaligned_volatile_write, BYTES, 3)
MSCCLPP_SIM_ACCESSES(1)
MSCCLPP_SIM_ACCESSES(2)
MSCCLPP_SIM_ACCESSES(4)
MSCCLPP_SIM_ACCESSES(8)
MSCCLPP_SIM_ACCESSES(16)

MSCCLPP_SIM_HOOK void __tsan_read_range(void* address, uint64_t bytes) {
  access(MSCCLPP_SIM_PLACE, address, bytes, 0);
}
MSCCLPP_SIM_HOOK void __tsan_write_range(void* address, uint64_t bytes) {
  access(MSCCLPP_SIM_PLACE, address, bytes, 1);
}
MSCCLPP_SIM_HOOK void __tsan_vptr_read(void* address) { access(MSCCLPP_SIM_PLACE, address, 8, 0); }
MSCCLPP_SIM_HOOK void __tsan_vptr_update(void* address, void*) { access(MSCCLPP_SIM_PLACE, address, 8, 1); }

// ---- copies that the compiler leaves to the C library

static void* copy(uintptr_t place, void* to, const void* from, size_t bytes) {
  access(place, from, bytes, 0);
  access(place, to, bytes, 1);
  volatile char* const target = static_cast<char*>(to);
  const volatile char* const source = static_cast<const char*>(from);
  if (target < source) {
    for (size_t i = 0; i < bytes; ++i) target[i] = source[i];
  } else {
    for (size_t i = bytes; i != 0; --i) target[i - 1] = source[i - 1];
  }
  return to;
}
MSCCLPP_SIM_HOOK void* memmove(void* to, const void* from, size_t bytes) {
  return copy(MSCCLPP_SIM_PLACE, to, from, bytes);
}
MSCCLPP_SIM_HOOK void* memcpy(void* to, const void* from, size_t bytes) {
  return copy(MSCCLPP_SIM_PLACE, to, from, bytes);
}
MSCCLPP_SIM_HOOK void* memset(void* to, int value, size_t bytes) {
  access(MSCCLPP_SIM_PLACE, to, bytes, 1);
  volatile char* const target = static_cast<char*>(to);
  for (size_t i = 0; i < bytes; ++i) target[i] = static_cast<char>(value);
  return to;
}
// The names that newer compilers use.
MSCCLPP_SIM_HOOK void* __tsan_memcpy(void* to, const void* from, size_t bytes) { return memcpy(to, from, bytes); }
MSCCLPP_SIM_HOOK void* __tsan_memmove(void* to, const void* from, size_t bytes) { return memmove(to, from, bytes); }
MSCCLPP_SIM_HOOK void* __tsan_memset(void* to, int value, size_t bytes) { return memset(to, value, bytes); }

// ---- atomic accesses and fences

#define MSCCLPP_SIM_UPDATE(BITS, NAME, OPERATION)                                                                  \
  MSCCLPP_SIM_HOOK uint##BITS##_t __tsan_atomic##BITS##_##NAME(volatile uint##BITS##_t* address,                    \
                                                               uint##BITS##_t value, int order) {                   \
    return atomic<uint##BITS##_t>(MSCCLPP_SIM_PLACE, OPERATION, address, value, 0, order);                          \
  }
#define MSCCLPP_SIM_SWAP(BITS, NAME)                                                                                \
  MSCCLPP_SIM_HOOK bool __tsan_atomic##BITS##_compare_exchange_##NAME(                                               \
      volatile uint##BITS##_t* address, uint##BITS##_t* expected, uint##BITS##_t desired, int order, int) {           \
    const uint##BITS##_t wanted = *expected;                                                                         \
    *expected = atomic<uint##BITS##_t>(MSCCLPP_SIM_PLACE, CompareSwap, address, desired, wanted, order);             \
    return *expected == wanted;                                                                                      \
  }
#define MSCCLPP_SIM_ATOMICS(BITS)                                                                                   \
  MSCCLPP_SIM_HOOK uint##BITS##_t __tsan_atomic##BITS##_load(const volatile uint##BITS##_t* address, int order) {     \
    return atomic<uint##BITS##_t>(MSCCLPP_SIM_PLACE, Load, address, 0, 0, order);                                    \
  }                                                                                                                  \
  MSCCLPP_SIM_HOOK void __tsan_atomic##BITS##_store(volatile uint##BITS##_t* address, uint##BITS##_t value,           \
                                                    int order) {                                                     \
    atomic<uint##BITS##_t>(MSCCLPP_SIM_PLACE, Store, address, value, 0, order);                                      \
  }                                                                                                                  \
  MSCCLPP_SIM_UPDATE(BITS, exchange, Exchange)                                                                       \
  MSCCLPP_SIM_UPDATE(BITS, fetch_add, Add)                                                                           \
  MSCCLPP_SIM_UPDATE(BITS, fetch_sub, Sub)                                                                           \
  MSCCLPP_SIM_UPDATE(BITS, fetch_and, And)                                                                           \
  MSCCLPP_SIM_UPDATE(BITS, fetch_or, Or)                                                                             \
  MSCCLPP_SIM_UPDATE(BITS, fetch_xor, Xor)                                                                           \
  MSCCLPP_SIM_UPDATE(BITS, fetch_nand, Nand)                                                                         \
  MSCCLPP_SIM_SWAP(BITS, strong)                                                                                     \
  MSCCLPP_SIM_SWAP(BITS, weak)                                                                                       \
  MSCCLPP_SIM_HOOK uint##BITS##_t __tsan_atomic##BITS##_compare_exchange_val(                                         \
      volatile uint##BITS##_t* address, uint##BITS##_t expected, uint##BITS##_t desired, int order, int) {            \
    return atomic<uint##BITS##_t>(MSCCLPP_SIM_PLACE, CompareSwap, address, desired, expected, order);                \
  }
MSCCLPP_SIM_ATOMICS(8)
MSCCLPP_SIM_ATOMICS(16)
MSCCLPP_SIM_ATOMICS(32)
MSCCLPP_SIM_ATOMICS(64)

MSCCLPP_SIM_HOOK void __tsan_atomic_thread_fence(int order) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  Thread* const thread = self();
  const uint32_t how = takeMeaning(thread, order);
  if ((how & mscclpp_sim::AccessIsSilent) == 0) thread->runtime->races->fence(thread, how);
}
MSCCLPP_SIM_HOOK void __tsan_atomic_signal_fence(int) {}

// ---- functions that are not inlined, and what the sanitizer would begin with

MSCCLPP_SIM_HOOK void __tsan_func_entry(void* caller) {
  Thread* const thread = self();
  thread->runtime->races->enter(thread, reinterpret_cast<uintptr_t>(caller));
}
MSCCLPP_SIM_HOOK void __tsan_func_exit() { self()->runtime->races->leave(self()); }
MSCCLPP_SIM_HOOK void __tsan_init() {}

// ---- `__shared__` memory

// A thread of the operating system gets its copy of the library's thread-local variables when it first uses one.
namespace {
thread_local volatile char mscclpp_sim_touched __asm__("mscclpp_sim_touched");
}
extern "C" __attribute__((visibility("default"))) void mscclpp_sim_touch_shared() { mscclpp_sim_touched = 1; }
