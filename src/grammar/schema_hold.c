/* SPDX-License-Identifier: Apache-2.0
 *
 * The keywords of a schema that must hold: what each adds to a branch. */
#include <string.h>

#include "grammar/schema_expand.h"

static const struct json *get(const struct json *schema, const char *name)
{
    return json_get(schema, name);
}

/* A keyword's value of the kind it must have; NULL when it is not there. */
const struct json *get_kind(struct expansion *x, const struct json *schema, const char *name,
                            enum json_kind kind)
{
    const struct json *v = json_get(schema, name);

    if (v != NULL && v->kind != kind) {
        invalid(x, v, kind == JSON_LIST ? "a list" : kind == JSON_TEXT ? "a string" : "an object");
        return NULL;
    }
    return v;
}

static void check_schema(struct expansion *x, const struct json *node)
{
    if (node->kind != JSON_OBJECT && node->kind != JSON_BOOL) {
        x->s->c->at = node;
        compile_fail(x->s->c, ERR_INVALID, "a schema must be an object, true or false");
    }
}

const struct json *follow(struct expansion *x, const struct json *schema)
{
    const struct json *ref = get_kind(x, schema, "$ref", JSON_TEXT);
    const struct json *to;

    if (ref == NULL)
        return NULL;
    to = index_find(x->s, schema, ref);
    return to != NULL ? to : refuse(x, ref, "\"$ref\" leads out of the document, or nowhere");
}

static void refuse_unknown(struct expansion *x, const struct json *schema)
{
    static const char *const words[] = {"$dynamicRef", "$recursiveRef"};
    size_t i;

    for (i = 0; i < sizeof words / sizeof words[0]; i++)
        if (get(schema, words[i]) != NULL) {
            x->s->c->at = get(schema, words[i]);
            compile_fail(x->s->c, ERR_UNSUPPORTED, "\"%s\" is not supported", words[i]);
        }
}

/* The bounds of a number: minimum and exclusiveMinimum, the latter also as draft-04 has it. */
bool bound_of(struct expansion *x, const struct json *schema, bool most, bool strict,
              struct atom *atom)
{
    const struct json *v = get(schema, most ? "maximum" : "minimum");
    const struct json *e = get(schema, most ? "exclusiveMaximum" : "exclusiveMinimum");
    bool old = e != NULL && e->kind == JSON_BOOL && e->flag;

    if (strict ? e == NULL || e->kind == JSON_BOOL : v == NULL)
        return false;
    *atom = (struct atom){
        .kind = most ? ATOM_MOST : ATOM_LEAST, .strict = strict || old, .node = strict ? e : v};
    if (!json_is_number(atom->node))
        invalid(x, atom->node, "a number");
    return compile_ok(x->s->c);
}

const struct counted counted[N_COUNTED] = {
    {"minLength", ATOM_LENGTH_LEAST, TYPE_STRING, false},
    {"maxLength", ATOM_LENGTH_MOST, TYPE_STRING, true},
    {"minItems", ATOM_ITEMS_LEAST, TYPE_ARRAY, false},
    {"maxItems", ATOM_ITEMS_MOST, TYPE_ARRAY, true},
    {"minProperties", ATOM_MEMBERS_LEAST, TYPE_OBJECT, false},
    {"maxProperties", ATOM_MEMBERS_MOST, TYPE_OBJECT, true},
};

static void hold_scalars(struct expansion *x, const struct json *schema)
{
    const struct json *v;
    struct atom atom;
    uint32_t n;
    size_t i;

    for (i = 0; i < 4; i++)
        if (bound_of(x, schema, i % 2 != 0, i / 2 != 0, &atom))
            do_atom(x, atom);
    v = get(schema, "multipleOf");
    if (v != NULL && !json_is_number(v))
        invalid(x, v, "a number");
    else if (v != NULL)
        do_atom(x, (struct atom){.kind = ATOM_MULTIPLE, .node = v});
    for (i = 0; i < N_COUNTED; i++) {
        v = get(schema, counted[i].name);
        if (v != NULL && count_of(x, v, &n))
            do_atom(x, (struct atom){.kind = counted[i].kind, .n = n});
    }
    v = get_kind(x, schema, "pattern", JSON_TEXT);
    if (v != NULL)
        do_atom(x, (struct atom){.kind = ATOM_PATTERN, .node = v});
    v = get_kind(x, schema, "format", JSON_TEXT);
    if (v != NULL && format_is_known(v->text))
        do_atom(x, (struct atom){.kind = ATOM_FORMAT, .node = v});
    if (v != NULL && format_is_refused(v->text))
        (void)refuse(x, v, "this \"format\" is not supported");
}

struct atom contains_atom(struct expansion *x, const struct json *schema,
                          const struct json *contains)
{
    const struct json *least = get(schema, "minContains");
    const struct json *most = get(schema, "maxContains");
    struct atom atom = {.kind = ATOM_CONTAINS, .n = 1, .m = NONE};

    check_schema(x, contains);
    atom.literal = literal_of(x->s, contains, false, false);
    if (least != NULL)
        (void)count_of(x, least, &atom.n); /* the error is noted */
    if (most != NULL)
        (void)count_of(x, most, &atom.m);
    return atom;
}

static void hold_array(struct expansion *x, const struct json *schema)
{
    const struct json *items = get(schema, "items");
    const struct json *contains = get(schema, "contains");
    const struct json *unique = get(schema, "uniqueItems");
    const struct json *rest = get(schema, "unevaluatedItems");
    uint32_t i;

    if (items != NULL && items->kind != JSON_LIST)
        check_schema(x, items);
    for (i = 0; items != NULL && items->kind == JSON_LIST && i < items->n; i++)
        check_schema(x, &items->items[i]);
    if (items != NULL || get_kind(x, schema, "prefixItems", JSON_LIST) != NULL)
        do_atom(x, (struct atom){.kind = ATOM_ITEMS, .node = schema});
    if (contains != NULL)
        do_atom(x, contains_atom(x, schema, contains));
    if (unique != NULL && unique->kind == JSON_BOOL && unique->flag)
        do_atom(x, (struct atom){.kind = ATOM_UNIQUE, .node = unique});
    if (rest != NULL && !(rest->kind == JSON_BOOL && rest->flag) && items == NULL)
        (void)refuse(x, rest, "\"unevaluatedItems\" is not supported");
}

static void hold_names(struct expansion *x, const struct json *list)
{
    uint32_t i;

    for (i = 0; i < list->n && compile_tick(x->s->c); i++)
        if (list->items[i].kind == JSON_TEXT)
            do_atom(x, (struct atom){.kind = ATOM_REQUIRED, .node = &list->items[i]});
        else
            invalid(x, list, "a list of names");
}

static void check_members(struct expansion *x, const struct json *members)
{
    uint32_t i;

    for (i = 0; members != NULL && i < members->n && compile_tick(x->s->c); i++)
        check_schema(x, &members->items[i]);
}

static void hold_object(struct expansion *x, const struct json *schema)
{
    const struct json *known = get_kind(x, schema, "properties", JSON_OBJECT);
    const struct json *patterns = get_kind(x, schema, "patternProperties", JSON_OBJECT);
    const struct json *other = get(schema, "additionalProperties");
    const struct json *required = get(schema, "required");
    const struct json *names = get(schema, "propertyNames");
    const struct json *rest = get(schema, "unevaluatedProperties");

    check_members(x, known);
    check_members(x, patterns);
    if (other != NULL)
        check_schema(x, other);
    if (known != NULL || patterns != NULL || other != NULL)
        do_atom(x, (struct atom){.kind = ATOM_MEMBERS, .node = schema});
    if (required != NULL && required->kind == JSON_LIST)
        hold_names(x, required);
    else if (required != NULL && required->kind != JSON_BOOL) /* draft-03 wrote it so: no meaning */
        invalid(x, required, "a list of names");
    if (names != NULL) {
        check_schema(x, names);
        do_atom(
            x, (struct atom){.kind = ATOM_NAMES, .literal = literal_of(x->s, names, false, false)});
    }
    if (rest != NULL && !(rest->kind == JSON_BOOL && rest->flag) && other == NULL)
        (void)refuse(x, rest, "\"unevaluatedProperties\" is not supported");
}

/* A member's being there asks for more: without it, or an object with it and all of that. */
static void hold_dependent(struct expansion *x, const struct json *member)
{
    struct options o = {0};
    const struct json *text = name_text(x, member);
    const struct item *more = item_required(x, text, NULL);
    uint32_t i;

    option(x, &o, item_atom(x, (struct atom){.kind = ATOM_ABSENT, .node = text}, NULL));
    if (member->kind == JSON_LIST) {
        for (i = 0; i < member->n; i++)
            if (member->items[i].kind == JSON_TEXT)
                more = item_required(x, &member->items[i], more);
    } else {
        check_schema(x, member);
        more = item_literal(x, member, false, more);
    }
    option(x, &o, item_types(x, TYPE_OBJECT, more));
    do_either(x, &o);
}

const char *const dependent[3] = {"dependentRequired", "dependentSchemas", "dependencies"};

/* Exactly one: each with the negations of those that it is not certainly disjoint from. */
static void hold_one(struct expansion *x, const struct json *list)
{
    struct options o = {0};
    uint32_t i, j;

    for (i = 0; i < list->n && compile_tick(x->s->c); i++) {
        const struct item *items = NULL;

        for (j = list->n; j-- > 0 && compile_tick(x->s->c);) {
            uint32_t both[2] = {literal_of(x->s, &list->items[i], false, false),
                                literal_of(x->s, &list->items[j], false, false)};

            if (j != i && !surely_empty(x->s, both, 2, 2))
                items = item_literal(x, &list->items[j], true, items);
        }
        option(x, &o, item_literal(x, &list->items[i], false, items));
    }
    do_either(x, &o);
}

static void hold_any(struct expansion *x, const struct json *list)
{
    struct options o = {0};
    uint32_t i;

    for (i = 0; i < list->n && compile_tick(x->s->c); i++)
        option(x, &o, item_literal(x, &list->items[i], false, NULL));
    do_either(x, &o);
}

static void hold_if(struct expansion *x, const struct json *schema, const struct json *cond)
{
    const struct json *yes = get(schema, "then");
    const struct json *no = get(schema, "else");
    struct options o = {0};

    if (yes == NULL && no == NULL)
        return;
    option(x, &o,
           item_literal(x, cond, false, yes == NULL ? NULL : item_literal(x, yes, false, NULL)));
    option(x, &o,
           item_literal(x, cond, true, no == NULL ? NULL : item_literal(x, no, false, NULL)));
    do_either(x, &o);
}

/* Keywords that hold other schemas at the same place; first the ones that are done last. */
static void hold_logic(struct expansion *x, const struct json *schema)
{
    const struct json *all = get_kind(x, schema, "allOf", JSON_LIST);
    const struct json *any = get_kind(x, schema, "anyOf", JSON_LIST);
    const struct json *one = get_kind(x, schema, "oneOf", JSON_LIST);
    const struct json *v;
    uint32_t i;
    size_t k;

    for (k = 0; k < sizeof dependent / sizeof dependent[0]; k++) {
        v = get_kind(x, schema, dependent[k], JSON_OBJECT);
        for (i = 0; v != NULL && i < v->n && compile_tick(x->s->c); i++)
            hold_dependent(x, &v->items[i]);
    }
    v = get(schema, "if");
    if (v != NULL)
        hold_if(x, schema, v);
    if (one != NULL)
        hold_one(x, one);
    if (any != NULL)
        hold_any(x, any);
    v = get(schema, "not");
    if (v != NULL)
        do_literal(x, v, true);
    for (i = all == NULL ? 0 : all->n; i-- > 0 && compile_tick(x->s->c);)
        do_literal(x, &all->items[i], false);
}

void hold(struct expansion *x, const struct json *schema)
{
    const struct json *to = follow(x, schema);
    const struct json *v;

    if (to != NULL && x->s->ref_alone) {
        do_literal(x, to, false);
        return;
    }
    refuse_unknown(x, schema);
    v = get(schema, "type");
    if (v != NULL)
        x->now.types &= types_of(x, v);
    hold_scalars(x, schema);
    hold_array(x, schema);
    hold_object(x, schema);
    hold_logic(x, schema);
    if (to != NULL)
        do_literal(x, to, false);
    v = get_kind(x, schema, "enum", JSON_LIST);
    if (v != NULL)
        expand_values(x, v->items, v->n, false);
    v = get(schema, "const");
    if (v != NULL)
        expand_values(x, v, 1, false);
}
