/* SPDX-License-Identifier: Apache-2.0
 *
 * Construction, products and minimisation of deterministic automata. */
#include "grammar/dfa.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/must.h"

/* Minimisation takes as many passes as the longest chain of states. Long chains are minimal as they
 * are, so after this many visits of states the reachable ones are taken as the result. */
#define MINIMISE_LOOKS 100000

/* --- keys --------------------------------------------------------------------------------- */

/* Enlarge the hash table, which heads chains of keys. */
static void dfa_keys_widen(struct keys *keys)
{
    uint32_t want = keys->n_heads == 0 ? 256 : keys->n_heads * 4;
    uint32_t *heads = compile_alloc(keys->c, (size_t)want * sizeof *heads);
    uint32_t i;

    /* No room for a wider table: the narrow one remains, and the error is recorded. */
    if (heads == NULL)
        return;
    /* 0xff bytes make each head NONE. All keys are entered again, because their chain depends on
     * the size. */
    memset(heads, 0xff, (size_t)want * sizeof *heads);
    for (i = 0; i < keys->n; i++) {
        keys->items[i].next = heads[keys->items[i].hash & (want - 1)];
        heads[keys->items[i].hash & (want - 1)] = i;
    }
    keys->heads = heads;
    keys->n_heads = want;
}

/* Number a key: the number under which the same words were found before, or the next one. The
 * subset construction, products and minimisation all number sets of states this way. */
uint32_t dfa_keys_find(struct keys *keys, const uint32_t *words, uint32_t n, bool *is_new)
{
    static const uint32_t nothing;
    uint32_t hash = (uint32_t)hash_xxh3(n == 0 ? &nothing : words, (size_t)n * sizeof *words);
    uint32_t i;

    must(words != NULL || n == 0);
    must(is_new != NULL);
    *is_new = false;
    if (keys->n >= keys->n_heads)
        dfa_keys_widen(keys);
    if (!compile_ok(keys->c))
        return 0;
    for (i = keys->heads[hash & (keys->n_heads - 1)]; i != NONE; i = keys->items[i].next)
        if (keys->items[i].hash == hash && keys->items[i].n == n &&
            (n == 0 ||
             memcmp(keys->words.items + keys->items[i].at, words, (size_t)n * sizeof *words) == 0))
            return i;
    if (!compile_grow(keys->c, (void **)&keys->items, keys->n, &keys->cap, sizeof *keys->items))
        return 0;
    /* A new key becomes the head of its chain. */
    i = keys->n++;
    keys->items[i] = (struct key){.at = keys->words.n, .n = n, .hash = hash};
    keys->items[i].next = keys->heads[hash & (keys->n_heads - 1)];
    keys->heads[hash & (keys->n_heads - 1)] = i;
    for (uint32_t j = 0; j < n && LIST_ADD(keys->c, &keys->words); j++)
        keys->words.items[keys->words.n - 1] = words[j];
    *is_new = true;
    return i;
}

/* Forget all keys but keep the memory. */
static void dfa_keys_clear(struct keys *keys)
{
    keys->n = 0;
    keys->words.n = 0;
    if (keys->n_heads > 0)
        memset(keys->heads, 0xff, (size_t)keys->n_heads * sizeof *keys->heads);
}

/* --- making ------------------------------------------------------------------------------- */

uint32_t dfa_maker_state(struct dfa_maker *maker, uint32_t label)
{
    if (maker->states.n >= DFA_STATES_MAX)
        compile_fail(maker->c, ERR_LIMIT,
                     "a pattern or range needs more than %d states: simplify it", DFA_STATES_MAX);
    if (!compile_tick(maker->c) || !LIST_ADD(maker->c, &maker->states))
        return NONE;
    maker->states.items[maker->states.n - 1] = (struct dfa_state){.label = label};
    return maker->states.n - 1;
}

void dfa_maker_begin(struct dfa_maker *maker, uint32_t state)
{
    if (!compile_ok(maker->c))
        return;
    must(state < maker->states.n);
    maker->states.items[state].edge_at = maker->edges.n;
}

void dfa_maker_edge(struct dfa_maker *maker, uint8_t lo, uint8_t hi, uint32_t to)
{
    must(lo <= hi);
    if (LIST_ADD(maker->c, &maker->edges))
        maker->edges.items[maker->edges.n - 1] = (struct dfa_edge){.to = to, .lo = lo, .hi = hi};
}

/* States were begun in order, so a state's edges end where those of the next one begin. */
const struct dfa *dfa_maker_end(struct dfa_maker *maker)
{
    struct dfa *dfa = compile_alloc(maker->c, sizeof *dfa);
    uint32_t i;

    if (dfa == NULL)
        return NULL;
    dfa->states = maker->states.items;
    dfa->edges = maker->edges.items;
    dfa->n_states = maker->states.n;
    dfa->n_edges = maker->edges.n;
    /* The edges of a state are stored one after the other, so their number follows from the next
     * state's beginning. */
    for (i = 0; i < dfa->n_states; i++)
        dfa->states[i].n_edges =
            (i + 1 < dfa->n_states ? dfa->states[i + 1].edge_at : dfa->n_edges) -
            dfa->states[i].edge_at;
    return dfa;
}

/* Edges are few, so a linear search is enough. */
uint32_t dfa_step(const struct dfa *dfa, uint32_t state, uint8_t byte)
{
    const struct dfa_edge *edge;
    uint32_t i;

    if (dfa->states[state].n_edges == 0)
        return NONE;
    edge = dfa->edges + dfa->states[state].edge_at;
    for (i = 0; i < dfa->states[state].n_edges && byte >= edge[i].lo; i++)
        if (byte <= edge[i].hi)
            return edge[i].to;
    return NONE;
}

/* The label of the state after all bytes; 0 when the text is not in the language. */
uint32_t dfa_match(const struct dfa *dfa, const char *bytes, size_t len)
{
    uint32_t state = 0;
    size_t i;

    must(bytes != NULL || len == 0);
    for (i = 0; i < len && state != NONE; i++)
        state = dfa_step(dfa, state, (uint8_t)bytes[i]);
    if (state == NONE)
        return 0;
    return dfa->states[state].label;
}

/* States 1 to 7 are inside of a character; the ranges exclude overlong forms and surrogates. */
const struct dfa *dfa_utf8(struct compile *compile)
{
    static const struct {
        uint8_t from, lo, hi, to;
    } edges[] = {
        {0, 0x00, 0x7f, 0}, {0, 0xc2, 0xdf, 1}, {0, 0xe0, 0xe0, 2}, {0, 0xe1, 0xec, 3},
        {0, 0xed, 0xed, 4}, {0, 0xee, 0xef, 3}, {0, 0xf0, 0xf0, 5}, {0, 0xf1, 0xf3, 6},
        {0, 0xf4, 0xf4, 7}, {1, 0x80, 0xbf, 0}, {2, 0xa0, 0xbf, 1}, {3, 0x80, 0xbf, 1},
        {4, 0x80, 0x9f, 1}, {5, 0x90, 0xbf, 3}, {6, 0x80, 0xbf, 3}, {7, 0x80, 0x8f, 3},
    };
    struct dfa_maker maker = {.c = compile};
    uint32_t state, i;

    /* State 0 is between characters and the only one with a label. */
    for (state = 0; state < 8; state++)
        dfa_maker_state(&maker, state == 0);
    for (state = 0; state < 8; state++) {
        dfa_maker_begin(&maker, state);
        for (i = 0; i < sizeof edges / sizeof edges[0]; i++)
            if (edges[i].from == state)
                dfa_maker_edge(&maker, edges[i].lo, edges[i].hi, edges[i].to);
    }
    return dfa_maker_end(&maker);
}

/* --- products ----------------------------------------------------------------------------- */

/* A state of the product is a tuple: a state per part (NONE: the part has failed), the state of the
 * UTF-8 automaton, and the number of characters, which is only counted as far as it matters. */
struct side {
    struct compile *c;
    const struct dfa *parts[DFA_PARTS_MAX + 1]; /* the last is UTF-8 */
    uint32_t n;                                 /* without UTF-8 */
    uint32_t min_len, max_len;
    uint32_t count_max; /* counting further makes no difference; 0: lengths do not matter */
    bool (*keep)(const void *arg, uint32_t mask);
    const void *arg;
    struct keys keys; /* tuples: states of the parts, of UTF-8, and the count */
    struct dfa_maker maker;
};

/* The label of a tuple. */
static uint32_t dfa_side_label(const struct side *side, const uint32_t *word)
{
    uint32_t mask = 0;
    uint32_t i;

    if (word[side->n] != 0) /* inside of a character */
        return 0;
    if (side->count_max > 0 &&
        (word[side->n + 1] < side->min_len || word[side->n + 1] > side->max_len))
        return 0;
    for (i = 0; i < side->n; i++)
        if (word[i] != NONE && side->parts[i]->states[word[i]].label != 0)
            mask |= 1u << i;
    if (side->keep != NULL)
        return side->keep(side->arg, mask);
    return 1 + mask;
}

/* The number of a tuple of states; NONE when the text is already too long. */
static uint32_t dfa_side_state(struct side *side, uint32_t *word)
{
    uint32_t *count = &word[side->n + 1];
    uint32_t number;
    bool is_new;

    /* Above the cap the exact count makes no difference, and equal tuples are found again. */
    if (side->count_max > 0 && *count > side->count_max)
        *count = side->count_max;
    /* A text above max_len has no state, so nothing that begins with it is accepted. */
    if (side->count_max > 0 && *count > side->max_len)
        return NONE;
    number = dfa_keys_find(&side->keys, word, side->n + 2, &is_new);
    /* States are numbered in the order of the keys, so the number of a key is that of its state. */
    if (is_new)
        dfa_maker_state(&side->maker, dfa_side_label(side, word));
    return number;
}

/* Mark the bytes at which an edge of some part begins or has ended: between two marks all bytes
 * lead to the same tuple. */
static void dfa_side_cuts(const struct side *side, const uint32_t *word, bool *cuts)
{
    uint32_t i, j;

    /* cuts[b] is set if byte b begins a range. There are 257, because a range may end at byte
     * 255. */
    memset(cuts, 0, 257);
    cuts[0] = true;
    for (i = 0; i <= side->n; i++) {
        const struct dfa_state *state;

        /* A part that is in no state rejects all bytes alike and has no borders. */
        if (word[i] == NONE)
            continue;
        state = &side->parts[i]->states[word[i]];
        /* An edge for lo .. hi begins a range at lo, and another one after hi. */
        for (j = 0; j < state->n_edges; j++) {
            cuts[side->parts[i]->edges[state->edge_at + j].lo] = true;
            cuts[side->parts[i]->edges[state->edge_at + j].hi + 1] = true;
        }
    }
}

/* The edges of a tuple, one per range of equivalent bytes. */
static void dfa_side_edges(struct side *side, uint32_t number)
{
    uint32_t from[DFA_PARTS_MAX + 2];
    uint32_t to[DFA_PARTS_MAX + 2];
    bool cuts[257];
    int lo, hi;
    uint32_t i;

    memcpy(from, side->keys.words.items + side->keys.items[number].at,
           (side->n + 2) * sizeof *from);
    dfa_side_cuts(side, from, cuts);
    for (lo = 0; lo < 256 && compile_tick(side->c); lo = hi + 1) {
        /* Between two cuts no part distinguishes the bytes, so one of them represents all. */
        for (hi = lo; hi < 255 && !cuts[hi + 1];)
            hi++;
        to[side->n] = dfa_step(side->parts[side->n], from[side->n], (uint8_t)lo);
        if (to[side->n] == NONE)
            continue;
        /* A part that has failed stays failed. The tuple lives on, because keep() may accept
         * texts that the part does not match. */
        for (i = 0; i < side->n; i++) {
            if (from[i] == NONE)
                to[i] = NONE;
            else
                to[i] = dfa_step(side->parts[i], from[i], (uint8_t)lo);
        }
        /* A character is counted at its first byte, which is one read in the state between
         * characters (0). */
        to[side->n + 1] = from[side->n + 1] + (side->count_max > 0 && from[side->n] == 0);
        i = dfa_side_state(side, to);
        if (i != NONE)
            dfa_maker_edge(&side->maker, (uint8_t)lo, (uint8_t)hi, i);
    }
}

const struct dfa *dfa_side_by_side(struct compile *compile, const struct dfa_product *product)
{
    struct side side = {.c = compile,
                        .n = product->n,
                        .min_len = product->min_len,
                        .max_len = product->max_len,
                        .keep = product->keep,
                        .arg = product->arg,
                        .keys = {.c = compile},
                        .maker = {.c = compile}};
    uint32_t word[DFA_PARTS_MAX + 2] = {0};
    uint32_t at;

    must(product->parts != NULL || product->n == 0);
    if (product->n > DFA_PARTS_MAX) {
        compile_fail(compile, ERR_LIMIT, "more than %d patterns meet in one place", DFA_PARTS_MAX);
        return NULL;
    }
    for (at = 0; at < product->n; at++)
        side.parts[at] = product->parts[at];
    /* UTF-8 is one more factor of the product. The parts may then accept any bytes: the product
     * cannot leave valid UTF-8. */
    side.parts[product->n] = dfa_utf8(compile);
    /* With a maximum the count goes one beyond it, where the state is rejected. With a minimum
     * alone it stops at the minimum, because larger counts are all alike. */
    if (product->max_len != NONE)
        side.count_max = product->max_len + 1;
    else
        side.count_max = product->min_len;
    if (!compile_ok(compile))
        return NULL;
    dfa_side_state(&side, word);
    /* dfa_side_edges() appends the states that it discovers, so the loop ends when none is
     * undiscovered. */
    for (at = 0; at < side.maker.states.n && compile_ok(compile); at++) {
        dfa_maker_begin(&side.maker, at);
        dfa_side_edges(&side, at);
    }
    if (compile_ok(compile))
        return dfa_minimise(compile, dfa_maker_end(&side.maker));
    return NULL;
}

/* --- minimisation ------------------------------------------------------------------------- */

/* The states that can reach an end, by a search over reversed edges. */
static bool *dfa_find_alive(struct compile *compile, const struct dfa *dfa)
{
    bool *alive = compile_alloc(compile, dfa->n_states + 1);
    uint32_t *head = compile_alloc(compile, (size_t)dfa->n_states * sizeof *head + 1);
    uint32_t *next = compile_alloc(compile, (size_t)dfa->n_edges * sizeof *next + 1);
    uint32_t *from = compile_alloc(compile, (size_t)dfa->n_edges * sizeof *from + 1);
    uint32_t *work = compile_alloc(compile, (size_t)dfa->n_states * sizeof *work + 1);
    uint32_t n = 0;
    uint32_t state, i;

    if (!compile_ok(compile))
        return NULL;
    memset(head, 0xff, (size_t)dfa->n_states * sizeof *head);
    for (state = 0; state < dfa->n_states; state++) {
        for (i = dfa->states[state].edge_at;
             i < dfa->states[state].edge_at + dfa->states[state].n_edges; i++) {
            from[i] = state;
            next[i] = head[dfa->edges[i].to];
            head[dfa->edges[i].to] = i;
        }
        if (dfa->states[state].label != 0) {
            alive[state] = true;
            work[n++] = state;
        }
    }
    while (n > 0) /* each state is pushed once */
        for (i = head[work[--n]], state = n; i != NONE; i = next[i])
            if (!alive[from[i]]) {
                alive[from[i]] = true;
                work[n++] = from[i];
            }
    return alive;
}

/* One pass of partition refinement (Moore): states stay in one class if they were in one and their
 * edges lead to equal classes. Returns the number of classes. */
static uint32_t dfa_refine_classes(struct keys *keys, const struct dfa *dfa, const bool *alive,
                                   uint32_t *class, uint32_t *fresh)
{
    struct compile *compile = keys->c;
    uint32_t words[3 * 256 + 2];
    uint32_t state, i;
    bool is_new;

    dfa_keys_clear(keys);
    for (state = 0; state < dfa->n_states && compile_tick(compile); state++) {
        uint32_t n = 0;

        if (!alive[state])
            continue;
        /* The key is the state's class and its edges, each as a range and the target's class.
         * Adjacent ranges with one class are joined, so the key does not depend on how the edges
         * were cut. */
        words[n++] = class[state];
        for (i = dfa->states[state].edge_at;
             i < dfa->states[state].edge_at + dfa->states[state].n_edges; i++) {
            const struct dfa_edge *edge = &dfa->edges[i];

            /* An edge to a state from which no end is reached is the same as no edge. */
            if (!alive[edge->to])
                continue;
            if (n > 1 && words[n - 1] == class[edge->to] && words[n - 2] + 1 == edge->lo) {
                words[n - 2] = edge->hi;
                continue;
            }
            words[n++] = edge->lo;
            words[n++] = edge->hi;
            words[n++] = class[edge->to];
        }
        fresh[state] = dfa_keys_find(keys, words, n, &is_new);
    }
    memcpy(class, fresh, (size_t)dfa->n_states * sizeof *class);
    return keys->n;
}

/* The automaton of the classes; the first state found of a class represents it. */
static const struct dfa *dfa_build_quotient(struct compile *compile, const struct dfa *dfa,
                                            const bool *alive, const uint32_t *class,
                                            uint32_t n_classes)
{
    struct dfa_maker maker = {.c = compile};
    uint32_t *number = compile_alloc(compile, (size_t)n_classes * sizeof *number);
    uint32_t *order = compile_alloc(compile, (size_t)n_classes * sizeof *order);
    uint32_t at, i;

    if (!compile_ok(compile))
        return NULL;
    memset(number, 0xff, (size_t)n_classes * sizeof *number);
    number[class[0]] = dfa_maker_state(&maker, dfa->states[0].label);
    /* Breadth-first from the start, so that unreachable classes get no state. */
    for (at = 0; at < maker.states.n && compile_ok(compile); at++) {
        uint32_t state = at == 0 ? 0 : order[at];
        uint32_t first = maker.edges.n;

        dfa_maker_begin(&maker, at);
        for (i = dfa->states[state].edge_at;
             i < dfa->states[state].edge_at + dfa->states[state].n_edges; i++) {
            const struct dfa_edge *edge = &dfa->edges[i];
            struct dfa_edge *last =
                maker.edges.n > first ? &maker.edges.items[maker.edges.n - 1] : NULL;

            if (!alive[edge->to])
                continue;
            if (number[class[edge->to]] == NONE) {
                number[class[edge->to]] = dfa_maker_state(&maker, dfa->states[edge->to].label);
                if (!compile_ok(compile))
                    return NULL;
                order[number[class[edge->to]]] = edge->to;
            }
            if (last != NULL && last->to == number[class[edge->to]] && last->hi + 1 == edge->lo)
                last->hi = edge->hi;
            else
                dfa_maker_edge(&maker, edge->lo, edge->hi, number[class[edge->to]]);
        }
    }
    return dfa_maker_end(&maker);
}

const struct dfa *dfa_minimise(struct compile *compile, const struct dfa *dfa)
{
    struct dfa_maker none = {.c = compile};
    struct keys keys = {.c = compile};
    const bool *alive;
    uint32_t *class;
    uint32_t *fresh;
    uint32_t n, before, state;
    size_t looks = 0;

    if (dfa == NULL)
        return NULL;
    alive = dfa_find_alive(compile, dfa);
    class = compile_alloc(compile, (size_t)dfa->n_states * sizeof *class);
    fresh = compile_alloc(compile, (size_t)dfa->n_states * sizeof *fresh);
    if (!compile_ok(compile))
        return NULL;
    /* The empty language: one state without edges. */
    if (!alive[0]) {
        dfa_maker_state(&none, 0);
        return dfa_maker_end(&none);
    }
    /* Moore's algorithm: begin with classes by label, and split classes until a pass changes
     * nothing. The number of classes only grows, so an equal number means equal classes. */
    for (state = 0; state < dfa->n_states; state++)
        class[state] = dfa->states[state].label;
    for (n = 0, before = NONE; n != before && compile_ok(compile); looks += dfa->n_states) {
        before = n;
        if (looks > MINIMISE_LOOKS) {
            for (n = 0; n < dfa->n_states; n++)
                class[n] = n;
            break;
        }
        n = dfa_refine_classes(&keys, dfa, alive, class, fresh);
    }
    if (compile_ok(compile))
        return dfa_build_quotient(compile, dfa, alive, class, n);
    return NULL;
}
