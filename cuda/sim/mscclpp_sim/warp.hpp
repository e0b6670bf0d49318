// The functions that the threads of a simulated warp do together: votes, shuffles, reductions. A thread leaves its value
// in the warp's memory, meets the others, and reads theirs; a second meeting keeps the memory until all have read.

#ifndef MSCCLPP_SIM_WARP_HPP_
#define MSCCLPP_SIM_WARP_HPP_

#include "mscclpp_sim/runtime.hpp"

namespace mscclpp_sim {

// Calls `read(came)`, where `came` has the threads of `mask` that have left their `value` in words of the warp.
template <class T, class Read>
inline auto exchange(unsigned int mask, T value, Read read) {
  static_assert(sizeof(T) <= 16, "a warp exchanges values of up to 16 bytes");
  Thread* const thread = self();
  memcpy(thread->warp->words[thread->lane], &value, sizeof(T));
  const uint32_t came = thread->runtime->warpBarrier(thread, mask);
  const auto result = read(came);
  thread->runtime->warpBarrier(thread, mask);
  return result;
}

// Returns the value that thread `lane` left.
template <class T>
inline T left(unsigned int lane) {
  T value;
  memcpy(&value, self()->warp->words[lane], sizeof(T));
  return value;
}

// Returns the `value` of the lane that `from(own lane)` names, or its own where that one does not take part.
template <class T, class From>
inline T shuffle(unsigned int mask, T value, From from) {
  return exchange(mask, value, [&](uint32_t came) {
    const int lane = from(static_cast<int>(self()->lane));
    return lane >= 0 && lane < 32 && (came >> lane & 1) != 0 ? left<T>(static_cast<unsigned int>(lane)) : value;
  });
}

// Returns `operation` over the values of all threads that take part, in the order of their lanes.
template <class T, class Operation>
inline T reduce(unsigned int mask, T value, Operation operation) {
  return exchange(mask, value, [&](uint32_t came) {
    T result = value;
    bool first = true;
    for (unsigned int lane = 0; lane < 32; ++lane) {
      if ((came >> lane & 1) == 0) continue;
      result = first ? left<T>(lane) : operation(result, left<T>(lane));
      first = false;
    }
    return result;
  });
}

}  // namespace mscclpp_sim

inline void __syncwarp(unsigned int mask = 0xffffffffu) {
  mscclpp_sim::self()->runtime->warpBarrier(mscclpp_sim::self(), mask);
}

// Threads never run in lockstep here: each is the only one of its warp in its instruction.
inline unsigned int __activemask() { return 1u << mscclpp_sim::self()->lane; }

inline unsigned int __ballot_sync(unsigned int mask, int predicate) {
  return mscclpp_sim::exchange(mask, predicate, [](uint32_t came) {
    unsigned int votes = 0;
    for (unsigned int lane = 0; lane < 32; ++lane) {
      if ((came >> lane & 1) != 0 && mscclpp_sim::left<int>(lane) != 0) votes |= 1u << lane;
    }
    return votes;
  });
}
inline int __any_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, predicate == 0) == 0; }

template <class T>
inline unsigned int __match_any_sync(unsigned int mask, T value) {
  return mscclpp_sim::exchange(mask, value, [=](uint32_t came) {
    unsigned int same = 0;
    for (unsigned int lane = 0; lane < 32; ++lane) {
      if ((came >> lane & 1) != 0 && mscclpp_sim::left<T>(lane) == value) same |= 1u << lane;
    }
    return same;
  });
}
template <class T>
inline unsigned int __match_all_sync(unsigned int mask, T value, int* predicate) {
  return mscclpp_sim::exchange(mask, value, [=](uint32_t came) {
    bool all = true;
    for (unsigned int lane = 0; lane < 32; ++lane) {
      if ((came >> lane & 1) != 0 && !(mscclpp_sim::left<T>(lane) == value)) all = false;
    }
    *predicate = all;
    return all ? came : 0u;
  });
}

template <class T>
inline T __shfl_sync(unsigned int mask, T value, int from, int width = 32) {
  return mscclpp_sim::shuffle(mask, value,
                               [=](int lane) { return (lane & ~(width - 1)) | (from & (width - 1)); });
}
template <class T>
inline T __shfl_up_sync(unsigned int mask, T value, unsigned int distance, int width = 32) {
  return mscclpp_sim::shuffle(mask, value, [=](int lane) {
    const int from = lane - static_cast<int>(distance);
    return from < (lane & ~(width - 1)) ? lane : from;
  });
}
template <class T>
inline T __shfl_down_sync(unsigned int mask, T value, unsigned int distance, int width = 32) {
  return mscclpp_sim::shuffle(mask, value, [=](int lane) {
    const int from = lane + static_cast<int>(distance);
    return from > (lane | (width - 1)) ? lane : from;
  });
}
template <class T>
inline T __shfl_xor_sync(unsigned int mask, T value, int bits, int width = 32) {
  return mscclpp_sim::shuffle(mask, value, [=](int lane) {
    const int from = lane ^ bits;
    return from > (lane | (width - 1)) ? lane : from;
  });
}

template <class T>
inline T __reduce_add_sync(unsigned int mask, T value) {
  return mscclpp_sim::reduce(mask, value, [](T a, T b) { return static_cast<T>(a + b); });
}
template <class T>
inline T __reduce_min_sync(unsigned int mask, T value) {
  return mscclpp_sim::reduce(mask, value, [](T a, T b) { return b < a ? b : a; });
}
template <class T>
inline T __reduce_max_sync(unsigned int mask, T value) {
  return mscclpp_sim::reduce(mask, value, [](T a, T b) { return a < b ? b : a; });
}
inline unsigned int __reduce_and_sync(unsigned int mask, unsigned int value) {
  return mscclpp_sim::reduce(mask, value, [](unsigned int a, unsigned int b) { return a & b; });
}
inline unsigned int __reduce_or_sync(unsigned int mask, unsigned int value) {
  return mscclpp_sim::reduce(mask, value, [](unsigned int a, unsigned int b) { return a | b; });
}
inline unsigned int __reduce_xor_sync(unsigned int mask, unsigned int value) {
  return mscclpp_sim::reduce(mask, value, [](unsigned int a, unsigned int b) { return a ^ b; });
}

#endif  // MSCCLPP_SIM_WARP_HPP_
