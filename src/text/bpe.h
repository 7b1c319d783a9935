/* Byte-pair encoding of one piece of text over a table of ranked merges. */
#ifndef QUIRE_TEXT_BPE_H
#define QUIRE_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

#define BPE_NO_RANK UINT32_MAX

struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id; BPE_FREE marks a free slot */
    uint32_t rank;
    int32_t id; /* what the pair becomes */
};

struct bpe {
    const struct vocab *vocab;
    struct bpe_merge *merges; /* open addressing, at most half full */
    size_t mask;
    int32_t byte_ids[256]; /* -1: the byte has no token */
    int32_t unk_id;        /* for bytes without one; -1: they are left out */
    bool fuse_unk;         /* a run of unknown bytes is one unk_id */
    bool ignore_merges;    /* a piece that is a token needs no merges to become it */
};

/* Memory of one encode call, reused by its pieces. Start from {0}. */
struct bpe_work {
    struct bpe_symbol *symbols;
    size_t symbols_cap;
    uint64_t *heap;
    size_t heap_cap;
};

void bpe_work_fini(struct bpe_work *w);

/* Room for n merges over a filled vocabulary. */
int bpe_init(struct bpe *b, const struct vocab *vocab, size_t n_merges) ERR_CHECKED;
void bpe_fini(struct bpe *b);

/* Enter a merge by the texts of its halves; of a pair entered twice the later rank counts.
 * ERR_NOT_FOUND when one of the three tokens is not in the model's vocabulary. */
int bpe_add(struct bpe *b, const char *left, size_t left_len, const char *right, size_t right_len,
            uint32_t rank) ERR_CHECKED;

/* After the last merge: find out which tokens their bytes encode to, and mark them in v. */
int bpe_mark_whole(struct bpe *b, struct vocab *v) ERR_CHECKED;

/* Append the ids of a piece of bytes. O(n log n). ERR_NO_MEMORY. */
int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *bytes, size_t len,
               struct token_list *out) ERR_CHECKED;

#endif
