/* SPDX-License-Identifier: Apache-2.0
 *
 * Searches in the tables of unicode.inc. A class is looked up among runs of code points that share
 * one: each run is a word with its first code point in the upper 24 bits and the class in the lower
 * 8, ascending. Case mappings are a sorted table of the characters that have one. */
#include "text/unicode.h"

#include <string.h>

#include "base/must.h"
#include "base/utf8.h"

#define UNICODE_COUNT(array) (sizeof(array) / sizeof(array)[0])

struct unicode_case {
    uint32_t c;
    uint32_t forms[3]; /* by enum unicode_letter_case; 0: in unicode_special_cases */
};

struct unicode_special_case {
    uint32_t c;
    int form;
    uint32_t out[3];
};

#include "text/unicode.inc"

/* Invariant of the search: run `low` begins at or before c, run `high` after it. */
uint8_t unicode_class(uint32_t c)
{
    size_t low = 0;
    size_t high = UNICODE_COUNT(unicode_runs);

    /* Runs are sorted by their first character, which is in the upper 24 bits; the class is in
     * the lower 8. */
    while (high - low > 1) {
        size_t mid = (low + high) / 2;

        if (unicode_runs[mid] >> 8 <= c)
            low = mid;
        else
            high = mid;
    }
    return (uint8_t)unicode_runs[low];
}

void unicode_fill(uint8_t *classes, uint32_t n)
{
    size_t run = 0;
    uint32_t c;

    must(classes != NULL || n == 0);
    /* Runs and code points both ascend, so one pass over both is enough. */
    for (c = 0; c < n; c++) {
        while (run + 1 < UNICODE_COUNT(unicode_runs) && unicode_runs[run + 1] >> 8 <= c)
            run++;
        classes[c] = (uint8_t)unicode_runs[run];
    }
}

/* The cases in which one character becomes several, such as the capital of U+00DF, "SS". There are
 * about a hundred, and they are rare, so the list is searched from its start. */
static int unicode_special_case(uint32_t c, enum unicode_letter_case to, uint32_t out[3])
{
    size_t i;
    int n = 0;

    for (i = 0; i < UNICODE_COUNT(unicode_special_cases); i++) {
        const struct unicode_special_case *s = &unicode_special_cases[i];

        /* A character has an entry for each form: to upper, to lower, and to title case. */
        if (s->c != c || s->form != (int)to)
            continue;
        /* Unused places of the three are 0. */
        while (n < 3 && s->out[n] != 0) {
            out[n] = s->out[n];
            n++;
        }
    }
    return n;
}

int unicode_to_case(uint32_t c, enum unicode_letter_case to, uint32_t out[3])
{
    size_t low = 0;
    size_t high = UNICODE_COUNT(unicode_cases);

    must(to <= UNICODE_TITLE);
    /* Binary search for the first entry that is not below c. */
    while (low < high) {
        size_t mid = (low + high) / 2;

        if (unicode_cases[mid].c < c)
            low = mid + 1;
        else
            high = mid;
    }
    out[0] = c;
    if (low == UNICODE_COUNT(unicode_cases) || unicode_cases[low].c != c)
        return 1;
    if (unicode_cases[low].forms[to] == 0)
        return unicode_special_case(c, to, out);
    out[0] = unicode_cases[low].forms[to];
    return 1;
}

/* Categories are ordered so that separators, controls and private use come last. */
bool unicode_is_printable(uint32_t c)
{
    uint8_t category = unicode_class(c) & UNICODE_CATEGORY;

    return c == ' ' || (category != UNICODE_CN && category < UNICODE_ZS);
}

bool unicode_is_python_space(uint32_t c)
{
    return (unicode_class(c) & UNICODE_SPACE) != 0 || (c >= 0x1c && c <= 0x1f);
}

size_t unicode_next_check(const char *text, size_t len, size_t from)
{
    size_t i = from;

    must(from <= len);
    while (i < len) {
        uint64_t word;

        if (len - i >= sizeof word) { /* eight ASCII characters at once */
            memcpy(&word, text + i, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                i += sizeof word;
                continue;
            }
        }
        /* Lead bytes below 0xcc encode characters below U+0300, which NFC never changes. */
        if ((unsigned char)text[i] < 0xcc) {
            if ((unsigned char)text[i] < 0x80)
                i += 1;
            else
                i += 2;
            continue;
        }
        if (unicode_class(utf8_decode(text + i)) & UNICODE_CHECK)
            return i;
        i += utf8_sequence(text + i, len - i);
    }
    return len;
}

bool unicode_is_nfc(const char *text, size_t len)
{
    return unicode_next_check(text, len, 0) == len;
}
