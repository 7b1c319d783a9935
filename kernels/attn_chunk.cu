/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of several query tokens per sequence over its pages, on tensor cores, for every
 * shape. sm90_attn_chunk.cu is faster for the shapes that it supports.
 *
 * One block of eight warps per (tile, kv head). A tile's 128 rows are pairs (token, query head of
 * the group), so that grouped heads share the keys that are read; a warp owns 16 rows. Keys and
 * values come in blocks of 64 positions through shared memory; scores are q [64][D] . k [64][D],
 * stay in registers, and become the left operand of the second product (mma.m16n8k16: the
 * accumulator's layout is the operand's). The softmax runs in float32.
 *
 *   for each 64 keys:  K -> S = q . K^T -> mask -> P = 2^(S - max), rescale O -> V -> O += P . V
 *
 * D is head_dim rounded up to the next size that was built; the elements between are zero. Heads
 * above 256 have two blocks, each with the values and the output of one part of the elements: both
 * compute all scores, from 32 keys at a time: 137 TFLOP/s of a prompt of 8192 in bf16, 73 in e4m3,
 * where heads of 256 have 619 in sm90_attn_chunk.cu. Latents (latent.h) are such heads, of 576
 * elements and values of 512, with all query heads in one group; their decodes are tiles of one
 * token, whose keys one block reads. So are all tokens that see chosen positions (index.h): their
 * keys are those of a list. Source: the scheme of FlashAttention-2
 * (arXiv:2307.08691). */
#include "kernels/attn_chunk.cuh"
#include "kernels/choice.h"
#include "kernels/e4m3.cuh"
#include "kernels/index.h"
#include "kernels/latent.h"
#include "kernels/pages.cuh"

#define WARPS   8
#define ROWS    K_TILE_ROWS
#define PAD     8 /* elements after a row, so that ldmatrix meets all banks */
#define LOG2_E  1.44269504f
#define NOTHING (-1e30f)

static_assert(ROWS == WARPS * 16, "a warp owns the 16 rows of one mma");

struct chunk_args {
    k_bf16 *out;
    const k_bf16 *qkv;
    struct k_kv kv;
    struct k_tokens t;
    struct k_attn_plan plan;
    int n_heads;
    float scale, out_scale; /* factor of scores, of the output */
    int width;              /* elements of a row of qkv */
    int value_dim;
    k_choice chosen; /* positions (index.h), NULL: all keys */
};

/* Keys at a time; the parts of a head's values, and the elements of one. Accumulators of 256
 * elements are all that registers hold. */
template <int D> struct chunk_form {
    static constexpr int BLOCK = D > 128 ? 32 : 64; /* 64 of 256 would not fit into 99 KB */
    static constexpr int PARTS = D > 256 ? 2 : 1;
    static constexpr int PART = D > 512 ? 256 : D / PARTS; /* values of latents are narrower */

    /* The first element of this block's part. */
    static __device__ __forceinline__ int first()
    {
        return PARTS == 1 ? 0 : blockIdx.z * PART;
    }
};

/* Copy a row of hd elements into D of shared memory; from NULL: zeros. Eight threads per row.
 * is_whole: it is aligned, and of whole 16 bytes. */
template <int D>
static __device__ inline void chunk_copy_row(bf16 *to, const k_bf16 *from, int hd, bool is_whole,
                                             int part)
{
    for (int d = part * 8; d < D; d += 64) {
        if (from != NULL && is_whole && d < hd) {
            chunk_copy16(to + d, from + d);
            continue;
        }
        for (int elem = d; elem < d + 8; elem += 2)
            *(uint32_t *)(to + elem) =
                from != NULL && elem < hd ? *(const uint32_t *)(from + elem) : 0U;
    }
}

/* Copy a row of e4m3, which has to be widened on the way. */
template <int D>
static __device__ inline void chunk_widen_row(bf16 *to, const uint8_t *from, int hd, bool is_whole,
                                              int part)
{
    for (int d = part * 8; d < D; d += 64) {
        if (from != NULL && is_whole && d < hd) {
            *(uint4 *)(to + d) = widen_eight(*(const uint2 *)(from + d));
            continue;
        }
        for (int elem = d; elem < d + 8; elem += 2)
            *(uint32_t *)(to + elem) =
                from != NULL && elem < hd ? widen_two(*(const uint16_t *)(from + elem)) : 0U;
    }
}

/* The part of a warp's 16 rows that one thread has: rows lane / 4 and lane / 4 + 8. */
template <int D> struct chunk_state {
    float acc[chunk_form<D>::PART / 8][4];
    float top[2], sum[2];
};

/* score [16][BLOCK] = q . k, in units of log2. */
template <int D>
static __device__ inline void chunk_score_block(float score[chunk_form<D>::BLOCK / 8][4],
                                                const bf16 *q, const bf16 *k)
{
    constexpr int BLOCK = chunk_form<D>::BLOCK;
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int j = 0; j < BLOCK / 8; j++)
        score[j][0] = score[j][1] = score[j][2] = score[j][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[4];

        chunk_load_matrices(a, q + (lane % 16) * (D + PAD) + d + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < BLOCK / 16; j++) {
            uint32_t b[4];

            chunk_load_matrices(b, k + (j * 16 + lane % 8 + lane / 16 * 8) * (D + PAD) + d +
                                       lane / 8 % 2 * 8);
            chunk_multiply(score[2 * j], a, b[0], b[1]);
            chunk_multiply(score[2 * j + 1], a, b[2], b[3]);
        }
    }
}

/* The running softmax: turn scores into weights, and rescale the accumulators by the change of the
 * maximum. limit: the last key that each of the two rows may attend to, relative to the block;
 * window: how many keys up to there. scale, cap: in units of log2. */
template <int D>
static __device__ inline void chunk_soften(chunk_state<D> &st,
                                           float score[chunk_form<D>::BLOCK / 8][4], float scale,
                                           float cap, const int limit[2], uint32_t window)
{
    constexpr int BLOCK = chunk_form<D>::BLOCK;
    int col = threadIdx.x % 4 * 2;

#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = st.top[row], shrink;

#pragma unroll
        for (int j = 0; j < BLOCK / 8; j++) {
#pragma unroll
            for (int elem = 0; elem < 2; elem++) {
                float *s = &score[j][2 * row + elem];

                *s = (uint32_t)(limit[row] - (j * 8 + col + elem)) < window
                         ? soft_cap(*s * scale, cap)
                         : -INFINITY;
                top = fmaxf(top, *s);
            }
        }
        top = fmaxf(top, __shfl_xor_sync(~0U, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0U, top, 2));
        shrink = exp2_fast(st.top[row] - top);
        st.top[row] = top;
        st.sum[row] *= shrink;
#pragma unroll
        for (int j = 0; j < chunk_form<D>::PART / 8; j++) {
            st.acc[j][2 * row] *= shrink;
            st.acc[j][2 * row + 1] *= shrink;
        }
#pragma unroll
        for (int j = 0; j < BLOCK / 8; j++) {
#pragma unroll
            for (int elem = 0; elem < 2; elem++) {
                float weight = exp2_fast(score[j][2 * row + elem] - top);

                score[j][2 * row + elem] = weight;
                st.sum[row] += weight;
            }
        }
    }
}

/* O += P . V; the scores' accumulators are already in the layout of a left operand. */
template <int D>
static __device__ inline void chunk_add_values(chunk_state<D> &st,
                                               const float weight[chunk_form<D>::BLOCK / 8][4],
                                               const bf16 *v)
{
    constexpr int PART = chunk_form<D>::PART;
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int j = 0; j < chunk_form<D>::BLOCK / 16; j++) {
        uint32_t a[4] = {pack_bf16(weight[2 * j][0], weight[2 * j][1]),
                         pack_bf16(weight[2 * j][2], weight[2 * j][3]),
                         pack_bf16(weight[2 * j + 1][0], weight[2 * j + 1][1]),
                         pack_bf16(weight[2 * j + 1][2], weight[2 * j + 1][3])};

#pragma unroll
        for (int d = 0; d < PART; d += 16) {
            uint32_t b[4];

            chunk_load_matrices_turned(b,
                                       v + (j * 16 + lane % 16) * (PART + PAD) + d + lane / 16 * 8);
            chunk_multiply(st.acc[d / 8], a, b[0], b[1]);
            chunk_multiply(st.acc[d / 8 + 1], a, b[2], b[3]);
        }
    }
}

/* The keys of a block: positions lowest .. last, or those that a list has there. */
struct chunk_keys {
    const int32_t *pages, *chosen; /* chosen NULL: no list */
    int kv_head, lowest, last;
};

/* Copy hd elements of keys or values from an offset (0, or value_elems() and more), of BLOCK
 * positions from base, into rows of W; zeros after last, and before lowest, where pages may belong
 * to other sequences. */
template <int W, int BLOCK>
static __device__ inline void chunk_copy_block(bf16 *to, const chunk_args &a, const chunk_keys &k,
                                               int base, size_t offset, int hd)
{
    bool is_whole = hd % 8 == 0 && a.kv.head_dim % 8 == 0;

    for (int row_idx = threadIdx.x / 8; row_idx < BLOCK; row_idx += WARPS * 4) {
        int at = base + row_idx;
        bool is_key = at >= k.lowest && at <= k.last;
        int pos = is_key && k.chosen != NULL ? k.chosen[at] : at;
        const k_bf16 *from =
            is_key ? key_row(a.kv, k.pages, pos, k.kv_head) + offset : (const k_bf16 *)NULL;
        bf16 *row = to + row_idx * (W + PAD);

        if (a.kv.type == K_BF16)
            chunk_copy_row<W>(row, from, hd, is_whole, threadIdx.x % 8);
        else /* its index in an array of bytes */
            chunk_widen_row<W>(row,
                               is_key ? (const uint8_t *)a.kv.pages + (from - (k_bf16 *)a.kv.pages)
                                      : (const uint8_t *)NULL,
                               hd, is_whole, threadIdx.x % 8);
    }
    chunk_end_group();
}

/* Epilogue: add the sums of the four lanes of a row, divide, and write the heads that exist. */
template <int D>
static __device__ void chunk_write_rows(const chunk_state<D> &st, const chunk_args &a, int token0,
                                        int n_tokens, int kv_head)
{
    int group = a.n_heads / a.kv.n_kv_heads, hd = a.value_dim, lane = threadIdx.x % 32;

#pragma unroll
    for (int row_idx = 0; row_idx < 2; row_idx++) {
        int row = threadIdx.x / 32 * 16 + lane / 4 + 8 * row_idx, token = row / group;
        float sum = st.sum[row_idx], scale;

        sum += __shfl_xor_sync(~0U, sum, 1);
        sum += __shfl_xor_sync(~0U, sum, 2);
        if (a.kv.sinks != NULL && token < n_tokens)
            sum += exp2_fast(a.kv.sinks[kv_head * group + row % group] * LOG2_E - st.top[row_idx]);
        scale = a.out_scale / sum;
        if (token >= n_tokens)
            continue;
#pragma unroll
        for (int j = 0; j < chunk_form<D>::PART / 8; j++) {
            int d = chunk_form<D>::first() + j * 8 + lane % 4 * 2;
            size_t head = kv_head * group + row % group;

            if (d < hd)
                store_x_two(a.out, ((size_t)(token0 + token) * a.n_heads + head) * hd + d,
                            st.acc[j][2 * row_idx] * scale, st.acc[j][2 * row_idx + 1] * scale,
                            a.plan.out_is_half);
        }
    }
}

/* The tokens of a block, and the keys of the last of them. */
struct chunk_tile {
    int token0, n_tokens, pos0; /* pos0: of the first, among the keys */
    chunk_keys keys;
};

/* A tile of a plan; all its tokens follow each other. */
static __device__ inline chunk_tile chunk_tile_of(const chunk_args &a, int seq)
{
    int start = a.plan.tile_starts != NULL ? a.plan.tile_starts[blockIdx.x] : 0; /* NULL: decodes */
    int n_seq = a.t.seq_start[seq + 1] - a.t.seq_start[seq];
    int n_tokens = min(K_TILE_TOKENS(a.n_heads / a.kv.n_kv_heads), n_seq - start);
    int pos0 = a.t.kv_len[seq] - n_seq + start;
    uint32_t window = a.kv.window > 0 ? (uint32_t)a.kv.window : 1U << 31;

    return {a.t.seq_start[seq] + start,
            n_tokens,
            pos0,
            {a.t.page_ids + (size_t)seq * a.t.pages_max, NULL, (int)blockIdx.y,
             (uint32_t)pos0 < window ? 0 : pos0 - (int)window + 1, pos0 + n_tokens - 1}};
}

/* A token that sees chosen positions, of which there are as many as it may see, or n_keys. */
static __device__ inline chunk_tile chunk_chosen_tile(const chunk_args &a, int seq)
{
    int token = blockIdx.x, last = min(a.chosen.n_keys, a.t.pos[token] + 1) - 1;

    return {token,
            1,
            last,
            {a.t.page_ids + (size_t)seq * a.t.pages_max,
             a.chosen.positions + (size_t)token * a.chosen.n_keys, (int)blockIdx.y, 0, last}};
}

template <int D, bool CHOSEN>
static __global__ void __launch_bounds__(WARPS * 32) attn_chunk_kernel(const chunk_args a)
{
    using form = chunk_form<D>;
    constexpr int BLOCK = form::BLOCK;
    extern __shared__ __align__(16) char shared[];
    bf16 *queries = (bf16 *)shared, *keys = queries + ROWS * (D + PAD),
         *values = keys + BLOCK * (D + PAD);
    int group = a.n_heads / a.kv.n_kv_heads, hd = a.kv.head_dim, tile_idx = blockIdx.x;
    int seq = CHOSEN                     ? a.t.seq[tile_idx]
              : a.plan.tile_seqs != NULL ? a.plan.tile_seqs[tile_idx]
                                         : tile_idx;
    const chunk_tile tile = CHOSEN ? chunk_chosen_tile(a, seq) : chunk_tile_of(a, seq);
    int warp = threadIdx.x / 32, row0 = warp * 16 + threadIdx.x % 32 / 4;
    uint32_t window = a.kv.window > 0 ? (uint32_t)a.kv.window : 1U << 31;
    int first = tile.keys.lowest / BLOCK * BLOCK;
    size_t values_at = value_elems(a.kv) + form::first();
    chunk_state<D> st;

    if (a.t.kv_len[seq] == 0)
        return;
    for (int row = threadIdx.x / 8; row < ROWS; row += WARPS * 4) {
        size_t head = blockIdx.y * group + row % group;
        const k_bf16 *from = a.qkv + (size_t)(tile.token0 + row / group) * a.width + head * hd;

        chunk_copy_row<D>(queries + row * (D + PAD), row / group < tile.n_tokens ? from : NULL, hd,
                          hd % 8 == 0, threadIdx.x % 8);
    }
    for (int j = 0; j < form::PART / 8; j++)
        st.acc[j][0] = st.acc[j][1] = st.acc[j][2] = st.acc[j][3] = 0.0f;
    st.top[0] = st.top[1] = NOTHING;
    st.sum[0] = st.sum[1] = 0.0f;
    chunk_copy_block<D, BLOCK>(keys, a, tile.keys, first, 0, hd);
    for (int base = first; base <= tile.keys.last; base += BLOCK) {
        float score[BLOCK / 8][4];
        int limit[2] = {tile.pos0 + row0 / group - base, tile.pos0 + (row0 + 8) / group - base};

        chunk_copy_block<form::PART, BLOCK>(values, a, tile.keys, base, values_at,
                                            a.value_dim - form::first());
        chunk_wait_groups<1>(); /* the keys */
        __syncthreads();
        chunk_score_block<D>(score, queries + warp * 16 * (D + PAD), keys);
        chunk_soften<D>(st, score, a.scale * LOG2_E, a.kv.cap * LOG2_E, limit, window);
        __syncthreads();
        /* Past the end: zeros. */
        chunk_copy_block<D, BLOCK>(keys, a, tile.keys, base + BLOCK, 0, hd);
        chunk_wait_groups<1>(); /* the values */
        __syncthreads();
        chunk_add_values<D>(st, score, values);
        __syncthreads();
    }
    chunk_wait_groups<0>();
    chunk_write_rows<D>(st, a, tile.token0, tile.n_tokens, blockIdx.y);
}

/* Shared memory for queries and one block each of keys and values: more than the default limit. */
template <int D, bool CHOSEN = false>
static int chunk_launch_dim(const chunk_args &a, k_stream stream)
{
    using form = chunk_form<D>;
    size_t elems = (ROWS + form::BLOCK) * (D + PAD) + form::BLOCK * (form::PART + PAD);
    size_t smem = elems * sizeof(bf16);
    int parts = (a.value_dim + form::PART - 1) / form::PART;
    int n_tiles = CHOSEN ? a.t.n_tokens : a.plan.n_tiles;

    if (cudaFuncSetAttribute(attn_chunk_kernel<D, CHOSEN>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem) != cudaSuccess)
        return -1;
    return K_LAUNCH((attn_chunk_kernel<D, CHOSEN>), dim3(n_tiles, a.kv.n_kv_heads, parts),
                    WARPS * 32, smem, stream, a);
}

/* The scales of e4m3 pages are applied to scores and to the output, not to each key and value. */
int k_attn_chunk_plain(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                       const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                       float scale, k_stream stream)
{
    int hd = kv->head_dim;
    chunk_args args = {out,
                       qkv,
                       *kv,
                       *t,
                       *plan,
                       n_heads,
                       scale,
                       1.0f,
                       k_qkv_heads(kv, n_heads) * hd,
                       kv->value_dim > 0 ? kv->value_dim : hd,
                       {}};

    if (kv->type == K_E4M3) {
        args.scale *= kv->k_scale;
        args.out_scale = kv->v_scale;
    }
    if (hd <= 16)
        return chunk_launch_dim<16>(args, stream);
    if (hd <= 32)
        return chunk_launch_dim<32>(args, stream);
    if (hd <= 64)
        return chunk_launch_dim<64>(args, stream);
    if (hd <= 96)
        return chunk_launch_dim<96>(args, stream);
    if (hd <= 128)
        return chunk_launch_dim<128>(args, stream);
    if (hd <= 256)
        return chunk_launch_dim<256>(args, stream);
    if (hd <= 512)
        return chunk_launch_dim<512>(args, stream);
    return chunk_launch_dim<K_LATENT_RANK_MAX + K_LATENT_ROPE_MAX>(args, stream);
}

/* Decodes are tiles of one token, and write other rows of out than chunks of prompts. */
int k_attn_latents_plain(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                         const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                         float scale, k_stream stream)
{
    struct k_attn_plan decodes = *plan;
    int rc = 0;

    if (n_heads > K_LATENT_HEADS_MAX)
        return -1;
    decodes.tile_seqs = plan->decode_seqs;
    decodes.tile_starts = NULL;
    decodes.n_tiles = plan->n_decodes;
    if (plan->n_decodes > 0)
        rc = k_attn_chunk_plain(out, qkv, kv, t, &decodes, n_heads, scale, stream);
    if (rc == 0 && plan->n_tiles > 0)
        rc = k_attn_chunk_plain(out, qkv, kv, t, plan, n_heads, scale, stream);
    return rc;
}

/* Rows of 32 and 256 elements are those of tests. */
int k_attn_chosen(k_bf16 *out, const k_bf16 *queries, const struct k_kv *kv,
                  const struct k_tokens *t, const struct k_choice *chosen, int n_heads, float scale,
                  k_stream stream)
{
    chunk_args args = {
        out,           queries, *kv, *t, {}, n_heads, scale, 1.0f, n_heads * kv->head_dim,
        kv->value_dim, *chosen};

    if (n_heads > K_LATENT_HEADS_MAX || kv->value_dim == 0 || kv->type != K_BF16)
        return -1;
    if (kv->head_dim <= 32)
        return chunk_launch_dim<32, true>(args, stream);
    if (kv->head_dim <= 256)
        return chunk_launch_dim<256, true>(args, stream);
    return chunk_launch_dim<K_LATENT_RANK_MAX + K_LATENT_ROPE_MAX, true>(args, stream);
}
