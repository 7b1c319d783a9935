/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of table.h: creation, and erasing by backward shift. */
#include "kv/table.h"

#include "base/mem.h"
#include "base/must.h"

#define TABLE_ROOM_MIN 16

/* At least twice the capacity, rounded up to a power of two: probes stay short, and the remainder
 * is a mask. */
int table_open(struct table *t, const struct hash *names, size_t name_step, uint32_t n_max)
{
    uint32_t room = TABLE_ROOM_MIN;

    must(n_max <= INT32_MAX / 2);
    must(name_step >= sizeof *names);
    /* At most half full. */
    while (room < 2 * n_max)
        room *= 2;
    *t = (struct table){.names = (const char *)names, .name_step = name_step, .mask = room - 1};
    t->ids = mem_zalloc_array(room, sizeof *t->ids);
    if (t->ids == NULL)
        return ERR_NO_MEMORY;
    table_clear(t);
    return ERR_OK;
}

void table_close(struct table *t)
{
    mem_free(t->ids);
    t->ids = NULL;
}

void table_clear(struct table *t)
{
    memset(t->ids, 0xff, ((size_t)t->mask + 1) * sizeof *t->ids); /* -1 */
}

void table_add(struct table *t, const struct hash *name, int32_t id)
{
    int32_t *place = table_place(t, name);

    must(*place == -1);
    *place = id;
}

/* Erase without leaving a mark: entries after the gap move up, as far as that brings them no
 * further from home than allowed. An entry may move into the gap unless its home is after the gap.
 * Example, homes in brackets: A[2] B[2] C[3] in places 2 3 4; erasing A moves B to 2 and C to 3. */
void table_erase(struct table *t, const struct hash *name)
{
    uint32_t gap = (uint32_t)(table_place(t, name) - t->ids);
    uint32_t i = gap;

    must(t->ids[gap] != -1);
    /* The entry is gone; now close the gap. */
    t->ids[gap] = -1;
    for (;;) { /* ends at the first empty place */
        struct hash other;
        uint32_t home;

        i = (i + 1) & t->mask;
        if (t->ids[i] == -1)
            return;
        /* The names are in the owner's entries. */
        memcpy(&other, t->names + (size_t)t->ids[i] * t->name_step, sizeof other);
        home = table_home(t, &other);
        if (((i - home) & t->mask) < ((i - gap) & t->mask))
            continue;
        t->ids[gap] = t->ids[i];
        t->ids[i] = -1;
        gap = i;
    }
}

/* Only for checks; the table itself needs no count. */
uint32_t table_count(const struct table *t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i <= t->mask; i++)
        n += t->ids[i] != -1;
    return n;
}
