/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of sequences. The arrays of all sequences are reserved as a few large mappings at start,
 * so that the engine allocates nothing later. MAP_NORESERVE makes that cheap: a mapping for the
 * longest prompt of every sequence takes address space, and memory only for the parts that are
 * used. */
#include "engine/seq.h"

#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/must.h"

#define SEQ_KEEP_TOKENS 16384 /* 64 KiB stay with a pooled sequence; more is given back */

/* Address space without memory; the kernel gives zeroed pages on first use. */
static void *seq_reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    return p;
}

/* The arrays of all sequences: sequence i has the i-th part of each. */
struct seq_arrays {
    int32_t *tokens, *pages, *snapshots, *bad, *asked, *drafts;
    uint32_t *allowed, *stops, *made;
    struct batch_bias *biases;
    struct walk *walks;
    float *rows;
    size_t n_row; /* floats per sequence */
    size_t n_words;
    size_t n_pages; /* int32 per sequence: entries of all its tables */
    size_t n_state_pages;
    size_t n_drafts; /* int32 per sequence: its table of n-grams (draft.h) */
};

/* One mapping per kind of array, not per sequence: the number of mappings of a process is
 * limited. */
static int seq_arrays_reserve(struct seq_arrays *a, size_t n, size_t tokens_cap)
{
    a->tokens = seq_reserve(n * tokens_cap * sizeof *a->tokens);
    a->pages = seq_reserve(n * a->n_pages * sizeof *a->pages);
    a->snapshots = seq_reserve(n * (3 * a->n_state_pages + 1) * sizeof *a->snapshots);
    a->allowed = seq_reserve(n * a->n_words * sizeof *a->allowed);
    a->stops = seq_reserve(n * a->n_words * sizeof *a->stops);
    a->made = seq_reserve(n * a->n_words * sizeof *a->made);
    a->bad = seq_reserve(n * WIRE_BAD_WORDS_MAX * sizeof *a->bad);
    a->biases = seq_reserve(n * BATCH_BIASES_MAX * sizeof *a->biases);
    a->asked = seq_reserve(n * WIRE_ASKED_MAX * sizeof *a->asked);
    a->walks = seq_reserve(n * sizeof *a->walks);
    a->rows = seq_reserve(n * a->n_row * sizeof *a->rows);
    a->drafts = seq_reserve((n * a->n_drafts + 1) * sizeof *a->drafts);
    if (a->tokens == NULL || a->pages == NULL || a->snapshots == NULL || a->allowed == NULL ||
        a->stops == NULL || a->made == NULL || a->bad == NULL || a->biases == NULL ||
        a->asked == NULL || a->walks == NULL || a->drafts == NULL || a->rows == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Cut the arrays into sequences. The loop runs backwards so that the free list gives the sequences
 * out in the order of their addresses: few sequences touch few pages of memory. */
int seq_pool_init(struct seq_pool *p, const struct seq_pool_limits *limits)
{
    int pages_cap = (limits->max_model_len + limits->page_tokens - 1) / limits->page_tokens;
    struct seq_arrays arrays = {.n_words = ((size_t)limits->n_vocab + 31) / 32,
                                .n_row = ((size_t)limits->n_vocab + 1024) / 1024 * 1024, /* 4 KiB */
                                .n_state_pages = (size_t)limits->n_state_pages};

    if (pages_cap < limits->n_state_pages)
        pages_cap = limits->n_state_pages;
    arrays.n_pages = (size_t)limits->n_groups * (size_t)pages_cap;
    *p = (struct seq_pool){.n = limits->n_seqs,
                           .tokens_cap = (limits->max_model_len + 1023) / 1024 * 1024, /* 4 KiB */
                           .pages_cap = pages_cap,
                           .row_cap = (int)arrays.n_row};
    arrays.n_drafts = limits->has_drafts ? 3 * (size_t)p->tokens_cap : 0;
    p->seqs = mem_zalloc_array((size_t)p->n, sizeof *p->seqs);
    if (p->seqs == NULL ||
        seq_arrays_reserve(&arrays, (size_t)p->n, (size_t)p->tokens_cap) != ERR_OK)
        return ERR_NO_MEMORY;
    for (int i = p->n - 1; i >= 0; i--) {
        struct seq *s = &p->seqs[i];
        size_t at = (size_t)i;

        s->tokens = arrays.tokens + at * (size_t)p->tokens_cap;
        for (int group = 0; group < limits->n_groups; group++)
            s->tables[group].pages =
                arrays.pages + at * arrays.n_pages + (size_t)group * (size_t)pages_cap;
        s->taken.pages = arrays.snapshots + at * 3 * arrays.n_state_pages;
        s->newest.pages = s->taken.pages + arrays.n_state_pages;
        s->kept.pages = s->newest.pages + arrays.n_state_pages;
        s->allowed = arrays.allowed + at * arrays.n_words;
        s->stops = arrays.stops + at * arrays.n_words;
        s->made = arrays.made + at * arrays.n_words;
        s->bad = arrays.bad + at * WIRE_BAD_WORDS_MAX;
        s->biases = arrays.biases + at * BATCH_BIASES_MAX;
        s->asked = arrays.asked + at * WIRE_ASKED_MAX;
        s->walk = &arrays.walks[i];
        s->row = arrays.rows + at * arrays.n_row;
        s->draft.heads = arrays.drafts + at * arrays.n_drafts;
        s->draft.before = s->draft.heads + (limits->has_drafts ? 2 * (size_t)p->tokens_cap : 0);
        s->next = p->free;
        p->free = s;
    }
    return ERR_OK;
}

/* The order of the free list keeps recently used sequences in use, whose memory is already
 * there. */
struct seq *seq_claim(struct seq_pool *p)
{
    struct seq *s = p->free;
    struct seq fresh;

    if (s == NULL)
        return NULL;
    /* All fields become zero but the pointers to the sequence's own arrays. */
    p->free = s->next;
    fresh = (struct seq){.tokens = s->tokens,
                         .taken.pages = s->taken.pages,
                         .newest.pages = s->newest.pages,
                         .kept.pages = s->kept.pages,
                         .allowed = s->allowed,
                         .stops = s->stops,
                         .made = s->made,
                         .bad = s->bad,
                         .biases = s->biases,
                         .asked = s->asked,
                         .walk = s->walk,
                         .row = s->row,
                         .draft = {.heads = s->draft.heads, .before = s->draft.before}};
    for (int group = 0; group < CACHE_GROUPS_MAX; group++)
        fresh.tables[group].pages = s->tables[group].pages;
    *s = fresh;
    return s;
}

/* A sequence that still has pages, loads or an automaton would leak them, so that is a bug. */
void seq_release(struct seq_pool *p, struct seq *s)
{
    for (int group = 0; group < CACHE_GROUPS_MAX; group++)
        must(s->tables[group].n == 0);
    must(s->n_loading == 0);
    must(s->automaton == NULL);
    /* A sequence that had a long prompt or a row of logits would keep that memory for all time;
     * after MADV_DONTNEED it reads as zeros and costs nothing. */
    if (s->n_tokens > SEQ_KEEP_TOKENS)
        (void)madvise(s->tokens + SEQ_KEEP_TOKENS,
                      (size_t)(p->tokens_cap - SEQ_KEEP_TOKENS) * sizeof *s->tokens,
                      MADV_DONTNEED); /* advice only */
    if (seq_has_rows(s) || seq_prompt_has_rows(s))
        (void)madvise(s->row, (size_t)p->row_cap * sizeof *s->row, MADV_DONTNEED); /* advice only */
    s->state = SEQ_FREE;
    s->next = p->free;
    p->free = s;
}
