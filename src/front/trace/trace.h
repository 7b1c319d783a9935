/* SPDX-License-Identifier: Apache-2.0
 *
 * Traces: a span per request with generations, for a collector of OpenTelemetry (OTLP over HTTP, as
 * JSON). A thread per front sends them; nothing else waits for it. Its queue is bounded: a span
 * that finds it full is dropped and counted.
 *
 * A span has numbers, the model's name and the request's id; it has no text of prompt or answer. */
#ifndef QUIRE_FRONT_TRACE_TRACE_H
#define QUIRE_FRONT_TRACE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define TRACE_STATE 512 /* bytes of a tracestate that is passed on, with NUL */

struct trace_span {
    uint8_t trace_id[16], span_id[8];
    uint8_t parent_id[8]; /* of the caller's span; all 0: none */
    char state[TRACE_STATE];
    char model[128];
    char request_id[72];
    uint64_t start_us; /* clock_us() */
    uint64_t queue_us; /* until the engine has admitted it; 0: it has not */
    uint64_t first_us; /* until the first token; 0: none */
    uint64_t all_us;   /* until its end */
    uint32_t prompt_tokens, output_tokens, n_choices;
    uint32_t max_tokens; /* 0: not given */
    double temperature, top_p;
    bool pools; /* vectors or scores: the fields of sampling have no meaning */
    int error;  /* enum err; ERR_OK: it was answered */
};

struct trace;

/* Start the thread. endpoint: "http://host:port/path" (port 4318 and /v1/traces if it has none), or
 * "unix:/path/of/a/socket". ERR_INVALID, ERR_NO_MEMORY, ERR_IO (logged). */
int trace_open(struct trace **out, const char *endpoint) ERR_CHECKED;

/* Send the spans that wait, for 3 s at most. Accepts NULL. */
void trace_close(struct trace *t);

/* Begin a span: ids, and the caller's by the headers traceparent and tracestate of W3C ("": none).
 * An unusable traceparent counts as none. False: the caller does not want it recorded. */
bool trace_begin(struct trace_span *span, const char *parent, const char *state);

/* Hand a span over. It is copied; blocks on a short lock only. */
void trace_put(struct trace *t, const struct trace_span *span);

/* Spans that a collector has taken, and that were dropped, since the start. Any thread. */
void trace_count(struct trace *t, uint32_t *n_sent, uint32_t *n_dropped);

/* --- otlp.c --- */

/* Append n spans as an ExportTraceServiceRequest in JSON. unix_us: the wall clock when clock_us()
 * was 0. */
void otlp_add(struct buf *b, const struct trace_span *spans, int n, uint64_t unix_us);

/* --- post.c --- */

struct post_target {
    char socket[108];         /* a path; "": TCP */
    char host[128], port[16]; /* of TCP */
    char path[256];
};

/* Take an endpoint apart. ERR_INVALID: it has another form. */
int post_read(struct post_target *out, const char *endpoint) ERR_CHECKED;

/* Send a body of JSON; *status is that of the answer. Waits timeout_ms at most, name resolution
 * left out. ERR_OK for any answer; ERR_IO: none came; *why is the reason, constant. */
int post_send(const struct post_target *to, const struct buf *body, int timeout_ms, int *status,
              const char **why) ERR_CHECKED;

#endif
