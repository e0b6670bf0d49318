// The part of the runtime that the other headers need, for programs with a single thread.

#ifndef MSCCLPP_SIM_RUNTIME_HPP_
#define MSCCLPP_SIM_RUNTIME_HPP_

#include <stdio.h>
#include <stdlib.h>

#include "mscclpp_sim/vector_types.hpp"

namespace mscclpp_sim {

inline void step(unsigned int) {}
inline void pause() {}
inline void check(const void*, unsigned long, unsigned int) {}

// Set while a test expects a trap: its message is kept then, and the program goes on.
inline const char** expectedTrap = nullptr;
struct Trapped {};

[[noreturn]] inline void trap(const char* message) {
  if (expectedTrap != nullptr) {
    *expectedTrap = message;
    throw Trapped();
  }
  fprintf(stderr, "trap: %s\n", message);
  exit(1);
}

}  // namespace mscclpp_sim

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

inline void __syncthreads() {}
inline void __syncwarp(unsigned int = ~0u) {}
inline int __any_sync(unsigned int, int predicate) { return predicate; }
inline int __all_sync(unsigned int, int predicate) { return predicate; }
inline unsigned int __ballot_sync(unsigned int, int predicate) { return predicate != 0; }
template <class T>
T __shfl_sync(unsigned int, T value, int, int = 32) {
  return value;
}
template <class T>
T __shfl_up_sync(unsigned int, T value, unsigned int, int = 32) {
  return value;
}
template <class T>
T __shfl_down_sync(unsigned int, T value, unsigned int, int = 32) {
  return value;
}
template <class T>
T __shfl_xor_sync(unsigned int, T value, int, int = 32) {
  return value;
}

#endif  // MSCCLPP_SIM_RUNTIME_HPP_
