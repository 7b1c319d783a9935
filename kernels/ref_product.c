/* SPDX-License-Identifier: Apache-2.0
 *
 * References of products of few rows with the operations around them, with sums in float64. */
#include <math.h>

#include "kernels/kernels.h"

/* An element of w with its row's scale, in float64. */
static double weight(const struct k_matrix *w, int row, int col)
{
    double value = (double)((const float *)w->data)[(size_t)row * (size_t)w->n_in + (size_t)col];

    return w->scales != NULL ? value * (double)((const float *)w->scales)[row] : value;
}

/* The product of a row of x and a row of w, before a residual. */
static double dot(const struct k_product *p, int c, int row, double inverse)
{
    const float *x_row = (const float *)p->x + (size_t)c * (size_t)p->w->n_in;
    double sum = 0.0;

    for (int elem = 0; elem < p->w->n_in; elem++)
        sum += (double)x_row[elem] * weight(p->w, row, elem);
    return sum * inverse + (p->bias != NULL ? (double)((const float *)p->bias)[row] : 0.0);
}

/* The second half of RMS norm: partial sums of squares become one factor per row of x. */
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

/* Row by row, output by output; no order of summation is part of the specification, because sums
 * are float64. */
void ref_multiply(const struct k_product *p, int n)
{
    int n_out = p->kind == K_PRODUCT_GATED ? p->w->n_out / 2 : p->w->n_out;

    for (int col = 0; col < n; col++) {
        double inverse = inverse_of(p, col);

        for (int row = 0; row < n_out; row++) {
            double result = dot(p, col, row, inverse);

            if (p->kind == K_PRODUCT_GATED)
                result = result / (1.0 + exp(-result)) * dot(p, col, n_out + row, inverse);
            if (p->kind == K_PRODUCT_RESIDUAL)
                add_residual(p, col, row, result);
            else
                ((float *)p->y)[(size_t)col * (size_t)n_out + (size_t)row] = (float)result;
        }
    }
}

/* The first half of RMS norm at the begin of a decode. */
void ref_embed_normed(float *x, float *normed, float *sums_out, const float *table,
                      const int32_t *ids, const float *norm, int n, int dim)
{
    for (int col = 0; col < n; col++) {
        for (int elem = 0; elem < dim; elem++) {
            size_t at = (size_t)col * (size_t)dim + (size_t)elem;
            float value = table[(size_t)ids[col] * (size_t)dim + (size_t)elem];
            float *part = &sums_out[col * (dim / 16) + elem / 16];

            x[at] = value;
            normed[at] = value * norm[elem];
            *part = (elem % 16 == 0 ? 0.0f : *part) + value * value;
        }
    }
}
