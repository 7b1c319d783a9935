/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts as Python has them: characters, cases, lines, markup, and their methods. */
#define _GNU_SOURCE 1 /* memmem() */
#include "text/template/jinja_parts.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/unicode.h"

/* --- texts -------------------------------------------------------------------------------------*/

size_t jtext_count(const char *text, size_t len)
{
    size_t n = 0;
    size_t i;

    for (i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

size_t jtext_offset(const char *text, size_t len, size_t n_chars)
{
    size_t at = 0;

    while (at < len && n_chars-- > 0)
        at += utf8_sequence(text + at, len - at);
    return at;
}

const char *jtext_find(const char *text, size_t len, const char *what, size_t n)
{
    return n == 0 ? text : memmem(text, len, what, n);
}

static bool is_stripped(const char *at, size_t n, const struct jval *chars)
{
    if (chars == NULL)
        return unicode_is_python_space(utf8_decode(at));
    return jtext_find(chars->text, chars->len, at, n) != NULL;
}

size_t jtext_strip_left(const char *text, size_t len, const struct jval *chars)
{
    size_t at = 0;

    while (at < len) {
        size_t n = utf8_sequence(text + at, len - at);

        if (!is_stripped(text + at, n, chars))
            break;
        at += n;
    }
    return at;
}

size_t jtext_strip_right(const char *text, size_t len, const struct jval *chars)
{
    while (len > 0) {
        size_t at = len - 1;

        while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        if (!is_stripped(text + at, len - at, chars))
            break;
        len = at;
    }
    return len;
}

static bool is_cased(uint32_t c)
{
    uint8_t category = unicode_class(c) & UNICODE_CATEGORY;

    return category == UNICODE_LU || category == UNICODE_LL || category == UNICODE_LT;
}

/* how: "upper", "lower", "title" (each word), "capitalize" (the first character), "jinja" (the
 * title filter: words begin after white space and some punctuation). */
bool jtext_case(struct jrender *r, struct jval v, const char *how, struct jval *out)
{
    struct buf b = {0};
    bool start = true;
    size_t i = 0;

    while (i < v.len) {
        uint32_t c = utf8_decode(v.text + i);
        enum unicode_letter_case to = UNICODE_LOWER;
        uint32_t forms[3];
        int n;
        int k;

        if (how[0] == 'u' || (start && how[0] == 'j'))
            to = UNICODE_UPPER;
        else if (start && how[0] != 'l')
            to = UNICODE_TITLE;
        n = unicode_to_case(c, to, forms);
        for (k = 0; k < n; k++) {
            char utf8[4];

            buf_add(&b, utf8, utf8_encode(forms[k], utf8));
        }
        if (how[0] == 'j')
            start = unicode_is_python_space(c) ||
                    (c > 0 && c < 0x80 && strchr("-({[<", (int)c) != NULL);
        else
            start = how[0] == 't' && !is_cased(c);
        i += utf8_sequence(v.text + i, v.len - i);
    }
    if (!jstep(r, 1 + v.len / 16)) {
        buf_fini(&b);
        return false;
    }
    if (!jv_take_buf(r, &b, out))
        return false;
    if (v.origin == &jorigin_own)
        out->origin = v.origin;
    return true;
}

bool jtext_replace(struct jrender *r, struct jval v, struct jval from, struct jval to,
                   int64_t count, struct jval *out)
{
    struct jbuf b = {.text = {.limit = JINJA_OUTPUT_MAX}};
    size_t at = 0;

    while (count != 0 && at <= v.len) {
        const char *found = jtext_find(v.text + at, v.len - at, from.text, from.len);

        if (found == NULL || (from.len == 0 && at == v.len))
            break;
        jbuf_add(r, &b, jv_part(v, at, (size_t)(found - v.text) - at));
        jbuf_add(r, &b, to);
        at = (size_t)(found - v.text) + from.len;
        if (from.len == 0) {
            size_t n = utf8_sequence(v.text + at, v.len - at);

            jbuf_add(r, &b, jv_part(v, at, n));
            at += n;
        }
        count--;
    }
    if (from.len == 0 && count != 0)
        jbuf_add(r, &b, to);
    jbuf_add(r, &b, jv_part(v, at, v.len - at));
    if (jstep(r, 1 + b.text.len / 64))
        return jbuf_take(r, &b, out);
    buf_fini(&b.text);
    return false;
}

/* Markup is a text that HTML's characters need not be replaced in, as the filters safe and escape
 * make them; what is added to one, or put into one, is escaped. Hugging Face's environment escapes
 * nothing by itself, but templates that say `safe` get this. */
bool jtext_escape(struct jrender *r, struct jval v, struct jval *out)
{
    struct buf b = {.limit = JINJA_OUTPUT_MAX};
    size_t i;

    if (!jv_to_text(r, v, out))
        return false;
    if (out->safe)
        return true;
    for (i = 0; i < out->len; i++) {
        switch (out->text[i]) {
        case '&': buf_add_text(&b, "&amp;"); break;
        case '<': buf_add_text(&b, "&lt;"); break;
        case '>': buf_add_text(&b, "&gt;"); break;
        case '\'': buf_add_text(&b, "&#39;"); break;
        case '"': buf_add_text(&b, "&#34;"); break;
        default: buf_add_byte(&b, out->text[i]);
        }
    }
    if (!jstep(r, 1 + b.len / 64)) {
        buf_fini(&b);
        return false;
    }
    if (!jv_take_buf(r, &b, out))
        return false;
    out->safe = true;
    return true;
}

/* Where the line that begins at `at` ends, and in next where its successor begins: the ends of
 * lines are those of Python's splitlines(). */
static size_t line_end(const char *text, size_t len, size_t at, size_t *next)
{
    for (; at < len; at++) {
        const char *p = text + at;
        size_t n = 0;

        if (*p >= '\n' && *p <= '\r')
            n = *p == '\r' && at + 1 < len && p[1] == '\n' ? 2 : 1;
        else if (*p >= 0x1c && *p <= 0x1e)
            n = 1;
        else if (len - at >= 2 && memcmp(p, "\xc2\x85", 2) == 0)
            n = 2;
        else if (len - at >= 3 &&
                 (memcmp(p, "\xe2\x80\xa8", 3) == 0 || memcmp(p, "\xe2\x80\xa9", 3) == 0))
            n = 3;
        if (n > 0) {
            *next = at + n;
            return at;
        }
    }
    *next = len;
    return len;
}

/* --- methods -----------------------------------------------------------------------------------*/

static bool need_text(struct jrender *r, const struct jargs *args, size_t place, const char *name,
                      struct jval *out)
{
    if (jarg(args, place, name, out) && out->kind == JV_TEXT)
        return true;
    return jraise(r, "a string is expected as argument %zu", place + 1);
}

static bool text_strip(struct jrender *r, struct jval v, const char *name, const struct jargs *args,
                       struct jval *out)
{
    struct jval chars = jarg_or(args, 0, "chars", jv_none());
    const struct jval *set = chars.kind == JV_NONE ? NULL : &chars;
    size_t from = 0;
    size_t to = v.len;

    if (set != NULL && chars.kind != JV_TEXT)
        return jraise(r, "strip arg must be None or str");
    if (name[0] != 'r')
        from = jtext_strip_left(v.text, to, set);
    if (name[0] != 'l')
        to = from + jtext_strip_right(v.text + from, to - from, set);
    *out = jv_part(v, from, to - from);
    return true;
}

static bool split_spaces(struct jrender *r, struct jval v, int64_t max, struct jlist *l)
{
    size_t at = jtext_strip_left(v.text, v.len, NULL);

    while (at < v.len) {
        size_t end = at;

        if (max-- == 0)
            end = jtext_strip_right(v.text, v.len, NULL);
        while (max >= -1 && end < v.len && !unicode_is_python_space(utf8_decode(v.text + end)))
            end += utf8_sequence(v.text + end, v.len - end);
        if (!jlist_add(r, l, jv_part(v, at, end - at)))
            return false;
        if (max == -1 && end > at &&
            jtext_strip_left(v.text + end, v.len - end, NULL) == v.len - end)
            break;
        at = end + jtext_strip_left(v.text + end, v.len - end, NULL);
    }
    return true;
}

static bool text_split(struct jrender *r, struct jval v, const struct jargs *args, struct jval *out)
{
    struct jval sep = jarg_or(args, 0, "sep", jv_none());
    struct jval limit = jarg_or(args, 1, "maxsplit", jv_int(-1));
    struct jlist *l = jlist_new(r, 0);
    int64_t max = limit.kind == JV_INT && limit.whole >= 0 ? limit.whole : INT64_MAX;
    size_t at = 0;

    if (l == NULL)
        return false;
    *out = jv_list(l);
    if (sep.kind == JV_NONE)
        return split_spaces(r, v, max, l);
    if (sep.kind != JV_TEXT || sep.len == 0)
        return jraise(r, "a separator that is not empty is expected");
    while (max-- > 0) {
        const char *found = jtext_find(v.text + at, v.len - at, sep.text, sep.len);

        if (found == NULL)
            break;
        if (!jlist_add(r, l, jv_part(v, at, (size_t)(found - v.text) - at)))
            return false;
        at = (size_t)(found - v.text) + sep.len;
    }
    return jlist_add(r, l, jv_part(v, at, v.len - at));
}

/* rsplit with a separator: the last `max` of them count. */
static bool text_rsplit(struct jrender *r, struct jval v, const struct jargs *args,
                        struct jval *out)
{
    struct jval limit = jarg_or(args, 1, "maxsplit", jv_int(-1));
    struct jargs all = {.values = args->values, .names = args->names};
    struct jval sep = jarg_or(args, 0, "sep", jv_none());
    struct jlist *l;
    size_t joined;

    all.n = all.n_placed = args->n_placed > 0;
    if (sep.kind == JV_TEXT && all.n == 0)
        return jraise(r, "rsplit takes its separator by place");
    if (!text_split(r, v, &all, out))
        return false;
    l = out->list;
    if (limit.kind != JV_INT || limit.whole < 0 || l->n < 2 || (uint64_t)limit.whole >= l->n - 1)
        return true;
    joined = l->n - (size_t)limit.whole; /* the first pieces stay together */
    l->items[0] =
        jv_part(l->items[0], 0,
                (size_t)(l->items[joined - 1].text - l->items[0].text) + l->items[joined - 1].len);
    memmove(l->items + 1, l->items + joined, (l->n - joined) * sizeof *l->items);
    l->n -= joined - 1;
    return true;
}

static bool affix_matches(struct jval v, struct jval affix, bool end)
{
    if (affix.kind != JV_TEXT || affix.len > v.len)
        return false;
    return memcmp(end ? v.text + v.len - affix.len : v.text, affix.text, affix.len) == 0;
}

static bool text_affix(struct jrender *r, struct jval v, const char *name, const struct jargs *args,
                       struct jval *out)
{
    bool end = name[0] == 'e';
    struct jval affix;
    size_t i;
    bool holds = false;

    if (!jarg(args, 0, "prefix", &affix) || (affix.kind != JV_TEXT && affix.kind != JV_TUPLE))
        return jraise(r, "%s first arg must be str or a tuple of str", name);
    if (affix.kind == JV_TEXT)
        holds = affix_matches(v, affix, end);
    for (i = 0; affix.kind == JV_TUPLE && i < affix.list->n; i++)
        holds = holds || affix_matches(v, affix.list->items[i], end);
    *out = jv_bool(holds);
    return true;
}

static bool text_remove(struct jrender *r, struct jval v, bool end, const struct jargs *args,
                        struct jval *out)
{
    struct jval affix;

    if (!need_text(r, args, 0, "prefix", &affix))
        return false;
    *out = v;
    if (affix_matches(v, affix, end))
        *out = jv_part(v, end ? 0 : affix.len, v.len - affix.len);
    return true;
}

static bool text_find(struct jrender *r, struct jval v, const char *name, const struct jargs *args,
                      struct jval *out)
{
    struct jval what;
    const char *found;
    const char *last = NULL;
    size_t at = 0;
    int64_t n = 0;

    if (!need_text(r, args, 0, "sub", &what))
        return false;
    found = jtext_find(v.text, v.len, what.text, what.len);
    while (found != NULL && name[0] != 'f' && name[0] != 'i') {
        n++;
        last = found;
        at = (size_t)(found - v.text) + (what.len == 0 || name[0] == 'r' ? 1 : what.len);
        found = at > v.len ? NULL : jtext_find(v.text + at, v.len - at, what.text, what.len);
    }
    if (name[0] == 'r')
        found = last;
    if (name[0] == 'i' && found == NULL)
        return jraise(r, "substring not found");
    if (name[0] == 'c')
        *out = jv_int(n);
    else
        *out = jv_int(found == NULL ? -1 : (int64_t)jtext_count(v.text, (size_t)(found - v.text)));
    return jstep(r, 1 + v.len / 16);
}

static bool text_is(struct jval v, const char *name)
{
    size_t i = 0;
    bool cased = false;

    while (i < v.len) {
        uint32_t c = utf8_decode(v.text + i);
        uint8_t cls = unicode_class(c);
        uint8_t category = cls & UNICODE_CATEGORY;
        bool upper = category == UNICODE_LU || category == UNICODE_LT;

        if (strcmp(name, "isspace") == 0 && !unicode_is_python_space(c))
            return false;
        if (strcmp(name, "isdigit") == 0 && category != UNICODE_ND)
            return false;
        if (strcmp(name, "isnumeric") == 0 && !unicode_is_number(cls))
            return false;
        if (strcmp(name, "isalpha") == 0 && !unicode_is_letter(cls))
            return false;
        if (strcmp(name, "isalnum") == 0 && !unicode_is_letter(cls) && !unicode_is_number(cls))
            return false;
        if (strcmp(name, "isupper") == 0 && category == UNICODE_LL)
            return false;
        if (strcmp(name, "islower") == 0 && upper)
            return false;
        cased = cased || upper || category == UNICODE_LL;
        i += utf8_sequence(v.text + i, v.len - i);
    }
    return v.len > 0 && (cased || (strcmp(name, "isupper") != 0 && strcmp(name, "islower") != 0));
}

static bool text_join(struct jrender *r, struct jval v, const struct jargs *args, struct jval *out)
{
    struct jbuf b = {.text = {.limit = JINJA_OUTPUT_MAX}};
    struct jlist *l;
    struct jval items;
    size_t i;

    if (!jarg(args, 0, "iterable", &items) || !jv_iterate(r, items, &l))
        return jraise(r, "join needs something to iterate");
    for (i = 0; i < l->n; i++) {
        struct jval item = l->items[i];

        if (v.safe ? !jtext_escape(r, item, &item) : item.kind != JV_TEXT) {
            buf_fini(&b.text);
            return jraise(r, "sequence item %zu: expected str instance, %s found", i,
                          jv_type_name(item));
        }
        if (i > 0)
            jbuf_add(r, &b, v);
        jbuf_add(r, &b, item);
    }
    return jbuf_take(r, &b, out);
}

/* str.format() with {} and {0} and {name}. */
static bool text_format(struct jrender *r, struct jval v, const struct jargs *args,
                        struct jval *out)
{
    struct jbuf b = {.text = {.limit = JINJA_OUTPUT_MAX}};
    size_t next = 0;
    size_t i = 0;
    bool good = true;

    while (i < v.len && good) {
        char name[64] = "";
        size_t n = 0;
        struct jval arg;

        if ((v.text[i] == '{' || v.text[i] == '}') && i + 1 < v.len && v.text[i + 1] == v.text[i]) {
            jbuf_add(r, &b, jv_part(v, i, 1));
            i += 2;
            continue;
        }
        if (v.text[i] != '{') {
            jbuf_add(r, &b, jv_part(v, i++, 1));
            continue;
        }
        for (i++; i < v.len && v.text[i] != '}' && n < sizeof name - 1; i++)
            name[n++] = v.text[i];
        i++;
        if (n == 0 || (name[0] >= '0' && name[0] <= '9'))
            good = jarg(args, n == 0 ? next++ : strtoul(name, NULL, 10), "", &arg);
        else
            good = jarg(args, SIZE_MAX, name, &arg);
        if (good && v.safe)
            good = jtext_escape(r, arg, &arg);
        else if (!good)
            (void)jraise(r, "a format without its argument");
        good = good && jv_str(r, &b, arg);
    }
    if (!good) {
        buf_fini(&b.text);
        return false;
    }
    return jbuf_take(r, &b, out);
}

bool jtext_lines(struct jrender *r, struct jval v, bool keep_ends, struct jval *out)
{
    struct jlist *l = jlist_new(r, 0);
    size_t at = 0;

    while (l != NULL && at < v.len) {
        size_t next;
        size_t end = line_end(v.text, v.len, at, &next);

        if (!jlist_add(r, l, jv_part(v, at, (keep_ends ? next : end) - at)))
            return false;
        at = next;
    }
    *out = jv_list(l);
    return l != NULL;
}

static bool plain_method(struct jrender *r, struct jval v, const char *name,
                         const struct jargs *args, struct jval *out)
{
    struct jval from;
    struct jval to;
    struct jval count = jarg_or(args, 2, "count", jv_int(-1));

    if (strcmp(name, "strip") == 0 || strcmp(name, "lstrip") == 0 || strcmp(name, "rstrip") == 0)
        return text_strip(r, v, name, args, out);
    if (strcmp(name, "split") == 0)
        return text_split(r, v, args, out);
    if (strcmp(name, "rsplit") == 0)
        return text_rsplit(r, v, args, out);
    if (strcmp(name, "startswith") == 0 || strcmp(name, "endswith") == 0)
        return text_affix(r, v, name, args, out);
    if (strcmp(name, "removeprefix") == 0 || strcmp(name, "removesuffix") == 0)
        return text_remove(r, v, name[6] == 's', args, out);
    if (strcmp(name, "replace") == 0)
        return need_text(r, args, 0, "old", &from) && need_text(r, args, 1, "new", &to) &&
               (!v.safe || jtext_escape(r, to, &to)) &&
               jtext_replace(r, v, from, to, count.kind == JV_INT ? count.whole : -1, out);
    if (strcmp(name, "find") == 0 || strcmp(name, "rfind") == 0 || strcmp(name, "index") == 0 ||
        strcmp(name, "count") == 0)
        return text_find(r, v, name, args, out);
    if (strcmp(name, "join") == 0)
        return text_join(r, v, args, out);
    if (strcmp(name, "format") == 0)
        return text_format(r, v, args, out);
    if (strcmp(name, "splitlines") == 0)
        return jtext_lines(r, v, jv_truth(jarg_or(args, 0, "keepends", jv_bool(false))), out);
    if (name[0] == 'i') {
        *out = jv_bool(text_is(v, name));
        return true;
    }
    return jtext_case(r, v, name, out);
}

bool jtext_method(struct jrender *r, struct jval v, const char *name, const struct jargs *args,
                  struct jval *out)
{
    size_t i;

    if (!plain_method(r, v, name, args, out))
        return false;
    if (!v.safe)
        return true;
    if (out->kind == JV_TEXT)
        out->safe = true;
    /* What split() and its kin have made. */
    for (i = 0; out->kind == JV_LIST && i < out->list->n; i++)
        out->list->items[i].safe = true;
    return true;
}
