/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/dfa.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* A long line of states takes as many rounds as it has states, and is least as it is: after this
 * many looks at a state, those that are alive are taken as they are. */
#define MINIMISE_LOOKS 100000

/* --- keys --------------------------------------------------------------------------------- */

static void dfa_keys_widen(struct keys *keys)
{
    uint32_t want = keys->n_heads == 0 ? 256 : keys->n_heads * 4;
    uint32_t *heads = compile_alloc(keys->c, (size_t)want * sizeof *heads);
    uint32_t i;

    if (heads == NULL)
        return;
    memset(heads, 0xff, (size_t)want * sizeof *heads);
    for (i = 0; i < keys->n; i++) {
        keys->items[i].next = heads[keys->items[i].hash & (want - 1)];
        heads[keys->items[i].hash & (want - 1)] = i;
    }
    keys->heads = heads;
    keys->n_heads = want;
}

uint32_t dfa_keys_find(struct keys *keys, const uint32_t *words, uint32_t n, bool *is_new)
{
    static const uint32_t nothing;
    uint32_t hash = (uint32_t)hash_xxh3(n == 0 ? &nothing : words, (size_t)n * sizeof *words);
    uint32_t i;

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
    i = keys->n++;
    keys->items[i] = (struct key){.at = keys->words.n, .n = n, .hash = hash};
    keys->items[i].next = keys->heads[hash & (keys->n_heads - 1)];
    keys->heads[hash & (keys->n_heads - 1)] = i;
    for (uint32_t j = 0; j < n && LIST_ADD(keys->c, &keys->words); j++)
        keys->words.items[keys->words.n - 1] = words[j];
    *is_new = true;
    return i;
}

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
    if (compile_ok(maker->c))
        maker->states.items[state].edge_at = maker->edges.n;
}

void dfa_maker_edge(struct dfa_maker *maker, uint8_t lo, uint8_t hi, uint32_t to)
{
    if (LIST_ADD(maker->c, &maker->edges))
        maker->edges.items[maker->edges.n - 1] = (struct dfa_edge){.to = to, .lo = lo, .hi = hi};
}

/* States were begun in their order, so a state's edges end where the next one's begin. */
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
    for (i = 0; i < dfa->n_states; i++)
        dfa->states[i].n_edges =
            (i + 1 < dfa->n_states ? dfa->states[i + 1].edge_at : dfa->n_edges) -
            dfa->states[i].edge_at;
    return dfa;
}

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

uint32_t dfa_match(const struct dfa *dfa, const char *bytes, size_t len)
{
    uint32_t s = 0;
    size_t i;

    for (i = 0; i < len && s != NONE; i++)
        s = dfa_step(dfa, s, (uint8_t)bytes[i]);
    return s == NONE ? 0 : dfa->states[s].label;
}

bool dfa_is_empty(const struct dfa *dfa)
{
    return dfa == NULL || (dfa->n_edges == 0 && dfa->states[0].label == 0);
}

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
    uint32_t s, i;

    for (s = 0; s < 8; s++)
        dfa_maker_state(&maker, s == 0);
    for (s = 0; s < 8; s++) {
        dfa_maker_begin(&maker, s);
        for (i = 0; i < sizeof edges / sizeof edges[0]; i++)
            if (edges[i].from == s)
                dfa_maker_edge(&maker, edges[i].lo, edges[i].hi, edges[i].to);
    }
    return dfa_maker_end(&maker);
}

/* --- side by side ------------------------------------------------------------------------- */

struct side {
    struct compile *c;
    const struct dfa *parts[DFA_PARTS_MAX + 1]; /* the last is UTF-8 */
    uint32_t n;                                 /* UTF-8 not counted */
    uint32_t min_len, max_len;
    uint32_t count_max; /* counting further makes no difference; 0: lengths do not matter */
    bool (*keep)(const void *arg, uint32_t mask);
    const void *arg;
    struct keys keys; /* states of the parts, of UTF-8, and the count */
    struct dfa_maker maker;
};

static uint32_t dfa_side_label(const struct side *s, const uint32_t *word)
{
    uint32_t mask = 0;
    uint32_t i;

    if (word[s->n] != 0) /* inside of a character */
        return 0;
    if (s->count_max > 0 && (word[s->n + 1] < s->min_len || word[s->n + 1] > s->max_len))
        return 0;
    for (i = 0; i < s->n; i++)
        if (word[i] != NONE && s->parts[i]->states[word[i]].label != 0)
            mask |= 1u << i;
    if (s->keep != NULL)
        return s->keep(s->arg, mask);
    return 1 + mask;
}

/* The number of a tuple of states; NONE when it is too long. */
static uint32_t dfa_side_state(struct side *s, uint32_t *word)
{
    uint32_t *count = &word[s->n + 1];
    uint32_t number;
    bool is_new;

    if (s->count_max > 0 && *count > s->count_max)
        *count = s->count_max;
    if (s->count_max > 0 && *count > s->max_len)
        return NONE;
    number = dfa_keys_find(&s->keys, word, s->n + 2, &is_new);
    if (is_new)
        dfa_maker_state(&s->maker, dfa_side_label(s, word));
    return number;
}

/* Bytes at which a part's edges begin or end: cuts[i] begins a range that all treat alike. */
static void dfa_side_cuts(const struct side *s, const uint32_t *word, bool *cuts)
{
    uint32_t i, j;

    memset(cuts, 0, 257);
    cuts[0] = true;
    for (i = 0; i <= s->n; i++) {
        const struct dfa_state *state;

        if (word[i] == NONE)
            continue;
        state = &s->parts[i]->states[word[i]];
        for (j = 0; j < state->n_edges; j++) {
            cuts[s->parts[i]->edges[state->edge_at + j].lo] = true;
            cuts[s->parts[i]->edges[state->edge_at + j].hi + 1] = true;
        }
    }
}

static void dfa_side_edges(struct side *s, uint32_t number)
{
    uint32_t from[DFA_PARTS_MAX + 2];
    uint32_t to[DFA_PARTS_MAX + 2];
    bool cuts[257];
    int lo, hi;
    uint32_t i;

    memcpy(from, s->keys.words.items + s->keys.items[number].at, (s->n + 2) * sizeof *from);
    dfa_side_cuts(s, from, cuts);
    for (lo = 0; lo < 256 && compile_tick(s->c); lo = hi + 1) {
        for (hi = lo; hi < 255 && !cuts[hi + 1];)
            hi++;
        to[s->n] = dfa_step(s->parts[s->n], from[s->n], (uint8_t)lo);
        if (to[s->n] == NONE)
            continue;
        for (i = 0; i < s->n; i++)
            to[i] = from[i] == NONE ? NONE : dfa_step(s->parts[i], from[i], (uint8_t)lo);
        to[s->n + 1] = from[s->n + 1] + (s->count_max > 0 && from[s->n] == 0);
        i = dfa_side_state(s, to);
        if (i != NONE)
            dfa_maker_edge(&s->maker, (uint8_t)lo, (uint8_t)hi, i);
    }
}

const struct dfa *dfa_side_by_side(struct compile *compile, const struct dfa *const *parts,
                                   uint32_t n, uint32_t min_len, uint32_t max_len,
                                   bool (*keep)(const void *arg, uint32_t mask), const void *arg)
{
    struct side s = {.c = compile,
                     .n = n,
                     .min_len = min_len,
                     .max_len = max_len,
                     .keep = keep,
                     .arg = arg,
                     .keys = {.c = compile},
                     .maker = {.c = compile}};
    uint32_t word[DFA_PARTS_MAX + 2] = {0};
    uint32_t at;

    if (n > DFA_PARTS_MAX) {
        compile_fail(compile, ERR_LIMIT, "more than %d patterns meet in one place", DFA_PARTS_MAX);
        return NULL;
    }
    for (at = 0; at < n; at++)
        s.parts[at] = parts[at];
    s.parts[n] = dfa_utf8(compile);
    s.count_max = max_len != NONE ? max_len + 1 : min_len;
    if (!compile_ok(compile))
        return NULL;
    dfa_side_state(&s, word);
    for (at = 0; at < s.maker.states.n && compile_ok(compile); at++) {
        dfa_maker_begin(&s.maker, at);
        dfa_side_edges(&s, at);
    }
    return compile_ok(compile) ? dfa_minimise(compile, dfa_maker_end(&s.maker)) : NULL;
}

/* --- least automaton ---------------------------------------------------------------------- */

/* States that reach an end: by passes over reversed edges. */
static bool *dfa_find_alive(struct compile *compile, const struct dfa *dfa)
{
    bool *alive = compile_alloc(compile, dfa->n_states + 1);
    uint32_t *head = compile_alloc(compile, (size_t)dfa->n_states * sizeof *head + 1);
    uint32_t *next = compile_alloc(compile, (size_t)dfa->n_edges * sizeof *next + 1);
    uint32_t *from = compile_alloc(compile, (size_t)dfa->n_edges * sizeof *from + 1);
    uint32_t *work = compile_alloc(compile, (size_t)dfa->n_states * sizeof *work + 1);
    uint32_t n = 0;
    uint32_t s, i;

    if (!compile_ok(compile))
        return NULL;
    memset(head, 0xff, (size_t)dfa->n_states * sizeof *head);
    for (s = 0; s < dfa->n_states; s++) {
        for (i = dfa->states[s].edge_at; i < dfa->states[s].edge_at + dfa->states[s].n_edges; i++) {
            from[i] = s;
            next[i] = head[dfa->edges[i].to];
            head[dfa->edges[i].to] = i;
        }
        if (dfa->states[s].label != 0) {
            alive[s] = true;
            work[n++] = s;
        }
    }
    while (n > 0) /* each state comes in once */
        for (i = head[work[--n]], s = n; i != NONE; i = next[i])
            if (!alive[from[i]]) {
                alive[from[i]] = true;
                work[n++] = from[i];
            }
    return alive;
}

/* One refinement: states with equal class and equally classed edges stay together. */
static uint32_t dfa_refine_classes(struct keys *keys, const struct dfa *dfa, const bool *alive,
                                   uint32_t *class, uint32_t *fresh)
{
    struct compile *compile = keys->c;
    uint32_t words[3 * 256 + 2];
    uint32_t s, i;
    bool is_new;

    dfa_keys_clear(keys);
    for (s = 0; s < dfa->n_states && compile_tick(compile); s++) {
        uint32_t n = 0;

        if (!alive[s])
            continue;
        words[n++] = class[s];
        for (i = dfa->states[s].edge_at; i < dfa->states[s].edge_at + dfa->states[s].n_edges; i++) {
            const struct dfa_edge *edge = &dfa->edges[i];

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
        fresh[s] = dfa_keys_find(keys, words, n, &is_new);
    }
    memcpy(class, fresh, (size_t)dfa->n_states * sizeof *class);
    return keys->n;
}

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
    for (at = 0; at < maker.states.n && compile_ok(compile); at++) {
        uint32_t s = at == 0 ? 0 : order[at];
        uint32_t first = maker.edges.n;

        dfa_maker_begin(&maker, at);
        for (i = dfa->states[s].edge_at; i < dfa->states[s].edge_at + dfa->states[s].n_edges; i++) {
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
    uint32_t n, before, s;
    size_t looks = 0;

    if (dfa == NULL)
        return NULL;
    alive = dfa_find_alive(compile, dfa);
    class = compile_alloc(compile, (size_t)dfa->n_states * sizeof *class);
    fresh = compile_alloc(compile, (size_t)dfa->n_states * sizeof *fresh);
    if (!compile_ok(compile))
        return NULL;
    if (!alive[0]) {
        dfa_maker_state(&none, 0);
        return dfa_maker_end(&none);
    }
    for (s = 0; s < dfa->n_states; s++)
        class[s] = dfa->states[s].label;
    for (n = 0, before = NONE; n != before && compile_ok(compile); looks += dfa->n_states) {
        before = n;
        if (looks > MINIMISE_LOOKS) {
            for (n = 0; n < dfa->n_states; n++)
                class[n] = n;
            break;
        }
        n = dfa_refine_classes(&keys, dfa, alive, class, fresh);
    }
    return compile_ok(compile) ? dfa_build_quotient(compile, dfa, alive, class, n) : NULL;
}
