/* SPDX-License-Identifier: Apache-2.0
 *
 * A schema that must not hold: one of its keywords does not. Each option is the type that the
 * keyword is about, and what breaks it. Where it cannot be said exactly, the keyword is refused. */
#include <string.h>

#include "grammar/schema_expand.h"

/* Of this type, and this atom. */
static void option_atom(struct expansion *x, struct options *o, unsigned types, struct atom atom)
{
    option(x, o, item_types(x, types, item_atom(x, atom, NULL)));
}

/* None of these values. */
static const struct item *item_values(struct expansion *x, struct atom values)
{
    const struct item *atom = item_atom(x, values, NULL);

    return atom == NULL ? NULL
                        : item_of(x, (struct item){.kind = ITEM_VALUES, .atom = atom->atom}, NULL);
}

static void deny_scalars(struct expansion *x, struct options *o, const struct json *schema)
{
    const struct json *v;
    struct atom atom;
    uint32_t n;
    size_t i;

    for (i = 0; i < 4; i++)
        if (bound_of(x, schema, i % 2 != 0, i / 2 != 0, &atom)) {
            atom.kind = atom.kind == ATOM_MOST ? ATOM_LEAST : ATOM_MOST;
            atom.strict = !atom.strict;
            option_atom(x, o, TYPE_NUMBER, atom);
        }
    v = json_get(schema, "multipleOf");
    if (v != NULL && json_is_number(v))
        option_atom(x, o, TYPE_NUMBER,
                    (struct atom){.kind = ATOM_MULTIPLE, .node = v, .negated = true});
    for (i = 0; i < N_COUNTED; i++) {
        v = json_get(schema, counted[i].name);
        if (v == NULL || !count_of(x, v, &n) || (!counted[i].most && n == 0))
            continue;
        atom = (struct atom){.n = counted[i].most ? n + 1 : n - 1};
        atom.kind = counted[counted[i].most ? i - 1 : i + 1].kind; /* they stand in pairs */
        option_atom(x, o, counted[i].type, atom);
    }
    v = get_kind(x, schema, "pattern", JSON_TEXT);
    if (v != NULL)
        option_atom(x, o, TYPE_STRING,
                    (struct atom){.kind = ATOM_PATTERN, .node = v, .negated = true});
    v = get_kind(x, schema, "format", JSON_TEXT);
    if (v != NULL && format_is_known(v->text))
        option_atom(x, o, TYPE_STRING,
                    (struct atom){.kind = ATOM_FORMAT, .node = v, .negated = true});
    if (v != NULL && format_is_refused(v->text))
        (void)refuse(x, v, "this \"format\" is not supported");
}

static void deny_items(struct expansion *x, struct options *o, const struct json *schema)
{
    const struct json *prefix = json_get_kind(schema, "prefixItems", JSON_LIST);
    const struct json *items = json_get(schema, "items");
    const struct json *rest = items;
    struct atom some = {.kind = ATOM_CONTAINS, .n = 1, .m = NONE};
    uint32_t i;

    if (items != NULL && items->kind == JSON_LIST) {
        prefix = prefix == NULL ? items : prefix;
        rest = json_get(schema, "additionalItems");
    }
    for (i = 0; prefix != NULL && i < prefix->n && compile_tick(x->s->c); i++) {
        struct atom least = {.kind = ATOM_ITEMS_LEAST, .n = i + 1};
        struct atom item = {
            .kind = ATOM_ITEM, .n = i, .literal = literal_of(x->s, &prefix->items[i], false, true)};

        option(x, o, item_types(x, TYPE_ARRAY, item_atom(x, least, item_atom(x, item, NULL))));
    }
    if (rest == NULL || (rest->kind == JSON_BOOL && rest->flag))
        return;
    some.from = prefix == NULL ? 0 : prefix->n;
    if (rest->kind == JSON_BOOL) { /* no further ones: there is one */
        option_atom(x, o, TYPE_ARRAY, (struct atom){.kind = ATOM_ITEMS_LEAST, .n = some.from + 1});
        return;
    }
    some.literal = literal_of(x->s, rest, false, true);
    option_atom(x, o, TYPE_ARRAY, some);
}

static void deny_array(struct expansion *x, struct options *o, const struct json *schema)
{
    const struct json *contains = json_get(schema, "contains");
    const struct json *unique = json_get(schema, "uniqueItems");
    const struct json *rest = json_get(schema, "unevaluatedItems");
    struct atom atom;
    uint32_t most;

    deny_items(x, o, schema);
    if (contains != NULL) {
        atom = contains_atom(x, schema, contains);
        most = atom.m;
        if (atom.n > 0) {
            atom.m = atom.n - 1;
            atom.n = 0;
            option_atom(x, o, TYPE_ARRAY, atom);
        }
        if (most != NONE) {
            atom.n = most + 1;
            atom.m = NONE;
            option_atom(x, o, TYPE_ARRAY, atom);
        }
    }
    if (unique != NULL && unique->kind == JSON_BOOL && unique->flag)
        (void)refuse(x, unique,
                     "\"uniqueItems\" is not supported under \"not\", \"oneOf\" or \"if\": say "
                     "it outside of them, or leave it out");
    if (rest != NULL && !(rest->kind == JSON_BOOL && rest->flag))
        (void)refuse(x, rest,
                     "\"unevaluatedItems\" is not supported under \"not\", \"oneOf\" or \"if\"");
}

static void deny_members(struct expansion *x, struct options *o, const struct json *schema)
{
    const struct json *known = get_kind(x, schema, "properties", JSON_OBJECT);
    const struct json *patterns = get_kind(x, schema, "patternProperties", JSON_OBJECT);
    const struct json *other = json_get(schema, "additionalProperties");
    uint32_t i;

    for (i = 0; known != NULL && i < known->n && compile_tick(x->s->c); i++) {
        struct atom member = {.kind = ATOM_PROPERTY,
                              .node = &known->items[i],
                              .literal = literal_of(x->s, &known->items[i], false, true)};

        option(x, o,
               item_types(
                   x, TYPE_OBJECT,
                   item_required(x, name_text(x, &known->items[i]), item_atom(x, member, NULL))));
    }
    for (i = 0; patterns != NULL && i < patterns->n && compile_tick(x->s->c); i++)
        option_atom(x, o, TYPE_OBJECT,
                    (struct atom){.kind = ATOM_SOME_PATTERN,
                                  .node = &patterns->items[i],
                                  .literal = literal_of(x->s, &patterns->items[i], false, true)});
    if (other != NULL && !(other->kind == JSON_BOOL && other->flag))
        option_atom(x, o, TYPE_OBJECT,
                    (struct atom){.kind = ATOM_SOME_OTHER,
                                  .node = schema,
                                  .literal = literal_of(x->s, other, false, true)});
}

static void deny_dependent(struct expansion *x, struct options *o, const struct json *member)
{
    const struct json *text = name_text(x, member);
    uint32_t i;

    if (member->kind != JSON_LIST) {
        option(x, o,
               item_types(x, TYPE_OBJECT,
                          item_required(x, text, item_literal(x, member, true, NULL))));
        return;
    }
    for (i = 0; i < member->n && compile_tick(x->s->c); i++)
        option(x, o,
               item_types(
                   x, TYPE_OBJECT,
                   item_required(
                       x, text,
                       item_atom(x, (struct atom){.kind = ATOM_ABSENT, .node = &member->items[i]},
                                 NULL))));
}

static void deny_object(struct expansion *x, struct options *o, const struct json *schema)
{
    const struct json *required = json_get_kind(schema, "required", JSON_LIST);
    const struct json *names = json_get(schema, "propertyNames");
    const struct json *rest = json_get(schema, "unevaluatedProperties");
    uint32_t i;
    size_t k;

    deny_members(x, o, schema);
    for (i = 0; required != NULL && i < required->n && compile_tick(x->s->c); i++)
        if (required->items[i].kind == JSON_TEXT)
            option_atom(x, o, TYPE_OBJECT,
                        (struct atom){.kind = ATOM_ABSENT, .node = &required->items[i]});
    for (k = 0; k < 3; k++) {
        const struct json *v = get_kind(x, schema, dependent[k], JSON_OBJECT);

        for (i = 0; v != NULL && i < v->n && compile_tick(x->s->c); i++)
            deny_dependent(x, o, &v->items[i]);
    }
    if (names != NULL && !(names->kind == JSON_BOOL && names->flag))
        (void)refuse(x, names,
                     "\"propertyNames\" is not supported under \"not\", \"oneOf\" or \"if\"");
    if (rest != NULL && !(rest->kind == JSON_BOOL && rest->flag))
        (void)refuse(
            x, rest,
            "\"unevaluatedProperties\" is not supported under \"not\", \"oneOf\" or \"if\"");
}

/* Not exactly one: none, or some two. */
static void deny_one(struct expansion *x, struct options *o, const struct json *list)
{
    const struct item *none = NULL;
    uint32_t i, j;

    for (i = 0; i < list->n && compile_tick(x->s->c); i++)
        none = item_literal(x, &list->items[i], true, none);
    option(x, o, none);
    for (i = 0; i < list->n; i++)
        for (j = i + 1; j < list->n && compile_tick(x->s->c); j++)
            option(x, o,
                   item_literal(x, &list->items[i], false,
                                item_literal(x, &list->items[j], false, NULL)));
}

static void deny_logic(struct expansion *x, struct options *o, const struct json *schema)
{
    const struct json *all = get_kind(x, schema, "allOf", JSON_LIST);
    const struct json *any = get_kind(x, schema, "anyOf", JSON_LIST);
    const struct json *one = get_kind(x, schema, "oneOf", JSON_LIST);
    const struct json *cond = json_get(schema, "if");
    const struct json *yes = json_get(schema, "then");
    const struct json *no = json_get(schema, "else");
    const struct json *v = json_get(schema, "not");
    const struct item *none = NULL;
    uint32_t i;

    for (i = 0; all != NULL && i < all->n && compile_tick(x->s->c); i++)
        option(x, o, item_literal(x, &all->items[i], true, NULL));
    for (i = 0; any != NULL && i < any->n && compile_tick(x->s->c); i++)
        none = item_literal(x, &any->items[i], true, none);
    if (any != NULL)
        option(x, o, none);
    if (one != NULL)
        deny_one(x, o, one);
    if (v != NULL)
        option(x, o, item_literal(x, v, false, NULL));
    if (cond != NULL && yes != NULL)
        option(x, o, item_literal(x, cond, false, item_literal(x, yes, true, NULL)));
    if (cond != NULL && no != NULL)
        option(x, o, item_literal(x, cond, true, item_literal(x, no, true, NULL)));
}

void deny(struct expansion *x, const struct json *schema)
{
    const struct json *to = follow(x, schema);
    const struct json *type = json_get(schema, "type");
    const struct json *list = get_kind(x, schema, "enum", JSON_LIST);
    const struct json *constant = json_get(schema, "const");
    struct options o = {0};
    struct atom values = {.negated = true};

    if (to != NULL)
        option(x, &o, item_literal(x, to, true, NULL));
    if (to == NULL || !x->s->ref_alone) {
        if (type != NULL)
            option(x, &o, item_types(x, TYPE_ALL & ~types_of(x, type), NULL));
        values.node = list == NULL ? NULL : list->items;
        values.n = list == NULL ? 0 : list->n;
        if (list != NULL)
            option(x, &o, item_values(x, values));
        values.node = constant;
        values.n = 1;
        if (constant != NULL)
            option(x, &o, item_values(x, values));
        deny_scalars(x, &o, schema);
        deny_array(x, &o, schema);
        deny_object(x, &o, schema);
        deny_logic(x, &o, schema);
    }
    do_either(x, &o);
}
