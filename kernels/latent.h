/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention (MLA of DeepSeek V2), in its absorbed form. A token's keys and values of all
 * heads are one row in the pages, its latent:
 *
 *   row = rmsnorm(c) [kv_rank] | rotated k [rope_dim]
 *
 * A head's key would be up_k * c [nope_dim] | k, and its value up_v * c. Scores do not change if
 * the query is multiplied with up_k instead, nor results if the sum of rows is multiplied with
 * up_v: so attention is that of one kv head, whose values are the first kv_rank elements of its
 * keys (value_dim of struct k_kv).
 *
 *   queries   q [nope_dim] | q' [rope_dim]  ->  transpose(up_k) q [kv_rank] | rotated q' [rope_dim]
 *   values    o [kv_rank]                   ->  up_v o [v_dim]
 *
 * Conventions as in kernels.h. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1. */
#ifndef QUIRE_KERNELS_LATENT_H
#define QUIRE_KERNELS_LATENT_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define K_LATENT_RANK_MAX  512
#define K_LATENT_ROPE_MAX  64
#define K_LATENT_HEADS_MAX 128 /* of k_attn(): the rows of a tile */

/* The sizes of a layer, or of a rank's part of it, which has some of the heads. */
struct k_latent_shape {
    int n_heads;
    int q_rank;   /* of the product between input and queries; 0: there is one product */
    int kv_rank;  /* 2 .. K_LATENT_RANK_MAX, even; 0: the layer has no latent attention */
    int nope_dim; /* of a head's query and key, the part without positions */
    int rope_dim; /* the part with them: even, 2 .. K_LATENT_ROPE_MAX */
    int v_dim;    /* of a head's value */
};

/* Elements of a row in the pages, which is also a head's absorbed query; and of a head's query. */
K_BOTH int k_latent_row(const struct k_latent_shape *s)
{
    return s->kv_rank + s->rope_dim;
}
K_BOTH int k_latent_query(const struct k_latent_shape *s)
{
    return s->nope_dim + s->rope_dim;
}
/* Elements of a token's row of the layer's first product: all heads' queries, or with a q_rank the
 * latent that they are made of; then c and k. And from a token's queries to the next one's. */
K_BOTH int k_latent_first(const struct k_latent_shape *s)
{
    return s->q_rank > 0 ? s->q_rank : s->n_heads * k_latent_query(s);
}
K_BOTH int k_latent_in(const struct k_latent_shape *s)
{
    return k_latent_first(s) + k_latent_row(s);
}
K_BOTH int k_latent_stride(const struct k_latent_shape *s)
{
    return s->q_rank > 0 ? s->n_heads * k_latent_query(s) : k_latent_in(s);
}

/* A layer's weights; norms and up are bf16 for launchers, float32 for references. */
struct k_latent {
    struct k_latent_shape shape;
    const void *q_norm; /* [q_rank] */
    const void *norm;   /* [kv_rank] */
    const void *up;     /* [n_heads][nope_dim + v_dim][kv_rank]: up_k, then up_v of each head */
    const float *turns; /* float32 [max_len][rope_dim / 2][2]: cosine, sine by position and pair */
    bool interleaved;   /* pairs are (2 i, 2 i + 1), not (i, i + rope_dim / 2) */
    float eps;          /* of both norms */
};

/* The pairs of x [rope_dim] turned by turns [rope_dim / 2][2]. out may be x. */
void ref_latent_rotate(float *out, const float *x, const float *turns, int rope_dim,
                       bool interleaved);

/* Write the rows of a step's tokens to their pages, from in [n_tokens][k_latent_in()]; with a
 * q_rank also q [n_tokens][q_rank] = rmsnorm(latent of queries), which is bfloat16 for the
 * launcher, or with q_is_half as K_HALF_AT. Tokens of sequences of kv_len 0 are not written to
 * pages. The reference does tokens first .. last - 1. The launcher takes pages of bf16, or of e4m3
 * with the scale k_scale, which is v_scale too.
 *
 * The launchers of this file may begin before the previous kernel has ended; until then they read
 * nothing but weights. */
void ref_latent_keys(float *q, const float *in, const struct k_latent *l, const struct k_kv *kv,
                     const struct k_tokens *t, int first, int last);
int k_latent_keys(void *q, bool q_is_half, const k_bf16 *in, const struct k_latent *l,
                  const struct k_kv *kv, const struct k_tokens *t, k_stream stream);

/* out [n_tokens][n_heads][kv_rank + rope_dim] = absorbed queries of in, rows of k_latent_stride()
 * elements that begin with [n_heads][nope_dim + rope_dim]. The reference does one pair of token and
 * head, with sums in float32. */
void ref_latent_queries(float *out, const float *in, const struct k_latent *l,
                        const struct k_tokens *t, int token, int head);
int k_latent_queries(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                     const struct k_tokens *t, k_stream stream);

/* For few tokens, in one launch: rows to the pages as k_latent_keys(), and out as
 * k_latent_queries() of the product of q_b [n_heads * (nope_dim + rope_dim)][q_rank] with the
 * normed latents, which are rounded to bfloat16, and so is the product. in
 * [n_tokens][k_latent_in()]. k_latent_joins(): are these sizes and this q_b taken for n tokens? */
int k_latent_joins(const struct k_latent_shape *s, const struct k_matrix *q_b, int n);
int k_latent_join(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                  const struct k_matrix *q_b, const struct k_kv *kv, const struct k_tokens *t,
                  k_stream stream);

/* out [n_tokens][n_heads][v_dim] = values of in [n_tokens][n_heads][kv_rank], likewise. is_half:
 * out is as K_HALF_AT (v_dim is a multiple of 16), else bfloat16. */
void ref_latent_values(float *out, const float *in, const struct k_latent *l, int token, int head);
int k_latent_values(void *out, bool is_half, const k_bf16 *in, const struct k_latent *l,
                    const struct k_tokens *t, k_stream stream);

/* Attention of a step of few decodes over rows of 512 + 64, in place of k_attn(), and the
 * values of its results. Between them the results are parts in plan->work. q: absorbed queries.
 * With plan->overlap the first reads pages and the step's arrays before the previous kernel has
 * ended: they are of earlier launches, each of which waits for the one before it; but not the last
 * key of each sequence if it is_fresh, of the previous launch. plan->schedule is not read.
 * k_latent_is_few(): is the step one that these take? */
int k_latent_is_few(const struct k_attn_plan *plan, const struct k_kv *kv,
                    const struct k_latent_shape *s, int n_tokens);
int k_latent_attend(const k_bf16 *q, const struct k_kv *kv, const struct k_tokens *t,
                    const struct k_attn_plan *plan, int n_heads, float scale, bool is_fresh,
                    k_stream stream);
int k_latent_attended(void *out, bool is_half, const struct k_latent *l, const struct k_tokens *t,
                      const struct k_attn_plan *plan, float scale, k_stream stream);

#ifdef __cplusplus
}
#endif

#endif
