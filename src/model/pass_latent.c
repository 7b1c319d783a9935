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
 * costs nope + rope and v_dim: 3.4 times as many with DeepSeek's sizes (1088 to 320).
 *
 * Layers with an index (kernels/index.h) attend to chosen tokens alone. */
#include "model/pass.h"

#include "base/must.h"

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
    if (attn->index.n_heads > 0)
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
    if (attn->index.n_keys > 0)
        pass_attend_chosen(p, attn, w, kv, turns);
    else
        op->attn(p->d, acts->latent_heads, acts->latent_queries, kv, attn->n_heads, attn->scale,
                 NULL);
    op->latent_values(p->d, acts->mixed.data, acts->latent_heads, &latent);
    op->quantise(p->d, &acts->mixed, p->n, &w->mixer_out);
}
