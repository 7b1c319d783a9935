/* SPDX-License-Identifier: Apache-2.0
 *
 * Beam search (use_beam_search): the n most probable continuations that a search of width n finds,
 * in place of n sampled ones. As in vLLM:
 *
 *   - A step extends each live beam by the 2n most probable next tokens. The n extensions with the
 *     largest sum of log probabilities live on.
 *   - A beam that is extended by an end of text is complete.
 *   - The score of a beam is sum / length ^ length_penalty, where the length includes the prompt,
 *     but not the end of text. The answer is the n best of the complete and live beams, best first.
 *
 * vLLM searches until max_tokens. Here a search ends as soon as no live beam can become one of the
 * n best; the answer is the same.
 *
 * The generations of a prompt hold its live beams (gen.tokens). The engine does not know about
 * beams: it computes one token of each, with its alternatives, and finds the rest in the prefix
 * cache. One step costs one pass of the engine and O(n * (n + length)) here.
 *
 * Thread: made by a reader, then used by the streamer. */
#ifndef QUIRE_FRONT_ANSWER_BEAMS_H
#define QUIRE_FRONT_ANSWER_BEAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "front/request/exchange.h"

/* The caller's next action after beams_told(). */
enum beams_todo {
    BEAMS_NOTHING, /* none: other beams of the prompt are still being computed */
    BEAMS_SUBMIT,  /* submit the generations for which beams_asks() is true */
    BEAMS_END,     /* end all generations of the prompt: they are its answer */
};

/* Set up the search in x's generations, which lack only their prompts. Fills x->beams, which is
 * freed with the exchange. ERR_NO_MEMORY. */
int beams_init(struct exchange *x, const struct beams_options *o) ERR_CHECKED;

/* True once per step and live beam: submit g. */
bool beams_asks(struct gen *g);

/* max_tokens for g's next request: one more than it has. */
uint32_t beams_max_tokens(const struct gen *g);

/* Process the engine's answer for g's beam. ends[n_ends]: ids that end a text. longest: maximum
 * tokens of an answer. ERR_OK with *todo, or ERR_NO_MEMORY. */
int beams_told(struct gen *g, const int32_t *ends, uint32_t n_ends, uint32_t longest,
               enum beams_todo *todo) ERR_CHECKED;

#endif
