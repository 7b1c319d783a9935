/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/seq.h"

#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/must.h"

#define SEQ_KEEP_TOKENS 16384 /* 64 KiB stay with a pooled sequence; more is given back */

static void *seq_reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

int seq_pool_init(struct seq_pool *p, int n, int max_model_len, int block_tokens, int n_vocab)
{
    size_t n_words = ((size_t)n_vocab + 31) / 32;
    int pages_cap = (max_model_len + block_tokens - 1) / block_tokens;
    int tokens_cap = (max_model_len + 1023) / 1024 * 1024; /* whole 4 KiB pages */
    int32_t *tokens = seq_reserve((size_t)n * (size_t)tokens_cap * sizeof *tokens);
    int32_t *pages = seq_reserve((size_t)n * (size_t)pages_cap * sizeof *pages);
    uint32_t *allowed = seq_reserve((size_t)n * n_words * sizeof *allowed);
    uint32_t *made = seq_reserve((size_t)n * n_words * sizeof *made);
    int32_t *bad = seq_reserve((size_t)n * WIRE_BAD_WORDS_MAX * sizeof *bad);
    struct batch_bias *biases = seq_reserve((size_t)n * BATCH_BIASES_MAX * sizeof *biases);
    int32_t *asked = seq_reserve((size_t)n * WIRE_ASKED_MAX * sizeof *asked);
    struct walk *walks = seq_reserve((size_t)n * sizeof *walks);

    *p = (struct seq_pool){.n = n, .tokens_cap = tokens_cap, .pages_cap = pages_cap};
    p->seqs = mem_zalloc_array((size_t)n, sizeof *p->seqs);
    if (p->seqs == NULL || tokens == NULL || pages == NULL || allowed == NULL || made == NULL ||
        bad == NULL || biases == NULL || asked == NULL || walks == NULL)
        return ERR_NO_MEMORY;
    for (int i = n - 1; i >= 0; i--) {
        struct seq *s = &p->seqs[i];

        s->tokens = tokens + (size_t)i * (size_t)tokens_cap;
        s->pages = pages + (size_t)i * (size_t)pages_cap;
        s->allowed = allowed + (size_t)i * n_words;
        s->made = made + (size_t)i * n_words;
        s->bad = bad + (size_t)i * WIRE_BAD_WORDS_MAX;
        s->biases = biases + (size_t)i * BATCH_BIASES_MAX;
        s->asked = asked + (size_t)i * WIRE_ASKED_MAX;
        s->walk = &walks[i];
        s->next = p->free;
        p->free = s;
    }
    return ERR_OK;
}

struct seq *seq_claim(struct seq_pool *p)
{
    struct seq *s = p->free;

    if (s == NULL)
        return NULL;
    p->free = s->next;
    *s = (struct seq){.tokens = s->tokens,
                      .pages = s->pages,
                      .allowed = s->allowed,
                      .made = s->made,
                      .bad = s->bad,
                      .biases = s->biases,
                      .asked = s->asked,
                      .walk = s->walk};
    return s;
}

void seq_release(struct seq_pool *p, struct seq *s)
{
    must(s->n_pages == 0);
    must(s->n_loading == 0);
    must(s->automaton == NULL);
    if (s->n_tokens > SEQ_KEEP_TOKENS)
        (void)madvise(s->tokens + SEQ_KEEP_TOKENS,
                      (size_t)(p->tokens_cap - SEQ_KEEP_TOKENS) * sizeof *s->tokens,
                      MADV_DONTNEED); /* advice only */
    s->state = SEQ_FREE;
    s->next = p->free;
    p->free = s;
}
