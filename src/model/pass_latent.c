/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention of a forward pass (kernels/latent.h), in parts:
 *
 *   normed -> mixer_in [n_heads][nope | rope]; with a q_rank by way of normed latents of queries
 *   normed -> latent_keys [kv_rank | rope] -> the pages
 *   mixer_in -> latent_queries [n_heads][kv_rank | rope]
 *            -> latent_heads [n_heads][kv_rank] -> mixed
 *
 * Attention is the absorbed one in every step: a prompt's keys and values are never expanded, so a
 * query costs kv_rank + rope and kv_rank multiply-adds per key and head where the expanded form
 * costs nope + rope and v_dim: 3.4 times as many with DeepSeek's sizes (1088 to 320). */
#include "model/pass.h"

#include "base/must.h"

/* Both products read normed, in whichever form their format has. */
void pass_project_latent(const struct pass *p, const struct attn_plan *attn,
                         const struct layer_weights *w)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;
    const struct k_norm norm = {K_NORM_RMS, w->norm_q_a, NULL, attn->latent_eps};
    int q_rank = attn->latent.q_rank;

    must(!p->fused);
    op->quantise(p->d, &acts->normed, p->n, &w->kv_a);
    op->matmul(p->d, acts->latent_keys, &acts->normed, &w->kv_a, NULL, p->n);
    op->quantise(p->d, &acts->normed, p->n, &w->mixer_in);
    if (q_rank == 0) {
        op->matmul(p->d, acts->mixer_in, &acts->normed, &w->mixer_in, NULL, p->n);
        return;
    }
    op->matmul(p->d, acts->mixed.data, &acts->normed, &w->mixer_in, NULL, p->n);
    op->norm_within(p->d, acts->mixed.data, q_rank, &norm, q_rank, p->n);
    op->quantise(p->d, &acts->mixed, p->n, &w->q_b);
    op->matmul(p->d, acts->mixer_in, &acts->mixed, &w->q_b, NULL, p->n);
}

/* The pages have the step's latents before attention reads them. */
void pass_attend_latent(const struct pass *p, const struct layer_plan *layer,
                        const struct layer_weights *w, const struct k_kv *kv, const float *turns)
{
    const struct device_ops *op = p->d->ops;
    const struct attn_plan *attn = &layer->attn;
    struct activations *acts = p->a;
    const struct k_latent latent = {.shape = attn->latent,
                                    .norm = w->norm_kv_a,
                                    .up = w->kv_b.data,
                                    .turns = turns,
                                    .interleaved = p->plan->ropes[attn->rope].interleaved,
                                    .eps = attn->latent_eps};

    op->latent_keys(p->d, acts->latent_keys, &latent, kv);
    op->latent_queries(p->d, acts->latent_queries, acts->mixer_in, &latent);
    op->attn(p->d, acts->latent_heads, acts->latent_queries, kv, attn->n_heads, attn->scale, NULL);
    op->latent_values(p->d, acts->mixed.data, acts->latent_heads, &latent);
    op->quantise(p->d, &acts->mixed, p->n, &w->mixer_out);
}
