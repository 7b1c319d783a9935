/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated device: what steps of a model take, by rules that are not those of cost.c. Its
 * figures are those of docs/benchmarks.md for Llama-3.1-8B on one H200. */
#ifndef QUIRE_TESTS_STEPS_H
#define QUIRE_TESTS_STEPS_H

#include <math.h>
#include <stdint.h>

#include "engine/cost.h"
#include "engine/trial.h"

/* The model of these devices, as cost_init() is told of it. */
static const struct cache_group steps_groups[] = {{.kind = CACHE_FULL}};
static const struct cost_shape steps_shape = {.weight_bytes = 15e9,
                                              .token_flops = 14e9,
                                              .key_bytes = 131072.0,
                                              .pair_flops = 524288.0,
                                              .row_flops = 1e9,
                                              .tile_tokens = 128,
                                              .is_gpu = true,
                                              .groups = steps_groups,
                                              .n_groups = 1};

/* A device and a model, microseconds. */
struct steps_device {
    double weights_us; /* reading the weights */
    double token_us;   /* products of a token, where arithmetic binds */
    double mixed_us;   /* what a step of many tokens takes besides */
    double key_us;     /* reading the keys and values of a token, all layers */
    double pair_us;    /* attention of a pair */
    double row_us;     /* output matrix and sampling, per row */
    double noise;      /* deviation of a step's time */
    double drift;      /* of a slow wave of the clock's rate */
    double hiccups;    /* share of steps that the host delays by 2 ms */
    uint64_t random;
};

static const struct steps_device steps_h200_bf16 = {.weights_us = 3500.0,
                                                    .token_us = 20.7,
                                                    .mixed_us = 2200.0,
                                                    .key_us = 0.0285,
                                                    .pair_us = 0.00095,
                                                    .row_us = 3.0,
                                                    .noise = 0.015,
                                                    .drift = 0.03,
                                                    .hiccups = 0.002,
                                                    .random = 1};
static const struct steps_device steps_h200_fp8 = {.weights_us = 1950.0,
                                                   .token_us = 12.8,
                                                   .mixed_us = 1600.0,
                                                   .key_us = 0.0148,
                                                   .pair_us = 0.00098,
                                                   .row_us = 3.0,
                                                   .noise = 0.015,
                                                   .drift = 0.03,
                                                   .hiccups = 0.002,
                                                   .random = 1};

__attribute__((unused)) static double steps_uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

__attribute__((unused)) static double steps_normal(uint64_t *state)
{
    double sum = -6.0;

    for (int i = 0; i < 12; i++)
        sum += steps_uniform(state);
    return sum;
}

/* The true time of a step without noise. Products: the slower of memory and arithmetic, with a
 * soft corner; of many tokens in tiles of 128 rows, as the times of an H200 show. Attention of
 * short chunks fills the device badly. */
__attribute__((unused)) static double steps_true_us(const struct steps_device *d,
                                                    const struct cost_step *s)
{
    bool many = s->n_tokens > 256;
    double rows = many ? ceil((double)s->n_tokens / 128.0) * 128.0 : (double)s->n_tokens;
    double products = pow(pow(d->weights_us, 4.0) + pow(d->token_us * rows, 4.0), 0.25);
    double chunk = s->n_chunks > 0 ? (double)(s->n_tokens - s->n_rows) / (double)s->n_chunks : 0.0;
    double badly = chunk > 0.0 ? 1.0 + 256.0 / (256.0 + chunk) : 1.0;

    return 150.0 + products + (many ? d->mixed_us : 0.0) + d->key_us * s->decode_keys +
           d->pair_us * badly * s->prompt_pairs + 0.1 * d->key_us * s->prompt_keys +
           d->row_us * (double)s->n_rows + 12.0 * (double)s->n_chunks + 0.4 * rows;
}

/* With noise, at a time. */
__attribute__((unused)) static double steps_us(struct steps_device *d, const struct cost_step *s,
                                               double now_us)
{
    double us = steps_true_us(d, s) * exp(d->noise * steps_normal(&d->random));

    us *= 1.0 + d->drift * sin(now_us * 1e-6 / 5.0);
    return us + (steps_uniform(&d->random) < d->hiccups ? 2000.0 : 0.0);
}

/* Fit a cost model as an engine does at its start. */
__attribute__((unused)) static void steps_try(struct cost *c, struct steps_device *d,
                                              const struct trial_limits *limits)
{
    struct trial trials[TRIALS_MAX];
    struct cost_step steps[TRIALS_MAX];
    double us[TRIALS_MAX];
    int n = trial_list(trials, limits), n_done = 0;

    for (int i = 0; i < n; i++) {
        trial_step(c, &trials[i], &steps[n_done]);
        us[n_done] = steps_us(d, &steps[n_done], 0.0);
        n_done += steps[n_done].n_tokens <= 2048; /* longer ones find no time */
    }
    cost_fit(c, steps, us, n_done);
}

#endif
