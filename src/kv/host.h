/* The host tier: pages in host memory, in a mapped file on tmpfs that outlives the engine.
 *
 *   host_file | host_slot[n_slots] | payloads, each a multiple of 4 KiB
 *
 * The file is its own index: who opens it finds the pages of the engine before, which a kill -9 of
 * that one left whole, because a slot says that it holds a page only after its payload and checksum
 * stand there. A page of an earlier life is checked before its first use. A file of another model,
 * page size or build is begun anew. Bounded by max_bytes: of the pages that nothing continues goes
 * first what has the lowest priority, then what was used least recently (eviction.h); so the end of
 * a prefix goes before its start.
 *
 * Memory is taken, and given to pin(), in chunks: first those that hold pages, then as more is
 * needed, and where pinning holds a device up, while that is idle. A few threads do that, the
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
#define HOST_TOKENS_MAX 256 /* of a page */
#define HOST_ALIGN      4096

/* What stands in the file, for the engine and for tools. */
struct host_file {
    uint64_t magic;
    uint32_t version;
    uint32_t n_slots;
    uint64_t page_bytes;    /* of a payload */
    uint64_t payload_bytes; /* page_bytes, rounded up to HOST_ALIGN */
    uint64_t payloads_at;   /* bytes from the start of the file */
    uint32_t page_tokens;
    uint32_t unused;
    struct hash fingerprint;
    char name[64]; /* the served model's, for people */
};

enum host_state {
    HOST_EMPTY = 0,
    HOST_HOLDS = 1,
    HOST_GONE = 2, /* dropped before it held anything, or while somebody looked */
};

struct host_slot {
    _Atomic uint32_t state; /* enum host_state; HOST_HOLDS is stored last */
    uint32_t n_tokens;
    uint64_t payload_xxh3;
    uint64_t used;            /* counts uses in all; the highest was used last */
    _Atomic uint64_t retains; /* what was said of the page: retain_pack() */
    struct hash name;
    struct hash parent;
    uint64_t space; /* its namespace (prefix_space()) */
    int32_t tokens[HOST_TOKENS_MAX];
    uint64_t slot_xxh3; /* of what stands between state and it, but for used and retains */
};

struct host;

struct host_options {
    const char *path;
    size_t max_bytes; /* of payloads */
    size_t page_bytes;
    int page_tokens;
    int kept_pct;      /* of the slots, for pages above the default priority */
    uint64_t retry_us; /* between attempts to get memory that there was not; 0: a minute */
    bool grows_idle;   /* take memory while nobody is served, not first when it is needed */
    struct hash fingerprint;
    const char *name;
    /* Make memory ready for the device's copies; called by a thread of the tier. ERR_OK or an
     * error, after which the tier does not grow. unpin() before the memory goes. */
    int (*pin)(void *context, void *memory, size_t bytes);
    void (*unpin)(void *context, void *memory);
    void *context;
};

struct host_counters {
    uint64_t pages;  /* that can be served */
    uint64_t slots;  /* that memory was taken for */
    uint64_t faults; /* pages that failed their check */
    uint64_t evicted;
    uint64_t jobs; /* asked of the threads and not told of by host_poll() yet */
    uint64_t kept; /* pages above the default priority */
};

/* ERR_OK also when the file cannot be used now (logged), because its folder is missing, tmpfs is
 * full, or the file is not this user's alone: the tier has no pages then, and host_tick() tries
 * again. ERR_IN_USE (logged) when another engine has it; ERR_NO_MEMORY. */
int host_open(struct host **out, const struct host_options *o) ERR_CHECKED;

/* Wait until the memory of all pages of the engine before, and of some more, is ready, at most
 * max_us: who was interrupted comes first of all, and wants his pages. Before the first of the
 * calls below. */
void host_wait(struct host *h, uint64_t max_us);

/* Ends what is under way; the pages stay in the file. NULL is fine. */
void host_close(struct host *h);

/* --- the engine's thread ----------------------------------------------------------------- */

/* The slot of a page that can be had, or -1. tokens, int32 [page_tokens], are what it must hold.
 * Pages of an earlier life can be had when their memory is pinned again. */
int32_t host_find(const struct host *h, const struct hash *name, const int32_t *tokens);

/* A slot to be filled with a page that is not there yet, or -1 when there is none at the moment.
 * host_fill() and host_filled() are to follow; then it can be had. What was evicted for it, if that
 * was used more than once and can be saved elsewhere, is *victim, whose label and payload stand
 * until host_fill(); victim->n_uses is 0 otherwise. */
struct host_victim {
    struct page_label label;
    const void *payload;
    uint32_t n_uses;
};
int32_t host_take(struct host *h, const struct page_label *label, struct host_victim *victim);

/* While it is gentle the tier takes more memory only now and then: pinning holds the device up.
 * While it is not, and grows_idle was asked for, it takes all that it may have, a bit a call. */
void host_be_gentle(struct host *h, bool gentle);

/* Memory is on its way that nobody is held up by: worth calling again soon. */
bool host_is_growing(const struct host *h);

/* What the slot says of its page; before its payload is written. */
void host_fill(struct host *h, int32_t slot, const struct page_label *label);

/* Its payload is complete (or, good false, will never be). */
void host_filled(struct host *h, int32_t slot, bool good);

void *host_payload(const struct host *h, int32_t slot);

/* What a slot holds, if that is the page of this name and can be had; borrowed until it goes. */
bool host_label(const struct host *h, int32_t slot, const struct hash *name,
                struct page_label *label);

/* Keep a slot from being evicted while it is read. */
void host_hold(struct host *h, int32_t slot);

/* A sequence uses its page: it goes later, and is worth a place elsewhere. */
void host_use(struct host *h, int32_t slot);

/* The end of a hold. */
void host_release(struct host *h, int32_t slot);

/* Is the held page known to be whole? Those of an earlier life are not: host_check() has that
 * found out, and host_poll() tells of it; a page that fails is gone. */
bool host_is_checked(const struct host *h, int32_t slot);
void host_check(struct host *h, int32_t slot, uint64_t ticket);
bool host_poll(struct host *h, uint64_t *ticket, bool *good);

/* It is now_s, unix seconds: hints that end by then count no longer. A file that could not be used
 * is tried again while no request is under way: that takes as long as opening it. */
void host_tick(struct host *h, uint32_t now_s);

/* Something is said of a page beside what was said before; nothing when it is not there. */
void host_retain(struct host *h, const struct hash *name, struct retain r);

/* Is the page there, and as much said of it as this? */
bool host_retains(const struct host *h, const struct hash *name, struct retain r);

/* Drop a page; true when it was there. Nobody finds it from now on; one that is held or whose
 * checksum is being made goes when that is over. */
bool host_drop(struct host *h, const struct hash *name);

/* How many slots there are, and what one of them holds: false when that is nothing that can be had.
 * For those who look at all. */
int32_t host_n_slots(const struct host *h);
bool host_read_slot(const struct host *h, int32_t slot, struct page_label *label);

void host_read_counters(const struct host *h, struct host_counters *out);

/* Prove that lists, table and states agree. O(n). must() on failure. Tests. */
void host_prove(const struct host *h);

/* --- for tools ----------------------------------------------------------------------------- */

/* The digest that a slot must have. */
uint64_t host_slot_digest(const struct host_slot *header);

#endif
