/* SPDX-License-Identifier: Apache-2.0
 *
 * The references of Mamba-2 and of short convolutions against the formulas of mamba.h in float64,
 * over states that lie across pages, in chunks and as a whole; and the recurrence against its
 * closed form, a sum over all tokens before, which is what kernels compute for a chunk. */
#include <math.h>

#include "kernels/mamba.h"
#include "tests/tap.h"

#define HEADS      6
#define GROUPS     3
#define DIM        5
#define STATE      7
#define TAPS       3
#define INNER      (HEADS * DIM)
#define CHANNELS   (INNER + 2 * GROUPS * STATE)
#define ROW        (INNER + CHANNELS + HEADS)
#define TOKENS     50
#define PAGE_ELEMS 64
#define PAGES      9 /* of a state, with what lies before it */
#define N_PAGES    (2 * PAGES)
#define BEFORE     20
#define WIDTH      11 /* of a short convolution */

static const struct k_mamba_shape shape = {HEADS, DIM, GROUPS, STATE, TAPS};

static float in[TOKENS * ROW], out[TOKENS * INNER], whole[TOKENS * INNER];
static float taps[CHANNELS * TAPS], bias[CHANNELS];
static float a_log[HEADS], dt_bias[HEADS], skip[HEADS], norm[INNER];
static float pages[N_PAGES * PAGE_ELEMS];
static int32_t table[2][PAGES];
static struct k_mamba mamba;

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rand() % 4001 - 2000) * 1e-3f;
}

static struct k_mamba_part part_of(int channel, float by)
{
    return (struct k_mamba_part){taps + channel * TAPS, bias + channel, by};
}

/* The next n tokens of sequence 1, of `done`; sequence 0 is a padding one. */
static struct k_tokens tokens_of(int32_t start[3], int32_t len[2], int done, int n)
{
    start[0] = start[1] = len[0] = 0;
    start[2] = n;
    len[1] = done + n;
    return (struct k_tokens){.seq_start = start,
                             .kv_len = len,
                             .page_ids = table[0],
                             .n_tokens = n,
                             .n_seqs = 2,
                             .pages_max = PAGES};
}

static void run(int done, int n)
{
    const struct k_state state = {.pages = pages, .page_elems = PAGE_ELEMS, .at = BEFORE};
    int32_t start[3], len[2];
    const struct k_tokens t = tokens_of(start, len, done, n);

    for (int s = 0; s < 2; s++) {
        for (int head = HEADS - 1; head >= 0; head--)
            ref_mamba_scan(out + done * INNER, in + done * ROW, &mamba, &state, &t, s, head);
        ref_mamba_keep(in + done * ROW, &mamba, &state, &t, s);
    }
    for (int token = 0; token < n; token++)
        ref_mamba_gate(out + done * INNER, in + done * ROW, &mamba, token);
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

/* A channel of x, B, C after the convolution. */
static double convolved(int token, int channel)
{
    float by = channel < INNER                    ? mamba.x.by
               : channel < INNER + GROUPS * STATE ? mamba.b.by
                                                  : mamba.c.by;
    double sum = 0.0;

    for (int back = 0; back < TAPS && back <= token; back++)
        sum += (double)in[(token - back) * ROW + INNER + channel] *
               (double)taps[channel * TAPS + TAPS - 1 - back];
    return silu((double)by * sum + (double)bias[channel]);
}

static double length_of(int token, int head)
{
    double dt = (double)mamba.dt_by * (double)in[token * ROW + INNER + CHANNELS + head];

    return fmin(fmax(log1p(exp(dt + (double)dt_bias[head])), (double)mamba.least),
                (double)mamba.most);
}

/* y of a head by the closed form: for each token before, its x times B * C, times all that was kept
 * since. */
static double closed(int token, int head, int i)
{
    int b = INNER + head / (HEADS / GROUPS) * STATE, c = b + GROUPS * STATE;
    double y = (double)skip[head] * convolved(token, head * DIM + i), kept = 0.0;

    for (int from = token; from >= 0; from--) {
        double both = 0.0;

        for (int j = 0; j < STATE; j++)
            both += convolved(from, b + j) * convolved(token, c + j);
        y += exp(kept) * length_of(from, head) * convolved(from, head * DIM + i) * both;
        kept -= exp((double)a_log[head]) * length_of(from, head);
    }
    return y;
}

/* The largest difference of a group's elements at a token. */
static double difference_at(int token, int group)
{
    int n = INNER / GROUPS, first = group * n;
    double want[INNER / GROUPS], sum = 0.0, worst = 0.0;

    for (int i = 0; i < n; i++) {
        want[i] = closed(token, (first + i) / DIM, (first + i) % DIM);
        if (!mamba.norm_first)
            want[i] *= silu((double)mamba.z_by * (double)in[token * ROW + first + i]);
        sum += want[i] * want[i];
    }
    for (int i = 0; i < n; i++) {
        if (mamba.norm != NULL)
            want[i] *= (double)norm[first + i] / sqrt(sum / n + (double)mamba.eps);
        if (mamba.norm_first)
            want[i] *= silu((double)mamba.z_by * (double)in[token * ROW + first + i]);
        worst = fmax(worst, fabs(want[i] - (double)out[token * INNER + first + i]));
    }
    return worst;
}

/* What stands in pages before the first token is not read, and nothing beside the state is
 * written. */
static void check_mamba(const char *name)
{
    double worst = 0.0;
    int n_written = 0;

    for (int i = 0; i < N_PAGES * PAGE_ELEMS; i++)
        pages[i] = NAN;
    run(0, TOKENS);
    for (int token = 0; token < TOKENS; token++) {
        for (int group = 0; group < GROUPS; group++)
            worst = fmax(worst, difference_at(token, group));
    }
    ok(worst < 2e-5, "%s: %d tokens at once are the closed form within %.1e", name, TOKENS, worst);
    memcpy(whole, out, sizeof out);
    memset(out, 0, sizeof out);
    for (int done = 0, n; done < TOKENS; done += n) {
        n = 1 + rand() % 7;
        n = n < TOKENS - done ? n : TOKENS - done;
        run(done, n);
    }
    ok(memcmp(out, whole, sizeof out) == 0, "%s: in chunks: the same bits", name);
    for (int i = 0; i < N_PAGES * PAGE_ELEMS; i++)
        n_written += pages[i] == pages[i];
    is_int(n_written, HEADS * DIM * STATE + TAPS * CHANNELS, "only the state is written");
}

static void check_forms(void)
{
    mamba = (struct k_mamba){.shape = shape,
                             .x = part_of(0, 0.7f),
                             .b = part_of(INNER, 1.2f),
                             .c = part_of(INNER + GROUPS * STATE, 0.9f),
                             .a_log = a_log,
                             .dt_bias = dt_bias,
                             .skip = skip,
                             .norm = norm,
                             .eps = 1e-5f,
                             .least = 0.0f,
                             .most = INFINITY,
                             .z_by = 1.1f,
                             .dt_by = 0.6f};
    check_mamba("a norm after the gate");
    mamba.norm_first = true;
    check_mamba("a norm before the gate");
    mamba.norm = NULL;
    mamba.least = 0.3f;
    mamba.most = 0.8f;
    check_mamba("no norm, limits of steps");
}

/* The convolution as one sum. */
static double short_difference(const float *short_out)
{
    double worst = 0.0;

    for (int token = 0; token < TOKENS; token++) {
        for (int i = 0; i < WIDTH; i++) {
            double sum = (double)bias[i];

            for (int back = 0; back < TAPS && back <= token; back++) {
                const float *row = in + (token - back) * 3 * WIDTH;

                sum += (double)taps[i * TAPS + TAPS - 1 - back] * (double)row[i] *
                       (double)row[2 * WIDTH + i];
            }
            worst = fmax(worst, fabs(sum * (double)in[token * 3 * WIDTH + WIDTH + i] -
                                     (double)short_out[token * WIDTH + i]));
        }
    }
    return worst;
}

static void check_short(void)
{
    const struct k_state state = {.pages = pages, .page_elems = 16, .at = 3};
    const struct k_short_conv conv = {WIDTH, TAPS, taps, bias};
    float short_out[TOKENS * WIDTH];

    for (int i = 0; i < N_PAGES * PAGE_ELEMS; i++)
        pages[i] = NAN;
    for (int done = 0, n; done < TOKENS; done += n) {
        int32_t start[3], len[2];
        struct k_tokens t;

        n = 1 + rand() % 7;
        n = n < TOKENS - done ? n : TOKENS - done;
        t = tokens_of(start, len, done, n);
        for (int s = 0; s < 2; s++) {
            for (int first = 0; first < WIDTH; first += 4)
                ref_short_conv(short_out + done * WIDTH, in + done * 3 * WIDTH, &conv, &state, &t,
                               s, first, first + 4 < WIDTH ? first + 4 : WIDTH);
        }
    }
    ok(short_difference(short_out) < 1e-5, "short convolutions: within %.1e",
       short_difference(short_out));
}

int main(void)
{
    srand(tap_seed(1));
    fill(in, sizeof in / sizeof in[0]);
    fill(taps, sizeof taps / sizeof taps[0]);
    fill(bias, CHANNELS);
    fill(a_log, HEADS);
    fill(dt_bias, HEADS);
    fill(skip, HEADS);
    fill(norm, INNER);
    for (int i = 0; i < N_PAGES; i++)
        table[i % 2][i / 2] = i * 7 % N_PAGES;
    check_forms();
    check_short();
    return tap_done();
}
