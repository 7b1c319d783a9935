/* SPDX-License-Identifier: Apache-2.0
 *
 * Log probabilities: kept as the engine sends them, written as the API requires.
 *
 * Thread: the streamer. The records of a generation are a run of struct logprob: a chosen token,
 * then its most probable alternatives, then the next chosen token.
 *
 * More alternatives than WIRE_LOGPROBS_MAX, up to the whole vocabulary, are taken from the token's
 * whole row of logits. Such a request is slow and large: with a vocabulary of 128k, one token is
 * 0.7 MB through the lane (42 times its ring), 2 MB of records here, 3 MB of JSON (9 MB with lists
 * of bytes) and 0.4 s on one core, most of it this thread's sorting and writing. The size of one
 * answer is bounded. */
#ifndef QUIRE_FRONT_ANSWER_LOGPROBS_H
#define QUIRE_FRONT_ANSWER_LOGPROBS_H

#include "base/reason.h"
#include "front/request/exchange.h"

#define LOGPROBS_ALL         UINT32_MAX            /* value of n_logprobs: the whole vocabulary */
#define LOGPROBS_HELD_BYTES  ((uint64_t)512 << 20) /* approximate limit per answer */
#define LOGPROBS_ENTRY_BYTES 128 /* bytes per alternative: a record, and its JSON */

struct logprob {
    int32_t id;
    float logprob;
    uint32_t rank;
    bool begins; /* a chosen token; otherwise an alternative */
};

/* Store a record of kind WIRE_CHOSEN, WIRE_TOP, WIRE_PROMPT_CHOSEN or WIRE_PROMPT_TOP. Without
 * memory the answer fails. */
void logprobs_record(struct gen *g, const struct wire_out *o);

/* Store a record of kind WIRE_ROW or WIRE_PROMPT_ROW. The last record of a row turns it into
 * alternatives. */
void logprobs_row(struct gen *g, const struct wire_out *o, uint32_t n_vocab);

/* Check that the answer with the requested alternatives fits into memory; only needed above
 * WIRE_LOGPROBS_MAX. most: the setting max_logprobs, -1: no limit; longest: maximum tokens of
 * prompt and answer. ERR_INVALID with *reason. */
int logprobs_check(const struct gen *g, uint32_t n_vocab, int most, uint32_t longest,
                   struct reason *reason) ERR_CHECKED;

/* A WIRE_TOKEN has arrived: the records of its token are complete. */
void logprobs_token(struct gen *g);

/* Before g is submitted again: drop incomplete records. Returns the flags for the next engine. */
uint32_t logprobs_restart(struct gen *g);

/* Must the text of an echo wait for the prompt's log probabilities? The engine sends them before
 * the first token, and only for the first choice of a prompt. */
bool logprobs_echo_waits(const struct gen *g);

/* Append `"logprobs":` with the records not written yet, or null: for chats and for completions. */
void logprobs_write_chat(struct buf *b, struct gen *g);
void logprobs_write_text(struct buf *b, struct gen *g);

/* For /v1/responses: append the tokens that were neither appended nor skipped yet, with commas
 * between. A token that only ends the text is left out. */
void logprobs_add_text(struct buf *b, struct gen *g);

/* Skip the records so far: their tokens are reasoning, a call or a tag, and belong to no text. */
void logprobs_skip(struct gen *g);

/* Append `"prompt_logprobs":[null,{...}]`. */
void logprobs_write_prompt(struct buf *b, const struct gen *g);

#endif
