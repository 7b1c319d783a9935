/* SPDX-License-Identifier: Apache-2.0
 *
 * Merge the adjacent pair of the lowest rank, the leftmost of equals, until no pair has a rank.
 *
 * Short pieces: an array of symbols and a scan for the minimum after each merge; nearly every
 * word is shorter than a cache line. Long ones (a megabyte of one letter): a linked list over
 * the same array and a heap of rank << 32 | place, in which outdated entries are recognised by
 * a rank that no longer holds. */
#include "text/bpe.h"

#include <string.h>

#include "base/mem.h"

#define BPE_FREE  UINT64_MAX
#define BPE_SHORT 48 /* symbols; above it the heap is faster */

struct bpe_symbol {
    int32_t id; /* -1: merged into its left neighbour */
    uint32_t next;
    uint32_t prev;
    uint32_t rank; /* of the pair with the next symbol; short pieces only */
};

void bpe_work_fini(struct bpe_work *w)
{
    mem_free(w->symbols);
    mem_free(w->heap);
    *w = (struct bpe_work){0};
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static size_t pair_hash(uint64_t pair)
{
    pair *= 0x9e3779b97f4a7c15u;
    return (size_t)(pair ^ pair >> 29);
}

static struct bpe_merge *merge_slot(const struct bpe *b, uint64_t pair)
{
    size_t i = pair_hash(pair) & b->mask;

    while (b->merges[i].pair != pair && b->merges[i].pair != BPE_FREE)
        i = (i + 1) & b->mask;
    return &b->merges[i];
}

int bpe_init(struct bpe *b, const struct vocab *vocab, size_t n_merges)
{
    size_t size = 64;
    size_t i;

    *b = (struct bpe){.vocab = vocab, .unk_id = -1};
    while (size < n_merges * 2)
        size *= 2;
    b->merges = mem_zalloc_array(size, sizeof *b->merges);
    if (b->merges == NULL)
        return ERR_NO_MEMORY;
    b->mask = size - 1;
    for (i = 0; i < size; i++)
        b->merges[i].pair = BPE_FREE;
    for (i = 0; i < 256; i++) {
        char byte = (char)i;

        b->byte_ids[i] = vocab_find_bytes(vocab, &byte, 1);
    }
    return ERR_OK;
}

void bpe_fini(struct bpe *b)
{
    mem_free(b->merges);
    b->merges = NULL;
}

int bpe_add(struct bpe *b, const char *left, size_t left_len, const char *right, size_t right_len,
            uint32_t rank)
{
    int32_t l = vocab_find_text(b->vocab, left, left_len);
    int32_t r = vocab_find_text(b->vocab, right, right_len);
    int32_t id = -1;
    char *joined;
    struct bpe_merge *slot;

    if (l < 0 || r < 0)
        return ERR_NOT_FOUND;
    joined = mem_alloc(left_len + right_len);
    if (joined == NULL)
        return ERR_NO_MEMORY;
    memcpy(joined, left, left_len);
    memcpy(joined + left_len, right, right_len);
    id = vocab_find_text(b->vocab, joined, left_len + right_len);
    mem_free(joined);
    if (id < 0)
        return ERR_NOT_FOUND;
    slot = merge_slot(b, pair_of(l, r));
    *slot = (struct bpe_merge){.pair = pair_of(l, r), .rank = rank, .id = id};
    return ERR_OK;
}

static uint32_t rank_of(const struct bpe *b, int32_t left, int32_t right)
{
    const struct bpe_merge *m = merge_slot(b, pair_of(left, right));

    return m->pair == BPE_FREE ? BPE_NO_RANK : m->rank;
}

/* One symbol for each byte; the number of symbols. */
static size_t symbols_of(const struct bpe *b, const char *bytes, size_t len, struct bpe_symbol *s)
{
    bool after_unk = false;
    size_t n = 0;
    size_t i;

    for (i = 0; i < len; i++) {
        int32_t id = b->byte_ids[(unsigned char)bytes[i]];
        bool unk = id < 0;

        if (unk && (b->unk_id < 0 || (b->fuse_unk && after_unk)))
            continue;
        after_unk = unk;
        s[n++].id = unk ? b->unk_id : id;
    }
    return n;
}

static size_t merge_short(const struct bpe *b, struct bpe_symbol *s, size_t n)
{
    size_t i;

    for (i = 0; i + 1 < n; i++)
        s[i].rank = rank_of(b, s[i].id, s[i + 1].id);
    while (n > 1) {
        uint32_t best = BPE_NO_RANK;
        size_t at = 0;

        for (i = 0; i + 1 < n; i++)
            if (s[i].rank < best) {
                best = s[i].rank;
                at = i;
            }
        if (best == BPE_NO_RANK)
            break;
        s[at].id = merge_slot(b, pair_of(s[at].id, s[at + 1].id))->id;
        memmove(&s[at + 1], &s[at + 2], (n - at - 2) * sizeof *s);
        n--;
        if (at + 1 < n)
            s[at].rank = rank_of(b, s[at].id, s[at + 1].id);
        if (at > 0)
            s[at - 1].rank = rank_of(b, s[at - 1].id, s[at].id);
    }
    return n;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t entry)
{
    size_t i = (*n)++;

    while (i > 0 && heap[(i - 1) / 2] > entry) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];
    uint64_t last = heap[--*n];
    size_t i = 0;

    while (2 * i + 1 < *n) {
        size_t child = 2 * i + 1;

        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static void heap_consider(const struct bpe *b, const struct bpe_symbol *s, size_t n, uint32_t at,
                          uint64_t *heap, size_t *n_heap)
{
    uint32_t rank;

    if (s[at].next >= n)
        return;
    rank = rank_of(b, s[at].id, s[s[at].next].id);
    if (rank != BPE_NO_RANK)
        heap_push(heap, n_heap, (uint64_t)rank << 32 | at);
}

/* The heap holds at most n - 1 entries from the start and two for each of n - 1 merges. */
static size_t merge_long(const struct bpe *b, struct bpe_symbol *s, size_t n, uint64_t *heap)
{
    size_t n_heap = 0;
    size_t kept = 0;
    uint32_t i;

    for (i = 0; i < n; i++) {
        s[i].next = i + 1;
        s[i].prev = i == 0 ? UINT32_MAX : i - 1;
    }
    for (i = 0; i < n; i++)
        heap_consider(b, s, n, i, heap, &n_heap);
    while (n_heap > 0) {
        uint64_t top = heap_pop(heap, &n_heap);
        uint32_t at = (uint32_t)top;
        uint32_t next = s[at].next;
        const struct bpe_merge *m;

        if (s[at].id < 0 || next >= n)
            continue;
        m = merge_slot(b, pair_of(s[at].id, s[next].id));
        if (m->pair == BPE_FREE || m->rank != (uint32_t)(top >> 32))
            continue;
        s[at].id = m->id;
        s[at].next = s[next].next;
        s[next].id = -1;
        if (s[at].next < n)
            s[s[at].next].prev = at;
        heap_consider(b, s, n, at, heap, &n_heap);
        if (s[at].prev != UINT32_MAX)
            heap_consider(b, s, n, s[at].prev, heap, &n_heap);
    }
    for (i = 0; i < n; i = s[i].next)
        s[kept++].id = s[i].id;
    return kept;
}

static int work_reserve(struct bpe_work *w, size_t n)
{
    void *grown;

    if (n > UINT32_MAX / 4)
        return ERR_NO_MEMORY;
    if (n > w->symbols_cap) {
        size_t cap = n < 256 ? 256 : n * 2;

        grown = mem_realloc(w->symbols, cap * sizeof *w->symbols);
        if (grown == NULL)
            return ERR_NO_MEMORY;
        w->symbols = grown;
        w->symbols_cap = cap;
    }
    if (n > BPE_SHORT && n * 3 > w->heap_cap) {
        grown = mem_realloc(w->heap, n * 3 * sizeof *w->heap);
        if (grown == NULL)
            return ERR_NO_MEMORY;
        w->heap = grown;
        w->heap_cap = n * 3;
    }
    return ERR_OK;
}

int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *bytes, size_t len,
               struct token_list *out)
{
    int32_t whole = vocab_find_bytes(b->vocab, bytes, len);
    size_t n;
    size_t i;
    int rc;

    if (whole >= 0 && (b->ignore_merges || b->vocab->tokens[whole].whole))
        return token_list_add(out, whole);
    rc = work_reserve(w, len);
    if (rc != ERR_OK)
        return rc;
    n = symbols_of(b, bytes, len, w->symbols);
    if (n <= BPE_SHORT)
        n = merge_short(b, w->symbols, n);
    else
        n = merge_long(b, w->symbols, n, w->heap);
    for (i = 0; i < n; i++) {
        rc = token_list_add(out, w->symbols[i].id);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

int bpe_mark_whole(struct bpe *b, struct vocab *v)
{
    struct token_list ids = {0};
    struct bpe_work work = {0};
    bool ignore_merges = b->ignore_merges;
    int rc = ERR_OK;
    int id;

    b->ignore_merges = false; /* this is about what the merges do */
    for (id = 0; id < v->n && rc == ERR_OK; id++) {
        struct vocab_token *t = &v->tokens[id];

        if (!t->in_model || !t->spelled || t->bytes_len == 0)
            continue;
        ids.len = 0;
        rc = bpe_encode(b, &work, t->bytes, t->bytes_len, &ids);
        t->whole = ids.len == 1 && ids.ids[0] == id;
    }
    b->ignore_merges = ignore_merges;
    token_list_fini(&ids);
    bpe_work_fini(&work);
    return rc;
}
