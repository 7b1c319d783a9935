/* SPDX-License-Identifier: Apache-2.0
 *
 * The input and output of one step, as the engine hands it to the model: plain host arrays, owned
 * by the engine, borrowed from model_step_begin() to the end of model_step_sample().
 *
 * The tokens of all sequences follow one another. Sequence i owns tokens seq_start[i] ..
 * seq_start[i + 1] - 1; they are the last of its kv_len[i] tokens, so its token j has position
 * kv_len[i] - (seq_start[i + 1] - seq_start[i]) + j. A decode has one token, a prefill chunk has
 * several; the model does not distinguish them. */
#ifndef QUIRE_MODEL_BATCH_H
#define QUIRE_MODEL_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/sampling.h"

#define BATCH_BANNED_MAX   24 /* ids that may be forbidden for one row: stop ids under min_tokens */
#define BATCH_BIASES_MAX   1024
#define BATCH_LOGPROBS_MAX 128
#define BATCH_ASKED_MAX    128 /* ids of one row whose log probabilities are wanted */

/* The memory that layers keep per sequence lies in pages of one size. Layers that keep the same
 * tokens form a group, and a sequence has one table of pages per group. */
#define CACHE_GROUPS_MAX 16
enum cache_kind {
    CACHE_FULL,   /* keys and values of every token */
    CACHE_WINDOW, /* keys and values of the last tokens: a token sees itself and window - 1
                   * before it */
    CACHE_STATE,  /* a state of fixed size, updated by every token */
};
#define CACHE_KINDS (CACHE_STATE + 1)

struct cache_group {
    enum cache_kind kind;
    int window;        /* CACHE_WINDOW: tokens */
    int n_state_pages; /* CACHE_STATE: pages of one state */
};

/* One token to sample: the position in the batch whose logits are used, and the parameters. */
struct batch_row {
    int32_t token_idx; /* index into token_ids: the logits of this token are sampled */
    struct sampling sampling;
    uint64_t position;      /* of the sampled token, counted from the first token of the prompt */
    const int32_t *history; /* int32 [n_history]: prompt, then output; NULL unless a penalty is on.
                             * Not read before model_step_sample() */
    int32_t n_history;
    int32_t n_prompt;                 /* the first n_prompt of history are the prompt */
    int32_t n_banned;                 /* 0 .. BATCH_BANNED_MAX */
    int32_t banned[BATCH_BANNED_MAX]; /* ids with probability 0 */
};

/* logits[id] += value, before penalties. */
struct batch_bias {
    int32_t id;
    float value; /* finite */
};

/* Requests of a row beyond its sampled id: log probabilities, biases, a mask. Read when the row is
 * sampled. */
struct batch_extra {
    int32_t row;
    int32_t target;   /* the id whose log probability is returned; -1: that of the sampled id */
    int32_t n_top;    /* 0 .. BATCH_LOGPROBS_MAX: how many of the most probable ids are returned;
                       * -1: no log probabilities at all */
    int32_t n_biases; /* 0 .. BATCH_BIASES_MAX */
    const struct batch_bias *biases; /* each id once */
    int32_t n_asked;                 /* 0 .. BATCH_ASKED_MAX; above 0 only with n_top >= 0 */
    const int32_t *asked;            /* ids whose log probabilities are returned too */
    int32_t mask; /* index in model_masks() of the mask of allowed ids; -1: all are allowed */
};

/* Log probabilities of a row's logits as they came from the model. */
struct batch_logprobs {
    float log_sum; /* logit - log_sum is the log probability, 0 at most */
    float chosen;  /* of the target */
    uint32_t rank; /* 1: the target is the most probable id; 0: not known, for a sampled id */
    int32_t n_top;
    int32_t ids[BATCH_LOGPROBS_MAX]; /* the most probable first */
    float top[BATCH_LOGPROBS_MAX];
    int32_t n_asked;
    float asked[BATCH_ASKED_MAX]; /* in the order of batch_extra.asked */
};

/* Of an EAGLE-3 head's step: the row that it reads beside each token. */
struct batch_hidden {
    bool of_target;      /* rows are tokens of the target's last step, which has ended; else rows of
                          * the head's own step before */
    const int32_t *rows; /* int32 [n_tokens], until the step has begun */
};

struct batch {
    struct batch_hidden hidden;
    int n_tokens;       /* 1 .. max_num_batched_tokens */
    int n_seqs;         /* 1 .. max_num_seqs */
    int n_rows;         /* 0 .. max_num_seqs */
    int pages_max;      /* row length of page_ids */
    int32_t *token_ids; /* int32 [n_tokens], 0 <= id < n_vocab; or -1 - r for the id that row r
                         * of the previous step samples, while that step has not ended; with n
                         * stages, of the n-th step before */
    int32_t *seq_start; /* int32 [n_seqs + 1] */
    int32_t *kv_len;    /* int32 [n_seqs], tokens, including those of this step */
    /* int32 [n_groups][n_seqs][pages_max], in the order of model_shape.groups.
     *   CACHE_FULL    the first ceil(kv_len / page_tokens) entries are valid
     *   CACHE_WINDOW  of these, entries with a token that a token of the step sees are valid; the
     *                 others hold any page's id, and that page is neither read nor written
     *   CACHE_STATE   the first n_state_pages hold the state after the token before the step's
     *                 first, and are replaced; not read where the step begins at token 0 */
    int32_t *page_ids;
    const int32_t *adapters; /* int32 [n_seqs]: the slot of each sequence's adapter, -1: none; NULL:
                              * no sequence has one */
    struct batch_row *rows;  /* [n_rows], token_idx ascending */
    /* Not read before model_step_sample(). */
    struct batch_extra *extras; /* [n_extras], rows ascending */
    int n_extras;               /* 0 .. n_rows */
    int n_masks;                /* number of masks in use, counted from the first of
                                 * model_masks() */
};

#endif
