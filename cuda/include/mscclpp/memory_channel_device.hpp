// The device side of memory channels: a semaphore between two GPUs whose memory is mapped into each other, and the
// copies and packets that the threads of one write into the memory of the other.

#ifndef MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_
#define MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_

#include "mscclpp/bulk_device.hpp"
#include "mscclpp/copy_device.hpp"
#include "mscclpp/packet_copy_device.hpp"
#include "mscclpp/packet_device.hpp"
#include "mscclpp/semaphore_device.hpp"

namespace mscclpp {

// A channel that synchronises and moves no data itself. Its methods are those of its semaphore, which documents their
// order, who may call them and what ends a wait.
struct BaseMemoryChannelDeviceHandle {
  MemoryDevice2DeviceSemaphoreDeviceHandle semaphore_;

  BaseMemoryChannelDeviceHandle() = default;
  MSCCLPP_HOST_DEVICE_INLINE BaseMemoryChannelDeviceHandle(MemoryDevice2DeviceSemaphoreDeviceHandle semaphore)
      : semaphore_(semaphore) {}

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Signals the peer; what this thread wrote before is seen by the wait that takes the signal.
  MSCCLPP_DEVICE_INLINE void signal() const { semaphore_.signal(); }

  // Signals the peer. The signal orders no memory.
  MSCCLPP_DEVICE_INLINE void relaxedSignal() const { semaphore_.relaxedSignal(); }

  // Takes a signal if one is there. Returns whether it did.
  MSCCLPP_DEVICE_INLINE bool poll() const { return semaphore_.poll(); }

  // Waits for a signal. Returns true if it came, and false after an abort or after maxSpinCount polls.
  MSCCLPP_DEVICE_INLINE bool wait(int64_t maxSpinCount = -1) const { return semaphore_.wait(maxSpinCount); }

  // Waits for a signal. The wait orders no memory.
  MSCCLPP_DEVICE_INLINE bool relaxedWait(int64_t maxSpinCount = -1) const {
    return semaphore_.relaxedWait(maxSpinCount);
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// The tag of `DeviceHandle<BaseMemoryChannel>`.
struct BaseMemoryChannel {
  using DeviceHandle = BaseMemoryChannelDeviceHandle;
};

// The properties of the link that a MemoryChannelDeviceHandle has.
enum MemoryChannelFlag : uint32_t {
  // A line of 128 bytes that a warp stores in one instruction arrives whole: LL128 packets are allowed.
  MemoryChannelLines = 1,
};

// A channel that also moves data. 72 bytes; the rules of the semaphore's handle (copies of it, the memory it may be in)
// hold for it too.
//
// Offsets and sizes are in bytes and are not checked: the caller keeps them inside of the memories given to the host's
// object. `threadId` and `numThreads` number the threads that share the work of one call: all of them make it, with the
// same arguments otherwise. They may be a thread, a warp, a block or the grid.
//
// No call synchronises the threads that make it, and no put or get synchronises with the peer: a barrier of the threads
// that put is needed between a put and its signal, and one more between a wait and reading the data. Packets need
// neither.
struct MemoryChannelDeviceHandle : BaseMemoryChannelDeviceHandle {
  // The peer's memory as mapped here: its buffer, or its packet buffer if this channel sends packets.
  void* dst_;
  // This device's memory.
  void* src_;
  // The buffer in this device's memory where the peer's packets arrive; null without one.
  void* packetBuffer_;
  // The MemoryChannelFlag values, or-ed.
  uint32_t flags_;
  uint32_t reserved_;

  MemoryChannelDeviceHandle() = default;
  // Makes a handle of its parts, without MemoryChannelLines.
  MSCCLPP_HOST_DEVICE_INLINE MemoryChannelDeviceHandle(MemoryDevice2DeviceSemaphoreDeviceHandle semaphore, void* dst,
                                                       void* src, void* packetBuffer = nullptr)
      : BaseMemoryChannelDeviceHandle(semaphore),
        dst_(dst),
        src_(src),
        packetBuffer_(packetBuffer),
        flags_(0),
        reserved_(0) {}

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Reads the element `index` of the peer's memory.
  template <class T>
  MSCCLPP_DEVICE_INLINE T read(uint64_t index) const {
    return mscclpp::read<T>(dst_, index);
  }

  // Writes the element `index` of the peer's memory.
  template <class T>
  MSCCLPP_DEVICE_INLINE void write(uint64_t index, const T& value) const {
    mscclpp::write<T>(dst_, index, value);
  }

  // Copies from this device's memory at originOffset to the peer's at targetOffset. The template arguments are those of
  // `copy`. The peer may read the data after a signal that follows, after a barrier.
  template <int Alignment = 16, bool CopyRemainder = true>
  MSCCLPP_DEVICE_INLINE void put(uint64_t targetOffset, uint64_t originOffset, uint64_t bytes, uint32_t threadId,
                                 uint32_t numThreads) const {
    // The stores cross the link and nobody waits for them: four loads of local memory in flight keep them coming.
    copy<Alignment, CopyRemainder, 4>(at(dst_, targetOffset), at(src_, originOffset), bytes, threadId, numThreads);
  }
  template <int Alignment = 16, bool CopyRemainder = true>
  MSCCLPP_DEVICE_INLINE void put(uint64_t offset, uint64_t bytes, uint32_t threadId, uint32_t numThreads) const {
    put<Alignment, CopyRemainder>(offset, offset, bytes, threadId, numThreads);
  }

  // Copies from the peer's memory at originOffset to this device's at targetOffset: as with put, the target is where
  // the data goes. The caller must know that the peer has written the data: by a wait for its signal, and a barrier.
  template <int Alignment = 16, bool CopyRemainder = true>
  MSCCLPP_DEVICE_INLINE void get(uint64_t targetOffset, uint64_t originOffset, uint64_t bytes, uint32_t threadId,
                                 uint32_t numThreads) const {
    // The loads cross the link: each thread needs four in flight to fill it.
    copy<Alignment, CopyRemainder, 4>(at(src_, targetOffset), at(dst_, originOffset), bytes, threadId, numThreads);
  }
  template <int Alignment = 16, bool CopyRemainder = true>
  MSCCLPP_DEVICE_INLINE void get(uint64_t offset, uint64_t bytes, uint32_t threadId, uint32_t numThreads) const {
    get<Alignment, CopyRemainder>(offset, offset, bytes, threadId, numThreads);
  }

#if MSCCLPP_BULK_AVAILABLE
  // Puts by bulk copies, where the kernel is compiled for compute capability 9.0. The 32 threads of one warp call it,
  // and move the whole range. Warps that share a message each call it with a range and a stage of their own. 8 warps,
  // each in a block of its own, fill the link, and leave the other multiprocessors free for other work. The data has
  // arrived when it returns: a thread of this warp may signal at once.
  template <uint32_t ChunkBytes, uint32_t Stages>
  MSCCLPP_DEVICE_INLINE void putBulk(uint64_t targetOffset, uint64_t originOffset, uint64_t bytes,
                                     BulkStage<ChunkBytes, Stages>& stage) const {
    copyByBulk(at(dst_, targetOffset), at(src_, originOffset), bytes, stage);
  }
  template <uint32_t ChunkBytes, uint32_t Stages>
  MSCCLPP_DEVICE_INLINE void getBulk(uint64_t targetOffset, uint64_t originOffset, uint64_t bytes,
                                     BulkStage<ChunkBytes, Stages>& stage) const {
    copyByBulk(at(src_, targetOffset), at(dst_, originOffset), bytes, stage);
  }
#endif  // MSCCLPP_BULK_AVAILABLE

  // Sends this device's memory at originOffset as packets to the peer's packet buffer, which `dst_` is then, at
  // targetOffset (of the packets, so for LL16 twice the data's). copyToPackets documents flags, threads, and the calls
  // that are refused (which send nothing, return false, and set StatusRefused); LL128Packet is also refused without
  // MemoryChannelLines.
  template <class PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE bool putPackets(uint64_t targetOffset, uint64_t originOffset, uint64_t bytes,
                                        uint32_t threadId, uint32_t numThreads, uint32_t flag) const {
    if (!allows<PacketType>()) return false;
    return copyToPackets<PacketType>(at(dst_, targetOffset), at(src_, originOffset), bytes, threadId, numThreads,
                                           flag, semaphore_.status);
  }
  template <class PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE bool putPackets(uint64_t offset, uint64_t bytes, uint32_t threadId, uint32_t numThreads,
                                        uint32_t flag) const {
    return putPackets<PacketType>(offset, offset, bytes, threadId, numThreads, flag);
  }

  // Waits for the peer's packets in the packet buffer at targetOffset and writes their data to this device's memory at
  // originOffset. The target is where the peer's packets go, so it is the same number at both ends. copyFromPackets
  // documents the end of the wait and its result; an abort ends this wait and those of the semaphore together.
  template <class PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE bool unpackPackets(uint64_t targetOffset, uint64_t originOffset, uint64_t bytes,
                                           uint32_t threadId, uint32_t numThreads, uint32_t flag,
                                           int64_t maxSpinCount = -1) const {
    if (!allows<PacketType>()) return false;
    return copyFromPackets<PacketType>(at(src_, originOffset), at(packetBuffer_, targetOffset), bytes, threadId,
                                       numThreads, flag, maxSpinCount, semaphore_.status);
  }
  template <class PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE bool unpackPackets(uint64_t offset, uint64_t bytes, uint32_t threadId, uint32_t numThreads,
                                           uint32_t flag, int64_t maxSpinCount = -1) const {
    return unpackPackets<PacketType>(offset, offset, bytes, threadId, numThreads, flag, maxSpinCount);
  }

  // unpackPackets under an older name, in this one form, so that literals of type int select it.
  template <class PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE bool getPackets(uint64_t targetOffset, uint64_t originOffset, uint64_t bytes,
                                        uint32_t threadId, uint32_t numThreads, uint32_t flag,
                                        int64_t maxSpinCount = -1) const {
    return unpackPackets<PacketType>(targetOffset, originOffset, bytes, threadId, numThreads, flag, maxSpinCount);
  }

  // Waits for the packet number `index` of the packet buffer and returns its data. One thread; LL8 and LL16 only. It
  // cannot say that it gave up, so it ends early only with an abort, and then returns zeros. maxSpinCount counts only
  // where DEBUG_BUILD is defined: there the bound, and an abort too, fail the kernel. A kernel that is to notice calls
  // tryUnpackPacket.
  template <class PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE typename PacketType::Payload unpackPacket(uint64_t index, uint32_t flag,
                                                                  [[maybe_unused]] int64_t maxSpinCount = -1) const {
    typename PacketType::Payload value = {};
#if defined(DEBUG_BUILD)
    MSCCLPP_ASSERT_DEVICE(tryUnpackPacket<PacketType>(index, flag, value, maxSpinCount), "the packet has not come");
#else
    (void)tryUnpackPacket<PacketType>(index, flag, value, -1);
#endif
    return value;
  }

  // Waits for a packet like unpackPacket, and writes the data to `value`. Returns whether the packet came: false after
  // an abort or after maxSpinCount polls, if that is not negative.
  template <class PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE bool tryUnpackPacket(uint64_t index, uint32_t flag, typename PacketType::Payload& value,
                                             int64_t maxSpinCount = -1) const {
    return static_cast<const PacketType*>(packetBuffer_)[index].receive(flag, value, maxSpinCount, semaphore_.status);
  }

 private:
  MSCCLPP_DEVICE_INLINE static uint8_t* at(void* memory, uint64_t offset) {
    return static_cast<uint8_t*>(memory) + offset;
  }

  template <class PacketType>
  MSCCLPP_DEVICE_INLINE bool allows() const {
    if constexpr (sizeof(PacketType) == sizeof(LL128Packet)) {
      if ((flags_ & MemoryChannelLines) == 0) {
        detail::refuse(semaphore_.status);
        return false;
      }
    }
    return true;
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

static_assert(sizeof(MemoryChannelDeviceHandle) == 72, "the host fills in the same structure");

// The tag of `DeviceHandle<MemoryChannel>`.
struct MemoryChannel {
  using DeviceHandle = MemoryChannelDeviceHandle;
};

// The older names, and the tags of their `DeviceHandle`.
using SmChannelDeviceHandle = MemoryChannelDeviceHandle;
using SimpleSmChannelDeviceHandle = MemoryChannelDeviceHandle;
using SmChannel = MemoryChannel;
using SimpleSmChannel = MemoryChannel;

}  // namespace mscclpp

#endif  // MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_
