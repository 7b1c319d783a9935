/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of a GGUF file, read and written into the text of a config.json: functions that all
 * files with gguf_parts.h share. */
#include "model/gguf_parts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"

void gguf_config_refuse(struct gguf_reading *r, int rc, const char *format, ...)
{
    va_list args;

    if (r->rc != ERR_OK)
        return;
    va_start(args, format);
    (void)vsnprintf(r->why, GGUF_WHY_CAP, format, args); /* cut is fine */
    va_end(args);
    r->rc = rc;
}

/* --- settings of the family ----------------------------------------------------------------- */

const struct gguf_value *gguf_config_find(const struct gguf_reading *r, const char *key)
{
    char name[128];

    (void)snprintf(name, sizeof name, "%s.%s", r->family->name, key); /* keys are short */
    return gguf_find(r->g, name);
}

bool gguf_config_number(struct gguf_reading *r, const char *key, double *out)
{
    const struct gguf_value *value = gguf_config_find(r, key);
    double number = 0.0, other;

    if (value == NULL)
        return false;
    if (!gguf_item(value, 0, &number) || !isfinite(number))
        gguf_config_refuse(r, ERR_INVALID, "%s.%s must be a number", r->family->name, key);
    for (uint64_t i = 1; i < value->n && r->rc == ERR_OK; i++) {
        if (!gguf_item(value, i, &other) || other != number)
            gguf_config_refuse(r, ERR_UNSUPPORTED,
                               "%s.%s differs between layers, which is not supported",
                               r->family->name, key);
    }
    *out = number;
    return r->rc == ERR_OK;
}

double gguf_config_number_or(struct gguf_reading *r, const char *key, double preset)
{
    double number;

    if (gguf_config_number(r, key, &number))
        return number;
    return preset;
}

double gguf_config_layer_number_or(struct gguf_reading *r, const char *key, int layer,
                                   double preset)
{
    const struct gguf_value *value = gguf_config_find(r, key);
    double number = preset;

    if (value == NULL)
        return preset;
    if (!gguf_item(value, value->is_list ? (uint64_t)layer : 0, &number) || !isfinite(number))
        gguf_config_refuse(r, ERR_INVALID, "%s.%s must be a number for each layer", r->family->name,
                           key);
    return number;
}

int gguf_config_layers(struct gguf_reading *r)
{
    double n = gguf_config_number_or(r, "block_count", 0.0) -
               gguf_config_number_or(r, "nextn_predict_layers", 0.0);

    if (n >= 1.0 && n <= HF_CONFIG_LAYERS_MAX && n == floor(n))
        return (int)n;
    gguf_config_refuse(r, ERR_INVALID, "%s.block_count must be 1 to %d", r->family->name,
                       HF_CONFIG_LAYERS_MAX);
    return 0;
}

bool gguf_config_flag_or(struct gguf_reading *r, const char *key, bool preset)
{
    const struct gguf_value *value = gguf_config_find(r, key);

    if (value == NULL)
        return preset;
    if (value->kind == GGUF_FLAG && !value->is_list)
        return value->bytes[0] != 0;
    gguf_config_refuse(r, ERR_INVALID, "%s.%s must be a flag", r->family->name, key);
    return preset;
}

bool gguf_config_is_own(const struct gguf_reading *r, const char *key)
{
    const char *const *at = r->family->own;

    while (at != NULL && *at != NULL && strcmp(*at, key) != 0)
        at++;
    return at != NULL && *at != NULL;
}

bool gguf_config_has_tensor(const struct gguf_reading *r, const char *name)
{
    return gguf_find_tensor(r->g, name) != NULL;
}

/* --- the text ------------------------------------------------------------------------------- */

void gguf_config_put(struct gguf_reading *r, const char *field)
{
    buf_printf(&r->text, ",\"%s\":", field);
}

/* Whole numbers without a point, because the reader refuses them otherwise. */
void gguf_config_put_number(struct gguf_reading *r, const char *field, double number)
{
    gguf_config_put(r, field);
    if (number >= -1e15 && number <= 1e15 && number == (double)(int64_t)number)
        buf_printf(&r->text, "%lld", (long long)number);
    else
        json_write_real(&r->text, number);
}

void gguf_config_put_flag(struct gguf_reading *r, const char *field, bool flag)
{
    gguf_config_put(r, field);
    buf_add_text(&r->text, json_flag_text(flag));
}
