/* SPDX-License-Identifier: Apache-2.0
 *
 * Logits of a prompt's last token, three times: with the whole prompt in one step, as a decode
 * behind the rest of it, and behind decodes alone. For live.py.
 *
 *   dump_logits FOLDER DEVICE QUANTIZATION IDS OUT
 *
 * IDS holds int32 token ids, OUT gets float32 [WAYS][n_vocab]. */
#include <stdio.h>

#include "tests/golden/run.h"

#define WAYS 3

static void die(const char *what)
{
    fprintf(stderr, "dump_logits: %s\n", what);
    exit(1);
}

int main(int argc, char **argv)
{
    struct model_options o = {.dir = argc > 1 ? argv[1] : "",
                              .kernels = getenv("QUIRE_TEST_KERNELS"),
                              .device = argc > 2 ? argv[2] : "",
                              .quantization = argc > 3 ? argv[3] : "",
                              .page_tokens = 16,
                              .max_model_len = 1024,
                              .max_num_seqs = 4,
                              .max_num_batched_tokens = 1024,
                              .num_pages = 1024,
                              .gpu_memory_utilization = 0.5,
                              .cpu_kv_bytes = (size_t)1 << 28};
    struct run *r = calloc(1, sizeof *r);
    struct run_seq *seqs = calloc(WAYS, sizeof *seqs);
    struct model *m;
    float *logits;
    FILE *f;
    int n;

    if (argc != 6)
        die("FOLDER DEVICE QUANTIZATION IDS OUT");
    if ((f = fopen(argv[4], "rb")) == NULL)
        die("no ids");
    n = (int)fread(seqs[0].tokens, sizeof(int32_t), 1000, f);
    fclose(f);
    if (n < 2 || model_open(&m, &o) != ERR_OK)
        die("the model does not open");
    for (int way = 0; way < WAYS; way++) {
        memcpy(seqs[way].tokens, seqs[0].tokens, sizeof seqs[0].tokens);
        seqs[way].n_tokens = n;
        seqs[way].first_page = way * run_pages(m, 1000);
    }
    logits = malloc((size_t)model_shape(m)->n_vocab * sizeof *logits);
    if ((f = fopen(argv[5], "wb")) == NULL)
        die("no output");
    run_init(r, m);
    for (int way = 0; way < WAYS; way++) {
        int behind[WAYS] = {n, n - 1, 1}; /* tokens of a step */

        while (seqs[way].n_computed < n) {
            int left = n - seqs[way].n_computed;

            run_clear(r);
            run_add(r, &seqs[way], left < behind[way] ? left : behind[way], way == 2);
            if (run_step(r) != ERR_OK)
                die("a step failed");
        }
        if (model_logits(m, logits) != ERR_OK ||
            fwrite(logits, sizeof *logits, (size_t)model_shape(m)->n_vocab, f) == 0)
            die("no logits");
    }
    fclose(f);
    model_close(m);
    return 0;
}
