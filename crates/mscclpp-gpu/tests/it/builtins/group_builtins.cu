// Tests of cooperative groups: the same source on GPUs, with the headers of a CUDA toolkit, and on the simulated ones,
// with those that come with them.

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// 10 results of each thread, which gives the words `values`, of tiles of a size.
template <unsigned int Size>
__device__ static unsigned int* inTiles(const cg::thread_block& block, const unsigned int* values, unsigned int* out) {
  const cg::thread_block_tile<Size, cg::thread_block> tile = cg::tiled_partition<Size>(block);
  const unsigned int value = values[block.thread_rank()];
  unsigned int sum = value;
  for (unsigned int ranks = Size / 2; ranks > 0; ranks /= 2) sum += tile.shfl_xor(sum, ranks);
  tile.sync();
  *out++ = tile.thread_rank();
  *out++ = tile.meta_group_rank();
  *out++ = tile.meta_group_size();
  *out++ = sum;
  *out++ = tile.shfl(value, Size - 1);
  *out++ = tile.shfl_up(value, 1);
  *out++ = tile.shfl_down(value, 1);
  *out++ = tile.any(value % 8 == 0) != 0;
  *out++ = tile.all(value % 2 == 0) != 0;
  *out++ = tile.ballot(value % 3 == 0);
  return out;
}

// One block, of two dimensions or one, each thread with 33 results.
extern "C" __global__ void groups(const unsigned int* values, unsigned int* out) {
  __shared__ unsigned int reversed[1024];
  const cg::thread_block block = cg::this_thread_block();
  const unsigned int rank = block.thread_rank(), threads = block.size();
  reversed[threads - 1 - rank] = values[rank];
  block.sync();
  unsigned int* results = out + 33 * rank;
  *results++ = threads;
  *results++ = reversed[rank];
  *results++ = block.group_index().x + block.thread_index().x;
  cg::sync(block);
  results = inTiles<32>(block, values, results);
  results = inTiles<8>(block, values, results);
  inTiles<1>(block, values, results);
}
