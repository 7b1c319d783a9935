/* The page store: pages that outlive the engine. A page file for payloads, LMDB for the index.
 *
 * One I/O thread does all reading and writing; the engine's thread never waits for a disk. It
 * hands over staging buffers and polls for what is done. The index is in memory (filled by one
 * scan at open), so store_has() is a hash probe.
 *
 *   dir/pages.kv   slots of a 4 KiB-aligned size: header (name, parent, namespace, tokens,
 *                  generation, payload length, checksums) and payload
 *   dir/data.mdb   LMDB: slot number -> record; namespaces; last use
 *
 * Payload first, then fdatasync, then the index entry: what the index names was written. Each
 * page is checked when it is read (name, tokens, checksum); a wrong one is a miss, is counted
 * and loses its entry. Bounded by max_bytes: of the pages that none continues goes first what has
 * the lowest priority, then what was used least recently (eviction.h). A store
 * of another format, or one that was read and is damaged, is moved aside with one log line and a
 * new one begun; what was moved aside goes after a week, or when the disk is short of room.
 *
 * A disk without room, or one that fails, damages nothing. While there is no room for the index to
 * be written anew, the pages that are there are read and none is written; a folder that cannot be
 * used at all has no pages. The I/O thread tries again, so the engine serves meanwhile and the tier
 * comes back without a restart. */
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
    size_t reserve_bytes; /* the page file does not grow where less than this would stay free */
    uint64_t retry_us;    /* between attempts to use a disk that could not be used; 0: 10 s, more
                           * after each in vain, up to 5 minutes */
    size_t page_bytes;    /* payload of one page */
    int page_tokens;
    int kept_pct;  /* of the slots, for pages above the default priority */
    int n_buffers; /* staging buffers of page_bytes, >= 2 */
    /* Make the buffers ready for the device's copies, as host_options.pin; NULL: they need not be.
     * One that is not is copied slowly. */
    int (*pin)(void *context, void *memory, size_t bytes);
    void (*unpin)(void *context, void *memory);
    void *context;
    struct hash namespace_id;   /* the model's fingerprint: pages of others are kept, not served */
    const char *namespace_name; /* for people: the served model's name */
};

/* What became of a store_load(), or that the memory of a store_save_from() is no longer needed. */
struct store_done {
    uint64_t ticket;
    bool saved;           /* of a store_save_from(): nothing else is told then */
    int rc;               /* ERR_OK; ERR_NOT_FOUND, ERR_IO or ERR_CORRUPT: a miss */
    const void *payload;  /* page_bytes, with ERR_OK; give back with store_release() */
    struct retain retain; /* of the page, with ERR_OK */
};

/* What a namespace (prefix_space()) was asked for, in all its life. */
#define STORE_RATES_MAX 256
struct store_rate {
    uint64_t space;         /* 0: all that have no row of their own */
    uint64_t used;          /* the highest was used last */
    uint64_t queries, hits; /* tokens of prompts, and those that were found in a cache */
};

struct store_counters {
    uint64_t entries; /* pages of this namespace that can be served */
    uint64_t written; /* since open */
    uint64_t read;
    uint64_t faults; /* pages that failed their check or could not be read or written */
    uint64_t slots;
    uint64_t kept; /* pages above the default priority */
};

/* Open or create, and start the I/O thread. ERR_OK also when the folder cannot be used now
 * (logged): the store is empty then, and the I/O thread tries again. ERR_IN_USE (logged) when
 * another engine holds the store; ERR_IO (logged) when threads cannot start; ERR_NO_MEMORY of the
 * machine's. */
int store_open(struct store **out, const struct store_options *options) ERR_CHECKED;

/* Write what is queued, commit, note the clean end, stop the thread. NULL is fine. */
void store_close(struct store *st);

/* Is a page of this name to be had? Engine thread; a probe in memory. */
bool store_has(const struct store *st, const struct hash *name);

/* Is a staging buffer free? */
bool store_has_buffer(struct store *st);

/* A staging buffer of page_bytes to fill for store_save(), or NULL when all are in use. */
void *store_buffer(struct store *st);

/* Queue a filled buffer for writing; the label's tokens are copied. A name that is already
 * stored is only marked as used. The buffer belongs to the store from here on. */
void store_save(struct store *st, void *buffer, const struct page_label *label);

/* The same without copying: the I/O thread takes the payload from where it stands, which must stay
 * as it is until store_poll() has told of the ticket. False when no buffer is free. */
bool store_save_from(struct store *st, const void *payload, const struct page_label *label,
                     uint64_t ticket);

/* Queue a read; tokens, int32 [page_tokens], are what the page must hold. ERR_AGAIN when no
 * buffer is free: ask again in a later step. ERR_NOT_FOUND when the index does not have it. */
int store_load(struct store *st, const struct hash *name, const int32_t *tokens,
               uint64_t ticket) ERR_CHECKED;

/* Something is said of a page beside what was said before; nothing when it is not there. */
void store_retain(struct store *st, const struct hash *name, struct retain r);

/* Is the page there, and as much said of it as this? */
bool store_retains(struct store *st, const struct hash *name, struct retain r);

/* Drop a page: nobody finds it from now on, what reads it gets ERR_NOT_FOUND, and what is being
 * written is not kept. Its record goes a moment later: store_is_quiet() says that it has. True when
 * it was there. */
bool store_drop(struct store *st, const struct hash *name);

/* Nothing is queued or under way. */
bool store_is_quiet(struct store *st);

/* What a slot below store_counters.slots holds, but for its tokens; false: nothing. */
bool store_look(const struct store *st, uint32_t slot, struct page_label *label);

/* Take one finished read; false when there is none. */
bool store_poll(struct store *st, struct store_done *done);

/* Give back the buffer of a payload, or one from store_buffer() that was not used. */
void store_release(struct store *st, const void *buffer);

/* Readable while store_poll() has something. */
int store_event_fd(const struct store *st);

enum store_mode {
    STORE_AWAY,    /* the folder cannot be used: no pages */
    STORE_READING, /* pages are served, none is written: the disk has no room for the index */
    STORE_WRITING,
};
enum store_mode store_mode(const struct store *st);

/* Wait until everything queued so far is written and committed; tests and shutdown. */
void store_flush(struct store *st);

void store_read_counters(const struct store *st, struct store_counters *out);

/* What namespaces were asked for: written within two minutes, once a minute at most, and when the
 * store closes. n is 0 .. STORE_RATES_MAX. */
void store_set_rates(struct store *st, const struct store_rate *rates, int n);

/* As set last, in this life or, before that, in one before; how many there are. */
int store_rates(const struct store *st, struct store_rate rates[STORE_RATES_MAX]);

/* Prove that lists, table and entries agree and no slot is lost. O(n). must() on failure. Behind
 * store_flush(), by the thread that queues. Tests. */
void store_prove(const struct store *st);

#endif
