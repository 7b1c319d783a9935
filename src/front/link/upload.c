/* SPDX-License-Identifier: Apache-2.0
 *
 * Which automaton is in which place of the lane. Places are a cache: an automaton stays after its
 * requests have ended, and is replaced when another one needs a place. */
#include "front/link/upload.h"

#include <string.h>

#include "base/must.h"

/* Send the vocabulary, once per connection. */
int uploads_add_vocabulary(struct uploads *o, int control_fd, int sealed, uint64_t bytes)
{
    struct wire_upload upload = {.kind = WIRE_VOCABULARY, .bytes = bytes};
    int rc = o->vocabulary ? ERR_OK : attach_upload(control_fd, &upload, sealed);

    o->vocabulary = o->vocabulary || rc == ERR_OK;
    return rc;
}

/* The place that has st, or one where it may be put: an empty one, or the unused one that was used
 * least recently. WIRE_AUTOMATA_MAX: all are in use. */
static uint32_t uploads_find(const struct uploads *o, const struct compiled *st)
{
    uint32_t best = WIRE_AUTOMATA_MAX;

    for (uint32_t i = 0; i < WIRE_AUTOMATA_MAX; i++) {
        const struct upload_place *place = &o->places[i];

        if (place->compiled != NULL &&
            memcmp(&place->compiled->name, &st->name, sizeof st->name) == 0)
            return i;
        if (place->n_users == 0 &&
            (best == WIRE_AUTOMATA_MAX || place->used < o->places[best].used))
            best = i; /* an empty one has used == 0 */
    }
    return best;
}

/* Use an automaton for a request. It is sent unless the engine has it from an earlier one; names
 * are compared, so equal constraints of different clients share a place. */
int uploads_claim(struct uploads *o, int control_fd, struct compiled *st, uint32_t *idx)
{
    uint32_t i = uploads_find(o, st);
    struct wire_upload upload = {.kind = WIRE_AUTOMATON, .idx = i, .bytes = st->bytes};
    struct upload_place *place;
    int rc;

    must(st != NULL);
    if (i == WIRE_AUTOMATA_MAX)
        return ERR_OVERLOADED;
    place = &o->places[i];
    if (place->compiled == NULL ||
        memcmp(&place->compiled->name, &st->name, sizeof st->name) != 0) {
        rc = attach_upload(control_fd, &upload, st->sealed);
        if (rc != ERR_OK)
            return rc;
        compiled_unref(place->compiled);
        place->compiled = compiled_ref(st);
    }
    place->n_users++;
    place->used = ++o->uses;
    *idx = i;
    return ERR_OK;
}

/* A request with this automaton has ended. */
void uploads_release(struct uploads *o, uint32_t idx)
{
    must(idx < WIRE_AUTOMATA_MAX);
    must(o->places[idx].n_users > 0);
    o->places[idx].n_users--;
}

/* The engine had no memory for the upload: forget it, so that the next request uploads it again. */
void uploads_lose(struct uploads *o, uint32_t idx)
{
    must(idx < WIRE_AUTOMATA_MAX);
    must(o->places[idx].n_users > 0);
    compiled_unref(o->places[idx].compiled);
    o->places[idx].compiled = NULL;
    o->vocabulary = false;
}

/* The connection is gone, and with it everything that was sent. */
void uploads_clear(struct uploads *o)
{
    for (uint32_t i = 0; i < WIRE_AUTOMATA_MAX; i++)
        compiled_unref(o->places[i].compiled);
    *o = (struct uploads){0};
}
