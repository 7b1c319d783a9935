/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/chat/completions/derender and /v1/completions/derender: make of tokens that were
 * generated elsewhere the answer that this server would have given.
 *
 * The ids take the path of an engine's tokens (streamer_lane.c): detokenizer, stop strings, reply
 * parser. Reasoning and calls are parsed only if the chat's request was sent along, as in vLLM,
 * because otherwise the beginning of the reply is unknown. derender_event.c handles streams.
 *
 *   chat         generate_response: one response, with its choices
 *   completion   generate_responses: a list, one response for each prompt */
#include <stdio.h>
#include <string.h>

#include "front/answer/answer.h"
#include "front/answer/logprobs.h"
#include "front/api/api.h"
#include "front/api/derender.h"
#include "front/request/fields.h"
#include "front/request/lax.h"

/* Fields that do not affect the text, or that the tokens have settled already: they are left
 * out. */
static bool derender_passes(const char *name)
{
    static const char *const names[] = {"model",
                                        "stream",
                                        "stream_options",
                                        "n",
                                        "best_of",
                                        "logprobs",
                                        "top_logprobs",
                                        "prompt_logprobs",
                                        "echo",
                                        "prompt",
                                        "request_id",
                                        "max_tokens",
                                        "min_tokens",
                                        "priority",
                                        "logprob_token_ids",
                                        "use_beam_search",
                                        "max_completion_tokens"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0)
            return false;
    }
    return true;
}

/* The body for gen_prepare(): the fields of the original request that affect the text, with the
 * name of the response. */
bool derender_fields(struct exchange *x, const struct json *body, const struct json *request,
                     const struct json *response, struct json *out)
{
    const struct json *model = json_get(body, "model");
    const struct json *name = json_get(response, "request_id");
    struct json_made made = {.arena = &x->arena};

    if (model != NULL)
        json_put(&made, "model", model);
    if (name != NULL)
        json_put(&made, "request_id", name);
    for (uint32_t i = 0; request != NULL && i < request->n; i++) {
        if (derender_passes(request->items[i].key))
            json_put(&made, request->items[i].key, &request->items[i]);
    }
    *out = json_made(&made, JSON_OBJECT);
    return !made.failed;
}

/* --- log probabilities -------------------------------------------------------------------- */

/* Read {"token": "token_id:7", "logprob": -0.5}; false when it has another form. begins: it is a
 * chosen token, not an alternative. */
static bool derender_told(struct gen *g, const struct json *v, bool begins)
{
    const struct json *token = json_get_kind(v, "token", JSON_TEXT);
    const struct json *value = json_get(v, "logprob");
    struct logprob entry = {.begins = begins};
    int end = 0;

    if (token == NULL || !json_is_number(value) ||
        sscanf(token->text, "token_id:%9d%n", &entry.id, &end) != 1 || token->text[end] != '\0' ||
        entry.id < 0)
        return false;
    entry.logprob = (float)json_real(value);
    buf_add(&g->told, &entry, sizeof entry);
    return true;
}

/* Read the log probabilities of a choice into the form in which the engine's come. False: they have
 * another form. */
bool derender_logprobs(struct gen *g, const struct json *logprobs)
{
    const struct json *content = json_get_kind(logprobs, "content", JSON_LIST);

    if (logprobs == NULL || logprobs->kind == JSON_NULL)
        return true;
    if (content == NULL)
        return false;
    g->request.flags |= WIRE_LOGPROBS;
    for (uint32_t i = 0; i < content->n; i++) {
        const struct json *tops = json_get_kind(&content->items[i], "top_logprobs", JSON_LIST);

        /* The chosen token first, then its alternatives: the order of the engine's records. */
        if (!derender_told(g, &content->items[i], true))
            return false;
        for (uint32_t k = 0; tops != NULL && k < tops->n; k++) {
            if (!derender_told(g, &tops->items[k], false))
                return false;
        }
    }
    logprobs_token(g);
    return true;
}

/* --- choices ------------------------------------------------------------------------------ */

/* Is token i the one that ended the text? It is not part of the text: a special token at the end,
 * unless finish_reason is "length". */
static bool derender_ends(const struct gen *g, const struct json *choice, size_t i)
{
    return i + 1 == g->tokens.len && !g->detok.include_stop &&
           !json_is_text(json_get(choice, "finish_reason"), "length") &&
           tokenizer_is_skipped(g->exchange->served->tokenizer, g->tokens.ids[i]);
}

/* Turn one choice's ids into its text. False after an error answer. */
static bool derender_choice(struct exchange *x, struct gen *g, const struct json *choice)
{
    const struct json *ids = json_get_kind(choice, "token_ids", JSON_LIST);
    struct link_state engine;
    char why[160] = "";
    int rc = ERR_INVALID;

    engines_read_state(&x->served->engines, &engine, 0);
    if (ids == NULL || ids->n == 0)
        (void)snprintf(why, sizeof why, "choice %d must have a list of token_ids", g->index);
    else if (engine.max_model_len > 0 && ids->n > engine.max_model_len)
        (void)snprintf(why, sizeof why, "choice %d has more token_ids than a context's %u",
                       g->index, engine.max_model_len);
    else if (!derender_logprobs(g, json_get(choice, "logprobs")))
        (void)snprintf(
            why, sizeof why,
            "the logprobs of choice %d must have the form of /inference/v1/generate, with "
            "tokens as token_id:N",
            g->index);
    else
        rc = gen_add_ids(g, ids, why, sizeof why);
    if (rc != ERR_OK) {
        exchange_reply_error(x, rc, why, "choices", 0);
        return false;
    }
    /* A stop string may end the text before the last token. */
    for (size_t i = 0; i < g->tokens.len && g->detok.status == DETOK_GOING; i++) {
        if (!derender_ends(g, choice, i))
            (void)detok_push(&g->detok, g->tokens.ids[i], &g->text);
    }
    (void)detok_finish(&g->detok, &g->text);
    if (json_is_text(json_get(choice, "finish_reason"), "length"))
        g->finish = GEN_LENGTH;
    else
        g->finish = GEN_STOP;
    return true;
}

/* Without the chat's request, the text is not parsed. */
static void derender_mute(struct exchange *x)
{
    for (int i = 0; i < x->n_gens; i++) {
        if (x->gens[i].speech != NULL)
            reply_fini(&x->gens[i].speech->reply);
        x->gens[i].speech = NULL;
        x->gens[i].detok.skip_special = true;
    }
}

/* Find out where the reply began, by rendering the chat's prompt. False after an error answer. */
static bool derender_begin(struct exchange *x, const struct json *request)
{
    struct chat_prompt prompt = {0};
    bool fine = api_render_chat(x, request, &prompt);

    if (fine)
        (void)gen_begin(x->gens, x->n_gens, &prompt.text);
    chat_prompt_fini(&prompt);
    return fine;
}

/* Process the choices of all responses, in order, and write the answer. */
static void derender_answer(struct exchange *x, struct brought *brought,
                            const struct json *const *responses, uint32_t n)
{
    int g = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct json *choices = json_get(responses[i], "choices");
        const struct json *told = json_get_kind(responses[i], "prompt_logprobs", JSON_LIST);
        const struct json *kv = json_get_kind(responses[i], "kv_transfer_params", JSON_OBJECT);

        if (brought->kv_transfer == NULL)
            brought->kv_transfer = kv;
        for (uint32_t k = 0; k < choices->n; k++, g++) {
            brought->told[g] = told;
            if (!derender_choice(x, &x->gens[g], &choices->items[k]))
                return;
        }
    }
    for (g = 0; g < x->n_gens; g++)
        answer_end(x, &x->gens[g]);
}

/* The number of choices; 0 when a response has none or there are too many. */
static uint32_t derender_count(const struct json *const *responses, uint32_t n, uint32_t most)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct json *choices = json_get_kind(responses[i], "choices", JSON_LIST);

        /* Checked before adding, so that the sum cannot overflow. */
        if (choices == NULL || choices->n == 0 || choices->n > most)
            return 0;
        sum += choices->n;
        if (sum > most)
            return 0;
    }
    return sum;
}

/* Everything before the choices: fields of the request, if it was sent, and the generations. False
 * after an error answer. */
static bool derender_prepare(struct front *f, struct exchange *x, const struct json *body,
                             const struct json *request, const struct json *const *responses,
                             uint32_t n)
{
    bool chat = json_get(body, "generate_response") != NULL;
    uint32_t n_choices = derender_count(responses, n, (uint32_t)f->settings.max_choices);
    char why[128];
    struct json fields;

    if (n_choices == 0) {
        (void)snprintf(why, sizeof why, "each response must have 'choices', 1 to %d in all",
                       (int)f->settings.max_choices);
        exchange_reply_error(x, ERR_INVALID, why, "choices", 0);
        return false;
    }
    if (!derender_fields(x, body, request, responses[0], &fields)) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return false;
    }
    if (!gen_prepare(f, x, &fields, chat ? EXCHANGE_CHAT : EXCHANGE_COMPLETION, (int)n_choices))
        return false;
    gen_keep_name(x, json_get_kind(responses[0], "request_id", JSON_TEXT));
    if (chat && request == NULL)
        derender_mute(x);
    return !chat || request == NULL || derender_begin(x, request);
}

/* prompt_tokens: one number, or a list with one per response. False when it is neither. */
static bool derender_prompt_tokens(const struct json *v, uint32_t n, uint64_t *sum)
{
    const struct json *items = v;
    uint32_t n_items = 1;

    *sum = 0;
    if (v == NULL || v->kind == JSON_NULL)
        return true;
    if (v->kind == JSON_LIST) {
        items = v->items;
        n_items = v->n;
    }
    for (uint32_t i = 0; i < n_items; i++) {
        if (items[i].kind != JSON_INT || items[i].whole < 0 || items[i].whole > INT32_MAX)
            return false;
        *sum += (uint64_t)items[i].whole;
    }
    return n_items == n;
}

/* A chat has one response of one or more choices; a completion has a list, with one response for
 * each prompt. */
void api_derender(struct front *f, struct exchange *x, const struct json *body)
{
    const struct json *one = json_get_kind(body, "generate_response", JSON_OBJECT);
    const struct json *list = json_get_kind(body, "generate_responses", JSON_LIST);
    const struct json *request =
        json_get_kind(body, one != NULL ? "chat_request" : "completion_request", JSON_OBJECT);
    uint32_t n = 0;
    const struct json **responses;
    struct brought *brought = arena_zalloc(&x->arena, sizeof *brought);

    if (lax_get_flag(body, "stream", false)) {
        derender_event(f, x, body);
        return;
    }
    if (one != NULL)
        n = 1;
    else if (list != NULL)
        n = list->n;
    responses = arena_alloc(&x->arena, sizeof *responses * (n + 1));
    if (responses == NULL || brought == NULL) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        responses[i] = one != NULL ? one : &list->items[i];
    if (!derender_prompt_tokens(json_get(body, "prompt_tokens"), n, &brought->prompt_tokens)) {
        exchange_reply_error(x, ERR_INVALID,
                             "'prompt_tokens' must be a number, or a list with one per response",
                             "prompt_tokens", 0);
        return;
    }
    /* For each choice, the log probabilities of its response's prompt. */
    brought->told =
        arena_zalloc(&x->arena, sizeof *brought->told * (size_t)f->settings.max_choices);
    if (brought->told == NULL) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return;
    }
    x->brought = brought;
    if (n == 0)
        exchange_reply_error(x, ERR_INVALID,
                             "'generate_response' must be an object, or 'generate_responses' a "
                             "list of them",
                             "generate_response", 0);
    else if (derender_prepare(f, x, body, request, responses, n))
        derender_answer(x, brought, responses, n);
}
