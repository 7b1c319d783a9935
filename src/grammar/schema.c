/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON schemas: goals are built one after another until no new ones are named. */
#include <stdlib.h>
#include <string.h>

#include "grammar/regular.h"
#include "grammar/schema_parts.h"
#include "grammar/source.h"

#define INDENT_MAX 32 /* blanks behind a line's end: eight levels of four */
#define GOALS_MAX  50000

/* --- white space -------------------------------------------------------------------------- */

/* A new end from which a blank leads on. */
static uint32_t blank_build(struct build *b, uint32_t to)
{
    uint32_t from = build_end(b);

    build_edge(b, from, ' ', ' ', to);
    build_edge(b, from, '\t', '\t', to);
    return from;
}

static void line_end_build(struct build *b, uint32_t from, uint32_t to)
{
    uint32_t cr = build_state(b);

    build_edge(b, from, '\n', '\n', to);
    build_edge(b, from, '\r', '\r', cr);
    build_edge(b, cr, '\n', '\n', to);
}

/* A blank or not, then a line's end or two, then an indentation. */
static uint32_t spaces_flexible(struct schema *s)
{
    struct build *b = s->b;
    uint32_t indent = s->end;
    uint32_t line, blank, start;
    int i;

    for (i = 1; i < INDENT_MAX && compile_ok(s->c); i++)
        indent = blank_build(b, indent);
    line = blank_build(b, indent); /* the first */
    line_end_build(b, line, blank_build(b, indent));
    blank = build_end(b);
    line_end_build(b, blank, line);
    start = blank_build(b, blank);
    line_end_build(b, start, line);
    return start;
}

static bool both_match(const void *arg, uint32_t mask)
{
    (void)arg;
    return mask == 3;
}

/* What the client's pattern matches, if JSON takes it there. */
static uint32_t spaces_of_pattern(struct schema *s)
{
    static const char json[] = "[ \\t\\n\\r]*";
    const struct dfa *parts[2] = {regex_whole(s->c, s->c->spacing, s->c->spacing_len),
                                  regex_whole(s->c, json, sizeof json - 1)};
    const struct dfa *d =
        compile_ok(s->c) ? dfa_side_by_side(s->c, parts, 2, 0, NONE, both_match, NULL) : NULL;

    if (compile_ok(s->c) && d->states[0].label == 0 && d->states[0].n_edges == 0)
        compile_fail(s->c, ERR_INVALID, "whitespace_pattern matches no white space of JSON");
    return compile_ok(s->c) ? dfa_build(s->b, d, -1, NULL) : 0;
}

static uint32_t spaces(struct schema *s)
{
    if (s->space_rule == NONE)
        s->space_rule = s->space == GRAMMAR_SPACED ? spaces_of_pattern(s) : spaces_flexible(s);
    return s->space_rule;
}

void space_build(struct schema *s, uint32_t from, uint32_t to)
{
    if (s->space == GRAMMAR_COMPACT)
        build_jump(s->b, from, to);
    else
        build_call(s->b, from, spaces(s), to);
}

void space_build_after(struct schema *s, uint32_t from, uint32_t to)
{
    space_build(s, from, to);
    if (s->space == GRAMMAR_COMPACT)
        build_edge(s->b, from, ' ', ' ', to);
}

void colon_build(struct schema *s, uint32_t from, uint32_t to)
{
    if (s->colon_rule == NONE) {
        uint32_t gap = build_state(s->b);

        s->colon_rule = build_state(s->b);
        if (s->space == GRAMMAR_SPACED)
            space_build(s, s->colon_rule, gap);
        else
            build_jump(s->b, s->colon_rule, gap);
        if (s->space == GRAMMAR_FLEXIBLE) /* nobody breaks a line there */
            build_edge(s->b, s->colon_rule, ' ', ' ', gap);
        space_build_after(s, build_text(s->b, gap, ":", 1), s->end);
    }
    build_call(s->b, from, s->colon_rule, to);
}

/* --- goals -------------------------------------------------------------------------------- */

static int number_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Says nothing: true, {}, or not false. */
static bool is_idle(const struct literal *l)
{
    if (l->constant)
        return false;
    if (l->node->kind == JSON_BOOL)
        return l->node->flag != l->negated;
    return l->node->kind == JSON_OBJECT && l->node->n == 0 && !l->negated;
}

uint32_t goal_state(struct schema *s, uint32_t *literals, uint32_t n)
{
    uint32_t kept = 0;
    uint32_t i, number;
    bool is_new;

    qsort(literals, n, sizeof *literals, number_order);
    for (i = 0; i < n && compile_ok(s->c); i++)
        if (!is_idle(&s->literals.items[literals[i]]) &&
            (kept == 0 || literals[kept - 1] != literals[i]))
            literals[kept++] = literals[i];
    number = keys_find(&s->goal_keys, literals, kept, &is_new);
    if (number >= GOALS_MAX)
        compile_fail(s->c, ERR_LIMIT, "more than %d different places: simplify it", GOALS_MAX);
    if (is_new && LIST_ADD(s->c, &s->goal_states))
        s->goal_states.items[number] = build_state(s->b);
    return compile_ok(s->c) ? s->goal_states.items[number] : 0;
}

/* --- values ------------------------------------------------------------------------------- */

typedef void build_value(struct schema *s, uint32_t from, const struct alternative *a);

/* One type of all alternatives that have it. What is free covers all others; several begin in
 * states of their own, because they begin alike. */
static void build_type(struct schema *s, uint32_t start, const struct alternatives *all,
                       unsigned type, build_value *build,
                       bool (*is_free)(const struct alternative *))
{
    const struct alternative *first = NULL;
    uint32_t n = 0;
    uint32_t i, own;

    for (i = 0; i < all->n && compile_tick(s->c); i++) {
        if ((all->items[i].types & type) == 0)
            continue;
        if (is_free != NULL && is_free(&all->items[i])) {
            build(s, start, &all->items[i]);
            return;
        }
        first = n++ == 0 ? &all->items[i] : first;
    }
    if (n == 1)
        build(s, start, first);
    for (i = 0; i < all->n && n > 1 && compile_tick(s->c); i++)
        if ((all->items[i].types & type) != 0) {
            own = build_state(s->b);
            build(s, own, &all->items[i]);
            build_jump(s->b, start, own);
        }
}

static void build_goal(struct schema *s, uint32_t number)
{
    const struct key *key = &s->goal_keys.items[number];
    uint32_t *literals = compile_alloc(s->c, (size_t)(key->n + 1) * sizeof *literals);
    uint32_t start = s->goal_states.items[number];
    struct alternatives all;
    unsigned types = 0;
    uint32_t i;

    if (literals == NULL)
        return;
    if (key->n > 0)
        memcpy(literals, s->goal_keys.words.items + key->at, key->n * sizeof *literals);
    if (key->n > 0)
        s->c->at = s->literals.items[literals[0]].node;
    all = expand(s, literals, key->n);
    for (i = 0; i < all.n; i++)
        types |= all.items[i].types;
    if ((types & TYPE_NULL) != 0)
        build_word(s->b, start, "null", 4);
    if ((types & TYPE_FALSE) != 0)
        build_word(s->b, start, "false", 5);
    if ((types & TYPE_TRUE) != 0)
        build_word(s->b, start, "true", 4);
    build_type(s, start, &all, TYPE_NUMBER, number_build, number_is_free);
    build_type(s, start, &all, TYPE_STRING, string_build, string_is_free);
    build_type(s, start, &all, TYPE_ARRAY, array_build, NULL);
    build_type(s, start, &all, TYPE_OBJECT, object_build, NULL);
}

/* Strings as they are, of all alternatives that have them. */
static uint32_t build_bare(struct schema *s, uint32_t literal)
{
    struct alternatives all = expand(s, &literal, 1);
    uint32_t start = build_state(s->b);
    uint32_t i;

    for (i = 0; i < all.n && compile_tick(s->c); i++)
        if ((all.items[i].types & TYPE_STRING) != 0)
            build_jump(s->b, start, dfa_build(s->b, string_dfa(s, &all.items[i]), -1, NULL));
    return start;
}

static uint32_t build_goals(struct schema *s, uint32_t literal)
{
    uint32_t root = goal_state(s, &literal, 1);

    while (compile_ok(s->c) && s->n_built < s->goal_states.n) /* at most GOALS_MAX */
        build_goal(s, s->n_built++);
    return root;
}

static const struct dfa *holds_of(struct compile *c, const struct grammar_part *part)
{
    if (part->n_parts == 0)
        return NULL;
    if (part->n_parts == 1 && part->parts[0].kind == PART_REGEX)
        return regex_whole(c, part->parts[0].text, part->parts[0].len);
    compile_fail(c, ERR_INVALID, "a schema's parts must be one pattern");
    return NULL;
}

uint32_t schema_part_build(struct build *b, const struct grammar_part *part,
                           enum grammar_space space)
{
    struct compile *c = b->c;
    struct schema *s = compile_alloc(c, sizeof *s);
    const char *text = part->text;
    size_t len = part->len;
    char why[200] = "";
    uint32_t literal, root = 0;
    int rc;

    if (s == NULL)
        return 0;
    s->c = c;
    s->holds = holds_of(c, part);
    s->b = b;
    s->space = space;
    s->literal_keys.c = s->goal_keys.c = s->string_keys.c = c;
    s->space_rule = s->colon_rule = s->body = s->more_rule = s->number = NONE;
    s->end = build_end(b);
    if (len == 0) {
        text = "true";
        len = 4;
    }
    rc = json_parse(&s->root, &c->arena, text, len, why, sizeof why);
    if (rc == ERR_NO_MEMORY && c->arena.limited) {
        compile_fail(c, ERR_LIMIT, "needs more memory to compile than is allowed: simplify it");
        return 0;
    }
    if (rc != ERR_OK) {
        compile_fail(c, rc, "the schema is not JSON: %s", why);
        return 0;
    }
    index_schema(s);
    literal = literal_of(s, s->root, false, false);
    if (compile_ok(c))
        root = part->kind == PART_STRING ? build_bare(s, literal) : build_goals(s, literal);
    if (c->rc != 0 && c->error != NULL && c->at != NULL && c->error->where[0] == '\0')
        index_pointer(s->root, c->at, c->error->where, sizeof c->error->where);
    c->at = NULL;
    return root;
}

uint32_t schema_build(struct build *b, const char *text, size_t len, enum grammar_space space)
{
    const struct grammar_part part = {.kind = PART_SCHEMA, .text = text, .len = len};

    return schema_part_build(b, &part, space);
}
