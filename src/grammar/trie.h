/* A vocabulary image: what each token spells, as tries that a mask walks; position-independent
 * and checked.
 *
 *   vocab | text_at[n_vocab + 1] | ends[n_ends] | aliases[n_aliases] | slice masks | nodes | text
 *
 * A front builds it once from its tokenizer and hands it to the engine, which checks it and then
 * trusts it. Tokens that spell nothing (special and unused ones) are in no trie: no mask allows
 * them, but for the ends of text where the output may end.
 *
 * A trie is its nodes in depth-first order, each with the size of its subtree, so a walk is a run
 * through an array that skips what did not match. Tokens that spell the same are one node and
 * aliases.
 *
 * A slice is the set of tokens that are plain inside of a JSON string (no '"', '\', control or
 * part of a character) and at most so many characters long. Where a string may go on for that
 * long, all of it is allowed at once and only the trie of the other tokens is walked. */
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
#define TRIE_TRIES     4         /* the first holds all tokens, the others lack a slice each */
#define TRIE_NO_TOKEN  0xffffffu /* of trie_node.token: only on the way */
#define TRIE_ENDS_MAX  64

struct trie_part {
    uint32_t node_at; /* its nodes: a forest of first bytes */
    uint32_t n_nodes;
    uint32_t slice_chars; /* tokens left out: plain ones of at most this many characters */
    uint32_t unused;
};

struct trie_node {
    uint32_t skip; /* nodes of its subtree, itself counted */
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
    uint32_t alias; /* spells the same */
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
/* The tokens that trie t (1 .. TRIE_TRIES - 1) lacks: uint32 [n_words]. */
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

/* What a token spells; len 0: nothing. */
struct trie_token {
    const char *bytes;
    size_t len;
};

/* Build an image.
 *
 *   tokens   [n_vocab]; special tokens and those that never are to be written: len 0
 *   ends     [n_ends] ids that end the output, allowed where it may end
 *   image    out: appended to; left as it was on error
 *
 * ERR_OK; ERR_INVALID when an id or the size is out of range; ERR_NO_MEMORY. 0.2 s for 128,000
 * tokens. Any thread. */
int trie_build(const struct trie_token *tokens, uint32_t n_vocab, const int32_t *ends,
               uint32_t n_ends, struct buf *image) ERR_CHECKED;

/* Look at every field of an image, aligned to 8, that nobody will change. ERR_OK, ERR_INVALID. */
int trie_check(const void *image, size_t len) ERR_CHECKED;

#endif
