/* SPDX-License-Identifier: Apache-2.0
 *
 * The same decodes again and again: the same bits each time?
 *
 *   bench_repeat MODEL-FOLDER TURNS [TABLE [DEVICE [QUANTIZATION]]]
 *
 * Weights are random. For several numbers of sequences, with short and with long contexts, a line:
 * in how many of TURNS repetitions logits differed from the first time, and from which step on. The
 * status is 1 when any did. What overlaps with what depends on the moment, so that a missing
 * barrier shows here, in whole steps, when it does not in a kernel's own test. */
#include "base/hash.h"
#include "base/log.h"
#include "tests/bench/model.h"

#define STEPS 40
#define LONG  960
#define PAGES ((LONG + STEPS) / BENCH_BLOCK + 2) /* of a sequence */

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
            bench_stop("a step fails");
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
    for (int i = 0; i < n; i++)
        bench_prefill(r, &seqs[i], i, prompt, i * PAGES);
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
    struct model_options o = {.max_num_seqs = RUN_SEQS,
                              .kernels = getenv("QUIRE_TEST_KERNELS"),
                              .max_num_batched_tokens = RUN_TOKENS,
                              .max_model_len = LONG + STEPS + 16,
                              .num_pages = RUN_SEQS * PAGES,
                              .cpu_kv_bytes = (size_t)1 << 30};
    int turns, n_differ = 0;
    struct model *m;

    log_set_level(LOG_LEVEL_WARN);
    if (argc < 3 || (turns = atoi(argv[2])) < 1) {
        fprintf(stderr, "usage: bench_repeat MODEL-FOLDER TURNS [TABLE [DEVICE [QUANTIZATION]]]\n");
        return 2;
    }
    m = bench_open(argc, argv, 3, o);
    for (size_t p = 0; p < sizeof prompts / sizeof prompts[0]; p++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            if (only == NULL || atoi(only) == sizes[i])
                n_differ += repeat(m, sizes[i], prompts[p], turns);
        }
    }
    model_close(m);
    return n_differ > 0;
}
