// Where the tokens of a dispatch go. For the library's own use.

#ifndef MSCCLPP_EP_ROUTING_DEVICE_HPP_
#define MSCCLPP_EP_ROUTING_DEVICE_HPP_

#include "mscclpp/ep_dispatch_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The first loads of a thread that routes all tokens: choices as the program gives them, -1 behind their end, and a word of
// EpHandle::experts.
struct EpFirstChoices {
  int64_t ids[EpChoicesAtOnce];
  uint32_t entry;

  MSCCLPP_DEVICE_INLINE void load(const EpHandle& ep, const EpDispatch& call) {
    loadIds(call, 0, threadOfBlock(), call.tokens * ep.topK);
    entry = threadOfBlock() < ep.nExperts ? load4(ep.experts + threadOfBlock()) : 0;
  }
  // Loads choices of the `choices` that begin at choice `begin` of all: number `first`, and others as many threads as the block
  // has behind it.
  MSCCLPP_DEVICE_INLINE void loadIds(const EpDispatch& call, uint64_t begin, uint32_t first, uint32_t choices) {
#pragma unroll
    for (uint32_t u = 0; u < EpChoicesAtOnce; ++u) {
      const uint32_t i = first + u * threadsOfBlock();
      ids[u] = i < choices ? idOf(call, begin + i) : -1;
    }
  }
  // Returns what the program gave as choice `i` of all tokens.
  MSCCLPP_DEVICE_INLINE static int64_t idOf(const EpDispatch& call, uint64_t i) {
    return call.idBytes == 8 ? static_cast<int64_t>(load8(call.ids + i * 8)) : signedWord(call.ids, i);
  }
};

// The part of a dispatch that routes this rank's tokens.
//
// If they are `few`, all blocks route all tokens alike. Otherwise each block has a part of them, and learns from the blocks
// before it how many tokens come before its own (X4).
template <class Known>
struct EpRouting : EpDispatchBlock<Known> {
  using Block = EpDispatchBlock<Known>;
  using Block::b;
  using Block::call;
  using Block::counts;
  using Block::ep;
  using Block::tokenOf;

  const bool few;
  // The tokens that this block routes.
  uint32_t first, end;

  MSCCLPP_DEVICE_INLINE EpRouting(const Block& block, bool few) : Block(block), few(few) {
    const uint32_t each = few ? call.tokens : tokensOfBlock(), before = few ? 0 : b.number * each;
    first = before < call.tokens ? before : call.tokens;
    end = call.tokens - first < each ? call.tokens : first + each;
  }
  // Returns how many tokens a block routes if they are not few.
  MSCCLPP_DEVICE_INLINE uint32_t tokensOfBlock() const { return (call.tokens + b.numbers - 1) / b.numbers; }

  // For each expert, and behind them for each rank, words whose bit t says that token t of those that are routed goes there.
  MSCCLPP_DEVICE_INLINE uint32_t* marks() const { return counts + ep.nExperts + ep.ranks; }
  // Behind them the counts of all tokens, which the last block has if they are not few.
  MSCCLPP_DEVICE_INLINE uint32_t* totals() const { return marks() + EpMarkWords * (ep.nExperts + ep.ranks); }
  // Returns the rank of an expert, times 2^16, plus its number there.
  MSCCLPP_DEVICE_INLINE uint32_t entryOf(uint32_t expert) const { return few ? counts[expert] : load4(ep.experts + expert); }

  MSCCLPP_DEVICE_INLINE bool isExpert(int64_t id) const { return id >= 0 && id < static_cast<int64_t>(ep.nExperts); }
  // Returns the expert of choice `i` of all tokens, or -1: for other numbers, and for experts of ranks that are lost, which are
  // counted if `isCounted`.
  MSCCLPP_DEVICE_INLINE int32_t expertOf(uint64_t i, bool isCounted) const {
    const int64_t id = EpFirstChoices::idOf(call, i);
    if (!isExpert(id)) return -1;
    const uint32_t expert = static_cast<uint32_t>(id);
    if (!epIsLost(ep, entryOf(expert) >> 16)) return static_cast<int32_t>(expert);
    if (isCounted) detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device>(ep.words + EpLostChoices, uint64_t{1});
    return -1;
  }

  MSCCLPP_DEVICE_INLINE void addMark(uint32_t of, uint32_t t) const {
    uint32_t* const word = marks() + of * EpMarkWords + t / 32;
    detail::fetchOr<MemoryOrder::Relaxed, MemoryScope::Block, MemorySpace::Shared>(word, 1u << t % 32);
  }
  // Marks where `n` tokens from `token` on go: each choice has a thread. The same expert twice in a token counts once. The first
  // choices are `loaded`; while they are on their way, it calls `meanwhile`. Returns false if something has failed in any thread.
  // All threads call it.
  template <class Meanwhile>
  MSCCLPP_DEVICE_INLINE bool mark(uint32_t token, uint32_t n, bool failed, EpFirstChoices& loaded, Meanwhile meanwhile) const {
    const uint32_t choices = n * ep.topK;
    const uint64_t begin = static_cast<uint64_t>(token) * ep.topK;
    bool areZero = false;
    uint32_t first = b.thread;
#pragma unroll 1
    while (true) {
      uint32_t entries[EpChoicesAtOnce];
#pragma unroll
      for (uint32_t u = 0; u < EpChoicesAtOnce && !few; ++u) {
        entries[u] = isExpert(loaded.ids[u]) ? load4(ep.experts + loaded.ids[u]) : 0;
      }
      if (!areZero) {
        meanwhile();
        for (uint32_t i = b.thread; i < EpMarkWords * (ep.nExperts + ep.ranks); i += b.threads) marks()[i] = 0;
        if (few && b.thread < ep.nExperts) counts[b.thread] = loaded.entry;
#pragma unroll 1
        for (uint32_t of = b.thread + b.threads; few && of < ep.nExperts; of += b.threads) counts[of] = load4(ep.experts + of);
        if (b.givesUp(failed)) return false;
        areZero = true;
      }
#pragma unroll
      for (uint32_t u = 0; u < EpChoicesAtOnce; ++u) {
        const uint32_t i = first + u * b.threads;
        if (i - b.thread >= choices) break;
        if (isExpert(loaded.ids[u])) {
          const uint32_t expert = static_cast<uint32_t>(loaded.ids[u]), entry = few ? counts[expert] : entries[u], t = tokenOf(i);
          if (epIsLost(ep, entry >> 16)) continue;
          addMark(expert, t);
          addMark(ep.nExperts + (entry >> 16), t);
        } else if (loaded.ids[u] != -1) {
          b.report(EpBadExpert, token + tokenOf(i) + 1);
        }
      }
      first += EpChoicesAtOnce * b.threads;
      if (first - b.thread >= choices) break;
      loaded.loadIds(call, begin, first, choices);
    }
    blockSync();
    return true;
  }
  MSCCLPP_DEVICE_INLINE void mark(uint32_t token, uint32_t n) const {
    EpFirstChoices loaded = {};
    loaded.loadIds(call, static_cast<uint64_t>(token) * ep.topK, b.thread, n * ep.topK);
    mark(token, n, false, loaded, [] {});
  }
  // How many of the first `n` tokens that are marked go to an expert, or behind these to a rank.
  MSCCLPP_DEVICE_INLINE uint32_t marked(uint32_t of, uint32_t n) const {
    const uint32_t* word = marks() + of * EpMarkWords;
    uint32_t sum = 0;
#pragma unroll 1
    for (; n >= 32; n -= 32) sum += countBits(*word++);
    return n == 0 ? sum : sum + countBits(*word & ((1u << n) - 1));
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
    return static_cast<int32_t>(few ? marked(of, t) : counts[of] + marked(of, t));
  }
  // Returns how many tokens from `token` on the block marks at once.
  MSCCLPP_DEVICE_INLINE uint32_t tokensAtOnce(uint32_t token) const {
    return end - token < EpTokensAtOnce ? end - token : EpTokensAtOnce;
  }
  MSCCLPP_DEVICE_INLINE void loadFirst(EpFirstChoices& loaded) const {
    loaded.loadIds(call, static_cast<uint64_t>(first) * ep.topK, b.thread, tokensAtOnce(first) * ep.topK);
  }
  // Counts the tokens before those of this block, if they are not few: X4. `loaded` are those of loadFirst. Returns false if a
  // wait was given up.
  MSCCLPP_DEVICE_INLINE bool countBefore(EpFirstChoices& loaded) const {
    const uint32_t all = ep.nExperts + ep.ranks;
    for (uint32_t of = b.thread; of < all; of += b.threads) counts[of] = 0;
    for (uint32_t token = first; token < end; token += EpTokensAtOnce) {
      if (token != first) loaded.loadIds(call, static_cast<uint64_t>(token) * ep.topK, b.thread, tokensAtOnce(token) * ep.topK);
      mark(token, tokensAtOnce(token), false, loaded, [] {});
      addMarks();
    }
    uint64_t* const own = b.countsOf(b.number);
    for (uint32_t of = b.thread; of < all; of += b.threads) {
      store4(reinterpret_cast<uint32_t*>(own + 2) + of, counts[of]);
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
    // Several threads share the blocks of four experts, whose counts are the quarters of a vector.
    const uint32_t vectors = (all + 3) / 4, sharing = b.threads > vectors ? b.threads / vectors : 1;
    for (uint32_t i = b.thread; i < vectors * sharing; i += b.threads) {
      const uint32_t share = i / vectors, of = i - share * vectors;
      uint64_t sums[2] = {0, 0};
#pragma unroll 8
      for (uint32_t block = share; block < b.number; block += sharing) {
        const Bytes16 four = load16(b.countsOf(block) + 2 + 2 * of);
        sums[0] += four.low;
        sums[1] += four.high;
      }
#pragma unroll
      for (uint32_t quarter = 0; quarter < 4 && 4 * of + quarter < all; ++quarter) {
        const uint32_t count = static_cast<uint32_t>(sums[quarter / 2] >> (quarter % 2 * 32));
        detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Block, MemorySpace::Shared>(counts + 4 * of + quarter, count);
      }
    }
    blockSync();
    for (uint32_t of = b.thread; of < all; of += b.threads) totals()[of] += counts[of];
    blockSync();
    return true;
  }

  // How many of all tokens go to an expert, or behind these to a rank. For the last block.
  MSCCLPP_DEVICE_INLINE uint32_t totalOf(uint32_t of) const { return few ? marked(of, EpTokensAtOnce) : totals()[of]; }

  // Marks the `n` tokens from `token` on, which are sent next. If a block marks all its tokens at once, the marks of countBefore
  // are still there, and it does nothing.
  MSCCLPP_DEVICE_INLINE void markNext(uint32_t token, uint32_t n) const {
    if (end - first <= EpTokensAtOnce) return;
    if (token != first) addMarks();
    mark(token, n);
  }

  MSCCLPP_DEVICE_INLINE uint32_t weightOf(uint64_t choice) const {
    return call.weights == nullptr ? bitsAs<uint32_t>(1.0f) : load4(call.weights + choice);
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_ROUTING_DEVICE_HPP_
