/* Says what the grammar of each schema makes of each instance, for scripts that compare it with
 * what should be. One request a line on standard input, one answer a line on standard output:
 *
 *   {"schema": ..., "instances": ["text", ...]}   or "regex", "ebnf": "text"
 *   {"us": 812, "states": 44, "bytes": 1816, "answers": [true, false]}
 *   {"error": -6, "text": "...", "where": "/properties/a/not", "us": 99}
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/must.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/walk.h"

static struct walk_work *work;

static bool accepts(const struct automaton *a, const struct json *text)
{
    struct walk w;

    walk_init(&w, a);
    return walk_bytes(work, a, &w, text->text, text->text_len) == ERR_OK &&
           walk_can_end(work, a, &w);
}

static bool request_read(const struct json *line, struct grammar_request *r, struct buf *source)
{
    static const struct {
        const char *name;
        enum grammar_kind kind;
    } kinds[] = {{"regex", GRAMMAR_REGEX}, {"ebnf", GRAMMAR_EBNF}};
    const struct json *v = json_get(line, "schema");
    size_t i;

    if (v != NULL) {
        json_write(source, v, JSON_COMPACT);
        r->kind = GRAMMAR_SCHEMA;
        r->source = source->bytes;
        r->source_len = source->len;
        return true;
    }
    for (i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        v = json_get_kind(line, kinds[i].name, JSON_TEXT);
        if (v == NULL)
            continue;
        r->kind = kinds[i].kind;
        r->source = v->text;
        r->source_len = v->text_len;
        return true;
    }
    return false;
}

static void judge(const struct json *line, struct buf *out)
{
    struct grammar_request r = {.kind = GRAMMAR_SCHEMA};
    const struct json *instances = json_get_kind(line, "instances", JSON_LIST);
    struct grammar_error why;
    struct buf source = {0};
    struct buf image = {0};
    const struct automaton *a;
    uint64_t start;
    uint32_t i;
    int rc;

    must(request_read(line, &r, &source) && instances != NULL);
    start = clock_us();
    rc = grammar_compile(&r, &image, &why);
    start = clock_us() - start;
    if (rc != ERR_OK) {
        buf_printf(out, "{\"error\": %d, \"us\": %llu, \"text\": ", rc, (unsigned long long)start);
        buf_add_json_string(out, why.text, strlen(why.text));
        buf_add_text(out, ", \"where\": ");
        buf_add_json_string(out, why.where, strlen(why.where));
        buf_add_text(out, "}\n");
    } else {
        a = (const struct automaton *)(const void *)image.bytes;
        must(automaton_check(a, image.len) == ERR_OK);
        buf_printf(out, "{\"us\": %llu, \"states\": %u, \"bytes\": %zu, \"answers\": [",
                   (unsigned long long)start, a->n_states, image.len);
        for (i = 0; i < instances->n; i++)
            buf_printf(out, "%s%s", i > 0 ? ", " : "",
                       accepts(a, &instances->items[i]) ? "true" : "false");
        buf_add_text(out, "]}\n");
    }
    buf_fini(&source);
    buf_fini(&image);
}

int main(void)
{
    struct arena arena = {0};
    struct buf out = {0};
    char *text = NULL;
    size_t cap = 0;
    ssize_t len;

    work = malloc(walk_work_bytes(1));
    must(work != NULL);
    walk_work_init(work, 1);
    while ((len = getline(&text, &cap, stdin)) > 0) {
        const struct json *line;
        char why[200];

        buf_clear(&out);
        if (json_parse(&line, &arena, text, (size_t)len, why, sizeof why) == ERR_OK)
            judge(line, &out);
        else /* as a front would: \\u0000 and lone surrogates */
            buf_add_text(&out, "{\"error\": -4, \"us\": 0, \"text\": \"not JSON that quire reads\", "
                               "\"where\": \"\"}\n");
        (void)fwrite(out.bytes, 1, out.len, stdout); /* a reader that is gone ends us anyway */
        (void)fflush(stdout);
        arena_reset(&arena);
    }
    buf_fini(&out);
    free(text);
    free(work);
    return 0;
}
