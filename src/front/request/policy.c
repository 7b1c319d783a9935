/* SPDX-License-Identifier: Apache-2.0
 *
 * Tenant, priority and deadline of a request. Values of headers and body are combined here, after
 * fields.c has read the body. */
#include "front/request/policy.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define POLICY_TIMEOUT_MAX_S 86400.0

/* "acme" stays as it is. Names of 32 bytes and more are cut and end in 8 hexadecimal digits of
 * their hash, so that two long names with the same beginning remain different. */
void policy_tenant(const char *name, char out[WIRE_TENANT_BYTES])
{
    size_t len = strlen(name);
    uint64_t h = hash_xxh3(name, len);
    char *end = out + WIRE_TENANT_BYTES - 1 - 2 * sizeof(uint32_t);

    memset(out, 0, WIRE_TENANT_BYTES);
    memcpy(out, name, len < WIRE_TENANT_BYTES ? len : WIRE_TENANT_BYTES - 1);
    if (len >= WIRE_TENANT_BYTES)
        hash_hex((const uint8_t *)&h, sizeof(uint32_t), end);
}

/* The salt becomes a hash of tenant and salt. Two tenants that send the same cache_salt thus have
 * different namespaces, and no client can compute another tenant's salt. */
void policy_isolate(struct wire_request *r)
{
    uint8_t text[WIRE_TENANT_BYTES + WIRE_SALT_BYTES];
    struct hash digest;

    if (r->tenant[0] == '\0')
        return;
    memcpy(text, r->tenant, WIRE_TENANT_BYTES);
    memcpy(text + WIRE_TENANT_BYTES, r->salt, WIRE_SALT_BYTES);
    digest = hash_sha256("tenant", sizeof "tenant", text, sizeof text);
    memcpy(r->salt, &digest, WIRE_SALT_BYTES);
}

/* Headers are texts; the same ranges apply as for the fields of the body. */
static bool policy_priority(const char *text, int32_t *priority)
{
    char *end = NULL;
    long v;

    errno = 0;
    v = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || v < INT32_MIN || v > INT32_MAX)
        return false;
    *priority = (int32_t)v;
    return true;
}

/* A timeout in the header can only shorten that of the body: the shorter one counts. */
static bool policy_timeout(const char *text, uint64_t *timeout_us)
{
    char *end = NULL;
    double seconds = strtod(text, &end);
    uint64_t us;

    if (end == text || *end != '\0' || !isfinite(seconds) || seconds <= 0.0 ||
        seconds > POLICY_TIMEOUT_MAX_S)
        return false;
    us = 1 + (uint64_t)(seconds * 1e6);
    if (*timeout_us == 0 || us < *timeout_us)
        *timeout_us = us;
    return true;
}

/* The header's priority replaces the body's, and is then limited by client_priority_min: a smaller
 * number is served earlier, and clients must not overtake others without permission. */
bool policy_read(const struct settings *s, struct exchange *x, struct wire_request *r)
{
    const char *priority = fcgi_param(x->fcgi, "HTTP_X_VLLM_PRIORITY");
    const char *timeout = fcgi_param(x->fcgi, "HTTP_X_REQUEST_TIMEOUT");

    policy_tenant(fcgi_param(x->fcgi, "QUIRE_TENANT"), r->tenant);
    if (priority[0] != '\0' && !policy_priority(priority, &r->priority)) {
        exchange_reply_error(x, ERR_INVALID, "X-Vllm-Priority must be a whole number", "priority",
                             0);
        return false;
    }
    if (timeout[0] != '\0' && !policy_timeout(timeout, &x->timeout_us)) {
        exchange_reply_error(x, ERR_INVALID,
                             "X-Request-Timeout must be a number of seconds above 0 and at most "
                             "86400",
                             "timeout_s", 0);
        return false;
    }
    if (r->priority < s->client_priority_min)
        r->priority = s->client_priority_min;
    if (s->cache_per_key)
        policy_isolate(r);
    if (x->timeout_us == 0)
        r->deadline_us = 0;
    else
        r->deadline_us = x->arrival_us + x->timeout_us;
    return true;
}
