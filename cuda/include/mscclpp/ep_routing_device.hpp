// Where the tokens of a dispatch go. For the library's own use.

#ifndef MSCCLPP_EP_ROUTING_DEVICE_HPP_
#define MSCCLPP_EP_ROUTING_DEVICE_HPP_

#include "mscclpp/ep_dispatch_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The part of a dispatch that routes this rank's tokens.
//
// If they are `few`, all blocks route all tokens alike. Otherwise each block has a part of them, and learns from the blocks
// before it how many tokens come before its own (X4).
struct EpRouting : EpDispatchBlock {
  const bool few;
  // The tokens that this block routes.
  uint32_t first, end;

  MSCCLPP_DEVICE_INLINE EpRouting(const EpDispatchBlock& block, bool few) : EpDispatchBlock(block), few(few) {
    const uint32_t each = few ? call.tokens : tokensOfBlock(), before = few ? 0 : b.number * each;
    first = before < call.tokens ? before : call.tokens;
    end = call.tokens - first < each ? call.tokens : first + each;
  }
  // Returns how many tokens a block routes if they are not few.
  MSCCLPP_DEVICE_INLINE uint32_t tokensOfBlock() const { return (call.tokens + b.numbers - 1) / b.numbers; }

  // For each expert, and behind them for each rank, words whose bit t says that token t of those that are routed goes there.
  MSCCLPP_DEVICE_INLINE uint32_t* marks() const { return counts + ep.nExperts + ep.ranks; }
  // Behind them the counts of all tokens, which the last block has.
  MSCCLPP_DEVICE_INLINE uint32_t* totals() const { return marks() + EpMarkWords * (ep.nExperts + ep.ranks); }
  MSCCLPP_DEVICE_INLINE uint32_t rankOf(uint32_t expert) const { return load4(ep.experts + expert) >> 16; }
  MSCCLPP_DEVICE_INLINE uint32_t localOf(uint32_t expert) const { return load4(ep.experts + expert) & 0xffff; }

  // Returns the expert of choice `i` of all tokens, or -1: for other numbers, which are reported if `reports` says so, and for
  // experts of ranks that are lost, which are counted if `counts` says so.
  MSCCLPP_DEVICE_INLINE int32_t expertOf(uint64_t i, bool reports, bool counts = false) const {
    const int64_t id = call.idBytes == 8 ? static_cast<int64_t>(load8(call.ids + i * 8)) : signedWord(call.ids, i);
    if (id >= 0 && id < static_cast<int64_t>(ep.nExperts)) {
      const int32_t expert = static_cast<int32_t>(id);
      if (!epIsLost(ep, rankOf(static_cast<uint32_t>(expert)))) return expert;
      if (counts) detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(ep.words + EpLostChoices, uint64_t{1});
      return -1;
    }
    if (reports && id != -1) b.report(EpBadExpert, static_cast<uint32_t>(i / ep.topK) + 1);
    return -1;
  }

  MSCCLPP_DEVICE_INLINE void addMark(uint32_t of, uint32_t t) const {
    detail::fetchOr<MemoryOrder::Relaxed, MemoryScope::Device, MemorySpace::Any>(marks() + of * EpMarkWords + t / 32, 1u << t % 32);
  }
  // Marks where `n` tokens from `token` on go: each choice has a thread. The same expert twice in a token counts once.
  MSCCLPP_DEVICE_INLINE void mark(uint32_t token, uint32_t n) const {
    for (uint32_t i = b.thread; i < EpMarkWords * (ep.nExperts + ep.ranks); i += b.threads) marks()[i] = 0;
    const uint32_t choices = n * ep.topK;
    const uint64_t begin = static_cast<uint64_t>(token) * ep.topK;
    bool areZero = false;
#pragma unroll 1
    for (uint32_t first = b.thread; first - b.thread < choices; first += EpChoicesAtOnce * b.threads) {
      // Several choices are loaded at once, the first ones while the marks become 0.
      int32_t experts[EpChoicesAtOnce];
      uint32_t ranks[EpChoicesAtOnce];
#pragma unroll
      for (uint32_t u = 0; u < EpChoicesAtOnce; ++u) {
        const uint32_t i = first + u * b.threads;
        experts[u] = i < choices ? expertOf(begin + i, true) : -1;
      }
#pragma unroll
      for (uint32_t u = 0; u < EpChoicesAtOnce; ++u) ranks[u] = experts[u] < 0 ? 0 : rankOf(static_cast<uint32_t>(experts[u]));
      if (!areZero) blockSync();
      areZero = true;
#pragma unroll
      for (uint32_t u = 0; u < EpChoicesAtOnce; ++u) {
        if (experts[u] < 0) continue;
        const uint32_t t = (first + u * b.threads) / ep.topK;
        addMark(static_cast<uint32_t>(experts[u]), t);
        addMark(ep.nExperts + ranks[u], t);
      }
    }
    blockSync();
  }
  // How many of the first `n` tokens that are marked go to an expert, or behind these to a rank.
  MSCCLPP_DEVICE_INLINE uint32_t marked(uint32_t of, uint32_t n) const {
    uint32_t sum = 0;
#pragma unroll
    for (uint32_t w = 0; w < EpMarkWords; ++w) {
      const uint32_t word = marks()[of * EpMarkWords + w];
      sum += countBits(n >= 32 * w + 32 ? word : n > 32 * w ? word & ((1u << n % 32) - 1) : 0);
    }
    return sum;
  }
  // Adds the tokens that are marked to those before. All threads call it.
  MSCCLPP_DEVICE_INLINE void addMarks() const {
    blockSync();
    for (uint32_t of = b.thread; of < ep.nExperts + ep.ranks; of += b.threads) counts[of] += marked(of, EpTokensAtOnce);
    blockSync();
  }
  // The number of token t, of those that are marked, among all of this rank for an expert, or behind these for a rank; or -1.
  MSCCLPP_DEVICE_INLINE int32_t numberOf(uint32_t of, uint32_t t) const {
    if ((marks()[of * EpMarkWords + t / 32] >> t % 32 & 1) == 0) return -1;
    return static_cast<int32_t>(counts[of] + marked(of, t));
  }
  // Counts the tokens before those of this block: X4. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool countBefore() const {
    const uint32_t all = ep.nExperts + ep.ranks;
    for (uint32_t of = b.thread; of < all; of += b.threads) counts[of] = 0;
    if (few) {
      mark(0, call.tokens);
      for (uint32_t of = b.thread; of < all; of += b.threads) totals()[of] = marked(of, EpTokensAtOnce);
      blockSync();
      return true;
    }
    for (uint32_t token = first; token < end; token += EpTokensAtOnce) {
      mark(token, end - token < EpTokensAtOnce ? end - token : EpTokensAtOnce);
      addMarks();
    }
    uint64_t* const own = b.countsOf(b.number);
    for (uint32_t of = b.thread; of < all; of += b.threads) {
      store4(reinterpret_cast<uint32_t*>(own + 1) + of, counts[of]);
      totals()[of] = counts[of];
      counts[of] = 0;
    }
    blockSync();
    if (b.thread == 0) detail::store<MemoryOrder::Release, MemoryScope::Device>(own, 2 * b.epoch);
    bool failed = false;
    for (uint32_t block = b.thread; block < b.number && !failed; block += b.threads) {
      failed = !b.waitFor(ep.rank, EpWordIsThere{b.countsOf(block), 2 * b.epoch});
    }
    if (blockAny(failed)) return false;
    // Several threads share the blocks of two experts, whose counts are the halves of a word.
    const uint32_t words = (all + 1) / 2, sharing = b.threads > words ? b.threads / words : 1;
    for (uint32_t i = b.thread; i < words * sharing; i += b.threads) {
      const uint32_t share = i / words, of = i - share * words;
      uint64_t sum = 0;
#pragma unroll 8
      for (uint32_t block = share; block < b.number; block += sharing) sum += load8(b.countsOf(block) + 1 + of);
#pragma unroll
      for (uint32_t half = 0; half < 2 && 2 * of + half < all; ++half) {
        const uint32_t count = static_cast<uint32_t>(sum >> (32 * half));
        detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device, MemorySpace::Any>(counts + 2 * of + half, count);
      }
    }
    blockSync();
    for (uint32_t of = b.thread; of < all; of += b.threads) totals()[of] += counts[of];
    blockSync();
    return true;
  }

  // Marks the `n` tokens from `token` on, which are sent next. If a block marks all its tokens at once, the marks of countBefore
  // are still there, and it does nothing.
  MSCCLPP_DEVICE_INLINE void markNext(uint32_t token, uint32_t n) const {
    if (end - first <= EpTokensAtOnce) return;
    if (token != first) addMarks();
    mark(token, n);
  }

  // Notes in the tables what a combine needs, and later dispatches of this routing.
  MSCCLPP_DEVICE_INLINE void noteRouting(uint32_t token, uint32_t n) const {
    const uint32_t thread = few ? b.threadOfAll() : b.thread, threads = few ? b.threadsOfAll() : b.threads;
    for (uint32_t i = thread; i < n * ep.topK; i += threads) {
      const uint64_t at = static_cast<uint64_t>(token) * ep.topK + i;
      store4(call.tables + ep.tableChoices + at * 4, static_cast<uint32_t>(expertOf(at, false, true)));
      store4(call.tables + ep.tableWeights + at * 4, weightOf(at));
    }
    for (uint32_t i = thread; i < n * ep.ranks; i += threads) {
      const uint64_t at = static_cast<uint64_t>(token) * ep.ranks + i;
      store4(call.tables + ep.tableRows + at * 4, static_cast<uint32_t>(numberOf(ep.nExperts + i % ep.ranks, i / ep.ranks)));
    }
  }
  MSCCLPP_DEVICE_INLINE uint32_t weightOf(uint64_t choice) const {
    return call.weights == nullptr ? bitsAs<uint32_t>(1.0f) : load4(call.weights + choice);
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_ROUTING_DEVICE_HPP_
