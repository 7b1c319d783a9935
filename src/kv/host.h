/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier: pages in host memory, in a mapped file on tmpfs that outlives the engine.
 *
 *   host_file | host_slot[n_slots] | payloads, each a multiple of 4 KiB
 *
 * The file is its own index: an engine that opens it finds the pages of the previous one, even
 * after a kill -9, because a slot is marked as holding a page only after its payload and checksum
 * are complete. A page of a previous engine is checked before its first use. A file of another
 * model, page size or build is begun anew. Bounded by max_bytes: only pages that no other page
 * continues are evicted, in eviction order (eviction.h), so the end of a prefix goes before its
 * start.
 *
 * Memory is allocated, and given to pin(), in chunks: first those that hold pages, then as needed,
 * and where pinning stops the device for a moment, while that is idle. A few threads do that, the
 * checksums and the checks; the engine's thread never waits. */
#ifndef QUIRE_KV_HOST_H
#define QUIRE_KV_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "kv/pages.h"

#define HOST_MAGIC      UINT64_C(0x3174736f68697571)
#define HOST_VERSION    2
#define HOST_TOKENS_MAX 256 /* most tokens per page */
#define HOST_ALIGN      4096

/* The head of the file, for the engine and for tools. */
struct host_file {
    uint64_t magic;
    uint32_t version;
    uint32_t n_slots;
    uint64_t page_bytes;    /* bytes of a payload */
    uint64_t payload_bytes; /* page_bytes, rounded up to HOST_ALIGN */
    uint64_t payloads_at;   /* offset in the file */
    uint32_t page_tokens;
    uint32_t unused;
    struct hash fingerprint;
    char name[64]; /* the served model's name, for people */
};

enum host_state {
    HOST_EMPTY = 0,
    HOST_HOLDS = 1,
    HOST_GONE = 2, /* dropped before it was complete, or while it was read */
};

struct host_slot {
    _Atomic uint32_t state; /* enum host_state; HOST_HOLDS is stored last */
    uint32_t n_tokens;
    uint64_t payload_xxh3;
    uint64_t used;            /* number of its last use; the highest was used last */
    _Atomic uint64_t retains; /* its retention: retain_pack() */
    struct hash name;
    struct hash parent;
    uint64_t space; /* its namespace (prefix_space()) */
    int32_t tokens[HOST_TOKENS_MAX];
    uint64_t slot_xxh3; /* of the fields from n_tokens to tokens, except used and retains */
};

struct host;

struct host_options {
    const char *path;
    size_t max_bytes; /* of all payloads */
    size_t page_bytes;
    int page_tokens;
    int kept_pct;      /* share of the slots for pages above the default priority */
    uint64_t retry_us; /* between attempts to get memory; 0: a minute */
    bool grows_idle;   /* allocate memory while there are no requests, not only when it is needed */
    struct hash fingerprint;
    const char *name;
    /* Prepare memory for the device's copies; called by a thread of the tier. ERR_OK, or an error,
     * after which the tier does not grow. unpin() is called before the memory is unmapped. */
    int (*pin)(void *context, void *memory, size_t bytes);
    void (*unpin)(void *context, void *memory);
    void *context;
};

struct host_counters {
    uint64_t pages;  /* pages that can be served */
    uint64_t slots;  /* slots with memory */
    uint64_t faults; /* pages that failed their check */
    uint64_t evicted;
    uint64_t jobs; /* jobs that host_poll() has not returned yet */
    uint64_t kept; /* pages above the default priority */
};

/* ERR_OK also when the file cannot be used now (logged), because its folder is missing, tmpfs is
 * full, or other users have access to it: the tier has no pages then, and host_tick() tries again.
 * ERR_IN_USE (logged) when another engine uses it; ERR_NO_MEMORY. */
int host_open(struct host **out, const struct host_options *o) ERR_CHECKED;

/* Wait at most max_us until the memory of all pages of the previous engine, and of some more, is
 * ready: interrupted requests come back first and need their pages. Before the first of the calls
 * below. */
void host_wait(struct host *h, uint64_t max_us);

/* Finish all jobs; the pages stay in the file. NULL is allowed. */
void host_close(struct host *h);

/* --- the engine's thread ----------------------------------------------------------------- */

/* The slot of a page that can be served, or -1. tokens, int32 [page_tokens]: the tokens it must
 * have. Pages of a previous engine can be served when their memory is pinned again. */
int32_t host_find(const struct host *h, const struct hash *name, const int32_t *tokens);

/* A slot for a page that is not there yet, or -1 when there is none now. host_fill() and
 * host_filled() must follow; then the page can be served. *victim is the page that was evicted for
 * it, if that was used more than once and is worth saving elsewhere; its label and payload are
 * valid until host_fill(). Otherwise victim->n_uses is 0. */
struct host_victim {
    struct page_label label;
    const void *payload;
    uint32_t n_uses;
};
int32_t host_take(struct host *h, const struct page_label *label, struct host_victim *victim);

/* While gentle, the tier allocates memory only now and then, because pinning stops the device for a
 * moment. Otherwise, with grows_idle, it allocates all that it may have, some per call. */
void host_be_gentle(struct host *h, bool gentle);

/* True while more memory is being pinned in the background: call host_be_gentle() and host_poll()
 * again soon. */
bool host_is_growing(const struct host *h);

/* Write a page's description to its slot; before its payload is written. */
void host_fill(struct host *h, int32_t slot, const struct page_label *label);

/* The payload is complete (good), or will never be. */
void host_filled(struct host *h, int32_t slot, bool good);

void *host_payload(const struct host *h, int32_t slot);

/* Describe a slot, if it holds the page of this name and can be served; borrowed until the page is
 * evicted. */
bool host_label(const struct host *h, int32_t slot, const struct hash *name,
                struct page_label *label);

/* Keep a slot from being evicted while it is read. */
void host_hold(struct host *h, int32_t slot);

/* A sequence uses the page: it is evicted later, and is worth saving elsewhere. */
void host_use(struct host *h, int32_t slot);

/* End a hold. */
void host_release(struct host *h, int32_t slot);

/* Is the held page known to be complete? Pages of a previous engine are not: host_check() starts a
 * check, and host_poll() returns its ticket and result; a page that fails is dropped. */
bool host_is_checked(const struct host *h, int32_t slot);
void host_check(struct host *h, int32_t slot, uint64_t ticket);
bool host_poll(struct host *h, uint64_t *ticket, bool *good);

/* Set the time, unix seconds: retention that ends by then has no effect any more. A file that could
 * not be used is tried again while there are no requests, which takes as long as opening it. */
void host_tick(struct host *h, uint32_t now_s);

/* Add to the retention of a page (retain_join()); no effect when it is not there. */
void host_retain(struct host *h, const struct hash *name, struct retain r);

/* Is the page there, with at least this retention? */
bool host_retains(const struct host *h, const struct hash *name, struct retain r);

/* Drop a page; true when it was there. It is not found any more; if it is held, or its checksum is
 * being computed, its slot is freed after that. */
bool host_drop(struct host *h, const struct hash *name);

/* The number of slots, and the page of one: false when it holds none that can be served. For
 * scans. */
int32_t host_n_slots(const struct host *h);
bool host_read_slot(const struct host *h, int32_t slot, struct page_label *label);

void host_read_counters(const struct host *h, struct host_counters *out);

/* Check that lists, table and states agree. O(n). must() on failure. For tests. */
void host_prove(const struct host *h);

/* --- for tools ----------------------------------------------------------------------------- */

/* The digest of a valid slot. */
uint64_t host_slot_digest(const struct host_slot *header);

#endif
