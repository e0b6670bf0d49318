// Several names for the same memory, where the compiler has no anonymous structs, as NVRTC. There a struct has its
// words as ordinary members, and an anonymous union, in the place of the first, adds the names that stand for several
// words.

#ifndef MSCCLPP_OVERLAY_DEVICE_HPP_
#define MSCCLPP_OVERLAY_DEVICE_HPP_

#include "mscclpp/device.hpp"

#if defined(__CUDACC_RTC__)

namespace mscclpp {
namespace detail {

// The T that begins here, in a struct of the same size. It is read and assigned as a whole.
template <class T>
struct OverlayOf {
  uint32_t first_;

  OverlayOf() = default;
  MSCCLPP_DEVICE_INLINE operator T() const { return *reinterpret_cast<const T*>(this); }
  MSCCLPP_DEVICE_INLINE OverlayOf& operator=(const T& value) {
    *reinterpret_cast<T*>(this) = value;
    return *this;
  }
  MSCCLPP_DEVICE_INLINE OverlayOf& operator=(const OverlayOf& other) { return *this = static_cast<T>(other); }
};

// `Bits` bits from bit `Bit` on of word `Word`, counted in words of 8 bytes that begin here.
template <unsigned int Word, unsigned int Bit, unsigned int Bits>
struct OverlayBits {
  uint32_t first_;

  OverlayBits() = default;
  MSCCLPP_DEVICE_INLINE operator uint64_t() const { return word()[Word] >> Bit & mask(); }
  MSCCLPP_DEVICE_INLINE OverlayBits& operator=(uint64_t value) {
    uint64_t* const at = const_cast<uint64_t*>(word()) + Word;
    *at = (*at & ~(mask() << Bit)) | (value & mask()) << Bit;
    return *this;
  }
  MSCCLPP_DEVICE_INLINE OverlayBits& operator=(const OverlayBits& other) {
    return *this = static_cast<uint64_t>(other);
  }

 private:
  MSCCLPP_DEVICE_INLINE static constexpr uint64_t mask() { return (static_cast<uint64_t>(1) << Bits) - 1; }
  MSCCLPP_DEVICE_INLINE const uint64_t* word() const { return reinterpret_cast<const uint64_t*>(this); }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // __CUDACC_RTC__

#endif  // MSCCLPP_OVERLAY_DEVICE_HPP_
