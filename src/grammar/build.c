/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/build.h"

#include <string.h>

void build_init(struct build *b, struct compile *c)
{
    memset(b, 0, sizeof *b);
    b->c = c;
    build_state(b);
}

uint32_t build_state(struct build *b)
{
    if (b->states.n >= 2 * GRAMMAR_STATES_MAX) /* trimming may yet halve it */
        compile_fail(b->c, ERR_LIMIT, "needs more than %d states: simplify it", GRAMMAR_STATES_MAX);
    if (!compile_tick(b->c) || !LIST_ADD(b->c, &b->states))
        return 0;
    b->states.items[b->states.n - 1] =
        (struct build_state){.edges = NONE, .calls = NONE, .base = NONE};
    return b->states.n - 1;
}

uint32_t build_nest(struct build *b)
{
    uint32_t s = build_state(b);

    if (compile_ok(b->c))
        b->states.items[s].nests = true;
    return s;
}

uint32_t build_end(struct build *b)
{
    uint32_t s = build_state(b);

    if (compile_ok(b->c))
        b->states.items[s].end = true;
    return s;
}

void build_edge(struct build *b, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to)
{
    if (!LIST_ADD(b->c, &b->edges))
        return;
    b->edges.items[b->edges.n - 1] =
        (struct build_edge){.to = to, .next = b->states.items[from].edges, .lo = lo, .hi = hi};
    b->states.items[from].edges = b->edges.n - 1;
}

void build_call(struct build *b, uint32_t from, uint32_t start, uint32_t back)
{
    uint32_t i;

    if (!compile_ok(b->c))
        return;
    for (i = b->states.items[from].calls; i != NONE; i = b->calls.items[i].next)
        if (b->calls.items[i].start == start && b->calls.items[i].back == back)
            return;
    if (!LIST_ADD(b->c, &b->calls))
        return;
    b->calls.items[b->calls.n - 1] =
        (struct build_call){.start = start, .back = back, .next = b->states.items[from].calls};
    b->states.items[from].calls = b->calls.n - 1;
}

void build_jump(struct build *b, uint32_t from, uint32_t to)
{
    build_call(b, from, to, NONE);
}

static uint32_t own_edge(const struct build *b, uint32_t state, uint8_t byte)
{
    uint32_t i;

    for (i = b->states.items[state].edges; i != NONE; i = b->edges.items[i].next)
        if (byte >= b->edges.items[i].lo && byte <= b->edges.items[i].hi)
            return i;
    return NONE;
}

uint32_t build_step(const struct build *b, uint32_t from, uint8_t byte)
{
    uint32_t i = own_edge(b, from, byte);

    if (i == NONE && b->states.items[from].base != NONE)
        i = own_edge(b, b->states.items[from].base, byte);
    return i == NONE ? NONE : b->edges.items[i].to;
}

void build_set(struct build *b, uint32_t from, uint8_t byte, uint32_t to)
{
    uint32_t i = own_edge(b, from, byte);
    struct build_edge old;

    if (i != NONE) { /* cut the byte out of its range */
        old = b->edges.items[i];
        b->edges.items[i].lo = byte;
        b->edges.items[i].hi = byte;
        b->edges.items[i].to = to;
        if (old.lo < byte)
            build_edge(b, from, old.lo, (uint8_t)(byte - 1), old.to);
        if (old.hi > byte)
            build_edge(b, from, (uint8_t)(byte + 1), old.hi, old.to);
        return;
    }
    build_edge(b, from, byte, byte, to);
}

uint32_t build_copy(struct build *b, uint32_t from)
{
    uint32_t s = build_state(b);
    uint32_t i;

    if (!compile_ok(b->c))
        return 0;
    b->states.items[s].end = b->states.items[from].end;
    b->states.items[s].plain = 0;
    if (b->states.items[from].base == NONE) {
        b->states.items[s].base = from;
        return s;
    }
    b->states.items[s].base = b->states.items[from].base;
    for (i = b->states.items[from].edges; i != NONE; i = b->edges.items[i].next)
        build_edge(b, s, b->edges.items[i].lo, b->edges.items[i].hi, b->edges.items[i].to);
    return s;
}

uint32_t build_text(struct build *b, uint32_t from, const char *bytes, size_t len)
{
    uint32_t next;
    size_t i;

    for (i = 0; i < len && compile_ok(b->c); i++) {
        next = build_state(b);
        build_edge(b, from, (uint8_t)bytes[i], (uint8_t)bytes[i], next);
        from = next;
    }
    return from;
}

static bool leads(uint32_t to)
{
    return to != NONE && to != DEAD;
}

uint32_t build_insert(struct build *b, uint32_t root, const char *bytes, size_t len, uint8_t last,
                      uint32_t leaf)
{
    uint32_t copy = root == NONE ? build_state(b) : build_copy(b, root);
    uint32_t at = copy;
    size_t i;

    for (i = 0; i < len && compile_ok(b->c); i++) {
        uint32_t old = build_step(b, at, (uint8_t)bytes[i]);
        uint32_t next = leads(old) ? build_copy(b, old) : build_state(b);

        build_set(b, at, (uint8_t)bytes[i], next);
        at = next;
    }
    if (compile_ok(b->c))
        build_set(b, at, last, leaf);
    return copy;
}

/* One byte further, with a new state where there was none. */
static uint32_t advance(struct build *b, uint32_t from, uint8_t byte)
{
    uint32_t next = build_step(b, from, byte);

    if (!leads(next)) {
        next = build_state(b);
        build_set(b, from, byte, next);
    }
    return next;
}

void build_insert_here(struct build *b, uint32_t root, const char *bytes, size_t len, uint8_t last,
                       uint32_t leaf)
{
    size_t i;

    for (i = 0; i < len && compile_ok(b->c); i++)
        root = advance(b, root, (uint8_t)bytes[i]);
    if (compile_ok(b->c))
        build_set(b, root, last, leaf);
}

void build_word(struct build *b, uint32_t root, const char *bytes, size_t len)
{
    size_t i;

    for (i = 0; i < len && compile_ok(b->c); i++)
        root = advance(b, root, (uint8_t)bytes[i]);
    if (compile_ok(b->c))
        b->states.items[root].end = true;
}

/* --- left recursion ----------------------------------------------------------------------- */

/* States from which an end is reached without a byte. */
static void find_nullable(struct build *b, bool *nullable)
{
    bool changed = true;
    uint32_t s, i;

    while (changed && compile_ok(b->c)) { /* at most a round a state, as a rule two */
        changed = false;
        for (s = 0; s < b->states.n && compile_tick(b->c); s++) {
            bool now = b->states.items[s].end;

            for (i = b->states.items[s].calls; i != NONE && !now; i = b->calls.items[i].next)
                now = nullable[b->calls.items[i].start] &&
                      (b->calls.items[i].back == NONE || nullable[b->calls.items[i].back]);
            changed = changed || now != nullable[s];
            nullable[s] = now;
        }
    }
}

/* Is `to` reached from `from` without a byte? seen[state] == mark: was looked at. */
static bool reaches(struct build *b, const bool *nullable, uint32_t from, uint32_t to,
                    uint32_t *seen, uint32_t mark, uint32_t *work)
{
    uint32_t n = 0;
    uint32_t i, s;

    work[n++] = from;
    seen[from] = mark;
    while (n > 0 && compile_tick(b->c)) { /* each state comes in once */
        s = work[--n];
        if (s == to)
            return true;
        for (i = b->states.items[s].calls; i != NONE; i = b->calls.items[i].next) {
            const struct build_call *call = &b->calls.items[i];

            if (seen[call->start] != mark) {
                seen[call->start] = mark;
                work[n++] = call->start;
            }
            if (call->back != NONE && nullable[call->start] && seen[call->back] != mark) {
                seen[call->back] = mark;
                work[n++] = call->back;
            }
        }
    }
    return false;
}

uint32_t build_left_recursion(struct build *b)
{
    bool *nullable = compile_alloc(b->c, b->states.n);
    uint32_t *seen = compile_alloc(b->c, (size_t)b->states.n * sizeof *seen);
    uint32_t *work = compile_alloc(b->c, (size_t)b->states.n * sizeof *work);
    uint32_t s, i;

    if (!compile_ok(b->c))
        return NONE;
    find_nullable(b, nullable);
    for (s = 0; s < b->states.n && compile_tick(b->c); s++)
        for (i = b->states.items[s].calls; i != NONE; i = b->calls.items[i].next)
            if (b->calls.items[i].back != NONE &&
                reaches(b, nullable, b->calls.items[i].start, s, seen, i + 1, work))
                return s;
    return NONE;
}
