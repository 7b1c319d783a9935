/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the layer plan of config.json, and divides it among ranks.
 *
 * The plan repeats facts of the config per layer, so that the loader and the forward pass need no
 * knowledge of architectures. Dividing refuses heads, channels, columns and experts whose number
 * the ranks do not divide. */
#include "model/plan.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define HEAD_ROWS_MULTIPLE 8 /* of a rank's rows of the output matrix */

/* The layer whose keys and values a layer reads. */
static int plan_kv_layer(const struct hf_config *c, int layer)
{
    int first = c->n_layers - c->n_kv_shared, source = first - 1;

    if (layer < first)
        return layer;
    while (source > 0 && c->layer_kinds[source] != c->layer_kinds[layer])
        source--;
    return source;
}

/* window 0 means that a token sees all tokens before it. */
static struct attn_plan plan_attention(const struct hf_config *c, int window, int layer)
{
    struct attn_plan attn = {.n_heads = c->n_heads,
                             .n_kv_heads = c->n_kv_heads,
                             .kv_copies = 1,
                             .head_dim = c->head_dim,
                             .window = window,
                             .rope = c->layer_ropes[layer],
                             .scale = c->attn_scale,
                             .kv_layer = plan_kv_layer(c, layer),
                             .value_norm = c->value_norm,
                             .qk_norm = c->qk_norm,
                             .qkv_bias = c->qkv_bias,
                             .o_bias = c->o_bias,
                             .sinks = c->sinks,
                             .has_gate = c->attn_gate,
                             .gate_by_head = c->gate_by_head,
                             .gate_softplus = c->gate_softplus,
                             .grows = c->growth.beta > 0.0f,
                             .latent = c->latent,
                             .latent_eps = c->latent_eps,
                             .index = c->index.shape,
                             .index_interleaved = c->index.interleaved};

    attn.value_dim = c->value_dim > 0 ? c->value_dim : attn.head_dim;
    attn.is_shared = attn.kv_layer != layer;
    if (c->sinks_locally && window == 0)
        attn.sinks = false;
    if (c->layer_heads[layer] > 0)
        attn.n_heads = c->layer_heads[layer];
    if (c->still_grows && c->ropes[attn.rope].rotary_dim > 0)
        attn.grows = false;
    else if (c->still_grows)
        attn.qk_norm = QK_NORM_NONE;
    if (c->layer_kinds[layer] == LAYER_FULL) {
        attn.n_kv_heads = c->full_kv_heads;
        attn.head_dim = c->full_head_dim;
        if (c->value_dim == 0)
            attn.value_dim = attn.head_dim;
        attn.values_are_keys = c->values_are_keys;
    }
    if (c->index.is_shared[layer])
        attn.index.n_heads = 0;
    return attn;
}

/* An FFN of experts, whose own ff_dim is that of the shared ones. */
static struct ffn_plan plan_experts(const struct hf_config *c)
{
    const struct experts_config *e = &c->experts;

    return (struct ffn_plan){
        .kind = FFN_EXPERTS,
        .ff_dim = e->shared_dim,
        .activation = c->activation,
        .bias = c->mlp_bias,
        .experts = {
            .n = e->n, .n_own = e->n, .n_used = e->n_used, .ff_dim = e->ff_dim, .config = e}};
}

/* The mixer of a layer of the config. */
static void plan_mixer(struct layer_plan *planned, const struct hf_config *c, int layer)
{
    switch ((enum layer_kind)c->layer_kinds[layer]) {
    case LAYER_FULL: planned->attn = plan_attention(c, 0, layer); break;
    case LAYER_WINDOW: planned->attn = plan_attention(c, c->window, layer); break;
    case LAYER_RECURRENT:
        planned->mixer = MIXER_RECURRENT;
        planned->recurrent = (struct recurrent_plan){.width = c->mixer_width};
        break;
    case LAYER_DELTA:
        planned->mixer = MIXER_DELTA;
        planned->delta = c->delta;
        break;
    case LAYER_MAMBA:
        planned->mixer = MIXER_MAMBA;
        planned->mamba = (struct mamba_plan){c->mamba.shape, &c->mamba};
        break;
    case LAYER_CONV:
        planned->mixer = MIXER_CONV;
        planned->conv = (struct conv_plan){c->dim, c->conv.n_taps, c->conv.has_bias};
        break;
    case LAYER_NONE: planned->mixer = MIXER_NONE; break;
    }
}

/* The splits are Megatron's: input products by rows (outputs), output products by columns, so that
 * each half of a layer needs one sum over the ranks. */
static struct layer_plan plan_layer(const struct hf_config *c, int layer)
{
    enum norm_scheme norms = c->layer_kinds[layer] == LAYER_DELTA ? c->delta_norms : c->norms;
    bool before = norms != NORMS_AFTER, after = norms != NORMS_BEFORE;
    struct layer_plan planned = {.ffn = {.kind = c->ffn,
                                         .ff_dim = c->ff_dim,
                                         .activation = c->activation,
                                         .bias = c->mlp_bias},
                                 .norms = {.before_mixer = before,
                                           .after_mixer = after,
                                           .before_ffn = before,
                                           .after_ffn = after},
                                 .has_scale = c->has_layer_scale,
                                 .is_parallel = c->is_parallel,
                                 .splits = {.mixer_in = SPLIT_ROWS,
                                            .mixer_out = SPLIT_COLUMNS,
                                            .ffn_in = SPLIT_ROWS,
                                            .down = SPLIT_COLUMNS}};

    if (c->layer_experts[layer])
        planned.ffn = plan_experts(c);
    if (c->lacks_ffn[layer])
        planned.ffn = (struct ffn_plan){.kind = FFN_NONE};
    planned.ffn.gate_by = c->by.gate;
    planned.ffn.has_xielu = c->has_xielu && planned.ffn.kind == FFN_PLAIN;
    planned.ffn.limit = c->shared_limits[layer];
    planned.ffn.experts.limit = c->limits[layer];
    plan_mixer(&planned, c, layer);
    planned.is_twin = c->is_twin && planned.mixer == MIXER_MAMBA;
    planned.mixer_by = planned.ffn_by = c->by.residual;
    planned.mixer_by *= planned.mixer == MIXER_ATTENTION ? c->by.attention : c->by.states;
    planned.ffn_by *= c->by.ffn;
    if (planned.attn.is_shared && c->shared_is_wide)
        planned.ffn.ff_dim *= 2;
    return planned;
}

/* True if the family scales embeddings, results or logits. */
static bool plan_has_multipliers(const struct multipliers *by)
{
    return by->embedding != 1.0f || by->residual != 1.0f || by->logits != 1.0f ||
           by->logits_cap > 0.0f || by->attention != 1.0f || by->states != 1.0f ||
           by->gate != 1.0f || by->ffn != 1.0f;
}

/* The activations of FFNs that fused operations compute: of one without a gate and of experts any,
 * of others SiLU. */
static bool plan_fuses_ffn(const struct hf_config *c)
{
    bool fuses = true;

    if (c->ffn == FFN_PLAIN || c->activation == K_SILU)
        return true;
    for (int i = 0; i < c->n_layers; i++)
        fuses = fuses && (c->layer_experts[i] || c->lacks_ffn[i]);
    return fuses;
}

/* True if fused operations can compute all layers. They norm by sums of squares of the residual, so
 * a mean, a norm of a product's result and a scaled sum are beyond them. */
static bool plan_fuses(const struct hf_config *c)
{
    return c->host_only == NULL && c->norm.kind == K_NORM_RMS && c->norms == NORMS_BEFORE &&
           c->delta_norms == NORMS_BEFORE && !c->is_parallel && c->qk_norm != QK_NORM_WHOLE &&
           plan_fuses_ffn(c) && !plan_has_multipliers(&c->by) && !c->positions.is_used &&
           !c->head_bias && !c->value_norm && !c->has_layer_scale && !c->norms_embedding &&
           c->layer_embeds.width == 0 && !c->experts.is_apart && c->experts.latent_dim == 0 &&
           !c->is_twin && c->eagle.n_taps == 0;
}

/* The plan points to the config's ropes, so the config must live longer. */
int plan_make(struct plan *out, const struct hf_config *c)
{
    struct plan plan = {.n_ranks = 1,
                        .n_layers = c->n_layers,
                        .dim = c->dim,
                        .n_vocab = c->n_vocab,
                        .norm = c->norm,
                        .by = c->by,
                        .host_only = c->host_only,
                        .norms_embedding = c->norms_embedding,
                        .positions = c->positions,
                        .growth = c->growth,
                        .score_cap = c->score_cap,
                        .embeds = c->layer_embeds,
                        .head_bias = c->head_bias,
                        .head_rows = c->n_vocab,
                        .fuses = plan_fuses(c),
                        .eagle = c->eagle.n_taps > 0 ? &c->eagle : NULL,
                        .n_ropes = c->n_ropes,
                        .ropes = c->ropes};

    plan.layers = mem_zalloc_array((size_t)c->n_layers, sizeof *plan.layers);
    if (plan.layers == NULL)
        return ERR_NO_MEMORY;
    for (int i = 0; i < c->n_layers; i++)
        plan.layers[i] = plan_layer(c, i);
    *out = plan;
    return ERR_OK;
}

/* Log that n of something in a layer does not divide by the number of ranks. */
static int plan_refuse_split(int n_ranks, int layer, const char *counted, int n)
{
    log_error("model: tensor_parallel_size %d does not divide the %d %s of layer %d", n_ranks, n,
              counted, layer);
    return ERR_UNSUPPORTED;
}

/* Divide the experts, each of them or their number; and the shared ones. */
static int plan_split_ffn(struct ffn_plan *ffn, int layer, int n_ranks, bool whole_experts)
{
    struct experts_plan *experts = &ffn->experts;

    if (ffn->ff_dim % n_ranks != 0)
        return plan_refuse_split(n_ranks, layer, "columns of the FFN", ffn->ff_dim);
    ffn->ff_dim /= n_ranks;
    if (ffn->kind != FFN_EXPERTS)
        return ERR_OK;
    if (whole_experts && experts->n % n_ranks != 0)
        return plan_refuse_split(n_ranks, layer, "experts", experts->n);
    if (!whole_experts && experts->ff_dim % n_ranks != 0)
        return plan_refuse_split(n_ranks, layer, "columns of an expert", experts->ff_dim);
    if (whole_experts)
        experts->n_own = experts->n / n_ranks;
    else
        experts->ff_dim /= n_ranks;
    return ERR_OK;
}

/* A group of heads shares B, C and its norm, so it stays together. */
static int plan_split_mamba(struct k_mamba_shape *s, int layer, int n_ranks)
{
    if (s->n_groups % n_ranks != 0)
        return plan_refuse_split(n_ranks, layer, "groups of heads with states", s->n_groups);
    s->n_groups /= n_ranks;
    s->n_heads /= n_ranks;
    return ERR_OK;
}

/* Divide one layer's numbers in place. Where there are fewer kv heads than ranks, several ranks
 * hold the same kv head, and all of their queries belong to its group. */
static int plan_split_layer(struct layer_plan *l, int layer, int n_ranks, bool whole_experts)
{
    struct attn_plan *attn = &l->attn;

    switch (l->mixer) {
    case MIXER_ATTENTION:
        if (attn->n_heads % n_ranks != 0)
            return plan_refuse_split(n_ranks, layer, "heads", attn->n_heads);
        if (attn->n_kv_heads % n_ranks != 0 && n_ranks % attn->n_kv_heads != 0)
            return plan_refuse_split(n_ranks, layer, "kv heads", attn->n_kv_heads);
        /* Query heads are divided evenly; a rank has at least one kv head for them. */
        attn->n_heads /= n_ranks;
        attn->latent.n_heads /= n_ranks;
        attn->kv_copies = attn->n_kv_heads > n_ranks ? 1 : n_ranks / attn->n_kv_heads;
        attn->n_kv_heads = attn->n_kv_heads > n_ranks ? attn->n_kv_heads / n_ranks : 1;
        break;
    case MIXER_RECURRENT:
        if (l->recurrent.width % n_ranks != 0)
            return plan_refuse_split(n_ranks, layer, "channels", l->recurrent.width);
        l->recurrent.width /= n_ranks;
        break;
    case MIXER_DELTA:
        if (l->delta.n_k_heads % n_ranks != 0)
            return plan_refuse_split(n_ranks, layer, "key heads", l->delta.n_k_heads);
        l->delta.n_k_heads /= n_ranks;
        l->delta.n_v_heads /= n_ranks;
        break;
    case MIXER_MAMBA:
        if (plan_split_mamba(&l->mamba.shape, layer, n_ranks) != ERR_OK)
            return ERR_UNSUPPORTED;
        break;
    case MIXER_CONV:
        if (l->conv.width % n_ranks != 0)
            return plan_refuse_split(n_ranks, layer, "channels", l->conv.width);
        l->conv.width /= n_ranks;
        break;
    case MIXER_NONE: break;
    }
    return plan_split_ffn(&l->ffn, layer, n_ranks, whole_experts);
}

/* Products and copies of logits take multiples of some rows. A vocabulary that does not divide
 * stays with rank 0. */
static int plan_split_head(int n_vocab, int n_ranks)
{
    if (n_vocab % (n_ranks * HEAD_ROWS_MULTIPLE) == 0)
        return n_vocab / n_ranks;
    return n_vocab;
}

/* *out is set only if all layers divide. */
int plan_split(struct plan *out, const struct plan *whole, int n_ranks, bool whole_experts)
{
    struct plan plan = *whole;
    int rc = ERR_OK;

    must(n_ranks >= 1 && whole->n_ranks == 1);
    plan.n_ranks = n_ranks;
    plan.head_rows = plan_split_head(plan.n_vocab, n_ranks);
    plan.layers = mem_zalloc_array((size_t)plan.n_layers, sizeof *plan.layers);
    if (plan.layers == NULL)
        return ERR_NO_MEMORY;
    /* The copy is divided in place; `whole` keeps the shapes of the tensors. */
    memcpy(plan.layers, whole->layers, (size_t)plan.n_layers * sizeof *plan.layers);
    for (int i = 0; i < plan.n_layers && rc == ERR_OK; i++)
        rc = plan_split_layer(&plan.layers[i], i, n_ranks, whole_experts);
    if (rc == ERR_OK)
        *out = plan;
    else
        plan_fini(&plan);
    return rc;
}

/* The layers are the only memory of a plan. */
void plan_fini(struct plan *p)
{
    mem_free(p->layers);
    p->layers = NULL;
}

struct plan_stage plan_stage(const struct plan *p, int stage, int n_stages)
{
    int unit = p->layers[0].is_twin ? 2 : 1, n = p->n_layers / unit;
    int each = n / n_stages, more = n % n_stages;
    int first = stage * each + (stage < more ? stage : more);

    must(stage >= 0 && stage <= n_stages);
    if (stage == n_stages)
        return (struct plan_stage){p->n_layers, p->n_layers};
    return (struct plan_stage){unit * first, unit * (first + each + (stage < more))};
}

int plan_check_stages(const struct plan *p, int n_stages)
{
    for (int i = 0; i < p->n_layers && n_stages > 1; i++) {
        bool shares_index =
            p->layers[i].attn.index.n_keys > 0 && p->layers[i].attn.index.n_heads == 0;

        if (p->embeds.width == 0 && !p->layers[i].attn.is_shared && !shares_index)
            continue;
        log_error("model: pipeline_parallel_size %d: layer %d reads %s, which %s stage alone has; "
                  "set it to 1",
                  n_stages, i,
                  p->embeds.width > 0 ? "embeddings of its own"
                  : shares_index      ? "the choice of tokens of another layer"
                                      : "keys of another layer",
                  shares_index ? "one" : "the first");
        return ERR_UNSUPPORTED;
    }
    return ERR_OK;
}

bool plan_splits_head(const struct plan *p)
{
    return p->head_rows < p->n_vocab;
}

/* Queries, and keys and values where the layer has its own. With latents these are behind the
 * queries, too, or behind latents of queries. */
static int plan_qkv(const struct attn_plan *attn)
{
    int heads = attn->n_heads;

    if (attn->latent.kv_rank > 0)
        return k_latent_stride(&attn->latent);
    if (!attn->is_shared)
        heads += 2 * attn->n_kv_heads;
    return heads * attn->head_dim;
}

void plan_drop_index(struct plan *p, int max_len)
{
    for (int i = 0; i < p->n_layers; i++) {
        struct k_index_shape *index = &p->layers[i].attn.index;

        if (index->n_keys >= max_len)
            *index = (struct k_index_shape){.n_keys = 0};
    }
}

int plan_kv_elems(const struct attn_plan *attn)
{
    if (attn->latent.kv_rank == 0)
        return 2 * attn->n_kv_heads * attn->head_dim;
    return attn->head_dim + (attn->index.n_heads > 0 ? attn->index.dim : 0);
}

size_t plan_state_elems(const struct layer_plan *l)
{
    switch (l->mixer) {
    case MIXER_RECURRENT: return (size_t)l->recurrent.width;
    case MIXER_DELTA: return k_delta_elems(&l->delta);
    case MIXER_MAMBA: return k_mamba_elems(&l->mamba.shape);
    case MIXER_CONV: return k_short_conv_elems(l->conv.width, l->conv.n_taps);
    case MIXER_ATTENTION:
    case MIXER_NONE: return 0;
    }
    return 0;
}

bool plan_can_round_states(const struct plan *p)
{
    int n = 0;

    for (int i = 0; i < p->n_layers; i++) {
        const struct layer_plan *l = &p->layers[i];

        if (plan_state_elems(l) > 0 && l->mixer != MIXER_DELTA && l->mixer != MIXER_MAMBA)
            return false;
        n += plan_state_elems(l) > 0;
    }
    return n > 0;
}

size_t plan_state_elem_bytes(const struct plan *p)
{
    return p->bf16_states ? sizeof(k_bf16) : sizeof(float);
}

/* The width of the mixer's input product. */
int plan_mixer_in(const struct layer_plan *l)
{
    switch (l->mixer) {
    case MIXER_ATTENTION: return plan_qkv(&l->attn);
    case MIXER_RECURRENT: return 2 * l->recurrent.width;
    case MIXER_DELTA: return k_delta_row(&l->delta);
    case MIXER_MAMBA: return k_mamba_row(&l->mamba.shape);
    case MIXER_CONV: return 3 * l->conv.width;
    case MIXER_NONE: return 0;
    }
    return 0;
}

/* The width of the rows that the output product reads. */
int plan_mixer_out(const struct layer_plan *l)
{
    switch (l->mixer) {
    case MIXER_ATTENTION:
        return l->attn.n_heads *
               (l->attn.latent.kv_rank > 0 ? l->attn.latent.v_dim : l->attn.head_dim);
    case MIXER_RECURRENT: return l->recurrent.width;
    case MIXER_DELTA: return k_delta_values(&l->delta);
    case MIXER_MAMBA: return k_mamba_inner(&l->mamba.shape);
    case MIXER_CONV: return l->conv.width;
    case MIXER_NONE: return 0;
    }
    return 0;
}

/* A gate has its own half of the rows. */
int plan_ffn_in(const struct layer_plan *l)
{
    if (l->ffn.kind == FFN_PLAIN)
        return l->ffn.ff_dim;
    return 2 * l->ffn.ff_dim;
}

static int plan_wider(int a, int b)
{
    return a > b ? a : b;
}

static bool plan_has_shape(const struct layer_plan *layer, const struct attn_plan *attn)
{
    return layer->mixer == MIXER_ATTENTION && layer->attn.window == attn->window &&
           layer->attn.n_heads == attn->n_heads && layer->attn.n_kv_heads == attn->n_kv_heads &&
           layer->attn.head_dim == attn->head_dim;
}

bool plan_is_first_of_shape(const struct plan *p, int i)
{
    for (int j = 0; j < i; j++) {
        if (plan_has_shape(&p->layers[j], &p->layers[i].attn))
            return false;
    }
    return p->layers[i].mixer == MIXER_ATTENTION;
}

/* All layers with experts have the same. */
static void plan_widen_experts(struct experts_widths *widest, const struct experts_plan *e)
{
    widest->n = plan_wider(widest->n, e->n);
    widest->n_own = plan_wider(widest->n_own, e->n_own);
    widest->n_used = plan_wider(widest->n_used, e->n_used);
    widest->ff_dim = plan_wider(widest->ff_dim, e->ff_dim);
}

/* Latents of queries use the memory of the mixer's result before it is written. */
static void plan_widen_latent(struct plan_widths *widest, const struct k_latent_shape *s)
{
    widest->mixer_out = plan_wider(widest->mixer_out, s->q_rank);
    widest->latents = plan_wider(widest->latents, s->q_rank > 0 ? k_latent_in(s) : 0);
    widest->latent_queries = plan_wider(widest->latent_queries, s->n_heads * k_latent_row(s));
    widest->latent_heads = plan_wider(widest->latent_heads, s->n_heads * s->kv_rank);
}

static void plan_widen_index(struct k_index_shape *widest, const struct k_index_shape *s)
{
    widest->n_heads = plan_wider(widest->n_heads, s->n_heads);
    widest->dim = plan_wider(widest->dim, s->dim);
    widest->n_keys = plan_wider(widest->n_keys, s->n_keys);
}

static void plan_widen_delta(struct plan_widths *widest, const struct k_delta_shape *s)
{
    widest->delta_gates = plan_wider(widest->delta_gates, k_delta_gates(s));
    if (!s->by_channel)
        return;
    widest->delta_forgets = plan_wider(widest->delta_forgets, k_delta_forgets(s));
    widest->delta_values = plan_wider(widest->delta_values, k_delta_values(s));
    widest->delta_low = plan_wider(widest->delta_low, plan_wider(s->k_dim, s->v_dim));
}

/* Fields of other mixers are 0 in a layer, so the maxima may include them. Embeddings of a layer
 * are gated in the memory of the FFN. */
struct plan_widths plan_widest(const struct plan *p)
{
    struct plan_widths widest = {.ffn_in = p->embeds.width, .ff = p->embeds.width};

    for (int i = 0; i < p->n_layers; i++) {
        const struct layer_plan *layer = &p->layers[i];

        widest.mixer_in = plan_wider(widest.mixer_in, plan_mixer_in(layer));
        widest.mixer_out = plan_wider(widest.mixer_out, plan_mixer_out(layer));
        widest.ffn_in = plan_wider(widest.ffn_in, plan_ffn_in(layer));
        widest.ff = plan_wider(widest.ff, layer->ffn.ff_dim);
        widest.n_heads = plan_wider(widest.n_heads, layer->attn.n_heads);
        widest.head_dim = plan_wider(widest.head_dim, layer->attn.head_dim);
        plan_widen_latent(&widest, &layer->attn.latent);
        plan_widen_index(&widest.index, &layer->attn.index);
        if (layer->attn.has_gate)
            widest.attn_gate = plan_wider(widest.attn_gate, plan_mixer_out(layer));
        plan_widen_delta(&widest, &layer->delta);
        widest.state_work = plan_wider(widest.state_work, (int)k_delta_work(&layer->delta));
        widest.state_work = plan_wider(widest.state_work, (int)k_mamba_work(&layer->mamba.shape));
        widest.has_states = widest.has_states || plan_state_elems(layer) > 0;
        if (layer->mixer == MIXER_MAMBA)
            widest.state_shared = plan_wider(widest.state_shared, K_MAMBA_SHARED_BYTES);
        if (layer->mixer == MIXER_DELTA)
            widest.state_shared = plan_wider(widest.state_shared, K_DELTA_SHARED_BYTES);
        plan_widen_experts(&widest.experts, &layer->ffn.experts);
        if (layer->attn.qk_norm == QK_NORM_WHOLE)
            widest.norms_whole = true;
        if (layer->ffn.kind != FFN_EXPERTS)
            continue;
        widest.is_apart = widest.is_apart || layer->ffn.experts.config->is_apart;
        widest.latent = plan_wider(widest.latent, layer->ffn.experts.config->latent_dim);
    }
    return widest;
}
