/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: rows rounded to 8-bit whole numbers, and their products with records of 8 bits (bytes.h).
 * Method: rounding against its reference, bit for bit, with rows of zeros and one that has a NaN;
 * products against exact sums on the host, rounded as the kernel does, for a last tile of rows of w
 * that is not full, one, two and many tiles of rows of x, with and without zero points, bias and
 * scales of float16. A row has the same bits alone and among others. */
#include "kernels/bytes.h"
#include "kernels/packed.h"
#include "tests/kernel/gpu.h"

#define SMS 132

static const struct shape {
    int n_out, n_in, n;
} shapes[] = {{32, 128, 1},     {160, 256, 65},   {416, 896, 129},  {544, 640, 300},
              {128, 4096, 257}, {1056, 384, 600}, {6144, 256, 2100}};

/* Random records whose rows have one scale each, and their parts. */
struct records {
    uint8_t *codes;
    float *scales;
    uint8_t *zeros;
    struct k_matrix dev;
};

static struct records make_records(struct shape s, struct k_format format)
{
    const struct k_packing packing = k_packing_of(&format);
    size_t n_in = (size_t)s.n_in, groups = n_in / 128;
    size_t strip_bytes = k_packed_strip_bytes(&packing, s.n_in);
    struct records r = {malloc((size_t)s.n_out * n_in),
                        malloc((size_t)s.n_out * sizeof(float)),
                        malloc((size_t)s.n_out),
                        {.format = format, .n_out = s.n_out, .n_in = s.n_in}};
    uint8_t *all = malloc(k_packed_bytes(&packing, s.n_out, s.n_in));
    uint16_t *scales = malloc(16 * groups * sizeof *scales);
    uint8_t *zeros = malloc(16 * groups);

    for (size_t i = 0; i < (size_t)s.n_out * n_in; i++)
        r.codes[i] = (uint8_t)((gpu_uniform() + 1.0f) * 127.99f);
    for (int row = 0; row < s.n_out; row++) {
        _Float16 narrow = (_Float16)(0.001f * gpu_uniform());
        uint16_t bits = gpu_round((float)narrow);

        r.scales[row] = format.scale == K_F16 ? (float)narrow : gpu_widen(bits);
        if (format.scale == K_F16)
            memcpy(&bits, &narrow, 2);
        r.zeros[row] = format.has_zeros ? (uint8_t)((gpu_uniform() + 1.0f) * 127.99f) : 128;
        for (size_t i = 0; i < groups; i++) {
            scales[(size_t)(row % 16) * groups + i] = bits;
            zeros[(size_t)(row % 16) * groups + i] = r.zeros[row];
        }
        if (row % 16 == 15) {
            const struct k_unpacked from = {r.codes + (size_t)(row - 15) * n_in, (uint8_t *)scales,
                                            zeros};

            k_pack_strip(all + (size_t)(row / 16) * strip_bytes, &packing, &from, 16, s.n_in);
        }
    }
    r.dev.data = gpu_array(all, k_packed_bytes(&packing, s.n_out, s.n_in));
    free(all), free(scales), free(zeros);
    return r;
}

/* Rows on the device, rounded there, and by the reference in `want`. */
static struct k_bytes round_rows(const float *x, struct shape s, const struct k_bytes *want)
{
    size_t n_x = (size_t)s.n * (size_t)s.n_in, n = (size_t)s.n;
    const struct k_bytes dev = {gpu_array(NULL, n_x), gpu_array(NULL, n * sizeof(float)),
                                gpu_array(NULL, n * sizeof(int32_t))};
    int8_t *data = malloc(n_x);
    float *scales = malloc(n * sizeof *scales);
    int32_t *sums = malloc(n * sizeof *sums);
    bool is_whole;

    gpu_must(k_round_bytes(&dev, gpu_bf16(x, n_x), s.n, s.n_in, device_cuda_stream(gpu)));
    is_whole = gpu_get(data, dev.data, n_x) && gpu_get(scales, dev.scales, n * sizeof *scales) &&
               gpu_get(sums, dev.sums, n * sizeof *sums);
    ref_round_bytes(want, x, s.n, s.n_in);
    for (size_t i = 0; i < n; i++) /* one NaN is as good as another */
        is_whole =
            is_whole && (isnan(scales[i]) ? isnan(want->scales[i]) : scales[i] == want->scales[i]);
    ok(is_whole && memcmp(data, want->data, n_x) == 0 &&
           memcmp(sums, want->sums, n * sizeof *sums) == 0,
       "%d rows of %d are rounded as the reference does", s.n, s.n_in);
    free(data), free(scales), free(sums);
    return dev;
}

/* The product of a row of x with a row of w. */
static float exact(const struct records *r, const struct k_bytes *x, int token, int row, int n_in,
                   float bias)
{
    const int8_t *data = x->data + (size_t)token * (size_t)n_in;
    const uint8_t *codes = r->codes + (size_t)row * (size_t)n_in;
    int32_t sum = 0;

    for (int i = 0; i < n_in; i++)
        sum += data[K_BYTE_AT((size_t)i)] * (codes[i] - r->zeros[row]);
    return fmaf((float)sum, r->scales[row] * x->scales[token], bias);
}

static void check(struct shape s, struct k_format format, bool has_bias)
{
    size_t n_x = (size_t)s.n * (size_t)s.n_in, n_y = (size_t)s.n * (size_t)s.n_out, n_wrong = 0;
    float *x = gpu_random(n_x, 1.0f), *bias = gpu_random((size_t)s.n_out, 0.5f), *got, *alone;
    const struct k_bytes want = {malloc(n_x), malloc((size_t)s.n * sizeof(float)),
                                 malloc((size_t)s.n * sizeof(int32_t))};
    struct records r = make_records(s, format);
    k_bf16 *y = gpu_array(NULL, n_y * sizeof *y), *dev_bias = NULL;
    struct k_bytes dev, last;
    int nan_row = s.n > 200 ? 77 : -1;

    if (has_bias)
        dev_bias = gpu_bf16(bias, (size_t)s.n_out);
    for (int i = 0; i < s.n_in && s.n > 2; i++)
        x[(size_t)s.n_in + (size_t)i] = 0.0f;
    if (nan_row >= 0)
        x[(size_t)nan_row * (size_t)s.n_in + 5] = NAN;
    dev = round_rows(x, s, &want);
    ok(k_multiply_bytes_takes(&r.dev), "%d x %d is taken", s.n_out, s.n_in);
    gpu_must(k_multiply_bytes(y, &dev, &r.dev, dev_bias, s.n, SMS, device_cuda_stream(gpu)));
    got = gpu_floats(y, n_y);
    for (int token = 0; token<s.n; token += s.n_out> 2000 && token > 300 ? 61 : 1) {
        for (int row = 0; row < s.n_out; row++) {
            float is = got[(size_t)token * (size_t)s.n_out + (size_t)row];
            float sum = exact(&r, &want, token, row, s.n_in, has_bias ? bias[row] : 0.0f);

            n_wrong += token == nan_row ? !isnan(is) : is != gpu_widen(gpu_round(sum));
        }
    }
    ok(n_wrong == 0, "%d rows by %d x %d%s%s%s: %zu are wrong", s.n, s.n_out, s.n_in,
       format.has_zeros ? ", zeros" : "", has_bias ? ", bias" : "",
       format.scale == K_F16 ? ", float16" : "", n_wrong);
    last = (struct k_bytes){dev.data + (size_t)(s.n - 1) * (size_t)s.n_in, dev.scales + s.n - 1,
                            dev.sums + s.n - 1};
    gpu_must(k_multiply_bytes(y, &last, &r.dev, dev_bias, 1, SMS, device_cuda_stream(gpu)));
    alone = gpu_floats(y, (size_t)s.n_out);
    ok(memcmp(alone, got + (size_t)(s.n - 1) * (size_t)s.n_out, (size_t)s.n_out * 4) == 0,
       "the last row has the same bits alone");
    free(x), free(bias), free(got), free(alone), free(want.data), free(want.scales);
    free(want.sums), free(r.codes), free(r.scales), free(r.zeros);
}

int main(void)
{
    gpu_open();
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++) {
        struct k_format format = k_format_int8(i % 3 == 1 ? K_F16 : K_BF16, 128, i % 2 == 1);

        format.rounds_x = true;
        if (gpu_has_turn())
            check(shapes[i], format, i % 3 != 0);
    }
    device_close(gpu);
    return tap_done();
}
