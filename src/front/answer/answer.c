/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers in OpenAI's form, whole or as a stream of events.
 *
 *   whole:  {"id":..,"object":..,"choices":[{"index":0,"message":{..},"finish_reason":..}],
 *            "usage":{..}}
 *   stream: data: {"id":..,"object":..,"choices":[{"index":0,"delta":{..},"finish_reason":null}]}
 *           ...
 *           data: [DONE]
 *
 * JSON is written straight into the out buffer, without a tree, and each text is escaped once. */
#include "front/answer/answer.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/must.h"
#include "front/answer/blocks.h"
#include "front/answer/logprobs.h"
#include "front/answer/pooled.h"
#include "text/template/chat.h"

/* The beginning of every answer and event. */
void answer_object(const struct exchange *x, struct buf *b, const char *object)
{
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", x->id, object,
               (long long)x->created);
    buf_add_json_string(b, x->model, strlen(x->model));
}

/* Does the answer consist of blocks (blocks.h)? */
static bool answer_has_blocks(const struct exchange *x)
{
    return x->shape == SHAPE_MESSAGES || x->shape == SHAPE_RESPONSES;
}

/* The type of an event's object. */
static const char *answer_chunk_object(const struct exchange *x)
{
    if (x->format == EXCHANGE_CHAT)
        return "chat.completion.chunk";
    return "text_completion";
}

void answer_groups(const struct gen *gens, int n_gens, int step, struct buf *b)
{
    static const char *const names[WIRE_GROUPS] = {"full", "window", "state"};
    const char *before = ",\"cached_tokens_by_group\":{";

    for (int group = 0; group < WIRE_GROUPS; group++) {
        unsigned long long n = 0;
        bool any = false;

        for (int i = 0; i < n_gens; i += step) {
            any = any || gens[i].found[group] > 0;
            n += gens[i].found[group] > 0 ? gens[i].found[group] - 1 : 0;
        }
        if (!any)
            continue;
        buf_printf(b, "%s\"%s\":%llu", before, names[group], n);
        before = ",";
    }
    if (before[1] == '\0')
        buf_add_byte(b, '}');
}

/* Tokens are counted per prompt, not per choice: choices of one prompt share it. Tokens of
 * reasoning are a part of the output and are also reported separately, when the model has
 * reasoning. */
void answer_usage(const struct exchange *x, struct buf *b)
{
    unsigned long long prompt = 0;
    unsigned long long output = 0;
    unsigned long long cached = 0;
    unsigned long long reasoning = 0;
    bool reasons = false;

    must(x->n >= 1);
    if (x->brought != NULL)
        prompt = x->brought->prompt_tokens;
    for (int i = 0; i < x->n_gens; i++) {
        if (i % x->n == 0) { /* its choices share it */
            prompt += x->gens[i].n_prompt;
            cached += x->gens[i].n_cached;
        }
        output += x->gens[i].tokens.len - x->gens[i].n_prompt;
        if (x->gens[i].speech != NULL) {
            reasoning += x->gens[i].speech->n_reasoning;
            reasons = reasons || x->gens[i].speech->reply.o.reasoning != REPLY_NO_REASONING ||
                      x->gens[i].speech->reply.o.format == REPLY_HARMONY;
        }
    }
    buf_printf(b,
               "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,"
               "\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%llu",
               prompt, output, prompt + output, cached);
    answer_groups(x->gens, x->n_gens, x->n, b);
    buf_add_byte(b, '}');
    if (reasons)
        buf_printf(b, ",\"completion_tokens_details\":{\"reasoning_tokens\":%llu}", reasoning);
    buf_add_byte(b, '}');
}

/* "stop_reason" is vLLM's: the stop string or stop_token_ids member that ended the text. */
void answer_reasons(const struct exchange *x, struct buf *b, const struct gen *g)
{
    const char *why = "null";

    if (g->finish == GEN_LENGTH)
        why = "\"length\"";
    else if (g->finish == GEN_STOP && g->speech != NULL && g->speech->n_calls > 0)
        why = "\"tool_calls\"";
    else if (g->finish == GEN_STOP)
        why = "\"stop\"";

    buf_printf(b, "\"finish_reason\":%s,\"stop_reason\":", why);
    if (g->finish == GEN_STOP && g->detok.status == DETOK_STOPPED) {
        const struct detok_stop *stop = &x->stop_texts[g->detok.stop_idx];

        buf_add_json_string(b, stop->text, stop->len);
    } else if (g->finish == GEN_STOP && g->stop_id >= 0) {
        buf_printf(b, "%d", g->stop_id);
    } else {
        buf_add_text(b, "null");
    }
}

/* A member with a list of token ids. */
void answer_ids(struct buf *b, const char *name, const int32_t *ids, size_t n)
{
    must(n == 0 || ids != NULL);
    buf_printf(b, "\"%s\":[", name);
    for (size_t i = 0; i < n; i++) {
        buf_add_comma(b, i > 0);
        buf_printf(b, "%d", ids[i]);
    }
    buf_add_byte(b, ']');
}

/* A member with the prompt's ids, and a comma. */
static void answer_prompt_ids(struct buf *b, const struct gen *g)
{
    answer_ids(b, "prompt_token_ids", g->tokens.ids, g->n_prompt);
    buf_add_byte(b, ',');
}

/* Members about the prompt, null unless requested; vLLM always sends them. A completion has them in
 * each choice, a chat beside its choices. */
static void answer_prompt(const struct exchange *x, struct buf *b, struct gen *g)
{
    if (x->prompt_logprobs) {
        logprobs_write_prompt(b, g);
    } else if (x->brought != NULL && x->brought->told[g - x->gens] != NULL) {
        buf_add_text(b, "\"prompt_logprobs\":");
        json_write(b, x->brought->told[g - x->gens], JSON_EXACT);
    } else {
        buf_add_text(b, "\"prompt_logprobs\":null");
    }
    buf_add_byte(b, ',');
    if (x->return_ids)
        answer_prompt_ids(b, g);
    else
        buf_add_text(b, "\"prompt_token_ids\":null,");
}

/* With return_token_ids: the output tokens that were not sent yet. The prompt's ids are in the
 * first event of each choice of a completion. */
static void answer_choice_ids(const struct exchange *x, struct buf *b, struct gen *g, bool first)
{
    if (!x->return_ids) {
        if (!x->stream)
            buf_add_text(b, "\"token_ids\":null,");
        return;
    }
    if (x->format == EXCHANGE_COMPLETION && first && x->stream)
        answer_prompt_ids(b, g);
    answer_ids(b, "token_ids", g->tokens.ids + g->n_prompt + g->n_said,
               g->tokens.len - g->n_prompt - g->n_said);
    buf_add_byte(b, ',');
    g->n_said = (uint32_t)g->tokens.len - g->n_prompt;
}

/* ,"logprobs":..., */
static void answer_logprobs(const struct exchange *x, struct buf *b, struct gen *g)
{
    buf_add_byte(b, ',');
    if (x->format == EXCHANGE_CHAT)
        logprobs_write_chat(b, g);
    else
        logprobs_write_text(b, g);
    buf_add_byte(b, ',');
}

/* The beginning of an event with one choice, up to its text or delta, which the caller adds. The
 * beginning is the same for all events of a choice, so it is written once, kept in the arena and
 * copied, because events are mostly a few bytes long and streams have thousands. */
static void answer_chunk_begin(struct exchange *x, struct gen *g, bool first)
{
    struct buf *out = &x->out;
    bool has_ids = first && x->return_ids;
    size_t from = out->len;

    if (g->chunk_head != NULL && !has_ids) {
        buf_add(out, g->chunk_head, g->chunk_head_len);
    } else {
        buf_add_text(out, "data: ");
        answer_object(x, out, answer_chunk_object(x));
        buf_add_byte(out, ',');
        if (has_ids)
            answer_prompt_ids(out, g);
        buf_printf(out, "\"choices\":[{\"index\":%d,", g->index);
        if (!has_ids && !out->failed) {
            g->chunk_head_len = out->len - from;
            g->chunk_head = arena_strndup(&x->arena, out->bytes + from, g->chunk_head_len);
        }
    }
    answer_choice_ids(x, out, g, g->n_said == 0);
}

/* The end of an event: log probabilities, finish_reason, and usage if requested per event. */
static void answer_chunk_end(struct exchange *x, struct gen *g)
{
    struct buf *out = &x->out;

    if (g->finish == GEN_RUNNING && (g->request.flags & WIRE_LOGPROBS) == 0) {
        buf_add_text(out, ",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null");
    } else {
        answer_logprobs(x, out, g);
        answer_reasons(x, out, g);
    }
    if (x->usage_always) {
        buf_add_text(out, "}],");
        answer_usage(x, out);
        buf_add_text(out, "}\n\n");
    } else {
        buf_add_text(out, x->include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
    }
}

/* An event with a piece of content. */
static void answer_chunk(struct exchange *x, struct gen *g, const char *text, size_t len)
{
    struct buf *out = &x->out;

    const char *head = "\"text\":";

    if (x->format == EXCHANGE_CHAT)
        head = len > 0 ? "\"delta\":{\"content\":" : "\"delta\":{";
    answer_chunk_begin(x, g, false);
    buf_add_text(out, head);
    if (x->format == EXCHANGE_COMPLETION || len > 0)
        buf_add_json_string(out, text, len);
    if (x->format == EXCHANGE_CHAT)
        buf_add_byte(out, '}');
    answer_chunk_end(x, g);
}

/* --- replies that are parsed ----------------------------------------------------------
 *
 * A chat's text goes through the reply parser (text/output/reply.h), which reports content,
 * reasoning and tool calls as events. A stream turns each event into a chunk; otherwise they are
 * collected in g->speech until the end. */

/* Ids must be unique per call, and equal when a stream and a whole answer are made of the same
 * output, so they are a hash of the answer's id, the choice and the call. */
void answer_call_id(const struct gen *g, int call, char id[40])
{
    struct hash digest = hash_sha256(g->exchange->id, strlen(g->exchange->id),
                                     (const int[]){g->index, call}, 2 * sizeof(int));
    char hex[2 * sizeof digest + 1];
    /* its templates want nine characters */
    bool is_mistral = g->speech->reply.o.format == REPLY_MISTRAL;
    const char *prefix = g->exchange->shape == SHAPE_MESSAGES ? "toolu_" : "call_";

    must(g->speech != NULL);
    must(call >= 0);
    hash_hex(digest.bytes, sizeof digest.bytes, hex);
    (void)snprintf(id, 40, is_mistral ? "%s%.9s" : "%s%.24s", is_mistral ? "" : prefix, hex);
}

/* A chunk with "tool_calls":[{...}]: the name of a call that begins, or a piece of its
 * arguments. */
static void answer_call_delta(struct gen *g, const struct reply_event *e)
{
    struct exchange *x = g->exchange;
    char id[40];

    answer_chunk_begin(x, g, false);
    buf_printf(&x->out, "\"delta\":{\"tool_calls\":[{\"index\":%d,", e->call);
    if (e->kind == REPLY_CALL_BEGIN) {
        answer_call_id(g, e->call, id);
        buf_printf(&x->out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id);
        buf_add_json_string(&x->out, e->bytes, e->len);
        buf_add_text(&x->out, ",\"arguments\":\"\"}}]}");
    } else {
        buf_add_text(&x->out, "\"function\":{\"arguments\":");
        buf_add_json_string(&x->out, e->bytes, e->len);
        buf_add_text(&x->out, "}}]}");
    }
    answer_chunk_end(x, g);
}

/* Both of vLLM's names, because each client reads one of them. */
static void answer_reasoning(struct buf *b, const char *text, size_t len)
{
    buf_add_text(b, "\"reasoning\":");
    buf_add_json_string(b, text, len);
    buf_add_text(b, ",\"reasoning_content\":");
    buf_add_json_string(b, text, len);
}

/* One event of a streamed reply. */
static void answer_said_stream(struct gen *g, const struct reply_event *e)
{
    struct exchange *x = g->exchange;

    switch (e->kind) {
    case REPLY_CONTENT: answer_chunk(x, g, e->bytes, e->len); break;
    case REPLY_REASON:
        answer_chunk_begin(x, g, false);
        buf_add_text(&x->out, "\"delta\":{");
        answer_reasoning(&x->out, e->bytes, e->len);
        buf_add_byte(&x->out, '}');
        answer_chunk_end(x, g);
        break;
    case REPLY_CALL_BEGIN:
    case REPLY_CALL_ARGS: answer_call_delta(g, e); break;
    case REPLY_CALL_END: break;
    }
}

/* One event of a reply that is sent as a whole. Members of tool_calls are written directly as JSON;
 * the last one stays open, because its arguments may still grow. */
static void answer_said_whole(struct gen *g, const struct reply_event *e)
{
    struct speech *speech = g->speech;
    char id[40];

    switch (e->kind) {
    case REPLY_CONTENT: buf_add(&speech->content, e->bytes, e->len); break;
    case REPLY_REASON: buf_add(&speech->reasoning, e->bytes, e->len); break;
    case REPLY_CALL_BEGIN:
        answer_call_id(g, e->call, id);
        buf_printf(&speech->calls, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                   speech->calls.len == 0 ? "" : "\"}},", id);
        buf_add_json_string(&speech->calls, e->bytes, e->len);
        buf_add_text(&speech->calls, ",\"arguments\":\"");
        break;
    case REPLY_CALL_ARGS: buf_add_json_text(&speech->calls, e->bytes, e->len); break;
    case REPLY_CALL_END: break; /* the next call or the list's end closes it */
    }
}

/* All events pass here first: parts that the request does not want are dropped. */
static void answer_said(void *arg, const struct reply_event *e)
{
    struct gen *g = arg;
    struct exchange *x = g->exchange;

    if (e->kind == REPLY_REASON && x->hides_reasoning)
        return;
    if (e->kind != REPLY_CONTENT && e->kind != REPLY_REASON && e->call > 0 && x->one_call)
        return;
    if (e->kind == REPLY_CALL_BEGIN)
        g->speech->n_calls++;
    if (answer_has_blocks(x))
        blocks_said(g, e);
    else if (x->stream)
        answer_said_stream(g, e);
    else
        answer_said_whole(g, e);
}

/* Set up the parser of a choice's reply. */
void answer_listen(struct gen *g, const struct reply_options *o)
{
    must(g->speech != NULL);
    reply_init(&g->speech->reply, o, answer_said, g);
}

/* Pass g->text to the reply parser. When the parser runs out of memory, the answer fails. */
static void answer_hear(struct gen *g, bool ended)
{
    struct speech *speech = g->speech;
    int rc = reply_push(&speech->reply, g->text.bytes, g->text.len);

    must(g->speech != NULL);
    buf_clear(&g->text);
    if (rc == ERR_OK && ended)
        rc = reply_finish(&speech->reply);
    if (reply_is_reasoning(&speech->reply))
        speech->n_reasoning = (uint32_t)g->tokens.len - g->n_prompt;
    if (g->exchange->shape == SHAPE_RESPONSES && !reply_may_be_content(&speech->reply))
        logprobs_skip(g);
    if (rc != ERR_OK)
        g->exchange->out.failed = true;
}

/* Write, inside a JSON string, the content of the echoed message; parts are separated by line
 * feeds. */
static void answer_echo(struct buf *b, const struct json *content)
{
    if (content->kind == JSON_TEXT)
        buf_add_json_text(b, content->text, content->text_len);
    for (uint32_t i = 0; content->kind == JSON_LIST && i < content->n; i++) {
        const struct json *text = chat_part_text(&content->items[i]);

        buf_add_text(b, i == 0 ? "" : "\\n");
        if (text != NULL)
            buf_add_json_text(b, text->text, text->text_len);
    }
}

/* "content" is null, not "", when a message has only tool calls. */
static void answer_content(struct buf *b, const struct gen *g, const struct buf *text)
{
    const struct json *echoed = g->echoed;

    if (g->speech != NULL && g->speech->n_calls > 0 && text->len == 0 && echoed == NULL) {
        buf_add_text(b, "null");
        return;
    }
    buf_add_byte(b, '"');
    if (echoed != NULL)
        answer_echo(b, echoed);
    buf_add_json_text(b, buf_text(text), text->len);
    buf_add_byte(b, '"');
}

/* "message": all members that OpenAI's and vLLM's clients may look for, null where there is
 * nothing. */
static void answer_message(struct buf *b, const struct gen *g)
{
    const struct speech *speech = g->speech;

    buf_add_text(b, "\"message\":{\"role\":");
    buf_add_json_string(b, g->exchange->role, strlen(g->exchange->role));
    buf_add_text(b, ",\"content\":");
    answer_content(b, g, speech == NULL ? &g->text : &speech->content);
    buf_add_text(b, ",\"refusal\":null,\"annotations\":null,\"audio\":null,"
                    "\"function_call\":null,");
    if (speech != NULL && speech->reasoning.len > 0)
        answer_reasoning(b, speech->reasoning.bytes, speech->reasoning.len);
    else
        buf_add_text(b, "\"reasoning\":null,\"reasoning_content\":null");
    buf_add_text(b, ",\"tool_calls\":[");
    if (speech != NULL && speech->n_calls > 0) {
        buf_add(b, speech->calls.bytes, speech->calls.len);
        buf_add_text(b, "\"}}");
    }
    buf_add_byte(b, ']');
    b->failed = b->failed || (speech != NULL && (speech->content.failed ||
                                                 speech->reasoning.failed || speech->calls.failed));
    buf_add_byte(b, '}');
}

/* --- answers ------------------------------------------------------------------------------
 *
 * Calls of the streamer, in the order of an answer's life: answer_begin(), answer_text() per batch
 * of tokens, answer_end() per choice. */

/* A chat's stream begins with a chunk that has the role and empty content, then the echo. */
static void answer_first_chunk(struct exchange *x, struct gen *g)
{
    must(x->stream);
    answer_chunk_begin(x, g, true);
    buf_add_text(&x->out, "\"delta\":{\"role\":");
    buf_add_json_string(&x->out, x->role, strlen(x->role));
    buf_add_text(&x->out, ",\"content\":\"\"}");
    answer_chunk_end(x, g);
    if (g->echoed == NULL)
        return;
    answer_chunk_begin(x, g, false);
    buf_add_text(&x->out, "\"delta\":{\"content\":\"");
    answer_echo(&x->out, g->echoed);
    buf_add_text(&x->out, "\"}");
    answer_chunk_end(x, g);
}

/* The engine has admitted a choice: a stream sends its head. Without a stream nothing is sent
 * before the end, because the status may still become an error. */
void answer_begin(struct exchange *x)
{
    if (x->head_sent || !x->stream)
        return;
    /* X-Accel-Buffering: nginx must pass each event on at once. */
    buf_add_text(&x->out, "Status: 200 OK\r\n"
                          "Content-Type: text/event-stream; charset=utf-8\r\n"
                          "Cache-Control: no-cache\r\n"
                          "X-Accel-Buffering: no\r\n");
    exchange_add_notice(x);
    buf_add_text(&x->out, "\r\n");
    x->head_sent = true;
    if (answer_has_blocks(x)) {
        blocks_begin(&x->gens[0]);
        return;
    }
    for (int i = 0; i < x->n_gens && x->format == EXCHANGE_CHAT && x->shape == SHAPE_OPENAI; i++)
        answer_first_chunk(x, &x->gens[i]);
}

/* New text of a choice: send it, or pass it to the parser. */
void answer_text(struct exchange *x, struct gen *g)
{
    must(g->exchange == x);
    if (x->shape == SHAPE_TOKENS) {
        answer_tokens(x, g);
        return;
    }
    if (g->text.len == 0)
        return;
    if (g->speech != NULL) {
        answer_hear(g, false);
    } else if (x->stream) {
        answer_chunk(x, g, g->text.bytes, g->text.len);
        buf_clear(&g->text);
    }
}

/* The whole answer of a request without streaming. */
static void answer_body(struct exchange *x)
{
    struct buf buf = {0};

    must(!x->stream);
    answer_object(x, &buf, x->format == EXCHANGE_CHAT ? "chat.completion" : "text_completion");
    buf_add_text(&buf, ",\"choices\":[");
    for (int i = 0; i < x->n_gens; i++) {
        struct gen *g = &x->gens[i];
        const char *text = buf_text(&g->text);

        buf_add_comma(&buf, i > 0);
        buf_printf(&buf, "{\"index\":%d,", g->index);
        answer_choice_ids(x, &buf, g, true);
        if (x->format == EXCHANGE_CHAT) {
            answer_message(&buf, g);
        } else {
            buf_add_text(&buf, "\"text\":");
            buf_add_json_string(&buf, text, g->text.len);
        }
        answer_logprobs(x, &buf, g);
        if (x->format == EXCHANGE_COMPLETION)
            answer_prompt(x, &buf, &x->gens[i - i % x->n]);
        answer_reasons(x, &buf, g);
        buf_add_byte(&buf, '}');
    }
    buf_printf(&buf, "],\"service_tier\":null,\"system_fingerprint\":\"%s\",", x->fingerprint);
    if (x->format == EXCHANGE_CHAT && x->n_gens > x->n) /* several prompts, so no common one */
        buf_add_text(&buf, "\"prompt_logprobs\":null,\"prompt_token_ids\":null,");
    else if (x->format == EXCHANGE_CHAT)
        answer_prompt(x, &buf, &x->gens[0]);
    buf_add_text(&buf, "\"kv_transfer_params\":");
    if (x->brought != NULL && x->brought->kv_transfer != NULL)
        json_write(&buf, x->brought->kv_transfer, JSON_EXACT);
    else
        buf_add_text(&buf, "null");
    buf_add_byte(&buf, ',');
    answer_usage(x, &buf);
    buf_add_byte(&buf, '}');
    exchange_reply_json(x, &buf);
}

/* The rest of the text, at the end of a choice. Clients ignore a choice's events after its
 * finish_reason, so these must not have one yet; the last event has it, when all calls are
 * known. */
static void answer_rest(struct exchange *x, struct gen *g)
{
    enum gen_finish finish = g->finish;

    g->finish = GEN_RUNNING;
    answer_begin(x); /* if the engine sent only an end */
    answer_text(x, g);
    if (g->speech != NULL)
        answer_hear(g, true);
    g->finish = finish;
}

/* A choice has ended. The last one of an answer completes it. */
void answer_end(struct exchange *x, struct gen *g)
{
    must(g->exchange == x);
    must(x->n_finished < x->n_gens);
    x->n_finished++;
    if (x->pooled != NULL) {
        if (x->n_finished == x->n_gens)
            pooled_reply(x);
        return;
    }
    answer_rest(x, g);
    if (x->shape == SHAPE_TOKENS) {
        answer_tokens_end(x, g);
        return;
    }
    if (answer_has_blocks(x)) {
        blocks_end(g);
        return;
    }
    if (x->stream)
        answer_chunk(x, g, "", 0);
    if (x->n_finished < x->n_gens)
        return;
    if (x->shape == SHAPE_KSERVE) {
        answer_kserve_body(x);
        return;
    }
    if (!x->stream) {
        answer_body(x);
        return;
    }
    /* The usage is an event of its own, without choices. */
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

/* Something for proxies that close connections without traffic. Clients ignore both forms. */
void answer_keepalive(struct exchange *x)
{
    if (x->stream && x->head_sent && x->shape == SHAPE_MESSAGES)
        buf_add_text(&x->out, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    else if (x->stream && x->head_sent)
        buf_add_text(&x->out, ": keep-alive\n\n");
}

/* End with an error. In a stream whose status was sent it is an event, as in OpenAI's API. */
void answer_fail(struct exchange *x, int err, const char *message, const char *param,
                 int retry_after_s)
{
    if (!x->head_sent) {
        exchange_reply_error(x, err, message, param, retry_after_s);
        return;
    }
    if (answer_has_blocks(x)) {
        blocks_fail(&x->gens[0], err, message);
        x->complete = true;
        return;
    }
    buf_add_text(&x->out, "data: ");
    exchange_add_error(&x->out, err, message, param);
    buf_add_text(&x->out, "\n\n");
    x->complete = true;
}
