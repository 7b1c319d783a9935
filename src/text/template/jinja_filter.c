/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters and tests: two tables of names. Each takes the value and evaluated arguments. */
#include "text/template/jinja_parts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/unicode.h"

/* --- helpers of several ------------------------------------------------------------------------*/

static bool length_of(struct jrender *r, struct jval v, struct jval *out)
{
    if (v.kind == JV_TEXT)
        *out = jv_int((int64_t)jtext_count(v.text, v.len));
    else if (v.kind == JV_LIST || v.kind == JV_TUPLE)
        *out = jv_int((int64_t)v.list->n);
    else if (v.kind == JV_DICT)
        *out = jv_int((int64_t)v.dict->n);
    else if (v.kind == JV_UNDEFINED)
        *out = jv_int(0);
    else
        return jraise(r, "object of type '%s' has no len()", jv_type_name(v));
    return true;
}

/* "a.b.0" of a value, as map(attribute=...) and its kin read it. */
static bool attr_path(struct jrender *r, struct jval v, struct jval path, struct jval *out)
{
    size_t at = 0;

    *out = v;
    if (path.kind == JV_INT)
        return jitem(r, v, path, out);
    if (path.kind != JV_TEXT)
        return jraise(r, "an attribute's name is expected");
    while (at <= path.len) {
        const char *dot = memchr(path.text + at, '.', path.len - at);
        size_t end = dot == NULL ? path.len : (size_t)(dot - path.text);
        char *name = arena_strndup(r->arena, path.text + at, end - at);
        struct jval key = jv_text(name, end - at);

        if (name == NULL)
            return jno_memory(r);
        if (end > at && strspn(name, "0123456789") == end - at)
            key = jv_int(strtoll(name, NULL, 10));
        if (!jitem(r, *out, key, out))
            return false;
        at = end + 1;
    }
    return true;
}

/* Arguments from `skip` on, for a filter or test called by another. */
static struct jargs rest_of(const struct jargs *args, size_t skip)
{
    struct jargs rest = *args;

    skip = skip < args->n_placed ? skip : args->n_placed;
    if (skip == 0)
        return rest;
    rest.values += skip;
    rest.names += skip;
    rest.n -= skip;
    rest.n_placed -= skip;
    return rest;
}

static bool text_name(struct jrender *r, struct jval v, const char **name)
{
    if (v.kind != JV_TEXT)
        return jraise(r, "a filter's or test's name is expected");
    *name = arena_strndup(r->arena, v.text, v.len);
    return *name != NULL || jno_memory(r);
}

/* --- filters -----------------------------------------------------------------------------------*/

static bool f_tojson(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jdump how = {.indent = -1, .item = ", ", .key = ": "};
    struct jval ascii = jarg_or(args, 0, "ensure_ascii", jv_bool(false));
    struct jval indent = jarg_or(args, 1, "indent", jv_none());
    struct jval separators = jarg_or(args, 2, "separators", jv_none());
    struct jval sort = jarg_or(args, 3, "sort_keys", jv_bool(false));
    struct buf b = {0};

    how.ascii = jv_truth(ascii);
    how.sort_keys = jv_truth(sort);
    if (indent.kind == JV_INT && indent.whole >= 0 && indent.whole <= 64) {
        how.indent = (int)indent.whole;
        how.item = ",";
    }
    if ((separators.kind == JV_TUPLE || separators.kind == JV_LIST) && separators.list->n == 2 &&
        (!text_name(r, separators.list->items[0], &how.item) ||
         !text_name(r, separators.list->items[1], &how.key)))
        return false;
    if (!jv_json(r, &b, in, &how, 0)) {
        buf_fini(&b);
        return false;
    }
    return jv_take_buf(r, &b, out);
}

static bool f_length(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    (void)args;
    return length_of(r, in, out);
}

static bool f_string(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    (void)args;
    return jv_to_text(r, in, out);
}

static bool f_same(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    (void)r;
    (void)args;
    *out = in;
    return true;
}

static bool f_trim(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jval chars = jarg_or(args, 0, "chars", jv_none());
    const struct jval *set = chars.kind == JV_TEXT ? &chars : NULL;
    size_t from;

    if (!jv_to_text(r, in, &in))
        return false;
    from = jtext_strip_left(in.text, in.len, set);
    *out = jv_part(in, from, jtext_strip_right(in.text + from, in.len - from, set));
    out->safe = in.safe;
    return true;
}

static bool f_list(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jlist *l;

    (void)args;
    if (!jv_iterate(r, in, &l))
        return false;
    *out = jv_list(l);
    return true;
}

static bool f_join(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jval between = jarg_or(args, 0, "d", jv_text("", 0));
    struct jval attribute = jarg_or(args, 1, "attribute", jv_none());
    struct jbuf b = {.text = {.limit = JINJA_OUTPUT_MAX}};
    struct jlist *l;
    size_t i;
    bool good = jv_iterate(r, in, &l) && jv_to_text(r, between, &between);

    for (i = 0; good && i < l->n; i++) {
        struct jval item = l->items[i];

        if (attribute.kind != JV_NONE)
            good = attr_path(r, item, attribute, &item);
        if (i > 0)
            jbuf_add(r, &b, between);
        good = good && jv_str(r, &b, item);
    }
    if (!good) {
        buf_fini(&b.text);
        return false;
    }
    return jbuf_take(r, &b, out);
}

static bool f_items(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jmethod m = {.self = in, .name = "items"};

    if (in.kind == JV_UNDEFINED)
        return f_list(r, in, args, out);
    if (in.kind != JV_DICT)
        return jraise(r, "Can only get item pairs from a mapping.");
    return jmethod_call(r, &m, args, out);
}

static bool change_case(struct jrender *r, struct jval in, const char *how, struct jval *out)
{
    if (!jv_to_text(r, in, &in) || !jtext_case(r, in, how, out))
        return false;
    out->safe = in.safe && strcmp(how, "jinja") != 0; /* that one joins pieces */
    return true;
}

static bool f_upper(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    (void)args;
    return change_case(r, in, "upper", out);
}

static bool f_lower(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    (void)args;
    return change_case(r, in, "lower", out);
}

static bool f_title(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    (void)args;
    return change_case(r, in, "jinja", out);
}

static bool f_capital(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    (void)args;
    return change_case(r, in, "capitalize", out);
}

static bool f_first(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jlist *l;

    (void)args;
    if (!jv_iterate(r, in, &l))
        return false;
    *out = l->n > 0 ? l->items[0] : jv_undefined("No first item, sequence was empty.", 34);
    return true;
}

static bool f_last(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jlist *l;

    (void)args;
    if (!jv_iterate(r, in, &l))
        return false;
    *out = l->n > 0 ? l->items[l->n - 1] : jv_undefined("No last item, sequence was empty.", 33);
    return true;
}

static bool f_default(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    bool falsy = jv_truth(jarg_or(args, 1, "boolean", jv_bool(false)));

    (void)r;
    *out = in;
    if (in.kind == JV_UNDEFINED || (falsy && !jv_truth(in)))
        *out = jarg_or(args, 0, "default_value", jv_text("", 0));
    return true;
}

static bool f_replace(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jval from;
    struct jval to;
    struct jval count = jarg_or(args, 2, "count", jv_int(-1));

    if (!jarg(args, 0, "old", &from) || !jarg(args, 1, "new", &to))
        return jraise(r, "replace needs two strings");
    return jv_to_text(r, in, &in) && jv_to_text(r, from, &from) && jv_to_text(r, to, &to) &&
           jtext_replace(r, in, from, to, count.kind == JV_INT ? count.whole : -1, out);
}

static bool f_indent(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jval width = jarg_or(args, 0, "width", jv_int(4));
    bool first = jv_truth(jarg_or(args, 1, "first", jv_bool(false)));
    bool blank = jv_truth(jarg_or(args, 2, "blank", jv_bool(false)));
    struct jbuf b = {.text = {.limit = JINJA_OUTPUT_MAX}};
    struct jval unit = width;
    struct jval lines;
    size_t i;

    if (in.kind != JV_TEXT)
        return jraise(r, "indent needs a text");
    if (width.kind == JV_INT && !jbinary(r, "*", jv_text(" ", 1), width, &unit))
        return false;
    if (unit.kind != JV_TEXT)
        return jraise(r, "indent needs a width");
    /* A line end behind the text makes a last line of what follows its last line end. */
    if (!jv_concat(r, in, jv_text("\n", 1), &lines) || !jtext_lines(r, lines, false, &lines))
        return false;
    for (i = 0; i < lines.list->n; i++) {
        struct jval line = lines.list->items[i];

        if (i > 0)
            jbuf_add(r, &b, jv_own("\n", 1));
        if (i == 0 ? first : blank || line.len > 0)
            jbuf_add(r, &b, unit);
        jbuf_add(r, &b, line);
    }
    if (!jbuf_take(r, &b, out))
        return false;
    out->safe = in.safe;
    return true;
}

static bool f_int(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jval preset = jarg_or(args, 0, "default", jv_int(0));
    char text[64];
    char *end;

    (void)r;
    *out = preset;
    if (in.kind == JV_INT || in.kind == JV_BOOL) {
        *out = jv_int(jv_int_of(in));
    } else if (in.kind == JV_BIG) {
        *out = in;
    } else if (in.kind == JV_REAL && fabs(in.real) < 9e18) {
        *out = jv_int((int64_t)in.real);
    } else if (in.kind == JV_TEXT && in.len < sizeof text) {
        size_t from = jtext_strip_left(in.text, in.len, NULL);
        size_t n = jtext_strip_right(in.text + from, in.len - from, NULL);

        memcpy(text, in.text + from, n);
        text[n] = '\0';
        errno = 0;
        *out = jv_int(strtoll(text, &end, 10));
        if (n > 0 && *end != '\0' && strspn(text, "+-0123456789.eE") == n) {
            double real = strtod(text, &end);

            *out = fabs(real) < 9e18 ? jv_int((int64_t)real) : preset;
        }
        if (n == 0 || *end != '\0' || errno != 0)
            *out = preset;
    }
    return true;
}

static bool f_float(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    char text[64];
    char *end = text;

    (void)r;
    *out = jarg_or(args, 0, "default", jv_real(0));
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

static bool f_abs(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    (void)args;
    if (!jv_is_number(in))
        return jraise(r, "bad operand type for abs(): '%s'", jv_type_name(in));
    if (in.kind == JV_REAL)
        *out = jv_real(fabs(in.real));
    else if (jv_int_of(in) == INT64_MIN)
        return jraise(r, "a whole number is out of range");
    else
        *out = jv_int(jv_int_of(in) < 0 ? -jv_int_of(in) : jv_int_of(in));
    return true;
}

static bool f_round(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jval digits = jarg_or(args, 0, "precision", jv_int(0));
    char text[400];

    if (!jv_is_number(in) || digits.kind != JV_INT || digits.whole < 0 || digits.whole > 30)
        return jraise(r, "round needs a number and a precision of 0 .. 30");
    (void)snprintf(text, sizeof text, "%.*f", (int)digits.whole, jv_real_of(in));
    *out = jv_real(strtod(text, NULL));
    return true;
}

static bool f_sum(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jval attribute = jarg_or(args, 0, "attribute", jv_none());
    struct jlist *l;
    size_t i;

    *out = jarg_or(args, 1, "start", jv_int(0));
    if (!jv_iterate(r, in, &l))
        return false;
    for (i = 0; i < l->n; i++) {
        struct jval item = l->items[i];

        if (attribute.kind != JV_NONE && !attr_path(r, item, attribute, &item))
            return false;
        if (!jbinary(r, "+", *out, item, out))
            return false;
    }
    return true;
}

static bool f_reverse(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jlist *from;
    struct jlist *l;
    struct buf b = {0};
    size_t i;

    (void)args;
    if (!jv_iterate(r, in, &from) || (l = jlist_new(r, from->n)) == NULL)
        return false;
    for (i = from->n; i > 0; i--) {
        if (in.kind == JV_TEXT)
            buf_add(&b, from->items[i - 1].text, from->items[i - 1].len);
        else if (!jlist_add(r, l, from->items[i - 1]))
            return false;
    }
    *out = jv_list(l);
    if (in.kind != JV_TEXT)
        return true;
    if (!jv_take_buf(r, &b, out))
        return false;
    out->safe = in.safe;
    return true;
}

struct sort_item {
    struct jval key;
    struct jval value;
};

/* Merge sort: stable, and it stops at the first pair that cannot be compared. */
static bool merge_sort(struct jrender *r, struct sort_item *items, struct sort_item *spare,
                       size_t n, bool reverse)
{
    size_t width;

    for (width = 1; width < n; width *= 2) {
        size_t from;

        for (from = 0; from < n; from += 2 * width) {
            size_t mid = from + width < n ? from + width : n;
            size_t end = from + 2 * width < n ? from + 2 * width : n;
            size_t a = from;
            size_t b = mid;
            size_t k;

            for (k = from; k < end; k++) {
                int order = 0;

                if (a < mid && b < end && !jv_compare(r, items[a].key, items[b].key, &order))
                    return false;
                order = reverse ? -order : order;
                spare[k] = a < mid && (b >= end || order <= 0) ? items[a++] : items[b++];
            }
        }
        memcpy(items, spare, n * sizeof *items);
        if (!jstep(r, n))
            return false;
    }
    return true;
}

/* keys: what each item is sorted by; texts are compared in lower case unless case_sensitive. */
static bool sort_list(struct jrender *r, const struct jlist *l, struct jval attribute,
                      bool case_sensitive, bool reverse, struct jval *out)
{
    struct sort_item *items = arena_alloc(r->arena, (l->n + 1) * sizeof *items * 2);
    struct jlist *sorted = jlist_new(r, l->n);
    size_t i;

    if (items == NULL || sorted == NULL)
        return jno_memory(r);
    for (i = 0; i < l->n; i++) {
        items[i] = (struct sort_item){l->items[i], l->items[i]};
        if (attribute.kind != JV_NONE && !attr_path(r, l->items[i], attribute, &items[i].key))
            return false;
        if (!case_sensitive && items[i].key.kind == JV_TEXT &&
            !jtext_case(r, items[i].key, "lower", &items[i].key))
            return false;
    }
    if (!merge_sort(r, items, items + l->n, l->n, reverse))
        return false;
    for (i = 0; i < l->n; i++)
        if (!jlist_add(r, sorted, items[i].value))
            return false;
    *out = jv_list(sorted);
    return true;
}

static bool f_sort(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    bool reverse = jv_truth(jarg_or(args, 0, "reverse", jv_bool(false)));
    bool exact = jv_truth(jarg_or(args, 1, "case_sensitive", jv_bool(false)));
    struct jval attribute = jarg_or(args, 2, "attribute", jv_none());
    struct jlist *l;

    return jv_iterate(r, in, &l) && sort_list(r, l, attribute, exact, reverse, out);
}

static bool f_dictsort(struct jrender *r, struct jval in, const struct jargs *args,
                       struct jval *out)
{
    bool exact = jv_truth(jarg_or(args, 0, "case_sensitive", jv_bool(false)));
    struct jval by = jarg_or(args, 1, "by", jv_text("key", 3));
    bool reverse = jv_truth(jarg_or(args, 2, "reverse", jv_bool(false)));
    struct jargs none = {0};
    struct jval items;

    if (!f_items(r, in, &none, &items))
        return false;
    return sort_list(r, items.list, jv_int(jv_is(by, "value")), exact, reverse, out);
}

static bool f_unique(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    bool exact = jv_truth(jarg_or(args, 0, "case_sensitive", jv_bool(false)));
    struct jval attribute = jarg_or(args, 1, "attribute", jv_none());
    struct jdict *seen = jdict_new(r, 0);
    struct jlist *l;
    struct jlist *kept = jlist_new(r, 0);
    size_t i;

    if (seen == NULL || kept == NULL || !jv_iterate(r, in, &l))
        return false;
    for (i = 0; i < l->n; i++) {
        struct jval key = l->items[i];

        if (attribute.kind != JV_NONE && !attr_path(r, key, attribute, &key))
            return false;
        if (!exact && key.kind == JV_TEXT && !jtext_case(r, key, "lower", &key))
            return false;
        if (jdict_get(seen, key) != NULL)
            continue;
        if (!jdict_set(r, seen, key, jv_none()) || !jlist_add(r, kept, l->items[i]))
            return false;
    }
    *out = jv_list(kept);
    return true;
}

static bool extreme(struct jrender *r, struct jval in, const struct jargs *args, int sign,
                    struct jval *out)
{
    struct jval attribute = jarg_or(args, 1, "attribute", jv_none());
    struct jval sorted;
    struct jlist *l;

    if (!jv_iterate(r, in, &l) || !sort_list(r, l, attribute, false, sign < 0, &sorted))
        return false;
    *out = l->n > 0 ? sorted.list->items[0]
                    : jv_undefined("No aggregated item, sequence was empty.", 39);
    return true;
}

static bool f_min(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    return extreme(r, in, args, 1, out);
}

static bool f_max(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    return extreme(r, in, args, -1, out);
}

static bool f_map(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jval attribute = jv_none();
    struct jval preset = jarg_or(args, SIZE_MAX, "default", jv_undefined("default", 7));
    bool by_attr = args->n_placed == 0 && jarg(args, SIZE_MAX, "attribute", &attribute);
    struct jargs rest = rest_of(args, 1);
    const char *name = NULL;
    struct jlist *l;
    struct jlist *mapped = jlist_new(r, 0);
    size_t i;

    if (mapped == NULL)
        return false;
    l = mapped; /* what is empty or None has no items */
    if (jv_truth(in) && !jv_iterate(r, in, &l))
        return false;
    if (!by_attr && (args->n_placed == 0 || !text_name(r, args->values[0], &name)))
        return jraise(r, "map requires a filter argument");
    for (i = 0; i < l->n; i++) {
        struct jval v = l->items[i];

        if (by_attr ? !attr_path(r, v, attribute, &v) : !jfilter(r, name, v, &rest, &v))
            return false;
        if (by_attr && v.kind == JV_UNDEFINED && preset.kind != JV_UNDEFINED)
            v = preset;
        if (!jlist_add(r, mapped, v))
            return false;
    }
    *out = jv_list(mapped);
    return true;
}

/* select, reject and their attr forms. */
static bool choose(struct jrender *r, struct jval in, const struct jargs *args, bool keep,
                   bool by_attr, struct jval *out)
{
    size_t at = by_attr ? 1 : 0;
    struct jargs rest = rest_of(args, at + 1);
    const char *name = NULL;
    struct jlist *l;
    struct jlist *kept = jlist_new(r, 0);
    size_t i;

    if (kept == NULL)
        return false;
    l = kept; /* what is empty or None has no items */
    if (jv_truth(in) && !jv_iterate(r, in, &l))
        return false;
    if (by_attr && args->n_placed == 0)
        return jraise(r, "Missing parameter for attribute name");
    if (args->n_placed > at && !text_name(r, args->values[at], &name))
        return false;
    for (i = 0; i < l->n; i++) {
        struct jval v = l->items[i];
        bool holds;

        if (by_attr && !attr_path(r, v, args->values[0], &v))
            return false;
        holds = jv_truth(v);
        if (name != NULL && !jtest(r, name, v, &rest, &holds))
            return false;
        if (holds == keep && !jlist_add(r, kept, l->items[i]))
            return false;
    }
    *out = jv_list(kept);
    return true;
}

static bool f_select(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    return choose(r, in, args, true, false, out);
}

static bool f_reject(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    return choose(r, in, args, false, false, out);
}

static bool f_selectattr(struct jrender *r, struct jval in, const struct jargs *args,
                         struct jval *out)
{
    return choose(r, in, args, true, true, out);
}

static bool f_rejectattr(struct jrender *r, struct jval in, const struct jargs *args,
                         struct jval *out)
{
    return choose(r, in, args, false, true, out);
}

static bool f_attr(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    struct jval name;

    if (!jarg(args, 0, "name", &name) || name.kind != JV_TEXT)
        return jraise(r, "attr needs a name");
    return jattr(r, in, name.text, name.len, false, out);
}

static bool f_wordcount(struct jrender *r, struct jval in, const struct jargs *args,
                        struct jval *out)
{
    struct jmethod m = {.name = "split"};
    struct jargs none = {0};

    (void)args;
    if (!jv_to_text(r, in, &m.self) || !jmethod_call(r, &m, &none, out))
        return false;
    *out = jv_int((int64_t)out->list->n);
    return true;
}

static bool f_safe(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    (void)args;
    if (!jv_to_text(r, in, out))
        return false;
    out->safe = true;
    return true;
}

static bool f_escape(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out)
{
    (void)args;
    return jtext_escape(r, in, out);
}

static bool f_forceescape(struct jrender *r, struct jval in, const struct jargs *args,
                          struct jval *out)
{
    (void)args;
    in.safe = false;
    return jtext_escape(r, in, out);
}

static const struct {
    const char *name;
    bool (*run)(struct jrender *r, struct jval in, const struct jargs *args, struct jval *out);
} filters[] = {
    {"tojson", f_tojson},
    {"length", f_length},
    {"count", f_length},
    {"string", f_string},
    {"safe", f_safe},
    {"trim", f_trim},
    {"list", f_list},
    {"join", f_join},
    {"items", f_items},
    {"upper", f_upper},
    {"lower", f_lower},
    {"title", f_title},
    {"capitalize", f_capital},
    {"first", f_first},
    {"last", f_last},
    {"default", f_default},
    {"d", f_default},
    {"replace", f_replace},
    {"indent", f_indent},
    {"int", f_int},
    {"float", f_float},
    {"abs", f_abs},
    {"round", f_round},
    {"sum", f_sum},
    {"reverse", f_reverse},
    {"sort", f_sort},
    {"dictsort", f_dictsort},
    {"unique", f_unique},
    {"min", f_min},
    {"max", f_max},
    {"map", f_map},
    {"select", f_select},
    {"reject", f_reject},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
    {"attr", f_attr},
    {"wordcount", f_wordcount},
    {"escape", f_escape},
    {"e", f_escape},
    {"forceescape", f_forceescape},
    {"identity", f_same},
};

bool jfilter(struct jrender *r, const char *name, struct jval in, const struct jargs *args,
             struct jval *out)
{
    size_t i;
    bool good;

    if (!jstep(r, 1))
        return false;
    if (r->depth >= JINJA_DEPTH_MAX * 20)
        return jfault_set(&r->fault, ERR_LIMIT, "line %d: filters nest too deep", r->line);
    for (i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (strcmp(filters[i].name, name) != 0)
            continue;
        r->depth++;
        good = filters[i].run(r, in, args, out);
        r->depth--;
        return good;
    }
    return jraise(r, "No filter named '%.60s'.", name);
}

/* --- tests -------------------------------------------------------------------------------------*/

static bool is_upper_or_lower(struct jrender *r, struct jval in, const char *how, bool *out)
{
    struct jmethod m = {.name = how};
    struct jargs none = {0};
    struct jval v;

    if (!jv_to_text(r, in, &m.self) || !jmethod_call(r, &m, &none, &v))
        return false;
    *out = v.flag;
    return true;
}

static bool test_number(struct jrender *r, const char *name, struct jval in,
                        const struct jargs *args, bool *out)
{
    struct jval by = jarg_or(args, 0, "num", jv_int(2));

    if (in.kind != JV_INT && in.kind != JV_BOOL)
        return jraise(r, "test '%s' needs a whole number", name);
    if (by.kind != JV_INT || by.whole == 0)
        return jraise(r, "divisibleby needs a whole number other than zero");
    if (name[0] == 'd')
        *out = by.whole == -1 || jv_int_of(in) % by.whole == 0;
    else
        *out = (jv_int_of(in) % 2 != 0) == (name[0] == 'o');
    return true;
}

/* Tests that compare with an argument; false in *known when the name is none. */
static bool test_compare(struct jrender *r, const char *name, struct jval in,
                         const struct jargs *args, bool *out, bool *known)
{
    static const char *const names[][2] = {
        {"eq", "=="}, {"equalto", "=="}, {"==", "=="}, {"ne", "!="},         {"!=", "!="},
        {"lt", "<"},  {"lessthan", "<"}, {"le", "<="}, {"gt", ">"},          {"ge", ">="},
        {"<", "<"},   {"<=", "<="},      {">", ">"},   {"greaterthan", ">"}, {">=", ">="}};
    struct jval other = jarg_or(args, 0, "other", jv_none());
    size_t i;
    int order = 0;

    *known = false;
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *op = names[i][1];

        if (strcmp(names[i][0], name) != 0)
            continue;
        *known = true;
        if (op[0] == '=' || op[0] == '!') {
            *out = jv_equal(in, other) == (op[0] == '=');
            return true;
        }
        if (!jv_compare(r, in, other, &order))
            return false;
        *out = (op[0] == '<' ? order < 0 : order > 0) || (op[1] == '=' && order == 0);
        return true;
    }
    return true;
}

static bool is_sequence(struct jval v)
{
    return v.kind == JV_TEXT || v.kind == JV_LIST || v.kind == JV_TUPLE || v.kind == JV_DICT;
}

/* Tests of the value alone; false when the name is none of them. */
static bool test_kind(const char *name, struct jval in, bool *out)
{
    const struct {
        const char *name;
        bool holds;
    } kinds[] = {
        {"defined", in.kind != JV_UNDEFINED},
        {"undefined", in.kind == JV_UNDEFINED},
        {"none", in.kind == JV_NONE},
        {"string", in.kind == JV_TEXT},
        {"mapping", in.kind == JV_DICT},
        {"boolean", in.kind == JV_BOOL},
        {"true", in.kind == JV_BOOL && in.flag},
        {"false", in.kind == JV_BOOL && !in.flag},
        {"integer", in.kind == JV_INT || in.kind == JV_BIG},
        {"float", in.kind == JV_REAL},
        {"number", jv_is_number(in) || in.kind == JV_BIG},
        {"sequence", is_sequence(in) || in.kind == JV_UNDEFINED},
        {"iterable", is_sequence(in) || in.kind == JV_UNDEFINED || in.kind == JV_LOOP},
        {"callable", jv_is_callable(in)},
        {"escaped", in.kind == JV_TEXT && in.safe},
    };
    size_t i;

    for (i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0) {
            *out = kinds[i].holds;
            return true;
        }
    return false;
}

static bool test_in(struct jrender *r, struct jval in, struct jval of, bool *out)
{
    struct jlist *l;
    size_t i;

    *out = false;
    if (of.kind == JV_TEXT && in.kind == JV_TEXT) {
        *out = jtext_find(of.text, of.len, in.text, in.len) != NULL;
        return true;
    }
    if (!jv_iterate(r, of, &l))
        return false;
    for (i = 0; i < l->n && !*out; i++)
        *out = jv_equal(l->items[i], in);
    return jstep(r, 1 + i);
}

bool jtest(struct jrender *r, const char *name, struct jval in, const struct jargs *args, bool *out)
{
    struct jval other = jarg_or(args, 0, "other", jv_none());
    bool known;

    if (!jstep(r, 1))
        return false;
    if (test_kind(name, in, out))
        return true;
    if (!test_compare(r, name, in, args, out, &known) || known)
        return known && r->fault.rc == ERR_OK;
    if (strcmp(name, "odd") == 0 || strcmp(name, "even") == 0 || strcmp(name, "divisibleby") == 0)
        return test_number(r, name, in, args, out);
    if (strcmp(name, "upper") == 0)
        return is_upper_or_lower(r, in, "isupper", out);
    if (strcmp(name, "lower") == 0)
        return is_upper_or_lower(r, in, "islower", out);
    if (strcmp(name, "in") == 0)
        return test_in(r, in, other, out);
    if (strcmp(name, "sameas") == 0) {
        *out = in.kind == other.kind && jv_equal(in, other);
        return true;
    }
    return jraise(r, "No test named '%.60s'.", name);
}
