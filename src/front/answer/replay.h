/* SPDX-License-Identifier: Apache-2.0
 *
 * A complete response as the events of its stream: the events of answer_responses.c, with each text
 * in one delta. */
#ifndef QUIRE_FRONT_ANSWER_REPLAY_H
#define QUIRE_FRONT_ANSWER_REPLAY_H

#include "base/buf.h"
#include "base/json.h"

/* Append the events of a response object, as /v1/responses answers it. Cost: about three times its
 * length, and twice its output. Any thread. */
void replay_write(struct buf *b, const struct json *response);

#endif
