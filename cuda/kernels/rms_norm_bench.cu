// The kernel that the benchmark all-reduce-rmsnorm launches after an all_reduce, to compare: residual and RMSNorm of f16,
// with the same bits as all_reduce_rms_norm.cu.

#include "mscclpp/collective_device.hpp"

using namespace mscclpp;
using Numbers = VectorNumbers<Number<ReduceF16>>;

MSCCLPP_DEVICE_INLINE float sumOfWarp(float value) {
#pragma unroll
  for (uint32_t bit = 16; bit != 0; bit >>= 1) {
    const uint64_t other = warpShuffle(detail::bitsAs<uint32_t>(value), laneId() ^ bit);
    value += detail::bitsAs<float>(static_cast<uint32_t>(other));
  }
  return value;
}

// Each row has a block, and each vector of the row a thread of that block.
extern "C" __global__ void __launch_bounds__(1024)
    add_rms_norm_f16(const uint8_t* sums, const uint8_t* residual, const uint8_t* weight, float epsilon,
                     uint8_t* newResidual, uint8_t* normalised, uint32_t vectors) {
  __shared__ float parts[32];
  const uint32_t thread = threadOfBlock();
  const uint64_t at = (static_cast<uint64_t>(blockOfGrid()) * vectors + thread) * 16;
  const bool has = thread < vectors;
  float numbers[8], weights[8], squares = 0;
  if (has) {
    float old[8];
    Numbers::widen(load16(sums + at), numbers);
    Numbers::widen(load16(residual + at), old);
    Numbers::widen(load16(weight + thread * 16ull), weights);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) numbers[i] += old[i];
    const Bytes16 rounded = Numbers::narrow(numbers);
    store16(newResidual + at, rounded);
    Numbers::widen(rounded, numbers);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) squares = fmaf(numbers[i], numbers[i], squares);
  }
  const float part = sumOfWarp(squares);
  if (laneId() == 0) parts[thread / 32] = part;
  blockSync();
  const float sum = sumOfWarp(laneId() * 32 < threadsOfBlock() ? 0.0f + parts[laneId()] : 0.0f);
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(vectors * 8) + epsilon);
  if (!has) return;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) numbers[i] = numbers[i] * factor * weights[i];
  store16(normalised + at, Numbers::narrow(numbers));
}
