// Tests of the names that CUDA's device code has without an include: the same source on GPUs and on simulated devices,
// whose headers declare them. Each kernel calls its functions once for each of its inputs, thread by thread, and writes
// their results.

// Thread t of a grid of one dimension works on the inputs t, t + threads and so on.
__device__ static unsigned int firstInput() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ static unsigned int threadsOfGrid() { return gridDim.x * blockDim.x; }
#define FOR_EACH_INPUT(i) for (unsigned int i = firstInput(); i < inputs; i += threadsOfGrid())

// The sizes of some types, and then their alignments.
template <class... Types>
__device__ static unsigned int* layoutsOf(unsigned int* out) {
  const unsigned int sizes[] = {sizeof(Types)...}, alignments[] = {alignof(Types)...};
  for (unsigned int size : sizes) *out++ = size;
  for (unsigned int alignment : alignments) *out++ = alignment;
  return out;
}
extern "C" __global__ void vector_layouts(unsigned int* out) {
  if (firstInput() != 0) return;
  out = layoutsOf<char1, char2, char3, char4>(out);
  out = layoutsOf<uchar1, uchar2, uchar3, uchar4>(out);
  out = layoutsOf<short1, short2, short3, short4>(out);
  out = layoutsOf<ushort1, ushort2, ushort3, ushort4>(out);
  out = layoutsOf<int1, int2, int3, int4>(out);
  out = layoutsOf<uint1, uint2, uint3, uint4>(out);
  out = layoutsOf<float1, float2, float3, float4>(out);
  // Vectors of four have other names from CUDA 13 on.
  out = layoutsOf<long1, long2, long3>(out);
  out = layoutsOf<ulong1, ulong2, ulong3>(out);
  out = layoutsOf<longlong1, longlong2, longlong3>(out);
  out = layoutsOf<ulonglong1, ulonglong2, ulonglong3>(out);
  out = layoutsOf<double1, double2, double3>(out);
  const dim3 extents(7, 8);
  *out++ = sizeof(dim3);
  *out++ = extents.x * 100 + extents.y * 10 + extents.z;
}

// 24 results for each input.
extern "C" __global__ void words(const unsigned int* as, const unsigned int* bs, unsigned int* out,
                                 unsigned int inputs) {
  FOR_EACH_INPUT(i) {
    const unsigned int a = as[i], b = bs[i];
    const int signedA = static_cast<int>(a), signedB = static_cast<int>(b);
    unsigned int* result = out + 24 * i;
    *result++ = __popc(a);
    *result++ = __clz(signedA);
    *result++ = __ffs(signedA);
    *result++ = __brev(a);
    *result++ = __byte_perm(a, b, 0x1a74);
    *result++ = __byte_perm(a, b, b);
    *result++ = __funnelshift_l(a, b, a);
    *result++ = __funnelshift_lc(a, b, a & 63);
    *result++ = __funnelshift_r(a, b, b);
    *result++ = __funnelshift_rc(a, b, b & 63);
    *result++ = __mulhi(signedA, signedB);
    *result++ = __umulhi(a, b);
    *result++ = __mul24(signedA, signedB);
    *result++ = __umul24(a, b);
    *result++ = __sad(signedA, signedB, a);
    *result++ = __usad(a, b, b);
    *result++ = __hadd(signedA, signedB);
    *result++ = __rhadd(signedA, signedB);
    *result++ = __uhadd(a, b);
    *result++ = __urhadd(a, b);
    *result++ = min(signedA, signedB);
    *result++ = max(a, b);
    *result++ = min(signedA, b);
    *result++ = umin(a, b);
  }
}

// 8 results for each input.
extern "C" __global__ void long_words(const unsigned long long* as, const unsigned long long* bs,
                                      unsigned long long* out, unsigned int inputs) {
  FOR_EACH_INPUT(i) {
    const unsigned long long a = as[i], b = bs[i];
    const long long signedA = static_cast<long long>(a), signedB = static_cast<long long>(b);
    unsigned long long* result = out + 8 * i;
    *result++ = __popcll(a);
    *result++ = __clzll(signedA);
    *result++ = __ffsll(signedA);
    *result++ = __brevll(a);
    *result++ = __mul64hi(signedA, signedB);
    *result++ = __umul64hi(a, b);
    *result++ = llmin(signedA, signedB);
    *result++ = max(a, signedB);
  }
}

// 14 results for each input.
extern "C" __global__ void float_to_integer(const float* in, long long* out, unsigned int inputs) {
  FOR_EACH_INPUT(i) {
    const float value = in[i];
    long long* result = out + 14 * i;
    *result++ = __float2int_rn(value);
    *result++ = __float2int_rz(value);
    *result++ = __float2int_ru(value);
    *result++ = __float2int_rd(value);
    *result++ = __float2uint_rn(value);
    *result++ = __float2uint_rz(value);
    *result++ = __float2ll_rn(value);
    *result++ = __float2ll_rd(value);
    *result++ = static_cast<long long>(__float2ull_rz(value));
    *result++ = static_cast<long long>(__float2ull_ru(value));
    *result++ = __double2int_rn(value);
    *result++ = __double2uint_rz(value);
    *result++ = __double2ll_ru(value);
    *result++ = static_cast<long long>(__double2ull_rd(value));
  }
}

// 12 results for each input, as bits.
extern "C" __global__ void integer_to_float(const long long* in, unsigned long long* out, unsigned int inputs) {
  FOR_EACH_INPUT(i) {
    const long long value = in[i];
    const int low = static_cast<int>(value);
    unsigned long long* result = out + 12 * i;
    *result++ = __float_as_uint(__int2float_rn(low));
    *result++ = __float_as_uint(__int2float_rz(low));
    *result++ = __float_as_uint(__int2float_ru(low));
    *result++ = __float_as_uint(__int2float_rd(low));
    *result++ = __float_as_uint(__uint2float_rn(static_cast<unsigned int>(low)));
    *result++ = __float_as_uint(__ll2float_rn(value));
    *result++ = __float_as_uint(__ll2float_rz(value));
    *result++ = __float_as_uint(__ull2float_rd(static_cast<unsigned long long>(value)));
    *result++ = __double_as_longlong(__ll2double_rn(value));
    *result++ = __double_as_longlong(__ll2double_ru(value));
    *result++ = __double_as_longlong(__ull2double_rz(static_cast<unsigned long long>(value)));
    *result++ = __double_as_longlong(__hiloint2double(static_cast<int>(value >> 32), low));
  }
}

// 12 results for each input.
extern "C" __global__ void floats(const float* as, const float* bs, const float* cs, float* out, unsigned int inputs) {
  FOR_EACH_INPUT(i) {
    const float a = as[i], b = bs[i], c = cs[i];
    float* result = out + 12 * i;
    *result++ = __fadd_rn(a, b);
    *result++ = __fsub_rn(a, b);
    *result++ = __fadd_rn(__fmul_rn(a, b), c);
    *result++ = __fmaf_rn(a, b, c);
    *result++ = __fdiv_rn(a, b);
    *result++ = __frcp_rn(a);
    *result++ = __fsqrt_rn(a);
    *result++ = __saturatef(a);
    *result++ = min(a, b);
    *result++ = max(a, b);
    *result++ = __double2float_rz(static_cast<double>(a) * b);
    *result++ = __int_as_float(__float_as_int(a) ^ static_cast<int>(0x80000000u));
  }
}

// 11 results for each input, a number between 0 and 8, of functions that are not exact.
extern "C" __global__ void approximations(const float* in, float* out, unsigned int inputs) {
  FOR_EACH_INPUT(i) {
    const float a = in[i];
    float* result = out + 11 * i;
    *result++ = __expf(a);
    *result++ = __exp10f(a);
    *result++ = __logf(a);
    *result++ = __log2f(a);
    *result++ = __log10f(a);
    *result++ = __powf(a, 1.5f);
    *result++ = __sinf(a);
    *result++ = __cosf(a);
    *result++ = __fdividef(a, 3.0f);
    *result++ = rsqrtf(a);
    *result++ = static_cast<float>(rsqrt(static_cast<double>(a)));
  }
}

// Copies vectors by each load and store in turn. Both arrays are of vectors of 16 bytes.
extern "C" __global__ void cache_hints(const int4* in, int4* out, unsigned int inputs) {
  FOR_EACH_INPUT(i) {
    const int4* const from = in + i;
    int4* const to = out + i;
    switch (i % 6) {
      case 0: __stcg(to, __ldg(from)); break;
      case 1: __stcs(reinterpret_cast<float4*>(to), __ldcg(reinterpret_cast<const float4*>(from))); break;
      case 2: __stwt(reinterpret_cast<longlong2*>(to), __ldca(reinterpret_cast<const longlong2*>(from))); break;
      case 3: __stwb(reinterpret_cast<double2*>(to), __ldcs(reinterpret_cast<const double2*>(from))); break;
      case 4: __stcg(reinterpret_cast<uint4*>(to), __ldcv(reinterpret_cast<const uint4*>(from))); break;
      default: {
        const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(from);
        for (int byte = 0; byte < 8; ++byte) reinterpret_cast<unsigned char*>(to)[byte] = __ldg(bytes + byte);
        __stcs(reinterpret_cast<unsigned long long*>(to) + 1,
               __ldcg(reinterpret_cast<const unsigned long long*>(from) + 1));
      }
    }
  }
}

// The words that all threads change together.
struct Totals {
  unsigned long long wideAdded, wideHighest, wideLowest, wideBits, wideSwapped;
  long long signedHighest, signedLowest;
  double doubleAdded;
  int added, subtracted, highest, lowest;
  unsigned int cycledUp, cycledDown, cleared, set, toggled, exchanged, ofBlock, ticket;
  float floatAdded, floatExchanged;
  unsigned short shortSwapped[2];
};

// `exchanged` and `tickets` have a place for each thread, for the value that it found.
extern "C" __global__ void atomics(Totals* totals, unsigned int* exchanged, unsigned int* tickets) {
  const unsigned int t = firstInput();
  const int number = static_cast<int>(t);
  atomicAdd(&totals->added, number);
  atomicSub(&totals->subtracted, number);
  atomicMax(&totals->highest, number - 100);
  atomicMin(&totals->lowest, -number);
  atomicAdd_system(&totals->wideAdded, (1ull << 40) + t);
  atomicMax(&totals->wideHighest, static_cast<unsigned long long>(t) << 33);
  atomicMin(&totals->wideLowest, ~0ull - t);
  atomicOr(&totals->wideBits, 1ull << (t % 64));
  atomicMax(&totals->signedHighest, static_cast<long long>(number) - 50);
  atomicMin(&totals->signedLowest, -(static_cast<long long>(number) << 35));
  atomicAdd(&totals->doubleAdded, 0.5);
  atomicAdd(&totals->floatAdded, 0.25f);
  atomicExch(&totals->floatExchanged, 1.5f);
  atomicInc(&totals->cycledUp, 6);
  atomicDec(&totals->cycledDown, 6);
  atomicAnd(&totals->cleared, ~(1u << (t % 16)));
  atomicOr_system(&totals->set, 1u << (t % 16));
  atomicXor(&totals->toggled, 1u << (t % 32));
  if (blockIdx.x == 0) atomicAdd_block(&totals->ofBlock, 2u);
  exchanged[t] = atomicExch(&totals->exchanged, t + 1);
  tickets[t] = atomicAdd(&totals->ticket, 1u);

  unsigned long long before = 0, seen;
  while ((seen = atomicCAS(&totals->wideSwapped, before, before + 3)) != before) before = seen;
  unsigned short half = 0, found;
  while ((found = atomicCAS(totals->shortSwapped, half, static_cast<unsigned short>(half + 1))) != half) half = found;
}

// Checks that time passes, and that no clock goes back.
extern "C" __global__ void clocks(unsigned int* failures) {
  const clock_t shortStart = clock();
  const long long start = clock64();
  long long last = start;
  while (last - start < 20000) {
    __nanosleep(20);
    const long long now = clock64();
    if (now < last) atomicAdd(failures, 1u);
    last = now;
  }
  if (static_cast<unsigned int>(clock() - shortStart) < 20000) atomicAdd(failures, 1u);
}

// Passes a number from block to block: each waits for its turn with loads that look again. A load with a hint, such as
// __ldcv, does not say so: compilers may take it out of the loop.
extern "C" __global__ void in_turns(unsigned int* turn, unsigned int* order) {
  if (threadIdx.x != 0) return;
  volatile unsigned int* const now = turn;
  while (*now != blockIdx.x) {
  }
  __threadfence();
  order[blockIdx.x] = *now;
  __threadfence();
  atomicAdd(turn, 1u);
}
