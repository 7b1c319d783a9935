/* SPDX-License-Identifier: Apache-2.0
 *
 * From a checked request to generations that are ready for the engine. The endpoints call
 * gen_prepare(), add the prompts' tokens, and call gen_finish_prompts(); the exchange then goes to
 * the streamer.
 *
 *   gen_prepare()          the fields; generations without tokens
 *   gen_add_text(), ...    the tokens of each prompt, in its first generation
 *   gen_hold()             the form of the output, compiled
 *   gen_finish_prompts()   cut the prompts, and copy them to the other generations
 *
 * With n choices, prompt i has the generations i * n to i * n + n - 1. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/must.h"
#include "front/answer/answer.h"
#include "front/answer/beams.h"
#include "front/answer/pooled.h"
#include "front/api/api.h"
#include "front/request/fields.h"
#include "front/request/policy.h"
#include "front/request/retention.h"

/* A random number, for seeds and ids. */
static uint64_t gen_random(void)
{
    uint64_t r = 0;

    if (getrandom(&r, sizeof r, 0) != (ssize_t)sizeof r)
        r = clock_us(); /* neither a seed nor an id must be secret */
    return r;
}

/* The prefix of the answer's id, as each API has it. */
static const char *gen_id_prefix(const struct exchange *x)
{
    switch (x->shape) {
    case SHAPE_MESSAGES: return "msg_";
    case SHAPE_RESPONSES: return "resp_";
    case SHAPE_TOKENS: return "generate-tokens-";
    case SHAPE_KSERVE:
    case SHAPE_OPENAI: break;
    }
    if (x->pooled != NULL)
        return pooled_id_prefix(x->pooled->answer);
    if (x->format == EXCHANGE_CHAT)
        return "chatcmpl-";
    return "cmpl-";
}

/* Name the exchange: the client's name if it was usable, otherwise random digits. */
static void gen_name(struct exchange *x)
{
    if (x->request_id[0] == '\0') {
        uint64_t r[2] = {gen_random(), gen_random()};
        char hex[2 * sizeof r + 1];

        hash_hex((const uint8_t *)r, sizeof r, hex);
        (void)exchange_name(x, hex); /* hex digits are always usable */
    }
    (void)snprintf(x->id, sizeof x->id, "%s%s", gen_id_prefix(x), x->request_id);
    x->created = clock_unix_s();
}

/* The client repeats the name of an earlier answer: use it unchanged, since it has a prefix
 * already. */
void gen_keep_name(struct exchange *x, const struct json *name)
{
    must(name == NULL || name->kind == JSON_TEXT);
    if (name != NULL && strcmp(name->text, x->request_id) == 0) /* equal only if it was usable */
        (void)snprintf(x->id, sizeof x->id, "%s", x->request_id);
}

/* Set up the parsing of a chat's reply, if the model has tool calls or reasoning, or the answer's
 * shape has blocks. */
static int gen_listen(struct exchange *x, struct gen *g, const struct fields *fields)
{
    struct reply_options options = {.format =
                                        form_reply_format(&fields->form, x->served->reply_format),
                                    .reasoning = x->served->reply_reasoning,
                                    .only_calls = form_forces(&fields->form),
                                    .tools = fields->form.tools};

    if (x->format != EXCHANGE_CHAT || x->shape == SHAPE_TOKENS || x->pooled != NULL ||
        (x->shape == SHAPE_OPENAI && options.format == REPLY_PLAIN &&
         options.reasoning == REPLY_NO_REASONING))
        return ERR_OK;
    g->speech = arena_zalloc(&x->arena, sizeof *g->speech);
    if (g->speech == NULL)
        return ERR_NO_MEMORY;
    answer_listen(g, &options);
    return ERR_OK;
}

/* Does the reply's parser need special tokens that texts normally leave out? Tags of calls and of
 * reasoning may be such tokens. */
static bool gen_needs_special(const struct gen *g)
{
    const struct tokenizer *tokenizer = g->exchange->served->tokenizer;
    const char *close;

    if (g->speech == NULL)
        return false;
    close = reply_reason_close(g->speech->reply.o.reasoning);
    return g->speech->reply.o.format != REPLY_PLAIN ||
           (close != NULL &&
            tokenizer_is_skipped(tokenizer, tokenizer_find(tokenizer, close, strlen(close))));
}

/* fields.form lies on the stack; the exchange needs it until its end. */
static const struct form *gen_keep_form(struct exchange *x, const struct form *form)
{
    struct form *kept = arena_alloc(&x->arena, sizeof *kept);

    if (kept != NULL)
        *kept = *form;
    return kept;
}

/* Read the fields into *fields, and check them against each other and the server's settings. False
 * after an error answer. */
static bool gen_read_fields(struct front *f, struct exchange *x, const struct json *body,
                            struct fields *fields)
{
    struct reason reason = {.text = ""};
    int rc = fields_read(fields, x, body, &x->served->defaults, &x->served->names, &reason);

    if (rc != ERR_OK) {
        exchange_reply_error(x, rc, reason.text, reason.param, 0);
        return false;
    }
    if (x->max_tokens_given && fields->request.generate.min_tokens > x->max_tokens) {
        exchange_reply_error(x, ERR_INVALID, "'min_tokens' must not be above 'max_tokens'",
                             "min_tokens", 0);
        return false;
    }
    if (!x->asks)
        retention_limit(&fields->request.generate, f->settings.client_retention_max);
    if (!policy_read(&f->settings, x, &fields->request))
        return false;
    memcpy(fields->request.adapter, x->adapter_digest, sizeof fields->request.adapter);
    if (fields->bad_words != NULL)
        rc = token_rules_read_bad_words(&x->token_rules, &x->arena, x->served->tokenizer,
                                        fields->bad_words, reason.text, sizeof reason.text);
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, reason.text, "bad_words", 0);
    return rc == ERR_OK;
}

/* Make generation i. Choices of one prompt differ in their seeds only. */
static int gen_make(struct exchange *x, int i, struct fields *fields)
{
    struct gen *g = &x->gens[i];
    int rc;

    must(i == x->n_gens);
    *g = (struct gen){
        .exchange = x, .index = i, .slot = -1, .stop_id = -1, .request = fields->request};
    if (!fields->seed_given)
        g->request.generate.sampling.seed = gen_random();
    else
        g->request.generate.sampling.seed += (uint64_t)(i % x->n);
    if (i % x->n != 0) /* the first choice reports them for all */
        g->request.flags &= ~(uint32_t)WIRE_PROMPT_LOGPROBS;
    rc = gen_listen(x, g, fields);
    if (gen_needs_special(g) && !fields->skip_special_given)
        fields->skip_special = false;
    if (rc == ERR_OK)
        rc = detok_init(&g->detok, x->served->tokenizer, fields->skip_special, fields->stops,
                        (size_t)fields->n_stops, fields->include_stop);
    if (rc == ERR_OK)
        detok_continue(&g->detok); /* its first token continues the prompt */
    return rc;
}

/* A model that pools generates nothing. Its endpoints have asked the reverse. False after an error
 * answer. */
static bool gen_has_model(struct exchange *x)
{
    if (x->pooled != NULL || x->served->pooling.kind == POOLING_NONE)
        return true;
    exchange_reply_error(x, ERR_UNSUPPORTED,
                         "The model does not support this API: it turns texts into vectors or "
                         "scores (runner = pooling), for /v1/embeddings, /pooling, /score and "
                         "/rerank",
                         "model", 0);
    return false;
}

/* From the fields to generations without tokens. A field's error is answered here, so the endpoints
 * only go on if this returns true. */
bool gen_prepare(struct front *f, struct exchange *x, const struct json *body,
                 enum exchange_format format, int n_prompts)
{
    int n_gens, most = x->pooled != NULL ? POOLED_TEXTS_MAX : (int)f->settings.max_choices;
    struct fields fields;
    char why[128];

    must(n_prompts > 0);
    if (!gen_has_model(x))
        return false;
    x->format = format;
    x->model = x->adapter != NULL ? x->adapter : x->served->model_name;
    x->role = x->served->settings.response_role;
    x->fingerprint = x->served->fingerprint;
    if (!gen_read_fields(f, x, body, &fields))
        return false;
    /* n is at most 128 and n_prompts at most max_choices, so this does not overflow. */
    n_gens = n_prompts * x->n;
    if (n_gens > most) {
        (void)snprintf(why, sizeof why, "%d prompts with %d choices each are more than %d",
                       n_prompts, x->n, most);
        exchange_reply_error(x, ERR_INVALID, why, x->pooled != NULL ? x->pooled->param : "n", 0);
        return false;
    }
    gen_name(x);
    x->gens = arena_zalloc(&x->arena, sizeof *x->gens * (size_t)n_gens);
    x->form = gen_keep_form(x, &fields.form);
    if (x->gens == NULL || x->form == NULL) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return false;
    }
    for (int i = 0; i < n_gens; i++) {
        int rc = gen_make(x, i, &fields);

        if (rc != ERR_OK) {
            exchange_reply_error(x, rc, NULL, "stop", 0);
            return false;
        }
        x->n_gens++;
    }
    if (fields.use_beams && !x->only_echo && beams_init(x, &fields.beams) != ERR_OK) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return false;
    }
    return true;
}

/* A text has at least len / (longest token) tokens. When even that exceeds the context, refuse it
 * before encoding, because counting the tokens of 30 MB takes a second. Not while the engine is
 * draining or gone, because the next one may have a longer context. */
static int gen_check_length(const struct gen *g, size_t len, char *why, size_t cap)
{
    size_t most = tokenizer_most_bytes(g->exchange->served->tokenizer);
    size_t at_least = most == 0 ? 0 : len / most;
    struct link_state engine;

    engines_read_state(&g->exchange->served->engines, &engine, 0);
    if (g->exchange->truncate_to == 0 && engine.attached && !engine.draining &&
        at_least > engine.max_model_len) {
        (void)snprintf(why, cap,
                       "This model's maximum context length is %u tokens. However, you requested "
                       "at least %zu tokens in the prompt.",
                       engine.max_model_len, at_least);
        return ERR_TOO_LONG;
    }
    return ERR_OK;
}

/* Append token ids. Whether the vocabulary has them is checked at submission, where its size is
 * known. */
int gen_add_ids(struct gen *g, const struct json *ids, char *why, size_t cap)
{
    int rc = ERR_OK;

    for (uint32_t i = 0; i < ids->n && rc == ERR_OK; i++) {
        const struct json *id = &ids->items[i];

        if (id->kind != JSON_INT || id->whole < 0 || id->whole > INT32_MAX) {
            (void)snprintf(why, cap, "member %u is not a token id", i);
            return ERR_INVALID;
        }
        rc = token_list_add(&g->tokens, (int32_t)id->whole);
    }
    return rc;
}

/* Encode a text and append its tokens. */
int gen_add_text(struct gen *g, const struct json *text, bool add_special, char *why, size_t cap)
{
    int rc = gen_check_length(g, text->text_len, why, cap);

    if (rc != ERR_OK)
        return rc;
    return tokenizer_encode(g->exchange->served->tokenizer, text->text, text->text_len, add_special,
                            &g->tokens);
}

/* Encode a chat's prompt. Texts that come from the client's messages are encoded without control
 * tokens if splits_special is set. */
int gen_add_prompt(struct gen *g, const struct chat_prompt *prompt, bool add_special, char *why,
                   size_t cap)
{
    const struct spans *own = g->exchange->splits_special ? &prompt->own : NULL;
    const char *text = buf_text(&prompt->text);
    int rc = gen_check_length(g, prompt->text.len, why, cap);

    if (rc != ERR_OK)
        return rc;
    return tokenizer_encode_own(g->exchange->served->tokenizer, text, prompt->text.len, add_special,
                                own, &g->tokens);
}

/* Compile the form of the output, or find it compiled. The reply's automaton depends on where the
 * reply begins, so this comes after the prompts. */
bool gen_hold(struct exchange *x, enum form_start start)
{
    struct form_model model = {.format = x->served->reply_format,
                               .start = start,
                               .reasoning = x->served->reply_reasoning,
                               .chat = x->format == EXCHANGE_CHAT,
                               .one_call = x->one_call};
    struct reason reason = {.text = ""};
    int rc;

    if (!form_binds(x->form))
        return true;
    /* The tenant's name shares the compilers fairly. */
    policy_tenant(fcgi_param(x->fcgi, "QUIRE_TENANT"), model.tenant);
    rc = form_compile(x->form, &model, &x->served->compiled, &x->arena, &x->compiled, &reason);
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, reason.text, rc == ERR_OVERLOADED ? NULL : reason.param,
                             rc == ERR_OVERLOADED);
    return rc == ERR_OK;
}

/* The number of prompt tokens to keep; 0: all. truncate_to is -1 for "as many as fit beside the
 * answer". */
static size_t gen_wanted(const struct exchange *x)
{
    uint64_t more = exchange_least_answer(x);
    struct link_state engine;

    if (x->truncate_to >= 0)
        return (size_t)x->truncate_to;
    engines_read_state(&x->served->engines, &engine, 0);
    if (engine.max_model_len > more)
        return (size_t)(engine.max_model_len - more);
    return 0;
}

/* Cut a prompt that is longer than that: keep its end, or its beginning (truncation_side). */
static void gen_truncate(struct exchange *x, struct gen *g)
{
    size_t keep = gen_wanted(x);

    if (keep == 0 || g->tokens.len <= keep)
        return;
    if (!x->truncates_right)
        memmove(g->tokens.ids, g->tokens.ids + (g->tokens.len - keep),
                keep * sizeof *g->tokens.ids);
    g->tokens.len = keep;
}

/* Maximum ids of one prompt's choices together: for example 128 choices of half a million
 * tokens. */
#define GEN_SHARED_IDS_MAX ((size_t)64 << 20)

/* Copy a prompt to its other choices. With echo, the text of all of them begins with the
 * prompt's. */
static int gen_share_prompt(struct exchange *x, struct gen *g)
{
    if (g->tokens.len > GEN_SHARED_IDS_MAX / (size_t)x->n)
        return ERR_TOO_LARGE;
    for (int i = 0; i < x->n; i++) {
        struct gen *to = &g[i];

        for (size_t t = 0; i > 0 && t < g->tokens.len; t++) {
            int rc = token_list_add(&to->tokens, g->tokens.ids[t]);

            if (rc != ERR_OK)
                return rc;
        }
        to->n_prompt = (uint32_t)g->tokens.len;
        if (x->echo && x->format == EXCHANGE_COMPLETION)
            tokenizer_decode(x->served->tokenizer, g->tokens.ids, g->tokens.len, true, &to->text);
        if (to->text.failed)
            return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

/* The prompts are complete: cut them to length and copy them to the other choices. */
bool gen_finish_prompts(struct exchange *x, const char *param)
{
    must(x->n >= 1);
    for (int i = 0; i < x->n_gens; i += x->n) {
        struct gen *g = &x->gens[i];
        int rc = ERR_OK;

        gen_truncate(x, g);
        if (g->tokens.len == 0 || g->tokens.len > INT32_MAX)
            rc = g->tokens.len == 0 ? ERR_INVALID : ERR_TOO_LONG;
        else
            rc = gen_share_prompt(x, g);
        if (rc != ERR_OK) {
            exchange_reply_error(x, rc, g->tokens.len == 0 ? "the prompt is empty" : NULL, param,
                                 0);
            return false;
        }
    }
    return true;
}
