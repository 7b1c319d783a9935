/* SPDX-License-Identifier: Apache-2.0
 *
 * What expressions call: operators, attributes and items, methods of lists and dicts, and the
 * global functions of Hugging Face's environment. */
#include "text/template/jinja_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "text/unicode.h"

#define RANGE_MAX 100000 /* items of one range() */

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
    struct jbuf b = {.text = {.limit = JINJA_OUTPUT_MAX}};
    int64_t i;

    if (n > 0 && v.len > 0 && n > (int64_t)(JINJA_OUTPUT_MAX / v.len))
        return jfault_set(&r->fault, ERR_LIMIT, "the template makes too much text");
    for (i = 0; v.len > 0 && i < n; i++)
        jbuf_add(r, &b, v);
    return jbuf_take(r, &b, out);
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
    struct jbuf b = {.text = {.limit = JINJA_OUTPUT_MAX}};
    size_t used = 0;
    size_t i;
    bool good = true;

    for (i = 0; i < v.len && good; i++) {
        struct jval arg = args;

        if (v.text[i] != '%' || i + 1 == v.len) {
            jbuf_add(r, &b, jv_part(v, i, 1));
            continue;
        }
        if (v.text[++i] == '%') {
            jbuf_add(r, &b, jv_part(v, i, 1));
            continue;
        }
        if (args.kind == JV_TUPLE && used >= args.list->n)
            good = jraise(r, "not enough arguments for format string");
        else if (args.kind == JV_TUPLE)
            arg = args.list->items[used++];
        if (v.text[i] != 's' && v.text[i] != 'd')
            good = jraise(r, "format %%%c is not supported", v.text[i]);
        if (good && v.safe)
            good = jtext_escape(r, arg, &arg);
        good = good && jv_str(r, &b, arg);
    }
    if (!good) {
        buf_fini(&b.text);
        return false;
    }
    return jbuf_take(r, &b, out);
}

/* An operator of texts, other than ~. */
static bool is_text_op(const char *op, struct jval a, struct jval b)
{
    if (op[0] == '+')
        return a.kind == JV_TEXT && b.kind == JV_TEXT;
    if (strcmp(op, "*") == 0)
        return (a.kind == JV_TEXT && b.kind == JV_INT) || (a.kind == JV_INT && b.kind == JV_TEXT);
    return op[0] == '%' && a.kind == JV_TEXT;
}

static bool text_op(struct jrender *r, const char *op, struct jval a, struct jval b,
                    struct jval *out)
{
    bool safe = (a.kind == JV_TEXT && a.safe) || (b.kind == JV_TEXT && b.safe && op[0] != '%');
    bool good;

    if (op[0] == '+')
        good = (!safe || (jtext_escape(r, a, &a) && jtext_escape(r, b, &b))) &&
               jv_concat(r, a, b, out);
    else if (op[0] == '%')
        good = format_text(r, a, b, out);
    else
        good =
            repeat_text(r, a.kind == JV_TEXT ? a : b, a.kind == JV_TEXT ? b.whole : a.whole, out);
    if (good)
        out->safe = safe;
    return good;
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
    if (op[0] == '+' && lists)
        return join_lists(r, a, b, out);
    if (is_text_op(op, a, b))
        return text_op(r, op, a, b, out);
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

            *out = jv_part(v, from, utf8_sequence(v.text + from, v.len - from));
            out->safe = v.safe;
        }
        return jstep(r, 1 + v.len / 64);
    }
    return true;
}

/* --- methods -----------------------------------------------------------------------------------*/

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
        return jtext_method(r, m->self, m->name, args, out);
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

    if (!jarg(args, 0, "format", &format) || format.kind != JV_TEXT)
        return jraise(r, "a time format is expected");
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
    return jfault_set(&r->fault, ERR_INVALID, "line %d: %.*s", r->line,
                      (int)(v.len < 480 ? v.len : 480), v.text);
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
