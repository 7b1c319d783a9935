/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts as in Python: characters, cases, lines, markup, and their methods. All are valid UTF-8,
 * because the template and its variables were checked; positions in arguments count characters. */
#define _GNU_SOURCE 1 /* memmem() */
#include "text/template/jinja_parts.h"

#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/unicode.h"

/* --- characters and case -----------------------------------------------------------------------*/

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
    if (n == 0)
        return text;
    return memmem(text, len, what, n);
}

/* Is the character at `at` (n bytes) stripped? chars NULL: white space. */
static bool jinja_is_stripped(const char *at, size_t n, const struct jval *chars)
{
    if (chars == NULL)
        return unicode_is_python_space(utf8_decode(at));
    return jtext_find(chars->text, chars->len, at, n) != NULL;
}

/* The number of bytes at the start that strip() removes: white space, or the characters of `chars`
 * if they are given. Whole characters are compared, because a byte of one may occur inside
 * another. */
size_t jtext_strip_left(const char *text, size_t len, const struct jval *chars)
{
    size_t at = 0;

    while (at < len) {
        size_t n = utf8_sequence(text + at, len - at);

        if (!jinja_is_stripped(text + at, n, chars))
            break;
        at += n;
    }
    return at;
}

/* The length that remains after the end is stripped. The loop steps back over continuation bytes to
 * the start of the last character. */
size_t jtext_strip_right(const char *text, size_t len, const struct jval *chars)
{
    while (len > 0) {
        size_t at = len - 1;

        while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        /* The first character that stays ends the search. */
        if (!jinja_is_stripped(text + at, len - at, chars))
            break;
        len = at;
    }
    return len;
}

static bool jinja_is_cased(uint32_t c)
{
    uint8_t category = unicode_class(c) & UNICODE_CATEGORY;

    return category == UNICODE_LU || category == UNICODE_LL || category == UNICODE_LT;
}

/* Change the case of a text. how: "upper", "lower", "title" (words), "capitalize" (only the first
 * character), "jinja" (the title filter, for which words begin after white space and some
 * punctuation). One character may become up to three. */
bool jtext_case(struct jrender *render, struct jval value, const char *how, struct jval *out)
{
    struct buf buf = {0};
    bool start = true;
    size_t i = 0;

    must(value.kind == JV_TEXT && how[0] != '\0');
    while (i < value.len) {
        uint32_t c = utf8_decode(value.text + i);
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

            buf_add(&buf, utf8, utf8_encode(forms[k], utf8));
        }
        /* `start` is true before the first letter of a word, by the rules of each kind. */
        if (how[0] == 'j')
            start = unicode_is_python_space(c) ||
                    (c > 0 && c < 0x80 && strchr("-({[<", (int)c) != NULL);
        else
            start = how[0] == 't' && !jinja_is_cased(c);
        i += utf8_sequence(value.text + i, value.len - i);
    }
    if (!jinja_step(render, 1 + value.len / 16)) {
        buf_fini(&buf);
        return false;
    }
    if (!jv_take_buf(render, &buf, out))
        return false;
    /* Changing case moves bytes, so spans of mixed origin are lost; a text that is entirely the
     * template's stays so. */
    if (value.origin == &jorigin_own)
        out->origin = value.origin;
    return true;
}

/* text.replace(from, to, count). An empty `from` matches before every character and at the end. */
bool jtext_replace(struct jrender *render, struct jval value, struct jval from, struct jval to,
                   int64_t count, struct jval *out)
{
    struct jbuf buf = {.text = {.limit = JINJA_OUTPUT_MAX}};
    size_t at = 0;

    must(value.kind == JV_TEXT && from.kind == JV_TEXT && to.kind == JV_TEXT);
    while (count != 0 && at <= value.len) {
        const char *found = jtext_find(value.text + at, value.len - at, from.text, from.len);

        if (found == NULL || (from.len == 0 && at == value.len))
            break;
        jbuf_add(render, &buf, jv_part(value, at, (size_t)(found - value.text) - at));
        jbuf_add(render, &buf, to);
        at = (size_t)(found - value.text) + from.len;
        /* An empty match consumes nothing, so the character after it is copied to advance. */
        if (from.len == 0) {
            size_t n = utf8_sequence(value.text + at, value.len - at);

            jbuf_add(render, &buf, jv_part(value, at, n));
            at += n;
        }
        count--;
    }
    if (from.len == 0 && count != 0)
        jbuf_add(render, &buf, to);
    jbuf_add(render, &buf, jv_part(value, at, value.len - at));
    if (jinja_step(render, 1 + buf.text.len / 64))
        return jbuf_take(render, &buf, out);
    buf_fini(&buf.text);
    return false;
}

/* Markup is text in which HTML's special characters are already escaped; the filters safe and
 * escape make it. Text that is added to markup or formatted into it is escaped first. Hugging
 * Face's environment does not escape by itself, but templates that use `safe` get this behavior. */
bool jtext_escape(struct jrender *render, struct jval value, struct jval *out)
{
    struct buf buf = {.limit = JINJA_OUTPUT_MAX};
    size_t i;

    if (!jv_to_text(render, value, out))
        return false;
    /* Markup is not escaped a second time: &amp; must not become &amp;amp;. */
    if (out->safe)
        return true;
    for (i = 0; i < out->len; i++) {
        switch (out->text[i]) {
        case '&': buf_add_text(&buf, "&amp;"); break;
        case '<': buf_add_text(&buf, "&lt;"); break;
        case '>': buf_add_text(&buf, "&gt;"); break;
        case '\'': buf_add_text(&buf, "&#39;"); break;
        case '"': buf_add_text(&buf, "&#34;"); break;
        default: buf_add_byte(&buf, out->text[i]);
        }
    }
    /* The cost of text is one step per 64 bytes, because copying is fast compared with
     * evaluation. */
    if (!jinja_step(render, 1 + buf.len / 64)) {
        buf_fini(&buf);
        return false;
    }
    if (!jv_take_buf(render, &buf, out))
        return false;
    out->safe = true;
    return true;
}

/* Where the line that begins at `at` ends; *next gets the start of the next one. Line ends are
 * those of Python's str.splitlines, among them U+0085, U+2028 and U+2029. */
static size_t jinja_line_end(const char *text, size_t len, size_t at, size_t *next)
{
    for (; at < len; at++) {
        const char *p = text + at;
        size_t n = 0;

        /* \n, \v, \f and \r; \r\n is one line end. */
        if (*p >= '\n' && *p <= '\r') {
            if (*p == '\r' && at + 1 < len && p[1] == '\n')
                n = 2;
            else
                n = 1;
        } else if (*p >= 0x1c && *p <= 0x1e)
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

/* An argument that must be a text. */

static bool jinja_need_text(struct jrender *render, const struct jargs *args, size_t place,
                            const char *name, struct jval *out)
{
    if (jinja_arg(args, place, name, out) && out->kind == JV_TEXT)
        return true;
    return jinja_raise(render, "a string is expected as argument %zu", place + 1);
}

/* strip(chars), lstrip(chars), rstrip(chars) */
static bool jinja_text_strip(struct jrender *render, struct jval value, const char *name,
                             const struct jargs *args, struct jval *out)
{
    struct jval chars = jinja_arg_or(args, 0, "chars", jv_none());
    const struct jval *set = chars.kind == JV_NONE ? NULL : &chars;
    size_t from = 0;
    size_t to = value.len;

    if (set != NULL && chars.kind != JV_TEXT)
        return jinja_raise(render, "strip arg must be None or str");
    /* Both ends are computed in the original text, so the result is a part of it and is not
     * copied. The name is strip, lstrip or rstrip, and its first letter excludes one end. */
    if (name[0] != 'r')
        from = jtext_strip_left(value.text, to, set);
    if (name[0] != 'l')
        to = from + jtext_strip_right(value.text + from, to - from, set);
    *out = jv_part(value, from, to - from);
    return true;
}

/* split() without a separator: at runs of white space, at most max times. The rest keeps its inner
 * white space. */
static bool jinja_split_spaces(struct jrender *render, struct jval value, int64_t max,
                               struct jlist *list)
{
    size_t at = jtext_strip_left(value.text, value.len, NULL);

    while (at < value.len) {
        size_t end = at;

        /* After `max` splits the rest is one item, without the white space at its end. */
        if (max-- == 0)
            end = jtext_strip_right(value.text, value.len, NULL);
        while (max >= -1 && end < value.len &&
               !unicode_is_python_space(utf8_decode(value.text + end)))
            end += utf8_sequence(value.text + end, value.len - end);
        if (!jlist_add(render, list, jv_part(value, at, end - at)))
            return false;
        /* The rest has been added, and only white space is left. */
        if (max == -1 && end > at &&
            jtext_strip_left(value.text + end, value.len - end, NULL) == value.len - end)
            break;
        at = end + jtext_strip_left(value.text + end, value.len - end, NULL);
    }
    return true;
}

/* split(sep, maxsplit) */
static bool jinja_text_split(struct jrender *render, struct jval value, const struct jargs *args,
                             struct jval *out)
{
    struct jval sep = jinja_arg_or(args, 0, "sep", jv_none());
    struct jval limit = jinja_arg_or(args, 1, "maxsplit", jv_int(-1));
    struct jlist *list = jlist_new(render, 0);
    int64_t max = limit.kind == JV_INT && limit.whole >= 0 ? limit.whole : INT64_MAX;
    size_t at = 0;

    if (list == NULL)
        return false;
    *out = jv_list(list);
    /* Without a separator runs of white space separate, and none are empty. */
    if (sep.kind == JV_NONE)
        return jinja_split_spaces(render, value, max, list);
    if (sep.kind != JV_TEXT || sep.len == 0)
        return jinja_raise(render, "a separator that is not empty is expected");
    while (max-- > 0) {
        const char *found = jtext_find(value.text + at, value.len - at, sep.text, sep.len);

        if (found == NULL)
            break;
        if (!jlist_add(render, list, jv_part(value, at, (size_t)(found - value.text) - at)))
            return false;
        at = (size_t)(found - value.text) + sep.len;
    }
    return jlist_add(render, list, jv_part(value, at, value.len - at));
}

/* rsplit(sep, maxsplit): split everywhere, then join the first pieces again, so that only the last
 * maxsplit separators split. The pieces lie in one text, so joining them needs no copy. */
static bool jinja_text_rsplit(struct jrender *render, struct jval value, const struct jargs *args,
                              struct jval *out)
{
    struct jval limit = jinja_arg_or(args, 1, "maxsplit", jv_int(-1));
    struct jargs all = {.values = args->values, .names = args->names};
    struct jval sep = jinja_arg_or(args, 0, "sep", jv_none());
    struct jlist *list;
    size_t joined;

    all.n = all.n_placed = args->n_placed > 0;
    if (sep.kind == JV_TEXT && all.n == 0)
        return jinja_raise(render, "rsplit takes its separator by place");
    if (!jinja_text_split(render, value, &all, out))
        return false;
    list = out->list;
    if (limit.kind != JV_INT || limit.whole < 0 || list->n < 2 ||
        (uint64_t)limit.whole >= list->n - 1)
        return true;
    joined = list->n - (size_t)limit.whole; /* so many pieces are joined */
    list->items[0] = jv_part(list->items[0], 0,
                             (size_t)(list->items[joined - 1].text - list->items[0].text) +
                                 list->items[joined - 1].len);
    memmove(list->items + 1, list->items + joined, (list->n - joined) * sizeof *list->items);
    list->n -= joined - 1;
    return true;
}

static bool jinja_affix_matches(struct jval value, struct jval affix, bool end)
{
    if (affix.kind != JV_TEXT || affix.len > value.len)
        return false;
    return memcmp(end ? value.text + value.len - affix.len : value.text, affix.text, affix.len) ==
           0;
}

/* startswith(prefix) and endswith(suffix), with a text or a tuple of texts. */
static bool jinja_text_affix(struct jrender *render, struct jval value, const char *name,
                             const struct jargs *args, struct jval *out)
{
    bool end = name[0] == 'e';
    struct jval affix;
    size_t i;
    bool holds = false;

    if (!jinja_arg(args, 0, "prefix", &affix) || (affix.kind != JV_TEXT && affix.kind != JV_TUPLE))
        return jinja_raise(render, "%s first arg must be str or a tuple of str", name);
    /* Only a tuple may replace the text, and not a list. Python has that rule. */
    if (affix.kind == JV_TEXT)
        holds = jinja_affix_matches(value, affix, end);
    for (i = 0; affix.kind == JV_TUPLE && i < affix.list->n; i++)
        holds = holds || jinja_affix_matches(value, affix.list->items[i], end);
    *out = jv_bool(holds);
    return true;
}

/* removeprefix(prefix) and removesuffix(suffix) */
static bool jinja_text_remove(struct jrender *render, struct jval value, bool end,
                              const struct jargs *args, struct jval *out)
{
    struct jval affix;

    if (!jinja_need_text(render, args, 0, "prefix", &affix))
        return false;
    *out = value;
    /* Without the affix the text is returned as it is, and no error is raised. */
    if (jinja_affix_matches(value, affix, end))
        *out = jv_part(value, end ? 0 : affix.len, value.len - affix.len);
    return true;
}

/* find, rfind, index and count of a part; results are counted in characters. */
static bool jinja_text_find(struct jrender *render, struct jval value, const char *name,
                            const struct jargs *args, struct jval *out)
{
    struct jval what;
    const char *found;
    const char *last = NULL;
    size_t at = 0;
    int64_t n = 0;

    if (!jinja_need_text(render, args, 0, "sub", &what))
        return false;
    found = jtext_find(value.text, value.len, what.text, what.len);
    /* For rfind and count all matches are visited: those of count do not overlap, those of rfind
     * may. */
    while (found != NULL && name[0] != 'f' && name[0] != 'i') {
        n++;
        last = found;
        at = (size_t)(found - value.text) + (what.len == 0 || name[0] == 'r' ? 1 : what.len);
        if (at > value.len)
            found = NULL;
        else
            found = jtext_find(value.text + at, value.len - at, what.text, what.len);
    }
    if (name[0] == 'r')
        found = last;
    if (name[0] == 'i' && found == NULL)
        return jinja_raise(render, "substring not found");
    if (name[0] == 'c')
        *out = jv_int(n);
    else
        *out = jv_int(
            found == NULL ? -1 : (int64_t)jtext_count(value.text, (size_t)(found - value.text)));
    return jinja_step(render, 1 + value.len / 16);
}

/* isspace, isdigit and so on: all characters have the property and there is at least one. For
 * isupper and islower there must be a cased character, and none of the other case. */
static bool jinja_text_is(struct jval value, const char *name)
{
    size_t i = 0;
    bool cased = false;

    while (i < value.len) {
        uint32_t c = utf8_decode(value.text + i);
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
        /* Letters of the other case have ended the loop before. */
        cased = cased || upper || category == UNICODE_LL;
        i += utf8_sequence(value.text + i, value.len - i);
    }
    return value.len > 0 &&
           (cased || (strcmp(name, "isupper") != 0 && strcmp(name, "islower") != 0));
}

/* separator.join(items) */
static bool jinja_text_join(struct jrender *render, struct jval value, const struct jargs *args,
                            struct jval *out)
{
    struct jbuf buf = {.text = {.limit = JINJA_OUTPUT_MAX}};
    struct jlist *list;
    struct jval items;
    size_t i;

    if (!jinja_arg(args, 0, "iterable", &items) || !jv_iterate(render, items, &list))
        return jinja_raise(render, "join needs something to iterate");
    for (i = 0; i < list->n; i++) {
        struct jval item = list->items[i];

        /* Markup as the separator makes the result markup, so items of any type are converted
         * and escaped. A plain separator demands texts. */
        if (value.safe ? !jtext_escape(render, item, &item) : item.kind != JV_TEXT) {
            buf_fini(&buf.text);
            return jinja_raise(render, "sequence item %zu: expected str instance, %s found", i,
                               jv_type_name(item));
        }
        if (i > 0)
            jbuf_add(render, &buf, value);
        jbuf_add(render, &buf, item);
    }
    return jbuf_take(render, &buf, out);
}

/* text.format(...) with {}, {0} and {name}; {{ and }} are braces. Format specifications are not
 * supported. */
static bool jinja_text_format(struct jrender *render, struct jval value, const struct jargs *args,
                              struct jval *out)
{
    struct jbuf buf = {.text = {.limit = JINJA_OUTPUT_MAX}};
    size_t next = 0;
    size_t i = 0;
    bool good = true;

    while (i < value.len && good) {
        char name[64] = "";
        size_t n = 0;
        struct jval arg;

        if ((value.text[i] == '{' || value.text[i] == '}') && i + 1 < value.len &&
            value.text[i + 1] == value.text[i]) {
            jbuf_add(render, &buf, jv_part(value, i, 1));
            i += 2;
            continue;
        }
        if (value.text[i] != '{') {
            jbuf_add(render, &buf, jv_part(value, i++, 1));
            continue;
        }
        /* The text between the braces: nothing, a number, or a name. */
        for (i++; i < value.len && value.text[i] != '}' && n < sizeof name - 1; i++)
            name[n++] = value.text[i];
        i++;
        if (n == 0 || (name[0] >= '0' && name[0] <= '9'))
            good = jinja_arg(args, n == 0 ? next++ : strtoul(name, NULL, 10), "", &arg);
        else
            good = jinja_arg(args, SIZE_MAX, name, &arg);
        if (good && value.safe)
            good = jtext_escape(render, arg, &arg);
        else if (!good)
            (void)jinja_raise(render, "a format without its argument");
        good = good && jv_str(render, &buf, arg);
    }
    if (!good) {
        buf_fini(&buf.text);
        return false;
    }
    return jbuf_take(render, &buf, out);
}

/* The method splitlines: unlike split("\n"), a line end at the end of the text begins no further
 * line. */
bool jtext_lines(struct jrender *render, struct jval value, bool keep_ends, struct jval *out)
{
    struct jlist *list = jlist_new(render, 0);
    size_t at = 0;

    must(value.kind == JV_TEXT);
    /* `next` is the beginning of the next line: after \n, or after both bytes of \r\n. A last
     * line without an end is a line, too. */
    while (list != NULL && at < value.len) {
        size_t next;
        size_t end = jinja_line_end(value.text, value.len, at, &next);

        if (!jlist_add(render, list, jv_part(value, at, (keep_ends ? next : end) - at)))
            return false;
        at = next;
    }
    *out = jv_list(list);
    return list != NULL;
}

/* A method of a text; name is one of those that jinja_is_method() knows. */
static bool jinja_plain_method(struct jrender *render, struct jval value, const char *name,
                               const struct jargs *args, struct jval *out)
{
    struct jval from;
    struct jval to;
    struct jval count = jinja_arg_or(args, 2, "count", jv_int(-1));

    /* Names are compared in groups of relatives, because one function serves them all and looks
     * at the letters in which they differ. */
    if (strcmp(name, "strip") == 0 || strcmp(name, "lstrip") == 0 || strcmp(name, "rstrip") == 0)
        return jinja_text_strip(render, value, name, args, out);
    if (strcmp(name, "split") == 0)
        return jinja_text_split(render, value, args, out);
    if (strcmp(name, "rsplit") == 0)
        return jinja_text_rsplit(render, value, args, out);
    if (strcmp(name, "startswith") == 0 || strcmp(name, "endswith") == 0)
        return jinja_text_affix(render, value, name, args, out);
    if (strcmp(name, "removeprefix") == 0 || strcmp(name, "removesuffix") == 0)
        return jinja_text_remove(render, value, name[6] == 's', args, out);
    /* Text that replaces a part of markup is escaped, but the text that is searched for is not. */
    if (strcmp(name, "replace") == 0)
        return jinja_need_text(render, args, 0, "old", &from) &&
               jinja_need_text(render, args, 1, "new", &to) &&
               (!value.safe || jtext_escape(render, to, &to)) &&
               jtext_replace(render, value, from, to, count.kind == JV_INT ? count.whole : -1, out);
    if (strcmp(name, "find") == 0 || strcmp(name, "rfind") == 0 || strcmp(name, "index") == 0 ||
        strcmp(name, "count") == 0)
        return jinja_text_find(render, value, name, args, out);
    if (strcmp(name, "join") == 0)
        return jinja_text_join(render, value, args, out);
    if (strcmp(name, "format") == 0)
        return jinja_text_format(render, value, args, out);
    if (strcmp(name, "splitlines") == 0)
        return jtext_lines(render, value,
                           jv_truth(jinja_arg_or(args, 0, "keepends", jv_bool(false))), out);
    /* isdigit, isalpha and the others; "index" was handled above. */
    if (name[0] == 'i') {
        *out = jv_bool(jinja_text_is(value, name));
        return true;
    }
    /* upper, lower, title and capitalize are left. */
    return jtext_case(render, value, name, out);
}

bool jtext_method(struct jrender *render, struct jval value, const char *name,
                  const struct jargs *args, struct jval *out)
{
    size_t i;

    must(value.kind == JV_TEXT);
    if (!jinja_plain_method(render, value, name, args, out))
        return false;
    /* A method of markup gives markup, as in Python's Markup class. Otherwise the result would be
     * escaped again when it is printed. */
    if (!value.safe)
        return true;
    if (out->kind == JV_TEXT)
        out->safe = true;
    /* Results of split() and similar methods. */
    for (i = 0; out->kind == JV_LIST && i < out->list->n; i++)
        out->list->items[i].safe = true;
    return true;
}
