/* SPDX-License-Identifier: Apache-2.0
 *
 * References of the operations whose results are e4m3. */
#include "config.h"

#include <math.h>

#include "kernels/e4m3.h"

static void round_run(k_e4m3 *out, float *scale, const float *x, const float *x_scale, int n)
{
    float amax = 0.0f, inverse;

    for (int i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    *scale = x_scale != NULL ? *x_scale : k_e4m3_scale(amax);
    inverse = 1.0f / *scale;
    for (int i = 0; i < n; i++)
        out[i] = k_e4m3_round(x[i] * inverse);
}

void ref_quantise(const struct k_quantised *out, const float *x, int n, int dim)
{
    for (int t = 0; t < n; t++) {
        const float *row = x + (size_t)t * dim;
        k_e4m3 *to = out->data + (size_t)t * dim;

        if (out->stride == 0)
            round_run(to, out->scales + t, row, out->x_scale, dim);
        for (int d = 0; out->stride != 0 && d < dim; d += K_E4M3_BLOCK)
            round_run(to + d, out->scales + (size_t)(d / K_E4M3_BLOCK) * out->stride + t, row + d,
                      NULL, dim - d < K_E4M3_BLOCK ? dim - d : K_E4M3_BLOCK);
    }
}
