// The part of CUDA's cooperative groups for a block and its tiles of up to a warp.

#ifndef MSCCLPP_SIM_COOPERATIVE_GROUPS_H_
#define MSCCLPP_SIM_COOPERATIVE_GROUPS_H_

#include "mscclpp_sim/runtime.hpp"
#include "mscclpp_sim/vector_types.hpp"

namespace cooperative_groups {

// A group of all threads of the block.
class thread_block {
 public:
  static void sync() { __syncthreads(); }
  static unsigned int thread_rank() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  }
  static unsigned int num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned int size() { return num_threads(); }
  static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
  static dim3 dim_threads() { return dim3(blockDim.x, blockDim.y, blockDim.z); }
  static dim3 group_dim() { return dim_threads(); }
};

inline thread_block this_thread_block() { return thread_block(); }

// A tile of `Size` consecutive threads of a warp, with the warp's functions among them. The last tile of a block that
// ends within it has fewer threads.
template <unsigned int Size, class Parent = thread_block>
class thread_block_tile {
  static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads here");

 public:
  static unsigned int thread_rank() { return thread_block::thread_rank() % Size; }
  static constexpr unsigned int num_threads() { return Size; }
  static constexpr unsigned int size() { return Size; }
  // The number of the tile among the tiles of the parent.
  unsigned int meta_group_rank() const { return parentRank_ / Size; }
  unsigned int meta_group_size() const { return (parentSize_ + Size - 1) / Size; }

  static void sync() { __syncwarp(mask()); }
  template <class T>
  T shfl(T value, int rank) const {
    return __shfl_sync(mask(), value, rank, Size);
  }
  template <class T>
  T shfl_up(T value, unsigned int distance) const {
    return __shfl_up_sync(mask(), value, distance, Size);
  }
  template <class T>
  T shfl_down(T value, unsigned int distance) const {
    return __shfl_down_sync(mask(), value, distance, Size);
  }
  template <class T>
  T shfl_xor(T value, unsigned int ranks) const {
    return __shfl_xor_sync(mask(), value, static_cast<int>(ranks), Size);
  }
  int any(int predicate) const { return __any_sync(mask(), predicate); }
  int all(int predicate) const { return __all_sync(mask(), predicate); }
  // The bit of each thread is that of its rank.
  unsigned int ballot(int predicate) const { return __ballot_sync(mask(), predicate) >> firstLane(); }

 private:
  template <unsigned int TileSize, class Group>
  friend thread_block_tile<TileSize, Group> tiled_partition(const Group& group);

  explicit thread_block_tile(const Parent& parent)
      : parentRank_(parent.thread_rank()), parentSize_(parent.num_threads()) {}

  static unsigned int firstLane() { return thread_block::thread_rank() % 32 / Size * Size; }
  // The lanes of this tile that have a thread.
  static unsigned int mask() {
    const unsigned int first = thread_block::thread_rank() / Size * Size;
    const unsigned int left = thread_block::num_threads() - first, threads = left < Size ? left : Size;
    return (threads == 32 ? ~0u : (1u << threads) - 1) << firstLane();
  }

  unsigned int parentRank_, parentSize_;
};

// Splits a block or a tile into tiles, and returns the tile of this thread.
template <unsigned int Size, class Group>
thread_block_tile<Size, Group> tiled_partition(const Group& group) {
  return thread_block_tile<Size, Group>(group);
}

template <class Group>
void sync(const Group& group) {
  group.sync();
}

}  // namespace cooperative_groups

#endif  // MSCCLPP_SIM_COOPERATIVE_GROUPS_H_
