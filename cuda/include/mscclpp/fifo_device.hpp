// The device side of a FIFO: kernels push triggers of 16 bytes, and a thread of the host, the proxy, takes them in
// order.
//
// How it works. Positions 0, 1, 2 ... are given out by one atomic add on `head`; the trigger of position p goes into
// slot p modulo `size`. The slots are never cleared: the top bit of a trigger, the commit bit, says in which lap it was
// written. It is 1 in the laps 0, 2, 4 ... and 0 in the others, and the memory starts as zeros, so a slot that has not
// been written in this lap shows the bit of the lap before. `tail` is how many triggers the proxy has taken.
//
// F1. No trigger is overwritten before it was read. The proxy reads a slot, and then raises the tail with release; a
//     pusher writes the slot of position p only when it has acquired a tail above p - size: from `tail`, or from
//     `tailCache`, into which another pusher released what it had acquired itself.
// F2. The proxy takes whole triggers only. A pusher writes both words by one access of 16 bytes that releases; the
//     proxy acquires the word with the commit bit and then reads the other one.
// F3. What the pushing thread wrote, or had acquired, before is visible to the proxy with the trigger, and to whatever
//     the proxy starts because of it.
// F4. Triggers of one thread are taken in the order of their pushes, and so are those of two threads of which one
//     pushed after it had synchronised with the other: the additions to `head` have one order, and it agrees with that.
// F5. A push that gives up leaves a hole, behind which nothing can be taken. It says so in `status`, and ends the other
//     pushes; the host reports it.

#ifndef MSCCLPP_FIFO_DEVICE_HPP_
#define MSCCLPP_FIFO_DEVICE_HPP_

#include "mscclpp/access_device.hpp"
#include "mscclpp/poll_device.hpp"

namespace mscclpp {

// What is pushed. The meaning of its 127 bits is the proxy's business; the top bit of `snd` is the FIFO's own.
struct alignas(16) ProxyTrigger {
  uint64_t fst;
  uint64_t snd;
};

// Why word StatusRefused is set.
enum StatusReason : uint32_t {
  // In a FIFO's status: a push gave up and left a hole, so nothing more can be taken.
  ReasonFifoPoisoned = 1,
  // In a semaphore's status: an offset, a size or an id does not fit into a trigger. Nothing was pushed, and the
  // semaphore is aborted.
  ReasonTriggerRange = 2,
};

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Ends all waits of a status, for a reason that stands there before they end.
MSCCLPP_DEVICE_INLINE void abortBecause(uint32_t* status, StatusReason reason) {
  atomicStore<MemoryOrder::Release, MemoryScope::System>(status + StatusRefused, static_cast<uint32_t>(reason));
  atomicStore<MemoryOrder::Release, MemoryScope::System>(status + StatusAbortRequested, 1u);
}

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

// The handle. Trivially copyable, 48 bytes; may live in constant, shared or local memory or be a kernel's parameter.
// Any number of threads may call its methods at once; more than `size` of them wait for each other's turn.
struct FifoDeviceHandle {
  // Pinned host memory, `size` slots.
  ProxyTrigger* triggers;
  // How many positions have been given out. In this device's memory, alone on its 128-byte line.
  uint64_t* head;
  // How many triggers the proxy has taken. Pinned host memory, written by the proxy.
  uint64_t* tail;
  // A tail that some pusher has seen. In this device's memory, alone on its line.
  uint64_t* tailCache;
  // Pinned host memory, see StatusWord.
  uint32_t* status;
  // A power of two.
  uint32_t size;
  uint32_t reserved;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // What `push` returns when it gave up: no position.
  enum NoPosition : uint64_t { Failed = ~static_cast<uint64_t>(0) };

  // Pushes a trigger and returns its position. The proxy sees with it all that this thread wrote, or had acquired,
  // before. Returns at once if there is room; else waits until the proxy has taken the trigger of `size` positions
  // before. Gives up and returns Failed when the host asks for an abort, or after maxSpinCount polls if that is not
  // negative; that leaves a hole and is the end of the FIFO (F5).
  MSCCLPP_DEVICE_INLINE uint64_t push(ProxyTrigger trigger, int64_t maxSpinCount = -1) const {
    const Place place = reserve();
    if (!waitForRoom(place, maxSpinCount, status)) return Failed;
    commit(place.position, trigger);
    return place.position;
  }

  // Whether the proxy has taken the trigger at this position.
  MSCCLPP_DEVICE_INLINE bool poll(uint64_t position) const {
    return atomicLoad<MemoryOrder::Acquire, MemoryScope::System>(tail) > position;
  }

  // Waits until the proxy has taken the trigger at this position. Returns false when the host asks for an abort, or
  // after maxSpinCount polls if that is not negative; it may be repeated then.
  MSCCLPP_DEVICE_INLINE bool sync(uint64_t position, int64_t maxSpinCount = -1) const {
    uint64_t* const taken = tail;
    const auto reached = [&] { return atomicLoad<MemoryOrder::Acquire, MemoryScope::System>(taken) > position; };
    return pollUntil<4>(reached, maxSpinCount, status);
  }

  // The three steps of a push, for those who have something to do between them. Who has reserved a position commits a
  // trigger there, or has called waitForRoom in vain.

  // A position, and a tail from about the same time.
  struct Place {
    uint64_t position;
    uint64_t seenTail;
  };

  // Takes the next position. Both accesses are under way together.
  MSCCLPP_DEVICE_INLINE Place reserve() const {
    uint64_t* const cache = tailCache;
    Place place;
    place.position = atomicFetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(head, oneOfThisLane());
    place.seenTail = atomicLoad<MemoryOrder::Acquire, MemoryScope::Device>(cache);
    return place;
  }

  // Waits until the slot of that position is free. Gives up like `push`, and for an abort asked for in `alsoStatus`,
  // too; a word there says why.
  MSCCLPP_DEVICE_INLINE bool waitForRoom(Place place, int64_t maxSpinCount, uint32_t* alsoStatus) const {
    uint64_t* const taken = tail;
    uint64_t* const cache = tailCache;
    const uint64_t slots = size;
    if (place.position < place.seenTail + slots) return true;
    uint64_t seen = 0;
    const auto free = [&] {
      seen = atomicLoad<MemoryOrder::Acquire, MemoryScope::System>(taken);
      return place.position < seen + slots;
    };
    if (pollUntilEither(free, maxSpinCount, alsoStatus, status)) {
      // A slower thread may put an older tail in its place: that only makes the next one look for itself.
      atomicStore<MemoryOrder::Release, MemoryScope::Device>(cache, seen);
      return true;
    }
    detail::abortBecause(status, ReasonFifoPoisoned);
    return false;
  }

  // Writes the trigger to its slot, with the commit bit of the lap.
  MSCCLPP_DEVICE_INLINE void commit(uint64_t position, ProxyTrigger trigger) const {
    const uint64_t slots = size;
    const uint64_t top = static_cast<uint64_t>(1) << 63;
    const uint64_t high = (trigger.snd & ~top) | ((position & slots) == 0 ? top : 0);
    releaseWhole(triggers + (position & (slots - 1)), Bytes16{trigger.fst, high});
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

static_assert(sizeof(ProxyTrigger) == 16 && sizeof(FifoDeviceHandle) == 48, "the host has the same structures");

// The tag of `DeviceHandle<Fifo>`.
struct Fifo {
  using DeviceHandle = FifoDeviceHandle;
};

}  // namespace mscclpp

#endif  // MSCCLPP_FIFO_DEVICE_HPP_
