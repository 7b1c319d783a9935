/* SPDX-License-Identifier: Apache-2.0
 *
 * e4m3 on the host: every value, what lies between two of them, what is too large, and rows that
 * are scaled into its range. */
#include <math.h>

#include "kernels/e4m3.h"
#include "tests/tap.h"

static void check_values(void)
{
    bool whole = true, even = true, near = true;

    for (int e = 0; e < 127; e++) {
        float a = k_e4m3_value((k_e4m3)e), b = k_e4m3_value((k_e4m3)(e + 1)), middle;

        whole = whole && k_e4m3_round(a) == e && k_e4m3_round(-a) == (e | 0x80) &&
                memcmp(&(float){-a}, &(float){k_e4m3_value((k_e4m3)(e | 0x80))}, 4) == 0;
        if (e == 126)
            break;
        middle = (a + b) * 0.5f; /* exact: both have few bits */
        even = even && k_e4m3_round(middle) == (e % 2 == 0 ? e : e + 1);
        near = near && a < b && k_e4m3_round(nextafterf(middle, 0.0f)) == e &&
               k_e4m3_round(nextafterf(middle, 1e30f)) == e + 1;
    }
    ok(whole, "each value is rounded to itself");
    ok(even, "the middle of two goes to the even one");
    ok(near, "else the nearest is taken");
    ok(k_e4m3_value(0x7e) >= K_E4M3_MAX && k_e4m3_value(1) <= 0x1p-9f, "largest and smallest");
    is_int(k_e4m3_round(1e30f), 0x7e, "what is too large becomes the largest");
    is_int(k_e4m3_round(-INFINITY), 0xfe, "minus infinity too");
    is_int(k_e4m3_round(NAN), K_E4M3_NAN, "NaN stays NaN");
    ok(isnan(k_e4m3_value(0x7f)) && isnan(k_e4m3_value(0xff)), "and is read as NaN");
}

/* The worst error of a row, as a share of what half a step of e4m3 allows. */
static double worst_share(const k_e4m3 *q, float scale, const float *x, int n)
{
    double worst = 0.0;

    for (int i = 0; i < n; i++) {
        double limit = fmax(fabs((double)x[i]) * 0x1.02p-4, (double)scale * 0x1.02p-10);

        worst =
            fmax(worst, fabs((double)k_e4m3_value(q[i]) * (double)scale - (double)x[i]) / limit);
    }
    return worst;
}

static void check_rows(void)
{
    enum { N = 3, DIM = 300, STRIDE = 5, RUNS = 3 };
    static float x[N * DIM], scales[RUNS * STRIDE];
    static k_e4m3 data[N * DIM];
    struct k_quantised q = {.data = data, .scales = scales};
    float fixed = 0.25f;
    double worst = 0.0;
    unsigned state = tap_seed(1);

    for (int i = 0; i < 2 * DIM; i++) /* the third row stays zero */
        x[i] = (float)(int)(random_next(&state) >> 8) * 1e-3f - 8000.0f;
    ref_quantise(&q, x, N, DIM);
    for (int t = 0; t < N; t++)
        worst = fmax(worst, worst_share(data + t * DIM, scales[t], x + t * DIM, DIM));
    ok(worst <= 1.0, "a scale a row: within half a step, %.3f of it", worst);
    ok(k_e4m3_value(data[2 * DIM]) == 0.0f && scales[2] > 0.0f, "a row of zeros is zeros");
    q.stride = STRIDE;
    ref_quantise(&q, x, N, DIM);
    worst = 0.0;
    for (int t = 0; t < N; t++) {
        for (int b = 0; b < RUNS; b++)
            worst = fmax(worst, worst_share(data + t * DIM + b * 128, scales[b * STRIDE + t],
                                            x + t * DIM + b * 128, b < 2 ? 128 : DIM - 256));
    }
    ok(worst <= 1.0, "a scale a run: within half a step, %.3f of it", worst);
    q.stride = 0;
    q.x_scale = &fixed;
    ref_quantise(&q, (float[]){1.0f, -1000.0f}, 1, 2);
    ok(k_e4m3_value(data[0]) == 4.0f && k_e4m3_value(data[1]) == -448.0f && scales[0] == 0.25f,
       "a given scale is used, and what it does not reach is cut off");
}

int main(void)
{
    check_values();
    check_rows();
    return tap_done();
}
