/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes messages to the form that a template expects. Each message is built anew in the arena,
 * member by member: content in the form that the template reads for its role, tool calls with
 * arguments as an object or as text, reasoning under the name that the template reads. Members that
 * are null are dropped, as by servers in Python, because templates test whether a member is
 * defined and not whether it is null. */
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "text/template/chat_parts.h"

static int chat_shape_fail(struct chat_shaping *shaping, int rc, const char *reason)
{
    (void)snprintf(shaping->why, shaping->why_cap, "%s", reason);
    return rc;
}

static int chat_shape_no_memory(struct chat_shaping *shaping)
{
    return chat_shape_fail(shaping, ERR_NO_MEMORY, "out of memory");
}

/* A part of a content list as text: a plain string, or an object such as {"type": "text", "text":
 * "Hello"}. Parts without a type are read as text, because several clients omit it. NULL for images
 * and other kinds. */
const struct json *chat_part_text(const struct json *part)
{
    static const char *const kinds[] = {"text", "input_text", "output_text"};
    const struct json *type = json_get(part, "type");

    must(part != NULL);
    if (part->kind == JSON_TEXT)
        return part;
    /* These two kinds carry their text in a member that is named like the kind: {"type":
     * "refusal", "refusal": "No."}. */
    if (json_is_text(type, "refusal") || json_is_text(type, "thinking"))
        return json_get_kind(part, type->text, JSON_TEXT);
    /* A known kind is handled as if there were no type. */
    for (size_t i = 0; type != NULL && i < sizeof kinds / sizeof kinds[0]; i++)
        if (json_is_text(type, kinds[i]))
            type = NULL;
    if (type == NULL)
        return json_get_kind(part, "text", JSON_TEXT);
    return NULL;
}

/* --- content -----------------------------------------------------------------------------------*/

/* Content is a text or a list of parts:
 *
 *     "Hello"    [{"type": "text", "text": "Hello"}, {"type": "image_url", ...}] */

static void chat_put_text_part(struct json_made *parts, const struct json *text)
{
    struct json_made part = {.arena = parts->arena};

    json_put_text(&part, "type", "text");
    json_put(&part, "text", text);
    json_put_made(parts, NULL, JSON_OBJECT, &part);
}

/* Make a text of two pieces. */
static int chat_put_joined(struct chat_shaping *shaping, const struct json *text, const char *more,
                           struct json *out)
{
    size_t more_len = strlen(more);
    char *joined = arena_alloc(shaping->arena, text->text_len + more_len + 1);

    /* `joined` has room for both and the NUL. The text stays valid until the arena is reset,
     * which is after the render. */
    if (joined == NULL)
        return chat_shape_no_memory(shaping);
    memcpy(joined, text->text, text->text_len);
    memcpy(joined + text->text_len, more, more_len + 1);
    *out = *text;
    out->text = joined;
    out->text_len = text->text_len + more_len;
    return ERR_OK;
}

/* Make a list of parts for a template that reads lists. Texts of all kinds become parts of type
 * "text"; parts of other kinds are passed on. The mark is appended to the last text. */
static int chat_shape_parts(struct chat_shaping *shaping, const struct json *content, bool marked,
                            struct json *out)
{
    struct json_made parts = {.arena = shaping->arena};
    uint32_t last = 0;

    /* Find the last text first, because an image may come after it. */
    for (uint32_t i = 0; i < content->n; i++)
        if (chat_part_text(&content->items[i]) != NULL)
            last = i;
    for (uint32_t i = 0; i < content->n; i++) {
        const struct json *text = chat_part_text(&content->items[i]);
        struct json longer;

        if (text != NULL && marked && i == last) {
            int rc = chat_put_joined(shaping, text, CHAT_MARK, &longer);

            if (rc != ERR_OK)
                return rc;
            chat_put_text_part(&parts, &longer);
        } else if (text == NULL || json_is_text(json_get(&content->items[i], "type"), "text")) {
            json_put(&parts, NULL, &content->items[i]);
        } else {
            chat_put_text_part(&parts, text);
        }
    }
    *out = json_made(&parts, JSON_LIST);
    if (parts.failed)
        return chat_shape_no_memory(shaping);
    return ERR_OK;
}

/* Join the texts of content by newlines into one text in the arena, with `more` at its end. */
static int chat_join_content(struct chat_shaping *shaping, const struct json *content,
                             const char *more, struct json *out)
{
    struct buf joined = {0};
    char *copy = NULL;

    /* The common case needs no copy: a single text with nothing to append. */
    if (content->kind == JSON_TEXT) {
        if (more[0] == '\0')
            return (*out = *content, ERR_OK);
        return chat_put_joined(shaping, content, more, out);
    }
    for (uint32_t i = 0; i < content->n; i++) {
        const struct json *text = chat_part_text(&content->items[i]);

        /* Images and the like cannot be printed by a template that reads content as a text. */
        if (text == NULL) {
            buf_fini(&joined);
            return chat_shape_fail(shaping, ERR_INVALID,
                                   "messages: this model reads text parts only");
        }
        buf_add_text(&joined, i > 0 ? "\n" : "");
        buf_add(&joined, text->text, text->text_len);
    }
    buf_add_text(&joined, more);
    if (!joined.failed)
        copy = arena_strndup(shaping->arena, joined.len == 0 ? "" : joined.bytes, joined.len);
    *out = (struct json){.kind = JSON_TEXT, .text = copy, .text_len = joined.len};
    buf_fini(&joined);
    if (copy == NULL)
        return chat_shape_no_memory(shaping);
    return ERR_OK;
}

/* Add the member "content" in the given form. */
static int chat_put_content(struct chat_shaping *shaping, struct json_made *made,
                            const struct json *content, enum chat_form form, bool marked)
{
    const struct json empty = {.kind = JSON_TEXT, .text = ""};
    struct json_made one = {.arena = shaping->arena};
    struct json list;
    struct json shaped;
    int rc;

    if (content == NULL || content->kind == JSON_NULL)
        content = &empty;
    if (content->kind != JSON_TEXT && content->kind != JSON_LIST) {
        json_put(made, "content", content); /* wrong type: let the template decide */
        return ERR_OK;
    }
    if (content->kind == JSON_TEXT && form == CHAT_PARTS) {
        if (content->text_len > 0 || marked)
            json_put(&one, NULL, content);
        list = json_made(&one, JSON_LIST);
        content = &list;
    }
    if (content->kind == JSON_LIST && content->n > 0 && form != CHAT_TEXT)
        rc = chat_shape_parts(shaping, content, marked, &shaped);
    else if (content->kind == JSON_LIST && form == CHAT_PARTS)
        rc = (shaped = *content, ERR_OK);
    else
        rc = chat_join_content(shaping, content, marked ? CHAT_MARK : "", &shaped);
    if (rc == ERR_OK)
        json_put(made, "content", &shaped);
    if (one.failed)
        return chat_shape_no_memory(shaping);
    return rc;
}

/* --- tool calls --------------------------------------------------------------------------------*/

/* Write an object as JSON text, like Python's json.dumps(). */
static int chat_text_of_object(struct chat_shaping *shaping, const struct json *object,
                               struct json *out)
{
    struct buf buf = {0};
    char *copy = NULL;

    /* The spacing of Python's json.dumps(), {"a": 1}, is the one that models have seen in
     * training. */
    json_write(&buf, object, JSON_PYTHON);
    if (!buf.failed)
        copy = arena_strndup(shaping->arena, buf.bytes, buf.len);
    *out = (struct json){.kind = JSON_TEXT, .text = copy, .text_len = buf.len};
    buf_fini(&buf);
    if (copy == NULL)
        return chat_shape_no_memory(shaping);
    return ERR_OK;
}

/* Arguments in the form that the template expects. A text must be valid JSON in either case. */
static int chat_shape_arguments(struct chat_shaping *shaping, const struct json *arguments,
                                struct json *out)
{
    static const struct json none = {.kind = JSON_TEXT, .text = "{}", .text_len = 2};
    const struct json *parsed = NULL;
    char reason[200] = "";
    int rc;

    *out = *arguments;
    if (arguments->kind == JSON_OBJECT) {
        if (shaping->text_arguments)
            return chat_text_of_object(shaping, arguments, out);
        return ERR_OK;
    }
    if (arguments->kind != JSON_TEXT)
        return ERR_OK;
    /* Clients send "" for a call without arguments. */
    if (arguments->text_len == 0)
        arguments = &none;
    /* The text is parsed even if the template wants text: a template that parses it would fail with
     * an error that does not name the message. */
    rc = json_parse(&parsed, shaping->arena, arguments->text, arguments->text_len, reason,
                    sizeof reason);
    if (rc != ERR_OK) {
        (void)snprintf(shaping->why, shaping->why_cap, "messages: arguments of a tool call: %s",
                       reason);
        if (rc == ERR_NO_MEMORY)
            return rc;
        return ERR_INVALID;
    }
    if (shaping->text_arguments)
        *out = *arguments;
    else
        *out = *parsed;
    return ERR_OK;
}

/* Add a copy of a call in which only the arguments differ; all other members are kept in order. For
 * a template that reads them there, those of the function come once more, beside the id. */
static int chat_put_call(struct chat_shaping *shaping, struct json_made *calls,
                         const struct json *call)
{
    const struct json *function = json_get_kind(call, "function", JSON_OBJECT);
    const struct json *arguments = json_get(function, "arguments");
    struct json_made fields = {.arena = shaping->arena};
    struct json_made inner = fields;
    struct json shaped;
    int rc;

    /* Nothing to change: the call is added as it is. */
    if (arguments == NULL) {
        json_put(calls, NULL, call);
        return ERR_OK;
    }
    rc = chat_shape_arguments(shaping, arguments, &shaped);
    if (rc != ERR_OK)
        return rc;
    for (uint32_t i = 0; i < function->n; i++) {
        const struct json *field = &function->items[i];

        json_put(&inner, field->key, field == arguments ? &shaped : field);
    }
    for (uint32_t i = 0; i < call->n; i++) {
        if (&call->items[i] == function)
            json_put_made(&fields, "function", JSON_OBJECT, &inner);
        else
            json_put(&fields, call->items[i].key, &call->items[i]);
    }
    for (uint32_t i = 0; i < function->n && shaping->habits->bare_calls; i++) {
        const struct json *field = &function->items[i];

        if (json_get(call, field->key) == NULL)
            json_put(&fields, field->key, field == arguments ? &shaped : field);
    }
    json_put_made(calls, NULL, JSON_OBJECT, &fields);
    return ERR_OK;
}

/* Add the member "tool_calls", each call in the form that the template reads. The first call that
 * is malformed ends the loop with its error. */
static int chat_put_calls(struct chat_shaping *shaping, struct json_made *made,
                          const struct json *list)
{
    struct json_made calls = {.arena = shaping->arena};

    for (uint32_t i = 0; i < list->n; i++) {
        int rc = chat_put_call(shaping, &calls, &list->items[i]);

        if (rc != ERR_OK)
            return rc;
    }
    json_put_made(made, "tool_calls", JSON_LIST, &calls);
    return ERR_OK;
}

/* --- messages ----------------------------------------------------------------------------------*/

/* Copy the reasoning of an earlier turn to the names that the template reads and that the client
 * did not give. */
static void chat_put_reasoning(struct chat_shaping *shaping, struct json_made *made,
                               const struct json *message)
{
    static const struct {
        const char *name;
        unsigned bit;
    } names[] = {{"reasoning_content", CHAT_REASONING_CONTENT},
                 {"reasoning", CHAT_REASONING},
                 {"thinking", CHAT_THINKING}};
    const struct json *said = NULL;

    /* The client's reasoning is in the first of the names that it used. */
    for (size_t i = 0; i < 3 && said == NULL; i++)
        said = json_get_kind(message, names[i].name, JSON_TEXT);
    /* A template reads one or several of the names. Those that it reads and the client did not
     * use get the text. */
    for (size_t i = 0; i < 3 && said != NULL && shaping->names_reasoning; i++)
        if ((shaping->habits->reasoning & names[i].bit) != 0 &&
            json_get_kind(message, names[i].name, JSON_TEXT) == NULL)
            json_put(made, names[i].name, said);
}

/* Roles other than these (developer, function) are treated like system. */
static enum chat_role chat_role_of(const struct json *message)
{
    const struct json *role = json_get(message, "role");

    if (json_is_text(role, "assistant"))
        return CHAT_ASSISTANT;
    if (json_is_text(role, "tool"))
        return CHAT_TOOL;
    if (json_is_text(role, "user"))
        return CHAT_USER;
    return CHAT_SYSTEM;
}

/* Add the content of a message in which it may be missing: of an assistant that only called tools
 * or only reasoned. */
static int chat_put_message_content(struct chat_shaping *shaping, struct json_made *made,
                                    const struct json *message, bool marked)
{
    const struct json *calls = json_get_kind(message, "tool_calls", JSON_LIST);
    const struct json *content = json_get(message, "content");
    enum chat_role role = chat_role_of(message);
    bool none = content == NULL || content->kind == JSON_NULL;
    bool silent = none || (content->kind == JSON_TEXT && content->text_len == 0);

    /* Null has two uses. A message without content keeps it, except that of an assistant, for
     * which templates expect a text. And some templates print tool calls only below a content of
     * null, so an empty text is given to them as null. */
    if ((none && role != CHAT_ASSISTANT) || (silent && calls != NULL && calls->n > 0 && !marked &&
                                             shaping->habits->calls_without_text)) {
        json_put_null(made, "content");
        return ERR_OK;
    }
    return chat_put_content(shaping, made, content, shaping->habits->forms[role], marked);
}

/* Build one message. Content that is missing is added after the role. */
static int chat_shape_message(struct chat_shaping *shaping, const struct json *message, bool marked,
                              struct json *out)
{
    const struct json *content = json_get(message, "content");
    struct json_made made = {.arena = shaping->arena};
    int rc = ERR_OK;

    for (uint32_t i = 0; i < message->n && rc == ERR_OK; i++) {
        const struct json *field = &message->items[i];
        bool calls = strcmp(field->key, "tool_calls") == 0 && field->kind == JSON_LIST;

        /* Members that are null and empty lists of calls are dropped here. */
        if (field == content)
            rc = chat_put_message_content(shaping, &made, message, marked);
        else if (calls && field->n > 0)
            rc = chat_put_calls(shaping, &made, field);
        else if (!calls && field->kind != JSON_NULL)
            json_put(&made, field->key, field);
        if (rc == ERR_OK && content == NULL && strcmp(field->key, "role") == 0)
            rc = chat_put_message_content(shaping, &made, message, marked);
    }
    if (chat_role_of(message) == CHAT_ASSISTANT)
        chat_put_reasoning(shaping, &made, message);
    *out = json_made(&made, JSON_OBJECT);
    if (rc == ERR_OK && made.failed)
        return chat_shape_no_memory(shaping);
    return rc;
}

/* Join all system messages into one, which comes first, with a blank line between them. */
static int chat_merge_system(struct chat_shaping *shaping, const struct json *messages,
                             struct json *out)
{
    const struct json role = {.kind = JSON_TEXT, .text = "system", .text_len = 6};
    struct json_made merged = {.arena = shaping->arena};
    struct json_made first = merged;
    struct buf words = {0};
    uint32_t n_system = 0;
    char *copy = NULL;
    int rc = ERR_OK;

    /* First collect the texts of all system messages. */
    for (uint32_t i = 0; i < messages->n && rc == ERR_OK; i++) {
        const struct json *made = &messages->items[i];
        const struct json *content = json_get(made, "content");
        struct json text;

        if (!json_is_text(json_get(made, "role"), "system") || content == NULL ||
            (content->kind != JSON_TEXT && content->kind != JSON_LIST))
            continue;
        rc = chat_join_content(shaping, content, "", &text);
        buf_add_text(&words, n_system++ > 0 ? "\n\n" : "");
        if (rc == ERR_OK)
            buf_add(&words, text.text, text.text_len);
    }
    if (rc == ERR_OK && !words.failed)
        copy = arena_strndup(shaping->arena, words.len == 0 ? "" : words.bytes, words.len);
    buf_fini(&words);
    if (rc != ERR_OK || copy == NULL) {
        if (rc != ERR_OK)
            return rc;
        return chat_shape_no_memory(shaping);
    }
    /* Then build the list: one system message, and all other messages in order. */
    json_put(&first, "role", &role);
    json_put_text(&first, "content", copy);
    json_put_made(&merged, NULL, JSON_OBJECT, &first);
    for (uint32_t i = 0; i < messages->n; i++)
        if (!json_is_text(json_get(&messages->items[i], "role"), "system"))
            json_put(&merged, NULL, &messages->items[i]);
    *out = json_made(&merged, JSON_LIST);
    if (merged.failed)
        return chat_shape_no_memory(shaping);
    return ERR_OK;
}

static bool chat_has_late_system(const struct json *messages)
{
    for (uint32_t i = 1; i < messages->n; i++)
        if (json_is_text(json_get(&messages->items[i], "role"), "system"))
            return true;
    return false;
}

int chat_shape(struct chat_shaping *shaping, const struct json *messages, struct json *out)
{
    struct json_made shaped = {.arena = shaping->arena};
    struct json merged;
    int rc = ERR_OK;

    must(shaping->arena != NULL && shaping->habits != NULL);
    if (messages == NULL || messages->kind != JSON_LIST || messages->n == 0)
        return chat_shape_fail(shaping, ERR_INVALID, "messages must be a list that is not empty");
    /* Check all messages before any is shaped, so the functions below may rely on a role. */
    for (uint32_t i = 0; i < messages->n; i++)
        if (messages->items[i].kind != JSON_OBJECT ||
            json_get_kind(&messages->items[i], "role", JSON_TEXT) == NULL)
            return chat_shape_fail(shaping, ERR_INVALID,
                                   "each message must be an object with a role");
    /* Some templates ignore or refuse a system message that is not the first. All of them are then
     * joined into one, because instructions must not be lost. */
    if (shaping->habits->merges_system && chat_has_late_system(messages)) {
        rc = chat_merge_system(shaping, messages, &merged);
        messages = &merged;
    }
    for (uint32_t i = 0; rc == ERR_OK && i < messages->n; i++) {
        struct json made;

        rc = chat_shape_message(shaping, &messages->items[i],
                                shaping->continues && i + 1 == messages->n, &made);
        if (rc == ERR_OK)
            json_put(&shaped, NULL, &made);
    }
    *out = json_made(&shaped, JSON_LIST);
    if (rc == ERR_OK && shaped.failed)
        return chat_shape_no_memory(shaping);
    return rc;
}
