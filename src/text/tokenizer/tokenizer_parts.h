/* What a tokenizer is made of, and what it is while it is built; for the tokenizer_*.c files. */
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
    struct image_header *image; /* read only once it is sealed */
    bool mapped;                /* the image is a file's, else this process's memory */
    const struct image_token *tokens;
    const char *text;
    const uint32_t *by_text;
    size_t by_text_mask;
    struct bpe bpe;
    struct normal normal;
    struct pretoken pretoken;
    struct added_set raw;        /* added tokens looked for in the text as it is */
    struct added_set normalized; /* and in the normalized text */
    size_t most_bytes;           /* tokenizer_most_bytes() */
};

/* The files of a model folder that a tokenizer is made of; those that are not there are empty. */
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

/* A tokenizer on its way from JSON to an image. */
struct load {
    struct arena arena; /* JSON trees and texts made of them */
    struct buf merges_txt;
    struct buf ranks;                          /* tiktoken.model */
    const struct json *files[TOKENIZER_FILES]; /* objects; NULL: not there, or no JSON */
    const struct json *vocab_json;             /* object: text to id; NULL with ranks */
    uint32_t n_ranks;                          /* lines of ranks */
    struct vocab vocab;
    struct image_merge *merges; /* hash table of merges_mask + 1 slots; owned */
    size_t merges_mask;
    struct steps_draft rewrites;
    struct normal normal; /* the same, ready */
    struct steps_draft cuts;
    struct decode_draft decode;
    struct load_added_list raw;
    struct load_added_list normalized;
    struct token_list before; /* what add_special puts in front */
    struct token_list after;  /* and behind */
    struct token_list ends;   /* ids that end a text */
    struct image_facts facts;
    struct hash sources;
    char *why;
    size_t why_cap;
};

/* Set the reason of a failure; returns rc. */
int load_fail(struct load *load, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int load_no_memory(struct load *load);

/* tokenizer_vocab.c: what kind of model it is, its vocabulary, its merges. */
int load_model_kind(struct load *load) ERR_CHECKED;
int load_vocab(struct load *load) ERR_CHECKED;
int load_merges(struct load *load) ERR_CHECKED;

/* tokenizer_ranks.c: the same of tiktoken.model; ids below n_ids are wanted by others. */
int load_ranks_kind(struct load *load) ERR_CHECKED;
int load_ranks(struct load *load, int64_t n_ids) ERR_CHECKED;
int load_ranks_merges(struct load *load) ERR_CHECKED;
int load_reserved(struct load *load) ERR_CHECKED;

/* tokenizer_special.c: added tokens, what stands around a text, named tokens. */
int load_specials(struct load *load) ERR_CHECKED;
int load_add_token(struct load *load, const struct json *node, int64_t id, const char *text,
                   size_t len) ERR_CHECKED; /* node: its flags; NULL: it is special */

/* tokenizer_pack.c: the whole as an image; *out is owned by the caller. */
int load_pack(struct load *load, struct image_header **out) ERR_CHECKED;

/* tokenizer_load.c: point a zeroed tokenizer into an image that was checked. */
int tokenizer_attach(struct tokenizer *tokenizer, struct image_header *image, bool mapped,
                     char *why, size_t why_cap) ERR_CHECKED;

#endif
