// Copies by many threads together, of any number of bytes between any two addresses; also into packets and out of them.

#ifndef MSCCLPP_COPY_DEVICE_HPP_
#define MSCCLPP_COPY_DEVICE_HPP_

#include "mscclpp/access_device.hpp"
#include "mscclpp/packet_copy_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Copies bytes begin to end - 1, one at a time.
MSCCLPP_DEVICE_INLINE void copyBytes(uint8_t* dst, const uint8_t* src, uint64_t begin, uint64_t end, uint32_t threadId,
                                     uint32_t numThreads) {
#pragma unroll 1
  for (uint64_t i = begin + threadId; i < end; i += numThreads) store1(dst + i, load1(src + i));
}

// Copies `count` times 16 bytes; both addresses are multiples of 16. Each thread has InFlight loads under way before it
// stores the first, and for the rest as many as are left.
template <uint32_t InFlight>
MSCCLPP_DEVICE_INLINE void copyVectors(uint8_t* dst, const uint8_t* src, uint64_t count, uint32_t threadId,
                                       uint32_t numThreads) {
  const uint64_t stride = numThreads;
  uint64_t i = threadId;
  for (; i + (InFlight - 1) * stride < count; i += InFlight * stride) {
    Bytes16 values[InFlight];
#pragma unroll
    for (uint32_t k = 0; k < InFlight; ++k) values[k] = load16(src + (i + k * stride) * 16);
#pragma unroll
    for (uint32_t k = 0; k < InFlight; ++k) store16(dst + (i + k * stride) * 16, values[k]);
  }
  Bytes16 values[InFlight] = {};
#pragma unroll
  for (uint32_t k = 0; k + 1 < InFlight; ++k) {
    if (i + k * stride < count) values[k] = load16(src + (i + k * stride) * 16);
  }
#pragma unroll
  for (uint32_t k = 0; k + 1 < InFlight; ++k) {
    if (i + k * stride < count) store16(dst + (i + k * stride) * 16, values[k]);
  }
}

// Copies `count` times 16 bytes to a multiple of 16 from any address: each 16 bytes are cut out of the four or five
// aligned words of 4 that hold them. The words may reach up to 3 bytes before `src` and after the end.
MSCCLPP_DEVICE_INLINE void copyShifted(uint8_t* dst, const uint8_t* src, uint64_t count, uint32_t threadId,
                                       uint32_t numThreads) {
  const uint32_t misaligned = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(src) % 4);
  const uint8_t* const words = src - misaligned;
  const uint32_t shift = 8 * misaligned;
#pragma unroll 1
  for (uint64_t i = threadId; i < count; i += numThreads) {
    uint32_t w[5];
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) w[k] = load4(words + i * 16 + k * 4);
    w[4] = shift == 0 ? 0 : load4(words + i * 16 + 16);
    uint64_t halves[2] = {};
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const uint64_t both = w[k] | static_cast<uint64_t>(w[k + 1]) << 32;
      halves[k / 2] |= static_cast<uint64_t>(static_cast<uint32_t>(both >> shift)) << 32 * (k % 2);
    }
    store16(dst + i * 16, Bytes16{halves[0], halves[1]});
  }
}

// Copies between any memories, by accesses for which the hardware finds out the kind of memory.
MSCCLPP_DEVICE_INLINE void copyAnywhere(uint8_t* dst, const uint8_t* src, uint64_t bytes, uint32_t threadId,
                                        uint32_t numThreads) {
  uint64_t done = 0;
  if ((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src)) % 16 == 0) {
    done = bytes / 16 * 16;
    for (uint64_t i = threadId; i < done / 16; i += numThreads) {
      write<Bytes16>(dst, i, read<Bytes16>(src, i));
    }
  } else if ((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src)) % 4 == 0) {
    done = bytes / 4 * 4;
    for (uint64_t i = threadId; i < done / 4; i += numThreads) {
      write<uint32_t>(dst, i, read<uint32_t>(src, i));
    }
  }
  for (uint64_t i = done + threadId; i < bytes; i += numThreads) write<uint8_t>(dst, i, read<uint8_t>(src, i));
}

}  // namespace detail

// Copies `bytes` bytes from `src` to `dst`, which do not overlap. The threads 0 to numThreads - 1 all call it, with the
// same arguments but their `threadId`. Reads and writes no byte outside of the two ranges, with plain accesses: other
// threads see the data after a barrier or a signal.
//
// Any number of bytes at any addresses, in any memory: this device's, a peer's as mapped here, shared memory. It is
// fastest where both are global memory and the two addresses are the same modulo 16; otherwise only the stores are of
// 16 bytes.
//
// Alignment (4, 8 or 16) promises that the caller's offsets are multiples of it; the bases they are added to need not
// be. CopyRemainder = false promises that `bytes` is a multiple of Alignment, which saves the code for the end of the
// copy if Alignment is 16; up to 15 bytes are left out if it is not true. InFlight is the number of loads of 16 bytes
// that each thread has under way.
template <int Alignment = 16, bool CopyRemainder = true, uint32_t InFlight = 4>
MSCCLPP_DEVICE_INLINE void copy(void* dst, const void* src, uint64_t bytes, uint32_t threadId, uint32_t numThreads) {
  static_assert(Alignment == 4 || Alignment == 8 || Alignment == 16, "the alignment is 4, 8 or 16 bytes");
  uint8_t* const to = static_cast<uint8_t*>(dst);
  const uint8_t* const from = static_cast<const uint8_t*>(src);
  const uintptr_t toAddress = reinterpret_cast<uintptr_t>(dst);
  const uintptr_t fromAddress = reinterpret_cast<uintptr_t>(src);
  if (!detail::isGlobal(dst) || !detail::isGlobal(src)) {
    detail::copyAnywhere(to, from, bytes, threadId, numThreads);
    return;
  }
  if ((toAddress | fromAddress) % 16 == 0) {
    detail::copyVectors<InFlight>(to, from, bytes / 16, threadId, numThreads);
    if constexpr (CopyRemainder || Alignment != 16) {
      detail::copyBytes(to, from, bytes / 16 * 16, bytes, threadId, numThreads);
    }
    return;
  }
  // The bytes before the first multiple of 16 that is written by 16 bytes.
  uint64_t head = (0 - toAddress) % 16;
  const bool shifted = (toAddress ^ fromAddress) % 16 != 0;
  // The words around that multiple must lie inside of the source, too: at its start, and, one vector less, at its end.
  if (shifted && head < 3) head += 16;
  const uint64_t margin = shifted ? 3 : 0;
  const uint64_t vectors = bytes < head + margin ? 0 : (bytes - head - margin) / 16;
  const uint64_t tail = vectors == 0 ? 0 : head + vectors * 16;
  if (shifted) {
    detail::copyShifted(to + head, from + head, vectors, threadId, numThreads);
  } else {
    detail::copyVectors<InFlight>(to + head, from + head, vectors, threadId, numThreads);
  }
  if (vectors != 0) detail::copyBytes(to, from, 0, head, threadId, numThreads);
  detail::copyBytes(to, from, tail, bytes, threadId, numThreads);
}

// Copies with a type of 4, 8 or 16 bytes in place of the alignment. `bytes` are bytes here, too.
template <class T, bool CopyRemainder = true>
MSCCLPP_DEVICE_INLINE void copyHelper(void* dst, const void* src, uint64_t bytes, uint32_t threadId,
                                      uint32_t numThreads) {
  copy<static_cast<int>(sizeof(T)), CopyRemainder>(dst, src, bytes, threadId, numThreads);
}

// Copies `numElems` elements from `src` to `dst`, which do not overlap, in any memory. Thread t of numThreads copies
// the elements t, t + numThreads and so on, each by one access if the hardware has one of its size. Plain accesses.
template <class T>
MSCCLPP_DEVICE_INLINE void copy(T* dst, const typename detail::Undeduced<T>::Type* src, uint64_t numElems,
                                uint32_t threadId, uint32_t numThreads) {
  for (uint64_t i = threadId; i < numElems; i += numThreads) write<T>(dst, i, read<T>(src, i));
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COPY_DEVICE_HPP_
