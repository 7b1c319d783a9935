/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of rows_general.cu against their references: activations, norms, multipliers,
 * embeddings of layers.
 * Results are rounded to bfloat16 once, 2^-9 relative: NMSE about 3e-6, worst 4e-3 of the largest;
 * those in float32 are nearer. */
#include "tests/kernel/gpu.h"

static const struct {
    int n, dim;
} shapes[] = {{1, 2}, {3, 37}, {7, 60}, {5, 256}, {2, 1000}, {257, 64}, {9, 4096}, {3, 14336}};

static void check_activation(enum k_activation kind, int n, int dim)
{
    size_t size = (size_t)n * (size_t)dim;
    float *in = gpu_random(2 * size, 4.0f), *want = malloc(size * 4), *got;
    k_bf16 *din = gpu_bf16(in, 2 * size), *out = gpu_array(NULL, size * 2);
    k_stream s = device_cuda_stream(gpu);
    char name[80];

    snprintf(name, sizeof name, "activation %d of %d x %d", (int)kind, n, dim);
    ref_activate(want, in, kind, size);
    gpu_must(k_activate(out, false, din, kind, size, s));
    got = gpu_floats(out, size);
    gpu_compare(got, want, size, 5e-6, 4.1e-3, name);
    free(got);
    if (size % 16 == 0) {
        gpu_must(k_activate(out, true, din, kind, size, s));
        got = gpu_half_floats(out, size);
        gpu_compare(got, want, size, 5e-6, 4.1e-3, "as float16");
        free(got);
    }
    ref_gate(want, in, kind, n, dim);
    gpu_must(k_gate(out, din, kind, n, dim, s));
    got = gpu_floats(out, size);
    gpu_compare(got, want, size, 5e-6, 4.1e-3, "with a gate");
    free(in), free(want), free(got);
}

static void check_norm(enum k_norm_kind kind, bool has_bias, int n, int dim)
{
    int stride = dim + 5;
    size_t size = (size_t)n * (size_t)dim, wide = (size_t)n * (size_t)stride;
    float *x = gpu_random(size, 3.0f), *rows = gpu_random(wide, 3.0f), *want = malloc(size * 4);
    float *weight = gpu_random((size_t)dim, 2.0f), *bias = gpu_random((size_t)dim, 1.0f), *got;
    struct k_norm host = {kind, weight, has_bias ? bias : NULL, 1e-5f}, dev = host;
    k_bf16 *out = gpu_array(NULL, size * 2), *within;
    k_stream s = device_cuda_stream(gpu);
    char name[80];

    for (size_t i = 0; i < size; i++)
        x[i] += 2.0f; /* a mean that matters */
    dev.weight = gpu_bf16(weight, (size_t)dim);
    dev.bias = has_bias ? gpu_bf16(bias, (size_t)dim) : NULL;
    snprintf(name, sizeof name, "norm %d%s of %d x %d", (int)kind, has_bias ? ", bias" : "", n,
             dim);
    ref_norm(want, x, &host, n, dim);
    gpu_must(k_norm_rows(out, gpu_array(x, size * 4), &dev, n, dim, s));
    got = gpu_floats(out, size);
    gpu_compare(got, want, size, 5e-6, 4.1e-3, name);
    free(got);
    within = gpu_bf16(rows, wide);
    ref_norm_within(rows, stride, &host, n, dim);
    gpu_must(k_norm_within(within, stride, &dev, n, dim, s));
    got = gpu_floats(within, wide);
    gpu_compare(got, rows, wide, 5e-6, 4.1e-3, "in place");
    free(x), free(rows), free(want), free(weight), free(bias), free(got);
}

/* Rows of dim queries and dim / 2 keys per rank, of the last of three ranks. */
static void check_split_norm(int n, int dim, bool counts)
{
    enum { RANKS = 3 };
    int k = (dim + 1) / 2, stride = dim + 2 * k;
    size_t wide = (size_t)n * (size_t)stride, size = (size_t)n * K_SQUARES(RANKS);
    float *x = gpu_random(wide, 3.0f), *weight = gpu_random((size_t)(dim + k), 2.0f);
    float *want = malloc(size * 4), *got;
    struct k_split_norms host = {.q = {weight, dim, dim * RANKS, true},
                                 .k = {weight + dim, k, k * RANKS, counts},
                                 .stride = stride,
                                 .eps = 1e-5f,
                                 .rank = RANKS - 1,
                                 .n_ranks = RANKS};
    struct k_split_norms dev = host;
    k_bf16 *rows = gpu_bf16(x, wide), *squares = gpu_array(NULL, size * 2);
    k_stream s = device_cuda_stream(gpu);

    dev.q.weight = gpu_bf16(weight, (size_t)dim);
    dev.k.weight = gpu_bf16(weight + dim, (size_t)k);
    ref_squares(want, x, &host, n);
    gpu_must(k_squares(squares, rows, &dev, n, s));
    got = gpu_floats(squares, size);
    for (size_t i = 0; i < size; i += 4) { /* the parts of sums that differ in a bit differ */
        want[i] += want[i + 1] + want[i + 2];
        got[i] += got[i + 1] + got[i + 2];
        want[i + 1] = want[i + 2] = got[i + 1] = got[i + 2] = 0.0f;
    }
    gpu_compare(got, want, size, 1e-11, 1e-5, "squares of a rank");
    free(got);
    for (size_t i = 0; i < size; i++)
        want[i] = 0.25f * (float)(dim + (int)(i % 4)); /* exact in bf16 up to 8 bits */
    squares = gpu_bf16(want, size);
    got = gpu_floats(squares, size);
    memcpy(want, got, size * 4);
    free(got);
    ref_norm_squares(x, want, &host, n);
    gpu_must(k_norm_squares(rows, squares, &dev, n, s));
    got = gpu_floats(rows, wide);
    gpu_compare(got, x, wide, 5e-6, 4.1e-3, "norm by the squares of all ranks");
    free(x), free(weight), free(want), free(got);
}

/* Of the first dim - 1 elements of each row. */
static void check_growth(int n, int dim, const int32_t *pos)
{
    const struct k_growth growth = {0.4f, 3, 0};
    size_t size = (size_t)n * (size_t)dim;
    float *x = gpu_random(size, 2.0f), *got;
    k_bf16 *dx = gpu_bf16(x, size);

    ref_grow(x, dim, dim - 1, &growth, pos, n);
    gpu_must(k_grow(dx, dim, dim - 1, &growth, gpu_array(pos, (size_t)n * 4), n,
                    device_cuda_stream(gpu)));
    got = gpu_floats(dx, size);
    gpu_compare(got, x, size, 5e-6, 4.1e-3, "grown");
    free(x), free(got);
}

static void check_elements(int n, int dim)
{
    size_t size = (size_t)n * (size_t)dim, table_size = (size_t)(n + 2) * (size_t)dim;
    float *x = gpu_random(size, 3.0f), *delta = gpu_random(size, 1.0f), *got = malloc(size * 4);
    float *table = gpu_random(table_size, 1.0f), *dx = gpu_array(x, size * 4);
    int32_t *pos = malloc((size_t)n * 4);
    k_stream s = device_cuda_stream(gpu);

    for (int i = 0; i < n; i++)
        pos[i] = (i * 5 + 1) % n;
    ref_place(x, 1.7f, table, pos, 2, n, dim);
    gpu_must(k_place(dx, 1.7f, gpu_bf16(table, table_size), gpu_array(pos, (size_t)n * 4), 2, n,
                     dim, s));
    ok(gpu_get(got, dx, size * 4), "guard bands are whole");
    gpu_compare(got, x, size, 1e-12, 1e-6, "placed");
    check_growth(n, dim, pos);
    ref_add(x, delta, 0.3f, size);
    gpu_must(k_add(dx, gpu_bf16(delta, size), 0.3f, size, s));
    ok(gpu_get(got, dx, size * 4), "guard bands are whole");
    gpu_compare(got, x, size, 1e-12, 1e-6, "added");
    ref_soften(x, &(struct k_softening){delta, 2.5f, 6.0f}, n, dim);
    gpu_must(
        k_soften(dx, &(struct k_softening){gpu_bf16(delta, (size_t)dim), 2.5f, 6.0f}, n, dim, s));
    ok(gpu_get(got, dx, size * 4), "guard bands are whole");
    gpu_compare(got, x, size, 1e-11, 2e-6, "softened");
    free(x), free(delta), free(got), free(table), free(pos);
}

/* A sum in bfloat16, and a factor whose rows are the middle of longer ones. */
static void check_factors(enum k_activation kind, int n, int dim)
{
    size_t size = (size_t)n * (size_t)dim, wide = 3 * size;
    float *in = gpu_random(size, 3.0f), *rows = gpu_random(wide, 2.0f), *want = malloc(size * 4);
    struct k_factor by = {rows + dim, 3 * dim, dim}, dev = by;
    k_bf16 *din = gpu_bf16(in, size), *drows = gpu_bf16(rows, wide);
    k_bf16 *out = gpu_array(NULL, size * 2);
    k_stream s = device_cuda_stream(gpu);
    float *got;

    dev.rows = drows + dim;
    ref_gate_by(want, in, &by, kind, n);
    gpu_must(k_gate_by(out, din, &dev, kind, n, s));
    got = gpu_floats(out, size);
    gpu_compare(got, want, size, 5e-6, 4.1e-3, "multiplied by rows");
    free(got);
    ref_add(in, rows, 1.0f, size);
    gpu_must(k_add_within(din, drows, size, s));
    got = gpu_floats(din, size);
    gpu_compare(got, in, size, 5e-6, 4.1e-3, "added in bfloat16");
    free(in), free(rows), free(want), free(got);
}

/* With and without each norm; the residual is float32. */
static void check_adding(int n, int dim)
{
    static const enum k_norm_kind kinds[][2] = {
        {K_NORM_RMS, K_NORM_RMS}, {K_NORM_RMS, K_NORM_NONE}, {K_NORM_NONE, K_NORM_RMS}};
    size_t size = (size_t)n * (size_t)dim;
    float *first = gpu_random(size, 3.0f), *delta = gpu_random(size, 2.0f);
    float *weights = gpu_random(2 * (size_t)dim, 2.0f), *x = malloc(size * 4);
    float *want = malloc(size * 4), *got;
    k_bf16 *ddelta = gpu_bf16(delta, size), *out = gpu_array(NULL, size * 2);
    k_stream s = device_cuda_stream(gpu);

    for (int i = 0; i < 4; i++) {
        const enum k_norm_kind *kind = kinds[i % 3];
        struct k_adding host = {{kind[0], weights, NULL, 1e-2f},
                                {kind[1], weights + dim, NULL, 1e-5f},
                                i == 1 ? 1.0f : 0.7f,
                                i == 0 ? 1.0f : 1.3f};
        struct k_adding dev = host;
        float *dx = gpu_array(first, size * 4);

        dev.after.weight = gpu_bf16(weights, (size_t)dim);
        dev.norm.weight = gpu_bf16(weights + dim, (size_t)dim);
        memcpy(x, first, size * 4);
        ref_add_normed(i == 3 ? NULL : want, x, delta, &host, n, dim);
        gpu_must(k_add_normed(i == 3 ? NULL : out, dx, ddelta, &dev, n, dim, s));
        got = malloc(size * 4);
        ok(gpu_get(got, dx, size * 4), "guard bands are whole");
        gpu_compare(got, x, size, 1e-11, 2e-6, "sums with a norm and a scale");
        free(got);
        got = gpu_floats(out, size);
        if (i < 3)
            gpu_compare(got, want, size, 5e-6, 4.1e-3, "and their norm");
        free(got);
    }
    free(first), free(delta), free(weights), free(x), free(want);
}

/* Ids below 0 stand for sampled ones, of which the reference sees the real ones. */
static void check_embeds(int n, int n_layers, int width)
{
    enum { VOCAB = 7 };
    size_t row = (size_t)n_layers * (size_t)width, size = (size_t)n * row;
    float *x = gpu_random(size, 3.0f), *table = gpu_random(VOCAB * row, 1.0f), *got;
    float *weight = gpu_random((size_t)width, 2.0f);
    struct k_layer_embeds host = {table, weight, 1.7f, 0.6f, 1e-2f, n_layers, width}, dev = host;
    int32_t *real = malloc((size_t)n * 4), *ids = malloc((size_t)n * 4);
    k_bf16 *dx = gpu_bf16(x, size);

    for (int i = 0; i < n; i++) {
        real[i] = (i * 5 + 3) % VOCAB;
        ids[i] = i % 3 == 1 ? -1 - i : real[i];
    }
    dev.table = gpu_bf16(table, VOCAB * row);
    dev.weight = gpu_bf16(weight, (size_t)width);
    ref_embed_layers(x, &host, real, n);
    gpu_must(k_embed_layers(dx, &dev, gpu_array(ids, (size_t)n * 4), gpu_array(real, (size_t)n * 4),
                            n, device_cuda_stream(gpu)));
    got = gpu_floats(dx, size);
    gpu_compare(got, x, size, 5e-6, 4.1e-3, "embedded for each layer");
    free(x), free(table), free(weight), free(real), free(ids), free(got);
}

int main(void)
{
    gpu_open();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int n = shapes[i].n, dim = shapes[i].dim;

        for (int kind = K_SILU; kind <= K_SWISH_CLAMPED; kind++)
            check_activation((enum k_activation)kind, n, dim);
        check_norm(K_NORM_RMS, false, n, dim);
        check_norm(K_NORM_LAYER, false, n, dim);
        check_norm(K_NORM_LAYER, true, n, dim);
        check_norm(K_NORM_NONE, false, n, dim);
        check_split_norm(n, dim, true);
        check_split_norm(n, dim, false);
        check_elements(n, dim);
        check_factors(K_GELU_TANH, n, dim);
        check_adding(n, dim);
    }
    check_embeds(1, 3, 12);
    check_embeds(5, 42, 256);
    check_embeds(33, 7, 300);
    device_close(gpu);
    return tap_done();
}
