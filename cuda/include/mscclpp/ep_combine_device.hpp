// Combine: the experts' rows of each token go back to the token's rank, which sums them. ep_device.hpp has the rules. For the
// library's own use.

#ifndef MSCCLPP_EP_COMBINE_DEVICE_HPP_
#define MSCCLPP_EP_COMBINE_DEVICE_HPP_

#include "mscclpp/ep_combine_send_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// The sums as they are. Kernels of programs have their own struct in place of this one, see ep_device.hpp.
struct EpSumsAsTheyAre {
  template <uint32_t Count>
  MSCCLPP_DEVICE_INLINE void finish(uint32_t, uint32_t, float (&)[Count]) const {}
};

// A combine, as one block does it.
template <uint32_t Type, bool ByPackets, class Sums = EpSumsAsTheyAre, class Call = EpCombine>
struct EpCombiner : EpCombineSender<Type, ByPackets, Call> {
  using Sender = EpCombineSender<Type, ByPackets, Call>;
  using Sender::addTerm;
  using Sender::addTo;
  using Sender::b;
  using Sender::call;
  using Sender::choiceRow;
  using Sender::Count;
  using Sender::ep;
  using Sender::heads;
  using Sender::isMany;
  using Sender::narrowed;
  using Sender::numberOf;
  using Sender::onlyRow;
  using Sender::packets;
  using Sender::partRow;
  using Sender::receivedRow;
  using Sender::rowOf;
  using Sender::rowOfChoice;
  using Sender::rowsBefore;
  using Sender::send;
  using Sender::sendersOf;
  using Sender::sendWeights;
  using Sender::tables;
  using Sender::travelAsTheyAre;

  const Sums finished;

  MSCCLPP_DEVICE_INLINE EpCombiner(const EpHandle& ep, const Call& call, EpTerms& terms, EpHeads& heads,
                                   const Sums& finished = Sums())
      : Sender(ep, call, terms, heads), finished(finished) {}

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
    const uint32_t own = b.split(ByPackets, halves, travelAsTheyAre() ? b.blocks / 4 : b.blocks / 2);
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
          b.freeDispatch(call.tables);
        }
      }
    }
    b.end(halves, failed);
  }

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
  MSCCLPP_DEVICE_INLINE uint32_t unitsOfToken() const { return this->template units<EpVectorsOfUnit>(); }

  // The phases of rank r for which thread r has waited, and how many rows were sent in them.
  struct Arrived {
    uint32_t phases, rows;
  };
  MSCCLPP_DEVICE_INLINE bool sumTokens(uint32_t begin, uint32_t end, uint32_t warp, uint32_t warps, Arrived& arrived) const {
    // A token is no more than a few units' work for a warp, so that all warps end at the same time.
    const uint32_t units = unitsOfToken(), least = (units + 7) / 8, few = subsOf(end - begin, warps, units), subs = few < least ? least : few;
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
        if (expert >= 0) term.of = load4(ep.experts + static_cast<uint32_t>(expert)) >> 16;
        if (expert >= 0 && term.of == ep.rank) {
          term.row = ownRow(token, j);
          term.of = EpOfNobody;
        } else if (expert >= 0 && !epIsLost(ep, term.of)) {
          // The place of a lost rank still has the row of an earlier call.
          term.row = choiceRow(ep.rank, choice);
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

  // The row of choice k of a token, which is for an expert of this rank, or null if there is no memory for it.
  MSCCLPP_DEVICE_INLINE const uint8_t* ownRow(uint32_t token, uint32_t k) const {
    const int32_t row = rowOf(token, ep.rank);
    return row < 0 ? nullptr : rowOfChoice(receivedRow(ep.rank, static_cast<uint32_t>(row)), k);
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
    if (b.lane < ep.ranks && (b.lane != ep.rank || !travelAsTheyAre())) {
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
    for (uint32_t unit = sub; unit < unitsOfToken(); unit += subs) {
      float sums[EpVectorsOfUnit][2][Count] = {};
      if (!this->template addTerms<ByPackets>(sums, unit)) return false;
#pragma unroll
      for (uint32_t v = 0; v < EpVectorsOfUnit; ++v) {
        const uint32_t i = this->template vectorAt<EpVectorsOfUnit>(unit, v);
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
      const Bytes16 bias = loadVector<Call::isAligned>(call.bias[j] + at, bytes, i);
      addTo(sums[0], 1.0f, bias.low);
      addTo(sums[1], 1.0f, bias.high);
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      // A row may end with half a vector.
      if (half == 0 || Call::isAligned || i * 16 + 8 < bytes) finished.finish(token, (i * 2 + half) * Count, sums[half]);
    }
    storeVector<Call::isAligned>(call.out + at, bytes, i, Bytes16{narrowed(sums[0]), narrowed(sums[1])});
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_COMBINE_DEVICE_HPP_
