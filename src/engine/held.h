/* SPDX-License-Identifier: Apache-2.0
 *
 * What the cache holds, published for fronts that choose among several engines (wire_held.h).
 *
 * A page is added when it gets its name. All tiers are looked through again and again, some pages
 * in each pass of the loop: a round adds what was there before, and removes what no tier has any
 * more. Nothing is done until the first such front attaches. The engine's thread alone. */
#ifndef QUIRE_ENGINE_HELD_H
#define QUIRE_ENGINE_HELD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "ipc/wire_held.h"

struct engine;

struct held {
    struct wire_held *page; /* shared memory */
    uint8_t *rounds;        /* [buckets * places], the round that saw the name last */
    uint8_t round;
    bool on;
    uint32_t next; /* [0, device + host + disk slots + buckets): what the round looks at next */
};

/* page stays the caller's. ERR_NO_MEMORY. */
int held_open(struct held *h, struct wire_held *page) ERR_CHECKED;

void held_start(struct held *h); /* a front wants to know */

/* Add a name. No effect before held_start(). */
void held_add(struct held *h, const struct hash *name);

/* A page of the device has got its name. */
void held_note(struct engine *e, int32_t page);

/* Once per pass: some 10 us while the engine computes, a millisecond when it has nothing to do. */
void held_pass(struct engine *e);

/* Remove from a bucket what the current round has not seen; for tests. */
void held_sweep(struct held *h, uint32_t bucket);

#endif
