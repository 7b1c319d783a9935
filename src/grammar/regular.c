/* SPDX-License-Identifier: Apache-2.0
 *
 * Thompson's construction (a nondeterministic automaton from a tree), then the subset construction.
 * The assertions ^ and $ are empty steps: ^ is taken only in the closure of the first state, and $
 * only when it is tested whether a set of states is an end. */
#include "grammar/regular.h"

#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"

/* --- trees -------------------------------------------------------------------------------- */

/* A node with up to two children. Children may be NULL after an error, which is recorded, and the
 * tree is then never used. */
const struct regular *regular_node(struct compile *compile, enum regular_kind kind,
                                   const struct regular *left, const struct regular *right)
{
    struct regular *regular = compile_alloc(compile, sizeof *regular);

    if (regular == NULL)
        return NULL;
    regular->kind = kind;
    regular->left = left;
    regular->right = right;
    return regular;
}

const struct regular *regular_repeat(struct compile *compile, const struct regular *left,
                                     uint32_t min, uint32_t max)
{
    struct regular *regular = compile_alloc(compile, sizeof *regular);

    if (regular == NULL)
        return NULL;
    must(min <= max);
    regular->kind = REGULAR_REPEAT;
    regular->left = left;
    regular->min = min;
    regular->max = max;
    return regular;
}

static int regular_range_order(const void *a, const void *b)
{
    const struct regular_range *x = a;
    const struct regular_range *y = b;

    if (x->lo < y->lo)
        return -1;
    return x->lo > y->lo;
}

/* Sort and join ranges into out, or their complement when negated. Returns the number of ranges. */
static uint32_t regular_ranges_tidy(struct regular_range *ranges, uint32_t n, bool negated,
                                    struct regular_range *out)
{
    uint32_t n_out = 0;
    uint32_t joined = 0;
    uint32_t next = 0;
    uint32_t i;

    qsort(ranges, n, sizeof *ranges, regular_range_order);
    /* Ranges that overlap or touch become one. */
    for (i = 0; i < n; i++) {
        if (joined > 0 && ranges[i].lo <= ranges[joined - 1].hi + 1) {
            if (ranges[i].hi > ranges[joined - 1].hi)
                ranges[joined - 1].hi = ranges[i].hi;
        } else
            ranges[joined++] = ranges[i];
    }
    if (!negated) {
        memcpy(out, ranges, joined * sizeof *out);
        return joined;
    }
    /* The complement consists of the gaps; `next` is the first character after the last range. */
    for (i = 0; i < joined; i++) {
        if (ranges[i].lo > next)
            out[n_out++] = (struct regular_range){next, ranges[i].lo - 1};
        next = ranges[i].hi + 1;
    }
    if (next <= 0x10ffff)
        out[n_out++] = (struct regular_range){next, 0x10ffff};
    return n_out;
}

/* A set of characters. The given array is not changed or kept. */
const struct regular *regular_set(struct compile *compile, const struct regular_range *ranges,
                                  uint32_t n, bool negated)
{
    struct regular *regular = compile_alloc(compile, sizeof *regular);
    struct regular_range *copy = compile_alloc(compile, (n + 1) * sizeof *copy);
    struct regular_range *out = compile_alloc(compile, (n + 1) * sizeof *out);

    /* A negated set of n ranges has up to n + 1 ranges: the gaps between them and at both ends. */
    must(ranges != NULL || n == 0);
    if (!compile_ok(compile))
        return NULL;
    /* The ranges are sorted in place, so a copy is needed: the caller's may be constant. */
    if (n > 0)
        memcpy(copy, ranges, n * sizeof *copy);
    regular->kind = REGULAR_SET;
    regular->ranges = out;
    regular->n_ranges = regular_ranges_tidy(copy, n, negated, out);
    return regular;
}

/* A text as a chain of sets of one character each. Nodes are left-leaning: ((a b) c) d. */
const struct regular *regular_text(struct compile *compile, const char *text, size_t len)
{
    const struct regular *regular = NULL;
    size_t at, n;

    must(text != NULL || len == 0);
    for (at = 0; at < len && compile_ok(compile); at += n) {
        struct regular_range one;
        const struct regular *set;

        /* n is the length of one character; invalid bytes have none. */
        n = utf8_sequence(text + at, len - at);
        if (n == 0) {
            compile_fail(compile, ERR_SYNTAX, "a text is not valid UTF-8");
            return NULL;
        }
        one.lo = one.hi = utf8_decode(text + at);
        set = regular_set(compile, &one, 1, false);
        if (regular == NULL)
            regular = set;
        else
            regular = regular_node(compile, REGULAR_CAT, regular, set);
    }
    /* The empty text has no characters and is a node of its own. */
    if (regular == NULL)
        return regular_node(compile, REGULAR_EMPTY, NULL, NULL);
    return regular;
}

const struct regular *regular_any(struct compile *compile)
{
    return regular_set(compile, NULL, 0, true);
}

/* --- the nondeterministic automaton ------------------------------------------------------- */

/* --- kinds of steps: without a byte, with a byte, the two assertions, a call of a rule --- */
enum step_kind { STEP_EMPTY, STEP_BYTES, STEP_BEGIN, STEP_END, STEP_CALL };

struct regular_step {
    uint32_t to, next;
    uint32_t rule; /* STEP_CALL */
    uint8_t kind, lo, hi;
};

/* Each state heads a linked list of steps. */
struct nfa {
    struct compile *c;
    LIST(uint32_t) heads; /* first step of each state */
    LIST(struct regular_step) steps;
    uint32_t final;
    LIST(uint32_t) marks; /* [states] the last closure that visited it */
    uint32_t mark;
    LIST(uint32_t) stack;
};

static uint32_t regular_nfa_state(struct nfa *nfa)
{
    if (nfa->heads.n >= REGULAR_STATES_MAX)
        compile_fail(nfa->c, ERR_LIMIT, "a pattern repeats too much (more than %d states)",
                     REGULAR_STATES_MAX);
    if (!compile_tick(nfa->c) || !LIST_ADD(nfa->c, &nfa->heads))
        return 0;
    nfa->heads.items[nfa->heads.n - 1] = NONE;
    return nfa->heads.n - 1;
}

static void regular_nfa_step(struct nfa *nfa, uint32_t from, struct regular_step step)
{
    if (!LIST_ADD(nfa->c, &nfa->steps))
        return;
    step.next = nfa->heads.items[from];
    nfa->steps.items[nfa->steps.n - 1] = step;
    nfa->heads.items[from] = nfa->steps.n - 1;
}

static void regular_nfa_empty(struct nfa *nfa, uint32_t from, uint32_t to)
{
    regular_nfa_step(nfa, from, (struct regular_step){.to = to, .kind = STEP_EMPTY});
}

/* A chain of steps for a sequence of byte ranges, from -> to. */
static void regular_nfa_bytes(struct nfa *nfa, uint32_t from, const uint8_t *lo, const uint8_t *hi,
                              int n, uint32_t to)
{
    int i;

    for (i = 0; i < n && compile_ok(nfa->c); i++) {
        uint32_t next = i + 1 < n ? regular_nfa_state(nfa) : to;

        regular_nfa_step(
            nfa, from,
            (struct regular_step){.to = next, .kind = STEP_BYTES, .lo = lo[i], .hi = hi[i]});
        from = next;
    }
}

/* The end of the longest beginning of lo..hi that is one sequence of byte ranges. A range of
 * characters must be cut where the continuation bytes do not run through all of 80..BF. For
 * example, U+0100 to U+017F is C4 80..BF and C5 80..BF, which is one sequence: C4..C5 80..BF. lo
 * and hi have UTF-8 of the same length. */
static uint32_t regular_range_end(uint32_t lo, uint32_t hi)
{
    uint32_t m = 0x3f;

    must(lo <= hi);
    while (m <= 0x3ffff) { /* hi decreases at most twice per m */
        if ((lo & ~m) == (hi & ~m) || ((lo & m) == 0 && (hi & m) == m)) {
            m = m << 6 | 0x3f;
            continue;
        }
        if ((lo & m) != 0)
            hi = (lo | m);
        else
            hi = (hi & ~m) - 1;
        m = 0x3f;
    }
    return hi;
}

/* Steps for a range of characters whose UTF-8 has one length. */
static void regular_nfa_range(struct nfa *nfa, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    while (lo <= hi && compile_ok(nfa->c)) { /* at most 7 sequences */
        uint32_t end = regular_range_end(lo, hi);
        char first[4];
        char last[4];
        size_t n = utf8_encode(lo, first);

        (void)utf8_encode(end, last); /* equal length, see regular_nfa_set() */
        regular_nfa_bytes(nfa, from, (const uint8_t *)first, (const uint8_t *)last, (int)n, to);
        lo = end + 1;
    }
}

/* Steps for a set: ranges are first cut where the length of UTF-8 changes; surrogates are left
 * out. */
static void regular_nfa_set(struct nfa *nfa, const struct regular *regular, uint32_t from,
                            uint32_t to)
{
    static const struct regular_range lengths[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    uint32_t i;
    size_t k;

    /* A range is cut into up to five pieces, each with one length of UTF-8. U+0041 to U+0101,
     * for example, becomes 41 to 7f with one byte, and 80 to 101 with two. */
    for (i = 0; i < regular->n_ranges && compile_ok(nfa->c); i++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            uint32_t lo =
                regular->ranges[i].lo > lengths[k].lo ? regular->ranges[i].lo : lengths[k].lo;
            uint32_t hi =
                regular->ranges[i].hi < lengths[k].hi ? regular->ranges[i].hi : lengths[k].hi;

            if (lo <= hi)
                regular_nfa_range(nfa, from, lo, hi, to);
        }
}

static void regular_nfa_build(struct nfa *nfa, const struct regular *regular, uint32_t from,
                              uint32_t to, int depth);

/* x{min,max}: min copies in a row, then optional ones, or a loop if there is no maximum. */
static void regular_nfa_repeat(struct nfa *nfa, const struct regular *regular, uint32_t from,
                               uint32_t to, int depth)
{
    uint32_t i, next;

    for (i = 0; i < regular->min && compile_ok(nfa->c); i++) {
        next = regular_nfa_state(nfa);
        regular_nfa_build(nfa, regular->left, from, next, depth);
        from = next;
    }
    /* The loop has a state of its own, so that no path through it can enter the copies again. */
    if (regular->max == NONE) {
        next = regular_nfa_state(nfa);
        regular_nfa_empty(nfa, from, next);
        regular_nfa_build(nfa, regular->left, next, next, depth);
        regular_nfa_empty(nfa, next, to);
        return;
    }
    /* Before each optional copy the repeat may end. */
    for (; i < regular->max && compile_ok(nfa->c); i++) {
        next = regular_nfa_state(nfa);
        regular_nfa_empty(nfa, from, to);
        regular_nfa_build(nfa, regular->left, from, next, depth);
        from = next;
    }
    regular_nfa_empty(nfa, from, to);
}

/* Build a tree between two states. The recursion follows groups, at most REGULAR_DEPTH_MAX; long
 * sequences and alternatives lean to the left and are a loop. */
static void regular_nfa_build(struct nfa *nfa, const struct regular *regular, uint32_t from,
                              uint32_t to, int depth)
{
    uint32_t middle = to;

    if (depth > REGULAR_DEPTH_MAX * 4)
        compile_fail(nfa->c, ERR_LIMIT, "groups are nested too deeply");
    for (; compile_tick(nfa->c) && regular != NULL; regular = regular->left, to = middle) {
        switch (regular->kind) {
        case REGULAR_EMPTY: regular_nfa_empty(nfa, from, to); return;
        case REGULAR_NEVER: return;
        case REGULAR_SET: regular_nfa_set(nfa, regular, from, to); return;
        case REGULAR_REPEAT: regular_nfa_repeat(nfa, regular, from, to, depth + 1); return;
        case REGULAR_BEGIN:
            regular_nfa_step(nfa, from, (struct regular_step){.to = to, .kind = STEP_BEGIN});
            return;
        case REGULAR_END:
            regular_nfa_step(nfa, from, (struct regular_step){.to = to, .kind = STEP_END});
            return;
        case REGULAR_CALL:
            regular_nfa_step(
                nfa, from,
                (struct regular_step){.to = to, .kind = STEP_CALL, .rule = regular->min});
            return;
        case REGULAR_ALT: /* continues with the left side, to the same state */
            regular_nfa_build(nfa, regular->right, from, to, depth + 1);
            middle = to;
            break;
        case REGULAR_CAT:
            middle = regular_nfa_state(nfa);
            regular_nfa_build(nfa, regular->right, middle, to, depth + 1);
            break;
        }
    }
}

/* --- subset construction ------------------------------------------------------------------ */

/* A state of the result is a set of states of the nfa. For a grammar's rule the result is also
 * built into the automaton, with its calls. */
struct subsets {
    struct nfa *a;
    struct keys keys; /* first word: 1 for the first state; then the states of the set */
    struct dfa_maker maker;
    struct build *b; /* where calls are built; NULL: there are none */
    uint32_t start;
    LIST(uint32_t) states; /* of b, by number of the set */
    const uint32_t *rule;
    LIST(uint32_t) set;
};

static int regular_number_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    if (x < y)
        return -1;
    return x > y;
}

/* Put a state on the stack, unless this closure has visited it. */
static void regular_closure_add(struct nfa *nfa, uint32_t state)
{
    if (nfa->marks.items[state] == nfa->mark || !LIST_ADD(nfa->c, &nfa->stack))
        return;
    nfa->marks.items[state] = nfa->mark;
    nfa->stack.items[nfa->stack.n - 1] = state;
}

/* Follow the empty steps from the states on the stack. The states that have other steps or are
 * final are put into subsets->set. Returns whether the final state was reached. */
static bool regular_close_state(struct subsets *subsets, bool begin, bool end)
{
    struct nfa *nfa = subsets->a;
    bool final = false;
    uint32_t at, i;

    /* regular_closure_add() appends states that are not marked yet, so each is visited once. */
    for (at = 0; at < nfa->stack.n && compile_tick(nfa->c); at++) {
        uint32_t state = nfa->stack.items[at];
        bool acts = state == nfa->final;

        final = final || state == nfa->final;
        for (i = nfa->heads.items[state]; i != NONE; i = nfa->steps.items[i].next) {
            const struct regular_step *step = &nfa->steps.items[i];

            if (step->kind == STEP_EMPTY || (step->kind == STEP_BEGIN && begin) ||
                (step->kind == STEP_END && end))
                regular_closure_add(nfa, step->to);
            else if (step->kind != STEP_BEGIN)
                acts = true;
        }
        if (acts && LIST_ADD(nfa->c, &subsets->set))
            subsets->set.items[subsets->set.n - 1] = state;
    }
    nfa->stack.n = 0;
    /* A new mark clears all marks at once. */
    nfa->mark++;
    return final;
}

/* The number of the set whose states are on the stack, after closing it; NONE when it is empty. A
 * new set becomes a new state. */
static uint32_t regular_subset_number(struct subsets *subsets, bool first)
{
    struct nfa *nfa = subsets->a;
    uint32_t number, i, kept;
    bool is_new, final;

    subsets->set.n = 0;
    if (LIST_ADD(nfa->c, &subsets->set))
        subsets->set.items[0] = first;
    (void)regular_close_state(subsets, first, false); /* ends are determined below */
    if (!compile_ok(nfa->c) || subsets->set.n == 1)
        return NONE;
    qsort(subsets->set.items + 1, subsets->set.n - 1, sizeof *subsets->set.items,
          regular_number_order);
    number = dfa_keys_find(&subsets->keys, subsets->set.items, subsets->set.n, &is_new);
    if (!is_new)
        return number;
    kept = subsets->set.n;
    for (i = 1; i < kept; i++)
        regular_closure_add(nfa, subsets->set.items[i]);
    final = regular_close_state(subsets, first, true);
    dfa_maker_state(&subsets->maker, final);
    if (subsets->b != NULL && LIST_ADD(nfa->c, &subsets->states)) {
        if (number == 0)
            subsets->states.items[subsets->states.n - 1] = subsets->start;
        else
            subsets->states.items[subsets->states.n - 1] = build_state(subsets->b);
        if (compile_ok(nfa->c) && final)
            subsets->b->states.items[subsets->states.items[subsets->states.n - 1]].end = true;
    }
    return number;
}

/* The calls of a set: one per rule, which returns to the set of all states after a call of it. */
static void regular_subset_calls(struct subsets *subsets, uint32_t number, const uint32_t *set,
                                 uint32_t n)
{
    struct nfa *nfa = subsets->a;
    uint32_t i, k, j;

    for (i = 0; i < n; i++)
        for (k = nfa->heads.items[set[i]]; k != NONE; k = nfa->steps.items[k].next) {
            uint32_t rule = nfa->steps.items[k].rule;

            if (nfa->steps.items[k].kind != STEP_CALL || !compile_tick(nfa->c))
                continue;
            for (j = 0; j < n; j++) { /* all states that follow a call of this rule */
                uint32_t m;

                for (m = nfa->heads.items[set[j]]; m != NONE; m = nfa->steps.items[m].next)
                    if (nfa->steps.items[m].kind == STEP_CALL && nfa->steps.items[m].rule == rule)
                        regular_closure_add(nfa, nfa->steps.items[m].to);
            }
            j = regular_subset_number(subsets, false);
            if (j != NONE && compile_ok(nfa->c))
                build_call(subsets->b, subsets->states.items[number], subsets->rule[rule],
                           subsets->states.items[j]);
        }
}

/* The edges of a set, one per range of equivalent bytes. */
static void regular_subset_edges(struct subsets *subsets, uint32_t number)
{
    struct nfa *nfa = subsets->a;
    uint32_t n = subsets->keys.items[number].n - 1;
    uint32_t *set = compile_alloc(nfa->c, (size_t)(n + 1) * sizeof *set);
    bool cuts[257] = {false};
    uint32_t i, k;
    int lo, hi;

    if (set == NULL)
        return;
    memcpy(set, subsets->keys.words.items + subsets->keys.items[number].at + 1, n * sizeof *set);
    /* Bytes between two cuts lead to the same sets, so only the first one of them is followed. */
    for (i = 0; i < n; i++)
        for (k = nfa->heads.items[set[i]]; k != NONE; k = nfa->steps.items[k].next)
            if (nfa->steps.items[k].kind == STEP_BYTES) {
                cuts[nfa->steps.items[k].lo] = true;
                cuts[nfa->steps.items[k].hi + 1] = true;
            }
    for (lo = 0; lo < 256 && compile_tick(nfa->c); lo = hi + 1) {
        for (hi = lo; hi < 255 && !cuts[hi + 1];)
            hi++;
        for (i = 0; i < n; i++)
            for (k = nfa->heads.items[set[i]]; k != NONE; k = nfa->steps.items[k].next)
                if (nfa->steps.items[k].kind == STEP_BYTES && nfa->steps.items[k].lo <= lo &&
                    nfa->steps.items[k].hi >= lo)
                    regular_closure_add(nfa, nfa->steps.items[k].to);
        k = regular_subset_number(subsets, false);
        if (k == NONE)
            continue;
        dfa_maker_edge(&subsets->maker, (uint8_t)lo, (uint8_t)hi, k);
        if (subsets->b != NULL && compile_ok(nfa->c))
            build_edge(subsets->b, subsets->states.items[number], (uint8_t)lo, (uint8_t)hi,
                       subsets->states.items[k]);
    }
    if (subsets->b != NULL)
        regular_subset_calls(subsets, number, set, n);
}

/* Build the nfa, then explore the sets in order of their numbers. */
static const struct dfa *regular_subsets_run(struct compile *compile, const struct regular *tree,
                                             struct build *build, uint32_t start,
                                             const uint32_t *rule)
{
    struct nfa nfa = {.c = compile, .mark = 1};
    struct subsets subsets = {.a = &nfa,
                              .keys = {.c = compile},
                              .maker = {.c = compile},
                              .b = build,
                              .start = start,
                              .rule = rule};
    uint32_t first = regular_nfa_state(&nfa);
    uint32_t at;

    nfa.final = regular_nfa_state(&nfa);
    regular_nfa_build(&nfa, tree, first, nfa.final, 0);
    nfa.marks.items = compile_alloc(compile, (size_t)nfa.heads.n * sizeof *nfa.marks.items);
    if (!compile_ok(compile))
        return NULL;
    regular_closure_add(&nfa, first);
    /* Nothing matches: one state without edges. */
    if (regular_subset_number(&subsets, true) == NONE)
        dfa_maker_state(&subsets.maker, 0);
    for (at = 0; at < subsets.maker.states.n && compile_ok(compile); at++) {
        dfa_maker_begin(&subsets.maker, at);
        if (at < subsets.keys.n)
            regular_subset_edges(&subsets, at);
    }
    if (compile_ok(compile))
        return dfa_maker_end(&subsets.maker);
    return NULL;
}

const struct dfa *regular_dfa(struct compile *compile, const struct regular *tree)
{
    return dfa_minimise(compile, regular_subsets_run(compile, tree, NULL, 0, NULL));
}

void regular_build(struct build *build, const struct regular *tree, uint32_t start,
                   const uint32_t *rule)
{
    must(rule != NULL);
    (void)regular_subsets_run(build->c, tree, build, start, rule); /* the states are in build */
}
