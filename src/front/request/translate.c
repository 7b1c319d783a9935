/* SPDX-License-Identifier: Apache-2.0
 *
 * The common part of the translations: the walk over a table of fields, and the building of a
 * conversation turn by turn. Nodes of the request's tree are shared with the result and never
 * changed. */
#include "front/request/translate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/must.h"

/* Errors, and members that must be texts. */
int translate_fail(struct translation *t, int rc, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(t->why, t->why_cap, format, args);
    va_end(args);
    return rc;
}

/* The error of a value of a wrong type; v NULL: the value is missing. */
int translate_type(struct translation *t, const char *where, const char *wanted,
                   const struct json *v)
{
    if (v == NULL)
        return translate_fail(t, ERR_INVALID, "'%s' is required", where);
    return translate_fail(t, ERR_INVALID, "'%s' must be %s, not %s", where, wanted,
                          json_kind_name(v->kind));
}

/* Begin with an empty chat. chat_template_kwargs is read first, because other fields add members to
 * it, and the client's take precedence. */
void translate_begin(struct translation *t, struct arena *arena, const struct json *body, char *why,
                     size_t why_cap)
{
    const struct json_made none = {.arena = arena};
    const struct json *kwargs = json_get_kind(body, "chat_template_kwargs", JSON_OBJECT);

    must(why_cap > 0);
    *t = (struct translation){.arena = arena, .why = why, .why_cap = why_cap};
    t->chat = none;
    t->messages = none;
    t->kwargs = none;
    t->texts = none;
    t->calls = none;
    t->reason = none;
    for (uint32_t i = 0; kwargs != NULL && i < kwargs->n; i++)
        json_put(&t->kwargs, kwargs->items[i].key, &kwargs->items[i]);
}

/* Read a member that must be a text, as a node: it may contain NULs. */
int translate_member_content(struct translation *t, const struct json *obj, const char *name,
                             const char *where, const struct json **out)
{
    const struct json *value = json_get(obj, name);
    char at[200];

    (void)snprintf(at, sizeof at, "%s.%s", where, name);
    if (value == NULL || value->kind != JSON_TEXT)
        return translate_type(t, at, "a string", value);
    *out = value;
    return ERR_OK;
}

/* Read a member that must be a text and is used as a C string. */
int translate_member_text(struct translation *t, const struct json *obj, const char *name,
                          const char *where, const char **out)
{
    const struct json *value = NULL;
    int rc = translate_member_content(t, obj, name, where, &value);

    if (rc == ERR_OK && json_has_nul(value))
        rc = translate_fail(t, ERR_INVALID, "'%s.%s' must not hold \\u0000", where, name);
    if (rc == ERR_OK)
        *out = value->text;
    return rc;
}

/* --- fields --------------------------------------------------------------------------------
 *
 * A table maps the fields of an API to those of a chat. Many are copied under the same or another
 * name; fields.c then checks their values as those of a chat. */

/* Copy the field to the chat. Its value is checked later, by fields.c. */
int translate_same(struct translation *t, const struct translate_row *row, const struct json *v)
{
    const char *name = row->name;

    if (row->chat_name != NULL)
        name = row->chat_name;
    json_put(&t->chat, name, v);
    return ERR_OK;
}

/* A limit that fields.c would report under the chat's name, so it is checked here. */
int translate_max_tokens(struct translation *t, const struct translate_row *row,
                         const struct json *v)
{
    if (v->kind != JSON_INT || v->whole < 1 || v->whole > INT32_MAX)
        return translate_type(t, row->name, "a whole number from 1 on", v);
    return translate_same(t, row, v);
}

/* A field without an effect, or one that is read elsewhere. */
int translate_ignore(struct translation *t, const struct translate_row *row, const struct json *v)
{
    (void)t;
    (void)row;
    (void)v;
    return ERR_OK;
}

/* A field of which only the type is checked. */
int translate_object(struct translation *t, const struct translate_row *row, const struct json *v)
{
    if (v->kind == JSON_OBJECT)
        return ERR_OK;
    return translate_type(t, row->name, "an object", v);
}

/* Likewise a text. */
int translate_text(struct translation *t, const struct translate_row *row, const struct json *v)
{
    if (v->kind == JSON_TEXT)
        return ERR_OK;
    return translate_type(t, row->name, "a string", v);
}

/* Likewise a flag. */
int translate_flag(struct translation *t, const struct translate_row *row, const struct json *v)
{
    if (v->kind == JSON_BOOL)
        return ERR_OK;
    return translate_type(t, row->name, "true or false", v);
}

/* A field that is not supported. Values that switch the feature off are accepted, because some
 * clients send all fields. */
int translate_refuse(struct translation *t, const struct translate_row *row, const struct json *v)
{
    bool nothing = (v->kind == JSON_BOOL && !v->flag) || (v->kind == JSON_INT && v->whole == 0) ||
                   (v->kind == JSON_LIST && v->n == 0) || (v->kind == JSON_OBJECT && v->n == 0);

    if (nothing)
        return ERR_OK;
    return translate_fail(t, ERR_UNSUPPORTED, "'%s' is not supported", row->name);
}

/* The walk: the table is searched for each field of the body, so errors come in the body's
 * order. */
int translate_fields(struct translation *t, const struct translate_row *rows, size_t n_rows,
                     const struct json *body)
{
    must(body->kind == JSON_OBJECT);
    for (uint32_t i = 0; i < body->n; i++) {
        const struct json *value = &body->items[i];
        const struct translate_row *row = NULL;
        int rc;

        for (size_t r = 0; r < n_rows && row == NULL; r++) {
            if (strcmp(rows[r].name, value->key) == 0)
                row = &rows[r];
        }
        if (row == NULL)
            log_debug("front: a request has an unknown field '%.64s'; it is ignored", value->key);
        if (row == NULL || value->kind == JSON_NULL)
            continue;
        t->param = row->name;
        rc = row->read(t, row, value);
        if (rc != ERR_OK)
            return rc;
    }
    t->param = NULL;
    return ERR_OK;
}

/* {"name": N, "description": D, schema_name: S} becomes {"type": "function", "function": {"name":
 * N, "description": D, "parameters": S}}. */
int translate_tool(struct translation *t, const struct json *tool, const char *schema_name,
                   const char *where, struct json_made *tools)
{
    struct json_made function = {.arena = t->arena};
    struct json_made out = {.arena = t->arena};
    const struct json *description = json_get(tool, "description");
    const struct json *schema = json_get(tool, schema_name);
    const struct json *strict = json_get_kind(tool, "strict", JSON_BOOL);
    const char *name = NULL;
    int rc = translate_member_text(t, tool, "name", where, &name);

    if (rc != ERR_OK)
        return rc;
    if (name[0] == '\0')
        return translate_fail(t, ERR_INVALID, "'%s.name' must not be empty", where);
    if (description != NULL && description->kind != JSON_TEXT && description->kind != JSON_NULL)
        return translate_fail(t, ERR_INVALID, "'%s.description' must be a string", where);
    if (schema != NULL && schema->kind != JSON_OBJECT && schema->kind != JSON_NULL)
        return translate_fail(t, ERR_INVALID, "'%s.%s' must be an object", where, schema_name);
    json_put_text(&function, "name", name);
    if (description != NULL && description->kind == JSON_TEXT)
        json_put(&function, "description", description);
    if (schema != NULL && schema->kind == JSON_OBJECT)
        json_put(&function, "parameters", schema);
    if (strict != NULL)
        json_put(&function, "strict", strict);
    json_put_text(&out, "type", "function");
    json_put_made(&out, "function", JSON_OBJECT, &function);
    json_put_made(tools, NULL, JSON_OBJECT, &out);
    return ERR_OK;
}

/* Make the chat's tool_choice of one function. */
void translate_choose(struct translation *t, const char *name)
{
    struct json_made function = {.arena = t->arena};
    struct json_made out = {.arena = t->arena};

    json_put_text(&function, "name", name);
    json_put_text(&out, "type", "function");
    json_put_made(&out, "function", JSON_OBJECT, &function);
    json_put_made(&t->chat, "tool_choice", JSON_OBJECT, &out);
}

/* Add a member of chat_template_kwargs, unless the client has set it. */
void translate_kwarg(struct translation *t, const char *name, const struct json *value)
{
    struct json has = json_made(&t->kwargs, JSON_OBJECT);

    if (json_get(&has, name) == NULL)
        json_put(&t->kwargs, name, value);
}

/* Make the chat's response_format of a schema. The name is required there but has no effect, so a
 * schema without one is called "answer". */
void translate_schema(struct translation *t, const char *name, const struct json *schema,
                      const struct json *strict)
{
    struct json_made inner = {.arena = t->arena};
    struct json_made out = {.arena = t->arena};

    json_put_text(&inner, "name", name == NULL ? "answer" : name);
    json_put(&inner, "schema", schema);
    if (strict != NULL)
        json_put(&inner, "strict", strict);
    json_put_text(&out, "type", "json_schema");
    json_put_made(&out, "json_schema", JSON_OBJECT, &inner);
    json_put_made(&t->chat, "response_format", JSON_OBJECT, &out);
}

/* --- the conversation ------------------------------------------------------------------------
 *
 * An open turn collects texts, calls and reasoning of one role; another role or a tool's result
 * closes it. Chat templates expect alternating turns, so consecutive blocks of one role become one
 * message. */

/* Join the texts of a list. Without memory the result is "" and *failed becomes true. */
static struct json translate_joined(struct translation *t, const struct json_made *texts,
                                    const char *between, bool *failed)
{
    struct json joined = {.kind = JSON_TEXT, .text = ""};
    struct buf buf = {0};
    char *copy = NULL;

    for (uint32_t i = 0; i < texts->n; i++) {
        if (i > 0)
            buf_add_text(&buf, between);
        buf_add(&buf, texts->items[i].text, texts->items[i].text_len);
    }
    if (!buf.failed)
        copy = arena_strndup(t->arena, buf_text(&buf), buf.len);
    if (copy != NULL) {
        joined.text = copy;
        joined.text_len = buf.len;
    }
    *failed = *failed || copy == NULL;
    buf_fini(&buf);
    return joined;
}

/* The texts of a list as one: several are joined with newlines. */
struct json translate_text_of(struct translation *t, const struct json_made *texts)
{
    t->messages.failed = t->messages.failed || texts->failed;
    if (texts->n == 1)
        return texts->items[0];
    return translate_joined(t, texts, "\n", &t->messages.failed);
}

/* Close the open turn: it becomes a message. A turn without content becomes none. */
static void translate_flush(struct translation *t)
{
    struct json_made made = {.arena = t->arena};
    struct json text;

    if (t->role == NULL || (t->texts.n == 0 && t->calls.n == 0 && t->reason.n == 0)) {
        t->role = NULL; /* it is empty */
        return;
    }
    json_put_text(&made, "role", t->role);
    /* A message of calls alone has null as its content, as in OpenAI's API. */
    if (t->texts.n == 0 && t->calls.n > 0) {
        json_put_null(&made, "content");
    } else {
        text = translate_text_of(t, &t->texts);
        json_put(&made, "content", &text);
    }
    if (t->reason.n > 0) {
        text = translate_joined(t, &t->reason, "", &made.failed);
        json_put(&made, "reasoning_content", &text);
    }
    if (t->calls.n > 0)
        json_put_made(&made, "tool_calls", JSON_LIST, &t->calls);
    made.failed = made.failed || t->texts.failed || t->calls.failed || t->reason.failed;
    json_put_made(&t->messages, NULL, JSON_OBJECT, &made);
    t->role = NULL;
    t->texts = (struct json_made){.arena = t->arena};
    t->calls = t->texts;
    t->reason = t->texts;
}

/* Continue the turn of this role, or begin one. */
void translate_role(struct translation *t, const char *role)
{
    must(role != NULL);
    if (t->role != NULL && strcmp(t->role, role) == 0)
        return;
    translate_flush(t);
    t->role = role;
}

/* Add a text to the open turn. */
void translate_say(struct translation *t, const struct json *text)
{
    must(t->role != NULL);
    must(text->kind == JSON_TEXT);
    json_put(&t->texts, NULL, text);
}

/* Reasoning precedes the text or call it led to; after those it begins another message. */
void translate_think(struct translation *t, const struct json *text)
{
    must(t->role != NULL);
    must(text->kind == JSON_TEXT);
    if (t->texts.n > 0 || t->calls.n > 0) {
        const char *role = t->role;

        translate_flush(t);
        t->role = role;
    }
    json_put(&t->reason, NULL, text);
}

/* Add a call to the open turn. */
void translate_call(struct translation *t, const char *id, const char *name,
                    const struct json *arguments)
{
    struct json_made function = {.arena = t->arena};
    struct json_made call = {.arena = t->arena};

    must(t->role != NULL);
    must(id != NULL && name != NULL && arguments != NULL);
    json_put_text(&function, "name", name);
    json_put(&function, "arguments", arguments);
    json_put_text(&call, "id", id);
    json_put_text(&call, "type", "function");
    json_put_made(&call, "function", JSON_OBJECT, &function);
    json_put_made(&t->calls, NULL, JSON_OBJECT, &call);
}

/* The result of a call is a message by itself, of the role "tool". */
void translate_result(struct translation *t, const char *id, const struct json *content)
{
    struct json_made made = {.arena = t->arena};

    must(id != NULL);
    must(content != NULL);
    translate_flush(t);
    json_put_text(&made, "role", "tool");
    json_put_text(&made, "tool_call_id", id);
    json_put(&made, "content", content);
    json_put_made(&t->messages, NULL, JSON_OBJECT, &made);
}

/* Close the last turn and finish the chat. Memory that ran out anywhere before is found here,
 * because the lists remember it. */
int translate_end(struct translation *t, struct json *chat)
{
    translate_flush(t);
    json_put_made(&t->chat, "messages", JSON_LIST, &t->messages);
    if (t->kwargs.n > 0)
        json_put_made(&t->chat, "chat_template_kwargs", JSON_OBJECT, &t->kwargs);
    if (t->chat.failed || t->kwargs.failed)
        return translate_fail(t, ERR_NO_MEMORY, "%s", err_sentence(ERR_NO_MEMORY));
    *chat = json_made(&t->chat, JSON_OBJECT);
    return ERR_OK;
}
