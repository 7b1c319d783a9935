/* SPDX-License-Identifier: Apache-2.0
 *
 * What expressions call: operators, attributes and items, methods of texts, lists and dicts, and
 * the global functions of Hugging Face's environment. */
#define _GNU_SOURCE 1 /* memmem() */
#include "text/jinja_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "text/unicode.h"

#define RANGE_MAX 100000 /* items of one range() */

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
            start = unicode_is_python_space(c) || (c < 0x80 && strchr("-({[<", (int)c) != NULL);
        else
            start = how[0] == 't' && !is_cased(c);
        i += utf8_sequence(v.text + i, v.len - i);
    }
    return jstep(r, 1 + v.len / 16) ? jv_take_buf(r, &b, out) : (buf_fini(&b), false);
}

bool jtext_replace(struct jrender *r, struct jval v, struct jval from, struct jval to,
                   int64_t count, struct jval *out)
{
    struct buf b = {.limit = JINJA_OUTPUT_MAX};
    const char *at = v.text;
    const char *end = v.text + v.len;

    while (count != 0 && at <= end) {
        const char *found = jtext_find(at, (size_t)(end - at), from.text, from.len);

        if (found == NULL || (from.len == 0 && at == end))
            break;
        buf_add(&b, at, (size_t)(found - at));
        buf_add(&b, to.text, to.len);
        at = found + from.len;
        if (from.len == 0) {
            size_t n = utf8_sequence(at, (size_t)(end - at));

            buf_add(&b, at, n);
            at += n;
        }
        count--;
    }
    if (from.len == 0 && count != 0)
        buf_add(&b, to.text, to.len);
    buf_add(&b, at, (size_t)(end - at));
    return jstep(r, 1 + b.len / 64) ? jv_take_buf(r, &b, out) : (buf_fini(&b), false);
}

/* --- operators ---------------------------------------------------------------------------------*/

static bool out_of_range(struct jrender *r)
{
    return jraise(r, "a whole number is out of range");
}

static bool whole_op(struct jrender *r, char op, bool twice, int64_t a, int64_t b, struct jval *out)
{
    int64_t v = 0;
    bool over = false;

    if ((op == '/' || op == '%') && b == 0)
        return jraise(r, "division by zero");
    if (op == '/' && !twice) {
        *out = jv_real((double)a / (double)b);
        return true;
    }
    if ((op == '/' || op == '%') && b == -1) {
        over = op == '/' && a == INT64_MIN;
        v = op == '/' && !over ? -a : 0;
    } else if (op == '/') {
        v = a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
    } else if (op == '%') {
        v = a % b + ((a % b != 0) && ((a < 0) != (b < 0)) ? b : 0);
    } else if (op == '+') {
        over = __builtin_add_overflow(a, b, &v);
    } else if (op == '-') {
        over = __builtin_sub_overflow(a, b, &v);
    } else if (!twice) {
        over = __builtin_mul_overflow(a, b, &v);
    } else if (b < 0) {
        *out = jv_real(pow((double)a, (double)b));
        return true;
    } else {
        for (v = 1; b > 0 && !over && !(v == 0 || (a == 1 || a == 0)); b--)
            over = __builtin_mul_overflow(v, a, &v) || b > 4096;
        if (a == 0 && b > 0)
            v = 0;
    }
    *out = jv_int(v);
    return over ? out_of_range(r) : true;
}

static bool real_op(struct jrender *r, char op, bool twice, double a, double b, struct jval *out)
{
    double v = 0;

    if ((op == '/' || op == '%') && b == 0)
        return jraise(r, "float division by zero");
    if (op == '+')
        v = a + b;
    else if (op == '-')
        v = a - b;
    else if (op == '*')
        v = twice ? pow(a, b) : a * b;
    else if (op == '/')
        v = twice ? floor(a / b) : a / b;
    else {
        v = fmod(a, b);
        if (v != 0 && (v < 0) != (b < 0))
            v += b;
    }
    *out = jv_real(v);
    return true;
}

static bool repeat_text(struct jrender *r, struct jval v, int64_t n, struct jval *out)
{
    struct buf b = {.limit = JINJA_OUTPUT_MAX};
    int64_t i;

    if (n > 0 && v.len > 0 && n > (int64_t)(JINJA_OUTPUT_MAX / v.len))
        return jfault_set(&r->fault, ERR_LIMIT, "the template makes too much text");
    for (i = 0; v.len > 0 && i < n; i++)
        buf_add(&b, v.text, v.len);
    return jv_take_buf(r, &b, out);
}

static bool join_lists(struct jrender *r, struct jval a, struct jval b, struct jval *out)
{
    struct jlist *l = jlist_new(r, a.list->n + b.list->n);
    size_t i;

    for (i = 0; l != NULL && i < a.list->n; i++)
        if (!jlist_add(r, l, a.list->items[i]))
            return false;
    for (i = 0; l != NULL && i < b.list->n; i++)
        if (!jlist_add(r, l, b.list->items[i]))
            return false;
    *out = (struct jval){.kind = a.kind, .list = l};
    return l != NULL;
}

/* "%s" % values: %s, %d and %%, as formats in templates use. */
static bool format_text(struct jrender *r, struct jval v, struct jval args, struct jval *out)
{
    struct buf b = {.limit = JINJA_OUTPUT_MAX};
    size_t used = 0;
    size_t i;
    bool good = true;

    for (i = 0; i < v.len && good; i++) {
        struct jval arg = args;

        if (v.text[i] != '%' || i + 1 == v.len) {
            buf_add_byte(&b, v.text[i]);
            continue;
        }
        if (v.text[++i] == '%') {
            buf_add_byte(&b, '%');
            continue;
        }
        if (args.kind == JV_TUPLE && used >= args.list->n)
            good = jraise(r, "not enough arguments for format string");
        else if (args.kind == JV_TUPLE)
            arg = args.list->items[used++];
        if (v.text[i] != 's' && v.text[i] != 'd')
            good = jraise(r, "format %%%c is not supported", v.text[i]);
        good = good && jv_str(r, &b, arg);
    }
    if (!good) {
        buf_fini(&b);
        return false;
    }
    return jv_take_buf(r, &b, out);
}

bool jbinary(struct jrender *r, const char *op, struct jval a, struct jval b, struct jval *out)
{
    bool lists = (a.kind == JV_LIST || a.kind == JV_TUPLE) && a.kind == b.kind;
    bool twice = op[1] != '\0';
    struct jval text_a;
    struct jval text_b;

    if (op[0] == '~')
        return jv_to_text(r, a, &text_a) && jv_to_text(r, b, &text_b) &&
               jv_concat(r, text_a, text_b, out);
    if (a.kind == JV_UNDEFINED || b.kind == JV_UNDEFINED)
        return jraise(r, "'%.100s' is undefined", a.kind == JV_UNDEFINED ? a.text : b.text);
    if (op[0] == '+' && a.kind == JV_TEXT && b.kind == JV_TEXT)
        return jv_concat(r, a, b, out);
    if (op[0] == '+' && lists)
        return join_lists(r, a, b, out);
    if (op[0] == '*' && !twice && a.kind == JV_TEXT && b.kind == JV_INT)
        return repeat_text(r, a, b.whole, out);
    if (op[0] == '*' && !twice && a.kind == JV_INT && b.kind == JV_TEXT)
        return repeat_text(r, b, a.whole, out);
    if (op[0] == '%' && a.kind == JV_TEXT)
        return format_text(r, a, b, out);
    if (!jv_is_number(a) || !jv_is_number(b)) {
        if (op[0] == '+' && a.kind == JV_TEXT)
            return jraise(r, "can only concatenate str (not \"%s\") to str", jv_type_name(b));
        return jraise(r, "unsupported operand type(s) for %s: '%s' and '%s'", op, jv_type_name(a),
                      jv_type_name(b));
    }
    if (a.kind == JV_REAL || b.kind == JV_REAL)
        return real_op(r, op[0], twice, jv_real_of(a), jv_real_of(b), out);
    return whole_op(r, op[0], twice, jv_int_of(a), jv_int_of(b), out);
}

/* --- attributes --------------------------------------------------------------------------------*/

static bool is_among(const char *const *names, const char *name)
{
    for (; *names != NULL; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

static bool is_method(struct jval v, const char *name)
{
    static const char *const of_text[] = {
        "strip",     "lstrip",       "rstrip",       "split",      "rsplit",  "startswith",
        "upper",     "lower",        "title",        "capitalize", "replace", "endswith",
        "find",      "rfind",        "index",        "count",      "join",    "format",
        "isdigit",   "isalpha",      "isspace",      "isupper",    "islower", "isalnum",
        "isnumeric", "removeprefix", "removesuffix", "splitlines", NULL};
    static const char *const of_dict[] = {"items", "keys", "values", "get", NULL};
    static const char *const of_list[] = {"index",  "count", "append", "extend",
                                          "insert", "pop",   NULL};

    if (v.kind == JV_TEXT)
        return is_among(of_text, name);
    if (v.kind == JV_DICT)
        return is_among(of_dict, name);
    return (v.kind == JV_LIST || v.kind == JV_TUPLE) && is_among(of_list, name);
}

static struct jval loop_cell(const struct jloop *l, size_t at)
{
    if (at >= l->list->n)
        return jv_undefined("there is no such item", 21);
    return l->list->items[at];
}

static bool loop_attr(const struct jloop *l, const char *name, struct jval *out)
{
    int64_t at = (int64_t)l->at;
    int64_t n = (int64_t)l->list->n;

    if (strcmp(name, "index") == 0)
        *out = jv_int(at + 1);
    else if (strcmp(name, "index0") == 0)
        *out = jv_int(at);
    else if (strcmp(name, "revindex") == 0)
        *out = jv_int(n - at);
    else if (strcmp(name, "revindex0") == 0)
        *out = jv_int(n - at - 1);
    else if (strcmp(name, "first") == 0)
        *out = jv_bool(at == 0);
    else if (strcmp(name, "last") == 0)
        *out = jv_bool(at == n - 1);
    else if (strcmp(name, "length") == 0)
        *out = jv_int(n);
    else if (strcmp(name, "depth") == 0)
        *out = jv_int(1); /* counts the levels of recursive loops, which are refused */
    else if (strcmp(name, "depth0") == 0)
        *out = jv_int(0);
    else if (strcmp(name, "previtem") == 0)
        *out = loop_cell(l, at == 0 ? SIZE_MAX : (size_t)at - 1);
    else if (strcmp(name, "nextitem") == 0)
        *out = loop_cell(l, (size_t)at + 1);
    else
        return false;
    return true;
}

static bool method_value(struct jrender *r, struct jval self, const char *name, struct jval *out)
{
    struct jmethod *m = arena_alloc(r->arena, sizeof *m);

    if (m == NULL)
        return jno_memory(r);
    *m = (struct jmethod){.self = self, .name = name};
    *out = (struct jval){.kind = JV_METHOD, .method = m};
    return true;
}

bool jattr(struct jrender *r, struct jval v, const char *name, size_t len, bool item_first,
           struct jval *out)
{
    struct jval *member = NULL;

    if (v.kind == JV_UNDEFINED)
        return jraise(r, "'%.100s' is undefined", v.text);
    if (v.kind == JV_DICT || v.kind == JV_NAMESPACE)
        member = jdict_get_text(v.dict, name, len);
    if (member != NULL && (item_first || !is_method(v, name))) {
        *out = *member;
        return jstep(r, 1 + v.dict->n / 16);
    }
    if (v.kind == JV_LOOP && loop_attr(v.loop, name, out))
        return true;
    if (is_method(v, name) ||
        (v.kind == JV_LOOP && (strcmp(name, "cycle") == 0 || strcmp(name, "changed") == 0)))
        return method_value(r, v, name, out);
    if (v.kind == JV_MACRO && strcmp(name, "name") == 0) {
        *out = jv_text(v.macro->name, strlen(v.macro->name));
        return true;
    }
    *out = jv_undefined(name, len);
    return true;
}

bool jitem(struct jrender *r, struct jval v, struct jval key, struct jval *out)
{
    struct jval *member;
    int64_t at;
    int64_t n;

    if (v.kind == JV_UNDEFINED)
        return jraise(r, "'%.100s' is undefined", v.text);
    if (v.kind == JV_DICT && key.kind != JV_TEXT) {
        member = jdict_get(v.dict, key);
        *out = member != NULL ? *member : jv_undefined("an item", 7);
        return true;
    }
    if (key.kind == JV_TEXT)
        return jattr(r, v, key.text, key.len, true, out);
    *out = jv_undefined("an item", 7);
    if (key.kind != JV_INT && key.kind != JV_BOOL)
        return true;
    at = jv_int_of(key);
    if (v.kind == JV_LIST || v.kind == JV_TUPLE) {
        n = (int64_t)v.list->n;
        at = at < 0 ? at + n : at;
        if (at >= 0 && at < n)
            *out = v.list->items[at];
    } else if (v.kind == JV_TEXT) {
        n = (int64_t)jtext_count(v.text, v.len);
        at = at < 0 ? at + n : at;
        if (at >= 0 && at < n) {
            size_t from = jtext_offset(v.text, v.len, (size_t)at);

            *out = jv_text(v.text + from, utf8_sequence(v.text + from, v.len - from));
        }
        return jstep(r, 1 + v.len / 64);
    }
    return true;
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
    *out = jv_text(v.text + from, to - from);
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
        if (!jlist_add(r, l, jv_text(v.text + at, end - at)))
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
        if (!jlist_add(r, l, jv_text(v.text + at, (size_t)(found - v.text) - at)))
            return false;
        at = (size_t)(found - v.text) + sep.len;
    }
    return jlist_add(r, l, jv_text(v.text + at, v.len - at));
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
    l->items[0] = jv_text(l->items[0].text, (size_t)(l->items[joined - 1].text - l->items[0].text) +
                                                l->items[joined - 1].len);
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
        *out = jv_text(end ? v.text : v.text + affix.len, v.len - affix.len);
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
    struct buf b = {.limit = JINJA_OUTPUT_MAX};
    struct jlist *l;
    struct jval items;
    size_t i;

    if (!jarg(args, 0, "iterable", &items) || !jv_iterate(r, items, &l))
        return jraise(r, "join needs something to iterate");
    for (i = 0; i < l->n; i++) {
        if (l->items[i].kind != JV_TEXT) {
            buf_fini(&b);
            return jraise(r, "sequence item %zu: expected str instance, %s found", i,
                          jv_type_name(l->items[i]));
        }
        if (i > 0)
            buf_add(&b, v.text, v.len);
        buf_add(&b, l->items[i].text, l->items[i].len);
    }
    return jv_take_buf(r, &b, out);
}

/* str.format() with {} and {0} and {name}. */
static bool text_format(struct jrender *r, struct jval v, const struct jargs *args,
                        struct jval *out)
{
    struct buf b = {.limit = JINJA_OUTPUT_MAX};
    size_t next = 0;
    size_t i = 0;
    bool good = true;

    while (i < v.len && good) {
        char name[64] = "";
        size_t n = 0;
        struct jval arg;

        if ((v.text[i] == '{' || v.text[i] == '}') && i + 1 < v.len && v.text[i + 1] == v.text[i]) {
            buf_add_byte(&b, v.text[i]);
            i += 2;
            continue;
        }
        if (v.text[i] != '{') {
            buf_add_byte(&b, v.text[i++]);
            continue;
        }
        for (i++; i < v.len && v.text[i] != '}' && n < sizeof name - 1; i++)
            name[n++] = v.text[i];
        i++;
        if (n == 0 || (name[0] >= '0' && name[0] <= '9'))
            good = jarg(args, n == 0 ? next++ : strtoul(name, NULL, 10), "", &arg);
        else
            good = jarg(args, SIZE_MAX, name, &arg);
        good = good ? jv_str(r, &b, arg) : jraise(r, "a format without its argument");
    }
    if (!good) {
        buf_fini(&b);
        return false;
    }
    return jv_take_buf(r, &b, out);
}

static bool text_lines(struct jrender *r, struct jval v, struct jval *out)
{
    struct jlist *l = jlist_new(r, 0);
    size_t at = 0;

    while (l != NULL && at < v.len) {
        const char *eol = memchr(v.text + at, '\n', v.len - at);
        size_t end = eol == NULL ? v.len : (size_t)(eol - v.text);
        size_t used = end > at && v.text[end - 1] == '\r' ? end - 1 : end;

        if (!jlist_add(r, l, jv_text(v.text + at, used - at)))
            return false;
        at = end + 1;
    }
    *out = jv_list(l);
    return l != NULL;
}

static bool text_method(struct jrender *r, struct jval v, const char *name,
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
               jtext_replace(r, v, from, to, count.kind == JV_INT ? count.whole : -1, out);
    if (strcmp(name, "find") == 0 || strcmp(name, "rfind") == 0 || strcmp(name, "index") == 0 ||
        strcmp(name, "count") == 0)
        return text_find(r, v, name, args, out);
    if (strcmp(name, "join") == 0)
        return text_join(r, v, args, out);
    if (strcmp(name, "format") == 0)
        return text_format(r, v, args, out);
    if (strcmp(name, "splitlines") == 0)
        return text_lines(r, v, out);
    if (name[0] == 'i') {
        *out = jv_bool(text_is(v, name));
        return true;
    }
    return jtext_case(r, v, name, out);
}

static bool dict_method(struct jrender *r, const struct jdict *d, const char *name,
                        const struct jargs *args, struct jval *out)
{
    struct jlist *l;
    struct jval key;
    size_t i;

    if (strcmp(name, "get") == 0) {
        const struct jval *member;

        if (!jarg(args, 0, "key", &key))
            return jraise(r, "get expected at least 1 argument");
        member = jdict_get(d, key);
        *out = member != NULL ? *member : jarg_or(args, 1, "default", jv_none());
        return jstep(r, 1 + d->n / 16);
    }
    l = jlist_new(r, d->n);
    for (i = 0; l != NULL && i < d->n; i++) {
        struct jval item = name[0] == 'k' ? d->pairs[i].key : d->pairs[i].value;

        if (name[0] == 'i') {
            struct jlist *pair = jlist_new(r, 2);

            if (pair == NULL || !jlist_add(r, pair, d->pairs[i].key) ||
                !jlist_add(r, pair, d->pairs[i].value))
                return false;
            item = (struct jval){.kind = JV_TUPLE, .list = pair};
        }
        if (!jlist_add(r, l, item))
            return false;
    }
    *out = jv_list(l);
    return l != NULL;
}

static bool list_method(struct jrender *r, const struct jlist *l, const char *name,
                        const struct jargs *args, struct jval *out)
{
    struct jval what;
    int64_t n = 0;
    size_t i;

    if (strcmp(name, "index") != 0 && strcmp(name, "count") != 0)
        return jraise(r, "access to attribute '%s' of 'list' object is unsafe.", name);
    if (!jarg(args, 0, "value", &what))
        return jraise(r, "%s() takes exactly one argument", name);
    for (i = 0; i < l->n; i++) {
        if (!jv_equal(l->items[i], what))
            continue;
        n++;
        if (name[0] == 'i') {
            *out = jv_int((int64_t)i);
            return true;
        }
    }
    if (name[0] == 'i')
        return jraise(r, "value is not in list");
    *out = jv_int(n);
    return jstep(r, 1 + l->n);
}

static bool loop_method(struct jrender *r, struct jloop *l, const char *name,
                        const struct jargs *args, struct jval *out)
{
    struct jval v = jarg_or(args, 0, "value", jv_none());

    if (strcmp(name, "changed") == 0) {
        *out = jv_bool(!l->changed_once || !jv_equal(l->last_changed, v));
        l->changed_once = true;
        l->last_changed = v;
        return true;
    }
    if (args->n_placed == 0)
        return jraise(r, "no items for cycling given");
    *out = args->values[l->at % args->n_placed];
    return true;
}

bool jmethod_call(struct jrender *r, const struct jmethod *m, const struct jargs *args,
                  struct jval *out)
{
    if (m->self.kind == JV_TEXT)
        return text_method(r, m->self, m->name, args, out);
    if (m->self.kind == JV_DICT)
        return dict_method(r, m->self.dict, m->name, args, out);
    if (m->self.kind == JV_LOOP)
        return loop_method(r, m->self.loop, m->name, args, out);
    return list_method(r, m->self.list, m->name, args, out);
}

/* --- globals -----------------------------------------------------------------------------------*/

bool jglobal_exists(const char *name, size_t len)
{
    static const char *const names[] = {"namespace", "range",        "dict",
                                        "joiner",    "strftime_now", "raise_exception"};
    size_t i;

    for (i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
            return true;
    return false;
}

static bool global_range(struct jrender *r, const struct jargs *args, struct jval *out)
{
    struct jlist *l = jlist_new(r, 0);
    int64_t v[3] = {0, 0, 1};
    int64_t at;
    size_t i;

    if (args->n == 0 || args->n > 3 || args->n != args->n_placed)
        return jraise(r, "range expected 1 to 3 arguments");
    for (i = 0; i < args->n; i++) {
        if (args->values[i].kind != JV_INT && args->values[i].kind != JV_BOOL)
            return jraise(r, "'%s' object cannot be interpreted as an integer",
                          jv_type_name(args->values[i]));
        v[args->n == 1 ? 1 : i] = jv_int_of(args->values[i]);
    }
    if (v[2] == 0)
        return jraise(r, "range() arg 3 must not be zero");
    for (at = v[0]; l != NULL && (v[2] > 0 ? at < v[1] : at > v[1]);) {
        if (l->n == RANGE_MAX)
            return jraise(r, "range() may have at most %d items", RANGE_MAX);
        if (!jlist_add(r, l, jv_int(at)))
            return false;
        if (__builtin_add_overflow(at, v[2], &at))
            break;
    }
    *out = jv_list(l);
    return l != NULL;
}

static bool global_dict(struct jrender *r, const struct jargs *args, enum jkind kind,
                        struct jval *out)
{
    struct jdict *d = jdict_new(r, 0);
    size_t i;
    size_t k;

    if (d == NULL)
        return false;
    for (i = 0; i < args->n_placed; i++) {
        const struct jdict *from = args->values[i].dict;

        if (args->values[i].kind != JV_DICT)
            return jraise(r, "a dict is expected");
        for (k = 0; k < from->n; k++)
            if (!jdict_set(r, d, from->pairs[k].key, from->pairs[k].value))
                return false;
    }
    for (; i < args->n; i++)
        if (!jdict_set(r, d, jv_text(args->names[i], strlen(args->names[i])), args->values[i]))
            return false;
    *out = (struct jval){.kind = kind, .dict = d};
    return true;
}

static bool global_now(struct jrender *r, const struct jargs *args, struct jval *out)
{
    time_t now = (time_t)(r->now_unix_s != 0 ? r->now_unix_s : clock_unix_s());
    struct jval format;
    struct tm tm;
    char pattern[128];
    char text[512];
    size_t n;

    if (!need_text(r, args, 0, "format", &format))
        return false;
    if (format.len >= sizeof pattern || localtime_r(&now, &tm) == NULL)
        return jraise(r, "a time format that is too long");
    memcpy(pattern, format.text, format.len);
    pattern[format.len] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the template's own format */
    n = strftime(text, sizeof text, pattern, &tm);
#pragma GCC diagnostic pop
    *out = jv_text(arena_strndup(r->arena, text, n), n);
    return out->text != NULL || jno_memory(r);
}

bool jglobal_call(struct jrender *r, const char *name, const struct jargs *args, struct jval *out)
{
    struct jjoiner *joiner;
    struct jval v;

    switch (name[0]) {
    case 'n': return global_dict(r, args, JV_NAMESPACE, out);
    case 'd': return global_dict(r, args, JV_DICT, out);
    case 's': return global_now(r, args, out);
    case 'j':
        v = jarg_or(args, 0, "sep", jv_text(", ", 2));
        joiner = arena_zalloc(r->arena, sizeof *joiner);
        if (joiner == NULL)
            return jno_memory(r);
        if (v.kind != JV_TEXT)
            return jraise(r, "joiner() needs a string");
        *joiner = (struct jjoiner){.text = v.text, .len = v.len};
        *out = (struct jval){.kind = JV_JOINER, .joiner = joiner};
        return true;
    default: break;
    }
    if (strncmp(name, "range", 5) == 0)
        return global_range(r, args, out);
    v = jarg_or(args, 0, "message", jv_text("the template raised an exception", 32));
    if (!jv_to_text(r, v, &v))
        return false;
    return jfault_set(&r->fault, ERR_INVALID, "%.*s", (int)(v.len < 500 ? v.len : 500), v.text);
}

bool jcall(struct jrender *r, struct jval callee, const struct jargs *args, struct jval *out)
{
    if (!jstep(r, 4))
        return false;
    if (callee.kind == JV_MACRO)
        return jmacro_call(r, callee.macro, args, out);
    if (callee.kind == JV_METHOD)
        return jmethod_call(r, callee.method, args, out);
    if (callee.kind == JV_GLOBAL)
        return jglobal_call(r, callee.text, args, out);
    if (callee.kind == JV_JOINER) {
        *out = jv_text(callee.joiner->text, callee.joiner->used ? callee.joiner->len : 0);
        callee.joiner->used = true;
        return true;
    }
    if (callee.kind == JV_UNDEFINED)
        return jraise(r, "'%.100s' is undefined", callee.text);
    return jraise(r, "'%s' object is not callable", jv_type_name(callee));
}
