/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: GPTQ's factor and rounding are right. Method: the factor times moments gives the unit
 * matrix; the loss that gptq_round() returns is that of its codes, computed plainly; with inputs
 * that depend on each other it is below that of rounding each element by itself; damaged moments
 * are refused. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/quant_gptq.h"
#include "tests/tap.h"

static uint64_t state = 88172645463325252ULL;

static float drawn(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)((double)(state >> 11) * 0x1p-53 * 2.0 - 1.0);
}

/* The moments of inputs whose neighbours depend on each other; n_inputs may be below n. Both
 * triangles are filled, the upper one with numbers that must not be read. */
static float *moments_of(int n, int n_inputs)
{
    float *moments = calloc((size_t)n * (size_t)n, sizeof *moments);
    float *x = calloc((size_t)n, sizeof *x);

    for (int t = 0; t < n_inputs; t++) {
        float run = 0.0f;

        for (int i = 0; i < n; i++) {
            run = 0.9f * run + drawn();
            x[i] = run * (float)(1 + i % 5);
        }
        for (int i = 0; i < n; i++) {
            for (int j = 0; j <= i; j++)
                moments[(size_t)i * (size_t)n + (size_t)j] += x[i] * x[j];
        }
    }
    for (int i = 0; i < n; i++) {
        for (int j = i + 1; j < n; j++)
            moments[(size_t)i * (size_t)n + (size_t)j] = 1e30f;
    }
    free(x);
    return moments;
}

static double at(const float *moments, int n, int i, int j, double more)
{
    if (i == j)
        return (double)moments[(size_t)i * (size_t)n + (size_t)i] + more;
    return (double)(i > j ? moments[(size_t)i * (size_t)n + (size_t)j]
                          : moments[(size_t)j * (size_t)n + (size_t)i]);
}

/* 1% of the diagonal's mean. */
static double damping(const float *moments, int n)
{
    double sum = 0.0;

    for (int i = 0; i < n; i++)
        sum += (double)moments[(size_t)i * (size_t)n + (size_t)i];
    return 0.01 * sum / n;
}

static double loss_of(const float *moments, int n, double more, const double *d)
{
    double sum = 0.0;

    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++)
            sum += d[i] * at(moments, n, i, j, more) * d[j];
    }
    return sum;
}

static struct pool *pool_of(int n_threads)
{
    struct pool *pool = NULL;

    ok(pool_open(&pool, n_threads) == ERR_OK, "threads: %d", n_threads);
    return pool;
}

static void factors(int n, int n_inputs, int n_threads)
{
    float *moments = moments_of(n, n_inputs);
    struct pool *pool = pool_of(n_threads);
    double more = damping(moments, n), worst = 0.0;
    double *product = calloc((size_t)n * (size_t)n, sizeof *product);
    struct gptq g;

    ok(gptq_open(&g, moments, n, pool) == ERR_OK, "moments of %d with %d inputs, %d threads", n,
       n_inputs, n_threads);
    /* transpose(U) * U * H, whose result is the unit matrix. */
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            double inverse = 0.0;

            for (int k = 0; k <= (i < j ? i : j); k++)
                inverse += (double)g.factor[(size_t)k * (size_t)n + (size_t)i] *
                           (double)g.factor[(size_t)k * (size_t)n + (size_t)j];
            for (int k = 0; k < n; k++)
                product[(size_t)i * (size_t)n + (size_t)k] += inverse * at(moments, n, j, k, more);
        }
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++)
            worst = fmax(worst, fabs(product[(size_t)i * (size_t)n + (size_t)j] - (i == j)));
    }
    ok(worst < 2e-3, "its inverse: off by %.1e", worst);
    gptq_close(&g);
    pool_close(pool);
    free(product);
    free(moments);
}

static void rounds(enum round_kind kind, int group, const char *name)
{
    enum { N = 192, ROWS = GPTQ_ROWS };
    struct round_format f = {kind, group, 1.0f};
    float *moments = moments_of(N, 600);
    struct pool *pool = pool_of(2);
    double more = damping(moments, N), plain = 0.0, own = 0.0, energy = 0.0, told, told_energy;
    static float x[ROWS * N], copy[ROWS * N], scales[ROWS * N];
    static uint8_t codes[ROWS * N];
    struct gptq g;

    for (int i = 0; i < ROWS * N; i++)
        x[i] = drawn() * 0.1f;
    ok(gptq_open(&g, moments, N, pool) == ERR_OK, "%s", name);
    memcpy(copy, x, sizeof x);
    told = gptq_round(&g, &f, copy, ROWS, codes, scales);
    memcpy(copy, x, sizeof x);
    told_energy = gptq_energy(&g, copy, ROWS);
    for (int r = 0; r < ROWS; r++) {
        double by_gptq[N], by_itself[N], all[N];

        for (int i = 0; i < N; i++) {
            size_t e = (size_t)r * N + (size_t)i;
            int first = i / group * group;
            float near = round_scale(&f, x + (size_t)r * N + first, NULL, group);
            float scale = scales[(size_t)r * (size_t)(N / group) + (size_t)(i / group)];

            by_gptq[i] = (double)x[e] - (double)round_value(&f, codes[e], scale);
            by_itself[i] = (double)x[e] - (double)round_value(&f, round_code(&f, x[e], near), near);
            all[i] = (double)x[e];
        }
        own += loss_of(moments, N, more, by_gptq);
        plain += loss_of(moments, N, more, by_itself);
        energy += loss_of(moments, N, more, all);
    }
    ok(fabs(told - own) < 5e-3 * own, "its loss is that of its codes: %.4f, %.4f", told, own);
    ok(fabs(told_energy - energy) < 1e-3 * energy, "and its energy that of the rows");
    ok(own < 0.7 * plain, "which is %.2f of that of rounding to nearest", own / plain);
    gptq_close(&g);
    pool_close(pool);
    free(moments);
}

int main(void)
{
    float moments[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    struct pool *pool = pool_of(1);
    struct gptq g;

    factors(1, 4, 1);
    factors(7, 20, 3);
    factors(64, 200, 2);
    factors(65, 30, 2); /* fewer inputs than elements: damping makes it definite */
    factors(200, 1000, 4);
    rounds(ROUND_INT4, 64, "4 bits, groups of 64");
    rounds(ROUND_INT4, 32, "4 bits, groups of 32");
    rounds(ROUND_INT8, 192, "8 bits, rows");
    rounds(ROUND_FP8, 192, "e4m3, rows");
    rounds(ROUND_NVFP4, 16, "e2m1, groups of 16");
    ok(gptq_open(&g, moments, 2, pool) == ERR_INVALID, "no input at all");
    moments[0] = moments[3] = 1.0f;
    moments[2] = NAN;
    ok(gptq_open(&g, moments, 2, pool) == ERR_INVALID, "an input that is not a number");
    pool_close(pool);
    return tap_done();
}
