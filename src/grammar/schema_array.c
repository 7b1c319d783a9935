/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays. A position is how many items are behind us, up to where the rest is alike; `contains`
 * adds layers, one for each count of what was found. An item that may be one of those is built as
 * a choice: it is, or it need not be (or, where their number is limited, it is not).
 *
 * With uniqueItems the layers are what was there already: a set of up to UNIQUE_SETS values; of
 * more values the items come in the order of the enum, and a layer is where they have got to. */
#include <string.h>

#include "grammar/schema_parts.h"

#define COUNTS_MAX     4
#define PLACES_MAX     100000
#define ITEMS_NO_LIMIT 1048576
#define UNIQUE_SETS    6 /* values: 64 sets of them */
#define UNIQUE_DEPTH   8 /* of $ref and anyOf */

struct count { /* of items that satisfy a literal */
    uint32_t literal;
    uint32_t min, max; /* NONE: no limit */
    uint32_t from;     /* items in front of it do not count */
    uint32_t cap;      /* counts above make no difference */
};

struct array {
    struct schema *s;
    const struct alternative *a;
    uint32_t min, max;
    uint32_t last; /* positions from here on are alike, but for the end */
    struct count counts[COUNTS_MAX];
    uint32_t n_counts;
    uint32_t n_layers;
    const struct json *unique[ARRAY_VALUES_MAX]; /* uniqueItems: the values of items */
    uint32_t n_unique;                           /* 0: items may be alike */
    uint32_t *after; /* [position][layer] behind an item; NONE: not built */
};

/* --- what there is ------------------------------------------------------------------------ */

/* The list of schemas by position of a schema, old or new; NULL. */
static const struct json *prefix_of(const struct json *schema)
{
    const struct json *prefix = json_get_kind(schema, "prefixItems", JSON_LIST);

    return prefix != NULL ? prefix : json_get_kind(schema, "items", JSON_LIST);
}

/* The schema of the others; NULL: any. */
static const struct json *rest_of(const struct json *schema)
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

static bool same_value(const struct json *a, const struct json *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == JSON_TEXT)
        return a->text_len == b->text_len && memcmp(a->text, b->text, a->text_len) == 0;
    if (a->kind == JSON_BOOL)
        return a->flag == b->flag;
    return a->kind == JSON_NULL || a->whole == b->whole;
}

/* False where two ways of writing a value are not told apart, or there are too many. */
static bool values_add(struct values *v, const struct json *value)
{
    if (value->kind != JSON_TEXT && value->kind != JSON_INT && value->kind != JSON_BOOL &&
        value->kind != JSON_NULL)
        return false;
    for (uint32_t i = 0; i < v->n; i++)
        if (same_value(v->items[i], value))
            return true;
    if (v->n == ARRAY_VALUES_MAX)
        return false;
    v->items[v->n++] = value;
    return true;
}

/* Recurses UNIQUE_DEPTH deep. */
static bool values_of(struct schema *s, const struct json *schema, struct values *v, int depth)
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
        return values_of(s, index_find(s, schema, ref), v, depth + 1);
    if (value != NULL)
        return values_add(v, value);
    for (uint32_t i = 0; list != NULL && i < list->n && known; i++)
        known = values_add(v, &list->items[i]);
    for (uint32_t i = 0; list == NULL && any != NULL && i < any->n && known; i++)
        known = values_of(s, &any->items[i], v, depth + 1);
    if (list != NULL || any != NULL)
        return known;
    return json_is_text(json_get(schema, "type"), "boolean") && values_add(v, &both[0]) &&
           values_add(v, &both[1]);
}

uint32_t array_values(struct schema *s, const struct atom *atoms, const struct json **values)
{
    struct values v = {.n = 0};
    bool known = false;

    for (const struct atom *t = atoms; t != NULL && compile_tick(s->c); t = t->next) {
        if (t->kind == ATOM_CONTAINS)
            return 0; /* two kinds of layers are too many */
        if (known || t->kind != ATOM_ITEMS || prefix_of(t->node) != NULL)
            continue;
        v.n = 0;
        known = values_of(s, rest_of(t->node), &v, 0);
    }
    if (known && values != NULL)
        memcpy(values, v.items, v.n * sizeof(const struct json *));
    return known ? v.n : 0;
}

/* What was there after one more value; NONE: it was there already. */
static uint32_t unique_next(const struct array *r, uint32_t layer, uint32_t value)
{
    if (r->n_unique > UNIQUE_SETS)
        return value >= layer ? value + 1 : NONE;
    return (layer >> value & 1) == 0 ? layer | 1u << value : NONE;
}

static void unique_begin(struct array *r)
{
    bool unique = false;

    for (const struct atom *t = r->a->atoms; t != NULL; t = t->next)
        unique = unique || (t->kind == ATOM_UNIQUE && !t->negated);
    if (!unique || r->max <= 1)
        return;
    r->n_unique = array_values(r->s, r->a->atoms, r->unique);
    if (r->n_unique == 0)
        return;
    r->max = r->max < r->n_unique ? r->max : r->n_unique;
    r->n_layers = r->n_unique > UNIQUE_SETS ? r->n_unique + 1 : 1u << r->n_unique;
}

static void count_add(struct array *r, const struct atom *t)
{
    struct count *c = &r->counts[r->n_counts];

    if (r->n_counts == COUNTS_MAX) {
        compile_fail(r->s->c, ERR_LIMIT, "more than %d \"contains\" on one array", COUNTS_MAX);
        return;
    }
    *c = (struct count){.literal = t->literal, .min = t->n, .max = t->m, .from = t->from};
    c->cap = c->max != NONE ? c->max : c->min;
    if (c->cap > 1000)
        compile_fail(r->s->c, ERR_LIMIT, "minContains or maxContains above 1000");
    r->n_counts++;
}

static void atom_note(struct array *r, const struct atom *t)
{
    const struct json *prefix;

    switch ((int)t->kind) {
    case ATOM_ITEMS:
        prefix = prefix_of(t->node);
        if (prefix != NULL && prefix->n > r->last)
            r->last = prefix->n;
        break;
    case ATOM_ITEM: r->last = t->n + 1 > r->last ? t->n + 1 : r->last; break;
    case ATOM_ITEMS_LEAST: r->min = t->n > r->min ? t->n : r->min; break;
    case ATOM_ITEMS_MOST: r->max = t->n < r->max ? t->n : r->max; break;
    case ATOM_CONTAINS:
        count_add(r, t);
        r->last = t->from > r->last ? t->from : r->last;
        break;
    default: break;
    }
}

/* The literals of an item; false: there can be no such item. */
static bool item_wants(struct array *r, uint32_t at, uint32_t *list, uint32_t *n, uint32_t cap)
{
    const struct atom *t;

    for (t = r->a->atoms; t != NULL && compile_tick(r->s->c); t = t->next) {
        const struct json *prefix, *schema;

        if (*n + COUNTS_MAX >= cap) {
            compile_fail(r->s->c, ERR_LIMIT, "too many schemas meet at one item");
            return false;
        }
        if (t->kind == ATOM_ITEM && t->n == at)
            list[(*n)++] = t->literal;
        if (t->kind != ATOM_ITEMS)
            continue;
        prefix = prefix_of(t->node);
        schema = prefix != NULL && at < prefix->n ? &prefix->items[at] : rest_of(t->node);
        if (schema == NULL)
            continue;
        if (schema->kind == JSON_BOOL && !schema->flag)
            return false;
        if (schema->kind != JSON_BOOL)
            list[(*n)++] = literal_of(r->s, schema, false, false);
    }
    return true;
}

/* --- building ----------------------------------------------------------------------------- */

static uint32_t after(struct array *r, uint32_t at, uint32_t layer)
{
    uint32_t *state = &r->after[(at < r->last ? at : r->last) * r->n_layers + layer];

    if (*state == NONE)
        *state = build_state(r->s->b);
    return *state;
}

/* Counts of a layer: a number whose digits have the base cap + 1. */
static void layer_read(const struct array *r, uint32_t layer, uint32_t *count)
{
    uint32_t i;

    for (i = 0; i < r->n_counts; i++) {
        count[i] = layer % (r->counts[i].cap + 1);
        layer /= r->counts[i].cap + 1;
    }
}

static uint32_t layer_of(const struct array *r, const uint32_t *count)
{
    uint32_t layer = 0;
    uint32_t i;

    for (i = r->n_counts; i-- > 0;)
        layer = layer * (r->counts[i].cap + 1) + count[i];
    return layer;
}

/* One way to read an item: it satisfies those counts whose bit is set. */
static void item_way(struct array *r, uint32_t from, uint32_t at, uint32_t layer, uint32_t ways)
{
    uint32_t list[96];
    uint32_t count[COUNTS_MAX] = {0};
    uint32_t n = 0;
    uint32_t i;

    if (!item_wants(r, at, list, &n, sizeof list / sizeof list[0]))
        return;
    layer_read(r, layer, count);
    for (i = 0; i < r->n_counts; i++) {
        const struct count *c = &r->counts[i];
        bool is = (ways >> i & 1) != 0;

        if (at < c->from) {
            if (is)
                return;
            continue;
        }
        if (c->max == NONE && count[i] == c->cap) { /* enough: no matter */
            if (is)
                return;
            continue;
        }
        if (is && count[i] == c->cap) /* one too many */
            return;
        if (is)
            list[n++] = c->literal;
        else if (c->max != NONE)
            list[n++] = literal_not(r->s, c->literal);
        count[i] += is;
    }
    build_call(r->s->b, from, goal_state(r->s, list, n), after(r, at + 1, layer_of(r, count)));
}

/* The item at a position. */
static void item_build(struct array *r, uint32_t from, uint32_t at, uint32_t layer)
{
    uint32_t ways;

    for (uint32_t i = 0; i < r->n_unique && compile_ok(r->s->c); i++) {
        uint32_t next = unique_next(r, layer, i), list[96], n = 0;

        if (next == NONE || !item_wants(r, at, list, &n, sizeof list / sizeof list[0]))
            continue;
        list[n++] = literal_of(r->s, r->unique[i], true, false);
        build_call(r->s->b, from, goal_state(r->s, list, n), after(r, at + 1, next));
    }
    if (r->n_unique > 0)
        return;
    for (ways = 0; ways < 1u << r->n_counts && compile_ok(r->s->c); ways++)
        item_way(r, from, at, layer, ways);
}

static bool may_close(const struct array *r, uint32_t at, uint32_t layer)
{
    uint32_t count[COUNTS_MAX] = {0};
    uint32_t i;

    layer_read(r, layer, count);
    for (i = 0; i < r->n_counts; i++)
        if (count[i] < r->counts[i].min)
            return false;
    return at >= r->min;
}

static void place_build(struct array *r, uint32_t at, uint32_t layer)
{
    struct build *b = r->s->b;
    uint32_t state = r->after[at * r->n_layers + layer];
    uint32_t gap, next;

    if (state == NONE)
        return;
    gap = build_state(b);
    space_build(r->s, state, gap);
    if (r->max == NONE || at < r->max) {
        next = build_state(b);
        space_build_after(r->s, build_text(b, gap, ",", 1), next);
        item_build(r, next, at, layer);
    }
    if (may_close(r, at, layer))
        build_edge(b, gap, ']', ']', r->s->end);
}

void array_build(struct schema *s, uint32_t from, const struct alternative *a)
{
    struct array r = {.s = s, .a = a, .max = NONE, .n_layers = 1};
    uint32_t begin = build_nest(s->b);
    uint32_t gap = build_state(s->b);
    const struct atom *t;
    uint64_t places;
    uint32_t at, layer;

    build_edge(s->b, from, '[', '[', begin);
    for (t = a->atoms; t != NULL && compile_tick(s->c); t = t->next)
        atom_note(&r, t);
    r.max = r.max > ITEMS_NO_LIMIT ? NONE : r.max;
    unique_begin(&r);
    if (r.max != NONE && r.max < r.last)
        r.last = r.max;
    r.last = r.min > r.last ? r.min : r.last;
    if (r.max != NONE && r.max > r.last)
        r.last = r.max;
    for (at = 0, places = ((uint64_t)r.last + 2) * r.n_layers;
         at < r.n_counts && places <= PLACES_MAX; at++) {
        r.n_layers *= r.counts[at].cap + 1;
        places *= r.counts[at].cap + 1;
    }
    if (places > PLACES_MAX)
        compile_fail(s->c, ERR_LIMIT, "an array of too many positions: at most %d", PLACES_MAX);
    r.after = compile_alloc(s->c, (size_t)(places > PLACES_MAX ? 1 : places) * sizeof *r.after);
    if (!compile_ok(s->c))
        return;
    memset(r.after, 0xff, (size_t)places * sizeof *r.after);
    space_build(s, begin, gap);
    if (may_close(&r, 0, 0))
        build_edge(s->b, gap, ']', ']', s->end);
    if (r.max == NONE || r.max > 0)
        item_build(&r, gap, 0, 0);
    for (at = 0; at <= r.last && compile_ok(s->c); at++)
        for (layer = 0; layer < r.n_layers && compile_ok(s->c); layer++)
            place_build(&r, at, layer);
}
