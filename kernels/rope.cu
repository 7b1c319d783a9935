/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions and the write of keys and values into pages: one block a token, one warp at a
 * time a head. Reads and writes each element of qkv once. */
#include "kernels/pages.cuh"

#define ROPE_WARPS 8

static __global__ void rope_kv_kernel(k_bf16 *qkv, struct k_kv kv, struct k_tokens t,
                                      const float *turns, int n_heads)
{
    int token = blockIdx.x, pos = t.pos[token], hd = kv.head_dim, half = hd / 2;
    int n_all = n_heads + 2 * kv.n_kv_heads;
    const int32_t *pages = t.page_ids + (size_t)t.seq[token] * t.pages_max;
    const float2 *turn = (const float2 *)turns + (size_t)pos * half;

    for (int h = threadIdx.y; h < n_all; h += ROPE_WARPS) {
        k_bf16 *from = qkv + ((size_t)token * n_all + h) * hd, *to = from;
        bool is_value = h >= n_heads + kv.n_kv_heads;

        if (is_value)
            to = key_row(kv, pages, pos, h - n_heads - kv.n_kv_heads) + value_elems(kv);
        else if (h >= n_heads)
            to = key_row(kv, pages, pos, h - n_heads);
        for (int d = threadIdx.x; d < half; d += 32) {
            float2 cs = is_value ? make_float2(1.0f, 0.0f) : turn[d];
            float x0 = load_bf16(from + d), x1 = load_bf16(from + d + half);

            store_bf16(to + d, x0 * cs.x - x1 * cs.y);
            store_bf16(to + d + half, x1 * cs.x + x0 * cs.y);
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
