/* The image of a tokenizer: all its tables in one run of bytes without pointers.
 *
 * A tokenizer is built once from its JSON files into an image and works on the image alone, so
 * that an image in a file serves every process that maps it. What stands in a file is believed
 * only after image_check(): whoever reads an image that passed it stays inside it, whatever it
 * says. Numbers are the machine's own; another kind of machine sees another layout digest. */
#ifndef QUIRE_TEXT_TOKENIZER_IMAGE_H
#define QUIRE_TEXT_TOKENIZER_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"

#define IMAGE_VERSION   1 /* raised whenever the same files must give another image */
#define IMAGE_BYTES_MAX ((size_t)1 << 30)
#define IMAGE_PIECE_LEN 15 /* longest piece that is kept inside its table */

/* The tables: SECTION(name, type of an element). */
#define IMAGE_TABLES(SECTION)                                                               \
    SECTION(TEXT, char)                    /* all texts */                                  \
    SECTION(TOKENS, struct image_token)    /* by id */                                      \
    SECTION(BY_TEXT, uint32_t)             /* hash table of id + 1, 0 is free */            \
    SECTION(PIECES, struct image_piece)    /* hash table of short pieces */                 \
    SECTION(LONG_PIECES, uint32_t)         /* hash table of id + 1 of the others */         \
    SECTION(MERGES, struct image_merge)    /* hash table */                                 \
    SECTION(LIKELY, uint64_t)              /* bits: pairs that may have a merge */          \
    SECTION(BYTE_PAIRS, struct image_pair) /* merges of two bytes; byte-level only */       \
    SECTION(JOINED, uint64_t)              /* bits: pairs of characters inside of tokens */ \
    SECTION(RAW, struct image_added)       /* added tokens of the text as it is, sorted */  \
    SECTION(NORMAL, struct image_added)    /* and of the normalized text */                 \
    SECTION(REWRITES, struct image_step)   /* the normalizer */                             \
    SECTION(CUTS, struct image_step)       /* the pre-tokenizer */                          \
    SECTION(BEFORE, int32_t)               /* ids in front of a text */                     \
    SECTION(AFTER, int32_t)                /* ids behind it */                              \
    SECTION(SPECIAL, int32_t)              /* special ids, ascending */                     \
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
    TOKEN_IN_MODEL = 2, /* of the model's vocabulary, so BPE may yield it */
    TOKEN_SPECIAL = 4,  /* described as special */
    TOKEN_WHOLE = 8,    /* BPE of its piece yields itself */
    TOKEN_SKIPPED = 32, /* left out by skip_special: nearly all special ones */
    TOKEN_BYTE = 16,    /* stands for one byte of a character (byte fallback) */
};

struct image_token {
    struct image_text text;  /* as the file writes it */
    struct image_text bytes; /* what it stands for */
    struct image_text piece; /* what BPE makes it of; only of TOKEN_IN_MODEL */
    uint32_t flags;
};

/* A piece of up to 15 bytes, its length in the last byte of the key. */
struct image_piece {
    uint64_t key[2];
    int32_t id; /* -1: free */
    uint32_t whole;
};

#define IMAGE_MERGE_FREE UINT64_MAX

struct image_merge {
    uint64_t pair; /* left id << 32 | right id, or IMAGE_MERGE_FREE */
    uint32_t rank;
    int32_t id; /* what the pair becomes */
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
    IMAGE_IGNORE_MERGES = 2, /* a piece that is a token needs no merges to become it */
    IMAGE_FUSE_UNK = 4,      /* a run of unknown symbols is one unknown token */
    IMAGE_BYTE_FALLBACK = 8, /* unknown characters become the tokens of their bytes */
    IMAGE_APART = 16,        /* characters that no token joins may be cut apart */
    IMAGE_DECODE_BYTES = 32, /* tokens are bytes; what is no UTF-8 is replaced at the end */
    IMAGE_DECODE_RUNS = 64,  /* runs of TOKEN_BYTE are characters or one U+FFFD a byte */
    IMAGE_DECODE_DROP = 128, /* the first token loses its drop_char */
    IMAGE_FLAGS_ALL = 255,
};

struct image_facts {
    uint32_t flags;
    int32_t bos; /* -1: none, and so on */
    int32_t eos;
    int32_t pad;
    int32_t unk;
    uint32_t drop_char;     /* of IMAGE_DECODE_DROP */
    uint32_t strip_char;    /* so many of these at the start of a decoded text */
    uint32_t strip_n;       /* are left out */
    int32_t byte_ids[256];  /* byte-level: tokens of single bytes; else of <0x00> ..; -1: none */
    int32_t ascii_ids[128]; /* character-level: tokens of single characters; -1: none */
};

/* Whether every byte has a token. */
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
    uint64_t checksum; /* XXH3 of everything behind this field */
    uint64_t layout;   /* digest of all that this header declares */
    uint64_t bytes;    /* length of the image */
    struct hash sources;
    struct image_table tables[IMAGE_SECTIONS];
    struct image_facts facts;
};

struct image_part { /* what image_build() copies into a table */
    const void *items;
    size_t n;
};

/* Lay the tables out in one allocation, *out, which mem_free() frees. The checksum is missing
 * until image_seal(). ERR_LIMIT, ERR_NO_MEMORY. */
int image_build(struct image_header **out, const struct image_facts *facts,
                const struct image_part parts[IMAGE_SECTIONS],
                const struct hash *sources) ERR_CHECKED;
void image_seal(struct image_header *image);

/* Whether bytes[0 .. len) are an image of these sources that is undamaged and whose offsets, ids
 * and tables hold what their readers rely on. ERR_CORRUPT, ERR_VERSION (another layout or other
 * sources) with the reason in *why, a static text. About 2 ms for 20 MB. */
int image_check(const void *bytes, size_t len, const struct hash *sources,
                const char **why) ERR_CHECKED;

/* The same without the checksum and the sources, for an image that this process has built. */
int image_check_tables(const struct image_header *image, const char **why) ERR_CHECKED;

static inline const void *image_table(const struct image_header *image, enum image_section section)
{
    return (const char *)image + image->tables[section].at;
}

/* The same to write to, while an image is being built. */
static inline void *image_table_open(struct image_header *image, enum image_section section)
{
    return (char *)image + image->tables[section].at;
}

static inline size_t image_count(const struct image_header *image, enum image_section section)
{
    return (size_t)image->tables[section].n;
}

#endif
