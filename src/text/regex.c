/* SPDX-License-Identifier: Apache-2.0
 *
 * Matching is done by PCRE2, interpreted: its JIT would need memory that is both writable and
 * executable, which a front must not have. Two differences to Oniguruma are handled here: `$`
 * matches before every line feed (hence PCRE2_MULTILINE), and the character properties are those of
 * Unicode 16.0, whereas the library's tables may be older. Characters that they lack are added to
 * each pattern from the tables of unicode.h. pattern.h lists the other differences. */
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/utf8.h"
#include "text/pattern.h"
#include "text/unicode.h"

#define MATCH_STEPS_MAX 100000000 /* one class over a megabyte needs a few steps per byte */
#define CODE_POINTS     0x110000u
#define HEAP_KIB_MAX    262144

struct regex {
    pcre2_code *code;
    pcre2_match_context *limits;
};

struct regex_work {
    pcre2_match_data *match;
};

/* Compile a translated pattern into re, with the bounds on steps and memory that protect a front
 * from a pattern that backtracks exponentially. On error the caller empties re. */
static int regex_compile(struct regex *re, const struct buf *pattern, char *why, size_t why_cap)
{
    int error = 0;
    PCRE2_SIZE at = 0;

    re->code = pcre2_compile((PCRE2_SPTR)pattern->bytes, pattern->len,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &error, &at, NULL);
    if (re->code == NULL) {
        PCRE2_UCHAR reason[128] = {0};

        /* The offset and the reason are for the operator: the pattern came from a model's file. */
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

static void regex_empty(struct regex *re)
{
    pcre2_match_context_free(re->limits);
    pcre2_code_free(re->code);
    *re = (struct regex){0};
}

/* --- properties of Unicode 16.0 ----------------------------------------------------------------*/

/* PCRE2's tables may be of an older Unicode version than ours, and there is no call that lists a
 * property's characters. So all characters that have the property here are written into one text,
 * and PCRE2 is asked to find those that lack it there. This happens at start only. */

/* A set of general categories, one bit each, of a property's name: "Lu" is one category, "L" all
 * that begin with L. 0 for other names: these are written as they are. */
static uint32_t regex_categories_of(const char *name, size_t len)
{
    static const char names[][3] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                    "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                    "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
    uint32_t found = 0;
    size_t i;

    /* Categories of C are skipped: no pattern of a tokenizer asks for unassigned characters. */
    for (i = 1; i < sizeof names / sizeof names[0]; i++)
        if ((len == 1 || len == 2) && memcmp(names[i], name, len) == 0 && name[0] != 'C')
            found |= (uint32_t)1 << i;
    return found;
}

/* Append all characters of these categories as UTF-8, ascending. ASCII is the same in all versions
 * and surrogates are no characters, so both are skipped. */
static void regex_add_all(uint32_t categories, struct buf *out)
{
    uint8_t *classes = mem_alloc(CODE_POINTS);
    uint32_t c;

    if (classes == NULL) {
        out->failed = true;
        return;
    }
    unicode_fill(classes, CODE_POINTS);
    for (c = 0x80; c < CODE_POINTS; c++) {
        char utf8[4];

        /* Surrogates are skipped as a block, from the first to the character after the last. */
        if (c == 0xd800)
            c = 0xe000;
        if ((categories >> (classes[c] & UNICODE_CATEGORY) & 1) != 0)
            buf_add(out, utf8, utf8_encode(c, utf8));
    }
    mem_free(classes);
}

/* Append the characters of text[0 .. len), which ascend, as ranges of a class: \x{a}-\x{f}. The
 * pass with i == len closes the last range. */
static void regex_add_ranges(const char *text, size_t len, struct buf *out)
{
    uint32_t first = 0;
    uint32_t last = 0;
    size_t i = 0;

    while (i <= len) {
        uint32_t c = i < len ? utf8_decode(text + i) : 0;

        if (last != 0 && c != last + 1) {
            buf_printf(out, "\\x{%x}-\\x{%x}", (unsigned)first, (unsigned)last);
            last = 0;
        }
        if (last == 0)
            first = c;
        last = c;
        if (i < len)
            i += utf8_sequence(text + i, len - i);
        else
            i += 1;
    }
}

/* The pattern_additions function: append the characters that have the property in our tables but
 * not in PCRE2's. */
static void regex_add_missing(const char *name, size_t len, struct buf *out)
{
    struct regex lacking = {0};
    struct regex_work *work = NULL;
    struct buf pattern = {0};
    struct buf all = {0};
    char why[8];
    struct regex_match match = {0, 0};
    uint32_t categories = regex_categories_of(name, len);

    if (categories == 0)
        return;
    buf_printf(&pattern, "\\P{%.*s}+", (int)len, name);
    regex_add_all(categories, &all);
    work = regex_work_open();
    if (work == NULL || pattern.failed || all.failed ||
        regex_compile(&lacking, &pattern, why, sizeof why) != ERR_OK)
        out->failed = out->failed || work == NULL || pattern.failed || all.failed;
    else /* a match is a run of characters that lack the property */
        while (regex_next(&lacking, work, all.bytes, all.len, match.end, &match) == ERR_OK)
            regex_add_ranges(all.bytes + match.start, match.end - match.start, out);
    regex_work_close(work);
    regex_empty(&lacking);
    buf_fini(&all);
    buf_fini(&pattern);
}

/* --- compiling and matching --------------------------------------------------------------------*/

int regex_open(struct regex **out, const char *pattern, size_t len, char *why, size_t why_cap)
{
    struct regex *re = mem_zalloc(sizeof *re);
    struct buf translated = {0};
    int rc = ERR_NO_MEMORY;

    must(out != NULL);
    must(pattern != NULL || len == 0);
    if (re == NULL)
        return rc;
    rc = pattern_translate(pattern, len, regex_add_missing, &translated, why, why_cap);
    /* An empty pattern matches everywhere and consumes nothing; no tokenizer means that. */
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
    regex_empty(re);
    mem_free(re);
}

struct regex_work *regex_work_open(void)
{
    struct regex_work *work = mem_zalloc(sizeof *work);

    if (work == NULL)
        return NULL;
    /* One pair of offsets, the whole match, is enough: groups of a pattern are never read. */
    work->match = pcre2_match_data_create(1, NULL);
    if (work->match == NULL) {
        mem_free(work);
        return NULL;
    }
    return work;
}

void regex_work_close(struct regex_work *work)
{
    if (work == NULL)
        return;
    pcre2_match_data_free(work->match);
    mem_free(work);
}

int regex_next(const struct regex *re, struct regex_work *work, const char *text, size_t len,
               size_t from, struct regex_match *match)
{
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(work->match);
    int n;

    must(from <= len);
    /* The text is known to be UTF-8 and is not checked again, because the check would make a search
     * from each match quadratic. */
    n = pcre2_match(re->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, work->match,
                    re->limits);
    if (n == PCRE2_ERROR_NOMATCH)
        return ERR_NOT_FOUND;
    if (n == PCRE2_ERROR_NOMEMORY)
        return ERR_NO_MEMORY;
    if (n < 0)
        return ERR_LIMIT;
    match->start = place[0];
    match->end = place[1];
    if (match->end < match->start) /* \K in a look-ahead can put the start after the end */
        match->end = match->start;
    return ERR_OK;
}
