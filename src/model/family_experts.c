/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of config.json of families with mixtures of experts. Meanings and defaults are those of
 * the configuration classes in transformers.
 *
 * Each function fills c->experts and says which layers have them; family_check_experts() then
 * compares the numbers with each other and with the limits of the kernels. */
#include "model/family.h"

#include <math.h>
#include <string.h>

#include "base/log.h"

#define ROWS_MAX (1 << 30) /* of one matrix with all experts of a layer */

/* --- fields --------------------------------------------------------------------------------- */

/* A whole number that may be 0 where it is missing. */
static int family_whole_or_none(struct config_source *s, const struct json *obj, const char *field,
                                int high)
{
    const struct json *value = json_get(obj, field);

    if (value == NULL || value->kind == JSON_NULL)
        return 0;
    return source_whole(s, obj, field, 1, 0, high);
}

/* A number, or a list with one per layer, all of which must be equal. */
static int family_whole_of_layers(struct config_source *s, const struct hf_config *c,
                                  const struct json *obj, const char *field, int preset, int high)
{
    const struct json *list = json_get_kind(obj, field, JSON_LIST);

    if (list == NULL)
        return source_whole(s, obj, field, preset, 1, high);
    for (uint32_t i = 0; i < list->n; i++) {
        if (list->items[i].kind != JSON_INT || list->items[i].whole != list->items[0].whole ||
            list->items[i].whole < 1 || list->items[i].whole > high) {
            log_error("model: %s: %s must be a whole number from 1 to %d, the same for all layers",
                      s->name, field, high);
            source_fail(s, ERR_UNSUPPORTED);
            return preset;
        }
    }
    if (list->n == (uint32_t)c->n_layers)
        return (int)list->items[0].whole;
    log_error("model: %s: %s must be a list of %d", s->name, field, c->n_layers);
    source_fail(s, ERR_INVALID);
    return preset;
}

/* A field that must be missing, null or false, because nothing computes what it asks for. */
static void family_refuse(struct config_source *s, const struct json *obj, const char *field)
{
    const struct json *value = json_get(obj, field);

    if (value == NULL || value->kind == JSON_NULL || (value->kind == JSON_BOOL && !value->flag))
        return;
    log_error("model: %s: %s is not supported", s->name, field);
    source_fail(s, ERR_UNSUPPORTED);
}

/* A number that is a constant of the kernels. */
static void family_expect(struct config_source *s, const struct json *obj, const char *field,
                          double constant)
{
    if (fabs(source_positive(s, obj, field, constant) - constant) < 1e-6)
        return;
    log_error("model: %s: %s is supported as %g only", s->name, field, constant);
    source_fail(s, ERR_UNSUPPORTED);
}

/* --- checks --------------------------------------------------------------------------------- */

/* Log what is wrong with two fields, by the names that the family has for them. */
static void family_bad_experts(struct config_source *s, const char *what, int a, const char *of,
                               int b)
{
    log_error("model: %s: %s %d does not fit %s %d", s->name, what, a, of, b);
    source_fail(s, ERR_INVALID);
}

/* The numbers of the router against each other. */
static void family_check_experts(struct hf_config *c, struct config_source *s)
{
    const struct experts_config *e = &c->experts;

    if (s->rc != ERR_OK)
        return;
    if (e->n_used > e->n)
        family_bad_experts(s, "experts per token:", e->n_used, "a number of experts of", e->n);
    else if (e->n % e->n_groups != 0)
        family_bad_experts(s, "n_group", e->n_groups, "a number of experts of", e->n);
    else if (e->n_groups_used > e->n_groups)
        family_bad_experts(s, "topk_group", e->n_groups_used, "n_group", e->n_groups);
    else if (e->n_used > e->n / e->n_groups * e->n_groups_used)
        family_bad_experts(s, "experts per token:", e->n_used, "the experts of topk_group groups:",
                           e->n / e->n_groups * e->n_groups_used);
    else if (e->ff_dim > ROWS_MAX / 2 / e->n)
        family_bad_experts(s, "the width of experts:", e->ff_dim, "a number of experts of", e->n);
}

/* Experts by the names of the fields, chosen by a softmax over all; families change the rest. The
 * number of experts has one name in released files and another in those that transformers
 * writes. */
static void family_read_experts(struct hf_config *c, struct config_source *s,
                                const struct json *obj, const char *n, const char *ff_dim,
                                int ff_dim_preset)
{
    const char *const counts[] = {n, "num_experts", "num_local_experts", NULL};

    c->experts = (struct experts_config){
        .n = source_whole(s, obj, source_alias(obj, counts), 0, 1, K_EXPERTS_MAX),
        .ff_dim = source_whole(s, obj, ff_dim, ff_dim_preset, 1, 1 << 20),
        .n_groups = 1,
        .n_groups_used = 1,
        .group_best = 1,
        .scoring = K_SCORE_SOFTMAX,
        .least = 1e-20f,
        .scale = 1.0f};
    for (int i = 0; i < c->n_layers; i++)
        c->layer_experts[i] = true;
}

static void family_read_used(struct hf_config *c, struct config_source *s, const struct json *obj,
                             const char *field, int preset)
{
    c->experts.n_used = source_whole(s, obj, field, preset, 1, K_EXPERTS_USED_MAX);
}

/* --- families ------------------------------------------------------------------------------- */

/* intermediate_size is the width of an expert, because there is no other FFN. */
void family_mixtral(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_read_experts(c, s, obj, "num_local_experts", "intermediate_size", c->ff_dim);
    family_read_used(c, s, obj, "num_experts_per_tok", 2);
    c->experts.renorms = true;
    family_check_experts(c, s);
}

/* Every `interval`-th layer has experts. */
static void family_space_experts(struct hf_config *c, struct config_source *s,
                                 const struct json *obj, const char *interval)
{
    int step = source_whole(s, obj, interval, 1, 1, HF_CONFIG_LAYERS_MAX);

    for (int i = 0; i < c->n_layers; i++)
        c->layer_experts[i] = (i + 1) % step == 0;
}

/* The layers of a list of numbers have experts, or have none. Numbers of no layer are ignored, as
 * in transformers. */
static void family_list_experts(struct hf_config *c, struct config_source *s,
                                const struct json *obj, const char *field, bool has_experts)
{
    const struct json *list = json_get(obj, field);

    if (list == NULL || list->kind == JSON_NULL)
        return;
    for (uint32_t i = 0; list->kind == JSON_LIST && i < list->n; i++) {
        const struct json *layer = &list->items[i];

        if (layer->kind == JSON_INT && layer->whole >= 0 && layer->whole < c->n_layers)
            c->layer_experts[layer->whole] = has_experts;
    }
    if (list->kind != JSON_LIST) {
        log_error("model: %s: %s must be a list", s->name, field);
        source_fail(s, ERR_INVALID);
    }
}

/* Qwen's fields, which Qwen 2 and 3 share. */
static void family_read_qwen(struct hf_config *c, struct config_source *s, const struct json *obj,
                             int ff_dim, int n_used)
{
    family_read_experts(c, s, obj, "num_experts", "moe_intermediate_size", ff_dim);
    family_read_used(c, s, obj, "num_experts_per_tok", n_used);
    c->experts.renorms = source_flag(s, obj, "norm_topk_prob", false);
    family_space_experts(c, s, obj, "decoder_sparse_step");
    family_list_experts(c, s, obj, "mlp_only_layers", false);
}

void family_qwen2_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->qkv_bias = source_flag(s, obj, "qkv_bias", true);
    family_read_qwen(c, s, obj, 1408, 4);
    c->experts.shared_dim =
        source_whole(s, obj, "shared_expert_intermediate_size", 5632, 1, 1 << 20);
    c->experts.has_switch = true;
    family_check_experts(c, s);
}

/* Qwen3-Next and Qwen3.5, of which the second always renorms and has experts in all layers. */
void family_qwen_delta_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_read_qwen(c, s, obj, 512, 8);
    c->experts.renorms = source_flag(s, obj, "norm_topk_prob", true);
    c->experts.shared_dim =
        source_whole(s, obj, "shared_expert_intermediate_size", 512, 1, 1 << 20);
    c->experts.has_switch = true;
    family_check_experts(c, s);
}

void family_qwen3_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_refuse(s, obj, "use_sliding_window");
    family_read_qwen(c, s, obj, 768, 8);
    family_check_experts(c, s);
}

void family_olmoe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_refuse(s, obj, "clip_qkv");
    family_read_experts(c, s, obj, "num_experts", "intermediate_size", c->ff_dim);
    family_read_used(c, s, obj, "num_experts_per_tok", 8);
    c->experts.renorms = source_flag(s, obj, "norm_topk_prob", false);
    family_check_experts(c, s);
}

/* The multipliers of dense Granite. */
void family_granite_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_granite(c, s, obj);
    family_read_experts(c, s, obj, "num_local_experts", "intermediate_size", c->ff_dim);
    family_read_used(c, s, obj, "num_experts_per_tok", 2);
    c->experts.scoring = K_SCORE_TOP;
    c->experts.shared_dim = family_whole_or_none(s, obj, "shared_intermediate_size", 1 << 20);
    family_check_experts(c, s);
}

/* attention_bias means q, k and v only. */
void family_glm4_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    int n_dense = source_whole(s, obj, "first_k_dense_replace", 1, 0, HF_CONFIG_LAYERS_MAX);
    struct experts_config *e = &c->experts;

    c->qkv_bias = source_flag(s, obj, "attention_bias", false);
    if (source_flag(s, obj, "use_qk_norm", false))
        c->qk_norm = QK_NORM_HEADS;
    family_read_experts(c, s, obj, "n_routed_experts", "moe_intermediate_size", 1408);
    family_read_used(c, s, obj, "num_experts_per_tok", 8);
    e->scoring = K_SCORE_SIGMOID;
    e->has_bias = true;
    e->n_groups = source_whole(s, obj, "n_group", 1, 1, K_EXPERT_GROUPS_MAX);
    e->n_groups_used = source_whole(s, obj, "topk_group", 1, 1, K_EXPERT_GROUPS_MAX);
    e->group_best = 2;
    e->renorms = source_flag(s, obj, "norm_topk_prob", true);
    e->scale = (float)source_positive(s, obj, "routed_scaling_factor", 1.0);
    e->shared_dim =
        e->ff_dim * source_whole(s, obj, "n_shared_experts", 1, 0, HF_CONFIG_SHARED_MAX);
    for (int i = 0; i < n_dense && i < c->n_layers; i++)
        c->layer_experts[i] = false;
    family_check_experts(c, s);
}

/* The first layers are dense, all others have experts. */
void family_grouped_experts(struct hf_config *c, struct config_source *s, const struct json *obj,
                            const struct grouped_experts *presets)
{
    static const char *const used[] = {"num_experts_per_tok", "num_experts_per_token", NULL};
    static const char *const groups[] = {"n_group", "num_expert_group", NULL};
    static const char *const renorms[] = {"norm_topk_prob", "moe_renormalize", NULL};
    static const char *const shared[] = {"n_shared_experts", "num_shared_experts", NULL};
    struct experts_config *e = &c->experts;
    const struct json *dense = json_get(obj, "first_k_dense_replace");
    int n_dense = presets->n_dense;

    if (dense != NULL && dense->kind != JSON_NULL)
        n_dense = family_whole_or_none(s, obj, "first_k_dense_replace", HF_CONFIG_LAYERS_MAX);
    family_expect(s, obj, "moe_layer_freq", 1.0);
    family_read_experts(c, s, obj, "n_routed_experts", "moe_intermediate_size", presets->ff_dim);
    family_read_used(c, s, obj, source_alias(obj, used), presets->n_used);
    e->scoring = presets->is_sigmoid ? K_SCORE_SIGMOID : K_SCORE_SOFTMAX;
    e->has_bias = presets->is_sigmoid;
    e->n_groups =
        source_whole(s, obj, source_alias(obj, groups), presets->n_groups, 1, K_EXPERT_GROUPS_MAX);
    e->n_groups_used =
        source_whole(s, obj, "topk_group", presets->n_groups_used, 1, K_EXPERT_GROUPS_MAX);
    e->group_best = 2;
    e->renorms = source_flag(s, obj, source_alias(obj, renorms), true);
    e->scale = (float)source_positive(s, obj, "routed_scaling_factor", presets->scale);
    e->shared_dim = e->ff_dim * source_whole(s, obj, source_alias(obj, shared), presets->n_shared,
                                             0, HF_CONFIG_SHARED_MAX);
    for (int i = 0; i < n_dense && i < c->n_layers; i++)
        c->layer_experts[i] = false;
    family_check_experts(c, s);
}

/* mlp_layer_types, if it is there, has "dense" or "sparse" for each layer. */
void family_layer_types(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *types = json_get_kind(obj, "mlp_layer_types", JSON_LIST);

    if (types != NULL && types->n != (uint32_t)c->n_layers) {
        log_error("model: %s: mlp_layer_types must be a list of %d", s->name, c->n_layers);
        source_fail(s, ERR_INVALID);
        return;
    }
    for (int i = 0; i < c->n_layers && types != NULL; i++) {
        const struct json *type = &types->items[i];

        c->layer_experts[i] = type->kind == JSON_TEXT && strcmp(type->text, "sparse") == 0;
        if (!c->layer_experts[i] && (type->kind != JSON_TEXT || strcmp(type->text, "dense") != 0)) {
            log_error("model: %s: mlp_layer_types must have \"dense\" and \"sparse\" alone",
                      s->name);
            source_fail(s, ERR_INVALID);
            return;
        }
    }
}

/* Which layers have experts is in the list of layers, which has been read. Experts and the shared
 * one have no gate. */
void family_nemotron_h_experts(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    bool has[HF_CONFIG_LAYERS_MAX];
    struct experts_config *e = &c->experts;

    memcpy(has, c->layer_experts, sizeof has);
    family_read_experts(c, s, obj, "n_routed_experts", "moe_intermediate_size", 7688);
    family_read_used(c, s, obj, "num_experts_per_tok", 2);
    e->scoring = K_SCORE_SIGMOID;
    e->has_bias = true;
    e->is_plain = true;
    e->n_groups = source_whole(s, obj, "n_group", 1, 1, K_EXPERT_GROUPS_MAX);
    e->n_groups_used = source_whole(s, obj, "topk_group", 1, 1, K_EXPERT_GROUPS_MAX);
    e->group_best = 2;
    e->renorms = source_flag(s, obj, "norm_topk_prob", true);
    e->scale = (float)source_positive(s, obj, "routed_scaling_factor", 1.0);
    e->shared_dim = source_whole(s, obj, "moe_shared_expert_intermediate_size", 7688, 1, 1 << 20);
    e->latent_dim = family_whole_or_none(s, obj, "moe_latent_size", c->dim);
    if (e->latent_dim > 0)
        family_refuse(s, obj, "mlp_bias");
    memcpy(c->layer_experts, has, sizeof has);
    family_check_experts(c, s);
}

/* The first layers are dense. */
void family_lfm2_experts(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    int n_dense = source_whole(s, obj, "num_dense_layers", 2, 0, HF_CONFIG_LAYERS_MAX);
    struct experts_config *e = &c->experts;

    family_read_experts(c, s, obj, "num_experts", "moe_intermediate_size", 1792);
    family_read_used(c, s, obj, "num_experts_per_tok", 4);
    e->scoring = K_SCORE_SIGMOID;
    e->has_bias = source_flag(s, obj, "use_expert_bias", true);
    e->renorms = source_flag(s, obj, "norm_topk_prob", true);
    e->least = 1e-6f;
    e->scale = (float)source_positive(s, obj, "routed_scaling_factor", 1.0);
    for (int i = 0; i < n_dense && i < c->n_layers; i++)
        c->layer_experts[i] = false;
    family_check_experts(c, s);
}

/* Released files give the rotating part of a head as rotary_dim. */
void family_minimax_m2(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    int rotary_dim = source_whole(s, obj, "rotary_dim", c->ropes[0].rotary_dim, 2, c->head_dim);

    if (rotary_dim % 2 != 0) {
        log_error("model: %s: rotary_dim must be even", s->name);
        source_fail(s, ERR_INVALID);
    }
    if (json_get(obj, "rotary_dim") != NULL)
        c->ropes[0].rotary_dim = rotary_dim;
    family_read_experts(c, s, obj, "num_local_experts", "intermediate_size", c->ff_dim);
    family_read_used(c, s, obj, "num_experts_per_tok", 8);
    c->experts.scoring = K_SCORE_SIGMOID;
    c->experts.has_bias = true;
    c->experts.renorms = true;
    c->experts.shared_dim = family_whole_or_none(s, obj, "shared_intermediate_size", 0);
    family_check_experts(c, s);
}

/* Layers from moe_layer_start_index to moe_layer_end_index have experts, in an interval. */
void family_ernie4_5_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    int start = source_whole(s, obj, "moe_layer_start_index", 1, 0, HF_CONFIG_LAYERS_MAX);
    int end = source_whole(s, obj, "moe_layer_end_index", -1, -1, HF_CONFIG_LAYERS_MAX);
    int interval = source_whole(s, obj, "moe_layer_interval", 1, 1, HF_CONFIG_LAYERS_MAX);
    struct experts_config *e = &c->experts;

    c->qkv_bias = c->o_bias = c->mlp_bias = source_flag(s, obj, "use_bias", false);
    family_read_experts(c, s, obj, "moe_num_experts", "moe_intermediate_size", 1536);
    family_read_used(c, s, obj, "moe_k", 6);
    e->has_bias = true;
    e->renorms = true;
    e->least = (float)source_positive(s, obj, "moe_norm_min", 1e-12);
    e->shared_dim =
        e->ff_dim * source_whole(s, obj, "moe_num_shared_experts", 2, 0, HF_CONFIG_SHARED_MAX);
    if (end == -1)
        end = c->n_layers - 1;
    for (int i = 0; i < c->n_layers; i++)
        c->layer_experts[i] = i >= start && i <= end && (i + 1) % interval == 0;
    family_check_experts(c, s);
}

/* Positions whose theta is raised once, although the file calls them dynamic. */
void family_read_alpha(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *parameters = config_rope_object(obj, NULL);
    const struct json *alpha = parameters == NULL ? NULL : json_get(parameters, "alpha");
    struct rope *rope = &c->ropes[0];

    if (rope->kind != ROPE_DYNAMIC || alpha == NULL || alpha->kind == JSON_NULL)
        return;
    rope->kind = ROPE_PLAIN;
    rope->theta *= pow(source_positive(s, parameters, "alpha", 0.0),
                       (double)c->head_dim / (double)(c->head_dim > 2 ? c->head_dim - 2 : 1));
}

/* Heads are normed after their rotation. */
void family_hunyuan_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    struct experts_config *e = &c->experts;
    int n_shared = family_whole_of_layers(s, c, obj, "num_shared_expert", 1, HF_CONFIG_SHARED_MAX);

    family_refuse(s, obj, "use_cla");
    family_read_alpha(c, s, obj);
    c->qk_norm = QK_NORM_AFTER;
    family_read_experts(c, s, obj, "num_experts", "intermediate_size", c->ff_dim);
    e->n_used = family_whole_of_layers(s, c, obj, "moe_topk", 1, K_EXPERTS_USED_MAX);
    e->ff_dim = family_whole_of_layers(s, c, obj, "moe_intermediate_size", e->ff_dim, 1 << 20);
    e->renorms = true;
    e->shared_dim = e->ff_dim * n_shared;
    family_check_experts(c, s);
}

/* Experts are chosen one after another; the class computes two. */
void family_phimoe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->qkv_bias = c->o_bias = source_flag(s, obj, "attention_bias", false);
    c->head_bias = source_flag(s, obj, "lm_head_bias", false);
    family_read_experts(c, s, obj, "num_local_experts", "intermediate_size", c->ff_dim);
    family_read_used(c, s, obj, "num_experts_per_tok", 2);
    c->experts.scoring = K_SCORE_MIXER;
    c->experts.spread = (float)source_positive(s, obj, "router_jitter_noise", 0.01);
    if (c->experts.n_used != 2) {
        log_error("model: %s: num_experts_per_tok is supported as 2 only", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
    family_check_experts(c, s);
}

/* intermediate_size is the width of an expert. hidden_act is silu, but gates are clamped. */
void family_gpt_oss(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_expect(s, obj, "swiglu_limit", (double)K_SWISH_LIMIT);
    family_expect(s, obj, "swiglu_alpha", (double)K_SWISH_SLOPE);
    c->qkv_bias = c->o_bias = source_flag(s, obj, "attention_bias", true);
    c->sinks = true;
    c->activation = K_SWISH_CLAMPED;
    family_read_experts(c, s, obj, "num_local_experts", "intermediate_size", c->ff_dim);
    family_read_used(c, s, obj, "num_experts_per_tok", 4);
    c->experts.scoring = K_SCORE_TOP;
    c->experts.has_biases = true;
    family_check_experts(c, s);
}

/* All layers have experts, and beside them the FFN that dense models have. */
void family_gemma4_experts(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_read_experts(c, s, obj, "num_experts", "moe_intermediate_size", 0);
    family_read_used(c, s, obj, "top_k_experts", 0);
    c->experts.renorms = true;
    c->experts.has_scales = true;
    c->experts.is_apart = true;
    c->experts.shared_dim = c->ff_dim;
    if (c->shared_is_wide && c->n_kv_shared > 0) {
        log_error("model: %s: use_double_wide_mlp is not supported with experts", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
    family_check_experts(c, s);
}

/* --- families whose experts are in groups ---------------------------------------------------- */

/* Windows with positions, other layers without them; attention has gates; norms on both sides.
 * Without layer_types every global_attn_every_n_layers-th layer sees all tokens. */
void family_afmoe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    int every = source_whole(s, obj, "global_attn_every_n_layers", 4, 1, HF_CONFIG_LAYERS_MAX);
    int n_dense = source_whole(s, obj, "num_dense_layers", 1, 0, HF_CONFIG_LAYERS_MAX);
    struct experts_config *e = &c->experts;

    for (int i = 0; i < c->n_layers && json_get_kind(obj, "layer_types", JSON_LIST) == NULL; i++)
        c->layer_kinds[i] = c->window > 0 && (i + 1) % every != 0 ? LAYER_WINDOW : LAYER_FULL;
    family_exaone4(c, s, obj);
    c->attn_gate = true;
    if (source_flag(s, obj, "mup_enabled", false))
        c->by.embedding = sqrtf((float)c->dim);
    family_read_experts(c, s, obj, "num_experts", "moe_intermediate_size", 1408);
    family_read_used(c, s, obj, "num_experts_per_tok", 6);
    e->scoring = K_SCORE_SIGMOID;
    e->has_bias = true;
    e->renorms = true;
    e->scale = (float)source_positive(s, obj, "route_scale", 1.0);
    e->shared_dim =
        e->ff_dim * source_whole(s, obj, "num_shared_experts", 2, 0, HF_CONFIG_SHARED_MAX);
    for (int i = 0; i < n_dense && i < c->n_layers; i++)
        c->layer_experts[i] = false;
    family_check_experts(c, s);
}

/* As Qwen 3, with experts as DeepSeek V3. */
void family_dots1(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct grouped_experts presets = {
        .ff_dim = 1408, .n_groups = 1, .n_groups_used = 1, .scale = 1.0, .is_sigmoid = true};
    int first = source_whole(s, obj, "max_window_layers", 62, 0, 1 << 24);

    if (json_get_kind(obj, "layer_types", JSON_LIST) == NULL) {
        for (int i = 0; i < first && i < c->n_layers; i++)
            c->layer_kinds[i] = LAYER_FULL;
    }
    family_grouped_experts(c, s, obj, &presets);
    c->experts.renorms = source_flag(s, obj, "norm_topk_prob", false);
}

/* EXAONE 4 with norms before the mixer and the FFN; full layers have no positions. */
void family_exaone_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct grouped_experts presets = {.ff_dim = 1024,
                                                   .n_used = 8,
                                                   .n_shared = 1,
                                                   .n_dense = 1,
                                                   .n_groups = 1,
                                                   .n_groups_used = 1,
                                                   .scale = 2.5,
                                                   .is_sigmoid = true};

    family_exaone4(c, s, obj);
    family_grouped_experts(c, s, obj, &presets);
    family_layer_types(c, s, obj);
}

/* The router has a bias of the choice. Without mlp_layer_types the first layer is dense. */
void family_hy3(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    struct experts_config *e = &c->experts;

    family_read_experts(c, s, obj, "num_experts", "moe_intermediate_size", 1536);
    family_read_used(c, s, obj, "num_experts_per_tok", 8);
    e->scoring = K_SCORE_SIGMOID;
    e->has_bias = true;
    e->renorms = true;
    e->scale = (float)source_positive(s, obj, "router_scaling_factor", 2.826);
    e->shared_dim =
        e->ff_dim * source_whole(s, obj, "num_shared_experts", 1, 0, HF_CONFIG_SHARED_MAX);
    c->layer_experts[0] = false;
    family_layer_types(c, s, obj);
    family_check_experts(c, s);
}

/* Qwen 3 with windows, and another rope in their layers. */
void family_mellum(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_olmo3(c, s, obj);
    family_read_qwen(c, s, obj, 896, 8);
    c->experts.renorms = source_flag(s, obj, "norm_topk_prob", true);
    family_layer_types(c, s, obj);
    family_check_experts(c, s);
}

/* Sarvam and Ling 2: GLM 4.5 whose heads rotate as a whole, or in a part; released files have other
 * names for some fields. */
void family_sarvam_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const biases[] = {"attention_bias", "use_qkv_bias", NULL};
    static const struct grouped_experts presets = {.ff_dim = 1024,
                                                   .n_used = 6,
                                                   .n_shared = 1,
                                                   .n_dense = 1,
                                                   .n_groups = 1,
                                                   .n_groups_used = 1,
                                                   .scale = 2.5,
                                                   .is_sigmoid = true};

    c->qkv_bias = source_flag(s, obj, source_alias(obj, biases), false);
    c->o_bias = source_flag(s, obj, "use_bias", false);
    if (source_flag(s, obj, "use_qk_norm", true))
        c->qk_norm = QK_NORM_HEADS;
    family_grouped_experts(c, s, obj, &presets);
}

/* GLM 4.5 without dense layers and without norms of heads. */
void family_solar_open(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct grouped_experts presets = {.ff_dim = 1280,
                                                   .n_used = 8,
                                                   .n_shared = 1,
                                                   .n_groups = 1,
                                                   .n_groups_used = 1,
                                                   .scale = 1.0,
                                                   .is_sigmoid = true};

    c->qkv_bias = source_flag(s, obj, "attention_bias", false);
    family_grouped_experts(c, s, obj, &presets);
}

void family_granite_moe_swa(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_granite_moe(c, s, obj);
    family_granite_layers(c, s, obj);
}

/* --- Llama 4 -------------------------------------------------------------------------------- */

/* Texts of at most a chunk are seen as a whole by all layers. */
static void llama4_read_chunk(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *size = json_get(obj, "attention_chunk_size");
    const struct json *types = json_get_kind(obj, "layer_types", JSON_LIST);
    bool has = types == NULL;

    for (uint32_t i = 0; types != NULL && i < types->n; i++)
        has = has || (types->items[i].kind == JSON_TEXT &&
                      strcmp(types->items[i].text, "chunked_attention") == 0);
    if (!has || (size != NULL && size->kind == JSON_NULL))
        return;
    c->chunk = source_whole(s, obj, "attention_chunk_size", 8192, 1, HF_CONFIG_LEN_MAX);
    if (c->chunk < c->len_max)
        c->len_max = c->len_scaled = c->chunk;
}

/* moe_layers lists those with experts; without it every so many layers the last one has them. */
static void llama4_read_layers(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *list = json_get(obj, "moe_layers");

    family_space_experts(c, s, obj, "interleave_moe_layer_step");
    for (int i = 0; i < c->n_layers && list != NULL && list->kind != JSON_NULL; i++)
        c->layer_experts[i] = false;
    family_list_experts(c, s, obj, "moe_layers", true);
}

/* Released files have a number for attn_temperature_tuning. */
static void llama4_read_growth(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *tuning = json_get(obj, "attn_temperature_tuning");
    bool is_number = tuning != NULL && tuning->kind == JSON_INT;

    c->still_grows = true;
    if (is_number ? tuning->whole == 0 : !source_flag(s, obj, "attn_temperature_tuning", true))
        return;
    c->growth =
        (struct k_growth){.beta = (float)source_positive(s, obj, "attn_scale", 0.1),
                          .period = source_whole(s, obj, "floor_scale", 8192, 1, HF_CONFIG_LEN_MAX),
                          .first = 1};
}

/* Queries and keys are normed after the rotation, without weights; layers without positions have no
 * norms, and queries that grow. intermediate_size is the width of experts and the shared one. */
void family_llama4(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    struct experts_config *e = &c->experts;

    c->host_only = "experts whose inputs are weighted";
    family_smollm3(c, s, obj);
    if (source_flag(s, obj, "use_qk_norm", true))
        c->qk_norm = QK_NORM_AFTER;
    llama4_read_growth(c, s, obj);
    llama4_read_chunk(c, s, obj);
    family_read_experts(c, s, obj, "num_local_experts", "intermediate_size", c->ff_dim);
    family_read_used(c, s, obj, "num_experts_per_tok", 1);
    e->scoring = K_SCORE_SIGMOID;
    e->weighs_inputs = true;
    e->shared_dim = e->ff_dim;
    c->ff_dim = source_whole(s, obj, "intermediate_size_mlp", 16384, 1, 1 << 20);
    llama4_read_layers(c, s, obj);
    family_check_experts(c, s);
}

/* --- families with a gate for each head (family_gates.c) ------------------------------------- */

void family_step_experts(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const counts[] = {"n_routed_experts", "moe_num_experts", NULL};
    static const char *const used[] = {"num_experts_per_tok", "moe_top_k", NULL};
    static const char *const shared[] = {"share_expert_dim", "share_expert_dims", NULL};
    struct experts_config *e = &c->experts;

    family_read_experts(c, s, obj, source_alias(obj, counts), "moe_intermediate_size", 1280);
    family_read_used(c, s, obj, source_alias(obj, used), 8);
    e->scoring = K_SCORE_SIGMOID;
    e->has_bias = true;
    e->renorms = true;
    e->scale = (float)source_positive(s, obj, "moe_router_scaling_factor", 1.0);
    e->shared_dim = source_whole(s, obj, source_alias(obj, shared), 1280, 1, 1 << 20);
    for (int i = 0; i < 3 && i < c->n_layers; i++)
        c->layer_experts[i] = false;
    family_check_experts(c, s);
}

void family_laguna_experts(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *cap = json_get(obj, "moe_router_logit_softcapping");
    struct experts_config *e = &c->experts;

    family_read_experts(c, s, obj, "num_experts", "moe_intermediate_size", 512);
    family_read_used(c, s, obj, "num_experts_per_tok", 8);
    e->scoring = K_SCORE_SIGMOID;
    e->has_bias = true;
    e->renorms = true;
    e->scale = (float)source_positive(s, obj, "moe_routed_scaling_factor", 1.0);
    e->shared_dim = source_whole(s, obj, "shared_expert_intermediate_size", 512, 1, 1 << 20);
    if (cap != NULL && !(json_is_number(cap) && json_real(cap) == 0.0))
        e->cap = (float)source_positive(s, obj, "moe_router_logit_softcapping", 0.0);
    family_check_experts(c, s);
}

/* moe_layer_freq of released files has 1 for layers with experts; without it the first is dense. */
void family_mimo_experts(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *list = json_get_kind(obj, "moe_layer_freq", JSON_LIST);
    const struct json *scale = json_get(obj, "routed_scaling_factor");
    struct experts_config *e = &c->experts;

    family_read_experts(c, s, obj, "n_routed_experts", "moe_intermediate_size", 2048);
    family_read_used(c, s, obj, "num_experts_per_tok", 8);
    e->scoring = K_SCORE_SIGMOID;
    e->has_bias = true;
    e->n_groups = source_whole(s, obj, "n_group", 1, 1, K_EXPERT_GROUPS_MAX);
    e->n_groups_used = source_whole(s, obj, "topk_group", 1, 1, K_EXPERT_GROUPS_MAX);
    e->group_best = 2;
    e->renorms = source_flag(s, obj, "norm_topk_prob", true);
    if (scale != NULL && scale->kind != JSON_NULL)
        e->scale = (float)source_positive(s, obj, "routed_scaling_factor", 1.0);
    if (list != NULL && list->n != (uint32_t)c->n_layers) {
        log_error("model: %s: moe_layer_freq must be a list of %d", s->name, c->n_layers);
        source_fail(s, ERR_INVALID);
        return;
    }
    for (int i = 0; i < c->n_layers; i++)
        c->layer_experts[i] =
            list == NULL ? i > 0 : list->items[i].kind == JSON_INT && list->items[i].whole != 0;
    family_check_experts(c, s);
}
