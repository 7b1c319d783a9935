/* Decoders: what bytes a token stands for, and how those of many become a text. */
#ifndef QUIRE_TEXT_TOKENIZER_DECODE_H
#define QUIRE_TEXT_TOKENIZER_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "text/tokenizer/image.h"

#define DECODE_REPLACES_MAX 4

/* A decoder as it is read: changes of each token's own text, then what is done to them together
 * (the IMAGE_DECODE_ flags and strip_ fields of image_facts). */
struct decode_draft {
    uint32_t flags;
    uint32_t drop_char;
    uint32_t strip_char;
    uint32_t strip_n;
    int n_replaces;
    const struct json *patterns[DECODE_REPLACES_MAX]; /* texts of the JSON tree */
    const struct json *contents[DECODE_REPLACES_MAX];
};

/* Read the decoder of a tokenizer.json. ERR_UNSUPPORTED names what is not known. */
int decode_read(struct decode_draft *out, const struct json *node, char *why,
                size_t why_cap) ERR_CHECKED;

/* Append the bytes that a token's text stands for. *is_byte out: it is a byte of a character
 * (byte fallback). */
void decode_token(const struct decode_draft *draft, const char *text, size_t len, struct buf *out,
                  bool *is_byte);

/* Append the bytes of the first token of a text whose drop_char vanishes (IMAGE_DECODE_DROP). */
void decode_first(const struct image_facts *facts, const char *text, size_t len, struct buf *out);

/* Append what a whole run of byte tokens decodes to: its characters, or one U+FFFD a byte. */
void decode_run(const char *bytes, size_t len, struct buf *out);

/* Bytes of strip_char at the start of text, of at most n characters; *taken characters out. */
size_t decode_strip(const struct image_facts *facts, uint32_t n, const char *text, size_t len,
                    uint32_t *taken);

/* Append text with U+FFFD for what is not UTF-8, one for each maximal subpart. */
void decode_lossy(const char *text, size_t len, struct buf *out);

#endif
