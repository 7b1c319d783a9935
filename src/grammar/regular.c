/* SPDX-License-Identifier: Apache-2.0
 *
 * Thompson's construction, then subsets. Assertions are empty steps that are taken when the
 * closure of the first state is formed (begin) or when it is asked whether a set ends (end). */
#include "grammar/regular.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* --- trees -------------------------------------------------------------------------------- */

const struct regular *regular_node(struct compile *c, enum regular_kind kind,
                                   const struct regular *left, const struct regular *right)
{
    struct regular *r = compile_alloc(c, sizeof *r);

    if (r == NULL)
        return NULL;
    r->kind = kind;
    r->left = left;
    r->right = right;
    return r;
}

const struct regular *regular_repeat(struct compile *c, const struct regular *left, uint32_t min,
                                     uint32_t max)
{
    struct regular *r = compile_alloc(c, sizeof *r);

    if (r == NULL)
        return NULL;
    r->kind = REGULAR_REPEAT;
    r->left = left;
    r->min = min;
    r->max = max;
    return r;
}

static int range_order(const void *a, const void *b)
{
    const struct regular_range *x = a;
    const struct regular_range *y = b;

    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sorted, joined, without surrogates; what is left out when negated. */
static uint32_t ranges_tidy(struct regular_range *r, uint32_t n, bool negated,
                            struct regular_range *out)
{
    uint32_t n_out = 0;
    uint32_t joined = 0;
    uint32_t next = 0;
    uint32_t i;

    qsort(r, n, sizeof *r, range_order);
    for (i = 0; i < n; i++) {
        if (joined > 0 && r[i].lo <= r[joined - 1].hi + 1)
            r[joined - 1].hi = r[i].hi > r[joined - 1].hi ? r[i].hi : r[joined - 1].hi;
        else
            r[joined++] = r[i];
    }
    if (!negated) {
        memcpy(out, r, joined * sizeof *out);
        return joined;
    }
    for (i = 0; i < joined; i++) {
        if (r[i].lo > next)
            out[n_out++] = (struct regular_range){next, r[i].lo - 1};
        next = r[i].hi + 1;
    }
    if (next <= 0x10ffff)
        out[n_out++] = (struct regular_range){next, 0x10ffff};
    return n_out;
}

const struct regular *regular_set(struct compile *c, const struct regular_range *ranges, uint32_t n,
                                  bool negated)
{
    struct regular *r = compile_alloc(c, sizeof *r);
    struct regular_range *copy = compile_alloc(c, (n + 1) * sizeof *copy);
    struct regular_range *out = compile_alloc(c, (n + 1) * sizeof *out);

    if (!compile_ok(c))
        return NULL;
    if (n > 0)
        memcpy(copy, ranges, n * sizeof *copy);
    r->kind = REGULAR_SET;
    r->ranges = out;
    r->n_ranges = ranges_tidy(copy, n, negated, out);
    return r;
}

const struct regular *regular_text(struct compile *c, const char *text, size_t len)
{
    const struct regular *r = NULL;
    size_t at, n;

    for (at = 0; at < len && compile_ok(c); at += n) {
        struct regular_range one;
        const struct regular *set;

        n = utf8_sequence(text + at, len - at);
        if (n == 0) {
            compile_fail(c, ERR_SYNTAX, "a text is not valid UTF-8");
            return NULL;
        }
        one.lo = one.hi = utf8_decode(text + at);
        set = regular_set(c, &one, 1, false);
        r = r == NULL ? set : regular_node(c, REGULAR_CAT, r, set);
    }
    return r == NULL ? regular_node(c, REGULAR_EMPTY, NULL, NULL) : r;
}

const struct regular *regular_any(struct compile *c)
{
    return regular_set(c, NULL, 0, true);
}

/* --- the nondeterministic automaton ------------------------------------------------------- */

enum step_kind { STEP_EMPTY, STEP_BYTES, STEP_BEGIN, STEP_END, STEP_CALL };

struct step {
    uint32_t to, next;
    uint32_t rule; /* STEP_CALL */
    uint8_t kind, lo, hi;
};

struct nfa {
    struct compile *c;
    LIST(uint32_t) heads; /* of each state's steps */
    LIST(struct step) steps;
    uint32_t final;
    LIST(uint32_t) marks; /* [states] the closure that saw it */
    uint32_t mark;
    LIST(uint32_t) stack;
};

static uint32_t nfa_state(struct nfa *a)
{
    if (a->heads.n >= REGULAR_STATES_MAX)
        compile_fail(a->c, ERR_LIMIT, "a pattern repeats too much (more than %d states)",
                     REGULAR_STATES_MAX);
    if (!compile_tick(a->c) || !LIST_ADD(a->c, &a->heads))
        return 0;
    a->heads.items[a->heads.n - 1] = NONE;
    return a->heads.n - 1;
}

static void nfa_step(struct nfa *a, uint32_t from, struct step step)
{
    if (!LIST_ADD(a->c, &a->steps))
        return;
    step.next = a->heads.items[from];
    a->steps.items[a->steps.n - 1] = step;
    a->heads.items[from] = a->steps.n - 1;
}

static void nfa_empty(struct nfa *a, uint32_t from, uint32_t to)
{
    nfa_step(a, from, (struct step){.to = to, .kind = STEP_EMPTY});
}

/* One run of byte ranges, as long as a character, from -> to. */
static void nfa_bytes(struct nfa *a, uint32_t from, const uint8_t *lo, const uint8_t *hi, int n,
                      uint32_t to)
{
    int i;

    for (i = 0; i < n && compile_ok(a->c); i++) {
        uint32_t next = i + 1 < n ? nfa_state(a) : to;

        nfa_step(a, from, (struct step){.to = next, .kind = STEP_BYTES, .lo = lo[i], .hi = hi[i]});
        from = next;
    }
}

/* The longest start of lo..hi that is one run of byte ranges: it is cut where continuation bytes
 * do not run through all of 80..BF. Both ends have the same number of bytes. */
static uint32_t range_end(uint32_t lo, uint32_t hi)
{
    uint32_t m = 0x3f;

    while (m <= 0x3ffff) { /* hi falls at most twice for each m */
        if ((lo & ~m) == (hi & ~m) || ((lo & m) == 0 && (hi & m) == m)) {
            m = m << 6 | 0x3f;
            continue;
        }
        hi = (lo & m) != 0 ? (lo | m) : (hi & ~m) - 1;
        m = 0x3f;
    }
    return hi;
}

static void nfa_range(struct nfa *a, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    while (lo <= hi && compile_ok(a->c)) { /* at most 7 pieces */
        uint32_t end = range_end(lo, hi);
        char first[4];
        char last[4];
        size_t n = utf8_encode(lo, first);

        (void)utf8_encode(end, last); /* of equal length: see nfa_set() */
        nfa_bytes(a, from, (const uint8_t *)first, (const uint8_t *)last, (int)n, to);
        lo = end + 1;
    }
}

static void nfa_set(struct nfa *a, const struct regular *r, uint32_t from, uint32_t to)
{
    static const struct regular_range lengths[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    uint32_t i;
    size_t k;

    for (i = 0; i < r->n_ranges && compile_ok(a->c); i++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            uint32_t lo = r->ranges[i].lo > lengths[k].lo ? r->ranges[i].lo : lengths[k].lo;
            uint32_t hi = r->ranges[i].hi < lengths[k].hi ? r->ranges[i].hi : lengths[k].hi;

            if (lo <= hi)
                nfa_range(a, from, lo, hi, to);
        }
}

static void nfa_build(struct nfa *a, const struct regular *r, uint32_t from, uint32_t to,
                      int depth);

static void nfa_repeat(struct nfa *a, const struct regular *r, uint32_t from, uint32_t to,
                       int depth)
{
    uint32_t i, next;

    for (i = 0; i < r->min && compile_ok(a->c); i++) {
        next = nfa_state(a);
        nfa_build(a, r->left, from, next, depth);
        from = next;
    }
    if (r->max == NONE) {
        next = nfa_state(a);
        nfa_empty(a, from, next);
        nfa_build(a, r->left, next, next, depth);
        nfa_empty(a, next, to);
        return;
    }
    for (; i < r->max && compile_ok(a->c); i++) {
        next = nfa_state(a);
        nfa_empty(a, from, to);
        nfa_build(a, r->left, from, next, depth);
        from = next;
    }
    nfa_empty(a, from, to);
}

/* The recursion follows groups, at most REGULAR_DEPTH_MAX; the spine of CAT is a loop. */
static void nfa_build(struct nfa *a, const struct regular *r, uint32_t from, uint32_t to, int depth)
{
    uint32_t middle = to;

    if (depth > REGULAR_DEPTH_MAX * 4)
        compile_fail(a->c, ERR_LIMIT, "groups are nested too deeply");
    for (; compile_tick(a->c) && r != NULL; r = r->left, to = middle) {
        switch (r->kind) {
        case REGULAR_EMPTY: nfa_empty(a, from, to); return;
        case REGULAR_NEVER: return;
        case REGULAR_SET: nfa_set(a, r, from, to); return;
        case REGULAR_REPEAT: nfa_repeat(a, r, from, to, depth + 1); return;
        case REGULAR_BEGIN: nfa_step(a, from, (struct step){.to = to, .kind = STEP_BEGIN}); return;
        case REGULAR_END: nfa_step(a, from, (struct step){.to = to, .kind = STEP_END}); return;
        case REGULAR_CALL:
            nfa_step(a, from, (struct step){.to = to, .kind = STEP_CALL, .rule = r->min});
            return;
        case REGULAR_ALT: /* a line of alternatives leans to the left */
            nfa_build(a, r->right, from, to, depth + 1);
            middle = to;
            break;
        case REGULAR_CAT:
            middle = nfa_state(a);
            nfa_build(a, r->right, middle, to, depth + 1);
            break;
        }
    }
}

/* --- subsets ------------------------------------------------------------------------------ */

struct subsets {
    struct nfa *a;
    struct keys keys; /* first word: is it the first state; then the states of the set */
    struct dfa_maker maker;
    struct build *b; /* calls go there; NULL when there may be none */
    uint32_t start;
    LIST(uint32_t) states; /* of b, when there is one */
    const uint32_t *rule;
    LIST(uint32_t) set;
};

static int number_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void closure_add(struct nfa *a, uint32_t state)
{
    if (a->marks.items[state] == a->mark || !LIST_ADD(a->c, &a->stack))
        return;
    a->marks.items[state] = a->mark;
    a->stack.items[a->stack.n - 1] = state;
}

/* All that is reached without a byte from what closure_add() was told; into set, those states
 * that do something. Returns whether the final one is among them. */
static bool closure(struct subsets *s, bool begin, bool end)
{
    struct nfa *a = s->a;
    bool final = false;
    uint32_t at, i;

    for (at = 0; at < a->stack.n && compile_tick(a->c); at++) {
        uint32_t state = a->stack.items[at];
        bool acts = state == a->final;

        final = final || state == a->final;
        for (i = a->heads.items[state]; i != NONE; i = a->steps.items[i].next) {
            const struct step *step = &a->steps.items[i];

            if (step->kind == STEP_EMPTY || (step->kind == STEP_BEGIN && begin) ||
                (step->kind == STEP_END && end))
                closure_add(a, step->to);
            else if (step->kind != STEP_BEGIN)
                acts = true;
        }
        if (acts && LIST_ADD(a->c, &s->set))
            s->set.items[s->set.n - 1] = state;
    }
    a->stack.n = 0;
    a->mark++;
    return final;
}

/* The number of the set that closure_add() was told; NONE when it is empty. */
static uint32_t subset_number(struct subsets *s, bool first)
{
    struct nfa *a = s->a;
    uint32_t number, i, kept;
    bool is_new, final;

    s->set.n = 0;
    if (LIST_ADD(a->c, &s->set))
        s->set.items[0] = first;
    (void)closure(s, first, false); /* ends are asked for below */
    if (!compile_ok(a->c) || s->set.n == 1)
        return NONE;
    qsort(s->set.items + 1, s->set.n - 1, sizeof *s->set.items, number_order);
    number = keys_find(&s->keys, s->set.items, s->set.n, &is_new);
    if (!is_new)
        return number;
    kept = s->set.n;
    for (i = 1; i < kept; i++)
        closure_add(a, s->set.items[i]);
    final = closure(s, first, true);
    dfa_maker_state(&s->maker, final);
    if (s->b != NULL && LIST_ADD(a->c, &s->states)) {
        s->states.items[s->states.n - 1] = number == 0 ? s->start : build_state(s->b);
        if (compile_ok(a->c) && final)
            s->b->states.items[s->states.items[s->states.n - 1]].end = true;
    }
    return number;
}

static void subset_calls(struct subsets *s, uint32_t number, const uint32_t *set, uint32_t n)
{
    struct nfa *a = s->a;
    uint32_t i, k, j;

    for (i = 0; i < n; i++)
        for (k = a->heads.items[set[i]]; k != NONE; k = a->steps.items[k].next) {
            uint32_t rule = a->steps.items[k].rule;

            if (a->steps.items[k].kind != STEP_CALL || !compile_tick(a->c))
                continue;
            for (j = 0; j < n; j++) { /* all that go on after this rule */
                uint32_t m;

                for (m = a->heads.items[set[j]]; m != NONE; m = a->steps.items[m].next)
                    if (a->steps.items[m].kind == STEP_CALL && a->steps.items[m].rule == rule)
                        closure_add(a, a->steps.items[m].to);
            }
            j = subset_number(s, false);
            if (j != NONE && compile_ok(a->c))
                build_call(s->b, s->states.items[number], s->rule[rule], s->states.items[j]);
        }
}

static void subset_edges(struct subsets *s, uint32_t number)
{
    struct nfa *a = s->a;
    uint32_t n = s->keys.items[number].n - 1;
    uint32_t *set = compile_alloc(a->c, (size_t)(n + 1) * sizeof *set);
    bool cuts[257] = {false};
    uint32_t i, k;
    int lo, hi;

    if (set == NULL)
        return;
    memcpy(set, s->keys.words.items + s->keys.items[number].at + 1, n * sizeof *set);
    for (i = 0; i < n; i++)
        for (k = a->heads.items[set[i]]; k != NONE; k = a->steps.items[k].next)
            if (a->steps.items[k].kind == STEP_BYTES) {
                cuts[a->steps.items[k].lo] = true;
                cuts[a->steps.items[k].hi + 1] = true;
            }
    for (lo = 0; lo < 256 && compile_tick(a->c); lo = hi + 1) {
        for (hi = lo; hi < 255 && !cuts[hi + 1];)
            hi++;
        for (i = 0; i < n; i++)
            for (k = a->heads.items[set[i]]; k != NONE; k = a->steps.items[k].next)
                if (a->steps.items[k].kind == STEP_BYTES && a->steps.items[k].lo <= lo &&
                    a->steps.items[k].hi >= lo)
                    closure_add(a, a->steps.items[k].to);
        k = subset_number(s, false);
        if (k == NONE)
            continue;
        dfa_maker_edge(&s->maker, (uint8_t)lo, (uint8_t)hi, k);
        if (s->b != NULL && compile_ok(a->c))
            build_edge(s->b, s->states.items[number], (uint8_t)lo, (uint8_t)hi, s->states.items[k]);
    }
    if (s->b != NULL)
        subset_calls(s, number, set, n);
}

static const struct dfa *subsets_run(struct compile *c, const struct regular *tree, struct build *b,
                                     uint32_t start, const uint32_t *rule)
{
    struct nfa a = {.c = c, .mark = 1};
    struct subsets s = {
        .a = &a, .keys = {.c = c}, .maker = {.c = c}, .b = b, .start = start, .rule = rule};
    uint32_t first = nfa_state(&a);
    uint32_t at;

    a.final = nfa_state(&a);
    nfa_build(&a, tree, first, a.final, 0);
    a.marks.items = compile_alloc(c, (size_t)a.heads.n * sizeof *a.marks.items);
    if (!compile_ok(c))
        return NULL;
    closure_add(&a, first);
    if (subset_number(&s, true) == NONE)
        dfa_maker_state(&s.maker, 0);
    for (at = 0; at < s.maker.states.n && compile_ok(c); at++) {
        dfa_maker_begin(&s.maker, at);
        if (at < s.keys.n)
            subset_edges(&s, at);
    }
    return compile_ok(c) ? dfa_maker_end(&s.maker) : NULL;
}

const struct dfa *regular_dfa(struct compile *c, const struct regular *tree)
{
    return dfa_minimise(c, subsets_run(c, tree, NULL, 0, NULL));
}

void regular_build(struct build *b, const struct regular *tree, uint32_t start,
                   const uint32_t *rule)
{
    (void)subsets_run(b->c, tree, b, start, rule); /* what was built is in b */
}
