/* SPDX-License-Identifier: Apache-2.0
 *
 * k_multiply() and k_embed_normed() against their references: every kind, all formats of weights,
 * numbers of rows from all buckets (all numbers for one shape), shapes with a last tile that is not
 * full and boxes that are odd in number. Results are poisoned before each call. The same call gives
 * the same bits, and a row's bits do not depend on the other rows' values nor, within a bucket, on
 * their number. */
#include "kernels/e4m3.h"
#include "kernels/packed.h"
#include "kernels/packed_many.h"
#include "kernels/product_cut.h"
#include "tests/kernel/gpu.h"

#define SMS 132

struct shape {
    int n_out, n_in;
};

static float e4m3_table[256];

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
        w[i] = e4m3_table[bytes[i]];
    }
}

/* Random bytes with a sign, their values in w. */
static void random_bytes(float *w, uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        w[i] = floorf(gpu_uniform() * 128.0f);
        bytes[K_BYTE_AT(i)] = (uint8_t)(int8_t)w[i];
    }
}

/* Has a matrix of the type a scale for each row? */
static bool is_scaled(enum k_type type)
{
    return type == K_E4M3 || type == K_INT8;
}

/* One product: what it reads, and what it wrote last, as floats. */
struct run {
    enum k_product_kind kind;
    struct shape s;
    enum k_type type;
    int n_max;
    bool small;
    float *x, *bias, *norm, *residual, *scales, *w, *sums_in;
    struct k_matrix dev_w;
    void *dev_bias, *dev_norm, *dev_sums_in;
    float *y, *normed, *sums; /* of the device; residual is in y */
    float *want, *want_normed, *want_sums;
};

static size_t outputs_of(const struct run *r, int n)
{
    return (size_t)n * (size_t)(r->kind == K_PRODUCT_GATED ? r->s.n_out / 2 : r->s.n_out);
}

static size_t parts_of(const struct run *r, int n)
{
    return (size_t)n * (size_t)((r->s.n_out + 15) / 16);
}

/* What row n of a test is given besides x. */
static struct k_product product_of(const struct run *r, int n)
{
    return (struct k_product){.kind = r->kind,
                              .n_sums = r->s.n_in / 16,
                              .eps = 1e-5f,
                              .y_is_half = n > 2 && outputs_of(r, 1) % 16 == 0};
}

static void run_open(struct run *r, enum k_product_kind kind, struct shape s, enum k_type type,
                     bool small, int n_max)
{
    size_t n_w = (size_t)s.n_out * (size_t)s.n_in, n_x = (size_t)n_max * (size_t)s.n_in;
    uint8_t *bytes = malloc(n_w);

    *r = (struct run){.kind = kind, .s = s, .type = type, .small = small, .n_max = n_max};
    r->x = gpu_random(n_x, 1.0f);
    r->bias = gpu_random((size_t)s.n_out, 0.5f);
    r->norm = gpu_random((size_t)s.n_out, 1.0f);
    r->residual = gpu_random(outputs_of(r, n_max), 2.0f);
    r->scales = gpu_random((size_t)s.n_out, 0.02f);
    r->sums_in = malloc(n_x / 16 * 4);
    for (size_t i = 0; i < n_x / 16; i++)
        r->sums_in[i] = 8.0f + 8.0f * gpu_uniform();
    if (type == K_E4M3) {
        r->w = malloc(n_w * sizeof *r->w);
        random_e4m3(r->w, bytes, n_w, small);
    } else if (type == K_INT8) {
        r->w = malloc(n_w * sizeof *r->w);
        random_bytes(r->w, bytes, n_w);
    } else {
        r->w = gpu_random(n_w, 0.1f);
    }
    r->dev_w = (struct k_matrix){.n_out = s.n_out, .n_in = s.n_in};
    if (is_scaled(type))
        r->dev_w.format = k_format_by_row(type);
    r->dev_w.data = is_scaled(type) ? gpu_array(bytes, n_w) : (void *)gpu_bf16(r->w, n_w);
    r->dev_w.scales = is_scaled(type) ? gpu_array(r->scales, (size_t)s.n_out * 4) : NULL;
    r->dev_bias = gpu_bf16(r->bias, (size_t)s.n_out);
    r->dev_norm = gpu_bf16(r->norm, (size_t)s.n_out);
    r->dev_sums_in = gpu_array(r->sums_in, n_x / 16 * 4);
    r->y = malloc(outputs_of(r, n_max) * 4), r->want = malloc(outputs_of(r, n_max) * 4);
    r->normed = malloc(outputs_of(r, n_max) * 4);
    r->want_normed = malloc(outputs_of(r, n_max) * 4);
    r->sums = malloc(parts_of(r, n_max) * 4), r->want_sums = malloc(parts_of(r, n_max) * 4);
    free(bytes);
}

static void run_close(struct run *r)
{
    free(r->x), free(r->bias), free(r->norm), free(r->residual), free(r->scales), free(r->w);
    free(r->sums_in), free(r->y), free(r->want), free(r->normed), free(r->want_normed);
    free(r->sums), free(r->want_sums);
}

/* The reference of n rows, in want, want_normed and want_sums. */
static void run_reference(struct run *r, int n)
{
    struct k_matrix w = {.data = r->w,
                         .scales = is_scaled(r->type) ? r->scales : NULL,
                         .n_out = r->s.n_out,
                         .n_in = r->s.n_in};
    struct k_product p = product_of(r, n);

    p.x = r->x;
    p.w = &w;
    p.bias = n > 2 ? r->bias : NULL;
    p.sums_in = n % 2 == 1 ? r->sums_in : NULL;
    p.norm = r->norm;
    p.y = p.residual = r->want;
    p.normed = r->want_normed;
    p.sums_out = r->want_sums;
    memcpy(r->want, r->residual, outputs_of(r, n) * 4);
    ref_multiply(&p, n);
}

/* n rows of x on the device, with the settings of a test of n_like rows, into fresh arrays: what
 * is not written stays 0xAB. */
static void run_device(struct run *r, const float *x, int n, int n_like)
{
    size_t n_x = (size_t)n * (size_t)r->s.n_in, used = outputs_of(r, n);
    struct k_product p = product_of(r, n_like);
    bool half = p.y_is_half, residual = r->kind == K_PRODUCT_RESIDUAL;
    float *f;

    p.w = &r->dev_w;
    p.x = r->type == K_E4M3 ? gpu_half(x, n_x) : (void *)gpu_bf16(x, n_x);
    p.bias = n_like > 2 ? r->dev_bias : NULL;
    p.sums_in = n_like % 2 == 1 ? r->dev_sums_in : NULL;
    p.norm = r->dev_norm;
    p.y = gpu_array(NULL, used * (r->kind == K_PRODUCT_FLOAT ? 4 : 2));
    p.normed = gpu_array(NULL, used * 2);
    p.sums_out = gpu_array(NULL, parts_of(r, n) * 4);
    p.residual = gpu_array(r->residual, used * 4);
    gpu_must(k_multiply(&p, n, SMS, device_cuda_stream(gpu)));
    if (r->kind == K_PRODUCT_FLOAT || residual) {
        ok(gpu_get(r->y, residual ? p.residual : p.y, used * 4), "guard bands are whole");
    } else {
        f = half && r->kind == K_PRODUCT_GATED ? gpu_half_floats(p.y, used) : gpu_floats(p.y, used);
        memcpy(r->y, f, used * 4);
        free(f);
    }
    if (!residual)
        return;
    f = half ? gpu_half_floats(p.normed, used) : gpu_floats(p.normed, used);
    memcpy(r->normed, f, used * 4);
    free(f);
    ok(gpu_get(r->sums, p.sums_out, parts_of(r, n) * 4), "guard bands are whole");
}

static void compare_rows(struct run *r, int n)
{
    size_t used = outputs_of(r, n), width = outputs_of(r, 1), n_in = (size_t)r->s.n_in;
    bool is_float = r->kind == K_PRODUCT_FLOAT, residual = r->kind == K_PRODUCT_RESIDUAL, same;
    double limit = 1e-9, worst = 1e-4;
    float *first = malloc(used * 4), *other = malloc((size_t)n * n_in * 4);
    int row = n / 2;
    char name[160];

    run_reference(r, n);
    if (product_of(r, n).y_is_half) { /* what is clamped */
        for (size_t i = 0; i < used && r->kind == K_PRODUCT_GATED; i++)
            r->want[i] = fminf(fmaxf(r->want[i], -65504.0f), 65504.0f);
    }
    run_device(r, r->x, n, n);
    memcpy(first, r->y, used * 4);
    (void)snprintf(name, sizeof name, "kind %d, %s %d x %d, %d rows", (int)r->kind,
                   r->type == K_E4M3   ? "e4m3"
                   : r->type == K_INT8 ? "int8"
                                       : "bf16",
                   r->s.n_out, r->s.n_in, n);
    if (is_float || residual)
        gpu_compare(r->y, r->want, used, limit, worst, name);
    else
        gpu_compare(r->y, r->want, used, 1e-5, 8e-3, name);
    if (residual) {
        gpu_compare(r->normed, r->want_normed, used, 1e-5, 8e-3, "its normed rows");
        gpu_compare(r->sums, r->want_sums, parts_of(r, n), 10 * limit, 1e-3, "its squares");
    }
    run_device(r, r->x, n, n);
    same = memcmp(first, r->y, used * 4) == 0;
    /* All rows but one are others, and one of them is not a number. */
    for (size_t i = 0; i < (size_t)n * n_in; i++)
        other[i] = i / n_in == (size_t)row ? r->x[i] : -2.0f * r->x[i];
    if (n > 1)
        other[(size_t)(row == 0 ? 1 : 0) * n_in + 3] = NAN;
    run_device(r, other, n, n);
    same = same && memcmp(first + (size_t)row * width, r->y + (size_t)row * width, width * 4) == 0;
    ok(same, "%s: the same bits again, and in other company", name);
    if (n > 1 && k_multiply_bucket(&r->dev_w, n - 1) == k_multiply_bucket(&r->dev_w, n)) {
        run_device(r, r->x, n - 1, n);
        ok(memcmp(first, r->y, (used - width) * 4) == 0, "%s: the same bits with a row fewer",
           name);
    }
    free(first), free(other);
}

/* From 1 to n_max rows: all of them, or some of each bucket. */
static void compare_kind(enum k_product_kind kind, struct shape s, enum k_type type, bool small,
                         int n_max, bool all)
{
    const struct k_format format = is_scaled(type) ? k_format_by_row(type) : k_format_bare(type);
    const struct k_matrix w = {.format = format, .n_out = s.n_out, .n_in = s.n_in};
    struct run r = {0};

    for (int n = 1; n <= n_max; n += all || n < 5 ? 1 : n < 11 ? 3 : n < 32 ? 7 : 13) {
        if (!k_multiply_takes(&w, n) || !gpu_has_turn())
            continue;
        if (r.w == NULL) /* a part of the cases need not make the arrays of all */
            run_open(&r, kind, s, type, small, n_max);
        compare_rows(&r, n);
    }
    run_close(&r);
}

/* e4m3 with scales of blocks; for the reference they are part of w. */
static void compare_blocks(enum k_product_kind kind, struct shape s)
{
    static const int rows[] = {1, 2, 3, 5, 8, 9, 15, 16};
    const struct k_format format = k_format_in_groups(K_E4M3, K_E4M3_BLOCK, K_E4M3_BLOCK);
    size_t n_scales = k_format_n_scales(&format, s.n_out, s.n_in);
    struct run r = {0};
    float *scales;

    if (!gpu_has_turn())
        return;
    run_open(&r, kind, s, K_E4M3, false, 64);
    scales = gpu_random(n_scales, 0.02f);
    for (int row = 0; row < s.n_out; row++) {
        r.scales[row] = 1.0f;
        for (int col = 0; col < s.n_in; col++)
            r.w[(size_t)row * (size_t)s.n_in + (size_t)col] *=
                scales[row / K_E4M3_BLOCK * k_format_scale_cols(&format, s.n_in) +
                       col / K_E4M3_BLOCK];
    }
    r.dev_w.format = format;
    r.dev_w.scales = gpu_array(scales, n_scales * sizeof *scales);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        compare_rows(&r, rows[i]);
    free(scales);
    run_close(&r);
}

/* A matrix of random codes, zeros and scales in records, on the device and, as numbers, in w. */
static void *random_packed(float *w, const float *row_scales, const struct k_format *format,
                           struct shape s)
{
    const struct k_packing packing = k_packing_of(format);
    size_t strip_bytes = k_packed_strip_bytes(&packing, s.n_in);
    size_t n_numbers = (size_t)(16 * (s.n_in / packing.group));
    size_t bytes = k_packed_bytes(&packing, s.n_out, s.n_in);
    uint8_t *all = malloc(bytes), *codes = malloc((size_t)s.n_in * 16), *zeros = malloc(n_numbers);
    uint16_t *scales = malloc(n_numbers * sizeof *scales);
    const struct k_unpacked from = {codes, (uint8_t *)scales, zeros};
    /* codes of 8 bits are 16 times larger */
    float half = packing.bits == 8 ? 127.99f : 7.99f, scale = 0.16f / half;
    float zero = packing.bits == 8 ? 127.99f : 8.49f; /* of 4 bits 0 .. 16, as GPTQ has it */
    const struct k_matrix m = {
        .data = all, .scales = row_scales, .format = *format, .n_out = s.n_out, .n_in = s.n_in};
    void *dev;

    for (int row = 0; row < s.n_out; row += 16) {
        for (size_t i = 0; i < (size_t)s.n_in * 16; i++)
            codes[i] = (uint8_t)((gpu_uniform() + 1.0f) * half);
        for (size_t i = 0; i < n_numbers; i++) {
            _Float16 narrow = (_Float16)(scale * gpu_uniform());

            scales[i] = gpu_round(scale * gpu_uniform());
            if (format->scale == K_F16)
                memcpy(&scales[i], &narrow, 2);
            if (packing.is_float) /* exponents of five binades, and some of the smallest */
                ((uint8_t *)scales)[i] = (uint8_t)((gpu_uniform() + 1.0f) * 19.99f + 200.0f) %
                                         (gpu_uniform() < -0.9f ? 7 : 256);
            zeros[i] = (uint8_t)((gpu_uniform() + 1.0f) * zero);
        }
        k_pack_strip(all + (size_t)(row / 16) * strip_bytes, &packing, &from, 16, s.n_in);
    }
    ref_dequantise(w, &m, 0, s.n_out);
    dev = gpu_array(all, bytes);
    free(all), free(codes), free(zeros), free(scales);
    return dev;
}

/* All of a packed matrix as bfloat16: the reference's weights, rounded once. */
static void check_widened(const struct run *r)
{
    size_t n = (size_t)r->s.n_out * (size_t)r->s.n_in;
    k_bf16 *dev = gpu_array(NULL, n * sizeof *dev);
    float *got;
    size_t n_wrong = 0;

    gpu_must(k_dequantise(dev, &r->dev_w, 0, r->s.n_out, device_cuda_stream(gpu)));
    got = gpu_floats(dev, n);
    for (size_t i = 0; i < n; i++)
        n_wrong += got[i] != gpu_widen(gpu_round(r->w[i]));
    ok(n_wrong == 0, "%d x %d as bfloat16: %zu weights are wrong", r->s.n_out, r->s.n_in, n_wrong);
    free(got);
}

/* Codes in records. */
static void compare_packed(enum k_product_kind kind, struct shape s, struct k_format format,
                           bool all)
{
    struct run r = {0};
    float *row_scales;

    if (!gpu_has_turn())
        return;
    run_open(&r, kind, s, K_BF16, false, 64);
    row_scales = gpu_random((size_t)s.n_out, 0.01f);
    r.dev_w.data = random_packed(r.w, row_scales, &format, s);
    r.dev_w.format = format;
    if (format.group_rows > 0)
        r.dev_w.scales = gpu_array(row_scales, (size_t)s.n_out * sizeof *row_scales);
    check_widened(&r);
    ok(k_multiply_takes(&r.dev_w, 64), "a packed matrix of %d x %d is taken", s.n_out, s.n_in);
    for (int n = 1; n <= 64; n += all || n < 5 ? 1 : n < 11 ? 3 : n < 32 ? 7 : 13)
        compare_rows(&r, n);
    free(row_scales);
    run_close(&r);
}

/* n rows by k_multiply_many() into r->y. */
static void run_many(struct run *r, const float *x, int n, void *work)
{
    size_t used = outputs_of(r, n);
    bool is_float = r->kind == K_PRODUCT_FLOAT;
    const struct k_product p = {.kind = r->kind,
                                .x = gpu_bf16(x, (size_t)n * (size_t)r->s.n_in),
                                .w = &r->dev_w,
                                .bias = is_float ? NULL : r->dev_bias,
                                .y = gpu_array(NULL, used * (is_float ? 4 : 2))};

    gpu_must(k_multiply_many(&p, n, work, SMS, device_cuda_stream(gpu)));
    if (is_float) {
        ok(gpu_get(r->y, p.y, used * 4), "guard bands are whole");
    } else {
        float *f = gpu_floats(p.y, used);

        memcpy(r->y, f, used * 4);
        free(f);
    }
}

/* Rows that are compared, besides the last one. */
static const int many_rows[] = {0,   1,   7,   8,   62,  64,  65,  90,  95,  96,  100,
                                127, 128, 129, 150, 161, 191, 192, 255, 256, 280, 299};
#define MANY_ROWS (sizeof many_rows / sizeof many_rows[0])

/* The reference of a row. */
static void many_reference(struct run *r, int row)
{
    struct k_matrix w = {.data = r->w, .n_out = r->s.n_out, .n_in = r->s.n_in};
    const struct k_product p = {.kind = r->kind,
                                .x = r->x + (size_t)row * (size_t)r->s.n_in,
                                .w = &w,
                                .bias = r->kind == K_PRODUCT_FLOAT ? NULL : r->bias,
                                .y = r->want + (size_t)row * (size_t)r->s.n_out};

    ref_multiply(&p, 1);
}

/* Compare some of n rows of y. */
static void many_compare(struct run *r, int n, const char *name)
{
    size_t width = (size_t)r->s.n_out, n_got = 0;
    float *got = malloc((MANY_ROWS + 1) * width * 4), *want = malloc((MANY_ROWS + 1) * width * 4);
    bool is_float = r->kind == K_PRODUCT_FLOAT;

    many_reference(r, n - 1);
    for (size_t i = 0; i <= MANY_ROWS; i++) {
        int row = i < MANY_ROWS ? many_rows[i] : n - 1;

        if (row >= n)
            continue;
        memcpy(got + n_got * width, r->y + (size_t)row * width, width * 4);
        memcpy(want + n_got++ * width, r->want + (size_t)row * width, width * 4);
    }
    gpu_compare(got, want, n_got * width, is_float ? 1e-8 : 1e-5, is_float ? 1e-3 : 8e-3, name);
    free(got), free(want);
}

/* Codes in records of many rows; the same bits again, and in other company. */
static void compare_many(enum k_product_kind kind, struct shape s, struct k_format format, int step)
{
    static const int rows[] = {300, 65, 96, 257, 128, 97, 192, 64, 130, 256, 1, 161};
    size_t width = (size_t)s.n_out, n_in = (size_t)s.n_in, bytes = k_multiply_many_bytes(SMS);
    bool is_float = format.group_rows > 0;
    char *zeros = calloc(1, bytes), name[160];
    struct run r = {0};
    float *row_scales, *first, *other;
    void *work;

    if (!gpu_has_turn()) {
        free(zeros);
        return;
    }
    run_open(&r, kind, s, K_BF16, false, rows[0]);
    row_scales = gpu_random(width, 0.01f);
    r.dev_w.data = random_packed(r.w, row_scales, &format, s);
    r.dev_w.format = format;
    if (is_float)
        r.dev_w.scales = gpu_array(row_scales, width * sizeof *row_scales);
    work = gpu_array(zeros, bytes);
    first = malloc(outputs_of(&r, r.n_max) * 4), other = malloc((size_t)r.n_max * n_in * 4);
    /* Codes become bfloat16; floats do so exactly, before they are multiplied by their row's
     * scale. */
    for (size_t i = 0; i < width * n_in && !is_float; i++)
        r.w[i] = gpu_widen(gpu_round(r.w[i]));
    for (size_t i = 0; i < MANY_ROWS; i++)
        many_reference(&r, many_rows[i]);
    ok(k_multiply_many_takes(&r.dev_w), "a packed matrix of %d x %d is taken", s.n_out, s.n_in);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i += (size_t)step) {
        int n = rows[i], row = n / 2;
        size_t used = outputs_of(&r, n);
        bool same;

        run_many(&r, r.x, n, work);
        memcpy(first, r.y, used * 4);
        (void)snprintf(name, sizeof name, "many, kind %d, %s, group %d, %d x %d, %d rows",
                       (int)kind, is_float ? "floats" : "codes", k_packing_of(&format).group,
                       s.n_out, s.n_in, n);
        many_compare(&r, n, name);
        run_many(&r, r.x, n, work);
        same = memcmp(first, r.y, used * 4) == 0;
        for (size_t j = 0; j < (size_t)n * n_in; j++)
            other[j] = j / n_in == (size_t)row ? r.x[j] : -2.0f * r.x[j];
        if (n > 1)
            other[(size_t)(row == 0 ? 1 : 0) * n_in + 3] = NAN;
        run_many(&r, other, n, work);
        same =
            same && memcmp(first + (size_t)row * width, r.y + (size_t)row * width, width * 4) == 0;
        ok(same, "%s: the same bits again, and in other company", name);
    }
    free(zeros), free(row_scales), free(first), free(other);
    run_close(&r);
}

/* Shapes with tiles that are not full, that many CTAs share, and in which runs end. */
static void compare_all_many(void)
{
    static const struct shape shapes[] = {{32, 128},   {544, 640},   {1536, 2048},
                                          {512, 7168}, {10240, 512}, {36032, 128}};
    static const int groups[] = {128, 128, 64, 32};

    if (k_is_portable())
        return;
    for (int i = 0; i < 4 * (int)(sizeof shapes / sizeof shapes[0]); i++) {
        const struct shape s = shapes[i / 4];
        enum k_product_kind kind = i % 2 == 0 ? K_PRODUCT_PLAIN : K_PRODUCT_FLOAT;

        compare_many(
            kind, s,
            k_format_packed(i % 4 == 2 ? K_F16 : K_BF16, groups[(i + i / 4) % 4], i % 3 == 2),
            i == 12      ? 1
            : i / 4 == 5 ? 6
                         : 3);
        if (i % 4 < 2)
            compare_many(kind, s, k_format_float4(i % 4 == 0 ? 16 : 32), 5);
    }
    compare_many(K_PRODUCT_FLOAT, (struct shape){4096, 4096}, k_format_packed(K_BF16, 128, false),
                 3);
}

/* Bytes by row: shapes of all cuts, of which a kernel differs from e4m3's in few places. */
static void compare_all_signed(void)
{
    static const struct shape shapes[] = {{64, 128},   {1040, 512}, {96, 1024},
                                          {512, 7168}, {6144, 512}, {256, 28672}};
    static const struct {
        enum k_product_kind kind;
        struct shape s;
    } large[] = {{K_PRODUCT_PLAIN, {36000, 128}},
                 {K_PRODUCT_FLOAT, {44400, 128}},
                 {K_PRODUCT_GATED, {28672, 256}},
                 {K_PRODUCT_RESIDUAL, {4096, 256}},
                 {K_PRODUCT_RESIDUAL, {20480, 128}}};

    for (int i = 0; i < (int)(4 * sizeof shapes / sizeof shapes[0]); i++)
        compare_kind((enum k_product_kind)(K_PRODUCT_PLAIN + i % 4), shapes[i / 4], K_INT8, false,
                     64, i == 7);
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++)
        compare_kind(large[i].kind, large[i].s, K_INT8, false, 58, false);
}

/* Codes of 8 bits: the smallest and the largest matrix of a tile, several tiles and passes; a scale
 * for each record, and for less. */
static void compare_all_bytes(void)
{
    static const struct shape shapes[] = {{32, 128},   {64, 1920},  {544, 640},
                                          {6144, 512}, {512, 7168}, {10240, 512}};

    for (int i = 0; i < (int)(4 * sizeof shapes / sizeof shapes[0]); i++)
        compare_packed((enum k_product_kind)(K_PRODUCT_PLAIN + i % 4), shapes[i / 4],
                       k_format_int8(i % 3 == 0 ? K_F16 : K_BF16,
                                     i % 5 == 3   ? 32
                                     : i % 5 == 4 ? 64
                                                  : 128,
                                     i % 7 > 4),
                       i == 11);
    for (int kind = K_PRODUCT_PLAIN; kind <= K_PRODUCT_RESIDUAL; kind++)
        compare_packed(kind, (struct shape){36032, 128},
                       k_format_int8(K_F16, kind % 2 == 0 ? 128 : 32, kind > 1), false);
    compare_packed(K_PRODUCT_PLAIN, (struct shape){256, 14336}, k_format_int8(K_F16, 32, true),
                   false);
    compare_packed(K_PRODUCT_RESIDUAL, (struct shape){256, 28672},
                   k_format_int8(K_BF16, 128, false), false);
}

/* All arrangements, and shapes whose clusters, warps and passes are cut in all ways. */
static void compare_all_packed(void)
{
    static const struct shape shapes[] = {{32, 128},   {64, 1920},  {544, 640},
                                          {6144, 512}, {512, 7168}, {10240, 512}};

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int kind = K_PRODUCT_PLAIN; kind <= K_PRODUCT_RESIDUAL; kind++)
            compare_packed(kind, shapes[i],
                           k_format_packed(i % 2 == 0 ? K_BF16 : K_F16, i < 3 ? 128 : 32 << i % 3,
                                           (kind + (int)i) % 2 == 1),
                           i == 2 && kind == K_PRODUCT_RESIDUAL);
    }
    /* several tiles a CTA */
    for (int kind = K_PRODUCT_PLAIN; kind <= K_PRODUCT_RESIDUAL; kind++)
        compare_packed(kind, (struct shape){36032, 128}, k_format_packed(K_F16, 64, true), false);
    for (int i = 0; i < (int)(4 * sizeof shapes / sizeof shapes[0]); i++)
        compare_packed((enum k_product_kind)(K_PRODUCT_PLAIN + i % 4), shapes[i / 4],
                       k_format_float4(i % 3 == 0 ? 32 : 16), i == 11);
    for (int kind = K_PRODUCT_PLAIN; kind <= K_PRODUCT_RESIDUAL; kind++)
        compare_packed(kind, (struct shape){36032, 128}, k_format_float4(16), false);
    compare_packed(K_PRODUCT_RESIDUAL, (struct shape){256, 28672}, k_format_float4(16), false);
    compare_packed(K_PRODUCT_PLAIN, (struct shape){256, 14336}, k_format_float4(32), false);
    compare_packed(K_PRODUCT_PLAIN, (struct shape){256, 14336}, k_format_packed(K_F16, 128, true),
                   false);
    compare_packed(K_PRODUCT_RESIDUAL, (struct shape){256, 28672},
                   k_format_packed(K_BF16, 128, false), false);
}

/* A shape that is cut so: blocks of a tile, several tiles a CTA. */
struct large_case {
    enum k_product_kind kind;
    struct shape s;
    int n_blocks;
    bool several;
};

static void compare_large(const struct large_case *l, enum k_type type)
{
    const struct k_matrix w = {.format = {.elem = type}, .n_out = l->s.n_out, .n_in = l->s.n_in};
    struct product_cut c = {0};

    ok(product_cut_of(&c, &w, l->kind, 32, SMS) && (c.n_split == 2 || c.n_blocks == l->n_blocks) &&
           (c.n_tiles > c.n_groups) == l->several,
       "%d x %d is cut into tiles of %d blocks", l->s.n_out, l->s.n_in, c.n_blocks);
    compare_kind(l->kind, l->s, type, false, 58, false);
}

/* Tiles that two CTAs share. Of 48 rows the middle sixteen are both CTAs'; of two blocks, which
 * tiles of a matrix of odd rows have, the CTAs read each other's sums; the last tile of 3000 or
 * 5000 rows has none for the second CTA; of 25 slabs one CTA may have one stage more. */
struct shared_case {
    enum k_product_kind kind;
    enum k_type type;
    struct shape s;
    int rows, n_blocks;
    bool uneven;
};

static void compare_shared(const struct shared_case *k)
{
    const struct k_matrix w = {.format = {.elem = k->type}, .n_out = k->s.n_out, .n_in = k->s.n_in};
    struct product_cut c = {0};
    bool cut = product_cut_of(&c, &w, k->kind, 32, SMS);
    int less = c.n_slabs / 2, more = c.n_slabs - less;

    ok(cut && c.n_split == 2 && c.rows == k->rows && c.n_blocks == k->n_blocks &&
           ((less + c.box - 1) / c.box != (more + c.box - 1) / c.box) == k->uneven,
       "%d x %d is cut into shared tiles of %d rows, %d blocks", k->s.n_out, k->s.n_in, c.rows,
       c.n_blocks);
    compare_kind(k->kind, k->s, k->type, false, 58, false);
}

/* Large matrices, of which copies are late and out of order: the same bits again and again. What
 * they are, compare_kind() says. */
static void compare_again(enum k_product_kind kind, struct shape s, enum k_type type)
{
    enum { TURNS = 24 };
    static const int rows[] = {3, 8, 16, 25, 32, 48, 64};
    const struct k_matrix w = {.format = {.elem = type}, .n_out = s.n_out, .n_in = s.n_in};
    struct run r = {0};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int n = rows[i], same = 0;
        size_t bytes;
        float *first;

        if (!k_multiply_takes(&w, n) || !gpu_has_turn())
            continue;
        if (r.w == NULL)
            run_open(&r, kind, s, type, false, 64);
        bytes = outputs_of(&r, n) * sizeof(float);
        first = malloc(bytes);
        run_device(&r, r.x, n, n);
        memcpy(first, r.y, bytes);
        for (int turn = 0; turn < TURNS; turn++) {
            run_device(&r, r.x, n, n);
            same += memcmp(first, r.y, bytes) == 0;
        }
        ok(same == TURNS, "kind %d, %s %d x %d, %d rows: the same bits %d times of %d", (int)kind,
           type == K_E4M3 ? "e4m3" : "bf16", s.n_out, s.n_in, n, same, TURNS);
        free(first);
    }
    run_close(&r);
}

static void compare_embed(int n, int dim, bool is_half)
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
    gpu_must(k_embed_normed(x_dev, normed_dev, is_half, sums_dev,
                            gpu_bf16(table, (size_t)VOCAB * (size_t)dim),
                            gpu_array(back, sizeof back), gpu_array(ids, sizeof ids),
                            gpu_bf16(norm, (size_t)dim), n, dim, device_cuda_stream(gpu)));
    ok(gpu_get(got, x_dev, n_x * 4) && memcmp(got, x, n_x * 4) == 0, "embedding, %d x %d", n, dim);
    got_normed = is_half ? gpu_half_floats(normed_dev, n_x) : gpu_floats(normed_dev, n_x);
    gpu_compare(got_normed, normed, n_x, 1e-5, 8e-3, "its normed rows");
    ok(gpu_get(got, sums_dev, n_x / 16 * 4), "guard bands are whole");
    gpu_compare(got, sums, n_x / 16, 1e-10, 1e-4, "its squares");
    free(table), free(norm), free(x), free(normed), free(sums), free(got), free(got_normed);
}

/* The cases of compare_shared(). */
static const struct shared_case shared[] = {
    {K_PRODUCT_PLAIN, K_BF16, {3000, 1600}, 48, 1, false},
    {K_PRODUCT_FLOAT, K_BF16, {3000, 512}, 48, 1, false},
    {K_PRODUCT_FLOAT, K_BF16, {2999, 512}, 48, 2, false},
    {K_PRODUCT_RESIDUAL, K_BF16, {2992, 1600}, 64, 1, true},
    {K_PRODUCT_PLAIN, K_BF16, {5000, 640}, 80, 2, false},
    {K_PRODUCT_FLOAT, K_BF16, {5000, 640}, 80, 2, false},
    {K_PRODUCT_PLAIN, K_E4M3, {3000, 1280}, 48, 1, false},
    {K_PRODUCT_PLAIN, K_E4M3, {2999, 1280}, 48, 2, false},
    {K_PRODUCT_FLOAT, K_E4M3, {3000, 3200}, 48, 1, true},
    {K_PRODUCT_RESIDUAL, K_E4M3, {2992, 1280}, 64, 1, false},
    {K_PRODUCT_PLAIN, K_E4M3, {5000, 1024}, 80, 2, false},
    {K_PRODUCT_FLOAT, K_E4M3, {5000, 1024}, 80, 2, false},
};

/* With an argument, those in records alone; "many": of many rows alone. */
int main(int argc, char **argv)
{
    static const struct shape shapes[] = {{64, 128},    {256, 256},  {1040, 512}, {96, 1024},
                                          {2048, 2048}, {512, 7168}, {336, 640}};

    /* every end of a tile, of one, two and four blocks, of one and of several tiles a CTA */
    static const struct large_case large[] = {
        {K_PRODUCT_PLAIN, {36000, 128}, 1, true},     {K_PRODUCT_FLOAT, {44400, 128}, 1, true},
        {K_PRODUCT_FLOAT, {15000, 128}, 2, false},    {K_PRODUCT_FLOAT, {70000, 128}, 2, true},
        {K_PRODUCT_FLOAT, {76040, 128}, 4, true},     {K_PRODUCT_GATED, {28672, 256}, 4, false},
        {K_PRODUCT_GATED, {57344, 128}, 4, true},     {K_PRODUCT_PLAIN, {10240, 256}, 2, false},
        {K_PRODUCT_PLAIN, {20480, 128}, 4, false},    {K_PRODUCT_RESIDUAL, {4096, 256}, 1, false},
        {K_PRODUCT_RESIDUAL, {10240, 256}, 2, false}, {K_PRODUCT_RESIDUAL, {20480, 128}, 4, false},
    };

    gpu_open();
    if (argc > 1) { /* records alone; with "many" or "bytes" those of many rows, or of 8 bits */
        bool is_many = strcmp(argv[1], "many") == 0, is_bytes = strcmp(argv[1], "bytes") == 0;

        if (!is_many && !is_bytes)
            compare_all_packed();
        if (!is_bytes)
            compare_all_many();
        if (!is_many) {
            compare_all_bytes();
            compare_all_signed();
        }
        device_close(gpu);
        return tap_done();
    }
    for (int b = 0; b < 256; b++)
        e4m3_table[b] = e4m3_value((uint8_t)b);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int kind = K_PRODUCT_PLAIN; kind <= K_PRODUCT_RESIDUAL; kind++) {
            compare_kind(kind, shapes[i], K_BF16, false, 64, i == 1);
            compare_kind(kind, shapes[i], K_E4M3, i == 1, 64, i == 1);
        }
    }
    compare_kind(K_PRODUCT_FLOAT, (struct shape){1003, 256}, K_BF16, false, 32, false);
    compare_kind(K_PRODUCT_PLAIN, (struct shape){1002, 1024}, K_E4M3, false, 32, false);
    for (int kind = K_PRODUCT_PLAIN; kind <= K_PRODUCT_RESIDUAL; kind++) {
        compare_blocks(kind, (struct shape){64, 128});
        compare_blocks(kind, (struct shape){2304, 640});
        compare_blocks(kind, (struct shape){5120, 2176});
    }
    compare_all_packed();
    compare_all_many();
    compare_all_bytes();
    compare_all_signed();
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        compare_shared(&shared[i]);
    for (int i = 0; i < 2; i++) {
        enum k_type type = i == 0 ? K_BF16 : K_E4M3;

        compare_kind(K_PRODUCT_PLAIN, (struct shape){6144, 896}, type, false, 17, false);
        compare_kind(K_PRODUCT_FLOAT, (struct shape){36004, 128}, type, false, 58, false);
        compare_kind(K_PRODUCT_GATED, (struct shape){36016, 128}, type, false, 32, false);
        compare_kind(K_PRODUCT_GATED, (struct shape){1006, 256}, type, false, 58, false);
        for (size_t k = 0; k < sizeof large / sizeof large[0]; k++)
            compare_large(&large[k], type);
        compare_again(K_PRODUCT_PLAIN, (struct shape){6144, 4096}, type);
        compare_again(K_PRODUCT_GATED, (struct shape){28672, 4096}, type);
        compare_again(K_PRODUCT_RESIDUAL, (struct shape){4096, 14336}, type);
        compare_again(K_PRODUCT_FLOAT, (struct shape){40000, 2048}, type);
    }
    compare_embed(1, 64, false), compare_embed(7, 4096, false), compare_embed(7, 4096, true);
    device_close(gpu);
    return tap_done();
}
