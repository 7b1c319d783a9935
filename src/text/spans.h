/* Spans: places of a text, ascending, apart from each other. They say which bytes of a prompt a
 * chat template wrote itself, and which came out of a request. */
#ifndef QUIRE_TEXT_SPANS_H
#define QUIRE_TEXT_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

struct span {
    uint32_t start; /* bytes */
    uint32_t stop;  /* behind the last one */
};

/* Grows in an arena. Start from {0}. */
struct spans {
    struct span *items;
    size_t n;
    size_t cap;
};

/* Append [start, stop), which begins where the last one ends or later; the two are one when they
 * touch. False when the arena gave out. */
bool spans_add(struct spans *spans, struct arena *arena, size_t start, size_t stop);

/* Leave out what is behind len. */
void spans_cut(struct spans *spans, size_t len);

/* Is every byte of [start, stop) in one span? Time is the logarithm of their number. */
bool spans_hold(const struct spans *spans, size_t start, size_t stop);

/* Index of the first span that ends behind `at`; n when there is none. */
size_t spans_find(const struct span *items, size_t n, size_t at);

#endif
