/* What the two ways of /derender share: whole responses (api_derender.c), and the events of a
 * stream one by one (derender_event.c). On reader threads. */
#ifndef QUIRE_FRONT_API_DERENDER_H
#define QUIRE_FRONT_API_DERENDER_H

#include "front/front.h"

/* The fields of a request that say something of the text, as a body for gen_prepare(); request may
 * be NULL. False: no memory. */
bool derender_fields(struct exchange *x, const struct json *body, const struct json *request,
                     const struct json *response, struct json *out);

/* A choice's ChatCompletionLogProbs, with tokens as ids, become what g was told. False: they are
 * none. */
bool derender_logprobs(struct gen *g, const struct json *logprobs);

/* One event of a stream of /inference/v1/generate as the event that a chat or completion has:
 * {"chunk":..., "stream_state":...}. The state is the client's to bring with the next event; it
 * has the ids so far, which are read again each time, so an event costs as much as all before it
 * (some 10 ms for 10,000 tokens). */
void derender_event(struct front *f, struct exchange *x, const struct json *body);

#endif
