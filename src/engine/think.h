/* The bound of a reasoning (thinking_token_budget): where it begins and ends in the output, how
 * many tokens it has, and which token must come next.
 *
 * All of it follows from the output's tokens, so an engine that is given the output of one that
 * died comes to the same. Tags are found by what tokens spell, however they are cut into tokens. A
 * reasoning begins the output, behind white space at most, or the prompt ended inside of it; one
 * that ended has no second. */
#ifndef QUIRE_ENGINE_THINK_H
#define QUIRE_ENGINE_THINK_H

#include <stdbool.h>

#include "base/err.h"
#include "engine/seq.h"
#include "grammar/trie.h"

/* Begin with q, whose request and tokens are set. v: what tokens spell, borrowed while q lives;
 * NULL: the front's upload was lost. ERR_OK, also without a bound; ERR_INVALID; ERR_NO_FORM. */
int think_begin(struct seq *q, const struct token_trie *v, int n_vocab) ERR_CHECKED;

/* Follow the tokens that came since the last call. O(bytes of these). */
void think_follow(struct seq *q);

/* After think_follow(): may the token be forced that comes behind n further, unknown ones? */
bool think_may_force(const struct seq *q, int n);

/* After think_follow(): the id that must come next, or -1. */
int32_t think_forced(const struct seq *q);

#endif
