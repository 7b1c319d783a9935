/* Uploads: which structure stands in which of a lane's places for automata.
 *
 * The streamer's alone. Everything is forgotten with the lane; the next engine is uploaded all of
 * it again. */
#ifndef QUIRE_FRONT_LINK_UPLOAD_H
#define QUIRE_FRONT_LINK_UPLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "front/structured/compiled.h"
#include "ipc/attach.h"

struct upload_place {
    struct compiled *compiled; /* a reference; NULL: nothing was uploaded, or it was lost */
    uint32_t n_users;          /* requests under way that name it */
    uint64_t used;             /* of uploads.uses, when it was last named */
};

struct uploads {
    struct upload_place places[WIRE_AUTOMATA_MAX];
    uint64_t uses;
    bool vocabulary; /* the engine has it */
};

/* Upload the vocabulary, unless the engine has it. ERR_AGAIN, ERR_ENGINE_GONE. */
int uploads_add_vocabulary(struct uploads *o, int control_fd, int sealed,
                           uint64_t bytes) ERR_CHECKED;

/* A place with this structure, for one request: where it stands already, or a free place, or the
 * one of those that nobody uses which was used least recently. The vocabulary has been uploaded.
 * ERR_AGAIN when the engine has too much to read; ERR_OVERLOADED when all places are in use;
 * ERR_ENGINE_GONE. uploads_release() when the request is no longer under way. */
int uploads_claim(struct uploads *o, int control_fd, struct compiled *st,
                  uint32_t *idx) ERR_CHECKED;
void uploads_release(struct uploads *o, uint32_t idx);

/* The engine refused a request for what was uploaded: it is uploaded again, and to another place
 * while others name this one. Before that request's uploads_release(). */
void uploads_lose(struct uploads *o, uint32_t idx);

/* The lane is gone. */
void uploads_clear(struct uploads *o);

#endif
