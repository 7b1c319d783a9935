/* Where keys and values of a position stand in the pages. */
#ifndef QUIRE_KERNELS_PAGES_CUH
#define QUIRE_KERNELS_PAGES_CUH

#include "kernels/common.cuh"

/* Keys of a position; its values stand value_elems() further on. pages is the sequence's row.
 * Pages of 2^n tokens, the rule, are found without a division. */
static __device__ inline k_bf16 *key_row(const struct k_kv &kv, const int32_t *pages, int pos,
                                         int kv_head)
{
    int bt = kv.block_tokens;
    int page = (bt & (bt - 1)) == 0 ? pos >> (31 - __clz(bt)) : pos / bt;

    return (k_bf16 *)kv.pages + (size_t)pages[page] * kv.page_elems + kv.layer_elems +
           (unsigned)((kv_head * bt + pos - page * bt) * kv.head_dim);
}

static __device__ inline size_t value_elems(const struct k_kv &kv)
{
    return (size_t)kv.n_kv_heads * kv.block_tokens * kv.head_dim;
}

/* The launchers that k_attn() chooses from. */
int k_attn_decode(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
                  const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream);
int k_attn_chunk(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
                 const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream);

/* The fast path of k_attn_chunk(), and the shapes that it takes. */
bool sm90_attn_chunk_takes(const struct k_kv *kv, const k_bf16 *qkv, int n_heads);
int k_attn_chunk_sm90(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                      const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                      float scale, k_stream stream);

#endif
