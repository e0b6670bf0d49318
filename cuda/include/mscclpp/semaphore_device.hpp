// The device side of semaphores: between two GPUs, and from a host to a GPU.
//
// How they count. Each side owns two words. Its inbound token is how many signals have come; only GPU threads of the
// peer write it, by adding. Its expected token is how many signals its waits have claimed; only GPU threads of this
// side write it. Both only grow. Claiming is moving the expected token from e to e + 1, and means: this wait is the one
// for signal e + 1, and may return true once the inbound token is at least e + 1.
//
// Waits claim in two ways, in any mixture and from any number of threads:
// - An unbounded wait claims first, with one atomic add, and then polls until its signal has come.
// - A bounded wait and a poll claim last: when they see inbound > expected = e, they try to compare-and-swap e to
//   e + 1. If another was faster they look again.
//
// W1. No signal counts twice, none is lost. Each claim is one atomic step of one word from e to e + 1, so claims are
//     the numbers 1, 2, 3 ... and each belongs to one wait. It returns true only when it has seen inbound >= its
//     number: in the first way that is what it polls for, in the second it has seen inbound >= e + 1 before the swap
//     (the inbound token only grows, so it still is, and the expected token never returns to an earlier value, so the
//     swap succeeds only if it has been e all along).
// W2. No wait is stranded. A waiter with number n needs n signals in all, whoever else waits; claims by others have
//     larger numbers or are satisfied. A bounded wait claims only a signal that has come and that nobody has claimed,
//     so it never takes one away from a waiter that claimed before.
// W3. A wait that timed out has consumed nothing: only bounded waits time out, and they claim in the same step in
//     which they succeed. It can be repeated.
// W4. An aborted unbounded wait leaves its claim behind. An abort is sticky, all other waits of this semaphore end too,
//     so nobody needs that number any more.
//
// The order of memory. `signal` is a read-modify-write with release, `wait` a load with acquire, both at system scope.
// Whoever reads a count of at least n reads it from the n-th addition or from one that follows it in an unbroken chain
// of additions, relaxed ones included, and therefore synchronises with each of the first n signals that released.
// Without native atomics between the peers (outboundLock) the chain is kept by a lock instead, see there.

#ifndef MSCCLPP_SEMAPHORE_DEVICE_HPP_
#define MSCCLPP_SEMAPHORE_DEVICE_HPP_

#include "mscclpp/access_device.hpp"
#include "mscclpp/poll_device.hpp"

namespace mscclpp {

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// The number of signals that have come, as waits read it: from one word, or from two side by side as their sum.
template <MemoryOrder O>
struct InboundWord {
  const uint64_t* word;
  MSCCLPP_DEVICE_INLINE uint64_t operator()() const { return detail::load<O, MemoryScope::System>(word); }
};
struct InboundPair {
  const uint64_t* words;
  MSCCLPP_DEVICE_INLINE uint64_t operator()() const {
    const Bytes16 pair = acquirePair(words);
    return pair.low + pair.high;
  }
};

// Claims a signal that has come. `arrived` reads how many have. Repeats only when another thread has claimed one
// meanwhile, so at most as often as there are signals.
template <class Arrived>
MSCCLPP_DEVICE_INLINE bool claimArrived(Arrived arrived, uint64_t* expected) {
  uint64_t claimed = detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(expected);
  const uint64_t count = arrived();
  while (count > claimed) {
    const uint64_t before =
        detail::compareSwap<MemoryOrder::Relaxed, MemoryScope::Device>(expected, claimed, claimed + 1);
    if (before == claimed) return true;
    claimed = before;
  }
  return false;
}

// Claims a signal and waits for it, without a bound or with one. `arrived` reads how many have come.
template <class Arrived>
MSCCLPP_DEVICE_INLINE bool waitForSignal(Arrived arrived, uint64_t* expected, uint32_t* status, int64_t maxSpinCount) {
  if (maxSpinCount < 0) {
    // The claim needs no order: it touches no data, and the poll acquires. Only the comparison needs its result. The
    // first poll stands before the loop because compilers then send it while the claim is still under way; in front
    // of a loop they wait for the claim.
    const uint64_t number =
        detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(expected, detail::oneOfThisLane()) + 1;
    const auto came = [&] { return arrived() >= number; };
    return came() || pollUntil(came, -1, status);
  }
  return pollUntil([&] { return claimArrived(arrived, expected); }, maxSpinCount, status);
}

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

// One side's handle. Trivially copyable, 40 bytes; may live in constant, shared or local memory or be a kernel's
// parameter. All methods may be called by any number of threads at once. A kernel that gets a pointer to a handle in
// global memory and cares for latency copies it into a local variable first.
struct MemoryDevice2DeviceSemaphoreDeviceHandle {
  // The number of signals that have come. In this device's memory, alone on its 128-byte line.
  uint64_t* inboundToken;
  // The number of signals that waits have claimed. In this device's memory, on a line of its own.
  uint64_t* expectedInboundToken;
  // The peer's inboundToken as mapped here.
  uint64_t* remoteInboundToken;
  // Null where atomics on the peer's memory are native. Else a line of this device's memory: word 0 is a lock (0 when
  // free), word 1 the number of signals that have been sent.
  uint64_t* outboundLock;
  // Pinned host memory, see StatusWord.
  uint32_t* status;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // The steps of the calls below, one by one. `loadInbound` acquires, the others order nothing; `incExpectedInbound`
  // claims a signal and returns its number.
  MSCCLPP_DEVICE_INLINE uint64_t loadInbound() const {
    return detail::load<MemoryOrder::Acquire, MemoryScope::System>(inboundToken);
  }
  MSCCLPP_DEVICE_INLINE uint64_t loadInboundRelaxed() const {
    return detail::load<MemoryOrder::Relaxed, MemoryScope::System>(inboundToken);
  }
  MSCCLPP_DEVICE_INLINE uint64_t loadExpectedInbound() const {
    return detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(expectedInboundToken);
  }
  MSCCLPP_DEVICE_INLINE uint64_t incExpectedInbound() const {
    return detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(expectedInboundToken, detail::oneOfThisLane()) +
           1;
  }

  // Signals the peer. A wait of the peer that takes this signal sees all that this thread wrote, or had seen by way
  // of a barrier or of another acquire, before the call. Returns at once; never blocks on the peer.
  MSCCLPP_DEVICE_INLINE void signal() const { send<MemoryOrder::Release>(); }

  // Signals the peer that this point has been reached. The signal orders no memory.
  MSCCLPP_DEVICE_INLINE void relaxedSignal() const { send<MemoryOrder::Relaxed>(); }

  // Takes a signal if one is there that no wait has claimed. Returns whether it did; acquires like `wait` if so. Does
  // not look for an abort: a loop that is to end with the semaphore calls `wait` with a small bound instead.
  MSCCLPP_DEVICE_INLINE bool poll() const {
    return detail::claimArrived(detail::InboundWord<MemoryOrder::Acquire>{inboundToken}, expectedInboundToken);
  }

  // Waits for one signal and takes it. With it comes all that the signalling thread had released. Returns true when
  // signalled; false when the host has aborted the semaphore, or after maxSpinCount polls if that is not negative.
  // After a time-out no signal has been taken and the wait may be repeated; after an abort every later wait without a
  // signal to take returns false too. Bounded waits cost one access to the L2 cache more.
  MSCCLPP_DEVICE_INLINE bool wait(int64_t maxSpinCount = -1) const {
    return detail::waitForSignal(detail::InboundWord<MemoryOrder::Acquire>{inboundToken}, expectedInboundToken, status,
                                 maxSpinCount);
  }

  // Waits like `wait`, but learns only that the peer has signalled: it orders no memory.
  MSCCLPP_DEVICE_INLINE bool relaxedWait(int64_t maxSpinCount = -1) const {
    return detail::waitForSignal(detail::InboundWord<MemoryOrder::Relaxed>{inboundToken}, expectedInboundToken, status,
                                 maxSpinCount);
  }

 private:
  template <MemoryOrder O>
  MSCCLPP_DEVICE_INLINE void send() const {
    uint64_t* const token = remoteInboundToken;
    uint64_t* const lock = outboundLock;
    if (__builtin_expect(lock == nullptr, true)) {
      detail::reduceAdd<O, MemoryScope::System>(token, detail::oneOfThisLane());
    } else {
      sendLocked(token, lock);
    }
  }

  // Without native atomics the peer's token can only be overwritten, so the signalling threads of this device take
  // turns: the lock is taken with acquire and left with release at device scope, and under it the next count is stored
  // with release at system scope. Always with release, for a relaxed signal too: a store ends the chain of additions
  // on which an earlier signal of another thread relies, and releasing here passes on what that thread released, since
  // this one acquired it with the lock.
  //
  // The holder does nothing that can block, so everyone gets the lock; lock, body and unlock are in one turn of the
  // loop so that this holds within a warp whose threads run in lockstep, too.
  MSCCLPP_DEVICE_INLINE static void sendLocked(uint64_t* token, uint64_t* lock) {
    uint64_t* const sent = lock + 1;
    for (bool done = false; !done;) {
      if (detail::compareSwap<MemoryOrder::Acquire, MemoryScope::Device>(lock, static_cast<uint64_t>(0),
                                                                       static_cast<uint64_t>(1)) == 0) {
        const uint64_t count = detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(sent) + 1;
        detail::store<MemoryOrder::Relaxed, MemoryScope::Device>(sent, count);
        detail::store<MemoryOrder::Release, MemoryScope::System>(token, count);
        detail::store<MemoryOrder::Release, MemoryScope::Device>(lock, static_cast<uint64_t>(0));
        done = true;
      }
    }
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// The tag of `DeviceHandle<MemoryDevice2DeviceSemaphore>`.
struct MemoryDevice2DeviceSemaphore {
  using DeviceHandle = MemoryDevice2DeviceSemaphoreDeviceHandle;
};

// The waiting side of a semaphore whose peer signals through a link: its host does, or the proxy of its port channels,
// or, where they reach this device's memory with atomics, also its kernels. 32 bytes; all that is said of the handle
// above holds for it too.
//
// Signals are counted in two words. The peer's kernels add to word 0. Its link stores its count in word 1, which would
// overwrite what others add there. The sum is how many signals have come. Both words only grow, so a sum of two reads,
// one after the other, is at most that number, and W1 to W4 hold with the sum in place of the token.
//
// The order of memory. Word 0 is as in the handle above. One queue writes word 1, each count after the data before it.
// The sum does not say in which word signal n came. What a wait that sees n may rely on is what a port channel
// promises, see port_channel_device.hpp.
struct Host2DeviceSemaphoreDeviceHandle {
  // The number of signals that have come: two words side by side in this device's memory, at a multiple of 16.
  uint64_t* inboundToken;
  // The number of signals that waits have claimed. In this device's memory, on a line of its own.
  uint64_t* expectedInboundToken;
  // Pinned host memory, see StatusWord.
  uint32_t* status;
  // In a port channel's handle, the values of lastPushed_, flushDonePos_ and directToken_ of
  // BasePortChannelDeviceHandle, in pinned host memory, from which a handle can be made of parts. Null elsewhere.
  const uint64_t* port;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // The steps of the calls below, as in the handle above, with the sum in place of the token.
  MSCCLPP_DEVICE_INLINE uint64_t loadInbound() const { return detail::InboundPair{inboundToken}(); }
  MSCCLPP_DEVICE_INLINE uint64_t loadInboundRelaxed() const {
    const Bytes16 pair = loadPair(inboundToken);
    return pair.low + pair.high;
  }
  MSCCLPP_DEVICE_INLINE uint64_t loadExpectedInbound() const {
    return detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(expectedInboundToken);
  }
  MSCCLPP_DEVICE_INLINE uint64_t incExpectedInbound() const {
    return detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(expectedInboundToken, detail::oneOfThisLane()) +
           1;
  }

  // Takes a signal if one is there that no wait has claimed. Returns whether it did; acquires like `wait` if so. Does
  // not look for an abort.
  MSCCLPP_DEVICE_INLINE bool poll() const {
    return detail::claimArrived(detail::InboundPair{inboundToken}, expectedInboundToken);
  }

  // Waits for one signal and takes it. With it comes all that the peer had sent before it through the same connection.
  // Returns true when signalled; false when the host has aborted the semaphore, or after maxSpinCount polls if that is
  // not negative. After a time-out no signal has been taken and the wait may be repeated; after an abort every later
  // wait without a signal to take returns false too.
  MSCCLPP_DEVICE_INLINE bool wait(int64_t maxSpinCount = -1) const {
    return detail::waitForSignal(detail::InboundPair{inboundToken}, expectedInboundToken, status, maxSpinCount);
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// The tag of `DeviceHandle<Host2DeviceSemaphore>`.
struct Host2DeviceSemaphore {
  using DeviceHandle = Host2DeviceSemaphoreDeviceHandle;
};

// The older names.
using SmDevice2DeviceSemaphore = MemoryDevice2DeviceSemaphore;
using SmDevice2DeviceSemaphoreDeviceHandle = MemoryDevice2DeviceSemaphoreDeviceHandle;

}  // namespace mscclpp

#endif  // MSCCLPP_SEMAPHORE_DEVICE_HPP_
