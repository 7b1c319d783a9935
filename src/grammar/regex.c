/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns: a recursive parser over code points that makes a tree (regular.h), and the languages of
 * a pattern, in which lookaheads at the beginning are intersections. Groups recurse, at most
 * REGULAR_DEPTH_MAX deep. */
#include <string.h>

#include "base/hex.h"
#include "base/must.h"
#include "base/utf8.h"
#include "grammar/regular.h"

#define LOOKS_MAX  8      /* lookaheads at the beginning */
#define REPEAT_MAX 100000 /* in {n,m}; larger ones would exceed the bound on states anyway */
#define RANGES_MAX 512    /* per class */
#define CODE_MAX   0x10ffff

/* At a failure the position moves to the end, so that all loops stop. */
struct regex_parser {
    struct compile *c;
    const char *text;
    size_t len, at;
    int depth;
    bool dot_all; /* inside of (?s:...), where '.' matches line ends, too */
};

struct class
{
    struct regular_range ranges[RANGES_MAX];
    uint32_t n;
    bool negated;
};

static const struct regular *regex_parse_either(struct regex_parser *parser);

/* Report an error with its offset. */
static void *regex_fail(struct regex_parser *parser, int rc, const char *what)
{
    compile_fail(parser->c, rc, "pattern, at byte %zu: %s", parser->at, what);
    parser->at = parser->len;
    return NULL;
}

static int regex_peek_char(const struct regex_parser *parser)
{
    if (parser->at < parser->len)
        return (unsigned char)parser->text[parser->at];
    return -1;
}

/* Consume a literal text, if it comes next. */
static bool regex_take_char(struct regex_parser *parser, const char *text)
{
    size_t n = strlen(text);

    if (parser->at > parser->len || parser->len - parser->at < n ||
        memcmp(parser->text + parser->at, text, n) != 0)
        return false;
    parser->at += n;
    return true;
}

/* The next character; the text is known to be valid UTF-8. */
static uint32_t regex_take_literal(struct regex_parser *parser)
{
    uint32_t code = utf8_decode(parser->text + parser->at);

    parser->at += utf8_sequence(parser->text + parser->at, parser->len - parser->at);
    return code;
}

/* --- classes and escapes ------------------------------------------------------------------ */

static void regex_class_add(struct regex_parser *parser, struct class *class, uint32_t lo,
                            uint32_t hi)
{
    if (class->n == RANGES_MAX)
        regex_fail(parser, ERR_LIMIT, "a class of too many ranges");
    else
        class->ranges[class->n++] = (struct regular_range){lo, hi};
}

/* Add the members of \d \w \s or of a complement. False when the letter is none of these. */
static bool regex_class_letter(struct regex_parser *parser, struct class *class, int letter)
{
    static const struct regular_range digit[] = {{'0', '9'}, {0, 0}};
    static const struct regular_range word[] = {
        {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {0, 0}};
    static const struct regular_range space[] = {{0x09, 0x0d},
                                                 {0x20, 0x20},
                                                 {0xa0, 0xa0},
                                                 {0x1680, 0x1680},
                                                 {0x2000, 0x200a},
                                                 {0x2028, 0x2029},
                                                 {0x202f, 0x202f},
                                                 {0x205f, 0x205f},
                                                 {0x3000, 0x3000},
                                                 {0xfeff, 0xfeff},
                                                 {0, 0}};
    const struct regular_range *range;
    uint32_t next = 0;

    switch (letter | 0x20) {
    case 'd': range = digit; break;
    case 'w': range = word; break;
    case 's': range = space; break;
    default: return false;
    }
    /* A small letter is the class itself; a capital one is its complement, built from the gaps. */
    if ((letter & 0x20) != 0) {
        for (; range->hi != 0; range++)
            regex_class_add(parser, class, range->lo, range->hi);
        return true;
    }
    for (; range->hi != 0; next = range->hi + 1, range++)
        regex_class_add(parser, class, next, range->lo - 1);
    regex_class_add(parser, class, next, CODE_MAX);
    return true;
}

/* A number of min to max hexadecimal digits. */
static uint32_t regex_take_hex(struct regex_parser *parser, int min, int max)
{
    uint32_t value = 0;
    int n;

    /* At most max digits: \x412 is \x41 and a 2. */
    for (n = 0; n < max; n++, parser->at++) {
        int digit = hex_digit(regex_peek_char(parser));

        if (digit < 0)
            break;
        value = value * 16 + (uint32_t)digit;
    }
    /* Fewer than min: the position is at the character that is no digit, which the error
     * reports. */
    if (n < min)
        regex_fail(parser, ERR_SYNTAX, "hexadecimal digits are missing");
    return value;
}

/* After \u: {H...}, or four digits; two surrogates in a row are one character, as in ECMAScript. */
static uint32_t regex_take_unicode(struct regex_parser *parser)
{
    uint32_t code;

    /* \u{1F600} has one to six digits and needs no pairs. */
    if (regex_take_char(parser, "{")) {
        code = regex_take_hex(parser, 1, 6);
        if (!regex_take_char(parser, "}") || code > CODE_MAX)
            regex_fail(parser, ERR_SYNTAX, "\\u{...} is not a character");
        return code;
    }
    code = regex_take_hex(parser, 4, 4);
    /* \ud83d\ude00 is U+1F600: the first half gives the upper ten bits, the second one the lower
     * ten. */
    if (code >= 0xd800 && code < 0xdc00 && regex_take_char(parser, "\\u"))
        code = 0x10000 + ((code - 0xd800) << 10) + (regex_take_hex(parser, 4, 4) & 0x3ff);
    /* A half alone is no character and has no form in UTF-8. */
    if (code >= 0xd800 && code < 0xe000)
        regex_fail(parser, ERR_UNSUPPORTED, "half of a surrogate pair");
    return code;
}

/* After a '\': the character that the escape stands for. */
static uint32_t regex_take_escape(struct regex_parser *parser)
{
    uint32_t ch;

    if (parser->at >= parser->len) {
        regex_fail(parser, ERR_SYNTAX, "nothing after '\\'");
        return 0;
    }
    ch = regex_take_literal(parser);
    switch (ch) {
    case 't': return '\t';
    case 'n': return '\n';
    case 'r': return '\r';
    case 'f': return '\f';
    case 'v': return '\v';
    case 'x': return regex_take_hex(parser, 2, 2);
    case 'u': return regex_take_unicode(parser);
    /* \cJ is the control character whose code is the letter's lower five bits. */
    case 'c':
        if ((regex_peek_char(parser) | 0x20) >= 'a' && (regex_peek_char(parser) | 0x20) <= 'z')
            return regex_take_literal(parser) & 0x1f;
        regex_fail(parser, ERR_SYNTAX, "\\c without a letter");
        return 0;
    case '0':
        if (regex_peek_char(parser) >= '0' && regex_peek_char(parser) <= '9')
            regex_fail(parser, ERR_UNSUPPORTED, "octal escapes");
        return 0;
    case 'b':
    case 'B': regex_fail(parser, ERR_UNSUPPORTED, "word boundaries (\\b, \\B)"); return 0;
    case 'p':
    case 'P': regex_fail(parser, ERR_UNSUPPORTED, "Unicode properties (\\p)"); return 0;
    default: break;
    }
    /* An escape of any other letter means something in some dialect, so it is refused and not
     * guessed. */
    if (ch >= '1' && ch <= '9')
        regex_fail(parser, ERR_UNSUPPORTED, "back references");
    else if ((ch | 0x20) >= 'a' && (ch | 0x20) <= 'z' && ch < 128)
        regex_fail(parser, ERR_UNSUPPORTED, "an unknown escape of a letter");
    return ch;
}

/* One end of a range in a class. *single is false when it was a class such as \d, which is then
 * added. */
static uint32_t regex_parse_class_atom(struct regex_parser *parser, struct class *class,
                                       bool *single)
{
    *single = true;
    /* Most characters of a class are themselves. Only a backslash begins something else. */
    if (!regex_take_char(parser, "\\"))
        return regex_take_literal(parser);
    /* A class such as \d has no single character, so it cannot be an end of a range. */
    if (regex_class_letter(parser, class, regex_peek_char(parser))) {
        parser->at++;
        *single = false;
        return 0;
    }
    /* Inside a class \b is the backspace, and outside a word boundary. */
    if (regex_take_char(parser, "b"))
        return '\b';
    return regex_take_escape(parser);
}

/* After '[': a class. */
static const struct regular *regex_parse_class(struct regex_parser *parser)
{
    struct class class = {.n = 0};
    bool single, other;
    uint32_t lo, hi;

    class.negated = regex_take_char(parser, "^");
    while (regex_peek_char(parser) != ']') {
        if (parser->at >= parser->len)
            return regex_fail(parser, ERR_SYNTAX, "a '[' without ']'");
        lo = regex_parse_class_atom(parser, &class, &single);
        if (!compile_ok(parser->c))
            return NULL;
        hi = lo;
        if (regex_peek_char(parser) == '-' && parser->at + 1 < parser->len &&
            parser->text[parser->at + 1] != ']') {
            size_t dash = parser->at++;

            hi = regex_parse_class_atom(parser, &class, &other);
            if (!compile_ok(parser->c))
                return NULL;
            if (!single || !other) { /* [\w-x]: the dash is a member */
                regex_class_add(parser, &class, '-', '-');
                if (other)
                    regex_class_add(parser, &class, hi, hi);
                hi = lo;
            } else if (hi < lo) {
                parser->at = dash;
                return regex_fail(parser, ERR_SYNTAX, "a range that ends before it begins");
            }
        }
        if (single)
            regex_class_add(parser, &class, lo, hi);
    }
    parser->at++;
    return regular_set(parser->c, class.ranges, class.n, class.negated);
}

/* --- atoms, repeats, sequences ------------------------------------------------------------ */

/* After '(': a group and its kind. Names have no effect. */
static const struct regular *regex_parse_group(struct regex_parser *parser)
{
    const struct regular *regular;
    bool dot_all = parser->dot_all;

    if (regex_take_char(parser, "?")) {
        if (regex_take_char(parser, "=") || regex_take_char(parser, "!") ||
            regex_take_char(parser, "<=") || regex_take_char(parser, "<!"))
            return regex_fail(parser, ERR_UNSUPPORTED,
                              "lookaheads that are not at the very beginning, "
                              "and lookbehinds");
        /* (?P<name>...) and (?<name>...): the name is skipped. */
        if (regex_take_char(parser, "P<") || regex_take_char(parser, "<")) {
            while (parser->at < parser->len && regex_peek_char(parser) != '>')
                parser->at++;
            if (!regex_take_char(parser, ">"))
                return regex_fail(parser, ERR_SYNTAX, "a group's name without '>'");
        } else if (regex_take_char(parser, "s:")) {
            parser->dot_all = true;
        } else if (!regex_take_char(parser, ":")) {
            return regex_fail(parser, ERR_UNSUPPORTED,
                              "this kind of group (flags, conditions, atomic)");
        }
    }
    if (++parser->depth > REGULAR_DEPTH_MAX)
        return regex_fail(parser, ERR_LIMIT, "groups are nested too deeply");
    regular = regex_parse_either(parser);
    parser->depth--;
    /* A flag holds to the end of its group. */
    parser->dot_all = dot_all;
    if (compile_ok(parser->c) && !regex_take_char(parser, ")"))
        return regex_fail(parser, ERR_SYNTAX, "a '(' without ')'");
    return regular;
}

/* One element without a repeat. */
static const struct regular *regex_parse_atom(struct regex_parser *parser)
{
    static const struct regular_range lines[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    struct class class = {.n = 0};
    struct regular_range one;

    switch (regex_peek_char(parser)) {
    case '(': parser->at++; return regex_parse_group(parser);
    case '[': parser->at++; return regex_parse_class(parser);
    /* The set of line ends is negated: '.' matches all other characters, or all with (?s:...). */
    case '.': parser->at++; return regular_set(parser->c, lines, parser->dot_all ? 0 : 3, true);
    case '^': parser->at++; return regular_node(parser->c, REGULAR_BEGIN, NULL, NULL);
    case '$': parser->at++; return regular_node(parser->c, REGULAR_END, NULL, NULL);
    case '*':
    case '+':
    case '?': return regex_fail(parser, ERR_SYNTAX, "nothing to repeat");
    case '\\':
        parser->at++;
        if (regex_class_letter(parser, &class, regex_peek_char(parser))) {
            parser->at++;
            return regular_set(parser->c, class.ranges, class.n, false);
        }
        if (regex_take_char(parser, "A"))
            return regular_node(parser->c, REGULAR_BEGIN, NULL, NULL);
        if (regex_take_char(parser, "Z") || regex_take_char(parser, "z"))
            return regular_node(parser->c, REGULAR_END, NULL, NULL);
        one.lo = one.hi = regex_take_escape(parser);
        return regular_set(parser->c, &one, 1, false);
    default:
        one.lo = one.hi = regex_take_literal(parser);
        return regular_set(parser->c, &one, 1, false);
    }
}

/* {n}, {n,} or {n,m}. False, with nothing consumed, for anything else: '{' is then a literal. */
static bool regex_take_counts(struct regex_parser *parser, uint32_t *min, uint32_t *max)
{
    size_t at = parser->at + 1;
    uint32_t n[2] = {0, NONE};
    int i;

    /* Read up to two numbers. {n} is {n,n}; {n,} has no maximum. Digits beyond the bound are read
     * but not added, so the value cannot overflow. */
    for (i = 0; i < 2; i++) {
        size_t first = at;
        uint32_t value = 0;

        for (; at < parser->len && parser->text[at] >= '0' && parser->text[at] <= '9'; at++)
            if (value <= REPEAT_MAX)
                value = value * 10 + (uint32_t)(parser->text[at] - '0');
        if (at > first)
            n[i] = value;
        else if (i == 0)
            return false;
        if (i == 0 && (at >= parser->len || parser->text[at] != ',')) {
            n[1] = n[0];
            break;
        }
        at += i == 0;
    }
    if (at >= parser->len || parser->text[at] != '}')
        return false;
    parser->at = at + 1;
    *min = n[0];
    *max = n[1];
    if (n[0] > REPEAT_MAX || (n[1] != NONE && n[1] > REPEAT_MAX))
        regex_fail(parser, ERR_LIMIT, "a repeat of more than 100000");
    else if (n[1] < n[0])
        regex_fail(parser, ERR_SYNTAX, "a repeat whose end is before its begin");
    return true;
}

/* An element and the repeats after it. */
static const struct regular *regex_parse_repeated(struct regex_parser *parser)
{
    const struct regular *regular = regex_parse_atom(parser);
    uint32_t min, max;
    int times;

    for (times = 0; compile_ok(parser->c) && times < 8; times++) { /* for inputs such as a*** */
        if (regex_take_char(parser, "*"))
            min = 0, max = NONE;
        else if (regex_take_char(parser, "+"))
            min = 1, max = NONE;
        else if (regex_take_char(parser, "?"))
            min = 0, max = 1;
        else if (regex_peek_char(parser) != '{' || !regex_take_counts(parser, &min, &max))
            return regular;
        if (regex_take_char(parser, "+"))
            return regex_fail(parser, ERR_UNSUPPORTED, "possessive repeats");
        (void)regex_take_char(parser, "?"); /* a lazy repeat matches the same texts */
        regular = regular_repeat(parser->c, regular, min, max);
    }
    return regular;
}

/* Elements one after another. */
static const struct regular *regex_parse_sequence(struct regex_parser *parser)
{
    const struct regular *regular = NULL;

    /* A sequence ends at '|', at the end of its group, or at the end of the pattern. A ')'
     * without its '(' is left for the caller to report. */
    while (parser->at < parser->len && regex_peek_char(parser) != '|' &&
           regex_peek_char(parser) != ')' && compile_tick(parser->c)) {
        const struct regular *next = regex_parse_repeated(parser);

        if (regular == NULL)
            regular = next;
        else
            regular = regular_node(parser->c, REGULAR_CAT, regular, next);
    }
    /* Nothing between two '|': the empty text matches. */
    if (regular == NULL)
        return regular_node(parser->c, REGULAR_EMPTY, NULL, NULL);
    return regular;
}

/* Alternatives. */
static const struct regular *regex_parse_either(struct regex_parser *parser)
{
    const struct regular *regular = regex_parse_sequence(parser);

    while (compile_ok(parser->c) && regex_take_char(parser, "|"))
        regular = regular_node(parser->c, REGULAR_ALT, regular, regex_parse_sequence(parser));
    return regular;
}

const struct regular *regex_tree(struct compile *compile, const char *text, size_t len)
{
    struct regex_parser parser = {.c = compile, .text = text, .len = len};
    const struct regular *regular;

    must(text != NULL || len == 0);
    if (!utf8_is_valid(text, len))
        return regex_fail(&parser, ERR_SYNTAX, "not valid UTF-8");
    regular = regex_parse_either(&parser);
    /* The parser of alternatives stops at a ')', which is an error outside of any group. */
    if (compile_ok(compile) && parser.at < len)
        return regex_fail(&parser, ERR_SYNTAX, "a ')' without '('");
    return regular;
}

/* --- languages ---------------------------------------------------------------------------- */

/* The texts in which the tree matches somewhere. */
static const struct dfa *regex_search_tree(struct compile *compile, const struct regular *tree)
{
    const struct regular *any = regular_repeat(compile, regular_any(compile), 0, NONE);

    tree = regular_node(compile, REGULAR_CAT, regular_node(compile, REGULAR_CAT, any, tree), any);
    if (compile_ok(compile))
        return regular_dfa(compile, tree);
    return NULL;
}

/* The texts that the tree matches from the first character on: to the last, or with `open` to
 * any. */
static const struct dfa *regex_add_anchors(struct compile *compile, const struct regular *tree,
                                           bool open)
{
    const struct regular *any = regular_repeat(compile, regular_any(compile), 0, NONE);

    if (open)
        tree = regular_node(compile, REGULAR_CAT, tree, any);
    if (compile_ok(compile))
        return regular_dfa(compile, tree);
    return NULL;
}

struct looks { /* the lookaheads of a pattern, and the rest of it as the last part */
    const struct dfa *parts[LOOKS_MAX + 1];
    uint32_t n;
    uint32_t negative; /* mask */
};

/* Keep the texts that match all parts except the negative ones, and none of those. */
static bool regex_looks_keep(const void *arg, uint32_t mask)
{
    const struct looks *looks = arg;

    return mask == (((1u << looks->n) - 1) & ~looks->negative);
}

/* The length of the group that begins at text[0] == '('; 0 when it does not end. */
static size_t regex_group_len(const char *text, size_t len)
{
    size_t at;
    size_t depth = 0;
    bool in_class = false;

    for (at = 0; at < len; at++) {
        /* Escapes and classes may contain brackets that do not count. */
        if (text[at] == '\\')
            at++;
        else if (text[at] == '[' && !in_class)
            in_class = true;
        else if (text[at] == ']')
            in_class = false;
        else if (text[at] == '(' && !in_class)
            depth++;
        else if (text[at] == ')' && !in_class && --depth == 0)
            return at + 1;
    }
    return 0;
}

/* Is there a '|' outside of groups? Then a lookahead belongs to the first alternative only. */
static bool regex_has_either(const char *text, size_t len)
{
    size_t at, n;

    for (at = 0; at < len; at++) {
        if (text[at] == '|')
            return true;
        /* Skip escapes, classes and groups, in which a '|' does not count. */
        if (text[at] == '\\') {
            at++;
        } else if (text[at] == '[') {
            for (; at < len && text[at] != ']'; at++)
                at += text[at] == '\\';
        } else if (text[at] == '(') {
            n = regex_group_len(text + at, len - at);
            if (n > 0)
                at += n - 1;
        }
    }
    return false;
}

static bool regex_is_look(const char *text, size_t len)
{
    return len > 3 && text[0] == '(' && text[1] == '?' && (text[2] == '=' || text[2] == '!');
}

/* ^(?=A)(?!B)rest: the texts that begin with A, do not begin with B, and match ^rest. `open`: rest
 * need not reach the end. */
static const struct dfa *regex_with_looks(struct compile *compile, const char *text, size_t len,
                                          bool open)
{
    struct looks looks = {.n = 0};
    size_t n;

    while (regex_is_look(text, len) && compile_ok(compile)) {
        n = regex_group_len(text, len);
        if (n == 0 || looks.n == LOOKS_MAX) {
            compile_fail(compile, ERR_SYNTAX,
                         "pattern: a lookahead without end, or too many of them");
            return NULL;
        }
        if (text[2] == '!')
            looks.negative |= 1u << looks.n;
        /* n - 4 is the length between "(?=" and ")". A lookahead may be followed by anything. */
        looks.parts[looks.n++] =
            regex_add_anchors(compile, regex_tree(compile, text + 3, n - 4), true);
        text += n;
        len -= n;
    }
    /* The rest of the pattern is one more factor, which must match. */
    looks.parts[looks.n++] = regex_add_anchors(compile, regex_tree(compile, text, len), open);
    if (compile_ok(compile))
        return dfa_side_by_side(compile, &(struct dfa_product){.parts = looks.parts,
                                                               .n = looks.n,
                                                               .max_len = NONE,
                                                               .keep = regex_looks_keep,
                                                               .arg = &looks});
    return NULL;
}

const struct dfa *regex_search(struct compile *compile, const char *pattern, size_t len)
{
    must(pattern != NULL || len == 0);
    if (len > 0 && pattern[0] == '^' && regex_is_look(pattern + 1, len - 1) &&
        !regex_has_either(pattern, len))
        return regex_with_looks(compile, pattern + 1, len - 1, true);
    return regex_search_tree(compile, regex_tree(compile, pattern, len));
}

const struct dfa *regex_whole(struct compile *compile, const char *pattern, size_t len)
{
    size_t skip = len > 0 && pattern[0] == '^';

    must(pattern != NULL || len == 0);
    if (regex_is_look(pattern + skip, len - skip) && !regex_has_either(pattern, len))
        return regex_with_looks(compile, pattern + skip, len - skip, false);
    return regex_add_anchors(compile, regex_tree(compile, pattern, len), false);
}
