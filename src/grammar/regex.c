/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns: a parser of one pass over code points. Groups recurse, at most REGULAR_DEPTH_MAX. */
#include <string.h>

#include "base/hex.h"
#include "base/utf8.h"
#include "grammar/regular.h"

#define LOOKS_MAX  8      /* lookaheads at the beginning */
#define REPEAT_MAX 100000 /* {n,m}; larger ones could not be built anyway */
#define RANGES_MAX 512    /* of one class */
#define CODE_MAX   0x10ffff

struct parser {
    struct compile *c;
    const char *text;
    size_t len, at;
    int depth;
    bool dot_all; /* inside of (?s:...) '.' is a line's end, too */
};

struct class
{
    struct regular_range ranges[RANGES_MAX];
    uint32_t n;
    bool negated;
};

static const struct regular *parse_either(struct parser *p);

static void *fail(struct parser *p, int rc, const char *what)
{
    compile_fail(p->c, rc, "pattern, at byte %zu: %s", p->at, what);
    p->at = p->len;
    return NULL;
}

static int peek(const struct parser *p)
{
    return p->at < p->len ? (unsigned char)p->text[p->at] : -1;
}

static bool take(struct parser *p, const char *text)
{
    size_t n = strlen(text);

    if (p->at > p->len || p->len - p->at < n || memcmp(p->text + p->at, text, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* The next character; the text was checked to be UTF-8. */
static uint32_t take_char(struct parser *p)
{
    uint32_t code = utf8_decode(p->text + p->at);

    p->at += utf8_sequence(p->text + p->at, p->len - p->at);
    return code;
}

/* --- classes and escapes ------------------------------------------------------------------ */

static void class_add(struct parser *p, struct class *k, uint32_t lo, uint32_t hi)
{
    if (k->n == RANGES_MAX)
        fail(p, ERR_LIMIT, "a class of too many ranges");
    else
        k->ranges[k->n++] = (struct regular_range){lo, hi};
}

/* \d \w \s and their complements. False when it is none of these. */
static bool class_letter(struct parser *p, struct class *k, int letter)
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
    const struct regular_range *r;
    uint32_t next = 0;

    switch (letter | 0x20) {
    case 'd': r = digit; break;
    case 'w': r = word; break;
    case 's': r = space; break;
    default: return false;
    }
    if ((letter & 0x20) != 0) {
        for (; r->hi != 0; r++)
            class_add(p, k, r->lo, r->hi);
        return true;
    }
    for (; r->hi != 0; next = r->hi + 1, r++)
        class_add(p, k, next, r->lo - 1);
    class_add(p, k, next, CODE_MAX);
    return true;
}

static uint32_t take_hex(struct parser *p, int min, int max)
{
    uint32_t value = 0;
    int n;

    for (n = 0; n < max; n++, p->at++) {
        int digit = hex_digit(peek(p));

        if (digit < 0)
            break;
        value = value * 16 + (uint32_t)digit;
    }
    if (n < min)
        fail(p, ERR_SYNTAX, "hexadecimal digits are missing");
    return value;
}

static uint32_t take_unicode(struct parser *p)
{
    uint32_t code;

    if (take(p, "{")) {
        code = take_hex(p, 1, 6);
        if (!take(p, "}") || code > CODE_MAX)
            fail(p, ERR_SYNTAX, "\\u{...} is not a character");
        return code;
    }
    code = take_hex(p, 4, 4);
    if (code >= 0xd800 && code < 0xdc00 && take(p, "\\u"))
        code = 0x10000 + ((code - 0xd800) << 10) + (take_hex(p, 4, 4) & 0x3ff);
    if (code >= 0xd800 && code < 0xe000)
        fail(p, ERR_UNSUPPORTED, "half of a surrogate pair");
    return code;
}

/* What a '\' stands for, when it is one character; the '\' was taken. */
static uint32_t take_escape(struct parser *p)
{
    uint32_t ch;

    if (p->at >= p->len) {
        fail(p, ERR_SYNTAX, "nothing after '\\'");
        return 0;
    }
    ch = take_char(p);
    switch (ch) {
    case 't': return '\t';
    case 'n': return '\n';
    case 'r': return '\r';
    case 'f': return '\f';
    case 'v': return '\v';
    case 'x': return take_hex(p, 2, 2);
    case 'u': return take_unicode(p);
    case 'c':
        if ((peek(p) | 0x20) >= 'a' && (peek(p) | 0x20) <= 'z')
            return take_char(p) & 0x1f;
        fail(p, ERR_SYNTAX, "\\c without a letter");
        return 0;
    case '0':
        if (peek(p) >= '0' && peek(p) <= '9')
            fail(p, ERR_UNSUPPORTED, "octal escapes");
        return 0;
    case 'b':
    case 'B': fail(p, ERR_UNSUPPORTED, "word boundaries (\\b, \\B)"); return 0;
    case 'p':
    case 'P': fail(p, ERR_UNSUPPORTED, "Unicode properties (\\p)"); return 0;
    default: break;
    }
    if (ch >= '1' && ch <= '9')
        fail(p, ERR_UNSUPPORTED, "back references");
    else if ((ch | 0x20) >= 'a' && (ch | 0x20) <= 'z' && ch < 128)
        fail(p, ERR_UNSUPPORTED, "an escape of a letter that means nothing");
    return ch;
}

/* One end of a range in a class; *single is false when it was a class of its own (added). */
static uint32_t class_atom(struct parser *p, struct class *k, bool *single)
{
    *single = true;
    if (!take(p, "\\"))
        return take_char(p);
    if (class_letter(p, k, peek(p))) {
        p->at++;
        *single = false;
        return 0;
    }
    if (take(p, "b"))
        return '\b';
    return take_escape(p);
}

static const struct regular *parse_class(struct parser *p)
{
    struct class k = {.n = 0};
    bool single, other;
    uint32_t lo, hi;

    k.negated = take(p, "^");
    while (peek(p) != ']') {
        if (p->at >= p->len)
            return fail(p, ERR_SYNTAX, "a '[' without ']'");
        lo = class_atom(p, &k, &single);
        if (!compile_ok(p->c))
            return NULL;
        hi = lo;
        if (peek(p) == '-' && p->at + 1 < p->len && p->text[p->at + 1] != ']') {
            size_t dash = p->at++;

            hi = class_atom(p, &k, &other);
            if (!compile_ok(p->c))
                return NULL;
            if (!single || !other) { /* [\w-x]: the dash is one */
                class_add(p, &k, '-', '-');
                if (other)
                    class_add(p, &k, hi, hi);
                hi = lo;
            } else if (hi < lo) {
                p->at = dash;
                return fail(p, ERR_SYNTAX, "a range that ends before it begins");
            }
        }
        if (single)
            class_add(p, &k, lo, hi);
    }
    p->at++;
    return regular_set(p->c, k.ranges, k.n, k.negated);
}

/* --- atoms, repeats, sequences ------------------------------------------------------------ */

static const struct regular *parse_group(struct parser *p)
{
    const struct regular *r;
    bool dot_all = p->dot_all;

    if (take(p, "?")) {
        if (take(p, "=") || take(p, "!") || take(p, "<=") || take(p, "<!"))
            return fail(p, ERR_UNSUPPORTED,
                        "lookaheads that do not stand at the very beginning, "
                        "and lookbehinds");
        if (take(p, "P<") || take(p, "<")) {
            while (p->at < p->len && peek(p) != '>')
                p->at++;
            if (!take(p, ">"))
                return fail(p, ERR_SYNTAX, "a group's name without '>'");
        } else if (take(p, "s:")) {
            p->dot_all = true;
        } else if (!take(p, ":")) {
            return fail(p, ERR_UNSUPPORTED, "this kind of group (flags, conditions, atomic)");
        }
    }
    if (++p->depth > REGULAR_DEPTH_MAX)
        return fail(p, ERR_LIMIT, "groups are nested too deeply");
    r = parse_either(p);
    p->depth--;
    p->dot_all = dot_all;
    if (compile_ok(p->c) && !take(p, ")"))
        return fail(p, ERR_SYNTAX, "a '(' without ')'");
    return r;
}

static const struct regular *parse_atom(struct parser *p)
{
    static const struct regular_range lines[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    struct class k = {.n = 0};
    struct regular_range one;

    switch (peek(p)) {
    case '(': p->at++; return parse_group(p);
    case '[': p->at++; return parse_class(p);
    case '.': p->at++; return regular_set(p->c, lines, p->dot_all ? 0 : 3, true);
    case '^': p->at++; return regular_node(p->c, REGULAR_BEGIN, NULL, NULL);
    case '$': p->at++; return regular_node(p->c, REGULAR_END, NULL, NULL);
    case '*':
    case '+':
    case '?': return fail(p, ERR_SYNTAX, "nothing to repeat");
    case '\\':
        p->at++;
        if (class_letter(p, &k, peek(p))) {
            p->at++;
            return regular_set(p->c, k.ranges, k.n, false);
        }
        if (take(p, "A"))
            return regular_node(p->c, REGULAR_BEGIN, NULL, NULL);
        if (take(p, "Z") || take(p, "z"))
            return regular_node(p->c, REGULAR_END, NULL, NULL);
        one.lo = one.hi = take_escape(p);
        return regular_set(p->c, &one, 1, false);
    default: one.lo = one.hi = take_char(p); return regular_set(p->c, &one, 1, false);
    }
}

/* {n}, {n,} or {n,m}; false, and nothing taken, when it is none of them: then '{' is itself. */
static bool take_counts(struct parser *p, uint32_t *min, uint32_t *max)
{
    size_t at = p->at + 1;
    uint32_t n[2] = {0, NONE};
    int i;

    for (i = 0; i < 2; i++) {
        size_t first = at;
        uint32_t value = 0;

        for (; at < p->len && p->text[at] >= '0' && p->text[at] <= '9'; at++)
            if (value <= REPEAT_MAX)
                value = value * 10 + (uint32_t)(p->text[at] - '0');
        if (at > first)
            n[i] = value;
        else if (i == 0)
            return false;
        if (i == 0 && (at >= p->len || p->text[at] != ',')) {
            n[1] = n[0];
            break;
        }
        at += i == 0;
    }
    if (at >= p->len || p->text[at] != '}')
        return false;
    p->at = at + 1;
    *min = n[0];
    *max = n[1];
    if (n[0] > REPEAT_MAX || (n[1] != NONE && n[1] > REPEAT_MAX))
        fail(p, ERR_LIMIT, "a repeat of more than 100000");
    else if (n[1] < n[0])
        fail(p, ERR_SYNTAX, "a repeat whose end is before its begin");
    return true;
}

static const struct regular *parse_repeated(struct parser *p)
{
    const struct regular *r = parse_atom(p);
    uint32_t min, max;
    int times;

    for (times = 0; compile_ok(p->c) && times < 8; times++) { /* a**: pointless, but bounded */
        if (take(p, "*"))
            min = 0, max = NONE;
        else if (take(p, "+"))
            min = 1, max = NONE;
        else if (take(p, "?"))
            min = 0, max = 1;
        else if (peek(p) != '{' || !take_counts(p, &min, &max))
            return r;
        if (take(p, "+"))
            return fail(p, ERR_UNSUPPORTED, "possessive repeats");
        (void)take(p, "?"); /* a lazy repeat matches the same texts */
        r = regular_repeat(p->c, r, min, max);
    }
    return r;
}

static const struct regular *parse_sequence(struct parser *p)
{
    const struct regular *r = NULL;

    while (p->at < p->len && peek(p) != '|' && peek(p) != ')' && compile_tick(p->c)) {
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

const struct regular *regex_tree(struct compile *c, const char *text, size_t len)
{
    struct parser p = {.c = c, .text = text, .len = len};
    const struct regular *r;

    if (!utf8_is_valid(text, len))
        return fail(&p, ERR_SYNTAX, "not valid UTF-8");
    r = parse_either(&p);
    if (compile_ok(c) && p.at < len)
        return fail(&p, ERR_SYNTAX, "a ')' without '('");
    return r;
}

/* --- languages ---------------------------------------------------------------------------- */

/* What `tree` matches somewhere in the text. */
static const struct dfa *search(struct compile *c, const struct regular *tree)
{
    const struct regular *any = regular_repeat(c, regular_any(c), 0, NONE);

    tree = regular_node(c, REGULAR_CAT, regular_node(c, REGULAR_CAT, any, tree), any);
    return compile_ok(c) ? regular_dfa(c, tree) : NULL;
}

/* What it matches from the first character on, to the last or (open) to somewhere. */
static const struct dfa *anchored(struct compile *c, const struct regular *tree, bool open)
{
    const struct regular *any = regular_repeat(c, regular_any(c), 0, NONE);

    if (open)
        tree = regular_node(c, REGULAR_CAT, tree, any);
    return compile_ok(c) ? regular_dfa(c, tree) : NULL;
}

struct looks { /* lookaheads before the rest of a pattern */
    const struct dfa *parts[LOOKS_MAX + 1];
    uint32_t n;
    uint32_t negative; /* mask */
};

static bool looks_keep(const void *arg, uint32_t mask)
{
    const struct looks *l = arg;

    return mask == (((1u << l->n) - 1) & ~l->negative);
}

/* The length of the group that begins at text[0] == '('; 0 when it does not end. */
static size_t group_len(const char *text, size_t len)
{
    size_t at;
    size_t depth = 0;
    bool in_class = false;

    for (at = 0; at < len; at++) {
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

/* Is there a '|' outside of groups? Then a lookahead is not about the whole. */
static bool has_either(const char *text, size_t len)
{
    size_t at, n;

    for (at = 0; at < len; at++) {
        if (text[at] == '|')
            return true;
        if (text[at] == '\\') {
            at++;
        } else if (text[at] == '[') {
            for (; at < len && text[at] != ']'; at++)
                at += text[at] == '\\';
        } else if (text[at] == '(') {
            n = group_len(text + at, len - at);
            at += n > 0 ? n - 1 : 0;
        }
    }
    return false;
}

static bool is_look(const char *text, size_t len)
{
    return len > 3 && text[0] == '(' && text[1] == '?' && (text[2] == '=' || text[2] == '!');
}

/* ^(?=A)(?!B)rest: begins as A, does not begin as B, and is ^rest. `open`: rest may stop early. */
static const struct dfa *with_looks(struct compile *c, const char *text, size_t len, bool open)
{
    struct looks l = {.n = 0};
    size_t n;

    while (is_look(text, len) && compile_ok(c)) {
        n = group_len(text, len);
        if (n == 0 || l.n == LOOKS_MAX) {
            compile_fail(c, ERR_SYNTAX, "pattern: a lookahead without end, or too many of them");
            return NULL;
        }
        if (text[2] == '!')
            l.negative |= 1u << l.n;
        l.parts[l.n++] = anchored(c, regex_tree(c, text + 3, n - 4), true);
        text += n;
        len -= n;
    }
    l.parts[l.n++] = anchored(c, regex_tree(c, text, len), open);
    return compile_ok(c) ? dfa_side_by_side(c, l.parts, l.n, 0, NONE, looks_keep, &l) : NULL;
}

const struct dfa *regex_search(struct compile *c, const char *pattern, size_t len)
{
    if (len > 0 && pattern[0] == '^' && is_look(pattern + 1, len - 1) && !has_either(pattern, len))
        return with_looks(c, pattern + 1, len - 1, true);
    return search(c, regex_tree(c, pattern, len));
}

const struct dfa *regex_whole(struct compile *c, const char *pattern, size_t len)
{
    size_t skip = len > 0 && pattern[0] == '^';

    if (is_look(pattern + skip, len - skip) && !has_either(pattern, len))
        return with_looks(c, pattern + skip, len - skip, false);
    return anchored(c, regex_tree(c, pattern, len), false);
}
