/* SPDX-License-Identifier: Apache-2.0
 *
 * The references of experts: choices whose results are known by hand, equal scores, numbers that
 * are none, groups, the order of routes, and sums. */
#include <math.h>

#include "kernels/kernels.h"
#include "tests/tap.h"

#define E 6

static int32_t ids[8];
static float weights[8];
static const struct k_routes routes = {ids, weights};

static struct k_router router(enum k_scoring scoring, int n_used)
{
    return (struct k_router){.n_experts = E,
                             .n_used = n_used,
                             .n_groups = 1,
                             .n_groups_used = 1,
                             .group_best = 1,
                             .scoring = scoring,
                             .least = 1e-20f,
                             .scale = 1.0f};
}

static bool near(float a, double b)
{
    return fabs((double)a - b) < 1e-6;
}

static void check_scores(void)
{
    /* e^x are 1, 2, 4, 8, 16, 1; their sum is 32 */
    const float x[E] = {0.0f, 0.6931472f, 1.3862944f, 2.0794415f, 2.7725887f, 0.0f};
    const float bias[E] = {0.0f, 0.0f, 0.0f, 0.0f, -1.0f, 0.9f};
    struct k_router r = router(K_SCORE_SOFTMAX, 2);

    ref_choose(&routes, x, &r, 1);
    ok(ids[0] == 4 && ids[1] == 3 && near(weights[0], 0.5) && near(weights[1], 0.25), "softmax");
    r.renorms = true;
    r.scale = 3.0f;
    ref_choose(&routes, x, &r, 1);
    ok(near(weights[0], 2.0) && near(weights[1], 1.0), "weights that add up to the scale");
    r.bias = bias;
    ref_choose(&routes, x, &r, 1);
    ok(ids[0] == 5 && ids[1] == 3 && near(weights[0], 3.0 / 9.0) && near(weights[1], 24.0 / 9.0),
       "a bias chooses and does not weigh");
    r = router(K_SCORE_SIGMOID, 2);
    ref_choose(&routes, x, &r, 1);
    ok(ids[0] == 4 && near(weights[0], 16.0 / 17.0) && near(weights[1], 8.0 / 9.0), "sigmoid");
    r = router(K_SCORE_TOP, 3);
    ref_choose(&routes, x, &r, 1);
    ok(near(weights[0], 16.0 / 28.0) && near(weights[1], 8.0 / 28.0) && ids[2] == 2,
       "softmax of the chosen");
}

/* Expert E follows the others, and takes part in no sum of weights. */
static void check_shared(void)
{
    const float x[E] = {0.0f, 0.6931472f, 1.3862944f, 2.0794415f, 2.7725887f, 0.0f};
    struct k_router r = router(K_SCORE_SOFTMAX, 3);

    r.n_shared = 1;
    r.renorms = true;
    r.scale = 3.0f;
    ref_choose(&routes, x, &r, 1);
    ok(ids[0] == 4 && ids[1] == 3 && near(weights[0], 2.0) && near(weights[1], 1.0) &&
           ids[2] == E && near(weights[2], 1.0),
       "a shared expert has the last slot, and weight 1");
}

/* Logits are E numbers of w times the one of x. */
static void check_switch(void)
{
    const float w[E] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 0.0f}, by[1] = {-1.0f}, x[1] = {1.3862944f};
    struct k_router r = router(K_SCORE_TOP, 2);

    r.w = w;
    r.n_shared = 1;
    r.shared_switch = by;
    ref_route(&routes, x, &r, 1, 1);
    ok(ids[0] == 4 && near(weights[0], 1.0) && ids[1] == E && near(weights[1], 0.2),
       "a shared expert with a switch");
}

static void check_mixer(void)
{
    /* The second is within 2 * 0.1 * 10 of the first, the third is not. */
    const float x[E] = {1.0f, 9.0f, 10.0f, 7.0f, -3.0f, 0.0f};
    struct k_router r = router(K_SCORE_MIXER, 2);

    r.spread = 0.1f;
    ref_choose(&routes, x, &r, 1);
    ok(ids[0] == 2 && near(weights[0], 1.0 / (1.0 + exp(-1.0))), "the first of two that are near");
    /* Without the first, 7 is within 2 * 0.1 * 9 of 9? It is 2 below, 1.8 are allowed. */
    ok(ids[1] == 1 && near(weights[1], 1.0), "the second alone");
    r.spread = 0.12f;
    ref_choose(&routes, x, &r, 1);
    ok(near(weights[1], 1.0 / (1.0 + exp(-2.0))), "and with one that is near it");
}

static void check_order_of_choices(void)
{
    const float equal[E] = {1.0f, 2.0f, 2.0f, 2.0f, 1.0f, 2.0f};
    const float none[E] = {NAN, 1.0f, NAN, -INFINITY, NAN, NAN};
    const float groups[E] = {5.0f, 0.0f, 3.0f, 3.0f, 4.0f, 4.5f};
    struct k_router r = router(K_SCORE_TOP, 3);

    ref_choose(&routes, equal, &r, 1);
    ok(ids[0] == 1 && ids[1] == 2 && ids[2] == 3, "the lowest id among equals");
    ref_choose(&routes, none, &r, 1);
    ok(ids[0] == 1 && ids[1] == 3 && ids[2] == 0, "NaN is less than all numbers");
    r = router(K_SCORE_TOP, 2);
    r.n_groups = 3;
    r.n_groups_used = 1;
    r.group_best = 1;
    ref_choose(&routes, groups, &r, 1);
    ok(ids[0] == 0 && ids[1] == 1, "the group with the best one");
    r.group_best = 2;
    ref_choose(&routes, groups, &r, 1);
    ok(ids[0] == 5 && ids[1] == 4, "the group with the best two");
}

/* Six tokens, two slots; this rank has experts 2 and 3, and one that no token chose. */
static void check_routes(void)
{
    const int32_t chosen[12] = {2, 0, 3, 2, 1, 5, 2, 3, -1, -1, 3, 2};
    const int32_t starts[4] = {0, 4, 7, 7}, order[7] = {0, 3, 6, 11, 2, 7, 10};
    const struct k_experts e = {.n = 3, .first = 2};
    int32_t got_starts[4], got[12], places[12];
    const struct k_sorted sorted = {got_starts, got, places};
    bool right = true;

    ref_sort_routes(&sorted, chosen, &e, 12);
    ok(memcmp(got_starts, starts, sizeof starts) == 0, "routes of each expert");
    ok(memcmp(got, order, sizeof order) == 0, "in the order of tokens");
    for (int i = 0; i < 12; i++) {
        bool mine = chosen[i] == 2 || chosen[i] == 3;

        right = right && (mine ? got[places[i]] == i : places[i] == -1);
    }
    ok(right, "and their places");
}

static void check_sums(void)
{
    const float y[3][2] = {{1.0f, 2.0f}, {10.0f, 20.0f}, {100.0f, 200.0f}};
    const float x[2][2] = {{0.0f, 1.0f}, {0.0f, 0.0f}}, switches[2] = {5.0f, 1.0986123f};
    const float by[4] = {0.5f, 2.0f, 1.0f, 1.0f};
    const int32_t places[4] = {0, 2, 1, -1};
    struct k_combining c = {.weights = by, .places = places, .n_used = 2, .dim = 2};
    float out[2][2] = {{8.0f, 4.0f}, {2.0f, 6.0f}};

    ref_combine(out[0], y[0], &c, 2);
    ok(near(out[0][0], 200.5) && near(out[0][1], 401.0) && near(out[1][0], 10.0),
       "weighted results; others' experts add nothing");
    memcpy(out, (const float[2][2]){{8.0f, 4.0f}, {2.0f, 6.0f}}, sizeof out);
    c.adds = true;
    ref_combine(out[0], y[0], &c, 2);
    ok(near(out[0][0], 208.5) && near(out[1][1], 26.0), "beside a result that is there");
    memcpy(out, (const float[2][2]){{8.0f, 4.0f}, {2.0f, 6.0f}}, sizeof out);
    c.x = x;
    c.switches = switches; /* sigmoid(log 3) is 3 / 4 */
    ref_combine(out[0], y[0], &c, 2);
    ok(fabs((double)out[0][0] - 206.5) < 1e-4 && near(out[1][1], 23.0), "with a switch");
}

/* One token, one expert of two; every matrix is 1 x 1, and biases make each sum. */
static void check_biases(void)
{
    float w[2] = {1.0f, 2.0f}, in[4] = {9.0f, 9.0f, 3.0f, 4.0f}, down[2] = {9.0f, 0.5f};
    const float logit_bias[2] = {0.0f, 5.0f}, in_bias[4] = {9.0f, 9.0f, 1.0f, -0.5f};
    const float down_bias[2] = {9.0f, 0.25f}, x = 1.0f;
    const struct k_router router = {.w = w,
                                    .logit_bias = logit_bias,
                                    .n_experts = 2,
                                    .n_used = 2,
                                    .n_groups = 1,
                                    .n_groups_used = 1,
                                    .scoring = K_SCORE_TOP,
                                    .scale = 1.0f};
    const struct k_experts experts = {.in = {.data = in, .n_out = 4, .n_in = 1},
                                      .down = {.data = down, .n_out = 2, .n_in = 1},
                                      .in_bias = in_bias,
                                      .down_bias = down_bias,
                                      .n = 2,
                                      .ff_dim = 1,
                                      .activation = K_RELU};
    int32_t chosen[2] = {-1, -1}, only[1] = {1};
    float by[2] = {0.0f, 0.0f}, one[1] = {1.0f}, out = 0.0f;
    const struct k_routes got = {chosen, by}, second = {only, one};
    const struct k_combining c = {.n_used = 1, .dim = 1};

    ref_route(&got, &x, &router, 1, 1); /* logits 1 and 2 + 5 */
    ok(chosen[0] == 1 && chosen[1] == 0 && near(by[0], 1.0 / (1.0 + exp(-6.0))),
       "logits with a bias, which counts for the weights");
    ref_experts(&out, &x, &experts, &second, &c, 1); /* 0.5 * (3 + 1) * (4 - 0.5) + 0.25 */
    ok(near(out, 7.25), "an expert with biases");
}

/* Logits 1 and 2: weights add up to 1 before each expert's own scale. */
static void check_scales(void)
{
    const float w[2] = {1.0f, 2.0f}, scales[2] = {3.0f, 0.5f}, x = 1.0f;
    const struct k_router router = {.w = w,
                                    .scales = scales,
                                    .n_experts = 2,
                                    .n_used = 2,
                                    .n_groups = 1,
                                    .n_groups_used = 1,
                                    .scoring = K_SCORE_SOFTMAX,
                                    .renorms = true,
                                    .least = 1e-20f,
                                    .scale = 1.0f};
    int32_t chosen[2] = {-1, -1};
    float by[2] = {0.0f, 0.0f};
    const struct k_routes got = {chosen, by};
    double second = 1.0 / (1.0 + exp(-1.0));

    ref_route(&got, &x, &router, 1, 1);
    ok(chosen[0] == 1 && chosen[1] == 0 && near(by[0], 0.5 * second) &&
           near(by[1], 3.0 * (1.0 - second)),
       "weights times a scale of each expert");
}

int main(void)
{
    check_scores();
    check_scales();
    check_shared();
    check_switch();
    check_mixer();
    check_order_of_choices();
    check_routes();
    check_sums();
    check_biases();
    return tap_done();
}
