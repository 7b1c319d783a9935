/* SPDX-License-Identifier: Apache-2.0
 *
 * A schema that must not hold: at least one of its keywords is violated. Each option is the type
 * that the keyword concerns, and a violation of it. A keyword whose violation cannot be expressed
 * exactly is refused:
 *
 *     not {"type": "string", "minLength": 3}  ->  no string | string of at most 2 characters */
#include <string.h>

#include "grammar/schema_expand.h"

/* Add the option "of these types, with this atom". */
static void schema_option_atom(struct expansion *expansion, struct options *options, unsigned types,
                               struct atom atom)
{
    schema_add_option(expansion, options,
                      schema_item_types(expansion, types, schema_item_atom(expansion, atom, NULL)));
}

/* Work that excludes or demands values. */
static const struct schema_item *schema_item_values(struct expansion *expansion, struct atom values)
{
    const struct schema_item *atom = schema_item_atom(expansion, values, NULL);

    if (atom == NULL)
        return NULL;
    return schema_item_of(expansion, (struct schema_item){.kind = ITEM_VALUES, .atom = atom->atom},
                          NULL);
}

/* Violations of keywords of numbers and strings. */
static void schema_deny_scalars(struct expansion *expansion, struct options *options,
                                const struct json *schema)
{
    const struct json *value;
    struct atom atom;
    uint32_t n;
    size_t i;

    for (i = 0; i < 4; i++)
        if (schema_bound_of(expansion, schema, i % 2 != 0, i / 2 != 0, &atom)) {
            if (atom.kind == ATOM_MOST)
                atom.kind = ATOM_LEAST;
            else
                atom.kind = ATOM_MOST;
            atom.strict = !atom.strict;
            schema_option_atom(expansion, options, TYPE_NUMBER, atom);
        }
    value = json_get(schema, "multipleOf");
    if (value != NULL && json_is_number(value))
        schema_option_atom(expansion, options, TYPE_NUMBER,
                           (struct atom){.kind = ATOM_MULTIPLE, .node = value, .negated = true});
    for (i = 0; i < N_COUNTED; i++) {
        value = json_get(schema, counted[i].name);
        if (value == NULL || !schema_count_of(expansion, value, &n) || (!counted[i].most && n == 0))
            continue;
        atom = (struct atom){.n = counted[i].most ? n + 1 : n - 1};
        atom.kind = counted[counted[i].most ? i - 1 : i + 1].kind; /* the other one of the pair */
        schema_option_atom(expansion, options, counted[i].type, atom);
    }
    value = schema_get_kind(expansion, schema, "pattern", JSON_TEXT);
    if (value != NULL)
        schema_option_atom(expansion, options, TYPE_STRING,
                           (struct atom){.kind = ATOM_PATTERN, .node = value, .negated = true});
    value = schema_get_kind(expansion, schema, "format", JSON_TEXT);
    if (value != NULL && schema_format_is_known(value->text))
        schema_option_atom(expansion, options, TYPE_STRING,
                           (struct atom){.kind = ATOM_FORMAT, .node = value, .negated = true});
    if (value != NULL && schema_format_is_refused(value->text))
        (void)schema_refuse(expansion, value, "this \"format\" is not supported");
}

/* Violations of items and prefixItems: some item that does not satisfy its schema. */
static void schema_deny_items(struct expansion *expansion, struct options *options,
                              const struct json *schema)
{
    const struct json *prefix = json_get_kind(schema, "prefixItems", JSON_LIST);
    const struct json *items = json_get(schema, "items");
    const struct json *rest = items;
    struct atom some = {.kind = ATOM_CONTAINS, .n = 1, .m = NONE};
    uint32_t i;

    if (items != NULL && items->kind == JSON_LIST) {
        if (prefix == NULL)
            prefix = items;
        rest = json_get(schema, "additionalItems");
    }
    for (i = 0; prefix != NULL && i < prefix->n && compile_tick(expansion->s->c); i++) {
        struct atom least = {.kind = ATOM_ITEMS_LEAST, .n = i + 1};
        struct atom item = {.kind = ATOM_ITEM,
                            .n = i,
                            .literal =
                                schema_literal_of(expansion->s, &prefix->items[i], false, true)};

        schema_add_option(
            expansion, options,
            schema_item_types(
                expansion, TYPE_ARRAY,
                schema_item_atom(expansion, least, schema_item_atom(expansion, item, NULL))));
    }
    if (rest == NULL || (rest->kind == JSON_BOOL && rest->flag))
        return;
    if (prefix == NULL)
        some.from = 0;
    else
        some.from = prefix->n;
    if (rest->kind == JSON_BOOL) { /* "no further items" is violated by one more item */
        schema_option_atom(expansion, options, TYPE_ARRAY,
                           (struct atom){.kind = ATOM_ITEMS_LEAST, .n = some.from + 1});
        return;
    }
    some.literal = schema_literal_of(expansion->s, rest, false, true);
    schema_option_atom(expansion, options, TYPE_ARRAY, some);
}

/* Violations of keywords of arrays. "contains" is violated by fewer or by more items than
 * allowed. */
static void schema_deny_array(struct expansion *expansion, struct options *options,
                              const struct json *schema)
{
    const struct json *contains = json_get(schema, "contains");
    const struct json *unique = json_get(schema, "uniqueItems");
    const struct json *rest = json_get(schema, "unevaluatedItems");
    struct atom atom;
    uint32_t most;

    schema_deny_items(expansion, options, schema);
    if (contains != NULL) {
        atom = schema_contains_atom(expansion, schema, contains);
        most = atom.m;
        /* At least n is violated by at most n - 1, and at most m by at least m + 1. */
        if (atom.n > 0) {
            atom.m = atom.n - 1;
            atom.n = 0;
            schema_option_atom(expansion, options, TYPE_ARRAY, atom);
        }
        if (most != NONE) {
            atom.n = most + 1;
            atom.m = NONE;
            schema_option_atom(expansion, options, TYPE_ARRAY, atom);
        }
    }
    if (unique != NULL && unique->kind == JSON_BOOL && unique->flag)
        (void)schema_refuse(
            expansion, unique,
            "\"uniqueItems\" is not supported under \"not\", \"oneOf\" or \"if\": use "
            "it outside of them, or leave it out");
    if (rest != NULL && !(rest->kind == JSON_BOOL && rest->flag))
        (void)schema_refuse(
            expansion, rest,
            "\"unevaluatedItems\" is not supported under \"not\", \"oneOf\" or \"if\"");
}

/* Violations of properties and its relatives: some member that does not satisfy its schema. */
static void schema_deny_members(struct expansion *expansion, struct options *options,
                                const struct json *schema)
{
    const struct json *known = schema_get_kind(expansion, schema, "properties", JSON_OBJECT);
    const struct json *patterns =
        schema_get_kind(expansion, schema, "patternProperties", JSON_OBJECT);
    const struct json *other = json_get(schema, "additionalProperties");
    uint32_t i;

    /* A property violates its schema only if it is present, so each option also requires it. */
    for (i = 0; known != NULL && i < known->n && compile_tick(expansion->s->c); i++) {
        struct atom member = {.kind = ATOM_PROPERTY,
                              .node = &known->items[i],
                              .literal =
                                  schema_literal_of(expansion->s, &known->items[i], false, true)};

        schema_add_option(
            expansion, options,
            schema_item_types(expansion, TYPE_OBJECT,
                              schema_item_required(expansion,
                                                   schema_name_text(expansion, &known->items[i]),
                                                   schema_item_atom(expansion, member, NULL))));
    }
    for (i = 0; patterns != NULL && i < patterns->n && compile_tick(expansion->s->c); i++)
        schema_option_atom(expansion, options, TYPE_OBJECT,
                           (struct atom){.kind = ATOM_SOME_PATTERN,
                                         .node = &patterns->items[i],
                                         .literal = schema_literal_of(
                                             expansion->s, &patterns->items[i], false, true)});
    if (other != NULL && !(other->kind == JSON_BOOL && other->flag))
        schema_option_atom(
            expansion, options, TYPE_OBJECT,
            (struct atom){.kind = ATOM_SOME_OTHER,
                          .node = schema,
                          .literal = schema_literal_of(expansion->s, other, false, true)});
}

/* Violations of dependentRequired: the member exists, and the demand is not satisfied. */
static void schema_deny_dependent(struct expansion *expansion, struct options *options,
                                  const struct json *member)
{
    const struct json *text = schema_name_text(expansion, member);
    uint32_t i;

    /* dependentSchemas: the demand is a schema, which must fail. */
    if (member->kind != JSON_LIST) {
        schema_add_option(
            expansion, options,
            schema_item_types(
                expansion, TYPE_OBJECT,
                schema_item_required(expansion, text,
                                     schema_item_literal(expansion, member, true, NULL))));
        return;
    }
    /* dependentRequired: the demand is a list of names, one of which must be missing. */
    for (i = 0; i < member->n && compile_tick(expansion->s->c); i++)
        schema_add_option(
            expansion, options,
            schema_item_types(
                expansion, TYPE_OBJECT,
                schema_item_required(
                    expansion, text,
                    schema_item_atom(expansion,
                                     (struct atom){.kind = ATOM_ABSENT, .node = &member->items[i]},
                                     NULL))));
}

/* Violations of keywords of objects. */
static void schema_deny_object(struct expansion *expansion, struct options *options,
                               const struct json *schema)
{
    const struct json *required = json_get_kind(schema, "required", JSON_LIST);
    const struct json *names = json_get(schema, "propertyNames");
    const struct json *rest = json_get(schema, "unevaluatedProperties");
    uint32_t i;
    size_t k;

    schema_deny_members(expansion, options, schema);
    /* A required member is missing. */
    for (i = 0; required != NULL && i < required->n && compile_tick(expansion->s->c); i++)
        if (required->items[i].kind == JSON_TEXT)
            schema_option_atom(expansion, options, TYPE_OBJECT,
                               (struct atom){.kind = ATOM_ABSENT, .node = &required->items[i]});
    for (k = 0; k < 3; k++) {
        const struct json *value = schema_get_kind(expansion, schema, dependent[k], JSON_OBJECT);

        for (i = 0; value != NULL && i < value->n && compile_tick(expansion->s->c); i++)
            schema_deny_dependent(expansion, options, &value->items[i]);
    }
    /* The negations of these two would need quantifiers over all names of the object. */
    if (names != NULL && !(names->kind == JSON_BOOL && names->flag))
        (void)schema_refuse(
            expansion, names,
            "\"propertyNames\" is not supported under \"not\", \"oneOf\" or \"if\"");
    if (rest != NULL && !(rest->kind == JSON_BOOL && rest->flag))
        (void)schema_refuse(
            expansion, rest,
            "\"unevaluatedProperties\" is not supported under \"not\", \"oneOf\" or \"if\"");
}

/* Violations of oneOf: none of the schemas holds, or some two of them do. */
static void schema_deny_one(struct expansion *expansion, struct options *options,
                            const struct json *list)
{
    const struct schema_item *none = NULL;
    uint32_t i, j;

    /* First way: all of the schemas fail. The literals are one conjunction. */
    for (i = 0; i < list->n && compile_tick(expansion->s->c); i++)
        none = schema_item_literal(expansion, &list->items[i], true, none);
    schema_add_option(expansion, options, none);
    /* Second way: two of the schemas hold. Every pair is an option; more than two holding is
     * covered by any pair of them. */
    for (i = 0; i < list->n; i++)
        for (j = i + 1; j < list->n && compile_tick(expansion->s->c); j++)
            schema_add_option(
                expansion, options,
                schema_item_literal(expansion, &list->items[i], false,
                                    schema_item_literal(expansion, &list->items[j], false, NULL)));
}

/* Violations of keywords that apply other schemas to the same value. */
static void schema_deny_logic(struct expansion *expansion, struct options *options,
                              const struct json *schema)
{
    const struct json *all = schema_get_kind(expansion, schema, "allOf", JSON_LIST);
    const struct json *any = schema_get_kind(expansion, schema, "anyOf", JSON_LIST);
    const struct json *one = schema_get_kind(expansion, schema, "oneOf", JSON_LIST);
    const struct json *cond = json_get(schema, "if");
    const struct json *yes = json_get(schema, "then");
    const struct json *no = json_get(schema, "else");
    const struct json *value = json_get(schema, "not");
    const struct schema_item *none = NULL;
    uint32_t i;

    /* allOf fails if one of its schemas fails: an option per schema. anyOf fails only if all of
     * them fail: one option with all negations. */
    for (i = 0; all != NULL && i < all->n && compile_tick(expansion->s->c); i++)
        schema_add_option(expansion, options,
                          schema_item_literal(expansion, &all->items[i], true, NULL));
    for (i = 0; any != NULL && i < any->n && compile_tick(expansion->s->c); i++)
        none = schema_item_literal(expansion, &any->items[i], true, none);
    if (any != NULL)
        schema_add_option(expansion, options, none);
    if (one != NULL)
        schema_deny_one(expansion, options, one);
    if (value != NULL)
        schema_add_option(expansion, options, schema_item_literal(expansion, value, false, NULL));
    /* if/then fails when the condition holds and "then" does not; "else" correspondingly. */
    if (cond != NULL && yes != NULL)
        schema_add_option(expansion, options,
                          schema_item_literal(expansion, cond, false,
                                              schema_item_literal(expansion, yes, true, NULL)));
    if (cond != NULL && no != NULL)
        schema_add_option(expansion, options,
                          schema_item_literal(expansion, cond, true,
                                              schema_item_literal(expansion, no, true, NULL)));
}

/* The negation of a schema is that at least one of its keywords fails. Each keyword adds an option
 * in which it fails; the expansion chooses among them:
 *
 *     not {"type": "string", "minLength": 3}  ->  no string, or one of at most 2 characters */
void schema_deny(struct expansion *expansion, const struct json *schema)
{
    const struct json *to = schema_follow(expansion, schema);
    const struct json *type = json_get(schema, "type");
    const struct json *list = schema_get_kind(expansion, schema, "enum", JSON_LIST);
    const struct json *constant = json_get(schema, "const");
    struct options options = {0};
    struct atom values = {.negated = true};

    /* $ref is a keyword like others: it fails if the schema that it refers to fails. */
    if (to != NULL)
        schema_add_option(expansion, &options, schema_item_literal(expansion, to, true, NULL));
    /* In old drafts the keywords beside $ref are ignored, so they cannot fail either. */
    if (to == NULL || !expansion->s->ref_alone) {
        /* `type` fails for all types that it does not list. */
        if (type != NULL)
            schema_add_option(
                expansion, &options,
                schema_item_types(expansion, TYPE_ALL & ~schema_types_of(expansion, type), NULL));
        /* `enum` and `const` are lists of values. They fail for every value that is not in the
         * list. */
        if (list == NULL)
            values.node = NULL;
        else
            values.node = list->items;
        if (list == NULL)
            values.n = 0;
        else
            values.n = list->n;
        if (list != NULL)
            schema_add_option(expansion, &options, schema_item_values(expansion, values));
        values.node = constant;
        values.n = 1;
        if (constant != NULL)
            schema_add_option(expansion, &options, schema_item_values(expansion, values));
        /* The remaining keywords, by the type of value that they concern. */
        schema_deny_scalars(expansion, &options, schema);
        schema_deny_array(expansion, &options, schema);
        schema_deny_object(expansion, &options, schema);
        schema_deny_logic(expansion, &options, schema);
    }
    /* An empty list of options means that nothing can fail: no value satisfies the negation. */
    schema_expand_either(expansion, &options);
}
