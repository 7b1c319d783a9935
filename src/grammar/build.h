/* An automaton while it is made: states with edges and calls, then trimmed and written.
 *
 * Whoever adds edges keeps a state deterministic: the ranges of its own edges are disjoint. Two
 * ways on for one byte are calls. States may be shared by everything that goes on alike. */
#ifndef QUIRE_GRAMMAR_BUILD_H
#define QUIRE_GRAMMAR_BUILD_H

#include "grammar/compile.h"

#define DEAD (UINT32_MAX - 1) /* target of an edge that hides one of the base */

struct build_edge {
    uint32_t to;
    uint32_t next;
    uint8_t lo, hi;
};

struct build_call {
    uint32_t start, back, next; /* back NONE: what called goes on by itself */
};

struct build_state {
    uint32_t edges, calls; /* heads of lists, or NONE */
    uint32_t base;         /* or NONE */
    bool end, nests;       /* as in the image */
    uint8_t plain;
    bool counted, whole; /* AUTOMATON_COUNTED, AUTOMATON_CHAR */
    uint16_t count;
};

struct build {
    struct compile *c;
    LIST(struct build_state) states;
    LIST(struct build_edge) edges;
    LIST(struct build_call) calls;
};

/* A new state; state 0 is made by build_init(), has no way on and stands in after errors. */
void build_init(struct build *build, struct compile *compile);
uint32_t build_state(struct build *build);
uint32_t build_end(struct build *build);  /* a new state that is an end */
uint32_t build_nest(struct build *build); /* one behind an opening bracket */

void build_edge(struct build *build, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to);
void build_call(struct build *build, uint32_t from, uint32_t start, uint32_t back);

/* Go on from `from` as `to` does, without a byte. A call that comes back to nothing. */
void build_jump(struct build *build, uint32_t from, uint32_t to);

/* The state that a byte leads to, the base looked at; NONE or DEAD: nowhere. */
uint32_t build_step(const struct build *build, uint32_t from, uint8_t byte);

/* Make one byte of a state lead elsewhere; DEAD: nowhere. */
void build_set(struct build *build, uint32_t from, uint8_t byte, uint32_t to);

/* A new state that does what `from` (without calls) does, until build_set() changes it. */
uint32_t build_copy(struct build *build, uint32_t from);

/* Literal bytes in a line from `from`; the state behind them. */
uint32_t build_text(struct build *build, uint32_t from, const char *bytes, size_t len);

/* Let bytes, then `last`, lead from root to `leaf`, whatever they led to before (DEAD: nowhere).
 * The states on the way are copied, so that root's own ways stay as they are; the copy of root is
 * the result. With root NONE a fresh tree is begun. */
uint32_t build_insert(struct build *build, uint32_t root, const char *bytes, size_t len,
                      uint8_t last, uint32_t leaf);

/* The same, changing root's states in place: for trees that nobody else has. */
void build_insert_here(struct build *build, uint32_t root, const char *bytes, size_t len,
                       uint8_t last, uint32_t leaf);

/* Let bytes lead from root to an end, in place; words may begin with each other. */
void build_word(struct build *build, uint32_t root, const char *bytes, size_t len);

/* Drop what cannot be reached or cannot reach an end, and append the image. Notes ERR_INVALID
 * when nothing is left, ERR_LIMIT when it is too large. */
void build_write(struct build *build, uint32_t root, struct buf *image);

/* A state that comes to itself without a byte, its stack grown: NONE when there is none. */
uint32_t build_left_recursion(struct build *build);

#endif
