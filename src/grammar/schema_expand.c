/* SPDX-License-Identifier: Apache-2.0
 *
 * From literals to alternatives: branches, constants, and the loop over what is to be done. */
#include <string.h>

#include "grammar/schema_expand.h"

#define BRANCHES_MAX     20000
#define ALTERNATIVES_MAX 2000
#define BRANCHES_ASKED   500 /* when only asked whether there is any */

/* --- literals ----------------------------------------------------------------------------- */

uint32_t literal_of(struct schema *s, const struct json *node, bool constant, bool negated)
{
    uint64_t address = (uint64_t)(uintptr_t)node;
    uint32_t word[3] = {(uint32_t)address, (uint32_t)(address >> 32), constant * 2u + negated};
    bool is_new;
    uint32_t n = keys_find(&s->literal_keys, word, 3, &is_new);

    if (is_new && LIST_ADD(s->c, &s->literals))
        s->literals.items[n] = (struct literal){node, constant, negated};
    return n;
}

uint32_t literal_not(struct schema *s, uint32_t literal)
{
    struct literal l = s->literals.items[literal];

    return literal_of(s, l.node, l.constant, !l.negated);
}

/* --- pieces ------------------------------------------------------------------------------- */

const struct item *item_of(struct expansion *x, struct item item, const struct item *next)
{
    struct item *copy = compile_alloc(x->s->c, sizeof *copy);

    if (copy == NULL)
        return NULL;
    *copy = item;
    copy->next = next;
    return copy;
}

const struct item *item_literal(struct expansion *x, const struct json *node, bool negated,
                                const struct item *next)
{
    return item_of(
        x, (struct item){.kind = ITEM_LITERAL, .literal = literal_of(x->s, node, false, negated)},
        next);
}

const struct item *item_types(struct expansion *x, unsigned types, const struct item *next)
{
    return item_of(x, (struct item){.kind = ITEM_TYPES, .types = types}, next);
}

const struct item *item_atom(struct expansion *x, struct atom atom, const struct item *next)
{
    struct atom *copy = compile_alloc(x->s->c, sizeof *copy);

    if (copy == NULL)
        return NULL;
    *copy = atom;
    return item_of(x, (struct item){.kind = ITEM_ATOM, .atom = copy}, next);
}

void option(struct expansion *x, struct options *o, const struct item *items)
{
    struct either *e = compile_alloc(x->s->c, sizeof *e);

    if (e == NULL)
        return;
    e->items = items;
    if (o->last == NULL)
        o->first = e;
    else
        o->last->next = e;
    o->last = e;
    o->n++;
}

/* --- what a branch has to do -------------------------------------------------------------- */

void do_item(struct expansion *x, struct item item)
{
    x->now.work = item_of(x, item, x->now.work);
}

void do_literal(struct expansion *x, const struct json *node, bool negated)
{
    do_item(x,
            (struct item){.kind = ITEM_LITERAL, .literal = literal_of(x->s, node, false, negated)});
}

void do_atom(struct expansion *x, struct atom atom)
{
    struct atom *copy = compile_alloc(x->s->c, sizeof *copy);

    if (copy == NULL)
        return;
    *copy = atom;
    copy->next = x->now.atoms;
    x->now.atoms = copy;
}

void do_either(struct expansion *x, const struct options *o)
{
    do_item(x, (struct item){.kind = ITEM_EITHER, .either = o->first});
}

void *refuse(struct expansion *x, const struct json *node, const char *what)
{
    x->s->c->at = node;
    compile_fail(x->s->c, ERR_UNSUPPORTED, "%s", what);
    return NULL;
}

void invalid(struct expansion *x, const struct json *node, const char *what)
{
    x->s->c->at = node;
    compile_fail(x->s->c, ERR_INVALID, "\"%s\" must be %s", node->key == NULL ? "?" : node->key,
                 what);
}

/* A count: a whole number >= 0, also written 2.0; false after an error. */
bool count_of(struct expansion *x, const struct json *node, uint32_t *n)
{
    double v = json_is_number(node) ? json_real(node) : -1;

    if (v < 0 || v != (double)(uint64_t)(v < 1e15 ? v : 1)) {
        if (!(v >= 1e15)) {
            invalid(x, node, "a whole number, 0 or more");
            return false;
        }
    }
    *n = v > 4e9 ? 4000000000u : (uint32_t)v;
    return true;
}

static unsigned type_bits(const struct json *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {{"null", TYPE_NULL},     {"boolean", TYPE_FALSE | TYPE_TRUE},
                 {"integer", TYPE_WHOLE}, {"number", TYPE_NUMBER},
                 {"string", TYPE_STRING}, {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT}, {"any", TYPE_ALL}};
    size_t i;

    for (i = 0; i < sizeof types / sizeof types[0]; i++)
        if (json_is_text(name, types[i].name))
            return types[i].bits;
    return 0;
}

unsigned types_of(struct expansion *x, const struct json *node)
{
    unsigned types = 0;
    uint32_t i;

    if (node->kind == JSON_TEXT)
        types = type_bits(node);
    for (i = 0; node->kind == JSON_LIST && i < node->n; i++)
        types |= type_bits(&node->items[i]);
    if (types == 0)
        invalid(x, node, "a type's name or a list of them");
    return types;
}

static unsigned type_of_value(const struct json *v)
{
    switch (v->kind) {
    case JSON_NULL: return TYPE_NULL;
    case JSON_BOOL: return v->flag ? TYPE_TRUE : TYPE_FALSE;
    case JSON_INT:
    case JSON_UINT: return TYPE_WHOLE;
    case JSON_REAL: break;
    case JSON_TEXT: return TYPE_STRING;
    case JSON_LIST: return TYPE_ARRAY;
    case JSON_OBJECT: return TYPE_OBJECT;
    }
    struct decimal d;

    return decimal_read(&d, v->text, v->n) && d.n_frac == 0 ? TYPE_WHOLE : TYPE_FRACTION;
}

/* --- constants ---------------------------------------------------------------------------- */

/* One of values[0 .. n): scalars together, each list and object for itself. */
void expand_values(struct expansion *x, const struct json *values, uint32_t n, bool negated)
{
    struct options o = {0};
    unsigned types = 0;
    const struct item *all = NULL;
    uint32_t i;

    for (i = 0; i < n && compile_tick(x->s->c); i++)
        types |= type_of_value(&values[i]);
    if (!negated) {
        all = item_atom(x, (struct atom){.kind = ATOM_STRINGS, .node = values, .n = n}, all);
        all = item_atom(x, (struct atom){.kind = ATOM_NUMBERS, .node = values, .n = n}, all);
        all = item_types(x, types & ~(unsigned)(TYPE_ARRAY | TYPE_OBJECT), all);
        if ((types & ~(unsigned)(TYPE_ARRAY | TYPE_OBJECT)) != 0)
            option(x, &o, all);
    } else {
        types &= TYPE_NULL | TYPE_TRUE | TYPE_FALSE;
        do_item(x, (struct item){.kind = ITEM_TYPES, .types = TYPE_ALL & ~types});
        do_atom(x, (struct atom){.kind = ATOM_STRINGS, .node = values, .n = n, .negated = true});
        do_atom(x, (struct atom){.kind = ATOM_NUMBERS, .node = values, .n = n, .negated = true});
    }
    for (i = 0; i < n && compile_tick(x->s->c); i++) {
        struct item item = {.kind = ITEM_LITERAL};

        if (values[i].kind != JSON_LIST && values[i].kind != JSON_OBJECT)
            continue;
        item.literal = literal_of(x->s, &values[i], true, negated);
        if (negated)
            do_item(x, item);
        else
            option(x, &o, item_of(x, item, NULL));
    }
    if (!negated)
        do_either(x, &o);
}

static void expand_list_constant(struct expansion *x, const struct json *v, bool negated)
{
    struct options o = {0};
    uint32_t i;

    if (!negated) {
        do_item(x, (struct item){.kind = ITEM_TYPES, .types = TYPE_ARRAY});
        do_atom(x, (struct atom){.kind = ATOM_ITEMS_LEAST, .n = v->n});
        do_atom(x, (struct atom){.kind = ATOM_ITEMS_MOST, .n = v->n});
        for (i = 0; i < v->n && compile_tick(x->s->c); i++)
            do_atom(x, (struct atom){.kind = ATOM_ITEM,
                                     .n = i,
                                     .literal = literal_of(x->s, &v->items[i], true, false)});
        return;
    }
    option(x, &o, item_types(x, TYPE_ALL & ~(unsigned)TYPE_ARRAY, NULL));
    option(x, &o,
           item_types(x, TYPE_ARRAY,
                      item_atom(x, (struct atom){.kind = ATOM_ITEMS_LEAST, .n = v->n + 1}, NULL)));
    if (v->n > 0)
        option(
            x, &o,
            item_types(x, TYPE_ARRAY,
                       item_atom(x, (struct atom){.kind = ATOM_ITEMS_MOST, .n = v->n - 1}, NULL)));
    for (i = 0; i < v->n && compile_tick(x->s->c); i++) {
        struct atom least = {.kind = ATOM_ITEMS_LEAST, .n = i + 1};
        struct atom item = {
            .kind = ATOM_ITEM, .n = i, .literal = literal_of(x->s, &v->items[i], true, true)};

        option(x, &o, item_types(x, TYPE_ARRAY, item_atom(x, least, item_atom(x, item, NULL))));
    }
    do_either(x, &o);
}

/* A node that is the name of a member as a text, for atoms about names. */
const struct json *name_text(struct expansion *x, const struct json *member)
{
    struct json *text = compile_alloc(x->s->c, sizeof *text);

    if (text == NULL)
        return member;
    text->kind = JSON_TEXT;
    text->text = member->key;
    text->text_len = member->key_len;
    return text;
}

const struct item *item_required(struct expansion *x, const struct json *text,
                                 const struct item *next)
{
    return item_atom(x, (struct atom){.kind = ATOM_REQUIRED, .node = text}, next);
}

static void expand_object_constant(struct expansion *x, const struct json *v, bool negated)
{
    struct options o = {0};
    uint32_t i;

    if (!negated) {
        do_item(x, (struct item){.kind = ITEM_TYPES, .types = TYPE_OBJECT});
        do_atom(x, (struct atom){.kind = ATOM_MEMBERS_MOST, .n = v->n});
    } else {
        option(x, &o, item_types(x, TYPE_ALL & ~(unsigned)TYPE_OBJECT, NULL));
        option(x, &o,
               item_types(
                   x, TYPE_OBJECT,
                   item_atom(x, (struct atom){.kind = ATOM_MEMBERS_LEAST, .n = v->n + 1}, NULL)));
    }
    for (i = 0; i < v->n && compile_tick(x->s->c); i++) {
        const struct json *text = name_text(x, &v->items[i]);
        struct atom member = {.kind = ATOM_PROPERTY,
                              .node = &v->items[i],
                              .literal = literal_of(x->s, &v->items[i], true, negated)};

        if (!negated) {
            do_atom(x, (struct atom){.kind = ATOM_REQUIRED, .node = text});
            do_atom(x, member);
            continue;
        }
        option(x, &o,
               item_types(x, TYPE_OBJECT,
                          item_atom(x, (struct atom){.kind = ATOM_ABSENT, .node = text}, NULL)));
        option(x, &o,
               item_types(x, TYPE_OBJECT, item_required(x, text, item_atom(x, member, NULL))));
    }
    if (negated)
        do_either(x, &o);
}

/* --- is there any? ------------------------------------------------------------------------ */

static bool text_listed(const struct atom *t, const struct json *v)
{
    uint32_t i;

    for (i = 0; i < t->n; i++)
        if (t->node[i].kind == JSON_TEXT && t->node[i].text_len == v->text_len &&
            memcmp(t->node[i].text, v->text, v->text_len) == 0)
            return true;
    return false;
}

static bool number_listed(const struct atom *t, const struct json *v)
{
    uint32_t i;

    for (i = 0; i < t->n; i++)
        if (json_is_number(&t->node[i]) && json_real(&t->node[i]) == json_real(v))
            return true;
    return false;
}

/* Is a listed value in all other lists that must have it, and in none that must not? Numbers are
 * compared as doubles, so they may be taken for equal, never for different. */
static bool value_left(struct expansion *x, const struct atom *list, const struct json *v)
{
    const struct atom *t;

    for (t = x->now.atoms; t != NULL && compile_tick(x->s->c); t = t->next) {
        bool listed;

        if (t == list || t->kind != list->kind)
            continue;
        listed = t->kind == ATOM_STRINGS ? text_listed(t, v) : number_listed(t, v);
        if (t->kind == ATOM_NUMBERS && t->negated)
            continue;
        if (listed == t->negated)
            return false;
    }
    return true;
}

static void drop_empty_lists(struct expansion *x)
{
    const struct atom *t;
    uint32_t i;

    for (t = x->now.atoms; t != NULL && compile_tick(x->s->c); t = t->next) {
        bool text = t->kind == ATOM_STRINGS;
        bool left = false;

        if ((!text && t->kind != ATOM_NUMBERS) || t->negated)
            continue;
        for (i = 0; i < t->n && !left && compile_tick(x->s->c); i++)
            if (text ? t->node[i].kind == JSON_TEXT : json_is_number(&t->node[i]))
                left = value_left(x, t, &t->node[i]);
        if (!left)
            x->now.types &= ~(unsigned)(text ? TYPE_STRING : TYPE_NUMBER);
    }
}

static void drop_empty_ranges(struct expansion *x)
{
    static const struct {
        enum atom_kind least, most;
        unsigned type;
    } pairs[] = {{ATOM_LENGTH_LEAST, ATOM_LENGTH_MOST, TYPE_STRING},
                 {ATOM_ITEMS_LEAST, ATOM_ITEMS_MOST, TYPE_ARRAY},
                 {ATOM_MEMBERS_LEAST, ATOM_MEMBERS_MOST, TYPE_OBJECT}};
    const struct atom *t;
    const struct atom *u;
    size_t i;

    for (t = x->now.atoms; t != NULL; t = t->next)
        for (u = x->now.atoms; u != NULL && compile_tick(x->s->c); u = u->next) {
            for (i = 0; i < 3; i++)
                if (t->kind == pairs[i].least && u->kind == pairs[i].most && t->n > u->n)
                    x->now.types &= ~pairs[i].type;
            if (t->kind == ATOM_LEAST && u->kind == ATOM_MOST &&
                json_real(t->node) > json_real(u->node))
                x->now.types &= ~(unsigned)TYPE_NUMBER;
        }
}

/* What a required name's value must satisfy; false: there can be no such member. Patterns of names
 * are not looked at, so a little may be missing from the list. */
static bool member_wants(struct expansion *x, const struct json *name, uint32_t *list, uint32_t *n,
                         uint32_t cap)
{
    const struct atom *t;

    for (t = x->now.atoms; t != NULL && *n < cap; t = t->next) {
        const struct json *known, *own, *other;

        if (t->kind == ATOM_ABSENT && t->node->text_len == name->text_len &&
            memcmp(t->node->text, name->text, name->text_len) == 0)
            return false;
        if (t->kind == ATOM_PROPERTY && t->node->key_len == name->text_len &&
            memcmp(t->node->key, name->text, name->text_len) == 0)
            list[(*n)++] = t->literal;
        if (t->kind != ATOM_MEMBERS)
            continue;
        known = json_get_kind(t->node, "properties", JSON_OBJECT);
        own = known == NULL ? NULL : json_get_n(known, name->text, name->text_len);
        other = json_get(t->node, "additionalProperties");
        if (own == NULL && json_get(t->node, "patternProperties") == NULL)
            own = other;
        if (own != NULL && own->kind == JSON_BOOL && !own->flag)
            return false;
        if (own != NULL)
            list[(*n)++] = literal_of(x->s, own, false, false);
    }
    return true;
}

static void drop_empty_objects(struct expansion *x)
{
    const struct atom *t;

    for (t = x->now.atoms; t != NULL && (x->now.types & TYPE_OBJECT) != 0; t = t->next) {
        uint32_t list[32];
        uint32_t n = 0;

        if (t->kind != ATOM_REQUIRED || !compile_tick(x->s->c))
            continue;
        if (!member_wants(x, t->node, list, &n, 32))
            x->now.types &= ~(unsigned)TYPE_OBJECT;
        else if (x->depth > 0 && n > 1 && surely_empty(x->s, list, n, x->depth - 1))
            x->now.types &= ~(unsigned)TYPE_OBJECT;
    }
}

/* uniqueItems is honoured where at most one item may be, or items are of a list of scalars. */
static void drop_unique(struct expansion *x)
{
    const struct atom *t;
    const struct atom *unique = NULL;
    uint32_t most = NONE;

    for (t = x->now.atoms; t != NULL; t = t->next) {
        if (t->kind == ATOM_UNIQUE)
            unique = t;
        if (t->kind == ATOM_ITEMS_MOST && t->n < most)
            most = t->n;
    }
    if (unique != NULL && most > 1 && (x->now.types & TYPE_ARRAY) != 0 && !x->asking &&
        array_values(x->s, x->now.atoms, NULL) == 0)
        (void)refuse(
            x, unique->node,
            "\"uniqueItems\" is only supported for items of an enum, const or boolean, and "
            "with \"maxItems\": 1: list the values as an \"enum\", or leave it out and look for "
            "equal items in the answer");
}

/* --- the loop ----------------------------------------------------------------------------- */

/* The branch is through: an alternative, its atoms in the order in which they were found. */
static void branch_done(struct expansion *x)
{
    const struct atom *t;
    const struct atom *turned = NULL;

    drop_empty_lists(x);
    drop_empty_ranges(x);
    drop_empty_objects(x);
    if (x->now.types == 0 || !compile_ok(x->s->c))
        return;
    drop_unique(x);
    for (t = x->now.atoms; t != NULL && compile_tick(x->s->c); t = t->next) {
        struct atom *copy = compile_alloc(x->s->c, sizeof *copy);

        if (copy == NULL)
            return;
        *copy = *t;
        copy->next = turned;
        turned = copy;
    }
    if (x->found.n == ALTERNATIVES_MAX)
        compile_fail(x->s->c, ERR_LIMIT, "more than %d alternatives: simplify it",
                     ALTERNATIVES_MAX);
    if (LIST_ADD(x->s->c, &x->found))
        x->found.items[x->found.n - 1] = (struct alternative){x->now.types, turned};
}

static void split(struct expansion *x, const struct either *options)
{
    const struct either *e;
    uint32_t first = x->stack.n;
    uint32_t i;

    if (options == NULL) { /* none: nothing can hold */
        x->now.types = 0;
        return;
    }
    for (e = options; e != NULL && compile_tick(x->s->c); e = e->next) {
        struct branch b = x->now;
        const struct item *item;

        for (item = e->items; item != NULL; item = item->next)
            b.work = item_of(x, *item, b.work);
        if (LIST_ADD(x->s->c, &x->stack))
            x->stack.items[x->stack.n - 1] = b;
    }
    for (i = 0; compile_ok(x->s->c) && i < (x->stack.n - first) / 2; i++) { /* the first on top */
        struct branch b = x->stack.items[first + i];

        x->stack.items[first + i] = x->stack.items[x->stack.n - 1 - i];
        x->stack.items[x->stack.n - 1 - i] = b;
    }
    x->now.types = 0; /* its copies go on */
}

/* Look at a literal once in a branch; its negation there ends the branch. */
static void literal_done(struct expansion *x, uint32_t literal)
{
    struct literal l = x->s->literals.items[literal];
    uint32_t opposite = literal_not(x->s, literal);
    struct seen *seen;
    const struct seen *i;

    for (i = x->now.seen; i != NULL && compile_tick(x->s->c); i = i->next) {
        if (i->literal == literal)
            return;
        if (i->literal == opposite) {
            x->now.types = 0;
            return;
        }
    }
    seen = compile_alloc(x->s->c, sizeof *seen);
    if (seen == NULL)
        return;
    *seen = (struct seen){x->now.seen, literal};
    x->now.seen = seen;
    if (l.constant) {
        if (l.node->kind == JSON_LIST)
            expand_list_constant(x, l.node, l.negated);
        else if (l.node->kind == JSON_OBJECT)
            expand_object_constant(x, l.node, l.negated);
        else
            expand_values(x, l.node, 1, l.negated);
        return;
    }
    if (l.node->kind == JSON_BOOL) {
        if (l.node->flag == l.negated)
            x->now.types = 0;
    } else if (l.node->kind != JSON_OBJECT) {
        x->s->c->at = l.node;
        compile_fail(x->s->c, ERR_INVALID, "a schema must be an object, true or false");
    } else if (l.negated) {
        deny(x, l.node);
    } else {
        hold(x, l.node);
    }
}

static void branch_run(struct expansion *x)
{
    while (x->now.work != NULL && x->now.types != 0 && compile_tick(x->s->c)) {
        const struct item *item = x->now.work;

        x->now.work = item->next;
        switch (item->kind) {
        case ITEM_LITERAL: literal_done(x, item->literal); break;
        case ITEM_TYPES: x->now.types &= item->types; break;
        case ITEM_ATOM: do_atom(x, *item->atom); break;
        case ITEM_VALUES:
            expand_values(x, item->atom->node, item->atom->n, item->atom->negated);
            break;
        case ITEM_EITHER: split(x, item->either); break;
        }
    }
    if (x->now.types != 0 && compile_ok(x->s->c))
        branch_done(x);
}

static void run(struct expansion *x, const uint32_t *literals, uint32_t n)
{
    uint32_t i;

    if (!LIST_ADD(x->s->c, &x->stack))
        return;
    x->now = (struct branch){.types = TYPE_ALL};
    for (i = n; i-- > 0;)
        do_item(x, (struct item){.kind = ITEM_LITERAL, .literal = literals[i]});
    x->stack.items[0] = x->now;
    while (x->stack.n > 0 && compile_ok(x->s->c)) {
        if (++x->n_branches > (x->asking ? BRANCHES_ASKED : BRANCHES_MAX)) {
            x->gave_up = true;
            if (!x->asking)
                compile_fail(x->s->c, ERR_LIMIT, "its alternatives are too many: simplify it");
            return;
        }
        x->now = x->stack.items[--x->stack.n];
        branch_run(x);
        if (x->asking && x->found.n > 0)
            return;
    }
}

struct alternatives expand(struct schema *s, const uint32_t *literals, uint32_t n)
{
    struct expansion x = {.s = s};

    run(&x, literals, n);
    return (struct alternatives){x.found.items, compile_ok(s->c) ? x.found.n : 0};
}

bool surely_empty(struct schema *s, const uint32_t *literals, uint32_t n, int depth)
{
    struct expansion x = {.s = s, .asking = true, .depth = depth};

    run(&x, literals, n);
    return compile_ok(s->c) && !x.gave_up && x.found.n == 0;
}
