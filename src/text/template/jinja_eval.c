/* SPDX-License-Identifier: Apache-2.0
 *
 * The evaluator: walks the nodes. A scope is a list of variables with a parent; a loop's body,
 * a macro and a with-block have scopes of their own, an if has none. Names are looked up when
 * they are used, so that macros may call each other whatever their order. */
#include "text/template/jinja_parts.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#define LOCALS_MAX 64 /* arguments of one call */

static enum jflow run_body(struct jrender *r, const struct jnode *n, struct jscope *s);

static struct jvar *scope_find(struct jscope *s, const char *name, size_t len, bool own)
{
    struct jvar *v;

    for (; s != NULL; s = own ? NULL : s->parent)
        for (v = s->vars; v != NULL; v = v->next)
            if (v->len == len && memcmp(v->name, name, len) == 0)
                return v;
    return NULL;
}

static bool scope_set(struct jrender *r, struct jscope *s, const char *name, size_t len,
                      struct jval value)
{
    struct jvar *v = scope_find(s, name, len, true);

    if (v == NULL) {
        v = arena_alloc(r->arena, sizeof *v);
        if (v == NULL)
            return jno_memory(r);
        *v = (struct jvar){.next = s->vars, .name = name, .len = len};
        s->vars = v;
    }
    v->value = value;
    return true;
}

static void name_value(struct jscope *s, const struct jnode *n, struct jval *out)
{
    const struct jvar *v = scope_find(s, n->text, n->len, false);

    if (v != NULL) {
        *out = v->value;
    } else if (jglobal_exists(n->text, n->len)) {
        *out = jv_text(n->text, n->len);
        out->kind = JV_GLOBAL;
    } else {
        *out = jv_undefined(n->text, n->len);
    }
}

static bool eval_list(struct jrender *r, const struct jnode *n, struct jscope *s, struct jval *out)
{
    struct jlist *l = jlist_new(r, 0);
    const struct jnode *item;
    struct jval v;

    if (l == NULL)
        return false;
    for (item = n->a; item != NULL; item = item->next)
        if (!jeval(r, item, s, &v) || !jlist_add(r, l, v))
            return false;
    *out = jv_list(l);
    if (n->kind == JN_TUPLE)
        out->kind = JV_TUPLE;
    return true;
}

static bool eval_dict(struct jrender *r, const struct jnode *n, struct jscope *s, struct jval *out)
{
    struct jdict *d = jdict_new(r, 0);
    const struct jnode *pair;
    struct jval key;
    struct jval value;

    if (d == NULL)
        return false;
    for (pair = n->a; pair != NULL; pair = pair->next)
        if (!jeval(r, pair->a, s, &key) || !jeval(r, pair->b, s, &value) ||
            !jdict_set(r, d, key, value))
            return false;
    *out = (struct jval){.kind = JV_DICT, .dict = d};
    return true;
}

static bool eval_args(struct jrender *r, const struct jnode *arg, struct jscope *s,
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
        return jraise(r, "more than %d arguments", LOCALS_MAX);
    args->values = arena_alloc(r->arena, n * sizeof *args->values);
    args->names = arena_zalloc(r->arena, n * sizeof *args->names);
    if (args->values == NULL || args->names == NULL)
        return jno_memory(r);
    for (a = arg; a != NULL; a = a->next) {
        if (a->text == NULL && args->n != args->n_placed)
            return jraise(r, "an argument by place follows one by name");
        args->names[args->n] = a->text;
        if (!jeval(r, a->a, s, &args->values[args->n]))
            return false;
        args->n++;
        args->n_placed += a->text == NULL;
    }
    return true;
}

bool jarg(const struct jargs *args, size_t place, const char *name, struct jval *out)
{
    size_t i;

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

struct jval jarg_or(const struct jargs *args, size_t place, const char *name, struct jval preset)
{
    struct jval v = preset;

    (void)jarg(args, place, name, &v); /* the preset stays when it is not given */
    return v;
}

/* A slice's bound: clamped as Python does. */
static bool slice_bound(struct jrender *r, const struct jnode *n, struct jscope *s, int64_t len,
                        bool backward, int64_t preset, int64_t *out)
{
    int64_t low = backward ? -1 : 0;
    int64_t high = backward ? len - 1 : len;
    struct jval v = jv_none();

    if (n != NULL && !jeval(r, n, s, &v))
        return false;
    *out = preset;
    if (v.kind == JV_NONE)
        return true;
    if (v.kind != JV_INT && v.kind != JV_BOOL)
        return jraise(r, "slice indices must be integers or None");
    *out = jv_int_of(v);
    if (*out < 0)
        *out = *out < -len ? low : *out + len;
    if (*out > high)
        *out = high;
    if (*out < low)
        *out = low;
    return true;
}

static bool eval_slice(struct jrender *r, const struct jnode *n, struct jscope *s, struct jval *out)
{
    struct jval of;
    struct jval step = jv_int(1);
    struct jlist *from = NULL;
    struct jlist *l;
    struct jbuf text = {0};
    int64_t start;
    int64_t stop;
    int64_t len;
    int64_t i;
    bool back;

    if (!jeval(r, n->a, s, &of) || (n->d != NULL && !jeval(r, n->d, s, &step)))
        return false;
    if (of.kind == JV_UNDEFINED) {
        *out = jv_undefined("slice", 5);
        return of.len == 0 || jraise(r, "'%.80s' is undefined", of.text);
    }
    if (of.kind != JV_TEXT && of.kind != JV_LIST && of.kind != JV_TUPLE)
        return jraise(r, "'%s' object cannot be sliced", jv_type_name(of));
    if (step.kind == JV_NONE)
        step = jv_int(1);
    if (step.kind != JV_INT || step.whole == 0 || step.whole > INT32_MAX || step.whole < -INT32_MAX)
        return jraise(r, "slice step must be an integer other than zero");
    if (!jv_iterate(r, of, &from) || (l = jlist_new(r, 0)) == NULL)
        return false;
    len = (int64_t)from->n;
    back = step.whole < 0;
    if (!slice_bound(r, n->b, s, len, back, back ? len - 1 : 0, &start) ||
        !slice_bound(r, n->c, s, len, back, back ? -1 : len, &stop))
        return false;
    for (i = start; back ? i > stop : i < stop; i += step.whole) {
        if (of.kind == JV_TEXT)
            jbuf_add(r, &text, from->items[i]);
        else if (!jlist_add(r, l, from->items[i]))
            return false;
    }
    if (of.kind != JV_TEXT) {
        *out = (struct jval){.kind = of.kind, .list = l};
        return true;
    }
    if (!jbuf_take(r, &text, out))
        return false;
    out->safe = of.safe;
    return true;
}

static bool contains(struct jrender *r, struct jval of, struct jval v, bool *out)
{
    struct jlist *l;
    size_t i;

    *out = false;
    if (of.kind == JV_TEXT) {
        if (v.kind != JV_TEXT)
            return jraise(r, "'in <string>' requires string as left operand, not %s",
                          jv_type_name(v));
        *out = jtext_find(of.text, of.len, v.text, v.len) != NULL;
        return jstep(r, 1 + of.len / 64);
    }
    if (of.kind == JV_DICT) {
        *out = jdict_get(of.dict, v) != NULL;
        return jstep(r, 1 + of.dict->n / 16);
    }
    if (!jv_iterate(r, of, &l))
        return false;
    for (i = 0; i < l->n && !*out; i++)
        *out = jv_equal(l->items[i], v);
    return jstep(r, 1 + i / 4);
}

static bool compare_one(struct jrender *r, const char *op, struct jval a, struct jval b, bool *out)
{
    int order = 0;

    if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0) {
        *out = jv_equal(a, b) == (op[0] == '=');
        return true;
    }
    if (strcmp(op, "in") == 0)
        return contains(r, b, a, out);
    if (strcmp(op, "not in") == 0) {
        if (!contains(r, b, a, out))
            return false;
        *out = !*out;
        return true;
    }
    if (!jv_compare(r, a, b, &order))
        return false;
    *out = op[0] == '<' ? order < 0 : order > 0;
    if (op[1] == '=')
        *out = *out || order == 0;
    return true;
}

static bool eval_compare(struct jrender *r, const struct jnode *n, struct jscope *s,
                         struct jval *out)
{
    const struct jnode *operand;
    struct jval left;
    bool holds = true;

    if (!jeval(r, n->a, s, &left))
        return false;
    for (operand = n->b; operand != NULL && holds; operand = operand->next) {
        struct jval right;

        if (!jeval(r, operand->a, s, &right) || !compare_one(r, operand->text, left, right, &holds))
            return false;
        left = right;
    }
    *out = jv_bool(holds);
    return true;
}

static bool eval_call(struct jrender *r, const struct jnode *n, struct jscope *s, struct jval *out)
{
    struct jval callee;
    struct jargs args;

    if (!jeval(r, n->a, s, &callee) || !eval_args(r, n->b, s, &args))
        return false;
    r->line = n->line;
    return jcall(r, callee, &args, out);
}

static bool eval_filter(struct jrender *r, const struct jnode *n, struct jscope *s,
                        struct jval *out)
{
    struct jval in;
    struct jargs args;
    bool holds;

    if (!jeval(r, n->a, s, &in) || !eval_args(r, n->b, s, &args))
        return false;
    r->line = n->line;
    if (n->kind == JN_FILTER)
        return jfilter(r, n->text, in, &args, out);
    if (!jtest(r, n->text, in, &args, &holds))
        return false;
    *out = jv_bool(holds);
    return true;
}

static bool eval_sign(struct jrender *r, const struct jnode *n, struct jscope *s, struct jval *out)
{
    struct jval v;

    if (!jeval(r, n->a, s, &v))
        return false;
    if (!jv_is_number(v))
        return jraise(r, "bad operand type for unary %c: '%s'", n->kind == JN_PLUS ? '+' : '-',
                      jv_type_name(v));
    if (v.kind == JV_REAL)
        *out = jv_real(n->kind == JN_PLUS ? v.real : -v.real);
    else if (jv_int_of(v) == INT64_MIN)
        return jraise(r, "a whole number is out of range");
    else
        *out = jv_int(n->kind == JN_PLUS ? jv_int_of(v) : -jv_int_of(v));
    return true;
}

static bool eval_logic(struct jrender *r, const struct jnode *n, struct jscope *s, struct jval *out)
{
    if (!jeval(r, n->a, s, out))
        return false;
    if (n->kind == JN_NOT) {
        *out = jv_bool(!jv_truth(*out));
        return true;
    }
    if (n->kind == JN_TERNARY) {
        if (jv_truth(*out))
            return jeval(r, n->b, s, out);
        *out = jv_undefined("the inline if-expression", 24);
        return n->c == NULL || jeval(r, n->c, s, out);
    }
    if (jv_truth(*out) == (n->kind == JN_OR))
        return true;
    return jeval(r, n->b, s, out);
}

static bool eval_two(struct jrender *r, const struct jnode *n, struct jscope *s, struct jval *out)
{
    struct jval a;
    struct jval b;

    if (!jeval(r, n->a, s, &a))
        return false;
    r->line = n->line;
    if (n->kind == JN_ATTR)
        return jattr(r, a, n->text, n->len, false, out);
    if (!jeval(r, n->b, s, &b))
        return false;
    if (n->kind == JN_ITEM)
        return jitem(r, a, b, out);
    return jbinary(r, n->text, a, b, out);
}

static bool eval_kind(struct jrender *r, const struct jnode *n, struct jscope *s, struct jval *out)
{
    switch (n->kind) {
    case JN_CONST:
        *out = n->value;
        out->origin = &jorigin_own;
        return true;
    case JN_PIPED: *out = r->piped; return true;
    case JN_NAME: name_value(s, n, out); return true;
    case JN_LIST:
    case JN_TUPLE: return eval_list(r, n, s, out);
    case JN_DICT: return eval_dict(r, n, s, out);
    case JN_ATTR:
    case JN_ITEM:
    case JN_BINARY: return eval_two(r, n, s, out);
    case JN_SLICE: return eval_slice(r, n, s, out);
    case JN_CALL: return eval_call(r, n, s, out);
    case JN_FILTER:
    case JN_TEST: return eval_filter(r, n, s, out);
    case JN_NEGATE:
    case JN_PLUS: return eval_sign(r, n, s, out);
    case JN_COMPARE: return eval_compare(r, n, s, out);
    case JN_NOT:
    case JN_AND:
    case JN_OR:
    case JN_TERNARY: return eval_logic(r, n, s, out);
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
    return jraise(r, "a statement stands where a value is expected");
}

/* Expressions are as deep as the parser allows (left-leaning chains of operators excepted, which
 * the depth here bounds); macros call each other within the same count. */
bool jeval(struct jrender *r, const struct jnode *n, struct jscope *s, struct jval *out)
{
    bool good;

    if (!jstep(r, 1))
        return false;
    if (r->depth >= JINJA_DEPTH_MAX * 20)
        return jfault_set(&r->fault, ERR_LIMIT, "line %d: the template nests too deep", n->line);
    r->depth++;
    good = eval_kind(r, n, s, out);
    r->depth--;
    return good;
}

/* --- statements --------------------------------------------------------------------------------*/

static bool assign(struct jrender *r, const struct jnode *target, struct jscope *s, struct jval v)
{
    struct jlist *items;
    const struct jnode *t;
    struct jval object;
    size_t i = 0;

    if (target->kind == JN_NAME)
        return scope_set(r, s, target->text, target->len, v);
    if (target->kind == JN_ATTR) {
        if (!jeval(r, target->a, s, &object))
            return false;
        if (object.kind != JV_NAMESPACE)
            return jraise(r, "cannot assign attribute on non-namespace object");
        return jdict_set(r, object.dict, jv_text(target->text, target->len), v);
    }
    if (!jv_iterate(r, v, &items))
        return false;
    for (t = target->a; t != NULL; t = t->next) {
        if (i == items->n)
            return jraise(r, "not enough values to unpack");
        if (!assign(r, t, s, items->items[i++]))
            return false;
    }
    return i == items->n || jraise(r, "too many values to unpack");
}

/* Run a body into a text of its own. */
static enum jflow capture(struct jrender *r, const struct jnode *body, struct jscope *s,
                          struct jval *out)
{
    struct jbuf text = {.text = {.limit = JINJA_OUTPUT_MAX}};
    struct jbuf *outer = r->out;
    enum jflow flow;

    r->out = &text;
    flow = run_body(r, body, s);
    r->out = outer;
    if (flow == JF_FAILED) {
        buf_fini(&text.text);
        return JF_FAILED;
    }
    return jbuf_take(r, &text, out) ? flow : JF_FAILED;
}

/* Items that pass a loop's filter. */
static bool filter_items(struct jrender *r, const struct jnode *n, struct jscope *s,
                         struct jlist **items)
{
    struct jlist *kept = jlist_new(r, 0);
    size_t i;

    if (kept == NULL)
        return false;
    for (i = 0; i < (*items)->n; i++) {
        struct jscope inner = {.parent = s};
        struct jval holds;

        if (!assign(r, n->a, &inner, (*items)->items[i]) || !jeval(r, n->c, &inner, &holds))
            return false;
        if (jv_truth(holds) && !jlist_add(r, kept, (*items)->items[i]))
            return false;
    }
    *items = kept;
    return true;
}

static enum jflow run_loop(struct jrender *r, const struct jnode *n, struct jscope *s,
                           struct jlist *items)
{
    struct jloop *loop = arena_zalloc(r->arena, sizeof *loop);
    enum jflow flow = JF_ON;
    size_t i;

    if (loop == NULL)
        return jno_memory(r) ? JF_ON : JF_FAILED;
    loop->list = items;
    loop->depth = r->loop_depth++;
    for (i = 0; i < items->n && (flow == JF_ON || flow == JF_CONTINUE); i++) {
        struct jscope *inner = arena_zalloc(r->arena, sizeof *inner);

        if (inner == NULL) {
            (void)jno_memory(r);
            return JF_FAILED;
        }
        if (!jstep(r, 8)) /* each round takes memory for its variables */
            return JF_FAILED;
        inner->parent = s;
        loop->at = i;
        if (!scope_set(r, inner, "loop", 4, (struct jval){.kind = JV_LOOP, .loop = loop}) ||
            !assign(r, n->a, inner, items->items[i]))
            return JF_FAILED;
        flow = run_body(r, n->body, inner);
    }
    r->loop_depth--;
    return flow == JF_FAILED ? JF_FAILED : JF_ON;
}

static enum jflow run_for(struct jrender *r, const struct jnode *n, struct jscope *s)
{
    struct jlist *items;
    struct jval list;

    if (!jeval(r, n->b, s, &list) || !jv_iterate(r, list, &items))
        return JF_FAILED;
    if (n->c != NULL && !filter_items(r, n, s, &items))
        return JF_FAILED;
    if (items->n == 0)
        return n->other == NULL ? JF_ON : run_body(r, n->other, s);
    return run_loop(r, n, s, items);
}

static bool define_macro(struct jrender *r, const struct jnode *n, const struct jnode *params,
                         const char *name, struct jscope *s, struct jval *out)
{
    struct jmacro *m = arena_zalloc(r->arena, sizeof *m);

    if (m == NULL)
        return jno_memory(r);
    *m = (struct jmacro){.node = n, .params = params, .name = name, .scope = s};
    *out = (struct jval){.kind = JV_MACRO, .macro = m};
    return true;
}

/* The value of one parameter: given by place, by name, or its default. */
static bool bind_param(struct jrender *r, const struct jmacro *m, const struct jnode *param,
                       size_t place, const struct jargs *args, struct jscope *s)
{
    struct jval v;

    if (!jarg(args, place, param->text, &v)) {
        v = jv_undefined(param->text, param->len);
        if (param->a != NULL && !jeval(r, param->a, s, &v))
            return false;
    }
    (void)m;
    return scope_set(r, s, param->text, param->len, v);
}

static bool bind_rest(struct jrender *r, const struct jmacro *m, size_t n_params,
                      const struct jargs *args, struct jscope *s)
{
    struct jdict *kwargs = jdict_new(r, 0);
    struct jlist *varargs = jlist_new(r, 0);
    size_t i;

    if (kwargs == NULL || varargs == NULL)
        return false;
    for (i = n_params; i < args->n_placed; i++)
        if (!jlist_add(r, varargs, args->values[i]))
            return false;
    for (i = args->n_placed; i < args->n; i++) {
        const struct jnode *p = m->params;
        const char *name = args->names[i];

        while (p != NULL && strcmp(p->text, name) != 0)
            p = p->next;
        if (strcmp(name, "caller") == 0) {
            if (!scope_set(r, s, name, 6, args->values[i]))
                return false;
        } else if (p == NULL &&
                   !jdict_set(r, kwargs, jv_text(name, strlen(name)), args->values[i])) {
            return false;
        }
    }
    return scope_set(r, s, "varargs", 7, (struct jval){.kind = JV_TUPLE, .list = varargs}) &&
           scope_set(r, s, "kwargs", 6, (struct jval){.kind = JV_DICT, .dict = kwargs});
}

bool jmacro_call(struct jrender *r, const struct jmacro *m, const struct jargs *args,
                 struct jval *out)
{
    struct jscope *s = arena_zalloc(r->arena, sizeof *s);
    const struct jnode *p;
    size_t place = 0;
    enum jflow flow;

    if (s == NULL)
        return jno_memory(r);
    if (r->depth >= JINJA_DEPTH_MAX * 16)
        return jfault_set(&r->fault, ERR_LIMIT, "line %d: macros call each other too deep",
                          r->line);
    s->parent = m->scope;
    for (p = m->params; p != NULL; p = p->next)
        if (!bind_param(r, m, p, place++, args, s))
            return false;
    if (!bind_rest(r, m, place, args, s))
        return false;
    r->depth += 8; /* a call takes more of the stack than an expression */
    flow = capture(r, m->node->body, s, out);
    r->depth -= 8;
    return flow != JF_FAILED;
}

static enum jflow run_call_block(struct jrender *r, const struct jnode *n, struct jscope *s)
{
    struct jval callee;
    struct jval caller;
    struct jval text;
    struct jargs args;
    struct jargs with = {0};
    size_t i;

    if (!jeval(r, n->a->a, s, &callee) || !eval_args(r, n->a->b, s, &args) ||
        !define_macro(r, n, n->b, "caller", s, &caller))
        return JF_FAILED;
    with.values = arena_alloc(r->arena, (args.n + 1) * sizeof *with.values);
    with.names = arena_alloc(r->arena, (args.n + 1) * sizeof *with.names);
    if (with.values == NULL || with.names == NULL) {
        (void)jno_memory(r);
        return JF_FAILED;
    }
    for (i = 0; i < args.n; i++) {
        with.values[i] = args.values[i];
        with.names[i] = args.names[i];
    }
    with.values[args.n] = caller;
    with.names[args.n] = "caller";
    with.n = args.n + 1;
    with.n_placed = args.n_placed;
    if (!jcall(r, callee, &with, &text) || !jv_str(r, r->out, text))
        return JF_FAILED;
    return JF_ON;
}

/* Render the body, send it through the filters over JN_PIPED. */
static enum jflow run_filtered(struct jrender *r, const struct jnode *body,
                               const struct jnode *filters, struct jscope *s, struct jval *out)
{
    struct jscope *inner = arena_zalloc(r->arena, sizeof *inner);
    struct jval outer = r->piped;
    struct jval text;
    enum jflow flow;
    bool good;

    if (inner == NULL) {
        (void)jno_memory(r);
        return JF_FAILED;
    }
    inner->parent = s;
    flow = capture(r, body, inner, &text);
    if (flow == JF_FAILED)
        return flow;
    r->piped = text;
    good = jeval(r, filters, s, out);
    r->piped = outer;
    return good ? flow : JF_FAILED;
}

static enum jflow run_with(struct jrender *r, const struct jnode *n, struct jscope *s)
{
    struct jscope *inner = arena_zalloc(r->arena, sizeof *inner);
    const struct jnode *set;
    struct jval v;

    if (inner == NULL) {
        (void)jno_memory(r);
        return JF_FAILED;
    }
    inner->parent = s;
    for (set = n->a; set != NULL; set = set->next)
        if (!jeval(r, set->b, s, &v) || !assign(r, set->a, inner, v))
            return JF_FAILED;
    return run_body(r, n->body, inner);
}

static enum jflow run_if(struct jrender *r, const struct jnode *n, struct jscope *s)
{
    while (n != NULL && n->kind == JN_IF) {
        struct jval holds;

        if (!jeval(r, n->a, s, &holds))
            return JF_FAILED;
        if (jv_truth(holds))
            return run_body(r, n->body, s);
        n = n->other;
    }
    return n == NULL ? JF_ON : run_body(r, n, s);
}

/* Statements that bind or print one value. */
static enum jflow run_value(struct jrender *r, const struct jnode *n, struct jscope *s)
{
    struct jval v;
    enum jflow flow = JF_ON;
    bool good;

    if (n->kind == JN_SET_BLOCK)
        flow = run_filtered(r, n->body, n->b, s, &v);
    else if (n->kind == JN_FILTER_BLOCK)
        flow = run_filtered(r, n->body, n->a, s, &v);
    else if (n->kind == JN_MACRO)
        flow = define_macro(r, n, n->a, n->text, s, &v) ? JF_ON : JF_FAILED;
    else
        flow = jeval(r, n->kind == JN_SET ? n->b : n->a, s, &v) ? JF_ON : JF_FAILED;
    if (flow == JF_FAILED)
        return flow;
    if (n->kind == JN_SET || n->kind == JN_SET_BLOCK)
        good = assign(r, n->a, s, v);
    else if (n->kind == JN_MACRO)
        good = scope_set(r, s, n->text, n->len, v);
    else
        good = jv_str(r, r->out, v);
    return good ? flow : JF_FAILED;
}

static enum jflow run_one(struct jrender *r, const struct jnode *n, struct jscope *s)
{
    switch (n->kind) {
    case JN_DATA: jbuf_add(r, r->out, jv_own(n->text, n->len)); return JF_ON;
    case JN_OUTPUT:
    case JN_SET:
    case JN_SET_BLOCK:
    case JN_FILTER_BLOCK:
    case JN_MACRO: return run_value(r, n, s);
    case JN_FOR: return run_for(r, n, s);
    case JN_IF: return run_if(r, n, s);
    case JN_CALL_BLOCK: return run_call_block(r, n, s);
    case JN_WITH: return run_with(r, n, s);
    case JN_GENERATION: return run_body(r, n->body, s);
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
    return jraise(r, "a value stands where a statement is expected") ? JF_ON : JF_FAILED;
}

static enum jflow run_body(struct jrender *r, const struct jnode *n, struct jscope *s)
{
    enum jflow flow = JF_ON;

    for (; n != NULL && flow == JF_ON; n = n->next) {
        r->line = n->line;
        if (!jstep(r, 1))
            return JF_FAILED;
        if (r->out->text.failed || r->out->text.len > JINJA_OUTPUT_MAX) {
            (void)jfault_set(&r->fault, ERR_LIMIT, "the template's output is too long");
            return JF_FAILED;
        }
        flow = run_one(r, n, s);
    }
    return flow;
}

/* --- the module's face -------------------------------------------------------------------------*/

struct jinja_var {
    struct jinja_var *next;
    const char *name;
    struct jval value;
};

void jinja_vars_init(struct jinja_vars *v, struct arena *arena)
{
    *v = (struct jinja_vars){.arena = arena};
}

static void vars_add(struct jinja_vars *v, const char *name, struct jval value)
{
    struct jinja_var *var = arena_alloc(v->arena, sizeof *var);

    if (var == NULL) {
        v->failed = true;
        return;
    }
    *var = (struct jinja_var){.next = v->first, .name = name, .value = value};
    v->first = var;
}

void jinja_vars_json(struct jinja_vars *v, const char *name, const struct json *node)
{
    vars_add(v, name, jv_from_json(v->arena, node, &v->failed));
}

void jinja_vars_text(struct jinja_vars *v, const char *name, const char *text, size_t len)
{
    vars_add(v, name, jv_own(text, len));
}

void jinja_vars_trust(struct jinja_vars *v, const char *name, const char *member,
                      const char *const *words)
{
    const struct jinja_var *var = v->first;

    while (var != NULL && strcmp(var->name, name) != 0)
        var = var->next;
    if (var == NULL || var->value.kind != JV_LIST)
        return;
    for (size_t i = 0; i < var->value.list->n; i++) {
        struct jval item = var->value.list->items[i];
        struct jval *text = NULL;

        if (item.kind == JV_DICT)
            text = jdict_get_text(item.dict, member, strlen(member));
        for (size_t w = 0; text != NULL && words[w] != NULL; w++)
            if (jv_is(*text, words[w]))
                text->origin = &jorigin_own;
    }
}

void jinja_vars_bool(struct jinja_vars *v, const char *name, bool flag)
{
    vars_add(v, name, jv_bool(flag));
}

void jinja_vars_int(struct jinja_vars *v, const char *name, int64_t number)
{
    vars_add(v, name, jv_int(number));
}

void jinja_vars_none(struct jinja_vars *v, const char *name)
{
    vars_add(v, name, jv_none());
}

int jinja_render(const struct jinja *j, const struct jinja_vars *v, struct arena *arena,
                 struct buf *out, char *why, size_t why_cap)
{
    struct jbuf text = {.text = *out};
    struct jrender r = {.arena = arena, .out = &text, .steps = JINJA_STEPS_MAX};
    struct jscope given = {0};
    struct jscope top = {.parent = &given};
    const struct jinja_var *var;

    r.now_unix_s = v->now_unix_s;
    if (v->failed)
        (void)jno_memory(&r);
    for (var = v->first; var != NULL && r.fault.rc == ERR_OK; var = var->next)
        if (scope_find(&given, var->name, strlen(var->name), true) == NULL)
            (void)scope_set(&r, &given, var->name, strlen(var->name), var->value);
    if (r.fault.rc == ERR_OK)
        (void)run_body(&r, j->body, &top);
    *out = text.text;
    if (r.fault.rc == ERR_OK && out->failed)
        (void)jno_memory(&r);
    if (v->own != NULL)
        *v->own = text.own;
    if (r.fault.rc != ERR_OK && why != NULL && why_cap > 0)
        (void)snprintf(why, why_cap, "%s", r.fault.text);
    return r.fault.rc;
}

int jinja_compile(struct jinja **out, const char *source, size_t len, char *why, size_t why_cap)
{
    struct jinja *j = mem_zalloc(sizeof *j);
    struct arena scratch = {0};
    struct jfault fault = {0};
    struct jtoken *tokens;

    if (j == NULL)
        return ERR_NO_MEMORY;
    tokens = jinja_lex(&j->arena, source, len, &fault);
    if (tokens != NULL)
        j->body = jinja_parse(j, tokens, &fault);
    arena_reset(&scratch);
    if (j->body != NULL) {
        *out = j;
        return ERR_OK;
    }
    jinja_close(j);
    if (why != NULL && why_cap > 0)
        (void)snprintf(why, why_cap, "%s", fault.text);
    return fault.rc;
}

void jinja_close(struct jinja *j)
{
    if (j == NULL)
        return;
    arena_reset(&j->arena);
    mem_free(j);
}
