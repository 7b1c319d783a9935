/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-pair encoding (BPE): turns a piece of text into token ids by merging adjacent symbols, with
 * the tables of an image. The tables are shared by threads; struct bpe_work is per call. */
#ifndef QUIRE_TEXT_TOKENIZER_BPE_H
#define QUIRE_TEXT_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "text/tokenizer/image.h"
#include "text/tokenizer/tokenizer.h"

#define BPE_NO_RANK UINT32_MAX

/* Pointers to the tables of an image, which owns them. A mask is the number of slots minus one. */
struct bpe {
    const struct image_facts *facts;
    const struct image_token *tokens;
    const char *text;
    const struct image_piece *pieces;
    size_t pieces_mask;
    const uint32_t *long_pieces;
    size_t long_mask;
    const struct image_merge *merges;
    size_t merges_mask;
    const uint64_t *likely;
    uint64_t likely_mask;                /* number of bits minus one */
    const struct image_pair *byte_pairs; /* byte-level only */
    const uint64_t *joined;
    uint64_t joined_mask; /* number of bits minus one */
};

/* Point bpe at the tables of an image, which must outlive it. */
void bpe_attach(struct bpe *bpe, const struct image_header *image);

/* Scratch memory of one encode call, reused for all its pieces. Start from {0}. */
struct bpe_work {
    struct bpe_symbol *symbols;
    size_t symbols_cap;
    uint64_t *heap;
    size_t heap_cap;
    struct bpe_memo *memos; /* pieces merged before, and where their ids are in the output */
    size_t memos_mask;
    const struct token_list *memos_of;
};

void bpe_work_fini(struct bpe_work *work);

/* Announce a text of about len bytes whose ids all go to `out`. For a long text a memory of merged
 * pieces is allocated. Without memory for it, encoding is slower but works. */
void bpe_work_expect(struct bpe_work *work, size_t len, const struct token_list *out);

/* Append the ids of a piece: bytes of a byte-level model, else characters of valid UTF-8.
 * O(n log n). ERR_NO_MEMORY. */
int bpe_encode(const struct bpe *bpe, struct bpe_work *work, const char *bytes, size_t len,
               struct token_list *out) ERR_CHECKED;

/* Like bpe_encode(), but always by merging, even if the piece is a token itself. */
int bpe_merge(const struct bpe *bpe, struct bpe_work *work, const char *bytes, size_t len,
              struct token_list *out) ERR_CHECKED;

/* The id of the token with exactly these bytes; -1 when there is none. */
int32_t bpe_find(const struct bpe *bpe, const char *bytes, size_t len);

static inline uint64_t bpe_hash(uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u;

    return h ^ h >> 29;
}

/* Bit of IMAGE_LIKELY for a pair. */
static inline uint64_t bpe_likely_bit(uint64_t pair, uint64_t mask)
{
    return bpe_hash(pair) >> 20 & mask;
}

/* Slot of a pair in a table of merges: the slot that holds it, or the free slot for it. */
static inline size_t bpe_slot(const struct image_merge *merges, size_t mask, uint64_t pair)
{
    size_t i = (size_t)bpe_hash(pair) & mask;

    while (merges[i].pair != pair && merges[i].pair != IMAGE_MERGE_FREE)
        i = (i + 1) & mask;
    return i;
}

static inline uint64_t bpe_pair(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Bit of IMAGE_JOINED for two characters that follow each other. */
static inline uint64_t bpe_joined_bit(uint32_t a, uint32_t b, uint64_t mask)
{
    uint64_t h = ((uint64_t)a << 21 | b) * 0x9e3779b97f4a7c15u;

    return (h ^ h >> 31) & mask;
}

#endif
