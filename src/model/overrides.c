/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_overrides: members that replace those of config.json, with vLLM's rules. The result is a text
 * again, so that it is read with the same bounds, and its digest keeps pages of another
 * configuration apart. */
#include <string.h>

#include "base/log.h"
#include "base/pooling.h"
#include "model/config_source.h"

#define OVERRIDES_DEPTH_MAX 4 /* text_config within thinker_config, for example */

static bool overrides_is_config(const char *name)
{
    static const char end[] = "_config";
    size_t len = strlen(name);

    return len >= sizeof end && strcmp(name + len - (sizeof end - 1), end) == 0;
}

/* Older names of rotary parameters, which newer files keep in rope_parameters: there they are added
 * to, so that the rest of them stays. NULL: base has no rope_parameters, or they are replaced. */
static const struct json *overrides_ropes(const struct json *base, const struct json *over)
{
    if (json_get(over, "rope_parameters") != NULL ||
        (json_get_kind(over, "rope_scaling", JSON_OBJECT) == NULL &&
         json_get(over, "rope_theta") == NULL))
        return NULL;
    return json_get_kind(base, "rope_parameters", JSON_OBJECT);
}

/* Copy the members of base that over does not have, then those of over. */
static void overrides_copy(struct json_made *out, const struct json *base, const struct json *over)
{
    for (uint32_t i = 0; base != NULL && i < base->n; i++) {
        if (json_get(over, base->items[i].key) == NULL)
            json_put(out, base->items[i].key, &base->items[i]);
    }
    for (uint32_t i = 0; over != NULL && i < over->n; i++)
        json_put(out, over->items[i].key, &over->items[i]);
}

static void overrides_put_ropes(struct json_made *out, const struct json *ropes,
                                const struct json *over)
{
    struct json_made made = {.arena = out->arena};
    const struct json *theta = json_get(over, "rope_theta");

    overrides_copy(&made, ropes, json_get_kind(over, "rope_scaling", JSON_OBJECT));
    for (uint32_t i = 0; theta != NULL && i < made.n; i++) {
        if (strcmp(made.items[i].key, "rope_theta") == 0) {
            const char *key = made.items[i].key;

            made.items[i] = *theta;
            made.items[i].key = key;
            theta = NULL;
        }
    }
    if (theta != NULL)
        json_put(&made, "rope_theta", theta);
    out->failed = out->failed || made.failed;
    json_put_made(out, "rope_parameters", JSON_OBJECT, &made);
}

static void overrides_merge(struct json_made *out, const struct json *base, const struct json *over,
                            int depth);

/* A member of over, or of base where over has none. An object named ..._config is the configuration
 * of a part, of which single members are replaced. */
static void overrides_put(struct json_made *out, const char *key, const struct json *base,
                          const struct json *over, int depth)
{
    struct json_made made = {.arena = out->arena};

    if (base == NULL || over == NULL || base->kind != JSON_OBJECT || over->kind != JSON_OBJECT ||
        !overrides_is_config(key) || depth == OVERRIDES_DEPTH_MAX) {
        json_put(out, key, over != NULL ? over : base);
        return;
    }
    overrides_merge(&made, base, over, depth + 1);
    out->failed = out->failed || made.failed;
    json_put_made(out, key, JSON_OBJECT, &made);
}

static void overrides_merge(struct json_made *out, const struct json *base, const struct json *over,
                            int depth)
{
    const struct json *ropes = overrides_ropes(base, over);

    for (uint32_t i = 0; i < base->n; i++) {
        const char *key = base->items[i].key;
        const struct json *value = json_get(over, key);

        if (depth == 0 && pooling_overrides(key))
            value = NULL;
        if (ropes != NULL && &base->items[i] == ropes)
            overrides_put_ropes(out, ropes, over);
        else
            overrides_put(out, key, &base->items[i], value, depth);
    }
    for (uint32_t i = 0; i < over->n; i++) {
        const char *key = over->items[i].key;
        bool is_rope = strcmp(key, "rope_scaling") == 0 || strcmp(key, "rope_theta") == 0;

        if (json_get(base, key) == NULL && !(depth == 0 && pooling_overrides(key)) &&
            !(ropes != NULL && is_rope))
            json_put(out, key, &over->items[i]);
    }
}

/* The members that are replaced, for the log: a typing error would be a member that is new. */
static void overrides_log(const struct json *base, const struct json *over)
{
    for (uint32_t i = 0; i < over->n; i++) {
        if (!pooling_overrides(over->items[i].key))
            log_info("model: hf_overrides %s %.60s of config.json",
                     json_get(base, over->items[i].key) != NULL ? "replaces" : "adds",
                     over->items[i].key);
    }
}

int config_override(struct buf *out, const char *text, size_t len, const char *overrides)
{
    struct arena arena = {0};
    struct json_made made = {.arena = &arena};
    const struct json *base = NULL, *over = NULL;
    char why[200] = "it must be a JSON object";
    int rc = json_parse(&over, &arena, overrides, strlen(overrides), why, sizeof why);

    if (rc == ERR_OK && over->kind != JSON_OBJECT)
        rc = ERR_INVALID;
    if (rc != ERR_OK)
        log_error("hf_overrides: %s", why);
    /* A file that is not an object is reported by its reader. */
    if (rc == ERR_OK && json_parse(&base, &arena, text, len, NULL, 0) == ERR_OK &&
        base->kind == JSON_OBJECT) {
        struct json merged;

        overrides_merge(&made, base, over, 0);
        merged = json_made(&made, JSON_OBJECT);
        if (!made.failed)
            json_write(out, &merged, JSON_EXACT);
        overrides_log(base, over);
    } else if (rc == ERR_OK) {
        buf_add(out, text, len);
    }
    if (rc == ERR_OK && (made.failed || out->failed)) {
        log_error("hf_overrides: out of memory");
        rc = ERR_NO_MEMORY;
    }
    arena_reset(&arena);
    return rc;
}
