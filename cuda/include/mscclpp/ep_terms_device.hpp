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
template <uint32_t Type>
struct EpTermSums {
  using N = Number<Type>;
  // The numbers in a word of 8 bytes.
  static constexpr uint32_t Count = 8 / N::Bytes;

  const EpHandle& ep;
  EpBlock b;
  EpTerms& terms;

  MSCCLPP_DEVICE_INLINE EpTermSums(const EpHandle& ep, uint32_t microBatch, EpTerms& terms)
      : ep(ep), b(ep, microBatch, EpCombining), terms(terms) {}

  // The units of a row.
  MSCCLPP_DEVICE_INLINE uint32_t units() const { return (ep.resultBytes + EpUnitBytes - 1) / EpUnitBytes; }

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
      sums[j] = fusedMultiplyAdd(weight, N::widen(word >> (8 * N::Bytes * j)), sums[j]);
    }
  }
  MSCCLPP_DEVICE_INLINE static uint64_t narrowed(const float (&sums)[Count]) {
    uint64_t word = 0;
#pragma unroll
    for (uint32_t j = 0; j < Count; ++j) word |= N::narrow(sums[j]) << (8 * N::Bytes * j);
    return word;
  }

  // The sums of the numbers of a unit that a thread has: EpVectorsOfUnit vectors, of two words each.
  using UnitSums = float[EpVectorsOfUnit][2][Count];
  // The number of vector v of those that the thread has of a unit.
  MSCCLPP_DEVICE_INLINE uint32_t vectorAt(uint32_t unit, uint32_t v) const { return (unit * EpVectorsOfUnit + v) * 32 + b.lane; }

  // Adds a unit of the terms of the warp. EpTermsAtOnce terms are under way at once. If they are `Taken` out of what comes as
  // packets, it waits for them, and returns false in all threads of the warp if a wait was given up.
  template <bool Taken>
  MSCCLPP_DEVICE_INLINE bool addTerms(UnitSums& sums, uint32_t unit) const {
    const uint32_t n = terms.count;
#pragma unroll 1
    for (uint32_t j = 0; j < n; j += EpTermsAtOnce) {
      Bytes16 came[EpTermsAtOnce][EpVectorsOfUnit];
      if constexpr (Taken) {
        if (!takeTerms(j, n, unit, came)) return false;
      } else {
#pragma unroll
        for (uint32_t u = 0; u < EpTermsAtOnce; ++u) loadTerm(termAt(j, u, n), unit, came[u]);
      }
#pragma unroll
      for (uint32_t u = 0; u < EpTermsAtOnce; ++u) {
        if (j + u >= n) break;
        const float weight = terms.of[j + u].weight;
#pragma unroll
        for (uint32_t v = 0; v < EpVectorsOfUnit; ++v) {
          addTo(sums[v][0], weight, came[u][v].low);
          addTo(sums[v][1], weight, came[u][v].high);
        }
      }
    }
    return true;
  }
  // Term j + u of n; in the place of one that there is not, one that there is.
  MSCCLPP_DEVICE_INLINE const EpTerm& termAt(uint32_t j, uint32_t u, uint32_t n) const { return terms.of[j + u < n ? j + u : j]; }
  // Loads a unit of a term that is here. Behind its end it loads its beginning.
  MSCCLPP_DEVICE_INLINE void loadTerm(const EpTerm& term, uint32_t unit, Bytes16 (&came)[EpVectorsOfUnit]) const {
#pragma unroll
    for (uint32_t v = 0; v < EpVectorsOfUnit; ++v) {
      const uint32_t i = vectorAt(unit, v);
      came[v] = vectorOf(term.row, ep.resultBytes, i * 16 < ep.resultBytes ? i : 0);
    }
  }
  // Takes a unit of the terms from j on, which come as packets, or are here. Returns false, in all threads of the warp, if a
  // wait was given up.
  MSCCLPP_DEVICE_INLINE bool takeTerms(uint32_t j, uint32_t n, uint32_t unit,
                                       Bytes16 (&came)[EpTermsAtOnce][EpVectorsOfUnit]) const {
    const EpRowPackets lines(b);
    const uint32_t first = vectorAt(unit, 0);
    EpRowPackets::Looks<EpVectorsOfUnit> seen[EpTermsAtOnce];
    const auto look = [&] {
      bool missing = false;
      warpSync();
#pragma unroll
      for (uint32_t u = 0; u < EpTermsAtOnce; ++u) {
        const EpTerm& term = termAt(j, u, n);
        if (term.of != EpOfNobody) {
          lines.look(term.row, ep.resultBytes, first, seen[u]);
        } else {
          loadTerm(term, unit, seen[u].vectors);
        }
      }
#pragma unroll
      for (uint32_t u = 0; u < EpTermsAtOnce; ++u) {
        missing = missing || (termAt(j, u, n).of != EpOfNobody && !lines.areThere(ep.resultBytes, first, seen[u]));
      }
      return !warpAny(missing);
    };
    const auto wait = [&] {
      bool came = true;
#pragma unroll 1
      for (uint32_t u = 0; u < EpTermsAtOnce && came; ++u) {
        const EpTerm& term = termAt(j, u, n);
        came = term.of == EpOfNobody || epWaitForLines(lines, term.row, ep.resultBytes, first, EpVectorsOfUnit, ep, term.of);
      }
      return came;
    };
    if (!epLookUntil(look, wait)) return false;
#pragma unroll
    for (uint32_t u = 0; u < EpTermsAtOnce; ++u) {
      if (termAt(j, u, n).of != EpOfNobody) lines.complete(seen[u]);
#pragma unroll
      for (uint32_t v = 0; v < EpVectorsOfUnit; ++v) came[u][v] = seen[u].vectors[v];
    }
    return true;
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_TERMS_DEVICE_HPP_
