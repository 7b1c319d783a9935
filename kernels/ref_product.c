/* SPDX-License-Identifier: Apache-2.0
 *
 * References of products of few rows with the operations around them, with sums in float64. */
#include <math.h>

#include "kernels/kernels.h"

static double weight(const struct k_matrix *w, int row, int col)
{
    double v = (double)((const float *)w->data)[(size_t)row * (size_t)w->n_in + (size_t)col];

    return w->scales != NULL ? v * (double)((const float *)w->scales)[row] : v;
}

/* The product of a row of x and a row of w, before a residual. */
static double dot(const struct k_product *p, int c, int row, double inverse)
{
    const float *x = (const float *)p->x + (size_t)c * (size_t)p->w->n_in;
    double sum = 0.0;

    for (int k = 0; k < p->w->n_in; k++)
        sum += (double)x[k] * weight(p->w, row, k);
    return sum * inverse + (p->bias != NULL ? (double)((const float *)p->bias)[row] : 0.0);
}

static double inverse_of(const struct k_product *p, int c)
{
    double sum = 0.0;

    if (p->sums_in == NULL)
        return 1.0;
    for (int i = 0; i < p->n_sums; i++)
        sum += (double)p->sums_in[c * p->n_sums + i];
    return 1.0 / sqrt(sum / p->w->n_in + (double)p->eps);
}

/* Add to the residual, and prepare the next product's input: weighted, with the partial sum of
 * squares. */
static void add_residual(const struct k_product *p, int c, int row, double y)
{
    size_t at = (size_t)c * (size_t)p->w->n_out + (size_t)row;
    float sum = (float)((double)p->residual[at] + y);
    float *part = &p->sums_out[c * ((p->w->n_out + 15) / 16) + row / 16];

    p->residual[at] = sum;
    ((float *)p->normed)[at] = sum * ((const float *)p->norm)[row];
    *part = (row % 16 == 0 ? 0.0f : *part) + sum * sum;
}

void ref_multiply(const struct k_product *p, int n)
{
    int n_out = p->kind == K_PRODUCT_GATED ? p->w->n_out / 2 : p->w->n_out;

    for (int c = 0; c < n; c++) {
        double inverse = inverse_of(p, c);

        for (int row = 0; row < n_out; row++) {
            double y = dot(p, c, row, inverse);

            if (p->kind == K_PRODUCT_GATED)
                y = y / (1.0 + exp(-y)) * dot(p, c, n_out + row, inverse);
            if (p->kind == K_PRODUCT_RESIDUAL)
                add_residual(p, c, row, y);
            else
                ((float *)p->y)[(size_t)c * (size_t)n_out + (size_t)row] = (float)y;
        }
    }
}

void ref_embed_normed(float *x, float *normed, float *sums_out, const float *table,
                      const int32_t *ids, const float *norm, int n, int dim)
{
    for (int c = 0; c < n; c++) {
        for (int d = 0; d < dim; d++) {
            size_t at = (size_t)c * (size_t)dim + (size_t)d;
            float v = table[(size_t)ids[c] * (size_t)dim + (size_t)d];
            float *part = &sums_out[c * (dim / 16) + d / 16];

            x[at] = v;
            normed[at] = v * norm[d];
            *part = (d % 16 == 0 ? 0.0f : *part) + v * v;
        }
    }
}
