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

uint32_t dfa_build(struct build *build, const struct dfa *dfa, int last, const uint32_t *leaf)
{
    uint32_t *state;
    uint32_t s, i;

    if (dfa == NULL || !compile_ok(build->c))
        return 0;
    state = compile_alloc(build->c, (size_t)dfa->n_states * sizeof *state);
    for (s = 0; s < dfa->n_states && compile_ok(build->c); s++)
        state[s] = build_state(build);
    for (s = 0; s < dfa->n_states && compile_ok(build->c); s++) {
        for (i = dfa->states[s].edge_at; i < dfa->states[s].edge_at + dfa->states[s].n_edges; i++)
            build_edge(build, state[s], dfa->edges[i].lo, dfa->edges[i].hi,
                       state[dfa->edges[i].to]);
        if (dfa->states[s].label == 0)
            continue;
        if (last < 0)
            build->states.items[state[s]].end = true;
        else if (leaf[dfa->states[s].label] != NONE)
            build_edge(build, state[s], (uint8_t)last, (uint8_t)last, leaf[dfa->states[s].label]);
    }
    return compile_ok(build->c) ? state[0] : 0;
}

static void dfa_edge_hex(struct json_builder *builder, uint32_t from, int digit, uint32_t to)
{
    struct build *build = builder->b;

    if (digit < 10) {
        build_edge(build, from, (uint8_t)('0' + digit), (uint8_t)('0' + digit), to);
        return;
    }
    build_edge(build, from, (uint8_t)('a' + digit - 10), (uint8_t)('a' + digit - 10), to);
    if (!builder->once)
        build_edge(build, from, (uint8_t)('A' + digit - 10), (uint8_t)('A' + digit - 10), to);
}

static bool dfa_has_letter(int control)
{
    return control == '\b' || control == '\f' || control == '\n' || control == '\r' ||
           control == '\t';
}

/* "00" and two digits from `from`, each control to its target. */
static void dfa_build_hex(struct json_builder *builder, uint32_t from, const uint32_t *target)
{
    struct build *build = builder->b;
    uint32_t zero = build_text(build, from, "00", 2);
    uint32_t half[2] = {build_text(build, zero, "0", 1), build_text(build, zero, "1", 1)};
    int i;

    for (i = builder->once; i < 32 && compile_ok(build->c); i++)
        if (target[i] != NONE && !(builder->once && dfa_has_letter(i)))
            dfa_edge_hex(builder, half[i / 16], i % 16, target[i]);
}

/* The shared rule of dfa_build_hex() for when all controls lead to one state. */
static uint32_t dfa_shared_hex(struct json_builder *builder)
{
    uint32_t target[32];
    uint32_t end;
    int i;

    if (builder->hex == NONE) {
        end = build_end(builder->b);
        for (i = 0; i < 32; i++)
            target[i] = end;
        builder->hex = build_state(builder->b);
        dfa_build_hex(builder, builder->hex, target);
    }
    return builder->hex;
}

/* Escapes of one letter: what is written, what it stands for. */
static const uint8_t letters[][2] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                                     {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};

#define N_LETTERS (sizeof letters / sizeof letters[0])

static uint32_t dfa_build_escape(struct json_builder *builder, const uint32_t *target)
{
    struct build *build = builder->b;
    uint32_t at = build_state(build);
    bool same = true;
    bool any = false;
    size_t i;

    for (i = 0; i < N_LETTERS; i++)
        if (target[letters[i][1]] != NONE && !(builder->once && letters[i][0] == '/'))
            build_edge(build, at, letters[i][0], letters[i][0], target[letters[i][1]]);
    for (i = builder->once; i < 32; i++) {
        same = same && target[i] == target[31];
        any = any || target[i] != NONE;
    }
    if (!any)
        return at;
    if (same) {
        uint32_t hex = build_state(build);

        build_edge(build, at, 'u', 'u', hex);
        build_call(build, hex, dfa_shared_hex(builder), target[31]);
    } else {
        dfa_build_hex(builder, build_text(build, at, "u", 1), target);
    }
    return at;
}

/* The state behind a '\'; NONE when nothing of this state must be escaped. */
static uint32_t dfa_escape_of(struct json_builder *builder, uint32_t s)
{
    uint32_t target[128];
    uint32_t first = NONE;
    bool same = true;
    bool any = false;
    int i;

    for (i = 0; i < 128; i++) {
        uint32_t to = dfa_step(builder->d, s, (uint8_t)i);

        target[i] = to == NONE ? NONE : builder->state[to];
        if (i == 0 && builder->once)
            continue;
        if (i < 32 || i == '"' || i == '\\' || i == '/') {
            if (i == builder->once)
                first = to;
            same = same && to == first;
        }
        if (i < 32 || i == '"' || i == '\\')
            any = any || to != NONE;
    }
    if (!any)
        return NONE;
    if (!same)
        return dfa_build_escape(builder, target);
    if (builder->escape[first] == NONE)
        builder->escape[first] = dfa_build_escape(builder, target);
    return builder->escape[first];
}

/* A range of the dfa without what must be escaped. */
static void dfa_edge_plain(struct build *build, uint32_t from, int lo, int hi, uint32_t to)
{
    static const int cut[][2] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0xff}};
    size_t i;

    for (i = 0; i < 3; i++) {
        int l = lo > cut[i][0] ? lo : cut[i][0];
        int h = hi < cut[i][1] ? hi : cut[i][1];

        if (l <= h)
            build_edge(build, from, (uint8_t)l, (uint8_t)h, to);
    }
}

static uint32_t dfa_build_json_text(struct json_builder *how, const uint32_t *leaf)
{
    struct json_builder builder = *how;
    struct build *build = builder.b;
    const struct dfa *dfa = builder.d;
    uint32_t s, i;

    if (dfa == NULL || !compile_ok(build->c))
        return 0;
    builder.hex = NONE;
    builder.state = compile_alloc(build->c, (size_t)dfa->n_states * sizeof *builder.state);
    builder.escape = compile_alloc(build->c, (size_t)dfa->n_states * sizeof *builder.escape);
    for (s = 0; s < dfa->n_states && compile_ok(build->c); s++) {
        builder.state[s] = build_state(build);
        builder.escape[s] = NONE;
    }
    for (s = 0; s < dfa->n_states && compile_ok(build->c); s++) {
        uint32_t escape = dfa_escape_of(&builder, s);

        for (i = dfa->states[s].edge_at; i < dfa->states[s].edge_at + dfa->states[s].n_edges; i++)
            dfa_edge_plain(build, builder.state[s], dfa->edges[i].lo, dfa->edges[i].hi,
                           builder.state[dfa->edges[i].to]);
        if (escape != NONE)
            build_edge(build, builder.state[s], '\\', '\\', escape);
        if (dfa->states[s].label != 0 && leaf[dfa->states[s].label] != NONE)
            build_edge(build, builder.state[s], '"', '"', leaf[dfa->states[s].label]);
    }
    how->state = builder.state;
    return compile_ok(build->c) ? builder.state[0] : 0;
}

uint32_t dfa_build_json(struct build *build, const struct dfa *dfa, const uint32_t *leaf)
{
    struct json_builder builder = {.b = build, .d = dfa};

    return dfa_build_json_text(&builder, leaf);
}

uint32_t dfa_build_json_once(struct build *build, const struct dfa *dfa, const uint32_t *leaf)
{
    struct json_builder builder = {.b = build, .d = dfa, .once = true};

    return dfa_build_json_text(&builder, leaf);
}

/* --- counted ------------------------------------------------------------------------------ */

#define LEAST_MAX 250 /* so that a token's length and this are less than twice the longest token */

/* Between two characters? Bytes of continuation come only inside of one. */
static bool dfa_is_border(const struct dfa *dfa, uint32_t s)
{
    uint32_t at = dfa->states[s].edge_at;

    return dfa->states[s].n_edges == 0 || dfa->edges[at].lo < 0x80 || dfa->edges[at].lo > 0xbf;
}

static bool dfa_has_controls(const struct dfa *dfa)
{
    for (uint32_t i = 0; i < dfa->n_edges; i++)
        if (dfa->edges[i].lo < 0x20)
            return true;
    return false;
}

/* The characters that the way to the quote takes at least, from the states first .. last - 1, which
 * lead to each other and to the leaf alone. False when one has more than LEAST_MAX. */
static bool dfa_find_least(struct build *build, uint32_t first, uint32_t last, uint32_t leaf)
{
    bool changed = true;

    for (uint32_t s = first; s < last; s++)
        build->states.items[s].count = LEAST_MAX + 1;
    for (int pass = 0; changed && pass <= 2 * LEAST_MAX && compile_tick(build->c); pass++) {
        changed = false;
        for (uint32_t s = last; s-- > first && compile_tick(build->c);) {
            uint16_t least = build->states.items[s].count;

            for (uint32_t i = build->states.items[s].edges; i != NONE;
                 i = build->edges.items[i].next) {
                const struct build_state *to = &build->states.items[build->edges.items[i].to];
                uint16_t n =
                    build->edges.items[i].to == leaf ? 0 : (uint16_t)(to->count + to->whole);

                least = n < least ? n : least;
            }
            changed = changed || least != build->states.items[s].count;
            build->states.items[s].count = least;
        }
    }
    for (uint32_t s = first; s < last; s++)
        if (build->states.items[s].count > LEAST_MAX)
            return false;
    return true;
}

uint32_t dfa_build_json_counted(struct build *build, const struct dfa *dfa, uint32_t most)
{
    struct json_builder builder = {.b = build, .d = dfa};
    uint32_t end = build_end(build), first = build->states.n, start, last;
    const uint32_t leaf[2] = {NONE, end};

    if (dfa_has_controls(dfa))
        return NONE;
    start = dfa_build_json_text(&builder, leaf);
    last = build->states.n;
    if (!compile_ok(build->c))
        return 0;
    for (uint32_t s = 0; s < dfa->n_states; s++)
        build->states.items[builder.state[s]].whole = dfa_is_border(dfa, s);
    if (!dfa_find_least(build, first, last, end) || build->states.items[start].count > most)
        return NONE;
    for (uint32_t s = first; s < last; s++)
        build->states.items[s].counted = true;
    start = build_copy(build, start);
    if (compile_ok(build->c))
        build->states.items[start].count = (uint16_t)most;
    return start;
}
