/* SPDX-License-Identifier: Apache-2.0
 *
 * Default values of sampling fields. vLLM reads them from the model folder's
 * generation_config.json; the same members are read here, so that a model answers alike on both
 * servers.
 *
 *   vLLM's values < generation_config.json < override_generation_config < the request */
#include "front/request/defaults.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "ipc/sampling.h"
#include "text/file.h"

#define DEFAULTS_FILE      "generation_config.json"
#define DEFAULTS_BYTES_MAX ((size_t)1 << 20)

/* The state of reading one source. */
struct defaults_reader {
    const char *source; /* name of the file or setting, for error texts */
    const struct json *config;
    int rc;
    char *why;
    size_t why_cap;
};

/* The values without any file: those of vLLM. */
void defaults_init(struct defaults *p)
{
    *p = (struct defaults){.max_logprobs = 20, .max_stops = 32, .sampling = sampling_presets()};
}

/* A number in its range; fallback when it is absent or null. An error is noted in r and ends the
 * reading later, so that the caller can read all members in a row. */
static double defaults_number(struct defaults_reader *r, const char *name,
                              const struct range *range, double fallback)
{
    const struct json *value = json_get(r->config, name);
    double number;

    if (value == NULL || value->kind == JSON_NULL)
        return fallback;
    number = range->low - 1.0; /* outside the range */
    if (json_is_number(value))
        number = json_real(value);
    if (range_has(range, number))
        return number;
    (void)snprintf(r->why, r->why_cap, "%s: %s must be a number %s %g %s %g", r->source, name,
                   range->low_open ? "above" : "from", range->low,
                   range->low_open ? "and at most" : "to", range->high);
    r->rc = ERR_INVALID;
    return fallback;
}

/* Read one parameter of sampling, by its name in the table of sampling.def. */
static void defaults_sampling(struct defaults_reader *r, const char *name, struct sampling *s)
{
    const struct sampling_param *param = sampling_find(name);
    struct range range = param->range;
    double number;

    if (param->is_count)
        range.low -= 1.0; /* vLLM also writes "off" as -1 */
    number = defaults_number(r, name, &range, sampling_get(s, param));
    sampling_set(s, param, param->is_count && number < 0.0 ? 0.0 : number);
}

/* Read all members into a copy, which replaces *p only if all are good. */
static int defaults_take(struct defaults *p, struct defaults_reader *r)
{
    static const char *const names[] = {"temperature", "top_p", "min_p", "repetition_penalty",
                                        "top_k"};
    static const struct range tokens = RANGE_FROM(1, INT_MAX);
    struct defaults defaults = *p;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        defaults_sampling(r, names[i], &defaults.sampling);
    defaults.max_tokens = (uint32_t)defaults_number(r, "max_new_tokens", &tokens, p->max_tokens);
    if (r->rc == ERR_OK)
        *p = defaults;
    return r->rc;
}

/* Parse the text of a source and take its members. */
static int defaults_parse(struct defaults *p, const char *source, const char *text, size_t len,
                          char *why, size_t why_cap)
{
    struct defaults_reader reader = {
        .source = source, .rc = ERR_OK, .why = why, .why_cap = why_cap};
    struct arena arena = {0};
    char reason[200] = "";
    int rc = json_parse(&reader.config, &arena, text, len, reason, sizeof reason);

    if (rc == ERR_OK && reader.config->kind != JSON_OBJECT) {
        (void)snprintf(reason, sizeof reason, "it must be a JSON object");
        rc = ERR_INVALID;
    }
    if (rc != ERR_OK)
        (void)snprintf(why, why_cap, "%s: %s", source, reason);
    else
        rc = defaults_take(p, &reader);
    arena_reset(&arena);
    return rc;
}

/* The setting override_generation_config, which takes precedence because it is read later. */
int defaults_override(struct defaults *p, const char *text, char *why, size_t why_cap)
{
    if (text[0] == '\0')
        return ERR_OK;
    return defaults_parse(p, "override_generation_config", text, strlen(text), why, why_cap);
}

/* The model folder's file. A model without one has no defaults of its own. */
int defaults_read(struct defaults *p, const char *dir, char *why, size_t why_cap)
{
    struct buf text = {0};
    int rc = file_read(&text, dir, DEFAULTS_FILE, DEFAULTS_BYTES_MAX, why, why_cap);

    if (rc == ERR_NOT_FOUND) {
        buf_fini(&text);
        return ERR_OK;
    }
    if (rc == ERR_OK)
        rc = defaults_parse(p, DEFAULTS_FILE, buf_text(&text), text.len, why, why_cap);
    buf_fini(&text);
    return rc;
}
