// Linked to every kernel, and compiled without the option that calls this: see runtime.hpp.

#include "mscclpp_host/runtime.hpp"

extern "C" __attribute__((visibility("hidden"))) void __sanitizer_cov_trace_pc() { mscclpp_host::step(1); }

extern "C" __attribute__((visibility("hidden"))) void mscclpp_host_copy_words(uint64_t* to, const uint64_t* from,
                                                                               uint64_t words) {
  for (uint64_t i = 0; i < words; ++i) {
    __atomic_store_n(to + i, __atomic_load_n(from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  }
}

extern "C" __attribute__((visibility("hidden"))) void mscclpp_host_add_floats(uint32_t* to, const uint8_t* const* from,
                                                                               uint32_t count, uint64_t offset,
                                                                               uint64_t floats) {
  for (uint64_t i = 0; i < floats; ++i) {
    float sum = 0;
    for (uint32_t n = 0; n < count; ++n) {
      const uint32_t bits = __atomic_load_n(reinterpret_cast<const uint32_t*>(from[n] + offset) + i, __ATOMIC_RELAXED);
      float number;
      __builtin_memcpy(&number, &bits, 4);
      sum = n == 0 ? number : sum + number;
    }
    uint32_t bits;
    __builtin_memcpy(&bits, &sum, 4);
    __atomic_store_n(to + i, bits, __ATOMIC_RELAXED);
  }
}
