/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the template of a model, gives it the variables that Hugging Face gives it, and renders
 * it: messages, tools, documents, add_generation_prompt, the special tokens of
 * tokenizer_config.json, and the caller's own variables. At start chat_habits.c determines which
 * form of messages the template expects; chat_shape.c changes each request's messages to it. */
#include "text/template/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/file.h"
#include "text/template/chat_parts.h"
#include "text/unicode.h"

#define TEMPLATE_BYTES_MAX    ((size_t)4 << 20)
#define CHAT_CONFIG_BYTES_MAX ((size_t)64 << 20)

static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                          "sep_token", "cls_token", "mask_token"};

#define N_TOKEN_NAMES (sizeof token_names / sizeof token_names[0])

_Static_assert(N_TOKEN_NAMES == sizeof((struct chat *)0)->tokens / sizeof(char *), "a name each");

/* The source of a template and its name for error messages. */
struct chat_source {
    const char *name;
    const char *text; /* NUL-terminated */
    size_t len;
};

/* Compile a source into one of chat's templates. The first template that mentions the tags of a
 * reply format determines the format. */
static int chat_compile(struct chat *chat, struct chat_template *out,
                        const struct chat_source *source, char *why, size_t why_cap)
{
    char reason[400] = "";
    int rc = jinja_compile(&out->jinja, source->text, source->len, reason, sizeof reason);

    if (rc != ERR_OK)
        (void)snprintf(why, why_cap, "%s: %s", source->name, reason);
    else
        chat_habits_find(chat, out, source->text);
    /* A model may have several templates, such as one for tools. The first that shows a format
     * wins, and later ones do not change it, because a model writes only one. */
    if (chat->format == REPLY_PLAIN)
        chat->format = reply_format_of(source->text);
    if (chat->reasoning == REPLY_NO_REASONING)
        chat->reasoning = reply_reasoning_of(source->text);
    return rc;
}

/* Compile a template that is a file of its own. */
static int chat_compile_file(struct chat *chat, struct chat_template *out, const char *dir,
                             const char *name, char *why, size_t why_cap)
{
    struct buf text = {0};
    int rc = file_read(&text, dir, name, TEMPLATE_BYTES_MAX, why, why_cap);

    if (rc == ERR_OK) {
        struct chat_source source = {name, text.len == 0 ? "" : text.bytes, text.len};

        rc = chat_compile(chat, out, &source, why, why_cap);
    }
    buf_fini(&text);
    return rc;
}

/* Parse a JSON file; a missing one leaves *out unchanged. */
static int chat_read_config(struct chat *chat, const char *dir, const char *name,
                            const struct json **out, char *why, size_t why_cap)
{
    struct buf text = {0};
    char reason[200] = "";
    /* The text is only needed during the parse: the values of the tree are copied to the arena. */
    int rc = file_read(&text, dir, name, CHAT_CONFIG_BYTES_MAX, why, why_cap);

    if (rc == ERR_OK) {
        rc = json_parse(out, &chat->arena, text.bytes, text.len, reason, sizeof reason);
        if (rc != ERR_OK)
            (void)snprintf(why, why_cap, "%s: %s", name, reason);
    }
    buf_fini(&text);
    /* All configuration files are optional. Errors other than a missing file are reported: they
     * would otherwise change the prompts without a trace. */
    if (rc == ERR_NOT_FOUND)
        return ERR_OK;
    return rc;
}

/* Special tokens are strings, or objects with "content". */
static void chat_read_tokens(struct chat *chat, const struct json *config)
{
    size_t i;

    for (i = 0; i < N_TOKEN_NAMES; i++) {
        const struct json *token = json_get(config, token_names[i]);

        if (token != NULL && token->kind == JSON_OBJECT)
            token = json_get(token, "content");
        if (token != NULL && token->kind == JSON_TEXT && !json_has_nul(token))
            chat->tokens[i] = token->text;
    }
}

/* Compile a member chat_template: a text, or a list of {"name", "template"}. */
static int chat_compile_config(struct chat *chat, const struct json *node, char *why,
                               size_t why_cap)
{
    uint32_t i;
    int rc = ERR_OK;

    if (node == NULL || node->kind == JSON_NULL)
        return ERR_OK;
    if (node->kind == JSON_TEXT)
        return chat_compile(chat, &chat->preset,
                            &(struct chat_source){"chat_template", node->text, node->text_len}, why,
                            why_cap);
    /* Templates with other names, such as "rag", are not used. */
    for (i = 0; node->kind == JSON_LIST && i < node->n && rc == ERR_OK; i++) {
        const char *name = json_get_text(&node->items[i], "name", "");
        const struct json *source = json_get_kind(&node->items[i], "template", JSON_TEXT);
        struct chat_template *place = NULL;

        if (strcmp(name, "default") == 0 && chat->preset.jinja == NULL)
            place = &chat->preset;
        else if (strcmp(name, "tool_use") == 0 && chat->tool_use.jinja == NULL)
            place = &chat->tool_use;
        if (place != NULL && source != NULL)
            rc = chat_compile(chat, place,
                              &(struct chat_source){name, source->text, source->text_len}, why,
                              why_cap);
    }
    return rc;
}

/* Try the places of a template in order, see chat_open(). */
static int chat_open_all(struct chat *chat, const char *dir, const char *path, char *why,
                         size_t why_cap)
{
    const struct json *config = NULL;
    const struct json *old = NULL;
    int rc = chat_read_config(chat, dir, "tokenizer_config.json", &config, why, why_cap);

    if (rc != ERR_OK)
        return rc;
    /* The special tokens are read in any case: a template of the operator uses them as well. */
    chat_read_tokens(chat, config);
    /* A template named by the operator has priority over those of the model, and must exist. */
    if (path != NULL && path[0] != '\0')
        return chat_compile_file(chat, &chat->preset, NULL, path, why, why_cap);
    rc = chat_compile_file(chat, &chat->preset, dir, "chat_template.jinja", why, why_cap);
    if (rc != ERR_NOT_FOUND)
        return rc;
    rc = chat_compile_config(chat, json_get(config, "chat_template"), why, why_cap);
    if (rc != ERR_OK || chat->preset.jinja != NULL)
        return rc;
    /* An older layout has the template in a file of its own. */
    rc = chat_read_config(chat, dir, "chat_template.json", &old, why, why_cap);
    if (rc != ERR_OK)
        return rc;
    return chat_compile_config(chat, json_get(old, "chat_template"), why, why_cap);
}

int chat_open(struct chat **out, const char *dir, const char *template_path, char *why,
              size_t why_cap)
{
    struct chat *chat = mem_zalloc(sizeof *chat);
    char reason[600] = "out of memory";
    int rc = ERR_NO_MEMORY;

    must(out != NULL && dir != NULL);
    /* chat_close() accepts NULL and a chat that was opened in part. */
    if (chat != NULL)
        rc = chat_open_all(chat, dir, template_path, reason, sizeof reason);
    if (rc == ERR_OK) {
        *out = chat;
        return rc;
    }
    chat_close(chat);
    if (why != NULL && why_cap > 0)
        (void)snprintf(why, why_cap, "chat template: %s", reason);
    return rc;
}

void chat_close(struct chat *chat)
{
    if (chat == NULL)
        return;
    jinja_close(chat->preset.jinja);
    jinja_close(chat->tool_use.jinja);
    arena_reset(&chat->arena);
    mem_free(chat);
}

enum reply_format chat_reply_format(const struct chat *chat)
{
    return chat->format;
}

enum reply_reasoning chat_reply_reasoning(const struct chat *chat)
{
    return chat->reasoning;
}

bool chat_force_content(struct chat *chat, const char *form)
{
    bool parts;
    enum chat_form wanted;

    must(form != NULL);
    parts = strcmp(form, "openai") == 0;
    wanted = parts ? CHAT_PARTS : CHAT_TEXT;
    if (strcmp(form, "auto") == 0)
        return true;
    /* The habits found at start are overwritten: from here on every role has the form that the
     * operator demands, even if the experiment showed another one. */
    for (int role = 0; role < CHAT_ROLES; role++) {
        chat->preset.habits.forms[role] = wanted;
        chat->tool_use.habits.forms[role] = wanted;
    }
    return parts || strcmp(form, "string") == 0;
}

bool chat_has_template(const struct chat *chat)
{
    return chat->preset.jinja != NULL;
}

void chat_prompt_fini(struct chat_prompt *prompt)
{
    buf_fini(&prompt->text);
    prompt->own = (struct spans){0};
}

/* --- rendering ---------------------------------------------------------------------------------*/

/* If a template raises, the messages are changed to another form and rendered again
 * (chat_render_again()): a habit may depend on a detail that the small conversations did not
 * have. */

/* Roles that templates put inside special tokens, as in <|start_header_id|>user<|end_header_id|>.
 * They count as written by the template although they come from the request. */
static const char *const roles[] = {"system",   "developer", "user",        "assistant", "tool",
                                    "function", "ipython",   "observation", "model",     NULL};

/* Set the variables of a render. The caller's own come last, so that they override the others. */
static void chat_give_variables(const struct chat *chat, const struct chat_request *request,
                                const struct json *messages, struct jinja_vars *vars)
{
    size_t i;

    vars->now_unix_s = request->now_unix_s;
    /* Templates print special tokens by their names: {{ bos_token }}. */
    for (i = 0; i < N_TOKEN_NAMES; i++)
        if (chat->tokens[i] != NULL)
            jinja_vars_text(vars, token_names[i], chat->tokens[i], strlen(chat->tokens[i]));
    jinja_vars_json(vars, "messages", messages);
    /* Roles that the server has checked are trusted: they are part of the format, and not text
     * of a client in which special tokens would have to be ignored. */
    jinja_vars_trust(vars, "messages", "role", roles);
    jinja_vars_json(vars, "tools", request->tools);
    jinja_vars_json(vars, "documents", request->documents);
    jinja_vars_bool(vars, "add_generation_prompt", request->add_generation_prompt);
    /* chat_template_kwargs of the request, such as {"enable_thinking": false}. */
    for (i = 0;
         request->kwargs != NULL && request->kwargs->kind == JSON_OBJECT && i < request->kwargs->n;
         i++)
        jinja_vars_json(vars, request->kwargs->items[i].key, &request->kwargs->items[i]);
}

int chat_render_shaped(const struct chat *chat, const struct jinja *template,
                       const struct chat_request *request, const struct json *messages,
                       struct arena *arena, struct chat_prompt *out)
{
    char reason[500] = "";
    struct jinja_vars vars;
    int rc;

    must(template != NULL && messages != NULL);
    must(arena != NULL);
    buf_clear(&out->text);
    out->own = (struct spans){0};
    jinja_vars_init(&vars, arena);
    vars.own = &out->own;
    chat_give_variables(chat, request, messages, &vars);
    rc = jinja_render(template, &vars, arena, &out->text, reason, sizeof reason);
    /* An exception of the template (ERR_INVALID) is kept apart from other errors, because a second
     * attempt with other messages may avoid it. */
    out->raised = rc == ERR_INVALID;
    if (rc != ERR_OK)
        (void)snprintf(out->why, sizeof out->why, "chat template%s%s",
                       strncmp(reason, "line ", 5) == 0 ? ", " : ": ", reason);
    return rc;
}

/* The length of text without white space at its end. */
static size_t chat_strip_end(const char *text, size_t len)
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

/* The offset of the last occurrence of needle; len when there is none. */
static size_t chat_find_last(const char *text, size_t len, const char *needle, size_t n)
{
    for (size_t at = len >= n ? len - n + 1 : 0; at > 0; at--)
        if (memcmp(text + at - 1, needle, n) == 0)
            return at - 1;
    return len;
}

/* End the prompt where the last message's content ends. If the space at the end of the mark is
 * gone, the template strips content; white space before the mark is then removed as well. */
static int chat_cut_at_mark(struct chat_prompt *out)
{
    size_t n = sizeof CHAT_MARK - 1;
    size_t len = out->text.len;
    size_t at = chat_find_last(out->text.bytes, len, CHAT_MARK, n - 1);

    if (len == 0 || at == len) {
        (void)snprintf(out->why, sizeof out->why,
                       "continue_final_message: the chat template omits or changes the content of "
                       "the last message");
        return ERR_INVALID;
    }
    /* The mark ends with a space to detect this. */
    if (len - at < n || out->text.bytes[at + n - 1] != CHAT_MARK[n - 1])
        at = chat_strip_end(out->text.bytes, at);
    out->text.len = at;
    out->text.bytes[at] = '\0';
    spans_cut(&out->own, at);
    return ERR_OK;
}

/* Change the messages to one form and render them. */
static int chat_render_as(const struct chat *chat, const struct chat_template *template,
                          const struct chat_request *request, struct chat_shaping *shaping,
                          struct chat_prompt *out)
{
    struct json messages;
    int rc;

    out->raised = false;
    rc = chat_shape(shaping, request->messages, &messages);

    if (rc == ERR_OK)
        rc = chat_render_shaped(chat, template->jinja, request, &messages, shaping->arena, out);
    return rc;
}

static bool chat_has_member(const struct json *messages, const char *name)
{
    for (uint32_t i = 0; i < messages->n; i++)
        if (json_get(&messages->items[i], name) != NULL)
            return true;
    return false;
}

/* Render again after a template raised: first with the arguments of calls in the other form, then
 * with reasoning only under the client's own name. */
static int chat_render_again(const struct chat *chat, const struct chat_template *template,
                             const struct chat_request *request, struct chat_shaping *shaping,
                             struct chat_prompt *out)
{
    const struct json *made = request->messages;
    char first[sizeof out->why];
    int rc = ERR_INVALID;

    memcpy(first, out->why, sizeof first);
    if (chat_has_member(made, "tool_calls")) {
        shaping->text_arguments = !shaping->text_arguments;
        rc = chat_render_as(chat, template, request, shaping, out);
        shaping->text_arguments = !shaping->text_arguments;
    }
    if (rc != ERR_OK &&
        (chat_has_member(made, "reasoning") || chat_has_member(made, "reasoning_content") ||
         chat_has_member(made, "thinking"))) {
        shaping->names_reasoning = false;
        rc = chat_render_as(chat, template, request, shaping, out);
    }
    if (rc != ERR_OK)
        memcpy(out->why, first, sizeof first); /* report the first reason */
    return rc;
}

static const struct chat_template *chat_template_for(const struct chat *chat, bool tools)
{
    if (tools && chat->tool_use.jinja != NULL)
        return &chat->tool_use;
    return &chat->preset;
}

bool chat_knows_tools(const struct chat *chat)
{
    return chat_template_for(chat, true)->habits.tools;
}

int chat_render(const struct chat *chat, const struct chat_request *request, struct arena *arena,
                struct chat_prompt *out)
{
    const struct chat_template *template = chat_template_for(chat, request->tools != NULL);
    struct chat_shaping shaping = {.arena = arena,
                                   .habits = &template->habits,
                                   .text_arguments = template->habits.text_arguments,
                                   .names_reasoning = true,
                                   .continues = request->continue_final_message,
                                   .why = out->why,
                                   .why_cap = sizeof out->why};
    int rc;

    must(arena != NULL);
    if (template->jinja == NULL) {
        (void)snprintf(out->why, sizeof out->why, "the model has no chat template");
        return ERR_UNSUPPORTED;
    }
    /* The first attempt shapes the messages by the habits. If the template raises, there is a
     * second one with the arguments of calls and the reasoning in another form. */
    rc = chat_render_as(chat, template, request, &shaping, out);
    if (rc == ERR_INVALID && out->raised)
        rc = chat_render_again(chat, template, request, &shaping, out);
    if (rc == ERR_OK && request->continue_final_message)
        rc = chat_cut_at_mark(out);
    return rc;
}
