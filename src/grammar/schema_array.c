/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays. A position is how many items are behind us, up to where the rest is alike; `contains`
 * adds layers, one for each count of what was found. An item that may be one of those is built as
 * a choice: it is, or it need not be (or, where their number is limited, it is not). */
#include <string.h>

#include "grammar/schema_parts.h"

#define COUNTS_MAX     4
#define PLACES_MAX     100000
#define ITEMS_NO_LIMIT 1048576

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
    if (r.max != NONE && r.max < r.last)
        r.last = r.max;
    r.last = r.min > r.last ? r.min : r.last;
    if (r.max != NONE && r.max > r.last)
        r.last = r.max;
    for (at = 0, places = (uint64_t)r.last + 2; at < r.n_counts && places <= PLACES_MAX; at++) {
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
