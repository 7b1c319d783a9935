/* SPDX-License-Identifier: Apache-2.0
 *
 * Hand-over between stages of the cpu device, where stages are threads of one process.
 *
 * Device i has an inbox with two places, into which device i - n_parts puts the rows of its steps
 * in turn. Counters of rows put and got tell which places are full; one lock guards all counters.
 * The rows themselves are copied without it: a place belongs to the stage before until it is put,
 * and to the stage behind until it is got. */
#include "config.h"

#include "device/parts_cpu.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define DEVICES_MAX 64
#define PLACES      2
#define WAIT_S      600 /* as cpu_ranks.c */

struct inbox {
    char *places[PLACES];
    size_t bytes; /* of a place */
    unsigned n_put, n_got;
};

struct cpu_stages {
    int n_stages, n_parts;
    struct inbox inboxes[DEVICES_MAX];
    pthread_mutex_t lock;    /* guards the counters and what follows */
    pthread_cond_t progress; /* of any of them */
    unsigned n_sampled;      /* steps of the last stage */
    int n_refs;
    bool ended;
};

/* The condition uses the monotonic clock, so that setting the system's time ends no wait. */
int cpu_stages_make(struct cpu_stages **out, int n_stages, int n_parts)
{
    struct cpu_stages *stages = mem_zalloc(sizeof *stages);
    pthread_condattr_t clock;

    must(n_stages >= 1 && n_parts >= 1 && n_stages * n_parts <= DEVICES_MAX);
    if (stages == NULL)
        return ERR_NO_MEMORY;
    stages->n_stages = n_stages;
    stages->n_parts = n_parts;
    stages->n_refs = n_stages * n_parts;
    (void)pthread_mutex_init(&stages->lock, NULL); /* these cannot fail on Linux */
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&stages->progress, &clock);
    (void)pthread_condattr_destroy(&clock);
    *out = stages;
    return ERR_OK;
}

/* Devices are closed one after another by one thread, so the count needs no lock. */
void cpu_stages_unref(struct cpu_stages *s)
{
    if (s == NULL || --s->n_refs > 0)
        return;
    for (int i = 0; i < s->n_stages * s->n_parts; i++) {
        for (int k = 0; k < PLACES; k++)
            mem_free(s->inboxes[i].places[k]);
    }
    (void)pthread_cond_destroy(&s->progress);
    (void)pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

bool cpu_stages_is_first(const struct cpu_stages *s, int idx)
{
    return idx < s->n_parts;
}

int cpu_stages_reserve(struct cpu_stages *s, int idx, const struct device_limits *limits)
{
    struct inbox *inbox = &s->inboxes[idx];

    if (cpu_stages_is_first(s, idx))
        return ERR_OK;
    inbox->bytes = (size_t)limits->n_tokens * (size_t)limits->dim * sizeof(float);
    for (int k = 0; k < PLACES; k++) {
        if ((inbox->places[k] = mem_alloc(inbox->bytes)) == NULL)
            return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

/* --- waits -------------------------------------------------------------------------------- */

/* What a wait is for: *count has come to be at least `wanted`. */
struct awaited {
    const unsigned *count;
    unsigned wanted;
};

/* Wait with the lock held. Counters wrap, so their distance is compared. */
static int cpu_stages_wait(struct cpu_stages *s, struct awaited what)
{
    struct timespec end;

    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += WAIT_S;
    while (!s->ended && (int)(*what.count - what.wanted) < 0) {
        if (pthread_cond_timedwait(&s->progress, &s->lock, &end) != 0 && !s->ended) {
            log_error("device: a stage did not hand its rows over within %d s", WAIT_S);
            s->ended = true;
            (void)pthread_cond_broadcast(&s->progress);
        }
    }
    return s->ended ? ERR_GPU : ERR_OK;
}

/* As cpu_stages_wait(), from outside. */
static int cpu_stages_await(struct cpu_stages *s, struct awaited what)
{
    int rc;

    (void)pthread_mutex_lock(&s->lock);
    rc = cpu_stages_wait(s, what);
    (void)pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Set a counter, and tell all that wait. */
static void cpu_stages_set(struct cpu_stages *s, unsigned *count, unsigned value)
{
    (void)pthread_mutex_lock(&s->lock);
    *count = value;
    (void)pthread_cond_broadcast(&s->progress);
    (void)pthread_mutex_unlock(&s->lock);
}

void cpu_stages_sampled(struct cpu_stages *s, unsigned n_steps)
{
    cpu_stages_set(s, &s->n_sampled, n_steps);
}

int cpu_stages_await_ids(struct cpu_stages *s, unsigned n_steps)
{
    return cpu_stages_await(s, (struct awaited){&s->n_sampled, n_steps});
}

void cpu_stages_end(struct cpu_stages *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->ended = true;
    (void)pthread_cond_broadcast(&s->progress);
    (void)pthread_mutex_unlock(&s->lock);
}

bool cpu_stages_ended(struct cpu_stages *s)
{
    bool ended;

    (void)pthread_mutex_lock(&s->lock);
    ended = s->ended;
    (void)pthread_mutex_unlock(&s->lock);
    return ended;
}

/* --- rows --------------------------------------------------------------------------------- */

/* Segments follow one another in a place. Only the receiver changes n_got, only the sender
 * n_put. */
int cpu_stages_take(struct cpu_stages *s, int idx, const struct device_segment *segments, int n,
                    int n_rows)
{
    struct inbox *inbox = &s->inboxes[idx];
    const char *from = inbox->places[inbox->n_got % PLACES];
    int rc = cpu_stages_await(s, (struct awaited){&inbox->n_put, inbox->n_got + 1});

    if (rc != ERR_OK)
        return rc;
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)n_rows * segments[i].row_bytes;

        memcpy(segments[i].data, from, bytes);
        from += bytes;
    }
    cpu_stages_set(s, &inbox->n_got, inbox->n_got + 1);
    return ERR_OK;
}

int cpu_stages_hand(struct cpu_stages *s, int idx, const struct device_segment *segments, int n,
                    int n_rows)
{
    struct inbox *inbox = &s->inboxes[idx + s->n_parts];
    char *to = inbox->places[inbox->n_put % PLACES];
    size_t left = inbox->bytes;
    int rc;

    if (FAULT_HIT(rank_lost))
        cpu_stages_end(s);
    rc = cpu_stages_await(s, (struct awaited){&inbox->n_got, inbox->n_put + 1 - PLACES});
    if (rc != ERR_OK)
        return rc;
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)n_rows * segments[i].row_bytes;

        must(bytes <= left);
        memcpy(to, segments[i].data, bytes);
        to += bytes;
        left -= bytes;
    }
    cpu_stages_set(s, &inbox->n_put, inbox->n_put + 1);
    return ERR_OK;
}

/* --- operations of the table -------------------------------------------------------------- */

/* Each device runs on a thread of its own, so a stage that waits for another one delays none. */
int cpu_join_stages(struct device *const *all, int n_stages, int n_parts)
{
    struct cpu_stages *stages = NULL;
    int n = n_stages * n_parts, rc = cpu_stages_make(&stages, n_stages, n_parts);

    for (int i = 0; i < n && rc == ERR_OK; i++) {
        struct cpu *cpu = cpu_of(all[i]);

        cpu->stages = stages;
        cpu->idx = i;
        cpu->sampler = cpu_of(all[n - n_parts]);
    }
    return rc;
}

int cpu_take(struct device *d, const struct device_segment *segments, int n)
{
    return cpu_stages_take(cpu_of(d)->stages, cpu_of(d)->idx, segments, n, d->step_tokens);
}

int cpu_hand(struct device *d, const struct device_segment *segments, int n)
{
    return cpu_stages_hand(cpu_of(d)->stages, cpu_of(d)->idx, segments, n, d->step_tokens);
}

/* Other ranks stop waiting, and their steps end with ERR_GPU. */
void cpu_leave_ranks(struct device *d)
{
    struct cpu *cpu = cpu_of(d);

    if (cpu->ranks != NULL)
        cpu_ranks_end(cpu->ranks);
    if (cpu->stages != NULL)
        cpu_stages_end(cpu->stages);
}
