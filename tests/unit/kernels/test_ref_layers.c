/* SPDX-License-Identifier: Apache-2.0
 *
 * The references of row operations of layers in general, against float64 formulas written here:
 * activations with and without a gate, norms with and without a mean, multipliers, learned
 * positions, embeddings for each layer, the cap of logits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/tap.h"

#define N   5
#define DIM 37

static double activation(double v, enum k_activation kind)
{
    switch (kind) {
    case K_SILU: return v / (1.0 + exp(-v));
    case K_GELU: return v / 2.0 * (1.0 + erf(v / sqrt(2.0)));
    case K_GELU_TANH: return v / 2.0 * (1.0 + tanh(sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v)));
    case K_RELU: return v > 0.0 ? v : 0.0;
    case K_RELU_2: return v > 0.0 ? v * v : 0.0;
    case K_SWISH_CLAMPED: v = fmin(v, 7.0); return v / (1.0 + exp(-1.702 * v));
    }
    return NAN;
}

/* What a gate multiplies. */
static double factor(double up, enum k_activation kind)
{
    return kind == K_SWISH_CLAMPED ? fmax(fmin(up, 7.0), -7.0) + 1.0 : up;
}

static void check_activations(void)
{
    static const char *const names[] = {"silu", "gelu by erf", "gelu by tanh",
                                        "relu", "relu^2",      "clamped swish"};
    float in[400], out[400], gated[200];

    for (int i = 0; i < 400; i++)
        in[i] = (float)(i * 7 % 400 - 200) * 0.05f;
    for (int k = K_SILU; k <= K_SWISH_CLAMPED; k++) {
        double worst = 0.0, worst_gated = 0.0;

        ref_activate(out, in, (enum k_activation)k, 400);
        ref_gate(gated, in, (enum k_activation)k, 2, 100);
        for (int i = 0; i < 400; i++)
            worst = fmax(worst, fabs((double)out[i] - activation((double)in[i], k)));
        for (int i = 0; i < 200; i++) {
            int gate = i / 100 * 200 + i % 100;
            double want = activation((double)in[gate], k) * factor((double)in[gate + 100], k);

            worst_gated = fmax(worst_gated, fabs((double)gated[i] - want));
        }
        ok(worst < 8e-6, "%s: within %.1e", names[k], worst);
        ok(worst_gated < 8e-5, "%s with a gate: within %.1e", names[k], worst_gated);
    }
}

/* The norm of a row in float64. */
static void norm_of(double *out, const float *x, const struct k_norm *norm, int dim)
{
    const float *weight = norm->weight, *bias = norm->bias;
    double mean = 0.0, squares = 0.0;

    for (int d = 0; d < dim && norm->kind == K_NORM_LAYER; d++)
        mean += (double)x[d] / dim;
    for (int d = 0; d < dim; d++)
        squares += ((double)x[d] - mean) * ((double)x[d] - mean) / dim;
    for (int d = 0; d < dim; d++) {
        out[d] =
            norm->kind == K_NORM_NONE
                ? (double)x[d]
                : ((double)x[d] - mean) / sqrt(squares + (double)norm->eps) * (double)weight[d];
        if (bias != NULL)
            out[d] += (double)bias[d];
    }
}

static void check_norm(const struct k_norm *norm, const char *name)
{
    float x[N * DIM], out[N * DIM], within[N * (DIM + 3)];
    double want[DIM], worst = 0.0, worst_within = 0.0;
    bool untouched = true;

    for (int i = 0; i < N * DIM; i++)
        x[i] = 3.0f + (float)rand() / (float)RAND_MAX;
    for (int i = 0; i < N * (DIM + 3); i++)
        within[i] = i % (DIM + 3) < DIM ? x[i / (DIM + 3) * DIM + i % (DIM + 3)] : 7.0f;
    ref_norm(out, x, norm, N, DIM);
    ref_norm_within(within, DIM + 3, norm, N, DIM);
    for (int t = 0; t < N; t++) {
        norm_of(want, x + t * DIM, norm, DIM);
        for (int d = 0; d < DIM + 3; d++) {
            float got = within[t * (DIM + 3) + d];

            if (d >= DIM) {
                untouched = untouched && got == 7.0f;
                continue;
            }
            worst = fmax(worst, fabs((double)out[t * DIM + d] - want[d]));
            worst_within = fmax(worst_within, fabs((double)got - want[d]));
        }
    }
    ok(worst < 5e-6, "%s: within %.1e", name, worst);
    ok(worst_within < 5e-6 && untouched, "%s in place: within %.1e, nothing else is written", name,
       worst_within);
}

static void check_norms(void)
{
    float weight[DIM], bias[DIM];

    for (int d = 0; d < DIM; d++) {
        weight[d] = 0.5f + (float)d / DIM;
        bias[d] = (float)(d % 5) - 2.0f;
    }
    check_norm(&(struct k_norm){K_NORM_RMS, weight, NULL, 1e-5f}, "RMS norm");
    check_norm(&(struct k_norm){K_NORM_LAYER, weight, NULL, 1e-5f}, "layer norm without a bias");
    check_norm(&(struct k_norm){K_NORM_LAYER, weight, bias, 1e-5f}, "layer norm");
    check_norm(&(struct k_norm){K_NORM_NONE, NULL, NULL, 0.0f}, "no norm");
}

/* Rows of 12 queries and 6 keys over two ranks, or over four of which two have the same keys. */
static void check_split_norm(int n_ranks, int copies)
{
    enum { Q = 12, KV = 6, ROW = Q + KV };
    int q = Q / n_ranks, k = KV * copies / n_ranks, stride = q + 2 * k, n_squares = 2 * 8 * n_ranks;
    float weight[ROW], x[2 * ROW], want[2 * ROW], own[4][2 * ROW * 2], squares[64], sums[64] = {0};
    double worst = 0.0;

    for (int i = 0; i < 2 * ROW; i++) {
        weight[i % ROW] = 0.5f + (float)(i % ROW) / ROW;
        x[i] = want[i] = 3.0f * (float)rand() / (float)RAND_MAX - 1.0f;
    }
    ref_norm_within(want, ROW, &(struct k_norm){K_NORM_RMS, weight, NULL, 1e-5f}, 2, Q);
    ref_norm_within(want + Q, ROW, &(struct k_norm){K_NORM_RMS, weight + Q, NULL, 1e-5f}, 2, KV);
    for (int pass = 0; pass < 2; pass++) {
        for (int rank = 0; rank < n_ranks; rank++) {
            int first_q = rank * q, first_k = Q + rank / copies * k;
            struct k_split_norms s = {.q = {weight + first_q, q, Q, true},
                                      .k = {weight + first_k, k, KV, rank % copies == 0},
                                      .stride = stride,
                                      .eps = 1e-5f,
                                      .rank = rank,
                                      .n_ranks = n_ranks};

            for (int t = 0; t < 2 && pass == 0; t++) {
                memcpy(own[rank] + t * stride, x + t * ROW + first_q, (size_t)q * 4);
                memcpy(own[rank] + t * stride + q, x + t * ROW + first_k, (size_t)k * 4);
            }
            if (pass == 1) {
                ref_norm_squares(own[rank], sums, &s, 2);
                continue;
            }
            ref_squares(squares, own[rank], &s, 2);
            for (int i = 0; i < n_squares; i++)
                sums[i] += squares[i];
        }
    }
    for (int i = 0; i < n_ranks * 2 * (q + k); i++) {
        int rank = i / (2 * (q + k)), t = i / (q + k) % 2, d = i % (q + k);
        int at = d < q ? rank * q + d : Q + rank / copies * k + d - q;

        worst = fmax(worst, fabs((double)own[rank][t * stride + d] - (double)want[t * ROW + at]));
    }
    ok(worst < 2e-6, "norm over %d ranks, %d with the same keys: within %.1e", n_ranks, copies,
       worst);
}

/* Steps of four tokens; the last element of each row stays. */
static void check_growth(void)
{
    static const int32_t pos[] = {3, 4, 11};
    static const double by[] = {1.0, 1.0 + 0.5 * 0.69314718, 1.0 + 0.5 * 1.09861229};
    float x[] = {1.0f, -2.0f, 5.0f, 1.0f, -2.0f, 5.0f, 1.0f, -2.0f, 5.0f};
    bool grown = true;

    ref_grow(x, 3, 2, &(struct k_growth){0.5f, 4, 0}, pos, 3);
    for (int t = 0; t < 3; t++)
        grown = grown && fabs((double)x[3 * t] - by[t]) < 1e-6 &&
                fabs((double)x[3 * t + 1] + 2.0 * by[t]) < 1e-6 && x[3 * t + 2] == 5.0f;
    ok(grown, "queries grow in steps of positions");
}

/* The three parts of a sum are the float itself, however many bits it has. */
static void check_exact_squares(void)
{
    bool exact = true;

    for (int i = 0; i < 1000; i++) {
        float x[3] = {ldexpf((float)rand() / (float)RAND_MAX, i % 80 - 40), 0.0f, 0.0f};
        float squares[8], sum = (float)((double)x[0] * (double)x[0]);
        struct k_split_norms s = {
            .q = {NULL, 1, 1, true}, .k = {NULL, 1, 1, true}, .stride = 3, .rank = 0, .n_ranks = 1};

        ref_squares(squares, x, &s, 1);
        exact = exact && squares[0] + squares[1] + squares[2] == sum;
        for (int part = 0; part < 3; part++) {
            uint32_t bits;

            memcpy(&bits, &squares[part], sizeof bits);
            exact = exact && (bits & 0xffff) == 0;
        }
    }
    ok(exact, "squares travel without rounding as three bfloat16");
}

static void check_elements(void)
{
    static const int32_t pos[] = {4, 0, 2};
    float x[3 * 4], table[7 * 4], delta[3 * 4], logits[] = {-90.0f, -1.0f, 0.0f, 2.0f, 300.0f},
                                                bias[] = {0.0f, 2.0f, -8.0f, 0.0f, 1.0f};
    bool placed = true, added = true, softened = true;

    for (int i = 0; i < 28; i++)
        table[i] = (float)i;
    for (int i = 0; i < 12; i++) {
        x[i] = 1.0f;
        delta[i] = (float)i;
    }
    ref_place(x, 3.0f, table, pos, 2, 3, 4);
    for (int i = 0; i < 12; i++)
        placed = placed && x[i] == 3.0f + (float)((pos[i / 4] + 2) * 4 + i % 4);
    ok(placed, "rows are scaled and get the positions' rows");
    ref_add(x, delta, 0.5f, 12);
    for (int i = 0; i < 12; i++)
        added = added && x[i] == 3.0f + (float)((pos[i / 4] + 2) * 4 + i % 4) + 0.5f * (float)i;
    ok(added, "a scaled sum");
    ref_soften(logits, &(struct k_softening){bias, 0.5f, 30.0f}, 1, 5);
    for (int i = 0; i < 5; i++) {
        static const double before[] = {-45.0, 0.5, -4.0, 1.0, 150.5};

        softened = softened && fabs((double)logits[i] - 30.0 * tanh(before[i] / 30.0)) < 2e-5;
    }
    ok(softened, "logits get a bias, are scaled, then capped");
}

/* Rows of 3 factors in rows of 5. */
static void check_factors(void)
{
    const float in[6] = {-1.0f, 0.5f, 2.0f, 3.0f, -0.25f, 0.0f};
    const float by[10] = {2.0f, -3.0f, 0.5f, 99.0f, 99.0f, 4.0f, 8.0f, 1.0f, 99.0f, 99.0f};
    const struct k_factor factors = {by, 5, 3};
    float out[6];
    double worst = 0.0;

    ref_gate_by(out, in, &factors, K_GELU_TANH, 2);
    for (int i = 0; i < 6; i++) {
        double want = activation((double)in[i], K_GELU_TANH) * (double)by[i / 3 * 5 + i % 3];

        worst = fmax(worst, fabs((double)out[i] - want));
    }
    ok(worst < 1e-6, "an activation times a part of other rows: within %.1e", worst);
}

/* A row of three, by hand: the norm of the result, the sum, the scale, the norm of that. */
static void check_adding(void)
{
    const float delta[3] = {1.0f, 2.0f, -2.0f}, after[3] = {3.0f, 1.0f, 0.5f};
    const float norm[3] = {1.0f, 2.0f, 1.0f};
    const struct k_adding how = {
        {K_NORM_RMS, after, NULL, 1.0f}, {K_NORM_RMS, norm, NULL, 0.0f}, 2.0f, 0.5f};
    float x[3] = {1.0f, -1.0f, 2.0f}, out[3];

    ref_add_normed(out, x, delta, &how, 1, 3);
    /* The mean square is 3, so the norm divides by 2. */
    ok(fabsf(x[0] - 2.0f) < 1e-6f && fabsf(x[1] - 0.5f) < 1e-6f && fabsf(x[2] - 0.5f) < 1e-6f,
       "a sum with a norm and a scale");
    /* 4.5 / 3 = 1.5 is the mean square. */
    ok(fabsf(out[0] - 2.0f / sqrtf(1.5f)) < 1e-6f && fabsf(out[1] - 1.0f / sqrtf(1.5f)) < 1e-6f &&
           fabsf(out[2] - 0.5f / sqrtf(1.5f)) < 1e-6f,
       "and the next norm");
}

/* Two tokens, two layers of 3. */
static void check_layer_embeds(void)
{
    const int32_t ids[2] = {1, 0};
    const float weight[3] = {1.0f, 0.5f, -2.0f};
    float table[12], x[12], before[12];
    const struct k_layer_embeds e = {table, weight, 4.0f, 0.5f, 1e-3f, 2, 3};
    double worst = 0.0;

    for (int i = 0; i < 12; i++) {
        table[i] = (float)(i - 6);
        x[i] = before[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    }
    ref_embed_layers(x, &e, ids, 2);
    for (int i = 0; i < 12; i++) {
        const float *run = before + i / 3 * 3;
        double squares = 0.0, want;

        for (int d = 0; d < 3; d++)
            squares += (double)run[d] * (double)run[d] / 3.0;
        want = (double)before[i] / sqrt(squares + 1e-3) * (double)weight[i % 3];
        want = (want + 4.0 * (double)table[ids[i / 6] * 6 + i % 6]) * 0.5;
        worst = fmax(worst, fabs((double)x[i] - want));
    }
    ok(worst < 5e-6, "embeddings for each layer: within %.1e", worst);
}

int main(void)
{
    srand(tap_seed(1));
    check_activations();
    check_norms();
    check_split_norm(2, 1);
    check_split_norm(4, 2);
    check_exact_squares();
    check_growth();
    check_elements();
    check_factors();
    check_adding();
    check_layer_embeds();
    return tap_done();
}
