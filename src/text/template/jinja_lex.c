/* SPDX-License-Identifier: Apache-2.0
 *
 * The lexer: line ends become \n, one at the very end goes, then text and tags alternate.
 * White space: "-" strips all on its side; without it a block or comment takes the line end
 * behind it (trim_blocks) and the blanks before it on its line (lstrip_blocks); "+" forbids. */
#include "text/template/jinja_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hex.h"
#include "base/utf8.h"
#include "text/unicode.h"

struct lexer {
    struct arena *arena;
    struct jfault *fault;
    char *text; /* line ends normalized; NUL-terminated */
    size_t len;
    size_t at;
    int line;
    bool line_starting; /* what was read last ended a line, or nothing was */
    struct jtoken *tokens;
    size_t n;
    size_t cap;
};

bool jfault_set(struct jfault *f, int rc, const char *format, ...)
{
    va_list args;

    if (f->rc != ERR_OK)
        return false;
    f->rc = rc;
    va_start(args, format);
    (void)vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    return false;
}

static bool lex_fail(struct lexer *l, const char *what)
{
    return jfault_set(l->fault, ERR_SYNTAX, "line %d: %s", l->line, what);
}

static bool lex_memory(struct lexer *l)
{
    return jfault_set(l->fault, ERR_NO_MEMORY, "out of memory for the template");
}

static bool lex_add(struct lexer *l, enum jtoken_kind kind, const char *text, size_t len)
{
    if (l->n == l->cap) {
        size_t cap = l->cap == 0 ? 256 : l->cap * 2;
        struct jtoken *grown = arena_alloc(l->arena, cap * sizeof *grown);

        if (grown == NULL)
            return lex_memory(l);
        if (l->n > 0)
            memcpy(grown, l->tokens, l->n * sizeof *grown);
        l->tokens = grown;
        l->cap = cap;
    }
    l->tokens[l->n++] = (struct jtoken){.kind = kind, .line = l->line, .text = text, .len = len};
    return true;
}

static bool lex_add_copy(struct lexer *l, enum jtoken_kind kind, const char *text, size_t len)
{
    char *copy = arena_strndup(l->arena, text, len);

    return copy == NULL ? lex_memory(l) : lex_add(l, kind, copy, len);
}

static void lex_move(struct lexer *l, size_t to)
{
    if (to > l->at)
        l->line_starting = l->text[to - 1] == '\n';
    for (; l->at < to; l->at++)
        l->line += l->text[l->at] == '\n';
}

static size_t space_at(const char *text, size_t at, size_t len)
{
    uint32_t c;

    if (at >= len)
        return 0;
    c = utf8_decode(text + at);
    return unicode_is_python_space(c) ? utf8_sequence(text + at, len - at) : 0;
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    size_t n;

    while ((n = space_at(l->text, at, l->len)) != 0)
        at += n;
    return at;
}

/* Where the text [from, to) ends when a tag with this sign follows. */
static size_t strip_before(const struct lexer *l, size_t from, size_t to, char sign, bool is_var)
{
    size_t end = to;

    if (sign == '-') {
        while (end > from) {
            size_t at = end - 1;

            while (at > from && ((unsigned char)l->text[at] & 0xc0) == 0x80)
                at--;
            if (space_at(l->text, at, l->len) == 0)
                break;
            end = at;
        }
        return end;
    }
    if (sign == '+' || is_var)
        return to;
    while (end > from && l->text[end - 1] != '\n')
        end--;
    if (end == from && !l->line_starting)
        return to;
    return skip_space(l, end) >= to ? end : to;
}

/* Step over the end of a block or comment and what it takes along. at is behind the sign. */
static void after_tag(struct lexer *l, size_t at, char sign)
{
    if (sign == '-')
        at = skip_space(l, at);
    else if (sign != '+' && at < l->len && l->text[at] == '\n')
        at++;
    lex_move(l, at);
}

static bool lex_comment(struct lexer *l)
{
    const char *end = strstr(l->text + l->at + 2, "#}");
    char sign;

    if (end == NULL)
        return lex_fail(l, "a comment does not end");
    sign = end[-1];
    after_tag(l, (size_t)(end - l->text) + 2, sign);
    return true;
}

/* {% raw %} at l->at: up to {% endraw %} all is text. False without fault when it is none. */
static bool lex_raw(struct lexer *l, bool *found)
{
    size_t at = l->at + 2;
    size_t end;
    char sign = '\0';

    *found = false;
    if (at < l->len && (l->text[at] == '-' || l->text[at] == '+'))
        at++;
    at = skip_space(l, at);
    if (strncmp(l->text + at, "raw", 3) != 0)
        return true;
    at = skip_space(l, at + 3);
    if (l->text[at] == '-')
        sign = l->text[at++];
    if (strncmp(l->text + at, "%}", 2) != 0)
        return true;
    *found = true;
    at += 2;
    if (sign == '-')
        at = skip_space(l, at);
    lex_move(l, at);
    for (end = at; end < l->len; end++) {
        size_t p = end + 2;
        char before = '\0';

        if (strncmp(l->text + end, "{%", 2) != 0)
            continue;
        if (l->text[p] == '-' || l->text[p] == '+')
            before = l->text[p++];
        p = skip_space(l, p);
        if (strncmp(l->text + p, "endraw", 6) != 0)
            continue;
        p = skip_space(l, p + 6);
        sign = '\0';
        if (l->text[p] == '-' || l->text[p] == '+')
            sign = l->text[p++];
        if (strncmp(l->text + p, "%}", 2) != 0)
            continue;
        if (!lex_add(l, JT_DATA, l->text + at, strip_before(l, at, end, before, false) - at))
            return false;
        after_tag(l, p + 2, sign);
        return true;
    }
    return lex_fail(l, "a raw block does not end");
}

/* One escape at p[0 .. len), behind the backslash, as Python reads it; bytes read. */
static size_t unescape(const char *p, size_t len, struct buf *out)
{
    static const char from[] = "n\nt\tr\r\\\\'\'\"\"a\ab\bf\fv\v";
    uint32_t c = 0;
    size_t n = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
    int64_t code = n == 0 ? -1 : hex_number(p + 1, len - 1, n);
    size_t i;

    if (*p == '\n')
        return 1;
    for (i = 0; i + 1 < sizeof from; i += 2)
        if (from[i] == *p) {
            buf_add_byte(out, from[i + 1]);
            return 1;
        }
    if (code >= 0 && code < 0x110000 && (code < 0xd800 || code > 0xdfff)) {
        char utf8[4];

        buf_add(out, utf8, utf8_encode((uint32_t)code, utf8));
        return n + 1;
    }
    if (*p >= '0' && *p <= '7') {
        char utf8[4];

        for (i = 0; i < 3 && p[i] >= '0' && p[i] <= '7'; i++)
            c = c * 8 + (uint32_t)(p[i] - '0');
        buf_add(out, utf8, utf8_encode(c, utf8));
        return i;
    }
    buf_add_byte(out, '\\');
    return 0;
}

static bool lex_string(struct lexer *l)
{
    char quote = l->text[l->at];
    struct buf value = {0};
    size_t at = l->at + 1;
    bool good;

    while (at < l->len && l->text[at] != quote) {
        if (l->text[at] == '\\' && at + 1 < l->len)
            at += 1 + unescape(l->text + at + 1, l->len - at - 1, &value);
        else
            buf_add_byte(&value, l->text[at++]);
    }
    if (at >= l->len)
        good = lex_fail(l, "a string does not end");
    else if (value.failed)
        good = lex_memory(l);
    else
        good = lex_add_copy(l, JT_TEXT, value.len == 0 ? "" : value.bytes, value.len);
    buf_fini(&value);
    if (good)
        lex_move(l, at + 1);
    return good;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_char(char c)
{
    return is_digit(c) || c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
           (unsigned char)c >= 0x80;
}

static bool lex_number(struct lexer *l)
{
    char digits[64];
    size_t n = 0;
    size_t at = l->at;
    enum jtoken_kind kind = JT_INT;

    while (at < l->len && n < sizeof digits - 1) {
        char c = l->text[at];
        bool sign = (c == '+' || c == '-') && n > 0 && (digits[n - 1] | 0x20) == 'e';
        bool point = c == '.' && kind == JT_INT && is_digit(l->text[at + 1]);
        bool exponent =
            (c | 0x20) == 'e' && n > 0 &&
            (is_digit(l->text[at + 1]) ||
             ((l->text[at + 1] == '+' || l->text[at + 1] == '-') && is_digit(l->text[at + 2])));

        if (!is_digit(c) && c != '_' && !sign && !point && !exponent)
            break;
        if (point || exponent)
            kind = JT_REAL;
        if (c != '_')
            digits[n++] = c;
        at++;
    }
    lex_move(l, at);
    return lex_add_copy(l, kind, digits, n);
}

static bool lex_operator(struct lexer *l, struct buf *open)
{
    static const char *const ops[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    size_t i;

    for (i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        size_t n = strlen(ops[i]);
        char c = ops[i][0];

        if (strncmp(l->text + l->at, ops[i], n) != 0)
            continue;
        if (c == '(' || c == '[' || c == '{')
            buf_add_byte(open, c == '(' ? ')' : c == '[' ? ']' : '}');
        if (c == ')' || c == ']' || c == '}') {
            if (open->len == 0 || open->bytes[open->len - 1] != c)
                return lex_fail(l, "a bracket closes that was not opened");
            open->len--;
        }
        if (!lex_add(l, JT_OP, ops[i], n))
            return false;
        lex_move(l, l->at + n);
        return true;
    }
    return lex_fail(l, "an unexpected character in a tag");
}

/* One token inside a tag, or its end. */
static bool lex_inside_one(struct lexer *l, struct buf *open, const char *close, bool *done)
{
    const char *p = l->text + l->at;
    char sign = *p == '-' || *p == '+' ? *p : '\0';

    if (open->len == 0 && strncmp(p + (sign != '\0'), close, 2) == 0 &&
        !(sign == '+' && close[0] == '}')) {
        *done = true;
        if (!lex_add(l, close[0] == '}' ? JT_VAR_END : JT_BLOCK_END, close, 2))
            return false;
        if (close[0] == '}' && sign != '-')
            lex_move(l, l->at + 2);
        else
            after_tag(l, l->at + 2 + (sign != '\0'), sign);
        return true;
    }
    if (*p == '"' || *p == '\'')
        return lex_string(l);
    if (is_digit(*p))
        return lex_number(l);
    if (is_name_char(*p)) {
        size_t end = l->at;

        while (end < l->len && is_name_char(l->text[end]))
            end++;
        if (!lex_add_copy(l, JT_NAME, p, end - l->at))
            return false;
        lex_move(l, end);
        return true;
    }
    return lex_operator(l, open);
}

static bool lex_inside(struct lexer *l, bool is_var)
{
    struct buf open = {0};
    bool done = false;
    bool good = lex_add(l, is_var ? JT_VAR_BEGIN : JT_BLOCK_BEGIN, "", 0);

    l->at += 2;
    if (l->at < l->len && (l->text[l->at] == '-' || l->text[l->at] == '+'))
        l->at++;
    while (good && !done) {
        lex_move(l, skip_space(l, l->at));
        if (l->at >= l->len)
            good = lex_fail(l, "a tag does not end");
        else
            good = lex_inside_one(l, &open, is_var ? "}}" : "%}", &done);
    }
    if (open.failed)
        good = lex_memory(l);
    buf_fini(&open);
    return good;
}

/* Text up to the next tag, then the tag. */
static bool lex_next(struct lexer *l)
{
    size_t from = l->at;
    size_t to = from;
    size_t end;
    char kind;
    bool raw = false;

    while (to < l->len &&
           !(l->text[to] == '{' &&
             (l->text[to + 1] == '{' || l->text[to + 1] == '%' || l->text[to + 1] == '#')))
        to++;
    kind = to < l->len ? l->text[to + 1] : '\0';
    end = kind == '\0' ? to : strip_before(l, from, to, l->text[to + 2], kind == '{');
    if (end > from && !lex_add(l, JT_DATA, l->text + from, end - from))
        return false;
    lex_move(l, to);
    if (kind == '\0')
        return true;
    if (kind == '#')
        return lex_comment(l);
    if (kind == '%' && !lex_raw(l, &raw))
        return false;
    return raw || lex_inside(l, kind == '{');
}

struct jtoken *jinja_lex(struct arena *a, const char *source, size_t len, struct jfault *fault)
{
    struct lexer l = {.arena = a, .fault = fault, .line = 1, .line_starting = true};
    size_t i;

    if (!utf8_is_valid(source, len) || memchr(source, '\0', len) != NULL) {
        (void)jfault_set(fault, ERR_SYNTAX, "the template is not UTF-8 text");
        return NULL;
    }
    l.text = arena_alloc(a, len + 8);
    if (l.text == NULL) {
        (void)lex_memory(&l);
        return NULL;
    }
    for (i = 0; i < len; i++) {
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n')
            continue;
        l.text[l.len++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (l.len > 0 && l.text[l.len - 1] == '\n')
        l.len--;
    memset(l.text + l.len, 0, 8);
    while (l.at < l.len)
        if (!lex_next(&l))
            return NULL;
    return lex_add(&l, JT_END, "", 0) ? l.tokens : NULL;
}
