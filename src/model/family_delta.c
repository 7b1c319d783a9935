/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of config.json of families with Gated DeltaNet: Qwen3-Next and Qwen3.5. Meanings and
 * defaults are those of the configuration classes in transformers.
 *
 * layer_types names the kind of each layer. Files that lack it have full_attention_interval: every
 * so many layers the last one is attention. */
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

static void delta_read_kinds(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *types = json_get(obj, "layer_types");
    bool has_types = types != NULL && types->kind != JSON_NULL;
    int every = source_whole(s, obj, "full_attention_interval", FULL_INTERVAL, 1, 1024);

    if (has_types && (types->kind != JSON_LIST || types->n != (uint32_t)c->n_layers)) {
        log_error("model: %s: layer_types must be a list of %d", s->name, c->n_layers);
        source_fail(s, ERR_INVALID);
        return;
    }
    for (int i = 0; i < c->n_layers && s->rc == ERR_OK; i++) {
        enum layer_kind kind = (i + 1) % every == 0 ? LAYER_FULL : LAYER_DELTA;

        if (has_types)
            kind = delta_kind(s, &types->items[i]);
        c->layer_kinds[i] = (uint8_t)kind;
    }
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
