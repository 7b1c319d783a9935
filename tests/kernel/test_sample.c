/* SPDX-License-Identifier: Apache-2.0
 *
 * k_sample() against ref_sample(): the same ids, for every kind of row, of logits, and of
 * vocabulary. With an argument: small vocabularies alone, for compute-sanitizer. */
#include "tests/kernel/gpu.h"

#define ROWS_MAX    300
#define HISTORY_MAX 1500 /* tokens of a row */

/* How the logits of a case look. */
enum look { SPREAD, FLAT, EQUAL, PEAKED, NAN_SOME, NAN_ALL, INF_TOP, INF_LOW, LOOKS };

static const char *const look_names[LOOKS] = {"spread",   "flat",    "equal",     "peaked",
                                              "some NaN", "all NaN", "+infinity", "all -infinity"};

static void random_row(struct k_sample_row *r, int i, int n_vocab)
{
    static const float min_ps[] = {0.0f, 0.1f, 0.0f, 1.0f, 0.001f};
    static const int top_ks[] = {0, 1, 50, 0, 128, 129, 1000, 1 << 20, 7};
    static const float top_ps[] = {1.0f, 0.9f, 1.0f, 1e-6f, 0.5f, 0.999f, 0.05f};

    *r = (struct k_sample_row){.sampling = sampling_greedy(), .position = (uint64_t)i};
    r->sampling.seed = (uint64_t)i * 77 + 5;
    if (i % 8 != 0)
        r->sampling.temperature = i % 4 == 1 ? 1.0f : 0.2f * (float)(i % 7 + 1);
    r->sampling.top_p = top_ps[i % 7];
    r->sampling.top_k = top_ks[i % 9];
    r->sampling.min_p = i % 11 < 5 ? min_ps[i % 11] : 0.0f;
    if (i % 2 == 1) {
        r->history_at = (int64_t)i * HISTORY_MAX;
        r->n_history = i % 4 == 1 ? i % 40 + 1 : HISTORY_MAX - i;
        r->n_prompt = r->n_history / (i % 3 + 1);
        r->sampling.presence_penalty = 0.5f;
        r->sampling.frequency_penalty = i % 4 == 1 ? -0.2f : 0.3f;
        r->sampling.repetition_penalty = 1.0f + 0.1f * (float)(i % 5);
    }
    if (i % 6 == 1) {
        r->n_banned = i % (K_BANNED_MAX + 1);
        for (int j = 0; j < r->n_banned; j++)
            r->banned[j] = (i + j * 37) % n_vocab;
    }
}

static float *random_logits(size_t n, float spread, enum look look)
{
    float *x = gpu_random(n, spread);

    for (size_t i = 0; i < n; i++) {
        if (look == FLAT)
            x[i] *= 0.001f;
        else if (look == EQUAL)
            x[i] = 2.5f;
        else if (look == PEAKED)
            x[i] = x[i] * x[i] * x[i] * 0.1f + gpu_uniform();
        else if (look == NAN_ALL || (look == NAN_SOME && gpu_uniform() > 0.5f))
            x[i] = NAN;
        else if (look == INF_LOW)
            x[i] = -INFINITY;
        else if (look == INF_TOP && gpu_uniform() > 0.9f)
            x[i] = INFINITY;
        else if (look == SPREAD)
            x[i] += 0.01f * gpu_uniform(); /* few are equal */
    }
    return x;
}

static void run_case(int n_vocab, int n_rows, float spread, enum look look)
{
    size_t size = (size_t)n_rows * (size_t)n_vocab, n_history = (size_t)n_rows * HISTORY_MAX;
    float *logits = random_logits(size, spread, look), *scratch = malloc((size_t)n_vocab * 4);
    int32_t *counts = malloc((size_t)n_vocab * 4), *history = malloc(n_history * 4);
    int32_t ids[ROWS_MAX], again[ROWS_MAX];
    struct k_sample_row rows[ROWS_MAX], *drows;
    float *dlogits = gpu_array(logits, size * 4);
    int32_t *dhistory, *dids = gpu_array(NULL, (size_t)n_rows * 4);
    k_stream s = device_cuda_stream(gpu);
    int n_same = 0;

    for (size_t i = 0; i < n_history; i++) {
        float at = gpu_uniform() * 0.5f + 0.5f;

        history[i] = (int32_t)(at * at * (float)n_vocab * 0.999f);
    }
    for (int i = 0; i < n_rows; i++)
        random_row(&rows[i], n_rows == 1 ? 19 : i, n_vocab);
    if (n_rows == 1)
        rows[0].history_at = 0;
    drows = gpu_array(rows, (size_t)n_rows * sizeof *rows);
    dhistory = gpu_array(history, n_history * 4);
    for (int run = 0; run < 2; run++) {
        gpu_must(k_sample(dids, dlogits, n_rows, n_vocab, drows, dhistory, s));
        ok(gpu_get(run == 0 ? ids : again, dids, (size_t)n_rows * 4), "guard bands are whole");
    }
    ok(memcmp(ids, again, (size_t)n_rows * 4) == 0, "vocabulary %d: twice the same ids", n_vocab);
    for (int i = 0; i < n_rows; i++) {
        int32_t want = ref_sample(logits + (size_t)i * (size_t)n_vocab, n_vocab, &rows[i], history,
                                  scratch, counts);

        if (want == ids[i])
            n_same++;
        else
            printf("# row %d: %d, the reference says %d\n", i, ids[i], want);
    }
    is_int(n_same, n_rows, "vocabulary %d, %d rows, %s: the reference's ids", n_vocab, n_rows,
           look_names[look]);
    free(logits), free(scratch), free(counts), free(history);
}

static void check(int n_vocab, int n_rows, float spread, enum look look)
{
    if (gpu_has_turn())
        run_case(n_vocab, n_rows, spread, look);
}

int main(int argc, char **argv)
{
    static const int vocabs[] = {1, 2, 7, 33, 1000, 1025};

    (void)argv;
    gpu_open();
    for (size_t i = 0; i < sizeof vocabs / sizeof vocabs[0]; i++)
        for (int look = 0; look < LOOKS; look++)
            check(vocabs[i], argc > 1 && vocabs[i] != 1000 ? 19 : 112, 6.0f, (enum look)look);
    if (argc > 1)
        return device_close(gpu), tap_done();
    check(1000, 300, 9.0f, SPREAD);
    for (int look = 0; look < LOOKS; look++)
        check(32000, 112, 12.0f, (enum look)look);
    for (int i = 0; i < 4; i++)
        check(128256, i * 3 + 1, 3.0f * (float)(i + 1), i % 2 == 0 ? SPREAD : PEAKED);
    check(128256, 48, 6.0f, SPREAD);
    check(128256, 24, 4.0f, FLAT);
    check(151936, 112, 8.0f, SPREAD);
    check(128255, 24, 8.0f, PEAKED);
    device_close(gpu);
    return tap_done();
}
