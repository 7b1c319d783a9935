/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool of threads for short jobs.
 *
 * A job is handed out through one 64-bit ticket: the job's number in the upper half, its next task
 * in the lower. A worker claims a task by compare-and-swap of the whole ticket. So a worker that
 * wakes late, and still holds the words of an earlier job, claims nothing, because the number has
 * changed. A job cannot end while a claimed task runs, because pool_run() waits for as many ends as
 * there are tasks.
 *
 * A step is a burst of some hundred jobs with microseconds between them, so a worker polls for the
 * next job for POOL_SPIN_US before it sleeps on a condition; idle workers use no CPU. */
#include "config.h"

#include "device/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define POOL_SPIN_US   60 /* longer than the gap between two jobs of a step, shorter than a tick */
#define POOL_SPIN_LAPS 64 /* reads of the ticket between two reads of the clock */

struct pool_worker {
    struct pool *pool;
    pthread_t thread;
    int idx;
};

struct pool {
    _Alignas(64) atomic_uint_least64_t ticket; /* job number << 32 | next task */
    _Alignas(64) atomic_int n_done;            /* tasks of this job that have ended */
    _Atomic(pool_task *) task;
    _Atomic(void *) job;
    atomic_int n_tasks;
    atomic_int n_asleep;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int width;
    int n_started;
    struct pool_worker workers[POOL_THREADS_MAX];
};

/* Tells a core with two threads that this one is only waiting. */
static void pool_pause_cpu(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Claim and run tasks of the current job until none is left. */
static void pool_work(struct pool *p, int worker)
{
    for (;;) { /* ends when the ticket's tasks are used up */
        uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
        pool_task *task = atomic_load_explicit(&p->task, memory_order_relaxed);
        void *job = atomic_load_explicit(&p->job, memory_order_relaxed);
        int n_tasks = atomic_load_explicit(&p->n_tasks, memory_order_relaxed);

        if ((int)(uint32_t)ticket >= n_tasks)
            return;
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &ticket, ticket + 1,
                                                   memory_order_acq_rel, memory_order_relaxed))
            continue;
        /* The claim succeeded, so the job cannot end before this task does. */
        task(job, (int)(uint32_t)ticket, worker);
        /* Release: the task's writes are visible to the caller that counts it. */
        atomic_fetch_add_explicit(&p->n_done, 1, memory_order_release);
    }
}

/* True when a job after `seen` has begun within the time to spin. */
static bool pool_spin(struct pool *p, uint32_t seen)
{
    uint64_t start = clock_us();

    do {
        for (int i = 0; i < POOL_SPIN_LAPS; i++) {
            uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);

            if ((uint32_t)(ticket >> 32) != seen)
                return true;
            pool_pause_cpu();
        }
    } while (clock_us() - start < POOL_SPIN_US);
    return false;
}

/* n_asleep is raised before the ticket is read again. pool_run() stores the ticket before it reads
 * n_asleep, so one of them sees the other, and no wake-up is lost. */
static void pool_sleep_until_job(struct pool *p, uint32_t seen)
{
    (void)pthread_mutex_lock(&p->lock); /* cannot fail: initialised, not held by us */
    atomic_fetch_add(&p->n_asleep, 1);
    while (!atomic_load(&p->stop) && (uint32_t)(atomic_load(&p->ticket) >> 32) == seen)
        (void)pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_asleep, 1);
    (void)pthread_mutex_unlock(&p->lock);
}

/* Spin, sleep, work, until the pool closes. */
static void *pool_worker_main(void *arg)
{
    struct pool_worker *worker = arg;
    struct pool *pool = worker->pool;
    uint32_t seen = 0;

    while (!atomic_load(&pool->stop)) {
        if (!pool_spin(pool, seen))
            pool_sleep_until_job(pool, seen);
        seen = (uint32_t)(atomic_load(&pool->ticket) >> 32);
        pool_work(pool, worker->idx);
    }
    return NULL;
}

/* The caller works too. A job of one task runs at once, without touching the ticket. */
void pool_run(struct pool *p, pool_task *task, void *job, int n_tasks)
{
    uint64_t number = atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32;

    must(n_tasks >= 0);
    if (n_tasks <= 1 || p->width == 1) {
        for (int i = 0; i < n_tasks; i++)
            task(job, i, 0);
        return;
    }
    /* The ticket is closed to claims while the job's words change: a worker that reads the next
     * n_tasks with an earlier ticket fails at the compare-and-swap. */
    atomic_store(&p->ticket, (number + 1) << 32 | INT32_MAX);
    atomic_store(&p->n_done, 0);
    atomic_store(&p->task, task);
    atomic_store(&p->job, job);
    atomic_store(&p->n_tasks, n_tasks);
    atomic_store(&p->ticket, (number + 2) << 32);
    if (atomic_load(&p->n_asleep) > 0) {
        (void)pthread_mutex_lock(&p->lock);
        (void)pthread_cond_broadcast(&p->wake);
        (void)pthread_mutex_unlock(&p->lock);
    }
    pool_work(p, 0);
    for (int laps = 0; atomic_load_explicit(&p->n_done, memory_order_acquire) < n_tasks; laps++) {
        if (laps % 256 == 255)
            (void)sched_yield(); /* the thread with the last task may need this core */
        pool_pause_cpu();
    }
}

/* Workers including the caller. */
int pool_width(const struct pool *p)
{
    return p->width;
}

/* The affinity mask counts, because containers and taskset limit it. */
int pool_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* Worker 0 is the thread that calls pool_run(), so width - 1 threads are started. */
int pool_open(struct pool **out, int n_threads)
{
    struct pool *pool = mem_zalloc(sizeof *pool);
    int rc = ERR_NO_MEMORY;

    if (pool == NULL)
        goto out;
    if (n_threads <= 0)
        n_threads = pool_cores();
    if (n_threads < 1)
        n_threads = 1;
    if (n_threads > POOL_THREADS_MAX)
        n_threads = POOL_THREADS_MAX;
    pool->width = n_threads;
    (void)pthread_mutex_init(&pool->lock, NULL); /* default attributes: cannot fail on Linux */
    (void)pthread_cond_init(&pool->wake, NULL);
    for (int i = 1; i < pool->width; i++) {
        struct pool_worker *worker = &pool->workers[i];

        worker->pool = pool;
        worker->idx = i;
        if (pthread_create(&worker->thread, NULL, pool_worker_main, worker) != 0) {
            log_error("device: thread %d of %d cannot be started; lower cpu_threads", i,
                      pool->width);
            goto out;
        }
        pool->n_started++;
    }
    *out = pool;
    pool = NULL;
    rc = ERR_OK;
out:
    pool_close(pool);
    return rc;
}

/* Nothing may be running. Sleeping workers are woken to see `stop`. */
void pool_close(struct pool *p)
{
    if (p == NULL)
        return;
    (void)pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    for (int i = 1; i <= p->n_started; i++)
        (void)pthread_join(p->workers[i].thread, NULL);
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    mem_free(p);
}
