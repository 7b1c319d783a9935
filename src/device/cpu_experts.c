/* SPDX-License-Identifier: Apache-2.0
 *
 * Experts of the cpu device.
 *
 *   x -> logits -> routes, sorted by expert -> rows of x in that order
 *     -> gate, up [route][2 * ff_dim] -> ff [route][ff_dim] -> y [route][dim] -> sums by token
 *
 * A task of a product is one expert's rows and some of its outputs, so experts without tokens are
 * not read; inputs of products with blocks are rounded as those of plain matrices are
 * (cpu_round.h). Each number depends on its own inputs only (cpu_math.h), and a token's results are
 * added in the order of its slots; so a token has the same bits whatever the others are. */
#include "config.h"

#include "device/parts_cpu.h"

#include <string.h>

#include "base/must.h"

/* One product of all experts: rows of a sorted route are those of its expert's matrix. */
struct expert_job {
    struct cpu *cpu;
    const int32_t *starts;    /* of k_sorted */
    const int32_t *touched;   /* experts with routes */
    const struct k_matrix *w; /* of all experts */
    const float *bias;        /* likewise [experts][n_out], or NULL */
    int n_out;                /* of one expert */
    int n_out_tasks;
    bool rounds; /* x is read as rounded rows */
    float *y;
    const float *x;
};

/* Experts in k_format_mxfp4() are apart by more than their rows (mxfp4.h). */
static struct cpu_matmul cpu_expert_product(const struct expert_job *job, int expert)
{
    struct cpu_matmul m = cpu_product_of(job->w, expert * job->n_out, job->n_out);

    if (k_format_is_mxfp4(&job->w->format))
        m.w = (const char *)job->w->data + (size_t)expert * k_mxfp4_bytes(job->n_out, job->w->n_in);
    return m;
}

/* Neighbouring tasks have the same expert and the next outputs. */
static void cpu_expert_task(void *arg, int task, int worker)
{
    const struct expert_job *job = arg;
    int expert = job->touched[task / job->n_out_tasks];
    int first = job->starts[expert], out = task % job->n_out_tasks * CPU_OUTS;
    size_t n_in = (size_t)job->w->n_in, n_out = (size_t)job->n_out;
    struct cpu_matmul product = cpu_expert_product(job, expert);

    product.y = job->y + (size_t)first * n_out;
    product.x = job->x + (size_t)first * n_in;
    product.row_last = job->starts[expert + 1] - first;
    product.out_first = out;
    product.out_last = out + CPU_OUTS < job->n_out ? out + CPU_OUTS : job->n_out;
    if (job->rounds) {
        const uint8_t *rows = job->cpu->experts.rounded;
        const struct cpu_rounded rounded = {product, rows + (size_t)first *
                                                                cpu_round_row_bytes(job->w->n_in)};

        job->cpu->round->matmul(&rounded);
    } else {
        cpu_multiply_part(job->cpu, &product, worker);
    }
    for (int row = 0; row < product.row_last && job->bias != NULL; row++) {
        for (int i = out; i < product.out_last; i++)
            product.y[(size_t)row * n_out + (size_t)i] +=
                job->bias[(size_t)expert * n_out + (size_t)i];
    }
}

/* Round the inputs of a route. */
static void cpu_round_task(void *arg, int route, int worker)
{
    const struct expert_job *job = arg;
    int n_in = job->w->n_in;

    (void)worker;
    job->cpu->round->rows(job->cpu->experts.rounded + (size_t)route * cpu_round_row_bytes(n_in),
                          job->x + (size_t)route * (size_t)n_in, 1, n_in);
}

/* y = x * transpose(w) + bias of each touched expert. */
static void cpu_run_experts(struct cpu *c, float *y, const float *x, const struct k_matrix *w,
                            const void *bias, const struct k_experts *e, int n_touched)
{
    struct expert_job job = {.cpu = c,
                             .starts = c->experts.sorted.starts,
                             .touched = c->experts.touched,
                             .w = w,
                             .bias = bias,
                             .n_out = w->n_out / e->n,
                             .rounds = c->round != NULL && cpu_round_reads(cpu_type_of(w)),
                             .y = y,
                             .x = x};

    if (job.rounds)
        pool_run(c->pool, cpu_round_task, &job, job.starts[e->n]);
    job.n_out_tasks = (job.n_out + CPU_OUTS - 1) / CPU_OUTS;
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

/* Work on one route or one token. */
struct mixing_job {
    struct cpu_experts *own;
    const struct device_experts *e;
    const struct k_combining *combining;
    float *out;
};

/* Copy a row of x to its place in the order of routes. Where it takes the weight of its route, that
 * is 1 from here on. */
static void cpu_gather_task(void *arg, int place, int worker)
{
    const struct mixing_job *job = arg;
    size_t dim = (size_t)job->combining->dim;
    int route = job->own->sorted.routes[place], token = route / job->combining->n_used;
    float *x = job->own->x + (size_t)place * dim, *weight = &job->own->routes.weights[route];

    (void)worker;
    memcpy(x, (const float *)job->e->x + (size_t)token * dim, dim * sizeof(float));
    if (!job->e->experts->weighs_inputs)
        return;
    for (size_t i = 0; i < dim; i++)
        x[i] *= *weight;
    *weight = 1.0f;
}

/* ff = activation(gate) * up of a route. */
static void cpu_gate_task(void *arg, int place, int worker)
{
    const struct mixing_job *job = arg;
    const struct k_experts *e = job->e->experts;
    size_t width = (size_t)e->ff_dim;
    float *ff = job->own->ff + (size_t)place * width;
    const float *in = job->own->ffn_in + (size_t)place * width * (e->is_plain ? 1 : 2);

    (void)worker;
    if (e->limit > 0.0f) {
        ref_gate_limited(ff, in, e->limit, 1, e->ff_dim);
        return;
    }
    if (!e->is_plain) {
        ref_gate(ff, in, e->activation, 1, e->ff_dim);
        return;
    }
    ref_activate(ff, in, e->activation, width);
    for (size_t i = 0; i < width; i++)
        ff[i] *= in[i];
}

/* The sum of a token's routes. */
static void cpu_combine_task(void *arg, int token, int worker)
{
    const struct mixing_job *job = arg;
    struct k_combining one = *job->combining;
    size_t first = (size_t)token * (size_t)one.n_used, at = (size_t)token * (size_t)one.dim;

    (void)worker;
    one.weights += first;
    one.places += first;
    one.x = (const float *)one.x + at;
    ref_combine(job->out + at, job->own->y, &one, 1);
}

/* List the experts that have routes. */
static int cpu_touch(struct cpu_experts *own, int n)
{
    int n_touched = 0;

    for (int i = 0; i < n; i++) {
        if (own->sorted.starts[i + 1] > own->sorted.starts[i])
            own->touched[n_touched++] = i;
    }
    return n_touched;
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
    struct mixing_job job = {own, e, &combining, out};
    int n_touched, n_routes;

    must(e->residual == NULL && e->norm.sums == NULL); /* cpu_few() is false */
    cpu_route(d, e, n);
    ref_sort_routes(&own->sorted, own->routes.ids, experts, n * e->router->n_used);
    n_routes = own->sorted.starts[experts->n];
    n_touched = cpu_touch(own, experts->n);
    pool_run(cpu->pool, cpu_gather_task, &job, n_routes);
    cpu_run_experts(cpu, own->ffn_in, own->x, &experts->in, experts->in_bias, experts, n_touched);
    pool_run(cpu->pool, cpu_gate_task, &job, n_routes);
    cpu_run_experts(cpu, own->y, own->ff, &experts->down, experts->down_bias, experts, n_touched);
    pool_run(cpu->pool, cpu_combine_task, &job, n);
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
    if (lim->rounds) {
        int widest = lim->dim > lim->expert_dim ? lim->dim : lim->expert_dim;

        widest = (widest + CPU_ROUND_BLOCK - 1) / CPU_ROUND_BLOCK * CPU_ROUND_BLOCK;
        own->rounded = op->alloc(d, routes * cpu_round_row_bytes(widest));
        if (own->rounded == NULL)
            return ERR_NO_MEMORY;
    }
    if (own->logits == NULL || own->routes.ids == NULL || own->routes.weights == NULL ||
        own->sorted.starts == NULL || own->sorted.routes == NULL || own->sorted.places == NULL ||
        own->touched == NULL || own->x == NULL || own->ffn_in == NULL || own->ff == NULL ||
        own->y == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}
