// The information that kernels give to the race detector (MSCCLPP_SIM_RACES) besides their reads and writes: the order
// and the scope of atomic accesses and fences, which a CPU does not have, and the operations of bulk copies. Without the
// detector all of this is nothing.

// This stands before the guard, because the file includes this one in the middle.
#include "mscclpp_sim/runtime.hpp"

#ifndef MSCCLPP_SIM_RACES_HPP_
#define MSCCLPP_SIM_RACES_HPP_

namespace mscclpp_sim {

// The meaning of an access. The numbers are those of crates/mscclpp-gpu/src/sim/races/calls.rs.
enum class Order : uint32_t { Weak, Relaxed, Acquire, Release, AcquireRelease };
enum class Scope : uint32_t { Block, Device, System };

// The operations of a thread on bulk copies, and on the barriers that these complete.
enum class Bulk : uint32_t {
  Load,         // from `src` to `dst`, shared memory; `barrier` gets the bytes
  Store,        // from `src`, shared memory, to `dst`
  ReduceStore,  // the same, added to what is there
  Commit,
  Wait,        // until `bytes` groups are left that are not complete
  WaitSource,  // until `bytes` groups are left that still read
  Fence,       // of shared memory
  FenceAll,
  Arrive,    // at `barrier`
  Complete,  // a phase of `barrier` was seen to be over
  Init,      // of `barrier`
};

// The bits of Thread::access.
enum AccessBits : uint32_t {
  AccessScopeShift = 4,
  AccessIsSet = 1u << 8,
  AccessIsSilent = 1u << 9,
  AccessIsPacket = 1u << 10,
  AccessIsAtOnce = 1u << 11,
  AccessIsPair = 1u << 12,
  // Of all accesses until it is said otherwise.
  AccessStays = AccessIsPacket | AccessIsAtOnce | AccessIsPair
};

// Whether T is a pair of 16-bit floats, whose halves PTX adds to by themselves.
template <class T>
struct IsPair {
  static constexpr bool value = false;
};

#if defined(MSCCLPP_SIM_RACES)

// Sets the meaning of the next atomic access, or fence, of this thread.
inline void nextAccess(Order order, Scope scope) {
  Thread* const thread = self();
  if ((thread->access & AccessIsSilent) != 0) return;
  thread->access = AccessIsSet | (thread->access & AccessStays) | static_cast<uint32_t>(order) |
                   static_cast<uint32_t>(scope) << AccessScopeShift;
}

// During its life the thread's accesses are those of packets, each of which must be read before the next one takes its
// place.
struct AsPacket {
  AsPacket() { self()->access |= AccessIsPacket; }
  ~AsPacket() { self()->access &= ~AccessIsPacket; }
};

// During its life the thread's stores are parts of one that a GPU does at once: none of them comes late.
struct AtOnce {
  AtOnce() { self()->access |= AccessIsAtOnce; }
  ~AtOnce() { self()->access &= ~AccessIsAtOnce; }
};

// While it lives, each atomic access of the thread counts as one to each half of its word, if T is a pair.
template <class T>
struct AsPair {
  AsPair() {
    if (IsPair<T>::value) self()->access |= AccessIsPair;
  }
  ~AsPair() { self()->access &= ~AccessIsPair; }
};

// While it lives, the thread's accesses are not looked at. The thread keeps its turn meanwhile.
struct Silence {
  Silence() { self()->access = AccessIsSilent; }
  ~Silence() { self()->access = 0; }
};

inline __attribute__((always_inline)) void tellBulk(Bulk what, const void* dst = nullptr, const void* src = nullptr,
                                                    uint64_t bytes = 0, const void* barrier = nullptr) {
  uintptr_t place;
#if defined(__x86_64__)
  __asm__ volatile("lea 0(%%rip), %0" : "=r"(place));
#elif defined(__aarch64__)
  __asm__ volatile("adr %0, ." : "=r"(place));
#else
  place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
#endif
  const BulkCopy copy = {static_cast<uint32_t>(what), bytes, reinterpret_cast<uintptr_t>(dst),
                         reinterpret_cast<uintptr_t>(src), reinterpret_cast<uintptr_t>(barrier)};
  self()->runtime->races->bulk(self(), place, &copy);
}

#else

inline void nextAccess(Order, Scope) {}
struct AsPacket {
  AsPacket() {}
};
struct AtOnce {
  AtOnce() {}
};
template <class T>
struct AsPair {
  AsPair() {}
};
struct Silence {
  Silence() {}
};
inline void tellBulk(Bulk, const void* = nullptr, const void* = nullptr, uint64_t = 0, const void* = nullptr) {}

#endif

}  // namespace mscclpp_sim

#endif  // MSCCLPP_SIM_RACES_HPP_
