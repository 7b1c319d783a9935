/* SPDX-License-Identifier: Apache-2.0
 *
 * vLLM's POST /v1/load_lora_adapter and /v1/unload_lora_adapter: commands to all engines of a
 * model, which read the folder and answer with a reason if they cannot use it (engine/lora.h).
 *
 *   {"lora_name": "sql", "lora_path": "/var/lib/quire/lora/sql"}
 *   {"lora_name": "sql"} */
#include <stdio.h>
#include <string.h>

#include "front/api/api.h"
#include "front/api/cache.h"

#define LORA_WHY_CAP 512

/* A field's text without control characters, with its NUL in cap bytes. False after an error
 * answer. */
static bool lora_field(struct exchange *x, const struct json *body, const char *name, char *out,
                       size_t cap)
{
    const char *text = json_get_text(body, name, NULL);
    char why[160];

    if (text == NULL || text[0] == '\0') {
        (void)snprintf(why, sizeof why, "'%s' must be provided, as a string that is not empty",
                       name);
        exchange_reply_error(x, ERR_INVALID, why, name, 0);
        return false;
    }
    for (const char *p = text; *p != '\0'; p++) {
        if ((unsigned char)*p >= ' ' && *p != 0x7f && (size_t)(p - text) + 1 < cap)
            continue;
        (void)snprintf(why, sizeof why, "'%s' has control characters or more than %zu bytes", name,
                       cap - 1);
        exchange_reply_error(x, ERR_INVALID, why, name, 0);
        return false;
    }
    (void)snprintf(out, cap, "%s", text);
    return true;
}

void api_load_lora(struct front *f, struct exchange *x, const struct json *body)
{
    struct wire_request request = {.task = WIRE_ADAPTER, .change = {.action = WIRE_LOAD_ADAPTER}};

    (void)f;
    if (lora_field(x, body, "lora_name", request.change.name, sizeof request.change.name) &&
        lora_field(x, body, "lora_path", request.change.path, sizeof request.change.path))
        cache_ask_alone(x, &request, false);
}

void api_unload_lora(struct front *f, struct exchange *x, const struct json *body)
{
    struct wire_request request = {.task = WIRE_ADAPTER, .change = {.action = WIRE_UNLOAD_ADAPTER}};

    (void)f;
    if (lora_field(x, body, "lora_name", request.change.name, sizeof request.change.name))
        cache_ask_alone(x, &request, false);
}

/* The error of an engine, with its sentence; ERR_OK: it has done it. */
static int lora_error(const struct gen *g, char *why)
{
    const struct buf *facts = &g->facts;
    struct wire_out record;
    size_t len = 0;
    int rc = ERR_OK;

    for (size_t at = 0; at + sizeof record <= facts->len; at += sizeof record) {
        memcpy(&record, facts->bytes + at, sizeof record);
        if (record.kind == WIRE_FACT && record.value == WIRE_FACT_FAILED)
            rc = -(int)record.amount;
        if (record.kind != WIRE_TEXT || record.value < 1 || record.value > 8 ||
            len + 8 >= LORA_WHY_CAP)
            continue;
        memcpy(why + len, record.text, (size_t)record.value);
        len += (size_t)record.value;
    }
    why[len] = '\0';
    return rc;
}

void lora_answer(struct exchange *x)
{
    const struct wire_adapter *what = &x->gens[0].request.change;
    char why[LORA_WHY_CAP], text[WIRE_ADAPTER_NAME + 64];

    for (int i = 0; i < x->n_gens; i++) {
        int rc = lora_error(&x->gens[i], why);

        if (rc == ERR_OK)
            continue;
        /* A folder that is damaged is the operator's mistake. */
        exchange_reply_error(
            x, rc == ERR_CORRUPT || rc == ERR_IO ? ERR_INVALID : rc, why,
            what->action == WIRE_LOAD_ADAPTER && rc != ERR_INVALID ? "lora_path" : NULL, 0);
        return;
    }
    (void)snprintf(text, sizeof text, "Success: LoRA adapter '%s' %s successfully.", what->name,
                   what->action == WIRE_LOAD_ADAPTER ? "added" : "removed");
    exchange_reply(x, 200, "text/plain; charset=utf-8", text, strlen(text));
}
