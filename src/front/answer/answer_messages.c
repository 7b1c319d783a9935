/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of POST /v1/messages: Anthropic's message object, and the events of a stream:
 *
 *   message_start  { content_block_start  content_block_delta ...  content_block_stop } ...
 *   message_delta  message_stop */
#include <string.h>

#include "base/hash.h"
#include "base/must.h"
#include "front/answer/answer.h"
#include "front/answer/blocks.h"

/* Anthropic's API counts cached prompt tokens separately from the rest of the prompt. */
static void messages_usage(const struct gen *g, struct buf *b, uint32_t n_output)
{
    must(g->n_cached <= g->n_prompt);
    buf_printf(b,
               "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,"
               "\"cache_read_input_tokens\":%u,\"output_tokens\":%u,"
               "\"output_tokens_details\":{\"thinking_tokens\":%u}}",
               g->n_prompt - g->n_cached, g->n_cached, n_output, g->speech->n_reasoning);
}

/* "stop_reason":...,"stop_sequence":...  An output that ended at the context's limit before
 * max_tokens has a reason of its own in this API. */
static void messages_reasons(const struct gen *g, struct buf *b)
{
    const struct detok_stop *stop = NULL;

    if (g->finish == GEN_STOP && g->speech->n_calls > 0) {
        buf_add_text(b, "\"stop_reason\":\"tool_use\"");
    } else if (g->finish == GEN_STOP && g->detok.status == DETOK_STOPPED) {
        stop = &g->exchange->stop_texts[g->detok.stop_idx];
        buf_add_text(b, "\"stop_reason\":\"stop_sequence\"");
    } else {
        const char *why = "max_tokens";

        if (g->finish == GEN_STOP)
            why = "end_turn";
        else if (blocks_output_tokens(g) < g->exchange->max_tokens)
            why = "model_context_window_exceeded";
        buf_printf(b, "\"stop_reason\":\"%s\"", why);
    }
    buf_add_text(b, ",\"stop_sequence\":");
    if (stop == NULL)
        buf_add_text(b, "null");
    else
        buf_add_json_string(b, stop->text, stop->len);
}

/* {"id":...,"role":"assistant","model":...,"content":[ */
static void messages_head(const struct gen *g, struct buf *b)
{
    const struct exchange *x = g->exchange;

    buf_printf(b, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", x->id);
    buf_add_json_string(b, x->model, strlen(x->model));
    buf_add_text(b, ",\"content\":[");
}

/* Anthropic signs reasoning, and clients send the signature back with it; some require one. Here it
 * is a digest of the text, which is never checked. */
static void messages_signature(const struct buf *text, struct buf *b)
{
    struct hash digest = hash_sha256("thinking", sizeof "thinking", text->bytes, text->len);
    char hex[2 * sizeof digest + 1];

    hash_hex(digest.bytes, sizeof digest.bytes, hex);
    buf_printf(b, "\"signature\":\"%s\"", hex);
}

/* {"type":"tool_use","id":...,"name":... without the input and the closing brace. */
static void messages_call(const struct gen *g, struct buf *b)
{
    const struct blocks *blocks = &g->speech->blocks;
    char id[40];

    answer_call_id(g, blocks->call, id);
    buf_printf(b, "{\"type\":\"tool_use\",\"id\":\"%s\",", id);
    blocks_add_text(b, "name", &blocks->name);
}

/* The functions of struct blocks_shape. */
static void messages_begin(struct gen *g)
{
    struct buf *out = &g->exchange->out;

    blocks_event(g, "message_start");
    buf_add_text(out, ",\"message\":");
    messages_head(g, out);
    /* The message without its content and end, which later events bring. */
    buf_add_text(out, "],\"stop_reason\":null,\"stop_sequence\":null,");
    messages_usage(g, out, 0);
    buf_add_byte(out, '}');
    blocks_event_end(g);
}

/* A block begins. */
static void messages_open(struct gen *g)
{
    const struct blocks *blocks = &g->speech->blocks;
    struct buf *out = &g->exchange->out;

    must(g->speech->blocks.n > 0);
    blocks_event(g, "content_block_start");
    buf_printf(out, ",\"index\":%d,\"content_block\":", blocks->n - 1);
    if (blocks->kind == REPLY_CALL_BEGIN) {
        messages_call(g, out);
        buf_add_text(out, ",\"input\":{}}");
    } else if (blocks->kind == REPLY_REASON) {
        buf_add_text(out, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    } else {
        buf_add_text(out, "{\"type\":\"text\",\"text\":\"\"}");
    }
    blocks_event_end(g);
}

/* The beginning of a content_block_delta, up to the delta's own member, which the caller adds. */
static void messages_delta(struct gen *g, const char *type)
{
    must(g->speech->blocks.is_open);
    blocks_event(g, "content_block_delta");
    buf_printf(&g->exchange->out, ",\"index\":%d,\"delta\":{\"type\":\"%s\",",
               g->speech->blocks.n - 1, type);
}

/* A piece of the open block's text has come. */
static void messages_piece(struct gen *g, const char *text, size_t len)
{
    struct buf *out = &g->exchange->out;

    switch ((enum reply_kind)g->speech->blocks.kind) {
    case REPLY_CONTENT:
        messages_delta(g, "text_delta");
        buf_add_text(out, "\"text\":");
        break;
    case REPLY_REASON:
        messages_delta(g, "thinking_delta");
        buf_add_text(out, "\"thinking\":");
        break;
    case REPLY_CALL_BEGIN:
    case REPLY_CALL_ARGS:
    case REPLY_CALL_END:
        messages_delta(g, "input_json_delta");
        buf_add_text(out, "\"partial_json\":");
        break;
    }
    buf_add_json_string(out, text, len);
    buf_add_byte(out, '}');
    blocks_event_end(g);
}

/* The end of a block in a stream. */
static void messages_close_stream(struct gen *g)
{
    const struct blocks *blocks = &g->speech->blocks;

    if (blocks->kind == REPLY_REASON) {
        messages_delta(g, "signature_delta");
        messages_signature(&blocks->text, &g->exchange->out);
        buf_add_byte(&g->exchange->out, '}');
        blocks_event_end(g);
    }
    blocks_event(g, "content_block_stop");
    buf_printf(&g->exchange->out, ",\"index\":%d", blocks->n - 1);
    blocks_event_end(g);
}

/* In a whole answer, a call's input must be an object; if the arguments were cut, it is {}. A
 * stream has sent the text as far as it came. */
static void messages_close(struct gen *g, bool is_cut)
{
    struct blocks *blocks = &g->speech->blocks;
    struct buf *out = &blocks->done;

    (void)is_cut; /* the message's stop_reason shows it */
    if (g->exchange->stream) {
        messages_close_stream(g);
        return;
    }
    if (blocks->kind == REPLY_CALL_BEGIN) {
        messages_call(g, out);
        buf_add_text(out, ",\"input\":");
        buf_add_text(out, blocks_is_object(g) ? blocks->text.bytes : "{}");
    } else if (blocks->kind == REPLY_REASON) {
        buf_add_text(out, "{\"type\":\"thinking\",");
        blocks_add_text(out, "thinking", &blocks->text);
        buf_add_byte(out, ',');
        messages_signature(&blocks->text, out);
    } else {
        buf_add_text(out, "{\"type\":\"text\",");
        blocks_add_text(out, "text", &blocks->text);
    }
    buf_add_byte(out, '}');
}

/* The answer without a stream. */
static void messages_body(struct gen *g, struct buf *b)
{
    const struct buf *done = &g->speech->blocks.done;

    messages_head(g, b);
    buf_add(b, buf_text(done), done->len);
    buf_add_text(b, "],");
    messages_reasons(g, b);
    buf_add_byte(b, ',');
    messages_usage(g, b, blocks_output_tokens(g));
    buf_add_byte(b, '}');
}

/* The last two events: the reasons for the end with the usage, and the end itself. */
static void messages_finish(struct gen *g)
{
    struct buf *out = &g->exchange->out;

    blocks_event(g, "message_delta");
    buf_add_text(out, ",\"delta\":{");
    messages_reasons(g, out);
    buf_add_text(out, "},");
    messages_usage(g, out, blocks_output_tokens(g));
    blocks_event_end(g);
    blocks_event(g, "message_stop");
    blocks_event_end(g);
}

/* An error in a stream is an event of its own type. */
static void messages_fail(struct gen *g, int err, const char *message)
{
    buf_add_text(&g->exchange->out, "event: error\ndata: ");
    exchange_add_error_messages(&g->exchange->out, g->exchange, err, message);
    buf_add_text(&g->exchange->out, "\n\n");
}

const struct blocks_shape blocks_messages = {
    .begin = messages_begin,
    .open = messages_open,
    .piece = messages_piece,
    .close = messages_close,
    .body = messages_body,
    .finish = messages_finish,
    .fail = messages_fail,
};
