/* SPDX-License-Identifier: Apache-2.0
 *
 * The page store: pages on disk, which outlive the engine and the machine's restart. A page file
 * for payloads, LMDB for the index.
 *
 * One I/O thread writes and some threads read; the engine's thread never waits for a disk. It hands
 * over staging buffers and polls for results. The index is in memory too (filled by one scan at
 * open), so store_has() is a hash probe.
 *
 *   dir/pages.kv   slots of a 4 KiB-aligned size: header (name, parent, namespace, tokens,
 *                  generation, payload length, checksums) and payload
 *   dir/data.mdb   LMDB: slot number -> record; namespaces; last use
 *
 * The payload is written first, then fdatasync, then the index entry: so every page of the index is
 * complete. Each page is checked when it is read (name, tokens, checksum); a wrong one is a miss,
 * is counted and loses its entry. Bounded by max_bytes: only pages that no other page continues are
 * evicted, in eviction order (eviction.h). A store of another format, or one that was read and is
 * damaged, is moved aside with a log line and a new one is begun; files that were moved aside are
 * removed after a week, or earlier when the disk is short of room.
 *
 * A full or failing disk damages nothing. While there is no room to write the index, pages are read
 * and none is written; a folder that cannot be used at all has no pages. The I/O thread tries
 * again, so the engine serves meanwhile and the tier returns without a restart. */
#ifndef QUIRE_KV_STORE_H
#define QUIRE_KV_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "kv/pages.h"

struct store;

struct store_options {
    const char *dir;      /* created when missing, mode 0700 */
    size_t max_bytes;     /* of payload slots on disk */
    size_t reserve_bytes; /* the page file does not grow if less than this would stay free */
    uint64_t retry_us;    /* between attempts to use a disk that could not be used; 0: 10 s, and
                           * twice as long after each failure, up to 5 minutes */
    size_t page_bytes;    /* payload of one page */
    int page_tokens;
    int kept_pct;  /* share of the slots for pages above the default priority */
    int n_buffers; /* staging buffers of page_bytes, >= 2 */
    /* Prepare the buffers for the device's copies, as host_options.pin; NULL: not needed. Copies to
     * and from a buffer that is not pinned are slow. */
    int (*pin)(void *context, void *memory, size_t bytes);
    void (*unpin)(void *context, void *memory);
    void *context;
    struct hash namespace_id;   /* the model's fingerprint: pages of other models are kept, but not
                                 * served */
    const char *namespace_name; /* the served model's name, for people */
};

/* The result of a store_load(), or the end of a store_save_from(), whose memory is free again. */
struct store_done {
    uint64_t ticket;
    bool saved;           /* the end of a store_save_from(); the fields below are not used */
    int rc;               /* ERR_OK; ERR_NOT_FOUND, ERR_IO or ERR_CORRUPT: a miss */
    const void *payload;  /* page_bytes, with ERR_OK; return it with store_release() */
    struct retain retain; /* of the page, with ERR_OK */
};

/* Use of a namespace (prefix_space()) since the store was made. */
#define STORE_RATES_MAX 256
struct store_rate {
    uint64_t space;         /* 0: all namespaces without a row of their own */
    uint64_t used;          /* number of the last use; the highest was used last */
    uint64_t queries, hits; /* tokens of prompts, and those found in a cache */
};

struct store_counters {
    uint64_t entries; /* pages of this namespace that can be served */
    uint64_t written; /* pages written since open */
    uint64_t read;
    uint64_t faults; /* pages that failed their check, or could not be read or written */
    uint64_t slots;
    uint64_t kept; /* pages above the default priority */
};

/* Open or create the store, and start its threads. ERR_OK also when the folder cannot be used now
 * (logged): the store is empty then, and the I/O thread tries again. ERR_IN_USE (logged) when
 * another engine uses it; ERR_IO (logged) when threads cannot start; ERR_NO_MEMORY when the machine
 * has too little. */
int store_open(struct store **out, const struct store_options *options) ERR_CHECKED;

/* Write everything that is queued, commit, and stop the threads. NULL is allowed. */
void store_close(struct store *st);

/* Can a page of this name be read? Engine's thread; a probe in memory. */
bool store_has(const struct store *st, const struct hash *name);

/* Is a staging buffer free? */
bool store_has_buffer(struct store *st);

/* A staging buffer of page_bytes to fill for store_save(), or NULL when all are in use. */
void *store_buffer(struct store *st);

/* Queue a filled buffer for writing; the label's tokens are copied. A name that is stored already
 * is only marked as used. The buffer belongs to the store from here on. */
void store_save(struct store *st, void *buffer, const struct page_label *label);

/* Queue a page for writing without a copy by the caller: the I/O thread reads `payload`, which must
 * not change until store_poll() returns the ticket. False when no buffer is free. */
bool store_save_from(struct store *st, const void *payload, const struct page_label *label,
                     uint64_t ticket);

/* Queue a read; tokens, int32 [page_tokens], are those that the page must have. ERR_AGAIN when no
 * buffer is free: try again in a later step. ERR_NOT_FOUND when the index does not have it. */
int store_load(struct store *st, const struct hash *name, const int32_t *tokens,
               uint64_t ticket) ERR_CHECKED;

/* Add to the retention of a page (retain_join()); no effect when it is not there. */
void store_retain(struct store *st, const struct hash *name, struct retain r);

/* Is the page there, with at least this retention? */
bool store_retains(struct store *st, const struct hash *name, struct retain r);

/* Drop a page: it is not found any more, reads of it return ERR_NOT_FOUND, and a write of it is not
 * kept. Its record is deleted a moment later: see store_is_quiet(). True when it was there. */
bool store_drop(struct store *st, const struct hash *name);

/* Nothing is queued or in progress. */
bool store_is_quiet(struct store *st);

/* Describe the page of a slot below store_counters.slots, except its tokens; false: there is
 * none. */
bool store_look(const struct store *st, uint32_t slot, struct page_label *label);

/* Take one result; false when there is none. */
bool store_poll(struct store *st, struct store_done *done);

/* Return the buffer of a payload, or one from store_buffer() that was not used. */
void store_release(struct store *st, const void *buffer);

/* Readable while store_poll() has results. */
int store_event_fd(const struct store *st);

enum store_mode {
    STORE_AWAY,    /* the folder cannot be used: there are no pages */
    STORE_READING, /* pages are served, none is written: the disk has no room for the index */
    STORE_WRITING,
};
enum store_mode store_mode(const struct store *st);

/* Wait until everything queued so far is written and committed; for tests and shutdown. */
void store_flush(struct store *st);

void store_read_counters(const struct store *st, struct store_counters *out);

/* Set the use of namespaces: written within two minutes, at most once a minute, and when the store
 * closes. n is 0 .. STORE_RATES_MAX. */
void store_set_rates(struct store *st, const struct store_rate *rates, int n);

/* The rates as last set, by this engine or an earlier one; returns how many. */
int store_rates(const struct store *st, struct store_rate rates[STORE_RATES_MAX]);

/* Check that lists, table and entries agree and no slot is lost. O(n). must() on failure. After
 * store_flush(), by the thread that queues. For tests. */
void store_prove(const struct store *st);

#endif
