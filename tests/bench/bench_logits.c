/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast masks, biases and log probabilities are by themselves, over rows of random logits.
 *
 *   bench_logits [N_VOCAB]
 *
 * Prints one line for each kind of row: the median microseconds of a launch for 1 to 256 rows;
 * before them, what reading the logits once takes. Two sets of logits take turns, so that of many
 * rows few are in the L2 cache. The edit changes the logits of log probabilities that follow it,
 * so those come first. A launch of nothing is measured as well: each figure holds one. */
#include "kernels/kernels.h"
#include "tests/bench/cuda.h"

#define SETS     2
#define RUNS     41
#define ROWS_MAX 256
#define BIASES   300 /* of a row */

int bench_read(int *out, const void *p, size_t bytes, k_stream stream);

enum operation { READ, LOGPROBS, EDIT, CHOSEN };

/* Which bits of a mask are 1. */
enum mask { NONE, ONES, HALF, FEW, BUT_FEW };

struct kind {
    const char *name;
    enum operation operation;
    int n_top; /* of READ: below 0 it reads 16 bytes */
    int target, n_biases;
    enum mask mask;
};

static const struct kind kinds[] = {
    {"a read of 16 bytes", READ, -1, 0, 0, NONE},
    {"a read of them", READ, 0, 0, 0, NONE},
    {"log prob. of none", LOGPROBS, -1, K_SAMPLED, 0, NONE},
    {"log prob. of sampled", LOGPROBS, 0, K_SAMPLED, 0, NONE},
    {"log prob. of target", LOGPROBS, 0, 77, 0, NONE},
    {"and of 5", LOGPROBS, 5, 77, 0, NONE},
    {"and of 20", LOGPROBS, 20, 77, 0, NONE},
    {"sampled, no bias", CHOSEN, 0, K_SAMPLED, 0, NONE},
    {"sampled, 300 biases", CHOSEN, 0, K_SAMPLED, BIASES, NONE},
    {"nothing to edit", EDIT, 0, K_SAMPLED, 0, NONE},
    {"300 biases", EDIT, 0, K_SAMPLED, BIASES, NONE},
    {"mask of ones", EDIT, 0, K_SAMPLED, 0, ONES},
    {"mask, 1 in 1000 out", EDIT, 0, K_SAMPLED, 0, BUT_FEW},
    {"mask, half out", EDIT, 0, K_SAMPLED, 0, HALF},
    {"mask, 1 in 1000 left", EDIT, 0, K_SAMPLED, 0, FEW},
    {"that and 300 biases", EDIT, 0, K_SAMPLED, BIASES, FEW},
};

struct bench {
    float *logits[SETS];
    struct k_logits_row *rows;
    struct k_logprob_row *out;
    struct k_bias *biases;
    uint32_t *masks;
    int32_t *ids;
    int *sink;
    int n_vocab, n_words;
    cudaEvent_t from, to;
};

static void fill(struct bench *b)
{
    size_t n = (size_t)ROWS_MAX * (size_t)b->n_vocab;
    uint64_t x = 88172645463325252U;

    for (int set = 0; set < SETS; set++)
        b->logits[set] = bench_logits(n, &x);
}

static bool is_allowed(enum mask mask, uint64_t r)
{
    switch (mask) {
    case NONE:
    case ONES: return true;
    case HALF: return (r & 1) != 0;
    case FEW: return (r & 1023) == 0;
    case BUT_FEW: return (r & 1023) != 0;
    }
    return true;
}

static void set_masks(struct bench *b, enum mask mask)
{
    size_t n = (size_t)ROWS_MAX * (size_t)b->n_words;
    uint32_t *host = calloc(n, sizeof *host);
    uint64_t x = 4711;

    for (size_t i = 0; i < n * 32; i++)
        host[i / 32] |= (uint32_t)is_allowed(mask, bench_random(&x) >> 20) << i % 32;
    bench_must(cudaMemcpy(b->masks, host, n * sizeof *host, cudaMemcpyHostToDevice) != cudaSuccess,
               "masks");
    free(host);
}

static void set_rows(struct bench *b, const struct kind *kind)
{
    struct k_logits_row rows[ROWS_MAX];

    for (int i = 0; i < ROWS_MAX; i++)
        rows[i] =
            (struct k_logits_row){.row = i,
                                  .target = kind->target,
                                  .n_top = kind->n_top,
                                  .n_biases = kind->n_biases,
                                  .biases_at = (int64_t)i * BIASES,
                                  .mask_at = kind->mask == NONE ? -1 : (int64_t)i * b->n_words};
    bench_must(cudaMemcpy(b->rows, rows, sizeof rows, cudaMemcpyHostToDevice) != cudaSuccess,
               "rows");
    if (kind->mask != NONE)
        set_masks(b, kind->mask);
}

static void set_biases(struct bench *b)
{
    struct k_bias *host = calloc(ROWS_MAX * BIASES, sizeof *host);

    for (int i = 0; i < ROWS_MAX * BIASES; i++)
        host[i] = (struct k_bias){.id = (int32_t)((int64_t)(i % BIASES) * b->n_vocab / BIASES),
                                  .value = (i / 64) % 2 == 0 ? 1.0f : -1.0f};
    b->biases = bench_array(host, sizeof *host * ROWS_MAX * BIASES);
    free(host);
}

static int launch(struct bench *b, const struct kind *kind, float *logits, int n)
{
    size_t bytes = kind->n_top < 0 ? 16 : (size_t)n * (size_t)b->n_vocab * 4;

    switch (kind->operation) {
    case READ: return bench_read(b->sink, logits, bytes, NULL);
    case LOGPROBS: return k_logprobs(b->out, logits, b->n_vocab, b->rows, n, NULL);
    case EDIT: return k_edit(logits, b->n_vocab, b->rows, n, b->masks, b->biases, NULL);
    case CHOSEN: return k_chosen(b->out, b->ids, logits, b->n_vocab, b->rows, n, b->biases, NULL);
    }
    return -1;
}

/* The median of RUNS launches of n rows, microseconds. */
static float median_us(struct bench *b, const struct kind *kind, int n)
{
    float us[RUNS];

    for (int i = -3; i < RUNS; i++) {
        float ms = 0.0f;

        (void)cudaEventRecord(b->from, NULL);
        bench_must(launch(b, kind, b->logits[(i + 3) % SETS], n), kind->name);
        (void)cudaEventRecord(b->to, NULL);
        bench_must(cudaEventSynchronize(b->to) != cudaSuccess, kind->name);
        (void)cudaEventElapsedTime(&ms, b->from, b->to);
        if (i >= 0)
            us[i] = ms * 1e3f;
    }
    return bench_median(us, RUNS);
}

int main(int argc, char **argv)
{
    static const int n_rows[] = {1, 8, 64, 128, 256};
    struct bench b = {.n_vocab = argc > 1 ? atoi(argv[1]) : 128256};

    bench_choose_kernels();
    bench_must(b.n_vocab < BIASES, "a vocabulary is needed");
    b.n_words = (b.n_vocab + 31) / 32;
    fill(&b);
    set_biases(&b);
    b.rows = bench_array(NULL, ROWS_MAX * sizeof *b.rows);
    b.out = bench_array(NULL, ROWS_MAX * sizeof *b.out);
    b.masks = bench_array(NULL, (size_t)ROWS_MAX * (size_t)b.n_words * sizeof *b.masks);
    b.ids = bench_array(NULL, ROWS_MAX * sizeof *b.ids);
    b.sink = bench_array(NULL, sizeof *b.sink);
    bench_must(cudaMemset(b.ids, 0, ROWS_MAX * sizeof *b.ids) != cudaSuccess, "ids");
    bench_must(cudaEventCreate(&b.from) != cudaSuccess || cudaEventCreate(&b.to) != cudaSuccess,
               "events");
    printf("%-22s %8d %8d %8d %8d %8d rows of %d\n", "", 1, 8, 64, 128, 256, b.n_vocab);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        set_rows(&b, &kinds[k]);
        printf("%-22s", kinds[k].name);
        for (size_t i = 0; i < sizeof n_rows / sizeof n_rows[0]; i++)
            printf(" %8.1f", (double)median_us(&b, &kinds[k], n_rows[i]));
        printf(" us\n");
        fflush(stdout);
    }
    return 0;
}
