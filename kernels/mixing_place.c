/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of the work memory of experts: on the host, because devices count it without a GPU. */
#include "kernels/mixing.h"

#define ALIGN 256

/* The next array of n elements, at *at. */
static void *place(char *base, size_t *at, size_t n, size_t bytes)
{
    void *memory = base == NULL ? NULL : base + *at;

    *at = (*at + n * bytes + ALIGN - 1) / ALIGN * ALIGN;
    return memory;
}

size_t k_mixing_place(struct k_mixing *m, void *base, const struct k_mixing_sizes *s)
{
    size_t tokens = (size_t)s->n_tokens, routes = tokens * (size_t)s->n_used, at = 0;
    size_t experts = (size_t)s->n_experts;
    size_t n_chunks = (routes + K_MIXING_CHUNK - 1) / K_MIXING_CHUNK;
    size_t n_tiles = routes / K_MIXING_TILE + experts; /* each expert has a last one, not full */

    m->routes.ids = place(base, &at, routes, sizeof(int32_t));
    m->routes.weights = place(base, &at, routes, sizeof(float));
    m->sorted.starts = place(base, &at, experts + 1, sizeof(int32_t));
    m->sorted.routes = place(base, &at, routes, sizeof(int32_t));
    m->sorted.places = place(base, &at, routes, sizeof(int32_t));
    m->logits = place(base, &at, tokens * ((size_t)s->n_choices + 1), sizeof(float));
    m->touched = place(base, &at, experts + 1, sizeof(int32_t));
    m->chunks = place(base, &at, n_chunks * experts, sizeof(int32_t));
    m->tiles = place(base, &at, 1 + 2 * n_tiles, sizeof(int32_t));
    m->inverse = place(base, &at, K_MIXING_FEW, sizeof(float));
    m->done = place(base, &at, 1 + K_MIXING_FEW / K_MIXING_WARPS, sizeof(uint32_t));
    m->taken = place(base, &at, 2, sizeof(uint32_t));
    m->ff = place(base, &at, routes * (size_t)s->ff_dim, sizeof(k_bf16));
    m->y = place(base, &at, routes * (size_t)s->dim, sizeof(k_bf16));
    return at;
}
