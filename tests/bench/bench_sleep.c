/* SPDX-License-Identifier: Apache-2.0
 *
 * A sleep of a model on a GPU: how long it takes to give memory back and to have it again, and what
 * a step takes from memory that can be given back, beside memory of cudaMalloc().
 *
 *   bench_sleep MODEL-FOLDER [TABLE [DEVICE [QUANTIZATION]]]
 *
 * Weights are random. A line each: what, its figure. Decodes of one and of many sequences are timed
 * with both kinds of memory, and again after sleeps; their tokens must be equal, else the status is
 * 1. The times of sleeps include the loop's looks around, one every few milliseconds. */
#include <cuda_runtime_api.h>

#include "base/log.h"
#include "tests/bench/model.h"

#define SEQS   32
#define PROMPT 64
#define STEPS  200
#define SLEEPS 4
#define MIB    (1.0 / 1048576.0)

struct said {
    double one_ms, many_ms; /* of a step */
    int32_t tokens[SEQS][PROMPT + STEPS];
};

/* What nvidia-smi calls used, of all processes. */
static double used_mib(void)
{
    size_t free_bytes = 0, total = 0;

    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        return 0.0;
    return (double)(total - free_bytes) * MIB;
}

static struct model *open_model(int argc, char **argv, bool sleeps)
{
    struct model_options o = {.max_num_seqs = SEQS,
                              .max_num_batched_tokens = SEQS * PROMPT,
                              .max_model_len = 512,
                              .cpu_kv_bytes = (size_t)256 << 20,
                              .sleeps = sleeps};

    return bench_open(argc, argv, 2, o);
}

/* n sequences: a prompt each, then STEPS steps of all; milliseconds of the latter. */
static double decode(struct model *m, int n, struct said *out)
{
    struct run *r = malloc(sizeof *r);
    struct run_seq *seqs = calloc((size_t)n, sizeof *seqs);
    int pages = (PROMPT + STEPS) / BENCH_BLOCK + 2;
    uint64_t start_us = 0;

    run_init(r, m);
    for (int i = 0; i < n; i++)
        bench_prompt(&seqs[i], i, PROMPT, i * pages);
    for (int step = 0; step <= STEPS; step++) {
        if (step == 1)
            start_us = clock_us();
        run_clear(r);
        for (int i = 0; i < n; i++)
            run_add(r, &seqs[i], step == 0 ? PROMPT : 1, false);
        bench_step(r);
        for (int i = 0; i < n && step < STEPS; i++) {
            out->tokens[i][step] = r->ids[i];
            seqs[i].tokens[seqs[i].n_tokens++] = r->ids[i];
        }
    }
    free(seqs);
    free(r);
    return bench_ms(start_us) / STEPS;
}

/* Twice, since the first steps are recorded. */
static void speak(struct model *m, struct said *out)
{
    for (int turn = 0; turn < 2; turn++) {
        out->many_ms = decode(m, SEQS, out);
        out->one_ms = decode(m, 1, out);
    }
}

static void print_steps(const char *name, const struct said *s)
{
    printf("%s: %.3f ms a step of one sequence, %.3f ms of %d\n", name, s->one_ms, s->many_ms,
           SEQS);
}

static double through(struct model *m, int (*step)(struct model *), double *longest_ms)
{
    uint64_t start_us = clock_us();
    int rc = ERR_AGAIN;

    for (*longest_ms = 0.0; rc == ERR_AGAIN;) { /* ends: each call does some of it */
        uint64_t call_us = clock_us();

        rc = step(m);
        *longest_ms = bench_ms(call_us) > *longest_ms ? bench_ms(call_us) : *longest_ms;
    }
    if (rc != ERR_OK)
        bench_stop("it cannot sleep or wake");
    return bench_ms(start_us) * 1e-3;
}

static void sleep_and_wake(struct model *m, int turn)
{
    const struct model_shape *s = model_shape(m);
    double before = used_mib(), longest, took_s = through(m, model_sleep, &longest), asleep;

    asleep = used_mib();
    printf(
        "sleep %d: %.3f s, the longest call %.1f ms; GPU memory used %.0f MiB, asleep %.0f MiB\n",
        turn, took_s, longest, before, asleep);
    took_s = through(m, model_wake, &longest);
    printf(
        "wake %d: %.3f s, the longest call %.1f ms; %.0f MiB of weights at %.1f GB/s, used again "
        "%.0f MiB\n",
        turn, took_s, longest, (double)s->constant_bytes * MIB,
        (double)s->constant_bytes * 1e-9 / took_s, used_mib());
}

int main(int argc, char **argv)
{
    static struct said plain, first, after;
    struct model *m;

    log_set_level(LOG_LEVEL_WARN);
    if (argc < 2) {
        fprintf(stderr, "usage: bench_sleep MODEL-FOLDER [TABLE [DEVICE [QUANTIZATION]]]\n");
        return 2;
    }
    m = open_model(argc, argv, false);
    speak(m, &plain);
    print_steps("memory of cudaMalloc", &plain);
    model_close(m);
    m = open_model(argc, argv, true);
    if (!model_shape(m)->sleeps)
        bench_stop("the device cannot sleep");
    speak(m, &first);
    print_steps("memory that can go", &first);
    for (int turn = 1; turn <= SLEEPS; turn++)
        sleep_and_wake(m, turn);
    speak(m, &after);
    print_steps("after the sleeps", &after);
    model_close(m);
    if (memcmp(plain.tokens, first.tokens, sizeof plain.tokens) != 0 ||
        memcmp(first.tokens, after.tokens, sizeof first.tokens) != 0)
        bench_stop("tokens differ");
    printf("tokens: equal\n");
    return 0;
}
