/* SPDX-License-Identifier: Apache-2.0
 *
 * A dfa becomes states of the automaton: as it stands, or as the inside of a JSON string. */
#include <string.h>

#include "grammar/dfa.h"

struct json_builder {
    struct build *b;
    const struct dfa *d;
    uint32_t *state;  /* [n_states] of the automaton */
    uint32_t *escape; /* [n_states]: behind a '\' when all escapes lead to that state; NONE */
    bool once;        /* each text in one way only: no "\\/", no \u for what has a letter; and no
                       * U+0000, which few readers of JSON take */
    uint32_t hex;     /* what follows "\u" for a control: 00 and two digits; NONE: not yet */
};

uint32_t dfa_build(struct build *b, const struct dfa *d, int last, const uint32_t *leaf)
{
    uint32_t *state;
    uint32_t s, i;

    if (d == NULL || !compile_ok(b->c))
        return 0;
    state = compile_alloc(b->c, (size_t)d->n_states * sizeof *state);
    for (s = 0; s < d->n_states && compile_ok(b->c); s++)
        state[s] = build_state(b);
    for (s = 0; s < d->n_states && compile_ok(b->c); s++) {
        for (i = d->states[s].edge_at; i < d->states[s].edge_at + d->states[s].n_edges; i++)
            build_edge(b, state[s], d->edges[i].lo, d->edges[i].hi, state[d->edges[i].to]);
        if (d->states[s].label == 0)
            continue;
        if (last < 0)
            b->states.items[state[s]].end = true;
        else if (leaf[d->states[s].label] != NONE)
            build_edge(b, state[s], (uint8_t)last, (uint8_t)last, leaf[d->states[s].label]);
    }
    return compile_ok(b->c) ? state[0] : 0;
}

static void edge_hex(struct json_builder *j, uint32_t from, int digit, uint32_t to)
{
    struct build *b = j->b;

    if (digit < 10) {
        build_edge(b, from, (uint8_t)('0' + digit), (uint8_t)('0' + digit), to);
        return;
    }
    build_edge(b, from, (uint8_t)('a' + digit - 10), (uint8_t)('a' + digit - 10), to);
    if (!j->once)
        build_edge(b, from, (uint8_t)('A' + digit - 10), (uint8_t)('A' + digit - 10), to);
}

static bool has_letter(int control)
{
    return control == '\b' || control == '\f' || control == '\n' || control == '\r' ||
           control == '\t';
}

/* "00" and two digits from `from`, each control to its target. */
static void build_hex(struct json_builder *j, uint32_t from, const uint32_t *target)
{
    struct build *b = j->b;
    uint32_t zero = build_text(b, from, "00", 2);
    uint32_t half[2] = {build_text(b, zero, "0", 1), build_text(b, zero, "1", 1)};
    int i;

    for (i = j->once; i < 32 && compile_ok(b->c); i++)
        if (target[i] != NONE && !(j->once && has_letter(i)))
            edge_hex(j, half[i / 16], i % 16, target[i]);
}

/* The shared rule of build_hex() for when all controls lead to one state. */
static uint32_t shared_hex(struct json_builder *j)
{
    uint32_t target[32];
    uint32_t end;
    int i;

    if (j->hex == NONE) {
        end = build_end(j->b);
        for (i = 0; i < 32; i++)
            target[i] = end;
        j->hex = build_state(j->b);
        build_hex(j, j->hex, target);
    }
    return j->hex;
}

/* Escapes of one letter: what is written, what it stands for. */
static const uint8_t letters[][2] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                                     {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};

#define N_LETTERS (sizeof letters / sizeof letters[0])

static uint32_t build_escape(struct json_builder *j, const uint32_t *target)
{
    struct build *b = j->b;
    uint32_t at = build_state(b);
    bool same = true;
    bool any = false;
    size_t i;

    for (i = 0; i < N_LETTERS; i++)
        if (target[letters[i][1]] != NONE && !(j->once && letters[i][0] == '/'))
            build_edge(b, at, letters[i][0], letters[i][0], target[letters[i][1]]);
    for (i = j->once; i < 32; i++) {
        same = same && target[i] == target[31];
        any = any || target[i] != NONE;
    }
    if (!any)
        return at;
    if (same) {
        uint32_t hex = build_state(b);

        build_edge(b, at, 'u', 'u', hex);
        build_call(b, hex, shared_hex(j), target[31]);
    } else {
        build_hex(j, build_text(b, at, "u", 1), target);
    }
    return at;
}

/* The state behind a '\'; NONE when nothing of this state must be escaped. */
static uint32_t escape_of(struct json_builder *j, uint32_t s)
{
    uint32_t target[128];
    uint32_t first = NONE;
    bool same = true;
    bool any = false;
    int i;

    for (i = 0; i < 128; i++) {
        uint32_t to = dfa_step(j->d, s, (uint8_t)i);

        target[i] = to == NONE ? NONE : j->state[to];
        if (i == 0 && j->once)
            continue;
        if (i < 32 || i == '"' || i == '\\' || i == '/') {
            if (i == j->once)
                first = to;
            same = same && to == first;
        }
        if (i < 32 || i == '"' || i == '\\')
            any = any || to != NONE;
    }
    if (!any)
        return NONE;
    if (!same)
        return build_escape(j, target);
    if (j->escape[first] == NONE)
        j->escape[first] = build_escape(j, target);
    return j->escape[first];
}

/* A range of the dfa without what must be escaped. */
static void edge_plain(struct build *b, uint32_t from, int lo, int hi, uint32_t to)
{
    static const int cut[][2] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0xff}};
    size_t i;

    for (i = 0; i < 3; i++) {
        int l = lo > cut[i][0] ? lo : cut[i][0];
        int h = hi < cut[i][1] ? hi : cut[i][1];

        if (l <= h)
            build_edge(b, from, (uint8_t)l, (uint8_t)h, to);
    }
}

static uint32_t build_json(struct json_builder *how, const uint32_t *leaf)
{
    struct json_builder j = *how;
    struct build *b = j.b;
    const struct dfa *d = j.d;
    uint32_t s, i;

    if (d == NULL || !compile_ok(b->c))
        return 0;
    j.hex = NONE;
    j.state = compile_alloc(b->c, (size_t)d->n_states * sizeof *j.state);
    j.escape = compile_alloc(b->c, (size_t)d->n_states * sizeof *j.escape);
    for (s = 0; s < d->n_states && compile_ok(b->c); s++) {
        j.state[s] = build_state(b);
        j.escape[s] = NONE;
    }
    for (s = 0; s < d->n_states && compile_ok(b->c); s++) {
        uint32_t escape = escape_of(&j, s);

        for (i = d->states[s].edge_at; i < d->states[s].edge_at + d->states[s].n_edges; i++)
            edge_plain(b, j.state[s], d->edges[i].lo, d->edges[i].hi, j.state[d->edges[i].to]);
        if (escape != NONE)
            build_edge(b, j.state[s], '\\', '\\', escape);
        if (d->states[s].label != 0 && leaf[d->states[s].label] != NONE)
            build_edge(b, j.state[s], '"', '"', leaf[d->states[s].label]);
    }
    how->state = j.state;
    return compile_ok(b->c) ? j.state[0] : 0;
}

uint32_t dfa_build_json(struct build *b, const struct dfa *d, const uint32_t *leaf)
{
    struct json_builder j = {.b = b, .d = d};

    return build_json(&j, leaf);
}

uint32_t dfa_build_json_once(struct build *b, const struct dfa *d, const uint32_t *leaf)
{
    struct json_builder j = {.b = b, .d = d, .once = true};

    return build_json(&j, leaf);
}

/* --- counted ------------------------------------------------------------------------------ */

#define LEAST_MAX 250 /* so that a token's length and this are less than twice the longest token */

/* Between two characters? Bytes of continuation come only inside of one. */
static bool is_border(const struct dfa *d, uint32_t s)
{
    uint32_t at = d->states[s].edge_at;

    return d->states[s].n_edges == 0 || d->edges[at].lo < 0x80 || d->edges[at].lo > 0xbf;
}

static bool has_controls(const struct dfa *d)
{
    for (uint32_t i = 0; i < d->n_edges; i++)
        if (d->edges[i].lo < 0x20)
            return true;
    return false;
}

/* The characters that the way to the quote takes at least, from the states first .. last - 1, which
 * lead to each other and to the leaf alone. False when one has more than LEAST_MAX. */
static bool find_least(struct build *b, uint32_t first, uint32_t last, uint32_t leaf)
{
    bool changed = true;

    for (uint32_t s = first; s < last; s++)
        b->states.items[s].count = LEAST_MAX + 1;
    for (int pass = 0; changed && pass <= 2 * LEAST_MAX && compile_tick(b->c); pass++) {
        changed = false;
        for (uint32_t s = last; s-- > first && compile_tick(b->c);) {
            uint16_t least = b->states.items[s].count;

            for (uint32_t i = b->states.items[s].edges; i != NONE; i = b->edges.items[i].next) {
                const struct build_state *to = &b->states.items[b->edges.items[i].to];
                uint16_t n = b->edges.items[i].to == leaf ? 0 : (uint16_t)(to->count + to->whole);

                least = n < least ? n : least;
            }
            changed = changed || least != b->states.items[s].count;
            b->states.items[s].count = least;
        }
    }
    for (uint32_t s = first; s < last; s++)
        if (b->states.items[s].count > LEAST_MAX)
            return false;
    return true;
}

uint32_t dfa_build_json_counted(struct build *b, const struct dfa *d, uint32_t most)
{
    struct json_builder j = {.b = b, .d = d};
    uint32_t end = build_end(b), first = b->states.n, start, last;
    const uint32_t leaf[2] = {NONE, end};

    if (has_controls(d))
        return NONE;
    start = build_json(&j, leaf);
    last = b->states.n;
    if (!compile_ok(b->c))
        return 0;
    for (uint32_t s = 0; s < d->n_states; s++)
        b->states.items[j.state[s]].whole = is_border(d, s);
    if (!find_least(b, first, last, end) || b->states.items[start].count > most)
        return NONE;
    for (uint32_t s = first; s < last; s++)
        b->states.items[s].counted = true;
    start = build_copy(b, start);
    if (compile_ok(b->c))
        b->states.items[start].count = (uint16_t)most;
    return start;
}
