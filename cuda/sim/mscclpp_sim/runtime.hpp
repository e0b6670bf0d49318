// The runtime of a kernel on simulated devices, in place of a GPU. The library compiles a kernel's own CUDA source with a
// C++ compiler, includes this before it, and runs each thread as a coroutine: the threads of a block take turns on one
// thread of the operating system, and blocks run side by side.
//
// Coroutines are switched by the library, in Rust (crates/mscclpp-gpu/src/sim/block.rs), through the functions of
// `Runtime`. A thread gives way
//   - at a barrier of its block or warp, until the others are there;
//   - in every turn of a wait of the device API (`pause`);
//   - after `StepsPerTurn` branches: the compiler puts a call of __sanitizer_cov_trace_pc (trace.cpp) at each, so that a
//     kernel's own loop may wait for another thread, also of its own warp.
// Each turn begins with all its steps, so the work of a thread directly after a barrier is not interrupted: some of the
// device API relies on that where a GPU's warp does something in one instruction.
//
// Memory: __shared__ variables are thread-local variables of the block's thread; __device__ and __constant__ ones are
// variables of the compiled library, of which each load has a copy of its own.

#ifndef MSCCLPP_SIM_RUNTIME_HPP_
#define MSCCLPP_SIM_RUNTIME_HPP_

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mscclpp_sim/vector_types.hpp"

#define MSCCLPP_DEVICE_SIM

namespace mscclpp_sim {

struct Thread;

// The functions of the library for kernels. crates/mscclpp-gpu/src/sim/abi.rs has the same layout, as for the next two
// structs.
struct Runtime {
  // Lets others run, for a thread that waits, and has nothing to do before something has changed.
  void (*pause)(Thread*);
  // Lets others run, for a thread that has had its turn.
  void (*yield)(Thread*);
  // Waits for all threads of the block. Returns the number that came in the high half, and the number of them with
  // `value` in the low half.
  uint64_t (*blockBarrier)(Thread*, uint32_t value);
  // Waits for the threads of the warp that are in `mask` and have not ended. Returns the threads that came.
  uint32_t (*warpBarrier)(Thread*, uint32_t mask);
  // Returns if the bytes are memory of a device or of this kernel, and remembers that as the first of `known[isStore]`,
  // after which the former first one comes; else fails the kernel.
  void (*findRange)(Thread*, uintptr_t address, uint64_t bytes, uint32_t isStore);
  // Fails the kernel.
  void (*trap)(Thread*, const char* message);
  const struct Races* races;
};

// A call of a bulk copy; see races.hpp.
struct BulkCopy {
  uint32_t what;
  uint64_t bytes;
  uintptr_t dst;
  uintptr_t src;
  uintptr_t barrier;
};

// The functions of the race detector, which get the place in the code. Kernels that are compiled for it call these
// (races.cpp).
struct Races {
  // A read (0) or a write (1), or a read or write of something volatile (2, 3).
  void (*access)(Thread*, uintptr_t place, uintptr_t address, uint64_t bytes, uint32_t kind);
  // Does an atomic access and returns the value before.
  uint64_t (*atomic)(Thread*, uintptr_t place, uintptr_t address, const struct Atomic*);
  void (*fence)(Thread*, uint32_t how);
  // Calls of a function that is not inlined.
  void (*enter)(Thread*, uintptr_t place);
  void (*leave)(Thread*);
  void (*bulk)(Thread*, uintptr_t place, const BulkCopy*);
};

// An atomic access: its operation, bytes, order and scope, and operands.
struct Atomic {
  uint32_t operation;
  uint32_t bytes;
  uint32_t how;
  uint64_t value;
  uint64_t expected;
};

// The memory that contains an access.
struct Range {
  uintptr_t begin;
  uint64_t bytes;
  // The epoch of the process's memory at that time: it changes when memory is freed.
  uint64_t epoch;
};

// One word of 16 bytes for each thread of a warp, for the exchange of values.
struct Warp {
  uint64_t words[32][2];
};

// A thread of the kernel. It lies at the lower end of the thread's stack, whose address is a multiple of StackBytes.
struct Thread {
  const Runtime* runtime;
  Warp* warp;
  const uint64_t* epoch;
  int64_t stepsLeft;
  // The memories that were found last, and before that, by loads and by stores: a kernel that combines two memories needs
  // both.
  Range known[2][2];
  uint3 threadIndex;
  uint3 blockIndex;
  uint3 blockSize;
  uint3 gridSize;
  uint32_t lane;
  uint32_t threadsOfWarp;
  // The meaning of the next access, for the race detector; see races.hpp.
  uint32_t access;
};

constexpr uintptr_t StackBytes = 128 << 10;

// Returns the calling thread, from the address of the stack, so that the call costs nothing.
inline Thread* self() {
  uintptr_t stack;
#if defined(__x86_64__)
  __asm__("mov %%rsp, %0" : "=r"(stack));
#elif defined(__aarch64__)
  __asm__("mov %0, sp" : "=r"(stack));
#else
  stack = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
#endif
  return reinterpret_cast<Thread*>(stack & ~(StackBytes - 1));
}

// Ends the kernel with an error.
[[noreturn]] inline void trap(const char* message) {
  self()->runtime->trap(self(), message);
  __builtin_unreachable();
}

// Gives way. A loop that waits calls it in each turn.
inline void pause() { self()->runtime->pause(self()); }

// Counts so many branches of the thread's turn.
inline void step(int64_t steps) {
  Thread* const thread = self();
  thread->stepsLeft -= steps;
  if (thread->stepsLeft <= 0) thread->runtime->yield(thread);
}

// Whether bytes are in a memory that was found, and still exists. It is one value, without a branch for each part:
// branches are counted, which takes longer than all of this.
inline bool isIn(const Range& known, uint64_t epoch, uintptr_t begin, uint64_t bytes) {
  const uint64_t at = begin - known.begin;
  return (known.epoch == epoch) & (at < known.bytes) & (at + bytes <= known.bytes);
}

// Fails the kernel unless `bytes` bytes from `address` on, a multiple of `bytes`, are memory that a kernel may touch.
inline void check(const void* address, uint64_t bytes, uint32_t isStore) {
  Thread* const thread = self();
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
  const uint64_t epoch = __atomic_load_n(thread->epoch, __ATOMIC_RELAXED);
  const Range* const known = thread->known[isStore];
  const bool isAligned = begin % bytes == 0;
  if (isAligned & isIn(known[0], epoch, begin, bytes)) return;
  if (isAligned & isIn(known[1], epoch, begin, bytes)) return;
  thread->runtime->findRange(thread, begin, bytes, isStore);
}

// Whether `bytes` bytes from `address` on, whose first is memory that a kernel may touch, are in one such memory: then
// they need not be checked one by one. Fails the kernel if it may not touch the first.
inline bool isOneMemory(const void* address, uint64_t bytes, uint32_t isStore) {
  check(address, 1, isStore);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
  const uint64_t epoch = __atomic_load_n(self()->epoch, __ATOMIC_RELAXED);
  const Range* const known = self()->known[isStore];
  return isIn(known[0], epoch, begin, bytes) | isIn(known[1], epoch, begin, bytes);
}

// Copies words, as relaxed atomic accesses, without counting branches (trace.cpp).
extern "C" __attribute__((visibility("hidden"))) void mscclpp_sim_copy_words(uint64_t* to, const uint64_t* from,
                                                                               uint64_t words);

// Copies so many words as a loop of the kernel would, in a fraction of its time. Returns false without copying if the
// race detector must see each access, or if an access would fail, which the kernel's own loop then does.
inline bool copyWords([[maybe_unused]] void* to, [[maybe_unused]] const void* from, [[maybe_unused]] uint64_t words) {
#if defined(MSCCLPP_SIM_RACES)
  return false;
#else
  if (words == 0) return true;
  if (!isOneMemory(from, words * 8, 0) || !isOneMemory(to, words * 8, 1)) return false;
  mscclpp_sim_copy_words(static_cast<uint64_t*>(to), static_cast<const uint64_t*>(from), words);
  // This is about the number that the loop would have counted.
  step(static_cast<int64_t>(words / 8));
  return true;
#endif
}

// Adds numbers, in the order of their sources, in the same way (trace.cpp). `byEight`: all addresses are multiples of 8.
extern "C" __attribute__((visibility("hidden"))) void mscclpp_sim_add_floats(uint8_t* to, const uint8_t* const* from,
                                                                               uint32_t count, uint64_t offset,
                                                                               uint64_t floats, bool byEight);

// Adds the numbers at `offset` of each of `count` sources, in the way of copyWords. Also returns false if an address is
// no multiple of 4.
inline bool addFloats([[maybe_unused]] uint8_t* to, [[maybe_unused]] const uint8_t* const* from,
                      [[maybe_unused]] uint32_t count, [[maybe_unused]] uint64_t offset, [[maybe_unused]] uint64_t floats) {
#if defined(MSCCLPP_SIM_RACES)
  return false;
#else
  if (floats == 0) return true;
  uintptr_t addresses = reinterpret_cast<uintptr_t>(to) | offset;
  if (!isOneMemory(to + offset, floats * 4, 1)) return false;
  for (uint32_t n = 0; n < count; ++n) {
    addresses |= reinterpret_cast<uintptr_t>(from[n]);
    if (!isOneMemory(from[n] + offset, floats * 4, 0)) return false;
  }
  if (addresses % 4 != 0) return false;
  mscclpp_sim_add_floats(to + offset, from, count, offset, floats, addresses % 8 == 0);
  step(static_cast<int64_t>(floats / 16 * count));
  return true;
#endif
}

}  // namespace mscclpp_sim

// ---- built-in variables

#define threadIdx (mscclpp_sim::self()->threadIndex)
#define blockIdx (mscclpp_sim::self()->blockIndex)
#define blockDim (dim3(mscclpp_sim::self()->blockSize))
#define gridDim (dim3(mscclpp_sim::self()->gridSize))
#define warpSize 32

// ---- barriers of the block

inline void __syncthreads() { mscclpp_sim::self()->runtime->blockBarrier(mscclpp_sim::self(), 0); }
inline int __syncthreads_count(int value) {
  return static_cast<int>(
      static_cast<uint32_t>(mscclpp_sim::self()->runtime->blockBarrier(mscclpp_sim::self(), value != 0)));
}
inline int __syncthreads_or(int value) { return __syncthreads_count(value) != 0; }
inline int __syncthreads_and(int value) {
  const uint64_t came = mscclpp_sim::self()->runtime->blockBarrier(mscclpp_sim::self(), value != 0);
  return static_cast<uint32_t>(came) == static_cast<uint32_t>(came >> 32);
}

#include "mscclpp_sim/races.hpp"
#include "mscclpp_sim/warp.hpp"

// These are included here because they need the declarations above.
#include "mscclpp_sim/atomics.hpp"
#include "mscclpp_sim/intrinsics.hpp"

// ---- how the library calls a kernel

namespace mscclpp_sim {

template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct CountTo : CountTo<N - 1, N - 1, I...> {};
template <size_t... I>
struct CountTo<0, I...> {
  using Type = Indices<I...>;
};

// A kernel as a function of pointers to its arguments.
struct Kernel {
  const char* name;
  void (*call)(void* const* arguments);
  uint64_t parameters;
  const uint64_t* parameterBytes;
  const uint64_t* parameterAlignments;
};

template <auto K>
struct Entry;
template <class... P, void (*K)(P...)>
struct Entry<K> {
  static void call(void* const* arguments) { callWith(arguments, typename CountTo<sizeof...(P)>::Type()); }
  static constexpr uint64_t bytes[sizeof...(P) + 1] = {sizeof(P)..., 0};
  static constexpr uint64_t alignments[sizeof...(P) + 1] = {alignof(P)..., 0};
  static constexpr Kernel kernel(const char* name) { return {name, call, sizeof...(P), bytes, alignments}; }

 private:
  template <size_t... I>
  static void callWith([[maybe_unused]] void* const* arguments, Indices<I...>) {
    K(*static_cast<P*>(arguments[I])...);
  }
};

}  // namespace mscclpp_sim

#endif  // MSCCLPP_SIM_RUNTIME_HPP_
