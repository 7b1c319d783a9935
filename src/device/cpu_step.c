/* SPDX-License-Identifier: Apache-2.0
 *
 * A step of the cpu device: begin, sampling, end. Operations between them run when they are called,
 * on the thread that began the step.
 *
 * Results of a step are kept by its number modulo device_steps() until it ends, because the next
 * step may begin before. */
#include "config.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/must.h"
#include "device/parts_cpu.h"

struct sample_job {
    struct cpu *c;
    const float *logits;
};

/* One row. Scratch memory and counts are the worker's. */
static void cpu_sample_task(void *arg, int task, int worker)
{
    const struct sample_job *j = arg;
    const struct device_batch *batch = j->c->batch;
    struct k_sample_row row = batch->rows[task];
    int n_vocab = j->c->base.limits.n_vocab;

    row.history_at = 0;
    cpu_ids_of(j->c, j->c->n_begun - 1)[task] =
        ref_sample(j->logits + (size_t)task * n_vocab, n_vocab, &row, batch->histories[task],
                   j->c->scratch + (size_t)worker * j->c->scratch_len,
                   j->c->counts + (size_t)worker * n_vocab);
}

/* Log probabilities are computed from unmodified logits, then masks and biases are applied, then
 * rows are sampled. */
void cpu_sample(struct device *d, float *logits)
{
    struct sample_job job = {.c = cpu_of(d), .logits = logits};
    unsigned step = (job.c->n_begun - 1) % device_steps(d->limits.n_stages);
    const struct device_extras *extras = &d->extras;
    int n_vocab = d->limits.n_vocab;

    must(extras->n_rows <= job.c->batch->n_rows);
    job.c->begun_us = clock_us();
    job.c->n_extras[step] = extras->n_rows;
    ref_read_asked(extras->asked, logits, n_vocab, extras->n_asked);
    ref_logprobs(job.c->logprobs[step], logits, n_vocab, extras->rows, extras->n_rows);
    ref_edit(logits, n_vocab, extras->rows, extras->n_rows, extras->masks, extras->biases);
    pool_run(job.c->pool, cpu_sample_task, &job, job.c->batch->n_rows);
    ref_chosen(job.c->logprobs[step], job.c->ids[step], logits, n_vocab, extras->rows,
               extras->n_rows, extras->biases);
    for (int i = 0; i < job.c->batch->n_rows && d->sample_ids != NULL; i++)
        job.c->ids[step][i] = d->sample_ids[job.c->ids[step][i]];
    (void)atomic_fetch_add(&job.c->busy_us, clock_us() - job.c->begun_us);
    if (job.c->stages != NULL)
        cpu_stages_sampled(job.c->stages, job.c->n_begun);
}

/* Operations run at once, so a step that ids refer to has been sampled, or another thread samples
 * it. Only the first stage reads ids. */
static int cpu_resolve_ids(struct cpu *cpu, const struct device_batch *b)
{
    unsigned step = cpu->n_begun - device_stages(cpu->base.limits.n_stages);
    const int32_t *before = cpu_ids_of(cpu->sampler, step);
    bool waits = cpu->stages != NULL;

    for (int t = 0; t < b->tokens.n_tokens; t++) {
        int32_t id = b->tokens.ids[t];

        if (id < 0 && waits && cpu_stages_await_ids(cpu->stages, step + 1) != ERR_OK)
            return ERR_GPU;
        waits = waits && id >= 0;
        cpu->token_ids[t] = id < 0 ? before[-1 - id] : id;
    }
    return ERR_OK;
}

int cpu_begin(struct device *d, const struct device_batch *b)
{
    struct cpu *cpu = cpu_of(d);
    unsigned at = cpu->n_begun % device_steps(d->limits.n_stages);
    int rc = ERR_OK;

    must(cpu->n_begun - cpu->n_ended <= device_stages(d->limits.n_stages));
    if (cpu->stages == NULL || cpu_stages_is_first(cpu->stages, cpu->idx))
        rc = cpu_resolve_ids(cpu, b);
    if (rc != ERR_OK)
        return rc;
    /* Borrowed until the step is sampled. */
    cpu->batch = b;
    if (b->adapters != NULL)
        cpu_begin_adapters(cpu);
    cpu->n_rows[at] = d->limits.n_vocab > 0 ? b->n_rows : 0;
    cpu->n_extras[at] = 0;
    cpu->n_begun++;
    cpu->begun_us = clock_us();
    d->step_tokens = b->tokens.n_tokens;
    d->step_rows = b->n_rows;
    return ERR_OK;
}

/* Nothing is recorded on this device. */
bool cpu_replay(struct device *d)
{
    (void)d;
    return false;
}

void cpu_launch(struct device *d)
{
    struct cpu *cpu = cpu_of(d);

    /* Everything has run already. */
    (void)atomic_fetch_add(&cpu->busy_us, clock_us() - cpu->begun_us);
}

/* A sum that was ended makes all later results invalid. */
int cpu_end(struct device *d, int32_t *ids, struct k_logprob_row *logprobs, int *n_extras)
{
    struct cpu *cpu = cpu_of(d);
    unsigned step = cpu->n_ended++, at = step % device_steps(d->limits.n_stages);

    /* A step must have begun for each end. */
    must(step != cpu->n_begun);
    cpu->n_steps++;
    if (cpu->n_rows[at] > 0)
        /* Ranks above 0 have no rows and leave ids alone. */
        memcpy(ids, cpu->ids[at], (size_t)cpu->n_rows[at] * sizeof *ids);
    memcpy(logprobs, cpu->logprobs[at], (size_t)cpu->n_extras[at] * sizeof *logprobs);
    *n_extras = cpu->n_extras[at];
    if (cpu->ranks != NULL && cpu_ranks_ended(cpu->ranks))
        return ERR_GPU;
    if (cpu->stages != NULL && cpu_stages_ended(cpu->stages))
        return ERR_GPU;
    return ERR_OK;
}

void cpu_measure(struct device *d, struct device_load *out)
{
    struct cpu *cpu = cpu_of(d);

    *out = (struct device_load){.n_steps = cpu->n_steps,
                                .busy_us = atomic_load(&cpu->busy_us),
                                .sum_us = atomic_load(&cpu->sum_us)};
}
