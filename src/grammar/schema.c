/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON schemas: the compiler's main loop and white space.
 *
 * A goal (schema_parts.h) gets a state when it is first mentioned. Goals are built in order of
 * that, and building one mentions the goals of its members and items, until all are built:
 *
 *     {"type": "array", "items": S}  ->  goal 0: '[' call goal 1 (',' call goal 1)* ']'
 *                                        goal 1: S */
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "grammar/regular.h"
#include "grammar/schema_parts.h"
#include "grammar/source.h"

#define INDENT_MAX 32 /* blanks after a line end: eight levels of four */
#define GOALS_MAX  50000

/* --- white space -------------------------------------------------------------------------- */

/* White space is a rule that is called wherever JSON allows it. The flexible rule is bounded,
 * because a model that has begun to write blanks may never stop. */

/* A new end, from which a blank leads to `to`. */
static uint32_t schema_blank_build(struct build *build, uint32_t to)
{
    uint32_t from = build_end(build);

    build_edge(build, from, ' ', ' ', to);
    build_edge(build, from, '\t', '\t', to);
    return from;
}

/* A line end, \n or \r\n. */
static void schema_line_end_build(struct build *build, uint32_t from, uint32_t to)
{
    uint32_t cr = build_state(build);

    build_edge(build, from, '\n', '\n', to);
    build_edge(build, from, '\r', '\r', cr);
    build_edge(build, cr, '\n', '\n', to);
}

/* An optional blank, then one or two line ends, then an indentation. All states are ends. */
static uint32_t schema_spaces_flexible(struct schema *schema)
{
    struct build *build = schema->b;
    uint32_t indent = schema->end;
    uint32_t line, blank, start;
    int i;

    for (i = 1; i < INDENT_MAX && compile_ok(schema->c); i++)
        indent = schema_blank_build(build, indent);
    line = schema_blank_build(build, indent); /* after the first line end */
    schema_line_end_build(build, line, schema_blank_build(build, indent));
    blank = build_end(build);
    schema_line_end_build(build, blank, line);
    start = schema_blank_build(build, blank);
    schema_line_end_build(build, start, line);
    return start;
}

/* Keep the texts that both parts accept. */
static bool schema_both_match(const void *arg, uint32_t mask)
{
    (void)arg;
    return mask == 3;
}

/* The texts that match the client's pattern and are white space in JSON. */
static uint32_t schema_spaces_of_pattern(struct schema *schema)
{
    /* A client's pattern could match other text than white space. The intersection with JSON's
     * own white space keeps the output valid. */
    static const char json[] = "[ \\t\\n\\r]*";
    const struct dfa *parts[2] = {
        regex_whole(schema->c, schema->c->spacing, schema->c->spacing_len),
        regex_whole(schema->c, json, sizeof json - 1)};
    const struct dfa *dfa = NULL;

    if (compile_ok(schema->c))
        dfa = dfa_side_by_side(
            schema->c, &(struct dfa_product){
                           .parts = parts, .n = 2, .max_len = NONE, .keep = schema_both_match});
    /* A start state without an end and without edges: the intersection is empty, and no white
     * space could ever be written. */
    if (compile_ok(schema->c) && dfa->states[0].label == 0 && dfa->states[0].n_edges == 0)
        compile_fail(schema->c, ERR_INVALID, "whitespace_pattern matches no white space of JSON");
    if (compile_ok(schema->c))
        return dfa_build(schema->b, dfa, -1, NULL);
    return 0;
}

/* The rule of white space, which is built once. */
static uint32_t schema_spaces(struct schema *schema)
{
    if (schema->space_rule == NONE) {
        if (schema->space == GRAMMAR_SPACED)
            schema->space_rule = schema_spaces_of_pattern(schema);
        else
            schema->space_rule = schema_spaces_flexible(schema);
    }
    return schema->space_rule;
}

void schema_build_space(struct schema *schema, uint32_t from, uint32_t to)
{
    if (schema->space == GRAMMAR_COMPACT)
        build_jump(schema->b, from, to);
    else
        build_call(schema->b, from, schema_spaces(schema), to);
}

void schema_build_space_after(struct schema *schema, uint32_t from, uint32_t to)
{
    schema_build_space(schema, from, to);
    if (schema->space == GRAMMAR_COMPACT)
        build_edge(schema->b, from, ' ', ' ', to);
}

/* The colon between a name and its value, with white space around it. It is the same for all
 * members, so it is one rule that every member calls. */
void schema_build_colon(struct schema *schema, uint32_t from, uint32_t to)
{
    if (schema->colon_rule == NONE) {
        uint32_t gap = build_state(schema->b);

        schema->colon_rule = build_state(schema->b);
        if (schema->space == GRAMMAR_SPACED)
            schema_build_space(schema, schema->colon_rule, gap);
        else
            build_jump(schema->b, schema->colon_rule, gap);
        if (schema->space == GRAMMAR_FLEXIBLE) /* a line end before ':' is not usual */
            build_edge(schema->b, schema->colon_rule, ' ', ' ', gap);
        schema_build_space_after(schema, build_text(schema->b, gap, ":", 1), schema->end);
    }
    build_call(schema->b, from, schema->colon_rule, to);
}

/* --- goals -------------------------------------------------------------------------------- */

/* qsort() order of numbers. */
static int schema_number_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    if (x < y)
        return -1;
    return x > y;
}

/* Is a literal always true: true, {}, or not false? */
static bool schema_is_idle(const struct literal *l)
{
    if (l->constant)
        return false;
    if (l->node->kind == JSON_BOOL)
        return l->node->flag != l->negated;
    return l->node->kind == JSON_OBJECT && l->node->n == 0 && !l->negated;
}

/* Sort the literals, drop duplicates and those that are always true, and look the set up. */
uint32_t schema_goal_state(struct schema *schema, uint32_t *literals, uint32_t n)
{
    uint32_t kept = 0;
    uint32_t i, number;
    bool is_new;

    must(literals != NULL || n == 0);
    qsort(literals, n, sizeof *literals, schema_number_order);
    /* Equal sets of literals must have equal keys: sorted, without duplicates, and without literals
     * that are always true. */
    for (i = 0; i < n && compile_ok(schema->c); i++)
        if (!schema_is_idle(&schema->literals.items[literals[i]]) &&
            (kept == 0 || literals[kept - 1] != literals[i]))
            literals[kept++] = literals[i];
    number = dfa_keys_find(&schema->goal_keys, literals, kept, &is_new);
    if (number >= GOALS_MAX)
        compile_fail(schema->c, ERR_LIMIT, "more than %d different places: simplify it", GOALS_MAX);
    if (is_new && LIST_ADD(schema->c, &schema->goal_states))
        schema->goal_states.items[number] = build_state(schema->b);
    if (compile_ok(schema->c))
        return schema->goal_states.items[number];
    return 0;
}

/* --- values ------------------------------------------------------------------------------- */

typedef void build_value(struct schema *s, uint32_t from, const struct alternative *a);

/* Build one type of all alternatives that have it. A free alternative covers all others. Several
 * others begin in states of their own, reached by calls, because they may begin with the same
 * bytes. */
static void schema_build_type(struct schema *schema, uint32_t start, const struct alternatives *all,
                              unsigned type, build_value *build,
                              bool (*is_free)(const struct alternative *))
{
    const struct alternative *first = NULL;
    uint32_t n = 0;
    uint32_t i, own;

    /* A free alternative allows every value of the type. The demands of the others make no
     * difference then. */
    for (i = 0; i < all->n && compile_tick(schema->c); i++) {
        if ((all->items[i].types & type) == 0)
            continue;
        if (is_free != NULL && is_free(&all->items[i])) {
            build(schema, start, &all->items[i]);
            return;
        }
        if (n++ == 0)
            first = &all->items[i];
    }
    /* A single alternative is built at `start` itself, which saves a call in each walk. */
    if (n == 1)
        build(schema, start, first);
    /* Several: their first bytes are usually equal, such as the quote of a string, and a state
     * may have only one edge per byte. */
    for (i = 0; i < all->n && n > 1 && compile_tick(schema->c); i++)
        if ((all->items[i].types & type) != 0) {
            own = build_state(schema->b);
            build(schema, own, &all->items[i]);
            build_jump(schema->b, start, own);
        }
}

/* Build a goal: expand it, and build each type that some alternative has. */
static void schema_build_goal(struct schema *schema, uint32_t number)
{
    const struct key *key = &schema->goal_keys.items[number];
    uint32_t *literals = compile_alloc(schema->c, (size_t)(key->n + 1) * sizeof *literals);
    uint32_t start;
    struct alternatives all;
    unsigned types = 0;
    uint32_t i;

    must(number < schema->goal_states.n);
    start = schema->goal_states.items[number];
    if (literals == NULL)
        return;
    /* The literals are copied, because the array of keys may move while the goal is built. */
    if (key->n > 0)
        memcpy(literals, schema->goal_keys.words.items + key->at, key->n * sizeof *literals);
    if (key->n > 0)
        schema->c->at = schema->literals.items[literals[0]].node;
    all = schema_expand(schema, literals, key->n);
    /* null, false and true have no constraints, so one word per type is enough. */
    for (i = 0; i < all.n; i++)
        types |= all.items[i].types;
    if ((types & TYPE_NULL) != 0)
        build_word(schema->b, start, "null", 4);
    if ((types & TYPE_FALSE) != 0)
        build_word(schema->b, start, "false", 5);
    if ((types & TYPE_TRUE) != 0)
        build_word(schema->b, start, "true", 4);
    schema_build_type(schema, start, &all, TYPE_NUMBER, schema_number_build, schema_number_is_free);
    schema_build_type(schema, start, &all, TYPE_STRING, schema_string_build, schema_string_is_free);
    schema_build_type(schema, start, &all, TYPE_ARRAY, schema_array_build, NULL);
    schema_build_type(schema, start, &all, TYPE_OBJECT, schema_object_build, NULL);
}

/* The strings of all alternatives, written raw. */
static uint32_t schema_build_bare(struct schema *schema, uint32_t literal)
{
    struct alternatives all = schema_expand(schema, &literal, 1);
    uint32_t start = build_state(schema->b);
    uint32_t i;

    for (i = 0; i < all.n && compile_tick(schema->c); i++)
        if ((all.items[i].types & TYPE_STRING) != 0)
            build_jump(schema->b, start,
                       dfa_build(schema->b, schema_string_dfa(schema, &all.items[i]), -1, NULL));
    return start;
}

/* Build the schema's goal and all goals that are mentioned on the way. */
static uint32_t schema_build_goals(struct schema *schema, uint32_t literal)
{
    uint32_t root = schema_goal_state(schema, &literal, 1);

    while (compile_ok(schema->c) && schema->n_built < schema->goal_states.n) /* at most GOALS_MAX */
        schema_build_goal(schema, schema->n_built++);
    return root;
}

/* The pattern that a part demands of all strings; NULL: none. */
static const struct dfa *schema_holds_of(struct compile *compile, const struct grammar_part *part)
{
    if (part->n_parts == 0)
        return NULL;
    if (part->n_parts == 1 && part->parts[0].kind == PART_REGEX)
        return regex_whole(compile, part->parts[0].text, part->parts[0].len);
    compile_fail(compile, ERR_INVALID, "a schema's parts must be one pattern");
    return NULL;
}

uint32_t schema_part_build(struct build *build, const struct grammar_part *part,
                           enum grammar_space space)
{
    struct compile *compile = build->c;
    struct schema *schema = compile_alloc(compile, sizeof *schema);
    const char *text = part->text;
    size_t len = part->len;
    char why[200] = "";
    uint32_t literal, root = 0;
    int rc;

    must(part->kind == PART_SCHEMA || part->kind == PART_STRING);
    must(part->text != NULL || part->len == 0);
    if (schema == NULL)
        return 0;
    schema->c = compile;
    schema->holds = schema_holds_of(compile, part);
    schema->b = build;
    schema->space = space;
    schema->literal_keys.c = schema->goal_keys.c = schema->string_keys.c = compile;
    schema->space_rule = schema->colon_rule = schema->body = schema->more_rule = schema->number =
        NONE;
    schema->end = build_end(build);
    /* No text means no constraint: the schema `true`. */
    if (len == 0) {
        text = "true";
        len = 4;
    }
    rc = json_parse(&schema->root, &compile->arena, text, len, why, sizeof why);
    if (rc == ERR_NO_MEMORY && compile->arena.limited) {
        compile_fail(compile, ERR_LIMIT,
                     "needs more memory to compile than is allowed: simplify it");
        return 0;
    }
    if (rc != ERR_OK) {
        compile_fail(compile, rc, "the schema is not JSON: %s", why);
        return 0;
    }
    schema_index_add(schema);
    literal = schema_literal_of(schema, schema->root, false, false);
    if (compile_ok(compile)) {
        if (part->kind == PART_STRING)
            root = schema_build_bare(schema, literal);
        else
            root = schema_build_goals(schema, literal);
    }
    /* An error names the place of the schema that was compiled last, as a JSON pointer. Finding it
     * takes a search of the document, so it is done once and only after an error. */
    if (compile->rc != 0 && compile->error != NULL && compile->at != NULL &&
        compile->error->where[0] == '\0')
        schema_index_pointer(schema->root, compile->at, compile->error->where,
                             sizeof compile->error->where);
    compile->at = NULL;
    return root;
}

uint32_t schema_build(struct build *build, const char *text, size_t len, enum grammar_space space)
{
    const struct grammar_part part = {.kind = PART_SCHEMA, .text = text, .len = len};

    return schema_part_build(build, &part, space);
}
