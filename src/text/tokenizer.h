/* The tokenizer: text to token ids and back, equal to Hugging Face's `tokenizers`.
 *
 * Reads tokenizer.json (byte-level BPE) and tokenizer_config.json of a model folder. What it
 * does not know it refuses by name at start, so that a served model never tokenizes wrongly.
 *
 * After tokenizer_open() nothing in it changes: any number of threads use one without locks. */
#ifndef QUIRE_TEXT_TOKENIZER_H
#define QUIRE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct tokenizer;

/* Token ids that grow. Start from {0}. */
struct token_list {
    int32_t *ids;
    size_t len; /* used */
    size_t cap; /* allocated */
};

void token_list_fini(struct token_list *list); /* empty and usable again */

/* Append one id or several. ERR_NO_MEMORY leaves the list as it was. */
int token_list_add(struct token_list *list, int32_t id) ERR_CHECKED;
int token_list_add_all(struct token_list *list, const int32_t *ids, size_t n) ERR_CHECKED;

/* Load the tokenizer of a model folder.
 *
 *   dir   holds tokenizer.json or vocab.json and merges.txt; tokenizer_config.json may be there
 *   why   out on error: the file, the place in it and the reason
 *
 * Returns ERR_OK; ERR_NOT_FOUND when the folder holds no tokenizer; ERR_IO when a file cannot be
 * read; ERR_SYNTAX or ERR_INVALID when it is damaged; ERR_UNSUPPORTED for a kind that quire does
 * not know (why names it); ERR_NO_MEMORY. Takes about a second for 450,000 merges. */
int tokenizer_open(struct tokenizer **out, const char *dir, char *why, size_t why_cap) ERR_CHECKED;
void tokenizer_close(struct tokenizer *t); /* NULL is fine */

/* Append the ids of a text. Added and special tokens that stand in the text become their ids,
 * as Hugging Face does; add_special adds what the model wants around a text (usually BOS): true
 * for plain completions, false after a chat template.
 *
 * Invalid UTF-8 is read as U+FFFD. Returns ERR_OK, ERR_NO_MEMORY, or ERR_LIMIT when a pattern of
 * the model's own ran out of its backtracking bound; on error out is as it was. Time is
 * O(n log n) for every input. Any thread. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool add_special,
                     struct token_list *out) ERR_CHECKED;

/* Highest id + 1. Ids between may be unused. */
int tokenizer_n_vocab(const struct tokenizer *t);

/* The id of a token by its content: an added token as it stands in text, any other as it is
 * written in the file ("Ġhello"). -1 if there is none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len);

/* True for tokens that skip_special leaves out; false for unused and impossible ids. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* The bytes that a token stands for (a part of a character is possible); *len out. NULL and 0
 * for unused and impossible ids. Lives as long as the tokenizer. Constant time. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len);

/* Append the text of n ids, equal to Hugging Face's decode: bytes that form no character become
 * U+FFFD, unknown ids are skipped. Appends only; out->failed says when memory ended. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct buf *out);

/* Tokens that tokenizer_config.json names; -1 where it names none. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
int32_t tokenizer_pad(const struct tokenizer *t);

#endif
