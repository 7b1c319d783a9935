/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of experts on every GPU from compute capability 8.0 on, of plain matrices.
 *
 * Split: a CTA has a tile of rows of an expert's matrix and its routes, some at a time; n_in comes
 * in steps of 64 columns through a ring of stages in shared memory, which cp.async fills.
 *
 *   few tokens   64 rows x 16 routes, four warps of 16 rows; a grid row per touched expert
 *   many         128 rows x 128 routes, eight warps of 64 x 32; a grid row per tile of routes
 *
 * In the first product a warp's 16 rows are 8 gates and their 8 ups, so that both meet in a lane.
 * Rows of a stage are 128 bytes, whose 16-byte chunks are exchanged by the row's number, so that
 * ldmatrix meets all banks. Sums are over n_in in its order, in both cases: a route's bits depend on
 * nothing else. */
#include "kernels/experts.cuh"
#include "kernels/portable.cuh"

#define STEP 64 /* columns of a stage */

/* Warps [WARPS_M][WARPS_N] have MT tiles of 16 rows by NT tiles of 8 routes each. */
template <int MT, int NT, int WARPS_M, int WARPS_N, int STAGES> struct mixed_shape {
    static constexpr int THREADS = WARPS_M * WARPS_N * 32;
    static constexpr int ROWS = WARPS_M * MT * 16;
    static constexpr int COLS = WARPS_N * NT * 8;
    static constexpr int DEPTH = STAGES;
    static constexpr int STAGE = (ROWS + COLS) * STEP * 2;
    static constexpr int SHARED = STAGES * STAGE;
    static constexpr int M = MT, N = NT, N_WARPS = WARPS_N;
    /* A thread copies one chunk of every so many rows. */
    static constexpr int ROWS_AT_ONCE = THREADS / 8;
    static constexpr int W_COPIES = ROWS / ROWS_AT_ONCE;
    static constexpr int X_COPIES = (COLS + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    static_assert(SHARED <= 99 * 1024, "shared memory of compute capability 8.6");
};
typedef mixed_shape<1, 2, 4, 1, 6> mixed_few;
typedef mixed_shape<4, 4, 2, 4, 3> mixed_many;

/* A CTA's tile: rows of an expert, and places first .. last - 1. */
struct mixed_tile {
    int expert, row, first, last;
};

/* A row of w for a row of the tile; beyond the matrix the last one, whose sums are not stored. */
static __device__ inline int mixed_row(const experts_product &p, const mixed_tile &t, int i)
{
    int row;

    if (!p.is_gated)
        return min(t.row + i, p.n_out - 1);
    row = min(t.row / 2 + i / 16 * 8 + i % 8, p.n_out - 1);
    return i % 16 < 8 ? row : p.n_out + row;
}

static __device__ inline char *mixed_chunk(char *rows, int row, int chunk)
{
    return rows + row * 128 + (chunk ^ row % 8) * 16;
}

/* What a thread copies: addresses of its rows, at its chunk. */
template <class S> struct mixed_source {
    const k_bf16 *w[S::W_COPIES], *x[S::X_COPIES];
};

template <class S>
static __device__ inline void mixed_point(mixed_source<S> &from, const experts_product &p,
                                          const mixed_tile &t)
{
    int row = threadIdx.x / 8, at = threadIdx.x % 8 * 8;
    const k_bf16 *w = (const k_bf16 *)p.w + (size_t)t.expert * p.rows * p.n_in + at;

#pragma unroll
    for (int i = 0; i < S::W_COPIES; i++)
        from.w[i] = w + (size_t)mixed_row(p, t, row + i * S::ROWS_AT_ONCE) * p.n_in;
#pragma unroll
    for (int i = 0; i < S::X_COPIES; i++) {
        int place = t.first + row + i * S::ROWS_AT_ONCE;

        from.x[i] = place < t.last ? p.x + (size_t)experts_row(p, place) * p.n_in + at : NULL;
    }
}

/* The columns from `step` * STEP on to a stage; zeros beyond the matrix and the routes. */
template <class S>
static __device__ inline void mixed_copy(char *stage, const mixed_source<S> &from,
                                         const experts_product &p, int step)
{
    int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    bool has = step * STEP + chunk * 8 < p.n_in;
    size_t at = has ? (size_t)step * STEP : 0;

#pragma unroll
    for (int i = 0; i < S::W_COPIES; i++)
        portable_copy16(mixed_chunk(stage, row + i * S::ROWS_AT_ONCE, chunk),
                        has ? from.w[i] + at : (const k_bf16 *)p.w, has);
#pragma unroll
    for (int i = 0; i < S::X_COPIES; i++) {
        int col = row + i * S::ROWS_AT_ONCE;
        bool is_route = has && from.x[i] != NULL;

        if (col < S::COLS)
            portable_copy16(mixed_chunk(stage + S::ROWS * 128, col, chunk),
                            is_route ? from.x[i] + at : p.x, is_route);
    }
}

/* Multiply a stage by the warp's tiles. */
template <class S>
static __device__ inline void mixed_multiply(float (&acc)[S::M][S::N][4], char *stage)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row0 = warp / S::N_WARPS * S::M * 16, col0 = warp % S::N_WARPS * S::N * 8;

#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        uint32_t a[S::M][4], b[S::N / 2][4];

#pragma unroll
        for (int i = 0; i < S::M; i++)
            portable_load_matrices(
                a[i], mixed_chunk(stage, row0 + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
        for (int i = 0; i < S::N / 2; i++)
            portable_load_matrices(b[i], mixed_chunk(stage + S::ROWS * 128,
                                                     col0 + i * 16 + lane % 8 + lane / 16 * 8,
                                                     k * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < S::M * S::N; i++) {
            int m = i / S::N, n = i % S::N;

            portable_multiply<false>(acc[m][n], a[m][0], a[m][1], a[m][2], a[m][3],
                                     b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
}

/* The sums of the tile, over all columns. */
template <class S>
static __device__ inline void mixed_sum(float (&acc)[S::M][S::N][4], char *shared,
                                        const experts_product &p, const mixed_tile &t)
{
    int n_steps = (p.n_in + STEP - 1) / STEP;
    mixed_source<S> from;

    mixed_point<S>(from, p, t);
    __syncthreads(); /* the stages of the routes before have been read */
#pragma unroll
    for (int i = 0; i < S::DEPTH - 1; i++) {
        if (i < n_steps)
            mixed_copy<S>(shared + i * S::STAGE, from, p, i);
        portable_end_group();
    }
#pragma unroll 1
    for (int step = 0, stage = 0, next = S::DEPTH - 1; step < n_steps; step++) {
        portable_wait_groups<S::DEPTH - 2>();
        __syncthreads(); /* all have this step, and have read the one before */
        if (step + S::DEPTH - 1 < n_steps)
            mixed_copy<S>(shared + next * S::STAGE, from, p, step + S::DEPTH - 1);
        portable_end_group();
        mixed_multiply<S>(acc, shared + stage * S::STAGE);
        stage = stage + 1 == S::DEPTH ? 0 : stage + 1;
        next = next + 1 == S::DEPTH ? 0 : next + 1;
    }
}

/* Store one output: its sum and, of the first product, that of the up. */
static __device__ inline void mixed_store(const experts_product &p, const mixed_tile &t, int row,
                                          int place, float sum, float up)
{
    float factor = experts_factor(p, place), y;

    if (row >= p.n_out || place >= t.last)
        return;
    y = sum * factor + experts_own_bias(p, t.expert, row);
    if (p.is_gated)
        y = gated(y, up * factor + experts_own_bias(p, t.expert, p.n_out + row), p.activation);
    store_bf16(p.out + (size_t)place * p.n_out + row, y);
}

/* Lane (g, q) has rows g and g + 8 of a tile, and routes 2 q and 2 q + 1. */
template <class S>
static __device__ inline void mixed_end(const float (&acc)[S::M][S::N][4], const experts_product &p,
                                        const mixed_tile &t)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    int place = t.first + warp % S::N_WARPS * S::N * 8 + lane % 4 * 2;

#pragma unroll
    for (int i = 0; i < S::M * S::N * 2; i++) {
        int m = i / 2 / S::N, n = i / 2 % S::N, route = place + n * 8 + i % 2;
        int row = (warp / S::N_WARPS * S::M + m) * 16;
        float low = acc[m][n][i % 2], high = acc[m][n][i % 2 + 2];

        if (route >= t.last)
            continue;
        if (p.is_gated) {
            mixed_store(p, t, t.row / 2 + row / 2 + g, route, low, high);
        } else {
            mixed_store(p, t, t.row + row + g, route, low, 0.0f);
            mixed_store(p, t, t.row + row + g + 8, route, high, 0.0f);
        }
    }
}

/* Block x has rows; block y a touched expert, or a tile of routes. */
template <class S, bool MANY>
static __global__ void __launch_bounds__(S::THREADS) mixed_kernel(const experts_product p)
{
    extern __shared__ __align__(128) char shared[];
    mixed_tile t;
    int last;

    if ((int)blockIdx.y >= (MANY ? p.tiles[0] : p.touched[0]))
        return;
    t.expert = MANY ? p.tiles[1 + 2 * blockIdx.y] : p.touched[1 + blockIdx.y];
    t.row = blockIdx.x * S::ROWS;
    t.first = MANY ? p.tiles[2 + 2 * blockIdx.y] : p.starts[t.expert];
    last = p.starts[t.expert + 1];
    if (MANY)
        last = min(last, t.first + K_MIXING_TILE);
    for (; t.first < last; t.first += S::COLS) {
        float acc[S::M][S::N][4] = {};

        t.last = min(last, t.first + S::COLS);
        mixed_sum<S>(acc, shared, p, t);
        mixed_end<S>(acc, p, t);
    }
}

template <class S, bool MANY>
static int mixed_launch(const struct experts_product *p, int n_y, k_stream stream)
{
    int n_rows = p->is_gated ? 2 * p->n_out : p->n_out;

    if (cudaFuncSetAttribute(mixed_kernel<S, MANY>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             S::SHARED) != cudaSuccess)
        return -1;
    return K_LAUNCH((mixed_kernel<S, MANY>), dim3((n_rows + S::ROWS - 1) / S::ROWS, n_y),
                    S::THREADS, S::SHARED, stream, *p);
}

int experts_tiles(const struct experts_product *p, bool is_many, k_stream stream)
{
    int n_routes = p->n_tokens * p->n_used;

    if (is_many)
        return mixed_launch<mixed_many, true>(p, n_routes / K_MIXING_TILE + p->n_experts, stream);
    return mixed_launch<mixed_few, false>(p, n_routes < p->n_experts ? n_routes : p->n_experts,
                                          stream);
}
