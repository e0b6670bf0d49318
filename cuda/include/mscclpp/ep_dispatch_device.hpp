// Dispatch: each token of this rank goes to the ranks of its experts. ep_device.hpp has the rules. For the library's own use.

#ifndef MSCCLPP_EP_DISPATCH_DEVICE_HPP_
#define MSCCLPP_EP_DISPATCH_DEVICE_HPP_

#include "mscclpp/copy_device.hpp"
#include "mscclpp/ep_call_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

constexpr uint32_t EpNoExpert = ~0u;

// Numbers of a block in shared memory: the tokens that it routes at once, and the headers of what has come.
struct EpRouting {
  // The expert of each choice or -1; its word of EpHandle::experts, or EpNoExpert; and the place of the token among those of this
  // rank for that expert.
  int32_t experts[EpChoicesAtOnce];
  uint32_t owners[EpChoicesAtOnce];
  uint32_t places[EpChoicesAtOnce];
  // The row of each token at each rank, or -1.
  int32_t rows[EpChoicesAtOnce];
  // What has come from each rank: the number of its rows, of its tokens, and its flags.
  uint32_t heads[3][EpMaxRanks];
};

// A dispatch, as one block does it.
//
// `counts` are words in shared memory. While the block routes, they say for each expert, and behind them for each rank, how many
// tokens before its own go there. While it receives, they say for each rank and local expert where the rows of that rank begin
// among those of the expert; behind them for each expert how many rows it has, and where they begin.
struct EpDispatcher {
  const EpHandle& ep;
  const EpDispatch& call;
  const EpBlock b;
  EpRouting& routing;
  uint32_t* const counts;
  const Ll16Packets packets;
  const EpCounts* const tables;
  // Whether this rank's rows travel as packets.
  const bool packed;
  // The tokens of this block.
  const uint32_t first, end;

  MSCCLPP_DEVICE_INLINE EpDispatcher(const EpHandle& ep, const EpDispatch& call, EpRouting& routing, uint32_t* counts)
      : ep(ep),
        call(call),
        b(ep, call.microBatch, EpDispatching),
        routing(routing),
        counts(counts),
        packets(b.epoch),
        tables(reinterpret_cast<const EpCounts*>(call.tables)),
        packed(call.tokens <= ep.packetTokens),
        first(static_cast<uint32_t>(static_cast<uint64_t>(call.tokens) * b.block / b.blocks)),
        end(static_cast<uint32_t>(static_cast<uint64_t>(call.tokens) * (b.block + 1) / b.blocks)) {}

  MSCCLPP_DEVICE_INLINE void run() {
    if (!b.begin()) return;
    bool failed = !send();
    if (!failed) failed = !receive();
    b.end(failed);
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

  // ---- sending

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

  // The header of this rank's rows at rank r has one packet for each word: the number of rows and of tokens, the flags, and
  // for each local expert how many of the rows are for it.
  MSCCLPP_DEVICE_INLINE uint8_t* header(uint32_t at, uint32_t from, uint32_t word) const {
    return b.place(at, ep.headers + (static_cast<uint64_t>(from) * (ep.mostLocal + 2) + word) * 16);
  }
  // By the block whose last token is the last of all: it has counted all.
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
  // Returns the place of the packets of a segment of row n of rank `from` in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint8_t* packetAt(uint32_t at, uint32_t from, uint64_t n, uint32_t segment) const {
    const uint64_t row = static_cast<uint64_t>(from) * ep.packetTokens + n;
    return b.place(at, ep.packets + (row * ep.rowWords + ep.segmentWord[segment]) * 16);
  }
  // Returns the place of a segment of row n of rank `from` in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint8_t* rowAt(uint32_t at, uint32_t from, uint64_t n, uint32_t segment) const {
    return b.place(at, ep.segments[segment] + (static_cast<uint64_t>(from) * ep.capacity + n) * ep.segmentStride[segment]);
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

  // ---- receiving

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

#endif  // MSCCLPP_EP_DISPATCH_DEVICE_HPP_
