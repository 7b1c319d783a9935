/* SPDX-License-Identifier: Apache-2.0
 *
 * Launchers that exist twice: for Hopper (_sm90), and for every GPU from compute capability 8.0 on
 * (_portable). choice.c has the launchers of kernels.h that choose between them. */
#ifndef QUIRE_KERNELS_CHOICE_H
#define QUIRE_KERNELS_CHOICE_H

#include "kernels/adapter.h"
#include "kernels/latent.h"

struct decode_args; /* attn_decode_desk.cuh */

#ifdef __cplusplus
extern "C" {
#endif

int k_multiply_takes_sm90(const struct k_matrix *w, int n);
int k_multiply_takes_portable(const struct k_matrix *w, int n);
int k_multiply_bucket_sm90(const struct k_matrix *w, int n);
int k_multiply_bucket_portable(const struct k_matrix *w, int n);
int k_multiply_sm90(const struct k_product *p, int n, int n_sms, k_stream stream);
bool k_adapt_joins_sm90(const struct k_adapting *a);
int k_adapt_join_sm90(const struct k_adapting *a, k_stream stream);
int k_multiply_portable(const struct k_product *p, int n, int n_sms, k_stream stream);

int k_attn_joins_sm90(const struct k_attn_plan *plan, const struct k_kv *kv, int n_heads);
int k_attn_is_brief_sm90(const struct k_attn_plan *plan, const struct k_kv *kv, int n_heads);
int k_attn_rotates_sm90(const struct k_rotary *r, const struct k_kv *kv);
/* Decodes with a short window, which need no schedule. */
int k_attn_is_window_sm90(const struct k_attn_plan *plan, const struct k_kv *kv, int n_heads);
int k_attn_window_sm90(const struct decode_args *a, int overlap, k_stream stream);
int k_attn_schedule_sm90(const struct k_attn_plan *plan, const struct k_kv *kv,
                         const struct k_tokens *t, int n_heads, k_stream stream);
int k_attn_schedule_portable(const struct k_attn_plan *plan, const struct k_kv *kv,
                             const struct k_tokens *t, int n_heads, k_stream stream);

/* The parts of k_attn(): decodes, and chunks of prompts. */
int k_attn_decode(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
                  const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream);
int k_attn_decode_sm90(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                       const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                       float scale, k_stream stream);
int k_attn_decode_portable(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                           const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                           float scale, k_stream stream);
int k_attn_chunk(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
                 const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream);
/* For the shapes that it takes, and for all. */
int k_attn_chunk_takes_sm90(const struct k_kv *kv, const k_bf16 *qkv, int n_heads);
int k_attn_chunk_sm90(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                      const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                      float scale, k_stream stream);
/* The same of pages of e4m3 with products of e4m3, for kv that k_attn_chunk_is_fp8(). */
int k_attn_chunk_is_fp8(const struct k_kv *kv);
int k_attn_chunk_fp8(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                     const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                     float scale, k_stream stream);
/* Of latents: decodes, too. For those of 512 + 64 elements, and for all. */
int k_attn_latents(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
                   const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream);
int k_attn_latents_take_sm90(const struct k_kv *kv);
int k_attn_latents_sm90(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                        const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                        float scale, k_stream stream);
int k_latent_joins_sm90(const struct k_latent_shape *s, const struct k_matrix *q_b, int n);
int k_latent_join_sm90(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                       const struct k_matrix *q_b, const struct k_kv *kv, const struct k_tokens *t,
                       k_stream stream);
int k_attn_latents_plain(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                         const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                         float scale, k_stream stream);
int k_attn_chunk_plain(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                       const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                       float scale, k_stream stream);

int k_sample_sm90(int32_t *ids, const float *logits, int n_rows, int n_vocab,
                  const struct k_sample_row *rows, const int32_t *history, k_stream stream);
int k_sample_portable(int32_t *ids, const float *logits, int n_rows, int n_vocab,
                      const struct k_sample_row *rows, const int32_t *history, k_stream stream);
int k_logprobs_sm90(struct k_logprob_row *out, const float *logits, int n_vocab,
                    const struct k_logits_row *rows, int n, k_stream stream);
int k_logprobs_portable(struct k_logprob_row *out, const float *logits, int n_vocab,
                        const struct k_logits_row *rows, int n, k_stream stream);

#ifdef __cplusplus
}
#endif
#endif
