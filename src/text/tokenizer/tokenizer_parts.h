/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a tokenizer, and its state while it is built; for the tokenizer*.c files only. */
#ifndef QUIRE_TEXT_TOKENIZER_TOKENIZER_PARTS_H
#define QUIRE_TEXT_TOKENIZER_TOKENIZER_PARTS_H

#include "base/buf.h"
#include "base/json.h"
#include "text/tokenizer/added.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/decode.h"
#include "text/tokenizer/image.h"
#include "text/tokenizer/normal.h"
#include "text/tokenizer/pretoken.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocab.h"

struct tokenizer {
    struct image_header *image; /* read only after image_seal() */
    bool mapped;                /* the image is a mapped file, else owned memory */
    const struct image_token *tokens;
    const char *text;
    const uint32_t *by_text;
    size_t by_text_mask;
    struct bpe bpe;
    struct normal normal;
    struct pretoken pretoken;
    struct added_set raw;        /* added tokens that are searched for in the raw text */
    struct added_set normalized; /* added tokens that are searched for in the normalized text */
    size_t most_bytes;           /* tokenizer_most_bytes() */
};

/* The files of a model folder that make a tokenizer; a missing file is treated as empty. */
enum tokenizer_file {
    FILE_TOKENIZER,
    FILE_RANKS,
    FILE_VOCAB,
    FILE_MERGES,
    FILE_CONFIG,
    FILE_SPECIAL,
    FILE_ADDED,
    FILE_GENERATION,
    FILE_MODEL,
    TOKENIZER_FILES
};

extern const char *const tokenizer_file_names[TOKENIZER_FILES];

/* An added token as it is searched for. */
struct load_added {
    const char *text;
    size_t len;
    int32_t id;
    uint32_t flags; /* enum image_added_flag */
};

struct load_added_list {
    struct load_added *items; /* owned */
    size_t n;
    size_t cap;
};

/* A tokenizer that is being built: from JSON to an image. */
struct load {
    struct arena arena; /* JSON trees and texts made of them */
    struct buf merges_txt;
    struct buf ranks;                          /* tiktoken.model */
    const struct json *files[TOKENIZER_FILES]; /* objects; NULL: missing, or not JSON */
    const struct json *vocab_json;             /* object: text to id; NULL with ranks */
    uint32_t n_ranks;                          /* lines of ranks */
    struct vocab vocab;
    struct image_merge *merges; /* hash table of merges_mask + 1 slots; owned */
    size_t merges_mask;
    struct steps_draft rewrites;
    struct normal normal; /* `rewrites`, ready to use */
    struct steps_draft cuts;
    struct decode_draft decode;
    struct load_added_list raw;
    struct load_added_list normalized;
    struct token_list before; /* ids that add_special puts before a text */
    struct token_list after;  /* and after it */
    struct token_list ends;   /* ids that end a text */
    struct image_facts facts;
    struct hash sources;
    char *why;
    size_t why_cap;
};

/* Set the reason of a failure, with printf's formats. Returns rc. */
int load_fail(struct load *load, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int load_no_memory(struct load *load);

/* tokenizer_vocab.c: check the kind of model; read its vocabulary; read its merges. */
int load_model_kind(struct load *load) ERR_CHECKED;
int load_vocab(struct load *load) ERR_CHECKED;
int load_merges(struct load *load) ERR_CHECKED;

/* tokenizer_scores.c: merges from a list of scores by id; null: no merge makes the token. */
int load_scored_merges(struct load *load, const struct json *scores) ERR_CHECKED;

/* tokenizer_ranks.c: the counterparts for tiktoken.model. Room is made for at least n_ids ids,
 * because other files name ids up to n_ids - 1. */
int load_ranks_kind(struct load *load) ERR_CHECKED;
int load_ranks(struct load *load, int64_t n_ids) ERR_CHECKED;
int load_ranks_merges(struct load *load) ERR_CHECKED;
int load_reserved(struct load *load) ERR_CHECKED;

/* tokenizer_special.c: added tokens, tokens around a text, named tokens. */
int load_specials(struct load *load) ERR_CHECKED;

/* Add one added token. node: the object with its flags; NULL: it is special. */
int load_add_token(struct load *load, const struct json *node, int64_t id, const char *text,
                   size_t len) ERR_CHECKED;

/* tokenizer_pack.c: write everything into an image, *out, which the caller owns. */
int load_pack(struct load *load, struct image_header **out) ERR_CHECKED;

/* tokenizer_load.c: make a zeroed tokenizer use an image that was checked. */
int tokenizer_attach(struct tokenizer *tokenizer, struct image_header *image, bool mapped,
                     char *why, size_t why_cap) ERR_CHECKED;

#endif
