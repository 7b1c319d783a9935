/* SPDX-License-Identifier: Apache-2.0
 *
 * Structural tags: one function per format, which appends its parts to a list.
 *
 * The difficulty is free text (any_text, and the text around triggered tags): a grammar can only
 * stop it at a known text. Therefore each function also gets the end that follows its format, and
 * passes it down to the last format inside, which appends it after itself.
 *
 * For example, the format
 *
 *   {"type": "triggered_tags", "triggers": ["<f"],
 *    "tags": [{"type": "tag", "begin": "<f>", "content": {"type": "any_text"}, "end": "</f>"}]}
 *
 * becomes free text with one trigger:
 *
 *   "<f", then a choice of: ">", free text, "</f>" */
#include "front/structured/tags.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "front/structured/calls.h"
#include "front/structured/calls_parts.h"

#define TAGS_DEPTH_MAX 12 /* depth of nested formats */
#define TAGS_TEXTS_MAX 64 /* maximum ends of a tag, excludes, or triggers */

/* The element that follows a format. */
enum tags_after {
    TAGS_NOTHING, /* none: the output ends */
    TAGS_TEXT,    /* one of some texts, which the format itself appends */
    TAGS_NEXT,    /* a text that the caller appends next */
    TAGS_OTHER,   /* anything else; free text could not stop at it */
};

struct tags_end {
    enum tags_after after;
    const struct json *texts; /* a text or a list of texts, or NULL */
};

struct tags {
    struct calls c; /* the arena and the first error */
    char at[200];   /* the place in the structural tag, for errors */
};

static const struct tags_end tags_nothing = {TAGS_NOTHING, NULL};
static const struct tags_end tags_other = {TAGS_OTHER, NULL};

typedef void tags_fn(struct tags *t, struct part_list *l, const struct json *v, struct tags_end end,
                     int depth);

static tags_fn tags_format;

/* --- errors and places --------------------------------------------------------------------
 *
 * t->at is a path such as .format.elements[2].content, which begins every error. */

static void tags_fail(struct tags *t, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Report an error with its place. calls_fail() keeps the first one, so functions may go on after an
 * error and need no checks of their own. */
static void tags_fail(struct tags *t, int rc, const char *format, ...)
{
    char text[200];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    calls_fail(&t->c, rc, "'structural_tag%s': %s", t->at, text);
}

/* Append a member, or one element of a list, to the path. Returns the old length, for
 * tags_leave(). */
static size_t tags_enter(struct tags *t, const char *name, int64_t index)
{
    size_t was = strlen(t->at);

    if (index < 0)
        (void)snprintf(t->at + was, sizeof t->at - was, ".%s", name);
    else
        (void)snprintf(t->at + was, sizeof t->at - was, ".%s[%lld]", name, (long long)index);
    return was;
}

/* Shorten the path to its length at tags_enter(). */
static void tags_leave(struct tags *t, size_t was)
{
    t->at[was] = '\0';
}

/* A member of this kind, or NULL and an error. */
static const struct json *tags_member(struct tags *t, const struct json *v, const char *name,
                                      enum json_kind kind)
{
    const struct json *member = json_get(v, name);

    if (member != NULL && member->kind == kind)
        return member;
    tags_fail(t, ERR_INVALID, "'%s' must be a %s%s", name, json_kind_name(kind),
              member == NULL ? "; it is missing" : "");
    return NULL;
}

/* A member that is true or false; missing means false. */
static bool tags_flag(struct tags *t, const struct json *v, const char *name)
{
    const struct json *member = json_get(v, name);

    if (member != NULL && member->kind != JSON_BOOL && member->kind != JSON_NULL)
        tags_fail(t, ERR_INVALID, "'%s' must be true or false", name);
    return member != NULL && member->kind == JSON_BOOL && member->flag;
}

/* Refuse a member that would change the meaning and is not supported. */
static void tags_refuse(struct tags *t, const struct json *v, const char *name)
{
    const struct json *member = json_get(v, name);

    if (member != NULL && member->kind != JSON_NULL &&
        !(member->kind == JSON_BOOL && !member->flag) &&
        !(member->kind == JSON_LIST && member->n == 0))
        tags_fail(t, ERR_UNSUPPORTED, "'%s' is not supported", name);
}

/* Has no error been reported? */
static bool tags_ok(const struct tags *t)
{
    return t->c.rc == ERR_OK;
}

/* --- texts -------------------------------------------------------------------------------- */

/* A constant text as a part. */
static struct grammar_part tags_text(const struct json *v)
{
    return (struct grammar_part){.kind = PART_TEXT, .text = v->text, .len = v->text_len};
}

/* Append the texts of v, a string or a list of strings that are not empty. Returns their number; 0
 * for a single "". */
static size_t tags_texts(struct tags *t, const struct json *v, const char *name,
                         struct part_list *out)
{
    const struct json *items = v; /* a single text is treated as a list of one */
    uint32_t n = 1;

    if (v == NULL) {
        n = 0;
    } else if (v->kind == JSON_LIST) {
        items = v->items;
        n = v->n;
    }
    if (n > TAGS_TEXTS_MAX)
        tags_fail(t, ERR_LIMIT, "'%s' has more than %d texts", name, TAGS_TEXTS_MAX);
    for (uint32_t i = 0; i < n && tags_ok(t); i++) {
        if (items[i].kind == JSON_OBJECT)
            tags_fail(t, ERR_UNSUPPORTED, "'%s' as a token is not supported", name);
        else if (items[i].kind != JSON_TEXT || (items[i].text_len == 0 && v->kind == JSON_LIST))
            tags_fail(t, ERR_INVALID,
                      "'%s' must be a string, or a list of strings, none of them "
                      "empty",
                      name);
        else if (items[i].text_len > 0)
            calls_add(&t->c, out, tags_text(&items[i]));
    }
    return out->n;
}

/* Append the end that follows a format. */
static void tags_add_end(struct tags *t, struct part_list *l, struct tags_end end)
{
    struct part_list texts = {0};
    size_t n = 0;

    if (end.after == TAGS_TEXT)
        n = tags_texts(t, end.texts, "end", &texts);
    if (n == 1)
        calls_add(&t->c, l, texts.items[0]);
    else if (n > 1)
        calls_add(&t->c, l, calls_choice(&texts));
}

/* Set the texts that free text must not contain: the client's `excludes`, and those that look like
 * a call or an end. */
static void tags_never(struct tags *t, const struct json *v, struct grammar_part *part)
{
    const struct json *excludes = json_get(v, "excludes");
    struct part_list texts = {0};

    if (excludes != NULL && excludes->kind != JSON_LIST && excludes->kind != JSON_NULL)
        tags_fail(t, ERR_INVALID, "'excludes' must be a list of strings");
    else if (excludes != NULL && excludes->kind == JSON_LIST)
        (void)tags_texts(t, excludes, "excludes", &texts);
    for (size_t i = 0; calls_avoided(t->c.format, i) != NULL; i++)
        calls_add_text(&t->c, &texts, calls_avoided(t->c.format, i));
    part->never = texts.items;
    part->n_never = texts.n;
}

/* Does a text contain another? */
static bool tags_holds(const struct grammar_part *text, const struct grammar_part *inner)
{
    return memmem(text->text, text->len, inner->text, inner->len) != NULL;
}

/* An excluded or watched text must not be part of a longer text that has to be reached, because the
 * longer one could never be completed. Equal texts are allowed; the one to be reached wins. */
static void tags_check_inside(struct tags *t, const struct grammar_part *watched, size_t n,
                              const struct grammar_part *text, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (tags_holds(text, &watched[i]) && text->len > watched[i].len)
            tags_fail(t, ERR_INVALID,
                      "'%.40s' must not occur in the text, but is a part of '%.40s', %s",
                      watched[i].text, text->text, what);
    }
}

/* Check that free text can end: only at a text, and only if that text is not excluded. */
static void tags_check_free(struct tags *t, const struct grammar_part *part, struct tags_end end)
{
    struct part_list ends = {0};

    if (end.after == TAGS_OTHER)
        tags_fail(t, ERR_UNSUPPORTED,
                  "free text is supported only at the end of an output, before the end of a tag, "
                  "or before a const_string or tag of the same sequence");
    (void)tags_texts(t, end.texts, "end", &ends);
    /* The end of the text must stay reachable. */
    for (size_t i = 0; i < ends.n && tags_ok(t); i++)
        tags_check_inside(t, part->never, part->n_never, &ends.items[i], "which ends it");
    /* So must each trigger; and an end that contains a trigger could never be completed. */
    for (size_t i = 0; i < part->n_parts && tags_ok(t); i++) {
        const struct grammar_part *trigger = &part->parts[i].parts[0];

        tags_check_inside(t, part->never, part->n_never, trigger, "a trigger");
        for (size_t k = 0; k < ends.n; k++) {
            if (tags_holds(&ends.items[k], trigger))
                tags_fail(t, ERR_INVALID, "the trigger '%.40s' is a part of '%.40s', an end",
                          trigger->text, ends.items[k].text);
        }
    }
}

/* --- formats with one part ---------------------------------------------------------------- */

/* const_string: exactly this text. */
static void tags_const(struct tags *t, struct part_list *l, const struct json *v,
                       struct tags_end end, int depth)
{
    const struct json *text = tags_member(t, v, "value", JSON_TEXT);

    (void)depth;
    if (text != NULL && text->text_len > 0)
        calls_add(&t->c, l, tags_text(text));
    tags_add_end(t, l, end);
}

/* Append a part that must not look like a call or an end. */
static void tags_add_kept_apart(struct tags *t, struct part_list *l, struct grammar_part part)
{
    int rc = calls_avoid(t->c.format, t->c.arena, &part);

    if (rc != ERR_OK)
        tags_fail(t, rc, "%s", err_sentence(rc));
    calls_add(&t->c, l, part);
}

/* A part for a schema, which the grammar's compiler reads from text. NULL: any JSON value. */
static void tags_schema_part(struct tags *t, struct part_list *l, const struct json *schema)
{
    struct grammar_part part = {.kind = PART_SCHEMA};
    struct buf buf = {.limit = GRAMMAR_SOURCE_MAX};

    if (schema != NULL && schema->kind != JSON_NULL) {
        json_write(&buf, schema, JSON_COMPACT);
        part.len = buf.len;
        if (buf.failed)
            part.text = NULL;
        else
            part.text = arena_strndup(t->c.arena, buf.bytes, buf.len);
        if (part.text == NULL)
            tags_fail(t, ERR_LIMIT, "the schema is too large");
        buf_fini(&buf);
    }
    tags_add_kept_apart(t, l, part);
}

/* json_schema: a value that the schema allows. */
static void tags_schema(struct tags *t, struct part_list *l, const struct json *v,
                        struct tags_end end, int depth)
{
    const struct json *schema = json_get(v, "json_schema");
    const struct json *style = json_get(v, "style");

    (void)depth;
    if (schema == NULL || (schema->kind != JSON_OBJECT && schema->kind != JSON_BOOL))
        tags_fail(t, ERR_INVALID, "'json_schema' must be a schema");
    else if (style != NULL && style->kind != JSON_NULL && !json_is_text(style, "json"))
        tags_fail(t, ERR_UNSUPPORTED, "'style' other than json is not supported");
    tags_refuse(t, v, "any_order");
    if (tags_ok(t))
        tags_schema_part(t, l, schema);
    tags_add_end(t, l, end);
}

/* regex or grammar: a pattern, or an EBNF grammar. */
static void tags_source(struct tags *t, struct part_list *l, const struct json *v,
                        struct tags_end end, int depth)
{
    bool is_regex = json_is_text(json_get(v, "type"), "regex");
    const struct json *text = tags_member(t, v, is_regex ? "pattern" : "grammar", JSON_TEXT);

    (void)depth;
    tags_refuse(t, v, "excludes");
    if (text != NULL && is_regex)
        tags_add_kept_apart(
            t, l,
            (struct grammar_part){.kind = PART_REGEX, .text = text->text, .len = text->text_len});
    else if (text != NULL)
        calls_add(
            &t->c, l,
            (struct grammar_part){.kind = PART_EBNF, .text = text->text, .len = text->text_len});
    tags_add_end(t, l, end);
}

/* any_text: free text, up to the end that follows. */
static void tags_any_text(struct tags *t, struct part_list *l, const struct json *v,
                          struct tags_end end, int depth)
{
    struct grammar_part part = {.kind = PART_FREE};

    (void)depth;
    tags_refuse(t, v, "max_tokens");
    tags_never(t, v, &part);
    tags_check_free(t, &part, end);
    calls_add(&t->c, l, part);
    tags_add_end(t, l, end);
}

/* --- formats of formats ------------------------------------------------------------------- */

/* The text with which a format begins, if it is a constant; otherwise NULL. */
static const struct json *tags_first_text(const struct json *v)
{
    const char *member = json_is_text(json_get(v, "type"), "tag") ? "begin" : "value";
    const struct json *text = json_get_kind(v, member, JSON_TEXT);

    if (!json_is_text(json_get(v, "type"), "tag") &&
        !json_is_text(json_get(v, "type"), "const_string"))
        return NULL;
    if (text != NULL && text->text_len > 0)
        return text;
    return NULL;
}

/* Is v free text itself? Free text inside a nested format does not see the text after it. */
static bool tags_is_free(const struct json *v)
{
    const struct json *type = json_get(v, "type");

    return json_is_text(type, "any_text") || json_is_text(type, "triggered_tags") ||
           json_is_text(type, "dispatch");
}

/* The elements of a sequence or an or; NULL and an error if there are none. */
static const struct json *tags_elements(struct tags *t, const struct json *v)
{
    const struct json *list = tags_member(t, v, "elements", JSON_LIST);

    if (list != NULL && list->n == 0)
        tags_fail(t, ERR_INVALID, "'elements' must not be empty");
    if (tags_ok(t))
        return list;
    return NULL;
}

/* Each element is followed by the next; only free text can make use of the next one's first
 * text. */
static void tags_sequence(struct tags *t, struct part_list *l, const struct json *v,
                          struct tags_end end, int depth)
{
    const struct json *list = tags_elements(t, v);

    for (uint32_t i = 0; list != NULL && i < list->n && tags_ok(t); i++) {
        const struct json *next = NULL;
        struct tags_end after = end;
        size_t was = tags_enter(t, "elements", i);

        if (i + 1 < list->n) {
            next = tags_first_text(&list->items[i + 1]);
            after = tags_other;
        }
        if (next != NULL && tags_is_free(&list->items[i]))
            after = (struct tags_end){TAGS_NEXT, next};
        tags_format(t, l, &list->items[i], after, depth + 1);
        tags_leave(t, was);
    }
}

/* or: one of the elements. All of them are followed by the same end. */
static void tags_or(struct tags *t, struct part_list *l, const struct json *v, struct tags_end end,
                    int depth)
{
    const struct json *list = tags_elements(t, v);
    struct part_list ways = {0};

    for (uint32_t i = 0; list != NULL && i < list->n && tags_ok(t); i++) {
        struct part_list way = {0};
        size_t was = tags_enter(t, "elements", i);

        tags_format(t, &way, &list->items[i], end, depth + 1);
        calls_add(&t->c, &ways, calls_sequence(&way));
        tags_leave(t, was);
    }
    calls_add(&t->c, l, calls_choice(&ways));
}

/* A count of a repeat; -1 means no limit. */
static uint32_t tags_count(struct tags *t, const struct json *v, const char *name, int64_t least)
{
    const struct json *member = tags_member(t, v, name, JSON_INT);

    if (member == NULL)
        return 0;
    if (member->whole < least || member->whole > 1000000) {
        tags_fail(t, ERR_INVALID, "'%s' must be at least %lld and at most 1000000", name,
                  (long long)least);
        return 0;
    }
    if (member->whole < 0)
        return UINT32_MAX;
    return (uint32_t)member->whole;
}

/* optional, star, plus and repeat: the content between min and max times. The content is followed
 * by another repetition or by the end, so free text cannot be repeated. */
static void tags_repeat(struct tags *t, struct part_list *l, const struct json *v,
                        struct tags_end end, int depth)
{
    const struct json *type = json_get(v, "type");
    const struct json *content = tags_member(t, v, "content", JSON_OBJECT);
    uint32_t min = json_is_text(type, "plus") ? 1 : 0;
    uint32_t max = json_is_text(type, "optional") ? 1 : UINT32_MAX;
    struct part_list once = {0};
    size_t was = tags_enter(t, "content", -1);

    if (content != NULL)
        tags_format(t, &once, content, tags_other, depth + 1);
    tags_leave(t, was);
    if (json_is_text(type, "repeat")) {
        min = tags_count(t, v, "min", 0);
        max = tags_count(t, v, "max", -1);
        if (tags_ok(t) && max < min)
            tags_fail(t, ERR_INVALID, "'max' must not be below 'min'");
    }
    if (max > 0)
        calls_add(&t->c, l, calls_repeat(&once, min, max, ""));
    tags_add_end(t, l, end);
}

/* --- tags --------------------------------------------------------------------------------- */

/* The content and the end of a tag. With an empty end, the element after the tag ends the
 * content. */
static void tags_inside(struct tags *t, struct part_list *l, const struct json *v,
                        struct tags_end end, int depth)
{
    const struct json *content = tags_member(t, v, "content", JSON_OBJECT);
    const struct json *own = json_get(v, "end");
    struct part_list texts = {0};
    size_t n = 0, was;

    if (own == NULL || own->kind == JSON_NULL || (own->kind == JSON_LIST && own->n == 0))
        tags_fail(t, ERR_INVALID,
                  "'end' must be a string, or a list of strings, none of them empty");
    else
        n = tags_texts(t, own, "end", &texts);
    was = tags_enter(t, "content", -1);
    if (tags_ok(t) && content != NULL)
        tags_format(t, l, content, n > 0 ? (struct tags_end){TAGS_TEXT, own} : end, depth + 1);
    tags_leave(t, was);
    if (n > 0)
        tags_add_end(t, l, end);
}

/* The begin of a tag, or NULL and an error. */
static const struct json *tags_begin(struct tags *t, const struct json *v)
{
    const struct json *begin = json_get(v, "begin");

    if (v->kind != JSON_OBJECT)
        tags_fail(t, ERR_INVALID, "must be an object");
    else if (json_get(v, "type") != NULL && !json_is_text(json_get(v, "type"), "tag"))
        tags_fail(t, ERR_INVALID, "must be of type tag");
    else if (begin != NULL && begin->kind == JSON_OBJECT)
        tags_fail(t, ERR_UNSUPPORTED, "'begin' as a token is not supported");
    else
        begin = tags_member(t, v, "begin", JSON_TEXT);
    if (tags_ok(t))
        return begin;
    return NULL;
}

/* tag: its begin, its content, its end. */
static void tags_tag(struct tags *t, struct part_list *l, const struct json *v, struct tags_end end,
                     int depth)
{
    const struct json *begin = tags_begin(t, v);

    if (begin != NULL && begin->text_len > 0)
        calls_add(&t->c, l, tags_text(begin));
    if (begin != NULL)
        tags_inside(t, l, v, end, depth);
}

/* The tags of a format that has several; NULL and an error if there are none. */
static const struct json *tags_list(struct tags *t, const struct json *v)
{
    const struct json *list = tags_member(t, v, "tags", JSON_LIST);

    if (list != NULL && list->n == 0)
        tags_fail(t, ERR_INVALID, "'tags' must not be empty");
    if (tags_ok(t))
        return list;
    return NULL;
}

/* A choice of all tags in a list. */
static struct grammar_part tags_any_tag(struct tags *t, const struct json *list, int depth)
{
    struct part_list ways = {0};

    for (uint32_t i = 0; list != NULL && i < list->n && tags_ok(t); i++) {
        struct part_list way = {0};
        size_t was = tags_enter(t, "tags", i);

        tags_tag(t, &way, &list->items[i], tags_other, depth + 1);
        calls_add(&t->c, &ways, calls_sequence(&way));
        tags_leave(t, was);
    }
    return calls_choice(&ways);
}

/* tags_with_separator: any number of tags with a text between them. */
static void tags_separated(struct tags *t, struct part_list *l, const struct json *v,
                           struct tags_end end, int depth)
{
    const struct json *separator = tags_member(t, v, "separator", JSON_TEXT);
    uint32_t min = tags_flag(t, v, "at_least_one") ? 1 : 0;
    uint32_t max = tags_flag(t, v, "stop_after_first") ? 1 : UINT32_MAX;
    struct part_list once = {0};

    calls_add(&t->c, &once, tags_any_tag(t, tags_list(t, v), depth));
    /* calls_repeat() takes a C string. */
    if (tags_ok(t) && strlen(separator->text) != separator->text_len)
        tags_fail(t, ERR_INVALID, "'separator' holds a NUL");
    if (tags_ok(t))
        calls_add(&t->c, l, calls_repeat(&once, min, max, separator->text));
    tags_add_end(t, l, end);
}

/* --- tags in free text -------------------------------------------------------------------- */

/* Does a text begin with another? */
static bool tags_starts(const struct json *text, const struct json *start)
{
    return text->text_len >= start->text_len &&
           memcmp(text->text, start->text, start->text_len) == 0;
}

/* A trigger that is empty would be found everywhere. */
static void tags_check_trigger(struct tags *t, const struct json *trigger)
{
    if (trigger->kind != JSON_TEXT || trigger->text_len == 0)
        tags_fail(t, ERR_INVALID, "a trigger must be a string that is not empty");
}

/* Check that each tag begins with exactly one trigger, as xgrammar requires. */
static void tags_check_begins(struct tags *t, const struct json *list, const struct json *triggers)
{
    for (uint32_t i = 0; i < list->n && tags_ok(t); i++) {
        size_t was = tags_enter(t, "tags", i);
        const struct json *begin = tags_begin(t, &list->items[i]);
        int n = 0;

        for (uint32_t k = 0; begin != NULL && k < triggers->n; k++)
            n += tags_starts(begin, &triggers->items[k]);
        if (begin != NULL && n != 1)
            tags_fail(t, ERR_INVALID, "'begin' must begin with one trigger, not with %d", n);
        tags_leave(t, was);
    }
}

/* One trigger and, after it, a choice of the rests of its tags. */
static struct grammar_part tags_of_trigger(struct tags *t, const struct json *list,
                                           const struct json *trigger, int depth)
{
    struct part_list ways = {0}, parts = {0};

    for (uint32_t i = 0; i < list->n && tags_ok(t); i++) {
        const struct json *begin = json_get(&list->items[i], "begin");
        struct part_list way = {0};
        size_t was = tags_enter(t, "tags", i);

        if (tags_starts(begin, trigger)) {
            struct grammar_part rest = tags_text(begin);

            /* The trigger itself comes first, outside of the choice. */
            rest.text += trigger->text_len;
            rest.len -= trigger->text_len;
            if (rest.len > 0)
                calls_add(&t->c, &way, rest);
            tags_inside(t, &way, &list->items[i], tags_other, depth + 1);
            calls_add(&t->c, &ways, calls_sequence(&way));
        }
        tags_leave(t, was);
    }
    if (tags_ok(t) && ways.n == 0)
        tags_fail(t, ERR_INVALID, "no tag begins with the trigger '%.40s'", trigger->text);
    calls_add(&t->c, &parts, tags_text(trigger));
    calls_add(&t->c, &parts, calls_choice(&ways));
    return calls_sequence(&parts);
}

/* Free text in which the sequences of `triggers` may appear. */
static void tags_add_free(struct tags *t, struct part_list *l, const struct json *v,
                          const struct part_list *triggers, uint32_t max, struct tags_end end)
{
    struct grammar_part part = {
        .kind = PART_TRIGGERS, .parts = triggers->items, .n_parts = triggers->n, .max = max};

    tags_never(t, v, &part);
    tags_check_free(t, &part, end);
    calls_add(&t->c, l, part);
    tags_add_end(t, l, end);
}

/* triggered_tags: free text; a trigger in it begins one of the tags that start with this trigger.
 * at_least_one puts a first tag before the text, stop_after_first ends after one. */
static void tags_triggered(struct tags *t, struct part_list *l, const struct json *v,
                           struct tags_end end, int depth)
{
    const struct json *triggers = tags_member(t, v, "triggers", JSON_LIST);
    const struct json *list = tags_list(t, v);
    bool first = tags_flag(t, v, "at_least_one"), once = tags_flag(t, v, "stop_after_first");
    struct part_list sequences = {0};

    if (triggers != NULL && (triggers->n == 0 || triggers->n > TAGS_TEXTS_MAX))
        tags_fail(t, triggers->n == 0 ? ERR_INVALID : ERR_LIMIT, "'triggers' must be 1 to %d texts",
                  TAGS_TEXTS_MAX);
    for (uint32_t i = 0; tags_ok(t) && i < triggers->n; i++)
        tags_check_trigger(t, &triggers->items[i]);
    if (tags_ok(t))
        tags_check_begins(t, list, triggers);
    if (tags_ok(t) && first) /* the first tag must come at once, without text before it */
        calls_add(&t->c, l, tags_any_tag(t, list, depth));
    /* Exactly one tag, and no text at all. */
    if (tags_ok(t) && first && once) {
        tags_add_end(t, l, end);
        return;
    }
    for (uint32_t i = 0; tags_ok(t) && i < triggers->n; i++)
        calls_add(&t->c, &sequences, tags_of_trigger(t, list, &triggers->items[i], depth));
    if (tags_ok(t))
        tags_add_free(t, l, v, &sequences, once ? 1 : UINT32_MAX, end);
}

/* Rules: [text, format that follows it]. */
static void tags_dispatch(struct tags *t, struct part_list *l, const struct json *v,
                          struct tags_end end, int depth)
{
    const struct json *rules = tags_member(t, v, "rules", JSON_LIST);
    const struct json *loop = json_get(v, "loop");
    /* The default is to go on after a rule. */
    bool again = loop == NULL || loop->kind == JSON_NULL || tags_flag(t, v, "loop");
    struct part_list sequences = {0};

    if (rules != NULL && rules->n == 0)
        tags_fail(t, ERR_INVALID, "'rules' must not be empty");
    for (uint32_t i = 0; tags_ok(t) && i < rules->n; i++) {
        const struct json *rule = &rules->items[i];
        struct part_list one = {0};
        size_t was = tags_enter(t, "rules", i);

        if (rule->kind != JSON_LIST || rule->n != 2 || rule->items[1].kind != JSON_OBJECT)
            tags_fail(t, ERR_INVALID, "must be a list of a text and a format");
        else
            tags_check_trigger(t, &rule->items[0]);
        if (tags_ok(t)) {
            calls_add(&t->c, &one, tags_text(&rule->items[0]));
            tags_format(t, &one, &rule->items[1], tags_other, depth + 1);
            calls_add(&t->c, &sequences, calls_sequence(&one));
        }
        tags_leave(t, was);
    }
    if (tags_ok(t))
        tags_add_free(t, l, v, &sequences, again ? UINT32_MAX : 1, end);
}

/* --- all of it ---------------------------------------------------------------------------- */

static const struct {
    const char *type;
    tags_fn *add; /* NULL: known, but not supported */
} tags_rows[] = {
    {"const_string", tags_const},
    {"json_schema", tags_schema},
    {"regex", tags_source},
    {"grammar", tags_source},
    {"any_text", tags_any_text},
    {"sequence", tags_sequence},
    {"or", tags_or},
    {"optional", tags_repeat},
    {"star", tags_repeat},
    {"plus", tags_repeat},
    {"repeat", tags_repeat},
    {"tag", tags_tag},
    {"triggered_tags", tags_triggered},
    {"tags_with_separator", tags_separated},
    {"dispatch", tags_dispatch},
    {"qwen_xml_parameter", NULL},
    {"token", NULL},
    {"exclude_token", NULL},
    {"any_tokens", NULL},
    {"token_triggered_tags", NULL},
    {"token_dispatch", NULL},
};

/* Append any format. The depth is limited because this function calls itself for the formats
 * inside. */
static void tags_format(struct tags *t, struct part_list *l, const struct json *v,
                        struct tags_end end, int depth)
{
    const struct json *type = json_get_kind(v, "type", JSON_TEXT);

    if (type == NULL || json_has_nul(type)) {
        tags_fail(t, ERR_INVALID, "a format must be an object with a 'type'");
        return;
    }
    if (depth > TAGS_DEPTH_MAX) {
        tags_fail(t, ERR_LIMIT, "formats are nested more than %d deep", TAGS_DEPTH_MAX);
        return;
    }
    for (size_t i = 0; i < sizeof tags_rows / sizeof tags_rows[0]; i++) {
        if (strcmp(tags_rows[i].type, type->text) != 0)
            continue;
        if (tags_rows[i].add == NULL)
            tags_fail(t, ERR_UNSUPPORTED, "formats of type %s are not supported", type->text);
        else
            tags_rows[i].add(t, l, v, end, depth);
        return;
    }
    tags_fail(t, ERR_INVALID, "unknown format type '%.40s'", type->text);
}

/* Convert the older form to the newer: each structure is a tag with a schema. */
static struct json tags_older(struct tags *t, const struct json *v)
{
    const struct json *structures = tags_member(t, v, "structures", JSON_LIST);
    struct json_made list = {.arena = t->c.arena};
    struct json_made out = list;
    const struct json any = {.kind = JSON_BOOL, .flag = true};

    for (uint32_t i = 0; tags_ok(t) && i < structures->n; i++) {
        const struct json *structure = &structures->items[i];
        const struct json *schema = json_get(structure, "schema");
        struct json_made tag = {.arena = t->c.arena}, content = tag;

        /* {"begin": B, "schema": S, "end": E} becomes {"type": "tag", "begin": B, "content":
         * {"type": "json_schema", "json_schema": S}, "end": E}. */
        json_put_text(&content, "type", "json_schema");
        if (schema == NULL || schema->kind == JSON_NULL)
            schema = &any;
        json_put(&content, "json_schema", schema);
        json_put_text(&tag, "type", "tag");
        if (json_get(structure, "begin") != NULL)
            json_put(&tag, "begin", json_get(structure, "begin"));
        json_put_made(&tag, "content", JSON_OBJECT, &content);
        if (json_get(structure, "end") != NULL)
            json_put(&tag, "end", json_get(structure, "end"));
        json_put_made(&list, NULL, JSON_OBJECT, &tag);
    }
    json_put_text(&out, "type", "triggered_tags");
    if (json_get(v, "triggers") != NULL)
        json_put(&out, "triggers", json_get(v, "triggers"));
    json_put_made(&out, "tags", JSON_LIST, &list);
    if (out.failed)
        tags_fail(t, ERR_NO_MEMORY, "%s", err_sentence(ERR_NO_MEMORY));
    return json_made(&out, JSON_OBJECT);
}

/* A structural tag may come as an object or as the text of one. A newer one has a format; an older
 * one has structures and triggers, and is first converted. */
int tags_compose(const struct json *v, enum reply_format format, struct arena *arena,
                 struct grammar_part *out, char *why, size_t cap)
{
    struct tags tags = {.c = {.arena = arena, .format = format, .why = why, .cap = cap}};
    struct part_list parts = {0};
    struct json older;
    char reason[100] = "";

    if (v->kind == JSON_TEXT) {
        const struct json *parsed = NULL;
        int rc = json_parse(&parsed, arena, v->text, v->text_len, reason, sizeof reason);

        if (rc != ERR_OK) {
            tags_fail(&tags, rc, "it is not JSON: %s", reason);
            return tags.c.rc;
        }
        v = parsed;
    }
    if (v->kind == JSON_OBJECT && json_get(v, "format") != NULL) {
        (void)tags_enter(&tags, "format", -1);
        tags_format(&tags, &parts, json_get(v, "format"), tags_nothing, 0);
    } else if (v->kind == JSON_OBJECT && json_get(v, "structures") != NULL) {
        older = tags_older(&tags, v);
        if (tags_ok(&tags))
            tags_format(&tags, &parts, &older, tags_nothing, 0);
    } else {
        tags_fail(&tags, ERR_INVALID, "it must have a 'format', or 'structures' and 'triggers'");
    }
    if (tags_ok(&tags) && parts.n == 0)
        tags_fail(&tags, ERR_INVALID, "it describes an empty output");
    *out = calls_sequence(&parts);
    return tags.c.rc;
}
