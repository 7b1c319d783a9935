/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: products of adapters as the GPU computes them, without one. Method: the kernels played on
 * the host (play.h) against the reference, for the cases of adapt_case.h: rows with several
 * adapters and none, matrices of one to three parts, odd sizes, ranks of 1 to 64, each kind of
 * product. A row alone must have the bits that it has among others. */
#include "tests/kernel/adapt_case.h"
#include "tests/kernel/played.h"

static float *floats(size_t n)
{
    return calloc(n + 1, sizeof(float));
}

/* Results of the kernel's type as floats. */
static void widen(float *to, const uint16_t *from, size_t n, bool is_half)
{
    const _Float16 *half = (const _Float16 *)(const void *)from;

    for (size_t i = 0; i < n; i++)
        to[i] = is_half ? (float)half[K_HALF_AT(i)] : adapt_widen(from[i]);
}

/* Play rows first .. first + n - 1 of a case. */
static int play_rows(const struct adapt_made *m, int first, int n, struct adapt_got *got)
{
    const struct adapt_case *c = m->c;
    size_t n_y = (size_t)n * (size_t)m->n_out, skip = (size_t)first * (size_t)m->n_out;
    int32_t order[ADAPT_ROWS], starts[ADAPT_ROWS + 1], slots[ADAPT_ROWS], count[2], of[ADAPT_ROWS];
    int32_t work[ADAPT_SLOTS + 2];
    uint16_t *y = calloc(n_y + 1, sizeof *y), *normed = calloc(n_y + 1, sizeof *normed);
    float *t = floats((size_t)(K_ADAPT_SPLITS * c->n_parts * n * 64));
    struct k_adapting a = {.of = m->narrow,
                           .rows = {order, starts, slots, count, of},
                           .p = {.kind = c->kind,
                                 .x = m->x + (size_t)first * (size_t)c->n_in,
                                 .sums_in = c->has_norm ? m->sums + first * (c->n_in / 16) : NULL,
                                 .n_sums = c->n_in / 16,
                                 .eps = ADAPT_EPS,
                                 .y_is_half = c->is_half,
                                 .y = c->kind == K_PRODUCT_FLOAT ? (void *)got->y : (void *)y,
                                 .residual = got->residual,
                                 .norm = m->norm,
                                 .normed = normed,
                                 .sums_out = got->sums_out},
                           .x_is_half = c->is_half,
                           .plain = m->before + skip,
                           .t = t,
                           .n = n,
                           .n_in = c->n_in,
                           .n_out = m->n_out,
                           .rank_max = 64,
                           .n_sms = 2};
    int rc;

    k_adapt_sort(&a.rows, m->slots + first, n, ADAPT_SLOTS, work);
    memcpy(got->y, m->before_float + skip, n_y * sizeof *got->y);
    memcpy(y, m->before + skip, n_y * sizeof *y);
    memcpy(got->residual, m->residual + skip, n_y * sizeof *got->residual);
    rc = played_adapt(&a);
    n_y = c->kind == K_PRODUCT_GATED ? n_y / 2 : n_y;
    if (c->kind != K_PRODUCT_FLOAT)
        widen(got->y, y, n_y, c->is_half && c->kind == K_PRODUCT_GATED);
    if (c->kind == K_PRODUCT_RESIDUAL)
        widen(got->normed, normed, n_y, c->is_half);
    free(t), free(y), free(normed);
    return rc;
}

static struct adapt_got make_got(size_t n)
{
    return (struct adapt_got){floats(n), floats(n), floats(n), floats(n)};
}

static void free_got(struct adapt_got *got)
{
    free(got->y), free(got->normed), free(got->sums_out), free(got->residual);
}

static void check(size_t at)
{
    const struct adapt_case *c = &adapt_cases[at];
    struct adapt_made m;
    struct adapt_got all, alone;
    size_t n_y, width;
    int n_same = 0;

    adapt_make(&m, c);
    n_y = (size_t)c->n * (size_t)m.n_out;
    width = (size_t)(c->kind == K_PRODUCT_RESIDUAL ? m.n_out : m.y_width);
    all = make_got(n_y);
    alone = make_got(n_y);
    ok(play_rows(&m, 0, c->n, &all) == 0, "case %zu: no lane waits in vain", at);
    adapt_compare(&m, &all, at);
    for (int i = 0; i < c->n && c->n <= 7; i++) {
        const float *got = c->kind == K_PRODUCT_RESIDUAL ? all.residual : all.y;

        n_same += play_rows(&m, i, 1, &alone) == 0 &&
                  memcmp(got + (size_t)i * width,
                         c->kind == K_PRODUCT_RESIDUAL ? alone.residual : alone.y,
                         width * sizeof *got) == 0;
    }
    if (c->n <= 7)
        is_int(n_same, c->n, "case %zu: each row has the same bits alone", at);
    free_got(&all), free_got(&alone);
    adapt_free(&m);
}

int main(void)
{
    adapt_seed = tap_seed(1);
    for (size_t at = 0; at < ADAPT_CASES; at++)
        check(at);
    return tap_done();
}
