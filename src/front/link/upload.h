/* SPDX-License-Identifier: Apache-2.0
 *
 * Uploads: the automata in the places of a lane.
 *
 * Thread: the streamer. The state ends with the lane; everything is uploaded again to the next
 * engine. */
#ifndef QUIRE_FRONT_LINK_UPLOAD_H
#define QUIRE_FRONT_LINK_UPLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "front/structured/compiled.h"
#include "ipc/attach.h"

struct upload_place {
    struct compiled *compiled; /* a reference; NULL: empty, or the engine lost it */
    uint32_t n_users;          /* running or queued requests that name it */
    uint64_t used;             /* the value of uploads.uses at its last use */
};

struct uploads {
    struct upload_place places[WIRE_AUTOMATA_MAX];
    uint64_t uses;
    bool vocabulary; /* the engine has it */
};

/* Upload the vocabulary, unless the engine has it. ERR_AGAIN, ERR_ENGINE_GONE. */
int uploads_add_vocabulary(struct uploads *o, int control_fd, int sealed,
                           uint64_t bytes) ERR_CHECKED;

/* Get a place with this automaton for one request: the one that has it, or a free one, or the
 * unused one that was used least recently, and upload it if needed. The vocabulary has been
 * uploaded. ERR_AGAIN when the engine has not read earlier uploads; ERR_OVERLOADED when all places
 * are in use; ERR_ENGINE_GONE. Call uploads_release() when the request has ended. */
int uploads_claim(struct uploads *o, int control_fd, struct compiled *st,
                  uint32_t *idx) ERR_CHECKED;
void uploads_release(struct uploads *o, uint32_t idx);

/* The engine refused a request because it had lost an upload: upload it again at the next use. Call
 * it before that request's uploads_release(). */
void uploads_lose(struct uploads *o, uint32_t idx);

/* The lane has ended. */
void uploads_clear(struct uploads *o);

#endif
