/* SPDX-License-Identifier: Apache-2.0
 *
 * References of the operations that treat each row by itself. Sums over a row are float64, so that
 * a kernel's error can be measured against them. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

void ref_embed(float *x, const float *table, const int32_t *ids, int n, int dim)
{
    for (int token = 0; token < n; token++)
        memcpy(x + (size_t)token * dim, table + (size_t)ids[token] * dim, (size_t)dim * sizeof *x);
}

/* The sum is float64, so that the reference's own error does not count in a kernel's limit. */
void ref_rmsnorm(float *out, const float *x, const float *weight, float eps, int n, int dim)
{
    for (int token = 0; token < n; token++, x += dim, out += dim) {
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

/* Only sampled rows continue after the last layer. */
void ref_gather_add(float *out, const float *x, const float *delta, float scale,
                    const int32_t *token_idx, int n_rows, int dim)
{
    for (int row_idx = 0; row_idx < n_rows; row_idx++, out += dim) {
        size_t at = (size_t)token_idx[row_idx] * dim;

        for (int d = 0; d < dim; d++)
            out[d] = x[at + d] + scale * delta[at + d];
    }
}

void ref_silu_mul(float *out, const float *in, int n, int ff_dim)
{
    for (int token = 0; token < n; token++, in += 2 * (size_t)ff_dim, out += ff_dim) {
        for (int d = 0; d < ff_dim; d++)
            out[d] = in[d] / (1.0f + expf(-in[d])) * in[ff_dim + d];
    }
}

/* The activations of kernels.h; GELU in its exact form and in its tanh approximation. */
static float activation(float x, enum k_activation kind)
{
    float positive = fmaxf(x, 0.0f);

    switch (kind) {
    case K_SILU: return x / (1.0f + expf(-x));
    case K_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case K_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case K_RELU: return positive;
    case K_RELU_2: return positive * positive;
    case K_SWISH_CLAMPED: x = fminf(x, K_SWISH_LIMIT); return x / (1.0f + expf(-K_SWISH_SLOPE * x));
    }
    return x;
}

void ref_activate(float *out, const float *in, enum k_activation kind, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = activation(in[i], kind);
}

void ref_xielu(float *out, const float *in, const struct k_xielu *curve, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = in[i];

        if (x > 0.0f)
            out[i] = curve->positive * x * x;
        else
            out[i] = curve->negative * (expm1f(fminf(x, curve->least)) - x);
        out[i] += curve->linear * x;
    }
}

void ref_gate_limited(float *out, const float *in, float limit, int n, int ff_dim)
{
    for (int token = 0; token < n; token++, in += 2 * (size_t)ff_dim, out += ff_dim) {
        for (int d = 0; d < ff_dim; d++)
            out[d] = fminf(activation(in[d], K_SILU), limit) *
                     fminf(fmaxf(in[ff_dim + d], -limit), limit);
    }
}

void ref_gate(float *out, const float *in, enum k_activation kind, int n, int ff_dim)
{
    for (int token = 0; token < n; token++, in += 2 * (size_t)ff_dim, out += ff_dim) {
        for (int d = 0; d < ff_dim; d++) {
            float up = in[ff_dim + d];

            if (kind == K_SWISH_CLAMPED)
                up = fminf(fmaxf(up, -K_SWISH_LIMIT), K_SWISH_LIMIT) + 1.0f;
            out[d] = activation(in[d], kind) * up;
        }
    }
}

void ref_gate_by(float *out, const float *in, const struct k_factor *by, enum k_activation kind,
                 int n)
{
    const float *factor = by->rows;

    for (int token = 0; token < n; token++, in += by->width, out += by->width) {
        for (int d = 0; d < by->width; d++)
            out[d] = activation(in[d], kind) * factor[d];
        factor += by->stride;
    }
}

/* Two passes: the variance is a sum of squared differences from the mean. */
static void layer_norm(float *out, const float *x, const struct k_norm *norm, int dim)
{
    const float *weight = norm->weight, *bias = norm->bias;
    double sum = 0.0, squares = 0.0;
    float mean, scale;

    for (int elem = 0; elem < dim; elem++)
        sum += (double)x[elem];
    for (int elem = 0; elem < dim; elem++)
        squares += ((double)x[elem] - sum / dim) * ((double)x[elem] - sum / dim);
    mean = (float)(sum / dim);
    scale = (float)(1.0 / sqrt(squares / dim + (double)norm->eps));
    for (int elem = 0; elem < dim; elem++) {
        out[elem] = (x[elem] - mean) * scale * weight[elem];
        if (bias != NULL)
            out[elem] += bias[elem];
    }
}

/* One row; K_NORM_NONE only converts. */
static void norm_row(float *out, const float *x, const struct k_norm *norm, int dim)
{
    switch (norm->kind) {
    case K_NORM_RMS: ref_rmsnorm(out, x, norm->weight, norm->eps, 1, dim); break;
    case K_NORM_LAYER: layer_norm(out, x, norm, dim); break;
    case K_NORM_NONE: memmove(out, x, (size_t)dim * sizeof *x); break;
    }
}

void ref_norm(float *out, const float *x, const struct k_norm *norm, int n, int dim)
{
    for (int token = 0; token < n; token++, x += dim, out += dim)
        norm_row(out, x, norm, dim);
}

void ref_norm_within(float *x, int stride, const struct k_norm *norm, int n, int dim)
{
    for (int token = 0; token < n; token++, x += stride)
        norm_row(x, x, norm, dim);
}

/* The upper half of a float's bits is a bf16 number. Each part takes eight of the 24 bits of the
 * rest, so three are enough, and the differences are exact. */
static void put_exact(float *to, float value)
{
    for (int i = 0; i < 3; i++) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof bits);
        bits &= 0xffff0000U;
        memcpy(&to[i], &bits, sizeof bits);
        value -= to[i];
    }
}

static float sum_of_squares(const float *x, const struct k_split_norm *norm)
{
    double sum = 0.0;

    for (int i = 0; i < norm->width && norm->counts; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)sum;
}

void ref_squares(float *squares, const float *x, const struct k_split_norms *s, int n)
{
    memset(squares, 0, (size_t)n * K_SQUARES((size_t)s->n_ranks) * sizeof *squares);
    for (int token = 0; token < n; token++, x += s->stride, squares += K_SQUARES(s->n_ranks)) {
        put_exact(squares + s->rank * 8, sum_of_squares(x, &s->q));
        put_exact(squares + s->rank * 8 + 4, sum_of_squares(x + s->q.width, &s->k));
    }
}

/* squares: those of the first rank. */
static void norm_by_squares(float *x, const float *squares, const struct k_split_norm *norm,
                            const struct k_split_norms *s)
{
    const float *weight = norm->weight;
    float sum = 0.0f, scale;

    for (int i = 0; i < s->n_ranks; i++, squares += 8)
        sum += squares[0] + squares[1] + squares[2];
    scale = 1.0f / sqrtf(sum / (float)norm->whole + s->eps);
    for (int i = 0; i < norm->width; i++)
        x[i] = x[i] * scale * weight[i];
}

void ref_norm_squares(float *x, const float *squares, const struct k_split_norms *s, int n)
{
    for (int token = 0; token < n; token++, x += s->stride, squares += K_SQUARES(s->n_ranks)) {
        norm_by_squares(x, squares, &s->q, s);
        norm_by_squares(x + s->q.width, squares + 4, &s->k, s);
    }
}

void ref_add(float *x, const float *delta, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] += scale * delta[i];
}

void ref_add_normed(float *out, float *x, const float *delta, const struct k_adding *how, int n,
                    int dim)
{
    for (int token = 0; token < n; token++, x += dim, delta += dim) {
        double sum = 0.0;

        for (int d = 0; d < dim; d++)
            sum += (double)delta[d] * (double)delta[d];
        for (int d = 0; d < dim; d++) {
            float y = delta[d];

            if (how->after.kind == K_NORM_RMS)
                y *= (float)(1.0 / sqrt(sum / dim + (double)how->after.eps)) *
                     ((const float *)how->after.weight)[d];
            x[d] = (x[d] + how->by * y) * how->scale;
        }
        if (out != NULL)
            norm_row(out + (size_t)token * dim, x, &how->norm, dim);
    }
}

/* Run by run: layer l of a token has elements l * width and on, of x and of its row of the
 * table. */
void ref_embed_layers(float *x, const struct k_layer_embeds *e, const int32_t *ids, int n)
{
    const float *table = e->table;

    for (int token = 0; token < n; token++) {
        const float *row = table + (size_t)ids[token] * (size_t)e->n_layers * (size_t)e->width;

        for (int layer = 0; layer < e->n_layers; layer++, x += e->width, row += e->width) {
            ref_rmsnorm(x, x, e->weight, e->eps, 1, e->width);
            for (int d = 0; d < e->width; d++)
                x[d] = (x[d] + e->table_scale * row[d]) * e->scale;
        }
    }
}

void ref_grow(float *x, int stride, int width, const struct k_growth *g, const int32_t *pos, int n)
{
    for (int token = 0; token < n; token++, x += stride) {
        float by = 1.0f + g->beta * logf(1.0f + (float)((pos[token] + g->first) / g->period));

        for (int i = 0; i < width; i++)
            x[i] *= by;
    }
}

/* Learned positions begin at row `first` of their table in some models. */
void ref_place(float *x, float scale, const float *positions, const int32_t *pos, int first, int n,
               int dim)
{
    for (int token = 0; token < n; token++, x += dim) {
        const float *row =
            positions == NULL ? NULL : positions + (size_t)(pos[token] + first) * dim;

        for (int elem = 0; elem < dim; elem++) {
            x[elem] *= scale;
            if (row != NULL)
                x[elem] += row[elem];
        }
    }
}

/* In this order: bias, scale, soft cap. */
void ref_soften(float *x, const struct k_softening *how, int n, int width)
{
    const float *bias = how->bias;

    for (size_t i = 0; i < (size_t)n * (size_t)width; i++) {
        if (bias != NULL)
            x[i] += bias[i % (size_t)width];
        x[i] *= how->scale;
        if (how->cap > 0.0f)
            x[i] = how->cap * tanhf(x[i] / how->cap);
    }
}
