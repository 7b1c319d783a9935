/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference of the choice of tokens against its definition in float64, over pages that lie
 * apart: keys in the pages, the tokens of largest scores, the earlier of equal ones; and attention
 * over the chosen ones, which is ref_attn() where all are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/index.h"
#include "kernels/latent.h"
#include "tests/tap.h"

#define TOKENS     70
#define HEADS      5
#define DIM        14
#define ROPE       6
#define PAGE       8
#define LATENT     10 /* elements of a latent, of which VALUE are its value */
#define VALUE      7
#define BEFORE     3
#define PAGE_ELEMS (BEFORE + PAGE * (LATENT + DIM))
#define N_PAGES    ((TOKENS + PAGE - 1) / PAGE)

static float keys[TOKENS * DIM], queries[TOKENS * HEADS * DIM], weights[TOKENS * HEADS];
static float attended[TOKENS * HEADS * LATENT], norm[DIM], bias[DIM], turns[TOKENS * ROPE];
static float pages[N_PAGES * PAGE_ELEMS], out[TOKENS * HEADS * VALUE], want[TOKENS * HEADS * VALUE];
static float scratch[2 * TOKENS];
static int32_t table[N_PAGES], seqs[TOKENS], positions[TOKENS], chosen[TOKENS * TOKENS];
static const int32_t starts[2] = {0, TOKENS}, lens[1] = {TOKENS};
static const struct k_tokens tokens = {.seq = seqs,
                                       .pos = positions,
                                       .seq_start = starts,
                                       .kv_len = lens,
                                       .page_ids = table,
                                       .n_tokens = TOKENS,
                                       .n_seqs = 1,
                                       .pages_max = N_PAGES};

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rand() % 4001 - 2000) * 1e-3f;
}

static struct k_index index_of(int n_keys, bool interleaved)
{
    return (struct k_index){.shape = {HEADS, DIM, ROPE, n_keys},
                            .norm = norm,
                            .bias = bias,
                            .turns = turns,
                            .interleaved = interleaved,
                            .eps = 1e-6f};
}

static struct k_kv kv_of(bool of_index)
{
    return (struct k_kv){.pages = pages,
                         .page_elems = PAGE_ELEMS,
                         .layer_elems = BEFORE + (of_index ? PAGE * LATENT : 0),
                         .n_kv_heads = 1,
                         .head_dim = of_index ? DIM : LATENT,
                         .value_dim = of_index ? DIM : VALUE,
                         .page_tokens = PAGE,
                         .is_shared = true};
}

/* x [DIM] with its first elements rotated. */
static void turned(double *x, int pos, bool interleaved)
{
    for (int i = 0; i < ROPE / 2; i++) {
        int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + ROPE / 2;
        double cosine = (double)turns[pos * ROPE + 2 * i];
        double sine = (double)turns[pos * ROPE + 2 * i + 1], x0 = x[a], x1 = x[b];

        x[a] = x0 * cosine - x1 * sine;
        x[b] = x1 * cosine + x0 * sine;
    }
}

static void index_key(double *key, int pos, bool interleaved)
{
    double mean = 0.0, square = 0.0;

    for (int d = 0; d < DIM; d++)
        mean += (double)keys[pos * DIM + d] / DIM;
    for (int d = 0; d < DIM; d++)
        square += ((double)keys[pos * DIM + d] - mean) * ((double)keys[pos * DIM + d] - mean) / DIM;
    for (int d = 0; d < DIM; d++)
        key[d] = ((double)keys[pos * DIM + d] - mean) / sqrt(square + 1e-6) * (double)norm[d] +
                 (double)bias[d];
    turned(key, pos, interleaved);
}

static double score(int token, int pos, bool interleaved)
{
    double sum = 0.0, key[DIM], query[DIM];

    index_key(key, pos, interleaved);
    for (int h = 0; h < HEADS; h++) {
        double dot = 0.0;

        for (int d = 0; d < DIM; d++)
            query[d] = (double)queries[(token * HEADS + h) * DIM + d];
        turned(query, token, interleaved);
        for (int d = 0; d < DIM; d++)
            dot += query[d] * key[d];
        sum += (double)weights[token * HEADS + h] * fmax(dot, 0.0);
    }
    return sum;
}

/* Positions that the token should not see instead of others: their scores are clearly lower. */
static int wrong_of(int token, int n_keys, bool interleaved)
{
    const int32_t *own = chosen + token * n_keys;
    int n_wrong = 0, n = 0;
    bool sees[TOKENS] = {false};
    double least = INFINITY;

    for (; n < n_keys && own[n] >= 0; n++) {
        n_wrong += own[n] > token || (n > 0 && own[n] <= own[n - 1]);
        sees[own[n]] = true;
        least = fmin(least, score(token, own[n], interleaved));
    }
    n_wrong += n != (token + 1 < n_keys ? token + 1 : n_keys);
    for (int i = n; i < n_keys; i++)
        n_wrong += own[i] != -1;
    for (int i = 0; i <= token; i++)
        n_wrong += !sees[i] && score(token, i, interleaved) > least + 1e-4;
    return n_wrong;
}

static void choose(int n_keys, bool interleaved)
{
    const struct k_index x = index_of(n_keys, interleaved);
    const struct k_kv kv = kv_of(true);

    ref_index_keys(keys, &x, &kv, &tokens, 0, TOKENS);
    for (int i = TOKENS - 1; i >= 0; i--)
        ref_index_choose(chosen, queries, weights, &x, &kv, &tokens, i, scratch);
}

static void check_choice(int n_keys, bool interleaved)
{
    int n_wrong = 0;

    choose(n_keys, interleaved);
    for (int i = 0; i < TOKENS; i++)
        n_wrong += wrong_of(i, n_keys, interleaved);
    is_int(n_wrong, 0, "%d of %d tokens, %s: those of largest scores", n_keys, TOKENS,
           interleaved ? "neighbours rotate" : "halves rotate");
}

/* Weights of 0: all scores are equal. */
static void check_equal(void)
{
    int n_wrong = 0;

    memset(weights, 0, sizeof weights);
    choose(9, false);
    for (int i = 0; i < TOKENS * 9; i++)
        n_wrong += chosen[i] != (i % 9 <= i / 9 ? i % 9 : -1);
    is_int(n_wrong, 0, "of equal scores the earlier");
    fill(weights, sizeof weights / sizeof weights[0]);
}

static void attend(int n_keys)
{
    const struct k_kv kv = kv_of(false);
    const struct k_choice choice = {chosen, n_keys};

    for (int i = 0; i < TOKENS * HEADS; i++)
        ref_attn_chosen(out, attended, &kv, &tokens, &choice, HEADS, 0.3f, i / HEADS, i % HEADS,
                        scratch);
}

static void check_attention(void)
{
    const struct k_kv kv = kv_of(false);
    double worst = 0.0;

    choose(TOKENS, false);
    attend(TOKENS);
    for (int i = 0; i < TOKENS; i++)
        ref_attn(want, attended, &kv, &tokens, HEADS, 0.3f, i, 0, scratch);
    ok(memcmp(out, want, sizeof out) == 0, "all tokens chosen: the bits of attention");
    choose(11, true);
    attend(11);
    for (int i = 0; i < TOKENS * HEADS * VALUE; i++) {
        int token = i / VALUE / HEADS;
        double sum = 0.0, value = 0.0;

        for (int k = 0; k < 11 && chosen[token * 11 + k] >= 0; k++) {
            int pos = chosen[token * 11 + k];
            const float *row =
                pages + table[pos / PAGE] * PAGE_ELEMS + BEFORE + pos % PAGE * LATENT;
            double dot = 0.0;

            for (int d = 0; d < LATENT; d++)
                dot += (double)attended[i / VALUE * LATENT + d] * (double)row[d];
            sum += exp(dot * 0.3);
            value += exp(dot * 0.3) * (double)row[i % VALUE];
        }
        worst = fmax(worst, fabs(value / sum - (double)out[i]));
    }
    ok(worst < 1e-5, "chosen tokens alone: within %.1e", worst);
}

int main(void)
{
    srand(tap_seed(1));
    fill(keys, sizeof keys / sizeof keys[0]);
    fill(queries, sizeof queries / sizeof queries[0]);
    fill(weights, sizeof weights / sizeof weights[0]);
    fill(attended, sizeof attended / sizeof attended[0]);
    fill(norm, DIM);
    fill(bias, DIM);
    fill(pages, sizeof pages / sizeof pages[0]);
    for (int i = 0; i < TOKENS; i++) {
        positions[i] = i;
        for (int p = 0; p < ROPE / 2; p++) {
            turns[i * ROPE + 2 * p] = cosf((float)i * powf(0.3f, (float)p));
            turns[i * ROPE + 2 * p + 1] = sinf((float)i * powf(0.3f, (float)p));
        }
    }
    for (int i = 0; i < N_PAGES; i++)
        table[i] = i * 7 % N_PAGES;
    check_choice(1, false);
    check_choice(13, false);
    check_choice(32, true);
    check_choice(TOKENS - 1, true);
    check_equal();
    check_attention();
    return tap_done();
}
