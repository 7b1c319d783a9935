/* SPDX-License-Identifier: Apache-2.0
 *
 * The budget of a reasoning (thinking_token_budget): where the reasoning begins and ends in the
 * output, how many tokens it has, and which token must come next.
 *
 * All of this follows from the output's tokens, so an engine that continues the output of another
 * one comes to the same state. Tags are found in the bytes of tokens, however they are cut into
 * tokens. A reasoning is at the beginning of the output, after white space at most, or the prompt
 * ends inside it; there is no second one. */
#ifndef QUIRE_ENGINE_THINK_H
#define QUIRE_ENGINE_THINK_H

#include <stdbool.h>

#include "base/err.h"
#include "engine/seq.h"
#include "grammar/trie.h"

/* Start with seq, whose request and tokens are set. v: the bytes of tokens, borrowed while seq
 * lives; NULL: the front's upload was lost. ERR_OK, also without a budget; ERR_INVALID;
 * ERR_NO_FORM. */
int think_begin(struct seq *seq, const struct token_trie *v, int n_vocab) ERR_CHECKED;

/* Follow the tokens since the last call. O(their bytes). */
void think_follow(struct seq *seq);

/* After think_follow(): may the token be forced that comes after n more, unknown ones? */
bool think_may_force(const struct seq *seq, int n);

/* After think_follow(): the id that must come next, or -1. */
int32_t think_forced(const struct seq *seq);

#endif
