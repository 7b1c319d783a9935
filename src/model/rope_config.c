/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads rotary positions from config.json: rope_parameters in the newer spelling, which may be one
 * object per type of layer, or rope_scaling with rope_theta in the older one. Field names and
 * defaults are those of transformers.
 *
 * Examples: {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, ...}}
 * and {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000},
 * ...}}. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/must.h"
#include "model/config_source.h"

/* The factors bound the ramp of wave lengths, so they must differ. */
static void rope_config_read_llama3(struct rope *r, struct config_source *s, const struct json *p)
{
    r->low_factor = source_positive(s, p, "low_freq_factor", 0.0);
    r->high_factor = source_positive(s, p, "high_freq_factor", 0.0);
    r->original_len = source_positive(s, p, "original_max_position_embeddings", 0.0);
    if (s->rc == ERR_OK && r->high_factor <= r->low_factor) {
        log_error("model: %s: high_freq_factor must be above low_freq_factor", s->name);
        source_fail(s, ERR_INVALID);
    }
}

/* YaRN's correction of cosines and sines for a factor. */
static double rope_config_yarn_scale(double factor, double by)
{
    if (factor <= 1.0)
        return 1.0;
    return 0.1 * by * log(factor) + 1.0;
}

/* A number, null or nothing. */
static void rope_config_check_number(struct config_source *s, const struct json *p,
                                     const char *field)
{
    const struct json *value = json_get(p, field);

    if (value == NULL || value->kind == JSON_NULL || json_is_number(value))
        return;
    log_error("model: %s: %s must be a number", s->name, field);
    source_fail(s, ERR_INVALID);
}

/* mscale and mscale_all_dim are DeepSeek's variant: the ratio of two corrections. */
static void rope_config_read_yarn(struct rope *r, struct config_source *s, const struct json *p,
                                  int len_max)
{
    const struct json *mscale = json_get(p, "mscale"), *all = json_get(p, "mscale_all_dim");
    double scale = rope_config_yarn_scale(r->factor, 1.0);

    rope_config_check_number(s, p, "mscale");
    rope_config_check_number(s, p, "mscale_all_dim");
    r->original_len = source_positive(s, p, "original_max_position_embeddings", len_max);
    r->beta_fast = source_positive(s, p, "beta_fast", 32.0);
    r->beta_slow = source_positive(s, p, "beta_slow", 1.0);
    r->truncates = source_flag(s, p, "truncate", true);
    if (json_is_number(mscale) && json_is_number(all) && json_real(mscale) != 0.0 &&
        json_real(all) != 0.0)
        scale = rope_config_yarn_scale(r->factor, json_real(mscale)) /
                rope_config_yarn_scale(r->factor, json_real(all));
    r->scale = source_positive(s, p, "attention_factor", scale);
}

/* One factor per rotating pair. */
static void rope_config_read_factors(float *out, int n, struct config_source *s,
                                     const struct json *p, const char *field)
{
    const struct json *list = json_get_kind(p, field, JSON_LIST);

    for (int i = 0; i < n; i++) {
        out[i] = 1.0f;
        if (list == NULL || list->n != (uint32_t)n || !json_is_number(&list->items[i]) ||
            !(json_real(&list->items[i]) > 0.0)) {
            log_error("model: %s: %s must be a list of %d positive numbers", s->name, field, n);
            source_fail(s, ERR_INVALID);
            return;
        }
        out[i] = (float)json_real(&list->items[i]);
    }
}

/* Phi-3's longrope: two lists of factors. Without a factor in the file, it is the ratio of the
 * lengths. */
static void rope_config_read_long(struct rope *r, struct config_source *s, const struct json *obj,
                                  const struct json *p, int len_max)
{
    double preset = source_positive(s, obj, "original_max_position_embeddings", len_max);

    r->original_len = source_positive(s, p, "original_max_position_embeddings", preset);
    r->factor = source_positive(s, p, "factor", len_max / r->original_len);
    r->scale = 1.0;
    if (r->factor > 1.0)
        r->scale = sqrt(1.0 + log(r->factor) / log(r->original_len));
    r->scale = source_positive(s, p, "attention_factor", r->scale);
    /* PhiMoE gives it in the file, for both lists. */
    if (json_get(p, "long_mscale") != NULL) {
        r->scale = source_positive(s, p, "long_mscale", 0.0);
        if (source_positive(s, p, "short_mscale", 0.0) != r->scale) {
            log_error("model: %s: short_mscale and long_mscale must be equal", s->name);
            source_fail(s, ERR_UNSUPPORTED);
        }
    }
    rope_config_read_factors(r->short_factors, r->rotary_dim / 2, s, p, "short_factor");
    rope_config_read_factors(r->long_factors, r->rotary_dim / 2, s, p, "long_factor");
}

/* "type" is the older name of "rope_type". */
static void rope_config_read_kind(struct rope *r, const struct hf_config *c,
                                  struct config_source *s, const struct json *obj,
                                  const struct json *p)
{
    static const struct {
        const char *name;
        enum rope_kind kind;
    } kinds[] = {{"default", ROPE_PLAIN},
                 {"mrope", ROPE_PLAIN}, /* multimodal positions: for text all sections are equal */
                 {"linear", ROPE_LINEAR},
                 {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN},
                 {"longrope", ROPE_LONG},
                 {"su", ROPE_LONG},
                 {"dynamic", ROPE_DYNAMIC},
                 {"proportional", ROPE_PROPORTIONAL}};
    const char *name = json_get_text(p, "rope_type", json_get_text(p, "type", "default"));
    size_t i = 0, n = sizeof kinds / sizeof kinds[0];

    while (i < n && strcmp(name, kinds[i].name) != 0)
        i++;
    if (i == n) {
        log_error("model: %s: position scaling \"%.40s\" is not supported", s->name, name);
        source_fail(s, ERR_UNSUPPORTED);
        return;
    }
    /* Only these kinds have a factor of their own; longrope may derive it. */
    r->kind = kinds[i].kind;
    if (r->kind == ROPE_PROPORTIONAL)
        r->factor = source_positive(s, p, "factor", 1.0);
    else if (r->kind != ROPE_PLAIN && r->kind != ROPE_LONG)
        r->factor = source_positive(s, p, "factor", 0.0);
    switch (r->kind) {
    case ROPE_LLAMA3: rope_config_read_llama3(r, s, p); break;
    case ROPE_YARN: rope_config_read_yarn(r, s, p, c->len_max); break;
    case ROPE_LONG: rope_config_read_long(r, s, obj, p, c->len_max); break;
    case ROPE_DYNAMIC: r->original_len = c->len_max; break;
    case ROPE_PLAIN:
    case ROPE_LINEAR:
    case ROPE_PROPORTIONAL: break;
    }
}

/* The part of a head that rotates. For families without a default it must be 1, although
 * transformers would read the field: another value is a mistake, or a model of another kind. */
static double rope_config_rotary_part(const struct hf_config *c, struct config_source *s,
                                      const struct json *obj, const struct json *p)
{
    static const char *const names[] = {"partial_rotary_factor", "rotary_pct", NULL};
    double preset = c->arch->rotary_part > 0.0 ? c->arch->rotary_part : 1.0, part;

    part = source_positive(s, obj, source_alias(obj, names), preset);
    if (p != NULL)
        part = source_positive(s, p, "partial_rotary_factor", part);
    if (c->arch->rotary_part == 0.0 && fabs(part - 1.0) > 1e-9) {
        log_error("model: %s: partial_rotary_factor is not supported for %s", s->name,
                  c->arch->name);
        source_fail(s, ERR_UNSUPPORTED);
        return 1.0;
    }
    return part;
}

/* Ministral 3: queries grow with the position, in steps of the length before scaling. */
static void rope_config_read_growth(struct hf_config *c, struct config_source *s,
                                    const struct json *p)
{
    double period;

    if (json_get(p, "llama_4_scaling_beta") == NULL)
        return;
    c->growth.beta = (float)source_positive(s, p, "llama_4_scaling_beta", 0.0);
    period = source_positive(s, p, "original_max_position_embeddings", 0.0);
    if (s->rc == ERR_OK && (period < 1.0 || period > INT32_MAX)) {
        log_error("model: %s: original_max_position_embeddings must be a number of tokens",
                  s->name);
        source_fail(s, ERR_INVALID);
    }
    if (s->rc == ERR_OK)
        c->growth.period = (int)period;
}

/* A value in rope_parameters has precedence over one in the outer object. */
int config_add_rope(struct hf_config *c, int head_dim, struct config_source *s,
                    const struct json *obj, const struct json *parameters)
{
    static const char *const thetas[] = {"rope_theta", "rotary_emb_base", NULL};
    struct rope rope = {
        .head_dim = head_dim, .interleaved = c->arch->interleaved, .factor = 1.0, .scale = 1.0};
    double part = rope_config_rotary_part(c, s, obj, parameters);

    rope.theta = source_positive(s, obj, source_alias(obj, thetas),
                                 c->arch->theta > 0.0 ? c->arch->theta : 10000.0);
    if (parameters != NULL)
        rope.theta = source_positive(s, parameters, "rope_theta", rope.theta);
    /* Rounded down, as transformers does. */
    rope.rotary_dim = (int)(head_dim * part);
    if (part > 1.0 || rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
        log_error("model: %s: partial_rotary_factor must give an even number of 2 to %d elements "
                  "of a head",
                  s->name, head_dim);
        source_fail(s, ERR_INVALID);
        rope.rotary_dim = head_dim;
    }
    if (parameters != NULL) {
        rope_config_read_kind(&rope, c, s, obj, parameters);
        rope_config_read_growth(c, s, parameters);
    }
    must(c->n_ropes < HF_CONFIG_ROPES_MAX);
    c->ropes[c->n_ropes] = rope;
    return c->n_ropes++;
}

/* rotary_dim 0 makes rope_turns() write cosine 1 and sine 0 everywhere. */
int config_add_no_rope(struct hf_config *c)
{
    must(c->n_ropes < HF_CONFIG_ROPES_MAX);
    c->ropes[c->n_ropes] =
        (struct rope){.head_dim = c->head_dim, .theta = 1.0, .factor = 1.0, .scale = 1.0};
    return c->n_ropes++;
}

/* With type NULL, or without an object for the type, the outer object counts for all layers. */
const struct json *config_rope_object(const struct json *obj, const char *type)
{
    const struct json *value = json_get_kind(obj, "rope_parameters", JSON_OBJECT);
    const struct json *own =
        value == NULL || type == NULL ? NULL : json_get_kind(value, type, JSON_OBJECT);

    if (own != NULL)
        return own;
    if (value != NULL)
        return value;
    return json_get_kind(obj, "rope_scaling", JSON_OBJECT);
}

void config_scale_len(struct hf_config *c, const struct json *obj)
{
    const struct json *p = config_rope_object(obj, "full_attention");
    const char *type = json_get_text(p, "rope_type", json_get_text(p, "type", ""));
    const struct json *given = json_get(p, "factor");
    const struct json *original = json_get(p, "original_max_position_embeddings");
    double factor = json_is_number(given) ? json_real(given) : 1.0;
    double len = c->len_max;

    if (strcmp(type, "yarn") == 0 && json_is_number(original))
        len = json_real(original) * factor;
    else if (strcmp(type, "linear") == 0 || strcmp(type, "dynamic") == 0)
        len *= factor;
    if (!(len > c->len_max)) /* also if it is NaN */
        len = c->len_max;
    c->len_scaled = len < HF_CONFIG_LEN_MAX ? (int)len : HF_CONFIG_LEN_MAX;
    if (strcmp(type, "yarn") == 0)
        c->len_max = c->len_scaled;
}
