/* SPDX-License-Identifier: Apache-2.0
 *
 * The span of an exchange (otlp_traces_endpoint): begun when the streamer takes it over, filled by
 * the engine's records, handed to the exporter's thread when it ends. Without the setting nothing
 * of this runs. */
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "front/stream/streamer_parts.h"
#include "front/trace/trace.h"

/* Commands of operators and probes have no span, and neither has a request that the caller does not
 * want recorded. Without memory there is none either. */
void streamer_trace_begin(struct streamer *s, struct exchange *x)
{
    struct trace_span *span;

    if (s->f->trace == NULL || x->n_gens == 0 || x->asks || x->probe)
        return;
    span = arena_alloc(&x->arena, sizeof *span);
    if (span == NULL || !trace_begin(span, fcgi_param(x->fcgi, "HTTP_TRACEPARENT"),
                                     fcgi_param(x->fcgi, "HTTP_TRACESTATE")))
        return;
    span->start_us = x->arrival_us;
    x->span = span;
}

/* A time after the arrival, at least 1. The engine's clock is ours. */
static uint64_t streamer_since(const struct exchange *x, uint64_t time_us)
{
    return time_us > x->arrival_us ? time_us - x->arrival_us : 1;
}

void streamer_trace_record(struct exchange *x, const struct wire_out *o)
{
    if (x->span == NULL)
        return;
    if (o->kind == WIRE_ADMITTED && x->span->queue_us == 0)
        x->span->queue_us = streamer_since(x, o->time_us);
    if (o->kind == WIRE_TOKEN && x->span->first_us == 0)
        x->span->first_us = streamer_since(x, o->time_us);
}

void streamer_trace_end(struct streamer *s, struct exchange *x)
{
    struct trace_span *span = x->span;
    const struct sampling *sampling;

    if (span == NULL)
        return;
    must(s->f->trace != NULL);
    for (int i = 0; i < x->n_gens; i++) {
        const struct gen *g = &x->gens[i];

        if (x->n < 1 || i % x->n == 0) /* choices of a prompt share it */
            span->prompt_tokens += g->n_prompt;
        if (x->pooled == NULL)
            span->output_tokens += (uint32_t)g->tokens.len - g->n_prompt;
    }
    sampling = &x->gens[0].request.generate.sampling;
    span->temperature = (double)sampling->temperature;
    span->top_p = (double)sampling->top_p;
    span->pools = x->pooled != NULL;
    span->n_choices = x->n < 1 ? 1 : (uint32_t)x->n;
    span->max_tokens = x->max_tokens_given ? x->max_tokens : 0;
    if (span->error == ERR_OK && !x->complete)
        span->error = ERR_CLIENT_GONE;
    span->all_us = streamer_since(x, s->now_us);
    (void)snprintf(span->model, sizeof span->model, "%s",
                   x->model == NULL ? x->served->model_name : x->model);
    (void)snprintf(span->request_id, sizeof span->request_id, "%s", x->request_id);
    trace_put(s->f->trace, span);
    x->span = NULL;
}

/* Once per pass: the numbers go to the engine's metrics, by the first lane that there is. */
void streamer_trace_count(struct streamer *s)
{
    uint32_t n[WIRE_SPANS];

    if (s->f->trace == NULL)
        return;
    trace_count(s->f->trace, &n[WIRE_SPANS_SENT], &n[WIRE_SPANS_DROPPED]);
    for (int i = 0; i < s->f->n_links; i++) {
        struct link *link = s->f->links[i];

        if (link->control_fd == -1)
            continue;
        for (int k = 0; k < WIRE_SPANS; k++) {
            atomic_fetch_add_explicit(&link->lane.shared->spans[k], n[k] - s->n_spans[k],
                                      memory_order_relaxed);
            s->n_spans[k] = n[k];
        }
        return;
    }
}
