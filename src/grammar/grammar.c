/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry point: chooses the compiler for a request and runs it within bounds of time and memory.
 * The time is CPU time of the thread, so that a busy machine does not fail a request that an idle
 * one would accept. */
#include "grammar/grammar.h"

#include <string.h>

#include "base/clock.h"
#include "base/must.h"
#include "grammar/regular.h"
#include "grammar/source.h"

uint32_t grammar_build_pattern(struct build *build, const char *text, size_t len)
{
    return dfa_build(build, regex_whole(build->c, text, len), -1, NULL);
}

/* A tree of all choices: a state per distinct prefix. */
static uint32_t grammar_build_choices(struct build *build, const struct grammar_request *request)
{
    uint32_t root = build_state(build);
    size_t i;

    if (request->n_choices == 0)
        compile_fail(build->c, ERR_INVALID, "\"choice\" has no members");
    if (request->n_choices > GRAMMAR_CHOICES_MAX)
        compile_fail(build->c, ERR_LIMIT, "more than %d choices", GRAMMAR_CHOICES_MAX);
    for (i = 0; i < request->n_choices && compile_tick(build->c); i++)
        build_word(build, root, request->choices[i], strlen(request->choices[i]));
    return root;
}

static uint32_t grammar_build_request(struct build *build, const struct grammar_request *request)
{
    static const char object[] = "{\"type\":\"object\"}";

    /* All kinds are built into the same automaton. json_object is a schema that allows any
     * object. */
    switch (request->kind) {
    case GRAMMAR_SCHEMA:
        return schema_build(build, request->source, request->source_len, request->space);
    case GRAMMAR_JSON_OBJECT: return schema_build(build, object, sizeof object - 1, request->space);
    case GRAMMAR_REGEX: return grammar_build_pattern(build, request->source, request->source_len);
    case GRAMMAR_CHOICE: return grammar_build_choices(build, request);
    case GRAMMAR_EBNF: return ebnf_build(build, request->source, request->source_len);
    case GRAMMAR_PARTS: return parts_build(build, request->parts, request->n_parts, request->space);
    }
    /* Only for the compiler: all kinds are handled above. */
    return 0;
}

int grammar_compile(const struct grammar_request *request, struct buf *image,
                    struct grammar_error *error)
{
    struct compile compile = {.error = error,
                              .deadline_us = clock_cpu_us() + GRAMMAR_COMPILE_US,
                              .spacing = request->spacing,
                              .spacing_len = request->spacing_len};
    size_t before = image->len;
    struct build build;
    uint32_t root;

    must(request->source != NULL || request->source_len == 0);
    must(request->choices != NULL || request->n_choices == 0);
    must(request->parts != NULL || request->n_parts == 0);
    must(request->spacing != NULL || request->spacing_len == 0);
    if (error != NULL)
        memset(error, 0, sizeof *error);
    compile.arena.limit_bytes = GRAMMAR_MEMORY_MAX;
    build_init(&build, &compile);
    if (request->source_len > GRAMMAR_SOURCE_MAX || request->spacing_len > GRAMMAR_SOURCE_MAX)
        compile_fail(&compile, ERR_LIMIT, "longer than %zu bytes", GRAMMAR_SOURCE_MAX);
    if (compile_ok(&compile))
        root = grammar_build_request(&build, request);
    else
        root = 0;
    if (compile_ok(&compile))
        build_write(&build, root, image);
    /* After an error the image may contain a part of an automaton, which is removed. */
    if (compile.rc != 0)
        image->len = before;
    arena_reset(&compile.arena);
    return compile.rc;
}
