/* SPDX-License-Identifier: Apache-2.0
 *
 * Anthropic's POST /v1/messages as a chat. Blocks become parts of turns: text the content, thinking
 * the reasoning, tool_use a tool call. A tool_result, which Anthropic puts inside the user's
 * message, becomes a message of its own. A last message of the assistant is to be continued.
 *
 *   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "4"},
 *                                {"type": "text", "text": "Thanks"}]}
 *
 * becomes
 *
 *   {"role": "tool", "tool_call_id": "t1", "content": "4"}
 *   {"role": "user", "content": "Thanks"} */
#include <stdio.h>
#include <string.h>

#include "front/request/retention.h"
#include "front/request/translate.h"
#include "text/output/detok.h"

/* --- marks --------------------------------------------------------------------------------
 *
 * cache_control may appear on blocks, tools, and the request; the longest time counts. */

/* Read the mark of an object, if it has one. t->mark_s is the longest time so far. */
static int messages_mark(struct translation *t, const struct json *object, const char *where)
{
    return retention_read_mark(object, where, &t->mark_s, t->why, t->why_cap);
}

/* The marks as the chat's cache_retention, unless the client sent that field itself. JSON numbers
 * need their text, too. */
static void messages_retain(struct translation *t, const struct json *body)
{
    struct json_made hint = {.arena = t->arena};
    struct json number = {.kind = JSON_INT};

    if (t->mark_s == 0 || json_get(body, "cache_retention") != NULL)
        return;
    number.whole = RETENTION_MARK;
    number.text = "60";
    number.n = 2;
    json_put(&hint, "priority", &number);
    /* A mark's time is 300 or 3600 seconds, so its text is known. */
    number.whole = t->mark_s;
    if (t->mark_s == 300)
        number.text = "300";
    else
        number.text = "3600";
    number.n = (uint32_t)strlen(number.text);
    json_put(&hint, "seconds", &number);
    json_put_made(&t->chat, "cache_retention", JSON_OBJECT, &hint);
}

/* --- blocks -------------------------------------------------------------------------------- */

/* Claude Code begins the system prompt with a block for accounting that differs per request. It is
 * dropped, because everything after it could otherwise never be found in the prefix cache. */
static bool is_billing(const struct json *text)
{
    static const char head[] = "x-anthropic-billing-header:";

    return strncmp(text->text, head, sizeof head - 1) == 0;
}

/* A text, or a list of text blocks: append its texts to texts. */
static int messages_texts(struct translation *t, const struct json *v, const char *where,
                          struct json_made *texts)
{
    char at[160];

    if (v->kind == JSON_TEXT) {
        json_put(texts, NULL, v);
        return ERR_OK;
    }
    if (v->kind != JSON_LIST)
        return translate_type(t, where, "a string or a list of blocks", v);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json *block = &v->items[i];
        const struct json *text = NULL;
        const char *type = NULL;
        int rc;

        (void)snprintf(at, sizeof at, "%s.%u", where, i);
        if (block->kind != JSON_OBJECT)
            return translate_type(t, at, "an object", block);
        rc = translate_member_text(t, block, "type", at, &type);
        if (rc != ERR_OK)
            return rc;
        if (strcmp(type, "text") == 0)
            rc = translate_member_content(t, block, "text", at, &text);
        else if (strcmp(type, "tool_reference") == 0) /* found by the client's tool search */
            rc = translate_member_content(t, block, "tool_name", at, &text);
        else
            rc = translate_fail(t, ERR_UNSUPPORTED,
                                "'%s': blocks of type '%.64s' are not supported here", at, type);
        if (rc == ERR_OK)
            rc = messages_mark(t, block, at);
        if (rc != ERR_OK)
            return rc;
        if (!is_billing(text))
            json_put(texts, NULL, text);
    }
    return ERR_OK;
}

/* One reader per type of block; where is its path, such as messages.3.content.0. */
typedef int messages_block_fn(struct translation *t, const struct json *b, const char *where);

/* A text of any role. */
static int messages_text(struct translation *t, const struct json *b, const char *where)
{
    const struct json *text = NULL;
    int rc = translate_member_content(t, b, "text", where, &text);

    if (rc == ERR_OK)
        translate_say(t, text);
    return rc;
}

/* Reasoning of an earlier reply. An empty one comes from clients that hide it. */
static int messages_thinking(struct translation *t, const struct json *b, const char *where)
{
    const struct json *text = NULL;
    int rc = translate_member_content(t, b, "thinking", where, &text);

    if (rc == ERR_OK && text->text_len > 0)
        translate_think(t, text);
    return rc;
}

/* Encrypted for Anthropic's servers: ignored. */
static int messages_redacted(struct translation *t, const struct json *b, const char *where)
{
    (void)t;
    (void)b;
    (void)where;
    return ERR_OK;
}

/* A call of a tool. */
static int messages_tool_use(struct translation *t, const struct json *b, const char *where)
{
    const struct json *input = json_get(b, "input");
    const char *id = NULL;
    const char *name = NULL;
    char at[160];
    int rc = translate_member_text(t, b, "id", where, &id);

    if (rc == ERR_OK)
        rc = translate_member_text(t, b, "name", where, &name);
    if (rc != ERR_OK)
        return rc;
    (void)snprintf(at, sizeof at, "%s.input", where);
    if (input == NULL || input->kind != JSON_OBJECT)
        return translate_type(t, at, "an object", input);
    translate_call(t, id, name, input);
    return ERR_OK;
}

/* A result: it becomes a message of its own, and closes the user's turn. */
static int messages_tool_result(struct translation *t, const struct json *b, const char *where)
{
    const struct json *content = json_get(b, "content");
    struct json_made texts = {.arena = t->arena};
    const char *id = NULL;
    struct json text;
    char at[160];
    int rc = translate_member_text(t, b, "tool_use_id", where, &id);

    (void)snprintf(at, sizeof at, "%s.content", where);
    if (rc == ERR_OK && content != NULL && content->kind != JSON_NULL)
        rc = messages_texts(t, content, at, &texts);
    if (rc != ERR_OK)
        return rc;
    text = translate_text_of(t, &texts);
    translate_result(t, id, &text);
    return ERR_OK;
}

static const struct messages_block {
    const char *type;
    const char *role; /* the role that may have it; NULL: any */
    messages_block_fn *read;
} messages_blocks[] = {
    {"text", NULL, messages_text},
    {"thinking", "assistant", messages_thinking},
    {"redacted_thinking", "assistant", messages_redacted},
    {"tool_use", "assistant", messages_tool_use},
    {"tool_result", "user", messages_tool_result},
};

/* Add one block of a message. */
static int messages_block(struct translation *t, const char *role, const struct json *b,
                          const char *where)
{
    const char *type = NULL;
    int rc;

    if (b->kind != JSON_OBJECT)
        return translate_type(t, where, "an object", b);
    rc = translate_member_text(t, b, "type", where, &type);
    if (rc == ERR_OK)
        rc = messages_mark(t, b, where);
    if (rc != ERR_OK)
        return rc;
    for (size_t i = 0; i < sizeof messages_blocks / sizeof messages_blocks[0]; i++) {
        const struct messages_block *row = &messages_blocks[i];

        if (strcmp(row->type, type) != 0)
            continue;
        if (row->role != NULL && strcmp(row->role, role) != 0)
            return translate_fail(t, ERR_INVALID,
                                  "'%s': blocks of type '%s' are only for the role %s", where, type,
                                  row->role);
        translate_role(t, role); /* again, because a tool_result before it has closed the turn */
        return row->read(t, b, where);
    }
    return translate_fail(t, ERR_UNSUPPORTED, "'%s': blocks of type '%.64s' are not supported",
                          where, type);
}

/* --- messages ------------------------------------------------------------------------------ */

/* Add one message. System messages may appear between the others. */
static int messages_message(struct translation *t, const struct json *m, uint32_t idx)
{
    static const char *const roles[] = {"user", "assistant", "system"};
    const struct json *content = json_get(m, "content");
    const char *role = NULL;
    char where[80];
    int rc = ERR_OK;

    (void)snprintf(where, sizeof where, "messages.%u", idx);
    if (m->kind != JSON_OBJECT)
        return translate_type(t, where, "an object", m);
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (json_is_text(json_get(m, "role"), roles[i]))
            role = roles[i];
    }
    if (role == NULL)
        return translate_fail(t, ERR_INVALID, "'%s.role' must be user, assistant or system", where);
    (void)snprintf(where, sizeof where, "messages.%u.content", idx);
    if (content == NULL || (content->kind != JSON_TEXT && content->kind != JSON_LIST))
        return translate_type(t, where, "a string or a list of blocks", content);
    /* An assistant's message may be empty: a reply may have been cut before its first block. */
    if (content->kind == JSON_LIST && content->n == 0 && strcmp(role, "assistant") != 0)
        return translate_fail(t, ERR_INVALID, "'%s' must not be empty", where);
    translate_role(t, role);
    if (content->kind == JSON_TEXT)
        translate_say(t, content);
    /* Blocks in their order; a tool's result among them closes the turn. */
    for (uint32_t i = 0; content->kind == JSON_LIST && i < content->n && rc == ERR_OK; i++) {
        (void)snprintf(where, sizeof where, "messages.%u.content.%u", idx, i);
        rc = messages_block(t, role, &content->items[i], where);
    }
    return rc;
}

/* The system prompt and the messages. When the last message is a text of the assistant's, the
 * answer continues it, as Anthropic's API does. */
static int messages_talk(struct translation *t, const struct json *body)
{
    const struct json *system = json_get(body, "system");
    const struct json *messages = json_get(body, "messages");
    int rc = ERR_OK;

    t->param = "system";
    if (system != NULL && system->kind != JSON_NULL) {
        translate_role(t, "system");
        rc = messages_texts(t, system, "system", &t->texts);
        if (rc == ERR_OK && t->texts.n == 0)
            t->role = NULL; /* the list was empty */
    }
    if (rc != ERR_OK)
        return rc;
    t->param = "messages";
    if (messages == NULL || messages->kind != JSON_LIST)
        return translate_type(t, "messages", "a list of messages", messages);
    if (messages->n == 0)
        return translate_fail(t, ERR_INVALID, "'messages' must not be empty");
    for (uint32_t i = 0; i < messages->n && rc == ERR_OK; i++)
        rc = messages_message(t, &messages->items[i], i);
    /* The turn is still open here, so its texts are those of the last message. A call cannot be
     * continued. */
    if (rc == ERR_OK && t->role != NULL && strcmp(t->role, "assistant") == 0 && t->texts.n > 0 &&
        t->calls.n == 0)
        json_put_flag(&t->chat, "continue_final_message", true);
    return rc;
}

/* --- fields -------------------------------------------------------------------------------- */

/* stop_sequences. The checks are those of `stop`, but the errors name this field. */
static int messages_stops(struct translation *t, const struct translate_row *row,
                          const struct json *v)
{
    if (v->kind != JSON_LIST)
        return translate_type(t, row->name, "a list of strings", v);
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->items[i].kind != JSON_TEXT)
            return translate_type(t, row->name, "a list of strings", &v->items[i]);
        if (v->items[i].text_len == 0 || v->items[i].text_len > DETOK_STOP_BYTES_MAX)
            return translate_fail(t, ERR_INVALID, "'%s' takes strings of 1 to %d bytes", row->name,
                                  DETOK_STOP_BYTES_MAX);
    }
    if (v->n > DETOK_STOPS_MAX)
        return translate_fail(t, ERR_INVALID, "'%s' takes at most %d strings", row->name,
                              DETOK_STOPS_MAX);
    return translate_same(t, row, v);
}

/* Tools of the client. A type other than "custom" means a tool that Anthropic runs or whose schema
 * only its models know. */
static int messages_tools(struct translation *t, const struct translate_row *row,
                          const struct json *v)
{
    struct json_made tools = {.arena = t->arena};
    char where[40];

    if (v->kind != JSON_LIST)
        return translate_type(t, row->name, "a list of tools", v);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json *tool = &v->items[i];
        const struct json *type = json_get(tool, "type");
        const struct json *schema = json_get(tool, "input_schema");
        int rc;

        (void)snprintf(where, sizeof where, "tools.%u", i);
        if (tool->kind != JSON_OBJECT)
            return translate_type(t, where, "an object", tool);
        if (type != NULL && type->kind != JSON_NULL && !json_is_text(type, "custom"))
            return translate_fail(
                t, ERR_UNSUPPORTED, "'%s': tools of type '%.64s' are not supported", where,
                type->kind == JSON_TEXT ? type->text : json_kind_name(type->kind));
        /* Anthropic's API requires the schema; translate_tool() would not. */
        if (schema == NULL || schema->kind != JSON_OBJECT)
            return translate_fail(t, ERR_INVALID, "'%s.input_schema' must be an object", where);
        rc = translate_tool(t, tool, "input_schema", where, &tools);
        if (rc == ERR_OK)
            rc = messages_mark(t, tool, where);
        if (rc != ERR_OK)
            return rc;
    }
    json_put_made(&t->chat, "tools", JSON_LIST, &tools);
    return ERR_OK;
}

/* Anthropic's auto, none, any, tool are OpenAI's auto, none, required, and a function by name. */
static int messages_tool_choice(struct translation *t, const struct translate_row *row,
                                const struct json *v)
{
    const struct json *alone = json_get(v, "disable_parallel_tool_use");
    const char *type = NULL;
    const char *name = NULL;
    int rc;

    if (v->kind != JSON_OBJECT)
        return translate_type(t, row->name, "an object", v);
    rc = translate_member_text(t, v, "type", row->name, &type);
    if (rc != ERR_OK)
        return rc;
    if (alone != NULL && alone->kind != JSON_BOOL && alone->kind != JSON_NULL)
        return translate_type(t, "tool_choice.disable_parallel_tool_use", "true or false", alone);
    /* The flag has the opposite meaning in a chat. */
    if (alone != NULL && alone->kind == JSON_BOOL)
        json_put_flag(&t->chat, "parallel_tool_calls", !alone->flag);
    if (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0) {
        json_put_text(&t->chat, "tool_choice", type);
    } else if (strcmp(type, "any") == 0) {
        json_put_text(&t->chat, "tool_choice", "required");
    } else if (strcmp(type, "tool") == 0) {
        rc = translate_member_text(t, v, "name", row->name, &name);
        if (rc == ERR_OK)
            translate_choose(t, name);
    } else {
        rc = translate_fail(t, ERR_INVALID, "'tool_choice.type' must be auto, any, tool or none");
    }
    return rc;
}

/* Templates have a switch for thinking, but no budget: a budget counts as "enabled". Both names of
 * the switch are set, because templates use one or the other. */
static int messages_think(struct translation *t, const struct translate_row *row,
                          const struct json *v)
{
    const struct json *budget = json_get(v, "budget_tokens");
    const char *type = NULL;
    struct json on = {.kind = JSON_BOOL};
    int rc;

    if (v->kind != JSON_OBJECT)
        return translate_type(t, row->name, "an object", v);
    rc = translate_member_text(t, v, "type", row->name, &type);
    if (rc != ERR_OK)
        return rc;
    /* "adaptive" lets the model decide how much it thinks, so it must be able to. */
    on.flag = strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0;
    if (!on.flag && strcmp(type, "disabled") != 0)
        return translate_fail(t, ERR_INVALID,
                              "'thinking.type' must be enabled, adaptive or disabled");
    if (budget != NULL && budget->kind != JSON_NULL &&
        (budget->kind != JSON_INT || budget->whole < 1))
        return translate_type(t, "thinking.budget_tokens", "a whole number from 1 on", budget);
    if (json_is_text(json_get(v, "display"), "omitted"))
        json_put_flag(&t->chat, "include_reasoning", false);
    translate_kwarg(t, "enable_thinking", &on);
    translate_kwarg(t, "thinking", &on);
    return ERR_OK;
}

/* output_format: {"type": "json_schema", "schema": {...}}. */
static int messages_format(struct translation *t, const struct translate_row *row,
                           const struct json *v)
{
    const struct json *schema = json_get(v, "schema");

    if (v->kind != JSON_OBJECT)
        return translate_type(t, row->name, "an object", v);
    if (!json_is_text(json_get(v, "type"), "json_schema") || schema == NULL ||
        schema->kind != JSON_OBJECT)
        return translate_fail(t, ERR_INVALID, "'%s' must be of type json_schema, with a schema",
                              row->name);
    translate_schema(t, NULL, schema, NULL);
    return ERR_OK;
}

static int messages_output(struct translation *t, const struct translate_row *row,
                           const struct json *v)
{
    const struct json *effort = json_get(v, "effort");
    const struct json *format = json_get(v, "format");

    if (v->kind != JSON_OBJECT)
        return translate_type(t, row->name, "an object", v);
    if (effort != NULL && effort->kind != JSON_NULL) {
        if (effort->kind != JSON_TEXT)
            return translate_type(t, "output_config.effort", "a string", effort);
        translate_kwarg(t, "reasoning_effort", effort);
    }
    if (format != NULL && format->kind != JSON_NULL)
        return messages_format(t, row, format);
    return ERR_OK;
}

/* A cache_control of the whole request. */
static int messages_mark_all(struct translation *t, const struct translate_row *row,
                             const struct json *v)
{
    struct json all = {.kind = JSON_OBJECT, .n = 1, .items = v};

    if (v->kind != JSON_OBJECT)
        return translate_type(t, row->name, "an object", v);
    return messages_mark(t, &all, "body");
}

/* All fields that are known; others are logged and ignored. */
static const struct translate_row messages_rows[] = {
    {"model", translate_same, NULL},
    {"messages", translate_ignore, NULL}, /* messages_talk() reads this and system */
    {"system", translate_ignore, NULL},
    {"max_tokens", translate_max_tokens, NULL},
    {"stop_sequences", messages_stops, "stop"},
    {"stream", translate_same, NULL},
    {"temperature", translate_same, NULL},
    {"top_p", translate_same, NULL},
    {"top_k", translate_same, NULL},
    {"tools", messages_tools, NULL},
    {"tool_choice", messages_tool_choice, NULL},
    {"thinking", messages_think, NULL},
    {"output_config", messages_output, NULL},
    {"output_format", messages_format, NULL},
    {"chat_template_kwargs", translate_object, NULL}, /* translate_begin() has read it */
    {"cache_control", messages_mark_all, NULL},
    /* Harmless: hints on the context's management, and fields for a service's accounting. */
    {"context_management", translate_object, NULL},
    {"metadata", translate_object, NULL},
    {"service_tier", translate_text, NULL},
    {"inference_geo", translate_text, NULL},
    {"speed", translate_text, NULL},
    {"diagnostics", translate_object, NULL},
    {"user_profile_id", translate_text, NULL},
    {"workspace_id", translate_text, NULL},
    /* Not supported. */
    {"mcp_servers", translate_refuse, NULL},
    {"container", translate_refuse, NULL},
    TRANSLATE_EXTRAS,
};

/* Fields first, then the conversation, then the marks that were found in both. */
int translate_messages(struct json *chat, struct arena *arena, const struct json *body,
                       bool is_count, struct reason *reason)
{
    const struct json *max_tokens = json_get(body, "max_tokens");
    struct translation translation;
    int rc;

    translate_begin(&translation, arena, body, reason->text, sizeof reason->text);
    rc = translate_fields(&translation, messages_rows,
                          sizeof messages_rows / sizeof messages_rows[0], body);
    if (rc == ERR_OK && !is_count && (max_tokens == NULL || max_tokens->kind == JSON_NULL)) {
        translation.param = "max_tokens";
        rc = translate_type(&translation, "max_tokens", "", NULL);
    }
    if (rc == ERR_OK)
        rc = messages_talk(&translation, body);
    if (rc == ERR_OK)
        messages_retain(&translation, body);
    if (rc == ERR_OK)
        rc = translate_end(&translation, chat);
    reason->param = rc == ERR_OK ? NULL : translation.param;
    return rc;
}
