/* The inside of the page store, for its files: store.c (open, close, the engine's calls),
 * store_index.c (which page lies where, which goes next), store_io.c (the I/O thread),
 * store_room.c (what the disk can be used for).
 *
 * One mutex guards the queues and the index in memory; it is held for probes and list moves,
 * never over I/O. */
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

struct store_entry {
    struct store_record record;
    uint32_t n_children; /* stored pages that continue it and came after it */
    uint32_t n_readers;  /* reads under way: not evicted */
    int32_t next;        /* in the list of free slots */
    bool used;
    bool gone;     /* dropped while it is read: its slot is free when that is over */
    bool changed;  /* in store.changed */
    bool scrubbed; /* its page is gone from the page file, and its record is not yet */
};

/* A staging buffer: header and payload, as they stand in the page file. */
struct store_buffer {
    struct store_header *header; /* STORE_HEADER_BYTES, then page_bytes */
    struct store_buffer *next;   /* in the free, write, read or done queue */
    struct hash name;
    struct hash parent;
    int32_t tokens[STORE_TOKENS_MAX];
    uint64_t root;
    struct retain retain;
    bool writes;  /* it is queued for writing, or being written */
    bool dropped; /* and nobody wants it any more */
    uint64_t ticket;
    const void *source; /* of a write: where its payload is to be taken from; NULL: it is here */
    bool tells;         /* that it was written: source was given */
    int32_t slot;
    int rc;
    bool pinned;
};

struct store_queue {
    struct store_buffer *first, *last;
};

#define STORE_MAP_BYTES ((size_t)16 << 30) /* address room of the index; 115 MB per million */
#define STORE_CHANGES   4096               /* of a transaction; buffers are fewer */
#define STORE_READERS   5 /* threads that read beside the I/O thread: disks want several */

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
    enum store_mode mode; /* changed by the I/O thread once it runs */
    int n_busy;           /* threads that read or write */
    uint32_t n_slots;
    struct store_entry *entries; /* [n_slots] */
    struct table table;          /* of their names */
    struct eviction *eviction;   /* of the pages that may go */
    int32_t free;
    struct store_use *uses; /* [n_chunks * STORE_USES] */
    bool *uses_marked;      /* [n_chunks] */
    uint32_t n_chunks;
    struct store_buffer *buffers; /* [n_buffers] */
    struct store_queue idle_buffers, writes, reads, done;
    int32_t *changed; /* [n_slots]: whose records the I/O thread is to write again, or erase */
    uint32_t n_changed;
    uint32_t n_scrubbed; /* the first of changed: done what can be done without the index */
    struct store_counters counters;
    struct store_rate rates[STORE_RATES_MAX];
    int n_rates;
    bool rates_marked; /* they are to be written */

    /* The I/O thread's own. */
    struct store_change *changes; /* [STORE_CHANGES] */
    int n_tries;                  /* in vain, of what changed */
    bool *uses_copy_marked;
    struct store_use *uses_copy;
    struct store_rate rates_copy[STORE_RATES_MAX];
    uint64_t uses_written_us;
    uint64_t file_bytes;            /* of the page file: what it has grown to */
    int64_t room_bytes;             /* that the page file may grow by in this batch */
    uint64_t tried_us, try_next_us; /* to use a disk that could not be used */
    uint64_t swept_us;              /* when what was set aside was last looked at */
    _Atomic uint64_t complained_us;
};

/* --- store_index.c; the lock is held ------------------------------------------------------- */

/* The slot of a page, or -1. */
int32_t store_find(const struct store *st, const struct hash *name);

/* Make a page visible, take it out of sight (its slot is in no list then), give a slot back. */
void store_insert(struct store *st, int32_t slot, const struct store_record *record);
void store_remove(struct store *st, int32_t slot);
void store_free_slot(struct store *st, int32_t slot);

/* Used right now; read: by a load, which counts. */
void store_touch(struct store *st, int32_t slot, bool read);

/* A slot to write to: a free one, or that of the page that goes first. -1: all are read, or the
 * page file would have to grow and may not. */
int32_t store_take_slot(struct store *st);

/* Whether a page may go has changed: its readers. */
void store_place(struct store *st, int32_t slot);

/* A slot's record is no longer what the database has. */
void store_note_changed(struct store *st, int32_t slot);

/* What is said of a page, beside what was. */
void store_retain_slot(struct store *st, int32_t slot, struct retain r);

/* Are there changes that something can be done about? */
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

/* Every slot is a page in list and table, or free. must() when not; nothing is under way. */
void store_prove_index(const struct store *st);

/* Fill the index from the database: while the mode is STORE_AWAY, or before the I/O thread runs.
 * The lock is not needed: nothing is looked up then. */
int store_load_index(struct store *st) ERR_CHECKED;

/* --- store_io.c ---------------------------------------------------------------------------- */

/* The I/O thread, until st->stop and empty queues. */
void *store_run(void *store);

/* A thread that only reads, until st->stop and no reads. */
void *store_run_reader(void *store);

/* Write last uses that changed. By the I/O thread, and once after it has ended. */
void store_write_uses(struct store *st);

/* Pages that are gone must not come back with the next start though their records stay: overwrite
 * their headers in the page file, which needs no room. By the I/O thread, which alone writes;
 * slots[n]. */
void store_scrub(struct store *st, const int32_t *slots, int n);

/* --- store_room.c --------------------------------------------------------------------------- */

/* Open lock, index and page file. ERR_IN_USE; else what is wrong with the folder, and nothing is
 * held. On ERR_OK the mode is set. Before the I/O thread runs, or by it. */
int store_attach(struct store *st) ERR_CHECKED;

/* Close what store_attach() opened. */
void store_detach(struct store *st);

/* Try to get to the next better mode, when it is time. By the I/O thread; the lock is not held. */
void store_tend(struct store *st);

/* How long the I/O thread may sleep, us. */
uint64_t store_tend_in_us(const struct store *st);

/* Find out how much the page file may grow. By the I/O thread, once per batch. */
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
