/* SPDX-License-Identifier: Apache-2.0
 *
 * Fair queueing by virtual time, as in start-time fair queueing of networks: each tenant has a
 * clock that advances with its service, and the tenant whose clock is least is served next. See
 * tenants.h. */
#include "engine/tenants.h"

#include <string.h>

#include "base/must.h"

/* A token of an output needs a place in a step of its own, a token of a prompt shares its step with
 * hundreds. Other services charge three to five times the price of a prompt token for it. */
#define TENANTS_OUTPUT_WEIGHT 4

/* Entry 0 always exists: requests without a tenant share it. */
void tenants_init(struct tenants *t)
{
    *t = (struct tenants){.n = 1};
}

/* An idle tenant does not count in n_active, so it takes no part of the virtual time. */
static bool tenants_is_idle(const struct tenant *tenant)
{
    return tenant->n_waiting == 0 && tenant->n_running == 0;
}

/* When all entries are used, that of the idle tenant with the least service is taken over:
 * forgetting it does the least harm, because it would be raised to `floor` anyway. */
int tenants_find(struct tenants *t, const char name[WIRE_TENANT_BYTES])
{
    int i, place = -1;

    for (i = 0; i < t->n; i++) {
        const struct tenant *tenant = &t->list[i];

        if (memcmp(tenant->name, name, WIRE_TENANT_BYTES) == 0)
            return i;
        if (i > 0 && tenants_is_idle(tenant) &&
            (place == -1 || tenant->service < t->list[place].service))
            place = i;
    }
    if (t->n < WIRE_TENANTS)
        place = t->n++;
    if (place == -1)
        return 0;
    t->list[place] = (struct tenant){.service = t->floor};
    memcpy(t->list[place].name, name, WIRE_TENANT_BYTES);
    return place;
}

/* An empty queue takes any request, whatever its length. */
enum wire_refusal tenants_refuse(const struct tenants *t, int n_tokens,
                                 const struct tenants_bounds *bounds)
{
    if (t->n_waiting == 0)
        return WIRE_NOT_REFUSED; /* else a prompt longer than the bound could never be served */
    if (t->n_waiting >= bounds->n_reqs + bounds->n_places)
        return WIRE_REFUSED_REQUESTS;
    if (t->n_waiting_tokens + n_tokens > bounds->n_tokens)
        return WIRE_REFUSED_TOKENS;
    return WIRE_NOT_REFUSED;
}

/* The last waiting sequence of the tenant that may be refused, or NULL. */
static struct seq *tenants_last_new(const struct tenant *tenant)
{
    struct seq *seq = tenant->last;

    while (seq != NULL && !seq_may_refuse(seq))
        seq = seq->prev;
    return seq;
}

/* Only the tenant with most in the queue can lose a request, and only to one that has less: so no
 * tenant can push out another's requests by sending more. */
struct seq *tenants_push_out(const struct tenants *t, int tenant_idx, int n_tokens,
                             enum wire_refusal why)
{
    const struct tenant *own = &t->list[tenant_idx], *most = own;
    bool by_tokens = why == WIRE_REFUSED_TOKENS;
    struct seq *seq;

    for (int i = 0; i < t->n; i++) {
        const struct tenant *tenant = &t->list[i];

        if ((by_tokens ? tenant->n_waiting_tokens > most->n_waiting_tokens
                       : tenant->n_waiting > most->n_waiting) &&
            tenants_last_new(tenant) != NULL)
            most = tenant;
    }
    if (most == own)
        return NULL;
    seq = tenants_last_new(most);
    /* The tenant that loses a request must not end with less than the one that brings one. */
    if (by_tokens ? most->n_waiting_tokens - seq->n_tokens < own->n_waiting_tokens + n_tokens
                  : most->n_waiting - 1 < own->n_waiting + 1)
        return NULL;
    return seq;
}

/* An estimate for Retry-After: the tenant's own queue, and as much of every other tenant's. */
void tenants_ahead(const struct tenants *t, int tenant_idx, int n_tokens, int *n_reqs,
                   int64_t *tokens)
{
    const struct tenant *own = &t->list[tenant_idx];

    *n_reqs = own->n_waiting;
    *tokens = own->n_waiting_tokens;
    for (int i = 0; i < t->n; i++) {
        const struct tenant *tenant = &t->list[i];

        if (i == tenant_idx)
            continue;
        /* Tenants take turns: before this request each of the others is served at most as much as
         * its own. */
        if (tenant->n_waiting < own->n_waiting + 1)
            *n_reqs += tenant->n_waiting;
        else
            *n_reqs += own->n_waiting + 1;
        if (tenant->n_waiting_tokens < own->n_waiting_tokens + n_tokens)
            *tokens += tenant->n_waiting_tokens;
        else
            *tokens += own->n_waiting_tokens + n_tokens;
    }
}

/* Add cost to a tenant's service, and its equal share of it to the virtual time. */
static void tenants_charge(struct tenants *t, struct tenant *tenant, uint64_t cost)
{
    uint64_t n = t->n_active > 0 ? (uint64_t)t->n_active : 1;

    tenant->service += cost;
    t->floor_rest += cost;
    t->floor += t->floor_rest / n;
    t->floor_rest %= n;
}

/* Insert by priority and arrival. New sequences usually belong at the end, so the search goes from
 * there. A tenant that was idle is raised to the virtual time first. */
void tenants_add(struct tenants *t, struct seq *seq)
{
    struct tenant *tenant = &t->list[seq->tenant_idx];
    struct seq *before = tenant->last;

    if (tenant->n_waiting == 0 && tenant->service < t->floor)
        tenant->service = t->floor;
    t->n_active += tenants_is_idle(tenant);
    while (before != NULL && seq_before(seq, before))
        before = before->prev;
    seq->prev = before;
    seq->next = before == NULL ? tenant->first : before->next;
    if (seq->prev == NULL)
        tenant->first = seq;
    else
        seq->prev->next = seq;
    if (seq->next == NULL)
        tenant->last = seq;
    else
        seq->next->prev = seq;
    tenant->n_waiting++;
    t->n_waiting++;
    tenant->n_waiting_tokens += seq->n_tokens;
    t->n_waiting_tokens += seq->n_tokens;
}

/* The counterpart of tenants_add(); the sequence may be anywhere in the list. */
void tenants_remove(struct tenants *t, struct seq *seq)
{
    struct tenant *tenant = &t->list[seq->tenant_idx];

    if (seq->prev == NULL)
        tenant->first = seq->next;
    else
        seq->prev->next = seq->next;
    if (seq->next == NULL)
        tenant->last = seq->prev;
    else
        seq->next->prev = seq->prev;
    tenant->n_waiting--;
    t->n_waiting--;
    tenant->n_waiting_tokens -= seq->n_tokens;
    t->n_waiting_tokens -= seq->n_tokens;
    t->n_active -= tenants_is_idle(tenant);
}

/* Each tenant's walk begins with its first sequence and its real service. */
void tenants_begin(struct tenants *t)
{
    for (int i = 0; i < t->n; i++) {
        t->list[i].at = t->list[i].first;
        t->list[i].at_service = t->list[i].service;
    }
}

/* Of two tenants' next sequences: is a's first? */
static bool tenants_turn(const struct tenant *a, const struct tenant *b)
{
    if (a->at->request.priority != b->at->request.priority)
        return a->at->request.priority < b->at->request.priority;
    if (a->at_service != b->at_service)
        return a->at_service < b->at_service;
    return a->at->arrival < b->at->arrival;
}

/* A sequence that was returned counts its prompt as service in this walk only, so that the walk
 * alternates between tenants as admission would. */
struct seq *tenants_next(struct tenants *t)
{
    struct tenant *best = NULL;
    struct seq *seq;

    for (int i = 0; i < t->n; i++) {
        struct tenant *tenant = &t->list[i];

        if (tenant->at != NULL && (best == NULL || tenants_turn(tenant, best)))
            best = tenant;
    }
    if (best == NULL)
        return NULL;
    seq = best->at;
    best->at = seq->next;
    best->at_service += (uint64_t)seq->n_tokens;
    return seq;
}

/* Lists are sorted, so only the first sequence of each tenant can be the one. */
struct seq *tenants_urgent(const struct tenants *t)
{
    struct seq *best = NULL;

    for (int i = 0; i < t->n; i++) {
        struct seq *seq = t->list[i].first;

        if (seq != NULL && (best == NULL || seq_before(seq, best)))
            best = seq;
    }
    return best;
}

/* A prompt's tokens are charged when it is admitted, not as they are computed: a preempted sequence
 * is not charged again. */
void tenants_run(struct tenants *t, const struct seq *seq, int n)
{
    struct tenant *tenant = &t->list[seq->tenant_idx];

    t->n_active += tenants_is_idle(tenant);
    tenant->n_running++;
    tenants_charge(t, tenant, (uint64_t)n);
}

/* The service stays; only the number of running sequences changes. */
void tenants_stop(struct tenants *t, const struct seq *seq)
{
    struct tenant *tenant = &t->list[seq->tenant_idx];

    tenant->n_running--;
    t->n_active -= tenants_is_idle(tenant);
}

/* Charged when the token is planned. */
void tenants_charge_token(struct tenants *t, const struct seq *seq)
{
    tenants_charge(t, &t->list[seq->tenant_idx], TENANTS_OUTPUT_WEIGHT);
}

/* For tests: everything that is counted is counted again. */
void tenants_check(const struct tenants *t)
{
    int n = 0, n_active = 0;
    int64_t n_tokens = 0;

    for (int i = 0; i < t->n; i++) {
        const struct tenant *tenant = &t->list[i];
        int own = 0;

        for (const struct seq *seq = tenant->first; seq != NULL; seq = seq->next) {
            must(seq->state == SEQ_WAITING);
            must(seq->tenant_idx == i);
            must(seq->tables[0].n == 0);
            must(seq->prev == NULL ? seq == tenant->first : seq_before(seq->prev, seq));
            must(seq->next != NULL || seq == tenant->last);
            n_tokens += seq->n_tokens;
            own++;
        }
        must(own == tenant->n_waiting);
        must(tenant->n_running >= 0);
        n += own;
        n_active += !tenants_is_idle(tenant);
    }
    must(n == t->n_waiting);
    must(n_active == t->n_active);
    must(n_tokens == t->n_waiting_tokens);
}
