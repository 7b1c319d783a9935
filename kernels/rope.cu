/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms of heads, rotary positions, and the write of keys and values to pages: one block per token.
 * If halves of heads are whole 16 bytes, a thread has eight elements and their partners; with norms
 * a head has a power of two of threads, some of which may be idle. Otherwise one warp at a time has
 * a head, element by element. Each element of qkv is read and written once (with norms the last of
 * these variants reads it twice).
 *
 * Both are built three times: without norms, with norms of queries and keys, and with the
 * features of few models (norms of values, keys that another layer wrote, normed heads of 512), for
 * which the common two do not pay. */
#include "kernels/pages.cuh"

#define ROPE_WARPS   8
#define WIDE         8   /* elements of a thread, and as many partners */
#define WIDE_THREADS 512 /* at most, per block */

/* The part of struct k_rotary that only kernels with norms read. */
struct head_norms {
    const k_bf16 *q, *k; /* weights */
    float eps;
    bool after;  /* the rotation */
    bool values; /* are normed, without weights */
};

enum rope_form { ROPE_PLAIN, ROPE_NORMED, ROPE_RARE };

/* Write eight elements to a page. */
static __device__ inline void rope_store_wide_kv(const struct k_kv &kv, size_t elem, float scale,
                                                 const float x[WIDE])
{
    uint32_t word[2];

    if (kv.type == K_BF16) {
        store_eight((k_bf16 *)kv.pages + elem, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        word[i] = stored_two(K_E4M3, scale, x[4 * i], x[4 * i + 1]) |
                  stored_two(K_E4M3, scale, x[4 * i + 2], x[4 * i + 3]) << 16;
    *(uint2 *)((uint8_t *)kv.pages + elem) = make_uint2(word[0], word[1]);
}

/* Threads of a head of so many pieces: a power of two with norms, for the reduction. */
static __host__ __device__ inline int rope_wide_lanes(int pieces, bool is_normed)
{
    int lanes = 1;

    while (lanes < pieces)
        lanes *= 2;
    return is_normed ? lanes : pieces;
}

/* Norm a head; all its threads, `lanes` neighbours, must call. weight: of this thread's first
 * element; NULL, which only ROPE_RARE passes: all are 1. An idle thread has zeros and reads no
 * weights. */
template <int FORM>
static __device__ inline void rope_norm_wide(float low[WIDE], float high[WIDE],
                                             const k_bf16 *weight, int hd, int lanes, float eps,
                                             bool is_idle)
{
    unsigned mask = ((1U << lanes) - 1) << (threadIdx.x % 32 / lanes * lanes);
    float sums[WIDE / 2], sum, inverse, weights[2][WIDE] = {};

    if (FORM == ROPE_RARE) {
        mask = lanes == 32 ? ~0U : mask;
#pragma unroll
        for (int elem = 0; elem < WIDE; elem++)
            weights[0][elem] = weights[1][elem] = 1.0f;
    }
    if (!is_idle && (FORM != ROPE_RARE || weight != NULL)) {
        load_eight(weights[0], weight);
        load_eight(weights[1], weight + hd / 2);
    }
#pragma unroll
    for (int elem = 0; elem < WIDE; elem += 2)
        sums[elem / 2] =
            square_four(make_float4(low[elem], low[elem + 1], high[elem], high[elem + 1]));
    sum = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
    for (int apart = 1; apart < lanes; apart *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(mask, sum, apart));
    inverse = head_inverse(sum, __frcp_rn((float)hd), eps);
#pragma unroll
    for (int elem = 0; elem < WIDE; elem++) {
        low[elem] = normed(low[elem], inverse, weights[0][elem]);
        high[elem] = normed(high[elem], inverse, weights[1][elem]);
    }
}

/* Rotate eight pairs. */
static __device__ inline void rope_turn_wide(float low[WIDE], float high[WIDE], const float4 *turn)
{
#pragma unroll
    for (int k = 0; k < WIDE; k += 2) {
        float4 cs = turn[k / 2];
        float x0 = low[k], x1 = low[k + 1];

        low[k] = turn_lower(x0, high[k], make_float2(cs.x, cs.y));
        high[k] = turn_upper(high[k], x0, make_float2(cs.x, cs.y));
        low[k + 1] = turn_lower(x1, high[k + 1], make_float2(cs.z, cs.w));
        high[k + 1] = turn_upper(high[k + 1], x1, make_float2(cs.z, cs.w));
    }
}

template <int FORM>
static __global__ void __launch_bounds__(WIDE_THREADS)
    rope_kv_wide_kernel(k_bf16 *qkv, struct k_kv kv, struct k_tokens t, const float *turns,
                        int n_heads, struct head_norms norms)
{
    constexpr bool RARE = FORM == ROPE_RARE, NORMED = FORM != ROPE_PLAIN;
    int token = blockIdx.x, hd = kv.head_dim, half = hd / 2, pieces = half / WIDE;
    int lanes = rope_wide_lanes(pieces, NORMED);
    int n_turned = n_heads + (RARE && kv.is_shared ? 0 : kv.n_kv_heads);
    int n_all = n_turned + (RARE && kv.is_shared ? 0 : kv.n_kv_heads);
    int pos = t.pos[token], seq = t.seq[token];
    const int32_t *pages = t.page_ids + (size_t)seq * t.pages_max;
    const float4 *turn = (const float4 *)(turns + (size_t)pos * hd);
    bool is_padding = t.kv_len[seq] == 0;

    wait_for_previous(); /* attention reads keys before it waits, so it begins after the end */
    for (int i = threadIdx.x; i < n_all * lanes; i += blockDim.x) {
        int h = i / lanes, d = i % lanes * WIDE;
        bool is_value = h >= n_turned, is_idle = NORMED && d >= half;
        k_bf16 *from = qkv + ((size_t)token * n_all + h) * hd + d;
        float low[WIDE] = {}, high[WIDE] = {}, scale = is_value ? kv.v_scale : kv.k_scale;
        size_t elem;

        if (!is_idle) {
            load_eight(low, from);
            load_eight(high, from + half);
        }
        if (is_padding) /* known only after the loads have begun */
            return;
        if (RARE && is_value && norms.values)
            rope_norm_wide<FORM>(low, high, NULL, hd, lanes, norms.eps, is_idle);
        if (NORMED && !is_value && !norms.after && (!RARE || norms.q != NULL))
            rope_norm_wide<FORM>(low, high, (h < n_heads ? norms.q : norms.k) + d, hd, lanes,
                                 norms.eps, is_idle);
        if (!is_value && !is_idle)
            rope_turn_wide(low, high, turn + d / 2);
        if (NORMED && !is_value && norms.after && (!RARE || norms.q != NULL))
            rope_norm_wide<FORM>(low, high, (h < n_heads ? norms.q : norms.k) + d, hd, lanes,
                                 norms.eps, is_idle);
        if (is_idle)
            continue;
        if (h < n_heads) {
            store_eight(from, low);
            store_eight(from + half, high);
            continue;
        }
        elem = key_elem(kv, pages, pos, h - (is_value ? n_turned : n_heads)) + d;
        if (is_value)
            elem += value_elems(kv);
        rope_store_wide_kv(kv, elem, scale, low);
        rope_store_wide_kv(kv, elem + half, scale, high);
    }
}

/* One element of a page. */
static __device__ inline void rope_store_kv(const struct k_kv &kv, size_t elem, float scale,
                                            float x)
{
    uint32_t two = stored_two(kv.type, scale, x, 0.0f);

    if (kv.type == K_BF16)
        ((uint16_t *)kv.pages)[elem] = (uint16_t)two;
    else
        ((uint8_t *)kv.pages)[elem] = (uint8_t)two;
}

/* The norm of a head that a warp has; lane i has elements i, i + 32, ... of both halves. turn: of
 * the head after its rotation. */
static __device__ inline float rope_warp_inverse(const k_bf16 *x, int hd, float eps,
                                                 const float2 *turn)
{
    float sum = 0.0f;

    for (int d = threadIdx.x; d < hd / 2; d += 32) {
        float low = load_bf16(x + d), high = load_bf16(x + d + hd / 2), x0 = low;

        if (turn != NULL) {
            low = turn_lower(x0, high, turn[d]);
            high = turn_upper(high, x0, turn[d]);
        }
        sum += square_four(make_float4(low, high, 0.0f, 0.0f));
    }
    for (int apart = 1; apart < 32; apart *= 2)
        sum += __shfl_xor_sync(~0U, sum, apart);
    return head_inverse(sum, __frcp_rn((float)hd), eps);
}

template <int FORM>
static __global__ void rope_kv_kernel(k_bf16 *qkv, struct k_kv kv, struct k_tokens t,
                                      const float *turns, int n_heads, struct head_norms norms)
{
    constexpr bool RARE = FORM == ROPE_RARE, NORMED = FORM != ROPE_PLAIN;
    int token = blockIdx.x, pos = t.pos[token], hd = kv.head_dim, half = hd / 2;
    int n_all = n_heads + (RARE && kv.is_shared ? 0 : 2 * kv.n_kv_heads);
    const int32_t *pages = t.page_ids + (size_t)t.seq[token] * t.pages_max;
    const float2 *turn = (const float2 *)turns + (size_t)pos * half;

    if (t.kv_len[t.seq[token]] == 0)
        return;
    for (int h = threadIdx.y; h < n_all; h += ROPE_WARPS) {
        k_bf16 *from = qkv + ((size_t)token * n_all + h) * hd;
        bool is_value = h >= n_heads + kv.n_kv_heads;
        int kv_head = is_value ? h - n_heads - kv.n_kv_heads : h - n_heads;
        size_t elem = h < n_heads ? 0 : key_elem(kv, pages, pos, kv_head);
        const k_bf16 *weight = (h < n_heads ? norms.q : norms.k);
        bool is_normed = NORMED && !is_value && (!RARE || norms.q != NULL);
        float inverse =
            is_normed ? rope_warp_inverse(from, hd, norms.eps, norms.after ? turn : NULL) : 1.0f;

        if (RARE && is_value && norms.values)
            inverse = rope_warp_inverse(from, hd, norms.eps, NULL);

        for (int d = threadIdx.x; d < half; d += 32) {
            float2 cs = is_value ? make_float2(1.0f, 0.0f) : turn[d];
            float x0 = load_bf16(from + d), x1 = load_bf16(from + d + half), low, high;

            if (is_normed && !norms.after) {
                x0 = normed(x0, inverse, load_bf16(weight + d));
                x1 = normed(x1, inverse, load_bf16(weight + d + half));
            }
            if (RARE && is_value && norms.values) {
                x0 = normed(x0, inverse, 1.0f);
                x1 = normed(x1, inverse, 1.0f);
            }
            low = is_value ? x0 : turn_lower(x0, x1, cs);
            high = is_value ? x1 : turn_upper(x1, x0, cs);
            if (is_normed && norms.after) {
                low = normed(low, inverse, load_bf16(weight + d));
                high = normed(high, inverse, load_bf16(weight + d + half));
            }
            if (h < n_heads) {
                store_bf16(from + d, low);
                store_bf16(from + d + half, high);
            } else {
                size_t to = elem + (is_value ? value_elems(kv) : 0) + d;
                float scale = is_value ? kv.v_scale : kv.k_scale;

                rope_store_kv(kv, to, scale, low);
                rope_store_kv(kv, to + half, scale, high);
            }
        }
    }
}

/* The wide kernel needs halves of heads in whole 16 bytes, and everything aligned to that. */
template <int FORM>
static int rope_launch(k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
                       const struct k_rotary *r, int n_heads, k_stream stream)
{
    int lanes = rope_wide_lanes(kv->head_dim / (2 * WIDE), FORM != ROPE_PLAIN);
    int n_items = k_qkv_heads(kv, n_heads) * lanes;
    const struct head_norms norms = {(const k_bf16 *)r->q_norm, (const k_bf16 *)r->k_norm, r->eps,
                                     r->norms_after, r->norms_values};

    if (kv->head_dim % (2 * WIDE) == 0 &&
        ((uintptr_t)qkv | (uintptr_t)kv->pages | (uintptr_t)r->turns) % 16 == 0)
        return K_LAUNCH_EARLY(rope_kv_wide_kernel<FORM>, t->n_tokens,
                              n_items < WIDE_THREADS ? (n_items + 31) / 32 * 32 : WIDE_THREADS,
                              stream, qkv, *kv, *t, r->turns, n_heads, norms);
    return K_LAUNCH(rope_kv_kernel<FORM>, t->n_tokens, dim3(32, ROPE_WARPS), 0, stream, qkv, *kv,
                    *t, r->turns, n_heads, norms);
}

int k_rope_kv(k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
              const struct k_rotary *r, int n_heads, k_stream stream)
{
    if (kv->is_shared || r->norms_values || kv->head_dim > 2 * WIDE * 16)
        return rope_launch<ROPE_RARE>(qkv, kv, t, r, n_heads, stream);
    return r->q_norm != NULL ? rope_launch<ROPE_NORMED>(qkv, kv, t, r, n_heads, stream)
                             : rope_launch<ROPE_PLAIN>(qkv, kv, t, r, n_heads, stream);
}
