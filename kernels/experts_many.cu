/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of experts for many tokens: one product for each expert, of the rows that are routed to
 * it, in one launch.
 *
 *   x rows --cp.async--+--> shared memory, STAGES deep --> mma.sync --> activation, scale -> out
 *   w rows --cp.async--+
 *
 * Split: a block has a tile of 128 routes of one expert (k_route() lists the tiles; the grid has
 * room for the most there may be) and 128 rows of w. For the first product these are 64 gates and
 * their 64 ups, in turns of 8, so that a gate and its up are in the same registers of a lane. Four
 * warps have 64 x 64 of the tile each. Blocks that run together have the same routes, whose rows of
 * x stay in the L2 cache.
 *
 * Shared memory: rows of 64 elements. 16-byte chunk c of row r of bfloat16 is at chunk c ^ (r % 8),
 * so that no two lanes of a quarter warp meet in a bank; rows of e4m3 are 64 bytes, in order. Lane
 * (g = lane / 4, q = lane % 4) takes chunks 2 q and 2 q + 1 of rows g and g + 8: the order of the
 * elements of n_in is free as long as x and w agree, so no ldmatrix is needed.
 *
 * e4m3 becomes bfloat16 in registers, which is exact; with scales of blocks it is multiplied by
 * the scale and rounded to bfloat16, as a dequantised matrix would be. Sums are float32, in an
 * order that depends on n_in alone.
 *
 * This is a first version: mma.sync instead of wgmma, and copies by all threads instead of the
 * TMA. */
#include "kernels/experts.cuh"

#define THREADS 128
#define ROWS    K_MIXING_TILE /* routes of a block */
#define COLS    128           /* rows of w of a block */
#define DEPTH   64            /* elements of n_in of a stage */
#define STAGES  3
#define X_BYTES (ROWS * DEPTH * 2)

template <int FORMAT> static __device__ constexpr int w_bytes(void)
{
    return COLS * DEPTH * (FORMAT == EXPERTS_PLAIN ? 2 : 1);
}

/* The block's tile: places first .. first + n - 1 of an expert, and the first of its outputs. */
struct many_tile {
    int expert, first, n, out;
};

/* --- copies ----------------------------------------------------------------------------------- */

/* The row of w, of the expert's, that a row of the block's part is; -1 past the end. */
static __device__ inline int many_row(const struct experts_product &p, int out, int row)
{
    int at = p.is_gated ? out + row / 16 * 8 + row % 8 : out + row;

    if (at >= p.n_out)
        return -1;
    return p.is_gated && row % 16 >= 8 ? p.n_out + at : at;
}

/* Begin to copy a stage: elements at .. at + DEPTH - 1 of the rows of x. rows [ROWS]: which. */
static __device__ inline void copy_x(char *to, const struct experts_product &p, const int *rows,
                                     int at)
{
    int chunk = threadIdx.x % 8, from = at + chunk * 8;

#pragma unroll
    for (int row = threadIdx.x / 8; row < ROWS; row += THREADS / 8) {
        bool has = rows[row] >= 0 && from < p.n_in;

        copy_later(to + row * 128 + (chunk ^ row % 8) * 16,
                   has ? p.x + (size_t)rows[row] * p.n_in + from : p.x, has);
    }
}

template <int FORMAT>
static __device__ inline void copy_w(char *to, const struct experts_product &p, const many_tile &t,
                                     int at)
{
    const bool plain = FORMAT == EXPERTS_PLAIN;
    const int chunks = plain ? 8 : 4, elems = plain ? 8 : 16;
    int chunk = threadIdx.x % chunks, from = at + chunk * elems;

#pragma unroll
    for (int row = threadIdx.x / chunks; row < COLS; row += THREADS / chunks) {
        int own = many_row(p, t.out, row);
        bool has = own >= 0 && from < p.n_in;
        size_t elem = ((size_t)t.expert * p.rows + (has ? own : 0)) * p.n_in + (has ? from : 0);

        copy_later(plain ? to + row * 128 + (chunk ^ row % 8) * 16 : to + row * 64 + chunk * 16,
                   (const char *)p.w + elem * (plain ? 2 : 1), has);
    }
}

/* --- a stage ---------------------------------------------------------------------------------- */

/* Half of a stage: for each lane, eight elements of the rows that it has. */
struct many_x {
    uint4 low, high; /* rows g and g + 8 */
};

/* Eight e4m3 times a scale, as eight bfloat16. */
static __device__ inline uint4 scaled_eight(uint2 eight, float scale)
{
    uint32_t words[4] = {eight.x, eight.x >> 16, eight.y, eight.y >> 16}, scaled[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t halves = half_two(words[i]);
        float2 two = __half22float2(*(__half2 *)&halves);

        scaled[i] = pack_bf16(two.x * scale, two.y * scale);
    }
    return make_uint4(scaled[0], scaled[1], scaled[2], scaled[3]);
}

/* A lane's eight elements of a row of w, as bfloat16. */
template <int FORMAT>
static __device__ inline uint4 many_weights(const char *w, int row, int part, float scale)
{
    int q = threadIdx.x % 4;

    if (FORMAT == EXPERTS_PLAIN)
        return *(const uint4 *)(w + row * 128 + ((2 * q + part) ^ row % 8) * 16);
    if (FORMAT == EXPERTS_IN_BLOCKS)
        return scaled_eight(*(const uint2 *)(w + row * 64 + q * 16 + part * 8), scale);
    return widen_eight(*(const uint2 *)(w + row * 64 + q * 16 + part * 8));
}

/* acc [4 x 16 routes][8 x 8 rows of w] += a stage. warp_row, warp_col: the warp's part. scales: of
 * the gates and of the ups, or both the same. */
template <int FORMAT>
static __device__ inline void many_stage(float (&acc)[4][8][4], const char *x, const char *w,
                                         int warp_row, int warp_col, float2 scales)
{
    int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;

#pragma unroll
    for (int part = 0; part < 2; part++) {
        many_x rows[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = warp_row + i * 16 + g;
            const char *at = x + row * 128 + ((2 * q + part) ^ row % 8) * 16;

            rows[i].low = *(const uint4 *)at;
            rows[i].high = *(const uint4 *)(at + 8 * 128);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint4 b = many_weights<FORMAT>(w, warp_col + j * 8 + g, part,
                                           j % 2 == 0 ? scales.x : scales.y);

#pragma unroll
            for (int i = 0; i < 4; i++) {
                experts_multiply(acc[i][j], rows[i].low.x, rows[i].high.x, rows[i].low.y,
                                 rows[i].high.y, b.x, b.y);
                experts_multiply(acc[i][j], rows[i].low.z, rows[i].high.z, rows[i].low.w,
                                 rows[i].high.w, b.z, b.w);
            }
        }
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

template <int FORMAT>
static __device__ inline float many_scale(const struct experts_product &p, const many_tile &t,
                                          int row)
{
    if (FORMAT != EXPERTS_BY_ROW || row < 0)
        return 1.0f;
    return __ldg(p.scales + (size_t)t.expert * p.rows + row);
}

/* Store two neighbouring outputs; `has` says how many of them there are. */
static __device__ inline void store_outputs(k_bf16 *to, float low, float high, int has)
{
    if (has >= 2 && (uintptr_t)to % 4 == 0) {
        *(uint32_t *)to = pack_bf16(low, high);
        return;
    }
    if (has >= 1)
        store_bf16(to, low);
    if (has >= 2)
        store_bf16(to + 1, high);
}

/* Outputs of one tile of 8 rows of w, or of two that are gates and ups. */
template <int FORMAT>
static __device__ inline void many_end(const struct experts_product &p, const many_tile &t,
                                       const float (&acc)[4][8][4], int j, int warp_row,
                                       int warp_col)
{
    int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    int col = p.is_gated ? (warp_col + j * 8) / 2 + q * 2 : warp_col + j * 8 + q * 2;
    int out = t.out + col, has = p.n_out - out;
    float scale[2], up_scale[2];

    if (has <= 0)
        return;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int row = out + (has > k ? k : 0);

        scale[k] = many_scale<FORMAT>(p, t, row);
        up_scale[k] = many_scale<FORMAT>(p, t, p.is_gated ? p.n_out + row : -1);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int row = warp_row + i / 2 * 16 + i % 2 * 8 + g;
        float y[2];

#pragma unroll
        for (int k = 0; k < 2; k++) {
            y[k] = acc[i / 2][j][i % 2 * 2 + k] * scale[k];
            if (p.is_gated)
                y[k] = activation(y[k], p.activation) *
                       (acc[i / 2][j + 1 < 8 ? j + 1 : j][i % 2 * 2 + k] * up_scale[k]);
        }
        if (row < t.n)
            store_outputs(p.out + (size_t)(t.first + row) * p.n_out + out, y[0], y[1], has);
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

/* The scales of a stage with scales of blocks: rows of a block's part share one, gates and ups. */
template <int FORMAT>
static __device__ inline float2 many_scales(const struct experts_product &p, const many_tile &t,
                                            int warp_col, int at)
{
    int row = many_row(p, t.out, warp_col), up = p.is_gated ? p.n_out + row : row;
    size_t first = (size_t)t.expert * p.rows;

    if (FORMAT != EXPERTS_IN_BLOCKS || row < 0)
        return make_float2(1.0f, 1.0f);
    return make_float2(
        __ldg(p.scales + (first + row) / EXPERTS_BLOCK * p.scale_cols + at / EXPERTS_BLOCK),
        __ldg(p.scales + (first + up) / EXPERTS_BLOCK * p.scale_cols + at / EXPERTS_BLOCK));
}

template <int FORMAT>
static __global__ void __launch_bounds__(THREADS) many_kernel(const struct experts_product p)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ int rows[ROWS];
    const int stage_bytes = X_BYTES + w_bytes<FORMAT>();
    int warp = threadIdx.x / 32, warp_row = warp / 2 * 64, warp_col = warp % 2 * 64;
    int n_stages = (p.n_in + DEPTH - 1) / DEPTH;
    float acc[4][8][4] = {};
    many_tile t;

    if ((int)blockIdx.y >= p.tiles[0])
        return;
    t.expert = p.tiles[1 + 2 * blockIdx.y];
    t.first = p.tiles[2 + 2 * blockIdx.y];
    t.n = min(p.starts[t.expert + 1] - t.first, ROWS);
    t.out = blockIdx.x * (p.is_gated ? COLS / 2 : COLS);
    rows[threadIdx.x] = (int)threadIdx.x < t.n ? experts_row(p, t.first + (int)threadIdx.x) : -1;
    __syncthreads();
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < n_stages) {
            copy_x(shared + i * stage_bytes, p, rows, i * DEPTH);
            copy_w<FORMAT>(shared + i * stage_bytes + X_BYTES, p, t, i * DEPTH);
        }
        copies_commit();
    }
    for (int i = 0; i < n_stages; i++) {
        const char *from = shared + i % STAGES * stage_bytes;
        int next = i + STAGES - 1;
        char *to = shared + next % STAGES * stage_bytes;
        float2 scales = many_scales<FORMAT>(p, t, warp_col, i * DEPTH);

        copies_wait<STAGES - 2>();
        __syncthreads(); /* the stage is there, and all warps have left the one before it */
        if (next < n_stages) {
            copy_x(to, p, rows, next * DEPTH);
            copy_w<FORMAT>(to + X_BYTES, p, t, next * DEPTH);
        }
        copies_commit();
        many_stage<FORMAT>(acc, from, from + X_BYTES, warp_row, warp_col, scales);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (!p.is_gated || j % 2 == 0)
            many_end<FORMAT>(p, t, acc, j, warp_row, warp_col);
    }
}

/* --- launching -------------------------------------------------------------------------------- */

template <int FORMAT>
static int launch(const struct experts_product *p, int n_tiles, k_stream stream)
{
    const int bytes = STAGES * (X_BYTES + COLS * DEPTH * (FORMAT == EXPERTS_PLAIN ? 2 : 1));
    int cols = p->is_gated ? COLS / 2 : COLS;

    if (cudaFuncSetAttribute(many_kernel<FORMAT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             bytes) != cudaSuccess)
        return -1;
    return K_LAUNCH(many_kernel<FORMAT>, dim3((p->n_out + cols - 1) / cols, n_tiles), THREADS,
                    bytes, stream, *p);
}

int experts_many(const struct experts_product *p, enum experts_format format, int n_tiles,
                 k_stream stream)
{
    switch (format) {
    case EXPERTS_PLAIN: return launch<EXPERTS_PLAIN>(p, n_tiles, stream);
    case EXPERTS_BY_ROW: return launch<EXPERTS_BY_ROW>(p, n_tiles, stream);
    case EXPERTS_IN_BLOCKS: return launch<EXPERTS_IN_BLOCKS>(p, n_tiles, stream);
    }
    return -1;
}
