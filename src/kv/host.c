/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's thread owns the index (entries, table, eviction order). The tier's threads get jobs
 * (memory, checksums, checks) and return results, which host_poll() applies to the index. So only
 * the two queues are shared.
 *
 *   ENTRY_OUT -> ENTRY_FREE -> ENTRY_FILLING -> ENTRY_PAGE -> ENTRY_FREE, when evicted or dropped
 *
 * A page is FILLING while its payload is copied, then a PAGE that can be served at once. Its
 * checksum is computed in the background, and only then does the file say that the slot holds a
 * page. */
#include "kv/host.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/own.h"
#include "kv/eviction.h"
#include "kv/table.h"

#define HOST_THREADS     4
#define HOST_CHUNK_BYTES ((size_t)64 << 20) /* pinning one stops the device for 3 ms */
/* Chunks requested at a time while there are no requests. */
#define HOST_ASKED_MAX 2
#define HOST_AHEAD     16       /* more are requested when fewer chunks are free */
#define HOST_FIRST     16       /* chunks that are requested at the start */
#define HOST_GENTLE_US 300000   /* between two chunks: a hundredth of the time */
#define HOST_RETRY_US  60000000 /* between attempts to get memory */
/* Times that nothing is evicted rather than a retained page. */
#define HOST_SPARE_MAX  10000
#define HOST_CHECKS_MAX 4096 /* at a time */

/* In memory, per slot. */
enum entry_state { ENTRY_OUT, ENTRY_FREE, ENTRY_FILLING, ENTRY_PAGE };

struct entry {
    enum entry_state state; /* OUT: its memory is not ready, and it holds nothing */
    bool busy;              /* a thread computes its checksum */
    bool checked;           /* its payload is known to be complete */
    bool bad;               /* failed its check, or was dropped: free it when it is not in use */
    uint32_t n_readers;
    uint32_t n_uses;
    uint32_t n_children; /* pages that continue it and came after it */
    uint32_t life;       /* number of pages that it has held */
    int32_t parent;      /* slot of the page before it, when it came; or -1 */
    uint32_t parent_life;
    int32_t next; /* in the list of free slots */
    struct hash name;
};

enum job_kind { JOB_PIN, JOB_SEAL, JOB_CHECK };

struct job {
    enum job_kind kind;
    int32_t slot; /* slot, or chunk for JOB_PIN */
    uint64_t ticket;
    bool good; /* the result */
};

struct job_queue {
    struct job *jobs; /* [cap] */
    uint32_t cap, head, tail;
};

/* The memory of a chunk of slots. */
enum chunk_state { CHUNK_OUT, CHUNK_ASKED, CHUNK_READY, CHUNK_FAILED };

/* A page that was found when the file was opened. */
struct found {
    uint64_t used;
    int32_t slot;
};

struct host {
    struct host_options options;
    int fd;
    char *map; /* NULL: the file cannot be used now */
    size_t map_bytes;
    struct host_file want;   /* the head that the file must have */
    struct host_file *file;  /* in the map, or &want */
    struct host_slot *slots; /* [n_slots] */
    char *payloads;
    int32_t n_slots;
    int32_t chunk_slots, n_chunks;

    /* For the engine's thread alone. */
    struct entry *entries;     /* [n_slots] */
    struct table table;        /* from names to slots */
    struct eviction *eviction; /* of pages that may be evicted */
    int32_t free;
    enum chunk_state *chunks; /* [n_chunks] */
    int32_t n_asked;
    int32_t n_free;
    bool gentle;
    int n_spared;       /* times in a row that nothing was evicted, because only retained pages
                         * could be */
    uint64_t grown_us;  /* when a chunk was last requested */
    uint64_t failed_us; /* when memory was last lacking */
    uint64_t n_used;
    struct found *found; /* [n_slots], for opening; NULL afterwards */
    uint64_t tried_us;   /* when opening the file was last tried */
    struct host_counters counters;

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t work;
    struct job_queue todo, done;
    bool stop;
    pthread_t threads[HOST_THREADS];
    int n_threads;
};

uint64_t host_slot_digest(const struct host_slot *header)
{
    struct hash_xxh3 state;

    hash_xxh3_begin(&state);
    hash_xxh3_add(&state, &header->n_tokens, sizeof header->n_tokens);
    hash_xxh3_add(&state, &header->payload_xxh3, sizeof header->payload_xxh3);
    hash_xxh3_add(&state, &header->name,
                  offsetof(struct host_slot, slot_xxh3) - offsetof(struct host_slot, name));
    return hash_xxh3_end(&state);
}

void *host_payload(const struct host *h, int32_t slot)
{
    return h->payloads + (size_t)slot * h->file->payload_bytes;
}

/* --- queues ----------------------------------------------------------------------------------- */

/* Rings under host.lock: `todo` from the engine to the threads, `done` back. */

static void host_push(struct job_queue *q, struct job j)
{
    must(q->tail - q->head < q->cap);
    q->jobs[q->tail++ % q->cap] = j;
}

static bool host_pop(struct job_queue *q, struct job *j)
{
    if (q->head == q->tail)
        return false;
    *j = q->jobs[q->head++ % q->cap];
    return true;
}

/* Give a job to the threads. */
static void host_ask(struct host *h, enum job_kind kind, int32_t slot, uint64_t ticket)
{
    /* Never full: the queues have a place for every job there can be (host_alloc()). */
    h->counters.jobs++;
    (void)pthread_mutex_lock(&h->lock);
    host_push(&h->todo, (struct job){.kind = kind, .slot = slot, .ticket = ticket});
    (void)pthread_cond_signal(&h->work);
    (void)pthread_mutex_unlock(&h->lock);
}

/* --- the threads ------------------------------------------------------------------------- */

static size_t host_chunk_bytes(const struct host *h, int32_t chunk)
{
    int32_t first = chunk * h->chunk_slots, n = h->n_slots - first;

    /* The last chunk may be shorter. */
    if (n > h->chunk_slots)
        n = h->chunk_slots;
    return (size_t)n * h->file->payload_bytes;
}

/* A full tmpfs must report it now: later it would be a signal in the middle of a copy. The pages
 * are mapped before the device's driver sees the memory, because the driver would map them under
 * locks of its own, which launches of steps wait for. */
static bool host_pin(struct host *h, int32_t chunk)
{
    char *memory = host_payload(h, chunk * h->chunk_slots);
    size_t bytes = host_chunk_bytes(h, chunk);
    int e = FAULT_HIT(host_grow) ? ENOSPC : posix_fallocate(h->fd, memory - h->map, (off_t)bytes);

    if (e == 0)
        /* Fails before Linux 5.14, where the driver maps them. */
        (void)madvise(memory, bytes, MADV_POPULATE_WRITE);
    if (e == 0 && h->options.pin(h->options.context, memory, bytes) == ERR_OK)
        return true;
    log_warn("host: %s does not grow beyond %zu MiB: %s; lower kv_host_bytes", h->options.path,
             (size_t)chunk * h->chunk_slots * h->file->payload_bytes >> 20,
             e == 0 ? "the device does not take the memory" : strerror(e));
    return false;
}

static uint64_t host_digest(const struct host *h, int32_t slot)
{
    return hash_xxh3(host_payload(h, slot), h->file->page_bytes);
}

/* A job. JOB_SEAL makes the slot valid last, and only if it was not dropped meanwhile. */
static bool host_work(struct host *h, const struct job *j)
{
    struct host_slot *header = &h->slots[j->slot];
    uint32_t empty = HOST_EMPTY;

    switch (j->kind) {
    case JOB_PIN: return host_pin(h, j->slot);
    case JOB_SEAL:
        header->payload_xxh3 = host_digest(h, j->slot);
        header->slot_xxh3 = host_slot_digest(header);
        return atomic_compare_exchange_strong(&header->state, &empty,
                                              HOST_HOLDS); /* not if it was dropped */
    case JOB_CHECK:
        return !FAULT_HIT(host_check) && header->payload_xxh3 == host_digest(h, j->slot);
    }
    return false;
}

static void *host_run(void *arg)
{
    struct host *host = arg;
    struct job job;

    (void)pthread_mutex_lock(&host->lock);
    for (;;) { /* until host_close() */
        while (!host->stop && host->todo.head == host->todo.tail)
            (void)pthread_cond_wait(&host->work, &host->lock);
        /* A stop ends the thread only when the queue is empty. */
        if (!host_pop(&host->todo, &job))
            break; /* stopped, and all jobs are done */
        (void)pthread_mutex_unlock(&host->lock);
        job.good = host_work(host, &job);
        (void)pthread_mutex_lock(&host->lock);
        host_push(&host->done, job);
    }
    (void)pthread_mutex_unlock(&host->lock);
    return NULL;
}

/* --- the index --------------------------------------------------------------------------- */

static bool host_is_ready(const struct host *h, int32_t slot)
{
    return h->chunks[slot / h->chunk_slots] == CHUNK_READY;
}

/* Call when a page's last use or its right to be evicted has changed. Only pages that are not in
 * use and that no other page continues are in the eviction order. */
static void host_place(struct host *h, int32_t slot)
{
    const struct entry *entry = &h->entries[slot];

    if (entry->state == ENTRY_PAGE && entry->n_readers == 0 && entry->n_children == 0 &&
        !entry->busy && !entry->bad && host_is_ready(h, slot))
        eviction_add(h->eviction, slot);
    else
        eviction_remove(h->eviction, slot);
}

static void host_note_used(struct host *h, int32_t slot)
{
    h->slots[slot].used = ++h->n_used;
    eviction_use(h->eviction, slot);
}

/* Write the page's retention to the file, as it is in effect. */
static void host_note_retained(struct host *h, int32_t slot)
{
    atomic_store_explicit(&h->slots[slot].retains,
                          retain_pack(eviction_retained(h->eviction, slot)), memory_order_relaxed);
}

static void host_add_free(struct host *h, int32_t slot)
{
    struct entry *entry = &h->entries[slot];

    entry->state = ENTRY_FREE;
    /* Last in, first out: the slot whose memory was used last is taken first. */
    entry->next = h->free;
    h->free = slot;
    h->n_free++;
}

/* Add a slot's page to the index; its name is set. Its parent, if it is here, gets one more child,
 * and is not evicted before it. */
static void host_insert(struct host *h, int32_t slot, const struct hash *parent)
{
    struct entry *entry = &h->entries[slot];
    /* -1: the parent is not here. */
    int32_t before = table_find(&h->table, parent);

    table_add(&h->table, &entry->name, slot);
    entry->state = ENTRY_PAGE;
    entry->n_children = 0;
    entry->life++;
    entry->parent = before;
    if (before != -1) {
        entry->parent_life = h->entries[before].life;
        h->entries[before].n_children++;
        host_place(h, before);
    }
    eviction_begin(
        h->eviction, slot, before,
        retain_unpack(atomic_load_explicit(&h->slots[slot].retains, memory_order_relaxed)));
    eviction_use(h->eviction, slot);
    host_place(h, slot);
    h->counters.pages++;
}

/* Remove a page from the index; the slot is in no list afterwards. The parent's slot may hold
 * another page by now, which its life count shows. */
static void host_remove(struct host *h, int32_t slot)
{
    struct entry *entry = &h->entries[slot];

    atomic_store_explicit(&h->slots[slot].state, HOST_EMPTY, memory_order_release);
    table_erase(&h->table, &entry->name);
    eviction_end(h->eviction, slot);
    if (entry->parent != -1 && h->entries[entry->parent].life == entry->parent_life) {
        h->entries[entry->parent].n_children--;
        host_place(h, entry->parent);
    }
    entry->life++;
    entry->parent = -1;
    h->counters.pages -= !entry->bad;
}

/* --- opening ----------------------------------------------------------------------------- */

/* Was the file written by an engine of this model, page size and version? */
static bool host_is_ours(const struct host *h, const struct host_file *f)
{
    const struct host_file *want = h->file;

    return f->magic == want->magic && f->version == want->version && f->n_slots == want->n_slots &&
           f->page_bytes == want->page_bytes && f->payload_bytes == want->payload_bytes &&
           f->payloads_at == want->payloads_at && f->page_tokens == want->page_tokens &&
           memcmp(&f->fingerprint, &want->fingerprint, sizeof f->fingerprint) == 0;
}

/* Map the file; begin it anew if it is another model's. */
static int host_map(struct host *h)
{
    struct host_file want = h->want, got = {0};
    struct stat st;
    bool ours;

    if (fstat(h->fd, &st) == -1)
        return ERR_IO;
    ours = st.st_size == (off_t)h->map_bytes &&
           pread(h->fd, &got, sizeof got, 0) == (ssize_t)sizeof got && host_is_ours(h, &got);
    if (!ours && st.st_size > 0)
        log_info("host: %s holds pages of another model or build; it is begun anew",
                 h->options.path);
    /* Emptied first, so that the pages of the other model are freed and the rest reads as zeros. */
    if (!ours && (ftruncate(h->fd, 0) == -1 || ftruncate(h->fd, (off_t)h->map_bytes) == -1))
        return ERR_IO;
    if ((errno = posix_fallocate(h->fd, 0, (off_t)want.payloads_at)) != 0)
        return ERR_NO_MEMORY;
    h->map = mmap(NULL, h->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd, 0);
    if (h->map == MAP_FAILED) {
        h->map = NULL;
        return ERR_NO_MEMORY;
    }
    h->file = (struct host_file *)(void *)h->map;
    if (!ours)
        *h->file = want;
    h->slots = (struct host_slot *)(void *)(h->map + sizeof *h->file);
    h->payloads = h->map + want.payloads_at;
    return ERR_OK;
}

/* The folder of the file, created if it is missing, for this user alone. */
static int host_make_folder(const char *path)
{
    char dir[4096];
    char *slash;

    (void)snprintf(dir, sizeof dir, "%s", path);
    /* Without a folder in the path, or in "/", there is none to create. */
    slash = strrchr(dir, '/');
    if (slash == NULL || slash == dir)
        return ERR_OK;
    *slash = '\0';
    (void)mkdir(dir, 0700); /* exists, or own_folder() reports why not */
    return own_folder("host", dir);
}

static int host_open_file(struct host *h)
{
    int rc = host_make_folder(h->options.path);

    if (rc == ERR_OK)
        rc = own_open("host", h->options.path, O_RDWR | O_CREAT, &h->fd);
    if (rc == ERR_NOT_FOUND)
        log_error("host: %s: %s", h->options.path, strerror(ENOENT));
    if (rc != ERR_OK)
        return rc == ERR_NOT_FOUND ? ERR_IO : rc;
    if (flock(h->fd, LOCK_EX | LOCK_NB) == -1) {
        log_error("host: another engine uses %s; stop it, or set kv_host_file", h->options.path);
        return ERR_IN_USE;
    }
    rc = host_map(h);
    if (rc != ERR_OK)
        log_error("host: %s of %zu MiB: %s", h->options.path, h->map_bytes >> 20, strerror(errno));
    return rc;
}

/* The queues are as long as there can be jobs at a time: one per slot and chunk, and
 * HOST_CHECKS_MAX checks. */
static int host_alloc(struct host *h)
{
    size_t n = (size_t)h->n_slots, jobs = n + (size_t)h->n_chunks + HOST_CHECKS_MAX;

    h->entries = mem_zalloc_array(n, sizeof *h->entries);
    h->chunks = mem_zalloc_array((size_t)h->n_chunks, sizeof *h->chunks);
    h->found = mem_zalloc_array(n, sizeof *h->found);
    h->todo = (struct job_queue){.jobs = mem_zalloc_array(jobs, sizeof(struct job)),
                                 .cap = (uint32_t)jobs};
    h->done = (struct job_queue){.jobs = mem_zalloc_array(jobs, sizeof(struct job)),
                                 .cap = (uint32_t)jobs};
    if (h->entries == NULL || h->chunks == NULL || h->found == NULL || h->todo.jobs == NULL ||
        h->done.jobs == NULL ||
        table_open(&h->table, &h->entries->name, sizeof *h->entries, (uint32_t)n) != ERR_OK ||
        eviction_open(&h->eviction, h->n_slots,
                      (int)((int64_t)h->n_slots * h->options.kept_pct / 100)) != ERR_OK)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* At the start, all chunks that hold pages are requested. */
static void host_ask_chunk(struct host *h, int32_t chunk)
{
    if (h->chunks[chunk] != CHUNK_OUT)
        return;
    h->chunks[chunk] = CHUNK_ASKED;
    h->n_asked++;
    host_ask(h, JOB_PIN, chunk, 0);
}

static int host_by_use(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    return (x->used > y->used) - (x->used < y->used);
}

/* Take the pages that the previous engine left, in the order of their last use, so that the
 * eviction order continues where it was. */
static void host_take_back(struct host *h)
{
    struct found *found = h->found;
    int n = 0;

    eviction_tick(h->eviction, clock_stamp_s()); /* retention that has ended takes no room */
    for (int32_t i = 0; i < h->n_slots; i++) {
        struct host_slot *header = &h->slots[i];
        bool holds = atomic_load(&header->state) == HOST_HOLDS;

        if (holds && header->n_tokens == h->file->page_tokens &&
            header->slot_xxh3 == host_slot_digest(header))
            found[n++] = (struct found){.used = header->used, .slot = i};
        else
            atomic_store(&header->state, HOST_EMPTY);
    }
    qsort(found, (size_t)n, sizeof *found, host_by_use);
    for (int i = 0; i < n; i++) {
        struct entry *entry = &h->entries[found[i].slot];
        const struct host_slot *header = &h->slots[found[i].slot];

        if (table_find(&h->table, &header->name) != -1) { /* impossible, but harmless */
            atomic_store(&h->slots[found[i].slot].state, HOST_EMPTY);
            continue;
        }
        entry->name = header->name;
        entry->n_uses = 1;
        host_insert(h, found[i].slot, &header->parent);
        host_note_retained(h, found[i].slot);
        h->n_used = found[i].used;
    }
    for (int i = n - 1; i >= 0; i--) { /* the most recently used one first */
        if (h->entries[found[i].slot].state == ENTRY_PAGE)
            host_ask_chunk(h, found[i].slot / h->chunk_slots);
    }
    for (int32_t i = 0; i < h->n_chunks && h->n_asked < HOST_FIRST; i++)
        host_ask_chunk(h, i);
    mem_free(h->found);
    h->found = NULL;
    if (n > 0)
        log_info("host: %d pages of the previous engine in %s", n, h->options.path);
}

/* Open the file and read its slots. Without it the tier has no pages and takes none. */
static int host_attach(struct host *h)
{
    int rc = host_open_file(h);

    h->tried_us = clock_us();
    if (rc == ERR_OK) {
        host_take_back(h);
        return ERR_OK;
    }
    if (h->fd != -1)
        (void)close(h->fd);
    h->fd = -1;
    return rc;
}

/* Is it time to try again after a lack of memory? */
static bool host_is_time(const struct host *h, uint64_t since_us)
{
    uint64_t wait_us = h->options.retry_us != 0 ? h->options.retry_us : HOST_RETRY_US;

    return clock_us() - since_us >= wait_us;
}

static int host_start(struct host *h)
{
    while (h->n_threads < HOST_THREADS) {
        if (pthread_create(&h->threads[h->n_threads], NULL, host_run, h) != 0) {
            log_error("host: a thread cannot start: %s", strerror(errno));
            return ERR_NO_MEMORY;
        }
        h->n_threads++;
    }
    return ERR_OK;
}

/* The sizes follow from the number of slots; everything else is allocated before memory is
 * sealed. */
int host_open(struct host **out, const struct host_options *o)
{
    struct host *host = mem_zalloc(sizeof *host);
    struct host_file *want;
    size_t n;
    int rc;

    must(o->page_tokens >= 1 && o->page_tokens <= HOST_TOKENS_MAX);
    if (host == NULL)
        return ERR_NO_MEMORY;
    (void)pthread_mutex_init(&host->lock, NULL); /* cannot fail on Linux */
    (void)pthread_cond_init(&host->work, NULL);
    host->options = *o;
    host->fd = -1;
    host->free = -1;
    host->want = (struct host_file){.magic = HOST_MAGIC,
                                    .version = HOST_VERSION,
                                    .page_bytes = o->page_bytes,
                                    .page_tokens = (uint32_t)o->page_tokens,
                                    .fingerprint = o->fingerprint};
    want = &host->want;
    want->payload_bytes = (o->page_bytes + HOST_ALIGN - 1) / HOST_ALIGN * HOST_ALIGN;
    n = o->max_bytes / want->payload_bytes;
    if (n < 1)
        n = 1;
    if (n > INT32_MAX / 2)
        n = INT32_MAX / 2;
    want->n_slots = (uint32_t)n;
    want->payloads_at =
        (sizeof *want + n * sizeof(struct host_slot) + HOST_ALIGN - 1) / HOST_ALIGN * HOST_ALIGN;
    strncpy(want->name, o->name, sizeof want->name - 1);
    host->n_slots = (int32_t)n;
    host->chunk_slots = (int32_t)(HOST_CHUNK_BYTES / want->payload_bytes);
    if (host->chunk_slots < 1)
        host->chunk_slots = 1;
    host->n_chunks = (host->n_slots + host->chunk_slots - 1) / host->chunk_slots;
    host->map_bytes = (size_t)want->payloads_at + n * (size_t)want->payload_bytes;
    host->file = want;
    rc = host_alloc(host);
    if (rc == ERR_OK && (rc = host_attach(host)) != ERR_OK && rc != ERR_IN_USE) {
        log_warn("host: no pages are kept in %s until it can be used", o->path);
        rc = ERR_OK; /* host_tick() tries again */
    }
    if (rc == ERR_OK)
        rc = host_start(host);
    if (rc != ERR_OK) {
        host_close(host);
        return rc;
    }
    *out = host;
    return ERR_OK;
}

void host_close(struct host *h)
{
    if (h == NULL)
        return;
    if (h->n_threads > 0) {
        (void)pthread_mutex_lock(&h->lock);
        h->stop = true;
        (void)pthread_cond_broadcast(&h->work);
        (void)pthread_mutex_unlock(&h->lock);
    }
    for (int i = 0; i < h->n_threads; i++)
        (void)pthread_join(h->threads[i], NULL);
    for (int32_t i = 0; i < h->n_chunks && h->chunks != NULL && h->map != NULL; i++) {
        if (h->chunks[i] == CHUNK_READY)
            h->options.unpin(h->options.context, host_payload(h, i * h->chunk_slots));
    }
    if (h->map != NULL)
        (void)munmap(h->map, h->map_bytes);
    if (h->fd != -1)
        (void)close(h->fd);
    mem_free(h->entries);
    table_close(&h->table);
    mem_free(h->chunks);
    mem_free(h->found);
    eviction_close(h->eviction);
    mem_free(h->todo.jobs);
    mem_free(h->done.jobs);
    mem_free(h);
}

/* --- the engine's calls ----------------------------------------------------------------------- */

int32_t host_find(const struct host *h, const struct hash *name, const int32_t *tokens)
{
    int32_t slot = table_find(&h->table, name);

    if (slot == -1 || h->entries[slot].state != ENTRY_PAGE || h->entries[slot].bad ||
        !host_is_ready(h, slot) ||
        memcmp(h->slots[slot].tokens, tokens, h->file->page_tokens * sizeof *tokens) != 0)
        return -1;
    return slot;
}

/* Request more memory, if the limit allows it. True while some is being prepared. */
static bool host_grow(struct host *h)
{
    int asked_max = h->gentle ? 1 : HOST_ASKED_MAX;

    if (h->map == NULL)
        return false;
    /* Gently: a chunk at a time, with pauses, because pinning delays launches. */
    if (h->gentle && clock_us() - h->grown_us < HOST_GENTLE_US)
        return true; /* soon */
    for (int32_t i = 0; i < h->n_chunks && h->n_asked < asked_max; i++) {
        if (h->chunks[i] == CHUNK_FAILED) {
            if (!host_is_time(h, h->failed_us))
                return false;
            h->chunks[i] = CHUNK_OUT;
        }
        if (h->chunks[i] == CHUNK_OUT) {
            h->chunks[i] = CHUNK_ASKED;
            h->n_asked++;
            h->grown_us = clock_us();
            host_ask(h, JOB_PIN, i, 0);
        }
    }
    return h->n_asked > 0;
}

/* The page to evict. A retained one only if there are no others: those may be in use for a moment,
 * so the new page is not saved rather; but not more than HOST_SPARE_MAX times in a row. */
static int32_t host_choose(struct host *h)
{
    int32_t slot = eviction_first(h->eviction);

    if (slot == -1 || eviction_retained(h->eviction, slot).rank <= 0 ||
        h->counters.pages <= (uint64_t)eviction_n_kept(h->eviction) ||
        ++h->n_spared > HOST_SPARE_MAX) {
        h->n_spared = 0;
        return slot;
    }
    return -1;
}

/* The victim's payload stays valid, because nothing is written to the slot before host_fill(). */
static int32_t host_evict(struct host *h, struct host_victim *victim)
{
    int32_t slot = host_choose(h);
    const struct host_slot *header = &h->slots[slot == -1 ? 0 : slot];

    if (slot == -1)
        return -1;
    if (h->entries[slot].n_uses > 1 && h->entries[slot].checked)
        *victim = (struct host_victim){.label = {.name = header->name,
                                                 .parent = header->parent,
                                                 .tokens = header->tokens,
                                                 .space = header->space,
                                                 .retain = eviction_retained(h->eviction, slot)},
                                       .payload = host_payload(h, slot),
                                       .n_uses = h->entries[slot].n_uses};
    host_remove(h, slot);
    h->counters.evicted++;
    return slot;
}

/* The growth of the tier is asked for before slots run out, because pinning takes time. */
int32_t host_take(struct host *h, const struct page_label *label, struct host_victim *victim)
{
    int32_t slot = h->free;
    struct entry *entry;

    *victim = (struct host_victim){0};
    if (h->map == NULL || table_find(&h->table, &label->name) != -1)
        return -1; /* it is there, or being filled */
    if (h->n_free / h->chunk_slots < HOST_AHEAD)
        (void)host_grow(h); /* in advance */
    if (slot != -1) {
        h->free = h->entries[slot].next;
        h->n_free--;
    } else if (host_grow(h) || (slot = host_evict(h, victim)) == -1)
        return -1;
    entry = &h->entries[slot];
    /* Everything else begins at zero; the life goes on. */
    *entry = (struct entry){
        .state = ENTRY_FILLING, .life = entry->life, .parent = -1, .next = -1, .name = label->name};
    return slot;
}

/* The slot's state stays HOST_EMPTY meanwhile: after a crash it holds nothing. */
void host_fill(struct host *h, int32_t slot, const struct page_label *label)
{
    struct host_slot *header = &h->slots[slot];

    header->n_tokens = h->file->page_tokens;
    header->name = label->name;
    header->parent = label->parent;
    header->space = label->space;
    atomic_store_explicit(&header->retains, retain_pack(label->retain), memory_order_relaxed);
    /* The digest covers the whole array. */
    memset(header->tokens, 0, sizeof header->tokens);
    memcpy(header->tokens, label->tokens, h->file->page_tokens * sizeof *label->tokens);
}

void host_filled(struct host *h, int32_t slot, bool good)
{
    struct entry *entry = &h->entries[slot];

    must(entry->state == ENTRY_FILLING);
    if (!good || table_find(&h->table, &entry->name) != -1) {
        host_add_free(h, slot);
        return;
    }
    entry->checked = true; /* it was just written */
    entry->busy = true;
    entry->n_uses = 1;
    h->slots[slot].used = ++h->n_used;
    /* It is found from now on; `busy` keeps it from eviction until it is sealed. */
    host_insert(h, slot, &h->slots[slot].parent);
    host_note_retained(h, slot); /* the limit may not have allowed its retention */
    host_ask(h, JOB_SEAL, slot, 0);
}

int32_t host_n_slots(const struct host *h)
{
    if (h->map == NULL)
        return 0;
    return h->n_slots;
}

bool host_read_slot(const struct host *h, int32_t slot, struct page_label *label)
{
    const struct entry *entry = &h->entries[slot];
    const struct host_slot *header = &h->slots[slot];

    if (entry->state != ENTRY_PAGE || entry->bad)
        return false;
    *label = (struct page_label){.name = entry->name,
                                 .parent = header->parent,
                                 .tokens = header->tokens,
                                 .space = header->space,
                                 .retain = eviction_retained(h->eviction, slot)};
    return true;
}

bool host_label(const struct host *h, int32_t slot, const struct hash *name,
                struct page_label *label)
{
    const struct entry *entry = &h->entries[slot];

    if (entry->state != ENTRY_PAGE || entry->bad || !entry->checked ||
        memcmp(&entry->name, name, sizeof *name) != 0)
        return false;
    return host_read_slot(h, slot, label);
}

void host_hold(struct host *h, int32_t slot)
{
    must(h->entries[slot].state == ENTRY_PAGE);
    h->entries[slot].n_readers++;
    host_place(h, slot);
}

void host_use(struct host *h, int32_t slot)
{
    struct entry *entry = &h->entries[slot];

    must(entry->state == ENTRY_PAGE);
    entry->n_uses++;
    host_note_used(h, slot);
}

/* Hide a page: it is not found any more. */
static void host_condemn(struct host *h, int32_t slot)
{
    h->entries[slot].bad = true;
    h->counters.pages--;
    atomic_store_explicit(&h->slots[slot].state, HOST_GONE, memory_order_release);
}

/* Free a page that failed its check or was dropped, once it is not in use. */
static void host_let_go(struct host *h, int32_t slot)
{
    struct entry *entry = &h->entries[slot];

    if (!entry->bad) {
        host_place(h, slot);
        return;
    }
    if (entry->n_readers > 0 || entry->busy)
        return;
    host_remove(h, slot);
    entry->bad = false;
    host_add_free(h, slot);
}

void host_release(struct host *h, int32_t slot)
{
    must(h->entries[slot].n_readers > 0);
    h->entries[slot].n_readers--;
    host_let_go(h, slot);
}

bool host_is_checked(const struct host *h, int32_t slot)
{
    return h->entries[slot].checked;
}

void host_check(struct host *h, int32_t slot, uint64_t ticket)
{
    must(h->entries[slot].n_readers > 0);
    host_ask(h, JOB_CHECK, slot, ticket);
}

/* A chunk has its memory, or not. Its slots become free, or their pages can be served. */
static void host_pinned(struct host *h, const struct job *j)
{
    int32_t first = j->slot * h->chunk_slots, end = first + h->chunk_slots;

    h->n_asked--;
    h->chunks[j->slot] = j->good ? CHUNK_READY : CHUNK_FAILED;
    if (!j->good) {
        h->failed_us = clock_us();
        return;
    }
    if (end > h->n_slots)
        end = h->n_slots;
    h->counters.slots += (uint64_t)(end - first);
    /* Backwards, so that the first slot is the first that is taken. */
    for (int32_t i = end - 1; i >= first; i--) {
        if (h->entries[i].state == ENTRY_OUT)
            host_add_free(h, i);
        else
            host_place(h, i);
    }
}

/* A page that fails is not freed here, because the loader still holds it: host_release() does
 * that. */
static void host_note_check(struct host *h, const struct job *j)
{
    struct entry *entry = &h->entries[j->slot];

    if (j->good)
        entry->checked = true;
    else if (!entry->bad) {
        host_condemn(h, j->slot); /* the reader still holds it */
        h->counters.faults++;
        log_warn("host: a page in %s failed its check; it is computed again", h->options.path);
    }
}

/* Results other than checks are applied here; the caller gets checks only. */
bool host_poll(struct host *h, uint64_t *ticket, bool *good)
{
    struct job job;
    bool got;

    do { /* ends with the queue, or with a check */
        (void)pthread_mutex_lock(&h->lock);
        got = host_pop(&h->done, &job);
        (void)pthread_mutex_unlock(&h->lock);
        if (!got)
            return false;
        h->counters.jobs--;
        switch (job.kind) {
        case JOB_PIN: host_pinned(h, &job); break;
        case JOB_SEAL:
            h->entries[job.slot].busy = false;
            host_let_go(h, job.slot);
            break;
        case JOB_CHECK: host_note_check(h, &job); break;
        }
    } while (job.kind != JOB_CHECK);
    *ticket = job.ticket;
    *good = job.good;
    return true;
}

void host_be_gentle(struct host *h, bool gentle)
{
    h->gentle = gentle;
    if (!gentle && h->options.grows_idle)
        (void)host_grow(h);
}

bool host_is_growing(const struct host *h)
{
    return !h->gentle && h->n_asked > 0;
}

void host_wait(struct host *h, uint64_t max_us)
{
    uint64_t until_us = clock_us() + max_us, ticket;
    bool good;

    while (h->n_asked > 0 && clock_us() < until_us) {
        (void)host_poll(h, &ticket, &good); /* no check was requested yet */
        clock_sleep_us(200);
    }
}

void host_tick(struct host *h, uint32_t now_s)
{
    eviction_tick(h->eviction, now_s);
    if (h->map == NULL && !h->gentle && host_is_time(h, h->tried_us) && host_attach(h) == ERR_OK)
        log_info("host: %s can be used again", h->options.path);
}

void host_retain(struct host *h, const struct hash *name, struct retain r)
{
    int32_t slot = table_find(&h->table, name);

    if (slot == -1)
        return;
    eviction_retain(h->eviction, slot, r);
    host_note_retained(h, slot);
}

bool host_retains(const struct host *h, const struct hash *name, struct retain r)
{
    int32_t slot = table_find(&h->table, name);

    return slot != -1 && retain_covers(eviction_retained(h->eviction, slot), r);
}

bool host_drop(struct host *h, const struct hash *name)
{
    int32_t slot = table_find(&h->table, name);

    if (slot == -1 || h->entries[slot].bad)
        return false;
    host_condemn(h, slot);
    host_let_go(h, slot);
    return true;
}

void host_read_counters(const struct host *h, struct host_counters *out)
{
    *out = h->counters;
    out->kept = (uint64_t)eviction_n_kept(h->eviction);
}

void host_prove(const struct host *h)
{
    uint64_t n = 0, n_all = 0;
    int n_may_go = 0;

    for (int32_t i = 0; i < h->n_slots; i++) {
        const struct entry *entry = &h->entries[i];

        if (entry->state != ENTRY_PAGE)
            continue;
        must(table_find(&h->table, &entry->name) == i);
        n_may_go += entry->n_readers == 0 && entry->n_children == 0 && !entry->busy &&
                    !entry->bad && host_is_ready(h, i);
        n += !entry->bad;
        n_all++;
    }
    must(n == h->counters.pages);
    must(n_may_go == eviction_count(h->eviction));
    eviction_check(h->eviction);
    must(table_count(&h->table) == n_all);
}
