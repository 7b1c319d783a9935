/* SPDX-License-Identifier: Apache-2.0
 *
 * An automaton under construction: states with edges and calls, which are then trimmed and written
 * as an image (automaton.h).
 *
 * The caller keeps states deterministic: the byte ranges of a state's own edges must be disjoint.
 * Two possible continuations for one byte are written as calls. States with equal continuations may
 * be shared. After an error (compile.h) all functions do nothing and return state 0. */
#ifndef QUIRE_GRAMMAR_BUILD_H
#define QUIRE_GRAMMAR_BUILD_H

#include "grammar/compile.h"

#define DEAD (UINT32_MAX - 1) /* target of an edge that hides one of the base's edges */

struct build_edge {
    uint32_t to;
    uint32_t next;
    uint8_t lo, hi;
};

struct build_call {
    uint32_t start, back, next; /* back NONE: the callee's end is the caller's end */
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

/* Begin. State 0 has no edges; it is returned after errors. */
void build_init(struct build *build, struct compile *compile);
uint32_t build_state(struct build *build);
uint32_t build_end(struct build *build);  /* a new state that is an end */
uint32_t build_nest(struct build *build); /* a new state after an opening bracket */

void build_edge(struct build *build, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to);
void build_call(struct build *build, uint32_t from, uint32_t start, uint32_t back);

/* Let `from` continue like `to`, without a byte: a call without a way back. */
void build_jump(struct build *build, uint32_t from, uint32_t to);

/* The state that a byte leads to, the base included; NONE or DEAD: none. */
uint32_t build_step(const struct build *build, uint32_t from, uint8_t byte);

/* Let one byte of a state lead to `to`; DEAD: nowhere. */
void build_set(struct build *build, uint32_t from, uint8_t byte, uint32_t to);

/* A new state that behaves like `from` (which has no calls) until build_set() changes it. */
uint32_t build_copy(struct build *build, uint32_t from);

/* Literal bytes from `from`; returns the state after them. */
uint32_t build_text(struct build *build, uint32_t from, const char *bytes, size_t len);

/* Let bytes, then `last`, lead from root to `leaf`, whatever they led to before (DEAD: nowhere).
 * The states on the way are copied, so root itself does not change; the copy of root is returned.
 * root NONE begins a fresh tree. */
uint32_t build_insert(struct build *build, uint32_t root, const char *bytes, size_t len,
                      uint8_t last, uint32_t leaf);

/* Like build_insert(), but changes root's states in place: for trees that are not shared. */
void build_insert_here(struct build *build, uint32_t root, const char *bytes, size_t len,
                       uint8_t last, uint32_t leaf);

/* Let bytes lead from root to an end, in place; a word may be a prefix of another one. */
void build_word(struct build *build, uint32_t root, const char *bytes, size_t len);

/* Drop the states that cannot be reached or that cannot reach an end, and append the image. Reports
 * ERR_INVALID when nothing is left, ERR_LIMIT when the image is too large. */
void build_write(struct build *build, uint32_t root, struct buf *image);

/* A state that reaches itself without a byte, with a larger stack; NONE when there is none. */
uint32_t build_left_recursion(struct build *build);

#endif
