/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers that are lists of blocks: Anthropic's content blocks, OpenAI's output items.
 *
 * A reply arrives as events (text/output/reply.h). Consecutive events of one kind make a block: it
 * opens, grows and closes, and a shape writes the JSON of its API for that. With or without
 * streaming, the same blocks are made. One generation per answer; all functions run on the
 * streamer's thread. */
#ifndef QUIRE_FRONT_ANSWER_BLOCKS_H
#define QUIRE_FRONT_ANSWER_BLOCKS_H

#include "front/request/exchange.h"

/* The writers of one API; g->speech->blocks is the state. */
struct blocks_shape {
    void (*begin)(struct gen *g);                               /* a stream's first events */
    void (*open)(struct gen *g);                                /* a stream: a block has opened */
    void (*piece)(struct gen *g, const char *text, size_t len); /* a stream: it has grown */
    /* A block is complete, or is_cut: write its last events, in a stream, and its entry in the list
     * of closed blocks. */
    void (*close)(struct gen *g, bool is_cut);
    void (*body)(struct gen *g, struct buf *b);                /* the whole answer */
    void (*finish)(struct gen *g);                             /* a stream's last events */
    void (*fail)(struct gen *g, int err, const char *message); /* a stream's error event */
};

extern const struct blocks_shape blocks_messages;  /* answer_messages.c */
extern const struct blocks_shape blocks_responses; /* answer_responses.c */

/* Called by answer.c, for exchanges of these shapes. */
void blocks_begin(struct gen *g); /* after the status line */
void blocks_said(struct gen *g, const struct reply_event *e);
void blocks_end(struct gen *g); /* completes the exchange, unless it must wait for the store */
void blocks_fail(struct gen *g, int err, const char *message); /* in the middle of a stream */

/* Does x, whose response is complete, wait for the store? When it no longer does, blocks_kept()
 * completes the exchange. */
bool blocks_wait(const struct exchange *x, uint64_t now_us);
void blocks_kept(struct exchange *x);

/* --- helpers of the shapes --- */

/* Write "event: NAME", a line feed and `data: {"type":"NAME"`; the caller adds further members and
 * ends the event with blocks_event_end(). */
void blocks_event(struct gen *g, const char *name);
void blocks_event_end(struct gen *g); /* `}` and the empty line */

/* Number of output tokens. */
uint32_t blocks_output_tokens(const struct gen *g);

/* Is the open block's text a JSON object? The arguments of a call are one, unless they were cut. */
bool blocks_is_object(struct gen *g);

/* "name":"text" */
void blocks_add_text(struct buf *b, const char *name, const struct buf *text);

#endif
