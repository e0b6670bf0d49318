// A copy of a few KiB by one thread, as fast as one thread can: several loads are under way before the first is stored.

#ifndef MSCCLPP_THREAD_COPY_DEVICE_HPP_
#define MSCCLPP_THREAD_COPY_DEVICE_HPP_

#include "mscclpp/access_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The accesses by which the calling thread copies words of 8 and of 16 bytes. The stores are strong, so that each 8
// bytes arrive whole: the data may be packets, which the peer polls while they come.
struct Words8 {
  using Word = uint64_t;
  MSCCLPP_DEVICE_INLINE static Word load(const uint8_t* from) { return load8(from); }
  MSCCLPP_DEVICE_INLINE static void store(uint8_t* to, Word word) {
    detail::store<MemoryOrder::Relaxed, MemoryScope::System>(reinterpret_cast<uint64_t*>(to), word);
  }
};
struct Words16 {
  using Word = Bytes16;
  MSCCLPP_DEVICE_INLINE static Word load(const uint8_t* from) { return load16(from); }
  MSCCLPP_DEVICE_INLINE static void store(uint8_t* to, Word word) { storePair(to, word); }
};

// Copies groups of `Count` words as long as `left` has as many, and counts `left` down; all loads of a group are under
// way before its first store.
template <class Words, uint32_t Count>
MSCCLPP_DEVICE_INLINE void copyGroupsByThread(uint8_t*& dst, const uint8_t*& src, uint64_t& left) {
  constexpr uint32_t Size = sizeof(typename Words::Word);
#pragma unroll 1
  for (; left >= Count; left -= Count) {
    typename Words::Word words[Count];
#pragma unroll
    for (uint32_t i = 0; i < Count; ++i) words[i] = Words::load(src + i * Size);
#pragma unroll
    for (uint32_t i = 0; i < Count; ++i) Words::store(dst + i * Size, words[i]);
    dst += Count * Size;
    src += Count * Size;
  }
}

// Copies `count` words; both addresses are multiples of their size.
template <class Words>
MSCCLPP_DEVICE_INLINE void copyWordsByThread(uint8_t* dst, const uint8_t* src, uint64_t count) {
  copyGroupsByThread<Words, 16>(dst, src, count);
  copyGroupsByThread<Words, 4>(dst, src, count);
  copyGroupsByThread<Words, 1>(dst, src, count);
}

// Copies at most 16 bytes, in accesses of 8, 4 and 1 as the address allows; both addresses are the same modulo 8.
MSCCLPP_DEVICE_INLINE void copyEdgeByThread(uint8_t* dst, const uint8_t* src, uint64_t bytes) {
#pragma unroll 1
  while (bytes != 0) {
    uint32_t size = 1;
    if (bytes >= 8 && reinterpret_cast<uintptr_t>(dst) % 8 == 0) {
      Words8::store(dst, Words8::load(src));
      size = 8;
    } else if (bytes >= 4 && reinterpret_cast<uintptr_t>(dst) % 4 == 0) {
      store4(dst, load4(src));
      size = 4;
    } else {
      store1(dst, load1(src));
    }
    dst += size;
    src += size;
    bytes -= size;
  }
}

}  // namespace detail

// Copies `bytes` bytes from `src` to `dst`, which do not overlap and are the same modulo 8, both in global memory: this
// device's, or a peer's as mapped here. The calling thread does all of it, and touches no byte outside of the ranges.
MSCCLPP_DEVICE_INLINE void copyByThread(uint8_t* dst, const uint8_t* src, uint64_t bytes) {
  // A flag or a packet skips the checks that a long copy needs, because they are visible in its time.
  if (bytes <= 16) {
    if (bytes == 16 && (reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src)) % 16 == 0) {
      detail::Words16::store(dst, detail::Words16::load(src));
    } else {
      detail::copyEdgeByThread(dst, src, bytes);
    }
    return;
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(dst);
  const bool sixteen = (address ^ reinterpret_cast<uintptr_t>(src)) % 16 == 0;
  uint64_t done = (0 - address) % 8;
  detail::copyEdgeByThread(dst, src, done);
  if (sixteen) {
    if ((address + done) % 16 != 0) {
      detail::Words8::store(dst + done, detail::Words8::load(src + done));
      done += 8;
    }
    const uint64_t count = (bytes - done) / 16;
    detail::copyWordsByThread<detail::Words16>(dst + done, src + done, count);
    done += count * 16;
  }
  const uint64_t count = (bytes - done) / 8;
  detail::copyWordsByThread<detail::Words8>(dst + done, src + done, count);
  done += count * 8;
  detail::copyEdgeByThread(dst + done, src + done, bytes - done);
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_THREAD_COPY_DEVICE_HPP_
