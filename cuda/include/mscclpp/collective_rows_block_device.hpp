// A call of `allReduceRows` as a block of its kernel sees it: which rows are whose, and how they and the results travel.
// collective_rows_device.hpp tells what this is for, and how the ways differ.

#ifndef MSCCLPP_COLLECTIVE_ROWS_BLOCK_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_ROWS_BLOCK_DEVICE_HPP_

#include "mscclpp/collective_packets_device.hpp"
#include "mscclpp/collective_pieces_device.hpp"

namespace mscclpp {

enum CollectiveRowsLimits : uint32_t {
  // How many outputs a call has at most.
  CollectiveMaxOutputs = 4,
  // How many vectors of a row a thread has at most.
  CollectiveMaxVectors = 4,
};

// Where an epilogue's results go.
struct CollectiveOutput {
  uint8_t* memory;
  // The bytes for each vector of the message, 8 or 16; 0 for an output with a number of 4 bytes for each row.
  uint32_t vectorBytes;
  // In two steps: where this output is in what a rank sends of a row, a multiple of 16; all ones if it is not sent.
  uint32_t at;
};

// One call.
struct CollectiveRows {
  // Of this only `piece`, `checked` and `signature` are used.
  CollectiveCall call;
  // This rank's message. It begins at a multiple of 16, and so does each row.
  const uint8_t* send;
  uint64_t rows;
  // The most rows that a rank sums up: all, or in two steps the ranks' part of them, rounded up.
  uint64_t most;
  CollectiveOutput outputs[CollectiveMaxOutputs];
  // The vectors of a row: at most CollectiveMaxVectors for each thread of a block.
  uint32_t vectors;
  // What a rank sends of a row in the second step, in bytes, a multiple of 16.
  uint32_t resultBytes;
  uint32_t twoSteps;
  uint32_t byPackets;
};

#if defined(MSCCLPP_DEVICE_COMPILE)

// A vector of a row, as an epilogue sees it.
struct RowVector {
  uint64_t row;
  // Which vector of the row it is, and which number of the row it begins with.
  uint32_t vector;
  uint32_t column;
  // Which vector of the message.
  uint64_t index;
  // The caller's.
  uint32_t rank;

  // The vector at this place of a tensor of the message's shape and type.
  MSCCLPP_DEVICE_INLINE Bytes16 of(const void* tensor) const {
    return load16(static_cast<const uint8_t*>(tensor) + index * 16);
  }
  // The one in this column of a single row, such as weights.
  MSCCLPP_DEVICE_INLINE Bytes16 ofColumn(const void* one) const {
    return load16(static_cast<const uint8_t*>(one) + static_cast<uint64_t>(vector) * 16);
  }
};

// The numbers of a vector, as values.
template <class N>
struct VectorNumbers {
  static constexpr uint32_t Count = 16 / N::Bytes;
  using Values = typename N::Value[Count];

  MSCCLPP_DEVICE_INLINE static void widen(Bytes16 vector, Values& values) {
#pragma unroll
    for (uint32_t i = 0; i < Count; ++i) {
      values[i] = N::widen((i < Count / 2 ? vector.low : vector.high) >> (8 * N::Bytes * (i % (Count / 2))));
    }
  }
  MSCCLPP_DEVICE_INLINE static Bytes16 narrow(const Values& values) {
    Bytes16 vector = {0, 0};
#pragma unroll
    for (uint32_t i = 0; i < Count; ++i) {
      (i < Count / 2 ? vector.low : vector.high) |= N::narrow(values[i]) << (8 * N::Bytes * (i % (Count / 2)));
    }
    return vector;
  }
};

namespace detail {

// For the library's own use.
struct RowsBlock {
  const CollectiveRows& call;
  const CollectiveBlock& b;
  const Pieces& pieces;
  const Packets packets;
  // For packets: where the places of rows and of results begin, and the bytes of those for one rank.
  const uint64_t rowsAt, rowsBytes, resultsAt, resultsBytes;

  MSCCLPP_DEVICE_INLINE RowsBlock(const CollectiveRows& call, const CollectiveBlock& b, const Pieces& pieces)
      : call(call),
        b(b),
        pieces(pieces),
        packets(b.epoch),
        rowsAt(b.comm.packets + b.half(b.comm.packetBytes)),
        rowsBytes(call.most * call.vectors * 32),
        resultsAt(rowsAt + (b.ranks - 1) * rowsBytes),
        resultsBytes(call.most * call.resultBytes * 2) {}

  // ---- rows

  // How many rows rank `r` sums up, and which one is its k-th.
  MSCCLPP_DEVICE_INLINE uint64_t rowsOf(uint32_t r) const {
    return call.twoSteps && row(r, call.most - 1) >= call.rows ? call.most - 1 : call.most;
  }
  MSCCLPP_DEVICE_INLINE uint64_t row(uint32_t r, uint64_t k) const { return call.twoSteps ? k * b.ranks + r : k; }
  MSCCLPP_DEVICE_INLINE uint64_t rowBytes() const { return static_cast<uint64_t>(call.vectors) * 16; }
  MSCCLPP_DEVICE_INLINE const uint8_t* sent(uint64_t row) const { return call.send + row * rowBytes(); }

  // ---- by packets

  // The places of the rows that rank `to` sums up and `from` sends, and of the results that `from` sends to `to`.
  MSCCLPP_DEVICE_INLINE uint8_t* packetsOf(uint32_t to, uint32_t from) const {
    return b.comm.scratch[to] + rowsAt + b.slotOf(from, to) * rowsBytes;
  }
  MSCCLPP_DEVICE_INLINE uint8_t* resultPackets(uint32_t to, uint32_t from, uint64_t k) const {
    return b.comm.scratch[to] + resultsAt + b.slotOf(from, to) * resultsBytes + k * call.resultBytes * 2;
  }
  MSCCLPP_DEVICE_INLINE void putVector(uint8_t* at, Bytes16 v) const {
    packets.put(at, v.low);
    packets.put(at + 16, v.high);
  }

  // The number of the calling thread among those of the launch, if their warps are counted through the blocks in turns: what
  // is less than the threads have time for is then spread over all blocks.
  MSCCLPP_DEVICE_INLINE uint32_t turnOfThread() const {
    const uint32_t lane = b.thread % 32;
    return (b.thread / 32 * b.blocks + b.block) * 32 + lane;
  }

  // Sends all rows, by all threads of the launch: peers and vectors are shared out as one list.
  MSCCLPP_DEVICE_INLINE void putPackets() const {
    const uint32_t each = static_cast<uint32_t>(call.most) * call.vectors, all = each * (b.ranks - 1);
    const uint32_t stride = static_cast<uint32_t>(b.threadsOfCall());
    for (uint32_t i = turnOfThread(); i < all; i += stride) {
      const uint32_t n = i / each, place = i - n * each, p = b.peer(n + 1);
      uint64_t vector = place;
      if (call.twoSteps) {
        const uint32_t k = place / call.vectors;
        if (k >= rowsOf(p)) continue;
        vector = row(p, k) * call.vectors + (place - k * call.vectors);
      }
      putVector(packetsOf(p, b.rank) + static_cast<uint64_t>(place) * 32, load16(call.send + vector * 16));
    }
  }

  // The results of other ranks, by all threads of the launch.
  MSCCLPP_DEVICE_INLINE bool takeResultPackets() const {
    const uint32_t stride = static_cast<uint32_t>(b.threadsOfCall());
#pragma unroll 1
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
#pragma unroll 1
      for (uint32_t o = 0; o < CollectiveMaxOutputs; ++o) {
        const CollectiveOutput output = call.outputs[o];
        if (!isSent(output)) continue;
        const uint32_t words = wordsOfRow(output), all = static_cast<uint32_t>(rowsOf(p)) * words;
#pragma unroll 1
        for (uint32_t i = turnOfThread(); i < all; i += stride) {
          const uint32_t k = i / words, w = i - k * words;
          uint64_t word;
          const uint8_t* const at = resultPackets(b.rank, p, k) + (output.at + w * 8ull) * 2;
          if (!packets.take(at, word, b.comm.status[p])) return false;
          storeWordOfRow(output, row(p, k), w, word);
        }
      }
    }
    return true;
  }

  // ---- by pieces, each a row: the j-th of this block is row block + j * blocks of a rank's own

  MSCCLPP_DEVICE_INLINE uint64_t ofBlock(uint64_t j) const { return b.block + j * b.blocks; }
  MSCCLPP_DEVICE_INLINE bool has(uint32_t r, uint64_t j) const { return ofBlock(j) < rowsOf(r); }
  MSCCLPP_DEVICE_INLINE void putPiece(uint64_t j) const {
#pragma unroll 1
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      if (!has(p, j)) continue;
      const uint8_t* const from = sent(row(p, ofBlock(j)));
      uint8_t* const to = pieces.place(Pieces::First, p, b.rank, j);
#pragma unroll 4
      for (uint32_t i = b.thread; i < call.vectors; i += b.threads) store16(to + i * 16ull, load16(from + i * 16ull));
    }
    pieces.signalAll(Pieces::First, j, [&](uint32_t r) { return has(r, j); });
  }
  MSCCLPP_DEVICE_INLINE bool takeResultPieces(uint64_t j) const {
    if (!pieces.waitForAll(Pieces::Results, j, [&](uint32_t r) { return has(r, j); })) return false;
#pragma unroll 1
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      if (!has(p, j)) continue;
      const uint8_t* const from = pieces.place(Pieces::Results, b.rank, p, j);
#pragma unroll 1
      for (uint32_t o = 0; o < CollectiveMaxOutputs; ++o) {
        const CollectiveOutput output = call.outputs[o];
        if (!isSent(output)) continue;
        const uint64_t to = row(p, ofBlock(j));
        if (output.vectorBytes == 16) {
          uint8_t* const memory = output.memory + to * rowBytes();
          for (uint32_t i = b.thread; i < call.vectors; i += b.threads) {
            store16(memory + i * 16ull, load16(from + output.at + i * 16ull));
          }
        } else {
          for (uint32_t w = b.thread; w < wordsOfRow(output); w += b.threads) {
            storeWordOfRow(output, to, w, load8(from + output.at + w * 8ull));
          }
        }
      }
    }
    return true;
  }

  // ---- outputs

  MSCCLPP_DEVICE_INLINE static bool isSent(const CollectiveOutput& output) {
    return output.memory != nullptr && output.at != 0xffffffffu;
  }
  // Words of 8 bytes; the number of a row has one to itself.
  MSCCLPP_DEVICE_INLINE uint32_t wordsOfRow(const CollectiveOutput& output) const {
    return output.vectorBytes == 0 ? 1 : call.vectors * (output.vectorBytes / 8);
  }
  MSCCLPP_DEVICE_INLINE void storeWordOfRow(const CollectiveOutput& output, uint64_t row, uint32_t w,
                                            uint64_t word) const {
    if (output.vectorBytes == 0) {
      store4(output.memory + row * 4, static_cast<uint32_t>(word));
    } else {
      store8(output.memory + (row * wordsOfRow(output) + w) * 8, word);
    }
  }

  // ---- sums

  // The sums of a vector of the rank's own row k, which is the block's j-th. Returns whether all ranks' vectors came.
  //
  // A thread has the loads of two ranks under way at once: more do not fit into the 64 registers that each of 1024 has.
  template <class N>
  MSCCLPP_DEVICE_INLINE bool sum(uint64_t k, uint64_t j, const RowVector& at,
                                 typename VectorNumbers<N>::Values& sums) const {
    constexpr uint32_t AtOnce = 2;
    // What a number is added to so that it stays as it is, be it 0 or -0.
#pragma unroll
    for (uint32_t i = 0; i < VectorNumbers<N>::Count; ++i) sums[i] = -0.0f;
    bool came = true;
#pragma unroll 1
    for (uint32_t r = 0; r < b.ranks; r += AtOnce) {
      Bytes16 first[AtOnce], second[AtOnce];
#pragma unroll
      for (uint32_t u = 0; u < AtOnce; ++u) {
        const uint32_t from = r + u;
        first[u] = second[u] = {0, 0};
        if (from >= b.ranks) continue;
        if (from == b.rank) {
          first[u] = at.of(call.send);
        } else if (call.byPackets) {
          const uint8_t* const packet = packetsOf(b.rank, from) + (k * call.vectors + at.vector) * 32;
          first[u] = loadPair(packet);
          second[u] = loadPair(packet + 16);
        } else {
          first[u] = load16(pieces.place(Pieces::First, b.rank, from, j) + static_cast<uint64_t>(at.vector) * 16);
        }
      }
#pragma unroll
      for (uint32_t u = 0; u < AtOnce; ++u) {
        const uint32_t from = r + u;
        if (from >= b.ranks) continue;
        Bytes16 vector = first[u];
        if (call.byPackets && from != b.rank) {
          const uint8_t* const packet = packetsOf(b.rank, from) + (k * call.vectors + at.vector) * 32;
          came = takeVector(packet, first[u], second[u], vector, b.comm.status[from]) && came;
        }
        typename VectorNumbers<N>::Values numbers;
        VectorNumbers<N>::widen(vector, numbers);
#pragma unroll
        for (uint32_t i = 0; i < VectorNumbers<N>::Count; ++i) sums[i] = addValues(sums[i], numbers[i]);
      }
    }
    return came;
  }

  // The vector of two packets, which have been loaded once. Waits for them if that was too early; returns whether they
  // came.
  MSCCLPP_DEVICE_INLINE bool takeVector(const uint8_t* at, Bytes16 first, Bytes16 second, Bytes16& vector,
                                        uint32_t* status) const {
    const auto isThere = [&](Bytes16 packet) {
      return packet.low >> 32 == packets.first && packet.high >> 32 == packets.second;
    };
    const auto came = [&] {
      first = loadPair(at);
      second = loadPair(at + 16);
      return isThere(first) && isThere(second);
    };
    const bool done = (isThere(first) && isThere(second)) || pollUntil<1>(came, -1, status);
    vector = {(first.low & 0xffffffffu) | first.high << 32, (second.low & 0xffffffffu) | second.high << 32};
    return done;
  }
};

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_ROWS_BLOCK_DEVICE_HPP_
