// In the place of the C library's, for compilers that run without files. They know wchar_t.

#ifndef MSCCLPP_C_STDDEF_H_
#define MSCCLPP_C_STDDEF_H_

typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef decltype(nullptr) nullptr_t;
struct alignas(16) max_align_t {
  long long integer;
  double real;
};

#if !defined(NULL)
#define NULL 0
#endif
#undef offsetof
#if defined(__CUDACC_RTC__)
#define offsetof(type, member) __INTADDR__(&static_cast<type*>(0)->member)
#else
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

#endif  // MSCCLPP_C_STDDEF_H_
