/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of few rows, as a decode has them: the four of each layer of Llama-3.1-8B, 32 layers as
 * one graph with overlapping launches; beside cuBLASLt's in the same run.
 *
 *   bench_product bf16|e4m3|int4|w4a8|int8|int8-128|int8-32|w8a8|nvfp4|mxfp4 ROWS[,ROWS...] [TABLE]
 *
 * A line of what a read of the largest matrix reaches in this run: GPUs of one name differ by some
 * percent. Then three for each number of rows: microseconds a layer and the share of the time of a
 * read of the weights at 4.65 TB/s, an H200's, of k_multiply() with what stands around the
 * products, of cuBLASLt's bare products, with the algorithms of TABLE, and of these with the row
 * operations that a step needs beside them (norms, activation, rounding to e4m3), which
 * k_multiply() has in it; then the same of each product alone, launched again and again on other
 * layers' weights. int8 is bytes with a scale for each row; int4, int8-128 and int8-32 are codes in
 * records with a scale of 16 bits for each 128 or 32 columns, nvfp4 and mxfp4 e2m1 in records with
 * a scale for each 16 or 32; for the library they become bf16 before each product; a line more is
 * cuBLASLt with matrices that are bf16. Above 64 rows the first line is k_multiply_many() bare, or
 * k_multiply() for each 64 rows, and there is no head; with bf16 the last line is the third, but
 * with the gate in the product of gate and up (gated.h). With w8a8, which is int8 otherwise, rows
 * are rounded to 8-bit whole numbers and multiplied as such.
 */
#include <string.h>
#include <time.h>

#include "device/gemm_cuda.h"
#include "kernels/bytes.h"
#include "kernels/gated.h"
#include "kernels/kernels.h"
#include "kernels/packed_many.h"
#include "tests/bench/cuda.h"

#define LIMIT_BYTES_S 4.65e12
#define LAYERS        32 /* of a graph */
#define COPIES        6  /* layers that have weights of their own */
#define HEADS         2
#define ROWS_ROOM     8192
#define WORKSPACE     ((size_t)32 << 20)
#define DIM           4096
#define FF            14336
#define QKV           6144
#define VOCAB         128256
#define SMS           132

enum { MAT_QKV, MAT_O, MAT_GATE_UP, MAT_DOWN, MAT_HEAD, MATS };

static const struct {
    const char *name;
    int n_out, n_in;
    enum k_product_kind kind;
} mats[MATS] = {{"qkv", QKV, DIM, K_PRODUCT_PLAIN},
                {"o", DIM, DIM, K_PRODUCT_RESIDUAL},
                {"gate_up", 2 * FF, DIM, K_PRODUCT_GATED},
                {"down", DIM, FF, K_PRODUCT_RESIDUAL},
                {"head", VOCAB, DIM, K_PRODUCT_FLOAT}};

struct bench {
    struct k_matrix w[COPIES][MATS];
    struct k_matrix plain[COPIES][MATS]; /* as bf16, where w is packed */
    void *x, *ff, *y, *norm;
    float *residual, *sums;
    struct k_quantised rounded; /* what a product of e4m3 reads */
    k_bf16 *widened;            /* what the library reads of packed matrices */
    void *work;                 /* of k_multiply_many() */
    cudaStream_t stream;
    struct gemm *gemm;
    struct k_format format;
};

int bench_read(int *out, const void *p, size_t bytes, k_stream stream);

static void *alloc(size_t bytes)
{
    void *p = NULL;

    bench_must(cudaMalloc(&p, bytes) != cudaSuccess || cudaMemset(p, 0, bytes) != cudaSuccess,
               "memory");
    return p;
}

static void *alloc_random(struct bench *b, enum k_type type, size_t n, float deviation,
                          uint64_t seed)
{
    void *p = alloc(n * (type == K_BF16 ? 2 : 1));
    int rc = type == K_E4M3   ? k_fill_random_e4m3(p, n, deviation, seed, b->stream)
             : type == K_INT8 ? k_fill_random_bytes(p, n, 64.0f, seed, b->stream)
                              : k_fill_random(p, n, deviation, seed, b->stream);

    bench_must(rc, "random numbers");
    return p;
}

/* Codes in records. */
static void alloc_packed(struct bench *b, struct k_matrix *w, uint64_t seed)
{
    w->data = alloc((size_t)w->n_out * k_format_row_bytes(&w->format, w->n_in));
    bench_must(k_fill_random_packed(w, 0.02f, seed, b->stream), "random codes");
}

/* A product in which codes of 4 bits and x are rounded to bytes first. */
static void round_both(struct bench *b, const struct k_matrix *w, const void *x, int n)
{
    const struct k_bytes of_x = k_bytes_in(b->rounded.data, n, w->n_in);
    const struct k_bytes of_w = k_bytes_in(b->widened, w->n_out, w->n_in);
    struct k_matrix run = {.data = of_w.data,
                           .scales = of_w.scales,
                           .format = k_format_by_row(K_INT8),
                           .n_out = w->n_out,
                           .n_in = w->n_in};

    run.format.rounds_x = true;
    bench_must(k_round_bytes(&of_x, x, n, w->n_in, b->stream), "rounding");
    bench_must(k_round_codes(of_w.data, of_w.scales, w, 0, w->n_out, b->stream), "rounding codes");
    bench_must(k_multiply_bytes(b->y, w->n_out, &of_x, &run, NULL, n, SMS, b->stream), "a product");
}

static void own(struct bench *b, int layer, int mat, int n)
{
    const struct k_matrix *w = &b->w[layer % COPIES][mat];
    bool of_normed = mat == MAT_QKV || mat == MAT_GATE_UP || mat == MAT_HEAD;
    struct k_product p = {.kind = mats[mat].kind,
                          .x = mat == MAT_DOWN ? b->ff : b->x,
                          .w = w,
                          .sums_in = of_normed ? b->sums : NULL,
                          .n_sums = DIM / 16,
                          .eps = 1e-5f,
                          .y_is_half = k_format_reads_half(&w->format),
                          .y = mat == MAT_GATE_UP ? b->ff : b->y,
                          .residual = b->residual,
                          .norm = b->norm,
                          .normed = b->y,
                          .sums_out = b->sums};

    if (n > K_PRODUCT_ROWS_MAX)
        p.kind = mat == MAT_HEAD ? K_PRODUCT_FLOAT : K_PRODUCT_PLAIN;
    if (n > K_PRODUCT_ROWS_MAX && w->format.elem == K_INT4 && w->format.rounds_x) {
        round_both(b, w, p.x, n);
        return;
    }
    if (n > K_PRODUCT_ROWS_MAX && k_multiply_many_takes(w)) {
        p.sums_in = NULL;
        p.y = b->y; /* gate and up are not joined */
        bench_must(k_multiply_many(&p, n, b->work, SMS, b->stream), "a product");
        return;
    }
    if (n > K_PRODUCT_ROWS_MAX && k_multiply_bytes_takes(w)) {
        const struct k_bytes bytes = k_bytes_in(b->widened, n, w->n_in);

        bench_must(k_round_bytes(&bytes, p.x, n, w->n_in, b->stream), "rounding");
        bench_must(k_multiply_bytes(b->y, w->n_out, &bytes, w, NULL, n, SMS, b->stream),
                   "a product");
        return;
    }
    for (int row = 0; row < n; row += K_PRODUCT_ROWS_MAX) {
        p.x = (const k_bf16 *)(mat == MAT_DOWN ? b->ff : b->x) + (size_t)row * (size_t)w->n_in;
        bench_must(k_multiply(&p, n - row < K_PRODUCT_ROWS_MAX ? n - row : K_PRODUCT_ROWS_MAX, SMS,
                              b->stream),
                   "a product");
    }
}

static void library(struct bench *b, int layer, int mat, int n)
{
    const struct k_matrix *w = &b->w[layer % COPIES][mat];
    struct gemm_product p = {.y = b->y,
                             .x = mat == MAT_DOWN ? b->ff : b->x,
                             .w = w,
                             .x_scales = k_format_reads_codes(&w->format) ? b->sums : NULL,
                             .n = n,
                             .y_is_float = mat == MAT_HEAD};
    const struct k_matrix plain = {.data = b->widened, .n_out = w->n_out, .n_in = w->n_in};

    if (k_format_is_packed(&w->format)) {
        bench_must(k_dequantise(b->widened, w, 0, w->n_out, b->stream), "widening");
        p.w = &plain;
    } else if (w->format.elem == K_INT8) {
        bench_must(k_widen_codes(b->widened, w, 0, w->n_out, b->stream), "widening");
        p.w = &plain;
    }
    bench_must(gemm_run(b->gemm, &p, b->stream), "a product of the library");
}

/* The library's product with a matrix of bf16. */
static void plain(struct bench *b, int layer, int mat, int n)
{
    const struct gemm_product p = {.y = b->y,
                                   .x = mat == MAT_DOWN ? b->ff : b->x,
                                   .w = &b->plain[layer % COPIES][mat],
                                   .n = n,
                                   .y_is_float = mat == MAT_HEAD};

    bench_must(gemm_run(b->gemm, &p, b->stream), "a product of the library");
}

/* With the row operations that stand before a product, and behind gate and up. Before the head a
 * step has one more. */
static void stepped(struct bench *b, int layer, int mat, int n)
{
    bool e4m3 = k_format_reads_codes(&b->w[layer % COPIES][mat].format);
    int rc = 0;

    if (mat == MAT_QKV || mat == MAT_GATE_UP || mat == MAT_HEAD)
        rc = e4m3 ? k_add_rmsnorm_e4m3(&b->rounded, b->residual, b->ff, b->norm, 1e-5f, n, DIM,
                                       b->stream)
                  : k_add_rmsnorm(b->x, b->residual, b->ff, b->norm, 1e-5f, n, DIM, b->stream);
    else if (mat == MAT_O && e4m3)
        rc = k_quantise(&b->rounded, b->x, n, DIM, b->stream);
    library(b, layer, mat, n);
    if (rc == 0 && mat == MAT_GATE_UP)
        rc = e4m3 ? k_silu_mul_e4m3(&b->rounded, b->y, n, FF, b->stream)
                  : k_silu_mul(b->ff, b->y, n, FF, b->stream);
    bench_must(rc, "a row operation");
}

/* The same with the gate in the product of gate and up. */
static void gated(struct bench *b, int layer, int mat, int n)
{
    if (mat != MAT_GATE_UP) {
        stepped(b, layer, mat, n);
        return;
    }
    bench_must(k_add_rmsnorm(b->x, b->residual, b->ff, b->norm, 1e-5f, n, DIM, b->stream),
               "a row operation");
    bench_must(k_multiply_gated(b->ff, b->x, &b->w[layer % COPIES][mat], n, SMS, b->stream),
               "a product");
}

/* The matrix as bytes that are looked at and nothing more. */
static void read_only(struct bench *b, int layer, int mat, int n)
{
    const struct k_matrix *w = &b->w[layer % COPIES][mat];

    (void)n;
    bench_must(bench_read(b->y, w->data, (size_t)w->n_out * k_format_row_bytes(&w->format, w->n_in),
                          b->stream),
               "a read");
}

typedef void (*run_fn)(struct bench *b, int layer, int mat, int n);

/* Products take so much power that the clock is lower for a while after them: all begin rested. */
static void rest(void)
{
    const struct timespec pause = {.tv_nsec = 100000000};

    (void)nanosleep(&pause, NULL);
}

/* Microseconds of a graph of the products first .. last of so many layers, over layers. */
static double time_graph(struct bench *b, run_fn run, int layers, int first, int last, int n)
{
    enum { ROUNDS = 4 };
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t start, end;
    float ms = 0.0f, best = 1e30f;

    rest();
    run(b, 0, first, n); /* what is looked up is looked up */
    bench_must(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeRelaxed) != cudaSuccess,
               "graph");
    for (int i = 0; i < layers; i++) {
        for (int mat = first; mat <= last; mat++)
            run(b, i, mat, n);
    }
    bench_must(cudaStreamEndCapture(b->stream, &graph) != cudaSuccess, "graph");
    bench_must(cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess, "graph");
    bench_must(cudaEventCreate(&start) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess,
               "event");
    bench_must(cudaGraphLaunch(exec, b->stream) != cudaSuccess, "launch");
    for (int i = 0; i < ROUNDS; i++) {
        bench_must(cudaEventRecord(start, b->stream) != cudaSuccess, "event");
        bench_must(cudaGraphLaunch(exec, b->stream) != cudaSuccess, "launch");
        bench_must(cudaEventRecord(end, b->stream) != cudaSuccess, "event");
        bench_must(cudaEventSynchronize(end) != cudaSuccess, "running");
        bench_must(cudaEventElapsedTime(&ms, start, end) != cudaSuccess, "event");
        best = ms < best ? ms : best;
    }
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    (void)cudaEventDestroy(start);
    (void)cudaEventDestroy(end);
    return (double)best * 1e3 / layers;
}

static double bytes_of(const struct bench *b, int first, int last)
{
    double bytes = 0.0;

    for (int mat = first; mat <= last; mat++)
        bytes += mats[mat].n_out * (double)k_format_row_bytes(&b->w[0][mat].format, mats[mat].n_in);
    return bytes;
}

static void print(struct bench *b, const char *name, run_fn run, int n)
{
    double us = time_graph(b, run, LAYERS, MAT_QKV, MAT_DOWN, n);

    printf("%-9s %2d rows: layer %6.1f us %.3f", name, n, us,
           bytes_of(b, MAT_QKV, MAT_DOWN) / LIMIT_BYTES_S / (us * 1e-6));
    for (int mat = 0; mat < (n > K_PRODUCT_ROWS_MAX ? MAT_HEAD : MATS); mat++) {
        us = time_graph(b, run, mat == MAT_HEAD ? 6 : LAYERS, mat, mat, n);
        printf(" | %s %.1f %.3f", mats[mat].name, us,
               bytes_of(b, mat, mat) / LIMIT_BYTES_S / (us * 1e-6));
    }
    printf("\n");
    (void)fflush(stdout);
}

static void allocate(struct bench *b)
{
    float *ones = malloc((size_t)VOCAB * sizeof *ones);

    bench_must(ones == NULL, "memory");
    for (int i = 0; i < VOCAB; i++)
        ones[i] = 1.0f;
    for (int i = 0; i < COPIES; i++) {
        for (int mat = 0; mat < MATS; mat++) {
            struct k_matrix *w = &b->w[i][mat];
            size_t n = (size_t)mats[mat].n_out * (size_t)mats[mat].n_in;

            if (mat == MAT_HEAD && i >= HEADS) {
                *w = b->w[i % HEADS][mat];
                b->plain[i][mat] = *w;
                continue;
            }
            *w = (struct k_matrix){.n_out = mats[mat].n_out, .n_in = mats[mat].n_in};
            if (mat != MAT_HEAD)
                w->format = b->format;
            b->plain[i][mat] = *w;
            if (k_format_is_packed(&w->format)) {
                alloc_packed(b, w, (uint64_t)(i * MATS + mat + 1));
                b->plain[i][mat].format = k_format_bare(K_BF16);
                b->plain[i][mat].data =
                    alloc_random(b, K_BF16, n, 0.02f, (uint64_t)(i * MATS + mat + 1));
            } else
                b->plain[i][mat].data = w->data =
                    alloc_random(b, w->format.elem, n, 0.02f, (uint64_t)(i * MATS + mat + 1));
            if (w->format.group_rows > 0) {
                float *scales = alloc((size_t)w->n_out * sizeof *scales);

                bench_must(cudaMemcpy(scales, ones, (size_t)w->n_out * sizeof *scales,
                                      cudaMemcpyHostToDevice) != cudaSuccess,
                           "scales");
                w->scales = scales;
            }
        }
    }
    b->x = alloc_random(b, K_BF16, (size_t)ROWS_ROOM * FF, 1.0f, 1000);
    b->ff = alloc_random(b, K_BF16, (size_t)ROWS_ROOM * FF, 1.0f, 1001);
    b->norm = alloc_random(b, K_BF16, DIM, 1.0f, 1002);
    b->y = alloc((size_t)ROWS_ROOM * VOCAB * sizeof(float));
    b->residual = alloc((size_t)ROWS_ROOM * DIM * sizeof(float));
    b->sums = alloc((size_t)ROWS_ROOM * DIM / 16 * sizeof(float));
    b->widened = alloc((size_t)2 * FF * DIM * sizeof(k_bf16));
    b->work = alloc(k_multiply_many_bytes(SMS));
    b->rounded = (struct k_quantised){.data = alloc(k_bytes_size(ROWS_ROOM, FF)),
                                      .scales = alloc(ROWS_ROOM * sizeof(float))};
    bench_must(cudaStreamSynchronize(b->stream) != cudaSuccess, "filling");
    free(ones);
}

int main(int argc, char **argv)
{
    const struct {
        const char *name;
        struct k_format format;
    } formats[] = {{"bf16", k_format_bare(K_BF16)},
                   {"e4m3", k_format_by_row(K_E4M3)},
                   {"int4", k_format_packed(K_BF16, 128, false)},
                   {"w4a8", k_format_packed(K_BF16, 128, false)},
                   {"int8", k_format_by_row(K_INT8)},
                   {"int8-128", k_format_int8(K_BF16, 128, false)},
                   {"int8-32", k_format_int8(K_F16, 32, false)},
                   {"w8a8", k_format_by_row(K_INT8)},
                   {"nvfp4", k_format_float4(16)},
                   {"mxfp4", k_format_float4(32)}};
    struct bench b = {.x = NULL};
    bool known = false;
    struct cudaDeviceProp prop;
    char *rest;

    for (size_t i = 0; i < sizeof formats / sizeof formats[0] && argc > 1; i++) {
        if (strcmp(argv[1], formats[i].name) == 0)
            known = true, b.format = formats[i].format;
        b.format.rounds_x = strcmp(argv[1], "w8a8") == 0 || strcmp(argv[1], "w4a8") == 0;
    }
    if (argc < 3 || !known) {
        fprintf(stderr,
                "usage: bench_product bf16|e4m3|int4|w4a8|int8|int8-128|int8-32|w8a8|nvfp4|mxfp4 "
                "ROWS[,ROWS...] [TABLE]\n");
        return 2;
    }
    bench_choose_kernels();
    bench_must(cudaStreamCreate(&b.stream) != cudaSuccess, "stream");
    bench_must(cudaGetDeviceProperties(&prop, 0) != cudaSuccess, "device");
    allocate(&b);
    bench_must(gemm_open(&b.gemm, alloc(WORKSPACE), WORKSPACE, prop.name), "the library");
    if (argc > 3)
        gemm_read(b.gemm, argv[3], true);
    printf("a read of the head: %.3f TB/s\n",
           bytes_of(&b, MAT_HEAD, MAT_HEAD) / time_graph(&b, read_only, 6, MAT_HEAD, MAT_HEAD, 1) *
               1e-6);
    for (char *rows = argv[2]; *rows != '\0';) {
        int n = (int)strtol(rows, &rest, 10);

        rows = *rest == ',' ? rest + 1 : rest;
        if (n < 1 || n > ROWS_ROOM || (*rest != ',' && *rest != '\0')) {
            fprintf(stderr, "bench_product: rows are 1 to %d\n", ROWS_ROOM);
            return 2;
        }
        if ((n > K_PRODUCT_ROWS_MAX && !k_multiply_gated_takes(&b.w[0][MAT_GATE_UP])) ||
            (k_multiply_takes(&b.w[0][MAT_DOWN], n) && k_multiply_takes(&b.w[0][MAT_HEAD], n)))
            print(&b, "own", own, n);
        print(&b, "library", library, n);
        if (k_format_is_packed(&b.format))
            print(&b, "bf16", plain, n);
        if (n <= K_PRODUCT_ROWS_MAX || k_multiply_gated_takes(&b.w[0][MAT_GATE_UP]))
            print(&b, "+ rows", stepped, n);
        if (k_multiply_gated_takes(&b.w[0][MAT_GATE_UP]))
            print(&b, "gated", gated, n);
    }
    gemm_close(b.gemm);
    return 0;
}
