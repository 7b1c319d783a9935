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
 * clock; O(log n) a call, and a call of order_tick() for each hint that ends; O(1) for a page
 * without a hint that was just used. One thread at a time. */
#ifndef QUIRE_KV_ORDER_H
#define QUIRE_KV_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kv/retain.h"

struct order;

int order_open(struct order **out, int n, int kept_max) ERR_CHECKED;
void order_close(struct order *o); /* NULL is fine */

/* How many pages may be above the default. Those that are stay. */
void order_bound(struct order *o, int kept_max);

/* It is now_s, unix seconds: what was said until then is over. A clock that goes back does no
 * harm: what is over stays so. */
void order_tick(struct order *o, uint32_t now_s);

/* The page is another's from now on: what was said of the one before is forgotten. parent: the page
 * that it continues, or -1 when that is not here. */
void order_begin(struct order *o, int32_t id, int32_t parent, struct retain r);

/* It is nobody's. */
void order_end(struct order *o, int32_t id);

/* Something is said of it, beside what was said before (retain_join()). */
void order_retain(struct order *o, int32_t id, struct retain r);

/* What counts of it now. */
struct retain order_retained(const struct order *o, int32_t id);

/* It is used now. */
void order_use(struct order *o, int32_t id);

/* It may go; it may not. Either as often as one likes. */
void order_add(struct order *o, int32_t id);
void order_remove(struct order *o, int32_t id);

/* The page that goes next, or -1. It stays in the order. */
int32_t order_first(const struct order *o);

int order_count(const struct order *o);  /* pages that may go */
int order_n_kept(const struct order *o); /* pages above the default, whether they may go or not */

/* Prove that heaps and marks agree. O(n). must() on failure. */
void order_check(const struct order *o);

#endif
