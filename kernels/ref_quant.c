/* SPDX-License-Identifier: Apache-2.0
 *
 * References of the operations whose results are e4m3, and what formats mean. */
#include "config.h"

#include <math.h>
#include <string.h>

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

/* Numbers at .. at + n - 1 of an array, which need not be aligned. */
static void widen(float *out, enum k_type type, const void *from, size_t at, size_t n)
{
    const uint8_t *bytes = from;
    float values[256];

    switch (type) {
    case K_F32: memcpy(out, bytes + 4 * at, 4 * n); break;
    case K_BF16:
        for (size_t i = 0; i < n; i++) {
            out[i] = 0.0f;
            memcpy((char *)&out[i] + 2, bytes + 2 * (at + i), 2); /* the upper half */
        }
        break;
    case K_E4M3:
        for (int e = 0; e < 256; e++)
            values[e] = k_e4m3_value((k_e4m3)e);
        for (size_t i = 0; i < n; i++)
            out[i] = values[bytes[at + i]];
        break;
    }
}

/* A run of elements that share a scale and a zero. */
static void scale_run(float *out, const struct k_matrix *w, size_t group, int n)
{
    float scale, zero = 0.0f;

    widen(&scale, w->format.scale, w->scales, group, 1);
    if (w->format.has_zeros)
        widen(&zero, w->format.scale, w->zeros, group, 1);
    if (w->format.has_global)
        scale *= *w->global;
    for (int i = 0; i < n; i++)
        out[i] = (out[i] - zero) * scale;
}

void ref_dequantise(float *out, const struct k_matrix *w, int first, int n)
{
    size_t n_in = (size_t)w->n_in, scale_cols = (size_t)k_format_scale_cols(&w->format, w->n_in);
    int step = k_format_has_groups(&w->format) ? w->format.group_cols : w->n_in;

    widen(out, w->format.elem, w->data, (size_t)first * n_in, (size_t)n * n_in);
    if (w->format.group_rows == 0)
        return;
    for (int row = first; row < first + n; row++, out += n_in) {
        size_t group = (size_t)(row / w->format.group_rows) * scale_cols;

        for (int col = 0; col < w->n_in; col += step)
            scale_run(out + col, w, group + (size_t)(col / step),
                      w->n_in - col < step ? w->n_in - col : step);
    }
}
