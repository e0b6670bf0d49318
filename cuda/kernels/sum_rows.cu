// Sums of rows, without an epilogue.

#include "mscclpp/collective_device.hpp"

using namespace mscclpp;

// Output 0 has the sums. For f32, output 1 has them as f16.
template <class N>
struct Sums {
  struct Kept {
    typename VectorNumbers<N>::Values numbers;
  };
  __device__ void prefetch(const RowVector&, Kept&) const {}
  __device__ void reduced(const RowVector&, const typename VectorNumbers<N>::Values& sums, Kept& kept) const {
    for (uint32_t i = 0; i < VectorNumbers<N>::Count; ++i) kept.numbers[i] = sums[i];
  }
  template <class Row, uint32_t Vectors>
  __device__ void finish(const Row& row, Kept (&kept)[Vectors]) const {
    row.each(kept, [&](const RowVector& at, const Kept& mine) {
      row.store(0, at, VectorNumbers<N>::narrow(mine.numbers));
      if constexpr (N::Bytes == 4) {
        uint64_t halves = 0;
        for (uint32_t i = 0; i < 4; ++i) halves |= Number<ReduceF16>::narrow(mine.numbers[i]) << 16 * i;
        row.store(1, at, halves);
      }
    });
  }
};

extern "C" __global__ void __launch_bounds__(1024) sum_f16(const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
                                                           const MSCCLPP_GRID_CONSTANT CollectiveRows rows) {
  allReduceRows<Number<ReduceF16>>(comm, rows, Sums<Number<ReduceF16>>{});
}
extern "C" __global__ void __launch_bounds__(1024) sum_f32(const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
                                                           const MSCCLPP_GRID_CONSTANT CollectiveRows rows) {
  allReduceRows<Number<ReduceF32>>(comm, rows, Sums<Number<ReduceF32>>{});
}
