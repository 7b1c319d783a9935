/* The same decodes again and again: the same bits each time?
 *
 *   bench_repeat MODEL-FOLDER TURNS [TABLE [DEVICE [QUANTIZATION]]]
 *
 * Weights are random. For several numbers of sequences, with short and with long contexts, a line:
 * in how many of TURNS repetitions logits differed from the first time, and from which step on. The
 * status is 1 when any did. What overlaps with what depends on the moment, so that a missing
 * barrier shows here, in whole steps, when it does not in a kernel's own test. */
#include <stdio.h>

#include "base/hash.h"
#include "base/log.h"
#include "tests/golden/run.h"

#define STEPS 40
#define LONG  960

static void stop(const char *what)
{
    fprintf(stderr, "bench_repeat: %s\n", what);
    exit(1);
}

static struct model *open_model(char **argv, int argc)
{
    struct model_options o = {.dir = argv[1],
                              .dummy_weights = true,
                              .gemm_table = argc > 3 ? argv[3] : NULL,
                              .device = argc > 4 ? argv[4] : "cuda",
                              .quantization = argc > 5 ? argv[5] : NULL,
                              .block_tokens = 16,
                              .max_num_seqs = RUN_SEQS,
                              .max_num_batched_tokens = RUN_TOKENS,
                              .max_model_len = LONG + STEPS + 16,
                              .num_pages = RUN_SEQS * ((LONG + STEPS) / 16 + 2),
                              .gpu_memory_utilization = 0.9,
                              .cpu_kv_bytes = (size_t)1 << 30};
    struct model *m = NULL;

    if (model_open(&m, &o) != ERR_OK)
        stop("the model does not open");
    return m;
}

/* n sequences with prompts of so many tokens, and the first token behind each. */
static void prefill(struct run *r, struct run_seq *seqs, int n, int prompt)
{
    for (int i = 0; i < n; i++) {
        seqs[i].first_page = i * ((LONG + STEPS) / 16 + 2);
        seqs[i].n_tokens = seqs[i].n_computed = 0;
        for (int t = 0; t < prompt; t++)
            seqs[i].tokens[seqs[i].n_tokens++] = (i * 131 + t * 17 + 5) % 1000;
        run_clear(r);
        run_add(r, &seqs[i], prompt, false);
        if (run_step(r) != ERR_OK)
            stop("a step fails");
        seqs[i].tokens[seqs[i].n_tokens++] = r->ids[0];
    }
}

/* A digest of each step's logits, always from the end of the prompts on. */
static void decode(struct run *r, struct run_seq *seqs, int n, int prompt, float *logits,
                   uint64_t *digests)
{
    size_t bytes = (size_t)n * (size_t)model_shape(r->m)->n_vocab * sizeof *logits;

    for (int i = 0; i < n; i++) {
        seqs[i].n_computed = prompt;
        seqs[i].n_tokens = prompt + 1;
    }
    for (int step = 0; step < STEPS; step++) {
        run_clear(r);
        for (int i = 0; i < n; i++)
            run_add(r, &seqs[i], 1, false);
        if (run_step(r) != ERR_OK || model_logits(r->m, logits) != ERR_OK)
            stop("a step fails");
        digests[step] = hash_xxh3(logits, bytes);
        for (int i = 0; i < n; i++)
            seqs[i].tokens[seqs[i].n_tokens++] = r->ids[i];
    }
}

/* How many turns differed from the first. */
static int repeat(struct model *m, int n, int prompt, int turns)
{
    struct run *r = malloc(sizeof *r);
    struct run_seq *seqs = calloc((size_t)n, sizeof *seqs);
    float *logits = malloc((size_t)n * (size_t)model_shape(m)->n_vocab * sizeof *logits);
    uint64_t first[STEPS], again[STEPS];
    int n_differ = 0, from = STEPS;

    run_init(r, m);
    prefill(r, seqs, n, prompt);
    decode(r, seqs, n, prompt, logits, first); /* steps are recorded */
    decode(r, seqs, n, prompt, logits, first);
    for (int turn = 0; turn < turns; turn++) {
        int step = 0;

        decode(r, seqs, n, prompt, logits, again);
        while (step < STEPS && first[step] == again[step])
            step++;
        n_differ += step < STEPS;
        from = step < from ? step : from;
    }
    printf("%d decodes behind %d tokens: %d of %d turns of %d steps differ", n, prompt, n_differ,
           turns, STEPS);
    printf(n_differ > 0 ? ", from step %d on\n" : "\n", from);
    (void)fflush(stdout);
    free(seqs);
    free(logits);
    free(r);
    return n_differ;
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 2, 4, 8, 16, 24, 32, 64}, prompts[] = {64, LONG};
    const char *only = getenv("SIZES"); /* such as 32 */
    int turns, n_differ = 0;
    struct model *m;

    log_set_level(LOG_LEVEL_WARN);
    if (argc < 3 || (turns = atoi(argv[2])) < 1) {
        fprintf(stderr, "usage: bench_repeat MODEL-FOLDER TURNS [TABLE [DEVICE [QUANTIZATION]]]\n");
        return 2;
    }
    m = open_model(argv, argc);
    for (size_t p = 0; p < sizeof prompts / sizeof prompts[0]; p++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            if (only == NULL || atoi(only) == sizes[i])
                n_differ += repeat(m, sizes[i], prompts[p], turns);
        }
    }
    model_close(m);
    return n_differ > 0;
}
