/* SPDX-License-Identifier: Apache-2.0
 *
 * The template of a model and what Hugging Face gives it: messages, tools, documents,
 * add_generation_prompt, the special tokens of tokenizer_config.json, the caller's own variables.
 * Messages are rewritten as JSON trees in the arena before they become values: arguments of tool
 * calls are parsed, lists of text parts are joined. */
#include "text/chat.h"

#include <stdio.h>
#include <string.h>

#include "text/file.h"
#include "text/jinja.h"

#define TEMPLATE_BYTES_MAX ((size_t)4 << 20)
#define CONFIG_BYTES_MAX   ((size_t)64 << 20)

static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                          "sep_token", "cls_token", "mask_token"};

#define N_TOKEN_NAMES (sizeof token_names / sizeof token_names[0])

struct chat {
    struct jinja *preset;   /* NULL: the model has no template */
    struct jinja *tool_use; /* used when there are tools; NULL: the preset is */
    struct arena arena;     /* tokenizer_config.json */
    const char *tokens[N_TOKEN_NAMES];
    enum reply_format format;
    enum reply_reasoning reasoning;
};

/* Into one of c's templates; source is NUL-terminated. Which tags a reply has, one of them says. */
static int compile(struct chat *c, struct jinja **out, const char *from, const char *source,
                   size_t len, char *why, size_t why_cap)
{
    char reason[400] = "";
    int rc = jinja_compile(out, source, len, reason, sizeof reason);

    if (rc != ERR_OK)
        (void)snprintf(why, why_cap, "%s: %s", from, reason);
    if (c->format == REPLY_PLAIN)
        c->format = reply_format_of(source);
    if (c->reasoning == REPLY_NO_REASONING)
        c->reasoning = reply_reasoning_of(source);
    return rc;
}

static int compile_file(struct chat *c, struct jinja **out, const char *dir, const char *name,
                        char *why, size_t why_cap)
{
    struct buf text = {0};
    int rc = file_read(&text, dir, name, TEMPLATE_BYTES_MAX, why, why_cap);

    if (rc == ERR_OK)
        rc = compile(c, out, name, text.len == 0 ? "" : text.bytes, text.len, why, why_cap);
    buf_fini(&text);
    return rc;
}

static int read_config(struct chat *c, const char *dir, const char *name, const struct json **out,
                       char *why, size_t why_cap)
{
    struct buf text = {0};
    char reason[200] = "";
    int rc = file_read(&text, dir, name, CONFIG_BYTES_MAX, why, why_cap);

    if (rc == ERR_OK) {
        rc = json_parse(out, &c->arena, text.bytes, text.len, reason, sizeof reason);
        if (rc != ERR_OK)
            (void)snprintf(why, why_cap, "%s: %s", name, reason);
    }
    buf_fini(&text);
    return rc == ERR_NOT_FOUND ? ERR_OK : rc;
}

static void read_tokens(struct chat *c, const struct json *config)
{
    size_t i;

    for (i = 0; i < N_TOKEN_NAMES; i++) {
        const struct json *token = json_get(config, token_names[i]);

        if (token != NULL && token->kind == JSON_OBJECT)
            token = json_get(token, "content");
        if (token != NULL && token->kind == JSON_TEXT)
            c->tokens[i] = token->text;
    }
}

/* chat_template: a text, or a list of {"name", "template"}. */
static int compile_config(struct chat *c, const struct json *node, char *why, size_t why_cap)
{
    uint32_t i;
    int rc = ERR_OK;

    if (node == NULL || node->kind == JSON_NULL)
        return ERR_OK;
    if (node->kind == JSON_TEXT)
        return compile(c, &c->preset, "chat_template", node->text, node->text_len, why, why_cap);
    for (i = 0; node->kind == JSON_LIST && i < node->n && rc == ERR_OK; i++) {
        const char *name = json_get_text(&node->items[i], "name", "");
        const struct json *source = json_get_kind(&node->items[i], "template", JSON_TEXT);
        struct jinja **place = NULL;

        if (strcmp(name, "default") == 0 && c->preset == NULL)
            place = &c->preset;
        else if (strcmp(name, "tool_use") == 0 && c->tool_use == NULL)
            place = &c->tool_use;
        if (place != NULL && source != NULL)
            rc = compile(c, place, name, source->text, source->text_len, why, why_cap);
    }
    return rc;
}

static int open_all(struct chat *c, const char *dir, const char *path, char *why, size_t why_cap)
{
    const struct json *config = NULL;
    const struct json *old = NULL;
    int rc = read_config(c, dir, "tokenizer_config.json", &config, why, why_cap);

    if (rc != ERR_OK)
        return rc;
    read_tokens(c, config);
    if (path != NULL && path[0] != '\0')
        return compile_file(c, &c->preset, NULL, path, why, why_cap);
    rc = compile_file(c, &c->preset, dir, "chat_template.jinja", why, why_cap);
    if (rc != ERR_NOT_FOUND)
        return rc;
    rc = compile_config(c, json_get(config, "chat_template"), why, why_cap);
    if (rc != ERR_OK || c->preset != NULL)
        return rc;
    rc = read_config(c, dir, "chat_template.json", &old, why, why_cap);
    return rc != ERR_OK ? rc : compile_config(c, json_get(old, "chat_template"), why, why_cap);
}

int chat_open(struct chat **out, const char *dir, const char *template_path, char *why,
              size_t why_cap)
{
    struct chat *c = mem_zalloc(sizeof *c);
    char reason[600] = "out of memory";
    int rc = ERR_NO_MEMORY;

    if (c != NULL)
        rc = open_all(c, dir, template_path, reason, sizeof reason);
    if (rc == ERR_OK) {
        *out = c;
        return rc;
    }
    chat_close(c);
    if (why != NULL && why_cap > 0)
        (void)snprintf(why, why_cap, "chat template: %s", reason);
    return rc;
}

void chat_close(struct chat *c)
{
    if (c == NULL)
        return;
    jinja_close(c->preset);
    jinja_close(c->tool_use);
    arena_reset(&c->arena);
    mem_free(c);
}

enum reply_format chat_reply_format(const struct chat *c)
{
    return c->format;
}

enum reply_reasoning chat_reply_reasoning(const struct chat *c)
{
    return c->reasoning;
}

bool chat_has_template(const struct chat *c)
{
    return c->preset != NULL;
}

/* --- messages ----------------------------------------------------------------------------------*/

struct shaping {
    struct arena *arena;
    bool parts; /* the template reads parts of content itself */
    char *why;
    size_t why_cap;
};

static int shape_fail(struct shaping *s, int rc, const char *what)
{
    (void)snprintf(s->why, s->why_cap, "%s", what);
    return rc;
}

/* A copy of a list's or object's members that may be changed; NULL when memory ended. */
static struct json *copy_members(struct shaping *s, const struct json *node)
{
    struct json *items = arena_alloc(s->arena, (node->n + (size_t)1) * sizeof *items);

    if (items != NULL && node->n > 0)
        memcpy(items, node->items, node->n * sizeof *items);
    return items;
}

const struct json *chat_part_text(const struct json *part)
{
    static const char *const kinds[] = {"text", "input_text", "output_text"};
    const struct json *type = json_get(part, "type");

    if (part->kind == JSON_TEXT)
        return part;
    if (json_is_text(type, "refusal") || json_is_text(type, "thinking"))
        return json_get_kind(part, type->text, JSON_TEXT);
    for (size_t i = 0; type != NULL && i < sizeof kinds / sizeof kinds[0]; i++)
        if (json_is_text(type, kinds[i]))
            type = NULL;
    return type == NULL ? json_get_kind(part, "text", JSON_TEXT) : NULL;
}

/* For templates that read parts: each text as the kind they know. Other parts are theirs. */
static int name_parts(struct shaping *s, struct json *content)
{
    struct json *items = copy_members(s, content);
    uint32_t i;

    if (items == NULL)
        return shape_fail(s, ERR_NO_MEMORY, "out of memory");
    for (i = 0; i < content->n; i++) {
        const struct json *text = chat_part_text(&content->items[i]);
        struct json_made part = {.arena = s->arena};

        if (text == NULL || json_is_text(json_get(&items[i], "type"), "text"))
            continue;
        json_put_text(&part, "type", "text");
        json_put(&part, "text", text);
        items[i] = json_made(&part, JSON_OBJECT);
        if (part.failed)
            return shape_fail(s, ERR_NO_MEMORY, "out of memory");
    }
    content->items = items;
    return ERR_OK;
}

/* The text parts of a content list, joined by newlines. */
static int join_parts(struct shaping *s, struct json *content)
{
    struct buf joined = {0};
    uint32_t i;
    char *copy;

    for (i = 0; i < content->n; i++) {
        const struct json *text = chat_part_text(&content->items[i]);

        if (text == NULL) {
            buf_fini(&joined);
            return shape_fail(s, ERR_INVALID, "messages: this model reads text parts only");
        }
        if (i > 0)
            buf_add_byte(&joined, '\n');
        buf_add(&joined, text->text, text->text_len);
    }
    copy = joined.failed ? NULL
                         : arena_strndup(s->arena, joined.len == 0 ? "" : joined.bytes, joined.len);
    content->kind = JSON_TEXT;
    content->text = copy;
    content->text_len = joined.len;
    buf_fini(&joined);
    return copy == NULL ? shape_fail(s, ERR_NO_MEMORY, "out of memory") : ERR_OK;
}

/* {"function": {"arguments": "{...}"}}: the text becomes the object that it holds. */
static int shape_call(struct shaping *s, struct json *call)
{
    const struct json *function = json_get_kind(call, "function", JSON_OBJECT);
    const struct json *arguments = json_get_kind(function, "arguments", JSON_TEXT);
    const struct json *parsed = NULL;
    struct json *fields;
    struct json *inner;
    char reason[200] = "";
    int rc;

    if (arguments == NULL)
        return ERR_OK;
    rc = json_parse(&parsed, s->arena, arguments->text_len == 0 ? "{}" : arguments->text,
                    arguments->text_len == 0 ? 2 : arguments->text_len, reason, sizeof reason);
    if (rc != ERR_OK) {
        (void)snprintf(s->why, s->why_cap, "messages: arguments of a tool call: %s", reason);
        return rc == ERR_NO_MEMORY ? rc : ERR_INVALID;
    }
    fields = copy_members(s, call);
    inner = copy_members(s, function);
    if (fields == NULL || inner == NULL)
        return shape_fail(s, ERR_NO_MEMORY, "out of memory");
    /* The indexes stay right: members keep their places. */
    inner[arguments - function->items] = *parsed;
    inner[arguments - function->items].key = arguments->key;
    inner[arguments - function->items].key_len = arguments->key_len;
    fields[function - call->items].items = inner;
    call->items = fields;
    return ERR_OK;
}

static int shape_message(struct shaping *s, struct json *message)
{
    struct json *fields = copy_members(s, message);
    uint32_t i;
    uint32_t k;
    int rc = ERR_OK;

    if (fields == NULL)
        return shape_fail(s, ERR_NO_MEMORY, "out of memory");
    for (i = 0; i < message->n && rc == ERR_OK; i++) {
        struct json *field = &fields[i];

        if (field->kind != JSON_LIST)
            continue;
        if (strcmp(field->key, "content") == 0)
            rc = s->parts ? name_parts(s, field) : join_parts(s, field);
        if (strcmp(field->key, "tool_calls") != 0)
            continue;
        struct json *calls = copy_members(s, field);
        if (calls == NULL)
            return shape_fail(s, ERR_NO_MEMORY, "out of memory");
        for (k = 0; k < field->n && rc == ERR_OK; k++)
            rc = shape_call(s, &calls[k]);
        field->items = calls;
    }
    message->items = fields;
    return rc;
}

static int shape_messages(struct shaping *s, const struct json *messages, struct json *out)
{
    struct json *items;
    uint32_t i;
    int rc = ERR_OK;

    if (messages == NULL || messages->kind != JSON_LIST || messages->n == 0)
        return shape_fail(s, ERR_INVALID, "messages must be a list that is not empty");
    *out = *messages;
    items = copy_members(s, messages);
    if (items == NULL)
        return shape_fail(s, ERR_NO_MEMORY, "out of memory");
    for (i = 0; i < messages->n && rc == ERR_OK; i++) {
        if (items[i].kind != JSON_OBJECT || json_get_kind(&items[i], "role", JSON_TEXT) == NULL)
            return shape_fail(s, ERR_INVALID, "each message must be an object with a role");
        rc = shape_message(s, &items[i]);
    }
    out->items = items;
    return rc;
}

/* --- rendering ---------------------------------------------------------------------------------*/

static void give_variables(const struct chat *c, const struct chat_request *r,
                           const struct json *messages, struct jinja_vars *v)
{
    size_t i;

    jinja_vars_init(v, v->arena);
    v->now_unix_s = r->now_unix_s;
    for (i = 0; i < N_TOKEN_NAMES; i++)
        if (c->tokens[i] != NULL)
            jinja_vars_text(v, token_names[i], c->tokens[i], strlen(c->tokens[i]));
    jinja_vars_json(v, "messages", messages);
    jinja_vars_json(v, "tools", r->tools);
    jinja_vars_json(v, "documents", r->documents);
    jinja_vars_bool(v, "add_generation_prompt", r->add_generation_prompt);
    for (i = 0; r->kwargs != NULL && r->kwargs->kind == JSON_OBJECT && i < r->kwargs->n; i++)
        jinja_vars_json(v, r->kwargs->items[i].key, &r->kwargs->items[i]);
}

/* Cut the prompt behind the last message's content. */
static int cut_after_content(const struct json *messages, struct buf *out, size_t from, char *why,
                             size_t why_cap)
{
    const struct json *last = &messages->items[messages->n - 1];
    const struct json *content = json_get_kind(last, "content", JSON_TEXT);
    const char *text = content == NULL ? "" : content->text;
    size_t n = strlen(text);
    size_t at = out->len;

    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\n' || text[n - 1] == '\t'))
        n--;
    while (n > 0 && at >= from + n) {
        if (memcmp(out->bytes + at - n, text, n) == 0) {
            out->len = at;
            out->bytes[at] = '\0';
            return ERR_OK;
        }
        at--;
    }
    (void)snprintf(why, why_cap, "continue_final_message: the last message is not in the prompt");
    return ERR_INVALID;
}

int chat_render(const struct chat *c, const struct chat_request *r, struct arena *arena,
                struct buf *out, char *why, size_t why_cap)
{
    const struct jinja *template =
        r->tools != NULL && c->tool_use != NULL ? c->tool_use : c->preset;
    struct shaping s = {.arena = arena, .why = why, .why_cap = why_cap};
    struct jinja_vars v = {.arena = arena};
    struct json messages = {0};
    size_t from = out->len;
    int rc;

    if (template == NULL)
        return shape_fail(&s, ERR_UNSUPPORTED, "the model has no chat template");
    s.parts = jinja_loops_over_content(template);
    rc = shape_messages(&s, r->messages, &messages);
    if (rc != ERR_OK)
        return rc;
    give_variables(c, r, &messages, &v);
    rc = jinja_render(template, &v, arena, out, why, why_cap);
    if (rc == ERR_OK && r->continue_final_message)
        rc = cut_after_content(&messages, out, from, why, why_cap);
    return rc;
}
