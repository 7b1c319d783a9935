/* Drives a model for tests: sequences with pages of their own, steps in chunks of any size. */
#ifndef QUIRE_TESTS_GOLDEN_RUN_H
#define QUIRE_TESTS_GOLDEN_RUN_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

#define RUN_SEQS   64
#define RUN_TOKENS 4096

/* One sequence: its tokens and how many of them stand in the pages. */
struct run_seq {
    int32_t tokens[RUN_TOKENS];
    int n_tokens, n_computed;
    int first_page; /* pages first_page, first_page + 1, ... are its own */
};

struct run {
    struct model *m;
    struct batch b;
    int32_t token_ids[RUN_TOKENS], seq_start[RUN_SEQS + 1], kv_len[RUN_SEQS];
    int32_t page_ids[RUN_SEQS * RUN_TOKENS];
    struct batch_row rows[RUN_SEQS];
    int32_t ids[RUN_SEQS];
};

static inline void run_init(struct run *r, struct model *m)
{
    memset(r, 0, sizeof *r);
    r->m = m;
    r->b = (struct batch){.token_ids = r->token_ids,
                          .seq_start = r->seq_start,
                          .kv_len = r->kv_len,
                          .page_ids = r->page_ids,
                          .rows = r->rows,
                          .pages_max = RUN_TOKENS};
}

static inline void run_clear(struct run *r)
{
    r->b.n_tokens = r->b.n_seqs = r->b.n_rows = 0;
}

/* Add the next n tokens of a sequence to the step; its last one is sampled greedily when it is
 * the sequence's last, or each of them when all is set. */
static inline void run_add(struct run *r, struct run_seq *s, int n, bool all)
{
    struct batch *b = &r->b;
    int seq = b->n_seqs++, bt = model_shape(r->m)->block_tokens;

    memcpy(r->token_ids + b->n_tokens, s->tokens + s->n_computed, (size_t)n * sizeof(int32_t));
    r->seq_start[seq] = b->n_tokens;
    r->seq_start[seq + 1] = b->n_tokens + n;
    s->n_computed += n;
    r->kv_len[seq] = s->n_computed;
    for (int i = 0; i < (s->n_computed + bt - 1) / bt; i++)
        r->page_ids[(size_t)seq * RUN_TOKENS + (size_t)i] = s->first_page + i;
    for (int i = 0; i < n; i++) {
        if (!all && (i < n - 1 || s->n_computed < s->n_tokens))
            continue;
        r->rows[b->n_rows++] =
            (struct batch_row){.token_idx = b->n_tokens + i, .sampling = sampling_greedy()};
    }
    b->n_tokens += n;
}

static inline int run_step(struct run *r)
{
    int rc = model_step_begin(r->m, &r->b);

    if (rc == ERR_OK)
        rc = model_step_sample(r->m, &r->b);
    return rc == ERR_OK ? model_step_end(r->m, r->ids, NULL) : rc;
}

/* Prefill in chunks of the given size, then n greedy tokens one by one, appended to s. */
static inline int run_greedy(struct run *r, struct run_seq *s, int chunk, int n)
{
    int rc = ERR_OK;

    for (int want = s->n_tokens + n; rc == ERR_OK && s->n_tokens < want;) {
        int left = s->n_tokens - s->n_computed;

        run_clear(r);
        run_add(r, s, left < chunk ? left : chunk, false);
        rc = run_step(r);
        if (rc == ERR_OK && r->b.n_rows > 0)
            s->tokens[s->n_tokens++] = r->ids[0];
    }
    return rc;
}

#endif
