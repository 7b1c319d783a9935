/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes: the first says what the others are (a schema, a pattern, a grammar). What compiles is
 * an automaton that the check takes, and can be walked by the same bytes and with masks. */
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "grammar/grammar.h"
#include "grammar/walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const struct token_trie *small_vocab(struct buf *image)
{
    static const char letters[] = "{}[]\"\\:, abcdefnrtu0123456789.-+eE\n\xc3\xa9";
    struct trie_token tokens[sizeof letters];
    int32_t end = sizeof letters - 1;
    size_t i;

    for (i = 0; i < sizeof letters - 1; i++)
        tokens[i] = (struct trie_token){letters + i, 1 + (i % 5 == 4 && i + 2 < sizeof letters)};
    tokens[i] = (struct trie_token){"", 0};
    must(trie_build(tokens, sizeof letters, &end, 1, image) == ERR_OK);
    return (const struct token_trie *)(const void *)image->bytes;
}

static void walk_some(const struct automaton *a, const uint8_t *bytes, size_t len)
{
    static struct walk w;
    struct buf image = {0};
    const struct token_trie *v = small_vocab(&image);
    struct walk_work *work = malloc(walk_work_bytes(v->n_vocab));
    uint32_t mask[4];
    size_t i;
    int rc = ERR_OK;

    must(work != NULL && v->n_words <= 4);
    walk_work_init(work, v->n_vocab);
    walk_init(&w, a);
    for (i = 0; i < len && i < 40 && rc == ERR_OK; i++) {
        int32_t t = bytes[i] % (int32_t)v->n_vocab;
        bool allowed;

        rc = walk_mask(work, a, v, NULL, &w, mask);
        if (rc != ERR_OK)
            break;
        allowed = (mask[t / 32] >> t % 32 & 1) != 0;
        rc = walk_accept(work, a, v, &w, t);
        must(rc == ERR_LIMIT || allowed == (rc == ERR_OK));
        rc = rc == ERR_LIMIT || w.ended ? ERR_LIMIT : ERR_OK;
    }
    walk_init(&w, a);
    rc = walk_bytes(work, a, &w, bytes, len);
    must(rc == ERR_OK || rc == ERR_INVALID || rc == ERR_LIMIT);
    free(work);
    buf_fini(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const enum grammar_kind kinds[] = {GRAMMAR_SCHEMA, GRAMMAR_REGEX, GRAMMAR_EBNF};
    struct grammar_request r = {.kind = GRAMMAR_SCHEMA};
    struct grammar_error why;
    struct buf image = {0};

    if (len < 1)
        return 0;
    r.kind = kinds[bytes[0] % 3];
    r.space = (enum grammar_space)(bytes[0] / 3 % 3);
    r.spacing = (const char *)bytes + 1;
    r.spacing_len = len - 1 < 12 ? len - 1 : 12;
    r.source = (const char *)bytes + 1;
    r.source_len = len - 1;
    if (grammar_compile(&r, &image, &why) == ERR_OK) {
        must(automaton_check(image.bytes, image.len) == ERR_OK);
        walk_some((const struct automaton *)(const void *)image.bytes, bytes, len);
    } else {
        must(image.len == 0 && why.text[0] != '\0');
    }
    buf_fini(&image);
    return 0;
}
