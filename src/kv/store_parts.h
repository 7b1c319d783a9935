/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of the page store, for its files: store.c (open, close, calls of the engine),
 * store_index.c (the slot of each page, eviction), store_io.c (the threads), store_room.c (the
 * state of the disk).
 *
 * One mutex guards the queues and the index in memory; it is held for probes and list operations,
 * never during I/O. */
#ifndef QUIRE_KV_STORE_PARTS_H
#define QUIRE_KV_STORE_PARTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kv/eviction.h"
#include "kv/store.h"
#include "kv/store_db.h"
#include "kv/table.h"

/* In memory, per slot. */
struct store_entry {
    struct store_record record;
    uint32_t n_children; /* stored pages that continue it and came after it */
    uint32_t n_readers;  /* reads in progress: it is not evicted */
    int32_t next;        /* in the list of free slots */
    bool used;
    bool gone;     /* dropped while it is read: its slot is freed after that */
    bool changed;  /* it is in store.changed */
    bool scrubbed; /* its page was erased in the page file, its record was not yet */
};

/* A staging buffer: header and payload, in the layout of the page file. */
struct store_buffer {
    struct store_header *header; /* STORE_HEADER_BYTES, then page_bytes */
    struct store_buffer *next;   /* in the free, write, read or done queue */
    struct hash name;
    struct hash parent;
    int32_t tokens[STORE_TOKENS_MAX];
    uint64_t root;
    struct retain retain;
    bool writes;  /* queued for writing, or being written */
    bool dropped; /* the page was dropped meanwhile */
    uint64_t ticket;
    const void *source; /* of a write: where the payload is; NULL: in this buffer */
    bool tells;         /* report the end of the write: source was given */
    int32_t slot;
    int rc;
    bool pinned;
};

struct store_queue {
    struct store_buffer *first, *last;
};

/* Address space of the index; 115 MB per million records. */
#define STORE_MAP_BYTES ((size_t)16 << 30)
#define STORE_CHANGES   4096 /* per transaction; there are fewer buffers */
/* Threads that read, beside the I/O thread: disks are faster with several. */
#define STORE_READERS 5

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
    pthread_t readers[STORE_READERS];
    int n_readers;

    pthread_mutex_t lock; /* guards all that follows */
    pthread_cond_t work;  /* for the I/O thread */
    pthread_cond_t idle;  /* for store_flush() */
    bool stop;
    enum store_mode mode; /* changed by the I/O thread only, once that runs */
    int n_busy;           /* threads that read or write */
    uint32_t n_slots;
    struct store_entry *entries; /* [n_slots] */
    struct table table;          /* from names to slots */
    struct eviction *eviction;   /* of pages that may be evicted */
    int32_t free;
    struct store_use *uses; /* [n_chunks * STORE_USES] */
    bool *uses_marked;      /* [n_chunks] */
    uint32_t n_chunks;
    struct store_buffer *buffers; /* [n_buffers] */
    struct store_queue idle_buffers, writes, reads, done;
    int32_t *changed; /* [n_slots]: slots whose records the I/O thread has to write or erase */
    uint32_t n_changed;
    uint32_t n_scrubbed; /* the first of changed, which are treated as far as possible without the
                          * index */
    struct store_counters counters;
    struct store_rate rates[STORE_RATES_MAX];
    int n_rates;
    bool rates_marked; /* they have to be written */

    /* For the I/O thread alone. */
    struct store_change *changes; /* [STORE_CHANGES] */
    int n_tries;                  /* failed attempts to write the changes */
    bool *uses_copy_marked;
    struct store_use *uses_copy;
    struct store_rate rates_copy[STORE_RATES_MAX];
    uint64_t uses_written_us;
    uint64_t file_bytes;            /* size of the page file */
    int64_t room_bytes;             /* the page file may grow by this in the current batch */
    uint64_t tried_us, try_next_us; /* attempts to use a disk that could not be used */
    uint64_t swept_us;              /* when files that were moved aside were last checked */
    _Atomic uint64_t complained_us;
};

/* --- store_index.c, with the lock held ----------------------------------------------------- -- */

/* The slot of a page, or -1. */
int32_t store_find(const struct store *st, const struct hash *name);

/* Make a page visible; hide it (its slot is in no list then); give a slot back. */
void store_insert(struct store *st, int32_t slot, const struct store_record *record);
void store_remove(struct store *st, int32_t slot);
void store_free_slot(struct store *st, int32_t slot);

/* The page is used now. read: by a load, which is counted. */
void store_touch(struct store *st, int32_t slot, bool read);

/* A slot to write to: a free one, or that of the page that is evicted. -1: all pages are being
 * read, or the page file would have to grow and may not. */
int32_t store_take_slot(struct store *st);

/* Call when the page's right to be evicted has changed: with its readers. */
void store_place(struct store *st, int32_t slot);

/* The slot's record differs from the database's. */
void store_note_changed(struct store *st, int32_t slot);

/* Add to the retention of a page. */
void store_retain_slot(struct store *st, int32_t slot, struct retain r);

/* Are there changes that can be worked on in this mode? */
static inline bool store_has_changes(const struct store *st)
{
    switch (st->mode) {
    case STORE_WRITING: return st->n_changed > 0;
    case STORE_READING: return st->n_changed > st->n_scrubbed;
    case STORE_AWAY: return false;
    }
    return false;
}

static inline bool store_is_idle(const struct store *st)
{
    return st->n_busy == 0 && st->reads.first == NULL && st->writes.first == NULL &&
           !store_has_changes(st);
}

/* Check that every slot is a page in list and table, or free. must() on failure; nothing may be in
 * progress. */
void store_prove_index(const struct store *st);

/* Fill the index from the database, in STORE_AWAY or before the I/O thread runs. Needs no lock,
 * because nothing is looked up then. */
int store_load_index(struct store *st) ERR_CHECKED;

/* --- store_io.c ---------------------------------------------------------------------------- */

/* The I/O thread; ends with st->stop and empty queues. */
void *store_run(void *store);

/* A reading thread; ends with st->stop and an empty queue of reads. */
void *store_run_reader(void *store);

/* Write the last uses that changed. By the I/O thread, and once after its end. */
void store_write_uses(struct store *st);

/* Overwrite the headers of dropped pages in the page file, which needs no room: so they do not come
 * back with the next start even if their records stay. By the I/O thread, the only one that writes;
 * slots[n]. */
void store_scrub(struct store *st, const int32_t *slots, int n);

/* --- store_room.c --------------------------------------------------------------------------- */

/* Open lock, index and page file. ERR_IN_USE, or an error of the folder; then nothing is held. On
 * ERR_OK the mode is set. By the I/O thread, or before it runs. */
int store_attach(struct store *st) ERR_CHECKED;

/* Close everything that store_attach() opened. */
void store_detach(struct store *st);

/* Try to reach the next better mode, when it is time. By the I/O thread, without the lock. */
void store_tend(struct store *st);

/* How long the I/O thread may sleep, us. */
uint64_t store_tend_in_us(const struct store *st);

/* Find out by how much the page file may grow. By the I/O thread, once per batch. */
void store_measure_room(struct store *st);

/* --- queues; the lock is held -------------------------------------------------------------- */

static inline void store_push(struct store_queue *q, struct store_buffer *buffer)
{
    buffer->next = NULL;
    if (q->last == NULL)
        q->first = buffer;
    else
        q->last->next = buffer;
    q->last = buffer;
}

static inline struct store_buffer *store_pop(struct store_queue *q)
{
    struct store_buffer *buffer = q->first;

    if (buffer == NULL)
        return NULL;
    q->first = buffer->next;
    if (q->first == NULL)
        q->last = NULL;
    return buffer;
}

#endif
