/* What the tests of grammars share: compile, and ask whether a text is accepted. */
#ifndef QUIRE_TESTS_GRAMMAR_ACCEPT_H
#define QUIRE_TESTS_GRAMMAR_ACCEPT_H

#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/walk.h"
#include "tests/tap.h"

static struct walk_work *accept_work;
static struct walk accept_walk;
static struct grammar_error accept_error;

/* The image stays in *image; its error otherwise. */
__attribute__((unused)) static int accept_compile(const struct grammar_request *r,
                                                  struct buf *image)
{
    int rc = grammar_compile(r, image, &accept_error);

    if (accept_work == NULL) {
        accept_work = malloc(walk_work_bytes(1));
        walk_work_init(accept_work, 1);
    }
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

/* Texts separated by '\n': all of `yes` are accepted, all of `no` are not. */
__attribute__((unused)) static void accept_all(const struct buf *image, const char *texts,
                                               bool want, const char *name)
{
    while (texts != NULL && *texts != '\0') {
        const char *end = strchr(texts, '\n');
        size_t len = end == NULL ? strlen(texts) : (size_t)(end - texts);

        ok(accept_text(image, texts, len) == want, "%.60s %s %.*s", name,
           want ? "accepts" : "rejects", (int)(len > 60 ? 60 : len), texts);
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
