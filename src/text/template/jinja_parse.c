/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser: recursive descent over the tokens, with Jinja's own grammar. Nodes are allocated in
 * the template's arena. Operators from loosest to tightest:
 *
 *     a if b else c   or   and   not   comparisons   + -   ~   * / // %   **   unary   . [] () | is
 *
 * Depth is counted for expressions and statements together and bounded, because the recursion
 * follows the source. Functions return NULL after an error, with the reason in parser->fault. */
#include "text/template/jinja_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"

#define PARSE_DEPTH_MAX 200 /* a pair of brackets takes two levels */

/* `at` is the next token. The last token is JT_END, so looking one token ahead is always
 * possible. */
struct jinja_parser {
    struct jinja *j;
    const struct jtoken *at;
    struct jfault *fault;
    int depth;
    int loops; /* loops around the current statement; break and continue need one */
};

static struct jnode *jinja_parse_expr(struct jinja_parser *parser);
static struct jnode *jinja_parse_unary(struct jinja_parser *parser, bool with_filter);
static struct jnode *jinja_parse_body(struct jinja_parser *parser, const char *const *ends);
static struct jnode *jinja_parse_tuple(struct jinja_parser *parser, bool with_ternary,
                                       bool explicit_parens);
static struct jnode *jinja_parse_or(struct jinja_parser *parser);

/* Report a syntax error: the expected construct and the token found instead. */
static struct jnode *jinja_parse_fail(struct jinja_parser *parser, const char *what)
{
    (void)jinja_fault_set(parser->fault, ERR_SYNTAX, "line %d: %s, not \"%.40s\"", parser->at->line,
                          what, parser->at->kind == JT_END ? "the end" : parser->at->text);
    return NULL;
}

static struct jnode *jinja_node_new(struct jinja_parser *parser, enum jnode_kind kind)
{
    struct jnode *node = arena_zalloc(&parser->j->arena, sizeof *node);

    if (node == NULL) {
        (void)jinja_fault_set(parser->fault, ERR_NO_MEMORY, "out of memory for the template");
        return NULL;
    }
    node->kind = kind;
    node->line = parser->at->line;
    return node;
}

/* "is_at" looks at the next token, "take" also consumes it if it matches, "need" fails if it does
 * not. */
static bool jinja_is_at_op(const struct jinja_parser *parser, const char *op)
{
    return parser->at->kind == JT_OP && strcmp(parser->at->text, op) == 0;
}

static bool jinja_is_at_name(const struct jinja_parser *parser, const char *name)
{
    return parser->at->kind == JT_NAME && strcmp(parser->at->text, name) == 0;
}

static bool jinja_take_op(struct jinja_parser *parser, const char *op)
{
    if (!jinja_is_at_op(parser, op))
        return false;
    parser->at++;
    return true;
}

static bool jinja_take_name(struct jinja_parser *parser, const char *name)
{
    if (!jinja_is_at_name(parser, name))
        return false;
    parser->at++;
    return true;
}

static bool jinja_need_op(struct jinja_parser *parser, const char *op)
{
    if (jinja_take_op(parser, op))
        return true;
    return jinja_fault_set(parser->fault, ERR_SYNTAX, "line %d: '%s' is expected, not \"%.40s\"",
                           parser->at->line, op, parser->at->text);
}

static bool jinja_need_block_end(struct jinja_parser *parser)
{
    if (parser->at->kind != JT_BLOCK_END)
        return jinja_parse_fail(parser, "the end of the tag is expected") != NULL;
    parser->at++;
    return true;
}

static bool jinja_enter_nesting(struct jinja_parser *parser)
{
    if (++parser->depth <= PARSE_DEPTH_MAX)
        return true;
    return jinja_fault_set(parser->fault, ERR_LIMIT, "line %d: the template nests too deep",
                           parser->at->line);
}

/* A node whose text is that of a token. */
static struct jnode *jinja_node_text(struct jinja_parser *parser, enum jnode_kind kind,
                                     const struct jtoken *token)
{
    struct jnode *node = jinja_node_new(parser, kind);

    if (node != NULL) {
        node->text = token->text;
        node->len = token->len;
    }
    return node;
}

/* A node with two children; NULL when one of them failed. */
static struct jnode *jinja_node_binary(struct jinja_parser *parser, enum jnode_kind kind,
                                       struct jnode *a, struct jnode *b)
{
    struct jnode *node = a == NULL || b == NULL ? NULL : jinja_node_new(parser, kind);

    if (node != NULL) {
        node->a = a;
        node->b = b;
    }
    return node;
}

/* --- expressions -------------------------------------------------------------------------------*/

/* A number or a string. An integer that does not fit into 64 bits is kept as text (JV_BIG). */

static struct jnode *jinja_parse_constant(struct jinja_parser *parser)
{
    const struct jtoken *token = parser->at++;
    struct jnode *node = jinja_node_new(parser, JN_CONST);
    struct buf joined = {0};

    if (node == NULL)
        return NULL;
    if (token->kind == JT_REAL) {
        node->value = jv_real(strtod(token->text, NULL));
        return node;
    }
    if (token->kind == JT_INT) {
        errno = 0;
        node->value = jv_int(strtoll(token->text, NULL, 10));
        if (errno != 0) {
            node->value = jv_text(token->text, token->len);
            node->value.kind = JV_BIG;
        }
        return node;
    }
    node->value = jv_text(token->text, token->len);
    if (parser->at->kind != JT_TEXT)
        return node;
    buf_add(&joined, token->text, token->len); /* adjacent strings are joined: "a" "b" is "ab" */
    for (; parser->at->kind == JT_TEXT; parser->at++)
        buf_add(&joined, parser->at->text, parser->at->len);
    node->value =
        jv_text(joined.failed ? NULL : arena_strndup(&parser->j->arena, joined.bytes, joined.len),
                joined.len);
    buf_fini(&joined);
    if (node->value.text == NULL)
        (void)jinja_fault_set(parser->fault, ERR_NO_MEMORY, "out of memory for the template");
    if (node->value.text == NULL)
        return NULL;
    return node;
}

/* A variable, or one of Python's constants in either spelling. */
static struct jnode *jinja_parse_name(struct jinja_parser *parser)
{
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    const struct jtoken *token = parser->at++;
    struct jnode *node = jinja_node_text(parser, JN_NAME, token);
    size_t i;

    for (i = 0; node != NULL && i < 6; i++)
        if (strcmp(token->text, words[i]) == 0) {
            node->kind = JN_CONST;
            if (i < 4)
                node->value = jv_bool(i < 2);
            else
                node->value = jv_none();
        }
    return node;
}

/* [a, b, c]; a comma before the bracket is allowed. */
static struct jnode *jinja_parse_list(struct jinja_parser *parser)
{
    struct jnode *list = jinja_node_new(parser, JN_LIST);
    struct jnode **tail;

    parser->at++;
    if (list == NULL)
        return NULL;
    tail = &list->a;
    while (!jinja_is_at_op(parser, "]")) {
        if (list->a != NULL && !jinja_need_op(parser, ","))
            return NULL;
        if (jinja_is_at_op(parser, "]"))
            break;
        *tail = jinja_parse_expr(parser);
        if (*tail == NULL)
            return NULL;
        tail = &(*tail)->next;
    }
    parser->at++;
    return list;
}

/* {"a": 1, "b": 2} */
static struct jnode *jinja_parse_dict(struct jinja_parser *parser)
{
    struct jnode *dict = jinja_node_new(parser, JN_DICT);
    struct jnode **tail;

    parser->at++;
    if (dict == NULL)
        return NULL;
    tail = &dict->a;
    while (!jinja_is_at_op(parser, "}")) {
        struct jnode *key;

        if (dict->a != NULL && !jinja_need_op(parser, ","))
            return NULL;
        if (jinja_is_at_op(parser, "}"))
            break;
        key = jinja_parse_expr(parser);
        if (key == NULL || !jinja_need_op(parser, ":"))
            return NULL;
        *tail = jinja_node_binary(parser, JN_PAIR, key, jinja_parse_expr(parser));
        if (*tail == NULL)
            return NULL;
        tail = &(*tail)->next;
    }
    parser->at++;
    return dict;
}

/* An expression without operators; parentheses may hold a tuple. */
static struct jnode *jinja_parse_primary(struct jinja_parser *parser)
{
    struct jnode *node;

    if (parser->at->kind == JT_NAME)
        return jinja_parse_name(parser);
    if (parser->at->kind == JT_TEXT || parser->at->kind == JT_INT || parser->at->kind == JT_REAL)
        return jinja_parse_constant(parser);
    if (jinja_is_at_op(parser, "["))
        return jinja_parse_list(parser);
    if (jinja_is_at_op(parser, "{"))
        return jinja_parse_dict(parser);
    if (!jinja_take_op(parser, "("))
        return jinja_parse_fail(parser, "an expression is expected");
    node = jinja_parse_tuple(parser, true, true);
    if (node != NULL && jinja_need_op(parser, ")"))
        return node;
    return NULL;
}

/* After '(': parse arguments up to ')' into a list of JN_ARG, call->b. f(1, name=2) */
static bool jinja_parse_args(struct jinja_parser *parser, struct jnode *call)
{
    struct jnode **tail = &call->b;

    while (!jinja_is_at_op(parser, ")")) {
        struct jnode *arg;

        if (call->b != NULL && !jinja_need_op(parser, ","))
            return false;
        if (jinja_is_at_op(parser, ")"))
            break;
        arg = jinja_node_new(parser, JN_ARG);
        if (arg == NULL)
            return false;
        if (parser->at->kind == JT_NAME && parser->at[1].kind == JT_OP &&
            strcmp(parser->at[1].text, "=") == 0) {
            arg->text = parser->at->text;
            parser->at += 2;
        }
        arg->a = jinja_parse_expr(parser);
        if (arg->a == NULL)
            return false;
        *tail = arg;
        tail = &arg->next;
    }
    parser->at++;
    return true;
}

/* A call; the parser is at '('. */
static struct jnode *jinja_parse_call(struct jinja_parser *parser, struct jnode *callee)
{
    struct jnode *node = jinja_node_new(parser, JN_CALL);

    parser->at++;
    if (node == NULL)
        return NULL;
    node->a = callee;
    if (jinja_parse_args(parser, node))
        return node;
    return NULL;
}

/* After '[': an index a[1] or a slice a[start:stop:step], in which all three may be missing. */
static struct jnode *jinja_parse_subscript(struct jinja_parser *parser, struct jnode *of)
{
    struct jnode *node = jinja_node_new(parser, JN_ITEM);

    if (node == NULL)
        return NULL;
    node->a = of;
    if (!jinja_is_at_op(parser, ":")) {
        node->b = jinja_parse_tuple(parser, true, false);
        if (node->b == NULL)
            return NULL;
    }
    if (jinja_take_op(parser, ":")) {
        node->kind = JN_SLICE;
        if (!jinja_is_at_op(parser, "]") && !jinja_is_at_op(parser, ":") &&
            (node->c = jinja_parse_expr(parser)) == NULL)
            return NULL;
        if (jinja_take_op(parser, ":") && !jinja_is_at_op(parser, "]") &&
            (node->d = jinja_parse_expr(parser)) == NULL)
            return NULL;
    }
    if (jinja_need_op(parser, "]"))
        return node;
    return NULL;
}

/* After '.': an attribute a.b, or an item a.0. */
static struct jnode *jinja_parse_attr(struct jinja_parser *parser, struct jnode *of)
{
    struct jnode *node;

    if (parser->at->kind == JT_NAME) {
        node = jinja_node_text(parser, JN_ATTR, parser->at++);
        if (node != NULL)
            node->a = of;
        return node;
    }
    if (parser->at->kind != JT_INT)
        return jinja_parse_fail(parser, "a name is expected after '.'");
    return jinja_node_binary(parser, JN_ITEM, of, jinja_parse_constant(parser));
}

/* Everything that may follow an expression without white space: a.b[c](d). */
static struct jnode *jinja_parse_postfix(struct jinja_parser *parser, struct jnode *node)
{
    while (node != NULL) {
        if (jinja_take_op(parser, "."))
            node = jinja_parse_attr(parser, node);
        else if (jinja_take_op(parser, "["))
            node = jinja_parse_subscript(parser, node);
        else if (jinja_is_at_op(parser, "("))
            node = jinja_parse_call(parser, node);
        else
            break;
    }
    return node;
}

/* After '|': a filter with or without arguments. */
static struct jnode *jinja_parse_filter(struct jinja_parser *parser, struct jnode *in)
{
    struct jnode *node;

    if (parser->at->kind != JT_NAME)
        return jinja_parse_fail(parser, "a filter's name is expected");
    node = jinja_node_text(parser, JN_FILTER, parser->at++);
    if (node == NULL)
        return NULL;
    node->a = in;
    if (jinja_take_op(parser, "(") && !jinja_parse_args(parser, node))
        return NULL;
    return node;
}

/* May a test's argument without parentheses begin here? As in `x is divisibleby 3`. */
static bool jinja_begins_test_argument(const struct jinja_parser *parser)
{
    if (parser->at->kind == JT_NAME)
        return !jinja_is_at_name(parser, "else") && !jinja_is_at_name(parser, "or") &&
               !jinja_is_at_name(parser, "and") && !jinja_is_at_name(parser, "is") &&
               !jinja_is_at_name(parser, "if") && !jinja_is_at_name(parser, "not") &&
               !jinja_is_at_name(parser, "in");
    return parser->at->kind == JT_TEXT || parser->at->kind == JT_INT ||
           parser->at->kind == JT_REAL || jinja_is_at_op(parser, "[") ||
           jinja_is_at_op(parser, "{");
}

/* After "is": a test, possibly negated. */
static struct jnode *jinja_parse_test(struct jinja_parser *parser, struct jnode *in)
{
    bool negated = jinja_take_name(parser, "not");
    struct jnode *node;
    struct jnode *not_node;

    if (parser->at->kind != JT_NAME)
        return jinja_parse_fail(parser, "a test's name is expected");
    node = jinja_node_text(parser, JN_TEST, parser->at++);
    if (node == NULL)
        return NULL;
    node->a = in;
    if (jinja_take_op(parser, "(")) {
        if (!jinja_parse_args(parser, node))
            return NULL;
    } else if (jinja_begins_test_argument(parser)) {
        node->b = jinja_node_new(parser, JN_ARG);
        if (node->b == NULL ||
            (node->b->a = jinja_parse_postfix(parser, jinja_parse_primary(parser))) == NULL)
            return NULL;
    }
    if (!negated)
        return node;
    not_node = jinja_node_new(parser, JN_NOT);
    if (not_node != NULL)
        not_node->a = node;
    return not_node;
}

/* Filters, tests and calls bind tighter than all binary operators. */
static struct jnode *jinja_parse_filters(struct jinja_parser *parser, struct jnode *node)
{
    while (node != NULL) {
        if (jinja_take_op(parser, "|"))
            node = jinja_parse_filter(parser, node);
        else if (jinja_take_name(parser, "is"))
            node = jinja_parse_test(parser, node);
        else if (jinja_is_at_op(parser, "("))
            node = jinja_parse_call(parser, node);
        else
            break;
    }
    return node;
}

/* Unary operators. Filters apply to the outermost operand: -1|abs is (-1)|abs, as in Jinja. */
static struct jnode *jinja_parse_unary(struct jinja_parser *parser, bool with_filter)
{
    struct jnode *node = NULL;

    if (!jinja_enter_nesting(parser))
        return NULL;
    if (jinja_is_at_op(parser, "-") || jinja_is_at_op(parser, "+")) {
        enum jnode_kind kind = jinja_is_at_op(parser, "-") ? JN_NEGATE : JN_PLUS;

        parser->at++;
        node = jinja_node_new(parser, kind);
        if (node != NULL && (node->a = jinja_parse_unary(parser, false)) == NULL)
            node = NULL;
    } else {
        node = jinja_parse_primary(parser);
    }
    node = jinja_parse_postfix(parser, node);
    if (with_filter)
        node = jinja_parse_filters(parser, node);
    parser->depth--;
    return node;
}

/* Binary operators by rank, from the loosest. All are left associative, in Jinja even **. */
static const char *const binary_ops[][5] = {{"+", "-", NULL},
                                            {"~", NULL},
                                            {"*", "/", "//", "%", NULL},
                                            {"**", NULL}};

/* A chain of operators of one rank. */
static struct jnode *jinja_parse_binary(struct jinja_parser *parser, size_t rank)
{
    struct jnode *left;
    size_t i = 0;

    if (rank == sizeof binary_ops / sizeof binary_ops[0])
        return jinja_parse_unary(parser, true);
    left = jinja_parse_binary(parser, rank + 1);
    while (left != NULL) {
        for (i = 0; binary_ops[rank][i] != NULL; i++)
            if (jinja_is_at_op(parser, binary_ops[rank][i]))
                break;
        if (binary_ops[rank][i] == NULL)
            break;
        parser->at++;
        left = jinja_node_binary(parser, JN_BINARY, left, jinja_parse_binary(parser, rank + 1));
        if (left != NULL)
            left->text = binary_ops[rank][i];
    }
    return left;
}

/* Consume a comparison operator; NULL when there is none. */
static const char *jinja_take_comparison(struct jinja_parser *parser)
{
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">=", "in"};
    size_t i;

    for (i = 0; i < 7; i++)
        if (i < 6 ? jinja_take_op(parser, ops[i]) : jinja_take_name(parser, ops[i]))
            return ops[i];
    if (jinja_is_at_name(parser, "not") && parser->at[1].kind == JT_NAME &&
        strcmp(parser->at[1].text, "in") == 0) {
        parser->at += 2;
        return "not in";
    }
    return NULL;
}

/* A comparison; a < b < c is one node with two operands, each of which is evaluated once. */
static struct jnode *jinja_parse_compare(struct jinja_parser *parser)
{
    struct jnode *first = jinja_parse_binary(parser, 0);
    struct jnode *node = NULL;
    struct jnode **tail = NULL;
    const char *op;

    while (first != NULL && (op = jinja_take_comparison(parser)) != NULL) {
        struct jnode *operand;

        if (node == NULL) {
            node = jinja_node_new(parser, JN_COMPARE);
            if (node == NULL)
                return NULL;
            node->a = first;
            tail = &node->b;
        }
        operand = jinja_node_new(parser, JN_OPERAND);
        if (operand == NULL || (operand->a = jinja_parse_binary(parser, 0)) == NULL)
            return NULL;
        operand->text = op;
        *tail = operand;
        tail = &operand->next;
    }
    if (node != NULL)
        return node;
    return first;
}

static struct jnode *jinja_parse_not(struct jinja_parser *parser)
{
    struct jnode *node;

    if (!jinja_is_at_name(parser, "not"))
        return jinja_parse_compare(parser);
    if (!jinja_enter_nesting(parser))
        return NULL;
    parser->at++;
    node = jinja_node_new(parser, JN_NOT);
    if (node != NULL && (node->a = jinja_parse_not(parser)) == NULL)
        node = NULL;
    parser->depth--;
    return node;
}

static struct jnode *jinja_parse_and(struct jinja_parser *parser)
{
    struct jnode *left = jinja_parse_not(parser);

    while (left != NULL && jinja_take_name(parser, "and"))
        left = jinja_node_binary(parser, JN_AND, left, jinja_parse_not(parser));
    return left;
}

static struct jnode *jinja_parse_or(struct jinja_parser *parser)
{
    struct jnode *left = jinja_parse_and(parser);

    while (left != NULL && jinja_take_name(parser, "or"))
        left = jinja_node_binary(parser, JN_OR, left, jinja_parse_and(parser));
    return left;
}

/* Any expression. `a if b else c` is the loosest operator; the else part is optional. */
static struct jnode *jinja_parse_expr(struct jinja_parser *parser)
{
    struct jnode *node;

    if (!jinja_enter_nesting(parser))
        return NULL;
    node = jinja_parse_or(parser);
    while (node != NULL && jinja_take_name(parser, "if")) {
        struct jnode *choice = jinja_node_binary(parser, JN_TERNARY, jinja_parse_or(parser), node);

        if (choice != NULL && jinja_take_name(parser, "else") &&
            (choice->c = jinja_parse_expr(parser)) == NULL)
            choice = NULL;
        node = choice;
    }
    parser->depth--;
    return node;
}

/* Can a tuple without parentheses end here? */
static bool jinja_ends_tuple(const struct jinja_parser *parser)
{
    return parser->at->kind == JT_VAR_END || parser->at->kind == JT_BLOCK_END ||
           jinja_is_at_op(parser, ")") || jinja_is_at_op(parser, "]") ||
           jinja_is_at_op(parser, "=") || jinja_is_at_name(parser, "in");
}

/* One expression, or several separated by commas, which are a tuple. Empty parentheses are an empty
 * tuple, so with explicit_parens nothing at all is allowed. */
static struct jnode *jinja_parse_tuple(struct jinja_parser *parser, bool with_ternary,
                                       bool explicit_parens)
{
    struct jnode *tuple = jinja_node_new(parser, JN_TUPLE);
    struct jnode **tail;
    bool commas = false;

    if (tuple == NULL)
        return NULL;
    tail = &tuple->a;
    while (!jinja_ends_tuple(parser)) {
        if (with_ternary)
            *tail = jinja_parse_expr(parser);
        else
            *tail = jinja_parse_or(parser);
        if (*tail == NULL)
            return NULL;
        tail = &(*tail)->next;
        if (!jinja_take_op(parser, ","))
            break;
        commas = true;
    }
    if (!commas && tuple->a != NULL)
        return tuple->a;
    if (!commas && !explicit_parens)
        return jinja_parse_fail(parser, "an expression is expected");
    return tuple;
}

/* --- statements --------------------------------------------------------------------------------*/

/* The target of an assignment: a name, a tuple of names, nested ones in parentheses, or with
 * with_attr an attribute of a namespace (ns.x). */
static struct jnode *jinja_parse_target(struct jinja_parser *parser, bool with_attr)
{
    struct jnode *tuple = jinja_node_new(parser, JN_TUPLE);
    struct jnode **tail;
    bool commas = false;

    if (tuple == NULL)
        return NULL;
    tail = &tuple->a;
    do {
        bool parens = jinja_take_op(parser, "(");

        if (tuple->a != NULL && parser->at->kind != JT_NAME)
            break; /* a trailing comma */
        if (parser->at->kind != JT_NAME)
            return jinja_parse_fail(parser, "a name is expected");
        if (parens) {
            if (jinja_enter_nesting(parser))
                *tail = jinja_parse_target(parser, false);
            else
                *tail = NULL;
            parser->depth--;
            if (*tail == NULL || !jinja_need_op(parser, ")"))
                return NULL;
        } else {
            *tail = jinja_node_text(parser, JN_NAME, parser->at++);
            if (*tail == NULL)
                return NULL;
        }
        if (with_attr && !commas && jinja_is_at_op(parser, ".")) {
            parser->at++;
            return jinja_parse_attr(parser, *tail);
        }
        tail = &(*tail)->next;
        if (!jinja_is_at_op(parser, ","))
            break;
        commas = true;
    } while (jinja_take_op(parser, ","));
    if (commas)
        return tuple;
    return tuple->a;
}

/* {% for x in items if filter %} body {% else %} other {% endfor %} */
static struct jnode *jinja_parse_for(struct jinja_parser *parser)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const end[] = {"endfor", NULL};
    struct jnode *node = jinja_node_new(parser, JN_FOR);

    if (node == NULL || (node->a = jinja_parse_target(parser, false)) == NULL)
        return NULL;
    if (!jinja_take_name(parser, "in"))
        return jinja_parse_fail(parser, "'in' is expected");
    if ((node->b = jinja_parse_tuple(parser, false, false)) == NULL)
        return NULL;
    if (jinja_take_name(parser, "if") && (node->c = jinja_parse_expr(parser)) == NULL)
        return NULL;
    if (jinja_is_at_name(parser, "recursive")) {
        (void)jinja_fault_set(parser->fault, ERR_UNSUPPORTED,
                              "line %d: recursive loops are not supported", parser->at->line);
        return NULL;
    }
    parser->loops++;
    if (!jinja_need_block_end(parser) || (node->body = jinja_parse_body(parser, ends)) == NULL)
        return NULL;
    parser->loops--;
    if (jinja_take_name(parser, "else")) {
        if (!jinja_need_block_end(parser) || (node->other = jinja_parse_body(parser, end)) == NULL)
            return NULL;
    }
    parser->at++;
    if (jinja_need_block_end(parser))
        return node;
    return NULL;
}

/* {% if a %} ... {% elif b %} ... {% else %} ... {% endif %}: a chain of nodes by `other`. */
static struct jnode *jinja_parse_if(struct jinja_parser *parser)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const end[] = {"endif", NULL};
    struct jnode *first = NULL;
    struct jnode **place = &first;
    bool more = true;

    while (more) {
        struct jnode *node = jinja_node_new(parser, JN_IF);

        if (node == NULL || (node->a = jinja_parse_tuple(parser, true, false)) == NULL ||
            !jinja_need_block_end(parser) || (node->body = jinja_parse_body(parser, ends)) == NULL)
            return NULL;
        *place = node;
        place = &node->other;
        more = jinja_take_name(parser, "elif");
    }
    if (jinja_take_name(parser, "else")) {
        if (!jinja_need_block_end(parser) || (*place = jinja_parse_body(parser, end)) == NULL)
            return NULL;
    }
    parser->at++; /* endif */
    if (jinja_need_block_end(parser))
        return first;
    return NULL;
}

/* Filters of a block: they apply to the block's rendered body, JN_PIPED. */
static struct jnode *jinja_parse_piped(struct jinja_parser *parser)
{
    struct jnode *node = jinja_node_new(parser, JN_PIPED);

    while (node != NULL && jinja_take_op(parser, "|"))
        node = jinja_parse_filter(parser, node);
    return node;
}

/* {% set x = value %}, or {% set x | filter %} body {% endset %}. */
static struct jnode *jinja_parse_set(struct jinja_parser *parser)
{
    static const char *const end[] = {"endset", NULL};
    struct jnode *node = jinja_node_new(parser, JN_SET);

    if (node == NULL || (node->a = jinja_parse_target(parser, true)) == NULL)
        return NULL;
    if (jinja_take_op(parser, "=")) {
        node->b = jinja_parse_tuple(parser, true, false);
        if (node->b != NULL && jinja_need_block_end(parser))
            return node;
        return NULL;
    }
    node->kind = JN_SET_BLOCK;
    if ((node->b = jinja_parse_piped(parser)) == NULL || !jinja_need_block_end(parser) ||
        (node->body = jinja_parse_body(parser, end)) == NULL)
        return NULL;
    parser->at++;
    if (jinja_need_block_end(parser))
        return node;
    return NULL;
}

/* Parameters of a macro, "(a, b=1)", as a list of JN_ARG. */
static bool jinja_parse_params(struct jinja_parser *parser, struct jnode **first)
{
    struct jnode **tail = first;

    if (!jinja_need_op(parser, "("))
        return false;
    while (!jinja_is_at_op(parser, ")")) {
        struct jnode *param;

        if (*first != NULL && !jinja_need_op(parser, ","))
            return false;
        if (parser->at->kind != JT_NAME)
            return jinja_parse_fail(parser, "a parameter's name is expected") != NULL;
        param = jinja_node_text(parser, JN_ARG, parser->at++);
        if (param == NULL)
            return false;
        if (jinja_take_op(parser, "=") && (param->a = jinja_parse_expr(parser)) == NULL)
            return false;
        *tail = param;
        tail = &param->next;
    }
    parser->at++;
    return true;
}

/* {% macro name(params) %} body {% endmacro %}. A loop around it does not count: break is an
 * error. */
static struct jnode *jinja_parse_macro(struct jinja_parser *parser)
{
    static const char *const end[] = {"endmacro", NULL};
    struct jnode *node;
    int loops = parser->loops;

    if (parser->at->kind != JT_NAME)
        return jinja_parse_fail(parser, "a macro's name is expected");
    node = jinja_node_text(parser, JN_MACRO, parser->at++);
    if (node == NULL || !jinja_parse_params(parser, &node->a) || !jinja_need_block_end(parser))
        return NULL;
    parser->loops = 0;
    node->body = jinja_parse_body(parser, end);
    parser->loops = loops;
    if (node->body == NULL)
        return NULL;
    parser->at++;
    if (parser->at->kind == JT_NAME)
        parser->at++; /* endmacro may repeat the name */
    if (jinja_need_block_end(parser))
        return node;
    return NULL;
}

/* {% call(params) macro(args) %} body {% endcall %}: the body is passed as the macro `caller`. */
static struct jnode *jinja_parse_call_block(struct jinja_parser *parser)
{
    static const char *const end[] = {"endcall", NULL};
    struct jnode *node = jinja_node_new(parser, JN_CALL_BLOCK);

    if (node == NULL || (jinja_is_at_op(parser, "(") && !jinja_parse_params(parser, &node->b)))
        return NULL;
    node->a = jinja_parse_expr(parser);
    if (node->a == NULL || node->a->kind != JN_CALL) {
        if (node->a == NULL)
            return NULL;
        return jinja_parse_fail(parser, "a call is expected");
    }
    if (!jinja_need_block_end(parser) || (node->body = jinja_parse_body(parser, end)) == NULL)
        return NULL;
    parser->at++;
    if (jinja_need_block_end(parser))
        return node;
    return NULL;
}

/* {% with a = 1, b = 2 %} body {% endwith %} */
static struct jnode *jinja_parse_with(struct jinja_parser *parser)
{
    static const char *const end[] = {"endwith", NULL};
    struct jnode *node = jinja_node_new(parser, JN_WITH);
    struct jnode **tail;

    if (node == NULL)
        return NULL;
    tail = &node->a;
    while (parser->at->kind != JT_BLOCK_END) {
        struct jnode *set = jinja_node_new(parser, JN_SET);

        if (node->a != NULL && !jinja_need_op(parser, ","))
            return NULL;
        if (set == NULL || (set->a = jinja_parse_target(parser, false)) == NULL ||
            !jinja_need_op(parser, "=") || (set->b = jinja_parse_expr(parser)) == NULL)
            return NULL;
        *tail = set;
        tail = &set->next;
    }
    parser->at++;
    if ((node->body = jinja_parse_body(parser, end)) == NULL)
        return NULL;
    parser->at++;
    if (jinja_need_block_end(parser))
        return node;
    return NULL;
}

/* {% filter name %} body {% endfilter %} and {% generation %} body {% endgeneration %}. */
static struct jnode *jinja_parse_wrapped(struct jinja_parser *parser, enum jnode_kind kind)
{
    static const char *const generation_end[] = {"endgeneration", NULL};
    static const char *const filter_end[] = {"endfilter", NULL};
    struct jnode *node = jinja_node_new(parser, kind);

    if (node == NULL)
        return NULL;
    if (kind == JN_FILTER_BLOCK) {
        struct jnode *piped = jinja_node_new(parser, JN_PIPED);

        if (piped == NULL)
            node->a = NULL;
        else
            node->a = jinja_parse_filter(parser, piped);
        while (node->a != NULL && jinja_take_op(parser, "|"))
            node->a = jinja_parse_filter(parser, node->a);
        if (node->a == NULL)
            return NULL;
    }
    if (!jinja_need_block_end(parser))
        return NULL;
    node->body = jinja_parse_body(parser, kind == JN_FILTER_BLOCK ? filter_end : generation_end);
    if (node->body == NULL)
        return NULL;
    parser->at++;
    if (jinja_need_block_end(parser))
        return node;
    return NULL;
}

/* {% break %} and {% continue %} */
static struct jnode *jinja_parse_jump(struct jinja_parser *parser, enum jnode_kind kind)
{
    struct jnode *node = jinja_node_new(parser, kind);

    if (parser->loops == 0)
        return jinja_parse_fail(parser, "break and continue need a loop around them");
    if (node != NULL && jinja_need_block_end(parser))
        return node;
    return NULL;
}

/* After "{%": a statement by its first word. */
static struct jnode *jinja_parse_statement(struct jinja_parser *parser)
{
    if (jinja_take_name(parser, "for"))
        return jinja_parse_for(parser);
    if (jinja_take_name(parser, "if"))
        return jinja_parse_if(parser);
    if (jinja_take_name(parser, "set"))
        return jinja_parse_set(parser);
    if (jinja_take_name(parser, "macro"))
        return jinja_parse_macro(parser);
    if (jinja_take_name(parser, "call"))
        return jinja_parse_call_block(parser);
    if (jinja_take_name(parser, "with"))
        return jinja_parse_with(parser);
    if (jinja_take_name(parser, "filter"))
        return jinja_parse_wrapped(parser, JN_FILTER_BLOCK);
    if (jinja_take_name(parser, "generation"))
        return jinja_parse_wrapped(parser, JN_GENERATION);
    if (jinja_take_name(parser, "break"))
        return jinja_parse_jump(parser, JN_BREAK);
    if (jinja_take_name(parser, "continue"))
        return jinja_parse_jump(parser, JN_CONTINUE);
    (void)jinja_fault_set(parser->fault, parser->at->kind == JT_NAME ? ERR_UNSUPPORTED : ERR_SYNTAX,
                          "line %d: the tag \"%.40s\" is not supported here", parser->at->line,
                          parser->at->text);
    return NULL;
}

/* Is the tag that begins here one of those that end the current block? */
static bool jinja_at_end(const struct jinja_parser *parser, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++)
        if (parser->at[1].kind == JT_NAME && strcmp(parser->at[1].text, *ends) == 0)
            return true;
    return false;
}

/* One piece of a body: text, an output {{ ... }}, or a statement. */
static struct jnode *jinja_parse_one(struct jinja_parser *parser)
{
    struct jnode *node;

    if (parser->at->kind == JT_DATA)
        return jinja_node_text(parser, JN_DATA, parser->at++);
    if (parser->at->kind == JT_BLOCK_BEGIN) {
        parser->at++;
        return jinja_parse_statement(parser);
    }
    parser->at++;
    node = jinja_node_new(parser, JN_OUTPUT);
    if (node == NULL || (node->a = jinja_parse_tuple(parser, true, false)) == NULL)
        return NULL;
    if (parser->at->kind != JT_VAR_END)
        return jinja_parse_fail(parser, "'}}' is expected");
    parser->at++;
    return node;
}

/* Statements up to a tag whose name is in ends (NULL: up to the end of the template). The parser is
 * then at that name. The list always begins with an empty JN_DATA, so NULL can mean failure. */
static struct jnode *jinja_parse_body(struct jinja_parser *parser, const char *const *ends)
{
    struct jnode *first;
    struct jnode **tail;

    if (!jinja_enter_nesting(parser))
        return NULL;
    first = jinja_node_new(parser, JN_DATA);
    if (first == NULL)
        return NULL;
    tail = &first->next;
    for (;;) { /* each pass consumes a token; JT_END ends it */
        if (parser->at->kind == JT_END) {
            if (ends != NULL)
                return jinja_parse_fail(parser, "the end of a block is expected");
            break;
        }
        if (parser->at->kind == JT_BLOCK_BEGIN && jinja_at_end(parser, ends)) {
            parser->at++;
            break;
        }
        *tail = jinja_parse_one(parser);
        if (*tail == NULL)
            return NULL;
        tail = &(*tail)->next;
    }
    parser->depth--;
    return first;
}

struct jnode *jinja_parse(struct jinja *jinja, const struct jtoken *tokens, struct jfault *fault)
{
    struct jinja_parser parser = {.j = jinja, .at = tokens, .fault = fault};

    must(tokens != NULL);
    return jinja_parse_body(&parser, NULL);
}
