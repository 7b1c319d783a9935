/* SPDX-License-Identifier: Apache-2.0
 *
 * The prefixes that an engine has in its cache, in any tier: a set of names (prefix.h) in shared
 * memory, behind the statistics. The engine writes it, and only if a front asks for it; fronts of
 * several engines read it to choose one.
 *
 * A name is 32 bits of it, in one of the places of the bucket that 32 other bits select. So a name
 * that is not there is found with a chance of one in 2^28, and a full bucket forgets names. Both
 * cost time, never a wrong answer, and so does what is a few seconds old. */
#ifndef QUIRE_IPC_WIRE_HELD_H
#define QUIRE_IPC_WIRE_HELD_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ipc/wire.h"
#include "ipc/wire_adapters.h"
#include "ipc/wire_stats.h"

#define WIRE_HELD_BUCKETS 65536 /* a power of two; 4 MiB, of which only what is used has memory */
#define WIRE_HELD_PLACES  16    /* a cache line */

struct wire_held {                                                                 /* [W: engine] */
    alignas(WIRE_LINE) _Atomic uint32_t tags[WIRE_HELD_BUCKETS][WIRE_HELD_PLACES]; /* 0: free */
};

/* What the descriptor ATTACH_STATS maps. */
struct wire_page {
    struct wire_stats stats;
    struct wire_held held;
    struct wire_adapters adapters;
};

/* name: the bytes of a struct hash. */
static inline uint32_t wire_held_bucket(const uint8_t *name)
{
    uint32_t bits;

    memcpy(&bits, name, sizeof bits);
    return bits & (WIRE_HELD_BUCKETS - 1);
}

static inline uint32_t wire_held_tag(const uint8_t *name)
{
    uint32_t tag;

    memcpy(&tag, name + sizeof tag, sizeof tag);
    return tag == 0 ? 1 : tag;
}

static inline bool wire_held_has(const struct wire_held *h, const uint8_t *name)
{
    const _Atomic uint32_t *bucket = h->tags[wire_held_bucket(name)];
    uint32_t tag = wire_held_tag(name);
    bool found = false;

    for (int i = 0; i < WIRE_HELD_PLACES; i++)
        found |= atomic_load_explicit(&bucket[i], memory_order_relaxed) == tag;
    return found;
}

#endif
