/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast sampling is by itself, over rows of random logits.
 *
 *   bench_sample [N_VOCAB]
 *
 * Prints one line for each kind of row: the median microseconds of a launch for 1 to 256
 * rows; before them, what a copy of the logits on the device takes, which moves twice the bytes.
 * Two sets of logits take turns, so that of many rows few are in the L2 cache. */
#include "kernels/kernels.h"
#include "tests/bench/cuda.h"

#define SETS      2
#define RUNS      41
#define ROWS_MAX  256
#define HISTORY   1000

#define DRAWN     .temperature = 0.8f, .repetition_penalty = 1.0f
#define PENALTIES .presence_penalty = 0.5f, .frequency_penalty = 0.2f, .repetition_penalty = 1.1f

struct kind {
    const char *name;
    struct k_sample_row row;
};

static const struct kind kinds[] = {
    {"greedy", {.sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f}}},
    {"temperature", {.sampling = {DRAWN, .top_p = 1.0f}}},
    {"top-k 50", {.sampling = {DRAWN, .top_p = 1.0f, .top_k = 50}}},
    {"top-k 500", {.sampling = {DRAWN, .top_p = 1.0f, .top_k = 500}}},
    {"top-p 0.9", {.sampling = {DRAWN, .top_p = 0.9f}}},
    {"top-p 0.9, hot",
     {.sampling = {.temperature = 3.0f, .top_p = 0.9f, .repetition_penalty = 1.0f}}},
    {"penalties, greedy",
     {.sampling = {PENALTIES, .top_p = 1.0f}, .n_history = HISTORY, .n_prompt = HISTORY / 2}},
    {"all",
     {.sampling = {PENALTIES, .temperature = 0.8f, .top_p = 0.9f, .top_k = 50},
      .n_history = HISTORY,
      .n_prompt = HISTORY / 2}},
};

struct bench {
    float *logits[SETS], *spare;
    struct k_sample_row *rows;
    int32_t *history, *ids;
    int n_vocab;
    cudaEvent_t from, to;
};

static void fill(struct bench *b, size_t n)
{
    uint64_t x = 88172645463325252U;

    for (int set = 0; set < SETS; set++)
        b->logits[set] = bench_logits(n, &x);
}

/* The median of RUNS launches of n rows, microseconds; is_copy: of copies. */
static float median_us(struct bench *b, int n, int is_copy)
{
    float us[RUNS];

    for (int i = -3; i < RUNS; i++) {
        const float *logits = b->logits[(i + 3) % SETS];
        float ms = 0.0f;

        (void)cudaEventRecord(b->from, NULL);
        if (is_copy)
            bench_must(cudaMemcpyAsync(b->spare, logits, (size_t)n * (size_t)b->n_vocab * 4,
                                       cudaMemcpyDeviceToDevice, NULL) != cudaSuccess,
                       "copy");
        else
            bench_must(k_sample(b->ids, logits, n, b->n_vocab, b->rows, b->history, NULL),
                       "sample");
        (void)cudaEventRecord(b->to, NULL);
        bench_must(cudaEventSynchronize(b->to) != cudaSuccess, "sample");
        (void)cudaEventElapsedTime(&ms, b->from, b->to);
        if (i >= 0)
            us[i] = ms * 1e3f;
    }
    return bench_median(us, RUNS);
}

static void print_line(struct bench *b, const char *name, int is_copy)
{
    static const int n_rows[] = {1, 8, 64, 128, 256};

    printf("%-18s", name);
    for (size_t i = 0; i < sizeof n_rows / sizeof n_rows[0]; i++)
        printf(" %8.1f", (double)median_us(b, n_rows[i], is_copy));
    printf(" us\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct bench b = {.n_vocab = argc > 1 ? atoi(argv[1]) : 128256};
    size_t n = (size_t)ROWS_MAX * (size_t)b.n_vocab;
    struct k_sample_row rows[ROWS_MAX];
    int32_t *history = malloc(sizeof *history * ROWS_MAX * HISTORY);
    uint64_t x = 12345;

    bench_choose_kernels();
    bench_must(b.n_vocab < 1, "a vocabulary is needed");
    fill(&b, n);
    for (int i = 0; i < ROWS_MAX * HISTORY; i++)
        history[i] = (int32_t)(bench_random(&x) % (uint64_t)b.n_vocab);
    b.history = bench_array(history, sizeof *history * ROWS_MAX * HISTORY);
    b.spare = bench_array(NULL, n * sizeof *b.spare);
    b.ids = bench_array(NULL, ROWS_MAX * sizeof *b.ids);
    b.rows = bench_array(NULL, sizeof rows);
    bench_must(cudaEventCreate(&b.from) != cudaSuccess || cudaEventCreate(&b.to) != cudaSuccess,
               "events");
    printf("%-18s %8d %8d %8d %8d %8d rows of %d\n", "", 1, 8, 64, 128, 256, b.n_vocab);
    print_line(&b, "a copy of them", 1);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int i = 0; i < ROWS_MAX; i++) {
            rows[i] = kinds[k].row;
            rows[i].sampling.seed = (uint64_t)i;
            rows[i].history_at = (int64_t)i * HISTORY;
        }
        bench_must(cudaMemcpy(b.rows, rows, sizeof rows, cudaMemcpyHostToDevice) != cudaSuccess,
                   "rows");
        print_line(&b, kinds[k].name, 0);
    }
    free(history);
    return 0;
}
