/* SPDX-License-Identifier: Apache-2.0
 *
 * One mutex guards the queues and the index in memory; it is held for probes and list moves,
 * never over I/O. The I/O thread takes all queued writes as one batch: payloads, fdatasync, one
 * LMDB transaction, then the pages become visible. Reads go before writes.
 *
 * Every slot is an entry: free, or in the table and in the list of last use. A page that other
 * stored pages continue is not evicted before them: without its parent a page is never asked
 * for. */
#include "kv/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "kv/store_db.h"

#define STORE_MAP_BYTES   ((size_t)16 << 30) /* address room of the index; 115 MB per million */
#define STORE_USES_US     60000000u          /* last uses are written this often */
#define STORE_EVICT_LOOK  4096               /* entries looked at for one without children */
#define STORE_COMPLAIN_US 60000000u          /* a failing disk is reported this often */

struct store_entry {
    struct store_record record;
    uint32_t n_children; /* stored pages whose parent this is */
    uint32_t n_readers;  /* reads under way: not evicted */
    int32_t prev, next;  /* in the list of last use, or of free slots (next) */
    bool used;
};

/* A staging buffer: header and payload, as they stand in the page file. */
struct store_buffer {
    struct store_header *header; /* STORE_HEADER_BYTES, then page_bytes */
    struct store_buffer *next;   /* in the free, write, read or done queue */
    struct hash name;
    struct hash parent;
    int32_t tokens[STORE_TOKENS_MAX];
    uint64_t ticket;
    int32_t slot;
    int rc;
};

struct store_queue {
    struct store_buffer *first, *last;
};

struct store {
    struct store_options options;
    struct store_format format;
    struct store_db *db;
    uint32_t space;
    int lock_fd;
    int file_fd;
    int event_fd;
    pthread_t thread;
    bool thread_runs;

    pthread_mutex_t lock; /* guards all that follows */
    pthread_cond_t work;  /* for the I/O thread */
    pthread_cond_t idle;  /* for store_flush() */
    bool stop;
    bool busy; /* the I/O thread works on a batch */
    uint32_t n_slots;
    struct store_entry *entries; /* [n_slots] */
    int32_t *table;              /* [table_mask + 1]: slot or -1 */
    uint32_t table_mask;
    int32_t oldest, newest;
    int32_t free;
    struct store_use *uses; /* [n_chunks * STORE_USES] */
    bool *uses_marked;      /* [n_chunks] */
    uint32_t n_chunks;
    struct store_buffer *buffers; /* [n_buffers] */
    struct store_queue idle_buffers, writes, reads, done;
    struct store_counters counters;

    /* The I/O thread's own. */
    struct store_change *changes; /* [n_buffers * 2] */
    bool *uses_copy_marked;
    struct store_use *uses_copy;
    uint64_t uses_written_us;
    uint64_t complained_us;
};

/* --- queues and the index; lock held ------------------------------------------------------- */

static void store_push(struct store_queue *q, struct store_buffer *b)
{
    b->next = NULL;
    if (q->last == NULL)
        q->first = b;
    else
        q->last->next = b;
    q->last = b;
}

static struct store_buffer *store_pop(struct store_queue *q)
{
    struct store_buffer *b = q->first;

    if (b == NULL)
        return NULL;
    q->first = b->next;
    if (q->first == NULL)
        q->last = NULL;
    return b;
}

static uint32_t store_home(const struct store *st, const struct hash *name)
{
    uint32_t h;

    memcpy(&h, name->bytes + 8, sizeof h);
    return h & st->table_mask;
}

static uint32_t store_probe(const struct store *st, const struct hash *name)
{
    uint32_t i = store_home(st, name);

    while (st->table[i] != -1 &&
           memcmp(&st->entries[st->table[i]].record.name, name, sizeof *name) != 0)
        i = (i + 1) & st->table_mask;
    return i;
}

static int32_t store_find(const struct store *st, const struct hash *name)
{
    return st->table[store_probe(st, name)];
}

static void store_table_erase(struct store *st, const struct hash *name)
{
    uint32_t gap = store_probe(st, name);
    uint32_t i = gap;

    must(st->table[gap] != -1);
    st->table[gap] = -1;
    for (;;) { /* ends at the first empty place; the table is at most half full */
        uint32_t home;

        i = (i + 1) & st->table_mask;
        if (st->table[i] == -1)
            return;
        home = store_home(st, &st->entries[st->table[i]].record.name);
        if (((i - home) & st->table_mask) < ((i - gap) & st->table_mask))
            continue;
        st->table[gap] = st->table[i];
        st->table[i] = -1;
        gap = i;
    }
}

static void store_list_add(struct store *st, int32_t slot)
{
    struct store_entry *e = &st->entries[slot];

    e->prev = st->newest;
    e->next = -1;
    if (st->newest == -1)
        st->oldest = slot;
    else
        st->entries[st->newest].next = slot;
    st->newest = slot;
}

static void store_list_remove(struct store *st, int32_t slot)
{
    struct store_entry *e = &st->entries[slot];

    if (e->prev == -1)
        st->oldest = e->next;
    else
        st->entries[e->prev].next = e->next;
    if (e->next == -1)
        st->newest = e->prev;
    else
        st->entries[e->next].prev = e->prev;
}

static void store_touch(struct store *st, int32_t slot, bool read)
{
    st->uses[slot].last = (uint32_t)clock_unix_s();
    st->uses[slot].count = read ? st->uses[slot].count + 1 : 0;
    st->uses_marked[slot / STORE_USES] = true;
    store_list_remove(st, slot);
    store_list_add(st, slot);
}

static void store_parent_count(struct store *st, const struct hash *parent, int by)
{
    int32_t p = store_find(st, parent);

    if (p != -1)
        st->entries[p].n_children = (uint32_t)((int)st->entries[p].n_children + by);
}

/* Make a page visible. */
static void store_insert(struct store *st, int32_t slot, const struct store_record *r)
{
    struct store_entry *e = &st->entries[slot];

    e->record = *r;
    e->used = true;
    e->n_children = 0;
    st->table[store_probe(st, &r->name)] = slot;
    store_list_add(st, slot);
    store_parent_count(st, &r->parent, 1);
    st->counters.entries += r->space == st->space;
}

/* Take a page out of sight; its slot is in no list afterwards. */
static void store_remove(struct store *st, int32_t slot)
{
    struct store_entry *e = &st->entries[slot];

    must(e->used);
    store_table_erase(st, &e->record.name);
    store_list_remove(st, slot);
    store_parent_count(st, &e->record.parent, -1);
    st->counters.entries -= e->record.space == st->space;
    e->used = false;
}

static void store_free_slot(struct store *st, int32_t slot)
{
    st->entries[slot].next = st->free;
    st->free = slot;
}

/* A slot to write to: a free one, or that of the page used least recently. -1: all are read. */
static int32_t store_take_slot(struct store *st)
{
    int32_t slot = st->free;
    int32_t fallback = -1;

    if (slot != -1) {
        st->free = st->entries[slot].next;
        return slot;
    }
    slot = st->oldest;
    for (int i = 0; slot != -1 && i < STORE_EVICT_LOOK; i++) {
        const struct store_entry *e = &st->entries[slot];

        if (e->n_readers == 0 && e->n_children == 0)
            break;
        if (e->n_readers == 0 && fallback == -1)
            fallback = slot;
        slot = e->next;
    }
    if (slot == -1 || st->entries[slot].n_readers != 0 || st->entries[slot].n_children != 0)
        slot = fallback;
    if (slot != -1)
        store_remove(st, slot);
    return slot;
}

/* --- the I/O thread ------------------------------------------------------------------------ */

static void store_complain(struct store *st, const char *what)
{
    uint64_t now = clock_us();

    if (st->complained_us != 0 && now - st->complained_us < STORE_COMPLAIN_US)
        return;
    st->complained_us = now;
    log_warn("store: %s in %s: %s; pages are computed anew meanwhile", what, st->options.dir,
             errno == 0 ? "short count" : strerror(errno));
}

static bool store_io(struct store *st, struct store_buffer *b, bool write)
{
    char *bytes = (char *)b->header;
    size_t left = st->format.slot_bytes;
    off_t at = (off_t)b->slot * (off_t)st->format.slot_bytes;

    if (write ? FAULT_HIT(store_write) : FAULT_HIT(store_read)) {
        errno = EIO;
        return false;
    }
    while (left > 0) {
        ssize_t n =
            write ? pwrite(st->file_fd, bytes, left, at) : pread(st->file_fd, bytes, left, at);

        if (n == -1 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? 0 : errno;
            return false;
        }
        bytes += n;
        left -= (size_t)n;
        at += n;
    }
    return true;
}

/* Fill the header of a buffer whose payload stands behind it. */
static void store_seal(struct store *st, struct store_buffer *b, uint64_t generation)
{
    struct store_header *h = b->header;

    memset(h, 0, STORE_HEADER_BYTES);
    h->magic = STORE_MAGIC;
    h->version = STORE_VERSION;
    h->n_tokens = (uint32_t)st->options.block_tokens;
    h->generation = generation;
    h->payload_bytes = st->options.page_bytes;
    h->payload_xxh3 = hash_xxh3((const char *)h + STORE_HEADER_BYTES, st->options.page_bytes);
    h->name = b->name;
    h->parent = b->parent;
    h->fingerprint = st->options.namespace_id;
    memcpy(h->tokens, b->tokens, sizeof *b->tokens * (size_t)st->options.block_tokens);
    h->header_xxh3 = hash_xxh3(h, offsetof(struct store_header, header_xxh3));
}

/* Write one payload; the change for the index in *c. False when there is nothing to commit. */
static bool store_write_one(struct store *st, struct store_buffer *b, struct store_change *c)
{
    uint64_t generation;
    bool known;

    (void)pthread_mutex_lock(&st->lock);
    b->slot = store_find(st, &b->name);
    known = b->slot != -1;
    if (known)
        store_touch(st, b->slot, false);
    else
        b->slot = store_take_slot(st);
    (void)pthread_mutex_unlock(&st->lock);
    if (known || b->slot == -1)
        return false;
    generation = st->entries[b->slot].record.generation + 1; /* only this thread changes it */
    store_seal(st, b, generation);
    *c = (struct store_change){
        .slot = (uint64_t)b->slot,
        .record = {.name = b->name,
                   .parent = b->parent,
                   .generation = generation,
                   .payload_xxh3 = b->header->payload_xxh3,
                   .space = st->space,
                   .n_tokens = (uint32_t)st->options.block_tokens,
                   .created = (uint32_t)clock_unix_s()},
    };
    if (store_io(st, b, true))
        return true;
    store_complain(st, "writing a page failed");
    /* The slot's old record, if it had one, names a page that is gone. */
    c->erase = true;
    return true;
}

static int store_sync(struct store *st, int n_changes)
{
    if (n_changes == 0)
        return ERR_OK;
    if (FAULT_HIT(store_commit) || fdatasync(st->file_fd) == -1) {
        store_complain(st, "syncing pages failed");
        return ERR_IO;
    }
    return store_db_commit(st->db, st->changes, n_changes);
}

/* The whole queue as one batch. */
static void store_write_batch(struct store *st, struct store_buffer *list)
{
    int n = 0;
    int rc;

    for (struct store_buffer *b = list; b != NULL; b = b->next) {
        if (store_write_one(st, b, &st->changes[n]))
            n++;
    }
    rc = store_sync(st, n);
    (void)pthread_mutex_lock(&st->lock);
    for (int i = 0; i < n; i++) {
        const struct store_change *c = &st->changes[i];
        int32_t slot = (int32_t)c->slot;

        st->entries[slot].record.generation = c->record.generation;
        /* The same page may have come twice within one batch. */
        if (rc == ERR_OK && !c->erase && store_find(st, &c->record.name) == -1) {
            store_insert(st, slot, &c->record);
            store_touch(st, slot, false);
            st->counters.written++;
        } else {
            store_free_slot(st, slot);
            st->counters.faults += rc != ERR_OK || c->erase;
        }
    }
    while (list != NULL) {
        struct store_buffer *next = list->next;

        store_push(&st->idle_buffers, list);
        list = next;
    }
    (void)pthread_mutex_unlock(&st->lock);
}

/* Is what was read the page that was asked for? */
static bool store_verify(const struct store *st, const struct store_buffer *b)
{
    const struct store_header *h = b->header;
    const struct store_record *r = &st->entries[b->slot].record;
    size_t n = (size_t)st->options.block_tokens;

    return store_header_matches(h, r, st->options.page_bytes) &&
           memcmp(h->tokens, b->tokens, sizeof *b->tokens * n) == 0 &&
           h->payload_xxh3 ==
               hash_xxh3((const char *)h + STORE_HEADER_BYTES, st->options.page_bytes);
}

static void store_read_one(struct store *st, struct store_buffer *b)
{
    uint64_t one = 1;
    struct store_change c = {.erase = true};

    b->rc = ERR_OK;
    if (!store_io(st, b, false)) {
        store_complain(st, "reading a page failed");
        b->rc = ERR_IO;
    } else if (!store_verify(st, b)) {
        log_warn("store: slot %d in %s is damaged; dropped", b->slot, st->options.dir);
        b->rc = ERR_CORRUPT;
    }
    (void)pthread_mutex_lock(&st->lock);
    st->entries[b->slot].n_readers--;
    if (b->rc == ERR_OK) {
        st->counters.read++;
        store_touch(st, b->slot, true);
    } else {
        st->counters.faults++;
        if (st->entries[b->slot].used && st->entries[b->slot].n_readers == 0) {
            store_remove(st, b->slot);
            store_free_slot(st, b->slot);
        }
    }
    c.slot = (uint64_t)b->slot;
    (void)pthread_mutex_unlock(&st->lock);
    if (b->rc == ERR_CORRUPT && store_db_commit(st->db, &c, 1) != ERR_OK)
        b->rc = ERR_IO; /* logged; the record dies with the slot's next use */
    (void)pthread_mutex_lock(&st->lock);
    store_push(&st->done, b);
    (void)pthread_mutex_unlock(&st->lock);
    (void)!write(st->event_fd, &one, sizeof one); /* only fails when it is readable already */
}

static void store_write_uses(struct store *st)
{
    size_t n = (size_t)st->n_chunks * STORE_USES;

    (void)pthread_mutex_lock(&st->lock);
    memcpy(st->uses_copy, st->uses, n * sizeof *st->uses);
    memcpy(st->uses_copy_marked, st->uses_marked, st->n_chunks * sizeof *st->uses_marked);
    memset(st->uses_marked, 0, st->n_chunks * sizeof *st->uses_marked);
    (void)pthread_mutex_unlock(&st->lock);
    if (store_db_write_uses(st->db, st->uses_copy, st->uses_copy_marked, st->n_chunks) != ERR_OK)
        log_warn("store: last uses are lost; eviction will be less apt");
    st->uses_written_us = clock_us();
}

static void store_wait(struct store *st)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STORE_USES_US / 1000000u;
    (void)pthread_cond_timedwait(&st->work, &st->lock, &until); /* time-outs are fine */
}

static void *store_run(void *context)
{
    struct store *st = context;

    (void)pthread_mutex_lock(&st->lock);
    while (!st->stop || st->reads.first != NULL || st->writes.first != NULL) {
        struct store_buffer *read = store_pop(&st->reads);
        struct store_buffer *writes = NULL;

        if (read == NULL) {
            writes = st->writes.first;
            st->writes = (struct store_queue){0};
        }
        st->busy = read != NULL || writes != NULL;
        if (!st->busy) {
            (void)pthread_cond_broadcast(&st->idle);
            if (st->stop)
                break;
            store_wait(st);
        }
        (void)pthread_mutex_unlock(&st->lock);
        if (read != NULL)
            store_read_one(st, read);
        if (writes != NULL)
            store_write_batch(st, writes);
        if (clock_us() - st->uses_written_us > STORE_USES_US)
            store_write_uses(st);
        (void)pthread_mutex_lock(&st->lock);
    }
    st->busy = false;
    (void)pthread_cond_broadcast(&st->idle);
    (void)pthread_mutex_unlock(&st->lock);
    return NULL;
}

/* --- open and close ------------------------------------------------------------------------ */

struct store_scan {
    struct store *st;
    uint64_t n_dropped;
};

static void store_scan_one(void *context, uint64_t slot, const struct store_record *r,
                           const struct store_use *use)
{
    struct store_scan *s = context;
    struct store *st = s->st;

    if (slot >= st->n_slots || r->n_tokens != (uint32_t)st->options.block_tokens ||
        st->entries[slot].used || store_find(st, &r->name) != -1) {
        s->n_dropped++;
        return;
    }
    st->uses[slot] = *use;
    st->entries[slot].record = *r;
    st->entries[slot].used = true;
    st->table[store_probe(st, &r->name)] = (int32_t)slot;
}

/* Order the list of last use: a counting pass over seconds would need memory, and this is done
 * once; slots are in order already when the store was never full. */
static int store_by_use(const void *a, const void *b, void *context)
{
    const struct store *st = context;
    const int32_t *x = a;
    const int32_t *y = b;

    if (st->uses[*x].last != st->uses[*y].last)
        return st->uses[*x].last < st->uses[*y].last ? -1 : 1;
    return *x < *y ? -1 : *x > *y;
}

static int store_load_index(struct store *st)
{
    struct store_scan s = {.st = st};
    int32_t *order;
    uint64_t n_bad = 0;
    uint32_t n = 0;
    int rc = store_db_scan(st->db, store_scan_one, &s, &n_bad);

    if (rc != ERR_OK)
        return rc;
    order = mem_zalloc_array(st->n_slots, sizeof *order);
    if (order == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = st->n_slots; i-- > 0;) {
        if (!st->entries[i].used)
            store_free_slot(st, (int32_t)i);
    }
    for (uint32_t i = 0; i < st->n_slots; i++) {
        if (st->entries[i].used)
            order[n++] = (int32_t)i;
    }
    qsort_r(order, n, sizeof *order, store_by_use, st);
    for (uint32_t i = 0; i < n; i++) {
        store_list_add(st, order[i]);
        store_parent_count(st, &st->entries[order[i]].record.parent, 1);
        st->counters.entries += st->entries[order[i]].record.space == st->space;
    }
    mem_free(order);
    log_info("store: %s holds %u pages, %llu of this model; %llu index entries were dropped",
             st->options.dir, n, (unsigned long long)st->counters.entries,
             (unsigned long long)(n_bad + s.n_dropped));
    return ERR_OK;
}

static int store_alloc(struct store *st)
{
    uint32_t cap = 16;
    size_t n_buffers = (size_t)st->options.n_buffers;

    while (cap < 2 * st->n_slots)
        cap *= 2;
    st->table_mask = cap - 1;
    st->n_chunks = (st->n_slots + STORE_USES - 1) / STORE_USES;
    st->entries = mem_zalloc_array(st->n_slots, sizeof *st->entries);
    st->table = mem_zalloc_array(cap, sizeof *st->table);
    st->uses = mem_zalloc_array((size_t)st->n_chunks * STORE_USES, sizeof *st->uses);
    st->uses_copy = mem_zalloc_array((size_t)st->n_chunks * STORE_USES, sizeof *st->uses);
    st->uses_marked = mem_zalloc_array(st->n_chunks, sizeof *st->uses_marked);
    st->uses_copy_marked = mem_zalloc_array(st->n_chunks, sizeof *st->uses_marked);
    st->buffers = mem_zalloc_array(n_buffers, sizeof *st->buffers);
    st->changes = mem_zalloc_array(n_buffers, sizeof *st->changes);
    if (st->entries == NULL || st->table == NULL || st->uses == NULL || st->uses_copy == NULL ||
        st->uses_marked == NULL || st->uses_copy_marked == NULL || st->buffers == NULL ||
        st->changes == NULL)
        return ERR_NO_MEMORY;
    memset(st->table, 0xff, cap * sizeof *st->table); /* -1 */
    for (size_t i = 0; i < n_buffers; i++) {
        void *p = mmap(NULL, st->format.slot_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (p == MAP_FAILED)
            return ERR_NO_MEMORY;
        st->buffers[i].header = p;
        store_push(&st->idle_buffers, &st->buffers[i]);
    }
    return ERR_OK;
}

static void store_path(const struct store *st, char *out, size_t cap, const char *name)
{
    (void)snprintf(out, cap, "%s/%s", st->options.dir, name);
}

/* Two engines must not write one store. */
static int store_open_lock(struct store *st)
{
    char path[4096];

    if (mkdir(st->options.dir, 0750) == -1 && errno != EEXIST) {
        log_error("store: %s: %s", st->options.dir, strerror(errno));
        return ERR_IO;
    }
    store_path(st, path, sizeof path, "engine.lock");
    st->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (st->lock_fd == -1) {
        log_error("store: %s: %s", path, strerror(errno));
        return ERR_IO;
    }
    if (flock(st->lock_fd, LOCK_EX | LOCK_NB) == -1) {
        log_error("store: another engine uses %s; set kv_store_dir", st->options.dir);
        return ERR_OVERLOADED;
    }
    return ERR_OK;
}

/* Move what cannot be used out of the way; the previous such leftovers are overwritten. */
static void store_set_aside(const struct store *st, const char *why)
{
    static const char *const names[] = {"data.mdb", "lock.mdb", "pages.kv"};

    log_warn("store: %s in %s; it is set aside as *.bad and begun anew", why, st->options.dir);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char from[4096];
        char to[4096];

        store_path(st, from, sizeof from, names[i]);
        (void)snprintf(to, sizeof to, "%.4000s.bad", from);
        if (rename(from, to) == -1 && errno != ENOENT)
            log_warn("store: %s: %s", from, strerror(errno));
    }
}

static int store_open_index(struct store *st)
{
    int rc = store_db_open(&st->db, st->options.dir, &st->format, STORE_MAP_BYTES);

    if (rc == ERR_CORRUPT || rc == ERR_VERSION) {
        store_set_aside(st, rc == ERR_VERSION ? "pages of another size" : "a damaged index");
        rc = store_db_open(&st->db, st->options.dir, &st->format, STORE_MAP_BYTES);
    }
    if (rc == ERR_OK) {
        struct store_space space = {.fingerprint = st->options.namespace_id};

        (void)snprintf(space.name, sizeof space.name, "%s", st->options.namespace_name);
        rc = store_db_space(st->db, &space, &st->space);
    }
    return rc;
}

static int store_open_file(struct store *st)
{
    char path[4096];

    store_path(st, path, sizeof path, "pages.kv");
    st->file_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0640);
    if (st->file_fd == -1 && errno == EINVAL)
        st->file_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640); /* no O_DIRECT here */
    if (st->file_fd == -1) {
        log_error("store: %s: %s", path, strerror(errno));
        return ERR_IO;
    }
    return ERR_OK;
}

static int store_start(struct store *st)
{
    st->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    st->uses_written_us = clock_us();
    if (st->event_fd == -1 || pthread_create(&st->thread, NULL, store_run, st) != 0) {
        log_error("store: the I/O thread cannot start: %s", strerror(errno));
        return ERR_IO;
    }
    st->thread_runs = true;
    return ERR_OK;
}

int store_open(struct store **out, const struct store_options *options)
{
    struct store *st = mem_zalloc(sizeof *st);
    size_t payload = (options->page_bytes + STORE_ALIGN - 1) / STORE_ALIGN * STORE_ALIGN;
    int rc;

    must(options->block_tokens >= 1 && options->block_tokens <= STORE_TOKENS_MAX);
    must(options->n_buffers >= 2);
    if (st == NULL)
        return ERR_NO_MEMORY;
    st->options = *options;
    st->format = (struct store_format){.magic = STORE_MAGIC,
                                       .version = STORE_VERSION,
                                       .block_tokens = (uint32_t)options->block_tokens,
                                       .slot_bytes = STORE_HEADER_BYTES + payload,
                                       .page_bytes = options->page_bytes};
    st->n_slots = (uint32_t)(options->max_bytes / st->format.slot_bytes);
    if (st->n_slots < 1)
        st->n_slots = 1;
    st->lock_fd = -1;
    st->file_fd = -1;
    st->event_fd = -1;
    st->oldest = -1;
    st->newest = -1;
    st->free = -1;
    (void)pthread_mutex_init(&st->lock, NULL); /* cannot fail on Linux */
    (void)pthread_cond_init(&st->work, NULL);
    (void)pthread_cond_init(&st->idle, NULL);
    rc = store_open_lock(st);
    if (rc == ERR_OK)
        rc = store_alloc(st);
    if (rc == ERR_OK)
        rc = store_open_index(st);
    if (rc == ERR_OK)
        rc = store_open_file(st);
    if (rc == ERR_OK)
        rc = store_load_index(st);
    if (rc == ERR_OK)
        rc = store_start(st);
    if (rc != ERR_OK) {
        store_close(st);
        return rc;
    }
    *out = st;
    return ERR_OK;
}

void store_close(struct store *st)
{
    if (st == NULL)
        return;
    if (st->thread_runs) {
        (void)pthread_mutex_lock(&st->lock);
        st->stop = true;
        (void)pthread_cond_signal(&st->work);
        (void)pthread_mutex_unlock(&st->lock);
        (void)pthread_join(st->thread, NULL);
        store_write_uses(st);
    }
    store_db_close(st->db);
    if (st->file_fd != -1)
        (void)close(st->file_fd); /* everything that counts was synced */
    if (st->event_fd != -1)
        (void)close(st->event_fd);
    if (st->lock_fd != -1)
        (void)close(st->lock_fd);
    for (int i = 0; i < st->options.n_buffers && st->buffers != NULL; i++) {
        if (st->buffers[i].header != NULL)
            (void)munmap(st->buffers[i].header, st->format.slot_bytes);
    }
    mem_free(st->entries);
    mem_free(st->table);
    mem_free(st->uses);
    mem_free(st->uses_copy);
    mem_free(st->uses_marked);
    mem_free(st->uses_copy_marked);
    mem_free(st->buffers);
    mem_free(st->changes);
    mem_free(st);
}

/* --- the engine's thread ------------------------------------------------------------------- */

/* The lock is logically no part of the value. */
static struct store *store_mutable(const struct store *st)
{
    return (struct store *)(uintptr_t)st;
}

bool store_has(const struct store *st, const struct hash *name)
{
    bool has;

    (void)pthread_mutex_lock(&store_mutable(st)->lock);
    has = store_find(st, name) != -1;
    (void)pthread_mutex_unlock(&store_mutable(st)->lock);
    return has;
}

static struct store_buffer *store_buffer_of(struct store *st, const void *payload)
{
    for (int i = 0; i < st->options.n_buffers; i++) {
        if ((const char *)st->buffers[i].header + STORE_HEADER_BYTES == (const char *)payload)
            return &st->buffers[i];
    }
    must(payload == NULL); /* not one of ours */
    return NULL;
}

static struct store_buffer *store_idle_buffer(struct store *st)
{
    struct store_buffer *b;

    (void)pthread_mutex_lock(&st->lock);
    b = store_pop(&st->idle_buffers);
    (void)pthread_mutex_unlock(&st->lock);
    return b;
}

void *store_buffer(struct store *st)
{
    struct store_buffer *b = store_idle_buffer(st);

    return b == NULL ? NULL : (char *)b->header + STORE_HEADER_BYTES;
}

void store_save(struct store *st, void *buffer, const struct page_label *label)
{
    struct store_buffer *b = store_buffer_of(st, buffer);

    must(b != NULL);
    b->name = label->name;
    b->parent = label->parent;
    memcpy(b->tokens, label->tokens, sizeof *b->tokens * (size_t)st->options.block_tokens);
    (void)pthread_mutex_lock(&st->lock);
    store_push(&st->writes, b);
    (void)pthread_cond_signal(&st->work);
    (void)pthread_mutex_unlock(&st->lock);
}

int store_load(struct store *st, const struct hash *name, const int32_t *tokens, uint64_t ticket)
{
    struct store_buffer *b = store_idle_buffer(st);
    int rc = ERR_OK;

    if (b == NULL)
        return ERR_AGAIN;
    b->name = *name;
    b->ticket = ticket;
    memcpy(b->tokens, tokens, sizeof *b->tokens * (size_t)st->options.block_tokens);
    (void)pthread_mutex_lock(&st->lock);
    b->slot = store_find(st, name);
    if (b->slot == -1) {
        store_push(&st->idle_buffers, b);
        rc = ERR_NOT_FOUND;
    } else {
        st->entries[b->slot].n_readers++;
        store_push(&st->reads, b);
        (void)pthread_cond_signal(&st->work);
    }
    (void)pthread_mutex_unlock(&st->lock);
    return rc;
}

bool store_poll(struct store *st, struct store_done *done)
{
    struct store_buffer *b;
    uint64_t n;

    (void)pthread_mutex_lock(&st->lock);
    b = store_pop(&st->done);
    if (b == NULL)
        (void)!read(st->event_fd, &n, sizeof n); /* nothing is left: quiet */
    (void)pthread_mutex_unlock(&st->lock);
    if (b == NULL)
        return false;
    *done = (struct store_done){.ticket = b->ticket, .rc = b->rc};
    if (b->rc == ERR_OK)
        done->payload = (const char *)b->header + STORE_HEADER_BYTES;
    else
        store_release(st, (const char *)b->header + STORE_HEADER_BYTES);
    return true;
}

void store_release(struct store *st, const void *buffer)
{
    struct store_buffer *b = store_buffer_of(st, buffer);

    must(b != NULL);
    (void)pthread_mutex_lock(&st->lock);
    store_push(&st->idle_buffers, b);
    (void)pthread_mutex_unlock(&st->lock);
}

int store_event_fd(const struct store *st)
{
    return st->event_fd;
}

void store_flush(struct store *st)
{
    (void)pthread_mutex_lock(&st->lock);
    while (st->busy || st->writes.first != NULL || st->reads.first != NULL) {
        (void)pthread_cond_signal(&st->work);
        (void)pthread_cond_wait(&st->idle, &st->lock);
    }
    (void)pthread_mutex_unlock(&st->lock);
}

void store_read_counters(const struct store *st, struct store_counters *out)
{
    (void)pthread_mutex_lock(&store_mutable(st)->lock);
    *out = st->counters;
    (void)pthread_mutex_unlock(&store_mutable(st)->lock);
}
