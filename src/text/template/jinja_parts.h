/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a template; for the jinja*.c files only. A source becomes tokens (jinja_lex.c), the
 * tokens a tree of nodes (jinja_parse.c, jinja_parse_block.c), and the tree is evaluated to values
 * and output (jinja_eval.c and the files of operators, filters, tests and methods). */
#ifndef QUIRE_TEXT_TEMPLATE_JINJA_PARTS_H
#define QUIRE_TEXT_TEMPLATE_JINJA_PARTS_H

#include "text/spans.h"
#include "text/template/jinja.h"

/* --- source ------------------------------------------------------------------------------------*/

enum jtoken_kind {
    JT_DATA, /* text between tags */
    JT_VAR_BEGIN,
    JT_VAR_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_INT,
    JT_REAL,
    JT_TEXT, /* a string literal, unescaped */
    JT_OP,
    JT_END,
};

struct jtoken {
    enum jtoken_kind kind;
    int line;
    const char *text; /* NUL-terminated for names and operators */
    size_t len;
};

/* The reason of a failure, for the client. Only the first one is kept. */
struct jfault {
    int rc;
    char text[512];
};

__attribute__((format(printf, 3, 4))) bool jinja_fault_set(struct jfault *fault, int rc,
                                                           const char *format,
                                                           ...); /* always false */

/* Cut a source into tokens and apply white space control; the last token is JT_END. NULL: see
 * fault. */
struct jtoken *jinja_lex(struct arena *arena, const char *source, size_t len, struct jfault *fault);

/* Kinds of nodes, and the members of struct jnode that each uses. */
enum jnode_kind {
    /* Statements; `next` links a body. */
    JN_DATA,
    JN_OUTPUT,
    JN_FOR,          /* target a, list b, filter c, body, other */
    JN_IF,           /* condition a, body, other */
    JN_SET,          /* target a, value b */
    JN_SET_BLOCK,    /* target a, filters b (over JN_PIPED), body */
    JN_MACRO,        /* name, parameters a (JN_ARG), body */
    JN_CALL_BLOCK,   /* call a, parameters b, body */
    JN_FILTER_BLOCK, /* filters a (over JN_PIPED), body */
    JN_WITH,         /* JN_SET list a, body */
    JN_BREAK,
    JN_CONTINUE,
    JN_GENERATION, /* body */
    /* Expressions. */
    JN_CONST,
    JN_NAME,
    JN_LIST,   /* items a */
    JN_TUPLE,  /* items a */
    JN_DICT,   /* items a: JN_PAIR */
    JN_PAIR,   /* key a, value b */
    JN_ATTR,   /* a.text */
    JN_ITEM,   /* a[b] */
    JN_SLICE,  /* a[b:c:d] */
    JN_CALL,   /* a(arguments b) */
    JN_ARG,    /* value a, name text or NULL; of a macro: default a or NULL */
    JN_FILTER, /* a | text(arguments b) */
    JN_TEST,   /* a is text(arguments b) */
    JN_NOT,
    JN_NEGATE,
    JN_PLUS,
    JN_BINARY,  /* a text b */
    JN_COMPARE, /* a, then JN_OPERAND list b */
    JN_OPERAND, /* text a */
    JN_AND,
    JN_OR,
    JN_TERNARY, /* b if a else c (NULL) */
    JN_PIPED,   /* the rendered body of a filter block */
};

/* Kinds of values. */
enum jkind {
    JV_UNDEFINED,
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_REAL,
    JV_BIG, /* an integer beyond 64 bits, kept as text */
    JV_TEXT,
    JV_LIST,
    JV_TUPLE,
    JV_DICT,
    JV_NAMESPACE, /* a dict whose members {% set %} may change */
    JV_LOOP,
    JV_MACRO,
    JV_GLOBAL, /* a global function: its name */
    JV_METHOD, /* a method with its object */
    JV_JOINER,
};

/* Which bytes of a text the template wrote itself; all others came from its variables. Parts of a
 * text share it: positions are counted from base. */
struct jorigin {
    const char *base; /* the text that the spans refer to; NULL: every byte is the template's */
    const struct span *items;
    size_t n;
};

extern const struct jorigin jorigin_own; /* of a text that the template wrote entirely */

/* A value; small, and passed by value. Everything that it points to is in the arena, in the
 * compiled template or in the variables, and none of it is freed before the render ends. */
struct jval {
    enum jkind kind : 8;
    bool safe : 1;                /* JV_TEXT: markup (jtext_escape()) */
    uint32_t len;                 /* JV_TEXT, JV_BIG, JV_GLOBAL, JV_UNDEFINED: bytes of text */
    const struct jorigin *origin; /* JV_TEXT; NULL: no byte is the template's */
    union {
        bool flag;
        int64_t whole;
        double real;
        const char *text; /* JV_UNDEFINED: the name that is missing */
        struct jlist *list;
        struct jdict *dict;
        struct jloop *loop;
        const struct jmacro *macro;
        const struct jmethod *method;
        struct jjoiner *joiner;
    };
};

struct jjoiner {
    const char *text;
    size_t len;
    bool used; /* the first call returns "" */
};

struct jlist {
    struct jval *items;
    size_t n;
    size_t cap;
};

struct jpair {
    struct jval key;
    struct jval value;
};

struct jdict {
    struct jpair *pairs; /* in order of insertion, as in Python */
    size_t n;
    size_t cap;
};

/* A statement or expression. The members' meaning depends on kind, see enum jnode_kind. */
struct jnode {
    enum jnode_kind kind;
    int line;
    struct jnode *next;
    struct jnode *a;
    struct jnode *b;
    struct jnode *c;
    struct jnode *d;
    struct jnode *body;
    struct jnode *other;
    const char *text; /* NUL-terminated */
    size_t len;
    struct jval value;
};

struct jinja {
    struct arena arena;
    struct jnode *body;
};

/* Parse tokens; NULL: see fault (an empty template is a JN_DATA without text). */
struct jnode *jinja_parse(struct jinja *jinja, const struct jtoken *tokens, struct jfault *fault);

/* --- rendering ---------------------------------------------------------------------------------*/

struct jvar {
    struct jvar *next;
    const char *name;
    size_t len;
    struct jval value;
};

/* Variables of one block; names that are not found are looked up in the parent. */
struct jscope {
    struct jscope *parent; /* NULL: the variables of the render */
    struct jvar *vars;
};

struct jmacro {
    const struct jnode *node;
    const struct jnode *params;
    const char *name;
    struct jscope *scope; /* the scope it was defined in */
};

struct jmethod {
    struct jval self;
    const char *name;
};

/* The object "loop" inside a loop. */
struct jloop {
    const struct jlist *list;
    size_t at;
    struct jval last_changed;
    bool changed_once;
};

/* How a statement ended. */
enum jflow { JF_ON, JF_BREAK, JF_CONTINUE, JF_FAILED };

/* A text under construction, with the spans that the template wrote. */
struct jbuf {
    struct buf text;
    struct spans own;
};

/* The state of one render. */
struct jrender {
    struct arena *arena;
    struct jbuf *out;
    struct jfault fault;
    int64_t now_unix_s;
    int64_t steps;     /* left */
    size_t text_bytes; /* bytes of all texts made so far */
    int depth;         /* calls and expressions in progress */
    int line;
    struct jval piped;
};

/* Arguments of a call, evaluated. */
struct jargs {
    struct jval *values;
    const char **names; /* NULL for positional arguments, which come first */
    size_t n;
    size_t n_placed;
};

/* Functions that fail return false; the reason is then in render->fault.
 *
 * jinja_raise(): an exception as in Python, with the line. jinja_step(): count n steps of work;
 * fails when the bound is exceeded, so every loop over data must call it. */
__attribute__((format(printf, 2, 3))) bool jinja_raise(struct jrender *render, const char *format,
                                                       ...);
bool jinja_no_memory(struct jrender *render);
bool jinja_step(struct jrender *render, size_t n);
bool jinja_eval(struct jrender *render, const struct jnode *node, struct jscope *scope,
                struct jval *out);
bool jinja_call(struct jrender *render, struct jval callee, const struct jargs *args,
                struct jval *out);
bool jinja_filter(struct jrender *render, const char *name, struct jval in,
                  const struct jargs *args, struct jval *out);
bool jinja_test(struct jrender *render, const char *name, struct jval in, const struct jargs *args,
                bool *out);
bool jinja_call_macro(struct jrender *render, const struct jmacro *macro, const struct jargs *args,
                      struct jval *out);
bool jinja_call_method(struct jrender *render, const struct jmethod *method,
                       const struct jargs *args, struct jval *out);
bool jinja_call_global(struct jrender *render, const char *name, const struct jargs *args,
                       struct jval *out);
bool jinja_global_exists(const char *name, size_t len);
bool jinja_get_attr(struct jrender *render, struct jval value, const char *name, size_t len,
                    bool item_first, struct jval *out);
bool jinja_get_item(struct jrender *render, struct jval value, struct jval key, struct jval *out);
bool jinja_binary(struct jrender *render, const char *op, struct jval left, struct jval right,
                  struct jval *out);

/* Variables of a scope. find() also searches the parents unless `own`; NULL when there is none.
 * set() makes or changes a variable of this scope only. */
struct jvar *jinja_scope_find(struct jscope *scope, const char *name, size_t len, bool own);
bool jinja_scope_set(struct jrender *render, struct jscope *scope, const char *name, size_t len,
                     struct jval value);

/* Run statements up to the end of the list, or to a break, continue or failure. */
enum jflow jinja_run_body(struct jrender *render, const struct jnode *node, struct jscope *scope);

/* A positional or named argument. False when it is not given. */
bool jinja_arg(const struct jargs *args, size_t place, const char *name, struct jval *out);
struct jval jinja_arg_or(const struct jargs *args, size_t place, const char *name,
                         struct jval preset);

/* --- values ------------------------------------------------------------------------------------*/

struct jval jv_text(const char *text, size_t len);               /* from a variable */
struct jval jv_own(const char *text, size_t len);                /* written by the template */
struct jval jv_part(struct jval value, size_t from, size_t len); /* of a text; not markup */
struct jval jv_int(int64_t whole);
struct jval jv_bool(bool flag);
struct jval jv_real(double real);
struct jval jv_none(void);
struct jval jv_undefined(const char *name, size_t len);
bool jv_is(struct jval value, const char *text); /* is it a text equal to this one? */
bool jv_truth(struct jval value);
bool jv_is_number(struct jval value); /* a bool, int or real, as in Python */
bool jv_is_callable(struct jval value);
double jv_real_of(struct jval value);
int64_t jv_int_of(struct jval value); /* for a bool or int */
bool jv_equal(struct jval left, struct jval right);
const char *jv_type_name(struct jval value); /* as in Python */

/* Order two values: *order is below, at or above 0. Fails where Python raises an exception. */
bool jv_compare(struct jrender *render, struct jval left, struct jval right, int *order);

struct jlist *jlist_new(struct jrender *render, size_t cap); /* NULL after jinja_no_memory() */
bool jlist_add(struct jrender *render, struct jlist *list, struct jval value);
struct jval jv_list(struct jlist *list);
struct jdict *jdict_new(struct jrender *render, size_t cap);
bool jdict_set(struct jrender *render, struct jdict *dict, struct jval key, struct jval value);
struct jval *jdict_get(const struct jdict *dict, struct jval key); /* NULL: none */
struct jval *jdict_get_text(const struct jdict *dict, const char *key, size_t len);

/* The items that a loop over the value visits: of a list, the keys of a dict, characters of a
 * text. */
bool jv_iterate(struct jrender *render, struct jval value, struct jlist **out);

/* Append a value as Python's str and repr print it, bounded in depth. */
bool jv_str(struct jrender *render, struct jbuf *out, struct jval value);
bool jv_repr(struct jrender *render, struct buf *out, struct jval value, int depth);
bool jv_to_text(struct jrender *render, struct jval value,
                struct jval *out); /* Python's str, in the arena */

/* The options of tojson. */
struct jdump {
    int indent; /* -1: one line */
    bool ascii; /* ensure_ascii */
    bool sort_keys;
    const char *item; /* separators */
    const char *key;
};

bool jv_json(struct jrender *render, struct buf *out, struct jval value, const struct jdump *how,
             int depth);

/* Move the contents of a buf into the arena as a text, and free the buf. Text from a struct buf
 * counts as coming from a variable; text from a struct jbuf keeps its spans. An operation that does
 * not track origins can therefore never turn a client's text into the template's. */
bool jv_take_buf(struct jrender *render, struct buf *buf, struct jval *out);
bool jbuf_take(struct jrender *render, struct jbuf *buf, struct jval *out);
void jbuf_add(struct jrender *render, struct jbuf *buf, struct jval text);
bool jv_concat(struct jrender *render, struct jval left, struct jval right,
               struct jval *out); /* texts */
struct jval jv_from_json(struct arena *arena, const struct json *node, bool *failed);

/* Characters of valid UTF-8: their number, and the byte offset of character n_chars. */
size_t jtext_count(const char *text, size_t len);
size_t jtext_offset(const char *text, size_t len, size_t n_chars);
size_t jtext_strip_left(const char *text, size_t len, const struct jval *chars);
size_t jtext_strip_right(const char *text, size_t len, const struct jval *chars);
bool jtext_case(struct jrender *render, struct jval value, const char *how, struct jval *out);
const char *jtext_find(const char *text, size_t len, const char *what, size_t n);
bool jtext_escape(struct jrender *render, struct jval value,
                  struct jval *out); /* of anything; markup */
bool jtext_lines(struct jrender *render, struct jval value, bool keep_ends, struct jval *out);
bool jtext_method(struct jrender *render, struct jval value, const char *name,
                  const struct jargs *args, struct jval *out);
bool jtext_replace(struct jrender *render, struct jval value, struct jval from, struct jval to,
                   int64_t count, struct jval *out);

#endif
