/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction order: which page a tier gives up next.
 *
 * The lowest priority first, and among equals the least recently used one. A retention (retain.h)
 * has effect until its end. At most kept_max pages have a priority above the default. A further one
 * gets the default, unless it outranks the least of those, which then gets the default instead: by
 * a higher priority, or by an equal one nearer to the start of its prefix. So retained pages never
 * take more than their share, prompts share it by their starts, and an operator's pins displace
 * clients' pages. Pins are not displaced.
 *
 * Pages are numbers, 0 .. n - 1. Only pages that may be evicted are in the order. Pure memory, no
 * clock. O(log n) per call, in eviction_tick() per retention that ends; O(1) for a page of default
 * priority that was just used. One thread at a time. */
#ifndef QUIRE_KV_EVICTION_H
#define QUIRE_KV_EVICTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kv/retain.h"

struct eviction;

int eviction_open(struct eviction **out, int n, int kept_max) ERR_CHECKED;
void eviction_close(struct eviction *o); /* NULL is fine */

/* Set how many pages may be above the default. Pages that are stay so. */
void eviction_bound(struct eviction *o, int kept_max);

/* Set the time, unix seconds: retention until then ends. A clock that is set back does no harm,
 * because nothing that has ended begins again. */
void eviction_tick(struct eviction *o, uint32_t now_s);

/* The number is that of another page from now on, with retention r. parent: the page before it in
 * its prefix, or -1 when that is not here. */
void eviction_begin(struct eviction *o, int32_t id, int32_t parent, struct retain r);

/* The page holds nothing: forget its retention and its place in the order. */
void eviction_end(struct eviction *o, int32_t id);

/* Add to the page's retention (retain_join()). */
void eviction_retain(struct eviction *o, int32_t id, struct retain r);

/* The retention that is in effect. */
struct retain eviction_retained(const struct eviction *o, int32_t id);

/* The page is used now. */
void eviction_use(struct eviction *o, int32_t id);

/* The page may be evicted; it may not. Both are idempotent. */
void eviction_add(struct eviction *o, int32_t id);
void eviction_remove(struct eviction *o, int32_t id);

/* The page that is evicted next, or -1. It stays in the order. */
int32_t eviction_first(const struct eviction *o);

int eviction_count(const struct eviction *o);  /* pages that may be evicted */
int eviction_n_kept(const struct eviction *o); /* pages above the default */

/* Check that heaps, list and pages agree. O(n). must() on failure. */
void eviction_check(const struct eviction *o);

#endif
