/* SPDX-License-Identifier: Apache-2.0
 *
 * The evaluator: walks the tree. Expressions give values, statements append to render->out. A scope
 * is a list of variables with a parent; the body of a loop, of a macro and of {% with %} has a
 * scope of its own, that of {% if %} has none. Names are looked up when they are used, so macros
 * may call each other in any order.
 *
 * Every function returns false (or JF_FAILED) after an error; nothing needs to be cleaned up except
 * bufs, because all other memory is in the arena. */
#include "text/template/jinja_parts.h"

#include <string.h>

#include "base/must.h"
#include "base/utf8.h"

#define LOCALS_MAX 64 /* arguments per call */

/* Find a variable in a scope, and unless `own` in its parents. A scope has few variables, so a list
 * is fast enough. */
struct jvar *jinja_scope_find(struct jscope *scope, const char *name, size_t len, bool own)
{
    struct jvar *v;

    for (; scope != NULL; scope = own ? NULL : scope->parent)
        for (v = scope->vars; v != NULL; v = v->next)
            if (v->len == len && memcmp(v->name, name, len) == 0)
                return v;
    return NULL;
}

/* Set a variable of this scope. An outer variable of the same name is hidden, not changed. */
bool jinja_scope_set(struct jrender *render, struct jscope *scope, const char *name, size_t len,
                     struct jval value)
{
    /* `true`: search this scope only. A for loop must not change a variable outside of it, as in
     * Jinja. */
    struct jvar *v = jinja_scope_find(scope, name, len, true);

    if (v == NULL) {
        v = arena_alloc(render->arena, sizeof *v);
        if (v == NULL)
            return jinja_no_memory(render);
        *v = (struct jvar){.next = scope->vars, .name = name, .len = len};
        scope->vars = v;
    }
    v->value = value;
    return true;
}

/* The value of a name: a variable, a global function, or undefined. */
static void jinja_name_value(struct jscope *scope, const struct jnode *node, struct jval *out)
{
    const struct jvar *v = jinja_scope_find(scope, node->text, node->len, false);

    if (v != NULL) {
        *out = v->value;
    } else if (jinja_global_exists(node->text, node->len)) {
        *out = jv_text(node->text, node->len);
        out->kind = JV_GLOBAL;
    } else {
        *out = jv_undefined(node->text, node->len);
    }
}

/* --- expressions -------------------------------------------------------------------------------*/
static bool jinja_eval_list(struct jrender *render, const struct jnode *node, struct jscope *scope,
                            struct jval *out)
{
    struct jlist *list = jlist_new(render, 0);
    const struct jnode *item;
    struct jval value;

    if (list == NULL)
        return false;
    /* Items are evaluated from left to right. Their order is visible: an item may call a macro
     * or change a namespace. */
    for (item = node->a; item != NULL; item = item->next)
        if (!jinja_eval(render, item, scope, &value) || !jlist_add(render, list, value))
            return false;
    *out = jv_list(list);
    if (node->kind == JN_TUPLE)
        out->kind = JV_TUPLE;
    return true;
}

/* {key: value, ...}. As in Python a repeated key keeps its place and takes the later value. */
static bool jinja_eval_dict(struct jrender *render, const struct jnode *node, struct jscope *scope,
                            struct jval *out)
{
    struct jdict *dict = jdict_new(render, 0);
    const struct jnode *pair;
    struct jval key;
    struct jval value;

    if (dict == NULL)
        return false;
    /* Keys are expressions as well: {name: 1} uses the value of the variable name. */
    for (pair = node->a; pair != NULL; pair = pair->next)
        if (!jinja_eval(render, pair->a, scope, &key) ||
            !jinja_eval(render, pair->b, scope, &value) || !jdict_set(render, dict, key, value))
            return false;
    *out = (struct jval){.kind = JV_DICT, .dict = dict};
    return true;
}

/* Evaluate the arguments of a call. Positional ones come first, as in Python. */
static bool jinja_eval_args(struct jrender *render, const struct jnode *arg, struct jscope *scope,
                            struct jargs *args)
{
    size_t n = 0;
    const struct jnode *a;

    *args = (struct jargs){0};
    for (a = arg; a != NULL; a = a->next)
        n++;
    if (n == 0)
        return true;
    if (n > LOCALS_MAX)
        return jinja_raise(render, "more than %d arguments", LOCALS_MAX);
    /* Both arrays have the same index: names[i] is the name of values[i]. */
    args->values = arena_alloc(render->arena, n * sizeof *args->values);
    args->names = arena_zalloc(render->arena, n * sizeof *args->names);
    if (args->values == NULL || args->names == NULL)
        return jinja_no_memory(render);
    for (a = arg; a != NULL; a = a->next) {
        if (a->text == NULL && args->n != args->n_placed)
            return jinja_raise(render, "a positional argument follows a named one");
        args->names[args->n] = a->text;
        if (!jinja_eval(render, a->a, scope, &args->values[args->n]))
            return false;
        args->n++;
        args->n_placed += a->text == NULL;
    }
    return true;
}

/* Positional arguments come first in the arrays, so a place below n_placed is an index. All others
 * can only be given by name. */
bool jinja_arg(const struct jargs *args, size_t place, const char *name, struct jval *out)
{
    size_t i;

    /* A positional argument has priority, and the name then has no meaning. */
    if (place < args->n_placed) {
        *out = args->values[place];
        return true;
    }
    for (i = args->n_placed; i < args->n; i++)
        if (strcmp(args->names[i], name) == 0) {
            *out = args->values[i];
            return true;
        }
    return false;
}

struct jval jinja_arg_or(const struct jargs *args, size_t place, const char *name,
                         struct jval preset)
{
    struct jval value = preset;

    (void)jinja_arg(args, place, name, &value); /* if it is not given, the preset stays */
    return value;
}

/* Evaluate a bound of a slice; a missing one is None. */
static bool jinja_eval_bound(struct jrender *render, const struct jnode *node, struct jscope *scope,
                             struct jval *out)
{
    *out = jv_none();
    if (node != NULL && !jinja_eval(render, node, scope, out))
        return false;
    if (out->kind != JV_NONE && out->kind != JV_INT && out->kind != JV_BOOL)
        return jinja_raise(render, "slice indices must be integers or None");
    return true;
}

/* Clamp a bound of a slice as Python does: negative ones count from the end. A slice that runs
 * backward has bounds from -1, before the first item, to the last item. */
static int64_t jinja_clamp_bound(struct jval bound, int64_t len, bool backward, int64_t preset)
{
    int64_t low = backward ? -1 : 0;
    int64_t high = backward ? len - 1 : len;
    int64_t at;

    /* A missing bound gets the end at which the slice begins or stops, which depends on its
     * direction. */
    if (bound.kind == JV_NONE)
        return preset;
    at = jv_int_of(bound);
    /* Far negative bounds are tested before len is added: the sum of both is then always in
     * range. */
    if (at < -len)
        return low;
    if (at < 0)
        at += len;
    if (at > high)
        at = high;
    if (at < low)
        at = low;
    return at;
}

/* a[start:stop:step] of a text or a list. A text is sliced by characters. */
static bool jinja_eval_slice(struct jrender *render, const struct jnode *node, struct jscope *scope,
                             struct jval *out)
{
    struct jval of;
    struct jval step = jv_int(1);
    struct jval first;
    struct jval last;
    struct jlist *from = NULL;
    struct jlist *list;
    struct jbuf text = {0};
    int64_t start;
    int64_t stop;
    int64_t len;
    int64_t i;
    bool back;

    if (!jinja_eval(render, node->a, scope, &of) ||
        (node->d != NULL && !jinja_eval(render, node->d, scope, &step)))
        return false;
    if (of.kind == JV_UNDEFINED) {
        *out = jv_undefined("slice", 5);
        return of.len == 0 || jinja_raise(render, "'%.80s' is undefined", of.text);
    }
    if (of.kind != JV_TEXT && of.kind != JV_LIST && of.kind != JV_TUPLE)
        return jinja_raise(render, "'%s' object cannot be sliced", jv_type_name(of));
    if (step.kind == JV_NONE)
        step = jv_int(1);
    if (step.kind != JV_INT || step.whole == 0 || step.whole > INT32_MAX || step.whole < -INT32_MAX)
        return jinja_raise(render, "slice step must be an integer other than zero");
    /* A text becomes a list of its characters, so one loop serves both kinds. */
    if (!jv_iterate(render, of, &from) || (list = jlist_new(render, 0)) == NULL)
        return false;
    len = (int64_t)from->n;
    back = step.whole < 0;
    if (!jinja_eval_bound(render, node->b, scope, &first) ||
        !jinja_eval_bound(render, node->c, scope, &last))
        return false;
    start = jinja_clamp_bound(first, len, back, back ? len - 1 : 0);
    stop = jinja_clamp_bound(last, len, back, back ? -1 : len);
    /* The bounds were clamped to the list, so every index in the loop is valid, and the loop ends
     * because the step is not zero. i does not overflow: the step has 32 bits. */
    for (i = start; back ? i > stop : i < stop; i += step.whole) {
        if (of.kind == JV_TEXT)
            jbuf_add(render, &text, from->items[i]);
        else if (!jlist_add(render, list, from->items[i]))
            return false;
    }
    if (of.kind != JV_TEXT) {
        *out = (struct jval){.kind = of.kind, .list = list};
        return true;
    }
    if (!jbuf_take(render, &text, out))
        return false;
    out->safe = of.safe;
    return true;
}

/* `value in of`: a substring, a key, or an item. */
static bool jinja_eval_contains(struct jrender *render, struct jval of, struct jval value,
                                bool *out)
{
    struct jlist *list;
    size_t i;

    *out = false;
    /* The cost of each kind of search is charged in steps, so that a template with many long
     * searches reaches its limit. */
    if (of.kind == JV_TEXT) {
        if (value.kind != JV_TEXT)
            return jinja_raise(render, "'in <string>' requires string as left operand, not %s",
                               jv_type_name(value));
        *out = jtext_find(of.text, of.len, value.text, value.len) != NULL;
        return jinja_step(render, 1 + of.len / 64);
    }
    if (of.kind == JV_DICT) {
        *out = jdict_get(of.dict, value) != NULL;
        return jinja_step(render, 1 + of.dict->n / 16);
    }
    /* Anything else that can be iterated is searched item by item, and something that cannot be
     * raises. */
    if (!jv_iterate(render, of, &list))
        return false;
    for (i = 0; i < list->n && !*out; i++)
        *out = jv_equal(list->items[i], value);
    return jinja_step(render, 1 + i / 4);
}

/* One comparison of a chain. */
static bool jinja_compare_one(struct jrender *render, const char *op, struct jval left,
                              struct jval right, bool *out)
{
    int order = 0;

    if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0) {
        *out = jv_equal(left, right) == (op[0] == '=');
        return true;
    }
    if (strcmp(op, "in") == 0)
        return jinja_eval_contains(render, right, left, out);
    if (strcmp(op, "not in") == 0) {
        if (!jinja_eval_contains(render, right, left, out))
            return false;
        *out = !*out;
        return true;
    }
    /* The operator is one of <, <=, >, >=: its first character gives the direction, its second adds
     * equality. */
    if (!jv_compare(render, left, right, &order))
        return false;
    if (op[0] == '<')
        *out = order < 0;
    else
        *out = order > 0;
    if (op[1] == '=')
        *out = *out || order == 0;
    return true;
}

/* A chain a < b < c holds if all its comparisons hold; evaluation stops at the first that does
 * not. */
static bool jinja_eval_compare(struct jrender *render, const struct jnode *node,
                               struct jscope *scope, struct jval *out)
{
    const struct jnode *operand;
    struct jval left;
    bool holds = true;

    if (!jinja_eval(render, node->a, scope, &left))
        return false;
    /* The right operand of one comparison is the left one of the next and is evaluated once. */
    for (operand = node->b; operand != NULL && holds; operand = operand->next) {
        struct jval right;

        if (!jinja_eval(render, operand->a, scope, &right) ||
            !jinja_compare_one(render, operand->text, left, right, &holds))
            return false;
        left = right;
    }
    *out = jv_bool(holds);
    return true;
}

static bool jinja_eval_call(struct jrender *render, const struct jnode *node, struct jscope *scope,
                            struct jval *out)
{
    struct jval callee;
    struct jargs args;

    if (!jinja_eval(render, node->a, scope, &callee) ||
        !jinja_eval_args(render, node->b, scope, &args))
        return false;
    /* The evaluation of the arguments may have moved the line of errors to another line. */
    render->line = node->line;
    return jinja_call(render, callee, &args, out);
}

/* value|filter(args) and `value is test(args)`. */
static bool jinja_eval_filter(struct jrender *render, const struct jnode *node,
                              struct jscope *scope, struct jval *out)
{
    struct jval in;
    struct jargs args;
    bool holds;

    if (!jinja_eval(render, node->a, scope, &in) || !jinja_eval_args(render, node->b, scope, &args))
        return false;
    /* Evaluating the arguments may have moved the line; errors should name the line of the
     * filter. */
    render->line = node->line;
    if (node->kind == JN_FILTER)
        return jinja_filter(render, node->text, in, &args, out);
    if (!jinja_test(render, node->text, in, &args, &holds))
        return false;
    *out = jv_bool(holds);
    return true;
}

/* Unary plus and minus. */
static bool jinja_eval_sign(struct jrender *render, const struct jnode *node, struct jscope *scope,
                            struct jval *out)
{
    struct jval value;

    if (!jinja_eval(render, node->a, scope, &value))
        return false;
    if (!jv_is_number(value))
        return jinja_raise(render, "bad operand type for unary %c: '%s'",
                           node->kind == JN_PLUS ? '+' : '-', jv_type_name(value));
    /* -INT64_MIN has no representation. Python's numbers have no limit, so this is an error and
     * not a wrap. */
    if (value.kind == JV_REAL)
        *out = jv_real(node->kind == JN_PLUS ? value.real : -value.real);
    else if (jv_int_of(value) == INT64_MIN)
        return jinja_raise(render, "a whole number is out of range");
    else
        *out = jv_int(node->kind == JN_PLUS ? jv_int_of(value) : -jv_int_of(value));
    return true;
}

/* not, and, or, `a if b else c`. As in Python, `and` and `or` return one of their operands. */
static bool jinja_eval_logic(struct jrender *render, const struct jnode *node, struct jscope *scope,
                             struct jval *out)
{
    if (!jinja_eval(render, node->a, scope, out))
        return false;
    if (node->kind == JN_NOT) {
        *out = jv_bool(!jv_truth(*out));
        return true;
    }
    if (node->kind == JN_TERNARY) {
        if (jv_truth(*out))
            return jinja_eval(render, node->b, scope, out);
        /* Without an else the value is undefined: it prints as nothing. */
        *out = jv_undefined("the inline if-expression", 24);
        return node->c == NULL || jinja_eval(render, node->c, scope, out);
    }
    /* `or` returns a left operand that is true, `and` one that is false; the right one is then
     * not evaluated, which templates use to guard accesses: `x and x.y`. */
    if (jv_truth(*out) == (node->kind == JN_OR))
        return true;
    return jinja_eval(render, node->b, scope, out);
}

/* Expressions with two operands: attribute, item, arithmetic. */
static bool jinja_eval_two(struct jrender *render, const struct jnode *node, struct jscope *scope,
                           struct jval *out)
{
    struct jval left;
    struct jval right;

    if (!jinja_eval(render, node->a, scope, &left))
        return false;
    render->line = node->line;
    /* An attribute's name is part of the node. All others have a second expression. */
    if (node->kind == JN_ATTR)
        return jinja_get_attr(render, left, node->text, node->len, false, out);
    if (!jinja_eval(render, node->b, scope, &right))
        return false;
    if (node->kind == JN_ITEM)
        return jinja_get_item(render, left, right, out);
    return jinja_binary(render, node->text, left, right, out);
}

/* Evaluate a node by its kind. Constants are text that the template wrote. */
static bool jinja_eval_kind(struct jrender *render, const struct jnode *node, struct jscope *scope,
                            struct jval *out)
{
    /* The parser guarantees that each kind has the members its function reads. */
    switch (node->kind) {
    case JN_CONST:
        *out = node->value;
        out->origin = &jorigin_own;
        return true;
    case JN_PIPED: *out = render->piped; return true;
    case JN_NAME: jinja_name_value(scope, node, out); return true;
    case JN_LIST:
    case JN_TUPLE: return jinja_eval_list(render, node, scope, out);
    case JN_DICT: return jinja_eval_dict(render, node, scope, out);
    case JN_ATTR:
    case JN_ITEM:
    case JN_BINARY: return jinja_eval_two(render, node, scope, out);
    case JN_SLICE: return jinja_eval_slice(render, node, scope, out);
    case JN_CALL: return jinja_eval_call(render, node, scope, out);
    case JN_FILTER:
    case JN_TEST: return jinja_eval_filter(render, node, scope, out);
    case JN_NEGATE:
    case JN_PLUS: return jinja_eval_sign(render, node, scope, out);
    case JN_COMPARE: return jinja_eval_compare(render, node, scope, out);
    case JN_NOT:
    case JN_AND:
    case JN_OR:
    case JN_TERNARY: return jinja_eval_logic(render, node, scope, out);
    /* Statements and parts of other nodes. All kinds are listed, so that the compiler reports a
     * new one that is missing here. */
    case JN_DATA:
    case JN_OUTPUT:
    case JN_FOR:
    case JN_IF:
    case JN_SET:
    case JN_SET_BLOCK:
    case JN_MACRO:
    case JN_CALL_BLOCK:
    case JN_FILTER_BLOCK:
    case JN_WITH:
    case JN_BREAK:
    case JN_CONTINUE:
    case JN_GENERATION:
    case JN_PAIR:
    case JN_ARG:
    case JN_OPERAND: break;
    }
    return jinja_raise(render, "a statement is used where a value is expected");
}

/* Evaluate an expression, with a bound on the recursion. The parser bounds nesting already, but not
 * chains such as a + b + c, which lean to the left, nor macros that call each other. */
bool jinja_eval(struct jrender *render, const struct jnode *node, struct jscope *scope,
                struct jval *out)
{
    bool good;

    if (!jinja_step(render, 1))
        return false;
    /* The depth counts all levels of evaluation, of which one level of nesting in the source
     * needs several, hence the factor. */
    if (render->depth >= JINJA_DEPTH_MAX * 20)
        return jinja_fault_set(&render->fault, ERR_LIMIT, "line %d: the template nests too deep",
                               node->line);
    render->depth++;
    good = jinja_eval_kind(render, node, scope, out);
    render->depth--;
    return good;
}

/* --- statements --------------------------------------------------------------------------------*/

/* Assign to a name, to an attribute of a namespace, or to a tuple of targets (unpacking). */

static bool jinja_assign_target(struct jrender *render, const struct jnode *target,
                                struct jscope *scope, struct jval value)
{
    struct jlist *items;
    const struct jnode *t;
    struct jval object;
    size_t i = 0;

    if (target->kind == JN_NAME)
        return jinja_scope_set(render, scope, target->text, target->len, value);
    /* Only namespaces can be changed through an attribute, {% set ns.found = true %}. They are the
     * way to pass a value out of a loop, whose variables end with it. */
    if (target->kind == JN_ATTR) {
        if (!jinja_eval(render, target->a, scope, &object))
            return false;
        if (object.kind != JV_NAMESPACE)
            return jinja_raise(render, "cannot assign attribute on non-namespace object");
        return jdict_set(render, object.dict, jv_text(target->text, target->len), value);
    }
    if (!jv_iterate(render, value, &items))
        return false;
    /* A tuple of targets: {% set a, (b, c) = value %}. Targets nest, hence the recursion. */
    for (t = target->a; t != NULL; t = t->next) {
        if (i == items->n)
            return jinja_raise(render, "not enough values to unpack");
        if (!jinja_assign_target(render, t, scope, items->items[i++]))
            return false;
    }
    return i == items->n || jinja_raise(render, "too many values to unpack");
}

/* Run a body with its output going to a text of its own, *out. */
static enum jflow jinja_capture_body(struct jrender *render, const struct jnode *body,
                                     struct jscope *scope, struct jval *out)
{
    struct jbuf text = {.text = {.limit = JINJA_OUTPUT_MAX}};
    struct jbuf *outer = render->out;
    enum jflow flow;

    /* Output of the body goes to `text`. The outer buffer is set again even after a failure,
     * because it belongs to the caller. */
    render->out = &text;
    flow = jinja_run_body(render, body, scope);
    render->out = outer;
    if (flow == JF_FAILED) {
        buf_fini(&text.text);
        return JF_FAILED;
    }
    if (jbuf_take(render, &text, out))
        return flow;
    return JF_FAILED;
}

/* Apply a loop's filter: {% for x in items if x.ok %}. The filter sees the loop's variable but not
 * "loop", because the number of items is not known yet. */
static bool jinja_loop_items(struct jrender *render, const struct jnode *node, struct jscope *scope,
                             struct jlist **items)
{
    struct jlist *kept = jlist_new(render, 0);
    size_t i;

    if (kept == NULL)
        return false;
    for (i = 0; i < (*items)->n; i++) {
        /* Each item has a scope of its own, so that a variable of one pass is not seen in the
         * next. */
        struct jscope inner = {.parent = scope};
        struct jval holds;

        if (!jinja_assign_target(render, node->a, &inner, (*items)->items[i]) ||
            !jinja_eval(render, node->c, &inner, &holds))
            return false;
        /* The item is kept, and not the values that the target was unpacked to: the loop
         * unpacks it again. */
        if (jv_truth(holds) && !jlist_add(render, kept, (*items)->items[i]))
            return false;
    }
    *items = kept;
    return true;
}

/* Run a loop's body for each item, with a new scope each time: a {% set %} in the body does not
 * last until the next item, as in Jinja. */
static enum jflow jinja_run_loop(struct jrender *render, const struct jnode *node,
                                 struct jscope *scope, struct jlist *items)
{
    struct jloop *loop = arena_zalloc(render->arena, sizeof *loop);
    enum jflow flow = JF_ON;
    size_t i;

    if (loop == NULL) {
        if (jinja_no_memory(render))
            return JF_ON;
        return JF_FAILED;
    }
    loop->list = items;
    for (i = 0; i < items->n && (flow == JF_ON || flow == JF_CONTINUE); i++) {
        struct jscope *inner = arena_zalloc(render->arena, sizeof *inner);

        if (inner == NULL) {
            (void)jinja_no_memory(render);
            return JF_FAILED;
        }
        if (!jinja_step(render, 8)) /* each pass allocates a scope */
            return JF_FAILED;
        inner->parent = scope;
        loop->at = i;
        if (!jinja_scope_set(render, inner, "loop", 4,
                             (struct jval){.kind = JV_LOOP, .loop = loop}) ||
            !jinja_assign_target(render, node->a, inner, items->items[i]))
            return JF_FAILED;
        flow = jinja_run_body(render, node->body, inner);
    }
    if (flow == JF_FAILED)
        return JF_FAILED;
    return JF_ON;
}

/* A for statement; its else part runs when there are no items. */
static enum jflow jinja_run_for(struct jrender *render, const struct jnode *node,
                                struct jscope *scope)
{
    struct jlist *items;
    struct jval list;

    if (!jinja_eval(render, node->b, scope, &list) || !jv_iterate(render, list, &items))
        return JF_FAILED;
    /* The filter must run before the loop, because loop.length and loop.last depend on it. */
    if (node->c != NULL && !jinja_loop_items(render, node, scope, &items))
        return JF_FAILED;
    /* The else part runs if the loop has no pass, also if its filter has dropped all items. */
    if (items->n == 0) {
        if (node->other == NULL)
            return JF_ON;
        return jinja_run_body(render, node->other, scope);
    }
    return jinja_run_loop(render, node, scope, items);
}

/* Make the value of a macro or of a call block's body. */
static bool jinja_define_macro(struct jrender *render, const struct jnode *node,
                               const struct jnode *params, const char *name, struct jscope *scope,
                               struct jval *out)
{
    struct jmacro *macro = arena_zalloc(render->arena, sizeof *macro);

    if (macro == NULL)
        return jinja_no_memory(render);
    *macro = (struct jmacro){.node = node, .params = params, .name = name, .scope = scope};
    *out = (struct jval){.kind = JV_MACRO, .macro = macro};
    return true;
}

/* Bind a parameter: positional, named, or its default, which is evaluated in the macro's scope. */
static bool jinja_bind_param(struct jrender *render, const struct jnode *param, size_t place,
                             const struct jargs *args, struct jscope *scope)
{
    struct jval value;

    if (!jinja_arg(args, place, param->text, &value)) {
        /* A parameter without an argument and without a default is undefined; using it is an
         * error only where an undefined value is. */
        value = jv_undefined(param->text, param->len);
        if (param->a != NULL && !jinja_eval(render, param->a, scope, &value))
            return false;
    }
    return jinja_scope_set(render, scope, param->text, param->len, value);
}

/* Bind the arguments that have no parameter: varargs, kwargs, and `caller` of a call block. */
static bool jinja_bind_rest(struct jrender *render, const struct jmacro *macro, size_t n_params,
                            const struct jargs *args, struct jscope *scope)
{
    struct jdict *kwargs = jdict_new(render, 0);
    struct jlist *varargs = jlist_new(render, 0);
    size_t i;

    if (kwargs == NULL || varargs == NULL)
        return false;
    /* Positional arguments beyond the parameters are kept for templates that read varargs. */
    for (i = n_params; i < args->n_placed; i++)
        if (!jlist_add(render, varargs, args->values[i]))
            return false;
    /* Named arguments without a parameter go to kwargs, except `caller`, which is a variable of its
     * own. */
    for (i = args->n_placed; i < args->n; i++) {
        const struct jnode *p = macro->params;
        const char *name = args->names[i];

        while (p != NULL && strcmp(p->text, name) != 0)
            p = p->next;
        if (strcmp(name, "caller") == 0) {
            if (!jinja_scope_set(render, scope, name, 6, args->values[i]))
                return false;
        } else if (p == NULL &&
                   !jdict_set(render, kwargs, jv_text(name, strlen(name)), args->values[i])) {
            return false;
        }
    }
    return jinja_scope_set(render, scope, "varargs", 7,
                           (struct jval){.kind = JV_TUPLE, .list = varargs}) &&
           jinja_scope_set(render, scope, "kwargs", 6,
                           (struct jval){.kind = JV_DICT, .dict = kwargs});
}

/* Call a macro: its result is the text that its body prints. The parent scope is the one where it
 * was defined, not the caller's. */
bool jinja_call_macro(struct jrender *render, const struct jmacro *macro, const struct jargs *args,
                      struct jval *out)
{
    struct jscope *scope = arena_zalloc(render->arena, sizeof *scope);
    const struct jnode *p;
    size_t place = 0;
    enum jflow flow;

    must(macro->node != NULL && args != NULL);
    if (scope == NULL)
        return jinja_no_memory(render);
    /* Macros may call themselves. The limit is below that of expressions, so that the error
     * names the macro. */
    if (render->depth >= JINJA_DEPTH_MAX * 16)
        return jinja_fault_set(&render->fault, ERR_LIMIT,
                               "line %d: macros call each other too deep", render->line);
    scope->parent = macro->scope;
    /* Parameters are bound in order, so the default of one may refer to an earlier one. */
    for (p = macro->params; p != NULL; p = p->next)
        if (!jinja_bind_param(render, p, place++, args, scope))
            return false;
    if (!jinja_bind_rest(render, macro, place, args, scope))
        return false;
    render->depth += 8; /* a call takes more stack than an expression */
    flow = jinja_capture_body(render, macro->node->body, scope, out);
    render->depth -= 8;
    return flow != JF_FAILED;
}

/* A call block: call the macro with its own arguments and the block's body as `caller`. */
static enum jflow jinja_run_call_block(struct jrender *render, const struct jnode *node,
                                       struct jscope *scope)
{
    struct jval callee;
    struct jval caller;
    struct jval text;
    struct jargs args;
    struct jargs with = {0};
    size_t i;

    /* The node's child is the call; its own body and parameters make the macro `caller`. */
    if (!jinja_eval(render, node->a->a, scope, &callee) ||
        !jinja_eval_args(render, node->a->b, scope, &args) ||
        !jinja_define_macro(render, node, node->b, "caller", scope, &caller))
        return JF_FAILED;
    with.values = arena_alloc(render->arena, (args.n + 1) * sizeof *with.values);
    with.names = arena_alloc(render->arena, (args.n + 1) * sizeof *with.names);
    if (with.values == NULL || with.names == NULL) {
        (void)jinja_no_memory(render);
        return JF_FAILED;
    }
    /* The arguments of the call, and after them `caller` by name. Positional ones remain first,
     * as struct jargs demands. */
    for (i = 0; i < args.n; i++) {
        with.values[i] = args.values[i];
        with.names[i] = args.names[i];
    }
    with.values[args.n] = caller;
    with.names[args.n] = "caller";
    with.n = args.n + 1;
    with.n_placed = args.n_placed;
    /* The macro's text is printed here, in place of the block. */
    if (!jinja_call(render, callee, &with, &text) || !jv_str(render, render->out, text))
        return JF_FAILED;
    return JF_ON;
}

/* Render a body and evaluate the filters over it, in which JN_PIPED is the rendered text. */
static enum jflow jinja_run_filtered(struct jrender *render, const struct jnode *body,
                                     const struct jnode *filters, struct jscope *scope,
                                     struct jval *out)
{
    struct jscope *inner = arena_zalloc(render->arena, sizeof *inner);
    struct jval outer = render->piped;
    struct jval text;
    enum jflow flow;
    bool good;

    if (inner == NULL) {
        (void)jinja_no_memory(render);
        return JF_FAILED;
    }
    /* The body runs in an inner scope: variables set within a filter block are not seen after
     * it. */
    inner->parent = scope;
    flow = jinja_capture_body(render, body, inner, &text);
    if (flow == JF_FAILED)
        return flow;
    /* Filters may be nested, for example by a macro that a filter calls, so the outer value is
     * kept. */
    render->piped = text;
    good = jinja_eval(render, filters, scope, out);
    render->piped = outer;
    if (good)
        return flow;
    return JF_FAILED;
}

/* A with block: its variables are in a scope of their own. */
static enum jflow jinja_run_with(struct jrender *render, const struct jnode *node,
                                 struct jscope *scope)
{
    struct jscope *inner = arena_zalloc(render->arena, sizeof *inner);
    const struct jnode *set;
    struct jval value;

    if (inner == NULL) {
        (void)jinja_no_memory(render);
        return JF_FAILED;
    }
    inner->parent = scope;
    /* Values are evaluated in the outer scope: `with a = 1, b = a` takes the a from before the
     * block. */
    for (set = node->a; set != NULL; set = set->next)
        if (!jinja_eval(render, set->b, scope, &value) ||
            !jinja_assign_target(render, set->a, inner, value))
            return JF_FAILED;
    return jinja_run_body(render, node->body, inner);
}

/* An if statement: run the body of the first condition in the chain that holds. */
static enum jflow jinja_run_if(struct jrender *render, const struct jnode *node,
                               struct jscope *scope)
{
    /* elif is an if in the else part of another one; they are followed in a loop instead of a
     * recursion, because a chain may be long. */
    while (node != NULL && node->kind == JN_IF) {
        struct jval holds;

        if (!jinja_eval(render, node->a, scope, &holds))
            return JF_FAILED;
        if (jv_truth(holds))
            return jinja_run_body(render, node->body, scope);
        node = node->other;
    }
    if (node == NULL)
        return JF_ON;
    return jinja_run_body(render, node, scope);
}

/* Statements that compute one value and then assign or print it. */
static enum jflow jinja_run_value(struct jrender *render, const struct jnode *node,
                                  struct jscope *scope)
{
    struct jval value;
    enum jflow flow = JF_ON;
    bool good;

    if (node->kind == JN_SET_BLOCK)
        flow = jinja_run_filtered(render, node->body, node->b, scope, &value);
    else if (node->kind == JN_FILTER_BLOCK)
        flow = jinja_run_filtered(render, node->body, node->a, scope, &value);
    else if (node->kind == JN_MACRO) {
        if (jinja_define_macro(render, node, node->a, node->text, scope, &value))
            flow = JF_ON;
        else
            flow = JF_FAILED;
    } else {
        if (jinja_eval(render, node->kind == JN_SET ? node->b : node->a, scope, &value))
            flow = JF_ON;
        else
            flow = JF_FAILED;
    }
    if (flow == JF_FAILED)
        return flow;
    /* Assignments print nothing; an output and a filter block print the value. */
    if (node->kind == JN_SET || node->kind == JN_SET_BLOCK)
        good = jinja_assign_target(render, node->a, scope, value);
    else if (node->kind == JN_MACRO)
        good = jinja_scope_set(render, scope, node->text, node->len, value);
    else
        good = jv_str(render, render->out, value);
    if (good)
        return flow;
    return JF_FAILED;
}

/* Run a statement by its kind. */
static enum jflow jinja_run_one(struct jrender *render, const struct jnode *node,
                                struct jscope *scope)
{
    /* break and continue are no errors but reasons to stop: each loop on the way out handles
     * them. */
    switch (node->kind) {
    case JN_DATA: jbuf_add(render, render->out, jv_own(node->text, node->len)); return JF_ON;
    case JN_OUTPUT:
    case JN_SET:
    case JN_SET_BLOCK:
    case JN_FILTER_BLOCK:
    case JN_MACRO: return jinja_run_value(render, node, scope);
    case JN_FOR: return jinja_run_for(render, node, scope);
    case JN_IF: return jinja_run_if(render, node, scope);
    case JN_CALL_BLOCK: return jinja_run_call_block(render, node, scope);
    case JN_WITH: return jinja_run_with(render, node, scope);
    case JN_GENERATION: return jinja_run_body(render, node->body, scope);
    case JN_BREAK: return JF_BREAK;
    case JN_CONTINUE: return JF_CONTINUE;
    case JN_CONST:
    case JN_NAME:
    case JN_LIST:
    case JN_TUPLE:
    case JN_DICT:
    case JN_PAIR:
    case JN_ATTR:
    case JN_ITEM:
    case JN_SLICE:
    case JN_CALL:
    case JN_ARG:
    case JN_FILTER:
    case JN_TEST:
    case JN_NOT:
    case JN_NEGATE:
    case JN_PLUS:
    case JN_BINARY:
    case JN_COMPARE:
    case JN_OPERAND:
    case JN_AND:
    case JN_OR:
    case JN_TERNARY:
    case JN_PIPED: break;
    }
    if (jinja_raise(render, "a value is used where a statement is expected"))
        return JF_ON;
    return JF_FAILED;
}

/* Run a list of statements until one breaks, continues or fails. */
enum jflow jinja_run_body(struct jrender *render, const struct jnode *node, struct jscope *scope)
{
    enum jflow flow = JF_ON;

    for (; node != NULL && flow == JF_ON; node = node->next) {
        render->line = node->line;
        if (!jinja_step(render, 1))
            return JF_FAILED;
        /* The limit is checked per statement: one statement can add only as much as the limit of
         * a buffer allows. */
        if (render->out->text.failed || render->out->text.len > JINJA_OUTPUT_MAX) {
            (void)jinja_fault_set(&render->fault, ERR_LIMIT, "the template's output is too long");
            return JF_FAILED;
        }
        flow = jinja_run_one(render, node, scope);
    }
    return flow;
}
