/* SPDX-License-Identifier: Apache-2.0
 *
 * drafter.h has the picture. Steps of the drafter follow one another without a wait: the next one
 * begins before the one before has ended, and takes its tokens where that one left them. Their
 * results are needed at the end of the pass only. */
#include "engine/drafter.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "engine/engine.h"
#include "engine/replica.h"

#define DRAFTER_REST 16 /* tokens without drafts after a choice of none: at first, and at most */
#define DRAFTER_RESTS \
    128 /* the longest such pause; the drafter then computes as many tokens again */
#define DRAFTER_GAIN 1.03 /* of the rate that drafts must promise: a choice costs something, too */
#define DRAFTER_EASE 0.3f /* of the way back to the first guess, by a rest */

/* --- opening -------------------------------------------------------------------------------- */

/* One device, and no pages yet. The settings for the target's weights hold for its MTP
 * layer alone. */
int drafter_open(struct engine *e)
{
    struct drafter *d = &e->drafter;
    struct model_options options = model_options_of(&e->settings);
    const int *taps;
    int rc;

    if (!draft_is_model(&e->drafts) || d->model != NULL)
        return ERR_OK;
    if (e->drafts.method == DRAFT_MTP && e->drafts.model[0] == '\0')
        (void)snprintf(e->drafts.model, sizeof e->drafts.model, "%s", e->settings.model);
    options.dir = e->drafts.model;
    options.is_mtp = e->drafts.method == DRAFT_MTP;
    if (!options.is_mtp) {
        options.quantization = NULL;
        options.hf_overrides = NULL;
        options.max_model_len = 0;
    }
    options.n_ranks = options.n_stages = options.n_nodes = 1;
    options.num_pages = 0;
    options.n_adapters = 0;
    options.pages_later = true;
    options.is_drafter = e->drafts.method == DRAFT_EAGLE3;
    options.first_gpu = replica_first_gpu(&e->settings);
    options.sleeps = e->settings.sleep_after_s > 0 || e->seats != NULL;
    rc = model_open(&d->model, &options);
    if (rc != ERR_OK)
        return rc;
    d->shape = model_shape(d->model);
    d->is_head = drafter_taps(d, &taps) > 0;
    if (d->is_head || e->drafts.method != DRAFT_EAGLE3)
        return ERR_OK;
    log_error("engine: speculative_config: %s is no EAGLE-3 head: use the method draft_model",
              e->drafts.model);
    return ERR_UNSUPPORTED;
}

int drafter_taps(const struct drafter *d, const int **taps)
{
    return d->model == NULL ? 0 : model_taps(d->model, taps);
}

size_t drafter_page_bytes(const struct drafter *d)
{
    return d->model == NULL ? 0 : d->shape->page_bytes;
}

/* The target's group of all tokens; -1: none. */
static int drafter_group(const struct model_shape *target)
{
    for (int g = 0; g < target->n_groups; g++) {
        if (target->groups[g].kind == CACHE_FULL)
            return g;
    }
    return -1;
}

/* Every page of the drafter belongs to one of the target's, so both keep all tokens. */
static int drafter_check(struct engine *e)
{
    struct drafter *d = &e->drafter;

    if (d->shape->n_words != e->shape->n_vocab) {
        log_error("engine: speculative_config: %s has a vocabulary of %d tokens, and the model one "
                  "of %d: choose a drafter with the same",
                  e->drafts.model, d->shape->n_words, e->shape->n_vocab);
        return ERR_UNSUPPORTED;
    }
    if (d->shape->n_groups != 1 || d->shape->groups[0].kind != CACHE_FULL) {
        log_error("engine: speculative_config: %s has layers with windows or states: choose a "
                  "drafter whose layers see all tokens",
                  e->drafts.model);
        return ERR_UNSUPPORTED;
    }
    d->group = drafter_group(e->shape);
    if (d->group >= 0)
        return ERR_OK;
    log_error("engine: speculative_config: no layer of the model keeps all tokens, which a "
              "drafter's pages need: use the method ngram or suffix");
    return ERR_UNSUPPORTED;
}

static int drafter_alloc(struct engine *e)
{
    struct drafter *d = &e->drafter;
    struct batch *batch = &d->batch;
    size_t n_seqs = (size_t)d->shape->max_num_seqs;

    batch->pages_max =
        (e->shape->max_model_len + e->shape->page_tokens - 1) / e->shape->page_tokens;
    batch->token_ids = mem_zalloc_array((size_t)d->shape->max_num_batched_tokens, sizeof(int32_t));
    batch->seq_start = mem_zalloc_array(n_seqs + 1, sizeof(int32_t));
    batch->kv_len = mem_zalloc_array(n_seqs, sizeof(int32_t));
    batch->page_ids = mem_zalloc_array(n_seqs * (size_t)batch->pages_max, sizeof(int32_t));
    batch->rows = mem_zalloc_array(n_seqs, sizeof *batch->rows);
    d->ids = mem_zalloc_array(n_seqs, sizeof *d->ids);
    d->seqs = mem_zalloc_array(n_seqs, sizeof(struct seq *));
    d->counts = mem_zalloc_array(n_seqs, sizeof *d->counts);
    d->at = mem_zalloc_array(n_seqs, sizeof *d->at);
    d->hidden = mem_zalloc_array((size_t)d->shape->max_num_batched_tokens, sizeof *d->hidden);
    if (batch->token_ids == NULL || batch->seq_start == NULL || batch->kv_len == NULL ||
        batch->page_ids == NULL || batch->rows == NULL || d->ids == NULL || d->seqs == NULL ||
        d->counts == NULL || d->at == NULL || d->hidden == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* As trial_shape() (trial.c): the first guess of the time of steps, corrected by each of them. */
static void drafter_guess_cost(struct drafter *d)
{
    const struct model_shape *shape = d->shape;

    cost_init(&d->cost, &(struct cost_shape){
                            .weight_bytes = (double)(shape->weight_bytes - shape->table_bytes),
                            .token_flops = (double)shape->weight_bytes,
                            .key_bytes = (double)shape->page_bytes / shape->page_tokens,
                            .pair_flops = 4.0 * shape->n_heads * shape->head_dim * shape->n_layers,
                            .row_flops = 2.0 * shape->n_vocab * shape->dim,
                            .tile_tokens = shape->is_gpu ? 128 : 1,
                            .is_gpu = shape->is_gpu,
                            .groups = shape->groups,
                            .n_groups = 1});
}

int drafter_join(struct engine *e)
{
    struct drafter *d = &e->drafter;
    int rc;

    if (d->model == NULL)
        return ERR_OK;
    if ((rc = drafter_check(e)) != ERR_OK ||
        (d->is_head && (rc = model_join(d->model, e->model)) != ERR_OK) ||
        (rc = model_add_pages(d->model, e->shape->n_pages)) != ERR_OK ||
        (rc = drafter_alloc(e)) != ERR_OK)
        return rc;
    drafter_guess_cost(d);
    log_info("engine: up to %d drafts of %s; a page has %zu bytes beside the model's %zu",
             e->drafts.n_tokens, e->drafts.model, d->shape->page_bytes, e->shape->page_bytes);
    return ERR_OK;
}

void drafter_close(struct drafter *d)
{
    model_close(d->model);
    mem_free(d->batch.token_ids);
    mem_free(d->batch.seq_start);
    mem_free(d->batch.kv_len);
    mem_free(d->batch.page_ids);
    mem_free(d->batch.rows);
    mem_free(d->ids);
    mem_free(d->seqs);
    mem_free(d->counts);
    mem_free(d->at);
    mem_free(d->hidden);
    *d = (struct drafter){.model = NULL};
}

int drafter_sleep(struct drafter *d)
{
    int rc = ERR_OK;

    if (d->model != NULL && !d->is_asleep)
        rc = model_sleep(d->model);
    d->is_asleep = rc == ERR_OK;
    return rc;
}

/* The contents of all pages are lost, and sleep_forget_pages() has taken the marks from them. */
int drafter_wake(struct drafter *d)
{
    int rc = ERR_OK;

    if (d->model != NULL && d->is_asleep)
        rc = model_wake(d->model);
    d->is_asleep = rc != ERR_OK;
    return rc;
}

/* --- the drafter's keys ----------------------------------------------------------------------- */

/* seq was admitted: its cached prefix may be the drafter's as well, up to the first page that is
 * not. The page that seq got a copy of for its first tokens is not the drafter's for long. */
static void drafter_trace(const struct engine *e, struct seq *seq)
{
    const struct seq_table *of = &seq->tables[e->drafter.group];
    struct draft *draft = &seq->draft;
    int n = 0, most = seq->n_computed / e->shape->page_tokens;

    while (n < most && pages_drafted(e->pages, of->pages[n]))
        n++;
    draft->n_marked = n;
    draft->n_beside = n * e->shape->page_tokens;
    draft->base = 0;
    if (n == most && most < of->n && seq->n_computed > draft->n_beside &&
        pages_drafted(e->pages, of->pages[most])) {
        pages_set_drafted(e->pages, of->pages[most], false);
        draft->n_beside = seq->n_computed;
    }
    draft->n_made = 0;
    draft->is_traced = true;
}

void drafter_admit(struct engine *e)
{
    for (int i = 0; i < e->sched.n_planned && e->drafter.model != NULL; i++) {
        if (!e->sched.planned[i]->draft.is_traced)
            drafter_trace(e, e->sched.planned[i]);
    }
}

/* Pages of known tokens alone are marked, for later sequences that find them in the cache. */
static void drafter_mark(struct engine *e, struct seq *seq)
{
    const struct seq_table *of = &seq->tables[e->drafter.group];
    struct draft *draft = &seq->draft;

    while (draft->base == 0 && (draft->n_marked + 1) * e->shape->page_tokens <= draft->n_beside)
        pages_set_drafted(e->pages, of->pages[draft->n_marked++], true);
}

/* Are drafts made for seq in this pass or a later one? Then it does not run ahead. */
static bool drafter_wants(const struct engine *e, const struct seq *seq)
{
    return draft_may(seq) && seq->draft.n_rest == 0 && !seq->paused && !seq_tells_prompt(seq) &&
           seq->n_tokens + e->drafts.n_tokens < e->drafter.shape->max_model_len;
}

/* Are all tokens of seq known, and all but the last computed? A head needs their residuals; to a
 * model it does not matter that a state computes some again. */
static bool drafter_is_ready(const struct drafter *d, const struct seq *seq)
{
    int n = seq->n_tokens - seq->n_computed;

    return seq->n_pending == 0 && seq->n_ahead == 0 && !seq->is_late &&
           (n == 1 || (!d->is_head && seq_decodes(seq, n)));
}

/* Drafts that seq can take at most. */
static int drafter_most(const struct engine *e, const struct seq *seq)
{
    int most = seq->tokens_max - seq->n_tokens - 1;
    int room = seq->room / seq_token_records(seq);

    if (most > draft_most(&e->drafts, seq))
        most = draft_most(&e->drafts, seq);
    return most < room ? most : room;
}

/* Of a pass: the sequences that are ready. A step has a row for each draft, and places for
 * sequences that are admitted (sched_drafts()). */
static void drafter_collect(struct engine *e)
{
    struct drafter *d = &e->drafter;

    d->n_seqs = 0;
    for (int i = 0; i < e->sched.n_running; i++) {
        struct seq *seq = e->sched.running[i];

        seq->draft.is_on = drafter_wants(e, seq);
        if (!seq->draft.is_on)
            continue;
        must(seq->draft.is_traced);
        drafter_mark(e, seq);
        if (drafter_is_ready(d, seq) && drafter_most(e, seq) > 0 &&
            d->n_seqs < d->shape->max_num_seqs)
            d->seqs[d->n_seqs++] = seq;
    }
}

/* --- how many ------------------------------------------------------------------------------- */

/* What a pass with `depth` drafts of each sequence promises. */
struct drafter_promise {
    double tokens, us;
};

/* The first draft is certain to be sampled, the next one counts if the one before is right, and so
 * on: 1 + p + p^2 ... tokens. Tokens that the drafter has yet to catch up with are not counted:
 * they are computed once. */
static struct drafter_promise drafter_promise(const struct engine *e, int depth)
{
    const struct drafter *d = &e->drafter;
    struct drafter_promise out = {0.0, 0.0};
    struct cost_step target = {0};

    for (int i = 0; i < d->n_seqs; i++) {
        const struct seq *seq = d->seqs[i];
        double share = (double)draft_share(&seq->draft), right = 1.0;

        for (int n = 0; n <= depth; n++, right *= share)
            out.tokens += right;
        cost_add(&e->cost, &target, seq->n_tokens - 1, 1 + depth, 1 + depth);
    }
    out.us = cost_us(&e->cost, &target);
    if (depth > 0) {
        struct cost_step drafts = {0};

        for (int i = 0; i < d->n_seqs; i++)
            cost_add(&d->cost, &drafts, d->seqs[i]->n_tokens, 1, 1);
        out.us += depth * cost_us(&d->cost, &drafts);
    }
    return out;
}

/* No drafts for a while, twice as long as the last time, and less doubt after it: the text or the
 * load may have changed. */
static void drafter_rest(struct seq *seq)
{
    struct draft *draft = &seq->draft;

    if (draft->backoff < DRAFTER_REST)
        draft->backoff = DRAFTER_REST;
    draft_rest(draft, draft->backoff);
    draft->share = draft_share(draft);
    draft->share += DRAFTER_EASE * (draft_share(&(struct draft){.share = 0.0f}) - draft->share);
    if (draft->backoff < DRAFTER_RESTS)
        draft->backoff *= 2;
}

/* Of all sequences as many drafts as there are rows for. */
static void drafter_choose_most(struct engine *e)
{
    struct drafter *d = &e->drafter;
    int each = (e->shape->max_num_seqs - e->sched.n_running) / 2 / d->n_seqs;

    for (int i = 0; i < d->n_seqs; i++) {
        int most = drafter_most(e, d->seqs[i]);

        d->counts[i] = each < most ? each : most;
    }
    if (each == 0)
        d->n_seqs = 0;
}

/* Set d->counts: of all sequences the depth that promises the most tokens per time, less of those
 * whose further drafts are not worth the time of one. Sequences with none leave the list. */
static void drafter_choose(struct engine *e)
{
    struct drafter *d = &e->drafter;
    int rows = (e->shape->max_num_seqs - e->sched.n_running) / 2, n = 0, depth = 0;
    struct drafter_promise none = drafter_promise(e, 0), best = none;
    double per_draft_us = 0.0;

    for (int i = 1; i <= e->drafts.n_tokens && i * d->n_seqs <= rows; i++) {
        struct drafter_promise with = drafter_promise(e, i);
        double gain = depth == 0 ? DRAFTER_GAIN : 1.0;

        if (with.tokens * best.us <= gain * best.tokens * with.us)
            continue;
        best = with;
        depth = i;
    }
    if (depth > 0)
        per_draft_us = (best.us - none.us) / (depth * d->n_seqs);
    for (int i = 0; i < d->n_seqs; i++) {
        struct seq *seq = d->seqs[i];
        double worth_us = none.us / d->n_seqs, share = (double)draft_share(&seq->draft);
        int count = 0, most = drafter_most(e, seq);

        while (count < depth && count < most && (worth_us *= share) >= per_draft_us)
            count++;
        if (count == 0) {
            drafter_rest(seq);
            continue;
        }
        d->counts[n] = count;
        d->seqs[n++] = seq;
    }
    d->n_seqs = n;
}

/* --- steps ---------------------------------------------------------------------------------- */

static void drafter_clear(struct batch *batch)
{
    batch->n_tokens = batch->n_seqs = batch->n_rows = 0;
    batch->n_extras = batch->n_masks = 0;
    batch->seq_start[0] = 0;
}

/* Add n tokens of seq behind its first n_before. Returns where their ids are to be written. */
static int32_t *drafter_add(struct drafter *d, const struct seq *seq, int n_before, int n)
{
    struct batch *batch = &d->batch;
    const struct seq_table *of = &seq->tables[d->group];
    int i = batch->n_seqs++, first = seq->draft.base / d->shape->page_tokens;
    int32_t *ids = batch->token_ids + batch->n_tokens;

    batch->n_tokens += n;
    batch->seq_start[i + 1] = batch->n_tokens;
    batch->kv_len[i] = n_before + n - seq->draft.base;
    memcpy(batch->page_ids + (size_t)i * (size_t)batch->pages_max, of->pages + first,
           sizeof *of->pages * (size_t)(of->n - first));
    return ids;
}

/* The row of the last token that was added. Penalties need tokens that the host does not know yet:
 * a draft does without. */
static void drafter_add_row(struct drafter *d, const struct seq *seq, int position)
{
    struct batch *batch = &d->batch;
    struct batch_row *row = &batch->rows[batch->n_rows++];

    *row = (struct batch_row){.token_idx = batch->n_tokens - 1,
                              .sampling = seq->request.generate.sampling,
                              .position = (uint64_t)position};
    row->sampling.presence_penalty = 0.0f;
    row->sampling.frequency_penalty = 0.0f;
    row->sampling.repetition_penalty = 1.0f;
}

/* Tokens that the first step has room for. */
static int drafter_left(const struct drafter *d)
{
    if (d->batch.n_seqs == d->shape->max_num_seqs)
        return 0;
    return d->shape->max_num_batched_tokens - d->batch.n_tokens;
}

/* Add known tokens that the drafter lacks, up to the first `end`, as many as there is room for. */
static void drafter_catch_up(struct drafter *d, struct seq *seq, int end)
{
    int n = end - seq->draft.n_beside, left = drafter_left(d);

    n = n < left ? n : left;
    if (n <= 0)
        return;
    memcpy(drafter_add(d, seq, seq->draft.n_beside, n), seq->tokens + seq->draft.n_beside,
           sizeof *seq->tokens * (size_t)n);
    seq->draft.n_beside += n;
}

/* A row in the first step for each sequence that gets drafts, behind the tokens that `add` adds of
 * it. Where it returns false, or pages are missing, the sequence leaves the list. */
static void drafter_fill_first(struct engine *e, bool add(struct engine *, struct seq *))
{
    struct drafter *d = &e->drafter;
    int n = 0;

    drafter_clear(&d->batch);
    for (int i = 0; i < d->n_seqs; i++) {
        struct seq *seq = d->seqs[i];

        if (!tables_grow(&e->sched.tables, seq, seq->n_tokens + d->counts[i]) || !add(e, seq))
            continue;
        d->at[n] = d->batch.n_rows;
        drafter_add_row(d, seq, seq->n_tokens);
        d->counts[n] = d->counts[i];
        d->seqs[n++] = seq;
    }
    d->n_seqs = n;
}

/* All that the drafter lacks of seq. Too much of it is left for a later pass. */
static bool drafter_add_lacking(struct engine *e, struct seq *seq)
{
    drafter_catch_up(&e->drafter, seq, seq->n_tokens);
    return seq->draft.n_beside == seq->n_tokens;
}

/* Prompts that the target computes are computed beside it. */
static void drafter_fill_prompts(struct engine *e)
{
    struct drafter *d = &e->drafter;

    for (int i = 0; i < e->sched.n_running; i++) {
        struct seq *seq = e->sched.running[i];
        int end = seq->n_computed + seq->n_ahead;

        if (seq->draft.is_on && !drafter_is_ready(d, seq))
            drafter_catch_up(d, seq, end < seq->n_tokens ? end : seq->n_tokens);
    }
}

/* --- a head's tokens ------------------------------------------------------------------------ */

/* The target's last step has ended and no other one began: the rows of its residuals are there, and
 * e->batch has its numbers. Add those of seq that the head lacks, with the tokens behind them;
 * row_0 is the row of seq's first token of n in the step, which is token `first` of the text. */
static void drafter_absorb(struct engine *e, struct seq *seq, int row_0, int first)
{
    struct drafter *d = &e->drafter;
    struct draft *draft = &seq->draft;
    int page = e->shape->page_tokens, n, at;
    int32_t *ids;

    if (draft->n_beside < first) { /* residuals are gone: begin at the next page */
        draft->base = (first + page - 1) / page * page;
        draft->n_beside = draft->base;
    }
    n = seq->n_computed - draft->n_beside;
    n = n < drafter_left(d) ? n : drafter_left(d);
    if (n <= 0)
        return;
    at = d->batch.n_tokens;
    ids = drafter_add(d, seq, draft->n_beside, n);
    for (int i = 0; i < n; i++) {
        ids[i] = seq->tokens[draft->n_beside + i + 1];
        d->hidden[at + i] = row_0 + draft->n_beside + i - first;
    }
    draft->n_beside += n;
}

/* The index of seq in the target's last step; -1: it is not there. */
static int drafter_find_start(const struct engine *e, const struct seq *seq)
{
    const struct engine_step *step = &e->steps[(e->n_ended - 1) % MODEL_STEPS_MAX];

    for (int i = 0; i < step->n_seqs; i++) {
        if (step->seqs[i] == seq)
            return i;
    }
    return -1;
}

static void drafter_absorb_from(struct engine *e, struct seq *seq, int idx)
{
    const struct batch *batch = &e->batch;
    int row_0 = batch->seq_start[idx], n = batch->seq_start[idx + 1] - row_0;

    drafter_absorb(e, seq, row_0, batch->kv_len[idx] - n);
}

/* All tokens of seq that a head lacks, if the target's last step has some. */
static bool drafter_add_absorbed(struct engine *e, struct seq *seq)
{
    int idx = drafter_find_start(e, seq), before = e->drafter.batch.n_tokens;

    if (idx >= 0)
        drafter_absorb_from(e, seq, idx);
    return e->drafter.batch.n_tokens > before && seq->draft.n_beside == seq->n_computed;
}

/* The first step of a head: all new tokens of sequences that want drafts, those first that get
 * some now. */
static void drafter_fill_head(struct engine *e)
{
    e->drafter.batch.hidden = (struct batch_hidden){.of_target = true, .rows = e->drafter.hidden};
    drafter_fill_first(e, drafter_add_absorbed);
    for (int i = 0; i < e->sched.n_running; i++) {
        struct seq *seq = e->sched.running[i];
        int idx = seq->draft.is_on ? drafter_find_start(e, seq) : -1;

        if (idx >= 0 && seq->draft.n_beside < seq->n_computed)
            drafter_absorb_from(e, seq, idx);
    }
}

/* Step `depth`, from 1: the draft before of every sequence that gets more. False: there is none. */
static bool drafter_fill_next(struct drafter *d, int depth)
{
    struct batch *batch = &d->batch;

    drafter_clear(&d->batch);
    batch->hidden = (struct batch_hidden){.of_target = false, .rows = d->hidden};
    for (int i = 0; i < d->n_seqs; i++) {
        const struct seq *seq = d->seqs[i];

        if (d->counts[i] <= depth)
            continue;
        d->hidden[batch->n_tokens] = d->at[i];
        *drafter_add(d, seq, seq->n_tokens + depth - 1 - d->is_head, 1) = -1 - d->at[i];
        d->at[i] = d->batch.n_rows;
        drafter_add_row(d, seq, seq->n_tokens + depth);
    }
    return d->batch.n_seqs > 0;
}

/* Add the batch's parts, for the time that the step takes. */
static struct cost_step drafter_load(const struct drafter *d)
{
    const struct batch *batch = &d->batch;
    struct cost_step load = {0};

    for (int i = 0; i < batch->n_seqs; i++) {
        int n = batch->seq_start[i + 1] - batch->seq_start[i];

        cost_add(&d->cost, &load, batch->kv_len[i] - n, n, i < batch->n_rows);
    }
    return load;
}

/* On the cpu device a step has run when it has begun; its time is learnt here, and on others when
 * it ends. */
static int drafter_begin(struct drafter *d, const struct cost_step *load)
{
    uint64_t from_us = clock_us();
    int rc = model_step_begin(d->model, &d->batch);

    if (rc == ERR_OK)
        rc = model_step_sample(d->model, &d->batch);
    if (rc == ERR_OK && !d->shape->is_gpu)
        (void)cost_learn(&d->cost, load, (double)(clock_us() - from_us));
    return rc;
}

/* End the oldest step, which sampled the drafts of this depth, from 0. */
static int drafter_end(struct drafter *d, int depth)
{
    int rc = model_step_end(d->model, d->ids, NULL), row = 0;

    for (int i = 0; i < d->n_seqs && rc == ERR_OK; i++) {
        struct seq *seq = d->seqs[i];

        if (d->counts[i] > depth)
            seq->tokens[seq->n_tokens + depth] = d->ids[row++];
    }
    return rc;
}

/* All steps of a pass. The first has been filled in. */
static int drafter_run(struct drafter *d)
{
    struct cost_step loads[2] = {drafter_load(d)};
    uint64_t from_us = clock_us();
    int n_begun = 1, rc = drafter_begin(d, &loads[0]);

    for (int n_ended = 0; rc == ERR_OK && n_ended < n_begun; n_ended++) {
        if (drafter_fill_next(d, n_begun)) {
            loads[n_begun % 2] = drafter_load(d);
            rc = drafter_begin(d, &loads[n_begun % 2]);
            n_begun++;
        }
        if (rc == ERR_OK)
            rc = drafter_end(d, n_ended);
        if (rc == ERR_OK && d->shape->is_gpu && d->n_seqs > 0) {
            uint64_t now_us = clock_us();

            (void)cost_learn(&d->cost, &loads[n_ended % 2], (double)(now_us - from_us));
            from_us = now_us;
        }
    }
    return rc;
}

/* Pages for drafts are not taken where every running sequence will not find its next one. */
static bool drafter_has_room(const struct engine *e)
{
    const struct drafter *d = &e->drafter;
    int each = e->drafts.n_tokens / e->shape->page_tokens + 1;

    return pages_free(e->pages) >
           (e->sched.n_running + each * d->n_seqs) * e->sched.tables.n_token_groups;
}

int drafter_pass(struct engine *e)
{
    struct drafter *d = &e->drafter;
    int rc;

    if (d->model == NULL)
        return ERR_OK;
    drafter_collect(e);
    if (d->n_seqs > 0 && !drafter_has_room(e))
        d->n_seqs = 0;
    if (d->n_seqs > 0 && e->drafts.is_fixed)
        drafter_choose_most(e);
    else if (d->n_seqs > 0)
        drafter_choose(e);
    if (d->is_head && (e->n_begun != e->n_ended || e->n_ended == 0))
        return ERR_OK; /* the rows of its residuals are another step's */
    if (d->is_head) {
        drafter_fill_head(e);
    } else {
        drafter_fill_first(e, drafter_add_lacking);
        drafter_fill_prompts(e);
    }
    if (d->batch.n_tokens == 0)
        return ERR_OK;
    rc = drafter_run(d);
    for (int i = 0; i < d->n_seqs && rc == ERR_OK; i++) {
        d->seqs[i]->draft.n_made = d->counts[i];
        d->seqs[i]->draft.made_at = d->seqs[i]->n_tokens;
    }
    e->now_us = clock_us(); /* the step that begins next takes its time from here */
    return rc;
}

int drafter_copy_page(struct engine *e, int32_t to, int32_t from)
{
    struct drafter *d = &e->drafter;

    if (d->model == NULL || !pages_drafted(e->pages, from))
        return ERR_OK;
    pages_set_drafted(e->pages, to, true);
    return model_page_copy(d->model, to, from);
}

/* A head needs the residuals of every step of a sequence that wants drafts. */
bool drafter_awaits_step(const struct engine *e)
{
    for (int i = 0; i < e->sched.n_running && e->drafter.model != NULL; i++) {
        const struct seq *seq = e->sched.running[i];

        if ((seq->n_pending > 0 || (e->drafter.is_head && seq->n_ahead > 0)) &&
            drafter_wants(e, seq))
            return true;
    }
    return false;
}
