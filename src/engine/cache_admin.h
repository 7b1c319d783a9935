/* The keeper: what of the cache is to stay and what is to go, by the word of requests and of
 * operators; and who asks the cache for how much.
 *
 * A request's hint goes to the device's pages where they are named or used (sched.c); the keeper
 * tells the lower tiers. What an operator asks for that concerns all pages is done in parts, some
 * thousand pages a pass, so that nobody's step waits for it: one ask after the other, tier by tier.
 * A drop is answered when the disk has lost the records as well. */
#ifndef QUIRE_ENGINE_CACHE_ADMIN_H
#define QUIRE_ENGINE_CACHE_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire_lane.h"
#include "ipc/wire_request.h"
#include "ipc/wire_stats.h"
#include "kv/retain.h"

#define CACHE_ADMIN_SPACES WIRE_SPACES
#define CACHE_ADMIN_HINTS  40 /* kinds of hints that are told apart in a list */
#define CACHE_ADMIN_ASKS   32 /* that wait */
#define CACHE_ADMIN_INDEX  (4 * CACHE_ADMIN_SPACES)

struct cache_admin_space {
    uint64_t space;             /* 0 in the first: all that have no place of their own */
    uint64_t used;              /* counts uses in all; the highest was used last */
    uint64_t queries, hits;     /* tokens; with a store, of all engines that used it */
    uint32_t pages[WIRE_TIERS]; /* as the last list found them */
    uint32_t n_kept;
};

/* Pages of one namespace that are kept alike. */
struct cache_admin_hint {
    uint64_t space;
    struct retain retain;
    uint32_t pages[WIRE_TIERS];
};

struct cache_admin_ask {
    int lane_idx;
    uint32_t slot;
    enum wire_cache_action action;
    uint64_t space;    /* that is dropped */
    enum wire_tier at; /* the tier that is looked at */
    int32_t next;      /* page or slot in it */
    bool scanned;      /* all tiers were looked at */
    uint64_t dropped;
    uint64_t until_us; /* for the disk */
};

struct cache_admin {
    struct cache_admin_ask asks[CACHE_ADMIN_ASKS]; /* the first is under way */
    int n_asks;
    struct cache_admin_space spaces[CACHE_ADMIN_SPACES];
    int n_spaces;
    int16_t index[CACHE_ADMIN_INDEX]; /* by space: 1 + its place, or 0 */
    uint64_t n_used;
    uint64_t n_kept_used;                             /* n_used when the store was told of rates */
    uint64_t kept_us;                                 /* and when that was */
    uint64_t shared;                                  /* the namespace without a salt */
    struct cache_admin_hint hints[CACHE_ADMIN_HINTS]; /* the last takes what has no place */
    int n_hints;
    uint32_t ticked_s;
    int32_t *tokens; /* int32 [max_model_len], of a prompt that is dropped */
};

#endif
