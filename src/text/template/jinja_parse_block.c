/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser of statements. A body is a list of text, {{ values }} and {% blocks %} up to a block
 * that ends it:
 *
 *     {% for x in list %} body {% else %} body {% endfor %}
 *
 * The statement parses its own head, then its bodies with jinja_parse_body(), and gives the names
 * that may end each of them. Nesting is by recursion. */
#include "text/template/jinja_parse.h"

#include <string.h>

#include "base/must.h"

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
    /* Without the ternary, because the "if" after the items is the loop's filter. */
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
    /* The else branch is outside of the loop: a break in it belongs to an outer one. */
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
    /* Without the '=' the variable gets the text that the body renders to, after the filters. */
    if (jinja_take_op(parser, "=")) {
        node->b = jinja_parse_tuple(parser, true, false);
        if (node->b != NULL && jinja_need_block_end(parser))
            return node;
        return NULL;
    }
    node->kind = JN_SET_BLOCK;
    /* `piped` is a filter chain over a value that does not exist yet: the text of the body, see
     * JN_PIPED. */
    if ((node->b = jinja_parse_piped(parser)) == NULL || !jinja_need_block_end(parser) ||
        (node->body = jinja_parse_body(parser, end)) == NULL)
        return NULL;
    /* jinja_parse_body() stops at the word that ends the block, and does not consume it. */
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
    /* A list of names, in which each may have a preset: (a, b=1). */
    while (!jinja_is_at_op(parser, ")")) {
        struct jnode *param;

        if (*first != NULL && !jinja_need_op(parser, ","))
            return false;
        if (parser->at->kind != JT_NAME)
            return jinja_parse_fail(parser, "a parameter's name is expected") != NULL;
        param = jinja_node_text(parser, JN_ARG, parser->at++);
        if (param == NULL)
            return false;
        /* A parameter without a preset is undefined when the caller omits it. */
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

    /* The parameters are those that the macro may pass to caller(), and not its own. */
    if (node == NULL || (jinja_is_at_op(parser, "(") && !jinja_parse_params(parser, &node->b)))
        return NULL;
    node->a = jinja_parse_expr(parser);
    /* Only a call can be given a caller: {% call x %} for a variable x has no meaning. */
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

        /* All but the first assignment follow a comma. */
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
    /* The filters are applied to a node that is replaced by the text of the body
     * (render->piped). */
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
    /* Jinja's statements, and "generation" of Hugging Face, which marks the text that the model
     * writes and has no effect on a prompt. */
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
    /* A name is a statement that exists elsewhere, such as {% block %} or an "endif" without its
     * "if". Anything else cannot be Jinja at all. */
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

    /* Text between tags: one token, printed as it is. */
    if (parser->at->kind == JT_DATA)
        return jinja_node_text(parser, JN_DATA, parser->at++);
    if (parser->at->kind == JT_BLOCK_BEGIN) {
        parser->at++;
        return jinja_parse_statement(parser);
    }
    parser->at++;
    /* {{ a, b }} prints a tuple, as in Jinja. */
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
struct jnode *jinja_parse_body(struct jinja_parser *parser, const char *const *ends)
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
