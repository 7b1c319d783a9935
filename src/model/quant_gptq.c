/* SPDX-License-Identifier: Apache-2.0
 *
 * GPTQ: see the header.
 *
 * With H the moments and U the factor, H^-1 = U^T U, the loss of rounding element i of a row is
 * e^2, e = (x_i - value) / U_ii, when all later elements are changed by -e U_ij, the change that
 * makes good most of it. U comes from a Cholesky factor of H in reversed order: with P the reversal
 * and P H P = L L^T,
 *
 *     H^-1 = P L^-T L^-1 P = (P L^-1 P)^T (P L^-1 P),   so U = P L^-1 P, which is upper.
 *
 * Rows of a factor stand one after another, so sums of both steps run over neighbours. */
#include "config.h"

#include "model/quant_gptq.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"

#define BLOCK  64   /* columns of L that one turn computes */
#define DAMPED 0.01 /* of the diagonal's mean */
#define TRIES  6

/* --- the factor ----------------------------------------------------------------------------- */

/* Several sums side by side, so that additions do not wait for one another. */
static double gptq_dot(const float *a, const float *b, int n)
{
    double sum[4] = {0.0, 0.0, 0.0, 0.0};
    int i = 0;

    for (; i + 4 <= n; i += 4) {
        for (int k = 0; k < 4; k++)
            sum[k] += (double)a[i + k] * (double)b[i + k];
    }
    for (; i < n; i++)
        sum[0] += (double)a[i] * (double)b[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* Tasks of the pool; each computes one row. */
struct gptq_job {
    float *a, *b; /* [n][n] */
    int n, first; /* first: of the turn's columns */
};

/* A row below the turn's columns. */
static void gptq_factor_row(void *context, int task, int worker)
{
    const struct gptq_job *job = context;
    int end = job->first + BLOCK;
    float *row = job->a + (size_t)(end + task) * (size_t)job->n;

    (void)worker;
    for (int j = job->first; j < end; j++) {
        const float *other = job->a + (size_t)j * (size_t)job->n;

        row[j] = (float)(((double)row[j] - gptq_dot(row, other, j)) / (double)other[j]);
    }
}

/* a [n][n] becomes its lower Cholesky factor, a block of columns a turn. False: a is not positive
 * definite. */
static bool gptq_factor(float *a, int n, struct pool *pool)
{
    for (int first = 0; first < n; first += BLOCK) {
        int end = first + BLOCK < n ? first + BLOCK : n;

        for (int i = first; i < end; i++) {
            float *row = a + (size_t)i * (size_t)n;
            double rest;

            for (int j = first; j < i; j++) {
                const float *other = a + (size_t)j * (size_t)n;

                row[j] = (float)(((double)row[j] - gptq_dot(row, other, j)) / (double)other[j]);
            }
            rest = (double)row[i] - gptq_dot(row, row, i);
            if (!(rest > 0.0))
                return false;
            row[i] = (float)sqrt(rest);
        }
        if (end < n)
            pool_run(pool, gptq_factor_row, &(struct gptq_job){.a = a, .n = n, .first = first},
                     n - end);
    }
    return true;
}

/* A column of the inverse of a lower factor a, which becomes a row of b: L x = a unit vector. */
static void gptq_invert_column(void *context, int task, int worker)
{
    const struct gptq_job *job = context;
    size_t n = (size_t)job->n, j = (size_t)task;
    float *x = job->b + j * n;

    (void)worker;
    memset(x, 0, n * sizeof *x);
    x[j] = 1.0f / job->a[j * n + j];
    for (size_t i = j + 1; i < n; i++) {
        const float *row = job->a + i * n;

        x[i] = (float)(-gptq_dot(row + j, x + j, (int)(i - j)) / (double)row[i]);
    }
}

/* out = the moments in reversed order, with more on the diagonal. */
static void gptq_reverse(float *out, const float *moments, int n, double more)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j <= i; j++)
            out[(size_t)i * (size_t)n + (size_t)j] =
                moments[(size_t)(n - 1 - j) * (size_t)n + (size_t)(n - 1 - i)];
        out[(size_t)i * (size_t)n + (size_t)i] += (float)more;
    }
}

/* The mean of the diagonal; ERR_INVALID if no input was seen, or one was not finite. */
static int gptq_mean(const float *moments, int n, double *mean)
{
    double sum = 0.0;

    for (int i = 0; i < n; i++) {
        for (int j = 0; j <= i; j++) {
            if (!isfinite(moments[(size_t)i * (size_t)n + (size_t)j]))
                return ERR_INVALID;
        }
        sum += (double)moments[(size_t)i * (size_t)n + (size_t)i];
    }
    *mean = sum / n;
    return *mean > 0.0 ? ERR_OK : ERR_INVALID;
}

/* The factor of moments with enough on the diagonal: rounding to float can make nearly singular
 * ones indefinite. */
static bool gptq_factor_damped(float *lower, const float *moments, int n, double mean,
                               struct pool *pool)
{
    double damped = DAMPED;

    for (int i = 0; i < TRIES; i++, damped *= 10.0) {
        gptq_reverse(lower, moments, n, damped * mean);
        if (gptq_factor(lower, n, pool))
            return true;
    }
    return false;
}

/* g->factor, the lower factor of the reversed moments, becomes the upper one of their inverse.
 * Row j of `inverse` is column j of L^-1; reversed it is column n - 1 - j of the factor. */
static void gptq_turn(struct gptq *g, float *inverse, struct pool *pool)
{
    size_t n = (size_t)g->n;

    pool_run(pool, gptq_invert_column, &(struct gptq_job){.a = g->factor, .b = inverse, .n = g->n},
             g->n);
    for (size_t i = 0; i < n; i++) {
        float own = inverse[(n - 1 - i) * n + (n - 1 - i)];

        for (size_t j = 0; j < n; j++)
            g->factor[i * n + j] = inverse[(n - 1 - j) * n + (n - 1 - i)];
        g->importance[i] = 1.0f / (own * own);
    }
}

int gptq_open(struct gptq *g, const float *moments, int n, struct pool *pool)
{
    size_t elems = (size_t)n * (size_t)n;
    float *inverse;
    double mean;
    int rc = gptq_mean(moments, n, &mean);

    must(n >= 1);
    *g = (struct gptq){.n = n};
    if (rc != ERR_OK)
        return rc;
    g->factor = mem_alloc(elems * sizeof *g->factor);
    g->importance = mem_alloc((size_t)n * sizeof *g->importance);
    inverse = mem_alloc(elems * sizeof *inverse);
    if (g->factor == NULL || g->importance == NULL || inverse == NULL)
        rc = ERR_NO_MEMORY;
    else if (!gptq_factor_damped(g->factor, moments, n, mean, pool))
        rc = ERR_INVALID;
    else
        gptq_turn(g, inverse, pool);
    mem_free(inverse);
    if (rc != ERR_OK)
        gptq_close(g);
    return rc;
}

void gptq_close(struct gptq *g)
{
    mem_free(g->factor);
    mem_free(g->importance);
    *g = (struct gptq){.n = 0};
}

/* --- rounding ------------------------------------------------------------------------------- */

/* Change the elements after i of each row by the loss at i. The factor's row is read once for all
 * rows: it is the larger part of the memory traffic. */
static void gptq_spread(const struct gptq *g, float *x, int n_rows, int i, const float *lost)
{
    const float *factor = g->factor + (size_t)i * (size_t)g->n;

    for (int r = 0; r < n_rows; r++) {
        float *row = x + (size_t)r * (size_t)g->n;
        float e = lost[r];

        if (e == 0.0f)
            continue;
        for (int j = i + 1; j < g->n; j++)
            row[j] -= e * factor[j];
    }
}

double gptq_round(const struct gptq *g, const struct round_format *f, float *x, int n_rows,
                  uint8_t *codes, float *scales)
{
    size_t n = (size_t)g->n, n_groups = n / (size_t)f->group;
    double loss = 0.0;

    must(n_rows >= 1 && n_rows <= GPTQ_ROWS && g->n % f->group == 0);
    for (int i = 0; i < g->n; i++) {
        float lost[GPTQ_ROWS], own = g->factor[(size_t)i * n + (size_t)i];

        /* A scale is chosen for the group as errors before it have left it. */
        for (int r = 0; r < n_rows && i % f->group == 0; r++)
            scales[(size_t)r * n_groups + (size_t)(i / f->group)] =
                round_scale(f, x + (size_t)r * n + (size_t)i, g->importance + i, f->group);
        for (int r = 0; r < n_rows; r++) {
            float scale = scales[(size_t)r * n_groups + (size_t)(i / f->group)];
            size_t at = (size_t)r * n + (size_t)i;

            codes[at] = round_code(f, x[at], scale);
            lost[r] = (x[at] - round_value(f, codes[at], scale)) / own;
            loss += (double)lost[r] * (double)lost[r];
        }
        gptq_spread(g, x, n_rows, i, lost);
    }
    return loss;
}

/* The loss of rounding everything to 0. */
double gptq_energy(const struct gptq *g, float *x, int n_rows)
{
    size_t n = (size_t)g->n;
    double loss = 0.0;

    must(n_rows >= 1 && n_rows <= GPTQ_ROWS);
    for (int i = 0; i < g->n; i++) {
        float lost[GPTQ_ROWS], own = g->factor[(size_t)i * n + (size_t)i];

        for (int r = 0; r < n_rows; r++) {
            lost[r] = x[(size_t)r * n + (size_t)i] / own;
            loss += (double)lost[r] * (double)lost[r];
        }
        gptq_spread(g, x, n_rows, i, lost);
    }
    return loss;
}
