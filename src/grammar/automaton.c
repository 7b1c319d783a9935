/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/automaton.h"

#include <stdbool.h>

#include "grammar/grammar.h"

_Static_assert(sizeof(struct automaton) == 32, "the image has no holes");
_Static_assert(sizeof(struct automaton_state) == 20, "the image has no holes");
_Static_assert(sizeof(struct automaton_edge) == 8, "the image has no holes");
_Static_assert(sizeof(struct automaton_call) == 8, "the image has no holes");

static bool edges_fine(const struct automaton *a, const struct automaton_state *s)
{
    const struct automaton_edge *e = automaton_edges(a) + s->edge_at;
    int next = 0;

    for (uint32_t i = 0; i < s->n_edges; i++) {
        if (e[i].lo < next || e[i].hi < e[i].lo)
            return false;
        if (e[i].to >= a->n_states && e[i].to != AUTOMATON_DEAD)
            return false;
        next = e[i].hi + 1;
    }
    return true;
}

static bool state_fine(const struct automaton *a, const struct automaton_state *s)
{
    const struct automaton_state *base;

    if (s->flags > (AUTOMATON_END | AUTOMATON_NESTS | AUTOMATON_COUNTED | AUTOMATON_CHAR) ||
        s->n_edges > 256)
        return false;
    if (s->base == AUTOMATON_NONE)
        return edges_fine(a, s);
    if (s->base >= a->n_states)
        return false;
    base = automaton_states(a) + s->base;
    return base->base == AUTOMATON_NONE && base->n_calls == 0 && edges_fine(a, s);
}

int automaton_check(const void *image, size_t len)
{
    const struct automaton *a = image;
    uint64_t bytes = sizeof *a;
    uint32_t edges = 0;
    uint32_t calls = 0;

    if (len > GRAMMAR_BYTES_MAX)
        return ERR_LIMIT;
    if (len < sizeof *a || (uintptr_t)image % 8 != 0)
        return ERR_INVALID;
    bytes += (uint64_t)a->n_states * sizeof(struct automaton_state);
    bytes += (uint64_t)a->n_edges * sizeof(struct automaton_edge);
    bytes += (uint64_t)a->n_calls * sizeof(struct automaton_call);
    if (a->magic != AUTOMATON_MAGIC || a->bytes != len || bytes != len)
        return ERR_INVALID;
    if (a->n_states > GRAMMAR_STATES_MAX || a->root >= a->n_states)
        return ERR_INVALID;
    for (uint32_t i = 0; i < a->n_calls; i++) {
        const struct automaton_call *call = automaton_calls(a) + i;

        if (call->start >= a->n_states)
            return ERR_INVALID;
        if (call->back >= a->n_states && call->back != AUTOMATON_NONE)
            return ERR_INVALID;
    }
    for (uint32_t i = 0; i < a->n_states; i++) { /* each edge and call belongs to one state */
        const struct automaton_state *s = automaton_states(a) + i;

        if (s->edge_at != edges || s->n_edges > a->n_edges - edges)
            return ERR_INVALID;
        if (s->call_at != calls || s->n_calls > a->n_calls - calls)
            return ERR_INVALID;
        edges += s->n_edges;
        calls += s->n_calls;
        if (!state_fine(a, s))
            return ERR_INVALID;
    }
    return edges == a->n_edges && calls == a->n_calls ? ERR_OK : ERR_INVALID;
}

struct hash automaton_digest(const struct automaton *a)
{
    return hash_sha256(a, (size_t)a->bytes, NULL, 0);
}
