/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that are played on the host (play.h), as C sees them: k_rope_kv() of kernels.h, and: */
#ifndef QUIRE_TESTS_KERNEL_PLAYED_H
#define QUIRE_TESTS_KERNEL_PLAYED_H

#include "kernels/adapter.h"
#include "kernels/delta.h"
#include "kernels/index.h"
#include "kernels/latent.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What decode attention makes of a sequence's heads of one kv head: queries bf16
 * [n_heads][head_dim], at most 8 of 128 or 256 elements, normed and rotated in place; key and value
 * bf16 [head_dim], which become what is stored in pages of kv->type. */
void played_decode_rows(k_bf16 *queries, int n_heads, k_bf16 *key, k_bf16 *value,
                        const struct k_rotary *r, const struct k_kv *kv, int pos);

/* One product of experts by experts_tiles() (kernels/experts.cuh has the arrays), of elements
 * K_BF16, K_E4M3 (scale_cols 1: scales by row) or K_E2M1 (kernels/mxfp4.h). 0, or -1 for a
 * fault. */
struct played_product {
    const k_bf16 *x, *bias;
    const void *w;
    const float *scales;
    k_bf16 *out;
    const int32_t *starts, *routes, *touched, *tiles;
    enum k_type elem;
    int scale_cols, n_in, n_out, n_tokens, n_used, n_experts;
    bool is_gated, is_many;
};
int played_experts(const struct played_product *of);

/* Latent attention of a step (kernels/latent.h): rows to the pages, and normed; absorbed queries
 * [n_tokens][n_heads][kv_rank + rope_dim], their sums [n_tokens][n_heads][kv_rank], values. plan:
 * lists of decodes and of tiles. 0, or -1 for a fault. */
struct played_latent {
    struct k_latent l;
    struct k_kv kv;
    struct k_tokens t;
    struct k_attn_plan plan;
    const k_bf16 *rows, *queries;
    k_bf16 *normed, *absorbed, *sums, *out;
    float scale;
    bool is_fresh; /* of played_latent_few() */
};
int played_latent(const struct played_latent *of);

/* Attention of few decodes and values: absorbed -> out, by parts in plan.work. */
int played_latent_few(const struct played_latent *of);

/* The choice of tokens (kernels/index.h), and attention over them: keys to the pages, unless NULL,
 * chosen [n_tokens][n_keys], out [n_tokens][n_heads][value_dim]. 0, or -1 for a fault. */
struct played_index {
    struct k_index x;
    struct k_kv kv, of_keys; /* of latents, and of index keys */
    struct k_tokens t;
    const k_bf16 *keys, *queries, *absorbed;
    const float *weights;
    int32_t *chosen;
    k_bf16 *out;
    int n_heads;
    float scale;
};
int played_index(const struct played_index *of);

/* k_delta_rule() on host memory; only by channel may a sequence have several tokens. 0, or -1 for a
 * fault. */
struct played_delta {
    struct k_delta d;
    struct k_state state;
    struct k_tokens t;
    const k_bf16 *in;
    const float *gates;
    k_bf16 *out;
};
int played_delta(const struct played_delta *of);

/* k_delta_gate() on host memory. 0, or -1 for a fault. */
int played_gate(float *gates, const struct k_delta_gating *g, int n_gates, int n);

/* k_adapt_in() and k_adapt_out() on host memory. 0, or -1 for a fault. */
int played_adapt(const struct k_adapting *a);

/* k_multiply() by the portable kernel on host memory. 0, or -1 for a fault. */
int played_multiply(const struct k_product *p, int n);

/* What went wrong in the playing of the others; NULL: nothing. */
const char *played_fault(void);

#ifdef __cplusplus
}
#endif
#endif
