// The second part of a dispatch: rows are taken to their places. For the library's own use.

#ifndef MSCCLPP_EP_RECEIVE_DEVICE_HPP_
#define MSCCLPP_EP_RECEIVE_DEVICE_HPP_

#include "mscclpp/ep_along_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The place of a word of a row in a tensor of `words` words a row, which lies column by column, `rows` rows at a time.
MSCCLPP_DEVICE_INLINE uint8_t* columnAt(uint8_t* tensor, uint32_t words, uint64_t rows, uint64_t row, uint32_t word) {
  const uint64_t n = row % rows;
  return tensor + ((row - n) * words + word * rows + n) * 4;
}
// Stores a part of a row of such a tensor. Not inlined: it is for the scales of a row alone.
MSCCLPP_DEVICE_NOINLINE void storeColumns(uint8_t* tensor, uint32_t words, uint64_t rows, uint64_t row, uint32_t part, uint32_t lane,
                                          const EpPart& stored) {
#pragma unroll 1
  for (uint32_t j = 0; j < EpVectorsAtOnce * 4; ++j) {
    const uint32_t word = part * (EpPartBytes / 4) + (j / 4 * 32 + lane) * 4 + j % 4;
    const Bytes16 vector = stored.of[j / 4];
    const uint64_t half = j % 4 < 2 ? vector.low : vector.high;
    if (word < words) store4(columnAt(tensor, words, rows, row, word), static_cast<uint32_t>(half >> (j % 2 * 32)));
  }
}

// The part of a dispatch that takes what the ranks have sent to its places.
template <EpRows Travel, class Known>
struct EpReceiver : EpAlong<Travel, Known> {
  static constexpr bool ByPackets = Travel == EpRows::ArePackets, ByRow = Travel == EpRows::AreSignalled;
  using Along = EpAlong<Travel, Known>;
  using typename Along::Row;
  using Along::b;
  using Along::call;
  using Along::counts;
  using Along::ep;
  using Along::hasOnePlace;
  using Along::header;
  using Along::heads;
  using Along::isByWords;
  using Along::noteRows;
  using Along::offsets;
  using Along::packets;
  using Along::packetsAt;
  using Along::partsOf;
  using Along::payload;
  using Along::received;
  using Along::rowAt;
  using Along::rowOf;
  using Along::rowWords;
  using Along::storeAlong;
  using Along::takePlace;
  using Along::takeRoute;
  using Along::totals;
  using Along::wantsRoute;

  MSCCLPP_DEVICE_INLINE explicit EpReceiver(const EpDispatchBlock<Known>& block) : Along(block) {}

  // Takes the rows that come to their places if `takes`, and notes what came if `notes`. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool receive(bool takes, bool notes) {
    // All threads have read what the block has counted.
    blockSync();
    // In the layouts by expert, the place of a row depends on the counts.
    const bool byExpert = call.layout == EpLayoutExpert || call.layout == EpLayoutFlat, last = notes && b.isLastByNumber();
    const bool withCounts = !call.again && byExpert;
    // The rows may follow the headers at once, so this is computed before these come.
    const Share alone = shareOf(b.warp(), ep.rowParts);
    if (last && call.addedWaits != nullptr && !b.template addWaits<ByPackets>(call.addedWaits, 0)) return false;
    if (!takeHeaders(withCounts)) return false;
    if (withCounts) sumCounts();
    bool failed = last && !noteCounts(withCounts);
    uint32_t rows = 0;
    for (uint32_t r = 0; r < ep.ranks; ++r) rows += heads.rows[r];
    failed = failed || (notes && !ByRow && !noteRows(rows));
    if constexpr (!ByPackets) {
      if (!ByRow && b.thread < ep.ranks) failed = failed || !b.hasArrived(b.thread, 0);
      if (blockAny(failed)) return false;
    } else if (notes && takes) {
      // All threads of a warp take rows, or none.
      failed = warpFailed(failed);
    }
    if (takes) {
      const bool takesNone = !ByPackets && call.layout == EpLayoutRank;
      failed = failed || (!takesNone && !(ByRow ? takeComingRows() : takeRows(rows, alone)));
      if (!failed && call.rest != 0 && !call.again) clearOthers(rows);
    }
    if constexpr (!ByPackets) {
      if (call.layout == EpLayoutRank) {
        // X3. These rows stay where they are until their combine, or a release.
        b.countForLast();
      } else if (b.isLast()) {
        b.free(EpDispatching, b.epoch);
      }
    }
    return !failed;
  }

  // ---- headers

  // Takes the headers of all ranks, and their counts for each expert if `withCounts`. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool takeHeaders(bool withCounts) {
    bool failed = false;
    const uint32_t words = withCounts ? 2 + ep.local : 2;
    for (uint32_t i = b.thread; i < ep.ranks * words && !failed; i += b.threads) {
      const uint32_t r = i / words, of = i - r * words;
      uint64_t word = 0;
      failed = !b.take(packets, header(ep.rank, r, of), word, r);
      // The header of a lost rank that has not come counts as one without rows.
      if (word == EpNoWord) word = of == 1 ? static_cast<uint64_t>(payload()) << 32 : 0;
      if (of == 0) {
        heads.rows[r] = static_cast<uint32_t>(word);
        heads.tokens[r] = static_cast<uint32_t>(word >> 32);
      } else if (of == 1) {
        // This rank's own call has said so by itself.
        if ((word & EpHeaderRefused) != 0 && r != ep.rank) b.report(EpRefused, r + 1);
        heads.areOther[r] = word >> 32 != payload();
        if (heads.areOther[r] != 0) b.report(EpOther, r + 1);
      } else {
        counts[r * ep.local + of - 2] = static_cast<uint32_t>(word);
      }
    }
    return !blockAny(failed);
  }

  // Makes of the counts of each rank where its rows begin among those of an expert, and of the totals where the experts begin.
  MSCCLPP_DEVICE_INLINE void sumCounts() {
    for (uint32_t local = b.thread; local < ep.local; local += b.threads) {
      uint32_t sum = 0;
      for (uint32_t r = 0; r < ep.ranks; ++r) {
        const uint32_t rows = counts[r * ep.local + local];
        counts[r * ep.local + local] = sum;
        sum += rows;
      }
      totals()[local] = sum;
    }
    blockSync();
    if (b.thread < 32) sumTotals();
    blockSync();
  }
  // One warp sums up. Each thread has some experts that follow each other.
  MSCCLPP_DEVICE_INLINE void sumTotals() {
    const uint32_t alignment = call.layout == EpLayoutFlat ? call.alignment : 1;
    const uint32_t each = ep.local / 32 + 1, first = b.lane * each;
    const auto rowsOf = [&](uint32_t local) {
      const uint32_t rows = local < ep.local ? totals()[local] : 0;
      return alignment == 1 ? rows : (rows + alignment - 1) / alignment * alignment;
    };
    uint32_t own = 0;
    for (uint32_t i = 0; i < each; ++i) own += rowsOf(first + i);
    uint32_t begin = sumUpTo(own, b.lane) - own;
    for (uint32_t local = first; local < first + each && local <= ep.local; ++local) {
      offsets()[local] = begin;
      begin += rowsOf(local);
    }
  }
  // Notes what the headers say in the tables. The last block calls it: the first ones have more to do if rows are few. Returns
  // false, in some threads, if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool noteCounts(bool withCounts) const {
    EpCounts* const own = reinterpret_cast<EpCounts*>(call.tables);
    if (b.thread == 0) {
      store4(&own->tokens, call.tokens);
      store4(&own->layout, call.layout);
      store8(&own->epoch, b.epoch);
    }
    if (call.again) return true;
    if (b.thread < ep.ranks) {
      store4(own->received + b.thread, heads.rows[b.thread]);
      store4(own->theirs + b.thread, heads.tokens[b.thread]);
    }
    for (uint32_t local = b.thread; local <= ep.local; local += b.threads) {
      // Nobody looks where the rows of an expert begin, but in the layouts by expert.
      if (withCounts) store4(call.tables + ep.tableOffsets + local * 4, offsets()[local]);
      if (local == ep.local) break;
      uint32_t rows = withCounts ? totals()[local] : 0;
      if (!withCounts && !takeTotal(local, rows)) return false;
      store4(call.tables + sizeof(EpCounts) + local * 4, rows);
      if (call.addedCounts != nullptr) store4(call.addedCounts + local, load4(call.addedCounts + local) + rows);
    }
    return true;
  }
  // Takes how many rows a local expert has out of the headers. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool takeTotal(uint32_t local, uint32_t& rows) const {
    for (uint32_t r = 0; r < ep.ranks; ++r) {
      uint64_t word = 0;
      if (!b.take(packets, header(ep.rank, r, 2 + local), word, r)) return false;
      // The packet of a lost rank may not come.
      if (word != EpNoWord) rows += static_cast<uint32_t>(word);
    }
    return true;
  }

  // ---- rows

  // A warp's share of a row that `subs` warps share: parts `sub`, `sub` + `subs` and so on of row `number`.
  struct Share {
    uint32_t subs, number, sub;
  };
  MSCCLPP_DEVICE_INLINE static Share shareOf(uint32_t u, uint32_t subs) {
    const uint32_t number = u / subs;
    return Share{subs, number, u - number * subs};
  }
  // Takes the rows to their places. If each warp has one part at most, it is that of `alone`. Returns false if a wait was given
  // up.
  MSCCLPP_DEVICE_INLINE bool takeRows(uint32_t rows, Share alone) const {
    const uint32_t warps = b.warps();
    Share share = alone;
    // If there are fewer rows than warps, several warps take a row.
    if (rows * share.subs > warps) share = shareOf(b.warp(), subsOf(rows, warps, ep.rowParts));
    const uint32_t all = rows * share.subs;
#pragma unroll 1
    for (uint32_t u = b.warp(); u < all;) {
      const Row row = rowOf(share.number);
      // Packets of another payload are not where these would be.
      if ((!ByPackets || heads.areOther[row.r] == 0) && !takeRow(row, share.sub, share.subs)) return false;
      u += warps;
      if (u < all) share = shareOf(u, share.subs);
    }
    return true;
  }

  // X8. The same while rows come. Each warp takes its part of the next row that no other has taken: first the rows of this rank,
  // then those of the others by turns, in the order in which they are sent.
  MSCCLPP_DEVICE_INLINE bool takeComingRows() const {
    const uint32_t subs = EpRowWarps, own = heads.rows[ep.rank], others = ep.ranks - 1;
    uint32_t most = 0;
    for (uint32_t r = 0; r < ep.ranks; ++r) most = r != ep.rank && heads.rows[r] > most ? heads.rows[r] : most;
    bool failed = false;
    uint32_t next = b.lane == 0 ? b.takeNumber(EpNextRow) : 0;
#pragma unroll 1
    while (!failed) {
      const uint32_t all = warpShuffle(next, 0), u = all / subs;
      if (u >= own + most * others) break;
      // The next number is on its way while the warp takes a row.
      if (b.lane == 0) next = b.takeNumber(EpNextRow);
      uint32_t r = ep.rank, n = u;
      if (u >= own) {
        n = (u - own) / others;
        r += 1 + (u - own - n * others);
        if (r >= ep.ranks) r -= ep.ranks;
        if (n >= heads.rows[r]) continue;
      }
      uint32_t number = n;
      for (uint32_t before = 0; before < r; ++before) number += heads.rows[before];
      failed = !takeRow(Row{r, n, number}, all - u * subs, subs);
    }
    return !failed;
  }
  // Whether a part of a row has come, or all rows of its rank.
  struct RowIsThere {
    EpWordIsThere all;
    const uint64_t* word;
    uint64_t epoch;
    MSCCLPP_DEVICE_INLINE bool operator()() const {
      return detail::load<MemoryOrder::Acquire, MemoryScope::System>(word) == epoch || all();
    }
  };
  MSCCLPP_DEVICE_INLINE bool hasCome(const Row& row) const {
    const EpWordIsThere all{b.line(ep.rank, row.r, EpArrived, EpDispatching), b.epoch * ep.maxBlocks};
    return b.waitFor(row.r, RowIsThere{all, rowWords(ep.rank, row.r, row.n) + b.lane, b.epoch});
  }

  // Takes each `subs`-th part of a row, from part `sub` on. All threads of a warp call it, and get the same.
  MSCCLPP_DEVICE_INLINE bool takeRow(const Row& row, uint32_t sub, uint32_t subs) const {
    // Thread k has the places for choices k and k + 32.
    uint32_t places[2] = {~0u, ~0u}, token = ~0u;
    bool failed = false;
    if (sub == 0 && !call.again && (ByRow || (wantsRoute() && !hasOnePlace()))) failed = !takeRoute(row);
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t k = half * 32 + b.lane;
      if (k >= ep.topK || failed || call.layout == EpLayoutRank) continue;
      if (call.again) {
        const uint32_t place = load4(received(row) + (1 + 2 * ep.topK + k) * 4ull);
        // There may be less memory than for the dispatch.
        if (place < call.outRows) {
          places[half] = place;
        } else if (place != ~0u && sub == 0) {
          epDrop(ep);
        }
        if (ByRow) token = load4(received(row));
      } else {
        failed = !takePlace(row, k, places[half], token);
      }
    }
    const bool isOwn = ByRow && row.r == ep.rank;
    if (ByRow && !isOwn && b.lane < EpRowWarps) failed = !hasCome(row) || failed;
    if (warpFailed(failed)) return false;
    token = isOwn ? warpShuffle(token, 0) : ~0u;
    // X5. If a rank was lost, the tables may not have a row.
    if (isOwn && token >= call.tokens) return true;
    uint32_t part = sub, first = 0;
#pragma unroll 1
    for (uint32_t segment = 0; segment < ep.parts; ++segment) {
      const uint32_t parts = partsOf(segment);
      for (; part < first + parts; part += subs) {
        if (!takePart(row, segment, part - first, places, token)) return false;
      }
      first += parts;
    }
    return true;
  }
  // Loads a part of a segment of a row that has come, or that is waited for if it travels as packets. Returns false, in all
  // threads of the warp that calls it, if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool loadRow(const Row& row, uint32_t segment, uint32_t part, uint32_t token, EpPart& taken) const {
    if constexpr (!ByPackets) {
      // Rows in the scratch end at a multiple of 16.
      const bool isGiven = token != ~0u;
      const uint32_t size = isGiven ? ep.segmentBytes[segment] : ep.segmentStride[segment];
      const uint8_t* const from = isGiven ? call.rows[segment] + static_cast<uint64_t>(token) * size
                                          : rowAt(ep.rank, row.r, row.n, segment);
      taken = loadPart(from, size, part, b.lane);
      return true;
    }
    const uint8_t* const at = packetsAt(ep.rank, row.r, row.n, segment);
    const uint32_t bytes = ep.segmentBytes[segment], first = part * (EpPartBytes / 16) + b.lane;
    if (!isByWords(segment)) {
      EpRowPackets::Looks<EpVectorsAtOnce> seen;
      if (!takeLines(EpRowPackets(b), at, bytes, first, seen, ep, row.r)) return false;
#pragma unroll
      for (uint32_t u = 0; u < EpVectorsAtOnce; ++u) taken.of[u] = seen.vectors[u];
      return true;
    }
    taken = {};
    bool failed = false;
#pragma unroll
    for (uint32_t u = 0; u < EpVectorsAtOnce; ++u) {
      const uint32_t word = 2 * (first + u * 32);
      const uint8_t* const two = at + word * 16ull;
      if (word * 8 >= bytes) break;
      // Both packets are under way at once. The second one may be behind the end.
      const bool areTwo = word * 8 + 8 < bytes;
      const Bytes16 low = Ll16Packets::load(two), high = Ll16Packets::load(areTwo ? two + 16 : two);
      taken.of[u] = Bytes16{Ll16Packets::wordOf(low), areTwo ? Ll16Packets::wordOf(high) : 0};
      if (!packets.isThere(low)) failed = failed || !b.take(packets, two, taken.of[u].low, row.r);
      if (areTwo && !packets.isThere(high)) failed = failed || !b.take(packets, two + 16, taken.of[u].high, row.r);
    }
    return !warpFailed(failed);
  }
  // Takes a part of a segment. All threads of a warp call it. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool takePart(const Row& row, uint32_t segment, uint32_t part, const uint32_t (&places)[2],
                                      uint32_t token) const {
    const uint32_t bytes = ep.segmentBytes[segment];
    EpPart taken;
    if (!loadRow(row, segment, part, token, taken)) return false;
    if (call.layout == EpLayoutRank) {
      putPart(rowAt(ep.rank, row.r, row.n, segment), ep.segmentStride[segment], part, b.lane, taken);
      return true;
    }
    uint32_t last = ~0u;
#pragma unroll 1
    for (uint32_t k = 0; k < ep.topK; ++k) {
      const uint32_t place = warpShuffle(k < 32 ? places[0] : places[1], k & 31);
      if (place != ~0u && place != last) {
        if (segment == 1 && call.columnRows != 0) {
          const EpPart scales = taken;
          storeColumns(call.out[1], bytes / 4, call.columnRows, place, part, b.lane, scales);
        } else {
          storePart(call.out[segment] + static_cast<uint64_t>(place) * bytes, bytes, part, b.lane, taken);
        }
      }
      last = place;
    }
    return true;
  }

  // Makes the rows of the layout zero that nobody sent, or masks what goes along with them: EpRest. Not for
  // EpLayoutRank.
  MSCCLPP_DEVICE_INLINE void clearOthers(uint32_t rows) const {
    // Blocks that send and blocks that only receive do so: X8. They have numbers of their own in b.warp().
    const uint32_t first = ByRow ? b.warpOfBlock() * b.blocks + b.block : b.warp();
    const uint32_t warps = ByRow ? b.warpsOfBlock() * b.blocks : b.warps();
    for (uint64_t row = first; row < call.outRows; row += warps) {
      bool isSent = call.layout == EpLayoutToken && row < rows;
      if (call.layout == EpLayoutExpert) {
        const uint32_t most = ep.ranks * ep.capacity, local = static_cast<uint32_t>(row) / most;
        isSent = static_cast<uint32_t>(row) - local * most < totals()[local];
      } else if (call.layout == EpLayoutFlat) {
        for (uint32_t local = 0; local < ep.local && !isSent; ++local) {
          isSent = row >= offsets()[local] && row - offsets()[local] < totals()[local];
        }
      }
      if (isSent) continue;
      if ((call.rest & EpRestMasked) != 0) {
        for (uint32_t k = b.lane; k < ep.topK; k += 32) storeAlong(row * ep.topK + k, ~0u, 0);
      }
#pragma unroll 1
      for (uint32_t segment = 0; (call.rest & EpRestZero) != 0 && segment < ep.parts; ++segment) {
        const uint32_t bytes = ep.segmentBytes[segment];
        if (segment == 1 && call.columnRows != 0) {
#pragma unroll 1
          for (uint32_t i = b.lane; i < bytes / 4; i += 32) store4(columnAt(call.out[1], bytes / 4, call.columnRows, row, i), 0);
          continue;
        }
#pragma unroll 1
        for (uint32_t i = b.lane; i < (bytes + 7) / 8; i += 32) storeMessageWord(call.out[segment] + row * bytes, bytes, i, 0);
      }
    }
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_RECEIVE_DEVICE_HPP_
