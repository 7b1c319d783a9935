/* SPDX-License-Identifier: Apache-2.0
 *
 * A drafter: a smaller model of the same vocabulary that proposes tokens (draft.h).
 *
 * Before each plan, drafter_pass() computes the drafts of all sequences that decode, together: its
 * first step takes the tokens that the drafter lacks of each and samples the first draft of each,
 * every further step takes the draft before and samples the next one. A row is sampled with the
 * request's own temperature, top-p, seed and position: where both models agree, they draw the same
 * token, so drafts are right above temperature 0 too.
 *
 *     tokens  a b c d        the target has computed a b c, d is known
 *     step 1  c d -> e       the drafter had a b
 *     step 2      e -> f     the target's next step computes d e f, and samples a row at each
 *
 * Its keys and values lie in pages of its own that correspond to the target's: the drafter has as
 * many pages, a sequence has the same page numbers in both, and the cost of a page is the sum. So
 * pages have one pool, one account, one order of eviction; a prefix that the target finds in its
 * cache is the drafter's as well. `has` says of which pages that is true: not of those that came
 * from a lower tier, or were computed while drafts rested. The drafter computes these again, a part
 * in each pass, and the sequence runs without drafts meanwhile. Wrong drafts are forgotten by
 * position, as the target's are.
 *
 * A head, of EAGLE-3 or an MTP layer, is a drafter that reads the target's residuals of each token
 * beside the next token (model/forward_eagle.c). So it takes the tokens of a step when that has
 * ended, and before another begins; of a position it has keys when the token behind it is known;
 * and wrong and right drafts alike are computed again from the target's residuals. It cannot catch
 * up with tokens whose residuals are gone, such as those of pages that came from a lower tier: it
 * begins anew at the next page, as if the text began there, which costs right drafts and nothing
 * else.
 *
 * How many drafts: the number that promises the most tokens per time, 0 included, from each
 * sequence's share of right drafts and from the time that steps of both models take (cost.h). A
 * sequence with none rests for some tokens.
 *
 * The engine's thread alone. */
#ifndef QUIRE_ENGINE_DRAFTER_H
#define QUIRE_ENGINE_DRAFTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/cost.h"
#include "model/batch.h"
#include "model/model.h"

struct engine;
struct seq;

struct drafter {
    struct model *model;             /* NULL: none */
    const struct model_shape *shape; /* borrowed from model */
    int group;                       /* of the target's pages, whose numbers its own have */
    bool is_asleep;
    struct cost cost;   /* the time of its steps */
    struct batch batch; /* arrays allocated at start */
    int32_t *ids;       /* int32 [max_num_seqs]: a step's samples */
    struct seq **seqs;  /* [max_num_seqs]: those that get drafts in this pass */
    int *counts;        /* int [max_num_seqs]: how many */
    int *at;            /* int [max_num_seqs]: the row of each in the step before */
    int32_t *hidden;    /* int32 [max_num_batched_tokens]: struct batch_hidden's rows */
    bool is_head;       /* of EAGLE-3, or an MTP layer */
    int n_seqs;
};

/* Open the drafter's model, whose pages drafter_join() adds when the target is open: before that,
 * because the target's pages get the memory that is left. No effect without such a method. Errors
 * as model_open(). */
int drafter_open(struct engine *e) ERR_CHECKED;

/* The bytes of the drafter's page that belongs to each of the target's; 0 without a drafter. */
size_t drafter_page_bytes(const struct drafter *d);

/* The residuals that the target keeps for it (model_taps()). */
int drafter_taps(const struct drafter *d, const int **taps);

/* The target is open: check that the two fit, and allocate pages and arrays. ERR_UNSUPPORTED
 * (logged) for another vocabulary; ERR_NO_MEMORY. */
int drafter_join(struct engine *e) ERR_CHECKED;
void drafter_close(struct drafter *d);

/* Before a plan: make drafts. Blocks until they are there. ERR_GPU. */
int drafter_pass(struct engine *e) ERR_CHECKED;

/* After a plan and its copies of pages: see which keys the drafter has of sequences that the plan
 * admits. */
void drafter_admit(struct engine *e);

/* A page of the target is copied for its first tokens: the drafter's too, if it has it. */
int drafter_copy_page(struct engine *e, int32_t to, int32_t from) ERR_CHECKED;

/* Does a sequence with drafts wait for the step in flight? Then that ends before the next plan. */
bool drafter_awaits_step(const struct engine *e);

/* As model_sleep() and model_wake(); no effect without a drafter, or if it is done. */
int drafter_sleep(struct drafter *d) ERR_CHECKED;
int drafter_wake(struct drafter *d) ERR_CHECKED;

#endif
