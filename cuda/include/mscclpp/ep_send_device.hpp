// The first part of a dispatch: the rows of tokens are sent. For the library's own use.

#ifndef MSCCLPP_EP_SEND_DEVICE_HPP_
#define MSCCLPP_EP_SEND_DEVICE_HPP_

#include "mscclpp/ep_send_quantised_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The rows that a dispatch is given, which it may quantise: EpDispatch::rows. Kernels of programs have their own struct in place
// of this one, see ep_device.hpp.
struct EpGivenRows {
  static constexpr bool AreGiven = true;
};

// The part of a dispatch that sends rows.
template <EpRows Travel, class Rows, class Known>
struct EpSender : EpQuantisedSender<Travel == EpRows::ArePackets, Known> {
  using Block = EpQuantisedSender<Travel == EpRows::ArePackets, Known>;
  using Block::b;
  using Block::call;
  using Block::counts;
  using Block::ep;
  using Block::countBefore;
  using Block::end;
  using Block::entryOf;
  using Block::expertOf;
  using Block::few;
  using Block::first;
  using Block::forPlaces;
  using Block::header;
  using Block::isByWords;
  using Block::lines;
  using Block::mark;
  using Block::markNext;
  using Block::numberOf;
  using Block::numbersOf;
  using Block::packets;
  using Block::packetsAt;
  using Block::partsOf;
  using Block::payload;
  using Block::putQuantised;
  using Block::quantisedSteps;
  using Block::stepsOfRow;
  using Block::routeAt;
  using Block::rowAt;
  using Block::rowWords;
  using Block::storeQuantised;
  using Block::tables;
  using Block::tokensAtOnce;
  using Block::tokensOfBlock;
  using Block::totalOf;
  using Block::twoStepsOf;
  using Block::weightOf;

  static constexpr bool ByPackets = Travel == EpRows::ArePackets, ByRow = Travel == EpRows::AreSignalled;
  // Whether warps take tokens by a counter: X7, X8.
  static constexpr bool ByCounter = ByRow || Travel == EpRows::AreShared;
  // Not a copy: NVRTC may crash if a struct of a program has an array and is a part of this one.
  Rows& rows;

  MSCCLPP_DEVICE_INLINE EpSender(const EpDispatchBlock<Known>& block, Rows& rows, bool few)
      : Block(block, few), rows(rows) {}

  // Returns false if a wait was given up, or if the call has not begun in some thread.
  MSCCLPP_DEVICE_INLINE bool send(bool begun, EpFirstChoices& loaded) {
    // The number of warps that share the rows, and of the calling one among them.
    const uint32_t warps = few ? b.warps() : b.warpsOfBlock(), warp = few ? b.warp() : b.warpOfBlock();
    // Before the parts of the tensors there is one for what the library sends along.
    const uint32_t parts = partsAlong() + partsOfTensors();
    uint32_t n = tokensAtOnce(first), subs = 1, u = warp, t = 0;
    EpTwoSteps numbers = {};
    // If there are fewer tokens than warps, several warps send a token.
    const auto share = [&] {
      subs = subsOf(n, warps, parts);
      u = warp;
      t = u / subs;
    };
    const auto meanwhile = [&] {
      share();
      if constexpr (ByPackets) numbers = firstNumbers(t, u - t * subs, subs, n);
    };
    if (call.again || !few) {
      if (ByPackets && b.givesUp(!begun)) return false;
      if (!call.again && !countBefore(loaded)) return false;
      if (few) meanwhile();
    } else if (!mark(0, n, !begun, loaded, meanwhile)) {
      return false;
    }
    if (b.isLastByNumber()) sendHeaders();
    if constexpr (ByCounter) {
      return sendByCounter();
    } else {
      for (uint32_t token = first; token < end; token += EpTokensAtOnce) {
        if (!few) {
          n = tokensAtOnce(token);
          if (!call.again) markNext(token, n);
          share();
        }
#pragma unroll 1
        while (u < n * subs) {
          sendToken(token + t, t, u - t * subs, subs, numbers);
          u += warps;
          if (u >= n * subs) break;
          t = u / subs;
          if constexpr (ByPackets) numbers = firstNumbers(t, u - t * subs, subs, n);
        }
      }
      if constexpr (!ByPackets) b.signal(b.number, b.numbers, 0);
      return true;
    }
  }

  // X7, X8. The same if warps take their parts by a counter: at first what goes along with all rows, and then the rows.
  MSCCLPP_DEVICE_INLINE bool sendByCounter() {
    if (!call.again) {
      for (uint32_t token = first; token < end; token += EpTokensAtOnce) {
        const uint32_t n = tokensAtOnce(token);
        markNext(token, n);
        for (uint32_t t = b.warpOfBlock(); t < n; t += b.warpsOfBlock()) {
          sendRoute(token + t, t, b.lane < ep.ranks ? numberOf(ep.nExperts + b.lane, t) : -1);
        }
      }
      blockSync();
      if (b.thread == 0) detail::store<MemoryOrder::Release, MemoryScope::Device>(b.countsOf(b.number), 2 * b.epoch + 1);
    }
    const uint32_t parts = partsOfTensors(), each = tokensOfBlock();
    // Two warps share a long row that is signalled by itself, if a warp has fewer than 8 tokens: then rows are complete earlier,
    // and can be taken. Otherwise such a row has one warp, since each warp waits for a fence at the end of its part.
    const uint32_t warpsOfRow = parts >= EpSharedParts && 8 * b.warps() > call.tokens ? EpRowWarps : 1;
    const uint32_t subs = ByRow ? warpsOfRow : (parts + 1) / 2;
    bool failed = false;
    uint32_t next = b.lane == 0 ? b.takeNumber(EpNextToken) : 0;
#pragma unroll 1
    while (!failed) {
      const uint32_t u = warpShuffle(next, 0), token = u / subs;
      if (token >= call.tokens) break;
      // The next number is on its way while the warp sends.
      if (b.lane == 0) next = b.takeNumber(EpNextToken);
      if (!call.again && b.lane == 0) failed = !b.waitFor(ep.rank, EpWordIsThere{b.countsOf(token / each), 2 * b.epoch + 1});
      failed = warpFailed(failed);
      if (!failed) sendToken(token, 0, u - token * subs, subs, EpTwoSteps{});
    }
    if (blockAny(failed)) return false;
    b.signal(b.number, b.numbers, 0);
    return true;
  }

  // ---- headers

  // Sends the headers. The last block calls it: it knows the counts of all tokens.
  MSCCLPP_DEVICE_INLINE void sendHeaders() const {
    if (b.thread < ep.ranks) {
      const uint32_t sent = call.again ? tables->sent[b.thread] : totalOf(ep.nExperts + b.thread);
      if (!call.again) store4(reinterpret_cast<EpCounts*>(call.tables)->sent + b.thread, sent);
      packets.put(header(b.thread, ep.rank, 0), sent | static_cast<uint64_t>(call.tokens) << 32);
      const uint64_t flags = call.refused ? EpHeaderRefused : 0u;
      packets.put(header(b.thread, ep.rank, 1), flags | static_cast<uint64_t>(payload()) << 32);
    }
    if (call.again) return;
    for (uint32_t expert = b.thread; expert < ep.nExperts; expert += b.threads) {
      const uint32_t entry = entryOf(expert);
      packets.put(header(entry >> 16, ep.rank, 2 + (entry & 0xffff)), totalOf(expert));
    }
  }

  // ---- rows

  // Returns the parts of a segment that a warp sends at once. The scales go with the parts of the quantised segment.
  MSCCLPP_DEVICE_INLINE uint32_t partsToSend(uint32_t segment) const {
    if (Rows::AreGiven && ep.quantisation != EpAsItIs && segment < 2) {
      return segment == 0 ? (stepsOfRow() + quantisedSteps() - 1) / quantisedSteps() : 0;
    }
    return partsOf(segment);
  }
  // Returns the parts of what goes along, if it is sent with the rows.
  MSCCLPP_DEVICE_INLINE uint32_t partsAlong() const { return ByCounter || call.again ? 0 : 1; }
  MSCCLPP_DEVICE_INLINE uint32_t partsOfTensors() const {
    uint32_t parts = 0;
    for (uint32_t segment = 0; segment < ep.parts; ++segment) parts += partsToSend(segment);
    return parts;
  }

  // Returns the row at rank r of a token, which is number t of those that are routed, or -1.
  MSCCLPP_DEVICE_INLINE int32_t rowOf(uint32_t token, uint32_t t, uint32_t r) const {
    if (!call.again && !ByCounter) return numberOf(ep.nExperts + r, t);
    return signedWord(call.tables + ep.tableRows, static_cast<uint64_t>(token) * ep.ranks + r);
  }
  // Sends each `subs`-th part of a token, which is number t of those that are routed, from part `part` on. By packets, `numbers`
  // are those of firstNumbers. All threads of a warp call it.
  MSCCLPP_DEVICE_INLINE void sendToken(uint32_t token, uint32_t t, uint32_t part, uint32_t subs, const EpTwoSteps& numbers) {
    // Thread r has the row of the token at rank r, or -1.
    const int32_t row = b.lane < ep.ranks ? rowOf(token, t, b.lane) : -1;
    const uint32_t sub = part;
    uint32_t begin = partsAlong();
    // The receiver needs what goes along before it can store a part of the row.
    if (part < begin) {
      sendRoute(token, t, row);
      part += subs;
    }
    if constexpr (!Rows::AreGiven) rows.begin(token);
    uint32_t segment = 0;
    if (Rows::AreGiven && ep.quantisation != EpAsItIs) {
      const uint32_t parts = partsToSend(0);
      const uint64_t places = placesOf(row, 0), scalePlaces = placesOf(row, 1);
      if constexpr (ByPackets) {
        part = begin + putQuantised(token, places, scalePlaces, part - begin, parts, subs, numbers);
      } else {
        part = begin + storeQuantised(token, places, scalePlaces, part - begin, parts, subs);
      }
      begin += parts;
      segment = 2;
    }
#pragma unroll 1
    for (; segment < ep.parts; ++segment) {
      const uint32_t end = begin + partsToSend(segment);
      const uint64_t places = placesOf(row, segment);
      if constexpr (!Rows::AreGiven) {
#pragma unroll 1
        for (; part < end; part += subs) {
          EpPart sent;
#pragma unroll
          for (uint32_t u = 0; u < EpVectorsAtOnce; ++u) {
            sent.of[u] = rows.vector(token, segment, (part - begin) * (EpPartBytes / 16) + u * 32 + b.lane);
          }
          forPlaces(places, [&](uint32_t, uint8_t* place) { putPart(place, segment, part - begin, sent); });
        }
      } else {
        const uint32_t bytes = ep.segmentBytes[segment], source = ep.quantisation == EpAsItIs ? segment : segment - 1;
        const uint8_t* const from = call.rows[source] + static_cast<uint64_t>(token) * bytes;
#pragma unroll 1
        for (; part < end; part += subs) {
          const EpPart sent = loadPart<Known::Call::isAligned>(from, bytes, part - begin, b.lane);
          forPlaces(places, [&](uint32_t, uint8_t* place) { putPart(place, segment, part - begin, sent); });
        }
      }
      begin = end;
    }
    if constexpr (ByRow) signalRow(row, sub, subs);
  }

  // X8. Tells the other ranks that this warp, which is number `sub` of the `subs` that share a row, has sent its part. Thread r
  // has the row at rank r. All threads of the warp call it: the release of each covers what all of them have stored.
  MSCCLPP_DEVICE_INLINE void signalRow(int32_t row, uint32_t sub, uint32_t subs) const {
    warpSync();
    const uint32_t words = EpRowWarps / subs;
#pragma unroll 1
    for (uint32_t begin = 0; begin < ep.ranks * words; begin += 32) {
      const uint32_t i = begin + b.lane, r = i / words;
      const int32_t n = static_cast<int32_t>(warpShuffle(static_cast<uint32_t>(row), r & 31));
      if (r >= ep.ranks || r == ep.rank || n < 0) continue;
      uint64_t* const word = rowWords(r, ep.rank, static_cast<uint32_t>(n)) + (i - r * words) * subs + sub;
      detail::store<MemoryOrder::Release, MemoryScope::System>(word, b.epoch);
    }
  }

  // Returns, in thread r, the place of a segment of the token's row at rank r, or 0 if there is none.
  MSCCLPP_DEVICE_INLINE uint64_t placesOf(int32_t row, uint32_t segment) const {
    if (row < 0 || (b.lane == ep.rank && ByRow)) return 0;
    const uint32_t n = static_cast<uint32_t>(row);
    return reinterpret_cast<uint64_t>(ByPackets ? packetsAt(b.lane, ep.rank, n, segment) : rowAt(b.lane, ep.rank, n, segment));
  }
  // Puts a part of a segment into its place. All threads of the warp call it.
  MSCCLPP_DEVICE_INLINE void putPart(uint8_t* place, uint32_t segment, uint32_t part, const EpPart& sent) const {
    const uint32_t bytes = ep.segmentBytes[segment];
    if constexpr (!ByPackets) {
      detail::putPart(place, bytes, part, b.lane, sent);
    } else if (isByWords(segment)) {
#pragma unroll
      for (uint32_t u = 0; u < EpVectorsAtOnce; ++u) {
        const uint32_t word = 2 * (part * (EpPartBytes / 16) + u * 32 + b.lane);
        if (word * 8 < bytes) packets.put(place + word * 16ull, sent.of[u].low);
        if (word * 8 + 8 < bytes) packets.put(place + (word + 1) * 16ull, sent.of[u].high);
      }
    } else {
      lines.put(place, bytes, part * (EpPartBytes / 16) + b.lane, sent.of);
    }
  }
  // Sends what the library sends along: the token, the local experts, the weights, the places. A thread has a number. Notes in
  // the tables what a combine needs, and later dispatches of this routing.
  MSCCLPP_DEVICE_INLINE void sendRoute(uint32_t token, uint32_t t, int32_t row) const {
    const uint32_t choices = ep.topK, bytes = ep.segmentBytes[ep.parts];
    const uint64_t places = row < 0 ? 0 : reinterpret_cast<uint64_t>(routeAt(b.lane, ep.rank, static_cast<uint32_t>(row)));
    if (b.lane < ep.ranks) {
      const uint64_t at = static_cast<uint64_t>(token) * ep.ranks + b.lane;
      store4(call.tables + ep.tableRows + at * 4, static_cast<uint32_t>(row));
    }
#pragma unroll 1
    for (uint32_t begin = 0; begin * 4 < bytes; begin += 32) {
      const uint32_t j = begin + b.lane;
      // The rank that has the expert of the choice gets `value`, and the others get `otherwise`.
      uint32_t value = token, otherwise = token, owner = ~0u;
      if (j > 0) {
        const uint32_t which = (j - 1) / choices, k = j - 1 - which * choices;
        const uint64_t choice = static_cast<uint64_t>(token) * choices + k;
        if (which == 1) {
          value = otherwise = weightOf(choice);
          store4(call.tables + ep.tableWeights + choice * 4, value);
        } else if (which < 3) {
          const int32_t expert = expertOf(choice, which == 0);
          if (which == 0) store4(call.tables + ep.tableChoices + choice * 4, static_cast<uint32_t>(expert));
          otherwise = which == 0 ? ~0u : 0;
          if (expert >= 0) {
            const uint32_t of = static_cast<uint32_t>(expert), entry = entryOf(of);
            owner = entry >> 16;
            value = which == 0 ? entry & 0xffff : static_cast<uint32_t>(numberOf(of, t));
          }
        }
      }
      forPlaces(places, [&](uint32_t r, uint8_t* place) {
        const uint32_t number = owner == r ? value : otherwise;
        // Thread i puts the numbers of threads 2 i and 2 i + 1.
        const uint64_t low = warpShuffle(number, b.lane * 2 & 31), high = warpShuffle(number, (b.lane * 2 & 31) + 1);
        const uint32_t i = begin / 2 + b.lane;
        if (b.lane < 16 && i * 8 < bytes) packets.put(place + i * 16ull, low | high << 32);
      });
    }
  }

  // Returns the first numbers that a warp sends as number `sub` of the `subs` that share token t, if that is one of `n` tokens,
  // and numbers are quantised.
  MSCCLPP_DEVICE_INLINE EpTwoSteps firstNumbers(uint32_t t, uint32_t sub, uint32_t subs, uint32_t n) const {
    if (!Rows::AreGiven || ep.quantisation == EpAsItIs || t >= n) return EpTwoSteps{};
    const uint32_t along = partsAlong();
    return twoStepsOf(numbersOf(t), (sub < along ? sub + subs : sub) - along, subs);
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_SEND_DEVICE_HPP_
