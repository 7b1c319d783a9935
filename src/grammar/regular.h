/* SPDX-License-Identifier: Apache-2.0
 *
 * Regular expressions as trees, and their translation to deterministic automata.
 *
 * The parsers of patterns (regex.c) and of grammars (ebnf.c) make the trees. Characters are code
 * points; the automata read their UTF-8. */
#ifndef QUIRE_GRAMMAR_REGULAR_H
#define QUIRE_GRAMMAR_REGULAR_H

#include "grammar/build.h"
#include "grammar/compile.h"
#include "grammar/dfa.h"

#define REGULAR_STATES_MAX 60000 /* of the nondeterministic automaton */
#define REGULAR_DEPTH_MAX  200   /* nesting of groups, which bounds the recursion */

enum regular_kind {
    REGULAR_EMPTY,
    REGULAR_SET,    /* one character of a set */
    REGULAR_CAT,    /* left, then right */
    REGULAR_ALT,    /* left or right */
    REGULAR_REPEAT, /* left, min to max times */
    REGULAR_BEGIN,  /* the empty text, at the beginning of the whole text */
    REGULAR_END,    /* the empty text, at the end of the whole text */
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

/* Make nodes. NULL, with the error recorded, when memory runs out; a NULL argument gives NULL. */
const struct regular *regular_node(struct compile *compile, enum regular_kind kind,
                                   const struct regular *left, const struct regular *right);
const struct regular *regular_repeat(struct compile *compile, const struct regular *left,
                                     uint32_t min, uint32_t max);
const struct regular *regular_set(struct compile *compile, const struct regular_range *ranges,
                                  uint32_t n, bool negated);
const struct regular *regular_text(struct compile *compile, const char *text, size_t len);
const struct regular *regular_any(struct compile *compile);

/* The automaton of the texts that match as a whole. The tree must not contain calls. */
const struct dfa *regular_dfa(struct compile *compile, const struct regular *tree);

/* Build a tree as states of an automaton, from `start` to ends; call i begins in rule[i]. */
void regular_build(struct build *build, const struct regular *tree, uint32_t start,
                   const uint32_t *rule);

/* --- patterns (regex.c) ------------------------------------------------------------------- */

/* A pattern in the common part of ECMAScript and Python: | () (?:) (?<name>) * + ? {n,m} and their
 * lazy forms, . [] [^], ^ $, \d \D \w \W \s \S (ASCII, \s as in ECMAScript), \t \n \r \f \v \0 \xHH
 * \uHHHH \u{H} \cX, escaped punctuation; lookaheads (?=) (?!) at the very beginning. Refused by
 * name: back references, \b, \B, \p, lookbehinds, other lookaheads, flags. '.' is any character but
 * \n, \r, U+2028 and U+2029. */

/* The pattern as a tree; ^ and $ in it are REGULAR_BEGIN and REGULAR_END. */
const struct regular *regex_tree(struct compile *compile, const char *pattern, size_t len);

/* The automaton of the texts that contain a match anywhere, as JSON Schema's "pattern" demands. */
const struct dfa *regex_search(struct compile *compile, const char *pattern, size_t len);

/* The automaton of the texts that match as a whole. */
const struct dfa *regex_whole(struct compile *compile, const char *pattern, size_t len);

#endif
