// The kernels of signals that ranks send and take on streams: `send_signal` and `wait_signals`.
//
// Each pair of ranks has three counters for each signal of each context, which only grow. `sent`, in the sender's memory, is how
// many signals it has sent. `come`, in the receiver's memory, is the same number; the sender alone writes it. `waited`, in the
// receiver's memory, is how many signals its waits have claimed.
//
//   S1. A signal is stored with release, at system scope, by a kernel behind all that its stream has done before. So who sees it
//       with acquire sees what was put before it.
//   S2. The host puts what has the same peer and context in an order. So signals come in the order in which they were sent, and a
//       store never makes `come` smaller.
//   S3. A wait claims its signals in one atomic step, and waits until so many have come. So each counts once, also if waits of
//       several streams take them, and a kernel in a graph counts on in each replay.

#include "mscclpp/poll_device.hpp"

using namespace mscclpp;

// What a wait takes: `count` signals.
struct SignalWait {
  uint64_t* waited;
  const uint64_t* come;
  // The status by which the host ends the wait.
  uint32_t* status;
  uint64_t count;
};

struct SignalWaits {
  SignalWait waits[32];
};

// Sends a signal. One thread does it.
extern "C" __global__ void send_signal(uint64_t* sent, uint64_t* come) {
  const uint64_t number = detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(sent, uint64_t{1}) + 1;
  detail::store<MemoryOrder::Release, MemoryScope::System>(come, number);
}

// Takes signals. Thread i takes those of wait i, of a single block. If the host ends a wait, the status says so.
extern "C" __global__ void wait_signals(SignalWaits all) {
  const SignalWait wait = all.waits[threadIdx.x];
  const uint64_t claimed = detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(wait.waited, wait.count);
  const auto came = [&] {
    return detail::load<MemoryOrder::Acquire, MemoryScope::System>(wait.come) >= claimed + wait.count;
  };
  pollUntil(came, -1, wait.status);
}
