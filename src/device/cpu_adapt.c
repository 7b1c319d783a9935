/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-rank adapters on the cpu device (kernels/adapter.h).
 *
 *   x -> rows with an adapter, those of a slot next to each other -> t = a x -> y += scale * b t
 *
 * The order of the rows is made once, when a step begins. A task of the first product is one slot's
 * rows of one part, some rows at a time; a task of the second is one row and some of its outputs.
 * Each number depends on its own row only, in both, so a token has the same bits whatever the
 * others are. */
#include "config.h"

#include "device/parts_cpu.h"

#include <string.h>

#include "base/must.h"

#define ROWS_A_TASK 16
#define OUTS_A_TASK 1024

struct adapt_job {
    struct cpu *cpu;
    const struct k_adapters *adapters;
    const struct cpu_adapted_rows *rows;
    int n_rows, n_in, stride; /* stride: of y */
    int n_row_tasks, n_out_tasks;
    float *y;
};

/* All are as long as the largest step. */
int cpu_reserve_adapters(struct device *d)
{
    struct cpu *cpu = cpu_of(d);
    struct cpu_adapt *adapt = &cpu->adapt;
    struct cpu_adapted_rows *both[] = {&adapt->tokens, &adapt->rows};
    size_t tokens = (size_t)d->limits.n_tokens, slots = (size_t)d->limits.n_adapters;

    if (tokens < (size_t)d->limits.n_seqs)
        tokens = (size_t)d->limits.n_seqs;
    for (int i = 0; i < 2; i++) {
        both[i]->order = d->ops->alloc(d, tokens * sizeof *both[i]->order);
        both[i]->slots = d->ops->alloc(d, tokens * sizeof *both[i]->slots);
        both[i]->starts = d->ops->alloc(d, (slots + 1) * sizeof *both[i]->starts);
        if (both[i]->order == NULL || both[i]->slots == NULL || both[i]->starts == NULL)
            return ERR_NO_MEMORY;
    }
    adapt->x = d->ops->alloc(d, tokens * (size_t)d->limits.adapter_in * sizeof *adapt->x);
    adapt->t = d->ops->alloc(d, K_ADAPTED_MAX * tokens * (size_t)d->limits.adapter_rank *
                                    sizeof *adapt->t);
    if (adapt->x == NULL || adapt->t == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* The slot of row i of the step: of token i, or of sampled row i. */
static int cpu_slot_of(const struct device_batch *b, int i, bool of_rows)
{
    return b->adapters[of_rows ? b->row_tokens[i] : i];
}

/* Sort by slot; rows of a slot keep their order. */
static void cpu_sort_rows(const struct cpu *cpu, struct cpu_adapted_rows *to, int n, bool of_rows)
{
    const struct device_batch *b = cpu->batch;
    int n_slots = cpu->base.limits.n_adapters;

    memset(to->starts, 0, (size_t)(n_slots + 1) * sizeof *to->starts);
    for (int i = 0; i < n; i++) {
        int slot = cpu_slot_of(b, i, of_rows);

        must(slot >= -1 && slot < n_slots);
        if (slot >= 0)
            to->starts[slot + 1]++;
    }
    for (int slot = 0; slot < n_slots; slot++)
        to->starts[slot + 1] += to->starts[slot];
    for (int slot = n_slots, at = to->starts[n_slots]; slot-- > 0;) {
        for (int i = n; i-- > 0 && at > to->starts[slot];) {
            if (cpu_slot_of(b, i, of_rows) == slot) {
                to->order[--at] = i;
                to->slots[at] = slot;
            }
        }
    }
}

/* Sampled rows are sorted apart, because the output matrix reads these. */
void cpu_begin_adapters(struct cpu *cpu)
{
    must(cpu->base.limits.n_adapters > 0);
    cpu_sort_rows(cpu, &cpu->adapt.tokens, cpu->batch->tokens.n_tokens, false);
    cpu_sort_rows(cpu, &cpu->adapt.rows, cpu->batch->n_rows, true);
}

/* The a x of sorted row i, of a part with adapters of this rank. Those of a slot follow one
 * another. */
static float *cpu_t_of(const struct cpu *cpu, int part, int i)
{
    size_t tokens = (size_t)cpu->base.limits.n_tokens, most = (size_t)cpu->base.limits.adapter_rank;

    if (tokens < (size_t)cpu->base.limits.n_seqs)
        tokens = (size_t)cpu->base.limits.n_seqs;
    return cpu->adapt.t + ((size_t)part * tokens + (size_t)i) * most;
}

/* Tasks are [part][slot][rows]; most slots have fewer rows than there are tasks for. */
static void cpu_adapt_in_task(void *arg, int task, int worker)
{
    const struct adapt_job *job = arg;
    const struct cpu *cpu = job->cpu;
    int n_slots = cpu->base.limits.n_adapters;
    int part = task / (n_slots * job->n_row_tasks), slot = task / job->n_row_tasks % n_slots;
    const struct k_adapter *one = &job->adapters->parts[part].slots[slot];
    int start = job->rows->starts[slot], n = job->rows->starts[slot + 1] - start;
    int first = task % job->n_row_tasks * ROWS_A_TASK;
    struct cpu_matmul product = {.x = cpu->adapt.x + (size_t)start * (size_t)job->n_in,
                                 .w = one->a,
                                 .type = K_F32,
                                 .w_bytes = (size_t)job->n_in * sizeof(float),
                                 .n_in = job->n_in,
                                 .n_out = one->rank,
                                 .row_first = first,
                                 .row_last = first + ROWS_A_TASK < n ? first + ROWS_A_TASK : n,
                                 .out_last = one->rank};

    (void)worker;
    if (first >= n || one->rank == 0)
        return;
    product.y = cpu_t_of(cpu, part, start);
    cpu->math->matmul(&product);
}

/* Tasks are [part][row][outputs]. */
static void cpu_adapt_out_task(void *arg, int task, int worker)
{
    const struct adapt_job *job = arg;
    const struct cpu *cpu = job->cpu;
    int p = task / (job->n_rows * job->n_out_tasks), i = task / job->n_out_tasks % job->n_rows;
    int slot = job->rows->slots[i], start = job->rows->starts[slot];
    int first = task % job->n_out_tasks * OUTS_A_TASK;
    const struct k_adapted *part = &job->adapters->parts[p];
    const struct k_adapter *one = &part->slots[slot];
    int n = part->n_out - first < OUTS_A_TASK ? part->n_out - first : OUTS_A_TASK;
    float *y = job->y + (size_t)job->rows->order[i] * (size_t)job->stride;

    (void)worker;
    if (n <= 0 || one->rank == 0)
        return;
    ref_adapt_row(y + part->first + first, (const float *)one->b + first,
                  cpu_t_of(cpu, p, start) + (size_t)(i - start) * (size_t)one->rank, one->rank,
                  one->scale, n, part->n_out);
}

/* Little work is done by the caller, because waking threads costs more. */
static void cpu_adapt_run(struct adapt_job *job, pool_task *fn, int n_tasks, size_t work)
{
    if (work >= CPU_INLINE_WORK) {
        pool_run(job->cpu->pool, fn, job, n_tasks);
        return;
    }
    for (int task = 0; task < n_tasks; task++)
        fn(job, task, 0);
}

void cpu_adapt(struct device *d, float *y, const float *x, const struct k_matrix *w, int n)
{
    struct cpu *cpu = cpu_of(d);
    const struct k_adapters *adapters = w->adapters;
    struct adapt_job job = {.cpu = cpu,
                            .adapters = adapters,
                            .rows = adapters->of_rows ? &cpu->adapt.rows : &cpu->adapt.tokens,
                            .n_in = w->n_in,
                            .stride = w->n_out,
                            .y = y};
    int n_slots = d->limits.n_adapters, widest = 0;
    size_t work;

    must(n == (adapters->of_rows ? cpu->batch->n_rows : cpu->batch->tokens.n_tokens));
    must(w->n_in <= d->limits.adapter_in);
    job.n_rows = job.rows->starts[n_slots];
    if (job.n_rows == 0)
        return;
    for (int i = 0; i < job.n_rows; i++)
        memcpy(cpu->adapt.x + (size_t)i * (size_t)w->n_in,
               x + (size_t)job.rows->order[i] * (size_t)w->n_in, (size_t)w->n_in * sizeof *x);
    for (int p = 0; p < adapters->n_parts; p++)
        widest = adapters->parts[p].n_out > widest ? adapters->parts[p].n_out : widest;
    job.n_row_tasks = (job.n_rows + ROWS_A_TASK - 1) / ROWS_A_TASK;
    job.n_out_tasks = (widest + OUTS_A_TASK - 1) / OUTS_A_TASK;
    work = (size_t)job.n_rows * (size_t)d->limits.adapter_rank * (size_t)adapters->n_parts;
    cpu_adapt_run(&job, cpu_adapt_in_task, adapters->n_parts * n_slots * job.n_row_tasks,
                  work * (size_t)w->n_in);
    cpu_adapt_run(&job, cpu_adapt_out_task, adapters->n_parts * job.n_rows * job.n_out_tasks,
                  work * (size_t)widest);
}
