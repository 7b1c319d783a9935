/* SPDX-License-Identifier: Apache-2.0
 *
 * Log probabilities, masks and biases by their rules, against a plain softmax in float64 and a
 * plain sort, and at the edges: equal logits, NaN, infinities, the first and the last id. */
#include <float.h>
#include <math.h>

#include "kernels/kernels.h"
#include "tests/tap.h"

#define N       70 /* ids: two words of a mask and a part of a third */
#define N_WORDS ((N + 31) / 32)
#define ROWS    3
#define TOP     40

static float logits[ROWS][N], before[N];

static struct k_logits_row row_of(int row, int target, int n_top)
{
    return (struct k_logits_row){.row = row, .target = target, .n_top = n_top, .mask_at = -1};
}

static void fill(unsigned seed)
{
    for (int i = 0; i < ROWS * N; i++)
        logits[i / N][i % N] = (float)(int)(random_next(&seed) % 2000) / 100.0f - 10.0f;
}

static double softmax(const float *row, int id)
{
    double sum = 0.0;

    for (int i = 0; i < N; i++)
        sum += exp((double)row[i]);
    return exp((double)row[id]) / sum;
}

static int n_before(const float *row, int id)
{
    int n = 0;

    for (int i = 0; i < N; i++)
        n += row[i] > row[id] || (row[i] == row[id] && i < id);
    return n;
}

static void check_plain(unsigned seed)
{
    struct k_logits_row rows[] = {row_of(2, 5, TOP), row_of(0, K_SAMPLED, 3), row_of(1, 9, -1)};
    struct k_logprob_row out[3] = {{.chosen = 77.0f}, {.chosen = 77.0f}, {.chosen = 77.0f}};
    struct k_asked asked[3] = {{.row = 2, .id = 33}, {.row = 0, .id = N - 1}, {.row = 1, .id = 7}};
    int n_right = 0;
    double worst = 0.0;

    fill(seed);
    logits[2][N - 1] = 10.5f;
    logits[2][0] = logits[2][33] = logits[2][5] = 9.99f;
    ref_logprobs(out, logits[0], N, rows, 3);
    for (int i = 0; i < TOP; i++) {
        n_right +=
            n_before(logits[2], out[0].ids[i]) == i && out[0].top[i] == logits[2][out[0].ids[i]];
        worst = fmax(worst, fabs((double)(out[0].top[i] - out[0].log_sum) -
                                 log(softmax(logits[2], out[0].ids[i]))));
    }
    is_int(out[0].n_top, TOP, "as many as are wanted");
    is_int(n_right, TOP, "the largest by a sort, the lowest id among equals");
    ok(worst < 1e-5, "their log probabilities: worst %.1e", worst);
    ok(fabs((double)out[0].chosen - log(softmax(logits[2], 5))) < 1e-5, "the target's");
    is_int(out[0].rank, 2, "its rank counts what is larger, not what is equal");
    is_int(out[1].n_top, 3, "another row, other wishes");
    is_int(n_before(logits[0], out[1].ids[2]), 2, "its third");
    ok(out[1].chosen == 77.0f && out[1].rank == 0, "the sampled id is left for later");
    ok(out[2].chosen == 77.0f && out[2].log_sum == 0.0f, "a row without a wish is left alone");
    rows[0].n_top = K_LOGPROBS_MAX;
    ref_logprobs(out, logits[0], N, rows, 1);
    is_int(out[0].n_top, N, "no more than there are");
    logits[1][7] = NAN;
    ref_read_asked(asked, logits[0], N, 3);
    ok(asked[0].logit == logits[2][33] && asked[1].logit == logits[0][N - 1] &&
           asked[2].logit == -INFINITY,
       "single logits, of NaN as of all");
}

static void check_edges(void)
{
    struct k_logits_row rows[] = {row_of(0, 4, 5), row_of(1, 3, 2), row_of(2, 0, 0)};
    struct k_logprob_row out[3];

    for (int i = 0; i < N; i++) {
        logits[0][i] = i == 1 || i == 2 ? NAN : -INFINITY;
        logits[1][i] = i == 3 ? INFINITY : i == 4 ? NAN : (float)-i;
        logits[2][i] = 1e30f;
    }
    ref_logprobs(out, logits[0], N, rows, 3);
    ok(out[0].log_sum == 0.0f && out[0].chosen == -INFINITY, "nothing but -infinity");
    ok(out[0].ids[1] == 1 && out[0].ids[4] == 4 && out[0].top[1] == -INFINITY,
       "NaN is one of them");
    is_int(out[0].rank, 1, "and none is larger");
    ok(out[1].ids[0] == 3 && out[1].ids[1] == 0 && out[1].top[0] == FLT_MAX,
       "+infinity comes first");
    ok(out[1].chosen == 0.0f && out[1].rank == 1, "and is certain");
    ok(out[1].top[1] - out[1].log_sum <= -FLT_MAX, "others are not to be had");
    ok(fabsf(out[2].log_sum / 1e30f - 1.0f) < 1e-6f && out[2].n_top == 0, "equal and large");
    rows[0] = row_of(0, K_SAMPLED, 20);
    ref_logprobs(out, logits[1], 4, rows, 1);
    is_int(out[0].n_top, 4, "no more than there are");
    is_int(out[0].ids[3], 2, "the last of them");
}

static void check_edit(unsigned seed)
{
    struct k_logits_row rows[] = {row_of(1, K_SAMPLED, 0), row_of(0, K_SAMPLED, -1)};
    struct k_bias biases[] = {{.id = 8, .value = 9.0f},
                              {.id = 0, .value = 1.5f},
                              {.id = N - 1, .value = -INFINITY},
                              {.id = 31, .value = 2.0f},
                              {.id = 6, .value = 1.0f}};
    uint32_t masks[1 + N_WORDS] = {0, ~2U & ~(1U << 31), 0, ~0U};
    struct k_logprob_row out[1];
    const int32_t ids[ROWS] = {6, N - 1, 6};
    int32_t id = 1;
    int n_right = 0;

    fill(seed);
    memcpy(before, logits[1], sizeof before);
    rows[0].n_biases = 4;
    rows[0].biases_at = 1;
    rows[0].mask_at = 1;
    ref_logprobs(out, logits[0], N, rows, 2);
    ref_edit(logits[0], N, rows, 2, masks, biases);
    for (int i = 0; i < N; i++) {
        bool may = i != 1 && i < 31 ? true : i >= 64;
        float want = may ? before[i] : -INFINITY;

        want += i == 0 ? 1.5f : i == 6 ? 1.0f : i == N - 1 ? -INFINITY : 0.0f;
        n_right += logits[1][i] == want;
    }
    is_int(n_right, N, "masked, biased and left");
    ok(biases[1].raw == before[0] && biases[2].raw == before[N - 1] && biases[4].raw == before[6],
       "the logits before are kept");
    ok(biases[3].raw == -INFINITY && biases[0].raw == 0.0f,
       "what is masked has none; another row's bias is left");
    ref_chosen(out, ids, logits[0], N, rows, 2, biases);
    ok(fabs((double)out[0].chosen - log(softmax(before, N - 1))) < 1e-5,
       "a banned id has the probability that it had");
    ref_chosen(out, (const int32_t[ROWS]){0, 6, 0}, logits[0], N, rows, 2, biases);
    ok(fabs((double)out[0].chosen - log(softmax(before, 6))) < 1e-5, "a biased one as well");
    ref_chosen(out, (const int32_t[ROWS]){0, 7, 0}, logits[0], N, rows, 2, biases);
    ok(fabs((double)out[0].chosen - log(softmax(before, 7))) < 1e-5, "and one without a bias");
    for (int i = 0; i < 2; i++, id = 31) {
        ref_chosen(out, (const int32_t[ROWS]){0, id, 0}, logits[0], N, rows, 2, biases);
        ok(out[0].chosen == -INFINITY, "masked id %d has none", id);
    }
    out[0].chosen = 5.0f;
    rows[0].target = 3;
    ref_chosen(out, ids, logits[0], N, rows, 2, biases);
    ok(out[0].chosen == 5.0f, "a target's is not touched");
}

int main(void)
{
    unsigned seed = tap_seed(1);

    for (unsigned i = 0; i < 5; i++)
        check_plain(seed + i);
    check_edges();
    check_edit(seed);
    return tap_done();
}
