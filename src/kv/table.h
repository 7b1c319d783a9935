/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash table from names to the numbers of the entries that have them.
 *
 * The entries belong to the caller: structs in one array, each with a struct hash inside. The table
 * stores numbers only and compares names in the entries, so the entry of a found name is in the
 * cache already. Open addressing, at most half full, deletion by backward shift. The first bytes of
 * a name serve as its hash, because names are SHA-256 digests.
 *
 * One thread at a time. */
#ifndef QUIRE_KV_TABLE_H
#define QUIRE_KV_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"

struct table {
    const char *names; /* name of entry 0 */
    size_t name_step;  /* bytes from one entry's name to the next one's */
    uint32_t mask;
    int32_t *ids; /* [mask + 1], number of an entry or -1 */
};

/* A table for up to n_max names. names: that of entry 0, borrowed until table_close(); the others
 * follow at every name_step bytes. ERR_NO_MEMORY. */
int table_open(struct table *t, const struct hash *names, size_t name_step,
               uint32_t n_max) ERR_CHECKED;

/* A zeroed table, or one that could not be opened, may be closed. */
void table_close(struct table *t);

/* Forget all names. O(capacity). */
void table_clear(struct table *t);

/* Where the search for a name begins, 0 to mask. */
static inline uint32_t table_home(const struct table *t, const struct hash *name)
{
    uint32_t h;

    memcpy(&h, name->bytes, sizeof h);
    return h & t->mask;
}

/* The place with a name's number, or the empty place (-1) where it would be. Ends because the table
 * is at most half full. About 0.2 us with a million names. */
static inline int32_t *table_place(const struct table *t, const struct hash *name)
{
    uint32_t i = table_home(t, name);

    while (t->ids[i] != -1 &&
           memcmp(t->names + (size_t)t->ids[i] * t->name_step, name->bytes, HASH_BYTES) != 0)
        i = (i + 1) & t->mask;
    return &t->ids[i];
}

/* The number of the entry with this name, or -1. */
static inline int32_t table_find(const struct table *t, const struct hash *name)
{
    return *table_place(t, name);
}

/* Add entry id with this name, which no other entry has; the entry itself must have it already. */
void table_add(struct table *t, const struct hash *name, int32_t id);

/* Forget a name that is in the table; its entry must still have it. */
void table_erase(struct table *t, const struct hash *name);

/* The number of names. O(capacity): for checks. */
uint32_t table_count(const struct table *t);

#endif
