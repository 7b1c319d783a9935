/* The shape of an answer: OpenAI's objects and events, for chats and completions. The other APIs'
 * branch off to blocks.h. */
#ifndef QUIRE_FRONT_ANSWER_ANSWER_H
#define QUIRE_FRONT_ANSWER_ANSWER_H

#include "front/request/exchange.h"

/* Take g's reply apart as it comes; g->speech is there. */
void answer_listen(struct gen *g, const struct reply_options *o);

/* A call's id: the same however often it is made, so that a stream and its joined form agree. */
void answer_call_id(const struct gen *g, int call, char id[40]);

/* The status line and, for a stream, each choice's first chunk. Once, at the first admission. */
void answer_begin(struct exchange *x);

/* A stream: send what g->text holds. Without streaming it stays there. */
void answer_text(struct exchange *x, struct gen *g);

/* g has ended. After the last one the answer is complete. */
void answer_end(struct exchange *x, struct gen *g);

/* SHAPE_TOKENS: a stream says the tokens that have come; a choice has ended. answer_text() and
 * answer_end() call them (answer_tokens.c). */
void answer_tokens(struct exchange *x, struct gen *g);
void answer_tokens_end(struct exchange *x, struct gen *g);

/* Append {"id":...,"object":...,"created":...,"model":... without the closing brace; a choice's
 * "finish_reason":...,"stop_reason":... */
void answer_object(const struct exchange *x, struct buf *b, const char *object);
void answer_reasons(const struct exchange *x, struct buf *b, const struct gen *g);

/* Append "usage":{...}; "name":[ids]. */
void answer_usage(const struct exchange *x, struct buf *b);
void answer_ids(struct buf *b, const char *name, const int32_t *ids, size_t n);

/* What keeps proxies from closing a silent stream. */
void answer_keepalive(struct exchange *x);

/* The exchange fails: an error answer, or, after the head, an error event and no [DONE]. */
void answer_fail(struct exchange *x, int err, const char *message, const char *param,
                 int retry_after_s);

#endif
