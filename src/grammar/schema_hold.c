/* SPDX-License-Identifier: Apache-2.0
 *
 * The keywords of a schema that must hold: the atoms and the work that each adds to a branch. */
#include <string.h>

#include "base/must.h"
#include "grammar/schema_expand.h"

static const struct json *schema_get(const struct json *schema, const char *name)
{
    return json_get(schema, name);
}

/* A keyword's value, which must be of this kind; NULL when the keyword is missing. */
const struct json *schema_get_kind(struct expansion *expansion, const struct json *schema,
                                   const char *name, enum json_kind kind)
{
    const struct json *value = json_get(schema, name);

    must(name != NULL);
    /* The caller goes on as if the keyword were missing; the error is recorded with the place of
     * the value. */
    if (value != NULL && value->kind != kind) {
        schema_is_invalid(expansion, value,
                          kind == JSON_LIST   ? "a list"
                          : kind == JSON_TEXT ? "a string"
                                              : "an object");
        return NULL;
    }
    return value;
}

/* Report a subschema that is no schema. */
static void schema_check_schema(struct expansion *expansion, const struct json *node)
{
    if (node->kind != JSON_OBJECT && node->kind != JSON_BOOL) {
        expansion->s->c->at = node;
        compile_fail(expansion->s->c, ERR_INVALID, "a schema must be an object, true or false");
    }
}

/* The schema that a "$ref" refers to; NULL when there is none. */
const struct json *schema_follow(struct expansion *expansion, const struct json *schema)
{
    const struct json *ref = schema_get_kind(expansion, schema, "$ref", JSON_TEXT);
    const struct json *to;

    if (ref == NULL)
        return NULL;
    to = schema_index_find(expansion->s, schema, ref);
    if (to != NULL)
        return to;
    return schema_refuse(expansion, ref, "\"$ref\" must refer to a place in the document");
}

/* Refuse keywords whose meaning depends on the path of evaluation. */
static void schema_refuse_unknown(struct expansion *expansion, const struct json *schema)
{
    static const char *const words[] = {"$dynamicRef", "$recursiveRef"};
    size_t i;

    for (i = 0; i < sizeof words / sizeof words[0]; i++)
        if (schema_get(schema, words[i]) != NULL) {
            expansion->s->c->at = schema_get(schema, words[i]);
            compile_fail(expansion->s->c, ERR_UNSUPPORTED, "\"%s\" is not supported", words[i]);
        }
}

/* A bound of a number: minimum, maximum, and their exclusive forms, of which draft-04's is a
 * boolean that makes the other one exclusive. False when there is no such bound. */
bool schema_bound_of(struct expansion *expansion, const struct json *schema, bool most, bool strict,
                     struct atom *atom)
{
    const struct json *value = schema_get(schema, most ? "maximum" : "minimum");
    const struct json *e = schema_get(schema, most ? "exclusiveMaximum" : "exclusiveMinimum");
    bool old = e != NULL && e->kind == JSON_BOOL && e->flag;

    /* With `strict` only a number counts: a boolean of draft-04 is handled with the bound that
     * it changes. */
    if (strict ? e == NULL || e->kind == JSON_BOOL : value == NULL)
        return false;
    *atom = (struct atom){
        .kind = most ? ATOM_MOST : ATOM_LEAST, .strict = strict || old, .node = strict ? e : value};
    /* For example "minimum": "3". */
    if (!json_is_number(atom->node))
        schema_is_invalid(expansion, atom->node, "a number");
    return compile_ok(expansion->s->c);
}

/* Keywords with a count. A pair of lower and upper bound is adjacent; schema_deny() relies on
 * that. */
const struct counted counted[N_COUNTED] = {
    {"minLength", ATOM_LENGTH_LEAST, TYPE_STRING, false},
    {"maxLength", ATOM_LENGTH_MOST, TYPE_STRING, true},
    {"minItems", ATOM_ITEMS_LEAST, TYPE_ARRAY, false},
    {"maxItems", ATOM_ITEMS_MOST, TYPE_ARRAY, true},
    {"minProperties", ATOM_MEMBERS_LEAST, TYPE_OBJECT, false},
    {"maxProperties", ATOM_MEMBERS_MOST, TYPE_OBJECT, true},
};

/* Keywords of numbers and strings. */
static void schema_hold_scalars(struct expansion *expansion, const struct json *schema)
{
    const struct json *value;
    struct atom atom;
    uint32_t n;
    size_t i;

    /* minimum, maximum, exclusiveMinimum and exclusiveMaximum. */
    for (i = 0; i < 4; i++)
        if (schema_bound_of(expansion, schema, i % 2 != 0, i / 2 != 0, &atom))
            schema_expand_atom(expansion, atom);
    value = schema_get(schema, "multipleOf");
    if (value != NULL && !json_is_number(value))
        schema_is_invalid(expansion, value, "a number");
    else if (value != NULL)
        schema_expand_atom(expansion, (struct atom){.kind = ATOM_MULTIPLE, .node = value});
    for (i = 0; i < N_COUNTED; i++) {
        value = schema_get(schema, counted[i].name);
        if (value != NULL && schema_count_of(expansion, value, &n))
            schema_expand_atom(expansion, (struct atom){.kind = counted[i].kind, .n = n});
    }
    value = schema_get_kind(expansion, schema, "pattern", JSON_TEXT);
    if (value != NULL)
        schema_expand_atom(expansion, (struct atom){.kind = ATOM_PATTERN, .node = value});
    /* Formats that are not known are annotations, as the standard has it. The refused ones are
     * known but cannot be built, and ignoring them would give wrong output. */
    value = schema_get_kind(expansion, schema, "format", JSON_TEXT);
    if (value != NULL && schema_format_is_known(value->text))
        schema_expand_atom(expansion, (struct atom){.kind = ATOM_FORMAT, .node = value});
    if (value != NULL && schema_format_is_refused(value->text))
        (void)schema_refuse(expansion, value, "this \"format\" is not supported");
}

/* The atom of "contains" with minContains and maxContains. */
struct atom schema_contains_atom(struct expansion *expansion, const struct json *schema,
                                 const struct json *contains)
{
    const struct json *least = schema_get(schema, "minContains");
    const struct json *most = schema_get(schema, "maxContains");
    struct atom atom = {.kind = ATOM_CONTAINS, .n = 1, .m = NONE};

    schema_check_schema(expansion, contains);
    atom.literal = schema_literal_of(expansion->s, contains, false, false);
    if (least != NULL)
        (void)schema_count_of(expansion, least, &atom.n); /* an error is recorded */
    if (most != NULL)
        (void)schema_count_of(expansion, most, &atom.m);
    return atom;
}

/* Keywords of arrays. */
static void schema_hold_array(struct expansion *expansion, const struct json *schema)
{
    const struct json *items = schema_get(schema, "items");
    const struct json *contains = schema_get(schema, "contains");
    const struct json *unique = schema_get(schema, "uniqueItems");
    const struct json *rest = schema_get(schema, "unevaluatedItems");
    uint32_t i;

    /* In old drafts `items` may be a list of schemas, one per position, as prefixItems is later. */
    if (items != NULL && items->kind != JSON_LIST)
        schema_check_schema(expansion, items);
    for (i = 0; items != NULL && items->kind == JSON_LIST && i < items->n; i++)
        schema_check_schema(expansion, &items->items[i]);
    /* The schemas of items are not expanded here. The atom refers to the schema, and each
     * position of the array looks up its own. */
    if (items != NULL || schema_get_kind(expansion, schema, "prefixItems", JSON_LIST) != NULL)
        schema_expand_atom(expansion, (struct atom){.kind = ATOM_ITEMS, .node = schema});
    if (contains != NULL)
        schema_expand_atom(expansion, schema_contains_atom(expansion, schema, contains));
    if (unique != NULL && unique->kind == JSON_BOOL && unique->flag)
        schema_expand_atom(expansion, (struct atom){.kind = ATOM_UNIQUE, .node = unique});
    /* With `items` every item is evaluated, so unevaluatedItems has nothing to refuse. `true`
     * demands nothing. */
    if (rest != NULL && !(rest->kind == JSON_BOOL && rest->flag) && items == NULL)
        (void)schema_refuse(expansion, rest, "\"unevaluatedItems\" is not supported");
}

/* "required": each name becomes an atom. */
static void schema_hold_names(struct expansion *expansion, const struct json *list)
{
    uint32_t i;

    for (i = 0; i < list->n && compile_tick(expansion->s->c); i++)
        if (list->items[i].kind == JSON_TEXT)
            schema_expand_atom(expansion,
                               (struct atom){.kind = ATOM_REQUIRED, .node = &list->items[i]});
        else
            schema_is_invalid(expansion, list, "a list of names");
}

/* Check that all values of an object are schemas. */
static void schema_check_members(struct expansion *expansion, const struct json *members)
{
    uint32_t i;

    for (i = 0; members != NULL && i < members->n && compile_tick(expansion->s->c); i++)
        schema_check_schema(expansion, &members->items[i]);
}

/* Keywords of objects. */
static void schema_hold_object(struct expansion *expansion, const struct json *schema)
{
    const struct json *known = schema_get_kind(expansion, schema, "properties", JSON_OBJECT);
    const struct json *patterns =
        schema_get_kind(expansion, schema, "patternProperties", JSON_OBJECT);
    const struct json *other = schema_get(schema, "additionalProperties");
    const struct json *required = schema_get(schema, "required");
    const struct json *names = schema_get(schema, "propertyNames");
    const struct json *rest = schema_get(schema, "unevaluatedProperties");

    schema_check_members(expansion, known);
    schema_check_members(expansion, patterns);
    if (other != NULL)
        schema_check_schema(expansion, other);
    if (known != NULL || patterns != NULL || other != NULL)
        schema_expand_atom(expansion, (struct atom){.kind = ATOM_MEMBERS, .node = schema});
    if (required != NULL && required->kind == JSON_LIST)
        schema_hold_names(expansion, required);
    else if (required != NULL && required->kind != JSON_BOOL) /* draft-03's boolean is ignored */
        schema_is_invalid(expansion, required, "a list of names");
    if (names != NULL) {
        schema_check_schema(expansion, names);
        schema_expand_atom(expansion, (struct atom){.kind = ATOM_NAMES,
                                                    .literal = schema_literal_of(
                                                        expansion->s, names, false, false)});
    }
    if (rest != NULL && !(rest->kind == JSON_BOOL && rest->flag) && other == NULL)
        (void)schema_refuse(expansion, rest, "\"unevaluatedProperties\" is not supported");
}

/* dependentRequired and its relatives: either the member is missing, or it is an object that has
 * the member and satisfies the demand. */
static void schema_hold_dependent(struct expansion *expansion, const struct json *member)
{
    struct options options = {0};
    const struct json *text = schema_name_text(expansion, member);
    /* `more` is the list of demands on an object that has the member, beginning with the member
     * itself. */
    const struct schema_item *more = schema_item_required(expansion, text, NULL);
    uint32_t i;

    /* First option: the member is missing, and nothing is demanded. */
    schema_add_option(
        expansion, &options,
        schema_item_atom(expansion, (struct atom){.kind = ATOM_ABSENT, .node = text}, NULL));
    /* A list of names (dependentRequired), or a schema (dependentSchemas). `dependencies` of old
     * drafts is one of both. */
    if (member->kind == JSON_LIST) {
        for (i = 0; i < member->n; i++)
            if (member->items[i].kind == JSON_TEXT)
                more = schema_item_required(expansion, &member->items[i], more);
    } else {
        schema_check_schema(expansion, member);
        more = schema_item_literal(expansion, member, false, more);
    }
    schema_add_option(expansion, &options, schema_item_types(expansion, TYPE_OBJECT, more));
    schema_expand_either(expansion, &options);
}

const char *const dependent[3] = {"dependentRequired", "dependentSchemas", "dependencies"};

/* oneOf: an option per schema, with the negations of all others that could hold together with it.
 * Leaving out negations of disjoint ones saves most of the work: options usually differ in a
 * constant. */
static void schema_hold_one(struct expansion *expansion, const struct json *list)
{
    struct options options = {0};
    uint32_t i, j;

    for (i = 0; i < list->n && compile_tick(expansion->s->c); i++) {
        const struct schema_item *items = NULL;

        /* From the last to the first, because each literal is put in front of the list: the
         * negations are in the order of the document. */
        for (j = list->n; j-- > 0 && compile_tick(expansion->s->c);) {
            /* Literals are numbered once per schema, so asking again costs little. */
            uint32_t both[2] = {schema_literal_of(expansion->s, &list->items[i], false, false),
                                schema_literal_of(expansion->s, &list->items[j], false, false)};

            /* Two schemas that exclude each other need no negation: the second cannot hold if
             * the first does. */
            if (j != i && !schema_is_surely_empty(expansion->s, both, 2, 2))
                items = schema_item_literal(expansion, &list->items[j], true, items);
        }
        schema_add_option(expansion, &options,
                          schema_item_literal(expansion, &list->items[i], false, items));
    }
    schema_expand_either(expansion, &options);
}

/* anyOf */
static void schema_hold_any(struct expansion *expansion, const struct json *list)
{
    struct options options = {0};
    uint32_t i;

    for (i = 0; i < list->n && compile_tick(expansion->s->c); i++)
        schema_add_option(expansion, &options,
                          schema_item_literal(expansion, &list->items[i], false, NULL));
    schema_expand_either(expansion, &options);
}

/* if, then, else: the condition and "then", or its negation and "else". */
static void schema_hold_if(struct expansion *expansion, const struct json *schema,
                           const struct json *cond)
{
    const struct json *yes = schema_get(schema, "then");
    const struct json *no = schema_get(schema, "else");
    struct options options = {0};

    /* `if` alone demands nothing. */
    if (yes == NULL && no == NULL)
        return;
    /* Condition and then; without a `then`, the condition alone. */
    schema_add_option(
        expansion, &options,
        schema_item_literal(expansion, cond, false,
                            yes == NULL ? NULL : schema_item_literal(expansion, yes, false, NULL)));
    /* No condition, and else. */
    schema_add_option(
        expansion, &options,
        schema_item_literal(expansion, cond, true,
                            no == NULL ? NULL : schema_item_literal(expansion, no, false, NULL)));
    schema_expand_either(expansion, &options);
}

/* Keywords that apply other schemas to the same value. Work is a stack, so the work that is added
 * last is done first. */
static void schema_hold_logic(struct expansion *expansion, const struct json *schema)
{
    const struct json *all = schema_get_kind(expansion, schema, "allOf", JSON_LIST);
    const struct json *any = schema_get_kind(expansion, schema, "anyOf", JSON_LIST);
    const struct json *one = schema_get_kind(expansion, schema, "oneOf", JSON_LIST);
    const struct json *value;
    uint32_t i;
    size_t k;

    for (k = 0; k < sizeof dependent / sizeof dependent[0]; k++) {
        value = schema_get_kind(expansion, schema, dependent[k], JSON_OBJECT);
        for (i = 0; value != NULL && i < value->n && compile_tick(expansion->s->c); i++)
            schema_hold_dependent(expansion, &value->items[i]);
    }
    value = schema_get(schema, "if");
    if (value != NULL)
        schema_hold_if(expansion, schema, value);
    if (one != NULL)
        schema_hold_one(expansion, one);
    if (any != NULL)
        schema_hold_any(expansion, any);
    value = schema_get(schema, "not");
    if (value != NULL)
        schema_expand_literal(expansion, value, true);
    /* Backward, so that the first schema is processed first. */
    for (i = all == NULL ? 0 : all->n; i-- > 0 && compile_tick(expansion->s->c);)
        schema_expand_literal(expansion, &all->items[i], false);
}

void schema_hold(struct expansion *expansion, const struct json *schema)
{
    const struct json *to = schema_follow(expansion, schema);
    const struct json *value;

    /* Up to draft 7 a $ref hides all keywords beside it; later drafts apply them as well. */
    if (to != NULL && expansion->s->ref_alone) {
        schema_expand_literal(expansion, to, false);
        return;
    }
    schema_refuse_unknown(expansion, schema);
    value = schema_get(schema, "type");
    if (value != NULL)
        expansion->now.types &= schema_types_of(expansion, value);
    schema_hold_scalars(expansion, schema);
    schema_hold_array(expansion, schema);
    schema_hold_object(expansion, schema);
    schema_hold_logic(expansion, schema);
    if (to != NULL)
        schema_expand_literal(expansion, to, false);
    value = schema_get_kind(expansion, schema, "enum", JSON_LIST);
    if (value != NULL)
        schema_expand_values(expansion, value->items, value->n, false);
    value = schema_get(schema, "const");
    if (value != NULL)
        schema_expand_values(expansion, value, 1, false);
}
