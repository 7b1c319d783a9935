/* SPDX-License-Identifier: Apache-2.0
 *
 * Expands literals to alternatives. The loop takes a branch from a stack and works off its list: a
 * literal adds the work of its keywords, an "or" replaces the branch by one per option. A branch
 * without work is an alternative:
 *
 *     {"anyOf": [{"type": "string"}, {"minimum": 1}]}
 *         -> string | null, boolean, number >= 1, string, array, object
 *
 * (The second option does not constrain types, because "minimum" only concerns numbers.) */
#include <string.h>

#include "base/must.h"
#include "grammar/schema_expand.h"

#define BRANCHES_MAX     20000
#define ALTERNATIVES_MAX 2000
#define BRANCHES_ASKED   500 /* when only the existence of an alternative is asked for */

/* --- literals ----------------------------------------------------------------------------- */

/* Literals are numbered by the address of their node, so equal numbers mean the same schema
 * object. */
uint32_t schema_literal_of(struct schema *schema, const struct json *node, bool constant,
                           bool negated)
{
    uint64_t address = (uint64_t)(uintptr_t)node;
    uint32_t word[3] = {(uint32_t)address, (uint32_t)(address >> 32), constant * 2u + negated};
    bool is_new;
    uint32_t n = dfa_keys_find(&schema->literal_keys, word, 3, &is_new);

    if (is_new && LIST_ADD(schema->c, &schema->literals))
        schema->literals.items[n] = (struct literal){node, constant, negated};
    return n;
}

uint32_t schema_literal_not(struct schema *schema, uint32_t literal)
{
    struct literal entry = schema->literals.items[literal];

    return schema_literal_of(schema, entry.node, entry.constant, !entry.negated);
}

/* --- work items --------------------------------------------------------------------------- */

const struct schema_item *schema_item_of(struct expansion *expansion, struct schema_item item,
                                         const struct schema_item *next)
{
    struct schema_item *copy = compile_alloc(expansion->s->c, sizeof *copy);

    if (copy == NULL)
        return NULL;
    *copy = item;
    copy->next = next;
    return copy;
}

const struct schema_item *schema_item_literal(struct expansion *expansion, const struct json *node,
                                              bool negated, const struct schema_item *next)
{
    return schema_item_of(
        expansion,
        (struct schema_item){.kind = ITEM_LITERAL,
                             .literal = schema_literal_of(expansion->s, node, false, negated)},
        next);
}

const struct schema_item *schema_item_types(struct expansion *expansion, unsigned types,
                                            const struct schema_item *next)
{
    return schema_item_of(expansion, (struct schema_item){.kind = ITEM_TYPES, .types = types},
                          next);
}

const struct schema_item *schema_item_atom(struct expansion *expansion, struct atom atom,
                                           const struct schema_item *next)
{
    struct atom *copy = compile_alloc(expansion->s->c, sizeof *copy);

    if (copy == NULL)
        return NULL;
    *copy = atom;
    return schema_item_of(expansion, (struct schema_item){.kind = ITEM_ATOM, .atom = copy}, next);
}

/* Append an option, in the order of the document. */
void schema_add_option(struct expansion *expansion, struct options *options,
                       const struct schema_item *items)
{
    struct either *option = compile_alloc(expansion->s->c, sizeof *option);

    if (option == NULL)
        return;
    option->items = items;
    if (options->last == NULL)
        options->first = option;
    else
        options->last->next = option;
    options->last = option;
    options->n++;
}

/* --- the current branch ------------------------------------------------------------------- */

void schema_expand_item(struct expansion *expansion, struct schema_item item)
{
    expansion->now.work = schema_item_of(expansion, item, expansion->now.work);
}

void schema_expand_literal(struct expansion *expansion, const struct json *node, bool negated)
{
    schema_expand_item(expansion, (struct schema_item){.kind = ITEM_LITERAL,
                                                       .literal = schema_literal_of(
                                                           expansion->s, node, false, negated)});
}

void schema_expand_atom(struct expansion *expansion, struct atom atom)
{
    struct atom *copy = compile_alloc(expansion->s->c, sizeof *copy);

    if (copy == NULL)
        return;
    *copy = atom;
    copy->next = expansion->now.atoms;
    expansion->now.atoms = copy;
}

void schema_expand_either(struct expansion *expansion, const struct options *options)
{
    schema_expand_item(expansion,
                       (struct schema_item){.kind = ITEM_EITHER, .either = options->first});
}

void *schema_refuse(struct expansion *expansion, const struct json *node, const char *what)
{
    expansion->s->c->at = node;
    compile_fail(expansion->s->c, ERR_UNSUPPORTED, "%s", what);
    return NULL;
}

void schema_is_invalid(struct expansion *expansion, const struct json *node, const char *what)
{
    expansion->s->c->at = node;
    compile_fail(expansion->s->c, ERR_INVALID, "\"%s\" must be %s",
                 node->key == NULL ? "?" : node->key, what);
}

/* Read a count: a whole number >= 0, possibly written as 2.0. False after an error. */
bool schema_count_of(struct expansion *expansion, const struct json *node, uint32_t *n)
{
    double value = json_is_number(node) ? json_real(node) : -1;

    must(node != NULL && n != NULL);
    /* The comparison with its own truncation finds fractions. Values from 1e15 on are whole in
     * any case as far as limits are concerned. */
    if (value < 0 || value != (double)(uint64_t)(value < 1e15 ? value : 1)) {
        if (!(value >= 1e15)) {
            schema_is_invalid(expansion, node, "a whole number, 0 or more");
            return false;
        }
    }
    /* No string or array of a reply is that long, so larger counts are all the same. */
    if (value > 4e9)
        *n = 4000000000u;
    else
        *n = (uint32_t)value;
    return true;
}

/* The types of a name in "type"; 0: unknown. */
static unsigned schema_type_bits(const struct json *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {{"null", TYPE_NULL},     {"boolean", TYPE_FALSE | TYPE_TRUE},
                 {"integer", TYPE_WHOLE}, {"number", TYPE_NUMBER},
                 {"string", TYPE_STRING}, {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT}, {"any", TYPE_ALL}};
    size_t i;

    /* A name that is unknown gives 0, which the caller reports with its place. */
    for (i = 0; i < sizeof types / sizeof types[0]; i++)
        if (json_is_text(name, types[i].name))
            return types[i].bits;
    return 0;
}

/* The value of "type" as bits: a name, or a list of names that are united. */
unsigned schema_types_of(struct expansion *expansion, const struct json *node)
{
    unsigned types = 0;
    uint32_t i;

    must(node != NULL);
    if (node->kind == JSON_TEXT)
        types = schema_type_bits(node);
    for (i = 0; node->kind == JSON_LIST && i < node->n; i++)
        types |= schema_type_bits(&node->items[i]);
    if (types == 0)
        schema_is_invalid(expansion, node, "a type's name or a list of them");
    return types;
}

/* The type of a constant. 2.0 is a whole number. */
static unsigned schema_type_of_value(const struct json *value)
{
    switch (value->kind) {
    case JSON_NULL: return TYPE_NULL;
    case JSON_BOOL: return value->flag ? TYPE_TRUE : TYPE_FALSE;
    /* Numbers that were parsed as integers are whole; a real one is whole if its fraction is
     * zero, such as 2.0 or 1e3. */
    case JSON_INT:
    case JSON_UINT: return TYPE_WHOLE;
    case JSON_REAL: break;
    case JSON_TEXT: return TYPE_STRING;
    case JSON_LIST: return TYPE_ARRAY;
    case JSON_OBJECT: return TYPE_OBJECT;
    }
    struct decimal decimal;

    /* Decimal digits are used and not a double, which would round 1.00000000000000000001 to a
     * whole number. */
    if (schema_decimal_read(&decimal, value->text, value->n) && decimal.n_frac == 0)
        return TYPE_WHOLE;
    return TYPE_FRACTION;
}

/* --- constants ---------------------------------------------------------------------------- */

/* One of values[0 .. n): scalars in one option, each list and object in an option of its own.
 * Negated: none of the scalars, and for each list and object a literal. */
void schema_expand_values(struct expansion *expansion, const struct json *values, uint32_t n,
                          bool negated)
{
    struct options options = {0};
    unsigned types = 0;
    const struct schema_item *all = NULL;
    uint32_t i;

    must(values != NULL || n == 0);
    for (i = 0; i < n && compile_tick(expansion->s->c); i++)
        types |= schema_type_of_value(&values[i]);
    /* The atoms of strings and numbers take the whole list and select their kind from it. */
    if (!negated) {
        all = schema_item_atom(expansion,
                               (struct atom){.kind = ATOM_STRINGS, .node = values, .n = n}, all);
        all = schema_item_atom(expansion,
                               (struct atom){.kind = ATOM_NUMBERS, .node = values, .n = n}, all);
        all = schema_item_types(expansion, types & ~(unsigned)(TYPE_ARRAY | TYPE_OBJECT), all);
        if ((types & ~(unsigned)(TYPE_ARRAY | TYPE_OBJECT)) != 0)
            schema_add_option(expansion, &options, all);
    } else {
        types &= TYPE_NULL | TYPE_TRUE | TYPE_FALSE;
        schema_expand_item(expansion,
                           (struct schema_item){.kind = ITEM_TYPES, .types = TYPE_ALL & ~types});
        schema_expand_atom(
            expansion,
            (struct atom){.kind = ATOM_STRINGS, .node = values, .n = n, .negated = true});
        schema_expand_atom(
            expansion,
            (struct atom){.kind = ATOM_NUMBERS, .node = values, .n = n, .negated = true});
    }
    for (i = 0; i < n && compile_tick(expansion->s->c); i++) {
        struct schema_item item = {.kind = ITEM_LITERAL};

        if (values[i].kind != JSON_LIST && values[i].kind != JSON_OBJECT)
            continue;
        item.literal = schema_literal_of(expansion->s, &values[i], true, negated);
        if (negated)
            schema_expand_item(expansion, item);
        else
            schema_add_option(expansion, &options, schema_item_of(expansion, item, NULL));
    }
    if (!negated)
        schema_expand_either(expansion, &options);
}

/* A constant that is a list: the right length, and each item equal. Its negation: another type,
 * another length, or some item that differs. */
static void schema_expand_list_constant(struct expansion *expansion, const struct json *value,
                                        bool negated)
{
    struct options options = {0};
    uint32_t i;

    if (!negated) {
        schema_expand_item(expansion,
                           (struct schema_item){.kind = ITEM_TYPES, .types = TYPE_ARRAY});
        schema_expand_atom(expansion, (struct atom){.kind = ATOM_ITEMS_LEAST, .n = value->n});
        schema_expand_atom(expansion, (struct atom){.kind = ATOM_ITEMS_MOST, .n = value->n});
        for (i = 0; i < value->n && compile_tick(expansion->s->c); i++)
            schema_expand_atom(expansion,
                               (struct atom){.kind = ATOM_ITEM,
                                             .n = i,
                                             .literal = schema_literal_of(
                                                 expansion->s, &value->items[i], true, false)});
        return;
    }
    /* Four ways to differ: another type, more items, fewer items, or a list of at least i + 1 items
     * whose item i is another value. */
    schema_add_option(expansion, &options,
                      schema_item_types(expansion, TYPE_ALL & ~(unsigned)TYPE_ARRAY, NULL));
    schema_add_option(
        expansion, &options,
        schema_item_types(
            expansion, TYPE_ARRAY,
            schema_item_atom(expansion, (struct atom){.kind = ATOM_ITEMS_LEAST, .n = value->n + 1},
                             NULL)));
    if (value->n > 0)
        schema_add_option(
            expansion, &options,
            schema_item_types(
                expansion, TYPE_ARRAY,
                schema_item_atom(expansion,
                                 (struct atom){.kind = ATOM_ITEMS_MOST, .n = value->n - 1}, NULL)));
    for (i = 0; i < value->n && compile_tick(expansion->s->c); i++) {
        struct atom least = {.kind = ATOM_ITEMS_LEAST, .n = i + 1};
        struct atom item = {.kind = ATOM_ITEM,
                            .n = i,
                            .literal =
                                schema_literal_of(expansion->s, &value->items[i], true, true)};

        schema_add_option(
            expansion, &options,
            schema_item_types(
                expansion, TYPE_ARRAY,
                schema_item_atom(expansion, least, schema_item_atom(expansion, item, NULL))));
    }
    schema_expand_either(expansion, &options);
}

/* A node that is a member's name as a text, for atoms about names. */
const struct json *schema_name_text(struct expansion *expansion, const struct json *member)
{
    struct json *text = compile_alloc(expansion->s->c, sizeof *text);

    must(member->key != NULL);
    if (text == NULL)
        return member;
    text->kind = JSON_TEXT;
    text->text = member->key;
    text->text_len = member->key_len;
    return text;
}

const struct schema_item *schema_item_required(struct expansion *expansion, const struct json *text,
                                               const struct schema_item *next)
{
    return schema_item_atom(expansion, (struct atom){.kind = ATOM_REQUIRED, .node = text}, next);
}

/* A constant that is an object: exactly these members with these values. Its negation: another
 * type, more members, some member that is missing, or one whose value differs. */
static void schema_expand_object_constant(struct expansion *expansion, const struct json *value,
                                          bool negated)
{
    struct options options = {0};
    uint32_t i;

    /* Exactly these members: an object, with at most as many members as the constant has, and
     * below each of them is demanded. Names are unique, so no other member has room. */
    if (!negated) {
        schema_expand_item(expansion,
                           (struct schema_item){.kind = ITEM_TYPES, .types = TYPE_OBJECT});
        schema_expand_atom(expansion, (struct atom){.kind = ATOM_MEMBERS_MOST, .n = value->n});
    } else {
        /* The negation needs one of these: no object at all, more members, or for some member
         * that it is missing or differs. */
        schema_add_option(expansion, &options,
                          schema_item_types(expansion, TYPE_ALL & ~(unsigned)TYPE_OBJECT, NULL));
        schema_add_option(
            expansion, &options,
            schema_item_types(
                expansion, TYPE_OBJECT,
                schema_item_atom(expansion,
                                 (struct atom){.kind = ATOM_MEMBERS_LEAST, .n = value->n + 1},
                                 NULL)));
    }
    for (i = 0; i < value->n && compile_tick(expansion->s->c); i++) {
        const struct json *text = schema_name_text(expansion, &value->items[i]);
        struct atom member = {.kind = ATOM_PROPERTY,
                              .node = &value->items[i],
                              .literal =
                                  schema_literal_of(expansion->s, &value->items[i], true, negated)};

        if (!negated) {
            schema_expand_atom(expansion, (struct atom){.kind = ATOM_REQUIRED, .node = text});
            schema_expand_atom(expansion, member);
            continue;
        }
        /* The member is missing. */
        schema_add_option(
            expansion, &options,
            schema_item_types(expansion, TYPE_OBJECT,
                              schema_item_atom(expansion,
                                               (struct atom){.kind = ATOM_ABSENT, .node = text},
                                               NULL)));
        /* The member exists and differs. */
        schema_add_option(
            expansion, &options,
            schema_item_types(
                expansion, TYPE_OBJECT,
                schema_item_required(expansion, text, schema_item_atom(expansion, member, NULL))));
    }
    /* The options were collected in the loop; one of them must hold. */
    if (negated)
        schema_expand_either(expansion, &options);
}

/* --- contradictions ----------------------------------------------------------------------- */

/* A branch that nothing can satisfy should not become an alternative: it would cost states, and
 * make alternatives of "oneOf" look as if they overlapped. These checks find common contradictions;
 * the rest is found when states without a way to an end are dropped. */

/* Is a text in an atom's list? */

static bool schema_text_listed(const struct atom *atom, const struct json *value)
{
    uint32_t i;

    for (i = 0; i < atom->n; i++)
        if (atom->node[i].kind == JSON_TEXT && atom->node[i].text_len == value->text_len &&
            memcmp(atom->node[i].text, value->text, value->text_len) == 0)
            return true;
    return false;
}

/* Is a number in an atom's list? */
static bool schema_number_listed(const struct atom *atom, const struct json *value)
{
    uint32_t i;

    for (i = 0; i < atom->n; i++)
        if (json_is_number(&atom->node[i]) && json_real(&atom->node[i]) == json_real(value))
            return true;
    return false;
}

/* Is a value of a list also in all other lists that must contain it, and in none that must not?
 * Numbers are compared as doubles: different ones may be taken for equal, but not the reverse. */
static bool schema_value_left(struct expansion *expansion, const struct atom *list,
                              const struct json *value)
{
    const struct atom *atom;

    for (atom = expansion->now.atoms; atom != NULL && compile_tick(expansion->s->c);
         atom = atom->next) {
        bool listed;

        if (atom == list || atom->kind != list->kind)
            continue;
        if (atom->kind == ATOM_STRINGS)
            listed = schema_text_listed(atom, value);
        else
            listed = schema_number_listed(atom, value);
        /* An inexact comparison must not exclude a number. */
        if (atom->kind == ATOM_NUMBERS && atom->negated)
            continue;
        if (listed == atom->negated)
            return false;
    }
    return true;
}

/* Drop strings or numbers if no value of some list is left. */
static void schema_drop_empty_lists(struct expansion *expansion)
{
    const struct atom *atom;
    uint32_t i;

    /* Only lists of strings and of numbers are looked at: other constants have become types or
     * members. */
    for (atom = expansion->now.atoms; atom != NULL && compile_tick(expansion->s->c);
         atom = atom->next) {
        bool text = atom->kind == ATOM_STRINGS;
        bool left = false;

        /* A negated list excludes values and never leaves the type empty, since there are always
         * others. */
        if ((!text && atom->kind != ATOM_NUMBERS) || atom->negated)
            continue;
        /* A value remains if it satisfies all other constraints of the branch; one is enough. */
        for (i = 0; i < atom->n && !left && compile_tick(expansion->s->c); i++)
            if (text ? atom->node[i].kind == JSON_TEXT : json_is_number(&atom->node[i]))
                left = schema_value_left(expansion, atom, &atom->node[i]);
        /* With no value left, the type cannot occur in this branch. Dropping it here avoids
         * states that cannot reach an end. */
        if (!left)
            expansion->now.types &= ~(unsigned)(text ? TYPE_STRING : TYPE_NUMBER);
    }
}

/* Drop a type whose lower bound is above its upper bound. */
static void schema_drop_empty_ranges(struct expansion *expansion)
{
    static const struct {
        enum atom_kind least, most;
        unsigned type;
    } pairs[] = {{ATOM_LENGTH_LEAST, ATOM_LENGTH_MOST, TYPE_STRING},
                 {ATOM_ITEMS_LEAST, ATOM_ITEMS_MOST, TYPE_ARRAY},
                 {ATOM_MEMBERS_LEAST, ATOM_MEMBERS_MOST, TYPE_OBJECT}};
    const struct atom *atom;
    const struct atom *other;
    size_t i;

    /* Atoms are few, so all pairs are compared. */
    for (atom = expansion->now.atoms; atom != NULL; atom = atom->next)
        for (other = expansion->now.atoms; other != NULL && compile_tick(expansion->s->c);
             other = other->next) {
            for (i = 0; i < 3; i++)
                if (atom->kind == pairs[i].least && other->kind == pairs[i].most &&
                    atom->n > other->n)
                    expansion->now.types &= ~pairs[i].type;
            if (atom->kind == ATOM_LEAST && other->kind == ATOM_MOST &&
                json_real(atom->node) > json_real(other->node))
                expansion->now.types &= ~(unsigned)TYPE_NUMBER;
        }
}

/* Collect the literals for the value of a required member. False when no such member can exist.
 * Patterns of names are not considered, so the list may be incomplete. */
static bool schema_member_wants(struct expansion *expansion, const struct json *name,
                                uint32_t *list, uint32_t *n, uint32_t cap)
{
    const struct atom *atom;

    for (atom = expansion->now.atoms; atom != NULL && *n < cap; atom = atom->next) {
        const struct json *known, *own, *other;

        if (atom->kind == ATOM_ABSENT && atom->node->text_len == name->text_len &&
            memcmp(atom->node->text, name->text, name->text_len) == 0)
            return false;
        if (atom->kind == ATOM_PROPERTY && atom->node->key_len == name->text_len &&
            memcmp(atom->node->key, name->text, name->text_len) == 0)
            list[(*n)++] = atom->literal;
        if (atom->kind != ATOM_MEMBERS)
            continue;
        /* As in JSON Schema: the member's own schema, else that of additionalProperties, which does
         * not apply to names that a pattern matches. */
        known = json_get_kind(atom->node, "properties", JSON_OBJECT);
        if (known == NULL)
            own = NULL;
        else
            own = json_get_n(known, name->text, name->text_len);
        other = json_get(atom->node, "additionalProperties");
        if (own == NULL && json_get(atom->node, "patternProperties") == NULL)
            own = other;
        if (own != NULL && own->kind == JSON_BOOL && !own->flag)
            return false;
        if (own != NULL)
            list[(*n)++] = schema_literal_of(expansion->s, own, false, false);
    }
    return true;
}

/* Drop objects if some required member cannot exist or has contradictory schemas. */
static void schema_drop_empty_objects(struct expansion *expansion)
{
    const struct atom *atom;

    /* As soon as objects are excluded there is nothing left to find. */
    for (atom = expansion->now.atoms; atom != NULL && (expansion->now.types & TYPE_OBJECT) != 0;
         atom = atom->next) {
        uint32_t list[32];
        uint32_t n = 0;

        /* Only required members matter: an optional one that cannot exist is left out of the
         * object. */
        if (atom->kind != ATOM_REQUIRED || !compile_tick(expansion->s->c))
            continue;
        /* The member's demands contradict each other at once, for example by
         * additionalProperties: false. A deeper contradiction takes a search of its own, limited
         * in depth, because schemas may be recursive. */
        if (!schema_member_wants(expansion, atom->node, list, &n, 32))
            expansion->now.types &= ~(unsigned)TYPE_OBJECT;
        else if (expansion->depth > 0 && n > 1 &&
                 schema_is_surely_empty(expansion->s, list, n, expansion->depth - 1))
            expansion->now.types &= ~(unsigned)TYPE_OBJECT;
    }
}

/* uniqueItems is supported where at most one item can exist, or where items are from a list of
 * scalars. */
static void schema_drop_unique(struct expansion *expansion)
{
    const struct atom *atom;
    const struct atom *unique = NULL;
    uint32_t most = NONE;

    /* Find the keyword and the least maximum of items. */
    for (atom = expansion->now.atoms; atom != NULL; atom = atom->next) {
        if (atom->kind == ATOM_UNIQUE)
            unique = atom;
        if (atom->kind == ATOM_ITEMS_MOST && atom->n < most)
            most = atom->n;
    }
    if (unique != NULL && most > 1 && (expansion->now.types & TYPE_ARRAY) != 0 &&
        !expansion->asking && schema_array_values(expansion->s, expansion->now.atoms, NULL) == 0)
        (void)schema_refuse(
            expansion, unique->node,
            "\"uniqueItems\" is only supported for items of an enum, const or boolean, and "
            "with \"maxItems\": 1: list the values as an \"enum\", or leave it out and look for "
            "equal items in the answer");
}

/* --- the loop ----------------------------------------------------------------------------- */

/* The branch is complete: it becomes an alternative, with its atoms in the order they were
 * found. */
static void schema_branch_done(struct expansion *expansion)
{
    const struct atom *atom;
    const struct atom *turned = NULL;

    schema_drop_empty_lists(expansion);
    schema_drop_empty_ranges(expansion);
    schema_drop_empty_objects(expansion);
    if (expansion->now.types == 0 || !compile_ok(expansion->s->c))
        return;
    schema_drop_unique(expansion);
    /* The list is a stack. Turning it over also copies it, because branches share the atoms that
     * they had before they split. */
    for (atom = expansion->now.atoms; atom != NULL && compile_tick(expansion->s->c);
         atom = atom->next) {
        struct atom *copy = compile_alloc(expansion->s->c, sizeof *copy);

        if (copy == NULL)
            return;
        *copy = *atom;
        copy->next = turned;
        turned = copy;
    }
    if (expansion->found.n == ALTERNATIVES_MAX)
        compile_fail(expansion->s->c, ERR_LIMIT, "more than %d alternatives: simplify it",
                     ALTERNATIVES_MAX);
    if (LIST_ADD(expansion->s->c, &expansion->found))
        expansion->found.items[expansion->found.n - 1] =
            (struct alternative){expansion->now.types, turned};
}

/* Replace the branch by one per option. The first option is processed first. */
static void schema_expand_split(struct expansion *expansion, const struct either *options)
{
    const struct either *option;
    uint32_t first = expansion->stack.n;
    uint32_t i;

    if (options == NULL) { /* an "or" without options is false */
        expansion->now.types = 0;
        return;
    }
    for (option = options; option != NULL && compile_tick(expansion->s->c); option = option->next) {
        struct branch branch = expansion->now;
        const struct schema_item *item;

        for (item = option->items; item != NULL; item = item->next)
            branch.work = schema_item_of(expansion, *item, branch.work);
        if (LIST_ADD(expansion->s->c, &expansion->stack))
            expansion->stack.items[expansion->stack.n - 1] = branch;
    }
    /* Reverse the order, so that the first option is on top of the stack. */
    for (i = 0; compile_ok(expansion->s->c) && i < (expansion->stack.n - first) / 2; i++) {
        struct branch branch = expansion->stack.items[first + i];

        expansion->stack.items[first + i] = expansion->stack.items[expansion->stack.n - 1 - i];
        expansion->stack.items[expansion->stack.n - 1 - i] = branch;
    }
    expansion->now.types = 0; /* its copies continue */
}

/* Process a literal, once per branch. If its negation was processed before, the branch is
 * contradictory. */
static void schema_literal_done(struct expansion *expansion, uint32_t literal)
{
    struct literal entry = expansion->s->literals.items[literal];
    uint32_t opposite = schema_literal_not(expansion->s, literal);
    struct seen *seen;
    const struct seen *seen_before;

    /* A recursive schema, {"allOf": [{"$ref": "#"}]}, mentions a literal inside of itself; it adds
     * no constraint, so the second mention is skipped and the expansion ends. */
    for (seen_before = expansion->now.seen; seen_before != NULL && compile_tick(expansion->s->c);
         seen_before = seen_before->next) {
        if (seen_before->literal == literal)
            return;
        if (seen_before->literal == opposite) {
            expansion->now.types = 0;
            return;
        }
    }
    seen = compile_alloc(expansion->s->c, sizeof *seen);
    if (seen == NULL)
        return;
    *seen = (struct seen){expansion->now.seen, literal};
    expansion->now.seen = seen;
    if (entry.constant) {
        if (entry.node->kind == JSON_LIST)
            schema_expand_list_constant(expansion, entry.node, entry.negated);
        else if (entry.node->kind == JSON_OBJECT)
            schema_expand_object_constant(expansion, entry.node, entry.negated);
        else
            schema_expand_values(expansion, entry.node, 1, entry.negated);
        return;
    }
    if (entry.node->kind == JSON_BOOL) {
        if (entry.node->flag == entry.negated)
            expansion->now.types = 0;
    } else if (entry.node->kind != JSON_OBJECT) {
        expansion->s->c->at = entry.node;
        compile_fail(expansion->s->c, ERR_INVALID, "a schema must be an object, true or false");
    } else if (entry.negated) {
        schema_deny(expansion, entry.node);
    } else {
        schema_hold(expansion, entry.node);
    }
}

/* Work off one branch. */
static void schema_branch_run(struct expansion *expansion)
{
    /* The work list grows while it is processed, as literals turn into items. It ends when no
     * item is left or no type is possible. */
    while (expansion->now.work != NULL && expansion->now.types != 0 &&
           compile_tick(expansion->s->c)) {
        const struct schema_item *item = expansion->now.work;

        expansion->now.work = item->next;
        switch (item->kind) {
        /* A literal is replaced by the items of its schema's keywords. */
        case ITEM_LITERAL: schema_literal_done(expansion, item->literal); break;
        case ITEM_TYPES: expansion->now.types &= item->types; break;
        case ITEM_ATOM: schema_expand_atom(expansion, *item->atom); break;
        case ITEM_VALUES:
            schema_expand_values(expansion, item->atom->node, item->atom->n, item->atom->negated);
            break;
        /* A choice: copies of the branch, one per option, go to the stack, and this one ends. */
        case ITEM_EITHER: schema_expand_split(expansion, item->either); break;
        }
    }
    /* All items were processed: the branch is an alternative. */
    if (expansion->now.types != 0 && compile_ok(expansion->s->c))
        schema_branch_done(expansion);
}

/* Work off all branches, beginning with one in which all literals are to be processed. */
static void schema_expand_run(struct expansion *expansion, const uint32_t *literals, uint32_t n)
{
    uint32_t i;

    if (!LIST_ADD(expansion->s->c, &expansion->stack))
        return;
    expansion->now = (struct branch){.types = TYPE_ALL};
    /* In reverse, because each one is put at the front of the work list. */
    for (i = n; i-- > 0;)
        schema_expand_item(expansion,
                           (struct schema_item){.kind = ITEM_LITERAL, .literal = literals[i]});
    expansion->stack.items[0] = expansion->now;
    while (expansion->stack.n > 0 && compile_ok(expansion->s->c)) {
        /* The number of branches can be exponential in the size of the schema, hence the bound.
         * A question about emptiness (`asking`) may give up, and then counts as "not surely
         * empty". */
        if (++expansion->n_branches > (expansion->asking ? BRANCHES_ASKED : BRANCHES_MAX)) {
            expansion->gave_up = true;
            if (!expansion->asking)
                compile_fail(expansion->s->c, ERR_LIMIT,
                             "its alternatives are too many: simplify it");
            return;
        }
        /* Depth first: the stack stays small, and the first alternative is found early. */
        expansion->now = expansion->stack.items[--expansion->stack.n];
        schema_branch_run(expansion);
        /* A question is answered by the first alternative. */
        if (expansion->asking && expansion->found.n > 0)
            return;
    }
}

struct alternatives schema_expand(struct schema *schema, const uint32_t *literals, uint32_t n)
{
    struct expansion expansion = {.s = schema};

    must(literals != NULL || n == 0);
    schema_expand_run(&expansion, literals, n);
    return (struct alternatives){expansion.found.items,
                                 compile_ok(schema->c) ? expansion.found.n : 0};
}

bool schema_is_surely_empty(struct schema *schema, const uint32_t *literals, uint32_t n, int depth)
{
    struct expansion expansion = {.s = schema, .asking = true, .depth = depth};

    must(literals != NULL || n == 0);
    must(depth >= 0);
    schema_expand_run(&expansion, literals, n);
    return compile_ok(schema->c) && !expansion.gave_up && expansion.found.n == 0;
}
