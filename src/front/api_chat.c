/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/chat/completions: messages -> the model's template -> tokens -> one generation. */
#include <string.h>

#include "front/api.h"
#include "front/lax.h"

/* Content is text or parts; only an assistant, whose tool calls may be all it said, can do
 * without. What else a message must have is the template's to say. */
static const char *api_check_messages(const struct json *messages)
{
    for (uint32_t i = 0; i < messages->n; i++) {
        const struct json *m = &messages->items[i];
        const struct json *content = json_get(m, "content");

        if (m->kind != JSON_OBJECT || json_get_kind(m, "role", JSON_TEXT) == NULL)
            return "each message must be an object with a role";
        if (content == NULL || content->kind == JSON_NULL) {
            if (!json_is_text(json_get(m, "role"), "assistant"))
                return "a message has no content";
        } else if (content->kind != JSON_TEXT && content->kind != JSON_LIST) {
            return "the content of a message must be a string or a list of parts";
        }
        /* A template may pass over what it does not know: so an image would go unseen. */
        for (uint32_t k = 0; content != NULL && content->kind == JSON_LIST && k < content->n; k++) {
            if (chat_part_text(&content->items[k]) == NULL)
                return "messages: this model reads text parts only";
        }
    }
    return NULL;
}

/* The template's variables, in *made: those of the client, what reasoning_effort stands for as vLLM
 * says it, and the operator's, in this order of precedence. NULL: there are none. */
static const struct json *api_kwargs(const struct front *f, struct exchange *x,
                                     const struct json *body, struct json *made)
{
    const struct json *given = json_get_kind(body, "chat_template_kwargs", JSON_OBJECT);
    const struct json *effort = json_get_kind(body, "reasoning_effort", JSON_TEXT);
    struct json_made kwargs = {.arena = &x->arena};
    bool on = effort == NULL || !json_is_text(effort, "none");

    if (effort == NULL && f->chat_kwargs == NULL)
        return given;
    for (uint32_t i = 0; given != NULL && i < given->n; i++)
        json_put(&kwargs, given->items[i].key, &given->items[i]);
    if (effort != NULL && json_get(given, "reasoning_effort") == NULL)
        json_put(&kwargs, "reasoning_effort", effort);
    if (effort != NULL && json_get(given, "enable_thinking") == NULL)
        json_put_flag(&kwargs, "enable_thinking", on);
    if (!on && json_get(given, "thinking") == NULL) /* as DeepSeek's templates call it */
        json_put_flag(&kwargs, "thinking", false);
    for (uint32_t i = 0; f->chat_kwargs != NULL && i < f->chat_kwargs->n; i++) {
        const struct json *preset = &f->chat_kwargs->items[i];
        bool said = json_get(given, preset->key) != NULL ||
                    (effort != NULL && (strcmp(preset->key, "reasoning_effort") == 0 ||
                                        strcmp(preset->key, "enable_thinking") == 0 ||
                                        (!on && strcmp(preset->key, "thinking") == 0)));

        if (!said)
            json_put(&kwargs, preset->key, preset);
    }
    *made = json_made(&kwargs, JSON_OBJECT);
    return kwargs.failed ? NULL : made;
}

/* Are control tokens that a request writes text, or tokens? The operator says, or lets clients say.
 * False after an error answer. */
static bool api_choose_split(struct front *f, struct exchange *x, const struct json *body)
{
    const struct json *wish = json_get_kind(body, "split_special_tokens", JSON_BOOL);

    x->splits_special = f->settings.split_special_tokens != 0;
    if (wish == NULL || wish->flag == x->splits_special)
        return true;
    if (!wish->flag && f->settings.client_special_tokens == 0) {
        exchange_reply_error(x, ERR_UNSUPPORTED,
                             "'split_special_tokens' must not be false: this server takes special "
                             "tokens in a request's values as text (setting client_special_tokens)",
                             "split_special_tokens", 0);
        return false;
    }
    x->splits_special = wish->flag;
    return true;
}

bool api_render_chat(struct front *f, struct exchange *x, const struct json *body,
                     struct chat_prompt *out)
{
    const struct json *messages = json_get(body, "messages");
    struct json kwargs;
    struct chat_request r = {
        .messages = messages,
        .tools = json_get_kind(body, "tools", JSON_LIST),
        .documents = json_get_kind(body, "documents", JSON_LIST),
        .kwargs = api_kwargs(f, x, body, &kwargs),
        .add_generation_prompt = lax_get_flag(body, "add_generation_prompt", true),
        .continue_final_message = lax_get_flag(body, "continue_final_message", false),
    };
    const char *wrong;
    int rc;

    if (messages == NULL || messages->kind != JSON_LIST || messages->n == 0) {
        exchange_reply_error(x, ERR_INVALID,
                             messages == NULL ? "'messages' is required"
                                              : "'messages' must be a list with a message",
                             "messages", 0);
        return false;
    }
    wrong = api_check_messages(messages);
    if (wrong != NULL) {
        exchange_reply_error(x, ERR_INVALID, wrong, "messages", 0);
        return false;
    }
    if (r.continue_final_message && lax_get_flag(body, "add_generation_prompt", false)) {
        exchange_reply_error(x, ERR_INVALID,
                             "'continue_final_message' and 'add_generation_prompt' exclude each "
                             "other",
                             "continue_final_message", 0);
        return false;
    }
    if (!api_choose_split(f, x, body))
        return false;
    if (r.continue_final_message)
        r.add_generation_prompt = false;
    if (r.tools != NULL && r.tools->n == 0)
        r.tools = NULL;
    if (r.tools != NULL && !chat_knows_tools(f->chat))
        x->notice = "tools: the model's chat template knows none, so the prompt does not name them";
    rc = chat_render(f->chat, &r, &x->arena, out);
    if (rc == ERR_OK)
        return true;
    exchange_reply_error(x, rc, out->why[0] == '\0' ? NULL : out->why, "messages", 0);
    return false;
}

/* A prompt may end inside the reasoning: so do templates of models that always reason. Or behind
 * one that is empty: so they do where it is switched off. */
enum form_start gen_begin(const struct front *f, struct exchange *x, const struct buf *prompt)
{
    enum reply_reasoning reasoning = f->reply_reasoning;
    bool inside = prompt->len > 0 && reply_is_inside(reasoning, prompt->bytes, prompt->len);
    bool over = prompt->len > 0 && reply_is_over(reasoning, prompt->bytes, prompt->len);

    for (int i = 0; i < x->n_gens; i++) {
        if (x->gens[i].speech != NULL)
            x->gens[i].speech->reply.o.begins_inside = inside;
    }
    if (reasoning == REPLY_NO_REASONING || over)
        return FORM_NO_REASONING;
    return inside ? FORM_REASONS : FORM_MAY_REASON;
}

/* What an answer with echo begins with: the last message, when it is of the answer's role. */
static const struct json *api_echoed(const struct json *messages)
{
    const struct json *last = &messages->items[messages->n - 1];
    const struct json *content = json_get(last, "content");

    if (!json_is_text(json_get(last, "role"), "assistant") || content == NULL)
        return NULL;
    return content->kind == JSON_NULL ? NULL : content;
}

void api_chat(struct front *f, struct exchange *x, const struct json *body)
{
    struct chat_prompt prompt = {0};
    char why[160] = "";
    int rc;

    if (!gen_prepare(f, x, body, EXCHANGE_CHAT, 1))
        return;
    if (api_render_chat(f, x, body, &prompt)) {
        x->echoed = x->echo ? api_echoed(json_get(body, "messages")) : NULL;
        rc = gen_add_prompt(f, &x->gens[0], &prompt,
                            lax_get_flag(body, "add_special_tokens", false), why, sizeof why);
        if (rc != ERR_OK)
            exchange_reply_error(x, rc, why[0] == '\0' ? NULL : why, "messages", 0);
        else if (gen_hold(f, x, gen_begin(f, x, &prompt.text)))
            (void)gen_finish_prompts(f, x, "messages"); /* has answered when it is false */
    }
    chat_prompt_fini(&prompt);
}
