// Linked to every kernel, and compiled without the option that calls this: see runtime.hpp.

#include "mscclpp_host/runtime.hpp"

extern "C" __attribute__((visibility("hidden"))) void __sanitizer_cov_trace_pc() { mscclpp_host::step(1); }

extern "C" __attribute__((visibility("hidden"))) void mscclpp_host_copy_words(uint64_t* to, const uint64_t* from,
                                                                               uint64_t words) {
  for (uint64_t i = 0; i < words; ++i) {
    __atomic_store_n(to + i, __atomic_load_n(from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  }
}
