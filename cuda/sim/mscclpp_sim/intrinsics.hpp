// The names that CUDA's device code has without an include, besides threads and their barriers (runtime.hpp) and atomics
// (atomics.hpp): functions of integers, floating-point numbers and memory, traps, and clocks.

#ifndef MSCCLPP_SIM_INTRINSICS_HPP_
#define MSCCLPP_SIM_INTRINSICS_HPP_

// This declares memcpy and its like.
#include <string.h>
// This declares the C library's clock(); see below.
#include <ctime>

#include "assert.h"
#include "mscclpp_sim/floats.hpp"
#include "mscclpp_sim/integers.hpp"
#include "mscclpp_sim/memory.hpp"
#include "mscclpp_sim/runtime.hpp"

// ---- traps: they fail the kernel

inline void __trap() { mscclpp_sim::trap("__trap() was called"); }
inline void __brkpt() { mscclpp_sim::trap("__brkpt() was called, and there is no debugger"); }

// CUDA's compilers assume that the condition holds. This function checks it.
inline void __assume(bool condition) {
  if (!condition) mscclpp_sim::trap("what __assume() was told is not true");
}
#if !defined(__clang__)
inline void __builtin_assume(bool condition) { __assume(condition); }
#endif

// ---- time

namespace mscclpp_sim {

// Returns the nanoseconds of a clock that never goes back. Other threads may run meanwhile: kernels call it in loops.
inline long long nanoseconds() {
  step(64);
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

}  // namespace mscclpp_sim

// The multiprocessor's cycles, which are those of a clock of 1 GHz.
inline long long clock64() { return mscclpp_sim::nanoseconds(); }

// PTX's %globaltimer, by the name that compilers have for it.
inline unsigned long long __nvvm_read_ptx_sreg_globaltimer() {
  return static_cast<unsigned long long>(mscclpp_sim::nanoseconds());
}

// CUDA's clock() takes no arguments, and neither does the C library's, which counts something else: a macro separates
// them. <ctime> is included above, so that nothing declares that one after the macro, or removes it.
#define clock() static_cast<clock_t>(clock64())

// A GPU's thread sleeps for any time up to twice as long.
inline void __nanosleep(unsigned int) { mscclpp_sim::pause(); }

#endif  // MSCCLPP_SIM_INTRINSICS_HPP_
