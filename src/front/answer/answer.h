/* SPDX-License-Identifier: Apache-2.0
 *
 * The form of answers: OpenAI's objects and events, for chats and completions. The other APIs'
 * forms branch off to blocks.h. */
#ifndef QUIRE_FRONT_ANSWER_ANSWER_H
#define QUIRE_FRONT_ANSWER_ANSWER_H

#include "front/request/exchange.h"

/* Parse g's reply as it arrives; g->speech must exist. */
void answer_listen(struct gen *g, const struct reply_options *o);

/* A call's id. It depends only on the answer's id, the choice and the call, so that a stream and
 * its joined form have the same. */
void answer_call_id(const struct gen *g, int call, char id[40]);

/* Send the status line and, for a stream, the first chunk of each choice. Called at the first
 * admission; later calls do nothing. */
void answer_begin(struct exchange *x);

/* For a stream: send the text in g->text. Otherwise the text stays there. */
void answer_text(struct exchange *x, struct gen *g);

/* End g's choice. After the last choice the answer is complete. */
void answer_end(struct exchange *x, struct gen *g);

/* SHAPE_TOKENS: send the tokens that have arrived, in a stream; end a choice. Called by
 * answer_text() and answer_end() (answer_tokens.c). */
void answer_tokens(struct exchange *x, struct gen *g);
void answer_tokens_end(struct exchange *x, struct gen *g);

/* SHAPE_KSERVE: the whole answer, which is no stream (answer_kserve.c). */
void answer_kserve_body(struct exchange *x);

/* Append {"id":...,"object":...,"created":...,"model":... without the closing brace; a choice's
 * "finish_reason":...,"stop_reason":... */
void answer_object(const struct exchange *x, struct buf *b, const char *object);
void answer_reasons(const struct exchange *x, struct buf *b, const struct gen *g);

/* Append ,"cached_tokens_by_group":{...}, the prompt tokens that the layers of each kind could have
 * served: the sum over every step-th of gens. Nothing for a model with one kind of layers. */
void answer_groups(const struct gen *gens, int n_gens, int step, struct buf *b);

/* Append "usage":{...}; "name":[ids]. */
void answer_usage(const struct exchange *x, struct buf *b);
void answer_ids(struct buf *b, const char *name, const int32_t *ids, size_t n);

/* Send something that keeps proxies from closing a silent stream. */
void answer_keepalive(struct exchange *x);

/* Fail the exchange: an error answer, or, after the head was sent, an error event without
 * [DONE]. */
void answer_fail(struct exchange *x, int err, const char *message, const char *param,
                 int retry_after_s);

#endif
