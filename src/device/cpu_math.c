/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles the inner loops of cpu_tile.h once per instruction set, with GCC's vector extension, and
 * chooses among them at start.
 *
 * Each inclusion sets four numbers: floats per register, and how many sums are kept in registers at
 * once. They were chosen so that the sums of a tile just fit the registers of the set. The compiler
 * is told the target by a pragma, so one binary runs on every x86-64 machine. */
#ifndef __clang__
#pragma GCC optimize("O3") /* keeps the tiles of sums in registers */
#endif

#include "config.h"

#include "device/cpu_math.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/must.h"
#include "kernels/e4m3.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define LANES   16
#define INLINED static inline __attribute__((always_inline))

typedef float lanes8 __attribute__((vector_size(32)));
typedef float lanes4 __attribute__((vector_size(16)));
typedef float lanes4_at __attribute__((vector_size(16), aligned(4), may_alias)); /* in arrays */

/* An f16 number as float32. Infinity and NaN, which scales never are, become large numbers. */
static inline float half_at(const uint8_t *at)
{
    uint32_t h = at[0] | (uint32_t)at[1] << 8, bits = (h & 0x7fff) << 13;
    float value;

    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f; /* the difference of the exponents' biases, right for subnormals, too */
    memcpy(&bits, &value, sizeof bits);
    bits |= (h & 0x8000) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Whole numbers, as many as a register of a set has. */
typedef int32_t whole4 __attribute__((vector_size(16)));
typedef int32_t whole8 __attribute__((vector_size(32)));
typedef int32_t whole16 __attribute__((vector_size(64)));

static inline whole4 wide_u8_plain(const uint8_t *at)
{
    return (whole4){at[0], at[1], at[2], at[3]};
}

static inline whole4 wide_i8_plain(const uint8_t *at)
{
    return (whole4){(int8_t)at[0], (int8_t)at[1], (int8_t)at[2], (int8_t)at[3]};
}

static inline whole4 wide_u16_plain(const uint8_t *at)
{
    uint16_t halves[4];

    memcpy(halves, at, sizeof halves);
    return (whole4){halves[0], halves[1], halves[2], halves[3]};
}

static inline lanes4 e4m3_plain(const uint8_t *at)
{
    return (lanes4){k_e4m3_value(at[0]), k_e4m3_value(at[1]), k_e4m3_value(at[2]),
                    k_e4m3_value(at[3])};
}

/* Elements of IQ4_NL and IQ4_XS, and twice those of MXFP4 (kernels/ref_blocks.c). */
static const float uneven[16] = {-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f,
                                 1.0f,    13.0f,   25.0f,  38.0f,  53.0f,  69.0f,  89.0f,  113.0f};
static const float doubled[16] = {0.0f, 1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                  0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};
static const int32_t places[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static inline lanes4 lookup_plain(const float *table, whole4 q)
{
    return (lanes4){table[q[0]], table[q[1]], table[q[2]], table[q[3]]};
}

/* 2^(e - 128); the smallest two are subnormal. */
static inline float half_power(uint8_t e)
{
    uint32_t bits = e < 2 ? (uint32_t)0x00200000 << e : ((uint32_t)e - 1) << 23;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The zero point of a group; one that is not stored is the middle. */
static inline float cpu_zero(const struct cpu_scales *s, size_t group, enum k_type type)
{
    if (s->zeros != NULL)
        return s->zeros[group];
    return type == K_U4 ? 8.0f : 128.0f;
}

/* Scale and minimum j of Q4_K and Q5_K (kernels/ref_blocks.c). */
INLINED void six_bits(const uint8_t *s, int j, int *scale, int *least)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *least = s[4 + j] & 63;
    } else {
        *scale = (s[4 + j] & 15) | s[j - 4] >> 6 << 4;
        *least = s[4 + j] >> 4 | s[j] >> 6 << 4;
    }
}

/* Two steps, because ## does not expand its operands. */
#define JOIN2(a, b) a##b
#define JOIN(a, b)  JOIN2(a, b)

/* Without the sets below there are no fused operations, and no instruction for a conversion. */
#define APART(v)
#define WIDE_U8(at)  wide_u8_plain(at)
#define WIDE_I8(at)  wide_i8_plain(at)
#define WIDE_U16(at) wide_u16_plain(at)
#define HALF(at)     half_at(at)
#define E4M3(at)     e4m3_plain(at)
#define LOOKUP       lookup_plain
#define TILE(name)   JOIN(name, _plain)
#define TILE_NAME    "generic"
#define WIDTH        4
#define TILE_ROWS    1
#define TILE_OUTS    2
#define TILE_ONE     2
#define TILE_PAIR    2
#define TILE_MIX     8
#define TILE_MIX4    2
#define TILE_SUMS    8
#include "device/cpu_tile.h"
#undef TILE
#undef TILE_NAME
#undef WIDTH
#undef TILE_ROWS
#undef TILE_OUTS
#undef TILE_ONE
#undef TILE_PAIR
#undef TILE_MIX
#undef TILE_MIX4
#undef TILE_SUMS

#undef APART
#undef WIDE_U8
#undef WIDE_I8
#undef WIDE_U16
#undef HALF
#undef E4M3
#undef LOOKUP

#ifdef __x86_64__
/* A product that must be rounded before it is added to: the compiler may not look into it. */
#define APART(v) __asm__("" : "+v"(v))
#define HALF(at) _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128((at)[0] | (int)(at)[1] << 8)))

/* GCC 12 converts vectors of bytes one by one. */
#define WIDE_U8(at)  ((part_int)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(at))))
#define WIDE_I8(at)  ((part_int)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(at))))
#define WIDE_U16(at) ((part_int)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(at))))
#define E4M3(at)     e4m3_avx2(at)
#define LOOKUP       lookup_avx2
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
/* A float16 number of the same bits is 2^8 times smaller, and one of exponent 31 is no number. */
static inline __m256 e4m3_avx2(const uint8_t *at)
{
    const __m128i largest = _mm_set1_epi16(0x3f80);
    __m128i v = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)at));
    __m128i half = _mm_and_si128(_mm_slli_epi16(v, 7), _mm_set1_epi16((short)0xbf80));
    __m128i none = _mm_cmpeq_epi16(_mm_and_si128(half, largest), largest);

    half = _mm_or_si128(half, _mm_and_si128(none, _mm_set1_epi16(0x4000)));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
}

static inline __m256 lookup_avx2(const float *table, whole8 at)
{
    __m256i q = (__m256i)at;
    __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), q);
    __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), q);

    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(q, 28)));
}

#define TILE(name) JOIN(name, _avx2)
#define TILE_NAME  "AVX2"
#define WIDTH      8
#define TILE_ROWS  2
#define TILE_OUTS  3
#define TILE_ONE   6
#define TILE_PAIR  3
#define TILE_MIX   8
#define TILE_MIX4  2
#define TILE_SUMS  8
#include "device/cpu_tile.h"
#undef TILE
#undef TILE_NAME
#undef WIDTH
#undef TILE_ROWS
#undef TILE_OUTS
#undef TILE_ONE
#undef TILE_PAIR
#undef TILE_MIX
#undef TILE_MIX4
#undef TILE_SUMS
#pragma GCC pop_options

#undef WIDE_U8
#undef WIDE_I8
#undef WIDE_U16
#undef E4M3
#undef LOOKUP
#define WIDE_U8(at)  ((part_int)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(at))))
#define WIDE_I8(at)  ((part_int)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(at))))
#define WIDE_U16(at) ((part_int)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(at))))
#define E4M3(at)     e4m3_avx512(at)
#define LOOKUP       lookup_avx512
#pragma GCC push_options
#pragma GCC target("f16c,avx512f,avx512vl,avx512bw,avx512dq,fma,prefer-vector-width=512")
/* As e4m3_avx2(). */
static inline __m512 e4m3_avx512(const uint8_t *at)
{
    const __m256i largest = _mm256_set1_epi16(0x3f80);
    __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at));
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(v, 7), _mm256_set1_epi16((short)0xbf80));
    __m256i none = _mm256_cmpeq_epi16(_mm256_and_si256(half, largest), largest);

    half = _mm256_or_si256(half, _mm256_and_si256(none, _mm256_set1_epi16(0x4000)));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}

static inline __m512 lookup_avx512(const float *table, whole16 q)
{
    return _mm512_permutexvar_ps((__m512i)q, _mm512_loadu_ps(table));
}

#define TILE(name) JOIN(name, _avx512)
#define TILE_NAME  "AVX-512"
#define WIDTH      16
#define TILE_ROWS  4
#define TILE_OUTS  4
#define TILE_ONE   4
#define TILE_PAIR  8
#define TILE_MIX   4
#define TILE_MIX4  4
#define TILE_SUMS  16
#include "device/cpu_tile.h"
#pragma GCC pop_options
#endif

bool cpu_math_reads(enum k_type type)
{
    return (size_t)type < sizeof expands_plain / sizeof expands_plain[0] &&
           expands_plain[type] != NULL;
}

bool cpu_math_multiplies(enum k_type type)
{
    return (size_t)type < sizeof products_plain / sizeof products_plain[0] &&
           products_plain[type] != NULL;
}

bool cpu_math_scales(enum k_type type)
{
    return type == K_E4M3 || type == K_U4 || type == K_U8;
}

/* 0 is plain C with vectors of 4 floats, which every machine can run. */
const struct cpu_math *cpu_math_at(int n)
{
    if (n == 0)
        return &math_plain;
#ifdef __x86_64__
    if (n == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        return &math_avx2;
    if (n == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return &math_avx512;
#endif
    return NULL;
}

/* Stops at the first set that the machine lacks: sets are ordered, and each machine has a
 * prefix. */
const struct cpu_math *cpu_math_choose(void)
{
    const struct cpu_math *best = cpu_math_at(0);

    for (int n = 1; cpu_math_at(n) != NULL; n++)
        best = cpu_math_at(n);
    return best;
}
