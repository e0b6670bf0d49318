// Combine: the experts' rows of each token go back to the token's rank, which sums them. ep_device.hpp has the rules. For the
// library's own use.

#ifndef MSCCLPP_EP_COMBINE_DEVICE_HPP_
#define MSCCLPP_EP_COMBINE_DEVICE_HPP_

#include "mscclpp/ep_call_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// One choice of a token: its row (none if negative), and its weight.
struct EpTerm {
  int32_t row;
  float weight;
};

// A combine, as one block does it. `terms` is memory of the warp, shared by its threads.
template <uint32_t Type>
struct EpCombiner {
  using N = Number<Type>;
  // The numbers in a word of 8 bytes.
  static constexpr uint32_t Count = 8 / N::Bytes;

  const EpHandle& ep;
  const EpCombine& call;
  const EpBlock b;
  EpTerm* const terms;
  const Ll16Packets packets;
  const EpCounts* const tables;
  // The words of a row.
  const uint32_t words;

  MSCCLPP_DEVICE_INLINE EpCombiner(const EpHandle& ep, const EpCombine& call, EpTerm* terms)
      : ep(ep),
        call(call),
        b(ep, call.microBatch, EpCombining),
        terms(terms),
        packets(b.epoch),
        tables(reinterpret_cast<const EpCounts*>(call.tables)),
        words((ep.resultBytes + 7) / 8) {}

  MSCCLPP_DEVICE_INLINE void run() {
    if (!b.begin()) return;
    const bool failed = blockAny(!(send() && sum()));
    // X2, X3. All blocks have read what came, and what the experts made of the rows of dispatch.
    if (!failed && b.isLast()) {
      b.free(EpCombining, b.epoch);
      freeDispatch(b, call.tables);
    }
    b.end(failed);
  }

  // X3. Frees the rows of a dispatch in the layout EpLayoutRank, if no other has begun since. All threads of one block call it.
  MSCCLPP_DEVICE_INLINE static void freeDispatch(const EpBlock& b, const uint8_t* tables) {
    const EpCounts* const counts = reinterpret_cast<const EpCounts*>(tables);
    const uint64_t epoch = load8(&counts->epoch);
    if (load4(&counts->layout) == EpLayoutRank && epoch == load8(b.epochs(EpDispatching))) b.free(EpDispatching, epoch);
  }

  // Whether the rows of a rank's tokens come to it as packets: both sides know the number of its tokens.
  MSCCLPP_DEVICE_INLINE bool isPacked(uint32_t tokens) const { return tokens <= ep.packetTokens; }

  MSCCLPP_DEVICE_INLINE uint8_t* receivedRow(uint32_t rank, uint32_t n) const {
    return call.tables + ep.tableReceived +
           (static_cast<uint64_t>(rank) * ep.capacity + n) * ep.segmentStride[ep.parts];
  }
  MSCCLPP_DEVICE_INLINE int32_t rowOf(uint32_t token, uint32_t rank) const {
    return signedWord(call.tables + ep.tableRows, static_cast<uint64_t>(token) * ep.ranks + rank);
  }

  // ---- the experts' rank

  MSCCLPP_DEVICE_INLINE bool send() const {
    // One hop before everything else, if the experts' ranks have not the weights. It is not known here which of them need them.
    if (call.weights != nullptr && call.exact == 0) sendWeights();
    if (blockAny(b.thread < ep.ranks && !b.isFree(b.thread))) return false;
    bool failed = false;
    for (uint32_t n = 1; n <= ep.ranks; ++n) {
      const uint32_t owner = (ep.rank + n) % ep.ranks;
      const uint32_t rows = load4(tables->received + owner);
      const bool packed = isPacked(load4(tables->theirs + owner));
      for (uint32_t row = b.warp; row < rows && !failed; row += b.warps) failed = !sendRow(owner, row, packed);
    }
    if (blockAny(failed)) return false;
    b.signal();
    return true;
  }

  // Word i has the weights of choices 2 i and 2 i + 1. X4. The packets of the call before, if there were any, have been read:
  // this rank has taken the rows that were made with them.
  MSCCLPP_DEVICE_INLINE uint8_t* weightPacket(uint32_t at, uint32_t owner, uint32_t row, uint32_t i) const {
    const uint64_t packet = (static_cast<uint64_t>(owner) * ep.capacity + row) * ((ep.topK + 1) / 2) + i;
    return b.place(at, ep.weightPackets + packet * 16);
  }
  MSCCLPP_DEVICE_INLINE void sendWeights() const {
    const uint32_t each = (ep.topK + 1) / 2;
    for (uint32_t token = b.warp; token < call.tokens; token += b.warps) {
      const uint8_t* const weights = reinterpret_cast<const uint8_t*>(call.weights + static_cast<uint64_t>(token) * ep.topK);
      for (uint32_t r = 0; r < ep.ranks; ++r) {
        const int32_t row = rowOf(token, r);
        for (uint32_t i = b.lane; i < each && row >= 0; i += 32) {
          packets.put(weightPacket(r, ep.rank, static_cast<uint32_t>(row), i), messageWord(weights, ep.topK * 4ull, i));
        }
      }
    }
  }

  // Notes the terms of a row for the warp. Returns whether the weights came.
  MSCCLPP_DEVICE_INLINE bool noteTerms(uint32_t owner, uint32_t row) const {
    const uint8_t* const received = receivedRow(owner, row);
    bool failed = false;
    warpSync();
    for (uint32_t k = b.lane; k < ep.topK; k += 32) {
      const bool isHere = signedWord(received, 1 + k) >= 0;
      terms[k].row = isHere ? signedWord(received, 1 + 2 * ep.topK + k) : -1;
      terms[k].weight = bitsAs<float>(load4(received + (1 + ep.topK + k) * 4ull));
    }
    if (call.weights != nullptr && call.exact == 0 && call.oneRow == 0) {
      warpSync();
      for (uint32_t i = b.lane; i < (ep.topK + 1) / 2 && !failed; i += 32) {
        uint64_t word = 0;
        failed = !b.take(packets, weightPacket(ep.rank, owner, row, i), word, owner);
        terms[2 * i].weight = bitsAs<float>(static_cast<uint32_t>(word));
        if (2 * i + 1 < ep.topK) terms[2 * i + 1].weight = bitsAs<float>(static_cast<uint32_t>(word >> 32));
      }
    }
    return !warpFailed(failed);
  }

  // Sends the rows of a token to its rank. All threads of a warp call it, and get the same.
  MSCCLPP_DEVICE_INLINE bool sendRow(uint32_t owner, uint32_t row, bool packed) const {
    if (!noteTerms(owner, row)) return false;
    if (call.exact != 0) {
      const uint32_t token = load4(receivedRow(owner, row));
      for (uint32_t k = 0; k < ep.topK; ++k) {
        if (signedWord(receivedRow(owner, row), 1 + k) < 0) continue;
        const uint64_t choice = static_cast<uint64_t>(token) * ep.topK + k;
        const int32_t from = terms[k].row;
        for (uint32_t i = b.lane; i < words; i += 32) putChoice(owner, choice, i, from < 0 ? 0 : wordOf(from, i), packed);
      }
      return true;
    }
    for (uint32_t i = b.lane; i < words; i += 32) {
      float sums[Count] = {};
      bool isWhole = false;
      uint64_t word = 0;
      for (uint32_t k = 0; k < ep.topK && !isWhole; ++k) {
        const EpTerm term = terms[k];
        if (term.row < 0) continue;
        word = wordOf(term.row, i);
        isWhole = call.oneRow != 0;
        addTo(sums, term.weight, word);
      }
      putPart(owner, row, i, isWhole ? word : narrowed(sums), packed);
    }
    return true;
  }

  MSCCLPP_DEVICE_INLINE uint64_t wordOf(int32_t row, uint32_t i) const {
    return messageWord(call.rows + static_cast<uint64_t>(row) * ep.resultBytes, ep.resultBytes, i);
  }
  MSCCLPP_DEVICE_INLINE static void addTo(float (&sums)[Count], float weight, uint64_t word) {
#pragma unroll
    for (uint32_t j = 0; j < Count; ++j) {
      sums[j] = fusedMultiplyAdd(weight, N::widen(word >> (8 * N::Bytes * j)), sums[j]);
    }
  }
  MSCCLPP_DEVICE_INLINE static uint64_t narrowed(const float (&sums)[Count]) {
    uint64_t word = 0;
#pragma unroll
    for (uint32_t j = 0; j < Count; ++j) word |= N::narrow(sums[j]) << (8 * N::Bytes * j);
    return word;
  }

  // The places of what comes to a token's rank: from each rank the sums of its rows, and for each choice its row.
  MSCCLPP_DEVICE_INLINE uint8_t* partPacket(uint32_t at, uint32_t from, uint64_t row, uint32_t i) const {
    return b.place(at, ep.resultPackets + ((from * static_cast<uint64_t>(ep.packetTokens) + row) * words + i) * 16);
  }
  MSCCLPP_DEVICE_INLINE uint8_t* partRow(uint32_t at, uint32_t from, uint64_t row) const {
    return b.place(at, ep.results + (from * static_cast<uint64_t>(ep.capacity) + row) * ep.resultStride);
  }
  MSCCLPP_DEVICE_INLINE uint8_t* choicePacket(uint32_t at, uint64_t choice, uint32_t i) const {
    return b.place(at, ep.resultPackets + (choice * words + i) * 16);
  }
  MSCCLPP_DEVICE_INLINE uint8_t* choiceRow(uint32_t at, uint64_t choice) const {
    return b.place(at, ep.choiceResults + choice * ep.resultStride);
  }
  MSCCLPP_DEVICE_INLINE void putPart(uint32_t owner, uint32_t row, uint32_t i, uint64_t word, bool packed) const {
    if (packed) {
      packets.put(partPacket(owner, ep.rank, row, i), word);
    } else {
      storeMessageWord(partRow(owner, ep.rank, row), ep.resultBytes, i, word);
    }
  }
  MSCCLPP_DEVICE_INLINE void putChoice(uint32_t owner, uint64_t choice, uint32_t i, uint64_t word, bool packed) const {
    if (packed) {
      packets.put(choicePacket(owner, choice, i), word);
    } else {
      storeMessageWord(choiceRow(owner, choice), ep.resultBytes, i, word);
    }
  }

  // ---- the token's rank

  MSCCLPP_DEVICE_INLINE bool sum() const {
    const bool packed = isPacked(call.tokens);
    bool failed = false;
    if (!packed && b.thread < ep.ranks && load4(tables->sent + b.thread) != 0) failed = !b.hasArrived(b.thread);
    if (blockAny(failed)) return false;
    for (uint32_t token = b.warp; token < call.tokens && !failed; token += b.warps) {
      for (uint32_t i = b.lane; i < words && !failed; i += 32) failed = !sumWord(token, i, packed);
    }
    return !blockAny(failed);
  }

  // Sums word i of a token. Returns false if a wait was given up.
  MSCCLPP_DEVICE_INLINE bool sumWord(uint32_t token, uint32_t i, bool packed) const {
    float sums[Count] = {};
    uint64_t word = 0;
    if (call.exact != 0) {
      for (uint32_t k = 0; k < ep.topK; ++k) {
        const uint64_t choice = static_cast<uint64_t>(token) * ep.topK + k;
        const int32_t expert = signedWord(call.tables + ep.tableChoices, choice);
        if (expert < 0) continue;
        const uint32_t rank = load4(ep.experts + expert) >> 16;
        if (!packed) {
          word = messageWord(choiceRow(ep.rank, choice), ep.resultBytes, i);
        } else if (!b.take(packets, choicePacket(ep.rank, choice, i), word, rank)) {
          return false;
        }
        const uint8_t* const weights =
            call.weights != nullptr ? reinterpret_cast<const uint8_t*>(call.weights) : call.tables + ep.tableWeights;
        addTo(sums, bitsAs<float>(load4(weights + choice * 4)), word);
      }
    } else {
      for (uint32_t r = 0; r < ep.ranks; ++r) {
        const int32_t row = rowOf(token, r);
        if (row < 0) continue;
        if (!packed) {
          word = messageWord(partRow(ep.rank, r, static_cast<uint32_t>(row)), ep.resultBytes, i);
        } else if (!b.take(packets, partPacket(ep.rank, r, static_cast<uint32_t>(row), i), word, r)) {
          return false;
        }
        addTo(sums, 1.0f, word);
      }
    }
    const uint64_t at = static_cast<uint64_t>(token) * ep.resultBytes;
    if (call.bias != nullptr) addTo(sums, 1.0f, messageWord(call.bias + at, ep.resultBytes, i));
    storeMessageWord(call.out + at, ep.resultBytes, i, narrowed(sums));
    return true;
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_COMBINE_DEVICE_HPP_
