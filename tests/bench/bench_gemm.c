/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products of a model's shapes on the GPU: cuBLASLt's guess against the best that measuring
 * finds, and the table of what was found.
 *
 *   bench_gemm FOLDER TABLE KINDS ROWS...
 *
 * FOLDER holds config.json; KINDS is a list like bf16,e4m3,e4m3-block; ROWS are numbers, or
 * FIRST-LAST for all buckets of that range. What TABLE holds already is kept, and is written back
 * with what was measured here. TABLE "-" measures what would be run without one and writes none.
 * Weights and inputs are random; enough copies of the weights are used in turn that they come
 * from memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/gemm_cuda.h"
#include "device/gemm_table.h"
#include "model/hf_config.h"

#define ROWS_MAX        8192
#define CACHE_BYTES     ((size_t)256 << 20) /* weights take turns in at least so much */
#define WORKSPACE_BYTES ((size_t)32 << 20)  /* as the device has */
#define LIMIT_BF16      682.0 /* TFLOP/s that cuBLASLt reached on an H200 at 8192 rows */
#define LIMIT_E4M3      1330.0

struct bench {
    struct device *d;
    struct gemm *g;
    const char *table;
    void *x, *y, *w;
    float *w_scales, *x_scales;
    size_t w_cap;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_gemm: %s\n", what);
    exit(1);
}

static void *alloc(struct bench *b, size_t bytes)
{
    void *p = b->d->ops->alloc(b->d, bytes);

    if (p == NULL)
        die("out of memory");
    return p;
}

/* Random elements of a type; the scales are all alike. */
static void fill(struct bench *b, void *at, enum k_type type, size_t n)
{
    k_stream s = device_cuda_stream(b->d);
    int rc =
        type == K_BF16 ? k_fill_random(at, n, 1.0f, 1, s) : k_fill_random_e4m3(at, n, 64.0f, 1, s);

    if (rc != 0)
        die("the GPU failed");
}

static void allocate(struct bench *b, size_t largest_in, size_t largest_out, size_t largest)
{
    size_t n_scales = ROWS_MAX * (largest_in / 128 + 4);
    float *ones = malloc(n_scales * sizeof *ones);

    b->w_cap = 2 * largest > CACHE_BYTES ? 2 * largest : CACHE_BYTES;
    b->w_cap += largest;
    b->w = alloc(b, b->w_cap);
    b->x = alloc(b, ROWS_MAX * largest_in * 2);
    b->y = alloc(b, ROWS_MAX * largest_out * 4);
    b->x_scales = alloc(b, n_scales * sizeof *ones);
    b->w_scales = alloc(b, n_scales * sizeof *ones);
    for (size_t i = 0; i < n_scales; i++)
        ones[i] = 0.01f;
    if (b->d->ops->upload(b->d, b->x_scales, ones, n_scales * sizeof *ones) != ERR_OK ||
        b->d->ops->upload(b->d, b->w_scales, ones, n_scales * sizeof *ones) != ERR_OK)
        die("the GPU failed");
    free(ones);
}

static struct k_format format_of(enum gemm_kind kind)
{
    if (kind == GEMM_BF16 || kind == GEMM_BF16_FLOAT)
        return (struct k_format){.elem = K_BF16};
    return kind == GEMM_E4M3_BLOCK ? k_format_in_groups(K_E4M3, 128, 128) : k_format_by_row(K_E4M3);
}

static void measure(struct bench *b, enum gemm_kind kind, int n, int n_out, int n_in)
{
    bool is_bf16 = kind == GEMM_BF16 || kind == GEMM_BF16_FLOAT, tunes = strcmp(b->table, "-") != 0;
    struct k_matrix w = {.data = b->w,
                         .scales = is_bf16 ? NULL : b->w_scales,
                         .format = format_of(kind),
                         .n_out = n_out,
                         .n_in = n_in};
    struct gemm_product p = {.y = b->y,
                             .x = b->x,
                             .w = &w,
                             .x_scales = b->x_scales,
                             .n = n,
                             .y_is_float = kind == GEMM_BF16_FLOAT || kind == GEMM_E4M3_FLOAT};
    size_t bytes = (size_t)n_out * (size_t)n_in * (is_bf16 ? 2 : 1);
    int n_copies = (int)(b->w_cap / bytes);
    double flops = 2.0 * n * n_out * n_in, limit = is_bf16 ? LIMIT_BF16 : LIMIT_E4M3;
    struct gemm_timing t = {.n_candidates = 1};
    k_stream s = device_cuda_stream(b->d);
    int rc = tunes ? gemm_tune(b->g, &p, n_copies, s, &t)
                   : gemm_time(b->g, &p, n_copies, s, &t.guess_us);

    if (rc != ERR_OK)
        die("a product failed");
    if (!tunes)
        t.best_us = t.guess_us;
    printf("%-10s %5d x %6d x %5d: guess %8.1f us %5.0f TFLOP/s, best %8.1f us %5.0f TFLOP/s "
           "(%3.0f%% of %.0f, %4.2f TB/s), candidate %d of %d\n",
           gemm_kind_name(kind), n, n_out, n_in, (double)t.guess_us,
           flops / (double)t.guess_us * 1e-6, (double)t.best_us, flops / (double)t.best_us * 1e-6,
           flops / (double)t.best_us * 1e-4 / limit, limit,
           (double)bytes / (double)t.best_us * 1e-6, t.best, t.n_candidates);
    fflush(stdout);
}

/* All products of a layer; of the head where the kind is the head's. */
static void measure_rows(struct bench *b, enum gemm_kind kind, const struct hf_config *c, int n)
{
    int q = c->n_heads * c->head_dim, qkv = q + 2 * c->n_kv_heads * c->head_dim;

    if (kind == GEMM_BF16_FLOAT || kind == GEMM_E4M3_FLOAT) {
        measure(b, kind, n, c->n_vocab, c->dim);
        return;
    }
    measure(b, kind, n, qkv, c->dim);
    measure(b, kind, n, c->dim, q);
    measure(b, kind, n, 2 * c->ff_dim, c->dim);
    measure(b, kind, n, c->dim, c->ff_dim);
}

static void measure_kind(struct bench *b, enum gemm_kind kind, const struct hf_config *c,
                         char **rows)
{
    bool is_bf16 = kind == GEMM_BF16 || kind == GEMM_BF16_FLOAT;
    enum k_type type = is_bf16 ? K_BF16 : K_E4M3;
    size_t widest = (size_t)(c->dim > c->ff_dim ? c->dim : c->ff_dim);

    fill(b, b->w, type, b->w_cap / (is_bf16 ? 2 : 1));
    fill(b, b->x, type, ROWS_MAX * widest);
    for (; *rows != NULL; rows++) {
        int first = 0, last = 0;

        if (sscanf(*rows, "%d-%d", &first, &last) < 2)
            last = first;
        if (first < 1 || last > ROWS_MAX)
            die("ROWS are 1 to 8192");
        for (int n = gemm_rows(first); n <= last; n = gemm_rows(n + 1))
            measure_rows(b, kind, c, n);
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.d = NULL};
    struct hf_config c;
    size_t widest, largest;

    if (argc < 5)
        die("FOLDER TABLE KINDS ROWS... are needed");
    if (hf_config_read(&c, argv[1], NULL) != ERR_OK || device_cuda_open(&b.d, 0) != ERR_OK)
        die("no model or no GPU");
    widest = (size_t)(c.dim > c.ff_dim ? c.dim : c.ff_dim);
    largest = (size_t)c.n_vocab * (size_t)c.dim * 2;
    if (largest < (size_t)c.ff_dim * (size_t)c.dim * 4)
        largest = (size_t)c.ff_dim * (size_t)c.dim * 4;
    b.table = argv[2];
    allocate(&b, widest, (size_t)(2 * c.ff_dim > c.n_vocab ? 2 * c.ff_dim : c.n_vocab), largest);
    if (gemm_open(&b.g, alloc(&b, WORKSPACE_BYTES), WORKSPACE_BYTES, b.d->name) != ERR_OK)
        die("no cuBLASLt");
    if (strcmp(b.table, "-") != 0)
        gemm_read(b.g, b.table, false);
    for (int kind = 0; kind < GEMM_KINDS; kind++) {
        char wanted[200], name[40];

        (void)snprintf(wanted, sizeof wanted, ",%s,", argv[3]);
        (void)snprintf(name, sizeof name, ",%s,", gemm_kind_name((enum gemm_kind)kind));
        if (strstr(wanted, name) != NULL)
            measure_kind(&b, (enum gemm_kind)kind, &c, argv + 4);
    }
    if (strcmp(b.table, "-") != 0 && gemm_write(b.g, b.table) != ERR_OK)
        die("the table is not written");
    gemm_close(b.g);
    device_close(b.d);
    return 0;
}
