/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files that turn literals into alternatives (schema_expand.c, schema_hold.c,
 * schema_deny.c).
 *
 * A branch is a set of types, the atoms found so far, and a list of work. An "or" splits a branch.
 * Lists are shared between branches and never changed; adding puts a new element in front. A
 * keyword constrains one type and leaves the others alone, so its negation is "of that type, and
 * not". */
#ifndef QUIRE_GRAMMAR_SCHEMA_EXPAND_H
#define QUIRE_GRAMMAR_SCHEMA_EXPAND_H

#include "grammar/schema_parts.h"

struct schema_item { /* a piece of a branch's work */
    const struct schema_item *next;
    enum { ITEM_LITERAL, ITEM_TYPES, ITEM_ATOM, ITEM_EITHER, ITEM_VALUES } kind;
    uint32_t literal;
    unsigned types;
    const struct atom *atom; /* VALUES: node, n, negated */
    const struct either *either;
};

struct either {
    const struct either *next;
    const struct schema_item *items; /* one option */
};

struct seen { /* literals that a branch has processed */
    const struct seen *next;
    uint32_t literal;
};

struct branch {
    unsigned types;
    const struct atom *atoms;
    const struct schema_item *work;
    const struct seen *seen;
};

struct expansion {
    struct schema *s;
    LIST(struct branch) stack;
    LIST(struct alternative) found;
    struct branch now;
    uint32_t n_branches;
    bool asking; /* for schema_is_surely_empty(): reaching a bound is not an error */
    bool gave_up;
    int depth;
};

/* The options of an "or", in the order in which they are added. */
struct options {
    struct either *first, *last;
    uint32_t n;
};

/* Make a work item in front of the list `next`. */
const struct schema_item *schema_item_of(struct expansion *expansion, struct schema_item item,
                                         const struct schema_item *next);
const struct schema_item *schema_item_literal(struct expansion *expansion, const struct json *node,
                                              bool negated, const struct schema_item *next);
const struct schema_item *schema_item_types(struct expansion *expansion, unsigned types,
                                            const struct schema_item *next);
const struct schema_item *schema_item_atom(struct expansion *expansion, struct atom atom,
                                           const struct schema_item *next);
const struct schema_item *schema_item_required(struct expansion *expansion, const struct json *text,
                                               const struct schema_item *next);
void schema_add_option(struct expansion *expansion, struct options *options,
                       const struct schema_item *items);

/* Add work or an atom to the current branch. */
void schema_expand_item(struct expansion *expansion, struct schema_item item);
void schema_expand_literal(struct expansion *expansion, const struct json *node, bool negated);
void schema_expand_atom(struct expansion *expansion, struct atom atom);
void schema_expand_either(struct expansion *expansion, const struct options *options);

/* The value is one of values[0 .. n), or none of them when negated. */
void schema_expand_values(struct expansion *expansion, const struct json *values, uint32_t n,
                          bool negated);

/* Report a keyword that is not supported (returns NULL), or one with a wrong value. */
void *schema_refuse(struct expansion *expansion, const struct json *node, const char *what);
void schema_is_invalid(struct expansion *expansion, const struct json *node, const char *what);

/* The values of keywords: a count, a set of types, a member's name as a text, a value of some
 * kind. */
bool schema_count_of(struct expansion *expansion, const struct json *node, uint32_t *n);
unsigned schema_types_of(struct expansion *expansion, const struct json *node);
const struct json *schema_name_text(struct expansion *expansion, const struct json *member);
const struct json *schema_get_kind(struct expansion *expansion, const struct json *schema,
                                   const char *name, enum json_kind kind);
const struct json *schema_follow(struct expansion *expansion, const struct json *schema);
bool schema_bound_of(struct expansion *expansion, const struct json *schema, bool most, bool strict,
                     struct atom *atom);
struct atom schema_contains_atom(struct expansion *expansion, const struct json *schema,
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

/* Add the work of a schema that must hold, and of one that must not. */
void schema_hold(struct expansion *expansion, const struct json *schema);
void schema_deny(struct expansion *expansion, const struct json *schema);

#endif
