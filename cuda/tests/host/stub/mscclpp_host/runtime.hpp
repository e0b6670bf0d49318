// As much of the runtime as the other headers need, for programs whose only thread is their own.

#ifndef MSCCLPP_HOST_RUNTIME_HPP_
#define MSCCLPP_HOST_RUNTIME_HPP_

#include <stdio.h>
#include <stdlib.h>

namespace mscclpp_host {

inline void step(unsigned int) {}
inline void pause() {}

// Set while a test expects a trap: what it says is kept then, and the program goes on.
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

}  // namespace mscclpp_host

#endif  // MSCCLPP_HOST_RUNTIME_HPP_
