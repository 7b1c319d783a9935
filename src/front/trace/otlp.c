/* SPDX-License-Identifier: Apache-2.0
 *
 * Spans in OTLP's JSON: ids in hexadecimal, whole numbers of 64 bits as texts. Names of attributes
 * are those of OpenTelemetry's conventions for generative AI, and vLLM's where these have none. */
#include <config.h>
#include <string.h>

#include "base/hash.h"
#include "front/trace/trace.h"

#define OTLP_SERVER       2 /* SPAN_KIND_SERVER */
#define OTLP_STATUS_ERROR 2

static void otlp_key(struct buf *b, const char *key)
{
    buf_printf(b, "%s{\"key\":\"%s\",\"value\":", b->bytes[b->len - 1] == '[' ? "" : ",", key);
}

static void otlp_text(struct buf *b, const char *key, const char *value)
{
    otlp_key(b, key);
    buf_add_text(b, "{\"stringValue\":");
    buf_add_json_string(b, value, strlen(value));
    buf_add_text(b, "}}");
}

static void otlp_whole(struct buf *b, const char *key, uint64_t value)
{
    otlp_key(b, key);
    buf_printf(b, "{\"intValue\":\"%llu\"}}", (unsigned long long)value);
}

static void otlp_real(struct buf *b, const char *key, double value)
{
    otlp_key(b, key);
    buf_printf(b, "{\"doubleValue\":%.9g}}", value);
}

static void otlp_id(struct buf *b, const char *key, const uint8_t *id, size_t n)
{
    char digits[33];

    hash_hex(id, n, digits);
    buf_printf(b, "\"%s\":\"%s\",", key, digits);
}

static void otlp_attributes(struct buf *b, const struct trace_span *s)
{
    buf_add_text(b, "\"attributes\":[");
    otlp_text(b, "gen_ai.request.model", s->model);
    otlp_text(b, "gen_ai.response.model", s->model);
    otlp_text(b, "gen_ai.request.id", s->request_id);
    otlp_whole(b, "gen_ai.request.n", s->n_choices);
    if (!s->pools) {
        if (s->max_tokens > 0)
            otlp_whole(b, "gen_ai.request.max_tokens", s->max_tokens);
        otlp_real(b, "gen_ai.request.temperature", s->temperature);
        otlp_real(b, "gen_ai.request.top_p", s->top_p);
    }
    otlp_whole(b, "gen_ai.usage.prompt_tokens", s->prompt_tokens);
    otlp_whole(b, "gen_ai.usage.completion_tokens", s->output_tokens);
    if (s->queue_us > 0)
        otlp_real(b, "gen_ai.latency.time_in_queue", (double)s->queue_us * 1e-6);
    if (s->first_us > 0)
        otlp_real(b, "gen_ai.latency.time_to_first_token", (double)s->first_us * 1e-6);
    otlp_real(b, "gen_ai.latency.e2e", (double)s->all_us * 1e-6);
    if (s->error != ERR_OK)
        otlp_text(b, "error.type", err_name(s->error));
    buf_add_byte(b, ']');
}

static void otlp_span(struct buf *b, const struct trace_span *s, uint64_t unix_us)
{
    static const uint8_t none[sizeof s->parent_id];
    uint64_t start_us = unix_us + s->start_us;

    buf_add_byte(b, '{');
    otlp_id(b, "traceId", s->trace_id, sizeof s->trace_id);
    otlp_id(b, "spanId", s->span_id, sizeof s->span_id);
    if (memcmp(s->parent_id, none, sizeof none) != 0)
        otlp_id(b, "parentSpanId", s->parent_id, sizeof s->parent_id);
    if (s->state[0] != '\0') {
        buf_add_text(b, "\"traceState\":");
        buf_add_json_string(b, s->state, strlen(s->state));
        buf_add_byte(b, ',');
    }
    buf_printf(b,
               "\"name\":\"llm_request\",\"kind\":%d,\"startTimeUnixNano\":\"%llu000\","
               "\"endTimeUnixNano\":\"%llu000\",",
               OTLP_SERVER, (unsigned long long)start_us,
               (unsigned long long)(start_us + s->all_us));
    otlp_attributes(b, s);
    if (s->error == ERR_OK)
        buf_add_text(b, ",\"status\":{}}");
    else
        buf_printf(b, ",\"status\":{\"code\":%d,\"message\":\"%s\"}}", OTLP_STATUS_ERROR,
                   err_sentence(s->error));
}

void otlp_add(struct buf *b, const struct trace_span *spans, int n, uint64_t unix_us)
{
    buf_add_text(b, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
    if (!b->failed)
        otlp_text(b, "service.name", "quire");
    if (!b->failed)
        otlp_text(b, "service.version", PACKAGE_VERSION);
    buf_add_text(b, "]},\"scopeSpans\":[{\"scope\":{\"name\":\"quire.front\"},\"spans\":[");
    for (int i = 0; i < n && !b->failed; i++) {
        buf_add_comma(b, i > 0);
        otlp_span(b, &spans[i], unix_us);
    }
    buf_add_text(b, "]}]}]}");
}
