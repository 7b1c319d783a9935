/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads tensors by several threads and hands their bytes on in pieces.
 *
 * Each thread has two pipes (pinned memory of the device), so that one is filled while the device
 * still copies from the other. A piece is read in parts of READ_BYTES, and each part is hashed
 * while it is in the core's cache.
 *
 * The sizes were measured on an H200 machine with 16 cores and 16 GB in the page cache: 8 threads
 * read 39 GB/s, 12 threads 45, 16 threads 42; without hashing 8 threads read 48; the link takes 55.
 * Pinning costs 0.3 ms per MB, so pipes are small (of 16 MB, filled 4 MB at a time: 27 GB/s); yet a
 * copy of 4 MB takes the link 75 us, ten times the cost of starting it. */
#include "model/reader.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "device/pool.h"

#define THREADS_MAX 12
#define BYTES_FOR_THREAD \
    ((size_t)32 << 20) /* bytes below which a thread costs more than it
                        * saves */
#define PIPES       2  /* per thread */
#define PIECE_BYTES ((size_t)4 << 20)
#define READ_BYTES  ((size_t)1 << 20)
#define PROGRESS_US 5000000 /* between two lines of progress */

struct reader_thread {
    struct device_pipe pipes[PIPES];
    int n_open;
    unsigned turn;
};

struct reading {
    const struct reader *r;
    const struct reader_item **order; /* [n_items]: largest first */
    size_t pipe_bytes;
    struct reader_thread threads[THREADS_MAX];
    atomic_int rc; /* the first error; threads stop at it */
    atomic_size_t read_bytes;
    _Atomic uint64_t logged_us;
};

/* Checked once per piece. */
static bool reader_has_failed(struct reading *g)
{
    return atomic_load(&g->rc) != ERR_OK;
}

/* Of errors in several threads, the first is reported. */
static void reader_keep_error(struct reading *g, int rc)
{
    int none = ERR_OK;

    if (rc != ERR_OK) /* only the first error replaces ERR_OK */
        (void)atomic_compare_exchange_strong(&g->rc, &none, rc);
}

/* The thread that replaces logged_us writes the line, so there is one per interval. */
static void reader_log_progress(struct reading *g, size_t bytes)
{
    size_t read_bytes = atomic_fetch_add(&g->read_bytes, bytes) + bytes;
    uint64_t now_us = clock_us(), logged_us = atomic_load(&g->logged_us);

    if (now_us > logged_us + PROGRESS_US &&
        atomic_compare_exchange_strong(&g->logged_us, &logged_us, now_us))
        log_info("model: loading weights, %.1f GB read", (double)read_bytes * 1e-9);
}

/* The thread's next pipe, ready to be filled; NULL on error. Each thread opens its own pipes, so
 * that pinning runs in parallel too. */
static struct device_pipe *reader_next_pipe(struct reading *g, struct reader_thread *t)
{
    struct device *device = g->r->device;
    struct device_pipe *pipe = &t->pipes[t->turn++ % PIPES];
    int rc;

    if (t->n_open < PIPES) {
        rc = device->ops->pipe_open(device, pipe, g->pipe_bytes);
        t->n_open += rc == ERR_OK;
    } else {
        rc = device->ops->pipe_wait(device, pipe);
    }
    reader_keep_error(g, rc);
    if (rc == ERR_OK)
        return pipe;
    return NULL;
}

/* One piece of a tensor: read, hash, place. */
static int reader_read_piece(struct reading *g, const struct reader_item *it, struct device_pipe *p,
                             size_t at, size_t bytes, struct hash_xxh3 *sum)
{
    int rc = ERR_OK;

    for (size_t i = 0; i < bytes && rc == ERR_OK; i += READ_BYTES) {
        size_t some = READ_BYTES;

        if (bytes - i < READ_BYTES)
            some = bytes - i;
        rc = checkpoint_read(g->r->files, it->t, at + i, p->bytes + i, some);
        if (rc == ERR_OK)
            hash_xxh3_add(sum, p->bytes + i, some);
    }
    if (rc != ERR_OK)
        return rc;
    return g->r->place(g->r->context, (size_t)(it - g->r->items), p, at, bytes);
}

/* A pool task: one tensor, in the order of its bytes, because the hash needs that order and so may
 * place(). */
static void reader_read_item(void *job, int task, int worker)
{
    struct reading *reading = job;
    size_t idx = (size_t)(reading->order[task] - reading->r->items);
    struct reader_item *it = &reading->r->items[idx];
    size_t piece = reading->pipe_bytes / it->step * it->step, bytes = it->t->bytes;
    struct hash_xxh3 sum;

    hash_xxh3_begin(&sum);
    for (size_t at = 0; at < bytes && !reader_has_failed(reading); at += piece) {
        struct device_pipe *pipe = reader_next_pipe(reading, &reading->threads[worker]);
        size_t some = piece;

        if (bytes - at < piece)
            some = bytes - at;
        if (pipe == NULL)
            return;
        reader_keep_error(reading, reader_read_piece(reading, it, pipe, at, some, &sum));
        reader_log_progress(reading, some);
    }
    it->xxh3 = hash_xxh3_end(&sum);
}

/* Largest first; equal sizes in list order, so that runs are reproducible. */
static int reader_by_bytes(const void *a, const void *b)
{
    const struct reader_item *x = *(const struct reader_item *const *)a;
    const struct reader_item *y = *(const struct reader_item *const *)b;

    if (x->t->bytes != y->t->bytes)
        return x->t->bytes > y->t->bytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Sort the items, and choose the size of pipes: at most PIECE_BYTES or the largest tensor, but at
 * least any item's step. */
static void reader_plan_items(struct reading *g)
{
    size_t most = 1;

    if (g->r->n_items > 0)
        most = 0;
    for (size_t i = 0; i < g->r->n_items; i++) {
        const struct reader_item *it = &g->r->items[i];
        must(it->step >= 1);

        g->order[i] = it;
        if (it->t->bytes > most)
            most = it->t->bytes;
        if (it->step > g->pipe_bytes)
            g->pipe_bytes = it->step;
    }
    if (most > PIECE_BYTES)
        most = PIECE_BYTES;
    if (most > g->pipe_bytes)
        g->pipe_bytes = most;
    qsort(g->order, g->r->n_items, sizeof(struct reader_item *), reader_by_bytes);
}

/* As many as there are cores, but each must have enough to read. */
static int reader_choose_threads(const struct reader *r)
{
    int n = r->n_threads;
    size_t bytes = 0;

    if (n <= 0)
        n = pool_cores();
    for (size_t i = 0; i < r->n_items; i++)
        bytes += r->items[i].t->bytes;
    if (r->n_threads == 0 && (size_t)n > bytes / BYTES_FOR_THREAD)
        n = (int)(bytes / BYTES_FOR_THREAD);
    if (n < 1)
        return 1;
    if (n > THREADS_MAX)
        return THREADS_MAX;
    return n;
}

/* Copies in flight read the pipes, so all are waited for first; a failed copy counts as an error of
 * reading. */
static void reader_close_pipes(struct reading *g)
{
    struct device *device = g->r->device;

    for (int i = 0; i < THREADS_MAX; i++) {
        struct reader_thread *thread = &g->threads[i];

        for (int j = 0; j < thread->n_open; j++)
            reader_keep_error(g, device->ops->pipe_wait(device, &thread->pipes[j]));
        for (int j = 0; j < thread->n_open; j++)
            device->ops->pipe_close(device, &thread->pipes[j]);
    }
}

/* The calling thread reads as well: it is worker 0 of the pool. */
int reader_run(const struct reader *r)
{
    struct reading *reading = mem_zalloc(sizeof *reading);
    struct pool *pool = NULL;
    uint64_t start_us = clock_us();
    int rc = ERR_NO_MEMORY;
    double seconds;

    if (reading == NULL)
        goto out;
    reading->r = r;
    atomic_store(&reading->logged_us, start_us);
    reading->order = mem_zalloc_array(r->n_items, sizeof(struct reader_item *));
    if (reading->order == NULL)
        goto out;
    reader_plan_items(reading);
    if ((rc = pool_open(&pool, reader_choose_threads(r))) != ERR_OK)
        goto out;
    pool_run(pool, reader_read_item, reading, (int)r->n_items);
    reader_close_pipes(reading);
    if ((rc = atomic_load(&reading->rc)) != ERR_OK)
        goto out;
    seconds = (double)(clock_us() - start_us + 1) * 1e-6;
    log_info("model: read %.2f GB of weights in %.2f s, %.1f GB/s, threads: %d",
             (double)atomic_load(&reading->read_bytes) * 1e-9, seconds,
             (double)atomic_load(&reading->read_bytes) * 1e-9 / seconds, pool_width(pool));
out:
    pool_close(pool);
    if (reading != NULL)
        mem_free(reading->order);
    mem_free(reading);
    return rc;
}
