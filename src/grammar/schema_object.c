/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects. Known names come in their order, then open ones (additional, or matching a pattern).
 *
 * A position is how many known names are behind us; with min/maxProperties and with members that
 * must exist somewhere there is a layer of positions for each count and each set of what was found.
 * Behind the opening quote of a name stands a tree of the names that may come: at position i those
 * from i up to the next required one, and the open ones when none is required any more. The tree
 * of position i is that of i + 1 with one name put in; build_insert() copies only the states on
 * that name's way, so all trees of a layer together are as large as the names. */
#include <string.h>

#include "grammar/schema_parts.h"

#define NEEDS_MAX  6
#define PLACES_MAX 200000 /* positions of all layers */

struct member {
    const char *name;
    size_t len;
    bool required;
    bool absent;
};

struct need { /* some member must satisfy this */
    uint32_t literal;
    const struct json *owner;  /* names that are additional there; NULL: */
    const struct dfa *pattern; /* names that match */
    const struct json *text;
};

struct object {
    struct schema *s;
    const struct alternative *a;
    LIST(struct member) members;
    struct need needs[NEEDS_MAX];
    uint32_t n_needs;
    const struct dfa *parts[DFA_PARTS_MAX];  /* of names: patterns, then what propertyNames say */
    const struct json *texts[DFA_PARTS_MAX]; /* the pattern's key; NULL for propertyNames */
    uint32_t n_parts;
    uint32_t min, max;      /* members; NONE: no limit */
    uint32_t count_cap;     /* counts above make no difference */
    const struct dfa *open; /* open names by the mask of parts; NULL: there are none */
    uint32_t *after;        /* [position][count][found]: behind a member; NONE: not built */
};

/* --- what there is ------------------------------------------------------------------------ */

static struct member *member_of(struct object *o, const char *name, size_t len)
{
    uint32_t i;

    for (i = 0; i < o->members.n && compile_tick(o->s->c); i++)
        if (o->members.items[i].len == len && memcmp(o->members.items[i].name, name, len) == 0)
            return &o->members.items[i];
    if (!LIST_ADD(o->s->c, &o->members))
        return NULL;
    o->members.items[o->members.n - 1] = (struct member){.name = name, .len = len};
    return &o->members.items[o->members.n - 1];
}

/* The number of a pattern among the parts. */
static uint32_t part_of(struct object *o, const struct json *text, const struct dfa *d)
{
    uint32_t i;

    for (i = 0; i < o->n_parts && text != NULL; i++)
        if (o->parts[i] == d && o->texts[i] != NULL)
            return i;
    if (o->n_parts == DFA_PARTS_MAX) {
        compile_fail(o->s->c, ERR_LIMIT, "more than %d patterns of names meet", DFA_PARTS_MAX);
        return 0;
    }
    o->parts[o->n_parts] = d;
    o->texts[o->n_parts] = text;
    return o->n_parts++;
}

/* Keys of patternProperties are names of members, not values: a node to look them up by. */
static const struct dfa *key_dfa(struct schema *s, const struct json *member)
{
    struct json *text = compile_alloc(s->c, sizeof *text);
    const struct dfa *d;

    if (text == NULL)
        return NULL;
    text->kind = JSON_TEXT;
    text->text = member->key;
    text->text_len = member->key_len;
    d = pattern_dfa(s, text);
    if (s->c->at == text)
        s->c->at = member;
    return d;
}

static bool keep_any(const void *arg, uint32_t mask)
{
    (void)arg; /* any part will do */
    return mask != 0;
}

/* The names that satisfy a literal; NULL: all of them. */
static const struct dfa *names_dfa(struct schema *s, uint32_t literal)
{
    struct alternatives all = expand(s, &literal, 1);
    const struct dfa *parts[DFA_PARTS_MAX];
    uint32_t n = 0;
    uint32_t i;

    for (i = 0; i < all.n && compile_ok(s->c); i++) {
        if ((all.items[i].types & TYPE_STRING) == 0)
            continue;
        if (string_is_free(&all.items[i]))
            return NULL;
        if (n == DFA_PARTS_MAX) {
            compile_fail(s->c, ERR_LIMIT, "propertyNames with more than %d alternatives",
                         DFA_PARTS_MAX);
            return NULL;
        }
        parts[n++] = string_dfa(s, &all.items[i]);
    }
    return compile_ok(s->c) ? dfa_side_by_side(s->c, parts, n, 0, NONE, keep_any, NULL) : NULL;
}

static void need_add(struct object *o, struct need need)
{
    if (o->n_needs == NEEDS_MAX)
        compile_fail(o->s->c, ERR_LIMIT, "more than %d members must exist somewhere", NEEDS_MAX);
    else
        o->needs[o->n_needs++] = need;
}

static void members_note(struct object *o, const struct json *schema)
{
    const struct json *known = json_get_kind(schema, "properties", JSON_OBJECT);
    const struct json *patterns = json_get_kind(schema, "patternProperties", JSON_OBJECT);
    uint32_t i;

    for (i = 0; known != NULL && i < known->n; i++)
        (void)member_of(o, known->items[i].key, known->items[i].key_len);
    for (i = 0; patterns != NULL && i < patterns->n && compile_ok(o->s->c); i++)
        (void)part_of(o, &patterns->items[i], key_dfa(o->s, &patterns->items[i]));
}

static void atom_note(struct object *o, const struct atom *t)
{
    struct member *m;
    const struct dfa *d;

    switch ((int)t->kind) {
    case ATOM_MEMBERS: members_note(o, t->node); break;
    case ATOM_REQUIRED:
        m = member_of(o, t->node->text, t->node->text_len);
        if (m != NULL)
            m->required = true;
        break;
    case ATOM_ABSENT:
        m = member_of(o, t->node->text, t->node->text_len);
        if (m != NULL)
            m->absent = true;
        break;
    case ATOM_PROPERTY: (void)member_of(o, t->node->key, t->node->key_len); break;
    case ATOM_MEMBERS_LEAST: o->min = t->n > o->min ? t->n : o->min; break;
    case ATOM_MEMBERS_MOST: o->max = t->n < o->max ? t->n : o->max; break;
    case ATOM_NAMES:
        d = names_dfa(o->s, t->literal);
        if (d != NULL && compile_ok(o->s->c))
            (void)part_of(o, NULL, d);
        break;
    case ATOM_SOME_PATTERN:
        d = key_dfa(o->s, t->node);
        if (compile_ok(o->s->c)) {
            (void)part_of(o, t->node, d);
            need_add(o, (struct need){.literal = t->literal, .pattern = d, .text = t->node});
        }
        break;
    case ATOM_SOME_OTHER:
        members_note(o, t->node);
        need_add(o, (struct need){.literal = t->literal, .owner = t->node});
        break;
    default: break;
    }
}

/* --- what a name's value must satisfy ----------------------------------------------------- */

struct wants {
    LIST(uint32_t) literals;
    bool dead; /* no such member */
};

static void want(struct object *o, struct wants *w, const struct json *schema)
{
    if (schema->kind == JSON_BOOL && !schema->flag)
        w->dead = true;
    if (schema->kind == JSON_BOOL)
        return;
    if (LIST_ADD(o->s->c, &w->literals))
        w->literals.items[w->literals.n - 1] = literal_of(o->s, schema, false, false);
}

/* Is this the mask bit of one of the schema's own patterns? All of them, then, when `all`. */
static bool own_patterns(struct object *o, const struct json *schema, uint32_t mask,
                         struct wants *w)
{
    const struct json *patterns = json_get_kind(schema, "patternProperties", JSON_OBJECT);
    bool any = false;
    uint32_t i;

    for (i = 0; patterns != NULL && i < patterns->n && compile_ok(o->s->c); i++) {
        const struct json *p = &patterns->items[i];

        if ((mask >> part_of(o, p, key_dfa(o->s, p)) & 1) == 0)
            continue;
        any = true;
        if (w != NULL)
            want(o, w, p);
    }
    return any;
}

static void wants_of_members(struct object *o, const struct json *schema, const struct member *m,
                             uint32_t mask, struct wants *w)
{
    const struct json *known = json_get_kind(schema, "properties", JSON_OBJECT);
    const struct json *other = json_get(schema, "additionalProperties");
    const struct json *own = NULL;
    bool matched;

    if (m != NULL && known != NULL)
        own = json_get_n(known, m->name, m->len);
    if (own != NULL)
        want(o, w, own);
    matched = own_patterns(o, schema, mask, w);
    if (own == NULL && !matched && other != NULL)
        want(o, w, other);
}

/* m NULL: an open name that matches the parts of mask. */
static struct wants wants_of(struct object *o, const struct member *m, uint32_t mask)
{
    struct wants w = {.dead = m != NULL && m->absent};
    const struct atom *t;
    uint32_t i;

    for (i = 0; i < o->n_parts; i++)
        if (o->texts[i] == NULL && (mask >> i & 1) == 0) /* propertyNames */
            w.dead = true;
    for (t = o->a->atoms; t != NULL && compile_tick(o->s->c); t = t->next) {
        if (t->kind == ATOM_MEMBERS)
            wants_of_members(o, t->node, m, mask, &w);
        else if (t->kind == ATOM_PROPERTY && m != NULL && m->len == t->node->key_len &&
                 memcmp(m->name, t->node->key, m->len) == 0 && LIST_ADD(o->s->c, &w.literals))
            w.literals.items[w.literals.n - 1] = t->literal;
    }
    return w;
}

static uint32_t mask_of(struct object *o, const struct member *m)
{
    uint32_t mask = 0;
    uint32_t i;

    for (i = 0; i < o->n_parts; i++)
        if (dfa_match(o->parts[i], m->name, m->len) != 0)
            mask |= 1u << i;
    return mask;
}

/* The needs that a name can meet. */
static uint32_t needs_met(struct object *o, const struct member *m, uint32_t mask)
{
    uint32_t met = 0;
    uint32_t i;

    for (i = 0; i < o->n_needs; i++) {
        const struct need *need = &o->needs[i];
        const struct json *known;

        if (need->owner == NULL) {
            met |= (mask >> part_of(o, need->text, need->pattern) & 1) << i;
            continue;
        }
        known = json_get_kind(need->owner, "properties", JSON_OBJECT);
        if (m != NULL && known != NULL && json_get_n(known, m->name, m->len) != NULL)
            continue;
        if (!own_patterns(o, need->owner, mask, NULL))
            met |= 1u << i;
    }
    return met;
}

/* --- building ----------------------------------------------------------------------------- */

static uint32_t place_of(const struct object *o, uint32_t at, uint32_t count, uint32_t found)
{
    return (at * (o->count_cap + 1) + count) << o->n_needs | found;
}

/* The state behind a member, before ',' or '}'; its ways on are built when the layer is. */
static uint32_t after(struct object *o, uint32_t at, uint32_t count, uint32_t found)
{
    uint32_t *state;

    if (count > o->count_cap)
        count = o->count_cap;
    state = &o->after[place_of(o, at, count, found)];
    if (*state == NONE)
        *state = build_state(o->s->b);
    return *state;
}

/* Behind a name's closing quote: ':', the value, and on at position `next`. */
static uint32_t leaf_of(struct object *o, const struct member *m, uint32_t mask, uint32_t next,
                        uint32_t count, uint32_t found)
{
    struct wants w = wants_of(o, m, mask);
    uint32_t can = needs_met(o, m, mask) & ~found;
    uint32_t leaf, value, n, i, some;

    if (w.dead || !compile_ok(o->s->c))
        return DEAD;
    leaf = build_state(o->s->b);
    value = build_state(o->s->b);
    colon_build(o->s, leaf, value);
    n = w.literals.n;
    for (some = can;;
         some = (some - 1) & can) { /* each set of needs that it may be meant to meet */
        uint32_t list[DFA_PARTS_MAX * 2 + 64];

        if (n + NEEDS_MAX > sizeof list / sizeof list[0]) {
            compile_fail(o->s->c, ERR_LIMIT, "too many schemas meet at one name");
            return DEAD;
        }
        if (n > 0)
            memcpy(list, w.literals.items, n * sizeof list[0]);
        w.literals.n = n;
        for (i = 0; i < o->n_needs; i++)
            if ((some >> i & 1) != 0)
                list[w.literals.n++] = o->needs[i].literal;
        build_call(o->s->b, value, goal_state(o->s, list, w.literals.n),
                   after(o, next, count + 1, found | some));
        if (some == 0 || !compile_ok(o->s->c))
            break;
    }
    return leaf;
}

static void escaped(struct object *o, const struct member *m, struct buf *out)
{
    buf_clear(out);
    buf_add_json_text(out, m->name, m->len);
    if (out->failed)
        compile_fail(o->s->c, ERR_NO_MEMORY, "out of memory");
}

static const char *bytes_of(const struct buf *b)
{
    return b->bytes == NULL ? "" : b->bytes;
}

/* The open names of a layer, those with a place of their own taken out; NONE: there are none. */
static uint32_t open_tree(struct object *o, uint32_t count, uint32_t found, struct buf *text)
{
    uint32_t *leaf;
    uint32_t root, i;

    if (o->open == NULL)
        return NONE;
    leaf = compile_alloc(o->s->c, (((size_t)1 << o->n_parts) + 1) * sizeof *leaf);
    if (leaf == NULL)
        return NONE;
    memset(leaf, 0xff, (((size_t)1 << o->n_parts) + 1) * sizeof *leaf);
    for (i = 0; i < o->open->n_states && compile_ok(o->s->c); i++) {
        uint32_t label = o->open->states[i].label;

        if (label == 0 || leaf[label] != NONE)
            continue;
        leaf[label] = leaf_of(o, NULL, label - 1, o->members.n, count, found);
    }
    root = dfa_build_json_once(o->s->b, o->open, leaf);
    for (i = 0; i < o->members.n && compile_ok(o->s->c); i++) {
        escaped(o, &o->members.items[i], text);
        root = build_insert(o->s->b, root, bytes_of(text), text->len, '"', DEAD);
    }
    return root;
}

/* What follows at a position: after a member (',' and a name, or '}'), or at the beginning. In
 * layers below the highest count only where a member led to it, which lower layers decided. */
static void place_build(struct object *o, uint32_t at, uint32_t count, uint32_t found,
                        uint32_t tree, bool may_close, uint32_t begin)
{
    struct build *b = o->s->b;
    uint32_t state = count == o->count_cap ? after(o, at, count, found)
                                           : o->after[place_of(o, at, count, found)];
    uint32_t name = NONE;
    uint32_t gap;

    if (tree != NONE) {
        name = build_state(b);
        build_edge(b, name, '"', '"', tree);
    }
    if (state != NONE) {
        gap = build_state(b);
        space_build(o->s, state, gap);
        if (name != NONE) {
            uint32_t comma = build_text(b, gap, ",", 1);

            space_build_after(o->s, comma, name);
        }
        if (may_close)
            build_edge(b, gap, '}', '}', o->s->end);
    }
    if (begin == NONE)
        return;
    gap = build_state(b);
    space_build(o->s, begin, gap);
    if (name != NONE)
        build_edge(b, gap, '"', '"', tree);
    if (may_close)
        build_edge(b, gap, '}', '}', o->s->end);
}

static void layer_build(struct object *o, uint32_t count, uint32_t found, uint32_t begin)
{
    struct buf text = {.limit = GRAMMAR_SOURCE_MAX};
    bool full = o->max != NONE && count >= o->max;
    bool enough = count >= o->min && found == (1u << o->n_needs) - 1;
    uint32_t tree = full ? NONE : open_tree(o, count, found, &text);
    bool owed = false; /* a required name is still to come */
    uint32_t i;

    for (i = o->members.n + 1; i-- > 0 && compile_tick(o->s->c);) {
        const struct member *m = i < o->members.n ? &o->members.items[i] : NULL;

        if (m != NULL && count > i) /* not so many members in front of it */
            break;
        if (m != NULL && !full) {
            uint32_t leaf = leaf_of(o, m, mask_of(o, m), i + 1, count, found);

            escaped(o, m, &text);
            if (m->required)
                tree = NONE;
            if (leaf != DEAD)
                tree = build_insert(o->s->b, tree, bytes_of(&text), text.len, '"', leaf);
        }
        owed = owed || (m != NULL && m->required);
        place_build(o, i, count, found, tree, enough && !owed,
                    i == 0 && count == 0 && found == 0 ? begin : NONE);
    }
    buf_fini(&text);
}

/* Counts matter only where they can go wrong. */
static void counts_settle(struct object *o)
{
    uint32_t required = 0;
    uint32_t i;

    for (i = 0; i < o->members.n; i++)
        required += o->members.items[i].required;
    if (o->open == NULL && o->max != NONE && o->max >= o->members.n)
        o->max = NONE;
    if (o->max != NONE)
        o->count_cap = o->max > o->min ? o->max : o->min;
    else
        o->count_cap = o->min > required ? o->min : 0;
    if (o->count_cap == 0 && o->max == NONE)
        o->min = 0;
}

static void open_settle(struct object *o)
{
    const struct dfa *d = dfa_side_by_side(o->s->c, o->parts, o->n_parts, 0, NONE, NULL, NULL);
    uint32_t i;

    for (i = 0; compile_ok(o->s->c) && i < d->n_states; i++)
        if (d->states[i].label != 0 && !wants_of(o, NULL, d->states[i].label - 1).dead) {
            o->open = d;
            return;
        }
}

void object_build(struct schema *s, uint32_t from, const struct alternative *a)
{
    struct object o = {.s = s, .a = a, .max = NONE};
    const struct atom *t;
    uint32_t begin = build_nest(s->b);
    uint32_t count, found;
    uint64_t places;

    build_edge(s->b, from, '{', '{', begin);
    for (t = a->atoms; t != NULL && compile_tick(s->c); t = t->next)
        atom_note(&o, t);
    if (s->holds != NULL && compile_ok(s->c))
        (void)part_of(&o, NULL, s->holds);
    if (compile_ok(s->c))
        open_settle(&o);
    counts_settle(&o);
    places = ((uint64_t)o.members.n + 1) * ((uint64_t)o.count_cap + 1) << o.n_needs;
    if (places > PLACES_MAX)
        compile_fail(s->c, ERR_LIMIT, "min/maxProperties on an object with too many names");
    o.after = compile_alloc(s->c, (size_t)(places > PLACES_MAX ? 1 : places) * sizeof *o.after);
    if (!compile_ok(s->c))
        return;
    memset(o.after, 0xff, (size_t)places * sizeof *o.after);
    for (count = 0; count <= o.count_cap && compile_ok(s->c); count++)
        for (found = 0; found < 1u << o.n_needs && compile_ok(s->c); found++)
            layer_build(&o, count, found, begin);
}
