/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations of a forward pass, in their two ways (pass.h): fused, as k_product kernels that
 * include norms and sums, or in parts, one device operation per line of the formula.
 *
 * In a fused step the RMS norm is split: the operation that writes the residual also writes sums of
 * squares, and the product that reads the normed rows divides by their root. So no operation reads
 * the residual twice. */
#include "model/pass.h"

#include <math.h>

#include "base/must.h"

/* Tokens of a step whose shared expert is one of the others. It has a route of each of them, and
 * products of few routes each read x for every 8 gates: with 32 tokens a step of GLM-4.7-Flash took
 * 15.3 ms, not 9. */
#define SHARED_JOINS_MAX 16

/* A step is fused if it is small and all of its tokens are sampled, because the fused final product
 * reads every row. */
struct pass pass_of(struct device *d, const struct plan *plan, const struct weights *w,
                    struct activations *a)
{
    return (struct pass){.d = d,
                         .plan = plan,
                         .w = w,
                         .a = a,
                         .fused = d->step_tokens <= a->fused_max && d->step_rows == d->step_tokens,
                         .n = d->step_tokens};
}

/* --- fused -------------------------------------------------------------------------------- */

/* Only models of the common form come here: RMS norms before mixer and FFN, no multipliers. */

/* A product whose input is the normed residual; sums_in completes the norm. */
static struct k_product pass_fused_product(const struct pass *p, enum k_product_kind kind, void *y,
                                           const struct k_matrix *w, const void *bias)
{
    return (struct k_product){.kind = kind,
                              .x = p->a->normed.data,
                              .w = w,
                              .bias = bias,
                              .sums_in = p->a->sums,
                              .n_sums = p->plan->dim / 16,
                              .eps = p->plan->norm.eps,
                              .y = y};
}

/* All of the step's tokens at once. */
static void pass_fused_run(const struct pass *p, struct k_product product)
{
    p->d->ops->product(p->d, &product, p->n);
}

/* The sum of experts goes to the residual by itself, or over the ranks first. That sum reads only
 * the number of outputs of the matrix: residual->w is the shared experts', which may be none. */
static void pass_fused_experts(const struct pass *p, struct device_experts experts,
                               struct k_product *residual)
{
    const struct k_matrix outputs = {.n_out = p->plan->dim};

    if (p->plan->n_ranks == 1)
        experts.residual = residual;
    p->d->ops->experts(p->d, p->a->delta, &experts, p->n);
    if (p->plan->n_ranks == 1)
        return;
    residual->y = p->a->delta;
    residual->w = &outputs;
    p->d->ops->sum_residual(p->d, residual, p->n);
}

/* Add a product to the residual and begin the next norm. With ranks the product gives a part only:
 * the sum over ranks runs next, and then does the rest of the work. */
static void pass_fused_add(const struct pass *p, const struct device_rows *rows,
                           struct pass_sum sum, struct pass_next next)
{
    struct k_product product = {.kind = K_PRODUCT_RESIDUAL,
                                .x = rows->data,
                                .w = sum.w,
                                .bias = sum.bias,
                                .y_is_half = k_format_reads_half(&next.reader->format),
                                .residual = p->a->x,
                                .norm = next.norm->weight,
                                .normed = p->a->normed.data,
                                .sums_out = p->a->sums};

    if (sum.experts != NULL) {
        pass_fused_experts(p, *sum.experts, &product);
        return;
    }
    if (p->plan->n_ranks == 1 || sum.split != SPLIT_COLUMNS) {
        pass_fused_run(p, product);
        return;
    }
    pass_fused_run(p, (struct k_product){.kind = K_PRODUCT_PLAIN,
                                         .x = rows->data,
                                         .w = sum.w,
                                         .bias = sum.bias,
                                         .y = p->a->delta});
    product.y = p->a->delta;
    p->d->ops->sum_residual(p->d, &product, p->n);
}

/* --- in parts ----------------------------------------------------------------------------- */

/* Any model, any step. The order of operations is the formula's; only the sum and the following RMS
 * norm are combined where the device has one operation for both. */

/* normed = norm(x). RMS norms have an operation of their own, which can also add. */
static void pass_norm_residual(const struct pass *p, struct pass_next next)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;

    if (next.norm->kind == K_NORM_RMS)
        op->rmsnorm(p->d, &acts->normed, acts->x, next.norm->weight, next.norm->eps, p->n,
                    next.reader);
    else
        op->norm(p->d, &acts->normed, acts->x, next.norm, p->n, next.reader);
}

/* x += by * delta. */
static void pass_add_delta(const struct pass *p, float by)
{
    p->d->ops->add(p->d, p->a->x, p->a->delta, by, p->n);
}

/* delta = rows * w + bias, of all ranks together. */
static void pass_make_delta(const struct pass *p, const struct device_rows *rows,
                            struct pass_sum sum)
{
    const struct device_ops *op = p->d->ops;

    if (sum.experts != NULL)
        op->experts(p->d, p->a->delta, sum.experts, p->n);
    else if (!sum.is_summed)
        op->matmul(p->d, p->a->delta, rows, sum.w, sum.bias, p->n);
    if (p->plan->n_ranks > 1 && sum.split == SPLIT_COLUMNS && !sum.is_summed)
        op->sum_ranks(p->d, p->a->delta, p->n, p->plan->dim);
}

/* The same, and after(delta). */
static void pass_sum_delta(const struct pass *p, const struct device_rows *rows,
                           struct pass_sum sum)
{
    const struct device_ops *op = p->d->ops;

    pass_make_delta(p, rows, sum);
    if (sum.after->kind != K_NORM_NONE)
        op->norm_within(p->d, p->a->delta, p->plan->dim, sum.after, p->plan->dim, p->n);
}

/* --- either way --------------------------------------------------------------------------- */

/* Each function chooses its way by p->fused, which is fixed for a step. */

/* normed = x, rounded for the product with reader. */
static void pass_round_residual(const struct pass *p, const struct k_matrix *reader)
{
    static const struct k_norm none = {.kind = K_NORM_NONE};

    p->d->ops->norm(p->d, &p->a->normed, p->a->x, &none, p->n, reader);
}

/* The embeddings for each layer. The class multiplies projections by 1 / sqrt(dim) before their
 * norm; here the norm's epsilon is multiplied by dim instead. */
static void pass_fill_embeds(const struct pass *p)
{
    const struct layer_embeds *e = &p->plan->embeds;
    const struct k_norm *norm = &p->w->norm_embeds;
    const struct k_layer_embeds embeds = {.table = p->w->embeds,
                                          .weight = norm->weight,
                                          .table_scale = sqrtf((float)e->width),
                                          .scale = sqrtf(0.5f),
                                          .eps = norm->eps * (float)p->plan->dim,
                                          .n_layers = p->plan->n_layers,
                                          .width = e->width};

    pass_round_residual(p, &p->w->embeds_in);
    p->d->ops->matmul(p->d, p->a->embeds, &p->a->normed, &p->w->embeds_in, NULL, p->n);
    p->d->ops->layer_embeds(p->d, p->a->embeds, &embeds);
}

/* Multipliers and learned positions are applied by a second operation, which most models skip. */
/* x = norm(x), of embedded tokens, through rows of the device's type. */
static void pass_norm_embedded(const struct pass *p)
{
    static const struct k_matrix plain;
    const struct device_ops *op = p->d->ops;

    op->norm(p->d, &p->a->normed, p->a->x, &p->w->norm_embedded, p->n, &plain);
    op->place(p->d, p->a->x, 0.0f, NULL, 0);
    op->add(p->d, p->a->x, p->a->normed.data, 1.0f, p->n);
}

void pass_embed(const struct pass *p, struct pass_next next)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;

    if (p->fused) {
        op->embed_normed(p->d, acts->x, acts->normed.data, acts->sums, p->w->embed.data,
                         next.norm->weight, next.reader);
        return;
    }
    op->embed(p->d, acts->x, &p->w->embed);
    if (p->plan->norms_embedding)
        pass_norm_embedded(p);
    if (p->plan->by.embedding != 1.0f || p->w->positions != NULL)
        op->place(p->d, acts->x, p->plan->by.embedding, p->w->positions, p->plan->positions.first);
    if (p->w->embeds != NULL)
        pass_fill_embeds(p);
    pass_norm_residual(p, next);
}

/* The norm of a fused step's rows is handed over with them. */
void pass_enter(const struct pass *p, struct pass_next next)
{
    if (!p->fused)
        pass_norm_residual(p, next);
}

/* A plain product; in a fused step it also completes the norm of its input. */
void pass_project(const struct pass *p, void *y, const struct k_matrix *w, const void *bias)
{
    if (p->fused)
        pass_fused_run(p, pass_fused_product(p, K_PRODUCT_PLAIN, y, w, bias));
    else
        p->d->ops->matmul(p->d, y, &p->a->normed, w, bias, p->n);
}

/* Each rank has some heads, and all ranks' sums of squares make the norm. Where several ranks hold
 * a kv head, the first one's sum counts. */
static void pass_norm_over_ranks(const struct pass *p, const struct attn_plan *attn,
                                 const struct layer_weights *w, int rank)
{
    const struct device_ops *op = p->d->ops;
    int n_ranks = p->plan->n_ranks;
    int q = attn->n_heads * attn->head_dim, k = attn->n_kv_heads * attn->head_dim;
    const struct k_split_norms norms = {
        .q = {.weight = w->q_norm, .width = q, .whole = q * n_ranks, .counts = true},
        .k = {.weight = w->k_norm,
              .width = k,
              .whole = k * n_ranks / attn->kv_copies,
              .counts = rank % attn->kv_copies == 0},
        .stride = q + 2 * k,
        .eps = p->plan->norm.eps,
        .rank = rank,
        .n_ranks = n_ranks};

    op->squares(p->d, p->a->squares, p->a->mixer_in, &norms, p->n);
    op->sum_ranks(p->d, p->a->squares, p->n, K_SQUARES(n_ranks));
    op->norm_squares(p->d, p->a->mixer_in, p->a->squares, &norms, p->n);
}

/* Norm queries and keys, each over all heads of a token. Keys follow the queries in a row. */
void pass_norm_whole(const struct pass *p, const struct attn_plan *attn,
                     const struct layer_weights *w, int rank)
{
    const struct device_ops *op = p->d->ops;
    int q = attn->n_heads * attn->head_dim, kv = attn->n_kv_heads * attn->head_dim;
    const struct k_norm of_q = {K_NORM_RMS, w->q_norm, NULL, p->plan->norm.eps};
    const struct k_norm of_k = {K_NORM_RMS, w->k_norm, NULL, p->plan->norm.eps};
    char *rows = p->a->mixer_in;

    if (p->plan->n_ranks > 1) {
        pass_norm_over_ranks(p, attn, w, rank);
        return;
    }
    op->norm_within(p->d, rows, q + 2 * kv, &of_q, q, p->n);
    op->norm_within(p->d, rows + (size_t)q * p->d->elem_bytes, q + 2 * kv, &of_k, kv, p->n);
}

/* Rotation and growth commute, so the rotary step need not know. */
void pass_grow(const struct pass *p, const struct attn_plan *attn)
{
    int width = attn->n_heads * attn->head_dim;
    int stride = width + 2 * attn->n_kv_heads * attn->head_dim;

    if (attn->latent.kv_rank > 0)
        width = attn->n_heads * k_latent_query(&attn->latent),
        stride = k_latent_stride(&attn->latent);
    p->d->ops->grow(p->d, p->a->mixer_in, stride, width, &p->plan->growth);
}

/* Rotary positions are applied to the queries, and keys and values are stored in the pages, before
 * attention reads them. */
void pass_attend(const struct pass *p, const struct attn_plan *attn, const struct k_kv *kv,
                 const struct k_rotary *rotary, const struct k_matrix *reader)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;
    const struct k_gating gating = {attn->gate_by_head ? attn->head_dim : 1, attn->gate_softplus};
    bool shuts = false, is_other = attn->gate_by_head || attn->gate_softplus;

    op->rope_kv(p->d, acts->mixer_in, kv, rotary, attn->n_heads);
    if (attn->has_gate && !is_other && op->shut_attn != NULL)
        shuts = op->shut_attn(p->d, acts->gates, kv);
    op->attn(p->d, acts->mixed.data, acts->mixer_in, kv, attn->n_heads, attn->scale,
             p->fused && (!attn->has_gate || shuts) ? reader : NULL);
    if (attn->has_gate && is_other)
        op->shut_by(p->d, acts->mixed.data, acts->gates, &gating, attn->n_heads * attn->head_dim,
                    p->n);
    else if (attn->has_gate && !shuts)
        op->shut(p->d, acts->mixed.data, acts->gates, attn->n_heads * attn->head_dim, p->n,
                 p->fused ? reader : NULL);
    if (!p->fused)
        op->quantise(p->d, &acts->mixed, p->n, reader);
}

/* States are read and replaced in the pages of the state group. */
void pass_recur(const struct pass *p, const struct recurrent_plan *recurrent,
                const struct k_state *state, const struct k_matrix *reader)
{
    struct activations *acts = p->a;

    p->d->ops->recurrent(p->d, acts->mixed.data, acts->mixer_in, state, recurrent->width,
                         p->fused ? reader : NULL);
    if (!p->fused)
        p->d->ops->quantise(p->d, &acts->mixed, p->n, reader);
}

/* a and z, each of two products, of which the first has few rows. All matrices are plain. */
static void pass_project_channels(const struct pass *p, const struct layer_weights *w)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;

    must(!p->fused);
    op->matmul(p->d, acts->delta_low.data, &acts->normed, &w->f_a, NULL, p->n);
    op->matmul_float(p->d, acts->delta_a, &acts->delta_low, &w->f_b, p->n);
    op->matmul(p->d, acts->delta_low.data, &acts->normed, &w->g_a, NULL, p->n);
    op->matmul(p->d, acts->delta_z, &acts->delta_low, &w->g_b, NULL, p->n);
}

/* Gates of a fused step from the residual, beside the first product. */
static bool pass_gate_delta(const struct pass *p, const struct layer_weights *w)
{
    struct activations *acts = p->a;
    const struct k_delta_gating gating = {.w = w->mixer_gate.data,
                                          .x = acts->x,
                                          .norm = w->norm_mixer.weight,
                                          .sums = acts->sums,
                                          .dim = p->plan->dim,
                                          .n_sums = p->plan->dim / 16,
                                          .eps = w->norm_mixer.eps};

    return p->d->ops->delta_gate != NULL &&
           p->d->ops->delta_gate(p->d, acts->gates, &gating, &w->mixer_gate);
}

/* The first matrix may read codes, or rows in another order, and the second one does not. In parts
 * codes are made of plain rows; a fused step norms the residual once more, into the rows of the
 * output matrix, which are as many as its tokens. */
void pass_project_delta(const struct pass *p, const struct layer_weights *w)
{
    static const struct k_matrix plain = {.n_in = 0};
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;
    struct device_rows again = {.data = acts->rows_normed.data};

    if (w->delta.shape.by_channel)
        pass_project_channels(p, w);
    if (!p->fused) {
        op->matmul_float(p->d, acts->gates, &acts->normed, &w->mixer_gate, p->n);
        op->quantise(p->d, &acts->normed, p->n, &w->mixer_in);
        op->matmul(p->d, acts->mixer_in, &acts->normed, &w->mixer_in, NULL, p->n);
        return;
    }
    pass_project(p, acts->mixer_in, &w->mixer_in, NULL);
    if (pass_gate_delta(p, w))
        return;
    if (k_format_is_plain(&w->mixer_in.format)) {
        pass_fused_run(p,
                       pass_fused_product(p, K_PRODUCT_FLOAT, acts->gates, &w->mixer_gate, NULL));
        return;
    }
    op->rmsnorm(p->d, &again, acts->x, w->norm_mixer.weight, w->norm_mixer.eps, p->n, &plain);
    op->matmul_float(p->d, acts->gates, &again, &w->mixer_gate, p->n);
}

/* States are read and replaced as by pass_recur(). */
void pass_delta(const struct pass *p, const struct k_delta *delta, const struct k_state *state,
                const struct k_matrix *reader)
{
    struct activations *acts = p->a;
    struct k_delta with_memory = *delta;

    with_memory.rows = acts->state_work;
    with_memory.a = acts->delta_a;
    with_memory.z = acts->delta_z;
    p->d->ops->delta(p->d, acts->mixed.data, acts->mixer_in, acts->gates, &with_memory, state,
                     p->fused ? reader : NULL);
    if (!p->fused)
        p->d->ops->quantise(p->d, &acts->mixed, p->n, reader);
}

void pass_mamba(const struct pass *p, const struct k_mamba *mamba, const struct k_state *state,
                const struct k_matrix *reader)
{
    struct activations *acts = p->a;
    struct k_mamba with_memory = *mamba;

    with_memory.rows = acts->state_work;
    p->d->ops->mamba(p->d, acts->mixed.data, acts->mixer_in, &with_memory, state,
                     p->fused ? reader : NULL);
    if (!p->fused)
        p->d->ops->quantise(p->d, &acts->mixed, p->n, reader);
}

void pass_convolve(const struct pass *p, const struct k_short_conv *conv,
                   const struct k_state *state, const struct k_matrix *reader)
{
    struct activations *acts = p->a;

    p->d->ops->short_conv(p->d, acts->mixed.data, acts->mixer_in, conv, state,
                          p->fused ? reader : NULL);
    if (!p->fused)
        p->d->ops->quantise(p->d, &acts->mixed, p->n, reader);
}

/* SiLU has an operation of its own; other activations share the general one. */
void pass_gate(const struct pass *p, const struct ffn_plan *ffn, const struct k_matrix *gate_up,
               const void *bias, const struct k_matrix *reader)
{
    struct activations *acts = p->a;

    if (p->fused) {
        struct k_product product =
            pass_fused_product(p, K_PRODUCT_GATED, acts->ff.data, gate_up, bias);

        product.y_is_half = k_format_reads_half(&reader->format);
        pass_fused_run(p, product);
        return;
    }
    if (ffn->activation == K_SILU && ffn->gate_by == 1.0f && ffn->limit == 0.0f && bias == NULL &&
        p->d->ops->gated != NULL &&
        p->d->ops->gated(p->d, &acts->ff, &acts->normed, gate_up, p->n, reader))
        return;
    p->d->ops->matmul(p->d, acts->ffn_in, &acts->normed, gate_up, bias, p->n);
    if (ffn->gate_by != 1.0f)
        p->d->ops->scale(p->d, acts->ffn_in, 2 * ffn->ff_dim, ffn->ff_dim, ffn->gate_by, p->n);
    if (ffn->limit > 0.0f) {
        p->d->ops->gate_limited(p->d, &acts->ff, acts->ffn_in, ffn->limit, ffn->ff_dim, p->n);
        p->d->ops->quantise(p->d, &acts->ff, p->n, reader);
    } else if (ffn->activation == K_SILU)
        p->d->ops->silu_mul(p->d, &acts->ff, acts->ffn_in, ffn->ff_dim, p->n, reader);
    else
        p->d->ops->gate(p->d, &acts->ff, acts->ffn_in, ffn->activation, ffn->ff_dim, p->n, reader);
}

/* An FFN without a gate has no fused form of its own; only its first product is fused. */
void pass_activate(const struct pass *p, const struct ffn_plan *ffn, const struct k_matrix *up,
                   const void *bias, const struct k_xielu *curve, const struct k_matrix *reader)
{
    struct activations *acts = p->a;

    pass_project(p, acts->ffn_in, up, bias);
    if (ffn->has_xielu)
        p->d->ops->xielu(p->d, acts->ff.data, acts->ffn_in, curve, ffn->ff_dim, p->n);
    else
        p->d->ops->activate(p->d, acts->ff.data, acts->ffn_in, ffn->activation, ffn->ff_dim, p->n,
                            p->fused ? reader : NULL);
    if (!p->fused)
        p->d->ops->quantise(p->d, &acts->ff, p->n, reader);
}

/* The FFN that all tokens use: delta = down(activation(gate) * up), or down(activation(up)). */
static void pass_share_experts(const struct pass *p, const struct ffn_plan *ffn,
                               const struct layer_weights *w)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;

    op->quantise(p->d, &acts->normed, p->n, &w->ffn_in);
    op->matmul(p->d, acts->ffn_in, &acts->normed, &w->ffn_in, w->ffn_in_bias, p->n);
    if (ffn->experts.config->is_plain) {
        op->activate(p->d, acts->ff.data, acts->ffn_in, ffn->activation, ffn->ff_dim, p->n, NULL);
        op->quantise(p->d, &acts->ff, p->n, &w->down);
    } else if (ffn->limit > 0.0f) {
        op->gate_limited(p->d, &acts->ff, acts->ffn_in, ffn->limit, ffn->ff_dim, p->n);
        op->quantise(p->d, &acts->ff, p->n, &w->down);
    } else {
        op->gate(p->d, &acts->ff, acts->ffn_in, ffn->activation, ffn->ff_dim, p->n, &w->down);
    }
    op->matmul(p->d, acts->delta, &acts->ff, &w->down, w->down_bias, p->n);
}

/* The factor of shared experts is a product of rows that are normed in full. */
static bool pass_fuses_shared(const struct pass *p, const struct ffn_plan *ffn,
                              const struct layer_weights *w)
{
    const struct device_ops *op = p->d->ops;

    return w->shared_switch == NULL && !ffn->experts.config->is_plain &&
           ffn->activation == K_SILU && ffn->gate_by == 1.0f && ffn->limit == 0.0f &&
           op->halve != NULL && op->few(p->d, &w->ffn_in, p->n) && op->few(p->d, &w->down, p->n);
}

/* The same as pass_share_experts(), by two fused products. Rows of float16, which a format may
 * want, are made in the memory of the rows of the output matrix, which are as many as tokens. */
static void pass_fused_share(const struct pass *p, const struct layer_weights *w)
{
    struct activations *acts = p->a;
    struct k_product gate =
        pass_fused_product(p, K_PRODUCT_GATED, acts->ff.data, &w->ffn_in, w->ffn_in_bias);

    if (k_format_reads_half(&w->ffn_in.format)) {
        p->d->ops->halve(p->d, acts->rows_normed.data, acts->normed.data, p->plan->dim, p->n);
        gate.x = acts->rows_normed.data;
    }
    gate.y_is_half = k_format_reads_half(&w->down.format);
    pass_fused_run(p, gate);
    pass_fused_run(p, (struct k_product){.kind = K_PRODUCT_PLAIN,
                                         .x = acts->ff.data,
                                         .w = &w->down,
                                         .bias = w->down_bias,
                                         .y = acts->delta});
}

/* Router and experts read rows of the device's type, whatever the format of the matrices is. In a
 * fused step the residual has been normed by half only: they complete it, and shared experts do if
 * they are fused, too; else it is normed here for these. A shared expert that is like the others is
 * one of them in a fused step. */
struct device_experts pass_begin_experts(const struct pass *p, const struct layer_plan *layer,
                                         const struct layer_weights *w)
{
    static const struct k_matrix plain = {.n_in = 0};
    struct activations *acts = p->a;
    struct device_experts experts = {.x = acts->normed.data,
                                     .router = &w->router,
                                     .experts = &w->experts,
                                     .shared_switch = w->shared_switch,
                                     .adds = layer->ffn.ff_dim > 0};

    if (p->fused && p->n <= SHARED_JOINS_MAX && w->experts_all.n > 0) {
        experts.router = &w->router_all;
        experts.experts = &w->experts_all;
        experts.adds = false;
    }
    if (p->fused && !experts.adds)
        experts.norm = (struct k_half_normed){acts->sums, p->plan->dim / 16, w->norm_ffn.eps};
    else if (p->fused && pass_fuses_shared(p, &layer->ffn, w)) {
        experts.norm = (struct k_half_normed){acts->sums, p->plan->dim / 16, w->norm_ffn.eps};
        pass_fused_share(p, w);
        return experts;
    } else if (p->fused)
        p->d->ops->rmsnorm(p->d, &acts->normed, acts->x, w->norm_ffn.weight, w->norm_ffn.eps, p->n,
                           &plain);
    if (experts.adds)
        pass_share_experts(p, &layer->ffn, w);
    return experts;
}

/* A result in the device's type, of all ranks together, and normed. */
static void pass_norm_part(const struct pass *p, void *rows, const struct k_norm *after)
{
    if (p->plan->n_ranks > 1)
        p->d->ops->sum_ranks(p->d, rows, p->n, p->plan->dim);
    p->d->ops->norm_within(p->d, rows, p->plan->dim, after, p->plan->dim, p->n);
}

/* Three norms of the residual: the dense FFN's is in normed already. The router's input lies where
 * the experts' result comes after they have been chosen. */
void pass_mix_apart(const struct pass *p, const struct layer_plan *layer,
                    const struct layer_weights *w)
{
    static const struct k_matrix plain = {.n_in = 0};
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;
    struct device_rows router_in = {.data = acts->apart};
    const struct device_experts experts = {.x = acts->normed.data,
                                           .router_x = acts->apart,
                                           .router = &w->router,
                                           .experts = &w->experts};

    must(!p->fused);
    pass_share_experts(p, &layer->ffn, w);
    pass_norm_part(p, acts->delta, &w->norm_shared_after);
    op->norm(p->d, &router_in, acts->x, &w->norm_router, p->n, &plain);
    op->norm(p->d, &acts->normed, acts->x, &w->norm_experts, p->n, &plain);
    op->experts(p->d, acts->apart, &experts, p->n);
    pass_norm_part(p, acts->apart, &w->norm_experts_after);
    op->add_within(p->d, acts->delta, acts->apart, p->n);
}

/* Both products of the narrower space are whole on all ranks, and the second one brings back the
 * rank's part of the experts' results. */
void pass_mix_latent(const struct pass *p, const struct layer_plan *layer,
                     const struct layer_weights *w)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;
    struct device_rows latent = {.data = acts->latent_out, .codes = acts->normed.codes};
    const struct device_experts experts = {.x = acts->latent_in,
                                           .router_x = acts->normed.data,
                                           .router = &w->router,
                                           .experts = &w->experts};

    must(!p->fused);
    pass_share_experts(p, &layer->ffn, w);
    op->quantise(p->d, &acts->normed, p->n, &w->latent_in);
    op->matmul(p->d, acts->latent_in, &acts->normed, &w->latent_in, NULL, p->n);
    op->experts(p->d, acts->latent_out, &experts, p->n);
    op->quantise(p->d, &latent, p->n, &w->latent_out);
    op->matmul(p->d, acts->apart, &latent, &w->latent_out, NULL, p->n);
    op->add_within(p->d, acts->delta, acts->apart, p->n);
    if (p->plan->n_ranks > 1)
        op->sum_ranks(p->d, acts->delta, p->n, p->plan->dim);
}

/* Norms of this form, which no family lacks where it has a norm after a sum, or a scale. */
void pass_add_scaled(const struct pass *p, const struct device_rows *rows, struct pass_sum sum,
                     float scale, struct pass_next next)
{
    static const struct k_norm none = {.kind = K_NORM_NONE};
    const struct k_norm *norm = next.norm != NULL ? next.norm : &none;
    const struct k_adding how = {*sum.after, *norm, sum.by, scale};
    struct activations *acts = p->a;

    must(!p->fused && sum.after->kind != K_NORM_LAYER && norm->kind != K_NORM_LAYER);
    pass_make_delta(p, rows, sum);
    p->d->ops->add_normed(p->d, next.reader != NULL ? &acts->normed : NULL, acts->x, acts->delta,
                          &how, p->n, next.reader);
}

void pass_add_last(const struct pass *p, const struct device_rows *rows, struct pass_sum sum)
{
    pass_sum_delta(p, rows, sum);
    pass_add_delta(p, sum.by);
}

/* In a parallel layer the FFN reads the norm of x from before the sum, so the norm comes first. */
void pass_add(const struct pass *p, const struct device_rows *rows, struct pass_sum sum,
              struct pass_next next, bool is_parallel)
{
    struct activations *acts = p->a;

    if (p->fused) {
        pass_fused_add(p, rows, sum, next);
        return;
    }
    if (!is_parallel && sum.after->kind == K_NORM_RMS && next.norm->kind == K_NORM_RMS) {
        pass_add_scaled(p, rows, sum, 1.0f, next);
        return;
    }
    pass_sum_delta(p, rows, sum);
    if (is_parallel) {
        pass_norm_residual(p, next);
        pass_add_delta(p, sum.by);
    } else if (next.norm->kind == K_NORM_RMS && sum.by == 1.0f) {
        p->d->ops->add_rmsnorm(p->d, &acts->normed, acts->x, acts->delta, next.norm->weight,
                               next.norm->eps, p->n, next.reader);
    } else {
        pass_add_delta(p, sum.by);
        pass_norm_residual(p, next);
    }
}

void pass_leave(const struct pass *p, const struct device_rows *rows, struct pass_sum sum,
                struct pass_next next)
{
    if (p->fused) {
        pass_fused_add(p, rows, sum, next);
        return;
    }
    pass_sum_delta(p, rows, sum);
    pass_add_delta(p, sum.by);
}

/* Widths of the FFN's memory have room for these. */
struct pass_sum pass_gate_embeds(const struct pass *p, enum k_activation kind,
                                 const struct layer_weights *w, int i)
{
    const struct device_ops *op = p->d->ops;
    struct activations *acts = p->a;
    int width = p->plan->embeds.width;
    const struct k_factor by = {(char *)acts->embeds + (size_t)i * (size_t)width * p->d->elem_bytes,
                                p->plan->n_layers * width, width};

    must(!p->fused);
    op->matmul(p->d, acts->ffn_in, &acts->normed, &w->embed_gate, NULL, p->n);
    op->gate_by(p->d, &acts->ff, acts->ffn_in, &by, kind, p->n, &w->embed_out);
    return (struct pass_sum){
        .w = &w->embed_out, .by = p->plan->by.residual, .after = &w->norm_embed_after};
}

/* True on ranks that have rows of the output matrix. Tied models have the embedding on all. */
static bool pass_has_head(const struct pass *p)
{
    return plan_splits_head(p->plan) || p->d->limits.n_vocab > 0;
}

/* Nothing to do where one rank has the whole output matrix. */
static void pass_gather_logits(const struct pass *p)
{
    if (plan_splits_head(p->plan))
        p->d->ops->gather_ranks(p->d, p->a->logits, p->a->own_logits, p->d->step_rows,
                                p->plan->head_rows);
}

/* The last norm and the logits of the sampled rows; a->rows holds their residual. */
static void pass_finish_rows(const struct pass *p)
{
    const struct device_ops *op = p->d->ops;
    const struct k_norm *norm = &p->w->norm;
    const struct multipliers *by = &p->plan->by;
    const struct k_softening how = {p->w->head_bias, by->logits, by->logits_cap};
    struct activations *acts = p->a;
    int n = p->d->step_rows;

    if (norm->kind == K_NORM_RMS)
        op->rmsnorm(p->d, &acts->rows_normed, acts->rows, norm->weight, norm->eps, n, &p->w->head);
    else
        op->norm(p->d, &acts->rows_normed, acts->rows, norm, n, &p->w->head);
    op->matmul_float(p->d, acts->own_logits, &acts->rows_normed, &p->w->head, n);
    pass_gather_logits(p);
    if (p->d->limits.n_vocab > 0 && (how.bias != NULL || how.scale != 1.0f || how.cap > 0.0f))
        op->soften(p->d, acts->logits, &how, n);
}

/* In parts, the last sum is computed for the sampled rows only, because no later layer reads the
 * others. */
void pass_finish(const struct pass *p, const struct device_rows *rows, struct pass_sum sum)
{
    const struct pass_next next = {.norm = &p->w->norm, .reader = &p->w->head};
    struct activations *acts = p->a;

    if (p->fused) {
        pass_fused_add(p, rows, sum, next);
        if (!pass_has_head(p))
            return;
        pass_fused_run(p,
                       pass_fused_product(p, K_PRODUCT_FLOAT, acts->own_logits, &p->w->head, NULL));
        pass_gather_logits(p);
        return;
    }
    pass_sum_delta(p, rows, sum);
    if (p->d->step_rows == 0 || !pass_has_head(p))
        return;
    p->d->ops->gather_add(p->d, acts->rows, acts->x, acts->delta, sum.by);
    pass_finish_rows(p);
}

/* The residual is complete, so delta does not count. */
void pass_finish_entered(const struct pass *p)
{
    struct activations *acts = p->a;

    if (p->fused) {
        if (!pass_has_head(p))
            return;
        pass_fused_run(p,
                       pass_fused_product(p, K_PRODUCT_FLOAT, acts->own_logits, &p->w->head, NULL));
        pass_gather_logits(p);
        return;
    }
    if (p->d->step_rows == 0 || !pass_has_head(p))
        return;
    p->d->ops->gather_add(p->d, acts->rows, acts->x, acts->delta, 0.0f);
    pass_finish_rows(p);
}
