/* SPDX-License-Identifier: Apache-2.0
 *
 * Grammars, in the two ways that clients of vLLM write them:
 *
 *   GBNF   root ::= "yes" | item{2,3} [a-z]+ ( "," item )*      # the first rule is `root`
 *   Lark   start: "yes" | item~2..3 /[a-z]+/ ("," item)* [item] // the first rule is `start`
 *
 * A grammar with "::=" is GBNF. Both have | () * + ? and "text" with JSON's escapes; GBNF has
 * classes and {n,m}; Lark has /regex/, [optional], ~n, "a".."z", "text"i, -> names (without
 * meaning here) and leading ? or !. Refused: %ignore, %import, other directives, templates.
 *
 * Lark as llguidance has it, which the package guidance writes, has {n,m}, a first line
 * %llguidance {...} (passed over), rules of the form `name: %json {schema}`, and attributes:
 * name[capture, max_tokens=9]: ... Of these capture, max_tokens and temperature are passed over,
 * because they say nothing of the form; others (stop, suffix, lazy) would change it, and are
 * refused.
 *
 * Each rule is determinised by itself. A rule that begins with itself (expr: expr "+" term | term)
 * becomes a repeat; other left recursion is refused, because a stack would grow without a byte. */
#include <string.h>

#include "base/hex.h"
#include "base/utf8.h"
#include "grammar/regular.h"
#include "grammar/source.h"

#define RULES_MAX 2000

struct rule {
    const char *name;
    size_t len;
    const struct regular *tree; /* NULL: not defined, or by a schema */
    size_t at;                  /* where it was first named */
    const char *schema;         /* NULL: it has none */
    size_t schema_len;
};

struct parser {
    struct compile *c;
    const char *text;
    size_t len, at;
    bool lark;
    int depth;
    LIST(struct rule) rules;
};

static const struct regular *parse_either(struct parser *p);

static void *fail(struct parser *p, int rc, const char *what)
{
    size_t line = 1;
    size_t i;

    for (i = 0; i < p->at && i < p->len; i++)
        line += p->text[i] == '\n';
    compile_fail(p->c, rc, "grammar, line %zu: %s", line, what);
    p->at = p->len;
    return NULL;
}

static int peek_at(const struct parser *p, size_t at)
{
    return at < p->len ? (unsigned char)p->text[at] : -1;
}

static bool take(struct parser *p, const char *text)
{
    size_t n = strlen(text);

    if (p->at > p->len || p->len - p->at < n || memcmp(p->text + p->at, text, n) != 0)
        return false;
    p->at += n;
    return true;
}

static void skip(struct parser *p)
{
    for (; p->at < p->len; p->at++) {
        int ch = peek_at(p, p->at);
        bool comment = p->lark ? ch == '/' && peek_at(p, p->at + 1) == '/' : ch == '#';

        if (comment)
            while (p->at + 1 < p->len && peek_at(p, p->at + 1) != '\n')
                p->at++;
        else if (ch != ' ' && ch != '\t' && ch != '\n' && ch != '\r')
            return;
    }
}

static bool is_digit(int ch)
{
    return ch >= '0' && ch <= '9';
}

static bool is_name(int ch)
{
    return is_digit(ch) || ((ch | 0x20) >= 'a' && (ch | 0x20) <= 'z') || ch == '_' || ch == '-';
}

static size_t name_len(const struct parser *p, size_t at)
{
    size_t n = 0;

    while (is_name(peek_at(p, at + n)) && !(p->lark && peek_at(p, at + n) == '-'))
        n++;
    return n;
}

/* The length of what begins here with a bracket and ends with its partner, texts in quotes passed
 * over; 0 when it does not end. */
static size_t bracket_len(const struct parser *p, size_t start)
{
    bool quoted = false;
    int depth = 0;
    size_t at;

    for (at = start; at < p->len; at++) {
        int ch = peek_at(p, at);

        if (ch == '\\')
            at++;
        else if (ch == '"')
            quoted = !quoted;
        else if (!quoted && (ch == '{' || ch == '['))
            depth++;
        else if (!quoted && (ch == '}' || ch == ']') && --depth == 0)
            return at + 1 - start;
    }
    return 0;
}

/* Does a rule's definition begin here? Its name's place and length, and where its body begins. */
static bool at_rule(struct parser *p, size_t *name, size_t *len, size_t *body)
{
    size_t at = p->at;

    if (p->lark && (peek_at(p, at) == '?' || peek_at(p, at) == '!'))
        at++;
    *name = at;
    *len = name_len(p, at);
    if (*len == 0)
        return false;
    at += *len;
    if (p->lark && peek_at(p, at) == '.') /* a priority: no meaning here */
        for (at++; peek_at(p, at) >= '0' && peek_at(p, at) <= '9';)
            at++;
    if (p->lark && peek_at(p, at) == '[')
        at += bracket_len(p, at);
    while (peek_at(p, at) == ' ' || peek_at(p, at) == '\t')
        at++;
    *body = at + (p->lark ? 1 : 3);
    if (p->lark)
        return peek_at(p, at) == ':';
    return peek_at(p, at) == ':' && peek_at(p, at + 1) == ':' && peek_at(p, at + 2) == '=';
}

static uint32_t rule_of(struct parser *p, const char *name, size_t len)
{
    uint32_t i;

    for (i = 0; i < p->rules.n && compile_tick(p->c); i++)
        if (p->rules.items[i].len == len && memcmp(p->rules.items[i].name, name, len) == 0)
            return i;
    if (p->rules.n == RULES_MAX)
        fail(p, ERR_LIMIT, "more than 2000 rules");
    if (!LIST_ADD(p->c, &p->rules))
        return 0;
    p->rules.items[p->rules.n - 1] = (struct rule){.name = name, .len = len, .at = p->at};
    return p->rules.n - 1;
}

/* --- atoms -------------------------------------------------------------------------------- */

static uint32_t take_code(struct parser *p, size_t digits)
{
    int64_t value = hex_number(p->text + p->at, p->len - p->at, digits);

    if (value < 0) {
        fail(p, ERR_SYNTAX, "hexadecimal digits are missing");
        return 0;
    }
    p->at += digits;
    return (uint32_t)value;
}

/* One character of a text or class, escapes undone. */
static uint32_t take_char(struct parser *p)
{
    size_t n = utf8_sequence(p->text + p->at, p->len - p->at);
    uint32_t ch = utf8_decode(p->text + p->at);

    p->at += n;
    if (ch != '\\')
        return ch;
    ch = p->at < p->len ? (unsigned char)p->text[p->at++] : 0;
    switch (ch) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'x': return take_code(p, 2);
    case 'u': return take_code(p, 4);
    case 'U': return take_code(p, 8);
    default: break;
    }
    if (ch >= 0x80 || (is_name((int)ch) && ch != '-' && ch != '_'))
        fail(p, ERR_UNSUPPORTED, "an escape of a letter or digit that means nothing");
    return ch;
}

static const struct regular *one_char(struct parser *p, uint32_t ch, bool any_case)
{
    struct regular_range r[2] = {{ch, ch}, {ch ^ 0x20, ch ^ 0x20}};
    bool letter = (ch | 0x20) >= 'a' && (ch | 0x20) <= 'z';

    if (ch > 0x10ffff || (ch >= 0xd800 && ch < 0xe000))
        return fail(p, ERR_SYNTAX, "an escape that is not a character");
    return regular_set(p->c, r, any_case && letter ? 2 : 1, false);
}

/* "text", the quote taken; with Lark's i behind it, and "a".."z". */
static const struct regular *parse_text(struct parser *p)
{
    LIST(uint32_t) chars = {0};
    const struct regular *r = NULL;
    bool any_case;
    uint32_t i;

    while (p->at < p->len && peek_at(p, p->at) != '"' && LIST_ADD(p->c, &chars))
        chars.items[chars.n - 1] = take_char(p);
    if (!take(p, "\""))
        return fail(p, ERR_SYNTAX, "a text without its closing quote");
    if (p->lark && chars.n == 1 && take(p, "..")) {
        struct regular_range range = {chars.items[0], 0};

        if (!take(p, "\"") || p->at >= p->len)
            return fail(p, ERR_SYNTAX, "a range without its end");
        range.hi = take_char(p);
        if (!take(p, "\"") || range.hi < range.lo)
            return fail(p, ERR_SYNTAX, "a range of characters that is none");
        return regular_set(p->c, &range, 1, false);
    }
    any_case = p->lark && peek_at(p, p->at) == 'i' && !is_name(peek_at(p, p->at + 1));
    p->at += any_case;
    for (i = 0; i < chars.n && compile_tick(p->c); i++) {
        const struct regular *one = one_char(p, chars.items[i], any_case);

        r = r == NULL ? one : regular_node(p->c, REGULAR_CAT, r, one);
    }
    return r == NULL ? regular_node(p->c, REGULAR_EMPTY, NULL, NULL) : r;
}

static const struct regular *parse_class(struct parser *p)
{
    LIST(struct regular_range) ranges = {0};
    bool negated = take(p, "^");

    while (p->at < p->len && peek_at(p, p->at) != ']' && LIST_ADD(p->c, &ranges)) {
        struct regular_range *r = &ranges.items[ranges.n - 1];

        r->lo = r->hi = take_char(p);
        if (peek_at(p, p->at) == '-' && peek_at(p, p->at + 1) != ']') {
            p->at++;
            r->hi = p->at < p->len ? take_char(p) : 0;
        }
        if (r->hi < r->lo || r->hi > 0x10ffff)
            return fail(p, ERR_SYNTAX, "a range of characters that is none");
    }
    if (!take(p, "]"))
        return fail(p, ERR_SYNTAX, "a '[' without ']'");
    return regular_set(p->c, ranges.items, ranges.n, negated);
}

/* /regex/, the first slash taken. Only flags that change nothing here. */
static const struct regular *parse_regex(struct parser *p)
{
    size_t start = p->at;
    size_t n;
    bool in_class = false;

    for (; p->at < p->len && (in_class || p->text[p->at] != '/') && p->text[p->at] != '\n';
         p->at++) {
        if (p->text[p->at] == '\\')
            p->at++;
        else if (p->text[p->at] == '[' || p->text[p->at] == ']')
            in_class = p->text[p->at] == '[';
    }
    n = p->at - start;
    if (p->at >= p->len || !take(p, "/"))
        return fail(p, ERR_SYNTAX, "a pattern without its closing '/'");
    if (is_name(peek_at(p, p->at)) && peek_at(p, p->at) != '-')
        return fail(p, ERR_UNSUPPORTED, "flags of a pattern");
    return regex_tree(p->c, p->text + start, n);
}

static const struct regular *parse_group(struct parser *p, const char *close)
{
    const struct regular *r;

    if (++p->depth > REGULAR_DEPTH_MAX)
        return fail(p, ERR_LIMIT, "groups are nested too deeply");
    r = parse_either(p);
    p->depth--;
    skip(p);
    if (compile_ok(p->c) && !take(p, close))
        return fail(p, ERR_SYNTAX, "a group without its end");
    return r;
}

static const struct regular *parse_call(struct parser *p)
{
    size_t n = name_len(p, p->at);
    struct regular *r;

    if (n == 0)
        return fail(p, ERR_SYNTAX, "something that is no part of a rule");
    r = compile_alloc(p->c, sizeof *r);
    if (r == NULL)
        return NULL;
    r->kind = REGULAR_CALL;
    r->min = rule_of(p, p->text + p->at, n);
    p->at += n;
    if (p->lark && peek_at(p, p->at) == '{' && is_name(peek_at(p, p->at + 1)) &&
        !is_digit(peek_at(p, p->at + 1)))
        return fail(p, ERR_UNSUPPORTED, "templates");
    return r;
}

static const struct regular *parse_atom(struct parser *p)
{
    static const struct regular_range line = {'\n', '\n'};

    if (take(p, "\""))
        return parse_text(p);
    if (take(p, "("))
        return parse_group(p, ")");
    if (p->lark && take(p, "["))
        return regular_repeat(p->c, parse_group(p, "]"), 0, 1);
    if (!p->lark && take(p, "["))
        return parse_class(p);
    if (p->lark && take(p, "/"))
        return parse_regex(p);
    if (!p->lark && take(p, "."))
        return regular_set(p->c, &line, 1, true);
    return parse_call(p);
}

/* --- sequences ---------------------------------------------------------------------------- */

static uint32_t take_number(struct parser *p)
{
    size_t start = p->at;
    uint32_t n = 0;

    for (; peek_at(p, p->at) >= '0' && peek_at(p, p->at) <= '9'; p->at++)
        n = n > 100000 ? n : n * 10 + (uint32_t)(p->text[p->at] - '0');
    if (p->at == start || n > 100000)
        fail(p, ERR_SYNTAX, "a repeat without a number up to 100000");
    return n;
}

static const struct regular *repeat(struct parser *p, const struct regular *r, uint32_t min,
                                    uint32_t max)
{
    if (max < min)
        return fail(p, ERR_SYNTAX, "a repeat whose end is before its begin");
    return regular_repeat(p->c, r, min, max);
}

/* {n}, {n,}, {n,m} or {,m}; the brace was taken. */
static const struct regular *parse_counts(struct parser *p, const struct regular *r)
{
    uint32_t min = 0;
    uint32_t max;

    skip(p);
    if (peek_at(p, p->at) != ',')
        min = take_number(p);
    max = min;
    skip(p);
    if (take(p, ",")) {
        skip(p);
        max = peek_at(p, p->at) == '}' ? NONE : take_number(p);
        skip(p);
    }
    if (!take(p, "}"))
        return fail(p, ERR_SYNTAX, "a '{' without '}'");
    return repeat(p, r, min, max);
}

/* ~n or ~n..m; the sign was taken. */
static const struct regular *parse_tilde(struct parser *p, const struct regular *r)
{
    uint32_t min, max;

    skip(p);
    min = max = take_number(p);
    skip(p);
    if (take(p, ".."))
        max = take_number(p);
    return repeat(p, r, min, max);
}

static const struct regular *parse_repeated(struct parser *p)
{
    const struct regular *r = parse_atom(p);
    int times;

    for (times = 0; compile_ok(p->c) && times < 8; times++) {
        if (!p->lark) /* Lark's [x] would be taken for a repeat's */
            while (peek_at(p, p->at) == ' ' || peek_at(p, p->at) == '\t')
                p->at++;
        if (take(p, "*"))
            r = regular_repeat(p->c, r, 0, NONE);
        else if (take(p, "+"))
            r = regular_repeat(p->c, r, 1, NONE);
        else if (take(p, "?"))
            r = regular_repeat(p->c, r, 0, 1);
        else if (take(p, "{"))
            r = parse_counts(p, r);
        else if (p->lark && take(p, "~"))
            r = parse_tilde(p, r);
        else
            break;
    }
    return r;
}

static bool sequence_ends(struct parser *p)
{
    size_t name, len, body;
    int ch;

    skip(p);
    ch = peek_at(p, p->at);
    if (p->lark && take(p, "->")) { /* a name for the tree's branch */
        skip(p);
        p->at += name_len(p, p->at);
        return sequence_ends(p);
    }
    return ch < 0 || ch == '|' || ch == ')' || (p->lark && (ch == ']' || ch == '%')) ||
           at_rule(p, &name, &len, &body);
}

static const struct regular *parse_sequence(struct parser *p)
{
    const struct regular *r = NULL;

    while (!sequence_ends(p) && compile_tick(p->c)) {
        const struct regular *next = parse_repeated(p);

        r = r == NULL ? next : regular_node(p->c, REGULAR_CAT, r, next);
    }
    return r == NULL ? regular_node(p->c, REGULAR_EMPTY, NULL, NULL) : r;
}

static const struct regular *parse_either(struct parser *p)
{
    const struct regular *r = parse_sequence(p);

    while (compile_ok(p->c) && take(p, "|"))
        r = regular_node(p->c, REGULAR_ALT, r, parse_sequence(p));
    return r;
}

/* --- rules -------------------------------------------------------------------------------- */

/* The value of an attribute: a number, a name or a text. */
static bool take_value(struct parser *p)
{
    size_t start = p->at;

    if (take(p, "\"")) {
        while (p->at < p->len && peek_at(p, p->at) != '"')
            p->at += peek_at(p, p->at) == '\\' ? 2 : 1;
        return take(p, "\"");
    }
    while (is_name(peek_at(p, p->at)) || peek_at(p, p->at) == '.')
        p->at++;
    return p->at > start;
}

/* [name, name=value, ...] behind a rule's name; the bracket was taken. */
static void parse_attributes(struct parser *p)
{
    static const char *const passed[] = {"capture", "max_tokens", "temperature"};

    do {
        size_t i, n;

        skip(p);
        n = name_len(p, p->at);
        for (i = 0; i < 3; i++)
            if (strlen(passed[i]) == n && memcmp(p->text + p->at, passed[i], n) == 0)
                break;
        if (i == 3) {
            fail(p, ERR_UNSUPPORTED, "attributes of a rule but capture, max_tokens, temperature");
            return;
        }
        p->at += n;
        skip(p);
        if (take(p, "=")) {
            skip(p);
            if (!take_value(p))
                fail(p, ERR_SYNTAX, "an attribute without its value");
        }
        skip(p);
    } while (take(p, ",") && compile_tick(p->c));
    if (compile_ok(p->c) && !take(p, "]"))
        fail(p, ERR_SYNTAX, "attributes without their ']'");
}

/* A JSON object: its length, and it is taken. 0, and an error, when it does not end. */
static size_t take_object(struct parser *p)
{
    size_t n;

    skip(p);
    n = peek_at(p, p->at) == '{' ? bracket_len(p, p->at) : 0;
    if (n == 0)
        fail(p, ERR_SYNTAX, "a JSON object is missing, or does not end");
    p->at += n;
    return n;
}

/* What stands behind a rule's colon. */
static struct rule parse_rule(struct parser *p)
{
    struct rule r = {0};

    skip(p);
    (void)(p->lark && take(p, "|"));
    if (p->lark && take(p, "%json")) {
        r.schema_len = take_object(p);
        r.schema = p->text + p->at - r.schema_len;
    } else {
        r.tree = parse_either(p);
    }
    return r;
}

static void parse_definition(struct parser *p)
{
    size_t name, len, body;
    uint32_t number;
    struct rule r, *own;

    if (!at_rule(p, &name, &len, &body)) {
        fail(p, ERR_SYNTAX, "a rule's name and its definition are missing");
        return;
    }
    number = rule_of(p, p->text + name, len);
    p->at = name + len;
    if (p->lark && take(p, "["))
        parse_attributes(p);
    if (!compile_ok(p->c))
        return;
    p->at = body;
    r = parse_rule(p);
    if (!compile_ok(p->c))
        return;
    own = &p->rules.items[number];
    if (own->tree != NULL || own->schema != NULL) {
        fail(p, ERR_SYNTAX, "a rule is defined twice");
        return;
    }
    own->tree = r.tree;
    own->schema = r.schema;
    own->schema_len = r.schema_len;
}

static void parse_rules(struct parser *p)
{
    skip(p);
    if (p->lark && take(p, "%llguidance"))
        (void)take_object(p);
    for (skip(p); p->at < p->len && compile_tick(p->c); skip(p)) {
        if (p->lark && peek_at(p, p->at) == '%')
            fail(p, ERR_UNSUPPORTED, "directives (%ignore, %import, %regex, ...)");
        else
            parse_definition(p);
    }
}

/* --- left recursion ----------------------------------------------------------------------- */

/* What follows when a sequence begins with a call of the rule; NULL when it does not. */
static const struct regular *behind_itself(struct compile *c, const struct regular *r,
                                           uint32_t rule)
{
    const struct regular *rest = NULL;

    for (; r != NULL && r->kind == REGULAR_CAT; r = r->left)
        rest = rest == NULL ? r->right : regular_node(c, REGULAR_CAT, r->right, rest);
    if (r == NULL || r->kind != REGULAR_CALL || r->min != rule)
        return NULL;
    return rest == NULL ? regular_node(c, REGULAR_EMPTY, NULL, NULL) : rest;
}

static const struct regular *either(struct compile *c, const struct regular *a,
                                    const struct regular *b)
{
    return a == NULL ? b : regular_node(c, REGULAR_ALT, a, b);
}

/* a: a x | y  becomes  a: y x*. */
static const struct regular *without_itself(struct compile *c, const struct regular *tree,
                                            uint32_t rule)
{
    const struct regular *others = NULL;
    const struct regular *tails = NULL;
    const struct regular *at = tree;

    while (at != NULL && compile_tick(c)) { /* alternatives lean to the left */
        const struct regular *one = at->kind == REGULAR_ALT ? at->right : at;
        const struct regular *rest = behind_itself(c, one, rule);

        if (rest != NULL)
            tails = either(c, tails, rest);
        else
            others = either(c, others, one);
        at = at->kind == REGULAR_ALT ? at->left : NULL;
    }
    if (tails == NULL)
        return tree;
    if (others == NULL)
        return regular_node(c, REGULAR_NEVER, NULL, NULL);
    return regular_node(c, REGULAR_CAT, others, regular_repeat(c, tails, 0, NONE));
}

static void build_rule(struct build *b, const struct rule *r, uint32_t number,
                       const uint32_t *start)
{
    if (r->schema != NULL)
        build_jump(b, start[number], schema_build(b, r->schema, r->schema_len, GRAMMAR_COMPACT));
    else
        regular_build(b, without_itself(b->c, r->tree, number), start[number], start);
}

/* Lark by its first line, even if a pattern or schema in it has "::=". */
static bool is_guidance(const char *text, size_t len)
{
    static const char head[] = "%llguidance";
    size_t at = 0;

    while (at < len && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n'))
        at++;
    return len - at > sizeof head && memcmp(text + at, head, sizeof head - 1) == 0;
}

uint32_t ebnf_build(struct build *b, const char *text, size_t len)
{
    struct parser p = {.c = b->c, .text = text, .len = len};
    uint32_t *start;
    uint32_t root, i;

    p.lark = is_guidance(text, len) || memmem(text, len, "::=", 3) == NULL;
    if (!utf8_is_valid(text, len))
        fail(&p, ERR_SYNTAX, "not valid UTF-8");
    if (compile_ok(p.c))
        parse_rules(&p);
    if (!compile_ok(p.c))
        return 0;
    root = rule_of(&p, p.lark ? "start" : "root", p.lark ? 5 : 4);
    for (i = 0; i < p.rules.n; i++) {
        if (p.rules.items[i].tree != NULL || p.rules.items[i].schema != NULL)
            continue;
        compile_fail(p.c, ERR_INVALID, "grammar: rule \"%.*s\" is not defined",
                     (int)(p.rules.items[i].len > 60 ? 60 : p.rules.items[i].len),
                     p.rules.items[i].name);
        return 0;
    }
    start = compile_alloc(p.c, (size_t)p.rules.n * sizeof *start);
    for (i = 0; i < p.rules.n && compile_ok(p.c); i++)
        start[i] = build_state(b);
    for (i = 0; i < p.rules.n && compile_ok(p.c); i++)
        build_rule(b, &p.rules.items[i], i, start);
    if (compile_ok(p.c) && build_left_recursion(b) != NONE)
        compile_fail(p.c, ERR_UNSUPPORTED,
                     "grammar: a rule begins with itself by way of another one (left recursion)");
    return compile_ok(p.c) ? start[root] : 0;
}
