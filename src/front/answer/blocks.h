/* Answers that are lists of blocks: Anthropic's content, OpenAI's output items.
 *
 * A reply comes as events (text/output/reply.h). What is of one kind in a row is a block: it
 * opens, grows and closes, and a shape writes what its API says of that. Streamed or not, the same
 * blocks are made. One generation; all functions run on the streamer's thread. */
#ifndef QUIRE_FRONT_ANSWER_BLOCKS_H
#define QUIRE_FRONT_ANSWER_BLOCKS_H

#include "front/request/exchange.h"

/* What an API writes; g->speech->blocks is the state. */
struct blocks_shape {
    void (*begin)(struct gen *g);                               /* a stream's first events */
    void (*open)(struct gen *g);                                /* a stream: a block has begun */
    void (*piece)(struct gen *g, const char *text, size_t len); /* a stream: it has grown */
    /* A block is complete, or is_cut: for its events, if it streams, and the list of the whole. */
    void (*close)(struct gen *g, bool is_cut);
    void (*body)(struct gen *g, struct buf *b);                /* the whole answer */
    void (*finish)(struct gen *g);                             /* a stream's last events */
    void (*fail)(struct gen *g, int err, const char *message); /* and when it fails */
};

extern const struct blocks_shape blocks_messages;  /* answer_messages.c */
extern const struct blocks_shape blocks_responses; /* answer_responses.c */

/* From answer.c, for exchanges of these shapes. */
void blocks_begin(struct gen *g); /* after the status line */
void blocks_said(struct gen *g, const struct reply_event *e);
void blocks_end(struct gen *g); /* the exchange is complete then, or waits for the store */
void blocks_fail(struct gen *g, int err, const char *message); /* in mid-stream */

/* Does x, whose response is complete, wait for the store? When it no longer does, blocks_kept()
 * ends it: the exchange is complete then. */
bool blocks_wait(const struct exchange *x, uint64_t now_us);
void blocks_kept(struct exchange *x);

/* --- for the shapes --- */

/* "event: NAME\ndata: {"type":"NAME"": further members, `}` and an empty line are the caller's. */
void blocks_event(struct gen *g, const char *name);
void blocks_event_end(struct gen *g); /* `}` and the empty line */

/* Tokens of the answer. */
uint32_t blocks_output_tokens(const struct gen *g);

/* Is the open block's text a JSON object, as a call's arguments are unless they were cut? */
bool blocks_is_object(struct gen *g);

/* "name":"text" */
void blocks_add_text(struct buf *b, const char *name, const struct buf *text);

#endif
