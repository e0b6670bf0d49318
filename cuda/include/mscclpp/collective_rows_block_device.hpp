// A call of `allReduceRows` for a block of its kernel: the rows of each rank, and how they and the results travel.
// collective_rows_device.hpp describes the purpose, and how the protocols differ.

#ifndef MSCCLPP_COLLECTIVE_ROWS_BLOCK_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_ROWS_BLOCK_DEVICE_HPP_

#include "mscclpp/collective_ll16_device.hpp"
#include "mscclpp/collective_simple_device.hpp"

namespace mscclpp {

enum CollectiveRowsLimits : uint32_t {
  // The most outputs of a call.
  CollectiveMaxOutputs = 4,
  // The most vectors of a row for each thread.
  CollectiveMaxVectors = 4,
};

// The protocols in which rows travel.
enum CollectiveRowsProtocol : uint32_t { RowsBySimple = 0, RowsByLl16 = 1, RowsByLl128 = 2 };

// The memory for an epilogue's results.
struct CollectiveOutput {
  uint8_t* memory;
  // The bytes for each vector of the message, 8 or 16; 0 for an output with a number of 4 bytes for each row.
  uint32_t vectorBytes;
  // In two steps: the offset of this output in the data that a rank sends of a row, a multiple of 16; all ones if it is
  // not sent.
  uint32_t at;
};

// One call of `allReduceRows`.
struct CollectiveRows {
  // Only `chunk`, `checked` and `signature` of it are used.
  CollectiveCall call;
  // This rank's message. It begins at a multiple of 16, and so does each row.
  const uint8_t* send;
  // The number of rows, fewer than 2^31.
  uint64_t rows;
  // The most rows that a rank sums up: all, or in two steps the ranks' part of them, rounded up.
  uint64_t most;
  CollectiveOutput outputs[CollectiveMaxOutputs];
  // The vectors of a row: at most CollectiveMaxVectors for each thread of a block.
  uint32_t vectors;
  // The bytes of a row that a rank sends in the second step, a multiple of 16.
  uint32_t resultBytes;
  uint32_t twoSteps;
  uint32_t protocol;
};

#if defined(MSCCLPP_DEVICE_COMPILE)

// A vector of a row, for an epilogue.
struct RowVector {
  uint64_t row;
  // The number of the vector in the row, and the row's number that it begins with.
  uint32_t vector;
  uint32_t column;
  // The number of the vector in the message.
  uint64_t index;
  // The rank of the caller.
  uint32_t rank;

  // Returns the vector at this place of a tensor of the message's shape and type.
  MSCCLPP_DEVICE_INLINE Bytes16 of(const void* tensor) const {
    return load16(static_cast<const uint8_t*>(tensor) + index * 16);
  }
  // Returns the vector in this column of a single row, such as weights.
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

// For the library's own use. Values that are the same for all rows are calculated where they are needed, because there
// are few registers.
//
// `Short`: whether the call is by lines and in one step, known to the compiler.
template <bool Short>
struct RowsBlock {
  const CollectiveRows& call;
  const CollectiveBlock& b;
  const Ll16Packets packets;

  MSCCLPP_DEVICE_INLINE RowsBlock(const CollectiveRows& call, const CollectiveBlock& b)
      : call(call), b(b), packets(b.epoch) {}

  MSCCLPP_DEVICE_INLINE bool twoSteps() const { return !Short && call.twoSteps; }
  MSCCLPP_DEVICE_INLINE bool bySimple() const { return !Short && call.protocol == RowsBySimple; }
  MSCCLPP_DEVICE_INLINE bool byLl128() const { return Short || call.protocol == RowsByLl128; }
  MSCCLPP_DEVICE_INLINE Chunks chunks() const { return Chunks(b); }

  // ---- rows: the j-th of this block is row block + j * blocks of a rank's own

  MSCCLPP_DEVICE_INLINE uint32_t most() const { return static_cast<uint32_t>(call.most); }
  // The number of rows that rank `r` sums up, and the number of its k-th row.
  MSCCLPP_DEVICE_INLINE uint32_t rowsOf(uint32_t r) const {
    return twoSteps() && row(r, most() - 1) >= call.rows ? most() - 1 : most();
  }
  MSCCLPP_DEVICE_INLINE uint32_t row(uint32_t r, uint32_t k) const { return twoSteps() ? k * b.ranks + r : k; }
  MSCCLPP_DEVICE_INLINE uint32_t rowBytes() const { return call.vectors * 16; }
  MSCCLPP_DEVICE_INLINE const uint8_t* sent(uint32_t row) const {
    return call.send + static_cast<uint64_t>(row) * rowBytes();
  }
  MSCCLPP_DEVICE_INLINE uint32_t ofBlock(uint32_t j) const { return b.block + j * b.blocks; }
  MSCCLPP_DEVICE_INLINE bool has(uint32_t r, uint32_t j) const { return ofBlock(j) < rowsOf(r); }

  // Puts the block's j-th row of each rank to that rank.
  MSCCLPP_DEVICE_INLINE void put(uint32_t j) const {
#pragma unroll 1
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      if (!has(p, j)) continue;
      const uint32_t k = ofBlock(j);
      const uint8_t* const from = sent(row(p, k));
      uint8_t* const chunk = chunks().place(Chunks::First, p, b.rank, j);
#pragma unroll 1
      for (uint32_t i = b.thread; warpHas(i); i += b.threads) {
        const Bytes16 vector = i < call.vectors ? load16(from + i * 16) : Bytes16{0, 0};
        if (!bySimple()) {
          putVector(p, k, i, vector);
        } else if (i < call.vectors) {
          store16(chunk + i * 16, vector);
        }
      }
    }
    if (bySimple()) chunks().signalAll(Chunks::First, j, [&](uint32_t r) { return has(r, j); });
  }
  // Whether some thread of the warp has a vector i. All threads of a warp make the same steps.
  MSCCLPP_DEVICE_INLINE bool warpHas(uint32_t i) const { return i - laneId() < call.vectors; }

  // ---- by packets and lines
  //
  // Packets of a word and flags: all lower words of vectors come first, then all higher ones.
  //
  // Lines have eight vectors each, except that the flag has the place of the last word, which goes as a packet. So
  // vectors stay with their threads. Lines and packets each have memory of their own, where nothing else ever stands in
  // the place of a flag.

  // The vectors of a row in whole lines; those after the end of the row are 0.
  MSCCLPP_DEVICE_INLINE uint32_t wholeVectors() const { return (call.vectors + 7) / 8 * 8; }
  // The number of vectors that come to a rank from all others.
  MSCCLPP_DEVICE_INLINE uint32_t allVectors() const { return (b.ranks - 1) * most() * wholeVectors(); }
  // The number among these of vector i of row k of the data that `from` sends to `to`.
  MSCCLPP_DEVICE_INLINE uint32_t vectorOf(uint32_t to, uint32_t from, uint32_t k, uint32_t i) const {
    return (static_cast<uint32_t>(b.slotOf(from, to)) * most() + k) * wholeVectors() + i;
  }
  // Whether the flag follows the lower word of vector i.
  MSCCLPP_DEVICE_INLINE static bool hasFlag(uint32_t i) { return i % 8 == 7; }
  MSCCLPP_DEVICE_INLINE uint8_t* packetsAt(uint32_t rank) const {
    return b.comm.scratch[rank] + (b.comm.ll16 + b.half(b.comm.ll16Bytes));
  }
  MSCCLPP_DEVICE_INLINE uint8_t* linesAt(uint32_t rank) const {
    return b.comm.scratch[rank] + (b.comm.ll128 + b.half(b.comm.ll128Bytes));
  }

  // Puts vector i of row k to the rank that sums the row up. All threads of a warp call it.
  MSCCLPP_DEVICE_INLINE void putVector(uint32_t to, uint32_t k, uint32_t i, Bytes16 vector) const {
    const uint32_t v = vectorOf(to, b.rank, k, i);
    uint8_t* const words = packetsAt(to);
    if (byLl128()) {
      const bool isInLine = i < wholeVectors(), hasFlag = this->hasFlag(i);
      // A line is stored in one instruction: the compiler must not give the threads with the flag one of their own.
      warpSync();
      if (isInLine) storePair(linesAt(to) + v * 16ull, Bytes16{vector.low, hasFlag ? b.epoch : vector.high});
      warpSync();
      if (isInLine && hasFlag) packets.put(words + v / 8 * 16ull, vector.high);
    } else if (i < call.vectors) {
      packets.put(words + v * 16ull, vector.low);
      packets.put(words + (v + allVectors()) * 16ull, vector.high);
    }
  }

  // Takes vector i of row k, the block's j-th, from a peer. Waits for it, and returns whether it came. All threads of a
  // warp call it.
  MSCCLPP_DEVICE_INLINE bool take(uint32_t from, uint32_t k, uint32_t j, uint32_t i, Bytes16& vector) const {
    if (bySimple()) {
      if (i < call.vectors) vector = load16(chunks().place(Chunks::First, b.rank, from, j) + i * 16);
      return true;
    }
    const bool isInLine = i < wholeVectors(), hasFlag = this->hasFlag(i);
    const uint32_t v = vectorOf(b.rank, from, k, isInLine ? i : 0);
    const uint8_t* const words = packetsAt(b.rank);
    const auto word = [](Bytes16 packet) { return (packet.low & 0xffffffffu) | packet.high << 32; };
    const auto isPacket = [&](Bytes16 packet) {
      return packet.low >> 32 == packets.first && packet.high >> 32 == packets.second;
    };
    // The data that comes: the vector in its line and the packet of the word that the flag replaces, or two packets.
    Bytes16 first = {0, 0}, second = {0, 0};
    if (byLl128()) {
      const uint8_t* const line = linesAt(b.rank) + v * 16ull;
      const auto came = [&] {
        {
          [[maybe_unused]] const detail::AsPacket asPacket;
          if (hasFlag) second = loadPair(words + v / 8 * 16ull);
        }
        warpSync();
        first = warpAtOnce([&] { return loadPair(line); });
        return !warpAny(hasFlag && isInLine && !(first.high == b.epoch && isPacket(second)));
      };
      const bool done = came() || pollUntilByWarp<1>(came, -1, b.comm.status[from]);
      vector = {first.low, hasFlag ? word(second) : first.high};
      return done;
    }
    if (i >= call.vectors) return true;
    const auto came = [&] {
      [[maybe_unused]] const detail::AsPacket asPacket;
      first = loadPair(words + v * 16ull);
      second = loadPair(words + (v + allVectors()) * 16ull);
      return isPacket(first) && isPacket(second);
    };
    const bool done = came() || pollUntil<1>(came, -1, b.comm.status[from]);
    vector = {word(first), word(second)};
    return done;
  }

  // ---- results by packets

  // The place of the results of row k that `from` sends to `to`, after the packets of rows.
  MSCCLPP_DEVICE_INLINE uint8_t* resultPackets(uint32_t to, uint32_t from, uint32_t k) const {
    const uint64_t rows = allVectors() * (byLl128() ? 2ull : 32ull);
    return packetsAt(to) + rows + (b.slotOf(from, to) * call.most + k) * (call.resultBytes * 2);
  }
  MSCCLPP_DEVICE_INLINE void putResult(uint8_t* at, Bytes16 v) const {
    packets.put(at, v.low);
    packets.put(at + 16, v.high);
  }
  // Takes the results of other ranks, by all threads of the launch, whose warps are counted through the blocks in
  // turns, so that even few results are spread over all blocks.
  MSCCLPP_DEVICE_INLINE bool takeResultPackets() const {
    const uint32_t stride = static_cast<uint32_t>(b.threadsOfCall());
    const uint32_t here = (b.thread / 32 * b.blocks + b.block) * 32 + b.thread % 32;
#pragma unroll 1
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
#pragma unroll 1
      for (uint32_t o = 0; o < CollectiveMaxOutputs; ++o) {
        const CollectiveOutput output = call.outputs[o];
        if (!isSent(output)) continue;
        const uint32_t words = wordsOfRow(output), all = rowsOf(p) * words;
#pragma unroll 1
        for (uint32_t i = here; i < all; i += stride) {
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

  // ---- results by Simple

  MSCCLPP_DEVICE_INLINE bool takeResultChunks(uint32_t j) const {
    if (!chunks().waitForAll(Chunks::Results, j, [&](uint32_t r) { return has(r, j); })) return false;
#pragma unroll 1
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      if (!has(p, j)) continue;
      const uint8_t* const from = chunks().place(Chunks::Results, b.rank, p, j);
#pragma unroll 1
      for (uint32_t o = 0; o < CollectiveMaxOutputs; ++o) {
        const CollectiveOutput output = call.outputs[o];
        if (!isSent(output)) continue;
        const uint32_t to = row(p, ofBlock(j));
        if (output.vectorBytes == 16) {
          uint8_t* const memory = output.memory + static_cast<uint64_t>(to) * rowBytes();
          for (uint32_t i = b.thread; i < call.vectors; i += b.threads) {
            store16(memory + i * 16, load16(from + output.at + i * 16));
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
  // The number of words of 8 bytes in a row; an output with one number per row has one word.
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

  // Sums up vector i of the rank's own row k, which is the block's j-th; `mine` is this rank's own vector. All threads
  // of a warp call it, also those whose vector does not exist. Returns whether all ranks' vectors came.
  template <class N>
  MSCCLPP_DEVICE_INLINE bool sum(uint32_t k, uint32_t j, uint32_t i, Bytes16 mine,
                                 typename VectorNumbers<N>::Values& sums) const {
    // Adding a number to -0 leaves it as it is, even 0 or -0.
#pragma unroll
    for (uint32_t n = 0; n < VectorNumbers<N>::Count; ++n) sums[n] = -0.0f;
    bool came = true;
#pragma unroll 1
    for (uint32_t r = 0; r < b.ranks; ++r) {
      Bytes16 vector = mine;
      if (r != b.rank) came = take(r, k, j, i, vector) && came;
      typename VectorNumbers<N>::Values numbers;
      VectorNumbers<N>::widen(vector, numbers);
#pragma unroll
      for (uint32_t n = 0; n < VectorNumbers<N>::Count; ++n) sums[n] = addValues(sums[n], numbers[n]);
    }
    return came;
  }
};

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_ROWS_BLOCK_DEVICE_HPP_
