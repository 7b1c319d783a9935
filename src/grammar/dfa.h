/* Deterministic automata over bytes, without calls: what patterns, formats and sets of names
 * become before they are built in. They live in the compilation's arena and never change. */
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
    uint32_t label;   /* 0: not an end; else what ends here (1 for a plain language) */
};

struct dfa {
    struct dfa_state *states; /* the first is the start */
    struct dfa_edge *edges;
    uint32_t n_states, n_edges;
};

/* Valid UTF-8; the language of everything. */
const struct dfa *dfa_utf8(struct compile *compile);

/* Run several automata side by side over valid UTF-8 whose length in characters is in
 * [min_len, max_len] (max_len NONE: no limit). An end is where `keep` of the mask of the parts
 * that end there is true, its label is 1; with keep NULL all are ends, labelled 1 + the mask.
 * Minimal; a language without members is one state without edges. n <= DFA_PARTS_MAX. */
const struct dfa *dfa_side_by_side(struct compile *compile, const struct dfa *const *parts,
                                   uint32_t n, uint32_t min_len, uint32_t max_len,
                                   bool (*keep)(const void *arg, uint32_t mask), const void *arg);

/* The same labels with fewer states: the least automaton, unless finding it takes long. States
 * without a way to an end are gone. */
const struct dfa *dfa_minimise(struct compile *compile, const struct dfa *dfa);

/* The state after a byte; NONE. */
uint32_t dfa_step(const struct dfa *dfa, uint32_t state, uint8_t byte);

/* The label that the bytes end with. */
uint32_t dfa_match(const struct dfa *dfa, const char *bytes, size_t len);

bool dfa_is_empty(const struct dfa *dfa);

/* A list of states that is filled while a dfa is explored: new states get edges in their order. */
struct dfa_maker {
    struct compile *c;
    LIST(struct dfa_state) states;
    LIST(struct dfa_edge) edges;
};
uint32_t dfa_maker_state(struct dfa_maker *maker, uint32_t label); /* NONE after an error */
void dfa_maker_edge(struct dfa_maker *maker, uint8_t lo, uint8_t hi,
                    uint32_t to);                              /* of the last begun */
void dfa_maker_begin(struct dfa_maker *maker, uint32_t state); /* its edges follow */
const struct dfa *dfa_maker_end(struct dfa_maker *maker);

/* --- keys: sets of numbers that were seen, each with a number of its own ------------------ */

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

/* The number of a key, which is its position in order of appearance; *is_new out. */
uint32_t dfa_keys_find(struct keys *keys, const uint32_t *words, uint32_t n, bool *is_new);

/* --- into the automaton ------------------------------------------------------------------- */

/* Build a dfa over bytes as it stands. leaf[label] is where a byte `last` leads from an end with
 * that label; with last < 0 ends are ends of the automaton. Returns the start. */
uint32_t dfa_build(struct build *build, const struct dfa *dfa, int last, const uint32_t *leaf);

/* The same for the inside of a JSON string: '"', '\' and controls are written as escapes. */
uint32_t dfa_build_json(struct build *build, const struct dfa *dfa, const uint32_t *leaf);

/* The same as a rule that counts its characters (automaton.h), for texts of at most `most`, 1 to
 * 65,000: a state to be called with a way back, behind whose closing quote the rule ends. NONE when
 * that cannot be: a control may come, or a way to the end takes more than 250 characters. */
uint32_t dfa_build_json_counted(struct build *build, const struct dfa *dfa, uint32_t most);

/* The same, but every text can be written in one way only: for names, of which some are then
 * taken out again (build_insert()). */
uint32_t dfa_build_json_once(struct build *build, const struct dfa *dfa, const uint32_t *leaf);

#endif
