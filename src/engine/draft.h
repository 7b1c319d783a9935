/* Drafts: tokens that a sequence will probably have next, guessed from what its text has had
 * before. A step computes them beside the token that is known and samples a row behind each. What
 * is sampled depends on (seed, position) and the tokens before alone, so the rows behind drafts
 * that turn out right are exactly those that steps of one token would have given: the text with
 * drafts is the text without them. The others are thrown away, and were never named, published or
 * charged.
 *
 * Where drafts come from (speculative_config's method):
 *
 *   ngram   the tokens that followed an earlier occurrence of the text's last n_min to n_max tokens
 *   suffix  the tokens that followed the occurrence that agrees longest; as many as agree
 *
 * A text that is copied with changes differs from its source at single tokens. So a place in the
 * source is kept after a token that differs, as long as enough tokens before it agreed: the copy
 * probably goes on after the token that was replaced.
 *
 * A sequence that is drafted for does not run ahead: its step ends before the next is planned. So
 * it is drafted for only while guesses prove right, which is watched without computing them.
 *
 * A table of the positions behind each n-gram is kept per sequence: 0.1 us a token, 12 bytes. */
#ifndef QUIRE_ENGINE_DRAFT_H
#define QUIRE_ENGINE_DRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define DRAFT_MAX 7 /* with the known token eight: as many as a recorded step takes of a sequence */

enum draft_method { DRAFT_NONE, DRAFT_NGRAM, DRAFT_SUFFIX };

struct draft_options {
    enum draft_method method;
    int n_tokens;  /* 1 .. DRAFT_MAX, of a draft */
    int n_min;     /* 1 .. n_max: tokens that must agree */
    int n_max;     /* DRAFT_NGRAM: more are not looked at; DRAFT_SUFFIX: most of a draft's length */
    double factor; /* DRAFT_SUFFIX: tokens of a draft for each that agrees */
};

/* One sequence's. */
struct draft {
    int32_t *heads;  /* int32 [2 * tokens_cap], 1 + the last position behind an n-gram, by hash */
    int32_t *before; /* int32 [tokens_cap]: 1 + the position behind the same hash before, or 0 */
    int n_indexed;   /* tokens whose n-grams are in the table */
    int place;       /* position whose token is the guess for the next one, -1: none */
    int run;         /* tokens before it that agree with the text's end, fewer after a difference */
    int n_right;     /* guesses in a row that were right */
    int n_rest;      /* tokens before it is drafted for again */
    int backoff;     /* the next rest */
    int length;      /* of the next draft at most */
    bool is_on;      /* it is drafted for */
    bool was_wrong;  /* all of the last draft */
    int n;           /* drafts of the plan: they stand behind the known tokens */
    int n_ahead;     /* drafts of the step under way */
};

struct seq;

/* Whether q can be drafted for: where a mask says which ids may come, each row would need one of
 * its own. */
bool draft_may(const struct seq *q);

/* Read speculative_config, a JSON object in vLLM's words; "": DRAFT_NONE. ERR_INVALID or
 * ERR_UNSUPPORTED with a sentence in why. */
int draft_read_options(struct draft_options *out, const char *text, char *why,
                       size_t why_cap) ERR_CHECKED;

/* The tokens of q have grown: index them, and see whether the guess was right. */
void draft_follow(const struct draft_options *o, struct seq *q);

/* Before a plan, when all of q's tokens are known and computed but the last: write at most `most`
 * drafts behind them and set q->draft.n. */
void draft_propose(const struct draft_options *o, struct seq *q, int most);

/* Of the step's n drafts n_right were. */
void draft_learn(const struct draft_options *o, struct seq *q, int n, int n_right);

#endif
