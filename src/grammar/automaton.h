/* SPDX-License-Identifier: Apache-2.0
 *
 * An automaton image: a pushdown automaton over bytes, as one run of bytes without pointers.
 *
 *   automaton | automaton_state[n_states] | automaton_edge[n_edges] | automaton_call[n_calls]
 *
 * A state has edges (from a range of bytes to a state; sorted, disjoint) and calls (push `back` and
 * continue in `start`, without a byte). A state may be an end: pop, or with an empty stack the end
 * of the output. A byte that has no edge is looked up in the state's `base`, if it has one; an edge
 * to AUTOMATON_DEAD hides the base's edge. States that differ little from a common one (such as
 * those of an object's names) therefore need only two or three edges.
 *
 * Characters can be counted without a state per count. A call of a state with a `count` (and a
 * `back`) pushes a frame with that count. Inside the called rule, a byte that leads to a state with
 * AUTOMATON_CHAR takes one off; a state with AUTOMATON_COUNTED is entered only while at least
 * `count` are left, which is the number of characters that its shortest way to the end needs. Such
 * rules call nothing.
 *
 * A configuration is a state and a stack; an automaton is in a set of configurations (walk.h).
 *
 * An image comes from a front and is hostile until automaton_check() has accepted it. After that no
 * walk reads outside of it. Other effects of a hostile image (growing stacks, growing sets, ends
 * that are never reached) are bounded by the walker. */
#ifndef QUIRE_GRAMMAR_AUTOMATON_H
#define QUIRE_GRAMMAR_AUTOMATON_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define AUTOMATON_MAGIC UINT64_C(0x316d617265697571)
#define AUTOMATON_DEAD  UINT32_MAX /* target of an edge that leads nowhere */
#define AUTOMATON_NONE  UINT32_MAX /* no base; no way back */

enum automaton_flags {
    AUTOMATON_END = 1,   /* the rule may end here */
    AUTOMATON_NESTS = 2, /* a list or object begins here: not allowed when the stack is nearly full,
                           * so that everything begun can still be ended */
    AUTOMATON_COUNTED = 4, /* belongs to a rule that counts characters */
    AUTOMATON_CHAR = 8,    /* a counted character is complete here */
};

struct automaton_state {
    uint32_t edge_at; /* index of the first edge */
    uint32_t call_at;
    uint32_t base; /* a state without base and calls; or AUTOMATON_NONE */
    uint16_t n_edges;
    uint16_t n_calls;
    uint8_t flags;  /* enum automaton_flags */
    uint8_t plain;  /* at least this many plain characters of a JSON string (not '"', '\' or a
                    * control) can follow without leaving the rule; 255: any number. A hint for
                    * masks; accepting a token never relies on it */
    uint16_t count; /* with AUTOMATON_COUNTED: characters that must be left; else the count with
                     * which a call of this state begins, 0: it does not count */
};

struct automaton_edge {
    uint32_t to;
    uint8_t lo, hi; /* inclusive */
    uint16_t unused;
};

struct automaton_call {
    uint32_t start;
    uint32_t back; /* AUTOMATON_NONE: nothing is pushed, so the callee's end is the caller's end */
};

struct automaton {
    uint64_t magic;
    uint64_t bytes; /* of the whole image */
    uint32_t n_states;
    uint32_t n_edges;
    uint32_t n_calls;
    uint32_t root; /* the state to begin in */
};

static inline const struct automaton_state *automaton_states(const struct automaton *automaton)
{
    return (const struct automaton_state *)(automaton + 1);
}

static inline const struct automaton_edge *automaton_edges(const struct automaton *automaton)
{
    return (const struct automaton_edge *)(automaton_states(automaton) + automaton->n_states);
}

static inline const struct automaton_call *automaton_calls(const struct automaton *automaton)
{
    return (const struct automaton_call *)(automaton_edges(automaton) + automaton->n_edges);
}

/* Check every field of an image of len bytes, aligned to 8. ERR_OK; ERR_INVALID when it is not an
 * automaton; ERR_LIMIT when it is larger than GRAMMAR_BYTES_MAX. About 5 ns per state. The bytes
 * must not change afterwards: check a private copy, or a sealed mapping. Any thread. */
int automaton_check(const void *image, size_t len) ERR_CHECKED;

/* The state that a byte leads to, calls and ends not considered; AUTOMATON_DEAD: none. */
static inline uint32_t automaton_step(const struct automaton *automaton, uint32_t state,
                                      uint8_t byte)
{
    const struct automaton_state *s = automaton_states(automaton) + state;
    const struct automaton_edge *edge = automaton_edges(automaton) + s->edge_at;
    uint32_t n = s->n_edges;

    for (;;) {
        while (n > 8) { /* binary search: keeps the first edge that ends at or after the byte */
            uint32_t half = n / 2;

            if (edge[half - 1].hi < byte) {
                edge += half;
                n -= half;
            } else {
                n = half;
            }
        }
        for (uint32_t i = 0; i < n && byte >= edge[i].lo; i++) /* sorted */
            if (byte <= edge[i].hi)
                return edge[i].to;
        if (s->base == AUTOMATON_NONE)
            return AUTOMATON_DEAD;
        s = automaton_states(automaton) + s->base; /* a base has no base itself */
        edge = automaton_edges(automaton) + s->edge_at;
        n = s->n_edges;
    }
}

#endif
