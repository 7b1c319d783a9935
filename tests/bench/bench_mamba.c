/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast Mamba-2 is, by itself.
 *
 *   bench_mamba [N_HEADS [N_STATE [bf16]]]
 *
 * Layers of N_HEADS (64) heads of 64 with N_STATE (128) states, in eight groups. First steps of one
 * token per sequence: a line with the median microseconds, and the bytes of the states, in and out,
 * per second. Then steps of several tokens per sequence: microseconds, and nanoseconds per token.
 * Some states take turns, so that few are in the L2 cache. */
#include "kernels/mamba.h"
#include "tests/bench/cuda.h"

#define RUNS       21
#define SEQS_MAX   256
#define TOKENS_MAX 8192
#define PAGE_ELEMS 49152 /* those of a model with 6 layers of 2 heads of 128 */
#define BYTES_MAX  ((size_t)6 << 30)

struct bench {
    struct k_mamba m;
    struct k_state state;
    struct k_tokens t;
    k_bf16 *in, *out;
    int pages_each, n_states; /* of a sequence; states that fit */
    cudaEvent_t from, to;
};

static k_bf16 *bench_noise(size_t n)
{
    k_bf16 *host = malloc(n * sizeof *host), *p;
    uint64_t x = 88172645463325252U;

    for (size_t i = 0; i < n; i++) /* of 2^-8 to 1, with signs */
        host[i] = (k_bf16)((bench_random(&x) & 0x8000) | (0x3b80 + bench_random(&x) % 0x400));
    p = bench_array(host, n * sizeof *host);
    free(host);
    return p;
}

static float *bench_small(size_t n, float scale)
{
    float *host = malloc(n * sizeof *host), *p;
    uint64_t x = 4711;

    for (size_t i = 0; i < n; i++)
        host[i] = ((float)(bench_random(&x) & 0xffff) / 32768.0f - 1.0f) * scale;
    p = bench_array(host, n * sizeof *host);
    free(host);
    return p;
}

static void bench_open(struct bench *b, int n_heads, int n_state)
{
    struct k_mamba_shape s = {n_heads, 64, 8, n_state, 4};
    size_t inner = (size_t)k_mamba_inner(&s), width = (size_t)(8 * n_state), pages;
    float *taps = bench_small((inner + 2 * width) * 4, 0.5f);
    float *bias = bench_small(inner + 2 * width, 0.5f);

    b->m = (struct k_mamba){.shape = s,
                            .x = {taps, bias, 1.0f},
                            .b = {taps + inner * 4, bias + inner, 1.0f},
                            .c = {taps + (inner + width) * 4, bias + inner + width, 1.0f},
                            .a_log = bench_small((size_t)n_heads, 1.0f),
                            .dt_bias = bench_small((size_t)n_heads, 1.0f),
                            .skip = bench_small((size_t)n_heads, 1.0f),
                            .norm = bench_noise(inner),
                            .eps = 1e-5f,
                            .most = 1e30f,
                            .z_by = 1.0f,
                            .dt_by = 1.0f,
                            .rows = bench_array(NULL, TOKENS_MAX * k_mamba_work(&s) * 4)};
    b->in = bench_noise((size_t)TOKENS_MAX * (size_t)k_mamba_row(&s));
    b->out = bench_array(NULL, TOKENS_MAX * inner * 2);
    b->pages_each = (int)((k_mamba_elems(&s) + PAGE_ELEMS - 1) / PAGE_ELEMS);
    b->n_states = (int)(BYTES_MAX / 4 / PAGE_ELEMS) / b->pages_each;
    pages = (size_t)b->n_states * (size_t)b->pages_each;
    b->state =
        (struct k_state){.pages = bench_small(pages * PAGE_ELEMS, 0.1f), .page_elems = PAGE_ELEMS};
    bench_must(cudaEventCreate(&b->from) != cudaSuccess, "event");
    bench_must(cudaEventCreate(&b->to) != cudaSuccess, "event");
}

/* n_seqs sequences with `each` tokens, whose states are there. */
static void set_tokens(struct bench *b, int n_seqs, int each)
{
    int32_t *starts = malloc((SEQS_MAX + 1) * sizeof *starts), lens[SEQS_MAX];
    int32_t *seq = malloc(TOKENS_MAX * sizeof *seq), *pos = malloc(TOKENS_MAX * sizeof *pos);

    for (int s = 0; s <= n_seqs; s++)
        starts[s] = s * each;
    for (int i = 0; i < n_seqs * each; i++) {
        seq[i] = i / each;
        pos[i] = 1000 + i % each;
    }
    for (int s = 0; s < n_seqs; s++)
        lens[s] = 1000 + each;
    b->t = (struct k_tokens){.seq = bench_array(seq, (size_t)(n_seqs * each) * 4),
                             .pos = bench_array(pos, (size_t)(n_seqs * each) * 4),
                             .seq_start = bench_array(starts, (size_t)(n_seqs + 1) * 4),
                             .kv_len = bench_array(lens, (size_t)n_seqs * 4),
                             .n_tokens = n_seqs * each,
                             .n_seqs = n_seqs,
                             .pages_max = b->pages_each};
    free(starts), free(seq), free(pos);
}

/* The table of states first .. of all that fit. */
static int32_t *make_table(const struct bench *b, int first, int n_seqs)
{
    int n = n_seqs * b->pages_each;
    int32_t *host = malloc((size_t)n * sizeof *host), *p;

    for (int i = 0; i < n; i++)
        host[i] = (first * b->pages_each + i) % (b->n_states * b->pages_each);
    p = bench_array(host, (size_t)n * sizeof *host);
    free(host);
    return p;
}

static float median_us(struct bench *b)
{
    float us[RUNS];

    for (int i = -3; i < RUNS; i++) {
        float ms = 0.0f;
        int32_t *table;

        table = make_table(b, (i + 3) * b->t.n_seqs, b->t.n_seqs);
        b->t.page_ids = table;
        (void)cudaEventRecord(b->from, NULL);
        bench_must(k_mamba_scan(b->out, false, b->in, &b->m, &b->state, &b->t, NULL), "mamba");
        (void)cudaEventRecord(b->to, NULL);
        bench_must(cudaEventSynchronize(b->to) != cudaSuccess, "mamba");
        (void)cudaEventElapsedTime(&ms, b->from, b->to);
        if (i >= 0)
            us[i] = ms * 1000.0f;
        (void)cudaFree(table);
    }
    return bench_median(us, RUNS);
}

int main(int argc, char **argv)
{
    static const int seqs[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    static const int chunks[][2] = {{1, 2},    {1, 16},   {1, 64},   {1, 256}, {1, 1024},
                                    {1, 4096}, {1, 8192}, {4, 2048}, {64, 2}};
    struct bench b = {0};
    double bytes;

    bench_open(&b, argc > 1 ? atoi(argv[1]) : 64, argc > 2 ? atoi(argv[2]) : 128);
    b.state.is_bf16 = argc > 3 && strcmp(argv[3], "bf16") == 0;
    bytes = (b.state.is_bf16 ? 4.0 : 8.0) * (double)b.m.shape.n_heads *
            (double)k_mamba_matrix(&b.m.shape);
    for (size_t i = 0; i < sizeof seqs / sizeof seqs[0]; i++) {
        float us;

        set_tokens(&b, seqs[i], 1);
        us = median_us(&b);
        printf("%4d sequences of 1 token: %8.1f us, %6.0f GB/s of states\n", seqs[i], (double)us,
               bytes * seqs[i] / (double)us / 1e3);
    }
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        int n = chunks[i][0] * chunks[i][1];
        float us;

        set_tokens(&b, chunks[i][0], chunks[i][1]);
        us = median_us(&b);
        printf("%4d of %4d tokens:        %8.1f us, %6.1f ns a token\n", chunks[i][0], chunks[i][1],
               (double)us, (double)us * 1e3 / n);
    }
    return 0;
}
