/* Fields of config.json, read with bounds: what config.c, rope_config.c and family.c share.
 *
 * An error is logged with file and field and kept in rc; later calls still return a value in
 * range, so a caller looks once. */
#ifndef QUIRE_MODEL_CONFIG_SOURCE_H
#define QUIRE_MODEL_CONFIG_SOURCE_H

#include "base/json.h"
#include "model/hf_config.h"

struct config_source {
    const char *name; /* of the file, for the log */
    int rc;           /* the first error */
};

void source_fail(struct config_source *s, int rc);

/* A whole number from low to high; preset where it is missing or null, 0 meaning "required". */
int source_whole(struct config_source *s, const struct json *obj, const char *field, int preset,
                 int low, int high);

/* A positive number; preset where it is missing or null, 0 meaning "required". */
double source_positive(struct config_source *s, const struct json *obj, const char *field,
                       double preset);

bool source_flag(struct config_source *s, const struct json *obj, const char *field, bool preset);

/* The first of these names that the object has with another value than null; else the first. */
const char *source_alias(const struct json *obj, const char *const *names);

/* rope_config.c: the forms of rotary positions in config.json. Adds a rope to the config, from an
 * object like rope_parameters (NULL: the plain form) and the older fields around it in obj.
 * Returns its index. */
int config_add_rope(struct hf_config *c, struct config_source *s, const struct json *obj,
                    const struct json *parameters);

/* A rope that rotates nothing, for layers without positions. Returns its index. */
int config_add_no_rope(struct hf_config *c);

/* The object with rotary positions of all layers, of one type of layer (the new spelling may have
 * one for each) or of the older rope_scaling; NULL without. type may be NULL. */
const struct json *config_rope_object(const struct json *obj, const char *type);

#endif
