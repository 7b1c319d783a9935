/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule's reference against the formula of delta.h in float64, with a factor for a
 * head or for each of its channels, over states that lie across pages, in chunks and as a whole. */
#include <math.h>

#include "kernels/delta.h"
#include "tests/tap.h"

#define K_HEADS    2
#define V_HEADS    6
#define K_DIM      5
#define V_DIM      7
#define TAPS       3
#define KEYS       (K_HEADS * K_DIM)
#define VALUES     (V_HEADS * V_DIM)
#define CHANNELS   (2 * KEYS + VALUES)
#define ROW        (CHANNELS + VALUES)
#define TOKENS     50
#define PAGE_ELEMS 64
#define PAGES      9 /* of a state, with what lies before it */
#define N_PAGES    (2 * PAGES)
#define BEFORE     20

static struct k_delta_shape shape = {K_HEADS, V_HEADS, K_DIM, V_DIM, TAPS, false, false};

/* By channel rows are CHANNELS long and gates V_HEADS. */
static float in[TOKENS * ROW], gates[TOKENS * 2 * V_HEADS];
static float a_in[TOKENS * V_HEADS * K_DIM], z_in[TOKENS * VALUES];
static float out[TOKENS * VALUES], whole[TOKENS * VALUES];
static float taps[CHANNELS * TAPS], a_log[V_HEADS], dt_bias[V_HEADS * K_DIM], norm[V_DIM];
static float pages[N_PAGES * PAGE_ELEMS];
static int32_t table[2][PAGES];

static float noise(void)
{
    return (float)(rand() % 4001 - 2000) * 1e-3f;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = noise();
}

/* The next n tokens of sequence 1, of `done`; sequence 0 is a padding one. */
static void run(int done, int n)
{
    const int32_t start[3] = {0, 0, n}, len[2] = {0, done + n};
    const struct k_state state = {.pages = pages, .page_elems = PAGE_ELEMS, .at = BEFORE};
    const struct k_delta d = {.shape = shape,
                              .q_taps = taps,
                              .k_taps = taps + KEYS * TAPS,
                              .v_taps = taps + 2 * KEYS * TAPS,
                              .a_log = a_log,
                              .dt_bias = dt_bias,
                              .norm = norm,
                              .a = a_in + done * V_HEADS * K_DIM,
                              .z = z_in + done * VALUES,
                              .eps = 1e-6f};
    const struct k_tokens t = {.seq_start = start,
                               .kv_len = len,
                               .page_ids = table[0],
                               .n_tokens = n,
                               .n_seqs = 2,
                               .pages_max = PAGES};

    for (int head = K_HEADS - 1; head >= 0; head--) {
        for (int s = 0; s < 2; s++)
            ref_delta_rule(out + done * VALUES, in + done * k_delta_row(&shape),
                           gates + done * k_delta_gates(&shape), &d, &state, &t, s, head);
    }
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* A channel of q, k, v after the convolution. */
static double convolved(int token, int channel)
{
    double sum = 0.0;

    for (int back = 0; back < TAPS && back <= token; back++)
        sum += (double)in[(token - back) * k_delta_row(&shape) + channel] *
               (double)taps[channel * TAPS + TAPS - 1 - back];
    return sum * sigmoid(sum);
}

/* x [K_DIM]: a head of q or k whose first channel is given, of length 1. */
static void unit(double *x, int token, int channel)
{
    double sum = 0.0;

    for (int i = 0; i < K_DIM; i++) {
        x[i] = convolved(token, channel + i);
        sum += x[i] * x[i];
    }
    for (int i = 0; i < K_DIM; i++)
        x[i] /= sqrt(sum + 1e-6);
}

/* The factor of row i of a head's matrix before a token. */
static double kept(int token, int head, int i)
{
    double a = (double)gates[token * 2 * V_HEADS + V_HEADS + head] + (double)dt_bias[head];

    if (shape.by_channel)
        a = (double)a_in[(token * V_HEADS + head) * K_DIM + i] + (double)dt_bias[head * K_DIM + i];
    return exp(-exp((double)a_log[head]) * log1p(exp(a)));
}

/* What multiplies a result. */
static double opened(int token, int head, int j)
{
    double z = (double)in[token * ROW + CHANNELS + head * V_DIM + j];

    if (shape.by_channel)
        return sigmoid((double)z_in[token * VALUES + head * V_DIM + j]);
    return z * sigmoid(z);
}

/* The largest difference of one token of a value head; s is its matrix. */
static double difference_at(int token, int head, double s[K_DIM][V_DIM])
{
    int k_head = head / (V_HEADS / K_HEADS);
    double beta = sigmoid((double)gates[token * k_delta_gates(&shape) + head]);
    double q[K_DIM], k[K_DIM], o[V_DIM], sum = 0.0, worst = 0.0;

    unit(q, token, k_head * K_DIM);
    unit(k, token, KEYS + k_head * K_DIM);
    for (int j = 0; j < V_DIM; j++) {
        double u = convolved(token, 2 * KEYS + head * V_DIM + j);

        for (int i = 0; i < K_DIM; i++)
            u -= kept(token, head, i) * s[i][j] * k[i];
        o[j] = 0.0;
        for (int i = 0; i < K_DIM; i++) {
            s[i][j] = kept(token, head, i) * s[i][j] + beta * u * k[i];
            o[j] += s[i][j] * q[i] / sqrt(K_DIM);
        }
        sum += o[j] * o[j];
    }
    for (int j = 0; j < V_DIM; j++) {
        double want = o[j] / sqrt(sum / V_DIM + 1e-6) * (double)norm[j] * opened(token, head, j);

        worst = fmax(worst, fabs(want - (double)out[token * VALUES + head * V_DIM + j]));
    }
    return worst;
}

static double worst_difference(void)
{
    double worst = 0.0;

    for (int head = 0; head < V_HEADS; head++) {
        double s[K_DIM][V_DIM] = {{0}};

        for (int token = 0; token < TOKENS; token++)
            worst = fmax(worst, difference_at(token, head, s));
    }
    return worst;
}

/* What stands in pages before the first token is not read, and nothing beside the state is
 * written. */
static void check_delta(void)
{
    size_t elems = k_delta_elems(&shape);
    int n_written = 0;

    for (int i = 0; i < N_PAGES * PAGE_ELEMS; i++)
        pages[i] = NAN;
    run(0, TOKENS);
    ok(worst_difference() < 2e-5, "%d tokens at once: within %.1e", TOKENS, worst_difference());
    memcpy(whole, out, sizeof out);
    memset(out, 0, sizeof out);
    for (int done = 0, n; done < TOKENS; done += n) {
        n = 1 + rand() % 7;
        n = n < TOKENS - done ? n : TOKENS - done;
        run(done, n);
    }
    ok(memcmp(out, whole, sizeof out) == 0, "in chunks: the same bits");
    for (int i = 0; i < N_PAGES * PAGE_ELEMS; i++)
        n_written += pages[i] == pages[i];
    is_int(n_written, V_HEADS * K_DIM * V_DIM + TAPS * CHANNELS, "only the state is written");
    for (size_t i = BEFORE; i < BEFORE + elems - 4; i++)
        n_written -= pages[(size_t)table[1][i / PAGE_ELEMS] * PAGE_ELEMS + i % PAGE_ELEMS] ==
                     pages[(size_t)table[1][i / PAGE_ELEMS] * PAGE_ELEMS + i % PAGE_ELEMS];
    ok(n_written <= 4, "and where its table says");
}

static void check_shut(void)
{
    float x[33], gate[33];
    double worst = 0.0;

    fill(x, 33);
    fill(gate, 33);
    for (int i = 0; i < 33; i++) {
        double want = (double)x[i] * sigmoid((double)gate[i]);
        float y = x[i];

        ref_shut(&y, &gate[i], 1);
        worst = fmax(worst, fabs(want - (double)y));
    }
    ok(worst < 1e-6, "gates: within %.1e", worst);
}

int main(void)
{
    srand(tap_seed(1));
    fill(in, sizeof in / sizeof in[0]);
    fill(gates, sizeof gates / sizeof gates[0]);
    fill(taps, sizeof taps / sizeof taps[0]);
    fill(a_log, V_HEADS);
    fill(dt_bias, sizeof dt_bias / sizeof dt_bias[0]);
    fill(a_in, sizeof a_in / sizeof a_in[0]);
    fill(z_in, sizeof z_in / sizeof z_in[0]);
    fill(norm, V_DIM);
    for (int i = 0; i < N_PAGES; i++)
        table[i % 2][i / 2] = i * 7 % N_PAGES;
    check_delta();
    shape.by_channel = true;
    check_delta();
    check_shut();
    return tap_done();
}
