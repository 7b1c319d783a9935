/* k_multiply() and k_embed_normed() against their references: every kind, both types of weights,
 * every bucket of rows, shapes with a last tile that is not full and boxes that are odd in
 * number; twice with equal bits, and each row alone as in company of its bucket. */
#include "tests/kernel/gpu.h"

#define SMS 132

struct shape {
    int n_out, n_in;
};

/* Everything of one product, as float32 on the host and as its twin on the device. */
struct product_run {
    struct k_matrix w, w_dev;
    struct k_product host, dev;
    float *y, *y_dev_floats, *residual, *normed, *sums;
    size_t n_y;
};

static float e4m3_value(uint8_t b)
{
    float v = (b >> 3 & 15) != 0 ? ldexpf(1.0f + (float)(b & 7) / 8.0f, (b >> 3 & 15) - 7)
                                 : ldexpf((float)(b & 7) / 8.0f, -6);

    return (b & 0x80) != 0 ? -v : v;
}

/* Random e4m3 in `bytes`, their values in w; small: only numbers below the normal ones. */
static void random_e4m3(float *w, uint8_t *bytes, size_t n, bool small)
{
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)((gpu_uniform() + 1.0f) * 127.99f);
        if ((bytes[i] & 0x7f) == 0x7f)
            bytes[i] = 0;
        if (small)
            bytes[i] &= 0x87;
        w[i] = e4m3_value(bytes[i]);
    }
}

/* Such numbers as float16 on the device, and back. */
static void *gpu_half(const float *f, size_t n)
{
    _Float16 *h = malloc(n * sizeof *h);
    void *dev;

    for (size_t i = 0; i < n; i++)
        h[i] = (_Float16)f[i];
    dev = gpu_array(h, n * sizeof *h);
    free(h);
    return dev;
}

static float *half_floats(const void *dev, size_t n)
{
    _Float16 *h = malloc(n * sizeof *h);
    float *f = malloc(n * sizeof *f);

    ok(gpu_get(h, dev, n * sizeof *h), "guard bands are whole");
    for (size_t i = 0; i < n; i++)
        f[i] = (float)h[i];
    free(h);
    return f;
}

static void compare_kind(enum k_product_kind kind, struct shape s, enum k_type type, bool small,
                         int n_max)
{
    size_t n_w = (size_t)s.n_out * (size_t)s.n_in, n_x = (size_t)n_max * (size_t)s.n_in;
    size_t n_y = (size_t)n_max * (size_t)s.n_out;
    int n_parts = s.n_in / 16, tiles = (s.n_out + 15) / 16;
    float *x = gpu_random(n_x, 1.0f), *bias = gpu_random((size_t)s.n_out, 0.5f);
    float *norm = gpu_random((size_t)s.n_out, 1.0f), *residual = gpu_random(n_y, 2.0f);
    float *scales = gpu_random((size_t)s.n_out, 0.02f), *w, *sums_in = malloc(n_x / 16 * 4);
    float *normed = malloc(n_y * 4), *sums = malloc((size_t)(n_max * tiles) * 4);
    float *y = malloc(n_y * 4), *got = malloc(n_y * 4), *again = malloc(n_y * 4);
    uint8_t *bytes = malloc(n_w);
    char name[160];

    if (type == K_E4M3) {
        w = malloc(n_w * sizeof *w);
        random_e4m3(w, bytes, n_w, small);
    } else {
        w = gpu_random(n_w, 0.1f);
    }
    for (size_t i = 0; i < n_x / 16; i++)
        sums_in[i] = 8.0f + 8.0f * gpu_uniform();
    for (int n = 1; n <= n_max; n = n < 5 ? n + 1 : n + 3) {
        bool with_sums = n % 2 == 1, x_is_half = type == K_E4M3 && n != 2, y_is_half = n > 2;
        struct k_matrix host_w = {
            .data = w, .scales = type == K_E4M3 ? scales : NULL, .n_out = s.n_out, .n_in = s.n_in};
        struct k_matrix dev_w = {.data = type == K_E4M3 ? gpu_array(bytes, n_w)
                                                        : (void *)gpu_bf16(w, n_w),
                                 .type = type,
                                 .n_out = s.n_out,
                                 .n_in = s.n_in};
        struct k_product host = {.kind = kind,
                                 .x = x,
                                 .w = &host_w,
                                 .bias = n > 2 ? bias : NULL,
                                 .sums_in = with_sums ? sums_in : NULL,
                                 .n_sums = n_parts,
                                 .eps = 1e-5f,
                                 .x_is_half = x_is_half,
                                 .y_is_half = y_is_half,
                                 .y = y,
                                 .norm = norm,
                                 .normed = normed,
                                 .sums_out = sums};
        struct k_product dev = host;
        size_t used = (size_t)n * (size_t)(kind == K_PRODUCT_GATED ? s.n_out / 2 : s.n_out);
        bool is_float = kind == K_PRODUCT_FLOAT || kind == K_PRODUCT_RESIDUAL, same, lone = true;
        float *want_residual = malloc(n_y * 4), *got_normed;
        void *residual_dev;

        if (k_multiply_takes(&dev_w, n) == 0) {
            free(want_residual);
            continue;
        }
        dev_w.scales = type == K_E4M3 ? gpu_array(scales, (size_t)s.n_out * 4) : NULL;
        dev.w = &dev_w;
        dev.x = x_is_half ? gpu_half(x, n_x) : gpu_bf16(x, n_x);
        dev.bias = n > 2 ? gpu_bf16(bias, (size_t)s.n_out) : NULL;
        dev.sums_in = with_sums ? gpu_array(sums_in, n_x / 16 * 4) : NULL;
        dev.norm = gpu_bf16(norm, (size_t)s.n_out);
        dev.y = gpu_array(NULL, used * (kind == K_PRODUCT_FLOAT ? 4 : 2));
        dev.normed = gpu_array(NULL, used * 2);
        dev.sums_out = gpu_array(NULL, (size_t)(n * tiles) * 4);
        residual_dev = gpu_array(residual, used * 4);
        dev.residual = residual_dev;
        memcpy(want_residual, residual, n_y * 4);
        host.residual = want_residual;
        ref_multiply(&host, n);
        gpu_must(k_multiply(&dev, n, SMS, device_cuda_stream(gpu)));
        (void)snprintf(name, sizeof name, "kind %d, %s %d x %d, %d rows", (int)kind,
                       type == K_E4M3 ? "e4m3" : "bf16", s.n_out, s.n_in, n);
        if (kind == K_PRODUCT_RESIDUAL) {
            ok(gpu_get(got, residual_dev, used * 4), "guard bands are whole");
            gpu_compare(got, want_residual, used, 1e-9, 1e-4, name);
            got_normed = y_is_half ? half_floats(dev.normed, used) : gpu_floats(dev.normed, used);
            gpu_compare(got_normed, normed, used, 1e-5, 8e-3, "its normed rows");
            ok(gpu_get(again, dev.sums_out, (size_t)(n * tiles) * 4), "guard bands are whole");
            gpu_compare(again, sums, (size_t)(n * tiles), 1e-8, 1e-3, "its squares");
            free(got_normed);
            gpu_must(gpu->ops->upload(gpu, residual_dev, residual, used * 4));
        } else if (is_float) {
            ok(gpu_get(got, dev.y, used * 4), "guard bands are whole");
            gpu_compare(got, y, used, 1e-9, 1e-4, name);
        } else {
            bool half = y_is_half && kind == K_PRODUCT_GATED;
            float *f = half ? half_floats(dev.y, used) : gpu_floats(dev.y, used);

            memcpy(got, f, used * 4);
            free(f);
            gpu_compare(got, y, used, 1e-5, 8e-3, name);
        }
        /* Once more, and one row fewer in the same bucket: the same bits. */
        gpu_must(k_multiply(&dev, n, SMS, device_cuda_stream(gpu)));
        if (is_float) {
            (void)gpu_get(again, kind == K_PRODUCT_FLOAT ? dev.y : residual_dev, used * 4);
            same = memcmp(again, got, used * 4) == 0;
        } else {
            bool half = y_is_half && kind == K_PRODUCT_GATED;
            float *f = half ? half_floats(dev.y, used) : gpu_floats(dev.y, used);

            same = memcmp(f, got, used * 4) == 0;
            free(f);
        }
        if (n > 1 && n != 5 && kind == K_PRODUCT_FLOAT) {
            gpu_must(k_multiply(&dev, n - 1, SMS, device_cuda_stream(gpu)));
            (void)gpu_get(again, dev.y, used * 4);
            lone = memcmp(again, got, used * 4) == 0;
        }
        ok(same && lone, "%s: the same bits again, and with a row fewer", name);
        free(want_residual);
    }
    free(x), free(bias), free(norm), free(residual), free(scales), free(w), free(sums_in);
    free(normed), free(sums), free(y), free(got), free(again), free(bytes);
}

static void compare_embed(int n, int dim)
{
    enum { VOCAB = 50 };
    size_t n_x = (size_t)n * (size_t)dim;
    float *table = gpu_random((size_t)VOCAB * (size_t)dim, 1.0f);
    float *norm = gpu_random((size_t)dim, 1.0f);
    float *x = malloc(n_x * 4), *normed = malloc(n_x * 4), *sums = malloc(n_x / 16 * 4);
    float *got = malloc(n_x * 4), *got_normed;
    int32_t ids[8], back[8];
    void *x_dev = gpu_array(NULL, n_x * 4), *sums_dev = gpu_array(NULL, n_x / 16 * 4);
    k_bf16 *normed_dev = gpu_array(NULL, n_x * 2);

    for (int i = 0; i < n; i++)
        ids[i] = i * 13 % VOCAB, back[i] = i % 2 == 0 ? ids[i] : -1 - i;
    ref_embed_normed(x, normed, sums, table, ids, norm, n, dim);
    gpu_must(k_embed_normed(x_dev, normed_dev, false, sums_dev,
                            gpu_bf16(table, (size_t)VOCAB * (size_t)dim),
                            gpu_array(back, sizeof back), gpu_array(ids, sizeof ids),
                            gpu_bf16(norm, (size_t)dim), n, dim, device_cuda_stream(gpu)));
    ok(gpu_get(got, x_dev, n_x * 4) && memcmp(got, x, n_x * 4) == 0, "embedding, %d x %d", n, dim);
    got_normed = gpu_floats(normed_dev, n_x);
    gpu_compare(got_normed, normed, n_x, 1e-5, 8e-3, "its normed rows");
    ok(gpu_get(got, sums_dev, n_x / 16 * 4), "guard bands are whole");
    gpu_compare(got, sums, n_x / 16, 1e-10, 1e-4, "its squares");
    free(table), free(norm), free(x), free(normed), free(sums), free(got), free(got_normed);
}

int main(void)
{
    static const struct shape shapes[] = {{64, 128},    {256, 256},  {1040, 512}, {96, 1024},
                                          {2048, 2048}, {512, 7168}, {336, 640}};

    gpu_open();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int kind = K_PRODUCT_PLAIN; kind <= K_PRODUCT_RESIDUAL; kind++) {
            compare_kind(kind, shapes[i], K_BF16, false, 9);
            compare_kind(kind, shapes[i], K_E4M3, i == 1, 9);
        }
    }
    compare_kind(K_PRODUCT_FLOAT, (struct shape){1003, 256}, K_BF16, false, 17);
    compare_kind(K_PRODUCT_PLAIN, (struct shape){1002, 1024}, K_E4M3, false, 17);
    compare_embed(1, 64);
    compare_embed(7, 4096);
    device_close(gpu);
    return tap_done();
}
