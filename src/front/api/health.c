/* SPDX-License-Identifier: Apache-2.0
 *
 * The health checks. A shallow one reads the engine's times in the lane; a deep one sends a
 * generation of one token through the engine. The result of the last deep one is kept in struct
 * front, where all readers see it.
 *
 *   no engine, or all drain                      503
 *   its loop has not run for health_stall_s      503
 *   it has ended no step for health_stall_s      503
 *   deep, and no token has come                  503
 *   otherwise, if that is so of one engine       200 */
#include "front/api/health.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/must.h"
#include "front/api/api.h"

#define HEALTH_PROBE_EVERY_US 1000000u
#define HEALTH_PROMPT         0 /* any token id will do; every vocabulary has this one */

/* Is this engine well? ERR_OK, or an error with the reason in why. */
static int health_judge(const struct front *f, const struct link_state *s, char *why, size_t cap)
{
    uint64_t stall_us = (uint64_t)f->settings.health_stall_s * 1000000u;

    why[0] = '\0';
    if (!s->attached)
        return ERR_ENGINE_GONE;
    if (s->draining)
        return ERR_DRAINING;
    /* The loop may run while its steps do not end; the three cases have different remedies. */
    if (s->heartbeat_age_us > stall_us)
        (void)snprintf(why, cap, "the engine's loop has not run for %.1f s",
                       (double)s->heartbeat_age_us * 1e-6);
    else if (s->progress_age_us > stall_us && s->waking)
        (void)snprintf(why, cap, "the engine has been waiting for device memory for %.1f s",
                       (double)s->progress_age_us * 1e-6);
    else if (s->progress_age_us > stall_us)
        (void)snprintf(why, cap, "the engine has completed no step for %.1f s",
                       (double)s->progress_age_us * 1e-6);
    else
        return ERR_OK;
    (void)snprintf(why + strlen(why), cap - strlen(why), "; %u requests running, %u waiting",
                   s->n_running, s->n_waiting);
    return ERR_ENGINE_GONE;
}

/* Look at all engines. ERR_OK if one is well, with the number of those in *n_well and the state of
 * all in *state; or the error and the reason of the last that is there. */
static int health_look(struct front *f, char *why, size_t cap, struct link_state *state,
                       int *n_well)
{
    int rc = ERR_ENGINE_GONE;

    why[0] = '\0';
    *n_well = 0;
    engines_read_state(&f->served[0].engines, state, clock_us());
    for (int i = 0; i < f->n_links; i++) {
        struct link_state one;
        char reason[160];
        int got;

        link_read_state(f->links[i], &one, clock_us());
        got = health_judge(f, &one, reason, sizeof reason);
        *n_well += got == ERR_OK;
        if (one.attached && got != ERR_OK) {
            rc = got;
            (void)snprintf(why, cap, "%s", reason);
        }
    }
    if (*n_well > 0)
        return ERR_OK;
    /* Engines that are started on demand need not be there. */
    if (f->served[0].on_demand && why[0] == '\0')
        return ERR_OK;
    return rc;
}

/* The answer of a healthy server. */
static void health_say(const struct front *f, struct exchange *x, const struct link_state *s,
                       int n_well)
{
    char text[64];
    int n_models = 0;

    for (int i = 0; i < f->n_served; i++)
        n_models += served_is_here(&f->served[i]);
    if (x->served->on_demand)
        (void)snprintf(text, sizeof text, "{\"models\":%d,\"running\":%d}", n_models, n_well);
    else if (s->asleep)
        (void)snprintf(text, sizeof text, "{\"state\":\"asleep\"}");
    else if (s->waking)
        (void)snprintf(text, sizeof text, "{\"state\":\"waking\"}");
    else if (x->served->engines.n > 1)
        (void)snprintf(text, sizeof text, "{\"engines\":%d,\"healthy\":%d}", x->served->engines.n,
                       n_well);
    else
        (void)snprintf(text, sizeof text, "{}");
    exchange_reply(x, 200, "application/json", text, strlen(text));
}

/* Does the query contain deep=1? */
static bool health_is_deep(const struct exchange *x)
{
    const char *query = strchr(fcgi_param(x->fcgi, "REQUEST_URI"), '?');

    while (query != NULL) { /* each pass begins at a '?' or '&' */
        size_t len = strcspn(++query, "&");

        if (len == strlen("deep=1") && strncmp(query, "deep=1", len) == 0)
            return true;
        if (query[len] == '\0')
            query = NULL;
        else
            query = query + len;
    }
    return false;
}

/* Make x a generation of one token. */
static int health_ask(struct front *f, struct exchange *x)
{
    struct gen *g = arena_zalloc(&x->arena, sizeof *g);

    if (g == NULL)
        return ERR_NO_MEMORY;
    *g = (struct gen){.exchange = x, .slot = -1, .stop_id = -1, .n_prompt = 1};
    /* The most urgent priority: the probe must not wait in a long queue. It is also exempt from the
     * queue's limits (WIRE_PROBE). */
    g->request = (struct wire_request){
        .deadline_us = x->arrival_us + (uint64_t)f->settings.health_stall_s * 1000000u,
        .flags = WIRE_IGNORE_EOS,
        .priority = INT_MIN,
        .generate = {.sampling = sampling_greedy()},
    };
    x->probe = true;
    x->only_echo = true; /* its text is dropped */
    x->n = 1;
    x->max_tokens_given = true;
    x->max_tokens = 1;
    x->format = EXCHANGE_COMPLETION;
    x->gens = g;
    x->n_gens = 1;
    return token_list_add(&g->tokens, HEALTH_PROMPT);
}

/* Answer with the last result if it is recent; otherwise x becomes a probe. The exchange on
 * probe_us selects one of several readers. */
static void health_probe(struct front *f, struct exchange *x)
{
    uint64_t last = atomic_load(&f->probe_us);
    int rc = ERR_OK;

    if (x->arrival_us < last + HEALTH_PROBE_EVERY_US ||
        !atomic_compare_exchange_strong(&f->probe_us, &last, x->arrival_us)) {
        if (atomic_load(&f->probe_failed))
            exchange_reply_error(x, ERR_ENGINE_GONE, "the engine gave no token at the last probe",
                                 NULL, 1);
        else
            exchange_reply(x, 200, "application/json", "{}", 2);
        return;
    }
    rc = health_ask(f, x);
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, NULL, NULL, 1);
}

/* GET /health and /ping. */
void api_health(struct front *f, struct exchange *x, const struct json *body)
{
    char why[160];
    struct link_state state;
    int n_well;
    int rc = health_look(f, why, sizeof why, &state, &n_well);

    (void)body;
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, why, NULL, 1);
    else if (health_is_deep(x) && !x->served->on_demand && !state.asleep &&
             !state.waking) /* a health check must not wake the engine */
        health_probe(f, x);
    else
        health_say(f, x, &state, n_well);
}

/* GET /v2/health/ready. */
void api_kserve_ready(struct front *f, struct exchange *x, const struct json *body)
{
    static const char text[] = "{\"ready\":true}";
    char why[160];
    struct link_state state;
    int n_well;
    int rc = health_look(f, why, sizeof why, &state, &n_well);

    (void)body;
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, why, NULL, 1);
    else
        exchange_reply(x, 200, "application/json", text, sizeof text - 1);
}

/* The probe's token has come. */
void health_passed(struct front *f, struct exchange *x)
{
    char text[64];

    must(x->probe);
    atomic_store(&f->probe_failed, false);
    (void)snprintf(text, sizeof text, "{\"token_ms\":%.1f}",
                   (double)(clock_us() - x->arrival_us) * 1e-3);
    exchange_reply(x, 200, "application/json", text, strlen(text));
}

/* The probe has ended without a token. */
void health_failed(struct front *f, struct exchange *x, int err)
{
    struct link_state state;
    char why[160];
    int n_well;

    must(x->probe);
    /* No slot was free, so the server is full but alive: the shallow check decides. */
    if (err == ERR_OVERLOADED && health_look(f, why, sizeof why, &state, &n_well) == ERR_OK) {
        health_say(f, x, &state, n_well);
        return;
    }
    atomic_store(&f->probe_failed, true);
    (void)snprintf(why, sizeof why, "the engine gave no token: %s", err_sentence(err));
    exchange_reply_error(x, ERR_ENGINE_GONE, why, NULL, 1);
}
