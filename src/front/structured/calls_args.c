/* SPDX-License-Identifier: Apache-2.0
 *
 * The grammar of a call's arguments. As JSON, they are an object with the tool's schema. In tags
 * and in Python each member is written separately, so only those keywords of the schema apply that
 * concern single members; a member's own schema may use any. The values are written so that
 * text/output/reply_value.c reads them back as valid: a text without quotes where the schema says
 * "string", otherwise JSON.
 *
 *   tags    <parameter=city>\nParis\n</parameter>\n        (\n: a line feed)
 *   pairs   <arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n
 *   python  city="Paris", days=3
 *   marked  city:<|"|>Paris<|"|>,days:3 */
#include <stdio.h>
#include <string.h>

#include "front/structured/calls_parts.h"

#define KEY_MAX      200 /* bytes of a member's name in a tag */
#define FIRSTS_MAX   24  /* optional members of which any may be the first */
#define WHOLE_BOUNDS ",\"minimum\":-9223372036854775808,\"maximum\":9223372036854775807"

/* Patterns for texts between tags. They must not contain the closing tag, and not be "null" in any
 * spelling, because the parser reads that as null. */
#define NOT_NULL "(?!([nN][uU][lL][lL]|[nN][oO][nN][eE])$)"

/* The way in which a format writes members. */
struct args_style {
    const char *inside;          /* pattern for every string inside a value */
    const char *text;            /* pattern for a text without quotes */
    const char *before, *behind; /* text before and after a member's name */
    const char *end;             /* text after a member */
    const char *between;         /* text between members; NULL: each has its end */
    const char *quote;           /* around a text without quotes; NULL: nothing */
};

static const struct args_style style_json = {.inside = NULL};
static const struct args_style style_harmony = {
    .inside = "(?![\\s\\S]*<\\|(end|call|return|start|channel)\\|>)[^\\x00]*"};
static const struct args_style style_tags = {
    .inside = "(?![\\s\\S]*</parameter>)[^\\x00]*",
    .text = NOT_NULL "(?![\\s\\S]*</parameter>)[^\\x00]*",
    .before = "<parameter=",
    .behind = ">\n",
    .end = "\n</parameter>\n",
};
static const struct args_style style_pairs = {
    .inside = "(?![\\s\\S]*</arg_value>)[^\\x00]*",
    .text = NOT_NULL "(?![\\s\\S]*</arg_value>)[^\\x00]*",
    .before = "<arg_key>",
    .behind = "</arg_key>\n<arg_value>",
    .end = "</arg_value>\n",
};
static const struct args_style style_python = {.inside = "(?![\\s\\S]*<\\|python_end\\|>)[^\\x00]*",
                                               .before = "",
                                               .behind = "=",
                                               .end = "",
                                               .between = ", "};
static const struct args_style style_marked = {.text = "(?![\\s\\S]*<\\|\"\\|>)[^\\x00]*",
                                               .before = "",
                                               .behind = ":",
                                               .end = "",
                                               .between = ",",
                                               .quote = "<|\"|>"};

/* Where the type is unknown, the parser reads a text that looks like JSON as JSON; exclude
 * those. */
#define GLM_UNTYPED                                                                        \
    NOT_NULL                                                                               \
    "(?![ \\t\\r\\n]*[-0-9\\[{])(?![ \\t\\r\\n]*(true|false)[ \\t\\r\\n]*$)(?![\\s\\S]*</" \
    "arg_value>)[^\\x00]*"

static const struct args_style *args_style(enum reply_format format)
{
    switch (format) {
    case REPLY_QWEN3_CODER: return &style_tags;
    case REPLY_GLM45: return &style_pairs;
    case REPLY_PYTHONIC: return &style_python;
    case REPLY_GEMMA4: return &style_marked;
    case REPLY_HARMONY: return &style_harmony;
    case REPLY_PLAIN:
    case REPLY_HERMES:
    case REPLY_LLAMA3:
    case REPLY_MISTRAL:
    case REPLY_DEEPSEEK_V3:
    case REPLY_DEEPSEEK_V31:
    case REPLY_KIMI_K2:
    case REPLY_LIST:
    case REPLY_FORMATS: break;
    }
    return &style_json;
}

/* --- schemas ------------------------------------------------------------------------------ */

/* Is this type in the schema's "type"? */
static bool has_type(const struct json *schema, const char *type)
{
    const struct json *json = json_get(schema, "type");

    for (uint32_t i = 0; json != NULL && json->kind == JSON_LIST && i < json->n; i++) {
        if (json_is_text(&json->items[i], type))
            return true;
    }
    return json_is_text(json, type);
}

/* Move a buffer's text into the arena. */
static const char *args_keep(struct calls *c, struct buf *b, size_t *len)
{
    const char *copy = b->failed ? NULL : arena_strndup(c->arena, b->bytes, b->len);

    *len = b->len;
    buf_fini(b);
    if (copy == NULL)
        calls_fail(c, ERR_NO_MEMORY, "out of memory");
    return copy;
}

/* Append a member to the schema that is being written. */
static void add_member(struct buf *b, const struct json *m)
{
    buf_add_byte(b, ',');
    buf_add_json_string(b, m->key, m->key_len);
    buf_add_byte(b, ':');
    json_write(b, m, JSON_COMPACT);
}

/* Keywords without effect on values; leaving them out makes equal parameters equal parts. */
static bool is_annotation(const char *key)
{
    static const char *const keys[] = {"$comment", "title", "description", "default", "examples"};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(key, keys[i]) == 0)
            return true;
    }
    return false;
}

/* Members that args_schema() changes in a schema; "": none. */
struct args_change {
    const char *type; /* in place of its own type */
    const char *more; /* further members, with a comma first */
};

/* The part of a schema. root: the schema whose definitions its references may use, or NULL; inside:
 * pattern of its strings. */
static struct grammar_part args_schema(struct calls *c, enum grammar_part_kind kind,
                                       const struct json *schema, struct args_change change,
                                       const struct json *root, const char *inside)
{
    const char *type = change.type, *more = change.more;
    static const char *const shared[] = {"$defs", "definitions", "$schema"};
    struct grammar_part part = {.kind = kind};
    struct part_list holds = {0};
    struct buf buf = {.limit = GRAMMAR_SOURCE_MAX};

    buf_printf(&buf, "{\"$comment\":\"\"%s%s%s%s", type[0] == '\0' ? "" : ",\"type\":\"", type,
               type[0] == '\0' ? "" : "\"", more);
    for (uint32_t i = 0; schema != NULL && schema->kind == JSON_OBJECT && i < schema->n; i++) {
        const struct json *member = &schema->items[i];

        if (!is_annotation(member->key) && (type[0] == '\0' || strcmp(member->key, "type") != 0) &&
            (more[0] == '\0' ||
             (strcmp(member->key, "minimum") != 0 && strcmp(member->key, "maximum") != 0)))
            add_member(&buf, member);
    }
    for (int i = 0; i < 3; i++) {
        const struct json *member = json_get(root, shared[i]);

        if (member != NULL && json_get(schema, shared[i]) == NULL)
            add_member(&buf, member);
    }
    buf_add_byte(&buf, '}');
    part.text = args_keep(c, &buf, &part.len);
    if (inside != NULL)
        calls_add_regex(c, &holds, inside);
    part.parts = holds.items;
    part.n_parts = holds.n;
    return part;
}

/* --- values ------------------------------------------------------------------------------- */

/* Bounds for an integer without bounds of its own: those of 64 bits, because the parser cannot read
 * larger ones back. */
static const char *args_bounds(const struct json *schema)
{
    if (!has_type(schema, "integer") || json_get(schema, "minimum") != NULL ||
        json_get(schema, "maximum") != NULL || json_get(schema, "enum") != NULL ||
        json_get(schema, "const") != NULL)
        return "";
    return WHOLE_BOUNDS;
}

/* Does the schema say anything about the type of its values? */
static bool is_typed(const struct json *schema)
{
    return json_get(schema, "type") != NULL || json_get(schema, "anyOf") != NULL ||
           json_get(schema, "oneOf") != NULL || json_get(schema, "$ref") != NULL;
}

/* A value between tags: JSON, or a text without quotes where a string is allowed. */
static void add_tagged_value(struct calls *c, struct part_list *l, const struct args_style *style,
                             const struct json *schema, const struct json *root)
{
    bool untyped = !is_typed(schema), guess = c->format == REPLY_GLM45;
    struct part_list ways = {0}, text = {0};

    if (!untyped && !has_type(schema, "string")) {
        calls_add(c, l,
                  args_schema(c, PART_SCHEMA, schema, (struct args_change){"", args_bounds(schema)},
                              root, style->inside));
        return;
    }
    if (style->quote != NULL)
        calls_add_text(c, &text, style->quote);
    calls_add(c, &text,
              args_schema(c, PART_STRING, schema, (struct args_change){untyped ? "string" : "", ""},
                          root, untyped && guess ? GLM_UNTYPED : style->text));
    if (style->quote != NULL)
        calls_add_text(c, &text, style->quote);
    calls_add(c, &ways, style->quote != NULL ? calls_sequence(&text) : text.items[0]);
    if (has_type(schema, "null") && json_get(schema, "enum") == NULL &&
        json_get(schema, "const") == NULL)
        calls_add_text(c, &ways, "null");
    calls_add(c, l, calls_choice(&ways));
}

/* A value in Python: a literal, and JSON's spellings are read, too. */
static void add_python_value(struct calls *c, struct part_list *l, const struct args_style *style,
                             const struct json *schema, const struct json *root)
{
    if (json_is_text(json_get(schema, "type"), "boolean") && json_get(schema, "enum") == NULL &&
        json_get(schema, "const") == NULL)
        calls_add_regex(c, l, "True|False|true|false");
    else
        calls_add(
            c, l,
            args_schema(c, PART_SCHEMA, schema, (struct args_change){"", ""}, root, style->inside));
}

/* --- members ------------------------------------------------------------------------------ */

/* A member's part, and whether it must be written. */
struct args_member {
    struct grammar_part part;
    bool required;
};

/* Must the object have this member? */
static bool is_required(const struct json *root, const char *name)
{
    const struct json *required = json_get_kind(root, "required", JSON_LIST);

    for (uint32_t i = 0; required != NULL && i < required->n; i++) {
        if (json_is_text(&required->items[i], name))
            return true;
    }
    return false;
}

/* Can the format write this name, so that the parser reads it back? */
static bool is_writable(const struct calls *c, const char *key)
{
    static const char *const letters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789.";

    if (c->format == REPLY_PYTHONIC)
        return key[0] != '\0' && strspn(key, letters) == strlen(key) &&
               strspn(key, "0123456789.") == 0;
    if (c->format == REPLY_GEMMA4)
        return key[0] != '\0' && strpbrk(key, ":,{}[]<>\" \t\r\n") == NULL &&
               strlen(key) <= KEY_MAX;
    return strpbrk(key, "<>\r\n") == NULL && strlen(key) <= KEY_MAX;
}

/* A value, in the way of the format. */
static void add_value(struct calls *c, struct part_list *l, const struct args_style *style,
                      const struct json *schema, const struct json *root)
{
    if (c->format == REPLY_PYTHONIC)
        add_python_value(c, l, style, schema, root);
    else
        add_tagged_value(c, l, style, schema, root);
}

/* One member: name and value. */
static struct grammar_part member_part(struct calls *c, const struct args_style *style,
                                       const char *function, const char *key,
                                       const struct json *schema, const struct json *root)
{
    struct part_list parts = {0};

    if (!is_writable(c, key) || (schema != NULL && schema->kind == JSON_BOOL && !schema->flag))
        calls_fail(c, ERR_UNSUPPORTED,
                   "'tools': this model's format of calls cannot write the parameter '%.100s' of "
                   "'%s'",
                   key, function);
    calls_add_printf(c, &parts, "%s%s%s", style->before, key, style->behind);
    add_value(c, &parts, style, schema, root);
    calls_add_text(c, &parts, style->end);
    return calls_sequence(&parts);
}

/* The members of a schema: first those of "properties" in its order, then those that only
 * "required" names. Returns their number. */
static size_t args_members(struct calls *c, const struct args_style *style, const char *function,
                           const struct json *root, struct args_member **out)
{
    const struct json *known = json_get_kind(root, "properties", JSON_OBJECT);
    const struct json *required = json_get_kind(root, "required", JSON_LIST);
    size_t cap = (known == NULL ? 0 : known->n) + (required == NULL ? 0 : required->n) + 1;
    struct args_member *members = arena_zalloc(c->arena, cap * sizeof *members);
    size_t n = 0;

    if (members == NULL)
        calls_fail(c, ERR_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; c->rc == ERR_OK && known != NULL && i < known->n; i++) {
        const struct json *member = &known->items[i];

        members[n].part = member_part(c, style, function, member->key, member, root);
        members[n++].required = is_required(root, member->key);
    }
    for (uint32_t i = 0; c->rc == ERR_OK && required != NULL && i < required->n; i++) {
        const struct json *name = &required->items[i];

        if (name->kind != JSON_TEXT || json_get_n(known, name->text, name->text_len) != NULL)
            continue;
        if (json_has_nul(name))
            calls_fail(c, ERR_UNSUPPORTED, "a required argument has \\u0000 in its name");
        members[n].part = member_part(c, style, function, name->text, NULL, root);
        members[n++].required = true;
    }
    *out = members;
    return n;
}

/* Refuse keywords about the object as a whole, because they cannot be checked when members are
 * written separately. */
static void args_check(struct calls *c, const char *function, const struct json *schema)
{
    static const char *const known[] = {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "title",
        "default",
        "examples",
        "$schema",
        "$id",
        "description",
        "$comment",
        "$defs",
        "strict",
        "definitions",
        "unevaluatedProperties",
    };
    const struct json *more = json_get(schema, "additionalProperties");

    for (uint32_t i = 0; schema != NULL && i < schema->n; i++) {
        bool is_known = false;

        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            is_known = is_known || strcmp(schema->items[i].key, known[k]) == 0;
        if (!is_known)
            calls_fail(c, ERR_UNSUPPORTED,
                       "'tools': this model's format of calls does not support '%.64s' in the "
                       "parameters of '%s'",
                       schema->items[i].key, function);
    }
    if (json_get(schema, "properties") == NULL && more != NULL && more->kind == JSON_OBJECT &&
        more->n > 0)
        calls_fail(
            c, ERR_UNSUPPORTED,
            "'tools': this model's format of calls does not support 'additionalProperties' in "
            "the parameters of '%s'",
            function);
}

/* Any number of members with any names. */
static void add_any(struct calls *c, struct part_list *l, const struct args_style *style)
{
    struct part_list member = {0};
    bool python = c->format == REPLY_PYTHONIC;

    calls_add_text(c, &member, style->before);
    calls_add_regex(c, &member, python ? "[A-Za-z_][A-Za-z0-9_]{0,63}" : "[A-Za-z0-9_.-]{1,64}");
    calls_add_text(c, &member, style->behind);
    add_value(c, &member, style, NULL, NULL);
    calls_add_text(c, &member, style->end);
    calls_add(c, l,
              calls_repeat(&member, 0, UINT32_MAX, style->between == NULL ? "" : style->between));
}

/* An optional member, with a comma before or after it. */
static struct grammar_part maybe(struct calls *c, const char *before, struct grammar_part part,
                                 const char *behind)
{
    struct part_list parts = {0};

    calls_add_text(c, &parts, before);
    calls_add(c, &parts, part);
    calls_add_text(c, &parts, behind);
    return calls_repeat(&parts, 0, 1, "");
}

/* The members from `from` on, each after a comma. */
static void add_rest(struct calls *c, struct part_list *l, const struct args_style *style,
                     const struct args_member *m, size_t n, size_t from)
{
    for (size_t i = from; i < n; i++) {
        if (!m[i].required) {
            calls_add(c, l, maybe(c, style->between, m[i].part, ""));
            continue;
        }
        calls_add_text(c, l, style->between);
        calls_add(c, l, m[i].part);
    }
}

/* Members separated by commas. With a required member, the commas attach to it: optional ones
 * before it bring a comma after them, all later ones a comma before them. Without one, any of the
 * first FIRSTS_MAX members may come first, so there is a sequence for each. */
static void add_list(struct calls *c, struct part_list *l, const struct args_style *style,
                     const struct args_member *m, size_t n)
{
    struct part_list firsts = {0}, some = {0};
    size_t first = 0; /* index of the first required member */

    while (first < n && !m[first].required)
        first++;
    if (first < n) {
        for (size_t i = 0; i < first; i++)
            calls_add(c, l, maybe(c, "", m[i].part, style->between));
        calls_add(c, l, m[first].part);
        add_rest(c, l, style, m, n, first + 1);
        return;
    }
    for (size_t i = 0; i < n && i < FIRSTS_MAX; i++) {
        struct part_list one = {0};

        calls_add(c, &one, m[i].part);
        add_rest(c, &one, style, m, n, i + 1);
        calls_add(c, &firsts, calls_sequence(&one));
    }
    if (n == 0)
        return;
    calls_add(c, &some, calls_choice(&firsts));
    calls_add(c, l, calls_repeat(&some, 0, 1, ""));
}

/* --- public ------------------------------------------------------------------------------- */

/* Arguments as JSON: one object with the whole schema. */
static void add_object(struct calls *c, struct part_list *l, const struct args_style *style,
                       const struct json *schema)
{
    calls_add(c, l,
              args_schema(c, PART_SCHEMA, schema, (struct args_change){"object", ""}, NULL,
                          style->inside));
}

/* Append the arguments of a call. Formats without a style for members write JSON; the others write
 * member by member, in the schema's order. */
void calls_add_args(struct calls *c, struct part_list *l, const char *function,
                    const struct json *schema)
{
    const struct args_style *style = args_style(c->format);
    const struct json *more = json_get(schema, "additionalProperties");
    bool closed = more != NULL && more->kind == JSON_BOOL && !more->flag;
    struct args_member *members;
    size_t n;

    if (schema != NULL && json_get(schema, "type") != NULL && !has_type(schema, "object"))
        calls_fail(c, ERR_INVALID, "'tools': the parameters of '%s' must be of type object",
                   function);
    if (style->before == NULL) {
        add_object(c, l, style, schema);
        return;
    }
    args_check(c, function, schema);
    n = args_members(c, style, function, schema, &members);
    if (c->rc != ERR_OK)
        return;
    /* A schema that declares no members allows any. */
    if (n == 0 && !closed) {
        add_any(c, l, style);
    } else if (style->between != NULL) {
        add_list(c, l, style, members, n);
    } else {
        for (size_t i = 0; i < n; i++)
            calls_add(c, l,
                      members[i].required ? members[i].part : maybe(c, "", members[i].part, ""));
    }
}
