/* An automaton image: a pushdown automaton over bytes, position-independent and checked.
 *
 *   automaton | automaton_state[n_states] | automaton_edge[n_edges] | automaton_call[n_calls]
 *
 * A state has edges (a range of bytes to a state, sorted, disjoint), calls (push `back`, go on in
 * `start` without a byte) and may be an end: pop, or, with nothing to pop, the end of the output.
 * A byte that no edge of the state has is looked up in its `base` state, if it has one; an edge
 * to AUTOMATON_DEAD hides the base's. So a state of an object's names is two or three edges.
 *
 * Characters may be counted beside the states, in place of a state for each number of them: a call
 * of a state with a `count` (and a way back) pushes a frame with that many. Within the rule that
 * was called, a byte that leads to a state with AUTOMATON_CHAR takes one away; a state with
 * AUTOMATON_COUNTED is only entered when `count` are left, which are those that its way to the end
 * needs at least. Such rules call nothing.
 *
 * A configuration is a state and a stack; an automaton is in a set of configurations (walk.h).
 *
 * An image comes from a front and is hostile until automaton_check() has looked at all of it.
 * After that no walk reads outside of it; what a checked image can still do (stacks that grow,
 * sets that grow, ends that are never reached) is bounded by the walker. */
#ifndef QUIRE_GRAMMAR_AUTOMATON_H
#define QUIRE_GRAMMAR_AUTOMATON_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"

#define AUTOMATON_MAGIC UINT64_C(0x316d617265697571)
#define AUTOMATON_DEAD  UINT32_MAX /* target of an edge that leads nowhere */
#define AUTOMATON_NONE  UINT32_MAX /* no base; no way back */

enum automaton_flags {
    AUTOMATON_END = 1,     /* the rule may end here */
    AUTOMATON_NESTS = 2,   /* something begins that may hold others of its kind: not where a stack
                          * is nearly as deep as it may be, so that what was begun can be ended */
    AUTOMATON_COUNTED = 4, /* of a rule that counts characters */
    AUTOMATON_CHAR = 8,    /* and one is complete here */
};

struct automaton_state {
    uint32_t edge_at; /* index of the first */
    uint32_t call_at;
    uint32_t base; /* a state without base and calls; or AUTOMATON_NONE */
    uint16_t n_edges;
    uint16_t n_calls;
    uint8_t flags; /* enum automaton_flags */
    uint8_t plain; /* this many plain characters of a JSON string (anything but '"', '\' and
                    * controls) can certainly follow without leaving the rule; 255: any number.
                    * A hint for masks; accepting a token never relies on it */
    uint16_t
        count; /* with AUTOMATON_COUNTED: characters that must be left; else what a call of this
                     * state begins to count with, 0: it does not */
};

struct automaton_edge {
    uint32_t to;
    uint8_t lo, hi; /* inclusive */
    uint16_t unused;
};

struct automaton_call {
    uint32_t start;
    uint32_t back; /* AUTOMATON_NONE: nothing is pushed, the called one ends for the caller */
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

/* Look at every field of an image of len bytes, aligned to 8. ERR_OK; ERR_INVALID when it is not
 * an automaton; ERR_LIMIT when it is larger than GRAMMAR_BYTES_MAX. About 5 ns a state. The bytes
 * must not change afterwards: check a private copy, or a sealed mapping. Any thread. */
int automaton_check(const void *image, size_t len) ERR_CHECKED;

/* The name of an automaton: equal images, equal names (SHA-256). For sharing what is cached;
 * who does not trust the sender computes it himself. */
struct hash automaton_digest(const struct automaton *automaton);

/* Where a byte leads from a state, calls and ends not looked at; AUTOMATON_DEAD: nowhere. */
static inline uint32_t automaton_step(const struct automaton *automaton, uint32_t state,
                                      uint8_t byte)
{
    const struct automaton_state *s = automaton_states(automaton) + state;
    const struct automaton_edge *edge = automaton_edges(automaton) + s->edge_at;
    uint32_t n = s->n_edges;

    for (;;) {
        while (n > 8) { /* halve: the first edge that ends at or after the byte stays inside */
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
        s = automaton_states(automaton) + s->base; /* which has no base */
        edge = automaton_edges(automaton) + s->edge_at;
        n = s->n_edges;
    }
}

#endif
