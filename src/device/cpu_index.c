/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of tokens of the cpu device, and attention over the chosen ones (kernels/index.h): the
 * references, a task for each token, and for each head of a token. */
#include "config.h"

#include "device/parts_cpu.h"

struct index_job {
    struct cpu *c;
    const struct k_index *x;
    const struct k_kv *kv;
    struct k_tokens tokens;
    const float *in, *weights; /* keys or queries; weights of queries */
    float *out;
    int32_t *choice;               /* to be made */
    const struct k_choice *chosen; /* made */
    int n_heads;
    float scale;
};

static struct index_job cpu_index_job(struct device *d, const struct k_index *x,
                                      const struct k_kv *kv, const void *in)
{
    struct cpu *cpu = cpu_of(d);

    return (struct index_job){.c = cpu,
                              .x = x,
                              .kv = kv,
                              .in = in,
                              .tokens = k_tokens_of(&cpu->batch->tokens, kv->group)};
}

static float *cpu_index_scratch(const struct index_job *job, int worker)
{
    _Static_assert(CPU_QUERIES >= 2, "two floats for each key");
    return job->c->scratch + (size_t)worker * job->c->scratch_len;
}

static void cpu_index_keys_task(void *arg, int task, int worker)
{
    const struct index_job *job = arg;

    (void)worker;
    ref_index_keys(job->in, job->x, job->kv, &job->tokens, task, task + 1);
}

void cpu_index_keys(struct device *d, const void *in, const struct k_index *x,
                    const struct k_kv *kv)
{
    struct index_job job = cpu_index_job(d, x, kv, in);

    pool_run(job.c->pool, cpu_index_keys_task, &job, job.tokens.n_tokens);
}

static void cpu_index_choose_task(void *arg, int task, int worker)
{
    const struct index_job *job = arg;

    ref_index_choose(job->choice, job->in, job->weights, job->x, job->kv, &job->tokens, task,
                     cpu_index_scratch(job, worker));
}

void cpu_index_choose(struct device *d, int32_t *chosen, const void *queries, const float *weights,
                      const struct k_index *x, const struct k_kv *kv)
{
    struct index_job job = cpu_index_job(d, x, kv, queries);

    job.choice = chosen;
    job.weights = weights;
    pool_run(job.c->pool, cpu_index_choose_task, &job, job.tokens.n_tokens);
}

static void cpu_attn_chosen_task(void *arg, int task, int worker)
{
    const struct index_job *job = arg;

    ref_attn_chosen(job->out, job->in, job->kv, &job->tokens, job->chosen, job->n_heads, job->scale,
                    task / job->n_heads, task % job->n_heads, cpu_index_scratch(job, worker));
}

void cpu_attn_chosen(struct device *d, void *out, const void *queries, const struct k_kv *kv,
                     const struct k_choice *chosen, int n_heads, float scale)
{
    struct index_job job = cpu_index_job(d, NULL, kv, queries);

    job.out = out;
    job.chosen = chosen;
    job.n_heads = n_heads;
    job.scale = scale;
    pool_run(job.c->pool, cpu_attn_chosen_task, &job, job.tokens.n_tokens * n_heads);
}
