/* SPDX-License-Identifier: Apache-2.0
 *
 * The vocabulary of a tokenizer while it is built from its files: token ids to texts and back; and
 * GPT-2's byte alphabet.
 *
 * In a byte-level file the text of a token spells each byte by one printable character of that
 * alphabet, for example the space by U+0120. */
#ifndef QUIRE_TEXT_TOKENIZER_VOCAB_H
#define QUIRE_TEXT_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

#define VOCAB_IDS_MAX (1 << 22) /* larger ids are damage: the largest vocabularies have 2^18 */

struct vocab_token {
    const char *text; /* borrowed; NULL: the id is unused */
    uint32_t text_len;
    const char *said; /* text it decodes from, when that differs from `text`; borrowed */
    uint32_t said_len;
    bool in_model; /* in the model's vocabulary, so BPE may produce it */
    bool special;  /* omitted by skip_special */
    bool added;    /* listed among the added tokens */
};

struct vocab {
    struct vocab_token *tokens; /* by id */
    int n;                      /* highest id + 1 */
    uint32_t *slots;            /* hash table by text: id + 1; 0 is free */
    uint32_t mask;
};

/* Allocate room for the ids 0 .. n_ids - 1. ERR_LIMIT or ERR_NO_MEMORY. */
int vocab_init(struct vocab *vocab, int64_t n_ids) ERR_CHECKED;
void vocab_fini(struct vocab *vocab);

/* Add a token; its text is borrowed. ERR_INVALID when the id is out of range or used, or when the
 * text already has an id. */
int vocab_add(struct vocab *vocab, int64_t id, const char *text, size_t len,
              bool in_model) ERR_CHECKED;

/* The id of a text; -1 when it has none. */
int32_t vocab_find(const struct vocab *vocab, const char *text, size_t len);

/* The character of GPT-2's alphabet for a byte, and the reverse (-1: not in the alphabet). */
uint32_t vocab_byte_char(uint8_t byte);
int vocab_char_byte(uint32_t c);

#endif
