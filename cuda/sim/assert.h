// This header replaces the C library's: in a kernel, an assertion that does not hold fails the kernel, not the process.
// Like that one, it may be included again and then follows NDEBUG as it is at that point.

#include "mscclpp_sim/runtime.hpp"

#undef assert
#if defined(NDEBUG)
#define assert(...) static_cast<void>(0)
#else
#define MSCCLPP_SIM_TEXT_OF(...) #__VA_ARGS__
#define MSCCLPP_SIM_TEXT(...) MSCCLPP_SIM_TEXT_OF(__VA_ARGS__)
#define assert(...)           \
  ((__VA_ARGS__)              \
       ? static_cast<void>(0) \
       : mscclpp_sim::trap(__FILE__ ":" MSCCLPP_SIM_TEXT(__LINE__) ": assertion failed: " #__VA_ARGS__))
#endif
