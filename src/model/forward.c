/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of a forward pass:
 *
 *   ids -> x [n_tokens][dim] -> normed
 *   each layer:   normed -> mixer_in -> mixed;  x += mixed * mixer_out -> normed
 *                 normed -> ffn_in -> ff;       x += ff * down -> normed
 *   sampled rows: normed -> logits [n_rows][n_vocab]
 *
 * plan.h shows the general layer, with norms after the products, parallel FFNs and multipliers.
 * pass.h explains how each operation runs; this file does not know whether operations are fused.
 *
 * A stage of a model runs its own layers of these. It begins with the residual of the stage before,
 * and ends with the residual for the next one.
 *
 * Each addition to the residual also computes the norm that the next product reads, so the loop
 * always passes the next norm and its reader along. */
#include "model/forward.h"

#include "base/must.h"

/* The kernels' view of layer i's keys and values: base pointer, offsets and scales. */
static struct k_kv forward_kv_of(const struct forward *f, int i)
{
    const struct attn_plan *attn = &f->plan->layers[i].attn;
    const struct layer_weights *weights = &f->weights->layers[i];
    const struct layer_weights *source = &f->weights->layers[attn->kv_layer];
    const struct cache_place *at = &f->cache->layers[i];
    size_t elem_bytes = f->kv_type == K_E4M3 ? sizeof(k_e4m3) : f->device->elem_bytes;

    return (struct k_kv){.pages = f->pages,
                         .page_elems = f->cache->page_bytes / elem_bytes,
                         .layer_elems = at->at,
                         .n_kv_heads = attn->n_kv_heads,
                         .head_dim = attn->head_dim,
                         .page_tokens = f->cache->page_tokens,
                         .window = attn->window,
                         .type = f->kv_type,
                         .k_scale = source->k_scale,
                         .v_scale = source->v_scale,
                         .group = at->group,
                         .sinks = weights->sinks,
                         .cap = f->plan->score_cap,
                         .is_shared = attn->is_shared || attn->latent.kv_rank > 0,
                         .value_dim = attn->latent.kv_rank};
}

/* The kernels' view of layer i's states. */
static struct k_state forward_state_of(const struct forward *f, int i)
{
    return (struct k_state){.pages = f->pages,
                            .page_elems = f->cache->page_bytes / plan_state_elem_bytes(f->plan),
                            .is_bf16 = f->plan->bf16_states,
                            .at = f->cache->layers[i].at,
                            .group = f->cache->layers[i].group};
}

/* The matrix that reads an FFN's input; that of experts takes rows of the device's type. */
static const struct k_matrix *forward_ffn_reader(const struct layer_plan *plan,
                                                 const struct layer_weights *w)
{
    static const struct k_matrix plain = {.n_in = 0};

    if (plan->ffn.kind == FFN_EXPERTS) /* a dense FFN beside them has codes made of these */
        return &plain;
    return &w->ffn_in;
}

/* The matrix that reads a mixer's input. With Gated DeltaNet two do, of which one takes rows of the
 * device's type: in a fused step it has them made. */
static const struct k_matrix *forward_mixer_reader(const struct forward *f, const struct pass *p,
                                                   int i)
{
    static const struct k_matrix plain = {.n_in = 0};

    if (f->plan->layers[i].mixer == MIXER_DELTA && !p->fused)
        return &plain;
    return &f->weights->layers[i].mixer_in;
}

/* The norm and the reader of layer i's input. */
static struct pass_next forward_first(const struct forward *f, const struct pass *p, int i)
{
    const struct layer_plan *plan = &f->plan->layers[i];
    const struct layer_weights *weights = &f->weights->layers[i];

    if (plan->mixer == MIXER_NONE)
        return (struct pass_next){.norm = &weights->norm_ffn,
                                  .reader = forward_ffn_reader(plan, weights)};
    return (struct pass_next){.norm = &weights->norm_mixer,
                              .reader = forward_mixer_reader(f, p, i)};
}

/* The norm and the reader behind layer i. */
static struct pass_next forward_next(const struct forward *f, const struct pass *p, int i)
{
    if (i + 1 == f->plan->n_layers)
        return (struct pass_next){.norm = &f->weights->norm, .reader = &f->weights->head};
    return forward_first(f, p, i + 1);
}

/* Keep the residual that enters layer i, or is behind the last one, if a head reads it; plain rows
 * of the device's type. */
static void forward_tap(const struct forward *f, const struct pass *p, int i)
{
    static const struct k_norm none = {.kind = K_NORM_NONE};
    static const struct k_matrix plain = {.n_in = 0};
    const struct forward_taps *taps = f->taps;

    for (int k = 0; taps != NULL && k < taps->n; k++) {
        size_t at = (size_t)k * (size_t)taps->n_tokens_max * (size_t)taps->dim;
        struct device_rows rows = {.data = (char *)taps->rows + at * p->d->elem_bytes};

        if (taps->layers[k] == i)
            p->d->ops->norm(p->d, &rows, p->a->x, &none, p->n, &plain);
    }
}

/* After the last layer whose residual a head reads: in parts the sum is computed for all tokens,
 * not for the sampled rows alone. */
static void forward_end_tapped(const struct forward *f, const struct pass *p,
                               const struct device_rows *rows, struct pass_sum sum)
{
    if (p->fused)
        pass_finish(p, rows, sum);
    else
        pass_add_last(p, rows, sum);
    forward_tap(f, p, f->plan->n_layers);
    if (!p->fused)
        pass_finish_entered(p);
}

static bool forward_taps_end(const struct forward *f)
{
    return f->taps != NULL && f->taps->n > 0 &&
           f->taps->layers[f->taps->n - 1] == f->plan->n_layers;
}

/* The last sum of layer i. After the last layer it ends in the logits instead of another layer's
 * norm. */
static void forward_end(const struct forward *f, const struct pass *p, int i,
                        const struct device_rows *rows, struct pass_sum sum)
{
    if (i + 1 == f->plan->n_layers && f->is_last && forward_taps_end(f))
        forward_end_tapped(f, p, rows, sum);
    else if (i + 1 == f->plan->n_layers && f->is_last)
        pass_finish(p, rows, sum);
    else if (i + 1 == f->stage.end)
        pass_leave(p, rows, sum, forward_next(f, p, i));
    else
        pass_add(p, rows, sum, forward_next(f, p, i), f->plan->layers[i].is_twin);
}

/* The product that a mixer begins with. */
static void forward_project(const struct forward *f, const struct pass *p, int i)
{
    const struct layer_plan *plan = &f->plan->layers[i];
    const struct layer_weights *weights = &f->weights->layers[i];
    struct k_kv kv;

    if (plan->mixer == MIXER_DELTA)
        pass_project_delta(p, weights);
    else if (plan->attn.latent.kv_rank > 0) {
        kv = forward_kv_of(f, i);
        pass_project_latent(p, plan, weights, &kv, f->turns[plan->attn.rope]);
    } else if (f->plan->eagle != NULL && !f->plan->eagle->is_mtp)
        p->d->ops->matmul(p->d, p->a->mixer_in, &p->a->pairs, &weights->mixer_in,
                          weights->mixer_in_bias, p->n);
    else
        pass_project(p, p->a->mixer_in, &weights->mixer_in, weights->mixer_in_bias);
}

/* One mixer: its input product, attention or the recurrence, and its output product with the sum.
 * Norms of single heads are part of the rotary step; a norm over all heads runs before it. */
static void forward_run_mixer(const struct forward *f, const struct pass *p, int i)
{
    const struct layer_plan *plan = &f->plan->layers[i];
    const struct layer_weights *weights = &f->weights->layers[i];
    bool after = plan->attn.qk_norm == QK_NORM_AFTER;
    bool by_head = plan->attn.qk_norm == QK_NORM_HEADS || after;
    const struct k_rotary rotary = {.turns = f->turns[plan->attn.rope],
                                    .q_norm = by_head ? weights->q_norm : NULL,
                                    .k_norm = by_head ? weights->k_norm : NULL,
                                    .eps = f->plan->norm.eps,
                                    .norms_after = after,
                                    .norms_values = plan->attn.value_norm};
    const struct pass_sum sum = {.w = &weights->mixer_out,
                                 .bias = weights->mixer_out_bias,
                                 .split = plan->splits.mixer_out,
                                 .by = plan->mixer_by,
                                 .after = &weights->norm_mixer_after};
    struct k_state state;
    struct k_kv kv;

    if (plan->mixer == MIXER_NONE)
        return;
    forward_project(f, p, i);
    switch (plan->mixer) {
    case MIXER_ATTENTION:
        if (plan->attn.has_gate)
            pass_project(p, p->a->gates, &weights->mixer_gate, NULL);
        kv = forward_kv_of(f, i);
        if (plan->attn.qk_norm == QK_NORM_WHOLE)
            pass_norm_whole(p, &plan->attn, weights, f->rank);
        if (plan->attn.grows)
            pass_grow(p, &plan->attn);
        if (plan->attn.latent.kv_rank > 0) {
            pass_attend_latent(p, plan, weights, &kv, f->turns[plan->attn.rope]);
            break;
        }
        pass_attend(p, &plan->attn, &kv, &rotary, &weights->mixer_out);
        break;
    case MIXER_RECURRENT:
        state = forward_state_of(f, i);
        pass_recur(p, &plan->recurrent, &state, &weights->mixer_out);
        break;
    case MIXER_DELTA:
        state = forward_state_of(f, i);
        pass_delta(p, &weights->delta, &state, &weights->mixer_out);
        break;
    case MIXER_MAMBA:
        state = forward_state_of(f, i);
        pass_mamba(p, &weights->mamba, &state, &weights->mixer_out);
        break;
    case MIXER_CONV:
        state = forward_state_of(f, i);
        pass_convolve(p, &weights->conv, &state, &weights->mixer_out);
        break;
    case MIXER_NONE: break;
    }
    if (plan->ffn.kind == FFN_NONE)
        forward_end(f, p, i, &p->a->mixed, sum);
    else
        pass_add(p, &p->a->mixed, sum,
                 (struct pass_next){.norm = &weights->norm_ffn,
                                    .reader = forward_ffn_reader(plan, weights)},
                 plan->is_parallel);
}

/* The end of a layer with more than two sums: its embeddings, its scale, then what the last sum of
 * other layers includes. */
static void forward_run_tail(const struct forward *f, const struct pass *p, int i,
                             struct pass_sum down)
{
    static const struct k_norm none = {.kind = K_NORM_NONE};
    const struct layer_plan *plan = &f->plan->layers[i];
    const struct layer_weights *weights = &f->weights->layers[i];
    struct pass_next next = {.norm = NULL};

    if (f->plan->embeds.width > 0) {
        pass_add_scaled(p, &p->a->ff, down, 1.0f,
                        (struct pass_next){.norm = &none, .reader = &weights->embed_gate});
        down = pass_gate_embeds(p, plan->ffn.activation, weights, i);
    }
    if (i + 1 < f->stage.end)
        next = forward_next(f, p, i);
    pass_add_scaled(p, &p->a->ff, down, plan->has_scale ? weights->scale : 1.0f, next);
    if (i + 1 == f->plan->n_layers && f->is_last)
        pass_finish_entered(p);
}

/* One FFN. */
static void forward_run_ffn(const struct forward *f, const struct pass *p, int i)
{
    const struct layer_plan *plan = &f->plan->layers[i];
    const struct layer_weights *weights = &f->weights->layers[i];
    struct device_experts experts;
    struct pass_sum down = {.w = &weights->down,
                            .bias = weights->down_bias,
                            .split = plan->splits.down,
                            .by = plan->ffn_by,
                            .after = &weights->norm_ffn_after};

    switch (plan->ffn.kind) {
    case FFN_NONE: return;
    case FFN_GATED:
        pass_gate(p, &plan->ffn, &weights->ffn_in, weights->ffn_in_bias, &weights->down);
        break;
    case FFN_PLAIN:
        pass_activate(p, &plan->ffn, &weights->ffn_in, weights->ffn_in_bias, &weights->xielu,
                      &weights->down);
        break;
    case FFN_EXPERTS:
        if (plan->ffn.experts.config->is_apart) {
            pass_mix_apart(p, plan, weights);
            down.is_summed = true;
            break;
        }
        if (plan->ffn.experts.config->latent_dim > 0) {
            pass_mix_latent(p, plan, weights);
            down.is_summed = true;
            break;
        }
        experts = pass_begin_experts(p, plan, weights);
        down.experts = &experts;
        break;
    }
    if (f->plan->embeds.width > 0 || plan->has_scale)
        forward_run_tail(f, p, i, down);
    else
        forward_end(f, p, i, &p->a->ff, down);
}

/* The residual; in a fused step also its norm, of which the first product divides by the root. */
int forward_segments(const struct forward *f, struct device_segment *segments)
{
    const struct pass pass = pass_of(f->device, f->plan, f->weights, f->act);
    size_t dim = (size_t)f->plan->dim;

    segments[0] = (struct device_segment){f->act->x, dim * sizeof *f->act->x};
    if (!pass.fused)
        return 1;
    segments[1] = (struct device_segment){f->act->normed.data, dim * f->device->elem_bytes};
    segments[2] = (struct device_segment){f->act->sums, dim / 16 * sizeof *f->act->sums};
    return FORWARD_SEGMENTS_MAX;
}

void forward(const struct forward *f)
{
    const struct pass pass = pass_of(f->device, f->plan, f->weights, f->act);
    struct pass_next next;

    must(f->stage.first <= f->stage.end && f->stage.end <= f->plan->n_layers);
    if (f->stage.first == f->stage.end) {
        pass_finish_entered(&pass);
        return;
    }
    next = forward_first(f, &pass, f->stage.first);
    if (f->plan->eagle != NULL && f->plan->eagle->is_mtp) {
        forward_enter_mtp(f, &pass);
        pass_enter(&pass, next);
    } else if (f->plan->eagle != NULL)
        forward_enter_eagle(f, &pass);
    else if (f->stage.first == 0)
        pass_embed(&pass, next);
    else
        pass_enter(&pass, next);
    for (int i = f->stage.first; i < f->stage.end; i++) {
        forward_tap(f, &pass, i);
        forward_run_mixer(f, &pass, i);
        forward_run_ffn(f, &pass, i);
    }
}
