/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts (speculative decoding): tokens that a sequence will probably have next, guessed from the
 * text before. A step computes them after the known token and samples a row at each. A sampled
 * token depends on (seed, position) and the tokens before alone, so rows after correct drafts are
 * exactly those that steps of one token would give: the output with drafts equals the output
 * without them. The other rows are thrown away; they were never named, published or charged.
 *
 * The sources of drafts (the method of speculative_config):
 *
 *   ngram   the tokens after an earlier occurrence of the text's last n_min to n_max tokens
 *   suffix  the tokens after the occurrence with the longest agreement; as many as agree
 *   draft_model, eagle3, mtp  a smaller model (drafter.h)
 *   forced  of outputs with a form: tokens that the form leaves hardly a choice about. Every method
 *           has these too, behind its own
 *
 * A text that is copied with changes differs from its source in single tokens. So a place in the
 * source is kept after a different token if enough tokens before it agreed: the copy probably
 * continues after the replaced token.
 *
 * A sequence with drafts does not run ahead: its step ends before the next is planned. So drafts
 * are made only while guesses prove right, which is watched without computing them. The table of
 * n-grams of a sequence costs 0.1 us and 12 bytes per token. */
#ifndef QUIRE_ENGINE_DRAFT_H
#define QUIRE_ENGINE_DRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* With the known token eight: the most that a recorded step takes of one sequence. */
#define DRAFT_MAX         7

#define DRAFT_MODEL_BYTES 1024 /* of the path of a drafter's folder */

enum draft_method {
    DRAFT_NONE,
    DRAFT_NGRAM,
    DRAFT_SUFFIX,
    DRAFT_MODEL,
    DRAFT_EAGLE3,
    DRAFT_MTP,
    DRAFT_FORCED,
};

struct guide;

struct draft_options {
    enum draft_method method;
    int n_tokens;  /* 1 .. DRAFT_MAX, tokens per draft */
    int n_min;     /* 1 .. n_max: tokens that must agree */
    int n_max;     /* DRAFT_NGRAM: most tokens compared; DRAFT_SUFFIX: greatest length of a draft */
    double factor; /* DRAFT_SUFFIX: tokens of a draft per agreeing token */
    bool is_fixed; /* likewise: always n_tokens drafts, whatever becomes of them */
    char model
        [DRAFT_MODEL_BYTES]; /* of a model: the drafter's folder; DRAFT_MTP: "" is the target's */
    struct guide *guide; /* borrowed for good: drafts keep to a request's form; NULL: no request has
                          * one */
};

/* The drafts of one sequence. */
struct draft {
    int32_t *heads;     /* int32 [2 * tokens_cap], by hash of an n-gram: 1 + the last position after
                      * it */
    int32_t *before;    /* int32 [tokens_cap]: 1 + the previous position with that hash, or 0 */
    int n_indexed;      /* tokens whose n-grams are in the table */
    int place;          /* position of the token that is the guess for the next one; -1: none */
    int run;            /* tokens before it that agree with the end of the text; reduced after a
                      * difference */
    int n_right;        /* correct guesses in a row */
    int n_rest;         /* tokens until drafts may begin again */
    int backoff;        /* length of the next rest */
    int length;         /* of the next draft at most */
    bool is_on;         /* drafts are made */
    bool was_wrong;     /* no token of the last draft was right */
    int n;              /* drafts in the plan: they are after the known tokens */
    int n_ahead;        /* drafts of the step in flight */
    int n_cut;          /* of these, the last: no mask could be made behind them */
    int n_forced;       /* of these or of n, the last: forced ones */
    bool is_forced;     /* forced ones follow the last token: the sequence does not run ahead */
    int n_forced_rest;  /* tokens until forced ones may come again */
    int forced_backoff; /* length of the next such rest */
    int forced_length;  /* of the next forced ones at most; 0: any number */
    /* Of a drafter's drafts (drafter.h): */
    int n_beside; /* tokens whose keys and values the drafter has; of known tokens alone, a head of
                     * those whose next token is known */
    bool is_traced; /* n_beside counts what it has in the sequence's pages */
    int n_marked;   /* pages that are marked as the drafter's, from the first one on */
    int base;       /* DRAFT_EAGLE3: it has none before this token, a multiple of a page */
    int n_made;     /* drafts after the first made_at tokens */
    int made_at;
    float share; /* of drafts, each after a right one, that are right: a running mean; 0: none was
                  * computed yet */
};

struct seq;

/* The most drafts of seq at a time: by its request, or by the engine's setting. */
int draft_most(const struct draft_options *o, const struct seq *seq);

/* Can seq have drafts? Not if a token is reported with its whole row of logits, a reasoning is
 * about to reach its budget, or the automaton is too slow to look ahead. */
bool draft_may(const struct seq *seq);

/* Does a model make the drafts, instead of the text before? */
static inline bool draft_is_model(const struct draft_options *o)
{
    return o->method == DRAFT_MODEL || o->method == DRAFT_EAGLE3 || o->method == DRAFT_MTP;
}

/* The share of drafts that will be right after a right one, 0 to 1. */
float draft_share(const struct draft *draft);

/* Make no drafts for n tokens. */
void draft_rest(struct draft *draft, int n);

/* Read speculative_config, a JSON object in vLLM's words; "" is DRAFT_NONE. ERR_INVALID or
 * ERR_UNSUPPORTED with a sentence in why. */
int draft_read_options(struct draft_options *out, const char *text, char *why,
                       size_t why_cap) ERR_CHECKED;

/* Tokens were appended to seq: index them, and check whether the guess was right. */
void draft_follow(const struct draft_options *o, struct seq *seq);

/* Before a plan, when all tokens of seq are known and all but the last are computed: write at most
 * `most` drafts after them and set seq->draft.n. With an automaton: of the method's drafts those up
 * to the first that it forbids, then forced ones. */
void draft_propose(const struct draft_options *o, struct seq *seq, int most);

/* Of the step's n drafts, n_right were right. */
void draft_learn(const struct draft_options *o, struct seq *seq, int n, int n_right);

#endif
