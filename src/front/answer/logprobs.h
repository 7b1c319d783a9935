/* Log probabilities: kept as the engine tells them, written as the API wants them.
 *
 * The streamer's. What a generation was told is a run of struct logprob: the token that came, then
 * the most probable ones, and the next token.
 *
 * More alternatives than WIRE_LOGPROBS_MAX, up to the whole vocabulary, are the largest of the
 * token's row of logits. Such a request is slow and large: a token of a vocabulary of 128k is
 * 0.7 MB through the lane (42 times its ring), 2 MB of records here, 3 MB of JSON (9 MB where bytes
 * are listed) and 0.4 s on one core, most of it this thread's sorting and writing. What one answer
 * may hold of that is bounded. */
#ifndef QUIRE_FRONT_ANSWER_LOGPROBS_H
#define QUIRE_FRONT_ANSWER_LOGPROBS_H

#include "front/request/exchange.h"

#define LOGPROBS_ALL         UINT32_MAX            /* of n_logprobs: as many as there are ids */
#define LOGPROBS_HELD_BYTES  ((uint64_t)512 << 20) /* that an answer may hold, about */
#define LOGPROBS_ENTRY_BYTES 128 /* what an alternative takes: a record, and its text in JSON */

struct logprob {
    int32_t id;
    float logprob;
    uint32_t rank;
    bool begins; /* a token that came; else one of the most probable */
};

/* Keep a record of kind WIRE_CHOSEN, WIRE_TOP, WIRE_PROMPT_CHOSEN or WIRE_PROMPT_TOP. Memory that
 * is missing fails the answer. */
void logprobs_record(struct gen *g, const struct wire_out *o);

/* Keep a record of kind WIRE_ROW or WIRE_PROMPT_ROW. The last one of a row makes it entries. */
void logprobs_row(struct gen *g, const struct wire_out *o, uint32_t n_vocab);

/* Can the answer be held that g's exchange asks for? Only where it wants more than
 * WIRE_LOGPROBS_MAX. most: the setting max_logprobs, -1 for any; longest: tokens of prompt and
 * answer. ERR_INVALID with a sentence in why and the field in *param. */
int logprobs_check(const struct gen *g, uint32_t n_vocab, int most, uint32_t longest, char *why,
                   size_t cap, const char **param) ERR_CHECKED;

/* A WIRE_TOKEN has come: what was told of it is whole. */
void logprobs_token(struct gen *g);

/* Before g is submitted again: drop what is not whole. The flags that the next engine needs. */
uint32_t logprobs_restart(struct gen *g);

/* Is the text an echo whose log probabilities have not all come? They are told before the first
 * token, and of a prompt's first choice alone. */
bool logprobs_echo_waits(const struct gen *g);

/* Append `"logprobs":` with what was told and not written yet, or null: chats', completions'. */
void logprobs_write_chat(struct buf *b, struct gen *g);
void logprobs_write_text(struct buf *b, struct gen *g);

/* A response's: append those of the tokens that were told and neither added nor skipped yet, with
 * commas before, between and behind nothing. The token that only ends the text is none of it. */
void logprobs_add_text(struct buf *b, struct gen *g);

/* What was told so far belongs to no text: to reasoning, a call, a tag. */
void logprobs_skip(struct gen *g);

/* Append `"prompt_logprobs":[null,{...}]`. */
void logprobs_write_prompt(struct buf *b, const struct gen *g);

#endif
