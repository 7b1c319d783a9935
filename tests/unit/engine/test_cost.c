/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the cost model foretells what steps take: after the trials of a start, and from nothing
 * while it serves; a device that becomes slower is followed, single delays are not; what it says
 * never falls when a step gets more. Method: a simulated device (steps.h) with noise, whose rules
 * are others than the model's. */
#include <stdlib.h>

#include "tests/tap.h"
#include "tests/unit/engine/steps.h"

#define N_STEPS 4000

static const struct trial_limits limits = {.max_num_seqs = 256,
                                           .max_num_batched_tokens = 8192,
                                           .max_model_len = 131072};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int between(uint64_t *state, int low, int high)
{
    return low + (int)(steps_uniform(state) * (high - low + 1));
}

/* Steps of three kinds of service, none of which a trial has. */
static void trace_step(const struct cost *c, int trace, uint64_t *r, struct cost_step *out)
{
    int n_decodes = 0, n_chunks = 0;

    *out = (struct cost_step){0};
    switch (trace) {
    case 0:
        n_decodes = between(r, 180, 250);
        n_chunks = between(r, 0, 2);
        break; /* 1024/256 */
    case 1:
        n_decodes = between(r, 1, 255);
        n_chunks = between(r, 0, 8);
        break; /* chats */
    case 2:
        n_decodes = between(r, 0, 12);
        n_chunks = between(r, 0, 2);
        break; /* documents */
    default: break;
    }
    for (int i = 0; i < n_decodes; i++)
        cost_add(c, out, trace == 2 ? between(r, 4000, 60000) : between(r, 50, 1300), 1, 1);
    for (int i = 0; i < n_chunks || out->n_tokens == 0; i++) {
        int before = trace == 2 ? between(r, 0, 40000) : between(r, 0, 600);

        cost_add(c, out, before, trace == 1 ? between(r, 30, 300) : between(r, 100, 1000), 1);
    }
}

/* The 90th percentile of the relative errors of a trace, the model learning or not. */
static double trace_error(struct cost *c, struct steps_device *d, int trace, bool learns)
{
    static double errors[N_STEPS];
    uint64_t r = 77 + (uint64_t)trace;
    double now_us = 0.0;

    for (int i = 0; i < N_STEPS; i++) {
        struct cost_step step;
        double us;

        trace_step(c, trace, &r, &step);
        us = steps_us(d, &step, now_us);
        errors[i] = fabs(cost_us(c, &step) - us) / us;
        if (learns)
            (void)cost_learn(c, &step, us);
        now_us += us;
    }
    qsort(errors, N_STEPS, sizeof errors[0], compare);
    return errors[N_STEPS * 9 / 10];
}

static void test_traces(const char *name, const struct steps_device *device)
{
    static const char *const traces[] = {"1024 in and 256 out", "chats", "documents"};

    for (int trace = 0; trace < 3; trace++) {
        struct steps_device d = *device;
        struct cost c;
        double fixed, learning;

        cost_init(&c, &steps_shape);
        steps_try(&c, &d, &limits);
        fixed = trace_error(&c, &d, trace, false);
        ok(fixed < 0.10, "%s, %s: after the start, 90%% of steps within %.1f%%", name,
           traces[trace], 100.0 * fixed);
        learning = trace_error(&c, &d, trace, true);
        ok(learning < 0.08, "and learning within %.1f%%", 100.0 * learning);
        (void)trace_error(&c, &d, (trace + 1) % 3, true);
        fixed = trace_error(&c, &d, (trace + 2) % 3, false);
        ok(fixed < 0.12, "another trace, of which it has learned nothing, within %.1f%%",
           100.0 * fixed);
    }
}

/* Without trials: a device that is 40 times slower than the guess. */
static void test_guess(void)
{
    struct steps_device d = steps_h200_bf16;
    struct cost c;
    double error;

    d.weights_us *= 40.0;
    d.token_us *= 40.0;
    d.key_us *= 40.0;
    d.pair_us *= 40.0;
    d.row_us *= 40.0;
    cost_init(&c, &steps_shape);
    (void)trace_error(&c, &d, 1, true);
    error = trace_error(&c, &d, 1, false);
    ok(error < 0.10, "from a wrong guess it learns while it serves: within %.1f%%", 100.0 * error);
    error = trace_error(&c, &d, 0, true);
    ok(error < 0.10, "and goes on with other steps: within %.1f%%", 100.0 * error);
}

static void test_change(void)
{
    struct steps_device d = steps_h200_bf16;
    struct cost c;
    struct cost_step step = {0};
    double before_us, after_us, error;

    cost_init(&c, &steps_shape);
    steps_try(&c, &d, &limits);
    d.weights_us *= 1.5; /* a lower power limit */
    d.token_us *= 1.5;
    d.row_us *= 1.5;
    (void)trace_error(&c, &d, 0, true);
    error = trace_error(&c, &d, 0, false);
    ok(error < 0.10, "a device that is half as slow again is followed: within %.1f%%",
       100.0 * error);
    for (int i = 0; i < 200; i++)
        cost_add(&c, &step, 800, 1, 1);
    cost_add(&c, &step, 0, 800, 1);
    before_us = cost_us(&c, &step);
    (void)cost_learn(&c, &step, 3e6);
    after_us = cost_us(&c, &step);
    ok(after_us < 1.25 * before_us, "a delay of 3 s changes %.1f ms to %.1f", before_us * 1e-3,
       after_us * 1e-3);
}

static void test_shape(void)
{
    static const struct cache_group both[] = {{.kind = CACHE_FULL},
                                              {.kind = CACHE_WINDOW, .window = 100}};
    struct cost_shape halves = steps_shape;
    struct steps_device d = steps_h200_bf16;
    struct cost c;
    struct cost_step step = {0}, kept;
    uint64_t r = 5;
    bool rises = true, fits = true;

    halves.groups = both;
    halves.n_groups = 2;
    cost_init(&c, &halves);
    cost_add(&c, &step, 999, 1, 1);
    ok(step.decode_keys == 550.0, "of 1000 tokens half of the layers see 100");
    cost_add(&c, &step, 50, 100, 1);
    ok(step.prompt_pairs == (double)(51 + 150) * 100 / 4 + ((51 + 100) * 50 / 2.0 + 5000) / 2.0,
       "and pairs are counted likewise");
    kept = step;
    cost_add(&c, &step, 3, 500, 2);
    cost_take(&c, &step, 3, 500, 2);
    ok(step.n_tokens == kept.n_tokens && step.n_rows == kept.n_rows &&
           step.n_chunks == kept.n_chunks && fabs(step.prompt_pairs - kept.prompt_pairs) < 1e-6,
       "what was added can be taken away");
    cost_init(&c, &steps_shape);
    steps_try(&c, &d, &limits);
    for (int i = 0; i < 2000; i++) {
        int before, n;
        double limit;

        trace_step(&c, i % 3, &r, &step);
        (void)cost_learn(&c, &step, steps_us(&d, &step, 0.0));
        kept = step;
        before = between(&r, 0, 5000);
        cost_add(&c, &kept, before, between(&r, 2, 3000), 1);
        rises = rises && cost_us(&c, &kept) >= cost_us(&c, &step);
        limit = cost_us(&c, &step) * (1.0 + steps_uniform(&r));
        n = cost_fits(&c, &step, before, 4000, limit);
        kept = step;
        cost_add(&c, &kept, before, n + 1, 1);
        fits = fits && (n == 4000 || cost_us(&c, &kept) > limit);
        if (n > 0) {
            kept = step;
            cost_add(&c, &kept, before, n, 1);
            fits = fits && cost_us(&c, &kept) <= limit;
        }
    }
    ok(rises, "more in a step never makes it shorter");
    ok(fits, "cost_fits() gives the most that fits");
}

static void test_target(void)
{
    struct steps_device d = steps_h200_bf16;
    struct cost c;
    double auto_us;

    cost_init(&c, &steps_shape);
    steps_try(&c, &d, &limits);
    c.error = 0.0;
    ok(cost_target_us(&c, 0, 1) <= 0.0, "0: no target");
    ok(fabs(cost_target_us(&c, 40, 1) - 40000.0) < 1.0 &&
           fabs(cost_target_us(&c, 40, 4) - 10000.0) < 1.0,
       "a token's time is that of a step of each stage");
    auto_us = cost_target_us(&c, -1, 1);
    ok(fabs(auto_us - 40000.0) < 1.0, "by itself: 40 ms");
    d.weights_us *= 5.0;
    cost_init(&c, &steps_shape);
    steps_try(&c, &d, &limits);
    c.error = 0.0;
    auto_us = cost_target_us(&c, -1, 1);
    ok(auto_us > 120000.0 && auto_us < 180000.0,
       "of a model with five times the weights eight times a read of them, %.1f ms",
       auto_us * 1e-3);
    c.error = 0.05;
    ok(fabs(cost_target_us(&c, 40, 1) - 40000.0 / 1.15) < 1.0, "errors are allowed for");
}

int main(void)
{
    test_traces("H200, bf16", &steps_h200_bf16);
    test_traces("H200, fp8", &steps_h200_fp8);
    test_guess();
    test_change();
    test_shape();
    test_target();
    return tap_done();
}
