// Copies of parts of messages by the threads of a block. For the library's own use.

#ifndef MSCCLPP_COLLECTIVE_COPY_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_COPY_DEVICE_HPP_

#include "mscclpp/collective_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The number of vectors that a thread has under way at once.
constexpr uint32_t VectorsInFlight = 4;

// Lets the threads of a block move vectors: first by `several(i, step)`, which moves VectorsInFlight from i on, `step`
// apart, where all of them are whole and `aligned`, then by `one(i)`.
template <class Several, class One>
MSCCLPP_DEVICE_INLINE void forVectors(uint32_t bytes, bool aligned, uint32_t thread, uint32_t threads, Several several,
                                      One one) {
  uint32_t i = thread;
  if (aligned) {
#pragma unroll 1
    for (; (i + (VectorsInFlight - 1) * threads + 1) * 16 <= bytes; i += VectorsInFlight * threads) several(i, threads);
  }
#pragma unroll 1
  for (; i * 16 < bytes; i += threads) one(i);
}

// Sends a word as it is.
struct AsItIs {
  MSCCLPP_DEVICE_INLINE uint64_t operator()(uint64_t word) const { return word; }
};

#if defined(MSCCLPP_DEVICE_SIM)
template <class Sent>
struct IsAsItIs {
  static constexpr bool Value = false;
};
template <>
struct IsAsItIs<AsItIs> {
  static constexpr bool Value = true;
};

// On a simulated device each thread has a contiguous range of the whole vectors, so that it can be done in one call.
struct Stretch {
  uint32_t begin, end;
  MSCCLPP_DEVICE_INLINE Stretch(uint32_t bytes, uint32_t thread, uint32_t threads) {
    const uint32_t vectors = bytes / 16, share = (vectors + threads - 1) / threads;
    begin = thread * share < vectors ? thread * share : vectors;
    end = vectors - begin < share ? vectors : begin + share;
  }
};
MSCCLPP_DEVICE_INLINE void copyStretch(uint8_t* to, const uint8_t* from, uint32_t bytes, uint32_t thread, uint32_t threads) {
  const Stretch own(bytes, thread, threads);
  if (mscclpp_sim::copyWords(to + own.begin * 16, from + own.begin * 16, (own.end - own.begin) * 2)) return;
  for (uint32_t i = own.begin; i < own.end; ++i) store16(to + i * 16, load16(from + i * 16));
}
#endif

// Copies `bytes` bytes, fewer than 2^31, and applies `sent` to their words. `toBytes` and `fromBytes` limit how far the
// last vector may be written and read: to the end of a message, or beyond it in a place of the scratch, which ends at a
// multiple of 16.
template <class Sent>
MSCCLPP_DEVICE_INLINE void copyPart(uint8_t* to, const uint8_t* from, uint32_t bytes, uint32_t toBytes, uint32_t fromBytes,
                                    uint32_t thread, uint32_t threads, Sent sent) {
#if defined(MSCCLPP_DEVICE_SIM)
  if constexpr (IsAsItIs<Sent>::Value) {
    if (isAligned<16>(to) && isAligned<16>(from)) {
      copyStretch(to, from, bytes, thread, threads);
      const uint32_t whole = bytes / 16;
      if (thread == 0 && bytes % 16 != 0) storeVectorOf(to, toBytes, whole, vectorOf(from, fromBytes, whole));
      return;
    }
  }
#endif
  forVectors(
      bytes, isAligned<16>(to) && isAligned<16>(from), thread, threads,
      [=](uint32_t i, uint32_t step) {
        Bytes16 v[VectorsInFlight];
#pragma unroll
        for (uint32_t u = 0; u < VectorsInFlight; ++u) {
          v[u] = load16(from + (i + u * step) * 16);
        }
#pragma unroll
        for (uint32_t u = 0; u < VectorsInFlight; ++u) {
          store16(to + (i + u * step) * 16, Bytes16{sent(v[u].low), sent(v[u].high)});
        }
      },
      [=](uint32_t i) {
        const Bytes16 v = vectorOf(from, fromBytes, i);
        storeVectorOf(to, toBytes, i, Bytes16{sent(v.low), sent(v.high)});
      });
}
// Three copies: bytes into a place, which begins at a multiple of 16 and may be written up to one; bytes out of a
// place; and bytes from a message to another.
template <class Sent>
MSCCLPP_DEVICE_INLINE void putBytes(uint8_t* place, const uint8_t* from, uint32_t bytes, uint32_t thread,
                                    uint32_t threads, Sent sent) {
  copyPart(place, from, bytes, bytes + 16, bytes, thread, threads, sent);
}
MSCCLPP_DEVICE_INLINE void takeBytes(uint8_t* to, const uint8_t* place, uint32_t bytes, uint32_t thread,
                                     uint32_t threads) {
  copyPart(to, place, bytes, bytes, bytes + 16, thread, threads, AsItIs());
}
MSCCLPP_DEVICE_INLINE void copyBytes(uint8_t* to, const uint8_t* from, uint32_t bytes, uint32_t thread,
                                     uint32_t threads) {
  copyPart(to, from, bytes, bytes, bytes, thread, threads, AsItIs());
}

// Copies bytes between any addresses. Not inlined, because it seldom runs.
MSCCLPP_DEVICE_NOINLINE void copyAny(uint8_t* to, const uint8_t* from, uint32_t bytes, uint32_t thread, uint32_t threads) {
  copyBytes(to, from, bytes, thread, threads);
}

// The number of parts from which a thread moves vectors by turns, and how many of each it has under way at once.
constexpr uint32_t PartsAtOnce = 3, VectorsOfPart = 2;

// A part of a message and where it goes.
struct PartCopy {
  uint8_t* to;
  const uint8_t* from;
  uint32_t bytes;
};

// Copies a part, by all threads of a block. The vectors that a warp has under way lie next to each other.
MSCCLPP_DEVICE_INLINE void copyByWarps(const PartCopy& part) {
  const uint32_t thread = threadOfBlock(), threads = threadsOfBlock();
  bool aligned = isAligned<16>(part.to) && isAligned<16>(part.from);
#if defined(MSCCLPP_DEVICE_SIM)
  aligned = false;
#endif
  constexpr uint32_t Apart = 32 * 16;
  const uint32_t step = VectorsInFlight * threads * 16, here = thread / 32 * VectorsInFlight * Apart + thread % 32 * 16;
  uint32_t done = 0;
#pragma unroll 1
  for (; aligned && done + step <= part.bytes; done += step) {
    Bytes16 v[VectorsInFlight];
#pragma unroll
    for (uint32_t u = 0; u < VectorsInFlight; ++u) v[u] = load16(part.from + (done + here) + u * Apart);
#pragma unroll
    for (uint32_t u = 0; u < VectorsInFlight; ++u) store16(part.to + (done + here) + u * Apart, v[u]);
  }
  if (done < part.bytes) copyAny(part.to + done, part.from + done, part.bytes - done, thread, threads);
}

// Copies several parts by turns, by all threads of a block: as much as all of them have, and then the rest of each. A part
// may have no bytes.
template <uint32_t Parts>
MSCCLPP_DEVICE_INLINE void copyByTurns(const PartCopy (&parts)[Parts]) {
  const uint32_t thread = threadOfBlock(), threads = threadsOfBlock();
  uint32_t common = parts[0].bytes;
  bool byTurns = true;
#pragma unroll
  for (uint32_t q = 0; q < Parts; ++q) {
    if (parts[q].bytes < common) common = parts[q].bytes;
    byTurns = byTurns && isAligned<16>(parts[q].to) && isAligned<16>(parts[q].from);
  }
#if defined(MSCCLPP_DEVICE_SIM)
  byTurns = false;
#endif
  // The vectors of a warp lie next to each other: so their addresses differ by a constant, and take one register. All
  // loads are made, whatever the parts' lengths: a conditional one would keep its registers from turn to turn.
  constexpr uint32_t Apart = 32 * 16;
  const uint32_t step = VectorsOfPart * threads * 16, here = thread / 32 * VectorsOfPart * Apart + thread % 32 * 16;
  uint32_t done = 0;
#pragma unroll 1
  for (; byTurns && done + step <= common; done += step) {
    Bytes16 v[Parts][VectorsOfPart];
#pragma unroll
    for (uint32_t q = 0; q < Parts; ++q) {
#pragma unroll
      for (uint32_t u = 0; u < VectorsOfPart; ++u) v[q][u] = load16(parts[q].from + (done + here) + u * Apart);
    }
#pragma unroll
    for (uint32_t q = 0; q < Parts; ++q) {
#pragma unroll
      for (uint32_t u = 0; u < VectorsOfPart; ++u) store16(parts[q].to + (done + here) + u * Apart, v[q][u]);
    }
  }
#pragma unroll
  for (uint32_t q = 0; q < Parts; ++q) {
    if (done < parts[q].bytes) copyAny(parts[q].to + done, parts[q].from + done, parts[q].bytes - done, thread, threads);
  }
}

// Copies a part for each peer p: `part(p)`. Blocks begin with different peers, so that their stores go to all peers at any time.
// `ByTurns`: a thread moves vectors for several peers by turns. In kernels that also have the loops of sums, that is faster.
template <bool ByTurns, class Part>
MSCCLPP_DEVICE_INLINE void copyForPeers(const CollectiveBlock& b, Part part) {
  if constexpr (ByTurns) {
#pragma unroll 1
    for (uint32_t n = 1; n < b.ranks; n += PartsAtOnce) {
      PartCopy parts[PartsAtOnce] = {};
#pragma unroll
      for (uint32_t u = 0; u < PartsAtOnce; ++u) {
        if (n + u < b.ranks) parts[u] = part(b.peer(n + u));
      }
      copyByTurns(parts);
    }
  } else {
    const uint32_t peers = b.ranks - 1;
    uint32_t n = b.block % peers;
#pragma unroll 1
    for (uint32_t i = 0; i < peers; ++i) {
      copyByWarps(part(b.peer(1 + n)));
      n = n + 1 < peers ? n + 1 : 0;
    }
  }
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_COPY_DEVICE_HPP_
