/* What the files that turn literals into alternatives share.
 *
 * A branch is a set of types, the atoms so far and what is still to be looked at; "or" makes
 * branches. Lists are shared between branches and never changed. A keyword that says something
 * about one type leaves the other types alone: so its negation is "of that type, and not". */
#ifndef QUIRE_GRAMMAR_SCHEMA_EXPAND_H
#define QUIRE_GRAMMAR_SCHEMA_EXPAND_H

#include "grammar/schema_parts.h"

struct item { /* of a branch's work */
    const struct item *next;
    enum { ITEM_LITERAL, ITEM_TYPES, ITEM_ATOM, ITEM_EITHER, ITEM_VALUES } kind;
    uint32_t literal;
    unsigned types;
    const struct atom *atom; /* VALUES: node, n, negated */
    const struct either *either;
};

struct either {
    const struct either *next;
    const struct item *items; /* one option */
};

struct seen {
    const struct seen *next;
    uint32_t literal;
};

struct branch {
    unsigned types;
    const struct atom *atoms;
    const struct item *work;
    const struct seen *seen;
};

struct expansion {
    struct schema *s;
    LIST(struct branch) stack;
    LIST(struct alternative) found;
    struct branch now;
    uint32_t n_branches;
    bool asking; /* for surely_empty(): a bound that is reached is no error */
    bool gave_up;
    int depth;
};

/* Options in the order in which they are added: the head is kept, the tail grows. */
struct options {
    struct either *first, *last;
    uint32_t n;
};

/* Work items, in lists that begin with the new one. */
const struct item *item_of(struct expansion *x, struct item item, const struct item *next);
const struct item *item_literal(struct expansion *x, const struct json *node, bool negated,
                                const struct item *next);
const struct item *item_types(struct expansion *x, unsigned types, const struct item *next);
const struct item *item_atom(struct expansion *x, struct atom atom, const struct item *next);
const struct item *item_required(struct expansion *x, const struct json *text,
                                 const struct item *next);
void option(struct expansion *x, struct options *o, const struct item *items);

/* What the branch that is looked at has to do, or knows. */
void do_item(struct expansion *x, struct item item);
void do_literal(struct expansion *x, const struct json *node, bool negated);
void do_atom(struct expansion *x, struct atom atom);
void do_either(struct expansion *x, const struct options *o);

/* The value is one of values[0 .. n), or none of them. */
void expand_values(struct expansion *x, const struct json *values, uint32_t n, bool negated);

/* Errors about a keyword. */
void *refuse(struct expansion *x, const struct json *node, const char *what);
void invalid(struct expansion *x, const struct json *node, const char *what);

/* Keywords' values. */
bool count_of(struct expansion *x, const struct json *node, uint32_t *n);
unsigned types_of(struct expansion *x, const struct json *node);
const struct json *name_text(struct expansion *x, const struct json *member);
const struct json *get_kind(struct expansion *x, const struct json *schema, const char *name,
                            enum json_kind kind);
const struct json *follow(struct expansion *x, const struct json *schema);
bool bound_of(struct expansion *x, const struct json *schema, bool most, bool strict,
              struct atom *atom);
struct atom contains_atom(struct expansion *x, const struct json *schema,
                          const struct json *contains);

struct counted { /* keywords whose value is a count */
    const char *name;
    enum atom_kind kind;
    unsigned type;
    bool most;
};
#define N_COUNTED 6
extern const struct counted counted[N_COUNTED];
extern const char *const dependent[3];

void hold(struct expansion *x, const struct json *schema); /* a schema must hold */
void deny(struct expansion *x, const struct json *schema); /* it must not */

#endif
