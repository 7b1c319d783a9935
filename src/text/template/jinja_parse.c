/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser of expressions: recursive descent over the tokens, with Jinja's own grammar. There is
 * a function per level of precedence, which calls that of the next tighter level for its operands.
 * Operators from loosest to tightest:
 *
 *     a if b else c   or   and   not   comparisons   + -   ~   * / // %   **   unary   . [] () | is
 *
 * For example, "a or b and not c" becomes (or a (and b (not c))). Functions return NULL after an
 * error. */
#include "text/template/jinja_parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PARSE_DEPTH_MAX 200 /* a pair of brackets takes two levels */

static struct jnode *jinja_parse_unary(struct jinja_parser *parser, bool with_filter);
static struct jnode *jinja_parse_or(struct jinja_parser *parser);

/* Report a syntax error: the expected construct and the token found instead. */
struct jnode *jinja_parse_fail(struct jinja_parser *parser, const char *what)
{
    (void)jinja_fault_set(parser->fault, ERR_SYNTAX, "line %d: %s, not \"%.40s\"", parser->at->line,
                          what, parser->at->kind == JT_END ? "the end" : parser->at->text);
    return NULL;
}

struct jnode *jinja_node_new(struct jinja_parser *parser, enum jnode_kind kind)
{
    struct jnode *node = arena_zalloc(&parser->j->arena, sizeof *node);

    if (node == NULL) {
        (void)jinja_fault_set(parser->fault, ERR_NO_MEMORY, "out of memory for the template");
        return NULL;
    }
    node->kind = kind;
    /* The line is that of the current token, for errors while the template is rendered. */
    node->line = parser->at->line;
    return node;
}

/* "is_at" looks at the next token, "take" also consumes it if it matches, "need" fails if it does
 * not. */
bool jinja_is_at_op(const struct jinja_parser *parser, const char *op)
{
    return parser->at->kind == JT_OP && strcmp(parser->at->text, op) == 0;
}

bool jinja_is_at_name(const struct jinja_parser *parser, const char *name)
{
    return parser->at->kind == JT_NAME && strcmp(parser->at->text, name) == 0;
}

bool jinja_take_op(struct jinja_parser *parser, const char *op)
{
    if (!jinja_is_at_op(parser, op))
        return false;
    parser->at++;
    return true;
}

bool jinja_take_name(struct jinja_parser *parser, const char *name)
{
    if (!jinja_is_at_name(parser, name))
        return false;
    parser->at++;
    return true;
}

bool jinja_need_op(struct jinja_parser *parser, const char *op)
{
    if (jinja_take_op(parser, op))
        return true;
    return jinja_fault_set(parser->fault, ERR_SYNTAX, "line %d: '%s' is expected, not \"%.40s\"",
                           parser->at->line, op, parser->at->text);
}

bool jinja_need_block_end(struct jinja_parser *parser)
{
    if (parser->at->kind != JT_BLOCK_END)
        return jinja_parse_fail(parser, "the end of the tag is expected") != NULL;
    parser->at++;
    return true;
}

bool jinja_enter_nesting(struct jinja_parser *parser)
{
    if (++parser->depth <= PARSE_DEPTH_MAX)
        return true;
    return jinja_fault_set(parser->fault, ERR_LIMIT, "line %d: the template nests too deep",
                           parser->at->line);
}

/* A node whose text is that of a token. */
struct jnode *jinja_node_text(struct jinja_parser *parser, enum jnode_kind kind,
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

    /* Both children are parsed before the call, so an error in either one is passed on here and
     * not at each caller. */
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
    /* Python and Jinja join adjacent strings at compile time, which templates use to break long
     * texts. */
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

    /* Jinja accepts the lower-case spelling too. The first two words are true, the next two
     * false, the last two none. */
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
    /* The loop ends at the bracket; a comma is needed before each element but the first. The
     * check after the comma permits [a, b, ]. */
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
        /* A comma before the closing bracket is allowed. */
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

    /* The first token decides, so that the parser never has to go back. */
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
    /* (a) is a, (a,) is a tuple with one item, and () an empty one. */
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
        /* Two tokens distinguish name=value from an expression that begins with a name. */
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
    /* Without a colon the subscript may be a tuple, as in Python. A slice is recognized by its
     * first colon, which is before or after an expression: a[1:2], a[:2]. */
    if (!jinja_is_at_op(parser, ":")) {
        node->b = jinja_parse_tuple(parser, true, false);
        if (node->b == NULL)
            return NULL;
    }
    /* Each of stop and step is missing if its place is taken by the next ':' or by the bracket. */
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
struct jnode *jinja_parse_attr(struct jinja_parser *parser, struct jnode *of)
{
    struct jnode *node;

    /* The name is a constant of the node and no expression: in a.b, b is not a variable. */
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
    /* From left to right: a.b[c] is the item c of a.b. */
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
struct jnode *jinja_parse_filter(struct jinja_parser *parser, struct jnode *in)
{
    struct jnode *node;

    if (parser->at->kind != JT_NAME)
        return jinja_parse_fail(parser, "a filter's name is expected");
    node = jinja_node_text(parser, JN_FILTER, parser->at++);
    if (node == NULL)
        return NULL;
    node->a = in;
    /* Parentheses are optional: x|trim is x|trim(). */
    if (jinja_take_op(parser, "(") && !jinja_parse_args(parser, node))
        return NULL;
    return node;
}

/* May a test's argument without parentheses begin here? As in `x is divisibleby 3`. */
static bool jinja_begins_test_argument(const struct jinja_parser *parser)
{
    /* These words continue the expression after a test without an argument: `x is defined and
     * y`. Any other name is an argument. */
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
    /* "x is not none" is not (x is none). */
    not_node = jinja_node_new(parser, JN_NOT);
    if (not_node != NULL)
        not_node->a = node;
    return not_node;
}

/* Filters, tests and calls bind tighter than all binary operators. */
static struct jnode *jinja_parse_filters(struct jinja_parser *parser, struct jnode *node)
{
    /* Each one applies to the result so far: x|f|g is g(f(x)), and `x|f is t` tests the filtered
     * value. */
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

    /* Each sign is a recursion of its own: "----x" nests four deep. */
    if (!jinja_enter_nesting(parser))
        return NULL;
    /* The operand of a sign takes no filters, hence the `false`; the filters are added to the
     * result below. */
    if (jinja_is_at_op(parser, "-") || jinja_is_at_op(parser, "+")) {
        enum jnode_kind kind = jinja_is_at_op(parser, "-") ? JN_NEGATE : JN_PLUS;

        parser->at++;
        node = jinja_node_new(parser, kind);
        if (node != NULL && (node->a = jinja_parse_unary(parser, false)) == NULL)
            node = NULL;
    } else {
        node = jinja_parse_primary(parser);
    }
    /* Attributes, items and calls bind more tightly than a sign: -a.b is -(a.b). The recursion
     * has already consumed those of the operand. */
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
    /* Operands have operators of the next rank only, so 1 + 2 * 3 becomes 1 + (2 * 3). */
    left = jinja_parse_binary(parser, rank + 1);
    /* The node so far becomes the left operand of the next one: 1 - 2 - 3 is (1 - 2) - 3. */
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

    /* "<" comes before "<=" in the list, which is harmless: operators are whole tokens. */
    for (i = 0; i < 7; i++)
        if (i < 6 ? jinja_take_op(parser, ops[i]) : jinja_take_name(parser, ops[i]))
            return ops[i];
    /* `not` alone is an operator with one operand, so both words are needed here. */
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

        /* The node is only made at the first operator; without one the operand is returned as it
         * is. */
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

/* "not" may be repeated: "not not x". Each counts as a level of nesting, because each is a
 * recursion. */
static struct jnode *jinja_parse_not(struct jinja_parser *parser)
{
    struct jnode *node;

    if (!jinja_is_at_name(parser, "not"))
        return jinja_parse_compare(parser);
    if (!jinja_enter_nesting(parser))
        return NULL;
    parser->at++;
    /* The operand is a comparison: not a == b is not (a == b), as in Python. */
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
struct jnode *jinja_parse_expr(struct jinja_parser *parser)
{
    struct jnode *node;

    if (!jinja_enter_nesting(parser))
        return NULL;
    node = jinja_parse_or(parser);
    /* A chain of conditions leans to the left, while the else part is an expression of its own
     * and leans to the right. */
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
struct jnode *jinja_parse_tuple(struct jinja_parser *parser, bool with_ternary,
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
    /* One expression without a comma is no tuple; "a," is one. */
    if (!commas && tuple->a != NULL)
        return tuple->a;
    if (!commas && !explicit_parens)
        return jinja_parse_fail(parser, "an expression is expected");
    return tuple;
}
