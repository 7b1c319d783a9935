/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a reply's events become the blocks and events of Anthropic's API and of responses, as a
 * stream and as a whole. Method: replies that the demo model does not give (reasoning, two calls,
 * one that is cut) said to an exchange without a client; what it would send is compared. */
#include "front/answer/blocks.h"

#include "front/answer/answer.h"
#include "tests/tap.h"

struct said {
    enum reply_kind kind;
    int call;
    const char *text;
};

static const struct said full[] = {
    {REPLY_REASON, 0, "h"},     {REPLY_REASON, 0, "m"},         {REPLY_CONTENT, 0, "a\n"},
    {REPLY_CALL_BEGIN, 0, "f"}, {REPLY_CALL_ARGS, 0, "{\"k\""}, {REPLY_CALL_ARGS, 0, ": 1}"},
    {REPLY_CALL_END, 0, ""},    {REPLY_CALL_BEGIN, 1, "g"},     {REPLY_CALL_ARGS, 1, "{\"k\""},
};

/* What the exchange would send for n events that end so. */
static void answer(struct buf *out, enum exchange_shape shape, bool stream, size_t n,
                   enum gen_finish finish)
{
    struct token_list tokens = {.ids = (int32_t[]){1, 2, 3, 4, 5}, .len = 5};
    struct speech speech = {.n_reasoning = 2};
    struct exchange x = {.shape = shape,
                         .stream = stream,
                         .request_id = "R",
                         .id = "ID",
                         .created = 7,
                         .model = "demo"};
    struct gen g = {.exchange = &x,
                    .tokens = tokens,
                    .n_prompt = 3,
                    .n_cached = 1,
                    .stop_id = -1,
                    .request = {.generate.sampling = {.temperature = 0.7f, .top_p = 1.0f}},
                    .speech = &speech};

    x.gens = &g;
    x.n_gens = 1;
    if (stream)
        answer_begin(&x);
    for (size_t i = 0; i < n; i++) {
        struct reply_event e = {.kind = full[i].kind,
                                .call = full[i].call,
                                .bytes = full[i].text,
                                .len = strlen(full[i].text)};

        if (e.kind == REPLY_CALL_BEGIN)
            speech.n_calls++;
        blocks_said(&g, &e);
    }
    g.finish = finish;
    if (finish == GEN_FAILED)
        answer_fail(&x, ERR_ENGINE_GONE, "gone", NULL, 0);
    else
        blocks_end(&g);
    ok(x.complete, "it is complete");
    buf_clear(out);
    buf_add(out, x.out.bytes, x.out.len);
    buf_fini(&x.out);
    buf_fini(&speech.blocks.name);
    buf_fini(&speech.blocks.text);
    buf_fini(&speech.blocks.told);
    buf_fini(&speech.blocks.done);
}

static bool has(const struct buf *out, const char *text)
{
    if (strstr(out->bytes, text) != NULL)
        return true;
    printf("# no  %s\n# in  %s\n", text, out->bytes);
    return false;
}

/* The names of a stream's events, each with the letter of its delta or block, in order. */
static void names(const struct buf *out, char list[2000])
{
    size_t len = 0;

    for (const char *p = out->bytes; (p = strstr(p, "event: ")) != NULL; p++) {
        size_t n = strcspn(p + 7, "\n");

        len +=
            (size_t)snprintf(list + len, 2000 - len, "%s%.*s", len == 0 ? "" : " ", (int)n, p + 7);
    }
}

static void test_messages(struct buf *out)
{
    char list[2000];

    answer(out, SHAPE_MESSAGES, false, 7, GEN_STOP);
    ok(has(out, "\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\""),
       "thinking");
    ok(has(out, "\"},{\"type\":\"text\",\"text\":\"a\\n\"},{\"type\":\"tool_use\",\"id\":\"toolu_"),
       "a text");
    ok(has(out, "\"name\":\"f\",\"input\":{\"k\": 1}}],\"stop_reason\":\"tool_use\","
                "\"stop_sequence\":null,\"usage\":{\"input_tokens\":2,"
                "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":1,"
                "\"output_tokens\":2,\"output_tokens_details\":{\"thinking_tokens\":2}}}"),
       "a call, the end and usage");
    answer(out, SHAPE_MESSAGES, false, 9, GEN_LENGTH);
    ok(has(out, "\"name\":\"g\",\"input\":{}}],\"stop_reason\":\"max_tokens\""),
       "a call that was cut has no arguments");
    answer(out, SHAPE_MESSAGES, false, 0, GEN_STOP);
    ok(has(out, "\"content\":[],\"stop_reason\":\"end_turn\""), "nothing said");
    answer(out, SHAPE_MESSAGES, true, 9, GEN_LENGTH);
    names(out, list);
    is_text(list,
            "message_start content_block_start content_block_delta content_block_delta "
            "content_block_delta content_block_stop content_block_start content_block_delta "
            "content_block_stop content_block_start content_block_delta content_block_delta "
            "content_block_stop content_block_start content_block_delta content_block_stop "
            "message_delta message_stop",
            "a stream's events");
    ok(has(out, "\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"m\"}"),
       "thinking grows");
    ok(has(out, "\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\""),
       "and is signed");
    ok(has(out, "\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\": 1}\"}"),
       "arguments grow");
    ok(has(out, "\"delta\":{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null},\"usage\":"),
       "the reason comes with the usage");
    answer(out, SHAPE_MESSAGES, true, 3, GEN_FAILED);
    ok(has(out, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
                "\"message\":\"gone\"},\"request_id\":\"R\"}\n\n"),
       "an error in a stream");
    answer(out, SHAPE_MESSAGES, false, 3, GEN_FAILED);
    ok(has(out, "Status: 529 Overloaded\r\n"), "an error before an answer");
}

static void test_responses(struct buf *out)
{
    char list[2000];

    answer(out, SHAPE_RESPONSES, false, 7, GEN_STOP);
    ok(has(out, "\"status\":\"completed\",\"model\":\"demo\",\"completed_at\":"), "completed");
    ok(has(out, "\"output\":[{\"id\":\"rs_R_0\",\"status\":\"completed\",\"type\":\"reasoning\","
                "\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"hm\"}]},"
                "{\"id\":\"msg_R_1\",\"status\":\"completed\",\"type\":\"message\","
                "\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"a\\n\","
                "\"annotations\":[],\"logprobs\":[]}]},{\"id\":\"fc_R_2\",\"status\":\"completed\","
                "\"type\":\"function_call\",\"call_id\":\"call_"),
       "the items");
    ok(has(out, "\"name\":\"f\",\"arguments\":\"{\\\"k\\\": 1}\"}]"), "a call");
    ok(has(out, "\"usage\":{\"input_tokens\":3,\"input_tokens_details\":{\"cached_tokens\":1,"
                "\"cache_write_tokens\":0},\"output_tokens\":2,\"output_tokens_details\":"
                "{\"reasoning_tokens\":2},\"total_tokens\":5}}"),
       "usage");
    ok(has(out, "\"temperature\":0.7,"), "a temperature as it was given");
    answer(out, SHAPE_RESPONSES, false, 9, GEN_LENGTH);
    ok(has(out, "\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"), "cut: the reason");
    ok(has(out, "{\"id\":\"fc_R_3\",\"status\":\"incomplete\""), "cut: the item");
    ok(has(out, "{\"id\":\"fc_R_2\",\"status\":\"completed\""), "not the one before it");
    answer(out, SHAPE_RESPONSES, true, 9, GEN_LENGTH);
    names(out, list);
    is_text(list,
            "response.created response.in_progress "
            "response.output_item.added response.content_part.added "
            "response.reasoning_text.delta response.reasoning_text.delta "
            "response.reasoning_text.done response.content_part.done response.output_item.done "
            "response.output_item.added response.content_part.added response.output_text.delta "
            "response.output_text.done response.content_part.done response.output_item.done "
            "response.output_item.added response.function_call_arguments.delta "
            "response.function_call_arguments.delta response.function_call_arguments.done "
            "response.output_item.done response.output_item.added "
            "response.function_call_arguments.delta response.function_call_arguments.done "
            "response.output_item.done response.incomplete",
            "a stream's events");
    ok(has(out, "\"sequence_number\":24,\"response\":{"), "the last one's number");
    ok(has(out, "\"item_id\":\"fc_R_2\",\"output_index\":2,\"delta\":\": 1}\"}"), "arguments grow");
    answer(out, SHAPE_RESPONSES, true, 3, GEN_FAILED);
    ok(has(out, "event: response.failed\n") && has(out, "\"status\":\"failed\"") &&
           has(out, "\"error\":{\"code\":\"server_error\",\"message\":\"gone\"}"),
       "an error in a stream");
    answer(out, SHAPE_RESPONSES, false, 3, GEN_FAILED);
    ok(has(out, "Status: 503 Service Unavailable\r\n") &&
           has(out, "{\"error\":{\"message\":\"gone"),
       "an error before an answer");
}

int main(void)
{
    struct buf out = {0};

    test_messages(&out);
    test_responses(&out);
    buf_fini(&out);
    return tap_done();
}
