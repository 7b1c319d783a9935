/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser: recursive descent by Jinja's own grammar, into nodes in the template's arena. Its
 * depth is counted and bounded, for expressions and statements together. */
#include "text/template/jinja_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PARSE_DEPTH_MAX 200 /* one level of brackets takes one */

struct parser {
    struct jinja *j;
    const struct jtoken *at;
    struct jfault *fault;
    int depth;
    int loops; /* that enclose; break and continue need one */
};

static struct jnode *parse_expr(struct parser *p);
static struct jnode *parse_unary(struct parser *p, bool with_filter);
static struct jnode *parse_body(struct parser *p, const char *const *ends);
static struct jnode *parse_tuple(struct parser *p, bool with_ternary, bool explicit_parens);
static struct jnode *parse_or(struct parser *p);

static struct jnode *parse_fail(struct parser *p, const char *what)
{
    (void)jfault_set(p->fault, ERR_SYNTAX, "line %d: %s, not \"%.40s\"", p->at->line, what,
                     p->at->kind == JT_END ? "the end" : p->at->text);
    return NULL;
}

static struct jnode *node_new(struct parser *p, enum jnode_kind kind)
{
    struct jnode *n = arena_zalloc(&p->j->arena, sizeof *n);

    if (n == NULL) {
        (void)jfault_set(p->fault, ERR_NO_MEMORY, "out of memory for the template");
        return NULL;
    }
    n->kind = kind;
    n->line = p->at->line;
    return n;
}

static bool is_op(const struct parser *p, const char *op)
{
    return p->at->kind == JT_OP && strcmp(p->at->text, op) == 0;
}

static bool is_name(const struct parser *p, const char *name)
{
    return p->at->kind == JT_NAME && strcmp(p->at->text, name) == 0;
}

static bool take_op(struct parser *p, const char *op)
{
    if (!is_op(p, op))
        return false;
    p->at++;
    return true;
}

static bool take_name(struct parser *p, const char *name)
{
    if (!is_name(p, name))
        return false;
    p->at++;
    return true;
}

static bool need_op(struct parser *p, const char *op)
{
    if (take_op(p, op))
        return true;
    return jfault_set(p->fault, ERR_SYNTAX, "line %d: '%s' is expected, not \"%.40s\"", p->at->line,
                      op, p->at->text);
}

static bool need_block_end(struct parser *p)
{
    if (p->at->kind != JT_BLOCK_END)
        return parse_fail(p, "the end of the tag is expected") != NULL;
    p->at++;
    return true;
}

static bool enter(struct parser *p)
{
    if (++p->depth <= PARSE_DEPTH_MAX)
        return true;
    return jfault_set(p->fault, ERR_LIMIT, "line %d: the template nests too deep", p->at->line);
}

static struct jnode *node_text(struct parser *p, enum jnode_kind kind, const struct jtoken *t)
{
    struct jnode *n = node_new(p, kind);

    if (n != NULL) {
        n->text = t->text;
        n->len = t->len;
    }
    return n;
}

static struct jnode *node_binary(struct parser *p, enum jnode_kind kind, struct jnode *a,
                                 struct jnode *b)
{
    struct jnode *n = a == NULL || b == NULL ? NULL : node_new(p, kind);

    if (n != NULL) {
        n->a = a;
        n->b = b;
    }
    return n;
}

/* --- expressions -------------------------------------------------------------------------------*/

static struct jnode *parse_constant(struct parser *p)
{
    const struct jtoken *t = p->at++;
    struct jnode *n = node_new(p, JN_CONST);
    struct buf joined = {0};

    if (n == NULL)
        return NULL;
    if (t->kind == JT_REAL) {
        n->value = jv_real(strtod(t->text, NULL));
        return n;
    }
    if (t->kind == JT_INT) {
        errno = 0;
        n->value = jv_int(strtoll(t->text, NULL, 10));
        if (errno != 0) {
            n->value = jv_text(t->text, t->len);
            n->value.kind = JV_BIG;
        }
        return n;
    }
    n->value = jv_text(t->text, t->len);
    if (p->at->kind != JT_TEXT)
        return n;
    buf_add(&joined, t->text, t->len); /* "a" "b" is "ab" */
    for (; p->at->kind == JT_TEXT; p->at++)
        buf_add(&joined, p->at->text, p->at->len);
    n->value = jv_text(joined.failed ? NULL : arena_strndup(&p->j->arena, joined.bytes, joined.len),
                       joined.len);
    buf_fini(&joined);
    if (n->value.text == NULL)
        (void)jfault_set(p->fault, ERR_NO_MEMORY, "out of memory for the template");
    return n->value.text == NULL ? NULL : n;
}

static struct jnode *parse_name(struct parser *p)
{
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    const struct jtoken *t = p->at++;
    struct jnode *n = node_text(p, JN_NAME, t);
    size_t i;

    for (i = 0; n != NULL && i < 6; i++)
        if (strcmp(t->text, words[i]) == 0) {
            n->kind = JN_CONST;
            n->value = i < 4 ? jv_bool(i < 2) : jv_none();
        }
    return n;
}

static struct jnode *parse_list(struct parser *p)
{
    struct jnode *list = node_new(p, JN_LIST);
    struct jnode **tail;

    p->at++;
    if (list == NULL)
        return NULL;
    tail = &list->a;
    while (!is_op(p, "]")) {
        if (list->a != NULL && !need_op(p, ","))
            return NULL;
        if (is_op(p, "]"))
            break;
        *tail = parse_expr(p);
        if (*tail == NULL)
            return NULL;
        tail = &(*tail)->next;
    }
    p->at++;
    return list;
}

static struct jnode *parse_dict(struct parser *p)
{
    struct jnode *dict = node_new(p, JN_DICT);
    struct jnode **tail;

    p->at++;
    if (dict == NULL)
        return NULL;
    tail = &dict->a;
    while (!is_op(p, "}")) {
        struct jnode *key;

        if (dict->a != NULL && !need_op(p, ","))
            return NULL;
        if (is_op(p, "}"))
            break;
        key = parse_expr(p);
        if (key == NULL || !need_op(p, ":"))
            return NULL;
        *tail = node_binary(p, JN_PAIR, key, parse_expr(p));
        if (*tail == NULL)
            return NULL;
        tail = &(*tail)->next;
    }
    p->at++;
    return dict;
}

static struct jnode *parse_primary(struct parser *p)
{
    struct jnode *n;

    if (p->at->kind == JT_NAME)
        return parse_name(p);
    if (p->at->kind == JT_TEXT || p->at->kind == JT_INT || p->at->kind == JT_REAL)
        return parse_constant(p);
    if (is_op(p, "["))
        return parse_list(p);
    if (is_op(p, "{"))
        return parse_dict(p);
    if (!take_op(p, "("))
        return parse_fail(p, "an expression is expected");
    n = parse_tuple(p, true, true);
    return n != NULL && need_op(p, ")") ? n : NULL;
}

/* After '(': the arguments up to ')', as a list of JN_ARG below the node. */
static bool parse_args(struct parser *p, struct jnode *call)
{
    struct jnode **tail = &call->b;

    while (!is_op(p, ")")) {
        struct jnode *arg;

        if (call->b != NULL && !need_op(p, ","))
            return false;
        if (is_op(p, ")"))
            break;
        arg = node_new(p, JN_ARG);
        if (arg == NULL)
            return false;
        if (p->at->kind == JT_NAME && p->at[1].kind == JT_OP && strcmp(p->at[1].text, "=") == 0) {
            arg->text = p->at->text;
            p->at += 2;
        }
        arg->a = parse_expr(p);
        if (arg->a == NULL)
            return false;
        *tail = arg;
        tail = &arg->next;
    }
    p->at++;
    return true;
}

static struct jnode *parse_call(struct parser *p, struct jnode *callee)
{
    struct jnode *n = node_new(p, JN_CALL);

    p->at++;
    if (n == NULL)
        return NULL;
    n->a = callee;
    return parse_args(p, n) ? n : NULL;
}

/* After '[': an index or a slice. */
static struct jnode *parse_subscript(struct parser *p, struct jnode *of)
{
    struct jnode *n = node_new(p, JN_ITEM);

    if (n == NULL)
        return NULL;
    n->a = of;
    if (!is_op(p, ":")) {
        n->b = parse_tuple(p, true, false);
        if (n->b == NULL)
            return NULL;
    }
    if (take_op(p, ":")) {
        n->kind = JN_SLICE;
        if (!is_op(p, "]") && !is_op(p, ":") && (n->c = parse_expr(p)) == NULL)
            return NULL;
        if (take_op(p, ":") && !is_op(p, "]") && (n->d = parse_expr(p)) == NULL)
            return NULL;
    }
    return need_op(p, "]") ? n : NULL;
}

static struct jnode *parse_attr(struct parser *p, struct jnode *of)
{
    struct jnode *n;

    if (p->at->kind == JT_NAME) {
        n = node_text(p, JN_ATTR, p->at++);
        if (n != NULL)
            n->a = of;
        return n;
    }
    if (p->at->kind != JT_INT)
        return parse_fail(p, "a name is expected after '.'");
    return node_binary(p, JN_ITEM, of, parse_constant(p));
}

static struct jnode *parse_postfix(struct parser *p, struct jnode *n)
{
    while (n != NULL) {
        if (take_op(p, "."))
            n = parse_attr(p, n);
        else if (take_op(p, "["))
            n = parse_subscript(p, n);
        else if (is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

static struct jnode *parse_filter(struct parser *p, struct jnode *in)
{
    struct jnode *n;

    if (p->at->kind != JT_NAME)
        return parse_fail(p, "a filter's name is expected");
    n = node_text(p, JN_FILTER, p->at++);
    if (n == NULL)
        return NULL;
    n->a = in;
    if (take_op(p, "(") && !parse_args(p, n))
        return NULL;
    return n;
}

static bool begins_test_argument(const struct parser *p)
{
    if (p->at->kind == JT_NAME)
        return !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and") &&
               !is_name(p, "is") && !is_name(p, "if") && !is_name(p, "not") && !is_name(p, "in");
    return p->at->kind == JT_TEXT || p->at->kind == JT_INT || p->at->kind == JT_REAL ||
           is_op(p, "[") || is_op(p, "{");
}

static struct jnode *parse_test(struct parser *p, struct jnode *in)
{
    bool negated = take_name(p, "not");
    struct jnode *n;
    struct jnode *not_node;

    if (p->at->kind != JT_NAME)
        return parse_fail(p, "a test's name is expected");
    n = node_text(p, JN_TEST, p->at++);
    if (n == NULL)
        return NULL;
    n->a = in;
    if (take_op(p, "(")) {
        if (!parse_args(p, n))
            return NULL;
    } else if (begins_test_argument(p)) {
        n->b = node_new(p, JN_ARG);
        if (n->b == NULL || (n->b->a = parse_postfix(p, parse_primary(p))) == NULL)
            return NULL;
    }
    if (!negated)
        return n;
    not_node = node_new(p, JN_NOT);
    if (not_node != NULL)
        not_node->a = n;
    return not_node;
}

static struct jnode *parse_filters(struct parser *p, struct jnode *n)
{
    while (n != NULL) {
        if (take_op(p, "|"))
            n = parse_filter(p, n);
        else if (take_name(p, "is"))
            n = parse_test(p, n);
        else if (is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

static struct jnode *parse_unary(struct parser *p, bool with_filter)
{
    struct jnode *n = NULL;

    if (!enter(p))
        return NULL;
    if (is_op(p, "-") || is_op(p, "+")) {
        enum jnode_kind kind = is_op(p, "-") ? JN_NEGATE : JN_PLUS;

        p->at++;
        n = node_new(p, kind);
        if (n != NULL && (n->a = parse_unary(p, false)) == NULL)
            n = NULL;
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_filters(p, n);
    p->depth--;
    return n;
}

/* Operators of one rank, from the loosest; each binds to the left. */
static const char *const binary_ops[][5] = {{"+", "-", NULL},
                                            {"~", NULL},
                                            {"*", "/", "//", "%", NULL},
                                            {"**", NULL}};

static struct jnode *parse_binary(struct parser *p, size_t rank)
{
    struct jnode *left;
    size_t i = 0;

    if (rank == sizeof binary_ops / sizeof binary_ops[0])
        return parse_unary(p, true);
    left = parse_binary(p, rank + 1);
    while (left != NULL) {
        for (i = 0; binary_ops[rank][i] != NULL; i++)
            if (is_op(p, binary_ops[rank][i]))
                break;
        if (binary_ops[rank][i] == NULL)
            break;
        p->at++;
        left = node_binary(p, JN_BINARY, left, parse_binary(p, rank + 1));
        if (left != NULL)
            left->text = binary_ops[rank][i];
    }
    return left;
}

/* The comparison at the parser, taken; NULL when there is none. */
static const char *take_comparison(struct parser *p)
{
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">=", "in"};
    size_t i;

    for (i = 0; i < 7; i++)
        if (i < 6 ? take_op(p, ops[i]) : take_name(p, ops[i]))
            return ops[i];
    if (is_name(p, "not") && p->at[1].kind == JT_NAME && strcmp(p->at[1].text, "in") == 0) {
        p->at += 2;
        return "not in";
    }
    return NULL;
}

static struct jnode *parse_compare(struct parser *p)
{
    struct jnode *first = parse_binary(p, 0);
    struct jnode *n = NULL;
    struct jnode **tail = NULL;
    const char *op;

    while (first != NULL && (op = take_comparison(p)) != NULL) {
        struct jnode *operand;

        if (n == NULL) {
            n = node_new(p, JN_COMPARE);
            if (n == NULL)
                return NULL;
            n->a = first;
            tail = &n->b;
        }
        operand = node_new(p, JN_OPERAND);
        if (operand == NULL || (operand->a = parse_binary(p, 0)) == NULL)
            return NULL;
        operand->text = op;
        *tail = operand;
        tail = &operand->next;
    }
    return n != NULL ? n : first;
}

static struct jnode *parse_not(struct parser *p)
{
    struct jnode *n;

    if (!is_name(p, "not"))
        return parse_compare(p);
    if (!enter(p))
        return NULL;
    p->at++;
    n = node_new(p, JN_NOT);
    if (n != NULL && (n->a = parse_not(p)) == NULL)
        n = NULL;
    p->depth--;
    return n;
}

static struct jnode *parse_and(struct parser *p)
{
    struct jnode *left = parse_not(p);

    while (left != NULL && take_name(p, "and"))
        left = node_binary(p, JN_AND, left, parse_not(p));
    return left;
}

static struct jnode *parse_or(struct parser *p)
{
    struct jnode *left = parse_and(p);

    while (left != NULL && take_name(p, "or"))
        left = node_binary(p, JN_OR, left, parse_and(p));
    return left;
}

static struct jnode *parse_expr(struct parser *p)
{
    struct jnode *n;

    if (!enter(p))
        return NULL;
    n = parse_or(p);
    while (n != NULL && take_name(p, "if")) {
        struct jnode *choice = node_binary(p, JN_TERNARY, parse_or(p), n);

        if (choice != NULL && take_name(p, "else") && (choice->c = parse_expr(p)) == NULL)
            choice = NULL;
        n = choice;
    }
    p->depth--;
    return n;
}

static bool ends_tuple(const struct parser *p)
{
    return p->at->kind == JT_VAR_END || p->at->kind == JT_BLOCK_END || is_op(p, ")") ||
           is_op(p, "]") || is_op(p, "=") || is_name(p, "in");
}

/* One expression, or several with commas as a tuple. */
static struct jnode *parse_tuple(struct parser *p, bool with_ternary, bool explicit_parens)
{
    struct jnode *tuple = node_new(p, JN_TUPLE);
    struct jnode **tail;
    bool commas = false;

    if (tuple == NULL)
        return NULL;
    tail = &tuple->a;
    while (!ends_tuple(p)) {
        *tail = with_ternary ? parse_expr(p) : parse_or(p);
        if (*tail == NULL)
            return NULL;
        tail = &(*tail)->next;
        if (!take_op(p, ","))
            break;
        commas = true;
    }
    if (!commas && tuple->a != NULL)
        return tuple->a;
    if (!commas && !explicit_parens)
        return parse_fail(p, "an expression is expected");
    return tuple;
}

/* --- statements --------------------------------------------------------------------------------*/

/* The target of for and set: names, a tuple of names, or one attribute. */
static struct jnode *parse_target(struct parser *p, bool with_attr)
{
    struct jnode *tuple = node_new(p, JN_TUPLE);
    struct jnode **tail;
    bool commas = false;

    if (tuple == NULL)
        return NULL;
    tail = &tuple->a;
    do {
        bool parens = take_op(p, "(");

        if (tuple->a != NULL && p->at->kind != JT_NAME)
            break; /* a comma at the end */
        if (p->at->kind != JT_NAME)
            return parse_fail(p, "a name is expected");
        if (parens) {
            *tail = enter(p) ? parse_target(p, false) : NULL;
            p->depth--;
            if (*tail == NULL || !need_op(p, ")"))
                return NULL;
        } else {
            *tail = node_text(p, JN_NAME, p->at++);
            if (*tail == NULL)
                return NULL;
        }
        if (with_attr && !commas && is_op(p, ".")) {
            p->at++;
            return parse_attr(p, *tail);
        }
        tail = &(*tail)->next;
        if (!is_op(p, ","))
            break;
        commas = true;
    } while (take_op(p, ","));
    return commas ? tuple : tuple->a;
}

static struct jnode *parse_for(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const end[] = {"endfor", NULL};
    struct jnode *n = node_new(p, JN_FOR);

    if (n == NULL || (n->a = parse_target(p, false)) == NULL)
        return NULL;
    if (!take_name(p, "in"))
        return parse_fail(p, "'in' is expected");
    if ((n->b = parse_tuple(p, false, false)) == NULL)
        return NULL;
    if (take_name(p, "if") && (n->c = parse_expr(p)) == NULL)
        return NULL;
    if (is_name(p, "recursive")) {
        (void)jfault_set(p->fault, ERR_UNSUPPORTED, "line %d: recursive loops are not supported",
                         p->at->line);
        return NULL;
    }
    p->loops++;
    if (!need_block_end(p) || (n->body = parse_body(p, ends)) == NULL)
        return NULL;
    p->loops--;
    if (take_name(p, "else")) {
        if (!need_block_end(p) || (n->other = parse_body(p, end)) == NULL)
            return NULL;
    }
    p->at++;
    return need_block_end(p) ? n : NULL;
}

static struct jnode *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const end[] = {"endif", NULL};
    struct jnode *first = NULL;
    struct jnode **place = &first;
    bool more = true;

    while (more) {
        struct jnode *n = node_new(p, JN_IF);

        if (n == NULL || (n->a = parse_tuple(p, true, false)) == NULL || !need_block_end(p) ||
            (n->body = parse_body(p, ends)) == NULL)
            return NULL;
        *place = n;
        place = &n->other;
        more = take_name(p, "elif");
    }
    if (take_name(p, "else")) {
        if (!need_block_end(p) || (*place = parse_body(p, end)) == NULL)
            return NULL;
    }
    p->at++; /* endif */
    return need_block_end(p) ? first : NULL;
}

static struct jnode *parse_piped(struct parser *p)
{
    struct jnode *n = node_new(p, JN_PIPED);

    while (n != NULL && take_op(p, "|"))
        n = parse_filter(p, n);
    return n;
}

static struct jnode *parse_set(struct parser *p)
{
    static const char *const end[] = {"endset", NULL};
    struct jnode *n = node_new(p, JN_SET);

    if (n == NULL || (n->a = parse_target(p, true)) == NULL)
        return NULL;
    if (take_op(p, "=")) {
        n->b = parse_tuple(p, true, false);
        return n->b != NULL && need_block_end(p) ? n : NULL;
    }
    n->kind = JN_SET_BLOCK;
    if ((n->b = parse_piped(p)) == NULL || !need_block_end(p) ||
        (n->body = parse_body(p, end)) == NULL)
        return NULL;
    p->at++;
    return need_block_end(p) ? n : NULL;
}

/* "(a, b=1)": parameters as a list of JN_ARG. */
static bool parse_params(struct parser *p, struct jnode **first)
{
    struct jnode **tail = first;

    if (!need_op(p, "("))
        return false;
    while (!is_op(p, ")")) {
        struct jnode *param;

        if (*first != NULL && !need_op(p, ","))
            return false;
        if (p->at->kind != JT_NAME)
            return parse_fail(p, "a parameter's name is expected") != NULL;
        param = node_text(p, JN_ARG, p->at++);
        if (param == NULL)
            return false;
        if (take_op(p, "=") && (param->a = parse_expr(p)) == NULL)
            return false;
        *tail = param;
        tail = &param->next;
    }
    p->at++;
    return true;
}

static struct jnode *parse_macro(struct parser *p)
{
    static const char *const end[] = {"endmacro", NULL};
    struct jnode *n;
    int loops = p->loops;

    if (p->at->kind != JT_NAME)
        return parse_fail(p, "a macro's name is expected");
    n = node_text(p, JN_MACRO, p->at++);
    if (n == NULL || !parse_params(p, &n->a) || !need_block_end(p))
        return NULL;
    p->loops = 0;
    n->body = parse_body(p, end);
    p->loops = loops;
    if (n->body == NULL)
        return NULL;
    p->at++;
    if (p->at->kind == JT_NAME)
        p->at++; /* endmacro may repeat the name */
    return need_block_end(p) ? n : NULL;
}

static struct jnode *parse_call_block(struct parser *p)
{
    static const char *const end[] = {"endcall", NULL};
    struct jnode *n = node_new(p, JN_CALL_BLOCK);

    if (n == NULL || (is_op(p, "(") && !parse_params(p, &n->b)))
        return NULL;
    n->a = parse_expr(p);
    if (n->a == NULL || n->a->kind != JN_CALL)
        return n->a == NULL ? NULL : parse_fail(p, "a call is expected");
    if (!need_block_end(p) || (n->body = parse_body(p, end)) == NULL)
        return NULL;
    p->at++;
    return need_block_end(p) ? n : NULL;
}

static struct jnode *parse_with(struct parser *p)
{
    static const char *const end[] = {"endwith", NULL};
    struct jnode *n = node_new(p, JN_WITH);
    struct jnode **tail;

    if (n == NULL)
        return NULL;
    tail = &n->a;
    while (p->at->kind != JT_BLOCK_END) {
        struct jnode *set = node_new(p, JN_SET);

        if (n->a != NULL && !need_op(p, ","))
            return NULL;
        if (set == NULL || (set->a = parse_target(p, false)) == NULL || !need_op(p, "=") ||
            (set->b = parse_expr(p)) == NULL)
            return NULL;
        *tail = set;
        tail = &set->next;
    }
    p->at++;
    if ((n->body = parse_body(p, end)) == NULL)
        return NULL;
    p->at++;
    return need_block_end(p) ? n : NULL;
}

static struct jnode *parse_wrapped(struct parser *p, enum jnode_kind kind)
{
    static const char *const generation_end[] = {"endgeneration", NULL};
    static const char *const filter_end[] = {"endfilter", NULL};
    struct jnode *n = node_new(p, kind);

    if (n == NULL)
        return NULL;
    if (kind == JN_FILTER_BLOCK) {
        struct jnode *piped = node_new(p, JN_PIPED);

        n->a = piped == NULL ? NULL : parse_filter(p, piped);
        while (n->a != NULL && take_op(p, "|"))
            n->a = parse_filter(p, n->a);
        if (n->a == NULL)
            return NULL;
    }
    if (!need_block_end(p))
        return NULL;
    n->body = parse_body(p, kind == JN_FILTER_BLOCK ? filter_end : generation_end);
    if (n->body == NULL)
        return NULL;
    p->at++;
    return need_block_end(p) ? n : NULL;
}

static struct jnode *parse_jump(struct parser *p, enum jnode_kind kind)
{
    struct jnode *n = node_new(p, kind);

    if (p->loops == 0)
        return parse_fail(p, "break and continue need a loop around them");
    return n != NULL && need_block_end(p) ? n : NULL;
}

static struct jnode *parse_statement(struct parser *p)
{
    if (take_name(p, "for"))
        return parse_for(p);
    if (take_name(p, "if"))
        return parse_if(p);
    if (take_name(p, "set"))
        return parse_set(p);
    if (take_name(p, "macro"))
        return parse_macro(p);
    if (take_name(p, "call"))
        return parse_call_block(p);
    if (take_name(p, "with"))
        return parse_with(p);
    if (take_name(p, "filter"))
        return parse_wrapped(p, JN_FILTER_BLOCK);
    if (take_name(p, "generation"))
        return parse_wrapped(p, JN_GENERATION);
    if (take_name(p, "break"))
        return parse_jump(p, JN_BREAK);
    if (take_name(p, "continue"))
        return parse_jump(p, JN_CONTINUE);
    (void)jfault_set(p->fault, p->at->kind == JT_NAME ? ERR_UNSUPPORTED : ERR_SYNTAX,
                     "line %d: the tag \"%.40s\" is not supported here", p->at->line, p->at->text);
    return NULL;
}

static bool at_end(const struct parser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++)
        if (p->at[1].kind == JT_NAME && strcmp(p->at[1].text, *ends) == 0)
            return true;
    return false;
}

static struct jnode *parse_one(struct parser *p)
{
    struct jnode *n;

    if (p->at->kind == JT_DATA)
        return node_text(p, JN_DATA, p->at++);
    if (p->at->kind == JT_BLOCK_BEGIN) {
        p->at++;
        return parse_statement(p);
    }
    p->at++;
    n = node_new(p, JN_OUTPUT);
    if (n == NULL || (n->a = parse_tuple(p, true, false)) == NULL)
        return NULL;
    if (p->at->kind != JT_VAR_END)
        return parse_fail(p, "'}}' is expected");
    p->at++;
    return n;
}

/* Statements up to one of the ends (NULL: the end of the template), whose name is then at the
 * parser. The list is never empty: it begins with a JN_DATA of no text. */
static struct jnode *parse_body(struct parser *p, const char *const *ends)
{
    struct jnode *first;
    struct jnode **tail;

    if (!enter(p))
        return NULL;
    first = node_new(p, JN_DATA);
    if (first == NULL)
        return NULL;
    tail = &first->next;
    for (;;) { /* ends with the tokens */
        if (p->at->kind == JT_END) {
            if (ends != NULL)
                return parse_fail(p, "the end of a block is expected");
            break;
        }
        if (p->at->kind == JT_BLOCK_BEGIN && at_end(p, ends)) {
            p->at++;
            break;
        }
        *tail = parse_one(p);
        if (*tail == NULL)
            return NULL;
        tail = &(*tail)->next;
    }
    p->depth--;
    return first;
}

struct jnode *jinja_parse(struct jinja *j, const struct jtoken *tokens, struct jfault *fault)
{
    struct parser p = {.j = j, .at = tokens, .fault = fault};

    return parse_body(&p, NULL);
}
