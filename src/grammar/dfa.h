/* SPDX-License-Identifier: Apache-2.0
 *
 * Deterministic finite automata over bytes: the form of patterns, formats and sets of names before
 * they become part of the automaton. They live in the compilation's arena and never change. */
#ifndef QUIRE_GRAMMAR_DFA_H
#define QUIRE_GRAMMAR_DFA_H

#include "grammar/build.h"
#include "grammar/compile.h"

#define DFA_STATES_MAX 40000
#define DFA_PARTS_MAX  16

struct dfa_edge {
    uint32_t to;
    uint8_t lo, hi;
};

struct dfa_state {
    uint32_t edge_at;
    uint32_t n_edges; /* sorted, disjoint */
    uint32_t label;   /* 0: not an end; else the kind of end (1 if there is only one) */
};

struct dfa {
    struct dfa_state *states; /* the first is the start */
    struct dfa_edge *edges;
    uint32_t n_states, n_edges;
};

/* The automaton that accepts all valid UTF-8. */
const struct dfa *dfa_utf8(struct compile *compile);

/* Several automata to run in parallel. The parts that accept a text form a mask. */
struct dfa_product {
    const struct dfa *const *parts;
    uint32_t n;                /* at most DFA_PARTS_MAX, else ERR_LIMIT is recorded */
    uint32_t min_len, max_len; /* bounds on the length in characters; max_len NONE: unbounded */
    bool (*keep)(const void *arg, uint32_t mask); /* is a text accepted? NULL: all texts are */
    const void *arg;
};

/* Run the parts in parallel over valid UTF-8. With keep the label of an end is 1, without keep it
 * is 1 + mask. The result is minimal; the empty language is one state without edges. */
const struct dfa *dfa_side_by_side(struct compile *compile, const struct dfa_product *product);

/* An equivalent automaton, labels included, with the fewest states, unless finding it takes too
 * long. States that cannot reach an end are removed. */
const struct dfa *dfa_minimise(struct compile *compile, const struct dfa *dfa);

/* The state after a byte; NONE: there is none. */
uint32_t dfa_step(const struct dfa *dfa, uint32_t state, uint8_t byte);

/* The label after the bytes; 0: they are not accepted. */
uint32_t dfa_match(const struct dfa *dfa, const char *bytes, size_t len);

/* A dfa under construction: states are added while it is explored, and get their edges in order. */
struct dfa_maker {
    struct compile *c;
    LIST(struct dfa_state) states;
    LIST(struct dfa_edge) edges;
};
uint32_t dfa_maker_state(struct dfa_maker *maker, uint32_t label); /* NONE after an error */
void dfa_maker_edge(struct dfa_maker *maker, uint8_t lo, uint8_t hi,
                    uint32_t to);                              /* of the state begun last */
void dfa_maker_begin(struct dfa_maker *maker, uint32_t state); /* its edges follow */
const struct dfa *dfa_maker_end(struct dfa_maker *maker);

/* --- keys: numbers for tuples of words, in order of first appearance --------------------- */

struct keys {
    struct compile *c;
    LIST(uint32_t) words; /* all keys, one after another */
    struct key {
        uint32_t at, n, hash, next;
    } * items;
    uint32_t n, cap;
    uint32_t *heads;
    uint32_t n_heads; /* a power of two */
};

/* The number of a tuple; *is_new reports whether this is its first appearance. */
uint32_t dfa_keys_find(struct keys *keys, const uint32_t *words, uint32_t n, bool *is_new);

/* --- into the automaton ------------------------------------------------------------------- */

/* Build a dfa over raw bytes. A byte `last` leads from an end with a label to leaf[label]; with
 * last < 0 the ends are ends of the automaton. Returns the start state. */
uint32_t dfa_build(struct build *build, const struct dfa *dfa, int last, const uint32_t *leaf);

/* Build a dfa as the inside of a JSON string: '"', '\' and controls are written as escapes. */
uint32_t dfa_build_json(struct build *build, const struct dfa *dfa, const uint32_t *leaf);

/* Like dfa_build_json(), as a rule that counts its characters (automaton.h), for texts of at most
 * `most` characters, 1 to 65,000. Returns a state that must be called with a way back; the rule
 * ends after the closing quote. NONE when a control is possible or the shortest way to an end from
 * some state takes more than 250 characters. */
uint32_t dfa_build_json_counted(struct build *build, const struct dfa *dfa, uint32_t most);

/* Like dfa_build_json(), but each text has only one spelling: for names, of which some are removed
 * again by build_insert(). */
uint32_t dfa_build_json_once(struct build *build, const struct dfa *dfa, const uint32_t *leaf);

#endif
