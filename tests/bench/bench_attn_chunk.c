/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast attention of chunks is by itself, over pages of random data.
 *
 *   bench_attn_chunk [CASE...]
 *
 * CASE is a place in the table below, from 0; without one all are measured. Prints one line a
 * shape: microseconds, and TFLOP/s of what causality asks for, 4 * head_dim * n_heads operations
 * for each pair of a token and a key that it sees. Each launch reads another layer and other
 * queries than the one before; the median of many is printed, taken when the GPU has been busy
 * for WARM_US: it runs into its power limit soon, and a shape measured cold would look better than
 * it is. attn_peer.py measures cuDNN over the same shapes. */
#include <string.h>

#include "kernels/kernels.h"
#include "tests/bench/cuda.h"

#define SEQS_MAX 16
#define LAYERS   3
#define RUNS_MAX 1000
#define WARM_US  300e3
#define RUN_US   200e3

struct bench_case {
    const char *name;
    int n_heads, n_kv_heads, head_dim, page_tokens, window;
    int n_seqs, n_new, kv_len; /* all sequences are alike */
    enum k_type type;
};

static const struct bench_case cases[] = {
    {"2k causal", 32, 8, 128, 16, 0, 1, 2048, 2048, K_BF16},
    {"8k causal", 32, 8, 128, 16, 0, 1, 8192, 8192, K_BF16},
    {"16k causal", 32, 8, 128, 16, 0, 1, 16384, 16384, K_BF16},
    {"2k causal", 32, 8, 128, 64, 0, 1, 2048, 2048, K_BF16},
    {"8k causal", 32, 8, 128, 64, 0, 1, 8192, 8192, K_BF16},
    {"16k causal", 32, 8, 128, 64, 0, 1, 16384, 16384, K_BF16},
    {"2k causal", 32, 32, 128, 16, 0, 1, 2048, 2048, K_BF16},
    {"8k causal", 32, 32, 128, 16, 0, 1, 8192, 8192, K_BF16},
    {"16k causal", 32, 32, 128, 16, 0, 1, 16384, 16384, K_BF16},
    {"16k causal", 32, 32, 128, 64, 0, 1, 16384, 16384, K_BF16},
    {"8 x 1k", 32, 8, 128, 16, 0, 8, 1024, 1024, K_BF16},
    {"512 of 8k", 32, 8, 128, 16, 0, 1, 512, 8192, K_BF16},
    {"2k of 32k", 32, 8, 128, 16, 0, 1, 2048, 32768, K_BF16},
    {"16 x 32 of 2k", 32, 8, 128, 16, 0, 16, 32, 2048, K_BF16},
    {"8k, window 1k", 32, 8, 128, 16, 1024, 1, 8192, 8192, K_BF16},
    {"8k causal", 32, 8, 64, 16, 0, 1, 8192, 8192, K_BF16},
    {"8k causal", 16, 4, 256, 16, 0, 1, 8192, 8192, K_BF16},
    {"8k causal", 32, 8, 96, 16, 0, 1, 8192, 8192, K_BF16},
    {"16k causal", 32, 8, 128, 16, 0, 1, 16384, 16384, K_E4M3},
    {"8 x 1k", 32, 8, 128, 16, 0, 8, 1024, 1024, K_E4M3},
    {"2k of 32k", 32, 8, 128, 16, 0, 1, 2048, 32768, K_E4M3},
    {"8k causal", 32, 8, 64, 16, 0, 1, 8192, 8192, K_E4M3},
    {"8k causal", 16, 4, 256, 16, 0, 1, 8192, 8192, K_E4M3},
    {"8k causal", 16, 2, 512, 16, 0, 1, 8192, 8192, K_BF16},
    {"8k causal", 16, 2, 512, 16, 0, 1, 8192, 8192, K_E4M3},
    {"2k causal", 32, 8, 128, 16, 0, 1, 2048, 2048, K_E4M3},
    {"8k causal", 32, 8, 128, 16, 0, 1, 8192, 8192, K_E4M3},
    {"512 of 8k", 32, 8, 128, 16, 0, 1, 512, 8192, K_E4M3},
    {"16 x 32 of 2k", 32, 8, 128, 16, 0, 16, 32, 2048, K_E4M3},
    {"16 x 4 of 2k", 32, 8, 128, 16, 0, 16, 4, 2048, K_E4M3},
    {"8k, window 1k", 32, 8, 128, 16, 1024, 1, 8192, 8192, K_E4M3},
    {"16k causal", 32, 8, 128, 64, 0, 1, 16384, 16384, K_E4M3},
};

struct bench {
    struct k_tokens t;
    struct k_kv kv;
    struct k_attn_plan plan;
    k_bf16 *qkv[LAYERS], *out;
};

static k_bf16 *random_on_gpu(size_t n, uint64_t seed)
{
    k_bf16 *p = bench_array(NULL, n * sizeof *p);

    bench_must(k_fill_random(p, n, 1.0f, seed, NULL), "random data");
    return p;
}

/* Bytes that are numbers below 1 as e4m3. */
static void *random_e4m3(size_t n)
{
    uint8_t *host = malloc(n);
    uint64_t x = 88172645463325252U;
    void *p;

    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        host[i] = (uint8_t)(x >> 20 & 0xb7);
    }
    p = bench_array(host, n);
    free(host);
    return p;
}

/* Pages of a sequence are spread over the pool: page p of sequence s stands at a place that has
 * nothing to do with its neighbour's. */
static void set_up(struct bench *b, const struct bench_case *c)
{
    int pages_each = (c->kv_len + c->page_tokens - 1) / c->page_tokens;
    int n_pages = pages_each * c->n_seqs, n_tokens = c->n_new * c->n_seqs;
    int32_t start[SEQS_MAX + 1], len[SEQS_MAX];
    int32_t *ids = malloc((size_t)n_pages * sizeof *ids);
    int32_t *seqs = malloc((size_t)n_tokens * sizeof *seqs), *starts = malloc((size_t)n_tokens * 4);
    size_t layer = (size_t)(2 * c->n_kv_heads * c->page_tokens * c->head_dim);
    int32_t zero = 0;

    for (int i = 0; i < n_pages; i++) {
        int j = (int)((unsigned)i * 2654435761U >> 8) % (i + 1);

        ids[i] = ids[j];
        ids[j] = i;
    }
    for (int s = 0; s <= c->n_seqs; s++)
        start[s] = s * c->n_new;
    for (int s = 0; s < c->n_seqs; s++)
        len[s] = c->kv_len;
    b->t = (struct k_tokens){.seq_start = start,
                             .kv_len = len,
                             .n_tokens = n_tokens,
                             .n_seqs = c->n_seqs,
                             .pages_max = pages_each};
    k_attn_tiles(seqs, starts, &b->plan, &b->t, c->n_heads / c->n_kv_heads);
    b->t.seq_start = bench_array(start, sizeof start);
    b->t.kv_len = bench_array(len, sizeof len);
    b->t.page_ids = bench_array(ids, (size_t)n_pages * 4);
    b->plan.tile_seqs = bench_array(seqs, (size_t)n_tokens * 4);
    b->plan.tile_starts = bench_array(starts, (size_t)n_tokens * 4);
    b->plan.drawn = bench_array(&zero, sizeof zero);
    b->kv = (struct k_kv){.page_elems = LAYERS * layer,
                          .n_kv_heads = c->n_kv_heads,
                          .head_dim = c->head_dim,
                          .page_tokens = c->page_tokens,
                          .window = c->window,
                          .type = c->type,
                          .k_scale = 1.0f,
                          .v_scale = 1.0f};
    b->kv.pages = c->type == K_E4M3 ? random_e4m3(b->kv.page_elems * (size_t)n_pages)
                                    : random_on_gpu(b->kv.page_elems * (size_t)n_pages, 1);
    for (int i = 0; i < LAYERS; i++)
        b->qkv[i] = random_on_gpu((size_t)n_tokens *
                                      (size_t)((c->n_heads + 2 * c->n_kv_heads) * c->head_dim),
                                  2 + (uint64_t)i);
    b->out = bench_array(NULL, (size_t)n_tokens * (size_t)(c->n_heads * c->head_dim) * 2);
    free(ids), free(seqs), free(starts);
}

static void tear_down(struct bench *b)
{
    const void *arrays[] = {b->t.seq_start,      b->t.kv_len,   b->t.page_ids, b->plan.tile_seqs,
                            b->plan.tile_starts, b->plan.drawn, b->kv.pages,   b->out};

    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        (void)cudaFree((void *)(uintptr_t)arrays[i]);
    for (int i = 0; i < LAYERS; i++)
        (void)cudaFree(b->qkv[i]);
}

/* Pairs of a token and a key that it sees. */
static double pairs(const struct bench_case *c)
{
    double n = 0.0;

    for (int i = c->kv_len - c->n_new; i < c->kv_len; i++)
        n += c->window > 0 && i + 1 > c->window ? c->window : i + 1;
    return n * c->n_seqs;
}

/* One launch, the i-th. */
static float run(struct bench *b, const struct bench_case *c, int i, cudaEvent_t from,
                 cudaEvent_t to)
{
    float ms = 0.0f;

    b->kv.layer_elems = (size_t)(i % LAYERS) * (b->kv.page_elems / LAYERS);
    (void)cudaEventRecord(from, NULL);
    bench_must(
        k_attn(b->out, b->qkv[i % LAYERS], &b->kv, &b->t, &b->plan, c->n_heads, 0.088f, NULL),
        "attention");
    (void)cudaEventRecord(to, NULL);
    bench_must(cudaEventSynchronize(to) != cudaSuccess, "attention");
    (void)cudaEventElapsedTime(&ms, from, to);
    return ms;
}

static void measure(const struct bench_case *c)
{
    struct bench b = {0};
    cudaEvent_t from, to;
    float ms[RUNS_MAX];
    double flops = 4.0 * pairs(c) * c->head_dim * c->n_heads, us = 0.0, median;
    int n = 0;

    set_up(&b, c);
    bench_must(cudaEventCreate(&from) != cudaSuccess || cudaEventCreate(&to) != cudaSuccess,
               "event");
    for (int i = 0; us < WARM_US; i++)
        us += 1e3 * (double)run(&b, c, i, from, to);
    for (us = 0.0; us < RUN_US && n < RUNS_MAX; n++) {
        ms[n] = run(&b, c, n, from, to);
        us += 1e3 * (double)ms[n];
    }
    median = 1e3 * (double)bench_median(ms, (size_t)n);
    printf("%-14s %2d/%-2d x %-3d %s pages of %-3d %9.1f us %6.1f TFLOP/s\n", c->name, c->n_heads,
           c->n_kv_heads, c->head_dim, c->type == K_E4M3 ? "e4m3" : "bf16", c->page_tokens, median,
           flops / (median * 1e6));
    fflush(stdout);
    tear_down(&b);
    (void)cudaEventDestroy(from), (void)cudaEventDestroy(to);
}

int main(int argc, char **argv)
{
    const size_t n_cases = sizeof cases / sizeof cases[0];

    for (int i = 1; i < argc; i++) {
        size_t at = (size_t)strtoul(argv[i], NULL, 10);

        if (at < n_cases)
            measure(&cases[at]);
    }
    for (size_t i = 0; i < n_cases && argc == 1; i++)
        measure(&cases[i]);
    return 0;
}
