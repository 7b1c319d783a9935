/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: ref_multiply() is the product that kernels.h describes, in each of its kinds. Method: small
 * cases whose result is written down by other means: unit matrices, sums in closed form, and the
 * long way round (product, then norm by its definition). */
#include <math.h>

#include "kernels/kernels.h"
#include "tests/tap.h"

enum { IN = 32, OUT = 48, N = 3 };

static bool near(double got, double want)
{
    return fabs(got - want) <= 1e-5 * (fabs(want) + 1e-3);
}

/* w[row][col] = row == col, scaled by 2: y is x twice, and 0 behind it. */
static void test_unit(void)
{
    static float w[OUT * IN], scales[OUT], x[N * IN], y[N * OUT], bias[OUT];
    struct k_matrix m = {
        .data = w, .scales = scales, .format = k_format_by_row(K_BF16), .n_out = OUT, .n_in = IN};
    struct k_product p = {.kind = K_PRODUCT_PLAIN, .x = x, .w = &m, .bias = bias, .y = y};
    bool good = true;

    for (int i = 0; i < OUT; i++) {
        scales[i] = 2.0f;
        bias[i] = (float)i;
        if (i < IN)
            w[i * IN + i] = 1.0f;
    }
    for (int i = 0; i < N * IN; i++)
        x[i] = (float)(i % 7) - 3.0f;
    ref_multiply(&p, N);
    for (int c = 0; c < N; c++) {
        for (int i = 0; i < OUT; i++)
            good = good &&
                   near((double)y[c * OUT + i], (i < IN ? 2.0 * (double)x[c * IN + i] : 0.0) + i);
    }
    ok(good, "a unit matrix with scales and a bias");
}

/* RMS norm by halves: x times the norm's weights, with the parts of its squares, against the norm
 * by its definition and a plain product. */
static void test_norm(void)
{
    static float w[OUT * IN], x[N * IN], norm[IN], halves[N * IN], sums[N * 2], y[N * OUT];
    struct k_matrix m = {.data = w, .n_out = OUT, .n_in = IN};
    struct k_product p = {.kind = K_PRODUCT_FLOAT,
                          .x = halves,
                          .w = &m,
                          .sums_in = sums,
                          .n_sums = 2,
                          .eps = 1e-5f,
                          .y = y};
    bool good = true;

    for (int i = 0; i < OUT * IN; i++)
        w[i] = (float)(i * 37 % 23) / 11.0f - 1.0f;
    for (int i = 0; i < N * IN; i++)
        x[i] = (float)(i * 13 % 29) / 7.0f - 2.0f;
    for (int i = 0; i < IN; i++)
        norm[i] = 0.5f + (float)i / IN;
    for (int i = 0; i < N * IN; i++) {
        halves[i] = x[i] * norm[i % IN];
        sums[i / 16] += x[i] * x[i];
    }
    ref_multiply(&p, N);
    for (int c = 0; c < N; c++) {
        double square = 0.0;

        for (int k = 0; k < IN; k++)
            square += (double)x[c * IN + k] * (double)x[c * IN + k];
        for (int i = 0; i < OUT; i++) {
            double want = 0.0;

            for (int k = 0; k < IN; k++)
                want += (double)w[i * IN + k] * (double)norm[k] * (double)x[c * IN + k] /
                        sqrt(square / IN + 1e-5);
            good = good && near((double)y[c * OUT + i], want);
        }
    }
    ok(good, "RMS norm by halves is RMS norm");
}

/* Rows of ones: each product is the sum of x; half of them the gate's. */
static void test_gate(void)
{
    static float w[OUT * IN], x[IN], y[OUT / 2];
    struct k_matrix m = {.data = w, .n_out = OUT, .n_in = IN};
    struct k_product p = {.kind = K_PRODUCT_GATED, .x = x, .w = &m, .y = y};

    for (int i = 0; i < OUT * IN; i++)
        w[i] = i < OUT / 2 * IN ? 1.0f : -3.0f;
    x[0] = 0.25f;
    x[IN - 1] = 0.5f;
    ref_multiply(&p, 1);
    ok(near((double)y[0], 0.75 / (1.0 + exp(-0.75)) * -2.25) &&
           near((double)y[OUT / 2 - 1], (double)y[0]),
       "silu of the first half times the second");
}

static void test_residual(void)
{
    static float w[OUT * IN], x[IN], residual[OUT], norm[OUT], normed[OUT], sums[3];
    struct k_matrix m = {.data = w, .n_out = OUT, .n_in = IN};
    struct k_product p = {.kind = K_PRODUCT_RESIDUAL,
                          .x = x,
                          .w = &m,
                          .residual = residual,
                          .norm = norm,
                          .normed = normed,
                          .sums_out = sums};

    for (int i = 0; i < OUT; i++) {
        w[i * IN] = 1.0f;
        residual[i] = (float)i;
        norm[i] = 0.5f;
    }
    x[0] = 2.0f;
    ref_multiply(&p, 1);
    ok(near((double)residual[5], 7.0) && near((double)normed[5], 3.5),
       "onto the residual, and normed");
    /* 2^2 + .. + 17^2, 18^2 + .. + 33^2, 34^2 + .. + 49^2 */
    ok(near((double)sums[0], 1784.0) && near((double)sums[1], 10744.0) &&
           near((double)sums[2], 27896.0),
       "squares in parts of sixteen");
}

static void test_embed(void)
{
    static float table[4 * 32], x[2 * 32], normed[2 * 32], sums[4], norm[32];
    int32_t ids[2] = {3, 1};

    for (int i = 0; i < 4 * 32; i++)
        table[i] = (float)(i / 32);
    for (int i = 0; i < 32; i++)
        norm[i] = 2.0f;
    ref_embed_normed(x, normed, sums, table, ids, norm, 2, 32);
    ok(near((double)x[31], 3.0) && near((double)x[32], 1.0) && near((double)normed[0], 6.0),
       "rows of the table");
    ok(near((double)sums[0], 144.0) && near((double)sums[3], 16.0), "and their squares");
}

int main(void)
{
    test_unit();
    test_norm();
    test_gate();
    test_residual();
    test_embed();
    return tap_done();
}
