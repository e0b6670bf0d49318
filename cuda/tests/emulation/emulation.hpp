// The device API on a CPU: the real headers, compiled as for simulated devices, on a runtime of the tests' own. Compilers
// include this before everything else.
//
// The runtime is the table of functions of mscclpp_sim/runtime.hpp, which documents each of them. The library has its
// own in Rust (crates/mscclpp-gpu/src/sim/block.rs). With this one the tests decide which memory may be touched, and
// which thread runs next:
//   - `launch` runs blocks at the same time, each in a thread of the operating system, in which the block's threads
//     take turns in the order of their number.
//   - `Interleaving` runs blocks of which a random thread goes on before each access of the device API.
//   - `inTurns` runs a block in the calling thread of the operating system, and `asThread` a block of one thread.
//     Outside of a block nothing of the device API can be called.
//   - `Limits` says what may be read and written.
//
// Atomic accesses are at least acquire and release here, and CPUs order more than GPUs anyway: nothing that is tested
// with this says that the orders in the headers are strong enough. That is argued in docs/design/device-api.md and
// tested on GPUs.

#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <vector>

// ---- the names that the library's rewriting of a kernel's source replaces (crates/mscclpp-gpu/src/sim/rewrite.rs)

#define __device__
#define __global__
#define __constant__
#define __shared__ static thread_local
#define __launch_bounds__(...)

#include "../sim/check.hpp"
#include "mscclpp_sim/runtime.hpp"

namespace emulation {

// The memory that the threads in this thread of the operating system may touch by the device API, as long as this lives.
class Limits {
 public:
  struct Range {
    const uint8_t* begin;
    const uint8_t* end;
  };

  Limits(Range readable, Range writable) : ranges_{readable, writable} { now_ = this; }
  Limits(const Limits&) = delete;
  ~Limits() { now_ = nullptr; }

  static bool allow(uintptr_t address, uint64_t bytes, bool isStore) {
    if (now_ == nullptr) return true;
    const Range& range = now_->ranges_[isStore];
    return address >= reinterpret_cast<uintptr_t>(range.begin) &&
           address + bytes <= reinterpret_cast<uintptr_t>(range.end);
  }

 private:
  static inline thread_local const Limits* now_ = nullptr;
  Range ranges_[2];
};

enum class State { Ready, AtBlockBarrier, AtWarpBarrier, Ended };

// A thread of a kernel, at the lower end of its stack, where the headers look for it.
struct Thread : mscclpp_sim::Thread {
  static constexpr uint64_t Canary = 0x656d756c6174696f;

  class Turns* turns;
  unsigned int number;  // in `turns`
  State state;
  bool pauses;      // whether it has nothing to do before something has changed
  uint32_t value;   // what it brought to a barrier of the block
  uint32_t mask;    // whom it waits for at a barrier of the warp
  uint64_t answer;  // what it goes on with behind a barrier
  jmp_buf here;     // where it goes on
  jmp_buf* caller;  // and where who resumed it does
  uint64_t canary;  // gone when the stack was too small

  static Thread* make() {
    void* const stack = std::aligned_alloc(mscclpp_sim::StackBytes, mscclpp_sim::StackBytes);
    Thread* const thread = new (stack) Thread();
    thread->canary = Canary;
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = thread + 1;
    first.uc_stack.ss_size = mscclpp_sim::StackBytes - sizeof(Thread);
    first.uc_link = nullptr;
    makecontext(&first, run, 0);
    jmp_buf back;
    thread->caller = &back;
    if (_setjmp(back) == 0) setcontext(&first);
    return thread;
  }

  void resume() {
    jmp_buf back;
    caller = &back;
    switchTo(back, here);
    CHECK(canary == Canary);
  }
  void suspend() { switchTo(here, *caller); }

 private:
  __attribute__((noinline)) static void switchTo(jmp_buf& from, jmp_buf& to) {
    if (_setjmp(from) == 0) _longjmp(to, 1);
  }
  static void run();
};

// The stacks of threads that have ended, for reuse.
class Stacks {
 public:
  static void take(std::vector<Thread*>& threads) {
    const std::lock_guard<std::mutex> guard(lock_);
    for (Thread*& thread : threads) {
      thread = threads_.empty() ? Thread::make() : threads_.back();
      if (!threads_.empty()) threads_.pop_back();
    }
  }
  static void giveBack(const std::vector<Thread*>& threads) {
    const std::lock_guard<std::mutex> guard(lock_);
    threads_.insert(threads_.end(), threads.begin(), threads.end());
  }

 private:
  static inline std::mutex lock_;
  static inline std::vector<Thread*> threads_;
};

// Lets other threads of the operating system run. A busy machine gives a thread that only looks, or yields, a whole slice of time
// before the one that it waits for; one that has slept comes first.
inline void rest() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

// Blocks of a grid, from block `first` on, whose threads take turns in one thread of the operating system.
class Turns {
 public:
  Turns(unsigned int first, unsigned int blocks, unsigned int grid, unsigned int threads,
        const std::function<void()>& body)
      : threads_(threads),
        left_(blocks * threads),
        body_(body),
        members_(blocks * threads),
        warps_(blocks * warpsOf(threads)) {
    Stacks::take(members_);
    for (unsigned int i = 0; i < members_.size(); ++i) {
      Thread* const thread = members_[i];
      const unsigned int index = i % threads, warp = index / 32;
      thread->runtime = &table;
      thread->warp = &warps_[i / threads * warpsOf(threads) + warp];
      thread->epoch = &epoch;
      thread->threadIndex = {index, 0, 0};
      thread->blockIndex = {first + i / threads, 0, 0};
      thread->blockSize = {threads, 1, 1};
      thread->gridSize = {grid, 1, 1};
      thread->lane = index % 32;
      thread->threadsOfWarp = threads - warp * 32 < 32 ? threads - warp * 32 : 32;
      thread->turns = this;
      thread->number = i;
      thread->state = State::Ready;
    }
  }
  Turns(const Turns&) = delete;
  ~Turns() { Stacks::giveBack(members_); }

  // Each thread has its turn after the one before, until it waits or ends: the threads of a warp do their work between
  // two barriers one after the other.
  void inOrder() {
    uint32_t idle = 0;
    while (left_ != 0) {
      bool ran = false, moved = false;
      for (Thread* thread : members_) {
        if (thread->state != State::Ready) continue;
        resume(*thread);
        ran = true;
        moved = moved || !thread->pauses;
      }
      CHECK(ran && "all threads wait at barriers, and not at the same");
      idle = moved ? 0 : idle + 1;
      if (idle > 2) rest();
    }
  }
  // Before each access of the device API a random thread goes on.
  void atRandom(uint64_t seed) {
    Random random(seed);
    atRandom_ = true;
    while (left_ != 0) {
      Thread& thread = *members_[random.below(static_cast<uint32_t>(members_.size()))];
      if (thread.state == State::Ready) resume(thread);
    }
  }

 private:
  friend struct Thread;

  static Thread& of(mscclpp_sim::Thread* thread) { return *static_cast<Thread*>(thread); }
  static unsigned int warpsOf(unsigned int threads) { return (threads + 31) / 32; }

  static void resume(Thread& thread) {
    thread.stepsLeft = 4096;
    thread.pauses = false;
    thread.resume();
  }

  // ---- the runtime

  static void pause(mscclpp_sim::Thread* thread) {
    of(thread).pauses = true;
    of(thread).suspend();
  }
  static uint64_t blockBarrier(mscclpp_sim::Thread* caller, uint32_t value) {
    Thread& thread = of(caller);
    thread.value = value;
    return thread.turns->meet(thread, State::AtBlockBarrier, ~0u);
  }
  static uint32_t warpBarrier(mscclpp_sim::Thread* caller, uint32_t mask) {
    Thread& thread = of(caller);
    return static_cast<uint32_t>(thread.turns->meet(thread, State::AtWarpBarrier, mask | 1u << thread.lane));
  }
  // The headers call it before each access, because `known` stays empty.
  static void findRange(mscclpp_sim::Thread* thread, uintptr_t address, uint64_t bytes, uint32_t isStore) {
    CHECK((address & (bytes - 1)) == 0);
    CHECK(Limits::allow(address, bytes, isStore));
    if (of(thread).turns->atRandom_) of(thread).suspend();
  }
  static void trap(mscclpp_sim::Thread*, const char* message) {
    std::fprintf(stderr, "the kernel failed: %s\n", message);
    std::_Exit(1);
  }

  static constexpr mscclpp_sim::Runtime table = {pause, pause, blockBarrier, warpBarrier, findRange, trap, nullptr};
  static constexpr uint64_t epoch = 0;

  // ---- barriers

  uint64_t meet(Thread& thread, State barrier, uint32_t mask) {
    thread.state = barrier;
    thread.mask = mask;
    ++waiting_;
    settle(thread.number, barrier, mask);
    // The last to come goes back in the line, too, so that all leave in their order.
    thread.suspend();
    return thread.answer;
  }
  // Releases the threads of a block or warp that wait for those in `mask`, if these have come or have ended.
  void settle(unsigned int number, State barrier, uint32_t mask) {
    const bool ofBlock = barrier == State::AtBlockBarrier;
    const unsigned int block = number / threads_ * threads_;
    const unsigned int begin = ofBlock ? block : number - members_[number]->lane;
    const unsigned int end = ofBlock || begin + 32 > block + threads_ ? block + threads_ : begin + 32;
    uint64_t came = 0, withValue = 0, lanes = 0;
    const auto waits = [&](const Thread& thread) { return thread.state == barrier && thread.mask == mask; };
    // The last thread is the last to come.
    for (unsigned int i = end; i-- != begin;) {
      const Thread& thread = *members_[i];
      if (waits(thread)) {
        ++came;
        withValue += thread.value;
        lanes |= 1ull << thread.lane;
      } else if (thread.state != State::Ended && (mask >> thread.lane & 1) != 0) {
        return;
      }
    }
    for (unsigned int i = begin; i < end; ++i) {
      if (!waits(*members_[i])) continue;
      members_[i]->state = State::Ready;
      members_[i]->answer = ofBlock ? came << 32 | withValue : lanes;
      --waiting_;
    }
  }
  void end(Thread& thread) {
    thread.state = State::Ended;
    --left_;
    if (waiting_ == 0) return;
    settle(thread.number, State::AtBlockBarrier, ~0u);
    const unsigned int warp = thread.number - thread.lane;
    for (unsigned int i = warp; i < warp + thread.threadsOfWarp; ++i) {
      if (members_[i]->state == State::AtWarpBarrier) settle(i, State::AtWarpBarrier, members_[i]->mask);
    }
  }

  unsigned int threads_, left_, waiting_ = 0;
  bool atRandom_ = false;
  const std::function<void()>& body_;
  std::vector<Thread*> members_;
  std::vector<mscclpp_sim::Warp> warps_;
};

// Runs on a stack: one thread after the other.
inline void Thread::run() {
  Thread& thread = *static_cast<Thread*>(mscclpp_sim::self());
  for (;;) {
    thread.suspend();
    thread.turns->body_();
    thread.turns->end(thread);
  }
}

// A kernel of `grid` blocks of `threads` threads, each of which calls `body`. Returns when it has ended.
inline void launch(unsigned int grid, unsigned int threads, const std::function<void()>& body) {
  std::vector<std::thread> blocks;
  for (unsigned int i = 0; i < grid; ++i) {
    blocks.emplace_back([=, &body] { Turns(i, 1, grid, threads, body).inOrder(); });
  }
  for (std::thread& block : blocks) block.join();
}

// A kernel whose threads, of all blocks, take turns at random in this thread of the operating system.
struct Interleaving {
  static void run(unsigned int blocks, unsigned int threads, uint64_t seed, const std::function<void()>& body) {
    Turns(0, blocks, blocks, threads, body).atRandom(seed);
  }
};

// Calls `work(threadId)` as each of the threads of a block, in this thread of the operating system.
template <class Work>
void inTurns(uint32_t threads, Work work) {
  const std::function<void()> body = [&] { work(threadIdx.x); };
  Turns(0, 1, 1, threads, body).inOrder();
}

// Calls `body` as a block of one thread, in this thread of the operating system.
inline void asThread(const std::function<void()>& body) { Turns(0, 1, 1, 1, body).inOrder(); }

// Random bytes at a multiple of 128, with as many random bytes in front and behind as a write that misses might hit.
class Memory {
 public:
  static constexpr std::size_t Margin = 128;

  explicit Memory(std::size_t size, uint64_t seed)
      : size_((size + 2 * Margin + 127) / 128 * 128), bytes_(static_cast<uint8_t*>(std::aligned_alloc(128, size_))) {
    Random random(seed);
    for (std::size_t i = 0; i < size_; i += 8) {
      const uint64_t word = random.next();
      std::memcpy(bytes_ + i, &word, 8);
    }
  }
  Memory(const Memory& other) : size_(other.size_), bytes_(static_cast<uint8_t*>(std::aligned_alloc(128, size_))) {
    std::memcpy(bytes_, other.bytes_, size_);
  }
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(bytes_); }

  uint8_t* at(std::size_t offset) { return bytes_ + Margin + offset; }
  // Whether the two are the same from the margin in front on up to the margin behind `size` bytes.
  bool same(const Memory& other, std::size_t size) const {
    return std::memcmp(bytes_, other.bytes_, size + 2 * Margin) == 0;
  }
  bool same(const Memory& other) const { return std::memcmp(bytes_, other.bytes_, size_) == 0; }

 private:
  std::size_t size_;
  uint8_t* bytes_;
};

}  // namespace emulation
