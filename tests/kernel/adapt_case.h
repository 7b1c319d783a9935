/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases for the products of adapters on a GPU (kernels/adapter.h): inputs as bfloat16 in host
 * memory, and the results that the reference gives for the same numbers. test_played_adapter.c
 * plays the kernels on the host with them, test_adapter.c runs them on a GPU. */
#ifndef QUIRE_TESTS_KERNEL_ADAPT_CASE_H
#define QUIRE_TESTS_KERNEL_ADAPT_CASE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/adapter.h"
#include "tests/tap.h"

#define ADAPT_SLOTS 3
#define ADAPT_ROWS  40
#define ADAPT_EPS   1e-5f

struct adapt_case {
    enum k_product_kind kind;
    int n, n_in, n_parts, n_out[K_ADAPTED_MAX], ranks[ADAPT_SLOTS];
    bool has_norm, is_half;
};

static const struct adapt_case adapt_cases[] = {
    {K_PRODUCT_FLOAT, 7, 64, 1, {96}, {8, 3, 0}, false, false},
    {K_PRODUCT_FLOAT, 7, 100, 3, {40, 13, 300}, {16, 1, 64}, false, false},
    {K_PRODUCT_PLAIN, 7, 33, 3, {40, 13, 300}, {5, 0, 7}, false, false},
    {K_PRODUCT_FLOAT, 3, 48, 1, {515}, {4, 9, 2}, false, false},
    {K_PRODUCT_FLOAT, 1, 256, 3, {128, 64, 64}, {16, 16, 16}, true, false},
    {K_PRODUCT_PLAIN, ADAPT_ROWS, 128, 3, {96, 32, 32}, {16, 8, 64}, true, true},
    {K_PRODUCT_FLOAT, ADAPT_ROWS, 4128, 1, {2080}, {16, 5, 33}, true, false},
    {K_PRODUCT_GATED, 2, 64, 2, {48, 48}, {8, 16, 3}, true, false},
    {K_PRODUCT_GATED, 20, 64, 1, {1200}, {8, 16, 64}, true, true},
    {K_PRODUCT_RESIDUAL, 1, 80, 1, {48}, {16, 8, 4}, false, false},
    {K_PRODUCT_RESIDUAL, 21, 96, 1, {624}, {16, 0, 9}, false, true},
};
#define ADAPT_CASES (sizeof adapt_cases / sizeof adapt_cases[0])

/* A case's arrays. Those of the rows' results are float32 whatever the kernel writes. */
struct adapt_made {
    const struct adapt_case *c;
    struct k_adapters wide, narrow; /* float32; bfloat16 */
    int n_out, y_width;
    int32_t slots[ADAPT_ROWS];
    int32_t order[ADAPT_ROWS], starts[ADAPT_ROWS + 1], segments[ADAPT_ROWS], count[2],
        of[ADAPT_ROWS];
    uint16_t *x;                                 /* bfloat16 [n][n_in], or float16 as K_HALF_AT */
    k_bf16 *before, *norm;                       /* [n][n_out]: the product; [n_out] */
    float *before_float, *sums;                  /* the same numbers; [n][n_in / 16] */
    float *residual;                             /* [n][n_out] */
    float *y, *normed, *sums_out, *residual_out; /* wanted */
};

/* Where a run leaves its results, as floats. */
struct adapt_got {
    float *y, *normed, *sums_out, *residual;
};

static unsigned adapt_seed = 1;

static inline float adapt_widen(k_bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline k_bf16 adapt_narrow(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return (k_bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Random numbers, as bfloat16 in *out and as the same floats. */
static inline float *adapt_draw(k_bf16 **out, size_t n)
{
    float *f = malloc((n + 8) * sizeof *f);

    *out = aligned_alloc(64, ((n + 8) * sizeof **out + 63) / 64 * 64);
    for (size_t i = 0; i < n; i++) {
        adapt_seed = adapt_seed * 1664525U + 1013904223U;
        (*out)[i] = adapt_narrow((float)(adapt_seed >> 8) * 0x1p-23f - 1.0f);
        f[i] = adapt_widen((*out)[i]);
    }
    return f;
}

/* b [rank][n_out] as a GPU has it: [n_out][K_ADAPT_STRIDE(rank)]. */
static inline k_bf16 *adapt_turn(const k_bf16 *b, size_t rank, size_t n_out)
{
    size_t stride = K_ADAPT_STRIDE(rank), n = n_out * stride * sizeof(k_bf16);
    k_bf16 *turned = aligned_alloc(64, (n + 64) / 64 * 64);

    memset(turned, 0, (n + 64) / 64 * 64);
    for (size_t k = 0; k < rank; k++) {
        for (size_t i = 0; i < n_out; i++)
            turned[i * stride + k] = b[k * n_out + i];
    }
    return turned;
}

static inline void adapt_make_slots(struct adapt_made *m)
{
    const struct adapt_case *c = m->c;

    m->wide.n_parts = m->narrow.n_parts = c->n_parts;
    for (int part = 0; part < c->n_parts; part++) {
        size_t n_out = (size_t)c->n_out[part];
        struct k_adapter *wide = calloc(ADAPT_SLOTS, sizeof *wide),
                         *slots = calloc(ADAPT_SLOTS, sizeof *slots);

        for (int s = 0; s < ADAPT_SLOTS; s++) {
            size_t rank = (size_t)c->ranks[s];
            k_bf16 *a, *b;
            float *wide_a = adapt_draw(&a, rank * (size_t)c->n_in),
                  *wide_b = adapt_draw(&b, rank * n_out);

            wide[s] = (struct k_adapter){wide_a, wide_b, (int)rank, 0.5f + 0.25f * (float)s};
            slots[s] = (struct k_adapter){a, adapt_turn(b, rank, n_out), (int)rank, wide[s].scale};
            free(b);
        }
        m->wide.parts[part] = (struct k_adapted){m->n_out, c->n_out[part], wide};
        m->narrow.parts[part] = (struct k_adapted){m->n_out, c->n_out[part], slots};
        m->n_out += c->n_out[part];
    }
}

/* The wanted results of one row, whose sum is in `row` [n_out]. */
static inline void adapt_finish(struct adapt_made *m, int i, const float *row, const float *norm)
{
    int n_out = m->n_out, width = m->y_width;

    for (int j = 0; j < width; j++) {
        size_t at = (size_t)i * (size_t)n_out + (size_t)j;
        float gate = row[j];

        if (m->c->kind == K_PRODUCT_GATED) {
            m->y[(size_t)i * (size_t)width + (size_t)j] =
                gate / (1.0f + expf(-gate)) * row[j + width];
        } else if (m->c->kind == K_PRODUCT_RESIDUAL) {
            m->residual_out[at] = m->residual[at] + gate;
            m->normed[at] = m->residual_out[at] * norm[j];
            m->sums_out[i * (n_out / 16) + j / 16] += m->residual_out[at] * m->residual_out[at];
        } else {
            m->y[at] = gate;
        }
    }
}

static inline void adapt_make_wanted(struct adapt_made *m, const float *x, const float *norm)
{
    const struct adapt_case *c = m->c;
    size_t n_in = (size_t)c->n_in, n_out = (size_t)m->n_out;
    float *row = malloc(n_out * sizeof *row), *in = malloc(n_in * sizeof *in), work[256];

    for (int i = 0; i < c->n; i++) {
        float factor = 1.0f, sum = 0.0f;

        for (int k = 0; k < c->n_in / 16 && c->has_norm; k++)
            sum += m->sums[(size_t)i * (n_in / 16) + (size_t)k];
        if (c->has_norm)
            factor = 1.0f / sqrtf(sum / (float)c->n_in + ADAPT_EPS);
        for (size_t k = 0; k < n_in; k++)
            in[k] = x[(size_t)i * n_in + k] * factor;
        memcpy(row, m->before_float + (size_t)i * n_out, n_out * sizeof *row);
        if (m->slots[i] >= 0)
            ref_adapt(row, in, &m->wide, m->slots[i], c->n_in, work);
        adapt_finish(m, i, row, norm);
    }
    free(row), free(in);
}

static inline void adapt_make(struct adapt_made *m, const struct adapt_case *c)
{
    size_t n = (size_t)c->n, n_in = (size_t)c->n_in, n_out, sums = n * (n_in / 16);
    k_bf16 *x;
    float *wide_x, *norm, *residual;
    int32_t work[ADAPT_SLOTS + 2];
    struct k_adapt_rows rows = {m->order, m->starts, m->segments, m->count, m->of};

    memset(m, 0, sizeof *m);
    m->c = c;
    adapt_make_slots(m);
    n_out = (size_t)m->n_out;
    m->y_width = c->kind == K_PRODUCT_GATED ? m->n_out / 2 : m->n_out;
    for (int i = 0; i < c->n; i++) /* some rows alone in their slot, a slot of many, and none */
        m->slots[i] = c->n == 1 ? 0 : i % 5 == 1 ? -1 : i == 0 ? 2 : i % 9 == 2 ? 1 : 0;
    k_adapt_sort(&rows, m->slots, c->n, ADAPT_SLOTS, work);
    wide_x = adapt_draw(&x, n * n_in);
    m->x = x;
    if (c->is_half) {
        _Float16 *half = aligned_alloc(64, (n * n_in * sizeof *half + 63) / 64 * 64);

        for (size_t i = 0; i < n * n_in; i++)
            half[K_HALF_AT(i)] = (_Float16)wide_x[i];
        m->x = (uint16_t *)(void *)half;
        free(x);
    }
    m->before_float = adapt_draw(&m->before, n * n_out);
    norm = adapt_draw(&m->norm, n_out);
    residual = adapt_draw(&x, n * n_out);
    free(x);
    m->residual = residual;
    m->sums = malloc((sums + 1) * sizeof *m->sums);
    for (size_t i = 0; i < sums; i++)
        m->sums[i] = 3.0f + (float)(i % 7);
    m->y = calloc(n * n_out, sizeof *m->y);
    m->normed = calloc(n * n_out, sizeof *m->normed);
    m->residual_out = calloc(n * n_out, sizeof *m->residual_out);
    m->sums_out = calloc(n * n_out / 16 + 1, sizeof *m->sums_out);
    adapt_make_wanted(m, wide_x, norm);
    free(norm), free(wide_x);
}

static inline void adapt_free(struct adapt_made *m)
{
    for (int part = 0; part < m->wide.n_parts; part++) {
        for (int s = 0; s < ADAPT_SLOTS; s++) {
            struct k_adapter *both[] = {&m->wide.parts[part].slots[s],
                                        &m->narrow.parts[part].slots[s]};

            for (int i = 0; i < 2; i++)
                free((void *)(uintptr_t)both[i]->a), free((void *)(uintptr_t)both[i]->b);
        }
        free(m->wide.parts[part].slots), free(m->narrow.parts[part].slots);
    }
    free(m->x), free(m->before), free(m->norm), free(m->before_float), free(m->sums);
    free(m->residual), free(m->y), free(m->normed), free(m->residual_out), free(m->sums_out);
}

/* The largest difference of n numbers, relative to 1 and their magnitude. */
static inline float adapt_worst(const float *got, const float *want, size_t n)
{
    float worst = 0.0f;

    for (size_t i = 0; i < n; i++) {
        float off = fabsf(got[i] - want[i]) / (1.0f + fabsf(want[i]));

        worst = off < 1e30f ? fmaxf(worst, off) : 1e30f;
    }
    return worst;
}

/* Float results have the errors of sums, others those of one rounding to 16 bits. */
static inline void adapt_compare(const struct adapt_made *m, const struct adapt_got *got, size_t at)
{
    const struct adapt_case *c = m->c;
    size_t n = (size_t)c->n * (size_t)m->n_out;
    float exact = 4e-6f * sqrtf((float)c->n_in) + 2e-5f, limit = exact + 0x1p-8f, off;

    if (c->kind != K_PRODUCT_RESIDUAL) {
        n = (size_t)c->n * (size_t)m->y_width;
        off = adapt_worst(got->y, m->y, n);
        limit = c->kind == K_PRODUCT_FLOAT ? exact : limit;
        ok(off < limit, "case %zu: within %.1e of the reference (%.1e)", at, (double)off,
           (double)limit);
        return;
    }
    off = adapt_worst(got->residual, m->residual_out, n);
    ok(off < exact, "case %zu: the residual is within %.1e", at, (double)off);
    off = adapt_worst(got->normed, m->normed, n);
    ok(off < limit, "case %zu: normed rows are within %.1e", at, (double)off);
    off = adapt_worst(got->sums_out, m->sums_out, n / 16);
    ok(off < 16.0f * exact, "case %zu: sums of squares are within %.1e", at, (double)off);
}

#endif
