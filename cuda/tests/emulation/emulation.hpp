// The device API on a CPU: the real headers, compiled by a plain C++ compiler with what they need of a GPU replaced, so
// that their logic is tested where there is none. Compilers include this in front of everything else.
//
// A block is one thread of the operating system, and its threads take turns in it: each runs until it comes to a
// barrier of its block or warp, and then the next one does. So the threads of a warp that meet before a store make it
// one after the other, the thread with a line's flag last: like the stores of a warp that arrive whole. Loads of a warp
// in one instruction take the flag first (warpAtOnce). Blocks, and devices, run truly at the same time.
//
// Atomic accesses are at least acquire and release here, and CPUs order more than GPUs anyway: nothing that is tested
// with this says that the orders in the headers are strong enough. That is argued in docs/design/device-api.md and
// tested on GPUs.

#pragma once

#include <sched.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

// ---- what nvcc brings along

#define __device__
#define __global__
#define __shared__ static thread_local
#define __launch_bounds__(...)

struct Dimensions {
  unsigned int x = 0, y = 0, z = 0;
};
inline thread_local Dimensions threadIdx, blockIdx, blockDim, gridDim;

// ---- the headers, as for a device that is neither CUDA's nor HIP's

// The weak accesses of access_device.hpp pass through here: loads as the first, stores as the second.
namespace emulation {
inline const void* onAccess(const void* address, std::size_t width);
inline void* onAccess(void* address, std::size_t width);
}  // namespace emulation

#define MSCCLPP_DEVICE_COMPILE
#include "mscclpp/atomic_device.hpp"

namespace emulation {

[[noreturn]] inline void fail(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
  std::exit(1);
}
#define CHECK(condition) ((condition) ? (void)0 : emulation::fail(__FILE__, __LINE__, #condition))

// What the current thread may touch by weak accesses; anything, as long as `limited` is false.
struct Range {
  const uint8_t* begin = nullptr;
  const uint8_t* end = nullptr;
  bool contains(const void* address, std::size_t width) const {
    const uint8_t* const first = static_cast<const uint8_t*>(address);
    return first >= begin && first + width <= end;
  }
};
inline thread_local bool limited = false;
inline thread_local Range readable, writable;

inline const void* onAccess(const void* address, std::size_t width) {
  CHECK(reinterpret_cast<uintptr_t>(address) % width == 0);
  CHECK(!limited || readable.contains(address, width));
  return address;
}
inline void* onAccess(void* address, std::size_t width) {
  CHECK(reinterpret_cast<uintptr_t>(address) % width == 0);
  CHECK(!limited || writable.contains(address, width));
  return address;
}

// Random numbers (xorshift64*).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1dull;
  }
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((next() >> 11) % bound); }

 private:
  uint64_t state_;
};

// Threads that take turns in one thread of the operating system.
class Turns {
 public:
  Turns(unsigned int threads, const std::function<void()>& body) : threads_(threads), left_(threads), body_(body) {
    for (Thread& thread : threads_) {
      thread.stack.reset(new char[StackBytes]);
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.get();
      thread.context.uc_stack.ss_size = StackBytes;
      thread.context.uc_link = &scheduler_;
      makecontext(&thread.context, enter, 0);
    }
  }

  unsigned int size() const { return static_cast<unsigned int>(threads_.size()); }
  unsigned int now() const { return now_; }
  unsigned int left() const { return left_; }
  bool ended(unsigned int thread) const { return threads_[thread].ended; }

  // Runs a thread until it yields or ends.
  void resume(unsigned int thread) {
    Turns* const outer = entering_;
    entering_ = this;
    now_ = thread;
    swapcontext(&scheduler_, &threads_[thread].context);
    entering_ = outer;
  }
  // Goes back to where the running thread was resumed.
  void yield() { swapcontext(&threads_[now_].context, &scheduler_); }

 private:
  struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool ended = false;
  };

  static constexpr std::size_t StackBytes = 64 << 10;
  static inline thread_local Turns* entering_ = nullptr;

  static void enter() {
    Turns* const turns = entering_;
    turns->body_();
    turns->threads_[turns->now_].ended = true;
    --turns->left_;
  }

  std::vector<Thread> threads_;
  unsigned int left_;
  const std::function<void()>& body_;
  ucontext_t scheduler_;
  unsigned int now_ = 0;
};

// Threads of one block: each runs until it comes to a barrier.
class Block {
 public:
  // Runs `body` as each of the threads of block `index` of a grid.
  static void run(unsigned int index, unsigned int grid, unsigned int threads, const std::function<void()>& body) {
    Block block(threads, body);
    blockIdx.x = index, gridDim.x = grid, blockDim.x = threads;
    current = &block;
    while (block.turns_.left() != 0) {
      for (unsigned int i = 0; i < threads; ++i) {
        threadIdx.x = i;
        if (!block.turns_.ended(i)) block.turns_.resume(i);
      }
    }
    current = nullptr;
  }

  // The block that this thread of the operating system runs; null outside of a kernel.
  static inline thread_local Block* current = nullptr;

  // Barriers; they tell whether `value` was true in any of the threads.
  bool meetBlock(bool value) { return meet(block_, turns_.size(), value); }
  bool meetWarp(bool value) {
    const unsigned int warp = turns_.now() / 32, left = turns_.size() - warp * 32;
    return meet(warps_[warp], left < 32 ? left : 32, value);
  }
  // What thread `from` of the running thread's warp calls this with. All of them call it.
  uint64_t shuffleWarp(uint64_t value, unsigned int from) {
    const unsigned int first = turns_.now() / 32 * 32;
    CHECK(first + from < turns_.size());
    shuffled_[turns_.now()] = value;
    meetWarp(false);
    const uint64_t result = shuffled_[first + from];
    // Nobody offers the next value before all have this one.
    meetWarp(false);
    return result;
  }

 private:
  struct Meeting {
    unsigned int arrived = 0, rounds = 0;
    bool any = false, result = false;
  };

  Block(unsigned int threads, const std::function<void()>& body)
      : turns_(threads, body), warps_((threads + 31) / 32), shuffled_(threads) {}

  bool meet(Meeting& meeting, unsigned int all, bool value) {
    const unsigned int round = meeting.rounds;
    meeting.any = meeting.any || value;
    if (++meeting.arrived == all) {
      meeting.result = meeting.any;
      meeting.any = false;
      meeting.arrived = 0;
      ++meeting.rounds;
    }
    // The last to arrive goes back in the line, too, so that all leave in their order.
    do {
      turns_.yield();
    } while (meeting.rounds == round);
    return meeting.result;
  }

  Turns turns_;
  std::vector<Meeting> warps_;
  std::vector<uint64_t> shuffled_;
  Meeting block_;
};

// Blocks of one thread each that take turns at random before each of their atomic accesses.
class Interleaving {
 public:
  static void run(unsigned int blocks, uint64_t seed, const std::function<void()>& body) {
    Turns turns(blocks, body);
    Random random(seed);
    current = &turns;
    while (turns.left() != 0) {
      const unsigned int next = random.below(blocks);
      blockIdx.x = next;
      threadIdx.x = 0;
      if (!turns.ended(next)) turns.resume(next);
    }
    current = nullptr;
  }

  static inline thread_local Turns* current = nullptr;
};

// Where others may run: at random when blocks are interleaved, and otherwise now and then, as a loop that polls would
// use up its time slice while the one it waits for has no core.
inline void beforeAtomic() {
  static thread_local unsigned int calls = 0;
  if (Interleaving::current != nullptr) {
    Interleaving::current->yield();
  } else if (++calls % 64 == 0) {
    sched_yield();
  }
}

// A kernel of `grid` blocks of `threads` threads, each of which calls `body`. Returns when it has ended.
inline void launch(unsigned int grid, unsigned int threads, const std::function<void()>& body) {
  std::vector<std::thread> blocks;
  for (unsigned int i = 0; i < grid; ++i) blocks.emplace_back([=, &body] { Block::run(i, grid, threads, body); });
  for (std::thread& block : blocks) block.join();
}

// Calls `work(threadId)` as each of some threads, one after the other: of calls that wait for nothing.
template <class Work>
void inTurns(uint32_t threads, Work work) {
  for (uint32_t i = 0; i < threads; ++i) {
    threadIdx.x = i;
    work(i);
  }
}

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

// ---- what atomic_device.hpp and group_device.hpp have for CUDA and HIP

namespace mscclpp {

template <MemoryOrder, MemoryScope, class T>
T atomicLoad(const T* word) {
  emulation::beforeAtomic();
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
template <MemoryOrder, MemoryScope, class T>
void atomicStore(T* word, T value) {
  emulation::beforeAtomic();
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
template <MemoryOrder, MemoryScope, class T>
T atomicFetchAdd(T* word, T value) {
  emulation::beforeAtomic();
  return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}
template <MemoryOrder, MemoryScope, class T>
void atomicReduceAdd(T* word, T value) {
  emulation::beforeAtomic();
  __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}
template <MemoryOrder, MemoryScope, class T>
void atomicReduceMax(T* word, T value) {
  emulation::beforeAtomic();
  T there = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  while (there < value) {
    if (__atomic_compare_exchange_n(word, &there, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
  }
}
template <MemoryOrder, MemoryScope, class T>
T atomicCompareSwap(T* word, T expected, T desired) {
  emulation::beforeAtomic();
  __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
inline void systemFence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline uint64_t oneOfThisLane() { return 1; }

// Outside of a kernel, in turns, a thread is alone in its warp.
inline uint32_t laneId() { return threadIdx.x % 32; }
inline bool aloneInWarp() { return emulation::Block::current == nullptr; }
inline bool warpAny(bool value) {
  return emulation::Block::current == nullptr ? value : emulation::Block::current->meetWarp(value);
}
inline void warpSync() { warpAny(false); }
inline uint64_t warpShuffle(uint64_t value, uint32_t thread) {
  CHECK(emulation::Block::current != nullptr);
  return emulation::Block::current->shuffleWarp(value, thread % 32);
}
// Those with the flag of a line load before the others, like loads that find a line as it was before a store or after.
template <class Load>
auto warpAtOnce(Load load) {
  const bool hasFlag = laneId() % 8 == 7;
  decltype(load()) value;
  if (hasFlag) value = load();
  warpSync();
  if (!hasFlag) value = load();
  return value;
}
inline bool isFirstOfBlock() { return threadIdx.x == 0; }
inline bool blockAny(bool value) {
  return emulation::Block::current == nullptr ? value : emulation::Block::current->meetBlock(value);
}
inline void blockSync() { blockAny(false); }

}  // namespace mscclpp

inline void __syncthreads() { mscclpp::blockSync(); }
inline int __syncthreads_or(int value) { return mscclpp::blockAny(value != 0); }
inline void atomicAdd(unsigned long long* word, unsigned long long value) {
  __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}

#define __builtin_assume_aligned(address, width) emulation::onAccess(address, width)
