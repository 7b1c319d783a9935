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
 * operation, which is waited for where its results are loaded, and by all: the next operation may
 * not end its own wait before. An output's terms have the same order for all numbers of rows, and
 * each row's depend on that row only.
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
#define TILE        64 /* columns of an item of adapter_out */
#define OUT_THREADS 128
#define OUT_WARPS   (OUT_THREADS / 32)
#define OUT_BLOCKS  8
#define FEW_ROWS    2 /* of a step: then adapters are fetched to the L2 cache early */

static_assert(ROWS == 8 && ROWS <= IN_WARPS && GROUP * ROWS <= IN_THREADS, "a product of mma");

/* A segment: its rows and their adapter for a part. */
struct segment {
    int n;
    const int32_t *rows;
    int slot;
};

static __device__ inline segment adapter_segment(const k_adapting &a, int i)
{
    int start = a.rows.starts[i];

    return {a.rows.starts[i + 1] - start, a.rows.order + start, a.rows.slots[i]};
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

/* A warp's part of t: fragment of 16 ranks x 8 rows. Ranks and rows that do not exist repeat the
 * last one. */
template <bool HALF>
static __device__ inline void adapter_in_warp(float (&sum)[4], const k_adapting &a,
                                              const k_bf16 *of, int n_of, const segment &s,
                                              int worker, int n_workers)
{
    int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    const k_bf16 *low = of + (size_t)min(g, n_of - 1) * a.n_in;
    const k_bf16 *high = of + (size_t)min(g + 8, n_of - 1) * a.n_in;
    const k_bf16 *x = (const k_bf16 *)a.p.x + (size_t)s.rows[min(g, s.n - 1)] * a.n_in;

#pragma unroll 2
    for (int at = worker * SPAN + c * 16; at - c * 16 < a.n_in; at += n_workers * SPAN) {
        uint32_t lower[8], upper[8], of_x[8];

        adapter_load_run(lower, low, at, a.n_in);
        adapter_load_run(upper, high, at, a.n_in);
        adapter_load_run(of_x, x, at, a.n_in);
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
static __device__ inline void adapter_fetch_rows(const k_adapting &a, const k_bf16 *of, int n_of,
                                                 int worker, int n_workers)
{
    int row = threadIdx.x % 32 / 4 + threadIdx.x % 2 * 8;

    if (threadIdx.x % 4 > 1 || row >= n_of)
        return;
    for (int at = worker * SPAN; at < a.n_in; at += n_workers * SPAN)
        adapter_fetch_line(of + (size_t)row * a.n_in + at);
}

/* The factor of the norm of one row, by one warp. */
static __device__ inline float adapter_inverse(const k_adapting &a, int row)
{
    const float *from = a.p.sums_in + (size_t)row * a.p.n_sums;
    float sum = 0.0f;

    for (int i = threadIdx.x % 32; i < a.p.n_sums; i += 32)
        sum += from[i];
    for (int by = 16; by > 0; by /= 2)
        sum += __shfl_xor_sync(~0U, sum, by);
    return rsqrtf(sum / a.n_in + a.p.eps);
}

struct adapter_shared {
    float sums[IN_WARPS][GROUP][ROWS];
    float inverse[ROWS];
};

static __device__ inline void adapter_in_item(const k_adapting &a, int split, int part,
                                              const k_adapter &one, int k, const segment &s,
                                              adapter_shared &sh)
{
    const k_bf16 *of = (const k_bf16 *)one.a + (size_t)k * a.n_in;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_of = min(GROUP, one.rank - k);
    int worker = split * IN_WARPS + warp, n_workers = adapter_splits(a.n_in) * IN_WARPS;
    float sum[4] = {};

    adapter_fetch_rows(a, of, n_of, worker, n_workers);
    wait_for_previous();
    if (warp < s.n) {
        float factor = a.p.sums_in == NULL ? 1.0f : adapter_inverse(a, s.rows[warp]);

        if (lane == 0)
            sh.inverse[warp] = factor;
    }
    if (a.x_is_half)
        adapter_in_warp<true>(sum, a, of, n_of, s, worker, n_workers);
    else
        adapter_in_warp<false>(sum, a, of, n_of, s, worker, n_workers);
    for (int i = 0; i < 4; i++)
        sh.sums[warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = sum[i];
    __syncthreads();
    if (threadIdx.x < GROUP * ROWS) {
        int g = threadIdx.x % GROUP, row = threadIdx.x / GROUP;
        float all = 0.0f;

        for (int i = 0; i < IN_WARPS; i++)
            all += sh.sums[i][g][row];
        if (row < s.n)
            adapter_inner(a, split, part, s.rows[row])[k + g] =
                g < n_of ? all * sh.inverse[row] : 0.0f;
    }
    __syncthreads();
}

/* Bring all of a and b to the L2 cache, while the operation before still runs. Only for adapters of
 * few rows, which would wait for memory twice. */
static __device__ inline void adapter_fetch(const k_adapting &a)
{
    int first = (blockIdx.x * IN_THREADS + threadIdx.x) * LINE_BYTES;
    int stride = gridDim.x * IN_THREADS * LINE_BYTES;

    for (int i = 0; i < a.rows.count[0]; i++) {
        int slot = a.rows.slots[i];

        for (int part = 0; part < a.of.n_parts && slot >= 0; part++) {
            const k_adapter one = a.of.parts[part].slots[slot];

            for (int at = first; at < one.rank * a.n_in * 2; at += stride)
                adapter_fetch_line((const char *)one.a + at);
            for (int at = first; at < K_ADAPT_STRIDE(one.rank) * a.of.parts[part].n_out * 2;
                 at += stride)
                adapter_fetch_line((const char *)one.b + at);
        }
    }
}

static __global__ void __launch_bounds__(IN_THREADS) adapter_in_kernel(const k_adapting a)
{
    __shared__ adapter_shared shared;
    int n_groups = (a.rank_max + GROUP - 1) / GROUP, splits = adapter_splits(a.n_in);
    int n_items = a.rows.count[0] * a.of.n_parts * n_groups * splits;

    let_next_begin();
    if (a.n <= FEW_ROWS)
        adapter_fetch(a);
    for (int item = blockIdx.x; item < n_items; item += gridDim.x) {
        int split = item % splits, k = item / splits % n_groups * GROUP;
        int part = item / splits / n_groups % a.of.n_parts;
        segment s = adapter_segment(a, item / splits / n_groups / a.of.n_parts);
        k_adapter one = {};

        if (s.slot >= 0)
            one = a.of.parts[part].slots[s.slot];
        if (k < one.rank)
            adapter_in_item(a, split, part, one, k, s, shared);
    }
    wait_for_previous();
}

/* --- out ------------------------------------------------------------------------------------ */

/* Four ranks of a row's t: the sums of all splits. */
static __device__ inline float4 adapter_ranks(const k_adapting &a, int part, int row, int k)
{
    float4 t = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    for (int split = 0; split < adapter_splits(a.n_in); split++) {
        float4 x = *(const float4 *)(adapter_inner(a, split, part, row) + k);

        t.x += x.x, t.y += x.y, t.z += x.z, t.w += x.w;
    }
    return t;
}

/* Results of a lane: eight columns of rows 2 c and 2 c + 1. */
struct adapter_eight {
    float v[2][8];
};

/* What the adapter adds to the lane's columns; `column` of y is the first one. goes_on: the warp
 * has the next tile, too, whose rows of b are fetched early. */
static __device__ inline adapter_eight adapter_out_sums(const k_adapting &a, const segment &s,
                                                        int part, int column, bool goes_on)
{
    int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    int row = s.rows[min(g, s.n - 1)];
    float sum[4][4] = {};
    const k_bf16 *b;
    adapter_eight to;
    k_adapter one = {};
    int stride;

    if (s.slot >= 0)
        one = a.of.parts[part].slots[s.slot];
    stride = K_ADAPT_STRIDE(one.rank);
    b = (const k_bf16 *)one.b + (size_t)(column - a.of.parts[part].first) * stride;
    for (int k = 0; k < one.rank; k += GROUP) {
        uint32_t low_terms[3], high_terms[3];
        uint2 terms[8];
        float4 t;

#pragma unroll
        for (int i = 0; i < 8; i++)
            terms[i] = *(const uint2 *)(b + i * stride + k + c * 4);
        if (goes_on)
            adapter_fetch_line(b + TILE * stride + k + c * 2 * stride);
        wait_for_previous();
        t = adapter_ranks(a, part, row, k + c * 4);
        adapter_divide<3>(low_terms, t.x, t.y);
        adapter_divide<3>(high_terms, t.z, t.w);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t left[4] = {terms[2 * j].x, terms[2 * j + 1].x, terms[2 * j].y,
                                terms[2 * j + 1].y};

            for (int i = 0; i < 3; i++)
                chunk_multiply(sum[j], left, low_terms[i], high_terms[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        to.v[i % 2][i / 4 * 2 + i % 4 / 2] = sum[i / 4][i % 4] * one.scale;
    return to;
}

static __device__ inline void adapter_load_eight(float v[8], const k_bf16 *from)
{
    uint4 x = *(const uint4 *)from;

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
                                                   const float v[8], bool is_there)
{
    size_t at = (size_t)row * a.n_out + column;
    float square = 0.0f;

    if (is_there) {
        float plain[8], norm[8], sum[8], *residual = a.p.residual + at;

        adapter_load_eight(plain, a.plain + at);
        adapter_load_eight(norm, (const k_bf16 *)a.p.norm + column);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] = residual[i] + (plain[i] + v[i]);
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
                                                const float gate[8], const float up[8])
{
    int width = a.n_out / 2;
    const k_bf16 *plain = a.plain + (size_t)row * a.n_out + column;
    float v[8], both[8];

    adapter_load_eight(v, plain);
    adapter_load_eight(both, plain + width);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = activation(v[i] + gate[i], K_SILU) * (both[i] + up[i]);
    adapter_store_eight(a.p.y, (size_t)row * width + column, v, a.p.y_is_half);
}

static __device__ inline void adapter_out_plain(const k_adapting &a, int row, int column,
                                                const float v[8])
{
    k_bf16 *y = (k_bf16 *)a.p.y + (size_t)row * a.n_out + column;
    float sum[8];

    adapter_load_eight(sum, y);
    *(uint4 *)y = make_uint4(
        pack_bf16(sum[0] + v[0], sum[1] + v[1]), pack_bf16(sum[2] + v[2], sum[3] + v[3]),
        pack_bf16(sum[4] + v[4], sum[5] + v[5]), pack_bf16(sum[6] + v[6], sum[7] + v[7]));
}

/* A segment's rows in a lane's columns, of n from `first` on. */
template <int KIND>
static __device__ inline void adapter_out_item(const k_adapting &a, const segment &s, int part,
                                               int first, int n, bool goes_on)
{
    int own = threadIdx.x % 32 / 4 * 8, column = first + (own < n ? own : 0);
    int j = threadIdx.x % 4 * 2;
    int row_of[2] = {s.rows[min(j, s.n - 1)], s.rows[min(j + 1, s.n - 1)]};
    adapter_eight sums = adapter_out_sums(a, s, part, column, goes_on), up = {};

    if (KIND == K_PRODUCT_GATED)
        up = adapter_out_sums(a, s, a.of.n_parts - 1, column + a.n_out / 2, goes_on);
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = row_of[i];
        bool is_there = j + i < s.n && own < n;

        if (KIND == K_PRODUCT_RESIDUAL)
            adapter_out_residual(a, row, column, sums.v[i], is_there);
        else if (!is_there)
            continue;
        else if (KIND == K_PRODUCT_GATED)
            adapter_out_gated(a, row, column, sums.v[i], up.v[i]);
        else if (KIND == K_PRODUCT_PLAIN)
            adapter_out_plain(a, row, column, sums.v[i]);
        else
            for (int k = 0; k < 8; k++)
                ((float *)a.p.y)[(size_t)row * a.n_out + column + k] += sums.v[i][k];
    }
}

/* n_tiles: of the columns that items have, which are the gate's if there is one. */
template <int KIND>
static __global__ void __launch_bounds__(OUT_THREADS)
    adapter_out_kernel(const k_adapting a, int n_tiles)
{
    constexpr bool IS_WHOLE = KIND == K_PRODUCT_GATED || KIND == K_PRODUCT_RESIDUAL;
    int64_t n_items = (int64_t)a.rows.count[0] * n_tiles, n_warps = gridDim.x * OUT_WARPS;
    int warp = blockIdx.x * OUT_WARPS + threadIdx.x / 32;
    int item = (int)(warp * n_items / n_warps), end = (int)((warp + 1) * n_items / n_warps);

    let_next_begin();
    for (; item < end; item++) {
        segment s = adapter_segment(a, item / n_tiles);
        int tile = item % n_tiles, part = 0, n = a.of.parts[0].n_out;

        if (s.slot < 0 && !IS_WHOLE)
            continue;
        while (tile >= (n + TILE - 1) / TILE && part + 1 < a.of.n_parts) {
            tile -= (n + TILE - 1) / TILE;
            n = a.of.parts[++part].n_out;
        }
        if (KIND == K_PRODUCT_GATED)
            n = min(n, a.n_out / 2);
        n -= tile * TILE;
        adapter_out_item<KIND>(a, s, part, a.of.parts[part].first + tile * TILE, n,
                               item + 1 < end && n > TILE);
    }
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
            size_t at = (size_t)s.rows[j] * a.n_out + column;
            const k_bf16 *b = (const k_bf16 *)one.b +
                              (size_t)(column - a.of.parts[part].first) * K_ADAPT_STRIDE(one.rank);
            float sum = 0.0f;

            for (int k = 0; k < one.rank; k++) {
                float t = 0.0f;

                for (int split = 0; split < adapter_splits(a.n_in); split++)
                    t += adapter_inner(a, split, part, s.rows[j])[k];
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
    return K_LAUNCH_EARLY(adapter_in_kernel, std::min(n, IN_BLOCKS * a->n_sms), IN_THREADS, stream,
                          *a);
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
