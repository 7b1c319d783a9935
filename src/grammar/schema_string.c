/* SPDX-License-Identifier: Apache-2.0
 *
 * Strings. What is between the quotes is one of: free, counted characters, a list of texts, or a
 * language (patterns and formats side by side). Each is built once for equal constraints, as the
 * states behind the opening quote; the closing one leads to the end that all share. */
#include <string.h>

#include "base/utf8.h"
#include "grammar/regular.h"
#include "grammar/schema_parts.h"

#define LENGTH_NO_LIMIT 1048576 /* characters: no output is that long, so no limit is needed */
#define LENGTH_INLINE   1024    /* counted one by one; above, in blocks */
#define BLOCK           256
#define COUNT_LEAST     64   /* a maxLength above is counted beside a language's states, where */
#define COUNT_PRODUCT   4000 /* these and the numbers of characters together would be more states */
#define COUNT_MOST      65000

struct limits {
    uint32_t min, max; /* characters; max NONE: no limit */
};

/* --- languages ---------------------------------------------------------------------------- */

static const struct dfa *named(struct schema *s, const struct json *text, enum language kind)
{
    size_t len = text->text_len;
    const struct dfa *d = NULL;
    uint32_t i;

    for (i = 0; i < s->dfas.n; i++)
        if (s->dfas.items[i].kind == kind && s->dfas.items[i].len == len &&
            memcmp(s->dfas.items[i].text, text->text, len) == 0)
            return s->dfas.items[i].dfa;
    s->c->at = text;
    switch (kind) {
    case LANGUAGE_PATTERN: d = regex_search(s->c, text->text, len); break;
    case LANGUAGE_FORMAT: d = format_language(s->c, text->text); break;
    case LANGUAGE_WIDE: d = format_wide(s->c, text->text); break;
    case LANGUAGE_NARROW: d = format_narrow(s->c, text->text); break;
    }
    if (LIST_ADD(s->c, &s->dfas))
        s->dfas.items[s->dfas.n - 1] = (struct named_dfa){text->text, len, kind, d};
    return d;
}

const struct dfa *pattern_dfa(struct schema *s, const struct json *text)
{
    return named(s, text, LANGUAGE_PATTERN);
}

const struct dfa *format_dfa(struct schema *s, const struct json *text)
{
    return named(s, text, LANGUAGE_FORMAT);
}

static struct limits limits_of(const struct alternative *a)
{
    struct limits l = {0, NONE};
    const struct atom *t;

    for (t = a->atoms; t != NULL; t = t->next) {
        if (t->kind == ATOM_LENGTH_LEAST && t->n > l.min)
            l.min = t->n;
        if (t->kind == ATOM_LENGTH_MOST && t->n < l.max)
            l.max = t->n;
    }
    if (l.max > LENGTH_NO_LIMIT)
        l.max = NONE;
    return l;
}

struct wanted {
    uint32_t mask, value;
};

static bool keep_wanted(const void *arg, uint32_t mask)
{
    const struct wanted *w = arg;

    return (mask & w->mask) == w->value;
}

/* Does the text have to do with another language, too? */
static bool has_company(const struct alternative *a, const struct atom *format)
{
    const struct atom *t;

    for (t = a->atoms; t != NULL; t = t->next)
        if (t->kind == ATOM_PATTERN || t->kind == ATOM_STRINGS ||
            (t->kind == ATOM_FORMAT && strcmp(t->node->text, format->node->text) != 0))
            return true;
    return false;
}

/* How exactly a format is held beside limits and other languages. */
static enum language format_kind(const struct alternative *a, const struct atom *t)
{
    struct limits l = limits_of(a);
    bool counted = l.min > 0 || l.max != NONE;

    if ((!counted && !has_company(a, t)) || !format_has_shape(t->node->text, counted))
        return LANGUAGE_FORMAT;
    return t->negated ? LANGUAGE_NARROW : LANGUAGE_WIDE;
}

/* The texts among node[0 .. n) as a language. */
static const struct dfa *list_dfa(struct schema *s, const struct json *node, uint32_t n)
{
    const struct regular *tree = regular_node(s->c, REGULAR_NEVER, NULL, NULL);
    uint32_t i;

    for (i = 0; i < n && compile_tick(s->c); i++)
        if (node[i].kind == JSON_TEXT)
            tree = regular_node(s->c, REGULAR_ALT, tree,
                                regular_text(s->c, node[i].text, node[i].text_len));
    return compile_ok(s->c) ? regular_dfa(s->c, tree) : NULL;
}

/* All constraints on the text as one language, with these limits of its length. */
static const struct dfa *string_dfa_within(struct schema *s, const struct alternative *a,
                                           struct limits l)
{
    const struct dfa *parts[DFA_PARTS_MAX];
    struct wanted w = {0, 0};
    const struct atom *t;
    uint32_t n = 0;

    for (t = a->atoms; t != NULL && compile_ok(s->c); t = t->next) {
        const struct dfa *d = NULL;

        if (t->kind == ATOM_PATTERN)
            d = pattern_dfa(s, t->node);
        else if (t->kind == ATOM_FORMAT)
            d = named(s, t->node, format_kind(a, t));
        else if (t->kind == ATOM_STRINGS)
            d = list_dfa(s, t->node, t->n);
        if (d == NULL)
            continue;
        if (n + (s->holds != NULL) == DFA_PARTS_MAX) {
            compile_fail(s->c, ERR_LIMIT, "more than %d patterns on one string", DFA_PARTS_MAX);
            return NULL;
        }
        parts[n] = d;
        w.mask |= 1u << n;
        w.value |= t->negated ? 0 : 1u << n;
        n++;
    }
    if (s->holds != NULL && n < DFA_PARTS_MAX) {
        parts[n] = s->holds;
        w.mask |= 1u << n;
        w.value |= 1u << n;
        n++;
    }
    if (!compile_ok(s->c))
        return NULL;
    if (n == 1 && w.value == 1 && l.min == 0 && l.max == NONE)
        return parts[0];
    return dfa_side_by_side(s->c, parts, n, l.min, l.max, keep_wanted, &w);
}

const struct dfa *string_dfa(struct schema *s, const struct alternative *a)
{
    return string_dfa_within(s, a, limits_of(a));
}

/* The language without its maxLength, which is counted beside it: HttpUrl's 2083 characters would
 * be half a million states. NONE where that is not worth while, or cannot be. */
static uint32_t counted_body(struct schema *s, const struct alternative *a)
{
    struct limits l = limits_of(a);
    uint32_t most = l.max, from, start;
    const struct dfa *d;

    if (s->holds != NULL || most == NONE || most <= COUNT_LEAST || most > COUNT_MOST)
        return NONE;
    l.max = NONE;
    d = string_dfa_within(s, a, l);
    if (!compile_ok(s->c) || (uint64_t)d->n_states * most <= COUNT_PRODUCT)
        return NONE;
    start = dfa_build_json_counted(s->b, d, most);
    if (start == NONE || !compile_ok(s->c))
        return NONE;
    from = build_state(s->b);
    build_call(s->b, from, start, s->end);
    return from;
}

/* --- free strings and counted ones -------------------------------------------------------- */

static const char hex_ranges[][2] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

static uint32_t hex_digits(struct build *b, uint32_t from, int n, uint32_t to)
{
    int i;
    size_t k;

    for (i = 0; i < n && compile_ok(b->c); i++) {
        uint32_t next = i + 1 < n ? build_state(b) : to;

        for (k = 0; k < 3; k++)
            build_edge(b, from, (uint8_t)hex_ranges[k][0], (uint8_t)hex_ranges[k][1], next);
        from = next;
    }
    return from;
}

static void edge_either(struct build *b, uint32_t from, const char *bytes, uint32_t to)
{
    for (; *bytes != '\0'; bytes++)
        build_edge(b, from, (uint8_t)*bytes, (uint8_t)*bytes, to);
}

/* Behind "\u": a character, or a pair of surrogates with the second's "\u". */
static void unicode_escape(struct build *b, uint32_t from, uint32_t to)
{
    uint32_t rest = build_state(b);
    uint32_t d = build_state(b);
    uint32_t low = build_state(b);
    uint32_t high = build_state(b);
    uint32_t pair = build_state(b);
    uint32_t second;

    edge_either(b, from, "0123456789abcefABCEF", rest);
    edge_either(b, from, "dD", d);
    hex_digits(b, rest, 3, to);
    edge_either(b, d, "01234567", low);
    hex_digits(b, low, 2, to);
    edge_either(b, d, "89abAB", high);
    hex_digits(b, high, 2, pair);
    second = build_text(b, pair, "\\u", 2);
    d = build_state(b);
    low = build_state(b);
    edge_either(b, second, "dD", d);
    edge_either(b, d, "cdefCDEF", low);
    hex_digits(b, low, 2, to);
}

/* The rule of all characters that are not one byte: escapes and UTF-8 of two to four bytes. */
static uint32_t more_rule(struct schema *s)
{
    static const struct {
        uint8_t from, lo, hi, to;
    } edges[] = {{0, 0xc2, 0xdf, 1}, {0, 0xe0, 0xe0, 2}, {0, 0xe1, 0xec, 3}, {0, 0xed, 0xed, 4},
                 {0, 0xee, 0xef, 3}, {0, 0xf0, 0xf0, 5}, {0, 0xf1, 0xf3, 6}, {0, 0xf4, 0xf4, 7},
                 {1, 0x80, 0xbf, 8}, {2, 0xa0, 0xbf, 1}, {3, 0x80, 0xbf, 1}, {4, 0x80, 0x9f, 1},
                 {5, 0x90, 0xbf, 3}, {6, 0x80, 0xbf, 3}, {7, 0x80, 0x8f, 3}};
    uint32_t state[9];
    uint32_t escape, u;
    size_t i;

    if (s->more_rule != NONE)
        return s->more_rule;
    for (i = 0; i < 8; i++)
        state[i] = build_state(s->b);
    state[8] = s->end;
    for (i = 0; i < sizeof edges / sizeof edges[0]; i++)
        build_edge(s->b, state[edges[i].from], edges[i].lo, edges[i].hi, state[edges[i].to]);
    escape = build_state(s->b);
    u = build_state(s->b);
    build_edge(s->b, state[0], '\\', '\\', escape);
    edge_either(s->b, escape, "\"\\/bfnrt", s->end);
    build_edge(s->b, escape, 'u', 'u', u);
    unicode_escape(s->b, u, s->end);
    s->more_rule = state[0];
    return s->more_rule;
}

/* One character, from a state to another. */
static void one_char(struct schema *s, uint32_t from, uint32_t to)
{
    build_edge(s->b, from, 0x20, 0x21, to);
    build_edge(s->b, from, 0x23, 0x5b, to);
    build_edge(s->b, from, 0x5d, 0x7f, to);
    build_call(s->b, from, more_rule(s), to);
}

static void set_plain(struct schema *s, uint32_t state, uint32_t chars)
{
    if (compile_ok(s->c))
        s->b->states.items[state].plain = (uint8_t)(chars > 254 ? 254 : chars);
}

static uint32_t free_body(struct schema *s)
{
    if (s->body == NONE) {
        s->body = build_state(s->b);
        one_char(s, s->body, s->body);
        build_edge(s->b, s->body, '"', '"', s->end);
        if (compile_ok(s->c))
            s->b->states.items[s->body].plain = 255;
    }
    return s->body;
}

/* min to max characters and the closing quote; with max NONE the rest is free. Made from behind. */
static uint32_t counted_line(struct schema *s, uint32_t min, uint32_t max)
{
    uint32_t last = max == NONE ? min : max;
    uint32_t at = NONE;
    uint32_t i;

    for (i = last + 1; i-- > 0 && compile_ok(s->c);) {
        uint32_t state = max == NONE && i == last ? free_body(s) : build_state(s->b);

        if (at != NONE)
            one_char(s, state, at);
        if (i >= min && !(max == NONE && i == last))
            build_edge(s->b, state, '"', '"', s->end);
        if (max == NONE && i < last)
            set_plain(s, state, 254);
        else if (max != NONE)
            set_plain(s, state, last - i);
        at = state;
    }
    return at == NONE ? 0 : at;
}

/* A rule of exactly BLOCK characters. */
static uint32_t block_rule(struct schema *s)
{
    uint32_t at = s->end;
    int i;

    for (i = 0; i < BLOCK && compile_ok(s->c); i++) {
        uint32_t state = build_state(s->b);

        one_char(s, state, at);
        set_plain(s, state, (uint32_t)i + 1);
        at = state;
    }
    return at;
}

/* Many characters: at each border of a block either a whole block follows, or the last, shorter
 * one with the quote. Two configurations are alive, and BLOCK states serve all blocks. */
static uint32_t counted_blocks(struct schema *s, uint32_t min, uint32_t max)
{
    uint32_t n = (max == NONE ? min : max) / BLOCK;
    uint32_t rule = block_rule(s);
    uint32_t tail = NONE; /* any number below BLOCK and the quote */
    uint32_t next = NONE;
    uint32_t i;

    for (i = n + 1; i-- > 0 && compile_ok(s->c);) {
        uint32_t at = build_state(s->b);
        uint32_t first = i * BLOCK;
        uint32_t lo = min > first ? min - first : 0;
        uint32_t hi = max == NONE || max - first >= BLOCK ? BLOCK - 1 : max - first;

        if (next != NONE)
            build_call(s->b, at, rule, next);
        if (max == NONE && i == n) {
            build_jump(s->b, at, counted_line(s, lo, NONE));
        } else if (lo == 0 && hi == BLOCK - 1) {
            if (tail == NONE)
                tail = counted_line(s, 0, BLOCK - 1);
            build_jump(s->b, at, tail);
        } else if (lo <= hi) {
            build_jump(s->b, at, counted_line(s, lo, hi));
        }
        next = at;
    }
    return next == NONE ? 0 : next;
}

/* --- lists of texts ----------------------------------------------------------------------- */

static bool in_texts(const struct atom *t, const struct json *text)
{
    uint32_t i;

    for (i = 0; i < t->n; i++)
        if (t->node[i].kind == JSON_TEXT && t->node[i].text_len == text->text_len &&
            memcmp(t->node[i].text, text->text, text->text_len) == 0)
            return true;
    return false;
}

static uint32_t char_count(const struct json *text)
{
    uint32_t n = 0;
    size_t i;

    for (i = 0; i < text->text_len; i++)
        n += ((unsigned char)text->text[i] & 0xc0) != 0x80;
    return n;
}

/* Does a text satisfy all atoms? */
static bool text_fits(struct schema *s, const struct alternative *a, const struct json *text)
{
    struct limits l = limits_of(a);
    const struct atom *t;
    const struct dfa *d;

    if (char_count(text) < l.min || (l.max != NONE && char_count(text) > l.max))
        return false;
    if (s->holds != NULL && dfa_match(s->holds, text->text, text->text_len) == 0)
        return false;
    for (t = a->atoms; t != NULL && compile_tick(s->c); t = t->next) {
        d = NULL;
        if (t->kind == ATOM_STRINGS && in_texts(t, text) == t->negated)
            return false;
        if (t->kind == ATOM_PATTERN)
            d = pattern_dfa(s, t->node);
        else if (t->kind == ATOM_FORMAT)
            d = format_dfa(s, t->node);
        if (d != NULL && (dfa_match(d, text->text, text->text_len) != 0) == t->negated)
            return false;
    }
    return compile_ok(s->c);
}

static uint32_t list_build(struct schema *s, const struct alternative *a, const struct atom *list)
{
    uint32_t root = build_state(s->b);
    struct buf text = {.limit = GRAMMAR_SOURCE_MAX};
    uint32_t i;

    for (i = 0; i < list->n && compile_tick(s->c); i++) {
        const struct json *node = &list->node[i];

        if (node->kind != JSON_TEXT || !text_fits(s, a, node))
            continue;
        buf_clear(&text);
        buf_add_json_text(&text, node->text, node->text_len);
        if (text.failed)
            compile_fail(s->c, ERR_NO_MEMORY, "out of memory");
        build_insert_here(s->b, root, text.bytes == NULL ? "" : text.bytes, text.len, '"', s->end);
    }
    buf_fini(&text);
    return root;
}

/* --- one alternative ---------------------------------------------------------------------- */

static bool is_string_atom(const struct atom *t)
{
    return t->kind >= ATOM_LENGTH_LEAST && t->kind <= ATOM_STRINGS;
}

bool string_is_free(const struct alternative *a)
{
    const struct atom *t;

    for (t = a->atoms; t != NULL; t = t->next)
        if (is_string_atom(t) && t->kind != ATOM_FORMAT)
            return false;
        else if (t->kind == ATOM_FORMAT && format_is_known(t->node->text))
            return false;
    return true;
}

static uint32_t string_body(struct schema *s, const struct alternative *a)
{
    struct limits l = limits_of(a);
    const struct atom *t;
    bool language = s->holds != NULL;
    uint32_t leaf[2] = {NONE, s->end};

    if (string_is_free(a) && !language)
        return free_body(s);
    for (t = a->atoms; t != NULL; t = t->next) {
        if (t->kind == ATOM_STRINGS && !t->negated)
            return list_build(s, a, t);
        language = language || t->kind == ATOM_PATTERN || t->kind == ATOM_STRINGS ||
                   (t->kind == ATOM_FORMAT && format_is_known(t->node->text));
    }
    if (language) {
        uint32_t counted = counted_body(s, a);
        const struct dfa *d = counted == NONE ? string_dfa(s, a) : NULL;

        if (counted != NONE)
            return counted;

        if (!compile_ok(s->c))
            return 0;
        return s->holds == NULL ? dfa_build_json(s->b, d, leaf)
                                : dfa_build_json_once(s->b, d, leaf);
    }
    if (l.max != NONE && l.min > l.max)
        return build_state(s->b);
    if (l.max == NONE && l.min > LENGTH_NO_LIMIT)
        compile_fail(s->c, ERR_LIMIT, "minLength above %d", LENGTH_NO_LIMIT);
    if ((l.max == NONE ? l.min : l.max) <= LENGTH_INLINE)
        return counted_line(s, l.min, l.max);
    return counted_blocks(s, l.min, l.max);
}

void string_build(struct schema *s, uint32_t from, const struct alternative *a)
{
    LIST(uint32_t) words = {0};
    const struct atom *t;
    uint32_t number;
    bool is_new;

    for (t = a->atoms; t != NULL; t = t->next) { /* what makes it the same as another one */
        uint64_t node = (uint64_t)(uintptr_t)t->node;
        uint32_t part[4] = {(uint32_t)t->kind * 2 + t->negated, t->n, (uint32_t)node,
                            (uint32_t)(node >> 32)};
        int i;

        if (t->kind == ATOM_LENGTH_LEAST || t->kind == ATOM_LENGTH_MOST)
            part[2] = part[3] = 0;
        if (t->kind == ATOM_FORMAT || t->kind == ATOM_PATTERN) {
            enum language kind = t->kind == ATOM_PATTERN ? LANGUAGE_PATTERN : format_kind(a, t);

            node = (uint64_t)(uintptr_t)named(s, t->node, kind);
            part[2] = (uint32_t)node;
            part[3] = (uint32_t)(node >> 32);
        }
        for (i = 0; is_string_atom(t) && i < 4 && LIST_ADD(s->c, &words); i++)
            words.items[words.n - 1] = part[i];
    }
    number = keys_find(&s->string_keys, words.items, words.n, &is_new);
    if (is_new && LIST_ADD(s->c, &s->string_states))
        s->string_states.items[number] = string_body(s, a);
    if (compile_ok(s->c))
        build_edge(s->b, from, '"', '"', s->string_states.items[number]);
}
