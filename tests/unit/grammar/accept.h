/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of grammars share: compile, and ask whether a text is accepted: as bytes, and by
 * the tokens of a vocabulary of the size that models have, whose masks must say the same. */
#ifndef QUIRE_TESTS_GRAMMAR_ACCEPT_H
#define QUIRE_TESTS_GRAMMAR_ACCEPT_H

#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/walk.h"
#include "tests/grammar/pieces.h"
#include "tests/tap.h"

#define ACCEPT_TOKENS 131072 /* the end included */
#define ACCEPT_CACHE  ((size_t)8 << 20)

static struct walk_work *accept_work;
static struct walk accept_walk;
static struct grammar_error accept_error;
static struct pieces accept_pieces;
static struct buf accept_image;
static struct walk_cache *accept_cache;

/* Once; it stays until the process ends. */
__attribute__((unused)) static void accept_begin(void)
{
    accept_work = malloc(walk_work_bytes(ACCEPT_TOKENS));
    accept_cache = malloc(ACCEPT_CACHE);
    must(accept_work != NULL && accept_cache != NULL);
    walk_work_init(accept_work, ACCEPT_TOKENS);
    pieces_begin(&accept_pieces, ACCEPT_TOKENS - 1);
    pieces_fill(&accept_pieces);
    (void)pieces_image(&accept_pieces, &accept_image);
}

/* The image stays in *image; its error otherwise. */
__attribute__((unused)) static int accept_compile(const struct grammar_request *r,
                                                  struct buf *image)
{
    int rc = grammar_compile(r, image, &accept_error);

    if (accept_work == NULL)
        accept_begin();
    walk_cache_init(accept_cache, ACCEPT_CACHE);
    if (rc == 0)
        must_ok(automaton_check(image->bytes, image->len));
    return rc;
}

__attribute__((unused)) static bool accept_text(const struct buf *image, const char *text,
                                                size_t len)
{
    const struct automaton *a = (const struct automaton *)(const void *)image->bytes;

    walk_init(&accept_walk, a);
    return walk_bytes(accept_work, a, &accept_walk, text, len) == ERR_OK &&
           walk_can_end(accept_work, a, &accept_walk);
}

/* The same by the longest tokens, each of which its mask must allow, or forbid where it cannot
 * come; at the end the mask says whether the text may end. */
__attribute__((unused)) static bool accept_tokens(const struct buf *image, const char *text,
                                                  size_t len)
{
    static uint32_t mask[ACCEPT_TOKENS / 32];
    const struct automaton *a = (const struct automaton *)(const void *)image->bytes;
    const struct token_trie *v = (const struct token_trie *)(const void *)accept_image.bytes;
    int32_t id = ACCEPT_TOKENS - 1;
    size_t at = 0;

    walk_init(&accept_walk, a);
    while (at <= len) {
        bool allowed;

        must_ok(walk_mask(accept_work, a, v, accept_cache, &accept_walk, mask));
        id = ACCEPT_TOKENS - 1;
        at += at == len ? 1 : pieces_longest(&accept_pieces, text + at, len - at, &id);
        allowed = (mask[id / 32] >> id % 32 & 1) != 0;
        must((walk_accept(accept_work, a, v, &accept_walk, id) == ERR_OK) == allowed);
        if (!allowed)
            return false;
    }
    return true;
}

/* Texts separated by '\n': all of `yes` are accepted, all of `no` are not. */
__attribute__((unused)) static void accept_all(const struct buf *image, const char *texts,
                                               bool want, const char *name)
{
    while (texts != NULL && *texts != '\0') {
        const char *end = strchr(texts, '\n');
        size_t len = end == NULL ? strlen(texts) : (size_t)(end - texts);

        ok(accept_text(image, texts, len) == want && accept_tokens(image, texts, len) == want,
           "%.60s %s %.*s", name, want ? "accepts" : "rejects", (int)(len > 60 ? 60 : len), texts);
        texts = end == NULL ? NULL : end + 1;
    }
}

__attribute__((unused)) static void accept_case(struct grammar_request r, const char *yes,
                                                const char *no)
{
    struct buf image = {0};
    int rc = accept_compile(&r, &image);

    if (ok(rc == 0, "%.60s compiles %s %s", r.source == NULL ? "" : r.source, accept_error.text,
           accept_error.where)) {
        accept_all(&image, yes, true, r.source == NULL ? "" : r.source);
        accept_all(&image, no, false, r.source == NULL ? "" : r.source);
    }
    buf_fini(&image);
}

#endif
