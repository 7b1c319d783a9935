/* SPDX-License-Identifier: Apache-2.0
 *
 * Merge the adjacent pair of the lowest rank, the leftmost of equals, until no pair has a rank.
 *
 * First the whole piece is looked up: most words are one token. Short pieces: an array of symbols
 * and a scan for the minimum after each merge; nearly every word is shorter than a cache line.
 * Long ones (a megabyte of one letter): a linked list over the same array and a heap of
 * rank << 32 | place, in which outdated entries are recognised by a rank that no longer holds.
 *
 * Models that start from characters have no pre-tokenizer: the whole text is one piece. It is cut
 * where two characters meet that no merge ever joins (IMAGE_JOINED): no merge reaches over such a
 * place, so the parts encode as they do alone. */
#include "text/tokenizer/bpe.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/pieces.h"

#define BPE_SHORT   48   /* symbols; above it the heap is faster */
#define MEMO_BYTES  4096 /* shorter texts repeat too little */
#define MEMOS_MAX   8192 /* 256 KiB: what the second-level cache holds beside the tables */
#define SYMBOLS_MAX (UINT32_MAX / 4)

struct bpe_symbol {
    int32_t id; /* -1: merged into its left neighbour */
    uint32_t next;
    union {
        uint32_t prev; /* long pieces */
        int32_t to;    /* short pieces: what the pair with the next symbol becomes */
    };
    uint32_t rank; /* of that pair; short pieces only */
};

struct bpe_memo {
    struct piece_key key;
    size_t at; /* the ids in the output */
    uint32_t n;
};

void bpe_attach(struct bpe *b, const struct image_header *image)
{
    *b = (struct bpe){
        .facts = &image->facts,
        .tokens = image_table(image, IMAGE_TOKENS),
        .text = image_table(image, IMAGE_TEXT),
        .pieces = image_table(image, IMAGE_PIECES),
        .pieces_mask = image_count(image, IMAGE_PIECES) - 1,
        .long_pieces = image_table(image, IMAGE_LONG_PIECES),
        .long_mask = image_count(image, IMAGE_LONG_PIECES) - 1,
        .merges = image_table(image, IMAGE_MERGES),
        .merges_mask = image_count(image, IMAGE_MERGES) - 1,
        .likely = image_table(image, IMAGE_LIKELY),
        .likely_mask = image_count(image, IMAGE_LIKELY) * 64 - 1,
        .byte_pairs = image_table(image, IMAGE_BYTE_PAIRS),
        .joined = image_table(image, IMAGE_JOINED),
        .joined_mask = image_count(image, IMAGE_JOINED) * 64 - 1,
    };
}

void bpe_work_fini(struct bpe_work *w)
{
    mem_free(w->symbols);
    mem_free(w->heap);
    mem_free(w->memos);
    *w = (struct bpe_work){0};
}

void bpe_work_expect(struct bpe_work *w, size_t len, const struct token_list *out)
{
    size_t n = 256;

    if (len < MEMO_BYTES || w->memos != NULL)
        return;
    while (n < MEMOS_MAX && n < len / 32)
        n *= 2;
    w->memos = mem_zalloc_array(n, sizeof *w->memos);
    w->memos_mask = n - 1;
    w->memos_of = out;
}

/* --- one token ---------------------------------------------------------------------------------*/

static int32_t find_long(const struct bpe *b, const char *bytes, size_t len)
{
    size_t i = (size_t)hash_xxh3(bytes, len) & b->long_mask;

    for (; b->long_pieces[i] != 0; i = (i + 1) & b->long_mask) {
        const struct image_text *piece = &b->tokens[b->long_pieces[i] - 1].piece;

        if (piece->len == len && memcmp(b->text + piece->at, bytes, len) == 0)
            return (int32_t)(b->long_pieces[i] - 1);
    }
    return -1;
}

int32_t bpe_find(const struct bpe *b, const char *bytes, size_t len)
{
    if (len == 0)
        return -1;
    if (len > IMAGE_PIECE_LEN)
        return find_long(b, bytes, len);
    return piece_slot(b->pieces, b->pieces_mask, piece_key(bytes, len))->id;
}

/* --- symbols -----------------------------------------------------------------------------------*/

/* One symbol for each byte that has one; their number. */
static size_t symbols_of_bytes(const struct bpe *b, const char *bytes, size_t len,
                               struct bpe_symbol *s)
{
    int32_t unk = b->facts->unk;
    bool fuse = (b->facts->flags & IMAGE_FUSE_UNK) != 0;
    bool after_unk = false;
    size_t n = 0;
    size_t i;

    for (i = 0; i < len; i++) {
        int32_t id = b->facts->byte_ids[(unsigned char)bytes[i]];
        bool is_unk = id < 0;

        if (is_unk && (unk < 0 || (fuse && after_unk)))
            continue;
        after_unk = is_unk;
        s[n++].id = is_unk ? unk : id;
    }
    return n;
}

/* The tokens of a character's bytes; 0 unless all of them have one. */
static size_t fall_back(const struct bpe *b, const char *bytes, size_t len, struct bpe_symbol *s)
{
    size_t i;

    if ((b->facts->flags & IMAGE_BYTE_FALLBACK) == 0)
        return 0;
    for (i = 0; i < len; i++) {
        s[i].id = b->facts->byte_ids[(unsigned char)bytes[i]];
        if (s[i].id < 0)
            return 0;
    }
    return len;
}

/* One symbol for each character. An unknown token that waits for its like to join it stays behind
 * bytes that stand for characters, as Hugging Face's does. */
static size_t symbols_of_chars(const struct bpe *b, const char *text, size_t len,
                               struct bpe_symbol *s)
{
    bool fuse = (b->facts->flags & IMAGE_FUSE_UNK) != 0;
    bool waits = false;
    size_t n = 0;
    size_t i = 0;

    while (i < len) {
        unsigned char c = (unsigned char)text[i];
        size_t n_bytes = c < 0x80 ? 1 : utf8_sequence(text + i, len - i);
        int32_t id = c < 0x80 ? b->facts->ascii_ids[c] : bpe_find(b, text + i, n_bytes);
        size_t n_fallen;

        if (id >= 0) {
            if (waits)
                s[n++].id = b->facts->unk;
            waits = false;
            s[n++].id = id;
        } else if ((n_fallen = fall_back(b, text + i, n_bytes, s + n)) > 0) {
            n += n_fallen;
        } else if (b->facts->unk >= 0) {
            if (waits && !fuse)
                s[n++].id = b->facts->unk;
            waits = true;
        }
        i += n_bytes;
    }
    if (waits)
        s[n++].id = b->facts->unk;
    return n;
}

/* --- merging -----------------------------------------------------------------------------------*/

/* The merge of a pair; NULL when it has none. Nearly all pairs that are asked for have none, and a
 * table of bits that stays in the cache says so of most of them. */
static inline const struct image_merge *merge_of(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = bpe_pair(left, right);
    uint64_t bit = bpe_likely_bit(pair, b->likely_mask);
    const struct image_merge *m;

    if ((b->likely[bit / 64] >> bit % 64 & 1) == 0)
        return NULL;
    m = &b->merges[bpe_slot(b->merges, b->merges_mask, pair)];
    return m->pair == IMAGE_MERGE_FREE ? NULL : m;
}

static inline void rank_pair(const struct bpe *b, struct bpe_symbol *s)
{
    const struct image_merge *m = merge_of(b, s[0].id, s[1].id);

    s->rank = m == NULL ? BPE_NO_RANK : m->rank;
    s->to = m == NULL ? -1 : m->id;
}

/* Ranks of the pairs of symbols that are single bytes. */
static void rank_bytes(const struct bpe *b, struct bpe_symbol *s, const unsigned char *bytes,
                       size_t n)
{
    size_t i;

    for (i = 0; i + 1 < n; i++) {
        const struct image_pair *p = &b->byte_pairs[(size_t)bytes[i] << 8 | bytes[i + 1]];

        s[i].rank = p->rank;
        s[i].to = p->id;
    }
}

static void rank_all(const struct bpe *b, struct bpe_symbol *s, size_t n)
{
    size_t i;

    for (i = 0; i + 1 < n; i++)
        rank_pair(b, &s[i]);
}

/* The symbols' ranks are set. */
static size_t merge_short(const struct bpe *b, struct bpe_symbol *s, size_t n)
{
    size_t i;

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
        s[at].id = s[at].to;
        for (i = at + 1; i + 1 < n; i++)
            s[i] = s[i + 1];
        n--;
        if (at + 1 < n)
            rank_pair(b, &s[at]);
        if (at > 0)
            rank_pair(b, &s[at - 1]);
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
    const struct image_merge *m;

    if (s[at].next >= n)
        return;
    m = merge_of(b, s[at].id, s[s[at].next].id);
    if (m != NULL)
        heap_push(heap, n_heap, (uint64_t)m->rank << 32 | at);
}

/* The heap holds n - 1 entries at the start; each of n - 1 merges takes one and adds two. */
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
        const struct image_merge *m;

        if (s[at].id < 0 || next >= n)
            continue;
        m = merge_of(b, s[at].id, s[next].id);
        if (m == NULL || m->rank != (uint32_t)(top >> 32))
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

static int symbols_reserve(struct bpe_work *w, size_t n)
{
    struct bpe_symbol *grown;
    size_t cap = n < 256 ? 256 : n + n / 8;

    if (n <= w->symbols_cap)
        return ERR_OK;
    if (n > SYMBOLS_MAX)
        return ERR_NO_MEMORY;
    grown = mem_realloc(w->symbols, cap * sizeof *grown);
    if (grown == NULL)
        return ERR_NO_MEMORY;
    w->symbols = grown;
    w->symbols_cap = cap;
    return ERR_OK;
}

static int heap_reserve(struct bpe_work *w, size_t n)
{
    uint64_t *grown;

    if (n * 2 <= w->heap_cap)
        return ERR_OK;
    grown = mem_realloc(w->heap, n * 2 * sizeof *grown);
    if (grown == NULL)
        return ERR_NO_MEMORY;
    w->heap = grown;
    w->heap_cap = n * 2;
    return ERR_OK;
}

int bpe_merge(const struct bpe *b, struct bpe_work *w, const char *bytes, size_t len,
              struct token_list *out)
{
    int rc = symbols_reserve(w, len + 1);
    size_t n;
    size_t i;

    if (rc != ERR_OK)
        return rc;
    if ((b->facts->flags & IMAGE_BYTE_LEVEL) != 0)
        n = symbols_of_bytes(b, bytes, len, w->symbols);
    else
        n = symbols_of_chars(b, bytes, len, w->symbols);
    if (n <= BPE_SHORT) {
        /* A symbol a byte: none is unknown. */
        if (n == len && (b->facts->flags & IMAGE_BYTE_LEVEL) != 0)
            rank_bytes(b, w->symbols, (const unsigned char *)bytes, n);
        else
            rank_all(b, w->symbols, n);
        n = merge_short(b, w->symbols, n);
    } else {
        rc = heap_reserve(w, n);
        if (rc != ERR_OK)
            return rc;
        n = merge_long(b, w->symbols, n, w->heap);
    }
    rc = token_list_reserve(out, n);
    if (rc != ERR_OK)
        return rc;
    for (i = 0; i < n; i++)
        out->ids[out->len++] = w->symbols[i].id;
    return ERR_OK;
}

/* Merge a short piece, or copy what came out when it was merged before. */
static int merge_again(const struct bpe *b, struct bpe_work *w, struct piece_key key,
                       const char *bytes, size_t len, struct token_list *out)
{
    struct bpe_memo *memo;
    size_t from = out->len;
    int rc;

    if (w->memos == NULL || w->memos_of != out)
        return bpe_merge(b, w, bytes, len, out);
    memo = &w->memos[piece_hash(key) & w->memos_mask];
    if (memo->key.low == key.low && memo->key.high == key.high) {
        rc = token_list_reserve(out, memo->n);
        if (rc != ERR_OK)
            return rc;
        memcpy(out->ids + from, out->ids + memo->at, memo->n * sizeof *out->ids);
        out->len += memo->n;
        return ERR_OK;
    }
    rc = bpe_merge(b, w, bytes, len, out);
    if (rc == ERR_OK)
        *memo = (struct bpe_memo){.key = key, .at = from, .n = (uint32_t)(out->len - from)};
    return rc;
}

static int encode_part(const struct bpe *b, struct bpe_work *w, const char *bytes, size_t len,
                       struct token_list *out)
{
    bool ignore_merges = (b->facts->flags & IMAGE_IGNORE_MERGES) != 0;
    int32_t id;

    if (len <= IMAGE_PIECE_LEN) {
        struct piece_key key = piece_key(bytes, len);
        const struct image_piece *piece = piece_slot(b->pieces, b->pieces_mask, key);

        if (piece->id >= 0 && (ignore_merges || piece->whole != 0))
            return token_list_add(out, piece->id);
        return merge_again(b, w, key, bytes, len, out);
    }
    id = find_long(b, bytes, len);
    if (id >= 0 && (ignore_merges || (b->tokens[id].flags & TOKEN_WHOLE) != 0))
        return token_list_add(out, id);
    return bpe_merge(b, w, bytes, len, out);
}

static inline uint32_t char_at(const char *text, size_t left, size_t *n)
{
    unsigned char c = (unsigned char)text[0];

    *n = c < 0x80 ? 1 : utf8_sequence(text, left);
    return c < 0x80 ? c : utf8_decode(text);
}

static int encode_apart(const struct bpe *b, struct bpe_work *w, const char *text, size_t len,
                        struct token_list *out)
{
    size_t from = 0;
    size_t n;
    uint32_t last = char_at(text, len, &n);
    size_t i = n;
    int rc = ERR_OK;

    while (i < len && rc == ERR_OK) {
        uint32_t c = char_at(text + i, len - i, &n);
        uint64_t bit = bpe_joined_bit(last, c, b->joined_mask);

        if ((b->joined[bit / 64] >> bit % 64 & 1) == 0) {
            rc = encode_part(b, w, text + from, i - from, out);
            from = i;
        }
        last = c;
        i += n;
    }
    return rc == ERR_OK ? encode_part(b, w, text + from, len - from, out) : rc;
}

int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *bytes, size_t len,
               struct token_list *out)
{
    if (len == 0)
        return ERR_OK;
    if ((b->facts->flags & IMAGE_APART) != 0)
        return encode_apart(b, w, bytes, len, out);
    return encode_part(b, w, bytes, len, out);
}
