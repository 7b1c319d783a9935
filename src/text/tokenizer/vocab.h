/* The tokens of a tokenizer while it is built: id to text and back; and GPT-2's alphabet.
 *
 * In a byte-level file the text of a token spells each byte by one character of that alphabet
 * ("Ġ" is the space). */
#ifndef QUIRE_TEXT_TOKENIZER_VOCAB_H
#define QUIRE_TEXT_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

#define VOCAB_IDS_MAX (1 << 22) /* an id above is a lie: the largest vocabularies have 2^18 */

struct vocab_token {
    const char *text; /* borrowed; NULL: the id is unused */
    uint32_t text_len;
    const char *said; /* what it decodes from, when that is not its text; borrowed */
    uint32_t said_len;
    bool in_model; /* of the model's vocabulary, so BPE may yield it */
    bool special;  /* left out by skip_special */
    bool added;    /* described among the added tokens */
};

struct vocab {
    struct vocab_token *tokens; /* by id */
    int n;                      /* highest id + 1 */
    uint32_t *slots;            /* by text: id + 1; 0 is free */
    uint32_t mask;
};

/* Room for ids below n. ERR_LIMIT or ERR_NO_MEMORY. */
int vocab_init(struct vocab *vocab, int64_t n_ids) ERR_CHECKED;
void vocab_fini(struct vocab *vocab);

/* Enter a token; its text is borrowed. ERR_INVALID when the id is out of range, taken, or the text
 * has an id. */
int vocab_add(struct vocab *vocab, int64_t id, const char *text, size_t len,
              bool in_model) ERR_CHECKED;

int32_t vocab_find(const struct vocab *vocab, const char *text, size_t len); /* -1: none */

/* The character of GPT-2's alphabet for a byte, and back (-1 when it is none). */
uint32_t vocab_byte_char(uint8_t byte);
int vocab_char_byte(uint32_t c);

#endif
