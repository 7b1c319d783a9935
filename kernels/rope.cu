/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions and the write of keys and values into pages: one block a token. Where halves of
 * heads are whole 16 bytes a thread has eight elements and their partners; else one warp at a time
 * has a head, element by element. Reads and writes each element of qkv once. */
#include "kernels/pages.cuh"

#define ROPE_WARPS   8
#define WIDE         8   /* elements of a thread, and as many partners */
#define WIDE_THREADS 512 /* at most, of a block */

/* To a page. */
static __device__ inline void store_wide_kv(const struct k_kv &kv, size_t elem, float scale,
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

static __global__ void __launch_bounds__(WIDE_THREADS)
    rope_kv_wide_kernel(k_bf16 *qkv, struct k_kv kv, struct k_tokens t, const float *turns,
                        int n_heads)
{
    int token = blockIdx.x, hd = kv.head_dim, half = hd / 2, pieces = half / WIDE;
    int n_turned = n_heads + kv.n_kv_heads, n_all = n_turned + kv.n_kv_heads;
    int pos = t.pos[token], seq = t.seq[token];
    const int32_t *pages = t.page_ids + (size_t)seq * t.pages_max;
    const float4 *turn = (const float4 *)(turns + (size_t)pos * hd);
    bool is_padding = t.kv_len[seq] == 0;

    for (int i = threadIdx.x; i < n_all * pieces; i += blockDim.x) {
        int h = i / pieces, d = i % pieces * WIDE;
        bool is_value = h >= n_turned;
        k_bf16 *from = qkv + ((size_t)token * n_all + h) * hd + d;
        float low[WIDE], high[WIDE], scale = is_value ? kv.v_scale : kv.k_scale;
        size_t elem;

        load_eight(low, from);
        load_eight(high, from + half);
        if (is_padding) /* known later than the loads begin */
            return;
#pragma unroll
        for (int k = 0; k < WIDE && !is_value; k += 2) {
            float4 cs = turn[(d + k) / 2];
            float x0 = low[k], x1 = low[k + 1];

            low[k] = turn_lower(x0, high[k], make_float2(cs.x, cs.y));
            high[k] = turn_upper(high[k], x0, make_float2(cs.x, cs.y));
            low[k + 1] = turn_lower(x1, high[k + 1], make_float2(cs.z, cs.w));
            high[k + 1] = turn_upper(high[k + 1], x1, make_float2(cs.z, cs.w));
        }
        if (h < n_heads) {
            store_eight(from, low);
            store_eight(from + half, high);
            continue;
        }
        elem = key_elem(kv, pages, pos, h - (is_value ? n_turned : n_heads)) + d;
        if (is_value)
            elem += value_elems(kv);
        store_wide_kv(kv, elem, scale, low);
        store_wide_kv(kv, elem + half, scale, high);
    }
}

/* One element of a page. */
static __device__ inline void store_kv(const struct k_kv &kv, size_t elem, float scale, float x)
{
    uint32_t two = stored_two(kv.type, scale, x, 0.0f);

    if (kv.type == K_BF16)
        ((uint16_t *)kv.pages)[elem] = (uint16_t)two;
    else
        ((uint8_t *)kv.pages)[elem] = (uint8_t)two;
}

static __global__ void rope_kv_kernel(k_bf16 *qkv, struct k_kv kv, struct k_tokens t,
                                      const float *turns, int n_heads)
{
    int token = blockIdx.x, pos = t.pos[token], hd = kv.head_dim, half = hd / 2;
    int n_all = n_heads + 2 * kv.n_kv_heads;
    const int32_t *pages = t.page_ids + (size_t)t.seq[token] * t.pages_max;
    const float2 *turn = (const float2 *)turns + (size_t)pos * half;

    if (t.kv_len[t.seq[token]] == 0)
        return;
    for (int h = threadIdx.y; h < n_all; h += ROPE_WARPS) {
        k_bf16 *from = qkv + ((size_t)token * n_all + h) * hd;
        bool is_value = h >= n_heads + kv.n_kv_heads;
        int kv_head = is_value ? h - n_heads - kv.n_kv_heads : h - n_heads;
        size_t elem = h < n_heads ? 0 : key_elem(kv, pages, pos, kv_head);

        for (int d = threadIdx.x; d < half; d += 32) {
            float2 cs = is_value ? make_float2(1.0f, 0.0f) : turn[d];
            float x0 = load_bf16(from + d), x1 = load_bf16(from + d + half);
            float low = is_value ? x0 : turn_lower(x0, x1, cs);
            float high = is_value ? x1 : turn_upper(x1, x0, cs);

            if (h < n_heads) {
                store_bf16(from + d, low);
                store_bf16(from + d + half, high);
            } else {
                size_t to = elem + (is_value ? value_elems(kv) : 0) + d;
                float scale = is_value ? kv.v_scale : kv.k_scale;

                store_kv(kv, to, scale, low);
                store_kv(kv, to + half, scale, high);
            }
        }
    }
}

int k_rope_kv(k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t, const float *turns,
              int n_heads, k_stream stream)
{
    int n_items = (n_heads + 2 * kv->n_kv_heads) * (kv->head_dim / (2 * WIDE));

    if (kv->head_dim % (2 * WIDE) == 0 &&
        ((uintptr_t)qkv | (uintptr_t)kv->pages | (uintptr_t)turns) % 16 == 0)
        return K_LAUNCH(rope_kv_wide_kernel, t->n_tokens,
                        n_items < WIDE_THREADS ? (n_items + 31) / 32 * 32 : WIDE_THREADS, 0, stream,
                        qkv, *kv, *t, turns, n_heads);
    return K_LAUNCH(rope_kv_kernel, t->n_tokens, dim3(32, ROPE_WARPS), 0, stream, qkv, *kv, *t,
                    turns, n_heads);
}

int k_attn(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
           const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream)
{
    int rc = 0;

    if (plan->n_decodes > 0)
        rc = k_attn_decode(out, qkv, kv, t, plan, n_heads, scale, stream);
    if (rc == 0 && plan->n_tiles > 0)
        rc = k_attn_chunk(out, qkv, kv, t, plan, n_heads, scale, stream);
    return rc;
}
