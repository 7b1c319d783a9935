/* SPDX-License-Identifier: Apache-2.0
 *
 * The intermediate results of a forward pass (pass.h): their memory, which is allocated once for
 * the largest step, and the number of tokens up to which a step is fused. */
#include "model/pass.h"

#include "base/must.h"

/* The number of rows to allocate for n: a product may touch rows up to the next multiple. */
static size_t activations_padded_rows(const struct device *d, int n)
{
    return (size_t)((n + d->rows_multiple - 1) / d->rows_multiple * d->rows_multiple);
}

static int activations_wider(int a, int b)
{
    return a > b ? a : b;
}

/* Allocate memory for codes (8-bit elements with scales) of the widest rows of any product. All
 * users share it, because the codes of one are read before those of the next are written. */
static int activations_alloc_codes(struct activations *a, struct device *d, const struct plan *plan,
                                   const struct device_limits *limits)
{
    const struct plan_widths widest = plan_widest(plan);
    size_t rows = activations_padded_rows(d, activations_wider(limits->n_tokens, limits->n_seqs));
    const struct eagle_config *e = plan->eagle;
    int widths[] = {plan->dim, widest.mixer_out, widest.ff, e == NULL ? 0 : 2 * plan->dim,
                    e == NULL ? 0 : e->n_taps * e->tap_dim};
    struct device_rows *all[] = {&a->normed, &a->mixed,       &a->ff,
                                 &a->pairs,  &a->rows_normed, &a->tapped};
    struct k_quantised codes;
    size_t width = 0;

    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        width = (size_t)activations_wider((int)width, widths[i]);
    codes = (struct k_quantised){
        .data = d->ops->alloc_scratch(d, rows * width),
        .scales = d->ops->alloc_scratch(d, rows * ((width + 127) / 128) * sizeof(float))};
    if (codes.data == NULL || codes.scales == NULL)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        all[i]->codes = codes;
    return ERR_OK;
}

/* Logits are gathered on rank 0. The others allocate nothing for all logits, but make the call. */
static int activations_alloc_logits(struct activations *a, struct device *d,
                                    const struct plan *plan, const struct device_limits *limits)
{
    size_t rows = activations_padded_rows(d, limits->n_seqs);
    size_t all_bytes = rows * (size_t)limits->n_vocab * sizeof *a->logits;

    if (!plan_splits_head(plan)) {
        a->own_logits = a->logits = d->ops->alloc_scratch(d, all_bytes);
        if (a->logits == NULL)
            return ERR_NO_MEMORY;
        return ERR_OK;
    }
    a->logits = d->ops->alloc_shared(d, all_bytes);
    a->own_logits =
        d->ops->alloc_scratch(d, rows * (size_t)plan->head_rows * sizeof *a->own_logits);
    if (a->logits == NULL || a->own_logits == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Gates of both kinds of mixers have the same memory. */
static int activations_alloc_gates(struct activations *a, struct device *d, const struct plan *plan,
                                   size_t tokens)
{
    const struct plan_widths widest = plan_widest(plan);
    size_t heads = (size_t)widest.attn_gate * d->elem_bytes,
           delta = (size_t)widest.delta_gates * sizeof(float);
    size_t work = (size_t)widest.state_work * sizeof(float);

    if (heads < delta)
        heads = delta;
    if (heads > 0 && (a->gates = d->ops->alloc_scratch(d, tokens * heads)) == NULL)
        return ERR_NO_MEMORY;
    if (work > 0 && d->ops->has_state_work &&
        (a->state_work = d->ops->alloc_scratch(d, tokens * work)) == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Of the choice of tokens. */
static int activations_alloc_index(struct activations *a, struct device *d, const struct plan *plan,
                                   const struct device_limits *limits, size_t tokens)
{
    const struct k_index_shape s = plan_widest(plan).index;
    size_t heads = (size_t)s.n_heads, dim = (size_t)s.dim, elem = d->elem_bytes;

    if (s.n_keys == 0)
        return ERR_OK;
    a->index_queries = d->ops->alloc_scratch(d, tokens * heads * dim * elem);
    a->index_keys = d->ops->alloc_scratch(d, tokens * dim * elem);
    a->index_weights = d->ops->alloc_scratch(d, tokens * heads * sizeof *a->index_weights);
    a->chosen = d->ops->alloc_scratch(d, tokens * (size_t)s.n_keys * sizeof *a->chosen);
    if (d->ops->has_index_work &&
        (a->index_scores = d->ops->alloc_scratch(d, K_INDEX_BLOCKS * (size_t)limits->len_max *
                                                        sizeof *a->index_scores)) == NULL)
        return ERR_NO_MEMORY;
    if (a->index_queries == NULL || a->index_keys == NULL || a->index_weights == NULL ||
        a->chosen == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Of the delta rule by channel. */
static int activations_alloc_delta(struct activations *a, struct device *d, const struct plan *plan,
                                   size_t tokens)
{
    const struct plan_widths widest = plan_widest(plan);
    size_t values = (size_t)widest.delta_values, low = (size_t)widest.delta_low;

    if (low == 0)
        return ERR_OK;
    a->delta_a =
        d->ops->alloc_scratch(d, tokens * (size_t)widest.delta_forgets * sizeof *a->delta_a);
    a->delta_z = d->ops->alloc_scratch(d, tokens * values * d->elem_bytes);
    a->delta_low.data = d->ops->alloc_scratch(d, tokens * low * d->elem_bytes);
    if (a->delta_a == NULL || a->delta_z == NULL || a->delta_low.data == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Of latent attention. A step's absorbed queries and their results are wider than its queries. */
static int activations_alloc_latent(struct activations *a, struct device *d,
                                    const struct plan *plan, size_t tokens)
{
    const struct plan_widths widest = plan_widest(plan);
    void **rows[] = {&a->latents, &a->latent_queries, &a->latent_heads};
    const int widths[] = {widest.latents, widest.latent_queries, widest.latent_heads};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (widths[i] > 0 && (*rows[i] = d->ops->alloc_scratch(d, tokens * (size_t)widths[i] *
                                                                      d->elem_bytes)) == NULL)
            return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

/* Of an EAGLE-3 head. */
static int activations_alloc_eagle(struct activations *a, struct device *d, const struct plan *plan,
                                   size_t tokens)
{
    const struct eagle_config *e = plan->eagle;
    size_t dim = (size_t)plan->dim;

    if (e == NULL)
        return ERR_OK;
    a->tapped.data =
        d->ops->alloc_scratch(d, tokens * (size_t)e->n_taps * (size_t)e->tap_dim * d->elem_bytes);
    a->pairs.data = d->ops->alloc_scratch(d, tokens * 2 * dim * d->elem_bytes);
    a->embedded = d->ops->alloc_scratch(d, tokens * dim * sizeof *a->embedded);
    if (a->tapped.data == NULL || a->pairs.data == NULL || a->embedded == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Memory that only some families use. Ranks sum the results of experts apart, and squares. */
static int activations_alloc_more(struct activations *a, struct device *d, const struct plan *plan,
                                  const struct device_limits *limits, size_t tokens)
{
    size_t row = (size_t)plan->n_layers * (size_t)plan->embeds.width;
    size_t latent = (size_t)plan_widest(plan).latent * d->elem_bytes;

    if (activations_alloc_latent(a, d, plan, tokens) != ERR_OK ||
        activations_alloc_index(a, d, plan, limits, tokens) != ERR_OK ||
        activations_alloc_delta(a, d, plan, tokens) != ERR_OK)
        return ERR_NO_MEMORY;
    if (row > 0 && (a->embeds = d->ops->alloc_scratch(d, tokens * row * d->elem_bytes)) == NULL)
        return ERR_NO_MEMORY;
    if (activations_alloc_gates(a, d, plan, tokens) != ERR_OK)
        return ERR_NO_MEMORY;
    if (plan->n_ranks > 1 && plan_widest(plan).norms_whole &&
        (a->squares = d->ops->alloc_shared(d, tokens * K_SQUARES((size_t)plan->n_ranks) *
                                                  d->elem_bytes)) == NULL)
        return ERR_NO_MEMORY;
    if (latent > 0 && ((a->latent_in = d->ops->alloc_scratch(d, tokens * latent)) == NULL ||
                       (a->latent_out = d->ops->alloc_scratch(d, tokens * latent)) == NULL))
        return ERR_NO_MEMORY;
    if (!plan_widest(plan).is_apart && latent == 0)
        return ERR_OK;
    a->apart = d->ops->alloc_shared(d, tokens * (size_t)plan->dim * d->elem_bytes);
    if (a->apart == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Ranks sum delta. Widths are the maxima over all layers: layers differ, but run one after
 * another. */
int activations_alloc(struct activations *a, struct device *d, const struct plan *plan,
                      const struct device_limits *limits, bool is_last)
{
    const struct plan_widths widest = plan_widest(plan);
    size_t tokens = activations_padded_rows(d, limits->n_tokens),
           rows = activations_padded_rows(d, limits->n_seqs);
    size_t dim = (size_t)plan->dim, elem = d->elem_bytes;
    void **acts[] = {&a->normed.data, &a->mixer_in, &a->mixed.data, &a->ffn_in, &a->ff.data};
    size_t widths[] = {dim, (size_t)widest.mixer_in, (size_t)widest.mixer_out,
                       (size_t)widest.ffn_in, (size_t)widest.ff};

    must(limits->n_tokens >= 1 && limits->n_seqs >= 1);
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        if ((*acts[i] = d->ops->alloc_scratch(d, tokens * widths[i] * elem)) == NULL)
            return ERR_NO_MEMORY;
    }
    /* Sums exist only for fused steps, hence the small number of rows. */
    a->sums = d->ops->alloc_scratch(d, PASS_FUSED_MAX * (dim / 16 + 1) * sizeof(float));
    a->x = d->ops->alloc_scratch(d, tokens * dim * sizeof(float));
    a->rows = d->ops->alloc_scratch(d, rows * dim * sizeof(float));
    a->rows_normed.data = d->ops->alloc_scratch(d, rows * dim * elem);
    a->delta = d->ops->alloc_shared(d, tokens * dim * elem);
    if (a->x == NULL || a->rows == NULL || a->rows_normed.data == NULL || a->delta == NULL ||
        a->sums == NULL || (is_last && activations_alloc_logits(a, d, plan, limits) != ERR_OK))
        return ERR_NO_MEMORY;
    if (activations_alloc_more(a, d, plan, limits, tokens) != ERR_OK ||
        activations_alloc_eagle(a, d, plan, tokens) != ERR_OK)
        return ERR_NO_MEMORY;
    if (limits->codes)
        return activations_alloc_codes(a, d, plan, limits);
    return ERR_OK;
}

/* Lower the limit until the fused product takes a matrix. Support may end at some number of rows,
 * differently for each shape. */
static void activations_lower(struct activations *a, struct device *d, const struct k_matrix *w)
{
    while (w->n_out > 0 && a->fused_max > 0 && !d->ops->few(d, w, a->fused_max))
        a->fused_max--;
}

/* Start from the most and lower the limit until the device takes every matrix for so many rows.
 * With ranks, the residual's sum over ranks must fit the short protocol as well. */
void activations_fuse(struct activations *a, struct device *d, const struct plan *plan,
                      const struct weights *w, struct plan_stage stage)
{
    struct plan_widths widest = plan_widest(plan);

    a->fused_max = 0;
    /* an index, and gates of the delta rule by channel, have products in parts alone */
    if (plan->fuses && plan->dim % 16 == 0 && widest.index.n_heads == 0 &&
        widest.delta_forgets == 0)
        a->fused_max = PASS_FUSED_MAX;
    if (plan->n_ranks > 1 && d->ops->sum_residual == NULL)
        a->fused_max = 0;
    while (plan->n_ranks > 1 &&
           (size_t)a->fused_max * (size_t)plan->dim * sizeof(k_bf16) > K_SUM_SMALL_BYTES)
        a->fused_max--;
    for (int i = stage.first; i < stage.end; i++) {
        activations_lower(a, d, &w->layers[i].mixer_in);
        activations_lower(a, d, &w->layers[i].q_b);
        activations_lower(a, d, &w->layers[i].mixer_out);
        activations_lower(a, d, &w->layers[i].mixer_gate);
        if (plan->layers[i].ffn.kind == FFN_EXPERTS)
            continue; /* experts take part in any step, and shared ones run in parts */
        activations_lower(a, d, &w->layers[i].ffn_in);
        activations_lower(a, d, &w->layers[i].down);
    }
    if (w->head.data != NULL) /* perhaps only one rank has the head */
        activations_lower(a, d, &w->head);
}
