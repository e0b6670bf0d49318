// The loop behind every wait of the device API: it ends when what it waits for has come, when its bound is reached,
// or when the host aborts it.

#ifndef MSCCLPP_POLL_DEVICE_HPP_
#define MSCCLPP_POLL_DEVICE_HPP_

#include "mscclpp/assert_device.hpp"
#include "mscclpp/atomic_device.hpp"
#include "mscclpp/group_device.hpp"

namespace mscclpp {

// The words of a `status`: four 32-bit words of pinned host memory through which the host and the kernels speak. The
// host writes the first and reads the others.
enum StatusWord {
  StatusAbortRequested = 0,  // not 0: waits are to give up. Once set it stays so.
  StatusTimedOut = 1,        // set to 1 by a wait that reached its bound
  StatusAborted = 2,         // set to 1 by a wait that gave up because of the request
  StatusRefused = 3,         // set by a call that did nothing, because what it was asked cannot be done: to 1, or to a
                             // StatusReason of fifo_device.hpp
};

#if defined(MSCCLPP_DEVICE_COMPILE)

// How many polls fail before a wait looks for an abort request, and how many between one such look and the next. A look
// is a round trip over PCIe, a poll one to the L2 cache: the first look is later than any signal from a peer that is
// ready, and one look in 1024 polls costs the waiting under 1 % while an abort is seen within about a millisecond.
//
// Looks at one word are served one after the other, 0.3 us each on an H200. When all warps of a large grid looked at
// once, that took a millisecond, for which the peer waited, and so looked, too, and so on: so warps take turns. Each
// puts its first look off by its number in the grid times PollsOfTurn, and the time between looks grows by as much for
// each warp of the grid. 4096 warps look every 65,536 polls or so, of 0.15 us or more: they see an abort within tens of
// milliseconds.
//
// All are multiples of PollsInARow. A poll of a simulated device can take a tenth of a millisecond, and a look takes
// nothing.
#if defined(MSCCLPP_DEVICE_SIM)
enum PollPeriod : uint32_t { PollsBeforeFirstLook = 16, PollsBetweenLooks = 16, PollsOfTurn = 0, MostPollsOfTurns = 0 };
#else
enum PollPeriod : uint32_t {
  PollsBeforeFirstLook = 256,
  PollsBetweenLooks = 1024,
  PollsOfTurn = 16,
  MostPollsOfTurns = 1 << 17
};
#endif

// Polls that follow each other without a loop's counting and branching in between. A poll takes about 0.15 us, and what
// stands between two of them delays what the next one sees: with one poll a turn, a hop of a ping-pong takes 0.06 us
// longer.
enum PollGroup : uint32_t { PollsInARow = 16 };

namespace detail {

// What a thread does between two looks: on a simulated device it lets others run.
MSCCLPP_DEVICE_INLINE void betweenPolls() {
#if defined(MSCCLPP_DEVICE_SIM)
  mscclpp_sim::pause();
#endif
}

// How many polls the turns of so many warps last.
MSCCLPP_DEVICE_INLINE uint32_t pollsOfTurns(uint32_t warps) {
  const uint32_t polls = warps * PollsOfTurn;
  return polls < MostPollsOfTurns ? polls : MostPollsOfTurns;
}

// The loop of pollUntil and pollUntilByWarp. `agree` turns what a thread has read of `status` into what all of those
// that poll together act upon. `InARow` divides the periods.
template <uint32_t InARow, class Ready, class Agree>
MSCCLPP_DEVICE_INLINE bool pollLoop(Ready ready, int64_t maxSpinCount, uint32_t* status, Agree agree) {
  // 2^64 - 1 polls last for millennia: this is how an unbounded wait counts.
  uint64_t left = maxSpinCount < 0 ? ~static_cast<uint64_t>(0) : static_cast<uint64_t>(maxSpinCount);
  uint32_t untilLook = PollsBeforeFirstLook;
  bool hasTurn = PollsOfTurn == 0;
  for (;;) {
    if (left >= InARow) {
#pragma unroll
      for (uint32_t i = 0; i < InARow; ++i) {
        if (ready()) return true;
        betweenPolls();
      }
      left -= InARow;
      untilLook -= InARow;
      if (untilLook != 0) continue;
    } else {
#pragma unroll 1
      for (; left != 0; --left) {
        if (ready()) return true;
        betweenPolls();
      }
    }
    const uint32_t warpsOfBlock = (threadsOfBlock() + 31) / 32;
    if (!hasTurn && left != 0) {
      hasTurn = true;
      untilLook = pollsOfTurns(blockOfGrid() * warpsOfBlock + threadOfBlock() / 32);
      if (untilLook != 0) continue;
    }
    const bool aborted = agree(status != nullptr && detail::load<MemoryOrder::Relaxed, MemoryScope::System>(
                                                        status + StatusAbortRequested) != 0);
    if (aborted || left == 0) {
      if (ready()) return true;
      if (status != nullptr) {
        detail::store<MemoryOrder::Relaxed, MemoryScope::System>(status + (aborted ? StatusAborted : StatusTimedOut),
                                                               1u);
      }
      return false;
    }
    untilLook = PollsBetweenLooks + pollsOfTurns(blocksOfGrid() * warpsOfBlock);
  }
}

}  // namespace detail

// Calls `ready` until it says true, at most `maxSpinCount` times and once more, without a bound if that is negative.
// Returns whether it said true. On giving up, says why in `status`. That may be null: then nobody can abort the wait.
//
// The first polls do not touch `status`. A wait that finds itself aborted or at its bound polls a last time after it
// found that, so a signal that preceded the abort is not missed. Any number of threads may be here with one `status`.
//
// `InARow` polls follow each other without counting: fewer make less code of a wait whose latency matters less.
template <uint32_t InARow = PollsInARow, class Ready>
MSCCLPP_DEVICE_INLINE bool pollUntil(Ready ready, int64_t maxSpinCount, uint32_t* status) {
  return detail::pollLoop<InARow>(ready, maxSpinCount, status, [](bool aborted) { return aborted; });
}

// The same for a wait that two may abort: through `status`, where it is also said why the wait gave up, and through
// `other`, which may be the same.
template <uint32_t InARow = 4, class Ready>
MSCCLPP_DEVICE_INLINE bool pollUntilEither(Ready ready, int64_t maxSpinCount, uint32_t* status, uint32_t* other) {
  return detail::pollLoop<InARow>(ready, maxSpinCount, status, [=](bool aborted) {
    return aborted || (other != status &&
                       detail::load<MemoryOrder::Relaxed, MemoryScope::System>(other + StatusAbortRequested) != 0);
  });
}

// `value`, in a way that the compiler does not see through. What a thread does in a poll before it returns this, it
// does in the turn of the loop, together with those of its warp that go on: else the compiler takes what is only done
// in the last turn for something behind the loop, and threads of a warp get there one after the other, whenever those
// that still poll give way.
MSCCLPP_DEVICE_INLINE bool unforeseen(bool value) {
  uint32_t word = value;
#if defined(MSCCLPP_DEVICE_HIP)
  asm volatile("" : "+v"(word));
#else
  asm volatile("" : "+r"(word));
#endif
  return word != 0;
}

// As pollUntil for the 32 threads of a warp together, called by all of them with the same arguments. `ready` is called
// by all of them and has to say the same to all; so does this.
template <uint32_t InARow = PollsInARow, class Ready>
MSCCLPP_DEVICE_INLINE bool pollUntilByWarp(Ready ready, int64_t maxSpinCount, uint32_t* status) {
  return detail::pollLoop<InARow>(ready, maxSpinCount, status, [](bool aborted) { return warpAny(aborted); });
}

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#if defined(MSCCLPP_DEVICE_COMPILE)

// Polls while `condition` holds; the second, while both do. For the loops of kernels. They cannot say that they gave
// up, so they do not: `max` polls are a bound only where DEBUG_BUILD is defined, and reaching it fails the kernel
// there. Negative is no bound. A wait that is to end otherwise calls pollUntil.
#define POLL_MAYBE_JAILBREAK(condition, max)                                                   \
  do {                                                                                         \
    [[maybe_unused]] int64_t mscclppPollsLeft_ = static_cast<int64_t>(max);                    \
    while (condition) {                                                                        \
      mscclpp::detail::betweenPolls();                                                         \
      MSCCLPP_ASSERT_DEVICE(mscclppPollsLeft_ < 0 || mscclppPollsLeft_-- != 0, #condition);    \
    }                                                                                          \
  } while (0)
#define OR_POLL_MAYBE_JAILBREAK(condition1, condition2, max) POLL_MAYBE_JAILBREAK((condition1) && (condition2), max)

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_POLL_DEVICE_HPP_
