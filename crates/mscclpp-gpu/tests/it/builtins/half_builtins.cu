// Tests of half and bfloat16: the same source on GPUs, with the headers of a CUDA toolkit, and on the simulated ones,
// with those that come with them. Numbers go in and out as their bits.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define FOR_EACH_INPUT(i) \
  for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < inputs; i += gridDim.x * blockDim.x)

// The names that differ between the two kinds of numbers.
struct Half {
  typedef __half Number;
  typedef __half2 Pair;
  __device__ static __half of(unsigned short bits) { return __ushort_as_half(bits); }
  __device__ static unsigned short bits(__half number) { return __half_as_ushort(number); }
  __device__ static __half nearest(float value) { return __float2half_rn(value); }
  __device__ static float widen(__half number) { return __half2float(number); }
  __device__ static __half2 pair(float2 values) { return __float22half2_rn(values); }
  __device__ static float2 widen(__half2 pair) { return __half22float2(pair); }
  __device__ static __half low(__half2 pair) { return __low2half(pair); }
  __device__ static __half high(__half2 pair) { return __high2half(pair); }
  __device__ static __half2 pair(__half low, __half high) { return __halves2half2(low, high); }
};
struct BFloat16 {
  typedef __nv_bfloat16 Number;
  typedef __nv_bfloat162 Pair;
  __device__ static __nv_bfloat16 of(unsigned short bits) { return __ushort_as_bfloat16(bits); }
  __device__ static unsigned short bits(__nv_bfloat16 number) { return __bfloat16_as_ushort(number); }
  __device__ static __nv_bfloat16 nearest(float value) { return __float2bfloat16_rn(value); }
  __device__ static float widen(__nv_bfloat16 number) { return __bfloat162float(number); }
  __device__ static __nv_bfloat162 pair(float2 values) { return __float22bfloat162_rn(values); }
  __device__ static float2 widen(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
  __device__ static __nv_bfloat16 low(__nv_bfloat162 pair) { return __low2bfloat16(pair); }
  __device__ static __nv_bfloat16 high(__nv_bfloat162 pair) { return __high2bfloat16(pair); }
  __device__ static __nv_bfloat162 pair(__nv_bfloat16 low, __nv_bfloat16 high) { return __halves2bfloat162(low, high); }
};

template <class Kind>
__device__ static void widen(const unsigned short* in, float* out, unsigned int inputs) {
  FOR_EACH_INPUT(i) out[i] = Kind::widen(Kind::of(in[i]));
}

template <class Kind>
__device__ static void narrow(const float* in, unsigned short* out, unsigned int inputs) {
  FOR_EACH_INPUT(i) out[i] = Kind::bits(Kind::nearest(in[i]));
}

// 9 results for each input.
template <class Kind>
__device__ static void calculate(const unsigned short* as, const unsigned short* bs, const unsigned short* cs,
                                 unsigned short* out, unsigned int inputs) {
  FOR_EACH_INPUT(i) {
    const typename Kind::Number a = Kind::of(as[i]), b = Kind::of(bs[i]), c = Kind::of(cs[i]);
    unsigned short* result = out + 9 * i;
    *result++ = Kind::bits(a + b);
    *result++ = Kind::bits(__hsub(a, b));
    *result++ = Kind::bits(a * b);
    *result++ = Kind::bits(__hfma(a, b, c));
    *result++ = Kind::bits(__hmax(a, b));
    *result++ = Kind::bits(__hmin(a, b));
    *result++ = Kind::bits(-a);
    *result++ = Kind::bits(__habs(a));
    *result++ = (a < b) | (a <= b) << 1 | (a == b) << 2 | (a != b) << 3 | __hgtu(a, b) << 4 | __hisnan(a) << 5;
  }
}

// 10 results for each input: the low halves, then the high ones.
template <class Kind>
__device__ static void calculatePairs(const float2* as, const float2* bs, float2* out, unsigned int inputs) {
  FOR_EACH_INPUT(i) {
    const typename Kind::Pair a = Kind::pair(as[i]), b = Kind::pair(bs[i]);
    float2* result = out + 10 * i;
    *result++ = Kind::widen(a + b);
    *result++ = Kind::widen(__hsub2(a, b));
    *result++ = Kind::widen(__hmul2(a, b));
    *result++ = Kind::widen(__hfma2(a, b, a));
    *result++ = Kind::widen(__hmax2(a, b));
    *result++ = Kind::widen(__hmin2(a, b));
    *result++ = Kind::widen(__hneg2(a));
    *result++ = Kind::widen(__hlt2(a, b));
    *result++ = Kind::widen(__lowhigh2highlow(a));
    *result++ = Kind::widen(Kind::pair(Kind::high(a), Kind::low(b)));
  }
}

// Every thread adds a quarter to a number, and a quarter and minus a quarter to a pair.
template <class Kind>
__device__ static void addTogether(unsigned short* number, unsigned short* pair) {
  atomicAdd(reinterpret_cast<typename Kind::Number*>(number), Kind::nearest(0.25f));
  atomicAdd(reinterpret_cast<typename Kind::Pair*>(pair), Kind::pair(make_float2(0.25f, -0.25f)));
}

#define ENTRIES(PREFIX, KIND)                                                                                          \
  extern "C" __global__ void PREFIX##_widen(const unsigned short* in, float* out, unsigned int inputs) {               \
    widen<KIND>(in, out, inputs);                                                                                      \
  }                                                                                                                    \
  extern "C" __global__ void PREFIX##_narrow(const float* in, unsigned short* out, unsigned int inputs) {              \
    narrow<KIND>(in, out, inputs);                                                                                     \
  }                                                                                                                    \
  extern "C" __global__ void PREFIX##_calculate(const unsigned short* as, const unsigned short* bs,                    \
                                                const unsigned short* cs, unsigned short* out, unsigned int inputs) {  \
    calculate<KIND>(as, bs, cs, out, inputs);                                                                          \
  }                                                                                                                    \
  extern "C" __global__ void PREFIX##_pairs(const float2* as, const float2* bs, float2* out, unsigned int inputs) {    \
    calculatePairs<KIND>(as, bs, out, inputs);                                                                         \
  }                                                                                                                    \
  extern "C" __global__ void PREFIX##_atomics(unsigned short* number, unsigned short* pair) {                          \
    addTogether<KIND>(number, pair);                                                                                   \
  }

ENTRIES(half, Half)
ENTRIES(bfloat16, BFloat16)
