// CUDA's vector types, with the sizes and alignments that its programming guide gives, and the functions that make
// them. Data of these types can therefore be shared between kernels, simulated or not, and the host.

#ifndef MSCCLPP_SIM_VECTOR_TYPES_HPP_
#define MSCCLPP_SIM_VECTOR_TYPES_HPP_

// Vectors of two and of four have these alignments; vectors of one and of three have their element's.
#define MSCCLPP_SIM_VECTORS(NAME, ELEMENT, ALIGNMENT2, ALIGNMENT4)                       \
  struct NAME##1 {                                                                        \
    ELEMENT x;                                                                            \
  };                                                                                      \
  struct alignas(ALIGNMENT2) NAME##2 {                                                    \
    ELEMENT x, y;                                                                         \
  };                                                                                      \
  struct NAME##3 {                                                                        \
    ELEMENT x, y, z;                                                                      \
  };                                                                                      \
  struct alignas(ALIGNMENT4) NAME##4 {                                                    \
    ELEMENT x, y, z, w;                                                                   \
  };                                                                                      \
  constexpr NAME##1 make_##NAME##1(ELEMENT x) { return {x}; }                             \
  constexpr NAME##2 make_##NAME##2(ELEMENT x, ELEMENT y) { return {x, y}; }               \
  constexpr NAME##3 make_##NAME##3(ELEMENT x, ELEMENT y, ELEMENT z) { return {x, y, z}; } \
  constexpr NAME##4 make_##NAME##4(ELEMENT x, ELEMENT y, ELEMENT z, ELEMENT w) {          \
    return {x, y, z, w};                                                                  \
  }

MSCCLPP_SIM_VECTORS(char, signed char, 2, 4)
MSCCLPP_SIM_VECTORS(uchar, unsigned char, 2, 4)
MSCCLPP_SIM_VECTORS(short, short, 4, 8)
MSCCLPP_SIM_VECTORS(ushort, unsigned short, 4, 8)
MSCCLPP_SIM_VECTORS(int, int, 8, 16)
MSCCLPP_SIM_VECTORS(uint, unsigned int, 8, 16)
MSCCLPP_SIM_VECTORS(long, long, 16, 16)
MSCCLPP_SIM_VECTORS(ulong, unsigned long, 16, 16)
MSCCLPP_SIM_VECTORS(longlong, long long, 16, 16)
MSCCLPP_SIM_VECTORS(ulonglong, unsigned long long, 16, 16)
MSCCLPP_SIM_VECTORS(float, float, 8, 16)
MSCCLPP_SIM_VECTORS(double, double, 16, 16)

#undef MSCCLPP_SIM_VECTORS

// The extents of a grid or a block; those left out are 1.
struct dim3 {
  unsigned int x, y, z;

  constexpr dim3(unsigned int width = 1, unsigned int height = 1, unsigned int depth = 1)
      : x(width), y(height), z(depth) {}
  constexpr dim3(uint3 extents) : x(extents.x), y(extents.y), z(extents.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

static_assert(sizeof(char3) == 3 && alignof(char4) == 4 && alignof(ushort4) == 8, "CUDA's small vectors");
static_assert(sizeof(int3) == 12 && alignof(int3) == 4 && alignof(int2) == 8 && alignof(int4) == 16, "CUDA's vectors");
static_assert(sizeof(double3) == 24 && sizeof(longlong4) == 32 && alignof(longlong4) == 16, "CUDA's large vectors");
static_assert(sizeof(dim3) == 12 && alignof(dim3) == 4, "CUDA's dim3");

#endif  // MSCCLPP_SIM_VECTOR_TYPES_HPP_
