/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention before and behind attention itself, on every GPU (latent.h).
 *
 *   keys      a block per token: norm, rotation, its row in the page; and one for the norm of the
 *             latent of its queries. Bound by launches
 *   queries   a block per head and TOKENS tokens: a thread has two columns of up_k, for all of the
 *             tokens, whose queries lie in shared memory
 *   values    likewise: a warp has some rows of up_v, its lanes the columns, and sums go over them
 *
 * These products are float32 without tensor cores, for any sizes. latent_products.cu has those of
 * released models. */
#include "kernels/latent_row.cuh"

#define THREADS 256
#define TOKENS  16 /* of a block */

/* The normed latent of a token's queries. */
static __device__ inline void latent_norm_query(const latent_args &a, int token, float *shared)
{
    int rank = a.l.shape.q_rank;
    const k_bf16 *from = a.in + (size_t)token * k_latent_in(&a.l.shape);
    float inverse = latent_inverse<THREADS>(from, rank, a.l.eps, shared);

#pragma unroll 4
    for (int j = threadIdx.x; j < rank; j += THREADS)
        store_x(a.out, (size_t)token * rank + j,
                normed(load_bf16(from + j), inverse, load_bf16((const k_bf16 *)a.l.q_norm + j)),
                a.is_half);
}

/* Blocks: a token; its row, and the latent of its queries if there is one. */
static __global__ void __launch_bounds__(THREADS) latent_keys_kernel(const latent_args a)
{
    extern __shared__ __align__(16) char shared[];

    wait_for_previous();
    let_next_begin();
    if (blockIdx.y == 0)
        latent_keep_row<THREADS>(a, blockIdx.x, (float *)shared);
    else
        latent_norm_query(a, blockIdx.x, (float *)shared);
}

/* A head's matrix, from row `first` on. */
static __device__ inline const k_bf16 *latent_up(const latent_args &a, int head, int first)
{
    const k_latent_shape &s = a.l.shape;

    return (const k_bf16 *)a.l.up +
           ((size_t)head * (s.nope_dim + s.v_dim) + first) * (size_t)s.kv_rank;
}

/* The first `width` elements of a head of the block's tokens, [TOKENS][width]; zeros behind the
 * last token. at: of the head of the first token; stride: from there to the next token. */
static __device__ inline void latent_load(float *to, const latent_args &a, int width, size_t at,
                                          size_t stride)
{
    int n = a.t.n_tokens - blockIdx.y * TOKENS;

    for (int i = threadIdx.x; i < TOKENS * width; i += THREADS)
        to[i] = i / width < n ? load_bf16(a.in + at + i / width * stride + i % width) : 0.0f;
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) latent_queries_kernel(const latent_args a)
{
    extern __shared__ __align__(16) char shared[];
    float *queries = (float *)shared; /* [TOKENS][nope_dim] */
    const k_latent_shape &s = a.l.shape;
    int head = blockIdx.x, first = blockIdx.y * TOKENS, j = threadIdx.x * 2;
    int n = min(TOKENS, a.t.n_tokens - first), width = k_latent_row(&s);
    const k_bf16 *up = latent_up(a, head, 0) + j;
    float low[TOKENS], high[TOKENS];

    wait_for_previous();
    let_next_begin();
    latent_load(queries, a, s.nope_dim, latent_query_at(s, first, head), k_latent_stride(&s));
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        low[t] = high[t] = 0.0f;
    for (int d = 0; d < s.nope_dim && j < s.kv_rank; d++) {
        uint32_t two = *(const uint32_t *)(up + (size_t)d * s.kv_rank);

#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            low[t] = __fmaf_rn(queries[t * s.nope_dim + d], low_half(two), low[t]);
            high[t] = __fmaf_rn(queries[t * s.nope_dim + d], high_half(two), high[t]);
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        k_bf16 *to = (k_bf16 *)a.out + ((size_t)(first + t) * s.n_heads + head) * width;

        if (t < n && j < s.kv_rank)
            *(uint32_t *)(to + j) = pack_bf16(low[t], high[t]);
    }
    for (int i = threadIdx.x; i < n * (s.rope_dim / 2); i += THREADS) {
        int token = first + i / (s.rope_dim / 2);
        size_t at = (size_t)token * s.n_heads + head;

        latent_turn((k_bf16 *)a.out + at * width + s.kv_rank,
                    a.in + latent_query_at(s, token, head) + s.nope_dim, a, a.t.pos[token],
                    i % (s.rope_dim / 2));
    }
}

static __global__ void __launch_bounds__(THREADS) latent_values_kernel(const latent_args a)
{
    extern __shared__ __align__(16) char shared[];
    float *rows = (float *)shared; /* [TOKENS][kv_rank] */
    const k_latent_shape &s = a.l.shape;
    int head = blockIdx.x, first = blockIdx.y * TOKENS, lane = threadIdx.x % 32;
    int n = min(TOKENS, a.t.n_tokens - first);

    wait_for_previous();
    let_next_begin();
    latent_load(rows, a, s.kv_rank, ((size_t)first * s.n_heads + head) * s.kv_rank,
                (size_t)s.n_heads * s.kv_rank);
    for (int d = threadIdx.x / 32; d < s.v_dim; d += THREADS / 32) {
        const k_bf16 *up = latent_up(a, head, s.nope_dim + d);
        float sum[TOKENS];

#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            sum[t] = 0.0f;
        for (int j = lane * 2; j < s.kv_rank; j += 64) {
            uint32_t two = *(const uint32_t *)(up + j);

#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                sum[t] = __fmaf_rn(rows[t * s.kv_rank + j], low_half(two), sum[t]);
                sum[t] = __fmaf_rn(rows[t * s.kv_rank + j + 1], high_half(two), sum[t]);
            }
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            for (int i = 16; i > 0; i /= 2)
                sum[t] += __shfl_xor_sync(~0U, sum[t], i);
            if (lane == 0 && t < n)
                store_x(a.out, ((size_t)(first + t) * s.n_heads + head) * s.v_dim + d, sum[t],
                        a.is_half);
        }
    }
}

static_assert(K_LATENT_RANK_MAX <= 2 * THREADS, "a thread has two columns");
static_assert(TOKENS * K_LATENT_RANK_MAX * 4 <= 48 * 1024, "shared memory without asking");
static_assert(TOKENS * K_HEAD_DIM_MAX * 4 <= 48 * 1024, "likewise");

int k_latent_keys(void *q, bool q_is_half, const k_bf16 *in, const struct k_latent *l,
                  const struct k_kv *kv, const struct k_tokens *t, k_stream stream)
{
    latent_args args = latent_args_of(q, in, l, t);

    if (kv->type != K_BF16 && kv->type != K_E4M3)
        return -1;
    args.kv = *kv;
    args.is_half = q_is_half;
    return LATENT_LAUNCH(latent_keys_kernel, dim3(t->n_tokens, l->shape.q_rank > 0 ? 2 : 1),
                         THREADS, 33 * sizeof(float), stream, args);
}

static dim3 latent_grid(const struct k_latent *l, const struct k_tokens *t)
{
    return dim3(l->shape.n_heads, (t->n_tokens + TOKENS - 1) / TOKENS);
}

int k_latent_queries(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                     const struct k_tokens *t, k_stream stream)
{
    const latent_args args = latent_args_of(out, in, l, t);
    size_t smem = (size_t)TOKENS * l->shape.nope_dim * sizeof(float);

    if (latent_is_even(&l->shape))
        return k_latent_queries_even(out, in, l, t, stream);
    return LATENT_LAUNCH(latent_queries_kernel, latent_grid(l, t), THREADS, smem, stream, args);
}

int k_latent_values(void *out, bool is_half, const k_bf16 *in, const struct k_latent *l,
                    const struct k_tokens *t, k_stream stream)
{
    latent_args args = latent_args_of(out, in, l, t);
    size_t smem = (size_t)TOKENS * l->shape.kv_rank * sizeof(float);

    if (latent_is_even(&l->shape))
        return k_latent_values_even(out, is_half, in, l, t, stream);
    args.is_half = is_half;
    return LATENT_LAUNCH(latent_values_kernel, latent_grid(l, t), THREADS, smem, stream, args);
}
