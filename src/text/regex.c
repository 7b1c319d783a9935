/* SPDX-License-Identifier: Apache-2.0
 *
 * PCRE2 without its JIT (a front runs with no writable and executable memory). Its \s holds
 * U+180E, Oniguruma's does not, so both are spelled out; `$` is before every line feed there,
 * hence MULTILINE. Its Unicode tables are the library's: characters younger than they are count
 * as unassigned. */
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

#define MATCH_STEPS_MAX 100000000 /* a megabyte of one class needs a few steps a byte */
#define HEAP_KIB_MAX    262144

struct regex {
    pcre2_code *code;
    pcre2_match_context *limits;
};

struct regex_work {
    pcre2_match_data *match;
};

/* Spell \s and \S out. Inside a class \S cannot be, and no known pattern has it there with
 * other members that matter; it is left to PCRE2. */
static int translate(const char *pattern, size_t len, struct buf *out, char *why, size_t why_cap)
{
    int in_class = 0;
    size_t i;

    for (i = 0; i < len; i++) {
        char c = pattern[i];

        if (c == '\\' && i + 1 < len) {
            c = pattern[++i];
            if (c == 's' && in_class)
                buf_add_text(out, "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"
                                  "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}");
            else if (c == 's')
                buf_add_text(out, "[^\\S\\x{180e}]");
            else if (c == 'S' && !in_class)
                buf_add_text(out, "[\\S\\x{180e}]");
            else
                buf_add(out, pattern + i - 1, 2);
            continue;
        }
        if (in_class && (c == '[' || (c == '&' && i + 1 < len && pattern[i + 1] == '&'))) {
            (void)snprintf(why, why_cap, "a class inside a class or an intersection in a regex");
            return ERR_UNSUPPORTED;
        }
        if (c == '[' && !in_class)
            in_class = 1;
        else if (c == ']' && in_class)
            in_class = 0;
        buf_add_byte(out, c);
    }
    return out->failed ? ERR_NO_MEMORY : ERR_OK;
}

static int regex_compile(struct regex *re, const struct buf *pattern, char *why, size_t why_cap)
{
    int error = 0;
    PCRE2_SIZE at = 0;

    re->code = pcre2_compile((PCRE2_SPTR)pattern->bytes, pattern->len,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &error, &at, NULL);
    if (re->code == NULL) {
        PCRE2_UCHAR reason[128] = {0};

        (void)pcre2_get_error_message(error, reason, sizeof reason);
        (void)snprintf(why, why_cap, "a regex is not understood at byte %zu: %s", (size_t)at,
                       (const char *)reason);
        return ERR_UNSUPPORTED;
    }
    re->limits = pcre2_match_context_create(NULL);
    if (re->limits == NULL)
        return ERR_NO_MEMORY;
    (void)pcre2_set_match_limit(re->limits, MATCH_STEPS_MAX);
    (void)pcre2_set_heap_limit(re->limits, HEAP_KIB_MAX);
    return ERR_OK;
}

int regex_open(struct regex **out, const char *pattern, size_t len, char *why, size_t why_cap)
{
    struct regex *re = mem_zalloc(sizeof *re);
    struct buf translated = {0};
    int rc = ERR_NO_MEMORY;

    if (re == NULL)
        return rc;
    rc = translate(pattern, len, &translated, why, why_cap);
    if (rc == ERR_OK && translated.len == 0)
        rc = ERR_UNSUPPORTED;
    if (rc == ERR_OK)
        rc = regex_compile(re, &translated, why, why_cap);
    buf_fini(&translated);
    if (rc == ERR_OK)
        *out = re;
    else
        regex_close(re);
    return rc;
}

void regex_close(struct regex *re)
{
    if (re == NULL)
        return;
    pcre2_match_context_free(re->limits);
    pcre2_code_free(re->code);
    mem_free(re);
}

struct regex_work *regex_work_open(void)
{
    struct regex_work *w = mem_zalloc(sizeof *w);

    if (w == NULL)
        return NULL;
    w->match = pcre2_match_data_create(1, NULL);
    if (w->match == NULL) {
        mem_free(w);
        return NULL;
    }
    return w;
}

void regex_work_close(struct regex_work *w)
{
    if (w == NULL)
        return;
    pcre2_match_data_free(w->match);
    mem_free(w);
}

int regex_next(const struct regex *re, struct regex_work *w, const char *text, size_t len,
               size_t from, size_t *start, size_t *end)
{
    int n = pcre2_match(re->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, w->match,
                        re->limits);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(w->match);

    if (n == PCRE2_ERROR_NOMATCH)
        return ERR_NOT_FOUND;
    if (n == PCRE2_ERROR_NOMEMORY)
        return ERR_NO_MEMORY;
    if (n < 0)
        return ERR_LIMIT;
    *start = place[0];
    *end = place[1] < place[0] ? place[0] : place[1]; /* \K may turn them round */
    return ERR_OK;
}
