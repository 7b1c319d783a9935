/* SPDX-License-Identifier: Apache-2.0
 *
 * The lexer. Line ends become \n, and one at the very end of the source is dropped. Then text and
 * tags alternate:
 *
 *     Hello {{ name }}{% if x -%} ...
 *     DATA  VAR_BEGIN NAME VAR_END BLOCK_BEGIN NAME NAME BLOCK_END DATA
 *
 * White space control: a "-" at a tag strips all white space on its side. Without it, a block or a
 * comment removes the line end after it (trim_blocks) and the blanks before it on its line
 * (lstrip_blocks); a "+" prevents that. */
#include "text/template/jinja_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hex.h"
#include "base/must.h"
#include "base/utf8.h"
#include "text/unicode.h"

/* The source, and the tokens so far. The text is followed by eight NUL bytes, so looking a few
 * bytes ahead never reads outside of it. */
struct lexer {
    struct arena *arena;
    struct jfault *fault;
    char *text; /* line ends normalized; NUL-terminated */
    size_t len;
    size_t at;
    int line;
    bool line_starting; /* the last byte read ended a line, or nothing was read yet */
    struct jtoken *tokens;
    size_t n;
    size_t cap;
};

bool jinja_fault_set(struct jfault *fault, int rc, const char *format, ...)
{
    va_list args;

    must(rc < 0);
    /* The first error is the cause; those after it are its consequences. */
    if (fault->rc != ERR_OK)
        return false;
    fault->rc = rc;
    va_start(args, format);
    (void)vsnprintf(fault->text, sizeof fault->text, format, args);
    va_end(args);
    return false;
}

static bool jinja_lex_fail(struct lexer *lexer, const char *what)
{
    return jinja_fault_set(lexer->fault, ERR_SYNTAX, "line %d: %s", lexer->line, what);
}

static bool jinja_lex_memory(struct lexer *lexer)
{
    return jinja_fault_set(lexer->fault, ERR_NO_MEMORY, "out of memory for the template");
}

/* Append a token. An outgrown array stays in the arena until the template is closed. */
static bool jinja_lex_add(struct lexer *lexer, enum jtoken_kind kind, const char *text, size_t len)
{
    /* Capacity doubles, so all outgrown arrays together are smaller than the last one. */
    if (lexer->n == lexer->cap) {
        size_t cap = lexer->cap == 0 ? 256 : lexer->cap * 2;
        struct jtoken *grown = arena_alloc(lexer->arena, cap * sizeof *grown);

        if (grown == NULL)
            return jinja_lex_memory(lexer);
        if (lexer->n > 0)
            memcpy(grown, lexer->tokens, lexer->n * sizeof *grown);
        lexer->tokens = grown;
        lexer->cap = cap;
    }
    lexer->tokens[lexer->n++] =
        (struct jtoken){.kind = kind, .line = lexer->line, .text = text, .len = len};
    return true;
}

static bool jinja_lex_add_copy(struct lexer *lexer, enum jtoken_kind kind, const char *text,
                               size_t len)
{
    char *copy = arena_strndup(lexer->arena, text, len);

    if (copy == NULL)
        return jinja_lex_memory(lexer);
    return jinja_lex_add(lexer, kind, copy, len);
}

/* Advance to offset `to` and count the lines on the way. */
static void jinja_lex_move(struct lexer *lexer, size_t to)
{
    /* line_starting is for lstrip_blocks: white space before a tag is dropped only from the
     * start of a line. */
    if (to > lexer->at)
        lexer->line_starting = lexer->text[to - 1] == '\n';
    for (; lexer->at < to; lexer->at++)
        lexer->line += lexer->text[lexer->at] == '\n';
}

/* The length of the white space character at `at`; 0 when there is none. */
static size_t jinja_space_at(const char *text, size_t at, size_t len)
{
    uint32_t c;

    if (at >= len)
        return 0;
    /* Python's strip() removes all of Unicode's white space, so the templates' engine does as
     * well. */
    c = utf8_decode(text + at);
    if (unicode_is_python_space(c))
        return utf8_sequence(text + at, len - at);
    return 0;
}

static size_t jinja_skip_space(const struct lexer *lexer, size_t at)
{
    size_t n;

    while ((n = jinja_space_at(lexer->text, at, lexer->len)) != 0)
        at += n;
    return at;
}

/* Where the text [from, to) ends if the tag that follows has this sign ('-', '+' or neither). */
static size_t jinja_strip_before(const struct lexer *lexer, size_t from, size_t to, char sign,
                                 bool is_var)
{
    size_t end = to;

    if (sign == '-') {
        /* Backward over white space, one character per pass. Continuation bytes of UTF-8 are
         * skipped to reach the first byte of a character. */
        while (end > from) {
            size_t at = end - 1;

            while (at > from && ((unsigned char)lexer->text[at] & 0xc0) == 0x80)
                at--;
            if (jinja_space_at(lexer->text, at, lexer->len) == 0)
                break;
            end = at;
        }
        return end;
    }
    if (sign == '+' || is_var)
        return to;
    /* lstrip_blocks: strip only if nothing but white space precedes the tag on its line. */
    while (end > from && lexer->text[end - 1] != '\n')
        end--;
    /* The text is only a part of its line: something before it, such as an output, is on the
     * same line. */
    if (end == from && !lexer->line_starting)
        return to;
    if (jinja_skip_space(lexer, end) >= to)
        return end;
    return to;
}

/* Advance past the end of a block or comment and the white space it removes; at is after the
 * tag. */
static void jinja_after_tag(struct lexer *lexer, size_t at, char sign)
{
    /* -%} removes all white space after the tag. A plain %} removes one line feed, which is the
     * option trim_blocks of Hugging Face; +%} keeps it. */
    if (sign == '-')
        at = jinja_skip_space(lexer, at);
    else if (sign != '+' && at < lexer->len && lexer->text[at] == '\n')
        at++;
    jinja_lex_move(lexer, at);
}

/* Skip a comment {# ... #}. */
static bool jinja_lex_comment(struct lexer *lexer)
{
    const char *end = strstr(lexer->text + lexer->at + 2, "#}");
    char sign;

    if (end == NULL)
        return jinja_lex_fail(lexer, "a comment does not end");
    /* A comment may have a sign as well: -#} removes white space like -%}. */
    sign = end[-1];
    jinja_after_tag(lexer, (size_t)(end - lexer->text) + 2, sign);
    return true;
}

/* At a "{%": if it is {% raw %}, everything up to {% endraw %} is text. *found is false
 * otherwise. */
static bool jinja_lex_raw(struct lexer *lexer, bool *found)
{
    size_t at = lexer->at + 2;
    size_t end;
    char sign = '\0';

    *found = false;
    if (at < lexer->len && (lexer->text[at] == '-' || lexer->text[at] == '+'))
        at++;
    at = jinja_skip_space(lexer, at);
    /* Any other statement is left for the caller; lexer->at has not changed yet. */
    if (strncmp(lexer->text + at, "raw", 3) != 0)
        return true;
    at = jinja_skip_space(lexer, at + 3);
    if (lexer->text[at] == '-')
        sign = lexer->text[at++];
    if (strncmp(lexer->text + at, "%}", 2) != 0)
        return true;
    *found = true;
    at += 2;
    if (sign == '-')
        at = jinja_skip_space(lexer, at);
    jinja_lex_move(lexer, at);
    /* Search for the tag that ends the block, with any white space control inside: {%- endraw
     * +%}. */
    for (end = at; end < lexer->len; end++) {
        size_t p = end + 2;
        char before = '\0';

        if (strncmp(lexer->text + end, "{%", 2) != 0)
            continue;
        if (lexer->text[p] == '-' || lexer->text[p] == '+')
            before = lexer->text[p++];
        p = jinja_skip_space(lexer, p);
        if (strncmp(lexer->text + p, "endraw", 6) != 0)
            continue;
        p = jinja_skip_space(lexer, p + 6);
        sign = '\0';
        if (lexer->text[p] == '-' || lexer->text[p] == '+')
            sign = lexer->text[p++];
        if (strncmp(lexer->text + p, "%}", 2) != 0)
            continue;
        if (!jinja_lex_add(lexer, JT_DATA, lexer->text + at,
                           jinja_strip_before(lexer, at, end, before, false) - at))
            return false;
        jinja_after_tag(lexer, p + 2, sign);
        return true;
    }
    return jinja_lex_fail(lexer, "a raw block does not end");
}

/* Append the character of an escape, as Python reads it; p is after the backslash. Returns the
 * number of bytes read. An unknown escape keeps its backslash, so 0 bytes are read. */
static size_t jinja_unescape(const char *p, size_t len, struct buf *out)
{
    static const char from[] = "n\nt\tr\r\\\\'\'\"\"a\ab\bf\fv\v";
    uint32_t c = 0;
    size_t n = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
    int64_t code = n == 0 ? -1 : hex_number(p + 1, len - 1, n);
    size_t i;

    /* A backslash at the end of a line joins it with the next one. */
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

/* A string literal in single or double quotes. */
static bool jinja_lex_string(struct lexer *lexer)
{
    char quote = lexer->text[lexer->at];
    struct buf value = {0};
    size_t at = lexer->at + 1;
    bool good;

    /* A backslash hides the character after it, so a quote after one does not end the string.
     * The tokens hold the value of the literal, not its spelling: 'a\'b' becomes a'b. */
    while (at < lexer->len && lexer->text[at] != quote) {
        if (lexer->text[at] == '\\' && at + 1 < lexer->len)
            at += 1 + jinja_unescape(lexer->text + at + 1, lexer->len - at - 1, &value);
        else
            buf_add_byte(&value, lexer->text[at++]);
    }
    /* An unclosed string would swallow the rest of the template, so it is reported and not
     * closed here. */
    if (at >= lexer->len)
        good = jinja_lex_fail(lexer, "a string does not end");
    else if (value.failed)
        good = jinja_lex_memory(lexer);
    else
        good = jinja_lex_add_copy(lexer, JT_TEXT, value.len == 0 ? "" : value.bytes, value.len);
    buf_fini(&value);
    if (good)
        jinja_lex_move(lexer, at + 1);
    return good;
}

static bool jinja_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool jinja_is_name_char(char c)
{
    return jinja_is_digit(c) || c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
           (unsigned char)c >= 0x80;
}

/* An integer or real literal, such as 1_000 or 1.5e-3. A point counts only before a digit, because
 * 1.x may be an attribute. */
static bool jinja_lex_number(struct lexer *lexer)
{
    char digits[64];
    size_t n = 0;
    size_t at = lexer->at;
    enum jtoken_kind kind = JT_INT;

    while (at < lexer->len && n < sizeof digits - 1) {
        char c = lexer->text[at];
        bool sign = (c == '+' || c == '-') && n > 0 && (digits[n - 1] | 0x20) == 'e';
        /* At most one point, and none after an exponent, because kind is then JT_REAL. */
        bool point = c == '.' && kind == JT_INT && jinja_is_digit(lexer->text[at + 1]);
        bool exponent = (c | 0x20) == 'e' && n > 0 &&
                        (jinja_is_digit(lexer->text[at + 1]) ||
                         ((lexer->text[at + 1] == '+' || lexer->text[at + 1] == '-') &&
                          jinja_is_digit(lexer->text[at + 2])));

        if (!jinja_is_digit(c) && c != '_' && !sign && !point && !exponent)
            break;
        if (point || exponent)
            kind = JT_REAL;
        if (c != '_')
            digits[n++] = c;
        at++;
    }
    jinja_lex_move(lexer, at);
    return jinja_lex_add_copy(lexer, kind, digits, n);
}

/* An operator. Longer ones come first in the table. `open` is the stack of closing brackets that
 * are due, so that "}}" inside of brackets does not end a tag. */
static bool jinja_lex_operator(struct lexer *lexer, struct buf *open)
{
    static const char *const ops[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    size_t i;

    for (i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        size_t n = strlen(ops[i]);
        char c = ops[i][0];

        if (strncmp(lexer->text + lexer->at, ops[i], n) != 0)
            continue;
        if (c == '(' || c == '[' || c == '{')
            buf_add_byte(open, c == '(' ? ')' : c == '[' ? ']' : '}');
        /* A closing bracket must match the last one opened. */
        if (c == ')' || c == ']' || c == '}') {
            if (open->len == 0 || open->bytes[open->len - 1] != c)
                return jinja_lex_fail(lexer, "a bracket closes that was not opened");
            open->len--;
        }
        if (!jinja_lex_add(lexer, JT_OP, ops[i], n))
            return false;
        jinja_lex_move(lexer, lexer->at + n);
        return true;
    }
    return jinja_lex_fail(lexer, "an unexpected character in a tag");
}

/* Read one token inside a tag, or the tag's end, which sets *done. */
static bool jinja_lex_inside_one(struct lexer *lexer, struct buf *open, const char *close,
                                 bool *done)
{
    const char *p = lexer->text + lexer->at;
    char sign = *p == '-' || *p == '+' ? *p : '\0';

    /* The tag ends only outside of all brackets: {{ {"a": {}} }} has "}}" inside. */
    if (open->len == 0 && strncmp(p + (sign != '\0'), close, 2) == 0 &&
        !(sign == '+' && close[0] == '}')) {
        *done = true;
        if (!jinja_lex_add(lexer, close[0] == '}' ? JT_VAR_END : JT_BLOCK_END, close, 2))
            return false;
        if (close[0] == '}' && sign != '-')
            jinja_lex_move(lexer, lexer->at + 2);
        else
            jinja_after_tag(lexer, lexer->at + 2 + (sign != '\0'), sign);
        return true;
    }
    if (*p == '"' || *p == '\'')
        return jinja_lex_string(lexer);
    if (jinja_is_digit(*p))
        return jinja_lex_number(lexer);
    if (jinja_is_name_char(*p)) {
        size_t end = lexer->at;

        while (end < lexer->len && jinja_is_name_char(lexer->text[end]))
            end++;
        if (!jinja_lex_add_copy(lexer, JT_NAME, p, end - lexer->at))
            return false;
        jinja_lex_move(lexer, end);
        return true;
    }
    return jinja_lex_operator(lexer, open);
}

/* Read a whole tag. */
static bool jinja_lex_inside(struct lexer *lexer, bool is_var)
{
    struct buf open = {0};
    bool done = false;
    bool good = jinja_lex_add(lexer, is_var ? JT_VAR_BEGIN : JT_BLOCK_BEGIN, "", 0);

    /* Go past "{{" or "{%", and past the sign of white space control: {%- removes the white
     * space before the tag, {%+ keeps it. The text before the tag was already cut by it. */
    lexer->at += 2;
    if (lexer->at < lexer->len && (lexer->text[lexer->at] == '-' || lexer->text[lexer->at] == '+'))
        lexer->at++;
    /* One token per pass. `open` is the stack of brackets that are open, because a tag does not
     * end within them. */
    while (good && !done) {
        jinja_lex_move(lexer, jinja_skip_space(lexer, lexer->at));
        if (lexer->at >= lexer->len)
            good = jinja_lex_fail(lexer, "a tag does not end");
        else
            good = jinja_lex_inside_one(lexer, &open, is_var ? "}}" : "%}", &done);
    }
    if (open.failed)
        good = jinja_lex_memory(lexer);
    buf_fini(&open);
    return good;
}

/* Read the text up to the next tag, then the tag. */
static bool jinja_lex_next(struct lexer *lexer)
{
    size_t from = lexer->at;
    size_t to = from;
    size_t end;
    char kind;
    bool raw = false;

    /* Looking one character ahead is safe at the end, because the text is followed by NUL bytes. */
    while (to < lexer->len &&
           !(lexer->text[to] == '{' && (lexer->text[to + 1] == '{' || lexer->text[to + 1] == '%' ||
                                        lexer->text[to + 1] == '#')))
        to++;
    if (to < lexer->len)
        kind = lexer->text[to + 1];
    else
        kind = '\0';
    if (kind == '\0')
        end = to;
    else
        end = jinja_strip_before(lexer, from, to, lexer->text[to + 2], kind == '{');
    if (end > from && !jinja_lex_add(lexer, JT_DATA, lexer->text + from, end - from))
        return false;
    jinja_lex_move(lexer, to);
    if (kind == '\0')
        return true;
    if (kind == '#')
        return jinja_lex_comment(lexer);
    if (kind == '%' && !jinja_lex_raw(lexer, &raw))
        return false;
    return raw || jinja_lex_inside(lexer, kind == '{');
}

struct jtoken *jinja_lex(struct arena *arena, const char *source, size_t len, struct jfault *fault)
{
    struct lexer lexer = {.arena = arena, .fault = fault, .line = 1, .line_starting = true};
    size_t i;

    must(source != NULL || len == 0);
    if (!utf8_is_valid(source, len) || memchr(source, '\0', len) != NULL) {
        (void)jinja_fault_set(fault, ERR_SYNTAX, "the template is not UTF-8 text");
        return NULL;
    }
    lexer.text = arena_alloc(arena, len + 8);
    if (lexer.text == NULL) {
        (void)jinja_lex_memory(&lexer);
        return NULL;
    }
    /* \r\n and \r both become \n. */
    for (i = 0; i < len; i++) {
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n')
            continue;
        lexer.text[lexer.len++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (lexer.len > 0 && lexer.text[lexer.len - 1] == '\n')
        lexer.len--;
    memset(lexer.text + lexer.len, 0, 8);
    while (lexer.at < lexer.len)
        if (!jinja_lex_next(&lexer))
            return NULL;
    if (jinja_lex_add(&lexer, JT_END, "", 0))
        return lexer.tokens;
    return NULL;
}
