/* SPDX-License-Identifier: Apache-2.0
 *
 * From what was built to an image: states that reach an end, of those the ones that root
 * reaches, numbered as a breadth-first walk meets them.
 *
 * That no dead end is left matters: a mask allows a token when a state is left after it, so every
 * state must have a way to an end. */
#include <stdlib.h>
#include <string.h>

#include "grammar/automaton.h"
#include "grammar/build.h"

#define PLAIN_PASSES 300 /* more than the 255 values a state can fall through */

struct sources { /* who leads to a state: lists in one array */
    uint32_t *head;
    struct {
        uint32_t from, next;
    } * items;
    uint32_t n;
};

struct writer {
    struct build *b;
    struct compile *c;
    bool *good;       /* [states] reaches an end */
    uint32_t *number; /* [states] in the image; NONE */
    uint32_t *order;  /* [n_order] states of the image */
    uint32_t n_order;
};

static void source_add(struct sources *s, uint32_t to, uint32_t from)
{
    s->items[s->n].from = from;
    s->items[s->n].next = s->head[to];
    s->head[to] = s->n++;
}

static bool leads(const struct build *b, uint32_t to)
{
    return to < b->states.n;
}

/* Is some byte of a base's edge left to the state, not hidden by edges of its own? */
static bool edge_seen(const struct build *b, const struct build_state *s,
                      const struct build_edge *e)
{
    bool hidden[256] = {false};
    uint32_t i;
    int byte;

    for (i = s->edges; i != NONE; i = b->edges.items[i].next)
        for (byte = b->edges.items[i].lo; byte <= b->edges.items[i].hi; byte++)
            hidden[byte] = true;
    for (byte = e->lo; byte <= e->hi; byte++)
        if (!hidden[byte])
            return true;
    return false;
}

static bool state_good(const struct writer *w, uint32_t state)
{
    const struct build *b = w->b;
    const struct build_state *s = &b->states.items[state];
    uint32_t i;

    if (s->end)
        return true;
    for (i = s->edges; i != NONE; i = b->edges.items[i].next)
        if (leads(b, b->edges.items[i].to) && w->good[b->edges.items[i].to])
            return true;
    for (i = s->calls; i != NONE; i = b->calls.items[i].next)
        if (w->good[b->calls.items[i].start] &&
            (b->calls.items[i].back == NONE || w->good[b->calls.items[i].back]))
            return true;
    if (s->base == NONE)
        return false;
    for (i = b->states.items[s->base].edges; i != NONE; i = b->edges.items[i].next)
        if (leads(b, b->edges.items[i].to) && w->good[b->edges.items[i].to] &&
            edge_seen(b, s, &b->edges.items[i]))
            return true;
    return false;
}

static void sources_fill(struct writer *w, struct sources *to, struct sources *heirs)
{
    const struct build *b = w->b;
    uint32_t s, i;

    memset(to->head, 0xff, (size_t)b->states.n * sizeof *to->head);
    memset(heirs->head, 0xff, (size_t)b->states.n * sizeof *heirs->head);
    for (s = 0; s < b->states.n; s++) {
        for (i = b->states.items[s].edges; i != NONE; i = b->edges.items[i].next)
            if (leads(b, b->edges.items[i].to))
                source_add(to, b->edges.items[i].to, s);
        for (i = b->states.items[s].calls; i != NONE; i = b->calls.items[i].next) {
            source_add(to, b->calls.items[i].start, s);
            if (b->calls.items[i].back != NONE)
                source_add(to, b->calls.items[i].back, s);
        }
        if (b->states.items[s].base != NONE)
            source_add(heirs, b->states.items[s].base, s);
    }
}

/* Look again at a state and, if that helps, at those that have it as base. */
static void good_look(struct writer *w, const struct sources *heirs, uint32_t s, uint32_t *work,
                      uint32_t *n_work)
{
    uint32_t i;

    if (!w->good[s] && state_good(w, s)) {
        w->good[s] = true;
        work[(*n_work)++] = s;
    }
    for (i = heirs->head[s]; i != NONE && compile_tick(w->c); i = heirs->items[i].next)
        if (!w->good[heirs->items[i].from] && state_good(w, heirs->items[i].from)) {
            w->good[heirs->items[i].from] = true;
            work[(*n_work)++] = heirs->items[i].from;
        }
}

static void find_good(struct writer *w)
{
    const struct build *b = w->b;
    size_t n = b->states.n;
    struct sources to = {
        .head = compile_alloc(w->c, n * sizeof(uint32_t)),
        .items = compile_alloc(w->c, (b->edges.n + 2 * (size_t)b->calls.n + 1) * 8),
    };
    struct sources heirs = {
        .head = compile_alloc(w->c, n * sizeof(uint32_t)),
        .items = compile_alloc(w->c, (n + 1) * 8),
    };
    uint32_t *work = compile_alloc(w->c, n * sizeof *work);
    uint32_t n_work = 0;
    uint32_t s, i;

    if (!compile_ok(w->c))
        return;
    sources_fill(w, &to, &heirs);
    for (s = 0; s < n; s++)
        if (b->states.items[s].end) {
            w->good[s] = true;
            work[n_work++] = s;
        }
    while (n_work > 0 && compile_tick(w->c)) { /* each state comes in once */
        s = work[--n_work];
        for (i = to.head[s]; i != NONE && compile_tick(w->c); i = to.items[i].next)
            good_look(w, &heirs, to.items[i].from, work, &n_work);
    }
}

static void reach(struct writer *w, uint32_t state)
{
    if (w->number[state] != NONE)
        return;
    w->number[state] = w->n_order;
    w->order[w->n_order++] = state;
}

static bool edge_kept(const struct writer *w, const struct build_edge *e)
{
    return leads(w->b, e->to) && w->good[e->to];
}

static bool call_kept(const struct writer *w, const struct build_call *call)
{
    return w->good[call->start] && (call->back == NONE || w->good[call->back]);
}

static void find_reached(struct writer *w, uint32_t root)
{
    const struct build *b = w->b;
    uint32_t at, i;

    reach(w, root);
    for (at = 0; at < w->n_order && compile_tick(w->c); at++) {
        const struct build_state *s = &b->states.items[w->order[at]];

        for (i = s->edges; i != NONE; i = b->edges.items[i].next)
            if (edge_kept(w, &b->edges.items[i]))
                reach(w, b->edges.items[i].to);
        for (i = s->calls; i != NONE; i = b->calls.items[i].next)
            if (call_kept(w, &b->calls.items[i])) {
                reach(w, b->calls.items[i].start);
                if (b->calls.items[i].back != NONE)
                    reach(w, b->calls.items[i].back);
            }
        if (s->base != NONE)
            reach(w, s->base);
    }
}

static int edge_order(const void *a, const void *b)
{
    const struct automaton_edge *x = a;
    const struct automaton_edge *y = b;

    return (int)x->lo - (int)y->lo;
}

/* A state's own edges, sorted, neighbours with one target joined. */
static uint32_t edges_take(struct writer *w, const struct build_state *s,
                           struct automaton_edge *out)
{
    const struct build *b = w->b;
    uint32_t n = 0;
    uint32_t kept = 0;
    uint32_t i;

    for (i = s->edges; i != NONE && n < 256; i = b->edges.items[i].next) {
        const struct build_edge *e = &b->edges.items[i];

        if (edge_kept(w, e))
            out[n].to = w->number[e->to];
        else if (s->base != NONE)
            out[n].to = AUTOMATON_DEAD;
        else
            continue;
        out[n].lo = e->lo;
        out[n].hi = e->hi;
        out[n++].unused = 0;
    }
    qsort(out, n, sizeof *out, edge_order);
    for (i = 0; i < n; i++) {
        if (kept > 0 && out[i].lo <= out[kept - 1].hi) {
            compile_fail(w->c, ERR_INTERNAL, "a state has two ways for byte %d", out[i].lo);
            return 0;
        }
        if (kept > 0 && out[i].to == out[kept - 1].to && out[i].lo == out[kept - 1].hi + 1)
            out[kept - 1].hi = out[i].hi;
        else
            out[kept++] = out[i];
    }
    return kept;
}

/* The least `plain` among the states that bytes lo..hi and then `tail` continuation bytes lead
 * to; -1 where one leads nowhere. */
static int plain_least(const struct automaton *a, uint32_t s, int lo, int hi, int tail)
{
    uint32_t last = AUTOMATON_DEAD; /* where the byte before led: not to be looked at again */
    int least = 255;
    int byte;

    for (byte = lo; byte <= hi && least >= 0; byte++) {
        uint32_t to = automaton_step(a, s, (uint8_t)byte);
        int d = -1;

        if (byte > lo && to == last)
            continue;
        last = to;
        if (to != AUTOMATON_DEAD) /* tail <= 2 */
            d = tail == 0 ? automaton_states(a)[to].plain
                          : plain_least(a, to, 0x80, 0xbf, tail - 1);
        least = d < least ? d : least;
    }
    return least;
}

static int min2(int a, int b)
{
    return a < b ? a : b;
}

/* The same over all plain characters. Leads that go where the one before went, with the same
 * second bytes, need not be looked at again. */
static int plain_look(const struct automaton *a, uint32_t s)
{
    int d = min2(plain_least(a, s, 0x23, 0x5b, 0), plain_least(a, s, 0x20, 0x21, 0));
    uint32_t last = AUTOMATON_NONE;
    int last_kind = 0;
    int lead;

    d = min2(d, plain_least(a, s, 0x5d, 0x7f, 0));
    for (lead = 0xc2; lead <= 0xf4 && d >= 0; lead++) {
        uint32_t to = automaton_step(a, s, (uint8_t)lead);
        int lo = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        int hi = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        int tail = lead < 0xe0 ? 0 : lead < 0xf0 ? 1 : 2;
        int kind = lo + 256 * hi + 65536 * tail;

        if (to == AUTOMATON_DEAD)
            return -1;
        if (to == last && kind == last_kind)
            continue;
        last = to;
        last_kind = kind;
        d = min2(d, plain_least(a, to, lo, hi, tail));
    }
    return d;
}

/* Values start at "any number" and fall until nothing changes. */
static void plain_fill(struct compile *c, struct automaton *a)
{
    struct automaton_state *states = (struct automaton_state *)(a + 1);
    LIST(uint32_t) open = {0};
    bool changed = true;
    uint32_t i;
    int pass;

    for (i = 0; i < a->n_states; i++) {
        if (states[i].plain != 0 || states[i].n_calls != 0) /* given, or not for us */
            continue;
        if (automaton_step(a, i, 'a') == AUTOMATON_DEAD ||
            automaton_step(a, i, ' ') == AUTOMATON_DEAD)
            continue;
        if (automaton_step(a, i, 0xf1) == AUTOMATON_DEAD || !LIST_ADD(c, &open))
            continue;
        open.items[open.n - 1] = i;
    }
    for (i = 0; i < open.n; i++)
        states[open.items[i]].plain = 255;
    for (pass = 0; pass < PLAIN_PASSES && changed; pass++) {
        changed = false;
        for (i = open.n; i-- > 0 && compile_tick(c);) {
            int d = states[open.items[i]].plain;
            int now = d == 0 ? 0 : plain_look(a, open.items[i]) + 1;

            now = now == 256 ? 255 : min2(now, 254);
            if (now < d) {
                states[open.items[i]].plain = (uint8_t)now;
                changed = true;
            }
        }
    }
    for (i = 0; i < open.n && changed; i++) /* not settled: say nothing */
        states[open.items[i]].plain = 0;
}

static void write_states(struct writer *w, struct automaton *a, struct buf *edges,
                         struct buf *calls)
{
    struct automaton_state *out = (struct automaton_state *)(a + 1);
    struct automaton_edge own[256];
    uint32_t at, i;

    for (at = 0; at < w->n_order && compile_tick(w->c); at++) {
        const struct build_state *s = &w->b->states.items[w->order[at]];

        out[at].edge_at = a->n_edges;
        out[at].call_at = a->n_calls;
        out[at].n_edges = (uint16_t)edges_take(w, s, own);
        out[at].base = s->base == NONE ? AUTOMATON_NONE : w->number[s->base];
        out[at].flags =
            (uint8_t)((s->end ? AUTOMATON_END : 0) | (s->nests ? AUTOMATON_NESTS : 0) |
                      (s->counted ? AUTOMATON_COUNTED : 0) | (s->whole ? AUTOMATON_CHAR : 0));
        out[at].count = s->count;
        out[at].plain = s->plain;
        buf_add(edges, own, out[at].n_edges * sizeof own[0]);
        a->n_edges += out[at].n_edges;
        for (i = s->calls; i != NONE; i = w->b->calls.items[i].next) {
            const struct build_call *call = &w->b->calls.items[i];
            struct automaton_call word;

            if (!call_kept(w, call))
                continue;
            if (out[at].n_calls == UINT16_MAX) {
                compile_fail(w->c, ERR_LIMIT, "more than %d alternatives: simplify it", UINT16_MAX);
                return;
            }
            word.start = w->number[call->start];
            word.back = call->back == NONE ? AUTOMATON_NONE : w->number[call->back];
            buf_add(calls, &word, sizeof word);
            out[at].n_calls++;
            a->n_calls++;
        }
    }
}

static void write_image(struct writer *w, struct buf *image)
{
    size_t head = sizeof(struct automaton) + (size_t)w->n_order * sizeof(struct automaton_state);
    struct buf edges = {.limit = GRAMMAR_BYTES_MAX};
    struct buf calls = {.limit = GRAMMAR_BYTES_MAX};
    struct automaton *a = compile_alloc(w->c, head);
    struct automaton *whole;

    if (a == NULL)
        return;
    a->magic = AUTOMATON_MAGIC;
    a->n_states = w->n_order;
    write_states(w, a, &edges, &calls);
    a->bytes = head + edges.len + calls.len;
    whole = compile_alloc(w->c, (size_t)a->bytes);
    if (edges.failed || calls.failed || a->bytes > GRAMMAR_BYTES_MAX) {
        compile_fail(w->c, ERR_LIMIT, "the automaton would be larger than %zu MiB: simplify it",
                     GRAMMAR_BYTES_MAX >> 20);
    } else if (whole != NULL) {
        memcpy(whole, a, head);
        if (edges.len > 0)
            memcpy((char *)whole + head, edges.bytes, edges.len);
        if (calls.len > 0)
            memcpy((char *)whole + head + edges.len, calls.bytes, calls.len);
        plain_fill(w->c, whole);
        if (compile_ok(w->c))
            buf_add(image, whole, (size_t)a->bytes);
        if (image->failed)
            compile_fail(w->c, ERR_NO_MEMORY, "out of memory");
    }
    buf_fini(&edges);
    buf_fini(&calls);
}

/* A call that comes back to a state where nothing but an end is need not come back: what is called
 * ends for the caller. Stacks stay flat where a rule ends with a rule, and what a mask knows of a
 * state holds wherever it was called from. */
static void calls_flatten(struct build *b)
{
    for (uint32_t i = 0; i < b->calls.n; i++) {
        uint32_t back = b->calls.items[i].back;
        const struct build_state *s = back == NONE ? NULL : &b->states.items[back];
        uint32_t start = b->calls.items[i].start;
        bool counts = b->states.items[start].count > 0; /* in the frame */

        if (s != NULL && !counts && s->end && s->edges == NONE && s->calls == NONE &&
            s->base == NONE)
            b->calls.items[i].back = NONE;
    }
}

void build_write(struct build *b, uint32_t root, struct buf *image)
{
    struct compile *c = b->c;
    size_t n = b->states.n;
    struct writer w = {
        .b = b,
        .c = c,
        .good = compile_alloc(c, n * sizeof *w.good),
        .number = compile_alloc(c, n * sizeof *w.number),
        .order = compile_alloc(c, n * sizeof *w.order),
    };

    if (!compile_ok(c))
        return;
    memset(w.number, 0xff, n * sizeof *w.number);
    calls_flatten(b);
    find_good(&w);
    if (!compile_ok(c))
        return;
    if (!w.good[root]) {
        c->at = NULL;
        compile_fail(c, ERR_INVALID, "nothing can satisfy it");
        return;
    }
    find_reached(&w, root);
    if (w.n_order > GRAMMAR_STATES_MAX)
        compile_fail(c, ERR_LIMIT, "needs more than %d states: simplify it", GRAMMAR_STATES_MAX);
    if (compile_ok(c))
        write_image(&w, image);
}
