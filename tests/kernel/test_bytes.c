/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: rows rounded to 8-bit whole numbers, their products with bytes by row (bytes.h), and these
 * as bfloat16. Method: rounding against its reference, bit for bit, with rows of zeros and one that
 * has a NaN; products against exact sums on the host, rounded as the kernel does, for a last tile
 * of rows of w that is not full, one, two and many tiles of rows of x, with and without bias. A row
 * has the same bits alone and among others. */
#include "kernels/bytes.h"
#include "tests/kernel/gpu.h"

#define SMS 132

static const struct shape {
    int n_out, n_in, n;
} shapes[] = {{32, 128, 1},     {160, 256, 65},   {416, 896, 129},  {544, 640, 300},
              {128, 4096, 257}, {1056, 384, 600}, {6144, 256, 2100}};

/* A random matrix. */
struct bytes_matrix {
    int8_t *codes;
    float *scales;
    struct k_matrix dev;
};

static struct bytes_matrix make_matrix(struct shape s)
{
    size_t n = (size_t)s.n_out * (size_t)s.n_in;
    int8_t *ordered = malloc(n);
    struct bytes_matrix m = {malloc(n),
                             malloc((size_t)s.n_out * sizeof(float)),
                             {.format = k_format_by_row(K_INT8), .n_out = s.n_out, .n_in = s.n_in}};

    for (size_t i = 0; i < n; i++)
        m.codes[i] = (int8_t)(gpu_uniform() * 127.99f - 0.5f);
    for (int row = 0; row < s.n_out; row++)
        m.scales[row] = 0.001f * gpu_uniform();
    m.dev.format.rounds_x = true;
    for (size_t i = 0; i < n; i++)
        ordered[K_BYTE_AT(i)] = m.codes[i];
    m.dev.data = gpu_array(ordered, n);
    free(ordered);
    m.dev.scales = gpu_array(m.scales, (size_t)s.n_out * sizeof(float));
    return m;
}

/* The matrix as bfloat16. */
static void check_widened(const struct bytes_matrix *m, struct shape s)
{
    size_t n = (size_t)s.n_out * (size_t)s.n_in, n_wrong = 0;
    k_bf16 *dev = gpu_array(NULL, n * sizeof *dev);
    float *got;

    gpu_must(k_widen_codes(dev, &m->dev, 0, s.n_out, device_cuda_stream(gpu)));
    got = gpu_floats(dev, n);
    for (size_t i = 0; i < n; i++)
        n_wrong +=
            got[i] != gpu_widen(gpu_round((float)m->codes[i] * m->scales[i / (size_t)s.n_in]));
    ok(n_wrong == 0, "%d x %d as bfloat16: %zu weights are wrong", s.n_out, s.n_in, n_wrong);
    free(got);
}

/* Rows on the device, rounded there, and by the reference in `want`. */
static struct k_bytes round_rows(const float *x, struct shape s, const struct k_bytes *want)
{
    size_t n_x = (size_t)s.n * (size_t)s.n_in, n = (size_t)s.n;
    const struct k_bytes dev = {gpu_array(NULL, n_x), gpu_array(NULL, n * sizeof(float))};
    int8_t *data = malloc(n_x);
    float *scales = malloc(n * sizeof *scales);
    bool is_whole;

    gpu_must(k_round_bytes(&dev, gpu_bf16(x, n_x), s.n, s.n_in, device_cuda_stream(gpu)));
    is_whole = gpu_get(data, dev.data, n_x) && gpu_get(scales, dev.scales, n * sizeof *scales);
    ref_round_bytes(want, x, s.n, s.n_in);
    for (size_t i = 0; i < n; i++) /* one NaN is as good as another */
        is_whole =
            is_whole && (isnan(scales[i]) ? isnan(want->scales[i]) : scales[i] == want->scales[i]);
    ok(is_whole && memcmp(data, want->data, n_x) == 0,
       "%d rows of %d are rounded as the reference does", s.n, s.n_in);
    free(data), free(scales);
    return dev;
}

/* The product of a row of x with a row of w. */
static float exact(const struct bytes_matrix *r, const struct k_bytes *x, int token, int row,
                   int n_in, float bias)
{
    const int8_t *data = x->data + (size_t)token * (size_t)n_in;
    const int8_t *codes = r->codes + (size_t)row * (size_t)n_in;
    int32_t sum = 0;

    for (int i = 0; i < n_in; i++)
        sum += data[K_BYTE_AT((size_t)i)] * codes[i];
    return fmaf((float)sum, r->scales[row] * x->scales[token], bias);
}

static void check(struct shape s, bool has_bias)
{
    size_t n_x = (size_t)s.n * (size_t)s.n_in, n_y = (size_t)s.n * (size_t)s.n_out, n_wrong = 0;
    float *x = gpu_random(n_x, 1.0f), *bias = gpu_random((size_t)s.n_out, 0.5f), *got, *alone;
    const struct k_bytes want = {malloc(n_x), malloc((size_t)s.n * sizeof(float))};
    struct bytes_matrix m = make_matrix(s);
    k_bf16 *y = gpu_array(NULL, n_y * sizeof *y), *one, *dev_bias = NULL;
    struct k_bytes dev, last;
    int nan_row = s.n > 200 ? 77 : -1;

    if (has_bias)
        dev_bias = gpu_bf16(bias, (size_t)s.n_out);
    for (int i = 0; i < s.n_in && s.n > 2; i++)
        x[(size_t)s.n_in + (size_t)i] = 0.0f;
    if (nan_row >= 0)
        x[(size_t)nan_row * (size_t)s.n_in + 5] = NAN;
    check_widened(&m, s);
    dev = round_rows(x, s, &want);
    ok(k_multiply_bytes_takes(&m.dev), "%d x %d is taken", s.n_out, s.n_in);
    gpu_must(k_multiply_bytes(y, &dev, &m.dev, dev_bias, s.n, SMS, device_cuda_stream(gpu)));
    got = gpu_floats(y, n_y);
    for (int token = 0; token<s.n; token += s.n_out> 2000 && token > 300 ? 61 : 1) {
        for (int row = 0; row < s.n_out; row++) {
            float is = got[(size_t)token * (size_t)s.n_out + (size_t)row];
            float sum = exact(&m, &want, token, row, s.n_in, has_bias ? bias[row] : 0.0f);

            n_wrong += token == nan_row ? !isnan(is) : is != gpu_widen(gpu_round(sum));
        }
    }
    ok(n_wrong == 0, "%d rows by %d x %d%s: %zu are wrong", s.n, s.n_out, s.n_in,
       has_bias ? ", bias" : "", n_wrong);
    last = (struct k_bytes){dev.data + (size_t)(s.n - 1) * (size_t)s.n_in, dev.scales + s.n - 1};
    one = gpu_array(NULL, (size_t)s.n_out * sizeof *one);
    gpu_must(k_multiply_bytes(one, &last, &m.dev, dev_bias, 1, SMS, device_cuda_stream(gpu)));
    alone = gpu_floats(one, (size_t)s.n_out);
    ok(memcmp(alone, got + (size_t)(s.n - 1) * (size_t)s.n_out, (size_t)s.n_out * 4) == 0,
       "the last row has the same bits alone");
    free(x), free(bias), free(got), free(alone), free(want.data), free(want.scales);
    free(m.codes), free(m.scales);
}

int main(void)
{
    gpu_open();
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++) {
        if (gpu_has_turn())
            check(shapes[i], i % 3 != 0);
    }
    device_close(gpu);
    return tap_done();
}
