/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects. Known names come in order, then open ones (additional, or matching a pattern).
 *
 * A position is the number of known names that have been passed. With min/maxProperties, and with
 * members of which one must exist, there is a layer of positions per count and per set of needs
 * met. After the opening quote of a name there is a tree of the possible names. At position i these
 * are the names from i up to the next required one, and the open names if no required one is left.
 * The tree of position i is that of i + 1 with one more name; build_insert() copies only the states
 * on that name's path, so all trees of a layer together are about as large as the names. */
#include <string.h>

#include "grammar/schema_parts.h"

#define NEEDS_MAX         6
#define OBJECT_PLACES_MAX 200000 /* positions of all layers */

/* A known name. */
struct member {
    const char *name;
    size_t len;
    bool required;
    bool absent;
};

struct need { /* some member must satisfy a literal; which members count: */
    uint32_t literal;
    const struct json *owner;  /* those that are additional in this schema; or, if NULL, */
    const struct dfa *pattern; /* those whose names match */
    const struct json *text;
};

struct object {
    struct schema *s;
    const struct alternative *a;
    LIST(struct member) members;
    struct need needs[NEEDS_MAX];
    uint32_t n_needs;
    const struct dfa *parts[DFA_PARTS_MAX];  /* languages of names: patterns, and propertyNames */
    const struct json *texts[DFA_PARTS_MAX]; /* the pattern; NULL for propertyNames */
    uint32_t n_parts;
    uint32_t min, max;      /* number of members; max NONE: unbounded */
    uint32_t count_cap;     /* counting further makes no difference */
    const struct dfa *open; /* open names, labelled by the mask of parts; NULL: there are none */
    uint32_t *after; /* [position][count][found]: the state after a member; NONE: not built */
};

/* --- names and needs ---------------------------------------------------------------------- */

/* Find a known name, or add it. */
static struct member *schema_member_of(struct object *object, const char *name, size_t len)
{
    uint32_t i;

    for (i = 0; i < object->members.n && compile_tick(object->s->c); i++)
        if (object->members.items[i].len == len &&
            memcmp(object->members.items[i].name, name, len) == 0)
            return &object->members.items[i];
    if (!LIST_ADD(object->s->c, &object->members))
        return NULL;
    object->members.items[object->members.n - 1] = (struct member){.name = name, .len = len};
    return &object->members.items[object->members.n - 1];
}

/* The number of a pattern among the parts; it is added if it is new. */
static uint32_t schema_part_of(struct object *object, const struct json *text,
                               const struct dfa *dfa)
{
    uint32_t i;

    /* Equal patterns share one number, since schema_pattern_dfa() returns the same dfa for the
     * same text. */
    for (i = 0; i < object->n_parts && text != NULL; i++)
        if (object->parts[i] == dfa && object->texts[i] != NULL)
            return i;
    /* The parts that a name matches are a mask in one word. */
    if (object->n_parts == DFA_PARTS_MAX) {
        compile_fail(object->s->c, ERR_LIMIT, "more than %d patterns of names meet", DFA_PARTS_MAX);
        return 0;
    }
    object->parts[object->n_parts] = dfa;
    object->texts[object->n_parts] = text;
    return object->n_parts++;
}

/* The language of a key of patternProperties. The key is a member's name, so a text node is made of
 * it. */
static const struct dfa *schema_key_dfa(struct schema *schema, const struct json *member)
{
    struct json *text = compile_alloc(schema->c, sizeof *text);
    const struct dfa *dfa;

    /* compile_alloc() zeroes the memory, so all other members of the node are empty. */
    if (text == NULL)
        return NULL;
    text->kind = JSON_TEXT;
    text->text = member->key;
    text->text_len = member->key_len;
    dfa = schema_pattern_dfa(schema, text);
    /* An error within the pattern was reported at the text node, which is not in the document;
     * the member is. */
    if (schema->c->at == text)
        schema->c->at = member;
    return dfa;
}

/* Keep the texts that any part accepts. */
static bool schema_keep_any(const void *arg, uint32_t mask)
{
    (void)arg; /* any part will do */
    return mask != 0;
}

/* The names that satisfy a literal; NULL: all names. */
static const struct dfa *schema_names_dfa(struct schema *schema, uint32_t literal)
{
    struct alternatives all = schema_expand(schema, &literal, 1);
    const struct dfa *parts[DFA_PARTS_MAX];
    uint32_t n = 0;
    uint32_t i;

    /* Every alternative is a way for a name to be valid, so the result is their union. */
    for (i = 0; i < all.n && compile_ok(schema->c); i++) {
        /* A name is a string: other types cannot occur. */
        if ((all.items[i].types & TYPE_STRING) == 0)
            continue;
        /* One alternative without any constraint allows all names. */
        if (schema_string_is_free(&all.items[i]))
            return NULL;
        if (n == DFA_PARTS_MAX) {
            compile_fail(schema->c, ERR_LIMIT, "propertyNames with more than %d alternatives",
                         DFA_PARTS_MAX);
            return NULL;
        }
        parts[n++] = schema_string_dfa(schema, &all.items[i]);
    }
    if (compile_ok(schema->c))
        return dfa_side_by_side(
            schema->c, &(struct dfa_product){
                           .parts = parts, .n = n, .max_len = NONE, .keep = schema_keep_any});
    return NULL;
}

/* Add a member that must exist somewhere. */
static void schema_need_add(struct object *object, struct need need)
{
    if (object->n_needs == NEEDS_MAX)
        compile_fail(object->s->c, ERR_LIMIT, "more than %d members must exist somewhere",
                     NEEDS_MAX);
    else
        object->needs[object->n_needs++] = need;
}

/* Note the names and patterns of a schema. */
static void schema_members_note(struct object *object, const struct json *schema)
{
    const struct json *known = json_get_kind(schema, "properties", JSON_OBJECT);
    const struct json *patterns = json_get_kind(schema, "patternProperties", JSON_OBJECT);
    uint32_t i;

    for (i = 0; known != NULL && i < known->n; i++)
        (void)schema_member_of(object, known->items[i].key, known->items[i].key_len);
    for (i = 0; patterns != NULL && i < patterns->n && compile_ok(object->s->c); i++)
        (void)schema_part_of(object, &patterns->items[i],
                             schema_key_dfa(object->s, &patterns->items[i]));
}

/* Note one atom. */
static void schema_object_note_atom(struct object *object, const struct atom *atom)
{
    struct member *member;
    const struct dfa *dfa;

    /* Names that any atom mentions become members of their own; all other names are covered by
     * parts, the languages of patterns. */
    switch ((int)atom->kind) {
    case ATOM_MEMBERS: schema_members_note(object, atom->node); break;
    case ATOM_REQUIRED:
        member = schema_member_of(object, atom->node->text, atom->node->text_len);
        if (member != NULL)
            member->required = true;
        break;
    case ATOM_ABSENT:
        member = schema_member_of(object, atom->node->text, atom->node->text_len);
        if (member != NULL)
            member->absent = true;
        break;
    case ATOM_PROPERTY: (void)schema_member_of(object, atom->node->key, atom->node->key_len); break;
    case ATOM_MEMBERS_LEAST: object->min = atom->n > object->min ? atom->n : object->min; break;
    case ATOM_MEMBERS_MOST: object->max = atom->n < object->max ? atom->n : object->max; break;
    case ATOM_NAMES:
        dfa = schema_names_dfa(object->s, atom->literal);
        if (dfa != NULL && compile_ok(object->s->c))
            (void)schema_part_of(object, NULL, dfa);
        break;
    case ATOM_SOME_PATTERN:
        dfa = schema_key_dfa(object->s, atom->node);
        if (compile_ok(object->s->c)) {
            (void)schema_part_of(object, atom->node, dfa);
            schema_need_add(
                object,
                (struct need){.literal = atom->literal, .pattern = dfa, .text = atom->node});
        }
        break;
    case ATOM_SOME_OTHER:
        schema_members_note(object, atom->node);
        schema_need_add(object, (struct need){.literal = atom->literal, .owner = atom->node});
        break;
    default: break;
    }
}

/* --- the constraints on a member's value -------------------------------------------------- */

struct wants {
    LIST(uint32_t) literals;
    bool dead; /* no such member may exist */
};

/* Demand a schema: true adds nothing, false forbids the member. */
static void schema_object_want(struct object *object, struct wants *wants,
                               const struct json *schema)
{
    if (schema->kind == JSON_BOOL && !schema->flag)
        wants->dead = true;
    if (schema->kind == JSON_BOOL)
        return;
    if (LIST_ADD(object->s->c, &wants->literals))
        wants->literals.items[wants->literals.n - 1] =
            schema_literal_of(object->s, schema, false, false);
}

/* Demand the schemas of those of a schema's own patterns that are in the mask (w NULL: only look).
 * Returns whether there is one. */
static bool schema_own_patterns(struct object *object, const struct json *schema, uint32_t mask,
                                struct wants *wants)
{
    const struct json *patterns = json_get_kind(schema, "patternProperties", JSON_OBJECT);
    bool any = false;
    uint32_t i;

    /* The numbers of the patterns are those of the whole object, since several schemas may share
     * patterns. */
    for (i = 0; patterns != NULL && i < patterns->n && compile_ok(object->s->c); i++) {
        const struct json *pattern = &patterns->items[i];

        if ((mask >> schema_part_of(object, pattern, schema_key_dfa(object->s, pattern)) & 1) == 0)
            continue;
        any = true;
        if (wants != NULL)
            schema_object_want(object, wants, pattern);
    }
    return any;
}

/* Demand the schemas that one object schema has for a name: that of the property, those of all
 * matching patterns, or else that of additional ones. */
static void schema_wants_of_members(struct object *object, const struct json *schema,
                                    const struct member *member, uint32_t mask, struct wants *wants)
{
    const struct json *known = json_get_kind(schema, "properties", JSON_OBJECT);
    const struct json *other = json_get(schema, "additionalProperties");
    const struct json *own = NULL;
    bool matched;

    /* The schema of the property and those of the patterns apply together. */
    if (member != NULL && known != NULL)
        own = json_get_n(known, member->name, member->len);
    if (own != NULL)
        schema_object_want(object, wants, own);
    matched = schema_own_patterns(object, schema, mask, wants);
    /* additionalProperties is for names that neither of the others covers, within this one
     * schema. */
    if (own == NULL && !matched && other != NULL)
        schema_object_want(object, wants, other);
}

/* All demands on a known name, or (member NULL) on an open name that matches the parts of mask. */
static struct wants schema_wants_of(struct object *object, const struct member *member,
                                    uint32_t mask)
{
    struct wants wants = {.dead = member != NULL && member->absent};
    const struct atom *atom;
    uint32_t i;

    for (i = 0; i < object->n_parts; i++)
        if (object->texts[i] == NULL && (mask >> i & 1) == 0) /* propertyNames */
            wants.dead = true;
    for (atom = object->a->atoms; atom != NULL && compile_tick(object->s->c); atom = atom->next) {
        if (atom->kind == ATOM_MEMBERS)
            schema_wants_of_members(object, atom->node, member, mask, &wants);
        else if (atom->kind == ATOM_PROPERTY && member != NULL &&
                 member->len == atom->node->key_len &&
                 memcmp(member->name, atom->node->key, member->len) == 0 &&
                 LIST_ADD(object->s->c, &wants.literals))
            wants.literals.items[wants.literals.n - 1] = atom->literal;
    }
    return wants;
}

/* The parts that a known name matches. */
static uint32_t schema_mask_of(struct object *object, const struct member *member)
{
    uint32_t mask = 0;
    uint32_t i;

    for (i = 0; i < object->n_parts; i++)
        if (dfa_match(object->parts[i], member->name, member->len) != 0)
            mask |= 1u << i;
    return mask;
}

/* The needs that a member with this name could meet. */
static uint32_t schema_needs_met(struct object *object, const struct member *member, uint32_t mask)
{
    uint32_t met = 0;
    uint32_t i;

    /* A need is a demand for some member, whichever it is: one that matches a pattern, or one
     * that is additional in its owner. */
    for (i = 0; i < object->n_needs; i++) {
        const struct need *need = &object->needs[i];
        const struct json *known;

        /* By pattern: the name is in its language. */
        if (need->owner == NULL) {
            met |= (mask >> schema_part_of(object, need->text, need->pattern) & 1) << i;
            continue;
        }
        /* By owner: a name that is known there is not additional. */
        known = json_get_kind(need->owner, "properties", JSON_OBJECT);
        if (member != NULL && known != NULL && json_get_n(known, member->name, member->len) != NULL)
            continue;
        /* Neither is one that matches a pattern of the owner. */
        if (!schema_own_patterns(object, need->owner, mask, NULL))
            met |= 1u << i;
    }
    return met;
}

/* --- building ----------------------------------------------------------------------------- */

/* The index of a position in a layer. */
static uint32_t schema_object_place_of(const struct object *object, uint32_t at, uint32_t count,
                                       uint32_t found)
{
    return (at * (object->count_cap + 1) + count) << object->n_needs | found;
}

/* The state after a member, before ',' or '}'. Its continuations are built with its layer. */
static uint32_t schema_object_after(struct object *object, uint32_t at, uint32_t count,
                                    uint32_t found)
{
    uint32_t *state;

    if (count > object->count_cap)
        count = object->count_cap;
    state = &object->after[schema_object_place_of(object, at, count, found)];
    if (*state == NONE)
        *state = build_state(object->s->b);
    return *state;
}

/* Build the state after a name's closing quote: ':', the value, and the position `next` after it.
 * DEAD if the member may not exist. */
static uint32_t schema_leaf_of(struct object *object, const struct member *member, uint32_t mask,
                               uint32_t next, uint32_t count, uint32_t found)
{
    struct wants wants = schema_wants_of(object, member, mask);
    uint32_t can = schema_needs_met(object, member, mask) & ~found;
    uint32_t leaf, value, n, i, some;

    if (wants.dead || !compile_ok(object->s->c))
        return DEAD;
    leaf = build_state(object->s->b);
    value = build_state(object->s->b);
    schema_build_colon(object->s, leaf, value);
    n = wants.literals.n;
    /* For each set of needs that the member can meet, down to the empty set, the value is built
     * with the literals of these needs. */
    for (some = can;; some = (some - 1) & can) {
        uint32_t list[DFA_PARTS_MAX * 2 + 64];

        if (n + NEEDS_MAX > sizeof list / sizeof list[0]) {
            compile_fail(object->s->c, ERR_LIMIT, "too many schemas meet at one name");
            return DEAD;
        }
        if (n > 0)
            memcpy(list, wants.literals.items, n * sizeof list[0]);
        wants.literals.n = n;
        for (i = 0; i < object->n_needs; i++)
            if ((some >> i & 1) != 0)
                list[wants.literals.n++] = object->needs[i].literal;
        build_call(object->s->b, value, schema_goal_state(object->s, list, wants.literals.n),
                   schema_object_after(object, next, count + 1, found | some));
        if (some == 0 || !compile_ok(object->s->c))
            break;
    }
    return leaf;
}

/* A name as it is written in JSON. */
static void schema_escaped(struct object *object, const struct member *member, struct buf *out)
{
    buf_clear(out);
    buf_add_json_text(out, member->name, member->len);
    if (out->failed)
        compile_fail(object->s->c, ERR_NO_MEMORY, "out of memory");
}

/* The bytes of a buf that may be empty. */
static const char *schema_bytes_of(const struct buf *buf)
{
    if (buf->bytes == NULL)
        return "";
    return buf->bytes;
}

/* Build the tree of a layer's open names, without the known names; NONE: there are none. */
static uint32_t schema_open_tree(struct object *object, uint32_t count, uint32_t found,
                                 struct buf *text)
{
    uint32_t *leaf;
    uint32_t root, i;

    if (object->open == NULL)
        return NONE;
    leaf = compile_alloc(object->s->c, (((size_t)1 << object->n_parts) + 1) * sizeof *leaf);
    if (leaf == NULL)
        return NONE;
    memset(leaf, 0xff, (((size_t)1 << object->n_parts) + 1) * sizeof *leaf);
    for (i = 0; i < object->open->n_states && compile_ok(object->s->c); i++) {
        uint32_t label = object->open->states[i].label;

        if (label == 0 || leaf[label] != NONE)
            continue;
        leaf[label] = schema_leaf_of(object, NULL, label - 1, object->members.n, count, found);
    }
    /* First the language of all open names, then a dead end for each known name, which has its own
     * value. */
    root = dfa_build_json_once(object->s->b, object->open, leaf);
    for (i = 0; i < object->members.n && compile_ok(object->s->c); i++) {
        schema_escaped(object, &object->members.items[i], text);
        root = build_insert(object->s->b, root, schema_bytes_of(text), text->len, '"', DEAD);
    }
    return root;
}

/* A position in a layer. */
struct position {
    uint32_t at;    /* known names passed */
    uint32_t count; /* members written, as far as they are counted */
    uint32_t found; /* mask of the needs that are met */
};

/* Build the continuations at a position: ',' and a name, or '}'; and, with `begin`, the first name.
 * In layers below the highest count a position is built only if some member led to it, which the
 * lower layers have decided. */
static void schema_object_build_place(struct object *object, struct position here, uint32_t tree,
                                      bool may_close, uint32_t begin)
{
    struct build *build = object->s->b;
    uint32_t state;
    uint32_t name = NONE;
    uint32_t gap;

    if (here.count == object->count_cap)
        state = schema_object_after(object, here.at, here.count, here.found);
    else
        state = object->after[schema_object_place_of(object, here.at, here.count, here.found)];

    /* All names are in one tree, so a position needs one edge for the quote and then follows the
     * tree. */
    if (tree != NONE) {
        name = build_state(build);
        build_edge(build, name, '"', '"', tree);
    }
    if (state != NONE) {
        gap = build_state(build);
        schema_build_space(object->s, state, gap);
        if (name != NONE) {
            uint32_t comma = build_text(build, gap, ",", 1);

            schema_build_space_after(object->s, comma, name);
        }
        if (may_close)
            build_edge(build, gap, '}', '}', object->s->end);
    }
    if (begin == NONE)
        return;
    gap = build_state(build);
    schema_build_space(object->s, begin, gap);
    if (name != NONE)
        build_edge(build, gap, '"', '"', tree);
    if (may_close)
        build_edge(build, gap, '}', '}', object->s->end);
}

/* Build a layer, from its last position to its first: the tree of names grows on the way. */
static void schema_layer_build(struct object *object, uint32_t count, uint32_t found,
                               uint32_t begin)
{
    struct buf text = {.limit = GRAMMAR_SOURCE_MAX};
    bool full = object->max != NONE && count >= object->max;
    bool enough = count >= object->min && found == (1u << object->n_needs) - 1;
    uint32_t tree = full ? NONE : schema_open_tree(object, count, found, &text);
    bool owed = false; /* a required name is still missing */
    uint32_t i;

    for (i = object->members.n + 1; i-- > 0 && compile_tick(object->s->c);) {
        const struct member *member = i < object->members.n ? &object->members.items[i] : NULL;

        if (member != NULL && count > i) /* there cannot be more members than names passed */
            break;
        if (member != NULL && !full) {
            uint32_t leaf =
                schema_leaf_of(object, member, schema_mask_of(object, member), i + 1, count, found);

            schema_escaped(object, member, &text);
            if (member->required)
                tree = NONE;
            if (leaf != DEAD)
                tree =
                    build_insert(object->s->b, tree, schema_bytes_of(&text), text.len, '"', leaf);
        }
        owed = owed || (member != NULL && member->required);
        schema_object_build_place(object, (struct position){i, count, found}, tree, enough && !owed,
                                  i == 0 && count == 0 && found == 0 ? begin : NONE);
    }
    buf_fini(&text);
}

/* Decide how far members must be counted: only where the count can make a difference. */
static void schema_counts_settle(struct object *object)
{
    uint32_t required = 0;
    uint32_t i;

    for (i = 0; i < object->members.n; i++)
        required += object->members.items[i].required;
    /* Without open names there cannot be more members than known names. */
    if (object->open == NULL && object->max != NONE && object->max >= object->members.n)
        object->max = NONE;
    if (object->max != NONE) {
        if (object->max > object->min)
            object->count_cap = object->max;
        else
            object->count_cap = object->min;
    } else {
        if (object->min > required)
            object->count_cap = object->min;
        else
            object->count_cap = 0;
    }
    if (object->count_cap == 0 && object->max == NONE)
        object->min = 0;
}

/* Build the language of open names, unless no open name may exist. */
static void schema_open_settle(struct object *object)
{
    const struct dfa *dfa = dfa_side_by_side(
        object->s->c,
        &(struct dfa_product){.parts = object->parts, .n = object->n_parts, .max_len = NONE});
    uint32_t i;

    for (i = 0; compile_ok(object->s->c) && i < dfa->n_states; i++)
        if (dfa->states[i].label != 0 &&
            !schema_wants_of(object, NULL, dfa->states[i].label - 1).dead) {
            object->open = dfa;
            return;
        }
}

void schema_object_build(struct schema *schema, uint32_t from,
                         const struct alternative *alternative)
{
    struct object object = {.s = schema, .a = alternative, .max = NONE};
    const struct atom *atom;
    uint32_t begin = build_nest(schema->b);
    uint32_t count, found;
    uint64_t places;

    build_edge(schema->b, from, '{', '{', begin);
    for (atom = alternative->atoms; atom != NULL && compile_tick(schema->c); atom = atom->next)
        schema_object_note_atom(&object, atom);
    if (schema->holds != NULL && compile_ok(schema->c))
        (void)schema_part_of(&object, NULL, schema->holds);
    if (compile_ok(schema->c))
        schema_open_settle(&object);
    schema_counts_settle(&object);
    /* A place is a position among the members, the number of properties so far, and the set of
     * needs that were met. The table has an entry per place. */
    places = ((uint64_t)object.members.n + 1) * ((uint64_t)object.count_cap + 1) << object.n_needs;
    if (places > OBJECT_PLACES_MAX)
        compile_fail(schema->c, ERR_LIMIT, "min/maxProperties on an object with too many names");
    object.after = compile_alloc(schema->c, (size_t)(places > OBJECT_PLACES_MAX ? 1 : places) *
                                                sizeof *object.after);
    if (!compile_ok(schema->c))
        return;
    memset(object.after, 0xff, (size_t)places * sizeof *object.after);
    /* Each combination of count and needs met has its own layer of trees of names. */
    for (count = 0; count <= object.count_cap && compile_ok(schema->c); count++)
        for (found = 0; found < 1u << object.n_needs && compile_ok(schema->c); found++)
            schema_layer_build(&object, count, found, begin);
}
