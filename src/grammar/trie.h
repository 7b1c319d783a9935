/* SPDX-License-Identifier: Apache-2.0
 *
 * A vocabulary image: the bytes of each token, as tries that a mask walks; one run of bytes without
 * pointers.
 *
 *   token_trie | text_at[n_vocab + 1] | ends[n_ends] | aliases[n_aliases] | slices | nodes | text
 *
 * A front builds it once from its tokenizer and hands it to the engine, which checks it and then
 * trusts it. Tokens without text (special and unused ones) are in no trie: a mask never allows
 * them, except for the end tokens where the output may end.
 *
 * A trie is an array of its nodes in depth-first order, each with the size of its subtree. A walk
 * runs through the array and skips the subtrees that do not match. Tokens with the same text share
 * a node: one is in the trie, the others are its aliases.
 *
 * A slice is the set of tokens that are plain inside of a JSON string (no '"', '\', control or part
 * of a character) and have at most a certain number of characters. Where a string may go on for
 * that long, the whole slice is allowed at once, and only the trie of the other tokens is
 * walked. */
#ifndef QUIRE_GRAMMAR_TRIE_H
#define QUIRE_GRAMMAR_TRIE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define TRIE_MAGIC     UINT64_C(0x3162636f76697571)
#define TRIE_IDS_MAX   (1 << 23)
#define TRIE_BYTES_MAX ((size_t)256 << 20)
#define TRIE_TOKEN_MAX 255       /* bytes; longer tokens are never allowed */
#define TRIE_TRIES     4         /* the first has all tokens, each of the others lacks one slice */
#define TRIE_NO_TOKEN  0xffffffu /* in trie_node.token: no token ends here */
#define TRIE_ENDS_MAX  64

struct trie_part {
    uint32_t node_at; /* its nodes: a forest of first bytes */
    uint32_t n_nodes;
    uint32_t slice_chars; /* it lacks the plain tokens of at most this many characters */
    uint32_t unused;
};

struct trie_node {
    uint32_t skip; /* nodes of its subtree, including itself */
    uint32_t token : 24;
    uint32_t byte : 8;
};

struct token_trie {
    uint64_t magic;
    uint64_t bytes; /* of the whole image */
    uint32_t n_vocab;
    uint32_t n_words; /* uint32 words of a mask: (n_vocab + 31) / 32 */
    uint32_t n_ends;
    uint32_t n_aliases;
    uint32_t n_nodes;
    uint32_t text_bytes;
    struct trie_part tries[TRIE_TRIES];
};

struct trie_alias {
    uint32_t token; /* in the trie */
    uint32_t alias; /* another one with the same text */
};

static inline const uint32_t *trie_text_at(const struct token_trie *trie)
{
    return (const uint32_t *)(trie + 1);
}
static inline const uint32_t *trie_ends(const struct token_trie *trie)
{
    return trie_text_at(trie) + trie->n_vocab + 1;
}
static inline const struct trie_alias *trie_aliases(const struct token_trie *trie)
{
    return (const struct trie_alias *)(trie_ends(trie) + trie->n_ends);
}
/* The tokens that trie t (1 .. TRIE_TRIES - 1) lacks, as a mask: uint32 [n_words]. */
static inline const uint32_t *trie_slice(const struct token_trie *trie, uint32_t t)
{
    return (const uint32_t *)(trie_aliases(trie) + trie->n_aliases) +
           (size_t)(t - 1) * trie->n_words;
}
static inline const struct trie_node *trie_nodes(const struct token_trie *trie)
{
    return (const struct trie_node *)trie_slice(trie, TRIE_TRIES);
}
static inline const unsigned char *trie_text(const struct token_trie *trie)
{
    return (const unsigned char *)(trie_nodes(trie) + trie->n_nodes);
}

/* The text of a token; len 0: none. */
struct trie_token {
    const char *bytes;
    size_t len;
};

/* Build an image.
 *
 *   tokens   [n_vocab]; len 0 for special tokens and those that must never be generated
 *   ends     [n_ends] ids that end the output, allowed where it may end
 *   image    out: appended to; unchanged on error
 *
 * ERR_OK; ERR_INVALID when an id or the size is out of range; ERR_NO_MEMORY. 0.2 s for 128,000
 * tokens. Any thread. */
int trie_build(const struct trie_token *tokens, uint32_t n_vocab, const int32_t *ends,
               uint32_t n_ends, struct buf *image) ERR_CHECKED;

/* The longest token whose text `bytes` begin with, and the length of its text in *token_len; -1:
 * there is none. At most 256 nodes per byte. */
int32_t trie_longest(const struct token_trie *trie, const char *bytes, size_t len,
                     size_t *token_len);

/* Check every field of an image, aligned to 8, that will not change. ERR_OK, ERR_INVALID. */
int trie_check(const void *image, size_t len) ERR_CHECKED;

#endif
