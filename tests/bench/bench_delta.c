/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast the gated delta rule is, by itself.
 *
 *   bench_delta [N_V_HEADS [bf16 | channel]]
 *
 * Layers of 16 key heads and N_V_HEADS (32) value heads of 128; with "channel" as many of both, and
 * factors by channel. First steps of one token per sequence: a line with the median microseconds,
 * and the bytes of the states, in and out, per second. Then steps of several tokens per sequence:
 * microseconds, and nanoseconds per token. Some states take turns, so that few are in the L2
 * cache. */
#include "kernels/delta.h"
#include "tests/bench/cuda.h"

#define RUNS       21
#define SEQS_MAX   256
#define TOKENS_MAX 8192
#define PAGE_ELEMS 81920 /* those of a model with 10 layers of 2 heads of 256 */
#define BYTES_MAX  ((size_t)6 << 30)

struct bench {
    struct k_delta d;
    struct k_state state;
    struct k_tokens t;
    k_bf16 *in, *out;
    float *gates;
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

/* by_channel: there are as many key heads as value heads. */
static void bench_open(struct bench *b, int n_v_heads, bool by_channel)
{
    struct k_delta_shape s = {
        by_channel ? n_v_heads : 16, n_v_heads, 128, 128, 4, by_channel, false};
    size_t keys = (size_t)k_delta_keys(&s) * 4, forgets = (size_t)k_delta_forgets(&s);
    size_t channels = (size_t)k_delta_channels(&s), values = (size_t)k_delta_values(&s);
    float *taps = bench_small(channels * 4, 0.5f);
    size_t pages;

    b->d = (struct k_delta){.shape = s,
                            .q_taps = taps,
                            .k_taps = taps + keys,
                            .v_taps = taps + 2 * keys,
                            .a_log = bench_small((size_t)n_v_heads, 1.0f),
                            .dt_bias = bench_small(forgets, 1.0f),
                            .norm = bench_noise(128),
                            .eps = 1e-6f,
                            .rows = bench_array(NULL, TOKENS_MAX * k_delta_work(&s) * 4)};
    b->in = bench_noise(TOKENS_MAX * (channels + values));
    if (by_channel) {
        b->d.a = bench_small(TOKENS_MAX * forgets, 2.0f);
        b->d.z = bench_noise(TOKENS_MAX * values);
    }
    b->out = bench_array(NULL, TOKENS_MAX * values * 2);
    b->gates = bench_small((size_t)TOKENS_MAX * 2 * (size_t)n_v_heads, 2.0f);
    b->pages_each = (int)((k_delta_elems(&s) + PAGE_ELEMS - 1) / PAGE_ELEMS);
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
        bench_must(k_delta_rule(b->out, false, b->in, b->gates, &b->d, &b->state, &b->t, NULL),
                   "delta");
        (void)cudaEventRecord(b->to, NULL);
        bench_must(cudaEventSynchronize(b->to) != cudaSuccess, "delta");
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

    bench_open(&b, argc > 1 ? atoi(argv[1]) : 32, argc > 2 && strcmp(argv[2], "channel") == 0);
    b.state.is_bf16 = argc > 2 && strcmp(argv[2], "bf16") == 0;
    bytes = (b.state.is_bf16 ? 4.0 : 8.0) * (double)b.d.shape.n_v_heads *
            (double)k_delta_matrix(&b.d.shape);
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
