// Counts of the choices of tokens, before they are dispatched. For the library's own use.

#ifndef MSCCLPP_EP_CHOICES_DEVICE_HPP_
#define MSCCLPP_EP_CHOICES_DEVICE_HPP_

#include "mscclpp/ep_block_device.hpp"

namespace mscclpp {

// Choices, and where their counts go.
struct EpChoices {
  // [tokens, topK], numbers of idBytes.
  const uint8_t* ids;
  // The tokens; for each rank the tokens with a choice of one of its experts; for each expert its choices.
  uint32_t* counts;
  // [tokens, ranks]: 1 if the token has a choice of one of the rank's experts, else 0.
  uint8_t* isInRank;
  // `local` experts that follow each other are of one rank.
  uint32_t tokens, topK, idBytes, nExperts, ranks, local;
};

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Counts. All threads of the launch call it, which has one block. `counts` is shared memory for ranks + nExperts numbers.
MSCCLPP_DEVICE_INLINE void countChoices(const EpChoices& choices, uint32_t* counts) {
  const uint32_t thread = threadOfBlock(), threads = threadsOfBlock(), all = choices.ranks + choices.nExperts;
  const auto add = [&](uint32_t of, uint32_t n) {
    detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device, MemorySpace::Any>(counts + of, n);
  };
  for (uint32_t of = thread; of < all; of += threads) counts[of] = 0;
  blockSync();
  // Each token has a thread.
#pragma unroll 1
  for (uint32_t first = 0; first < choices.tokens; first += threads) {
    const uint32_t token = first + thread;
    uint32_t ranks = 0;
    if (token < choices.tokens) {
      const uint64_t begin = static_cast<uint64_t>(token) * choices.topK;
#pragma unroll 4
      for (uint32_t k = 0; k < choices.topK; ++k) {
        const int64_t id = choices.idBytes == 8 ? static_cast<int64_t>(load8(choices.ids + (begin + k) * 8))
                                                : signedWord(choices.ids, begin + k);
        if (id < 0 || id >= static_cast<int64_t>(choices.nExperts)) continue;
        const uint32_t expert = static_cast<uint32_t>(id);
        add(choices.ranks + expert, 1);
        ranks |= 1u << expert / choices.local;
      }
    }
#pragma unroll 1
    for (uint32_t r = 0; r < choices.ranks; ++r) {
      const uint32_t isIn = ranks >> r & 1, sum = sumUpTo(isIn, thread % 32);
      if (token < choices.tokens) store1(choices.isInRank + static_cast<uint64_t>(token) * choices.ranks + r, isIn);
      if (thread % 32 == 31 && sum != 0) add(r, sum);
    }
  }
  blockSync();
  if (thread == 0) store4(choices.counts, choices.tokens);
  for (uint32_t of = thread; of < all; of += threads) store4(choices.counts + 1 + of, counts[of]);
}

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_EP_CHOICES_DEVICE_HPP_
