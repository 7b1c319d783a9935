/* Which page goes next: the order in which a tier gives its pages up.
 *
 * The lowest priority first, and among equals the one that was used least recently. What was said
 * of a page (retain.h) counts until its time is over. Pages above the default priority are at most
 * kept_max; what does not fit counts as the default, unless it has more right to a place than the
 * least of those, which is the default from then on: a higher priority, or the same and it stands
 * nearer to the start of its prefix. So hints never take more than their share, prompts share it
 * by their starts, and an operator's pin finds a place among clients'. Pins give way to none.
 *
 * Pages are numbers, 0 .. n - 1. A page stands in the order only while it may go. Pure memory, no
 * clock; O(log n) a call, and a call of eviction_tick() for each hint that ends; O(1) for a page
 * without a hint that was just used. One thread at a time. */
#ifndef QUIRE_KV_EVICTION_H
#define QUIRE_KV_EVICTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kv/retain.h"

struct eviction;

int eviction_open(struct eviction **out, int n, int kept_max) ERR_CHECKED;
void eviction_close(struct eviction *o); /* NULL is fine */

/* How many pages may be above the default. Those that are stay. */
void eviction_bound(struct eviction *o, int kept_max);

/* It is now_s, unix seconds: what was said until then is over. A clock that goes back does no
 * harm: what is over stays so. */
void eviction_tick(struct eviction *o, uint32_t now_s);

/* The page is another's from now on: what was said of the one before is forgotten. parent: the page
 * that it continues, or -1 when that is not here. */
void eviction_begin(struct eviction *o, int32_t id, int32_t parent, struct retain r);

/* It is nobody's. */
void eviction_end(struct eviction *o, int32_t id);

/* Something is said of it, beside what was said before (retain_join()). */
void eviction_retain(struct eviction *o, int32_t id, struct retain r);

/* What counts of it now. */
struct retain eviction_retained(const struct eviction *o, int32_t id);

/* It is used now. */
void eviction_use(struct eviction *o, int32_t id);

/* It may go; it may not. Either as often as one likes. */
void eviction_add(struct eviction *o, int32_t id);
void eviction_remove(struct eviction *o, int32_t id);

/* The page that goes next, or -1. It stays in the order. */
int32_t eviction_first(const struct eviction *o);

int eviction_count(const struct eviction *o); /* pages that may go */
int eviction_n_kept(
    const struct eviction *o); /* pages above the default, whether they may go or not */

/* Prove that heaps and marks agree. O(n). must() on failure. */
void eviction_check(const struct eviction *o);

#endif
