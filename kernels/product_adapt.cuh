/* SPDX-License-Identifier: Apache-2.0
 *
 * The adapters of a product of few rows (product.cu), within its kernel:
 *
 *   four more warps of each CTA
 *     before the previous launch has ended   a of each warp's item is requested
 *     when x is there                        items of t = a x -> global memory, a counter
 *     when all have counted                  all of t, sums of items -> shared memory
 *   those that multiply
 *     after the first tile of a pass         16 ranks of b are requested
 *     the end of a pass                      b . t -> added to the product's sum
 *
 * So no warp that multiplies waits for memory but in its ring, whose boxes stay under way. An item
 * is 512 elements of one rank. All CTAs are resident, because there are not more than
 * multiprocessors and none waits before it has begun; so they may wait for each other. The counter
 * is 0 again when the launch ends. t is without the norm's factor, which the product's end applies
 * to both. An item's sum and their order depend on n_in alone. */
#ifndef QUIRE_KERNELS_PRODUCT_ADAPT_CUH
#define QUIRE_KERNELS_PRODUCT_ADAPT_CUH

#include "kernels/adapter.cuh"
#include "kernels/sm90.cuh"

#define ADAPT_RUN   512 /* elements of an item: two loads of 16 bytes of each lane */
#define ADAPT_PIECE (32 * 8)
#define ADAPT_ROWS  3
#define ADAPT_WARPS 4 /* of a CTA, that make t */
#define ADAPT_ID    1 /* their named barrier */

/* The kernel without adapters has this in place of k_adapting. */
struct adapt_none {
};

template <class T> struct adapt_is {
    static constexpr bool on = false;
};
template <> struct adapt_is<k_adapting> {
    static constexpr bool on = true;
};

/* In shared memory: the rows' adapters, and t [n][n_parts][K_ADAPT_STRIDE(rank_max)] times their
 * scales. */
struct adapt_shared {
    k_adapter of[ADAPT_ROWS][K_ADAPTED_MAX];
    __align__(16) float t[4];
};

/* An item of a warp, and its lane's elements: at .. at + 7, and those ADAPT_PIECE further. */
struct adapt_item {
    int row, part, rank, at;
    bool is_there; /* the row's adapter has this rank */
    uint4 words[2];
};

static __host__ __device__ inline int adapt_shares(int n_in)
{
    return (n_in + ADAPT_RUN - 1) / ADAPT_RUN;
}

/* From the sums of a rank in t to those of the next: four are read at a time. */
static __host__ __device__ inline int adapt_t_stride(int n_in)
{
    return (adapt_shares(n_in) + 3) / 4 * 4;
}

static __host__ __device__ inline int adapt_n_items(const k_adapting &j)
{
    return j.n * j.of.n_parts * j.rank_max * adapt_shares(j.n_in);
}

static __device__ inline float *adapt_t(adapt_shared &sh, const k_adapting &j, int row, int part)
{
    return sh.t + (row * j.of.n_parts + part) * K_ADAPT_STRIDE(j.rank_max);
}

/* The adapter of a row of x in a part; rank 0: none. */
static __device__ inline k_adapter adapt_of(const k_adapting &j, int row, int part)
{
    int slot = j.rows.of[row];
    k_adapter none = {};

    return slot < 0 ? none : j.of.parts[part].slots[slot];
}

/* A thread's number among those that make t. */
static __device__ inline int adapt_thread(void)
{
    return (int)threadIdx.x - ((int)blockDim.x - 32 * ADAPT_WARPS);
}

/* The items of a warp are every n-th from its first one on. */
static __device__ inline int adapt_first(void)
{
    return adapt_thread() / 32 * gridDim.x + blockIdx.x;
}

static __device__ inline int adapt_n_warps(void)
{
    return ADAPT_WARPS * gridDim.x;
}

/* Item i, whose elements of a are requested. */
static __device__ inline adapt_item adapt_load_item(const k_adapting &j, int i)
{
    int shares = adapt_shares(j.n_in);
    adapt_item item = {};
    k_adapter one;

    item.at = i % shares * ADAPT_RUN + threadIdx.x % 32 * 8;
    i /= shares;
    item.rank = i % j.rank_max;
    item.part = i / j.rank_max % j.of.n_parts;
    item.row = i / j.rank_max / j.of.n_parts;
    if (item.row >= j.n)
        return item;
    one = adapt_of(j, item.row, item.part);
    item.is_there = item.rank < one.rank;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = item.at + half * ADAPT_PIECE;

        if (item.is_there && at < j.n_in)
            item.words[half] =
                *(const uint4 *)((const k_bf16 *)one.a + (size_t)item.rank * j.n_in + at);
    }
    return item;
}

/* A value of one lane, in all. */
static __device__ inline const char *adapt_of_lane(const void *p, int lane)
{
    return (const char *)__shfl_sync(~0U, (uint64_t)p, lane);
}

static __device__ inline void adapt_fetch_bytes(const char *p, int bytes, int first, int stride)
{
    for (int at = first * 128; at < bytes; at += stride * 128)
        adapter_fetch_line(p + at);
}

/* By one warp of each CTA: bring the next product's adapters to the L2 cache, where few are used:
 * its loads would wait behind those of its weights. */
static __device__ inline void adapt_fetch_next(const k_adapting &j, bool with_b)
{
    int n_parts = j.next.n_parts, n = (j.rows.count[0] - j.rows.count[1]) * n_parts;
    int lane = threadIdx.x % 32, first = blockIdx.x * 32 + lane, stride = gridDim.x * 32;
    k_adapter one = {};
    int n_out = 0;

    if (n > 32)
        return;
    if (lane < n) {
        const k_adapted &part = j.next.parts[lane % n_parts];

        one = part.slots[j.rows.slots[j.rows.count[1] + lane / n_parts]];
        n_out = with_b ? part.n_out : 0;
    }
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        int rank = __shfl_sync(~0U, one.rank, i), rows = __shfl_sync(~0U, n_out, i);

        adapt_fetch_bytes(adapt_of_lane(one.a, i), rank * j.next.n_in * 2, first, stride);
        adapt_fetch_bytes(adapt_of_lane(one.b, i), K_ADAPT_STRIDE(rank) * rows * 2, first, stride);
    }
}

/* Before the previous launch has ended. A barrier follows before shared memory is read. */
static __device__ inline adapt_item adapt_begin(adapt_shared &sh, const k_adapting &j)
{
    int i = adapt_thread(), part = i % K_ADAPTED_MAX, row = i / K_ADAPTED_MAX;
    adapt_item item = adapt_load_item(j, adapt_first());

#pragma unroll 1
    for (int k = i; k < j.n * j.of.n_parts * K_ADAPT_STRIDE(j.rank_max); k += 32 * ADAPT_WARPS)
        sh.t[k] = 0.0f;
    if (row < j.n && part < j.of.n_parts)
        sh.of[row][part] = adapt_of(j, row, part);
    if (i / 32 == ADAPT_WARPS - 1)
        adapt_fetch_next(j, true);
    return item;
}

static __device__ inline float adapt_two(uint32_t a, uint32_t b, float sum)
{
    return __fmaf_rn(high_half(a), high_half(b), __fmaf_rn(low_half(a), low_half(b), sum));
}

static __device__ inline float adapt_eight(const uint4 &a, const uint4 &b, float sum)
{
    return adapt_two(a.w, b.w, adapt_two(a.z, b.z, adapt_two(a.y, b.y, adapt_two(a.x, b.x, sum))));
}

/* The warp's items, of which the first is loaded. xs: rows of x in shared memory, x_bytes apart. */
static __device__ inline void adapt_make_t(const k_adapting &j, adapt_item &item, const char *xs,
                                           int x_bytes)
{
    int n_items = adapt_n_items(j), first = adapt_first(), shares = adapt_shares(j.n_in);

#pragma unroll 1
    for (int i = first; i < n_items; i += adapt_n_warps()) {
        const k_bf16 *x;
        float sum = 0.0f;

        if (i > first)
            item = adapt_load_item(j, i);
        x = (const k_bf16 *)(xs + item.row * x_bytes);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int at = item.at + half * ADAPT_PIECE;

            if (at < j.n_in)
                sum = adapt_eight(item.words[half], *(const uint4 *)(x + at), sum);
        }
        for (int by = 16; by > 0; by /= 2)
            sum += __shfl_xor_sync(~0U, sum, by);
        if (threadIdx.x % 32 == 0)
            j.t[i / shares * adapt_t_stride(j.n_in) + i % shares] = sum;
    }
    if (first < n_items && threadIdx.x % 32 == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(j.meet) : "memory");
}

/* Wait for `n` arrivals at the counter. */
static __device__ inline void adapt_await(const uint32_t *meet, int n)
{
    uint32_t now = 0;

    while ((int)now < n)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(meet) : "memory");
}

/* By one thread of each CTA, when the CTA waits no more: the last one makes the counter 0. */
static __device__ inline void adapt_depart(const k_adapting &j)
{
    if (atomicInc(j.meet + 1, gridDim.x - 1) == gridDim.x - 1)
        j.meet[0] = 0;
}

/* The sum of all shares of a rank. */
static __device__ inline float adapt_sum_shares(const float *t, int shares)
{
    float sum = 0.0f;

#pragma unroll 8
    for (int k = 0; k < shares; k += 4) {
        float4 x = __ldcg((const float4 *)(t + k));

        sum += x.x;
        sum += k + 1 < shares ? x.y : 0.0f;
        sum += k + 2 < shares ? x.z : 0.0f;
        sum += k + 3 < shares ? x.w : 0.0f;
    }
    return sum;
}

/* Bring all of t to shared memory; a barrier follows. */
static __device__ inline void adapt_collect_t(adapt_shared &sh, const k_adapting &j)
{
    int shares = adapt_shares(j.n_in), n = j.n * j.of.n_parts * j.rank_max;

    if (adapt_thread() == 0)
        adapt_await(j.meet, min(adapt_n_warps(), n * shares));
    named_sync(ADAPT_ID, 32 * ADAPT_WARPS);
    if (adapt_thread() == 0)
        adapt_depart(j);
#pragma unroll 1
    for (int i = 32 * ADAPT_WARPS - 1 - adapt_thread(); i < n; i += 32 * ADAPT_WARPS) {
        int rank = i % j.rank_max, part = i / j.rank_max % j.of.n_parts;
        int row = i / j.rank_max / j.of.n_parts;

        if (rank < sh.of[row][part].rank)
            adapt_t(sh, j, row, part)[rank] =
                adapt_sum_shares(j.t + i * adapt_t_stride(j.n_in), shares) * sh.of[row][part].scale;
    }
}

/* 16 ranks of a row of b, requested early; the further ones are read at the end. */
struct adapt_words {
    uint4 first[2];
    const k_bf16 *b;
    int row, part, rank; /* row of x; rank 0: it has no adapter */
};

/* `column` of y. */
static __device__ inline adapt_words adapt_fetch_b(const adapt_shared &sh, const k_adapting &j,
                                                   int row, int column)
{
    adapt_words w = {};
    k_adapter one;

    while (w.part + 1 < j.of.n_parts && column >= j.of.parts[w.part + 1].first)
        w.part++;
    one = sh.of[row][w.part];
    w.row = row;
    w.rank = one.rank;
    w.b = (const k_bf16 *)one.b +
          (size_t)(column - j.of.parts[w.part].first) * K_ADAPT_STRIDE(one.rank);
    if (w.rank > 0) {
        w.first[0] = ((const uint4 *)w.b)[0];
        w.first[1] = ((const uint4 *)w.b)[1];
    }
    return w;
}

static __device__ inline float adapt_eight_ranks(const uint4 &b, const float *t, float sum)
{
    float4 low = ((const float4 *)t)[0], high = ((const float4 *)t)[1];

    sum = __fmaf_rn(low_half(b.x), low.x, sum), sum = __fmaf_rn(high_half(b.x), low.y, sum);
    sum = __fmaf_rn(low_half(b.y), low.z, sum), sum = __fmaf_rn(high_half(b.y), low.w, sum);
    sum = __fmaf_rn(low_half(b.z), high.x, sum), sum = __fmaf_rn(high_half(b.z), high.y, sum);
    return __fmaf_rn(high_half(b.w), high.w, __fmaf_rn(low_half(b.w), high.z, sum));
}

/* What the adapter adds. */
static __device__ inline float adapt_sum(adapt_shared &sh, const k_adapting &j,
                                         const adapt_words &w)
{
    const float *t = adapt_t(sh, j, w.row, w.part);
    float sum = 0.0f;

    if (w.rank == 0)
        return 0.0f;
    sum = adapt_eight_ranks(w.first[1], t + 8, adapt_eight_ranks(w.first[0], t, sum));
#pragma unroll 1
    for (int k = 16; k < w.rank; k += 8)
        sum = adapt_eight_ranks(*(const uint4 *)(w.b + k), t + k, sum);
    return sum;
}

#endif
