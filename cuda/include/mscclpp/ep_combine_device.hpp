// Combine: the experts' rows of each token go back to the token's rank, which sums them. ep_device.hpp has the rules. For the
// library's own use.

#ifndef MSCCLPP_EP_COMBINE_DEVICE_HPP_
#define MSCCLPP_EP_COMBINE_DEVICE_HPP_

#include "mscclpp/copy_device.hpp"
#include "mscclpp/ep_call_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// A term of a sum: its row, as it is or as packets, or null if there is none; its weight; and the rank from which it comes.
struct EpTerm {
  const uint8_t* row;
  float weight;
  uint32_t rank;
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

  // The words of a row that a thread has: `first`, and each `step`-th behind it.
  struct Columns {
    uint32_t first, step;
  };
  // Returns how many warps share a row, if there are so many rows: each has some of its words, see X4.
  MSCCLPP_DEVICE_INLINE uint32_t subsOf(uint32_t rows) const {
    const uint32_t most = (words + 31) / 32, free = rows == 0 ? 1 : b.warps / rows;
    return free == 0 ? 1 : free < most ? free : most;
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
      const uint32_t subs = subsOf(rows);
      for (uint32_t u = b.warp; u < rows * subs && !failed; u += b.warps) {
        failed = !sendRow(owner, u / subs, packed, Columns{u % subs * 32 + b.lane, subs * 32});
      }
    }
    if (blockAny(failed)) return false;
    b.signal();
    return true;
  }

  // Word i has the weights of choices 2 i and 2 i + 1. X4. The packets of the call before, if there were any, have been read:
  // this rank has taken all words of the rows that were made with them.
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
      const int32_t row = isHere ? signedWord(received, 1 + 2 * ep.topK + k) : -1;
      terms[k].row = row < 0 ? nullptr : call.rows + static_cast<uint64_t>(row) * ep.resultBytes;
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

  // Sends columns of the rows of a token to its rank. All threads of a warp call it, and get the same.
  MSCCLPP_DEVICE_INLINE bool sendRow(uint32_t owner, uint32_t row, bool packed, Columns columns) const {
    if (!noteTerms(owner, row)) return false;
    if (call.exact != 0) {
      const uint32_t token = load4(receivedRow(owner, row));
      for (uint32_t k = 0; k < ep.topK; ++k) {
        if (signedWord(receivedRow(owner, row), 1 + k) < 0) continue;
        const uint64_t choice = static_cast<uint64_t>(token) * ep.topK + k;
        sendWhole(packed ? choicePacket(owner, choice) : choiceRow(owner, choice), terms[k].row, packed, columns);
      }
      return true;
    }
    uint8_t* const place = packed ? partPacket(owner, ep.rank, row) : partRow(owner, ep.rank, row);
    if (call.oneRow != 0) {
      uint32_t k = 0;
      while (k + 1 < ep.topK && terms[k].row == nullptr) ++k;
      sendWhole(place, terms[k].row, packed, columns);
      return true;
    }
    for (uint32_t i = columns.first; i < words; i += columns.step) {
      float sums[Count] = {};
      for (uint32_t k = 0; k < ep.topK; ++k) {
        const EpTerm term = terms[k];
        if (term.row != nullptr) addTo(sums, term.weight, messageWord(term.row, ep.resultBytes, i));
      }
      put(place, i, narrowed(sums), packed);
    }
    return true;
  }

  // Sends columns of a row as it is, or zeros if there is none. All threads of a warp call it.
  MSCCLPP_DEVICE_INLINE void sendWhole(uint8_t* place, const uint8_t* row, bool packed, Columns columns) const {
    if (!packed && row != nullptr) {
      copy<4>(place, row, ep.resultBytes, columns.first, columns.step);
      return;
    }
    for (uint32_t i = columns.first; i < words; i += columns.step) {
      put(place, i, row == nullptr ? 0 : messageWord(row, ep.resultBytes, i), packed);
    }
  }
  MSCCLPP_DEVICE_INLINE void put(uint8_t* place, uint32_t i, uint64_t word, bool packed) const {
    if (packed) {
      packets.put(place + i * 16ull, word);
    } else {
      storeMessageWord(place, ep.resultBytes, i, word);
    }
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
  MSCCLPP_DEVICE_INLINE uint8_t* partPacket(uint32_t at, uint32_t from, uint64_t row) const {
    return b.place(at, ep.resultPackets + (from * static_cast<uint64_t>(ep.packetTokens) + row) * words * 16);
  }
  MSCCLPP_DEVICE_INLINE uint8_t* partRow(uint32_t at, uint32_t from, uint64_t row) const {
    return b.place(at, ep.results + (from * static_cast<uint64_t>(ep.capacity) + row) * ep.resultStride);
  }
  MSCCLPP_DEVICE_INLINE uint8_t* choicePacket(uint32_t at, uint64_t choice) const {
    return b.place(at, ep.resultPackets + choice * words * 16);
  }
  MSCCLPP_DEVICE_INLINE uint8_t* choiceRow(uint32_t at, uint64_t choice) const {
    return b.place(at, ep.choiceResults + choice * ep.resultStride);
  }

  // ---- the token's rank

  MSCCLPP_DEVICE_INLINE bool sum() const {
    const bool packed = isPacked(call.tokens);
    bool failed = false;
    if (!packed && b.thread < ep.ranks && load4(tables->sent + b.thread) != 0) failed = !b.hasArrived(b.thread);
    if (blockAny(failed)) return false;
    const uint32_t subs = subsOf(call.tokens);
    for (uint32_t u = b.warp; u < call.tokens * subs && !failed; u += b.warps) {
      failed = !sumToken(u / subs, packed, Columns{u % subs * 32 + b.lane, subs * 32});
    }
    return !blockAny(failed);
  }

  // Notes the terms of a token for the warp, and returns how many there are: one for each choice, or for each rank.
  MSCCLPP_DEVICE_INLINE uint32_t noteTermsOf(uint32_t token, bool packed) const {
    const uint32_t n = call.exact != 0 ? ep.topK : ep.ranks;
    warpSync();
    for (uint32_t j = b.lane; j < n; j += 32) {
      EpTerm term = {nullptr, 1.0f, j};
      if (call.exact != 0) {
        const uint64_t choice = static_cast<uint64_t>(token) * ep.topK + j;
        const int32_t expert = signedWord(call.tables + ep.tableChoices, choice);
        const uint8_t* const weights =
            call.weights != nullptr ? reinterpret_cast<const uint8_t*>(call.weights) : call.tables + ep.tableWeights;
        term.weight = bitsAs<float>(load4(weights + choice * 4));
        if (expert >= 0) {
          term.rank = load4(ep.experts + expert) >> 16;
          term.row = packed ? choicePacket(ep.rank, choice) : choiceRow(ep.rank, choice);
        }
      } else {
        const int32_t row = rowOf(token, j);
        if (row >= 0) term.row = packed ? partPacket(ep.rank, j, static_cast<uint32_t>(row)) : partRow(ep.rank, j, static_cast<uint32_t>(row));
      }
      terms[j] = term;
    }
    warpSync();
    return n;
  }

  // Sums columns of the terms of a token. All threads of a warp call it, and get whether all terms came.
  MSCCLPP_DEVICE_INLINE bool sumToken(uint32_t token, bool packed, Columns columns) const {
    const uint32_t n = noteTermsOf(token, packed);
    const uint64_t at = static_cast<uint64_t>(token) * ep.resultBytes;
    bool failed = false;
    for (uint32_t i = columns.first; i < words && !failed; i += columns.step) {
      float sums[Count] = {};
      for (uint32_t j = 0; j < n && !failed; ++j) {
        const EpTerm term = terms[j];
        if (term.row == nullptr) continue;
        uint64_t word = 0;
        if (!packed) {
          word = messageWord(term.row, ep.resultBytes, i);
        } else {
          failed = !b.take(packets, term.row + i * 16ull, word, term.rank);
        }
        addTo(sums, term.weight, word);
      }
      if (call.bias != nullptr) addTo(sums, 1.0f, messageWord(call.bias + at, ep.resultBytes, i));
      if (!failed) storeMessageWord(call.out + at, ep.resultBytes, i, narrowed(sums));
    }
    return !warpFailed(failed);
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_COMBINE_DEVICE_HPP_
