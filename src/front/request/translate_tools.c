/* SPDX-License-Identifier: Apache-2.0
 *
 * The tools of POST /v1/responses as those of a chat, which knows functions only.
 *
 * A tool in a namespace becomes a function named SPACE__NAME. A custom tool takes a text: it
 * becomes a function with one argument, `input`; a regular expression in its format becomes the
 * argument's pattern, while a grammar in Lark is only described to the model. Hosted tools, which
 * OpenAI runs itself, are left out of the prompt. To find the tool of a called function, the
 * request's tools are searched, because names may contain "__" themselves.
 *
 *   {"type": "custom", "name": "sql",
 *    "format": {"type": "grammar", "syntax": "regex", "definition": "SELECT .*"}}
 *
 * becomes the function sql with the parameters
 *
 *   {"type": "object", "properties": {"input": {"type": "string", "pattern": "^(?:SELECT .*)$"}},
 *    "required": ["input"], "additionalProperties": false} */
#include "front/request/translate.h"

#include <stdio.h>
#include <string.h>

#define SPACE_BETWEEN "__"

/* Tools that OpenAI runs itself, or whose calls are not functions. */
static const char *const hosted[] = {"web_search",
                                     "web_search_2025_08_26",
                                     "web_search_preview",
                                     "web_search_preview_2025_03_11",
                                     "file_search",
                                     "code_interpreter",
                                     "image_generation",
                                     "computer",
                                     "computer_use",
                                     "computer_use_preview",
                                     "mcp",
                                     "local_shell",
                                     "shell",
                                     "apply_patch",
                                     "tool_search"};

/* Is this a type of tool that is left out? */
static bool is_hosted(const char *type)
{
    for (size_t i = 0; i < sizeof hosted / sizeof hosted[0]; i++)
        if (strcmp(hosted[i], type) == 0)
            return true;
    return false;
}

/* The name of a tool in a namespace. Without memory the bare name, and the chat fails later. */
const char *translate_spaced(struct translation *t, const char *space, const char *name)
{
    size_t n = strlen(space);
    char *text;

    if (n == 0)
        return name;
    text = arena_alloc(t->arena, n + sizeof SPACE_BETWEEN + strlen(name));
    if (text == NULL) {
        t->chat.failed = true;
        return name;
    }
    (void)sprintf(text, "%s" SPACE_BETWEEN "%s", space, name);
    return text;
}

/* --- reading ------------------------------------------------------------------------------- */

/* Copy a tool's members, with another name. */
static void put_renamed(struct json_made *out, const struct json *tool, const char *name)
{
    for (uint32_t i = 0; i < tool->n; i++)
        if (strcmp(tool->items[i].key, "name") != 0)
            json_put(out, tool->items[i].key, &tool->items[i]);
    json_put_text(out, "name", name);
}

/* The description of a custom tool, with the grammar of its text if it has one. */
static struct json describe(struct translation *t, const struct json *tool)
{
    const struct json *format = json_get_kind(tool, "format", JSON_OBJECT);
    const struct json *said = json_get_kind(tool, "description", JSON_TEXT);
    const struct json *rules = json_get_kind(format, "definition", JSON_TEXT);
    struct json described = {.kind = JSON_TEXT, .text = ""};
    struct buf buf = {0};

    if (said != NULL)
        described = *said;
    if (rules == NULL)
        return described;
    buf_add(&buf, described.text, described.text_len);
    buf_printf(&buf, "\n\nThe input is a text under this %s grammar:\n",
               json_get_text(format, "syntax", "lark"));
    buf_add(&buf, rules->text, rules->text_len);
    described.text_len = buf.len;
    if (buf.failed)
        described.text = NULL;
    else
        described.text = arena_strndup(t->arena, buf.bytes, buf.len);
    buf_fini(&buf);
    t->chat.failed = t->chat.failed || described.text == NULL;
    if (described.text == NULL)
        described = (struct json){.kind = JSON_TEXT, .text = ""};
    return described;
}

/* The pattern that the whole text must match; NULL when the text is free or has a Lark grammar. */
static int read_format(struct translation *t, const struct json *tool, const char *where,
                       const char **pattern)
{
    const struct json *format = json_get(tool, "format");
    const char *type = NULL, *syntax = NULL;
    const struct json *rules = NULL;
    char at[100], *text;
    size_t cap;
    int rc;

    *pattern = NULL;
    if (format == NULL || format->kind == JSON_NULL)
        return ERR_OK;
    (void)snprintf(at, sizeof at, "%s.format", where);
    if (format->kind != JSON_OBJECT)
        return translate_type(t, at, "an object", format);
    rc = translate_member_text(t, format, "type", at, &type);
    if (rc != ERR_OK || strcmp(type, "text") == 0)
        return rc;
    /* A grammar is either in Lark or a regular expression. */
    if (strcmp(type, "grammar") != 0)
        return translate_fail(t, ERR_INVALID, "'%s.type' must be text or grammar, not '%.64s'", at,
                              type);
    rc = translate_member_text(t, format, "syntax", at, &syntax);
    if (rc == ERR_OK && strcmp(syntax, "lark") != 0 && strcmp(syntax, "regex") != 0)
        rc = translate_fail(t, ERR_INVALID, "'%s.syntax' must be lark or regex, not '%.64s'", at,
                            syntax);
    if (rc == ERR_OK)
        rc = translate_member_content(t, format, "definition", at, &rules);
    if (rc != ERR_OK || strcmp(syntax, "lark") == 0)
        return rc;
    if (json_has_nul(rules))
        return translate_fail(t, ERR_INVALID, "'%s.definition' must not have \\u0000", at);
    /* A pattern may match anywhere in a text, so it is anchored at both ends. */
    cap = rules->text_len + sizeof "^(?:)$";
    text = arena_alloc(t->arena, cap);
    if (text == NULL)
        return ERR_NO_MEMORY;
    (void)snprintf(text, cap, "^(?:%s)$", rules->text);
    *pattern = text;
    return ERR_OK;
}

/* {"type":"object","properties":{"input":{"type":"string"}},"required":["input"],
 * "additionalProperties":false}, with the pattern if there is one. */
static void put_input_schema(struct json_made *out, const char *pattern)
{
    struct json_made input = {.arena = out->arena};
    struct json_made members = input, required = input, schema = input;

    json_put_text(&input, "type", "string");
    if (pattern != NULL)
        json_put_text(&input, "pattern", pattern);
    json_put_made(&members, "input", JSON_OBJECT, &input);
    json_put_text(&required, NULL, "input");
    json_put_text(&schema, "type", "object");
    json_put_made(&schema, "properties", JSON_OBJECT, &members);
    json_put_made(&schema, "required", JSON_LIST, &required);
    json_put_flag(&schema, "additionalProperties", false);
    json_put_made(out, "parameters", JSON_OBJECT, &schema);
}

/* One tool of each kind. space is the namespace, "" outside of one. */
static int read_custom(struct translation *t, const struct json *tool, const char *space,
                       const char *where, struct json_made *tools)
{
    struct json_made made = {.arena = t->arena};
    const char *name = NULL, *pattern = NULL;
    struct json function, described;
    int rc = translate_member_text(t, tool, "name", where, &name);

    if (rc == ERR_OK)
        rc = read_format(t, tool, where, &pattern);
    if (rc != ERR_OK)
        return rc;
    json_put_text(&made, "name", name[0] == '\0' ? "" : translate_spaced(t, space, name));
    /* The description is the only place where a grammar in Lark can go. */
    described = describe(t, tool);
    json_put(&made, "description", &described);
    put_input_schema(&made, pattern);
    if (pattern != NULL)
        json_put_flag(&made, "strict", true);
    function = json_made(&made, JSON_OBJECT);
    if (made.failed)
        return ERR_NO_MEMORY;
    return translate_tool(t, &function, "parameters", where, tools);
}

/* A function. In a namespace it is copied, to change its name. */
static int read_function(struct translation *t, const struct json *tool, const char *space,
                         const char *where, struct json_made *tools)
{
    struct json_made made = {.arena = t->arena};
    const char *name = NULL;
    struct json function;
    int rc;

    if (space[0] == '\0')
        return translate_tool(t, tool, "parameters", where, tools);
    rc = translate_member_text(t, tool, "name", where, &name);
    if (rc != ERR_OK)
        return rc;
    put_renamed(&made, tool, name[0] == '\0' ? "" : translate_spaced(t, space, name));
    function = json_made(&made, JSON_OBJECT);
    if (made.failed)
        return ERR_NO_MEMORY;
    return translate_tool(t, &function, "parameters", where, tools);
}

/* Any tool but a namespace. */
static int read_one(struct translation *t, const struct json *tool, const char *space,
                    const char *where, struct json_made *tools)
{
    const char *type = NULL;
    int rc;

    if (tool->kind != JSON_OBJECT)
        return translate_type(t, where, "an object", tool);
    rc = translate_member_text(t, tool, "type", where, &type);
    if (rc != ERR_OK)
        return rc;
    if (strcmp(type, "function") == 0)
        return read_function(t, tool, space, where, tools);
    if (strcmp(type, "custom") == 0)
        return read_custom(t, tool, space, where, tools);
    /* In a namespace only functions and custom tools make sense. */
    if (space[0] == '\0' && is_hosted(type))
        return ERR_OK;
    return translate_fail(t, ERR_UNSUPPORTED, "'%s': tools of type '%.64s' are not supported",
                          where, type);
}

/* All tools of a namespace. Namespaces cannot contain others: read_one() refuses that type. */
static int read_space(struct translation *t, const struct json *space, const char *where,
                      struct json_made *tools)
{
    const struct json *list = json_get(space, "tools");
    const char *name = NULL;
    char at[80];
    int rc = translate_member_text(t, space, "name", where, &name);

    (void)snprintf(at, sizeof at, "%s.tools", where);
    if (rc == ERR_OK && name[0] == '\0')
        rc = translate_fail(t, ERR_INVALID, "'%s.name' must not be empty", where);
    if (rc == ERR_OK && (list == NULL || list->kind != JSON_LIST))
        rc = translate_type(t, at, "a list of tools", list);
    for (uint32_t i = 0; rc == ERR_OK && i < list->n; i++) {
        (void)snprintf(at, sizeof at, "%s.tools[%u]", where, i);
        rc = read_one(t, &list->items[i], name, at, tools);
    }
    return rc;
}

/* The field `tools`. */
int translate_tools(struct translation *t, const struct translate_row *row, const struct json *v)
{
    struct json_made tools = {.arena = t->arena};
    char where[40];

    if (v->kind != JSON_LIST)
        return translate_type(t, row->name, "a list of tools", v);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json *tool = &v->items[i];
        int rc;

        (void)snprintf(where, sizeof where, "tools[%u]", i);
        if (json_is_text(json_get(tool, "type"), "namespace"))
            rc = read_space(t, tool, where, &tools);
        else
            rc = read_one(t, tool, "", where, &tools);
        if (rc != ERR_OK)
            return rc;
    }
    /* A list of hosted tools alone leaves no tool: the chat then has none at all. */
    if (tools.n > 0 || v->n == 0)
        json_put_made(&t->chat, "tools", JSON_LIST, &tools);
    return ERR_OK;
}

/* --- looking up ---------------------------------------------------------------------------- */

/* Is `name` the name of the function that this tool of this namespace became? */
static bool is_named(const struct json *tool, const char *space, const char *name)
{
    const char *own = json_get_text(tool, "name", NULL);
    size_t n = strlen(space);

    if (own == NULL)
        return false;
    if (n == 0)
        return strcmp(own, name) == 0;
    return strncmp(name, space, n) == 0 && strncmp(name + n, SPACE_BETWEEN, 2) == 0 &&
           strcmp(name + n + 2, own) == 0;
}

/* Tools outside of namespaces are treated as a list of one. */
struct translate_called translate_find_tool(const struct json *request, const char *name)
{
    const struct json *tools = json_get_kind(request, "tools", JSON_LIST);
    struct translate_called found = {.name = name};

    for (uint32_t i = 0; tools != NULL && i < tools->n; i++) {
        const struct json *tool = &tools->items[i];
        bool spaced = json_is_text(json_get(tool, "type"), "namespace");
        const char *space = spaced ? json_get_text(tool, "name", "") : "";
        const struct json *list = spaced ? json_get_kind(tool, "tools", JSON_LIST) : NULL;

        for (uint32_t k = 0; k < (spaced ? (list == NULL ? 0 : list->n) : 1); k++) {
            const struct json *one = spaced ? &list->items[k] : tool;

            if (!is_named(one, space, name))
                continue;
            found.name = json_get_text(one, "name", name);
            if (spaced)
                found.space = space;
            else
                found.space = NULL;
            found.is_custom = json_is_text(json_get(one, "type"), "custom");
            return found;
        }
    }
    return found;
}
