/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-rank adapters on the cuda device (kernels/adapter.h).
 *
 *   x -> t = a x -> the product -> y += scale * b t, and the rest of a fused product
 *
 * The rows' order is made when a step begins, with its other arrays, so that steps that differ only
 * in their adapters are one recorded step. Steps without adapters do not come here. */
#include "config.h"

#include "device/parts_cuda.h"

#include "base/mem.h"
#include "base/must.h"

/* Rows of the largest product. */
static size_t adapt_rows_max(const struct device_limits *lim)
{
    return (size_t)(lim->n_tokens > lim->n_seqs ? lim->n_tokens : lim->n_seqs);
}

/* t has all parts of a matrix; plain the widest product of a fused step. */
int adapt_reserve(struct cuda *c)
{
    const struct device_limits *lim = &c->base.limits;
    struct adapt_state *adapt = &c->adapt;
    size_t rows = adapt_rows_max(lim);
    size_t width = (size_t)(2 * lim->ff_dim > lim->dim ? 2 * lim->ff_dim : lim->dim);

    if (lim->n_adapters == 0)
        return ERR_OK;
    adapt->t = cuda_alloc(&c->base, k_adapt_t_len((int)rows, lim->adapter_in, lim->adapter_rank) *
                                        sizeof *adapt->t);
    adapt->meet = cuda_alloc(&c->base, 2 * sizeof *adapt->meet); /* zeros */
    adapt->plain = cuda_alloc(&c->base, K_PRODUCT_ROWS_MAX * width * sizeof *adapt->plain);
    adapt->plain_width = (int)width;
    adapt->slots = mem_zalloc_array(rows, sizeof *adapt->slots);
    adapt->work = mem_zalloc_array((size_t)lim->n_adapters + 2, sizeof *adapt->work);
    if (adapt->t == NULL || adapt->meet == NULL || adapt->plain == NULL || adapt->slots == NULL ||
        adapt->work == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

void adapt_close(struct cuda *c)
{
    mem_free(c->adapt.slots);
    mem_free(c->adapt.work);
}

/* adapt.slots has those of a recorded step's tokens; another step has its tokens' in the batch, and
 * its sampled rows are sorted apart. */
void adapt_fill(struct cuda *c, const struct step_arrays *a, const struct device_batch *b,
                int n_recorded)
{
    const struct adapt_state *adapt = &c->adapt;
    int n_slots = c->base.limits.n_adapters;

    must(n_slots > 0);
    if (n_recorded > 0) {
        k_adapt_sort(&a->adapted[0], adapt->slots, n_recorded, n_slots, adapt->work);
        return;
    }
    k_adapt_sort(&a->adapted[0], b->adapters, b->tokens.n_tokens, n_slots, adapt->work);
    for (int row = 0; row < b->n_rows; row++)
        adapt->slots[row] = b->adapters[b->row_tokens[row]];
    k_adapt_sort(&a->adapted[1], adapt->slots, b->n_rows, n_slots, adapt->work);
}

/* The parts of the work that do not depend on the kind of a product. */
static struct k_adapting adapt_begin(struct cuda *c, const struct k_matrix *w, int n)
{
    bool of_rows = w->adapters->of_rows && c->bucket < 0;

    must(w->n_in <= c->base.limits.adapter_in);
    return (struct k_adapting){.of = *w->adapters,
                               .next = w->adapters->next == NULL ? (struct k_adapters){.n_parts = 0}
                                                                 : *w->adapters->next,
                               .rows = c->arrays.adapted[of_rows ? 1 : 0],
                               .t = c->adapt.t,
                               .meet = c->adapt.meet,
                               .n = n,
                               .n_in = w->n_in,
                               .n_out = w->n_out,
                               .rank_max = c->base.limits.adapter_rank,
                               .n_sms = c->n_sms};
}

void adapt_before(struct cuda *c, struct k_adapting *a, const struct gemm_product *p, const void *x)
{
    *a = adapt_begin(c, p->w, p->n);
    a->p = (struct k_product){
        .kind = p->y_is_float ? K_PRODUCT_FLOAT : K_PRODUCT_PLAIN, .x = x, .y = p->y};
    cuda_keep(c, k_adapt_in(a, c->stream), "adapters");
}

void adapt_after(struct cuda *c, const struct k_adapting *a)
{
    cuda_keep(c, k_adapt_out(a, c->stream), "adapters");
}

/* Few rows of plain matrices: one launch. Else the product writes plain rows, and the end of the
 * fused one is done with the adapters' sum. */
void adapt_product(struct cuda *c, const struct k_product *p, int n)
{
    struct k_adapting a = adapt_begin(c, p->w, n);
    struct k_product plain = *p;

    a.p = *p;
    if (k_adapt_joins(&a)) {
        cuda_keep(c, k_adapt_join(&a, c->stream), "adapters");
        return;
    }
    a.x_is_half = k_format_reads_half(&p->w->format);
    if (p->kind == K_PRODUCT_GATED || p->kind == K_PRODUCT_RESIDUAL) {
        must(p->w->n_out <= c->adapt.plain_width);
        a.plain = c->adapt.plain;
        plain.kind = K_PRODUCT_PLAIN;
        plain.y_is_half = false;
        plain.y = c->adapt.plain;
    }
    cuda_keep(c, k_adapt_in(&a, c->stream), "adapters");
    cuda_keep(c, k_multiply(&plain, n, c->n_sms, c->stream), "product");
    adapt_after(c, &a);
}
