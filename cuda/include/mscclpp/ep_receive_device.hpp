// The second part of a dispatch: rows are taken to their places. For the library's own use.

#ifndef MSCCLPP_EP_RECEIVE_DEVICE_HPP_
#define MSCCLPP_EP_RECEIVE_DEVICE_HPP_

#include "mscclpp/ep_dispatch_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The part of a dispatch that takes what the ranks have sent to its places.
struct EpReceiver : EpDispatchBlock {
  MSCCLPP_DEVICE_INLINE explicit EpReceiver(const EpDispatchBlock& block) : EpDispatchBlock(block) {}

  MSCCLPP_DEVICE_INLINE uint32_t* totals() const { return counts + ep.ranks * ep.local; }
  MSCCLPP_DEVICE_INLINE uint32_t* offsets() const { return totals() + ep.local; }

  // Takes the headers of all ranks. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool takeHeaders() {
    auto& heads = routing.heads;
    bool failed = false;
    const uint32_t words = call.again ? 2 : 2 + ep.local;
    for (uint32_t i = b.thread; i < ep.ranks * words && !failed; i += b.threads) {
      const uint32_t r = i / words, of = i % words;
      uint64_t word = 0;
      failed = !b.take(packets, header(ep.rank, r, of), word, r);
      if (of == 0) {
        heads[0][r] = static_cast<uint32_t>(word);
        heads[1][r] = static_cast<uint32_t>(word >> 32);
      } else if (of == 1) {
        heads[2][r] = static_cast<uint32_t>(word);
        if ((word & EpHeaderRefused) != 0) b.report(EpRefused, r + 1);
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
    const uint32_t alignment = call.layout == EpLayoutFlat ? call.alignment : 1;
    for (uint32_t local = b.thread; local <= ep.local; local += b.threads) {
      uint32_t begin = 0;
      for (uint32_t before = 0; before < local; ++before) {
        begin += (totals()[before] + alignment - 1) / alignment * alignment;
      }
      offsets()[local] = begin;
    }
    blockSync();
    if (b.block != 0) return;
    for (uint32_t local = b.thread; local <= ep.local; local += b.threads) {
      if (local < ep.local) store4(call.tables + sizeof(EpCounts) + local * 4, totals()[local]);
      store4(call.tables + ep.tableOffsets + local * 4, offsets()[local]);
    }
  }

  // Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool receive() {
    auto& heads = routing.heads;
    // All threads have read what the block has counted.
    blockSync();
    if (!takeHeaders()) return false;
    if (!call.again) sumCounts();
    if (b.block == 0 && b.thread < ep.ranks) {
      EpCounts* const own = reinterpret_cast<EpCounts*>(call.tables);
      if (!call.again) store4(own->received + b.thread, heads[0][b.thread]);
      if (!call.again) store4(own->theirs + b.thread, heads[1][b.thread]);
      if (b.thread == 0) {
        store4(&own->tokens, call.tokens);
        store4(&own->layout, call.layout);
        store8(&own->epoch, b.epoch);
      }
    }
    bool failed = false;
    if (b.thread < ep.ranks && (heads[2][b.thread] & EpHeaderPacked) == 0) failed = !b.hasArrived(b.thread);
    if (blockAny(failed)) return false;
    uint32_t rows = 0;
    for (uint32_t r = 0; r < ep.ranks; ++r) rows += heads[0][r];
    // If there are fewer rows than warps, several warps take a row.
    const uint32_t subs = rows == 0 || rows > b.warps ? 1 : b.warps / rows < 8 ? b.warps / rows : 8;
    for (uint32_t u = b.warp; u < rows * subs && !failed; u += b.warps) {
      uint32_t n = u / subs, r = 0;
      for (; n >= heads[0][r]; ++r) n -= heads[0][r];
      failed = !takeRow(Row{r, n, u / subs, (heads[2][r] & EpHeaderPacked) != 0, u % subs, subs});
    }
    if (!failed && call.zero != 0 && !call.again) clearOthers(rows);
    // X3. Rows in the layout EpLayoutRank stay where they are until their combine, or a release.
    if (b.isLast() && call.layout != EpLayoutRank) b.free(EpDispatching, b.epoch);
    return !failed;
  }

  // Row n of rank r, which is number `number` of all, and comes as packets or as it is; the calling warp takes part `sub` of
  // `subs` of it.
  struct Row {
    uint32_t r, n, number;
    bool asPackets;
    uint32_t sub, subs;
  };

  // Takes word i of a segment of a row. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool takeWord(const Row& row, uint32_t segment, uint32_t i, uint64_t& word) const {
    if (row.asPackets) return b.take(packets, packetAt(ep.rank, row.r, row.n, segment) + i * 16ull, word, row.r);
    word = messageWord(rowAt(ep.rank, row.r, row.n, segment), ep.segmentBytes[segment], i);
    return true;
  }
  // Takes number j of what the library sends along with a row.
  MSCCLPP_DEVICE_INLINE bool takeNumber(const Row& row, uint32_t j, uint32_t& number) const {
    uint64_t word = 0;
    const bool came = takeWord(row, ep.parts, j / 2, word);
    number = static_cast<uint32_t>(word >> (j % 2 * 32));
    return came;
  }

  // Takes a row to its places. All threads of a warp call it, and get the same.
  MSCCLPP_DEVICE_INLINE bool takeRow(const Row& row) const {
    const uint32_t choices = ep.topK;
    uint8_t* const received =
        call.tables + ep.tableReceived + (static_cast<uint64_t>(row.r) * ep.capacity + row.n) * ep.segmentStride[ep.parts];
    bool failed = false;
    // Thread k has the local experts, weights and places for choices k and k + 32; ~0 is no expert or no place.
    uint32_t locals[2] = {~0u, ~0u}, weights[2] = {0, 0}, places[2] = {~0u, ~0u}, token = 0;
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t k = half * 32 + b.lane;
      if (k >= choices || failed) continue;
      if (call.again) {
        locals[half] = load4(received + (1 + k) * 4ull);
        weights[half] = load4(received + (1 + choices + k) * 4ull);
        places[half] = load4(received + (1 + 2 * choices + k) * 4ull);
        continue;
      }
      uint32_t place = 0;
      failed = !(takeNumber(row, 1 + k, locals[half]) && takeNumber(row, 1 + 2 * choices + k, place));
      if (!failed && locals[half] != ~0u) places[half] = placeOf(row, locals[half], place);
      if (row.sub != 0) continue;
      failed = failed || !takeNumber(row, 1 + choices + k, weights[half]);
      store4(received + (1 + k) * 4ull, locals[half]);
      store4(received + (1 + choices + k) * 4ull, weights[half]);
      store4(received + (1 + 2 * choices + k) * 4ull, places[half]);
    }
    if (call.again) {
      token = load4(received);
    } else if (row.sub == 0 && !failed) {
      failed = !takeNumber(row, 0, token);
      if (b.lane == 0) store4(received, token);
    }
    if (warpFailed(failed)) return false;
    // Calls `use` with the number of each place of the row in the layout. All threads of the warp call it.
    const auto forNumbers = [&](auto use) {
      uint32_t last = ~0u;
      for (uint32_t k = 0; k < choices; ++k) {
        const uint32_t place = warpShuffle(places[k / 32], k);
        if (place != ~0u && place != last) use(static_cast<uint64_t>(place));
        last = place;
      }
    };
    if (row.sub == 0) forNumbers([&](uint64_t place) { storeRoute(row, place, token, locals, weights); });
    if (call.layout == EpLayoutRank && !row.asPackets) return true;
    for (uint32_t segment = 0; segment < ep.parts; ++segment) {
      const uint32_t bytes = ep.segmentBytes[segment], words = (bytes + 7) / 8;
      uint8_t* const from = rowAt(ep.rank, row.r, row.n, segment);
      const auto forPlaces = [&](auto use) {
        forNumbers([&](uint64_t place) { use(call.out[segment] + place * bytes); });
      };
      if (!row.asPackets) {
        forPlaces([&](uint8_t* place) { copy<4>(place, from, bytes, row.sub * 32 + b.lane, row.subs * 32); });
        continue;
      }
      for (uint32_t begin = row.sub * 32; begin < words; begin += row.subs * 32) {
        const uint32_t i = begin + b.lane;
        uint64_t word = 0;
        failed = failed || (i < words && !takeWord(row, segment, i, word));
        const bool has = i < words && !failed;
        if (call.layout == EpLayoutRank) {
          if (has) storeMessageWord(from, bytes, i, word);
        } else {
          forPlaces([&](uint8_t* place) {
            if (has) storeMessageWord(place, bytes, i, word);
          });
        }
      }
    }
    return !warpFailed(failed);
  }

  // Stores what came with a row where the caller wants it: thread k has that of choices k and k + 32.
  MSCCLPP_DEVICE_INLINE void storeRoute(const Row& row, uint64_t place, uint32_t token, const uint32_t (&locals)[2],
                                        const uint32_t (&weights)[2]) const {
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t k = half * 32 + b.lane;
      if (k >= ep.topK) break;
      const uint64_t at = place * ep.topK + k;
      if (call.outWeights != nullptr) store4(call.outWeights + at * 4, weights[half]);
      if (call.outIds == nullptr) continue;
      if (call.idBytes == 8) {
        store8(call.outIds + at * 8, static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(locals[half]))));
      } else {
        store4(call.outIds + at * 4, locals[half]);
      }
    }
    if (call.outSources != nullptr && b.lane < 2) store4(call.outSources + (place * 2 + b.lane) * 4, b.lane == 0 ? row.r : token);
  }

  // Returns the number of a row in the layout, or ~0 if the memory ends before it.
  MSCCLPP_DEVICE_INLINE uint32_t placeOf(const Row& row, uint32_t local, uint32_t place) const {
    const uint32_t ofExpert = counts[row.r * ep.local + local] + place;
    uint64_t at = 0;
    switch (call.layout) {
      case EpLayoutRank:
        return row.r * ep.capacity + row.n;
      case EpLayoutToken:
        at = row.number;
        break;
      case EpLayoutExpert:
        return local * ep.ranks * ep.capacity + ofExpert;
      default:
        at = static_cast<uint64_t>(offsets()[local]) + ofExpert;
    }
    if (at < call.outRows) return static_cast<uint32_t>(at);
    b.report(EpDropped, 1);
    return ~0u;
  }

  // Makes the rows of the layout that nobody sent zero. Not for EpLayoutRank.
  MSCCLPP_DEVICE_INLINE void clearOthers(uint32_t rows) const {
    for (uint64_t row = b.warp; row < call.outRows; row += b.warps) {
      bool isSent = call.layout == EpLayoutToken && row < rows;
      if (call.layout == EpLayoutExpert) {
        const uint64_t most = static_cast<uint64_t>(ep.ranks) * ep.capacity;
        isSent = row % most < totals()[row / most];
      } else if (call.layout == EpLayoutFlat) {
        for (uint32_t local = 0; local < ep.local && !isSent; ++local) {
          isSent = row >= offsets()[local] && row - offsets()[local] < totals()[local];
        }
      }
      if (isSent) continue;
      for (uint32_t segment = 0; segment < ep.parts; ++segment) {
        const uint32_t bytes = ep.segmentBytes[segment];
        for (uint32_t i = b.lane; i < (bytes + 7) / 8; i += 32) storeMessageWord(call.out[segment] + row * bytes, bytes, i, 0);
      }
    }
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_RECEIVE_DEVICE_HPP_
