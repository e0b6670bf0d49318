// A check in device code that only debug builds make.

#ifndef MSCCLPP_ASSERT_DEVICE_HPP_
#define MSCCLPP_ASSERT_DEVICE_HPP_

#include "mscclpp/device.hpp"

// Fails the kernel with `message` if `condition` is false, where DEBUG_BUILD is defined. Elsewhere it is nothing, and
// `condition` is not evaluated.
#if !defined(DEBUG_BUILD) || !defined(MSCCLPP_DEVICE_COMPILE)
#define MSCCLPP_ASSERT_DEVICE(condition, message)
#elif defined(MSCCLPP_DEVICE_HIP)
#define MSCCLPP_ASSERT_DEVICE(condition, message) \
  do {                                            \
    if (!(condition)) __builtin_trap();           \
  } while (0)
#else
// `assert` is there without an include wherever CUDA is compiled.
#define MSCCLPP_ASSERT_DEVICE(condition, message) assert((condition) && (message))
#endif

#endif  // MSCCLPP_ASSERT_DEVICE_HPP_
