/* SPDX-License-Identifier: Apache-2.0
 *
 * Results in e4m3 against the references. What is rounded from bfloat16 has the same bits; what
 * is computed first may round to a neighbour now and then, so there the limit is the mean. */
#include "kernels/e4m3.h"
#include "tests/kernel/gpu.h"

static const struct {
    int n, dim;
} shapes[] = {{1, 16},     {3, 48},    {7, 208},   {5, 256},   {257, 64},   {9, 4096},
              {300, 4096}, {64, 8192}, {3, 14336}, {2, 53248}, {260, 8192}, {260, 14336}};

/* A result on both sides. */
struct result {
    struct k_quantised host, dev;
    size_t size, n_scales;
    int n, dim;
};

static struct result result_of(int n, int dim, int stride, const float *x_scale)
{
    struct result r = {.n = n, .dim = dim, .size = (size_t)n * (size_t)dim};

    r.n_scales = stride == 0 ? (size_t)n : (size_t)((dim + 127) / 128) * (size_t)stride;
    r.host = (struct k_quantised){.data = malloc(r.size),
                                  .scales = calloc(r.n_scales, 4),
                                  .x_scale = x_scale,
                                  .stride = stride};
    r.dev = r.host;
    r.dev.data = gpu_array(NULL, r.size);
    r.dev.scales = gpu_array(r.host.scales, r.n_scales * 4);
    if (x_scale != NULL)
        r.dev.x_scale = gpu_array(x_scale, 4);
    return r;
}

static float *widen(const struct result *r, const k_e4m3 *data, const float *scales)
{
    float *f = malloc(r->size * 4);

    for (int t = 0; t < r->n; t++) {
        for (int d = 0; d < r->dim; d++) {
            size_t s = r->host.stride == 0 ? (size_t)t
                                           : (size_t)(d / 128) * (size_t)r->host.stride + (size_t)t;

            f[(size_t)t * (size_t)r->dim + (size_t)d] =
                k_e4m3_value(data[(size_t)t * (size_t)r->dim + (size_t)d]) * scales[s];
        }
    }
    return f;
}

/* The device's result against ref_quantise(want); exact asks for the same bits. */
static void compare(struct result *r, const float *want, bool exact, const char *name)
{
    k_e4m3 *data = malloc(r->size);
    float *scales = malloc(r->n_scales * 4), *a, *b;

    ref_quantise(&r->host, want, r->n, r->dim);
    ok(gpu_get(data, r->dev.data, r->size) && gpu_get(scales, r->dev.scales, r->n_scales * 4),
       "%s: guard bands are whole", name);
    if (exact) {
        ok(memcmp(scales, r->host.scales, r->n_scales * 4) == 0, "%s: the same scales", name);
        ok(memcmp(data, r->host.data, r->size) == 0, "%s: the same bits", name);
    } else {
        a = widen(r, data, scales);
        b = widen(r, r->host.data, r->host.scales);
        gpu_compare(a, b, r->size, r->size < 4096 ? 1e-4 : 1e-5, 0.08, name);
        free(a), free(b);
    }
    free(data), free(scales), free(r->host.data), free(r->host.scales);
}

static void check(int n, int dim, int stride, const float *x_scale)
{
    size_t size = (size_t)n * (size_t)dim;
    float *x = gpu_random(size, 3.0f), *delta = gpu_random(size, 1.0f), *want = malloc(size * 4);
    float *weight = gpu_random((size_t)dim, 2.0f), *in = gpu_random(2 * size, 8.0f);
    float *dx = gpu_array(x, size * 4), *after = malloc(size * 4);
    k_bf16 *dw = gpu_bf16(weight, (size_t)dim), *dd = gpu_bf16(delta, size);
    k_stream s = device_cuda_stream(gpu);
    struct result r = result_of(n, dim, stride, x_scale);
    char name[80];
    int at = snprintf(name, sizeof name, "%d x %d, %s: ", n, dim,
                      x_scale != NULL ? "given scale"
                      : stride == 0   ? "rows"
                                      : "runs");

    snprintf(name + at, sizeof name - (size_t)at, "quantise");
    gpu_must(k_quantise(&r.dev, dd, n, dim, s));
    compare(&r, delta, true, name);
    snprintf(name + at, sizeof name - (size_t)at, "rmsnorm");
    r = result_of(n, dim, stride, x_scale);
    ref_rmsnorm(want, x, weight, 1e-5f, n, dim);
    gpu_must(k_rmsnorm_e4m3(&r.dev, dx, dw, 1e-5f, n, dim, s));
    compare(&r, want, false, name);
    snprintf(name + at, sizeof name - (size_t)at, "add_rmsnorm");
    r = result_of(n, dim, stride, x_scale);
    ref_add_rmsnorm(want, x, delta, weight, 1e-5f, n, dim);
    gpu_must(k_add_rmsnorm_e4m3(&r.dev, dx, dd, dw, 1e-5f, n, dim, s));
    compare(&r, want, false, name);
    ok(gpu_get(after, dx, size * 4) && memcmp(after, x, size * 4) == 0, "%s: the residual is exact",
       name);
    snprintf(name + at, sizeof name - (size_t)at, "silu_mul");
    r = result_of(n, dim, stride, x_scale);
    ref_silu_mul(want, in, n, dim);
    gpu_must(k_silu_mul_e4m3(&r.dev, gpu_bf16(in, 2 * size), n, dim, s));
    compare(&r, want, false, name);
    free(x), free(delta), free(want), free(weight), free(in), free(after);
}

/* A random e4m3 matrix on the device; means [n_out][n_in] gets the numbers that it stands for. */
static struct k_matrix random_matrix(int n_out, int n_in, int block, float *means)
{
    size_t size = (size_t)n_out * (size_t)n_in;
    struct k_format format =
        block > 0 ? k_format_in_groups(K_E4M3, block, block) : k_format_by_row(K_E4M3);
    int cols = k_format_scale_cols(&format, n_in), rows = k_format_scale_rows(&format, n_out);
    k_e4m3 *data = malloc(size);
    float *scales = malloc((size_t)rows * (size_t)cols * 4);

    for (int i = 0; i < rows * cols; i++)
        scales[i] = 0.01f + fabsf(gpu_uniform()) * 0.01f;
    for (int r = 0; r < n_out; r++) {
        for (int c = 0; c < n_in; c++) {
            size_t at = (size_t)r * (size_t)n_in + (size_t)c;

            data[at] = k_e4m3_round(gpu_uniform() * 200.0f);
            means[at] = k_e4m3_value(data[at]) *
                        (block > 0 ? scales[r / block * cols + c / block] : scales[r]);
        }
    }
    return (struct k_matrix){.data = gpu_array(data, size),
                             .scales = gpu_array(scales, (size_t)rows * (size_t)cols * 4),
                             .format = format,
                             .n_out = n_out,
                             .n_in = n_in};
}

/* A product whose input the device rounds itself, as it does to what attention gives; the portable
 * kernels do not round it. */
static void check_product(int n, int n_out, int n_in, int block, bool with_bias)
{
    size_t rows = (size_t)(n + gpu->rows_multiple - 1) / (size_t)gpu->rows_multiple *
                  (size_t)gpu->rows_multiple;
    size_t y_size = (size_t)n * (size_t)n_out;
    float *x = gpu_random(rows * (size_t)n_in, 1.0f), *bias = gpu_random((size_t)n_out, 1.0f);
    float *means = malloc((size_t)n_out * (size_t)n_in * 4), *want = malloc(y_size * 4), *got,
          *seen;
    struct k_matrix w = random_matrix(n_out, n_in, block, means);
    struct result in = result_of(n, n_in, block > 0 ? n : 0, NULL);
    k_bf16 *out = gpu_array(NULL, rows * (size_t)n_out * 2), *db = gpu_bf16(bias, (size_t)n_out);
    struct device_rows given = {0};
    char name[80];

    ref_quantise(&in.host, x, n, n_in);
    seen = widen(&in, in.host.data, in.host.scales);
    for (size_t r = 0; r < (size_t)n; r++) {
        for (size_t o = 0; o < (size_t)n_out; o++) {
            double sum = with_bias ? (double)bias[o] : 0.0;

            for (size_t i = 0; i < (size_t)n_in; i++)
                sum += (double)(k_is_portable() ? x : seen)[r * (size_t)n_in + i] *
                       (double)means[o * (size_t)n_in + i];
            want[r * (size_t)n_out + o] = (float)sum;
        }
    }
    snprintf(name, sizeof name, "e4m3 product %d x %d x %d, %s%s", n, n_out, n_in,
             block > 0 ? "blocks" : "rows", with_bias ? ", bias" : "");
    ok(gpu->ops->takes(gpu, &w), "%s: is taken", name);
    given.data = gpu_bf16(x, rows * (size_t)n_in);
    given.codes.data = gpu_array(NULL, rows * (size_t)n_in);
    given.codes.scales = gpu_array(NULL, rows * (size_t)((n_in + 127) / 128) * 4);
    gpu->ops->quantise(gpu, &given, n, &w);
    gpu->ops->matmul(gpu, out, &given, &w, with_bias ? db : NULL, n);
    got = gpu_floats(out, rows * (size_t)n_out);
    gpu_compare(got, want, y_size, 3e-5, 1e-2, name);
    free(x), free(bias), free(means), free(want), free(got), free(seen);
    free(in.host.data), free(in.host.scales);
}

static void check_products(void)
{
    struct device_limits limits = {.n_tokens = 512,
                                   .n_seqs = 4,
                                   .pages_max = 4,
                                   .len_max = 64,
                                   .page_tokens = 16,
                                   .n_tables = 1,
                                   .n_heads = 4,
                                   .head_dim = 64,
                                   .n_shapes = 1,
                                   .shapes = {{4, 4, 64, 0}},
                                   .dim = 256,
                                   .ff_dim = 4096,
                                   .n_vocab = 100,
                                   .codes = true};

    gpu_must(gpu->ops->reserve(gpu, &limits));
    for (int block = 0; block <= 128; block += 128) {
        check_product(1, 64, 256, block, false);
        check_product(100, 512, 256, block, true);
        check_product(65, 208, 464, block, false);
        check_product(70, 16, 48, block, true);
        check_product(300, 384, 1024, block, false);
        check_product(512, 256, 4096, block, false);
    }
}

int main(void)
{
    const float given = 0.01f;

    gpu_open();
    check_products();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check(shapes[i].n, shapes[i].dim, 0, NULL);
        check(shapes[i].n, shapes[i].dim, (shapes[i].n + 63) / 64 * 64, NULL);
    }
    check(33, 512, 0, &given);
    device_close(gpu);
    return tap_done();
}
