// A sum over the ranks and an epilogue of yours on each row of it, in one launch. The host launches such kernels with
// `Collectives::all_reduce_rows`.
//
//     using namespace mscclpp;
//     struct Doubled {
//       struct Kept {};
//       __device__ void prefetch(const RowVector& at, Kept& kept) const {}
//       __device__ void reduced(const RowVector& at, const float (&sums)[8], Kept& kept) const { ... }
//       template <class Row, uint32_t N>
//       __device__ void finish(const Row& row, Kept (&kept)[N]) const { ... row.store(0, at, numbers); ... }
//     };
//     extern "C" __global__ void __launch_bounds__(1024)
//         doubled(const MSCCLPP_GRID_CONSTANT CollectiveHandle comm, const MSCCLPP_GRID_CONSTANT CollectiveRows rows) {
//       allReduceRows<Number<ReduceF16>>(comm, rows, Doubled{});
//     }
//
// A message is rows of vectors of 16 bytes. A block has whole rows, and a thread of it every threads-th vector of a row.
// For each row the epilogue is called three times, by all threads of the block:
//
//   prefetch  for each vector, before what other ranks sent is waited for: to load what is needed later into `kept`
//   reduced   for each vector, with its sums, as they are before they are rounded to the type of the message
//   finish    once, when all sums of the row are there. `row.each` goes through the thread's vectors again; `row.sum`
//             and `row.max` reduce over the row; `row.store` and `row.storeOfRow` give a result to an output.
//
// The epilogue is the same for all of the protocols below, which the host chooses. It must give the same bits on every rank
// that is given the same.
//
//   One step    every rank sends all rows to every other. Each does all the work, on all rows.
//   Two steps   row r is that of rank r modulo the ranks: its sum is made there alone, and so is the epilogue called.
//               Results go to all ranks, except those of outputs that the host has called its own: these stay.
//   Packets     are valid by themselves, and so are lines, where the link keeps them whole. Their places are not used again
//               before the next call but one.
//   Chunks      of one row: plain stores into the ring of collective_simple_device.hpp, and a signal. Its rules R1 (one
//               step) and R3 (two steps) say when a place is free.
//
// Row k of the rows that a rank sums up belongs to block k modulo the blocks, on all ranks. A block sends and takes the
// rows with its number: in a short call one row after the other, else with one sent ahead.
//
// E2 of collective_device.hpp holds: in two steps there are at least as many rows as ranks, so each rank sums up some
// row, for which it takes data from every other.
//
// Bits. Sums are made in the order of the ranks. `row.sum` depends on nothing but the row: the values of 32 vectors side
// by side are added in a butterfly (the value 16 vectors further first, then 8, 4, 2, 1); of the results, every 32nd is
// added in order, beginning with 0, and these 32 in a butterfly again. Vectors behind the end count as 0.

#ifndef MSCCLPP_COLLECTIVE_ROWS_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_ROWS_DEVICE_HPP_

#include "mscclpp/collective_rows_block_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {

namespace detail {

// The block's memory for a value of each 32 vectors, in two halves that reductions over rows use in turns: a thread
// that writes to one half knows, by the barrier of the reduction between, that all threads have read it.
MSCCLPP_DEVICE_INLINE float* rowParts(uint32_t half) {
  constexpr uint32_t Most = CollectiveMaxVectors * 1024 / 32;
#if defined(MSCCLPP_DEVICE_HIP)
  static __attribute__((shared)) float memory[2][Most];
#else
  __shared__ float memory[2][Most];
#endif
  return memory[half];
}

}  // namespace detail

// A row with its sums, for an epilogue's `finish`. All threads of the block call `sum` and `max`.
template <class N, bool Short>
struct CollectiveRow {
  const detail::RowsBlock<Short>& block;
  // The number of the row in the message, among the rank's own rows, and among the block's.
  uint32_t row;
  uint32_t own;
  uint32_t ofBlock;
  // The half of the memory that the next reduction over the row uses.
  uint32_t& turn;

  MSCCLPP_DEVICE_INLINE uint32_t columns() const { return block.call.vectors * VectorNumbers<N>::Count; }
  MSCCLPP_DEVICE_INLINE uint32_t rank() const { return block.b.rank; }
  MSCCLPP_DEVICE_INLINE uint32_t ranks() const { return block.b.ranks; }

  // Calls use(at, mine) with each vector of this thread, and the values that the thread has kept of it.
  template <class Kept, uint32_t Vectors, class Use>
  MSCCLPP_DEVICE_INLINE void each(Kept (&kept)[Vectors], Use use) const {
#pragma unroll 1
    for (uint32_t n = 0; n < Vectors; ++n) {
      const uint32_t vector = n * block.b.threads + block.b.thread;
      if (vector < block.call.vectors) use(at(vector), kept[n]);
    }
  }

  // Returns the sum, or the largest, of value(mine) of all vectors of the row to all threads. The order of the
  // additions is given above, under "Bits". `max` leaves a NaN out.
  template <class Kept, uint32_t Vectors, class Value>
  MSCCLPP_DEVICE_INLINE float sum(const Kept (&kept)[Vectors], Value value) const {
    return reduced(kept, value, 0.0f, [](float a, float b) { return detail::addValues(a, b); });
  }
  template <class Kept, uint32_t Vectors, class Value>
  MSCCLPP_DEVICE_INLINE float max(const Kept (&kept)[Vectors], Value value) const {
    const float least = detail::bitsAs<float>(0xff800000u);
    return reduced(kept, value, least, [](float a, float b) { return b > a || a != a ? b : a; });
  }

  // Stores a result for a vector in an output with as many bytes for each vector: 16 or 8.
  MSCCLPP_DEVICE_INLINE void store(uint32_t output, const RowVector& at, Bytes16 vector) const {
    const CollectiveOutput& to = block.call.outputs[output];
    store16(to.memory + at.index * 16, vector);
    send(to, [&](uint32_t p) {
      const uint64_t offset = to.at + static_cast<uint64_t>(at.vector) * 16;
      if (!block.bySimple()) {
        block.putResult(block.resultPackets(p, rank(), own) + offset * 2, vector);
      } else {
        store16(place(p) + offset, vector);
      }
    });
  }
  MSCCLPP_DEVICE_INLINE void store(uint32_t output, const RowVector& at, uint64_t word) const {
    const CollectiveOutput& to = block.call.outputs[output];
    store8(to.memory + at.index * 8, word);
    sendWord(to, static_cast<uint64_t>(at.vector) * 8, word);
  }
  // Stores the row's number in an output of one for each row. All threads that call it have the same number.
  MSCCLPP_DEVICE_INLINE void storeOfRow(uint32_t output, float number) const {
    if (block.b.thread != 0) return;
    const CollectiveOutput& to = block.call.outputs[output];
    store4(to.memory + row * 4ull, detail::bitsAs<uint32_t>(number));
    sendWord(to, 0, detail::bitsAs<uint32_t>(number));
  }

  // The functions from here on are for the library's own use.
  MSCCLPP_DEVICE_INLINE RowVector at(uint32_t vector) const {
    const uint64_t index = static_cast<uint64_t>(row) * block.call.vectors + vector;
    return {row, vector, vector * VectorNumbers<N>::Count, index, block.b.rank};
  }

 private:
  MSCCLPP_DEVICE_INLINE uint8_t* place(uint32_t p) const {
    return block.chunks().place(detail::Chunks::Results, p, rank(), ofBlock);
  }
  MSCCLPP_DEVICE_INLINE void sendWord(const CollectiveOutput& to, uint64_t offset, uint64_t word) const {
    send(to, [&](uint32_t p) {
      if (!block.bySimple()) {
        block.packets.put(block.resultPackets(p, rank(), own) + (to.at + offset) * 2, word);
      } else {
        store8(place(p) + to.at + offset, word);
      }
    });
  }
  template <class ToPeer>
  MSCCLPP_DEVICE_INLINE void send(const CollectiveOutput& output, ToPeer toPeer) const {
    if (!block.twoSteps() || !block.isSent(output)) return;
#pragma unroll 1
    for (uint32_t n = 1; n < block.b.ranks; ++n) toPeer(block.b.peer(n));
  }

  template <class Combine>
  MSCCLPP_DEVICE_INLINE static float ofWarp(float value, Combine combine) {
    const uint32_t lane = laneId();
#pragma unroll
    for (uint32_t bit = 16; bit != 0; bit >>= 1) {
      const float other = detail::bitsAs<float>(warpShuffle(detail::bitsAs<uint32_t>(value), lane ^ bit));
      // The operands are in the order of the threads, so that all threads get the same result, be it 0 or -0.
      value = lane & bit ? combine(other, value) : combine(value, other);
    }
    return value;
  }
  template <class Kept, uint32_t Vectors, class Value, class Combine>
  MSCCLPP_DEVICE_INLINE float reduced(const Kept (&kept)[Vectors], Value value, float none, Combine combine) const {
    float* const here = detail::rowParts(turn);
    turn ^= 1;
    const uint32_t lane = laneId(), vectors = block.call.vectors;
#pragma unroll 1
    for (uint32_t n = 0; n < Vectors; ++n) {
      const uint32_t vector = n * block.b.threads + block.b.thread, first = vector - lane;
      // All threads of a warp have a part, or none has.
      if (first >= vectors) continue;
      const float part = ofWarp(vector < vectors ? value(kept[n]) : none, combine);
      if (lane == 0) here[first / 32] = part;
    }
    blockSync();
    float result = none;
    for (uint32_t i = lane; i * 32 < vectors; i += 32) result = combine(result, here[i]);
    return ofWarp(result, combine);
  }
};

namespace detail {

// Sums up the rank's own row k, which is the block's j-th, and gives it to the epilogue. All threads of the block call
// it. `first`: the thread's vector of the row, if the call is short. Returns whether all data came that this thread
// waited for.
template <class N, uint32_t Vectors, bool Short, class Epilogue>
MSCCLPP_DEVICE_INLINE bool finishRow(const RowsBlock<Short>& block, const Epilogue& epilogue, uint32_t k, uint32_t j,
                                     uint32_t& turn, Bytes16 first) {
  const CollectiveRow<N, Short> row = {block, block.row(block.b.rank, k), k, j, turn};
  typename Epilogue::Kept kept[Vectors];
  row.each(kept, [&](const RowVector& at, auto& mine) { epilogue.prefetch(at, mine); });
  if (block.bySimple() && !block.chunks().waitForAll(Chunks::First, j, [](uint32_t) { return true; })) return false;
  bool failed = false;
#pragma unroll 1
  for (uint32_t n = 0; n < Vectors; ++n) {
    const uint32_t i = n * block.b.threads + block.b.thread;
    if (!block.warpHas(i)) continue;
    const RowVector at = row.at(i);
    const bool exists = i < block.call.vectors;
    typename VectorNumbers<N>::Values sums;
    failed = !block.template sum<N>(k, j, i, Short || !exists ? first : at.of(block.call.send), sums) || failed;
    if (exists) epilogue.reduced(at, sums, kept[n]);
  }
  // No rank gets results of a row whose data has not come.
  if (block.twoSteps() && blockAny(failed)) return false;
  epilogue.finish(row, kept);
  return !failed;
}

// A call by lines, in one step, of rows of which each thread has one vector. It is for few rows, so the first vector is
// loaded while the epoch is read, and no register goes into local memory: it waits for one rank after the other.
template <class N, class Epilogue>
MSCCLPP_DEVICE_INLINE void reduceShortRows(const CollectiveHandle& comm, const CollectiveRows& call,
                                           const Epilogue& epilogue) {
  CollectiveBlock b(comm, call.call, false);
  const uint32_t rows = static_cast<uint32_t>(call.rows);
  const auto load = [&](uint32_t row) {
    const uint64_t index = static_cast<uint64_t>(row) * call.vectors + b.thread;
    return row < rows && b.thread < call.vectors ? load16(call.send + index * 16) : Bytes16{0, 0};
  };
  Bytes16 mine = load(b.block);
  if (!b.begin()) return;
  const RowsBlock<true> block(call, b);
  uint32_t turn = 0;
  bool failed = false;
#pragma unroll 1
  for (uint32_t row = b.block; row < rows; row += b.blocks) {
    const bool isFirst = row == b.block;
    if (!isFirst) mine = load(row);
    if (block.warpHas(b.thread)) {
#pragma unroll 1
      for (uint32_t n = 1; n < b.ranks; ++n) block.putVector(b.peer(n), row, b.thread, mine);
    }
    if (isFirst) b.countOthers();
    // If a thread gives up, the others go on, and wait for it at barriers.
    failed = !finishRow<N, 1>(block, epilogue, row, 0, turn, mine) || failed;
  }
  if (b.block >= rows) b.countOthers();
  b.end(failed);
}

// Any call that reduceShortRows does not handle.
template <class N, uint32_t Vectors, class Epilogue>
MSCCLPP_DEVICE_INLINE void reduceRows(const CollectiveHandle& comm, const CollectiveRows& call, const Epilogue& epilogue) {
  CollectiveBlock b(comm, call.call, false);
  if (!b.begin()) return;
  b.countOthers();
  const RowsBlock<false> block(call, b);
  const bool bySimple = block.bySimple(), twoSteps = block.twoSteps();
  // The number of rows of this block, for the rank that has most rows.
  const uint32_t n = b.block < block.most() ? (block.most() - b.block + b.blocks - 1) / b.blocks : 0;
  uint32_t turn = 0;
  bool failed = false;
#pragma unroll 1
  for (uint32_t i = 0; n != 0 && i < n + (bySimple && twoSteps ? 2 : 1); ++i) {
    if (i < n) block.put(i);
    if (i >= 1 && i <= n) {
      const uint32_t j = i - 1;
      const bool has = block.has(b.rank, j);
      if (has && !finishRow<N, Vectors>(block, epilogue, block.ofBlock(j), j, turn, Bytes16{0, 0})) {
        // All threads know about it, except by packets and lines in one step: then the others go on, and wait for this
        // one at barriers.
        if (bySimple || twoSteps) return b.end(true);
        failed = true;
      }
      if (bySimple && twoSteps) block.chunks().signalAll(Chunks::Results, j, [&](uint32_t) { return has; });
    }
    if (bySimple && twoSteps && i >= 2 && !block.takeResultChunks(i - 2)) return b.end(true);
  }
  if (!bySimple && twoSteps) failed = !block.takeResultPackets();
  b.end(failed);
}

}  // namespace detail

// Sums up the ranks' messages and gives each row to the epilogue. N is their type: Number<ReduceF16>,
// Number<ReduceBf16> or Number<ReduceF32>. All threads of the launch call it, once; its threads and blocks have one
// dimension. When it returns, other threads may not yet see what the kernel stores: work that needs all results is a
// launch of its own.
template <class N, class Epilogue>
MSCCLPP_DEVICE_INLINE void allReduceRows(const CollectiveHandle& comm, const CollectiveRows& call,
                                         const Epilogue& epilogue) {
  // One vector of each thread is kept in registers, more in local memory.
  if (call.protocol == RowsByLl128 && !call.twoSteps && call.vectors <= threadsOfBlock()) {
    detail::reduceShortRows<N>(comm, call, epilogue);
  } else if (call.vectors <= threadsOfBlock()) {
    detail::reduceRows<N, 1>(comm, call, epilogue);
  } else {
    // The kept values of one vector of each thread are in registers, those of more in local memory.
    detail::reduceRows<N, CollectiveMaxVectors>(comm, call, epilogue);
  }
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_COLLECTIVE_ROWS_DEVICE_HPP_
