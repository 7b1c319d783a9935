/* SPDX-License-Identifier: Apache-2.0
 *
 * Every part of a step is in some trial without the others, or nearly so: decodes of few and many
 * keys, first chunks of every length, chunks behind a long beginning, and both together. Each step
 * is run three times, of which the first does not count: it chooses algorithms and records
 * graphs. */
#include "engine/trial.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"

#define TRIAL_RUNS      3
#define TRIAL_LIMIT_US  5000000u /* no further step begins after so long */
#define TRIAL_CONTEXT   2048
#define TRIAL_FEW       64 /* tokens of context whose keys hardly count */
#define TRIAL_CHUNK_MIN 16

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
        trial_add(out, &n, l, (struct trial){.n_decodes = most, .n_context = context});
    }
    for (int n_chunk = TRIAL_CHUNK_MIN; n_chunk < 2 * longest; n_chunk *= 2) {
        int most = trial_least(n_chunk, longest);
        int behind = trial_least(8 * most, l->max_model_len - most);

        trial_add(out, &n, l, (struct trial){.n_chunk = most});
        trial_add(out, &n, l, (struct trial){.n_chunk = most, .n_before = behind});
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
            (int32_t)((int64_t)(n_before + k) * 7919 % shape->n_vocab);
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

static int trial_measure(struct engine *e)
{
    const struct trial_limits limits = {.max_num_seqs = e->shape->max_num_seqs,
                                        .max_num_batched_tokens = e->shape->max_num_batched_tokens,
                                        .max_model_len = e->shape->max_model_len};
    struct trial trials[TRIALS_MAX];
    struct cost_step steps[TRIALS_MAX];
    uint64_t times_us[TRIALS_MAX], start_us = clock_us();
    int n = trial_list(trials, &limits), n_done = 0;

    for (; n_done < n && clock_us() - start_us < TRIAL_LIMIT_US; n_done++) {
        times_us[n_done] = UINT64_MAX;
        trial_fill(e, &trials[n_done]);
        trial_step(&e->cost, &trials[n_done], &steps[n_done]);
        for (int run = 0; run < TRIAL_RUNS; run++) {
            uint64_t us;
            int rc = trial_time(e, &us);

            if (rc != ERR_OK)
                return rc;
            if (run > 0 && us < times_us[n_done])
                times_us[n_done] = us;
        }
    }
    /* Twice, because the first pass meets large steps with factors that are still a guess. */
    for (int i = 0; i < 2 * n_done; i++)
        (void)cost_learn(&e->cost, &steps[i % n_done], (double)times_us[i % n_done]);
    cost_settle(&e->cost);
    log_info("engine: %d of %d trial steps in %.1f s", n_done, n,
             (double)(clock_us() - start_us) * 1e-6);
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
        .n_tokens_max = shape->max_num_batched_tokens,
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
    else
        cost_doubt(&e->cost);
    return rc;
}
