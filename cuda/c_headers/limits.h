// In the place of the C library's, for compilers that run without files.

#ifndef MSCCLPP_C_LIMITS_H_
#define MSCCLPP_C_LIMITS_H_

#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define CHAR_MIN (static_cast<char>(-1) < 0 ? SCHAR_MIN : 0)
#define CHAR_MAX (static_cast<char>(-1) < 0 ? SCHAR_MAX : UCHAR_MAX)
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-INT_MAX - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define LONG_MIN (-LONG_MAX - 1l)
#define LONG_MAX 9223372036854775807l
#define ULONG_MAX 18446744073709551615ul
#define LLONG_MIN (-LLONG_MAX - 1ll)
#define LLONG_MAX 9223372036854775807ll
#define ULLONG_MAX 18446744073709551615ull

#endif  // MSCCLPP_C_LIMITS_H_
