// This is linked to every kernel, and compiled without the option that calls it: see runtime.hpp.

#include "mscclpp_sim/runtime.hpp"

extern "C" __attribute__((visibility("hidden"))) void __sanitizer_cov_trace_pc() { mscclpp_sim::step(1); }

extern "C" __attribute__((visibility("hidden"))) void mscclpp_sim_copy_words(uint64_t* to, const uint64_t* from,
                                                                               uint64_t words) {
  for (uint64_t i = 0; i < words; ++i) {
    __atomic_store_n(to + i, __atomic_load_n(from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  }
}

namespace {

uint32_t load(const uint32_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
uint64_t load(const uint64_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }

// Adds one number at a time.
void addSingly(uint32_t* to, const uint8_t* const* from, uint32_t count, uint64_t offset, uint64_t floats) {
  for (uint64_t i = 0; i < floats; ++i) {
    float sum = 0;
    for (uint32_t n = 0; n < count; ++n) {
      const uint32_t bits = load(reinterpret_cast<const uint32_t*>(from[n] + offset) + i);
      float number;
      __builtin_memcpy(&number, &bits, 4);
      sum = n == 0 ? number : sum + number;
    }
    uint32_t bits;
    __builtin_memcpy(&bits, &sum, 4);
    __atomic_store_n(to + i, bits, __ATOMIC_RELAXED);
  }
}

// Adds four at a time, read and written as words of 8 bytes.
void addByFour(uint64_t* to, const uint8_t* const* from, uint32_t count, uint64_t offset, uint64_t floats) {
  typedef float Numbers __attribute__((vector_size(16)));
  typedef uint64_t Words __attribute__((vector_size(16)));
  for (uint64_t i = 0; i < floats / 2; i += 2) {
    Numbers sum = {};
    for (uint32_t n = 0; n < count; ++n) {
      const uint64_t* const source = reinterpret_cast<const uint64_t*>(from[n] + offset) + i;
      const Numbers numbers = reinterpret_cast<Numbers>(Words{load(source), load(source + 1)});
      sum = n == 0 ? numbers : sum + numbers;
    }
    const Words words = reinterpret_cast<Words>(sum);
    __atomic_store_n(to + i, words[0], __ATOMIC_RELAXED);
    __atomic_store_n(to + i + 1, words[1], __ATOMIC_RELAXED);
  }
}

}  // namespace

extern "C" __attribute__((visibility("hidden"))) void mscclpp_sim_add_floats(uint8_t* to, const uint8_t* const* from,
                                                                               uint32_t count, uint64_t offset,
                                                                               uint64_t floats, bool byEight) {
  if (byEight && floats % 4 == 0) {
    addByFour(reinterpret_cast<uint64_t*>(to), from, count, offset, floats);
  } else {
    addSingly(reinterpret_cast<uint32_t*>(to), from, count, offset, floats);
  }
}
