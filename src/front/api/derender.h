/* SPDX-License-Identifier: Apache-2.0
 *
 * The common part of the two forms of /derender: whole responses (api_derender.c), and the events
 * of a stream one by one (derender_event.c). On reader threads. */
#ifndef QUIRE_FRONT_API_DERENDER_H
#define QUIRE_FRONT_API_DERENDER_H

#include "front/front.h"

/* Make *out, a body for gen_prepare(), of those fields of a request that affect the text; request
 * may be NULL. False: no memory. */
bool derender_fields(struct exchange *x, const struct json *body, const struct json *request,
                     const struct json *response, struct json *out);

/* Add a choice's ChatCompletionLogProbs, whose tokens are written as ids, to the log probabilities
 * of g. False: they are malformed. */
bool derender_logprobs(struct gen *g, const struct json *logprobs);

/* Convert one event of a stream of /inference/v1/generate to the event of a chat or completion:
 * {"chunk":..., "stream_state":...}. The client sends the state with the next event. It holds all
 * ids so far, and they are detokenized again for each event, so an event costs as much as all
 * before it (about 10 ms for 10,000 tokens). */
void derender_event(struct front *f, struct exchange *x, const struct json *body);

#endif
