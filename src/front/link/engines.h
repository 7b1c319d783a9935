/* SPDX-License-Identifier: Apache-2.0
 *
 * The engines of a front: one link to each, and the choice of the one that gets a request.
 *
 * All of them serve the same model: an engine whose pages have another fingerprint than those of an
 * attached one is refused. A request may go to any; its text is the same everywhere.
 *
 * Thread: the streamer; the functions of the second part may be called from any thread. */
#ifndef QUIRE_FRONT_LINK_ENGINES_H
#define QUIRE_FRONT_LINK_ENGINES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "front/link/link.h"

#define ENGINES_MAX  16

#define ENGINES_PATH 108 /* bytes of a socket's path, as in struct sockaddr_un */

struct engines {
    struct link links[ENGINES_MAX];        /* the first n */
    int n;                                 /* 1 .. ENGINES_MAX; constant after engines_init() */
    int last;                              /* index of the engine that was chosen last */
    char paths[ENGINES_MAX][ENGINES_PATH]; /* the links' */
};

/* sockets: paths of control sockets, separated by commas; they are copied. size above 1: one path,
 * of which each engine has its own form (attach_path_of()). ERR_INVALID (logged): none, too many,
 * one of them twice or too long, or a list and a size. */
int engines_init(struct engines *e, const char *sockets, int size) ERR_CHECKED;

/* Try to attach to engine i, as link_try(). */
bool engines_try(struct engines *e, int i, uint64_t now_us);

/* The link whose control_fd or calling_fd is at p, or NULL: p points to something else. */
struct link *engines_at(struct engines *e, const void *p);

/* Does this engine take requests, awake or not? Not if it drains or is not attached. */
bool engines_takes(const struct link *l);

/* Does any? */
bool engines_serve(const struct engines *e);

/* Is one attached, and do all that are drain? */
bool engines_drain(const struct engines *e);

/* The engine for a request: the one where it costs least, among those that do not refuse it. NULL
 * when none is attached. *why is WIRE_NOT_REFUSED, or the reason of the best engine if all refuse.
 * held: as engines_look() wrote it, or NULL: nothing is known. Engines that drain are taken only
 * if all do. */
struct link *engines_choose(struct engines *e, const struct wire_request *r, const uint32_t *held,
                            uint64_t now_us, enum wire_refusal *why);

/* Seconds for a Retry-After: the least of all engines; 0: none is attached. */
int engines_retry_after(const struct engines *e);

/* --- any thread --- */

/* The state of all engines as one: attached if one is, draining, asleep or waking if all attached
 * ones are, the ages of the one that lives best, the sum of the loads, the least max_model_len. */
void engines_read_state(struct engines *e, struct link_state *out, uint64_t now_us);

/* The tokens of a prompt, int32 [n_tokens], of request r, that each engine has in its cache: held
 * [engines]. They are whole pages, and at most a few seconds old. 0.2 us per page that one of them
 * has. */
void engines_look(struct engines *e, const int32_t *tokens, uint32_t n_tokens,
                  const struct wire_request *r, uint32_t *held);

/* The adapter of a name, by the first engine that has it; false: none has. */
bool engines_find_adapter(struct engines *e, const char *name, size_t len,
                          struct wire_adapter_row *out);

/* Adapter i of the engines, which have the same ones; false: there are no more. */
bool engines_adapter(struct engines *e, uint32_t i, struct wire_adapter_row *out);

/* Has there been an engine? Before, nothing is known of adapters. */
bool engines_were_there(struct engines *e);

/* link_turns_away() of all engines: 0 if one of them would take a request of this tenant. */
int engines_turns_away(struct engines *e, const char tenant[WIRE_TENANT_BYTES]);

#endif
