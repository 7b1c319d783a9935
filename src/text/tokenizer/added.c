/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokens are sorted by text. At a place in the text, the range of tokens that agree with it is
 * narrowed byte by byte by binary search. A byte that begins no token costs one look-up. */
#include "text/tokenizer/added.h"

#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/unicode.h"

void added_attach(struct added_set *set, const struct image_header *image,
                  enum image_section section)
{
    size_t at = 0;
    int c;

    must(section == IMAGE_RAW || section == IMAGE_NORMAL);
    *set = (struct added_set){.tokens = image_table(image, section),
                              .text = image_table(image, IMAGE_TEXT),
                              .n = image_count(image, section)};
    /* Count the tokens by their first byte: those that begin with c are tokens[first[c] .. first[c
     * + 1]). */
    for (c = 0; c < 256; c++) {
        set->first[c] = (uint32_t)at;
        while (at < set->n && (unsigned char)set->text[set->tokens[at].text.at] == c)
            at++;
        set->begins[c] = at > set->first[c];
    }
    set->first[256] = (uint32_t)set->n;
}

/* The order of the tables: by bytes, a prefix before its extensions, and equal texts by id. */
int added_compare(const char *a, size_t a_len, int32_t a_id, const char *b, size_t b_len,
                  int32_t b_id)
{
    /* memcmp() compares unsigned bytes, so the order does not depend on whether char is signed. */
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);

    if (order != 0)
        return order;
    if (a_len != b_len) {
        if (a_len < b_len)
            return -1;
        return 1;
    }
    if (a_id < b_id)
        return -1;
    return a_id > b_id;
}

/* First token in [low, high) whose byte at `depth` is at least c. All tokens in the range are
 * longer than depth. */
static size_t added_lower_bound(const struct added_set *set, size_t low, size_t high, size_t depth,
                                int c)
{
    /* Tokens below `low` have a byte less than c, and those from `high` on do not. */
    while (low < high) {
        size_t mid = (low + high) / 2;

        if ((unsigned char)set->text[set->tokens[mid].text.at + depth] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The longest allowed token at text[at]; NULL when there is none. [low, high) are the tokens that
 * agree with the text in their first `depth` bytes. */
static const struct image_added *added_find_longest(const struct added_set *set, const char *text,
                                                    size_t at, size_t len,
                                                    const struct added_judge *judge)
{
    const struct image_added *best = NULL;
    size_t depth = 1;
    size_t low, high;

    must(at < len);
    low = set->first[(unsigned char)text[at]];
    high = set->first[(unsigned char)text[at] + 1];
    while (low < high) {
        int c;

        /* Shorter tokens sort first: those that end here match, longer ones may still. */
        for (; low < high && set->tokens[low].text.len == depth; low++)
            if (judge == NULL || judge->allows(judge->context, set->tokens[low].id, at, at + depth))
                best = &set->tokens[low];
        if (at + depth == len)
            break;
        c = (unsigned char)text[at + depth];
        low = added_lower_bound(set, low, high, depth, c);
        high = added_lower_bound(set, low, high, depth, c + 1);
        depth++;
    }
    return best;
}

/* single_word: the token matches only when no word character is adjacent to it. */
static bool added_is_word_at(const char *text, size_t at)
{
    return (unicode_class(utf8_decode(text + at)) & UNICODE_WORD) != 0;
}

static size_t added_previous_char(const char *text, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static bool added_is_single_word(const char *text, size_t len, size_t start, size_t stop)
{
    if (start > 0 && added_is_word_at(text, added_previous_char(text, start)))
        return false;
    return stop == len || !added_is_word_at(text, stop);
}

/* lstrip and rstrip: the token absorbs the white space before or after it. */
static size_t added_strip_left(const char *text, size_t start, size_t after)
{
    /* One character per pass, and not beyond `after`: the text before it belongs to the previous
     * match. */
    while (start > after) {
        size_t at = added_previous_char(text, start);

        if ((unicode_class(utf8_decode(text + at)) & UNICODE_SPACE) == 0)
            break;
        start = at;
    }
    return start;
}

static size_t added_strip_right(const char *text, size_t len, size_t stop)
{
    while (stop < len && (unicode_class(utf8_decode(text + stop)) & UNICODE_SPACE) != 0)
        stop += utf8_sequence(text + stop, len - stop);
    return stop;
}

bool added_next(struct added_search *search, struct added_match *match)
{
    const struct added_set *set = search->set;
    const char *text = search->text;
    size_t len = search->len;
    size_t at = search->from;

    must(search->from <= search->len);
    must(search->after <= search->len);
    if (set->n == 0)
        return false;
    while (at < len) {
        const struct image_added *token;

        /* Nearly all bytes of a text begin no added token, so this test is the fast path. */
        if (!set->begins[(unsigned char)text[at]]) {
            at++;
            continue;
        }
        token = added_find_longest(set, text, at, len, search->judge);
        if (token == NULL) {
            at++;
            continue;
        }
        *match = (struct added_match){.start = at, .stop = at + token->text.len, .id = token->id};
        at += token->text.len;
        if ((token->flags & ADDED_SINGLE_WORD) != 0 &&
            !added_is_single_word(text, len, match->start, match->stop))
            continue;
        /* rstrip of the previous match may reach beyond this match's start. */
        if ((token->flags & ADDED_LSTRIP) != 0) {
            if (match->start > search->after)
                match->start = added_strip_left(text, match->start, search->after);
            else
                match->start = search->after;
        }
        if ((token->flags & ADDED_RSTRIP) != 0)
            match->stop = added_strip_right(text, len, match->stop);
        search->from = at;
        return true;
    }
    search->from = len;
    return false;
}
