/* SPDX-License-Identifier: Apache-2.0
 *
 * Inner loops for one instruction set; included by cpu_math.c only, once per set.
 *
 * TILE(name) makes the names of this inclusion. WIDTH floats fill a register, so LANES (16) floats
 * are PARTS registers. TILE_ROWS x TILE_OUTS sums of LANES lanes are kept in registers. Attention
 * keeps TILE_SUMS sums of WIDTH lanes of up to CPU_QUERIES queries, TILE_MIX registers of one
 * output, or TILE_MIX4 of each of four. The last arguments of INLINED functions are constants. No
 * vector is wider than a register, because GCC splits wider ones through memory, which is several
 * times slower. */

#define PARTS (LANES / WIDTH)

typedef float TILE(part) __attribute__((vector_size(WIDTH * 4)));
typedef int32_t TILE(part_int) __attribute__((vector_size(WIDTH * 4)));
typedef float TILE(part_at) __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));

typedef struct {
    TILE(part) of[PARTS];
} TILE(lanes);

#define part          TILE(part)
#define part_int      TILE(part_int)
#define part_at       TILE(part_at) /* for loads from arrays, unaligned */
#define lanes         TILE(lanes)

#define fold_to_four  TILE(fold_to_four)
#define fold          TILE(fold)
#define fold_all      TILE(fold_all)
#define load_rest     TILE(load_rest)
#define add_rest      TILE(add_rest)
#define plus_least    TILE(plus_least)
#define weight_part   TILE(weight_part)
#define weight_rest   TILE(weight_rest)
#define block         TILE(block)
#define matmul_rows   TILE(matmul_rows)
#define matmul_as     TILE(matmul_as)
#define weight_of_32  TILE(weight_of_32)
#define weight_of_256 TILE(weight_of_256)
#define any_part      TILE(any_part)
#define bits_of       TILE(bits_of)
#define expand_row    TILE(expand_row)
#define dots          TILE(dots)
#define scores_of     TILE(scores_of)
#define exp_part      TILE(exp_part)
#define mix_some      TILE(mix_some)
#define mix_of        TILE(mix_of)

/* --- sums over lanes ------------------------------------------------------------------------- */

/* Fold 16 lanes into 4: lane i + lane i + 8, then lane i + lane i + 4. */
static inline lanes4 fold_to_four(const lanes *v)
{
#if WIDTH == 16
    part x = v->of[0];
    lanes8 a = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#elif WIDTH == 8
    lanes8 a = v->of[0] + v->of[1];
#else
    lanes4 low = v->of[0] + v->of[2], high = v->of[1] + v->of[3];

    return low + high;
#endif
#if WIDTH > 4
    return __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
#endif
}

/* Fold 16 lanes into one number: lane i + lane i + width, for width 8, 4, 2, 1. */
static inline float fold(const lanes *v)
{
    lanes4 b = fold_to_four(v);

    return (b[0] + b[2]) + (b[1] + b[3]);
}

/* fold() of each of v [n], four at a time, into to [n]. */
static inline void fold_all(float *to, const lanes *v, int n)
{
    int at = 0;

    for (; at + 4 <= n; at += 4) {
        lanes4 b[4], sums[2];

        for (int i = 0; i < 4; i++)
            b[i] = fold_to_four(&v[at + i]);
        for (int i = 0; i < 2; i++) /* lane 0 + lane 2 of two of them, then lane 1 + lane 3 */
            sums[i] = __builtin_shufflevector(b[2 * i], b[2 * i + 1], 0, 4, 1, 5) +
                      __builtin_shufflevector(b[2 * i], b[2 * i + 1], 2, 6, 3, 7);
        *(lanes4_at *)(to + at) = __builtin_shufflevector(sums[0], sums[1], 0, 1, 4, 5) +
                                  __builtin_shufflevector(sums[0], sums[1], 2, 3, 6, 7);
    }
    for (; at < n; at++)
        to[at] = fold(&v[at]);
}

/* --- products -------------------------------------------------------------------------------- */

/* The first n < 16 elements of p, then zeros. */
static inline lanes load_rest(const float *p, int n)
{
    lanes v = {0};

    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}

/* *sum += a * b, for the last n elements of a row. */
static inline void add_rest(lanes *sum, const float *a, const float *b, int n)
{
    lanes x = load_rest(a, n), y = load_rest(b, n);

    for (int p = 0; p < PARTS; p++)
        sum->of[p] += x.of[p] * y.of[p];
}

#include "device/cpu_weights.h"

/* A tile of a product: rows x outs results. rows, outs and type are constants wherever this is
 * inlined. */
INLINED void block(float *y, const float *x, const struct cpu_matmul *m, int out, const int rows,
                   const int outs, const enum k_type type)
{
    const uint8_t *w = (const uint8_t *)m->w + (size_t)out * m->w_bytes;
    const uint8_t *next = w + (size_t)outs * m->w_bytes;
    lanes sum[TILE_ROWS * TILE_OUTS];
    float folded[TILE_ROWS * TILE_OUTS];
    int n_in = m->n_in, k = 0;
    const size_t step = (size_t)(LANES * k_type_block_bytes(type)) / (size_t)k_type_block(type);
    size_t fetched = 0;
    bool is_first = x == m->x + (size_t)m->row_first * (size_t)n_in; /* of this tile's weights */

    for (int i = 0; i < rows * outs; i++)
        sum[i] = (lanes){0};
    for (size_t at = 0; k + LANES <= n_in; k += LANES, at += step) {
        /* The next tile's weights, from end to end: a processor's own guess ends with each short
         * row. */
        for (; is_first && fetched < (at + step) * (size_t)outs; fetched += 64)
            __builtin_prefetch(next + fetched);
        for (int p = 0; p < PARTS; p++) {
            part b[TILE_ROWS * TILE_OUTS];

            for (int j = 0; j < outs; j++)
                b[j] = weight_part(w + (size_t)j * m->w_bytes, k, p, type);
            for (int i = 0; i < rows; i++) {
                part a = *(const part_at *)(x + (size_t)i * n_in + k + p * WIDTH);

                for (int j = 0; j < outs; j++)
                    sum[i * outs + j].of[p] += a * b[j];
            }
        }
    }
    for (int i = 0; k < n_in && i < rows * outs; i++) {
        lanes a = load_rest(x + (size_t)(i / outs) * n_in + k, n_in - k);
        lanes b = weight_rest(w + (size_t)(i % outs) * m->w_bytes, k, n_in - k, type);

        for (int p = 0; p < PARTS; p++)
            sum[i].of[p] += a.of[p] * b.of[p];
    }
    fold_all(folded, sum, rows * outs);
    for (int i = 0; i < rows * outs; i++)
        y[(size_t)(i / outs) * m->n_out + i % outs] =
            folded[i] + (m->bias == NULL ? 0.0f : m->bias[out + i % outs]);
}

/* Rows row_first .. row_last - 1, as many as `rows` divides (constant), for all outputs. */
INLINED void matmul_rows(const struct cpu_matmul *m, int row_first, int row_last, const int rows,
                         const int outs, const enum k_type type)
{
    size_t n_in = (size_t)m->n_in, n_out = (size_t)m->n_out;
    int o = m->out_first;

    for (; o + outs <= m->out_last; o += outs) {
        for (int r = row_first; r < row_last; r += rows)
            block(m->y + (size_t)r * n_out + o, m->x + (size_t)r * n_in, m, o, rows, outs, type);
    }
    for (; o < m->out_last; o++) {
        for (int r = row_first; r < row_last; r++)
            block(m->y + (size_t)r * n_out + o, m->x + (size_t)r * n_in, m, o, 1, 1, type);
    }
}

/* Few rows take more outputs a tile, so that enough sums run beside each other. One row is as fast
 * as memory, and its weights and the next ones together should fit the L1 cache; bf16 is faster
 * with fewer outputs still. */
INLINED void matmul_as(const struct cpu_matmul *m, const enum k_type type)
{
    int n = m->row_last - m->row_first, whole = m->row_last - n % TILE_ROWS, r = whole;

    if (whole > m->row_first)
        matmul_rows(m, m->row_first, whole, TILE_ROWS, TILE_OUTS, type);
    if (TILE_ROWS > 2 && m->row_last - r >= 2) {
        matmul_rows(m, r, r + 2, 2, TILE_PAIR, type);
        r += 2;
    }
    if (r < m->row_last)
        matmul_rows(m, r, m->row_last, 1, type == K_BF16_KEPT ? TILE_ONE / 2 : TILE_ONE, type);
}

#define MULTIPLY(type)                                          \
    static void TILE(matmul_##type)(const struct cpu_matmul *m) \
    {                                                           \
        matmul_as(m, K_##type);                                 \
    }
MULTIPLY(F32)
MULTIPLY(BF16_KEPT)
MULTIPLY(Q4_0)
MULTIPLY(Q4_1)
MULTIPLY(Q8_0)
MULTIPLY(Q4_K)
MULTIPLY(Q5_K)
MULTIPLY(Q6_K)
#undef MULTIPLY

/* By type; NULL: matmul() does not multiply with it. */
static void (*const TILE(products)[])(const struct cpu_matmul *) = {
    [K_F32] = TILE(matmul_F32),   [K_BF16_KEPT] = TILE(matmul_BF16_KEPT),
    [K_Q4_0] = TILE(matmul_Q4_0), [K_Q4_1] = TILE(matmul_Q4_1),
    [K_Q8_0] = TILE(matmul_Q8_0), [K_Q4_K] = TILE(matmul_Q4_K),
    [K_Q5_K] = TILE(matmul_Q5_K), [K_Q6_K] = TILE(matmul_Q6_K),
};

static void TILE(matmul)(const struct cpu_matmul *m)
{
    TILE(products)[m->type](m);
}

/* --- attention ------------------------------------------------------------------------------- */

/* The scores of n_keys keys for each of n_q queries (constants), not scaled yet. Each element of a
 * register is loaded once for all of its products. A lane's sum depends on its query and its key
 * alone, so scores have the same bits whatever the tile. */
INLINED void dots(float *scores, size_t row_len, const float *const *q, const float *keys, int dim,
                  const int n_q, const int n_keys)
{
    lanes sum[TILE_SUMS];
    int whole = dim / LANES * LANES;

    for (int p = 0; p < PARTS; p++) {
        part own[TILE_SUMS] = {{0}};

        for (int d = p * WIDTH; d < whole; d += LANES) {
            part a[CPU_QUERIES];

            for (int j = 0; j < n_q; j++)
                a[j] = *(const part_at *)(q[j] + d);
            for (int i = 0; i < n_keys; i++) {
                part k = *(const part_at *)(keys + (size_t)i * dim + d);

                for (int j = 0; j < n_q; j++)
                    own[j * n_keys + i] += a[j] * k;
            }
        }
        for (int i = 0; i < n_q * n_keys; i++)
            sum[i].of[p] = own[i];
    }
    for (int i = 0; whole < dim && i < n_q * n_keys; i++)
        add_rest(&sum[i], q[i / n_keys] + whole, keys + (size_t)(i % n_keys) * dim + whole,
                 dim - whole);
    for (int j = 0; j < n_q; j++)
        fold_all(scores + (size_t)j * row_len, sum + j * n_keys, n_keys);
}

/* n_q is a constant: fewer queries take more keys, so that all sums of a tile are in use. */
INLINED void scores_of(float *scores, size_t row_len, const float *const *q, const float *keys,
                       int n, int dim, const int n_q)
{
    const int queries = n_q == 3 ? 4 : n_q; /* so that tiles of keys divide a page */
    const int keys_a_tile = TILE_SUMS / queries < 8 ? TILE_SUMS / queries : 8;
    int i = 0;

    for (; i + keys_a_tile <= n; i += keys_a_tile)
        dots(scores + i, row_len, q, keys + (size_t)i * dim, dim, n_q, keys_a_tile);
    for (; i < n; i++)
        dots(scores + i, row_len, q, keys + (size_t)i * dim, dim, n_q, 1);
}

static void TILE(scores)(float *scores, size_t row_len, const float *const *q, int n_q,
                         const float *keys, int n, int dim)
{
    int j = 0;

    for (; j + 4 <= n_q; j += 4)
        scores_of(scores + (size_t)j * row_len, row_len, q + j, keys, n, dim, 4);
    for (; j + 3 <= n_q; j += 3)
        scores_of(scores + (size_t)j * row_len, row_len, q + j, keys, n, dim, 3);
    for (; j + 2 <= n_q; j += 2)
        scores_of(scores + (size_t)j * row_len, row_len, q + j, keys, n, dim, 2);
    if (j < n_q)
        scores_of(scores + (size_t)j * row_len, row_len, q + j, keys, n, dim, 1);
}

static float TILE(scale)(float *scores, int n, float scale)
{
    float top = -INFINITY;
    int i = 0;

    if (n >= WIDTH) {
        part tops = (part){0} - INFINITY;

        for (; i + WIDTH <= n; i += WIDTH) {
            part x = *(const part_at *)(scores + i) * scale;
            part_int larger = x > tops;

            *(part_at *)(scores + i) = x;
            tops = (part)(((part_int)x & larger) | ((part_int)tops & ~larger));
        }
        for (int e = 0; e < WIDTH; e++)
            top = tops[e] > top ? tops[e] : top;
    }
    for (; i < n; i++) {
        scores[i] *= scale;
        top = scores[i] > top ? scores[i] : top;
    }
    return top;
}

/* e^x with a relative error of 2e-7; x is clamped to +-87. 2^whole comes from the exponent bits,
 * the rest from a polynomial. */
static inline part exp_part(part x)
{
    part whole, y, p;
    part_int bits, low, high;

    low = x < -87.0f;
    high = x > 87.0f;
    bits = ((part_int)x & ~(low | high)) | ((part_int)((part){0} - 87.0f) & low) |
           ((part_int)((part){0} + 87.0f) & high);
    x = (part)bits;
    y = x * 1.44269504f;
    whole = (y + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23: rounds to the nearest whole */
    y = y - whole;
    p = 1.5403530e-4f * y + 1.3333558e-3f;
    p = p * y + 9.6181291e-3f;
    p = p * y + 5.5504109e-2f;
    p = p * y + 2.4022651e-1f;
    p = p * y + 6.9314718e-1f;
    p = p * y + 1.0f;
    bits = (__builtin_convertvector(whole, part_int) + 127) << 23;
    return p * (part)bits;
}

static float TILE(weights)(float *scores, int n, float top)
{
    lanes sum = {0};

    for (int i = n; i % LANES != 0; i++)
        scores[i] = -INFINITY; /* becomes 1e-38, which adds nothing */
    for (int i = 0; i < n; i += LANES) {
        for (int p = 0; p < PARTS; p++) {
            part_at *at = (part_at *)(scores + i + p * WIDTH);

            *at = exp_part(*at - top);
            sum.of[p] += *at;
        }
    }
    return fold(&sum);
}

/* Add weighted values to `registers` registers of each of n_q outputs, d elements from their starts
 * (constants but d). */
INLINED void mix_some(float *const *out, const float *weights, size_t row_len, const float *values,
                      int n, int stride, int d, const int n_q, const int registers)
{
    part sum[CPU_QUERIES * TILE_MIX];

    for (int j = 0; j < n_q; j++) {
        for (int r = 0; r < registers; r++)
            sum[j * registers + r] = *(const part_at *)(out[j] + d + r * WIDTH);
    }
    for (int i = 0; i < n; i++) {
        part value[TILE_MIX];

        for (int r = 0; r < registers; r++)
            value[r] = *(const part_at *)(values + (size_t)i * stride + d + r * WIDTH);
        for (int j = 0; j < n_q; j++) {
            for (int r = 0; r < registers; r++)
                sum[j * registers + r] += weights[(size_t)j * row_len + i] * value[r];
        }
    }
    for (int j = 0; j < n_q; j++) {
        for (int r = 0; r < registers; r++)
            *(part_at *)(out[j] + d + r * WIDTH) = sum[j * registers + r];
    }
}

/* n_q and registers are constants. */
INLINED void mix_of(float *const *out, const float *weights, size_t row_len, const float *values,
                    int n, int dim, int stride, const int n_q, const int registers)
{
    int d = 0;

    for (; d + registers * WIDTH <= dim; d += registers * WIDTH)
        mix_some(out, weights, row_len, values, n, stride, d, n_q, registers);
    for (; d + WIDTH <= dim; d += WIDTH)
        mix_some(out, weights, row_len, values, n, stride, d, n_q, 1);
    for (; d < dim; d++) {
        for (int j = 0; j < n_q; j++) {
            for (int i = 0; i < n; i++)
                out[j][d] += weights[(size_t)j * row_len + i] * values[(size_t)i * stride + d];
        }
    }
}

static void TILE(mix)(float *const *out, int n_q, const float *weights, size_t row_len,
                      const float *values, int n, int dim, int stride)
{
    int j = 0;

    for (; j + 4 <= n_q; j += 4)
        mix_of(out + j, weights + (size_t)j * row_len, row_len, values, n, dim, stride, 4,
               TILE_MIX4);
    for (; j + 3 <= n_q; j += 3)
        mix_of(out + j, weights + (size_t)j * row_len, row_len, values, n, dim, stride, 3,
               TILE_MIX4);
    for (; j < n_q; j++)
        mix_of(out + j, weights + (size_t)j * row_len, row_len, values, n, dim, stride, 1,
               TILE_MIX);
}

/* --- the activation -------------------------------------------------------------------------- */

static void TILE(silu_mul)(float *out, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += LANES) {
        int rest = n - i < LANES ? n - i : LANES;
        lanes g = load_rest(gate + i, rest), u = load_rest(up + i, rest);

        for (int p = 0; p < PARTS; p++)
            g.of[p] = g.of[p] / (1.0f + exp_part(-g.of[p])) * u.of[p];
        memcpy(out + i, &g, (size_t)rest * sizeof *out);
    }
}

static const struct cpu_math TILE(math) = {
    .name = TILE_NAME,
    .matmul = TILE(matmul),
    .expand = TILE(expand),
    .scores = TILE(scores),
    .scale = TILE(scale),
    .weights = TILE(weights),
    .mix = TILE(mix),
    .silu_mul = TILE(silu_mul),
};

#undef PARTS
#undef part
#undef part_int
#undef part_at
#undef lanes
#undef fold_to_four
#undef fold
#undef fold_all
#undef load_rest
#undef add_rest
#undef plus_least
#undef weight_part
#undef weight_rest
#undef block
#undef matmul_rows
#undef matmul_as
#undef weight_of_32
#undef weight_of_256
#undef any_part
#undef bits_of
#undef expand_row
#undef dots
#undef scores_of
#undef exp_part
#undef mix_some
#undef mix_of
