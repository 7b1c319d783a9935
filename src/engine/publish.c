/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fronts are told. A sequence is planned only while its output ring has room for all
 * that one step can say, so putting a record never fails. */
#include "base/fault.h"
#include "base/must.h"
#include "engine/engine.h"

static double publish_seconds(uint64_t from_us, uint64_t to_us)
{
    return to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0.0;
}

void publish_admitted(struct engine *e)
{
    for (int i = 0; i < e->sched.n_planned; i++) {
        struct seq *q = e->sched.planned[i];

        if (q->admitted)
            continue;
        q->admitted = true;
        q->admitted_us = e->now_us;
        lane_put(
            &e->lanes[q->lane_idx].lane, q->slot,
            (struct wire_out){.kind = WIRE_ADMITTED, .value = q->n_cached, .time_us = e->now_us});
        stats_add(&e->stats, METRIC_prompt_tokens, (uint64_t)q->n_prompt);
        stats_observe(&e->stats, HISTOGRAM_queue,
                      publish_seconds(q->request.arrival_us, e->now_us));
        stats_observe(&e->stats, HISTOGRAM_req_prompt, (double)q->n_prompt);
    }
}

/* How fast requests end, smoothed over about sixteen of them: what Retry-After is made of. */
static void publish_rate(struct engine *e)
{
    double gap_s = publish_seconds(e->last_done_us, e->now_us);

    if (e->last_done_us != 0 && gap_s > 0.0)
        e->done_per_s += (1.0 / gap_s - e->done_per_s) / 16.0;
    e->last_done_us = e->now_us;
}

static void publish_finish_metrics(struct engine *e, const struct seq *q, enum wire_finish why,
                                   int32_t value)
{
    enum wire_metric reason = METRIC_success_error;

    switch (why) {
    case WIRE_FIN_STOP: reason = METRIC_success_stop; break;
    case WIRE_FIN_LENGTH: reason = METRIC_success_length; break;
    case WIRE_FIN_CANCELLED:
        reason = value == WIRE_STOP_STRING ? METRIC_success_stop : METRIC_success_abort;
        break;
    case WIRE_FIN_ERROR: break;
    }
    stats_add(&e->stats, reason, 1);
    if (!q->admitted)
        return;
    stats_observe(&e->stats, HISTOGRAM_e2e, publish_seconds(q->request.arrival_us, e->now_us));
    stats_observe(&e->stats, HISTOGRAM_req_generation, (double)(q->n_tokens - q->n_prompt));
    if (q->first_token_us != 0)
        stats_observe(&e->stats, HISTOGRAM_decode, publish_seconds(q->first_token_us, e->now_us));
}

void publish_finish(struct engine *e, struct seq *q, enum wire_finish why, int32_t value)
{
    struct engine_lane *l = &e->lanes[q->lane_idx];

    publish_finish_metrics(e, q, why, value);
    publish_rate(e);
    lane_put(
        &l->lane, q->slot,
        (struct wire_out){
            .kind = WIRE_FINISHED, .finish = (uint8_t)why, .value = value, .time_us = e->now_us});
    intake_release(e, q);
}

static bool publish_is_end(const struct engine *e, const struct seq *q, int32_t id)
{
    const struct wire_request *r = &q->request;

    if (guide_has_ended(&e->guide, q, id))
        return true;
    if (q->n_tokens - q->n_prompt < (int)r->min_tokens)
        return false;
    for (uint32_t i = 0; i < r->n_stop_ids; i++) {
        if (r->stop_ids[i] == id)
            return true;
    }
    for (int i = 0; i < e->shape->n_eos && (r->flags & WIRE_IGNORE_EOS) == 0; i++) {
        if (e->shape->eos[i] == id)
            return true;
    }
    return false;
}

/* Log probabilities of one token: its own, then those of the most probable. */
static void publish_logprobs(struct engine *e, const struct seq *q, int32_t id,
                             const struct batch_logprobs *p, enum wire_kind chosen,
                             enum wire_kind top)
{
    struct lane *l = &e->lanes[q->lane_idx].lane;

    lane_put(l, q->slot,
             (struct wire_out){
                 .kind = (uint8_t)chosen, .value = id, .logprob = p->chosen, .rank = p->rank});
    for (int i = 0; i < p->n_top; i++)
        lane_put(l, q->slot,
                 (struct wire_out){.kind = (uint8_t)top,
                                   .value = p->ids[i],
                                   .logprob = p->top[i],
                                   .rank = (uint32_t)i + 1});
}

static void publish_prompt(struct engine *e, struct seq *q, int target,
                           const struct batch_logprobs *p)
{
    q->n_owed -= seq_prompt_records(q);
    q->n_told = target;
    publish_logprobs(e, q, q->tokens[target], p, WIRE_PROMPT_CHOSEN, WIRE_PROMPT_TOP);
}

static void publish_token(struct engine *e, struct seq *q, int32_t id)
{
    bool ends;

    q->tokens[q->n_tokens++] = id;
    q->n_pending--;
    q->n_owed -= seq_token_records(q);
    ends = publish_is_end(e, q, id);
    lane_put(&e->lanes[q->lane_idx].lane, q->slot,
             (struct wire_out){.kind = WIRE_TOKEN,
                               .finish = ends ? WIRE_FIN_STOP : 0,
                               .value = id,
                               .time_us = e->now_us});
    stats_add(&e->stats, METRIC_generation_tokens, 1);
    if (q->first_token_us == 0) {
        q->first_token_us = e->now_us;
        stats_observe(&e->stats, HISTOGRAM_ttft, publish_seconds(q->request.arrival_us, e->now_us));
        stats_observe(&e->stats, HISTOGRAM_prefill, publish_seconds(q->admitted_us, e->now_us));
    } else {
        stats_observe(&e->stats, HISTOGRAM_itl, publish_seconds(q->last_token_us, e->now_us));
    }
    q->last_token_us = e->now_us;
    if (!ends && q->n_tokens < q->tokens_max)
        return;
    must(!FAULT_HIT(engine_end));
    publish_finish(e, q, ends ? WIRE_FIN_STOP : WIRE_FIN_LENGTH, ends ? id : 0);
}

void publish_step(struct engine *e, const struct engine_step *step)
{
    /* Pages are named before sequences end: an end gives them back to the cache. */
    for (int i = 0; i < step->n_seqs; i++) {
        if (step->seqs[i] != NULL)
            sched_advance(&e->sched, step->seqs[i], step->counts[i], tiers_note_named, e);
    }
    for (int i = 0; i < step->n_rows; i++) {
        const struct batch_logprobs *p = step->extras[i] < 0 ? NULL : &e->logprobs[step->extras[i]];
        struct seq *q = step->rows[i];

        if (q == NULL)
            continue;
        if (step->targets[i] > 0) {
            publish_prompt(e, q, step->targets[i], p);
            continue;
        }
        if ((q->request.flags & WIRE_LOGPROBS) != 0)
            publish_logprobs(e, q, e->row_tokens[i], p, WIRE_CHOSEN, WIRE_TOP);
        publish_token(e, q, e->row_tokens[i]);
    }
    stats_add(&e->stats, METRIC_steps, 1);
    stats_observe(&e->stats, HISTOGRAM_iteration, (double)step->n_tokens);
}

static uint32_t publish_retry_after(const struct engine *e)
{
    double s = e->done_per_s > 0.0 ? (double)e->sched.n_waiting / e->done_per_s : 1.0;

    return s < 1.0 ? 1 : s > 30.0 ? 30 : (uint32_t)s;
}

static void publish_gauges(struct engine *e)
{
    int n = pages_count(e->pages);
    struct stats *s = &e->stats;
    uint64_t lanes = 0;

    for (int i = 0; i < e->settings.max_lanes; i++)
        lanes += e->lanes[i].state == LANE_OPEN;
    stats_set(s, METRIC_running, (uint64_t)e->sched.n_running);
    stats_set(s, METRIC_waiting, (uint64_t)e->sched.n_waiting);
    stats_set(s, METRIC_pages, (uint64_t)n);
    stats_set(s, METRIC_pages_cached, (uint64_t)pages_cached(e->pages));
    stats_set(s, METRIC_kv_usage_permille,
              (uint64_t)(n - pages_free(e->pages)) * 1000u / (uint64_t)n);
    stats_set(s, METRIC_lanes, lanes);
    stats_set(s, METRIC_preemptions, e->sched.n_preemptions);
    stats_set(s, METRIC_prefix_queries, e->sched.n_prefix_queries);
    stats_set(s, METRIC_prefix_hits, e->sched.n_prefix_hits);
}

void publish_wake(struct engine *e)
{
    uint32_t retry_after_s = publish_retry_after(e);

    publish_gauges(e);
    for (int i = 0; i < e->settings.max_lanes; i++) {
        struct engine_lane *l = &e->lanes[i];

        if (l->state != LANE_OPEN)
            continue;
        atomic_store_explicit(&l->lane.shared->heartbeat_us, e->now_us, memory_order_relaxed);
        atomic_store_explicit(&l->lane.shared->n_running, (uint32_t)e->sched.n_running,
                              memory_order_relaxed);
        atomic_store_explicit(&l->lane.shared->n_waiting, (uint32_t)e->sched.n_waiting,
                              memory_order_relaxed);
        atomic_store_explicit(&l->lane.shared->retry_after_s, retry_after_s, memory_order_relaxed);
        lane_flush(&l->lane);
    }
}
