// The part of a dispatch that sends numbers which are quantised on their way. For the library's own use.

#ifndef MSCCLPP_EP_SEND_QUANTISED_DEVICE_HPP_
#define MSCCLPP_EP_SEND_QUANTISED_DEVICE_HPP_

#include "mscclpp/ep_quantise_device.hpp"
#include "mscclpp/ep_routing_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// Sends such numbers, as packets or by stores.
template <bool ByPackets, class Known>
struct EpQuantisedSender : EpRouting<Known> {
  using Block = EpRouting<Known>;
  using Block::b;
  using Block::call;
  using Block::ep;
  using Block::packets;

  const EpRowPackets lines;

  MSCCLPP_DEVICE_INLINE EpQuantisedSender(const EpDispatchBlock<Known>& block, bool few) : Block(block, few), lines(b) {}

  // Calls `use` with each rank of the token and the place that thread has for it. All threads of the warp call it. Each rank
  // begins behind itself, so that they do not all write to one.
  template <class Use>
  MSCCLPP_DEVICE_INLINE void forPlaces(uint64_t places, Use use) const {
    uint32_t r = ep.rank;
#pragma unroll 1
    for (uint32_t n = 0; n < ep.ranks; ++n) {
      r = r + 1 == ep.ranks ? 0 : r + 1;
      const uint64_t place = warpShuffle(places, r);
      if (place != 0) use(r, reinterpret_cast<uint8_t*>(place));
    }
  }

  MSCCLPP_DEVICE_INLINE const uint8_t* numbersOf(uint32_t token) const {
    return call.rows[0] + static_cast<uint64_t>(token) * ep.hidden * 2;
  }
  // Returns the thread's numbers of a step, of which there are `left` bytes at `from`. What there is not is 0.
  MSCCLPP_DEVICE_INLINE static EpNumbers numbersAt(const uint8_t* from, uint32_t left) {
    EpNumbers loaded;
#pragma unroll
    for (uint32_t u = 0; u < 2; ++u) {
      loaded.of[u] = Bytes16{0, 0};
      if (u * 16 < left) loaded.of[u] = loadVector<Known::Call::isAligned>(from, left, u);
    }
    return loaded;
  }
  MSCCLPP_DEVICE_INLINE EpNumbers numbersOfStep(const uint8_t* row, uint32_t step) const {
    const uint32_t bytes = ep.hidden * 2, at = beginOf(step);
    return numbersAt(row + at, at < bytes ? bytes - at : 0);
  }
  // Returns where the thread's numbers of a step begin.
  MSCCLPP_DEVICE_INLINE uint32_t beginOf(uint32_t step) const { return (step * 32 + b.lane) * sizeof(EpNumbers); }

  template <uint32_t Steps>
  MSCCLPP_DEVICE_INLINE void quantiseNumbers(const EpNumbers (&numbers)[Steps], EpQuantised (&made)[Steps]) const {
    if (ep.sourceType == ReduceF16) {
      quantise<ReduceF16>(numbers, ep.quantisation, b.lane, made);
    } else {
      quantise<ReduceBf16>(numbers, ep.quantisation, b.lane, made);
    }
  }
  // Stores each `subs`-th part of a token's numbers, from `part` to `end`, as e4m3, and the scales of each 128 of them. In each
  // step, a thread has 16 numbers. A part is a step. Returns the first part behind the end.
  MSCCLPP_DEVICE_INLINE uint32_t storeQuantised(uint32_t token, uint64_t places, uint64_t scalePlaces, uint32_t part, uint32_t end,
                                                uint32_t subs) const {
    const bool areExponents = ep.quantisation == EpE4m3Ue8m0;
    const uint32_t bytes = ep.hidden * 2, stride = subs * 32 * sizeof(EpNumbers);
    uint32_t first = beginOf(part);
    const uint8_t* from = numbersOf(token) + first;
    EpNumbers next = numbersAt(from, first < bytes ? bytes - first : 0);
    uint32_t kept = 0;
    bool keeps = false;
#pragma unroll 1
    while (part < end) {
      const uint32_t at = part;
      const EpNumbers now[1] = {next};
      part += subs;
      first += stride;
      from += stride;
      next = numbersAt(from, first < bytes ? bytes - first : 0);
      EpQuantised made[1];
      quantiseNumbers(now, made);
      forPlaces(places, [&](uint32_t, uint8_t* place) { putVector(place, ep.hidden, at * 32 + b.lane, made[0].numbers); });
      // Each thread keeps one of the 32 scales of eight parts, which are stored together.
      const uint32_t scale = warpShuffle(bitsAs<uint32_t>(made[0].scale), b.lane % 4 * 8);
      if (b.lane / 4 == at % 8) {
        kept = scale;
        keeps = true;
      }
      if (part < end && part / 8 == at / 8) continue;
      const uint32_t i = at / 8 * 32 + b.lane;
      if (i >= (ep.hidden + 127) / 128) kept = 0;
      const bool has = keeps && i * (areExponents ? 1 : 4) < ep.segmentBytes[1];
      forPlaces(scalePlaces, [&](uint32_t, uint8_t* place) {
        if (has && areExponents) store1(place + i, kept >> 23);
        if (has && !areExponents) store4(place + i * 4, kept);
      });
      keeps = false;
    }
    return part;
  }
  // Puts the same as packets. A thread has two steps under way at once: those of a part whose scales are exponents, or of two
  // parts. It is given the numbers of the first two.
  MSCCLPP_DEVICE_INLINE uint32_t putQuantised(uint32_t token, uint64_t places, uint64_t scalePlaces, uint32_t part, uint32_t end,
                                              uint32_t subs, const EpTwoSteps& numbers) const {
    const uint8_t* const row = numbersOf(token);
    EpTwoSteps next = numbers;
#pragma unroll 1
    while (part < end) {
      const EpTwoSteps now = next;
      const uint32_t steps[2] = {part * quantisedSteps(), otherStep(part, subs)};
      const bool areTwo = steps[1] < stepsOfRow();
      part += areTwo && quantisedSteps() == 1 ? 2 * subs : subs;
      next = twoStepsOf(row, part, subs);
      if (areTwo) {
        putSteps(steps, now.of, places, scalePlaces);
      } else {
        const uint32_t step[1] = {steps[0]};
        const EpNumbers one[1] = {now.of[0]};
        putSteps(step, one, places, scalePlaces);
      }
    }
    return part;
  }
  // Returns the step that is under way with the first one of a part.
  MSCCLPP_DEVICE_INLINE uint32_t otherStep(uint32_t part, uint32_t subs) const {
    return quantisedSteps() == 1 ? part + subs : part * 2 + 1;
  }
  // Loads both.
  MSCCLPP_DEVICE_INLINE EpTwoSteps twoStepsOf(const uint8_t* row, uint32_t part, uint32_t subs) const {
    return EpTwoSteps{{numbersOfStep(row, part * quantisedSteps()), numbersOfStep(row, otherStep(part, subs))}};
  }
  MSCCLPP_DEVICE_INLINE uint32_t stepsOfRow() const { return (ep.hidden + 511) / 512; }
  template <uint32_t Steps>
  MSCCLPP_DEVICE_INLINE void putSteps(const uint32_t (&steps)[Steps], const EpNumbers (&numbers)[Steps], uint64_t places,
                                      uint64_t scalePlaces) const {
    const uint32_t groups = (ep.hidden + 127) / 128;
    EpQuantised made[Steps];
    quantiseNumbers(numbers, made);
    uint64_t scales[Steps];
    uint64_t exponents = 0;
#pragma unroll
    for (uint32_t i = 0; i < Steps; ++i) {
      const uint32_t scale = steps[i] * 4 + b.lane / 8 < groups ? bitsAs<uint32_t>(made[i].scale) : 0;
      if (ep.quantisation == EpE4m3Ue8m0) {
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) exponents |= static_cast<uint64_t>(warpShuffle(scale, 8 * j) >> 23) << (i * 32 + j * 8);
      }
      // Two floats are a word, and the exponents of two steps.
      scales[i] = scale | static_cast<uint64_t>(warpShuffle(scale, (b.lane + 8) & 31)) << 32;
    }
    forPlaces(places, [&](uint32_t r, uint8_t* place) {
      uint8_t* const scalePlace = reinterpret_cast<uint8_t*>(warpShuffle(scalePlaces, r));
#pragma unroll
      for (uint32_t i = 0; i < Steps; ++i) {
        const Bytes16 vector[1] = {made[i].numbers};
        lines.put(place, ep.hidden, steps[i] * 32 + b.lane, vector);
        const uint32_t word = steps[i] * 2 + b.lane / 16;
        if (ep.quantisation == EpE4m3 && b.lane % 16 == 0 && word * 8 < ep.segmentBytes[1]) {
          packets.put(scalePlace + word * 16ull, scales[i]);
        }
      }
      if (ep.quantisation == EpE4m3Ue8m0 && b.lane == 0) packets.put(scalePlace + steps[0] / 2 * 16ull, exponents);
    });
  }
  // The numbers of a part are those of so many steps, of 512 each.
  MSCCLPP_DEVICE_INLINE uint32_t quantisedSteps() const { return ByPackets && ep.quantisation == EpE4m3Ue8m0 ? 2 : 1; }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_SEND_QUANTISED_DEVICE_HPP_
