/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over ranks on the cpu device, where ranks are threads of one process.
 *
 * A sum is two meetings around an addition: at the first all ranks have published their rows; then
 * rank r adds the r-th share of all rows, in the order of the ranks, and writes the result into
 * everyone's rows; at the second meeting all shares are complete. */
#include "config.h"

#include "device/cpu_ranks.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define CPU_RANKS_MAX 64
#define WAIT_S \
    600 /* seconds to wait for a rank; the longest product of a large model
         * takes far less */

struct cpu_ranks {
    int n;
    float *rows[CPU_RANKS_MAX]; /* of the current sum, by rank; [0] of gathering */
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    int n_here; /* ranks that have come to the current meeting */
    unsigned n_meetings;
    int n_refs;
    bool ended;
};

/* The condition uses the monotonic clock, so that setting the system's time ends no wait. */
int cpu_ranks_make(struct cpu_ranks **out, int n)
{
    struct cpu_ranks *ranks = mem_zalloc(sizeof *ranks);
    pthread_condattr_t clock;

    must(n >= 1 && n <= CPU_RANKS_MAX);
    if (ranks == NULL)
        return ERR_NO_MEMORY;
    ranks->n = n;
    ranks->n_refs = n;
    (void)pthread_mutex_init(&ranks->lock, NULL); /* these cannot fail on Linux */
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&ranks->all_here, &clock);
    (void)pthread_condattr_destroy(&clock);
    *out = ranks;
    return ERR_OK;
}

/* Devices are closed one after another by one thread, so the count needs no lock. */
void cpu_ranks_unref(struct cpu_ranks *r)
{
    if (r == NULL || --r->n_refs > 0)
        return;
    (void)pthread_cond_destroy(&r->all_here);
    (void)pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

/* Wakes all ranks that wait; later sums return at once. */
void cpu_ranks_end(struct cpu_ranks *r)
{
    (void)pthread_mutex_lock(&r->lock);
    r->ended = true;
    (void)pthread_cond_broadcast(&r->all_here);
    (void)pthread_mutex_unlock(&r->lock);
}

/* Read by cpu_end() after each step. */
bool cpu_ranks_ended(struct cpu_ranks *r)
{
    bool ended;

    (void)pthread_mutex_lock(&r->lock);
    ended = r->ended;
    (void)pthread_mutex_unlock(&r->lock);
    return ended;
}

/* Wait until all ranks have come; false if they will not. n_meetings counts the meetings that were
 * complete, so a fast rank may come to the next one before a slow rank has woken from this one. */
static bool cpu_ranks_meet(struct cpu_ranks *r)
{
    struct timespec end;
    unsigned meeting;
    bool ended;

    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += WAIT_S;
    (void)pthread_mutex_lock(&r->lock);
    meeting = r->n_meetings;
    if (++r->n_here == r->n) {
        r->n_here = 0;
        r->n_meetings++;
        (void)pthread_cond_broadcast(&r->all_here);
    }
    while (!r->ended && r->n_meetings == meeting) {
        if (pthread_cond_timedwait(&r->all_here, &r->lock, &end) != 0 && r->n_meetings == meeting) {
            log_error("device: a rank did not take part in a sum within %d s", WAIT_S);
            r->ended = true;
            (void)pthread_cond_broadcast(&r->all_here);
        }
    }
    ended = r->ended;
    (void)pthread_mutex_unlock(&r->lock);
    return !ended;
}

/* Each rank copies its own part, between two meetings: at the first, rank 0 has published its rows
 * and no longer reads those of the last call. */
void cpu_ranks_gather(struct cpu_ranks *r, int rank, float *all, const float *part, int n,
                      int width)
{
    size_t bytes = (size_t)width * sizeof *part;

    must(rank >= 0 && rank < r->n && (rank > 0 || all != NULL));
    if (rank == 0)
        r->rows[0] = all;
    if (!cpu_ranks_meet(r))
        return;
    for (int i = 0; i < n; i++)
        memcpy(r->rows[0] + ((size_t)i * (size_t)r->n + (size_t)rank) * (size_t)width,
               part + (size_t)i * (size_t)width, bytes);
    (void)cpu_ranks_meet(r); /* as in cpu_ranks_sum() */
}

/* Each rank adds its own share, so the work is divided evenly. */
void cpu_ranks_sum(struct cpu_ranks *r, int rank, float *rows, size_t n)
{
    size_t first = n * (size_t)rank / (size_t)r->n, last = n * ((size_t)rank + 1) / (size_t)r->n;

    must(rank >= 0 && rank < r->n);
    if (FAULT_HIT(rank_lost))
        cpu_ranks_end(r);
    r->rows[rank] = rows;
    if (!cpu_ranks_meet(r))
        return;
    for (size_t i = first; i < last; i++) {
        float sum = r->rows[0][i];

        for (int k = 1; k < r->n; k++)
            sum += r->rows[k][i];
        for (int k = 0; k < r->n; k++)
            r->rows[k][i] = sum;
    }
    (void)cpu_ranks_meet(r); /* an end is noticed by the next sum, or by cpu_end() */
}
