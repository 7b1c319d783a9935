/* SPDX-License-Identifier: Apache-2.0
 *
 * Written straight into the out buffer: no tree, one escape pass over the text. */
#include "front/answer.h"

#include <string.h>

/* {"id":...,"object":...,"created":...,"model":... without the closing brace. */
static void answer_object(struct exchange *x, struct buf *b, const char *object)
{
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", x->id, object,
               (long long)x->created);
    buf_add_json_string(b, x->model, strlen(x->model));
}

static const char *answer_chunk_object(const struct exchange *x)
{
    return x->format == EXCHANGE_CHAT ? "chat.completion.chunk" : "text_completion";
}

static void answer_usage(const struct exchange *x, struct buf *b)
{
    unsigned long long prompt = 0;
    unsigned long long output = 0;
    unsigned long long cached = 0;

    for (int i = 0; i < x->n_gens; i++) {
        if (i % x->n == 0) { /* its choices share it */
            prompt += x->gens[i].n_prompt;
            cached += x->gens[i].n_cached;
        }
        output += x->gens[i].tokens.len - x->gens[i].n_prompt;
    }
    buf_printf(b,
               "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,"
               "\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
               prompt, output, prompt + output, cached);
}

/* "finish_reason":...,"stop_reason":... */
static void answer_reasons(const struct exchange *x, struct buf *b, const struct gen *g)
{
    const char *why = g->finish == GEN_STOP     ? "\"stop\""
                      : g->finish == GEN_LENGTH ? "\"length\""
                                                : "null";

    buf_printf(b, "\"finish_reason\":%s,\"stop_reason\":", why);
    if (g->finish == GEN_STOP && g->detok.status == DETOK_STOPPED) {
        const char *stop = x->stop_texts[g->detok.stop_idx];

        buf_add_json_string(b, stop, strlen(stop));
    } else if (g->finish == GEN_STOP && g->stop_id >= 0) {
        buf_printf(b, "%d", g->stop_id);
    } else {
        buf_add_text(b, "null");
    }
}

/* "name":[ids] */
static void answer_ids(struct buf *b, const char *name, const int32_t *ids, size_t n)
{
    buf_printf(b, "\"%s\":[", name);
    for (size_t i = 0; i < n; i++)
        buf_printf(b, i == 0 ? "%d" : ",%d", ids[i]);
    buf_add_byte(b, ']');
}

static void answer_prompt_ids(struct buf *b, const struct gen *g)
{
    answer_ids(b, "prompt_token_ids", g->tokens.ids, g->n_prompt);
    buf_add_byte(b, ',');
}

/* Members of a choice that return_token_ids adds: the output tokens that were not said yet. Those
 * of the prompt stand in each choice of a completion, and once beside the choices of a chat. */
static void answer_choice_ids(const struct exchange *x, struct buf *b, struct gen *g, bool first)
{
    if (!x->return_ids)
        return;
    if (x->format == EXCHANGE_COMPLETION && first)
        answer_prompt_ids(b, g);
    answer_ids(b, "token_ids", g->tokens.ids + g->n_prompt + g->n_said,
               g->tokens.len - g->n_prompt - g->n_said);
    buf_add_byte(b, ',');
    g->n_said = (uint32_t)g->tokens.len - g->n_prompt;
}

/* One event with one choice. role: the first chunk of a chat. */
static void answer_chunk(struct exchange *x, struct gen *g, bool role, const char *text, size_t len)
{
    struct buf *b = &x->out;

    buf_add_text(b, "data: ");
    answer_object(x, b, answer_chunk_object(x));
    buf_add_byte(b, ',');
    if (role && x->return_ids)
        answer_prompt_ids(b, g);
    buf_printf(b, "\"choices\":[{\"index\":%d,", g->index);
    answer_choice_ids(x, b, g, g->n_said == 0);
    if (x->format == EXCHANGE_COMPLETION) {
        buf_add_text(b, "\"text\":");
        buf_add_json_string(b, text, len);
    } else if (role) {
        buf_add_text(b, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    } else if (len > 0) {
        buf_add_text(b, "\"delta\":{\"content\":");
        buf_add_json_string(b, text, len);
        buf_add_byte(b, '}');
    } else {
        buf_add_text(b, "\"delta\":{}");
    }
    buf_add_text(b, ",\"logprobs\":null,");
    answer_reasons(x, b, g);
    if (x->usage_always) {
        buf_add_text(b, "}],");
        answer_usage(x, b);
        buf_add_text(b, "}\n\n");
    } else {
        buf_add_text(b, x->include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
    }
}

void answer_begin(struct exchange *x)
{
    if (x->head_sent || !x->stream)
        return;
    exchange_add_head(x, 200);
    buf_add_text(&x->out, "Content-Type: text/event-stream; charset=utf-8\r\n"
                          "Cache-Control: no-cache\r\n"
                          "X-Accel-Buffering: no\r\n\r\n");
    x->head_sent = true;
    for (int i = 0; i < x->n_gens && x->format == EXCHANGE_CHAT; i++)
        answer_chunk(x, &x->gens[i], true, "", 0);
}

void answer_text(struct exchange *x, struct gen *g)
{
    if (!x->stream || g->text.len == 0)
        return;
    answer_chunk(x, g, false, g->text.bytes, g->text.len);
    buf_clear(&g->text);
}

/* The whole answer of a request that does not stream. */
static void answer_body(struct exchange *x)
{
    struct buf b = {0};

    answer_object(x, &b, x->format == EXCHANGE_CHAT ? "chat.completion" : "text_completion");
    buf_add_text(&b, ",\"choices\":[");
    for (int i = 0; i < x->n_gens; i++) {
        struct gen *g = &x->gens[i];
        const char *text = g->text.bytes == NULL ? "" : g->text.bytes;

        buf_printf(&b, "%s{\"index\":%d,", i == 0 ? "" : ",", g->index);
        answer_choice_ids(x, &b, g, true);
        if (x->format == EXCHANGE_CHAT)
            buf_add_text(&b, "\"message\":{\"role\":\"assistant\",\"content\":");
        else
            buf_add_text(&b, "\"text\":");
        buf_add_json_string(&b, text, g->text.len);
        if (x->format == EXCHANGE_CHAT)
            buf_add_text(&b, ",\"refusal\":null}");
        buf_add_text(&b, ",\"logprobs\":null,");
        answer_reasons(x, &b, g);
        buf_add_byte(&b, '}');
    }
    buf_add_text(&b, "],");
    if (x->return_ids && x->format == EXCHANGE_CHAT)
        answer_prompt_ids(&b, &x->gens[0]);
    answer_usage(x, &b);
    buf_add_byte(&b, '}');
    if (b.failed)
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
    else
        exchange_reply(x, 200, "application/json", b.bytes, b.len);
    buf_fini(&b);
}

void answer_end(struct exchange *x, struct gen *g)
{
    x->n_finished++;
    if (x->stream) {
        answer_begin(x); /* an engine that gave nothing but an end */
        answer_text(x, g);
        answer_chunk(x, g, false, "", 0);
    }
    if (x->n_finished < x->n_gens)
        return;
    if (!x->stream) {
        answer_body(x);
        return;
    }
    if (x->include_usage) {
        buf_add_text(&x->out, "data: ");
        answer_object(x, &x->out, answer_chunk_object(x));
        buf_add_text(&x->out, ",\"choices\":[],");
        answer_usage(x, &x->out);
        buf_add_text(&x->out, "}\n\n");
    }
    buf_add_text(&x->out, "data: [DONE]\n\n");
    x->complete = true;
}

void answer_keepalive(struct exchange *x)
{
    if (x->stream && x->head_sent)
        buf_add_text(&x->out, ": keep-alive\n\n");
}

void answer_fail(struct exchange *x, int err, const char *message, const char *param,
                 int retry_after_s)
{
    if (!x->head_sent) {
        exchange_reply_error(x, err, message, param, retry_after_s);
        return;
    }
    buf_add_text(&x->out, "data: ");
    exchange_add_error(&x->out, err, message, param);
    buf_add_text(&x->out, "\n\n");
    x->complete = true;
}
