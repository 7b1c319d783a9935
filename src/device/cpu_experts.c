/* SPDX-License-Identifier: Apache-2.0
 *
 * Experts of the cpu device.
 *
 *   x -> logits -> routes, sorted by expert -> rows of x in that order
 *     -> gate, up [route][2 * ff_dim] -> ff [route][ff_dim] -> y [route][dim] -> sums by token
 *
 * A task of a product is one expert's rows and some of its outputs, so experts without tokens are
 * not read. Each number depends on its own inputs only (cpu_math.h), and a token's results are
 * added in the order of its slots; so a token has the same bits whatever the others are. */
#include "config.h"

#include "device/parts_cpu.h"

#include <string.h>

#include "base/must.h"

#define OUTS_A_TASK 32 /* as in device_cpu.c */

/* One product of all experts: rows of a sorted route are those of its expert's matrix. */
struct expert_job {
    const struct cpu_math *math;
    const int32_t *starts;    /* of k_sorted */
    const int32_t *touched;   /* experts with routes */
    const struct k_matrix *w; /* of all experts */
    const float *bias;        /* likewise [experts][n_out], or NULL */
    int n_out;                /* of one expert */
    int n_out_tasks;
    float *y;
    const float *x;
};

/* Neighbouring tasks have the same expert and the next outputs. */
static void cpu_expert_task(void *arg, int task, int worker)
{
    const struct expert_job *job = arg;
    int expert = job->touched[task / job->n_out_tasks];
    int first = job->starts[expert], out = task % job->n_out_tasks * OUTS_A_TASK;
    size_t n_in = (size_t)job->w->n_in, n_out = (size_t)job->n_out;
    size_t row_bytes = cpu_row_bytes(job->w);
    const struct cpu_matmul product = {
        .y = job->y + (size_t)first * n_out,
        .x = job->x + (size_t)first * n_in,
        .w = (const char *)job->w->data + (size_t)expert * n_out * row_bytes,
        .type = cpu_type_of(job->w),
        .w_bytes = row_bytes,
        .n_in = job->w->n_in,
        .n_out = job->n_out,
        .row_last = job->starts[expert + 1] - first,
        .out_first = out,
        .out_last = out + OUTS_A_TASK < job->n_out ? out + OUTS_A_TASK : job->n_out,
    };

    (void)worker;
    job->math->matmul(&product);
    for (int row = 0; row < product.row_last && job->bias != NULL; row++) {
        for (int i = out; i < product.out_last; i++)
            product.y[(size_t)row * n_out + (size_t)i] +=
                job->bias[(size_t)expert * n_out + (size_t)i];
    }
}

/* y = x * transpose(w) + bias of each touched expert. */
static void cpu_run_experts(struct cpu *c, float *y, const float *x, const struct k_matrix *w,
                            const void *bias, const struct k_experts *e, int n_touched)
{
    struct expert_job job = {.math = c->math,
                             .starts = c->experts.sorted.starts,
                             .touched = c->experts.touched,
                             .w = w,
                             .bias = bias,
                             .n_out = w->n_out / e->n,
                             .y = y,
                             .x = x};

    job.n_out_tasks = (job.n_out + OUTS_A_TASK - 1) / OUTS_A_TASK;
    pool_run(c->pool, cpu_expert_task, &job, n_touched * job.n_out_tasks);
}

/* The choices of all tokens. */
static void cpu_route(struct device *d, const struct device_experts *e, int n)
{
    struct cpu *cpu = cpu_of(d);
    const struct k_matrix w = {.data = (void *)(uintptr_t)e->router->w, /* only read */
                               .n_out = e->router->n_experts,
                               .n_in = d->limits.dim};
    const void *x = e->router_x != NULL ? e->router_x : e->x;
    const struct device_rows rows = {.data = (void *)(uintptr_t)x}; /* only read */

    d->ops->matmul(d, cpu->experts.logits, &rows, &w, e->router->logit_bias, n);
    ref_choose(&cpu->experts.routes, cpu->experts.logits, e->router, n);
}

/* List the experts that have routes, and copy rows of x in the order of routes. */
static int cpu_gather(struct cpu *c, const struct device_experts *e)
{
    const struct k_sorted *sorted = &c->experts.sorted;
    size_t dim = (size_t)e->experts->in.n_in;
    int n_touched = 0;

    for (int i = 0; i < e->experts->n; i++) {
        if (sorted->starts[i + 1] > sorted->starts[i])
            c->experts.touched[n_touched++] = i;
    }
    for (int32_t at = 0; at < sorted->starts[e->experts->n]; at++)
        memcpy(c->experts.x + (size_t)at * dim,
               (const float *)e->x + (size_t)(sorted->routes[at] / e->router->n_used) * dim,
               dim * sizeof(float));
    return n_touched;
}

/* ff = activation(gate) * up of n routes. */
static void cpu_gate_experts(struct cpu_experts *own, const struct k_experts *e, int n)
{
    size_t all = (size_t)n * (size_t)e->ff_dim;

    if (!e->is_plain) {
        ref_gate(own->ff, own->ffn_in, e->activation, n, e->ff_dim);
        return;
    }
    ref_activate(own->ff, own->ffn_in, e->activation, all);
    for (size_t i = 0; i < all; i++)
        own->ff[i] *= own->ffn_in[i];
}

void cpu_mix_experts(struct device *d, void *out, const struct device_experts *e, int n)
{
    struct cpu *cpu = cpu_of(d);
    struct cpu_experts *own = &cpu->experts;
    const struct k_experts *experts = e->experts;
    const struct k_combining combining = {.weights = own->routes.weights,
                                          .places = own->sorted.places,
                                          .x = e->x,
                                          .switches = e->shared_switch,
                                          .adds = e->adds,
                                          .n_used = e->router->n_used,
                                          .dim = e->experts->in.n_in};
    int n_touched;

    must(e->residual == NULL && e->norm.sums == NULL); /* cpu_few() is false */
    cpu_route(d, e, n);
    ref_sort_routes(&own->sorted, own->routes.ids, experts, n * e->router->n_used);
    n_touched = cpu_gather(cpu, e);
    cpu_run_experts(cpu, own->ffn_in, own->x, &experts->in, experts->in_bias, experts, n_touched);
    cpu_gate_experts(own, experts, own->sorted.starts[experts->n]);
    cpu_run_experts(cpu, own->y, own->ff, &experts->down, experts->down_bias, experts, n_touched);
    ref_combine(out, own->y, &combining, n);
}

/* All tokens may have all of their routes here. */
int cpu_reserve_experts(struct device *d)
{
    const struct device_limits *lim = &d->limits;
    struct cpu_experts *own = &cpu_of(d)->experts;
    size_t routes = (size_t)lim->n_tokens * (size_t)lim->n_experts_used;
    size_t dim = (size_t)lim->dim, ff_dim = (size_t)lim->expert_dim;
    const struct device_ops *op = d->ops;

    own->logits = op->alloc(d, (size_t)lim->n_tokens * (size_t)lim->n_choices * sizeof(float));
    own->routes.ids = op->alloc(d, routes * sizeof(int32_t));
    own->routes.weights = op->alloc(d, routes * sizeof(float));
    own->sorted.starts = op->alloc(d, ((size_t)lim->n_experts + 1) * sizeof(int32_t));
    own->sorted.routes = op->alloc(d, routes * sizeof(int32_t));
    own->sorted.places = op->alloc(d, routes * sizeof(int32_t));
    own->touched = op->alloc(d, (size_t)lim->n_experts * sizeof(int32_t));
    own->x = op->alloc(d, routes * dim * sizeof(float));
    own->ffn_in = op->alloc(d, routes * 2 * ff_dim * sizeof(float));
    own->ff = op->alloc(d, routes * ff_dim * sizeof(float));
    own->y = op->alloc(d, routes * dim * sizeof(float));
    if (own->logits == NULL || own->routes.ids == NULL || own->routes.weights == NULL ||
        own->sorted.starts == NULL || own->sorted.routes == NULL || own->sorted.places == NULL ||
        own->touched == NULL || own->x == NULL || own->ffn_in == NULL || own->ff == NULL ||
        own->y == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}
