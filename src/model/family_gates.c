/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of config.json of families with other heads in some layers: Step 3.5 and 3.7 and Laguna,
 * whose attention also has one gate for each head, and MiMo-V2. Meanings and defaults are those of
 * the configuration classes in transformers.
 *
 * Released files of Step have lists with an entry for each layer, and for the MTP layers behind
 * them, which are not read; those that transformers writes have the fields of other families. */
#include "model/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* --- lists with an entry per layer ---------------------------------------------------------- */

/* A list that may have entries of MTP layers behind those of the layers; NULL: it is missing, or of
 * another length (logged). */
static const struct json *gates_list(const struct hf_config *c, struct config_source *s,
                                     const struct json *obj, const char *field, int n_next)
{
    const struct json *list = json_get(obj, field);

    if (list == NULL || list->kind == JSON_NULL)
        return NULL;
    if (list->kind == JSON_LIST &&
        (list->n == (uint32_t)c->n_layers || list->n == (uint32_t)(c->n_layers + n_next)))
        return list;
    log_error("model: %s: %s must be a list of %d", s->name, field, c->n_layers);
    source_fail(s, ERR_INVALID);
    return NULL;
}

/* The kinds of layers. */
static void gates_read_kinds(struct hf_config *c, struct config_source *s, const struct json *obj,
                             int n_next)
{
    const struct json *list = gates_list(c, s, obj, "layer_types", n_next);
    bool has_window = false;

    for (int i = 0; i < c->n_layers; i++) {
        const char *name =
            list != NULL && list->items[i].kind == JSON_TEXT ? list->items[i].text : "";

        c->layer_kinds[i] = LAYER_FULL;
        if (strcmp(name, "sliding_attention") == 0) {
            c->layer_kinds[i] = LAYER_WINDOW;
            has_window = true;
        } else if (list != NULL && strcmp(name, "full_attention") != 0) {
            log_error("model: %s: layer_types has \"%.40s\", which is not supported", s->name,
                      name);
            source_fail(s, ERR_UNSUPPORTED);
            return;
        }
    }
    if (has_window)
        c->window = source_whole(s, obj, "sliding_window", c->arch->window_preset, 1, 1 << 24);
}

/* Heads that kv heads divide among them. */
static void gates_check_heads(struct hf_config *c, struct config_source *s, const char *field)
{
    for (int i = 0; i < c->n_layers && s->rc == ERR_OK; i++) {
        if (c->layer_heads[i] % c->n_kv_heads == 0)
            continue;
        log_error("model: %s: %s %d of layer %d is not a multiple of the %d kv heads", s->name,
                  field, c->layer_heads[i], i, c->n_kv_heads);
        source_fail(s, ERR_INVALID);
    }
}

/* --- Step ----------------------------------------------------------------------------------- */

/* The number of heads in layers with a window: a field, or a member of one in released files. */
static void step_read_heads(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *other = json_get_kind(obj, "attention_other_setting", JSON_OBJECT);
    int n = source_whole(s, other, "num_attention_heads", c->n_heads, 1, 1024);

    n = source_whole(s, obj, "num_sliding_attention_heads", n, 1, 1024);
    if (source_whole(s, other, "num_attention_groups", c->n_kv_heads, 1, 1024) != c->n_kv_heads ||
        source_whole(s, other, "head_dim", c->head_dim, 1, K_HEAD_DIM_MAX) != c->head_dim) {
        log_error("model: %s: attention_other_setting with other kv heads is not supported",
                  s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
    for (int i = 0; i < c->n_layers; i++)
        c->layer_heads[i] = (uint16_t)(c->layer_kinds[i] == LAYER_WINDOW ? n : c->n_heads);
    gates_check_heads(c, s, "the number of heads");
}

/* A positive number in a list, or the list's field itself. */
static double step_number(struct config_source *s, const struct json *obj, const char *field,
                          const struct json *list, int layer, double preset)
{
    const struct json *value = list != NULL ? &list->items[layer] : json_get(obj, field);

    if (value == NULL || value->kind == JSON_NULL)
        return preset;
    if (json_is_number(value) && json_real(value) > 0.0 && json_real(value) < 1e30)
        return json_real(value);
    log_error("model: %s: %s must have positive numbers", s->name, field);
    source_fail(s, ERR_INVALID);
    return preset;
}

/* The rope of a kind of layers, from the lists of released files: that of its first layer. Scaled
 * positions are those of layers that see all tokens. */
static int step_add_rope(struct hf_config *c, struct config_source *s, const struct json *obj,
                         enum layer_kind kind, int n_next)
{
    const struct json *scaling = json_get_kind(obj, "rope_scaling", JSON_OBJECT);
    const struct json *parts = gates_list(c, s, obj, "partial_rotary_factors", n_next);
    const struct json *thetas = json_get_kind(obj, "rope_theta", JSON_LIST);
    int layer = 0, rope;
    double part;

    while (layer < c->n_layers - 1 && c->layer_kinds[layer] != kind)
        layer++;
    if (thetas != NULL)
        thetas = gates_list(c, s, obj, "rope_theta", n_next);
    scaling = kind == LAYER_FULL ? scaling : NULL;
    rope = config_add_rope(c, c->head_dim, s, scaling, scaling);
    if (s->rc != ERR_OK)
        return rope;
    c->ropes[rope].theta = step_number(s, obj, "rope_theta", thetas, layer, 10000.0);
    part = step_number(s, NULL, "partial_rotary_factors", parts, layer, 1.0);
    c->ropes[rope].rotary_dim = (int)(c->head_dim * part);
    if (part > 1.0 || c->ropes[rope].rotary_dim < 2 || c->ropes[rope].rotary_dim % 2 != 0) {
        log_error("model: %s: partial_rotary_factors must give an even number of 2 to %d elements "
                  "of a head",
                  s->name, c->head_dim);
        source_fail(s, ERR_INVALID);
    }
    return rope;
}

static void step_read_ropes(struct hf_config *c, struct config_source *s, const struct json *obj,
                            int n_next)
{
    static const char *const names[] = {"full_attention", "sliding_attention"};
    static const enum layer_kind kinds[] = {LAYER_FULL, LAYER_WINDOW};
    const struct json *all = json_get_kind(obj, "rope_parameters", JSON_OBJECT);

    for (int i = 0; i < 2 && s->rc == ERR_OK; i++) {
        const struct json *own = json_get_kind(all, names[i], JSON_OBJECT);
        int rope = own != NULL ? config_add_rope(c, c->head_dim, s, own, own)
                               : step_add_rope(c, s, obj, kinds[i], n_next);

        for (int k = 0; k < c->n_layers; k++) {
            if (c->layer_kinds[k] == kinds[i])
                c->layer_ropes[k] = (uint8_t)rope;
        }
    }
}

/* null and 0 stand for no limit. */
static void step_read_limits(const struct hf_config *c, struct config_source *s,
                             const struct json *obj, const char *field, int n_next, float *limits)
{
    const struct json *list = gates_list(c, s, obj, field, n_next);

    for (int i = 0; i < c->n_layers && list != NULL; i++) {
        const struct json *value = &list->items[i];

        if (json_is_number(value) && json_real(value) >= 0.0 && json_real(value) < 1e30)
            limits[i] = (float)json_real(value);
        else if (value->kind != JSON_NULL) {
            log_error("model: %s: %s must have numbers from 0, or null", s->name, field);
            source_fail(s, ERR_INVALID);
            return;
        }
    }
}

/* Layers with experts in moe_layers_enum: a list, or a text of numbers with commas. */
static void step_read_enum(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *value = json_get(obj, "moe_layers_enum");
    const char *text = json_get_text(obj, "moe_layers_enum", NULL);
    bool has_list = value != NULL && value->kind == JSON_LIST, is_bad = false;

    if (value == NULL || value->kind == JSON_NULL)
        return;
    for (int i = 0; i < c->n_layers; i++)
        c->layer_experts[i] = false;
    for (uint32_t i = 0; has_list && i < value->n; i++) {
        is_bad = is_bad || value->items[i].kind != JSON_INT || value->items[i].whole < 0;
        if (!is_bad && value->items[i].whole < c->n_layers)
            c->layer_experts[value->items[i].whole] = true;
    }
    while (text != NULL && *text != '\0' && !is_bad) {
        char *end;
        long layer = strtol(text, &end, 10);

        is_bad = end == text || layer < 0 || (*end != ',' && *end != '\0');
        if (!is_bad && layer < c->n_layers)
            c->layer_experts[layer] = true;
        text = *end == ',' ? end + 1 : end;
    }
    if (is_bad || (text == NULL && !has_list)) {
        log_error("model: %s: moe_layers_enum must have the numbers of layers", s->name);
        source_fail(s, ERR_INVALID);
    }
}

/* Switches whose other value would change the result in a way that is not computed. */
static void step_check(struct config_source *s, const struct json *obj)
{
    static const char *const needed[] = {"use_head_wise_attn_gate", "norm_expert_weight",
                                         "use_moe_router_bias"};

    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (source_flag(s, obj, needed[i], true))
            continue;
        log_error("model: %s: %s must be true", s->name, needed[i]);
        source_fail(s, ERR_UNSUPPORTED);
    }
    if (strcmp(json_get_text(obj, "moe_router_activation", "sigmoid"), "sigmoid") != 0) {
        log_error("model: %s: moe_router_activation is supported as sigmoid only", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
}

/* One gate for each head; other heads, and other positions, in layers with a window; limits of
 * gates and ups in some. The first three layers are dense. */
void family_step3p5(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const groups[] = {"num_key_value_heads", "num_attention_groups", NULL};
    const struct json *next = json_get(obj, "num_nextn_predict_layers");
    int n_next = 0;

    if (next != NULL && next->kind != JSON_NULL)
        n_next = source_whole(s, obj, "num_nextn_predict_layers", 1, 0, HF_CONFIG_LAYERS_MAX);
    c->n_kv_heads = source_whole(s, obj, source_alias(obj, groups), c->n_kv_heads, 1, 1024);
    c->full_kv_heads = c->n_kv_heads;
    c->host_only = "a gate for each head";
    c->attn_gate = c->gate_by_head = true;
    c->attn_scale =
        (float)(1.0 / sqrt(source_positive(s, obj, "query_pre_attn_scalar", c->head_dim)));
    step_check(s, obj);
    gates_read_kinds(c, s, obj, n_next);
    step_read_heads(c, s, obj);
    step_read_ropes(c, s, obj, n_next);
    step_read_limits(c, s, obj, "swiglu_limits", n_next, c->limits);
    step_read_limits(c, s, obj, "swiglu_limits_shared", n_next, c->shared_limits);
    family_step_experts(c, s, obj);
    step_read_enum(c, s, obj);
    if (gates_list(c, s, obj, "mlp_layer_types", n_next) != NULL)
        family_layer_types(c, s, obj);
}

/* --- Laguna --------------------------------------------------------------------------------- */

static void laguna_read_heads(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char field[] = "num_attention_heads_per_layer";
    const struct json *list = gates_list(c, s, obj, field, 0);

    for (int i = 0; i < c->n_layers; i++) {
        const struct json *value = list == NULL ? NULL : &list->items[i];

        c->layer_heads[i] = (uint16_t)c->n_heads;
        if (value == NULL)
            continue;
        if (value->kind != JSON_INT || value->whole < 1 || value->whole > 1024) {
            log_error("model: %s: %s must have whole numbers from 1 to 1024", s->name, field);
            source_fail(s, ERR_INVALID);
            return;
        }
        c->layer_heads[i] = (uint16_t)value->whole;
    }
    gates_check_heads(c, s, field);
}

/* A rope for each kind of layer; half of a head rotates in layers that see all tokens. */
static void laguna_read_ropes(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *all = json_get_kind(obj, "rope_parameters", JSON_OBJECT);
    const struct json *full = json_get_kind(all, "full_attention", JSON_OBJECT);
    const struct json *local = json_get_kind(all, "sliding_attention", JSON_OBJECT);
    int of_full = config_add_rope(c, c->head_dim, s, obj, full);
    int of_local = config_add_rope(c, c->head_dim, s, obj, local);
    bool has_window = false;

    for (int i = 0; i < c->n_layers; i++) {
        has_window = has_window || c->layer_kinds[i] == LAYER_WINDOW;
        c->layer_ropes[i] = (uint8_t)(c->layer_kinds[i] == LAYER_FULL ? of_full : of_local);
    }
    if (all == NULL) {
        c->ropes[of_full].theta = 500000.0;
        c->ropes[of_full].rotary_dim = c->head_dim / 2 / 2 * 2;
    } else if (full == NULL || (local == NULL && has_window)) {
        log_error("model: %s: rope_parameters must have full_attention and sliding_attention",
                  s->name);
        source_fail(s, ERR_INVALID);
    }
}

/* true and "per-head" mean the same. */
static void laguna_read_gate(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *gating = json_get(obj, "gating");
    const char *name = gating != NULL && gating->kind == JSON_TEXT ? gating->text : NULL;
    bool by_head = gating == NULL || (gating->kind == JSON_BOOL && gating->flag) ||
                   (name != NULL && strcmp(name, "per-head") == 0);

    c->attn_gate = c->gate_softplus = true;
    c->gate_by_head = by_head;
    if (!by_head && (name == NULL || strcmp(name, "per-element") != 0)) {
        log_error("model: %s: gating must be true, \"per-head\" or \"per-element\"", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
}

/* Gates are softplus. The first layer is dense. */
void family_laguna(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const unserved[] = {"moe_apply_router_weight_on_input",
                                           "swa_attention_sink_enabled"};

    for (size_t i = 0; i < sizeof unserved / sizeof unserved[0]; i++) {
        if (!source_flag(s, obj, unserved[i], false))
            continue;
        log_error("model: %s: %s is not supported", s->name, unserved[i]);
        source_fail(s, ERR_UNSUPPORTED);
    }
    c->host_only = "softplus gates of heads";
    laguna_read_gate(c, s, obj);
    gates_read_kinds(c, s, obj, 0);
    laguna_read_heads(c, s, obj);
    if (s->rc == ERR_OK)
        laguna_read_ropes(c, s, obj);
    family_laguna_experts(c, s, obj);
    c->layer_experts[0] = false;
    family_layer_types(c, s, obj);
}

/* --- MiMo-V2 -------------------------------------------------------------------------------- */

/* Released files have 1 for layers with a window in hybrid_layer_pattern, and sliding_window_size,
 * which does not count the token itself. */
static void mimo_read_layers(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *pattern = gates_list(c, s, obj, "hybrid_layer_pattern", 0);
    const struct json *types = json_get_kind(obj, "layer_types", JSON_LIST);
    const struct json *size = json_get(obj, "sliding_window_size");

    gates_read_kinds(c, s, obj, 0);
    for (int i = 0; i < c->n_layers && types == NULL; i++) {
        bool is_full = pattern == NULL
                           ? i == 0 || (i + 1) % 6 == 0
                           : pattern->items[i].kind == JSON_INT && pattern->items[i].whole == 0;

        c->layer_kinds[i] = is_full ? LAYER_FULL : LAYER_WINDOW;
    }
    c->window = source_whole(s, obj, "sliding_window", c->arch->window_preset, 1, 1 << 24);
    if (size != NULL && size->kind != JSON_NULL)
        c->window = source_whole(s, obj, "sliding_window_size", 128, 1, (1 << 24) - 1) + 1;
}

/* Twice as many kv heads, and sinks, in layers with a window. */
static void mimo_read_heads(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const same[] = {"swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads"};
    int value_dim = source_whole(s, obj, "v_head_dim", 128, 1, K_HEAD_DIM_MAX);
    const int wanted[] = {c->head_dim, value_dim, c->n_heads};

    for (int i = 0; i < 3; i++) {
        if (source_whole(s, obj, same[i], wanted[i], 1, 1024) == wanted[i])
            continue;
        log_error("model: %s: %s is supported as %d only, as in other layers", s->name, same[i],
                  wanted[i]);
        source_fail(s, ERR_UNSUPPORTED);
    }
    if (s->rc == ERR_OK && value_dim > c->head_dim) {
        log_error("model: %s: v_head_dim %d must be at most head_dim %d", s->name, value_dim,
                  c->head_dim);
        source_fail(s, ERR_INVALID);
    }
    c->value_dim = value_dim < c->head_dim ? value_dim : 0;
    c->n_kv_heads = source_whole(s, obj, "swa_num_key_value_heads", 2 * c->full_kv_heads, 1, 1024);
    if (s->rc == ERR_OK && c->n_heads % c->n_kv_heads != 0) {
        log_error("model: %s: num_attention_heads %d is not a multiple of the %d kv heads of "
                  "layers with a window",
                  s->name, c->n_heads, c->n_kv_heads);
        source_fail(s, ERR_INVALID);
    }
    c->sinks = source_flag(s, obj, "add_swa_attention_sink_bias", true);
    c->sinks_locally = true;
}

/* A rope for each kind of layer. */
static void mimo_read_ropes(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const thetas[] = {"rope_theta", "swa_rope_theta"};
    static const double presets[] = {5e6, 1e4};
    static const char *const names[] = {"full_attention", "sliding_attention"};
    const struct json *all = json_get_kind(obj, "rope_parameters", JSON_OBJECT);
    int ropes[2];

    for (int i = 0; i < 2; i++) {
        const struct json *own = json_get_kind(all, names[i], JSON_OBJECT);

        if (all != NULL && own == NULL) {
            log_error("model: %s: rope_parameters must have %s", s->name, names[i]);
            source_fail(s, ERR_INVALID);
        }
        ropes[i] = config_add_rope(c, c->head_dim, s, obj, own);
        if (all == NULL)
            c->ropes[ropes[i]].theta = source_positive(s, obj, thetas[i], presets[i]);
    }
    for (int i = 0; i < c->n_layers; i++)
        c->layer_ropes[i] = (uint8_t)ropes[c->layer_kinds[i] == LAYER_WINDOW];
}

/* Values are narrower than keys, and multiplied by a constant, which attention's result is
 * multiplied by instead. */
void family_mimo_v2(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const unserved[] = {"attention_bias", "add_full_attention_sink_bias",
                                           "attention_projection_layout"};
    const struct json *scale = json_get(obj, "attention_value_scale");

    for (size_t i = 0; i < sizeof unserved / sizeof unserved[0]; i++) {
        const struct json *value = json_get(obj, unserved[i]);

        if (value == NULL || value->kind == JSON_NULL ||
            (value->kind == JSON_BOOL && !value->flag) ||
            (value->kind == JSON_TEXT && strcmp(value->text, "split_qkv") == 0))
            continue;
        log_error("model: %s: %s is not supported", s->name, unserved[i]);
        source_fail(s, ERR_UNSUPPORTED);
    }
    if (json_get(obj, "layernorm_epsilon") != NULL)
        c->norm.eps = (float)source_positive(s, obj, "layernorm_epsilon", 1e-5);
    mimo_read_layers(c, s, obj);
    mimo_read_heads(c, s, obj);
    if (s->rc == ERR_OK)
        mimo_read_ropes(c, s, obj);
    if (scale == NULL || scale->kind != JSON_NULL)
        c->by.attention = (float)source_positive(s, obj, "attention_value_scale", 0.707);
    family_mimo_experts(c, s, obj);
    family_layer_types(c, s, obj);
}
