/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of the tokens that latent attention sees (the indexer of DeepSeek V3.2). Each token
 * has an index key of dim elements, in the pages behind the layer's latents, and n_heads queries
 * with a weight each. Of itself and those before it a token t sees the n_keys of largest
 *
 *   score(s) = sum over heads of weight * max(0, query * key(s)),   s <= t
 *
 * and of equal ones the earlier. The first rope_dim elements of keys and queries are rotated.
 * Constant factors of scores do not change the choice and are left out.
 *
 * Conventions as in kernels.h. Source: DeepSeek-V3.2-Exp's technical report, section 2.1. */
#ifndef QUIRE_KERNELS_INDEX_H
#define QUIRE_KERNELS_INDEX_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define K_INDEX_DIM_MAX    256
#define K_INDEX_DIM_FAST   128 /* of the launcher, and heads of it */
#define K_INDEX_HEADS_FAST 64
#define K_INDEX_BLOCKS     264 /* two for each multiprocessor of an H200 */

/* The sizes of a layer; all ranks have all of it. */
struct k_index_shape {
    int n_heads;  /* 0: the layer has no index */
    int dim;      /* even, up to K_INDEX_DIM_MAX */
    int rope_dim; /* even, up to dim */
    int n_keys;   /* that a token sees; 0: all */
};

/* A layer's weights; norm and bias are bf16 for launchers, float32 for references. */
struct k_index {
    struct k_index_shape shape;
    const void *norm, *bias; /* [dim]: a layer norm of keys, mean and variance */
    const float *turns;      /* float32 [max_len][rope_dim / 2][2], as those of latents */
    bool interleaved;        /* pairs are (2 i, 2 i + 1), not (i, i + rope_dim / 2) */
    float eps;
    float *scores;  /* work memory of the launcher [K_INDEX_BLOCKS][scores_len] */
    int scores_len; /* tokens of the longest text */
};

/* Write the index keys of a step's tokens to their pages, from in [n_tokens][dim]. kv describes the
 * keys: one kv head of dim elements, behind the latents. Tokens of sequences of kv_len 0 are
 * skipped. The reference does tokens first .. last - 1. Launchers take pages of bf16. */
void ref_index_keys(const float *in, const struct k_index *x, const struct k_kv *kv,
                    const struct k_tokens *t, int first, int last);
int k_index_keys(const k_bf16 *in, const struct k_index *x, const struct k_kv *kv,
                 const struct k_tokens *t, k_stream stream);

/* chosen int32 [n_tokens][n_keys] = the positions that each token sees, in their order, then -1.
 * queries [n_tokens][n_heads][dim], not rotated yet; weights float32 [n_tokens][n_heads] on both
 * sides. The reference does one token, with scratch for two floats for each key. A token's choice
 * depends on nothing else in the batch. The launcher's sums are in another order, so of nearly
 * equal scores it may choose others; up to K_INDEX_HEADS_FAST heads of K_INDEX_DIM_FAST. */
void ref_index_choose(int32_t *chosen, const float *queries, const float *weights,
                      const struct k_index *x, const struct k_kv *kv, const struct k_tokens *t,
                      int token, float *scratch);
int k_index_choose(int32_t *chosen, const k_bf16 *queries, const float *weights,
                   const struct k_index *x, const struct k_kv *kv, const struct k_tokens *t,
                   k_stream stream);

/* The choice of a step. */
struct k_choice {
    const int32_t *positions; /* int32 [n_tokens][n_keys] */
    int n_keys;
};

/* ref_attn() of one head over the chosen positions alone, of a kv with value_dim; 0 for a token
 * without any, which the launcher leaves as it is. scratch: a float for each. */
void ref_attn_chosen(float *out, const float *queries, const struct k_kv *kv,
                     const struct k_tokens *t, const struct k_choice *chosen, int n_heads,
                     float scale, int token, int head, float *scratch);
int k_attn_chosen(k_bf16 *out, const k_bf16 *queries, const struct k_kv *kv,
                  const struct k_tokens *t, const struct k_choice *chosen, int n_heads, float scale,
                  k_stream stream);

#ifdef __cplusplus
}
#endif

#endif
