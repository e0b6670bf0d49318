// all_reduce, residual and RMSNorm in one launch: the kernels of the example all_reduce_rms_norm.
// build: compute_90

#include "mscclpp/collective_device.hpp"

using namespace mscclpp;

// The handling of normalised numbers. Outputs of the call: 0 is the new residual, 1 the numbers, 2 the scale of each row.

// The numbers are rounded to the type of the message.
template <class N>
struct SameType {
  template <class Row, class Kept, class Normalised>
  __device__ void store(const Row& row, Kept& kept, Normalised normalised) const {
    row.each(kept, [&](const RowVector& at, const auto& mine) {
      typename VectorNumbers<N>::Values numbers;
      normalised(mine, numbers);
      row.store(1, at, VectorNumbers<N>::narrow(numbers));
    });
  }
};

// Converts the numbers to fp8 (e4m3), in units of `scale`.
MSCCLPP_DEVICE_INLINE uint64_t quantised(const float (&numbers)[8], float scale) {
  uint64_t word = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) word |= Number<ReduceF8E4m3>::narrow(numbers[i] * scale) << 8 * i;
  return word;
}

// One unit for all numbers.
struct Fp8 {
  float unit;
  template <class Row, class Kept, class Normalised>
  __device__ void store(const Row& row, Kept& kept, Normalised normalised) const {
    const float scale = 1.0f / unit;
    row.each(kept, [&](const RowVector& at, const auto& mine) {
      float numbers[8];
      normalised(mine, numbers);
      row.store(1, at, quantised(numbers, scale));
    });
  }
};

// A unit for each row, so that the row's largest number becomes 448, fp8's largest.
struct Fp8OfRows {
  template <class Row, class Kept, class Normalised>
  __device__ void store(const Row& row, Kept& kept, Normalised normalised) const {
    const float largest = row.max(kept, [&](const auto& mine) {
      float numbers[8], most = 0;
      normalised(mine, numbers);
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        const float magnitude = numbers[i] < 0 ? -numbers[i] : numbers[i];
        if (magnitude > most) most = magnitude;
      }
      return most;
    });
    const Fp8 one = {largest > 0 ? largest / 448.0f : 1.0f};
    one.store(row, kept, normalised);
    row.storeOfRow(2, one.unit);
  }
};

// ANCHOR: epilogue
// residual += the sum; normalised = residual / sqrt(mean of its squares + epsilon) * weight. Sums and the new residual
// are rounded to the message's type, as if all_reduce and the addition were launches of their own.
template <class N, class Output>
struct AddAndNormalise {
  using Numbers = VectorNumbers<N>;
  const void* residual;
  const void* weight;
  float epsilon;
  Output output;

  struct Kept {
    Bytes16 residual, weight;
  };

  __device__ void prefetch(const RowVector& at, Kept& kept) const { kept = {at.of(residual), at.ofColumn(weight)}; }

  __device__ void reduced(const RowVector&, const float (&sums)[8], Kept& kept) const {
    float sum[8], old[8];
    Numbers::widen(Numbers::narrow(sums), sum);
    Numbers::widen(kept.residual, old);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) sum[i] += old[i];
    kept.residual = Numbers::narrow(sum);
  }

  template <class Row, uint32_t Vectors>
  __device__ void finish(const Row& row, Kept (&kept)[Vectors]) const {
    row.each(kept, [&](const RowVector& at, const Kept& mine) { row.store(0, at, mine.residual); });
    const float squares = row.sum(kept, [](const Kept& mine) {
      float numbers[8], sum = 0;
      Numbers::widen(mine.residual, numbers);
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) sum = fmaf(numbers[i], numbers[i], sum);
      return sum;
    });
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(row.columns()) + epsilon);
    output.store(row, kept, [&](const Kept& mine, float (&numbers)[8]) {
      float weights[8];
      Numbers::widen(mine.residual, numbers);
      Numbers::widen(mine.weight, weights);
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) numbers[i] = numbers[i] * factor * weights[i];
    });
  }
};
// ANCHOR_END: epilogue

// ANCHOR: kernel
template <class N, class Output>
MSCCLPP_DEVICE_INLINE void addAndNormalise(const CollectiveHandle& comm, const CollectiveRows& rows, const void* residual,
                                           const void* weight, float epsilon, Output output) {
  waitForEarlierLaunches();
  allReduceRows<N>(comm, rows, AddAndNormalise<N, Output>{residual, weight, epsilon, output});
}

extern "C" __global__ void __launch_bounds__(1024)
    all_reduce_rms_norm_f16(const void* residual, const void* weight, float epsilon,
                            const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
                            const MSCCLPP_GRID_CONSTANT CollectiveRows rows) {
  using N = Number<ReduceF16>;
  addAndNormalise<N>(comm, rows, residual, weight, epsilon, SameType<N>{});
}
// ANCHOR_END: kernel
extern "C" __global__ void __launch_bounds__(1024)
    all_reduce_rms_norm_bf16(const void* residual, const void* weight, float epsilon,
                             const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
                             const MSCCLPP_GRID_CONSTANT CollectiveRows rows) {
  using N = Number<ReduceBf16>;
  addAndNormalise<N>(comm, rows, residual, weight, epsilon, SameType<N>{});
}

extern "C" __global__ void __launch_bounds__(1024)
    all_reduce_rms_norm_f16_fp8(const void* residual, const void* weight, float epsilon, float unit,
                                const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
                                const MSCCLPP_GRID_CONSTANT CollectiveRows rows) {
  addAndNormalise<Number<ReduceF16>>(comm, rows, residual, weight, epsilon, Fp8{unit});
}
extern "C" __global__ void __launch_bounds__(1024)
    all_reduce_rms_norm_bf16_fp8(const void* residual, const void* weight, float epsilon, float unit,
                                 const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
                                 const MSCCLPP_GRID_CONSTANT CollectiveRows rows) {
  addAndNormalise<Number<ReduceBf16>>(comm, rows, residual, weight, epsilon, Fp8{unit});
}

extern "C" __global__ void __launch_bounds__(1024)
    all_reduce_rms_norm_f16_fp8_of_rows(const void* residual, const void* weight, float epsilon,
                                        const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
                                        const MSCCLPP_GRID_CONSTANT CollectiveRows rows) {
  addAndNormalise<Number<ReduceF16>>(comm, rows, residual, weight, epsilon, Fp8OfRows{});
}
extern "C" __global__ void __launch_bounds__(1024)
    all_reduce_rms_norm_bf16_fp8_of_rows(const void* residual, const void* weight, float epsilon,
                                         const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
                                         const MSCCLPP_GRID_CONSTANT CollectiveRows rows) {
  addAndNormalise<Number<ReduceBf16>>(comm, rows, residual, weight, epsilon, Fp8OfRows{});
}
