/* SPDX-License-Identifier: Apache-2.0
 *
 * Spans: sorted, disjoint byte ranges of a text. They record which bytes of a prompt a chat
 * template wrote itself; all other bytes came from a request and must not become control tokens. */
#ifndef QUIRE_TEXT_SPANS_H
#define QUIRE_TEXT_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

struct span {
    uint32_t start; /* bytes */
    uint32_t stop;  /* the byte after the last one */
};

/* A list that grows in an arena. Start from {0}. */
struct spans {
    struct span *items;
    size_t n;
    size_t cap;
};

/* Append [start, stop); start must not be below the end of the last span. Spans that touch are
 * merged. False when the arena has no memory left. */
bool spans_add(struct spans *spans, struct arena *arena, size_t start, size_t stop);

/* Remove all bytes from len on. */
void spans_cut(struct spans *spans, size_t len);

/* Does one span contain every byte of [start, stop)? O(log n). */
bool spans_hold(const struct spans *spans, size_t start, size_t stop);

/* Index of the first span that ends after `at`; n when there is none. O(log n). */
size_t spans_find(const struct span *items, size_t n, size_t at);

#endif
