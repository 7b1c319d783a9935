/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of few rows on every GPU from compute capability 8.0 on, with the operations around them
 * in a decode (k_multiply() in kernels.h), of all formats.
 *
 * Split: a CTA has 16 rows of w, or 16 gates and their 16 ups; its eight warps take turns at chunks
 * of 64 columns (records of 128 of a packed matrix), and their sums are added in the order of
 * warps. Up to 16 rows of x are multiplied at a time; more read w again.
 *
 *   w --16-byte loads--> registers --mma--> sums of a warp --shared memory--> epilogue -> y
 *   x --L1 cache-------> registers ---^
 *
 * Lanes: lane (g = lane / 4, q = lane % 4) has rows g and g + 8 of the tile. The order of columns
 * is free as long as w and x agree, so of each 32 lane q takes eight neighbours, 16 bytes, and of
 * e4m3 sixteen of each 64; x for e4m3 is in the order of K_HALF_AT, as these need it.
 * Records have their codes in the order of lanes (packed.h).
 *
 * Order of sums: that of chunks and warps, so a row's bits depend on n_in alone. */
#include "kernels/choice.h"
#include "kernels/packed.cuh"
#include "kernels/portable.cuh"
#include "kernels/product_end.cuh"

#define WARPS     8
#define THREADS   (WARPS * 32)
#define TILE      16
#define COLS_MAX  16 /* rows of x at a time */
#define COLS_BF16 16 /* cuBLASLt is faster for more rows of x with a plain matrix */

enum gemv_format { GEMV_PLAIN, GEMV_BY_ROW, GEMV_IN_BLOCKS, GEMV_PACKED, GEMV_BYTES, GEMV_FLOATS };

struct gemv_args {
    k_product p; /* p.w is not read */
    const char *w;
    const float *scales;      /* of e4m3, and of rows of floats in records */
    int n_out, n_in, n, half; /* half: rows of w up to the ups; n_out if there are none */
    int scale_cols;
    struct packed_shape packed;
};

/* --- the sums of a warp ----------------------------------------------------------------------- */

/* 16 bytes of a row of x; zeros beyond its rows and columns. */
static __device__ inline uint4 gemv_load_x(const gemv_args &a, int col, int at, bool has)
{
    if (!has || col >= a.n)
        return make_uint4(0, 0, 0, 0);
    return __ldg((const uint4 *)((const k_bf16 *)a.p.x + (size_t)col * a.n_in + at));
}

/* Tile t's row of w of this lane, `low` 0 or 8 rows down. Rows beyond the matrix repeat the last
 * one; nothing reads their sums. */
static __device__ inline int gemv_row(const gemv_args &a, int t, int low)
{
    return min((int)blockIdx.x * TILE + (int)threadIdx.x % 32 / 4 + low, a.half - 1) + t * a.half;
}

/* Chunks of bf16: two halves of 32 columns. */
template <int NT, int T>
static __device__ inline void gemv_sum_plain(float (&acc)[T][NT][4], const gemv_args &a)
{
    const int depth = 2 / T;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_halves = (a.n_in + 31) / 32;
    const char *rows[T][2];

#pragma unroll
    for (int i = 0; i < 2 * T; i++)
        rows[i / 2][i % 2] = a.w + (size_t)gemv_row(a, i / 2, i % 2 * 8) * a.n_in * 2;
#pragma unroll 1
    for (int first = warp * 2; first < n_halves; first += WARPS * 2 * depth) {
        uint4 w[2 * depth][T][2], x[2 * depth][NT];

#pragma unroll
        for (int i = 0; i < 2 * depth; i++) {
            int at = (first + i / 2 * 2 * WARPS + i % 2) * 32 + lane % 4 * 8;
            bool has = at < a.n_in;

#pragma unroll
            for (int k = 0; k < 2 * T; k++)
                w[i][k / 2][k % 2] =
                    portable_load_once(rows[k / 2][k % 2] + (size_t)(has ? at : 0) * 2);
#pragma unroll
            for (int k = 0; k < NT; k++)
                x[i][k] = gemv_load_x(a, k * 8 + lane / 4, at, has);
        }
#pragma unroll
        for (int i = 0; i < 2 * depth * T * NT * 2; i++) {
            int step = i % 2 * 2, nt = i / 2 % NT, t = i / 2 / NT % T, half = i / 2 / NT / T;
            const uint4 &low = w[half][t][0], &high = w[half][t][1];

            portable_multiply<false>(
                acc[t][nt], portable_word(low, step), portable_word(high, step),
                portable_word(low, step + 1), portable_word(high, step + 1),
                portable_word(x[half][nt], step), portable_word(x[half][nt], step + 1));
        }
    }
}

/* Chunks of e4m3. With scales of blocks the sum of a chunk is multiplied by its block's. */
template <int FORMAT, int NT, int T>
static __device__ inline void gemv_sum_codes(float (&acc)[T][NT][4], const gemv_args &a)
{
    const int depth = 2 / T;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_chunks = (a.n_in + 63) / 64;
    int row[T][2];

#pragma unroll
    for (int i = 0; i < 2 * T; i++)
        row[i / 2][i % 2] = gemv_row(a, i / 2, i % 2 * 8);
#pragma unroll 1
    for (int first = warp; first < n_chunks; first += WARPS * depth) {
        uint4 w[depth][T][2], x[depth][NT][2];
        float scale[depth][T][2];

#pragma unroll
        for (int i = 0; i < depth; i++) {
            int base = (first + i * WARPS) * 64, at = base + lane % 4 * 16;
            bool has = at < a.n_in;

#pragma unroll
            for (int k = 0; k < 2 * T; k++) {
                int r = row[k / 2][k % 2];

                w[i][k / 2][k % 2] = portable_load_once(a.w + (size_t)r * a.n_in + (has ? at : 0));
                if (FORMAT == GEMV_IN_BLOCKS)
                    scale[i][k / 2][k % 2] =
                        base < a.n_in ? a.scales[(size_t)(r / 128) * a.scale_cols + base / 128]
                                      : 0.0f;
            }
#pragma unroll
            for (int k = 0; k < 2 * NT; k++)
                x[i][k / 2][k % 2] = gemv_load_x(a, k / 2 * 8 + lane / 4, at + k % 2 * 8, has);
        }
#pragma unroll
        for (int i = 0; i < depth * T; i++) {
            const uint4 &low = w[i / T][i % T][0], &high = w[i / T][i % T][1];
            float part[NT][4] = {}, (&to)[NT][4] = FORMAT == GEMV_IN_BLOCKS ? part : acc[i % T];

#pragma unroll
            for (int k = 0; k < 4 * NT; k++) {
                uint32_t four = portable_word(low, k / NT), others = portable_word(high, k / NT);

                portable_multiply<true>(to[k % NT], half_two(four), half_two(others),
                                        half_two(four >> 16), half_two(others >> 16),
                                        portable_word(x[i / T][k % NT][0], k / NT),
                                        portable_word(x[i / T][k % NT][1], k / NT));
            }
#pragma unroll
            for (int k = 0; k < 4 * NT && FORMAT == GEMV_IN_BLOCKS; k++)
                acc[i % T][k / 4][k % 4] = __fmaf_rn(
                    part[k / 4][k % 4], scale[i / T][i % T][k % 4 / 2], acc[i % T][k / 4][k % 4]);
        }
    }
}

/* Two codes, 16 bits apart, less their zero: exact in bfloat16. `less` is 128 + zero, twice. */
static __device__ inline uint32_t gemv_widen(uint32_t codes, uint32_t less)
{
    uint32_t two = packed_two(codes);
    __nv_bfloat162 value = __hsub2(*(const __nv_bfloat162 *)&two, *(const __nv_bfloat162 *)&less);

    return *(const uint32_t *)&value;
}

/* Two codes of 8 bits, 16 bits apart, less their zero: exact, too. `less` is 2^23 + zero. */
static __device__ inline uint32_t gemv_widen_bytes(uint32_t codes, float less)
{
    return pack_bf16(__uint_as_float((codes & 0xffU) | 0x4b000000U) - less,
                     __uint_as_float((codes >> 16 & 0xffU) | 0x4b000000U) - less);
}

/* 16 columns of x for a product: the columns of the instruction itself. */
template <int NT>
static __device__ inline void gemv_load_step(uint32_t (&x)[NT][2], const gemv_args &a, int at)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < NT; i++) {
        int col = i * 8 + lane / 4;
        const k_bf16 *from = (const k_bf16 *)a.p.x + (size_t)col * a.n_in + at + lane % 4 * 2;

        x[i][0] = col < a.n ? __ldg((const uint32_t *)from) : 0U;
        x[i][1] = col < a.n ? __ldg((const uint32_t *)(from + 8)) : 0U;
    }
}

/* A record of one strip: sums of a group of columns are multiplied by its scale. */
template <int NT>
static __device__ inline void gemv_add_record(float (&acc)[NT][4], const uint4 (&codes)[2],
                                              const char *record, int at, const gemv_args &a)
{
    int row = threadIdx.x % 32 / 4;
    float part[NT][4] = {};
    struct packed_numbers numbers = {};
    uint32_t less[2] = {};

#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) { /* of 32 columns */
        if (quarter * 32 % a.packed.group == 0) {
            numbers = packed_numbers_of(record, quarter * 32 / a.packed.group, row, a.packed);
            less[0] = 0x43004300U + (uint32_t)numbers.zero[0] * 0x00010001U;
            less[1] = 0x43004300U + (uint32_t)numbers.zero[1] * 0x00010001U;
        }
#pragma unroll
        for (int step = 0; step < 2; step++) {
            uint32_t x[NT][2], word = portable_word(codes[quarter / 2], quarter % 2 * 2 + step);

            gemv_load_step<NT>(x, a, at + quarter * 32 + step * 16);
#pragma unroll
            for (int i = 0; i < NT; i++)
                portable_multiply<false>(part[i], gemv_widen(word, less[0]),
                                         gemv_widen(word >> 4, less[1]),
                                         gemv_widen(word >> 8, less[0]),
                                         gemv_widen(word >> 12, less[1]), x[i][0], x[i][1]);
        }
        if ((quarter + 1) * 32 % a.packed.group != 0)
            continue;
#pragma unroll
        for (int i = 0; i < 4 * NT; i++) {
            acc[i / 4][i % 4] =
                __fmaf_rn(part[i / 4][i % 4], numbers.scale[i % 4 / 2], acc[i / 4][i % 4]);
            part[i / 4][i % 4] = 0.0f;
        }
    }
}

/* The same of 8 bits, where a word of 16 bytes has 32 columns. */
template <int NT>
static __device__ inline void gemv_add_bytes(float (&acc)[NT][4], const uint4 (&codes)[4],
                                             const char *record, int at, const gemv_args &a)
{
    int row = threadIdx.x % 32 / 4;

#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        const struct packed_numbers numbers =
            packed_numbers_of(record, quarter * 32 / a.packed.group, row, a.packed);
        float less[2] = {0x1p23f + numbers.zero[0], 0x1p23f + numbers.zero[1]};
        float part[NT][4] = {};

#pragma unroll
        for (int step = 0; step < 2; step++) {
            uint32_t x[NT][2], low = portable_word(codes[quarter], step * 2);
            uint32_t high = portable_word(codes[quarter], step * 2 + 1);

            gemv_load_step<NT>(x, a, at + quarter * 32 + step * 16);
#pragma unroll
            for (int i = 0; i < NT; i++)
                portable_multiply<false>(part[i], gemv_widen_bytes(low, less[0]),
                                         gemv_widen_bytes(low >> 8, less[1]),
                                         gemv_widen_bytes(high, less[0]),
                                         gemv_widen_bytes(high >> 8, less[1]), x[i][0], x[i][1]);
        }
#pragma unroll
        for (int i = 0; i < 4 * NT; i++)
            acc[i / 4][i % 4] =
                __fmaf_rn(part[i / 4][i % 4], numbers.scale[i % 4 / 2], acc[i / 4][i % 4]);
    }
}

/* The same of floats. */
template <int NT>
static __device__ inline void gemv_add_floats(float (&acc)[NT][4], const uint4 (&codes)[2],
                                              const char *record, int at, const gemv_args &a)
{
    int groups = K_PACKED_COLS / a.packed.group;
    const uint32_t *scales =
        (const uint32_t *)(record + PACKED_CODE_BYTES + threadIdx.x % 32 / 4 * 2 * groups);

#pragma unroll
    for (int step = 0; step < 8; step++) { /* of 16 columns */
        int group = step * groups / 8;
        uint32_t x[NT][2], w[4];

        gemv_load_step<NT>(x, a, at + step * 16);
        packed_float_operand(w, portable_word(codes[step / 4], step % 4),
                             packed_float_scales(__ldg(scales + group / 2), FLOAT_PICK(group)));
#pragma unroll
        for (int i = 0; i < NT; i++)
            portable_multiply<false>(acc[i], w[0], w[1], w[2], w[3], x[i][0], x[i][1]);
    }
}

template <int FORMAT, int NT, int T>
static __device__ inline void gemv_sum_packed(float (&acc)[T][NT][4], const gemv_args &a)
{
    const int fours = FORMAT == GEMV_BYTES ? 4 : 2, depth = 8 / fours / T;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    size_t strip_bytes = (size_t)a.packed.n_records * a.packed.record_bytes;
    const char *strips[T];

#pragma unroll
    for (int t = 0; t < T; t++)
        strips[t] = a.w + (size_t)(blockIdx.x + t * (a.half / TILE)) * strip_bytes;
#pragma unroll 1
    for (int first = warp; first < a.packed.n_records; first += WARPS * depth) {
        uint4 codes[depth][T][fours];

#pragma unroll
        for (int i = 0; i < depth * T * fours; i++) {
            const int which = i / fours, four = i % fours;
            int record = min(first + which / T * WARPS, a.packed.n_records - 1);

            codes[which / T][which % T][four] =
                portable_load_once(strips[which % T] + (size_t)record * a.packed.record_bytes +
                                   four * 512 + lane * 16);
        }
#pragma unroll
        for (int i = 0; i < depth * T; i++) {
            int record = first + i / T * WARPS;
            const char *from = strips[i % T] + (size_t)record * a.packed.record_bytes;

            if (record >= a.packed.n_records)
                continue;
            if constexpr (FORMAT == GEMV_FLOATS)
                gemv_add_floats<NT>(acc[i % T], codes[i / T][i % T], from, record * K_PACKED_COLS,
                                    a);
            else if constexpr (FORMAT == GEMV_BYTES)
                gemv_add_bytes<NT>(acc[i % T], codes[i / T][i % T], from, record * K_PACKED_COLS,
                                   a);
            else
                gemv_add_record<NT>(acc[i % T], codes[i / T][i % T], from, record * K_PACKED_COLS,
                                    a);
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

/* This thread's output: 16 lanes have the rows of a tile. */
static __device__ inline output gemv_choose_output(const gemv_args &a)
{
    output o = {};

    o.c = threadIdx.x / TILE;
    o.place = threadIdx.x % TILE;
    o.row = blockIdx.x * TILE + o.place;
    o.mine = o.c < a.n && o.row < a.half;
    if (o.mine)
        end_fetch_output(o, a.p, a.n_out);
    return o;
}

template <int FORMAT, int NT, int T>
static __global__ void __launch_bounds__(THREADS, 2)
    gemv_kernel(const __grid_constant__ gemv_args a)
{
    __shared__ float sums[WARPS][T * TILE][NT * 8 + 1], inverse[COLS_MAX];
    float acc[T][NT][4] = {}, squares[SQUARES], sum = 0.0f, up = 0.0f;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const targets to = end_targets_of(a.p, a.n_out);
    output o = gemv_choose_output(a);

    end_fetch_squares(squares, warp, a);
    if constexpr (FORMAT == GEMV_PLAIN)
        gemv_sum_plain<NT, T>(acc, a);
    else if constexpr (FORMAT >= GEMV_PACKED)
        gemv_sum_packed<FORMAT, NT, T>(acc, a);
    else
        gemv_sum_codes<FORMAT, NT, T>(acc, a);
#pragma unroll
    for (int i = 0; i < T * NT * 4; i++)
        sums[warp][i / 4 / NT * TILE + lane / 4 + i % 4 / 2 * 8]
            [i / 4 % NT * 8 + lane % 4 * 2 + i % 2] = acc[i / 4 / NT][i / 4 % NT][i % 4];
    end_find_inverse<WARPS>(inverse, squares, warp, a);
    __syncthreads();
    if (!o.mine)
        return;
    for (int i = 0; i < WARPS; i++) {
        sum += sums[i][o.place][o.c];
        up += T == 2 ? sums[i][(T - 1) * TILE + o.place][o.c] : 0.0f;
    }
    if ((FORMAT == GEMV_BY_ROW || FORMAT == GEMV_FLOATS) && a.scales != NULL) {
        sum *= a.scales[o.row];
        up *= T == 2 ? a.scales[a.half + o.row] : 1.0f;
    }
    end_write_output(to, o, sum, up, inverse[o.c]);
}

/* --- launching -------------------------------------------------------------------------------- */

static int gemv_format_of(const struct k_matrix *w)
{
    if (k_format_is_packed(&w->format))
        return !k_format_fits(&w->format, w->n_out, w->n_in) ? -1
               : w->format.elem == K_FLOAT4                  ? GEMV_FLOATS
               : w->format.elem == K_INT8                    ? GEMV_BYTES
                                                             : GEMV_PACKED;
    if (k_format_is_plain(&w->format))
        return w->n_in % 8 == 0 ? GEMV_PLAIN : -1;
    if (w->n_in % 16 != 0)
        return -1;
    if (k_format_is_in_blocks(&w->format, K_E4M3, 128))
        return GEMV_IN_BLOCKS;
    return k_format_is_by_row(&w->format, K_E4M3) ? GEMV_BY_ROW : -1;
}

int k_multiply_takes_portable(const struct k_matrix *w, int n)
{
    int format = gemv_format_of(w);

    return format >= 0 && n <= (format == GEMV_PLAIN ? COLS_BF16 : K_PRODUCT_ROWS_MAX);
}

/* The order of sums is the same for all, but not the limit of their number. */
int k_multiply_bucket_portable(const struct k_matrix *w, int n)
{
    return gemv_format_of(w) == GEMV_PLAIN && n <= COLS_BF16 ? COLS_BF16 : K_PRODUCT_ROWS_MAX;
}

template <int FORMAT, int NT> static int gemv_launch_columns(const gemv_args &a, k_stream stream)
{
    int n_tiles = (a.half + TILE - 1) / TILE;

    if (a.p.kind == K_PRODUCT_GATED)
        return K_LAUNCH((gemv_kernel<FORMAT, NT, 2>), n_tiles, THREADS, 0, stream, a);
    return K_LAUNCH((gemv_kernel<FORMAT, NT, 1>), n_tiles, THREADS, 0, stream, a);
}

template <int FORMAT> static int gemv_launch(const gemv_args &a, k_stream stream)
{
    if (a.n <= 8)
        return gemv_launch_columns<FORMAT, 1>(a, stream);
    return gemv_launch_columns<FORMAT, 2>(a, stream);
}

static int gemv_choose_format(int format, const gemv_args &a, k_stream stream)
{
    switch (format) {
    case GEMV_PLAIN: return gemv_launch<GEMV_PLAIN>(a, stream);
    case GEMV_BY_ROW: return gemv_launch<GEMV_BY_ROW>(a, stream);
    case GEMV_IN_BLOCKS: return gemv_launch<GEMV_IN_BLOCKS>(a, stream);
    case GEMV_PACKED: return gemv_launch<GEMV_PACKED>(a, stream);
    case GEMV_BYTES: return gemv_launch<GEMV_BYTES>(a, stream);
    case GEMV_FLOATS: return gemv_launch<GEMV_FLOATS>(a, stream);
    }
    return -1;
}

/* Point a at the rows of x from `first` on. */
static void gemv_point_rows(gemv_args &a, const struct k_product *p, int first)
{
    size_t row = (size_t)first, n_out = (size_t)a.n_out;
    size_t y_bytes = p->kind == K_PRODUCT_FLOAT ? n_out * 4 : (size_t)a.half * 2;

    a.p.x = (const k_bf16 *)p->x + row * a.n_in;
    if (p->sums_in != NULL)
        a.p.sums_in = p->sums_in + row * p->n_sums;
    a.p.y = (char *)p->y + row * y_bytes;
    if (p->kind != K_PRODUCT_RESIDUAL)
        return;
    a.p.residual = p->residual + row * n_out;
    a.p.normed = (k_bf16 *)p->normed + row * n_out;
    a.p.sums_out = p->sums_out + row * (n_out / 16);
}

/* COLS_MAX rows of x at a time. */
int k_multiply_portable(const struct k_product *p, int n, int n_sms, k_stream stream)
{
    int format = gemv_format_of(p->w), rc = 0;
    gemv_args a = {};

    (void)n_sms; /* tiles are small, so that there are many more than multiprocessors */
    if (format < 0 || (p->kind == K_PRODUCT_RESIDUAL && p->w->n_out % TILE != 0))
        return -1;
    a.p = *p;
    a.w = (const char *)p->w->data;
    a.scales = (const float *)p->w->scales;
    a.n_out = p->w->n_out;
    a.n_in = p->w->n_in;
    a.half = p->kind == K_PRODUCT_GATED ? a.n_out / 2 : a.n_out;
    a.scale_cols = k_format_scale_cols(&p->w->format, a.n_in);
    if (format >= GEMV_PACKED)
        a.packed = packed_shape_of(p->w);
    for (int first = 0; first < n && rc == 0; first += COLS_MAX) {
        gemv_point_rows(a, p, first);
        a.n = n - first < COLS_MAX ? n - first : COLS_MAX;
        rc = gemv_choose_format(format, a, stream);
    }
    return rc;
}
