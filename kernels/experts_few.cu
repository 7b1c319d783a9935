/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of experts for few routes each, bound by the bytes of those experts that are touched:
 * each is read once, where up to 64 routes lead to it.
 *
 *   w --16 bytes a lane--> registers --mma--> accumulators -+
 *   x --L1 cache---------> registers -----^                 |  sums of the four warps
 *                                                           +--> activation, scale -> out
 *
 * Split: an item is a tile of an expert that has routes, 16 rows of w: 8 gates and their 8 ups, or
 * 16 rows of down. A block of four warps takes an item, the grid takes them in turn; the number of
 * items is in device memory, so a recorded step serves any choice. The warps share n_in: warp i has
 * every fourth step of 4 x 16 bytes of a row, so that together they read 256 neighbouring bytes of
 * each row. Weights of the next steps are loaded before the current ones are multiplied.
 *
 * Lanes: lane (g = lane / 4, q = lane % 4) has rows g and g + 8 of the tile. The order of the
 * elements of n_in is free as long as w and x agree, so a lane takes 16 neighbouring bytes of w,
 * and the same elements of x, for two (bf16) or four (e4m3) multiplications. e4m3 becomes bfloat16,
 * which is exact. Rows g and g + 8 are a gate and its up, so both are in one lane.
 *
 * Order of sums: steps of a warp, then warps. It depends on n_in alone, so a route's bits do not
 * depend on other routes. A scale of a block multiplies each step's sum in float32. */
#include "kernels/experts.cuh"

#define WARPS    4
#define THREADS  (WARPS * 32)
#define TILE     16
#define BLOCKS   4  /* of a multiprocessor: 16 warps keep 64 KB of weights in flight */
#define COLS_MAX 64 /* routes of an expert at a time */

/* What a lane reads of the tile: 16 bytes of two rows. */
struct few_weights {
    uint4 low, high;
};

/* Where a warp is in its item. */
struct few_item {
    int expert, tile, start, count; /* start, count: its routes */
    const char *low, *high;         /* rows g and g + 8 of w */
    const float *low_scales, *high_scales;
};

template <int FORMAT> static __device__ constexpr int step_elems(void)
{
    return FORMAT == EXPERTS_PLAIN ? 32 : 64;
}

/* The row of w, of the expert's, that a row of the tile is; rows past the end read the last one. */
static __device__ inline int few_row(const struct experts_product &p, int tile, int row)
{
    if (!p.is_gated)
        return min(tile * TILE + row, p.n_out - 1);
    return min(tile * 8 + row % 8, p.n_out - 1) + (row < 8 ? 0 : p.n_out);
}

template <int FORMAT>
static __device__ inline few_item few_item_of(const struct experts_product &p, int item,
                                              int n_tiles)
{
    int g = threadIdx.x % 32 / 4, expert = p.touched[1 + item / n_tiles];
    size_t row_bytes = (size_t)p.n_in * (FORMAT == EXPERTS_PLAIN ? 2 : 1);
    few_item it;
    size_t low, high;

    it.expert = expert;
    it.tile = item % n_tiles;
    it.start = p.starts[expert];
    it.count = p.starts[expert + 1] - it.start;
    low = (size_t)expert * p.rows + few_row(p, it.tile, g);
    high = (size_t)expert * p.rows + few_row(p, it.tile, g + 8);
    it.low = (const char *)p.w + low * row_bytes;
    it.high = (const char *)p.w + high * row_bytes;
    it.low_scales = p.scales + low / EXPERTS_BLOCK * p.scale_cols;
    it.high_scales = p.scales + high / EXPERTS_BLOCK * p.scale_cols;
    return it;
}

/* The first element that a lane has of a step. */
template <int FORMAT> static __device__ inline int few_at(int step)
{
    return step * step_elems<FORMAT>() + threadIdx.x % 4 * (step_elems<FORMAT>() / 4);
}

template <int FORMAT>
static __device__ inline few_weights few_load(const few_item &it, int step, int n_in)
{
    int at = few_at<FORMAT>(step);
    size_t bytes = (size_t)at * (FORMAT == EXPERTS_PLAIN ? 2 : 1);

    if (at >= n_in)
        return {};
    return {load_once(it.low + bytes), load_once(it.high + bytes)};
}

/* Eight elements of x, as four words; zeros past the end of the row. */
static __device__ inline uint4 few_input(const k_bf16 *x, int at, int n_in)
{
    if (at >= n_in)
        return make_uint4(0, 0, 0, 0);
    return *(const uint4 *)(x + at);
}

/* Multiply eight elements of n_in of each lane. */
static __device__ inline void few_multiply(float (&c)[4], const uint4 &low, const uint4 &high,
                                           const uint4 &x)
{
    experts_multiply(c, low.x, high.x, low.y, high.y, x.x, x.y);
    experts_multiply(c, low.z, high.z, low.w, high.w, x.z, x.w);
}

/* Multiply one step for all columns. */
template <int FORMAT, int NT>
static __device__ inline void few_step(float (&acc)[NT][4], const few_weights &w, int step,
                                       const few_item &it, const k_bf16 *const (&x)[NT], int n_in)
{
    int at = few_at<FORMAT>(step);

    if (FORMAT == EXPERTS_PLAIN) {
#pragma unroll
        for (int i = 0; i < NT; i++)
            few_multiply(acc[i], w.low, w.high, few_input(x[i], at, n_in));
        return;
    }
    uint4 low[2] = {widen_eight(make_uint2(w.low.x, w.low.y)),
                    widen_eight(make_uint2(w.low.z, w.low.w))};
    uint4 high[2] = {widen_eight(make_uint2(w.high.x, w.high.y)),
                     widen_eight(make_uint2(w.high.z, w.high.w))};
    float low_scale = 1.0f, high_scale = 1.0f;

    if (FORMAT == EXPERTS_IN_BLOCKS) {
        int block = step * step_elems<FORMAT>() / EXPERTS_BLOCK;

        low_scale = __ldg(it.low_scales + block);
        high_scale = __ldg(it.high_scales + block);
    }
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float part[4] = {};

        few_multiply(part, low[0], high[0], few_input(x[i], at, n_in));
        few_multiply(part, low[1], high[1], few_input(x[i], at + 8, n_in));
        acc[i][0] = __fmaf_rn(part[0], low_scale, acc[i][0]);
        acc[i][1] = __fmaf_rn(part[1], low_scale, acc[i][1]);
        acc[i][2] = __fmaf_rn(part[2], high_scale, acc[i][2]);
        acc[i][3] = __fmaf_rn(part[3], high_scale, acc[i][3]);
    }
}

/* A scale of a row; 1 where rows have none. */
template <int FORMAT>
static __device__ inline float few_scale(const struct experts_product &p, const few_item &it,
                                         int row)
{
    if (FORMAT != EXPERTS_BY_ROW)
        return 1.0f;
    return p.scales[(size_t)it.expert * p.rows + row];
}

/* The sum of all warps of a row of the tile and a column. */
template <int NT> static __device__ inline float few_sum(const float *sums, int row, int col)
{
    float sum = 0.0f;

#pragma unroll
    for (int warp = 0; warp < WARPS; warp++)
        sum += sums[(warp * TILE + row) * (NT * 8 + 1) + col];
    return sum;
}

/* Finish the outputs of n columns, which begin at place `first`. sums [WARPS][TILE][8 NT + 1]. */
template <int FORMAT, int NT>
static __device__ inline void few_end(const struct experts_product &p, const few_item &it,
                                      const float *sums, int first, int n)
{
    int rows = p.is_gated ? 8 : TILE, row = threadIdx.x % rows, out = it.tile * rows + row;
    float scale, up_scale;

    if (out >= p.n_out)
        return;
    scale = few_scale<FORMAT>(p, it, out);
    up_scale = p.is_gated ? few_scale<FORMAT>(p, it, p.n_out + out) : 1.0f;
    for (int col = threadIdx.x / rows; col < n; col += THREADS / rows) {
        float y = few_sum<NT>(sums, row, col) * scale;

        if (p.is_gated)
            y = activation(y, p.activation) * (few_sum<NT>(sums, row + 8, col) * up_scale);
        store_bf16(p.out + (size_t)(first + col) * p.n_out + out, y);
    }
}

/* The columns first .. first + n - 1 of an item's routes, at most 8 NT. */
template <int FORMAT, int NT, int DEPTH>
static __device__ inline void few_columns(const struct experts_product &p, const few_item &it,
                                          float *sums, int first, int n)
{
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    int n_steps = (p.n_in + step_elems<FORMAT>() - 1) / step_elems<FORMAT>();
    const k_bf16 *x[NT];
    few_weights next[DEPTH], now[DEPTH];
    float acc[NT][4] = {};

#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        next[i] = few_load<FORMAT>(it, warp + i * WARPS, p.n_in);
#pragma unroll
    for (int i = 0; i < NT; i++)
        x[i] = p.x + (size_t)experts_row(p, first + min(i * 8 + g, n - 1)) * p.n_in;
    for (int step = warp; step < n_steps; step += DEPTH * WARPS) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            now[i] = next[i];
            next[i] = few_load<FORMAT>(it, step + (DEPTH + i) * WARPS, p.n_in);
        }
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            if (step + i * WARPS < n_steps)
                few_step<FORMAT, NT>(acc, now[i], step + i * WARPS, it, x, p.n_in);
        }
    }
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int elem = 0; elem < 4; elem++)
            sums[(warp * TILE + g + elem / 2 * 8) * (NT * 8 + 1) + i * 8 + q * 2 + elem % 2] =
                acc[i][elem];
    }
    __syncthreads();
    few_end<FORMAT, NT>(p, it, sums, first, n);
    __syncthreads();
}

template <int FORMAT>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    few_kernel(const struct experts_product p, int n_tiles)
{
    __shared__ float sums[WARPS * TILE * (COLS_MAX + 1)];
    int n_items;

    wait_for_previous();
    n_items = p.touched[0] * n_tiles;
    for (int item = blockIdx.x; item < n_items; item += gridDim.x) {
        const few_item it = few_item_of<FORMAT>(p, item, n_tiles);

        for (int done = 0; done < it.count; done += COLS_MAX) {
            int n = min(it.count - done, COLS_MAX), first = it.start + done;

            if (n <= 8)
                few_columns<FORMAT, 1, 4>(p, it, sums, first, n);
            else if (n <= 16)
                few_columns<FORMAT, 2, 4>(p, it, sums, first, n);
            else if (n <= 32)
                few_columns<FORMAT, 4, 2>(p, it, sums, first, n);
            else
                few_columns<FORMAT, 8, 2>(p, it, sums, first, n);
        }
    }
}

int experts_few(const struct experts_product *p, enum experts_format format, int n_sms,
                k_stream stream)
{
    int rows = p->is_gated ? 8 : TILE, n_tiles = (p->n_out + rows - 1) / rows;
    int grid = n_sms * BLOCKS;

    switch (format) {
    case EXPERTS_PLAIN:
        return launch_early(few_kernel<EXPERTS_PLAIN>, grid, THREADS, 0, stream, *p, n_tiles);
    case EXPERTS_BY_ROW:
        return launch_early(few_kernel<EXPERTS_BY_ROW>, grid, THREADS, 0, stream, *p, n_tiles);
    case EXPERTS_IN_BLOCKS:
        return launch_early(few_kernel<EXPERTS_IN_BLOCKS>, grid, THREADS, 0, stream, *p, n_tiles);
    }
    return -1;
}
