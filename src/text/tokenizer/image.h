/* SPDX-License-Identifier: Apache-2.0
 *
 * The image of a tokenizer: all its tables in one run of bytes without pointers.
 *
 * A tokenizer is built once from its JSON files into an image and then uses the image in place, so
 * that an image in a file serves every process that maps it. The contents of a file are trusted
 * only after image_check(): code that reads a checked image never leaves it, whatever the tables
 * contain. Numbers are in the machine's own format; other machines have another layout digest. */
#ifndef QUIRE_TEXT_TOKENIZER_IMAGE_H
#define QUIRE_TEXT_TOKENIZER_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"

#define IMAGE_VERSION   1 /* raise it when the same files must give a different image */
#define IMAGE_BYTES_MAX ((size_t)1 << 30)
#define IMAGE_PIECE_LEN 15 /* length of the longest piece that is stored inside its table */

/* The tables: SECTION(name, type of an element). */
#define IMAGE_TABLES(SECTION)                                                            \
    SECTION(TEXT, char)                    /* all texts */                               \
    SECTION(TOKENS, struct image_token)    /* by id */                                   \
    SECTION(BY_TEXT, uint32_t)             /* hash table of id + 1, 0 is free */         \
    SECTION(PIECES, struct image_piece)    /* hash table of short pieces */              \
    SECTION(LONG_PIECES, uint32_t)         /* hash table of id + 1 of the others */      \
    SECTION(MERGES, struct image_merge)    /* hash table */                              \
    SECTION(LIKELY, uint64_t)              /* bits: pairs that may have a merge */       \
    SECTION(BYTE_PAIRS, struct image_pair) /* merges of two bytes; byte-level only */    \
    SECTION(JOINED, uint64_t)              /* bits: adjacent characters of some token */ \
    SECTION(RAW, struct image_added)       /* added tokens of the raw text, sorted */    \
    SECTION(NORMAL, struct image_added)    /* added tokens of the normalized text */     \
    SECTION(REWRITES, struct image_step)   /* the normalizer */                          \
    SECTION(CUTS, struct image_step)       /* the pre-tokenizer */                       \
    SECTION(BEFORE, int32_t)               /* ids added before a text */                 \
    SECTION(AFTER, int32_t)                /* ids added after a text */                  \
    SECTION(SPECIAL, int32_t)              /* special ids, ascending */                  \
    SECTION(ENDS, int32_t)                 /* ids that end a text, ascending */

enum image_section {
#define SECTION(name, type) IMAGE_##name,
    IMAGE_TABLES(SECTION)
#undef SECTION
        IMAGE_SECTIONS
};

struct image_text { /* a run of bytes of IMAGE_TEXT */
    uint32_t at;
    uint32_t len;
};

enum image_token_flag {
    TOKEN_USED = 1,     /* the id has a token */
    TOKEN_IN_MODEL = 2, /* in the model's vocabulary, so BPE may produce it */
    TOKEN_SPECIAL = 4,  /* marked as special in the files */
    TOKEN_WHOLE = 8,    /* BPE of its piece gives this token alone */
    TOKEN_SKIPPED = 32, /* omitted by skip_special: nearly all special tokens */
    TOKEN_BYTE = 16,    /* is one byte of a character (byte fallback) */
};

struct image_token {
    struct image_text text;  /* as written in the file */
    struct image_text bytes; /* the bytes it decodes to */
    struct image_text piece; /* the input from which BPE makes it; only with TOKEN_IN_MODEL */
    uint32_t flags;
};

/* A piece of up to 15 bytes; the last byte of the key is its length. */
struct image_piece {
    uint64_t key[2];
    int32_t id; /* -1: free */
    uint32_t whole;
};

#define IMAGE_MERGE_FREE UINT64_MAX

struct image_merge {
    uint64_t pair; /* left id << 32 | right id, or IMAGE_MERGE_FREE */
    uint32_t rank;
    int32_t id; /* the token that the pair merges into */
};

struct image_pair { /* left byte << 8 | right byte */
    uint32_t rank;  /* UINT32_MAX: no merge */
    int32_t id;
};

enum image_added_flag { ADDED_SINGLE_WORD = 1, ADDED_LSTRIP = 2, ADDED_RSTRIP = 4 };

struct image_added {
    struct image_text text;
    int32_t id;
    uint32_t flags;
};

struct image_step {
    uint32_t kind;
    uint32_t behavior;
    uint32_t invert;
    struct image_text pattern;
    struct image_text by;
};

enum image_flag {
    IMAGE_BYTE_LEVEL = 1,    /* BPE starts from bytes, else from characters */
    IMAGE_IGNORE_MERGES = 2, /* a piece that is a token is encoded as this token */
    IMAGE_FUSE_UNK = 4,      /* a run of unknown symbols is one unknown token */
    IMAGE_BYTE_FALLBACK = 8, /* unknown characters become the tokens of their bytes */
    IMAGE_APART = 16,        /* a text may be cut between characters that no token joins */
    IMAGE_DECODE_BYTES = 32, /* tokens are bytes; invalid UTF-8 is replaced at the end */
    IMAGE_DECODE_RUNS = 64,  /* a run of TOKEN_BYTE is characters, or one U+FFFD per byte */
    IMAGE_DECODE_DROP = 128, /* the first token of a text loses its drop_char */
    IMAGE_FLAGS_ALL = 255,
};

/* Everything that is not a table. */
struct image_facts {
    uint32_t flags;
    int32_t bos; /* -1: none, and so on */
    int32_t eos;
    int32_t pad;
    int32_t unk;
    uint32_t drop_char;     /* of IMAGE_DECODE_DROP */
    uint32_t strip_char;    /* at the start of a decoded text up to strip_n of these */
    uint32_t strip_n;       /* are dropped */
    int32_t byte_ids[256];  /* byte-level: tokens of single bytes; else of <0x00> ..; -1: none */
    int32_t ascii_ids[128]; /* character-level: tokens of ASCII characters; -1: none */
};

/* Does every byte have a token? */
static inline bool image_has_all_bytes(const struct image_facts *facts)
{
    int b;

    for (b = 0; b < 256; b++)
        if (facts->byte_ids[b] < 0)
            return false;
    return true;
}

struct image_table {
    uint64_t at; /* bytes from the image's start */
    uint64_t n;  /* elements */
};

struct image_header {
    char magic[8];
    uint64_t checksum;   /* XXH3 of all bytes after this field */
    uint64_t layout;     /* digest of the structures in this header */
    uint64_t bytes;      /* length of the image */
    struct hash sources; /* of the files it was built from */
    struct image_table tables[IMAGE_SECTIONS];
    struct image_facts facts;
};

struct image_part { /* the contents of one table, for image_build() */
    const void *items;
    size_t n;
};

/* Lay out the tables in one allocation, *out, which mem_free() frees. image_seal() sets the
 * checksum after the last change. ERR_LIMIT, ERR_NO_MEMORY. */
int image_build(struct image_header **out, const struct image_facts *facts,
                const struct image_part parts[IMAGE_SECTIONS],
                const struct hash *sources) ERR_CHECKED;
void image_seal(struct image_header *image);

/* Check that bytes[0 .. len) are an image of these sources, undamaged, and that its offsets, ids
 * and tables satisfy everything that their readers rely on. ERR_CORRUPT or ERR_VERSION (another
 * layout or other sources), with the reason in *why, a static text. About 2 ms for 20 MB. */
int image_check(const void *bytes, size_t len, const struct hash *sources,
                const char **why) ERR_CHECKED;

/* Check the tables only, without checksum and sources, for an image that this process has built. */
int image_check_tables(const struct image_header *image, const char **why) ERR_CHECKED;

static inline const void *image_table(const struct image_header *image, enum image_section section)
{
    return (const char *)image + image->tables[section].at;
}

/* Like image_table(), but writable, while the image is being built. */
static inline void *image_table_open(struct image_header *image, enum image_section section)
{
    return (char *)image + image->tables[section].at;
}

static inline size_t image_count(const struct image_header *image, enum image_section section)
{
    return (size_t)image->tables[section].n;
}

#endif
