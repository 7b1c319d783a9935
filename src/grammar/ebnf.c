/* SPDX-License-Identifier: Apache-2.0
 *
 * Grammars, in the two ways that clients of vLLM write them:
 *
 *   GBNF   root ::= "yes" | item{2,3} [a-z]+ ( "," item )*      # the first rule is `root`
 *   Lark   start: "yes" | item~2..3 /[a-z]+/ ("," item)* [item] // the first rule is `start`
 *
 * A grammar with "::=" is GBNF. Both have | () * + ? and "text" with JSON's escapes; GBNF has
 * classes and {n,m}; Lark has /regex/, [optional], ~n, "a".."z", "text"i, -> names (which have no
 * effect here) and a leading ? or !. Refused: %ignore, %import, other directives, templates.
 *
 * Lark in the dialect of llguidance, which the package guidance writes, has {n,m}, a first line
 * %llguidance {...} (skipped), rules of the form `name: %json {schema}`, and attributes:
 * name[capture, max_tokens=9]: ... Of these, capture, max_tokens and temperature are skipped,
 * because they do not affect the language; others (stop, suffix, lazy) do and are refused.
 *
 * Each rule is made deterministic on its own. A rule that begins with itself (expr: expr "+" term |
 * term) becomes a repeat; other left recursion is refused, because the stack would grow without
 * consuming a byte. */
#include <string.h>

#include "base/hex.h"
#include "base/must.h"
#include "base/utf8.h"
#include "grammar/regular.h"
#include "grammar/source.h"

#define EBNF_RULES_MAX 2000

struct ebnf_rule {
    const char *name;
    size_t len;
    const struct regular *tree; /* NULL: not defined, or defined by a schema */
    size_t at;                  /* offset of its first mention */
    const char *schema;         /* NULL: not defined by a schema */
    size_t schema_len;
};

/* The text and a position; at a failure the position moves to the end, so that all loops stop. */
struct ebnf_parser {
    struct compile *c;
    const char *text;
    size_t len, at;
    bool lark;
    int depth;
    LIST(struct ebnf_rule) rules;
};

static const struct regular *ebnf_parse_either(struct ebnf_parser *parser);

/* Report an error with its line. */
static void *ebnf_fail(struct ebnf_parser *parser, int rc, const char *what)
{
    size_t line = 1;
    size_t i;

    for (i = 0; i < parser->at && i < parser->len; i++)
        line += parser->text[i] == '\n';
    compile_fail(parser->c, rc, "grammar, line %zu: %s", line, what);
    parser->at = parser->len;
    return NULL;
}

/* The byte at an offset; -1 after the end. */
static int ebnf_peek_at(const struct ebnf_parser *parser, size_t at)
{
    if (at < parser->len)
        return (unsigned char)parser->text[at];
    return -1;
}

/* Consume a literal text, if it comes next. */
static bool ebnf_take_text(struct ebnf_parser *parser, const char *text)
{
    size_t n = strlen(text);

    if (parser->at > parser->len || parser->len - parser->at < n ||
        memcmp(parser->text + parser->at, text, n) != 0)
        return false;
    parser->at += n;
    return true;
}

/* Skip white space and comments. */
static void ebnf_skip_space(struct ebnf_parser *parser)
{
    for (; parser->at < parser->len; parser->at++) {
        int ch = ebnf_peek_at(parser, parser->at);
        bool comment =
            parser->lark ? ch == '/' && ebnf_peek_at(parser, parser->at + 1) == '/' : ch == '#';

        if (comment)
            while (parser->at + 1 < parser->len && ebnf_peek_at(parser, parser->at + 1) != '\n')
                parser->at++;
        else if (ch != ' ' && ch != '\t' && ch != '\n' && ch != '\r')
            return;
    }
}

static bool ebnf_is_digit(int ch)
{
    return ch >= '0' && ch <= '9';
}

static bool ebnf_is_name_char(int ch)
{
    return ebnf_is_digit(ch) || ((ch | 0x20) >= 'a' && (ch | 0x20) <= 'z') || ch == '_' ||
           ch == '-';
}

static size_t ebnf_name_len(const struct ebnf_parser *parser, size_t at)
{
    size_t n = 0;

    while (ebnf_is_name_char(ebnf_peek_at(parser, at + n)) &&
           !(parser->lark && ebnf_peek_at(parser, at + n) == '-'))
        n++;
    return n;
}

/* The length of a bracketed text, up to the matching bracket; strings are skipped over. 0 when it
 * does not end. */
static size_t ebnf_bracket_len(const struct ebnf_parser *parser, size_t start)
{
    bool quoted = false;
    int depth = 0;
    size_t at;

    for (at = start; at < parser->len; at++) {
        int ch = ebnf_peek_at(parser, at);

        /* A backslash hides the next character, a quote for example. */
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

/* Does a rule's definition begin here? Then *name and *len are its name, and *body is where the
 * definition of the name begins. */
static bool ebnf_at_rule(struct ebnf_parser *parser, size_t *name, size_t *len, size_t *body)
{
    size_t at = parser->at;

    if (parser->lark && (ebnf_peek_at(parser, at) == '?' || ebnf_peek_at(parser, at) == '!'))
        at++;
    *name = at;
    *len = ebnf_name_len(parser, at);
    if (*len == 0)
        return false;
    at += *len;
    if (parser->lark && ebnf_peek_at(parser, at) == '.') /* a priority, which has no effect */
        for (at++; ebnf_peek_at(parser, at) >= '0' && ebnf_peek_at(parser, at) <= '9';)
            at++;
    if (parser->lark && ebnf_peek_at(parser, at) == '[')
        at += ebnf_bracket_len(parser, at);
    while (ebnf_peek_at(parser, at) == ' ' || ebnf_peek_at(parser, at) == '\t')
        at++;
    *body = at + (parser->lark ? 1 : 3);
    if (parser->lark)
        return ebnf_peek_at(parser, at) == ':';
    return ebnf_peek_at(parser, at) == ':' && ebnf_peek_at(parser, at + 1) == ':' &&
           ebnf_peek_at(parser, at + 2) == '=';
}

/* The number of a rule by its name; rules are numbered at their first mention. */
static uint32_t ebnf_rule_of(struct ebnf_parser *parser, const char *name, size_t len)
{
    uint32_t i;

    /* Grammars have few rules, so the names are compared one after the other; compile_tick()
     * bounds the time for a grammar of the maximal size. */
    for (i = 0; i < parser->rules.n && compile_tick(parser->c); i++)
        if (parser->rules.items[i].len == len &&
            memcmp(parser->rules.items[i].name, name, len) == 0)
            return i;
    /* `at` is the place of the first mention, for the error about a rule that is mentioned but
     * not defined. */
    if (parser->rules.n == EBNF_RULES_MAX)
        ebnf_fail(parser, ERR_LIMIT, "more than 2000 rules");
    if (!LIST_ADD(parser->c, &parser->rules))
        return 0;
    parser->rules.items[parser->rules.n - 1] =
        (struct ebnf_rule){.name = name, .len = len, .at = parser->at};
    return parser->rules.n - 1;
}

/* --- atoms -------------------------------------------------------------------------------- */

/* The code point of a hexadecimal escape. */
static uint32_t ebnf_take_code(struct ebnf_parser *parser, size_t digits)
{
    int64_t value = hex_number(parser->text + parser->at, parser->len - parser->at, digits);

    if (value < 0) {
        ebnf_fail(parser, ERR_SYNTAX, "hexadecimal digits are missing");
        return 0;
    }
    parser->at += digits;
    return (uint32_t)value;
}

/* One character of a text or class, with escapes decoded. */
static uint32_t ebnf_take_char(struct ebnf_parser *parser)
{
    size_t n = utf8_sequence(parser->text + parser->at, parser->len - parser->at);
    uint32_t ch = utf8_decode(parser->text + parser->at);

    parser->at += n;
    if (ch != '\\')
        return ch;
    if (parser->at < parser->len)
        ch = (unsigned char)parser->text[parser->at++];
    else
        ch = 0;
    switch (ch) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'x': return ebnf_take_code(parser, 2);
    case 'u': return ebnf_take_code(parser, 4);
    case 'U': return ebnf_take_code(parser, 8);
    default: break;
    }
    /* An escape of a letter could be one that another dialect defines, so it is refused;
     * punctuation stands for itself. */
    if (ch >= 0x80 || (ebnf_is_name_char((int)ch) && ch != '-' && ch != '_'))
        ebnf_fail(parser, ERR_UNSUPPORTED, "an unknown escape of a letter or digit");
    return ch;
}

/* A set of one character, or of both cases of a letter. */
static const struct regular *ebnf_one_char(struct ebnf_parser *parser, uint32_t ch, bool any_case)
{
    struct regular_range r[2] = {{ch, ch}, {ch ^ 0x20, ch ^ 0x20}};
    bool letter = (ch | 0x20) >= 'a' && (ch | 0x20) <= 'z';

    if (ch > 0x10ffff || (ch >= 0xd800 && ch < 0xe000))
        return ebnf_fail(parser, ERR_SYNTAX, "an escape that is not a character");
    return regular_set(parser->c, r, any_case && letter ? 2 : 1, false);
}

/* After an opening quote: "text", in Lark also "text"i and "a".."z". */
static const struct regular *ebnf_parse_text(struct ebnf_parser *parser)
{
    LIST(uint32_t) chars = {0};
    const struct regular *regular = NULL;
    bool any_case;
    uint32_t i;

    while (parser->at < parser->len && ebnf_peek_at(parser, parser->at) != '"' &&
           LIST_ADD(parser->c, &chars))
        chars.items[chars.n - 1] = ebnf_take_char(parser);
    if (!ebnf_take_text(parser, "\""))
        return ebnf_fail(parser, ERR_SYNTAX, "a text without its closing quote");
    /* "a".."z" is a range of characters, both ends included. */
    if (parser->lark && chars.n == 1 && ebnf_take_text(parser, "..")) {
        struct regular_range range = {chars.items[0], 0};

        if (!ebnf_take_text(parser, "\"") || parser->at >= parser->len)
            return ebnf_fail(parser, ERR_SYNTAX, "a range without its end");
        range.hi = ebnf_take_char(parser);
        if (!ebnf_take_text(parser, "\"") || range.hi < range.lo)
            return ebnf_fail(parser, ERR_SYNTAX, "a range of characters that is none");
        return regular_set(parser->c, &range, 1, false);
    }
    /* The flag i must end the word, because "a"if would be the text "a" and the rule `if`. */
    any_case = parser->lark && ebnf_peek_at(parser, parser->at) == 'i' &&
               !ebnf_is_name_char(ebnf_peek_at(parser, parser->at + 1));
    parser->at += any_case;
    for (i = 0; i < chars.n && compile_tick(parser->c); i++) {
        const struct regular *one = ebnf_one_char(parser, chars.items[i], any_case);

        if (regular == NULL)
            regular = one;
        else
            regular = regular_node(parser->c, REGULAR_CAT, regular, one);
    }
    if (regular == NULL)
        return regular_node(parser->c, REGULAR_EMPTY, NULL, NULL);
    return regular;
}

/* After '[' in GBNF: a class. */
static const struct regular *ebnf_parse_class(struct ebnf_parser *parser)
{
    LIST(struct regular_range) ranges = {0};
    bool negated = ebnf_take_text(parser, "^");

    while (parser->at < parser->len && ebnf_peek_at(parser, parser->at) != ']' &&
           LIST_ADD(parser->c, &ranges)) {
        struct regular_range *r = &ranges.items[ranges.n - 1];

        r->lo = r->hi = ebnf_take_char(parser);
        /* A '-' before the closing bracket is a member: [a-] has two. */
        if (ebnf_peek_at(parser, parser->at) == '-' &&
            ebnf_peek_at(parser, parser->at + 1) != ']') {
            parser->at++;
            if (parser->at < parser->len)
                r->hi = ebnf_take_char(parser);
            else
                r->hi = 0;
        }
        if (r->hi < r->lo || r->hi > 0x10ffff)
            return ebnf_fail(parser, ERR_SYNTAX, "a range of characters that is none");
    }
    if (!ebnf_take_text(parser, "]"))
        return ebnf_fail(parser, ERR_SYNTAX, "a '[' without ']'");
    return regular_set(parser->c, ranges.items, ranges.n, negated);
}

/* After '/' in Lark: a regular expression, up to a '/' outside of a class. */
static const struct regular *ebnf_parse_regex(struct ebnf_parser *parser)
{
    size_t start = parser->at;
    size_t n;
    bool in_class = false;

    for (; parser->at < parser->len && (in_class || parser->text[parser->at] != '/') &&
           parser->text[parser->at] != '\n';
         parser->at++) {
        /* "\/" does not end the pattern, and neither does a '/' in a class. */
        if (parser->text[parser->at] == '\\')
            parser->at++;
        else if (parser->text[parser->at] == '[' || parser->text[parser->at] == ']')
            in_class = parser->text[parser->at] == '[';
    }
    n = parser->at - start;
    if (parser->at >= parser->len || !ebnf_take_text(parser, "/"))
        return ebnf_fail(parser, ERR_SYNTAX, "a pattern without its closing '/'");
    if (ebnf_is_name_char(ebnf_peek_at(parser, parser->at)) &&
        ebnf_peek_at(parser, parser->at) != '-')
        return ebnf_fail(parser, ERR_UNSUPPORTED, "flags of a pattern");
    return regex_tree(parser->c, parser->text + start, n);
}

/* After an opening bracket: alternatives up to `close`. */
static const struct regular *ebnf_parse_group(struct ebnf_parser *parser, const char *close)
{
    const struct regular *regular;

    if (++parser->depth > REGULAR_DEPTH_MAX)
        return ebnf_fail(parser, ERR_LIMIT, "groups are nested too deeply");
    regular = ebnf_parse_either(parser);
    parser->depth--;
    ebnf_skip_space(parser);
    if (compile_ok(parser->c) && !ebnf_take_text(parser, close))
        return ebnf_fail(parser, ERR_SYNTAX, "a group without its end");
    return regular;
}

/* A rule that is called by its name. */
static const struct regular *ebnf_parse_call(struct ebnf_parser *parser)
{
    size_t n = ebnf_name_len(parser, parser->at);
    struct regular *regular;

    if (n == 0)
        return ebnf_fail(parser, ERR_SYNTAX, "a text, group, class or rule name is expected");
    regular = compile_alloc(parser->c, sizeof *regular);
    if (regular == NULL)
        return NULL;
    regular->kind = REGULAR_CALL;
    regular->min = ebnf_rule_of(parser, parser->text + parser->at, n);
    parser->at += n;
    /* name{arg} is a template of Lark, name{2} a repeat. */
    if (parser->lark && ebnf_peek_at(parser, parser->at) == '{' &&
        ebnf_is_name_char(ebnf_peek_at(parser, parser->at + 1)) &&
        !ebnf_is_digit(ebnf_peek_at(parser, parser->at + 1)))
        return ebnf_fail(parser, ERR_UNSUPPORTED, "templates");
    return regular;
}

/* One element without a repeat. */
static const struct regular *ebnf_parse_atom(struct ebnf_parser *parser)
{
    static const struct regular_range line = {'\n', '\n'};

    /* The first byte decides. The two dialects differ in brackets and slashes:
     *
     *     GBNF:  "text"  ( group )  [a-z]       .        rule
     *     Lark:  "text"  ( group )  [optional]  /regex/  rule */
    if (ebnf_take_text(parser, "\""))
        return ebnf_parse_text(parser);
    if (ebnf_take_text(parser, "("))
        return ebnf_parse_group(parser, ")");
    if (parser->lark && ebnf_take_text(parser, "["))
        return regular_repeat(parser->c, ebnf_parse_group(parser, "]"), 0, 1);
    if (!parser->lark && ebnf_take_text(parser, "["))
        return ebnf_parse_class(parser);
    if (parser->lark && ebnf_take_text(parser, "/"))
        return ebnf_parse_regex(parser);
    /* A dot is any character but the line feed. */
    if (!parser->lark && ebnf_take_text(parser, "."))
        return regular_set(parser->c, &line, 1, true);
    /* Anything else must be the name of a rule or terminal. */
    return ebnf_parse_call(parser);
}

/* --- sequences ---------------------------------------------------------------------------- */

static uint32_t ebnf_take_number(struct ebnf_parser *parser)
{
    size_t start = parser->at;
    uint32_t n = 0;

    for (; ebnf_peek_at(parser, parser->at) >= '0' && ebnf_peek_at(parser, parser->at) <= '9';
         parser->at++)
        /* A number that is too large stays too large, so it cannot wrap around to a valid one. */
        n = n > 100000 ? n : n * 10 + (uint32_t)(parser->text[parser->at] - '0');
    if (parser->at == start || n > 100000)
        ebnf_fail(parser, ERR_SYNTAX, "a repeat without a number up to 100000");
    return n;
}

/* Repeat an element; checks the bounds. */
static const struct regular *ebnf_build_repeated(struct ebnf_parser *parser,
                                                 const struct regular *regular, uint32_t min,
                                                 uint32_t max)
{
    if (max < min)
        return ebnf_fail(parser, ERR_SYNTAX, "a repeat whose end is before its begin");
    return regular_repeat(parser->c, regular, min, max);
}

/* After '{': {n}, {n,}, {n,m} or {,m}. */
static const struct regular *ebnf_parse_counts(struct ebnf_parser *parser,
                                               const struct regular *regular)
{
    uint32_t min = 0;
    uint32_t max;

    ebnf_skip_space(parser);
    if (ebnf_peek_at(parser, parser->at) != ',')
        min = ebnf_take_number(parser);
    /* Without a comma the count is exact. */
    max = min;
    ebnf_skip_space(parser);
    if (ebnf_take_text(parser, ",")) {
        ebnf_skip_space(parser);
        if (ebnf_peek_at(parser, parser->at) == '}')
            max = NONE;
        else
            max = ebnf_take_number(parser);
        ebnf_skip_space(parser);
    }
    if (!ebnf_take_text(parser, "}"))
        return ebnf_fail(parser, ERR_SYNTAX, "a '{' without '}'");
    return ebnf_build_repeated(parser, regular, min, max);
}

/* After '~' in Lark: ~n or ~n..m. */
static const struct regular *ebnf_parse_tilde(struct ebnf_parser *parser,
                                              const struct regular *regular)
{
    uint32_t min, max;

    ebnf_skip_space(parser);
    min = max = ebnf_take_number(parser);
    ebnf_skip_space(parser);
    if (ebnf_take_text(parser, ".."))
        max = ebnf_take_number(parser);
    return ebnf_build_repeated(parser, regular, min, max);
}

/* An element and the repeats after it. The bound on their number is for inputs such as a*****. */
static const struct regular *ebnf_parse_repeated(struct ebnf_parser *parser)
{
    const struct regular *regular = ebnf_parse_atom(parser);
    int times;

    for (times = 0; compile_ok(parser->c) && times < 8; times++) {
        if (!parser->lark) /* in Lark, "a [b]" is a sequence, not an attribute */
            while (ebnf_peek_at(parser, parser->at) == ' ' ||
                   ebnf_peek_at(parser, parser->at) == '\t')
                parser->at++;
        if (ebnf_take_text(parser, "*"))
            regular = regular_repeat(parser->c, regular, 0, NONE);
        else if (ebnf_take_text(parser, "+"))
            regular = regular_repeat(parser->c, regular, 1, NONE);
        else if (ebnf_take_text(parser, "?"))
            regular = regular_repeat(parser->c, regular, 0, 1);
        else if (ebnf_take_text(parser, "{"))
            regular = ebnf_parse_counts(parser, regular);
        else if (parser->lark && ebnf_take_text(parser, "~"))
            regular = ebnf_parse_tilde(parser, regular);
        else
            break;
    }
    return regular;
}

/* Does a sequence end here? It does before the definition of the next rule, which has no
 * separator. */
static bool ebnf_sequence_ends(struct ebnf_parser *parser)
{
    size_t name, len, body;
    int ch;

    ebnf_skip_space(parser);
    ch = ebnf_peek_at(parser, parser->at);
    if (parser->lark && ebnf_take_text(parser, "->")) { /* the name of an alternative: skipped */
        ebnf_skip_space(parser);
        parser->at += ebnf_name_len(parser, parser->at);
        return ebnf_sequence_ends(parser);
    }
    return ch < 0 || ch == '|' || ch == ')' || (parser->lark && (ch == ']' || ch == '%')) ||
           ebnf_at_rule(parser, &name, &len, &body);
}

/* Elements one after another. */
static const struct regular *ebnf_parse_sequence(struct ebnf_parser *parser)
{
    const struct regular *regular = NULL;

    /* The nodes lean to the left, ((a b) c), which the search for left recursion relies on. */
    while (!ebnf_sequence_ends(parser) && compile_tick(parser->c)) {
        const struct regular *next = ebnf_parse_repeated(parser);

        if (regular == NULL)
            regular = next;
        else
            regular = regular_node(parser->c, REGULAR_CAT, regular, next);
    }
    /* An empty alternative, as in `a: "x" |`, is the empty text. */
    if (regular == NULL)
        return regular_node(parser->c, REGULAR_EMPTY, NULL, NULL);
    return regular;
}

/* Alternatives. */
static const struct regular *ebnf_parse_either(struct ebnf_parser *parser)
{
    const struct regular *regular = ebnf_parse_sequence(parser);

    while (compile_ok(parser->c) && ebnf_take_text(parser, "|"))
        regular = regular_node(parser->c, REGULAR_ALT, regular, ebnf_parse_sequence(parser));
    return regular;
}

/* --- rules -------------------------------------------------------------------------------- */

/* Consume the value of an attribute: a number, a name or a string. */
static bool ebnf_take_value(struct ebnf_parser *parser)
{
    size_t start = parser->at;

    /* A backslash hides the byte after it, such as a quote. A string that is not closed ends
     * with the text, where the closing quote is then missing. */
    if (ebnf_take_text(parser, "\"")) {
        while (parser->at < parser->len && ebnf_peek_at(parser, parser->at) != '"') {
            if (ebnf_peek_at(parser, parser->at) == '\\')
                parser->at += 2;
            else
                parser->at += 1;
        }
        return ebnf_take_text(parser, "\"");
    }
    /* A number such as 0.7, or a name. */
    while (ebnf_is_name_char(ebnf_peek_at(parser, parser->at)) ||
           ebnf_peek_at(parser, parser->at) == '.')
        parser->at++;
    return parser->at > start;
}

/* After '[' of a rule's name: [name, name=value, ...]. */
static void ebnf_parse_attributes(struct ebnf_parser *parser)
{
    static const char *const passed[] = {"capture", "max_tokens", "temperature"};

    /* These attributes concern the sampling of llguidance's rules and do not change the
     * language, so they are accepted and ignored. Others, such as `stop` or `suffix`, do change
     * it. */
    do {
        size_t i, n;

        ebnf_skip_space(parser);
        n = ebnf_name_len(parser, parser->at);
        /* The name must be equal as a whole, hence the comparison of lengths. */
        for (i = 0; i < 3; i++)
            if (strlen(passed[i]) == n && memcmp(parser->text + parser->at, passed[i], n) == 0)
                break;
        if (i == 3) {
            ebnf_fail(parser, ERR_UNSUPPORTED,
                      "rule attributes other than capture, max_tokens and temperature");
            return;
        }
        parser->at += n;
        ebnf_skip_space(parser);
        if (ebnf_take_text(parser, "=")) {
            ebnf_skip_space(parser);
            if (!ebnf_take_value(parser))
                ebnf_fail(parser, ERR_SYNTAX, "an attribute without its value");
        }
        ebnf_skip_space(parser);
    } while (ebnf_take_text(parser, ",") && compile_tick(parser->c));
    if (compile_ok(parser->c) && !ebnf_take_text(parser, "]"))
        ebnf_fail(parser, ERR_SYNTAX, "attributes without their ']'");
}

/* Consume a JSON object and return its length; 0, after an error, when it does not end. */
static size_t ebnf_take_object(struct ebnf_parser *parser)
{
    size_t n;

    ebnf_skip_space(parser);
    if (ebnf_peek_at(parser, parser->at) == '{')
        n = ebnf_bracket_len(parser, parser->at);
    else
        n = 0;
    if (n == 0)
        ebnf_fail(parser, ERR_SYNTAX, "a JSON object is missing, or does not end");
    parser->at += n;
    return n;
}

/* The definition of a rule, after its colon. */
static struct ebnf_rule ebnf_parse_rule(struct ebnf_parser *parser)
{
    struct ebnf_rule rule = {0};

    ebnf_skip_space(parser);
    (void)(parser->lark && ebnf_take_text(parser, "|"));
    if (parser->lark && ebnf_take_text(parser, "%json")) {
        rule.schema_len = ebnf_take_object(parser);
        rule.schema = parser->text + parser->at - rule.schema_len;
    } else {
        rule.tree = ebnf_parse_either(parser);
    }
    return rule;
}

/* A rule: name, attributes, definition. */
static void ebnf_parse_definition(struct ebnf_parser *parser)
{
    size_t name, len, body;
    uint32_t number;
    struct ebnf_rule rule, *own;

    if (!ebnf_at_rule(parser, &name, &len, &body)) {
        ebnf_fail(parser, ERR_SYNTAX, "a rule's name and its definition are missing");
        return;
    }
    number = ebnf_rule_of(parser, parser->text + name, len);
    parser->at = name + len;
    if (parser->lark && ebnf_take_text(parser, "["))
        ebnf_parse_attributes(parser);
    if (!compile_ok(parser->c))
        return;
    parser->at = body;
    rule = ebnf_parse_rule(parser);
    if (!compile_ok(parser->c))
        return;
    /* The pointer is taken after the body was parsed, because that may add rules and move the
     * array. */
    own = &parser->rules.items[number];
    if (own->tree != NULL || own->schema != NULL) {
        ebnf_fail(parser, ERR_SYNTAX, "a rule is defined twice");
        return;
    }
    own->tree = rule.tree;
    own->schema = rule.schema;
    own->schema_len = rule.schema_len;
}

/* All rules of a grammar. */
static void ebnf_parse_rules(struct ebnf_parser *parser)
{
    ebnf_skip_space(parser);
    if (parser->lark && ebnf_take_text(parser, "%llguidance"))
        (void)ebnf_take_object(parser);
    for (ebnf_skip_space(parser); parser->at < parser->len && compile_tick(parser->c);
         ebnf_skip_space(parser)) {
        if (parser->lark && ebnf_peek_at(parser, parser->at) == '%')
            ebnf_fail(parser, ERR_UNSUPPORTED, "directives (%ignore, %import, %regex, ...)");
        else
            ebnf_parse_definition(parser);
    }
}

/* --- left recursion ----------------------------------------------------------------------- */

/* The rest of a sequence that begins with a call of `rule`; NULL when it does not. */
static const struct regular *ebnf_follow_itself(struct compile *compile,
                                                const struct regular *regular, uint32_t rule)
{
    const struct regular *rest = NULL;

    /* Walk down the left side of the chain. The last left node is the first element: for ((r b)
     * c), the call of r, and the rest is (b c). */
    for (; regular != NULL && regular->kind == REGULAR_CAT; regular = regular->left) {
        if (rest == NULL)
            rest = regular->right;
        else
            rest = regular_node(compile, REGULAR_CAT, regular->right, rest);
    }
    /* `min` is the number of the called rule in a node of this kind. */
    if (regular == NULL || regular->kind != REGULAR_CALL || regular->min != rule)
        return NULL;
    /* The rule consists of the call alone: the rest is empty. */
    if (rest == NULL)
        return regular_node(compile, REGULAR_EMPTY, NULL, NULL);
    return rest;
}

static const struct regular *ebnf_build_either(struct compile *compile, const struct regular *a,
                                               const struct regular *b)
{
    if (a == NULL)
        return b;
    return regular_node(compile, REGULAR_ALT, a, b);
}

/* Replace direct left recursion by a repeat: a: a x | y becomes a: y x*. */
static const struct regular *ebnf_remove_itself(struct compile *compile, const struct regular *tree,
                                                uint32_t rule)
{
    const struct regular *others = NULL;
    const struct regular *tails = NULL;
    const struct regular *at = tree;

    while (at != NULL && compile_tick(compile)) { /* alternatives lean to the left */
        const struct regular *one = at->kind == REGULAR_ALT ? at->right : at;
        const struct regular *rest = ebnf_follow_itself(compile, one, rule);

        if (rest != NULL)
            tails = ebnf_build_either(compile, tails, rest);
        else
            others = ebnf_build_either(compile, others, one);
        if (at->kind == REGULAR_ALT)
            at = at->left;
        else
            at = NULL;
    }
    if (tails == NULL)
        return tree;
    if (others == NULL)
        return regular_node(compile, REGULAR_NEVER, NULL, NULL);
    return regular_node(compile, REGULAR_CAT, others, regular_repeat(compile, tails, 0, NONE));
}

/* Build the states of one rule, from start[number]. */
static void ebnf_build_rule(struct build *build, const struct ebnf_rule *rule, uint32_t number,
                            const uint32_t *start)
{
    if (rule->schema != NULL)
        build_jump(build, start[number],
                   schema_build(build, rule->schema, rule->schema_len, GRAMMAR_COMPACT));
    else
        regular_build(build, ebnf_remove_itself(build->c, rule->tree, number), start[number],
                      start);
}

/* Is it llguidance's Lark? Its first line decides, because a pattern or schema may contain
 * "::=". */
static bool ebnf_is_guidance(const char *text, size_t len)
{
    static const char head[] = "%llguidance";
    size_t at = 0;

    while (at < len && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n'))
        at++;
    return len - at > sizeof head && memcmp(text + at, head, sizeof head - 1) == 0;
}

uint32_t ebnf_build(struct build *build, const char *text, size_t len)
{
    struct ebnf_parser parser = {.c = build->c, .text = text, .len = len};
    uint32_t *start;
    uint32_t root, i;

    must(text != NULL || len == 0);
    parser.lark = ebnf_is_guidance(text, len) || memmem(text, len, "::=", 3) == NULL;
    if (!utf8_is_valid(text, len))
        ebnf_fail(&parser, ERR_SYNTAX, "not valid UTF-8");
    if (compile_ok(parser.c))
        ebnf_parse_rules(&parser);
    if (!compile_ok(parser.c))
        return 0;
    root = ebnf_rule_of(&parser, parser.lark ? "start" : "root", parser.lark ? 5 : 4);
    /* Rules are numbered when they are first mentioned, so a rule without a body was used but never
     * defined. */
    for (i = 0; i < parser.rules.n; i++) {
        if (parser.rules.items[i].tree != NULL || parser.rules.items[i].schema != NULL)
            continue;
        compile_fail(parser.c, ERR_INVALID, "grammar: rule \"%.*s\" is not defined",
                     (int)(parser.rules.items[i].len > 60 ? 60 : parser.rules.items[i].len),
                     parser.rules.items[i].name);
        return 0;
    }
    /* All start states exist before any rule is built, because rules call each other in any
     * order. */
    start = compile_alloc(parser.c, (size_t)parser.rules.n * sizeof *start);
    for (i = 0; i < parser.rules.n && compile_ok(parser.c); i++)
        start[i] = build_state(build);
    for (i = 0; i < parser.rules.n && compile_ok(parser.c); i++)
        ebnf_build_rule(build, &parser.rules.items[i], i, start);
    if (compile_ok(parser.c) && build_left_recursion(build) != NONE)
        compile_fail(parser.c, ERR_UNSUPPORTED,
                     "grammar: a rule begins with itself by way of another one (left recursion)");
    if (compile_ok(parser.c))
        return start[root];
    return 0;
}
