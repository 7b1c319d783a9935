/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds and checks vocabulary images. Sorted by their bytes, tokens with a common prefix are
 * adjacent, so one pass over the sorted list writes the nodes of a trie in depth-first order. */
#include "grammar/trie.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/utf8.h"

_Static_assert(sizeof(struct trie_node) == 8, "the image has no holes");
_Static_assert(sizeof(struct token_trie) % 8 == 0, "the image has no holes");

/* Sizes of the slices in characters. Most tokens are short. The smaller slices matter for the last
 * characters before a string's maxLength. */
static const uint32_t slice_chars[TRIE_TRIES] = {0, 4, 12, TRIE_TOKEN_MAX};

/* A token in the list that is sorted. */
struct spelled {
    const char *bytes;
    uint32_t len;
    uint32_t id;
    uint32_t plain; /* number of characters, if all are plain; else 0 */
};

/* By bytes, a prefix before its extensions, and equal texts by id, so that the smallest id of a
 * text comes first and the others become its aliases. */
static int trie_spelled_order(const void *a, const void *b)
{
    const struct spelled *left = a;
    const struct spelled *right = b;
    int order = memcmp(left->bytes, right->bytes, left->len < right->len ? left->len : right->len);

    /* memcmp() compares unsigned bytes, as the trie's nodes are ordered. */
    if (order != 0)
        return order;
    if (left->len != right->len) {
        if (left->len < right->len)
            return -1;
        return 1;
    }
    if (left->id < right->id)
        return -1;
    return 1;
}

/* The number of characters of a text if all are plain; else 0. */
static uint32_t trie_plain_chars(const char *bytes, size_t len)
{
    uint32_t chars = 0;
    size_t at, n;

    for (at = 0; at < len; at += n, chars++) {
        n = utf8_sequence(bytes + at, len - at);
        if (n == 0 || (unsigned char)bytes[at] < 0x20 || bytes[at] == '"' || bytes[at] == '\\')
            return 0;
    }
    return chars;
}

/* Is a token in slice t, and therefore not in trie t? */
static bool trie_in_slice(const struct spelled *token, uint32_t t)
{
    return t > 0 && token->plain > 0 && token->plain <= slice_chars[t];
}

/* Append the nodes of the tokens that are not in slice t. Returns their number. open[] are the
 * nodes of the current token's path; the pass with i == n closes the last path. */
static uint32_t trie_add(struct buf *nodes, const struct spelled *list, uint32_t n, uint32_t t)
{
    size_t open[TRIE_TOKEN_MAX + 1]; /* offsets of the nodes on the way */
    size_t start = nodes->len;
    const char *before = NULL;
    uint32_t depth = 0;
    uint32_t i;

    for (i = 0; i <= n && !nodes->failed; i++) {
        uint32_t same = 0;

        if (i < n && trie_in_slice(&list[i], t))
            continue;
        while (i < n && same < depth && same < list[i].len && before[same] == list[i].bytes[same])
            same++;
        for (; depth > same; depth--) { /* these subtrees are complete: set their size */
            struct trie_node *node = (struct trie_node *)(nodes->bytes + open[depth - 1]);

            node->skip = (uint32_t)((nodes->len - open[depth - 1]) / sizeof *node);
        }
        for (; i < n && depth < list[i].len && !nodes->failed; depth++) {
            struct trie_node node = {.token = TRIE_NO_TOKEN,
                                     .byte = (unsigned char)list[i].bytes[depth]};

            if (depth + 1 == list[i].len)
                node.token = list[i].id & TRIE_NO_TOKEN;
            open[depth] = nodes->len;
            buf_add(nodes, &node, sizeof node);
        }
        if (i < n)
            before = list[i].bytes;
        else
            before = NULL;
    }
    return (uint32_t)((nodes->len - start) / sizeof(struct trie_node));
}

/* Remove tokens with the text of the one before from the list, and append them as its aliases. */
static uint32_t trie_aliases_take(struct spelled *list, uint32_t n, struct buf *aliases)
{
    uint32_t kept = 0;
    uint32_t i;

    for (i = 0; i < n; i++) {
        /* The list is sorted, so equal texts are neighbours. */
        if (kept > 0 && list[kept - 1].len == list[i].len &&
            memcmp(list[kept - 1].bytes, list[i].bytes, list[i].len) == 0) {
            /* Aliases are not part of the trie. They get the bit of their token when the mask is
             * complete. */
            struct trie_alias alias = {list[kept - 1].id, list[i].id};

            buf_add(aliases, &alias, sizeof alias);
        } else {
            list[kept++] = list[i];
        }
    }
    return kept;
}

/* Fill and sort the list of tokens that have a text. */
static uint32_t trie_list_fill(struct spelled *list, const struct trie_token *tokens,
                               uint32_t n_vocab)
{
    uint32_t n = 0;
    uint32_t i;

    /* Tokens without a text, such as special ones, cannot be part of an output that follows
     * a grammar; tokens that are too long are never allowed. */
    for (i = 0; i < n_vocab; i++)
        if (tokens[i].len > 0 && tokens[i].len <= TRIE_TOKEN_MAX) {
            list[n].bytes = tokens[i].bytes;
            list[n].len = (uint32_t)tokens[i].len;
            list[n].id = i;
            list[n++].plain = trie_plain_chars(tokens[i].bytes, tokens[i].len);
        }
    qsort(list, n, sizeof *list, trie_spelled_order);
    return n;
}

/* Append the offset of each token's text, and the end of the last one. */
static void trie_text_add(struct buf *out, const struct trie_token *tokens, uint32_t n_vocab)
{
    uint32_t at = 0;
    uint32_t i;

    for (i = 0; i <= n_vocab; i++) {
        buf_add(out, &at, sizeof at);
        if (i < n_vocab && tokens[i].len <= TRIE_TOKEN_MAX)
            at += (uint32_t)tokens[i].len;
    }
}

/* Append the masks of the slices. */
static void trie_slices_add(struct buf *out, const struct spelled *list, uint32_t n,
                            uint32_t n_words)
{
    uint32_t *words = mem_zalloc_array(n_words, sizeof *words);
    uint32_t t, i;

    if (words == NULL) {
        out->failed = true;
        return;
    }
    /* Trie 0 has all tokens. Each other one lacks the tokens of a slice, and the words are their
     * mask. */
    for (t = 1; t < TRIE_TRIES; t++) {
        memset(words, 0, n_words * sizeof *words);
        /* A token's bit is at its id, as in the mask that is the result. */
        for (i = 0; i < n; i++)
            if (trie_in_slice(&list[i], t))
                words[list[i].id / 32] |= 1u << list[i].id % 32;
        buf_add(out, words, n_words * sizeof *words);
    }
    mem_free(words);
}

int trie_build(const struct trie_token *tokens, uint32_t n_vocab, const int32_t *ends,
               uint32_t n_ends, struct buf *image)
{
    struct token_trie trie = {
        .magic = TRIE_MAGIC, .n_vocab = n_vocab, .n_words = (n_vocab + 31) / 32, .n_ends = n_ends};
    struct spelled *list;
    struct buf aliases = {0};
    struct buf nodes = {0};
    size_t before = image->len;
    uint32_t n, i;

    must(tokens != NULL || n_vocab == 0);
    must(ends != NULL || n_ends == 0);
    must(image != NULL);
    if (n_vocab == 0 || n_vocab > TRIE_IDS_MAX || n_ends > TRIE_ENDS_MAX)
        return ERR_INVALID;
    for (i = 0; i < n_ends; i++)
        if (ends[i] < 0 || (uint32_t)ends[i] >= n_vocab)
            return ERR_INVALID;
    list = mem_zalloc_array(n_vocab, sizeof *list);
    if (list == NULL)
        return ERR_NO_MEMORY;
    n = trie_list_fill(list, tokens, n_vocab);
    n = trie_aliases_take(list, n, &aliases);
    for (i = 0; i < TRIE_TRIES; i++) {
        trie.tries[i].node_at = (uint32_t)(nodes.len / sizeof(struct trie_node));
        trie.tries[i].n_nodes = trie_add(&nodes, list, n, i);
        trie.tries[i].slice_chars = slice_chars[i];
    }
    trie.n_aliases = (uint32_t)(aliases.len / sizeof(struct trie_alias));
    trie.n_nodes = (uint32_t)(nodes.len / sizeof(struct trie_node));
    /* The header is written twice: now for its size, and at the end with the counts that are known
     * by then. */
    buf_add(image, &trie, sizeof trie);
    trie_text_add(image, tokens, n_vocab);
    buf_add(image, ends, n_ends * sizeof *ends);
    if (aliases.len > 0)
        buf_add(image, aliases.bytes, aliases.len);
    trie_slices_add(image, list, n, trie.n_words);
    if (nodes.len > 0)
        buf_add(image, nodes.bytes, nodes.len);
    for (i = 0; i < n_vocab; i++)
        if (tokens[i].len > 0 && tokens[i].len <= TRIE_TOKEN_MAX) {
            buf_add(image, tokens[i].bytes, tokens[i].len);
            trie.text_bytes += (uint32_t)tokens[i].len;
        }
    trie.bytes = image->len - before;
    if (!image->failed && !aliases.failed && !nodes.failed)
        memcpy(image->bytes + before, &trie, sizeof trie);
    mem_free(list);
    if (image->failed || aliases.failed || nodes.failed) {
        buf_fini(&aliases);
        buf_fini(&nodes);
        image->len = before;
        return ERR_NO_MEMORY;
    }
    buf_fini(&aliases);
    buf_fini(&nodes);
    return ERR_OK;
}

/* --- look up -------------------------------------------------------------------------------- */

/* The first trie has all tokens. A node's children follow it, each with its subtree. */
int32_t trie_longest(const struct token_trie *trie, const char *bytes, size_t len,
                     size_t *token_len)
{
    const struct trie_node *nodes = trie_nodes(trie) + trie->tries[0].node_at;
    uint32_t at = 0, end = trie->tries[0].n_nodes;
    int32_t longest = -1;
    size_t n = 0;

    while (n < len && at < end) { /* skip is at least 1 */
        if (nodes[at].byte != (uint8_t)bytes[n]) {
            at += nodes[at].skip;
            continue;
        }
        n++;
        if (nodes[at].token != TRIE_NO_TOKEN) {
            longest = (int32_t)nodes[at].token;
            *token_len = n;
        }
        end = at + nodes[at].skip;
        at++;
    }
    return longest;
}

/* --- check -------------------------------------------------------------------------------- */

/* Are the subtrees nested properly, and no deeper than a token is long? A walk relies on both. */
static bool trie_fine(const struct token_trie *trie, const struct trie_part *part)
{
    const struct trie_node *nodes = trie_nodes(trie) + part->node_at;
    uint32_t end[TRIE_TOKEN_MAX + 1];
    uint32_t depth = 0;
    uint32_t i;

    /* end[] is the stack of the enclosing subtrees: a node must end within its parent. */
    for (i = 0; i < part->n_nodes; i++) {
        while (depth > 0 && i >= end[depth - 1])
            depth--;
        if (depth == TRIE_TOKEN_MAX || nodes[i].skip == 0)
            return false;
        if (nodes[i].skip > (depth > 0 ? end[depth - 1] : part->n_nodes) - i)
            return false;
        if (nodes[i].token != TRIE_NO_TOKEN && nodes[i].token >= trie->n_vocab)
            return false;
        end[depth++] = i + nodes[i].skip;
    }
    return true;
}

/* Are the offsets of texts ascending, and all ids in range? */
static bool trie_lists_fine(const struct token_trie *trie)
{
    const uint32_t *at = trie_text_at(trie);
    uint32_t i;

    /* Offsets ascend, and the last one is the length of all texts, so every text is inside. */
    for (i = 0; i < trie->n_vocab; i++)
        if (at[i + 1] < at[i] || at[i + 1] - at[i] > TRIE_TOKEN_MAX)
            return false;
    if (at[0] != 0 || at[trie->n_vocab] != trie->text_bytes)
        return false;
    /* Ids index the mask, so one out of range would write beside it. */
    for (i = 0; i < trie->n_ends; i++)
        if (trie_ends(trie)[i] >= trie->n_vocab)
            return false;
    for (i = 0; i < trie->n_aliases; i++)
        if (trie_aliases(trie)[i].token >= trie->n_vocab ||
            trie_aliases(trie)[i].alias >= trie->n_vocab)
            return false;
    return true;
}

int trie_check(const void *image, size_t len)
{
    const struct token_trie *trie = image;
    uint64_t bytes = sizeof *trie;
    uint32_t i;

    must(image != NULL || len == 0);
    /* The image is used in place, hence the alignment. */
    if (len < sizeof *trie || len > TRIE_BYTES_MAX || (uintptr_t)image % 8 != 0)
        return ERR_INVALID;
    if (trie->magic != TRIE_MAGIC || trie->bytes != len || trie->n_vocab == 0 ||
        trie->n_vocab > TRIE_IDS_MAX || trie->n_words != (trie->n_vocab + 31) / 32 ||
        trie->n_ends > TRIE_ENDS_MAX)
        return ERR_INVALID;
    /* The tables follow one another; their sizes must add up to the length of the image, with no
     * gap. 64 bits cannot overflow here. */
    bytes += ((uint64_t)trie->n_vocab + 1 + trie->n_ends) * sizeof(uint32_t);
    bytes += (uint64_t)trie->n_aliases * sizeof(struct trie_alias);
    bytes += (uint64_t)trie->n_words * sizeof(uint32_t) * (TRIE_TRIES - 1);
    bytes += (uint64_t)trie->n_nodes * sizeof(struct trie_node) + trie->text_bytes;
    if (bytes != len || !trie_lists_fine(trie))
        return ERR_INVALID;
    /* Each trie's nodes must be within the table, and each subtree within its trie: skipping
     * over a subtree must not leave it. */
    for (i = 0; i < TRIE_TRIES; i++) {
        const struct trie_part *part = &trie->tries[i];

        if (part->node_at > trie->n_nodes || part->n_nodes > trie->n_nodes - part->node_at ||
            !trie_fine(trie, part))
            return ERR_INVALID;
    }
    return ERR_OK;
}
