/* SPDX-License-Identifier: Apache-2.0
 *
 * k_op against ref_op for the operations on rows, over a table of shapes; and the products of
 * the cuda device against float64. Limits: results are rounded to bfloat16 once, 2^-9 relative:
 * NMSE about 3e-6, worst 4e-3 of the largest. */
#include "tests/kernel/gpu.h"

static const struct {
    int n, dim;
} shapes[] = {{1, 2},    {3, 37},   {7, 60},    {5, 256},    {2, 1000},
              {257, 64}, {9, 4096}, {64, 8192}, {259, 4096}, {258, 14336}};

static void check_norms(int n, int dim)
{
    size_t size = (size_t)n * (size_t)dim;
    float *x = gpu_random(size, 3.0f), *delta = gpu_random(size, 1.0f), *want = malloc(size * 4);
    float *weight = gpu_random((size_t)dim, 2.0f), *x_after = malloc(size * 4), *got;
    float *dx = gpu_array(x, size * 4);
    k_bf16 *dw = gpu_bf16(weight, (size_t)dim), *dd = gpu_bf16(delta, size);
    k_bf16 *out = gpu_array(NULL, size * 2), *again = gpu_array(NULL, size * 2);
    k_stream s = device_cuda_stream(gpu);
    char name[80];

    snprintf(name, sizeof name, "rmsnorm %d x %d", n, dim);
    ref_rmsnorm(want, x, weight, 1e-5f, n, dim);
    gpu_must(k_rmsnorm(out, dx, dw, 1e-5f, n, dim, s));
    gpu_must(k_rmsnorm(again, dx, dw, 1e-5f, n, dim, s));
    got = gpu_floats(out, size);
    gpu_compare(got, want, size, 5e-6, 4.1e-3, name);
    free(want);
    want = gpu_floats(again, size);
    ok(memcmp(got, want, size * 4) == 0, "%s: twice the same bits", name);
    free(got);

    snprintf(name, sizeof name, "add_rmsnorm %d x %d", n, dim);
    ref_add_rmsnorm(want, x, delta, weight, 1e-5f, n, dim);
    gpu_must(k_add_rmsnorm(out, dx, dd, dw, 1e-5f, n, dim, s));
    got = gpu_floats(out, size);
    gpu_compare(got, want, size, 5e-6, 4.1e-3, name);
    ok(gpu_get(x_after, dx, size * 4) && memcmp(x_after, x, size * 4) == 0,
       "%s: the residual is exact", name);
    free(x), free(delta), free(want), free(weight), free(x_after), free(got);
}

static void check_copies(int n, int dim)
{
    size_t size = (size_t)n * (size_t)dim;
    int n_rows = n / 2 + 1;
    float *x = gpu_random(size, 3.0f), *delta = gpu_random(size, 1.0f), *want = malloc(size * 4);
    float *got = malloc(size * 4);
    int32_t *idx = malloc((size_t)n * 4);
    float *dx = gpu_array(x, size * 4), *out = gpu_array(NULL, size * 4);
    k_bf16 *dd = gpu_bf16(delta, size);
    k_stream s = device_cuda_stream(gpu);
    int32_t *didx;

    for (int i = 0; i < n; i++)
        idx[i] = (i * 7 + 3) % n;
    didx = gpu_array(idx, (size_t)n * 4);
    ref_embed(want, delta, idx, n, dim);
    gpu_must(k_embed(out, dd, didx, NULL, n, dim, s));
    ok(gpu_get(got, out, size * 4) && memcmp(got, want, size * 4) == 0, "embed %d x %d", n, dim);
    ref_gather_add(want, x, delta, 0.75f, idx, n_rows, dim);
    gpu_must(k_gather_add(out, dx, dd, 0.75f, didx, n_rows, dim, s));
    ok(gpu_get(got, out, size * 4), "guard bands are whole");
    gpu_compare(got, want, (size_t)n_rows * (size_t)dim, 1e-12, 1e-6, "gather_add");
    free(x), free(delta), free(want), free(got), free(idx);
}

static void check_silu(int n, int dim)
{
    size_t size = (size_t)n * (size_t)dim;
    float *in = gpu_random(2 * size, 8.0f), *want = malloc(size * 4), *got;
    k_bf16 *din = gpu_bf16(in, 2 * size), *out = gpu_array(NULL, size * 2);
    char name[80];

    snprintf(name, sizeof name, "silu_mul %d x %d", n, dim);
    ref_silu_mul(want, in, n, dim);
    gpu_must(k_silu_mul(out, din, n, dim, device_cuda_stream(gpu)));
    got = gpu_floats(out, size);
    gpu_compare(got, want, size, 5e-6, 4.1e-3, name);
    free(in), free(want), free(got);
}

/* Rows beyond n may be written up to the device's multiple; they are no part of the result. */
static void check_product(int n, int n_out, int n_in, bool with_bias)
{
    size_t rows = (size_t)(n + gpu->rows_multiple - 1) / (size_t)gpu->rows_multiple *
                  (size_t)gpu->rows_multiple;
    size_t out_size = (size_t)n * (size_t)n_out;
    float *x = gpu_random(rows * (size_t)n_in, 1.0f), *bias = gpu_random((size_t)n_out, 1.0f);
    float *w = gpu_random((size_t)n_out * (size_t)n_in, 1.0f), *want = malloc(out_size * 4), *got;
    k_bf16 *dx = gpu_bf16(x, rows * (size_t)n_in), *db = gpu_bf16(bias, (size_t)n_out);
    k_bf16 *dw = gpu_bf16(w, (size_t)n_out * (size_t)n_in);
    k_bf16 *out = gpu_array(NULL, rows * (size_t)n_out * 2);
    float *logits = gpu_array(NULL, rows * (size_t)n_out * 4);
    struct k_matrix m = {.data = dw, .n_out = n_out, .n_in = n_in};
    const struct device_rows in = {.data = dx};
    char name[80];

    for (int r = 0; r < n; r++) {
        for (int o = 0; o < n_out; o++) {
            double sum = 0.0;

            for (int i = 0; i < n_in; i++)
                sum += (double)x[r * n_in + i] * (double)w[o * n_in + i];
            want[r * n_out + o] = (float)(sum + (with_bias ? (double)bias[o] : 0.0));
        }
    }
    snprintf(name, sizeof name, "matmul %d x %d x %d%s", n, n_out, n_in,
             with_bias ? " + bias" : "");
    gpu->ops->matmul(gpu, out, &in, &m, with_bias ? db : NULL, n);
    got = gpu_floats(out, rows * (size_t)n_out);
    gpu_compare(got, want, out_size, 5e-6, 4.1e-3, name);
    if (!with_bias) {
        gpu->ops->matmul_float(gpu, logits, &in, &m, n);
        free(got);
        got = malloc(rows * (size_t)n_out * 4);
        ok(gpu_get(got, logits, rows * (size_t)n_out * 4), "guard bands are whole");
        gpu_compare(got, want, out_size, 1e-10, 1e-5, name);
    }
    free(x), free(bias), free(w), free(want), free(got);
}

int main(void)
{
    gpu_open();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_norms(shapes[i].n, shapes[i].dim);
        check_copies(shapes[i].n, shapes[i].dim);
        check_silu(shapes[i].n, shapes[i].dim);
    }
    check_product(1, 131, 60, false);
    check_product(3, 84, 60, false);
    check_product(9, 60, 37, true);
    check_product(33, 320, 64, false);
    check_product(100, 96, 48, true);
    check_product(300, 512, 1024, false);
    device_close(gpu);
    return tap_done();
}
