/* SPDX-License-Identifier: Apache-2.0
 *
 * ids -> x [n_tokens][dim]
 * each layer:  x -> normed -> qkv -> (rotate, into pages) -> heads -> delta [n_tokens][dim]
 *              x += delta -> normed -> gate_up -> ff -> delta [n_tokens][dim]
 * sampled rows: x + delta -> rows [n_rows][dim] -> rows_normed -> logits [n_rows][n_vocab] -> ids
 *
 * A layer's last addition to x happens in the next layer's first norm. */
#include "model/forward.h"

#include <math.h>

/* n rows and room for those that a product may touch beyond them. */
static size_t padded(const struct device *d, int n)
{
    return (size_t)((n + d->rows_multiple - 1) / d->rows_multiple * d->rows_multiple);
}

int activations_alloc(struct activations *a, struct device *d, const struct device_limits *limits)
{
    size_t tokens = padded(d, limits->n_tokens), rows = padded(d, limits->n_seqs);
    size_t dim = (size_t)limits->dim, ff = (size_t)limits->ff_dim, elem = d->elem_bytes;
    size_t q = (size_t)limits->n_heads * (size_t)limits->head_dim;
    size_t qkv = q + 2 * (size_t)limits->n_kv_heads * (size_t)limits->head_dim;
    void **acts[] = {&a->normed, &a->qkv, &a->heads, &a->delta, &a->gate_up, &a->ff};
    size_t widths[] = {dim, qkv, q, dim, 2 * ff, ff};

    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        if ((*acts[i] = d->ops->alloc(d, tokens * widths[i] * elem)) == NULL)
            return ERR_NO_MEMORY;
    }
    a->x = d->ops->alloc(d, tokens * dim * sizeof(float));
    a->rows = d->ops->alloc(d, rows * dim * sizeof(float));
    a->rows_normed = d->ops->alloc(d, rows * dim * elem);
    a->logits = d->ops->alloc(d, rows * (size_t)limits->n_vocab * sizeof(float));
    if (a->x == NULL || a->rows == NULL || a->rows_normed == NULL || a->logits == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

static void layer(struct device *d, const struct config *c, const struct layer_weights *w,
                  const struct activations *a, const struct k_kv *kv, const float *turns, int n)
{
    const struct device_ops *op = d->ops;
    float scale = 1.0f / sqrtf((float)c->head_dim);

    op->matmul(d, a->qkv, a->normed, &w->qkv, w->qkv_bias, n);
    op->rope_kv(d, a->qkv, kv, turns);
    op->attn(d, a->heads, a->qkv, kv, scale);
    op->matmul(d, a->delta, a->heads, &w->o, w->o_bias, n);
    op->add_rmsnorm(d, a->normed, a->x, a->delta, w->norm_mlp, c->norm_eps, n, &w->gate_up);
    op->matmul(d, a->gate_up, a->normed, &w->gate_up, w->gate_up_bias, n);
    op->silu_mul(d, a->ff, a->gate_up, n, &w->down);
    op->matmul(d, a->delta, a->ff, &w->down, w->down_bias, n);
}

void forward(struct device *d, const struct config *c, const struct weights *w,
             const struct activations *a, const struct k_kv *kv, const float *turns, int n_tokens,
             int n_rows)
{
    const struct device_ops *op = d->ops;
    struct k_kv layer_kv = *kv;

    op->embed(d, a->x, w->embed.data);
    op->rmsnorm(d, a->normed, a->x, w->layers[0].norm_attn, c->norm_eps, n_tokens,
                &w->layers[0].qkv);
    for (int i = 0; i < c->n_layers; i++) {
        layer_kv.k_scale = w->layers[i].k_scale;
        layer_kv.v_scale = w->layers[i].v_scale;
        layer(d, c, &w->layers[i], a, &layer_kv, turns, n_tokens);
        layer_kv.layer_elems +=
            2 * (size_t)kv->n_kv_heads * (size_t)kv->block_tokens * (size_t)kv->head_dim;
        if (i + 1 < c->n_layers)
            op->add_rmsnorm(d, a->normed, a->x, a->delta, w->layers[i + 1].norm_attn, c->norm_eps,
                            n_tokens, &w->layers[i + 1].qkv);
    }
    if (n_rows == 0)
        return;
    op->gather_add(d, a->rows, a->x, a->delta);
    op->rmsnorm(d, a->rows_normed, a->rows, w->norm, c->norm_eps, n_rows, &w->head);
    op->matmul_float(d, a->logits, a->rows_normed, &w->head, n_rows);
    op->sample(d, a->logits);
}
