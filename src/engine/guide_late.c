/* SPDX-License-Identifier: Apache-2.0
 *
 * Late masks: those that take longer than a step may wait for, made by threads of their own.
 *
 * A place holds a copy of the sequence's walk and uses its automaton, so that the sequence may end
 * meanwhile. The engine's thread fills and empties places once per pass. The results of the walk
 * are in the automaton's cache by then, so the sequence's next masks are seldom late.
 *
 *   GUIDE_FREE -> GUIDE_WAITS -> GUIDE_RUNS -> GUIDE_DONE -> GUIDE_FREE */
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/guide.h"

#define LATE_NICE 5 /* the loop and the device's threads are more urgent */

/* The argument of a thread that makes late masks. */
struct late_thread {
    struct guide *guide;
    struct walk_work *work;
};

/* --- the threads -------------------------------------------------------------------------- */

/* A place that waits for a thread, or NULL. With the lock held. */
static struct guide_late *late_next(struct guide *g)
{
    for (int i = 0; i < GUIDE_LATE; i++)
        if (g->late[i].state == GUIDE_WAITS)
            return &g->late[i];
    return NULL;
}

/* A thread for late masks; it lives as long as the engine. The lock is released while the mask is
 * made, so that the loop never waits for it. */
static void *late_run(void *arg)
{
    struct late_thread *thread = arg;
    struct guide *guide = thread->guide;

    /* On error at the priority of the others. */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), LATE_NICE);
    (void)pthread_mutex_lock(&guide->late_lock);
    for (;;) { /* until the process ends */
        struct guide_late *late = late_next(guide);

        if (late == NULL) {
            (void)pthread_cond_wait(&guide->late_came, &guide->late_lock);
            continue;
        }
        late->state = GUIDE_RUNS;
        late->work = thread->work;
        (void)pthread_mutex_unlock(&guide->late_lock);
        late->rc = walk_mask(thread->work, late->p->a, late->p->vocab, late->p->cache, &late->walk,
                             late->mask);
        late->steps = walk_steps(thread->work);
        (void)pthread_mutex_lock(&guide->late_lock);
        late->state = GUIDE_DONE;
    }
    return NULL;
}

/* One thread is enough on small machines, where the masks would take cores from the steps. */
int guide_late_init(struct guide *g)
{
    int n_threads = pool_cores() >= 8 ? GUIDE_LATE_THREADS : 1;
    struct late_thread *threads = mem_zalloc_array(GUIDE_LATE_THREADS, sizeof *threads);
    pthread_t id;

    if (threads == NULL || pthread_mutex_init(&g->late_lock, NULL) != 0 ||
        pthread_cond_init(&g->late_came, NULL) != 0)
        return ERR_NO_MEMORY;
    for (int i = 0; i < GUIDE_LATE; i++) {
        g->late[i].mask = mem_zalloc_array((size_t)g->n_words, sizeof(uint32_t));
        if (g->late[i].mask == NULL)
            return ERR_NO_MEMORY;
    }
    for (int i = 0; i < n_threads; i++) {
        threads[i] = (struct late_thread){.guide = g, .work = guide_work(g)};
        if (threads[i].work == NULL || pthread_create(&id, NULL, late_run, &threads[i]) != 0)
            return ERR_NO_MEMORY;
        (void)pthread_detach(id); /* cannot fail: the thread was just made */
    }
    return ERR_OK;
}

/* --- the engine's thread; with the lock held ------------------------------------------------ */

/* Free a place, whatever its state but GUIDE_RUNS. */
static void late_free(struct guide_late *late)
{
    if (late->q != NULL)
        late->q->late = NULL;
    late->p->n_users--;
    late->p = NULL;
    late->q = NULL;
    late->state = GUIDE_FREE;
}

/* Hand a finished mask to its sequence, if that has not ended. */
static void late_take(struct guide *g, struct guide_late *late)
{
    struct seq *seq = late->q;

    g->late_steps[late->tenant_idx] += late->steps;
    if (late->rc != ERR_OK)
        late->p->refused = true;
    if (seq != NULL) {
        memcpy(seq->made, late->mask, late->p->vocab->n_words * sizeof *seq->made);
        seq->n_made = late->n_tokens;
        seq->is_late = false;
    }
    late_free(late);
}

/* Places that a tenant uses. */
static int late_count(const struct guide *g, int tenant_idx)
{
    int n = 0;

    for (int i = 0; i < GUIDE_LATE; i++)
        n += g->late[i].state != GUIDE_FREE && g->late[i].tenant_idx == tenant_idx;
    return n;
}

/* The sequence whose mask is begun next: of the tenant with the fewest steps spent on it. */
static struct seq *late_choose(const struct guide *g, struct seq *const *running, int n)
{
    struct seq *best = NULL;

    for (int i = 0; i < n; i++) {
        struct seq *seq = running[i];

        if (seq->is_late && seq->late == NULL &&
            late_count(g, seq->tenant_idx) < GUIDE_LATE_TENANT &&
            (best == NULL || g->late_steps[seq->tenant_idx] < g->late_steps[best->tenant_idx]))
            best = seq;
    }
    return best;
}

/* Give the place a job. The walk is copied, because seq's own may be freed while a thread uses
 * it. */
static void late_give(struct guide *g, struct guide_late *late, struct seq *seq)
{
    late->q = seq;
    late->p = seq->automaton;
    late->p->n_users++;
    late->tenant_idx = seq->tenant_idx;
    late->n_tokens = seq->n_tokens;
    walk_copy(&late->walk, seq->walk);
    seq->late = late;
    late->state = GUIDE_WAITS;
    g->n_late++;
    (void)pthread_cond_signal(&g->late_came);
}

/* Is there anything to do? A sequence that has further tokens to walk over is not late any more:
 * its next step tries again. */
static bool late_look(const struct guide *g, struct seq *const *running, int n_running)
{
    bool any = false;

    for (int i = 0; i < n_running; i++) {
        struct seq *seq = running[i];

        seq->is_late = seq->is_late && seq->n_walked == seq->n_tokens;
        any = any || seq->is_late;
    }
    for (int i = 0; i < GUIDE_LATE; i++)
        any = any || g->late[i].p != NULL;
    return any;
}

/* --- public --------------------------------------------------------------------------------- */

/* The common case is that no mask is late: it takes no lock. */
void guide_pass(struct guide *g, struct seq *const *running, int n_running)
{
    if (!late_look(g, running, n_running)) {
        memset(g->late_steps, 0, sizeof g->late_steps);
        return;
    }
    (void)pthread_mutex_lock(&g->late_lock); /* threads hold it for some instructions only */
    for (int i = 0; i < GUIDE_LATE; i++) {
        struct guide_late *late = &g->late[i];
        struct seq *seq;

        if (late->state == GUIDE_DONE)
            late_take(g, late);
        if (late->state == GUIDE_WAITS && late->q == NULL)
            late_free(late);
        if (late->state != GUIDE_FREE)
            continue;
        seq = late_choose(g, running, n_running);
        if (seq != NULL)
            late_give(g, late, seq);
    }
    (void)pthread_mutex_unlock(&g->late_lock);
}

/* The automata are about to be unmapped, so threads that walk them are stopped first. */
void guide_late_drop(struct guide *g, const struct guide_lane *l)
{
    for (int i = 0; i < GUIDE_LATE; i++) {
        struct guide_late *late = &g->late[i];

        if (late->p == NULL || late->p < l->automata || late->p >= l->automata + WIRE_AUTOMATA_MAX)
            continue;
        (void)pthread_mutex_lock(&g->late_lock);
        /* Repeated, because a call that is just beginning does not see the request to stop. */
        while (late->state == GUIDE_RUNS) {
            walk_stop(late->work);
            (void)pthread_mutex_unlock(&g->late_lock);
            clock_sleep_us(20);
            (void)pthread_mutex_lock(&g->late_lock);
        }
        late_free(late);
        (void)pthread_mutex_unlock(&g->late_lock);
    }
}
