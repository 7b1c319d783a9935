/* A response that is complete, as the events of its stream: those that answer_responses.c writes
 * while a response comes, with each text in one delta. */
#ifndef QUIRE_FRONT_ANSWER_REPLAY_H
#define QUIRE_FRONT_ANSWER_REPLAY_H

#include "base/buf.h"
#include "base/json.h"

/* Append the events of a response object, as /v1/responses answers it. Cost: some three times its
 * length, and its output twice more. Any thread. */
void replay_write(struct buf *b, const struct json *response);

#endif
