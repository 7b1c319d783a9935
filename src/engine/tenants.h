/* Tenants: who waits, whose turn it is, and how much each may have of the queue.
 *
 * A tenant is what nginx made of an API key. Among waiting sequences of one priority the tenant
 * goes first that had the least service: tokens of prompts that had to be computed, and tokens of
 * outputs, which cost a place in every step. One that comes back after a while without requests is
 * lifted to what the service of one who has had his share all the time would be by now: neither
 * idleness is saved up, nor does anybody wait for all who come after him.
 *
 * The queue's bounds hold for all together. When it is full and one comes who has less in it than
 * another, the last of him who has most is refused in its place. What has begun is not, nor are the
 * other choices of an answer that has: who has nothing else in the queue is passed over.
 *
 * No clock and no memory after init. Every call is O(tenants) at most, but for a sequence that goes
 * before many of its own tenant's, and for many at a tenant's end that may not be refused. The
 * engine's thread. */
#ifndef QUIRE_ENGINE_TENANTS_H
#define QUIRE_ENGINE_TENANTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/seq.h"
#include "ipc/wire_lane.h"
#include "ipc/wire_stats.h"

struct tenant {
    char name[WIRE_TENANT_BYTES];
    uint64_t service;         /* weighted tokens; only growing */
    struct seq *first, *last; /* that wait, by priority and arrival */
    int n_waiting, n_running;
    int64_t n_waiting_tokens;

    /* Since the place is its, for the metrics. */
    uint64_t prompt_tokens, generation_tokens, n_refused;

    /* Of the pass that tenants_begin() began. */
    struct seq *at;
    uint64_t at_service;
};

struct tenants {
    struct tenant list[WIRE_TENANTS]; /* the first is nobody, and all who find no place */
    int n;
    int n_waiting;
    int64_t n_waiting_tokens;
    int n_active;        /* tenants with something here */
    uint64_t floor;      /* virtual time: service of one who has had his share */
    uint64_t floor_rest; /* of what is not yet shared out, in tokens times tenants */
};

/* What may wait. */
struct tenants_bounds {
    int n_reqs;
    int64_t n_tokens;
    int n_places; /* more requests, which need not wait: the next step has places for them */
};

void tenants_init(struct tenants *t);

/* The index of the tenant of this name; a new one gets the place of one who has nothing here. */
int tenants_find(struct tenants *t, const char name[WIRE_TENANT_BYTES]);

/* May a request of n_tokens wait? WIRE_NOT_REFUSED when it may, else why not. */
enum wire_refusal tenants_refuse(const struct tenants *t, int n_tokens,
                                 const struct tenants_bounds *bounds);

/* Who has to leave the queue in order that a request of this tenant, of n_tokens, may wait; of the
 * room that is short why tells. NULL: nobody. Preempted sequences stay, and so do choices of an
 * answer that has begun; of these a tenant has hardly ever more than of one answer. */
struct seq *tenants_push_out(const struct tenants *t, int tenant_idx, int n_tokens,
                             enum wire_refusal why);

/* What is served before a request of n_tokens that this tenant would bring now. */
void tenants_ahead(const struct tenants *t, int tenant_idx, int n_tokens, int *n_reqs,
                   int64_t *tokens);

/* Into and out of its tenant's list. */
void tenants_add(struct tenants *t, struct seq *q);
void tenants_remove(struct tenants *t, struct seq *q);

/* Go through what waits in the order of admission; the sequence that came last may be removed.
 * NULL at the end. */
void tenants_begin(struct tenants *t);
struct seq *tenants_next(struct tenants *t);

/* The first of the lowest priority number, or NULL. */
struct seq *tenants_urgent(const struct tenants *t);

/* It runs, and n of its tokens have to be computed; or it runs no longer. */
void tenants_run(struct tenants *t, const struct seq *q, int n);
void tenants_stop(struct tenants *t, const struct seq *q);

/* It gets one more token of its output. */
void tenants_charge_token(struct tenants *t, const struct seq *q);

/* Prove that lists and counts agree. must() on failure. */
void tenants_check(const struct tenants *t);

#endif
