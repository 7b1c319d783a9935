/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that stores responses. It takes all waiting jobs and writes them in one commit, so
 * that on a slow disk many answers share one sync. Readers and the thread share the LMDB
 * environment; db_lock keeps it open while they use it, because the thread may open it anew.
 *
 * A job has two owners: the thread and the exchange that waits for it. The last one frees it.
 *
 *   streamer: kept_write() -> list -> thread: one commit -> state, wake_fd -> streamer: the answer
 *   readers:  kept_read(), kept_remove(), which use the file themselves */
#include "front/kept/kept.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"

#define KEPT_WAITING_BYTES ((size_t)64 << 20) /* limit of records that wait for the disk */
#define KEPT_BATCH         64                 /* maximum records per commit */
#define KEPT_TICK_S        60  /* seconds between checks for expired records and a broken file */
#define KEPT_EXPIRE        256 /* maximum records removed per check */

/* A record on its way to the disk. */
struct kept_job {
    struct kept_record record; /* its texts follow the job in memory */
    struct kept_job *next;
    _Atomic int state;
    _Atomic int refs; /* the thread and the asker */
};

struct kept {
    char dir[4100];
    uint64_t bytes_max;
    double age_s;
    int wake_fd;
    pthread_t thread;

    pthread_rwlock_t db_lock; /* held for writing while db is replaced */
    struct kept_db *db;       /* NULL: not usable at present */

    /* guards the members below */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct kept_job *first, **last;
    size_t waiting_bytes;
    bool stops;
    _Atomic int news;
};

/* Tenant and id are separated by the tenant's NUL, so that no two pairs give the same bytes. */
struct hash kept_name(const char *tenant, const char *id)
{
    return hash_sha256(tenant, strlen(tenant) + 1, id, strlen(id));
}

/* Records that were created before this time have expired. */
static int64_t kept_before(const struct kept *k)
{
    return clock_unix_s() - (int64_t)k->age_s;
}

/* --- jobs --------------------------------------------------------------------------------------
 *
 * A job goes through a linked list from the streamer to the thread; its state is then read by the
 * streamer, after the thread has written to wake_fd. */

/* The memory of a job. */
static size_t kept_bytes(const struct kept_job *job)
{
    return sizeof *job + job->record.response_len + job->record.input_len;
}

/* Give up one of the two references. */
void kept_leave(struct kept_job *job)
{
    if (job != NULL && atomic_fetch_sub(&job->refs, 1) == 1)
        mem_free(job);
}

/* How far is the job? */
enum kept_state kept_state(const struct kept_job *job)
{
    return (enum kept_state)atomic_load(&job->state);
}

/* The flag saves the streamer from looking at all its exchanges at each wake-up. */
bool kept_has_news(struct kept *k)
{
    return atomic_exchange(&k->news, 0) != 0;
}

static struct kept_job *kept_job_new(const struct kept_record *r)
{
    struct kept_job *job = mem_alloc(sizeof *job + r->response_len + r->input_len);
    char *texts = (char *)(job + 1);

    if (job == NULL)
        return NULL;
    *job = (struct kept_job){.record = *r, .state = KEPT_WAITS, .refs = 2};
    memcpy(texts, r->response, r->response_len);
    memcpy(texts + r->response_len, r->input, r->input_len);
    job->record.response = texts;
    job->record.input = texts + r->response_len;
    return job;
}

/* The copy is made outside the lock, because records may be megabytes long. So the bound on waiting
 * bytes can be exceeded by one record per caller. */
struct kept_job *kept_write(struct kept *k, const struct kept_record *record)
{
    struct kept_job *job;
    bool takes;

    (void)pthread_mutex_lock(&k->lock);
    takes = k->waiting_bytes < KEPT_WAITING_BYTES;
    (void)pthread_mutex_unlock(&k->lock);
    if (takes)
        job = kept_job_new(record);
    else
        job = NULL;
    if (job == NULL)
        return NULL;
    (void)pthread_mutex_lock(&k->lock);
    *k->last = job;
    k->last = &job->next;
    k->waiting_bytes += kept_bytes(job);
    (void)pthread_cond_signal(&k->cond);
    (void)pthread_mutex_unlock(&k->lock);
    return job;
}

/* --- the thread ---------------------------------------------------------------------------- */

/* Take up to KEPT_BATCH jobs, oldest first; wait for one at most KEPT_TICK_S. *ends: the list is
 * empty and the store is closing. */
static int kept_take(struct kept *k, struct kept_job **jobs, bool *ends)
{
    struct timespec until;
    int n = 0;
    int rc = 0;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    /* Records may expire within seconds: check as often as that. */
    until.tv_sec += k->age_s < KEPT_TICK_S ? 1 + (time_t)k->age_s : KEPT_TICK_S;
    (void)pthread_mutex_lock(&k->lock);
    while (k->first == NULL && !k->stops && rc == 0)
        rc = pthread_cond_timedwait(&k->cond, &k->lock, &until);
    *ends = k->first == NULL && k->stops;
    while (k->first != NULL && n < KEPT_BATCH) {
        jobs[n] = k->first;
        k->first = jobs[n]->next;
        k->waiting_bytes -= kept_bytes(jobs[n++]);
    }
    if (k->first == NULL)
        k->last = &k->first;
    (void)pthread_mutex_unlock(&k->lock);
    return n;
}

/* Report a result to the askers, and wake the streamer once for all of them. */
static void kept_done(struct kept *k, struct kept_job **jobs, int n, enum kept_state state)
{
    uint64_t one = 1;

    must(state != KEPT_WAITS);
    for (int i = 0; i < n; i++) {
        atomic_store(&jobs[i]->state, (int)state);
        kept_leave(jobs[i]);
    }
    atomic_store(&k->news, 1);
    (void)!write(k->wake_fd, &one, sizeof one); /* cannot fail: the counter is small */
}

/* Write jobs in one commit. A record that is too large for the file fails alone. */
static void kept_put(struct kept *k, struct kept_job **jobs, int n)
{
    const struct kept_record *records[KEPT_BATCH];
    struct kept_job *good[KEPT_BATCH];
    int n_good = 0;
    int rc = ERR_IO;

    must(n <= KEPT_BATCH);
    for (int i = 0; i < n; i++) {
        const struct kept_record *record = &jobs[i]->record;

        if (k->db != NULL && kept_db_takes(k->db, record->response_len + record->input_len)) {
            records[n_good] = record;
            good[n_good++] = jobs[i];
        } else {
            kept_done(k, &jobs[i], 1, KEPT_FAILED);
        }
    }
    if (n_good > 0) {
        rc = kept_db_put(k->db, records, n_good);
        kept_done(k, good, n_good, rc == ERR_OK ? KEPT_WRITTEN : KEPT_FAILED);
    }
}

/* Reopen a closed or broken file; remove expired records from a good one. */
static void kept_look_after(struct kept *k)
{
    int rc;

    if (k->db != NULL && !kept_db_is_broken(k->db)) {
        rc = kept_db_expire(k->db, kept_before(k), KEPT_EXPIRE);
        if (rc != ERR_OK)
            log_warn("front: stored responses: expired ones cannot be removed: %s",
                     err_sentence(rc));
        return;
    }
    (void)pthread_rwlock_wrlock(&k->db_lock);
    kept_db_close(k->db);
    k->db = NULL;
    rc = kept_db_open(&k->db, k->dir, k->bytes_max, false);
    (void)pthread_rwlock_unlock(&k->db_lock);
    if (rc == ERR_OK)
        log_info("front: stored responses: %s is usable again", k->dir);
}

/* The thread's loop. It ends only when the list is empty, so that kept_close() loses nothing. */
static void *kept_run(void *arg)
{
    struct kept_job *jobs[KEPT_BATCH];
    struct kept *kept = arg;
    uint64_t looked_us = 0;
    bool ends = false;

    while (!ends) {
        uint64_t tick_us = (kept->age_s < KEPT_TICK_S ? 1 : KEPT_TICK_S) * 1000000ull;
        int n = kept_take(kept, jobs, &ends);

        if (n > 0)
            kept_put(kept, jobs, n);
        if (!ends && clock_us() - looked_us >= tick_us) {
            kept_look_after(kept);
            looked_us = clock_us();
        }
    }
    return NULL;
}

/* --- readers ------------------------------------------------------------------------------- */

/* Read a response, while the thread may write others: LMDB's readers do not wait for writers. */
int kept_read(struct kept *k, const struct hash *name, struct arena *arena, struct kept_record *out)
{
    int rc = ERR_IO;

    (void)pthread_rwlock_rdlock(&k->db_lock);
    if (k->db != NULL)
        rc = kept_db_get(k->db, name, kept_before(k), arena, out);
    (void)pthread_rwlock_unlock(&k->db_lock);
    return rc;
}

/* Remove a response. */
int kept_remove(struct kept *k, const struct hash *name)
{
    int rc = ERR_IO;

    (void)pthread_rwlock_rdlock(&k->db_lock);
    if (k->db != NULL)
        rc = kept_db_remove(k->db, name);
    (void)pthread_rwlock_unlock(&k->db_lock);
    return rc;
}

/* --- opening ------------------------------------------------------------------------------- */

/* Make the locks and start the thread. Its waits use the monotonic clock, so that changes of the
 * time do not matter. */
static int kept_start(struct kept *k)
{
    pthread_condattr_t attr;

    if (pthread_condattr_init(&attr) == 0 &&
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
        pthread_cond_init(&k->cond, &attr) == 0 && pthread_mutex_init(&k->lock, NULL) == 0 &&
        pthread_rwlock_init(&k->db_lock, NULL) == 0 &&
        pthread_create(&k->thread, NULL, kept_run, k) == 0)
        return ERR_OK;
    log_error("front: cannot start a thread: %s; raise TasksMax or free memory", strerror(errno));
    return ERR_NO_MEMORY;
}

/* Open the store. A file that cannot be opened does not stop the front: requests that need it get
 * an error until it can. */
int kept_open(struct kept **out, const char *dir, uint64_t bytes_max, double days, int wake_fd)
{
    struct kept *kept = mem_zalloc(sizeof *kept);
    int rc = ERR_NO_MEMORY;

    if (kept == NULL)
        return rc;
    (void)snprintf(kept->dir, sizeof kept->dir, "%s/responses", dir);
    kept->bytes_max = bytes_max;
    kept->age_s = days * 86400.0;
    kept->wake_fd = wake_fd;
    kept->last = &kept->first;
    rc = kept_db_open(&kept->db, kept->dir, bytes_max, true);
    if (rc != ERR_OK)
        log_error("front: responses are not stored at present (%s); retrying every minute",
                  err_sentence(rc));
    rc = kept_start(kept);
    if (rc != ERR_OK) {
        kept_db_close(kept->db);
        mem_free(kept);
        return rc;
    }
    *out = kept;
    return ERR_OK;
}

/* Write all waiting jobs, then end. */
void kept_close(struct kept *k)
{
    if (k == NULL)
        return;
    (void)pthread_mutex_lock(&k->lock);
    k->stops = true;
    (void)pthread_cond_signal(&k->cond);
    (void)pthread_mutex_unlock(&k->lock);
    (void)pthread_join(k->thread, NULL);
    kept_db_close(k->db);
    mem_free(k);
}
