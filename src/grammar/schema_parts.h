/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the schema compiler.
 *
 * A schema is read as a formula of logic. A literal is a schema that must hold, or must not. A goal
 * is a set of literals that must all be true of the value at some place. schema_expand() turns a
 * goal into alternatives: each is a set of types and a list of atoms, which are constraints of one
 * keyword on one type. An alternative is built into states, type by type. The goals of its members
 * and items only get a state, and are built later, once each. Recursion through $ref therefore ends
 * by itself, and "not", "oneOf" and "if" are exact wherever the keywords they concern can be
 * negated. */
#ifndef QUIRE_GRAMMAR_SCHEMA_PARTS_H
#define QUIRE_GRAMMAR_SCHEMA_PARTS_H

#include "base/json.h"
#include "grammar/build.h"
#include "grammar/compile.h"
#include "grammar/dfa.h"
#include "grammar/grammar.h"

/* Types of values, one bit each; booleans are two types, and so are numbers. */
enum type_bits {
    TYPE_NULL = 1,
    TYPE_FALSE = 2,
    TYPE_TRUE = 4,
    TYPE_WHOLE = 8, /* numbers without a fraction */
    TYPE_FRACTION = 16,
    TYPE_STRING = 32,
    TYPE_ARRAY = 64,
    TYPE_OBJECT = 128,
    TYPE_NUMBER = 24,
    TYPE_ALL = 255,
};

struct literal {
    const struct json *node; /* a schema; with `constant`, a value */
    bool constant;           /* must equal this value */
    bool negated;
};

/* Constraints, grouped by type. `node`, `n`, `m` and `literal` are members of struct atom. */
enum atom_kind {
    ATOM_LEAST,        /* number >= node; strict: > */
    ATOM_MOST,         /* number <= node; strict: < */
    ATOM_MULTIPLE,     /* of node */
    ATOM_NUMBERS,      /* one of the numbers among node[0 .. n) */
    ATOM_LENGTH_LEAST, /* string: n characters */
    ATOM_LENGTH_MOST,
    ATOM_PATTERN, /* node is a pattern that is found in the string */
    ATOM_FORMAT,
    ATOM_STRINGS,  /* one of the texts among node[0 .. n) */
    ATOM_MEMBERS,  /* properties, patternProperties, additionalProperties of the schema `node` */
    ATOM_REQUIRED, /* the member `node` exists */
    ATOM_ABSENT,
    ATOM_PROPERTY, /* the member with that name, if it exists, satisfies `literal` */
    ATOM_MEMBERS_LEAST,
    ATOM_MEMBERS_MOST,
    ATOM_NAMES,        /* every name satisfies `literal` */
    ATOM_SOME_PATTERN, /* some member whose name matches node satisfies `literal` */
    ATOM_SOME_OTHER,   /* some member that is additional in the schema `node` satisfies `literal` */
    ATOM_ITEMS,        /* prefixItems, items, additionalItems of the schema `node` */
    ATOM_ITEM,         /* item n, if it exists, satisfies `literal` */
    ATOM_ITEMS_LEAST,
    ATOM_ITEMS_MOST,
    ATOM_CONTAINS, /* n to m items from item `from` on satisfy `literal` */
    ATOM_UNIQUE,
};

struct atom {
    const struct atom *next;
    enum atom_kind kind;
    bool negated; /* MULTIPLE, NUMBERS, PATTERN, FORMAT, STRINGS, UNIQUE */
    bool strict;  /* LEAST, MOST */
    const struct json *node;
    uint32_t n, m, from;
    uint32_t literal;
};

struct alternative {
    unsigned types;
    const struct atom *atoms;
};

struct alternatives {
    const struct alternative *items;
    uint32_t n;
};

struct schema_place { /* a schema with its own name: $id or $anchor */
    const char *uri;
    size_t len;
    const struct json *node;
};

struct based { /* a schema and the base URI of the references in it */
    const struct json *node;
    const char *base;
};

/* Kinds of languages of strings; wide and narrow are approximations of a format. */
enum language { LANGUAGE_PATTERN, LANGUAGE_FORMAT, LANGUAGE_WIDE, LANGUAGE_NARROW };

struct named_dfa {
    const char *text;
    size_t len;
    enum language kind;
    const struct dfa *dfa; /* NULL: the format is unknown */
};

/* The state of a compilation of one schema. */
struct schema {
    struct compile *c;
    struct build *b;
    enum grammar_space space;
    const struct json *root;
    bool ref_alone; /* draft-04 to -07: siblings of $ref are ignored */
    LIST(struct schema_place) places;
    LIST(struct based) bases;
    struct keys literal_keys;
    LIST(struct literal) literals;
    struct keys goal_keys;
    LIST(uint32_t) goal_states; /* the state in which each goal begins */
    uint32_t n_built;           /* goals built so far */
    struct keys string_keys;
    LIST(uint32_t) string_states; /* the state after the opening quote */
    LIST(struct named_dfa) dfas;
    const struct dfa *holds;         /* matches every string and open name; NULL: no constraint */
    uint32_t end;                    /* an end shared by all */
    uint32_t space_rule, colon_rule; /* NONE: not built yet */
    uint32_t body;                   /* of a free string, after its quote */
    uint32_t more_rule;              /* an escape, or a character of several bytes */
    uint32_t number;                 /* a free number */
};

/* --- schema_index.c: names of schemas ----------------------------------------------------- */

/* Note all names in the document; find the schema that a $ref in `from` refers to (NULL: none);
 * write the JSON pointer of a node, for error messages. */
void schema_index_add(struct schema *schema);
const struct json *schema_index_find(struct schema *schema, const struct json *from,
                                     const struct json *ref);
void schema_index_pointer(const struct json *root, const void *node, char *out, size_t cap);

/* --- schema.c, schema_expand.c ------------------------------------------------------------ */

/* The number of a literal, and of its negation. */
uint32_t schema_literal_of(struct schema *schema, const struct json *node, bool constant,
                           bool negated);
uint32_t schema_literal_not(struct schema *schema, uint32_t literal);

/* The state in which a value that satisfies all the literals begins; it is built later. Sorts the
 * list in place. */
uint32_t schema_goal_state(struct schema *schema, uint32_t *literals, uint32_t n);

/* The alternatives of a goal. They are in the arena. */
struct alternatives schema_expand(struct schema *schema, const uint32_t *literals, uint32_t n);

/* Is it certain that nothing satisfies these literals? False when it cannot be decided quickly. */
bool schema_is_surely_empty(struct schema *schema, const uint32_t *literals, uint32_t n, int depth);

/* --- values: each builds one type of an alternative, from a state to schema->end ---------- */

void schema_number_build(struct schema *schema, uint32_t from,
                         const struct alternative *alternative);
bool schema_number_is_free(const struct alternative *alternative);
void schema_string_build(struct schema *schema, uint32_t from,
                         const struct alternative *alternative);
bool schema_string_is_free(const struct alternative *alternative);
const struct dfa *schema_string_dfa(struct schema *schema, const struct alternative *alternative);
const struct dfa *schema_pattern_dfa(struct schema *schema, const struct json *text);
const struct dfa *schema_format_dfa(struct schema *schema,
                                    const struct json *text); /* NULL: not known */
void schema_object_build(struct schema *schema, uint32_t from,
                         const struct alternative *alternative);
void schema_array_build(struct schema *schema, uint32_t from,
                        const struct alternative *alternative);

/* The values that an item of an array with these atoms can have, if that is a list of scalars:
 * enum, const, booleans, and anyOf of these. Returns their number; 0: it is no such list. values
 * may be NULL. */
uint32_t schema_array_values(struct schema *schema, const struct atom *atoms,
                             const struct json **values);
#define ARRAY_VALUES_MAX 256

/* White space where JSON allows it, from `from` to `to`. */
void schema_build_space(struct schema *schema, uint32_t from, uint32_t to);
/* White space after ',' and ':', where compact output may have one space. */
void schema_build_space_after(struct schema *schema, uint32_t from, uint32_t to);
/* ':' with its white space. */
void schema_build_colon(struct schema *schema, uint32_t from, uint32_t to);

bool schema_format_is_known(const char *name);

/* The texts of a format; NULL when it is not known, or after an error. Some formats have many
 * states. When such a format is combined with patterns, or with a count of characters, an
 * approximation with few states is used: the wide one accepts some more texts, for where the format
 * must hold, the narrow one accepts fewer, for where it must not. No valid text is ever refused. */
bool schema_format_has_shape(const char *name, bool counted);
const struct dfa *schema_format_language(struct compile *compile, const char *name);
const struct dfa *schema_format_wide(struct compile *compile, const char *name);
const struct dfa *schema_format_narrow(struct compile *compile, const char *name);
const struct dfa *hostname_dfa(struct compile *compile); /* hostname.c */

/* Is this a format that JSON Schema defines and quire cannot enforce? Other formats are
 * annotations. */
bool schema_format_is_refused(const char *name);

/* --- decimals ----------------------------------------------------------------------------- */

#define DECIMAL_DIGITS 400

struct decimal {
    bool minus;
    int n_int, n_frac;           /* digits, without leading zeros, and without trailing ones */
    char digits[DECIMAL_DIGITS]; /* n_int, then n_frac */
};

/* Read a JSON number. False when it has more digits than there is room for. */
bool schema_decimal_read(struct decimal *decimal, const char *text, size_t len);
bool schema_decimal_equal(const struct decimal *a, const struct decimal *b);
size_t schema_decimal_text(const struct decimal *decimal, char *out, size_t cap);

#endif
