/* Beam search (use_beam_search): of each prompt the n most probable continuations that a search of
 * width n finds, in place of n sampled ones. As in vLLM:
 *
 *   - A step extends each live beam by the 2n most probable tokens that may follow it. The n
 *     extensions with the largest sum of log probabilities live on.
 *   - A beam that is extended by an end of text is complete.
 *   - The score of a beam is sum / length ^ length_penalty, where the length counts the prompt and
 *     not the end of text. The answer is the n best of the complete and the live beams, best first.
 *
 * vLLM searches until max_tokens. Here a search ends as soon as no live beam can become one of the
 * n best: the answer is the same.
 *
 * The generations of a prompt hold its live beams (gen.tokens). The engine knows nothing of beams:
 * it is asked for one token of each, with its alternatives, and finds the rest in the prefix cache.
 * One step costs one pass of the engine and O(n * (n + length)) here.
 *
 * Thread: made by a reader, then the streamer's. */
#ifndef QUIRE_FRONT_ANSWER_BEAMS_H
#define QUIRE_FRONT_ANSWER_BEAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "front/request/exchange.h"

/* What beams_told() leaves to do. */
enum beams_todo {
    BEAMS_NOTHING, /* other beams of the prompt have not been told */
    BEAMS_SUBMIT,  /* the next step: generations for which beams_asks() is true */
    BEAMS_END,     /* the prompt's generations are its answer: end each of them */
};

/* Search with x's generations, which are complete but for their prompts. Fills x->beams.
 * ERR_NO_MEMORY. What it holds is freed with the exchange. */
int beams_init(struct exchange *x, const struct beams_options *o) ERR_CHECKED;

/* True once per step and live beam: g is to be submitted. */
bool beams_asks(struct gen *g);

/* The tokens that g's next request may generate, counted from its prompt's end. */
uint32_t beams_max_tokens(const struct gen *g);

/* The engine has told the next token of g's beam. ends[n_ends]: ids that end a text. longest: the
 * most tokens that an answer may have. ERR_OK with *todo, or ERR_NO_MEMORY. */
int beams_told(struct gen *g, const int32_t *ends, uint32_t n_ends, uint32_t longest,
               enum beams_todo *todo) ERR_CHECKED;

#endif
