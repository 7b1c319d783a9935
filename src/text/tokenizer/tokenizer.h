/* The tokenizer: text to token ids and back, equal to Hugging Face's `tokenizers`.
 *
 * Reads the BPE models, byte-level and SentencePiece-style, of a model folder: tokenizer.json, or
 * Kimi's tiktoken.model, or vocab.json and merges.txt, with tokenizer_config.json. What it does not
 * know it refuses by name at start, so that a served model never tokenizes wrongly.
 *
 * After tokenizer_open() nothing in it changes: any number of threads use one without locks. */
#ifndef QUIRE_TEXT_TOKENIZER_TOKENIZER_H
#define QUIRE_TEXT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/spans.h"

struct tokenizer;

/* Token ids that grow. Start from {0}. */
struct token_list {
    int32_t *ids;
    size_t len; /* used */
    size_t cap; /* allocated */
};

void token_list_fini(struct token_list *list); /* empty and usable again */

/* Room for n more. ERR_NO_MEMORY leaves the list as it was. */
int token_list_reserve(struct token_list *list, size_t n) ERR_CHECKED;

/* Append one id or several. ERR_NO_MEMORY leaves the list as it was. */
int token_list_add(struct token_list *list, int32_t id) ERR_CHECKED;
int token_list_add_all(struct token_list *list, const int32_t *ids, size_t n) ERR_CHECKED;

/* Load the tokenizer of a model folder.
 *
 *   dir   holds tokenizer.json, tiktoken.model (with a tokenizer_config.json of the class
 *         TikTokenTokenizer), or vocab.json and merges.txt; tokenizer_config.json,
 *         special_tokens_map.json, added_tokens.json, generation_config.json and config.json may
 *         be there
 *   why   out on error: the file, the place in it and the reason
 *
 * Returns ERR_OK; ERR_NOT_FOUND when the folder holds no tokenizer; ERR_IO when a file cannot be
 * read; ERR_SYNTAX or ERR_INVALID when it is damaged; ERR_UNSUPPORTED for a kind that quire does
 * not know (why names it); ERR_LIMIT; ERR_NO_MEMORY. Takes about a second for 450,000 merges. */
int tokenizer_open(struct tokenizer **out, const char *dir, char *why, size_t why_cap) ERR_CHECKED;

struct tokenizer_opening {
    bool mapped;         /* it stands in a file that other processes share */
    bool written;        /* this call wrote that file */
    char cache_why[300]; /* why the file that was there is not used, or none was written; or "" */
};

/* The same with a folder of compiled tokenizers: the image of these very files is mapped read
 * only and shared, which takes milliseconds; a missing, damaged or stale one is built and written
 * for the next. The folder is to be this user's alone. Trouble with it is no error.
 *
 *   cache_dir  "" for none: the tokenizer stands in this process's memory
 *   how        out unless NULL: where it stands, for the log */
int tokenizer_open_cached(struct tokenizer **out, const char *dir, const char *cache_dir,
                          struct tokenizer_opening *how, char *why, size_t why_cap) ERR_CHECKED;
void tokenizer_close(struct tokenizer *tokenizer); /* NULL is fine */

/* Append the ids of a text. Added and special tokens that stand in the text become their ids,
 * as Hugging Face does; add_special adds what the model wants around a text (usually BOS): true
 * for plain completions, false after a chat template.
 *
 * Invalid UTF-8 is read as U+FFFD. Returns ERR_OK, ERR_NO_MEMORY, or ERR_LIMIT when a pattern of
 * the model's own ran out of its backtracking bound; on error out is as it was. Time is
 * O(n log n) for every input. Any thread. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t len,
                     bool add_special, struct token_list *out) ERR_CHECKED;

/* The same for a text of which only the bytes in `own` may be control tokens: outside of these a
 * control token's text is text like any other, as in OpenAI's and Mistral's encoders. A token is
 * one that controls the model when it is special, or named as such (tokenizer_is_control()). own of
 * NULL, or of the whole text, gives the ids of tokenizer_encode(). */
int tokenizer_encode_own(const struct tokenizer *tokenizer, const char *text, size_t len,
                         bool add_special, const struct spans *own,
                         struct token_list *out) ERR_CHECKED;

/* Bytes of a text that one token may stand for, so that a text of n bytes has n / this tokens or
 * more; 0: no such number, since parts of a text may vanish. Constant time. */
size_t tokenizer_most_bytes(const struct tokenizer *tokenizer);

/* Highest id + 1. Ids between may be unused. */
int tokenizer_n_vocab(const struct tokenizer *tokenizer);

/* The id of a token by its content: an added token as it stands in text, any other as it is
 * written in the file ("Ġhello"). -1 if there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t len);

/* The reverse: a token as it is written in the file, valid UTF-8; *len out. NULL and 0 for unused
 * and impossible ids. Not NUL-terminated. Lives as long as the tokenizer. */
const char *tokenizer_written(const struct tokenizer *tokenizer, int32_t id, size_t *len);

/* True for special tokens; false for unused and impossible ids. */
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);

/* True for special tokens, and for added ones whose names say that they are such: <|...|>, the same
 * with U+FF5C, <unused...>, <pad>, <mask>. DeepSeek's and others' files mark these as ordinary.
 * False for <think>, <tool_call> and their like, which models write themselves. */
bool tokenizer_is_control(const struct tokenizer *tokenizer, int32_t id);

/* True for tokens that skip_special leaves out. These are the special ones, but for those that a
 * normalizer rewrites: Hugging Face does not know them again, and leaves them in. */
bool tokenizer_is_skipped(const struct tokenizer *tokenizer, int32_t id);

/* The bytes that a token stands for inside a text: raw ones, so a part of a character is possible;
 * *len out. NULL and 0 for unused and impossible ids. Not NUL-terminated. Lives as long as the
 * tokenizer. Constant time. (What a decoder does to a whole text is not in them: the space that
 * some models drop at its start, the U+FFFD for bytes that form no character.) */
const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *len);

/* True for a token that stands for one byte of a character (<0x2E> of a model with byte
 * fallback): a run of these that is no UTF-8 decodes to one U+FFFD a byte. */
bool tokenizer_is_byte(const struct tokenizer *tokenizer, int32_t id);

/* The special ids, ascending; *n out. Borrowed from the tokenizer. */
const int32_t *tokenizer_special_ids(const struct tokenizer *tokenizer, size_t *n);

/* The ids that end a text, ascending: the named token and eos_token_id of generation_config.json
 * and config.json. Borrowed from the tokenizer. */
const int32_t *tokenizer_eos_ids(const struct tokenizer *tokenizer, size_t *n);

/* Append the text of n ids, equal to Hugging Face's decode: bytes that form no character become
 * U+FFFD, unknown ids are skipped. Appends only; out->failed says when memory ended. */
void tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
                      bool skip_special, struct buf *out);

/* What a whole text loses at its start when it is decoded; for src/text/output/detok.c. */
struct tokenizer_start {
    bool drops;       /* its first token loses the characters that stand for spaces */
    uint32_t strip_n; /* so many spaces at most are left out */
};

struct tokenizer_start tokenizer_start(const struct tokenizer *tokenizer);

/* Append the bytes of a token that is the first of a text, when tokenizer_start() drops. */
void tokenizer_first_bytes(const struct tokenizer *tokenizer, int32_t id, struct buf *out);

/* Bytes at the start of text that are left out, of at most n characters; *taken characters. */
size_t tokenizer_strip(const struct tokenizer *tokenizer, uint32_t n, const char *text, size_t len,
                       uint32_t *taken);

/* Tokens that tokenizer_config.json names; -1 where it names none. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
int32_t tokenizer_pad(const struct tokenizer *tokenizer);

#endif
