/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of the cpu device that treat each row by itself: embeddings, norms, rotations,
 * activations and sums.
 *
 * A task takes a run of rows and calls the reference for them, so a row has the same bits whichever
 * thread computes it. */
#include "config.h"

#include "device/parts_cpu.h"

#include <string.h>

enum row_op {
    ROW_EMBED,
    ROW_RMSNORM,
    ROW_ADD_RMSNORM,
    ROW_ROPE,
    ROW_SILU,
    ROW_ACTIVATE,
    ROW_GATE,
    ROW_NORM,
    ROW_NORM_WITHIN,
    ROW_ADD,
    ROW_PLACE,
    ROW_GATE_BY,
    ROW_LAYER_EMBEDS,
};

struct row_job {
    struct cpu *c;
    enum row_op op;
    float *out, *x;
    const float *a, *b; /* delta or input; weight, table or factor */
    const struct k_kv *kv;
    const struct k_rotary *rotary;
    struct k_tokens tokens;       /* ROW_ROPE: with the layer's table */
    const struct k_norm *norm;    /* ROW_NORM, ROW_NORM_WITHIN */
    const struct k_matrix *table; /* ROW_EMBED */
    float eps, scale;
    int n, rows_a_task;
    int n_heads;                  /* ROW_ROPE */
    enum k_activation activation; /* ROW_ACTIVATE, ROW_GATE, ROW_GATE_BY */
    int width;                    /* of a row of the result, or of the norm */
    int stride;                   /* ROW_NORM_WITHIN; of b, ROW_GATE_BY */
    const struct k_layer_embeds *embeds;
    int pos_first; /* ROW_PLACE */
};

/* A run of rows for ROW_EMBED. */
static void cpu_embed_rows(const struct row_job *j, int first, int n)
{
    const struct k_matrix *table = j->table;
    const int32_t *ids = j->c->token_ids + first;
    float *x = j->x + (size_t)first * (size_t)table->n_in;

    if (k_format_is_plain(&table->format)) {
        ref_embed(x, table->data, ids, n, table->n_in);
        return;
    }
    for (int i = 0; i < n; i++)
        ref_dequantise(x + (size_t)i * (size_t)table->n_in, table, ids[i], 1);
}

/* A run of rows for ROW_SILU. */
static void cpu_silu_rows(const struct row_job *j, int first, int n)
{
    size_t width = (size_t)j->width;

    for (int row = first; row < first + n; row++) {
        const float *in = j->a + (size_t)row * 2 * width;

        j->c->math->silu_mul(j->out + (size_t)row * width, in, in + width, j->width);
    }
}

/* `at` and `wide` are the offsets of the task's first row in rows of dim and of width elements. */
static void cpu_row_task(void *arg, int task, int worker)
{
    const struct row_job *job = arg;
    const struct device_limits *lim = &job->c->base.limits;
    int first = task * job->rows_a_task;
    int n = job->rows_a_task;
    size_t at = (size_t)first * lim->dim, wide = (size_t)first * (size_t)job->width;

    if (job->n - first < job->rows_a_task)
        n = job->n - first;
    (void)worker;
    /* Each reference takes the first row and the number of rows. */
    switch (job->op) {
    case ROW_EMBED: cpu_embed_rows(job, first, n); break;
    case ROW_RMSNORM: ref_rmsnorm(job->out + at, job->x + at, job->b, job->eps, n, lim->dim); break;
    case ROW_ADD_RMSNORM:
        ref_add_rmsnorm(job->out + at, job->x + at, job->a + at, job->b, job->eps, n, lim->dim);
        break;
    case ROW_ROPE:
        ref_rope_kv(job->out, job->kv, &job->tokens, job->rotary, job->n_heads, first, first + n);
        break;
    case ROW_NORM: ref_norm(job->out + at, job->x + at, job->norm, n, lim->dim); break;
    case ROW_ADD:
        ref_add(job->x + at, job->a + at, job->scale, (size_t)n * (size_t)lim->dim);
        break;
    case ROW_GATE_BY:
        ref_gate_by(job->out + wide, job->a + wide,
                    &(struct k_factor){job->b + (size_t)first * (size_t)job->stride, job->stride,
                                       job->width},
                    job->activation, n);
        break;
    case ROW_LAYER_EMBEDS:
        ref_embed_layers(job->x + wide, job->embeds, job->c->token_ids + first, n);
        break;
    case ROW_PLACE:
        ref_place(job->x + at, job->scale, job->a, job->c->batch->tokens.pos + first,
                  job->pos_first, n, lim->dim);
        break;
    case ROW_SILU: cpu_silu_rows(job, first, n); break;
    case ROW_ACTIVATE:
        ref_activate(job->out + wide, job->a + wide, job->activation,
                     (size_t)n * (size_t)job->width);
        break;
    case ROW_GATE:
        ref_gate(job->out + wide, job->a + 2 * wide, job->activation, n, job->width);
        break;
    case ROW_NORM_WITHIN:
        ref_norm_within(job->x + (size_t)first * (size_t)job->stride, job->stride, job->norm, n,
                        job->width);
        break;
    }
}

/* Small jobs are one task; larger ones four per thread, so that a slow thread delays little. */
static void cpu_run_rows(struct row_job *j, int width)
{
    int n_tasks = (size_t)j->n * width < CPU_INLINE_WORK / 4 ? 1 : 4 * pool_width(j->c->pool);

    j->rows_a_task = (j->n + n_tasks - 1) / n_tasks;
    if (j->rows_a_task > 0)
        pool_run(j->c->pool, cpu_row_task, j, (j->n + j->rows_a_task - 1) / j->rows_a_task);
}

/* One job for all tokens of the step. */
void cpu_embed(struct device *d, float *x, const struct k_matrix *table)
{
    struct row_job job = {.c = cpu_of(d),
                          .op = ROW_EMBED,
                          .x = x,
                          .table = table,
                          .n = cpu_of(d)->batch->tokens.n_tokens};

    cpu_run_rows(&job, d->limits.dim);
}

/* All elements of this device are float32. Little work: the calling thread does it. */
void cpu_pick(struct device *d, const struct device_pick *p)
{
    float *to = p->to;
    const float *from = p->from;

    (void)d;
    for (int i = 0; i < p->n; i++) {
        int row = p->rows == NULL ? i : p->rows[i];

        memcpy(to + (size_t)i * (size_t)p->to_stride, from + (size_t)row * (size_t)p->from_stride,
               (size_t)p->width * sizeof *to);
    }
}

/* The norm of the residual. */
void cpu_rmsnorm(struct device *d, struct device_rows *out, const float *x, const void *weight,
                 float eps, int n, const struct k_matrix *to)
{
    struct row_job job = {
        .c = cpu_of(d), .op = ROW_RMSNORM, .out = out->data, .b = weight, .eps = eps, .n = n};

    (void)to;
    memcpy(&job.x, &x, sizeof x); /* removes const; ROW_RMSNORM only reads x */
    cpu_run_rows(&job, d->limits.dim);
}

/* x is updated, and its norm written to out. */
void cpu_add_rmsnorm(struct device *d, struct device_rows *out, float *x, const void *delta,
                     const void *weight, float eps, int n, const struct k_matrix *to)
{
    struct row_job job = {.c = cpu_of(d),
                          .op = ROW_ADD_RMSNORM,
                          .out = out->data,
                          .x = x,
                          .a = delta,
                          .b = weight,
                          .eps = eps,
                          .n = n};

    (void)to;
    cpu_run_rows(&job, d->limits.dim);
}

/* Also writes keys and values to their pages. */
void cpu_rope_kv(struct device *d, void *qkv, const struct k_kv *kv, const struct k_rotary *r,
                 int n_heads)
{
    struct row_job job = {.c = cpu_of(d),
                          .op = ROW_ROPE,
                          .out = qkv,
                          .kv = kv,
                          .rotary = r,
                          .tokens = k_tokens_of(&cpu_of(d)->batch->tokens, kv->group),
                          .n_heads = n_heads,
                          .n = cpu_of(d)->batch->tokens.n_tokens};

    cpu_run_rows(&job, k_qkv_heads(kv, n_heads) * kv->head_dim);
}

/* Gate and up are halves of each input row. */
void cpu_silu_mul(struct device *d, struct device_rows *out, const void *in, int ff_dim, int n,
                  const struct k_matrix *to)
{
    struct row_job job = {
        .c = cpu_of(d), .op = ROW_SILU, .out = out->data, .a = in, .n = n, .width = ff_dim};

    (void)to;
    cpu_run_rows(&job, ff_dim);
}

/* In and out have the same width. */
void cpu_activate(struct device *d, void *out, const void *in, enum k_activation kind, int width,
                  int n, const struct k_matrix *to)
{
    struct row_job job = {.c = cpu_of(d),
                          .op = ROW_ACTIVATE,
                          .out = out,
                          .a = in,
                          .n = n,
                          .activation = kind,
                          .width = width};

    (void)to;
    cpu_run_rows(&job, width);
}

/* Any activation; SiLU has the faster cpu_silu_mul(). */
void cpu_gate(struct device *d, struct device_rows *out, const void *in, enum k_activation kind,
              int ff_dim, int n, const struct k_matrix *to)
{
    struct row_job job = {.c = cpu_of(d),
                          .op = ROW_GATE,
                          .out = out->data,
                          .a = in,
                          .n = n,
                          .activation = kind,
                          .width = ff_dim};

    (void)to;
    cpu_run_rows(&job, ff_dim);
}

/* General norms, with mean and bias if the kind has them. */
void cpu_norm(struct device *d, struct device_rows *out, const float *x, const struct k_norm *norm,
              int n, const struct k_matrix *to)
{
    struct row_job job = {.c = cpu_of(d), .op = ROW_NORM, .out = out->data, .norm = norm, .n = n};

    (void)to;
    memcpy(&job.x, &x, sizeof x); /* removes const; ROW_NORM only reads x */
    cpu_run_rows(&job, d->limits.dim);
}

/* Norms part of each row in place, such as the query heads. */
void cpu_norm_within(struct device *d, void *x, int stride, const struct k_norm *norm, int width,
                     int n)
{
    struct row_job job = {.c = cpu_of(d),
                          .op = ROW_NORM_WITHIN,
                          .x = x,
                          .norm = norm,
                          .n = n,
                          .width = width,
                          .stride = stride};

    cpu_run_rows(&job, width);
}

/* Scales embeddings and adds learned positions, if there are any. */
void cpu_place(struct device *d, float *x, float scale, const void *positions, int first)
{
    struct row_job job = {.c = cpu_of(d),
                          .op = ROW_PLACE,
                          .x = x,
                          .a = positions,
                          .scale = scale,
                          .n = cpu_of(d)->batch->tokens.n_tokens,
                          .pos_first = first};

    cpu_run_rows(&job, d->limits.dim);
}

/* x += scale * delta. */
void cpu_add(struct device *d, float *x, const void *delta, float scale, int n)
{
    struct row_job job = {
        .c = cpu_of(d), .op = ROW_ADD, .x = x, .a = delta, .scale = scale, .n = n};

    cpu_run_rows(&job, d->limits.dim);
}

/* All is float32, so this is the sum with the residual. */
/* By the caller alone: it is little work. */
void cpu_scale(struct device *d, void *x, int stride, int width, float by, int n)
{
    (void)d;
    ref_scale(x, stride, width, by, n);
}

void cpu_add_within(struct device *d, void *x, const void *delta, int n)
{
    cpu_add(d, x, delta, 1.0f, n);
}

/* One operation after another: each is divided between the threads. */
void cpu_add_normed(struct device *d, struct device_rows *out, float *x, void *delta,
                    const struct k_adding *how, int n, const struct k_matrix *to)
{
    int dim = d->limits.dim;

    if (how->after.kind != K_NORM_NONE)
        cpu_norm_within(d, delta, dim, &how->after, dim, n);
    cpu_add(d, x, delta, how->by, n);
    if (how->scale != 1.0f)
        cpu_place(d, x, how->scale, NULL, 0);
    if (out == NULL)
        return;
    if (how->norm.kind == K_NORM_RMS)
        cpu_rmsnorm(d, out, x, how->norm.weight, how->norm.eps, n, to);
    else
        cpu_norm(d, out, x, &how->norm, n, to);
}

/* Activation of a gate, times a part of the rows of another matrix. */
void cpu_gate_by(struct device *d, struct device_rows *out, const void *in,
                 const struct k_factor *by, enum k_activation kind, int n,
                 const struct k_matrix *to)
{
    struct row_job job = {.c = cpu_of(d),
                          .op = ROW_GATE_BY,
                          .out = out->data,
                          .a = in,
                          .b = by->rows,
                          .n = n,
                          .activation = kind,
                          .width = by->width,
                          .stride = by->stride};

    (void)to;
    cpu_run_rows(&job, by->width);
}

/* Of all layers, for all tokens of the step. */
void cpu_layer_embeds(struct device *d, void *x, const struct k_layer_embeds *e)
{
    struct row_job job = {.c = cpu_of(d),
                          .op = ROW_LAYER_EMBEDS,
                          .x = x,
                          .embeds = e,
                          .n = cpu_of(d)->batch->tokens.n_tokens,
                          .width = e->n_layers * e->width};

    cpu_run_rows(&job, job.width);
}

/* Logits of few rows: not worth a job. */
void cpu_soften(struct device *d, float *logits, const struct k_softening *how, int n)
{
    ref_soften(logits, how, n, d->limits.n_vocab);
}

/* No product of this device reads codes, because cpu_takes() was false. */
void cpu_quantise(struct device *d, struct device_rows *rows, int n, const struct k_matrix *to)
{
    (void)d, (void)rows, (void)n, (void)to;
}

/* Only the sampled rows continue to the head. */
void cpu_gather_add(struct device *d, float *out, const float *x, const void *delta, float scale)
{
    const struct device_batch *batch = cpu_of(d)->batch;

    ref_gather_add(out, x, delta, scale, batch->row_tokens, batch->n_rows, d->limits.dim);
}
