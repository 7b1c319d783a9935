/* SPDX-License-Identifier: Apache-2.0
 *
 * Retention: a priority of a page over others, and its end.
 *
 * Pages have RETAIN_DEFAULT unless a request or an operator sets another priority; pages of lower
 * priority are evicted earlier, those of higher priority later. A priority with an end time falls
 * back to the default once that time has passed. Host slots and store records hold it as one word,
 * so a page keeps it over a restart. */
#ifndef QUIRE_KV_RETAIN_H
#define QUIRE_KV_RETAIN_H

#include <stdbool.h>
#include <stdint.h>

#define RETAIN_DEFAULT 35  /* priority of a page without retention */
#define RETAIN_PINNED  100 /* only an operator can set it */

/* Zero bytes are the default: no retention. */
struct retain {
    int32_t rank;   /* priority minus RETAIN_DEFAULT */
    uint32_t until; /* its end in unix seconds; 0: never */
};

static inline struct retain retain_of(int priority, uint32_t until)
{
    return (struct retain){.rank = priority - RETAIN_DEFAULT, .until = until};
}

static inline int retain_priority(struct retain r)
{
    return r.rank + RETAIN_DEFAULT;
}

/* The part that is in effect at now_s. */
static inline struct retain retain_now(struct retain r, uint32_t now_s)
{
    bool over = r.rank == 0 || (r.until != 0 && r.until <= now_s);

    return over ? (struct retain){0} : r;
}

/* The retention of a page that got both. A default does not end a higher one, and it lifts a lower
 * one; of two higher ones, the higher priority and the later end. So the start of a prefix never
 * has less than its continuation. */
static inline struct retain retain_join(struct retain a, struct retain b, uint32_t now_s)
{
    struct retain high;

    a = retain_now(a, now_s);
    b = retain_now(b, now_s);
    high = a.rank >= b.rank ? a : b;
    if (a.rank > 0 && b.rank > 0)
        high.until = a.until == 0 || b.until == 0 ? 0 : a.until > b.until ? a.until : b.until;
    else if (a.rank < 0 && b.rank < 0)
        /* 0 is "never", so the sum is the one that does end, if any does. */
        high.until = a.until == 0 || b.until == 0 ? a.until + b.until
                     : a.until < b.until          ? a.until
                                                  : b.until;
    return high;
}

/* Does a include b: at least its priority, for at least its time? */
static inline bool retain_covers(struct retain a, struct retain b)
{
    return a.rank >= b.rank && (a.until == 0 || (b.until != 0 && a.until >= b.until));
}

/* Encode as one word of a file: until << 8 | 1 + priority. 0 is the default, and so is any word
 * that cannot be valid. */
static inline uint64_t retain_pack(struct retain r)
{
    return r.rank == 0 ? 0 : (uint64_t)r.until << 8 | (uint64_t)(1 + retain_priority(r));
}

static inline struct retain retain_unpack(uint64_t word)
{
    int priority = (int)(word & 0xff) - 1;

    if (priority < 0 || priority > RETAIN_PINNED || word >> 40 != 0)
        return (struct retain){0};
    return retain_of(priority, (uint32_t)(word >> 8));
}

#endif
