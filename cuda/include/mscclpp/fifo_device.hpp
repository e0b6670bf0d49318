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
//     `tailCache`, into which another thread released what it had acquired from the tail. Raising the cache is a
//     read-modify-write, so a thread that acquires it has what all threads released that raised it before.
// F2. The proxy takes whole triggers only. A pusher writes both words by one access of 16 bytes that releases; the
//     proxy acquires the word with the commit bit and then reads the other one.
// F3. What the pushing thread wrote, or had acquired, before is visible to the proxy with the trigger, and to whatever
//     the proxy starts because of it.
// F4. Triggers of one thread are taken in the order of their pushes, and so are those of two threads of which one
//     pushed after it had synchronised with the other: the additions to `head` have one order, and it agrees with that.
// F5. A push that gives up leaves a hole, after which nothing can be taken. It reports so in `status`, and ends the
//     other pushes; the host reports it.
// F6. One thread at a time reads the tail for all that wait, in pushes and in syncs: the one that sets the `looking`
//     word from 0 to 1. It raises the cache to what it saw, unless it is a sync that knows of no other thread, and sets the
//     word back, in the same turn of its loop, whatever it saw, without waiting in between. The others poll the cache, and
//     the word: they read the tail themselves when no thread does. The word orders nothing: two threads that read the tail
//     at once would only be slower, and the cache is a maximum, so that it never falls and is never above the tail, in
//     whichever order they raise it. A lone sync that leaves the cache as it is saves the release; a thread that waits
//     reads the tail next.

#ifndef MSCCLPP_FIFO_DEVICE_HPP_
#define MSCCLPP_FIFO_DEVICE_HPP_

#include "mscclpp/access_device.hpp"
#include "mscclpp/overlay_device.hpp"
#include "mscclpp/poll_device.hpp"

namespace mscclpp {

// The requests of a port channel's trigger, or-ed: move data, signal, report when all before it is complete.
using TriggerType = uint64_t;
constexpr TriggerType TriggerData = 1;
constexpr TriggerType TriggerFlag = 2;
constexpr TriggerType TriggerSync = 4;

// The bits of each part of a trigger, in the order of the parts in ProxyTrigger::fields.
constexpr unsigned int TriggerBitsSize = 32;
constexpr unsigned int TriggerBitsOffset = 32;
constexpr unsigned int TriggerBitsMemoryId = 9;
constexpr unsigned int TriggerBitsType = 3;
constexpr unsigned int TriggerBitsSemaphoreId = 10;
constexpr unsigned int TriggerBitsFifoReserved = 1;

// The numbers of memories and semaphores in a proxy service.
using MemoryId = uint32_t;
using SemaphoreId = uint32_t;

#if defined(__CUDACC_RTC__)
namespace detail {

union TriggerFields {
  OverlayBits<0, 0, TriggerBitsSize> size;
  OverlayBits<0, 32, TriggerBitsOffset> srcOffset;
  OverlayBits<1, 0, TriggerBitsOffset> dstOffset;
  OverlayBits<1, 32, TriggerBitsMemoryId> srcMemoryId;
  OverlayBits<1, 41, TriggerBitsMemoryId> dstMemoryId;
  OverlayBits<1, 50, TriggerBitsType> type;
  OverlayBits<1, 53, TriggerBitsSemaphoreId> semaphoreId;
  OverlayBits<1, 63, TriggerBitsFifoReserved> reserved;
};

}  // namespace detail
#endif

// A trigger: two words, of which the top bit of `snd` is the FIFO's own. The proxy gives the other 127 bits their
// meaning; `fields` is their meaning to the service of port channels.
#if defined(__CUDACC_RTC__)
struct alignas(16) ProxyTrigger {
  union {
    uint64_t fst;
    detail::TriggerFields fields;
  };
  uint64_t snd;

  ProxyTrigger(const ProxyTrigger&) = default;
  MSCCLPP_DEVICE_INLINE ProxyTrigger& operator=(const ProxyTrigger& other) {
    fst = other.fst;
    snd = other.snd;
    return *this;
  }
#else
union alignas(16) ProxyTrigger {
  struct {
    uint64_t fst;
    uint64_t snd;
  };
  struct {
    uint64_t size : TriggerBitsSize;
    uint64_t srcOffset : TriggerBitsOffset;
    uint64_t dstOffset : TriggerBitsOffset;
    uint64_t srcMemoryId : TriggerBitsMemoryId;
    uint64_t dstMemoryId : TriggerBitsMemoryId;
    uint64_t type : TriggerBitsType;
    uint64_t semaphoreId : TriggerBitsSemaphoreId;
    uint64_t reserved : TriggerBitsFifoReserved;
  } fields;
#endif

  ProxyTrigger() = default;

  // Makes a trigger of its words.
  MSCCLPP_HOST_DEVICE_INLINE ProxyTrigger(uint64_t first, uint64_t second) {
    fst = first;
    snd = second;
  }

  // Makes a trigger of its fields. Bits that do not fit into a field are cut off: a port channel checks that before.
  MSCCLPP_HOST_DEVICE_INLINE ProxyTrigger(TriggerType type, MemoryId dstId, uint64_t dstOffset, MemoryId srcId,
                                          uint64_t srcOffset, uint64_t bytes, SemaphoreId semaphoreId) {
    constexpr unsigned int DstBit = TriggerBitsOffset + TriggerBitsMemoryId;
    constexpr unsigned int TypeBit = DstBit + TriggerBitsMemoryId;
    constexpr unsigned int SemaphoreBit = TypeBit + TriggerBitsType;
    fst = cut(bytes, TriggerBitsSize) | cut(srcOffset, TriggerBitsOffset) << TriggerBitsSize;
    snd = cut(dstOffset, TriggerBitsOffset) | cut(srcId, TriggerBitsMemoryId) << TriggerBitsOffset |
          cut(dstId, TriggerBitsMemoryId) << DstBit | cut(type, TriggerBitsType) << TypeBit |
          cut(semaphoreId, TriggerBitsSemaphoreId) << SemaphoreBit;
  }

 private:
  MSCCLPP_HOST_DEVICE_INLINE static constexpr uint64_t cut(uint64_t value, unsigned int bits) {
    return value & ((static_cast<uint64_t>(1) << bits) - 1);
  }
};

// The reason why word StatusRefused is set.
enum StatusReason : uint32_t {
  // In a FIFO's status: a push gave up and left a hole, so nothing more can be taken.
  ReasonFifoPoisoned = 1,
  // In a semaphore's status: an offset, a size or an id does not fit into a trigger. Nothing was pushed, and the
  // semaphore is aborted.
  ReasonTriggerRange = 2,
  // In a semaphore's status: a port channel's handle was made of this semaphore's handle, which is no port channel's.
  // Nothing was pushed, and the semaphore is aborted.
  ReasonNoPort = 3,
};

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Ends all waits of a status, for a reason that is written before they end.
MSCCLPP_DEVICE_INLINE void abortBecause(uint32_t* status, StatusReason reason) {
  detail::store<MemoryOrder::Release, MemoryScope::System>(status + StatusRefused, static_cast<uint32_t>(reason));
  detail::store<MemoryOrder::Release, MemoryScope::System>(status + StatusAbortRequested, 1u);
}

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

// The place of the `looking` word: so many words after `tailCache`, alone on the line after that of the cache.
enum FifoLayout : uint32_t { WordsToLooking = 16 };

// The handle. Trivially copyable, 56 bytes; may be in constant, shared or local memory or be a kernel's parameter. Any
// number of threads may call its methods at once; more than `size` of them wait for each other's turn.
struct FifoDeviceHandle {
  // Pinned host memory, `size` slots.
  ProxyTrigger* triggers;
  // The number of positions that have been given out. In this device's memory, alone on its 128-byte line.
  uint64_t* head;
  // The number of triggers that the proxy has taken. Pinned host memory, written by the proxy.
  uint64_t* tail;
  // The highest tail that a waiting thread has seen. In this device's memory, alone on its line. 128 bytes after it,
  // alone on the next line, is the `looking` word: 1 while a thread reads the tail for all that wait (F6).
  uint64_t* tailCache;
  // Pinned host memory, see StatusWord.
  uint32_t* status;
  // The number of slots, a power of two; that number less one; and its logarithm.
  uint32_t size;
  uint32_t sizeMask;
  uint32_t sizeShift;
  uint32_t reserved;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // The result of a `push` that gave up: no position.
  enum NoPosition : uint64_t { Failed = ~static_cast<uint64_t>(0) };

  // A bound of polls counts in waits like this: a poll reads the cache, which is in device memory, or, in the one
  // thread that reads the tail for all, the tail, which takes about ten times as long. So the time of n polls varies by
  // that factor.

  // Pushes a trigger and returns its position. The proxy sees with it all that this thread wrote, or had acquired,
  // before. Returns at once if there is room; else waits until the proxy has taken the trigger of `size` positions
  // before. Gives up and returns Failed when the host asks for an abort, or after maxSpinCount polls if that is not
  // negative; that leaves a hole and is the end of the FIFO (F5).
  MSCCLPP_DEVICE_INLINE uint64_t push(ProxyTrigger trigger, int64_t maxSpinCount = -1) const {
    const Place place = reserve();
    return commit(place, trigger, maxSpinCount, status) ? place.position : static_cast<uint64_t>(Failed);
  }

  // Whether the proxy has taken the trigger at this position; acquires like `sync` if so. Looks once: at the cache, and
  // if that does not say so, at the tail itself, a round trip over PCIe. Threads that wait together call `sync`, with a
  // small bound if they have something else to do: it makes one such trip for all of them.
  MSCCLPP_DEVICE_INLINE bool poll(uint64_t position) const {
    uint64_t* const taken = tail;
    return detail::load<MemoryOrder::Acquire, MemoryScope::Device>(tailCache) > position ||
           detail::load<MemoryOrder::Acquire, MemoryScope::System>(taken) > position;
  }

  // Waits until the proxy has taken the trigger at this position; what the proxy did before that is visible then.
  // Returns false when the host asks for an abort, or after maxSpinCount polls if that is not negative; the call may be
  // repeated then. It may miss a value that another thread is just reading from the tail.
  MSCCLPP_DEVICE_INLINE bool sync(uint64_t position, int64_t maxSpinCount = -1) const {
    uint64_t* const taken = tail;
    uint64_t* const cache = tailCache;
    bool shares = !aloneInWarp();
    return pollUntil<1>([&] { return look(taken, cache, position + 1, shares) > position; }, maxSpinCount, status);
  }

  // The two steps of a push, for callers that have something to do between them. A caller that has reserved a position
  // calls commit for it, once.

  // A position, and a tail from about the same time.
  struct Place {
    uint64_t position;
    uint64_t seenTail;
  };

  // Takes the next position. Both accesses are under way together.
  MSCCLPP_DEVICE_INLINE Place reserve() const {
    uint64_t* const cache = tailCache;
    Place place;
    place.position = detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(head, detail::oneOfThisLane());
    place.seenTail = detail::load<MemoryOrder::Acquire, MemoryScope::Device>(cache);
    return place;
  }

  // Writes the trigger to its slot, waiting until that is free. Gives up, and returns false, like `push`, and also for
  // an abort requested in `alsoStatus`; a word there says why.
  //
  // The trigger is written inside the loop that waits: a thread that has found room writes, and then meets the threads
  // of its warp that go on waiting. After the loop it would have to wait until they give way, while they wait for it:
  // its trigger is the one that the proxy has to take next to make room for them.
  MSCCLPP_DEVICE_INLINE bool commit(Place place, ProxyTrigger trigger, int64_t maxSpinCount,
                                    uint32_t* alsoStatus) const {
    uint64_t* const taken = tail;
    uint64_t* const cache = tailCache;
    const uint64_t slots = size;
    // The commit bit of the lap.
    const uint64_t top = static_cast<uint64_t>(1) << 63;
    const Bytes16 words = {trigger.fst, (trigger.snd & ~top) | ((place.position & slots) == 0 ? top : 0)};
    ProxyTrigger* const slot = triggers + (place.position & sizeMask);
    uint64_t seen = place.seenTail;
    // A lone thread shares the tail, too: the next push then finds room without reading it.
    bool shares = true;
    const auto writeIfFree = [&] {
      const bool free = place.position < seen + slots;
      if (free) releaseWhole(slot, words);
      return unforeseen(free);
    };
    if (writeIfFree()) return true;
    const auto lookAndWrite = [&] {
      // Position p of a full FIFO is not less than `slots`, as the tail is not less than 0.
      seen = look(taken, cache, place.position - slots + 1, shares);
      return writeIfFree();
    };
    if (pollUntilEither<1>(lookAndWrite, maxSpinCount, alsoStatus, status)) return true;
    detail::abortBecause(status, ReasonFifoPoisoned);
    return false;
  }

 private:
  // Returns a tail, of which the caller needs at least `needed`: that of the cache if it is enough, or if another
  // thread is reading the tail; else the tail itself. That is then written to the cache, too, if the caller `shares`
  // what it sees, as it does from the first time on that it finds another thread here.
  //
  // A lone thread, too, reads the tail only after two accesses to device memory. The trigger of a push reaches the host
  // after half a round trip, and so does a read of the tail that follows at once: too early to find the answer, so that
  // a second round trip is needed. A read that is sent about as much later as the accesses take finds the answer, if
  // the proxy is awake. They are the loads of both words, which are under way together, and the exchange, and are
  // useful where another thread reads the tail.
  MSCCLPP_DEVICE_INLINE static uint64_t look(uint64_t* taken, uint64_t* cache, uint64_t needed, bool& shares) {
    uint64_t* const looking = cache + WordsToLooking;
    const uint64_t busy = detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(looking);
    uint64_t seen = detail::load<MemoryOrder::Acquire, MemoryScope::Device>(cache);
    if (seen >= needed) return seen;
    if (busy == 0 && detail::compareSwap<MemoryOrder::Relaxed, MemoryScope::Device>(
                         looking, static_cast<uint64_t>(0), static_cast<uint64_t>(1)) == 0) {
      const uint64_t cached = seen;
      seen = detail::load<MemoryOrder::Acquire, MemoryScope::System>(taken);
      if (shares && seen > cached) detail::reduceMax<MemoryOrder::Release, MemoryScope::Device>(cache, seen);
      detail::store<MemoryOrder::Relaxed, MemoryScope::Device>(looking, static_cast<uint64_t>(0));
    } else {
      shares = true;
    }
    return seen;
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

static_assert(sizeof(ProxyTrigger) == 16 && sizeof(FifoDeviceHandle) == 56 && alignof(FifoDeviceHandle) == 8,
              "the host has the same structures");

// The tag of `DeviceHandle<Fifo>`.
struct Fifo {
  using DeviceHandle = FifoDeviceHandle;
};

}  // namespace mscclpp

#endif  // MSCCLPP_FIFO_DEVICE_HPP_
