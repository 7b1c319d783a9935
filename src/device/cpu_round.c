/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds rows to 8 bits and multiplies them with weights of 4 to 8 bits: the specification in plain
 * C, and loops for AVX2 and for AVX-512 with VNNI (cpu_round_avx2.h, cpu_round_avx512.h).
 *
 * A rounded row has its blocks in pairs, the last one filled with zeros: codes int8 [pairs][64],
 * the sums of each four codes times -8 int32 [pairs][16], scales float [pairs][2], and sums float
 * [pairs][2]. A loop takes 8 outputs at a time: one product of bytes per output and pair, whose 16
 * partial sums are added up for all 8 outputs together, into one register. Weights' codes are
 * unsigned there; the sums begin with a multiple of -8 * sum of the inputs, which takes away again
 * that they are larger. */
#ifndef __clang__
#pragma GCC optimize("O3", "fp-contract=off") /* nothing is fused */
#endif

#include "config.h"

#include "device/cpu_round.h"

#include <string.h>

#include "base/must.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define INLINED static inline __attribute__((always_inline))
#define OUTS    8        /* outputs at a time */
#define PAIR    64       /* elements of two blocks */
#define TINY    1e-30f   /* blocks whose largest magnitude is below are zero */
#define MAGIC   0x1.8p23 /* rounds to the nearest whole number when added */

/* Where the parts of a rounded row are. */
struct round_row {
    const int8_t *codes;
    const int32_t *less; /* -8 times the sums of four codes */
    const float *scales, *sums;
};

static size_t round_pairs(int n_in)
{
    return ((size_t)n_in / CPU_ROUND_BLOCK + 1) / 2;
}

size_t cpu_round_row_bytes(int n_in)
{
    size_t bytes = round_pairs(n_in) * (PAIR + PAIR / 4 * sizeof(int32_t) + 4 * sizeof(float));

    return (bytes + 63) / 64 * 64;
}

INLINED struct round_row round_row_at(const uint8_t *rows, int row, int n_in)
{
    size_t pairs = round_pairs(n_in);
    const uint8_t *at = rows + (size_t)row * cpu_round_row_bytes(n_in);

    return (struct round_row){
        .codes = (const int8_t *)at,
        .less = (const int32_t *)(const void *)(at + pairs * PAIR),
        .scales = (const float *)(const void *)(at + pairs * 2 * PAIR),
        .sums = (const float *)(const void *)(at + pairs * (2 * PAIR + 2 * sizeof(float)))};
}

/* The codes of a block, the sums of four of them, and its scale. Largest magnitudes are found among
 * the bits, which are in the same order; infinity and NaN become the scale, and so the result. */
INLINED float round_block(int8_t *codes, int32_t *less, const float *x, float *sum)
{
    uint32_t top = 0, bits[CPU_ROUND_BLOCK];
    float most, by;
    int all = 0;

    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < CPU_ROUND_BLOCK; i++) {
        uint32_t magnitude = bits[i] & 0x7fffffff;

        top = magnitude > top ? magnitude : top;
    }
    memcpy(&most, &top, sizeof most);
    if (most < TINY)
        most = 0.0f;
    by = most > 0.0f ? 127.0f / most : 0.0f;
    for (int i = 0; i < CPU_ROUND_BLOCK; i++) {
        float moved = x[i] * by + (float)MAGIC;
        int32_t whole;

        memcpy(&whole, &moved, sizeof whole);
        codes[i] = (int8_t)(whole - 0x4b400000);
    }
    for (int i = 0; i < CPU_ROUND_BLOCK / 4; i++) {
        int four = codes[4 * i] + codes[4 * i + 1] + codes[4 * i + 2] + codes[4 * i + 3];

        less[i] = -8 * four;
        all += four;
    }
    *sum = most / 127.0f * (float)all;
    return most / 127.0f;
}

INLINED void round_rows(uint8_t *to, const float *x, int n, int n_in)
{
    size_t pairs = round_pairs(n_in), row_bytes = cpu_round_row_bytes(n_in);

    for (int r = 0; r < n; r++, to += row_bytes, x += n_in) {
        int8_t *codes = (int8_t *)to;
        int32_t *less = (int32_t *)(void *)(to + pairs * PAIR);
        float *scales = (float *)(void *)(to + pairs * 2 * PAIR), *sums = scales + 2 * pairs;
        int n_blocks = n_in / CPU_ROUND_BLOCK;

        for (int b = 0; b < n_blocks; b++)
            scales[b] = round_block(codes + b * CPU_ROUND_BLOCK, less + b * CPU_ROUND_BLOCK / 4,
                                    x + b * CPU_ROUND_BLOCK, &sums[b]);
        if (n_blocks % 2 != 0) {
            memset(codes + n_blocks * CPU_ROUND_BLOCK, 0, CPU_ROUND_BLOCK);
            memset(less + n_blocks * CPU_ROUND_BLOCK / 4, 0, CPU_ROUND_BLOCK);
            scales[n_blocks] = sums[n_blocks] = 0.0f;
        }
    }
}

/* X(T) for each type of weights K_T. */
#define ROUND_TYPES(X) \
    X(Q4_0)            \
    X(Q4_1)            \
    X(Q5_0)            \
    X(Q5_1)            \
    X(Q8_0)            \
    X(IQ4_NL)          \
    X(MXFP4)           \
    X(Q3_K)            \
    X(Q4_K)            \
    X(Q5_K)            \
    X(Q6_K)            \
    X(IQ4_XS)

/* Types whose blocks add a number to all weights. */
INLINED bool round_has_least(const enum k_type type)
{
    return type == K_Q4_1 || type == K_Q5_1 || type == K_Q4_K || type == K_Q5_K;
}

/* Blocks of 256. */
INLINED bool round_is_k(const enum k_type type)
{
    return k_type_block(type) == 256;
}

/* Whole numbers for scales and minima of 32 elements. */
INLINED bool round_is_six_bits(const enum k_type type)
{
    return type == K_Q4_K || type == K_Q5_K;
}

/* Whole numbers for scales of 16 elements. */
INLINED bool round_has_halves(const enum k_type type)
{
    return type == K_Q3_K || type == K_Q6_K;
}

/* Codes of 4 bits that are places in a table. */
INLINED bool round_is_table(const enum k_type type)
{
    return type == K_IQ4_NL || type == K_IQ4_XS || type == K_MXFP4;
}

/* Bytes in front of the codes of a block of 32. */
INLINED int round_skipped(const enum k_type type)
{
    return type == K_MXFP4 ? 1 : type == K_Q4_1 ? 4 : type == K_Q5_0 ? 6 : type == K_Q5_1 ? 8 : 2;
}

/* Bytes of a block in front of its scale. */
INLINED size_t round_scale_at(const enum k_type type)
{
    return type == K_Q6_K ? 208 : type == K_Q3_K ? 108 : 0;
}

/* Codes as unsigned numbers are larger by this; -8 times a sum, shifted, takes it away. */
INLINED int round_more(const enum k_type type, bool bytes_are_unsigned)
{
    if (type == K_Q3_K)
        return 4;
    if (type == K_Q4_0)
        return 8;
    if (type == K_Q5_0 || type == K_MXFP4)
        return 16;
    if (type == K_Q6_K)
        return 32;
    if (bytes_are_unsigned && (type == K_Q8_0 || type == K_IQ4_NL || type == K_IQ4_XS))
        return 128;
    return 0;
}

/* Tables of K_IQ4_NL and K_IQ4_XS, and of K_MXFP4, twice its values (kernels/ref_blocks.c). */
static const int8_t round_uneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t round_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

INLINED const int8_t *round_table(const enum k_type type)
{
    return type == K_MXFP4 ? round_doubled : round_uneven;
}

/* Scale j of the 8 of IQ4_XS. */
INLINED int round_xs_scale(const uint8_t *at, int j)
{
    int low = at[4 + j / 2] >> j % 2 * 4 & 15, high = at[2 + j / 4] >> j % 4 * 2 & 3;

    return (low | high << 4) - 32;
}

/* Scale j of the 16 of Q3_K or Q6_K. */
INLINED int round_half_scale(const uint8_t *at, int j, const enum k_type type)
{
    if (type == K_Q6_K)
        return (int8_t)at[192 + j];
    return ((at[96 + j % 8] >> j / 8 * 4 & 15) | (at[104 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
}

/* Scale and minimum j of Q4_K and Q5_K (kernels/ref_blocks.c). */
INLINED void round_six_bits(const uint8_t *s, int j, int *scale, int *least)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *least = s[4 + j] & 63;
    } else {
        *scale = (s[4 + j] & 15) | s[j - 4] >> 6 << 4;
        *least = s[4 + j] >> 4 | s[j] >> 6 << 4;
    }
}

/* --- plain C --------------------------------------------------------------------------------- */

/* An f16 number as float32. Infinity and NaN, which scales never are, become large numbers. */
static float round_half(const uint8_t *at)
{
    uint32_t h = at[0] | (uint32_t)at[1] << 8, bits = (h & 0x7fff) << 13;
    float value;

    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    memcpy(&bits, &value, sizeof bits);
    bits |= (h & 0x8000) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The scale of MXFP4's doubled values, 2^(e - 128). */
static float round_power(uint8_t e)
{
    uint32_t bits = e < 2 ? (uint32_t)0x00200000 << e : ((uint32_t)e - 1) << 23;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A block of weights: whole numbers (of Q3_K and Q6_K times their scales), a scale, and a minimum
 * that is added to each. */
struct round_weights {
    int codes[CPU_ROUND_BLOCK];
    float scale, least;
};

/* Block b, of 32 elements, of a row of a type with blocks of 32. */
static void round_read_32(struct round_weights *to, const uint8_t *row, int b, enum k_type type)
{
    const uint8_t *at = row + (size_t)b * (size_t)k_type_block_bytes(type);
    const uint8_t *q = at + round_skipped(type);

    to->scale = type == K_MXFP4 ? round_power(at[0]) : round_half(at);
    to->least = round_has_least(type) ? round_half(at + 2) : 0.0f;
    for (int i = 0; i < CPU_ROUND_BLOCK; i++) {
        int code = q[i % 16] >> i / 16 * 4 & 15;

        if (type == K_Q8_0)
            code = (int8_t)q[i];
        else if (round_is_table(type))
            code = round_table(type)[code];
        else if (type == K_Q5_0 || type == K_Q5_1)
            code |= (q[i / 8 - 4] >> i % 8 & 1) << 4;
        to->codes[i] = code - (type == K_Q4_0 ? 8 : type == K_Q5_0 ? 16 : 0);
    }
}

static void round_read_q6_k(struct round_weights *to, const uint8_t *at, int b)
{
    to->scale = round_half(at + 208);
    to->least = 0.0f;
    for (int i = 0; i < CPU_ROUND_BLOCK; i++) {
        int half = b / 4, t = b % 4 * CPU_ROUND_BLOCK + i;
        int low = at[half * 64 + t % 64] >> t / 64 * 4 & 15;
        int high = at[128 + half * 32 + t % 32] >> t / 32 * 2 & 3;

        to->codes[i] = ((low | high << 4) - 32) * (int8_t)at[192 + 2 * b + i / 16];
    }
}

static void round_read_q3_k(struct round_weights *to, const uint8_t *at, int b)
{
    to->scale = round_half(at + 108);
    to->least = 0.0f;
    for (int i = 0; i < CPU_ROUND_BLOCK; i++) {
        int low = at[32 + b / 4 * 32 + i] >> b % 4 * 2 & 3, high = at[i] >> b & 1;

        to->codes[i] = ((low | high << 2) - 4) * round_half_scale(at, 2 * b + i / 16, K_Q3_K);
    }
}

static void round_read_iq4_xs(struct round_weights *to, const uint8_t *at, int b)
{
    to->scale = round_half(at) * (float)round_xs_scale(at, b);
    to->least = 0.0f;
    for (int i = 0; i < CPU_ROUND_BLOCK; i++)
        to->codes[i] = round_uneven[at[8 + 16 * b + i % 16] >> i / 16 * 4 & 15];
}

/* Block b of 8 of a block of 256. */
static void round_read_256(struct round_weights *to, const uint8_t *at, int b, enum k_type type)
{
    const uint8_t *q = at + (type == K_Q5_K ? 48 : 16) + b / 2 * 32;
    int scale, least;

    if (type == K_Q6_K) {
        round_read_q6_k(to, at, b);
        return;
    }
    if (type == K_Q3_K) {
        round_read_q3_k(to, at, b);
        return;
    }
    if (type == K_IQ4_XS) {
        round_read_iq4_xs(to, at, b);
        return;
    }
    round_six_bits(at + 4, b, &scale, &least);
    to->scale = round_half(at) * (float)scale;
    to->least = -(round_half(at + 2) * (float)least);
    for (int i = 0; i < CPU_ROUND_BLOCK; i++) {
        to->codes[i] = q[i] >> b % 2 * 4 & 15;
        if (type == K_Q5_K)
            to->codes[i] |= (at[16 + i] >> b & 1) << 4;
    }
}

static float round_dot(const struct cpu_matmul *m, int out, const struct round_row *x)
{
    const uint8_t *row = (const uint8_t *)m->w + (size_t)out * m->w_bytes;
    size_t block_bytes = (size_t)k_type_block_bytes(m->type);
    float sums[2] = {0.0f, 0.0f};

    for (int b = 0; b < m->n_in / CPU_ROUND_BLOCK; b++) {
        struct round_weights w;
        float scale, product;
        int32_t sum = 0;

        if (round_is_k(m->type))
            round_read_256(&w, row + (size_t)(b / 8) * block_bytes, b % 8, m->type);
        else
            round_read_32(&w, row, b, m->type);
        for (int i = 0; i < CPU_ROUND_BLOCK; i++)
            sum += w.codes[i] * x->codes[b * CPU_ROUND_BLOCK + i];
        scale = w.scale * x->scales[b];
        product = scale * (float)sum;
        sums[b % 2] += product;
        if (round_has_least(m->type)) {
            product = w.least * x->sums[b];
            sums[b % 2] += product;
        }
    }
    return sums[0] + sums[1];
}

static void round_rows_plain(uint8_t *to, const float *x, int n, int n_in)
{
    round_rows(to, x, n, n_in);
}

static void round_matmul_plain(const struct cpu_rounded *r)
{
    const struct cpu_matmul *m = &r->m;

    for (int row = m->row_first; row < m->row_last; row++) {
        struct round_row x = round_row_at(r->rows, row, m->n_in);

        for (int out = m->out_first; out < m->out_last; out++)
            m->y[(size_t)row * (size_t)m->n_out + (size_t)out] =
                round_dot(m, out, &x) + (m->bias == NULL ? 0.0f : m->bias[out]);
    }
}

/* --- sets ------------------------------------------------------------------------------------ */

#ifdef __x86_64__
/* The rows of a tile; outputs that do not exist are the last one. */
INLINED void round_weights_at(const uint8_t **w, const struct cpu_matmul *m, int out)
{
    for (int j = 0; j < OUTS; j++) {
        int own = out + j < m->out_last ? out + j : m->out_last - 1;

        w[j] = (const uint8_t *)m->w + (size_t)own * m->w_bytes;
    }
}

/* A tile's results are written; those of outputs that do not exist are not. */
INLINED void round_write(const struct cpu_matmul *m, const float *results, int row, int out)
{
    int n = m->out_last - out < OUTS ? m->out_last - out : OUTS;
    float *y = m->y + (size_t)row * (size_t)m->n_out + (size_t)out;

    for (int j = 0; j < n; j++)
        y[j] = results[j] + (m->bias == NULL ? 0.0f : m->bias[out + j]);
}

/* Whole numbers of a block of 256 of OUTS outputs, in the order in which a set's registers have
 * them: Q4_K's and Q5_K's scales and minima, IQ4_XS's scales. */
struct round_k_scales {
    int8_t scales[8][OUTS], least[8][OUTS]; /* [block of 32][output] */
};

INLINED void round_read_k_scales(struct round_k_scales *to, const uint8_t *const *at,
                                 const enum k_type type)
{
    for (int j = 0; j < OUTS; j++) {
        for (int b = 0; b < 8; b++) {
            int scale, least;

            if (type == K_IQ4_XS) {
                to->scales[b][j] = (int8_t)round_xs_scale(at[j], b);
                continue;
            }
            round_six_bits(at[j] + 4, b, &scale, &least);
            to->scales[b][j] = (int8_t)scale;
            to->least[b][j] = (int8_t)least;
        }
    }
}

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#include "device/cpu_round_avx2.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq,avx512vnni,prefer-vector-width=512")
#include "device/cpu_round_avx512.h"
#pragma GCC pop_options
#endif

static const struct cpu_round round_plain = {.name = "generic",
                                             .rows = round_rows_plain,
                                             .matmul = round_matmul_plain};

bool cpu_round_reads(enum k_type type)
{
#define OR_TYPE(name) || type == K_##name
    return false ROUND_TYPES(OR_TYPE);
#undef OR_TYPE
}

const struct cpu_round *cpu_round_at(int n)
{
    if (n == 0)
        return &round_plain;
#ifdef __x86_64__
    if (n == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        return &round_avx2;
    if (n == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni"))
        return &round_avx512;
#endif
    return NULL;
}

/* As cpu_math_choose(). */
const struct cpu_round *cpu_round_choose(void)
{
    const struct cpu_round *best = cpu_round_at(0);

    for (int n = 1; cpu_round_at(n) != NULL; n++)
        best = cpu_round_at(n);
    return best;
}
