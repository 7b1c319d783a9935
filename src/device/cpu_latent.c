/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention of the cpu device, before and behind attention itself (cpu_mix.c).
 *
 * A task is one head and a block of tokens, so that a head's matrix is read once for the block. The
 * products are those that attention has: a query is a weighted sum of the rows of up_k, and a value
 * the scores of rows of up_v. A token's bits do not depend on the others of its tile. */
#include "config.h"

#include "device/parts_cpu.h"
#include "kernels/e4m3.h"

#include <string.h>

#define LATENT_TOKENS 32 /* in a task */

struct latent_job {
    struct cpu *c;
    float *out; /* of keys: normed latents of queries */
    const float *in;
    const struct k_latent *l;
    const struct k_kv *kv;
    struct k_tokens tokens;
};

static struct latent_job cpu_latent_job(struct device *d, void *out, const void *in,
                                        const struct k_latent *l)
{
    return (struct latent_job){
        .c = cpu_of(d), .out = out, .in = in, .l = l, .tokens = cpu_of(d)->batch->tokens};
}

static int cpu_latent_end(const struct latent_job *job, int first, int n)
{
    if (job->tokens.n_tokens - first < n)
        return job->tokens.n_tokens;
    return first + n;
}

/* The rows of a head's matrix. */
static const float *cpu_latent_up(const struct k_latent *l, int head)
{
    const struct k_latent_shape *s = &l->shape;

    return (const float *)l->up + (size_t)head * (size_t)(s->nope_dim + s->v_dim) * s->kv_rank;
}

static void cpu_latent_run(struct latent_job *job, pool_task *task)
{
    int n_blocks = (job->tokens.n_tokens + LATENT_TOKENS - 1) / LATENT_TOKENS;

    pool_run(job->c->pool, task, job, n_blocks * job->l->shape.n_heads);
}

/* A token's row in pages of e4m3. */
static void cpu_latent_round(const struct latent_job *job, int token)
{
    const struct k_kv *kv = job->kv;
    const struct k_latent_shape *s = &job->l->shape;
    int seq = job->tokens.seq[token], pos = job->tokens.pos[token], width = k_latent_row(s);
    const float *begin = job->in + (size_t)token * (size_t)k_latent_in(s),
                *from = begin + k_latent_first(s);
    float row[K_LATENT_RANK_MAX + K_LATENT_ROPE_MAX];
    int32_t page;
    k_e4m3 *to;

    if (s->q_rank > 0)
        ref_rmsnorm(job->out + (size_t)token * (size_t)s->q_rank, begin, job->l->q_norm,
                    job->l->eps, 1, s->q_rank);
    if (job->tokens.kv_len[seq] == 0)
        return;
    page = job->tokens.page_ids[(size_t)seq * job->tokens.pages_max + pos / kv->page_tokens];
    to = (k_e4m3 *)kv->pages + (size_t)page * kv->page_elems + kv->layer_elems +
         (size_t)(pos % kv->page_tokens) * (size_t)width;
    ref_rmsnorm(row, from, job->l->norm, job->l->eps, 1, s->kv_rank);
    ref_latent_rotate(row + s->kv_rank, from + s->kv_rank,
                      job->l->turns + (size_t)pos * s->rope_dim, s->rope_dim, job->l->interleaved);
    for (int i = 0; i < width; i++)
        to[i] = k_e4m3_round(row[i] / kv->k_scale);
}

/* One token: its row is read once and is short. */
static void cpu_latent_keys_task(void *arg, int task, int worker)
{
    const struct latent_job *job = arg;

    (void)worker;
    if (job->kv->type == K_E4M3)
        cpu_latent_round(job, task);
    else
        ref_latent_keys(job->out, job->in, job->l, job->kv, &job->tokens, task, task + 1);
}

/* Rows of other formats are made of these by their readers. */
void cpu_latent_keys(struct device *d, void *q, const void *in, const struct k_latent *l,
                     const struct k_kv *kv, const struct k_matrix *to)
{
    struct latent_job job = cpu_latent_job(d, q, in, l);

    (void)to;
    job.kv = kv;
    job.tokens = k_tokens_of(&job.tokens, kv->group);
    pool_run(job.c->pool, cpu_latent_keys_task, &job, job.tokens.n_tokens);
}

/* Tiles of CPU_QUERIES tokens of one head. */
static void cpu_latent_queries_task(void *arg, int task, int worker)
{
    const struct latent_job *job = arg;
    const struct k_latent_shape *s = &job->l->shape;
    int head = task % s->n_heads, first = task / s->n_heads * LATENT_TOKENS;
    int end = cpu_latent_end(job, first, LATENT_TOKENS), n;
    size_t q_stride = (size_t)k_latent_stride(s);

    (void)worker;
    for (int t = first; t < end; t += n) {
        const float *q = job->in + (size_t)t * q_stride + (size_t)head * k_latent_query(s);
        float *out[CPU_QUERIES];

        n = cpu_latent_end(job, t, CPU_QUERIES) - t;
        if (t + n > end)
            n = end - t;
        for (int j = 0; j < n; j++) {
            const float *turns = job->l->turns + (size_t)job->tokens.pos[t + j] * s->rope_dim;

            out[j] = job->out + ((size_t)(t + j) * s->n_heads + head) * k_latent_row(s);
            memset(out[j], 0, (size_t)s->kv_rank * sizeof *out[j]);
            ref_latent_rotate(out[j] + s->kv_rank, q + (size_t)j * q_stride + s->nope_dim, turns,
                              s->rope_dim, job->l->interleaved);
        }
        job->c->math->mix(out, n, q, q_stride, cpu_latent_up(job->l, head), s->nope_dim, s->kv_rank,
                          s->kv_rank);
    }
}

void cpu_latent_queries(struct device *d, void *out, const void *in, const struct k_latent *l)
{
    struct latent_job job = cpu_latent_job(d, out, in, l);

    cpu_latent_run(&job, cpu_latent_queries_task);
}

static void cpu_latent_values_task(void *arg, int task, int worker)
{
    const struct latent_job *job = arg;
    const struct k_latent_shape *s = &job->l->shape;
    int head = task % s->n_heads, first = task / s->n_heads * LATENT_TOKENS;
    int end = cpu_latent_end(job, first, LATENT_TOKENS), n;
    const float *up = cpu_latent_up(job->l, head) + (size_t)s->nope_dim * s->kv_rank;

    (void)worker;
    for (int t = first; t < end; t += n) {
        const float *rows[CPU_QUERIES];

        n = cpu_latent_end(job, t, CPU_QUERIES) - t;
        if (t + n > end)
            n = end - t;
        for (int j = 0; j < n; j++)
            rows[j] = job->in + ((size_t)(t + j) * s->n_heads + head) * s->kv_rank;
        job->c->math->scores(job->out + ((size_t)t * s->n_heads + head) * s->v_dim,
                             (size_t)s->n_heads * s->v_dim, rows, n, up, s->v_dim, s->kv_rank);
    }
}

void cpu_latent_values(struct device *d, void *out, const void *in, const struct k_latent *l,
                       const struct k_matrix *to)
{
    struct latent_job job = cpu_latent_job(d, out, in, l);

    (void)to;
    cpu_latent_run(&job, cpu_latent_values_task);
}
