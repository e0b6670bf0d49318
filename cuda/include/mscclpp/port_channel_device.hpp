// The device side of port channels: puts and signals that are carried out by a proxy on the host, with whatever moves
// data best over the connection, and small ones by the calling thread itself where it reaches the peer's memory.
//
// Each call is made by one thread; any number of threads may make calls at once, also on one channel.
//
// Two ways lead to the peer. A trigger goes through the FIFO to the proxy, which gives what it asks for to the
// connection's queue, in the order of the positions. A direct operation is stores and an addition by the calling
// thread. What keeps them in order:
//
// P1. A call goes directly only if nothing of the connection is pending: completed_ >= lastPushed_. (If something is,
//     it looks a few times more, since what is about to complete costs less to wait for than the way through the
//     proxy, and what takes long hides the wait behind it.) A push raises
//     lastPushed_ to its position + 1 before it commits its trigger, so whoever has synchronised with the pushing
//     thread sees it there. completed_ is written when all triggers of the connection at the positions below it are
//     complete at the peer. Hence what precedes a direct operation (in its thread, or in one with which it has
//     synchronised) is complete before the operation begins. In which order the two words are read does not matter.
// P2. A trigger is committed with release at system scope, so the direct operations that precede it are performed, at
//     the peer too, before the proxy sees it and starts what it asks for.
// P3. Triggers are carried out in order, and a signal of the proxy becomes visible after the data before it.
//
// So whenever one put or signal precedes another, its effects are visible first, whichever way each takes. A signal
// adds to one of two words (see Host2DeviceSemaphoreDeviceHandle), and a wait for number n returns when the sum has
// reached n: if signals of several threads that do not synchronise are under way, n of them have come, in any order.

#ifndef MSCCLPP_PORT_CHANNEL_DEVICE_HPP_
#define MSCCLPP_PORT_CHANNEL_DEVICE_HPP_

#include "mscclpp/fifo_device.hpp"
#include "mscclpp/semaphore_device.hpp"
#include "mscclpp/thread_copy_device.hpp"

namespace mscclpp {

// What a trigger of a port channel asks for, or-ed: move data, signal, say when all that came before is complete.
enum TriggerType : uint32_t { TriggerData = 1, TriggerFlag = 2, TriggerSync = 4 };

// How it is packed. First word: size, then source offset. Second word: destination offset in the low half, then from
// these bits on source memory, destination memory, type and semaphore; the FIFO has the top bit.
enum TriggerLayout : uint32_t {
  TriggerSrcOffsetBit = 32,
  TriggerSrcIdBit = 32,
  TriggerDstIdBit = 41,
  TriggerTypeBit = 50,
  TriggerSemaphoreBit = 53,
  TriggerMemoryIds = 512,
  TriggerSemaphores = 1024,
};

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// How often a call that could go directly looks whether something is still pending, before it goes through the proxy. A
// look takes about 0.15 us in device memory, where the transports that allow direct calls store their completions.
enum CompletionLooks : uint32_t { LooksBeforePush = 12 };

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

// A channel that signals, and puts between any memories of its proxy service, named by their ids. Trivially copyable,
// 104 bytes; may live in constant, shared or local memory or be a kernel's parameter.
//
// Calls that return a bool return false when they would have to go on waiting, for a free slot of the FIFO, a
// completion or a signal, and the semaphore or the FIFO was aborted; when maxSpinCount polls were not enough, if that
// is not negative; or when an offset or a size of 4 GiB or more, or an id out of range, does not fit into a trigger:
// that aborts the semaphore and is reported by the host. Waiting for a free slot of the FIFO has no bound of polls, but
// ends with either abort.
//
// What need not wait does not look for an abort: direct operations, a flush with nothing pending and pushes while there
// is room return true after one, too, though nobody may carry out what was pushed. A loop that is to end with an abort
// needs a wait, or a flush that finds something pending.
struct BasePortChannelDeviceHandle {
  Host2DeviceSemaphoreDeviceHandle semaphore_;
  FifoDeviceHandle fifo_;
  // In this device's memory, a line for each connection of a service: word 0 is 1 + the highest position of a trigger
  // of the connection. The next three count what was done directly: puts, their bytes, signals.
  uint64_t* lastPushed_;
  // Triggers of the connection at positions below this are complete. In this device's memory or pinned on the host.
  uint64_t* completed_;
  // The peer's word 0 as mapped here, if kernels may add to it; else null.
  uint64_t* directToken_;
  uint32_t semaphoreId_;
  uint32_t reserved_;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Moves `size` bytes from the memory `srcId` of this side to the memory `dstId` of the peer. Returns as soon as it is
  // asked for. The source must keep its contents until a flush.
  MSCCLPP_DEVICE_INLINE bool put(uint32_t dstId, uint64_t dstOffset, uint32_t srcId, uint64_t srcOffset,
                                 uint64_t size) const {
    return pushTransfer(TriggerData, dstId, dstOffset, srcId, srcOffset, size) != FifoDeviceHandle::Failed;
  }

  // Signals the peer. Who waits there for this signal sees all puts that precede it, and all that this thread wrote, or
  // had acquired, before. Returns as soon as it is asked for.
  MSCCLPP_DEVICE_INLINE bool signal() const {
    if (directToken_ != nullptr && nothingPending(detail::LooksBeforePush)) {
      signalDirectly();
      return true;
    }
    return push(TriggerFlag, 0, 0) != FifoDeviceHandle::Failed;
  }

  // The two together, which is faster.
  MSCCLPP_DEVICE_INLINE bool putWithSignal(uint32_t dstId, uint64_t dstOffset, uint32_t srcId, uint64_t srcOffset,
                                           uint64_t size) const {
    return pushTransfer(TriggerData | TriggerFlag, dstId, dstOffset, srcId, srcOffset, size) !=
           FifoDeviceHandle::Failed;
  }

  // And a flush behind them. When maxSpinCount polls were not enough, all has been asked for all the same.
  MSCCLPP_DEVICE_INLINE bool putWithSignalAndFlush(uint32_t dstId, uint64_t dstOffset, uint32_t srcId,
                                                   uint64_t srcOffset, uint64_t size,
                                                   int64_t maxSpinCount = -1) const {
    return waitForCompletion(pushTransfer(TriggerData | TriggerFlag | TriggerSync, dstId, dstOffset, srcId, srcOffset,
                                          size),
                             maxSpinCount);
  }

  // Waits until all puts and signals that precede it (of this thread, and of those with which it has synchronised) are
  // complete: the data is in the peer's memory, and the sources may be overwritten. It may be repeated; each call that
  // finds something pending pushes one more trigger, so many short bounds fill the FIFO, where one long bound does not.
  MSCCLPP_DEVICE_INLINE bool flush(int64_t maxSpinCount = -1) const {
    if (nothingPending(1)) {
      systemFence();
      return true;
    }
    return waitForCompletion(push(TriggerSync, 0, 0), maxSpinCount);
  }

  // Takes a signal of the peer if one is there that no wait has claimed; acquires like `wait` if so. Does not look for
  // an abort: a loop that is to end with the semaphore calls `wait` with a small bound instead.
  MSCCLPP_DEVICE_INLINE bool poll() const { return semaphore_.poll(); }

  // Waits for one signal of the peer and takes it. With it comes all that the signal carries. After a time-out no
  // signal has been taken and the wait may be repeated; after an abort every later wait without a signal to take
  // returns false.
  MSCCLPP_DEVICE_INLINE bool wait(int64_t maxSpinCount = -1) const { return semaphore_.wait(maxSpinCount); }

 protected:
  // P1. The load of completed_ acquires: the direct operation behind it comes after all that is complete.
  MSCCLPP_DEVICE_INLINE bool nothingPending(uint32_t looks) const {
    uint64_t* const completed = completed_;
    const uint64_t pushed = atomicLoad<MemoryOrder::Relaxed, MemoryScope::Device>(lastPushed_);
#pragma unroll 1
    for (uint32_t look = 0; look < looks; ++look) {
      if (atomicLoad<MemoryOrder::Acquire, MemoryScope::System>(completed) >= pushed) return true;
    }
    return false;
  }

  MSCCLPP_DEVICE_INLINE void signalDirectly() const {
    uint64_t* const counted = lastPushed_ + 3;
    atomicReduceAdd<MemoryOrder::Release, MemoryScope::System>(directToken_, oneOfThisLane());
    atomicReduceAdd<MemoryOrder::Relaxed, MemoryScope::Device>(counted, oneOfThisLane());
  }

  // Whether offsets and a size fit into a trigger, and these ids. If not, says so and aborts the semaphore.
  MSCCLPP_DEVICE_INLINE bool fits(uint32_t dstId, uint64_t dstOffset, uint32_t srcId, uint64_t srcOffset,
                                  uint64_t size) const {
    if (((dstOffset | srcOffset | size) >> 32) == 0 && (dstId | srcId) < TriggerMemoryIds) return true;
    detail::abortBecause(semaphore_.status, ReasonTriggerRange);
    return false;
  }

  MSCCLPP_DEVICE_INLINE uint64_t pushTransfer(uint32_t type, uint32_t dstId, uint64_t dstOffset, uint32_t srcId,
                                              uint64_t srcOffset, uint64_t size) const {
    if (!fits(dstId, dstOffset, srcId, srcOffset, size)) return FifoDeviceHandle::Failed;
    return push(type, size | srcOffset << TriggerSrcOffsetBit,
                dstOffset | static_cast<uint64_t>(srcId) << TriggerSrcIdBit |
                    static_cast<uint64_t>(dstId) << TriggerDstIdBit);
  }

  // Pushes a trigger, whose words have all but type and semaphore, and returns its position or Failed.
  MSCCLPP_DEVICE_INLINE uint64_t push(uint32_t type, uint64_t fst, uint64_t snd) const {
    const FifoDeviceHandle fifo = fifo_;
    const FifoDeviceHandle::Place place = fifo.reserve();
    atomicReduceMax<MemoryOrder::Relaxed, MemoryScope::Device>(lastPushed_, place.position + 1);
    const ProxyTrigger trigger{fst, snd | static_cast<uint64_t>(type) << TriggerTypeBit |
                                        static_cast<uint64_t>(semaphoreId_) << TriggerSemaphoreBit};
    return fifo.commit(place, trigger, -1, semaphore_.status) ? place.position
                                                              : static_cast<uint64_t>(FifoDeviceHandle::Failed);
  }

  // Waits until the trigger at this position is complete, and all before it.
  MSCCLPP_DEVICE_INLINE bool waitForCompletion(uint64_t position, int64_t maxSpinCount) const {
    if (position == FifoDeviceHandle::Failed) return false;
    uint64_t* const completed = completed_;
    return pollUntilEither(
        [=] { return atomicLoad<MemoryOrder::Acquire, MemoryScope::System>(completed) > position; }, maxSpinCount,
        semaphore_.status, fifo_.status);
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// A channel between one memory of this side and one of the peer. 152 bytes; all that is said of the base's calls holds
// for those here. The offsets are into the two memories.
struct PortChannelDeviceHandle : BasePortChannelDeviceHandle {
  // The ids of the peer's memory and of this side's.
  uint32_t dst_;
  uint32_t src_;
  // The peer's memory as mapped here, null if it is not, and this side's. Both null if that is not on this device.
  void* dstPtr_;
  void* srcPtr_;
  uint64_t dstSize_;
  uint64_t srcSize_;
  // Up to how many bytes a put may be done by the calling thread; 0 for none.
  uint32_t directPutMax_;
  uint32_t reserved2_;

#if defined(MSCCLPP_DEVICE_COMPILE)

  using BasePortChannelDeviceHandle::put;
  using BasePortChannelDeviceHandle::putWithSignal;
  using BasePortChannelDeviceHandle::putWithSignalAndFlush;

  // Moves `size` bytes from this side's memory at srcOffset to the peer's at dstOffset. The source must keep its
  // contents until a flush.
  //
  // The calling thread does it itself if the size is at most directPutMax_, both ranges are inside the memories, both
  // addresses are the same modulo 8, and nothing of the connection is pending.
  MSCCLPP_DEVICE_INLINE bool put(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) const {
    if (goesDirectly(dstOffset, srcOffset, size)) {
      putDirectly(dstOffset, srcOffset, size);
      return true;
    }
    return BasePortChannelDeviceHandle::put(dst_, dstOffset, src_, srcOffset, size);
  }
  MSCCLPP_DEVICE_INLINE bool put(uint64_t offset, uint64_t size) const { return put(offset, offset, size); }

  // A put and the signal of it. The calling thread does both or neither.
  MSCCLPP_DEVICE_INLINE bool putWithSignal(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) const {
    if (directToken_ != nullptr && goesDirectly(dstOffset, srcOffset, size)) {
      putDirectly(dstOffset, srcOffset, size);
      signalDirectly();
      return true;
    }
    return BasePortChannelDeviceHandle::putWithSignal(dst_, dstOffset, src_, srcOffset, size);
  }
  MSCCLPP_DEVICE_INLINE bool putWithSignal(uint64_t offset, uint64_t size) const {
    return putWithSignal(offset, offset, size);
  }

  // And a flush behind them.
  MSCCLPP_DEVICE_INLINE bool putWithSignalAndFlush(uint64_t dstOffset, uint64_t srcOffset, uint64_t size,
                                                   int64_t maxSpinCount = -1) const {
    if (directToken_ != nullptr && goesDirectly(dstOffset, srcOffset, size)) {
      putDirectly(dstOffset, srcOffset, size);
      signalDirectly();
      systemFence();
      return true;
    }
    return BasePortChannelDeviceHandle::putWithSignalAndFlush(dst_, dstOffset, src_, srcOffset, size, maxSpinCount);
  }
  // Without a bound: with one, the number of arguments would not tell this from the other form.
  MSCCLPP_DEVICE_INLINE bool putWithSignalAndFlush(uint64_t offset, uint64_t size) const {
    return putWithSignalAndFlush(offset, offset, size);
  }

 private:
  // The cheap conditions first: a large put does not read what is pending.
  MSCCLPP_DEVICE_INLINE bool goesDirectly(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) const {
    const uint64_t misaligned = reinterpret_cast<uintptr_t>(dstPtr_) + dstOffset -
                                (reinterpret_cast<uintptr_t>(srcPtr_) + srcOffset);
    return size <= directPutMax_ && dstPtr_ != nullptr && isInside(dstOffset, size, dstSize_) &&
           isInside(srcOffset, size, srcSize_) && ((dstOffset | srcOffset) >> 32) == 0 && misaligned % 8 == 0 &&
           nothingPending(detail::LooksBeforePush);
  }

  MSCCLPP_DEVICE_INLINE static bool isInside(uint64_t offset, uint64_t size, uint64_t of) {
    return offset <= of && size <= of - offset;
  }

  MSCCLPP_DEVICE_INLINE void putDirectly(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) const {
    copyByThread(static_cast<uint8_t*>(dstPtr_) + dstOffset, static_cast<const uint8_t*>(srcPtr_) + srcOffset, size);
    uint64_t* const counted = lastPushed_;
    atomicReduceAdd<MemoryOrder::Relaxed, MemoryScope::Device>(counted + 1, oneOfThisLane());
    atomicReduceAdd<MemoryOrder::Relaxed, MemoryScope::Device>(counted + 2, size);
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

static_assert(sizeof(BasePortChannelDeviceHandle) == 104 && sizeof(PortChannelDeviceHandle) == 152,
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
