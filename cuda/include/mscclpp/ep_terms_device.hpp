// The terms of a sum, which are rows of experts or sums of ranks, and how a warp adds them up. For the library's own use.

#ifndef MSCCLPP_EP_TERMS_DEVICE_HPP_
#define MSCCLPP_EP_TERMS_DEVICE_HPP_

#include "mscclpp/ep_packets_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// A term of a sum: its row and weight. On the experts' rank, also the number of the choice; on the token's rank, the rank whose
// packets the row is, if it has not come by stores.
struct EpTerm {
  const uint8_t* row;
  float weight;
  uint32_t of;
};
constexpr uint32_t EpOfNobody = ~0u;

// The terms that a warp sums up, in shared memory.
struct EpTerms {
  EpTerm of[EpMaxTopK];
  uint32_t count;
};

// The sums of a warp's terms, as a block of a combine makes them.
template <uint32_t Type, bool IsAligned>
struct EpTermSums {
  using N = Number<Type>;
  // The numbers in a word of 8 bytes.
  static constexpr uint32_t Count = 8 / N::Bytes;

  const EpHandle& ep;
  EpBlock b;
  EpTerms& terms;

  MSCCLPP_DEVICE_INLINE EpTermSums(const EpHandle& ep, uint32_t microBatch, EpTerms& terms)
      : ep(ep), b(ep, microBatch, EpCombining), terms(terms) {}

  // The units of a row. Of a unit, a thread of the warp has `Vectors` vectors.
  template <uint32_t Vectors>
  MSCCLPP_DEVICE_INLINE uint32_t units() const {
    constexpr uint32_t Bytes = 32 * 16 * Vectors;
    return (ep.resultBytes + Bytes - 1) / Bytes;
  }

  // Appends a term of each thread for which `has` is true. Returns how many there are then.
  MSCCLPP_DEVICE_INLINE uint32_t addTerm(bool has, const EpTerm& term, uint32_t count) const {
    const uint32_t sum = sumUpTo(has ? 1 : 0, b.lane);
    if (has) terms.of[count + sum - 1] = term;
    count += warpShuffle(sum, 31);
    if (b.lane == 0) terms.count = count;
    return count;
  }

  MSCCLPP_DEVICE_INLINE static void addTo(float (&sums)[Count], float weight, uint64_t word) {
#pragma unroll
    for (uint32_t j = 0; j < Count; ++j) {
      const uint32_t half = static_cast<uint32_t>(j * N::Bytes < 4 ? word : word >> 32);
      sums[j] = fusedMultiplyAdd(weight, N::widen(half >> (8 * N::Bytes * j % 32)), sums[j]);
    }
  }
  MSCCLPP_DEVICE_INLINE static uint64_t narrowed(const float (&sums)[Count]) {
    uint32_t halves[2];
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      if constexpr (N::Bytes == 2) {
        halves[half] = narrowTwo<Type>(sums[half * 2], sums[half * 2 + 1]);
      } else {
        halves[half] = static_cast<uint32_t>(N::narrow(sums[half]));
      }
    }
    return halves[0] | static_cast<uint64_t>(halves[1]) << 32;
  }

  // The number of vector v of those that the thread has of a unit.
  template <uint32_t Vectors>
  MSCCLPP_DEVICE_INLINE uint32_t vectorAt(uint32_t unit, uint32_t v) const {
    return (unit * Vectors + v) * 32 + b.lane;
  }

  // Adds a unit of the terms of the warp to the sums of its vectors, of two words each. EpTermVectorsAtOnce vectors are under way
  // at once. If they are `Taken` out of what comes as packets, it waits for them, and returns false in all threads of the warp
  // if a wait was given up.
  template <bool Taken, uint32_t Vectors>
  MSCCLPP_DEVICE_INLINE bool addTerms(float (&sums)[Vectors][2][Count], uint32_t unit) const {
    constexpr uint32_t AtOnce = EpTermVectorsAtOnce / Vectors;
    const uint32_t n = terms.count;
    uint32_t j = 0;
    if constexpr (Taken) {
#pragma unroll 1
      for (; j < n; j += AtOnce) {
        Bytes16 came[AtOnce][Vectors];
        if (!takeTerms(j, n, unit, came)) return false;
#pragma unroll
        for (uint32_t u = 0; u < AtOnce && j + u < n; ++u) addUnit(sums, terms.of[j + u].weight, came[u]);
      }
    } else {
#pragma unroll 1
      for (; j + AtOnce <= n; j += AtOnce) loadAndAdd<AtOnce>(sums, unit, j);
      if (AtOnce > 2 && j + 2 <= n) {
        loadAndAdd<2>(sums, unit, j);
        j += 2;
      }
      // Fewer than two are left.
      if (j < n) loadAndAdd<1>(sums, unit, j);
    }
    return true;
  }
  template <uint32_t Vectors>
  MSCCLPP_DEVICE_INLINE static void addUnit(float (&sums)[Vectors][2][Count], float weight, const Bytes16 (&came)[Vectors]) {
#pragma unroll
    for (uint32_t v = 0; v < Vectors; ++v) {
      addTo(sums[v][0], weight, came[v].low);
      addTo(sums[v][1], weight, came[v].high);
    }
  }
  // Adds so many terms, from j on, which are under way at once.
  template <uint32_t Some, uint32_t Vectors>
  MSCCLPP_DEVICE_INLINE void loadAndAdd(float (&sums)[Vectors][2][Count], uint32_t unit, uint32_t j) const {
    Bytes16 came[Some][Vectors];
#pragma unroll
    for (uint32_t u = 0; u < Some; ++u) loadTerm(terms.of[j + u], unit, came[u]);
#pragma unroll
    for (uint32_t u = 0; u < Some; ++u) addUnit(sums, terms.of[j + u].weight, came[u]);
  }
  // Term j + u of n; in the place of one that there is not, one that there is.
  MSCCLPP_DEVICE_INLINE const EpTerm& termAt(uint32_t j, uint32_t u, uint32_t n) const { return terms.of[j + u < n ? j + u : j]; }
  // Loads a unit of a term that is here. Behind its end it loads its beginning.
  template <uint32_t Vectors>
  MSCCLPP_DEVICE_INLINE void loadTerm(const EpTerm& term, uint32_t unit, Bytes16 (&came)[Vectors]) const {
    const uint8_t* const row = term.row;
#pragma unroll
    for (uint32_t v = 0; v < Vectors; ++v) {
      const uint32_t i = vectorAt<Vectors>(unit, v);
      came[v] = loadVector<IsAligned>(row, ep.resultBytes, i * 16 < ep.resultBytes ? i : 0);
    }
  }
  // Takes a unit of the terms from j on, which come as packets, or are here. Returns false, in all threads of the warp, if a
  // wait was given up.
  template <uint32_t AtOnce, uint32_t Vectors>
  MSCCLPP_DEVICE_INLINE bool takeTerms(uint32_t j, uint32_t n, uint32_t unit, Bytes16 (&came)[AtOnce][Vectors]) const {
    const EpRowPackets lines(b);
    const uint32_t first = vectorAt<Vectors>(unit, 0);
    EpRowPackets::Looks<Vectors> seen[AtOnce];
    const auto look = [&] {
      bool missing = false;
      warpSync();
#pragma unroll
      for (uint32_t u = 0; u < AtOnce; ++u) {
        const EpTerm& term = termAt(j, u, n);
        if (term.of != EpOfNobody) {
          lines.look(term.row, ep.resultBytes, first, seen[u]);
        } else {
          loadTerm(term, unit, seen[u].vectors);
        }
      }
#pragma unroll
      for (uint32_t u = 0; u < AtOnce; ++u) {
        missing = missing || (termAt(j, u, n).of != EpOfNobody && !lines.areThere(ep.resultBytes, first, seen[u]));
      }
      return !warpAny(missing);
    };
    const auto wait = [&] {
      bool came = true;
#pragma unroll 1
      for (uint32_t u = 0; u < AtOnce && came; ++u) {
        const EpTerm& term = termAt(j, u, n);
        came = term.of == EpOfNobody || epWaitForLines(lines, term.row, ep.resultBytes, first, Vectors, ep, term.of);
      }
      return came;
    };
    if (!epLookUntil(look, wait)) return false;
#pragma unroll
    for (uint32_t u = 0; u < AtOnce; ++u) {
      if (termAt(j, u, n).of != EpOfNobody) lines.complete(seen[u]);
#pragma unroll
      for (uint32_t v = 0; v < Vectors; ++v) came[u][v] = seen[u].vectors[v];
    }
    return true;
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_TERMS_DEVICE_HPP_
