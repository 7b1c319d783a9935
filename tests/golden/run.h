/* SPDX-License-Identifier: Apache-2.0
 *
 * Drives a model for tests: sequences with pages of their own, steps in chunks of any size. */
#ifndef QUIRE_TESTS_GOLDEN_RUN_H
#define QUIRE_TESTS_GOLDEN_RUN_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

#define RUN_SEQS   64
#define RUN_TOKENS 4096

/* One sequence: its tokens and how many of them stand in the pages. */
struct run_seq {
    int32_t tokens[RUN_TOKENS];
    int n_tokens, n_computed;
    int adapter;    /* 1 + the slot of its adapter; 0: none */
    int first_page; /* pages first_page, first_page + 1, ... are its own: run_pages() of them */
};

struct run {
    struct model *m;
    struct batch b;
    int32_t token_ids[RUN_TOKENS], seq_start[RUN_SEQS + 1], kv_len[RUN_SEQS];
    int32_t adapters[RUN_SEQS];           /* of the step's sequences: slots, or -1 */
    const struct run_seq *seqs[RUN_SEQS]; /* of the step */
    int page_step; /* pages of sequences are page_step apart: no divisor of the number of pages */
    int pages_max; /* of a sequence in a group */
    int32_t page_ids[4 * RUN_SEQS * RUN_TOKENS];
    struct batch_row rows[RUN_SEQS];
    int32_t ids[RUN_SEQS];
};

static inline void run_init(struct run *r, struct model *m)
{
    const struct model_shape *s = model_shape(m);

    memset(r, 0, sizeof *r);
    r->m = m;
    r->page_step = 1;
    r->pages_max = (s->max_model_len + s->page_tokens - 1) / s->page_tokens;
    for (int g = 0; g < s->n_groups; g++) {
        if (s->groups[g].n_state_pages > r->pages_max)
            r->pages_max = s->groups[g].n_state_pages;
    }
    r->pages_max = r->pages_max < RUN_TOKENS ? r->pages_max : RUN_TOKENS;
    if (s->n_groups * RUN_SEQS * r->pages_max > 4 * RUN_SEQS * RUN_TOKENS) {
        printf("Bail out! tables of pages are too long\n");
        exit(1);
    }
    r->b = (struct batch){.token_ids = r->token_ids,
                          .seq_start = r->seq_start,
                          .kv_len = r->kv_len,
                          .page_ids = r->page_ids,
                          .rows = r->rows,
                          .pages_max = r->pages_max};
}

/* Pages that a sequence of n tokens has of all groups together. */
static inline int run_pages(const struct model *m, int n)
{
    const struct model_shape *s = model_shape(m);
    int sum = 0;

    for (int g = 0; g < s->n_groups; g++)
        sum += s->groups[g].kind == CACHE_STATE ? s->groups[g].n_state_pages
                                                : (n + s->page_tokens - 1) / s->page_tokens;
    return sum;
}

/* A sequence's page of a group: page i of all groups, then page i + 1; states first. */
static inline int32_t run_page(const struct run *r, const struct run_seq *s, int group, int i)
{
    const struct model_shape *shape = model_shape(r->m);
    int at = s->first_page, stride = 0, before = 0;

    for (int g = 0; g < shape->n_groups; g++) {
        bool is_state = shape->groups[g].kind == CACHE_STATE;

        at += is_state && g != group ? shape->groups[g].n_state_pages : 0;
        before += !is_state && g < group;
        stride += !is_state;
    }
    if (shape->groups[group].kind == CACHE_STATE) /* there is one such group */
        stride = 1, before = 0;
    return (int32_t)((long)(at + i * stride + before) * r->page_step % shape->n_pages);
}

/* The first page of a group that a token at position pos, or behind it, sees. */
static inline int run_first_page(const struct run *r, int group, int pos)
{
    const struct model_shape *s = model_shape(r->m);
    int window = s->groups[group].window;

    return window > 0 && pos >= window ? (pos - window + 1) / s->page_tokens : 0;
}

/* The row of a table: what is behind the window is any page. */
static inline void run_row(struct run *r, int seq, int group)
{
    const struct model_shape *s = model_shape(r->m);
    const struct cache_group *g = &s->groups[group];
    int n_new = r->seq_start[seq + 1] - r->seq_start[seq], pos = r->kv_len[seq] - n_new;
    int last = (r->kv_len[seq] - 1) / s->page_tokens, first = run_first_page(r, group, pos);
    int32_t *row =
        r->page_ids + ((size_t)group * (size_t)r->b.n_seqs + (size_t)seq) * (size_t)r->pages_max;

    if (g->kind == CACHE_STATE)
        last = g->n_state_pages - 1;
    for (int i = 0; i <= last; i++)
        row[i] = i >= first ? run_page(r, r->seqs[seq], group, i)
                            : (int32_t)((unsigned)(i + seq) * 7919U % (unsigned)s->n_pages);
}

static inline void run_clear(struct run *r)
{
    r->b.n_tokens = r->b.n_seqs = r->b.n_rows = 0;
    r->b.adapters = NULL;
}

/* Add the next n tokens of a sequence to the step; its last one is sampled greedily when it is
 * the sequence's last, or each of them when all is set. */
static inline void run_add(struct run *r, struct run_seq *s, int n, bool all)
{
    struct batch *b = &r->b;
    int seq = b->n_seqs++;

    memcpy(r->token_ids + b->n_tokens, s->tokens + s->n_computed, (size_t)n * sizeof(int32_t));
    r->seq_start[seq] = b->n_tokens;
    r->seq_start[seq + 1] = b->n_tokens + n;
    s->n_computed += n;
    r->kv_len[seq] = s->n_computed;
    r->seqs[seq] = s;
    r->adapters[seq] = s->adapter - 1;
    if (s->adapter > 0)
        r->b.adapters = r->adapters;
    for (int i = 0; i < n; i++) {
        if (!all && (i < n - 1 || s->n_computed < s->n_tokens))
            continue;
        r->rows[b->n_rows++] =
            (struct batch_row){.token_idx = b->n_tokens + i, .sampling = sampling_greedy()};
    }
    b->n_tokens += n;
}

/* Begin and sample the step. */
static inline int run_begin(struct run *r)
{
    int rc;

    for (int g = 0; g < model_shape(r->m)->n_groups; g++) {
        for (int seq = 0; seq < r->b.n_seqs; seq++)
            run_row(r, seq, g);
    }
    rc = model_step_begin(r->m, &r->b);
    return rc == ERR_OK ? model_step_sample(r->m, &r->b) : rc;
}

static inline int run_step(struct run *r)
{
    int rc = run_begin(r);

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
