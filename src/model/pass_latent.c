/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention of a forward pass (kernels/latent.h):
 *
 *   normed -> latents [q_rank | kv_rank | rope],
 *             or mixer_in [n_heads][nope | rope] | kv_rank | rope
 *          -> the pages, and with a q_rank normed latents of queries -> mixer_in
 *   mixer_in -> latent_queries [n_heads][kv_rank | rope]
 *            -> latent_heads [n_heads][kv_rank] -> mixed
 *
 * In a step of few tokens one operation does all between the first product and latent_queries.
 *
 * Attention is the absorbed one in every step: a prompt's keys and values are never expanded, so a
 * query costs kv_rank + rope and kv_rank multiply-adds per key and head where the expanded form
 * costs nope + rope and v_dim: 3.4 times as many with DeepSeek's sizes (1088 to 320).
 *
 * Layers with an index (kernels/index.h) attend to chosen tokens alone, in steps that are not
 * fused. */
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

/* Does one operation do all between the first product and attention? */
static bool pass_joins_latent(const struct pass *p, const struct layer_plan *layer,
                              const struct layer_weights *w)
{
    const struct device_ops *op = p->d->ops;

    return p->fused && p->plan->growth.beta == 0.0f && op->latent_joins != NULL &&
           op->latent_joins(p->d, &layer->attn.latent, &w->q_b);
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

/* Queries of the choice of tokens read the latents of queries, keys and weights the layer's input;
 * the matrix of weights is plain. */
static void pass_project_index(const struct pass *p, const struct layer_weights *w)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;

    op->quantise(p->d, &acts->mixed, p->n, &w->index_q);
    op->matmul(p->d, acts->index_queries, &acts->mixed, &w->index_q, NULL, p->n);
    op->quantise(p->d, &acts->normed, p->n, &w->index_k);
    op->matmul(p->d, acts->index_keys, &acts->normed, &w->index_k, NULL, p->n);
    op->matmul_float(p->d, acts->index_weights, &acts->normed, &w->index_weights, p->n);
}

void pass_project_latent(const struct pass *p, const struct layer_plan *layer,
                         const struct layer_weights *w, const struct k_kv *kv, const float *turns)
{
    const struct k_latent latent = pass_latent_of(p, layer, w, turns);
    struct activations *acts = p->a;
    void *in = latent.shape.q_rank > 0 ? acts->latents : acts->mixer_in;

    pass_project(p, in, &w->mixer_in, NULL);
    if (pass_joins_latent(p, layer, w)) {
        p->d->ops->latent_join(p->d, acts->latent_queries, in, &latent, &w->q_b, kv);
        return;
    }
    p->d->ops->latent_keys(p->d, acts->mixed.data, in, &latent, kv, p->fused ? &w->q_b : NULL);
    if (latent.shape.q_rank > 0)
        pass_project_queries(p, w);
    if (layer->attn.index.n_heads > 0)
        pass_project_index(p, w);
}

/* A layer without an index of its own sees the tokens that the one before it has chosen. */
static void pass_attend_chosen(const struct pass *p, const struct attn_plan *attn,
                               const struct layer_weights *w, const struct k_kv *kv,
                               const float *turns)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;
    const struct k_index index = {.shape = attn->index,
                                  .norm = w->index_norm.weight,
                                  .bias = w->index_norm.bias,
                                  .turns = turns,
                                  .interleaved = attn->index_interleaved,
                                  .eps = w->index_norm.eps,
                                  .scores = acts->index_scores,
                                  .scores_len = p->d->limits.len_max};
    const struct k_choice chosen = {acts->chosen, attn->index.n_keys};
    struct k_kv keys = *kv;

    keys.layer_elems += (size_t)kv->page_tokens * (size_t)kv->head_dim;
    keys.head_dim = keys.value_dim = attn->index.dim;
    if (attn->index.n_heads > 0) {
        op->index_keys(p->d, acts->index_keys, &index, &keys);
        op->index_choose(p->d, acts->chosen, acts->index_queries, acts->index_weights, &index,
                         &keys);
    }
    op->attn_chosen(p->d, acts->latent_heads, acts->latent_queries, kv, &chosen, attn->n_heads,
                    attn->scale);
}

void pass_attend_latent(const struct pass *p, const struct layer_plan *layer,
                        const struct layer_weights *w, const struct k_kv *kv, const float *turns)
{
    const struct device_ops *op = p->d->ops;
    const struct attn_plan *attn = &layer->attn;
    const struct k_latent latent = pass_latent_of(p, layer, w, turns);
    struct activations *acts = p->a;

    if (!pass_joins_latent(p, layer, w))
        op->latent_queries(p->d, acts->latent_queries, acts->mixer_in, &latent);
    if (attn->index.n_keys > 0)
        pass_attend_chosen(p, attn, w, kv, turns);
    else
        op->attn(p->d, acts->latent_heads, acts->latent_queries, kv, attn->n_heads, attn->scale,
                 NULL);
    op->latent_values(p->d, acts->mixed.data, acts->latent_heads, &latent,
                      p->fused ? &w->mixer_out : NULL);
    if (!p->fused)
        op->quantise(p->d, &acts->mixed, p->n, &w->mixer_out);
}
