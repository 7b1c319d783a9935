/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations of expressions: operators, attributes and items, methods of lists and dicts, and
 * the global functions of Hugging Face's environment. Errors have Python's wording where templates
 * or clients could depend on it. */
#include "text/template/jinja_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/must.h"
#include "base/utf8.h"
#include "text/unicode.h"

#define RANGE_MAX 100000 /* items per range() */

/* --- operators ---------------------------------------------------------------------------------*/

/* Integers have 64 bits. Python's have any size, so an overflow is an error, never a wrong
 * result. */

static bool jinja_out_of_range(struct jrender *render)
{
    return jinja_raise(render, "a whole number is out of range");
}

/* An operator of integers; `twice` is set for // and **. Division rounds toward minus infinity and
 * a remainder has the sign of the divisor, as in Python; C rounds toward zero. */
static bool jinja_whole_op(struct jrender *render, char op, bool twice, int64_t a, int64_t b,
                           struct jval *out)
{
    int64_t result = 0;
    bool over = false;

    if ((op == '/' || op == '%') && b == 0)
        return jinja_raise(render, "division by zero");
    if (op == '/' && !twice) {
        *out = jv_real((double)a / (double)b);
        return true;
    }
    /* INT64_MIN / -1 overflows, and traps on x86. */
    if ((op == '/' || op == '%') && b == -1) {
        over = op == '/' && a == INT64_MIN;
        if (op == '/' && !over)
            result = -a;
        else
            result = 0;
    } else if (op == '/') {
        result = a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
    } else if (op == '%') {
        result = a % b + ((a % b != 0) && ((a < 0) != (b < 0)) ? b : 0);
    } else if (op == '+') {
        over = __builtin_add_overflow(a, b, &result);
    } else if (op == '-') {
        over = __builtin_sub_overflow(a, b, &result);
    } else if (!twice) {
        over = __builtin_mul_overflow(a, b, &result);
    } else if (b < 0) {
        *out = jv_real(pow((double)a, (double)b));
        return true;
    } else {
        /* Powers: stop when the result cannot change, or when it must have overflowed. */
        for (result = 1; b > 0 && !over && !(result == 0 || (a == 1 || a == 0)); b--)
            over = __builtin_mul_overflow(result, a, &result) || b > 4096;
        if (a == 0 && b > 0)
            result = 0;
    }
    *out = jv_int(result);
    if (over)
        return jinja_out_of_range(render);
    return true;
}

/* An operator of reals. */
static bool jinja_real_op(struct jrender *render, char op, bool twice, double a, double b,
                          struct jval *out)
{
    double result = 0;

    /* C would give infinity or NaN, where Python raises. */
    if ((op == '/' || op == '%') && b == 0)
        return jinja_raise(render, "float division by zero");
    if (op == '+')
        result = a + b;
    else if (op == '-')
        result = a - b;
    else if (op == '*') {
        if (twice)
            result = pow(a, b);
        else
            result = a * b;
    } else if (op == '/') {
        if (twice)
            result = floor(a / b);
        else
            result = a / b;
    } else {
        /* Python's remainder has the sign of the divisor, C's that of the dividend. */
        result = fmod(a, b);
        if (result != 0 && (result < 0) != (b < 0))
            result += b;
    }
    *out = jv_real(result);
    return true;
}

/* text * n */
static bool jinja_repeat_text(struct jrender *render, struct jval value, int64_t n,
                              struct jval *out)
{
    struct jbuf buf = {.text = {.limit = JINJA_OUTPUT_MAX}};
    int64_t i;

    /* The size is checked before the loop: "a" * 10000000000 would otherwise run for minutes
     * before the buffer is full. */
    if (n > 0 && value.len > 0 && n > (int64_t)(JINJA_OUTPUT_MAX / value.len))
        return jinja_fault_set(&render->fault, ERR_LIMIT, "the template makes too much text");
    for (i = 0; value.len > 0 && i < n; i++)
        jbuf_add(render, &buf, value);
    return jbuf_take(render, &buf, out);
}

/* list + list and tuple + tuple */
static bool jinja_join_lists(struct jrender *render, struct jval left, struct jval right,
                             struct jval *out)
{
    struct jlist *list = jlist_new(render, left.list->n + right.list->n);
    size_t i;

    /* Both operands are copied: a value of a template is never changed by an operator, as other
     * variables may refer to it. */
    for (i = 0; list != NULL && i < left.list->n; i++)
        if (!jlist_add(render, list, left.list->items[i]))
            return false;
    for (i = 0; list != NULL && i < right.list->n; i++)
        if (!jlist_add(render, list, right.list->items[i]))
            return false;
    *out = (struct jval){.kind = left.kind, .list = list};
    return list != NULL;
}

/* text % values, with the formats %s, %d and %%, which are those that templates use. */
static bool jinja_format_text(struct jrender *render, struct jval value, struct jval args,
                              struct jval *out)
{
    struct jbuf buf = {.text = {.limit = JINJA_OUTPUT_MAX}};
    size_t used = 0;
    size_t i;
    bool good = true;

    for (i = 0; i < value.len && good; i++) {
        struct jval arg = args;

        if (value.text[i] != '%' || i + 1 == value.len) {
            jbuf_add(render, &buf, jv_part(value, i, 1));
            continue;
        }
        if (value.text[++i] == '%') {
            jbuf_add(render, &buf, jv_part(value, i, 1));
            continue;
        }
        /* A tuple gives its items in turn; any other value is the argument of every format. */
        if (args.kind == JV_TUPLE && used >= args.list->n)
            good = jinja_raise(render, "not enough arguments for format string");
        else if (args.kind == JV_TUPLE)
            arg = args.list->items[used++];
        if (value.text[i] != 's' && value.text[i] != 'd')
            good = jinja_raise(render, "format %%%c is not supported", value.text[i]);
        if (good && value.safe)
            good = jtext_escape(render, arg, &arg);
        good = good && jv_str(render, &buf, arg);
    }
    if (!good) {
        buf_fini(&buf.text);
        return false;
    }
    return jbuf_take(render, &buf, out);
}

/* Is this an operator of texts (other than ~, which takes any values)? */
static bool jinja_is_text_op(const char *op, struct jval left, struct jval right)
{
    if (op[0] == '+')
        return left.kind == JV_TEXT && right.kind == JV_TEXT;
    if (strcmp(op, "*") == 0)
        return (left.kind == JV_TEXT && right.kind == JV_INT) ||
               (left.kind == JV_INT && right.kind == JV_TEXT);
    return op[0] == '%' && left.kind == JV_TEXT;
}

/* An operator of texts. If one operand is markup, the other is escaped, and the result is
 * markup. */
static bool jinja_text_op(struct jrender *render, const char *op, struct jval left,
                          struct jval right, struct jval *out)
{
    /* `safe` means markup, text that needs no escape any more. With % only the left operand
     * decides, because the format escapes its arguments itself. */
    bool safe = (left.kind == JV_TEXT && left.safe) ||
                (right.kind == JV_TEXT && right.safe && op[0] != '%');
    bool good;

    if (op[0] == '+')
        good =
            (!safe || (jtext_escape(render, left, &left) && jtext_escape(render, right, &right))) &&
            jv_concat(render, left, right, out);
    else if (op[0] == '%')
        good = jinja_format_text(render, left, right, out);
    else
        good = jinja_repeat_text(render, left.kind == JV_TEXT ? left : right,
                                 left.kind == JV_TEXT ? right.whole : left.whole, out);
    if (good)
        out->safe = safe;
    return good;
}

/* An operator of two values. "~" accepts all kinds, because it converts both sides to text. The
 * others are tried in this order: lists, texts, numbers. The rest is a type error with Python's
 * message. */
bool jinja_binary(struct jrender *render, const char *op, struct jval left, struct jval right,
                  struct jval *out)
{
    bool lists = (left.kind == JV_LIST || left.kind == JV_TUPLE) && left.kind == right.kind;
    bool twice = op[1] != '\0';
    struct jval text_a;
    struct jval text_b;

    must(op[0] != '\0');
    if (op[0] == '~')
        return jv_to_text(render, left, &text_a) && jv_to_text(render, right, &text_b) &&
               jv_concat(render, text_a, text_b, out);
    if (left.kind == JV_UNDEFINED || right.kind == JV_UNDEFINED)
        return jinja_raise(render, "'%.100s' is undefined",
                           left.kind == JV_UNDEFINED ? left.text : right.text);
    if (op[0] == '+' && lists)
        return jinja_join_lists(render, left, right, out);
    if (jinja_is_text_op(op, left, right))
        return jinja_text_op(render, op, left, right, out);
    if (!jv_is_number(left) || !jv_is_number(right)) {
        if (op[0] == '+' && left.kind == JV_TEXT)
            return jinja_raise(render, "can only concatenate str (not \"%s\") to str",
                               jv_type_name(right));
        return jinja_raise(render, "unsupported operand type(s) for %s: '%s' and '%s'", op,
                           jv_type_name(left), jv_type_name(right));
    }
    /* As in Python, one real operand makes the whole operation real. `twice` distinguishes "//"
     * from "/" and "**" from "*". */
    if (left.kind == JV_REAL || right.kind == JV_REAL)
        return jinja_real_op(render, op[0], twice, jv_real_of(left), jv_real_of(right), out);
    return jinja_whole_op(render, op[0], twice, jv_int_of(left), jv_int_of(right), out);
}

/* --- attributes --------------------------------------------------------------------------------*/

/* Is a name in a list that ends with NULL? */

static bool jinja_is_among(const char *const *names, const char *name)
{
    for (; *names != NULL; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

/* Does a value have this method? Methods that would change a list are known, so that calling one is
 * an error, as in Jinja's sandbox. */
static bool jinja_is_method(struct jval value, const char *name)
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

    if (value.kind == JV_TEXT)
        return jinja_is_among(of_text, name);
    if (value.kind == JV_DICT)
        return jinja_is_among(of_dict, name);
    return (value.kind == JV_LIST || value.kind == JV_TUPLE) && jinja_is_among(of_list, name);
}

/* The previous or next item of a loop. */
static struct jval jinja_loop_cell(const struct jloop *loop, size_t at)
{
    if (at >= loop->list->n)
        return jv_undefined("there is no such item", 21);
    return loop->list->items[at];
}

/* An attribute of the object "loop". */
static bool jinja_loop_attr(const struct jloop *loop, const char *name, struct jval *out)
{
    int64_t at = (int64_t)loop->at;
    int64_t n = (int64_t)loop->list->n;

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
        *out = jinja_loop_cell(loop, at == 0 ? SIZE_MAX : (size_t)at - 1);
    else if (strcmp(name, "nextitem") == 0)
        *out = jinja_loop_cell(loop, (size_t)at + 1);
    else
        return false;
    return true;
}

/* Bind a method to its object. */
static bool jinja_method_value(struct jrender *render, struct jval self, const char *name,
                               struct jval *out)
{
    struct jmethod *method = arena_alloc(render->arena, sizeof *method);

    if (method == NULL)
        return jinja_no_memory(render);
    /* x.strip is a value of its own: a template may test it or pass it on before it calls it. */
    *method = (struct jmethod){.self = self, .name = name};
    *out = (struct jval){.kind = JV_METHOD, .method = method};
    return true;
}

/* value.name: an attribute first and then an item; value["name"] (item_first) the other way round.
 * A missing name gives an undefined value, which only fails when it is used. */
bool jinja_get_attr(struct jrender *render, struct jval value, const char *name, size_t len,
                    bool item_first, struct jval *out)
{
    struct jval *member = NULL;

    must(name != NULL || len == 0);
    if (value.kind == JV_UNDEFINED)
        return jinja_raise(render, "'%.100s' is undefined", value.text);
    if (value.kind == JV_DICT || value.kind == JV_NAMESPACE)
        member = jdict_get_text(value.dict, name, len);
    /* A dict's member named like a method, such as "items", is hidden by the method in value.items
     * but not in value["items"]. */
    if (member != NULL && (item_first || !jinja_is_method(value, name))) {
        *out = *member;
        return jinja_step(render, 1 + value.dict->n / 16);
    }
    if (value.kind == JV_LOOP && jinja_loop_attr(value.loop, name, out))
        return true;
    if (jinja_is_method(value, name) ||
        (value.kind == JV_LOOP && (strcmp(name, "cycle") == 0 || strcmp(name, "changed") == 0)))
        return jinja_method_value(render, value, name, out);
    if (value.kind == JV_MACRO && strcmp(name, "name") == 0) {
        *out = jv_text(value.macro->name, strlen(value.macro->name));
        return true;
    }
    *out = jv_undefined(name, len);
    return true;
}

/* value[key]. Negative indices count from the end; a text is indexed by characters. */
bool jinja_get_item(struct jrender *render, struct jval value, struct jval key, struct jval *out)
{
    struct jval *member;
    int64_t at;
    int64_t n;

    if (value.kind == JV_UNDEFINED)
        return jinja_raise(render, "'%.100s' is undefined", value.text);
    if (value.kind == JV_DICT && key.kind != JV_TEXT) {
        member = jdict_get(value.dict, key);
        if (member != NULL)
            *out = *member;
        else
            *out = jv_undefined("an item", 7);
        return true;
    }
    /* value["name"] looks for an item first and an attribute second. */
    if (key.kind == JV_TEXT)
        return jinja_get_attr(render, value, key.text, key.len, true, out);
    *out = jv_undefined("an item", 7);
    if (key.kind != JV_INT && key.kind != JV_BOOL)
        return true;
    at = jv_int_of(key);
    if (value.kind == JV_LIST || value.kind == JV_TUPLE) {
        n = (int64_t)value.list->n;
        if (at < 0)
            at = at + n;
        if (at >= 0 && at < n)
            *out = value.list->items[at];
    } else if (value.kind == JV_TEXT) {
        n = (int64_t)jtext_count(value.text, value.len);
        if (at < 0)
            at = at + n;
        if (at >= 0 && at < n) {
            size_t from = jtext_offset(value.text, value.len, (size_t)at);

            *out = jv_part(value, from, utf8_sequence(value.text + from, value.len - from));
            out->safe = value.safe;
        }
        return jinja_step(render, 1 + value.len / 64);
    }
    return true;
}

/* --- methods -----------------------------------------------------------------------------------*/

/* get(key, default), items(), keys() and values() of a dict. */

/* get(), keys(), values() and items() of a dict. The name was checked by jinja_is_method(), so the
 * first letter is enough to tell the last three apart. */
static bool jinja_dict_method(struct jrender *render, const struct jdict *dict, const char *name,
                              const struct jargs *args, struct jval *out)
{
    struct jlist *list;
    struct jval key;
    size_t i;

    if (strcmp(name, "get") == 0) {
        const struct jval *member;

        if (!jinja_arg(args, 0, "key", &key))
            return jinja_raise(render, "get expected at least 1 argument");
        member = jdict_get(dict, key);
        if (member != NULL)
            *out = *member;
        else
            *out = jinja_arg_or(args, 1, "default", jv_none());
        return jinja_step(render, 1 + dict->n / 16);
    }
    /* Lists are copies: a template that changes the dict inside a loop over items() iterates over
     * the state before. */
    list = jlist_new(render, dict->n);
    for (i = 0; list != NULL && i < dict->n; i++) {
        struct jval item = name[0] == 'k' ? dict->pairs[i].key : dict->pairs[i].value;

        if (name[0] == 'i') {
            struct jlist *pair = jlist_new(render, 2);

            if (pair == NULL || !jlist_add(render, pair, dict->pairs[i].key) ||
                !jlist_add(render, pair, dict->pairs[i].value))
                return false;
            item = (struct jval){.kind = JV_TUPLE, .list = pair};
        }
        if (!jlist_add(render, list, item))
            return false;
    }
    *out = jv_list(list);
    return list != NULL;
}

/* index(value) and count(value) of a list. */
static bool jinja_list_method(struct jrender *render, const struct jlist *list, const char *name,
                              const struct jargs *args, struct jval *out)
{
    struct jval what;
    int64_t n = 0;
    size_t i;

    if (strcmp(name, "index") != 0 && strcmp(name, "count") != 0)
        return jinja_raise(render, "access to attribute '%s' of 'list' object is unsafe.", name);
    if (!jinja_arg(args, 0, "value", &what))
        return jinja_raise(render, "%s() takes exactly one argument", name);
    /* One loop serves both: index returns at the first match, count goes on. */
    for (i = 0; i < list->n; i++) {
        if (!jv_equal(list->items[i], what))
            continue;
        n++;
        if (name[0] == 'i') {
            *out = jv_int((int64_t)i);
            return true;
        }
    }
    if (name[0] == 'i')
        return jinja_raise(render, "value is not in list");
    *out = jv_int(n);
    /* The cost of the comparisons is charged after the search, in proportion to the length of
     * the list. */
    return jinja_step(render, 1 + list->n);
}

/* loop.changed(value) and loop.cycle(a, b, ...). */
static bool jinja_loop_method(struct jrender *render, struct jloop *loop, const char *name,
                              const struct jargs *args, struct jval *out)
{
    struct jval value = jinja_arg_or(args, 0, "value", jv_none());

    /* changed() compares with the value of the last call, which was in an earlier pass of the
     * loop. */
    if (strcmp(name, "changed") == 0) {
        *out = jv_bool(!loop->changed_once || !jv_equal(loop->last_changed, value));
        loop->changed_once = true;
        loop->last_changed = value;
        return true;
    }
    if (args->n_placed == 0)
        return jinja_raise(render, "no items for cycling given");
    /* cycle() takes one argument after the other, one per pass. */
    *out = args->values[loop->at % args->n_placed];
    return true;
}

bool jinja_call_method(struct jrender *render, const struct jmethod *method,
                       const struct jargs *args, struct jval *out)
{
    must(method->name != NULL && args != NULL);
    /* jinja_is_method() has checked that the kind has a method of this name, so lists and tuples
     * are left at the end. */
    if (method->self.kind == JV_TEXT)
        return jtext_method(render, method->self, method->name, args, out);
    if (method->self.kind == JV_DICT)
        return jinja_dict_method(render, method->self.dict, method->name, args, out);
    if (method->self.kind == JV_LOOP)
        return jinja_loop_method(render, method->self.loop, method->name, args, out);
    return jinja_list_method(render, method->self.list, method->name, args, out);
}

/* --- global functions --------------------------------------------------------------------------*/

bool jinja_global_exists(const char *name, size_t len)
{
    static const char *const names[] = {"namespace", "range",        "dict",
                                        "joiner",    "strftime_now", "raise_exception"};
    size_t i;

    for (i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
            return true;
    return false;
}

/* range(stop), range(start, stop), range(start, stop, step), as a list. */
static bool jinja_global_range(struct jrender *render, const struct jargs *args, struct jval *out)
{
    struct jlist *list = jlist_new(render, 0);
    int64_t bounds[3] = {0, 0, 1};
    int64_t at;
    size_t i;

    if (args->n == 0 || args->n > 3 || args->n != args->n_placed)
        return jinja_raise(render, "range expected 1 to 3 arguments");
    for (i = 0; i < args->n; i++) {
        if (args->values[i].kind != JV_INT && args->values[i].kind != JV_BOOL)
            return jinja_raise(render, "'%s' object cannot be interpreted as an integer",
                               jv_type_name(args->values[i]));
        /* A single argument is the end. */
        bounds[args->n == 1 ? 1 : i] = jv_int_of(args->values[i]);
    }
    if (bounds[2] == 0)
        return jinja_raise(render, "range() arg 3 must not be zero");
    for (at = bounds[0]; list != NULL && (bounds[2] > 0 ? at < bounds[1] : at > bounds[1]);) {
        if (list->n == RANGE_MAX)
            return jinja_raise(render, "range() may have at most %d items", RANGE_MAX);
        if (!jlist_add(render, list, jv_int(at)))
            return false;
        /* The next value would be beyond any bound. */
        if (__builtin_add_overflow(at, bounds[2], &at))
            break;
    }
    *out = jv_list(list);
    return list != NULL;
}

/* dict(...) and namespace(...): copies of dicts, and named arguments as members. */
static bool jinja_global_dict(struct jrender *render, const struct jargs *args, enum jkind kind,
                              struct jval *out)
{
    struct jdict *dict = jdict_new(render, 0);
    size_t i;
    size_t k;

    if (dict == NULL)
        return false;
    /* Positional arguments are dicts to copy. Named ones come later, so they override members of
     * the same name. */
    for (i = 0; i < args->n_placed; i++) {
        const struct jdict *from = args->values[i].dict;

        if (args->values[i].kind != JV_DICT)
            return jinja_raise(render, "a dict is expected");
        for (k = 0; k < from->n; k++)
            if (!jdict_set(render, dict, from->pairs[k].key, from->pairs[k].value))
                return false;
    }
    for (; i < args->n; i++)
        if (!jdict_set(render, dict, jv_text(args->names[i], strlen(args->names[i])),
                       args->values[i]))
            return false;
    *out = (struct jval){.kind = kind, .dict = dict};
    return true;
}

/* strftime_now(format): the current local time. */
static bool jinja_global_now(struct jrender *render, const struct jargs *args, struct jval *out)
{
    time_t now = (time_t)(render->now_unix_s != 0 ? render->now_unix_s : clock_unix_s());
    struct jval format;
    struct tm tm;
    char pattern[128];
    char text[512];
    size_t n;

    if (!jinja_arg(args, 0, "format", &format) || format.kind != JV_TEXT)
        return jinja_raise(render, "a time format is expected");
    if (format.len >= sizeof pattern || localtime_r(&now, &tm) == NULL)
        return jinja_raise(render, "a time format that is too long");
    memcpy(pattern, format.text, format.len);
    pattern[format.len] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the template's own format */
    n = strftime(text, sizeof text, pattern, &tm);
#pragma GCC diagnostic pop
    *out = jv_text(arena_strndup(render->arena, text, n), n);
    return out->text != NULL || jinja_no_memory(render);
}

/* Names are told apart by their first letters, because jinja_global_exists() has checked them. The
 * last one is raise_exception(message). */
bool jinja_call_global(struct jrender *render, const char *name, const struct jargs *args,
                       struct jval *out)
{
    struct jjoiner *joiner;
    struct jval value;

    must(jinja_global_exists(name, strlen(name)));
    switch (name[0]) {
    case 'n': return jinja_global_dict(render, args, JV_NAMESPACE, out);
    case 'd': return jinja_global_dict(render, args, JV_DICT, out);
    case 's': return jinja_global_now(render, args, out);
    /* joiner(", ") makes a value that is empty the first time it is called and ", " later on. */
    case 'j':
        value = jinja_arg_or(args, 0, "sep", jv_text(", ", 2));
        joiner = arena_zalloc(render->arena, sizeof *joiner);
        if (joiner == NULL)
            return jinja_no_memory(render);
        if (value.kind != JV_TEXT)
            return jinja_raise(render, "joiner() needs a string");
        *joiner = (struct jjoiner){.text = value.text, .len = value.len};
        *out = (struct jval){.kind = JV_JOINER, .joiner = joiner};
        return true;
    default: break;
    }
    /* range and raise_exception are left, both with an 'r'. */
    if (strncmp(name, "range", 5) == 0)
        return jinja_global_range(render, args, out);
    value = jinja_arg_or(args, 0, "message", jv_text("the template raised an exception", 32));
    if (!jv_to_text(render, value, &value))
        return false;
    /* Messages of raise_exception are written for the client, such as "roles must alternate", so
     * they are reported as an invalid request. At most 480 bytes are kept. */
    return jinja_fault_set(&render->fault, ERR_INVALID, "line %d: %.*s", render->line,
                           (int)(value.len < 480 ? value.len : 480), value.text);
}

/* Call a value. A call costs four steps, because arguments and scopes are allocated for it. */
bool jinja_call(struct jrender *render, struct jval callee, const struct jargs *args,
                struct jval *out)
{
    if (!jinja_step(render, 4))
        return false;
    if (callee.kind == JV_MACRO)
        return jinja_call_macro(render, callee.macro, args, out);
    if (callee.kind == JV_METHOD)
        return jinja_call_method(render, callee.method, args, out);
    if (callee.kind == JV_GLOBAL)
        return jinja_call_global(render, callee.text, args, out);
    /* A joiner gives nothing at its first call and its text at every later one, which puts
     * separators between items:
     *
     *     {% set comma = joiner(", ") %}
     *     {% for x in list %}{{ comma() }}{{ x }}{% endfor %}  ->  "a, b, c" */
    if (callee.kind == JV_JOINER) {
        *out = jv_text(callee.joiner->text, callee.joiner->used ? callee.joiner->len : 0);
        callee.joiner->used = true;
        return true;
    }
    if (callee.kind == JV_UNDEFINED)
        return jinja_raise(render, "'%.100s' is undefined", callee.text);
    return jinja_raise(render, "'%s' object is not callable", jv_type_name(callee));
}
