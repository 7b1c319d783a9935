/* SPDX-License-Identifier: Apache-2.0
 *
 * Strings. Between the quotes is one of: free text, a counted number of characters, a list of
 * texts, or a language (patterns and formats in parallel). Equal constraints are built once, as the
 * states after the opening quote; the closing quote leads to the shared end. */
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "grammar/regular.h"
#include "grammar/schema_parts.h"

#define LENGTH_NO_LIMIT 1048576 /* characters: no output is that long, so no bound is needed */
#define LENGTH_INLINE   1024    /* counted one by one; larger bounds in blocks */
#define STRING_BLOCK    256
/* A maxLength is counted in the stack (automaton.h) if it is larger than COUNT_LEAST and the
 * product of states and count would have more than COUNT_PRODUCT states. */
#define COUNT_LEAST   64
#define COUNT_PRODUCT 4000
#define COUNT_MOST    65000

struct limits {
    uint32_t min, max; /* characters; max NONE: unbounded */
};

/* --- languages ---------------------------------------------------------------------------- */

/* The language of a pattern or format, which is built once per text. */
static const struct dfa *schema_named(struct schema *schema, const struct json *text,
                                      enum language kind)
{
    size_t len = text->text_len;
    const struct dfa *dfa = NULL;
    uint32_t i;

    /* Patterns occur repeatedly, for example in a list of tools, and a dfa is expensive. */
    for (i = 0; i < schema->dfas.n; i++)
        if (schema->dfas.items[i].kind == kind && schema->dfas.items[i].len == len &&
            memcmp(schema->dfas.items[i].text, text->text, len) == 0)
            return schema->dfas.items[i].dfa;
    /* Errors in the pattern are reported at its place. */
    schema->c->at = text;
    switch (kind) {
    case LANGUAGE_PATTERN: dfa = regex_search(schema->c, text->text, len); break;
    case LANGUAGE_FORMAT: dfa = schema_format_language(schema->c, text->text); break;
    case LANGUAGE_WIDE: dfa = schema_format_wide(schema->c, text->text); break;
    case LANGUAGE_NARROW: dfa = schema_format_narrow(schema->c, text->text); break;
    }
    /* An error leaves NULL in the list, which is harmless: nothing is built after an error. */
    if (LIST_ADD(schema->c, &schema->dfas))
        schema->dfas.items[schema->dfas.n - 1] = (struct named_dfa){text->text, len, kind, dfa};
    return dfa;
}

const struct dfa *schema_pattern_dfa(struct schema *schema, const struct json *text)
{
    return schema_named(schema, text, LANGUAGE_PATTERN);
}

const struct dfa *schema_format_dfa(struct schema *schema, const struct json *text)
{
    return schema_named(schema, text, LANGUAGE_FORMAT);
}

/* The bounds on the length, from all atoms. */
static struct limits schema_limits_of(const struct alternative *alternative)
{
    struct limits limits = {0, NONE};
    const struct atom *atom;

    /* The narrowest of all bounds applies. */
    for (atom = alternative->atoms; atom != NULL; atom = atom->next) {
        if (atom->kind == ATOM_LENGTH_LEAST && atom->n > limits.min)
            limits.min = atom->n;
        if (atom->kind == ATOM_LENGTH_MOST && atom->n < limits.max)
            limits.max = atom->n;
    }
    /* No output is that long, so such a bound needs no states. */
    if (limits.max > LENGTH_NO_LIMIT)
        limits.max = NONE;
    return limits;
}

/* Which parts must accept a text, and which must not: (mask & w->mask) == w->value. */
struct wanted {
    uint32_t mask, value;
};

static bool schema_keep_wanted(const void *arg, uint32_t mask)
{
    const struct wanted *wanted = arg;

    return (mask & wanted->mask) == wanted->value;
}

/* Is a format combined with a pattern, a list of texts, or another format? */
static bool schema_has_company(const struct alternative *alternative, const struct atom *format)
{
    const struct atom *atom;

    for (atom = alternative->atoms; atom != NULL; atom = atom->next)
        if (atom->kind == ATOM_PATTERN || atom->kind == ATOM_STRINGS ||
            (atom->kind == ATOM_FORMAT && strcmp(atom->node->text, format->node->text) != 0))
            return true;
    return false;
}

/* How exactly a format is enforced: by itself exactly, combined with other constraints
 * approximately. */
static enum language schema_format_kind(const struct alternative *alternative,
                                        const struct atom *atom)
{
    struct limits limits = schema_limits_of(alternative);
    bool counted = limits.min > 0 || limits.max != NONE;

    if ((!counted && !schema_has_company(alternative, atom)) ||
        !schema_format_has_shape(atom->node->text, counted))
        return LANGUAGE_FORMAT;
    if (atom->negated)
        return LANGUAGE_NARROW;
    return LANGUAGE_WIDE;
}

/* The language of the texts among node[0 .. n). */
static const struct dfa *schema_list_dfa(struct schema *schema, const struct json *node, uint32_t n)
{
    const struct regular *tree = regular_node(schema->c, REGULAR_NEVER, NULL, NULL);
    uint32_t i;

    for (i = 0; i < n && compile_tick(schema->c); i++)
        if (node[i].kind == JSON_TEXT)
            tree = regular_node(schema->c, REGULAR_ALT, tree,
                                regular_text(schema->c, node[i].text, node[i].text_len));
    if (compile_ok(schema->c))
        return regular_dfa(schema->c, tree);
    return NULL;
}

/* All constraints of an alternative as one language, with these bounds on the length. */
static const struct dfa *schema_string_dfa_within(struct schema *schema,
                                                  const struct alternative *alternative,
                                                  struct limits limits)
{
    const struct dfa *parts[DFA_PARTS_MAX];
    struct wanted wanted = {0, 0};
    const struct atom *atom;
    uint32_t n = 0;

    for (atom = alternative->atoms; atom != NULL && compile_ok(schema->c); atom = atom->next) {
        const struct dfa *dfa = NULL;

        if (atom->kind == ATOM_PATTERN)
            dfa = schema_pattern_dfa(schema, atom->node);
        else if (atom->kind == ATOM_FORMAT)
            dfa = schema_named(schema, atom->node, schema_format_kind(alternative, atom));
        else if (atom->kind == ATOM_STRINGS)
            dfa = schema_list_dfa(schema, atom->node, atom->n);
        if (dfa == NULL)
            continue;
        if (n + (schema->holds != NULL) == DFA_PARTS_MAX) {
            compile_fail(schema->c, ERR_LIMIT, "more than %d patterns on one string",
                         DFA_PARTS_MAX);
            return NULL;
        }
        /* Bit n of the mask: part n counts. Bit n of the value: it must match; otherwise it must
         * not. */
        parts[n] = dfa;
        wanted.mask |= 1u << n;
        if (atom->negated)
            wanted.value |= 0;
        else
            wanted.value |= 1u << n;
        n++;
    }
    if (schema->holds != NULL && n < DFA_PARTS_MAX) {
        parts[n] = schema->holds;
        wanted.mask |= 1u << n;
        wanted.value |= 1u << n;
        n++;
    }
    if (!compile_ok(schema->c))
        return NULL;
    /* One part without bounds is its own product. */
    if (n == 1 && wanted.value == 1 && limits.min == 0 && limits.max == NONE)
        return parts[0];
    return dfa_side_by_side(schema->c, &(struct dfa_product){.parts = parts,
                                                             .n = n,
                                                             .min_len = limits.min,
                                                             .max_len = limits.max,
                                                             .keep = schema_keep_wanted,
                                                             .arg = &wanted});
}

const struct dfa *schema_string_dfa(struct schema *schema, const struct alternative *alternative)
{
    return schema_string_dfa_within(schema, alternative, schema_limits_of(alternative));
}

/* The language without its maxLength, which is counted in the stack: the 2083 characters of
 * pydantic's HttpUrl would take half a million states. NONE where it is not worthwhile or not
 * possible. */
static uint32_t schema_counted_body(struct schema *schema, const struct alternative *alternative)
{
    struct limits limits = schema_limits_of(alternative);
    uint32_t most = limits.max, from, start;
    const struct dfa *dfa;

    if (schema->holds != NULL || most == NONE || most <= COUNT_LEAST || most > COUNT_MOST)
        return NONE;
    /* Build the language without the maximum, and count only if the product would be large. */
    limits.max = NONE;
    dfa = schema_string_dfa_within(schema, alternative, limits);
    if (!compile_ok(schema->c) || (uint64_t)dfa->n_states * most <= COUNT_PRODUCT)
        return NONE;
    start = dfa_build_json_counted(schema->b, dfa, most);
    if (start == NONE || !compile_ok(schema->c))
        return NONE;
    from = build_state(schema->b);
    build_call(schema->b, from, start, schema->end);
    return from;
}

/* --- free and counted strings ------------------------------------------------------------- */

static const char hex_ranges[][2] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

/* n hexadecimal digits. */
static uint32_t schema_hex_digits(struct build *build, uint32_t from, int n, uint32_t to)
{
    int i;
    size_t k;

    must(n > 0);
    /* Each digit leads from one state to the next; the last one leads to `to`. */
    for (i = 0; i < n && compile_ok(build->c); i++) {
        uint32_t next = i + 1 < n ? build_state(build) : to;

        /* A digit is one of three ranges: 0-9, A-F, a-f. */
        for (k = 0; k < 3; k++)
            build_edge(build, from, (uint8_t)hex_ranges[k][0], (uint8_t)hex_ranges[k][1], next);
        from = next;
    }
    return from;
}

/* An edge per byte of a list. */
static void schema_edge_either(struct build *build, uint32_t from, const char *bytes, uint32_t to)
{
    for (; *bytes != '\0'; bytes++)
        build_edge(build, from, (uint8_t)*bytes, (uint8_t)*bytes, to);
}

/* After "\u": a character, or a pair of surrogates: d8..db, then "\u" and dc..df. */
static void schema_unicode_escape(struct build *build, uint32_t from, uint32_t to)
{
    uint32_t rest = build_state(build);
    uint32_t surrogate = build_state(build);
    uint32_t low = build_state(build);
    uint32_t high = build_state(build);
    uint32_t pair = build_state(build);
    uint32_t second;

    /* 0000 to cfff and e000 to ffff are characters; d000 to d7ff as well; d800 to dbff begin a
     * pair. */
    schema_edge_either(build, from, "0123456789abcefABCEF", rest);
    schema_edge_either(build, from, "dD", surrogate);
    schema_hex_digits(build, rest, 3, to);
    schema_edge_either(build, surrogate, "01234567", low);
    schema_hex_digits(build, low, 2, to);
    schema_edge_either(build, surrogate, "89abAB", high);
    schema_hex_digits(build, high, 2, pair);
    second = build_text(build, pair, "\\u", 2);
    surrogate = build_state(build);
    low = build_state(build);
    schema_edge_either(build, second, "dD", surrogate);
    schema_edge_either(build, surrogate, "cdefCDEF", low);
    schema_hex_digits(build, low, 2, to);
}

/* The rule of all characters that are not one byte: escapes, and UTF-8 of two to four bytes. */
static uint32_t schema_more_rule(struct schema *schema)
{
    static const struct {
        uint8_t from, lo, hi, to;
    } edges[] = {{0, 0xc2, 0xdf, 1}, {0, 0xe0, 0xe0, 2}, {0, 0xe1, 0xec, 3}, {0, 0xed, 0xed, 4},
                 {0, 0xee, 0xef, 3}, {0, 0xf0, 0xf0, 5}, {0, 0xf1, 0xf3, 6}, {0, 0xf4, 0xf4, 7},
                 {1, 0x80, 0xbf, 8}, {2, 0xa0, 0xbf, 1}, {3, 0x80, 0xbf, 1}, {4, 0x80, 0x9f, 1},
                 {5, 0x90, 0xbf, 3}, {6, 0x80, 0xbf, 3}, {7, 0x80, 0x8f, 3}};
    uint32_t state[9];
    uint32_t escape, unicode;
    size_t i;

    /* Built once: every position of a counted string calls it. */
    if (schema->more_rule != NONE)
        return schema->more_rule;
    for (i = 0; i < 8; i++)
        state[i] = build_state(schema->b);
    state[8] = schema->end;
    for (i = 0; i < sizeof edges / sizeof edges[0]; i++)
        build_edge(schema->b, state[edges[i].from], edges[i].lo, edges[i].hi, state[edges[i].to]);
    escape = build_state(schema->b);
    unicode = build_state(schema->b);
    build_edge(schema->b, state[0], '\\', '\\', escape);
    schema_edge_either(schema->b, escape, "\"\\/bfnrt", schema->end);
    build_edge(schema->b, escape, 'u', 'u', unicode);
    schema_unicode_escape(schema->b, unicode, schema->end);
    schema->more_rule = state[0];
    return schema->more_rule;
}

/* One character, from one state to another. */
static void schema_one_char(struct schema *schema, uint32_t from, uint32_t to)
{
    build_edge(schema->b, from, 0x20, 0x21, to);
    build_edge(schema->b, from, 0x23, 0x5b, to);
    build_edge(schema->b, from, 0x5d, 0x7f, to);
    build_call(schema->b, from, schema_more_rule(schema), to);
}

/* Set the hint `plain` of a state: how many plain characters may follow. */
static void schema_set_plain(struct schema *schema, uint32_t state, uint32_t chars)
{
    if (compile_ok(schema->c))
        schema->b->states.items[state].plain = (uint8_t)(chars > 254 ? 254 : chars);
}

/* The free string, which is built once: a state that leads to itself. */
static uint32_t schema_free_body(struct schema *schema)
{
    if (schema->body == NONE) {
        schema->body = build_state(schema->b);
        schema_one_char(schema, schema->body, schema->body);
        build_edge(schema->b, schema->body, '"', '"', schema->end);
        if (compile_ok(schema->c))
            schema->b->states.items[schema->body].plain = 255;
    }
    return schema->body;
}

/* A line of min to max characters, then the quote; with max NONE the rest is free. Built from its
 * end. */
static uint32_t schema_counted_line(struct schema *schema, uint32_t min, uint32_t max)
{
    uint32_t last = max == NONE ? min : max;
    uint32_t at = NONE;
    uint32_t i;

    must(min <= max);
    /* From the end to the start, because each state needs its successor. State i is the one
     * after i characters. */
    for (i = last + 1; i-- > 0 && compile_ok(schema->c);) {
        uint32_t state =
            max == NONE && i == last ? schema_free_body(schema) : build_state(schema->b);

        if (at != NONE)
            schema_one_char(schema, state, at);
        /* The quote may follow once there are `min` characters. */
        if (i >= min && !(max == NONE && i == last))
            build_edge(schema->b, state, '"', '"', schema->end);
        /* "Plain" is the number of ordinary characters that may follow without leaving the
         * string. The mask uses it to allow whole slices of tokens without walking them. */
        if (max == NONE && i < last)
            schema_set_plain(schema, state, 254);
        else if (max != NONE)
            schema_set_plain(schema, state, last - i);
        at = state;
    }
    if (at == NONE)
        return 0;
    return at;
}

/* A rule of exactly STRING_BLOCK characters. */
static uint32_t schema_block_rule(struct schema *schema)
{
    uint32_t at = schema->end;
    int i;

    for (i = 0; i < STRING_BLOCK && compile_ok(schema->c); i++) {
        uint32_t state = build_state(schema->b);

        schema_one_char(schema, state, at);
        schema_set_plain(schema, state, (uint32_t)i + 1);
        at = state;
    }
    return at;
}

/* Many characters: at each boundary of a block either a whole block follows, by a call, or the
 * last, shorter one with the quote. Two configurations are alive at a time, and STRING_BLOCK states
 * serve all blocks. */
static uint32_t schema_counted_blocks(struct schema *schema, uint32_t min, uint32_t max)
{
    uint32_t n = (max == NONE ? min : max) / STRING_BLOCK;
    uint32_t rule = schema_block_rule(schema);
    uint32_t tail = NONE; /* 0 to STRING_BLOCK - 1 characters and the quote */
    uint32_t next = NONE;
    uint32_t i;

    for (i = n + 1; i-- > 0 && compile_ok(schema->c);) {
        uint32_t at = build_state(schema->b);
        uint32_t first = i * STRING_BLOCK;
        uint32_t lo = min > first ? min - first : 0;
        uint32_t hi = max == NONE || max - first >= STRING_BLOCK ? STRING_BLOCK - 1 : max - first;

        if (next != NONE)
            build_call(schema->b, at, rule, next);
        if (max == NONE && i == n) {
            build_jump(schema->b, at, schema_counted_line(schema, lo, NONE));
        } else if (lo == 0 && hi == STRING_BLOCK - 1) {
            if (tail == NONE)
                tail = schema_counted_line(schema, 0, STRING_BLOCK - 1);
            build_jump(schema->b, at, tail);
        } else if (lo <= hi) {
            build_jump(schema->b, at, schema_counted_line(schema, lo, hi));
        }
        next = at;
    }
    if (next == NONE)
        return 0;
    return next;
}

/* --- lists of texts ----------------------------------------------------------------------- */

/* Is a text in an atom's list? */
static bool schema_in_texts(const struct atom *atom, const struct json *text)
{
    uint32_t i;

    for (i = 0; i < atom->n; i++)
        if (atom->node[i].kind == JSON_TEXT && atom->node[i].text_len == text->text_len &&
            memcmp(atom->node[i].text, text->text, text->text_len) == 0)
            return true;
    return false;
}

/* The number of characters. */
static uint32_t schema_char_count(const struct json *text)
{
    uint32_t n = 0;
    size_t i;

    for (i = 0; i < text->text_len; i++)
        n += ((unsigned char)text->text[i] & 0xc0) != 0x80;
    return n;
}

/* Does a text satisfy all atoms, exactly? */
static bool schema_text_fits(struct schema *schema, const struct alternative *alternative,
                             const struct json *text)
{
    struct limits limits = schema_limits_of(alternative);
    const struct atom *atom;
    const struct dfa *dfa;

    if (schema_char_count(text) < limits.min ||
        (limits.max != NONE && schema_char_count(text) > limits.max))
        return false;
    if (schema->holds != NULL && dfa_match(schema->holds, text->text, text->text_len) == 0)
        return false;
    /* Each atom is tested on its own; a product is not needed for a single text. */
    for (atom = alternative->atoms; atom != NULL && compile_tick(schema->c); atom = atom->next) {
        dfa = NULL;
        if (atom->kind == ATOM_STRINGS && schema_in_texts(atom, text) == atom->negated)
            return false;
        if (atom->kind == ATOM_PATTERN)
            dfa = schema_pattern_dfa(schema, atom->node);
        else if (atom->kind == ATOM_FORMAT)
            dfa = schema_format_dfa(schema, atom->node);
        if (dfa != NULL && (dfa_match(dfa, text->text, text->text_len) != 0) == atom->negated)
            return false;
    }
    return compile_ok(schema->c);
}

/* A tree of the texts of a list that satisfy all other constraints. */
static uint32_t schema_string_build_list(struct schema *schema,
                                         const struct alternative *alternative,
                                         const struct atom *list)
{
    uint32_t root = build_state(schema->b);
    struct buf text = {.limit = GRAMMAR_SOURCE_MAX};
    uint32_t i;

    /* Each text is tested alone against the other constraints, such as a pattern beside an enum. */
    for (i = 0; i < list->n && compile_tick(schema->c); i++) {
        const struct json *node = &list->node[i];

        if (node->kind != JSON_TEXT || !schema_text_fits(schema, alternative, node))
            continue;
        buf_clear(&text);
        /* The tree holds the text as JSON, with its escapes, up to the closing quote. */
        buf_add_json_text(&text, node->text, node->text_len);
        if (text.failed)
            compile_fail(schema->c, ERR_NO_MEMORY, "out of memory");
        /* The values share a tree, so a walk has one configuration, however long the list is. */
        build_insert_here(schema->b, root, text.bytes == NULL ? "" : text.bytes, text.len, '"',
                          schema->end);
    }
    buf_fini(&text);
    return root;
}

/* --- one alternative ---------------------------------------------------------------------- */

/* Does an atom concern strings? */
static bool schema_is_string_atom(const struct atom *atom)
{
    return atom->kind >= ATOM_LENGTH_LEAST && atom->kind <= ATOM_STRINGS;
}

/* Has the string no constraint? Unknown formats are annotations and do not count. */
bool schema_string_is_free(const struct alternative *alternative)
{
    const struct atom *atom;

    for (atom = alternative->atoms; atom != NULL; atom = atom->next)
        if (schema_is_string_atom(atom) && atom->kind != ATOM_FORMAT)
            return false;
        else if (atom->kind == ATOM_FORMAT && schema_format_is_known(atom->node->text))
            return false;
    return true;
}

/* Build the inside of a string and its closing quote, by the simplest means that fits. */
static uint32_t schema_string_body(struct schema *schema, const struct alternative *alternative)
{
    struct limits limits = schema_limits_of(alternative);
    const struct atom *atom;
    bool language = schema->holds != NULL;
    uint32_t leaf[2] = {NONE, schema->end};

    if (schema_string_is_free(alternative) && !language)
        return schema_free_body(schema);
    for (atom = alternative->atoms; atom != NULL; atom = atom->next) {
        if (atom->kind == ATOM_STRINGS && !atom->negated)
            return schema_string_build_list(schema, alternative, atom);
        language = language || atom->kind == ATOM_PATTERN || atom->kind == ATOM_STRINGS ||
                   (atom->kind == ATOM_FORMAT && schema_format_is_known(atom->node->text));
    }
    /* A maxLength that is too large for a product with the pattern is counted in the stack. */
    if (language) {
        uint32_t counted = schema_counted_body(schema, alternative);
        const struct dfa *dfa = counted == NONE ? schema_string_dfa(schema, alternative) : NULL;

        if (counted != NONE)
            return counted;

        if (!compile_ok(schema->c))
            return 0;
        if (schema->holds == NULL)
            return dfa_build_json(schema->b, dfa, leaf);
        return dfa_build_json_once(schema->b, dfa, leaf);
    }
    /* Nothing can satisfy it: a state without edges. */
    if (limits.max != NONE && limits.min > limits.max)
        return build_state(schema->b);
    if (limits.max == NONE && limits.min > LENGTH_NO_LIMIT)
        compile_fail(schema->c, ERR_LIMIT, "minLength above %d", LENGTH_NO_LIMIT);
    if ((limits.max == NONE ? limits.min : limits.max) <= LENGTH_INLINE)
        return schema_counted_line(schema, limits.min, limits.max);
    return schema_counted_blocks(schema, limits.min, limits.max);
}

void schema_string_build(struct schema *schema, uint32_t from,
                         const struct alternative *alternative)
{
    LIST(uint32_t) words = {0};
    const struct atom *atom;
    uint32_t number;
    bool is_new;

    /* The key of equal constraints: the atoms, with patterns and formats by their language. */
    for (atom = alternative->atoms; atom != NULL; atom = atom->next) {
        uint64_t node = (uint64_t)(uintptr_t)atom->node;
        uint32_t part[4] = {(uint32_t)atom->kind * 2 + atom->negated, atom->n, (uint32_t)node,
                            (uint32_t)(node >> 32)};
        int i;

        if (atom->kind == ATOM_LENGTH_LEAST || atom->kind == ATOM_LENGTH_MOST)
            part[2] = part[3] = 0;
        if (atom->kind == ATOM_FORMAT || atom->kind == ATOM_PATTERN) {
            enum language kind = atom->kind == ATOM_PATTERN ? LANGUAGE_PATTERN
                                                            : schema_format_kind(alternative, atom);

            node = (uint64_t)(uintptr_t)schema_named(schema, atom->node, kind);
            part[2] = (uint32_t)node;
            part[3] = (uint32_t)(node >> 32);
        }
        for (i = 0; schema_is_string_atom(atom) && i < 4 && LIST_ADD(schema->c, &words); i++)
            words.items[words.n - 1] = part[i];
    }
    number = dfa_keys_find(&schema->string_keys, words.items, words.n, &is_new);
    if (is_new && LIST_ADD(schema->c, &schema->string_states))
        schema->string_states.items[number] = schema_string_body(schema, alternative);
    if (compile_ok(schema->c))
        build_edge(schema->b, from, '"', '"', schema->string_states.items[number]);
}
