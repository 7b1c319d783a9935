/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiers of the cache: pages between the device, host memory and the disk.
 *
 * A load brings a page of a waiting prompt up to the device:
 *
 *                      .-> READING (store) --.
 *    FREE -> new load -|                     |-> STARTED -> COPYING -> page named -> FREE
 *      \               '-> CHECKING (host) --'      (copy)   (mark)      (pages.h)
 *       '-> SHARED: waits for another load of the same page, then searches again
 *
 * Any error ends a load early, and the page goes back without a name: that is a cache miss. A save
 * takes a page down:
 *
 *    named on the device -> dirty ring -> save into a host slot -> filled -> in the host tier
 *    used again there    -> hot ring   -> written from its slot -> in the store
 *    without a host tier:  dirty ring  -> staging buffer        -> in the store
 *
 * All functions belong to the engine's thread. Every ring and table is bounded; a page that finds
 * no room in one is not saved, and is computed again when it is needed. */
#ifndef QUIRE_ENGINE_TIERS_H
#define QUIRE_ENGINE_TIERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "kv/host.h"
#include "kv/retain.h"
#include "kv/store.h"

struct engine;
struct engine_step;
struct seq;

/* Lengths of the rings; powers of two, because their indices wrap. */
#define TIERS_SAVES 1024
#define TIERS_HOT   4096

/* A page that has a name and is in no lower tier yet. */
struct tiers_dirty {
    int32_t page;
    struct hash name; /* a page that has another name by now was taken for something else */
};

/* The states of a load; the picture is above. */
enum load_state {
    LOAD_FREE,
    LOAD_SHARED,   /* has no page: its sequence waits for the load `of` */
    LOAD_READING,  /* the store reads it */
    LOAD_CHECKING, /* the host tier checks its hash, and answers with the load's index */
    LOAD_STARTED,  /* the copy is enqueued, and has no mark yet */
    LOAD_COPYING,
    LOAD_FAILED, /* the copy could not be enqueued */
};

struct tiers_load {
    enum load_state state;
    int32_t page; /* holds one reference */
    struct hash name;
    struct hash parent;
    int32_t *tokens_copy; /* int32 [page_tokens] */
    int n_tokens;         /* tokens that it serves; 0: another page of the same tokens is counted */
    uint64_t space;       /* its namespace */
    struct retain retain; /* as the lower tier has it */
    bool dropped;         /* it was dropped meanwhile: do not name it */
    struct seq *seq;      /* the sequence that waits for it; NULL: it has ended */
    int32_t slot;         /* slot of the host tier, held; -1: it comes from the store */
    const void *payload;  /* the store's buffer, until it is copied */
    uint64_t mark;        /* reached when its copy is done */
    int of;               /* index of the other load (LOAD_SHARED) */
};

/* A page that is being copied to the host tier. */
struct tiers_save {
    int32_t page; /* holds one reference; -1: an evicted page; the next step waits for the copy */
    int32_t slot; /* of the host tier, being filled */
    struct hash name;
    uint64_t space;
    bool dropped; /* it was dropped meanwhile: do not keep it */
    bool marked;
    uint64_t mark;
};

/* A page of the host tier that was used again, and so is worth a place on disk. */
struct tiers_hot {
    int32_t slot;
    struct hash name;
};

struct tiers {
    struct host *host;         /* NULL: there is no host tier */
    struct store *store;       /* NULL: there is no store */
    struct tiers_dirty *dirty; /* ring [dirty_cap] */
    uint32_t dirty_cap, dirty_head, dirty_tail;
    struct tiers_load *loads; /* [n_loads] */
    int n_loads;
    int next_load; /* where the search for a free one begins */
    int n_loads_used;
    int n_loads_shared;                   /* the part of n_loads_used in LOAD_SHARED */
    struct tiers_save saves[TIERS_SAVES]; /* ring, in the order of their marks */
    uint32_t saves_head, saves_tail;
    struct tiers_hot *hot; /* ring [TIERS_HOT] */
    uint32_t hot_head, hot_tail;
    double read_us;                   /* smoothed time per page read from the store; 0: unknown */
    double prefill_us;                /* smoothed time per token of a prompt; 0: unknown */
    uint64_t reads_since_us, n_reads; /* reads in flight, and when the oldest one began or the last
                                       * one ended */
    bool device_failed;               /* a copy failed, or copies never end */
    uint32_t progress;                /* tiers_progress() at the last look, for a sleep and for the
                                       * end */
    uint64_t moved_us;                /* when progress changed last */
    bool drops;                       /* an operator drops pages: pages that arrive meanwhile are
                                       * not kept */
    uint64_t drops_space;             /* the namespace that is dropped; 0: all */
};

/* Is this namespace being dropped? */
static inline bool tiers_drops(const struct tiers *t, uint64_t space)
{
    return t->drops && (t->drops_space == 0 || t->drops_space == space);
}

int tiers_init(struct engine *e) ERR_CHECKED;
void tiers_prefetch(struct engine *e); /* ask the lower tiers for the pages of waiting prompts */
void tiers_poll(struct engine *e);     /* take loads and saves that are done; sets device_failed */
void tiers_save_evicted(struct engine *e); /* before anything overwrites evicted pages */
void tiers_note_named(void *engine, int32_t page);
void tiers_write_behind(struct engine *e, int pages_max); /* save some of the dirty pages */
/* At the end of the engine: save the pages that are only on the device, and wait for the copies.
 * ERR_GPU (logged) when the device fails, or ends no copy for some seconds: pages that are saved by
 * then are kept, the rest is lost. */
int tiers_save_all(struct engine *e) ERR_CHECKED;
void tiers_forget(struct engine *e, struct seq *seq); /* before a sequence ends */
/* Waiting sequences whose prefix is being loaded. Costs nothing while there is no load. */
int tiers_n_deferred(const struct engine *e);
bool tiers_copy_in(const struct engine *e);   /* pages are being copied from host memory */
bool tiers_have_work(const struct engine *e); /* there are pages to save, or being saved */
/* Before a sleep: tiers_gather() makes dirty all pages that are only on the device; tiers_give_up()
 * leaves the dirty ones unsaved (logged). */
void tiers_gather(struct engine *e);
void tiers_give_up(struct engine *e);
/* Called once per pass after tiers_gather(): true (and logged) when copies to host memory have
 * begun and nothing has been saved for some seconds. No step may be in flight. */
bool tiers_are_stuck(struct engine *e);
/* Queue a page of the host tier to be written to disk. */
void tiers_want_stored(struct engine *e, int32_t slot, const struct hash *name);
/* Drop loads and saves in flight of this page, or of this namespace. name NULL: any page; space 0:
 * any namespace. */
void tiers_drop(struct engine *e, const struct hash *name, uint64_t space);
/* Learn from a step that has ended. */
void tiers_time_step(struct engine *e, const struct engine_step *step);

#endif
