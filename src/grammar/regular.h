/* Regular expressions as trees, and from trees to deterministic automata.
 *
 * The parsers of patterns (regex.c) and of grammars (ebnf.c) make the trees. Characters are code
 * points; the automata read their UTF-8. */
#ifndef QUIRE_GRAMMAR_REGULAR_H
#define QUIRE_GRAMMAR_REGULAR_H

#include "grammar/build.h"
#include "grammar/compile.h"
#include "grammar/dfa.h"

#define REGULAR_NODES_MAX  200000
#define REGULAR_STATES_MAX 60000 /* of the nondeterministic automaton */
#define REGULAR_DEPTH_MAX  200   /* groups in each other: recursion goes no deeper */

enum regular_kind {
    REGULAR_EMPTY,
    REGULAR_SET,    /* one character of a set */
    REGULAR_CAT,    /* left, then right */
    REGULAR_ALT,    /* left or right */
    REGULAR_REPEAT, /* left, min to max times */
    REGULAR_BEGIN,  /* nothing, at the beginning of the text */
    REGULAR_END,    /* nothing, at its end */
    REGULAR_CALL,   /* a rule of a grammar; `min` is its number */
    REGULAR_NEVER,
};

struct regular_range {
    uint32_t lo, hi; /* code points, inclusive */
};

struct regular {
    enum regular_kind kind;
    const struct regular *left, *right;
    uint32_t min, max; /* NONE: no limit */
    const struct regular_range *ranges;
    uint32_t n_ranges; /* sorted, disjoint after regular_set() */
};

/* Nodes; NULL (and the error noted) when memory ends. NULL arguments give NULL. */
const struct regular *regular_node(struct compile *compile, enum regular_kind kind,
                                   const struct regular *left, const struct regular *right);
const struct regular *regular_repeat(struct compile *compile, const struct regular *left,
                                     uint32_t min, uint32_t max);
const struct regular *regular_set(struct compile *compile, const struct regular_range *ranges,
                                  uint32_t n, bool negated);
const struct regular *regular_text(struct compile *compile, const char *text, size_t len);
const struct regular *regular_any(struct compile *compile);

/* The texts that match as a whole; with calls in the tree this is an error of ours. */
const struct dfa *regular_dfa(struct compile *compile, const struct regular *tree);

/* The same into states of an automaton: from `start` to ends; rule[i] is where call i begins. */
void regular_build(struct build *build, const struct regular *tree, uint32_t start,
                   const uint32_t *rule);

/* --- patterns (regex.c) ------------------------------------------------------------------- */

/* A pattern in the common part of ECMAScript and Python: | () (?:) (?<name>) * + ? {n,m} and their
 * lazy forms, . [] [^], ^ $, \d \D \w \W \s \S (ASCII, \s as ECMAScript), \t \n \r \f \v \0 \xHH
 * \uHHHH \u{H} \cX, escaped punctuation; lookaheads (?=) (?!) at the very beginning. Refused by
 * name: back references, \b, \B, \p, lookbehind, other lookaheads, flags. '.' is all but \n, \r,
 * U+2028 and U+2029. */

/* The pattern as a tree; ^ and $ in it are REGULAR_BEGIN and REGULAR_END. */
const struct regular *regex_tree(struct compile *compile, const char *pattern, size_t len);

/* The texts in which the pattern is found somewhere (JSON Schema). */
const struct dfa *regex_search(struct compile *compile, const char *pattern, size_t len);

/* The texts that match as a whole. */
const struct dfa *regex_whole(struct compile *compile, const char *pattern, size_t len);

#endif
