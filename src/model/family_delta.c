/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of config.json of families with the gated delta rule: Gated DeltaNet of Qwen3-Next,
 * Qwen3.5 and OLMo hybrid, Kimi Delta Attention of Kimi-Linear. Meanings and defaults are those of
 * the configuration classes in transformers.
 *
 * layer_types names the kind of each layer. Files that lack it have full_attention_interval: every
 * so many layers the last one is attention. Kimi-Linear's released files list the layers of both
 * kinds, counted from 1, in linear_attn_config. */
#include "model/family.h"

#include <string.h>

#include "base/log.h"

#define FULL_INTERVAL 4 /* default of full_attention_interval */

/* The kind that an entry of layer_types names. */
static enum layer_kind delta_kind(struct config_source *s, const struct json *type)
{
    const char *name = type->kind == JSON_TEXT ? type->text : "";

    if (strcmp(name, "full_attention") == 0)
        return LAYER_FULL;
    if (strcmp(name, "linear_attention") != 0) {
        log_error("model: %s: layer_types has \"%.40s\", which is not supported", s->name, name);
        source_fail(s, ERR_UNSUPPORTED);
    }
    return LAYER_DELTA;
}

/* The kinds that layer_types lists, if it is there. */
static bool delta_read_types(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *types = json_get(obj, "layer_types");

    if (types == NULL || types->kind == JSON_NULL)
        return false;
    if (types->kind != JSON_LIST || types->n != (uint32_t)c->n_layers) {
        log_error("model: %s: layer_types must be a list of %d", s->name, c->n_layers);
        source_fail(s, ERR_INVALID);
        return true;
    }
    for (int i = 0; i < c->n_layers && s->rc == ERR_OK; i++)
        c->layer_kinds[i] = (uint8_t)delta_kind(s, &types->items[i]);
    return true;
}

static void delta_read_kinds(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    int every = source_whole(s, obj, "full_attention_interval", FULL_INTERVAL, 1, 1024);

    if (delta_read_types(c, s, obj))
        return;
    for (int i = 0; i < c->n_layers && s->rc == ERR_OK; i++)
        c->layer_kinds[i] = (i + 1) % every == 0 ? LAYER_FULL : LAYER_DELTA;
}

static void delta_read(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    delta_read_kinds(c, s, obj);
    c->attn_gate = true;
    c->delta = (struct k_delta_shape){
        .n_k_heads = source_whole(s, obj, "linear_num_key_heads", 16, 1, 1024),
        .n_v_heads = source_whole(s, obj, "linear_num_value_heads", 32, 1, 1024),
        .k_dim = source_whole(s, obj, "linear_key_head_dim", 128, 1, K_DELTA_DIM_MAX),
        .v_dim = source_whole(s, obj, "linear_value_head_dim", 128, 1, K_DELTA_DIM_MAX),
        .n_taps = source_whole(s, obj, "linear_conv_kernel_dim", 4, 2, K_CONV_TAPS_MAX)};
    if (s->rc == ERR_OK && c->delta.n_v_heads % c->delta.n_k_heads != 0) {
        log_error("model: %s: linear_num_value_heads %d is not a multiple of linear_num_key_heads "
                  "%d",
                  s->name, c->delta.n_v_heads, c->delta.n_k_heads);
        source_fail(s, ERR_INVALID);
    }
    if (source_flag(s, obj, "attention_bias", false) ||
        !source_flag(s, obj, "attn_output_gate", true)) {
        log_error("model: %s: attention_bias must be false, and attn_output_gate true", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
}

void family_qwen3_5(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    delta_read(c, s, obj);
}

void family_qwen3_5_moe(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    delta_read(c, s, obj);
    family_qwen_delta_moe(c, s, obj);
}

void family_qwen3_next(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    delta_read(c, s, obj);
    family_qwen_delta_moe(c, s, obj);
}

/* --- OLMo hybrid ---------------------------------------------------------------------------- */

/* Without a theta no layer has positions. The released files have none. */
static void delta_read_rope(struct hf_config *c, const struct json *obj)
{
    const struct json *theta = json_get(config_rope_object(obj, NULL), "rope_theta");

    if (theta == NULL)
        theta = json_get(obj, "rope_theta");
    if (theta != NULL && theta->kind != JSON_NULL)
        return;
    c->n_ropes = 0;
    (void)config_add_no_rope(c);
}

/* Norms come after attention, and before Gated DeltaNet, whose own norms have an eps that is no
 * field. Its default sizes follow from those of attention. */
void family_olmo_hybrid(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    struct k_delta_shape *d = &c->delta;

    if (!delta_read_types(c, s, obj)) {
        for (int i = 0; i < c->n_layers; i++)
            c->layer_kinds[i] = i % FULL_INTERVAL == FULL_INTERVAL - 1 ? LAYER_FULL : LAYER_DELTA;
        if (c->n_layers < FULL_INTERVAL)
            c->layer_kinds[c->n_layers - 1] = LAYER_FULL;
    }
    delta_read_rope(c, obj);
    c->qkv_bias = c->o_bias = source_flag(s, obj, "attention_bias", false);
    c->delta_norms = NORMS_BEFORE;
    c->delta_eps = 1e-5f;
    d->n_k_heads = source_whole(s, obj, "linear_num_key_heads", c->n_heads, 1, 1024);
    d->n_v_heads = source_whole(s, obj, "linear_num_value_heads", c->n_heads, 1, 1024);
    d->k_dim = source_whole(s, obj, "linear_key_head_dim", 3 * c->dim / (4 * d->n_k_heads), 1,
                            K_DELTA_REF_DIM_MAX);
    d->v_dim = source_whole(s, obj, "linear_value_head_dim", 2 * d->k_dim, 1, K_DELTA_REF_DIM_MAX);
    d->n_taps = source_whole(s, obj, "linear_conv_kernel_dim", 4, 2, K_CONV_TAPS_MAX);
    d->doubles = source_flag(s, obj, "linear_allow_neg_eigval", true);
    if (d->doubles)
        c->host_only = "Gated DeltaNet with negative eigenvalues";
    else if (d->k_dim > K_DELTA_DIM_MAX || d->v_dim > K_DELTA_DIM_MAX)
        c->host_only = "heads of Gated DeltaNet above 128";
    if (s->rc == ERR_OK && d->n_v_heads != d->n_k_heads) {
        log_error("model: %s: linear_num_value_heads %d must be linear_num_key_heads %d", s->name,
                  d->n_v_heads, d->n_k_heads);
        source_fail(s, ERR_INVALID);
    }
}

/* --- Kimi Delta Attention ------------------------------------------------------------------- */

/* Give the layers of a list, counted from 1, a kind. Returns their number. */
static int delta_list_kind(struct hf_config *c, struct config_source *s, const struct json *own,
                           const char *field, enum layer_kind kind)
{
    const struct json *list = json_get_kind(own, field, JSON_LIST);
    uint32_t n = list == NULL ? 0 : list->n;

    for (uint32_t i = 0; i < n && s->rc == ERR_OK; i++) {
        const struct json *layer = &list->items[i];

        if (layer->kind != JSON_INT || layer->whole < 1 || layer->whole > c->n_layers) {
            log_error("model: %s: %s must have numbers from 1 to %d", s->name, field, c->n_layers);
            source_fail(s, ERR_INVALID);
            return 0;
        }
        c->layer_kinds[layer->whole - 1] = (uint8_t)kind;
    }
    return (int)n;
}

/* The kinds from the lists in linear_attn_config, which name each layer once; without them every
 * fourth layer from the fifth on is attention. */
static void delta_read_lists(struct hf_config *c, struct config_source *s, const struct json *own)
{
    int n;

    for (int i = 0; i < c->n_layers; i++)
        c->layer_kinds[i] = i > 0 && i % FULL_INTERVAL == 0 ? LAYER_FULL : LAYER_DELTA;
    if (json_get(own, "full_attn_layers") == NULL || json_get(own, "kda_layers") == NULL)
        return;
    for (int i = 0; i < c->n_layers; i++)
        c->layer_kinds[i] = LAYER_NONE;
    n = delta_list_kind(c, s, own, "full_attn_layers", LAYER_FULL);
    n += delta_list_kind(c, s, own, "kda_layers", LAYER_DELTA);
    for (int i = 0; i < c->n_layers && s->rc == ERR_OK; i++) {
        if (n == c->n_layers && c->layer_kinds[i] != LAYER_NONE)
            continue;
        log_error("model: %s: full_attn_layers and kda_layers must name each of %d layers once",
                  s->name, c->n_layers);
        source_fail(s, ERR_INVALID);
    }
}

void family_kimi_layers(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *own = json_get_kind(obj, "linear_attn_config", JSON_OBJECT);
    int n_heads = source_whole(s, obj, "linear_num_heads", 32, 1, 1024);
    int head_dim = source_whole(s, obj, "linear_head_dim", 128, 1, K_DELTA_DIM_MAX);
    int n_taps = source_whole(s, obj, "linear_conv_kernel_dim", 4, 2, K_CONV_TAPS_MAX);

    if (own != NULL) {
        n_heads = source_whole(s, own, "num_heads", n_heads, 1, 1024);
        head_dim = source_whole(s, own, "head_dim", head_dim, 1, K_DELTA_DIM_MAX);
        n_taps = source_whole(s, own, "short_conv_kernel_size", n_taps, 2, K_CONV_TAPS_MAX);
    }
    if (!delta_read_types(c, s, obj))
        delta_read_lists(c, s, own);
    c->delta = (struct k_delta_shape){.n_k_heads = n_heads,
                                      .n_v_heads = n_heads,
                                      .k_dim = head_dim,
                                      .v_dim = head_dim,
                                      .n_taps = n_taps,
                                      .by_channel = true};
}
