/* A range of numbers, for tables that say what a client or a peer may ask for. */
#ifndef QUIRE_BASE_RANGE_H
#define QUIRE_BASE_RANGE_H

#include <stdbool.h>

struct range {
    double low;
    double high;
    bool low_open; /* low is not in it, nor what a float cannot tell from low */
};

/* clang-format off */
#define RANGE_FROM(l, h)  {.low = (l), .high = (h)}
#define RANGE_ABOVE(l, h) {.low = (l), .high = (h), .low_open = true}
/* clang-format on */

/* NaN is in no range. */
static inline bool range_has(const struct range *r, double d)
{
    return d >= r->low && d <= r->high && !(r->low_open && (float)d <= (float)r->low);
}

#endif
