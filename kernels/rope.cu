/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions and the write of keys and values into pages: one block a token, one warp at a
 * time a head. Reads and writes each element of qkv once. */
#include "kernels/pages.cuh"

#define ROPE_WARPS 8

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
