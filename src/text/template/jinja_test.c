/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests: {% if x is defined %}, {{ items|select("odd") }}. A test gets the value on its left and
 * the evaluated arguments, and sets a bool. Names are those of Jinja:
 *
 *     x is none             the value's kind
 *     x is eq 3, x is < 3   a comparison with the argument
 *     x is divisibleby 3    a property of a whole number
 *     x is in [1, 2]        membership
 *
 * An unknown name is an error of the render, not of the compilation, because a template may contain
 * branches that never run. */
#include "text/template/jinja_parts.h"

#include <string.h>

#include "base/must.h"

/* upper and lower: the text methods isupper and islower. */

static bool jinja_is_upper_or_lower(struct jrender *render, struct jval in, const char *how,
                                    bool *out)
{
    struct jmethod method = {.name = how};
    struct jargs none = {0};
    struct jval value;

    if (!jv_to_text(render, in, &method.self) || !jinja_call_method(render, &method, &none, &value))
        return false;
    *out = value.flag;
    return true;
}

/* odd, even and divisibleby(num); x % -1 is excluded, because INT64_MIN % -1 overflows. */
static bool jinja_test_number(struct jrender *render, const char *name, struct jval in,
                              const struct jargs *args, bool *out)
{
    struct jval by = jinja_arg_or(args, 0, "num", jv_int(2));

    if (in.kind != JV_INT && in.kind != JV_BOOL)
        return jinja_raise(render, "test '%s' needs a whole number", name);
    if (by.kind != JV_INT || by.whole == 0)
        return jinja_raise(render, "divisibleby needs a whole number other than zero");
    /* Python's sign of the remainder differs from that of C, but both agree on whether it is 0. */
    if (name[0] == 'd')
        *out = by.whole == -1 || jv_int_of(in) % by.whole == 0;
    else
        *out = (jv_int_of(in) % 2 != 0) == (name[0] == 'o');
    return true;
}

/* Tests that compare with an argument, as `x is eq 3`. *known is false for other names. */
static bool jinja_test_compare(struct jrender *render, const char *name, struct jval in,
                               const struct jargs *args, bool *out, bool *known)
{
    static const char *const names[][2] = {
        {"eq", "=="}, {"equalto", "=="}, {"==", "=="}, {"ne", "!="},         {"!=", "!="},
        {"lt", "<"},  {"lessthan", "<"}, {"le", "<="}, {"gt", ">"},          {"ge", ">="},
        {"<", "<"},   {"<=", "<="},      {">", ">"},   {"greaterthan", ">"}, {">=", ">="}};
    struct jval other = jinja_arg_or(args, 0, "other", jv_none());
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
        if (!jv_compare(render, in, other, &order))
            return false;
        /* order is negative, zero or positive as with memcmp(). "<=" and ">=" also hold for
         * zero. */
        *out = (op[0] == '<' ? order < 0 : order > 0) || (op[1] == '=' && order == 0);
        return true;
    }
    return true;
}

static bool jinja_is_sequence(struct jval value)
{
    return value.kind == JV_TEXT || value.kind == JV_LIST || value.kind == JV_TUPLE ||
           value.kind == JV_DICT;
}

/* Tests of the value's kind. False when the name is none of them. */
static bool jinja_test_kind(const char *name, struct jval in, bool *out)
{
    /* All results are computed, then the one with the name is taken. */
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
        {"sequence", jinja_is_sequence(in) || in.kind == JV_UNDEFINED},
        {"iterable", jinja_is_sequence(in) || in.kind == JV_UNDEFINED || in.kind == JV_LOOP},
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

/* `x is in y` */
static bool jinja_test_in(struct jrender *render, struct jval in, struct jval of, bool *out)
{
    struct jlist *list;
    size_t i;

    *out = false;
    if (of.kind == JV_TEXT && in.kind == JV_TEXT) {
        *out = jtext_find(of.text, of.len, in.text, in.len) != NULL;
        return true;
    }
    if (!jv_iterate(render, of, &list))
        return false;
    for (i = 0; i < list->n && !*out; i++)
        *out = jv_equal(list->items[i], in);
    return jinja_step(render, 1 + i);
}

bool jinja_test(struct jrender *render, const char *name, struct jval in, const struct jargs *args,
                bool *out)
{
    struct jval other = jinja_arg_or(args, 0, "other", jv_none());
    bool known;

    must(name != NULL && args != NULL);
    if (!jinja_step(render, 1))
        return false;
    if (jinja_test_kind(name, in, out))
        return true;
    /* A failed comparison has set the fault and leaves the result unset; `known` is then true as
     * well. */
    if (!jinja_test_compare(render, name, in, args, out, &known) || known)
        return known && render->fault.rc == ERR_OK;
    if (strcmp(name, "odd") == 0 || strcmp(name, "even") == 0 || strcmp(name, "divisibleby") == 0)
        return jinja_test_number(render, name, in, args, out);
    if (strcmp(name, "upper") == 0)
        return jinja_is_upper_or_lower(render, in, "isupper", out);
    if (strcmp(name, "lower") == 0)
        return jinja_is_upper_or_lower(render, in, "islower", out);
    if (strcmp(name, "in") == 0)
        return jinja_test_in(render, in, other, out);
    if (strcmp(name, "sameas") == 0) {
        *out = in.kind == other.kind && jv_equal(in, other);
        return true;
    }
    return jinja_raise(render, "No test named '%.60s'.", name);
}
