// Checks, and numbers to check with.

#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Ends the process at once: the calling thread's stack may not be the system's.
[[noreturn]] inline void fail(const char* file, int line, const char* what) {
  fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
  _Exit(1);
}
#define CHECK(...) ((__VA_ARGS__) ? (void)0 : fail(__FILE__, __LINE__, #__VA_ARGS__))

// Random numbers (xorshift64*).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1dull;
  }
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((next() >> 11) % bound); }

 private:
  uint64_t state_;
};
