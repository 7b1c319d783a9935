/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast decode attention reads: random keys and values, pages in random order, several layers
 * in turn so that nothing is in the L2 cache.
 *
 *   bench_attn_decode [ROUNDS [SHAPES [FIRST]]]
 *
 * SHAPES of them, from number FIRST on. One line a shape: microseconds of one layer (median of the
 * rounds, each a graph of all layers), the bytes of keys and values over that time as a share of
 * 4.65 TB/s, an H200's read bandwidth, and as a share of what a plain read of as many bytes takes
 * in the same run; with a window its keys and values count, and all heads have sinks. Then the
 * times of a layer that rotates, that may begin early, too, and that norms heads, too. */
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/bench/cuda.h"

#define LIMIT_BYTES_S 4.65e12
#define PATTERN_BYTES ((size_t)64 << 20)
#define ROUNDS_MAX    200

int bench_read(int *out, const void *p, size_t bytes, k_stream stream);

struct shape {
    const char *name;
    int n_seqs, len;   /* sequences of this length */
    int n_long, long_; /* and of this one */
    int n_layers;
    int n_heads, n_kv_heads, head_dim;
    int window;    /* with sinks; 0: all tokens, without */
    int value_dim; /* of latents, whose values begin their keys; 0: values of their own */
    int run;       /* decodes of each sequence, which end with its last key; 0: one */
    int apart;     /* their keys are read for each */
};

static const struct shape shapes[] = {
    {"64 x 8192", 64, 8192, 0, 0, 2, 32, 8, 128, 0, 0, 0, 0},
    {"131072 + 31 x 4096", 31, 4096, 1, 131072, 4, 32, 8, 128, 0, 0, 0, 0},
    {"256 x 1536", 256, 1536, 0, 0, 2, 32, 8, 128, 0, 0, 0, 0},
    {"256 x 100", 256, 100, 0, 0, 8, 32, 8, 128, 0, 0, 0, 0},
    {"16 x 1024", 16, 1024, 0, 0, 16, 32, 8, 128, 0, 0, 0, 0},
    {"1 x 128", 1, 128, 0, 0, 64, 32, 8, 128, 0, 0, 0, 0},
    {"1 x 1024", 1, 1024, 0, 0, 64, 32, 8, 128, 0, 0, 0, 0},
    {"1 x 8192", 1, 8192, 0, 0, 32, 32, 8, 128, 0, 0, 0, 0},
    {"1 x 131072", 1, 131072, 0, 0, 4, 32, 8, 128, 0, 0, 0, 0},
    {"64 x 4096, 64/8 x 128", 64, 4096, 0, 0, 2, 64, 8, 128, 0, 0, 0, 0},
    {"64 x 4096, 16/1 x 128", 64, 4096, 0, 0, 8, 16, 1, 128, 0, 0, 0, 0},
    {"64 x 4096, 32/8 x 64", 64, 4096, 0, 0, 4, 32, 8, 64, 0, 0, 0, 0},
    {"64 x 4096, 32/8 x 80", 64, 4096, 0, 0, 4, 32, 8, 80, 0, 0, 0, 0},
    {"64 x 4096, 32/32 x 96", 64, 4096, 0, 0, 1, 32, 32, 96, 0, 0, 0, 0},
    {"64 x 4096, 8/4 x 256", 64, 4096, 0, 0, 2, 8, 4, 256, 0, 0, 0, 0},
    {"64 x 8192, last 128, 64/8 x 64", 64, 8192, 0, 0, 12, 64, 8, 64, 128, 0, 0, 0},
    {"64 x 4096, 16/2 x 512", 64, 4096, 0, 0, 2, 16, 2, 512, 0, 0, 0, 0},
    {"1 x 1024, 16/2 x 512", 1, 1024, 0, 0, 32, 16, 2, 512, 0, 0, 0, 0},
    {"1 x 32768, 16/2 x 512", 1, 32768, 0, 0, 8, 16, 2, 512, 0, 0, 0, 0},
    {"64 x 4096, 128 latent", 64, 4096, 0, 0, 4, 128, 1, 576, 0, 512, 0, 0},
    {"64 x 4096, 20 latent", 64, 4096, 0, 0, 4, 20, 1, 576, 0, 512, 0, 0},
    {"256 x 1536, 20 latent", 256, 1536, 0, 0, 4, 20, 1, 576, 0, 512, 0, 0},
    {"1 x 1024, 20 latent", 1, 1024, 0, 0, 64, 20, 1, 576, 0, 512, 0, 0},
    {"1 x 131072, 20 latent", 1, 131072, 0, 0, 4, 20, 1, 576, 0, 512, 0, 0},
    {"64 x 1000", 64, 1000, 0, 0, 8, 32, 8, 128, 0, 0, 0, 0},
    {"64 x 1000, 4 each, apart", 64, 1000, 0, 0, 8, 32, 8, 128, 0, 0, 4, 1},
    {"64 x 1000, 4 each", 64, 1000, 0, 0, 8, 32, 8, 128, 0, 0, 4, 0},
    {"64 x 1000, 8 each", 64, 1000, 0, 0, 8, 32, 8, 128, 0, 0, 8, 0},
    {"8 x 1000", 8, 1000, 0, 0, 16, 32, 8, 128, 0, 0, 0, 0},
    {"8 x 1000, 4 each, apart", 8, 1000, 0, 0, 16, 32, 8, 128, 0, 0, 4, 1},
    {"8 x 1000, 4 each", 8, 1000, 0, 0, 16, 32, 8, 128, 0, 0, 4, 0},
    {"1 x 1000", 1, 1000, 0, 0, 64, 32, 8, 128, 0, 0, 1, 1},
    {"1 x 1000, 4 each, apart", 1, 1000, 0, 0, 64, 32, 8, 128, 0, 0, 4, 1},
    {"1 x 1000, 4 each", 1, 1000, 0, 0, 64, 32, 8, 128, 0, 0, 4, 0},
    {"1 x 1000, 8 each, apart", 1, 1000, 0, 0, 64, 32, 8, 128, 0, 0, 8, 1},
    {"1 x 1000, 8 each", 1, 1000, 0, 0, 64, 32, 8, 128, 0, 0, 8, 0},
    {"1 x 2048, last 128, 64/8 x 64", 1, 2048, 0, 0, 64, 64, 8, 64, 128, 0, 0, 0},
    {"8 x 2048, last 128, 64/8 x 64", 8, 2048, 0, 0, 32, 64, 8, 64, 128, 0, 0, 0},
    {"32 x 2048, last 128, 64/8 x 64", 32, 2048, 0, 0, 16, 64, 8, 64, 128, 0, 0, 0},
    {"256 x 2048, last 128, 64/8 x 64", 256, 2048, 0, 0, 8, 64, 8, 64, 128, 0, 0, 0},
};

struct bench {
    const struct shape *s;
    struct k_tokens t;
    struct k_kv kv;
    struct k_attn_plan plan;
    k_bf16 *out, *qkv;
    struct k_rotary rotary;
    k_bf16 *norms; /* weights */
    int *sink;
    size_t kv_bytes; /* of one layer */
    int rounds;
};

static void *allocs[32];
static int n_allocs;

static void *alloc(size_t bytes)
{
    void *p = NULL;

    bench_must(n_allocs == 32 || cudaMalloc(&p, bytes) != cudaSuccess, "memory");
    allocs[n_allocs++] = p;
    return p;
}

static void *upload(const void *src, size_t bytes)
{
    void *p = alloc(bytes);

    bench_must(cudaMemcpy(p, src, bytes, cudaMemcpyHostToDevice) != cudaSuccess, "upload");
    return p;
}

static unsigned next_random(void)
{
    static unsigned long long x = 88172645463325252ULL;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (unsigned)(x >> 32);
}

/* Numbers of [-2, 2), as bf16 or as e4m3. */
static void *random_pages(size_t bytes, enum k_type type)
{
    static unsigned char *pattern;
    char *p = alloc(bytes);

    if (pattern == NULL)
        pattern = malloc(PATTERN_BYTES);
    for (size_t i = 0; i < PATTERN_BYTES; i += 2) {
        unsigned r = next_random(), bits = (r & 0x807fU) | ((124 + (r >> 8) % 4) << 7);

        pattern[i] = (unsigned char)(type == K_BF16 ? bits : (r & 0x87) | ((r >> 8) % 9) << 3);
        pattern[i + 1] =
            (unsigned char)(type == K_BF16 ? bits >> 8 : (r >> 16 & 0x87) | ((r >> 24) % 9) << 3);
    }
    for (size_t at = 0; at < bytes; at += PATTERN_BYTES)
        bench_must(cudaMemcpy(p + at, at == 0 ? (void *)pattern : p,
                              bytes - at < PATTERN_BYTES ? bytes - at : PATTERN_BYTES,
                              cudaMemcpyDefault) != cudaSuccess,
                   "pages");
    return p;
}

/* Keys and values. */
static int kinds_of(const struct shape *s)
{
    return s->value_dim > 0 ? 1 : 2;
}

static int length_of(const struct shape *s, int i)
{
    return i < s->n_long ? s->long_ : s->len;
}

/* Decodes of a sequence. */
static int run_of(const struct shape *s)
{
    return s->run > 0 ? s->run : 1;
}

static void open_tokens(struct bench *b, int page_tokens)
{
    const struct shape *s = b->s;
    int run = run_of(s), n = (s->n_seqs + s->n_long) * run, pages_max = 0, n_pages = 0;
    int32_t *len = malloc((size_t)n * 4), *start = malloc((size_t)(n + 1) * 4), *order, *ids;
    int32_t *places = malloc((size_t)n * 4);

    for (int i = 0; i <= n; i++)
        start[i] = i;
    for (int i = 0; i < n; i++) {
        int pages = (length_of(s, i / run) + page_tokens - 1) / page_tokens;

        places[i] = i % run;
        len[i] = length_of(s, i / run) - run + 1 + places[i];
        if (places[i] > 0)
            continue;
        n_pages += pages;
        pages_max = pages > pages_max ? pages : pages_max;
        b->kv_bytes += (size_t)(s->window > 0 && s->window < len[i] ? s->window : len[i]);
    }
    order = malloc((size_t)n_pages * 4);
    ids = calloc((size_t)n * (size_t)pages_max, 4);
    for (int i = 0; i < n_pages; i++)
        order[i] = i;
    for (int i = n_pages - 1; i > 0; i--) {
        int j = (int)(next_random() % (unsigned)(i + 1)), x = order[i];

        order[i] = order[j];
        order[j] = x;
    }
    for (int i = 0, page = 0; i < n; i++) {
        int32_t *row = ids + (size_t)i * (size_t)pages_max;

        for (int p = 0; p * page_tokens < length_of(s, i / run) && places[i] == 0; p++)
            row[p] = order[page++];
        if (places[i] > 0)
            memcpy(row, row - pages_max, (size_t)pages_max * 4);
    }
    if (s->run > 0 && !s->apart)
        b->plan.places = upload(places, (size_t)n * 4);
    free(places);
    b->t = (struct k_tokens){.kv_len = upload(len, (size_t)n * 4),
                             .seq_start = upload(start, (size_t)(n + 1) * 4),
                             .page_ids = upload(ids, (size_t)n * (size_t)pages_max * 4),
                             .n_tokens = n,
                             .n_seqs = n,
                             .pages_max = pages_max};
    b->kv.layer_elems = (size_t)(kinds_of(s) * s->n_kv_heads * page_tokens) * (size_t)s->head_dim;
    b->kv.page_elems = b->kv.layer_elems * (size_t)s->n_layers;
    b->kv.pages = random_pages(b->kv.page_elems * (size_t)n_pages * (b->kv.type == K_BF16 ? 2 : 1),
                               b->kv.type);
    free(len), free(start), free(order), free(ids);
}

static void bench_open(struct bench *b, int page_tokens, enum k_type type)
{
    const struct shape *s = b->s;
    int n = (s->n_seqs + s->n_long) * run_of(s);
    const int32_t *places;
    size_t width = (size_t)(s->n_heads + 2 * s->n_kv_heads) * (size_t)s->head_dim;
    float *turns, *sinks;

    b->kv = (struct k_kv){.n_kv_heads = s->n_kv_heads,
                          .head_dim = s->head_dim,
                          .page_tokens = page_tokens,
                          .window = s->window,
                          .value_dim = s->value_dim,
                          .is_shared = s->value_dim > 0,
                          .type = type,
                          .k_scale = 1.0f,
                          .v_scale = 1.0f};
    open_tokens(b, page_tokens);
    b->kv_bytes *=
        (size_t)kinds_of(s) * (size_t)(s->n_kv_heads * s->head_dim) * (type == K_BF16 ? 2 : 1);
    b->qkv = alloc((size_t)n * width * 2);
    bench_must(k_fill_random(b->qkv, (size_t)n * width, 1.0f, 1, NULL), "queries");
    b->out = alloc((size_t)n * width * 2);
    turns = alloc((size_t)131072 * (size_t)s->head_dim * 4);
    bench_must(cudaMemset(turns, 0, (size_t)131072 * (size_t)s->head_dim * 4) != cudaSuccess,
               "turns");
    b->rotary = (struct k_rotary){.turns = turns};
    b->norms = alloc((size_t)s->head_dim * 2);
    bench_must(k_fill_random(b->norms, (size_t)s->head_dim, 1.0f, 1, NULL), "norms");
    b->sink = alloc(4);
    if (s->window > 0) {
        sinks = alloc((size_t)s->n_heads * sizeof *sinks);
        bench_must(cudaMemset(sinks, 0, (size_t)s->n_heads * sizeof *sinks) != cudaSuccess,
                   "sinks");
        b->kv.sinks = sinks;
    }
    places = b->plan.places;
    b->plan = (struct k_attn_plan){
        .n_decodes = n,
        .places = places,
        .is_short = s->run > 0 && n <= 8 && s->len <= K_ATTN_SHORT,
        .schedule = alloc(k_attn_schedule_bytes(n)),
        .work = alloc(k_attn_work_bytes(s->head_dim, s->n_heads, s->n_kv_heads)),
    };
}

static void bench_close(void)
{
    while (n_allocs > 0)
        bench_must(cudaFree(allocs[--n_allocs]) != cudaSuccess, "free");
}

enum what { ATTEND, ATTEND_TURNED, ATTEND_OVERLAPPED, ATTEND_NORMED, READ, PLAN };

static void enqueue(struct bench *b, enum what what, cudaStream_t stream)
{
    struct k_kv kv = b->kv;

    b->plan.rotary =
        what == ATTEND || what == READ || !k_attn_rotates(&b->rotary, &b->kv) ? NULL : &b->rotary;
    b->rotary.q_norm = b->rotary.k_norm = what == ATTEND_NORMED ? b->norms : NULL;
    for (int l = 0; l < b->s->n_layers; l++) {
        kv.layer_elems = (size_t)l * b->kv.layer_elems;
        b->plan.overlap = (what == ATTEND_OVERLAPPED || what == ATTEND_NORMED) && l > 0;
        if (what == READ)
            bench_must(bench_read(b->sink, (char *)kv.pages + (size_t)l * b->kv_bytes, b->kv_bytes,
                                  stream),
                       "read");
        else if (what == PLAN)
            bench_must(k_attn_schedule(&b->plan, &kv, &b->t, b->s->n_heads, stream), "plan");
        else
            bench_must(k_attn(b->out, b->qkv, &kv, &b->t, &b->plan, b->s->n_heads, 0.088f, stream),
                       "attention");
    }
}

/* Microseconds of one layer. */
static double time_of(struct bench *b, enum what what)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    float ms[ROUNDS_MAX];

    bench_must(cudaStreamCreate(&stream) != cudaSuccess || cudaEventCreate(&from) != cudaSuccess ||
                   cudaEventCreate(&to) != cudaSuccess,
               "stream");
    bench_must(k_attn_schedule(&b->plan, &b->kv, &b->t, b->s->n_heads, stream), "plan");
    bench_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) != cudaSuccess,
               "capture");
    enqueue(b, what, stream);
    bench_must(cudaStreamEndCapture(stream, &graph) != cudaSuccess ||
                   cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess,
               "graph");
    for (int i = -3; i < b->rounds; i++) {
        bench_must(cudaEventRecord(from, stream) != cudaSuccess ||
                       cudaGraphLaunch(exec, stream) != cudaSuccess ||
                       cudaEventRecord(to, stream) != cudaSuccess ||
                       cudaEventSynchronize(to) != cudaSuccess,
                   "a round");
        if (i >= 0)
            bench_must(cudaEventElapsedTime(&ms[i], from, to) != cudaSuccess, "time");
    }
    (void)cudaGraphExecDestroy(exec), (void)cudaGraphDestroy(graph);
    (void)cudaEventDestroy(from), (void)cudaEventDestroy(to), (void)cudaStreamDestroy(stream);
    return 1e3 * (double)bench_median(ms, (size_t)b->rounds) / b->s->n_layers;
}

static void bench(const struct shape *s, int page_tokens, enum k_type type, int rounds)
{
    struct bench b = {.s = s, .rounds = rounds};
    double us, turned, overlapped, normed, read, plan;

    bench_open(&b, page_tokens, type);
    us = time_of(&b, ATTEND);
    turned = s->head_dim <= 256 ? time_of(&b, ATTEND_TURNED) : (double)NAN;
    overlapped = s->head_dim <= 256 ? time_of(&b, ATTEND_OVERLAPPED) : (double)NAN;
    normed = s->head_dim == 128 ? time_of(&b, ATTEND_NORMED) : (double)NAN;
    read = time_of(&b, READ);
    plan = time_of(&b, PLAN);
    if (s->value_dim > 0)
        printf("%-22s %.0f TFLOP/s\n", s->name,
               (double)b.kv_bytes / s->head_dim / (type == K_BF16 ? 2 : 1) * s->n_heads * 2 *
                   (s->head_dim + s->value_dim) / us * 1e-6);
    printf("%-22s pages %2d %s  %8.2f us  %.3f of 4.65 TB/s  %.3f of a read (%.2f us)  "
           "turned %.2f  overlapped %.2f  with norms %.2f  plan %.2f\n",
           s->name, page_tokens, type == K_BF16 ? "bf16" : "e4m3", us,
           (double)b.kv_bytes / (us * 1e-6) / LIMIT_BYTES_S, read / us, read, turned, overlapped,
           normed, plan);
    fflush(stdout);
    bench_close();
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 20;
    size_t first = argc > 3 ? (size_t)atoi(argv[3]) : 0;
    size_t n_shapes = argc > 2 ? (size_t)atoi(argv[2]) : sizeof shapes / sizeof shapes[0];

    bench_choose_kernels();
    if (rounds < 1 || rounds > ROUNDS_MAX)
        rounds = 20;
    for (size_t i = first; i < first + n_shapes && i < sizeof shapes / sizeof shapes[0]; i++) {
        bench(&shapes[i], 16, K_BF16, rounds);
        bench(&shapes[i], 16, K_E4M3, rounds);
        if (i < 2) { /* pages of another size, too */
            bench(&shapes[i], 64, K_BF16, rounds);
            bench(&shapes[i], 64, K_E4M3, rounds);
        }
    }
    return 0;
}
