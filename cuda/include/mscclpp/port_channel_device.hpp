// The device side of port channels: a proxy on the host carries out puts and signals, by the fastest way of the
// connection, and the calling thread carries out small ones itself where it reaches the peer's memory.
//
// Each call is made by one thread; any number of threads may make calls at once, also on one channel.
//
// Two ways lead to the peer. A trigger goes through the FIFO to the proxy, which passes its requests to the
// connection's queue, in the order of the positions. A direct operation is stores and an addition by the calling
// thread. These rules keep them in order:
//
// P1. A call goes directly only if nothing of the connection is pending: flushDonePos_ >= lastPushed_. (If something is,
//     it looks a few times more, since what is about to complete costs less to wait for than the way through the
//     proxy, and what takes long hides the wait behind it.) A push raises
//     lastPushed_ to its position + 1 before it commits its trigger, so whoever has synchronised with the pushing
//     thread sees it there. flushDonePos_ is written when all triggers of the connection at the positions below it are
//     complete at the peer. Hence what precedes a direct operation (in its thread, or in one with which it has
//     synchronised) is complete before the operation begins. In which order the two words are read does not matter.
// P2. A trigger is committed with release at system scope, so the direct operations that precede it are performed, at
//     the peer too, before the proxy sees it and starts what it asks for. A put by bulk copies is complete when it
//     returns, and what the thread does next comes after it: see copyThroughStages.
// P3. Triggers are carried out in order, and a signal of the proxy becomes visible after the data before it.
//
// So whenever one put or signal precedes another, its effects are visible first, whichever way each takes. A signal
// adds to one of two words (see Host2DeviceSemaphoreDeviceHandle), and a wait for number n returns when the sum has
// reached n: if signals of several threads that do not synchronise are under way, n of them have come, in any order.

#ifndef MSCCLPP_PORT_CHANNEL_DEVICE_HPP_
#define MSCCLPP_PORT_CHANNEL_DEVICE_HPP_

#include "mscclpp/bulk_device.hpp"
#include "mscclpp/fifo_device.hpp"
#include "mscclpp/semaphore_device.hpp"
#include "mscclpp/thread_copy_device.hpp"

// The bytes of shared memory that a kernel has for puts by bulk copies, if it calls `put` or its like on a PortChannel
// and is compiled for compute capability 9.0 or newer. One put of a block at a time uses them; a thread that finds them
// in use copies words or pushes to the proxy. A multiple of 48. A program that needs its shared memory for itself
// defines this as 0 before it includes the headers.
#if !defined(MSCCLPP_PORT_STAGE_BYTES)
#define MSCCLPP_PORT_STAGE_BYTES 24576
#endif

namespace mscclpp {

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// The number of times that a call that could go directly checks for pending operations, before it goes through the
// proxy. The transports that allow direct calls store their completions in device memory, where a check is fast.
enum CompletionLooks : uint32_t { LooksBeforePush = 12 };

// The number of bytes from which on bulk copies are faster than words that a thread moves itself.
enum BulkPuts : uint32_t { BulkPutMin = 1536 };

#if MSCCLPP_BULK_AVAILABLE && MSCCLPP_PORT_STAGE_BYTES > 0

// Whether threads put by bulk copies.
constexpr bool PutsByBulk = true;

// The shared memory that the threads of a block put through, one at a time.
//
// Nobody initialises it before a kernel runs, so `owner` starts with an arbitrary value. So a thread takes it by
// changing it to one certain number: any other value means that the stage is free. The number is there by accident only
// if a kernel left it behind, which none does, or if other data had this value: then no thread of this block gets the
// stage, and all puts go another way. The thread that takes it acquires, the one that leaves it releases, so each finds
// the barriers unused.
struct PortStage {
  static constexpr uint32_t Stages = 3;
  static constexpr uint32_t ChunkBytes = MSCCLPP_PORT_STAGE_BYTES / Stages;
  static constexpr uint64_t Taken = 0x9d5c36b1e27f480aull;
  static_assert(MSCCLPP_PORT_STAGE_BYTES % 48 == 0, "MSCCLPP_PORT_STAGE_BYTES is a multiple of 48");

  alignas(128) uint8_t stages[Stages * ChunkBytes];
  uint64_t owner;
  BulkBarrier full[Stages];

  // Takes the stage if it is free, and returns whether the calling thread has it now.
  MSCCLPP_DEVICE_INLINE bool take() {
    const uint64_t before = load<MemoryOrder::Relaxed, MemoryScope::Device, MemorySpace::Any>(&owner);
    const uint64_t taken = Taken;
    return before != taken &&
           compareSwap<MemoryOrder::Acquire, MemoryScope::Device, MemorySpace::Any>(&owner, before, taken) == before;
  }
  MSCCLPP_DEVICE_INLINE void leave() {
    store<MemoryOrder::Release, MemoryScope::Device, MemorySpace::Any>(&owner, static_cast<uint64_t>(0));
  }
};

// The stage of the block.
MSCCLPP_DEVICE_INLINE PortStage* portStage() {
  __shared__ PortStage stage;
  return &stage;
}

// Puts by the calling thread through the stage, if that is free, and returns whether it was. The addresses are the same
// modulo 16. The thread itself copies the bytes before the first and after the last multiple of 16.
MSCCLPP_DEVICE_INLINE bool putThroughStage(uint8_t* dst, const uint8_t* src, uint64_t bytes) {
  PortStage* const stage = portStage();
  if (!stage->take()) return false;
  const uint64_t head = (0 - reinterpret_cast<uintptr_t>(dst)) % 16;
  const uint64_t middle = (bytes - head) / 16 * 16;
  copyEdgeByThread(dst, src, head);
  copyThroughStages<PortStage::ChunkBytes, PortStage::Stages>(dst + head, src + head, middle, stage->stages,
                                                              stage->full);
  copyEdgeByThread(dst + head + middle, src + head + middle, bytes - head - middle);
  stage->leave();
  return true;
}

#else

constexpr bool PutsByBulk = false;

MSCCLPP_DEVICE_INLINE bool putThroughStage(uint8_t*, const uint8_t*, uint64_t) { return false; }

#endif

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

// A channel that signals, and puts between any memories of its proxy service, named by their ids. Trivially copyable,
// 120 bytes; may live in constant, shared or local memory or be a kernel's parameter.
//
// Calls that return a bool return false when they would have to go on waiting, for a free slot of the FIFO, a
// completion or a signal, and the semaphore or the FIFO was aborted; when maxSpinCount polls were not enough, if that
// is not negative; or when an offset or a size of 4 GiB or more, or an id out of range, does not fit into a trigger:
// that aborts the semaphore and is reported by the host. Waiting for a free slot of the FIFO has no bound of polls, but
// ends with either abort.
//
// Calls that need not wait do not look for an abort: direct operations, a flush with nothing pending and pushes while
// there is room return true after one, too, though nobody may carry out what was pushed. A loop that must end with an
// abort needs a wait, or a flush that finds something pending.
struct BasePortChannelDeviceHandle {
  Host2DeviceSemaphoreDeviceHandle semaphore_;
  FifoDeviceHandle fifo_;
  // A line for each connection of a service, in this device's memory: word 0 is 1 + the highest position of a trigger
  // of the connection. The next three count the direct operations: puts, their bytes, signals.
  uint64_t* lastPushed_;
  // Triggers of the connection at positions below this are complete: one past the last one that a flush need not wait
  // for. In this device's memory or pinned on the host.
  uint64_t* flushDonePos_;
  // The peer's word 0 as mapped here, if kernels may add to it; else null.
  uint64_t* directToken_;
  SemaphoreId semaphoreId_;
  uint32_t reserved_;

  BasePortChannelDeviceHandle() = default;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Makes a handle of the parts of another handle: `semaphore` is the `semaphore_` of a port channel's. It has the
  // channel's flushDonePos_, so the last argument is accepted and ignored: with any other word, nothing would end a
  // flush.
  MSCCLPP_DEVICE_INLINE BasePortChannelDeviceHandle(SemaphoreId semaphoreId, Host2DeviceSemaphoreDeviceHandle semaphore,
                                                    FifoDeviceHandle fifo, uint64_t* = nullptr)
      : semaphore_(semaphore),
        fifo_(fifo),
        lastPushed_(partOf(semaphore.port, 0)),
        flushDonePos_(partOf(semaphore.port, 1)),
        directToken_(partOf(semaphore.port, 2)),
        semaphoreId_(semaphoreId),
        reserved_(0) {}

  // Moves `size` bytes from the memory `srcId` of this side to the memory `dstId` of the peer. Returns as soon as the
  // request is made. The source must keep its contents until a flush.
  MSCCLPP_DEVICE_INLINE bool put(MemoryId dstId, uint64_t dstOffset, MemoryId srcId, uint64_t srcOffset,
                                 uint64_t size) const {
    return pushTransfer(TriggerData, dstId, dstOffset, srcId, srcOffset, size) != FifoDeviceHandle::Failed;
  }
  MSCCLPP_DEVICE_INLINE bool put(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size) const {
    return put(dstId, offset, srcId, offset, size);
  }

  // Signals the peer. A thread that waits there for this signal sees all puts that precede it, and all that this thread
  // wrote, or had acquired, before. Returns as soon as the request is made.
  MSCCLPP_DEVICE_INLINE bool signal() const {
    if (directToken_ != nullptr && nothingPending(detail::LooksBeforePush)) {
      signalDirectly();
      return true;
    }
    return push(TriggerFlag) != FifoDeviceHandle::Failed;
  }

  // Puts and signals in one call, which is faster.
  MSCCLPP_DEVICE_INLINE bool putWithSignal(MemoryId dstId, uint64_t dstOffset, MemoryId srcId, uint64_t srcOffset,
                                           uint64_t size) const {
    return pushTransfer(TriggerData | TriggerFlag, dstId, dstOffset, srcId, srcOffset, size) !=
           FifoDeviceHandle::Failed;
  }
  MSCCLPP_DEVICE_INLINE bool putWithSignal(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size) const {
    return putWithSignal(dstId, offset, srcId, offset, size);
  }

  // Puts, signals and flushes. When maxSpinCount polls were not enough, all requests have been made all the same.
  MSCCLPP_DEVICE_INLINE bool putWithSignalAndFlush(MemoryId dstId, uint64_t dstOffset, MemoryId srcId,
                                                   uint64_t srcOffset, uint64_t size,
                                                   int64_t maxSpinCount = -1) const {
    return waitForCompletion(pushTransfer(TriggerData | TriggerFlag | TriggerSync, dstId, dstOffset, srcId, srcOffset,
                                          size),
                             maxSpinCount);
  }
  MSCCLPP_DEVICE_INLINE bool putWithSignalAndFlush(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size,
                                                   int64_t maxSpinCount = -1) const {
    return putWithSignalAndFlush(dstId, offset, srcId, offset, size, maxSpinCount);
  }

  // Waits until all puts and signals that precede it (of this thread, and of those with which it has synchronised) are
  // complete: the data is in the peer's memory, and the sources may be overwritten. It may be repeated; each call that
  // finds something pending pushes one more trigger, so many short bounds fill the FIFO, where one long bound does not.
  MSCCLPP_DEVICE_INLINE bool flush(int64_t maxSpinCount = -1) const {
    if (nothingPending(1)) {
      systemFence();
      return true;
    }
    return waitForCompletion(push(TriggerSync), maxSpinCount);
  }

  // Takes a signal of the peer if one is there that no wait has claimed; acquires like `wait` if so. Does not look for
  // an abort: a loop that is to end with the semaphore calls `wait` with a small bound instead.
  MSCCLPP_DEVICE_INLINE bool poll() const { return semaphore_.poll(); }

  // Waits for one signal of the peer and takes it. With it comes all that the signal carries. After a time-out no
  // signal has been taken and the wait may be repeated; after an abort every later wait without a signal to take
  // returns false.
  MSCCLPP_DEVICE_INLINE bool wait(int64_t maxSpinCount = -1) const { return semaphore_.wait(maxSpinCount); }

 protected:
  MSCCLPP_DEVICE_INLINE static uint64_t* partOf(const uint64_t* port, uint32_t word) {
    return port == nullptr ? nullptr : reinterpret_cast<uint64_t*>(load8(port + word));
  }

  // P1. The load of flushDonePos_ acquires: the direct operation behind it comes after all that is complete.
  MSCCLPP_DEVICE_INLINE bool nothingPending(uint32_t looks) const {
    uint64_t* const completed = flushDonePos_;
    if (lastPushed_ == nullptr) return false;
    const uint64_t pushed = detail::load<MemoryOrder::Relaxed, MemoryScope::Device>(lastPushed_);
#pragma unroll 1
    for (uint32_t look = 0; look < looks; ++look) {
      if (detail::load<MemoryOrder::Acquire, MemoryScope::System>(completed) >= pushed) return true;
    }
    return false;
  }

  MSCCLPP_DEVICE_INLINE void signalDirectly() const {
    uint64_t* const counted = lastPushed_ + 3;
    detail::reduceAdd<MemoryOrder::Release, MemoryScope::System>(directToken_, detail::oneOfThisLane());
    detail::reduceAdd<MemoryOrder::Relaxed, MemoryScope::Device>(counted, detail::oneOfThisLane());
  }

  // Whether offsets, a size and ids fit into a trigger. If not, reports so and aborts the semaphore.
  MSCCLPP_DEVICE_INLINE bool fits(MemoryId dstId, uint64_t dstOffset, MemoryId srcId, uint64_t srcOffset,
                                  uint64_t size) const {
    const bool inRange = ((dstOffset | srcOffset | size) >> TriggerBitsOffset) == 0 &&
                         ((dstId | srcId) >> TriggerBitsMemoryId) == 0;
    if (!inRange) detail::abortBecause(semaphore_.status, ReasonTriggerRange);
    return inRange;
  }

  MSCCLPP_DEVICE_INLINE uint64_t pushTransfer(TriggerType type, MemoryId dstId, uint64_t dstOffset, MemoryId srcId,
                                              uint64_t srcOffset, uint64_t size) const {
    if (!fits(dstId, dstOffset, srcId, srcOffset, size)) return FifoDeviceHandle::Failed;
    return push(ProxyTrigger(type, dstId, dstOffset, srcId, srcOffset, size, semaphoreId_));
  }

  MSCCLPP_DEVICE_INLINE uint64_t push(TriggerType type) const {
    return push(ProxyTrigger(type, 0, 0, 0, 0, 0, semaphoreId_));
  }

  // Pushes a trigger and returns its position or Failed. If the handle was made of the parts of a semaphore that
  // belongs to no port channel, aborts that semaphore.
  MSCCLPP_DEVICE_INLINE uint64_t push(ProxyTrigger trigger) const {
    if (lastPushed_ == nullptr) {
      detail::abortBecause(semaphore_.status, ReasonNoPort);
      return FifoDeviceHandle::Failed;
    }
    const FifoDeviceHandle fifo = fifo_;
    const FifoDeviceHandle::Place place = fifo.reserve();
    detail::reduceMax<MemoryOrder::Relaxed, MemoryScope::Device>(lastPushed_, place.position + 1);
    return fifo.commit(place, trigger, -1, semaphore_.status) ? place.position
                                                              : static_cast<uint64_t>(FifoDeviceHandle::Failed);
  }

  // Waits until the trigger at this position is complete, and all before it.
  MSCCLPP_DEVICE_INLINE bool waitForCompletion(uint64_t position, int64_t maxSpinCount) const {
    if (position == FifoDeviceHandle::Failed) return false;
    uint64_t* const completed = flushDonePos_;
    return pollUntilEither(
        [=] { return detail::load<MemoryOrder::Acquire, MemoryScope::System>(completed) > position; }, maxSpinCount,
        semaphore_.status, fifo_.status);
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// A channel between one memory of this side and one of the peer. 168 bytes; the rules of the base's calls hold for the
// calls here. The offsets are into the two memories.
struct PortChannelDeviceHandle : BasePortChannelDeviceHandle {
  // The ids of the peer's memory and of this side's.
  MemoryId dst_;
  MemoryId src_;
  // The peer's memory as mapped here, null if it is not, and this side's. Both null if that is not on this device.
  void* dstPtr_;
  void* srcPtr_;
  uint64_t dstSize_;
  uint64_t srcSize_;
  // The most bytes that the calling thread may put itself, word by word and by bulk copies; 0 for none.
  uint32_t directPutMax_;
  uint32_t bulkPutMax_;

  PortChannelDeviceHandle() = default;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Makes a handle of its parts, as BasePortChannelDeviceHandle. The proxy does all its puts, because it knows the
  // memories of the ids.
  MSCCLPP_DEVICE_INLINE PortChannelDeviceHandle(SemaphoreId semaphoreId, Host2DeviceSemaphoreDeviceHandle semaphore,
                                                FifoDeviceHandle fifo, MemoryId dst, MemoryId src, uint64_t* = nullptr)
      : BasePortChannelDeviceHandle(semaphoreId, semaphore, fifo),
        dst_(dst),
        src_(src),
        dstPtr_(nullptr),
        srcPtr_(nullptr),
        dstSize_(0),
        srcSize_(0),
        directPutMax_(0),
        bulkPutMax_(0) {}

  // Moves `size` bytes from this side's memory at srcOffset to the peer's at dstOffset. The source must keep its
  // contents until a flush.
  //
  // The calling thread does it itself if nothing of the connection is pending and both ranges are inside the memories:
  // up to directPutMax_ bytes if both addresses are the same modulo 8; and by bulk copies, from BulkPutMin up to
  // bulkPutMax_ bytes, if both addresses are the same modulo 16, the kernel is compiled for compute capability 9.0, and
  // no other thread of the block is doing the same. A put by bulk copies returns when the data is at the peer.
  MSCCLPP_DEVICE_INLINE bool put(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) const {
    if (putDirectly(dstOffset, srcOffset, size)) return true;
    return BasePortChannelDeviceHandle::put(dst_, dstOffset, src_, srcOffset, size);
  }
  MSCCLPP_DEVICE_INLINE bool put(uint64_t offset, uint64_t size) const { return put(offset, offset, size); }

  // Puts and signals. The calling thread does both itself or neither.
  MSCCLPP_DEVICE_INLINE bool putWithSignal(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) const {
    if (directToken_ != nullptr && putDirectly(dstOffset, srcOffset, size)) {
      signalDirectly();
      return true;
    }
    return BasePortChannelDeviceHandle::putWithSignal(dst_, dstOffset, src_, srcOffset, size);
  }
  MSCCLPP_DEVICE_INLINE bool putWithSignal(uint64_t offset, uint64_t size) const {
    return putWithSignal(offset, offset, size);
  }

  // Puts, signals and flushes.
  MSCCLPP_DEVICE_INLINE bool putWithSignalAndFlush(uint64_t dstOffset, uint64_t srcOffset, uint64_t size,
                                                   int64_t maxSpinCount = -1) const {
    if (directToken_ != nullptr && putDirectly(dstOffset, srcOffset, size)) {
      signalDirectly();
      systemFence();
      return true;
    }
    return BasePortChannelDeviceHandle::putWithSignalAndFlush(dst_, dstOffset, src_, srcOffset, size, maxSpinCount);
  }
  // Puts, signals and flushes without a bound: with one, the number of arguments would not distinguish this from the
  // other form.
  MSCCLPP_DEVICE_INLINE bool putWithSignalAndFlush(uint64_t offset, uint64_t size) const {
    return putWithSignalAndFlush(offset, offset, size);
  }

  // The base's calls with memories' ids. Of the two forms of putWithSignalAndFlush with four arguments, the one with
  // ids is meant if the first two are MemoryIds and the size is a uint64_t.
  MSCCLPP_DEVICE_INLINE bool put(MemoryId dstId, uint64_t dstOffset, MemoryId srcId, uint64_t srcOffset,
                                 uint64_t size) const {
    return BasePortChannelDeviceHandle::put(dstId, dstOffset, srcId, srcOffset, size);
  }
  MSCCLPP_DEVICE_INLINE bool put(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size) const {
    return BasePortChannelDeviceHandle::put(dstId, srcId, offset, size);
  }
  MSCCLPP_DEVICE_INLINE bool putWithSignal(MemoryId dstId, uint64_t dstOffset, MemoryId srcId, uint64_t srcOffset,
                                           uint64_t size) const {
    return BasePortChannelDeviceHandle::putWithSignal(dstId, dstOffset, srcId, srcOffset, size);
  }
  MSCCLPP_DEVICE_INLINE bool putWithSignal(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size) const {
    return BasePortChannelDeviceHandle::putWithSignal(dstId, srcId, offset, size);
  }
  MSCCLPP_DEVICE_INLINE bool putWithSignalAndFlush(MemoryId dstId, uint64_t dstOffset, MemoryId srcId,
                                                   uint64_t srcOffset, uint64_t size, int64_t maxSpinCount = -1) const {
    return BasePortChannelDeviceHandle::putWithSignalAndFlush(dstId, dstOffset, srcId, srcOffset, size, maxSpinCount);
  }
  template <class Id, class Bytes,
            class = detail::EnableIf<detail::isSame<Id, MemoryId> && detail::isSame<Bytes, uint64_t>>>
  MSCCLPP_DEVICE_INLINE bool putWithSignalAndFlush(Id dstId, Id srcId, uint64_t offset, Bytes size) const {
    return BasePortChannelDeviceHandle::putWithSignalAndFlush(dstId, srcId, offset, size);
  }

 private:
  // Puts the data if the calling thread can, and returns whether it did. The cheap conditions come first: a put of more
  // bytes than a thread puts does not read the pending operations. Small puts come first, because one more instruction
  // is visible in their times.
  MSCCLPP_DEVICE_INLINE bool putDirectly(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) const {
    const uint64_t misaligned = reinterpret_cast<uintptr_t>(dstPtr_) + dstOffset -
                                (reinterpret_cast<uintptr_t>(srcPtr_) + srcOffset);
    const bool byWords = size <= directPutMax_ && misaligned % 8 == 0;
    const bool byBulk = detail::PutsByBulk && size >= detail::BulkPutMin && size <= bulkPutMax_ && misaligned % 16 == 0;
    if (!(byWords || byBulk) || dstPtr_ == nullptr || !isInside(dstOffset, size, dstSize_) ||
        !isInside(srcOffset, size, srcSize_) || ((dstOffset | srcOffset) >> 32) != 0 ||
        !nothingPending(detail::LooksBeforePush)) {
      return false;
    }
    uint8_t* const dst = static_cast<uint8_t*>(dstPtr_) + dstOffset;
    const uint8_t* const src = static_cast<const uint8_t*>(srcPtr_) + srcOffset;
    if (__builtin_expect(!byBulk, true)) {
      copyByThread(dst, src, size);
    } else if (!detail::putThroughStage(dst, src, size)) {
      if (!byWords) return false;
      copyByThread(dst, src, size);
    }
    uint64_t* const counted = lastPushed_;
    detail::reduceAdd<MemoryOrder::Relaxed, MemoryScope::Device>(counted + 1, detail::oneOfThisLane());
    detail::reduceAdd<MemoryOrder::Relaxed, MemoryScope::Device>(counted + 2, size);
    return true;
  }

  MSCCLPP_DEVICE_INLINE static bool isInside(uint64_t offset, uint64_t size, uint64_t of) {
    return offset <= of && size <= of - offset;
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

static_assert(sizeof(BasePortChannelDeviceHandle) == 120 && sizeof(PortChannelDeviceHandle) == 168,
              "the host fills in the same structures");

// The tags of `DeviceHandle<BasePortChannel>` and `DeviceHandle<PortChannel>`.
struct BasePortChannel {
  using DeviceHandle = BasePortChannelDeviceHandle;
};
struct PortChannel {
  using DeviceHandle = PortChannelDeviceHandle;
};

}  // namespace mscclpp

#endif  // MSCCLPP_PORT_CHANNEL_DEVICE_HPP_
