/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns a dfa into states of the automaton: as raw bytes, or as the inside of a JSON string, in
 * which some characters have several spellings:
 *
 *     line feed   \n  \u000a  \u000A        '/'   /  \/        '"'   \"  \u0022 is not accepted */
#include <string.h>

#include "base/must.h"
#include "grammar/dfa.h"

struct json_builder {
    struct build *b;
    const struct dfa *d;
    uint32_t *state;  /* [n_states] of the automaton */
    uint32_t *escape; /* [n_states]: the state after '\' if all escapes lead to that state; NONE */
    bool once;        /* one spelling per text: no "\/", no \u where a letter exists, and no U+0000,
                       * which few JSON readers accept */
    uint32_t hex;     /* the rule for the four digits after "\u" of a control; NONE: not built */
};

/* Copy a dfa into the automaton as raw bytes. States must exist before the edges that lead to them,
 * hence the two loops. A state with a label ends the automaton, or with `last` leads over that byte
 * to the leaf of its label. */
uint32_t dfa_build(struct build *build, const struct dfa *dfa, int last, const uint32_t *leaf)
{
    uint32_t *state;
    uint32_t state_idx, i;

    must(last < 256 && (last < 0 || leaf != NULL));
    if (dfa == NULL || !compile_ok(build->c))
        return 0;
    state = compile_alloc(build->c, (size_t)dfa->n_states * sizeof *state);
    /* All states first, because an edge may lead to a later one. */
    for (state_idx = 0; state_idx < dfa->n_states && compile_ok(build->c); state_idx++)
        state[state_idx] = build_state(build);
    /* Edges keep their ranges, and their targets are looked up in the array of new states. */
    for (state_idx = 0; state_idx < dfa->n_states && compile_ok(build->c); state_idx++) {
        for (i = dfa->states[state_idx].edge_at;
             i < dfa->states[state_idx].edge_at + dfa->states[state_idx].n_edges; i++)
            build_edge(build, state[state_idx], dfa->edges[i].lo, dfa->edges[i].hi,
                       state[dfa->edges[i].to]);
        /* Label 0: a text that ends here is not in the language. */
        if (dfa->states[state_idx].label == 0)
            continue;
        /* Without `last` the end of the text is the end of the automaton. With it, for example
         * the closing quote of a string, the text goes on after it. */
        if (last < 0)
            build->states.items[state[state_idx]].end = true;
        else if (leaf[dfa->states[state_idx].label] != NONE)
            build_edge(build, state[state_idx], (uint8_t)last, (uint8_t)last,
                       leaf[dfa->states[state_idx].label]);
    }
    if (compile_ok(build->c))
        return state[0];
    return 0;
}

/* An edge for a hexadecimal digit, in both cases unless only one spelling is wanted. */
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

/* Does JSON have an escape of one letter for this control? */
static bool dfa_has_letter(int control)
{
    return control == '\b' || control == '\f' || control == '\n' || control == '\r' ||
           control == '\t';
}

/* "00" and two digits from `from`; each control leads to its target. */
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

/* The digits as a rule that is shared by all states whose controls lead to one state. */
static uint32_t dfa_shared_hex(struct json_builder *builder)
{
    uint32_t target[32];
    uint32_t end;
    int i;

    /* The rule is made at its first use, and all later states call it: the digits after \u00 are
     * the same for each control character. */
    if (builder->hex == NONE) {
        end = build_end(builder->b);
        for (i = 0; i < 32; i++)
            target[i] = end;
        builder->hex = build_state(builder->b);
        dfa_build_hex(builder, builder->hex, target);
    }
    return builder->hex;
}

/* Escapes of one letter: the letter and the character it stands for. */
static const uint8_t letters[][2] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                                     {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};

#define N_LETTERS (sizeof letters / sizeof letters[0])

/* A state after '\', from which the escape of each character leads to target[character]. */
static uint32_t dfa_build_escape(struct json_builder *builder, const uint32_t *target)
{
    struct build *build = builder->b;
    uint32_t at = build_state(build);
    bool same = true;
    bool any = false;
    size_t i;

    /* Short escapes: \n, \t, \" and so on, each by its letter. */
    for (i = 0; i < N_LETTERS; i++)
        if (target[letters[i][1]] != NONE && !(builder->once && letters[i][0] == '/'))
            build_edge(build, at, letters[i][0], letters[i][0], target[letters[i][1]]);
    for (i = builder->once; i < 32; i++) {
        same = same && target[i] == target[31];
        any = any || target[i] != NONE;
    }
    if (!any)
        return at;
    /* If all controls lead to one state, the digits after \u are a rule that all such states
     * call. */
    if (same) {
        uint32_t hex = build_state(build);

        build_edge(build, at, 'u', 'u', hex);
        build_call(build, hex, dfa_shared_hex(builder), target[31]);
    } else {
        dfa_build_hex(builder, build_text(build, at, "u", 1), target);
    }
    return at;
}

/* The state after '\'; NONE when no character that must be escaped is possible here. States whose
 * escapes all lead to one state share it. */
static uint32_t dfa_escape_of(struct json_builder *builder, uint32_t s)
{
    uint32_t target[128];
    uint32_t first = NONE;
    bool same = true;
    bool any = false;
    int i;

    /* Collect the targets of all ASCII characters, and whether those that have an escape agree. */
    for (i = 0; i < 128; i++) {
        uint32_t to = dfa_step(builder->d, s, (uint8_t)i);

        if (to == NONE)
            target[i] = NONE;
        else
            target[i] = builder->state[to];
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

/* Edges for a range of bytes, without those that must be escaped. */
static void dfa_edge_plain(struct build *build, uint32_t from, int lo, int hi, uint32_t to)
{
    static const int cut[][2] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0xff}};
    size_t i;

    for (i = 0; i < 3; i++) {
        int first = lo > cut[i][0] ? lo : cut[i][0];
        int last = hi < cut[i][1] ? hi : cut[i][1];

        if (first <= last)
            build_edge(build, from, (uint8_t)first, (uint8_t)last, to);
    }
}

/* Build all states, their plain edges, their escapes, and the closing quotes. */
static uint32_t dfa_build_json_text(struct json_builder *how, const uint32_t *leaf)
{
    struct json_builder builder = *how;
    struct build *build = builder.b;
    const struct dfa *dfa = builder.d;
    uint32_t idx, i;

    if (dfa == NULL || !compile_ok(build->c))
        return 0;
    builder.hex = NONE;
    builder.state = compile_alloc(build->c, (size_t)dfa->n_states * sizeof *builder.state);
    builder.escape = compile_alloc(build->c, (size_t)dfa->n_states * sizeof *builder.escape);
    for (idx = 0; idx < dfa->n_states && compile_ok(build->c); idx++) {
        builder.state[idx] = build_state(build);
        builder.escape[idx] = NONE;
    }
    for (idx = 0; idx < dfa->n_states && compile_ok(build->c); idx++) {
        /* Bytes that may be written as they are keep their edges; those that must not are reached
         * through the escape alone. */
        uint32_t escape = dfa_escape_of(&builder, idx);

        for (i = dfa->states[idx].edge_at; i < dfa->states[idx].edge_at + dfa->states[idx].n_edges;
             i++)
            dfa_edge_plain(build, builder.state[idx], dfa->edges[i].lo, dfa->edges[i].hi,
                           builder.state[dfa->edges[i].to]);
        if (escape != NONE)
            build_edge(build, builder.state[idx], '\\', '\\', escape);
        if (dfa->states[idx].label != 0 && leaf[dfa->states[idx].label] != NONE)
            build_edge(build, builder.state[idx], '"', '"', leaf[dfa->states[idx].label]);
    }
    how->state = builder.state;
    if (compile_ok(build->c))
        return builder.state[0];
    return 0;
}

uint32_t dfa_build_json(struct build *build, const struct dfa *dfa, const uint32_t *leaf)
{
    struct json_builder builder = {.b = build, .d = dfa};

    must(leaf != NULL);
    return dfa_build_json_text(&builder, leaf);
}

uint32_t dfa_build_json_once(struct build *build, const struct dfa *dfa, const uint32_t *leaf)
{
    struct json_builder builder = {.b = build, .d = dfa, .once = true};

    must(leaf != NULL);
    return dfa_build_json_text(&builder, leaf);
}

/* --- counted ------------------------------------------------------------------------------ */

#define LEAST_MAX 250 /* keeps a token's length plus this below twice the longest token */

/* Is a state between two characters? Inside of one only continuation bytes are possible. */
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

/* Set the `count` of the states first .. last - 1: the least number of characters from there to the
 * quote, by relaxation until nothing changes. The states lead only to each other and to the leaf.
 * False when one needs more than LEAST_MAX. */
static bool dfa_find_least(struct build *build, uint32_t first, uint32_t last, uint32_t leaf)
{
    bool changed = true;

    for (uint32_t s = first; s < last; s++)
        build->states.items[s].count = LEAST_MAX + 1;
    for (int pass = 0; changed && pass <= 2 * LEAST_MAX && compile_tick(build->c); pass++) {
        changed = false;
        /* Backward, because states are made from the start on: most targets then have their value
         * already, and few passes are needed. */
        for (uint32_t s = last; s-- > first && compile_tick(build->c);) {
            uint16_t least = build->states.items[s].count;

            for (uint32_t i = build->states.items[s].edges; i != NONE;
                 i = build->edges.items[i].next) {
                const struct build_state *to = &build->states.items[build->edges.items[i].to];
                uint16_t n =
                    build->edges.items[i].to == leaf ? 0 : (uint16_t)(to->count + to->whole);

                if (n < least)
                    least = n;
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

    must(most >= 1 && most <= 65000);
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
    /* The entry is a copy, because only it carries the count: a state inside of the string must not
     * restart it. */
    start = build_copy(build, start);
    if (compile_ok(build->c))
        build->states.items[start].count = (uint16_t)most;
    return start;
}
