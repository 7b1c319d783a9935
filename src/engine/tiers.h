/* Pages between the device, host memory and the disk, and what is known of those under way.
 *
 * The engine's thread alone. Every ring and table has a bound; what has no room is computed again
 * some day. */
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

#define TIERS_SAVES 1024
#define TIERS_HOT   4096

/* A page that was named and is not on disk yet. */
struct tiers_dirty {
    int32_t page;
    struct hash name; /* to notice that the page was taken for something else since */
};

/* A page on its way to the device. */
enum load_state {
    LOAD_FREE,
    LOAD_SHARED,   /* none of its own: seq waits for another load, which is `of` */
    LOAD_READING,  /* the store reads it */
    LOAD_CHECKING, /* the host tier looks whether it is whole, and will answer with its ticket */
    LOAD_STARTED,  /* its copy was started, and not marked yet */
    LOAD_COPYING,
    LOAD_FAILED, /* its copy could not be started */
};

struct tiers_load {
    enum load_state state;
    int32_t page; /* holds one reference */
    struct hash name;
    struct hash parent;
    int32_t *tokens_copy; /* int32 [page_tokens] */
    int n_tokens;         /* that it counts for; 0: another page of the same tokens does */
    uint64_t space;       /* its namespace */
    struct retain retain; /* what the lower tier says of it */
    bool dropped;         /* it is not to arrive */
    struct seq *seq;      /* that waits for it; NULL when it left */
    int32_t slot;         /* of the host tier, held; -1: it comes from the store */
    const void *payload;  /* the store's, until it is copied */
    uint64_t mark;        /* of its copy */
    int of;               /* its place in loads */
};

/* A page on its way to the host tier. */
struct tiers_save {
    int32_t page; /* holds one reference; -1: evicted, the next step waits for the copy */
    int32_t slot; /* being filled */
    struct hash name;
    uint64_t space;
    bool dropped; /* it is not to arrive */
    bool marked;
    uint64_t mark;
};

/* A page of the host tier that was used again: worth a place on disk. */
struct tiers_hot {
    int32_t slot;
    struct hash name;
};

struct tiers {
    struct host *host;         /* NULL: no host tier is kept */
    struct store *store;       /* NULL: no store is kept */
    struct tiers_dirty *dirty; /* ring [dirty_cap] */
    uint32_t dirty_cap, dirty_head, dirty_tail;
    struct tiers_load *loads; /* [n_loads] */
    int n_loads;
    int next_load; /* where the search for a free one begins */
    int n_loads_used;
    int n_loads_shared;                   /* of n_loads_used: LOAD_SHARED */
    struct tiers_save saves[TIERS_SAVES]; /* ring, in the order of their marks */
    uint32_t saves_head, saves_tail;
    struct tiers_hot *hot; /* ring [TIERS_HOT] */
    uint32_t hot_head, hot_tail;
    double read_us;                   /* smoothed: of a page from the store, 0: not known */
    double prefill_us;                /* smoothed: of a token of a prompt */
    uint64_t reads_since_us, n_reads; /* since the store was idle */
    bool device_failed;               /* it said so of copies, or never ends them */
    uint32_t progress;                /* of what is saved for a sleep or at the end */
    uint64_t moved_us;                /* when progress changed last */
    bool drops;           /* an operator drops pages: those that come meanwhile are not kept */
    uint64_t drops_space; /* of this namespace; 0: of all */
};

/* Is a namespace being dropped? */
static inline bool tiers_drops(const struct tiers *t, uint64_t space)
{
    return t->drops && (t->drops_space == 0 || t->drops_space == space);
}

int tiers_init(struct engine *e) ERR_CHECKED;
void tiers_prefetch(struct engine *e);     /* ask the lower tiers for waiting prompts' pages */
void tiers_poll(struct engine *e);         /* name pages that have come; sets device_failed */
void tiers_save_evicted(struct engine *e); /* before a step overwrites them */
void tiers_note_named(void *engine, int32_t page);
void tiers_write_behind(struct engine *e, int pages_max); /* save some of the dirty pages */
/* At the end: save what is only on the device, and wait for copies. ERR_GPU (logged) when the
 * device fails, or for some seconds ends none: what was saved by then stays, the rest is lost. */
int tiers_save_all(struct engine *e) ERR_CHECKED;
void tiers_forget(struct engine *e, struct seq *q); /* before a waiting sequence goes */
/* Waiting sequences whose prefix is being fetched. Cost: none while nothing is. */
int tiers_n_deferred(const struct engine *e);
bool tiers_copy_in(const struct engine *e);   /* pages are on their way from host memory */
bool tiers_have_work(const struct engine *e); /* pages are to be saved, or being saved */
/* Before a sleep: pages that are named on the device and nowhere else become dirty; they are dirty
 * no longer. */
void tiers_gather(struct engine *e);
void tiers_give_up(struct engine *e);
/* Asked in each pass from then on: copies to host memory were begun, and for some seconds neither
 * has one ended nor anything else been saved. It is logged. No step may be under way. */
bool tiers_are_stuck(struct engine *e);
/* A page of the host tier is worth a place on disk. */
void tiers_want_stored(struct engine *e, int32_t slot, const struct hash *name);
/* Loads and saves under way of this page, or of this namespace, do not arrive. name NULL: any
 * page; space 0: any namespace. */
void tiers_drop(struct engine *e, const struct hash *name, uint64_t space);
void tiers_time_step(struct engine *e, const struct engine_step *step); /* a step that ended */

#endif
