/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of the tokens that latent attention sees (index.h).
 *
 *   keys     a warp per token: layer norm, rotation, its row in the page. Bound by launches
 *   choose   blocks take the tokens in turns. A token's scores: a warp has KEYS keys at a time in
 *            shared memory, a lane two heads, whose queries lie there too; float32 without tensor
 *            cores: n_heads * dim multiply-adds for each key that the token may see, so bound by
 *            arithmetic. They go to the block's part of the work memory. Then the least score that
 *            is chosen is found by its bits, eight at a time, with counts in shared memory, and
 *            positions are listed in their order: of equal scores the earlier
 *
 * Bits of scores depend on the token and its keys alone. Attention over the list is in
 * attn_chunk.cu. */
#include "kernels/index.h"
#include "kernels/pages.cuh"

#define THREADS 256
#define WARPS   (THREADS / 32)
#define KEYS    8 /* of a warp at a time */
#define DIM     K_INDEX_DIM_FAST
#define HEADS   K_INDEX_HEADS_FAST
#define BINS    256

static_assert(HEADS == 2 * 32, "a lane has two heads");
static_assert(BINS == THREADS, "a thread has a bin");

struct index_args {
    k_index x;
    k_kv kv;
    k_tokens t;
    const k_bf16 *in; /* keys, or queries */
    const float *weights;
    int32_t *chosen;
};

/* --- keys --------------------------------------------------------------------------------- */

static __device__ inline float index_warp_sum(float x)
{
    for (int other = 16; other > 0; other /= 2)
        x += __shfl_xor_sync(~0U, x, other);
    return x;
}

/* Element i of x [dim], rotated. */
static __device__ inline float index_turned(const index_args &a, const float *x, int pos, int i)
{
    const k_index_shape &s = a.x.shape;
    int half = s.rope_dim / 2, pair = a.x.interleaved ? i / 2 : i % half;
    bool is_high = a.x.interleaved ? i % 2 == 1 : i >= half;
    const float *turn = a.x.turns + (size_t)pos * s.rope_dim + 2 * pair;
    int low, high;

    if (i >= s.rope_dim)
        return x[i];
    low = a.x.interleaved ? 2 * pair : pair;
    high = a.x.interleaved ? low + 1 : pair + half;
    return is_high ? x[high] * turn[0] + x[low] * turn[1] : x[low] * turn[0] - x[high] * turn[1];
}

static __global__ void __launch_bounds__(THREADS) index_keys_kernel(const index_args a)
{
    extern __shared__ __align__(16) float index_shared[]; /* [WARPS][dim] */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.x * WARPS + warp;
    int dim = a.x.shape.dim, seq, pos;
    float mean = 0.0f, square = 0.0f, scale, *row = index_shared + warp * dim;
    k_bf16 *to;

    if (token >= a.t.n_tokens || a.t.kv_len[a.t.seq[token]] == 0)
        return;
    seq = a.t.seq[token];
    pos = a.t.pos[token];
    for (int i = lane; i < dim; i += 32)
        mean += row[i] = load_bf16(a.in + (size_t)token * dim + i);
    mean = index_warp_sum(mean) / dim;
    for (int i = lane; i < dim; i += 32)
        square += (row[i] - mean) * (row[i] - mean);
    scale = rsqrtf(index_warp_sum(square) / dim + a.x.eps);
    for (int i = lane; i < dim; i += 32)
        row[i] = (row[i] - mean) * scale * load_bf16((const k_bf16 *)a.x.norm + i) +
                 load_bf16((const k_bf16 *)a.x.bias + i);
    __syncwarp();
    to = key_row(a.kv, a.t.page_ids + (size_t)seq * a.t.pages_max, pos, 0);
    for (int i = lane; i < dim; i += 32)
        store_bf16(to + i, index_turned(a, row, pos, i));
}

/* --- scores ------------------------------------------------------------------------------- */

struct index_scoring {
    float query[DIM][HEADS], weight[HEADS]; /* 0 behind the last head */
    float keys[WARPS][DIM][KEYS];
};

struct index_choosing {
    unsigned counts[BINS];
    int warps[2][WARPS]; /* equal and chosen positions of each warp */
    unsigned bits;       /* of the least score, as far as they are known */
    int left;            /* places for scores that begin with these bits */
};

union index_memory {
    index_scoring scoring;
    index_choosing choosing;
};

/* The queries of a token, rotated, and their weights. */
static __device__ inline void index_load_queries(const index_args &a, index_scoring &m, int token)
{
    const k_index_shape &s = a.x.shape;
    const k_bf16 *from = a.in + (size_t)token * s.n_heads * s.dim;
    float *plain = &m.keys[0][0][0]; /* a row of a head at a time for each warp */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int head = warp; head < HEADS; head += WARPS) {
        float *row = plain + warp * DIM * KEYS;

        for (int i = lane; i < s.dim; i += 32)
            row[i] = head < s.n_heads ? load_bf16(from + head * s.dim + i) : 0.0f;
        __syncwarp();
        for (int i = lane; i < s.dim; i += 32)
            m.query[i][head] = index_turned(a, row, a.t.pos[token], i);
        __syncwarp();
    }
    if (threadIdx.x < HEADS)
        m.weight[threadIdx.x] = (int)threadIdx.x < s.n_heads
                                    ? a.weights[(size_t)token * s.n_heads + threadIdx.x]
                                    : 0.0f;
    __syncthreads();
}

/* KEYS keys of a warp, by elements; those behind the last one are 0. */
static __device__ inline void index_load_keys(const index_args &a, float (*to)[KEYS],
                                              const int32_t *pages, int first, int n)
{
    int lane = threadIdx.x % 32, dim = a.x.shape.dim;

    for (int j = 0; j < KEYS; j++) {
        const k_bf16 *row = first + j < n ? key_row(a.kv, pages, first + j, 0) : NULL;

        for (int i = lane; i < dim; i += 32)
            to[i][j] = row != NULL ? load_bf16(row + i) : 0.0f;
    }
    __syncwarp();
}

/* The scores of positions 0 .. n - 1. */
static __device__ inline void index_score(const index_args &a, index_scoring &m, float *scores,
                                          int token, int n)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.x.shape.dim;
    const int32_t *pages = a.t.page_ids + (size_t)a.t.seq[token] * a.t.pages_max;
    float(*keys)[KEYS] = m.keys[warp];

    for (int first = warp * KEYS; first < n; first += WARPS * KEYS) {
        float dots[2][KEYS] = {};

        index_load_keys(a, keys, pages, first, n);
        for (int i = 0; i < dim; i++) {
            float one = m.query[i][lane], other = m.query[i][lane + 32];

            for (int j = 0; j < KEYS; j++) {
                dots[0][j] += one * keys[i][j];
                dots[1][j] += other * keys[i][j];
            }
        }
        for (int j = 0; j < KEYS; j++) {
            float sum = index_warp_sum(m.weight[lane] * fmaxf(dots[0][j], 0.0f) +
                                       m.weight[lane + 32] * fmaxf(dots[1][j], 0.0f));

            if (lane == j && first + j < n)
                scores[first + j] = sum;
        }
        __syncwarp();
    }
    __syncthreads();
}

/* --- the choice --------------------------------------------------------------------------- */

/* An integer that is ordered as the number is; both zeros are equal, and NaN is least. */
static __device__ inline unsigned index_order(float x)
{
    unsigned bits = __float_as_uint(x == 0.0f ? 0.0f : x);

    if (x != x)
        return 0;
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}

/* Eight more bits of the least score that is chosen: those above `shift` are known. */
static __device__ inline void index_narrow(index_choosing &c, const float *scores, int n, int shift)
{
    unsigned known = shift < 24 ? ~0U << (shift + 8) : 0U;

    c.counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) {
        unsigned order = index_order(scores[i]);

        if ((order & known) == c.bits)
            atomicAdd(&c.counts[order >> shift & (BINS - 1)], 1U);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int bin = BINS - 1;

        while (bin > 0 && (int)c.counts[bin] < c.left)
            c.left -= (int)c.counts[bin--];
        c.bits |= (unsigned)bin << shift;
    }
    __syncthreads();
}

/* How many of the threads before this one, in the block, say yes; all: of the block. */
static __device__ inline int index_rank(int *warps, bool yes, int *all)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, before = 0;
    unsigned votes = __ballot_sync(~0U, yes);

    if (lane == 0)
        warps[warp] = __popc(votes);
    __syncthreads();
    *all = 0;
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? warps[w] : 0;
        *all += warps[w];
    }
    return before + __popc(votes & ((1U << lane) - 1));
}

/* List the n_keys largest of n scores, by their positions. */
static __device__ inline void index_list(index_choosing &c, int32_t *chosen, const float *scores,
                                         int n, int n_keys)
{
    int n_equal = 0, n_chosen = 0;

    if (threadIdx.x == 0) {
        c.bits = 0;
        c.left = n_keys;
    }
    for (int shift = 24; shift >= 0; shift -= 8)
        index_narrow(c, scores, n, shift);
    for (int first = 0; first < n; first += THREADS) {
        int i = first + threadIdx.x, all_equal, all_chosen, at;
        unsigned order = i < n ? index_order(scores[i]) : 0;
        bool is_equal = i < n && order == c.bits, is_chosen;

        is_chosen = index_rank(c.warps[0], is_equal, &all_equal) + n_equal < c.left && is_equal;
        is_chosen = is_chosen || (i < n && order > c.bits);
        at = index_rank(c.warps[1], is_chosen, &all_chosen) + n_chosen;
        if (is_chosen)
            chosen[at] = i;
        n_equal += all_equal;
        n_chosen += all_chosen;
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(THREADS) index_choose_kernel(const index_args a)
{
    extern __shared__ __align__(16) float index_shared[];
    index_memory &m = *(index_memory *)index_shared;
    float *scores = a.x.scores + (size_t)blockIdx.x * a.x.scores_len;
    int n_keys = a.x.shape.n_keys;

    for (int token = blockIdx.x; token < a.t.n_tokens; token += gridDim.x) {
        int n = a.t.kv_len[a.t.seq[token]] == 0 ? 0 : a.t.pos[token] + 1;
        int32_t *chosen = a.chosen + (size_t)token * n_keys;

        if (n <= n_keys) {
            for (int i = threadIdx.x; i < n_keys; i += THREADS)
                chosen[i] = i < n ? i : -1;
            continue;
        }
        index_load_queries(a, m.scoring, token);
        index_score(a, m.scoring, scores, token, n);
        index_list(m.choosing, chosen, scores, n, n_keys);
        __syncthreads();
    }
}

/* --- launchers ------------------------------------------------------------------------------ */

int k_index_keys(const k_bf16 *in, const struct k_index *x, const struct k_kv *kv,
                 const struct k_tokens *t, k_stream stream)
{
    const index_args args = {*x, *kv, *t, in, NULL, NULL};

    if (kv->type != K_BF16 || x->shape.dim > K_INDEX_DIM_MAX)
        return -1;
    return K_LAUNCH(index_keys_kernel, (t->n_tokens + WARPS - 1) / WARPS, THREADS,
                    WARPS * x->shape.dim * sizeof(float), stream, args);
}

int k_index_choose(int32_t *chosen, const k_bf16 *queries, const float *weights,
                   const struct k_index *x, const struct k_kv *kv, const struct k_tokens *t,
                   k_stream stream)
{
    const index_args args = {*x, *kv, *t, queries, weights, chosen};
    int n_blocks = t->n_tokens < K_INDEX_BLOCKS ? t->n_tokens : K_INDEX_BLOCKS;

    if (kv->type != K_BF16 || x->shape.dim > DIM || x->shape.n_heads > HEADS)
        return -1;
    if (cudaFuncSetAttribute(index_choose_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(index_memory)) != cudaSuccess)
        return -1;
    return K_LAUNCH(index_choose_kernel, n_blocks, THREADS, sizeof(index_memory), stream, args);
}
