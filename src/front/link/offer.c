/* SPDX-License-Identifier: Apache-2.0 */
#include "front/link/offer.h"

#include <string.h>

#include "base/must.h"

int offers_add_vocabulary(struct offers *o, int control_fd, int sealed, uint64_t bytes)
{
    struct wire_offer offer = {.kind = WIRE_VOCABULARY, .bytes = bytes};
    int rc = o->vocabulary ? ERR_OK : attach_offer(control_fd, &offer, sealed);

    o->vocabulary = o->vocabulary || rc == ERR_OK;
    return rc;
}

/* Where st stands, or where it may be put: an empty place, or the idle one that was used least
 * recently. WIRE_AUTOMATA_MAX: all are in use. */
static uint32_t offers_find(const struct offers *o, const struct structure *st)
{
    uint32_t best = WIRE_AUTOMATA_MAX;

    for (uint32_t i = 0; i < WIRE_AUTOMATA_MAX; i++) {
        const struct offer_place *p = &o->places[i];

        if (p->structure != NULL && memcmp(&p->structure->name, &st->name, sizeof st->name) == 0)
            return i;
        if (p->n_users == 0 && (best == WIRE_AUTOMATA_MAX || p->used < o->places[best].used))
            best = i; /* an empty one was never used */
    }
    return best;
}

int offers_claim(struct offers *o, int control_fd, struct structure *st, uint32_t *idx)
{
    uint32_t i = offers_find(o, st);
    struct wire_offer offer = {.kind = WIRE_AUTOMATON, .idx = i, .bytes = st->bytes};
    struct offer_place *p;
    int rc;

    if (i == WIRE_AUTOMATA_MAX)
        return ERR_OVERLOADED;
    p = &o->places[i];
    if (p->structure == NULL || memcmp(&p->structure->name, &st->name, sizeof st->name) != 0) {
        rc = attach_offer(control_fd, &offer, st->sealed);
        if (rc != ERR_OK)
            return rc;
        structure_unref(p->structure);
        p->structure = structure_ref(st);
    }
    p->n_users++;
    p->used = ++o->uses;
    *idx = i;
    return ERR_OK;
}

void offers_release(struct offers *o, uint32_t idx)
{
    must(o->places[idx].n_users > 0);
    o->places[idx].n_users--;
}

void offers_lose(struct offers *o, uint32_t idx)
{
    must(o->places[idx].n_users > 0);
    structure_unref(o->places[idx].structure);
    o->places[idx].structure = NULL;
    o->vocabulary = false;
}

void offers_clear(struct offers *o)
{
    for (uint32_t i = 0; i < WIRE_AUTOMATA_MAX; i++)
        structure_unref(o->places[i].structure);
    *o = (struct offers){0};
}
