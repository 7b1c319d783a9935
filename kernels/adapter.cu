/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of LoRA adapters (adapter.h) on tensor cores (mma.m16n8k16), on every GPU.
 *
 *   adapter_in    t = a x, times the norm's factor. An item: 16 rows of a, a segment's rows of x,
 *                 and a split of the elements, which a block's warps share; t has a sum per split
 *   adapter_out   the product's y += scale * transpose(b) t, then the gate or the residual. An item
 *                 is a segment and 64 columns of one tensor; a warp has some items in a row
 *
 * A segment's rows, at most eight, are the columns n of mma; ranks, then columns of y, are its rows
 * m. Operands come from memory straight into fragments, 16 bytes at a time: a sum does not depend
 * on the numbers of its terms, so the term that a fragment calls k may be another one, if both
 * operands agree. With lane = 4 g + c:
 *
 *   in    terms 16 c .. 16 c + 15 of each 64 are the lane's: of rows g and g + 8 of a, of row g of
 *         x
 *   out   terms 4 c .. 4 c + 3 of each 16, of rows 8 g .. 8 g + 7 of b, which are two rows m of
 *         each of four fragments. Its results: 8 columns of rows 2 c and 2 c + 1
 *
 * x as float16 is the sum of two numbers in bfloat16, and t of three, so they lose nothing.
 *
 * The number of segments is read on the device, so that a recorded step serves any of them: blocks
 * take items in turn until there are no more. Segments and adapters are older than the previous
 * operation, which is waited for where its results are loaded. adapter_in may run beside the
 * product of the same x (x_is_there): a multiprocessor has registers and shared memory for one of
 * its blocks and for one of the product's. Then it waits for the product at its end, in one block:
 * the next operation waits for all of them, and may not end its own wait before. An output's terms
 * have the same order for all numbers of rows, and each row's depend on that row only.
 *
 * What was measured: docs/kernels/experiments/adapters.md. */
#include <algorithm>

#include "kernels/activation.cuh"
#include "kernels/adapter.cuh"
#include "kernels/attn_chunk.cuh"
#include "kernels/common.cuh"

#define ROWS        K_ADAPT_ROWS
#define GROUP       16 /* ranks of an item, rows m */
#define SPAN        64 /* terms that a warp takes at a time */
#define IN_THREADS  256
#define IN_WARPS    (IN_THREADS / 32)
#define IN_BLOCKS   4    /* of a multiprocessor, at most */
#define SPLIT_FROM  2048 /* elements of rows of a that are split between blocks */
#define LINE_BYTES  128
#define IN_JOBS     8          /* items that a block looks up at a time */
#define FETCH_BYTES (20 << 20) /* of b that the L2 cache gets early */
#define TILE        64         /* columns of an item of adapter_out */
#define OUT_THREADS 128
#define OUT_WARPS   (OUT_THREADS / 32)
#define OUT_BLOCKS  4

static_assert(ROWS == 8 && ROWS <= IN_WARPS && GROUP * ROWS <= IN_THREADS, "a product of mma");

/* A segment: its rows and their adapter for a part. */
struct segment {
    int n, start; /* in the order of rows */
    int slot;
};

static __device__ inline segment adapter_segment(const k_adapting &a, int i)
{
    int start = a.rows.starts[i];

    return {a.rows.starts[i + 1] - start, start, a.rows.slots[i]};
}

/* Depends on the width alone, so that a row's bits do. */
static __host__ __device__ inline int adapter_splits(int n_in)
{
    return n_in < SPLIT_FROM ? 1 : K_ADAPT_SPLITS;
}

static __device__ inline float *adapter_inner(const k_adapting &a, int split, int part, int row)
{
    return a.t + (((size_t)split * a.of.n_parts + part) * a.n + row) * K_ADAPT_STRIDE(a.rank_max);
}

/* --- in ------------------------------------------------------------------------------------- */

/* Which word of a row of a belongs to word i of 16 elements of x: K_HALF_AT() has their pairs in
 * the order 0, 2, 4, 6, 1, 3, 5, 7. */
template <bool HALF> static __device__ inline int adapter_word(int i)
{
    return !HALF ? i : i < 4 ? 2 * i : 2 * i - 7;
}

/* 16 elements of a row of x. Not through the L1 cache: if x is there already, nothing is waited
 * for, and lines of the rows that were there before may be left. */
static __device__ inline void adapter_load_x(uint32_t words[8], const k_bf16 *row, int at, int n)
{
    uint4 zero = make_uint4(0, 0, 0, 0), first, second;

    if (n % 16 != 0) {
        adapter_load_run(words, row, at, n);
        return;
    }
    first = at < n ? __ldcg((const uint4 *)(row + at)) : zero;
    second = at < n ? __ldcg((const uint4 *)(row + at) + 1) : zero;
    words[0] = first.x, words[1] = first.y, words[2] = first.z, words[3] = first.w;
    words[4] = second.x, words[5] = second.y, words[6] = second.z, words[7] = second.w;
}

/* An item: 16 ranks of a, at `of`, for some rows and a split of the elements; n_of: those that
 * exist, none if there is nothing to do. */
struct adapter_job {
    const k_bf16 *of;
    int n_of, k, part, split, n, start;
};

/* A warp's part of t: fragment of 16 ranks x 8 rows. Ranks and rows that do not exist repeat the
 * last one. */
template <bool HALF>
static __device__ inline void adapter_in_warp(float (&sum)[4], const k_adapting &a,
                                              const adapter_job &job, int worker, int n_workers)
{
    int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    const k_bf16 *low = job.of + (size_t)min(g, job.n_of - 1) * a.n_in;
    const k_bf16 *high = job.of + (size_t)min(g + 8, job.n_of - 1) * a.n_in;
    const k_bf16 *x =
        (const k_bf16 *)a.p.x + (size_t)a.rows.order[job.start + min(g, job.n - 1)] * a.n_in;

#pragma unroll 2
    for (int at = worker * SPAN + c * 16; at - c * 16 < a.n_in; at += n_workers * SPAN) {
        uint32_t lower[8], upper[8], of_x[8];

        adapter_load_run(lower, low, at, a.n_in);
        adapter_load_run(upper, high, at, a.n_in);
        adapter_load_x(of_x, x, at, a.n_in);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            int j = adapter_word<HALF>(i), k = adapter_word<HALF>(i + 1);
            uint32_t left[4] = {lower[j], upper[j], lower[k], upper[k]};

            if (HALF) {
                float2 first = __half22float2(*(const __half2 *)&of_x[i]);
                float2 second = __half22float2(*(const __half2 *)&of_x[i + 1]);
                uint32_t low_terms[2], high_terms[2];

                adapter_divide<2>(low_terms, first.x, first.y);
                adapter_divide<2>(high_terms, second.x, second.y);
                chunk_multiply(sum, left, low_terms[0], high_terms[0]);
                chunk_multiply(sum, left, low_terms[1], high_terms[1]);
            } else {
                chunk_multiply(sum, left, of_x[i], of_x[i + 1]);
            }
        }
    }
}

/* Bring the warp's part of a to the L2 cache: a line for lanes 4 g and 4 g + 1. */
static __device__ inline void adapter_fetch_rows(const k_adapting &a, const adapter_job &job)
{
    int worker = job.split * IN_WARPS + threadIdx.x / 32;
    int n_workers = adapter_splits(a.n_in) * IN_WARPS;
    int row = threadIdx.x % 32 / 4 + threadIdx.x % 2 * 8;

    if (threadIdx.x % 4 > 1 || row >= job.n_of)
        return;
    for (int at = worker * SPAN; at < a.n_in; at += n_workers * SPAN)
        adapter_fetch_line(job.of + (size_t)row * a.n_in + at);
}

/* The factor of the norm of one row, by one warp. */
static __device__ inline float adapter_inverse(const k_adapting &a, int row)
{
    const float *from = a.p.sums_in + (size_t)row * a.p.n_sums;
    float sum = 0.0f;

    for (int i = threadIdx.x % 32; i < a.p.n_sums; i += 32)
        sum += __ldcg(from + i);
    for (int by = 16; by > 0; by /= 2)
        sum += __shfl_xor_sync(~0U, sum, by);
    return rsqrtf(sum / a.n_in + a.p.eps);
}

struct adapter_shared {
    float sums[IN_WARPS][GROUP][ROWS];
    float inverse[ROWS];
    adapter_job jobs[IN_JOBS];
};

static __device__ inline void adapter_in_item(const k_adapting &a, const adapter_job &job,
                                              adapter_shared &sh)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int worker = job.split * IN_WARPS + warp, n_workers = adapter_splits(a.n_in) * IN_WARPS;
    float sum[4] = {};

    if (!a.x_is_there)
        wait_for_previous();
    if (warp < job.n) {
        float factor =
            a.p.sums_in == NULL ? 1.0f : adapter_inverse(a, a.rows.order[job.start + warp]);

        if (lane == 0)
            sh.inverse[warp] = factor;
    }
    if (a.x_is_half)
        adapter_in_warp<true>(sum, a, job, worker, n_workers);
    else
        adapter_in_warp<false>(sum, a, job, worker, n_workers);
    for (int i = 0; i < 4; i++)
        sh.sums[warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = sum[i];
    __syncthreads();
    if (threadIdx.x < GROUP * ROWS) {
        int g = threadIdx.x % GROUP, row = threadIdx.x / GROUP;
        float all = 0.0f;

        for (int i = 0; i < IN_WARPS; i++)
            all += sh.sums[i][g][row];
        if (row < job.n)
            adapter_inner(a, job.split, job.part, a.rows.order[job.start + row])[job.k + g] =
                g < job.n_of ? all * sh.inverse[row] : 0.0f;
    }
    __syncthreads();
}

static __device__ inline adapter_job adapter_job_of(const k_adapting &a, int item, int n_items)
{
    int n_groups = (a.rank_max + GROUP - 1) / GROUP, splits = adapter_splits(a.n_in);
    adapter_job job = {};
    segment s;

    if (item >= n_items)
        return job;
    job.split = item % splits;
    job.k = item / splits % n_groups * GROUP;
    job.part = item / splits / n_groups % a.of.n_parts;
    s = adapter_segment(a, item / splits / n_groups / a.of.n_parts);
    job.n = s.n;
    job.start = s.start;
    if (s.slot >= 0) {
        const k_adapter &one = a.of.parts[job.part].slots[s.slot];

        job.of = (const k_bf16 *)one.a + (size_t)job.k * a.n_in;
        job.n_of = min(GROUP, one.rank - job.k);
    }
    return job;
}

/* Bring b of a step's adapters to the L2 cache, or the first bytes of each matrix: the product
 * keeps memory busy anyway, and the next launch need not. A warp has a share of one matrix. */
static __device__ inline void adapter_fetch_b(const k_adapting &a)
{
    int first = a.rows.count[1], n = (a.rows.count[0] - first) * a.of.n_parts;
    int warp = blockIdx.x * IN_WARPS + threadIdx.x / 32, n_warps = gridDim.x * IN_WARPS;
    int shares = n > 0 ? n_warps / n : 0, i = n > 0 ? warp % n : 0, part = i % a.of.n_parts, slot;
    const k_adapted *of = &a.of.parts[part];
    k_adapter one;
    int64_t bytes, most = FETCH_BYTES / (n > 0 ? n : 1);

    if (shares == 0 || warp >= n * shares)
        return;
    i = first + i / a.of.n_parts;
    slot = a.rows.slots[i];
    if (i > first && a.rows.slots[i - 1] == slot)
        return;
    one = of->slots[slot];
    bytes = (int64_t)K_ADAPT_STRIDE(one.rank) * of->n_out * 2;
    bytes = bytes < most ? bytes : most;
    for (int64_t at = (warp / n * 32 + threadIdx.x % 32) * LINE_BYTES; at < bytes;
         at += shares * 32 * LINE_BYTES)
        adapter_fetch_line((const char *)one.b + at);
}

/* A block's items are looked up some at a time, because each is a chain of loads. */
static __global__ void __launch_bounds__(IN_THREADS, IN_BLOCKS)
    adapter_in_kernel(const k_adapting a)
{
    __shared__ adapter_shared shared;
    int n_groups = (a.rank_max + GROUP - 1) / GROUP, splits = adapter_splits(a.n_in);
    int n_items = a.rows.count[0] * a.of.n_parts * n_groups * splits;

    let_next_begin();
    for (int item = blockIdx.x; item < n_items; item += IN_JOBS * gridDim.x) {
        if (threadIdx.x < IN_JOBS)
            shared.jobs[threadIdx.x] = adapter_job_of(a, item + threadIdx.x * gridDim.x, n_items);
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < IN_JOBS; i++)
            adapter_fetch_rows(a, shared.jobs[i]);
#pragma unroll 1
        for (int i = 0; i < IN_JOBS; i++) {
            if (shared.jobs[i].n_of > 0)
                adapter_in_item(a, shared.jobs[i], shared);
        }
        __syncthreads();
    }
    if (a.x_is_there)
        adapter_fetch_b(a);
    if (blockIdx.x == 0) /* the next launch waits for all blocks of this one */
        wait_for_previous();
}

/* --- out ------------------------------------------------------------------------------------ */

/* Four ranks of a row's t: the sums of all splits. */
static __device__ inline float4 adapter_ranks(const k_adapting &a, int part, int row, int k)
{
    float4 t = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

#pragma unroll 4
    for (int split = 0; split < adapter_splits(a.n_in); split++) {
        float4 x = __ldcg((const float4 *)(adapter_inner(a, split, part, row) + k));

        t.x += x.x, t.y += x.y, t.z += x.z, t.w += x.w;
    }
    return t;
}

/* What a lane has of a tile of b: rows of 16 ranks from k on, of its eight columns. */
struct adapter_terms {
    uint2 of[8];
};

static __device__ inline void adapter_load_terms(adapter_terms &terms, const k_bf16 *b, int stride,
                                                 int k)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        terms.of[i] = *(const uint2 *)(b + i * stride + k + threadIdx.x % 4 * 4);
}

/* And of t: four ranks of a row, as the sum of three numbers. */
struct adapter_inner_terms {
    uint32_t low[3], high[3];
};

static __device__ inline void adapter_load_inner(adapter_inner_terms &to, const k_adapting &a,
                                                 int part, int row, int k)
{
    float4 t = adapter_ranks(a, part, row, k + threadIdx.x % 4 * 4);

    adapter_divide<3>(to.low, t.x, t.y);
    adapter_divide<3>(to.high, t.z, t.w);
}

static __device__ inline void adapter_multiply(float (&sum)[4][4], const adapter_terms &terms,
                                               const adapter_inner_terms &t)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint2 &upper = terms.of[2 * j], &lower = terms.of[2 * j + 1];
        uint32_t left[4] = {upper.x, lower.x, upper.y, lower.y};

        for (int i = 0; i < 3; i++)
            chunk_multiply(sum[j], left, t.low[i], t.high[i]);
    }
}

/* A part of a tile, of which a lane has eight columns: where they are in b, the first 16 ranks of
 * b and t. These of t are those of the segment before, if it is the same. */
struct adapter_side {
    const k_bf16 *b; /* NULL: the rows have no adapter here */
    int part, rank;
    float scale;
    adapter_terms terms;
    adapter_inner_terms t;
};

/* `column` of y is the lane's first one. Does not wait. */
static __device__ inline void adapter_begin_side(adapter_side &side, const k_adapting &a, int slot,
                                                 int part, int column)
{
    k_adapter one = {};

    if (slot >= 0)
        one = a.of.parts[part].slots[slot];
    side.part = part;
    side.rank = one.rank;
    side.scale = one.scale;
    side.b = (const k_bf16 *)one.b +
             (size_t)(column - a.of.parts[part].first) * K_ADAPT_STRIDE(one.rank);
    if (one.rank > 0)
        adapter_load_terms(side.terms, side.b, K_ADAPT_STRIDE(one.rank), 0);
}

/* The lane's columns `by` further on; those of the next tile, if there is one, come to the L2
 * cache. */
static __device__ inline void adapter_go_on(adapter_side &side, int by, bool has_next)
{
    int stride = K_ADAPT_STRIDE(side.rank);

    side.b += (int64_t)by * stride;
    if (side.rank > 0) {
        adapter_load_terms(side.terms, side.b, stride, 0);
        if (has_next)
            adapter_fetch_line(side.b + (TILE + threadIdx.x % 4 * 2) * stride);
    }
}

/* Results of a lane: eight columns of rows 2 c and 2 c + 1. */
struct adapter_eight {
    float v[2][8];
};

/* What the adapter adds to the lane's columns. Of more than 16 ranks, the side has the last ones
 * afterwards. */
static __device__ inline adapter_eight adapter_sum_side(adapter_side &side, const k_adapting &a,
                                                        int row)
{
    float sum[4][4] = {};
    adapter_eight to;

#pragma unroll 1
    for (int k = 0; k < side.rank; k += GROUP) {
        if (k > 0) {
            adapter_load_terms(side.terms, side.b, K_ADAPT_STRIDE(side.rank), k);
            adapter_load_inner(side.t, a, side.part, row, k);
        }
        adapter_multiply(sum, side.terms, side.t);
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        to.v[i % 2][i / 4 * 2 + i % 4 / 2] = sum[i / 4][i % 4] * side.scale;
    return to;
}

/* The numbers that a lane's columns of a row are added to: the product, or halves of it, and the
 * residual. */
struct adapter_before {
    uint4 plain, up;
    __align__(16) float residual[8];
};

template <int KIND>
static __device__ inline void adapter_load_before(adapter_before &to, const k_adapting &a, int row,
                                                  int column)
{
    size_t at = (size_t)row * a.n_out + column;
    const float *floats = KIND == K_PRODUCT_FLOAT ? (const float *)a.p.y : a.p.residual;
    const k_bf16 *plain = KIND == K_PRODUCT_PLAIN ? (const k_bf16 *)a.p.y : a.plain;

    if (KIND != K_PRODUCT_FLOAT)
        to.plain = __ldcg((const uint4 *)(plain + at));
    if (KIND == K_PRODUCT_GATED)
        to.up = __ldcg((const uint4 *)(plain + at + a.n_out / 2));
    if (KIND == K_PRODUCT_FLOAT || KIND == K_PRODUCT_RESIDUAL) {
        *(float4 *)to.residual = __ldcg((const float4 *)(floats + at));
        *(float4 *)(to.residual + 4) = __ldcg((const float4 *)(floats + at) + 1);
    }
}

static __device__ inline void adapter_widen_eight(float v[8], const uint4 &x)
{
    v[0] = low_half(x.x), v[1] = high_half(x.x), v[2] = low_half(x.y), v[3] = high_half(x.y);
    v[4] = low_half(x.z), v[5] = high_half(x.z), v[6] = low_half(x.w), v[7] = high_half(x.w);
}

/* Store eight elements of the next product's input. */
static __device__ inline void adapter_store_eight(void *to, size_t at, const float v[8],
                                                  bool is_half)
{
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        store_x_two(to, at + i, v[i], v[i + 1], is_half);
}

/* All lanes come here; is_there: the row and the columns exist. The two lanes that have 16 columns
 * add their squares. */
static __device__ inline void adapter_out_residual(const k_adapting &a, int row, int column,
                                                   const float v[8], const adapter_before &before,
                                                   const uint4 &weights, bool is_there)
{
    size_t at = (size_t)row * a.n_out + column;
    float square = 0.0f;

    if (is_there) {
        float plain[8], norm[8], sum[8], *residual = a.p.residual + at;

        adapter_widen_eight(plain, before.plain);
        adapter_widen_eight(norm, weights);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] = before.residual[i] + (plain[i] + v[i]);
            square = __fmaf_rn(sum[i], sum[i], square);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            residual[i] = sum[i];
            sum[i] *= norm[i];
        }
        adapter_store_eight(a.p.normed, at, sum, a.p.y_is_half);
    }
    square += __shfl_xor_sync(~0U, square, 4);
    if (is_there && column % 16 == 0)
        a.p.sums_out[(size_t)row * (a.n_out / 16) + column / 16] = square;
}

static __device__ inline void adapter_out_gated(const k_adapting &a, int row, int column,
                                                const float gate[8], const float up[8],
                                                const adapter_before &before, bool is_there)
{
    float v[8], both[8];

    adapter_widen_eight(v, before.plain);
    adapter_widen_eight(both, before.up);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = activation(v[i] + gate[i], K_SILU) * (both[i] + up[i]);
    if (is_there)
        adapter_store_eight(a.p.y, (size_t)row * (a.n_out / 2) + column, v, a.p.y_is_half);
}

static __device__ inline void adapter_out_plain(const k_adapting &a, int row, int column,
                                                const float v[8], const adapter_before &before,
                                                bool is_there)
{
    k_bf16 *y = (k_bf16 *)a.p.y + (size_t)row * a.n_out + column;
    float sum[8];

    adapter_widen_eight(sum, before.plain);
    if (!is_there)
        return;
    *(uint4 *)y = make_uint4(
        pack_bf16(sum[0] + v[0], sum[1] + v[1]), pack_bf16(sum[2] + v[2], sum[3] + v[3]),
        pack_bf16(sum[4] + v[4], sum[5] + v[5]), pack_bf16(sum[6] + v[6], sum[7] + v[7]));
}

/* An item of adapter_out and a lane's eight columns of it. */
struct adapter_tile {
    segment s;
    int i, part;     /* of the segment */
    int left;        /* columns from the tile's first one to the part's end */
    int first;       /* column of y */
    int column;      /* the lane's first, of y */
    bool has_column; /* it exists; else it is that of another lane */
};

static __device__ inline void adapter_choose_columns(adapter_tile &t)
{
    int own = threadIdx.x % 32 / 4 * 8;

    t.has_column = own < t.left;
    t.column = t.first + (t.has_column ? own : 0);
}

static __device__ inline adapter_tile adapter_tile_of(const k_adapting &a, int item, int n_tiles,
                                                      bool is_gated)
{
    int tile = item % n_tiles, n = a.of.parts[0].n_out;
    adapter_tile t;

    t.i = item / n_tiles;
    t.s = adapter_segment(a, t.i);
    for (t.part = 0; tile >= (n + TILE - 1) / TILE && t.part + 1 < a.of.n_parts;) {
        tile -= (n + TILE - 1) / TILE;
        n = a.of.parts[++t.part].n_out;
    }
    if (is_gated)
        n = min(n, a.n_out / 2);
    t.left = n - tile * TILE;
    t.first = a.of.parts[t.part].first + tile * TILE;
    adapter_choose_columns(t);
    return t;
}

/* The gate's side, or the only one, and up's. */
template <int KIND>
static __device__ inline void adapter_begin_tile(adapter_side (&sides)[2], const k_adapting &a,
                                                 const adapter_tile &t)
{
    adapter_begin_side(sides[0], a, t.s.slot, t.part, t.column);
    if (KIND == K_PRODUCT_GATED)
        adapter_begin_side(sides[1], a, t.s.slot, a.of.n_parts - 1, t.column + a.n_out / 2);
}

/* The next item: of the same part it needs no look at the tables. */
template <int KIND>
static __device__ inline void adapter_next_tile(adapter_tile &t, adapter_side (&sides)[2],
                                                const k_adapting &a, int item, int n_tiles)
{
    int before = t.column;

    if (t.left <= TILE) {
        t = adapter_tile_of(a, item, n_tiles, KIND == K_PRODUCT_GATED);
        adapter_begin_tile<KIND>(sides, a, t);
        return;
    }
    t.left -= TILE;
    t.first += TILE;
    adapter_choose_columns(t);
    adapter_go_on(sides[0], t.column - before, t.left > TILE);
    if (KIND == K_PRODUCT_GATED)
        adapter_go_on(sides[1], t.column - before, t.left > TILE);
}

/* What t says of the segment's rows, if the sides have not those of the item before. */
template <int KIND>
static __device__ inline void adapter_hold_inner(adapter_side (&sides)[2], const k_adapting &a,
                                                 const adapter_tile &t, int row, int &held)
{
    if (held == t.i * a.of.n_parts + t.part && a.rank_max <= GROUP)
        return;
    held = t.i * a.of.n_parts + t.part;
    if (sides[0].rank > 0)
        adapter_load_inner(sides[0].t, a, t.part, row, 0);
    asm volatile("" ::: "memory"); /* registers do not suffice for both at a time */
    if (KIND == K_PRODUCT_GATED && sides[1].rank > 0)
        adapter_load_inner(sides[1].t, a, a.of.n_parts - 1, row, 0);
}

/* One item; `real`: its results are stored. */
template <int KIND>
static __device__ inline void adapter_out_item(const k_adapting &a, const adapter_tile &t,
                                               adapter_side (&sides)[2], int &held, bool real)
{
    int g = threadIdx.x % 32 / 4, j = threadIdx.x % 4 * 2;
    const int32_t *rows = a.rows.order + t.s.start;
    int row_of[2] = {rows[min(j, t.s.n - 1)], rows[min(j + 1, t.s.n - 1)]};
    int t_row = rows[min(g, t.s.n - 1)];
    adapter_before before[2];
    adapter_eight sums, up;
    uint4 norm = make_uint4(0, 0, 0, 0);

    if (KIND == K_PRODUCT_RESIDUAL)
        norm = *(const uint4 *)((const k_bf16 *)a.p.norm + t.column);
#pragma unroll
    for (int i = 0; i < 2; i++)
        adapter_load_before<KIND>(before[i], a, row_of[i], t.column);
    adapter_hold_inner<KIND>(sides, a, t, t_row, held);
    sums = adapter_sum_side(sides[0], a, t_row);
    if (KIND == K_PRODUCT_GATED)
        up = adapter_sum_side(sides[1], a, t_row);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool is_there = real && j + i < t.s.n && t.has_column;

        if (KIND == K_PRODUCT_RESIDUAL)
            adapter_out_residual(a, row_of[i], t.column, sums.v[i], before[i], norm, is_there);
        else if (KIND == K_PRODUCT_GATED)
            adapter_out_gated(a, row_of[i], t.column, sums.v[i], up.v[i], before[i], is_there);
        else if (KIND == K_PRODUCT_PLAIN)
            adapter_out_plain(a, row_of[i], t.column, sums.v[i], before[i], is_there);
        else if (is_there)
            for (int k = 0; k < 8; k++)
                ((float *)a.p.y)[(size_t)row_of[i] * a.n_out + t.column + k] =
                    before[i].residual[k] + sums.v[i][k];
    }
}

/* n_tiles: of the columns that items have, which are the gate's if there is one. A warp's first
 * item is computed twice, the first time while the previous launch runs, from numbers that are not
 * there yet, and stored nowhere: instructions that run for the first time come from the L2 cache,
 * which took half of the time behind the wait. */
template <int KIND>
static __global__ void __launch_bounds__(OUT_THREADS, OUT_BLOCKS)
    adapter_out_kernel(const k_adapting a, int n_tiles)
{
    constexpr bool IS_WHOLE = KIND == K_PRODUCT_GATED || KIND == K_PRODUCT_RESIDUAL;
    int first = IS_WHOLE ? 0 : a.rows.count[1] * n_tiles;
    int n_items = a.rows.count[0] * n_tiles - first;
    int warp = blockIdx.x * OUT_WARPS + threadIdx.x / 32;
    int n_warps = min((int)gridDim.x * OUT_WARPS, n_items);

    let_next_begin();
    if (warp < n_warps) {
        int item = first + (int)((int64_t)warp * n_items / n_warps), held = -1;
        int end = first + (int)((int64_t)(warp + 1) * n_items / n_warps);
        adapter_tile t = adapter_tile_of(a, item, n_tiles, KIND == K_PRODUCT_GATED);
        adapter_side sides[2];

        adapter_begin_tile<KIND>(sides, a, t);
#pragma unroll 1
        for (bool real = false; item < end; real = true) {
            adapter_out_item<KIND>(a, t, sides, held, real);
            if (!real) {
                held = -1;
                if (a.rank_max > GROUP)
                    adapter_begin_tile<KIND>(sides, a, t);
                wait_for_previous();
            } else if (++item < end) {
                adapter_next_tile<KIND>(t, sides, a, item, n_tiles);
            }
        }
    }
    if (blockIdx.x == 0) /* the next launch waits for all blocks of this one */
        wait_for_previous();
}

/* Columns in runs of any length, for the kinds that only add: a thread per column. */
template <int KIND>
static __global__ void __launch_bounds__(OUT_THREADS) adapter_out_odd_kernel(const k_adapting a)
{
    int n_chunks = (a.n_out + OUT_THREADS - 1) / OUT_THREADS;

    let_next_begin();
    wait_for_previous();
    for (int item = blockIdx.x; item < a.rows.count[0] * n_chunks; item += gridDim.x) {
        segment s = adapter_segment(a, item / n_chunks);
        int column = item % n_chunks * OUT_THREADS + threadIdx.x, part = 0;
        k_adapter one;

        if (s.slot < 0 || column >= a.n_out)
            continue;
        while (part + 1 < a.of.n_parts && column >= a.of.parts[part + 1].first)
            part++;
        one = a.of.parts[part].slots[s.slot];
        for (int j = 0; j < s.n; j++) {
            size_t at = (size_t)a.rows.order[s.start + j] * a.n_out + column;
            const k_bf16 *b = (const k_bf16 *)one.b +
                              (size_t)(column - a.of.parts[part].first) * K_ADAPT_STRIDE(one.rank);
            float sum = 0.0f;

            for (int k = 0; k < one.rank; k++) {
                float t = 0.0f;

                for (int split = 0; split < adapter_splits(a.n_in); split++)
                    t += adapter_inner(a, split, part, a.rows.order[s.start + j])[k];
                sum = __fmaf_rn(t, load_bf16(b + k), sum);
            }
            sum *= one.scale;
            if (KIND == K_PRODUCT_FLOAT)
                ((float *)a.p.y)[at] += sum;
            else
                store_bf16((k_bf16 *)a.p.y + at, load_bf16((k_bf16 *)a.p.y + at) + sum);
        }
    }
}

/* --- launches --------------------------------------------------------------------------------- */

/* There are at most as many segments as rows. */
int k_adapt_in(const struct k_adapting *a, k_stream stream)
{
    int n_groups = (a->rank_max + GROUP - 1) / GROUP;
    int n = a->n * a->of.n_parts * n_groups * adapter_splits(a->n_in);

    if (a->n == 0)
        return 0;
    return K_LAUNCH_EARLY(adapter_in_kernel,
                          std::min(n, (a->x_is_there ? 1 : IN_BLOCKS) * a->n_sms), IN_THREADS,
                          stream, *a);
}

template <int KIND> static int adapter_launch_out(const struct k_adapting *a, k_stream stream)
{
    int n_tiles = 0, n;

    for (int i = 0; i < a->of.n_parts; i++)
        n_tiles += (a->of.parts[i].n_out + TILE - 1) / TILE;
    if (KIND == K_PRODUCT_GATED)
        n_tiles = (a->n_out / 2 + TILE - 1) / TILE;
    n = (a->n * n_tiles + OUT_WARPS - 1) / OUT_WARPS;
    return K_LAUNCH_EARLY(adapter_out_kernel<KIND>, std::min(n, OUT_BLOCKS * a->n_sms), OUT_THREADS,
                          stream, *a, n_tiles);
}

template <int KIND> static int adapter_launch_odd(const struct k_adapting *a, k_stream stream)
{
    int n = a->n * ((a->n_out + OUT_THREADS - 1) / OUT_THREADS);

    return K_LAUNCH_EARLY(adapter_out_odd_kernel<KIND>, std::min(n, OUT_BLOCKS * a->n_sms),
                          OUT_THREADS, stream, *a);
}

/* The gate's columns are a part of their own, or there is one part. */
static bool adapter_has_halves(const struct k_adapting *a)
{
    const struct k_adapters *of = &a->of;

    return of->n_parts == 1 || (of->n_parts == 2 && of->parts[1].first == a->n_out / 2);
}

int k_adapt_out(const struct k_adapting *a, k_stream stream)
{
    bool fuses = k_adapt_fuses(&a->of, a->n_out);

    if (a->n == 0)
        return 0;
    switch (a->p.kind) {
    case K_PRODUCT_PLAIN:
        return fuses ? adapter_launch_out<K_PRODUCT_PLAIN>(a, stream)
                     : adapter_launch_odd<K_PRODUCT_PLAIN>(a, stream);
    case K_PRODUCT_FLOAT:
        return fuses ? adapter_launch_out<K_PRODUCT_FLOAT>(a, stream)
                     : adapter_launch_odd<K_PRODUCT_FLOAT>(a, stream);
    case K_PRODUCT_GATED:
        return fuses && adapter_has_halves(a) ? adapter_launch_out<K_PRODUCT_GATED>(a, stream) : -1;
    case K_PRODUCT_RESIDUAL:
        return fuses && a->of.n_parts == 1 && a->n_out % 16 == 0
                   ? adapter_launch_out<K_PRODUCT_RESIDUAL>(a, stream)
                   : -1;
    }
    return -1;
}
