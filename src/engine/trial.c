/* SPDX-License-Identifier: Apache-2.0
 *
 * Every part of a step is in some trial without the others, or nearly so: decodes of few and many
 * keys, first chunks of growing length, chunks behind a long beginning, and chunks beside decodes.
 * Each step is run twice, because the first time chooses algorithms and records graphs. Chunks are
 * as long as the time allows, some thousand tokens; the products of longer steps are in proportion
 * (cost_fit()). */
#include "engine/trial.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"

#define TRIAL_LIMIT_US  700000u /* for all of them; longer steps are left out */
#define TRIAL_CONTEXT   2048
#define TRIAL_FEW       64 /* tokens of context whose keys hardly count */
#define TRIAL_CHUNK_MIN 64
#define TRIAL_BEHIND    32 /* chunks' lengths: a chunk of 1024 behind 32768 tokens */
#define TRIAL_LONG      32768
#define TRIAL_TILE      128 /* rows, as measured on an H200: the time of steps is a staircase */

static int trial_least(int a, int b)
{
    return a < b ? a : b;
}

/* Append a trial that keeps within the limits. */
static void trial_add(struct trial *out, int *n, const struct trial_limits *l, struct trial t)
{
    bool fits = t.n_decodes + (t.n_chunk > 0) <= l->max_num_seqs &&
                t.n_decodes + t.n_chunk <= l->max_num_batched_tokens &&
                t.n_context + 1 <= l->max_model_len && t.n_before + t.n_chunk <= l->max_model_len &&
                t.n_decodes + t.n_chunk > 0;

    if (fits && *n < TRIALS_MAX)
        out[(*n)++] = t;
}

int trial_list(struct trial out[TRIALS_MAX], const struct trial_limits *l)
{
    int context = trial_least(TRIAL_CONTEXT, l->max_model_len - 1);
    int few = trial_least(TRIAL_FEW, context), n = 0;
    int longest = trial_least(l->max_num_batched_tokens, l->max_model_len);

    for (int n_seqs = 1; n_seqs < 4 * l->max_num_seqs; n_seqs *= 4) {
        int most = trial_least(n_seqs, l->max_num_seqs);

        trial_add(out, &n, l, (struct trial){.n_decodes = most, .n_context = few});
        if (n_seqs > 1)
            trial_add(out, &n, l, (struct trial){.n_decodes = most, .n_context = context});
    }
    trial_add(out, &n, l,
              (struct trial){.n_decodes = trial_least(4, l->max_num_seqs),
                             .n_context = trial_least(TRIAL_LONG, l->max_model_len - 1)});
    for (int n_chunk = TRIAL_CHUNK_MIN, i = 0; n_chunk < 2 * longest; n_chunk *= 2, i++) {
        int most = trial_least(n_chunk, longest);
        int behind = trial_least(TRIAL_BEHIND * most, l->max_model_len - most);

        trial_add(out, &n, l, (struct trial){.n_chunk = most});
        if (i % 2 == 0)
            trial_add(out, &n, l, (struct trial){.n_chunk = most, .n_before = behind});
        else
            trial_add(out, &n, l,
                      (struct trial){.n_decodes = trial_least(l->max_num_seqs - 1, most),
                                     .n_context = context / 2,
                                     .n_chunk = most});
    }
    return n;
}

void trial_step(const struct cost *c, const struct trial *t, struct cost_step *out)
{
    *out = (struct cost_step){0};
    for (int i = 0; i < t->n_decodes; i++)
        cost_add(c, out, t->n_context, 1, 1);
    if (t->n_chunk > 0)
        cost_add(c, out, t->n_before, t->n_chunk, 1);
}

/* Add a sequence to the batch. All sequences use the same pages, one after another from a place of
 * their own: times do not depend on the numbers in pages. */
static void trial_add_seq(struct engine *e, int n_before, int n)
{
    const struct model_shape *shape = e->shape;
    struct batch *batch = &e->batch;
    int i = batch->n_seqs++;

    for (int k = 0; k < n; k++) /* spread over the vocabulary */
        batch->token_ids[batch->n_tokens + k] =
            (int32_t)((int64_t)(n_before + k) * 7919 % shape->n_words);
    batch->n_tokens += n;
    batch->seq_start[i + 1] = batch->n_tokens;
    batch->kv_len[i] = n_before + n;
    batch->rows[batch->n_rows++] =
        (struct batch_row){.token_idx = batch->n_tokens - 1, .sampling = sampling_greedy()};
}

static void trial_fill_tables(struct engine *e)
{
    const struct model_shape *shape = e->shape;
    struct batch *batch = &e->batch;
    int32_t *row = batch->page_ids;

    for (int g = 0; g < shape->n_groups; g++) {
        int first = 0;

        for (int i = 0; i < batch->n_seqs; i++, row += batch->pages_max) {
            int n_pages = shape->groups[g].n_state_pages;

            if (shape->groups[g].kind != CACHE_STATE)
                n_pages = (batch->kv_len[i] - 1) / shape->page_tokens + 1;
            for (int p = 0; p < n_pages; p++)
                row[p] = (first + p) % shape->n_pages;
            first = (first + n_pages) % shape->n_pages;
        }
    }
}

static void trial_fill(struct engine *e, const struct trial *t)
{
    struct batch *batch = &e->batch;

    batch->n_tokens = batch->n_seqs = batch->n_rows = batch->n_extras = batch->n_masks = 0;
    batch->seq_start[0] = 0;
    for (int i = 0; i < t->n_decodes; i++)
        trial_add_seq(e, t->n_context, 1);
    if (t->n_chunk > 0)
        trial_add_seq(e, t->n_before, t->n_chunk);
    trial_fill_tables(e);
}

/* Run a step; its time in *us. */
static int trial_time(struct engine *e, uint64_t *us)
{
    uint64_t from_us = clock_us();
    int rc = model_step_begin(e->model, &e->batch);

    if (rc == ERR_OK)
        rc = model_step_sample(e->model, &e->batch);
    if (rc == ERR_OK)
        rc = model_step_end(e->model, e->row_tokens, NULL);
    *us = clock_us() - from_us;
    return rc;
}

/* Run a step twice, and learn from the second time. */
static int trial_take(struct engine *e, const struct cost_step *step, double *us)
{
    uint64_t first_us, second_us;
    int rc = trial_time(e, &first_us);

    if (rc == ERR_OK)
        rc = trial_time(e, &second_us);
    if (rc != ERR_OK)
        return rc;
    *us = (double)(second_us < first_us ? second_us : first_us);
    (void)cost_learn(&e->cost, step, *us);
    return ERR_OK;
}

static int trial_measure(struct engine *e)
{
    const struct trial_limits limits = {.max_num_seqs = e->shape->max_num_seqs,
                                        .max_num_batched_tokens = e->shape->max_num_batched_tokens,
                                        .max_model_len = e->shape->max_model_len};
    struct trial trials[TRIALS_MAX];
    struct cost_step steps[TRIALS_MAX];
    double times_us[TRIALS_MAX];
    uint64_t start_us = clock_us();
    int n = trial_list(trials, &limits), n_done = 0;

    /* A step that is foretold to end after the time is over is left out, and so are all longer
     * ones. */
    for (int i = 0; i < n; i++) {
        double left_us = (double)TRIAL_LIMIT_US - (double)(clock_us() - start_us);
        int rc;

        trial_step(&e->cost, &trials[i], &steps[n_done]);
        if (n_done > 0 && 2.0 * cost_us(&e->cost, &steps[n_done]) > left_us)
            continue;
        trial_fill(e, &trials[i]);
        if ((rc = trial_take(e, &steps[n_done], &times_us[n_done])) != ERR_OK)
            return rc;
        n_done++;
    }
    cost_fit(&e->cost, steps, times_us, n_done);
    log_info("engine: %d of %d trial steps in %.2f s: a step of one sequence takes %.2f ms", n_done,
             n, (double)(clock_us() - start_us) * 1e-6, e->cost.one_us * 1e-3);
    return ERR_OK;
}

/* The shape's numbers for the first guess. Weights that are not read by every step are few. */
static struct cost_shape trial_shape(const struct engine *e)
{
    const struct model_shape *shape = e->shape;
    double experts = (double)shape->expert_bytes, used = 1.0;
    double pairs = 4.0 * shape->n_heads * shape->head_dim * shape->n_layers;

    if (shape->n_experts > 0)
        used = (double)shape->n_experts_used / shape->n_experts;
    return (struct cost_shape){
        .weight_bytes = (double)(shape->weight_bytes - shape->table_bytes) - experts * (1.0 - used),
        .token_flops = (double)shape->weight_bytes - experts * (1.0 - used), /* two per element */
        .key_bytes = (double)shape->page_bytes / shape->page_tokens * shape->n_groups,
        .pair_flops = pairs,
        .row_flops = 2.0 * shape->n_vocab * shape->dim,
        .tile_tokens = shape->is_gpu ? TRIAL_TILE : 1,
        .is_gpu = shape->is_gpu,
        .groups = shape->groups,
        .n_groups = shape->n_groups};
}

int trial_run(struct engine *e)
{
    const struct cost_shape shape = trial_shape(e);
    int rc = ERR_OK;

    cost_init(&e->cost, &shape);
    if (shape.is_gpu && e->settings.itl_target_ms != 0)
        rc = trial_measure(e);
    return rc;
}
