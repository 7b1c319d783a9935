/* SPDX-License-Identifier: Apache-2.0
 *
 * Experts of the cuda device: routing, the two products, and the sum by tokens (kernels.h).
 *
 * All of it is enqueued without looking at the choices, which stay on the device; so a step of few
 * tokens can be recorded. Padding tokens of such a step choose nothing. */
#include "config.h"

#include "device/parts_cuda.h"

/* Scratch memory is zero at first and after a sleep, as the counter of k_route() must be. */
int experts_reserve(struct cuda *c)
{
    const struct device_limits *lim = &c->base.limits;
    /* A step of few tokens may count the shared expert among the others. */
    int few = lim->n_tokens < K_MIXING_FEW ? lim->n_tokens : K_MIXING_FEW;
    int more = lim->n_experts_used > 0 ? few / lim->n_experts_used + 1 : 0;
    const struct k_mixing_sizes sizes = {.n_tokens = lim->n_tokens < few + more ? few + more
                                                                                : lim->n_tokens,
                                         .n_used = lim->n_experts_used,
                                         .n_choices = lim->n_choices,
                                         .n_experts = lim->n_experts + 1,
                                         .ff_dim = lim->expert_dim,
                                         .dim = lim->dim};
    void *memory;

    if (lim->n_experts == 0)
        return ERR_OK;
    memory = sleep_alloc_scratch(&c->base, k_mixing_place(&c->mixing, NULL, &sizes));
    if (memory == NULL)
        return ERR_NO_MEMORY;
    (void)k_mixing_place(&c->mixing, memory, &sizes); /* the size is known */
    return ERR_OK;
}

void experts_mix(struct device *d, void *out, const struct device_experts *e, int n)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_combining combining = {.x = e->x,
                                          .switches = e->shared_switch,
                                          .adds = e->adds,
                                          .n_used = e->router->n_used,
                                          .dim = e->experts->in.n_in};
    const struct k_mixing_end end = {out, &combining, e->residual};

    const struct k_mixing_input in = {
        .router_x = e->router_x != NULL ? e->router_x : e->x,
        .x = e->x,
        .norm = e->norm.sums != NULL ? &e->norm : NULL,
        .router = e->router,
        .experts = e->experts,
        .tokens = &gpu->tokens,
        .n = n,
        .router_dim = d->limits.dim,
    };

    cuda_keep(gpu, k_mix_experts(&gpu->mixing, &in, &end, gpu->n_sms, gpu->stream), "experts");
}

/* Rows of one expert at a time are copied aside, and arranged from there. */
int experts_arrange(struct device *d, const struct k_matrix *m, const struct k_mxfp4_rows *rows)
{
    struct cuda *gpu = cuda_of(d);
    size_t codes = (size_t)rows->n_rows * (size_t)m->n_in / 2;
    size_t bytes = codes + codes * 2 / K_MXFP4_GROUP;
    int before = cuda_enter(gpu), rc;
    char *at = m->data;
    void *aside = NULL;

    rc = cuda_check(cudaMalloc(&aside, bytes), "memory to arrange experts");
    for (int i = 0; i < rows->n_experts && rc == ERR_OK; i++) {
        rc = cuda_check(cudaMemcpyAsync(aside, at, bytes, cudaMemcpyDeviceToDevice, gpu->stream),
                        "arranging experts");
        if (rc == ERR_OK &&
            k_mxfp4_arrange(at, aside, (char *)aside + codes, rows, m->n_in, gpu->stream) != 0)
            rc = cuda_check(cudaGetLastError(), "arranging experts");
        at += k_mxfp4_bytes(rows->n_rows, m->n_in);
    }
    if (rc == ERR_OK)
        rc = cuda_check(cudaStreamSynchronize(gpu->stream), "arranging experts");
    (void)cudaFree(aside);
    cuda_leave(before);
    return rc;
}
