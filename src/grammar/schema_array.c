/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays. A position is the number of items passed, up to where all further ones are alike;
 * `contains` adds layers, one per count of items found. An item that may count is built as a
 * choice: it satisfies the literal, or it need not (or must not, where the number is bounded
 * above).
 *
 * With uniqueItems a layer is the set of values that were used, for up to UNIQUE_SETS values. With
 * more values the items come in the order of the enum, and a layer is the place reached in it. */
#include <string.h>

#include "grammar/schema_parts.h"

#define COUNTS_MAX       4
#define ARRAY_PLACES_MAX 100000
#define ITEMS_NO_LIMIT   1048576
#define UNIQUE_SETS      6 /* values, hence 64 sets */
#define UNIQUE_DEPTH     8 /* nesting of $ref and anyOf */

struct count { /* of items that satisfy a literal */
    uint32_t literal;
    uint32_t min, max; /* NONE: unbounded */
    uint32_t from;     /* items before it do not count */
    uint32_t cap;      /* counting further makes no difference */
};

struct array {
    struct schema *s;
    const struct alternative *a;
    uint32_t min, max;
    uint32_t last; /* positions from here on are alike, except for the end */
    struct count counts[COUNTS_MAX];
    uint32_t n_counts;
    uint32_t n_layers;
    const struct json *unique[ARRAY_VALUES_MAX]; /* uniqueItems: the possible values of items */
    uint32_t n_unique;                           /* 0: items may be equal */
    uint32_t *after; /* [position][layer]: the state after an item; NONE: not built */
};

/* --- the keywords ------------------------------------------------------------------------- */

/* The list of schemas by position: prefixItems, or items of older drafts; NULL: none. */
static const struct json *schema_prefix_of(const struct json *schema)
{
    const struct json *prefix = json_get_kind(schema, "prefixItems", JSON_LIST);

    if (prefix != NULL)
        return prefix;
    return json_get_kind(schema, "items", JSON_LIST);
}

/* The schema of all further items; NULL: any. */
static const struct json *schema_rest_of(const struct json *schema)
{
    const struct json *items = json_get(schema, "items");

    if (items != NULL && items->kind == JSON_LIST)
        return json_get(schema, "additionalItems");
    return items;
}

/* --- uniqueItems -------------------------------------------------------------------------- */

struct values {
    const struct json *items[ARRAY_VALUES_MAX];
    uint32_t n;
};

/* Compare two scalars that can be compared exactly. */
static bool schema_same_value(const struct json *a, const struct json *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == JSON_TEXT)
        return a->text_len == b->text_len && memcmp(a->text, b->text, a->text_len) == 0;
    if (a->kind == JSON_BOOL)
        return a->flag == b->flag;
    return a->kind == JSON_NULL || a->whole == b->whole;
}

/* Add a value to the set. False for values with several spellings (reals), or when there are too
 * many. */
static bool schema_values_add(struct values *values, const struct json *value)
{
    if (value->kind != JSON_TEXT && value->kind != JSON_INT && value->kind != JSON_BOOL &&
        value->kind != JSON_NULL)
        return false;
    for (uint32_t i = 0; i < values->n; i++)
        if (schema_same_value(values->items[i], value))
            return true;
    if (values->n == ARRAY_VALUES_MAX)
        return false;
    values->items[values->n++] = value;
    return true;
}

/* Collect the possible values of a schema. False when they are not a list of scalars. Recurses at
 * most UNIQUE_DEPTH deep. */
static bool schema_values_of(struct schema *s, const struct json *schema, struct values *values,
                             int depth)
{
    static const struct json both[] = {{.kind = JSON_BOOL}, {.kind = JSON_BOOL, .flag = true}};
    const struct json *ref = json_get_kind(schema, "$ref", JSON_TEXT);
    const struct json *list = json_get_kind(schema, "enum", JSON_LIST);
    const struct json *any = json_get_kind(schema, "anyOf", JSON_LIST);
    const struct json *value = json_get(schema, "const");
    bool known = true;

    if (depth == UNIQUE_DEPTH || schema == NULL || schema->kind != JSON_OBJECT)
        return false;
    if (ref != NULL)
        return schema_values_of(s, schema_index_find(s, schema, ref), values, depth + 1);
    if (value != NULL)
        return schema_values_add(values, value);
    /* The values of an enum, or those of all options of an anyOf. */
    for (uint32_t i = 0; list != NULL && i < list->n && known; i++)
        known = schema_values_add(values, &list->items[i]);
    for (uint32_t i = 0; list == NULL && any != NULL && i < any->n && known; i++)
        known = schema_values_of(s, &any->items[i], values, depth + 1);
    if (list != NULL || any != NULL)
        return known;
    return json_is_text(json_get(schema, "type"), "boolean") &&
           schema_values_add(values, &both[0]) && schema_values_add(values, &both[1]);
}

uint32_t schema_array_values(struct schema *schema, const struct atom *atoms,
                             const struct json **values)
{
    struct values found = {.n = 0};
    bool known = false;

    for (const struct atom *atom = atoms; atom != NULL && compile_tick(schema->c);
         atom = atom->next) {
        if (atom->kind == ATOM_CONTAINS)
            return 0; /* layers of both kinds would be too many */
        if (known || atom->kind != ATOM_ITEMS || schema_prefix_of(atom->node) != NULL)
            continue;
        found.n = 0;
        known = schema_values_of(schema, schema_rest_of(atom->node), &found, 0);
    }
    if (known && values != NULL)
        memcpy(values, found.items, found.n * sizeof(const struct json *));
    if (known)
        return found.n;
    return 0;
}

/* The layer after one more value; NONE: the value may not come any more. */
static uint32_t schema_unique_next(const struct array *array, uint32_t layer, uint32_t value)
{
    if (array->n_unique > UNIQUE_SETS) {
        if (value >= layer)
            return value + 1;
        return NONE;
    }
    if ((layer >> value & 1) == 0)
        return layer | 1u << value;
    return NONE;
}

/* Set up the layers of uniqueItems. */
static void schema_unique_begin(struct array *array)
{
    bool unique = false;

    for (const struct atom *atom = array->a->atoms; atom != NULL; atom = atom->next)
        unique = unique || (atom->kind == ATOM_UNIQUE && !atom->negated);
    /* An array of at most one item has no two equal items. */
    if (!unique || array->max <= 1)
        return;
    /* uniqueItems needs the items to come from a finite list, because the automaton has to
     * remember which ones were used. The list is that of `enum` or `const` of the items. */
    array->n_unique = schema_array_values(array->s, array->a->atoms, array->unique);
    if (array->n_unique == 0)
        return;
    /* Each value can be used once, so there cannot be more items than values. */
    array->max = array->max < array->n_unique ? array->max : array->n_unique;
    /* A layer is a set of used values, one bit each, as long as there are few. With more values,
     * the items must come in the order of the list, and a layer is the first value that is still
     * allowed. */
    if (array->n_unique > UNIQUE_SETS)
        array->n_layers = array->n_unique + 1;
    else
        array->n_layers = 1u << array->n_unique;
}

/* Note a `contains`. */
static void schema_count_add(struct array *array, const struct atom *atom)
{
    struct count *count = &array->counts[array->n_counts];

    if (array->n_counts == COUNTS_MAX) {
        compile_fail(array->s->c, ERR_LIMIT, "more than %d \"contains\" on one array", COUNTS_MAX);
        return;
    }
    *count = (struct count){
        .literal = atom->literal, .min = atom->n, .max = atom->m, .from = atom->from};
    /* Counting stops at the cap. With a maximum, one more is an error; without one, the minimum
     * is all that matters. */
    if (count->max != NONE)
        count->cap = count->max;
    else
        count->cap = count->min;
    /* Each count multiplies the number of states. */
    if (count->cap > 1000)
        compile_fail(array->s->c, ERR_LIMIT, "minContains or maxContains above 1000");
    array->n_counts++;
}

/* Note one atom. */
static void schema_array_note_atom(struct array *array, const struct atom *atom)
{
    const struct json *prefix;

    /* Each atom moves `last` beyond the positions that it treats specially. */
    switch ((int)atom->kind) {
    case ATOM_ITEMS:
        prefix = schema_prefix_of(atom->node);
        if (prefix != NULL && prefix->n > array->last)
            array->last = prefix->n;
        break;
    case ATOM_ITEM: array->last = atom->n + 1 > array->last ? atom->n + 1 : array->last; break;
    case ATOM_ITEMS_LEAST: array->min = atom->n > array->min ? atom->n : array->min; break;
    case ATOM_ITEMS_MOST: array->max = atom->n < array->max ? atom->n : array->max; break;
    case ATOM_CONTAINS:
        schema_count_add(array, atom);
        if (atom->from > array->last)
            array->last = atom->from;
        break;
    default: break;
    }
}

/* The literals for the item at a position. False when no such item may exist. */
static bool schema_item_wants(struct array *array, uint32_t at, uint32_t *list, uint32_t *n,
                              uint32_t cap)
{
    const struct atom *atom;

    for (atom = array->a->atoms; atom != NULL && compile_tick(array->s->c); atom = atom->next) {
        const struct json *prefix, *schema;

        if (*n + COUNTS_MAX >= cap) {
            compile_fail(array->s->c, ERR_LIMIT, "too many schemas meet at one item");
            return false;
        }
        if (atom->kind == ATOM_ITEM && atom->n == at)
            list[(*n)++] = atom->literal;
        if (atom->kind != ATOM_ITEMS)
            continue;
        prefix = schema_prefix_of(atom->node);
        /* An item has either its schema of the prefix or that of all later items. */
        if (prefix != NULL && at < prefix->n)
            schema = &prefix->items[at];
        else
            schema = schema_rest_of(atom->node);
        if (schema == NULL)
            continue;
        /* The schema `false` allows no item at this position, so the array ends before it. */
        if (schema->kind == JSON_BOOL && !schema->flag)
            return false;
        if (schema->kind != JSON_BOOL)
            list[(*n)++] = schema_literal_of(array->s, schema, false, false);
    }
    return true;
}

/* --- building ----------------------------------------------------------------------------- */

/* The state after the item before a position, in a layer. */
static uint32_t schema_array_after(struct array *array, uint32_t at, uint32_t layer)
{
    uint32_t *state =
        &array->after[(at < array->last ? at : array->last) * array->n_layers + layer];

    if (*state == NONE)
        *state = build_state(array->s->b);
    return *state;
}

/* The counts of a layer, which is a number with mixed radix: digit i has the base cap + 1. */
static void schema_layer_read(const struct array *array, uint32_t layer, uint32_t *count)
{
    uint32_t i;

    for (i = 0; i < array->n_counts; i++) {
        count[i] = layer % (array->counts[i].cap + 1);
        layer /= array->counts[i].cap + 1;
    }
}

static uint32_t schema_layer_of(const struct array *array, const uint32_t *count)
{
    uint32_t layer = 0;
    uint32_t i;

    for (i = array->n_counts; i-- > 0;)
        layer = layer * (array->counts[i].cap + 1) + count[i];
    return layer;
}

/* Build one way to read an item: it counts for those literals whose bit in `ways` is set. Ways that
 * make no difference, or one item too many, are left out. */
static void schema_item_way(struct array *array, uint32_t from, uint32_t at, uint32_t layer,
                            uint32_t ways)
{
    uint32_t list[96];
    uint32_t count[COUNTS_MAX] = {0};
    uint32_t n = 0;
    uint32_t i;

    if (!schema_item_wants(array, at, list, &n, sizeof list / sizeof list[0]))
        return;
    schema_layer_read(array, layer, count);
    for (i = 0; i < array->n_counts; i++) {
        const struct count *c = &array->counts[i];
        bool is = (ways >> i & 1) != 0;

        if (at < c->from) {
            if (is)
                return;
            continue;
        }
        if (c->max == NONE && count[i] == c->cap) { /* enough were found */
            if (is)
                return;
            continue;
        }
        if (is && count[i] == c->cap) /* one too many */
            return;
        if (is)
            list[n++] = c->literal;
        else if (c->max != NONE)
            list[n++] = schema_literal_not(array->s, c->literal);
        count[i] += is;
    }
    build_call(array->s->b, from, schema_goal_state(array->s, list, n),
               schema_array_after(array, at + 1, schema_layer_of(array, count)));
}

/* Build the item at a position: a choice of all ways, or with uniqueItems of all values left. */
static void schema_item_build(struct array *array, uint32_t from, uint32_t at, uint32_t layer)
{
    uint32_t ways;

    /* With uniqueItems: one way per value that is left. The value joins the other demands as a
     * literal, since it must satisfy them too. */
    for (uint32_t i = 0; i < array->n_unique && compile_ok(array->s->c); i++) {
        uint32_t next = schema_unique_next(array, layer, i), list[96], n = 0;

        if (next == NONE || !schema_item_wants(array, at, list, &n, sizeof list / sizeof list[0]))
            continue;
        list[n++] = schema_literal_of(array->s, array->unique[i], true, false);
        build_call(array->s->b, from, schema_goal_state(array->s, list, n),
                   schema_array_after(array, at + 1, next));
    }
    if (array->n_unique > 0)
        return;
    /* `ways` is a set of bits: which of the `contains` this item satisfies. Where a maximum
     * counts, it must violate the other ones, so that no item is left out of the count. */
    for (ways = 0; ways < 1u << array->n_counts && compile_ok(array->s->c); ways++)
        schema_item_way(array, from, at, layer, ways);
}

/* May the array end here? */
static bool schema_may_close(const struct array *array, uint32_t at, uint32_t layer)
{
    uint32_t count[COUNTS_MAX] = {0};
    uint32_t i;

    schema_layer_read(array, layer, count);
    for (i = 0; i < array->n_counts; i++)
        if (count[i] < array->counts[i].min)
            return false;
    return at >= array->min;
}

/* Build the continuations after an item: ',' and another one, or ']'. */
static void schema_array_build_place(struct array *array, uint32_t at, uint32_t layer)
{
    struct build *build = array->s->b;
    uint32_t state = array->after[at * array->n_layers + layer];
    uint32_t gap, next;

    /* No item can lead here: the place cannot be reached. */
    if (state == NONE)
        return;
    /* White space comes before a comma and before the bracket, so both share the state after it. */
    gap = build_state(build);
    schema_build_space(array->s, state, gap);
    /* Room for another item. */
    if (array->max == NONE || at < array->max) {
        next = build_state(build);
        schema_build_space_after(array->s, build_text(build, gap, ",", 1), next);
        schema_item_build(array, next, at, layer);
    }
    /* The bracket is allowed only if the number of items and all counts are within their limits. */
    if (schema_may_close(array, at, layer))
        build_edge(build, gap, ']', ']', array->s->end);
}

void schema_array_build(struct schema *schema, uint32_t from, const struct alternative *alternative)
{
    struct array array = {.s = schema, .a = alternative, .max = NONE, .n_layers = 1};
    uint32_t begin = build_nest(schema->b);
    uint32_t gap = build_state(schema->b);
    const struct atom *atom;
    uint64_t places;
    uint32_t at, layer;

    build_edge(schema->b, from, '[', '[', begin);
    for (atom = alternative->atoms; atom != NULL && compile_tick(schema->c); atom = atom->next)
        schema_array_note_atom(&array, atom);
    if (array.max > ITEMS_NO_LIMIT)
        array.max = NONE;
    schema_unique_begin(&array);
    /* `last` is the first position from which on all positions are alike. It must not be before the
     * minimum, nor before a maximum, because positions are counted up to there. */
    if (array.max != NONE && array.max < array.last)
        array.last = array.max;
    if (array.min > array.last)
        array.last = array.min;
    if (array.max != NONE && array.max > array.last)
        array.last = array.max;
    /* Each `contains` multiplies the layers by the number of its counts. The product is checked at
     * each step, so it cannot overflow. */
    for (at = 0, places = ((uint64_t)array.last + 2) * array.n_layers;
         at < array.n_counts && places <= ARRAY_PLACES_MAX; at++) {
        array.n_layers *= array.counts[at].cap + 1;
        places *= array.counts[at].cap + 1;
    }
    if (places > ARRAY_PLACES_MAX)
        compile_fail(schema->c, ERR_LIMIT, "an array of too many positions: at most %d",
                     ARRAY_PLACES_MAX);
    array.after = compile_alloc(schema->c, (size_t)(places > ARRAY_PLACES_MAX ? 1 : places) *
                                               sizeof *array.after);
    if (!compile_ok(schema->c))
        return;
    /* The place after an item is built when it is first needed; NONE until then. */
    memset(array.after, 0xff, (size_t)places * sizeof *array.after);
    schema_build_space(schema, begin, gap);
    if (schema_may_close(&array, 0, 0))
        build_edge(schema->b, gap, ']', ']', schema->end);
    if (array.max == NONE || array.max > 0)
        schema_item_build(&array, gap, 0, 0);
    for (at = 0; at <= array.last && compile_ok(schema->c); at++)
        for (layer = 0; layer < array.n_layers && compile_ok(schema->c); layer++)
            schema_array_build_place(&array, at, layer);
}
