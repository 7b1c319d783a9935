/* SPDX-License-Identifier: Apache-2.0
 *
 * A sorted list; spans that touch are one, so that a place lies in one span or in none. */
#include "text/spans.h"

#include <string.h>

bool spans_add(struct spans *s, struct arena *arena, size_t start, size_t stop)
{
    if (start >= stop)
        return true;
    if (s->n > 0 && s->items[s->n - 1].stop == start) {
        s->items[s->n - 1].stop = (uint32_t)stop;
        return true;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap == 0 ? 4 : s->cap * 2;
        struct span *grown = arena_alloc(arena, cap * sizeof *grown);

        if (grown == NULL)
            return false;
        if (s->n > 0)
            memcpy(grown, s->items, s->n * sizeof *grown);
        s->items = grown;
        s->cap = cap;
    }
    s->items[s->n++] = (struct span){.start = (uint32_t)start, .stop = (uint32_t)stop};
    return true;
}

void spans_cut(struct spans *s, size_t len)
{
    while (s->n > 0 && s->items[s->n - 1].start >= len)
        s->n--;
    if (s->n > 0 && s->items[s->n - 1].stop > len)
        s->items[s->n - 1].stop = (uint32_t)len;
}

size_t spans_find(const struct span *items, size_t n, size_t at)
{
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

bool spans_hold(const struct spans *s, size_t start, size_t stop)
{
    size_t i = spans_find(s->items, s->n, start);

    return i < s->n && s->items[i].start <= start && s->items[i].stop >= stop;
}
