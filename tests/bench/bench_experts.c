/* SPDX-License-Identifier: Apache-2.0
 *
 * An FFN of experts, in the shapes of Qwen3-30B-A3B and gpt-oss, of few tokens and of many.
 *
 *   bench_experts [TOKENS[,TOKENS...] [FORMAT]]      1,8,32,64,8192, all formats
 *
 * A line for each shape, format and number of tokens: experts that are touched, microseconds of the
 * whole (routing, both products, sum), of the routing, of the products and of the sum; the share of
 * the time of a read of the touched experts at 4.65 TB/s, an H200's, that the products take; and
 * TFLOP/s of the products. A graph of some layers with weights of their own is launched again and
 * again; tokens are random, so routes are nearly even. */
#include <string.h>

#include "kernels/e4m3.h"
#include "kernels/mixing.h"
#include "kernels/mxfp4.h"
#include "tests/bench/cuda.h"

#define LIMIT_BYTES_S 4.65e12
#define LAYERS        12 /* of a graph */
#define COPIES        3  /* layers that have weights of their own */
#define ROUNDS        5
#define SMS           132
#define TOKENS_MAX    8192
#define NUMBERS_MAX   16

static const struct shape {
    const char *name;
    int n_experts, n_used, dim, ff_dim;
} shapes[] = {{"Qwen3-30B-A3B", 128, 8, 2048, 768},
              {"gpt-oss-20b", 32, 4, 2880, 2880},
              {"gpt-oss-120b", 128, 4, 2880, 2880}};

enum part { PART_ALL, PART_ROUTE, PART_PRODUCTS, PART_SUM };

struct bench {
    struct shape s;
    struct k_router router;
    struct k_experts experts[COPIES];
    struct k_mixing m;
    k_bf16 *x, *out; /* [TOKENS_MAX + LAYERS][dim]: a layer begins a row further on */
    cudaStream_t stream;
};

/* The zeros are there before the stream writes, which does not wait for other streams. */
static void *alloc(size_t bytes)
{
    void *p = NULL;

    bench_must(cudaMalloc(&p, bytes) != cudaSuccess || cudaMemset(p, 0, bytes) != cudaSuccess ||
                   cudaDeviceSynchronize() != cudaSuccess,
               "memory");
    return p;
}

/* A matrix of noise of all experts; scales are all the same. */
static struct k_matrix make_matrix(const struct bench *b, struct k_format f, int n_out, int n_in,
                                   uint64_t seed)
{
    size_t n = (size_t)n_out * (size_t)n_in, n_scales = k_format_n_scales(&f, n_out, n_in);
    struct k_matrix w = {.format = f, .n_out = n_out, .n_in = n_in};
    float *scales;

    if (k_format_is_mxfp4(&f)) {
        size_t bytes = (size_t)b->s.n_experts * k_mxfp4_bytes(n_out / b->s.n_experts, n_in);

        w.data = alloc(bytes);
        bench_must(k_fill_random_mxfp4(w.data, bytes, seed, b->stream), "random numbers");
        return w;
    }
    w.data = alloc((size_t)n_out * k_format_row_bytes(&f, n_in));
    if (k_format_is_plain(&f)) {
        bench_must(k_fill_random(w.data, n, 0.02f, seed, b->stream), "random numbers");
        return w;
    }
    bench_must(k_fill_random_e4m3(w.data, n, 64.0f, seed, b->stream), "random numbers");
    scales = malloc(n_scales * sizeof *scales);
    for (size_t i = 0; i < n_scales; i++)
        scales[i] = 0.02f / 64.0f;
    w.scales = bench_array(scales, n_scales * sizeof *scales);
    free(scales);
    return w;
}

static void open_shape(struct bench *b, const struct shape *s, struct k_format f)
{
    const struct k_mixing_sizes sizes = {.n_tokens = TOKENS_MAX,
                                         .n_used = s->n_used,
                                         .n_choices = s->n_experts,
                                         .n_experts = s->n_experts,
                                         .ff_dim = s->ff_dim,
                                         .dim = s->dim};
    size_t n_w = (size_t)s->n_experts * (size_t)s->dim, rows = TOKENS_MAX + LAYERS;
    float *w = malloc(n_w * sizeof *w);
    uint64_t seed = 1;

    b->s = *s;
    for (size_t i = 0; i < n_w; i++)
        w[i] = (float)(int)(bench_random(&seed) & 0xffff) * 0x1p-19f - 0.0625f;
    b->router = (struct k_router){.w = bench_array(w, n_w * sizeof *w),
                                  .n_experts = s->n_experts,
                                  .n_used = s->n_used,
                                  .n_groups = 1,
                                  .n_groups_used = 1,
                                  .group_best = 1,
                                  .scoring = K_SCORE_SOFTMAX,
                                  .renorms = true,
                                  .least = 1e-20f,
                                  .scale = 1.0f};
    free(w);
    for (int i = 0; i < COPIES; i++) {
        struct k_experts *e = &b->experts[i];

        *e = (struct k_experts){.n = s->n_experts, .ff_dim = s->ff_dim, .activation = K_SILU};
        e->in = make_matrix(b, f, s->n_experts * 2 * s->ff_dim, s->dim, 2 * (uint64_t)i);
        e->down = make_matrix(b, f, s->n_experts * s->dim, s->ff_dim, 2 * (uint64_t)i + 1);
    }
    (void)k_mixing_place(&b->m, alloc(k_mixing_place(&b->m, NULL, &sizes)), &sizes);
    b->x = alloc(rows * (size_t)s->dim * sizeof *b->x);
    b->out = alloc(rows * (size_t)s->dim * sizeof *b->out);
    bench_must(k_fill_random(b->x, rows * (size_t)s->dim, 1.0f, 99, b->stream), "random numbers");
}

static void close_shape(struct bench *b)
{
    bench_must(cudaStreamSynchronize(b->stream) != cudaSuccess, "the end");
    for (int i = 0; i < COPIES; i++) {
        (void)cudaFree(b->experts[i].in.data);
        (void)cudaFree(b->experts[i].down.data);
        (void)cudaFree((void *)(uintptr_t)b->experts[i].in.scales);
        (void)cudaFree((void *)(uintptr_t)b->experts[i].down.scales);
    }
    (void)cudaFree((void *)(uintptr_t)b->router.w);
    (void)cudaFree(b->m.routes.ids); /* the first array of the work memory */
    (void)cudaFree(b->x);
    (void)cudaFree(b->out);
}

static void run_layer(struct bench *b, int layer, int n, enum part part)
{
    const struct k_experts *e = &b->experts[layer % COPIES];
    const k_bf16 *x = b->x + (size_t)layer * (size_t)b->s.dim;
    const struct k_combining c = {.n_used = b->s.n_used, .dim = b->s.dim};
    const struct k_mixing_end end = {b->out, &c, NULL};
    const struct k_mixing_input in = {x, x, NULL, &b->router, e, NULL, n, b->s.dim};

    if (part == PART_ALL)
        bench_must(k_mix_experts(&b->m, &in, &end, SMS, b->stream), "experts");
    if (part == PART_ROUTE)
        bench_must(k_route(&b->m, &in, b->stream), "routing");
    if (part == PART_PRODUCTS)
        bench_must(k_run_experts(&b->m, &in, NULL, SMS, b->stream), "products");
    if (part == PART_SUM)
        bench_must(k_combine(&b->m, &end, n, b->stream), "the sum");
}

/* Microseconds a layer of a graph. */
static double time_part(struct bench *b, int n, enum part part)
{
    float ms[ROUNDS];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t start, end;

    run_layer(b, 0, n, PART_ALL); /* loads modules, and makes routes for the parts */
    bench_must(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeRelaxed) != cudaSuccess,
               "recording");
    for (int layer = 0; layer < LAYERS; layer++)
        run_layer(b, layer, n, part);
    bench_must(cudaStreamEndCapture(b->stream, &graph) != cudaSuccess ||
                   cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess ||
                   cudaEventCreate(&start) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess,
               "recording");
    for (int round = -1; round < ROUNDS; round++) {
        float one = 0.0f;

        bench_must(cudaEventRecord(start, b->stream) != cudaSuccess ||
                       cudaGraphLaunch(exec, b->stream) != cudaSuccess ||
                       cudaEventRecord(end, b->stream) != cudaSuccess ||
                       cudaEventSynchronize(end) != cudaSuccess ||
                       cudaEventElapsedTime(&one, start, end) != cudaSuccess,
                   "playing");
        if (round >= 0)
            ms[round] = one;
    }
    (void)cudaGraphExecDestroy(exec), (void)cudaGraphDestroy(graph);
    (void)cudaEventDestroy(start), (void)cudaEventDestroy(end);
    return (double)bench_median(ms, ROUNDS) * 1e3 / LAYERS;
}

/* Bytes of an expert's matrix, with its scales. */
static double bytes_of(const struct k_matrix *w, int n_experts)
{
    double rows = (double)w->n_out / n_experts;

    if (k_format_is_mxfp4(&w->format))
        return rows * w->n_in * 17 / 32;
    return rows * (double)k_format_row_bytes(&w->format, w->n_in);
}

static void show(struct bench *b, const char *format, int n)
{
    const struct k_experts *e = &b->experts[0];
    double us[4], bytes, flops;
    int32_t touched = 0;

    for (int part = PART_ALL; part <= PART_SUM; part++)
        us[part] = time_part(b, n, (enum part)part);
    run_layer(b, 0, n, PART_ROUTE);
    bench_must(cudaMemcpyAsync(&touched, b->m.touched, sizeof touched, cudaMemcpyDeviceToHost,
                               b->stream) != cudaSuccess ||
                   cudaStreamSynchronize(b->stream) != cudaSuccess,
               "touched experts");
    bytes = touched * (bytes_of(&e->in, b->s.n_experts) + bytes_of(&e->down, b->s.n_experts));
    flops = 6.0 * n * b->s.n_used * (double)b->s.dim * b->s.ff_dim;
    printf("%-14s %-11s %5d tokens: %3d experts, %8.1f us: routing %6.1f, products %8.1f, sum "
           "%6.1f; %5.1f%% of a read, %6.1f TFLOP/s\n",
           b->s.name, format, n, touched, us[PART_ALL], us[PART_ROUTE], us[PART_PRODUCTS],
           us[PART_SUM], 100.0 * bytes / LIMIT_BYTES_S / (us[PART_PRODUCTS] * 1e-6),
           flops / us[PART_PRODUCTS] * 1e-6);
    fflush(stdout);
}

/* Numbers of tokens, separated by commas; returns how many. */
static int read_numbers(int numbers[NUMBERS_MAX], const char *text)
{
    int n = 0;

    for (const char *at = text; at != NULL && n < NUMBERS_MAX; at = strchr(at, ',')) {
        at += at != text;
        numbers[n] = atoi(at);
        if (numbers[n] < 1 || numbers[n] > TOKENS_MAX) {
            fprintf(stderr, "bench_experts: tokens are 1 to %d\n", TOKENS_MAX);
            exit(1);
        }
        n++;
    }
    return n;
}

int main(int argc, char **argv)
{
    const struct {
        const char *name;
        struct k_format format;
    } formats[] = {{"bf16", {.elem = K_BF16}},
                   {"e4m3 rows", k_format_by_row(K_E4M3)},
                   {"e4m3 blocks", k_format_in_groups(K_E4M3, K_E4M3_BLOCK, K_E4M3_BLOCK)},
                   {"MXFP4", k_format_mxfp4()}};
    int numbers[NUMBERS_MAX], n = read_numbers(numbers, argc > 1 ? argv[1] : "1,8,32,64,8192");
    struct bench b = {.x = NULL};

    bench_choose_kernels();
    bench_must(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking) != cudaSuccess,
               "a stream");
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
            if (formats[f].format.group_cols > K_MXFP4_GROUP &&
                shapes[s].ff_dim % K_E4M3_BLOCK != 0)
                continue; /* no checkpoint can have it */
            if (argc > 2 && strcmp(argv[2], formats[f].name) != 0)
                continue;
            if (shapes[s].n_experts * shapes[s].ff_dim > 200000 &&
                !k_format_is_mxfp4(&formats[f].format))
                continue; /* three layers would not have room */
            open_shape(&b, &shapes[s], formats[f].format);
            for (int i = 0; i < n; i++)
                show(&b, formats[f].name, numbers[i]);
            close_shape(&b);
        }
    }
    return 0;
}
