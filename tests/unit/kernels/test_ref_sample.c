/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling by its rules: greedy, filters against a plain sort, penalties, the generator's shape,
 * and the frequency of draws against the softmax in float64. */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/rng.h"
#include "tests/tap.h"

#define N 50

static float logits[N], scratch[N];
static int32_t counts[N], history[16];

static struct k_sample_row row_of(float temperature)
{
    struct k_sample_row row = {.sampling = sampling_presets()};

    row.sampling.temperature = temperature;
    return row;
}

static int32_t sample(const struct k_sample_row *row)
{
    return ref_sample(logits, N, row, history, scratch, counts);
}

static void check_greedy(void)
{
    struct k_sample_row r = row_of(0.0f);

    logits[7] = logits[9] = 3.0f;
    is_int(sample(&r), 7, "the lowest id among equals");
    r.n_banned = 1;
    r.banned[0] = 7;
    is_int(sample(&r), 9, "a banned id is not chosen");
    r.n_history = 3;
    r.n_prompt = 1;
    history[0] = 20;
    history[1] = history[2] = 9;
    r.sampling.frequency_penalty = 0.4f;
    r.sampling.presence_penalty = 0.1f;
    logits[11] = 2.2f;
    is_int(sample(&r), 11, "3 - 2 * 0.4 - 0.1 is below 2.2");
    logits[20] = 2.9f;
    is_int(sample(&r), 20, "presence and frequency leave the prompt alone");
    r.sampling.repetition_penalty = 2.0f;
    is_int(sample(&r), 11, "repetition does not");
    for (int i = 0; i < N; i++)
        logits[i] = -INFINITY;
    r = row_of(1.0f);
    is_int(sample(&r), 0, "nothing but -infinity gives id 0");
    logits[3] = NAN;
    logits[4] = -5.0f;
    is_int(sample(&r), 4, "NaN is no value");
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* Which ids a row may give, by sorting: true in may[]. */
static void allowed(bool may[N], const struct k_sample_row *r)
{
    float sorted[N];
    double sum = 0.0, run = 0.0;
    int n = 0, kept = 0;

    memcpy(sorted, logits, sizeof sorted);
    qsort(sorted, N, sizeof *sorted, by_size);
    while (n < N &&
           exp((double)(sorted[n] - sorted[0]) / (double)r->sampling.temperature) >=
               (double)r->sampling.min_p &&
           (r->sampling.top_k == 0 || n < r->sampling.top_k || sorted[n] == sorted[n - 1]))
        n++;
    for (int i = 0; i < n; i++)
        sum += exp((double)(sorted[i] - sorted[0]) / (double)r->sampling.temperature);
    while (kept < n && run < (double)r->sampling.top_p * sum) {
        run += exp((double)(sorted[kept++] - sorted[0]) / (double)r->sampling.temperature);
        while (kept < n && sorted[kept] == sorted[kept - 1])
            run += exp((double)(sorted[kept++] - sorted[0]) / (double)r->sampling.temperature);
    }
    for (int i = 0; i < N; i++)
        may[i] = kept > 0 && logits[i] >= sorted[kept - 1];
}

static void check_filters(void)
{
    static const struct {
        float temperature, top_p, min_p;
        int32_t top_k;
    } cases[] = {{1.0f, 0.5f, 0.0f, 0},    {1.0f, 1.0f, 0.0f, 5},   {0.7f, 1.0f, 0.13f, 0},
                 {1.5f, 0.83f, 0.02f, 20}, {1.0f, 0.001f, 0.0f, 0}, {2.0f, 0.97f, 0.0f, 1},
                 {0.3f, 0.61f, 0.0f, 10},  {1.0f, 1.0f, 0.0f, 0}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct k_sample_row r = row_of(cases[i].temperature);
        bool may[N], seen[N] = {false};
        int n_outside = 0, n_missing = 0;

        r.sampling.top_p = cases[i].top_p;
        r.sampling.min_p = cases[i].min_p;
        r.sampling.top_k = cases[i].top_k;
        for (int j = 0; j < N; j++)
            logits[j] = (float)(rand() % 40) * 0.1f; /* equals occur */
        allowed(may, &r);
        for (r.position = 0; r.position < 20000; r.position++)
            seen[sample(&r)] = true;
        for (int j = 0; j < N; j++) {
            n_outside += seen[j] && !may[j];
            n_missing += may[j] && !seen[j];
        }
        ok(n_outside == 0 && n_missing == 0, "filters %zu: what a sort keeps, all of it (%d, %d)",
           i, n_outside, n_missing);
    }
}

static void check_frequency(void)
{
    struct k_sample_row r = row_of(0.8f);
    int n[N] = {0}, n_draws = 200000;
    double sum = 0.0, chi = 0.0;

    for (int i = 0; i < N; i++) {
        logits[i] = (float)(rand() % 30) * 0.1f;
        sum += exp((double)logits[i] / 0.8);
    }
    for (int i = 0; i < n_draws; i++) {
        r.sampling.seed = (uint64_t)(i / 1000);
        r.position = (uint64_t)(i % 1000);
        n[sample(&r)]++;
    }
    for (int i = 0; i < N; i++) {
        double want = n_draws * exp((double)logits[i] / 0.8) / sum;

        chi += (n[i] - want) * (n[i] - want) / want;
    }
    ok(chi < 49 + 5 * sqrt(2.0 * 49), "draws follow the softmax: chi-square %.1f for 49", chi);
}

static void check_arithmetic(void)
{
    double worst = 0.0;

    for (int i = 0; i < 20000; i++) {
        float x = -(float)i * 1e-3f;
        double want = exp((double)x) * 4294967296.0;

        worst = fmax(worst, fabs((double)k_exp_fixed(x) - want) / (want + 1e7));
    }
    ok(worst < 1e-5, "k_exp_fixed within %.1e", worst);
    ok(k_exp_fixed(0.0f) == 1ULL << 32 && k_exp_fixed(-INFINITY) == 0 && k_exp_fixed(NAN) == 0,
       "its ends");
    ok(k_mul_high(UINT64_MAX, UINT64_MAX) == UINT64_MAX - 1 && k_mul_high(1ULL << 63, 6) == 3,
       "k_mul_high");
    ok(k_sort_key(-0.0f) == k_sort_key(0.0f) && k_sort_key(-1.0f) < k_sort_key(1.0f) &&
           k_sort_key(NAN) < k_sort_key(-INFINITY),
       "k_sort_key");
}

int main(void)
{
    srand(tap_seed(1));
    check_greedy();
    check_filters();
    check_frequency();
    check_arithmetic();
    return tap_done();
}
