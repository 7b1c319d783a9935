/* SPDX-License-Identifier: Apache-2.0
 *
 * Compositions: literal text around schemas, repeats, and free text that watches for triggers.
 *
 * Free text is bytes; it need not be UTF-8, because tokens may end inside of a character. Where
 * triggers are watched for, it is the automaton of Aho and Corasick: a state is the longest start
 * of a trigger that the text ends with. */
#include <string.h>

#include "grammar/regular.h"
#include "grammar/source.h"

#define DEPTH_MAX         30 /* parts inside each other: fewer than structure_name() looks at */
#define TRIGGERS_MAX      64
#define WATCH_MAX         128  /* triggers, and texts that end free text or may not be in it */
#define TRIGGER_BYTES_MAX 8192 /* of all these together */
#define COUNT_MAX         256  /* of repeats */

struct watch { /* a text that is watched for, and where it leads: DEAD, it may not be written */
    const char *text;
    size_t len;
    uint32_t leaf;
};

struct watches { /* of two that are alike the first counts */
    struct watch items[WATCH_MAX];
    uint32_t n;
};

struct node { /* of the tree of triggers */
    uint32_t child, sibling, fail, state;
    uint32_t leaf; /* NONE: no trigger ends here */
    uint8_t byte;
};

struct built { /* a schema that was built, and where it begins */
    const struct grammar_part *part;
    uint32_t start;
};

struct composer {
    struct build *b;
    enum grammar_space space;
    uint32_t end;
    LIST(struct built) built;
};

static uint32_t part_build(struct composer *p, const struct grammar_part *part, int depth);
static uint32_t triggers(struct composer *p, const struct grammar_part *part,
                         const struct grammar_part *stop, uint32_t leaf, int depth);

/* --- free text ---------------------------------------------------------------------------- */

static uint32_t child_of(const struct node *nodes, uint32_t at, uint8_t byte)
{
    uint32_t i;

    for (i = nodes[at].child; i != NONE; i = nodes[i].sibling)
        if (nodes[i].byte == byte)
            return i;
    return NONE;
}

/* The node after a byte: of the longest start that still fits. */
static uint32_t node_step(const struct node *nodes, uint32_t at, uint8_t byte)
{
    uint32_t next;

    for (;;) { /* fail links come nearer to the root */
        next = child_of(nodes, at, byte);
        if (next != NONE || at == 0)
            return next == NONE ? 0 : next;
        at = nodes[at].fail;
    }
}

static uint32_t nodes_fill(struct node *nodes, const struct watch *watch, uint32_t n_watch)
{
    uint32_t n = 1;
    uint32_t i;
    size_t k;

    nodes[0] = (struct node){.child = NONE, .sibling = NONE, .leaf = NONE};
    for (i = 0; i < n_watch; i++) {
        uint32_t at = 0;

        for (k = 0; k < watch[i].len; k++) {
            uint32_t next = child_of(nodes, at, (uint8_t)watch[i].text[k]);

            if (next == NONE) {
                next = n++;
                nodes[next] = (struct node){.child = NONE,
                                            .sibling = nodes[at].child,
                                            .leaf = NONE,
                                            .byte = (uint8_t)watch[i].text[k]};
                nodes[at].child = next;
            }
            at = next;
        }
        if (nodes[at].leaf == NONE)
            nodes[at].leaf = watch[i].leaf;
    }
    return n;
}

/* Fail links, breadth first: `order` has room for all nodes. A trigger inside of another one that
 * ends first wins, so its leaf is handed on. */
static void nodes_link(struct node *nodes, uint32_t *order)
{
    uint32_t n = 0;
    uint32_t at, i;

    order[n++] = 0;
    for (at = 0; at < n; at++)
        for (i = nodes[order[at]].child; i != NONE; i = nodes[i].sibling) {
            if (order[at] != 0)
                nodes[i].fail = node_step(nodes, nodes[order[at]].fail, nodes[i].byte);
            if (nodes[i].leaf == NONE)
                nodes[i].leaf = nodes[nodes[i].fail].leaf;
            order[n++] = i;
        }
}

static void watch_add(struct composer *p, struct watches *w, const struct grammar_part *text,
                      uint32_t leaf)
{
    if (w->n == WATCH_MAX) {
        compile_fail(p->b->c, ERR_LIMIT, "more than %d texts to watch for", WATCH_MAX);
        return;
    }
    if (text->kind != PART_TEXT || text->len == 0) {
        compile_fail(p->b->c, ERR_INVALID, "a text to watch for is empty");
        return;
    }
    w->items[w->n++] = (struct watch){text->text, text->len, leaf};
}

/* What a part of free text may not hold. */
static void watch_never(struct composer *p, struct watches *w, const struct grammar_part *part)
{
    for (size_t i = 0; i < part->n_never && compile_ok(p->b->c); i++)
        watch_add(p, w, &part->never[i], DEAD);
}

/* The edges of one node: runs of bytes that lead alike. */
static void node_build(struct build *b, const struct node *nodes, uint32_t at)
{
    int first = 0;

    for (int byte = 1; byte <= 256; byte++) {
        uint32_t to = node_step(nodes, at, (uint8_t)first);
        uint32_t leaf = nodes[to].leaf;

        if (byte < 256 && node_step(nodes, at, (uint8_t)byte) == to)
            continue;
        if (leaf != DEAD)
            build_edge(b, nodes[at].state, (uint8_t)first, (uint8_t)(byte - 1),
                       leaf != NONE ? leaf : nodes[to].state);
        first = byte;
    }
}

/* Free text from a new state; may it end at any place? */
static uint32_t free_text(struct composer *p, const struct watches *w, bool ends)
{
    struct build *b = p->b;
    size_t bytes = 1;
    struct node *nodes;
    uint32_t *order;
    uint32_t n, i;

    for (i = 0; i < w->n; i++)
        bytes += w->items[i].len;
    if (bytes > TRIGGER_BYTES_MAX)
        compile_fail(b->c, ERR_LIMIT, "triggers of more than %d bytes", TRIGGER_BYTES_MAX);
    nodes = compile_alloc(b->c, bytes * sizeof *nodes);
    order = compile_alloc(b->c, bytes * sizeof *order);
    if (!compile_ok(b->c))
        return 0;
    n = nodes_fill(nodes, w->items, w->n);
    nodes_link(nodes, order);
    for (i = 0; i < n; i++)
        nodes[i].state = ends ? build_end(b) : build_state(b);
    for (i = 0; i < n && compile_tick(b->c); i++)
        if (nodes[i].leaf == NONE) /* else never reached as a state: the leaf is */
            node_build(b, nodes, i);
    return nodes[0].state;
}

/* --- sequences ---------------------------------------------------------------------------- */

/* Does this part end the free text before it? One text, or a choice of texts. */
static bool is_stop(const struct grammar_part *part)
{
    if (part->kind != PART_CHOICE || part->n_parts == 0)
        return part->kind == PART_TEXT;
    for (size_t i = 0; i < part->n_parts; i++)
        if (part->parts[i].kind != PART_TEXT)
            return false;
    return true;
}

static void watch_stop(struct composer *p, struct watches *w, const struct grammar_part *stop,
                       uint32_t leaf)
{
    if (stop->kind == PART_TEXT)
        watch_add(p, w, stop, leaf);
    for (size_t i = 0; stop->kind == PART_CHOICE && i < stop->n_parts; i++)
        watch_add(p, w, &stop->parts[i], leaf);
}

/* Free text up to a stop, behind which it goes on in `leaf`; to the end when stop is NULL. */
static uint32_t free_part(struct composer *p, const struct grammar_part *part,
                          const struct grammar_part *stop, uint32_t leaf)
{
    struct watches w = {.n = 0};

    if (stop != NULL)
        watch_stop(p, &w, stop, leaf);
    watch_never(p, &w, part);
    return free_text(p, &w, stop == NULL);
}

/* The parts one after another, from a state to another. */
static void sequence(struct composer *p, const struct grammar_part *parts, size_t n, uint32_t from,
                     uint32_t to, int depth)
{
    struct build *b = p->b;
    size_t i;

    for (i = 0; i < n && compile_tick(b->c); i++) {
        uint32_t next = i + 1 < n ? build_state(b) : to;

        if (parts[i].kind == PART_TEXT) {
            build_jump(b, build_text(b, from, parts[i].text, parts[i].len), next);
        } else if ((parts[i].kind == PART_FREE || parts[i].kind == PART_TRIGGERS) && i + 1 < n &&
                   is_stop(&parts[i + 1])) {
            const struct grammar_part *part = &parts[i++];

            next = i + 1 < n ? build_state(b) : to;
            build_jump(b, from,
                       part->kind == PART_FREE ? free_part(p, part, &parts[i], next)
                                               : triggers(p, part, &parts[i], next, depth + 1));
        } else if (parts[i].kind == PART_FREE && i + 1 < n) {
            compile_fail(b->c, ERR_INVALID, "free text must be followed by a text, or be the last");
        } else {
            build_call(b, from, part_build(p, &parts[i], depth + 1), next);
        }
        from = next;
    }
    if (n == 0)
        build_jump(b, from, to);
}

static uint32_t sequence_rule(struct composer *p, const struct grammar_part *parts, size_t n,
                              int depth)
{
    uint32_t start = build_state(p->b);

    sequence(p, parts, n, start, p->end, depth);
    return start;
}

static uint32_t choice(struct composer *p, const struct grammar_part *part, int depth)
{
    uint32_t start = build_state(p->b);
    size_t i;

    for (i = 0; i < part->n_parts && compile_tick(p->b->c); i++)
        build_jump(p->b, start, part_build(p, &part->parts[i], depth + 1));
    return start;
}

/* min to max times; all times are calls of one rule. */
static uint32_t repeat(struct composer *p, const struct grammar_part *part, int depth)
{
    struct build *b = p->b;
    uint32_t rule = sequence_rule(p, part->parts, part->n_parts, depth + 1);
    uint32_t n = part->max == NONE ? part->min : part->max;
    uint32_t start = build_state(b);
    uint32_t at = start;
    uint32_t i;

    if (n > COUNT_MAX || part->max < part->min) {
        compile_fail(b->c, ERR_LIMIT, "a repeat of %u to %u: at most %d", part->min, part->max,
                     COUNT_MAX);
        return 0;
    }
    for (i = 0; compile_tick(b->c); i++) {
        bool again = part->max == NONE && i >= n && i > 0;
        uint32_t begin = build_state(b);
        uint32_t next = again ? at : build_state(b);

        if (i >= part->min)
            b->states.items[at].end = true;
        if (part->max != NONE && i >= part->max)
            break;
        if (i > 0 && part->len > 0)
            build_jump(b, build_text(b, at, part->text, part->len), begin);
        else
            build_jump(b, at, begin);
        build_call(b, begin, rule, next);
        if (again)
            break;
        at = next;
    }
    return start;
}

/* Texts of a stop, one of which must come now. */
static uint32_t stop_build(struct composer *p, const struct grammar_part *stop, uint32_t leaf)
{
    struct build *b = p->b;
    uint32_t start = build_state(b);
    struct watches w = {.n = 0};

    watch_stop(p, &w, stop, leaf);
    for (uint32_t i = 0; i < w.n && compile_ok(b->c); i++) {
        uint32_t own = build_state(b);

        build_jump(b, build_text(b, own, w.items[i].text, w.items[i].len), leaf);
        build_jump(b, start, own);
    }
    return start;
}

/* stop NULL: it ends anywhere, or behind the last. */
static uint32_t triggers(struct composer *p, const struct grammar_part *part,
                         const struct grammar_part *stop, uint32_t leaf, int depth)
{
    struct build *b = p->b;
    uint32_t rest[TRIGGERS_MAX];
    uint32_t n = part->max == NONE ? part->min : part->max;
    uint32_t next, i, layer;

    if (n > COUNT_MAX || part->n_parts > TRIGGERS_MAX || part->n_parts == 0 ||
        part->max < part->min || part->max == 0) {
        compile_fail(b->c, ERR_LIMIT, "triggers: 1 to %d of them, at most %d times", TRIGGERS_MAX,
                     COUNT_MAX);
        return 0;
    }
    for (i = 0; i < part->n_parts && compile_tick(b->c); i++) {
        const struct grammar_part *s = &part->parts[i];

        if (s->kind != PART_SEQUENCE || s->n_parts == 0 || s->parts[0].kind != PART_TEXT) {
            compile_fail(b->c, ERR_INVALID, "a trigger must be a sequence that begins with a text");
            return 0;
        }
        rest[i] = sequence_rule(p, s->parts + 1, s->n_parts - 1, depth + 1);
    }
    if (part->max == NONE)
        next = build_state(b);
    else
        next = stop == NULL ? p->end : stop_build(p, stop, leaf);
    for (layer = part->max == NONE ? n + 1 : n; layer-- > 0 && compile_tick(b->c);) {
        struct watches w = {.n = 0};
        uint32_t start;

        if (stop != NULL)
            watch_stop(p, &w, stop, layer >= part->min ? leaf : DEAD);
        for (i = 0; i < part->n_parts; i++) {
            uint32_t begin = build_state(b);

            build_call(b, begin, rest[i], next);
            watch_add(p, &w, &part->parts[i].parts[0], begin);
        }
        watch_never(p, &w, part);
        start = free_text(p, &w, stop == NULL && layer >= part->min);
        if (part->max == NONE && layer == n) /* the layer that leads to itself */
            build_jump(b, next, start);
        next = start;
    }
    return next;
}

static uint32_t text_rule(struct composer *p, const struct grammar_part *part)
{
    uint32_t start = build_state(p->b);

    build_word(p->b, start, part->text, part->len);
    return start;
}

static bool same_text(const struct grammar_part *a, const struct grammar_part *b)
{
    return a->kind == b->kind && a->len == b->len &&
           (a->len == 0 || memcmp(a->text, b->text, a->len) == 0);
}

/* Schemas that are alike are built once: parameters of tools often are. */
static uint32_t schema_once(struct composer *p, const struct grammar_part *part)
{
    uint32_t start, i;

    for (i = 0; i < p->built.n; i++) {
        const struct grammar_part *other = p->built.items[i].part;

        if (same_text(part, other) && part->n_parts == other->n_parts &&
            (part->n_parts == 0 || same_text(&part->parts[0], &other->parts[0])))
            return p->built.items[i].start;
    }
    start = schema_part_build(p->b, part, p->space);
    if (LIST_ADD(p->b->c, &p->built))
        p->built.items[p->built.n - 1] = (struct built){part, start};
    return start;
}

static bool both_match(const void *arg, uint32_t mask)
{
    (void)arg;
    return mask == 3;
}

/* A pattern, and a second one that the text must match as well. */
static uint32_t pattern_part(struct composer *p, const struct grammar_part *part)
{
    struct compile *c = p->b->c;
    const struct grammar_part *also = part->parts;
    const struct dfa *both[2];
    const struct dfa *d;

    if (part->n_parts == 0)
        return pattern_build(p->b, part->text, part->len);
    both[0] = regex_whole(c, part->text, part->len);
    both[1] = compile_ok(c) ? regex_whole(c, also->text, also->len) : NULL;
    d = compile_ok(c) ? dfa_side_by_side(c, both, 2, 0, NONE, both_match, NULL) : NULL;
    if (compile_ok(c) && d->states[0].label == 0 && d->states[0].n_edges == 0)
        compile_fail(c, ERR_INVALID, "all that matches would be taken for a call or an end");
    return compile_ok(c) ? dfa_build(p->b, d, -1, NULL) : 0;
}

static uint32_t part_build(struct composer *p, const struct grammar_part *part, int depth)
{
    static const char object[] = "{\"type\":\"object\"}";

    if (depth > DEPTH_MAX)
        compile_fail(p->b->c, ERR_LIMIT, "parts are nested more than %d deep", DEPTH_MAX);
    if (!compile_tick(p->b->c))
        return 0;
    switch (part->kind) {
    case PART_TEXT: return text_rule(p, part);
    case PART_SCHEMA:
    case PART_STRING: return schema_once(p, part);
    case PART_OBJECT: return schema_build(p->b, object, sizeof object - 1, p->space);
    case PART_REGEX: return pattern_part(p, part);
    case PART_EBNF: return ebnf_build(p->b, part->text, part->len);
    case PART_FREE: return free_part(p, part, NULL, NONE);
    case PART_SEQUENCE: return sequence_rule(p, part->parts, part->n_parts, depth);
    case PART_CHOICE: return choice(p, part, depth);
    case PART_REPEAT: return repeat(p, part, depth);
    case PART_TRIGGERS: return triggers(p, part, NULL, NONE, depth);
    }
    return 0;
}

uint32_t parts_build(struct build *b, const struct grammar_part *parts, size_t n,
                     enum grammar_space space)
{
    struct composer p = {.b = b, .space = space, .end = build_end(b)};

    if (n == 0)
        compile_fail(b->c, ERR_INVALID, "a composition of no parts");
    return sequence_rule(&p, parts, n, 0);
}
