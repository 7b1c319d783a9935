/* SPDX-License-Identifier: Apache-2.0
 *
 * The router of an FFN of experts: logits, choices, and the order of routes by experts.
 *
 *   x, w -> logits [n][n_choices] -> ids, weights [n][n_used] -> starts, routes, places
 *
 * Logits: on the tensor cores. Weights are float32; each is cut into three bfloat16, whose sum it
 * is exactly, and all three are multiplied by x, which is bfloat16. Parts that are all zero are
 * skipped: those of a router that was bfloat16. n_in is cut into SLICES slices, each a chain of
 * products, and slices are added in order: by a warp each where tokens are few, one after another
 * in a warp where they are many. So the bits of a logit depend on dim alone.
 *
 * One token on Hopper: the launch ends here, and the first product chooses (experts_few.cu). Few
 * tokens else take one launch: of the blocks that have the same tokens, the one that ends last (a
 * counter in device memory) chooses for them, a warp for each, and of these the last one sorts.
 * Otherwise choosing, counting, adding up and placing are launches of their own: blocks count
 * chunks of K_MIXING_CHUNK routes, one block adds the counts up over the chunks of each expert, and
 * blocks place their chunk. The sort keeps the order of tokens (a counting sort), and no sum
 * depends on which block comes first: same input, same order. */
#include "kernels/experts_choose.cuh"

#define WARPS       K_MIXING_WARPS
#define THREADS     (WARPS * 32)
#define SLICES      16
#define FEW_THREADS (SLICES * 32)
#define TILE        16   /* experts of a tile */
#define CHUNK       32   /* elements of a step */
#define TOKENS_WIDE 64   /* of a warp that has all slices */
#define SLICED_MAX  1024 /* tokens up to which each slice has a warp */
#define AHEAD       4    /* chunks of a slice that a warp has requested, where tokens are few */
#define SCAN        1024
#define ROUTE_ALONE 132 /* logits of which two a block leave room for blocks of experts_one.cu */

/* --- logits ----------------------------------------------------------------------------------- */

/* Eight elements at `at`; those beyond dim are 0. */
struct eight_weights {
    float v[8];
};

static __device__ inline eight_weights route_load_weights(const float *w, int at, int dim)
{
    eight_weights e;

    if (at + 8 <= dim && dim % 4 == 0) {
        float4 low = __ldg((const float4 *)(w + at)), high = __ldg((const float4 *)(w + at + 4));

        e.v[0] = low.x, e.v[1] = low.y, e.v[2] = low.z, e.v[3] = low.w;
        e.v[4] = high.x, e.v[5] = high.y, e.v[6] = high.z, e.v[7] = high.w;
        return e;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        e.v[i] = at + i < dim ? w[at + i] : 0.0f;
    return e;
}

static __device__ inline uint4 route_load_inputs(const k_bf16 *x, int at, int dim)
{
    uint32_t words[4];

    if (at + 8 <= dim && dim % 8 == 0)
        return *(const uint4 *)(x + at);
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = pack_bf16(at + 2 * i < dim ? load_bf16(x + at + 2 * i) : 0.0f,
                             at + 2 * i + 1 < dim ? load_bf16(x + at + 2 * i + 1) : 0.0f);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Take the upper bfloat16 of eight numbers, and leave the rest. */
static __device__ inline uint4 route_take_part(eight_weights &e)
{
    uint32_t words[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        words[i] = pack_bf16(e.v[2 * i], e.v[2 * i + 1]);
        e.v[2 * i] -= low_half(words[i]);
        e.v[2 * i + 1] -= high_half(words[i]);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Eight elements of each lane: c += rows g and g + 8 of w, and a row of x. */
static __device__ inline void route_multiply_eight(float (&c)[4], const uint4 &low,
                                                   const uint4 &high, const uint4 &x)
{
    experts_multiply(c, low.x, high.x, low.y, high.y, x.x, x.y);
    experts_multiply(c, low.z, high.z, low.w, high.w, x.z, x.w);
}

static __device__ inline bool route_has_bits(const uint4 &v)
{
    return ((v.x | v.y | v.z | v.w) & 0x7fff7fffU) != 0;
}

/* A tile of 16 experts and 8 NT tokens. Lane (g = lane / 4, q = lane % 4) has rows g and g + 8 of w
 * and token g of each eight; of a chunk the elements 8 q .. 8 q + 7. */
template <int NT> struct logits_tile {
    const float *low, *high;
    const k_bf16 *x[NT];
};

/* The weights of a logit. */
static __device__ inline const float *route_row_of(const route_args &a, int logit)
{
    return logit < a.r.n_experts ? a.r.w + (size_t)logit * a.dim : a.r.shared_switch;
}

template <int NT>
static __device__ inline logits_tile<NT> route_tile_of(const route_args &a, int expert, int token)
{
    int g = threadIdx.x % 32 / 4, last = a.n_logits - 1;
    logits_tile<NT> t;

    t.low = route_row_of(a, min(expert + g % a.high, last));
    t.high = route_row_of(a, min(expert + (g + 8) % a.high, last));
#pragma unroll
    for (int i = 0; i < NT; i++)
        t.x[i] = a.x + (size_t)min(token + i * 8 + g, a.n - 1) * a.dim;
    return t;
}

/* acc += the products of a chunk whose elements of this lane begin at `at`. */
template <int NT>
static __device__ inline void route_add_chunk(float (&acc)[NT][4], eight_weights &low,
                                              eight_weights &high, const uint4 (&x)[NT])
{
#pragma unroll
    for (int part = 0; part < 3; part++) {
        uint4 of_low = route_take_part(low), of_high = route_take_part(high);

        if (part > 0 && __any_sync(~0U, route_has_bits(of_low) || route_has_bits(of_high)) == 0)
            return; /* nothing is left of any weight */
#pragma unroll
        for (int i = 0; i < NT; i++)
            route_multiply_eight(acc[i], of_low, of_high, x[i]);
    }
}

/* acc += a slice. Loads of the next chunk are under way while this one is multiplied. */
template <int NT>
static __device__ inline void route_add_slice(float (&acc)[NT][4], const logits_tile<NT> &t,
                                              const route_args &a, int slice)
{
    int first = slice * a.slice, last = min(first + a.slice, a.dim);
    int at = first + threadIdx.x % 4 * 8;
    eight_weights low, high, next_low, next_high;
    uint4 x[NT], next_x[NT];

    next_low = route_load_weights(t.low, at, a.dim);
    next_high = route_load_weights(t.high, at, a.dim);
#pragma unroll
    for (int i = 0; i < NT; i++)
        next_x[i] = route_load_inputs(t.x[i], at, a.dim);
    for (; first < last; first += CHUNK, at += CHUNK) {
        low = next_low;
        high = next_high;
#pragma unroll
        for (int i = 0; i < NT; i++)
            x[i] = next_x[i];
        if (first + CHUNK < last) {
            next_low = route_load_weights(t.low, at + CHUNK, a.dim);
            next_high = route_load_weights(t.high, at + CHUNK, a.dim);
#pragma unroll
            for (int i = 0; i < NT; i++)
                next_x[i] = route_load_inputs(t.x[i], at + CHUNK, a.dim);
        }
        route_add_chunk<NT>(acc, low, high, x);
    }
}

/* The weights of the next AHEAD chunks of a slice, where a tile has at most 8 experts: the rows g
 * and g + 8 of a lane are one. */
struct slice_ahead {
    eight_weights weights[AHEAD];
    uint4 x[AHEAD];
};

/* Weights depend on no other kernel, so they are requested before the previous one has ended. */
static __device__ inline void route_begin_weights(slice_ahead &s, const logits_tile<1> &t,
                                                  const route_args &a, int slice)
{
    int first = slice * a.slice, last = min(first + a.slice, a.dim);

#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (first + i * CHUNK < last)
            s.weights[i] =
                route_load_weights(t.low, first + i * CHUNK + threadIdx.x % 4 * 8, a.dim);
    }
}

static __device__ inline void route_begin_inputs(slice_ahead &s, const logits_tile<1> &t,
                                                 const route_args &a, int slice)
{
    int first = slice * a.slice, last = min(first + a.slice, a.dim);

#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (first + i * CHUNK < last)
            s.x[i] = route_load_inputs(t.x[0], first + i * CHUNK + threadIdx.x % 4 * 8, a.dim);
    }
}

/* acc += a slice whose first chunks are under way; in the order of route_add_slice(). */
static __device__ inline void route_end_slice(float (&acc)[1][4], slice_ahead &s,
                                              const logits_tile<1> &t, const route_args &a,
                                              int slice)
{
    int first = slice * a.slice, last = min(first + a.slice, a.dim);

#pragma unroll 1
    for (; first < last; first += AHEAD * CHUNK) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int next = first + (i + AHEAD) * CHUNK + threadIdx.x % 4 * 8;
            eight_weights low = s.weights[i], high = low;
            uint4 x[1] = {s.x[i]};

            if (first + i * CHUNK >= last)
                break;
            if (first + (i + AHEAD) * CHUNK < last) {
                s.weights[i] = route_load_weights(t.low, next, a.dim);
                s.x[i] = route_load_inputs(t.x[0], next, a.dim);
            }
            route_add_chunk<1>(acc, low, high, x);
        }
    }
}

static __device__ inline void route_store_logit(const route_args &a, int token, int expert,
                                                float sum, float factor)
{
    bool has_bias = a.r.logit_bias != NULL && expert < a.r.n_experts;

    if (token < a.n && expert < a.n_logits)
        a.m.logits[(size_t)token * a.n_logits + expert] =
            sum * factor + (has_bias ? a.r.logit_bias[expert] : 0.0f);
}

/* 1 / root of the mean square of a token, by a warp; 1 if x is normed. */
static __device__ inline float route_find_factor(const route_args &a, int token)
{
    const float *sums = a.norm.sums + (size_t)token * a.norm.n_sums;
    float sum = 0.0f;

    if (a.norm.sums == NULL || token >= a.n)
        return 1.0f;
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < a.norm.n_sums; i += 32)
        sum += sums[i];
    for (int apart = 16; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(~0U, sum, apart);
    return rsqrtf(sum / (float)a.dim + a.norm.eps);
}

/* 1 / root of the mean squares of 8 tokens from `token` on, by the first 8 warps. */
static __device__ inline void route_find_factors(float *factors, const route_args &a, int token)
{
    int warp = threadIdx.x / 32;
    float factor;

    if (warp >= 8)
        return;
    factor = route_find_factor(a, token + warp);
    if (threadIdx.x % 32 != 0)
        return;
    factors[warp] = factor;
    if (blockIdx.x == 0 && a.norm.sums != NULL && token + warp < a.n)
        a.m.inverse[token + warp] = factor;
}

/* Before experts_one.cu: no element of ff is a result. */
static __device__ inline void route_fill_ff(const route_args &a)
{
    int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    for (; a.ff != NULL && at < a.n_ff; at += (int)(gridDim.x * blockDim.x))
        a.ff[at] = make_uint4(~0U, ~0U, ~0U, ~0U);
}

/* Logits of some experts and 8 tokens by a block with a warp for each slice, after the previous
 * kernel. FEW: a tile has at most 8 experts. sums: shared memory [SLICES][TILE][8]. */
template <bool FEW>
static __device__ inline void route_make_logits(const route_args &a, int expert, int token,
                                                float *sums)
{
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const logits_tile<1> tile = route_tile_of<1>(a, expert, token);
    float acc[1][4] = {}, sum = 0.0f;
    __shared__ float factors[8];

    if constexpr (FEW) {
        slice_ahead ahead;

        route_begin_weights(ahead, tile, a, warp);
        experts_wait_for_previous();
        route_begin_inputs(ahead, tile, a, warp);
        route_fill_ff(a);
        route_find_factors(factors, a, token);
        route_end_slice(acc, ahead, tile, a, warp);
    } else {
        route_find_factors(factors, a, token);
        if (warp * a.slice < a.dim)
            route_add_slice<1>(acc, tile, a, warp);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        sums[(warp * TILE + g + i / 2 * 8) * 8 + q * 2 + i % 2] = acc[0][i];
    __syncthreads();
    if ((int)threadIdx.x >= a.high * 8)
        return;
#pragma unroll
    for (int i = 0; i < SLICES; i++)
        sum += sums[i * TILE * 8 + threadIdx.x];
    route_store_logit(a, token + (int)threadIdx.x % 8, expert + (int)threadIdx.x / 8, sum,
                      factors[threadIdx.x % 8]);
}

/* --- few tokens: the rest of the launch ------------------------------------------------------- */

/* Exclusive sums of counts [n] in shared memory, by one warp; returns the total. */
static __device__ inline int route_warp_add_up(int *counts, int n)
{
    int lane = threadIdx.x % 32, sum = 0;

    for (int i = 0; i < n; i += 32) {
        int own = i + lane < n ? counts[i + lane] : 0, before = own;

        for (int apart = 1; apart < 32; apart *= 2) {
            int other = __shfl_up_sync(~0U, before, apart);

            before += lane >= apart ? other : 0;
        }
        if (i + lane < n)
            counts[i + lane] = sum + before - own;
        sum += __shfl_sync(~0U, before, 31);
    }
    return sum;
}

/* List the experts with routes, by one warp. */
static __device__ inline void route_list_touched(int32_t *touched, const int *starts, int n)
{
    int lane = threadIdx.x % 32, sum = 0;

    for (int i = 0; i < n; i += 32) {
        bool has = i + lane < n && starts[i + lane + 1] > starts[i + lane];
        unsigned all = __ballot_sync(~0U, has);

        if (has)
            touched[1 + sum + __popc(all & ((1U << lane) - 1))] = i + lane;
        sum += __popc(all);
    }
    if (lane == 0)
        touched[0] = sum;
}

/* The expert of this rank that a route leads to; -1: another rank's, or none. */
static __device__ inline int route_own_expert(const route_args &a, int route, int n_routes)
{
    int e = route < n_routes ? __ldcg(a.m.routes.ids + route) - a.first : -1;

    return e >= 0 && e < a.n_own ? e : -1;
}

/* Sort the routes of few tokens by one block: those of 32 routes are in the order of lanes, behind
 * those of the groups of 32 before them. table: shared memory [n_routes / 32, rounded up][n_own];
 * starts: n_own + 1. */
static __device__ void route_sort_few(const route_args &a, int *starts, uint16_t *table,
                                      int n_routes)
{
    const struct k_sorted &sorted = a.m.sorted;
    int n_groups = (n_routes + 31) / 32, lane = threadIdx.x % 32;

    for (int i = threadIdx.x; i < n_groups * a.n_own; i += FEW_THREADS)
        table[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n_groups * 32; i += FEW_THREADS) {
        int e = route_own_expert(a, i, n_routes);
        unsigned same = __match_any_sync(~0U, e);

        if (e >= 0 && lane == __ffs(same) - 1)
            table[i / 32 * a.n_own + e] = (uint16_t)__popc(same);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < a.n_own; e += FEW_THREADS) {
        int sum = 0;

        for (int i = e; i < n_groups * a.n_own; i += a.n_own) {
            int count = table[i];

            table[i] = (uint16_t)sum;
            sum += count;
        }
        starts[e] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        int sum = route_warp_add_up(starts, a.n_own);

        __syncwarp();
        if (threadIdx.x == 0)
            starts[a.n_own] = sum;
        __syncwarp();
        route_list_touched(a.m.touched, starts, a.n_own);
    }
    __syncthreads();
    for (int e = threadIdx.x; e <= a.n_own; e += FEW_THREADS)
        sorted.starts[e] = starts[e];
    for (int i = threadIdx.x; i < n_groups * 32; i += FEW_THREADS) {
        int e = route_own_expert(a, i, n_routes), at;
        unsigned same = __match_any_sync(~0U, e);

        if (i >= n_routes)
            continue;
        at = e < 0 ? -1
                   : starts[e] + table[i / 32 * a.n_own + e] + __popc(same & ((1U << lane) - 1));
        sorted.places[i] = at;
        if (e >= 0)
            sorted.routes[at] = i;
    }
}

/* Sort the routes of one token, by one warp; id: the expert of slot `lane`, or -1. */
static __device__ void route_sort_one(const route_args &a, int id)
{
    const struct k_sorted &sorted = a.m.sorted;
    int lane = threadIdx.x % 32;
    const route_place p = route_place_one(a, id);

    route_store_place(a, p);
    if (p.has)
        sorted.routes[p.before] = lane;
    for (int i = 0; i <= a.n_own; i += 32) {
        int start = 0;

#pragma unroll 8
        for (int slot = 0; slot < a.r.n_used; slot++)
            start += __shfl_sync(~0U, p.expert, slot) < i + lane;
        if (i + lane <= a.n_own)
            sorted.starts[i + lane] = start;
    }
}

/* True in the block that ends last of n that count in the same word: it can read all others'
 * results. */
static __device__ inline bool route_is_last_block(uint32_t *done, unsigned n)
{
    __shared__ bool is_last;

    __syncthreads();
    if (threadIdx.x == 0) { /* fences of one thread, because the barriers order the others */
        __threadfence();
        is_last = atomicAdd(done, 1U) == n - 1;
        if (is_last)
            *done = 0;
        __threadfence();
    }
    __syncthreads();
    return is_last;
}

/* Block x has some experts, block y some tokens. */
static __global__ void __launch_bounds__(FEW_THREADS) route_kernel(route_args a)
{
    /* Shared memory: sums [SLICES][TILE][8]; in their place keys [WARPS][n_choices]; then starts
     * and the table of route_sort_few(). */
    extern __shared__ __align__(16) uint32_t shared[];
    int warp = threadIdx.x / 32, token = blockIdx.y * WARPS, n_routes = a.n * a.r.n_used;
    /* lengths are older than the previous kernel */
    bool is_padding = warp < WARPS && route_is_padding(a, token + warp);

    static_assert(K_MIXING_WARPS == 8, "a warp for each token of a tile");
    route_make_logits<true>(a, blockIdx.x * a.high, token, (float *)shared);
    if (a.leaves_choice || !route_is_last_block(a.m.done + 1 + blockIdx.y, gridDim.x))
        return;
    if (a.n == 1) {
        if (warp == 0) {
            const route_slot slot = route_choose_in(a, 0, is_padding, shared);

            route_store(a, 0, slot);
            route_sort_one(a, slot.id);
        }
        return;
    }
    if (warp < WARPS && token + warp < a.n)
        route_store(a, token + warp, route_choose_in(a, token + warp, is_padding, shared));
    if (gridDim.y > 1 && !route_is_last_block(a.m.done, gridDim.y))
        return;
    __threadfence_block();
    __syncthreads();
    route_sort_few(a, (int *)shared, (uint16_t *)(shared + a.n_own + 1), n_routes);
}

/* --- many tokens ------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(FEW_THREADS) sliced_logits_kernel(route_args a)
{
    __shared__ float sums[SLICES * TILE * 8];

    route_make_logits<false>(a, blockIdx.x * a.high, blockIdx.y * 8, sums);
}

/* A warp has 16 experts and TOKENS_WIDE tokens; n_tiles warps of a block have the same tokens. */
static __global__ void __launch_bounds__(THREADS) logits_kernel(route_args a, int n_tiles)
{
    const int NT = TOKENS_WIDE / 8;
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    int expert = (blockIdx.x * n_tiles + warp % n_tiles) * TILE;
    int token = (blockIdx.y * (WARPS / n_tiles) + warp / n_tiles) * TOKENS_WIDE;
    float sum[NT][4] = {};

    if (expert >= a.n_logits || token >= a.n)
        return;
    const logits_tile<NT> t = route_tile_of<NT>(a, expert, token);
#pragma unroll 1
    for (int slice = 0; slice * a.slice < a.dim; slice++) {
        float acc[NT][4] = {};

        route_add_slice<NT>(acc, t, a, slice);
#pragma unroll
        for (int i = 0; i < NT * 4; i++)
            sum[i / 4][i % 4] += acc[i / 4][i % 4];
    }
#pragma unroll
    for (int i = 0; i < NT * 4; i++)
        route_store_logit(a, token + i / 4 * 8 + q * 2 + i % 2, expert + g + i % 4 / 2 * 8,
                          sum[i / 4][i % 4], 1.0f);
}

static __global__ void __launch_bounds__(THREADS) choose_kernel(route_args a)
{
    extern __shared__ uint32_t shared[];
    int token = blockIdx.x * WARPS + threadIdx.x / 32;

    if (token < a.n)
        route_store(a, token, route_choose_in(a, token, route_is_padding(a, token), shared));
}

/* Count the routes of a chunk. */
static __global__ void __launch_bounds__(K_MIXING_CHUNK) count_kernel(route_args a)
{
    extern __shared__ int counts[];
    int route = blockIdx.x * K_MIXING_CHUNK + threadIdx.x, n_routes = a.n * a.r.n_used, e = -1;

    for (int i = threadIdx.x; i < a.n_own; i += K_MIXING_CHUNK)
        counts[i] = 0;
    __syncthreads();
    if (route < n_routes)
        e = a.m.routes.ids[route] - a.first;
    if (e >= 0 && e < a.n_own)
        atomicAdd(&counts[e], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < a.n_own; i += K_MIXING_CHUNK)
        a.m.chunks[(size_t)blockIdx.x * a.n_own + i] = counts[i];
}

/* List the tiles of all experts; thread e has expert e. tiles: exclusive sums [n_own + 1]. */
static __device__ inline void route_list_tiles(const route_args &a, const int *starts,
                                               const int *tiles)
{
    int e = threadIdx.x;

    if (e < a.n_own) {
        for (int i = tiles[e]; i < tiles[e + 1]; i++) {
            a.m.tiles[1 + 2 * i] = e;
            a.m.tiles[2 + 2 * i] = starts[e] + (i - tiles[e]) * K_MIXING_TILE;
        }
    }
    if (e == 0)
        a.m.tiles[0] = tiles[a.n_own];
}

/* Add up the counts of all chunks, by one block; thread e has expert e. Counts become places. */
static __global__ void __launch_bounds__(SCAN) add_up_kernel(route_args a, int n_chunks)
{
    __shared__ int starts[K_EXPERTS_MAX + 1], tiles[K_EXPERTS_MAX + 1];
    int e = threadIdx.x, sum = 0, lane = threadIdx.x % 32;

    if (e < a.n_own) {
#pragma unroll 8
        for (int chunk = 0; chunk < n_chunks; chunk++)
            sum += a.m.chunks[(size_t)chunk * a.n_own + e];
        starts[e] = sum;
        tiles[e] = (sum + K_MIXING_TILE - 1) / K_MIXING_TILE;
    }
    __syncthreads();
    if (threadIdx.x < 64) { /* a warp for each */
        int *counts = threadIdx.x < 32 ? starts : tiles, all = route_warp_add_up(counts, a.n_own);

        __syncwarp();
        if (lane == 0)
            counts[a.n_own] = all;
    }
    __syncthreads();
    if (threadIdx.x < 32)
        route_list_touched(a.m.touched, starts, a.n_own);
    route_list_tiles(a, starts, tiles);
    if (e == 0)
        a.m.sorted.starts[a.n_own] = starts[a.n_own];
    if (e >= a.n_own)
        return;
    sum = a.m.sorted.starts[e] = starts[e];
#pragma unroll 8
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        size_t at = (size_t)chunk * a.n_own + e;
        int count = a.m.chunks[at];

        a.m.chunks[at] = sum;
        sum += count;
    }
}

/* Place the routes of a chunk: those of a warp in the order of lanes, behind those of the warps
 * before it. */
static __global__ void __launch_bounds__(K_MIXING_CHUNK) place_kernel(route_args a)
{
    extern __shared__ uint16_t of_warps[]; /* [K_MIXING_CHUNK / 32][n_own] */
    int route = blockIdx.x * K_MIXING_CHUNK + threadIdx.x, n_routes = a.n * a.r.n_used;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = -1, at;
    unsigned same;

    for (int i = threadIdx.x; i < K_MIXING_CHUNK / 32 * a.n_own; i += K_MIXING_CHUNK)
        of_warps[i] = 0;
    __syncthreads();
    if (route < n_routes)
        e = a.m.routes.ids[route] - a.first;
    if (e < 0 || e >= a.n_own)
        e = -1;
    same = __match_any_sync(~0U, e);
    if (e >= 0 && lane == __ffs(same) - 1)
        of_warps[warp * a.n_own + e] = (uint16_t)__popc(same);
    __syncthreads();
    if (route >= n_routes)
        return;
    if (e < 0) {
        a.m.sorted.places[route] = -1;
        return;
    }
    at = a.m.chunks[(size_t)blockIdx.x * a.n_own + e] + __popc(same & ((1U << lane) - 1));
    for (int i = 0; i < warp; i++)
        at += of_warps[i * a.n_own + e];
    a.m.sorted.routes[at] = route;
    a.m.sorted.places[route] = at;
}

/* --- launching -------------------------------------------------------------------------------- */

/* Words of shared memory for the choices of a block's warps. */
static size_t route_choice_words(const route_args &a)
{
    return (size_t)WARPS * a.r.n_experts;
}

/* More than 48 KB of shared memory must be asked for. */
template <class K> static int route_allow_shared(K kernel, size_t bytes)
{
    if (bytes <= 48 * 1024)
        return 0;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
                   cudaSuccess
               ? 0
               : -1;
}

/* With few tokens, reads of the router are shared among more multiprocessors. */
static int route_few(route_args &a, k_stream stream)
{
    size_t n_routes = (size_t)a.n * a.r.n_used, logits = SLICES * TILE * 8;
    size_t sorting = (size_t)a.n_own + 1 + ((n_routes + 31) / 32 * a.n_own + 1) / 2;
    size_t words = route_choice_words(a);

    a.high = a.n > WARPS ? TILE / 2 : a.ff != NULL && a.n_logits > ROUTE_ALONE ? 4 : 2;
    words = words > sorting ? words : sorting;
    words = words > logits ? words : logits;
    if (route_allow_shared(route_kernel, words * sizeof(uint32_t)) != 0)
        return -1;
    return experts_launch_early(route_kernel,
                                dim3((a.n_logits + a.high - 1) / a.high, (a.n + WARPS - 1) / WARPS),
                                FEW_THREADS, words * sizeof(uint32_t), stream, a);
}

static int route_launch_logits(const route_args &a, k_stream stream)
{
    int tiles = (a.n_logits + TILE - 1) / TILE, together = 1, tokens;

    if (a.n <= SLICED_MAX)
        return K_LAUNCH(sliced_logits_kernel, dim3(tiles, (a.n + 7) / 8), FEW_THREADS, 0, stream,
                        a);
    while (together < WARPS && together < tiles)
        together *= 2;
    tokens = WARPS / together * TOKENS_WIDE;
    return K_LAUNCH(logits_kernel,
                    dim3((tiles + together - 1) / together, (a.n + tokens - 1) / tokens), THREADS,
                    0, stream, a, together);
}

static int route_many(const route_args &a, k_stream stream)
{
    unsigned chunks = (a.n * a.r.n_used + K_MIXING_CHUNK - 1) / K_MIXING_CHUNK;
    size_t bytes = route_choice_words(a) * sizeof(uint32_t);
    int rc = route_allow_shared(choose_kernel, bytes);

    if (rc == 0)
        rc = route_launch_logits(a, stream);
    if (rc == 0)
        rc = K_LAUNCH(choose_kernel, (a.n + WARPS - 1) / WARPS, THREADS, bytes, stream, a);
    if (rc == 0)
        rc = K_LAUNCH(count_kernel, chunks, K_MIXING_CHUNK, a.n_own * sizeof(int), stream, a);
    if (rc == 0)
        rc = K_LAUNCH(add_up_kernel, 1, SCAN, 0, stream, a, (int)chunks);
    if (rc == 0)
        rc = K_LAUNCH(place_kernel, chunks, K_MIXING_CHUNK,
                      K_MIXING_CHUNK / 32 * a.n_own * sizeof(uint16_t), stream, a);
    return rc;
}

int route_prepare(route_args *args, const struct k_mixing *m, const struct k_mixing_input *in)
{
    const struct k_router *r = in->router;
    route_args a = {};
    int n = in->n;

    if (r->n_experts > K_EXPERTS_MAX || r->n_used > K_EXPERTS_USED_MAX || r->n_used < 1 ||
        r->n_groups > K_EXPERT_GROUPS_MAX || r->group_best > 2 || n < 1 ||
        (r->shared_switch != NULL && r->n_shared != 1) || (in->norm != NULL && n > K_MIXING_FEW))
        return -1;
    a.m = *m;
    a.r = *r;
    a.x = in->router_x;
    if (in->norm != NULL)
        a.norm = *in->norm;
    if (in->tokens != NULL) {
        a.seq = in->tokens->seq;
        a.kv_len = in->tokens->kv_len;
    }
    a.n = n;
    a.dim = in->router_dim;
    a.n_logits = r->n_experts + (r->shared_switch != NULL);
    a.slice = (a.dim + SLICES * CHUNK - 1) / (SLICES * CHUNK) * CHUNK;
    a.high = TILE;
    a.n_own = in->experts->n;
    a.first = in->experts->first;
    *args = a;
    return 0;
}

int route_logits_of_one(route_args *a, k_stream stream)
{
    a->leaves_choice = true;
    return route_few(*a, stream);
}

int k_route(const struct k_mixing *m, const struct k_mixing_input *in, k_stream stream)
{
    route_args a;

    if (route_prepare(&a, m, in) != 0)
        return -1;
    return in->n <= K_MIXING_FEW ? route_few(a, stream) : route_many(a, stream);
}
