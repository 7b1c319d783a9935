/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the automaton that was built as an image. Kept are the states that can reach an end and
 * that the root can reach; they are numbered in the order of a breadth-first walk.
 *
 * No dead end may be left: a mask allows a token if a state is left after it, so a state without a
 * way to an end would let the model run into text that can never be completed. */
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "grammar/automaton.h"
#include "grammar/build.h"

#define PLAIN_PASSES 300 /* more than the 255 times that a state's value can decrease */

struct sources { /* the predecessors of each state: linked lists in one array */
    uint32_t *head;
    struct {
        uint32_t from, next;
    } * items;
    uint32_t n;
};

struct writer {
    struct build *b;
    struct compile *c;
    bool *good;       /* [states] can reach an end */
    uint32_t *number; /* [states] in the image; NONE */
    uint32_t *order;  /* [n_order] states of the image */
    uint32_t n_order;
};

static void build_add_source(struct sources *list, uint32_t to, uint32_t from)
{
    list->items[list->n].from = from;
    list->items[list->n].next = list->head[to];
    list->head[to] = list->n++;
}

static bool build_write_leads(const struct build *build, uint32_t to)
{
    return to < build->states.n;
}

/* Does a state inherit some byte of its base's edge, one that no edge of its own hides? */
static bool build_edge_is_seen(const struct build *build, const struct build_state *state,
                               const struct build_edge *e)
{
    bool hidden[256] = {false};
    uint32_t i;
    int byte;

    /* A state's own edge hides that of its base for the same byte. */
    for (i = state->edges; i != NONE; i = build->edges.items[i].next)
        for (byte = build->edges.items[i].lo; byte <= build->edges.items[i].hi; byte++)
            hidden[byte] = true;
    /* One byte that is not hidden is enough: the base's edge can then be taken. */
    for (byte = e->lo; byte <= e->hi; byte++)
        if (!hidden[byte])
            return true;
    return false;
}

/* Can a state reach an end by one more edge or call, given the states that are known to be good? A
 * call is usable if both the callee and the state to come back to are good. */
static bool build_state_is_good(const struct writer *writer, uint32_t state)
{
    const struct build *build = writer->b;
    const struct build_state *s = &build->states.items[state];
    uint32_t i;

    if (s->end)
        return true;
    for (i = s->edges; i != NONE; i = build->edges.items[i].next)
        if (build_write_leads(build, build->edges.items[i].to) &&
            writer->good[build->edges.items[i].to])
            return true;
    for (i = s->calls; i != NONE; i = build->calls.items[i].next)
        if (writer->good[build->calls.items[i].start] &&
            (build->calls.items[i].back == NONE || writer->good[build->calls.items[i].back]))
            return true;
    /* Edges of the base count unless the state's own edges hide them. */
    if (s->base == NONE)
        return false;
    for (i = build->states.items[s->base].edges; i != NONE; i = build->edges.items[i].next)
        if (build_write_leads(build, build->edges.items[i].to) &&
            writer->good[build->edges.items[i].to] &&
            build_edge_is_seen(build, s, &build->edges.items[i]))
            return true;
    return false;
}

/* Fill the lists of predecessors: `to` by edges and calls, `heirs` by base. */
static void build_fill_sources(struct writer *writer, struct sources *to, struct sources *heirs)
{
    const struct build *build = writer->b;
    uint32_t state, i;

    memset(to->head, 0xff, (size_t)build->states.n * sizeof *to->head);
    memset(heirs->head, 0xff, (size_t)build->states.n * sizeof *heirs->head);
    for (state = 0; state < build->states.n; state++) {
        for (i = build->states.items[state].edges; i != NONE; i = build->edges.items[i].next)
            if (build_write_leads(build, build->edges.items[i].to))
                build_add_source(to, build->edges.items[i].to, state);
        for (i = build->states.items[state].calls; i != NONE; i = build->calls.items[i].next) {
            build_add_source(to, build->calls.items[i].start, state);
            if (build->calls.items[i].back != NONE)
                build_add_source(to, build->calls.items[i].back, state);
        }
        /* When a base becomes good, its heirs must be looked at again. */
        if (build->states.items[state].base != NONE)
            build_add_source(heirs, build->states.items[state].base, state);
    }
}

/* Test a state again, and the states that have it as their base. */
static void build_look_good(struct writer *writer, const struct sources *heirs, uint32_t state,
                            uint32_t *work, uint32_t *n_work)
{
    uint32_t i;

    /* A state is good if it can reach an end. Its own status may have changed because the target
     * of one of its edges or calls became good. */
    if (!writer->good[state] && build_state_is_good(writer, state)) {
        writer->good[state] = true;
        work[(*n_work)++] = state;
    }
    /* A state that inherits edges from this one may have become good as well, so each heir is
     * tested. */
    for (i = heirs->head[state]; i != NONE && compile_tick(writer->c); i = heirs->items[i].next)
        if (!writer->good[heirs->items[i].from] &&
            build_state_is_good(writer, heirs->items[i].from)) {
            writer->good[heirs->items[i].from] = true;
            work[(*n_work)++] = heirs->items[i].from;
        }
}

/* Find all good states: start with the ends, and test the predecessors of each state that turns out
 * to be good. */
static void build_find_good(struct writer *writer)
{
    const struct build *build = writer->b;
    size_t n = build->states.n;
    struct sources to = {
        .head = compile_alloc(writer->c, n * sizeof(uint32_t)),
        .items = compile_alloc(writer->c, (build->edges.n + 2 * (size_t)build->calls.n + 1) * 8),
    };
    struct sources heirs = {
        .head = compile_alloc(writer->c, n * sizeof(uint32_t)),
        .items = compile_alloc(writer->c, (n + 1) * 8),
    };
    uint32_t *work = compile_alloc(writer->c, n * sizeof *work);
    uint32_t n_work = 0;
    uint32_t state, i;

    if (!compile_ok(writer->c))
        return;
    build_fill_sources(writer, &to, &heirs);
    for (state = 0; state < n; state++)
        if (build->states.items[state].end) {
            writer->good[state] = true;
            work[n_work++] = state;
        }
    while (n_work > 0 && compile_tick(writer->c)) { /* each state is pushed once */
        state = work[--n_work];
        for (i = to.head[state]; i != NONE && compile_tick(writer->c); i = to.items[i].next)
            build_look_good(writer, &heirs, to.items[i].from, work, &n_work);
    }
}

/* Give a state its number in the image, at its first visit. */
static void build_reach_state(struct writer *writer, uint32_t state)
{
    if (writer->number[state] != NONE)
        return;
    writer->number[state] = writer->n_order;
    writer->order[writer->n_order++] = state;
}

/* Edges and calls to states that are not good are dropped. */
static bool build_edge_is_kept(const struct writer *writer, const struct build_edge *e)
{
    return build_write_leads(writer->b, e->to) && writer->good[e->to];
}

static bool build_call_is_kept(const struct writer *writer, const struct build_call *call)
{
    return writer->good[call->start] && (call->back == NONE || writer->good[call->back]);
}

/* Number the states that root reaches. order[] is also the queue of the walk. */
static void build_find_reached(struct writer *writer, uint32_t root)
{
    const struct build *build = writer->b;
    uint32_t at, i;

    build_reach_state(writer, root);
    for (at = 0; at < writer->n_order && compile_tick(writer->c); at++) {
        const struct build_state *state = &build->states.items[writer->order[at]];

        for (i = state->edges; i != NONE; i = build->edges.items[i].next)
            if (build_edge_is_kept(writer, &build->edges.items[i]))
                build_reach_state(writer, build->edges.items[i].to);
        for (i = state->calls; i != NONE; i = build->calls.items[i].next)
            if (build_call_is_kept(writer, &build->calls.items[i])) {
                build_reach_state(writer, build->calls.items[i].start);
                if (build->calls.items[i].back != NONE)
                    build_reach_state(writer, build->calls.items[i].back);
            }
        /* A base is needed for its edges even if no edge or call leads to it. */
        if (state->base != NONE)
            build_reach_state(writer, state->base);
    }
}

static int build_compare_edges(const void *a, const void *b)
{
    const struct automaton_edge *x = a;
    const struct automaton_edge *y = b;

    return (int)x->lo - (int)y->lo;
}

/* A state's own edges for the image: sorted, with adjacent ranges of one target joined. A dropped
 * edge of a state with a base becomes AUTOMATON_DEAD, because it still hides the base's edge. */
static uint32_t build_take_edges(struct writer *writer, const struct build_state *state,
                                 struct automaton_edge *out)
{
    const struct build *build = writer->b;
    uint32_t n = 0;
    uint32_t kept = 0;
    uint32_t i;

    /* A state has at most 256 edges of its own, because they do not overlap; the check below
     * reports a compiler that breaks this. */
    for (i = state->edges; i != NONE && n < 256; i = build->edges.items[i].next) {
        const struct build_edge *e = &build->edges.items[i];

        if (build_edge_is_kept(writer, e))
            out[n].to = writer->number[e->to];
        else if (state->base != NONE)
            out[n].to = AUTOMATON_DEAD;
        else
            continue;
        out[n].lo = e->lo;
        out[n].hi = e->hi;
        out[n++].unused = 0;
    }
    /* Sorted edges allow a binary search in the walk, and joining shortens it. */
    qsort(out, n, sizeof *out, build_compare_edges);
    for (i = 0; i < n; i++) {
        if (kept > 0 && out[i].lo <= out[kept - 1].hi) {
            compile_fail(writer->c, ERR_INTERNAL, "a state has two ways for byte %d", out[i].lo);
            return 0;
        }
        if (kept > 0 && out[i].to == out[kept - 1].to && out[i].lo == out[kept - 1].hi + 1)
            out[kept - 1].hi = out[i].hi;
        else
            out[kept++] = out[i];
    }
    return kept;
}

/* The least `plain` of the states that the bytes lo..hi, each followed by `tail` continuation
 * bytes, lead to; -1 when one of them leads nowhere. */
static int build_find_plain(const struct automaton *automaton, uint32_t state, int lo, int hi,
                            int tail)
{
    uint32_t last = AUTOMATON_DEAD; /* the previous byte's target, which was tested already */
    int least = 255;
    int byte;

    for (byte = lo; byte <= hi && least >= 0; byte++) {
        uint32_t to = automaton_step(automaton, state, (uint8_t)byte);
        int plain = -1;

        if (byte > lo && to == last)
            continue;
        last = to;
        if (to != AUTOMATON_DEAD) /* tail <= 2 */
            plain = tail == 0 ? automaton_states(automaton)[to].plain
                              : build_find_plain(automaton, to, 0x80, 0xbf, tail - 1);
        if (plain < least)
            least = plain;
    }
    return least;
}

static int build_min(int a, int b)
{
    if (a < b)
        return a;
    return b;
}

/* The least `plain` after any plain character: ASCII without controls, '"' and '\', and each form
 * of UTF-8. A lead byte with the target and the second bytes of the previous one is not tested
 * again. */
static int build_look_plain(const struct automaton *automaton, uint32_t state)
{
    int plain = build_min(build_find_plain(automaton, state, 0x23, 0x5b, 0),
                          build_find_plain(automaton, state, 0x20, 0x21, 0));
    uint32_t last = AUTOMATON_NONE;
    int last_kind = 0;
    int lead;

    plain = build_min(plain, build_find_plain(automaton, state, 0x5d, 0x7f, 0));
    for (lead = 0xc2; lead <= 0xf4 && plain >= 0; lead++) {
        uint32_t to = automaton_step(automaton, state, (uint8_t)lead);
        /* The second byte after E0, ED, F0 and F4 has a narrower range, which excludes overlong
         * forms, surrogates and code points above U+10FFFF. `tail` is the number of bytes after the
         * second. */
        int lo = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        int hi = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        int tail = lead < 0xe0 ? 0 : lead < 0xf0 ? 1 : 2;
        int kind = lo + 256 * hi + 65536 * tail;

        if (to == AUTOMATON_DEAD)
            return -1;
        /* Lead bytes with one target are tested once. This is the usual case: text of any
         * language. */
        if (to == last && kind == last_kind)
            continue;
        last = to;
        last_kind = kind;
        plain = build_min(plain, build_find_plain(automaton, to, lo, hi, tail));
    }
    return plain;
}

/* Compute `plain`: start with "any number" for all states that accept some plain characters, and
 * lower values until nothing changes: a state has one more than the least of its successors. */
static void build_fill_plain(struct compile *compile, struct automaton *automaton)
{
    struct automaton_state *states = (struct automaton_state *)(automaton + 1);
    LIST(uint32_t) open = {0};
    bool changed = true;
    uint32_t i;
    int pass;

    for (i = 0; i < automaton->n_states; i++) {
        if (states[i].plain != 0 || states[i].n_calls != 0) /* set already, or not applicable */
            continue;
        if (automaton_step(automaton, i, 'a') == AUTOMATON_DEAD ||
            automaton_step(automaton, i, ' ') == AUTOMATON_DEAD)
            continue;
        if (automaton_step(automaton, i, 0xf1) == AUTOMATON_DEAD || !LIST_ADD(compile, &open))
            continue;
        open.items[open.n - 1] = i;
    }
    for (i = 0; i < open.n; i++)
        states[open.items[i]].plain = 255;
    for (pass = 0; pass < PLAIN_PASSES && changed; pass++) {
        changed = false;
        for (i = open.n; i-- > 0 && compile_tick(compile);) {
            int d = states[open.items[i]].plain;
            int now = d == 0 ? 0 : build_look_plain(automaton, open.items[i]) + 1;

            if (now == 256)
                now = 255;
            else
                now = build_min(now, 254);
            if (now < d) {
                states[open.items[i]].plain = (uint8_t)now;
                changed = true;
            }
        }
    }
    for (i = 0; i < open.n && changed; i++) /* not settled: give no hint */
        states[open.items[i]].plain = 0;
}

/* Fill in the states of the image, and collect their edges and calls. */
static void build_write_states(struct writer *writer, struct automaton *automaton,
                               struct buf *edges, struct buf *calls)
{
    struct automaton_state *out = (struct automaton_state *)(automaton + 1);
    struct automaton_edge own[256];
    uint32_t at, i;

    for (at = 0; at < writer->n_order && compile_tick(writer->c); at++) {
        /* Edges and calls are appended in the order of states, so each state owns a run of both
         * tables. */
        const struct build_state *state = &writer->b->states.items[writer->order[at]];

        out[at].edge_at = automaton->n_edges;
        out[at].call_at = automaton->n_calls;
        out[at].n_edges = (uint16_t)build_take_edges(writer, state, own);
        if (state->base == NONE)
            out[at].base = AUTOMATON_NONE;
        else
            out[at].base = writer->number[state->base];
        out[at].flags =
            (uint8_t)((state->end ? AUTOMATON_END : 0) | (state->nests ? AUTOMATON_NESTS : 0) |
                      (state->counted ? AUTOMATON_COUNTED : 0) |
                      (state->whole ? AUTOMATON_CHAR : 0));
        out[at].count = state->count;
        out[at].plain = state->plain;
        buf_add(edges, own, out[at].n_edges * sizeof own[0]);
        automaton->n_edges += out[at].n_edges;
        for (i = state->calls; i != NONE; i = writer->b->calls.items[i].next) {
            const struct build_call *call = &writer->b->calls.items[i];
            struct automaton_call word;

            if (!build_call_is_kept(writer, call))
                continue;
            if (out[at].n_calls == UINT16_MAX) {
                compile_fail(writer->c, ERR_LIMIT, "more than %d alternatives: simplify it",
                             UINT16_MAX);
                return;
            }
            word.start = writer->number[call->start];
            if (call->back == NONE)
                word.back = AUTOMATON_NONE;
            else
                word.back = writer->number[call->back];
            buf_add(calls, &word, sizeof word);
            out[at].n_calls++;
            automaton->n_calls++;
        }
    }
}

/* Join the three tables into one image and append it. */
static void build_write_image(struct writer *writer, struct buf *image)
{
    size_t head =
        sizeof(struct automaton) + (size_t)writer->n_order * sizeof(struct automaton_state);
    struct buf edges = {.limit = GRAMMAR_BYTES_MAX};
    struct buf calls = {.limit = GRAMMAR_BYTES_MAX};
    struct automaton *automaton = compile_alloc(writer->c, head);
    struct automaton *whole;

    if (automaton == NULL)
        return;
    automaton->magic = AUTOMATON_MAGIC;
    automaton->n_states = writer->n_order;
    build_write_states(writer, automaton, &edges, &calls);
    automaton->bytes = head + edges.len + calls.len;
    whole = compile_alloc(writer->c, (size_t)automaton->bytes);
    if (edges.failed || calls.failed || automaton->bytes > GRAMMAR_BYTES_MAX) {
        compile_fail(writer->c, ERR_LIMIT,
                     "the automaton would be larger than %zu MiB: simplify it",
                     GRAMMAR_BYTES_MAX >> 20);
    } else if (whole != NULL) {
        memcpy(whole, automaton, head);
        if (edges.len > 0)
            memcpy((char *)whole + head, edges.bytes, edges.len);
        if (calls.len > 0)
            memcpy((char *)whole + head + edges.len, calls.bytes, calls.len);
        /* `plain` is computed from the finished image, because it needs steps over bases as the
         * walk does them. */
        build_fill_plain(writer->c, whole);
        if (compile_ok(writer->c))
            buf_add(image, whole, (size_t)automaton->bytes);
        if (image->failed)
            compile_fail(writer->c, ERR_NO_MEMORY, "out of memory");
    }
    buf_fini(&edges);
    buf_fini(&calls);
}

/* A call that returns to a state which is only an end need not return: its callee's end can be the
 * caller's end. That keeps stacks flat where a rule ends with a rule, and makes a mask's cached
 * entry of a state independent of the caller. Counting rules need their frame and are left
 * alone. */
static void build_flatten_calls(struct build *build)
{
    for (uint32_t i = 0; i < build->calls.n; i++) {
        uint32_t back = build->calls.items[i].back;
        const struct build_state *state = back == NONE ? NULL : &build->states.items[back];
        uint32_t start = build->calls.items[i].start;
        bool counts = build->states.items[start].count > 0; /* the count is in the frame */

        if (state != NULL && !counts && state->end && state->edges == NONE &&
            state->calls == NONE && state->base == NONE)
            build->calls.items[i].back = NONE;
    }
}

void build_write(struct build *build, uint32_t root, struct buf *image)
{
    struct compile *compile = build->c;
    size_t n = build->states.n;
    struct writer writer = {
        .b = build,
        .c = compile,
        .good = compile_alloc(compile, n * sizeof *writer.good),
        .number = compile_alloc(compile, n * sizeof *writer.number),
        .order = compile_alloc(compile, n * sizeof *writer.order),
    };

    if (!compile_ok(compile))
        return;
    must(root < build->states.n);
    memset(writer.number, 0xff, n * sizeof *writer.number);
    /* The order matters: jumps are flattened before the search for states that reach an end, and
     * only these states are numbered. */
    build_flatten_calls(build);
    build_find_good(&writer);
    if (!compile_ok(compile))
        return;
    if (!writer.good[root]) {
        compile->at = NULL;
        compile_fail(compile, ERR_INVALID, "nothing can satisfy it");
        return;
    }
    build_find_reached(&writer, root);
    if (writer.n_order > GRAMMAR_STATES_MAX)
        compile_fail(compile, ERR_LIMIT, "needs more than %d states: simplify it",
                     GRAMMAR_STATES_MAX);
    if (compile_ok(compile))
        build_write_image(&writer, image);
}
