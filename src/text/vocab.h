/* The tokens of a tokenizer: id to text and bytes, and back.
 *
 * A token has a text, as its file writes it, and the bytes that it stands for. In a byte-level
 * file the text spells each byte by one character of GPT-2's alphabet ("Ġ" is the space). */
#ifndef QUIRE_TEXT_VOCAB_H
#define QUIRE_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

#define VOCAB_IDS_MAX (1 << 22) /* an id above is a lie: the largest vocabularies have 2^18 */

struct vocab_token {
    const char *text; /* NULL: the id is unused */
    const char *bytes;
    uint32_t text_len;
    uint32_t bytes_len;
    bool spelled;  /* every character of text is of the alphabet */
    bool in_model; /* of the model's vocabulary, so BPE may yield it */
    bool special;  /* left out by skip_special */
    bool whole;    /* BPE of its bytes yields itself */
};

struct vocab_map {
    uint32_t *slots; /* id + 1; 0 is free */
    uint32_t mask;
};

struct vocab {
    struct vocab_token *tokens; /* by id */
    int n;                      /* highest id + 1 */
    struct vocab_map by_text;
    struct vocab_map by_bytes; /* spelled tokens of the model */
    struct arena arena;        /* the texts and bytes */
};

/* Room for ids below n. ERR_LIMIT or ERR_NO_MEMORY. */
int vocab_init(struct vocab *v, int64_t n_ids) ERR_CHECKED;
void vocab_fini(struct vocab *v);

/* Enter a token. ERR_INVALID when the id is out of range, taken, or the text has an id. */
int vocab_add(struct vocab *v, int64_t id, const char *text, size_t len, bool in_model) ERR_CHECKED;

int32_t vocab_find_text(const struct vocab *v, const char *text, size_t len);   /* -1: none */
int32_t vocab_find_bytes(const struct vocab *v, const char *bytes, size_t len); /* -1: none */

/* The character of GPT-2's alphabet for a byte, and back (-1 when it is none). */
uint32_t vocab_byte_char(uint8_t byte);
int vocab_char_byte(uint32_t c);

#endif
