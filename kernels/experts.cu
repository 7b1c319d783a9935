/* SPDX-License-Identifier: Apache-2.0
 *
 * An FFN of experts after the routing: chooses the kernels of its two products, and adds the
 * experts' results up for each token.
 *
 * Rows of matrices that are not whole 16 bytes (shapes of tests) take a plain kernel, a warp for
 * each output. The sum of a token is in the order of its slots, float32, by the threads of one
 * block, which have eight elements each; so it is the same every time, without atomics. */
#include "config.h"

#include "kernels/experts_choose.cuh"
#include "kernels/mxfp4.h"

#define THREADS    256
#define WARPS      (THREADS / 32)
#define WIDE       8  /* elements of a thread */
#define SLOTS      4  /* rows that it requests at a time */
#define PLAIN_OUTS 64 /* outputs of a block of the plain kernel */

/* --- any shape -------------------------------------------------------------------------------- */

/* The expert of a place in the order of routes: starts[e] <= place < starts[e + 1]. */
static __device__ inline int experts_expert_of(const int32_t *starts, int n, int place)
{
    int low = 0, high = n;

    while (high - low > 1) {
        int middle = (low + high) / 2;

        if (starts[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A warp's product of two rows. */
static __device__ inline float experts_dot_rows(const k_bf16 *w, const k_bf16 *x, int n)
{
    float sum = 0.0f;

    for (int i = threadIdx.x % 32; i < n; i += 32)
        sum = __fmaf_rn(load_bf16(w + i), load_bf16(x + i), sum);
    for (int apart = 16; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(~0U, sum, apart);
    return sum;
}

/* Block x has a place, block y some outputs. */
static __global__ void __launch_bounds__(THREADS) plain_kernel(const struct experts_product p)
{
    int place = blockIdx.x, last = min(((int)blockIdx.y + 1) * PLAIN_OUTS, p.n_out), expert;
    const k_bf16 *x, *w;

    if (place >= p.starts[p.n_experts])
        return;
    expert = experts_expert_of(p.starts, p.n_experts, place);
    x = p.x + (size_t)experts_row(p, place) * p.n_in;
    w = (const k_bf16 *)p.w + (size_t)expert * p.rows * p.n_in;
    for (int out = blockIdx.y * PLAIN_OUTS + threadIdx.x / 32; out < last; out += WARPS) {
        float factor = experts_factor(p, place);
        float y = experts_dot_rows(w + (size_t)out * p.n_in, x, p.n_in) * factor +
                  experts_own_bias(p, expert, out);

        if (p.is_gated)
            y = gated(y,
                      experts_dot_rows(w + (size_t)(p.up + out) * p.n_in, x, p.n_in) * factor +
                          experts_own_bias(p, expert, p.up + out),
                      p.activation);
        if (threadIdx.x % 32 == 0)
            store_bf16(p.out + (size_t)place * p.n_out + out, y);
    }
}

/* --- formats ---------------------------------------------------------------------------------- */

/* How the matrix is stored; -1 if it is not to be multiplied. */
static int experts_format_of(const struct experts_product *p, const struct k_format *f)
{
    if (k_format_is_plain(f))
        return EXPERTS_PLAIN;
    if (k_format_is_mxfp4(f))
        return p->n_in % K_MXFP4_GROUP == 0 ? EXPERTS_MXFP4 : -1;
    if (p->scales == NULL || p->n_in % 16 != 0)
        return -1;
    if (k_format_is_in_blocks(f, K_E4M3, EXPERTS_BLOCK))
        return EXPERTS_IN_BLOCKS;
    return k_format_is_by_row(f, K_E4M3) ? EXPERTS_BY_ROW : -1;
}

static int experts_run_plain(const struct experts_product *p, k_stream stream)
{
    int n_routes = p->n_tokens * p->n_used;

    return K_LAUNCH(plain_kernel, dim3(n_routes, (p->n_out + PLAIN_OUTS - 1) / PLAIN_OUTS), THREADS,
                    0, stream, *p);
}

/* --- sums of tokens --------------------------------------------------------------------------- */

/* Up to eight elements of a row from `at` on; zeros past its end. */
static __device__ inline void experts_load_some(float v[WIDE], const k_bf16 *row, int at, int dim)
{
    if (dim % WIDE == 0) {
        load_eight(v, row + at);
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        v[i] = at + i < dim ? load_bf16(row + at + i) : 0.0f;
}

static __device__ inline void experts_store_some(k_bf16 *row, const float v[WIDE], int at, int dim)
{
    if (dim % WIDE == 0) {
        store_eight(row + at, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        if (at + i < dim)
            store_bf16(row + at + i, v[i]);
    }
}

/* The factor of what out has already; by the whole block. */
static __device__ inline float experts_own_factor(const experts_end &a, int token)
{
    __shared__ float sums[33];
    const k_bf16 *x = (const k_bf16 *)a.c.x + (size_t)token * a.c.dim;
    float sum = 0.0f;

    if (!a.c.adds || a.c.switches == NULL)
        return a.c.adds ? 1.0f : 0.0f;
    for (int i = threadIdx.x; i < a.c.dim; i += THREADS)
        sum = __fmaf_rn(load_bf16(x + i), a.c.switches[i], sum);
    return 1.0f / (1.0f + expf(-block_sum(sum, sums)));
}

/* What the residual's end reads, requested early. */
struct residual_end {
    float4 low, high; /* of the residual */
    uint4 norm;
};

static __device__ inline residual_end experts_begin_end(const experts_end &a, int token, int at)
{
    residual_end e = {};

    if (a.residual == NULL || at >= a.c.dim)
        return e;
    e.low = *(const float4 *)(a.residual + (size_t)token * a.c.dim + at);
    e.high = *(const float4 *)(a.residual + (size_t)token * a.c.dim + at + 4);
    e.norm = *(const uint4 *)(a.norm + at);
    return e;
}

/* The rest of K_PRODUCT_RESIDUAL for eight elements; two neighbouring lanes have the 16 of a sum of
 * squares. */
static __device__ inline void experts_end_residual(const experts_end &a, const residual_end &e,
                                                   const float v[WIDE], int token, int at)
{
    size_t elem = (size_t)token * a.c.dim + at;
    float square = 0.0f,
          x[WIDE] = {e.low.x, e.low.y, e.low.z, e.low.w, e.high.x, e.high.y, e.high.z, e.high.w};
    const uint32_t norm[4] = {e.norm.x, e.norm.y, e.norm.z, e.norm.w};

#pragma unroll
    for (int i = 0; i < WIDE; i += 2) {
        x[i] += v[i];
        x[i + 1] += v[i + 1];
        square = __fmaf_rn(x[i], x[i], square);
        square = __fmaf_rn(x[i + 1], x[i + 1], square);
        store_x_two(a.normed, elem + i, x[i] * low_half(norm[i / 2]),
                    x[i + 1] * high_half(norm[i / 2]), a.is_half);
    }
    *(float4 *)(a.residual + elem) = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(a.residual + elem + 4) = make_float4(x[4], x[5], x[6], x[7]);
    square += __shfl_xor_sync(3U << (threadIdx.x & 30), square, 1);
    if (at % 16 == 0)
        a.sums_out[(size_t)token * (a.c.dim / 16) + at / 16] = square;
}

/* sum += weight * row of SLOTS slots from `slot` on, in their order; all rows are requested before
 * the first is added. Slots past n_used have no row. */
static __device__ inline void experts_add_slots(const experts_end &a, float (&sum)[WIDE], int token,
                                                int slot, int at)
{
    size_t first = (size_t)token * a.c.n_used;
    float v[SLOTS][WIDE], weight[SLOTS];
    int place[SLOTS];

#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        bool has = slot + i < a.c.n_used;

        place[i] = has ? a.c.places[first + slot + i] : -1;
        weight[i] = has ? a.c.weights[first + slot + i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        if (place[i] >= 0)
            experts_load_some(v[i], a.y + (size_t)place[i] * a.c.dim, at, a.c.dim);
    }
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
#pragma unroll
        for (int k = 0; k < WIDE && place[i] >= 0; k++)
            sum[k] = __fmaf_rn(weight[i], v[i][k], sum[k]);
    }
}

/* Block x has a token, block y THREADS * WIDE of its elements. */
static __global__ void __launch_bounds__(THREADS) combine_kernel(experts_end a)
{
    int token = blockIdx.x, at = (blockIdx.y * THREADS + threadIdx.x) * WIDE, dim = a.c.dim;
    float own, sum[WIDE] = {}, v[WIDE];
    residual_end end;

    experts_wait_for_previous();
    end = experts_begin_end(a, token, at);
    own = experts_own_factor(a, token);
    if (at >= dim)
        return;
    if (a.c.adds) {
        experts_load_some(v, a.out + (size_t)token * dim, at, dim);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            sum[i] = own * v[i];
    }
    for (int slot = 0; slot < a.c.n_used; slot += SLOTS)
        experts_add_slots(a, sum, token, slot, at);
    if (a.residual != NULL)
        experts_end_residual(a, end, sum, token, at);
    else
        experts_store_some(a.out + (size_t)token * dim, sum, at, dim);
}

static struct experts_end experts_end_of(const struct k_mixing *m, const struct k_mixing_end *end)
{
    const struct k_product *residual = end->residual;
    struct experts_end e = {};

    e.out = end->out;
    e.y = m->y;
    e.c = *end->c;
    e.c.weights = m->routes.weights;
    e.c.places = m->sorted.places;
    if (residual == NULL)
        return e;
    e.residual = residual->residual;
    e.sums_out = residual->sums_out;
    e.norm = (const k_bf16 *)residual->norm;
    e.normed = residual->normed;
    e.is_half = residual->y_is_half;
    return e;
}

int k_combine(const struct k_mixing *m, const struct k_mixing_end *end, int n, k_stream stream)
{
    int dim = end->c->dim;

    if (end->residual != NULL && dim % 16 != 0)
        return -1;
    return experts_launch_early(combine_kernel,
                                dim3(n, (dim + THREADS * WIDE - 1) / (THREADS * WIDE)), THREADS, 0,
                                stream, experts_end_of(m, end));
}

/* --- both products ---------------------------------------------------------------------------- */

#ifdef HAVE_PORTABLE
/* Both products on any GPU. */
static int experts_run_portable(const struct experts_product *first,
                                const struct experts_product *second, int in, int down,
                                k_stream stream)
{
    const struct experts_product *products[2] = {first, second};
    const int formats[2] = {in, down};
    int rc = 0;

    for (int i = 0; i < 2 && rc == 0; i++) {
        if (formats[i] == EXPERTS_PLAIN && products[i]->n_in % 8 != 0)
            rc = experts_run_plain(products[i], stream);
        else
            rc = experts_tiles(products[i], (enum experts_format)formats[i],
                               first->n_tokens > K_MIXING_FEW, stream);
    }
    return rc;
}
#endif

#ifdef HAVE_SM90
/* A product in which each expert that has routes is read once. */
static int experts_run_few(const struct experts_product *p, int format, int n_sms, k_stream stream)
{
    if (format == EXPERTS_PLAIN && p->n_in % 8 != 0)
        return experts_run_plain(p, stream);
    if (format == EXPERTS_MXFP4 && p->n_tokens >= FEW_STRIPS_MIN)
        return experts_strips(p, n_sms, stream);
    return experts_few(p, (enum experts_format)format, n_sms, stream);
}

/* Both products of more routes than are worth that, of matrices that are both plain or both e4m3. x
 * in the order of experts is in y, which is not needed before the second product. */
static int experts_run_grouped(const struct k_mixing *m, struct experts_product *first,
                               const struct experts_product *second, enum experts_format in,
                               enum experts_format down, int n_sms, k_stream stream)
{
    int rc = experts_spread(m->y, first->x, m->sorted.places, m->taken, first, in != EXPERTS_PLAIN,
                            stream);

    first->x = m->y;
    if (rc == 0)
        rc = experts_grouped(first, in, m->taken, n_sms, stream);
    if (rc == 0)
        rc = experts_grouped(second, down, m->taken + 1, n_sms, stream);
    return rc;
}

/* The same of MXFP4, and of matrices that differ. */
static int experts_run_many(const struct k_mixing *m, struct experts_product *first,
                            const struct experts_product *second, enum experts_format in,
                            enum experts_format down, int n_sms, k_stream stream)
{
    int rc = experts_gather(m->y, first->x, first, experts_order_of(in), stream);

    first->x = m->y;
    if (rc == 0)
        rc = experts_many(first, in, experts_order_of(down), n_sms, stream);
    if (rc == 0)
        rc = experts_many(second, down, ORDER_PLAIN, n_sms, stream);
    return rc;
}

static bool experts_are_grouped(enum experts_format in, enum experts_format down)
{
    return in != EXPERTS_MXFP4 && down != EXPERTS_MXFP4 &&
           (in == EXPERTS_PLAIN) == (down == EXPERTS_PLAIN);
}

/* Both products on Hopper; `end`, which may be NULL, becomes NULL if that is done too. choice NULL:
 * it is made. */
static int experts_run_sm90(const struct k_mixing *m, struct experts_product *first,
                            const struct experts_product *second, int in, int down,
                            const struct k_mixing_end **end, const route_args *choice, int n_sms,
                            k_stream stream)
{
    int rc;

    if (first->n_tokens > K_MIXING_FEW && first->n_out % 8 == 0 && first->n_in % 8 == 0)
        return (experts_are_grouped((enum experts_format)in, (enum experts_format)down)
                    ? experts_run_grouped
                    : experts_run_many)(m, first, second, (enum experts_format)in,
                                        (enum experts_format)down, n_sms, stream);
    if (choice != NULL)
        rc = experts_few_choose(first, choice, (enum experts_format)in, n_sms, stream);
    else
        rc = experts_run_few(first, in, n_sms, stream);
    if (rc == 0 && *end != NULL && experts_few_sums(second, (enum experts_format)down, n_sms)) {
        const struct experts_end sum = experts_end_of(m, *end);

        *end = NULL;
        return experts_few_sum(second, &sum, (enum experts_format)down, n_sms, stream);
    }
    if (rc == 0)
        rc = experts_run_few(second, down, n_sms, stream);
    return rc;
}
#endif

/* What both products have in common. */
static struct experts_product experts_product_of(const struct k_mixing *m,
                                                 const struct k_experts *e,
                                                 const struct k_matrix *w, int n, int n_used)
{
    struct experts_product p = {};

    p.w = w->data;
    p.scales = (const float *)w->scales;
    p.scale_cols = k_format_scale_cols(&w->format, w->n_in);
    p.n_in = w->n_in;
    p.rows = w->n_out / e->n;
    p.starts = m->sorted.starts;
    p.routes = m->sorted.routes;
    p.touched = m->touched;
    p.tiles = m->tiles;
    p.n_tokens = n;
    p.n_used = n_used;
    p.n_experts = e->n;
    p.activation = e->activation;
    return p;
}

/* Both products of an FFN and the formats of their matrices. */
struct experts_both {
    struct experts_product first, second;
    int in, down;
};

/* -1: they are not to be multiplied. */
static int experts_find_both(struct experts_both *b, const struct k_mixing *m,
                             const struct k_mixing_input *input)
{
    const struct k_half_normed *norm = input->norm;
    const struct k_experts *e = input->experts;
    int n = input->n, n_used = input->router->n_used;

    b->first = experts_product_of(m, e, &e->in, n, n_used);
    b->second = experts_product_of(m, e, &e->down, n, n_used);
    b->in = experts_format_of(&b->first, &e->in.format);
    b->down = experts_format_of(&b->second, &e->down.format);
    if (b->in < 0 || b->down < 0)
        return -1;
    if ((norm != NULL && n > K_MIXING_FEW) || (e->is_plain && b->in == EXPERTS_MXFP4))
        return -1;
    if (norm != NULL)
        b->first.inverse = m->inverse;
    b->first.x = input->x;
    b->first.out = m->ff;
    b->first.n_out = e->ff_dim;
    b->first.is_gated = true;
    b->first.up = e->is_plain ? 0 : e->ff_dim;
    b->first.bias = (const k_bf16 *)e->in_bias;
    b->second.bias = (const k_bf16 *)e->down_bias;
    b->second.x = m->ff;
    b->second.out = m->y;
    b->second.n_out = b->second.up = b->second.rows;
    return 0;
}

/* choice NULL: it is made. */
static int experts_run(const struct k_mixing *m, struct experts_both *b,
                       const struct k_mixing_end *end, const route_args *choice, int n_sms,
                       k_stream stream)
{
    int rc = -1;

#ifdef HAVE_PORTABLE
    if (k_is_portable())
        rc = experts_run_portable(&b->first, &b->second, b->in, b->down, stream);
#endif
#ifdef HAVE_SM90
    if (!k_is_portable())
        rc =
            experts_run_sm90(m, &b->first, &b->second, b->in, b->down, &end, choice, n_sms, stream);
#else
    (void)n_sms, (void)choice;
#endif
    return rc != 0 || end == NULL ? rc : k_combine(m, end, b->first.n_tokens, stream);
}

int k_run_experts(const struct k_mixing *m, const struct k_mixing_input *in,
                  const struct k_mixing_end *end, int n_sms, k_stream stream)
{
    struct experts_both b;

    return experts_find_both(&b, m, in) == 0 ? experts_run(m, &b, end, NULL, n_sms, stream) : -1;
}

#ifdef HAVE_SM90
/* Does the first product choose? */
static bool experts_choose_late(const struct k_mixing_input *in)
{
    const struct k_matrix *first = &in->experts->in, *second = &in->experts->down;

    if (k_is_portable() || in->n != 1 || in->router->n_used > FEW_CHOOSE_MAX)
        return false;
    return (!k_format_is_plain(&first->format) || first->n_in % 8 == 0) &&
           (!k_format_is_plain(&second->format) || second->n_in % 8 == 0);
}

/* One token: the choice is left to the first product, or both products are one launch. */
static int experts_mix_one(const struct k_mixing *m, const struct k_mixing_input *in,
                           struct experts_both *b, const struct k_mixing_end *end, int n_sms,
                           k_stream stream)
{
    struct experts_end sum;
    route_args choice;

    if (route_prepare(&choice, m, in) != 0)
        return -1;
    if (end == NULL || !experts_one_takes(&b->first, &b->second, (enum experts_format)b->in,
                                          (enum experts_format)b->down, n_sms))
        return route_logits_of_one(&choice, stream) == 0
                   ? experts_run(m, b, end, &choice, n_sms, stream)
                   : -1;
    choice.ff = (uint4 *)m->ff;
    choice.n_ff = b->first.n_used * b->first.n_out / 8;
    if (route_logits_of_one(&choice, stream) != 0)
        return -1;
    sum = experts_end_of(m, end);
    return experts_one(&b->first, &b->second, &sum, &choice, (enum experts_format)b->in, n_sms,
                       stream);
}
#endif

int k_mix_experts(const struct k_mixing *m, const struct k_mixing_input *in,
                  const struct k_mixing_end *end, int n_sms, k_stream stream)
{
    struct experts_both b;

    if (experts_find_both(&b, m, in) != 0)
        return -1;
#ifdef HAVE_SM90
    if (experts_choose_late(in))
        return experts_mix_one(m, in, &b, end, n_sms, stream);
#endif
    return k_route(m, in, stream) == 0 ? experts_run(m, &b, end, NULL, n_sms, stream) : -1;
}
