/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing the store, and the calls of the engine's thread. These only move buffers
 * between queues and look names up, under the lock; the threads in store_io.c do the I/O.
 *
 *   a save: idle -> filled by the engine -> writes -> I/O thread -> idle
 *   a load: idle -> reads -> a thread -> done -> store_poll() -> store_release() -> idle */

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "kv/store_parts.h"

/* --- open and close ------------------------------------------------------------------------ */

/* Memory first, then the disk, then the threads. An engine with a disk that fails still starts: the
 * store is then in STORE_AWAY, finds no page and saves none, and store_tend() tries again. */

/* All memory is allocated here. Buffers are mapped one by one, because pin() and O_DIRECT want
 * whole memory pages. */
static int store_alloc(struct store *st)
{
    size_t n_buffers = (size_t)st->options.n_buffers;

    /* Last uses are written by whole chunks, so the arrays are rounded up to one. */
    st->n_chunks = (st->n_slots + STORE_USES - 1) / STORE_USES;
    st->entries = mem_zalloc_array(st->n_slots, sizeof *st->entries);
    st->uses = mem_zalloc_array((size_t)st->n_chunks * STORE_USES, sizeof *st->uses);
    st->uses_copy = mem_zalloc_array((size_t)st->n_chunks * STORE_USES, sizeof *st->uses);
    st->uses_marked = mem_zalloc_array(st->n_chunks, sizeof *st->uses_marked);
    st->uses_copy_marked = mem_zalloc_array(st->n_chunks, sizeof *st->uses_marked);
    st->buffers = mem_zalloc_array(n_buffers, sizeof *st->buffers);
    st->changes = mem_zalloc_array(STORE_CHANGES, sizeof *st->changes);
    st->changed = mem_zalloc_array(st->n_slots, sizeof *st->changed);
    st->db = store_db_new();
    if (st->entries == NULL || st->uses == NULL || st->uses_copy == NULL ||
        st->uses_marked == NULL || st->uses_copy_marked == NULL || st->buffers == NULL ||
        st->changes == NULL || st->changed == NULL || st->db == NULL ||
        table_open(&st->table, &st->entries->record.name, sizeof *st->entries, st->n_slots) !=
            ERR_OK ||
        eviction_open(&st->eviction, (int)st->n_slots,
                      (int)((int64_t)st->n_slots * st->options.kept_pct / 100)) != ERR_OK)
        return ERR_NO_MEMORY;
    /* A buffer that cannot be pinned works too, but the device copies it slowly. */
    for (size_t i = 0; i < n_buffers; i++) {
        void *p = mmap(NULL, st->format.slot_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (p == MAP_FAILED)
            return ERR_NO_MEMORY;
        st->buffers[i].header = p;
        st->buffers[i].pinned =
            st->options.pin != NULL &&
            st->options.pin(st->options.context, p, st->format.slot_bytes) == ERR_OK;
        store_push(&st->idle_buffers, &st->buffers[i]);
    }
    return ERR_OK;
}

/* If a thread cannot start, store_close() ends those that did. */
static int store_start(struct store *st)
{
    st->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    st->uses_written_us = clock_us();
    if (st->event_fd == -1 || pthread_create(&st->thread, NULL, store_run, st) != 0) {
        log_error("store: the I/O thread cannot start: %s", strerror(errno));
        return ERR_IO;
    }
    /* store_close() joins only threads that were started. */
    st->thread_runs = true;
    while (st->n_readers < STORE_READERS) {
        if (pthread_create(&st->readers[st->n_readers], NULL, store_run_reader, st) != 0) {
            log_error("store: a reading thread cannot start: %s", strerror(errno));
            return ERR_IO;
        }
        st->n_readers++;
    }
    return ERR_OK;
}

/* The number of slots follows from max_bytes. Everything that can fail for a lack of memory comes
 * first; a disk that cannot be used is no error. */
int store_open(struct store **out, const struct store_options *options)
{
    struct store *st = mem_zalloc(sizeof *st);
    size_t payload = (options->page_bytes + STORE_ALIGN - 1) / STORE_ALIGN * STORE_ALIGN;
    int rc;

    must(options->page_tokens >= 1 && options->page_tokens <= STORE_TOKENS_MAX);
    must(options->n_buffers >= 2 && options->n_buffers <= STORE_CHANGES);
    if (st == NULL)
        return ERR_NO_MEMORY;
    st->options = *options;
    st->format = (struct store_format){.magic = STORE_MAGIC,
                                       .version = STORE_VERSION,
                                       .page_tokens = (uint32_t)options->page_tokens,
                                       .slot_bytes = STORE_HEADER_BYTES + payload,
                                       .page_bytes = options->page_bytes};
    /* A slot has a header of 4 KiB and the payload, rounded up to whole blocks. */
    st->n_slots = (uint32_t)(options->max_bytes / st->format.slot_bytes);
    if (st->n_slots < 1)
        st->n_slots = 1;
    st->lock_fd = -1;
    st->file_fd = -1;
    st->event_fd = -1;
    st->free = -1;
    (void)pthread_mutex_init(&st->lock, NULL); /* cannot fail on Linux */
    (void)pthread_cond_init(&st->work, NULL);
    (void)pthread_cond_init(&st->idle, NULL);
    /* From here on an error closes everything that was opened. */
    rc = store_alloc(st);
    /* Another engine on the same folder is the operator's mistake; any other trouble with the disk
     * may pass. */
    if (rc == ERR_OK && (rc = store_attach(st)) != ERR_OK && rc != ERR_IN_USE) {
        log_warn("store: %s cannot be used (%s): no pages are kept on disk until it can",
                 options->dir, err_sentence(rc));
        rc = ERR_OK; /* the I/O thread tries again */
    }
    if (rc == ERR_OK)
        rc = store_start(st);
    if (rc != ERR_OK) {
        store_close(st);
        return rc;
    }
    *out = st;
    return ERR_OK;
}

/* The threads finish their queues before they end, so nothing that was saved is lost. */
void store_close(struct store *st)
{
    if (st == NULL)
        return;
    /* Readers first: they fill no queue of the I/O thread. */
    if (st->thread_runs) {
        (void)pthread_mutex_lock(&st->lock);
        st->stop = true;
        (void)pthread_cond_broadcast(&st->work);
        (void)pthread_mutex_unlock(&st->lock);
        for (int i = 0; i < st->n_readers; i++)
            (void)pthread_join(st->readers[i], NULL);
        (void)pthread_join(st->thread, NULL);
        /* The last uses since the last write; no thread writes them any more. */
        store_write_uses(st);
    }
    store_detach(st);
    store_db_close(st->db);
    if (st->event_fd != -1)
        (void)close(st->event_fd);
    for (int i = 0; i < st->options.n_buffers && st->buffers != NULL; i++) {
        if (st->buffers[i].pinned)
            st->options.unpin(st->options.context, st->buffers[i].header);
        if (st->buffers[i].header != NULL)
            (void)munmap(st->buffers[i].header, st->format.slot_bytes);
    }
    mem_free(st->entries);
    table_close(&st->table);
    mem_free(st->uses);
    mem_free(st->uses_copy);
    mem_free(st->uses_marked);
    mem_free(st->uses_copy_marked);
    mem_free(st->buffers);
    mem_free(st->changes);
    mem_free(st->changed);
    eviction_close(st->eviction);
    mem_free(st);
}

/* --- the engine's thread ------------------------------------------------------------------- */

/* These functions never wait for the disk: they hold the lock only to move a buffer or to read the
 * index, and the other threads do no I/O under it. Only store_flush() and store_close() wait. */

/* Locking does not change the value that a const function reads. */
static struct store *store_mutable(const struct store *st)
{
    return (struct store *)(uintptr_t)st;
}

/* The slot of a page, or -1. In STORE_AWAY the I/O thread may be filling the index. */
static int32_t store_look_up(const struct store *st, const struct hash *name)
{
    if (st->mode == STORE_AWAY)
        return -1;
    return store_find(st, name);
}

enum store_mode store_mode(const struct store *st)
{
    enum store_mode mode;

    (void)pthread_mutex_lock(&store_mutable(st)->lock);
    mode = st->mode;
    (void)pthread_mutex_unlock(&store_mutable(st)->lock);
    return mode;
}

bool store_has(const struct store *st, const struct hash *name)
{
    bool has;

    (void)pthread_mutex_lock(&store_mutable(st)->lock);
    has = store_look_up(st, name) != -1;
    (void)pthread_mutex_unlock(&store_mutable(st)->lock);
    return has;
}

/* The buffer of a payload, found by its address: there are few buffers, and no map to keep. */
static struct store_buffer *store_buffer_of(struct store *st, const void *payload)
{
    for (int i = 0; i < st->options.n_buffers; i++) {
        if ((const char *)st->buffers[i].header + STORE_HEADER_BYTES == (const char *)payload)
            return &st->buffers[i];
    }
    must(payload == NULL); /* not a payload of this store */
    return NULL;
}

/* A free buffer, or NULL. Buffers are taken and returned on both sides, so the lock is needed. */
static struct store_buffer *store_idle_buffer(struct store *st)
{
    struct store_buffer *buffer;

    (void)pthread_mutex_lock(&st->lock);
    buffer = store_pop(&st->idle_buffers);
    (void)pthread_mutex_unlock(&st->lock);
    return buffer;
}

bool store_has_buffer(struct store *st)
{
    bool has;

    (void)pthread_mutex_lock(&st->lock);
    has = st->idle_buffers.first != NULL;
    (void)pthread_mutex_unlock(&st->lock);
    return has;
}

void *store_buffer(struct store *st)
{
    struct store_buffer *buffer = store_idle_buffer(st);

    if (buffer == NULL)
        return NULL;
    return (char *)buffer->header + STORE_HEADER_BYTES;
}

/* Readers wait on the same condition variable, so all are woken: one of them is the writer. */
static void store_queue_write(struct store *st, struct store_buffer *buffer,
                              const struct page_label *label)
{
    buffer->name = label->name;
    buffer->parent = label->parent;
    memcpy(buffer->tokens, label->tokens, sizeof *buffer->tokens * (size_t)st->options.page_tokens);
    buffer->root = label->space;
    buffer->retain = label->retain;
    /* A drop that comes while the buffer is queued sets it (store_drop()). */
    buffer->dropped = false;
    (void)pthread_mutex_lock(&st->lock);
    buffer->writes = true;
    store_push(&st->writes, buffer);
    (void)pthread_cond_broadcast(&st->work);
    (void)pthread_mutex_unlock(&st->lock);
}

/* `buffer` is the payload's address in a staging buffer, where the engine has put the page. */
void store_save(struct store *st, void *buffer, const struct page_label *label)
{
    struct store_buffer *buf = store_buffer_of(st, buffer);

    must(buf != NULL);
    buf->source = NULL;
    buf->tells = false;
    store_queue_write(st, buf, label);
}

bool store_save_from(struct store *st, const void *payload, const struct page_label *label,
                     uint64_t ticket)
{
    struct store_buffer *buffer = store_idle_buffer(st);

    if (buffer == NULL)
        return false;
    buffer->source = payload;
    buffer->tells = true;
    buffer->ticket = ticket;
    store_queue_write(st, buffer, label);
    return true;
}

/* The slot counts a reader from here on, so that it is not evicted while the read is queued. */
int store_load(struct store *st, const struct hash *name, const int32_t *tokens, uint64_t ticket)
{
    struct store_buffer *buffer = store_idle_buffer(st);
    int rc = ERR_OK;

    if (buffer == NULL)
        return ERR_AGAIN;
    buffer->tells = false;
    buffer->name = *name;
    buffer->ticket = ticket;
    memcpy(buffer->tokens, tokens, sizeof *buffer->tokens * (size_t)st->options.page_tokens);
    (void)pthread_mutex_lock(&st->lock);
    /* Looked up and counted under one lock, so that the slot cannot be evicted in between. */
    buffer->slot = store_look_up(st, name);
    if (buffer->slot == -1) {
        store_push(&st->idle_buffers, buffer);
        rc = ERR_NOT_FOUND;
    } else {
        st->entries[buffer->slot].n_readers++;
        store_place(st, buffer->slot);
        store_push(&st->reads, buffer);
        /* Any of the threads can read. */
        (void)pthread_cond_signal(&st->work);
    }
    (void)pthread_mutex_unlock(&st->lock);
    return rc;
}

/* The record is written by the I/O thread later; until then the index in memory has the
 * retention. */
void store_retain(struct store *st, const struct hash *name, struct retain r)
{
    int32_t slot;

    (void)pthread_mutex_lock(&st->lock);
    slot = store_look_up(st, name);
    if (slot != -1)
        store_retain_slot(st, slot, r);
    (void)pthread_mutex_unlock(&st->lock);
}

bool store_retains(struct store *st, const struct hash *name, struct retain r)
{
    bool covers;
    int32_t slot;

    (void)pthread_mutex_lock(&st->lock);
    slot = store_look_up(st, name);
    covers = slot != -1 && retain_covers(eviction_retained(st->eviction, slot), r);
    (void)pthread_mutex_unlock(&st->lock);
    return covers;
}

/* A page may be in a write buffer, in the index, or both. A slot that is being read is freed by its
 * last reader. */
bool store_drop(struct store *st, const struct hash *name)
{
    int32_t slot;

    (void)pthread_mutex_lock(&st->lock);
    for (int i = 0; i < st->options.n_buffers; i++) {
        struct store_buffer *buffer = &st->buffers[i];

        buffer->dropped =
            buffer->dropped || (buffer->writes && memcmp(&buffer->name, name, sizeof *name) == 0);
    }
    slot = store_look_up(st, name);
    if (slot != -1) {
        store_remove(st, slot);
        st->entries[slot].gone = st->entries[slot].n_readers > 0;
        if (!st->entries[slot].gone)
            store_free_slot(st, slot);
        /* The I/O thread erases the record later. */
        store_note_changed(st, slot);
    }
    (void)pthread_mutex_unlock(&st->lock);
    return slot != -1;
}

bool store_is_quiet(struct store *st)
{
    bool quiet;

    (void)pthread_mutex_lock(&st->lock);
    quiet = store_is_idle(st);
    (void)pthread_mutex_unlock(&st->lock);
    return quiet;
}

bool store_look(const struct store *st, uint32_t slot, struct page_label *label)
{
    const struct store_entry *entry = &st->entries[slot];
    bool used;

    (void)pthread_mutex_lock(&store_mutable(st)->lock);
    /* Pages of other models are kept, but not listed. */
    used = st->mode != STORE_AWAY && entry->used && entry->record.space == st->space;
    if (used)
        *label = (struct page_label){.name = entry->record.name,
                                     .parent = entry->record.parent,
                                     .space = entry->record.root,
                                     .retain = eviction_retained(st->eviction, (int32_t)slot)};
    (void)pthread_mutex_unlock(&store_mutable(st)->lock);
    return used;
}

/* A finished save only returns the ticket; a finished read also lends its buffer to the caller. */
bool store_poll(struct store *st, struct store_done *done)
{
    struct store_buffer *buffer;
    uint64_t n;

    (void)pthread_mutex_lock(&st->lock);
    buffer = store_pop(&st->done);
    if (buffer == NULL)
        (void)!read(st->event_fd, &n, sizeof n); /* nothing is left: make event_fd unreadable */
    (void)pthread_mutex_unlock(&st->lock);
    if (buffer == NULL)
        return false;
    *done = (struct store_done){.ticket = buffer->ticket,
                                .rc = buffer->rc,
                                .saved = buffer->tells,
                                .retain = buffer->retain};
    if (buffer->tells) {
        buffer->tells = false;
        store_release(st, (const char *)buffer->header + STORE_HEADER_BYTES);
        return true;
    }
    if (buffer->rc == ERR_OK)
        /* The caller reads the payload where it is, and then calls store_release(). */
        done->payload = (const char *)buffer->header + STORE_HEADER_BYTES;
    else
        store_release(st, (const char *)buffer->header + STORE_HEADER_BYTES);
    return true;
}

void store_release(struct store *st, const void *buffer)
{
    struct store_buffer *buf = store_buffer_of(st, buffer);

    must(buf != NULL);
    (void)pthread_mutex_lock(&st->lock);
    store_push(&st->idle_buffers, buf);
    (void)pthread_mutex_unlock(&st->lock);
}

int store_event_fd(const struct store *st)
{
    return st->event_fd;
}

/* The threads broadcast `idle` when all queues are empty and nothing is in progress. */
void store_flush(struct store *st)
{
    (void)pthread_mutex_lock(&st->lock);
    while (!store_is_idle(st)) {
        (void)pthread_cond_broadcast(&st->work);
        (void)pthread_cond_wait(&st->idle, &st->lock);
    }
    (void)pthread_mutex_unlock(&st->lock);
}

/* Copied under the lock; store_write_uses() writes them with the last uses. */
void store_set_rates(struct store *st, const struct store_rate *rates, int n)
{
    must(n >= 0 && n <= STORE_RATES_MAX);
    (void)pthread_mutex_lock(&st->lock);
    memcpy(st->rates, rates, (size_t)n * sizeof *rates);
    st->n_rates = n;
    /* The I/O thread writes them with the next last uses. */
    st->rates_marked = true;
    (void)pthread_mutex_unlock(&st->lock);
}

int store_rates(const struct store *st, struct store_rate rates[STORE_RATES_MAX])
{
    int n;

    (void)pthread_mutex_lock(&store_mutable(st)->lock);
    n = st->n_rates;
    memcpy(rates, st->rates, (size_t)n * sizeof *rates);
    (void)pthread_mutex_unlock(&store_mutable(st)->lock);
    return n;
}

/* Retention that has ended must not be counted as kept, so the time is set first. */
void store_read_counters(const struct store *st, struct store_counters *out)
{
    (void)pthread_mutex_lock(&store_mutable(st)->lock);
    *out = st->counters;
    out->slots = st->n_slots;
    if (st->mode == STORE_AWAY) {
        out->entries = 0;
    } else {
        eviction_tick(st->eviction, clock_stamp_s());
        out->kept = (uint64_t)eviction_n_kept(st->eviction);
    }
    (void)pthread_mutex_unlock(&store_mutable(st)->lock);
}

void store_prove(const struct store *st)
{
    (void)pthread_mutex_lock(&store_mutable(st)->lock);
    store_prove_index(st);
    (void)pthread_mutex_unlock(&store_mutable(st)->lock);
}
