/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of config.json of Gemma 4. Meanings and defaults are those of the configuration classes in
 * transformers.
 *
 * Layers with a window and layers that see all tokens have heads of different sizes and numbers.
 * Released files give those of the latter as global_head_dim and num_global_key_value_heads; files
 * that transformers writes have an object per layer, per_layer_config, instead. */
#include "model/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define FULL_HEAD_DIM  512     /* default of global_head_dim */
#define FULL_THETA     1000000 /* of files without rope_parameters, as is the next */
#define FULL_PART      0.25
#define EMBEDS_WIDTH   256 /* default of hidden_size_per_layer_input */
#define EMBEDS_ROWS    262144
#define EMBEDS_ROW_MAX 65536 /* elements of a token's row, all layers */

/* --- heads ---------------------------------------------------------------------------------- */

/* The entry of a layer in per_layer_config; NULL without. transformers writes all numbers with as
 * many digits as the largest has: "05". */
static const struct json *gemma4_layer_of(const struct json *all, int layer)
{
    for (uint32_t i = 0; i < all->n; i++) {
        const char *key = all->items[i].key;
        char *end;

        if (key[0] >= '0' && key[0] <= '9' && strtol(key, &end, 10) == layer && *end == '\0' &&
            all->items[i].kind == JSON_OBJECT)
            return &all->items[i];
    }
    return NULL;
}

/* Read the heads of full layers from one layer's object, which may leave out those of the model. */
static void gemma4_read_layer(struct hf_config *c, struct config_source *s,
                              const struct json *layer)
{
    c->full_head_dim = source_whole(s, layer, "head_dim", c->head_dim, 1, K_HEAD_DIM_MAX);
    c->full_kv_heads = source_whole(s, layer, "num_key_value_heads", c->n_kv_heads, 1, 1024);
}

/* All full layers must have the same, and others none. */
static void gemma4_read_layers(struct hf_config *c, struct config_source *s, const struct json *all)
{
    int head_dim = 0, kv_heads = 0;

    for (int i = 0; i < c->n_layers && s->rc == ERR_OK; i++) {
        const struct json *layer = gemma4_layer_of(all, i);

        if (layer != NULL && c->layer_kinds[i] == LAYER_FULL) {
            gemma4_read_layer(c, s, layer);
            if (head_dim == 0) {
                head_dim = c->full_head_dim;
                kv_heads = c->full_kv_heads;
            }
            if (c->full_head_dim == head_dim && c->full_kv_heads == kv_heads)
                continue;
        }
        if (layer != NULL || c->layer_kinds[i] == LAYER_FULL) {
            log_error("model: %s: per_layer_config must give the same heads to all layers of "
                      "full_attention, and none to others; layer %d differs",
                      s->name, i);
            source_fail(s, ERR_UNSUPPORTED);
        }
    }
}

/* The number of kv heads differs only where keys are values. */
static void gemma4_read_heads(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *all = json_get_kind(obj, "per_layer_config", JSON_OBJECT);

    c->values_are_keys = source_flag(s, obj, "attention_k_eq_v", false);
    if (all != NULL) {
        gemma4_read_layers(c, s, all);
    } else {
        c->full_head_dim =
            source_whole(s, obj, "global_head_dim", FULL_HEAD_DIM, 1, K_HEAD_DIM_MAX);
        if (c->values_are_keys)
            c->full_kv_heads =
                source_whole(s, obj, "num_global_key_value_heads", c->n_kv_heads, 1, 1024);
    }
    if (s->rc == ERR_OK && (c->full_head_dim % 2 != 0 || c->n_heads % c->full_kv_heads != 0)) {
        log_error("model: %s: layers of full_attention have %d heads of %d on %d: their size must "
                  "be even, and their number a multiple",
                  s->name, c->n_heads, c->full_head_dim, c->full_kv_heads);
        source_fail(s, ERR_INVALID);
    }
}

/* --- positions ------------------------------------------------------------------------------ */

/* A rope for each kind of layer. */
static void gemma4_add_ropes(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *parameters = json_get_kind(obj, "rope_parameters", JSON_OBJECT);
    const struct json *full = json_get_kind(parameters, "full_attention", JSON_OBJECT);
    const struct json *local = json_get_kind(parameters, "sliding_attention", JSON_OBJECT);
    int of_full = config_add_rope(c, c->full_head_dim, s, obj, full);
    int of_local = config_add_rope(c, c->head_dim, s, obj, local);
    struct rope *rope = &c->ropes[of_full];

    if (parameters == NULL) {
        rope->kind = ROPE_PROPORTIONAL;
        rope->theta = FULL_THETA;
        rope->rotary_dim = 2 * (int)(FULL_PART * c->full_head_dim / 2);
    } else if (full == NULL || local == NULL) {
        log_error("model: %s: rope_parameters must have full_attention and sliding_attention",
                  s->name);
        source_fail(s, ERR_INVALID);
    }
    for (int i = 0; i < c->n_layers; i++)
        c->layer_ropes[i] = (uint8_t)(c->layer_kinds[i] == LAYER_FULL ? of_full : of_local);
}

/* --- layers --------------------------------------------------------------------------------- */

/* True if a layer of this kind is among the first n. */
static bool gemma4_has_kind(const struct hf_config *c, uint8_t kind, int n)
{
    for (int i = 0; i < n; i++) {
        if (c->layer_kinds[i] == kind)
            return true;
    }
    return false;
}

/* Each kind of the layers that share needs one before them that has keys and values. */
static void gemma4_read_shared(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *value = json_get(obj, "num_kv_shared_layers");
    int first;

    if (value != NULL && value->kind != JSON_NULL)
        c->n_kv_shared = source_whole(s, obj, "num_kv_shared_layers", 1, 0, c->n_layers - 1);
    c->shared_is_wide = source_flag(s, obj, "use_double_wide_mlp", false);
    first = c->n_layers - c->n_kv_shared;
    for (int i = first; i < c->n_layers && s->rc == ERR_OK; i++) {
        if (!gemma4_has_kind(c, c->layer_kinds[i], first)) {
            log_error("model: %s: num_kv_shared_layers %d: layer %d has no layer of its kind "
                      "before layer %d to read keys of",
                      s->name, c->n_kv_shared, i, first);
            source_fail(s, ERR_INVALID);
        }
    }
}

/* The last layer sees all tokens: transformers would make it so, whatever the file says. */
static void gemma4_check_layers(struct hf_config *c, struct config_source *s)
{
    if (c->window == 0) {
        log_error("model: %s: sliding_window must be set", s->name);
        source_fail(s, ERR_INVALID);
    } else if (c->layer_kinds[c->n_layers - 1] != LAYER_FULL) {
        log_error("model: %s: the last layer must have full_attention", s->name);
        source_fail(s, ERR_INVALID);
    }
}

/* Every token that the model embeds has a row. */
static void gemma4_read_embeds(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    struct layer_embeds *e = &c->layer_embeds;
    const struct json *width = json_get(obj, "hidden_size_per_layer_input");

    if (width == NULL || width->kind != JSON_INT || width->whole != 0)
        e->width = source_whole(s, obj, "hidden_size_per_layer_input", EMBEDS_WIDTH, 0,
                                EMBEDS_ROW_MAX / c->n_layers);
    if (e->width == 0)
        return;
    e->n_rows = source_whole(s, obj, "vocab_size_per_layer_input", EMBEDS_ROWS, 1, 1 << 22);
    if (s->rc == ERR_OK && e->n_rows < c->n_vocab) {
        log_error("model: %s: vocab_size_per_layer_input %d is less than vocab_size %d", s->name,
                  e->n_rows, c->n_vocab);
        source_fail(s, ERR_INVALID);
    }
}

/* Tokens of text see those before them, also in models in which those of an image see all of it. */
static void gemma4_refuse(struct config_source *s, const struct json *obj)
{
    if (strcmp(json_get_text(obj, "use_bidirectional_attention", "vision"), "vision") != 0) {
        log_error("model: %s: use_bidirectional_attention is supported for vision only", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
    if (source_flag(s, obj, "attention_bias", false)) {
        log_error("model: %s: attention_bias is not supported", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
}

/* The fields that all sizes have. */
static void gemma4_read_text(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *cap = json_get(obj, "final_logit_softcapping");

    gemma4_check_layers(c, s);
    gemma4_refuse(s, obj);
    gemma4_read_heads(c, s, obj);
    gemma4_read_shared(c, s, obj);
    if (s->rc == ERR_OK)
        gemma4_add_ropes(c, s, obj);
    c->attn_scale = 1.0f;
    c->value_norm = true;
    c->has_layer_scale = true;
    c->by.embedding = sqrtf((float)c->dim);
    if (cap != NULL && cap->kind != JSON_NULL)
        c->by.logits_cap = (float)source_positive(s, obj, "final_logit_softcapping", 0.0);
}

void family_gemma4(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    gemma4_read_text(c, s, obj);
    gemma4_read_embeds(c, s, obj);
    if (source_flag(s, obj, "enable_moe_block", false))
        family_gemma4_experts(c, s, obj);
}

void family_gemma4_unified(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    gemma4_read_text(c, s, obj);
}
