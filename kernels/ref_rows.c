/* SPDX-License-Identifier: Apache-2.0
 *
 * References of the operations that treat each row by itself. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

void ref_embed(float *x, const float *table, const int32_t *ids, int n, int dim)
{
    for (int t = 0; t < n; t++)
        memcpy(x + (size_t)t * dim, table + (size_t)ids[t] * dim, (size_t)dim * sizeof *x);
}

void ref_rmsnorm(float *out, const float *x, const float *weight, float eps, int n, int dim)
{
    for (int t = 0; t < n; t++, x += dim, out += dim) {
        double sum = 0.0;
        float scale;

        for (int d = 0; d < dim; d++)
            sum += (double)x[d] * (double)x[d];
        scale = (float)(1.0 / sqrt(sum / dim + (double)eps));
        for (int d = 0; d < dim; d++)
            out[d] = x[d] * scale * weight[d];
    }
}

void ref_add_rmsnorm(float *out, float *x, const float *delta, const float *weight, float eps,
                     int n, int dim)
{
    for (size_t i = 0; i < (size_t)n * dim; i++)
        x[i] += delta[i];
    ref_rmsnorm(out, x, weight, eps, n, dim);
}

void ref_gather_add(float *out, const float *x, const float *delta, const int32_t *token_idx,
                    int n_rows, int dim)
{
    for (int r = 0; r < n_rows; r++, out += dim) {
        size_t at = (size_t)token_idx[r] * dim;

        for (int d = 0; d < dim; d++)
            out[d] = x[at + d] + delta[at + d];
    }
}

void ref_silu_mul(float *out, const float *in, int n, int ff_dim)
{
    for (int t = 0; t < n; t++, in += 2 * (size_t)ff_dim, out += ff_dim) {
        for (int d = 0; d < ff_dim; d++)
            out[d] = in[d] / (1.0f + expf(-in[d])) * in[ff_dim + d];
    }
}

void ref_gelu(float *out, const float *in, enum k_activation kind, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = in[i];

        if (kind == K_GELU)
            out[i] = 0.5f * x * (1.0f + erff(x * 0.70710678f));
        else
            out[i] = 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    }
}
