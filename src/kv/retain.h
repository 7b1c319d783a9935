/* How long a page is to stay: what somebody said of the prefix that it belongs to.
 *
 * A priority and an end. Every page has RETAIN_DEFAULT of which nothing was said; lower ones go
 * earlier, higher ones later. Said for a time, it counts as the default when that is over. It
 * stands in the host tier's slots and the store's records as one word, so that a page keeps it
 * over the engine's end. */
#ifndef QUIRE_KV_RETAIN_H
#define QUIRE_KV_RETAIN_H

#include <stdbool.h>
#include <stdint.h>

#define RETAIN_DEFAULT 35  /* priority of a page of which nothing was said */
#define RETAIN_PINNED  100 /* what only an operator gives */

/* Zeros are the default. */
struct retain {
    int32_t rank;   /* priority less RETAIN_DEFAULT */
    uint32_t until; /* unix seconds when it ends; 0: never */
};

static inline struct retain retain_of(int priority, uint32_t until)
{
    return (struct retain){.rank = priority - RETAIN_DEFAULT, .until = until};
}

static inline int retain_priority(struct retain r)
{
    return r.rank + RETAIN_DEFAULT;
}

/* What is left of it at that time. */
static inline struct retain retain_now(struct retain r, uint32_t now_s)
{
    bool over = r.rank == 0 || (r.until != 0 && r.until <= now_s);

    return over ? (struct retain){0} : r;
}

/* What holds when both were said. A default does not end what is above it, and lifts what is
 * below; of two that are above it the higher priority and the later end: so the start of a prefix
 * never has less than what continues it. */
static inline struct retain retain_join(struct retain a, struct retain b, uint32_t now_s)
{
    struct retain high;

    a = retain_now(a, now_s);
    b = retain_now(b, now_s);
    high = a.rank >= b.rank ? a : b;
    if (a.rank > 0 && b.rank > 0)
        high.until = a.until == 0 || b.until == 0 ? 0 : a.until > b.until ? a.until : b.until;
    else if (a.rank < 0 && b.rank < 0)
        high.until = a.until == 0 || b.until == 0 ? a.until + b.until
                     : a.until < b.until          ? a.until
                                                  : b.until;
    return high;
}

/* Is what b says said by a already? */
static inline bool retain_covers(struct retain a, struct retain b)
{
    return a.rank >= b.rank && (a.until == 0 || (b.until != 0 && a.until >= b.until));
}

/* As one word of a file; 0 is the default, and so is what cannot be. */
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
