/* SPDX-License-Identifier: Apache-2.0
 *
 * The algorithm: of all adjacent pairs that have a merge, replace the one of the lowest rank, the
 * leftmost among equals, and repeat until no pair has a merge.
 *
 * Most words are one token, so the whole piece is looked up first. A short piece is an array of
 * symbols that is scanned for the lowest rank after each merge: it fits into a few cache lines. A
 * long piece (a megabyte of one letter) is a linked list over the same array and a heap of
 * rank << 32 | position; an entry that a later merge has outdated is recognised when it is popped,
 * because its rank is no longer that of the pair.
 *
 * Models that start from characters have no pre-tokenizer: the whole text is one piece. It is cut
 * between characters that are adjacent in no token (IMAGE_JOINED). No merge spans such a place, so
 * the parts encode independently. */
#include "text/tokenizer/bpe.h"

#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/utf8.h"
#include "text/tokenizer/pieces.h"

#define BPE_SHORT   48   /* symbols; for more, the heap is faster */
#define MEMO_BYTES  4096 /* shorter texts repeat too few pieces */
#define MEMOS_MAX   8192 /* 256 KiB, which fits the second-level cache beside the tables */
#define SYMBOLS_MAX (UINT32_MAX / 4)

/* A symbol is a token that may still be merged with its neighbours. */
struct bpe_symbol {
    int32_t id; /* -1: merged into its left neighbour */
    uint32_t next;
    union {
        uint32_t prev; /* long pieces */
        int32_t to;    /* short pieces: the id that the pair with the next symbol merges into */
    };
    uint32_t rank; /* of that pair; short pieces only */
};

/* A piece that was merged earlier in this call: its ids are output->ids[at .. at + n). */
struct bpe_memo {
    struct piece_key key;
    size_t at;
    uint32_t n;
};

/* All tables have a power of two of slots, so a mask replaces the remainder. likely and joined are
 * sets of bits in words of 64. */
void bpe_attach(struct bpe *bpe, const struct image_header *image)
{
    must(image_count(image, IMAGE_PIECES) > 0 && image_count(image, IMAGE_LONG_PIECES) > 0);
    must(image_count(image, IMAGE_MERGES) > 0 && image_count(image, IMAGE_LIKELY) > 0);
    *bpe = (struct bpe){
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

void bpe_work_fini(struct bpe_work *work)
{
    mem_free(work->symbols);
    mem_free(work->heap);
    mem_free(work->memos);
    *work = (struct bpe_work){0};
}

void bpe_work_expect(struct bpe_work *work, size_t len, const struct token_list *out)
{
    size_t n = 256;

    must(out != NULL);
    if (len < MEMO_BYTES || work->memos != NULL)
        return;
    /* A slot per 32 bytes of text is enough, because most pieces of a long text are repeats. */
    while (n < MEMOS_MAX && n < len / 32)
        n *= 2;
    work->memos = mem_zalloc_array(n, sizeof *work->memos);
    work->memos_mask = n - 1;
    work->memos_of = out;
}

/* --- one token ---------------------------------------------------------------------------------*/

/* Pieces longer than IMAGE_PIECE_LEN are compared with their token's text. */
static int32_t bpe_find_long(const struct bpe *bpe, const char *bytes, size_t len)
{
    size_t i = (size_t)hash_xxh3(bytes, len) & bpe->long_mask;

    for (; bpe->long_pieces[i] != 0; i = (i + 1) & bpe->long_mask) {
        const struct image_text *piece = &bpe->tokens[bpe->long_pieces[i] - 1].piece;

        if (piece->len == len && memcmp(bpe->text + piece->at, bytes, len) == 0)
            return (int32_t)(bpe->long_pieces[i] - 1);
    }
    return -1;
}

int32_t bpe_find(const struct bpe *bpe, const char *bytes, size_t len)
{
    if (len == 0)
        return -1;
    if (len > IMAGE_PIECE_LEN)
        return bpe_find_long(bpe, bytes, len);
    return piece_slot(bpe->pieces, bpe->pieces_mask, piece_key(bytes, len))->id;
}

/* --- symbols -----------------------------------------------------------------------------------*/

/* Byte-level models: one symbol per byte. A byte without a token becomes the unknown token, or is
 * dropped when the model has none. Returns the number of symbols. */
static size_t bpe_symbols_of_bytes(const struct bpe *bpe, const char *bytes, size_t len,
                                   struct bpe_symbol *symbols)
{
    int32_t unk = bpe->facts->unk;
    bool fuse = (bpe->facts->flags & IMAGE_FUSE_UNK) != 0;
    bool after_unk = false;
    size_t n = 0;
    size_t i;

    for (i = 0; i < len; i++) {
        int32_t id = bpe->facts->byte_ids[(unsigned char)bytes[i]];
        bool is_unk = id < 0;

        /* With IMAGE_FUSE_UNK a run of unknown bytes is one unknown token. */
        if (is_unk && (unk < 0 || (fuse && after_unk)))
            continue;
        after_unk = is_unk;
        symbols[n++].id = is_unk ? unk : id;
    }
    return n;
}

/* Byte fallback: the tokens of a character's bytes. Returns 0 unless every byte has a token. */
static size_t bpe_fall_back(const struct bpe *bpe, const char *bytes, size_t len,
                            struct bpe_symbol *symbols)
{
    size_t i;

    if ((bpe->facts->flags & IMAGE_BYTE_FALLBACK) == 0)
        return 0;
    for (i = 0; i < len; i++) {
        symbols[i].id = bpe->facts->byte_ids[(unsigned char)bytes[i]];
        if (symbols[i].id < 0)
            return 0;
    }
    return len;
}

/* Character-level models: one symbol per character. An unknown character is first only noted
 * (`waits`), because with IMAGE_FUSE_UNK a run of them is one unknown token. It is written before
 * the next known character, hence after the bytes of a character that fell back in between; Hugging
 * Face does the same. */
static size_t bpe_symbols_of_chars(const struct bpe *bpe, const char *text, size_t len,
                                   struct bpe_symbol *symbols)
{
    bool fuse = (bpe->facts->flags & IMAGE_FUSE_UNK) != 0;
    bool waits = false;
    size_t n = 0;
    size_t i = 0;

    while (i < len) {
        /* ASCII has a table of ids, because it is most of all text; other characters are looked
         * up by their bytes. */
        unsigned char c = (unsigned char)text[i];
        size_t n_bytes = c < 0x80 ? 1 : utf8_sequence(text + i, len - i);
        int32_t id = c < 0x80 ? bpe->facts->ascii_ids[c] : bpe_find(bpe, text + i, n_bytes);
        size_t n_fallen;

        /* A character without a token is spelled by the tokens of its bytes, if the model has them:
         * <0xE2><0x96><0x81>. Otherwise it is unknown. */
        if (id >= 0) {
            if (waits)
                symbols[n++].id = bpe->facts->unk;
            waits = false;
            symbols[n++].id = id;
        } else if ((n_fallen = bpe_fall_back(bpe, text + i, n_bytes, symbols + n)) > 0) {
            n += n_fallen;
        } else if (bpe->facts->unk >= 0) {
            if (waits && !fuse)
                symbols[n++].id = bpe->facts->unk;
            waits = true;
        }
        i += n_bytes;
    }
    /* An unknown run may be at the end of the text. */
    if (waits)
        symbols[n++].id = bpe->facts->unk;
    return n;
}

/* --- merging -----------------------------------------------------------------------------------*/

/* The merge of a pair; NULL when it has none. Most pairs have none, and for those a table of bits
 * that stays in the cache answers. A set bit may be a collision, so the hash table decides. */
static inline const struct image_merge *bpe_merge_of(const struct bpe *bpe, int32_t left,
                                                     int32_t right)
{
    uint64_t pair = bpe_pair(left, right);
    uint64_t bit = bpe_likely_bit(pair, bpe->likely_mask);
    const struct image_merge *merge;

    if ((bpe->likely[bit / 64] >> bit % 64 & 1) == 0)
        return NULL;
    merge = &bpe->merges[bpe_slot(bpe->merges, bpe->merges_mask, pair)];
    if (merge->pair == IMAGE_MERGE_FREE)
        return NULL;
    return merge;
}

/* Set the rank and the result of the pair that begins at this symbol. */
static inline void bpe_rank_pair(const struct bpe *bpe, struct bpe_symbol *symbols)
{
    const struct image_merge *merge = bpe_merge_of(bpe, symbols[0].id, symbols[1].id);

    if (merge == NULL)
        symbols->rank = BPE_NO_RANK;
    else
        symbols->rank = merge->rank;
    if (merge == NULL)
        symbols->to = -1;
    else
        symbols->to = merge->id;
}

/* Ranks of pairs of single bytes, from a table that is indexed by both bytes. */
static void bpe_rank_bytes(const struct bpe *bpe, struct bpe_symbol *symbols,
                           const unsigned char *bytes, size_t n)
{
    size_t i;

    for (i = 0; i + 1 < n; i++) {
        const struct image_pair *p = &bpe->byte_pairs[(size_t)bytes[i] << 8 | bytes[i + 1]];

        symbols[i].rank = p->rank;
        symbols[i].to = p->id;
    }
}

/* Ranks of all pairs, from the table of merges. */
static void bpe_rank_all(const struct bpe *bpe, struct bpe_symbol *symbols, size_t n)
{
    size_t i;

    for (i = 0; i + 1 < n; i++)
        bpe_rank_pair(bpe, &symbols[i]);
}

/* Merge an array of symbols whose ranks are set. Each merge changes two pairs: that of the new
 * symbol and that of its left neighbour. Returns the number of symbols left. */
static size_t bpe_merge_short(const struct bpe *bpe, struct bpe_symbol *symbols, size_t n)
{
    size_t i;

    while (n > 1) {
        uint32_t best = BPE_NO_RANK;
        size_t at = 0;

        /* The leftmost of equal ranks is merged first, because the comparison is strict. */
        for (i = 0; i + 1 < n; i++)
            if (symbols[i].rank < best) {
                best = symbols[i].rank;
                at = i;
            }
        if (best == BPE_NO_RANK)
            break;
        symbols[at].id = symbols[at].to;
        /* Close the gap by moving: cheaper than links for at most BPE_SHORT symbols. */
        for (i = at + 1; i + 1 < n; i++)
            symbols[i] = symbols[i + 1];
        n--;
        if (at + 1 < n)
            bpe_rank_pair(bpe, &symbols[at]);
        if (at > 0)
            bpe_rank_pair(bpe, &symbols[at - 1]);
    }
    return n;
}

/* A binary heap with the smallest entry first. An entry is rank << 32 | position, so the order is
 * that of BPE: the lowest rank, then the leftmost. */
static void bpe_heap_push(uint64_t *heap, size_t *n, uint64_t entry)
{
    size_t i = (*n)++;

    while (i > 0 && heap[(i - 1) / 2] > entry) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = entry;
}

static uint64_t bpe_heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];
    uint64_t last = heap[--*n];
    size_t i = 0;

    /* Move the hole at the root down to the smaller child until the last item fits into it. */
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

/* Push the pair that begins at symbol `at`, if it has a merge. */
static void bpe_heap_consider(const struct bpe *bpe, const struct bpe_symbol *symbols, size_t n,
                              uint32_t at, uint64_t *heap, size_t *n_heap)
{
    const struct image_merge *merge;

    if (symbols[at].next >= n)
        return;
    merge = bpe_merge_of(bpe, symbols[at].id, symbols[symbols[at].next].id);
    if (merge != NULL)
        bpe_heap_push(heap, n_heap, (uint64_t)merge->rank << 32 | at);
}

/* Merge a linked list of symbols. The heap never holds more than 2n entries: n - 1 at the start,
 * and each of at most n - 1 merges pops one and pushes two. */
static size_t bpe_merge_long(const struct bpe *bpe, struct bpe_symbol *symbols, size_t n,
                             uint64_t *heap)
{
    size_t n_heap = 0;
    size_t kept = 0;
    uint32_t i;

    for (i = 0; i < n; i++) {
        symbols[i].next = i + 1;
        if (i == 0)
            symbols[i].prev = UINT32_MAX;
        else
            symbols[i].prev = i - 1;
    }
    for (i = 0; i < n; i++)
        bpe_heap_consider(bpe, symbols, n, i, heap, &n_heap);
    while (n_heap > 0) {
        uint64_t top = bpe_heap_pop(heap, &n_heap);
        uint32_t at = (uint32_t)top;
        uint32_t next = symbols[at].next;
        const struct image_merge *merge;

        /* Outdated entries: the symbol was merged into its neighbour, or its pair changed. */
        if (symbols[at].id < 0 || next >= n)
            continue;
        merge = bpe_merge_of(bpe, symbols[at].id, symbols[next].id);
        if (merge == NULL || merge->rank != (uint32_t)(top >> 32))
            continue;
        symbols[at].id = merge->id;
        symbols[at].next = symbols[next].next;
        symbols[next].id = -1;
        if (symbols[at].next < n)
            symbols[symbols[at].next].prev = at;
        bpe_heap_consider(bpe, symbols, n, at, heap, &n_heap);
        if (symbols[at].prev != UINT32_MAX)
            bpe_heap_consider(bpe, symbols, n, symbols[at].prev, heap, &n_heap);
    }
    for (i = 0; i < n; i = symbols[i].next)
        symbols[kept++].id = symbols[i].id;
    return kept;
}

static int bpe_symbols_reserve(struct bpe_work *work, size_t n)
{
    struct bpe_symbol *grown;
    /* At least 256, and an eighth more than needed: texts that grow a little, such as a chat, do
     * not allocate each time. */
    size_t cap = n < 256 ? 256 : n + n / 8;

    if (n <= work->symbols_cap)
        return ERR_OK;
    if (n > SYMBOLS_MAX)
        return ERR_NO_MEMORY;
    grown = mem_realloc(work->symbols, cap * sizeof *grown);
    if (grown == NULL)
        return ERR_NO_MEMORY;
    work->symbols = grown;
    work->symbols_cap = cap;
    return ERR_OK;
}

static int bpe_heap_reserve(struct bpe_work *work, size_t n)
{
    uint64_t *grown;

    if (n * 2 <= work->heap_cap)
        return ERR_OK;
    grown = mem_realloc(work->heap, n * 2 * sizeof *grown);
    if (grown == NULL)
        return ERR_NO_MEMORY;
    work->heap = grown;
    work->heap_cap = n * 2;
    return ERR_OK;
}

int bpe_merge(const struct bpe *bpe, struct bpe_work *work, const char *bytes, size_t len,
              struct token_list *out)
{
    int rc = bpe_symbols_reserve(work, len + 1);
    size_t n;
    size_t i;

    if (rc != ERR_OK)
        return rc;
    if ((bpe->facts->flags & IMAGE_BYTE_LEVEL) != 0)
        n = bpe_symbols_of_bytes(bpe, bytes, len, work->symbols);
    else
        n = bpe_symbols_of_chars(bpe, bytes, len, work->symbols);
    /* The search for the lowest rank is linear in short pieces, which are nearly all. The heap
     * bounds the cost of long ones, which a client could otherwise make quadratic. */
    if (n <= BPE_SHORT) {
        /* One symbol per byte means that no byte was unknown, so the byte table applies. */
        if (n == len && (bpe->facts->flags & IMAGE_BYTE_LEVEL) != 0)
            bpe_rank_bytes(bpe, work->symbols, (const unsigned char *)bytes, n);
        else
            bpe_rank_all(bpe, work->symbols, n);
        n = bpe_merge_short(bpe, work->symbols, n);
    } else {
        rc = bpe_heap_reserve(work, n);
        if (rc != ERR_OK)
            return rc;
        n = bpe_merge_long(bpe, work->symbols, n, work->heap);
    }
    rc = token_list_reserve(out, n);
    if (rc != ERR_OK)
        return rc;
    for (i = 0; i < n; i++)
        out->ids[out->len++] = work->symbols[i].id;
    return ERR_OK;
}

/* Merge a short piece, or copy the ids from where it was merged before. A memo that another piece
 * hashes to is replaced. */
static int bpe_merge_again(const struct bpe *bpe, struct bpe_work *work, struct piece_key key,
                           const char *bytes, size_t len, struct token_list *out)
{
    struct bpe_memo *memo;
    size_t from = out->len;
    int rc;

    /* Memos refer to positions in the output, so they are valid only for the output that they
     * were made in. */
    if (work->memos == NULL || work->memos_of != out)
        return bpe_merge(bpe, work, bytes, len, out);
    memo = &work->memos[piece_hash(key) & work->memos_mask];
    /* The key holds all bytes of a short piece, so equal keys are equal pieces and not only
     * equal hashes. */
    if (memo->key.low == key.low && memo->key.high == key.high) {
        /* The room is reserved first, because it may move the ids that are copied. */
        rc = token_list_reserve(out, memo->n);
        if (rc != ERR_OK)
            return rc;
        memcpy(out->ids + from, out->ids + memo->at, memo->n * sizeof *out->ids);
        out->len += memo->n;
        return ERR_OK;
    }
    rc = bpe_merge(bpe, work, bytes, len, out);
    if (rc == ERR_OK)
        *memo = (struct bpe_memo){.key = key, .at = from, .n = (uint32_t)(out->len - from)};
    return rc;
}

/* Encode a piece: by one look-up if it is a token that BPE would produce, else by merging. A token
 * that its own merges do not produce (`whole` is not set) must not be used, unless the model
 * ignores merges. */
static int bpe_encode_part(const struct bpe *bpe, struct bpe_work *work, const char *bytes,
                           size_t len, struct token_list *out)
{
    bool ignore_merges = (bpe->facts->flags & IMAGE_IGNORE_MERGES) != 0;
    int32_t id;

    /* Short pieces, nearly all words, have a table in which the key is compared as two numbers. */
    if (len <= IMAGE_PIECE_LEN) {
        struct piece_key key = piece_key(bytes, len);
        const struct image_piece *piece = piece_slot(bpe->pieces, bpe->pieces_mask, key);

        if (piece->id >= 0 && (ignore_merges || piece->whole != 0))
            return token_list_add(out, piece->id);
        return bpe_merge_again(bpe, work, key, bytes, len, out);
    }
    id = bpe_find_long(bpe, bytes, len);
    if (id >= 0 && (ignore_merges || (bpe->tokens[id].flags & TOKEN_WHOLE) != 0))
        return token_list_add(out, id);
    return bpe_merge(bpe, work, bytes, len, out);
}

/* Decode one character and its length. */
static inline uint32_t bpe_char_at(const char *text, size_t left, size_t *n)
{
    unsigned char c = (unsigned char)text[0];

    if (c < 0x80)
        *n = 1;
    else
        *n = utf8_sequence(text, left);
    if (c < 0x80)
        return c;
    return utf8_decode(text);
}

/* Encode a text of a character-level model, cut where no token joins two adjacent characters. */
static int bpe_encode_apart(const struct bpe *bpe, struct bpe_work *work, const char *text,
                            size_t len, struct token_list *out)
{
    size_t from = 0;
    size_t n;
    uint32_t last = bpe_char_at(text, len, &n);
    size_t i = n;
    int rc = ERR_OK;

    while (i < len && rc == ERR_OK) {
        uint32_t c = bpe_char_at(text + i, len - i, &n);
        /* Bits of several pairs may fall together. Then the text is not cut where it could be,
         * which costs time but changes nothing. */
        uint64_t bit = bpe_joined_bit(last, c, bpe->joined_mask);

        if ((bpe->joined[bit / 64] >> bit % 64 & 1) == 0) {
            rc = bpe_encode_part(bpe, work, text + from, i - from, out);
            from = i;
        }
        last = c;
        i += n;
    }
    if (rc == ERR_OK)
        return bpe_encode_part(bpe, work, text + from, len - from, out);
    return rc;
}

int bpe_encode(const struct bpe *bpe, struct bpe_work *work, const char *bytes, size_t len,
               struct token_list *out)
{
    if (len == 0)
        return ERR_OK;
    if ((bpe->facts->flags & IMAGE_APART) != 0)
        return bpe_encode_apart(bpe, work, bytes, len, out);
    return bpe_encode_part(bpe, work, bytes, len, out);
}
