/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters ({{ x|upper }}): a table of names and functions. A function gets the value on the left
 * and the evaluated arguments. Names and positions of arguments are those of Jinja. A function
 * without arguments ignores `args`. */
#include "text/template/jinja_parts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/unicode.h"

/* --- shared helpers ----------------------------------------------------------------------------*/

/* len(value); an undefined value has length 0, as in Jinja. */

static bool jinja_length_of(struct jrender *render, struct jval value, struct jval *out)
{
    if (value.kind == JV_TEXT)
        *out = jv_int((int64_t)jtext_count(value.text, value.len));
    else if (value.kind == JV_LIST || value.kind == JV_TUPLE)
        *out = jv_int((int64_t)value.list->n);
    else if (value.kind == JV_DICT)
        *out = jv_int((int64_t)value.dict->n);
    else if (value.kind == JV_UNDEFINED)
        *out = jv_int(0);
    else
        return jinja_raise(render, "object of type '%s' has no len()", jv_type_name(value));
    return true;
}

/* Follow a path such as "a.b.0" from a value, for map(attribute=...) and similar filters. */
static bool jinja_attr_path(struct jrender *render, struct jval value, struct jval path,
                            struct jval *out)
{
    size_t at = 0;

    *out = value;
    /* map(attribute=0) is an index of each item. */
    if (path.kind == JV_INT)
        return jinja_get_item(render, value, path, out);
    if (path.kind != JV_TEXT)
        return jinja_raise(render, "an attribute's name is expected");
    /* One part of the path per pass: "a.b.0" is a, then b of that, then item 0. A part of digits
     * only is an index. The last part has no dot after it, so `at` ends above the length. */
    while (at <= path.len) {
        const char *dot = memchr(path.text + at, '.', path.len - at);
        size_t end = dot == NULL ? path.len : (size_t)(dot - path.text);
        char *name = arena_strndup(render->arena, path.text + at, end - at);
        struct jval key = jv_text(name, end - at);

        if (name == NULL)
            return jinja_no_memory(render);
        if (end > at && strspn(name, "0123456789") == end - at)
            key = jv_int(strtoll(name, NULL, 10));
        /* A missing member gives an undefined value and no error; its own members are then an
         * error. */
        if (!jinja_get_item(render, *out, key, out))
            return false;
        at = end + 1;
    }
    return true;
}

/* The arguments from `skip` on, for a filter or test that is called by another one. */
static struct jargs jinja_rest_of(const struct jargs *args, size_t skip)
{
    struct jargs rest = *args;

    skip = skip < args->n_placed ? skip : args->n_placed;
    if (skip == 0)
        return rest;
    /* Named arguments stay: they follow the positional ones in the same arrays. */
    rest.values += skip;
    rest.names += skip;
    rest.n -= skip;
    rest.n_placed -= skip;
    return rest;
}

/* A text as a NUL-terminated name. */
static bool jinja_text_name(struct jrender *render, struct jval value, const char **name)
{
    if (value.kind != JV_TEXT)
        return jinja_raise(render, "a filter's or test's name is expected");
    *name = arena_strndup(render->arena, value.text, value.len);
    return *name != NULL || jinja_no_memory(render);
}

/* --- filters -----------------------------------------------------------------------------------*/

/* tojson(ensure_ascii, indent, separators, sort_keys): Hugging Face's version, which does not
 * escape HTML, unlike Jinja's own. */

static bool jinja_filter_tojson(struct jrender *render, struct jval in, const struct jargs *args,
                                struct jval *out)
{
    struct jdump how = {.indent = -1, .item = ", ", .key = ": "};
    struct jval ascii = jinja_arg_or(args, 0, "ensure_ascii", jv_bool(false));
    struct jval indent = jinja_arg_or(args, 1, "indent", jv_none());
    struct jval separators = jinja_arg_or(args, 2, "separators", jv_none());
    struct jval sort = jinja_arg_or(args, 3, "sort_keys", jv_bool(false));
    struct buf buf = {0};

    how.ascii = jv_truth(ascii);
    how.sort_keys = jv_truth(sort);
    if (indent.kind == JV_INT && indent.whole >= 0 && indent.whole <= 64) {
        how.indent = (int)indent.whole;
        how.item = ",";
    }
    /* separators=(",", ":") removes the spaces; models that were trained with such text need it. */
    if ((separators.kind == JV_TUPLE || separators.kind == JV_LIST) && separators.list->n == 2 &&
        (!jinja_text_name(render, separators.list->items[0], &how.item) ||
         !jinja_text_name(render, separators.list->items[1], &how.key)))
        return false;
    if (!jv_json(render, &buf, in, &how, 0)) {
        buf_fini(&buf);
        return false;
    }
    return jv_take_buf(render, &buf, out);
}

static bool jinja_filter_length(struct jrender *render, struct jval in, const struct jargs *args,
                                struct jval *out)
{
    (void)args;
    return jinja_length_of(render, in, out);
}

static bool jinja_filter_string(struct jrender *render, struct jval in, const struct jargs *args,
                                struct jval *out)
{
    (void)args;
    return jv_to_text(render, in, out);
}

/* A filter without effect. */
static bool jinja_filter_same(struct jrender *render, struct jval in, const struct jargs *args,
                              struct jval *out)
{
    (void)render;
    (void)args;
    *out = in;
    return true;
}

/* trim(chars): remove white space, or the given characters, at both ends. */
static bool jinja_filter_trim(struct jrender *render, struct jval in, const struct jargs *args,
                              struct jval *out)
{
    struct jval chars = jinja_arg_or(args, 0, "chars", jv_none());
    const struct jval *set = chars.kind == JV_TEXT ? &chars : NULL;
    size_t from;

    if (!jv_to_text(render, in, &in))
        return false;
    /* The result is a part of the text, so it keeps the origin of its bytes. */
    from = jtext_strip_left(in.text, in.len, set);
    *out = jv_part(in, from, jtext_strip_right(in.text + from, in.len - from, set));
    out->safe = in.safe;
    return true;
}

static bool jinja_filter_list(struct jrender *render, struct jval in, const struct jargs *args,
                              struct jval *out)
{
    struct jlist *list;

    (void)args;
    if (!jv_iterate(render, in, &list))
        return false;
    *out = jv_list(list);
    return true;
}

/* join(d, attribute): the items, or one attribute of each, with d between them. */
static bool jinja_filter_join(struct jrender *render, struct jval in, const struct jargs *args,
                              struct jval *out)
{
    struct jval between = jinja_arg_or(args, 0, "d", jv_text("", 0));
    struct jval attribute = jinja_arg_or(args, 1, "attribute", jv_none());
    struct jbuf buf = {.text = {.limit = JINJA_OUTPUT_MAX}};
    struct jlist *list;
    size_t i;
    bool good = jv_iterate(render, in, &list) && jv_to_text(render, between, &between);

    for (i = 0; good && i < list->n; i++) {
        struct jval item = list->items[i];

        /* An attribute that is missing makes an item undefined, which prints as nothing. */
        if (attribute.kind != JV_NONE)
            good = jinja_attr_path(render, item, attribute, &item);
        if (i > 0)
            jbuf_add(render, &buf, between);
        good = good && jv_str(render, &buf, item);
    }
    /* The buffer is not part of the arena, so it is freed on each way out. */
    if (!good) {
        buf_fini(&buf.text);
        return false;
    }
    return jbuf_take(render, &buf, out);
}

/* items: the pairs of a dict; none for an undefined value. */
static bool jinja_filter_items(struct jrender *render, struct jval in, const struct jargs *args,
                               struct jval *out)
{
    struct jmethod method = {.self = in, .name = "items"};

    /* An undefined value can be iterated and has no items, so a loop over x|items needs no test
     * of x. */
    if (in.kind == JV_UNDEFINED)
        return jinja_filter_list(render, in, args, out);
    if (in.kind != JV_DICT)
        return jinja_raise(render, "Can only get item pairs from a mapping.");
    return jinja_call_method(render, &method, args, out);
}

/* Change the case of any value's text. */
static bool jinja_change_case(struct jrender *render, struct jval in, const char *how,
                              struct jval *out)
{
    if (!jv_to_text(render, in, &in) || !jtext_case(render, in, how, out))
        return false;
    out->safe = in.safe && strcmp(how, "jinja") != 0; /* the title filter assembles a new string */
    return true;
}

static bool jinja_filter_upper(struct jrender *render, struct jval in, const struct jargs *args,
                               struct jval *out)
{
    (void)args;
    return jinja_change_case(render, in, "upper", out);
}

static bool jinja_filter_lower(struct jrender *render, struct jval in, const struct jargs *args,
                               struct jval *out)
{
    (void)args;
    return jinja_change_case(render, in, "lower", out);
}

static bool jinja_filter_title(struct jrender *render, struct jval in, const struct jargs *args,
                               struct jval *out)
{
    (void)args;
    return jinja_change_case(render, in, "jinja", out);
}

static bool jinja_filter_capital(struct jrender *render, struct jval in, const struct jargs *args,
                                 struct jval *out)
{
    (void)args;
    return jinja_change_case(render, in, "capitalize", out);
}

/* first and last: an empty sequence gives an undefined value, not an error. */
static bool jinja_filter_first(struct jrender *render, struct jval in, const struct jargs *args,
                               struct jval *out)
{
    struct jlist *list;

    (void)args;
    if (!jv_iterate(render, in, &list))
        return false;
    if (list->n > 0)
        *out = list->items[0];
    else
        *out = jv_undefined("No first item, sequence was empty.", 34);
    return true;
}

static bool jinja_filter_last(struct jrender *render, struct jval in, const struct jargs *args,
                              struct jval *out)
{
    struct jlist *list;

    (void)args;
    if (!jv_iterate(render, in, &list))
        return false;
    if (list->n > 0)
        *out = list->items[list->n - 1];
    else
        *out = jv_undefined("No last item, sequence was empty.", 33);
    return true;
}

/* default(default_value, boolean): for undefined values; with boolean for all false values. */
static bool jinja_filter_default(struct jrender *render, struct jval in, const struct jargs *args,
                                 struct jval *out)
{
    bool falsy = jv_truth(jinja_arg_or(args, 1, "boolean", jv_bool(false)));

    (void)render;
    *out = in;
    /* None and "" are values: only with boolean=true do they get the default. */
    if (in.kind == JV_UNDEFINED || (falsy && !jv_truth(in)))
        *out = jinja_arg_or(args, 0, "default_value", jv_text("", 0));
    return true;
}

/* replace(old, new, count) */
static bool jinja_filter_replace(struct jrender *render, struct jval in, const struct jargs *args,
                                 struct jval *out)
{
    struct jval from;
    struct jval to;
    struct jval count = jinja_arg_or(args, 2, "count", jv_int(-1));

    if (!jinja_arg(args, 0, "old", &from) || !jinja_arg(args, 1, "new", &to))
        return jinja_raise(render, "replace needs two strings");
    /* A count below 0 means all occurrences. Other kinds than texts are converted, so
     * 10|replace(0, "x") works as in Jinja. */
    return jv_to_text(render, in, &in) && jv_to_text(render, from, &from) &&
           jv_to_text(render, to, &to) &&
           jtext_replace(render, in, from, to, count.kind == JV_INT ? count.whole : -1, out);
}

/* indent(width, first, blank): indent all lines but the first; empty ones only with blank. width
 * may be a text. */
static bool jinja_filter_indent(struct jrender *render, struct jval in, const struct jargs *args,
                                struct jval *out)
{
    struct jval width = jinja_arg_or(args, 0, "width", jv_int(4));
    bool first = jv_truth(jinja_arg_or(args, 1, "first", jv_bool(false)));
    bool blank = jv_truth(jinja_arg_or(args, 2, "blank", jv_bool(false)));
    struct jbuf buf = {.text = {.limit = JINJA_OUTPUT_MAX}};
    struct jval unit = width;
    struct jval lines;
    size_t i;

    if (in.kind != JV_TEXT)
        return jinja_raise(render, "indent needs a text");
    /* A number is that many spaces; a text, such as a tab, is the indent itself. */
    if (width.kind == JV_INT && !jinja_binary(render, "*", jv_text(" ", 1), width, &unit))
        return false;
    if (unit.kind != JV_TEXT)
        return jinja_raise(render, "indent needs a width");
    /* Jinja appends a line end, so that text after the last line end is a line, too. */
    if (!jv_concat(render, in, jv_text("\n", 1), &lines) ||
        !jtext_lines(render, lines, false, &lines))
        return false;
    for (i = 0; i < lines.list->n; i++) {
        struct jval line = lines.list->items[i];

        if (i > 0)
            jbuf_add(render, &buf, jv_own("\n", 1));
        /* The first line continues the one that the filter is used in, so it is indented only on
         * demand. */
        if (i == 0 ? first : blank || line.len > 0)
            jbuf_add(render, &buf, unit);
        jbuf_add(render, &buf, line);
    }
    if (!jbuf_take(render, &buf, out))
        return false;
    out->safe = in.safe;
    return true;
}

/* int(default): like Python's int(), and real numbers in text are truncated. The default is for
 * text that is no number. */
static bool jinja_filter_int(struct jrender *render, struct jval in, const struct jargs *args,
                             struct jval *out)
{
    struct jval preset = jinja_arg_or(args, 0, "default", jv_int(0));
    char text[64];
    char *end;

    (void)render;
    *out = preset;
    if (in.kind == JV_INT || in.kind == JV_BOOL) {
        *out = jv_int(jv_int_of(in));
    } else if (in.kind == JV_BIG) {
        *out = in;
    } else if (in.kind == JV_REAL && fabs(in.real) < 9e18) {
        *out = jv_int((int64_t)in.real);
    } else if (in.kind == JV_TEXT && in.len < sizeof text) {
        /* White space around the number is accepted, as Python does: int(" 7 ") is 7. */
        size_t from = jtext_strip_left(in.text, in.len, NULL);
        size_t n = jtext_strip_right(in.text + from, in.len - from, NULL);

        memcpy(text, in.text + from, n);
        text[n] = '\0';
        errno = 0;
        *out = jv_int(strtoll(text, &end, 10));
        /* strtoll() stopped early. The text may be a real number; strspn() excludes the names and
         * hexadecimal forms that strtod() also reads. */
        if (n > 0 && *end != '\0' && strspn(text, "+-0123456789.eE") == n) {
            double real = strtod(text, &end);

            if (fabs(real) < 9e18)
                *out = jv_int((int64_t)real);
            else
                *out = preset;
        }
        /* Empty text, text after the number, or a number that does not fit: the default. */
        if (n == 0 || *end != '\0' || errno != 0)
            *out = preset;
    }
    return true;
}

/* float(default) */
static bool jinja_filter_float(struct jrender *render, struct jval in, const struct jargs *args,
                               struct jval *out)
{
    char text[64];
    char *end = text;

    (void)render;
    *out = jinja_arg_or(args, 0, "default", jv_real(0));
    /* A text must be a number as a whole, up to its NUL; otherwise the default is returned, and
     * no error is raised. */
    if (jv_is_number(in)) {
        *out = jv_real(jv_real_of(in));
    } else if (in.kind == JV_TEXT && in.len > 0 && in.len < sizeof text) {
        double real;

        memcpy(text, in.text, in.len);
        text[in.len] = '\0';
        real = strtod(text, &end);
        if (end != text && *end == '\0')
            *out = jv_real(real);
    }
    return true;
}

static bool jinja_filter_abs(struct jrender *render, struct jval in, const struct jargs *args,
                             struct jval *out)
{
    (void)args;
    if (!jv_is_number(in))
        return jinja_raise(render, "bad operand type for abs(): '%s'", jv_type_name(in));
    /* The least whole number has no positive counterpart in 64 bits, as for the unary minus. */
    if (in.kind == JV_REAL)
        *out = jv_real(fabs(in.real));
    else if (jv_int_of(in) == INT64_MIN)
        return jinja_raise(render, "a whole number is out of range");
    else
        *out = jv_int(jv_int_of(in) < 0 ? -jv_int_of(in) : jv_int_of(in));
    return true;
}

/* round(precision). printf() rounds exact decimal values correctly, halves to even, as Python. */
static bool jinja_filter_round(struct jrender *render, struct jval in, const struct jargs *args,
                               struct jval *out)
{
    struct jval digits = jinja_arg_or(args, 0, "precision", jv_int(0));
    char text[400];

    if (!jv_is_number(in) || digits.kind != JV_INT || digits.whole < 0 || digits.whole > 30)
        return jinja_raise(render, "round needs a number and a precision of 0 .. 30");
    /* The largest double has 309 digits before the point, so the text has room for it and 30
     * digits more. */
    (void)snprintf(text, sizeof text, "%.*f", (int)digits.whole, jv_real_of(in));
    *out = jv_real(strtod(text, NULL));
    return true;
}

/* sum(attribute, start) */
static bool jinja_filter_sum(struct jrender *render, struct jval in, const struct jargs *args,
                             struct jval *out)
{
    struct jval attribute = jinja_arg_or(args, 0, "attribute", jv_none());
    struct jlist *list;
    size_t i;

    *out = jinja_arg_or(args, 1, "start", jv_int(0));
    if (!jv_iterate(render, in, &list))
        return false;
    /* The items are added with the operator + of templates, so a list of texts or lists works
     * too, if `start` is of its kind. */
    for (i = 0; i < list->n; i++) {
        struct jval item = list->items[i];

        if (attribute.kind != JV_NONE && !jinja_attr_path(render, item, attribute, &item))
            return false;
        if (!jinja_binary(render, "+", *out, item, out))
            return false;
    }
    return true;
}

/* reverse: of a text by characters, else of the items. */
static bool jinja_filter_reverse(struct jrender *render, struct jval in, const struct jargs *args,
                                 struct jval *out)
{
    struct jlist *from;
    struct jlist *list;
    struct buf buf = {0};
    size_t i;

    (void)args;
    if (!jv_iterate(render, in, &from) || (list = jlist_new(render, from->n)) == NULL)
        return false;
    /* jv_iterate() has split a text into its characters, so UTF-8 sequences stay intact. */
    for (i = from->n; i > 0; i--) {
        if (in.kind == JV_TEXT)
            buf_add(&buf, from->items[i - 1].text, from->items[i - 1].len);
        else if (!jlist_add(render, list, from->items[i - 1]))
            return false;
    }
    *out = jv_list(list);
    if (in.kind != JV_TEXT)
        return true;
    if (!jv_take_buf(render, &buf, out))
        return false;
    /* Escapes of markup such as &lt; are turned around as well; Jinja does it too. */
    out->safe = in.safe;
    return true;
}

/* An item and the key it is sorted by. */
struct sort_item {
    struct jval key;
    struct jval value;
};

/* Merge sort, bottom up: it is stable, and stops at the first pair that cannot be compared. spare
 * has room for n items. */
static bool jinja_merge_sort(struct jrender *render, struct sort_item *items,
                             struct sort_item *spare, size_t n, bool reverse)
{
    size_t width;

    must(n == 0 || (items != NULL && spare != NULL));
    for (width = 1; width < n; width *= 2) {
        size_t from;

        for (from = 0; from < n; from += 2 * width) {
            size_t mid = from + width < n ? from + width : n;
            size_t end = from + 2 * width < n ? from + 2 * width : n;
            size_t a = from;
            size_t b = mid;
            size_t k;

            /* Take the smaller head; on equality the left one, which keeps the sort stable. */
            for (k = from; k < end; k++) {
                int order = 0;

                if (a < mid && b < end && !jv_compare(render, items[a].key, items[b].key, &order))
                    return false;
                if (reverse)
                    order = -order;
                if (a < mid && (b >= end || order <= 0))
                    spare[k] = items[a++];
                else
                    spare[k] = items[b++];
            }
        }
        memcpy(items, spare, n * sizeof *items);
        if (!jinja_step(render, n))
            return false;
    }
    return true;
}

/* Sort by each item, or by an attribute of it. Texts are compared in lower case unless
 * case_sensitive. */
static bool jinja_sort_list(struct jrender *render, const struct jlist *list, struct jval attribute,
                            bool case_sensitive, bool reverse, struct jval *out)
{
    /* One allocation holds the items and the room that a merge sort needs. */
    struct sort_item *items = arena_alloc(render->arena, (list->n + 1) * sizeof *items * 2);
    struct jlist *sorted = jlist_new(render, list->n);
    size_t i;

    if (items == NULL || sorted == NULL)
        return jinja_no_memory(render);
    /* Keys are computed once per item and not in each comparison. */
    for (i = 0; i < list->n; i++) {
        items[i] = (struct sort_item){list->items[i], list->items[i]};
        if (attribute.kind != JV_NONE &&
            !jinja_attr_path(render, list->items[i], attribute, &items[i].key))
            return false;
        if (!case_sensitive && items[i].key.kind == JV_TEXT &&
            !jtext_case(render, items[i].key, "lower", &items[i].key))
            return false;
    }
    /* The sort is stable, as Python's: items with equal keys keep their order. */
    if (!jinja_merge_sort(render, items, items + list->n, list->n, reverse))
        return false;
    for (i = 0; i < list->n; i++)
        if (!jlist_add(render, sorted, items[i].value))
            return false;
    *out = jv_list(sorted);
    return true;
}

/* sort(reverse, case_sensitive, attribute) */
static bool jinja_filter_sort(struct jrender *render, struct jval in, const struct jargs *args,
                              struct jval *out)
{
    bool reverse = jv_truth(jinja_arg_or(args, 0, "reverse", jv_bool(false)));
    bool exact = jv_truth(jinja_arg_or(args, 1, "case_sensitive", jv_bool(false)));
    struct jval attribute = jinja_arg_or(args, 2, "attribute", jv_none());
    struct jlist *list;

    return jv_iterate(render, in, &list) &&
           jinja_sort_list(render, list, attribute, exact, reverse, out);
}

/* dictsort(case_sensitive, by, reverse): the pairs of a dict, sorted by "key" or "value". */
static bool jinja_filter_dictsort(struct jrender *render, struct jval in, const struct jargs *args,
                                  struct jval *out)
{
    bool exact = jv_truth(jinja_arg_or(args, 0, "case_sensitive", jv_bool(false)));
    struct jval by = jinja_arg_or(args, 1, "by", jv_text("key", 3));
    bool reverse = jv_truth(jinja_arg_or(args, 2, "reverse", jv_bool(false)));
    struct jargs none = {0};
    struct jval items;

    if (!jinja_filter_items(render, in, &none, &items))
        return false;
    /* The pairs are tuples (key, value), so the sort is by an attribute again: the item 0 or 1. */
    return jinja_sort_list(render, items.list, jv_int(jv_is(by, "value")), exact, reverse, out);
}

/* unique(case_sensitive, attribute): the first of equal items. */
static bool jinja_filter_unique(struct jrender *render, struct jval in, const struct jargs *args,
                                struct jval *out)
{
    bool exact = jv_truth(jinja_arg_or(args, 0, "case_sensitive", jv_bool(false)));
    struct jval attribute = jinja_arg_or(args, 1, "attribute", jv_none());
    struct jdict *seen = jdict_new(render, 0);
    struct jlist *list;
    struct jlist *kept = jlist_new(render, 0);
    size_t i;

    if (seen == NULL || kept == NULL || !jv_iterate(render, in, &list))
        return false;
    for (i = 0; i < list->n; i++) {
        struct jval key = list->items[i];

        if (attribute.kind != JV_NONE && !jinja_attr_path(render, key, attribute, &key))
            return false;
        /* As in Jinja, texts are compared without regard to case unless case_sensitive is set. */
        if (!exact && key.kind == JV_TEXT && !jtext_case(render, key, "lower", &key))
            return false;
        /* A dict serves as the set of keys that have been seen. The item that is kept is the
         * original one, not the key. */
        if (jdict_get(seen, key) != NULL)
            continue;
        if (!jdict_set(render, seen, key, jv_none()) || !jlist_add(render, kept, list->items[i]))
            return false;
    }
    *out = jv_list(kept);
    return true;
}

/* min and max: sort, and take the first. sign is -1 for max. */
static bool jinja_filter_extreme(struct jrender *render, struct jval in, const struct jargs *args,
                                 int sign, struct jval *out)
{
    struct jval attribute = jinja_arg_or(args, 1, "attribute", jv_none());
    struct jval sorted;
    struct jlist *list;

    if (!jv_iterate(render, in, &list) ||
        !jinja_sort_list(render, list, attribute, false, sign < 0, &sorted))
        return false;
    /* Stability matters here: of several equal items the first is returned, as in Jinja. */
    if (list->n > 0)
        *out = sorted.list->items[0];
    else
        *out = jv_undefined("No aggregated item, sequence was empty.", 39);
    return true;
}

static bool jinja_filter_min(struct jrender *render, struct jval in, const struct jargs *args,
                             struct jval *out)
{
    return jinja_filter_extreme(render, in, args, 1, out);
}

static bool jinja_filter_max(struct jrender *render, struct jval in, const struct jargs *args,
                             struct jval *out)
{
    return jinja_filter_extreme(render, in, args, -1, out);
}

/* map(filter, args...) or map(attribute=..., default=...) */
static bool jinja_filter_map(struct jrender *render, struct jval in, const struct jargs *args,
                             struct jval *out)
{
    struct jval attribute = jv_none();
    struct jval preset = jinja_arg_or(args, SIZE_MAX, "default", jv_undefined("default", 7));
    /* SIZE_MAX is no position: these two can only be given by name. */
    bool by_attr = args->n_placed == 0 && jinja_arg(args, SIZE_MAX, "attribute", &attribute);
    struct jargs rest = jinja_rest_of(args, 1);
    const char *name = NULL;
    struct jlist *list;
    struct jlist *mapped = jlist_new(render, 0);
    size_t i;

    if (mapped == NULL)
        return false;
    list = mapped; /* an empty value or None has no items */
    if (jv_truth(in) && !jv_iterate(render, in, &list))
        return false;
    if (!by_attr && (args->n_placed == 0 || !jinja_text_name(render, args->values[0], &name)))
        return jinja_raise(render, "map requires a filter argument");
    for (i = 0; i < list->n; i++) {
        struct jval value = list->items[i];

        /* `rest` are the arguments after the filter's name: map("replace", "a", "b") calls
         * replace("a", "b") for each item. */
        if (by_attr ? !jinja_attr_path(render, value, attribute, &value)
                    : !jinja_filter(render, name, value, &rest, &value))
            return false;
        /* The default replaces members that are missing, and not those that are false. */
        if (by_attr && value.kind == JV_UNDEFINED && preset.kind != JV_UNDEFINED)
            value = preset;
        if (!jlist_add(render, mapped, value))
            return false;
    }
    *out = jv_list(mapped);
    return true;
}

/* select(test, args...), reject, and with by_attr selectattr(attribute, test, args...), rejectattr.
 * Without a test the value's truth decides. */
static bool jinja_filter_choose(struct jrender *render, struct jval in, const struct jargs *args,
                                bool keep, bool by_attr, struct jval *out)
{
    /* With by_attr the test's name comes after that of the attribute: selectattr("role",
     * "equalto", "user"). */
    size_t at = by_attr ? 1 : 0;
    struct jargs rest = jinja_rest_of(args, at + 1);
    const char *name = NULL;
    struct jlist *list;
    struct jlist *kept = jlist_new(render, 0);
    size_t i;

    if (kept == NULL)
        return false;
    list = kept; /* an empty value or None has no items */
    if (jv_truth(in) && !jv_iterate(render, in, &list))
        return false;
    if (by_attr && args->n_placed == 0)
        return jinja_raise(render, "Missing parameter for attribute name");
    if (args->n_placed > at && !jinja_text_name(render, args->values[at], &name))
        return false;
    for (i = 0; i < list->n; i++) {
        struct jval value = list->items[i];
        bool holds;

        if (by_attr && !jinja_attr_path(render, value, args->values[0], &value))
            return false;
        /* Without a test: selectattr("tool_calls") keeps messages whose tool_calls is not empty. */
        holds = jv_truth(value);
        if (name != NULL && !jinja_test(render, name, value, &rest, &holds))
            return false;
        /* The item itself is kept, and not the attribute that was tested. */
        if (holds == keep && !jlist_add(render, kept, list->items[i]))
            return false;
    }
    *out = jv_list(kept);
    return true;
}

static bool jinja_filter_select(struct jrender *render, struct jval in, const struct jargs *args,
                                struct jval *out)
{
    return jinja_filter_choose(render, in, args, true, false, out);
}

static bool jinja_filter_reject(struct jrender *render, struct jval in, const struct jargs *args,
                                struct jval *out)
{
    return jinja_filter_choose(render, in, args, false, false, out);
}

static bool jinja_filter_selectattr(struct jrender *render, struct jval in,
                                    const struct jargs *args, struct jval *out)
{
    return jinja_filter_choose(render, in, args, true, true, out);
}

static bool jinja_filter_rejectattr(struct jrender *render, struct jval in,
                                    const struct jargs *args, struct jval *out)
{
    return jinja_filter_choose(render, in, args, false, true, out);
}

/* attr(name): an attribute, never an item. */
static bool jinja_filter_attr(struct jrender *render, struct jval in, const struct jargs *args,
                              struct jval *out)
{
    struct jval name;

    if (!jinja_arg(args, 0, "name", &name) || name.kind != JV_TEXT)
        return jinja_raise(render, "attr needs a name");
    return jinja_get_attr(render, in, name.text, name.len, false, out);
}

static bool jinja_filter_wordcount(struct jrender *render, struct jval in, const struct jargs *args,
                                   struct jval *out)
{
    struct jmethod method = {.name = "split"};
    struct jargs none = {0};

    (void)args;
    /* Words are the items of split() without arguments, so runs of white space count once. */
    if (!jv_to_text(render, in, &method.self) || !jinja_call_method(render, &method, &none, out))
        return false;
    *out = jv_int((int64_t)out->list->n);
    return true;
}

/* safe, escape and forceescape make markup; see jtext_escape(). */
static bool jinja_filter_safe(struct jrender *render, struct jval in, const struct jargs *args,
                              struct jval *out)
{
    (void)args;
    if (!jv_to_text(render, in, out))
        return false;
    out->safe = true;
    return true;
}

static bool jinja_filter_escape(struct jrender *render, struct jval in, const struct jargs *args,
                                struct jval *out)
{
    (void)args;
    return jtext_escape(render, in, out);
}

static bool jinja_filter_forceescape(struct jrender *render, struct jval in,
                                     const struct jargs *args, struct jval *out)
{
    (void)args;
    in.safe = false;
    return jtext_escape(render, in, out);
}

/* Names of filters; several are aliases. */
static const struct {
    const char *name;
    bool (*run)(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out);
} filters[] = {
    {"tojson", jinja_filter_tojson},
    {"length", jinja_filter_length},
    {"count", jinja_filter_length},
    {"string", jinja_filter_string},
    {"safe", jinja_filter_safe},
    {"trim", jinja_filter_trim},
    {"list", jinja_filter_list},
    {"join", jinja_filter_join},
    {"items", jinja_filter_items},
    {"upper", jinja_filter_upper},
    {"lower", jinja_filter_lower},
    {"title", jinja_filter_title},
    {"capitalize", jinja_filter_capital},
    {"first", jinja_filter_first},
    {"last", jinja_filter_last},
    {"default", jinja_filter_default},
    {"d", jinja_filter_default},
    {"replace", jinja_filter_replace},
    {"indent", jinja_filter_indent},
    {"int", jinja_filter_int},
    {"float", jinja_filter_float},
    {"abs", jinja_filter_abs},
    {"round", jinja_filter_round},
    {"sum", jinja_filter_sum},
    {"reverse", jinja_filter_reverse},
    {"sort", jinja_filter_sort},
    {"dictsort", jinja_filter_dictsort},
    {"unique", jinja_filter_unique},
    {"min", jinja_filter_min},
    {"max", jinja_filter_max},
    {"map", jinja_filter_map},
    {"select", jinja_filter_select},
    {"reject", jinja_filter_reject},
    {"selectattr", jinja_filter_selectattr},
    {"rejectattr", jinja_filter_rejectattr},
    {"attr", jinja_filter_attr},
    {"wordcount", jinja_filter_wordcount},
    {"escape", jinja_filter_escape},
    {"e", jinja_filter_escape},
    {"forceescape", jinja_filter_forceescape},
    {"identity", jinja_filter_same},
};

/* Filters such as map call other filters, hence the count of depth. */
bool jinja_filter(struct jrender *render, const char *name, struct jval in,
                  const struct jargs *args, struct jval *out)
{
    size_t i;
    bool good;

    must(name != NULL && args != NULL);
    if (!jinja_step(render, 1))
        return false;
    if (render->depth >= JINJA_DEPTH_MAX * 20)
        return jinja_fault_set(&render->fault, ERR_LIMIT, "line %d: filters nest too deep",
                               render->line);
    /* The names are few and templates short, so the table is searched in its order. */
    for (i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (strcmp(filters[i].name, name) != 0)
            continue;
        /* A filter that calls filters is a recursion: map("map", "map", ...) must not exhaust
         * the stack. */
        render->depth++;
        good = filters[i].run(render, in, args, out);
        render->depth--;
        return good;
    }
    return jinja_raise(render, "No filter named '%.60s'.", name);
}
/* Python writes {"a": 1, "b": 2} without an indent. With one, each item is on a line of its
     * own and the comma has no space after it. */
