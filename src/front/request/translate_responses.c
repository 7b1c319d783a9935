/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenAI's POST /v1/responses as a chat. Items of the input become parts of turns: message the
 * content, reasoning the reasoning, function_call a tool call; function_call_output becomes a
 * message of its own. The items of an earlier response (kept.h) precede the input; when responses
 * are not stored, previous_response_id is refused.
 *
 *   {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "R"}]}
 *   {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
 *   {"type": "function_call_output", "call_id": "c1", "output": "4"}
 *
 * become
 *
 *   {"role": "assistant", "content": null, "reasoning_content": "R", "tool_calls": [{"id": "c1",
 *    "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
 *   {"role": "tool", "tool_call_id": "c1", "content": "4"} */
#include <stdio.h>
#include <string.h>

#include "front/request/fields.h"
#include "front/request/translate.h"
#include "ipc/wire_request.h"

#define RESPONSES_TOP_MAX  20 /* that API's limit */
#define RESPONSES_LOGPROBS "message.output_text.logprobs"

/* --- items ---------------------------------------------------------------------------------
 *
 * where is the path of an item for error texts: input[2], or previous_response_id[0]. */

/* The text of one part of an item's content. */
static int responses_part(struct translation *t, const struct json *part, const char *where,
                          const struct json **text)
{
    static const struct {
        const char *type;
        const char *member;
    } rows[] = {{"input_text", "text"},     {"output_text", "text"},  {"text", "text"},
                {"reasoning_text", "text"}, {"summary_text", "text"}, {"refusal", "refusal"}};
    const char *type = NULL;
    int rc;

    if (part->kind != JSON_OBJECT)
        return translate_type(t, where, "an object", part);
    rc = translate_member_text(t, part, "type", where, &type);
    if (rc != ERR_OK)
        return rc;
    /* Each type of part has its text in one member. */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].type, type) == 0)
            return translate_member_content(t, part, rows[i].member, where, text);
    }
    return translate_fail(t, ERR_UNSUPPORTED, "'%s': parts of type '%.64s' are not supported",
                          where, type);
}

/* A text, or a list of parts: append its texts to texts. */
static int responses_content(struct translation *t, const struct json *v, const char *where,
                             struct json_made *texts)
{
    char at[160];

    if (v != NULL && v->kind == JSON_TEXT) {
        json_put(texts, NULL, v);
        return ERR_OK;
    }
    if (v == NULL || v->kind != JSON_LIST)
        return translate_type(t, where, "a string or a list of parts", v);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json *text = NULL;
        int rc;

        /* The path of this part, for errors inside it. */
        (void)snprintf(at, sizeof at, "%s[%u]", where, i);
        rc = responses_part(t, &v->items[i], at, &text);
        if (rc != ERR_OK)
            return rc;
        json_put(texts, NULL, text);
    }
    return ERR_OK;
}

/* A message: its role and its content. Roles that a chat template does not know become those it
 * does. */
static int responses_message(struct translation *t, const struct json *item, const char *where)
{
    static const struct {
        const char *role;
        const char *chat_role;
    } rows[] = {{"user", "user"},
                {"assistant", "assistant"},
                {"system", "system"},
                {"developer", "system"}}; /* templates do not know developer */
    const struct json *content = json_get(item, "content");
    const char *role = NULL;
    char at[80];

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (json_is_text(json_get(item, "role"), rows[i].role))
            role = rows[i].chat_role;
    }
    if (role == NULL)
        return translate_fail(t, ERR_INVALID,
                              "'%s.role' must be user, assistant, system or developer", where);
    (void)snprintf(at, sizeof at, "%s.content", where);
    /* An assistant's message may be empty: a reply may consist of nothing but calls. */
    if (content != NULL && content->kind == JSON_LIST && content->n == 0 &&
        strcmp(role, "assistant") != 0)
        return translate_fail(t, ERR_INVALID, "'%s' must not be empty", at);
    translate_role(t, role);
    return responses_content(t, content, at, &t->texts);
}

/* A call of a function, in an assistant's turn. A function of a namespace gets the joined name, as
 * in the list of tools. */
static int responses_call(struct translation *t, const struct json *item, const char *where)
{
    const char *id = NULL;
    const char *name = NULL;
    const struct json *arguments = NULL;
    int rc = translate_member_text(t, item, "call_id", where, &id);

    if (rc == ERR_OK)
        rc = translate_member_text(t, item, "name", where, &name);
    if (rc == ERR_OK)
        rc = translate_member_content(t, item, "arguments", where, &arguments);
    if (rc != ERR_OK)
        return rc;
    translate_role(t, "assistant");
    translate_call(t, id, translate_spaced(t, json_get_text(item, "namespace", ""), name),
                   arguments);
    return ERR_OK;
}

/* A call of a custom tool, which has a text in place of arguments. The tool is a function here, and
 * the text its argument `input`. */
static int responses_custom(struct translation *t, const struct json *item, const char *where)
{
    struct json_made inner = {.arena = t->arena};
    const char *id = NULL;
    const char *name = NULL;
    const struct json *input = NULL;
    struct json arguments;
    int rc = translate_member_text(t, item, "call_id", where, &id);

    if (rc == ERR_OK)
        rc = translate_member_text(t, item, "name", where, &name);
    if (rc == ERR_OK)
        rc = translate_member_content(t, item, "input", where, &input);
    if (rc != ERR_OK)
        return rc;
    /* As the model writes such a call: {"input": TEXT}. */
    json_put(&inner, "input", input);
    arguments = json_made(&inner, JSON_OBJECT);
    t->chat.failed = t->chat.failed || inner.failed;
    translate_role(t, "assistant");
    translate_call(t, id, translate_spaced(t, json_get_text(item, "namespace", ""), name),
                   &arguments);
    return ERR_OK;
}

/* The result of a call: a message of its own, which call_id connects with the call. */
static int responses_output(struct translation *t, const struct json *item, const char *where)
{
    struct json_made texts = {.arena = t->arena};
    const char *id = NULL;
    struct json content;
    char at[80];
    int rc = translate_member_text(t, item, "call_id", where, &id);

    (void)snprintf(at, sizeof at, "%s.output", where);
    if (rc == ERR_OK)
        rc = responses_content(t, json_get(item, "output"), at, &texts);
    if (rc != ERR_OK)
        return rc;
    content = translate_text_of(t, &texts);
    translate_result(t, id, &content);
    return ERR_OK;
}

/* The text of the reasoning, or its summary when there is nothing else. */
static int responses_reasoning(struct translation *t, const struct json *item, const char *where)
{
    const struct json *content = json_get(item, "content");
    const char *member = content != NULL && content->kind != JSON_NULL ? "content" : "summary";
    const struct json *said = json_get(item, member);
    char at[80];

    (void)snprintf(at, sizeof at, "%s.%s", where, member);
    if (said == NULL || said->kind != JSON_LIST)
        return translate_type(t, at, "a list of parts", said);
    translate_role(t, "assistant");
    for (uint32_t i = 0; i < said->n; i++) {
        const struct json *text = NULL;
        int rc = responses_part(t, &said->items[i], at, &text);

        if (rc != ERR_OK)
            return rc;
        translate_think(t, text);
    }
    return ERR_OK;
}

/* A reference to an item by its id. Only whole responses are stored, so there is nothing to look
 * up. */
static int responses_reference(struct translation *t, const struct json *item, const char *where)
{
    (void)item;
    return translate_fail(
        t, ERR_UNSUPPORTED,
        "'%s' refers to an item, but this server does not store items: send the item", where);
}

static const struct responses_item {
    const char *type;
    int (*read)(struct translation *t, const struct json *item, const char *where);
} responses_items[] = {
    {"message", responses_message},
    {"function_call", responses_call},
    {"function_call_output", responses_output},
    {"custom_tool_call", responses_custom},
    {"custom_tool_call_output", responses_output},
    {"reasoning", responses_reasoning},
    {"item_reference", responses_reference},
};

/* Add one item to the conversation. */
static int responses_item(struct translation *t, const struct json *item, const char *where)
{
    const struct json *type = json_get(item, "type");
    const char *name = "message"; /* the default type */

    if (item->kind != JSON_OBJECT)
        return translate_type(t, where, "an object", item);
    if (type != NULL && type->kind != JSON_NULL) {
        int rc = translate_member_text(t, item, "type", where, &name);

        if (rc != ERR_OK)
            return rc;
    }
    for (size_t i = 0; i < sizeof responses_items / sizeof responses_items[0]; i++) {
        if (strcmp(responses_items[i].type, name) == 0)
            return responses_items[i].read(t, item, where);
    }
    return translate_fail(t, ERR_UNSUPPORTED, "'%s': items of type '%.64s' are not supported",
                          where, name);
}

/* Add all items of a list. name is the field for errors, and the beginning of each item's path. */
static int responses_items_of(struct translation *t, const struct json *list, const char *name)
{
    char where[40];
    int rc = ERR_OK;

    t->param = name;
    for (uint32_t i = 0; list != NULL && i < list->n && rc == ERR_OK; i++) {
        (void)snprintf(where, sizeof where, "%s[%u]", name, i);
        rc = responses_item(t, &list->items[i], where);
    }
    return rc;
}

/* The instructions, the earlier conversation, and the input, in this order. */
static int responses_talk(struct translation *t, const struct json *body)
{
    const struct json *instructions = json_get(body, "instructions");
    const struct json *input = json_get(body, "input");
    int rc;

    t->param = "instructions";
    if (instructions != NULL && instructions->kind != JSON_NULL) {
        if (instructions->kind != JSON_TEXT)
            return translate_type(t, "instructions", "a string", instructions);
        translate_role(t, "system");
        translate_say(t, instructions);
    }
    /* Instructions are not stored with a response: as in OpenAI's API, each request sends its
     * own. */
    rc = responses_items_of(t, t->earlier, "previous_response_id");
    if (rc != ERR_OK)
        return rc;
    t->param = "input";
    if (input != NULL && input->kind == JSON_TEXT) {
        translate_role(t, "user");
        translate_say(t, input);
        return ERR_OK;
    }
    if (input == NULL || input->kind != JSON_LIST)
        return translate_type(t, "input", "a string or a list of items", input);
    if (input->n == 0)
        return translate_fail(t, ERR_INVALID, "'input' must not be empty");
    return responses_items_of(t, input, "input");
}

/* --- fields -------------------------------------------------------------------------------- */

/* The function that a tool_choice names; its tool may be custom or in a namespace. */
static int responses_chosen(struct translation *t, const struct json *v, const char *where,
                            const char **name)
{
    const char *type = NULL;
    int rc = translate_member_text(t, v, "type", where, &type);

    /* Hosted tools cannot be chosen, because they are not in the prompt. */
    if (rc == ERR_OK && strcmp(type, "function") != 0 && strcmp(type, "custom") != 0)
        rc = translate_fail(t, ERR_UNSUPPORTED, "'%s': tools of type '%.64s' are not supported",
                            where, type);
    if (rc == ERR_OK)
        rc = translate_member_text(t, v, "name", where, name);
    if (rc == ERR_OK)
        *name = translate_spaced(t, json_get_text(v, "namespace", ""), *name);
    return rc;
}

/* {"type": "allowed_tools", "mode": M, "tools": [{"type": "function", "name": N}]} becomes the
 * chat's form, where the members are one level deeper. */
static int responses_allowed(struct translation *t, const struct json *v)
{
    const struct json *tools = json_get(v, "tools");
    const struct json *mode = json_get(v, "mode");
    struct json_made list = {.arena = t->arena};
    struct json_made inner = list, out = list;
    char where[60];

    if (tools == NULL || tools->kind != JSON_LIST)
        return translate_type(t, "tool_choice.tools", "a list of tools", tools);
    for (uint32_t i = 0; i < tools->n; i++) {
        struct json_made function = {.arena = t->arena};
        struct json_made tool = function;
        const char *name = NULL;
        int rc;

        (void)snprintf(where, sizeof where, "tool_choice.tools[%u]", i);
        rc = responses_chosen(t, &tools->items[i], where, &name);
        if (rc != ERR_OK)
            return rc;
        json_put_text(&function, "name", name);
        json_put_text(&tool, "type", "function");
        json_put_made(&tool, "function", JSON_OBJECT, &function);
        json_put_made(&list, NULL, JSON_OBJECT, &tool);
    }
    if (mode != NULL)
        json_put(&inner, "mode", mode); /* the chat checks it */
    json_put_made(&inner, "tools", JSON_LIST, &list);
    json_put_text(&out, "type", "allowed_tools");
    json_put_made(&out, "allowed_tools", JSON_OBJECT, &inner);
    json_put_made(&t->chat, "tool_choice", JSON_OBJECT, &out);
    return ERR_OK;
}

/* tool_choice: a word, a function, a custom tool, or a list of allowed tools. */
static int responses_tool_choice(struct translation *t, const struct translate_row *row,
                                 const struct json *v)
{
    const char *name = NULL;
    int rc;

    if (json_is_text(v, "none") || json_is_text(v, "auto") || json_is_text(v, "required"))
        return translate_same(t, row, v);
    if (v->kind == JSON_TEXT)
        return translate_fail(t, ERR_INVALID,
                              "'tool_choice' must be none, auto, required, a function or "
                              "allowed_tools");
    if (v->kind != JSON_OBJECT)
        return translate_type(t, row->name, "a string or an object", v);
    if (json_is_text(json_get(v, "type"), "allowed_tools"))
        return responses_allowed(t, v);
    if (!json_is_text(json_get(v, "type"), "function") &&
        !json_is_text(json_get(v, "type"), "custom"))
        return translate_fail(t, ERR_UNSUPPORTED,
                              "'tool_choice' of another type than function, custom or "
                              "allowed_tools is not supported");
    rc = responses_chosen(t, v, row->name, &name);
    if (rc == ERR_OK)
        translate_choose(t, name);
    return rc;
}

/* text.format: {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", "name": N,
 * "schema": {...}, "strict": true}. */
static int responses_format(struct translation *t, const struct json *v)
{
    const struct json *schema = json_get(v, "schema");
    struct json_made out = {.arena = t->arena};
    const char *type = NULL;
    const char *name = NULL;
    int rc;

    if (v->kind != JSON_OBJECT)
        return translate_type(t, "text.format", "an object", v);
    rc = translate_member_text(t, v, "type", "text.format", &type);
    if (rc != ERR_OK || strcmp(type, "text") == 0)
        return rc;
    /* A chat has the same two formats, one level deeper. */
    if (strcmp(type, "json_object") == 0) {
        json_put_text(&out, "type", type);
        json_put_made(&t->chat, "response_format", JSON_OBJECT, &out);
        return ERR_OK;
    }
    if (strcmp(type, "json_schema") != 0)
        return translate_fail(t, ERR_INVALID,
                              "'text.format.type' must be text, json_object or json_schema");
    rc = translate_member_text(t, v, "name", "text.format", &name);
    if (rc != ERR_OK)
        return rc;
    if (schema == NULL || schema->kind != JSON_OBJECT)
        return translate_type(t, "text.format.schema", "an object", schema);
    translate_schema(t, name, schema, json_get_kind(v, "strict", JSON_BOOL));
    return ERR_OK;
}

/* text: only its format has an effect. */
static int responses_text(struct translation *t, const struct translate_row *row,
                          const struct json *v)
{
    const struct json *format = json_get(v, "format");

    if (v->kind != JSON_OBJECT)
        return translate_type(t, row->name, "an object", v);
    if (format == NULL || format->kind == JSON_NULL)
        return ERR_OK; /* no template supports verbosity */
    return responses_format(t, format);
}

/* reasoning.effort, which chats have as reasoning_effort. */
static int responses_effort(struct translation *t, const struct translate_row *row,
                            const struct json *v)
{
    const struct json *effort = json_get(v, "effort");

    if (v->kind != JSON_OBJECT)
        return translate_type(t, row->name, "an object", v);
    if (effort == NULL || effort->kind == JSON_NULL)
        return ERR_OK;
    if (!fields_is_effort(effort))
        return translate_fail(t, ERR_INVALID,
                              "'reasoning.effort' must be none, minimal, low, medium, high, xhigh "
                              "or max");
    json_put(&t->chat, "reasoning_effort", effort);
    return ERR_OK;
}

/* Only checked; the answer repeats it. */
static int responses_metadata(struct translation *t, const struct translate_row *row,
                              const struct json *v)
{
    if (v->kind != JSON_OBJECT)
        return translate_type(t, row->name, "an object of strings", v);
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->items[i].kind != JSON_TEXT)
            return translate_type(t, row->name, "an object of strings", &v->items[i]);
    }
    return ERR_OK;
}

/* include: only log probabilities have an effect. Reasoning is never encrypted here and always
 * sent; the other values concern tools that quire does not have. */
static int responses_include(struct translation *t, const struct translate_row *row,
                             const struct json *v)
{
    const struct json yes = {.kind = JSON_BOOL, .flag = true};

    if (v->kind != JSON_LIST)
        return translate_type(t, row->name, "a list of strings", v);
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->items[i].kind != JSON_TEXT)
            return translate_type(t, row->name, "a list of strings", &v->items[i]);
        if (json_is_text(&v->items[i], RESPONSES_LOGPROBS))
            json_put(&t->chat, "logprobs", &yes);
    }
    return ERR_OK;
}

/* top_logprobs has an effect only if `include` asks for log probabilities. */
static int responses_top_logprobs(struct translation *t, const struct json *body)
{
    const struct json *value = json_get(body, "top_logprobs");
    const struct json *include = json_get_kind(body, "include", JSON_LIST);
    bool asked = false;

    t->param = "top_logprobs";
    if (value == NULL || value->kind == JSON_NULL)
        return ERR_OK;
    if (value->kind != JSON_INT || value->whole < 0 || value->whole > RESPONSES_TOP_MAX)
        return translate_fail(t, ERR_INVALID,
                              "'top_logprobs' must be a whole number, at least 0 and at most %d",
                              RESPONSES_TOP_MAX);
    /* The number alone does not ask for log probabilities in this API. */
    for (uint32_t i = 0; include != NULL && i < include->n; i++)
        asked = asked || json_is_text(&include->items[i], RESPONSES_LOGPROBS);
    if (asked)
        json_put(&t->chat, "top_logprobs", value);
    return ERR_OK;
}

/* "auto": when a prompt is too long, keep its end, as much as fits beside the answer. */
static int responses_truncation(struct translation *t, const struct translate_row *row,
                                const struct json *v)
{
    const struct json rest = {.kind = JSON_INT, .whole = -1, .text = "-1", .n = 2};

    if (v->kind != JSON_TEXT)
        return translate_type(t, row->name, "a string", v);
    if (json_is_text(v, "disabled"))
        return ERR_OK;
    if (!json_is_text(v, "auto"))
        return translate_fail(t, ERR_INVALID, "'truncation' must be auto or disabled");
    json_put(&t->chat, "truncate_prompt_tokens", &rest);
    return ERR_OK;
}

/* A field that refers to a stored conversation. */
static int responses_stateless(struct translation *t, const struct translate_row *row,
                               const struct json *v)
{
    (void)v;
    return translate_fail(t, ERR_UNSUPPORTED,
                          "'%s' is not supported: this server does not store responses; send the "
                          "whole conversation as 'input'",
                          row->name);
}

/* Refused unless responses are stored; then earlier is set, and may be empty. */
static int responses_previous(struct translation *t, const struct translate_row *row,
                              const struct json *v)
{
    if (t->earlier != NULL)
        return ERR_OK;
    return responses_stateless(t, row, v);
}

/* All fields that are known, in three groups: those with an effect, those without one, and those
 * that would change the answer and are refused. Others are logged and ignored. */
static const struct translate_row responses_rows[] = {
    {"model", translate_same, NULL},
    {"input", translate_ignore, NULL}, /* responses_talk() reads this and instructions */
    {"instructions", translate_ignore, NULL},
    {"max_output_tokens", translate_max_tokens, "max_completion_tokens"},
    {"stream", translate_same, NULL},
    {"temperature", translate_same, NULL},
    {"top_p", translate_same, NULL},
    {"top_k", translate_same, NULL},
    {"stop", translate_same, NULL},
    {"tools", translate_tools, NULL},
    {"tool_choice", responses_tool_choice, NULL},
    {"parallel_tool_calls", translate_same, NULL},
    {"text", responses_text, NULL},
    {"reasoning", responses_effort, NULL},
    {"metadata", responses_metadata, NULL},
    {"include", responses_include, NULL},
    {"top_logprobs", translate_ignore, NULL}, /* responses_top_logprobs() reads it */
    {"truncation", responses_truncation, NULL},
    {"chat_template_kwargs", translate_object, NULL}, /* translate_begin() has read it */
    {"store", translate_flag, NULL},                  /* the answer reports whether it was stored */
    /* Harmless: for a service's accounting, or for tools that quire does not have. */
    {"stream_options", translate_object, NULL},
    {"user", translate_text, NULL},
    {"safety_identifier", translate_text, NULL},
    {"prompt_cache_key", translate_text, NULL},
    {"prompt_cache_retention", translate_text, NULL},
    {"service_tier", translate_text, NULL},
    {"max_tool_calls", translate_ignore, NULL},
    /* Not supported. */
    {"previous_response_id", responses_previous, NULL},
    {"conversation", responses_stateless, NULL},
    {"background", translate_refuse, NULL},
    {"prompt", translate_refuse, NULL},
    {"context_management", translate_refuse, NULL},
    TRANSLATE_EXTRAS,
};

/* Fields first, then the conversation. top_logprobs depends on another field, so it is read after
 * the table's walk. */
int translate_responses(struct json *chat, struct arena *arena,
                        const struct translate_responses_in *in, struct reason *reason)
{
    const struct json *body = in->body;
    struct translation translation;
    int rc;

    translate_begin(&translation, arena, body, reason->text, sizeof reason->text);
    translation.earlier = in->earlier;
    rc = translate_fields(&translation, responses_rows,
                          sizeof responses_rows / sizeof responses_rows[0], body);
    if (rc == ERR_OK)
        rc = responses_top_logprobs(&translation, body);
    if (rc == ERR_OK)
        rc = responses_talk(&translation, body);
    if (rc == ERR_OK)
        rc = translate_end(&translation, chat);
    reason->param = rc == ERR_OK ? NULL : translation.param;
    return rc;
}
