/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/chat/completions: the messages, rendered by the model's template and encoded, become the
 * prompt; and /v1/chat/completions/batch, which does that for several conversations. */
#include <stdio.h>
#include <string.h>

#include "front/api/api.h"
#include "front/request/lax.h"

/* Check the messages as far as every template needs it: content is a text or a list of parts; only
 * an assistant's may be missing, when it has tool calls. A template checks the rest itself. Returns
 * NULL, or a sentence. */
static const char *api_check_messages(const struct json *messages)
{
    for (uint32_t i = 0; i < messages->n; i++) {
        const struct json *member = &messages->items[i];
        const struct json *content = json_get(member, "content");

        if (member->kind != JSON_OBJECT || json_get_kind(member, "role", JSON_TEXT) == NULL)
            return "each message must be an object with a role";
        /* An assistant's message of calls alone has no content. */
        if (content == NULL || content->kind == JSON_NULL) {
            if (!json_is_text(json_get(member, "role"), "assistant"))
                return "a message has no content";
        } else if (content->kind != JSON_TEXT && content->kind != JSON_LIST) {
            return "the content of a message must be a string or a list of parts";
        }
        /* Templates ignore parts that they do not know, so an image would silently have no
         * effect. */
        for (uint32_t k = 0; content != NULL && content->kind == JSON_LIST && k < content->n; k++) {
            if (chat_part_text(&content->items[k]) == NULL)
                return "messages: this model reads text parts only";
        }
    }
    return NULL;
}

/* The template's variables, in *made. In order of precedence: the client's chat_template_kwargs,
 * those that vLLM derives from reasoning_effort, and the operator's default_chat_template_kwargs.
 * NULL: there are none. */
static const struct json *api_kwargs(struct exchange *x, const struct json *body, struct json *made)
{
    const struct json *given = json_get_kind(body, "chat_template_kwargs", JSON_OBJECT);
    const struct json *effort = json_get_kind(body, "reasoning_effort", JSON_TEXT);
    struct json_made kwargs = {.arena = &x->arena};
    bool on = effort == NULL || !json_is_text(effort, "none");

    if (effort == NULL && x->served->chat_kwargs == NULL)
        return given;
    /* The client's own come first; each later step adds only missing ones. */
    for (uint32_t i = 0; given != NULL && i < given->n; i++)
        json_put(&kwargs, given->items[i].key, &given->items[i]);
    if (effort != NULL && json_get(given, "reasoning_effort") == NULL)
        json_put(&kwargs, "reasoning_effort", effort);
    if (effort != NULL && json_get(given, "enable_thinking") == NULL)
        json_put_flag(&kwargs, "enable_thinking", on);
    if (!on && json_get(given, "thinking") == NULL) /* the name in DeepSeek's templates */
        json_put_flag(&kwargs, "thinking", false);
    for (uint32_t i = 0; x->served->chat_kwargs != NULL && i < x->served->chat_kwargs->n; i++) {
        const struct json *fallback = &x->served->chat_kwargs->items[i];
        bool said = json_get(given, fallback->key) != NULL ||
                    (effort != NULL && (strcmp(fallback->key, "reasoning_effort") == 0 ||
                                        strcmp(fallback->key, "enable_thinking") == 0 ||
                                        (!on && strcmp(fallback->key, "thinking") == 0)));

        if (!said)
            json_put(&kwargs, fallback->key, fallback);
    }
    *made = json_made(&kwargs, JSON_OBJECT);
    if (kwargs.failed)
        return NULL;
    return made;
}

/* Decide whether special tokens inside a chat's values are encoded as text. The operator decides,
 * or lets clients decide. False after an error answer. */
static bool api_choose_split(struct exchange *x, const struct json *body)
{
    const struct json *wish = json_get_kind(body, "split_special_tokens", JSON_BOOL);

    x->splits_special = x->served->settings.split_special_tokens != 0;
    if (wish == NULL || wish->flag == x->splits_special)
        return true;
    if (!wish->flag && x->served->settings.client_special_tokens == 0) {
        exchange_reply_error(
            x, ERR_UNSUPPORTED,
            "'split_special_tokens' must not be false: this server encodes special "
            "tokens in a request's values as text (setting client_special_tokens)",
            "split_special_tokens", 0);
        return false;
    }
    x->splits_special = wish->flag;
    return true;
}

/* Render the messages. The checks come in the order of their cost, and the first error is the
 * answer. */
bool api_render_chat(struct exchange *x, const struct json *body, struct chat_prompt *out)
{
    const struct json *messages = json_get(body, "messages");
    struct json kwargs;
    struct chat_request request = {
        .messages = messages,
        .tools = json_get_kind(body, "tools", JSON_LIST),
        .documents = json_get_kind(body, "documents", JSON_LIST),
        .kwargs = api_kwargs(x, body, &kwargs),
        .add_generation_prompt = lax_get_flag(body, "add_generation_prompt", true),
        .continue_final_message = lax_get_flag(body, "continue_final_message", false),
    };
    const char *wrong;
    int rc;

    if (messages == NULL || messages->kind != JSON_LIST || messages->n == 0) {
        exchange_reply_error(x, ERR_INVALID,
                             messages == NULL
                                 ? "'messages' is required"
                                 : "'messages' must be a list with at least one message",
                             "messages", 0);
        return false;
    }
    wrong = api_check_messages(messages);
    if (wrong != NULL) {
        exchange_reply_error(x, ERR_INVALID, wrong, "messages", 0);
        return false;
    }
    if (request.continue_final_message && lax_get_flag(body, "add_generation_prompt", false)) {
        exchange_reply_error(x, ERR_INVALID,
                             "'continue_final_message' and 'add_generation_prompt' exclude each "
                             "other",
                             "continue_final_message", 0);
        return false;
    }
    if (!api_choose_split(x, body))
        return false;
    /* A message that is continued has no new begin after it. */
    if (request.continue_final_message)
        request.add_generation_prompt = false;
    /* Templates ask whether tools exist, and an empty list exists. */
    if (request.tools != NULL && request.tools->n == 0)
        request.tools = NULL;
    if (request.tools != NULL && !chat_knows_tools(x->served->chat))
        x->notice =
            "tools: the model's chat template does not support them, so they are not in the "
            "prompt";
    rc = chat_render(x->served->chat, &request, &x->arena, out);
    if (rc == ERR_OK)
        return true;
    exchange_reply_error(x, rc, out->why, "messages", 0);
    return false;
}

/* Set the bounds of a reasoning in the request to the engine: its maximum number of tokens, and the
 * tags. inside: the prompt ends inside a reasoning, as templates of models that always reason
 * do. */
static int gen_bound_reasoning(const struct served *m, struct gen *g, int64_t most, bool inside)
{
    const char *open = reply_reason_open(m->reply_reasoning);
    const char *close = reply_reason_close(m->reply_reasoning);
    int32_t id = tokenizer_find(m->tokenizer, close, strlen(close));
    struct wire_request *request = &g->request;
    struct token_list ids = {0};
    int rc;

    if (id >= 0)
        rc = token_list_add(&ids, id);
    else
        /* A tag that is not one token is forced token by token. */
        rc = tokenizer_encode(m->tokenizer, close, strlen(close), false, &ids);

    if (rc == ERR_OK && (ids.len == 0 || ids.len > WIRE_THINK_IDS))
        rc = ERR_UNSUPPORTED;
    if (rc == ERR_OK) {
        request->generate.think_max = 1 + (uint32_t)most;
        request->generate.n_think_ids = (uint32_t)ids.len;
        memcpy(request->generate.think_ids, ids.ids, ids.len * sizeof *ids.ids);
        (void)snprintf(request->generate.think_open, sizeof request->generate.think_open, "%s",
                       open);
        (void)snprintf(request->generate.think_close, sizeof request->generate.think_close, "%s",
                       close);
        request->flags |= inside ? WIRE_THINKS : 0;
    }
    token_list_fini(&ids);
    return rc;
}

/* Limit the reasoning of n generations. The engine counts its tokens, and then forces the tag that
 * closes it. */
bool gen_hold_reasoning(struct exchange *x, struct gen *gens, int n, enum form_start start)
{
    int rc = ERR_OK;

    if (x->think_max < 0)
        return true;
    if (x->served->reply_reasoning == REPLY_NO_REASONING) {
        exchange_reply_error(x, ERR_UNSUPPORTED,
                             "'thinking_token_budget' needs a model whose reasoning has tags: this "
                             "chat template has none (setting reasoning_parser)",
                             "thinking_token_budget", 0);
        return false;
    }
    for (int i = 0; i < n && start != FORM_NO_REASONING && rc == ERR_OK; i++)
        rc = gen_bound_reasoning(x->served, &gens[i], x->think_max, start == FORM_REASONS);
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, NULL, "thinking_token_budget", 0);
    return rc == ERR_OK;
}

/* Where do the replies to this prompt begin? Templates may end a prompt with the opening tag of a
 * reasoning, or with an empty reasoning that switches it off. */
enum form_start gen_begin(struct gen *gens, int n, const struct buf *prompt)
{
    enum reply_reasoning reasoning = gens[0].exchange->served->reply_reasoning;
    bool inside = prompt->len > 0 && reply_is_inside(reasoning, prompt->bytes, prompt->len);
    bool over = prompt->len > 0 && reply_is_over(reasoning, prompt->bytes, prompt->len);

    for (int i = 0; i < n; i++) {
        if (gens[i].speech != NULL)
            gens[i].speech->reply.o.begins_inside = inside;
    }
    if (reasoning == REPLY_NO_REASONING || over)
        return FORM_NO_REASONING;
    if (inside)
        return FORM_REASONS;
    return FORM_MAY_REASON;
}

/* The text that an answer with echo begins with: the last message, if it is the assistant's. */
static const struct json *api_echoed(const struct json *messages)
{
    const struct json *last = &messages->items[messages->n - 1];
    const struct json *content = json_get(last, "content");

    if (!json_is_text(json_get(last, "role"), "assistant") || content == NULL)
        return NULL;
    if (content->kind == JSON_NULL)
        return NULL;
    return content;
}

/* Render one conversation into the prompt of n generations. False after an error answer. */
static bool api_add_chat(struct exchange *x, struct gen *gens, int n, const struct json *body,
                         enum form_start *start)
{
    struct chat_prompt prompt = {0};
    const struct json *echoed;
    char why[160] = "";
    int rc = ERR_OK;
    bool fine = api_render_chat(x, body, &prompt);

    if (fine) {
        if (x->echo)
            echoed = api_echoed(json_get(body, "messages"));
        else
            echoed = NULL;
        for (int i = 0; i < n; i++)
            gens[i].echoed = echoed;
        /* Only the first choice gets the tokens; gen_finish_prompts() copies them. */
        rc = gen_add_prompt(&gens[0], &prompt, lax_get_flag(body, "add_special_tokens", false), why,
                            sizeof why);
        *start = gen_begin(gens, n, &prompt.text);
    }
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, why, "messages", 0);
    chat_prompt_fini(&prompt);
    return fine && rc == ERR_OK && gen_hold_reasoning(x, gens, n, *start);
}

/* One conversation: all choices have the same prompt. */
void api_chat(struct front *f, struct exchange *x, const struct json *body)
{
    enum form_start start;

    if (gen_prepare(f, x, body, EXCHANGE_CHAT, 1) &&
        api_add_chat(x, x->gens, x->n_gens, body, &start) && gen_hold(x, start))
        (void)gen_finish_prompts(x, "messages"); /* false: it has answered */
}

/* --- several conversations ------------------------------------------------------------------ */

/* Check the fields that a batch cannot have. Returns NULL, or a sentence and the field's name. */
static const char *api_check_batch(const struct front *f, const struct json *body,
                                   const char **param)
{
    const struct json *messages = json_get(body, "messages");
    const struct json *tools = json_get_kind(body, "tools", JSON_LIST);
    const struct json *told = json_get(body, "prompt_logprobs");

    *param = "messages";
    if (messages == NULL || messages->kind != JSON_LIST || messages->n == 0 ||
        messages->n > (uint32_t)f->settings.max_choices)
        return "'messages' must be a list of conversations, each a list of messages, and not "
               "longer than the setting max_choices";
    for (uint32_t i = 0; i < messages->n; i++) {
        if (messages->items[i].kind != JSON_LIST)
            return "'messages' must be a list of conversations, each a list of messages";
    }
    *param = "stream";
    if (lax_get_flag(body, "stream", false))
        return "'stream' is not supported in a batch of conversations";
    *param = "tools";
    if (tools != NULL && tools->n > 0)
        return "'tools' are not supported in a batch of conversations";
    *param = "prompt_logprobs";
    if (told != NULL && told->kind != JSON_NULL)
        return "'prompt_logprobs' is not supported in a batch of conversations";
    return NULL;
}

/* The body with only conversation i. NULL: no memory. */
static const struct json *api_batch_one(struct exchange *x, const struct json *body, uint32_t i)
{
    struct json_made made = {.arena = &x->arena};
    struct json *out = arena_alloc(&x->arena, sizeof *out);

    for (uint32_t k = 0; k < body->n; k++) {
        if (strcmp(body->items[k].key, "messages") != 0)
            json_put(&made, body->items[k].key, &body->items[k]);
    }
    json_put(&made, "messages", &json_get(body, "messages")->items[i]);
    if (out == NULL || made.failed)
        return NULL;
    *out = json_made(&made, JSON_OBJECT);
    return out;
}

/* Make a prompt of each conversation. The form is compiled once for all of them, and its automaton
 * depends on where the reply begins, so all replies must begin alike. False after an error
 * answer. */
static bool api_add_batch(struct exchange *x, const struct json *body, uint32_t n,
                          enum form_start *start)
{
    enum form_start one;

    for (uint32_t i = 0; i < n; i++) {
        const struct json *single = api_batch_one(x, body, i);

        if (single == NULL) {
            exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
            return false;
        }
        if (!api_add_chat(x, &x->gens[i], 1, single, &one))
            return false;
        if (i > 0 && one != *start && form_binds(x->form)) {
            exchange_reply_error(
                x, ERR_UNSUPPORTED,
                "one output constraint applies to all conversations of a batch, so "
                "all must end before, inside, or after their reasoning",
                "messages", 0);
            return false;
        }
        *start = one;
    }
    return true;
}

/* Several conversations: one choice each. Their fields are read once, with the first conversation,
 * since all others are equal in them. */
void api_chat_batch(struct front *f, struct exchange *x, const struct json *body)
{
    const char *param;
    const char *wrong = api_check_batch(f, body, &param);
    const struct json *messages = json_get(body, "messages");
    const struct json *first = NULL;
    enum form_start start = FORM_NO_REASONING;

    if (wrong == NULL)
        first = api_batch_one(x, body, 0);
    if (first == NULL) {
        exchange_reply_error(x, wrong == NULL ? ERR_NO_MEMORY : ERR_INVALID, wrong, param, 0);
        return;
    }
    if (!gen_prepare(f, x, first, EXCHANGE_CHAT, (int)messages->n))
        return;
    if (x->n != 1) {
        exchange_reply_error(x, ERR_INVALID, "'n' must be 1 in a batch of conversations", "n", 0);
        return;
    }
    if (api_add_batch(x, body, messages->n, &start) && gen_hold(x, start))
        (void)gen_finish_prompts(x, "messages"); /* false: it has answered */
}
