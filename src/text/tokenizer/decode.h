/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoders: which bytes a token decodes to, and how the bytes of many tokens become a text. */
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

/* A decoder as read from JSON: changes to each token's own text (here), then changes to the whole
 * text (the IMAGE_DECODE_ flags and the strip_ fields of struct image_facts). */
struct decode_draft {
    uint32_t flags;
    uint32_t drop_char;
    uint32_t strip_char;
    uint32_t strip_n;
    int n_replaces;
    const struct json *patterns[DECODE_REPLACES_MAX]; /* strings of the JSON tree; borrowed */
    const struct json *contents[DECODE_REPLACES_MAX];
};

/* Read the decoder of a tokenizer.json. ERR_UNSUPPORTED, with the element in why. */
int decode_read(struct decode_draft *out, const struct json *node, char *why,
                size_t why_cap) ERR_CHECKED;

/* Append the bytes that a token's text decodes to. *is_byte is set when it is one byte of a
 * character (byte fallback). */
void decode_token(const struct decode_draft *draft, const char *text, size_t len, struct buf *out,
                  bool *is_byte);

/* Append the bytes of the first token of a text, which loses its drop_char (IMAGE_DECODE_DROP). */
void decode_first(const struct image_facts *facts, const char *text, size_t len, struct buf *out);

/* Append the text of a complete run of byte tokens: its characters, or one U+FFFD per byte. */
void decode_run(const char *bytes, size_t len, struct buf *out);

/* The number of bytes of strip_char at the start of text, at most n characters. *taken gets the
 * number of characters. */
size_t decode_strip(const struct image_facts *facts, uint32_t n, const char *text, size_t len,
                    uint32_t *taken);

/* Append text, with U+FFFD for invalid UTF-8: one per maximal subpart, as Unicode recommends. */
void decode_lossy(const char *text, size_t len, struct buf *out);

#endif
