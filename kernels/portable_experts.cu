/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of experts on every GPU from compute capability 8.0 on.
 *
 * Split: a CTA has a tile of rows of an expert's matrix and its routes, some at a time; n_in comes
 * in steps of 64 columns (128 of MXFP4) through a ring of stages in shared memory, which cp.async
 * fills.
 *
 *   few tokens   64 rows x 16 routes, four warps of 16 rows; a grid row per touched expert
 *   many         128 rows x 128 routes, eight warps of 64 x 32; a grid row per tile of routes
 *
 * In the first product a warp's 16 rows are 8 gates and their 8 ups, so that both meet in a lane.
 * Rows of a stage are 128 bytes, whose 16-byte chunks are exchanged by the row's number, so that
 * ldmatrix meets all banks. Sums are over n_in in its order, in both cases: a route's bits depend
 * on nothing else.
 *
 * e4m3 goes through registers, where it is multiplied by its scale and rounded to bfloat16, as a
 * matrix would be that was converted at load. Records of MXFP4 (mxfp4.h) are the operands of lanes
 * already; x is read in their order of columns. */
#include "kernels/experts.cuh"
#include "kernels/mxfp4.cuh"
#include "kernels/portable.cuh"

/* Warps [WARPS_M][WARPS_N] have MT tiles of 16 rows by NT tiles of 8 routes each. EXPERTS_BY_ROW
 * stands for e4m3 with any scales. */
template <int FORMAT, int MT, int NT, int WARPS_M, int WARPS_N, int STAGES> struct mixed_shape {
    static constexpr bool IS_PLAIN = FORMAT == EXPERTS_PLAIN, IS_MXFP4 = FORMAT == EXPERTS_MXFP4;
    static constexpr int THREADS = WARPS_M * WARPS_N * 32;
    static constexpr int ROWS = WARPS_M * MT * 16;
    static constexpr int COLS = WARPS_N * NT * 8;
    static constexpr int DEPTH = STAGES;
    static constexpr int HALVES = IS_MXFP4 ? 2 : 1; /* of 64 columns, in a step */
    static constexpr int STEP = HALVES * 64;
    static constexpr int W_BYTES = IS_MXFP4 ? ROWS / 16 * K_MXFP4_RECORD : ROWS * 128;
    static constexpr int STAGE = W_BYTES + HALVES * COLS * 128;
    static constexpr int SHARED = STAGES * STAGE;
    static constexpr int M = MT, N = NT, N_WARPS = WARPS_N;
    /* A thread copies one chunk of every so many rows. */
    static constexpr int ROWS_AT_ONCE = THREADS / 8;
    static constexpr int W_COPIES = ROWS / ROWS_AT_ONCE;
    static constexpr int X_COPIES = (COLS + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    static_assert(SHARED <= 99 * 1024, "shared memory of compute capability 8.6");
    static_assert(W_BYTES % 128 == 0, "rows of x are aligned");
};
template <int FORMAT> using mixed_few = mixed_shape<FORMAT, 1, 2, 4, 1, 6>;
template <int FORMAT>
using mixed_many = mixed_shape<FORMAT, 4, 4, 2, 4, FORMAT == EXPERTS_MXFP4 ? 2 : 3>;

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
    return i % 16 < 8 ? row : p.up + row;
}

static __device__ inline char *mixed_chunk(char *rows, int row, int chunk)
{
    return rows + row * 128 + (chunk ^ row % 8) * 16;
}

/* --- copies ----------------------------------------------------------------------------------- */

/* What a thread copies: rows of w, and addresses of its rows of x, at its chunk. */
template <class S> struct mixed_source {
    size_t w_row[S::W_COPIES]; /* among all experts */
    const k_bf16 *x[S::X_COPIES];
};

template <class S>
static __device__ inline void mixed_point(mixed_source<S> &from, const experts_product &p,
                                          const mixed_tile &t)
{
    int row = threadIdx.x / 8;

#pragma unroll
    for (int i = 0; i < S::W_COPIES; i++)
        from.w_row[i] = (size_t)t.expert * p.rows + mixed_row(p, t, row + i * S::ROWS_AT_ONCE);
#pragma unroll
    for (int i = 0; i < S::X_COPIES; i++) {
        int place = t.first + row + i * S::ROWS_AT_ONCE;

        from.x[i] = NULL;
        if (place < t.last)
            from.x[i] = p.x + (size_t)experts_row(p, place) * p.n_in + threadIdx.x % 8 * 8;
    }
}

/* Columns of x to a stage; zeros beyond the matrix and the routes. */
template <class S>
static __device__ inline void mixed_copy_x(char *stage, const mixed_source<S> &from,
                                           const experts_product &p, int step)
{
    int row = threadIdx.x / 8, chunk = threadIdx.x % 8;

#pragma unroll
    for (int i = 0; i < S::X_COPIES * S::HALVES; i++) {
        int col = row + i / S::HALVES * S::ROWS_AT_ONCE, at = step * S::STEP + i % S::HALVES * 64;
        const k_bf16 *x = from.x[i / S::HALVES];
        bool has = x != NULL && at + chunk * 8 < p.n_in;
        char *to = stage + S::W_BYTES + i % S::HALVES * S::COLS * 128;

        if (col < S::COLS)
            portable_copy16(mixed_chunk(to, col, chunk), has ? x + at : p.x, has);
    }
}

/* The same of w, in bfloat16; or records of the tile's strips. */
template <class S>
static __device__ inline void mixed_copy_w(char *stage, const mixed_source<S> &from,
                                           const experts_product &p, const mixed_tile &t, int step)
{
    int row = threadIdx.x / 8, chunk = threadIdx.x % 8, at = step * 64 + chunk * 8;

    if constexpr (S::IS_MXFP4) {
        int n_records = k_mxfp4_records(p.n_in), last = k_mxfp4_strips(p.rows) - 1;
        const char *w = (const char *)p.w + t.expert * k_mxfp4_bytes(p.rows, p.n_in);

        for (int i = threadIdx.x; i < S::W_BYTES / 16; i += S::THREADS) {
            int strip = min(t.row / 16 + i / (K_MXFP4_RECORD / 16), last);

            portable_copy16(stage + i * 16,
                            w + ((size_t)strip * n_records + step) * K_MXFP4_RECORD +
                                i % (K_MXFP4_RECORD / 16) * 16,
                            true);
        }
    } else {
#pragma unroll
        for (int i = 0; i < S::W_COPIES; i++) {
            const k_bf16 *w = (const k_bf16 *)p.w + from.w_row[i] * p.n_in + at;

            portable_copy16(mixed_chunk(stage, row + i * S::ROWS_AT_ONCE, chunk),
                            at < p.n_in ? w : (const k_bf16 *)p.w, at < p.n_in);
        }
    }
}

/* e4m3 on its way to a stage. */
template <class S> struct mixed_codes {
    uint2 codes[S::W_COPIES];
    float scale[S::W_COPIES];
};

template <class S>
static __device__ inline void mixed_load_codes(mixed_codes<S> &c, const mixed_source<S> &from,
                                               const experts_product &p, int step)
{
    int at = step * 64 + threadIdx.x % 8 * 8;

#pragma unroll
    for (int i = 0; i < S::W_COPIES; i++) {
        size_t row = from.w_row[i];

        c.codes[i] = make_uint2(0, 0);
        c.scale[i] = 0.0f;
        if (at >= p.n_in)
            continue;
        c.codes[i] = __ldg((const uint2 *)((const char *)p.w + row * p.n_in + at));
        c.scale[i] = p.scale_cols > 1 /* blocks: a multiple of 4 */
                         ? p.scales[row / EXPERTS_BLOCK * p.scale_cols + at / EXPERTS_BLOCK]
                         : p.scales[row];
    }
}

template <class S>
static __device__ inline void mixed_store_codes(char *stage, const mixed_codes<S> &c)
{
#pragma unroll
    for (int i = 0; i < S::W_COPIES; i++)
        *(uint4 *)mixed_chunk(stage, threadIdx.x / 8 + i * S::ROWS_AT_ONCE, threadIdx.x % 8) =
            scaled_eight(c.codes[i], c.scale[i]);
}

/* --- products --------------------------------------------------------------------------------- */

/* Multiply a stage by the warp's tiles. */
template <class S>
static __device__ inline void mixed_multiply(float (&acc)[S::M][S::N][4], char *stage)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row0 = warp / S::N_WARPS * S::M * 16, col0 = warp % S::N_WARPS * S::N * 8;

#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t a[S::M][4], b[S::N / 2][4];

#pragma unroll
        for (int i = 0; i < S::M; i++)
            portable_load_matrices(
                a[i], mixed_chunk(stage, row0 + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
        for (int i = 0; i < S::N / 2; i++)
            portable_load_matrices(b[i], mixed_chunk(stage + S::W_BYTES,
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

/* The same of records: of each group of 32 columns lane q has eight neighbours of x. */
template <class S>
static __device__ inline void mixed_multiply_records(float (&acc)[S::M][S::N][4], char *stage)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int col0 = warp % S::N_WARPS * S::N * 8;
    const char *records = stage + warp / S::N_WARPS * S::M * K_MXFP4_RECORD;

#pragma unroll
    for (int group = 0; group < 4; group++) {
        char *rows = stage + S::W_BYTES + group / 2 * S::COLS * 128;
        uint4 x[S::N];

#pragma unroll
        for (int n = 0; n < S::N; n++)
            x[n] = *(const uint4 *)mixed_chunk(rows, col0 + n * 8 + lane / 4,
                                               group % 2 * 4 + lane % 4);
#pragma unroll
        for (int m = 0; m < S::M; m++) {
            const char *record = records + m * K_MXFP4_RECORD;
            uint4 codes = mxfp4_codes(record, group / 2);
            uint2 powers = mxfp4_powers(record, group);

#pragma unroll
            for (int step = 0; step < 2; step++) {
                uint32_t a[4];

                mxfp4_operand(a, portable_word(codes, group % 2 * 2 + step), powers.x, powers.y);
#pragma unroll
                for (int n = 0; n < S::N; n++)
                    portable_multiply<false>(acc[m][n], a[0], a[1], a[2], a[3],
                                             portable_word(x[n], 2 * step),
                                             portable_word(x[n], 2 * step + 1));
            }
        }
    }
}

/* Request a step; e4m3 goes to registers, and to the stage after the products. */
template <class S>
static __device__ inline void mixed_request(char *stage, mixed_codes<S> &c,
                                            const mixed_source<S> &from, const experts_product &p,
                                            const mixed_tile &t, int step)
{
    mixed_copy_x<S>(stage, from, p, step);
    if constexpr (S::IS_PLAIN || S::IS_MXFP4)
        mixed_copy_w<S>(stage, from, p, t, step);
    else
        mixed_load_codes<S>(c, from, p, step);
}

/* The sums of the tile, over all columns. */
template <class S>
static __device__ inline void mixed_sum(float (&acc)[S::M][S::N][4], char *shared,
                                        const experts_product &p, const mixed_tile &t)
{
    const bool is_codes = !S::IS_PLAIN && !S::IS_MXFP4;
    int n_steps = (p.n_in + S::STEP - 1) / S::STEP;
    mixed_source<S> from;
    mixed_codes<S> codes;

    mixed_point<S>(from, p, t);
    __syncthreads(); /* the stages of the routes before have been read */
#pragma unroll
    for (int i = 0; i < S::DEPTH - 1; i++) {
        if (i < n_steps)
            mixed_request<S>(shared + i * S::STAGE, codes, from, p, t, i);
        if (is_codes && i < n_steps)
            mixed_store_codes<S>(shared + i * S::STAGE, codes);
        portable_end_group();
    }
#pragma unroll 1
    for (int step = 0, stage = 0, next = S::DEPTH - 1; step < n_steps; step++) {
        bool has_more = step + S::DEPTH - 1 < n_steps;

        portable_wait_groups<S::DEPTH - 2>();
        __syncthreads(); /* all have this step, and have read the one before */
        if (has_more)
            mixed_request<S>(shared + next * S::STAGE, codes, from, p, t, step + S::DEPTH - 1);
        portable_end_group();
        if constexpr (S::IS_MXFP4)
            mixed_multiply_records<S>(acc, shared + stage * S::STAGE);
        else
            mixed_multiply<S>(acc, shared + stage * S::STAGE);
        if (is_codes && has_more)
            mixed_store_codes<S>(shared + next * S::STAGE, codes);
        stage = stage + 1 == S::DEPTH ? 0 : stage + 1;
        next = next + 1 == S::DEPTH ? 0 : next + 1;
    }
}

/* --- results ---------------------------------------------------------------------------------- */

/* Store one output: its sum and, of the first product, that of the up. */
static __device__ inline void mixed_store(const experts_product &p, const mixed_tile &t, int row,
                                          int place, float sum, float up, float larger)
{
    float factor, y;

    if (row >= p.n_out || place >= t.last)
        return;
    factor = experts_factor(p, place) * larger;
    y = sum * factor + experts_own_bias(p, t.expert, row);
    if (p.is_gated)
        y = gated(y, up * factor + experts_own_bias(p, t.expert, p.up + row), p.activation);
    store_bf16(p.out + (size_t)place * p.n_out + row, y);
}

/* Lane (g, q) has rows g and g + 8 of a tile, and routes 2 q and 2 q + 1. */
template <class S>
static __device__ inline void mixed_end(const float (&acc)[S::M][S::N][4], const experts_product &p,
                                        const mixed_tile &t)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    int place = t.first + warp % S::N_WARPS * S::N * 8 + lane % 4 * 2;
    const float larger = S::IS_MXFP4 ? MXFP4_LARGER : 1.0f;

#pragma unroll
    for (int i = 0; i < S::M * S::N * 2; i++) {
        int m = i / 2 / S::N, n = i / 2 % S::N, route = place + n * 8 + i % 2;
        int row = (warp / S::N_WARPS * S::M + m) * 16;
        float low = acc[m][n][i % 2], high = acc[m][n][i % 2 + 2];

        if (route >= t.last)
            continue;
        if (p.is_gated) {
            mixed_store(p, t, t.row / 2 + row / 2 + g, route, low, high, larger);
        } else {
            mixed_store(p, t, t.row + row + g, route, low, 0.0f, larger);
            mixed_store(p, t, t.row + row + g + 8, route, high, 0.0f, larger);
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

template <int FORMAT>
static int mixed_choose(const struct experts_product *p, bool is_many, k_stream stream)
{
    int n_routes = p->n_tokens * p->n_used;

    if (is_many)
        return mixed_launch<mixed_many<FORMAT>, true>(p, n_routes / K_MIXING_TILE + p->n_experts,
                                                      stream);
    return mixed_launch<mixed_few<FORMAT>, false>(
        p, n_routes < p->n_experts ? n_routes : p->n_experts, stream);
}

int experts_tiles(const struct experts_product *p, enum experts_format format, bool is_many,
                  k_stream stream)
{
    switch (format) {
    case EXPERTS_PLAIN: return mixed_choose<EXPERTS_PLAIN>(p, is_many, stream);
    case EXPERTS_BY_ROW:
    case EXPERTS_IN_BLOCKS: return mixed_choose<EXPERTS_BY_ROW>(p, is_many, stream);
    case EXPERTS_MXFP4: return mixed_choose<EXPERTS_MXFP4>(p, is_many, stream);
    }
    return -1;
}
