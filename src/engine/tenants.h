/* SPDX-License-Identifier: Apache-2.0
 *
 * Tenants: whose request is served next, and how much of the queue each may use.
 *
 * A tenant is the owner of API keys, named by nginx. Among waiting sequences of equal priority, the
 * tenant with the least service is next. Service counts the tokens of prompts that had to be
 * computed, and with a weight the tokens of outputs, because each costs a place in a step. A tenant
 * that returns after a pause is raised to the virtual time (`floor`): the service of a tenant that
 * used its share all the time. So idle time earns no credit, and a tenant with much service does
 * not wait for all that come after it.
 *
 * The bounds of the queue hold for all tenants together. When it is full and a tenant with less in
 * it brings a request, the last request of the tenant with most is refused in its place. Sequences
 * that have begun, and other choices of an answer that has begun, are not refused.
 *
 * No clock, and no memory after init. Every call is at most O(tenants), except inserting a sequence
 * before many of its own tenant's, and finding the last one that may be refused among many that may
 * not. The engine's thread. */
#ifndef QUIRE_ENGINE_TENANTS_H
#define QUIRE_ENGINE_TENANTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/seq.h"
#include "ipc/wire_lane.h"
#include "ipc/wire_stats.h"

struct tenant {
    char name[WIRE_TENANT_BYTES];
    uint64_t service;         /* weighted tokens; never falls */
    struct seq *first, *last; /* waiting sequences, by priority and arrival */
    int n_waiting, n_running;
    int64_t n_waiting_tokens;

    /* Since it got its entry, for the metrics. */
    uint64_t prompt_tokens, generation_tokens, n_refused;

    /* State of the walk that tenants_begin() began. */
    struct seq *at;
    uint64_t at_service;
};

struct tenants {
    struct tenant list[WIRE_TENANTS]; /* the first is for requests without a tenant, and for all
                                       * that find no entry */
    int n;
    int n_waiting;
    int64_t n_waiting_tokens;
    int n_active;        /* tenants with a waiting or running sequence */
    uint64_t floor;      /* virtual time: service of a tenant that always used its share */
    uint64_t floor_rest; /* the part of it that is not distributed yet, tokens times tenants */
};

/* Bounds of the queue. */
struct tenants_bounds {
    int n_reqs;
    int64_t n_tokens;
    int n_places; /* further requests that do not wait: the next step has places for them */
};

void tenants_init(struct tenants *t);

/* The index of the tenant with this name. A new tenant gets a free entry, or that of an idle one; 0
 * when there is none. */
int tenants_find(struct tenants *t, const char name[WIRE_TENANT_BYTES]);

/* May a request of n_tokens join the queue? WIRE_NOT_REFUSED, or the reason why not. */
enum wire_refusal tenants_refuse(const struct tenants *t, int n_tokens,
                                 const struct tenants_bounds *bounds);

/* The sequence that has to leave the queue so that a request of this tenant, of n_tokens, may wait;
 * `why` says whether requests or tokens are too many. NULL: none. Preempted sequences stay, and so
 * do choices of an answer that has begun, which hardly ever are of more than one answer per
 * tenant. */
struct seq *tenants_push_out(const struct tenants *t, int tenant_idx, int n_tokens,
                             enum wire_refusal why);

/* The requests and tokens that would be served before a request of n_tokens of this tenant. */
void tenants_ahead(const struct tenants *t, int tenant_idx, int n_tokens, int *n_reqs,
                   int64_t *tokens);

/* Insert into, and remove from, the tenant's list. */
void tenants_add(struct tenants *t, struct seq *seq);
void tenants_remove(struct tenants *t, struct seq *seq);

/* Walk over the waiting sequences in the order of admission; the one that was returned last may be
 * removed. NULL at the end. */
void tenants_begin(struct tenants *t);
struct seq *tenants_next(struct tenants *t);

/* The first sequence of the smallest priority number, or NULL. */
struct seq *tenants_urgent(const struct tenants *t);

/* seq begins to run with n tokens to compute; and it stops running. */
void tenants_run(struct tenants *t, const struct seq *seq, int n);
void tenants_stop(struct tenants *t, const struct seq *seq);

/* seq gets one more token of its output. */
void tenants_charge_token(struct tenants *t, const struct seq *seq);

/* Check that lists and counts agree. must() on failure. */
void tenants_check(const struct tenants *t);

#endif
