/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: portable products of few rows with codes in records, integers and floats of 4 bits, without
 * a GPU. Method: the kernel played on the host (play_portable.h) against the reference, with random
 * codes, scales, zero points and scales of rows; all kinds of products, one tile of rows of x and
 * two, fewer records than warps and more. Differences are those of another order of sums and of
 * bfloat16's rounding. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/packed.h"
#include "tests/kernel/played.h"
#include "tests/kernel/values.h"
#include "tests/tap.h"

#define ROWS_MAX 20

struct shape {
    int n_out, n_in;
};

/* n numbers that bfloat16 has, and the same as bfloat16. */
static void fill(float *floats, k_bf16 *halves, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        halves[i] = round_bf16(uniform() * scale);
        floats[i] = widen(halves[i]);
    }
}

/* Random records, and in w what they hold. */
static struct k_matrix random_records(float *w, struct k_format format, struct shape s)
{
    const struct k_packing packing = k_packing_of(&format);
    size_t strip_bytes = k_packed_strip_bytes(&packing, s.n_in), n = (size_t)s.n_in * 16;
    size_t n_numbers = n / (size_t)packing.group;
    uint8_t *data = malloc(k_packed_bytes(&packing, s.n_out, s.n_in));
    uint8_t *codes = malloc(n), *zeros = malloc(n_numbers);
    uint16_t *scales = malloc(2 * n_numbers);
    float *row_scales = malloc((size_t)s.n_out * sizeof *row_scales);
    const struct k_unpacked from = {codes, (uint8_t *)scales, zeros};
    float half = packing.bits == 8 ? 127.49f : 7.99f; /* of the codes' range */
    const struct k_matrix m = {
        .data = data, .scales = row_scales, .format = format, .n_out = s.n_out, .n_in = s.n_in};

    for (int row = 0; row < s.n_out; row += 16) {
        for (size_t i = 0; i < n; i++)
            codes[i] = (uint8_t)((uniform() + 1.0f) * half);
        for (size_t i = 0; i < n_numbers; i++) {
            scales[i] = round_bf16(0.16f / half * uniform());
            if (packing.is_float) /* some of the smallest and the largest */
                ((uint8_t *)scales)[i] =
                    (uint8_t)(i % 7 == 0 ? i % 14 / 7 * 255 : 200 + i * 29 % 41);
            zeros[i] = (uint8_t)((uniform() + 1.0f) * (half + 0.5f));
        }
        k_pack_strip(data + (size_t)(row / 16) * strip_bytes, &packing, &from, 16, s.n_in);
    }
    for (int row = 0; row < s.n_out; row++)
        row_scales[row] = 0.01f * uniform();
    ref_dequantise(w, &m, 0, s.n_out);
    free(codes), free(zeros), free(scales);
    return m;
}

/* The largest difference, over what sums of such a length are. */
static double apart(const float *want, const void *got, bool is_float, size_t n, double of)
{
    double most = 0.0;

    for (size_t i = 0; i < n; i++) {
        float g = is_float ? ((const float *)got)[i] : widen(((const k_bf16 *)got)[i]);
        double d = fabs((double)g - (double)want[i]) / (fabs((double)want[i]) + of);

        most = d > most || isnan(d) ? d : most;
    }
    return most;
}

struct arrays {
    float x[ROWS_MAX * 2048], bias[512], norm[512], residual[ROWS_MAX * 512];
    float residual2[ROWS_MAX * 512], y[ROWS_MAX * 512], normed[ROWS_MAX * 512];
    float sums[ROWS_MAX * 32], sums2[ROWS_MAX * 32], sums_in[ROWS_MAX * 8];
    float got[ROWS_MAX * 512];
    k_bf16 x16[ROWS_MAX * 2048], bias16[512], norm16[512], normed16[ROWS_MAX * 512];
};

static void check(enum k_product_kind kind, struct k_format format, struct shape s, int n)
{
    static struct arrays a;
    float *w = malloc((size_t)s.n_out * (size_t)s.n_in * sizeof *w);
    struct k_matrix packed = random_records(w, format, s);
    const struct k_matrix plain = {.data = w, .n_out = s.n_out, .n_in = s.n_in};
    size_t n_y = (size_t)n * (size_t)s.n_out / (kind == K_PRODUCT_GATED ? 2 : 1);
    struct k_product want = {.kind = kind,
                             .x = a.x,
                             .w = &plain,
                             .bias = a.bias,
                             .sums_in = a.sums_in,
                             .n_sums = 8,
                             .eps = 1e-5f,
                             .y = a.y,
                             .residual = a.residual,
                             .norm = a.norm,
                             .normed = a.normed,
                             .sums_out = a.sums};
    struct k_product got = want;
    double error;

    fill(a.x, a.x16, (size_t)n * (size_t)s.n_in, 1.0f);
    fill(a.bias, a.bias16, (size_t)s.n_out, 0.1f);
    fill(a.norm, a.norm16, (size_t)s.n_out, 1.0f);
    for (size_t i = 0; i < (size_t)n * 8; i++)
        a.sums_in[i] = 50.0f + 10.0f * uniform();
    for (size_t i = 0; i < (size_t)n * (size_t)s.n_out; i++)
        a.residual[i] = a.residual2[i] = uniform();
    got.x = a.x16, got.w = &packed, got.bias = a.bias16, got.norm = a.norm16;
    got.y = a.got, got.residual = a.residual2, got.normed = a.normed16, got.sums_out = a.sums2;
    ref_multiply(&want, n);
    if (!ok(played_multiply(&got, n) == 0, "plays to its end"))
        return;
    if (kind == K_PRODUCT_RESIDUAL)
        error = fmax(apart(a.residual, a.residual2, true, n_y, 0.1),
                     fmax(apart(a.normed, a.normed16, false, n_y, 0.1),
                          apart(a.sums, a.sums2, true, n_y / 16, 1.0)));
    else
        error = apart(a.y, a.got, kind == K_PRODUCT_FLOAT, n_y, 0.1);
    ok(error < (kind == K_PRODUCT_FLOAT ? 1e-4 : 5e-3),
       "%s in groups of %d%s, kind %d, %d x %d, %d rows: within %.1e",
       format.elem == K_FLOAT4 ? "floats"
       : format.elem == K_INT8 ? "bytes"
                               : "integers",
       format.group_cols, format.has_zeros ? " with zeros" : "", (int)kind, s.n_out, s.n_in, n,
       error);
    free(w), free(packed.data), free((void *)(uintptr_t)packed.scales);
}

int main(void)
{
    const struct k_format formats[] = {k_format_float4(16),
                                       k_format_float4(32),
                                       k_format_packed(K_BF16, 128, false),
                                       k_format_packed(K_BF16, 32, true),
                                       k_format_int8(K_BF16, 128, false),
                                       k_format_int8(K_F16, 32, true)};
    static const struct shape shapes[] = {{32, 128}, {96, 640}, {64, 2048}};
    static const int rows[] = {1, 7, 9, 20};

    values_seed = tap_seed(1);
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            for (int kind = K_PRODUCT_PLAIN; kind <= K_PRODUCT_RESIDUAL; kind++)
                check((enum k_product_kind)kind, formats[f], shapes[i],
                      rows[((size_t)kind + i + f) % 4]);
        }
    }
    return tap_done();
}
