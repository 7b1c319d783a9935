/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokenizer: text to token ids and back, with the same results as Hugging Face's `tokenizers`.
 *
 * Reads the BPE models of a model folder, byte-level and SentencePiece-style: tokenizer.json, or
 * Kimi's tiktoken.model, or vocab.json and merges.txt, each with tokenizer_config.json. Elements
 * that it does not know are refused by name at start, so that a served model never tokenizes
 * wrongly.
 *
 * A tokenizer never changes after tokenizer_open(): threads share it without locks. */
#ifndef QUIRE_TEXT_TOKENIZER_TOKENIZER_H
#define QUIRE_TEXT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/spans.h"

struct tokenizer;

/* A growing list of token ids. Start from {0}. */
struct token_list {
    int32_t *ids;
    size_t len; /* used */
    size_t cap; /* allocated */
};

void token_list_fini(struct token_list *list); /* the list is then empty and usable again */

/* Make room for n more ids. ERR_NO_MEMORY leaves the list unchanged. */
int token_list_reserve(struct token_list *list, size_t n) ERR_CHECKED;

/* Append one id or n ids. ERR_NO_MEMORY leaves the list unchanged. */
int token_list_add(struct token_list *list, int32_t id) ERR_CHECKED;
int token_list_add_all(struct token_list *list, const int32_t *ids, size_t n) ERR_CHECKED;

/* Load the tokenizer of a model folder.
 *
 *   dir   holds tokenizer.json, tiktoken.model (with a tokenizer_config.json of the class
 *         TikTokenTokenizer), or vocab.json and merges.txt; tokenizer_config.json,
 *         special_tokens_map.json, added_tokens.json, generation_config.json and config.json are
 *         optional
 *   why   out on error: the file, the place in it and the reason
 *
 * Returns ERR_OK; ERR_NOT_FOUND when the folder holds no tokenizer; ERR_IO when a file cannot be
 * read; ERR_SYNTAX or ERR_INVALID when it is damaged; ERR_UNSUPPORTED for a kind that quire does
 * not know (why names it); ERR_LIMIT; ERR_NO_MEMORY. Takes about a second for 450,000 merges. */
int tokenizer_open(struct tokenizer **out, const char *dir, char *why, size_t why_cap) ERR_CHECKED;

struct tokenizer_opening {
    bool mapped;         /* its image is a file that other processes share */
    bool written;        /* this call wrote that file */
    char cache_why[300]; /* why an existing file was not used, or none was written; or "" */
};

/* Like tokenizer_open(), with a folder of compiled tokenizers. If it holds an image of exactly
 * these files, the image is mapped read only and shared, which takes milliseconds. If the image is
 * missing, damaged or out of date, it is built and written for the next time. Only this user may be
 * able to write to the folder. A failure to use it is reported in *how, not as an error.
 *
 *   cache_dir  "" for none: the tokenizer is in this process's memory
 *   how        out unless NULL: how it was opened, for the log */
int tokenizer_open_cached(struct tokenizer **out, const char *dir, const char *cache_dir,
                          struct tokenizer_opening *how, char *why, size_t why_cap) ERR_CHECKED;
void tokenizer_close(struct tokenizer *tokenizer); /* NULL is fine */

/* Append the ids of a text. Added and special tokens in the text become their ids, as in Hugging
 * Face's; add_special adds the tokens that the model wants around a text (usually BOS): true for
 * plain completions, false after a chat template.
 *
 * Invalid UTF-8 is read as U+FFFD. Returns ERR_OK, ERR_NO_MEMORY, or ERR_LIMIT when one of the
 * model's own patterns exceeded its bound on backtracking; on error out is unchanged. O(n log n)
 * for every input. Any thread. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t len,
                     bool add_special, struct token_list *out) ERR_CHECKED;

/* Like tokenizer_encode(), but control tokens are found only inside the spans `own`: elsewhere the
 * text of a control token is ordinary text, as in OpenAI's and Mistral's encoders. A client can
 * thus not forge them. A control token is one that is special or named as such
 * (tokenizer_is_control()). own == NULL, or the whole text, gives the ids of tokenizer_encode(). */
int tokenizer_encode_own(const struct tokenizer *tokenizer, const char *text, size_t len,
                         bool add_special, const struct spans *own,
                         struct token_list *out) ERR_CHECKED;

/* An upper bound on the bytes of text that one token encodes: a text of n bytes has at least n /
 * this tokens. 0: no bound is known, because parts of a text may vanish. O(1). */
size_t tokenizer_most_bytes(const struct tokenizer *tokenizer);

/* Highest id + 1. Some ids below may be unused. */
int tokenizer_n_vocab(const struct tokenizer *tokenizer);

/* The id of a token by its text: of an added token as it occurs in a prompt, of any other as the
 * file writes it ("Ġhello"). -1 when there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t len);

/* The text of a token as the file writes it, valid UTF-8; *len gets its length. NULL and 0 for
 * unused and impossible ids. Not NUL-terminated. Valid as long as the tokenizer. */
const char *tokenizer_written(const struct tokenizer *tokenizer, int32_t id, size_t *len);

/* True for special tokens; false for unused and impossible ids. */
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);

/* True for special tokens, and for added tokens that are named like control tokens: <|...|>, the
 * same with U+FF5C, <unused...>, <pad>, <mask>. DeepSeek's and other files mark these as ordinary.
 * False for <think>, <tool_call> and similar ones, which models write themselves. */
bool tokenizer_is_control(const struct tokenizer *tokenizer, int32_t id);

/* True for tokens that skip_special omits: the special ones, except those that a normalizer
 * rewrites. Hugging Face does not recognise the rewritten ones and keeps them. */
bool tokenizer_is_skipped(const struct tokenizer *tokenizer, int32_t id);

/* The bytes that a token decodes to inside a text, possibly a part of a character; *len gets their
 * number. NULL and 0 for unused and impossible ids. Not NUL-terminated. Valid as long as the
 * tokenizer. O(1). Changes to a whole text are not included: the space that some models drop at its
 * start, and the U+FFFD for bytes that form no character. */
const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *len);

/* True for a token that is one byte of a character (<0x2E> of a model with byte fallback). A run of
 * these that is not valid UTF-8 decodes to one U+FFFD per byte. */
bool tokenizer_is_byte(const struct tokenizer *tokenizer, int32_t id);

/* The special ids, ascending; *n gets their number. Borrowed from the tokenizer. */
const int32_t *tokenizer_special_ids(const struct tokenizer *tokenizer, size_t *n);

/* The ids that end a text, ascending: of the named eos token and of eos_token_id in
 * generation_config.json and config.json. Borrowed from the tokenizer. */
const int32_t *tokenizer_eos_ids(const struct tokenizer *tokenizer, size_t *n);

/* Append the text of n ids, equal to Hugging Face's decode: bytes that form no character become
 * U+FFFD, unknown ids are skipped. out->failed is set when memory runs out. */
void tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
                      bool skip_special, struct buf *out);

/* How a decoder changes the start of a whole text; for src/text/output/detok.c. */
struct tokenizer_start {
    bool drops;       /* the first token loses its characters that stand for spaces */
    uint32_t strip_n; /* at most this many spaces are dropped */
};

struct tokenizer_start tokenizer_start(const struct tokenizer *tokenizer);

/* Append the bytes of the first token of a text, when tokenizer_start() reports `drops`. */
void tokenizer_first_bytes(const struct tokenizer *tokenizer, int32_t id, struct buf *out);

/* The number of bytes to drop at the start of text, at most n characters; *taken gets the number of
 * characters. */
size_t tokenizer_strip(const struct tokenizer *tokenizer, uint32_t n, const char *text, size_t len,
                       uint32_t *taken);

/* Ids of the tokens that tokenizer_config.json names; -1 for one that it does not name. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
int32_t tokenizer_pad(const struct tokenizer *tokenizer);

#endif
