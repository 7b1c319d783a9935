/* What the files of the schema compiler share.
 *
 * A schema is read as logic. A literal is a schema that must hold, or must not; a goal is a set of
 * literals that all must (what a value at some place has to satisfy). schema_expand() turns a goal into
 * alternatives, each a set of types and a list of atoms: constraints of one keyword that say
 * something about one type. An alternative is built into states type by type; the goals of its
 * members and items are only named, and built later, once each. So recursion through $ref ends by
 * itself, and "not", "oneOf" and "if" are exact where all that they touch can be negated. */
#ifndef QUIRE_GRAMMAR_SCHEMA_PARTS_H
#define QUIRE_GRAMMAR_SCHEMA_PARTS_H

#include "base/json.h"
#include "grammar/build.h"
#include "grammar/compile.h"
#include "grammar/dfa.h"
#include "grammar/grammar.h"

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
    const struct json *node; /* a schema, or with `constant` a value */
    bool constant;           /* must equal this value */
    bool negated;
};

enum atom_kind {
    ATOM_LEAST,        /* number >= node; strict: > */
    ATOM_MOST,         /* number <= node; strict: < */
    ATOM_MULTIPLE,     /* of node */
    ATOM_NUMBERS,      /* one of the numbers among node[0 .. n) */
    ATOM_LENGTH_LEAST, /* string: n characters */
    ATOM_LENGTH_MOST,
    ATOM_PATTERN, /* node is a text, found in the string */
    ATOM_FORMAT,
    ATOM_STRINGS,  /* one of the texts among node[0 .. n) */
    ATOM_MEMBERS,  /* properties, patternProperties, additionalProperties of the schema `node` */
    ATOM_REQUIRED, /* the name `node` is there */
    ATOM_ABSENT,
    ATOM_PROPERTY, /* the member of that name satisfies `literal` */
    ATOM_MEMBERS_LEAST,
    ATOM_MEMBERS_MOST,
    ATOM_NAMES,        /* every name satisfies literal */
    ATOM_SOME_PATTERN, /* some member whose name matches node satisfies literal */
    ATOM_SOME_OTHER,   /* some member that the schema `node` calls additional satisfies literal */
    ATOM_ITEMS,        /* prefixItems, items, additionalItems of the schema `node` */
    ATOM_ITEM,         /* item n satisfies literal */
    ATOM_ITEMS_LEAST,
    ATOM_ITEMS_MOST,
    ATOM_CONTAINS, /* n to m items from item `from` on satisfy literal */
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

struct schema_place { /* a schema with a name of its own: $id, $anchor */
    const char *uri;
    size_t len;
    const struct json *node;
};

struct based { /* a schema and the URI that its references count from */
    const struct json *node;
    const char *base;
};

enum language { LANGUAGE_PATTERN, LANGUAGE_FORMAT, LANGUAGE_WIDE, LANGUAGE_NARROW };

struct named_dfa {
    const char *text;
    size_t len;
    enum language kind;
    const struct dfa *dfa; /* NULL: an unknown format */
};

struct schema {
    struct compile *c;
    struct build *b;
    enum grammar_space space;
    const struct json *root;
    bool ref_alone; /* draft-04 to -07: siblings of $ref do not count */
    LIST(struct schema_place) places;
    LIST(struct based) bases;
    struct keys literal_keys;
    LIST(struct literal) literals;
    struct keys goal_keys;
    LIST(uint32_t) goal_states; /* where each goal begins */
    uint32_t n_built;           /* goals built so far */
    struct keys string_keys;
    LIST(uint32_t) string_states; /* behind the opening quote */
    LIST(struct named_dfa) dfas;
    const struct dfa *holds;         /* what every string and open name matches; NULL: anything */
    uint32_t end;                    /* an end that all share */
    uint32_t space_rule, colon_rule; /* NONE: not built yet */
    uint32_t body;                   /* of a free string, behind its quote */
    uint32_t more_rule;              /* one escape, or a character of several bytes */
    uint32_t number;                 /* a free number */
};

/* --- schema_index.c: names of schemas ----------------------------------------------------- */

void schema_index_add(struct schema *schema);
const struct json *schema_index_find(struct schema *schema, const struct json *from,
                                     const struct json *ref);
void schema_index_pointer(const struct json *root, const void *node, char *out, size_t cap);

/* --- schema_logic.c, schema_expand.c ------------------------------------------------------ */

#define NO_LITERAL NONE

uint32_t schema_literal_of(struct schema *schema, const struct json *node, bool constant,
                           bool negated);
uint32_t schema_literal_not(struct schema *schema, uint32_t literal);

/* The state in which a value that satisfies all the literals begins; what it takes is built when
 * its turn comes. Sorts the list in place. */
uint32_t schema_goal_state(struct schema *schema, uint32_t *literals, uint32_t n);

struct alternatives schema_expand(struct schema *schema, const uint32_t *literals, uint32_t n);

/* Certainly nothing satisfies these; false when it is not seen at once. */
bool schema_is_surely_empty(struct schema *schema, const uint32_t *literals, uint32_t n, int depth);

/* --- values: each builds from a state to s->end ------------------------------------------- */

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

/* The values that an item of an array with these atoms can have, where that is a list of scalars:
 * enum, const, booleans, and anyOf of these. Their number; 0: it is not. values may be NULL. */
uint32_t schema_array_values(struct schema *schema, const struct atom *atoms,
                             const struct json **values);
#define ARRAY_VALUES_MAX 256

/* White space where JSON allows it, from `from` to `to`. */
void schema_build_space(struct schema *schema, uint32_t from, uint32_t to);
/* The same behind ',' and ':', where compact output may have one space. */
void schema_build_space_after(struct schema *schema, uint32_t from, uint32_t to);
/* ':' with its white space. */
void schema_build_colon(struct schema *schema, uint32_t from, uint32_t to);

bool schema_format_is_known(const char *name);

/* The texts of a format (NULL: not known, or the error is noted). Where it has a shape beside
 * patterns, or beside a count of characters, there are two in few enough states for that: the wide
 * one has some more texts, for where the format must hold, the narrow one some fewer, for where it
 * must not. So no valid text is refused. */
bool schema_format_has_shape(const char *name, bool counted);
const struct dfa *schema_format_language(struct compile *compile, const char *name);
const struct dfa *schema_format_wide(struct compile *compile, const char *name);
const struct dfa *schema_format_narrow(struct compile *compile, const char *name);
const struct dfa *hostname_dfa(struct compile *compile); /* hostname.c */

/* Does JSON Schema define this format, and quire cannot hold it? Others are annotations. */
bool schema_format_is_refused(const char *name);

/* --- decimals ----------------------------------------------------------------------------- */

#define DECIMAL_DIGITS 400

struct decimal {
    bool minus;
    int n_int, n_frac;           /* digits; no leading zero before, no trailing one behind */
    char digits[DECIMAL_DIGITS]; /* n_int, then n_frac */
};

/* Read a JSON number. False: more digits than there is room for. */
bool schema_decimal_read(struct decimal *decimal, const char *text, size_t len);
bool schema_decimal_equal(const struct decimal *a, const struct decimal *b);
size_t schema_decimal_text(const struct decimal *decimal, char *out, size_t cap);

#endif
