/* SPDX-License-Identifier: Apache-2.0
 *
 * Layers of Gated DeltaNet and Mamba-2 of random weights and inputs, whose heads forget half of a
 * state within 8 to 32,768 tokens, and errors of their results by head: for measurements of states
 * in bfloat16, by references (bench_state.c) and by kernels (tests/kernel/test_state.c). */
#ifndef QUIRE_TESTS_BENCH_STATES_H
#define QUIRE_TESTS_BENCH_STATES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/delta.h"
#include "kernels/mamba.h"

#define STATES_HEADS  7 /* head h halves its state in 8 << 2 * h tokens */
#define STATES_LAST   1024
#define STATES_STEP   2048 /* tokens that are drawn at a time, and those of the longest step */
#define STATES_TAPS   4
#define STATES_TOKENS 32768

struct states {
    bool is_mamba;
    struct k_delta delta;
    struct k_mamba mamba;
    size_t n_state, row, n_out; /* elements of a state, of a token's inputs and results */
    float *numbers;             /* weights */
    size_t n_numbers;
    uint64_t seed;
};

/* Of about normal distribution: mean 0, deviation 1, and a bfloat16. */
static inline float states_normal(struct states *s)
{
    float sum = 0.0f;
    uint32_t bits;
    union {
        float f;
        uint32_t u;
    } x;

    for (int i = 0; i < 12; i++) {
        s->seed = s->seed * 6364136223846793005ULL + 1442695040888963407ULL;
        sum += (float)(s->seed >> 40) / 16777216.0f;
    }
    x.f = sum - 6.0f;
    bits = x.u & 0xffff0000U;
    x.u = bits;
    return x.f;
}

static inline int states_half_life(int head)
{
    return 8 << 2 * head;
}

/* The weights' views: of `numbers` on the host or a device; norms are given apart. */
static inline void states_point(struct states *s, const float *numbers, const void *norm)
{
    const struct k_delta_shape of_delta = {.n_k_heads = STATES_HEADS,
                                           .n_v_heads = STATES_HEADS,
                                           .k_dim = 128,
                                           .v_dim = 128,
                                           .n_taps = STATES_TAPS};
    const struct k_mamba_shape of_mamba = {.n_heads = STATES_HEADS,
                                           .head_dim = 64,
                                           .n_groups = 1,
                                           .n_state = 128,
                                           .n_taps = STATES_TAPS};
    const float *heads = numbers + STATES_TAPS * 3 * STATES_HEADS * 128;

    s->delta = (struct k_delta){.shape = of_delta,
                                .q_taps = numbers,
                                .k_taps = numbers + STATES_TAPS * STATES_HEADS * 128,
                                .v_taps = numbers + 2 * STATES_TAPS * STATES_HEADS * 128,
                                .a_log = heads,
                                .dt_bias = heads + 128,
                                .norm = norm,
                                .eps = 1e-6f};
    s->mamba = (struct k_mamba){
        .shape = of_mamba,
        .x = {.taps = numbers, .by = 1.0f},
        .b = {.taps = numbers + STATES_TAPS * STATES_HEADS * 64, .by = 1.0f},
        .c = {.taps = numbers + STATES_TAPS * (STATES_HEADS * 64 + 128), .by = 1.0f},
        .a_log = heads,
        .dt_bias = heads + 128,
        .skip = heads + 256, /* zeros: the state alone is measured */
        .dt_by = 1.0f,
        .z_by = 1.0f,
        .least = 0.0f,
        .most = INFINITY};
}

static inline void states_open(struct states *s, bool is_mamba)
{
    size_t n_taps = (size_t)STATES_TAPS * 3 * STATES_HEADS * 128;

    *s = (struct states){.is_mamba = is_mamba, .n_numbers = n_taps + 4 * 128, .seed = 1};
    s->numbers = calloc(s->n_numbers, sizeof *s->numbers);
    for (size_t i = 0; i < n_taps; i++)
        s->numbers[i] = 0.5f * states_normal(s);
    for (int h = 0; h < STATES_HEADS; h++)
        s->numbers[n_taps + (size_t)h] = (float)log(log(2.0) / states_half_life(h));
    for (int i = 0; i < 128; i++)
        s->numbers[n_taps + 384 + (size_t)i] = 1.0f;
    states_point(s, s->numbers, s->numbers + n_taps + 384);
    s->n_state = is_mamba ? k_mamba_elems(&s->mamba.shape) : k_delta_elems(&s->delta.shape);
    s->row = is_mamba ? (size_t)k_mamba_row(&s->mamba.shape) : (size_t)k_delta_row(&s->delta.shape);
    s->n_out =
        is_mamba ? (size_t)k_mamba_inner(&s->mamba.shape) : (size_t)k_delta_values(&s->delta.shape);
}

/* Inputs and gates of STATES_STEP tokens. Softplus of 0.5413 is 1: what the rates are made for. */
static inline void states_draw(struct states *s, float *in, float *gates)
{
    for (size_t i = 0; i < STATES_STEP * s->row; i++)
        in[i] = states_normal(s);
    for (int i = 0; i < STATES_STEP; i++) {
        for (int h = 0; h < STATES_HEADS; h++) {
            gates[i * 2 * STATES_HEADS + h] = states_normal(s);
            gates[i * 2 * STATES_HEADS + STATES_HEADS + h] = 0.5413f;
            if (s->is_mamba)
                in[(size_t)(i + 1) * s->row - STATES_HEADS + (size_t)h] = 0.5413f;
        }
    }
}

/* Root of the mean square of differences, relative to that of `want`. */
struct states_error {
    double differences, squares;
};

static inline void states_add(struct states_error *e, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];

        e->differences += d * d;
        e->squares += (double)want[i] * (double)want[i];
    }
}

static inline double states_error_of(const struct states_error *e)
{
    return sqrt(e->differences / e->squares);
}

/* Add the results of the last STATES_LAST of STATES_STEP tokens, by head. */
static inline void states_add_results(const struct states *s, struct states_error *e,
                                      const float *got, const float *want)
{
    size_t each = s->n_out / STATES_HEADS;

    for (int t = STATES_STEP - STATES_LAST; t < STATES_STEP; t++) {
        for (size_t h = 0; h < STATES_HEADS; h++)
            states_add(&e[h], got + (size_t)t * s->n_out + h * each,
                       want + (size_t)t * s->n_out + h * each, each);
    }
}

#endif
