/* SPDX-License-Identifier: Apache-2.0
 *
 * Administration of the cache: retention by requests, commands of operators (list, drop), and hit
 * rates per namespace.
 *
 * The retention of a request is set on the device's pages where they are named or used (sched.c);
 * this part passes it on to the lower tiers. A command that concerns all pages is carried out in
 * pieces, some thousand pages per pass, so that no step waits for it: one command after the other,
 * tier by tier. A drop is answered when the disk has deleted the records as well. */
#ifndef QUIRE_ENGINE_CACHE_ADMIN_H
#define QUIRE_ENGINE_CACHE_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire_lane.h"
#include "ipc/wire_request.h"
#include "ipc/wire_stats.h"
#include "kv/retain.h"

#define CACHE_ADMIN_SPACES WIRE_SPACES
#define CACHE_ADMIN_HINTS  40 /* kinds of retention that a list distinguishes */
#define CACHE_ADMIN_ASKS   32 /* commands that may wait */
#define CACHE_ADMIN_INDEX  (4 * CACHE_ADMIN_SPACES)

struct cache_admin_space {
    uint64_t space;             /* 0 in the first entry: all namespaces without an entry of their
                                 * own */
    uint64_t used;              /* value of n_used at its last use; the smallest is replaced */
    uint64_t queries, hits;     /* tokens; with a store, of all engines that used it */
    uint32_t pages[WIRE_TIERS]; /* as counted by the last list */
    uint32_t n_kept;
};

/* Retained pages of one namespace with equal retention. */
struct cache_admin_hint {
    uint64_t space;
    struct retain retain;
    uint32_t pages[WIRE_TIERS];
};

/* A command of an operator. */
struct cache_admin_ask {
    int lane_idx;
    uint32_t slot;
    enum wire_cache_action action;
    uint64_t space;    /* the namespace to drop */
    enum wire_tier at; /* the tier that is being scanned */
    int32_t next;      /* next page or slot of that tier */
    bool scanned;      /* all tiers were scanned */
    uint64_t dropped;
    uint64_t until_us; /* when it is answered even if the disk is not done */
};

struct cache_admin {
    struct cache_admin_ask asks[CACHE_ADMIN_ASKS]; /* the first is in progress */
    int n_asks;
    struct cache_admin_space spaces[CACHE_ADMIN_SPACES];
    int n_spaces;
    int16_t index[CACHE_ADMIN_INDEX]; /* hash table by namespace: 1 + index in spaces, or 0 */
    uint64_t n_used;
    uint64_t n_kept_used;                             /* n_used when the rates were last written to
                                                       * the store */
    uint64_t kept_us;                                 /* and the time */
    uint64_t shared;                                  /* the namespace without a salt */
    struct cache_admin_hint hints[CACHE_ADMIN_HINTS]; /* the last one counts all that find no
                                                       * entry */
    int n_hints;
    uint32_t ticked_s;
    int32_t *tokens; /* int32 [max_model_len], the tokens of a prompt to drop */
};

#endif
