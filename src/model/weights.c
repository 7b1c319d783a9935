/* SPDX-License-Identifier: Apache-2.0
 *
 * Lays out the weights of a model, layer by layer, through the loader.
 *
 * Matrices that read the same input are stored as one: q, k, v one below the other, and gate and
 * up. So a layer is four products. Some checkpoints store them that way, others as separate
 * tensors; the architecture's names decide. Rows of queries and keys are reordered for the layer's
 * rope (rope.h).
 *
 * The order of the calls below is the order of tensors in the digest, which names stores on disk:
 * it must not change. */
#include "model/weights.h"

#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "device/cpu_round.h"
#include "model/loader.h"
#include "model/safetensors.h"
#include "model/weights_parts.h"

/* --- norms ------------------------------------------------------------------------------ */

/* A norm that the layer does not have gets K_NORM_NONE and reads nothing. */

/* A norm of rows of `width`. The weight comes before the bias in the digest. */
static struct k_norm weights_load_norm_of(const struct loading *in, const char *pattern, int width,
                                          bool plus_one)
{
    const struct norm_config *norms = &in->l->whole->norm;
    const struct slice_shape shape = slice_whole(width, width, 1, 1);
    const struct loader_tensors tensor = loader_tensor(pattern, shape);
    struct k_norm norm = {.kind = norms->kind, .eps = norms->eps};

    norm.weight = loader_vector(in->l, norms->is_bare ? NULL : pattern, &shape, plus_one);
    if (norms->has_bias)
        norm.bias = loader_bias(in->l, &tensor, SPLIT_NONE);
    return norm;
}

struct k_norm weights_load_norm(const struct loading *in, const char *pattern, bool has)
{
    if (!has)
        return (struct k_norm){.kind = K_NORM_NONE};
    return weights_load_norm_of(in, pattern, in->dim, in->l->whole->norm.plus_one);
}

const char *weights_either(const struct loading *in, const char *pattern, const char *other)
{
    return loader_has(in->l, other) ? other : pattern;
}

static void *weights_ones(struct loader *l, int width)
{
    const struct slice_shape shape = slice_whole(width, width, 1, 1);

    return loader_vector(l, NULL, &shape, false);
}

/* The norm behind the last layer. */
static struct k_norm weights_load_last_norm(const struct loading *in, const char *pattern)
{
    const struct norm_config *norms = &in->l->whole->norm;

    return weights_load_norm_of(in, pattern, in->dim, norms->plus_one && !norms->last_is_plain);
}

/* A norm of the result of a mixer or an FFN. */
struct k_norm weights_load_norm_after(const struct loading *in, const char *pattern, bool has)
{
    struct k_norm norm = weights_load_norm(in, pattern, has);

    if (in->l->whole->norm.after_eps > 0.0f)
        norm.eps = in->l->whole->norm.after_eps;
    return norm;
}

/* The norm of a layer's input. The stage before the layer's computes it when it adds to the
 * residual last, so it has it too. */
struct k_norm weights_load_first_norm(const struct loading *in, const char *pattern, bool has)
{
    struct loader *l = in->l;
    bool absent = l->absent;
    struct k_norm norm;

    l->absent = absent && l->layer != plan_stage(l->whole, l->stage, l->n_stages).end;
    norm = weights_load_norm(in, pattern, has);
    l->absent = absent;
    return norm;
}

/* Norms of queries and keys: one vector for every head, or one over all heads of a token, of which
 * a rank has its heads' elements. They are reordered like the rows of q and k. */
static void weights_load_head_norms(const struct loading *in, const struct attn_plan *a,
                                    const struct attn_plan *own, const struct head_order *order,
                                    struct layer_weights *w)
{
    bool plus_one = in->l->whole->norm.plus_one, is_whole = a->qk_norm == QK_NORM_WHOLE;
    bool is_bare = in->l->c->arch->qk_norm_is_bare;
    int q = is_whole ? a->n_heads * a->head_dim : a->head_dim;
    int k = is_whole ? a->n_kv_heads * a->head_dim : a->head_dim;
    int own_q = is_whole ? own->n_heads * a->head_dim : q;
    int own_k = is_whole ? own->n_kv_heads * a->head_dim : k;
    struct slice_shape shapes[2] = {{.cols = 1, .own_cols = 1}, {.cols = 1, .own_cols = 1}};

    if (a->qk_norm == QK_NORM_NONE)
        return;
    slice_stack(&shapes[0], q, own_q, order);
    slice_stack(&shapes[1], k, own_k, order);
    w->q_norm = loader_vector(in->l, is_bare ? NULL : in->names->q_norm, &shapes[0], plus_one);
    if (!a->is_shared)
        w->k_norm = loader_vector(in->l, is_bare ? NULL : in->names->k_norm, &shapes[1], plus_one);
}

/* --- layers ----------------------------------------------------------------------------- */

/* The order of heads under a rope; NULL if it is the checkpoint's own. */
static const struct head_order *weights_head_order(const struct loading *in, int rope)
{
    if (rope_is_in_order(&in->l->whole->ropes[rope]))
        return NULL;
    return &in->l->orders[rope];
}

/* The shape of q, k and v in one tensor: one below the other, or for each kv head in turn the q
 * heads that read it, k and v. Values are not rotated, so they keep their order. */
static struct slice_shape weights_fused_shape(const struct loading *in,
                                              const struct attn_plan *whole,
                                              const struct attn_plan *own,
                                              const struct head_order *order)
{
    const int heads[] = {whole->n_heads, whole->n_kv_heads, whole->n_kv_heads};
    const int own_heads[] = {own->n_heads, own->n_kv_heads, own->n_kv_heads};
    struct slice_shape shape = {.cols = weights_mixer_cols(in), .own_cols = weights_mixer_cols(in)};
    int hd = whole->head_dim, group = whole->n_heads / whole->n_kv_heads;
    const int before[] = {0, group, group + 1}; /* heads of a group before q, k and v */

    for (int i = 0; i < 3; i++) {
        slice_stack(&shape, heads[i] * hd, own_heads[i] * hd, i < 2 ? order : NULL);
        if (in->l->c->form.fused == ARCH_BY_HEAD) {
            shape.pieces[i].from = before[i] * hd;
            shape.pieces[i].chunk = (i == 0 ? group : 1) * hd;
            shape.pieces[i].stride = (group + 2) * hd;
        }
    }
    return shape;
}

/* Queries and gates are halves of the rows of each head: `from` is the first row of a half. */
static struct slice_shape weights_half_shape(const struct loading *in,
                                             const struct attn_plan *whole,
                                             const struct attn_plan *own, int from,
                                             const struct head_order *order)
{
    struct slice_shape shape = {.cols = in->dim, .own_cols = in->dim};

    slice_stack(&shape, whole->n_heads * whole->head_dim, own->n_heads * own->head_dim, order);
    shape.rows *= 2;
    shape.pieces[0].from = from;
    shape.pieces[0].chunk = whole->head_dim;
    shape.pieces[0].stride = 2 * whole->head_dim;
    return shape;
}

/* Values that are narrower than keys: zeros below each head make them as wide. */
static void weights_narrow_values(struct slice_shape *shape, const struct attn_plan *whole,
                                  const struct attn_plan *own)
{
    int width = whole->value_dim;

    if (width == whole->head_dim)
        return;
    *shape = slice_whole(whole->n_kv_heads * width, own->n_kv_heads * width, shape->cols,
                         shape->own_cols);
    shape->pad_rows = (struct slice_pad){width, whole->head_dim};
}

/* The columns of the output projection, likewise. */
static struct slice_shape weights_out_shape(const struct loading *in,
                                            const struct layer_plan *whole,
                                            const struct layer_plan *part)
{
    const struct attn_plan *attn = &whole->attn;
    struct slice_shape shape;

    if (attn->value_dim == attn->head_dim)
        return slice_whole(in->dim, in->dim, plan_mixer_out(whole), plan_mixer_out(part));
    shape = slice_whole(in->dim, in->dim, attn->n_heads * attn->value_dim,
                        part->attn.n_heads * attn->value_dim);
    shape.pad_cols = (struct slice_pad){attn->value_dim, attn->head_dim};
    return shape;
}

/* The tensors of q, k and v, or the single tensor if the architecture has a name for it. Where keys
 * are values, their tensor is listed twice: norms and positions make the difference. */
static struct loader_tensors weights_qkv_tensors(const struct loading *in,
                                                 const struct attn_plan *whole,
                                                 const struct attn_plan *own)
{
    const struct arch_names *names = in->names;
    const char *const patterns[] = {names->q, names->k,
                                    whole->values_are_keys ? names->k : names->v};
    const struct head_order *order = weights_head_order(in, whole->rope);
    struct slice_shape shape = weights_fused_shape(in, whole, own, order);
    struct loader_tensors all = {.n = 0};

    if (names->qkv != NULL)
        return loader_tensor(names->qkv, shape);
    for (int i = 0; i < (whole->is_shared ? 1 : 3); i++) {
        struct slice_shape one = {.cols = shape.cols, .own_cols = shape.cols};

        slice_stack(&one, shape.pieces[i].rows, shape.pieces[i].own_rows, i < 2 ? order : NULL);
        if (i == 2)
            weights_narrow_values(&one, whole, own);
        if (i == 0 && whole->has_gate && names->attn_gate == NULL)
            one = weights_half_shape(in, whole, own, 0, order);
        loader_add(&all, patterns[i], one);
    }
    return all;
}

/* The gates of heads: halves of the rows of queries, or a tensor of their own. */
static struct loader_tensors weights_gate_tensor(const struct loading *in,
                                                 const struct attn_plan *whole,
                                                 const struct attn_plan *own)
{
    int width = whole->gate_by_head ? 1 : whole->head_dim;
    int rows = whole->n_heads * width, own_rows = own->n_heads * width;

    if (in->names->attn_gate != NULL)
        return loader_tensor(in->names->attn_gate, slice_whole(rows, own_rows, in->dim, in->dim));
    return loader_tensor(in->names->q, weights_half_shape(in, whole, own, whole->head_dim, NULL));
}

/* KV scales come first in the digest. */
static void weights_load_attention(const struct loading *in, const struct layer_plan *whole,
                                   const struct layer_plan *part, struct layer_weights *w)
{
    struct loader *loader = in->l;
    const struct arch_names *names = in->names;
    const struct attn_plan *attn = &whole->attn;
    const struct loader_tensors qkv = weights_qkv_tensors(in, attn, &part->attn);
    const struct loader_tensors gate = weights_gate_tensor(in, attn, &part->attn);
    const struct loader_tensors out_proj =
        loader_tensor(names->o, weights_out_shape(in, whole, part));

    w->k_scale = w->v_scale = 1.0f;
    if (loader->files != NULL && loader->from->kv_scales && !attn->is_shared) {
        w->k_scale = loader_kv_scale(loader, names->attn, names->k, "k_scale");
        w->v_scale = loader_kv_scale(loader, names->attn, names->v, "v_scale");
    }
    w->norm_mixer = weights_load_first_norm(in, names->norm_attn, whole->norms.before_mixer);
    w->mixer_in = loader_matrix(loader, &qkv, USE_LAYER);
    if (attn->qkv_bias)
        w->mixer_in_bias = loader_bias(loader, &qkv, part->splits.mixer_in);
    if (attn->has_gate)
        w->mixer_gate = loader_matrix(loader, &gate, USE_LAYER);
    weights_load_head_norms(in, attn, &part->attn, weights_head_order(in, attn->rope), w);
    w->mixer_out = loader_matrix(loader, &out_proj, USE_LAYER);
    if (attn->o_bias)
        w->mixer_out_bias = loader_bias(loader, &out_proj, part->splits.mixer_out);
    if (attn->sinks &&
        (w->sinks = loader_numbers(loader, names->sinks, attn->n_heads, 1, 1.0f)) != NULL)
        w->sinks += (size_t)loader->share * (size_t)part->attn.n_heads;
    w->norm_mixer_after = weights_load_norm_after(
        in, weights_either(in, names->norm_attn_after, names->norm_middle_or),
        whole->norms.after_mixer);
}

/* Value and gate are halves of one tensor; a rank has the same channels of both. */
static void weights_load_recurrent(const struct loading *in, const struct layer_plan *whole,
                                   const struct layer_plan *part, struct layer_weights *w)
{
    const struct arch_names *names = in->names;
    int width = whole->recurrent.width, own = part->recurrent.width;
    struct slice_shape both = {.cols = in->dim, .own_cols = in->dim};
    struct loader_tensors first, last;

    slice_stack(&both, width, own, NULL);
    slice_stack(&both, width, own, NULL);
    first = loader_tensor(names->mixer_in, both);
    last = loader_tensor(names->mixer_out, slice_whole(in->dim, in->dim, width, own));
    w->norm_mixer = weights_load_first_norm(in, names->norm_attn, whole->norms.before_mixer);
    w->mixer_in = loader_matrix(in->l, &first, USE_LAYER);
    w->mixer_out = loader_matrix(in->l, &last, USE_LAYER);
    w->norm_mixer_after =
        weights_load_norm_after(in, names->norm_attn_after, whole->norms.after_mixer);
}

const float *weights_of_share(const struct loading *in, const float *all, size_t before,
                              int own_heads, int width)
{
    if (all == NULL)
        return NULL;
    return all + before + (size_t)in->l->share * (size_t)own_heads * (size_t)width;
}

/* The names of the tensors of a gated FFN. */
struct gated_names {
    const char *gate, *up, *gate_up;
};

/* Gate and up, in one tensor or two; a plain FFN has no gate. */
static struct loader_tensors weights_ffn_tensors(const struct loading *in,
                                                 const struct gated_names *names,
                                                 const struct ffn_plan *whole,
                                                 const struct ffn_plan *own)
{
    const struct slice_shape one = slice_whole(whole->ff_dim, own->ff_dim, in->dim, in->dim);
    struct slice_shape both = one;
    struct loader_tensors all;

    if (whole->kind == FFN_PLAIN || (whole->kind == FFN_EXPERTS && whole->experts.config->is_plain))
        return loader_tensor(names->up, one);
    if (names->gate_up != NULL) {
        slice_stack(&both, whole->ff_dim, own->ff_dim, NULL);
        return loader_tensor(names->gate_up, both);
    }
    all = loader_tensor(names->gate, one);
    loader_add(&all, names->up, one);
    return all;
}

/* The matrices of an FFN, or of the shared experts, with their biases. */
static void weights_load_products(const struct loading *in, const struct gated_names *names,
                                  const char *down_name, const struct layer_plan *whole,
                                  const struct layer_plan *part, struct layer_weights *w)
{
    struct loader_tensors first = weights_ffn_tensors(in, names, &whole->ffn, &part->ffn);
    struct loader_tensors down = loader_tensor(
        down_name, slice_whole(in->dim, in->dim, whole->ffn.ff_dim, part->ffn.ff_dim));

    if (whole->ffn.kind == FFN_EXPERTS) {
        first.behind = &w->experts.in;
        down.behind = &w->experts.down;
        first.n_before = down.n_before = w->experts.n;
    }
    w->ffn_in = loader_matrix(in->l, &first, USE_LAYER);
    if (whole->ffn.bias)
        w->ffn_in_bias = loader_bias(in->l, &first, part->splits.ffn_in);
    w->down = loader_matrix(in->l, &down, USE_LAYER);
    if (whole->ffn.bias)
        w->down_bias = loader_bias(in->l, &down, part->splits.down);
}

/* The router, whose numbers are float32 on every device. One apart reads inputs of length 1. */
static struct k_router weights_load_router(const struct loading *in, const struct experts_plan *e)
{
    const struct experts_config *config = e->config;
    float by = config->is_apart ? 1.0f / sqrtf((float)in->dim) : 1.0f;
    struct k_router router = {.n_experts = config->n,
                              .n_used = config->n_used,
                              .n_groups = config->n_groups,
                              .n_groups_used = config->n_groups_used,
                              .group_best = config->group_best,
                              .scoring = config->scoring,
                              .renorms = config->renorms,
                              .least = config->least,
                              .scale = config->scale,
                              .spread = config->spread,
                              .cap = config->cap};

    router.w = loader_numbers(in->l, in->names->router, config->n, in->dim, by);
    if (config->has_bias)
        router.bias = loader_numbers(in->l, in->names->router_bias, config->n, 1, 1.0f);
    if (config->has_biases)
        router.logit_bias = loader_numbers(in->l, in->names->router_bias, config->n, 1, 1.0f);
    if (config->has_scales)
        router.scales = loader_numbers(in->l, in->names->router_scales, config->n, 1, 1.0f);
    return router;
}

/* One matrix for all gates and ups, and one for all downs, from a tensor per expert or from one. */
static struct k_experts weights_load_experts(const struct loading *in, const struct layer_plan *l,
                                             const struct layer_plan *part)
{
    const struct arch_names *names = in->names;
    const struct experts_plan *whole = &l->ffn.experts, *own = &part->ffn.experts;
    int dim = whole->config->latent_dim > 0 ? whole->config->latent_dim : in->dim;
    const struct slice_shape one = slice_whole(whole->ff_dim, own->ff_dim, dim, dim);
    bool in_one = names->expert_down == NULL || loader_has(in->l, names->experts_down);
    struct slice_shape both = one;
    struct loader_tensors first = loader_tensor(names->expert_gate, one), down;
    struct k_experts experts = {.n = own->n_own,
                                .ff_dim = own->ff_dim,
                                .is_plain = whole->config->is_plain,
                                .activation = l->ffn.activation,
                                .limit = whole->limit,
                                .weighs_inputs = whole->config->weighs_inputs};

    if (experts.is_plain) /* relu(u)^2 is relu(u) * u */
        experts.activation = K_RELU;
    slice_stack(&both, whole->ff_dim, own->ff_dim, NULL);
    for (int i = 0; i < 2 && names->experts_are_mixed; i++) {
        both.pieces[i].from = i;
        both.pieces[i].chunk = 1;
        both.pieces[i].stride = 2;
    }
    if (experts.is_plain) {
        first = loader_tensor(in_one ? names->experts_up : names->expert_up, one);
    } else if (in_one && names->experts_gate_up == NULL) {
        first = loader_tensor(names->experts_gate, one);
        loader_add(&first, names->experts_up, one);
    } else if (in_one)
        first = loader_tensor(names->experts_gate_up, both);
    else
        loader_add(&first, names->expert_up, one);
    down = loader_tensor(in_one ? names->experts_down : names->expert_down,
                         slice_whole(dim, dim, whole->ff_dim, own->ff_dim));
    first.n_experts = down.n_experts = whole->n;
    first.n_own_experts = down.n_own_experts = own->n_own;
    first.n_spare = down.n_spare = l->ffn.ff_dim > 0 ? 1 : 0;
    first.is_gated = !experts.is_plain;
    first.in_one = down.in_one = in_one;
    first.is_mixed = down.is_mixed = in_one && names->experts_are_mixed;
    first.is_turned[0] = down.is_turned[0] = in_one && names->experts_are_turned;
    if (own->n_own < whole->n)
        experts.first = in->l->share * own->n_own;
    experts.in = loader_matrix(in->l, &first, USE_EXPERTS);
    if (whole->config->has_biases)
        experts.in_bias = loader_expert_bias(in->l, &first, SPLIT_ROWS);
    experts.down = loader_matrix(in->l, &down, USE_EXPERTS);
    if (whole->config->has_biases)
        experts.down_bias =
            loader_expert_bias(in->l, &down, own->n_own < whole->n ? SPLIT_ROWS : SPLIT_COLUMNS);
    if (!in_one)
        loader_refuse_more_experts(in->l, names->expert_down, whole->n);
    return experts;
}

/* Does a matrix lie behind another one? */
static bool weights_is_behind(const struct k_matrix *m, const struct k_matrix *before,
                              size_t elem_bytes)
{
    size_t row_bytes = k_format_is_plain(&m->format) ? (size_t)m->n_in * elem_bytes
                                                     : k_format_row_bytes(&m->format, m->n_in);

    return m->data != NULL &&
           (char *)m->data == (char *)before->data + (size_t)before->n_out * row_bytes;
}

/* Count the shared expert among the others, where it is like them. */
static void weights_join_shared(const struct loading *in, const struct layer_plan *whole,
                                struct layer_weights *w)
{
    size_t elem = in->l->d->elem_bytes;

    if (whole->ffn.bias || whole->ffn.limit > 0.0f || w->experts.limit > 0.0f ||
        w->experts.weighs_inputs || w->experts.is_plain || w->experts.in_bias != NULL ||
        w->experts.n < w->router.n_experts || w->experts.n >= K_EXPERTS_MAX ||
        w->router.n_used >= K_EXPERTS_USED_MAX || in->l->w->adapters != NULL ||
        !weights_is_behind(&w->ffn_in, &w->experts.in, elem) ||
        !weights_is_behind(&w->down, &w->experts.down, elem))
        return;
    w->router_all = w->router;
    w->router_all.n_used++;
    w->router_all.n_shared = 1;
    w->router_all.shared_switch = w->shared_switch;
    w->experts_all = w->experts;
    w->experts_all.n++;
    w->experts_all.in.n_out += w->ffn_in.n_out;
    w->experts_all.down.n_out += w->down.n_out;
}

/* Products into the experts' narrower space and back. */
static void weights_load_latent(const struct loading *in, int latent, struct layer_weights *w)
{
    const struct loader_tensors first =
        loader_tensor(in->names->latent_in, slice_whole(latent, latent, in->dim, in->dim));
    const struct loader_tensors last =
        loader_tensor(in->names->latent_out, slice_whole(in->dim, in->dim, latent, latent));

    w->latent_in = loader_matrix(in->l, &first, USE_LAYER);
    w->latent_out = loader_matrix(in->l, &last, USE_LAYER);
}

/* The router comes first in the digest, shared experts last. */
static void weights_load_mixture(const struct loading *in, const struct layer_plan *whole,
                                 const struct layer_plan *part, struct layer_weights *w)
{
    const struct arch_names *names = in->names;
    const struct gated_names shared = {names->shared_gate, names->shared_up, names->shared_gate_up};

    w->router = weights_load_router(in, &whole->ffn.experts);
    w->experts = weights_load_experts(in, whole, part);
    if (whole->ffn.experts.config->latent_dim > 0)
        weights_load_latent(in, whole->ffn.experts.config->latent_dim, w);
    if (whole->ffn.ff_dim == 0)
        return;
    weights_load_products(in, &shared, names->shared_down, whole, part, w);
    if (whole->ffn.experts.config->has_switch)
        w->shared_switch = loader_numbers(in->l, names->shared_switch, 1, in->dim, 1.0f);
    weights_join_shared(in, whole, w);
}

/* Experts beside a dense FFN. */
static void weights_load_apart(const struct loading *in, struct layer_weights *w)
{
    w->norm_router = weights_load_norm(in, in->names->norm_router, true);
    w->norm_experts = weights_load_norm(in, in->names->norm_experts, true);
    w->norm_experts_after = weights_load_norm(in, in->names->norm_experts_after, true);
    w->norm_shared_after = weights_load_norm(in, in->names->norm_shared_after, true);
}

/* A layer's use of its embeddings. All ranks compute them whole, because they are narrow. */
static void weights_load_layer_embeds(const struct loading *in, struct layer_weights *w)
{
    int width = in->l->whole->embeds.width;
    const struct loader_tensors gate =
        loader_tensor(in->names->embed_gate, slice_whole(width, width, in->dim, in->dim));
    const struct loader_tensors out =
        loader_tensor(in->names->embed_out, slice_whole(in->dim, in->dim, width, width));

    w->embed_gate = loader_matrix(in->l, &gate, USE_LAYER);
    w->embed_out = loader_matrix(in->l, &out, USE_LAYER);
    w->norm_embed_after = weights_load_norm(in, in->names->norm_embed_after, true);
}

/* The numbers of xIELU: of the two learned ones the file has the inputs of a softplus; the others
 * are constants that files have, too. */
static struct k_xielu weights_load_xielu(const struct loading *in)
{
    static const char positive[] = "model.layers.%d.mlp.act_fn.alpha_p",
                      negative[] = "model.layers.%d.mlp.act_fn.alpha_n",
                      linear[] = "model.layers.%d.mlp.act_fn.beta",
                      least[] = "model.layers.%d.mlp.act_fn.eps";
    struct k_xielu curve = {.linear = 0.5f, .least = -1e-6f};

    if (loader_has(in->l, linear))
        curve.linear = loader_number(in->l, linear);
    if (loader_has(in->l, least))
        curve.least = loader_number(in->l, least);
    curve.positive = log1pf(expf(loader_number(in->l, positive)));
    curve.negative = curve.linear + log1pf(expf(loader_number(in->l, negative)));
    return curve;
}

/* In a parallel layer without a norm of its own the FFN shares the mixer's. */
static void weights_load_ffn(const struct loading *in, const struct layer_plan *whole,
                             const struct layer_plan *part, struct layer_weights *w)
{
    const struct arch_names *names = in->names;
    const struct gated_names own = {names->gate, names->up, names->gate_up};

    if (whole->ffn.kind == FFN_NONE)
        return;
    if (whole->is_parallel && names->norm_mlp == NULL)
        w->norm_ffn = w->norm_mixer;
    else if (whole->mixer == MIXER_NONE)
        w->norm_ffn = weights_load_first_norm(in, names->norm_mlp, whole->norms.before_ffn);
    else
        w->norm_ffn =
            weights_load_norm(in, weights_either(in, names->norm_mlp, names->norm_middle_or),
                              whole->norms.before_ffn);
    if (whole->ffn.kind == FFN_EXPERTS)
        weights_load_mixture(in, whole, part, w);
    else
        weights_load_products(in, &own, names->down, whole, part, w);
    if (whole->ffn.has_xielu)
        w->xielu = weights_load_xielu(in);
    if (whole->ffn.kind == FFN_EXPERTS && whole->ffn.experts.config->is_apart)
        weights_load_apart(in, w);
    w->norm_ffn_after = weights_load_norm_after(in, names->norm_mlp_after, whole->norms.after_ffn);
}

/* The mixer comes before the FFN in the digest. */
static void weights_load_layer(const struct loading *in, int layer)
{
    const struct layer_plan *whole = &in->l->whole->layers[layer];
    const struct layer_plan *part = &in->l->part->layers[layer];
    struct layer_weights *weights = &in->l->w->layers[layer];
    const struct plan_stage stage = plan_stage(in->l->whole, in->l->stage, in->l->n_stages);
    bool is_latent = whole->attn.latent.kv_rank > 0;

    in->l->absent = layer < stage.first || layer >= stage.end;
    switch (whole->mixer) {
    case MIXER_ATTENTION:
        if (is_latent)
            weights_load_latent_attention(in, whole, part, weights);
        else
            weights_load_attention(in, whole, part, weights);
        break;
    case MIXER_RECURRENT: weights_load_recurrent(in, whole, part, weights); break;
    case MIXER_DELTA: weights_load_delta(in, whole, part, weights); break;
    case MIXER_MAMBA: weights_load_mamba(in, whole, part, weights); break;
    case MIXER_CONV: weights_load_conv(in, whole, part, weights); break;
    case MIXER_NONE: break;
    }
    weights_load_ffn(in, whole, part, weights);
    if (in->l->whole->embeds.width > 0)
        weights_load_layer_embeds(in, weights);
    if (whole->has_scale)
        weights->scale = loader_number(in->l, in->names->layer_scale);
}

/* --- the model -------------------------------------------------------------------------- */

/* `to` and `from` are inverse permutations. */
static void weights_fill_orders(struct loader *l, const struct plan *p)
{
    for (int i = 0; i < p->n_ropes; i++) {
        struct head_order *order = &l->orders[i];

        order->head_dim = p->ropes[i].head_dim;
        for (int d = 0; d < order->head_dim; d++) {
            order->to[d] = (int16_t)rope_place(&p->ropes[i], d);
            order->from[order->to[d]] = (int16_t)d;
        }
    }
}

/* Checkpoints of multimodal models may name the output matrix differently from the family. */
static const char *weights_head_name(const struct loader *l, const char *own)
{
    static const char *const others[] = {"lm_head.weight", "language_model.lm_head.weight"};

    for (size_t i = 0; i < sizeof others / sizeof others[0] && l->files != NULL; i++) {
        if (checkpoint_find(l->files, own) == NULL && checkpoint_find(l->files, others[i]) != NULL)
            return others[i];
    }
    return own;
}

/* A rank's rows of a tied output matrix, which are rows of the embedding. */
static struct k_matrix weights_tied_head(const struct loader *l)
{
    struct k_matrix head = l->w->embed;
    size_t row_bytes = (size_t)head.n_in * l->d->elem_bytes;

    if (!k_format_is_plain(&head.format))
        row_bytes = k_format_row_bytes(&head.format, head.n_in);
    head.n_out = l->part->head_rows;
    if (plan_splits_head(l->part) && head.data != NULL)
        head.data = (char *)head.data + (size_t)l->share * (size_t)head.n_out * row_bytes;
    return head;
}

/* The first rank adds the bias, because it gets the logits of all ranks. A tied matrix is the
 * embedding itself, unless it is to be rounded: a table must stay plain. */
static void weights_load_head(struct loader *l, const struct loader_tensors *tensor,
                              const struct loader_tensors *whole)
{
    if (l->c->pooling != NULL) {
        weights_load_pooling(l, whole->patterns[0]);
        return;
    }
    if (l->c->tied && k_format_is_plain(&l->from->head) && !l->c->eagle.is_mtp) {
        l->w->head = weights_tied_head(l);
        loader_adapt(l, &l->w->head,
                     &(struct loader_tensors){.patterns = {l->c->form.names.head},
                                              .shapes = {tensor->shapes[0]},
                                              .n = 1},
                     USE_HEAD);
    } else if (l->share == 0 || plan_splits_head(l->part))
        l->w->head = loader_matrix(l, tensor, USE_HEAD);
    if (l->c->head_bias && l->share == 0)
        l->w->head_bias = loader_bias(l, whole, SPLIT_NONE);
}

/* The first stage looks ids up. A tied output matrix is the embedding itself. An EAGLE-3 head
 * without an embedding has the target's. */
static bool weights_has_embed(const struct loader *l)
{
    bool is_head = l->c->tied && k_format_is_plain(&l->from->head) && l->c->pooling == NULL;

    /* An MTP layer's is its target's; only one with names of its own may have another. */
    if (l->c->eagle.is_mtp && (l->files == NULL || l->c->form.mtp->prefix == NULL))
        return false;
    if (l->c->eagle.n_taps > 0 && l->files != NULL) {
        char name[400];

        loader_name(l, name, sizeof name, l->c->form.names.embed, ".weight");
        return checkpoint_find(l->files, name) != NULL;
    }
    return l->stage == 0 || (is_head && l->is_last);
}

/* Embeddings for each layer: the table, and what mixes it with the embedded tokens. */
static void weights_load_embeds(const struct loading *in)
{
    struct loader *l = in->l;
    const struct layer_embeds *e = &l->whole->embeds;
    int row = l->whole->n_layers * e->width;
    const struct loader_tensors table =
        loader_tensor(in->names->embeds, slice_whole(e->n_rows, e->n_rows, row, row));
    const struct loader_tensors first =
        loader_tensor(in->names->embeds_in, slice_whole(row, row, in->dim, in->dim));

    l->w->embeds = loader_matrix(l, &table, USE_ADDED).data;
    l->w->embeds_in = loader_matrix(l, &first, USE_LAYER);
    l->w->norm_embeds =
        weights_load_norm_of(in, in->names->norm_embeds, e->width, in->l->whole->norm.plus_one);
}

/* The prefix of a model's names, or of those of its MTP layer. */
static const char *weights_own_prefix(const struct loader *l)
{
    if (l->c->eagle.is_mtp && l->c->form.mtp->prefix != NULL)
        return l->c->form.mtp->prefix;
    return l->of_target;
}

/* Few folders have an MTP layer: a missing one is reported as such. */
static int weights_check_mtp(const struct loader *l)
{
    char name[400];

    if (!l->c->eagle.is_mtp || l->files == NULL || loader_has(l, l->c->form.mtp->norm_hidden))
        return ERR_OK;
    loader_name(l, name, sizeof name, l->c->form.mtp->norm_hidden, ".weight");
    log_error("model: %s has no MTP layer, tensor %s is missing: use another method in "
              "speculative_config",
              l->from->dir, name);
    return ERR_NOT_FOUND;
}

/* Allocate all weights of one rank, and list the tensors to be read. */
static int weights_lay_out(struct loader *l, int rank)
{
    const struct hf_config *config = l->c;
    const struct arch_names *names = &config->form.names;
    struct loading in = {.l = l, .names = names, .dim = config->dim};
    const struct slice_shape words =
        slice_whole(config->n_vocab, config->n_vocab, config->dim, config->dim);
    int n_words = hf_config_words(config);
    const struct loader_tensors embed =
        loader_tensor(names->embed, slice_whole(n_words, n_words, config->dim, config->dim));
    const char *head_name = config->tied ? names->embed : weights_head_name(l, names->head);
    const struct loader_tensors whole_head = loader_tensor(head_name, words);
    const struct loader_tensors head = loader_tensor(
        head_name, slice_whole(config->n_vocab, l->part->head_rows, config->dim, config->dim));
    const struct loader_tensors positions = loader_tensor(
        names->positions,
        slice_whole(config->positions.n_rows, config->positions.n_rows, config->dim, config->dim));

    l->rank = rank;
    l->stage = l->ranks[rank].stage;
    l->share = l->ranks[rank].share;
    l->is_last = l->ranks[rank].is_last;
    l->w = l->ranks[rank].weights;
    l->d = l->ranks[rank].device;
    /* Each rank starts at the beginning of the list, and of the random seeds. */
    l->n_listed = 0;
    l->seed = 1;
    memset(l->w, 0, sizeof *l->w);
    l->w->layers = mem_zalloc_array((size_t)config->n_layers, sizeof *l->w->layers);
    if (l->from->n_adapters > 0)
        l->w->adapters = adapters_new(l->from->n_adapters, l->from->adapter_rank);
    if (l->w->layers == NULL || (l->from->n_adapters > 0 && l->w->adapters == NULL))
        return ERR_NO_MEMORY;
    l->layer = -1;
    l->absent = !weights_has_embed(l);
    if (config->eagle.n_taps == 0 || !l->absent)
        l->w->embed = loader_matrix(l, &embed, USE_TABLE);
    /* Only families with learned positions have this table. */
    l->absent = l->stage > 0;
    if (config->positions.is_used)
        l->w->positions = loader_matrix(l, &positions, USE_ADDED).data;
    if (l->whole->embeds.width > 0)
        weights_load_embeds(&in);
    if (l->whole->norms_embedding)
        l->w->norm_embedded = (struct k_norm){
            .kind = K_NORM_RMS, .eps = l->whole->norm.eps, .weight = weights_ones(l, in.dim)};
    for (l->layer = 0; l->layer < config->n_layers && l->rc == ERR_OK; l->layer++)
        weights_load_layer(&in, l->layer);
    /* The stage with the last layer computes it, as any stage does the norm behind it. */
    l->absent = !l->is_last && l->stage != l->n_stages - 1;
    if (config->eagle.is_mtp)
        l->layer = 0; /* the rest of an MTP layer has its number, too */
    l->w->norm =
        weights_load_last_norm(&in, config->eagle.is_mtp ? config->form.mtp->norm : names->norm);
    l->absent = !l->is_last;
    l->prefix = l->of_target; /* an MTP layer has its target's output matrix */
    weights_load_head(l, &head, &whole_head);
    l->prefix = weights_own_prefix(l);
    if (l->rc == ERR_OK && l->w->adapters != NULL)
        l->rc = adapters_alloc(l->w->adapters, l->d);
    if (config->eagle.is_mtp)
        weights_load_mtp(&in);
    else if (config->eagle.n_taps > 0)
        weights_load_eagle(&in);
    return l->rc;
}

/* The prefix of the text model's names. Checkpoints that hold several models, or were saved without
 * the head, use others than "model."; the first under which the embedding exists is taken. */
static const char *weights_find_prefix(const struct loader *l, const char *embed)
{
    static const char *const prefixes[] = {"model.",
                                           "model.language_model.",
                                           "language_model.model.",
                                           "model.text_model.",
                                           "transformer.",
                                           "backbone.",
                                           ""};
    struct loader with = *l;
    char name[400];

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        with.prefix = prefixes[i];
        loader_name(&with, name, sizeof name, embed, ".weight");
        if (checkpoint_find(l->files, name) != NULL)
            return prefixes[i];
    }
    return prefixes[0];
}

/* One line for the whole model, because a checkpoint is usually in one format. */
static void weights_log_converted(const struct loader_converted *c, const struct device *d)
{
    log_info("model: %d matrices are %s, which %s does not multiply with; they are held as %s: "
             "%.1f MiB instead of %.1f",
             c->n, c->text, d->name,
             c->is_rounded                    ? "FP8, which quantization asks for"
             : d->elem_bytes == sizeof(float) ? "float32"
                                              : "bf16",
             (double)c->bytes / 0x1p20, (double)c->as_they_are / 0x1p20);
}

/* Dummy weights have a constant digest, so that stores of two dummy models differ by their config
 * only. */
int weights_load(const struct weights_ranks *ranks, const struct hf_config *c,
                 const struct plan *whole, const struct plan *part,
                 const struct weights_source *from)
{
    struct loader loader = {.ranks = ranks->at,
                            .n_ranks = ranks->n,
                            .n_stages = ranks->n_stages,
                            .n_shares = part->n_ranks,
                            .c = c,
                            .whole = whole,
                            .part = part,
                            .from = from};
    int rc = from->dir == NULL ? ERR_OK : checkpoint_open(&loader.files, from->dir);

    must(whole->n_ranks == 1 && part->n_ranks >= 1);
    if (rc != ERR_OK)
        return rc;
    weights_fill_orders(&loader, whole);
    if (loader.files != NULL)
        loader.prefix = loader.of_target = weights_find_prefix(&loader, c->form.names.embed);
    loader.prefix = weights_own_prefix(&loader);
    rc = weights_check_mtp(&loader);
    for (int i = 0; i < loader.n_ranks && rc == ERR_OK; i++)
        /* Rank 0 makes the list; the others must find the same one. */
        rc = weights_lay_out(&loader, i);
    log_debug("model: weights are laid out");
    if (rc == ERR_OK && from->dir != NULL)
        rc = loader_read(&loader);
    if (rc == ERR_OK && loader.converted.n > 0)
        weights_log_converted(&loader.converted, ranks->at[0].device);
    if (from->dir == NULL)
        ranks->at[0].weights->digest = hash_sha256("dummy", 5, NULL, 0);
    loader_fini(&loader);
    return rc;
}

bool weights_have_blocks(const struct weights *w, int n_layers)
{
    bool some = false;

    for (int i = 0; i < n_layers; i++) {
        const struct layer_weights *layer = &w->layers[i];
        const struct k_matrix *all[] = {&layer->mixer_in, &layer->mixer_out, &layer->ffn_in,
                                        &layer->down};

        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            some = some || (all[k]->n_out > 0 && cpu_round_reads(all[k]->format.elem));
    }
    return some;
}

/* Device memory is freed with the device. */
void weights_fini(struct weights *w)
{
    mem_free(w->layers);
    mem_free(w->eagle.ids);
    w->layers = NULL;
    adapters_free(w->adapters);
    w->adapters = NULL;
    w->eagle.ids = NULL;
}
