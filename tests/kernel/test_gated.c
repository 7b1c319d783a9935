/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: products with gate and up, and the gate, in one kernel (gated.h). Method: against sums of
 * double precision on the host, for a last tile of outputs that is not full, one, two and many
 * tiles of rows. A row has the same bits alone and among others; a NaN stays in its row; the
 * kernel's own product is nearer to the sums than the bf16 results of a product would be. */
#include "kernels/gated.h"
#include "tests/kernel/gpu.h"

#define SMS 132

static const struct shape {
    int n_out, n_in, n; /* n_out: of gate, and of up */
} shapes[] = {{8, 64, 1},      {72, 128, 65},   {200, 448, 129},  {264, 320, 300},
              {64, 4096, 257}, {520, 192, 600}, {3072, 128, 2100}};

/* The output of a row of x. */
static double exact(const float *w, const float *x, struct shape s, int out)
{
    const float *gate = w + (size_t)out * (size_t)s.n_in;
    const float *up = gate + (size_t)s.n_out * (size_t)s.n_in;
    double g = 0.0, u = 0.0;

    for (int i = 0; i < s.n_in; i++) {
        g += (double)x[i] * (double)gate[i];
        u += (double)x[i] * (double)up[i];
    }
    return g / (1.0 + exp(-g)) * u;
}

static void check(struct shape s)
{
    size_t n_x = (size_t)s.n * (size_t)s.n_in, n_y = (size_t)s.n * (size_t)s.n_out;
    size_t n_w = 2 * (size_t)s.n_out * (size_t)s.n_in;
    float *x = gpu_random(n_x, 1.0f), *w = gpu_random(n_w, 2.0f / sqrtf((float)s.n_in));
    k_bf16 *dev_x, *y = gpu_array(NULL, n_y * sizeof *y), *one;
    struct k_matrix m = {.n_out = 2 * s.n_out, .n_in = s.n_in, .format = k_format_bare(K_BF16)};
    int nan_row = s.n > 200 ? 77 : -1, n_wrong = 0;
    double worst = 0.0;
    float *got, *alone;

    if (nan_row >= 0)
        x[(size_t)nan_row * (size_t)s.n_in + 5] = NAN;
    dev_x = gpu_bf16(x, n_x);
    m.data = gpu_bf16(w, n_w);
    ok(k_multiply_gated_takes(&m), "%d x %d is taken", s.n_out, s.n_in);
    gpu_must(k_multiply_gated(y, dev_x, &m, s.n, SMS, device_cuda_stream(gpu)));
    got = gpu_floats(y, n_y);
    for (int token = 0; token<s.n; token += s.n_out> 1000 && token > 300 ? 61 : 1) {
        for (int out = 0; out < s.n_out; out++) {
            float is = got[(size_t)token * (size_t)s.n_out + (size_t)out];
            double want = exact(w, x + (size_t)token * (size_t)s.n_in, s, out), error;

            if (token == nan_row) {
                n_wrong += !isnan(is);
                continue;
            }
            error = fabs((double)is - want) / (0.01 + fabs(want));
            worst = fmax(worst, error);
            n_wrong += !(error < 6e-3); /* half a bit of bf16 is 3.9e-3 */
        }
    }
    ok(n_wrong == 0, "%d rows by %d x %d: %d are wrong, the largest error is %.1e", s.n, s.n_out,
       s.n_in, n_wrong, worst);
    one = gpu_array(NULL, (size_t)s.n_out * sizeof *one);
    gpu_must(k_multiply_gated(one, dev_x + (size_t)(s.n - 1) * (size_t)s.n_in, &m, 1, SMS,
                              device_cuda_stream(gpu)));
    alone = gpu_floats(one, (size_t)s.n_out);
    ok(memcmp(alone, got + (size_t)(s.n - 1) * (size_t)s.n_out, (size_t)s.n_out * 4) == 0,
       "the last row has the same bits alone");
    free(x), free(w), free(got), free(alone);
}

/* Gates of any size: silu is 0 far below 0, and has no infinity above. */
static void check_far(void)
{
    enum { N_IN = 64, N_OUT = 8, N = 4 };
    static const float gates[N] = {-200.0f, -88.0f, 90.0f, 32768.0f};
    float x[N * N_IN] = {0}, w[2 * N_OUT * N_IN] = {0}, *got;
    k_bf16 *y = gpu_array(NULL, (size_t)N * N_OUT * sizeof *y), *dev;
    struct k_matrix m = {.n_out = 2 * N_OUT, .n_in = N_IN, .format = k_format_bare(K_BF16)};
    bool is_right = true;

    for (int i = 0; i < N; i++)
        x[i * N_IN] = gates[i], x[i * N_IN + 1] = 1.0f;
    for (int i = 0; i < N_OUT; i++)
        w[i * N_IN] = 1.0f, w[(N_OUT + i) * N_IN + 1] = 1.0f; /* the gate is x[0], up is x[1] */
    dev = gpu_bf16(x, (size_t)N * N_IN);
    m.data = gpu_bf16(w, (size_t)2 * N_OUT * N_IN);
    gpu_must(k_multiply_gated(y, dev, &m, N, SMS, device_cuda_stream(gpu)));
    got = gpu_floats(y, (size_t)N * N_OUT);
    for (int i = 0; i < N * N_OUT; i++) {
        float gate = gates[i / N_OUT];

        is_right =
            is_right && (gate < 0.0f ? fabsf(got[i]) < 1e-30f : got[i] == x[i / N_OUT * N_IN]);
    }
    ok(is_right, "gates of -200, -88, 90 and 32768");
    free(got);
}

int main(void)
{
    struct k_matrix odd = {.n_out = 24, .n_in = 64, .format = k_format_bare(K_BF16)};

    gpu_open();
    if (!k_multiply_gated_takes(
            &(struct k_matrix){.n_out = 16, .n_in = 64, .format = k_format_bare(K_BF16)}))
        tap_skip_all("only Hopper's kernels have this product");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (gpu_has_turn())
            check(shapes[i]);
    }
    check_far();
    ok(!k_multiply_gated_takes(&odd), "12 outputs are not taken");
    odd.n_out = 32, odd.n_in = 96;
    ok(!k_multiply_gated_takes(&odd), "nor are 96 inputs");
    return tap_done();
}
