/* SPDX-License-Identifier: Apache-2.0 */
#include "front/presets.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "text/file.h"

#define PRESETS_FILE      "generation_config.json"
#define PRESETS_BYTES_MAX ((size_t)1 << 20)

struct presets_reader {
    const char *source; /* for reasons */
    const struct json *config;
    int rc;
    char *why;
    size_t why_cap;
};

void presets_init(struct presets *p)
{
    *p = (struct presets){.max_logprobs = 20,
                          .max_stops = 32,
                          .temperature = 1.0f,
                          .top_p = 1.0f,
                          .repetition = 1.0f};
}

/* A number in its range; preset when it is absent. */
static double presets_number(struct presets_reader *r, const char *name, double low, double high,
                             double preset)
{
    const struct json *v = json_get(r->config, name);
    double d;

    if (v == NULL || v->kind == JSON_NULL)
        return preset;
    d = json_is_number(v) ? json_real(v) : low - 1.0;
    if (d >= low && d <= high)
        return d;
    (void)snprintf(r->why, r->why_cap, "%s: %s must be a number from %g to %g", r->source, name,
                   low, high);
    r->rc = ERR_INVALID;
    return preset;
}

static int presets_take(struct presets *p, struct presets_reader *r)
{
    struct presets n = *p;
    double top_k;

    n.temperature = (float)presets_number(r, "temperature", 0, 100, p->temperature);
    n.top_p = (float)presets_number(r, "top_p", 1e-30, 1, p->top_p);
    n.min_p = (float)presets_number(r, "min_p", 0, 1, p->min_p);
    n.repetition = (float)presets_number(r, "repetition_penalty", 1e-30, 100, p->repetition);
    top_k = presets_number(r, "top_k", -1, INT_MAX, p->top_k);
    n.top_k = top_k < 0 ? 0 : (int32_t)top_k;
    n.max_tokens = (uint32_t)presets_number(r, "max_new_tokens", 1, INT_MAX, p->max_tokens);
    if (r->rc == ERR_OK)
        *p = n;
    return r->rc;
}

static int presets_parse(struct presets *p, const char *source, const char *text, size_t len,
                         char *why, size_t why_cap)
{
    struct presets_reader r = {.source = source, .rc = ERR_OK, .why = why, .why_cap = why_cap};
    struct arena arena = {0};
    char reason[200] = "";
    int rc = json_parse(&r.config, &arena, text, len, reason, sizeof reason);

    if (rc == ERR_OK && r.config->kind != JSON_OBJECT) {
        (void)snprintf(reason, sizeof reason, "it must be a JSON object");
        rc = ERR_INVALID;
    }
    if (rc != ERR_OK)
        (void)snprintf(why, why_cap, "%s: %s", source, reason);
    else
        rc = presets_take(p, &r);
    arena_reset(&arena);
    return rc;
}

int presets_override(struct presets *p, const char *text, char *why, size_t why_cap)
{
    if (text[0] == '\0')
        return ERR_OK;
    return presets_parse(p, "override_generation_config", text, strlen(text), why, why_cap);
}

int presets_read(struct presets *p, const char *dir, char *why, size_t why_cap)
{
    struct buf text = {0};
    int rc = file_read(&text, dir, PRESETS_FILE, PRESETS_BYTES_MAX, why, why_cap);

    if (rc == ERR_NOT_FOUND) {
        buf_fini(&text);
        return ERR_OK;
    }
    if (rc == ERR_OK)
        rc =
            presets_parse(p, PRESETS_FILE, text.len == 0 ? "" : text.bytes, text.len, why, why_cap);
    buf_fini(&text);
    return rc;
}
