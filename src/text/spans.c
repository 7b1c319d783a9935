/* SPDX-License-Identifier: Apache-2.0
 *
 * A sorted array. Because spans that touch are merged, a byte lies in one span or in none, and a
 * range is covered exactly when the span of its first byte reaches to its end. An array that is too
 * small is copied into a larger one; the arena keeps the outgrown copy until it is reset. */
#include "text/spans.h"

#include <string.h>

#include "base/must.h"

bool spans_add(struct spans *spans, struct arena *arena, size_t start, size_t stop)
{
    if (start >= stop)
        return true;
    must(spans->n == 0 || start >= spans->items[spans->n - 1].stop);
    must(stop <= UINT32_MAX);
    /* A span that begins at the end of the last one extends it, so that spans_hold() finds one span
     * for text that was written piece by piece. */
    if (spans->n > 0 && spans->items[spans->n - 1].stop == start) {
        spans->items[spans->n - 1].stop = (uint32_t)stop;
        return true;
    }
    if (spans->n == spans->cap) {
        size_t cap = spans->cap == 0 ? 4 : spans->cap * 2;
        struct span *grown = arena_alloc(arena, cap * sizeof *grown);

        if (grown == NULL)
            return false;
        if (spans->n > 0)
            memcpy(grown, spans->items, spans->n * sizeof *grown);
        spans->items = grown;
        spans->cap = cap;
    }
    spans->items[spans->n++] = (struct span){.start = (uint32_t)start, .stop = (uint32_t)stop};
    return true;
}

void spans_cut(struct spans *spans, size_t len)
{
    while (spans->n > 0 && spans->items[spans->n - 1].start >= len)
        spans->n--;
    if (spans->n > 0 && spans->items[spans->n - 1].stop > len)
        spans->items[spans->n - 1].stop = (uint32_t)len;
}

size_t spans_find(const struct span *items, size_t n, size_t at)
{
    /* Binary search; the answer is always in [low, n]. */
    size_t low = 0;

    while (low < n) {
        size_t mid = low + (n - low) / 2;

        if (items[mid].stop <= at)
            low = mid + 1;
        else
            n = mid;
    }
    return low;
}

bool spans_hold(const struct spans *spans, size_t start, size_t stop)
{
    size_t i = spans_find(spans->items, spans->n, start);

    must(start <= stop);
    return i < spans->n && spans->items[i].start <= start && spans->items[i].stop >= stop;
}
