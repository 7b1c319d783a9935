/* SPDX-License-Identifier: Apache-2.0
 *
 * ids -> x [n_tokens][dim]
 * each layer:  x -> normed -> qkv -> (norm, rotate, into pages) -> heads -> delta [n_tokens][dim]
 *              x += delta -> normed -> gate_up -> ff -> delta [n_tokens][dim]
 * sampled rows: x + delta -> rows [n_rows][dim] -> rows_normed -> logits [n_rows][n_vocab]
 *
 * A layer's last addition to x happens in the next layer's first norm. Steps of few tokens, all of
 * them sampled, are the same sums with norms, gate and residual inside the products. */
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
        if ((*acts[i] = d->ops->alloc_scratch(d, tokens * widths[i] * elem)) == NULL)
            return ERR_NO_MEMORY;
    }
    a->sums = d->ops->alloc_scratch(d, FORWARD_FEW * (dim / 16 + 1) * sizeof(float));
    a->x = d->ops->alloc_scratch(d, tokens * dim * sizeof(float));
    a->rows = d->ops->alloc_scratch(d, rows * dim * sizeof(float));
    a->rows_normed = d->ops->alloc_scratch(d, rows * dim * elem);
    a->logits = d->ops->alloc_scratch(d, rows * (size_t)limits->n_vocab * sizeof(float));
    if (a->x == NULL || a->rows == NULL || a->rows_normed == NULL || a->logits == NULL ||
        a->sums == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* The view of layer i's pages. */
static void use_layer(struct k_kv *view, const struct k_kv *first, const struct weights *w, int i)
{
    view->layer_elems = first->layer_elems + (size_t)i * 2 * (size_t)first->n_kv_heads *
                                                 (size_t)first->block_tokens *
                                                 (size_t)first->head_dim;
    view->k_scale = w->layers[i].k_scale;
    view->v_scale = w->layers[i].v_scale;
}

static struct k_rotary rotary_of(const struct config *c, const struct layer_weights *w,
                                 const float *turns)
{
    return (struct k_rotary){
        .turns = turns, .q_norm = w->q_norm, .k_norm = w->k_norm, .eps = c->norm_eps};
}

static void layer(struct device *d, const struct config *c, const struct layer_weights *w,
                  const struct activations *a, const struct k_kv *kv, const float *turns, int n)
{
    const struct device_ops *op = d->ops;
    const struct k_rotary rotary = rotary_of(c, w, turns);
    float scale = 1.0f / sqrtf((float)c->head_dim);

    op->matmul(d, a->qkv, a->normed, &w->qkv, w->qkv_bias, n);
    op->rope_kv(d, a->qkv, kv, &rotary);
    op->attn(d, a->heads, a->qkv, kv, scale, NULL);
    op->matmul(d, a->delta, a->heads, &w->o, w->o_bias, n);
    op->add_rmsnorm(d, a->normed, a->x, a->delta, w->norm_mlp, c->norm_eps, n, &w->gate_up);
    op->matmul(d, a->gate_up, a->normed, &w->gate_up, w->gate_up_bias, n);
    op->silu_mul(d, a->ff, a->gate_up, n, &w->down);
    op->matmul(d, a->delta, a->ff, &w->down, w->down_bias, n);
}

/* --- the long way: any step ------------------------------------------------------------- */

static void forward_many(struct device *d, const struct config *c, const struct weights *w,
                         const struct activations *a, const struct k_kv *kv, const float *turns)
{
    const struct device_ops *op = d->ops;
    struct k_kv layer_kv = *kv;
    int n = d->step_tokens;

    op->embed(d, a->x, w->embed.data);
    op->rmsnorm(d, a->normed, a->x, w->layers[0].norm_attn, c->norm_eps, n, &w->layers[0].qkv);
    for (int i = 0; i < c->n_layers; i++) {
        use_layer(&layer_kv, kv, w, i);
        layer(d, c, &w->layers[i], a, &layer_kv, turns, n);
        if (i + 1 < c->n_layers)
            op->add_rmsnorm(d, a->normed, a->x, a->delta, w->layers[i + 1].norm_attn, c->norm_eps,
                            n, &w->layers[i + 1].qkv);
    }
    if (d->step_rows == 0)
        return;
    op->gather_add(d, a->rows, a->x, a->delta);
    op->rmsnorm(d, a->rows_normed, a->rows, w->norm, c->norm_eps, d->step_rows, &w->head);
    op->matmul_float(d, a->logits, a->rows_normed, &w->head, d->step_rows);
}

/* --- the short way: few tokens, all of them sampled ------------------------------------- */

/* Three kinds of product stand in a layer: of normed rows, of others, and onto the residual. next
 * is the matrix that reads the result, NULL for none of these. */
static void product(struct device *d, const struct config *c, const struct activations *a,
                    enum k_product_kind kind, void *y, const void *x, const struct k_matrix *w,
                    const void *bias, const struct k_matrix *next)
{
    bool normed = x == a->normed;

    d->ops->product(d,
                    &(struct k_product){.kind = kind,
                                        .x = x,
                                        .w = w,
                                        .bias = bias,
                                        .sums_in = normed ? a->sums : NULL,
                                        .n_sums = c->dim / 16,
                                        .eps = c->norm_eps,
                                        .y_is_half = next != NULL && next->type == K_E4M3,
                                        .y = y},
                    d->step_tokens);
}

static void product_onto(struct device *d, const struct activations *a, const void *x,
                         const struct k_matrix *w, const void *bias, const void *next_norm,
                         const struct k_matrix *next)
{
    d->ops->product(d,
                    &(struct k_product){.kind = K_PRODUCT_RESIDUAL,
                                        .x = x,
                                        .w = w,
                                        .bias = bias,
                                        .y_is_half = next->type == K_E4M3,
                                        .residual = a->x,
                                        .norm = next_norm,
                                        .normed = a->normed,
                                        .sums_out = a->sums},
                    d->step_tokens);
}

static void forward_few(struct device *d, const struct config *c, const struct weights *w,
                        const struct activations *a, const struct k_kv *kv, const float *turns)
{
    const struct device_ops *op = d->ops;
    struct k_kv layer_kv = *kv;

    op->embed_normed(d, a->x, a->normed, a->sums, w->embed.data, w->layers[0].norm_attn,
                     &w->layers[0].qkv);
    for (int i = 0; i < c->n_layers; i++) {
        const struct layer_weights *l = &w->layers[i];
        const struct k_rotary rotary = rotary_of(c, l, turns);

        use_layer(&layer_kv, kv, w, i);
        product(d, c, a, K_PRODUCT_PLAIN, a->qkv, a->normed, &l->qkv, l->qkv_bias, NULL);
        op->rope_kv(d, a->qkv, &layer_kv, &rotary);
        op->attn(d, a->heads, a->qkv, &layer_kv, 1.0f / sqrtf((float)c->head_dim), &l->o);
        product_onto(d, a, a->heads, &l->o, l->o_bias, l->norm_mlp, &l->gate_up);
        product(d, c, a, K_PRODUCT_GATED, a->ff, a->normed, &l->gate_up, l->gate_up_bias, &l->down);
        product_onto(d, a, a->ff, &l->down, l->down_bias,
                     i + 1 < c->n_layers ? w->layers[i + 1].norm_attn : w->norm,
                     i + 1 < c->n_layers ? &w->layers[i + 1].qkv : &w->head);
    }
    product(d, c, a, K_PRODUCT_FLOAT, a->logits, a->normed, &w->head, NULL, NULL);
}

void activations_few(struct activations *a, struct device *d, const struct config *c,
                     const struct weights *w)
{
    a->few = c->dim % 16 == 0 ? FORWARD_FEW : 0;
    for (int i = 0; i < c->n_layers; i++) {
        const struct k_matrix *const all[] = {&w->layers[i].qkv, &w->layers[i].o,
                                              &w->layers[i].gate_up, &w->layers[i].down, &w->head};

        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
            while (a->few > 0 && !d->ops->few(d, all[k], a->few))
                a->few--;
        }
    }
}

void forward(struct device *d, const struct config *c, const struct weights *w,
             const struct activations *a, const struct k_kv *kv, const float *turns)
{
    if (d->step_tokens <= a->few && d->step_rows == d->step_tokens)
        forward_few(d, c, w, a, kv, turns);
    else
        forward_many(d, c, w, a, kv, turns);
}
