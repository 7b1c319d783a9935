/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of the parser, for jinja_parse.c (expressions) and jinja_parse_block.c (statements).
 * Nodes are allocated in the template's arena. Depth is counted for expressions and statements
 * together and bounded, because the recursion follows the source. After an error functions return
 * NULL or false, with the reason in parser->fault. */
#ifndef QUIRE_TEXT_TEMPLATE_JINJA_PARSE_H
#define QUIRE_TEXT_TEMPLATE_JINJA_PARSE_H

#include "text/template/jinja_parts.h"

/* `at` is the next token. The last token is JT_END, so looking one token ahead is always
 * possible. */
struct jinja_parser {
    struct jinja *j;
    const struct jtoken *at;
    struct jfault *fault;
    int depth;
    int loops; /* loops around the current statement; break and continue need one */
};

/* Report a syntax error: the expected construct and the token found instead. Always NULL. */
struct jnode *jinja_parse_fail(struct jinja_parser *parser, const char *what);

/* A node with the line of the next token. The second form also gives it the text of a token. */
struct jnode *jinja_node_new(struct jinja_parser *parser, enum jnode_kind kind);
struct jnode *jinja_node_text(struct jinja_parser *parser, enum jnode_kind kind,
                              const struct jtoken *token);

/* "is_at" looks at the next token, "take" also consumes it if it matches, "need" fails if it does
 * not. */
bool jinja_is_at_op(const struct jinja_parser *parser, const char *op);
bool jinja_is_at_name(const struct jinja_parser *parser, const char *name);
bool jinja_take_op(struct jinja_parser *parser, const char *op);
bool jinja_take_name(struct jinja_parser *parser, const char *name);
bool jinja_need_op(struct jinja_parser *parser, const char *op);
bool jinja_need_block_end(struct jinja_parser *parser);

/* Count one more level of nesting; false, with an error, at the bound. The caller decrements
 * parser->depth when it leaves the level. */
bool jinja_enter_nesting(struct jinja_parser *parser);

/* expr: any expression. tuple: a list of them without brackets, "a, b", as in {% for a, b in c %};
 * one without a comma is itself. attr: the name or index after "of.". filter: the name and
 * arguments after "in|". */
struct jnode *jinja_parse_expr(struct jinja_parser *parser);
struct jnode *jinja_parse_tuple(struct jinja_parser *parser, bool with_ternary,
                                bool explicit_parens);
struct jnode *jinja_parse_attr(struct jinja_parser *parser, struct jnode *of);
struct jnode *jinja_parse_filter(struct jinja_parser *parser, struct jnode *in);

/* Statements up to a block whose name is in `ends` (NULL: to the end of the source), which is left
 * as the next token. */
struct jnode *jinja_parse_body(struct jinja_parser *parser, const char *const *ends);

#endif
