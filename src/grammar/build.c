/* SPDX-License-Identifier: Apache-2.0
 *
 * States, edges and calls are arrays of the compilation; a state heads two linked lists of indices.
 * Indices stay valid while arrays grow, which pointers would not. */
#include "grammar/build.h"

#include <string.h>

#include "base/must.h"

void build_init(struct build *build, struct compile *compile)
{
    must(compile != NULL);
    memset(build, 0, sizeof *build);
    build->c = compile;
    build_state(build);
}

/* The bound is twice that of an image, because build_write() drops useless states. */
uint32_t build_state(struct build *build)
{
    if (build->states.n >= 2 * GRAMMAR_STATES_MAX)
        compile_fail(build->c, ERR_LIMIT, "needs more than %d states: simplify it",
                     GRAMMAR_STATES_MAX);
    if (!compile_tick(build->c) || !LIST_ADD(build->c, &build->states))
        return 0;
    build->states.items[build->states.n - 1] =
        (struct build_state){.edges = NONE, .calls = NONE, .base = NONE};
    return build->states.n - 1;
}

uint32_t build_nest(struct build *build)
{
    uint32_t state = build_state(build);

    if (compile_ok(build->c))
        build->states.items[state].nests = true;
    return state;
}

uint32_t build_end(struct build *build)
{
    uint32_t state = build_state(build);

    if (compile_ok(build->c))
        build->states.items[state].end = true;
    return state;
}

void build_edge(struct build *build, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to)
{
    if (!LIST_ADD(build->c, &build->edges))
        return;
    must(from < build->states.n && lo <= hi);
    build->edges.items[build->edges.n - 1] =
        (struct build_edge){.to = to, .next = build->states.items[from].edges, .lo = lo, .hi = hi};
    build->states.items[from].edges = build->edges.n - 1;
}

/* A call that the state has already is not added again. */
void build_call(struct build *build, uint32_t from, uint32_t start, uint32_t back)
{
    uint32_t i;

    if (!compile_ok(build->c))
        return;
    must(from < build->states.n && start < build->states.n);
    must(back == NONE || back < build->states.n);
    /* Equal calls would double the configurations of each walk without a new continuation. */
    for (i = build->states.items[from].calls; i != NONE; i = build->calls.items[i].next)
        if (build->calls.items[i].start == start && build->calls.items[i].back == back)
            return;
    if (!LIST_ADD(build->c, &build->calls))
        return;
    /* The list of a state's calls is unordered: all of them are followed at once. */
    build->calls.items[build->calls.n - 1] =
        (struct build_call){.start = start, .back = back, .next = build->states.items[from].calls};
    build->states.items[from].calls = build->calls.n - 1;
}

void build_jump(struct build *build, uint32_t from, uint32_t to)
{
    build_call(build, from, to, NONE);
}

/* The edge of the state itself for a byte, without its base. */
static uint32_t build_own_edge(const struct build *build, uint32_t state, uint8_t byte)
{
    uint32_t i;

    for (i = build->states.items[state].edges; i != NONE; i = build->edges.items[i].next)
        if (byte >= build->edges.items[i].lo && byte <= build->edges.items[i].hi)
            return i;
    return NONE;
}

uint32_t build_step(const struct build *build, uint32_t from, uint8_t byte)
{
    uint32_t i = build_own_edge(build, from, byte);

    if (i == NONE && build->states.items[from].base != NONE)
        i = build_own_edge(build, build->states.items[from].base, byte);
    if (i == NONE)
        return NONE;
    return build->edges.items[i].to;
}

/* Set the target of one byte. If the byte lies inside of a range, the range is cut into up to
 * three:
 *
 *     a-z -> s,  set 'm' -> t:    a-l -> s   m -> t   n-z -> s */
void build_set(struct build *build, uint32_t from, uint8_t byte, uint32_t to)
{
    uint32_t i = build_own_edge(build, from, byte);
    struct build_edge old;

    if (i != NONE) { /* cut the byte out of its range */
        old = build->edges.items[i];
        build->edges.items[i].lo = byte;
        build->edges.items[i].hi = byte;
        build->edges.items[i].to = to;
        if (old.lo < byte)
            build_edge(build, from, old.lo, (uint8_t)(byte - 1), old.to);
        if (old.hi > byte)
            build_edge(build, from, (uint8_t)(byte + 1), old.hi, old.to);
        return;
    }
    build_edge(build, from, byte, byte, to);
}

/* The copy has `from` as its base, or shares from's base and copies its few own edges, because a
 * base must not have a base. */
uint32_t build_copy(struct build *build, uint32_t from)
{
    uint32_t copy = build_state(build);
    uint32_t i;

    if (!compile_ok(build->c))
        return 0;
    must(from < build->states.n);
    build->states.items[copy].end = build->states.items[from].end;
    build->states.items[copy].plain = 0;
    /* The usual case costs no edges: the copy inherits all of them and overrides a few. */
    if (build->states.items[from].base == NONE) {
        build->states.items[copy].base = from;
        return copy;
    }
    build->states.items[copy].base = build->states.items[from].base;
    for (i = build->states.items[from].edges; i != NONE; i = build->edges.items[i].next)
        build_edge(build, copy, build->edges.items[i].lo, build->edges.items[i].hi,
                   build->edges.items[i].to);
    return copy;
}

/* Append states for a text to `from`; the state after its last byte. */
uint32_t build_text(struct build *build, uint32_t from, const char *bytes, size_t len)
{
    uint32_t next;
    size_t i;

    must(bytes != NULL || len == 0);
    for (i = 0; i < len && compile_ok(build->c); i++) {
        next = build_state(build);
        build_edge(build, from, (uint8_t)bytes[i], (uint8_t)bytes[i], next);
        from = next;
    }
    return from;
}

/* Is this the target of an edge that leads to a state? */
static bool build_leads(uint32_t to)
{
    return to != NONE && to != DEAD;
}

/* Each state on the way is replaced by a copy, so that other users of the tree keep the original:
 *
 *     root --a--> s --b--> leaf      copy --a--> copy of s --b--> new leaf */
uint32_t build_insert(struct build *build, uint32_t root, const char *bytes, size_t len,
                      uint8_t last, uint32_t leaf)
{
    uint32_t copy = root == NONE ? build_state(build) : build_copy(build, root);
    uint32_t at = copy;
    size_t i;

    must(bytes != NULL || len == 0);
    /* One state of the path per byte. `at` is a state that belongs to the copy already, so it
     * may be changed. */
    for (i = 0; i < len && compile_ok(build->c); i++) {
        uint32_t old = build_step(build, at, (uint8_t)bytes[i]);
        /* A byte that leads nowhere gets a fresh state. An inherited edge counts as one that
         * leads somewhere. */
        uint32_t next = build_leads(old) ? build_copy(build, old) : build_state(build);

        build_set(build, at, (uint8_t)bytes[i], next);
        at = next;
    }
    /* `last` is the byte after the text, such as the closing quote of a name. It separates a
     * text from longer ones that begin with it. */
    if (compile_ok(build->c))
        build_set(build, at, last, leaf);
    return copy;
}

/* The state after one byte; it is made if there is none. */
static uint32_t build_advance(struct build *build, uint32_t from, uint8_t byte)
{
    uint32_t next = build_step(build, from, byte);

    if (!build_leads(next)) {
        next = build_state(build);
        build_set(build, from, byte, next);
    }
    return next;
}

void build_insert_here(struct build *build, uint32_t root, const char *bytes, size_t len,
                       uint8_t last, uint32_t leaf)
{
    size_t i;

    for (i = 0; i < len && compile_ok(build->c); i++)
        root = build_advance(build, root, (uint8_t)bytes[i]);
    if (compile_ok(build->c))
        build_set(build, root, last, leaf);
}

void build_word(struct build *build, uint32_t root, const char *bytes, size_t len)
{
    size_t i;

    must(bytes != NULL || len == 0);
    for (i = 0; i < len && compile_ok(build->c); i++)
        root = build_advance(build, root, (uint8_t)bytes[i]);
    if (compile_ok(build->c))
        build->states.items[root].end = true;
}

/* --- left recursion ----------------------------------------------------------------------- */

/* A rule that calls itself before it consumes a byte would grow the stack for ever. To find one,
 * first find the states from which an end is reached without a byte: a callee that is nullable lets
 * its caller continue in `back`. */
static void build_find_nullable(struct build *build, bool *nullable)
{
    bool changed = true;
    uint32_t state, i;

    while (changed && compile_ok(build->c)) { /* at most one pass per state; usually two in all */
        changed = false;
        for (state = 0; state < build->states.n && compile_tick(build->c); state++) {
            bool now = build->states.items[state].end;

            for (i = build->states.items[state].calls; i != NONE && !now;
                 i = build->calls.items[i].next)
                now = nullable[build->calls.items[i].start] &&
                      (build->calls.items[i].back == NONE || nullable[build->calls.items[i].back]);
            changed = changed || now != nullable[state];
            nullable[state] = now;
        }
    }
}

/* The memory of searches for left recursion. */
struct build_search {
    bool *nullable; /* [states]: an end is reached without a byte */
    uint32_t *seen; /* [states]: the last search that visited the state */
    uint32_t mark;  /* number of the current search */
    uint32_t *work; /* a stack with room for all states */
};

/* Is `to` reached from `from` without a byte? */
static bool build_reaches(struct build *build, struct build_search *search, uint32_t from,
                          uint32_t to)
{
    const bool *nullable = search->nullable;
    uint32_t *seen = search->seen;
    uint32_t *work = search->work;
    uint32_t mark = ++search->mark;
    uint32_t n = 0;
    uint32_t i, state;

    work[n++] = from;
    seen[from] = mark;
    while (n > 0 && compile_tick(build->c)) { /* each state is pushed once */
        state = work[--n];
        if (state == to)
            return true;
        for (i = build->states.items[state].calls; i != NONE; i = build->calls.items[i].next) {
            const struct build_call *call = &build->calls.items[i];

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

uint32_t build_left_recursion(struct build *build)
{
    size_t n = build->states.n;
    struct build_search search = {
        .nullable = compile_alloc(build->c, n),
        .seen = compile_alloc(build->c, n * sizeof *search.seen),
        .work = compile_alloc(build->c, n * sizeof *search.work),
    };
    uint32_t state, i;

    if (!compile_ok(build->c))
        return NONE;
    build_find_nullable(build, search.nullable);
    /* A state that reaches itself through calls alone, without a byte in between, is left
     * recursive. A jump (back == NONE) leaves no frame, so it cannot grow the stack. */
    for (state = 0; state < build->states.n && compile_tick(build->c); state++)
        for (i = build->states.items[state].calls; i != NONE; i = build->calls.items[i].next)
            if (build->calls.items[i].back != NONE &&
                build_reaches(build, &search, build->calls.items[i].start, state))
                return state;
    return NONE;
}
