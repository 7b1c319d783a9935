/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of config.json of families with Mamba-2 or short convolutions. Meanings and defaults are
 * those of the configuration classes in transformers.
 *
 * Mamba-2 has two sets of names: Nemotron-H's, and that of Granite 4 H, Falcon-H1 and Bamba. Layers
 * have the kinds of Gated DeltaNet's files ("linear_attention"), or older names ("mamba").
 *
 * The limits of a step are those of time_step_limit, for every token. transformers' classes apply
 * them to prompts and not to tokens after them, and Nemotron-H's puts time_step_min, which is a
 * number of the training, in place of the lower one; those who trained it use the field. */
#include "model/family.h"

#include <math.h>
#include <string.h>

#include "base/log.h"

/* --- fields --------------------------------------------------------------------------------- */

/* A switch whose other value is not computed. */
static void mamba_require(struct config_source *s, const struct json *obj, const char *field,
                          bool value, bool preset)
{
    if (source_flag(s, obj, field, preset) != value) {
        log_error("model: %s: %s must be %s", s->name, field, value ? "true" : "false");
        source_fail(s, ERR_UNSUPPORTED);
    }
}

/* A number from 0 on; writers that keep to JSON put infinity in an object. */
static float mamba_limit(struct config_source *s, const struct json *value)
{
    const struct json *inside = json_get(value, "__float__");
    double x = json_is_number(value) ? json_real(value) : -1.0;

    if (value->kind == JSON_OBJECT && inside != NULL && inside->kind == JSON_TEXT &&
        strcmp(inside->text, "Infinity") == 0)
        return INFINITY;
    if (!(x >= 0.0)) {
        log_error("model: %s: time_step_limit must be two numbers from 0 on", s->name);
        source_fail(s, ERR_INVALID);
    }
    return (float)x;
}

static void mamba_read_limits(struct mamba_config *m, struct config_source *s,
                              const struct json *obj)
{
    const struct json *list = json_get(obj, "time_step_limit");

    m->least = 0.0f;
    m->most = INFINITY;
    if (list == NULL || list->kind == JSON_NULL)
        return;
    if (list->kind != JSON_LIST || list->n != 2) {
        log_error("model: %s: time_step_limit must be a list of two", s->name);
        source_fail(s, ERR_INVALID);
        return;
    }
    m->least = mamba_limit(s, &list->items[0]);
    m->most = mamba_limit(s, &list->items[1]);
}

static void mamba_check(struct config_source *s, const struct k_mamba_shape *shape)
{
    if (s->rc == ERR_OK && shape->n_heads % shape->n_groups != 0) {
        log_error("model: %s: %d heads of Mamba-2 do not divide into %d groups", s->name,
                  shape->n_heads, shape->n_groups);
        source_fail(s, ERR_INVALID);
    }
}

/* What all have in common. */
static struct mamba_config mamba_neutral(void)
{
    return (struct mamba_config){
        .has_norm = true, .z_by = 1.0f, .x_by = 1.0f, .b_by = 1.0f, .c_by = 1.0f, .dt_by = 1.0f};
}

/* The size of a head, where "auto" is the inner width by the number of heads. */
static int mamba_head_dim(struct config_source *s, const struct json *obj, int inner, int n_heads)
{
    const struct json *value = json_get(obj, "mamba_d_head");
    int dim = inner / n_heads;

    if (value != NULL && value->kind != JSON_NULL && value->kind != JSON_TEXT)
        dim = source_whole(s, obj, "mamba_d_head", 0, 1, K_MAMBA_HEAD_MAX);
    if (s->rc == ERR_OK && (dim < 1 || dim > K_MAMBA_HEAD_MAX || dim * n_heads != inner)) {
        log_error("model: %s: mamba_d_head: %d heads of Mamba-2 of %d do not have %d elements, or "
                  "have more than %d each",
                  s->name, n_heads, dim, inner, K_MAMBA_HEAD_MAX);
        source_fail(s, ERR_UNSUPPORTED);
        return 1;
    }
    return dim;
}

/* The names that most families have. */
static void mamba_read(struct hf_config *c, struct config_source *s, const struct json *obj,
                       int inner)
{
    struct mamba_config *m = &c->mamba;
    int n_heads = source_whole(s, obj, "mamba_n_heads", 128, 1, 4096);

    *m = mamba_neutral();
    m->shape = (struct k_mamba_shape){
        .n_heads = n_heads,
        .head_dim = mamba_head_dim(s, obj, inner, n_heads),
        .n_groups = source_whole(s, obj, "mamba_n_groups", 1, 1, 4096),
        .n_state = source_whole(s, obj, "mamba_d_state", 256, 1, K_MAMBA_STATE_MAX),
        .n_taps = source_whole(s, obj, "mamba_d_conv", 4, 2, K_CONV_TAPS_MAX)};
    m->has_bias = source_flag(s, obj, "mamba_proj_bias", false);
    m->has_conv_bias = source_flag(s, obj, "mamba_conv_bias", true);
    mamba_read_limits(m, s, obj);
    mamba_check(s, &m->shape);
}

static int mamba_inner(struct config_source *s, const struct hf_config *c, const struct json *obj)
{
    return source_whole(s, obj, "mamba_expand", 2, 1, 16) * c->dim;
}

/* --- layers --------------------------------------------------------------------------------- */

/* A kind of layer, and whether it has an FFN and experts. */
struct mamba_layer {
    const char *name, *older;
    char letter; /* of hybrid_override_pattern */
    enum layer_kind kind;
    bool is_mixer, has_experts;
};

static const struct mamba_layer mamba_layers[] = {
    {"linear_attention", "mamba", 'M', LAYER_MAMBA, true, false},
    {"full_attention", "attention", '*', LAYER_FULL, true, false},
    {"mlp", "mlp", '-', LAYER_NONE, false, false},
    {"moe", "moe", 'E', LAYER_NONE, false, true}};

#define N_LAYER_NAMES (sizeof mamba_layers / sizeof mamba_layers[0])

/* The row of an entry of a list or, without one, of a letter; NULL (logged) if there is none. */
static const struct mamba_layer *mamba_layer_of(struct config_source *s, const struct json *type,
                                                char letter)
{
    const char *name = type == NULL ? "" : type->kind == JSON_TEXT ? type->text : "";

    for (size_t i = 0; i < N_LAYER_NAMES; i++) {
        if (type == NULL ? letter == mamba_layers[i].letter
                         : strcmp(name, mamba_layers[i].name) == 0 ||
                               strcmp(name, mamba_layers[i].older) == 0)
            return &mamba_layers[i];
    }
    log_error("model: %s: a layer of the kind \"%.40s%c\" is not supported", s->name, name,
              type == NULL ? letter : ' ');
    source_fail(s, ERR_UNSUPPORTED);
    return NULL;
}

/* A list of n_layers kinds by the first of these names that the file has; NULL: it has none. */
static const struct json *mamba_list(const struct hf_config *c, struct config_source *s,
                                     const struct json *obj, const char *const *names)
{
    const char *field = source_alias(obj, names);
    const struct json *list = json_get(obj, field);

    if (list == NULL || list->kind == JSON_NULL)
        return NULL;
    if (list->kind != JSON_LIST || list->n != (uint32_t)c->n_layers) {
        log_error("model: %s: %s must be a list of %d", s->name, field, c->n_layers);
        source_fail(s, ERR_INVALID);
        return NULL;
    }
    return list;
}

/* All layers lose their positions. */
static void mamba_remove_positions(struct hf_config *c)
{
    c->n_ropes = 0;
    (void)config_add_no_rope(c);
}

/* --- families ------------------------------------------------------------------------------- */

/* One mixer or one FFN a layer: in a list, or a letter for each in older files. */
static void mamba_read_blocks(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const names[] = {"layers_block_type", "layer_types", NULL};
    const struct json *list = mamba_list(c, s, obj, names);
    const char *letters = json_get_text(obj, "hybrid_override_pattern", "");

    if (s->rc == ERR_OK && list == NULL && strlen(letters) != (size_t)c->n_layers) {
        log_error("model: %s: layers_block_type or hybrid_override_pattern must have %d layers",
                  s->name, c->n_layers);
        source_fail(s, ERR_INVALID);
    }
    for (int i = 0; i < c->n_layers && s->rc == ERR_OK; i++) {
        const struct mamba_layer *layer = mamba_layer_of(s, list != NULL ? &list->items[i] : NULL,
                                                         list != NULL ? '\0' : letters[i]);

        if (layer == NULL)
            return;
        c->layer_kinds[i] = (uint8_t)layer->kind;
        c->lacks_ffn[i] = layer->is_mixer;
        c->layer_experts[i] = layer->has_experts;
    }
}

/* Attention has no positions. */
void family_nemotron_h(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    struct mamba_config *m = &c->mamba;
    bool has_experts = false;

    if (strcmp(json_get_text(obj, "mlp_hidden_act", "relu2"), "relu2") != 0) {
        log_error("model: %s: mlp_hidden_act must be relu2", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
    *m = mamba_neutral();
    m->shape = (struct k_mamba_shape){
        .n_heads = source_whole(s, obj, "mamba_num_heads", 128, 1, 4096),
        .head_dim = source_whole(s, obj, "mamba_head_dim", 64, 1, K_MAMBA_HEAD_MAX),
        .n_groups = source_whole(s, obj, "n_groups", 8, 1, 4096),
        .n_state = source_whole(s, obj, "ssm_state_size", 128, 1, K_MAMBA_STATE_MAX),
        .n_taps = source_whole(s, obj, "conv_kernel", 4, 2, K_CONV_TAPS_MAX)};
    m->has_bias = source_flag(s, obj, "use_bias", false);
    m->has_conv_bias = source_flag(s, obj, "use_conv_bias", true);
    mamba_read_limits(m, s, obj);
    mamba_check(s, &m->shape);
    mamba_remove_positions(c);
    mamba_read_blocks(c, s, obj);
    for (int i = 0; i < c->n_layers; i++)
        has_experts = has_experts || c->layer_experts[i];
    if (has_experts)
        family_nemotron_h_experts(c, s, obj);
}

/* Granite's multipliers. Without experts the shared FFN is the only one. */
void family_granite_hybrid(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const names[] = {"layer_types", "layers_block_type", NULL};
    const struct json *list = mamba_list(c, s, obj, names);

    mamba_read(c, s, obj, mamba_inner(s, c, obj));
    for (int i = 0; i < c->n_layers && s->rc == ERR_OK; i++) {
        const struct mamba_layer *layer =
            list == NULL ? &mamba_layers[0] : mamba_layer_of(s, &list->items[i], '\0');

        if (layer != NULL)
            c->layer_kinds[i] = (uint8_t)layer->kind;
    }
    if (strcmp(json_get_text(obj, "position_embedding_type", ""), "rope") != 0)
        mamba_remove_positions(c);
    if (source_whole(s, obj, "num_local_experts", 8, 0, K_EXPERTS_MAX) > 0) {
        family_granite_moe(c, s, obj);
        return;
    }
    family_granite(c, s, obj);
    c->ff_dim = source_whole(s, obj, "shared_intermediate_size", 1024, 1, 1 << 20);
}

/* A list of n multipliers. */
static void mamba_read_factors(float *out, int n, struct config_source *s, const struct json *obj,
                               const char *field)
{
    const struct json *list = json_get(obj, field);

    for (int i = 0; i < n; i++)
        out[i] = 1.0f;
    if (list == NULL || list->kind == JSON_NULL)
        return;
    for (uint32_t i = 0; list->kind == JSON_LIST && list->n == (uint32_t)n && i < list->n; i++) {
        if (json_is_number(&list->items[i]))
            out[i] = (float)json_real(&list->items[i]);
    }
    if (list->kind != JSON_LIST || list->n != (uint32_t)n) {
        log_error("model: %s: %s must be a list of %d", s->name, field, n);
        source_fail(s, ERR_INVALID);
    }
}

/* Multipliers are where they cost least: those of keys in the scale of scores, those of attention's
 * input there and in the factor of its result. */
static void mamba_read_falcon_factors(struct hf_config *c, struct config_source *s,
                                      const struct json *obj)
{
    struct mamba_config *m = &c->mamba;
    float attn_in = (float)source_positive(s, obj, "attention_in_multiplier", 1.0);
    float states_in = (float)source_positive(s, obj, "ssm_in_multiplier", 1.0);
    float of_states[5], of_ffn[2];

    mamba_read_factors(of_states, 5, s, obj, "ssm_multipliers");
    mamba_read_factors(of_ffn, 2, s, obj, "mlp_multipliers");
    m->z_by = states_in * of_states[0];
    m->x_by = states_in * of_states[1];
    m->b_by = states_in * of_states[2];
    m->c_by = states_in * of_states[3];
    m->dt_by = states_in * of_states[4];
    c->attn_scale *= attn_in * attn_in * (float)source_positive(s, obj, "key_multiplier", 1.0);
    c->by.attention = attn_in * (float)source_positive(s, obj, "attention_out_multiplier", 1.0);
    c->by.states = (float)source_positive(s, obj, "ssm_out_multiplier", 1.0);
    c->by.gate = of_ffn[0];
    c->by.ffn = of_ffn[1];
    c->by.embedding = (float)source_positive(s, obj, "embedding_multiplier", 1.0);
    c->by.logits = (float)source_positive(s, obj, "lm_head_multiplier", 1.0);
}

/* Each layer becomes two: Mamba-2, and attention with the FFN. */
void family_falcon_h1(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const biases[] = {"attention_bias", "mlp_bias", "projectors_bias",
                                         "mamba_proj_bias"};
    const struct json *inner = json_get(obj, "mamba_d_ssm");
    int width = inner != NULL && inner->kind == JSON_NULL
                    ? mamba_inner(s, c, obj)
                    : source_whole(s, obj, "mamba_d_ssm", 1024, 1, 65536);

    for (size_t i = 0; i < sizeof biases / sizeof biases[0]; i++)
        mamba_require(s, obj, biases[i], false, false);
    mamba_read(c, s, obj, width);
    c->mamba.has_norm = source_flag(s, obj, "mamba_rms_norm", false);
    c->mamba.norm_first = c->mamba.has_norm && source_flag(s, obj, "mamba_norm_before_gate", true);
    mamba_read_falcon_factors(c, s, obj);
    if (s->rc == ERR_OK && 2 * c->n_layers > HF_CONFIG_LAYERS_MAX) {
        log_error("model: %s: %d layers are too many", s->name, c->n_layers);
        source_fail(s, ERR_UNSUPPORTED);
        return;
    }
    c->n_layers *= 2;
    c->is_twin = true;
    for (int i = 0; i < c->n_layers; i += 2) {
        c->layer_kinds[i] = LAYER_MAMBA;
        c->lacks_ffn[i] = true;
        c->layer_kinds[i + 1] = LAYER_FULL;
    }
}

/* attn_layer_indices lists the layers of attention. */
void family_bamba(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *list = json_get_kind(obj, "attn_layer_indices", JSON_LIST);

    mamba_require(s, obj, "attention_bias", false, false);
    mamba_require(s, obj, "mlp_bias", false, false);
    mamba_read(c, s, obj, mamba_inner(s, c, obj));
    for (int i = 0; i < c->n_layers; i++)
        c->layer_kinds[i] = LAYER_MAMBA;
    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        const struct json *layer = &list->items[i];

        if (layer->kind == JSON_INT && layer->whole >= 0 && layer->whole < c->n_layers)
            c->layer_kinds[layer->whole] = LAYER_FULL;
    }
}

/* --- short convolutions --------------------------------------------------------------------- */

/* Layers that are not attention are convolutions: by a list of all, or of those with attention. */
static void conv_read_layers(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const names[] = {"layer_types", NULL};
    const struct json *types = mamba_list(c, s, obj, names);
    const struct json *full = json_get_kind(obj, "full_attn_idxs", JSON_LIST);

    for (int i = 0; i < c->n_layers && (types != NULL || full != NULL); i++) {
        const char *name =
            types != NULL && types->items[i].kind == JSON_TEXT ? types->items[i].text : "conv";

        c->layer_kinds[i] = strcmp(name, "full_attention") == 0 ? LAYER_FULL : LAYER_CONV;
        if (c->layer_kinds[i] == LAYER_CONV && strcmp(name, "conv") != 0) {
            log_error("model: %s: layer_types has \"%.40s\", which is not supported", s->name,
                      name);
            source_fail(s, ERR_UNSUPPORTED);
        }
    }
    for (uint32_t i = 0; types == NULL && full != NULL && i < full->n; i++) {
        const struct json *layer = &full->items[i];

        if (layer->kind == JSON_INT && layer->whole >= 0 && layer->whole < c->n_layers)
            c->layer_kinds[layer->whole] = LAYER_FULL;
    }
}

static void conv_read(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->conv = (struct conv_config){source_whole(s, obj, "conv_L_cache", 3, 2, K_CONV_TAPS_MAX),
                                   source_flag(s, obj, "conv_bias", false)};
    c->tied = source_flag(s, obj, "tie_embedding", c->tied);
    conv_read_layers(c, s, obj);
}

/* The width of the FFN: two thirds of the field, up to a multiple. */
void family_lfm2(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    int multiple = source_whole(s, obj, "block_multiple_of", 256, 1, 65536);
    double by = source_positive(s, obj, "block_ffn_dim_multiplier", 1.0);

    conv_read(c, s, obj);
    c->ff_dim = source_whole(s, obj, "block_ff_dim", c->ff_dim, 1, 1 << 20);
    if (!source_flag(s, obj, "block_auto_adjust_ff_dim", true))
        return;
    c->ff_dim = (int)(by * (double)(2 * c->ff_dim / 3));
    c->ff_dim = (c->ff_dim + multiple - 1) / multiple * multiple;
    if (s->rc == ERR_OK && (c->ff_dim < 1 || c->ff_dim > 1 << 20)) {
        log_error("model: %s: block_ffn_dim_multiplier makes an FFN of %d", s->name, c->ff_dim);
        source_fail(s, ERR_INVALID);
    }
}

void family_lfm2_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    conv_read(c, s, obj);
    family_lfm2_experts(c, s, obj);
}
