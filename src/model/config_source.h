/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading fields of config.json with bounds: shared by hf_config.c, rope_config.c and family.c.
 *
 * An error is logged with file and field and kept in rc. After an error, calls still return a value
 * in range, so a caller may read many fields and check rc once. */
#ifndef QUIRE_MODEL_CONFIG_SOURCE_H
#define QUIRE_MODEL_CONFIG_SOURCE_H

#include "base/json.h"
#include "model/hf_config.h"

struct config_source {
    const char *name; /* of the file, for the log */
    int rc;           /* the first error */
};

void source_fail(struct config_source *s, int rc);

/* A whole number from low to high. `preset` is returned where the field is missing or null; preset
 * 0 means that the field is required. */
int source_whole(struct config_source *s, const struct json *obj, const char *field, int preset,
                 int low, int high);

/* A positive number. `preset` is returned where the field is missing or null; preset 0 means that
 * the field is required. */
double source_positive(struct config_source *s, const struct json *obj, const char *field,
                       double preset);

bool source_flag(struct config_source *s, const struct json *obj, const char *field, bool preset);

/* The first of these names (NULL-terminated) whose value is present and not null; else the first
 * name. */
const char *source_alias(const struct json *obj, const char *const *names);

/* rope_config.c. Add a rope for heads of head_dim elements to the config, read from an object like
 * rope_parameters (NULL: plain rope) and the older fields in obj. Returns its index in c->ropes. */
int config_add_rope(struct hf_config *c, int head_dim, struct config_source *s,
                    const struct json *obj, const struct json *parameters);

/* Lengths by scaled positions: yarn's is the model's (len_max), as in vLLM; linear and dynamic
 * scaling allow a longer max_model_len (len_scaled). len_max is that of the file before. */
void config_scale_len(struct hf_config *c, const struct json *obj);

/* Add a rope that rotates nothing, for layers without positions. Returns its index. */
int config_add_no_rope(struct hf_config *c);

/* The JSON object that holds the rotary parameters: rope_parameters[type] where it has one object
 * per type of layer, else rope_parameters, else the older rope_scaling; NULL without any. type may
 * be NULL. */
const struct json *config_rope_object(const struct json *obj, const char *type);

/* overrides.c. Append config.json (text) with the members that the setting hf_overrides (a JSON
 * object) replaces. ERR_INVALID, ERR_SYNTAX, ERR_LIMIT: overrides is no object; ERR_NO_MEMORY; all
 * logged. */
int config_override(struct buf *out, const char *text, size_t len,
                    const char *overrides) ERR_CHECKED;

#endif
