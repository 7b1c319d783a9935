/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's output: records of tokens and ends to the fronts, metrics, and the load of the
 * engine. A sequence is planned only while its output ring has room for all records of one step, so
 * writing a record never fails. A row of logits has more records than a ring: it is written as the
 * front takes it, and its sequence is not planned meanwhile. */
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/must.h"
#include "engine/engine.h"

_Static_assert(METRIC_draft_accepted_6 - METRIC_draft_accepted_0 == DRAFT_MAX - 1,
               "one counter for each position of a draft");

#define PREEMPTED_WINDOW_US 60000000u
#define PREEMPTED_OFTEN     16 /* fewer in a minute cost less than the advice would */

/* 0 for times in the wrong order, which different clocks of a front can produce. */
static double publish_seconds(uint64_t from_us, uint64_t to_us)
{
    if (to_us > from_us)
        return (double)(to_us - from_us) * 1e-6;
    return 0.0;
}

/* Probes check that the engine lives; they do not count as traffic. */
static bool publish_is_probe(const struct seq *seq)
{
    return (seq->request.flags & WIRE_PROBE) != 0;
}

#define PUBLISH_REFUSALS \
    (1u << 24) /* refusals that a front may report per look: it cannot refuse faster */

/* seq's client receives the first part of its answer: from here on no choice of that answer may be
 * refused. All choices are in the lane, because a front queues them at once. */
static void publish_begins_answer(struct engine *e, const struct seq *seq)
{
    const struct engine_lane *lane = &e->lanes[seq->lane_idx];

    if (seq->request.generate.answer == 0 || seq->is_awaited)
        return;
    for (uint32_t slot = 0; slot < lane->lane.n_slots; slot++) {
        struct seq *other = lane->by_slot[slot];

        if (other != NULL && other->request.generate.answer == seq->request.generate.answer)
            other->is_awaited = true;
    }
}

/* Prompt tokens by where their keys came from: computed, found on the device, or fetched from a
 * lower tier. */
static void publish_admitted_metrics(struct engine *e, const struct seq *seq)
{
    int fetched = seq->n_fetched;

    if (fetched > seq->n_cached)
        fetched = seq->n_cached;
    stats_add(&e->stats, METRIC_prompt_tokens, (uint64_t)seq->n_prompt);
    stats_add(&e->stats, METRIC_prompt_computed, (uint64_t)(seq->n_prompt - seq->n_cached));
    stats_add(&e->stats, METRIC_prompt_hits, (uint64_t)(seq->n_cached - fetched));
    stats_add(&e->stats, METRIC_prompt_fetched, (uint64_t)fetched);
    stats_add(&e->stats, METRIC_prompt_cached, (uint64_t)seq->n_cached);
    stats_observe(&e->stats, HISTOGRAM_queue, publish_seconds(seq->request.arrival_us, e->now_us));
    stats_observe(&e->stats, HISTOGRAM_req_prompt, (double)seq->n_prompt);
    stats_observe(&e->stats, HISTOGRAM_req_computed, (double)(seq->n_prompt - seq->n_cached));
}

_Static_assert(WIRE_GROUP_FULL == (int)CACHE_FULL && WIRE_GROUP_WINDOW == (int)CACHE_WINDOW &&
                   WIRE_GROUP_STATE == (int)CACHE_STATE,
               "the ways of the wire are the model's");

/* What the layers of each kind could have served, to seq's client if there are several kinds. If
 * another tenant's pages are among them, no more than is told of the whole. */
static void publish_found(struct engine *e, const struct seq *seq)
{
    static const enum wire_metric metrics[CACHE_KINDS] = {
        [CACHE_FULL] = METRIC_found_full,
        [CACHE_WINDOW] = METRIC_found_window,
        [CACHE_STATE] = METRIC_found_state,
    };
    uint32_t groups = atomic_load_explicit(&e->stats.page->groups, memory_order_relaxed);

    for (int kind = 0; kind < CACHE_KINDS; kind++) {
        int n = seq->found_foreign ? seq->n_cached_told : seq->n_found[kind];

        if ((groups >> kind & 1) == 0)
            continue;
        stats_add(&e->stats, metrics[kind], (uint64_t)seq->n_found[kind]);
        if ((groups & (groups - 1)) != 0)
            lane_put(&e->lanes[seq->lane_idx].lane, seq->slot,
                     (struct wire_out){.kind = WIRE_FOUND, .value = n, .amount = (uint64_t)kind});
    }
}

/* Called between fill and the begin of the step, so that the client hears of the admission before
 * the first token, while the device computes. */
void publish_admitted(struct engine *e)
{
    for (int i = 0; i < e->sched.n_planned; i++) {
        struct seq *seq = e->sched.planned[i];

        if (seq->admitted)
            continue;
        seq->admitted = true;
        seq->admitted_us = e->now_us;
        publish_begins_answer(e, seq);
        e->sched.tenants.list[seq->tenant_idx].prompt_tokens += (uint64_t)seq->n_prompt;
        lane_put(&e->lanes[seq->lane_idx].lane, seq->slot,
                 (struct wire_out){
                     .kind = WIRE_ADMITTED, .value = seq->n_cached_told, .time_us = e->now_us});
        publish_found(e, seq);
        cache_admin_note_admitted(e, seq);
        if (publish_is_probe(seq))
            continue;
        publish_admitted_metrics(e, seq);
    }
}

/* The Retry-After for a request that would be the last in the queue. */
static uint32_t publish_retry_after(const struct engine *e)
{
    const struct tenants *tenants = &e->sched.tenants;

    return rate_retry_after_s(&e->admission.rate, tenants->n_waiting, tenants->n_waiting_tokens);
}

/* Metrics of a whole request, when the last of its choices ends. Until then the running choices
 * carry the length of the longest one that has ended. */
static void publish_last_choice(struct engine *e, const struct seq *seq)
{
    const struct engine_lane *lane = &e->lanes[seq->lane_idx];
    int most = seq->n_tokens - seq->n_prompt;
    bool last = true;

    if (most < seq->n_generated_max)
        most = seq->n_generated_max;
    for (uint32_t slot = 0; seq->request.generate.answer != 0 && slot < lane->lane.n_slots;
         slot++) {
        struct seq *other = lane->by_slot[slot];

        if (other == NULL || other == seq ||
            other->request.generate.answer != seq->request.generate.answer)
            continue;
        last = false;
        if (other->n_generated_max < most)
            other->n_generated_max = most;
    }
    if (!last)
        return;
    stats_observe(&e->stats, HISTOGRAM_req_generation_max, (double)most);
    stats_observe(&e->stats, HISTOGRAM_params_n, (double)seq->request.generate.n_choices);
}

/* The histograms of a request's times. seq has no time of a first token if it was cancelled
 * before. */
static void publish_request_times(struct engine *e, const struct seq *seq)
{
    int n = seq->n_tokens - seq->n_prompt;

    stats_observe(&e->stats, HISTOGRAM_e2e, publish_seconds(seq->request.arrival_us, e->now_us));
    stats_observe(&e->stats, HISTOGRAM_inference, publish_seconds(seq->admitted_us, e->now_us));
    if (seq->first_token_us == 0)
        return;
    stats_observe(&e->stats, HISTOGRAM_decode, publish_seconds(seq->first_token_us, e->now_us));
    if (n > 1)
        stats_observe(&e->stats, HISTOGRAM_per_token,
                      publish_seconds(seq->first_token_us, seq->last_token_us) / (n - 1));
}

/* Count the finish reason. A stop string is found by the front, which then cancels: that is a stop
 * for the client. */
static void publish_finish_metrics(struct engine *e, const struct seq *seq, enum wire_finish why,
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
    if (publish_is_probe(seq))
        return;
    stats_add(&e->stats, reason, 1);
    if (!seq->admitted)
        return;
    rate_end(&e->admission.rate, seq->n_prompt);
    publish_request_times(e, seq);
    stats_observe(&e->stats, HISTOGRAM_req_generation, (double)(seq->n_tokens - seq->n_prompt));
    stats_observe(&e->stats, HISTOGRAM_params_max_tokens, (double)seq->request.generate.max_tokens);
    publish_last_choice(e, seq);
}

/* The last record of seq. Whatever is to be reported is written before it, because the front frees
 * the slot when it reads the end. */
void publish_finish(struct engine *e, struct seq *seq, enum wire_finish why, int32_t value)
{
    struct engine_lane *lane = &e->lanes[seq->lane_idx];

    publish_finish_metrics(e, seq, why, value);
    if ((seq->request.flags & WIRE_TELL_KEPT) != 0)
        cache_admin_tell(e, seq);
    lane_put(&lane->lane, seq->slot,
             (struct wire_out){.kind = WIRE_FINISHED,
                               .finish = (uint8_t)why,
                               .value = value,
                               .retry_after_s = (uint16_t)publish_retry_after(e),
                               .time_us = e->now_us});
    retire(e, seq);
}

/* A refusal after waiting is counted for the tenant and under its reason; a probe is not. */
void publish_refuse(struct engine *e, struct seq *seq, enum wire_refusal why, int err)
{
    if (!publish_is_probe(seq)) {
        e->sched.tenants.list[seq->tenant_idx].n_refused++;
        stats_refused(&e->stats, why, 1);
    }
    publish_finish(e, seq, WIRE_FIN_ERROR, err);
}

/* Does id end the output? An end that the automaton knows counts always; stop ids and
 * end-of-sequence tokens count from min_tokens on. */
static bool publish_is_end(const struct engine *e, const struct seq *seq, int32_t id)
{
    const struct wire_request *request = &seq->request;

    if (guide_has_ended(&e->guide, seq, id))
        return true;
    if (seq->n_tokens - seq->n_prompt < (int)request->generate.min_tokens)
        return false;
    if (seq_has_stop(seq, id))
        return true;
    for (uint32_t i = 0; i < request->generate.n_stop_ids; i++) {
        if (request->generate.stop_ids[i] == id)
            return true;
    }
    for (int i = 0; i < e->shape->n_eos && (request->flags & WIRE_IGNORE_EOS) == 0; i++) {
        if (e->shape->eos[i] == id)
            return true;
    }
    return false;
}

/* Log probabilities of one token: the token's own, then those of the most probable ones. */
static void publish_logprobs(struct engine *e, const struct seq *seq, int32_t id,
                             const struct batch_logprobs *logprobs, enum wire_kind chosen,
                             enum wire_kind top)
{
    struct lane *lane = &e->lanes[seq->lane_idx].lane;

    lane_put(lane, seq->slot,
             (struct wire_out){.kind = (uint8_t)chosen,
                               .value = id,
                               .logprob = logprobs->chosen,
                               .rank = logprobs->rank});
    for (int i = 0; i < logprobs->n_top; i++)
        lane_put(lane, seq->slot,
                 (struct wire_out){.kind = (uint8_t)top,
                                   .value = logprobs->ids[i],
                                   .logprob = logprobs->top[i],
                                   .rank = (uint32_t)i + 1});
}

/* Log probabilities of the ids that the request asks for, unless publish_logprobs() has just
 * written them. */
static void publish_asked(struct engine *e, const struct seq *seq,
                          const struct batch_logprobs *logprobs)
{
    for (int i = 0; i < logprobs->n_asked; i++) {
        bool told = false;

        for (int part = 0; part < logprobs->n_top; part++)
            told = told || logprobs->ids[part] == seq->asked[i];
        if (!told)
            lane_put(&e->lanes[seq->lane_idx].lane, seq->slot,
                     (struct wire_out){
                         .kind = WIRE_TOP, .value = seq->asked[i], .logprob = logprobs->asked[i]});
    }
}

/* From here on publish_row() writes seq's row, which fill_rows() has read. */
static void publish_row_begins(struct seq *seq, const struct batch_logprobs *logprobs,
                               bool of_prompt)
{
    seq->row[0] = logprobs->log_sum;
    seq->row_at = 0;
    seq->row_is_prompts = of_prompt;
    seq->tells_row = true;
}

/* The same of a pooled answer, which has no sum of exponentials. */
static void publish_pooled_begins(struct seq *seq, bool of_prompt)
{
    seq->row_at = 1;
    seq->row_is_prompts = of_prompt;
    seq->tells_row = true;
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* The log probability of one prompt token; the reported tokens are counted, so that a preempted
 * sequence does not report them twice. */
static void publish_prompt(struct engine *e, struct seq *seq, int target,
                           const struct batch_logprobs *logprobs)
{
    seq->n_owed -= seq_prompt_records(seq);
    seq->n_told = target;
    if (seq_is_mean(seq))
        return; /* fill_rows() has added it */
    if (seq_pools_each(seq)) {
        publish_pooled_begins(seq, true);
        return;
    }
    if (seq_prompt_has_rows(seq))
        publish_row_begins(seq, logprobs, true);
    publish_logprobs(e, seq, seq->tokens[target], logprobs, WIRE_PROMPT_CHOSEN, WIRE_PROMPT_TOP);
}

/* The first token has histograms of its own, the others the time since the one before. */
static void publish_token_metrics(struct engine *e, struct seq *seq)
{
    e->sched.tenants.list[seq->tenant_idx].generation_tokens++;
    stats_add(&e->stats, METRIC_generation_tokens, 1);
    if (seq->first_token_us == 0) {
        seq->first_token_us = e->now_us;
        stats_observe(&e->stats, HISTOGRAM_ttft_steps, (double)(e->n_ended - seq->step_seen));
        stats_observe(&e->stats, HISTOGRAM_ttft,
                      publish_seconds(seq->request.arrival_us, e->now_us));
        stats_observe(&e->stats, HISTOGRAM_prefill, publish_seconds(seq->admitted_us, e->now_us));
    } else {
        stats_observe(&e->stats, HISTOGRAM_itl, publish_seconds(seq->last_token_us, e->now_us));
    }
    seq->last_token_us = e->now_us;
}

/* Write seq's last token. False: it ended the sequence. */
static bool publish_last_token(struct engine *e, struct seq *seq)
{
    int32_t id = seq->tokens[seq->n_tokens - 1];
    bool ends = publish_is_end(e, seq, id);

    lane_put(&e->lanes[seq->lane_idx].lane, seq->slot,
             (struct wire_out){.kind = WIRE_TOKEN,
                               .finish = ends ? WIRE_FIN_STOP : 0,
                               .value = id,
                               .time_us = e->now_us});
    if (!publish_is_probe(seq))
        publish_token_metrics(e, seq);
    if (!ends && seq->n_tokens < seq->tokens_max) {
        draft_follow(&e->drafts, seq);
        return true;
    }
    /* A fault point: the engine dies between a token and its end, and another engine continues. */
    must(!FAULT_HIT(engine_end));
    if (ends)
        publish_finish(e, seq, WIRE_FIN_STOP, id);
    else
        publish_finish(e, seq, WIRE_FIN_LENGTH, 0);
    return false;
}

/* The pooled answer is complete. The token that was sampled of it means nothing and is dropped:
 * from here on seq lacks none. */
static void publish_pooled(const struct engine *e, struct seq *seq)
{
    seq->n_pending--;
    seq->n_owed -= seq_token_records(seq);
    for (int i = 1; seq_is_mean(seq) && i <= e->shape->n_vocab; i++)
        seq->row[i] /= (float)seq->n_prompt;
    publish_pooled_begins(seq, false);
}

/* Append the token that `row` sampled. False: seq has ended. */
static bool publish_sampled(struct engine *e, const struct engine_step *step, int row,
                            struct seq *seq)
{
    const struct batch_logprobs *logprobs =
        step->extras[row] < 0 ? NULL : &e->logprobs[step->extras[row]];

    if (seq_is_pooled(seq)) {
        publish_pooled(e, seq);
        return true; /* publish_row() ends it */
    }
    seq->tokens[seq->n_tokens++] = e->row_tokens[row];
    seq->n_pending--;
    seq->n_owed -= seq_token_records(seq);
    if ((seq->request.flags & WIRE_LOGPROBS) != 0) {
        publish_logprobs(e, seq, e->row_tokens[row], logprobs, WIRE_CHOSEN, WIRE_TOP);
        publish_asked(e, seq, logprobs);
    }
    if (!seq_has_rows(seq))
        return publish_last_token(e, seq);
    publish_row_begins(seq, logprobs, false);
    return true;
}

#define PUBLISH_ROW_SPARE \
    4 /* records that a row leaves room for: a token, a fact, an end and one to spare */

/* A record carries three floats of the row: one in `value`, two in `logits`. */
int publish_row(struct engine *e, struct seq *seq, int room)
{
    int n = 1 + e->shape->n_vocab;

    for (; room > PUBLISH_ROW_SPARE && seq->row_at < n; room--) {
        struct wire_out out = {.kind = seq->row_is_prompts ? WIRE_PROMPT_ROW : WIRE_ROW};
        int more = n - seq->row_at - 1;

        memcpy(&out.value, &seq->row[seq->row_at], sizeof out.value);
        memcpy(out.logits, &seq->row[seq->row_at + 1],
               (size_t)(more < 2 ? more : 2) * sizeof *seq->row);
        lane_put(&e->lanes[seq->lane_idx].lane, seq->slot, out);
        seq->row_at += 3;
    }
    if (seq->row_at < n)
        return room;
    seq->tells_row = false;
    if (seq_is_pooled(seq) && !seq->row_is_prompts) {
        /* A fault point, as behind a token. */
        must(!FAULT_HIT(engine_end));
        publish_finish(e, seq, WIRE_FIN_STOP, 0);
        return room;
    }
    if (!seq->row_is_prompts && publish_last_token(e, seq))
        room--;
    return room;
}

static void publish_draft_metrics(struct engine *e, int n, int n_right)
{
    stats_add(&e->stats, METRIC_drafts, 1);
    stats_add(&e->stats, METRIC_draft_tokens, (uint64_t)n);
    stats_add(&e->stats, METRIC_draft_accepted, (uint64_t)n_right);
    for (int i = 0; i < n_right; i++)
        stats_add(&e->stats, (enum wire_metric)(METRIC_draft_accepted_0 + i), 1);
}

/* The rows of a token and of its n drafts, from `row` on. A row's token counts while all drafts
 * before it equal the sampled tokens; the rest is thrown away. Example: drafts a b c, sampled a x
 * .. ..: a was right, x replaces b, and two rows are dropped. Each token that counts advances the
 * sequence by one, so that pages are named with tokens that are certain.
 *
 * A state has taken in all drafts. If one was wrong, the states are those before the step again,
 * and the next step computes the tokens that count a second time, before further drafts. */
static void publish_drafted(struct engine *e, const struct engine_step *step, int row,
                            struct seq *seq, int n)
{
    int n_before = seq->n_ahead - n - 1, n_right = 0, n_checked = n - seq->draft.n_cut;
    bool goes_back;

    while (n_right < n_checked &&
           seq->tokens[seq->n_tokens + n_right] == e->row_tokens[row + n_right])
        n_right++;
    publish_draft_metrics(e, n, n_right);
    goes_back = n_right < n && e->sched.tables.n_state_pages > 0;
    if (goes_back)
        tables_go_back(&e->sched.tables, seq);
    else
        tables_forget(&e->sched.tables, seq);
    if (n_before > 0 && !goes_back)
        sched_advance(&e->sched, seq, n_before, tiers_note_named, e);
    for (int i = 0; i <= n_right; i++) {
        if (!goes_back)
            sched_advance(&e->sched, seq, 1, tiers_note_named, e);
        if (i > 0)
            tenants_charge_token(&e->sched.tenants, seq);
        if (!publish_sampled(e, step, row + i, seq))
            return;
    }
    seq->n_ahead -= goes_back ? n_before + 1 + n : n - n_right;
    seq->n_again = goes_back ? seq->n_tokens - 1 : 0;
    seq->n_pending -= n - n_right;
    seq->n_owed -= (n - n_right) * seq_token_records(seq);
    seq->draft.n_ahead = 0;
    seq->draft.n_forced -= seq->draft.n_cut;
    draft_learn(&e->drafts, seq, n_checked, n_right);
}

/* Publish a step that has ended: advance its sequences, then write the tokens of its rows. */
void publish_step(struct engine *e, const struct engine_step *step)
{
    tiers_time_step(e, step);
    /* Pages are named before sequences end, because an end returns them to the cache. */
    for (int i = 0; i < step->n_seqs; i++) {
        if (step->seqs[i] != NULL && step->drafts[i] == 0)
            sched_advance(&e->sched, step->seqs[i], step->counts[i], tiers_note_named, e);
    }
    for (int i = 0; i < step->n_rows; i++) {
        struct seq *seq = step->rows[i];
        int n_drafts;

        if (seq == NULL)
            continue;
        n_drafts = seq->draft.n_ahead;
        if (step->targets[i] > 0) {
            publish_prompt(e, seq, step->targets[i],
                           step->extras[i] < 0 ? NULL : &e->logprobs[step->extras[i]]);
        } else if (n_drafts > 0) {
            publish_drafted(e, step, i, seq, n_drafts);
            i += n_drafts;
        } else {
            (void)publish_sampled(e, step, i, seq); /* it may have ended */
        }
    }
    stats_add(&e->stats, METRIC_steps, 1);
    stats_observe(&e->stats, HISTOGRAM_iteration, (double)step->n_tokens);
}

/* --- the engine's load ------------------------------------------------------------------------ */

/* Copy the counters of all tenants to the statistics page, for the metrics. Names change seldom,
 * and readers may see half of one. */
static void publish_tenants(struct engine *e)
{
    const struct tenants *tenants = &e->sched.tenants;
    struct wire_stats *page = e->stats.page;

    for (int i = 0; i < tenants->n; i++) {
        const struct tenant *from = &tenants->list[i];
        struct wire_tenant *to = &page->tenants[i];

        if (memcmp(to->name, from->name, sizeof to->name) != 0)
            memcpy(to->name, from->name, sizeof to->name);
        atomic_store_explicit(&to->prompt_tokens, from->prompt_tokens, memory_order_relaxed);
        atomic_store_explicit(&to->generation_tokens, from->generation_tokens,
                              memory_order_relaxed);
        atomic_store_explicit(&to->n_refused, from->n_refused, memory_order_relaxed);
        atomic_store_explicit(&to->n_running, (uint32_t)from->n_running, memory_order_relaxed);
        atomic_store_explicit(&to->n_waiting, (uint32_t)from->n_waiting, memory_order_relaxed);
    }
    atomic_store_explicit(&page->n_tenants, (uint32_t)tenants->n, memory_order_relaxed);
}

/* Copy the work of each rank; of a single one, the counters of steps tell as much. */
static void publish_ranks(struct engine *e)
{
    struct wire_stats *page = e->stats.page;
    int n = model_n_ranks(e->model);

    must(n <= WIRE_RANKS);
    for (int i = 0; i < n && n > 1; i++) {
        struct wire_rank *to = &page->ranks[i];
        struct model_load load;

        model_measure(e->model, i, &load);
        atomic_store_explicit(&to->stage, (uint32_t)load.stage, memory_order_relaxed);
        atomic_store_explicit(&to->part, (uint32_t)load.part, memory_order_relaxed);
        atomic_store_explicit(&to->device_bytes, load.device_bytes, memory_order_relaxed);
        atomic_store_explicit(&to->n_steps, load.n_steps, memory_order_relaxed);
        atomic_store_explicit(&to->busy_us, load.busy_us, memory_order_relaxed);
        atomic_store_explicit(&to->sum_us, load.sum_us, memory_order_relaxed);
    }
    atomic_store_explicit(&page->n_ranks, (uint32_t)n, memory_order_relaxed);
}

/* Warn when sequences lose their pages often, once a minute: the work is done twice, and settings
 * prevent it. */
static void publish_preemptions(struct engine *e)
{
    struct engine_preempted *p = &e->preempted;

    stats_set(&e->stats, METRIC_preemptions, e->sched.n_preemptions);
    if (e->now_us - p->since_us >= PREEMPTED_WINDOW_US) {
        p->since_us = e->now_us;
        p->n_before = e->sched.n_preemptions;
        p->was_told = false;
    }
    if (p->was_told || e->sched.n_preemptions - p->n_before < PREEMPTED_OFTEN)
        return;
    p->was_told = true;
    log_warn("engine: %d preemptions within a minute: there are too few KV pages, and sequences "
             "are computed again; raise gpu_memory_utilization or tensor_parallel_size, or lower "
             "max_num_seqs, max_num_batched_tokens or max_model_len",
             PREEMPTED_OFTEN);
}

/* Gauges and counters that are kept elsewhere are copied to the statistics page once per pass. */
static void publish_gauges(struct engine *e)
{
    int n_deferred = tiers_n_deferred(e);
    int n = pages_count(e->pages);
    struct stats *s = &e->stats;
    uint64_t used_permille;

    e->admission.n_lanes = 0;
    for (int i = 0; i < e->settings.max_lanes; i++)
        e->admission.n_lanes += e->lanes[i].state == LANE_OPEN;
    stats_set(s, METRIC_running, (uint64_t)e->sched.n_running);
    stats_set(s, METRIC_waiting, (uint64_t)sched_n_waiting(&e->sched));
    stats_set(s, METRIC_waiting_capacity, (uint64_t)(sched_n_waiting(&e->sched) - n_deferred));
    stats_set(s, METRIC_waiting_deferred, (uint64_t)n_deferred);
    if (stats_process(s, e->now_us))
        publish_ranks(e);
    stats_set(s, METRIC_pages, (uint64_t)n);
    stats_set(s, METRIC_pages_cached, (uint64_t)pages_cached(e->pages));
    used_permille = (uint64_t)(n - pages_free(e->pages)) * 1000u / (uint64_t)n;
    stats_set(s, METRIC_kv_usage_permille, used_permille);
    stats_set(s, METRIC_kv_usage_old_permille, used_permille);
    stats_set(s, METRIC_lanes, (uint64_t)e->admission.n_lanes);
    publish_preemptions(e);
    stats_set(s, METRIC_itl_target_ms,
              (uint64_t)(cost_target_us(&e->cost, e->settings.itl_target_ms, 1) * 1e-3));
    stats_set(s, METRIC_pages_kept, (uint64_t)pages_kept(e->pages));
    stats_set(s, METRIC_prefix_queries, e->sched.n_prefix_queries);
    stats_set(s, METRIC_prefix_hits, e->sched.n_prefix_hits);
    stats_set(s, METRIC_prefix_copies, e->sched.tables.n_parts);
    stats_set(s, METRIC_snapshots, e->sched.tables.n_snapshots);
    lora_gauges(&e->lora);
    publish_tenants(e);
}

/* Publish how many requests and tokens a front may still send; it refuses the rest itself. Several
 * fronts at once could send too much. While there is plenty that does not matter; else each gets
 * its share, and the remainder goes round. Any excess is refused by intake.c one step later. nth:
 * the index among open lanes. */
static void publish_room(const struct engine *e, struct wire_lane *w, int nth)
{
    const struct tenants *tenants = &e->sched.tenants;
    int64_t reqs =
        (int64_t)e->settings.max_num_queued_reqs + e->admission.n_places - tenants->n_waiting;
    int64_t tokens = e->admission.max_num_queued_tokens - tenants->n_waiting_tokens;
    int n_lanes = e->admission.n_lanes > 0 ? e->admission.n_lanes : 1;

    if (reqs < 0)
        reqs = 0;
    if (tokens < 0)
        tokens = 0;
    if (2 * reqs < e->settings.max_num_queued_reqs)
        reqs = reqs / n_lanes + ((nth + (int64_t)e->n_begun) % n_lanes < reqs % n_lanes);
    if (2 * tokens < e->admission.max_num_queued_tokens)
        tokens = tokens / n_lanes;
    atomic_store_explicit(&w->room_reqs, (uint32_t)reqs, memory_order_relaxed);
    if (tokens > UINT32_MAX)
        tokens = UINT32_MAX;
    atomic_store_explicit(&w->room_tokens, (uint32_t)tokens, memory_order_relaxed);
}

/* Count the refusals that a front has made since the last look. A jump above PUBLISH_REFUSALS
 * cannot be true: these counters are the front's to write. */
static void publish_front_refusals(struct engine *e, struct engine_lane *lane)
{
    for (int i = WIRE_NOT_REFUSED + 1; i < WIRE_REFUSALS; i++) {
        uint32_t n = atomic_load_explicit(&lane->lane.shared->refused[i], memory_order_relaxed);

        if (n == lane->refused[i])
            continue;
        if (n - lane->refused[i] <= PUBLISH_REFUSALS)
            stats_refused(&e->stats, (enum wire_refusal)i, n - lane->refused[i]);
        else
            stats_add(&e->stats, METRIC_bad_entries, 1);
        lane->refused[i] = n;
    }
}

/* Likewise the spans that a front's exporter has sent or dropped. */
static void publish_front_spans(struct engine *e, struct engine_lane *lane)
{
    static const enum wire_metric metrics[WIRE_SPANS] = {
        [WIRE_SPANS_SENT] = METRIC_spans_sent,
        [WIRE_SPANS_DROPPED] = METRIC_spans_dropped,
    };

    for (int i = 0; i < WIRE_SPANS; i++) {
        uint32_t n = atomic_load_explicit(&lane->lane.shared->spans[i], memory_order_relaxed);

        if (n == lane->spans[i])
            continue;
        if (n - lane->spans[i] <= PUBLISH_REFUSALS)
            stats_add(&e->stats, metrics[i], n - lane->spans[i]);
        else
            stats_add(&e->stats, METRIC_bad_entries, 1);
        lane->spans[i] = n;
    }
}

/* Tokens of prompts that the engine has still to compute. Those of waiting ones may be found in a
 * cache. */
static uint32_t publish_todo(const struct engine *e)
{
    int64_t n = e->sched.tenants.n_waiting_tokens;

    for (int i = 0; i < e->sched.n_running; i++) {
        const struct seq *seq = e->sched.running[i];

        n += seq->n_tokens - seq->n_computed - 1; /* the last one belongs to the output */
    }
    if (n < 0)
        return 0;
    if (n > UINT32_MAX)
        return UINT32_MAX;
    return (uint32_t)n;
}

/* The engine's load, by which fronts choose among several engines. */
static void publish_load(const struct engine *e, struct wire_lane *w)
{
    atomic_store_explicit(&w->n_running, (uint32_t)e->sched.n_running, memory_order_relaxed);
    atomic_store_explicit(&w->n_waiting, (uint32_t)sched_n_waiting(&e->sched),
                          memory_order_relaxed);
    atomic_store_explicit(&w->todo_tokens, e->admission.todo_tokens, memory_order_relaxed);
    atomic_store_explicit(&w->n_fronts, (uint32_t)e->admission.n_lanes, memory_order_relaxed);
}

/* The state that fronts see: they refuse requests while the engine drains. */
static enum wire_engine_state publish_state(const struct engine *e)
{
    if (e->draining)
        return WIRE_DRAINING;
    if (e->power.state == POWER_WAKING)
        return WIRE_WAKING;
    if (e->power.state == POWER_ASLEEP)
        return WIRE_ASLEEP;
    return WIRE_SERVING;
}

/* The fields of the lane that fronts read without a request: room, state, heartbeat, load. */
static void publish_lane_nth(struct engine *e, struct engine_lane *lane, int nth)
{
    struct wire_lane *wire = lane->lane.shared;

    publish_room(e, wire, nth);
    publish_front_refusals(e, lane);
    publish_front_spans(e, lane);
    atomic_store(&wire->engine_state, publish_state(e));
    atomic_store_explicit(&wire->heartbeat_us, e->now_us, memory_order_relaxed);
    atomic_store_explicit(&wire->progress_us, e->progress_us, memory_order_relaxed);
    publish_load(e, wire);
    atomic_store_explicit(&wire->retry_after_s, publish_retry_after(e), memory_order_relaxed);
}

/* A lane that was just opened counts as the first. */
void publish_lane(struct engine *e, struct engine_lane *lane)
{
    publish_lane_nth(e, lane, 0);
}

/* Only the numbers that changed by taking requests; the rest follows at the end of the pass. */
void publish_queue(struct engine *e)
{
    int nth = 0;

    publish_tenants(e);
    e->admission.todo_tokens = publish_todo(e);
    for (int i = 0; i < e->settings.max_lanes; i++) {
        if (e->lanes[i].state != LANE_OPEN)
            continue;
        publish_room(e, e->lanes[i].lane.shared, nth++);
        publish_load(e, e->lanes[i].lane.shared);
    }
}

/* The last part of a pass: fronts read the lane's state whenever they wake. */
void publish_wake(struct engine *e)
{
    int nth = 0;

    /* A waiting sequence waits for a place or for pages, so free places are of no use to others.
     * While the engine wakes it waits for that alone, and places count. */
    e->admission.n_places = e->shape->max_num_seqs - e->sched.n_running;
    if (power_is_awake(&e->power) && sched_n_waiting(&e->sched) > 0)
        e->admission.n_places = 0;
    publish_gauges(e);
    e->admission.todo_tokens = publish_todo(e);
    for (int i = 0; i < e->settings.max_lanes; i++) {
        if (e->lanes[i].state != LANE_OPEN)
            continue;
        publish_lane_nth(e, &e->lanes[i], nth++);
        lane_flush(&e->lanes[i].lane);
    }
}
