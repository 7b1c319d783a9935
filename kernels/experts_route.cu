/* SPDX-License-Identifier: Apache-2.0
 *
 * The router of an FFN of experts: logits, choices, and the order of routes by experts.
 *
 *   x, w -> logits [n][n_choices] -> ids, weights [n][n_used] -> starts, routes, places
 *
 * Logits: a warp has an expert and some tokens; all of its lanes share a row of w, which is read
 * once for them. A dot product is one chain of additions per lane and a tree over the lanes, so its
 * bits depend on dim alone.
 *
 * Few tokens take one launch: of the blocks that have the same tokens, the one that ends last (a
 * counter in device memory) chooses for them, a warp for each, and of these the last one sorts.
 * Otherwise choosing, counting, adding up and placing are launches of their own: blocks count
 * chunks of K_MIXING_CHUNK routes, one block adds the counts up over the chunks of each expert, and
 * blocks place their chunk. The sort keeps the order of tokens (a counting sort), and no sum
 * depends on which block comes first: same input, same order. */
#include "kernels/experts.cuh"

#define WARPS       K_MIXING_WARPS
#define THREADS     (WARPS * 32)
#define TOKENS_MANY 16 /* of a warp */
#define SCAN        1024

struct route_args {
    struct k_mixing m;
    struct k_router r;
    const k_bf16 *x;
    const int32_t *seq, *kv_len; /* NULL: all tokens are real */
    int n, dim, n_own, first;
};

/* --- logits ----------------------------------------------------------------------------------- */

/* Four elements at `at`; those beyond dim are 0. */
static __device__ inline float4 load_weights(const float *w, int at, int dim)
{
    if (at + 4 <= dim && dim % 4 == 0)
        return __ldg((const float4 *)(w + at));
    return make_float4(at < dim ? w[at] : 0.0f, at + 1 < dim ? w[at + 1] : 0.0f,
                       at + 2 < dim ? w[at + 2] : 0.0f, at + 3 < dim ? w[at + 3] : 0.0f);
}

static __device__ inline float4 load_inputs(const k_bf16 *x, int at, int dim)
{
    if (at + 4 <= dim && dim % 4 == 0) {
        uint2 four = *(const uint2 *)(x + at);

        return make_float4(low_half(four.x), high_half(four.x), low_half(four.y),
                           high_half(four.y));
    }
    return make_float4(
        at < dim ? load_bf16(x + at) : 0.0f, at + 1 < dim ? load_bf16(x + at + 1) : 0.0f,
        at + 2 < dim ? load_bf16(x + at + 2) : 0.0f, at + 3 < dim ? load_bf16(x + at + 3) : 0.0f);
}

/* Logits of this warp's expert for TOKENS tokens from `first` on. */
template <int TOKENS>
static __device__ inline void make_logits(const route_args &a, int expert, int first)
{
    const float *w = a.r.w + (size_t)expert * a.dim;
    int lane = threadIdx.x % 32;
    const int unroll = TOKENS == 1 ? 8 : 2;
    float sum[TOKENS] = {};

#pragma unroll unroll
    for (int at = lane * 4; at < a.dim; at += 128) {
        float4 weight = load_weights(w, at, a.dim);

#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            int token = min(first + i, a.n - 1);
            float4 x = load_inputs(a.x + (size_t)token * a.dim, at, a.dim);

            sum[i] = __fmaf_rn(weight.x, x.x, sum[i]);
            sum[i] = __fmaf_rn(weight.y, x.y, sum[i]);
            sum[i] = __fmaf_rn(weight.z, x.z, sum[i]);
            sum[i] = __fmaf_rn(weight.w, x.w, sum[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        for (int apart = 16; apart > 0; apart /= 2)
            sum[i] += __shfl_xor_sync(~0U, sum[i], apart);
        if (lane == 0 && first + i < a.n)
            a.m.logits[(size_t)(first + i) * a.r.n_experts + expert] = sum[i];
    }
}

/* --- choices ---------------------------------------------------------------------------------- */

/* A number as a key of the same order: NaN is 1, less than all numbers; 0 is free for "taken". */
static __device__ inline uint32_t key_of(float x)
{
    uint32_t bits = __float_as_uint(x + 0.0f); /* -0 becomes 0 */

    if (x != x)
        return 1;
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/* The number of a key; NaN's is -infinity. */
static __device__ inline float number_of(uint32_t key)
{
    if (key <= 1)
        return -INFINITY;
    return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}

static __device__ inline float warp_sum(float x)
{
    for (int apart = 16; apart > 0; apart /= 2)
        x += __shfl_xor_sync(~0U, x, apart);
    return x;
}

static __device__ inline float warp_max(float x)
{
    for (int apart = 16; apart > 0; apart /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0U, x, apart));
    return x;
}

/* The index of the largest of keys [n] in shared memory; the lowest among equals. */
static __device__ inline int warp_largest(const uint32_t *keys, int n)
{
    uint32_t best = 0, all, idx = ~0U;

    for (int i = threadIdx.x % 32; i < n; i += 32) {
        if (keys[i] > best || idx == ~0U) {
            best = keys[i];
            idx = (uint32_t)i;
        }
    }
    all = __reduce_max_sync(~0U, best);
    return (int)__reduce_min_sync(~0U, idx != ~0U && best == all ? idx : ~0U);
}

/* Take the experts of groups that do not take part out of the keys. Lane g has group g. */
static __device__ inline void close_groups(uint32_t *keys, const struct k_router &r)
{
    int size = r.n_experts / r.n_groups, lane = threadIdx.x % 32;
    uint32_t first = 0, second = 0, open = 0, own = 0;

    if (lane < r.n_groups) {
        for (int i = 0; i < size; i++) {
            uint32_t key = keys[lane * size + i];

            second = key > first ? first : key > second ? key : second;
            first = key > first ? key : first;
        }
        own = key_of(r.group_best > 1 && size > 1 ? number_of(first) + number_of(second)
                                                  : number_of(first));
    }
    for (int i = 0; i < r.n_groups_used; i++) {
        uint32_t best = __reduce_max_sync(~0U, (open >> lane & 1) != 0 ? 0 : own);
        uint32_t group = __reduce_min_sync(
            ~0U, own == best && (open >> lane & 1) == 0 && lane < r.n_groups ? lane : 31U);

        open |= 1U << group;
    }
    __syncwarp();
    for (int i = lane; i < r.n_experts; i += 32) {
        if ((open >> (i / size) & 1) == 0)
            keys[i] = 0;
    }
    __syncwarp();
}

/* K_SCORE_MIXER: the weight of the largest logit that is not taken. */
static __device__ inline float mixer_weight(const float *logits, const uint32_t *keys,
                                            const struct k_router &r, float top)
{
    float sum = 0.0f;

    for (int i = threadIdx.x % 32; i < r.n_experts; i += 32) {
        float x = logits[i], apart = (top - x) / fmaxf(fabsf(x), top);

        if (keys[i] != 0 && !(apart > 2.0f * r.spread))
            sum += expf(x - top);
    }
    return 1.0f / warp_sum(sum);
}

/* The largest logit and the sum of softmax' exponentials, for K_SCORE_SOFTMAX. */
static __device__ inline float2 find_softmax(const float *logits, int n)
{
    float top = -INFINITY, sum = 0.0f;

    for (int i = threadIdx.x % 32; i < n; i += 32)
        top = fmaxf(top, logits[i]);
    top = warp_max(top);
    for (int i = threadIdx.x % 32; i < n; i += 32)
        sum += expf(logits[i] - top);
    return make_float2(top, warp_sum(sum));
}

static __device__ inline float score_of(float logit, enum k_scoring scoring, float2 softmax)
{
    switch (scoring) {
    case K_SCORE_SOFTMAX: return expf(logit - softmax.x) / softmax.y;
    case K_SCORE_SIGMOID: return 1.0f / (1.0f + expf(-logit));
    case K_SCORE_TOP:
    case K_SCORE_MIXER: break;
    }
    return logit;
}

/* Weights from the scores of the chosen experts; lane s has slot s. */
static __device__ inline float weigh(float score, const struct k_router &r)
{
    bool mine = (int)(threadIdx.x % 32) < r.n_used;
    float top, sum;

    if (r.scoring == K_SCORE_TOP) {
        top = warp_max(mine ? score : -INFINITY);
        score = expf(score - top);
        score /= warp_sum(mine ? score : 0.0f);
    }
    sum = warp_sum(mine ? score : 0.0f);
    if (r.renorms)
        score /= fmaxf(sum, r.least);
    return score * r.scale;
}

/* One token, by a warp. keys, logits: shared memory of n_experts words each, because each slot
 * looks at all of them again. */
static __device__ void choose(const route_args &a, int token, uint32_t *keys, float *logits)
{
    const struct k_router &r = a.r;
    const float *from = a.m.logits + (size_t)token * r.n_experts;
    int lane = threadIdx.x % 32, id = -1;
    float2 softmax = make_float2(0.0f, 1.0f);
    float score = 0.0f;
    bool is_padding = a.seq != NULL && a.kv_len[a.seq[token]] == 0;

    for (int i = lane; i < r.n_experts; i += 32)
        logits[i] = __ldcg(from + i);
    __syncwarp();
    if (r.scoring == K_SCORE_SOFTMAX)
        softmax = find_softmax(logits, r.n_experts);
    for (int i = lane; i < r.n_experts; i += 32)
        keys[i] =
            key_of(score_of(logits[i], r.scoring, softmax) + (r.bias != NULL ? r.bias[i] : 0.0f));
    __syncwarp();
    if (r.n_groups > 1)
        close_groups(keys, r);
    for (int slot = 0; slot < r.n_used; slot++) {
        int best = warp_largest(keys, r.n_experts);
        float logit = logits[best], own;

        own = r.scoring == K_SCORE_MIXER ? mixer_weight(logits, keys, r, logit)
                                         : score_of(logit, r.scoring, softmax);
        if (lane == slot) {
            id = best;
            score = own;
        }
        __syncwarp();
        if (lane == 0)
            keys[best] = 0;
        __syncwarp();
    }
    score = weigh(score, r);
    if (lane < r.n_used) {
        a.m.routes.ids[(size_t)token * r.n_used + lane] = is_padding ? -1 : id;
        a.m.routes.weights[(size_t)token * r.n_used + lane] = score;
    }
}

/* A warp's part of shared memory: keys, then logits. */
static __device__ inline void choose_in(const route_args &a, int token, uint32_t *shared)
{
    uint32_t *keys = shared + threadIdx.x / 32 * 2 * a.r.n_experts;

    choose(a, token, keys, (float *)(keys + a.r.n_experts));
}

/* --- few tokens: the rest of the launch ------------------------------------------------------- */

/* Exclusive sums of counts [n] in shared memory, by one warp; returns the total. */
static __device__ inline int warp_add_up(int *counts, int n)
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
static __device__ inline void list_touched(int32_t *touched, const int *starts, int n)
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

/* How many of four ids are e. */
static __device__ inline int count_four(int4 ids, int e)
{
    return (ids.x == e) + (ids.y == e) + (ids.z == e) + (ids.w == e);
}

/* Put route i of expert e at place at, if its id is e; returns the next place. */
static __device__ inline int place_one(const struct k_sorted &sorted, int id, int e, int i, int at)
{
    if (id != e)
        return at;
    sorted.routes[at] = i;
    sorted.places[i] = at;
    return at + 1;
}

/* Sort the routes of few tokens by one block: thread e counts and places those of expert e. ids:
 * shared memory for n_routes, rounded up to fours; starts: for n_own + 1. */
static __device__ void sort_few(const route_args &a, int4 *ids, int *starts, int n_routes)
{
    const struct k_sorted &sorted = a.m.sorted;
    int n_fours = (n_routes + 3) / 4;

    for (int i = threadIdx.x; i < 4 * n_fours; i += THREADS) {
        int id = i < n_routes ? __ldcg(a.m.routes.ids + i) - a.first : -1;

        ((int *)ids)[i] = id;
        if (i < n_routes && (id < 0 || id >= a.n_own))
            sorted.places[i] = -1;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < a.n_own; e += THREADS) {
        int count = 0;

#pragma unroll 4
        for (int i = 0; i < n_fours; i++)
            count += count_four(ids[i], e);
        starts[e] = count;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        int sum = warp_add_up(starts, a.n_own);

        __syncwarp();
        if (threadIdx.x == 0)
            starts[a.n_own] = sum;
        __syncwarp();
        list_touched(a.m.touched, starts, a.n_own);
    }
    __syncthreads();
    for (int e = threadIdx.x; e <= a.n_own; e += THREADS) {
        int at = starts[e], last = e < a.n_own ? starts[e + 1] : at;

        sorted.starts[e] = at;
        for (int i = 0; i < n_fours && at < last; i++) {
            int4 four = ids[i];

            if (count_four(four, e) == 0)
                continue;
            at = place_one(sorted, four.x, e, 4 * i, at);
            at = place_one(sorted, four.y, e, 4 * i + 1, at);
            at = place_one(sorted, four.z, e, 4 * i + 2, at);
            at = place_one(sorted, four.w, e, 4 * i + 3, at);
        }
    }
}

/* True in the block that ends last of n that count in the same word: it can read all others'
 * results. */
static __device__ inline bool is_last_block(uint32_t *done, unsigned n)
{
    __shared__ bool is_last;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(done, 1U) == n - 1;
        if (is_last)
            *done = 0;
    }
    __syncthreads();
    __threadfence();
    return is_last;
}

/* Block x has some experts, block y some tokens. */
template <int TOKENS> static __global__ void __launch_bounds__(THREADS) route_kernel(route_args a)
{
    /* Shared memory: keys and logits [WARPS][2][n_choices], then in their place ids and starts. */
    extern __shared__ __align__(16) uint32_t shared[];
    int warp = threadIdx.x / 32, expert = blockIdx.x * WARPS + warp;
    int token = blockIdx.y * TOKENS + warp, n_routes = a.n * a.r.n_used;

    static_assert(TOKENS <= WARPS, "a warp for each token");
    for (int i = threadIdx.x % 32 * 32; expert < a.r.n_experts && i < a.dim; i += 32 * 32)
        fetch_line(a.r.w + (size_t)expert * a.dim + i); /* weights depend on no other kernel */
    wait_for_previous();
    if (expert < a.r.n_experts)
        make_logits<TOKENS>(a, expert, blockIdx.y * TOKENS);
    if (!is_last_block(a.m.done + 1 + blockIdx.y, gridDim.x))
        return;
    if (warp < TOKENS && token < a.n)
        choose_in(a, token, shared);
    if (!is_last_block(a.m.done, gridDim.y))
        return;
    sort_few(a, (int4 *)shared, (int *)shared + (n_routes + 3) / 4 * 4, n_routes);
}

/* --- many tokens ------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS) logits_kernel(route_args a)
{
    int expert = blockIdx.x * WARPS + threadIdx.x / 32;

    if (expert < a.r.n_experts)
        make_logits<TOKENS_MANY>(a, expert, blockIdx.y * TOKENS_MANY);
}

static __global__ void __launch_bounds__(THREADS) choose_kernel(route_args a)
{
    extern __shared__ uint32_t shared[];
    int token = blockIdx.x * WARPS + threadIdx.x / 32;

    if (token < a.n)
        choose_in(a, token, shared);
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
static __device__ inline void list_tiles(const route_args &a, const int *starts, const int *tiles)
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
        int *counts = threadIdx.x < 32 ? starts : tiles, all = warp_add_up(counts, a.n_own);

        __syncwarp();
        if (lane == 0)
            counts[a.n_own] = all;
    }
    __syncthreads();
    if (threadIdx.x < 32)
        list_touched(a.m.touched, starts, a.n_own);
    list_tiles(a, starts, tiles);
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
static size_t choice_words(const route_args &a)
{
    return (size_t)WARPS * 2 * a.r.n_experts;
}

/* More than 48 KB of shared memory must be asked for. */
template <class K> static int allow_shared(K kernel, size_t bytes)
{
    if (bytes <= 48 * 1024)
        return 0;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
                   cudaSuccess
               ? 0
               : -1;
}

template <int TOKENS> static int launch_route(const route_args &a, k_stream stream)
{
    size_t sorting = (size_t)a.n_own + 4 + a.n * a.r.n_used, words = choice_words(a);
    size_t bytes = (words > sorting ? words : sorting) * sizeof(uint32_t);
    unsigned blocks = (a.r.n_experts + WARPS - 1) / WARPS;

    if (allow_shared(route_kernel<TOKENS>, bytes) != 0)
        return -1;
    return launch_early(route_kernel<TOKENS>, dim3(blocks, (a.n + TOKENS - 1) / TOKENS), THREADS,
                        bytes, stream, a);
}

static int route_few(const route_args &a, k_stream stream)
{
    if (a.n == 1)
        return launch_route<1>(a, stream);
    if (a.n <= 4)
        return launch_route<4>(a, stream);
    return launch_route<8>(a, stream);
}

static int route_many(const route_args &a, k_stream stream)
{
    unsigned blocks = (a.r.n_experts + WARPS - 1) / WARPS;
    unsigned chunks = (a.n * a.r.n_used + K_MIXING_CHUNK - 1) / K_MIXING_CHUNK;
    size_t bytes = choice_words(a) * sizeof(uint32_t);
    int rc = allow_shared(choose_kernel, bytes);

    if (rc == 0)
        rc = K_LAUNCH(logits_kernel, dim3(blocks, (a.n + TOKENS_MANY - 1) / TOKENS_MANY), THREADS,
                      0, stream, a);
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

int k_route(const struct k_mixing *m, const k_bf16 *x, const struct k_router *r,
            const struct k_experts *e, const struct k_tokens *t, int n, int dim, k_stream stream)
{
    route_args a = {};

    if (r->n_experts > K_EXPERTS_MAX || r->n_used > K_EXPERTS_USED_MAX || r->n_used < 1 ||
        r->n_groups > K_EXPERT_GROUPS_MAX || r->group_best > 2 || n < 1)
        return -1;
    a.m = *m;
    a.r = *r;
    a.x = x;
    if (t != NULL) {
        a.seq = t->seq;
        a.kv_len = t->kv_len;
    }
    a.n = n;
    a.dim = dim;
    a.n_own = e->n;
    a.first = e->first;
    return n <= K_MIXING_FEW ? route_few(a, stream) : route_many(a, stream);
}
