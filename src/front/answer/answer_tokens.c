/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of token ids, in vLLM's forms GenerateResponse and GenerateStreamResponse. Tokens are
 * sent as they arrive, without waiting for whole characters. */
#include "front/answer/answer.h"

#include <string.h>

#include "base/must.h"
#include "front/answer/logprobs.h"

/* finish_reason as JSON; null while the reply goes on. */
static const char *tokens_reason(const struct gen *g)
{
    if (g->finish == GEN_STOP)
        return "\"stop\"";
    if (g->finish == GEN_LENGTH)
        return "\"length\"";
    return "null";
}

/* {"index":...} with the tokens that were not sent yet. */
static void tokens_choice(struct buf *b, struct gen *g)
{
    size_t from = g->n_prompt + g->n_said;

    must(g->tokens.len >= g->n_prompt + g->n_said);
    buf_printf(b, "{\"index\":%d,", g->index);
    logprobs_write_chat(b, g);
    buf_printf(b, ",\"finish_reason\":%s,", tokens_reason(g));
    answer_ids(b, "token_ids", g->tokens.ids + from, g->tokens.len - from);
    buf_add_text(b, ",\"routed_experts\":null}");
    g->n_said = (uint32_t)(g->tokens.len - g->n_prompt);
}

/* One event of a stream, with the tokens of one choice. */
static void tokens_event(struct exchange *x, struct gen *g)
{
    struct buf *out = &x->out;

    buf_printf(out, "data: {\"request_id\":\"%s\",\"choices\":[", x->id);
    tokens_choice(out, g);
    buf_add_text(out, "],");
    if (x->usage_always)
        answer_usage(x, out);
    else
        buf_add_text(out, "\"usage\":null");
    buf_add_text(out, "}\n\n");
}

/* The body of an answer without a stream. Members that vLLM has and quire cannot fill are null, so
 * that its clients find them. */
static void tokens_body(struct exchange *x)
{
    struct buf buf = {0};

    buf_printf(&buf, "{\"request_id\":\"%s\",\"model\":", x->id);
    buf_add_json_string(&buf, x->model, strlen(x->model));
    buf_printf(&buf, ",\"created\":%lld,\"choices\":[", (long long)x->created);
    for (int i = 0; i < x->n_gens; i++) {
        buf_add_comma(&buf, i > 0);
        tokens_choice(&buf, &x->gens[i]);
    }
    buf_add_text(&buf, "],");
    if (x->prompt_logprobs)
        logprobs_write_prompt(&buf, &x->gens[0]);
    else
        buf_add_text(&buf, "\"prompt_logprobs\":null");
    buf_add_text(&buf, ",\"kv_transfer_params\":null,");
    answer_usage(x, &buf);
    buf_add_byte(&buf, '}');
    exchange_reply_json(x, &buf);
}

/* New tokens have arrived. Their text is dropped: it is not part of this answer. */
void answer_tokens(struct exchange *x, struct gen *g)
{
    must(x->shape == SHAPE_TOKENS);
    buf_clear(&g->text);
    if (x->stream && g->tokens.len > g->n_prompt + g->n_said)
        tokens_event(x, g);
}

/* A choice has ended. Its last event may have no tokens but carries finish_reason. The last of the
 * choices ends the answer. */
void answer_tokens_end(struct exchange *x, struct gen *g)
{
    must(x->shape == SHAPE_TOKENS);
    if (x->stream)
        tokens_event(x, g);
    if (x->n_finished < x->n_gens)
        return;
    if (!x->stream) {
        tokens_body(x);
        return;
    }
    if (x->include_usage) {
        buf_printf(&x->out, "data: {\"request_id\":\"%s\",\"choices\":[],", x->id);
        answer_usage(x, &x->out);
        buf_add_text(&x->out, "}\n\n");
    }
    buf_add_text(&x->out, "data: [DONE]\n\n");
    x->complete = true;
}
