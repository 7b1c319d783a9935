/* SPDX-License-Identifier: Apache-2.0
 *
 * Logits of the last positions of a text, all in one step. For gguf_live.py.
 *
 *   dump_rows MODEL DEVICE IDS N OUT [CPU_INPUTS]
 *
 * IDS holds int32 token ids, OUT gets float32 [N][n_vocab]. */
#include <stdio.h>

#include "tests/golden/run.h"

#define TOKENS_MAX 1000

static void die(const char *what)
{
    fprintf(stderr, "dump_rows: %s\n", what);
    exit(1);
}

int main(int argc, char **argv)
{
    struct model_options o = {.dir = argc > 1 ? argv[1] : "",
                              .device = argc > 2 ? argv[2] : "",
                              .cpu_inputs = argc > 6 ? argv[6] : NULL,
                              .page_tokens = 16,
                              .max_model_len = 1024,
                              .max_num_seqs = RUN_SEQS,
                              .max_num_batched_tokens = 1024,
                              .num_pages = 256,
                              .gpu_memory_utilization = 0.5,
                              .cpu_kv_bytes = (size_t)1 << 28};
    struct run *r = calloc(1, sizeof *r);
    struct run_seq *s = calloc(1, sizeof *s);
    struct model *m;
    float *logits;
    size_t n_vocab;
    FILE *f;
    int n;

    if (argc != 6 && argc != 7)
        die("MODEL DEVICE IDS N OUT [CPU_INPUTS]");
    n = atoi(argv[4]);
    if ((f = fopen(argv[3], "rb")) == NULL)
        die("no ids");
    s->n_tokens = (int)fread(s->tokens, sizeof(int32_t), TOKENS_MAX, f);
    fclose(f);
    if (n < 1 || n > RUN_SEQS || n >= s->n_tokens || model_open(&m, &o) != ERR_OK)
        die("the model does not open");
    n_vocab = (size_t)model_shape(m)->n_vocab;
    logits = malloc((size_t)n * n_vocab * sizeof *logits);
    run_init(r, m);
    run_clear(r);
    run_add(r, s, s->n_tokens - n, false);
    if (run_step(r) != ERR_OK)
        die("a step failed");
    run_clear(r);
    run_add(r, s, n, true);
    if (run_step(r) != ERR_OK || model_logits(m, logits) != ERR_OK)
        die("a step failed");
    if ((f = fopen(argv[5], "wb")) == NULL ||
        fwrite(logits, sizeof *logits * n_vocab, (size_t)n, f) == 0)
        die("no output");
    fclose(f);
    model_close(m);
    return 0;
}
