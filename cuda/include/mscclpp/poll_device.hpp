// The loop of every wait of the device API. It ends when the condition has come true, when its bound is reached, or
// when the host aborts it.

#ifndef MSCCLPP_POLL_DEVICE_HPP_
#define MSCCLPP_POLL_DEVICE_HPP_

#include "mscclpp/assert_device.hpp"
#include "mscclpp/atomic_device.hpp"
#include "mscclpp/group_device.hpp"

namespace mscclpp {

// The words of a `status`: four 32-bit words of pinned host memory through which the host and the kernels communicate.
// The host writes the first and reads the others.
enum StatusWord {
  StatusAbortRequested = 0,  // not 0: waits are to give up. Once set it stays so.
  StatusTimedOut = 1,        // set to 1 by a wait that reached its bound
  StatusAborted = 2,         // set to 1 by a wait that gave up because of the request
  StatusRefused = 3,         // set by a call that did nothing, because what it was asked cannot be done: to 1, or to a
                             // StatusReason of fifo_device.hpp
};

#if defined(MSCCLPP_DEVICE_COMPILE)

// The number of polls that fail before a wait looks for an abort request, and the number between two such looks. A look
// is a round trip over PCIe, a poll one to the L2 cache: the first look is later than any signal from a peer that is
// ready, and one look in 1024 polls hardly delays the wait, while an abort is seen within about a millisecond.
//
// Looks at one word are served one after the other. If all warps of a large grid looked at once, they would take a
// millisecond, for which the peer would wait, and so look, too, and so on: so warps take turns. Each delays its first
// look by its number in the grid times PollsOfTurn, and the time between looks grows by as much for each warp of the
// grid. The 4096 warps of a large grid look every 65,536 polls or so, and see an abort within tens of milliseconds.
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

// The polls that follow each other without a loop's counting and branching in between. Instructions between two polls
// delay the second one, and so the moment at which it sees the signal: with one poll a turn, a hop of a ping-pong takes
// measurably longer.
enum PollGroup : uint32_t { PollsInARow = 16 };

namespace detail {

// The work of a thread between two looks: on a simulated device it lets others run.
MSCCLPP_DEVICE_INLINE void betweenPolls() {
#if defined(MSCCLPP_DEVICE_SIM)
  mscclpp_sim::pause();
#endif
}

// The number of polls that the turns of so many warps last.
MSCCLPP_DEVICE_INLINE uint32_t pollsOfTurns(uint32_t warps) {
  const uint32_t polls = warps * PollsOfTurn;
  return polls < MostPollsOfTurns ? polls : MostPollsOfTurns;
}

// The loop of pollUntil and pollUntilByWarp. `agree` turns the `status` that a thread has read into the value that all
// threads that poll together act upon. `InARow` divides the periods.
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

// Calls `ready` until it returns true, at most `maxSpinCount` times and once more, without a bound if that is negative.
// Returns whether it returned true. On giving up, reports the reason in `status`, which may be null: then nobody can
// abort the wait.
//
// The first polls do not touch `status`. A wait that finds itself aborted or at its bound polls a last time after it
// found that, so a signal that preceded the abort is not missed. Any number of threads may be here with one `status`.
//
// `InARow` polls follow each other without counting: fewer make less code of a wait whose latency matters less.
template <uint32_t InARow = PollsInARow, class Ready>
MSCCLPP_DEVICE_INLINE bool pollUntil(Ready ready, int64_t maxSpinCount, uint32_t* status) {
  return detail::pollLoop<InARow>(ready, maxSpinCount, status, [](bool aborted) { return aborted; });
}

// Polls for a wait that two statuses may abort: `status`, in which the reason for giving up is reported, and `other`,
// which may be the same.
template <uint32_t InARow = 4, class Ready>
MSCCLPP_DEVICE_INLINE bool pollUntilEither(Ready ready, int64_t maxSpinCount, uint32_t* status, uint32_t* other) {
  return detail::pollLoop<InARow>(ready, maxSpinCount, status, [=](bool aborted) {
    return aborted || (other != status &&
                       detail::load<MemoryOrder::Relaxed, MemoryScope::System>(other + StatusAbortRequested) != 0);
  });
}

// Returns `value` in a way that the compiler does not see through. A thread does the work before this return in its
// turn of the loop, together with the threads of its warp that go on. Otherwise the compiler moves work that is only
// done in the last turn after the loop, and threads of a warp get there one after the other, whenever those that still
// poll give way.
MSCCLPP_DEVICE_INLINE bool unforeseen(bool value) {
  uint32_t word = value;
#if defined(MSCCLPP_DEVICE_HIP)
  asm volatile("" : "+v"(word));
#else
  asm volatile("" : "+r"(word));
#endif
  return word != 0;
}

// Polls like pollUntil, for the 32 threads of a warp together, called by all of them with the same arguments. All of
// them call `ready`, which must return the same to all; so does this.
template <uint32_t InARow = PollsInARow, class Ready>
MSCCLPP_DEVICE_INLINE bool pollUntilByWarp(Ready ready, int64_t maxSpinCount, uint32_t* status) {
  return detail::pollLoop<InARow>(ready, maxSpinCount, status, [](bool aborted) { return warpAny(aborted); });
}

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#if defined(MSCCLPP_DEVICE_COMPILE)

// Polls while `condition` holds; the second, while both do. For the loops of kernels. They cannot report that they gave
// up, so `max` polls are a bound only where DEBUG_BUILD is defined, and reaching it fails the kernel there. A negative
// number is no bound. A wait that must end otherwise calls pollUntil.
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
