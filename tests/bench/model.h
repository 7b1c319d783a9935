/* SPDX-License-Identifier: Apache-2.0
 *
 * What benches of whole models share: a model with random weights from the command line, prompts
 * for it, and the end of the program when something fails. Steps are golden/run.h's. */
#ifndef QUIRE_TESTS_BENCH_MODEL_H
#define QUIRE_TESTS_BENCH_MODEL_H

#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "tests/golden/run.h"

#define BENCH_BLOCK 16 /* tokens of a page */

static inline void bench_stop(const char *what)
{
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
    exit(1);
}

/* The folder is argv[1]; argv[at] and what follows may be [TABLE [DEVICE [QUANTIZATION]]]. The
 * environment's RANKS is the number of GPUs of a stage, STAGES that of stages. Of o are the
 * sizes. */
static inline struct model *bench_open(int argc, char **argv, int at, struct model_options o)
{
    const char *n_ranks = getenv("RANKS"), *n_stages = getenv("STAGES");
    struct model *m = NULL;

    o.n_ranks = n_ranks == NULL ? 1 : (int)strtol(n_ranks, NULL, 10);
    o.n_stages = n_stages == NULL ? 1 : (int)strtol(n_stages, NULL, 10);
    o.dir = argv[1];
    o.dummy_weights = true;
    o.gemm_table = argc > at ? argv[at] : NULL;
    o.device = argc > at + 1 ? argv[at + 1] : "cuda";
    o.quantization = argc > at + 2 ? argv[at + 2] : NULL;
    o.page_tokens = BENCH_BLOCK;
    o.gpu_memory_utilization = 0.9;
    if (model_open(&m, &o) != ERR_OK)
        bench_stop("the model does not open");
    return m;
}

static inline void bench_step(struct run *r)
{
    if (run_step(r) != ERR_OK)
        bench_stop("a step fails");
}

/* A sequence begins: a prompt of n tokens that no other i has, in pages of its own. */
static inline void bench_prompt(struct run_seq *s, int i, int n, int first_page)
{
    s->first_page = first_page;
    s->n_computed = 0;
    for (s->n_tokens = 0; s->n_tokens < n; s->n_tokens++)
        s->tokens[s->n_tokens] = (i * 131 + s->n_tokens * 17 + 5) % 1000;
}

/* The same, in a step that computes it, and the first token behind it. */
static inline void bench_prefill(struct run *r, struct run_seq *s, int i, int n, int first_page)
{
    bench_prompt(s, i, n, first_page);
    run_clear(r);
    run_add(r, s, n, false);
    bench_step(r);
    s->tokens[s->n_tokens++] = r->ids[0];
}

static inline double bench_ms(uint64_t since_us)
{
    return (double)(clock_us() - since_us) * 1e-3;
}

#endif
