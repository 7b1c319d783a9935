/* A hash table from names to the numbers of the entries that carry them.
 *
 * The entries are the owner's: structs in one array, each with a struct hash somewhere inside. The
 * table keeps numbers alone and reads the names there, so the entry of a name that is looked up
 * needs no second look. Open addressing at most half full, with backward-shift deletion. The first
 * bytes of a name are its hash: names are SHA-256, as good as random.
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
    const char *names; /* of entry 0 */
    size_t name_step;  /* bytes from an entry's name to the next one's */
    uint32_t mask;
    int32_t *ids; /* [mask + 1], number of an entry or -1 */
};

/* A table of up to n_max names. names: where that of entry 0 lies, borrowed until table_close();
 * the next ones follow every name_step bytes. ERR_NO_MEMORY. */
int table_open(struct table *t, const struct hash *names, size_t name_step,
               uint32_t n_max) ERR_CHECKED;

/* A table of zeros, or one that could not be opened, is fine. */
void table_close(struct table *t);

/* Forget all names. O(room). */
void table_clear(struct table *t);

/* The place where the search for a name begins, 0 to mask. */
static inline uint32_t table_home(const struct table *t, const struct hash *name)
{
    uint32_t h;

    memcpy(&h, name->bytes, sizeof h);
    return h & t->mask;
}

/* Where the number of a name stands, or the empty place (-1) where it would. Ends because the
 * table is at most half full. About 0.2 us with a million names. */
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

/* Entry id has this name from now on, which no other has and which stands in the entry before
 * anything else is looked up. */
void table_add(struct table *t, const struct hash *name, int32_t id);

/* Forget a name that is there; it still stands in its entry. */
void table_erase(struct table *t, const struct hash *name);

/* How many names there are. O(room): for proofs. */
uint32_t table_count(const struct table *t);

#endif
