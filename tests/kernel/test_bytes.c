/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: rows rounded to 8-bit whole numbers, their products with bytes by row (bytes.h), and these
 * as bfloat16. Method: rounding against its reference, bit for bit, with rows of zeros and one that
 * has a NaN; products against exact sums on the host, rounded as the kernel does, for a last tile
 * of rows of w that is not full, one, two and many tiles of rows of x, with and without bias. A row
 * has the same bits alone and among others. Codes of 4 bits as bytes: against the reference, bit
 * for bit, and that against the weights; and the device's product with them. */
#include "kernels/bytes.h"
#include "kernels/packed.h"
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
    gpu_must(
        k_multiply_bytes(y, s.n_out, &dev, &m.dev, dev_bias, s.n, SMS, device_cuda_stream(gpu)));
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
    gpu_must(
        k_multiply_bytes(one, s.n_out, &last, &m.dev, dev_bias, 1, SMS, device_cuda_stream(gpu)));
    alone = gpu_floats(one, (size_t)s.n_out);
    ok(memcmp(alone, got + (size_t)(s.n - 1) * (size_t)s.n_out, (size_t)s.n_out * 4) == 0,
       "the last row has the same bits alone");
    free(x), free(bias), free(got), free(alone), free(want.data), free(want.scales);
    free(m.codes), free(m.scales);
}

/* Random codes in records, with a row whose scales are 0 and one that has a NaN. */
static struct k_matrix make_codes(struct shape s, const struct k_format *format)
{
    const struct k_packing packing = k_packing_of(format);
    struct k_matrix m = {.format = *format, .n_out = s.n_out, .n_in = s.n_in};
    size_t n_groups = (size_t)(16 * (s.n_in / format->group_cols));
    uint8_t *all = malloc(k_packed_bytes(&packing, s.n_out, s.n_in));
    uint8_t *codes = malloc((size_t)s.n_in * 16), *zeros = malloc(n_groups);
    uint16_t *scales = malloc(n_groups * sizeof *scales);
    const struct k_unpacked from = {codes, (uint8_t *)scales, zeros};

    for (int row = 0; row < s.n_out; row += 16) {
        for (size_t i = 0; i < (size_t)s.n_in * 16; i++)
            codes[i] = (uint8_t)((gpu_uniform() + 1.0f) * 7.99f);
        for (size_t i = 0; i < n_groups; i++) {
            float value = row == 16 && i < n_groups / 16 ? 0.0f : 0.02f * gpu_uniform();
            _Float16 narrow = (_Float16)value;

            value = row == 0 && i == n_groups - 1 ? NAN : value;
            zeros[i] = (uint8_t)((gpu_uniform() + 1.0f) * 8.49f); /* 0 to 16, as GPTQ has it */
            scales[i] = isnan(value) ? 0x7fff : gpu_round(value);
            if (format->scale == K_F16 && !isnan(value))
                memcpy(&scales[i], &narrow, 2);
        }
        k_pack_strip(all + (size_t)(row / 16) * k_packed_strip_bytes(&packing, s.n_in), &packing,
                     &from, 16, s.n_in);
    }
    m.data = all;
    free(codes), free(zeros), free(scales);
    return m;
}

static void check_codes(struct shape s, struct k_format format)
{
    const struct k_packing packing = k_packing_of(&format);
    size_t n = (size_t)s.n_out * (size_t)s.n_in, n_far = 0;
    struct k_matrix host = make_codes(s, &format), dev = host;
    int8_t *want = malloc(n), *got = malloc(n), *out = gpu_array(NULL, n);
    float *scales = malloc((size_t)s.n_out * 4), *should = malloc((size_t)s.n_out * 4);
    float *out_scales = gpu_array(NULL, (size_t)s.n_out * 4), *w = malloc(n * sizeof *w);
    bool is_whole, is_same = true;

    dev.data = gpu_array(host.data, k_packed_bytes(&packing, s.n_out, s.n_in));
    gpu_must(k_round_codes(out, out_scales, &dev, 16, s.n_out - 16, device_cuda_stream(gpu)));
    n = (size_t)(s.n_out - 16) * (size_t)s.n_in;
    is_whole = gpu_get(got, out, n) && gpu_get(scales, out_scales, (size_t)(s.n_out - 16) * 4);
    ref_round_codes(want, should, &host, 16, s.n_out - 16);
    ok(is_whole && memcmp(got, want, n) == 0 &&
           memcmp(scales, should, (size_t)(s.n_out - 16) * 4) == 0,
       "codes of %d x %d, groups of %d%s, are rounded as the reference does", s.n_out, s.n_in,
       format.group_cols, format.has_zeros ? " with zeros" : "");
    ref_dequantise(w, &host, 16, s.n_out - 16);
    for (size_t i = 0; i < n; i++)
        n_far += !(fabsf((float)want[K_BYTE_AT(i)] * should[i / (size_t)s.n_in] - w[i]) <=
                   0.501f * should[i / (size_t)s.n_in]);
    ok(n_far == 0, "and are the weights but for half of a step: %zu are not", n_far);
    gpu_must(k_round_codes(out, out_scales, &dev, 0, 16, device_cuda_stream(gpu)));
    (void)gpu_get(scales, out_scales, 64); /* the others' scales stand where it looks for a guard */
    ref_round_codes(want, should, &host, 0, 16);
    for (int row = 0; row < 16; row++)
        is_same = is_same && (isnan(should[row]) ? isnan(scales[row]) : scales[row] == should[row]);
    ok(is_same && isnan(scales[15]) && !isnan(scales[0]), "a row with a NaN has that for a scale");
    free(want), free(got), free(scales), free(should), free(w), free((void *)(uintptr_t)host.data);
}

/* The device's product of many rows with codes that are rounded: some of its results. */
static void check_rounded(struct shape s, struct k_format format)
{
    const struct k_packing packing = k_packing_of(&format);
    size_t n_x = (size_t)s.n * (size_t)s.n_in, n_wrong = 0, n_seen = 0;
    float *x = gpu_random(n_x, 1.0f), *bias = gpu_random((size_t)s.n_out, 0.5f), *got;
    const struct k_bytes of_x = {malloc(n_x), malloc((size_t)s.n * sizeof(float))};
    struct k_matrix host = make_codes(s, &format), dev = host;
    k_bf16 *y = gpu_array(NULL, (size_t)s.n * (size_t)s.n_out * sizeof *y);
    const struct device_rows rows = {.data = gpu_bf16(x, n_x)};
    int8_t *codes = malloc((size_t)s.n_in * 16);
    float scales[16];

    dev.data = gpu_array(host.data, k_packed_bytes(&packing, s.n_out, s.n_in));
    dev.format.rounds_x = true;
    gpu->ops->matmul(gpu, y, &rows, &dev, gpu_bf16(bias, (size_t)s.n_out), s.n);
    got = gpu_floats(y, (size_t)s.n * (size_t)s.n_out);
    ref_round_bytes(&of_x, x, s.n, s.n_in);
    for (int first = 0; first<s.n_out; first += s.n_out> 1000 ? s.n_out / 48 * 16 : 16) {
        ref_round_codes(codes, scales, &host, first, 16);
        for (int row = first; row < first + 16; row++) {
            for (int token = row % 61; token < s.n; token += 61, n_seen++) {
                float is = got[(size_t)token * (size_t)s.n_out + (size_t)row], sum = bias[row];
                const int8_t *a = of_x.data + (size_t)token * (size_t)s.n_in;
                int32_t whole = 0;

                for (size_t i = 0; i < (size_t)s.n_in; i++)
                    whole += a[i] * codes[(size_t)(row - first) * (size_t)s.n_in + i];
                sum = fmaf((float)whole, scales[row - first] * of_x.scales[token], sum);
                n_wrong += isnan(sum) ? !isnan(is) : is != gpu_widen(gpu_round(sum));
            }
        }
    }
    ok(n_wrong == 0, "the device, %d rows by codes of %d x %d: %zu of %zu are wrong", s.n, s.n_out,
       s.n_in, n_wrong, n_seen);
    free(x), free(bias), free(got), free(codes), free(of_x.data), free(of_x.scales);
    free((void *)(uintptr_t)host.data);
}

/* Both halves of its scratch memory are too small for the last two. */
static void check_device(void)
{
    struct device_limits limits = {.n_tokens = 4096,
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
                                   .packed = true,
                                   .rounded = true};

    if (k_is_portable())
        return;
    gpu_must(gpu->ops->reserve(gpu, &limits));
    check_rounded((struct shape){416, 1024, 1024}, k_format_packed(K_BF16, 128, false));
    check_rounded((struct shape){640, 384, 1500}, k_format_packed(K_F16, 32, true));
    check_rounded((struct shape){40000, 4096, 1024}, k_format_packed(K_BF16, 128, false));
    check_rounded((struct shape){96, 49152, 2800}, k_format_packed(K_BF16, 64, false));
}

int main(void)
{
    gpu_open();
    if (gpu_has_turn())
        check_device();
    for (int i = 0; i < 6; i++) {
        const int groups[] = {128, 64, 32};

        if (gpu_has_turn())
            check_codes((struct shape){i % 2 == 0 ? 64 : 160, i < 3 ? 384 : 4096, 0},
                        k_format_packed(i % 2 == 0 ? K_BF16 : K_F16, groups[i % 3], i > 3));
    }
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++) {
        if (gpu_has_turn())
            check(shapes[i], i % 3 != 0);
    }
    device_close(gpu);
    return tap_done();
}
