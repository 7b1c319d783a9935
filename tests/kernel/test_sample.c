/* k_sample() against ref_sample(): the same ids, for every kind of row and several vocabularies. */
#include "tests/kernel/gpu.h"

#define ROWS    96
#define HISTORY 40

static void random_row(struct k_sample_row *r, int i, int n_vocab)
{
    *r = (struct k_sample_row){
        .top_p = 1.0f, .repetition = 1.0f, .seed = (uint64_t)i * 77 + 5, .position = (uint64_t)i};
    if (i % 4 != 0)
        r->temperature = i % 4 == 1 ? 1.0f : 0.2f * (float)(i % 7 + 1);
    if (i % 3 == 1)
        r->top_p = 0.05f + 0.13f * (float)(i % 8);
    if (i % 5 == 1)
        r->top_k = i % 2 == 0 ? 1 : i;
    if (i % 7 == 1)
        r->min_p = 0.1f;
    if (i % 2 == 1) {
        r->history_at = (int64_t)i * HISTORY;
        r->n_history = i % HISTORY + 1;
        r->n_prompt = r->n_history / 2;
        r->presence = 0.5f;
        r->frequency = i % 4 == 1 ? -0.2f : 0.3f;
        r->repetition = 1.0f + 0.1f * (float)(i % 5);
    }
    if (i % 6 == 1 && n_vocab > 8) {
        r->n_banned = i % 8;
        for (int j = 0; j < r->n_banned; j++)
            r->banned[j] = (i + j) % n_vocab;
    }
}

static void check_vocab(int n_vocab, float spread)
{
    size_t size = (size_t)ROWS * (size_t)n_vocab;
    float *logits = gpu_random(size, spread), *scratch = malloc((size_t)n_vocab * 4);
    int32_t *counts = malloc((size_t)n_vocab * 4), history[ROWS * HISTORY], ids[ROWS], again[ROWS];
    struct k_sample_row *rows = calloc(ROWS, sizeof *rows), *drows;
    float *dlogits = gpu_array(logits, size * 4), *dscratch = gpu_array(NULL, size * 4);
    int32_t *dcounts = gpu_array(NULL, size * 4), *dhistory, *dids = gpu_array(NULL, sizeof ids);
    k_stream s = device_cuda_stream(gpu);
    int n_same = 0;

    for (int i = 0; i < ROWS * HISTORY; i++)
        history[i] = (int32_t)((gpu_uniform() * 0.5f + 0.5f) * (float)n_vocab * 0.999f);
    for (int i = 0; i < ROWS; i++)
        random_row(&rows[i], i, n_vocab);
    drows = gpu_array(rows, ROWS * sizeof *rows);
    dhistory = gpu_array(history, sizeof history);
    for (int run = 0; run < 2; run++) {
        gpu_must(k_sample_count(dcounts, drows, dhistory, 0, ROWS, n_vocab, s));
        gpu_must(k_sample(dids, dlogits, ROWS, n_vocab, drows, dscratch, dcounts, s));
        ok(gpu_get(run == 0 ? ids : again, dids, sizeof ids), "guard bands are whole");
    }
    ok(memcmp(ids, again, sizeof ids) == 0, "vocabulary %d: twice the same ids", n_vocab);
    for (int i = 0; i < ROWS; i++) {
        int32_t want = ref_sample(logits + (size_t)i * (size_t)n_vocab, n_vocab, &rows[i], history,
                                  scratch, counts);

        if (want == ids[i])
            n_same++;
        else
            printf("# row %d: %d, the reference says %d\n", i, ids[i], want);
    }
    is_int(n_same, ROWS, "vocabulary %d, spread %.1f: the reference's ids", n_vocab,
           (double)spread);
    free(logits), free(scratch), free(counts), free(rows);
}

int main(void)
{
    gpu_open();
    check_vocab(1, 1.0f);
    check_vocab(2, 1.0f);
    check_vocab(33, 4.0f);
    check_vocab(1000, 0.01f); /* nearly flat, many equal values */
    check_vocab(1025, 8.0f);
    check_vocab(32000, 12.0f);
    check_vocab(128256, 6.0f);
    device_close(gpu);
    return tap_done();
}
