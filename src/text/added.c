/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokens are sorted; from a place in the text the range of those that share its bytes is
 * narrowed byte by byte. A place costs one look-up unless a token begins with its byte. */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/unicode.h"

void added_fini(struct added_set *set)
{
    mem_free(set->tokens);
    *set = (struct added_set){0};
}

int added_add(struct added_set *set, const struct added_token *token)
{
    if (set->n == set->cap) {
        size_t cap = set->cap == 0 ? 64 : set->cap * 2;
        struct added_token *grown = mem_realloc(set->tokens, cap * sizeof *grown);

        if (grown == NULL)
            return ERR_NO_MEMORY;
        set->tokens = grown;
        set->cap = cap;
    }
    set->tokens[set->n++] = *token;
    return ERR_OK;
}

static int token_compare(const void *a, const void *b)
{
    const struct added_token *x = a;
    const struct added_token *y = b;
    int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);

    if (order != 0)
        return order;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

void added_sort(struct added_set *set)
{
    size_t at = 0;
    int c;

    if (set->n > 0)
        qsort(set->tokens, set->n, sizeof set->tokens[0], token_compare);
    for (c = 0; c < 256; c++) {
        set->first[c] = (uint32_t)at;
        while (at < set->n && (unsigned char)set->tokens[at].text[0] == c)
            at++;
    }
    set->first[256] = (uint32_t)set->n;
}

/* First token in [low, high) whose byte at `depth` is c or more. All are longer than depth. */
static size_t lower_bound(const struct added_set *set, size_t low, size_t high, size_t depth, int c)
{
    while (low < high) {
        size_t mid = (low + high) / 2;

        if ((unsigned char)set->tokens[mid].text[depth] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static const struct added_token *longest_at(const struct added_set *set, const char *text,
                                            size_t len)
{
    size_t low = set->first[(unsigned char)text[0]];
    size_t high = set->first[(unsigned char)text[0] + 1];
    const struct added_token *best = NULL;
    size_t depth = 1;

    while (low < high) {
        int c;

        while (low < high && set->tokens[low].len == depth)
            best = &set->tokens[low++];
        if (depth == len)
            break;
        c = (unsigned char)text[depth];
        low = lower_bound(set, low, high, depth, c);
        high = lower_bound(set, low, high, depth, c + 1);
        depth++;
    }
    return best;
}

static bool is_word_at(const char *text, size_t at)
{
    return (unicode_class(utf8_decode(text + at)) & UNICODE_WORD) != 0;
}

static size_t previous(const char *text, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static bool is_single_word(const char *text, size_t len, size_t start, size_t stop)
{
    if (start > 0 && is_word_at(text, previous(text, start)))
        return false;
    return stop == len || !is_word_at(text, stop);
}

static size_t strip_left(const char *text, size_t start, size_t after)
{
    while (start > after) {
        size_t at = previous(text, start);

        if ((unicode_class(utf8_decode(text + at)) & UNICODE_SPACE) == 0)
            break;
        start = at;
    }
    return start;
}

static size_t strip_right(const char *text, size_t len, size_t stop)
{
    while (stop < len && (unicode_class(utf8_decode(text + stop)) & UNICODE_SPACE) != 0)
        stop += utf8_sequence(text + stop, len - stop);
    return stop;
}

bool added_next(const struct added_set *set, const char *text, size_t len, size_t *from,
                size_t after, struct added_match *match)
{
    size_t at = *from;

    if (set->n == 0)
        return false;
    while (at < len) {
        unsigned char c = (unsigned char)text[at];
        const struct added_token *t = NULL;

        if (set->first[c] != set->first[c + 1])
            t = longest_at(set, text + at, len - at);
        if (t == NULL) {
            at++;
            continue;
        }
        *match = (struct added_match){.start = at, .stop = at + t->len, .id = t->id};
        at += t->len;
        if (t->single_word && !is_single_word(text, len, match->start, match->stop))
            continue;
        if (t->lstrip)
            match->start = match->start > after ? strip_left(text, match->start, after) : after;
        if (t->rstrip)
            match->stop = strip_right(text, len, match->stop);
        *from = at;
        return true;
    }
    *from = len;
    return false;
}
