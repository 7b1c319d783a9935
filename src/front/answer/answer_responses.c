/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of POST /v1/responses: OpenAI's response object, and the events of a stream. A response
 * is a list of output items (message, reasoning, function_call); an item is one block. Events are
 * numbered; the numbers have no gaps.
 *
 * The events of a response with one message:
 *
 *   response.created  response.in_progress
 *   response.output_item.added  response.content_part.added
 *   response.output_text.delta ...  response.output_text.done
 *   response.content_part.done  response.output_item.done
 *   response.completed */
#include <string.h>

#include "base/must.h"
#include "front/answer/answer.h"
#include "front/answer/blocks.h"
#include "front/kept/kept.h"
#include "front/request/translate.h"

/* Begin an event, with the next number. */
static void responses_event(struct gen *g, const char *name)
{
    blocks_event(g, name);
    buf_printf(&g->exchange->out, ",\"sequence_number\":%u", g->speech->blocks.n_events++);
}

/* --- the response -------------------------------------------------------------------------- */

/* Write ,"name": and the member of the request with this name, or fallback when it is missing. */
static void responses_repeat(const struct exchange *x, struct buf *b, const char *name,
                             const char *fallback)
{
    const struct json *value = json_get(x->request, name);

    buf_printf(b, ",\"%s\":", name);
    if (value == NULL || value->kind == JSON_NULL)
        buf_add_text(b, fallback);
    else
        json_write(b, value, JSON_EXACT);
}

/* A tool of the request. A function gets all members that OpenAI's clients require; other tools are
 * repeated unchanged. */
static void responses_tool(struct buf *b, const struct json *tool)
{
    static const struct {
        const char *name;
        const char *fallback;
    } rows[] = {{"type", "\"function\""},
                {"name", "\"\""},
                {"description", "null"},
                {"parameters", "null"},
                {"strict", "false"}};

    if (!json_is_text(json_get(tool, "type"), "function")) {
        json_write(b, tool, JSON_EXACT);
        return;
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct json *value = json_get(tool, rows[i].name);

        buf_printf(b, "%s\"%s\":", i == 0 ? "{" : ",", rows[i].name);
        if (value == NULL || value->kind == JSON_NULL ||
            (value->kind != JSON_BOOL && strcmp(rows[i].name, "strict") == 0))
            buf_add_text(b, rows[i].fallback);
        else
            json_write(b, value, JSON_EXACT);
    }
    buf_add_byte(b, '}');
}

/* The members of a response that repeat the request. */
static void responses_request(const struct gen *g, struct buf *b)
{
    const struct exchange *x = g->exchange;
    const struct json *tools = json_get_kind(x->request, "tools", JSON_LIST);
    const struct json *reasoning = json_get_kind(x->request, "reasoning", JSON_OBJECT);
    const struct json *text = json_get_kind(x->request, "text", JSON_OBJECT);
    const struct json *format = json_get_kind(text, "format", JSON_OBJECT);

    responses_repeat(x, b, "instructions", "null");
    responses_repeat(x, b, "metadata", "{}");
    responses_repeat(x, b, "tool_choice", "\"auto\"");
    responses_repeat(x, b, "parallel_tool_calls", "true");
    responses_repeat(x, b, "max_output_tokens", "null");
    responses_repeat(x, b, "top_logprobs", "0");
    buf_add_text(b, ",\"tools\":[");
    /* Tools as the client sent them, not as the chat's functions that were made of them. */
    for (uint32_t i = 0; tools != NULL && i < tools->n; i++) {
        if (i > 0)
            buf_add_byte(b, ',');
        responses_tool(b, &tools->items[i]);
    }
    buf_printf(b, "],\"temperature\":%.7g,\"top_p\":%.7g",
               (double)g->request.generate.sampling.temperature,
               (double)g->request.generate.sampling.top_p);
    buf_add_text(b, ",\"text\":{\"format\":");
    if (format == NULL)
        buf_add_text(b, "{\"type\":\"text\"}");
    else
        json_write(b, format, JSON_EXACT);
    buf_add_text(b, "},\"reasoning\":{\"effort\":");
    if (json_get_kind(reasoning, "effort", JSON_TEXT) == NULL)
        buf_add_text(b, "null");
    else
        json_write(b, json_get(reasoning, "effort"), JSON_EXACT);
    buf_add_text(b, ",\"summary\":null}");
    responses_repeat(x, b, "truncation", "\"disabled\"");
    buf_printf(b, ",\"store\":%s,\"background\":false",
               json_flag_text(x->keeping != NULL && !x->keeping->failed));
    responses_repeat(x, b, "previous_response_id", "null");
}

/* The tokens of the answer, in this API's names. */
static void responses_usage(const struct gen *g, struct buf *b)
{
    uint32_t n_output = blocks_output_tokens(g);

    buf_printf(b,
               ",\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,"
               "\"cache_write_tokens\":0",
               g->n_prompt, g->n_cached);
    answer_groups(g, 1, 1, b);
    buf_printf(b,
               "},\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":%u},"
               "\"total_tokens\":%llu}",
               n_output, g->speech->n_reasoning, (unsigned long long)g->n_prompt + n_output);
}

/* The status of the response for the state of its generation. */
static const char *responses_status(const struct gen *g)
{
    switch (g->finish) {
    case GEN_RUNNING: return "in_progress";
    case GEN_STOP: return "completed";
    case GEN_LENGTH: return "incomplete";
    case GEN_FAILED: break;
    }
    return "failed";
}

/* The whole response object. err and message are used when it has failed. */
static void responses_object(const struct gen *g, struct buf *b, int err, const char *message)
{
    const struct exchange *x = g->exchange;
    const struct buf *done = &g->speech->blocks.done;

    buf_printf(b,
               "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\","
               "\"model\":",
               x->id, (long long)x->created, responses_status(g));
    buf_add_json_string(b, x->model, strlen(x->model));
    /* A response that is incomplete or failed has no time of completion. */
    if (g->finish == GEN_STOP)
        buf_printf(b, ",\"completed_at\":%lld", (long long)x->completed);
    buf_add_text(b, ",\"error\":");
    if (g->finish == GEN_FAILED) {
        buf_printf(b, "{\"code\":\"%s\",\"message\":",
                   err_http_status(err) == 429 ? "rate_limit_exceeded" : "server_error");
        buf_add_json_string(b, message, strlen(message));
        buf_add_byte(b, '}');
    } else {
        buf_add_text(b, "null");
    }
    buf_add_text(b, ",\"incomplete_details\":");
    buf_add_text(b, g->finish == GEN_LENGTH ? "{\"reason\":\"max_output_tokens\"}" : "null");
    buf_add_text(b, ",\"output\":[");
    buf_add(b, buf_text(done), done->len);
    buf_add_byte(b, ']');
    responses_request(g, b);
    if (g->finish == GEN_STOP || g->finish == GEN_LENGTH)
        responses_usage(g, b);
    buf_add_byte(b, '}');
}

/* --- items --------------------------------------------------------------------------------- */

/* The tool to which the open call belongs. */
static struct translate_called responses_called(const struct gen *g)
{
    const struct blocks *blocks = &g->speech->blocks;

    return translate_find_tool(g->exchange->request, buf_text(&blocks->name));
}

/* Is the open item a call of a custom tool? */
static bool responses_is_custom(const struct gen *g)
{
    return g->speech->blocks.kind == REPLY_CALL_BEGIN && responses_called(g).is_custom;
}

/* Prefixes of item ids, as in OpenAI's answers: msg_, rs_, fc_, ctc_. */
static const char *responses_item_prefix(const struct gen *g)
{
    const struct blocks *blocks = &g->speech->blocks;

    if (blocks->kind == REPLY_CALL_BEGIN)
        return responses_is_custom(g) ? "ctc" : "fc";
    if (blocks->kind == REPLY_CONTENT)
        return "msg";
    return "rs";
}

/* "NAME":"the id of the open item" */
static void responses_item_id(const struct gen *g, struct buf *b, const char *name)
{
    const struct blocks *blocks = &g->speech->blocks;

    must(blocks->n > 0);
    buf_printf(b, "\"%s\":\"%s_%s_%d\"", name, responses_item_prefix(g), g->exchange->request_id,
               blocks->n - 1);
}

/* ,"logprobs":[...] of the open text, from byte `from` of the list on. */
static void responses_logprobs(const struct blocks *k, struct buf *b, size_t from)
{
    if (from > 0 && from < k->told.len)
        from++; /* skip the comma */
    buf_add_text(b, ",\"logprobs\":[");
    if (from < k->told.len)
        buf_add(b, k->told.bytes + from, k->told.len - from);
    buf_add_byte(b, ']');
}

/* The one part that a message or a reasoning has. */
static void responses_part(const struct blocks *k, struct buf *b)
{
    if (k->kind == REPLY_REASON) {
        buf_add_text(b, "{\"type\":\"reasoning_text\",");
        blocks_add_text(b, "text", &k->text);
        buf_add_byte(b, '}');
    } else {
        buf_add_text(b, "{\"type\":\"output_text\",");
        blocks_add_text(b, "text", &k->text);
        buf_add_text(b, ",\"annotations\":[]");
        responses_logprobs(k, b, 0);
        buf_add_byte(b, '}');
    }
}

/* "NAME":"...": the text with which a custom tool is called. The model has written {"input":
 * "text"}, and the text can be taken out only when that is complete. */
static void responses_input(const struct gen *g, struct buf *b, const char *name)
{
    const struct buf *text = &g->speech->blocks.text;
    struct arena scratch = {.limit_bytes = g->exchange->arena.limit_bytes};
    const struct json *value = NULL;
    const struct json *input = NULL;

    /* In an arena of its own, as in blocks_is_object(). */
    if (text->len > 0 && json_parse(&value, &scratch, text->bytes, text->len, NULL, 0) == ERR_OK)
        input = json_get_kind(value, "input", JSON_TEXT);
    buf_printf(b, "\"%s\":", name);
    if (input != NULL)
        buf_add_json_string(b, input->text, input->text_len);
    else
        buf_add_text(b, "\"\"");
    arena_reset(&scratch);
}

/* The members of a call that follow its id and status. */
static void responses_call(const struct gen *g, struct buf *b)
{
    const struct blocks *blocks = &g->speech->blocks;
    struct translate_called called = responses_called(g);
    char id[40];

    answer_call_id(g, blocks->call, id);
    buf_printf(b, ",\"type\":\"%s\",\"call_id\":\"%s\",\"name\":",
               called.is_custom ? "custom_tool_call" : "function_call", id);
    buf_add_json_string(b, called.name, strlen(called.name));
    /* The client gets its own names back: the namespace, and the name without it. */
    if (called.space != NULL) {
        buf_add_text(b, ",\"namespace\":");
        buf_add_json_string(b, called.space, strlen(called.space));
    }
    buf_add_byte(b, ',');
    if (called.is_custom)
        responses_input(g, b, "input");
    else
        blocks_add_text(b, "arguments", &blocks->text);
}

/* The open item. Before its first text it has an empty content. */
static void responses_item(const struct gen *g, struct buf *b, const char *status)
{
    const struct blocks *blocks = &g->speech->blocks;

    buf_add_byte(b, '{');
    responses_item_id(g, b, "id");
    buf_printf(b, ",\"status\":\"%s\"", status);
    if (blocks->kind == REPLY_CALL_BEGIN) {
        responses_call(g, b);
        buf_add_byte(b, '}');
        return;
    }
    buf_add_text(b, blocks->kind == REPLY_REASON ? ",\"type\":\"reasoning\",\"summary\":[]"
                                                 : ",\"type\":\"message\",\"role\":\"assistant\"");
    buf_add_text(b, ",\"content\":[");
    if (blocks->text.len > 0)
        responses_part(blocks, b);
    buf_add_text(b, "]}");
}

/* The members with which an event refers to an item and its part. */
static void responses_place(const struct gen *g, struct buf *b)
{
    const struct blocks *blocks = &g->speech->blocks;

    buf_add_byte(b, ',');
    responses_item_id(g, b, "item_id");
    buf_printf(b, ",\"output_index\":%d", blocks->n - 1);
    if (blocks->kind != REPLY_CALL_BEGIN)
        buf_add_text(b, ",\"content_index\":0");
}

/* --- events -------------------------------------------------------------------------------- */

/* Events about the whole response, about an item, and about a part. */
static void responses_say(struct gen *g, const char *event, int err, const char *message)
{
    responses_event(g, event);
    buf_add_text(&g->exchange->out, ",\"response\":");
    responses_object(g, &g->exchange->out, err, message);
    blocks_event_end(g);
}

/* The two events with which each stream begins. */
static void responses_begin(struct gen *g)
{
    responses_say(g, "response.created", ERR_OK, NULL);
    responses_say(g, "response.in_progress", ERR_OK, NULL);
}

/* An event with the open item. */
static void responses_say_item(struct gen *g, const char *event, const char *status)
{
    struct buf *out = &g->exchange->out;

    responses_event(g, event);
    buf_printf(out, ",\"output_index\":%d,\"item\":", g->speech->blocks.n - 1);
    responses_item(g, out, status);
    blocks_event_end(g);
}

/* An event with the part of the open item. */
static void responses_say_part(struct gen *g, const char *event)
{
    struct buf *out = &g->exchange->out;

    responses_event(g, event);
    responses_place(g, out);
    buf_add_text(out, ",\"part\":");
    responses_part(&g->speech->blocks, out);
    blocks_event_end(g);
}

/* The events of an item that begins. A call has no parts. */
static void responses_open(struct gen *g)
{
    must(g->exchange->stream);
    responses_say_item(g, "response.output_item.added", "in_progress");
    if (g->speech->blocks.kind != REPLY_CALL_BEGIN)
        responses_say_part(g, "response.content_part.added");
}

/* A piece of the open item's text has come: an event with the delta. Log probabilities are those of
 * the tokens since the last delta. */
static void responses_piece(struct gen *g, const char *text, size_t len)
{
    struct blocks *blocks = &g->speech->blocks;
    struct buf *out = &g->exchange->out;

    must(g->exchange->stream);
    if (responses_is_custom(g))
        return; /* its text is inside JSON; it is sent when the call is complete */
    if (blocks->kind == REPLY_CONTENT)
        responses_event(g, "response.output_text.delta");
    else if (blocks->kind == REPLY_REASON)
        responses_event(g, "response.reasoning_text.delta");
    else
        responses_event(g, "response.function_call_arguments.delta");
    responses_place(g, out);
    buf_add_text(out, ",\"delta\":");
    buf_add_json_string(out, text, len);
    if (blocks->kind == REPLY_CONTENT)
        responses_logprobs(blocks, out, blocks->told_said);
    blocks->told_said = blocks->told.len;
    blocks_event_end(g);
}

/* An event with the text of a custom tool's call. */
static void responses_say_input(struct gen *g, const char *event, const char *name)
{
    struct buf *out = &g->exchange->out;

    responses_event(g, event);
    responses_place(g, out);
    buf_add_byte(out, ',');
    responses_input(g, out, name);
    blocks_event_end(g);
}

/* The end of an item in a stream: the whole text once more, then the whole part, then the whole
 * item, as OpenAI's API sends them. */
static void responses_close_stream(struct gen *g, const char *status)
{
    const struct blocks *blocks = &g->speech->blocks;
    struct buf *out = &g->exchange->out;

    if (responses_is_custom(g)) {
        responses_say_input(g, "response.custom_tool_call_input.delta", "delta");
        responses_say_input(g, "response.custom_tool_call_input.done", "input");
        responses_say_item(g, "response.output_item.done", status);
        return;
    }
    if (blocks->kind == REPLY_CONTENT)
        responses_event(g, "response.output_text.done");
    else if (blocks->kind == REPLY_REASON)
        responses_event(g, "response.reasoning_text.done");
    else
        responses_event(g, "response.function_call_arguments.done");
    responses_place(g, out);
    buf_add_byte(out, ',');
    if (blocks->kind == REPLY_CALL_BEGIN) {
        blocks_add_text(out, "name", &blocks->name);
        buf_add_byte(out, ',');
    }
    blocks_add_text(out, blocks->kind == REPLY_CALL_BEGIN ? "arguments" : "text", &blocks->text);
    if (blocks->kind == REPLY_CONTENT)
        responses_logprobs(blocks, out, 0);
    blocks_event_end(g);
    if (blocks->kind != REPLY_CALL_BEGIN)
        responses_say_part(g, "response.content_part.done");
    responses_say_item(g, "response.output_item.done", status);
}

/* A call whose arguments are not a JSON object was cut, whatever is_cut is. */
static void responses_close(struct gen *g, bool is_cut)
{
    struct blocks *blocks = &g->speech->blocks;
    const char *status;

    if (blocks->kind == REPLY_CALL_BEGIN)
        is_cut = !blocks_is_object(g);
    if (is_cut)
        status = "incomplete";
    else
        status = "completed";
    if (g->exchange->stream)
        responses_close_stream(g, status);
    responses_item(g, &blocks->done, status);
}

/* The answer without a stream. */
static void responses_body(struct gen *g, struct buf *b)
{
    responses_object(g, b, ERR_OK, NULL);
}

/* The last event of a stream. */
static void responses_finish(struct gen *g)
{
    responses_say(g, g->finish == GEN_STOP ? "response.completed" : "response.incomplete", ERR_OK,
                  NULL);
}

/* The stream ends with an error. The HTTP status was sent long ago, so the event is the only place
 * for it. */
static void responses_fail(struct gen *g, int err, const char *message)
{
    g->finish = GEN_FAILED;
    responses_say(g, "response.failed", err, message);
}

const struct blocks_shape blocks_responses = {
    .begin = responses_begin,
    .open = responses_open,
    .piece = responses_piece,
    .close = responses_close,
    .body = responses_body,
    .finish = responses_finish,
    .fail = responses_fail,
};
