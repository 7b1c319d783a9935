/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks an automaton image. Every index in it is followed without a check by the walker, so the
 * check covers each of them: tables fill the image exactly, states own consecutive runs of edges
 * and calls, all targets exist, edges of a state are sorted, and a base has neither a base nor
 * calls. */
#include "grammar/automaton.h"

#include <stdbool.h>

#include "base/must.h"
#include "grammar/grammar.h"

_Static_assert(sizeof(struct automaton) == 32, "the image has no holes");
_Static_assert(sizeof(struct automaton_state) == 20, "the image has no holes");
_Static_assert(sizeof(struct automaton_edge) == 8, "the image has no holes");
_Static_assert(sizeof(struct automaton_call) == 8, "the image has no holes");

/* Are a state's edges sorted, disjoint, and their targets in range? */
static bool automaton_edges_are_fine(const struct automaton *automaton,
                                     const struct automaton_state *s)
{
    const struct automaton_edge *edge = automaton_edges(automaton) + s->edge_at;
    int next = 0;

    /* Ascending and disjoint edges let a step stop at the first range above the byte, and give
     * at most one target. */
    for (uint32_t i = 0; i < s->n_edges; i++) {
        if (edge[i].lo < next || edge[i].hi < edge[i].lo)
            return false;
        if (edge[i].to >= automaton->n_states && edge[i].to != AUTOMATON_DEAD)
            return false;
        next = edge[i].hi + 1;
    }
    return true;
}

/* Are a state's flags, edges and base valid? Its edges are in the table already. */
static bool automaton_state_is_fine(const struct automaton *automaton,
                                    const struct automaton_state *s)
{
    const struct automaton_state *base;

    /* Flags that are not known, and more edges than bytes, cannot come from the compiler. */
    if (s->flags > (AUTOMATON_END | AUTOMATON_NESTS | AUTOMATON_COUNTED | AUTOMATON_CHAR) ||
        s->n_edges > 256)
        return false;
    /* Without a base the own edges are all there is. */
    if (s->base == AUTOMATON_NONE)
        return automaton_edges_are_fine(automaton, s);
    if (s->base >= automaton->n_states)
        return false;
    /* A base has no base of its own, so a step looks at two states at most. A base with calls
     * would add continuations that the state does not list. */
    base = automaton_states(automaton) + s->base;
    return base->base == AUTOMATON_NONE && base->n_calls == 0 &&
           automaton_edges_are_fine(automaton, s);
}

int automaton_check(const void *image, size_t len)
{
    const struct automaton *automaton = image;
    uint64_t bytes = sizeof *automaton;
    uint32_t edges = 0;
    uint32_t calls = 0;

    must(image != NULL || len == 0);
    if (len > GRAMMAR_BYTES_MAX)
        return ERR_LIMIT;
    if (len < sizeof *automaton || (uintptr_t)image % 8 != 0)
        return ERR_INVALID;
    bytes += (uint64_t)automaton->n_states * sizeof(struct automaton_state);
    bytes += (uint64_t)automaton->n_edges * sizeof(struct automaton_edge);
    bytes += (uint64_t)automaton->n_calls * sizeof(struct automaton_call);
    if (automaton->magic != AUTOMATON_MAGIC || automaton->bytes != len || bytes != len)
        return ERR_INVALID;
    if (automaton->n_states > GRAMMAR_STATES_MAX || automaton->root >= automaton->n_states)
        return ERR_INVALID;
    /* A call's start is always a state; its return may be NONE, which is a jump. */
    for (uint32_t i = 0; i < automaton->n_calls; i++) {
        const struct automaton_call *call = automaton_calls(automaton) + i;

        if (call->start >= automaton->n_states)
            return ERR_INVALID;
        if (call->back >= automaton->n_states && call->back != AUTOMATON_NONE)
            return ERR_INVALID;
    }
    for (uint32_t i = 0; i < automaton->n_states;
         i++) { /* each edge and call belongs to one state */
        const struct automaton_state *s = automaton_states(automaton) + i;

        if (s->edge_at != edges || s->n_edges > automaton->n_edges - edges)
            return ERR_INVALID;
        if (s->call_at != calls || s->n_calls > automaton->n_calls - calls)
            return ERR_INVALID;
        edges += s->n_edges;
        calls += s->n_calls;
        if (!automaton_state_is_fine(automaton, s))
            return ERR_INVALID;
    }
    /* No edge or call may be left over, because it would belong to no state. */
    if (edges == automaton->n_edges && calls == automaton->n_calls)
        return ERR_OK;
    return ERR_INVALID;
}
