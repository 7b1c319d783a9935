/* SPDX-License-Identifier: Apache-2.0
 *
 * A range of numbers, for tables of the values that a client or a peer may send. */
#ifndef QUIRE_BASE_RANGE_H
#define QUIRE_BASE_RANGE_H

#include <stdbool.h>

struct range {
    double low;
    double high;
    bool low_open; /* low itself is excluded, and every value that rounds to it as a float */
};

/* clang-format off */
#define RANGE_FROM(l, h)  {.low = (l), .high = (h)}
#define RANGE_ABOVE(l, h) {.low = (l), .high = (h), .low_open = true}
/* clang-format on */

/* Is d in the range? NaN is in none. */
static inline bool range_has(const struct range *r, double d)
{
    return d >= r->low && d <= r->high && !(r->low_open && (float)d <= (float)r->low);
}

#endif
