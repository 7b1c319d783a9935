/* Offers: which structure stands in which of a lane's places for automata.
 *
 * The streamer's alone. Everything is forgotten with the lane; the next engine is offered all of
 * it again. */
#ifndef QUIRE_FRONT_LINK_OFFER_H
#define QUIRE_FRONT_LINK_OFFER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "front/structured/structure.h"
#include "ipc/attach.h"

struct offer_place {
    struct structure *structure; /* a reference; NULL: nothing was offered, or it was lost */
    uint32_t n_users;            /* requests under way that name it */
    uint64_t used;               /* of offers.uses, when it was last named */
};

struct offers {
    struct offer_place places[WIRE_AUTOMATA_MAX];
    uint64_t uses;
    bool vocabulary; /* the engine has it */
};

/* Offer the vocabulary, unless the engine has it. ERR_AGAIN, ERR_ENGINE_GONE. */
int offers_add_vocabulary(struct offers *o, int control_fd, int sealed, uint64_t bytes) ERR_CHECKED;

/* A place with this structure, for one request: where it stands already, or a free place, or the
 * one of those that nobody uses which was used least recently. The vocabulary has been offered.
 * ERR_AGAIN when the engine has too much to read; ERR_OVERLOADED when all places are in use;
 * ERR_ENGINE_GONE. offers_release() when the request is no longer under way. */
int offers_claim(struct offers *o, int control_fd, struct structure *st, uint32_t *idx) ERR_CHECKED;
void offers_release(struct offers *o, uint32_t idx);

/* The engine refused a request for what was offered: it is offered again, and to another place
 * while others name this one. Before that request's offers_release(). */
void offers_lose(struct offers *o, uint32_t idx);

/* The lane is gone. */
void offers_clear(struct offers *o);

#endif
