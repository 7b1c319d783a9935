/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading cache_retention and cache_control. Errors name the exact member, such as
 * 'messages.0.content.2.cache_control.ttl', because clients generate these objects.
 *
 *   "cache_retention": {"priority": 80, "seconds": 3600, "tokens": 1000}
 *   "cache_control": {"type": "ephemeral", "ttl": "1h"}
 *
 * The first is quire's own field, of a request. The second is Anthropic's mark, on parts of
 * messages. */
#include "front/request/retention.h"

#include <stdio.h>
#include <string.h>

#include "base/must.h"

struct retention_member {
    const char *name;
    int64_t low, high;
};

/* The order is that of `values` in retention_read(). */
static const struct retention_member retention_members[] = {
    {"priority", 0, RETENTION_PRIORITY_MAX},
    {"seconds", 1, RETENTION_SECONDS_MAX},
    {"tokens", 1, INT32_MAX},
};

/* Read one member of cache_retention to values, at its row's index. A name without a row is an
 * error, because a wrong name would otherwise lose the retention without a sign. */
static int retention_member(const struct json *m, int64_t values[3], char *why, size_t why_cap)
{
    for (size_t i = 0; i < 3; i++) {
        const struct retention_member *row = &retention_members[i];

        if (strcmp(m->key, row->name) != 0)
            continue;
        if (m->kind == JSON_INT && m->whole >= row->low && m->whole <= row->high) {
            values[i] = m->whole;
            return ERR_OK;
        }
        (void)snprintf(why, why_cap,
                       "'cache_retention.%s' must be a whole number from %lld to %lld", row->name,
                       (long long)row->low, (long long)row->high);
        return ERR_INVALID;
    }
    (void)snprintf(why, why_cap, "'cache_retention.%.64s' is not known", m->key);
    return ERR_INVALID;
}

/* Members that are null count as missing. Only the priority is required. */
int retention_read(struct wire_generate *r, const struct json *v, char *why, size_t why_cap)
{
    int64_t values[3] = {-1, 0, 0}; /* in the order of retention_members */

    if (v->kind != JSON_OBJECT) {
        (void)snprintf(why, why_cap, "'cache_retention' must be an object, not %s",
                       json_kind_name(v->kind));
        return ERR_INVALID;
    }
    for (uint32_t i = 0; i < v->n; i++) {
        int rc = ERR_OK;

        if (v->items[i].kind != JSON_NULL)
            rc = retention_member(&v->items[i], values, why, why_cap);
        if (rc != ERR_OK)
            return rc;
    }
    if (values[0] < 0) {
        (void)snprintf(why, why_cap, "'cache_retention.priority' is required");
        return ERR_INVALID;
    }
    /* Priorities begin at 0, and 0 here means that none was asked for. */
    r->retain = 1 + (uint32_t)values[0];
    r->retain_s = (uint32_t)values[1];
    r->retain_tokens = (uint32_t)values[2];
    return ERR_OK;
}

/* A mark on an object of the request: {"cache_control": {"type": "ephemeral", "ttl": "1h"}}. */
int retention_read_mark(const struct json *object, const char *where, uint32_t *seconds, char *why,
                        size_t why_cap)
{
    const struct json *mark = json_get(object, "cache_control");
    const struct json *type = json_get(mark, "type");
    const struct json *ttl = json_get(mark, "ttl");
    uint32_t slot = 300;

    if (mark == NULL || mark->kind == JSON_NULL)
        return ERR_OK;
    if (mark->kind != JSON_OBJECT) {
        (void)snprintf(why, why_cap, "'%s.cache_control' must be an object, not %s", where,
                       json_kind_name(mark->kind));
        return ERR_INVALID;
    }
    if (type == NULL || type->kind == JSON_NULL)
        return ERR_OK; /* a mark without a type has no effect */
    if (!json_is_text(type, "ephemeral")) {
        (void)snprintf(why, why_cap, "'%s.cache_control.type' must be ephemeral", where);
        return ERR_INVALID;
    }
    /* Anthropic's two lifetimes; five minutes is the default. */
    if (json_is_text(ttl, "1h")) {
        slot = 3600;
    } else if (ttl != NULL && ttl->kind != JSON_NULL && !json_is_text(ttl, "5m")) {
        (void)snprintf(why, why_cap, "'%s.cache_control.ttl' must be 5m or 1h", where);
        return ERR_INVALID;
    }
    /* The prompt is retained as a whole, so the longest of its marks counts. */
    if (slot > *seconds)
        *seconds = slot;
    return ERR_OK;
}

/* The marks on the parts of all messages. */
int retention_read_marks(const struct json *messages, uint32_t *seconds, char *why, size_t why_cap)
{
    int rc = ERR_OK;

    for (uint32_t i = 0; messages->kind == JSON_LIST && i < messages->n; i++) {
        const struct json *parts = json_get_kind(&messages->items[i], "content", JSON_LIST);

        /* Only parts may have a mark; a content that is a plain text has no place for one. */
        for (uint32_t k = 0; parts != NULL && k < parts->n && rc == ERR_OK; k++) {
            char where[64];

            (void)snprintf(where, sizeof where, "messages.%u.content.%u", i, k);
            rc = retention_read_mark(&parts->items[k], where, seconds, why, why_cap);
        }
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* cache_retention takes precedence over marks, since it says more. */
void retention_mark(struct wire_generate *r, uint32_t seconds)
{
    if (seconds == 0 || r->retain != 0)
        return;
    r->retain = 1 + RETENTION_MARK;
    r->retain_s = seconds;
}

/* retain is the priority plus 1; 0: none was asked for. */
void retention_limit(struct wire_generate *r, int max)
{
    must(max >= 0 && max <= RETENTION_PRIORITY_MAX);
    if (max == 0)
        r->retain = 0;
    else if (r->retain > 1 + (uint32_t)max)
        r->retain = 1 + (uint32_t)max;
}
