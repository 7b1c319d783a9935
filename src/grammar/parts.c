/* SPDX-License-Identifier: Apache-2.0
 *
 * Compositions: literal text around schemas, repeats, and free text that watches for triggers.
 *
 *     free text ... <tool_call> {"name": ...} </tool_call> free text ...
 *
 * Free text is bytes and need not be valid UTF-8, because tokens may end inside of a character. The
 * automaton that watches for triggers is that of Aho and Corasick: a state is the longest prefix of
 * a trigger that the text ends with. */
#include <string.h>

#include "base/must.h"
#include "grammar/regular.h"
#include "grammar/source.h"

#define PARTS_DEPTH_MAX   30 /* nesting of parts, which bounds the recursion */
#define TRIGGERS_MAX      64
#define WATCH_MAX         128  /* texts: triggers, ends of free text, and forbidden ones */
#define TRIGGER_BYTES_MAX 8192 /* of all these together */
#define COUNT_MAX         256  /* repeats */

struct watch { /* a text to watch for, and the state after it; DEAD: it must not be written */
    const char *text;
    size_t len;
    uint32_t leaf;
};

struct watches { /* of equal texts the first one counts */
    struct watch items[WATCH_MAX];
    uint32_t n;
};

struct node { /* of the tree of watched texts */
    uint32_t child, sibling, fail, state;
    uint32_t leaf; /* NONE: no text ends here */
    uint8_t byte;
};

struct built { /* a schema that was built, and the state it begins in */
    const struct grammar_part *part;
    uint32_t start;
};

struct composer {
    struct build *b;
    enum grammar_space space;
    uint32_t end;
    LIST(struct built) built;
};

static uint32_t parts_part_build(struct composer *composer, const struct grammar_part *part,
                                 int depth);
static uint32_t parts_build_triggers(struct composer *composer, const struct grammar_part *part,
                                     const struct grammar_part *stop, uint32_t leaf, int depth);

/* --- free text ---------------------------------------------------------------------------- */

static uint32_t parts_child_of(const struct node *nodes, uint32_t at, uint8_t byte)
{
    uint32_t i;

    for (i = nodes[at].child; i != NONE; i = nodes[i].sibling)
        if (nodes[i].byte == byte)
            return i;
    return NONE;
}

/* The node after a byte: the longest prefix of a watched text that the text now ends with. */
static uint32_t parts_node_step(const struct node *nodes, uint32_t at, uint8_t byte)
{
    uint32_t next;

    for (;;) { /* each failure link leads closer to the root */
        next = parts_child_of(nodes, at, byte);
        if (next != NONE || at == 0) {
            if (next == NONE)
                return 0;
            return next;
        }
        at = nodes[at].fail;
    }
}

/* Build the tree of the watched texts. Returns the number of nodes. */
static uint32_t parts_nodes_fill(struct node *nodes, const struct watch *watch, uint32_t n_watch)
{
    uint32_t n = 1;
    uint32_t i;
    size_t k;

    nodes[0] = (struct node){.child = NONE, .sibling = NONE, .leaf = NONE};
    for (i = 0; i < n_watch; i++) {
        uint32_t at = 0;

        /* Follow the text from the root, and add the nodes that are missing. */
        for (k = 0; k < watch[i].len; k++) {
            uint32_t next = parts_child_of(nodes, at, (uint8_t)watch[i].text[k]);

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
        /* Of two equal texts the first one counts. */
        if (nodes[at].leaf == NONE)
            nodes[at].leaf = watch[i].leaf;
    }
    return n;
}

/* Set the failure links, breadth first. If a watched text ends inside of another one it is found
 * first, so its leaf is inherited. order has room for all nodes. */
static void parts_nodes_link(struct node *nodes, uint32_t *order)
{
    uint32_t n = 0;
    uint32_t at, i;

    /* Breadth first: the link of a node leads to a shorter text, whose own link is known by
     * then. */
    order[n++] = 0;
    for (at = 0; at < n; at++)
        for (i = nodes[order[at]].child; i != NONE; i = nodes[i].sibling) {
            /* Children of the root have the root as their link, which they were made with. All
             * others follow their parent's link by their byte. */
            if (order[at] != 0)
                nodes[i].fail = parts_node_step(nodes, nodes[order[at]].fail, nodes[i].byte);
            /* A shorter watched text that ends here ends inside of the longer one. "ab" is found
             * within "xabc" before the longer text is complete. */
            if (nodes[i].leaf == NONE)
                nodes[i].leaf = nodes[nodes[i].fail].leaf;
            order[n++] = i;
        }
}

/* Add a text to watch for. When it has been generated, the automaton continues at `leaf`. */
static void parts_watch_add(struct composer *composer, struct watches *watches,
                            const struct grammar_part *text, uint32_t leaf)
{
    if (watches->n == WATCH_MAX) {
        compile_fail(composer->b->c, ERR_LIMIT, "more than %d texts to watch for", WATCH_MAX);
        return;
    }
    if (text->kind != PART_TEXT || text->len == 0) {
        compile_fail(composer->b->c, ERR_INVALID, "a text to watch for is empty");
        return;
    }
    watches->items[watches->n++] = (struct watch){text->text, text->len, leaf};
}

/* Watch for the texts that a part's free text must not contain. */
static void parts_watch_never(struct composer *composer, struct watches *watches,
                              const struct grammar_part *part)
{
    for (size_t i = 0; i < part->n_never && compile_ok(composer->b->c); i++)
        parts_watch_add(composer, watches, &part->never[i], DEAD);
}

/* Build the edges of one node: ranges of bytes with the same target. */
static void parts_node_build(struct build *build, const struct node *nodes, uint32_t at)
{
    int first = 0;

    /* One pass more than there are bytes closes the last range. [first, byte) are bytes with the
     * same target. */
    for (int byte = 1; byte <= 256; byte++) {
        uint32_t to = parts_node_step(nodes, at, (uint8_t)first);
        uint32_t leaf = nodes[to].leaf;

        if (byte < 256 && parts_node_step(nodes, at, (uint8_t)byte) == to)
            continue;
        /* At a leaf the watched text is complete, and the automaton goes on with the text after
         * it. DEAD: the text is forbidden. */
        if (leaf != DEAD)
            build_edge(build, nodes[at].state, (uint8_t)first, (uint8_t)(byte - 1),
                       leaf != NONE ? leaf : nodes[to].state);
        first = byte;
    }
}

/* Build free text from a new state. ends: may it end anywhere? */
static uint32_t parts_free_text(struct composer *composer, const struct watches *watches, bool ends)
{
    struct build *build = composer->b;
    size_t bytes = 1;
    struct node *nodes;
    uint32_t *order;
    uint32_t n, i;

    for (i = 0; i < watches->n; i++)
        bytes += watches->items[i].len;
    if (bytes > TRIGGER_BYTES_MAX)
        compile_fail(build->c, ERR_LIMIT, "triggers of more than %d bytes", TRIGGER_BYTES_MAX);
    nodes = compile_alloc(build->c, bytes * sizeof *nodes);
    order = compile_alloc(build->c, bytes * sizeof *order);
    if (!compile_ok(build->c))
        return 0;
    n = parts_nodes_fill(nodes, watches->items, watches->n);
    parts_nodes_link(nodes, order);
    for (i = 0; i < n; i++) {
        if (ends)
            nodes[i].state = build_end(build);
        else
            nodes[i].state = build_state(build);
    }
    for (i = 0; i < n && compile_tick(build->c); i++)
        if (nodes[i].leaf == NONE) /* other nodes are replaced by their leaf */
            parts_node_build(build, nodes, i);
    return nodes[0].state;
}

/* --- sequences ---------------------------------------------------------------------------- */

/* Does this part end the free text before it? It must be a text, or a choice of texts. */
static bool parts_is_stop(const struct grammar_part *part)
{
    if (part->kind != PART_CHOICE || part->n_parts == 0)
        return part->kind == PART_TEXT;
    for (size_t i = 0; i < part->n_parts; i++)
        if (part->parts[i].kind != PART_TEXT)
            return false;
    return true;
}

static void parts_watch_stop(struct composer *composer, struct watches *watches,
                             const struct grammar_part *stop, uint32_t leaf)
{
    if (stop->kind == PART_TEXT)
        parts_watch_add(composer, watches, stop, leaf);
    for (size_t i = 0; stop->kind == PART_CHOICE && i < stop->n_parts; i++)
        parts_watch_add(composer, watches, &stop->parts[i], leaf);
}

/* Free text up to a stop, after which it continues in `leaf`; without a stop to the end. */
static uint32_t parts_free_part(struct composer *composer, const struct grammar_part *part,
                                const struct grammar_part *stop, uint32_t leaf)
{
    struct watches watches = {.n = 0};

    if (stop != NULL)
        parts_watch_stop(composer, &watches, stop, leaf);
    parts_watch_never(composer, &watches, part);
    return parts_free_text(composer, &watches, stop == NULL);
}

/* Parts one after another, from one state to another. Free text and the part that ends it are built
 * together. */
static void parts_build_sequence(struct composer *composer, const struct grammar_part *parts,
                                 size_t n, uint32_t from, uint32_t to, int depth)
{
    struct build *build = composer->b;
    size_t i;

    for (i = 0; i < n && compile_tick(build->c); i++) {
        uint32_t next = i + 1 < n ? build_state(build) : to;

        /* Texts are states of their own; other parts are rules, which are called. Free text is
         * neither: it must know the text that ends it, and is built together with the part after
         * it. */
        if (parts[i].kind == PART_TEXT) {
            build_jump(build, build_text(build, from, parts[i].text, parts[i].len), next);
        } else if ((parts[i].kind == PART_FREE || parts[i].kind == PART_TRIGGERS) && i + 1 < n &&
                   parts_is_stop(&parts[i + 1])) {
            const struct grammar_part *part = &parts[i++];

            if (i + 1 < n)
                next = build_state(build);
            else
                next = to;
            build_jump(build, from,
                       part->kind == PART_FREE
                           ? parts_free_part(composer, part, &parts[i], next)
                           : parts_build_triggers(composer, part, &parts[i], next, depth + 1));
        } else if (parts[i].kind == PART_FREE && i + 1 < n) {
            compile_fail(build->c, ERR_INVALID,
                         "free text must be followed by a text, or be the last");
        } else {
            build_call(build, from, parts_part_build(composer, &parts[i], depth + 1), next);
        }
        from = next;
    }
    if (n == 0)
        build_jump(build, from, to);
}

static uint32_t parts_sequence_rule(struct composer *composer, const struct grammar_part *parts,
                                    size_t n, int depth)
{
    uint32_t start = build_state(composer->b);

    parts_build_sequence(composer, parts, n, start, composer->end, depth);
    return start;
}

static uint32_t parts_build_choice(struct composer *composer, const struct grammar_part *part,
                                   int depth)
{
    uint32_t start = build_state(composer->b);
    size_t i;

    for (i = 0; i < part->n_parts && compile_tick(composer->b->c); i++)
        build_jump(composer->b, start, parts_part_build(composer, &part->parts[i], depth + 1));
    return start;
}

/* A repeat. All repetitions are calls of one rule, so states grow with the number, not with the
 * rule. */
static uint32_t parts_build_repeated(struct composer *composer, const struct grammar_part *part,
                                     int depth)
{
    struct build *build = composer->b;
    uint32_t rule = parts_sequence_rule(composer, part->parts, part->n_parts, depth + 1);
    uint32_t n = part->max == NONE ? part->min : part->max;
    uint32_t start = build_state(build);
    uint32_t at = start;
    uint32_t i;

    if (n > COUNT_MAX || part->max < part->min) {
        compile_fail(build->c, ERR_LIMIT, "a repeat of %u to %u: at most %d", part->min, part->max,
                     COUNT_MAX);
        return 0;
    }
    /* Repetition i begins in the state `at`, which may be an end if enough repetitions came before.
     * With a maximum the chain ends after it; without, the last repetition leads back to its own
     * begin:
     *
     *     min 1, no maximum:   start --rule--> at --separator, rule--> at */
    for (i = 0; compile_tick(build->c); i++) {
        bool again = part->max == NONE && i >= n && i > 0;
        uint32_t begin = build_state(build);
        uint32_t next = again ? at : build_state(build);

        if (i >= part->min)
            build->states.items[at].end = true;
        if (part->max != NONE && i >= part->max)
            break;
        if (i > 0 && part->len > 0)
            build_jump(build, build_text(build, at, part->text, part->len), begin);
        else
            build_jump(build, at, begin);
        build_call(build, begin, rule, next);
        if (again)
            break;
        at = next;
    }
    return start;
}

/* One of the texts of a stop, which must come next. */
static uint32_t parts_stop_build(struct composer *composer, const struct grammar_part *stop,
                                 uint32_t leaf)
{
    struct build *build = composer->b;
    uint32_t start = build_state(build);
    struct watches watches = {.n = 0};

    parts_watch_stop(composer, &watches, stop, leaf);
    /* The alternatives may begin with the same bytes, so each has a state of its own, reached by
     * a call. */
    for (uint32_t i = 0; i < watches.n && compile_ok(build->c); i++) {
        uint32_t own = build_state(build);

        /* After its bytes each alternative continues at the leaf. */
        build_jump(build, build_text(build, own, watches.items[i].text, watches.items[i].len),
                   leaf);
        build_jump(build, start, own);
    }
    return start;
}

/* Free text with triggers. A layer is the free text after some number of triggers; layers are built
 * from the last to the first, because each trigger leads to the next layer. Without a maximum the
 * last layer leads to itself. stop NULL: the text ends anywhere, or after the last trigger. */
static uint32_t parts_build_triggers(struct composer *composer, const struct grammar_part *part,
                                     const struct grammar_part *stop, uint32_t leaf, int depth)
{
    struct build *build = composer->b;
    uint32_t rest[TRIGGERS_MAX];
    uint32_t n = part->max == NONE ? part->min : part->max;
    uint32_t next, i, layer;

    if (n > COUNT_MAX || part->n_parts > TRIGGERS_MAX || part->n_parts == 0 ||
        part->max < part->min || part->max == 0) {
        compile_fail(build->c, ERR_LIMIT, "triggers: 1 to %d of them, at most %d times",
                     TRIGGERS_MAX, COUNT_MAX);
        return 0;
    }
    for (i = 0; i < part->n_parts && compile_tick(build->c); i++) {
        const struct grammar_part *sequence = &part->parts[i];

        if (sequence->kind != PART_SEQUENCE || sequence->n_parts == 0 ||
            sequence->parts[0].kind != PART_TEXT) {
            compile_fail(build->c, ERR_INVALID,
                         "a trigger must be a sequence that begins with a text");
            return 0;
        }
        rest[i] =
            parts_sequence_rule(composer, sequence->parts + 1, sequence->n_parts - 1, depth + 1);
    }
    if (part->max == NONE)
        next = build_state(build);
    else {
        if (stop == NULL)
            next = composer->end;
        else
            next = parts_stop_build(composer, stop, leaf);
    }
    for (layer = part->max == NONE ? n + 1 : n; layer-- > 0 && compile_tick(build->c);) {
        struct watches watches = {.n = 0};
        uint32_t start;

        if (stop != NULL)
            parts_watch_stop(composer, &watches, stop, layer >= part->min ? leaf : DEAD);
        for (i = 0; i < part->n_parts; i++) {
            uint32_t begin = build_state(build);

            build_call(build, begin, rest[i], next);
            parts_watch_add(composer, &watches, &part->parts[i].parts[0], begin);
        }
        parts_watch_never(composer, &watches, part);
        start = parts_free_text(composer, &watches, stop == NULL && layer >= part->min);
        if (part->max == NONE && layer == n) /* the layer that leads to itself */
            build_jump(build, next, start);
        next = start;
    }
    return next;
}

static uint32_t parts_text_rule(struct composer *composer, const struct grammar_part *part)
{
    uint32_t start = build_state(composer->b);

    build_word(composer->b, start, part->text, part->len);
    return start;
}

static bool parts_same_text(const struct grammar_part *a, const struct grammar_part *b)
{
    return a->kind == b->kind && a->len == b->len &&
           (a->len == 0 || memcmp(a->text, b->text, a->len) == 0);
}

/* Build equal schemas once: the parameters of tools are often equal. */
static uint32_t parts_schema_once(struct composer *composer, const struct grammar_part *part)
{
    uint32_t start, i;

    /* A linear search: requests have tens of tools, not thousands. */
    for (i = 0; i < composer->built.n; i++) {
        const struct grammar_part *other = composer->built.items[i].part;

        /* Schemas are compared as text, with the part within them if there is one. Equal ones
         * that are written differently are built twice, which is harmless. */
        if (parts_same_text(part, other) && part->n_parts == other->n_parts &&
            (part->n_parts == 0 || parts_same_text(&part->parts[0], &other->parts[0])))
            return composer->built.items[i].start;
    }
    start = schema_part_build(composer->b, part, composer->space);
    if (LIST_ADD(composer->b->c, &composer->built))
        composer->built.items[composer->built.n - 1] = (struct built){part, start};
    return start;
}

static bool parts_both_match(const void *arg, uint32_t mask)
{
    (void)arg;
    return mask == 3;
}

/* A pattern, possibly with a second one that the text must match as well. */
static uint32_t parts_pattern_part(struct composer *composer, const struct grammar_part *part)
{
    struct compile *compile = composer->b->c;
    const struct grammar_part *also = part->parts;
    const struct dfa *both[2];
    const struct dfa *dfa;

    if (part->n_parts == 0)
        return grammar_build_pattern(composer->b, part->text, part->len);
    both[0] = regex_whole(compile, part->text, part->len);
    if (compile_ok(compile))
        both[1] = regex_whole(compile, also->text, also->len);
    else
        both[1] = NULL;
    if (compile_ok(compile))
        dfa = dfa_side_by_side(
            compile, &(struct dfa_product){
                         .parts = both, .n = 2, .max_len = NONE, .keep = parts_both_match});
    else
        dfa = NULL;
    /* The intersection is empty: its automaton is a single state that is no end. */
    if (compile_ok(compile) && dfa->states[0].label == 0 && dfa->states[0].n_edges == 0)
        compile_fail(compile, ERR_INVALID, "all that matches would be taken for a call or an end");
    if (compile_ok(compile))
        return dfa_build(composer->b, dfa, -1, NULL);
    return 0;
}

/* Build any part as a rule, and return the state it begins in. */
static uint32_t parts_part_build(struct composer *composer, const struct grammar_part *part,
                                 int depth)
{
    static const char object[] = "{\"type\":\"object\"}";

    /* The depth is the client's: without a limit, nested parts could exhaust the stack. */
    if (depth > PARTS_DEPTH_MAX)
        compile_fail(composer->b->c, ERR_LIMIT, "parts are nested more than %d deep",
                     PARTS_DEPTH_MAX);
    if (!compile_tick(composer->b->c))
        return 0;
    /* Parts that are texts of grammars are compiled by the front end of their kind; the others
     * are composed here from their own parts. */
    switch (part->kind) {
    case PART_TEXT: return parts_text_rule(composer, part);
    case PART_SCHEMA:
    case PART_STRING: return parts_schema_once(composer, part);
    case PART_OBJECT: return schema_build(composer->b, object, sizeof object - 1, composer->space);
    case PART_REGEX: return parts_pattern_part(composer, part);
    case PART_EBNF: return ebnf_build(composer->b, part->text, part->len);
    case PART_FREE: return parts_free_part(composer, part, NULL, NONE);
    case PART_SEQUENCE: return parts_sequence_rule(composer, part->parts, part->n_parts, depth);
    case PART_CHOICE: return parts_build_choice(composer, part, depth);
    case PART_REPEAT: return parts_build_repeated(composer, part, depth);
    case PART_TRIGGERS: return parts_build_triggers(composer, part, NULL, NONE, depth);
    }
    return 0;
}

uint32_t parts_build(struct build *build, const struct grammar_part *parts, size_t n,
                     enum grammar_space space)
{
    struct composer composer = {.b = build, .space = space, .end = build_end(build)};

    must(parts != NULL || n == 0);
    if (n == 0)
        compile_fail(build->c, ERR_INVALID, "a composition of no parts");
    return parts_sequence_rule(&composer, parts, n, 0);
}
