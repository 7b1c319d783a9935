/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/grammar.h"

#include <string.h>

#include "base/clock.h"
#include "grammar/regular.h"
#include "grammar/source.h"

uint32_t pattern_build(struct build *b, const char *text, size_t len)
{
    return dfa_build(b, regex_whole(b->c, text, len), -1, NULL);
}

static uint32_t choices_build(struct build *b, const struct grammar_request *request)
{
    uint32_t root = build_state(b);
    size_t i;

    if (request->n_choices == 0)
        compile_fail(b->c, ERR_INVALID, "\"choice\" has no members");
    if (request->n_choices > GRAMMAR_CHOICES_MAX)
        compile_fail(b->c, ERR_LIMIT, "more than %d choices", GRAMMAR_CHOICES_MAX);
    for (i = 0; i < request->n_choices && compile_tick(b->c); i++)
        build_word(b, root, request->choices[i], strlen(request->choices[i]));
    return root;
}

static uint32_t request_build(struct build *b, const struct grammar_request *request)
{
    static const char object[] = "{\"type\":\"object\"}";

    switch (request->kind) {
    case GRAMMAR_SCHEMA:
        return schema_build(b, request->source, request->source_len, request->space);
    case GRAMMAR_JSON_OBJECT: return schema_build(b, object, sizeof object - 1, request->space);
    case GRAMMAR_REGEX: return pattern_build(b, request->source, request->source_len);
    case GRAMMAR_CHOICE: return choices_build(b, request);
    case GRAMMAR_EBNF: return ebnf_build(b, request->source, request->source_len);
    case GRAMMAR_PARTS: return parts_build(b, request->parts, request->n_parts, request->space);
    }
    return 0;
}

int grammar_compile(const struct grammar_request *request, struct buf *image,
                    struct grammar_error *error)
{
    struct compile c = {.error = error,
                        .deadline_us = clock_cpu_us() + GRAMMAR_COMPILE_US,
                        .spacing = request->spacing,
                        .spacing_len = request->spacing_len};
    size_t before = image->len;
    struct build b;
    uint32_t root;

    if (error != NULL)
        memset(error, 0, sizeof *error);
    c.arena.limit_bytes = GRAMMAR_MEMORY_MAX;
    build_init(&b, &c);
    if (request->source_len > GRAMMAR_SOURCE_MAX || request->spacing_len > GRAMMAR_SOURCE_MAX)
        compile_fail(&c, ERR_LIMIT, "longer than %zu bytes", GRAMMAR_SOURCE_MAX);
    root = compile_ok(&c) ? request_build(&b, request) : 0;
    if (compile_ok(&c))
        build_write(&b, root, image);
    if (c.rc != 0)
        image->len = before;
    arena_reset(&c.arena);
    return c.rc;
}
