// The first part of a dispatch: tokens are routed, and their rows sent. For the library's own use.

#ifndef MSCCLPP_EP_SEND_DEVICE_HPP_
#define MSCCLPP_EP_SEND_DEVICE_HPP_

#include "mscclpp/ep_dispatch_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The part of a dispatch that routes this rank's tokens and sends their rows.
struct EpSender : EpDispatchBlock {
  MSCCLPP_DEVICE_INLINE explicit EpSender(const EpDispatchBlock& block) : EpDispatchBlock(block) {}

  // Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool send() {
    const uint32_t most = EpChoicesAtOnce / ep.topK, atOnce = most < EpTokensAtOnce ? most : EpTokensAtOnce;
    // Also if the rank has no tokens: its header says so.
    bool isFree = true;
    if (!call.again) countBefore();
    if (b.thread < ep.ranks) isFree = b.isFree(b.thread);
    if (blockAny(!isFree)) return false;
    for (uint32_t token = first; token < end; token += atOnce) {
      const uint32_t n = atOnce < end - token ? atOnce : end - token;
      if (call.again) {
        routeAgain(token, n);
      } else {
        route(token, n);
      }
      // If there are fewer tokens than warps, several warps send a token.
      const uint32_t own = b.threads / 32, subs = n < own ? own / n : 1;
      for (uint32_t u = b.thread / 32; u < n * subs; u += own) sendToken(token + u / subs, u / subs, u % subs, subs);
    }
    if (b.block == b.blocks - 1) sendHeaders();
    b.signal();
    return true;
  }

  // Sends the headers. The block whose last token is the last of all calls it: it has counted all.
  MSCCLPP_DEVICE_INLINE void sendHeaders() {
    blockSync();
    if (b.thread < ep.ranks) {
      const uint32_t sent = call.again ? tables->sent[b.thread] : counts[ep.nExperts + b.thread];
      if (!call.again) store4(call.tables + offsetOf(tables->sent + b.thread), sent);
      packets.put(header(b.thread, ep.rank, 0), sent | static_cast<uint64_t>(call.tokens) << 32);
      packets.put(header(b.thread, ep.rank, 1), (packed ? EpHeaderPacked : 0u) | (call.refused ? EpHeaderRefused : 0u));
    }
    if (call.again) return;
    for (uint32_t expert = b.thread; expert < ep.nExperts; expert += b.threads) {
      const uint32_t local = localOf(static_cast<int32_t>(expert));
      packets.put(header(rankOf(static_cast<int32_t>(expert)), ep.rank, 2 + local), counts[expert]);
    }
  }
  MSCCLPP_DEVICE_INLINE uint64_t offsetOf(const void* inTables) const {
    return static_cast<uint64_t>(static_cast<const uint8_t*>(inTables) - call.tables);
  }

  // Returns the place of a segment of row n of this rank in the memory of rank r, for packets or as it is.
  MSCCLPP_DEVICE_INLINE uint8_t* placeAt(uint32_t r, uint64_t n, uint32_t segment) const {
    return packed ? packetAt(r, ep.rank, n, segment) : rowAt(r, ep.rank, n, segment);
  }
  // Puts word i of a segment into its place.
  MSCCLPP_DEVICE_INLINE void put(uint8_t* place, uint32_t segment, uint32_t i, uint64_t word) const {
    if (packed) {
      packets.put(place + i * 16ull, word);
    } else {
      storeMessageWord(place, ep.segmentBytes[segment], i, word);
    }
  }
  // Calls `use` with each rank to which token t of those that are routed goes, and the token's row there. Each rank begins with
  // itself, so that they do not all write to one.
  template <class Use>
  MSCCLPP_DEVICE_INLINE void forRanks(uint32_t t, Use use) const {
    for (uint32_t n = 0, r = ep.rank; n < ep.ranks; ++n, r = r + 1 == ep.ranks ? 0 : r + 1) {
      const int32_t row = routing.rows[t * ep.ranks + r];
      if (row >= 0) use(r, static_cast<uint32_t>(row));
    }
  }

  // Sends part `sub` of `subs` of a token, which is number t of those that are routed. All threads of a warp call it.
  MSCCLPP_DEVICE_INLINE void sendToken(uint32_t token, uint32_t t, uint32_t sub, uint32_t subs) const {
    uint32_t segment = 0;
    if (ep.quantisation != EpAsItIs) {
      if (ep.sourceType == ReduceF16) {
        sendQuantised<ReduceF16>(token, t, sub, subs);
      } else {
        sendQuantised<ReduceBf16>(token, t, sub, subs);
      }
      segment = 2;
    }
    for (uint32_t source = segment == 0 ? 0 : 1; segment < ep.parts; ++segment, ++source) {
      const uint32_t bytes = ep.segmentBytes[segment];
      const uint8_t* const row = call.rows[source] + static_cast<uint64_t>(token) * bytes;
      forRanks(t, [&](uint32_t r, uint32_t n) {
        uint8_t* const place = placeAt(r, n, segment);
        if (packed) {
          for (uint32_t i = sub * 32 + b.lane; i < (bytes + 7) / 8; i += subs * 32) {
            packets.put(place + i * 16ull, messageWord(row, bytes, i));
          }
        } else {
          copy<4>(place, row, bytes, sub * 32 + b.lane, subs * 32);
        }
      });
    }
    if (!call.again && sub == 0) sendRoute(token, t);
  }

  // Sends what the library sends along, and notes the same in the tables.
  MSCCLPP_DEVICE_INLINE void sendRoute(uint32_t token, uint32_t t) const {
    const uint32_t choices = ep.topK, words = (ep.segmentBytes[ep.parts] + 7) / 8;
    const auto weight = [&](uint32_t k) {
      return call.weights == nullptr ? bitsAs<uint32_t>(1.0f) : load4(call.weights + static_cast<uint64_t>(token) * choices + k);
    };
    forRanks(t, [&](uint32_t r, uint32_t row) {
      uint8_t* const place = placeAt(r, row, ep.parts);
      // Returns number j of the row: the token, the local experts, the weights, the places.
      const auto number = [&](uint32_t j) -> uint32_t {
        if (j == 0) return token;
        const uint32_t k = (j - 1) % choices;
        if (j > 3 * choices) return 0;
        const uint32_t owner = routing.owners[t * choices + k];
        const bool isThere = owner >> 16 == r;
        if (j <= choices) return isThere ? owner & 0xffff : ~0u;
        return j <= 2 * choices ? weight(k) : isThere ? routing.places[t * choices + k] : 0;
      };
      for (uint32_t i = b.lane; i < words; i += 32) {
        put(place, ep.parts, i, number(2 * i) | static_cast<uint64_t>(number(2 * i + 1)) << 32);
      }
    });
    const uint64_t at = static_cast<uint64_t>(token) * choices;
    for (uint32_t r = b.lane; r < ep.ranks; r += 32) {
      store4(call.tables + ep.tableRows + (static_cast<uint64_t>(token) * ep.ranks + r) * 4,
             static_cast<uint32_t>(routing.rows[t * ep.ranks + r]));
    }
    for (uint32_t k = b.lane; k < choices; k += 32) {
      store4(call.tables + ep.tableChoices + (at + k) * 4, static_cast<uint32_t>(routing.experts[t * choices + k]));
      store4(call.tables + ep.tableWeights + (at + k) * 4, weight(k));
    }
  }

  // Sends a token's numbers as e4m3, and the scale of each 128 of them. A half of the warp has 128 numbers at a time, a
  // thread 8 of them.
  //
  // The scale is the largest absolute value, at least 1e-4, divided by 448, or the next power of two. A NaN becomes a NaN and
  // does not count for the scale; with an infinity, the scale is infinite, what is infinite becomes a NaN, and all else 0.
  template <uint32_t Type>
  MSCCLPP_DEVICE_INLINE void sendQuantised(uint32_t token, uint32_t t, uint32_t sub, uint32_t subs) const {
    using N = Number<Type>;
    using E4m3 = Number<ReduceF8E4m3>;
    const uint32_t bytes = ep.hidden * 2, groups = (ep.hidden + 127) / 128, half = b.lane / 16;
    const uint8_t* const row = call.rows[0] + static_cast<uint64_t>(token) * bytes;
    // Thread r has the places of the numbers and of the scales at rank r, if the token goes there.
    uint64_t places[2] = {0, 0};
    const int32_t own = b.lane < ep.ranks ? routing.rows[t * ep.ranks + b.lane] : -1;
    for (uint32_t segment = 0; segment < 2 && own >= 0; ++segment) {
      places[segment] = reinterpret_cast<uint64_t>(placeAt(b.lane, static_cast<uint32_t>(own), segment));
    }
    // Puts a word of a segment, if `has` is true, at all ranks to which the token goes. All threads of the warp call it.
    const auto putAll = [&](bool has, uint32_t segment, uint32_t i, uint64_t word) {
      for (uint32_t r = 0; r < ep.ranks; ++r) {
        const uint64_t place = warpShuffle(places[segment], r);
        if (has && place != 0) put(reinterpret_cast<uint8_t*>(place), segment, i, word);
      }
    };
    // The scales of 8 groups may be one word, so a warp has 8 groups in a row.
    uint64_t exponents = 0;
    for (uint32_t group = sub * 8; group < groups; group += group % 8 == 6 ? subs * 8 - 6 : 2) {
      const uint32_t at = (group + half) * 128 + b.lane % 16 * 8;
      float values[8];
      float most = 1e-4f;
#pragma unroll
      for (uint32_t w = 0; w < 2; ++w) {
        const uint32_t i = at / 4 + w;
        const uint64_t word = i * 4 < ep.hidden ? messageWord(row, bytes, i) : 0;
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          const float value = N::widen(word >> (16 * j));
          const float size = value < 0 ? -value : value;
          values[w * 4 + j] = value;
          if (size > most) most = size;
        }
      }
#pragma unroll
      for (uint32_t distance = 8; distance > 0; distance /= 2) {
        const float other = bitsAs<float>(warpShuffle(bitsAs<uint32_t>(most), b.lane ^ distance));
        if (other > most) most = other;
      }
      float scale = most / 448.0f, factor = 448.0f / most;
      if (ep.quantisation == EpE4m3Ue8m0) {
        const uint32_t bits = bitsAs<uint32_t>(scale), exponent = (bits + 0x7fffffu) >> 23;
        scale = bitsAs<float>(exponent << 23);
        factor = exponent < 254 ? bitsAs<float>((254 - exponent) << 23) : 0.0f;
      }
      uint64_t word = 0;
#pragma unroll
      for (uint32_t j = 0; j < 8; ++j) word |= E4m3::narrow(multiplyValues(values[j], factor)) << (8 * j);
      putAll(at < ep.hidden, 0, at / 8, word);
      const uint32_t bits = bitsAs<uint32_t>(scale), other = warpShuffle(bits, 16);
      if (ep.quantisation == EpE4m3) {
        putAll(b.lane == 0, 1, group / 2, bits | static_cast<uint64_t>(group + 1 < groups ? other : 0) << 32);
        continue;
      }
      const uint32_t second = group + 1 < groups ? other >> 23 : 0;
      exponents |= static_cast<uint64_t>(bits >> 23 | second << 8) << (group % 8 * 8);
      if (group % 8 == 6 || group + 2 >= groups) {
        putAll(b.lane == 0, 1, group / 8, exponents);
        exponents = 0;
      }
    }
  }

  // ---- routing

  MSCCLPP_DEVICE_INLINE uint32_t rankOf(int32_t expert) const { return load4(ep.experts + expert) >> 16; }
  MSCCLPP_DEVICE_INLINE uint32_t localOf(int32_t expert) const { return load4(ep.experts + expert) & 0xffff; }

  // Returns the expert of choice `i` of all tokens, or -1. Other numbers are reported if `reports` says so.
  MSCCLPP_DEVICE_INLINE int32_t expertOf(uint64_t i, bool reports) const {
    const int64_t id = call.idBytes == 8 ? static_cast<int64_t>(load8(call.ids + i * 8)) : signedWord(call.ids, i);
    if (id >= 0 && id < static_cast<int64_t>(ep.nExperts)) return static_cast<int32_t>(id);
    if (reports && id != -1) b.report(EpBadExpert, static_cast<uint32_t>(i / ep.topK) + 1);
    return -1;
  }

  MSCCLPP_DEVICE_INLINE void countOne(uint32_t of) {
    detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Device, MemorySpace::Any>(counts + of, uint32_t{1});
  }

  // Counts the tokens before those of this block. Sums do not depend on the order in which threads add.
  MSCCLPP_DEVICE_INLINE void countBefore() {
    for (uint32_t i = b.thread; i < ep.nExperts + ep.ranks; i += b.threads) counts[i] = 0;
    blockSync();
    for (uint32_t t = b.thread; t < first; t += b.threads) {
      const uint64_t at = static_cast<uint64_t>(t) * ep.topK;
      uint32_t ranks = 0;
      for (uint32_t k = 0; k < ep.topK; ++k) {
        const int32_t expert = expertOf(at + k, false);
        bool again = expert < 0;
        for (uint32_t before = 0; before < k && !again; ++before) again = expertOf(at + before, false) == expert;
        if (again) continue;
        countOne(static_cast<uint32_t>(expert));
        ranks |= 1u << rankOf(expert);
      }
      for (uint32_t r = 0; r < ep.ranks; ++r) {
        if ((ranks >> r & 1) != 0) countOne(ep.nExperts + r);
      }
    }
  }

  // Routes `n` tokens from `token` on: each expert and each rank has a thread, which numbers its tokens in their order.
  MSCCLPP_DEVICE_INLINE void route(uint32_t token, uint32_t n) {
    const uint32_t choices = n * ep.topK;
    blockSync();
    for (uint32_t i = b.thread; i < choices; i += b.threads) {
      const uint64_t at = static_cast<uint64_t>(token) * ep.topK + i;
      const int32_t expert = expertOf(at, true);
      routing.experts[i] = expert;
      routing.owners[i] = expert < 0 ? EpNoExpert : load4(ep.experts + expert);
    }
    blockSync();
    for (uint32_t of = b.thread; of < ep.nExperts + ep.ranks; of += b.threads) {
      uint32_t next = counts[of];
      for (uint32_t t = 0; t < n; ++t) {
        bool has = false;
        for (uint32_t k = 0; k < ep.topK; ++k) {
          const uint32_t i = t * ep.topK + k;
          if (of >= ep.nExperts) {
            has |= routing.owners[i] >> 16 == of - ep.nExperts;
          } else if (routing.experts[i] == static_cast<int32_t>(of)) {
            routing.places[i] = next;
            has = true;
          }
        }
        if (of >= ep.nExperts) routing.rows[t * ep.ranks + of - ep.nExperts] = has ? static_cast<int32_t>(next) : -1;
        next += has;
      }
      counts[of] = next;
    }
    blockSync();
  }

  // Takes the rows of a routing that is used again out of its tables.
  MSCCLPP_DEVICE_INLINE void routeAgain(uint32_t token, uint32_t n) {
    blockSync();
    for (uint32_t i = b.thread; i < n * ep.ranks; i += b.threads) {
      routing.rows[i] = signedWord(call.tables + ep.tableRows, static_cast<uint64_t>(token) * ep.ranks + i);
    }
    blockSync();
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_SEND_DEVICE_HPP_
