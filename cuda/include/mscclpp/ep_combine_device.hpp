// Combine: the experts' rows of each token go back to the token's rank, which sums them. ep_device.hpp has the rules. For the
// library's own use.

#ifndef MSCCLPP_EP_COMBINE_DEVICE_HPP_
#define MSCCLPP_EP_COMBINE_DEVICE_HPP_

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

// The sums as they are. Kernels of programs have their own struct in place of this one, see ep_device.hpp.
struct EpSumsAsTheyAre {
  template <uint32_t Count>
  MSCCLPP_DEVICE_INLINE void finish(uint32_t, uint32_t, float (&)[Count]) const {}
};

// A combine, as one block does it.
template <uint32_t Type, bool ByPackets, class Sums = EpSumsAsTheyAre, class Call = EpCombine>
struct EpCombiner : EpTermSums<Type> {
  using Base = EpTermSums<Type>;
  using typename Base::UnitSums;
  using Base::addTerm;
  using Base::addTo;
  using Base::b;
  using Base::Count;
  using Base::ep;
  using Base::narrowed;
  using Base::terms;
  using Base::units;
  using Base::vectorAt;

  const Call& call;
  // For each rank, how many rows go back to it, and how many tokens it has.
  EpHeads& heads;
  const Ll16Packets packets;
  const EpCounts* const tables;
  const Sums finished;

  MSCCLPP_DEVICE_INLINE EpCombiner(const EpHandle& ep, const Call& call, EpTerms& terms, EpHeads& heads,
                                   const Sums& finished = Sums())
      : Base(ep, call.microBatch, terms),
        call(call),
        heads(heads),
        packets(b.epoch),
        tables(reinterpret_cast<const EpCounts*>(call.tables)),
        finished(finished) {}

  // Does the combine, or one of its EpHalves.
  MSCCLPP_DEVICE_INLINE void run(uint32_t halves) {
    if constexpr (!ByPackets) {
      // X7. The counts of this call, and the counter of the next one.
      if (b.thread < EpPhases) heads.sent[b.thread] = 0;
      if (b.block == 0 && b.thread == 0 && halves != EpReceives) {
        b.clearNext(EpNextPart);
      }
    }
    if (b.thread < ep.ranks) {
      heads.rows[b.thread] = load4(tables->received + b.thread);
      heads.tokens[b.thread] = load4(tables->theirs + b.thread);
    }
    // To send a row as it is takes less of a block than to sum rows.
    const uint32_t own = b.split(ByPackets, halves, call.oneRow != 0 ? b.blocks / 4 : b.blocks / 2);
    if (b.givesUp(!b.template begin<ByPackets>(halves))) return;
    // If a rank has many tokens, some blocks send while the others sum; otherwise all do one after the other. All ranks know
    // the tokens of all.
    bool many = false;
    for (uint32_t r = 0; r < ep.ranks; ++r) many = many || isMany(heads.tokens[r]);
    const uint32_t some = sendersOf(b.blocks), senders = halves == EpBoth && many && some != 0 ? some : b.numbers;
    bool failed = false;
    if ((own & EpSends) != 0) {
      // One hop before everything else, if the experts' ranks have not the weights. It is not known here which of them need
      // them.
      if (call.late != 0 && call.exact == 0) sendWeights();
      failed = blockAny(b.number < senders && !send(senders, many ? EpPhases : 1));
    }
    if ((own & EpReceives) != 0) {
      failed = failed || !sum(senders);
      if constexpr (ByPackets) {
        failed = failed || (b.isLastByNumber() && !b.haveBegun());
      } else {
        failed = blockAny(failed);
        // X2, X3. All blocks have read what came, and what the experts made of the rows of dispatch.
        if (!failed && b.isLast()) {
          b.free(EpCombining, b.epoch);
          freeDispatch(b, call.tables);
        }
      }
    }
    b.end(halves, failed);
  }

  // X3. Frees the rows of a dispatch in the layout EpLayoutRank, if no other has begun since. All threads of one block call it.
  MSCCLPP_DEVICE_INLINE static void freeDispatch(const EpBlock& b, const uint8_t* tables) {
    const EpCounts* const counts = reinterpret_cast<const EpCounts*>(tables);
    const uint64_t epoch = load8(&counts->epoch);
    if (load4(&counts->layout) == EpLayoutRank && epoch == load8(b.epochs(EpDispatching))) b.free(EpDispatching, epoch);
  }

  // Says so if the rows of a dispatch in the layout EpLayoutRank were freed, or if another dispatch has come since. One thread.
  MSCCLPP_DEVICE_INLINE static void checkReceived(const EpBlock& b, const uint8_t* tables) {
    const uint64_t epoch = load8(&reinterpret_cast<const EpCounts*>(tables)->epoch);
    // This rank frees its own rows in its own scratch, too. Rows that are made of packets are not freed.
    const uint64_t* const freed = b.line(b.ep.rank, b.ep.rank, EpFreed, EpDispatching);
    const bool areFreed = b.ep.otherBytes == 0 && detail::load<MemoryOrder::Relaxed, MemoryScope::System>(freed) >= epoch;
    if (areFreed || epoch != load8(b.epochs(EpDispatching))) b.report(EpRowsGone, b.microBatch + 1);
  }

  MSCCLPP_DEVICE_INLINE static bool isMany(uint32_t tokens) { return !ByPackets && tokens >= EpManyTokens; }
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
    if (call.oneRow == 0 || ep.ranks != 2) return blocks / 2;
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

  // The parts of a row.
  MSCCLPP_DEVICE_INLINE uint32_t parts() const { return (ep.resultBytes + EpPartBytes - 1) / EpPartBytes; }

  // ---- the experts' rank

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
    // Rows that are sent as they are need no set-up, so their parts are shared out; others so only if there are few.
    // This rank's own rows stay where they are then.
    const uint32_t owners = call.oneRow != 0 ? ep.ranks - 1 : ep.ranks;
    const uint32_t most = sums ? units() : parts(), subs = call.oneRow != 0 ? most : subsOf(rows * owners, warps, most);
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
        const int32_t place = signedWord(received, 1 + 2 * ep.topK + k);
        uint32_t weight = load4(received + (1 + ep.topK + k) * 4ull);
        if (late) {
          uint64_t word = 0;
          failed = !b.take(packets, weightPacket(ep.rank, owner, row, k / 2), word, owner) || failed;
          weight = static_cast<uint32_t>(word >> (k % 2 * 32));
        }
        term.weight = bitsAs<float>(weight);
        const uint64_t at = static_cast<uint32_t>(place);
        if (isHere && place >= 0 && at < call.outRows) term.row = call.rows + at * ep.resultBytes;
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
    uint8_t* const place = partRow(owner, ep.rank, row);
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
#pragma unroll 1
      for (uint32_t j = 0; j < terms.count; ++j) {
        sendWhole(choiceRow(owner, choices + terms.of[j].of), terms.of[j].row, sub, subs);
      }
      return true;
    }
#pragma unroll 1
    for (uint32_t unit = sub; unit < units(); unit += subs) {
      UnitSums sums = {};
      this->template addTerms<false>(sums, unit);
      Bytes16 sent[EpVectorsOfUnit];
#pragma unroll
      for (uint32_t v = 0; v < EpVectorsOfUnit; ++v) sent[v] = Bytes16{narrowed(sums[v][0]), narrowed(sums[v][1])};
      if constexpr (ByPackets) {
        EpRowPackets(b).put(place, ep.resultBytes, vectorAt(unit, 0), sent);
      } else {
#pragma unroll
        for (uint32_t v = 0; v < EpVectorsOfUnit; ++v) putVector(place, ep.resultBytes, vectorAt(unit, v), sent[v]);
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
    sendWhole(partRow(owner, ep.rank, row), onlyRow(owner, row), sub, subs);
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

  // Sends parts of a row as it is, or zeros if there is none. All threads of a warp call it.
  MSCCLPP_DEVICE_INLINE void sendWhole(uint8_t* place, const uint8_t* row, uint32_t sub, uint32_t subs) const {
#pragma unroll 1
    for (uint32_t part = sub; part < parts(); part += subs) {
      EpPart sent = {};
      if (row != nullptr) sent = loadPart(row, ep.resultBytes, part, b.lane);
      if constexpr (ByPackets) {
        EpRowPackets(b).put(place, ep.resultBytes, part * (EpPartBytes / 16) + b.lane, sent.of);
      } else {
        putPart(place, ep.resultBytes, part, b.lane, sent);
      }
    }
  }

  // The places of what comes to a token's rank: from each rank the sums of its rows, and for each choice its row.
  MSCCLPP_DEVICE_INLINE uint8_t* partRow(uint32_t at, uint32_t from, uint64_t row) const {
    return b.placeOfCall(at, ep.results + (from * static_cast<uint64_t>(ep.capacity) + row) * ep.resultStride);
  }
  MSCCLPP_DEVICE_INLINE uint8_t* choiceRow(uint32_t at, uint64_t choice) const {
    return b.placeOfCall(at, ep.choiceResults + choice * ep.resultStride);
  }

  // ---- the token's rank

  // Sums this rank's tokens. While some blocks send, the others sum the first ones; all sum the last ones.
  MSCCLPP_DEVICE_INLINE bool sum(uint32_t senders) const {
    const bool times = call.addedWaits != nullptr && b.isLastByNumber();
    if (times && !b.template addWaits<ByPackets>(call.addedWaits, EpPhases - 1)) return false;
    const uint32_t summing = b.numbers - senders, most = rowsBefore(EpPhases - 1, call.tokens, call.tokens);
    const uint32_t early = summing == 0 ? 0 : most < call.tokens ? most : call.tokens;
    Arrived arrived = {0, 0};
    bool done = true;
#pragma unroll 1
    for (bool all = b.number < senders; done; all = true) {
      const uint32_t warp = all ? b.warp() : b.warpOfBlock() * summing + b.number - senders;
      const uint32_t begin = all ? early : 0, end = all ? call.tokens : early;
      done = sumTokens(begin, end, warp, all ? b.warps() : b.warpsOfBlock() * summing, arrived);
      if (all) break;
    }
    return done;
  }
  // The phases of rank r for which thread r has waited, and how many rows were sent in them.
  struct Arrived {
    uint32_t phases, rows;
  };
  MSCCLPP_DEVICE_INLINE bool sumTokens(uint32_t begin, uint32_t end, uint32_t warp, uint32_t warps, Arrived& arrived) const {
    // A token is no more than a few units' work for a warp, so that all warps end at the same time.
    const uint32_t least = (units() + 7) / 8, few = subsOf(end - begin, warps, units()), subs = few < least ? least : few;
    bool failed = false;
#pragma unroll 1
    for (uint32_t u = warp; u < (end - begin) * subs && !failed; u += warps) {
      const uint32_t n = u / subs;
      if constexpr (!ByPackets) failed = !haveArrived(begin + n, arrived);
      failed = failed || !sumToken(begin + n, u - n * subs, subs);
      if (failed) break;
      if (call.outWeights != nullptr && u == n * subs) {
        failed = warpFailed(!takeRowWeights(ep, call, heads, packets, b.placeOfCall(ep.rank, ep.weightPackets), begin + n, b.lane));
      }
    }
    return !failed;
  }

  // Notes the terms of a token for the warp, one for each choice, or for each rank.
  MSCCLPP_DEVICE_INLINE void noteTermsOf(uint32_t token) const {
    const uint32_t n = call.exact != 0 ? ep.topK : ep.ranks;
    uint32_t count = 0;
    warpSync();
#pragma unroll 1
    for (uint32_t begin = 0; begin < n; begin += 32) {
      const uint32_t j = begin + b.lane;
      EpTerm term = {nullptr, 1.0f, j};
      if (j < n && call.exact != 0) {
        const uint64_t choice = static_cast<uint64_t>(token) * ep.topK + j;
        const int32_t expert = signedWord(call.tables + ep.tableChoices, choice);
        const uint8_t* const weights =
            call.late != 0 ? reinterpret_cast<const uint8_t*>(call.weights) : call.tables + ep.tableWeights;
        term.weight = bitsAs<float>(load4(weights + choice * 4));
        // The place of a lost rank still has the row of an earlier call.
        if (expert >= 0 && !epIsLost(ep, load4(ep.experts + static_cast<uint32_t>(expert)) >> 16)) {
          term.row = choiceRow(ep.rank, choice);
          term.of = load4(ep.experts + static_cast<uint32_t>(expert)) >> 16;
        }
      } else if (j < n) {
        const int32_t row = rowOf(token, j);
        const uint32_t at = static_cast<uint32_t>(row);
        const bool isHere = call.oneRow != 0 && j == ep.rank;
        if (row >= 0 && !epIsLost(ep, j)) term.row = isHere ? onlyRow(j, at) : partRow(ep.rank, j, at);
        if (isHere) term.of = EpOfNobody;
      }
      count = addTerm(term.row != nullptr, term, count);
    }
    warpSync();
  }

  // Sums the weights that the ranks have sent for a token, in the order of the ranks. Returns false, in any thread of the warp
  // that calls it, if a wait was given up. Not inlined: few calls want it.
  MSCCLPP_DEVICE_NOINLINE static bool takeRowWeights(const EpHandle& ep, const EpCombine& call, const EpHeads& heads,
                                                     Ll16Packets packets, const uint8_t* from, uint32_t token, uint32_t lane) {
    for (uint32_t k = lane; k < ep.topK; k += 32) {
      float sum = 0;
      for (uint32_t r = 0; r < ep.ranks; ++r) {
        const int32_t row = signedWord(call.tables + ep.tableRows, static_cast<uint64_t>(token) * ep.ranks + r);
        if (row < 0) continue;
        const uint32_t n = static_cast<uint32_t>(row);
        if (r == ep.rank) {
          const uint64_t at = numberOf(ep, call, heads, r, n);
          if (at < call.outRows) sum += bitsAs<float>(load4(call.rowWeights + (at * ep.topK + k) * 4));
        } else {
          const uint64_t packet = (static_cast<uint64_t>(r) * ep.capacity + n) * ((ep.topK + 1) / 2) + k / 2;
          const EpTaken taken = epTake(packets, from + packet * 16, ep, r);
          if (!taken.came) return false;
          if (taken.word != EpNoWord || !epIsLost(ep, r)) sum += bitsAs<float>(static_cast<uint32_t>(taken.word >> (k % 2 * 32)));
        }
      }
      store4(call.outWeights + (static_cast<uint64_t>(token) * ep.topK + k) * 4, bitsAs<uint32_t>(sum));
    }
    return true;
  }

  // Waits until the rows of a token have come. All threads of a warp call it, and get the same. A warp's tokens follow each
  // other, and so do the phases of their rows.
  MSCCLPP_DEVICE_INLINE bool haveArrived(uint32_t token, Arrived& arrived) const {
    bool failed = false;
    if (b.lane < ep.ranks && (call.oneRow == 0 || b.lane != ep.rank)) {
      const int32_t row = rowOf(token, b.lane);
      if (row >= static_cast<int32_t>(arrived.rows) && arrived.phases < EpPhases && !epIsLost(ep, b.lane)) {
        const uint32_t sent = load4(tables->sent + b.lane);
        do {
          arrived.rows = rowsBefore(++arrived.phases, sent, call.tokens);
        } while (arrived.phases < EpPhases && static_cast<uint32_t>(row) >= arrived.rows);
        failed = !b.hasArrived(b.lane, arrived.phases - 1);
      }
    }
    return !warpFailed(failed);
  }

  // Sums each `subs`-th unit of a token, from unit `sub` on. All threads of a warp call it, and get false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool sumToken(uint32_t token, uint32_t sub, uint32_t subs) const {
    noteTermsOf(token);
    const uint32_t bytes = ep.resultBytes;
    const uint64_t at = static_cast<uint64_t>(token) * bytes;
#pragma unroll 1
    for (uint32_t unit = sub; unit < units(); unit += subs) {
      UnitSums sums = {};
      if (!this->template addTerms<ByPackets>(sums, unit)) return false;
#pragma unroll
      for (uint32_t v = 0; v < EpVectorsOfUnit; ++v) {
        const uint32_t i = vectorAt(unit, v);
        if (i * 16 < bytes) storeSum(token, at, i, sums[v]);
      }
    }
    return true;
  }
  // Stores vector i of the sum of a token, whose row is at `at` in the result, with what is added last.
  MSCCLPP_DEVICE_INLINE void storeSum(uint32_t token, uint64_t at, uint32_t i, float (&sums)[2][Count]) const {
    const uint32_t bytes = ep.resultBytes;
#pragma unroll 1
    for (uint32_t j = 0; j < 2 && call.bias[j] != nullptr; ++j) {
      const Bytes16 bias = vectorOf(call.bias[j] + at, bytes, i);
      addTo(sums[0], 1.0f, bias.low);
      addTo(sums[1], 1.0f, bias.high);
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      // A row may end with half a vector.
      if (half == 0 || i * 16 + 8 < bytes) finished.finish(token, (i * 2 + half) * Count, sums[half]);
    }
    storeVectorOf(call.out + at, bytes, i, Bytes16{narrowed(sums[0]), narrowed(sums[1])});
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_COMBINE_DEVICE_HPP_
