/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators' commands: GET /admin/cache, POST /admin/cache/pin, /admin/cache/drop,
 * /reset_prefix_cache, /sleep and /wake_up (the last three are vLLM's names).
 *
 * They need the key of admin_key_file, which nginx passes as QUIRE_ADMIN_KEY on these paths only;
 * without that setting they answer 404. A command crosses the lane like a generation and is
 * answered by facts (wire_lane.h). A pin is a generation of one token whose prompt is retained.
 *
 * Of several engines each gets the command. Sleep, wake and list go to those that are attached; the
 * others must not miss a pin or a drop, so it waits for them as a request waits for an engine. */
#ifndef QUIRE_FRONT_API_CACHE_H
#define QUIRE_FRONT_API_CACHE_H

#include "front/front.h"

#define CACHE_KEY_MAX 200 /* maximum bytes of the admin key */

/* Read the key from admin_key_file; an empty setting means no key. ERR_INVALID, ERR_IO (logged). */
int cache_open(struct front *f) ERR_CHECKED;

/* Does the request have the admin key? False after an error answer. */
bool cache_allows(const struct front *f, struct exchange *x);

/* Make x a command to the engines of its model: sleep, wake or end. attached: only to those that
 * are there now; otherwise it waits for one, which starts it. */
void cache_ask_power(struct exchange *x, enum wire_power_action action, bool attached);

/* Make x the command *r, to the engines of its model; attached: as above. */
void cache_ask_alone(struct exchange *x, const struct wire_request *r, bool attached);

/* Make the answer of a command about an adapter (api_lora.c). */
void lora_answer(struct exchange *x);

/* Called by the streamer: a fact has arrived; all of g have arrived. The last engine's end makes
 * the answer. */
void cache_fact(struct gen *g, const struct wire_out *o);
void cache_end(struct gen *g);

#endif
