/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention of a forward pass (kernels/latent.h):
 *
 *   normed -> latents [q_rank | kv_rank | rope], or mixer_in [n_heads][nope | rope] | kv_rank | rope
 *          -> the pages, and with a q_rank normed latents of queries -> mixer_in
 *   mixer_in -> latent_queries [n_heads][kv_rank | rope]
 *            -> latent_heads [n_heads][kv_rank] -> mixed
 *
 * Attention is the absorbed one in every step: a prompt's keys and values are never expanded, so a
 * query costs kv_rank + rope and kv_rank multiply-adds per key and head where the expanded form
 * costs nope + rope and v_dim: 3.4 times as many with DeepSeek's sizes (1088 to 320). */
#include "model/pass.h"

static struct k_latent pass_latent_of(const struct pass *p, const struct layer_plan *layer,
                                      const struct layer_weights *w, const float *turns)
{
    const struct attn_plan *attn = &layer->attn;

    return (struct k_latent){.shape = attn->latent,
                             .q_norm = w->norm_q_a,
                             .norm = w->norm_kv_a,
                             .up = w->kv_b.data,
                             .turns = turns,
                             .interleaved = p->plan->ropes[attn->rope].interleaved,
                             .eps = attn->latent_eps};
}

/* Latents of queries are normed whole, so their product completes no norm. */
static void pass_project_queries(const struct pass *p, const struct layer_weights *w)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;
    const struct k_product product = {
        .kind = K_PRODUCT_PLAIN, .x = acts->mixed.data, .w = &w->q_b, .y = acts->mixer_in};

    if (p->fused) {
        op->product(p->d, &product, p->n);
        return;
    }
    op->quantise(p->d, &acts->mixed, p->n, &w->q_b);
    op->matmul(p->d, acts->mixer_in, &acts->mixed, &w->q_b, NULL, p->n);
}

void pass_project_latent(const struct pass *p, const struct layer_plan *layer,
                         const struct layer_weights *w, const struct k_kv *kv, const float *turns)
{
    const struct k_latent latent = pass_latent_of(p, layer, w, turns);
    struct activations *acts = p->a;
    void *in = latent.shape.q_rank > 0 ? acts->latents : acts->mixer_in;

    pass_project(p, in, &w->mixer_in, NULL);
    p->d->ops->latent_keys(p->d, acts->mixed.data, in, &latent, kv, p->fused ? &w->q_b : NULL);
    if (latent.shape.q_rank > 0)
        pass_project_queries(p, w);
}

void pass_attend_latent(const struct pass *p, const struct layer_plan *layer,
                        const struct layer_weights *w, const struct k_kv *kv, const float *turns)
{
    const struct device_ops *op = p->d->ops;
    const struct attn_plan *attn = &layer->attn;
    const struct k_latent latent = pass_latent_of(p, layer, w, turns);
    struct activations *acts = p->a;

    op->latent_queries(p->d, acts->latent_queries, acts->mixer_in, &latent);
    op->attn(p->d, acts->latent_heads, acts->latent_queries, kv, attn->n_heads, attn->scale, NULL);
    op->latent_values(p->d, acts->mixed.data, acts->latent_heads, &latent,
                      p->fused ? &w->mixer_out : NULL);
    if (!p->fused)
        op->quantise(p->d, &acts->mixed, p->n, &w->mixer_out);
}
