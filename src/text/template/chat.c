/* SPDX-License-Identifier: Apache-2.0
 *
 * The template of a model and what Hugging Face gives it: messages, tools, documents,
 * add_generation_prompt, the special tokens of tokenizer_config.json, the caller's own variables.
 * At start the template is asked what it does with messages (chat_habits.c); messages are then
 * shaped so that it takes them (chat_shape.c). */
#include "text/template/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/file.h"
#include "text/template/chat_parts.h"
#include "text/unicode.h"

#define TEMPLATE_BYTES_MAX ((size_t)4 << 20)
#define CONFIG_BYTES_MAX   ((size_t)64 << 20)

static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                          "sep_token", "cls_token", "mask_token"};

#define N_TOKEN_NAMES (sizeof token_names / sizeof token_names[0])

_Static_assert(N_TOKEN_NAMES == sizeof((struct chat *)0)->tokens / sizeof(char *), "a name each");

/* Into one of c's templates; source is NUL-terminated. Which tags a reply has, one of them says. */
static int compile(struct chat *c, struct chat_template *out, const char *from, const char *source,
                   size_t len, char *why, size_t why_cap)
{
    char reason[400] = "";
    int rc = jinja_compile(&out->jinja, source, len, reason, sizeof reason);

    if (rc != ERR_OK)
        (void)snprintf(why, why_cap, "%s: %s", from, reason);
    else
        chat_habits_find(c, out, source);
    if (c->format == REPLY_PLAIN)
        c->format = reply_format_of(source);
    if (c->reasoning == REPLY_NO_REASONING)
        c->reasoning = reply_reasoning_of(source);
    return rc;
}

static int compile_file(struct chat *c, struct chat_template *out, const char *dir,
                        const char *name, char *why, size_t why_cap)
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
        if (token != NULL && token->kind == JSON_TEXT && !json_has_nul(token))
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
        struct chat_template *place = NULL;

        if (strcmp(name, "default") == 0 && c->preset.jinja == NULL)
            place = &c->preset;
        else if (strcmp(name, "tool_use") == 0 && c->tool_use.jinja == NULL)
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
    if (rc != ERR_OK || c->preset.jinja != NULL)
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
    jinja_close(c->preset.jinja);
    jinja_close(c->tool_use.jinja);
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

bool chat_force_content(struct chat *c, const char *form)
{
    bool parts = strcmp(form, "openai") == 0;

    if (strcmp(form, "auto") == 0)
        return true;
    for (int role = 0; role < CHAT_ROLES; role++)
        c->preset.habits.forms[role] = c->tool_use.habits.forms[role] =
            parts ? CHAT_PARTS : CHAT_TEXT;
    return parts || strcmp(form, "string") == 0;
}

bool chat_has_template(const struct chat *c)
{
    return c->preset.jinja != NULL;
}

void chat_prompt_fini(struct chat_prompt *p)
{
    buf_fini(&p->text);
    p->own = (struct spans){0};
}

/* --- rendering ---------------------------------------------------------------------------------*/

/* Roles that templates put between the bars of special tokens. */
static const char *const roles[] = {"system",   "developer", "user",        "assistant", "tool",
                                    "function", "ipython",   "observation", "model",     NULL};

static void give_variables(const struct chat *c, const struct chat_request *r,
                           const struct json *messages, struct jinja_vars *v)
{
    size_t i;

    v->now_unix_s = r->now_unix_s;
    for (i = 0; i < N_TOKEN_NAMES; i++)
        if (c->tokens[i] != NULL)
            jinja_vars_text(v, token_names[i], c->tokens[i], strlen(c->tokens[i]));
    jinja_vars_json(v, "messages", messages);
    jinja_vars_trust(v, "messages", "role", roles);
    jinja_vars_json(v, "tools", r->tools);
    jinja_vars_json(v, "documents", r->documents);
    jinja_vars_bool(v, "add_generation_prompt", r->add_generation_prompt);
    for (i = 0; r->kwargs != NULL && r->kwargs->kind == JSON_OBJECT && i < r->kwargs->n; i++)
        jinja_vars_json(v, r->kwargs->items[i].key, &r->kwargs->items[i]);
}

int chat_render_shaped(const struct chat *c, const struct jinja *template,
                       const struct chat_request *r, const struct json *messages,
                       struct arena *arena, struct chat_prompt *out)
{
    char reason[500] = "";
    struct jinja_vars v;
    int rc;

    buf_clear(&out->text);
    out->own = (struct spans){0};
    jinja_vars_init(&v, arena);
    v.own = &out->own;
    give_variables(c, r, messages, &v);
    rc = jinja_render(template, &v, arena, &out->text, reason, sizeof reason);
    out->raised = rc == ERR_INVALID;
    if (rc != ERR_OK)
        (void)snprintf(out->why, sizeof out->why, "chat template%s%s",
                       strncmp(reason, "line ", 5) == 0 ? ", " : ": ", reason);
    return rc;
}

static size_t strip_end(const char *text, size_t len)
{
    while (len > 0) {
        size_t at = len - 1;

        while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        if (!unicode_is_python_space(utf8_decode(text + at)))
            break;
        len = at;
    }
    return len;
}

/* Where needle begins in text for the last time; len: nowhere. */
static size_t find_last(const char *text, size_t len, const char *needle, size_t n)
{
    for (size_t at = len >= n ? len - n + 1 : 0; at > 0; at--)
        if (memcmp(text + at - 1, needle, n) == 0)
            return at - 1;
    return len;
}

/* End the prompt where the last message's content ends. A template that strips content has taken
 * the white space behind the mark; the one before it is then taken as well. */
static int cut_at_mark(struct chat_prompt *out)
{
    size_t n = sizeof CHAT_MARK - 1;
    size_t len = out->text.len;
    size_t at = find_last(out->text.bytes, len, CHAT_MARK, n - 1);

    if (len == 0 || at == len) {
        (void)snprintf(out->why, sizeof out->why,
                       "continue_final_message: the chat template leaves the last message out, or "
                       "alters it");
        return ERR_INVALID;
    }
    if (len - at < n || out->text.bytes[at + n - 1] != CHAT_MARK[n - 1])
        at = strip_end(out->text.bytes, at);
    out->text.len = at;
    out->text.bytes[at] = '\0';
    spans_cut(&out->own, at);
    return ERR_OK;
}

/* One way of shaping the messages, and what comes of it. */
static int render_as(const struct chat *c, const struct chat_template *t,
                     const struct chat_request *r, struct chat_shaping *s, struct chat_prompt *out)
{
    struct json messages;
    int rc;

    out->raised = false;
    rc = chat_shape(s, r->messages, &messages);

    if (rc == ERR_OK)
        rc = chat_render_shaped(c, t->jinja, r, &messages, s->arena, out);
    return rc;
}

static bool has_member(const struct json *messages, const char *name)
{
    for (uint32_t i = 0; i < messages->n; i++)
        if (json_get(&messages->items[i], name) != NULL)
            return true;
    return false;
}

/* A template that raised is asked again: with the arguments of calls in the other form, then with
 * reasoning under no other name than the client's. */
static int render_again(const struct chat *c, const struct chat_template *t,
                        const struct chat_request *r, struct chat_shaping *s,
                        struct chat_prompt *out)
{
    const struct json *m = r->messages;
    char first[sizeof out->why];
    int rc = ERR_INVALID;

    memcpy(first, out->why, sizeof first);
    if (has_member(m, "tool_calls")) {
        s->text_arguments = !s->text_arguments;
        rc = render_as(c, t, r, s, out);
        s->text_arguments = !s->text_arguments;
    }
    if (rc != ERR_OK && (has_member(m, "reasoning") || has_member(m, "reasoning_content") ||
                         has_member(m, "thinking"))) {
        s->names_reasoning = false;
        rc = render_as(c, t, r, s, out);
    }
    if (rc != ERR_OK)
        memcpy(out->why, first, sizeof first); /* the first reason counts */
    return rc;
}

static const struct chat_template *template_for(const struct chat *c, bool tools)
{
    return tools && c->tool_use.jinja != NULL ? &c->tool_use : &c->preset;
}

bool chat_knows_tools(const struct chat *c)
{
    return template_for(c, true)->habits.tools;
}

int chat_render(const struct chat *c, const struct chat_request *r, struct arena *arena,
                struct chat_prompt *out)
{
    const struct chat_template *t = template_for(c, r->tools != NULL);
    struct chat_shaping s = {.arena = arena,
                             .habits = &t->habits,
                             .text_arguments = t->habits.text_arguments,
                             .names_reasoning = true,
                             .continues = r->continue_final_message,
                             .why = out->why,
                             .why_cap = sizeof out->why};
    int rc;

    if (t->jinja == NULL) {
        (void)snprintf(out->why, sizeof out->why, "the model has no chat template");
        return ERR_UNSUPPORTED;
    }
    rc = render_as(c, t, r, &s, out);
    if (rc == ERR_INVALID && out->raised)
        rc = render_again(c, t, r, &s, out);
    if (rc == ERR_OK && r->continue_final_message)
        rc = cut_at_mark(out);
    return rc;
}
