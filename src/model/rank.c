/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of a model: their threads, and operations that treat all devices as one.
 *
 * ranks_open() starts a thread for each rank but the first, which runs on the caller's. rank_run()
 * hands all of them one function and waits.
 *
 * Sleeping needs care because each rank copies its own weights: one may be done, or find no memory,
 * while others are in progress, and the caller sees one device. A rank that has given its memory
 * back cannot be used, so from then on ranks_sleep() does not return before all have. */
#include "model/rank.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/must.h"
#include "device/pool.h"

/* --- threads ---------------------------------------------------------------------------- */

/* n_runs counts the functions that were handed out; a thread runs one when the count differs from
 * the count it has seen. fn, context, n_busy and stop are guarded by the lock. */

/* A CUDA call acts on the calling thread's current GPU, so the thread selects its GPU first. */
static void *rank_main(void *arg)
{
    struct rank *rank = arg;
    struct ranks *all = rank->ranks;
    uint64_t n_seen = 0;

    if (rank->device->ops->use != NULL)
        (void)!rank->device->ops->use(rank->device); /* the device was selected once when it was
                                                      * opened: cannot fail */
    (void)pthread_mutex_lock(&all->lock);            /* cannot fail: initialised, not held by us */
    for (;;) {                                       /* until ranks_close() */
        while (!all->stop && all->n_runs == n_seen)
            (void)pthread_cond_wait(&all->begins, &all->lock);
        if (all->stop)
            break;
        n_seen = all->n_runs;
        (void)pthread_mutex_unlock(&all->lock);
        rank->rc = all->fn(rank, all->context);
        (void)pthread_mutex_lock(&all->lock);
        if (--all->n_busy == 0)
            (void)pthread_cond_signal(&all->ends);
    }
    (void)pthread_mutex_unlock(&all->lock);
    return NULL;
}

/* The caller runs rank 0's part itself meanwhile. All ranks finish before an error is returned. */
int rank_run(struct ranks *r, rank_fn *fn, void *context)
{
    must(r->n >= 1);
    if (r->n == 1)
        return r->at[0].rc = fn(&r->at[0], context);
    (void)pthread_mutex_lock(&r->lock);
    r->fn = fn;
    r->context = context;
    r->n_busy = r->n - 1;
    r->n_runs++;
    (void)pthread_cond_broadcast(&r->begins);
    (void)pthread_mutex_unlock(&r->lock);
    r->at[0].rc = fn(&r->at[0], context);
    (void)pthread_mutex_lock(&r->lock);
    while (r->n_busy > 0)
        (void)pthread_cond_wait(&r->ends, &r->lock);
    (void)pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->n; i++) {
        if (r->at[i].rc != ERR_OK)
            return r->at[i].rc;
    }
    return ERR_OK;
}

/* Rank 0 has no thread of its own. */
static int ranks_start_threads(struct ranks *r)
{
    (void)pthread_mutex_init(&r->lock, NULL); /* default attributes: cannot fail on Linux */
    (void)pthread_cond_init(&r->begins, NULL);
    (void)pthread_cond_init(&r->ends, NULL);
    r->has_lock = true;
    for (int i = 1; i < r->n; i++) {
        if (pthread_create(&r->at[i].thread, NULL, rank_main, &r->at[i]) != 0) {
            log_error("model: the thread of rank %d of %d cannot be started", i, r->n);
            return ERR_NO_MEMORY;
        }
        r->n_started++;
    }
    return ERR_OK;
}

/* Also after a failed start: only n_started threads are joined. */
static void ranks_stop_threads(struct ranks *r)
{
    if (!r->has_lock)
        return;
    (void)pthread_mutex_lock(&r->lock);
    r->stop = true;
    (void)pthread_cond_broadcast(&r->begins);
    (void)pthread_mutex_unlock(&r->lock);
    for (int i = 1; i <= r->n_started; i++)
        (void)pthread_join(r->at[i].thread, NULL);
    (void)pthread_cond_destroy(&r->begins);
    (void)pthread_cond_destroy(&r->ends);
    (void)pthread_mutex_destroy(&r->lock);
}

/* --- workers ---------------------------------------------------------------------------- */

/* A worker runs the tasks of its rank in order. Its stage may wait in a task for another stage,
 * while the caller goes on. */
static void *rank_work(void *arg)
{
    struct rank *rank = arg;
    struct ranks *all = rank->ranks;

    if (rank->device->ops->use != NULL)
        (void)!rank->device->ops->use(rank->device); /* as in rank_main() */
    (void)pthread_mutex_lock(&all->post_lock);       /* cannot fail: initialised, not held by us */
    for (;;) {                                       /* until ranks_close() */
        struct rank_task task;
        int rc;

        while (!all->workers_stop && rank->n_done == rank->n_posted)
            (void)pthread_cond_wait(&all->posted, &all->post_lock);
        if (rank->n_done == rank->n_posted)
            break; /* stopped, after the tasks that were posted */
        task = rank->tasks[rank->n_done % RANK_TASKS_MAX];
        (void)pthread_mutex_unlock(&all->post_lock);
        rc = task.fn(rank, task.context);
        (void)pthread_mutex_lock(&all->post_lock);
        if (rank->worker_rc == ERR_OK)
            rank->worker_rc = rc;
        rank->n_done++;
        (void)pthread_cond_broadcast(&all->done);
    }
    (void)pthread_mutex_unlock(&all->post_lock);
    return NULL;
}

static int ranks_start_workers(struct ranks *r)
{
    (void)pthread_mutex_init(&r->post_lock, NULL); /* default attributes: cannot fail on Linux */
    (void)pthread_cond_init(&r->posted, NULL);
    (void)pthread_cond_init(&r->done, NULL);
    r->has_post_lock = true;
    for (int i = 0; i < r->n; i++) {
        if (pthread_create(&r->at[i].worker, NULL, rank_work, &r->at[i]) != 0) {
            log_error("model: the worker of rank %d of %d cannot be started", i, r->n);
            return ERR_NO_MEMORY;
        }
        r->n_workers++;
    }
    return ERR_OK;
}

/* Also after a failed start. No task waits for another rank any more. */
static void ranks_stop_workers(struct ranks *r)
{
    if (!r->has_post_lock)
        return;
    for (int i = 0; i < r->n; i++) {
        if (r->at[i].device != NULL)
            r->at[i].device->ops->leave_ranks(r->at[i].device);
    }
    (void)pthread_mutex_lock(&r->post_lock);
    r->workers_stop = true;
    (void)pthread_cond_broadcast(&r->posted);
    (void)pthread_mutex_unlock(&r->post_lock);
    for (int i = 0; i < r->n_workers; i++)
        (void)pthread_join(r->at[i].worker, NULL);
    (void)pthread_cond_destroy(&r->posted);
    (void)pthread_cond_destroy(&r->done);
    (void)pthread_mutex_destroy(&r->post_lock);
}

uint64_t rank_post(struct rank *r, rank_fn *fn, void *context)
{
    struct ranks *all = r->ranks;
    uint64_t ticket;

    (void)pthread_mutex_lock(&all->post_lock);
    must(r->n_posted - r->n_done < RANK_TASKS_MAX);
    r->tasks[r->n_posted % RANK_TASKS_MAX] = (struct rank_task){fn, context};
    ticket = ++r->n_posted;
    (void)pthread_cond_broadcast(&all->posted);
    (void)pthread_mutex_unlock(&all->post_lock);
    return ticket;
}

int rank_wait(struct rank *r, uint64_t ticket)
{
    struct ranks *all = r->ranks;
    int rc;

    (void)pthread_mutex_lock(&all->post_lock);
    while (r->n_done < ticket)
        (void)pthread_cond_wait(&all->done, &all->post_lock);
    rc = r->worker_rc;
    (void)pthread_mutex_unlock(&all->post_lock);
    return rc;
}

/* Only this thread posts, so the counts of posted tasks do not change meanwhile. */
int ranks_settle(struct ranks *r)
{
    int first = ERR_OK;

    for (int i = 0; i < r->n && r->posts; i++) {
        int rc = rank_wait(&r->at[i], r->at[i].n_posted);

        if (first == ERR_OK)
            first = rc;
    }
    return first;
}

/* --- opening ---------------------------------------------------------------------------- */

/* The number of threads of one rank's cpu device; 0: one per core. */
static int ranks_threads_each(int n_ranks, int cpu_threads)
{
    int n = (cpu_threads > 0 ? cpu_threads : pool_cores()) / n_ranks;

    if (n_ranks == 1)
        return cpu_threads;
    if (n > 0)
        return n;
    return 1;
}

/* Join the devices of each stage, and the stages. A kind of device that cannot is refused only when
 * its name is known. */
static int ranks_join(struct ranks *r, enum device_links links)
{
    const struct device_ops *op = r->at[0].device->ops;
    struct device *all[RANKS_MAX];
    int rc = ERR_OK;

    for (int i = 0; i < r->n; i++)
        all[i] = r->at[i].device;
    if ((r->n_parts > 1 && op->join_ranks == NULL) ||
        (r->n_stages > 1 && op->join_stages == NULL)) {
        log_error("model: tensor_parallel_size %d, pipeline_parallel_size %d: more than one rank "
                  "on %s is not supported; set both to 1",
                  r->n_parts, r->n_stages, all[0]->name);
        return ERR_UNSUPPORTED;
    }
    for (int i = 0; i < r->n && r->n_parts > 1 && rc == ERR_OK; i += r->n_parts)
        rc = op->join_ranks(all + i, r->n_parts, links);
    if (rc == ERR_OK && r->n_stages > 1)
        rc = op->join_stages(all, r->n_stages, r->n_parts);
    return rc;
}

/* r->n is set first, so that ranks_close() works after any error. */
int ranks_open(struct ranks *r, const struct ranks_options *o)
{
    int n_stages = o->n_own + o->has_head, n = n_stages * o->n_parts, rc;
    bool is_whole = o->n_own == o->n_stages;

    must(o->n_own >= 1 && o->n_parts >= 1 && n <= RANKS_MAX);
    r->n = n;
    r->n_stages = n_stages;
    r->n_parts = o->n_parts;
    for (int i = 0; i < n; i++) {
        struct rank *rank = &r->at[i];
        int stage = i / o->n_parts;

        rank->idx = i;
        rank->stage_idx = stage < o->n_own ? o->first_stage + stage : o->n_stages;
        rank->part = i % o->n_parts;
        rank->is_last = rank->stage_idx == (is_whole ? o->n_stages - 1 : o->n_stages);
        rank->ranks = r;
        rc = device_open(&rank->device, o->device, o->first + (stage < o->n_own ? i : rank->part),
                         ranks_threads_each(n, o->cpu_threads));
        if (rc != ERR_OK)
            return rc;
    }
    /* The caller's thread begins steps of the first of them, which need not be CUDA's first. */
    if (r->at[0].device->ops->use != NULL &&
        (rc = r->at[0].device->ops->use(r->at[0].device)) != ERR_OK)
        return rc;
    r->posts = !is_whole || (n_stages > 1 && !r->at[0].device->is_gpu);
    if (r->posts && (rc = ranks_start_workers(r)) != ERR_OK)
        return rc;
    if (n == 1)
        return ERR_OK;
    if ((rc = ranks_join(r, o->links)) != ERR_OK)
        return rc;
    return ranks_start_threads(r);
}

/* Workers go first: a task may still use a device. */
void ranks_close(struct ranks *r)
{
    ranks_stop_workers(r);
    ranks_stop_threads(r);
    for (int i = 0; i < r->n; i++) {
        device_close(r->at[i].device);
        weights_fini(&r->at[i].weights);
        cache_fini(&r->at[i].cache);
    }
    *r = (struct ranks){.n = 0};
}

struct rank *ranks_sampler(struct ranks *r)
{
    return &r->at[r->n - r->n_parts];
}

/* Sums over the devices of all ranks, for the memory table. */
size_t ranks_allocated_bytes(const struct ranks *r)
{
    size_t sum = 0;

    for (int i = 0; i < r->n; i++)
        sum += r->at[i].device->allocated_bytes;
    return sum;
}

size_t ranks_sleeping_bytes(const struct ranks *r)
{
    size_t sum = 0;

    for (int i = 0; i < r->n; i++)
        sum += r->at[i].device->sleeping_bytes;
    return sum;
}

size_t ranks_constant_bytes(const struct ranks *r)
{
    size_t sum = 0;

    for (int i = 0; i < r->n; i++)
        sum += r->at[i].device->constant_bytes;
    return sum;
}

/* --- sleep ------------------------------------------------------------------------------ */

/* rank.rc of each rank holds its last result, so results of rank_run() are combined by
 * ranks_worst_result() and rank_run()'s own return value is ignored. */

/* Combine the results of all ranks: ERR_GPU is worst, then other errors, then ERR_AGAIN. */
static int ranks_worst_result(const struct ranks *r)
{
    int worst = ERR_OK;

    for (int i = 0; i < r->n; i++) {
        int rc = r->at[i].rc;

        if (rc == ERR_OK || worst == ERR_GPU)
            continue;
        if (rc != ERR_AGAIN || worst == ERR_OK)
            worst = rc;
    }
    return worst;
}

/* Ranks whose memory is with the system. */
static int ranks_n_asleep(const struct ranks *r)
{
    int n = 0;

    for (int i = 0; i < r->n; i++)
        n += r->at[i].is_asleep;
    return n;
}

/* Ranks that are asleep already have nothing to do. */
static int rank_sleep(struct rank *r, void *context)
{
    int rc = ERR_OK;

    (void)context;
    if (!r->is_asleep)
        rc = r->device->ops->sleep(r->device);
    r->is_asleep = r->is_asleep || rc == ERR_OK;
    return rc;
}

/* ERR_AGAIN means that this rank has begun to take memory. */
static int rank_wake(struct rank *r, void *context)
{
    int rc = ERR_OK;

    (void)context;
    if (r->is_asleep)
        rc = r->device->ops->wake(r->device);
    r->is_waking = rc == ERR_AGAIN;
    r->is_asleep = r->is_asleep && rc != ERR_OK;
    return rc;
}

/* If the host has no room for some rank's copy, ranks that are asleep wake again, and the caller
 * gets ERR_NO_MEMORY with all ranks awake. */
int ranks_sleep(struct ranks *r)
{
    int rc;

    do { /* no slices once a rank has given its memory back: all must get there */
        (void)!rank_run(r, rank_sleep, NULL); /* the results are combined below */
        rc = ranks_worst_result(r);
    } while (rc == ERR_AGAIN && ranks_n_asleep(r) > 0);
    if (rc != ERR_NO_MEMORY || ranks_n_asleep(r) == 0)
        return rc;
    do {
        (void)!rank_run(r, rank_wake, NULL);
        rc = ranks_worst_result(r);
    } while (rc == ERR_AGAIN);
    if (rc == ERR_OK)
        return ERR_NO_MEMORY;
    return ERR_GPU; /* some are asleep and cannot wake */
}

/* Make one rank sleep again after another found no memory to wake with. A rank in the middle of
 * waking finishes that first. A rank that cannot sleep, because the host has no room, keeps its
 * memory and need not wake next time. */
static int rank_give_back(struct rank *r, void *context)
{
    int rc;

    if (r->is_asleep && !r->is_waking)
        return ERR_OK;
    if (r->is_waking) {
        rc = rank_wake(r, context);
        if (rc == ERR_OK)
            return ERR_AGAIN;
        if (rc == ERR_NO_MEMORY)
            return ERR_OK;
        return rc;
    }
    rc = rank_sleep(r, context);
    if (rc == ERR_NO_MEMORY)
        return ERR_OK;
    return rc;
}

/* Two processes that wake at once could each hold half of the memory forever; so if one rank finds
 * none, all give theirs back before ERR_NO_MEMORY is returned. */
int ranks_wake(struct ranks *r)
{
    int rc;

    if (!r->gives_back) {
        (void)!rank_run(r, rank_wake, NULL); /* the results are combined below */
        rc = ranks_worst_result(r);
        if (rc != ERR_NO_MEMORY || r->n == 1)
            return rc;
        r->gives_back = true;
    }
    (void)!rank_run(r, rank_give_back, NULL);
    rc = ranks_worst_result(r);
    if (rc == ERR_AGAIN)
        return rc;
    r->gives_back = false;
    if (rc == ERR_OK)
        return ERR_NO_MEMORY;
    return rc;
}

/* --- copies ----------------------------------------------------------------------------- */

/* The tickets of all ranks' devices are kept in a ring, by the number of the common mark. Fewer
 * marks are open than a device takes, so either all ranks get one or the device has failed. */
int ranks_copy_mark(struct ranks *r, enum device_way way, uint64_t *ticket)
{
    size_t at = r->n_marks[way] % DEVICE_MARKS_MAX;
    int rc = ERR_OK;

    if (r->n == 1)
        return r->at[0].device->ops->copy_mark(r->at[0].device, way, ticket);
    if (r->n_marks[way] - r->n_done[way] == DEVICE_MARKS_MAX)
        return ERR_AGAIN;
    for (int i = 0; i < r->n && rc == ERR_OK; i++)
        rc = r->at[i].device->ops->copy_mark(r->at[i].device, way, &r->at[i].tickets[way][at]);
    if (rc != ERR_OK)
        return ERR_GPU;
    *ticket = ++r->n_marks[way];
    return ERR_OK;
}

/* A common mark is done when it is done on every rank; marks complete in order. */
int ranks_copy_done(struct ranks *r, enum device_way way, uint64_t ticket)
{
    if (r->n == 1)
        return r->at[0].device->ops->copy_done(r->at[0].device, way, ticket);
    must(ticket <= r->n_marks[way]);
    while (r->n_done[way] < ticket) {
        size_t at = r->n_done[way] % DEVICE_MARKS_MAX;

        for (int i = 0; i < r->n; i++) {
            struct device *device = r->at[i].device;
            int done = device->ops->copy_done(device, way, r->at[i].tickets[way][at]);

            if (done != 1)
                return done;
        }
        r->n_done[way]++;
    }
    return 1;
}
