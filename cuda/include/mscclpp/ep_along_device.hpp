// Tokens, experts, weights and places, which come along with the rows of a dispatch. For the library's own use.

#ifndef MSCCLPP_EP_ALONG_DEVICE_HPP_
#define MSCCLPP_EP_ALONG_DEVICE_HPP_

#include "mscclpp/ep_dispatch_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The part of a dispatch that takes what comes along with the rows. EpSender::sendRoute sends it.
template <EpRows Travel, class Known>
struct EpAlong : EpDispatchBlock<Known> {
  static constexpr bool ByPackets = Travel == EpRows::ArePackets, ByRow = Travel == EpRows::AreSignalled;
  using Block = EpDispatchBlock<Known>;
  using Block::b;
  using Block::call;
  using Block::counts;
  using Block::ep;
  using Block::heads;
  using Block::packets;
  using Block::routeAt;
  using Block::tokenOf;

  MSCCLPP_DEVICE_INLINE explicit EpAlong(const Block& block) : Block(block) {}

  // For each local expert how many rows it has, and where they begin: see EpDispatchBlock::counts.
  MSCCLPP_DEVICE_INLINE uint32_t* totals() const { return counts + ep.ranks * ep.local; }
  MSCCLPP_DEVICE_INLINE uint32_t* offsets() const { return totals() + ep.local; }

  // Row n of rank r, which is number `number` of all.
  struct Row {
    uint32_t r, n, number;
  };
  MSCCLPP_DEVICE_INLINE Row rowOf(uint32_t number) const {
    uint32_t n = number, r = 0;
    for (; n >= heads.rows[r]; ++r) n -= heads.rows[r];
    return Row{r, n, number};
  }
  // Returns the place in the tables of what came along with a row.
  MSCCLPP_DEVICE_INLINE uint8_t* received(const Row& row) const {
    return call.tables + ep.tableReceived + (static_cast<uint64_t>(row.r) * ep.capacity + row.n) * ep.segmentStride[ep.parts];
  }

  // Takes numbers of what the library sends along with a row, which are under way at once. Returns false if a wait was given up.
  template <uint32_t Count>
  MSCCLPP_DEVICE_INLINE bool takeNumbers(const Row& row, const uint32_t (&at)[Count], uint32_t (&numbers)[Count]) const {
    const uint8_t* const from = routeAt(ep.rank, row.r, row.n);
    Bytes16 came[Count];
    bool all = true;
#pragma unroll
    for (uint32_t u = 0; u < Count; ++u) came[u] = Ll16Packets::load(from + at[u] / 2 * 16ull);
#pragma unroll
    for (uint32_t u = 0; u < Count; ++u) {
      uint64_t word = Ll16Packets::wordOf(came[u]);
      if (!packets.isThere(came[u])) all = all && b.take(packets, from + at[u] / 2 * 16ull, word, row.r);
      numbers[u] = static_cast<uint32_t>(word >> (at[u] % 2 * 32));
    }
    return all;
  }
  // A choice of a row's token, as it came along with the row: its expert here (~0 if that is of another rank), its weight, the
  // place of the row in the layout (~0 if it has none, or if there is no memory for it), and the token.
  struct Choice {
    uint32_t local, weight, place, token;
  };
  // Takes choice k. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool takeChoice(const Row& row, uint32_t k, Choice& choice) const {
    const uint32_t at[4] = {1 + k, 1 + ep.topK + k, 1 + 2 * ep.topK + k, 0};
    uint32_t of[4];
    const bool came = takeNumbers(row, at, of);
    // The token of a rank that is lost may be missing.
    const uint32_t local = of[3] == ~0u || !came ? ~0u : of[0];
    choice = Choice{local, of[1], local == ~0u ? ~0u : placeOf(row, local, of[2]), of[3]};
    return came;
  }
  // Notes choice k in the tables, and counts it if its row has no memory.
  MSCCLPP_DEVICE_INLINE void noteChoice(const Row& row, uint32_t k, const Choice& choice) const {
    if (choice.local != ~0u && choice.place == ~0u) epDrop(ep);
    uint8_t* const noted = received(row);
    store4(noted + (1 + k) * 4ull, choice.local);
    store4(noted + (1 + ep.topK + k) * 4ull, choice.weight);
    store4(noted + (1 + 2 * ep.topK + k) * 4ull, choice.place);
    if (k == 0) store4(noted, choice.token);
  }
  // Whether a row has one place in the layout, for all its choices.
  MSCCLPP_DEVICE_INLINE bool hasOnePlace() const { return call.layout == EpLayoutRank || call.layout == EpLayoutToken; }
  // Notes in the tables what came along with the rows, and stores it where the caller wants it if a row has one place: each
  // choice has a thread. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool noteRows(uint32_t rows) const {
    if (call.again) return true;
    const bool stores = hasOnePlace() && wantsRoute();
    bool failed = false;
    // The first blocks have more to do if rows are few.
    const uint32_t first = (b.numbers - 1 - b.number) * b.threads + b.thread;
#pragma unroll 1
    for (uint32_t i = first; i < rows * ep.topK && !failed; i += b.threadsOfAll()) {
      const uint32_t number = ByPackets ? tokenOf(i) : i / ep.topK, k = i - number * ep.topK;
      const Row row = rowOf(number);
      Choice choice;
      failed = !takeChoice(row, k, choice);
      noteChoice(row, k, choice);
      const uint32_t place = stores ? placeOf(row, 0, 0) : ~0u;
      if (place != ~0u) storeChoice(row, k, choice, place);
    }
    return !failed;
  }
  // Takes where choice k of a row is in the layout (see Choice), and if rows are taken while others come, the row's token.
  MSCCLPP_DEVICE_INLINE bool takePlace(const Row& row, uint32_t k, uint32_t& place, uint32_t& token) const {
    uint32_t at[ByRow ? 3 : 2] = {1 + k, 1 + 2 * ep.topK + k}, of[ByRow ? 3 : 2];
    const bool came = takeNumbers(row, at, of);
    place = !came || of[0] == ~0u ? ~0u : placeOf(row, of[0], of[1]);
    if constexpr (ByRow) token = of[2];
    return came;
  }

  MSCCLPP_DEVICE_INLINE bool wantsRoute() const {
    return !call.again && (call.outIds != nullptr || call.outWeights != nullptr || call.outSources != nullptr);
  }
  // Stores the local expert and the weight of a choice, number `at` of those of all rows, where the caller wants them.
  MSCCLPP_DEVICE_INLINE void storeAlong(uint64_t at, uint32_t local, uint32_t weight) const {
    if (call.outWeights != nullptr) store4(call.outWeights + at * 4, weight);
    if (call.outIds == nullptr) return;
    if (call.idBytes == 8) {
      store8(call.outIds + at * 8, static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(local))));
    } else {
      store4(call.outIds + at * 4, local);
    }
  }
  // Stores choice k of a row for one of its places.
  MSCCLPP_DEVICE_INLINE void storeChoice(const Row& row, uint32_t k, const Choice& choice, uint32_t place) const {
    const bool isMasked = (call.rest & EpRestMasked) != 0 && choice.local == ~0u;
    storeAlong(static_cast<uint64_t>(place) * ep.topK + k, choice.local, isMasked ? 0 : choice.weight);
    if (k != 0 || call.outSources == nullptr) return;
    store4(call.outSources + place * 8ull, row.r);
    store4(call.outSources + place * 8ull + 4, choice.token);
  }
  // Takes what came along with a row. Notes it in the tables if rows are taken while others come, and stores it where the caller
  // wants it, for each place of the row. All threads of a warp call it. Returns false, in some of them, if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool takeRoute(const Row& row) const {
    Choice choices[2];
    bool failed = false;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t k = half * 32 + b.lane;
      choices[half] = Choice{~0u, 0, ~0u, ~0u};
      if (k >= ep.topK) continue;
      failed = !takeChoice(row, k, choices[half]) || failed;
      if (ByRow) noteChoice(row, k, choices[half]);
    }
    uint32_t last = ~0u;
#pragma unroll 1
    for (uint32_t of = 0; of < ep.topK; ++of) {
      const uint32_t place = warpShuffle(of < 32 ? choices[0].place : choices[1].place, of & 31);
      if (place == ~0u || place == last) continue;
      last = place;
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t k = half * 32 + b.lane;
        if (k >= ep.topK) continue;
        storeChoice(row, k, choices[half], place);
      }
    }
    return !failed;
  }

  // Returns the number of a row in the layout, or ~0 if the memory ends before it.
  MSCCLPP_DEVICE_INLINE uint32_t placeOf(const Row& row, uint32_t local, uint32_t place) const {
    if (call.layout == EpLayoutRank) return row.r * ep.capacity + row.n;
    uint64_t at = row.number;
    if (call.layout != EpLayoutToken) {
      const uint64_t first = call.layout == EpLayoutFlat ? offsets()[local] : static_cast<uint64_t>(local) * ep.ranks * ep.capacity;
      at = first + counts[row.r * ep.local + local] + place;
    }
    return at < call.outRows ? static_cast<uint32_t>(at) : ~0u;
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_ALONG_DEVICE_HPP_
