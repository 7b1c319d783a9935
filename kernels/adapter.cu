/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of LoRA adapters (adapter.h), on every GPU.
 *
 *   adapter_in    t = a x, times the norm's factor. An item: G rows of a and a segment's rows of x;
 *                 a block's threads share the elements, and sums go over lanes, then warps
 *   adapter_out   the product's y += scale * transpose(b) t, then the gate or the residual. An item
 *                 is a segment and some columns; a thread has W of them, of each row
 *
 * Both are bound by reading a and b, rank * (n_in + n_out) elements for each adapter that a segment
 * has. The number of segments is read on the device, so that a recorded step serves any of them:
 * blocks take items in turn until there are no more. The order of an output's terms is the same for
 * all numbers of rows, and each depends on its own row only. */
#include <algorithm>

#include "kernels/activation.cuh"
#include "kernels/adapter.h"
#include "kernels/common.cuh"

#define ROWS        K_ADAPT_ROWS
#define IN_THREADS  256
#define IN_WARPS    (IN_THREADS / 32)
#define IN_BLOCKS   2 /* of a multiprocessor */
#define LINE_BYTES  128
#define IN_RUN      16 /* elements of a row that a thread reads at a time */
#define OUT_THREADS 128
#define FEW_ROWS    2 /* of a step: then items are small, so that there are enough of them */

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

static __device__ inline float *adapter_inner(const k_adapting &a, int part, int row)
{
    return a.t + ((size_t)part * a.n + row) * a.rank_max;
}

/* --- in ------------------------------------------------------------------------------------- */

/* The numbers of a word of x, and which word of a row of a belongs to it: K_HALF_AT() has the
 * pairs of 16 elements in the order 0, 2, 4, 6, 1, 3, 5, 7. */
template <bool HALF> static __device__ inline float2 adapter_pair(uint32_t word)
{
    if (HALF)
        return __half22float2(*(const __half2 *)&word);
    return make_float2(low_half(word), high_half(word));
}

template <bool HALF> static __device__ inline int adapter_word(int i)
{
    return !HALF ? i : i < 4 ? 2 * i : 2 * i - 7;
}

static __device__ inline void adapter_load_run(uint32_t words[8], const k_bf16 *from)
{
    uint4 first = ((const uint4 *)from)[0], second = ((const uint4 *)from)[1];

    words[0] = first.x, words[1] = first.y, words[2] = first.z, words[3] = first.w;
    words[4] = second.x, words[5] = second.y, words[6] = second.z, words[7] = second.w;
}

/* A thread's part of the sums of G rows of a with R rows of x. Where there are fewer, the last ones
 * are taken again. */
template <int G, int R, bool HALF>
static __device__ inline void adapter_in_runs(float sums[G][R], const k_adapting &a,
                                              const k_bf16 *of, int n_of, const segment &s)
{
    const k_bf16 *x[R];

#pragma unroll
    for (int j = 0; j < R; j++)
        x[j] = (const k_bf16 *)a.p.x + (size_t)s.rows[min(j, s.n - 1)] * a.n_in;
    for (int i = threadIdx.x * IN_RUN; i < a.n_in; i += IN_THREADS * IN_RUN) {
        uint32_t own[G][8], other[8];

#pragma unroll
        for (int g = 0; g < G; g++)
            adapter_load_run(own[g], of + (size_t)min(g, n_of - 1) * a.n_in + i);
#pragma unroll
        for (int j = 0; j < R; j++) {
            adapter_load_run(other, x[j] + i);
#pragma unroll
            for (int word = 0; word < 8; word++) {
                float2 two = adapter_pair<HALF>(other[word]);

#pragma unroll
                for (int g = 0; g < G; g++) {
                    uint32_t both = own[g][adapter_word<HALF>(word)];

                    sums[g][j] = __fmaf_rn(low_half(both), two.x, sums[g][j]);
                    sums[g][j] = __fmaf_rn(high_half(both), two.y, sums[g][j]);
                }
            }
        }
    }
}

/* The same for inputs of any width. */
template <int G, int R>
static __device__ inline void adapter_in_elements(float sums[G][R], const k_adapting &a,
                                                  const k_bf16 *of, int n_of, const segment &s)
{
    for (int i = threadIdx.x; i < a.n_in; i += IN_THREADS) {
        for (int j = 0; j < R; j++) {
            size_t row = s.rows[min(j, s.n - 1)];
            float x = load_bf16((const k_bf16 *)a.p.x + row * a.n_in + i);

            for (int g = 0; g < G; g++)
                sums[g][j] =
                    __fmaf_rn(load_bf16(of + (size_t)min(g, n_of - 1) * a.n_in + i), x, sums[g][j]);
        }
    }
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

template <int G, int R>
static __device__ inline void adapter_in_item(const k_adapting &a, int part, const k_adapter &one,
                                              int k, const segment &s, float *shared)
{
    const k_bf16 *of = (const k_bf16 *)one.a + (size_t)k * a.n_in;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_of = min(G, one.rank - k);
    float *inverse = shared + IN_WARPS * G * R, sums[G][R] = {};

    if (a.n_in % IN_RUN != 0)
        adapter_in_elements<G, R>(sums, a, of, n_of, s);
    else if (a.x_is_half)
        adapter_in_runs<G, R, true>(sums, a, of, n_of, s);
    else
        adapter_in_runs<G, R, false>(sums, a, of, n_of, s);
    if (warp < s.n) {
        float factor = a.p.sums_in == NULL ? 1.0f : adapter_inverse(a, s.rows[warp]);

        if (lane == 0)
            inverse[warp] = factor;
    }
#pragma unroll
    for (int i = 0; i < G * R; i++) {
        float sum = sums[i / R][i % R];

        for (int by = 16; by > 0; by /= 2)
            sum += __shfl_xor_sync(~0U, sum, by);
        if (lane == 0)
            shared[warp * G * R + i] = sum;
    }
    __syncthreads();
    if (threadIdx.x < G * R) {
        int g = threadIdx.x / R, j = threadIdx.x % R;
        float sum = 0.0f;

        for (int i = 0; i < IN_WARPS; i++)
            sum += shared[i * G * R + threadIdx.x];
        if (g < n_of && j < s.n)
            adapter_inner(a, part, s.rows[j])[k + g] = sum * inverse[j];
    }
    __syncthreads();
}

static __device__ inline void adapter_fetch_line(const void *p)
{
#ifdef gridDim
    (void)p; /* played on the host */
#else
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
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
            for (int at = first; at < one.rank * a.of.parts[part].n_out * 2; at += stride)
                adapter_fetch_line((const char *)one.b + at);
        }
    }
}

template <int G>
static __global__ void __launch_bounds__(IN_THREADS, IN_BLOCKS)
    adapter_in_kernel(const k_adapting a)
{
    static_assert(ROWS <= IN_WARPS && G * ROWS <= IN_THREADS, "a warp for a row's norm");
    __shared__ float shared[IN_WARPS * G * ROWS + ROWS];
    int n_groups = (a.rank_max + G - 1) / G, n_items;

    let_next_begin();
    if (G == 1)
        adapter_fetch(a);
    wait_for_previous();
    n_items = a.rows.count[0] * a.of.n_parts * n_groups;
    for (int item = blockIdx.x; item < n_items; item += gridDim.x) {
        int part = item / n_groups % a.of.n_parts, k = item % n_groups * G;
        segment s = adapter_segment(a, item / n_groups / a.of.n_parts);
        k_adapter one = {};

        if (s.slot >= 0)
            one = a.of.parts[part].slots[s.slot];
        if (k >= one.rank)
            continue;
        if (s.n == 1)
            adapter_in_item<G, 1>(a, part, one, k, s, shared);
        else
            adapter_in_item<G, ROWS>(a, part, one, k, s, shared);
    }
}

/* --- out ------------------------------------------------------------------------------------ */

template <int W> static __device__ inline void adapter_load_columns(float v[W], const k_bf16 *from)
{
    if (W == 4) {
        uint2 words = *(const uint2 *)from;

        v[0] = low_half(words.x), v[W / 4] = high_half(words.x);
        v[W / 2] = low_half(words.y), v[W - 1] = high_half(words.y);
    } else {
        v[0] = load_bf16(from);
    }
}

/* What the adapter adds to W columns of R rows. */
template <int R, int W>
static __device__ inline void adapter_out_sums(float sums[R][W], const k_adapting &a,
                                               const segment &s, int column)
{
    constexpr int STEP = R == 1 ? 16 : 4; /* rows of b that are loaded at a time */
    k_adapter one = {};
    int part = 0;

    while (part + 1 < a.of.n_parts && column >= a.of.parts[part + 1].first)
        part++;
    if (s.slot >= 0)
        one = a.of.parts[part].slots[s.slot];
#pragma unroll
    for (int i = 0; i < R * W; i++)
        sums[i / W][i % W] = 0.0f;
    for (int k = 0; k < one.rank; k += STEP) {
        int n_out = a.of.parts[part].n_out, first = a.of.parts[part].first;
        const k_bf16 *b = (const k_bf16 *)one.b + (size_t)k * n_out + (column - first);
        float v[STEP][W];

#pragma unroll
        for (int i = 0; i < STEP; i++)
            adapter_load_columns<W>(v[i], b + (size_t)min(i, one.rank - 1 - k) * n_out);
#pragma unroll
        for (int j = 0; j < R; j++) {
            const float *t = adapter_inner(a, part, s.rows[min(j, s.n - 1)]) + k;

#pragma unroll
            for (int i = 0; i < STEP; i++) {
                float by = k + i < one.rank ? t[i] : 0.0f;

#pragma unroll
                for (int w = 0; w < W; w++)
                    sums[j][w] = __fmaf_rn(by, v[i][w], sums[j][w]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < R * W; i++)
        sums[i / W][i % W] *= one.scale;
}

/* Store W elements of the next product's input. */
template <int W>
static __device__ inline void adapter_store_x(void *to, size_t at, const float v[W], bool is_half)
{
    if (W == 4) {
        store_x_two(to, at, v[0], v[W / 4], is_half);
        store_x_two(to, at + 2, v[W / 2], v[W - 1], is_half);
    } else {
        store_x(to, at, v[0], is_half);
    }
}

/* The residual of W columns; the four lanes that have 16 columns come here together. */
template <int W>
static __device__ inline void adapter_out_residual(const k_adapting &a, int row, int column,
                                                   const float v[W])
{
    size_t at = (size_t)row * a.n_out + column;
    float normed[W], plain[W], norm[W], square = 0.0f;

    adapter_load_columns<W>(plain, a.plain + at);
    adapter_load_columns<W>(norm, (const k_bf16 *)a.p.norm + column);
#pragma unroll
    for (int w = 0; w < W; w++) {
        float sum = a.p.residual[at + w] + (plain[w] + v[w]);

        a.p.residual[at + w] = sum;
        square = __fmaf_rn(sum, sum, square);
        normed[w] = sum * norm[w];
    }
    adapter_store_x<W>(a.p.normed, at, normed, a.p.y_is_half);
    for (int apart = 2; apart > 0; apart /= 2)
        square += __shfl_xor_sync(0xfU << (threadIdx.x & 28), square, apart);
    if (column % 16 == 0)
        a.p.sums_out[(size_t)row * (a.n_out / 16) + column / 16] = square;
}

template <int W>
static __device__ inline void adapter_out_gated(const k_adapting &a, int row, int column,
                                                const float gate[W], const float up[W])
{
    int width = a.n_out / 2;
    const k_bf16 *plain = a.plain + (size_t)row * a.n_out + column;
    float v[W], both[W];

    adapter_load_columns<W>(v, plain);
    adapter_load_columns<W>(both, plain + width);
#pragma unroll
    for (int w = 0; w < W; w++)
        v[w] = activation(v[w] + gate[w], K_SILU) * (both[w] + up[w]);
    adapter_store_x<W>(a.p.y, (size_t)row * width + column, v, a.p.y_is_half);
}

/* A segment's rows in W columns. */
template <int KIND, int R, int W>
static __device__ inline void adapter_out_item(const k_adapting &a, const segment &s, int column)
{
    constexpr bool IS_GATED = KIND == K_PRODUCT_GATED;
    float sums[R][W], up[IS_GATED ? R : 1][W];

    adapter_out_sums<R, W>(sums, a, s, column);
    if (IS_GATED)
        adapter_out_sums<IS_GATED ? R : 1, W>(up, a, s, column + a.n_out / 2);
#pragma unroll
    for (int j = 0; j < R; j++) {
        int row = s.rows[min(j, s.n - 1)];
        size_t at = (size_t)row * a.n_out + column;

        if (j >= s.n)
            break;
        switch (KIND) {
        case K_PRODUCT_PLAIN:
            for (int w = 0; w < W; w++)
                store_bf16((k_bf16 *)a.p.y + at + w,
                           load_bf16((k_bf16 *)a.p.y + at + w) + sums[j][w]);
            break;
        case K_PRODUCT_FLOAT:
            for (int w = 0; w < W; w++)
                ((float *)a.p.y)[at + w] += sums[j][w];
            break;
        case K_PRODUCT_GATED:
            adapter_out_gated<W>(a, row, column, sums[j], up[IS_GATED ? j : 0]);
            break;
        case K_PRODUCT_RESIDUAL: adapter_out_residual<W>(a, row, column, sums[j]); break;
        }
    }
}

template <int KIND, int W>
static __global__ void __launch_bounds__(OUT_THREADS)
    adapter_out_kernel(const k_adapting a, int n_columns)
{
    constexpr bool IS_WHOLE = KIND == K_PRODUCT_GATED || KIND == K_PRODUCT_RESIDUAL;
    int n_chunks = (n_columns + OUT_THREADS * W - 1) / (OUT_THREADS * W), n_items;

    let_next_begin();
    wait_for_previous();
    n_items = a.rows.count[0] * n_chunks;
    for (int item = blockIdx.x; item < n_items; item += gridDim.x) {
        segment s = adapter_segment(a, item / n_chunks);
        int column = (item % n_chunks * OUT_THREADS + threadIdx.x) * W;

        if (column >= n_columns || (s.slot < 0 && !IS_WHOLE))
            continue;
        if (s.n == 1)
            adapter_out_item<KIND, 1, W>(a, s, column);
        else
            adapter_out_item<KIND, ROWS, W>(a, s, column);
    }
}

/* --- launches --------------------------------------------------------------------------------- */

#define OUT_BLOCKS 8 /* of a multiprocessor, at most: more take turns */

/* There are at most as many segments as rows. */
int k_adapt_in(const struct k_adapting *a, k_stream stream)
{
    int group = a->n <= FEW_ROWS ? 1 : 4, n_groups = (a->rank_max + group - 1) / group;
    int n = std::min(a->n * a->of.n_parts * n_groups, IN_BLOCKS * a->n_sms);

    if (a->n == 0)
        return 0;
    if (group == 1)
        return K_LAUNCH_EARLY(adapter_in_kernel<1>, n, IN_THREADS, stream, *a);
    return K_LAUNCH_EARLY(adapter_in_kernel<4>, n, IN_THREADS, stream, *a);
}

template <int KIND, int W>
static int adapter_launch_out(const struct k_adapting *a, k_stream stream)
{
    int n_columns = KIND == K_PRODUCT_GATED ? a->n_out / 2 : a->n_out;
    int n_chunks = (n_columns + OUT_THREADS * W - 1) / (OUT_THREADS * W);
    int n = std::min(a->n * n_chunks, OUT_BLOCKS * a->n_sms);

    return K_LAUNCH_EARLY((adapter_out_kernel<KIND, W>), n, OUT_THREADS, stream, *a, n_columns);
}

int k_adapt_out(const struct k_adapting *a, k_stream stream)
{
    bool fuses = k_adapt_fuses(&a->of, a->n_out);

    if (a->n == 0)
        return 0;
    switch (a->p.kind) {
    case K_PRODUCT_PLAIN:
        return fuses ? adapter_launch_out<K_PRODUCT_PLAIN, 4>(a, stream)
                     : adapter_launch_out<K_PRODUCT_PLAIN, 1>(a, stream);
    case K_PRODUCT_FLOAT:
        return fuses ? adapter_launch_out<K_PRODUCT_FLOAT, 4>(a, stream)
                     : adapter_launch_out<K_PRODUCT_FLOAT, 1>(a, stream);
    case K_PRODUCT_GATED: return fuses ? adapter_launch_out<K_PRODUCT_GATED, 4>(a, stream) : -1;
    case K_PRODUCT_RESIDUAL:
        return fuses && a->n_out % 16 == 0 ? adapter_launch_out<K_PRODUCT_RESIDUAL, 4>(a, stream)
                                           : -1;
    }
    return -1;
}
