// Numbers of 8 and 16 bits and vectors of them, as gpu_data_types.hpp has them. Numbers go in and out as their bits, in
// pairs: vectors of two, four and sixteen do the same.

#include <mscclpp/gpu_data_types.hpp>
#include <mscclpp/switch_channel_device.hpp>

using namespace mscclpp;

#define FOR_EACH_PAIR(i) \
  for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += gridDim.x * blockDim.x)

// Converts a pair, through a vector of N in which it is repeated, to pairs of To.
template <class To, int N, class T>
__device__ static VectorType<To, 2> converted(VectorType<T, 2> pair) {
  VectorType<T, N> many;
  for (int i = 0; i < N; ++i) many[i] = pair[i % 2];
  const VectorType<To, N> result = to<VectorType<To, N>>(many);
  VectorType<To, 2> last;
  last[0] = result[N - 2], last[1] = result[N - 1];
  return last;
}

template <class T>
__device__ static void widen(const T* in, float* out, float* byHalf, unsigned int pairs) {
  FOR_EACH_PAIR(i) {
    const auto pair = reinterpret_cast<const VectorType<T, 2>*>(in)[i];
    reinterpret_cast<f32x2*>(out)[i] = i % 2 == 0 ? converted<float, 2>(pair) : converted<float, 4>(pair);
    reinterpret_cast<f32x2*>(byHalf)[i] = converted<float, 2>(converted<__half, 8>(pair));
  }
}
template <class T>
__device__ static void narrow(const float* in, T* out, unsigned int pairs) {
  FOR_EACH_PAIR(i) {
    const f32x2 pair = reinterpret_cast<const f32x2*>(in)[i];
    reinterpret_cast<VectorType<T, 2>*>(out)[i] = i % 2 == 0 ? converted<T, 2>(pair) : converted<T, 16>(pair);
  }
}
template <class T>
__device__ static void narrowHalf(const __half* in, T* out, unsigned int pairs) {
  FOR_EACH_PAIR(i) {
    const f16x2 pair = reinterpret_cast<const f16x2*>(in)[i];
    reinterpret_cast<VectorType<T, 2>*>(out)[i] = i % 2 == 0 ? converted<T, 4>(pair) : converted<T, 2>(pair);
  }
}
// Sums with and without clipping, and minima.
template <class T>
__device__ static void add(const T* as, const T* bs, T* clipped, T* plain, T* least, unsigned int pairs) {
  FOR_EACH_PAIR(i) {
    const auto a = reinterpret_cast<const VectorType<T, 2>*>(as)[i], b = reinterpret_cast<const VectorType<T, 2>*>(bs)[i];
    VectorType<T, 4> four, others;
    four[0] = others[2] = a[0], four[1] = others[3] = a[1], four[2] = others[0] = b[0], four[3] = others[1] = b[1];
    const VectorType<T, 4> sums = four + others;
    reinterpret_cast<VectorType<T, 2>*>(clipped)[i][0] = sums[0];
    reinterpret_cast<VectorType<T, 2>*>(clipped)[i][1] = sums[3];
    reinterpret_cast<VectorType<T, 2>*>(plain)[i] = mscclpp::operator+<false>(a, b);
    reinterpret_cast<VectorType<T, 2>*>(least)[i] = mscclpp::min(a, b);
  }
}

#define ENTRIES(NAME, T)                                                                                             \
  extern "C" __global__ void NAME##_widen(const T* in, float* out, float* byHalf, unsigned int pairs) {              \
    widen<T>(in, out, byHalf, pairs);                                                                                \
  }                                                                                                                  \
  extern "C" __global__ void NAME##_narrow(const float* in, T* out, unsigned int pairs) { narrow<T>(in, out, pairs); } \
  extern "C" __global__ void NAME##_narrow_half(const __half* in, T* out, unsigned int pairs) {                      \
    narrowHalf<T>(in, out, pairs);                                                                                   \
  }                                                                                                                  \
  extern "C" __global__ void NAME##_add(const T* a, const T* b, T* clipped, T* plain, T* least, unsigned int pairs) { \
    add<T>(a, b, clipped, plain, least, pairs);                                                                      \
  }

ENTRIES(e4m3, __fp8_e4m3)
ENTRIES(e5m2, __fp8_e5m2)
ENTRIES(e4m3b15, __fp8_e4m3b15)
ENTRIES(half, __half)
ENTRIES(bfloat16, __bfloat16)

// Checks of constants, and of vectors by one thread. `wrong` gets the line of a check that failed.
#define EXPECT(condition) \
  if (!(condition)) atomicCAS(wrong, 0u, static_cast<unsigned int>(__LINE__))
static_assert(sizeof(f8_e4m3x16) == 16 && sizeof(bf16x8) == 16 && sizeof(f16x16) == 32 && sizeof(f32x16) == 64, "");
static_assert(sizeof(u8x2) == 2 && sizeof(f8_e4m3b15x4) == 4 && alignof(f32x4) == 16 && alignof(f16x2) == 4, "");
static_assert(f32x8::Size == 8 && sizeof(f64x1) == 8 && sizeof(i32x1) == 4, "");
extern "C" __global__ void vectors(unsigned int* wrong) {
  i32x4 numbers = make_int4(1, -2, 3, -4);
  const int4 stored = numbers + i32x4(make_int4(10, 20, 30, 40));
  EXPECT(stored.x == 11 && stored.y == 18 && stored.z == 33 && stored.w == 36 && numbers.data[3] == -4);
  EXPECT(numbers.words[1] == 0xfffffffe && bit_cast<u32x4>(numbers)[3] == 0xfffffffc);
  numbers[2] = 7;
  EXPECT(numbers.storage.z == 7 && mscclpp::min(numbers, i32x4(stored))[2] == 7);
  u8x4 bytes;
  bytes.words[0] = 0x040302ff;
  EXPECT((bytes + bytes).words[0] == 0x080604fe && bytes[0] == 0xff && bytes[3] == 4);
  const f32x1 one = 1.5f;
  EXPECT(one + f32x1(2.0f) == 3.5f && bit_cast<uint32_t>(1.0f) == 0x3f800000);
  f32x8 floats;
  for (int i = 0; i < 8; ++i) floats[i] = 0.5f * static_cast<float>(i);
  const f16x8 halves = to<f16x8>(floats);
  const bf16x8 others = to<bf16x8>(halves);
  EXPECT(halves.words[3] == 0x43004200 && others.words[3] == 0x40604040 && to<f32x8>(others)[7] == 3.5f);
  f16x2 infinite;
  infinite.words[0] = 0xfc007c00;
  EXPECT(clip(infinite).words[0] == 0xfbff7bff && bit_cast<uint32_t>(clip(infinite.storage)) == 0xfbff7bff);
  EXPECT(clip(2.5) == 2.5 && bit_cast<uint16_t>(clip(bit_cast<__bfloat16>(static_cast<uint16_t>(0xff80)))) == 0xff7f);
}

// This is only compiled: no test has a switch.
extern "C" __global__ void switch_channel(SwitchChannelDeviceHandle channel, float* out) {
  channel.signal();
  if (!channel.wait(10)) return;
  channel.broadcast(1, channel.reduce<f16x8>(1));
  channel.broadcast(2, channel.reduce<f32x4>(2));
  SwitchChannelDeviceHandle::multimemStore(bit_cast<f8_e4m3x4>(1.0f), static_cast<f8_e4m3x4*>(channel.mcPtr));
  const bf16x4* const numbers = static_cast<const bf16x4*>(channel.mcPtr);
  const bf16x4 sum = SwitchChannelDeviceHandle::multimemLoadReduce<bf16x4, float>(numbers);
  SwitchChannelDeviceHandle::multimemStoreReduce(sum, channel.mcPtr);
  SwitchChannelDeviceHandle::multimemStoreReduce(channel.reduce<i32x1>(3), channel.mcPtr);
  SwitchChannelDeviceHandle::multimemStoreReduce(channel.reduce<f64x1>(3), channel.mcPtr);
  channel.relaxedSignal();
  if (channel.relaxedWait()) *out = channel.reduce<f32x1>(5);
}
