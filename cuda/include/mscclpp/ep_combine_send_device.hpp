// The first part of a combine: the experts' rows go back to the ranks of their tokens. For the library's own use.

#ifndef MSCCLPP_EP_COMBINE_SEND_DEVICE_HPP_
#define MSCCLPP_EP_COMBINE_SEND_DEVICE_HPP_

#include "mscclpp/ep_terms_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// A function that is not inlined for GPUs of AMD: blocks of 1024 threads have too few registers there.
#if defined(MSCCLPP_DEVICE_HIP)
#define MSCCLPP_EP_APART_ON_AMD MSCCLPP_DEVICE_NOINLINE
#else
#define MSCCLPP_EP_APART_ON_AMD MSCCLPP_DEVICE_INLINE
#endif

// The part of a combine that sends rows, and what both of its parts know: its phases, and the places of rows.
template <uint32_t Type, bool ByPackets, class Call>
struct EpCombineSender : EpTermSums<Type, Call::isAligned> {
  using Base = EpTermSums<Type, Call::isAligned>;
  using Base::addTerm;
  using Base::b;
  using Base::ep;
  using Base::narrowed;
  using Base::terms;

  // The vectors of a row that a thread sums up at once before it sends them. They are fewer than EpVectorsOfUnit, so that it has
  // more rows under way: a token may have many here, and one of each rank where they are summed last.
  static constexpr uint32_t SentVectors = ByPackets ? EpVectorsOfUnit : EpVectorsOfUnit / 2;

  const Call& call;
  // For each rank, how many rows go back to it, and how many tokens it has.
  EpHeads& heads;
  const Ll16Packets packets;
  const EpCounts* const tables;

  MSCCLPP_DEVICE_INLINE EpCombineSender(const EpHandle& ep, const Call& call, EpTerms& terms, EpHeads& heads)
      : Base(ep, call.microBatch, terms),
        call(call),
        heads(heads),
        packets(b.epoch),
        tables(reinterpret_cast<const EpCounts*>(call.tables)) {}

  // Whether rows travel as they are. Then those of this rank's own tokens stay where the experts made them.
  MSCCLPP_DEVICE_INLINE bool travelAsTheyAre() const { return call.oneRow != 0 || call.exact != 0; }
  MSCCLPP_DEVICE_INLINE bool isMany(uint32_t tokens) const {
    return !ByPackets && tokens >= (call.exact != 0 ? EpManyTokens / 2 : EpManyTokens);
  }
  // Whether the `rows` that a rank sends to another are so many that warps may share a counter of them: X7. Both ranks know it.
  MSCCLPP_DEVICE_INLINE bool areShared(uint32_t rows) const {
    return !ByPackets && ep.ranks == 2 && ep.maxBlocks * 5 / 16 >= EpDynamicSenders && rows >= EpDynamicRows;
  }
  // Whether this rank's warps do.
  MSCCLPP_DEVICE_INLINE bool isDynamic() const {
    return call.oneRow != 0 && ep.ranks == 2 && areShared(heads.rows[1 - ep.rank]);
  }
  // Returns how many of the blocks send while the others sum.
  MSCCLPP_DEVICE_INLINE uint32_t sendersOf(uint32_t blocks) const {
    if (!travelAsTheyAre() || ep.ranks != 2) return blocks / 2;
    const uint32_t fewest = blocks * 5 / 32;
    return fewest >= EpDynamicSenders && isDynamic() ? fewest : blocks * 5 / 16;
  }
  // Returns the number of the first row of a phase among `rows`, which are a rank's for one of so many tokens; it may be behind
  // the last row. The first phase is the largest. If warps may share a counter, the last phases are small, since what comes in
  // the last one is summed when nothing is sent any more. Byte i of the constant has the 32nd parts before phase i.
  MSCCLPP_DEVICE_INLINE uint32_t rowsBefore(uint32_t phase, uint32_t rows, uint32_t tokens) const {
    if (!isMany(tokens)) return phase * rows;
    if (phase == EpPhases || !areShared(rows)) return phase * ((rows + EpPhases - 1) / EpPhases);
    return (rows + 31) / 32 * (static_cast<uint32_t>(0x1e1c1a16120c0600ull >> (phase * 8)) & 0xff);
  }

  MSCCLPP_DEVICE_INLINE uint8_t* receivedRow(uint32_t rank, uint32_t n) const {
    return call.tables + ep.tableReceived +
           (static_cast<uint64_t>(rank) * ep.capacity + n) * ep.segmentStride[ep.parts];
  }
  MSCCLPP_DEVICE_INLINE int32_t rowOf(uint32_t token, uint32_t rank) const {
    return signedWord(call.tables + ep.tableRows, static_cast<uint64_t>(token) * ep.ranks + rank);
  }

  // The row that an expert made for choice k of the token of a row that came, or null if there is no memory for it.
  MSCCLPP_DEVICE_INLINE const uint8_t* rowOfChoice(const uint8_t* received, uint32_t k) const {
    const int32_t place = signedWord(received, 1 + 2 * ep.topK + k);
    const uint64_t at = static_cast<uint32_t>(place);
    return place >= 0 && at < call.outRows ? call.rows + at * ep.resultBytes : nullptr;
  }

  // The parts of a row.
  MSCCLPP_DEVICE_INLINE uint32_t parts() const { return (ep.resultBytes + EpPartBytes - 1) / EpPartBytes; }

  // Sends the rows that go back, as one of `senders` blocks. All threads of the block call it. Returns false if a wait was given
  // up.
  MSCCLPP_DEVICE_INLINE bool send(uint32_t senders, uint32_t phases) const {
    const uint32_t warps = b.warpsOfBlock() * senders, warp = b.warpOfBlock() * senders + b.number;
    const bool sums = call.exact == 0 && call.oneRow == 0;
    // The most rows of a rank in a phase.
    uint32_t rows = 0;
    bool failed = false;
    for (uint32_t r = 0; r < ep.ranks; ++r) {
      const uint32_t some = rowsBefore(1, heads.rows[r], heads.tokens[r]);
      if (some > rows) rows = some;
    }
    if constexpr (!ByPackets) {
      if (phases != 1 && isDynamic()) {
        sendDynamically(senders);
        return true;
      }
    }
    // A token with one row needs no set-up, so its parts are shared out; others so only if there are few.
    const uint32_t owners = travelAsTheyAre() ? ep.ranks - 1 : ep.ranks;
    const uint32_t most = sums ? this->template units<SentVectors>() : parts(), subs = call.oneRow != 0 ? most : subsOf(rows * owners, warps, most);
    const uint32_t r = b.lane < ep.ranks ? b.lane : 0;
    for (uint32_t phase = 0; phase < phases; ++phase) {
      // Thread r knows which rows of rank r are sent in the phase.
      const uint32_t first = rowsBefore(phase, heads.rows[r], heads.tokens[r]);
      const uint32_t next = rowsBefore(phase + 1, heads.rows[r], heads.tokens[r]);
      const uint32_t end = next < heads.rows[r] ? next : heads.rows[r];
      // The ranks get rows by turns, so that all links are busy; each rank begins behind itself. The first packets of all rows go
      // before the second ones: a warp at the token's rank takes those of its token one after the other.
      const uint32_t all = rows * owners;
      for (uint32_t u = warp; u < all * subs && !failed; u += warps) {
        const uint32_t sub = ByPackets ? u / all : u % subs, turn = ByPackets ? u - sub * all : u / subs;
        const uint32_t n = turn / owners, behind = turn - n * owners + 1 + ep.rank;
        const uint32_t owner = behind < ep.ranks ? behind : behind - ep.ranks, row = warpShuffle(first, owner) + n;
        if (row < warpShuffle(end, owner)) failed = !sendRow(owner, row, sub, subs);
      }
      if constexpr (!ByPackets) {
        if (blockAny(failed)) return false;
        b.signal(b.block, senders, phase);
      }
    }
    if constexpr (!ByPackets) b.skip(b.block, senders, phases, EpPhases);
    return !failed;
  }

  // X7. Sends many rows as they are to the one other rank. Multiprocessors do not all send at the same speed, so warps have no
  // equal shares: a warp takes the next part of a row when it has sent one, and waits for no other warp. The last warp of the
  // block that has begun a later phase signals those before.
  MSCCLPP_EP_APART_ON_AMD void sendDynamically(uint32_t senders) const {
    const uint32_t other = 1 - ep.rank, rows = heads.rows[other], tokens = heads.tokens[other], partsOfRow = parts();
    uint32_t next = b.lane == 0 ? b.takeNumber(EpNextPart) : 0, phase = 0;
#pragma unroll 1
    while (true) {
      const uint32_t part = warpShuffle(next, 0), row = part / partsOfRow;
      for (; phase < EpPhases && row >= rowsBefore(phase + 1, rows, tokens); ++phase) {
        if (isLastOfPhase(phase)) b.tellArrived(b.lane, b.block, senders, phase);
      }
      if (phase == EpPhases) return;
      // The next number is on its way while the warp sends.
      if (b.lane == 0) next = b.takeNumber(EpNextPart);
      // The last phases may have fewer rows.
      if (row < rows) sendOnlyRow(other, row, part - row * partsOfRow, partsOfRow);
    }
  }
  // Returns whether all other warps of the block have sent what they send in a phase, too. All threads of a warp call it.
  MSCCLPP_DEVICE_INLINE bool isLastOfPhase(uint32_t phase) const {
    uint32_t before = 0;
    warpSync();
    if (b.lane == 0) {
      before = detail::fetchAdd<MemoryOrder::AcquireRelease, MemoryScope::Block, MemorySpace::Any>(heads.sent + phase, 1u);
    }
    // Any thread may be the one that signals.
    warpSync();
    return warpShuffle(before, 0) + 1 == b.warpsOfBlock();
  }

  // Word i has the weights of choices 2 i and 2 i + 1. They go to the experts' ranks, or with EpCombine::rowWeights back.
  MSCCLPP_DEVICE_INLINE uint8_t* weightPacket(uint32_t at, uint32_t owner, uint32_t row, uint32_t i) const {
    const uint64_t packet = (static_cast<uint64_t>(owner) * ep.capacity + row) * ((ep.topK + 1) / 2) + i;
    return b.placeOfCall(at, ep.weightPackets + packet * 16);
  }
  MSCCLPP_DEVICE_INLINE void sendWeights() const {
    const uint32_t each = (ep.topK + 1) / 2;
    for (uint32_t token = b.warp(); token < call.tokens; token += b.warps()) {
      const uint8_t* const weights = reinterpret_cast<const uint8_t*>(call.weights + static_cast<uint64_t>(token) * ep.topK);
      for (uint32_t r = 0; r < ep.ranks; ++r) {
        const int32_t row = rowOf(token, r);
        for (uint32_t i = b.lane; i < each && row >= 0; i += 32) {
          packets.put(weightPacket(r, ep.rank, static_cast<uint32_t>(row), i), messageWord(weights, ep.topK * 4ull, i));
        }
      }
    }
  }

  // Notes the terms of a row for the warp, in the order of the choices. Returns whether the weights came. All threads of a warp
  // call it.
  MSCCLPP_DEVICE_INLINE bool noteTerms(uint32_t owner, uint32_t row) const {
    const uint8_t* const received = receivedRow(owner, row);
    const bool late = call.late != 0 && call.exact == 0 && call.oneRow == 0;
    bool failed = false;
    uint32_t count = 0;
    warpSync();
#pragma unroll 1
    for (uint32_t first = 0; first < ep.topK; first += 32) {
      const uint32_t k = first + b.lane;
      EpTerm term = {nullptr, 0, k};
      bool has = false;
      if (k < ep.topK) {
        const bool isHere = signedWord(received, 1 + k) >= 0;
        const uint8_t* const made = rowOfChoice(received, k);
        uint32_t weight = load4(received + (1 + ep.topK + k) * 4ull);
        if (late) {
          uint64_t word = 0;
          failed = !b.take(packets, weightPacket(ep.rank, owner, row, k / 2), word, owner) || failed;
          weight = static_cast<uint32_t>(word >> (k % 2 * 32));
        }
        term.weight = bitsAs<float>(weight);
        if (isHere) term.row = made;
        // With `exact`, each choice has its row at the token's rank, zeros if there is none.
        has = call.exact != 0 ? isHere : term.row != nullptr;
      }
      count = addTerm(has, term, count);
    }
    return !warpFailed(failed);
  }
  // Sends each `subs`-th part of the rows of a token to its rank, from part `sub` on. All threads of a warp call it, and get the
  // same.
  MSCCLPP_DEVICE_INLINE bool sendRow(uint32_t owner, uint32_t row, uint32_t sub, uint32_t subs) const {
    if (call.oneRow != 0) {
      sendOnlyRow(owner, row, sub, subs);
      return true;
    }
    if (!noteTerms(owner, row)) return false;
    if (call.exact != 0) {
      const uint32_t token = load4(receivedRow(owner, row));
      // X5. The tables may not have a row of a rank that is lost.
      if (token >= heads.tokens[owner]) return true;
      const uint64_t choices = static_cast<uint64_t>(token) * ep.topK;
      // A part of all rows of the token, and then the next one: the token's rank can sum what has come.
#pragma unroll 1
      for (uint32_t part = sub; part < parts(); part += subs) {
#pragma unroll 1
        for (uint32_t j = 0; j < terms.count; ++j) {
          sendPart(choiceRow(owner, choices + terms.of[j].of), terms.of[j].row, part);
        }
      }
      return true;
    }
    uint8_t* const place = partRow(owner, ep.rank, row);
#pragma unroll 1
    for (uint32_t unit = sub; unit < this->template units<SentVectors>(); unit += subs) {
      float sums[SentVectors][2][Base::Count] = {};
      this->template addTerms<false>(sums, unit);
      Bytes16 sent[SentVectors];
#pragma unroll
      for (uint32_t v = 0; v < SentVectors; ++v) sent[v] = Bytes16{narrowed(sums[v][0]), narrowed(sums[v][1])};
      if constexpr (ByPackets) {
        EpRowPackets(b).put(place, ep.resultBytes, this->template vectorAt<SentVectors>(unit, 0), sent);
      } else {
#pragma unroll
        for (uint32_t v = 0; v < SentVectors; ++v) {
          putVector(place, ep.resultBytes, this->template vectorAt<SentVectors>(unit, v), sent[v]);
        }
      }
    }
    return true;
  }

  // The number of the row of a token in a layout that has one for it. Rows from call.outRows on have no memory.
  MSCCLPP_DEVICE_INLINE static uint64_t numberOf(const EpHandle& ep, const EpCombine& call, const EpHeads& heads, uint32_t owner,
                                                 uint32_t row) {
    if (call.layout == EpLayoutRank) return static_cast<uint64_t>(owner) * ep.capacity + row;
    uint64_t at = row;
    for (uint32_t r = 0; r < owner; ++r) at += heads.rows[r];
    return at;
  }
  // The row of a token in a layout that has one for it, or null if there is no memory for it.
  MSCCLPP_DEVICE_INLINE const uint8_t* onlyRow(uint32_t owner, uint32_t row) const {
    const uint64_t at = numberOf(ep, call, heads, owner, row);
    return at < call.outRows ? call.rows + at * ep.resultBytes : nullptr;
  }

  // The same of the one row of a token, as it is.
  MSCCLPP_DEVICE_INLINE void sendOnlyRow(uint32_t owner, uint32_t row, uint32_t sub, uint32_t subs) const {
    uint8_t* const place = partRow(owner, ep.rank, row);
    const uint8_t* const made = onlyRow(owner, row);
#pragma unroll 1
    for (uint32_t part = sub; part < parts(); part += subs) sendPart(place, made, part);
    if (call.rowWeights != nullptr && sub == 0) sendRowWeights(owner, row);
  }

  // Sends the weights of the row of a token to its rank, or zeros if there is no memory for the row. All threads of a warp call
  // it.
  MSCCLPP_DEVICE_INLINE void sendRowWeights(uint32_t owner, uint32_t row) const {
    const uint64_t at = numberOf(ep, call, heads, owner, row);
    const uint8_t* const weights = call.rowWeights + at * ep.topK * 4;
#pragma unroll 1
    for (uint32_t i = b.lane; i < (ep.topK + 1) / 2; i += 32) {
      packets.put(weightPacket(owner, ep.rank, row, i), at < call.outRows ? messageWord(weights, ep.topK * 4ull, i) : 0);
    }
  }

  // Sends a part of a row as it is, or zeros if there is none. All threads of a warp call it.
  MSCCLPP_DEVICE_INLINE void sendPart(uint8_t* place, const uint8_t* row, uint32_t part) const {
    EpPart sent = {};
    if (row != nullptr) sent = loadPart<Call::isAligned>(row, ep.resultBytes, part, b.lane);
    if constexpr (ByPackets) {
      EpRowPackets(b).put(place, ep.resultBytes, part * (EpPartBytes / 16) + b.lane, sent.of);
    } else {
      putPart(place, ep.resultBytes, part, b.lane, sent);
    }
  }

  // The places of what comes to a token's rank: from each rank the sums of its rows, and for each choice its row.
  MSCCLPP_DEVICE_INLINE uint8_t* partRow(uint32_t at, uint32_t from, uint64_t row) const {
    return b.placeOfCall(at, ep.results + (from * static_cast<uint64_t>(ep.capacity) + row) * ep.resultStride);
  }
  MSCCLPP_DEVICE_INLINE uint8_t* choiceRow(uint32_t at, uint64_t choice) const {
    return b.placeOfCall(at, ep.choiceResults + choice * ep.resultStride);
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_COMBINE_SEND_DEVICE_HPP_
