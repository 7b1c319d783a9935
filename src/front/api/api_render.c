/* SPDX-License-Identifier: Apache-2.0
 *
 * Token ids in, token ids out, in vLLM's JSON shapes.
 *
 *   render     a chat or completion becomes a GenerateRequest: token_ids and sampling_params. quire
 *              adds `prompt`, the text of the ids, and `count`, their number; sampling_params also
 *              has the tools when calls are constrained, because token ids do not contain them
 *   generate   continues the token ids of such a request (answer_tokens.c writes the answer)
 *
 * The output of render can be sent to generate unchanged, and gives the same tokens as the chat or
 * completion.
 *
 * For example, render makes of {"messages": [{"role": "user", "content": "Hi"}], "top_k": 5}
 *
 *   {"request_id": ..., "token_ids": [1, 22, ...],
 *    "sampling_params": {"n": 1, "top_k": 5, ...}, ...} */
#include <stdio.h>
#include <string.h>

#include "front/answer/logprobs.h"
#include "front/api/api.h"
#include "front/request/lax.h"

/* --- render ------------------------------------------------------------------------------- */

/* A float with nine digits, which read back as the same float. */
static void render_real(struct buf *b, const char *name, float value)
{
    buf_printf(b, "\"%s\":%.9g,", name, (double)value);
}

/* Write "name": and the member as it was sent, or `instead` when it is absent or null. */
static void render_given(struct buf *b, const struct json *body, const char *name,
                         const char *instead)
{
    const struct json *value = json_get(body, name);

    buf_printf(b, "\"%s\":", name);
    if (value == NULL || value->kind == JSON_NULL)
        buf_add_text(b, instead);
    else
        json_write(b, value, JSON_EXACT);
}

/* The output constraint as vLLM's StructuredOutputsParams, whichever field it came from. */
static void render_form(struct buf *b, const struct form *form)
{
    static const char *const kinds[] = {
        [GRAMMAR_SCHEMA] = "json",  [GRAMMAR_JSON_OBJECT] = "json_object",
        [GRAMMAR_REGEX] = "regex",  [GRAMMAR_CHOICE] = "choice",
        [GRAMMAR_EBNF] = "grammar", [GRAMMAR_PARTS] = "structural_tag",
    };

    if (form->param == NULL) {
        buf_add_text(b, "\"structured_outputs\":null");
        return;
    }
    buf_printf(b, "\"structured_outputs\":{\"%s\":", kinds[form->kind]);
    if (form->source == NULL)
        buf_add_text(b, "true");
    else
        json_write(b, form->source, JSON_EXACT);
    if (form->spacing != NULL) {
        buf_add_text(b, ",\"whitespace_pattern\":");
        json_write(b, form->spacing, JSON_EXACT);
    }
    if (form->space == GRAMMAR_COMPACT)
        buf_add_text(b, ",\"disable_any_whitespace\":true");
    if (form->closed)
        buf_add_text(b, ",\"disable_additional_properties\":true");
    buf_add_byte(b, '}');
}

/* max_tokens: the requested number, or the rest of the context. */
static void render_max_tokens(const struct exchange *x, struct buf *b, const struct gen *g)
{
    struct link_state engine;
    uint32_t n = x->max_tokens;

    engines_read_state(&x->served->engines, &engine, 0);
    if (!x->max_tokens_given && engine.max_model_len > g->n_prompt)
        n = engine.max_model_len - g->n_prompt;
    if (x->max_tokens_given || engine.max_model_len > g->n_prompt)
        buf_printf(b, "\"max_tokens\":%u,", n);
    else
        buf_add_text(b, "\"max_tokens\":null,");
}

/* The stop strings and stop ids. */
static void render_stops(const struct exchange *x, struct buf *b)
{
    buf_add_text(b, "\"stop\":[");
    for (int i = 0; i < x->n_stops; i++) {
        buf_add_comma(b, i > 0);
        buf_add_json_string(b, x->stop_texts[i].text, x->stop_texts[i].len);
    }
    buf_add_text(b, "],\"stop_token_ids\":[");
    for (uint32_t i = 0; i < x->token_rules.n_stop_ids; i++) {
        buf_add_comma(b, i > 0);
        buf_printf(b, "%d", x->token_rules.stop_ids[i]);
    }
    buf_add_text(b, "],");
}

/* Write "name": n when the flag is set, otherwise null. */
static void render_told(struct buf *b, const char *name, bool told, uint32_t n)
{
    if (told)
        buf_printf(b, "\"%s\":%lld,", name, n == LOGPROBS_ALL ? -1LL : (long long)n);
    else
        buf_printf(b, "\"%s\":null,", name);
}

/* vLLM's SamplingParams, with this server's defaults for missing fields. */
static void render_sampling(const struct exchange *x, struct buf *b, const struct gen *g,
                            const struct json *body)
{
    const struct wire_request *request = &g->request;
    const struct sampling *sampling = &request->generate.sampling;
    const char *yes[] = {"false", "true"};

    buf_printf(b, "{\"n\":%d,", x->n);
    render_real(b, "presence_penalty", sampling->presence_penalty);
    render_real(b, "frequency_penalty", sampling->frequency_penalty);
    render_real(b, "repetition_penalty", sampling->repetition_penalty);
    render_real(b, "temperature", sampling->temperature);
    render_real(b, "top_p", sampling->top_p);
    buf_printf(b, "\"top_k\":%d,", sampling->top_k);
    render_real(b, "min_p", sampling->min_p);
    render_given(b, body, "seed", "null");
    buf_add_byte(b, ',');
    render_stops(x, b);
    buf_printf(b, "\"ignore_eos\":%s,", yes[(request->flags & WIRE_IGNORE_EOS) != 0]);
    render_max_tokens(x, b, g);
    buf_printf(b, "\"min_tokens\":%u,", request->generate.min_tokens);
    render_told(b, "logprobs", (request->flags & WIRE_LOGPROBS) != 0, request->generate.n_logprobs);
    render_told(b, "prompt_logprobs", (request->flags & WIRE_PROMPT_LOGPROBS) != 0,
                request->generate.n_prompt_logprobs);
    buf_printf(b, "\"skip_special_tokens\":%s,\"include_stop_str_in_output\":%s,",
               yes[g->detok.skip_special], yes[g->detok.include_stop]);
    render_given(b, body, "logit_bias", "null");
    buf_add_byte(b, ',');
    render_given(b, body, "allowed_token_ids", "null");
    buf_add_byte(b, ',');
    render_given(b, body, "bad_words", "[]");
    buf_add_byte(b, ',');
    render_given(b, body, "logprob_token_ids", "null");
    buf_add_byte(b, ',');
    render_given(b, body, "thinking_token_budget", "null");
    buf_add_byte(b, ',');
    render_form(b, x->form);
    /* generate cannot find the tools in the prompt's tokens, but needs them for the grammar. */
    if (form_binds(x->form) && x->form->tools != NULL) {
        buf_add_byte(b, ',');
        render_given(b, body, "tools", "null");
        buf_add_byte(b, ',');
        render_given(b, body, "tool_choice", "null");
        buf_printf(b, ",\"parallel_tool_calls\":%s", yes[!x->one_call]);
    }
    buf_add_byte(b, '}');
}

/* One GenerateRequest: a prompt and its parameters. */
static void render_one(const struct exchange *x, struct buf *b, const struct gen *g,
                       const struct json *body)
{
    const struct token_list *tokens = &g->tokens;
    struct buf text = {0};

    tokenizer_decode(x->served->tokenizer, tokens->ids, tokens->len, false, &text);
    buf_printf(b, "{\"request_id\":\"%s", x->id);
    if (x->n_gens > x->n)
        buf_printf(b, "-%d", g->index / x->n);
    buf_add_text(b, "\",\"token_ids\":[");
    for (size_t i = 0; i < tokens->len; i++) {
        buf_add_comma(b, i > 0);
        buf_printf(b, "%d", tokens->ids[i]);
    }
    buf_add_text(b, "],\"features\":null,\"sampling_params\":");
    render_sampling(x, b, g, body);
    buf_add_text(b, ",\"model\":");
    buf_add_json_string(b, x->model, strlen(x->model));
    buf_printf(b, ",\"stream\":%s,", json_flag_text(x->stream));
    render_given(b, x->stream ? body : NULL, "stream_options", "null");
    buf_add_byte(b, ',');
    render_given(b, body, "cache_salt", "null");
    buf_printf(b, ",\"priority\":%d,\"kv_transfer_params\":null,\"prompt\":", g->request.priority);
    buf_add_json_string(b, buf_text(&text), text.len);
    buf_printf(b, ",\"count\":%zu}", tokens->len);
    b->failed = b->failed || text.failed;
    buf_fini(&text);
}

/* Read the request as the generating endpoints do, and write it instead of submitting it. */
void api_render(struct front *f, struct exchange *x, const struct json *body)
{
    bool chat = json_get(body, "messages") != NULL;
    struct buf buf = {0};

    if (chat)
        api_chat(f, x, body);
    else
        api_completions(f, x, body);
    if (x->complete)
        return; /* it has answered with an error */
    if (x->beams != NULL) {
        exchange_reply_error(x, ERR_UNSUPPORTED,
                             "'use_beam_search' cannot be rendered: a "
                             "GenerateRequest has no such field",
                             "use_beam_search", 0);
        return;
    }
    if (!chat)
        buf_add_byte(&buf, '[');
    /* One for each prompt: its choices differ only in their seeds. */
    for (int i = 0; i < x->n_gens; i += x->n) {
        buf_add_comma(&buf, i > 0);
        render_one(x, &buf, &x->gens[i], body);
    }
    if (!chat)
        buf_add_byte(&buf, ']');
    api_reply_buf(x, &buf);
}

/* --- generate ----------------------------------------------------------------------------- */

/* Make a chat's fields of a GenerateRequest. In sampling_params, `logprobs` is a number, in a chat
 * a flag and a number; all members beside token_ids and sampling_params are copied. False: no
 * memory. */
static bool generate_fields(struct exchange *x, const struct json *body,
                            const struct json *sampling, struct json *out)
{
    static const char *const not_fields[] = {"token_ids", "sampling_params", "features", "messages",
                                             "echo"};
    const struct json *told = json_get(sampling, "logprobs");
    struct json_made made = {.arena = &x->arena};

    for (uint32_t i = 0; i < sampling->n; i++) {
        const struct json *value = &sampling->items[i];

        /* These members would turn the request into another one. */
        if (value != told && strcmp(value->key, "messages") != 0 && strcmp(value->key, "echo") != 0)
            json_put(&made, value->key, value);
    }
    if (told != NULL && told->kind != JSON_NULL) {
        json_put_flag(&made, "logprobs", true);
        json_put(&made, "top_logprobs", told);
    }
    for (uint32_t i = 0; i < body->n; i++) {
        bool passes = true;

        for (size_t k = 0; k < sizeof not_fields / sizeof not_fields[0]; k++)
            passes = passes && strcmp(body->items[i].key, not_fields[k]) != 0;
        if (passes)
            json_put(&made, body->items[i].key, &body->items[i]);
    }
    *out = json_made(&made, JSON_OBJECT);
    return !made.failed;
}

/* Check the members that are required. Returns NULL, or a sentence and the member's name. */
static const char *generate_check(const struct json *body, const char **param)
{
    const struct json *ids = json_get(body, "token_ids");
    const struct json *features = json_get(body, "features");

    *param = "token_ids";
    if (ids == NULL || ids->kind != JSON_LIST || ids->n == 0)
        return "'token_ids' must be a list of token ids that is not empty";
    *param = "sampling_params";
    if (json_get_kind(body, "sampling_params", JSON_OBJECT) == NULL)
        return "'sampling_params' must be an object";
    *param = "features";
    if (features != NULL && features->kind != JSON_NULL)
        return "'features' must be null: this model reads text only";
    return NULL;
}

/* Find out from the prompt's text whether the output begins inside a reasoning. */
static enum form_start generate_begin(struct exchange *x)
{
    const struct token_list *tokens = &x->gens[0].tokens;
    enum form_start start = FORM_NO_REASONING;
    struct buf text = {0};

    if (x->served->reply_reasoning == REPLY_NO_REASONING ||
        (!form_binds(x->form) && x->think_max < 0))
        return start;
    tokenizer_decode(x->served->tokenizer, tokens->ids, tokens->len, false, &text);
    start = gen_begin(x->gens, x->n_gens, &text);
    buf_fini(&text);
    return start;
}

/* A request of tokens takes the path of a chat whose messages are already tokens. */
void api_generate(struct front *f, struct exchange *x, const struct json *body)
{
    const char *param;
    const char *wrong = generate_check(body, &param);
    char why[160] = "";
    struct json fields;
    enum form_start start;
    int rc;

    if (wrong != NULL) {
        exchange_reply_error(x, ERR_INVALID, wrong, param, 0);
        return;
    }
    if (!generate_fields(x, body, json_get(body, "sampling_params"), &fields)) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return;
    }
    if (!gen_prepare(f, x, &fields, EXCHANGE_CHAT, 1))
        return;
    /* The name is in the body here, and comes back in the answer. */
    gen_keep_name(x, json_get_kind(body, "request_id", JSON_TEXT));
    x->tokens_as_ids = true;
    rc = gen_add_ids(&x->gens[0], json_get(body, "token_ids"), why, sizeof why);
    if (rc != ERR_OK) {
        exchange_reply_error(x, rc, why, "token_ids", 0);
        return;
    }
    start = generate_begin(x);
    if (gen_hold_reasoning(x, x->gens, x->n_gens, start) && gen_hold(x, start))
        (void)gen_finish_prompts(x, "token_ids"); /* false: it has answered */
}
